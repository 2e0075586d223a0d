/* The pickle machine: its values, its arena, and its stack. See pickle.c. */
#ifndef WEIGHTMAP_PICKLE_MACHINE_H
#define WEIGHTMAP_PICKLE_MACHINE_H
#include "formats/pickle_read.h"

enum {
    MARK,    /* at: where on the stack the mark below it is */
    NONE,    /* None */
    BOOLEAN, /* at: 0 or 1 */
    INTEGER, /* at: the number, as int64 */
    LONG,    /* an integer of more than 64 bits: n bytes at `at`, little-endian, two's complement */
    REAL,    /* at: the bits of a double */
    TEXT,    /* n bytes at `at` */
    BYTES,   /* the same */
    LATIN,   /* bytes, spelled as a text of the characters 0 to 255 */
    TUPLE,   /* n values in the pool, from `at` on */
    LIST,    /* a container at `at`, NOWHERE while it is empty and nothing else refers to it */
    DICT,    /* the same; keys and values take turns */
    NAME,    /* at: its number in the list of names */
    DTYPE,   /* of torch; at: its code, n: its number in the list of names */
    DEVICE,  /* a device of torch: n % 256 bytes at `at`, and its number, if any, is n / 256 - 1 */
    STORAGE, /* a record at `at` */
    TENSOR,  /* the same */
    KIND,    /* a dtype of numpy; at: two values, its text and its state */
    SCALAR,  /* of numpy; at: two values, its dtype and its bytes */
    COMPLEX, /* at: two values */
    PATH,    /* at: n / 2 texts; n is odd on Windows */
    ARRAY,   /* of numpy; at: ARRAY_PARTS values: its shape, dtype, order and bytes; all MARK until its state is there */
    ODD,     /* left out; n: a WM_PICKLE_ODD_ constant; at: two values, module and name, or nothing */
    SET,     /* a container at `at`, as a list */
    OBJECT   /* a container at `at`, as a dictionary: the attributes of a namespace */
};
enum { ARRAY_PARTS = 4 };

typedef struct {
    uint32_t kind, n;
    uint64_t at;
} value;
enum { VALUE_WORDS = 2, PAGE = 256, CONTAINER_WORDS = 3, CHUNK_WORDS = 2, NOWHERE = 0 };

/* A list or dictionary: the first and last of its chunks, and the number of its values. A chunk is the place of the next one, the
 * number of its values, and the values. */
typedef struct {
    uint64_t first, last, count;
} container;
typedef struct {
    uint64_t next, count;
} chunk;
/* The records of wm_pickle_storage and make_tensor in the pool. `next` is the storage made next. A tensor is followed by its
 * dimensions and, if it is not row-major, its strides. */
typedef struct {
    uint64_t key, nbytes, next;
    uint32_t number;
    uint16_t key_len, type; /* the number of its name in the list */
} storage_record;
typedef struct {
    uint32_t storage;
    uint16_t ndim, dtype; /* the dtype with WM_PICKLE_STRIDED and RETYPED, where they hold */
    uint64_t begin, end;  /* its bytes in the storage */
} tensor_record;
enum { RETYPED = 256 }; /* its numbers have another width than its storage's */
enum { STORAGE_WORDS = sizeof(storage_record) / 8, TENSOR_WORDS = sizeof(tensor_record) / 8, MAX_NDIM = 64 };

/* Makes the slot with a byte of the program current. Returns 0, or -1 when it cannot be read. */
static inline int reach(reader *r, uint64_t at) { return at - r->first < r->filled ? 0 : wm_pickle_turn(r, at); }

typedef struct {
    reader in;
    uint64_t len, at, op; /* where reading is, and where the opcode being run begins */
    uint8_t code;         /* that opcode */
    uint64_t *arena, words;
    uint64_t pool, stack; /* the first free word, and the top of the stack; the stack ends with the arena */
    uint64_t barrier;     /* everything below this word of the pool stays */
    uint64_t mark;        /* the place of the last mark on the stack; `words` if there is none */
    uint64_t memo_used, puts,
        pages; /* entries of the memo, how often one was put in, and pages of its directory that are cleared */
    uint64_t storages, first_storage, last_storage;
    uint64_t looked; /* how often members of tensors' states were looked at */
    int memo_gaps;   /* an entry was numbered past the next one */
    wm_fault *fault;
} machine;

static inline int fail(const machine *m, int code, uint64_t actual, uint64_t expected) {
    return m->in.broken ? -1 : wm_fail(m->fault, code, 0, m->op, actual, expected);
}

/* The stack lacks the operands of the opcode. */
static inline int bad_stack(const machine *m) { return fail(m, WM_FAULT_PICKLE_STACK, m->code, 0); }

/* A call with arguments that torch.save never writes. */
static inline int bad_call(const machine *m) { return fail(m, WM_FAULT_PICKLE_CALL, m->code, 0); }

/* ------------------------------------------------------------------------------------------------ the arena */
static inline value get(const machine *m, uint64_t at) {
    value v;
    memcpy(&v, m->arena + at, sizeof v);
    return v;
}
static inline void put(machine *m, uint64_t at, value v) { memcpy(m->arena + at, &v, sizeof v); }

/* Takes words of the pool; NOWHERE, with the fault filled, when none are left. (Word 0 belongs to the memo.) */
static inline uint64_t take(machine *m, uint64_t words) {
    const uint64_t at = m->pool;
    if (m->stack - at < words) return fail(m, WM_FAULT_PICKLE_MEMORY, m->words, 0), NOWHERE;
    m->pool += words;
    return at;
}

static inline int push(machine *m, uint32_t kind, uint32_t n, uint64_t at) {
    if (m->stack - m->pool < VALUE_WORDS) return fail(m, WM_FAULT_PICKLE_MEMORY, m->words, 0);
    m->stack -= VALUE_WORDS;
    put(m, m->stack, (value){kind, n, at});
    return 0;
}

/* Number of values above the last mark, or on the whole stack when there is none. */
static inline uint64_t above(const machine *m) { return (m->mark - m->stack) / VALUE_WORDS; }

/* Value i from the top, 0 being the top. */
static inline value top(const machine *m, uint64_t i) { return get(m, m->stack + i * VALUE_WORDS); }

/* The place of the container that the value at `place` refers to, made on demand: most containers that a program pushes by one
 * byte stay empty. NOWHERE, with the fault filled, when there is no room. */
static inline uint64_t make_container(machine *m, uint64_t place) {
    value v = get(m, place);
    if (v.at != NOWHERE) return v.at;
    v.at = take(m, CONTAINER_WORDS);
    if (v.at == NOWHERE) return NOWHERE;
    memcpy(m->arena + v.at, &(container){NOWHERE, NOWHERE, 0}, sizeof(container));
    put(m, place, v);
    return v.at;
}

static inline int is_container(value v) { return v.kind == LIST || v.kind == DICT || v.kind == SET || v.kind == OBJECT; }

/* The content of a list, dictionary, set or object. */
static inline container contents(const uint64_t *arena, value v) {
    container c = {NOWHERE, NOWHERE, 0};
    if (v.at != NOWHERE) memcpy(&c, arena + v.at, sizeof c);
    return c;
}

/* Adds a chunk for n values to a container; returns where they go, or NOWHERE. */
static inline uint64_t add_chunk(machine *m, uint64_t list, uint64_t n) {
    const uint64_t at = take(m, CHUNK_WORDS + n * VALUE_WORDS);
    container c;
    if (at == NOWHERE) return NOWHERE;
    memcpy(m->arena + at, &(chunk){NOWHERE, n}, sizeof(chunk));
    memcpy(&c, m->arena + list, sizeof c);
    if (c.last)
        m->arena[c.last] = at;
    else
        c.first = at;
    c.last = at;
    c.count += n;
    memcpy(m->arena + list, &c, sizeof c);
    m->barrier = m->pool;
    return at + CHUNK_WORDS;
}

/* Pushes a placeholder for something that is neither tensor nor value, or refuses it. */
static inline int leave_out(machine *m, uint32_t odd, uint64_t at) {
    return m->in.source->lax ? push(m, ODD, odd, at) : fail(m, WM_FAULT_PICKLE_ODD, odd, 0);
}
#endif
