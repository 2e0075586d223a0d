"""A call of every function of the C module that takes a pointer, for any amount and place of data.

Each generator here is named after the function that it calls. It takes a `Place` for inputs and outputs, and a size,
and yields what each call returned and wrote into structs: the same at every place.
"""

import mmap
import struct
import tempfile
from functools import cache

import numpy as np
from tests import zip_files
from tests.builders import Tensor, amb, bintensors, cnn_v2, embd, gguf, onnx, safetensors, torch
from tests.table_support import rules

from weightmap._kernels import ffi, lib

# Functions that take a pointer and are not called here, with the reason.
LEFT_OUT = {
    "wm_python_functions": "texts of our own, once, when the package is imported",
    "wm_memory_free": "what wm_memory_new returned, in which the system's own pages stand guard",
    "wm_map": "writes one int",
    "wm_unmap": "a mapping, which is not read",
    "wm_advise": "a mapping, which is not read",
    "wm_will_need": "a mapping, which is not read",
    "wm_populate": "a mapping, which the system reads",
    "wm_drop": "a mapping, which is not read",
    "wm_fstat": "one struct",
    "wm_prefer_node": "memory, which the system moves and nobody reads",
    "wm_unchanged": "one struct",
}
FILL = 0xA5  # what outputs hold before a call


class Place:
    """The place of the buffers of one call: each in its own memory, anywhere or between forbidden pages."""

    def __init__(self, pages, at="end", shift=0):
        self._pages = None if pages is None else iter(pages)
        self._at = at
        self._shift = shift
        self._keep = []
        self._outputs = []

    def _take(self, size, align):
        if self._pages is None:
            memory = np.empty(size + 64, np.uint8)
            skip = -memory.ctypes.data % 64
            self._keep.append(memory)
            return memoryview(memory)[skip : skip + size], memory.ctypes.data + skip
        return next(self._pages).place(size, at=self._at, shift=self._shift, align=align)

    def give(self, data, ctype="uint8_t *", align=1):
        """Return a pointer to a copy of these bytes."""
        data = memoryview(data).cast("B") if len(data) else b""
        view, address = self._take(len(data), align)
        view[:] = data
        return ffi.cast(ctype, address)

    def array(self, array):
        """Return a pointer to a copy of this array, aligned as C has it."""
        return self.give(array, f"{CTYPES[array.dtype.name]} *", array.itemsize)

    def room(self, count, ctype="uint8_t"):
        """Return a pointer to room for `count` of this type."""
        width = ffi.sizeof(ctype)
        view, address = self._take(count * width, min(width, 8))
        view[:] = bytes([FILL]) * len(view)
        self._outputs.append(view)
        return ffi.cast(f"{ctype} *", address)

    def struct(self, ctype):
        """Return a pointer to room for a struct; its padding does not count as output."""
        _, address = self._take(ffi.sizeof(ctype), 8)
        return ffi.cast(f"{ctype} *", address)

    def outputs(self):
        """Return the content of every room."""
        return [bytes(view) for view in self._outputs]


CTYPES = {"uint8": "uint8_t", "uint32": "uint32_t", "uint64": "uint64_t", "int64": "int64_t", "float32": "float"}


@cache
def noise(size):
    """Return `size` bytes, always the same."""
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


@cache
def floats(count):
    """Return `count` finite floats."""
    return np.random.default_rng(count).standard_normal(count).astype(np.float32)


def fields(struct):
    """The members of a struct that are numbers."""
    names = [name for name, field in ffi.typeof(struct).item.fields if field.type.kind == "primitive"]
    return tuple(getattr(struct, name) for name in names)


@cache
def lengths(size):
    """Lengths of strings that take `size` bytes together: short ones, empty ones, and long ones now and then."""
    chosen, rest = [], size
    while rest:
        chosen.append(min(rest, (1, 0, 7, 8, 9, 31, 64, 3)[len(chosen) % 8]))
        rest -= chosen[-1]
    return np.array(chosen, np.uint32)


@cache
def strings(size, gap):
    """Such strings, of ASCII and different ones, each behind its length; and their bounds."""
    blob, bounds = b"", [gap]
    for i, length in enumerate(lengths(size).tolist()):
        text = (f"{i:x}".encode() + b"weight" * 11)[:length]
        blob += (length.to_bytes(gap, "little") if gap else b"") + text
        bounds.append(len(blob) + gap)
    return blob, np.array(bounds, np.uint32)


def power_of_two(n):
    """The room that an index over n strings takes."""
    capacity = 1
    while capacity - capacity // 4 < n:
        capacity *= 2
    return capacity


def _wm_crc32(p, size):
    yield lib.wm_crc32(size, p.give(noise(size)), size, 1)


def _wm_fnv1a32(p, size):
    yield lib.wm_fnv1a32(p.give(noise(size)), size)


def _wm_fnv1a64(p, size):
    yield lib.wm_fnv1a64(p.give(noise(size)), size)


def _wm_fnv1a32_many(p, size):
    names = lengths(size)
    for gap in (0, 2, 4):
        blob = noise(size + gap * max(len(names) - 1, 0))
        for n in {len(names), max(len(names) - 1, 0)}:  # the last one behind the requested names, or not
            args = p.give(blob), len(blob), p.array(names[:n]), n, gap, p.room(n, "uint32_t")
            yield lib.wm_fnv1a32_many(*args)


def _wm_f16_to_f32(p, size):
    yield lib.wm_f16_to_f32(p.give(noise(2 * size)), p.room(size, "float"), size, 1)


def _wm_bf16_to_f32(p, size):
    yield lib.wm_bf16_to_f32(p.give(noise(2 * size)), p.room(size, "float"), size, 1)


def _wm_f32_to_f16(p, size):
    yield lib.wm_f32_to_f16(p.give(noise(4 * size), "float *", 4), p.room(2 * size), size)


BLOCKS = (4, 0, 32), (4, 1, 0), (4, 1, 6), (5, 0, 0), (5, 1, 32), (5, 1, 8), (8, 1, 0), (8, 0, 16)


def _wm_blocks_decode(p, size):
    for bits, scale, block in BLOCKS:
        data = noise(lib.wm_blocks_size(bits, scale, block, size))
        for first, half in ((0, 0), (size // 3, 0), (0, 1), (size // 2, 1)):
            out = p.room(size - first, "uint16_t" if half else "float")
            args = p.give(data), len(data), bits, scale, block, size, first, out, size - first, half, 1
            yield lib.wm_blocks_decode(*args)


def _wm_first_not_finite(p, size):
    values = floats(size).copy()
    values[-1:] = np.nan
    yield lib.wm_first_not_finite(p.array(floats(size)), size), lib.wm_first_not_finite(p.array(values), size)


def _quantize_arguments(p, size, kind):
    """Numbers of a kind and how to quantise them: to q8_0, blocks of 16 or one scale, and the bytes of the result."""
    count = size // 32 * 32
    values = floats(count).astype([np.float32, np.float64, np.float16, np.float16][kind])
    numbers, blocks = p.struct("wm_numbers"), p.struct("wm_blocks")
    data = noise(3) + (values.tobytes() if kind < 3 else floats(count).view(np.uint16)[1::2].tobytes())
    numbers.fd, numbers.memory, numbers.size = -1, p.give(data), len(data)
    numbers.at, numbers.kind, numbers.n = 3, kind, (len(data) - 3) // values.itemsize
    blocks.type, blocks.bits, blocks.scale_type, blocks.scale = 8 if kind == 1 else -1, 5, 1, 0.25
    blocks.block_size = 0 if kind == 2 else 16
    if kind == 2:
        return numbers, blocks, -(-numbers.n * 5 // 8)
    return numbers, blocks, (count // 32 * 34 if kind == 1 else -(-numbers.n // 16) * 12)


def _wm_quantize_room(p, size):
    for kind in range(4):
        numbers, blocks, _ = _quantize_arguments(p, size, kind)
        yield lib.wm_quantize_room(numbers, blocks, 2)


def _room_for(numbers, blocks):
    """Room for two threads; its contents depend on which thread took which piece."""
    room = np.empty(lib.wm_quantize_room(numbers, blocks, 2), np.uint8)
    return ffi.from_buffer("uint8_t[]", room), len(room)


def _wm_search_scale(p, size):
    for kind in range(4):
        numbers, blocks, _ = _quantize_arguments(p, size, kind)
        blocks.type, blocks.block_size, outcome = -1, 0, p.struct("wm_outcome")
        lib.wm_search_scale(numbers, blocks, *_room_for(numbers, blocks), outcome)
        yield fields(outcome), blocks.scale


def _wm_quantize_numbers(p, size):
    with tempfile.TemporaryFile() as file:
        for kind in range(4):
            numbers, blocks, nbytes = _quantize_arguments(p, size, kind)
            earlier, outcome = p.struct("wm_unwritten"), p.struct("wm_outcome")
            earlier.fd, earlier.data, earlier.size, earlier.at = file.fileno(), p.give(noise(size)), size, 0
            out, sums, room = p.room(nbytes), p.room(2, "double"), _room_for(numbers, blocks)
            lib.wm_quantize_numbers(numbers, blocks, out, nbytes, sums, *room, earlier, 2, outcome)
            file.seek(0)
            yield fields(outcome), file.read() == noise(size)


def adaptive(size, scale):
    """Blocks of all kinds for this many elements: the data, and the elements of a block."""
    blocks = -(-size // 16)
    kinds = [(0, 2, 1, 1, 0)[b % 5] for b in range(blocks)]
    values = [range(-8, 8), range(-16, 0), [0.25] * 16]
    return amb.pack_adaptive([(kind, 0.5, values[kind]) for kind in kinds], 16, scale), 16


def _wm_adaptive_check(p, size):
    for scale in (0, 1):
        data, block = adaptive(size, scale)
        n, fault = lib.wm_adaptive_plan_size(block, size), p.struct("wm_fault")
        yield lib.wm_adaptive_check(p.give(data), len(data), scale, block, size, p.room(n, "uint64_t"), n, fault)


def _wm_ggml_encode(p, size):
    for number in filter(lib.wm_ggml_encodes, range(64)):
        elements, nbytes = lib.wm_ggml_elements(number), lib.wm_ggml_bytes(number)
        blocks = size // elements
        x, out = p.array(floats(blocks * elements)), p.room(blocks * nbytes)
        errors = p.room(blocks, "double")
        yield lib.wm_ggml_encode(x, blocks * elements, number, out, blocks * nbytes, errors, blocks, 1)


def _wm_ggml_decode(p, size):
    for number in range(64):
        elements, nbytes = lib.wm_ggml_elements(number), lib.wm_ggml_bytes(number)
        if not elements:
            continue
        n = size - size % elements
        data = noise(n // elements * nbytes)
        given = p.give(data)
        for first, half in ((0, 0), (n // 3, 0), (n // 2, 1)):
            out = p.room(n - first, "uint16_t" if half else "float")
            yield lib.wm_ggml_decode(given, len(data), number, n, first, out, n - first, half, 1)


def _wm_lookup(p, size):
    rows, width, height, before = 3, 5, 2, 1
    cases = ((8, 1, False, True), (8, 0, True, False), (4, 2, True, True), (4, 0, False, False))
    cases += ((3, 0, False, False), (5, 1, True, False), (6, 2, False, True), (7, 1, False, False))
    for bits, type_, numbered, zeroed in cases:
        columns = size // rows
        row_bytes = -(-columns * bits // 8)
        codes = noise(rows * row_bytes)
        blocks = 2 * -(-columns // width)
        count = 7 if numbered else blocks
        which = (np.arange(blocks) % 7).astype(np.uint8).tobytes()
        nbytes = rows * columns * (2 if type_ else 4)
        out = p.room(nbytes)
        shape = (row_bytes, rows, columns, before, height, width)
        zeros = p.array(floats(count)) if zeroed else ffi.NULL
        biases = p.array(floats(count)) if type_ else ffi.NULL
        scales = (p.array(floats(1 << bits)), p.array(floats(count)), zeros, biases, count)
        numbers = (p.give(which), len(which)) if which and numbered else (ffi.NULL, 0)
        args = (p.give(codes), len(codes), bits, bits == 4, *shape, *scales, *numbers, 1.5)
        yield lib.wm_lookup(*args, type_, out, nbytes, 1)


def _wm_groups_decode(p, size):
    columns, count = 32, 3
    for bits, by_rows, type_ in ((4, 1, 0), (4, 1, 1), (2, 0, 1), (3, 0, 2), (4, 0, 0), (8, 0, 1)):
        rows = size // columns // 8 * 8
        words = noise(rows * columns * bits // 8)
        group = np.arange(columns, dtype=np.uint32) % count
        scales, zeros = floats(count * rows), np.zeros(count * rows, np.float32)
        nbytes = rows * columns * (2 if type_ else 4)
        out = p.room(nbytes)
        args = (p.give(words), len(words), bits, by_rows, p.array(group), columns, p.array(scales), p.array(zeros))
        yield lib.wm_groups_decode(*args, len(scales), rows, type_, out, nbytes, 1)


def _wm_adaptive_decode(p, size):
    for scale, half in ((0, 0), (1, 0), (0, 1), (1, 1)):
        data, block = adaptive(size, scale)
        plan = np.zeros(lib.wm_adaptive_plan_size(block, size), np.uint64)
        pointer = ffi.from_buffer("uint64_t[]", plan)
        assert lib.wm_adaptive_check(data, len(data), scale, block, size, pointer, len(plan), ffi.NULL) == 0
        first = size // 3
        out = p.room(size - first, "uint16_t" if half else "float")
        args = p.give(data), len(data), scale, block, size, p.array(plan), len(plan)
        yield lib.wm_adaptive_decode(*args, first, out, size - first, half, 1)


def _wm_adaptive_encode(p, size):
    block, numbers = 16, lib.wm_adaptive_room(1, 16, size)
    source, room = p.array(floats(size)), p.room(numbers, "uint64_t")
    nbytes = lib.wm_adaptive_choose(source, size, 1, block, 16 * size, room, numbers, 1)
    yield nbytes
    yield lib.wm_adaptive_encode(source, size, 1, block, room, numbers, p.room(nbytes), nbytes)


_wm_adaptive_choose = _wm_adaptive_encode


def _wm_walk_strings(p, size):
    for width in (2, 4):
        blob, bounds = strings(size, width)
        n = len(bounds) - 1
        for data in (blob, blob[:-1]):
            args = p.give(data), len(data), n, width, p.room(n + 1, "uint32_t")
            yield lib.wm_walk_strings(*args)


def _wm_utf8_strings(p, size):
    for gap in (0, 2):
        blob, bounds = strings(size, gap)
        for data in (blob, blob[:-1] + b"\xe2" if size else blob):
            args = p.give(data), len(data), p.array(bounds), len(bounds) - 1, gap
            yield lib.wm_utf8_strings(*args)


def _index(p, size, gap):
    """The arrays of an index over such strings, placed; and the bounds."""
    blob, bounds = strings(size, gap)
    n, capacity = len(bounds) - 1, power_of_two(len(bounds) - 1)
    slots = np.empty(capacity, np.uint32)
    args = blob, len(blob), ffi.from_buffer("uint32_t[]", bounds), n, gap
    assert lib.wm_index_build(*args, ffi.from_buffer("uint32_t[]", slots), capacity, ffi.NULL, ffi.NULL) >= 0
    return (p.give(blob), len(blob), p.array(bounds), n, gap, p.array(slots), capacity), bounds


def _wm_index_build(p, size):
    blob, bounds = strings(size, 4)
    n, capacity = len(bounds) - 1, power_of_two(len(bounds) - 1)
    args = p.give(blob), len(blob), p.array(bounds), n, 4, p.room(capacity, "uint32_t"), capacity
    yield lib.wm_index_build(*args, p.room(1, "uint64_t"), p.room(1, "uint64_t"))


def _wm_index_lookup(p, size):
    index, _ = _index(p, size, 2)
    blob, bounds = strings(size, 0)
    last = blob[bounds[-2] :] if len(bounds) > 1 else b""
    described = ffi.new("wm_index *", index)
    yield [lib.wm_index_lookup(described, p.give(name), len(name)) for name in (last, noise(size), b"0", b"")]


def _wm_variant(p, size):
    yield [lib.wm_variant(p.give(name, "char *", 1)) == ffi.NULL for name in (b"crc32\0", b"lookup\0", b"crc\0")]


def _wm_index_find_many(p, size):
    index, _ = _index(p, size, 4)
    names, bounds = strings(size, 0)
    n = len(bounds) - 1
    yield lib.wm_index_find_many(*index, p.give(names), len(names), p.array(bounds), n, p.room(n, "int64_t"))


def _wm_subword_rows(p, size):
    _, bounds = strings(size, 0)
    n = len(bounds) - 1
    index, _ = _index(p, 200, 0)
    ngrams = ffi.new("wm_index *", index)
    numbers = np.arange(index[3], dtype=np.uint64)
    for kind, modulus in ((lib.WM_SUBWORDS_BUCKET, 16), (lib.WM_SUBWORDS_FASTTEXT, 13), (lib.WM_SUBWORDS_EXPLICIT, 0)):
        subwords = ffi.new("wm_subwords *", (kind, 1, 4, modulus, 5, ngrams, p.array(numbers), len(numbers)))
        text = p.give(noise(size))
        starts = p.array(bounds)
        total = lib.wm_subword_rows(subwords, text, size, starts, n, ffi.NULL, 0, p.room(n + 1, "uint64_t"))
        for cap in {total, total // 2}:
            rows, row_bounds = p.room(cap, "uint64_t"), p.room(n + 1, "uint64_t")
            yield lib.wm_subword_rows(subwords, text, size, starts, n, rows, cap, row_bounds)


def _wm_unit_sums(p, size):
    dims, height = size % 37 + 1, size // 37 + 1
    sums = 5
    rows = np.arange(2 * sums, dtype=np.uint64) * np.uint64(7) % np.uint64(height)
    bounds, places = np.arange(0, 2 * sums + 1, 2, np.uint64), np.arange(sums, dtype=np.uint64)[::-1].copy()
    matrix = p.give(floats(dims * height).tobytes())
    args = matrix, 4 * dims * height, dims, p.array(rows), len(rows), p.array(bounds), p.array(places), sums
    yield lib.wm_unit_sums(*args, p.room(sums * dims, "float"), sums, p.room(sums, "float"), 1)


def _wm_gather_rows(p, size):
    width, height = size % 41 + 1, size // 41 + 1
    rows = np.array([height - 1, -1, 0, height], np.int64)
    matrix = noise(width * height)
    yield lib.wm_gather_rows(p.give(matrix), len(matrix), width, p.array(rows), 4, p.room(4 * width), 4 * width, 1)


def _codes(p, size):
    """Codes of this many rows with projection and norms, placed; elements of a row, and of the table of sums."""
    pieces, centroids, width = size % 3 + 1, 7, size % 5 + 1
    dims = pieces * width
    codes = np.frombuffer(noise(size * pieces), np.uint8) % centroids
    parts = codes, floats(dims * centroids), floats(dims * dims), floats(size)
    pointers, sizes = [p.array(part) for part in parts], [part.size for part in parts]
    return ffi.new("wm_pq *", (*pointers, *sizes, size, pieces, centroids, width)), dims, pieces * centroids


def _wm_pq_decode(p, size):
    pq, dims, _ = _codes(p, size)
    room = lib.WM_PQ_TOGETHER * dims
    rows = np.arange(size, dtype=np.uint64)[::-2].copy()
    scratch = p.room(room, "float")
    yield lib.wm_pq_decode(pq, ffi.NULL, 0, size, p.room(size * dims, "float"), size * dims, scratch, room, 1)
    n = len(rows) * dims
    yield lib.wm_pq_decode(pq, p.array(rows), 0, len(rows), p.room(n, "float"), n, scratch, room, 1)


def _wm_pq_sums(p, size):
    pq, _, table = _codes(p, size)
    count = size - size // 2
    yield lib.wm_pq_sums(pq, p.array(floats(table)), table, size // 2, count, p.room(count, "float"))


def _columns(p, count, n_dims, names):
    """Columns with this much room, each placed by itself."""
    rooms = (names, "uint8_t"), (count + 1, "uint32_t"), (count, "uint8_t"), (n_dims, "uint64_t")
    rooms += (count + 1, "uint32_t"), (count, "uint64_t"), (count, "uint64_t")
    return ffi.new("wm_columns *", (count, n_dims, names, *(p.room(*room) for room in rooms)))


@cache
def tensors(size):
    """A few small tensors, whose names take this many bytes."""
    names = [text for text in dict.fromkeys((f"{i:x}" * 70)[:n] for i, n in enumerate(lengths(size).tolist())) if text]
    return {name: Tensor("float32", (1, 2), bytes(8)) for name in names}


def _wm_columns_place(p, size):
    columns = ffi.new("wm_columns *", (size, size, size))
    words = (8 * 3 * size + 8 * (size + 1) + 4 * size + 2 * size + 7) // 8
    placed = lib.wm_columns_place(columns, p.room(words, "uint64_t"), words)
    columns.names[0:size] = columns.dtype[0:size] = b"\1" * size  # the last of them ends where the memory does
    yield placed, lib.wm_columns_place(columns, p.room(words, "uint64_t"), words - 1)


DTYPES = b"".join(name.ljust(16, b"\0") for name in (b"F32", b"F16", b"U8"))


def _wm_safetensors_scan(p, size):
    data = safetensors.build(tensors(size), {"k": "v" * (size % 7)})
    header = data[8 : 8 + struct.unpack_from("<Q", data)[0]]
    for text in (header, header[:-1], header[: size + 1]):
        columns = _columns(p, len(text) // 48 + 1, len(text) // 2, len(text))
        out, fault = p.struct("wm_safetensors"), p.struct("wm_fault")
        args = p.give(text), len(text), p.give(DTYPES), len(DTYPES) // 16
        yield lib.wm_safetensors_scan(*args, columns, out, fault), fields(out), fields(fault)


def _wm_json_depth(p, size):
    texts = (b"[{" * size, b'["' + b"\\" * size, b'["' + b"[" * size, b'"\\"[]"]' * size, noise(size))
    yield [lib.wm_json_depth(p.give(text[:end]), len(text[:end])) for text in texts for end in (size, len(text))]


def _wm_bintensors_scan(p, size):
    for layout in ("spec", "current"):
        data = bintensors.build(tensors(size), {"k": "v" * (size % 9)}, layout=layout)
        header = data[8 : 8 + struct.unpack_from("<Q", data)[0]]
        for text in (header, header[:-1], header[: size + 1]):
            columns = _columns(p, len(text) // 5 + 1, len(text), len(text))
            out, fault = p.struct("wm_bintensors"), p.struct("wm_fault")
            done = lib.wm_bintensors_scan(p.give(text), len(text), 3, columns, out, fault)
            yield done, fields(out), fields(fault)


def _gguf_header(size):
    values = [gguf.KeyValue("s", ["str"], ["x" * (size % 5)] * (size % 40)), gguf.KeyValue("k" * (size % 9), "u32", 1)]
    return gguf.header(gguf.infos_of(tensors(size)), values), len(tensors(size)), len(values)


def _wm_gguf_values(p, size):
    data, n_tensors, count = _gguf_header(size)
    for text in (data, data[:-1], data[: size + 24]):
        out, fault = p.struct("wm_gguf"), p.struct("wm_fault")
        out.limit, out.pos, out.count, out.n_tensors, out.version = len(text), 24, count, n_tensors, 3
        out.big = out.lax = out.n_keys = out.n_dims = out.names_len = 0
        keys = p.room(2 * count, "uint32_t")
        yield lib.wm_gguf_values(p.give(text), len(text), keys, count, out, fault), out.pos, fields(fault)


def _wm_gguf_tensors(p, size):
    data, n_tensors, _ = _gguf_header(size)
    start = len(data) - len(gguf.header(gguf.infos_of(tensors(size)))) + 24
    types = struct.pack("<2I", 1, 4) + bytes(8 * 63)
    for text in (data, data[:-1], data[: size + start]):
        out, fault = p.struct("wm_gguf"), p.struct("wm_fault")
        out.limit, out.pos, out.count, out.n_tensors, out.version = len(text), start, 0, n_tensors, 3
        out.big = out.lax = out.n_keys = out.n_dims = out.names_len = 0
        columns = _columns(p, n_tensors, 4 * n_tensors, max(len(text) - start, 0))
        args = p.give(text), len(text), ffi.cast("wm_gguf_type *", p.give(types, align=4)), columns
        yield lib.wm_gguf_tensors(*args, out, fault), out.n_dims, out.names_len, fields(fault)


def _wm_gguf_reach(p, size):
    begins = np.arange(size, dtype=np.uint64) * np.uint64(8)
    for code in (0, lib.WM_GGUF_TYPES):
        columns, out = _columns(p, size, size, size), p.struct("wm_gguf")
        out.n_tensors, out.data_end = size, 0
        ffi.memmove(columns.begin, begins.tobytes(), 8 * size)
        ffi.memmove(columns.end, (begins + np.uint64(1)).tobytes(), 8 * size)
        ffi.memmove(columns.dtype, bytes([code]) * size, size)
        lib.wm_gguf_reach(columns, 8 * size, out)
        out.n_tensors = size + 1  # more than there are columns for: nothing
        lib.wm_gguf_reach(columns, 8 * size, out)
        yield out.data_end, bytes(ffi.buffer(columns.end, 8 * size))


def _wm_gguf_find(p, size):
    keys = np.array([0, size // 2, size // 2, size], np.uint32).tobytes()
    data = noise(size)
    wanted = (data[: size // 2], data[size // 2 :], data + b"x")
    yield [
        lib.wm_gguf_find(p.give(data), size, p.give(keys, "uint32_t *", 4), 2, p.give(key), len(key)) for key in wanted
    ]


def _wm_gguf_array(p, size):
    data = gguf.Coder().value([["i16"]], [[1] * (size % 7)] * (size % 5))
    texts = (data, data[:-1], data[:size], noise(size))
    yield [lib.wm_gguf_array(p.give(text), len(text), 0, 3, 0) for text in texts]


def _wm_gguf_strings(p, size):
    for version, big in ((3, 0), (1, 0), (3, 1)):
        coder = gguf.Coder(version, bool(big))
        data = b"".join(coder.string("x" * (i % 3)) for i in range(size % 50))
        for text in (data, data[:-1], noise(size)):
            bounds = p.room(size % 50 + 1, "uint32_t")
            yield lib.wm_gguf_strings(p.give(text), len(text), size % 50, version, big, bounds)


def _wm_cnn_layers(p, size):
    n = size % 150
    records = b"".join(cnn_v2.record(3, 2, 1, 18 * i) for i in range(n))
    out, fault = p.struct("wm_cnn"), p.struct("wm_fault")
    columns = _columns(p, n, 4 * n, 32 * n)
    yield lib.wm_cnn_layers(p.give(records), len(records), n, columns, out, fault), fields(out), fields(fault)


def _wm_amb_walk(p, size):
    data = amb.build([amb.Record(name, (1, 2), 0, bytes(8)) for name in tensors(size)])
    start = 28 + sum(struct.unpack_from("<3I", data, 8))
    for end in (len(data), len(data) - 1, min(start + size, len(data))):
        for cap in (0, len(tensors(size))):
            columns = _columns(p, cap, 2 * cap, size if cap else 0)
            values = (-1, 0, p.give(data[:end]), end, start, end, 0, 1000, 2**20, 0, 0)
            out, fault = p.struct("wm_amb"), p.struct("wm_fault")
            done = lib.wm_amb_walk(ffi.new("wm_amb_section *", values), columns, out, fault)
            yield done, fields(out), fields(fault)


def _wm_onnx_scan(p, size):
    value = Tensor("float32", (1, 2), bytes(8))
    apart = onnx.field(13, onnx.field(1, b"location") + onnx.field(2, b"x")) + onnx.field(14, 1)
    protos = [onnx.tensor_proto(name, value, typed=i % 2 == 0) for i, name in enumerate(tensors(size))]
    data = onnx.model([*protos, onnx.field(2, 1) + onnx.field(8, b"x") + apart])
    for end in (len(data), len(data) - 1, min(size, len(data))):
        for cap in (0, len(protos) + 1):
            columns = _columns(p, cap, 2 * cap, size + 1 if cap else 0)
            filled = p.room(cap, "uint64_t"), p.room(cap, "wm_onnx_place"), p.room(100), cap, 100
            values = (-1, p.give(data[:end]), end, 1000, 2**20, 2**20, *filled)
            out, fault = p.struct("wm_onnx"), p.struct("wm_fault")
            done = lib.wm_onnx_scan(ffi.new("wm_onnx_file *", values), columns, out, fault)
            yield done, fields(out), fields(fault)


def _wm_onnx_numbers(p, size):
    data = onnx.field(5, onnx.packed([1, 50] * (size // 2))) + onnx.field(5, 7) * (size % 2)
    floats = onnx.field(4, bytes(4 * (size // 2))) + onnx.field(4, bytes(4), 5) * (size // 2)
    for number, bits, count, text in (
        *((5, bits, size, data) for bits in (6, 8, 16, 32, 64)),
        (4, 32, 2 * (size // 2), floats),
        (5, 8, size + 1, data),
        (5, 8, size // 2, data),
        (5, 6, size, data[:-1]),
    ):
        fault, out = p.struct("wm_fault"), p.room((count * bits + 7) // 8)
        done = lib.wm_onnx_numbers(p.give(text), len(text), number, bits, count, out, fault)
        yield done, fields(fault)


def _wm_finalfusion_skip(p, size):
    blob, bounds = strings(size, 4)
    yield [
        (lib.wm_finalfusion_skip(p.give(data), len(data), len(bounds), tail, p.room(1, "uint64_t")))
        for data in (blob, blob[:-1], noise(size))
        for tail in (0, 8)
    ]


def _wm_finalfusion_ngrams(p, size):
    entries = [f"{i:x}".encode().ljust(n, b"x") for i, n in enumerate(lengths(size).tolist())]
    blob = b"".join(struct.pack("<I", len(text)) + text + struct.pack("<Q", i) for i, text in enumerate(entries))
    n = len(entries)
    for data in (blob, blob[:-1]):
        bounds, indices = p.room(n + 1, "uint32_t"), p.room(n, "uint64_t")
        yield lib.wm_finalfusion_ngrams(p.give(data), len(data), n, bounds, indices)


def _table(p, size):
    """Columns of tensors with this many bytes of names: the columns, their number, the bytes of data, the names."""
    names = [name.encode() for name in tensors(size)]
    n = len(names)
    bounds = np.cumsum([0, *map(len, names)]).astype(np.uint32)
    ends = np.arange(8, 8 * n + 1, 8, np.uint64)
    dims = np.tile(np.array([1, 2], np.uint64), n)
    dim_bounds = np.arange(0, 2 * n + 1, 2, np.uint32)
    given = p.give(b"".join(names)), p.array(bounds), p.give(bytes(n)), p.array(dims), p.array(dim_bounds)
    columns = (n, 2 * n, int(bounds[-1]), *given, p.array(ends - np.uint64(8)), p.array(ends))
    return ffi.new("wm_columns *", columns), n, 8 * n, names


BITS = bytes((32, 16, 8))


def _wm_columns_check(p, size):
    columns, n, data_size, _ = _table(p, size)
    numbers = n, columns.dims_cap, columns.names_cap
    columns.hashes = p.room(n, "uint32_t")
    fault = p.struct("wm_fault")
    asked = p.give(ffi.buffer(rules(BITS, max_ndim=8)), "wm_rules *", 8)
    done = lib.wm_columns_check(columns, *numbers, 1, asked, data_size, data_size, 0, fault)
    yield done, done == 0 or fields(fault), columns.hashed


def _wm_columns_find(p, size):
    columns, n, _, names = _table(p, size)
    wanted = (noise(size), b"", *names[-1:])
    columns.hashes = p.array(np.array([embd.fnv1a32(name) for name in names], np.uint32))
    for columns.hashed in (0, 1):
        yield [lib.wm_columns_find(columns, n, columns.names_cap, p.give(name), len(name)) for name in wanted]


def _records(size):
    names = [name.encode() for name in tensors(size)]
    rows = [
        struct.pack("<IBBH4IQ", embd.fnv1a32(name), 0, 2, len(name), 1, 2, 0, 0, 8 * i) for i, name in enumerate(names)
    ]
    return b"".join(rows + names), len(names), 8 * len(names), names


def _wm_records_check(p, size):
    index, n, data_size, _ = _records(size)
    for data in (index, index[:-1]):
        fault = p.struct("wm_fault")
        asked = p.give(ffi.buffer(rules(BITS, min_ndim=1, max_ndim=4, alignment=8)), "wm_rules *", 8)
        yield lib.wm_records_check(p.give(data), len(data), n, asked, data_size, data_size, 0, fault)


def _rows(p, size):
    """Tables of the same tensors, in columns and in records: see `_table`."""
    columns, n, data_size, _ = _table(p, size)
    asked = p.give(ffi.buffer(rules(BITS, max_ndim=4)), "wm_rules *", 8)
    yield ffi.new("wm_table *", (asked, columns, ffi.NULL, n, columns.dims_cap, 100, data_size, data_size)), n
    yield ffi.new("wm_table *", (asked, ffi.NULL, p.give(_records(size)[0]), n, 0, 100, data_size, data_size)), n


def _wm_row_check(p, size):
    for table, n in _rows(p, size):
        for i in (0, n // 2, n):
            row, fault = p.struct("wm_row"), p.struct("wm_fault")
            done = lib.wm_row_check(table, i, row, fault)
            yield done, fields(fault) if done else (row.dtype, row.offset, row.nbytes, *row.dims[0 : row.ndim])


def _wm_rows_check(p, size):
    for table, n in _rows(p, size):
        for width in (0, 1, 3):
            out = p.room(n, "uint8_t"), p.room(n, "uint8_t"), p.room(width * n, "uint64_t"), width
            out = ffi.new("wm_rows *", (*out, p.room(n, "uint64_t"), p.room(n, "uint64_t")))
            yield lib.wm_rows_check(table, 0, n, out, p.struct("wm_fault"))


def _wm_records_find(p, size):
    index, n, _, names = _records(size)
    wanted = (noise(size), b"", *names[-1:])
    yield [lib.wm_records_find(p.give(index), len(index), n, p.give(name), len(name)) for name in wanted]


def _wm_records_bounds(p, size):
    index, n, _, _ = _records(size)
    bounds = p.room(n + 1, "uint32_t")
    yield lib.wm_records_bounds(p.give(index), len(index), n, bounds), list(bounds[0 : n + 1])


def _wm_pairs_check(p, size):
    keys = [f"{i:x}".encode().ljust(n, b"x") for i, n in enumerate(lengths(size).tolist())]
    pairs = b"".join(struct.pack("<HH", len(key), 1) + key + b"v" for key in keys)
    for data in (pairs, pairs[:-1]):
        fault = p.struct("wm_fault")
        yield lib.wm_pairs_check(p.give(data), len(data), len(keys), fault)


def _wm_differing(p, size):
    for kind, width in enumerate((4, 8, 2, 2)):
        data = noise(size - size % width)
        for other in (data, data[::-1]):
            room = p.room(2, "double")
            count = lib.wm_differing(p.give(data), p.give(other), len(data) // width, kind, room, room + 1)
            yield count, np.float64([room[0], room[1]]).tobytes()


def _wm_differing_files(p, size):
    with tempfile.TemporaryFile() as file:
        file.write(noise(size) + noise(size + 1))
        file.flush()
        for kind, width in enumerate((4, 8, 2, 2)):
            starts = np.arange(0, size, 104, dtype=np.uint64)
            counts = np.minimum(np.uint64(104), np.uint64(size) - starts) // np.uint64(width)
            pairs, outcome = p.struct("wm_pairs"), p.struct("wm_outcome")
            pairs.a = pairs.b = file.fileno()
            pairs.kind, pairs.n, pairs.max = kind, len(starts), 104
            pairs.from_a, pairs.from_b = p.array(starts), p.array(starts + np.uint64(size))
            pairs.counts = p.array(counts)
            room = ffi.from_buffer("uint8_t[]", np.empty(416, np.uint8))  # which thread takes which piece is chance
            out = p.room(len(starts), "int64_t"), p.room(2 * len(starts), "double")
            lib.wm_differing_files(pairs, *out, room, 416, 2, outcome)
            yield fields(outcome)


def _wm_crc32_of_part(p, size):
    edges = np.arange(0, size // 5 * 4, 2, dtype=np.uint64)[: size // 4 * 2]
    with tempfile.TemporaryFile() as file:
        file.write(noise(size))
        file.flush()
        for memory in (p.give(noise(size)), ffi.NULL):
            part, outcome, crc = p.struct("wm_summed"), p.struct("wm_outcome"), p.struct("uint32_t")
            part.fd, part.memory, part.memory_size, part.at, part.size = file.fileno(), memory, size, 0, size
            part.gaps, part.n_gaps = p.array(edges), len(edges) // 2
            filled, crc[0] = p.give(bytes(len(edges) // 2)), 7
            room = ffi.from_buffer("uint8_t[]", np.empty(lib.WM_SUM_ROOM, np.uint8))  # for steps of the file
            lib.wm_crc32_of_part(part, filled, len(edges) // 2, crc, room, len(room), 1, outcome)
            yield fields(outcome), crc[0], bytes(ffi.buffer(filled, len(edges) // 2))


def _wm_sum_of_squares(p, size):
    values = lengths(size).astype(np.float32)
    yield np.float64(lib.wm_sum_of_squares(p.array(values), len(values))).tobytes()


def _wm_read_runs(p, size):
    with tempfile.TemporaryFile() as file:
        file.write(noise(size))
        file.flush()
        for length in (0, 1, 7, 64):
            starts = np.arange(0, max(size - length, 0), 3 * length or 9, dtype=np.uint64)
            out, error = p.room(len(starts) * length), p.room(1, "int")
            yield lib.wm_read_runs(file.fileno(), p.array(starts), len(starts), length, 100 * length, out, error)


MAPPING = mmap.mmap(-1, 256 * mmap.PAGESIZE)
MAPPING.write(bytes(len(MAPPING)))


def _wm_resident(p, size):
    """The pages of a mapping, which is not read."""
    map_ = ffi.from_buffer(MAPPING)
    for count in {min(size, 256), size % 256}:
        yield lib.wm_resident(map_, len(MAPPING), 0, count * mmap.PAGESIZE, p.room(count), count)


def _wm_join_ranges(p, size):
    starts = np.cumsum(lengths(8 * size)[:size], dtype=np.uint64)
    given = np.arange(len(starts), dtype=np.uint32) // 50, starts, starts + np.uint64(3)
    pointers = [p.array(column) for column in given]
    n = lib.wm_join_ranges(*pointers, p.room(len(starts), "uint64_t"), len(starts), 40, 2.5)
    yield n, [ffi.unpack(pointer, n) for pointer in pointers]


def _wm_stage(p, size):
    for n in (1, 3):
        sizes = np.array([size, size // 2, size % 7][:n], np.uint64)
        to = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.uint64)
        begins = np.arange(n, dtype=np.uint64)
        staging, error = p.struct("wm_staging"), p.room(1, "int")
        staging.fd, staging.memory, staging.memory_size = -1, p.give(noise(size + n)), size + n
        staging.__setattr__("from", p.array(begins))
        staging.to, staging.sizes = p.array(to), p.array(sizes)
        staging.out, staging.out_size = p.room(int(sizes.sum())), int(sizes.sum())
        yield lib.wm_stage(staging, n, p.room(n, "uint32_t"), 2, error)


@cache
def _programs(size):
    """Pickles of tensors and values of every kind, whole and cut off: arenas of these fit between the pages."""
    stored = {f"w{i}": torch.Stored(str(i), "float32", 24, i, (2, 3), (3, 1 + i)) for i in range(size % 5)}
    values = {"k" * (size % 900): size, "none": None, "real": 0.5, "long": 2**70, "raw": noise(size % 50), "no": False}
    whole = torch.dump(stored | values | {"list": [torch.Dtype("int8"), "text", ()]})
    return whole, whole[:-1], whole[: size % len(whole)]


def _run_pickle(p, text, words):
    out, fault, arena = p.struct("wm_pickle"), p.struct("wm_fault"), p.room(words, "uint64_t")
    source = ffi.new("wm_pickle_source *", (-1, p.give(text), 0, len(text)))
    return lib.wm_pickle_run(source, arena, words, out, fault), source, arena, out, fault


# Programs whose stack is one value short: only the end of the arena lies under it.
_SHORT = (b"Na.", b"NNs.", b"N\x93.", b"NR.", b"N\x86.")


def _wm_pickle_run(p, size):
    for text in (*_programs(size), _SHORT[size % len(_SHORT)]):
        for words in (8 * len(text) + 1024, len(text) // 4):
            done, _, _, out, fault = _run_pickle(p, text, words)
            yield done, fields(out), fields(fault)


def _wm_pickle_walk(p, size):
    text = _programs(size)[0]
    _, source, arena, out, fault = _run_pickle(p, text, 8 * len(text) + 1024)
    args = source, arena, 9, 10_000
    counted = lib.wm_pickle_walk(*args, ffi.NULL, ffi.NULL, ffi.NULL, out, fault)
    columns = _columns(p, out.n_tensors, out.n_dims, out.names_len)
    tensors = p.struct("wm_pickle_tensors")
    tensors.columns = columns
    tensors.storages = p.array(np.zeros(out.n_storages, np.uint64))
    tensors.strides = p.room(out.n_dims, "uint64_t")
    values = p.struct("wm_pickle_values")
    values.cap, values.names_cap = out.n_values, out.value_names_len
    values.names, values.bounds = p.room(out.value_names_len), p.room(out.n_values + 1, "uint32_t")
    values.kind, values.length = p.room(out.n_values), p.room(out.n_values, "uint32_t")
    values.at = p.room(out.n_values, "uint64_t")
    path = p.room(out.longest)
    yield counted, lib.wm_pickle_walk(*args, tensors, values, path, out, fault), fields(out), fields(fault)


def _wm_pickle_list(p, size):
    text = _programs(size)[0]
    _, source, arena, out, fault = _run_pickle(p, text, 8 * len(text) + 1024)
    cursor, prefix = ffi.new("uint64_t *", out.storages), b"x" * (size % 9)
    for count in (out.n_storages // 2, out.n_storages - out.n_storages // 2):
        columns = p.struct("wm_pickle_storages")
        columns.prefix, columns.prefix_len = p.give(prefix), len(prefix)
        columns.names = p.room(count * (len(prefix) + 1))  # keys are a digit
        columns.bounds = p.room(count + 1, "uint32_t")
        columns.at, columns.nbytes = p.room(count, "uint64_t"), p.room(count, "uint64_t")
        columns.item, columns.type = p.room(count), p.room(count)
        yield lib.wm_pickle_list(source, arena, cursor, count, columns, fault)
    yield fields(fault)


def _wm_zip_scan(p, size):
    texts = [b"{'descr': '<f2', 'fortran_order': True, 'shape': (%d,), }" % size, b"{'shape': (1,)}", noise(size % 200)]
    raws = [text.ljust(118, b" ")[:-1] + b"\n" for text in texts]
    arrays = [b"\x93NUMPY\1\0" + struct.pack("<H", len(raw)) + raw + bytes(2 * size) for raw in raws]
    # Headers that end anywhere, by their length and by their bytes: nothing behind them is read.
    ends = (len(texts[0]) + size % 3, size % (len(texts[0]) + 1), size % 12)
    arrays += [b"\x93NUMPY\1\0" + struct.pack("<H", end) + texts[0].ljust(118)[:end] for end in ends]
    arrays += [arrays[0][: size % 129], arrays[0][: 10 + ends[1]], arrays[0][:127]]
    members = [noise(size), arrays[0], arrays[1 + size % 2], arrays[3 + size % 6]]
    data = zip_files.archive(
        [zip_files.Entry(b"%d.npy" % i, members[i], wide=bool(i % 2)) for i in range((size + 3) % 5)]
    )
    count, length, begin = struct.unpack_from("<H2I", data, len(data) - 12)
    central = data[begin : begin + length]
    for text, end in ((central, begin), (central[:-1], begin), (central, size)):
        entries, npy, fault = p.struct("wm_zip_entries"), p.struct("wm_npy"), p.struct("wm_fault")
        entries.count, entries.names, entries.bounds = count, p.room(len(text)), p.room(count + 1, "uint32_t")
        entries.method, entries.crc = p.room(count, "uint16_t"), p.room(count, "uint32_t")
        entries.later = p.room(count)
        for name in ("stored", "size", "offset", "data"):
            setattr(entries, name, p.room(count, "uint64_t"))
        columns = _columns(p, count, count, len(text))  # kept here: a struct keeps nothing alive
        npy.columns, npy.fortran = columns, p.room(count)
        source = ffi.new("wm_zip_source *", (-1, p.give(data[:end]), min(end, len(data))))
        for arrays in (npy, ffi.NULL):
            result = lib.wm_zip_scan(source, p.give(text), len(text), entries, arrays, fault)
            yield result, npy.n_dims, npy.n_kinds, fields(fault)


def _wm_zip_order(p, size):
    entries, fault, order = p.struct("wm_zip_entries"), p.struct("wm_fault"), np.arange(size, dtype=np.uint64)[::-1]
    entries.count, entries.later = size, p.array(np.ones(size, np.uint8))
    entries.offset, entries.data = p.array(order * np.uint64(20)), p.array(order * np.uint64(20) + np.uint64(4))
    entries.stored = p.array(np.full(size, 4, np.uint64))
    given = p.array(np.ascontiguousarray(order))
    yield [
        (lib.wm_zip_order(entries, order, end, fault), fields(fault))
        for order in (given, ffi.NULL)
        for end in (20 * size, 20 * size + 1)
    ]


CALLS = {name[1:]: value for name, value in list(globals().items()) if name.startswith("_wm_")}
