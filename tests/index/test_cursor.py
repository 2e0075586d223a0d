"""The cursor over a header: its values, and its errors for fields that do not fit."""

import struct

import pytest

import weightmap as wm
from weightmap.formats._cursor import Cursor
from weightmap.io.open_source import from_path
from weightmap.options import Limits

KINDS = {
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "u64": "Q",
    "i64": "q",
    "f32": "f",
    "f64": "d",
}
HEADER = (
    b"HEAD"
    + struct.pack("<BIQ", 7, 2, 5)
    + "w\u00f6rt".encode()
    + struct.pack("<3i", 1, -2, 3)
    + struct.pack("<Hd", 3, 0.5)
)


def by_memory(data, _folder):
    return Cursor(data, whole="header")


def by_windows(data, folder):
    """A cursor over a file of which the first three bytes were read."""
    path = folder / "header"
    path.write_bytes(data)
    return Cursor(data[:3], from_path(str(path), "mmap"), Limits(), whole="header")


def by_windows_without_limits(data, folder):
    path = folder / "header"
    path.write_bytes(data)
    return Cursor(b"", from_path(str(path), "mmap"), whole="header")


@pytest.fixture(params=[by_memory, by_windows, by_windows_without_limits])
def cursor_of(request, tmp_path):
    return lambda data: request.param(data, tmp_path)


def go_through(cursor):
    found = [cursor.take(4, "magic", "the magic"), cursor.number("u8", "kind", "its kind")]
    found.append(cursor.count("u32", 4, "count", "number of things"))
    found.append(cursor.text("u64", "name", "the name"))
    found.append(cursor.array("<i4", 3, "values", "the values").tolist())
    cursor.skip(2)
    return [*found, cursor.number("f64", "scale", "the scale"), cursor.left]


def test_fields_come_one_after_another(cursor_of):
    """Numbers, counts, strings and arrays are returned as they lie there."""
    assert go_through(cursor_of(HEADER)) == [b"HEAD", 7, 2, "w\u00f6rt", [1, -2, 3], 0.5, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_every_kind(cursor_of, kind):
    """Each kind is little-endian, and as wide as it says."""
    data = bytes(range(200, 200 + struct.calcsize(KINDS[kind])))
    assert cursor_of(data).number(kind, "n", "n") == struct.unpack(f"<{KINDS[kind]}", data)[0]


@pytest.mark.parametrize("length", range(len(HEADER)))
def test_a_field_that_does_not_fit(cursor_of, length):
    if 33 <= length < 35:  # within what is stepped over
        return
    with pytest.raises(wm.TruncatedError) as caught:
        go_through(cursor_of(HEADER[:length]))
    assert caught.value.field in ("magic", "kind", "count", "name", "values", "scale")
    if "ends within" in str(caught.value):
        assert str(caught.value).startswith("the header ends within the") or caught.value.field == "kind"
        assert caught.value.offset == length


def test_a_count_is_bounded_by_what_follows(cursor_of):
    """A number of things is as large as there is room for them, or an error; and never above a limit."""
    data = struct.pack("<Q", 2) + bytes(24)
    assert cursor_of(data).count("u64", 12, "count", "number of things") == 2
    with pytest.raises(
        wm.TruncatedError, match="number of things is 2, expected at most 1, given the bytes that follow"
    ):
        cursor_of(data).count("u64", 13, "count", "number of things")
    with pytest.raises(wm.TruncatedError):
        cursor_of(struct.pack("<Q", 2**64 - 1)).array("<u8", 2**61, "values", "the values")


def test_limits_come_before_reading(tmp_path):
    path = tmp_path / "header"
    path.write_bytes(struct.pack("<Q", 5) + bytes(100))
    source = from_path(str(path), "mmap")
    with pytest.raises(wm.LimitError, match="size of the name is 100"):
        Cursor(b"", source, Limits(max_header_bytes=99)).take(100, "name", "the name")
    with pytest.raises(wm.LimitError, match="number of tensors is 5"):
        Cursor(b"", source, Limits(max_tensors=4)).count("u64", 1, "count", "number of tensors", "max_tensors")


def test_text_is_strict_utf8(cursor_of):
    with pytest.raises(wm.FormatError, match="the name is not UTF-8") as caught:
        cursor_of(b"\4\0ab\xff\xfe").text("u16", "name", "the name")
    assert caught.value.offset == 4
