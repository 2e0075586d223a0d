"""The scan of a ZIP directory at its bounds: what it accepts at the last value, and refuses at the one beyond it."""

import errno
import struct

import numpy as np
import pytest
from tests.zip_files import NARROW, Entry, archive

from weightmap._kernels import ffi, lib
from weightmap.formats._recognition import first_name
from weightmap.formats._zip import _headers
from weightmap.native import access, files, scans

DATA = bytes(8)
LOCAL = 30 + len(b"a")
WIDE = {"stored": NARROW, "size": NARROW}


def parts(data):
    """Where the central directory of an archive begins, its bytes, and the number of its entries."""
    count, length, begin = struct.unpack_from("<H2I", data, len(data) - 12)
    return begin, data[begin : begin + length], count


def scan(entries, cut=0):
    """What is wrong with an archive, whose directory is cut short by so many bytes; None when nothing is."""
    data = archive(entries)
    begin, central, count = parts(data)
    found = scans.zip_scan(-1, np.frombuffer(data, np.uint8), begin, central[: len(central) - cut], count)
    return (found.kind, found.at, found.actual, found.expected) if isinstance(found, access.Fault) else None


def extra(kind, size, data):
    return struct.pack("<2H", kind, size) + data


EIGHT = struct.pack("<Q", 8)
HEADER = ("ZIP_HEADER", 0, 0, 0)
EXTRAS = {
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
def test_sizes_that_stand_in_an_extra_field_of_the_header(name, tmp_path):
    """Exactly the numbers that are needed are read, and none past the field; so in memory and in a file."""
    local, field, expected = EXTRAS[name]
    entries = [Entry(b"a", DATA, local=local, extra=field)]
    assert scan(entries) == expected
    data = archive(entries)
    begin, central, count = parts(data)
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    with path.open("rb") as file:
        found = scans.zip_scan(file.fileno(), None, begin, central, count)
    assert (found.kind if isinstance(found, access.Fault) else None) == (expected and expected[0])


@pytest.mark.parametrize("size", [28, 27, 3, 1, 0])
def test_sizes_that_stand_in_an_extra_field_of_the_directory(size):
    entry = Entry(b"a", DATA, wide=True, central={"extra_len": size, "comment_len": 28 - size})
    assert scan([Entry(b"", b""), entry]) == (None if size == 28 else ("ZIP_DIRECTORY", 46, 0, 0))


def test_an_entry_reaches_to_the_directory_and_no_further():
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
def test_an_entry_that_ends_past_64_bits(beyond):
    data = bytearray(archive([Entry(b"a", DATA, wide=True)]))
    begin, central, _ = parts(bytes(data))
    at_data = LOCAL + 20
    stored = 2**64 - 1 - at_data + beyond
    at = begin + 46 + 1 + 12
    assert data[at : at + 8] == EIGHT
    data[at : at + 8] = struct.pack("<Q", stored)
    central = bytes(data[begin : begin + len(central)])
    found = scans.zip_scan(-1, np.frombuffer(bytes(data), np.uint8), begin, central, 1)
    assert (found.kind, found.actual) == ("ZIP_RANGE", min(2**64 - 1, at_data + stored))


def test_a_directory_that_ends_early():
    """A record needs 46 bytes, and a name as many as it says."""
    entries = [Entry(b"a", DATA), Entry(b"", b"")]
    assert scan(entries) is None
    assert scan(entries, cut=1) == ("ZIP_DIRECTORY", 47, 0, 0)
    assert scan([Entry(b"a", DATA)], cut=1) == ("ZIP_DIRECTORY", 0, 1, 0)


@pytest.mark.parametrize("there", [0, 30])
def test_a_file_that_ends_in_a_header(tmp_path, there):
    """A file that became shorter than its directory says is a fault that says where it ends."""
    data = archive([Entry(b"a", DATA)])
    path = tmp_path / "a.zip"
    path.write_bytes(data[:there])
    with path.open("rb") as file:
        found = scans.zip_scan(file.fileno(), None, *parts(data))
    assert (found.kind, found.at, found.actual, found.expected) == ("ZIP_READ", there, 0, LOCAL)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_headers_that_a_function_reads(step):
    data = archive([Entry(b"a", DATA), Entry(b"b", DATA)])
    begin, central, count = parts(data)
    found = scans.zip_scan(-1, files.Reader(lambda at, n: data[at : at + min(n, step)]), begin, central, count)
    assert found.data.tolist() == [LOCAL, LOCAL + 8 + LOCAL]
    ended = scans.zip_scan(-1, files.Reader(lambda at, n: data[at : at + n][: 40 - at]), begin, central, count)
    assert (ended.kind, ended.at, ended.actual) == ("ZIP_READ", 40, 0)
    failing = files.Reader(lambda _at, _n: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        scans.zip_scan(-1, failing, begin, central, count)
    columns, _keep = scans.ZipEntries(count, len(central)).native()
    source, fault = ffi.new("wm_zip_source *", (-1, ffi.NULL, begin, *failing.hook)), ffi.new("wm_fault *")
    ffi.errno = 0
    assert lib.wm_zip_scan(source, ffi.from_buffer("uint8_t[]", central), len(central), columns, fault) == -1
    assert (fault.code, fault.actual) == (access.faults()["ZIP_READ"], errno.EIO)


def test_the_first_name():
    head = archive([Entry(b"ab", DATA)])
    assert first_name(head) == b"ab"
    assert first_name(head[:30]) == b""
    assert first_name(head[:29]) is None


def test_where_headers_are_expected():
    """A store is asked for each header and 512 bytes more; a directory that is cut off has fewer."""
    data = archive([Entry(b"ab", DATA), Entry(b"c", DATA, wide=True), Entry(b"", b"")])
    begin, central, _ = parts(data)
    second, third = 40, 40 + 31 + 20 + 8
    assert begin == third + 30
    expected = [(0, 2 + 512), (second, second + 1 + 512), (third, third + 512)]
    assert list(_headers(memoryview(central))) == expected
    assert list(_headers(memoryview(central[:-1]))) == expected[:2]
