"""The scan of a ZIP directory at its bounds: what it accepts at the last value, and refuses at the one beyond it."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.zip_files import NARROW, Entry, archive

from weightmap import kernels
from weightmap._kernels import ffi, lib
from weightmap.formats._zip import _headers, first_name

if TYPE_CHECKING:
    from pathlib import Path

DATA = bytes(8)
LOCAL = 30 + len(b"a")
WIDE = {"stored": NARROW, "size": NARROW}


def parts(data: bytes) -> tuple[int, bytes, int]:
    """Where the central directory of an archive begins, its bytes, and the number of its entries."""
    count, length, begin = struct.unpack_from("<H2I", data, len(data) - 12)
    return begin, data[begin : begin + length], count


def scan(entries: list[Entry], cut: int = 0) -> tuple[str, int, int, int] | None:
    """What is wrong with an archive, whose directory is cut short by so many bytes; None when nothing is."""
    data = archive(entries)
    begin, central, count = parts(data)
    found = kernels.zip_scan(-1, np.frombuffer(data, np.uint8), begin, central[: len(central) - cut], count)
    return (found.kind, found.at, found.actual, found.expected) if isinstance(found, kernels.Fault) else None


def extra(kind: int, size: int, data: bytes) -> bytes:
    """An extra field."""
    return struct.pack("<2H", kind, size) + data


EIGHT = struct.pack("<Q", 8)
HEADER = ("ZIP_HEADER", 0, 0, 0)
DIRECTORY = ("ZIP_DIRECTORY", 0, 0, 0)
EXTRAS: dict[str, tuple[dict[str, int], bytes, Any]] = {
    "both sizes": (WIDE, extra(1, 16, EIGHT * 2), None),
    "one more byte": (WIDE, extra(1, 17, EIGHT * 2 + b"\0"), None),
    "behind another field": (WIDE, extra(9, 3, b"abc") + extra(1, 16, EIGHT * 2), None),
    "behind an empty field": (WIDE, extra(9, 0, b"") + extra(1, 16, EIGHT * 2), None),
    "one byte less": (WIDE, extra(1, 15, EIGHT * 2)[:-1], HEADER),
    "a field that is longer than all": (WIDE, extra(1, 16, EIGHT * 2)[:-1], HEADER),
    "the size alone": ({"size": NARROW}, extra(1, 8, EIGHT), None),
    "the stored size alone": ({"stored": NARROW}, extra(1, 8, EIGHT), None),
    "another stored size": ({"stored": NARROW}, extra(1, 8, struct.pack("<Q", 9)), ("ZIP_HEADER", 0, 1, 0)),
    "one number of two": (WIDE, extra(1, 8, EIGHT), HEADER),
    "another field": (WIDE, extra(9, 16, EIGHT * 2), HEADER),
    "an empty field": (WIDE, extra(1, 0, b""), HEADER),
    "three bytes": (WIDE, extra(1, 16, b"")[:3], HEADER),
    "one byte": (WIDE, b"\1", HEADER),
    "nothing": (WIDE, b"", HEADER),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_sizes_that_stand_in_an_extra_field_of_the_header(name: str, tmp_path: Path) -> None:
    """Exactly the numbers that are needed are read, and none past the field; so in memory and in a file."""
    local, field, expected = EXTRAS[name]
    entries = [Entry(b"a", DATA, local=local, extra=field)]
    assert scan(entries) == expected
    data = archive(entries)
    begin, central, count = parts(data)
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    with path.open("rb") as file:
        found = kernels.zip_scan(file.fileno(), None, begin, central, count)
    assert (found.kind if isinstance(found, kernels.Fault) else None) == (expected and expected[0])


@pytest.mark.parametrize("size", [28, 27, 3, 1, 0])
def test_sizes_that_stand_in_an_extra_field_of_the_directory(size: int) -> None:
    """Where the directory says that its extra field is shorter, the rest is a comment, and is not read as numbers."""
    entry = Entry(b"a", DATA, wide=True, central={"extra_len": size, "comment_len": 28 - size})
    assert scan([Entry(b"", b""), entry]) == (None if size == 28 else ("ZIP_DIRECTORY", 46, 0, 0))


def test_an_entry_reaches_to_the_directory_and_no_further() -> None:
    """An entry may end where the directory begins; not one byte behind it, by its name, extra field or data."""
    end = LOCAL + 8
    for size, found in ((8, None), (9, ("ZIP_RANGE", 0, end + 1, end))):
        said = {"stored": size, "size": size}
        assert scan([Entry(b"a", DATA, local=said, central=said)]) == found
    for size, found in ((8, None), (9, ("ZIP_RANGE", 0, end + 1, end))):
        # The bytes of an empty entry are its extra field, by the header.
        entry = Entry(b"a", DATA, local={"extra_len": size, "stored": 0, "size": 0}, central={"stored": 0, "size": 0})
        assert scan([entry]) == found
    for offset, found in ((0, None), (1, ("ZIP_RANGE", 0, 1, 31)), (31, ("ZIP_RANGE", 0, 31, 31))):
        assert scan([Entry(b"a", b"", central={"offset": offset})]) == found
    for offset in (32, 77, NARROW - 1):
        assert scan([Entry(b"a", b"", central={"offset": offset})]) == ("ZIP_RANGE", 0, offset, 31)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_an_entry_that_ends_past_64_bits(beyond: int) -> None:
    """The end that the fault gives does not wrap around."""
    data = bytearray(archive([Entry(b"a", DATA, wide=True)]))
    begin, central, _ = parts(bytes(data))
    at_data = LOCAL + 20
    stored = 2**64 - 1 - at_data + beyond
    at = begin + 46 + 1 + 12
    assert data[at : at + 8] == EIGHT
    data[at : at + 8] = struct.pack("<Q", stored)
    central = bytes(data[begin : begin + len(central)])
    found = kernels.zip_scan(-1, np.frombuffer(bytes(data), np.uint8), begin, central, 1)
    assert isinstance(found, kernels.Fault)
    assert (found.kind, found.actual) == ("ZIP_RANGE", min(2**64 - 1, at_data + stored))


def test_a_record_of_the_directory_needs_46_bytes() -> None:
    """A record without a name is 46 bytes, and one byte less is no record."""
    entries = [Entry(b"a", DATA), Entry(b"", b"")]
    assert scan(entries) is None
    assert scan(entries, cut=1) == ("ZIP_DIRECTORY", 47, 0, 0)


def test_a_name_that_ends_with_the_directory() -> None:
    """A name may end where the directory does, and not one byte behind it."""
    assert scan([Entry(b"a", DATA)], cut=1) == ("ZIP_DIRECTORY", 0, 1, 0)


@pytest.mark.parametrize("there", [0, 30])
def test_a_file_that_ends_in_a_header(tmp_path: Path, there: int) -> None:
    """A file that became shorter than its directory says is a fault that says where it ends."""
    data = archive([Entry(b"a", DATA)])
    path = tmp_path / "a.zip"
    path.write_bytes(data[:there])
    with path.open("rb") as file:
        found = kernels.zip_scan(file.fileno(), None, *parts(data))
    assert isinstance(found, kernels.Fault)
    assert (found.kind, found.at, found.actual, found.expected) == ("ZIP_READ", there, 0, LOCAL)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_headers_that_a_function_reads(step: int) -> None:
    """A function may return a part of what is asked for; what it raises is raised, and is an error of I/O in C."""
    data = archive([Entry(b"a", DATA), Entry(b"b", DATA)])
    begin, central, count = parts(data)
    found = kernels.zip_scan(-1, kernels.Reader(lambda at, n: data[at : at + min(n, step)]), begin, central, count)
    assert isinstance(found, kernels.ZipEntries)
    assert found.data.tolist() == [LOCAL, LOCAL + 8 + LOCAL]
    ended = kernels.zip_scan(-1, kernels.Reader(lambda at, n: data[at : at + n][: 40 - at]), begin, central, count)
    assert isinstance(ended, kernels.Fault)
    assert (ended.kind, ended.at, ended.actual) == ("ZIP_READ", 40, 0)
    failing = kernels.Reader(lambda _at, _n: 1 // 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        kernels.zip_scan(-1, failing, begin, central, count)
    columns, _keep = kernels.ZipEntries(count, len(central)).native()
    source, fault = ffi.new("wm_zip_source *", (-1, ffi.NULL, begin, *failing.hook)), ffi.new("wm_fault *")
    ffi.errno = 0
    assert lib.wm_zip_scan(source, ffi.from_buffer("uint8_t[]", central), len(central), columns, fault) == -1
    assert (fault.code, fault.actual) == (kernels.faults()["ZIP_READ"], errno.EIO)


def order_of(
    places: list[tuple[int, int, int]], end: int, order: list[int] | None = None
) -> tuple[str, int, int, int] | None:
    """What is wrong with entries, of each its begin, its end and whether a descriptor may follow."""
    entries = kernels.ZipEntries(len(places), 1)
    for i, (begin, stop, later) in enumerate(places):
        entries.offset[i], entries.data[i], entries.stored[i], entries.later[i] = begin, begin, stop - begin, later
    columns, _keep = entries.native()
    fault = ffi.new("wm_fault *")
    given = ffi.NULL if order is None else ffi.new("uint64_t[]", order)
    if not lib.wm_zip_order(columns, given, end, fault):
        assert entries.check_order(end) is None
        return None
    found = entries.check_order(end)
    assert found is not None
    assert found.code == fault.code
    return found.kind, found.row, found.at, found.actual


ORDERS: dict[str, tuple[Any, Any]] = {
    "nothing": (([], 0), None),
    "nothing, and a byte": (([], 1), ("ZIP_GAP", 0, 0, 1)),
    "two": (([(0, 40, 0), (40, 80, 0)], 80), None),
    "in another order": (([(40, 80, 0), (0, 40, 0)], 80, [1, 0]), None),
    "a byte too many": (([(0, 41, 0), (40, 80, 0)], 80), ("ZIP_OVERLAP", 1, 40, 40)),
    "a byte into the directory": (([(0, 40, 0)], 39), ("ZIP_OVERLAP", 1, 39, 39)),
    "a byte between": (([(0, 40, 0), (41, 80, 0)], 80), ("ZIP_GAP", 0, 40, 1)),
    "two gaps": (([(0, 40, 0), (41, 80, 0)], 82), ("ZIP_GAP", 0, 40, 1)),
    "a gap, and an overlap": (([(1, 40, 0), (39, 80, 0)], 80), ("ZIP_OVERLAP", 1, 39, 39)),
    "something before the first": (([(12, 40, 1)], 40), ("ZIP_GAP", 0, 0, 12)),
    "twelve bytes, and no flag": (([(0, 40, 0), (52, 80, 1)], 80), ("ZIP_GAP", 0, 40, 12)),
    "the flag of the next": (([(0, 40, 0), (40, 80, 1)], 92), None),
    **{
        f"{size} bytes": (
            ([(0, 40, 1), (40 + size, 80, 0)], 80),
            None if size in (0, 12, 16, 20, 24) else ("ZIP_GAP", 0, 40, size),
        )
        for size in (0, 4, 8, 11, 12, 13, 16, 20, 24, 25, 28)
    },
}


@pytest.mark.parametrize("name", ORDERS)
def test_entries_one_behind_the_other(name: str) -> None:
    """Entries follow one another; behind one with the flag there may be a descriptor of four sizes."""
    given, found = ORDERS[name]
    assert order_of(*given) == found


def test_the_first_name() -> None:
    """A header of 30 bytes has no name yet; one byte less is no header."""
    head = archive([Entry(b"ab", DATA)])
    assert first_name(head) == b"ab"
    assert first_name(head[:30]) == b""
    assert first_name(head[:29]) is None


def test_where_headers_are_expected() -> None:
    """A store is asked for each header and 512 bytes more; a directory that is cut off has fewer."""
    data = archive([Entry(b"ab", DATA), Entry(b"c", DATA, wide=True), Entry(b"", b"")])
    begin, central, _ = parts(data)
    second, third = 40, 40 + 31 + 20 + 8
    assert begin == third + 30
    expected = [(0, 2 + 512), (second, second + 1 + 512), (third, third + 512)]
    assert list(_headers(memoryview(central))) == expected
    assert list(_headers(memoryview(central[:-1]))) == expected[:2]


def test_a_directory_of_4_gib() -> None:
    """Names have positions of 32 bits: a longer directory is refused before it is looked at."""
    source, fault = ffi.new("wm_zip_source *", (-1, ffi.NULL, 0)), ffi.new("wm_fault *")
    entries = ffi.new("wm_zip_entries *")
    entries.bounds = bounds = ffi.new("uint32_t[]", 1)
    for length, kind in ((2**32 - 1, "ZIP_DIRECTORY"), (2**32, "COLUMN")):
        assert lib.wm_zip_scan(source, ffi.NULL, length, entries, fault) == -1
        assert fault.code == kernels.faults()[kind]
    assert bounds[0] == 0


def test_a_file_whose_descriptor_is_0(tmp_path: Path) -> None:
    """Descriptor 0 is a file like any other: a program that closed its standard input gets it next."""
    data = archive([Entry(b"a", DATA)])
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    before = os.dup(0)
    try:
        with path.open("rb") as file:
            os.dup2(file.fileno(), 0)
            found = kernels.zip_scan(0, None, *parts(data))
    finally:
        os.dup2(before, 0)
        os.close(before)
    assert isinstance(found, kernels.ZipEntries)
    assert found.data.tolist() == [LOCAL]
