/* Everyday Python objects beside the tensors of a checkpoint: sets, counters, namespaces, arrays of numpy.
 * See pickle.c. */
#include "formats/pickle_values.h"

/* Copies the values of a list, tuple, set or dictionary to the container that is the top. */
static int copy_all(machine *m, value from) {
    const container c = from.kind == TUPLE ? (container){NOWHERE, NOWHERE, from.n} : contents(m->arena, from);
    const uint64_t to = c.count ? make_container(m, m->stack) : 1;
    if (to == NOWHERE || !c.count) return to == NOWHERE ? -1 : 0;
    if (from.kind == TUPLE) {
        const uint64_t at = add_chunk(m, to, from.n);
        if (at == NOWHERE) return -1;
        memmove(m->arena + at, m->arena + from.at, from.n * sizeof(value));
        return 0;
    }
    for (uint64_t at = c.first; at; at = m->arena[at]) {
        const uint64_t n = m->arena[at + 1], chunk = add_chunk(m, to, n);
        if (chunk == NOWHERE) return -1;
        memcpy(m->arena + chunk, m->arena + at + CHUNK_WORDS, n * sizeof(value));
    }
    return 0;
}

/* Pushes a new container of a kind, with the present members of `from`, not later ones. */
int wm_pickle_collect(machine *m, uint32_t kind, value from) {
    const int fits = kind == DICT ? from.kind == DICT : from.kind == LIST || from.kind == TUPLE || from.kind == SET;
    if (!fits && from.kind != MARK) return bad_call(m);
    if (push(m, kind, 0, NOWHERE)) return -1;
    return from.kind == MARK ? 0 : copy_all(m, from);
}

/* Gives the object that is the top the attributes of a dictionary. */
int wm_pickle_update(machine *m, value from) { return from.kind == DICT ? copy_all(m, from) : bad_call(m); }

/* Pushes an array that has no state yet. */
int wm_pickle_new_array(machine *m) {
    const uint64_t at = take(m, (uint64_t)ARRAY_PARTS * VALUE_WORDS);
    if (at == NOWHERE) return -1;
    memset(m->arena + at, 0, ARRAY_PARTS * sizeof(value));
    m->barrier = m->pool;
    return push(m, ARRAY, 0, at);
}

/* Whether a dtype of numpy is anything but little-endian numbers. */
int wm_pickle_is_odd(const machine *m, value kind) { return get(m, kind.at + VALUE_WORDS).at != 0; }

static int is_shape(const machine *m, value shape) {
    if (shape.kind != TUPLE || shape.n > MAX_NDIM) return 0;
    for (uint64_t i = 0; i < shape.n; i++) {
        const value dim = get(m, shape.at + i * VALUE_WORDS);
        if (dim.kind != INTEGER || dim.at > INT64_MAX) return 0;
    }
    return 1;
}

/* Puts the parts of an array in place; an array of anything but numbers is odd. */
static int set_parts(machine *m, uint64_t at, value shape, value kind, int fortran, value raw) {
    const int plain = raw.kind == BYTES || raw.kind == LATIN;
    if (!is_shape(m, shape) || kind.kind != KIND || (!plain && raw.kind != LIST)) return bad_call(m);
    const int odd = !plain || wm_pickle_is_odd(m, kind);
    if (odd && !m->in.source->lax) return fail(m, WM_FAULT_PICKLE_ODD, WM_PICKLE_ODD_ARRAY, 0);
    const value parts[ARRAY_PARTS] = {shape, kind, {BOOLEAN, 0, (uint64_t)fortran}, raw};
    const value none = {ODD, WM_PICKLE_ODD_ARRAY, NOWHERE};
    memcpy(m->arena + at, odd ? &none : parts, odd ? sizeof none : sizeof parts);
    m->barrier = m->pool;
    return 0;
}

/* Gives an array its state, (version, shape, dtype, Fortran's order, bytes), once. */
int wm_pickle_fill_array(machine *m, uint64_t at, value state) {
    value part[5];
    if (get(m, at).kind != MARK || state.kind != TUPLE || state.n != 5) return bad_call(m);
    for (uint64_t i = 0; i < 5; i++) part[i] = get(m, state.at + i * VALUE_WORDS);
    if (part[3].kind != BOOLEAN) return bad_call(m);
    return set_parts(m, at, part[1], part[2], part[3].at != 0, part[4]);
}

/* Pushes the array of (bytes, dtype, shape, order). */
int wm_pickle_buffer(machine *m, value args) {
    value part[ARRAY_PARTS];
    uint8_t order = 0;
    if (args.n != ARRAY_PARTS) return bad_call(m);
    for (uint64_t i = 0; i < ARRAY_PARTS; i++) part[i] = get(m, args.at + i * VALUE_WORDS);
    if (part[0].kind != BYTES || part[3].kind != TEXT || part[3].n != 1) return bad_call(m);
    if (wm_pickle_copy(&m->in, part[3].at, 1, &order)) return -1;
    if ((order != 'C' && order != 'F') || wm_pickle_new_array(m)) return order == 'C' || order == 'F' ? -1 : bad_call(m);
    return set_parts(m, top(m, 0).at, part[2], part[1], order == 'F', part[0]);
}
