/* Quantises numbers from a file to a buffer that will be written to another. Only the search for one scale runs in one thread.
 *
 * The numbers are divided into pieces that stay in the second-level cache from the read to the encoded blocks. Each thread takes
 * the next piece until none is left. One of these jobs writes the bytes that an earlier call encoded.
 *
 * A file is read by pread, not mapped: one that is truncated meanwhile gives a short read instead of SIGBUS.
 */
#if !defined(_WIN32)
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#endif

#include "core/floats.h"
#include "quant/intblock.h"

enum {
    MIN_PIECE = 1 << 14, /* elements of a piece: a third of a millisecond */
    MAX_PIECE = 1 << 16, /* as float32 a quarter of the L2 cache of CPUs with a small one, such as Zen 4 */
    PIECES = 16,         /* pieces to aim at, so that threads end at almost the same time */
    WINDOW = 256,        /* a whole tensor's pieces are multiples: see wm_window */
    LINE = 64
};

typedef struct {
    wm_window window; /* first, so that both have one address */
    uint64_t checked; /* by the search: elements that are known to be finite */
    const wm_numbers *in;
    const wm_blocks *as;
    wm_quantizing how;
    uint64_t unit, unit_bytes; /* elements and bytes of a block */
    uint64_t piece, pieces;    /* elements of a piece */
    uint8_t *out;
    double *sums;
    uint8_t *room; /* for each thread: bytes as they were read, floats, errors */
    uint64_t raw_room, room_each;
    const wm_unwritten *earlier;
    wm_outcome failures[WM_MAX_PARTS];
} work;

static uint64_t lines(uint64_t size) { return (size + LINE - 1) / LINE * LINE; }

/* Fills in how the numbers are divided. Returns -1 for numbers or blocks that do not exist. */
static int divide(work *w) {
    const wm_numbers *in = w->in;
    const wm_blocks *as = w->as;
    if (in->kind < WM_FLOAT32 || in->kind > WM_BFLOAT16 || in->n > (uint64_t)1 << 56) return -1;
    const uint64_t bytes = in->n * wm_kind_size(in->kind);
    if (in->at > INT64_MAX || bytes > INT64_MAX - in->at) return -1;
    if (in->memory && (in->at > in->size || bytes > in->size - in->at)) return -1;
    if (as->type >= 0) {
        w->unit = wm_ggml_encodes(as->type) ? (uint64_t)wm_ggml_elements(as->type) : 0;
        if (!w->unit || in->n % w->unit) return -1;
        w->unit_bytes = (uint64_t)wm_ggml_bytes(as->type);
    } else {
        const int64_t size = wm_blocks_size(as->bits, as->scale_type, as->block_size, 1);
        if (size < 0) return -1;
        w->unit = as->block_size ? as->block_size : WINDOW;
        w->unit_bytes = as->block_size ? (uint64_t)size : code_bytes(as->bits, WINDOW);
    }
    uint64_t piece = in->n / PIECES;
    piece = piece < MIN_PIECE ? MIN_PIECE : piece > MAX_PIECE ? MAX_PIECE : piece;
    w->piece = ceil_div(piece, w->unit) * w->unit;
    w->pieces = ceil_div(in->n, w->piece);
    if (w->piece > in->n) w->piece = in->n; /* one piece: a small room is enough */
    w->raw_room = in->kind == WM_FLOAT32 ? 0 : lines(w->piece * wm_kind_size(in->kind));
    w->room_each = w->raw_room + lines(4 * w->piece) + lines(8 * (ceil_div(w->piece, w->unit) + 1));
    return 0;
}

/* Begins the room with the sums of all pieces; returns how many threads fit behind them, at most one for each piece. */
static uint64_t take_room(work *w, uint8_t *room, uint64_t size) {
    const uint64_t skip = (0 - (uint64_t)(uintptr_t)room) % LINE + lines(16 * w->pieces);
    w->room = room + skip, w->sums = (double *)(void *)(w->room - lines(16 * w->pieces));
    return size < skip ? 0 : (size - skip) / w->room_each;
}

uint64_t wm_quantize_room(const wm_numbers *in, const wm_blocks *as, int threads) {
    work w = {.in = in, .as = as};
    if (divide(&w)) return 0;
    const uint64_t max = threads < 1 || !w.pieces ? 1 : (uint64_t)threads;
    return LINE + lines(16 * w.pieces) + (max < w.pieces ? max : w.pieces) * w.room_each;
}

static int fail(wm_outcome *f, int what, uint64_t at, int error) {
    *f = (wm_outcome){what, at, error};
    return -1;
}

#if defined(_WIN32)
static uint64_t write_all(const wm_unwritten *w, int *error) { return *error = 40, 0; }
#else
static uint64_t write_all(const wm_unwritten *w, int *error) {
    uint64_t done = 0;
    while (done < w->size) {
        const ssize_t put = pwrite(w->fd, w->data + done, (size_t)(w->size - done), (off_t)(w->at + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) *error = errno;
        if (put <= 0) break;
        done += (uint64_t)put;
    }
    return done;
}
#endif

/* Converts n little-endian numbers at any alignment to floats. */
static void widen(const uint8_t *raw, int kind, uint64_t n, float *x) {
    const wm_variants *v = wm_variants_in_use();
    if (kind == WM_FLOAT16)
        v->f16_to_f32(raw, x, n, 0);
    else if (kind == WM_BFLOAT16)
        v->bf16_to_f32(raw, x, n, 0);
    else
        for (uint64_t i = 0; i < n; i++) {
            if (kind == WM_FLOAT32) {
                x[i] = float_of_bits(load_le32(raw + 4 * i));
            } else {
                const uint64_t bits = load_le64(raw + 8 * i);
                double value;
                memcpy(&value, &bits, sizeof value);
                x[i] = (float)value;
            }
        }
}

/* Returns `count` numbers from number `first` on as floats; NULL if the file does not have them. */
static const float *numbers_at(work *w, uint64_t first, uint64_t count, uint8_t *room, wm_outcome *f) {
    const wm_numbers *in = w->in;
    const uint64_t width = wm_kind_size(in->kind), at = in->at + first * width, size = count * width;
    const int native = in->kind == WM_FLOAT32 && !WM_BIG_ENDIAN;
    float *const x = (float *)(void *)(room + w->raw_room);
    const uint8_t *raw = in->memory ? in->memory + at : room;
    if (!in->memory) {
        uint64_t error;
        const wm_readable file = {in->fd, NULL, NULL};
        uint8_t *const to = in->kind == WM_FLOAT32 ? (uint8_t *)x : room;
        const uint64_t got = wm_read_at(&file, to, size, size, at, &error);
        if (got < size) return fail(f, WM_UNREADABLE, at + got, (int)error), NULL;
        if (native) return x;
        raw = to;
    }
    if (native && (uintptr_t)raw % sizeof(float) == 0) return (const float *)(const void *)raw;
    if (native)
        memcpy(x, raw, size);
    else
        widen(raw, in->kind, count, x); /* float32 in place: each is read before it is written */
    return x;
}

static double sum_of(const double *values, uint64_t n) {
    double sums[8] = {0};
    for (uint64_t i = 0; i < n; i++) sums[i % 8] += values[i];
    return sum_of_eight(sums);
}

static int quantize_piece(work *w, uint64_t number, uint8_t *room, wm_outcome *f) {
    const uint64_t first = number * w->piece, remaining = w->in->n - first, n = remaining < w->piece ? remaining : w->piece;
    const uint64_t blocks = w->how.scale ? 1 : ceil_div(n, w->unit); /* that errors are of */
    uint8_t *const out = w->out + first / w->unit * w->unit_bytes;
    double *const errors = (double *)(void *)(room + w->raw_room + lines(4 * w->piece));
    const float *const x = numbers_at(w, first, n, room, f);
    if (!x) return -1;
    const double squares = wm_sum_of_squares(x, n);
    if (!(squares <= 1e300)) { /* NaN or infinite, as none of finite floats is */
        const int64_t bad = wm_first_not_finite(x, n);
        return fail(f, WM_NOT_FINITE, first + (bad < 0 ? 0 : (uint64_t)bad), 0);
    }
    if (w->how.scale) {
        wm_variants_in_use()->quantize(&w->how, x, NULL, 1, n, out, errors);
    } else if (w->as->type < 0) {
        wm_quantize_finite(&w->how, w->unit, x, n, out, errors);
    } else { /* checks once more, which costs little */
        const int64_t bad = wm_ggml_encode(x, n, w->as->type, out, blocks * w->unit_bytes, errors, blocks, 1);
        if (bad != -1) return fail(f, WM_NOT_FINITE, first + (bad < 0 ? 0 : (uint64_t)bad), 0);
    }
    w->sums[2 * number] = sum_of(errors, blocks), w->sums[2 * number + 1] = squares;
    return 0;
}

int wm_write_now(const wm_unwritten *w, wm_outcome *f) {
    int error = 0;
    if (write_all(w, &error) < w->size) return fail(f, WM_UNWRITABLE, 0, error);
    /* The disk begins now, instead of when all is written. */
    if (w->flush) wm_begin_flush(w->fd, w->at, w->size);
    return 0;
}

static int do_job(void *context, int thread, uint64_t job, uint64_t end) {
    work *w = context;
    const uint64_t before = w->earlier ? 1 : 0;
    wm_outcome *const f = &w->failures[thread];
    return job < before ? wm_write_now(w->earlier, f)
                        : quantize_piece(w, job - before, w->room + (uint64_t)thread * w->room_each, f);
}

void wm_quantize_numbers(const wm_numbers *in, const wm_blocks *as, uint8_t *out, uint64_t out_size, double sums[2],
                         uint8_t *room, uint64_t room_size, const wm_unwritten *earlier, int threads, wm_outcome *outcome) {
    work w = {.in = in, .as = as, .out = out, .earlier = earlier && earlier->size ? earlier : NULL};
    *outcome = (wm_outcome){WM_UNFIT, 0, 0};
    if (divide(&w)) return;
    const int is_whole = as->type < 0 && !as->block_size;
    const uint64_t size = is_whole ? code_bytes(as->bits, in->n) : ceil_div(in->n, w.unit) * w.unit_bytes;
    const uint64_t rooms = take_room(&w, room, room_size);
    if (out_size != size || (rooms == 0 && w.pieces)) return;
    if (as->type < 0) w.how = wm_quantizing_of(as->bits, as->scale_type, w.unit, w.unit_bytes);
    if (is_whole) w.how.scale = &as->scale;
    const uint64_t jobs = w.pieces + (w.earlier != NULL);
    uint64_t max = threads < 1 ? 1 : (uint64_t)threads;
    max = max > rooms ? rooms : max;
    const int failed = wm_run_pieces(do_job, &w, jobs, 1, (int)max);
    *outcome = failed < 0 ? (wm_outcome){WM_DONE, 0, 0} : w.failures[failed];
    sums[0] = sums[1] = 0;
    for (uint64_t i = 0; i < 2 * w.pieces && failed < 0; i++) sums[i % 2] += w.sums[i];
}

/* After a failure the search goes on with zeros: it ends, and its result is not used. */
static void fill_window(wm_window *window, uint64_t at) {
    work *const w = (work *)window;
    wm_outcome *const f = &w->failures[0];
    const uint64_t first = at / w->piece * w->piece, remaining = w->in->n - first;
    const uint64_t n = remaining < w->piece ? remaining : w->piece;
    const float *x = f->what == WM_DONE ? numbers_at(w, first, n, w->room, f) : NULL;
    const int64_t bad = x && first == w->checked ? wm_first_not_finite(x, n) : -1; /* once: the first pass reads them all */
    if (bad >= 0) fail(f, WM_NOT_FINITE, first + (uint64_t)bad, 0);
    if (first == w->checked) w->checked += n;
    if (f->what != WM_DONE) x = memset(w->room + w->raw_room, 0, 4 * n);
    *window = (wm_window){x, first, n, fill_window};
}

void wm_search_scale(const wm_numbers *in, wm_blocks *as, uint8_t *room, uint64_t room_size, wm_outcome *outcome) {
    work w = {.window = {.fill = fill_window}, .in = in, .as = as};
    uint8_t scale[4];
    *outcome = (wm_outcome){WM_UNFIT, 0, 0};
    if (as->type >= 0 || divide(&w) || (in->n && !take_room(&w, room, room_size))) return;
    w.how = wm_quantizing_of(as->bits, as->scale_type, in->n, 0);
    w.how.window = &w.window;
    wm_variants_in_use()->quantize(&w.how, NULL, NULL, 1, in->n, scale, NULL);
    as->scale = load_scale(scale, as->scale_type);
    *outcome = w.failures[0];
}
