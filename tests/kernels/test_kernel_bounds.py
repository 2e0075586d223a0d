"""Functions of the C module at their bounds: what is accepted at the last value, and refused at the one beyond it."""

import os
import struct

import numpy as np
import pytest
from tests import guard
from tests.builders import amb, normal, npy
from tests.builders.embd import fnv1a32
from tests.kernel_calls import Place
from tests.table_support import U64, rules
from tests.zip_files import Entry, archive

from weightmap import kernels
from weightmap._kernels import ffi, lib

BITS = bytes([32, 16, 8, 255])
DECLARED = 3
MOST = 2**63 - 1
# 2^63 - 1 as a product of numbers below 2^32.
FACTORS = (7 * 7 * 73 * 127 * 337, 92737, 649657)
PAGES = [guard.Pages(1 << 16) for _ in range(8)]
RECORD = struct.Struct("<I2BH4IQ")


def word(fault):
    return None if fault is None or isinstance(fault, int) else fault.kind


# -------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize("sizes", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 5, 7), (8, 8, 8), (7, 0, 9)])
def test_columns_take_the_memory_that_they_need(sizes):
    cap, dims, names = sizes
    taken = 8 * dims + 16 * cap + 8 * (cap + 1) + names + cap
    words = -(-taken // 8)
    memory = ffi.new("uint64_t[]", words + 1)
    columns = ffi.new("wm_columns *", sizes)
    assert lib.wm_columns_place(columns, memory, words) == 0
    begin, end = int(ffi.cast("uintptr_t", memory)), int(ffi.cast("uintptr_t", columns.dtype)) + cap
    assert begin + taken == end
    for fewer in range(words):
        assert lib.wm_columns_place(columns, memory, fewer) == -1


@pytest.mark.parametrize("which", range(3))
def test_columns_of_more_than_positions_count_are_refused(which):
    for size, placed in ((2**32 - 1, 0), (2**32, -1), (2**61, -1)):  # whose bytes would wrap around to few
        sizes = [size if i == which else 0 for i in range(3)]
        # Memory that nobody reads: only its size counts.
        assert lib.wm_columns_place(ffi.new("wm_columns *", sizes), ffi.cast("uint64_t *", 0), 2**40) == placed


def columns_of(names, shapes, spans, codes=None):
    dims = [dim for shape in shapes for dim in shape]
    return kernels.Columns(
        b"".join(names),
        np.cumsum([0, *map(len, names)], dtype=np.uint32),
        np.array(codes or [2] * len(names), np.uint8),
        np.array(dims, np.uint64),
        np.cumsum([0, *map(len, shapes)], dtype=np.uint32),
        np.array([begin for begin, _ in spans], np.uint64),
        np.array([end for _, end in spans], np.uint64),
    )


def fault_of(columns, data_size, *, lax=False, **asked):
    return columns.check(rules(BITS, **asked), data_size, MOST, lax=lax, utf8=True)


def check(columns, data_size, **asked):
    return word(fault_of(columns, data_size, **asked))


def test_columns_never_hold_more_than_their_capacity():
    """A check of more tensors, dimensions or bytes of names than there is room for is refused, by one already."""
    columns = columns_of([b"ab", b"c"], [(3,), (4, 1)], [(0, 3), (3, 7)])
    fault = ffi.new("wm_fault *")
    for beyond in (0, 1, 2**32 - 1, 2**63, 2**64 - 8):
        for more in ((beyond, 0, 0), (0, beyond, 0), (0, 0, beyond)):
            n, dims, names = (a + b for a, b in zip((2, 3, 3), more, strict=True))
            args = n, dims, names, 1, rules(BITS), 7, 7, 0, fault
            assert lib.wm_columns_check(columns.native, *args) == (-1 if beyond else 0)
            assert fault.code == kernels.faults()["COLUMN" if beyond else "NONE"]
            assert not beyond or fault.expected == 2


def test_bounds_of_names_rise_and_end_with_them():
    """A name that ends before it begins, by one byte already, or a byte past the end of all, is a fault."""
    for bounds, row in (
        ((0, 2, 3), None),
        ((1, 1, 3), None),
        ((0, 3, 2), 1),
        ((0, 3, 4), 1),
        ((0, 4, 3), 0),
        ((2, 1, 3), 0),
        ((0, 1, 2**32 - 1), 1),
    ):
        columns = columns_of([b"ab", b"c"], [(), ()], [(0, 1), (1, 2)])
        columns.bounds[0:3] = list(bounds)
        fault = fault_of(columns, 2)
        found = fault and (fault.kind, fault.row, fault.actual, fault.expected)
        assert found == (None if row is None else ("NAME_RANGE", row, bounds[row + 1], 3)), bounds


def test_bounds_of_dimensions_rise_and_end_with_them():
    """Dimensions that end before they begin, by one already, or one past the last of them, are a fault."""
    for bounds in ((0, 1, 2), (0, 2, 2), (0, 2, 1), (0, 1, 3), (1, 1, 2)):
        columns = columns_of([b"a", b"b"], [(1,), (1,)], [(0, 1), (1, 2)])
        columns.dim_bounds[0:3] = list(bounds)
        good = bounds[0] <= bounds[1] <= bounds[2] <= 2
        assert check(columns, 2) == (None if good else "COLUMN"), bounds
    for last in (7, 8, 9, 10):
        columns = columns_of([b"a"], [(1,) * 8], [(0, 1)])
        columns.dim_bounds[1] = last
        assert check(columns, 1) == (None if last <= 8 else "COLUMN"), last
    for ndim in range(5):
        columns = columns_of([b"a"], [(1,) * ndim], [(0, 1)])
        assert check(columns, 1, min_ndim=1, max_ndim=3) == (None if 1 <= ndim <= 3 else "TABLE_NDIM"), ndim


def test_the_largest_product_that_can_be_counted():
    assert check(columns_of([b"a"], [FACTORS], [(0, MOST)]), 100) == "TABLE_RANGE"
    assert check(columns_of([b"a"], [FACTORS], [(0, MOST)]), MOST) is None
    assert check(columns_of([b"a"], [(2**31, 2**31, 2)], [(0, MOST)]), MOST) == "TABLE_OVERFLOW"
    # By its elements it can be counted, and by their bytes it cannot.
    assert check(columns_of([b"a"], [FACTORS], [(0, MOST)], [1]), MOST) == "TABLE_OVERFLOW"


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [(5, 5, None), (5, 6, None), (5, 4, "TABLE_SIZE"), (5, MOST, "TABLE_RANGE"), (5, MOST + 1, "TABLE_RANGE")],
)
def test_declared_bytes(begin, end, found):
    columns = columns_of([b"a"], [(7,)], [(begin, end)], [DECLARED])
    fault = fault_of(columns, 10, max_gap=10)
    assert word(fault) == found
    # Of an end before its beginning no number of bytes is made.
    assert found is None or fault.actual == (end if end > begin else U64)


def test_an_end_that_is_not_where_it_should_be():
    """Of dense tensors it follows from the shape; nothing wraps around."""
    for begin, end in (
        ((0, 2**64 - 8), (24, 8)),
        ((0, 32), (24, 24)),
        ((2**64 - 16, 24), (8, 40)),
        ((0, 24), (24, 39)),
    ):
        columns = columns_of([b"a", b"bc"], [(2, 3), (4,)], list(zip(begin, end, strict=True)), [0, 0])
        assert check(columns, 40) in {"TABLE_SIZE", "TABLE_RANGE"}


def test_offsets_are_multiples_of_any_alignment():
    """An alignment need not be a power of two."""
    for alignment in (3, 24, 48, 64, 2**61 + 8, 2**62 + 8):
        for begin in (alignment, alignment + 1, alignment + 8, 2 * alignment):
            columns = columns_of([b"a"], [(7,)], [(begin, begin + 7)], [DECLARED])
            fault = fault_of(columns, 2**62, alignment=alignment, lax=True)
            if begin + 7 > 2**62:
                assert (fault.kind, fault.actual, fault.expected) == ("TABLE_RANGE", begin + 7, 2**62)
            elif begin % alignment:
                assert (fault.kind, fault.actual, fault.expected) == ("TABLE_ALIGN", begin, alignment)
            else:
                assert fault is None


def test_more_dimensions_than_a_record_has_room_for():
    fault = ffi.new("wm_fault *")
    for most, word in ((3, "NONE"), (4, "NONE"), (5, "COLUMN"), (2**64 - 1, "COLUMN")):
        done = lib.wm_records_check(bytes(8), 8, 0, rules(BITS, max_ndim=most), 0, 0, 0, fault)
        assert (done, fault.code) == ((0 if word == "NONE" else -1), kernels.faults()[word])


def test_declared_bytes_up_to_the_most():
    for end, found in ((MOST, None), (MOST + 1, "TABLE_TRUNCATED")):
        columns = columns_of([b"a"], [(7,)], [(5, end)], [DECLARED])
        for room in (MOST, U64):
            assert word(columns.check(rules(BITS, max_gap=5), U64, room, lax=False, utf8=True)) == found


@pytest.mark.parametrize(("declared", "found"), [(9, None), (10, None), (11, "TABLE_TRUNCATED"), (U64, None)])
def test_a_section_that_the_file_cuts_off(declared, found):
    columns = columns_of([b"a"], [(7,)], [(0, 8)], [DECLARED])
    assert word(columns.check(rules(BITS, max_gap=5), declared, 10, lax=False, utf8=True)) == found


@pytest.mark.parametrize("code", [*range(len(BITS) + 2), 255])
def test_dtype_codes_end_with_their_list(code):
    columns = columns_of([b"a"], [()], [(0, BITS[code] // 8 if code < DECLARED else 1)], [code])
    assert check(columns, 4, max_gap=9) == (None if code < len(BITS) else "TABLE_DTYPE")
    last = columns_of([b"a"], [()], [(0, 1)], [255])
    assert word(last.check(rules(bytes(255) + b"\x08"), 1, 1, lax=False, utf8=True)) is None


@pytest.mark.parametrize("lax", [False, True])
@pytest.mark.parametrize("end", [9, 10, 11, 12])
def test_data_ends_with_the_section(end, lax):
    """A tensor may end where the data does, and not a byte behind it, whatever else is let pass."""
    expected = None if end <= 10 else "TABLE_RANGE"
    assert check(columns_of([b"a"], [(6,)], [(end - 6, end)]), 10, max_gap=9, lax=lax) == expected
    index = index_of([(b"a", 2, (6,), end - 6)])
    found = kernels.records_check(index, 1, rules(BITS[:3], max_ndim=4, max_gap=9), 10, 99, lax=lax)
    assert word(found) == expected


@pytest.mark.parametrize("gap", [0, 1, 63])
def test_holes_and_overlaps_by_one_byte(gap):
    for hole in (gap - 1, gap, gap + 1):
        if hole < 0:
            continue
        found = None if hole <= gap else "TABLE_HOLE"
        assert check(columns_of([b"a"], [(4,)], [(hole, hole + 4)]), hole + 4, max_gap=gap) == found
        between = columns_of([b"a", b"b"], [(4,), (4,)], [(0, 4), (4 + hole, 8 + hole)])
        assert check(between, 8 + hole, max_gap=gap) == found
        assert check(columns_of([b"a"], [(4,)], [(0, 4)]), 4 + hole, max_gap=gap) == found
    shared = columns_of([b"a", b"b"], [(4,), (4,)], [(0, 4), (3, 7)])
    assert check(shared, 7, max_gap=gap) == "TABLE_OVERLAP"
    assert check(shared, 7, max_gap=gap, lax=True) is None


def test_a_name_is_looked_for_in_no_more_than_there_is():
    """With more tensors or bytes of names than there is room for, by one already, nothing is found."""
    columns = columns_of([b"ab", b"c"], [(), ()], [(0, 1), (1, 2)])
    assert lib.wm_columns_find(columns.native, 2, 3, b"c", 1) == 1
    # A name that ends past the requested bytes is none.
    for n, names in ((3, 3), (2, 4), (2**63, 3), (2, 2)):
        assert lib.wm_columns_find(columns.native, n, names, b"c", 1) == -1


# -------------------------------------------------------------------------------------------------------- records


def index_of(rows):
    names = b"".join(name for name, *_ in rows)
    packed = []
    for name, code, shape, offset, *ndim in rows:
        dims = (*shape, 0, 0, 0, 0)[:4]
        packed.append(RECORD.pack(fnv1a32(name), code, *(ndim or [len(shape)]), len(name), *dims, offset))
    return b"".join(packed) + names


FOUR = {"min_ndim": 1, "max_ndim": 4}


def records(rows, data_size, **asked):
    return kernels.records_check(
        index_of(rows), len(rows), rules(BITS[:3], **FOUR, **asked), data_size, MOST, lax=False
    )


@pytest.mark.parametrize(
    ("offset", "end"), [(2**64 - 9, 2**64 - 1), (2**64 - 8, 2**64 - 1), (2**64 - 7, 2**64 - 1), (100, 108)]
)
def test_the_end_of_a_tensor_that_would_wrap_around(offset, end):
    fault = records([(b"a", 2, (8,), offset)], 50, max_gap=60)
    assert (fault.kind, fault.actual, fault.expected) == ("TABLE_RANGE", end, 50)


def test_shapes_of_records_that_can_just_be_counted():
    """The largest product of three dimensions is counted, and twice as many bytes are not."""
    rows = [(b"a", 2, FACTORS, 0)]
    assert records(rows, MOST) == 1
    assert records(rows, MOST - 1).kind == "TABLE_RANGE"
    assert records([(b"a", 1, FACTORS, 0)], MOST).kind == "TABLE_OVERFLOW"
    assert records([(b"a", 2, (2**31, 2**31, 2), 0)], MOST).kind == "TABLE_OVERFLOW"
    assert records([(b"a", 2, (2**32 - 1, 2**32 - 1, 2**32 - 1), 0)], MOST).kind == "TABLE_OVERFLOW"


@pytest.mark.parametrize("ndim", range(7))
def test_unused_dimensions_of_records_are_zero(ndim):
    used = min(max(ndim, 1), 4)
    shape = (2, 3, 5, 7)[:used]
    size = int(np.prod(shape))
    found = records([(b"a", 2, shape, 0, ndim)], size)
    assert (word(found) or found) == (1 if 1 <= ndim <= 4 else "TABLE_NDIM")
    for k in range(used, 4):
        full = list((*shape, 0, 0, 0)[:4])
        full[k] = 1
        found = records([(b"a", 2, full, 0, ndim)], size)
        assert found.kind == ("TABLE_UNUSED_DIM" if 1 <= ndim <= 4 else "TABLE_NDIM")


@pytest.mark.parametrize("missing", [1, 31, 32, 33])
def test_records_end_with_their_bytes(missing):
    """One byte less than the records take, and their count is refused, to check them as well as to look among them."""
    index = index_of([(b"", 2, (1,), 0), (b"", 2, (1,), 1)])
    pointer = Place(PAGES).give(index[:-missing])
    fault = ffi.new("wm_fault *")
    assert lib.wm_records_check(pointer, 64 - missing, 2, rules(BITS[:3], **FOUR), 2, 2, 0, fault) == -1
    assert fault.code == kernels.faults()["COLUMN"]
    assert lib.wm_records_find(pointer, 64 - missing, 2, b"x", 1) == -1


def test_names_of_records_end_with_their_bytes():
    index = index_of([(b"ab", 2, (1,), 0), (b"cde", 2, (1,), 1)])
    for cut in range(4):
        pointer = Place(PAGES).give(index[: len(index) - cut])
        fault = ffi.new("wm_fault *")
        done = lib.wm_records_check(pointer, len(index) - cut, 2, rules(BITS[:3], **FOUR), 2, 2, 0, fault)
        assert (done, fault.row) == ((5, 0) if cut == 0 else (-1, 1))
        assert fault.code == kernels.faults()["NAME_RANGE" if cut else "NONE"]
        assert lib.wm_records_find(pointer, len(index) - cut, 2, b"cde", 3) == (-1 if cut else 1)


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_names_behind_names_that_are_too_long(more):
    """Where lengths lie, a name that would begin past all names, even by a byte, is not read."""
    first, second = (
        RECORD.pack(fnv1a32(name), 2, 1, size, 1, 0, 0, 0, 0) for name, size in ((b"ab", 3 + more), (b"c", 1))
    )
    index = first + second + b"abc"
    assert lib.wm_records_find(Place(PAGES).give(index), len(index), 2, b"c", 1) == (1 if more == -1 else -1)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 33, 48])
def test_every_row_of_a_block_is_read(count):
    """Without an index the last record is found as well as the first, whatever is left over of blocks of sixteen."""
    names = [b"n%d" % i for i in range(count)]
    index = index_of([(name, 2, (0,), 0) for name in names])
    pointer = Place(PAGES).give(index)
    assert [lib.wm_records_find(pointer, len(index), count, name, len(name)) for name in names] == list(range(count))
    assert lib.wm_records_find(pointer, len(index), count, b"n", 1) == -1
    # Without names, records are the whole input.
    index = index_of([(b"", 2, (0,), 0)] * count)
    pointer = Place(PAGES).give(index)
    assert lib.wm_records_find(pointer, len(index), count, b"n", 1) == -1
    assert lib.wm_records_find(pointer, len(index), count, b"", 0) == 0


def test_a_count_of_pairs_is_bounded_by_their_bytes():
    data = struct.pack("<2H", 0, 0) * 3
    for count, row in ((3, 1), (4, 3)):
        fault = ffi.new("wm_fault *")
        assert lib.wm_pairs_check(data, len(data), count, fault) == -1
        # Three empty keys are one key three times; a fourth pair is not there at all.
        assert fault.code == kernels.faults()["NAME_DUPLICATE" if count == 3 else "NAME_RANGE"]
        assert fault.row == row


# ------------------------------------------------------------------------------------------------ lists of strings


@pytest.mark.parametrize("count", [1, 254, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2048])
def test_as_many_strings_as_a_group(count):
    """Around the number of strings taken together, each string is checked, and no bound past the last is read."""
    names = [b"%04x" % i for i in range(count)]
    blob, bounds = b"".join(names), np.arange(0, 4 * count + 1, 4, dtype=np.uint32)
    place = Place(PAGES)
    data, ends = place.give(blob), place.array(bounds)
    assert lib.wm_utf8_strings(data, len(blob), ends, count, 0) == -1
    broken = place.give(blob[:-1] + b"\xff")
    assert lib.wm_utf8_strings(broken, len(blob), ends, count, 0) == count - 1
    capacity = 1 << (2 * count).bit_length()
    slots = place.room(capacity, "uint32_t")
    described = data, len(blob), ends, count, 0, slots, capacity
    assert lib.wm_index_build(*described, ffi.NULL, ffi.NULL) == 0
    out = place.room(count, "int64_t")
    assert lib.wm_index_find_many(*described, data, len(blob), ends, count, out) == 0
    assert ffi.unpack(out, count) == list(range(count))


# ------------------------------------------------------------------------------------------------------------ AMB


def section(begin, end, *, origin=0, size=None, fd=-1, data=ffi.NULL, max_tensors=9, max_names=99):
    found = ffi.new("wm_amb_section *")
    found.fd, found.data, found.size = fd, data, end if size is None else size
    found.begin, found.end, found.origin = begin, end, origin
    found.max_tensors, found.max_names = max_tensors, max_names
    return found


def walk(of, cap=4):
    columns, out, fault = kernels.Columns.scratch(100, cap, 8), ffi.new("wm_amb *"), ffi.new("wm_fault *")
    return lib.wm_amb_walk(of, columns.native, out, fault), out, fault


@pytest.mark.parametrize(
    ("arguments", "good"),
    [
        ({"begin": 5, "end": 5}, True),
        ({"begin": 6, "end": 5}, False),
        ({"begin": MOST, "end": MOST}, True),
        ({"begin": MOST + 1, "end": MOST + 1}, False),
        ({"begin": 5, "end": 5, "origin": 5}, True),
        ({"begin": 5, "end": 5, "origin": 6}, False),
        ({"begin": 5, "end": 5, "size": 4}, False),
        ({"begin": 5, "end": 5, "size": 4, "fd": 0}, True),  # how long a file is, reading it will tell
        ({"begin": 5, "end": 5, "max_names": 2**32 - 2}, True),
        ({"begin": 5, "end": 5, "max_names": 2**32 - 1}, False),
    ],
)
def test_sections_that_can_be(arguments, good):
    done, out, fault = walk(section(**arguments))
    assert (done, out.n_tensors) == (0 if good else -1, 0)
    assert fault.code == kernels.faults()["NONE" if good else "COLUMN"]


@pytest.mark.parametrize("missing", [0, 1, 2, 8, 16])
def test_a_file_shorter_than_declared(tmp_path, missing):
    """A file that has become shorter is an error with the place: nothing is invented, and nothing waits."""
    data = amb.build([amb.dense("a", normal((2,)))])
    path = tmp_path / "model.amb"
    path.write_bytes(data[: len(data) - missing])
    begin = len(data) - struct.unpack_from("<Q", data, 20)[0]
    with path.open("rb") as file:
        done, out, fault = walk(section(begin, len(data), fd=file.fileno()))
    # The padding behind the eight bytes of data is read with the bytes before them, or alone.
    assert (done, out.n_tensors) == ((0, 1) if missing == 0 else (-1, 0))
    assert fault.code == kernels.faults()["NONE" if missing == 0 else "AMB_READ"]
    assert missing == 0 or (fault.at, fault.actual) == (len(data) - missing, 0)


def test_bytes_that_positions_count():
    fault = ffi.new("wm_fault *")
    for size in (2**32 - 2, 2**32 - 1, 2**32):
        assert lib.wm_pairs_check(ffi.NULL, size, 0, fault) == -1
        # A count too large for the bytes is one fault, and bytes behind the last pair are another.
        assert (fault.row, fault.at) == ((0, 0) if size == 2**32 - 2 else (size // 4, size))


@pytest.mark.parametrize("gap", [0, 2])
def test_bounds_of_strings_rise_and_end_with_the_data(gap):
    blob = b"abcdefgh" + bytes(2 * gap)
    first, second, third = gap, 3 + 2 * gap, 6 + 3 * gap
    for bounds, found in (
        ((first, second, third), -1),
        ((first, second, len(blob) + gap), -1),
        ((first, second, len(blob) + gap + 1), 1),
        ((first, first + gap, third), -1),
        ((first + 1, first + gap, third), 0),
        ((first, second, second + gap - 1), 1),
        ((first, second, second + gap), -1),
    ):
        place = Place(PAGES)
        data, ends = place.give(blob), place.array(np.array(bounds, np.uint32))
        # Bytes between two strings are a prefix, which is ignored.
        assert lib.wm_utf8_strings(data, len(blob), ends, 2, gap) == found, bounds


# ----------------------------------------------------------------------------------------------------- descriptors


def in_memory(data):
    """The arguments of the scan of an archive in memory: its bytes, where its directory begins, that, and a count."""
    begin = data.index(b"PK\1\2")
    return np.frombuffer(data, np.uint8), begin, data[begin:-22], 1


AMB = amb.build([amb.dense("a", normal((2,)))])
ARCHIVE = archive([Entry(b"a.npy", npy.build(npy.header_of(normal((2,))), normal((2,)).data))])
READERS = {
    "AMB": (AMB, lambda: walk(section(len(AMB) - struct.unpack_from("<Q", AMB, 20)[0], len(AMB), fd=0))[1].n_tensors),
    "an archive": (ARCHIVE, lambda: len(kernels.zip_scan(0, None, *in_memory(ARCHIVE)[1:]).data)),
    "arrays": (ARCHIVE, lambda: len(kernels.npy_scan(0, None, kernels.zip_scan(-1, *in_memory(ARCHIVE))).kinds)),
    "a pickle": (b"N.", lambda: kernels.Pickle(None, 10, 1000, fd=0, size=2).fault is None),
}


@pytest.mark.parametrize("name", READERS)
def test_descriptor_zero_is_a_file_like_any_other(tmp_path, name):
    """A program that closed its standard input gets it next."""
    data, read = READERS[name]
    path = tmp_path / "file"
    path.write_bytes(data)
    kept = os.dup(0)
    try:
        with path.open("rb") as file:
            os.dup2(file.fileno(), 0)
        assert read() == 1
    finally:
        os.dup2(kept, 0)
        os.close(kept)


# ----------------------------------------------------------------------------------------------------------- index


def test_capacities_of_an_index():
    """An index has a power of two of slots, up to 2^32, and a third more of them than strings."""
    null, top = ffi.NULL, 2**32
    good = [(0, 1), (1, 1), (3, 4), (6, 8), (0, 2**31), (0, top), (3 * 2**30, top)]
    bad = [(2, 1), (0, 0), (0, 3), (4, 4), (7, 8), (0, 2**33), (0, top + 1), (3 * 2**30 + 1, top)]
    for n, capacity in (*good, *bad):
        found = lib.wm_index_find_many(null, 0, null, n, 0, null, capacity, null, 0, null, 0, null)
        assert found == (0 if (n, capacity) in good else -1), (n, capacity)


@pytest.mark.parametrize("gap", [0, 4])
@pytest.mark.parametrize("less", [0, 1, 2])
def test_an_index_of_bounds_that_lie(gap, less):
    place = Place(PAGES)
    size = 6 + 2 * gap
    data, slots, out = place.give(bytes(size)), place.room(8, "uint32_t"), place.room(3, "int64_t")
    for bounds, good in (
        ([gap, 3 + 2 * gap, 3 + 3 * gap - less], less == 0),
        ([gap, 3 + 2 * gap, size + gap - 1 + less], less <= 1),
        ([gap + 3, 2 * gap + 3 - less, 2 * gap + 4 + gap], less == 0),
    ):
        ends = place.array(np.array(bounds, np.uint32))
        done = lib.wm_index_build(data, size, ends, 2, gap, slots, 8, ffi.NULL, ffi.NULL)
        assert (done >= 0) == good, bounds
        if not gap:
            null = ffi.NULL
            done = lib.wm_index_find_many(null, 0, null, 0, 0, slots, 8, data, size, ends, 2, out)
            assert (done == 0) == good, bounds


@pytest.mark.parametrize("gap", [0, 4])
def test_an_index_over_bounds_that_lie(gap):
    name = b"abcdef"
    wanted = fnv1a32(name)
    for begin, end, size, found in (
        (gap, gap + 6 + gap, 6, 0),
        (gap, gap + 6 + gap, 5, -1),
        (gap + 6, gap, 6, -1),
        (gap, gap + 5 + gap, 6, -1),
        (gap, gap + 7 + gap, 7, -1),
    ):
        place = Place(PAGES)
        data = place.give(bytes(gap) + (name + b"g")[:size])
        bounds = place.array(np.array([begin, end], np.uint32))
        slots = place.array(np.array([wanted & ~1 & 0xFFFFFFFF] * 2, np.uint32))
        asked = data, size + gap, bounds, 1, gap, slots, 2
        assert lib.wm_index_find(*asked, name, len(name)) == found, (begin, end, size)
        # A slot with the number of no string: that of one more than there are.
        junk = place.array(np.array([wanted | 1] * 2, np.uint32))
        assert lib.wm_index_find(*asked[:-2], junk, 2, name, len(name)) == -1


# -------------------------------------------------------------------------------------------------- columns, many rows


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1023, 1024, 1025, 2049])
def test_as_many_names_as_fit_the_stack(count):
    names = [b"%05d" % i for i in range(count)]
    shapes, spans = [(1,)] * count, [(i, i + 1) for i in range(count)]
    rows = [(name, 2, (1,), i) for i, name in enumerate(names)]
    assert check(columns_of(names, shapes, spans), count) is None
    assert records(rows, count) == 5 * count
    assert lib.wm_columns_find(columns_of(names, shapes, spans).native, count, 5 * count, names[-1], 5) == count - 1
    pairs = b"".join(struct.pack("<2H", 5, 0) + name for name in names)
    assert lib.wm_pairs_check(Place(PAGES).give(pairs), len(pairs), count, ffi.NULL) == 0
    if count > 1:
        twice = [*names[:-1], names[0]]
        fault = fault_of(columns_of(twice, shapes, spans), count)
        assert (fault.kind, fault.row, fault.expected) == ("NAME_DUPLICATE", count - 1, 0)
        fault = records([(name, 2, (1,), i) for i, name in enumerate(twice)], count)
        assert (fault.kind, fault.row, fault.expected) == ("NAME_DUPLICATE", count - 1, 0)
        fault = kernels.pairs_check(b"".join(struct.pack("<2H", 5, 0) + name for name in twice), count)
        assert (fault.kind, fault.row) == ("NAME_DUPLICATE", count - 1)


def test_sixteen_records_of_one_hash():
    packed = [RECORD.pack(fnv1a32(b"x"), 2, 1, 1, 1, 0, 0, 0, i) for i in range(16)]
    names = b"abcdefghijklmnox"
    assert kernels.records_find(b"".join(packed) + names, 16, b"x") == 15


# ------------------------------------------------------------------------------------------------------------ CNN v2


@pytest.mark.parametrize("kernel", [1, 255, 60000, 60001, 60002, 65535, 65536])
def test_weights_that_layers_call_for(kernel):
    most = 2**64 - 1
    shapes = [(channels, 1) for channels in (1, 2**32 - 1)]
    for near in range(most // kernel**2 - 1, most // kernel**2 + 3):
        inputs = next((i for i in range(1, 4000) if near % i == 0 and near // i < 2**32), 0)
        shapes += [(near // inputs, inputs)] if inputs else []
    shapes.append((2**32 - 1, 2**32 - 1))
    for channels, inputs in shapes:
        for first in (0, 1, 2):
            wanted = channels * inputs * kernel**2
            rows = [(1, 1, first, 0, 5)] * bool(first) + [(kernel, inputs, channels, 0, 2**32 - 1)]
            found = kernels.scan_layers(b"".join(struct.pack("<5I", *row) for row in rows))[1]
            assert found.needed == min(first + wanted, most), (channels, inputs, first)
            assert found.counted == 2**32 - 1 + 5 * bool(first)
