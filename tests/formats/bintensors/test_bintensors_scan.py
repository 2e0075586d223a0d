"""The scan of BinTensors headers in C, of both layouts: its bounds, its faults, its columns."""

import itertools

import pytest
from tests.bounds_support import around, refused
from tests.builders import bintensors as bt

import weightmap as wm
from weightmap.native import scans

ROW = bt.Row("a", 1, (3,), 0, 3)
every_layout = pytest.mark.parametrize("layout", bt.LAYOUTS)


@every_layout
def test_every_end_of_a_header(layout):
    wide = bt.Row("n" * 300, 1, (70000, 2**40, 0), 0, 0)
    head = bt.header([wide, ROW._replace(begin=0)], {"key": "value"}, layout)
    for size in range(len(head)):
        _, found, fault = scans.scan_bincode(head[:size], {"spec": 1, "current": 2}[layout], 9)
        assert fault.kind in {"BIN_END", "BIN_COUNT"}, size
        assert fault.at <= size
        assert found.complete == 0
        error = refused(bt.raw(head[:size]), format="bintensors")
        assert isinstance(error, wm.FormatError)
    assert scans.scan_bincode(head, {"spec": 1, "current": 2}[layout], 9)[2] is None


@every_layout
def test_counts_that_there_is_room_for(layout):
    right = bt.header([ROW], layout=layout)
    number = {"spec": 1, "current": 2}[layout]
    least = 6 if layout == "spec" else 5
    for n in around((len(right) - 2) // least, 2, most=250):
        _, _, fault = scans.scan_bincode(right[:1] + bytes([n]) + right[2:], number, 99)
        assert (fault is not None and fault.kind == "BIN_COUNT" and fault.at == 1) == (n > (len(right) - 2) // least)
    at = right.index(b"\1\1\3", 2) + 1  # the number of dimensions, behind the dtype
    for n in around(len(right) - at - 1, 1, most=250):
        _, _, fault = scans.scan_bincode(right[:at] + bytes([n]) + right[at + 1 :], number, 99)
        assert (fault.kind == "BIN_COUNT" and fault.at == at) == (n > len(right) - at - 1)


def test_the_reading_that_went_further_counts():
    alphabet = bytes([0, 1, 2, 32, 251, 255])
    for size in range(1, 7):
        for text in map(bytes, itertools.product(alphabet, repeat=size)):
            if text[0] > 1:
                continue
            both = scans.scan_bincode(text, 3, 9)[1:]
            if both[1] is None:
                continue
            alone = [scans.scan_bincode(text, layout, 9)[1:] for layout in (1, 2)]
            further = max(alone, key=lambda found: found[0].progress)
            assert (both[0].layout, both[0].progress) == (further[0].layout, further[0].progress), text
            told = [(fault.kind, fault.row, fault.at) for fault in (both[1], further[1])]
            assert told[0] == told[1], text


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_map_with_aliases_that_is_cut_off(cut):
    """A map that names a tensor twice and then ends too early is an error with ``strict=False`` as well."""
    rows = [bt.Row(f"t{i}", 1, (1,), i, i + 1) for i in range(3)]
    entries = [("x", 0), ("y", 0), ("z", bt.varint(0, 252))]
    head = bt.header(rows, index=entries)
    error = refused(bt.raw(head[:-cut], bytes(3)), strict=False, format="bintensors")
    assert isinstance(error, wm.FormatError)


def test_a_scan_of_either_layout_leaves_the_columns_of_the_one_it_names():
    header = bytes.fromhex("00010b0102000801017400") + bytes(5)  # one tensor, "t"; padded with zeros
    columns, found, fault = scans.scan_bincode(header, 3, 10)
    assert (fault, found.layout, found.complete) == (None, 1, 0)
    assert (columns.text(), columns.count, list(columns.bounds[0:2])) == (b"t", 1, [0, 1])
    assert (list(columns.dims[0:1]), columns.begin[0], columns.end[0]) == ([2], 0, 8)
