/* Frames of zstd: two bytes with the size of the pieces that are asked for, then the frame, of which the decoder gets some bytes
 * more whenever it wants them. As a list and as they are, the payload is the same, and so is the end; the changes
 * that are listed make it from zeros. It is encoded, too. */
#include "target.h"

enum { MOST = 1 << 20 };

typedef struct {
    uint8_t *out;
    uint64_t size;
    int how;
} payload;

static payload decode(const uint8_t *data, uint64_t size, const wm_frame *frame, uint64_t piece, int sparse) {
    const uint64_t window = frame->window < MOST ? frame->window : MOST;
    uint8_t *const room = new_array(wm_frame_room(window), 1), *const out = new_array(MOST, 1);
    payload found = {out, 0, WM_FRAME_FULL};
    uint64_t at = frame->header, end = at, taken, made;
    uint8_t *const again = new_array(MOST, 1);
    uint32_t *const list = new_array(MOST / 16, sizeof *list);
    wm_frame_begin(room, window, frame->window, sparse);
    if (sparse) memset(out, 0, MOST);
    memset(again, 0, MOST);
    while (found.size < MOST) {
        const uint64_t some = piece + 1 < MOST - found.size ? piece + 1 : MOST - found.size;
        uint8_t *const given = new_array(end - at, 1), *const target = new_array(some, 1);
        if (end > at) memcpy(given, data + at, end - at);
        memcpy(target, out + found.size, some);
        wm_changes changes = {target, list, MOST / 16, 0};
        found.how = wm_frame_decode(room, given, end - at, target, some, sparse, &taken, &made, sparse ? &changes : NULL);
        CHECK(taken <= end - at && made <= some);
        if (sparse && changes.count <= changes.most) {
            CHECK(wm_change(again, made, list, changes.count) && (!made || memcmp(again, target, made) == 0));
            memset(again, 0, made);
        }
        memcpy(out + found.size, target, made);
        free(given), free(target);
        at += taken, found.size += made;
        CHECK(found.how != WM_FRAME_FULL || made == some);
        if (found.how == WM_FRAME_HUNGRY && end < size)
            end = end + 1 + piece < size ? end + 1 + piece : size;
        else if (found.how != WM_FRAME_FULL)
            break;
    }
    free(room), free(again), free(list);
    return found;
}

/* The payload is also what differs between zeros and itself: its frame, if there is one, is decoded again. */
static void encode(const uint8_t *data, uint64_t size) {
    uint8_t *const room = new_array(wm_frame_encode_room(), 1), *const before = new_array(size, 1);
    uint8_t *const out = new_array(size + 3 * (size / 131072 + 1), 1);
    const wm_frame frame = {size, 131072, 0};
    memset(before, 0, size);
    const uint64_t made = wm_frame_encode(room, before, data, size, 1, out);
    if (made) {
        const payload again = decode(out, made, &frame, 4096, 1);
        CHECK(again.size == size && memcmp(again.out, data, size) == 0);
        free(again.out);
    }
    free(room), free(before), free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t piece = take(&in, 2);
    wm_frame frame;
    if (!wm_frame_header(in.data, in.size, &frame)) return 0;
    CHECK(frame.header <= in.size);
    const payload a = decode(in.data, in.size, &frame, piece, 0), b = decode(in.data, in.size, &frame, piece, 1);
    CHECK(a.how == b.how && a.size == b.size && (!a.size || memcmp(a.out, b.out, a.size) == 0));
    if (a.size) encode(a.out, a.size);
    free(a.out), free(b.out);
    return 0;
}
