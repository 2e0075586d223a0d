"""The columns that scans fill, in C: what they are said to hold is compared with what they have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from tests.builders import bintensors
from tests.table_support import rules

from weightmap._kernels import ffi, lib

BITS = bytes((32, 16, lib.WM_BITS_DECLARED))
U32 = 2**32 - 1
TYPES = ("uint8_t", "uint32_t", "uint8_t", "uint64_t", "uint32_t", "uint64_t", "uint64_t")
# Two tensors, "a" of (2, 3) and "bc" of (4,), float32 and one after the other.
SOUND = {
    "names": [*b"abc"],
    "bounds": [0, 1, 3],
    "dtype": [0, 0],
    "dims": [2, 3, 4],
    "dim_bounds": [0, 2, 3],
    "begin": [0, 24],
    "end": [24, 40],
}


class Verdict(NamedTuple):
    code: int
    row: int
    actual: int
    expected: int


def check(n=2, n_dims=3, names_len=3, data_size=40, alignment=1, lax=0, **other):
    """Check the two tensors, with some columns replaced; None when nothing is wrong."""
    columns = SOUND | other
    arrays = [ffi.new(f"{kind}[]", values) for kind, values in zip(TYPES, columns.values(), strict=True)]
    given, fault = ffi.new("wm_columns *", (2, 3, 3, *arrays)), ffi.new("wm_fault *")
    asked = rules(BITS, max_ndim=8, alignment=alignment)
    done = lib.wm_columns_check(given, n, n_dims, names_len, 1, asked, data_size, 2**63, lax, fault)
    assert done == (0 if fault.code == lib.WM_FAULT_NONE else -1)
    return Verdict(fault.code, fault.row, fault.actual, fault.expected) if done else None


def test_a_sound_table_passes():
    """The two tensors are found in order: or the refusals below would prove nothing."""
    assert check() is None


@pytest.mark.parametrize(("name", "number"), [("n", 3), ("n_dims", 4), ("names_len", 4)])
@pytest.mark.parametrize("more", [0, U32, 2**63, 2**64 - 8])
def test_more_than_the_columns_hold_is_refused(name, number, more):
    """A table that claims more tensors, dimensions or bytes of names than there is room for is not looked at."""
    verdict = check(**{name: number + more})
    assert verdict is not None
    assert (verdict.code, verdict.expected) == (lib.WM_FAULT_COLUMN, 2)


@pytest.mark.parametrize(
    ("bounds", "row"), [([0, 4, 3], 0), ([0, 1, 4], 1), ([0, 1, 0], 1), ([2, 1, 3], 0), ([0, 1, U32], 1)]
)
def test_names_that_lie_elsewhere_are_refused(bounds, row):
    assert check(bounds=bounds) == (lib.WM_FAULT_NAME_RANGE, row, bounds[row + 1], 3)


@pytest.mark.parametrize(("bounds", "row"), [([0, 4, 3], 0), ([0, 2, 4], 1), ([0, 2, 1], 1), ([3, 2, 3], 0)])
def test_dimensions_that_lie_elsewhere_are_refused(bounds, row):
    assert check(dim_bounds=bounds) == (lib.WM_FAULT_COLUMN, row, bounds[row + 1], 3)


@pytest.mark.parametrize(
    ("begin", "end"), [([0, 2**64 - 8], [24, 8]), ([0, 32], [24, 24]), ([2**64 - 16, 24], [8, 40]), ([0, 24], [24, 39])]
)
def test_an_end_that_is_not_where_it_should_be(begin, end):
    verdict = check(begin=begin, end=end)
    assert verdict is not None
    assert verdict.code in {lib.WM_FAULT_TABLE_SIZE, lib.WM_FAULT_TABLE_RANGE}


@pytest.mark.parametrize(("begin", "end"), [(32, 24), (24, 2**63), (24, 2**64 - 1)])
def test_data_whose_size_follows_from_its_end(begin, end):
    verdict = check(dtype=[0, 2], begin=[0, begin], end=[24, end], data_size=2**62)
    if end < begin:
        assert verdict == (lib.WM_FAULT_TABLE_SIZE, 1, end - begin + 2**64, 0)
    else:
        assert verdict == (lib.WM_FAULT_TABLE_RANGE, 1, end, 2**62)
    assert check(dtype=[0, 2], begin=[0, 24], end=[24, 31], data_size=31) is None


@pytest.mark.parametrize("alignment", [3, 24, 48, 64, 2**61 + 8, 2**62 + 8])
def test_offsets_are_multiples_of_any_alignment(alignment):
    """An alignment need not be a power of two."""
    for begin in (alignment, alignment + 1, alignment + 8, 2 * alignment):
        verdict = check(
            dtype=[0, 2], begin=[0, begin], end=[24, begin + 7], data_size=2**62, alignment=alignment, lax=1
        )
        if begin + 7 > 2**62:
            assert verdict == (lib.WM_FAULT_TABLE_RANGE, 1, begin + 7, 2**62)
        elif begin % alignment:
            assert verdict == (lib.WM_FAULT_TABLE_ALIGN, 1, begin, alignment)
        else:
            assert verdict is None


def test_more_dimensions_than_a_record_has_room_for():
    fault = ffi.new("wm_fault *")
    for most, code in ((3, 0), (4, 0), (5, lib.WM_FAULT_COLUMN), (2**64 - 1, lib.WM_FAULT_COLUMN)):
        done = lib.wm_records_check(bytes(8), 8, 0, rules(BITS, max_ndim=most), 0, 0, 0, fault)
        assert (done, fault.code) == ((-1 if code else 0), code)


@pytest.mark.parametrize("sizes", [(2**32, 1, 1), (1, 2**32, 1), (1, 1, 2**32), (2**61, 0, 0), (0, 2**61, 0)])
def test_columns_too_large_are_not_placed(sizes):
    """Capacities beyond 32 bits, whose bytes could wrap around to few, get no memory."""
    memory = ffi.new("uint64_t[8]")
    assert lib.wm_columns_place(ffi.new("wm_columns *", sizes), memory, 8) == -1
    assert lib.wm_columns_place(ffi.new("wm_columns *", sizes), memory, 2**64 - 1) == -1


def test_a_scan_whose_columns_are_too_small():
    """Columns of BinTensors that could not hold all names, or have more dimensions than can be counted, stay empty."""
    data = bintensors.build({})
    header = data[8 : 8 + int.from_bytes(data[:8], "little")]
    names = np.full(len(header), 0xAA, np.uint8)
    arrays = [ffi.new(f"{kind}[]", 8) for kind in TYPES[1:]]
    for dims_cap, names_cap in ((8, len(header) - 1), (U32, len(header))):
        columns = ffi.new("wm_columns *", (8, dims_cap, names_cap, ffi.from_buffer("uint8_t[]", names), *arrays))
        out, fault = ffi.new("wm_bintensors *"), ffi.new("wm_fault *")
        assert lib.wm_bintensors_scan(header, len(header), 3, columns, out, fault) == -1
        assert (fault.code, out.n_tensors, names.tobytes()) == (lib.WM_FAULT_COLUMN, 0, b"\xaa" * len(header))


@pytest.mark.parametrize(("n", "names_len"), [(3, 3), (2, 4), (2**63, 3)])
def test_nothing_is_found_beyond_the_columns(n, names_len):
    """Looking for a name among more tensors, or more bytes of names, than there is room for finds none."""
    arrays = [ffi.new(f"{kind}[]", values) for kind, values in zip(TYPES, SOUND.values(), strict=True)]
    columns = ffi.new("wm_columns *", (2, 3, 3, *arrays))
    assert lib.wm_columns_find(columns, 2, 3, b"bc", 2) == 1
    assert lib.wm_columns_find(columns, n, names_len, b"bc", 2) == -1
