/* PyTorch checkpoints: the pickle programs that torch.save writes, run without making a Python object.
 *
 * A pickle is a program for a stack machine. `]` pushes an empty list, `X` a string, `(` a mark; `t` makes a tuple of what lies
 * above the last mark; `q` copies the top of the stack to a numbered memo and `h` pushes it again; `c` pushes a function, by its
 * module and name, and `R` calls it with a tuple of arguments. That call is why a pickle can run any program. Here nothing is
 * called: `c` accepts the names in the list below and no other, and `R` knows what each of them makes of its arguments:
 *
 *     OrderedDict()                                                          a dictionary
 *     _rebuild_tensor_v2(storage, offset, shape, strides, ...)               a tensor
 *     _rebuild_parameter(tensor, ...)                                        that tensor
 *
 * A storage is made by `Q` of the tuple ("storage", type, key, device, number of elements); its bytes lie elsewhere.
 *
 * Memory is an arena that the caller supplies, WM_PICKLE_WORDS for each byte of the program. The stack grows down from its
 * end. From its beginning grow the directory of the memo, whose pages have 256 entries, and the pool: tuples, the links of
 * lists and dictionaries, storages, tensors. Strings stay where they are, in the program.
 */
#include "pickle.h"

/* Takes the last mark away, with all above it; *n values lay there, *first the lowest of them. */
static int pop_mark(machine *m, uint64_t *first, uint64_t *n) {
    if (m->mark == m->words) return bad_stack(m);
    *n = above(m);
    *first = m->mark - VALUE_WORDS; /* they go on downwards */
    m->stack = m->mark + VALUE_WORDS;
    m->mark = get(m, m->mark).at;
    return 0;
}

/* Appends what lies above the last mark to the container that lies under it. */
static int append_marked(machine *m, uint32_t kind) {
    uint64_t first, n;
    if (pop_mark(m, &first, &n)) return -1;
    if (m->stack == m->words || top(m, 0).kind != kind || (kind == DICT && n % 2)) return bad_stack(m);
    const uint64_t list = top(m, 0).at;
    for (uint64_t i = 0; i < n; i++) {
        /* The pool must not grow over values that are still to be read: they lie under the stack's top by now. */
        const value item = get(m, first - i * VALUE_WORDS);
        const uint64_t stack = m->stack;
        m->stack = first - (n - 1) * VALUE_WORDS;
        const int failed = append(m, list, item);
        m->stack = stack;
        if (failed) return -1;
    }
    return 0;
}

/* Pushes the tuple of n values that lie from `first` downwards; the stack's top is where the tuple goes already. */
static int make_tuple(machine *m, uint64_t first, uint64_t n) {
    const uint64_t stack = m->stack;
    if (n) m->stack = first - (n - 1) * VALUE_WORDS;
    const uint64_t at = n ? take(m, n * VALUE_WORDS) : 1;
    m->stack = stack;
    if (at == NOWHERE) return -1;
    for (uint64_t i = 0; i < n; i++) put(m, at + i * VALUE_WORDS, get(m, first - i * VALUE_WORDS));
    return push(m, TUPLE, (uint32_t)n, at);
}

/* --------------------------------------------------------------------------------------------------- the memo */
/* The word of entry i, whose page is made when `make` says so; NOWHERE when there is none. */
static uint64_t memo_entry(machine *m, uint64_t i, int make) {
    const uint64_t page = m->arena[i / PAGE];
    if (page != NOWHERE || !make) return page == NOWHERE ? NOWHERE : page + i % PAGE * VALUE_WORDS;
    const uint64_t made = take(m, PAGE * VALUE_WORDS);
    if (made == NOWHERE) return NOWHERE;
    memset(m->arena + made, 0, PAGE * VALUE_WORDS * sizeof *m->arena);
    m->arena[i / PAGE] = made;
    return made + i % PAGE * VALUE_WORDS;
}

/* Picklers number the memo's entries one after another, so no number exceeds the bytes that were read. */
static int remember(machine *m, uint64_t i) {
    if (m->stack == m->words || top(m, 0).kind == MARK) return bad_stack(m);
    if (i >= m->at) return fail(m, WM_FAULT_PICKLE_MEMO, i, m->memo_used);
    const uint64_t entry = memo_entry(m, i, 1);
    if (entry == NOWHERE) return -1;
    put(m, entry, top(m, 0));
    if (i >= m->memo_used) m->memo_used = i + 1;
    return 0;
}

static int recall(machine *m, uint64_t i) {
    const uint64_t entry = i < m->memo_used ? memo_entry(m, i, 0) : NOWHERE;
    const value v = entry == NOWHERE ? (value){MARK, 0, 0} : get(m, entry);
    if (v.kind == MARK) return fail(m, WM_FAULT_PICKLE_MEMO, i, m->memo_used);
    return push(m, v.kind, v.n, v.at);
}

/* ------------------------------------------------------------------------------------------------- the program */
/* Reads n bytes as a little-endian number. */
static int read(machine *m, unsigned n, uint64_t *number) {
    if (m->len - m->at < n) return fail(m, WM_FAULT_PICKLE_END, m->len - m->at, n);
    *number = 0;
    for (unsigned i = 0; i < n; i++) *number |= (uint64_t)m->data[m->at + i] << 8 * i;
    m->at += n;
    return 0;
}

/* Pushes the string whose length of `width` bytes comes next. */
static int push_string(machine *m, uint32_t kind, unsigned width) {
    uint64_t n;
    if (read(m, width, &n)) return -1;
    if (n > m->len - m->at || n > UINT32_MAX) return fail(m, WM_FAULT_PICKLE_END, m->len - m->at, n);
    m->at += n;
    return push(m, kind, (uint32_t)n, m->at - n);
}

/* Reads a line, to the newline. */
static int read_line(machine *m, value *line) {
    const uint8_t *begin = m->data + m->at, *end = memchr(begin, '\n', m->len - m->at);
    if (!end) return fail(m, WM_FAULT_PICKLE_END, m->len - m->at, m->len - m->at + 1);
    if (end - begin > UINT32_MAX) return bad_stack(m);
    *line = (value){TEXT, (uint32_t)(end - begin), m->at};
    m->at += (uint64_t)(end - begin) + 1;
    return 0;
}

/* Pushes the integer of n bytes that come next, little-endian, two's complement. */
static int push_long(machine *m, uint64_t n) {
    uint64_t number = 0;
    if (n > m->len - m->at || n > UINT32_MAX) return fail(m, WM_FAULT_PICKLE_END, m->len - m->at, n);
    if (n > 8) return m->at += n, push(m, LONG, (uint32_t)n, m->at - n);
    if (read(m, (unsigned)n, &number)) return -1;
    if (n && n < 8 && number >> (8 * n - 1)) number |= ~(uint64_t)0 << 8 * n;
    return push(m, INTEGER, 0, number);
}

static int run_number(machine *m, uint8_t op) {
    uint64_t n;
    switch (op) {
    case 'J': return read(m, 4, &n) ? -1 : push(m, INTEGER, 0, (uint64_t)(int64_t)(int32_t)(uint32_t)n);
    case 'K': return read(m, 1, &n) ? -1 : push(m, INTEGER, 0, n);
    case 'M': return read(m, 2, &n) ? -1 : push(m, INTEGER, 0, n);
    case 0x8a: return read(m, 1, &n) ? -1 : push_long(m, n);
    case 0x8b: return read(m, 4, &n) ? -1 : push_long(m, n);
    default: /* 'G': a double, big-endian */
        if (read(m, 8, &n)) return -1;
        uint64_t bits = 0;
        for (int i = 0; i < 8; i++) bits = bits << 8 | (n >> 8 * i & 255);
        return push(m, REAL, 0, bits);
    }
}

static int run_call(machine *m, uint8_t op) {
    if (op == 'Q') {
        if (!above(m)) return bad_stack(m);
        const value id = top(m, 0);
        m->stack += VALUE_WORDS;
        return wm_pickle_storage(m, id);
    }
    if (above(m) < 2) return bad_stack(m);
    const value args = top(m, 0), target = top(m, 1);
    if (op == 'b') { /* the state of a dictionary or tensor, such as the versions of modules; of a dtype, its byte order */
        if (target.kind != DICT && target.kind != TENSOR && target.kind != KIND) return bad_call(m);
        m->stack += VALUE_WORDS;
        return 0;
    }
    if (target.kind != NAME || args.kind != TUPLE) return bad_call(m);
    m->stack += 2 * VALUE_WORDS;
    return wm_pickle_call(m, target, args);
}

/* Runs one opcode. Returns 0, 1 after the last, or -1. */
static int run(machine *m, uint8_t op) {
    uint64_t n, first;
    value line, name;
    switch (op) {
    case 0x80: return read(m, 1, &n) ? -1 : n > 5 ? fail(m, WM_FAULT_PICKLE_OPCODE, op, n) : 0; /* protocol */
    case 0x95: return read(m, 8, &n);                                                           /* a frame of n bytes */
    case '.': return above(m) == 1 && m->mark == m->words ? 1 : bad_stack(m);
    case '(':
        if (push(m, MARK, 0, m->mark)) return -1;
        m->mark = m->stack;
        return 0;
    case '0':
        if (!above(m)) return bad_stack(m);
        m->stack += VALUE_WORDS;
        return 0;
    case '1': return pop_mark(m, &first, &n);
    case 'N': return push(m, NONE, 0, 0);
    case 0x88: return push(m, BOOLEAN, 0, 1);
    case 0x89: return push(m, BOOLEAN, 0, 0);
    case 'J':
    case 'K':
    case 'M':
    case 'G':
    case 0x8a:
    case 0x8b: return run_number(m, op);
    case 'U':
    case 0x8c: return push_string(m, TEXT, 1);
    case 'X':
    case 'T': return push_string(m, TEXT, 4);
    case 0x8d: return push_string(m, TEXT, 8);
    case 'C': return push_string(m, BYTES, 1);
    case 'B': return push_string(m, BYTES, 4);
    case 0x8e:
    case 0x96: return push_string(m, BYTES, 8);
    case ')': return make_tuple(m, 0, 0);
    case 't': return pop_mark(m, &first, &n) ? -1 : make_tuple(m, first, n);
    case 0x85:
    case 0x86:
    case 0x87:
        n = op - 0x84u;
        if (above(m) < n) return bad_stack(m);
        first = m->stack + (n - 1) * VALUE_WORDS;
        m->stack += n * VALUE_WORDS;
        return make_tuple(m, first, n);
    case ']': return new_container(m, LIST);
    case '}': return new_container(m, DICT);
    case 'a':
    case 's':
        n = op == 'a' ? 1 : 2;
        if (above(m) <= n || top(m, n).kind != (op == 'a' ? LIST : DICT)) return bad_stack(m);
        if (n == 2 && append(m, top(m, 2).at, top(m, 1))) return -1;
        if (append(m, top(m, n).at, top(m, 0))) return -1;
        m->stack += n * VALUE_WORDS;
        return 0;
    case 'e': return append_marked(m, LIST);
    case 'u': return append_marked(m, DICT);
    case 'h': return read(m, 1, &n) ? -1 : recall(m, n);
    case 'j': return read(m, 4, &n) ? -1 : recall(m, n);
    case 'q': return read(m, 1, &n) ? -1 : remember(m, n);
    case 'r': return read(m, 4, &n) ? -1 : remember(m, n);
    case 0x94: return remember(m, m->memo_used);
    case 'c': return read_line(m, &line) || read_line(m, &name) ? -1 : wm_pickle_name(m, line, name);
    case 0x93:
        if (above(m) < 2) return bad_stack(m);
        name = top(m, 0), line = top(m, 1);
        m->stack += 2 * VALUE_WORDS;
        return wm_pickle_name(m, line, name);
    case 'R':
    case 'b':
    case 'Q': return run_call(m, op);
    default: return fail(m, WM_FAULT_PICKLE_OPCODE, op, 0);
    }
}

int wm_pickle_run(const uint8_t *data, uint64_t len, uint64_t *arena, uint64_t words, wm_pickle *out, wm_fault *fault) {
    machine m = {.data = data, .len = len, .arena = arena, .words = words, .stack = words, .mark = words, .fault = fault};
    m.pool = len / PAGE + 1; /* behind the directory of the memo, which has fewer entries than the program bytes */
    *out = (wm_pickle){0};
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (words < m.pool) return fail(&m, WM_FAULT_PICKLE_MEMORY, words, m.pool);
    memset(arena, 0, m.pool * sizeof *arena);
    for (int done = 0; !done;) {
        if (m.at == len) return fail(&m, WM_FAULT_PICKLE_END, 0, 1);
        m.op = m.at++;
        done = run(&m, data[m.op]);
        if (done < 0) return -1;
    }
    *out = (wm_pickle){.end = m.at, .root = m.stack, .n_storages = m.storages, .storages = m.last_storage};
    return 0;
}
