/* PyTorch checkpoints: the pickle programs that torch.save writes, run without making a Python object.
 *
 * A pickle is a program for a stack machine. `]` pushes an empty list, `X` a string, `(` a mark; `t` makes a tuple of what lies
 * above the last mark; `q` copies the top of the stack to a numbered memo and `h` pushes it again; `c` pushes a function, by its
 * module and name, and `R` calls it with a tuple of arguments. That call is why a pickle can run any program. Here nothing is
 * called: `c` accepts only the names in the list below, and `R` knows the result of each:
 *
 *     OrderedDict()                                                          a dictionary
 *     _rebuild_tensor_v2(storage, offset, shape, strides, ...)               a tensor
 *     _rebuild_parameter(tensor, ...)                                        that tensor
 *
 * A program with any other name is refused. In lax mode the result of such a name, whatever its arguments and state, is one value
 * to leave out.
 *
 * `Q` makes a storage of the tuple ("storage", type, key, device, number of elements); its bytes lie elsewhere.
 *
 * Memory is an arena that the caller supplies, four words for each byte of the program: a value of one byte takes two on the stack,
 * and two more in a tuple or list. The stack grows down from its end. From its beginning grow the directory of the memo, whose
 * pages have 256 entries, and the pool: tuples, the chunks of lists and dictionaries, storages, tensors. Strings stay in the
 * program.
 *
 * Picklers put almost everything into the memo, and take little of it out again. So the program is read twice: first to number the
 * entries that it takes out, then to run it, keeping only these. The pool gets the arguments of a call back, unless the memo or a
 * container holds them: a tensor leaves only its record and its storage's.
 */
#include "formats/pickle_calls.h"

/* Takes the last mark away, with all above it; *n values lay there, *first the lowest of them. */
static int pop_mark(machine *m, uint64_t *first, uint64_t *n) {
    if (m->mark == m->words) return bad_stack(m);
    *n = above(m);
    *first = m->mark - VALUE_WORDS; /* they go on downwards */
    m->stack = m->mark + VALUE_WORDS;
    m->mark = get(m, m->mark).at;
    return 0;
}

/* Copies n values that lie on the stack from `first` downwards. */
static void copy_values(machine *m, uint64_t first, uint64_t n, uint64_t to) {
    for (uint64_t i = 0; i < n; i++) put(m, to + i * VALUE_WORDS, get(m, first - i * VALUE_WORDS));
}

/* Appends n values that lie from `first` downwards, under the stack's top by now, to the container that is the top. */
static int append(machine *m, uint64_t first, uint64_t n) {
    const uint64_t stack = m->stack;
    if (!n) return 0;
    m->stack = first - (n - 1) * VALUE_WORDS; /* the pool must not grow over them */
    const uint64_t list = make_container(m, stack), to = list == NOWHERE ? NOWHERE : add_chunk(m, list, n);
    m->stack = stack;
    if (to == NOWHERE) return -1;
    copy_values(m, first, n, to);
    return 0;
}

/* Appends everything above the last mark to the container under it. A value that is left out accepts anything. */
static int append_marked(machine *m, uint32_t kind) {
    uint64_t first, n;
    if (pop_mark(m, &first, &n)) return -1;
    if (m->stack != m->words && top(m, 0).kind == ODD) return 0;
    if (m->stack == m->words || top(m, 0).kind != kind || (kind == DICT && n % 2)) return bad_stack(m);
    return append(m, first, n);
}

/* Pushes the tuple of n values that lie from `first` downwards; the stack's top is where the tuple goes already. */
static int make_tuple(machine *m, uint64_t first, uint64_t n) {
    const uint64_t stack = m->stack;
    if (n) m->stack = first - (n - 1) * VALUE_WORDS;
    const uint64_t at = n ? take(m, n * VALUE_WORDS) : 1;
    m->stack = stack;
    if (at == NOWHERE) return -1;
    copy_values(m, first, n, at);
    return push(m, TUPLE, (uint32_t)n, at);
}

/* --------------------------------------------------------------------------------------------------- the memo */
/* The word of entry i; with `make` its page is made at need. NOWHERE if there is none. */
static uint64_t memo_entry(machine *m, uint64_t i, int make) {
    for (; m->pages <= i / PAGE; m->pages++) m->arena[m->pages] = NOWHERE;
    const uint64_t page = m->arena[i / PAGE];
    if (page != NOWHERE || !make) return page == NOWHERE ? NOWHERE : page + i % PAGE * VALUE_WORDS;
    const uint64_t fresh = take(m, PAGE * VALUE_WORDS);
    if (fresh == NOWHERE) return NOWHERE;
    memset(m->arena + fresh, 0, PAGE * VALUE_WORDS * sizeof *m->arena);
    m->arena[i / PAGE] = fresh;
    return fresh + i % PAGE * VALUE_WORDS;
}

/* Whether the program reads an entry of the memo, whose page exists. An entry that was put in is not a MARK. */
static int is_wanted(value entry) { return entry.kind != MARK || entry.n; }

/* Picklers number the memo's entries one after another, from 0 or 1, so no number exceeds how many were put in. */
static int remember(machine *m, uint64_t i) {
    if (m->stack == m->words || top(m, 0).kind == MARK) return bad_stack(m);
    if (i > ++m->puts) return fail(m, WM_FAULT_PICKLE_MEMO, i, m->puts + 1);
    const uint64_t entry = memo_entry(m, i, 0);
    m->memo_gaps |= i > m->memo_used;
    if (i >= m->memo_used) m->memo_used = i + 1;
    if (entry == NOWHERE || !is_wanted(get(m, entry))) return 0;
    if (is_container(top(m, 0)) && make_container(m, m->stack) == NOWHERE) return -1;
    put(m, entry, top(m, 0));
    m->barrier = m->pool;
    return 0;
}

static int recall(machine *m, uint64_t i) {
    const uint64_t entry = i < m->memo_used ? memo_entry(m, i, 0) : NOWHERE;
    const value v = entry == NOWHERE ? (value){MARK, 0, 0} : get(m, entry);
    if (v.kind == MARK) return fail(m, WM_FAULT_PICKLE_MEMO, i, m->memo_used);
    return push(m, v.kind, v.n, v.at);
}

/* ------------------------------------------------------------------------------------------------- the program */
/* Reads the operand of an opcode: a little-endian number, or 0 without one. For a string or a long integer it is the length, and
 * its bytes are skipped. */
static int read_operand(machine *m, uint8_t op, uint64_t *number) {
    unsigned width = 0;
    int counted = 0;
    switch (op) {
    case 0x8a:
    case 'U':
    case 0x8c:
    case 'C': counted = 1; /* fall through */
    case 0x80:
    case 'K':
    case 'h':
    case 'q': width = 1; break;
    case 'M': width = 2; break;
    case 0x8b:
    case 'X':
    case 'T':
    case 'B': counted = 1; /* fall through */
    case 'J':
    case 'j':
    case 'r': width = 4; break;
    case 0x8d:
    case 0x8e:
    case 0x96: counted = 1; /* fall through */
    case 'G':
    case 0x95: width = 8; break;
    default: break;
    }
    *number = 0;
    if (m->len - m->at < width) return fail(m, WM_FAULT_PICKLE_END, m->len - m->at, width);
    for (unsigned i = 0; i < width; i++, m->at++) {
        if (reach(&m->in, m->at)) return -1;
        *number |= (uint64_t)m->in.slot[m->at - m->in.first] << 8 * i;
    }
    if (!counted) return 0;
    if (*number > m->len - m->at || *number > UINT32_MAX) return fail(m, WM_FAULT_PICKLE_END, m->len - m->at, *number);
    m->at += *number;
    return 0;
}

/* Reads a line, to the newline. */
static int read_line(machine *m, value *line) {
    const uint64_t begin = m->at;
    while (m->at < m->len) {
        if (reach(&m->in, m->at)) return -1;
        const uint8_t *here = m->in.slot + (m->at - m->in.first);
        const uint64_t remaining = m->in.first + m->in.filled - m->at;
        const uint8_t *end = memchr(here, '\n', remaining);
        m->at += end ? (uint64_t)(end - here) + 1 : remaining;
        if (!end) continue;
        if (m->at - 1 - begin > UINT32_MAX) return bad_stack(m);
        *line = (value){TEXT, (uint32_t)(m->at - 1 - begin), begin};
        return 0;
    }
    return fail(m, WM_FAULT_PICKLE_END, m->len - begin, m->len - begin + 1);
}

/* Pushes the integer of the n bytes that were read last, little-endian, two's complement. */
static int push_long(machine *m, uint64_t n) {
    uint8_t raw[8] = {0};
    if (n > 8) return push(m, LONG, (uint32_t)n, m->at - n);
    if (wm_pickle_copy(&m->in, m->at - n, n, raw)) return -1;
    uint64_t number = load_le64(raw);
    if (n && n < 8 && number >> (8 * n - 1)) number |= ~(uint64_t)0 << 8 * n;
    return push(m, INTEGER, 0, number);
}

/* Pushes the double whose bytes, which are big-endian, were read as a little-endian number. */
static int push_real(machine *m, uint64_t n) {
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) bits = bits << 8 | (n >> 8 * i & 255);
    return push(m, REAL, 0, bits);
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
    if (op == 'b') {
        m->stack += VALUE_WORDS;
        return wm_pickle_build(m, target, args);
    }
    m->stack += 2 * VALUE_WORDS;
    return op == 'R' ? wm_pickle_call(m, target, args) : wm_pickle_make(m, target, args);
}

/* Calls a class with arguments and keyword arguments: no class in the list takes any. */
static int run_class(machine *m) {
    if (above(m) < 3 || top(m, 2).kind != ODD) return bad_stack(m);
    const value class_ = top(m, 2);
    m->stack += 3 * VALUE_WORDS;
    return push(m, ODD, class_.n, class_.at);
}

/* Runs one opcode. Returns 0, 1 after the last, or -1. */
static int run(machine *m, uint8_t op) {
    uint64_t n, first;
    value line, name;
    if (read_operand(m, op, &n)) return -1;
    switch (op) {
    case 0x80: return n > 5 ? fail(m, WM_FAULT_PICKLE_OPCODE, op, n) : 0; /* protocol */
    case 0x95: return 0;                                                  /* a frame of n bytes */
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
    case 'J': return push(m, INTEGER, 0, (uint64_t)(int64_t)(int32_t)(uint32_t)n);
    case 'K':
    case 'M': return push(m, INTEGER, 0, n);
    case 'G': return push_real(m, n);
    case 0x8a:
    case 0x8b: return push_long(m, n);
    case 'U':
    case 0x8c:
    case 'X':
    case 'T':
    case 0x8d: return push(m, TEXT, (uint32_t)n, m->at - n);
    case 'C':
    case 'B':
    case 0x8e:
    case 0x96: return push(m, BYTES, (uint32_t)n, m->at - n);
    case ')': return make_tuple(m, 0, 0);
    case 0x85:
    case 0x86:
    case 0x87:
        n = op - 0x84u;
        if (above(m) < n) return bad_stack(m);
        first = m->stack + (n - 1) * VALUE_WORDS;
        m->stack += n * VALUE_WORDS;
        return make_tuple(m, first, n);
    case ']': return push(m, LIST, 0, NOWHERE);
    case '}': return push(m, DICT, 0, NOWHERE);
    case 'a':
    case 's':
        n = op == 'a' ? 1 : 2;
        if (above(m) <= n || (top(m, n).kind != (op == 'a' ? LIST : DICT) && top(m, n).kind != ODD)) return bad_stack(m);
        first = m->stack + (n - 1) * VALUE_WORDS;
        m->stack += n * VALUE_WORDS;
        return top(m, 0).kind == ODD ? 0 : append(m, first, n);
    case 'e': return append_marked(m, LIST);
    case 'u': return append_marked(m, DICT);
    case 0x90: return append_marked(m, SET);
    case 0x8f: return push(m, SET, 0, NOWHERE);
    case 0x91: /* a frozen set */ return pop_mark(m, &first, &n) || push(m, SET, 0, NOWHERE) ? -1 : append(m, first, n);
    case 't': return pop_mark(m, &first, &n) ? -1 : make_tuple(m, first, n);
    case 'h':
    case 'j': return recall(m, n);
    case 'q':
    case 'r': return remember(m, n);
    case 0x94: /* the number of entries numbers the next one */
        return m->memo_gaps ? fail(m, WM_FAULT_PICKLE_OPCODE, op, 0) : remember(m, m->memo_used);
    case 'c': return read_line(m, &line) || read_line(m, &name) ? -1 : wm_pickle_name(m, line, name);
    case 0x93:
        if (above(m) < 2) return bad_stack(m);
        name = top(m, 0), line = top(m, 1);
        m->stack += 2 * VALUE_WORDS;
        return wm_pickle_name(m, line, name);
    case 'R':
    case 'b':
    case 0x81:
    case 'Q': return run_call(m, op);
    case 0x92: return run_class(m);
    default: return fail(m, WM_FAULT_PICKLE_OPCODE, op, 0);
    }
}

/* Reads the next opcode. */
static int next(machine *m) {
    if (m->at == m->len) return fail(m, WM_FAULT_PICKLE_END, 0, 1);
    if (reach(&m->in, m->at)) return -1;
    m->op = m->at++;
    m->code = m->in.slot[m->op - m->in.first];
    return 0;
}

/* Makes an entry of the memo for each number that the program reads. Running the program finds its faults. */
static int find_wanted(machine *m) {
    uint64_t n = 0, puts = 0;
    value line;
    while (!next(m) && m->code != '.' && !read_operand(m, m->code, &n)) {
        if (m->code == 'c' && (read_line(m, &line) || read_line(m, &line))) break;
        puts += m->code == 'q' || m->code == 'r' || m->code == 0x94;
        if ((m->code != 'h' && m->code != 'j') || n > puts) continue;
        const uint64_t entry = memo_entry(m, n, 1);
        if (entry == NOWHERE) return -1;
        put(m, entry, (value){MARK, 1, 0});
    }
    m->at = 0;
    return m->in.broken ? -1 : 0;
}

static int run_all(machine *m, wm_pickle *out) {
    m->pool = m->len / PAGE + 1; /* behind the directory of the memo, which has no more entries than the program bytes */
    if (m->words < m->pool) return fail(m, WM_FAULT_PICKLE_MEMORY, m->words, m->pool);
    if (find_wanted(m)) return -1;
    m->barrier = m->pool;
    for (int done = 0; !done;) {
        done = next(m) ? -1 : run(m, m->code);
        if (done < 0) return -1;
    }
    *out = (wm_pickle){.end = m->at, .root = m->stack, .n_storages = m->storages, .storages = m->first_storage};
    return 0;
}

int wm_pickle_run(const wm_pickle_source *source, uint64_t *arena, uint64_t words, wm_pickle *out, wm_fault *fault) {
    machine m = {.len = source->len, .arena = arena, .words = words, .stack = words, .mark = words, .fault = fault};
    *out = (wm_pickle){0};
    if (wm_pickle_open(&m.in, source, fault)) return -1;
    const int failed = run_all(&m, out);
    wm_pickle_close(&m.in);
    return failed;
}
