"""Functions of the C module at their bounds: what is accepted at the last value, and refused at the one beyond it."""

import errno
import itertools
import os
import struct

import numpy as np
import pytest
from tests import guard
from tests.builders import amb, normal, npy
from tests.builders.embd import fnv1a32
from tests.kernel_calls import Place
from tests.table_support import rules
from tests.zip_files import Entry, archive

from weightmap._kernels import ffi, lib
from weightmap.native import access, scans

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


def columns_of(names, shapes, spans, codes=None):
    dims = [dim for shape in shapes for dim in shape]
    return scans.Columns(
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


def test_the_largest_product_that_can_be_counted():
    assert check(columns_of([b"a"], [FACTORS], [(0, MOST)]), 100) == "TABLE_RANGE"
    assert check(columns_of([b"a"], [FACTORS], [(0, MOST)]), MOST) is None
    assert check(columns_of([b"a"], [(2**31, 2**31, 2)], [(0, MOST)]), MOST) == "TABLE_OVERFLOW"
    # By its elements it can be counted, and by their bytes it cannot.
    assert check(columns_of([b"a"], [FACTORS], [(0, MOST)], [1]), MOST) == "TABLE_OVERFLOW"


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
    return scans.records_check(index_of(rows), len(rows), rules(BITS[:3], **FOUR, **asked), data_size, MOST, lax=False)


def bounds_of(pointer, size, count):
    """The starts of names and the end of the last, which is returned too; None where there are not so many records."""
    bounds = ffi.new("uint32_t[]", count + 1)
    end = lib.wm_records_bounds(pointer, size, count, bounds)
    assert end in (-1, bounds[count])
    return None if end == -1 else list(bounds)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 33, 48])
def test_every_row_of_a_block_is_read(count):
    """Without an index the last record is found as well as the first, whatever is left over of blocks of sixteen."""
    names = [b"n%d" % i for i in range(count)]
    index = index_of([(name, 2, (0,), 0) for name in names])
    pointer = Place(PAGES).give(index)
    assert [lib.wm_records_find(pointer, len(index), count, name, len(name)) for name in names] == list(range(count))
    assert lib.wm_records_find(pointer, len(index), count, b"n", 1) == -1
    assert bounds_of(pointer, len(index), count) == [0, *itertools.accumulate(map(len, names))]
    assert bounds_of(pointer, len(index), len(index) // 32 + 1) is None
    # Without names, records are the whole input.
    index = index_of([(b"", 2, (0,), 0)] * count)
    pointer = Place(PAGES).give(index)
    assert lib.wm_records_find(pointer, len(index), count, b"n", 1) == -1
    assert lib.wm_records_find(pointer, len(index), count, b"", 0) == 0


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
    columns, out, fault = scans.Columns.scratch(100, cap, 8), ffi.new("wm_amb *"), ffi.new("wm_fault *")
    return lib.wm_amb_walk(of, columns.native, out, fault), out, fault


# ----------------------------------------------------------------------------------------------------- descriptors


def in_memory(data):
    """The arguments of the scan of an archive in memory: its bytes, where its directory begins, that, and a count."""
    begin = data.index(b"PK\1\2")
    return np.frombuffer(data, np.uint8), begin, data[begin:-22], 1


AMB = amb.build([amb.dense("a", normal((2,)))])
ARCHIVE = archive([Entry(b"a.npy", npy.build(npy.header_of(normal((2,))), normal((2,)).data))])
READERS = {
    "AMB": (AMB, lambda: walk(section(len(AMB) - struct.unpack_from("<Q", AMB, 20)[0], len(AMB), fd=0))[1].n_tensors),
    "an archive": (ARCHIVE, lambda: len(scans.zip_scan(0, None, *in_memory(ARCHIVE)[1:]).data)),
    "arrays": (ARCHIVE, lambda: len(scans.npy_scan(0, None, scans.zip_scan(-1, *in_memory(ARCHIVE))).kinds)),
    "a pickle": (b"N.", lambda: scans.Pickle(None, 10, 1000, fd=0, size=2).fault is None),
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


@pytest.mark.parametrize("system", ["posix", "nt"])
def test_the_state_of_a_file(tmp_path, monkeypatch, system):
    """It has what the system says, by C or by Python, and tells when the file is another."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    monkeypatch.setattr("weightmap.native.access.os.name", system)
    with path.open("r+b") as file:
        fd, status = file.fileno(), path.stat()
        seen = access.fstat(fd)
        assert (seen.fd, seen.mode, seen.size, seen.mtime_ns) == (fd, status.st_mode, 3, status.st_mtime_ns)
        assert (seen.device, seen.inode) == (status.st_dev, status.st_ino)
        assert seen.unchanged() == 1
        file.truncate(2)
        assert seen.unchanged() == 0
    assert seen.unchanged() == -errno.EBADF
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        access.fstat(fd)


# -------------------------------------------------------------------------------------------------- columns, many rows


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1023, 1024, 1025, 2049])
def test_as_many_names_as_fit_the_stack(count):
    names = [b"%05d" % i for i in range(count)]
    shapes, spans = [(1,)] * count, [(i, i + 1) for i in range(count)]
    rows = [(name, 2, (1,), i) for i, name in enumerate(names)]
    assert check(columns_of(names, shapes, spans), count) is None
    assert records(rows, count) == 5 * count
    table = columns_of(names, shapes, spans)
    columns = table.native
    hashes = columns.hashes = Place(PAGES).array(np.array([fnv1a32(name) for name in names], np.uint32))
    for columns.hashed in (0, 1):
        assert lib.wm_columns_find(columns, count, 5 * count, names[-1], 5) == count - 1
        assert lib.wm_columns_find(columns, count, 5 * count, b"x0000", 5) == -1
    expected = list(hashes[0:count])
    columns.hashes = hashes = Place(PAGES).room(count, "uint32_t")
    assert not lib.wm_columns_check(columns, count, count, 5 * count, 1, rules(BITS), count, MOST, 0, ffi.NULL)
    assert columns.hashed
    assert list(hashes[0:count]) == expected
    pairs = b"".join(struct.pack("<2H", 5, 0) + name for name in names)
    assert lib.wm_pairs_check(Place(PAGES).give(pairs), len(pairs), count, ffi.NULL) == 0
    if count > 1:
        twice = [*names[:-1], names[0]]
        fault = fault_of(columns_of(twice, shapes, spans), count)
        assert (fault.kind, fault.row, fault.expected) == ("NAME_DUPLICATE", count - 1, 0)
        fault = records([(name, 2, (1,), i) for i, name in enumerate(twice)], count)
        assert (fault.kind, fault.row, fault.expected) == ("NAME_DUPLICATE", count - 1, 0)
        fault = scans.pairs_check(b"".join(struct.pack("<2H", 5, 0) + name for name in twice), count)
        assert (fault.kind, fault.row) == ("NAME_DUPLICATE", count - 1)


def test_sixteen_records_of_one_hash():
    packed = [RECORD.pack(fnv1a32(b"x"), 2, 1, 1, 1, 0, 0, 0, i) for i in range(16)]
    names = b"abcdefghijklmnox"
    assert scans.records_find(b"".join(packed) + names, 16, b"x") == 15


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
            found = scans.scan_layers(b"".join(struct.pack("<5I", *row) for row in rows))[1]
            assert found.needed == min(first + wanted, most), (channels, inputs, first)
            assert found.counted == 2**32 - 1 + 5 * bool(first)
