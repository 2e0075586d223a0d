"""Bounds of safetensors, BinTensors and CNN v2, exactly, and of rows of tables when they are used."""

from __future__ import annotations

import itertools
import json
import struct
from typing import Any

import numpy as np
import pytest
from tests.bounds_support import around, error_of, refused, warnings_of
from tests.builders import bintensors as bt
from tests.builders import cnn_v2, embd, noise
from tests.builders import safetensors as st
from tests.formats.safetensors.test_safetensors_scan import ScanError, scan

import weightmap as wm
from weightmap import kernels
from weightmap._kernels import ffi, lib
from weightmap.dtypes import DTYPES
from weightmap.formats import FORMATS
from weightmap.index import Rules
from weightmap.index.columns import RecordTable
from weightmap.io.opening import from_buffer
from weightmap.options import Options

SCALAR = '{"dtype":"U8","shape":[],"data_offsets":[0,1]}'


# ----------------------------------------------------------------------------------------- JSON, letter by letter


def named(spelling: str) -> list[str]:
    """The names in a header with one tensor whose name is spelled like that."""
    return [name for name, *_ in scan(f'{{"{spelling}":{SCALAR}}}'.encode())[0]]


@pytest.mark.parametrize(
    "code",
    [0, 0x1F, 0x20, 0x22, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x103FF, 0x10400, 0x10FFFF],
)
def test_characters_at_the_ends_of_their_ranges(code):
    """The first and the last character of each length of UTF-8 are read, spelled by escapes, and plainly."""
    units = chr(code).encode("utf-16-be")
    escaped = "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2))
    assert named(escaped) == [chr(code)]
    if code >= 0x20 and chr(code) not in '"\\':
        assert named(chr(code)) == [chr(code)]


@pytest.mark.parametrize(
    ("first", "second", "good"),
    [
        (0xD800, 0xDC00, True),
        (0xDBFF, 0xDFFF, True),
        (0xD800, 0xDBFF, False),
        (0xD800, 0xE000, False),
        (0xDC00, 0xDC00, False),
        (0xDFFF, 0xDFFF, False),
        (0xDBFF, 0x0041, False),
    ],
)
def test_pairs_of_surrogates(first, second, good):
    """A high surrogate and a low one are a character; at either end of their ranges, anything else is an error."""
    spelling = f"\\u{first:04x}\\u{second:04x}"
    if good:
        expected = struct.pack(">2H", first, second).decode("utf-16-be")
        assert named(spelling) == [expected]
    else:
        with pytest.raises(ScanError) as caught:
            named(spelling)
        assert caught.value.args == ("SURROGATE", 0, 1)


@pytest.mark.parametrize("code", [0x1E, 0x1F, 0x20, 0x21, 0x7E, 0x7F])
def test_control_characters_near_the_end(code):
    """A string has no raw control character, also where fewer than eight bytes are left: a space is none."""
    text = b'{"__metadata__":{"a":"%b"}}' % bytes([code])
    if code < 0x20:
        with pytest.raises(ScanError, match="SYNTAX"):
            scan(text)
    else:
        assert scan(text)[0] == []


@pytest.mark.parametrize("letter", "/09:@AFG`afg")
def test_hexadecimal_digits(letter):
    """An escape has four of them: 0 to 9, A to F, a to f, and nothing next to these."""
    for place in range(4):
        digits = ["0", "0", "4", "1"]
        digits[place] = letter
        spelling = "".join(digits)
        if letter in "/:@G`g":
            with pytest.raises(ScanError, match="SYNTAX"):
                named(f"\\u{spelling}")
        else:
            assert named(f"\\u{spelling}") == [chr(int(spelling, 16))]


@pytest.mark.parametrize(
    ("text", "kind", "at"),
    [
        ('{"\\', "SYNTAX", 2),
        ('{"\\n', "SYNTAX", 4),  # the escape is whole, and the string is not
        ('{"\\u004', "SYNTAX", 2),
        ('{"\\u0041', "SYNTAX", 8),
        ('{"\\ud800', "SURROGATE", 1),
        ('{"\\ud800\\udc0', "SURROGATE", 1),
        ('{"\\ud800\\udc00', "SYNTAX", 14),
        ('{"abcdefg', "SYNTAX", 9),
        ('{"abcdefgh', "SYNTAX", 10),
        ('{"é', "SYNTAX", 4),
        ('{"__metadata__":{"a":1', "SYNTAX", 22),
        ('{"__metadata__":{"a":12', "SYNTAX", 23),
        ('{"__metadata__":{"a":-', "SYNTAX", 22),
        ('{"__metadata__":{"a":1.', "SYNTAX", 23),
        ('{"__metadata__":{"a":1.5', "SYNTAX", 24),
        ('{"__metadata__":{"a":1e', "SYNTAX", 23),
        ('{"__metadata__":{"a":1e+', "SYNTAX", 24),
        ('{"__metadata__":{"a":1e+5', "SYNTAX", 25),
        ('{"__metadata__":{"a":tru', "SYNTAX", 21),
        ('{"__metadata__":{"a":true', "SYNTAX", 25),
        ('{"__metadata__":{"a":"b"', "SYNTAX", 24),
        ('{"__metadata__":{', "SYNTAX", 17),
        ('{"a":{"shape":[1', "SYNTAX", 16),
        ('{"a":{"shape":[1.0]', "NUMBER", 15),
        ('{"a":{"shape":[1e2]', "NUMBER", 15),
        ('{"a":{"shape":[1e', "NUMBER", 15),
        ('{"a":{"shape":[1.', "NUMBER", 15),
        ('{"a":{"shape":[1E2]', "NUMBER", 15),
        ('{"a":{"shape":[1d2]', "SYNTAX", 16),
        ('{"a":{"shape":[-1]', "NUMBER", 15),
        ('{"a":{"shape":[', "SYNTAX", 15),
        ('{"a":{"dtype":', "SYNTAX", 14),
        ('{"a":{"shape":', "SYNTAX", 14),
        ('{"a":{"data_offsets":', "SYNTAX", 21),
        ('{"a":{"dtype":"U8"', "SYNTAX", 18),
        ('{"a":{"shape":[99999999999999999999', "NUMBER", 15),
        ('{"a" ', "SYNTAX", 5),
        ('{"a": ', "SYNTAX", 6),
        ("{", "SYNTAX", 1),
    ],
)
def test_where_a_text_that_is_cut_off_ends(text, kind, at):
    """A text that ends too early is a fault where it ends, or where that begins which is not whole."""
    with pytest.raises(ScanError) as caught:
        scan(text.encode())
    assert caught.value.args == (kind, 0, at)


@pytest.mark.parametrize("padding", ["", " " * 7, " " * 30])
@pytest.mark.parametrize(
    ("digits", "good"),
    [
        ("0", True),
        ("00", False),
        ("01", False),
        ("9" * 18, True),
        ("9" * 19, True),
        ("1" + "0" * 19, True),
        ("18446744073709551614", True),
        ("18446744073709551615", True),
        ("18446744073709551616", False),
        ("18446744073709551620", False),
        ("184467440737095516150", False),
        ("0" * 20, False),
    ],
)
def test_the_largest_number(digits, good, padding):
    """A number goes up to 2^64 - 1 and has no zeros in front, however many digits follow, and what follows them."""
    text = f'{{"a":{{"dtype":"U8","data_offsets":[0,1],"shape":[{digits}]}}{padding}}}'
    if good:
        [(_, _, shape, *_)], _ = scan(text.encode())
        assert tuple(shape) == (int(digits),)
    else:
        with pytest.raises(ScanError, match="NUMBER"):
            scan(text.encode())


@pytest.mark.parametrize("dtype", ["U8", "F16", "BOOL", "F8_E4M3", "SIXTEEN_LETTERS_"])
def test_a_dtype_like_the_one_before_in_all_but_a_bit(dtype):
    """The dtype of a tensor is compared with that of the one before, to the last bit of the last letter."""
    first = f'"a":{{"dtype":"{dtype}","shape":[],"data_offsets":[0,1]}}'.encode()
    spelled = f'"{dtype}"'.encode()
    for byte in range(len(spelled)):
        for bit in range(8):
            other = bytearray(spelled)
            other[byte] ^= 1 << bit
            text = b"{" + first + b',"b":{"dtype":' + bytes(other) + b',"shape":[],"data_offsets":[1,2]}}' + b" " * 9
            try:
                codes = [code for _, code, *_ in scan(text)[0]]
            except ScanError:
                continue
            # A changed bit can give another valid name, as F16 of F14, or U8 of itself.
            assert bytes(other[1:-1]).decode() in ("I8", "F", "F16", "I16", "I32", "I64", "BF16")
            assert codes[0] != codes[1]


def shorter(entries: dict[str, tuple[int, int]]) -> list[str]:
    """The names of bytes in the order in which a file with these offsets has them."""
    head = {name: st.entry("U8", [end - begin], begin, end) for name, (begin, end) in entries.items()}
    size = max(end for _, end in entries.values())
    with wm.open(memoryview(st.raw(json.dumps(head).encode(), bytes(size)))) as f:
        return list(f)


@pytest.mark.parametrize(
    ("entries", "order"),
    [
        ({"a": (1, 2), "b": (0, 1)}, ["b", "a"]),
        ({"a": (0, 4), "b": (0, 0)}, ["b", "a"]),
        ({"a": (0, 1), "b": (0, 0)}, ["b", "a"]),
        ({"a": (0, 0), "b": (0, 1)}, ["a", "b"]),
        ({"a": (0, 0), "b": (0, 0), "c": (0, 2)}, ["a", "b", "c"]),
        ({"c": (2, 3), "a": (0, 1), "b": (1, 2)}, ["a", "b", "c"]),
        ({"a": (0, 1), "c": (2, 3), "b": (1, 2)}, ["a", "b", "c"]),
    ],
)
def test_tensors_stand_in_the_order_of_their_data(entries, order):
    """A header may list tensors in any order; theirs is by begin and then by end, where a byte makes the difference."""
    assert shorter(entries) == order


@pytest.mark.parametrize("begin", [0, 1, 2, 3])
def test_offsets_that_run_backwards(begin):
    """A tensor may end where it begins, and not a byte before."""
    head = st.raw(
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[%d,2]}}'
        % begin,
        bytes(2),
    )
    error = error_of(head)
    if begin == 2:
        assert error is None
    elif begin > 2:
        assert error is not None
        assert (error.field, error.actual) == ("data_offsets", [3, 2])
        assert "'b'" in str(error)
    else:
        assert type(error) is wm.LayoutError


def test_metadata_that_is_there_and_empty():
    """A file with empty metadata differs from one with none, in safetensors and in BinTensors."""
    for format, build in (("safetensors", st.build), ("bintensors", bt.build)):
        for metadata in (None, {}, {"a": "b"}):
            source = from_buffer(build({"a": noise("uint8", (1,))}, metadata), "mmap")
            content = FORMATS[format].parse(source, bytes(source.octets[:4096]), Options(wm.Limits()))
            assert content.has_metadata == (metadata is not None)
            assert content.load_metadata() == (metadata or {})


@pytest.mark.parametrize("text", [b"{}", b"\0\0"])
def test_the_smallest_files(text):
    """The smallest files of safetensors and BinTensors have ten bytes; what is shorter is recognised as neither."""
    data = struct.pack("<Q", 2) + text
    with wm.open(memoryview(data)) as f:
        assert (len(f), f.format) == (0, "safetensors" if text == b"{}" else "bintensors")
    assert type(refused(data[:9])) is wm.UnknownFormatError
    if text[0] == 0:  # behind the length there is one of two tags
        assert type(refused(struct.pack("<Q", 2) + b"\2\0")) is wm.UnknownFormatError
        assert type(refused(struct.pack("<Q", 2) + b"\1\0")) is not wm.UnknownFormatError
    # A header that is longer, and not there.
    assert type(refused(struct.pack("<Q", 3) + text)) is wm.TruncatedError
    for length in (0, 1):
        assert type(refused(struct.pack("<Q", length) + text + bytes(20))) is wm.UnknownFormatError


@pytest.mark.parametrize("size", range(4086, 4092))
def test_headers_as_long_as_the_first_read(put, size):
    """A header that ends with the first page, or a byte before or behind it, is read whole."""
    for head in (st.header_of({"a": noise("uint8", (3,))})[0], None):
        if head is None:
            text = bt.header([bt.Row("n" * (size - 300), 1, (3,), 0, 3)], {"k": "v"})
            text = bt.header([bt.Row("n" * (size - 300), 1, (3,), 0, 3)], {"k": "v" * (size - len(text) - 1)})
        else:
            text = json.dumps(head | {"__metadata__": {"k": ""}}).encode()
            text = json.dumps(head | {"__metadata__": {"k": "v" * (size - len(text))}}).encode()
        assert len(text) == size
        with wm.open(put(st.raw(text, b"abc"))) as f:
            assert [np.asarray(f[name]).tobytes() for name in f] == [b"abc"]
            assert f.metadata["k"].count("v") in range(200, size)


# --------------------------------------------------------------------------------------------------------- BinTensors
ROW = bt.Row("a", 1, (3,), 0, 3)


def header(row: bt.Row = ROW, layout: str = "current", **options: Any) -> bytes:
    """The header of a file with one tensor of three bytes."""
    return bt.header([row], layout=layout, **options)


@pytest.mark.parametrize("layout", bt.LAYOUTS)
@pytest.mark.parametrize("spaces", range(10))
def test_padding_of_a_header(layout, spaces):
    """A header is padded with up to seven spaces."""
    head = header(layout=layout) + b" " * spaces
    error = error_of(bt.raw(head, bytes(3)))
    assert (error is None) == (spaces < 8)
    assert error is None or error.field == "padding"
    _, found, fault = kernels.scan_bincode(head, {"spec": 1, "current": 2}[layout], 9)
    assert fault is None
    assert (found.complete, found.end) == (spaces < 8, len(head) - spaces)
    odd = any("not a multiple of 8" in text for text in warnings_of(bt.raw(head, bytes(3)), strict=spaces < 8))
    assert odd == (len(head) % 8 != 0)


@pytest.mark.parametrize("layout", bt.LAYOUTS)
@pytest.mark.parametrize(
    ("value", "marker", "odd"),
    [
        (250, None, False),
        (250, 251, True),
        (251, 251, False),
        (65535, 252, True),
        (65536, 252, False),
        (2**32 - 1, 253, True),
        (2**32, 253, False),
        (0, 253, True),
    ],
)
def test_integers_that_take_more_bytes_than_they_need(layout, value, marker, odd):
    """The fewest bytes for an integer are no matter, and more are odd, wherever the next form begins."""
    spelled = bt.varint(value, marker)
    row = bt.Row("a", 1, (spelled, 0), 0, 0)
    found = warnings_of(bt.raw(bt.padded(bt.header([row], layout=layout))))
    assert any("takes more bytes than it needs" in text for text in found) == odd


@pytest.mark.parametrize("first", [249, 250, 251, 253, 254, 255])
def test_first_bytes_of_integers(first):
    """A byte up to 250 is a number itself, 251 to 253 announce one, and 254 and 255 are errors."""
    spelled = bytes([first]) + {251: b"\xfb\0", 253: b"\0\0\0\0\1\0\0\0"}.get(first, b"")
    error = error_of(bt.raw(bt.padded(header(bt.Row("a", 1, (spelled, 0), 0, 0)))), format="bintensors")
    assert (error is None) == (first <= 253)
    if error is not None:
        assert (error.field, error.actual, error.expected) == ("shape", first, "at most 253")


@pytest.mark.parametrize("layout", bt.LAYOUTS)
def test_every_end_of_a_header(layout):
    """A header that ends within any of its parts is an error that says where, for integers of all widths."""
    wide = bt.Row("n" * 300, 1, (70000, 2**40, 0), 0, 0)
    head = bt.header([wide, ROW._replace(begin=0)], {"key": "value"}, layout)
    for size in range(len(head)):
        _, found, fault = kernels.scan_bincode(head[:size], {"spec": 1, "current": 2}[layout], 9)
        assert fault is not None
        assert fault.kind in {"BIN_END", "BIN_COUNT"}, size
        assert fault.at <= size
        assert found.complete == 0
        error = refused(bt.raw(head[:size]), format="bintensors")
        assert isinstance(error, wm.FormatError)
    assert kernels.scan_bincode(head, {"spec": 1, "current": 2}[layout], 9)[2] is None


@pytest.mark.parametrize("layout", bt.LAYOUTS)
@pytest.mark.parametrize("code", range(13, 18))
def test_dtype_codes(layout, code):
    """The last dtype is 14."""
    row = bt.Row("a", code, (0,), 0, 0)
    error = error_of(bt.raw(bt.padded(header(row, layout))), format="bintensors")
    assert (error is None) == (code <= 14)
    assert error is None or (error.field, error.actual) == ("dtype", code)


@pytest.mark.parametrize("layout", bt.LAYOUTS)
def test_counts_that_there_is_room_for(layout):
    """A number of tensors or dimensions that the rest of the header has no room for is refused at once."""
    right = header(layout=layout)
    number = {"spec": 1, "current": 2}[layout]
    least = 6 if layout == "spec" else 5
    for n in around((len(right) - 2) // least, 2, most=250):
        _, _, fault = kernels.scan_bincode(right[:1] + bytes([n]) + right[2:], number, 99)
        assert (fault is not None and fault.kind == "BIN_COUNT" and fault.at == 1) == (n > (len(right) - 2) // least)
    at = right.index(b"\1\1\3", 2) + 1  # the number of dimensions, behind the dtype
    for n in around(len(right) - at - 1, 1, most=250):
        _, _, fault = kernels.scan_bincode(right[:at] + bytes([n]) + right[at + 1 :], number, 99)
        assert fault is not None
        assert (fault.kind == "BIN_COUNT" and fault.at == at) == (n > len(right) - at - 1)


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_map_of_names(count, index):
    """The map names each tensor once, by an index below their number."""
    entries = [("x", index), ("y", 1)][:count]
    rows = [ROW, bt.Row("b", 1, (1,), 3, 4)]
    error = error_of(bt.raw(bt.padded(bt.header(rows, index=entries)), bytes(4)), format="bintensors")
    if (count, index) == (2, 0):
        assert error is None
    else:
        assert error is not None
        assert error.field == "index_map"
        assert error.actual == (count if count < 2 else index)
        told = {1: "one that no earlier entry has", 2: "less than 2"}
        assert count < 2 or error.expected == told[index]


@pytest.mark.parametrize(("count", "index"), [(1, 0), (1, 1), (2, 0)])
def test_the_map_of_one_name(count, index):
    """Where there is one tensor, a map that is wrong is what the error is about, as where there are more."""
    data = bt.raw(bt.padded(header(layout="spec", index=[("a", index), ("b", 0)][:count])), bytes(3))
    error = error_of(data, format="bintensors")
    assert (error and error.field) == (None if (count, index) == (1, 0) else "index_map")


def test_a_map_that_nothing_precedes_is_no_evidence():
    """For a header without tensors, the error is about the layout that reads it without a fault."""
    # By the specification a map with a name for no tensor; by the other layout, three bytes behind an empty list.
    error = refused(bt.raw(b"\0\0\1\0\0"), format="bintensors")
    assert error.field == "padding"


def test_the_reading_that_went_further_counts():
    """For a header that fits neither layout, the error is about the one that reads further, even by a byte."""
    alphabet = bytes([0, 1, 2, 32, 251, 255])
    for size in range(1, 7):
        for text in map(bytes, itertools.product(alphabet, repeat=size)):
            if text[0] > 1:
                continue
            both = kernels.scan_bincode(text, 3, 9)[1:]
            if both[1] is None:
                continue
            alone = [kernels.scan_bincode(text, layout, 9)[1:] for layout in (1, 2)]
            further = max(alone, key=lambda found: found[0].progress)
            assert (both[0].layout, both[0].progress) == (further[0].layout, further[0].progress), text
            told = [(fault.kind, fault.row, fault.at) for fault in (both[1], further[1])]
            assert told[0] == told[1], text


@pytest.mark.parametrize("highest", [0, 1, 2])
def test_names_that_stand_for_one_tensor(highest):
    """With ``strict=False`` a map may name a tensor twice, but never a missing one."""
    rows = [ROW, bt.Row("b", 1, (1,), 3, 4)]
    data = bt.raw(bt.padded(bt.header(rows, index=[("x", highest), ("y", highest)])), b"abcd")
    if highest == 2:
        error = refused(data, strict=False, format="bintensors")
        assert (error.field, error.actual) == ("index_map", 2)
        return
    with wm.open(memoryview(data), strict=False, format="bintensors") as f:
        assert [np.asarray(f[name]).tobytes() for name in f] == [[b"abc"] * 2, [b"d"] * 2][highest]


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_map_with_aliases_that_is_cut_off(cut):
    """A map that names a tensor twice and then ends too early is an error with ``strict=False`` as well."""
    rows = [bt.Row(f"t{i}", 1, (1,), i, i + 1) for i in range(3)]
    entries: list[Any] = [("x", 0), ("y", 0), ("z", bt.varint(0, 252))]
    head = bt.header(rows, index=entries)
    error = refused(bt.raw(head[:-cut], bytes(3)), strict=False, format="bintensors")
    assert isinstance(error, wm.FormatError)


@pytest.mark.parametrize("room", range(4))
def test_dimensions_that_columns_have_room_for(room):
    """More dimensions than the columns hold, by one already, are refused."""
    text = bt.header([bt.Row("a", 1, (1, 3), 0, 3)], layout="current")
    columns = kernels.Columns.scratch(len(text), 1, 9)
    columns.native.dims_cap = room
    out, fault = ffi.new("wm_bintensors *"), ffi.new("wm_fault *")
    done = lib.wm_bintensors_scan(text, len(text), 2, columns.native, out, fault)
    assert (done, fault.code) == ((0, 0) if room >= 2 else (-1, kernels.faults()["CAPACITY"]))


def test_pieces_that_the_scan_can_count():
    """Positions are kept in 32 bits: a header of 2^32 - 1 bytes, or columns for as many dimensions, are refused."""
    out, fault = ffi.new("wm_bintensors *"), ffi.new("wm_fault *")
    small = kernels.Columns.scratch(0, 1, 1)
    for len_, names, dims, code in (
        (2**32 - 1, 2**32, 1, "COLUMN"),
        (0, 0, 2**32 - 1, "COLUMN"),
        (1, 0, 1, "COLUMN"),
        (2**32 - 2, 2**32, 1, "BIN_OPTION"),
        (0, 0, 2**32 - 2, "BIN_END"),
        (0, 0, 1, "BIN_END"),
    ):
        columns = ffi.new("wm_columns *", small.native[0])
        columns.names_cap, columns.dims_cap = names, dims
        assert lib.wm_bintensors_scan(b"\2" * 4096, len_, 3, columns, out, fault) == -1
        assert fault.code == kernels.faults()[code]


# ------------------------------------------------------------------------------------------------------------- CNN v2


def layers(total: int, *, said: int | None = None, extra: int = 0) -> bytes:
    """A file with one layer of so many weights; the header says another number, and bytes follow."""
    part = cnn_v2.record(1, 1, total, 0)
    return cnn_v2.header(1, total if said is None else said) + part + bytes(2 * (said or total)) + bytes(extra)


@pytest.mark.parametrize("total", [6, 7])
@pytest.mark.parametrize("extra", range(-2, 5))
def test_sizes_of_files(total, extra):
    """A file ends with its weights, or with the pair of the last one; all else is too short, or odd."""
    data = layers(total, extra=extra) if extra >= 0 else layers(total)[:extra]
    strict, lax = error_of(data), error_of(data, strict=False)
    legal = extra == 0 or (extra == 2 and total % 2 == 1)
    assert (strict is None) == legal
    assert (lax is None) == (extra >= 0)
    if strict is not None and extra > 0:  # of an odd number of weights, the spare half belongs to them
        end = 40 + 2 * total + (2 if total % 2 and extra >= 2 else 0)
        assert (strict.field, strict.offset, strict.actual) == ("size", end, len(data))
    if extra < 0:
        assert isinstance(lax, wm.TruncatedError)
        assert lax.field == "total_weights"
        return
    with wm.open(memoryview(data), strict=False) as f:
        found = f.verify()
    assert ("padding is zero" in found.checks) == (total % 2 == 1 and extra >= 2)


@pytest.mark.parametrize("difference", range(-2, 3))
def test_the_sum_of_all_weights(difference):
    """The header says how many weights the layers have together; fewer than that are odd, and more are an error."""
    data = layers(8, said=8 + difference)
    strict, lax = error_of(data), error_of(data, strict=False)
    assert (strict is None, lax is None) == (difference == 0, difference >= 0)
    for error in (strict, lax):
        assert error is None or (error.field, error.actual) == ("total_weights", 8 + difference)


@pytest.mark.parametrize("field", ["kernel_size", "in_channels", "out_channels"])
@pytest.mark.parametrize("number", [0, 1])
def test_dimensions_that_are_zero(field, number):
    """A layer without one of its dimensions is an error that says which, and where it stands."""
    rows = [[1, 1, 1, 0, 1], [1, 1, 1, 1, 1]]
    place = ("kernel_size", "in_channels", "out_channels").index(field)
    rows[number][place] = 0
    data = cnn_v2.header(2, 2) + b"".join(struct.pack("<5I", *row) for row in rows) + bytes(4)
    error = refused(data)
    assert (error.field, error.offset, error.actual) == (field, 20 + 20 * number + 4 * place, 0)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7])
def test_odd_layers_are_named_up_to_five(count):
    """Warnings name the first five layers that they are about."""
    odd = [cnn_v2.layer(1, 1, 2) for _ in range(count)]
    [found] = warnings_of(cnn_v2.build([cnn_v2.layer(8, 1, 1), *odd]))
    names = ", ".join(map(str, range(1, min(count, 5) + 1))) + (", ..." if count > 5 else "")
    assert found == f"{count} layer{'' if count == 1 else 's'} with an even kernel_size: {names}"


@pytest.mark.parametrize("channels", [7, 8, 9])
@pytest.mark.parametrize("mip_level", [2, 3, 4])
@pytest.mark.parametrize("version", [1, 2])
def test_what_is_legal_and_odd(channels, mip_level, version):
    """More than 8 out_channels are odd, and so is a mip_level above 3, where there is one."""
    found = warnings_of(cnn_v2.build([cnn_v2.layer(channels, 1, 1)], mip_level, version))
    assert any("out_channels" in text for text in found) == (channels > 8)
    assert any("mip_level" in text for text in found) == (mip_level > 3 and version == 2)


@pytest.mark.parametrize("count", range(4))
def test_layers_that_the_file_has_room_for(count):
    """The records of all layers lie within the file."""
    data = bytearray(cnn_v2.header(2, 0) + bytes(40))
    struct.pack_into("<I", data, 8, count)
    error = error_of(bytes(data))
    assert (error is not None and error.field == "num_layers") == (count > 2)
    if count == 2:
        assert refused(bytes(data[:-1])).field == "num_layers"


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("size", range(1, 22))
def test_files_that_end_within_the_header(version, size):
    """Version 1 has a header of 16 bytes, and version 2 one of 20; of other versions there are none."""
    data = cnn_v2.header(0, 0, 0, 2)[:4] + struct.pack("<I", version) + bytes(20)
    error = error_of(data[:size], format="cnn_v2", strict=False)
    if size < 4:
        assert error is not None
    elif size >= 8 and version not in {1, 2}:
        assert type(error) is wm.UnsupportedError
    elif size < {1: 16, 2: 20}.get(version, 99):
        assert type(error) is wm.TruncatedError
        assert error.offset == size
    else:
        assert error is None


def test_layers_that_columns_have_room_for():
    """More layers than there are records, or than the columns hold, by one already, are refused; and 2^27 of them."""
    place = kernels.Columns.scratch(64, 2, 8)
    out, fault = ffi.new("wm_cnn *"), ffi.new("wm_fault *")
    records = cnn_v2.record(1, 1, 1, 0) + cnn_v2.record(1, 1, 1, 1)

    def layers_of(n: int, length: int = 40, cap: int = 2, dims: int = 8, names: int = 64) -> str:
        columns = ffi.new("wm_columns *", place.native[0])
        columns.cap, columns.dims_cap, columns.names_cap = cap, dims, names
        done = lib.wm_cnn_layers(records, length, n, columns, out, fault)
        assert done == (0 if fault.code == 0 else -1)
        return next(name for code, name in {v: k for k, v in kernels.faults().items()}.items() if code == fault.code)

    assert layers_of(2) == "NONE"
    assert layers_of(2, length=39) == layers_of(2, cap=1) == layers_of(2, dims=7) == layers_of(2, names=63) == "COLUMN"
    many = 2**40
    assert layers_of(2**27, many, many, many, many) == "CAPACITY"


# ------------------------------------------------------------------------------------------- rows, when they are used


class FourDims(Rules):
    """Rules like those of EMBD."""

    __slots__ = ()
    dtypes = (DTYPES["float32"], DTYPES["int8"])
    min_ndim, max_ndim = 1, 4


def record_table(*rows: tuple[Any, ...], size: int = 100, names: bytes = b"") -> RecordTable:
    """A table of records that nobody has checked: code, ndim, length of the name, four dimensions, offset."""
    index = b"".join(struct.pack("<IBBH4IQ", 0, *row) for row in rows) + names
    return RecordTable(lambda: index, len(rows), 1000, FourDims(500, 2**40, size))


@pytest.mark.parametrize("ndim", range(7))
def test_dimensions_of_a_row(ndim):
    """A row has one to four dimensions, whether it is looked up or listed; others are an error, and no shape."""
    table = record_table((1, 1, 0, 2, 0, 0, 0, 0), (1, ndim, 0, 2, 2, 2, 2, 2))
    if 1 <= ndim <= 4:
        assert table.place(1) == (DTYPES["int8"], (2,) * ndim, 502, 2**ndim, None)
        assert [row[1] for row in table.rows()] == [(2,), (2,) * ndim]
    else:
        for use in (lambda: table.place(1), lambda: list(table.rows())):
            with pytest.raises(wm.FormatError, match="number of dimensions") as caught:
                use()
            assert caught.value.actual == ndim


def test_empty_rows_whose_other_dimensions_can_just_be_counted():
    """The other dimensions of a row without elements have a product of at most 2^63 - 1 bytes."""
    most, more = (7 * 7 * 73 * 127 * 337, 92737, 649657), (2**31, 2**31, 2)
    for code, factors, good in ((1, most, True), (0, most, False), (1, more, False)):
        table = record_table((code, 4, 0, *factors, 0, 0))
        for use in (lambda table=table: table.place(0)[1], lambda table=table: next(table.rows())[1]):
            if good:
                assert use() == (*factors, 0)
            else:
                with pytest.raises(wm.LayoutError, match="product of its shape"):
                    use()


@pytest.mark.parametrize("code", range(4))
def test_dtypes_of_a_row(code):
    """A code behind the last of the list is an error, whether a row is looked up or listed."""
    table = record_table((code, 1, 0, 2, 0, 0, 0, 0))
    if code < 2:
        assert table.place(0)[0] is FourDims.dtypes[code]
        assert [row[0] for row in table.rows()] == [FourDims.dtypes[code]]
    else:
        for use in (lambda: table.place(0), lambda: list(table.rows())):
            with pytest.raises(wm.UnsupportedError, match="dtype code"):
                use()


@pytest.mark.parametrize("offset", [0, 91, 92, 93, 2**63, 2**64 - 8])
def test_data_of_a_row_ends_with_the_section(offset):
    """A row may end where its section does, and not a byte behind it."""
    table = record_table((0, 2, 0, 2, 1, 0, 0, offset))
    if offset <= 92:
        assert table.place(0)[2:4] == (500 + offset, 8)
        assert [row.offset for row in table.rows()] == [500 + offset]
    else:
        for use in (lambda: table.place(0), lambda: list(table.rows())):
            with pytest.raises(wm.LayoutError, match="end of its data") as caught:
                use()
            assert caught.value.actual == offset + 8


@pytest.mark.parametrize("size", [4, 5, 6])
def test_names_of_rows_end_with_the_index(size):
    """Names that take five bytes together need as many behind the rows, and more do not matter."""
    table = record_table((1, 1, 2, 0, 0, 0, 0, 0), (1, 1, 3, 0, 0, 0, 0, 0), names=b"abcdef"[:size])
    if size >= 5:
        assert list(table.names) == ["ab", "cde"]
    else:
        with pytest.raises(wm.LayoutError, match="sum of their lengths") as caught:
            list(table.names)
        assert (caught.value.actual, caught.value.expected) == (5, "4, the size of their section")


@pytest.mark.parametrize("place", [0, 1])
def test_names_that_are_checked_one_by_one(place):
    """Where hashes do not tell names apart, they are looked at: a name that is not UTF-8 is found, first or last."""
    names = [b"ab", b"cd"]
    record_table(*[(1, 1, 2, 0, 0, 0, 0, 0)] * 2, names=b"".join(names)).check_names()
    names[place] = b"a\xff"
    with pytest.raises(wm.FormatError, match="is not UTF-8") as caught:
        record_table(*[(1, 1, 2, 0, 0, 0, 0, 0)] * 2, names=b"".join(names)).check_names()
    assert caught.value.offset == 1000 + 32 * place
    with pytest.raises(wm.LayoutError, match="tensors 0 and 1 are both called"):
        record_table(*[(1, 1, 2, 0, 0, 0, 0, 0)] * 2, names=b"abab").check_names()


def test_where_a_row_lies():
    """A row of the table has a place in the file, and the number of rows has none."""
    table = record_table((1, 1, 0, 0, 0, 0, 0, 0), (1, 1, 0, 0, 0, 0, 0, 0))
    assert [table.position(row) for row in range(4)] == [1000, 1032, None, None]
    assert list(record_table().names) == []
    assert list(record_table((1, 1, 0, 0, 0, 0, 0, 0), (1, 1, 2, 0, 0, 0, 0, 0), names=b"ab").names) == ["", "ab"]


def runs(*rows: tuple[Any, ...]) -> list[tuple[int, int, int]]:
    """Offset of the first row, number of rows and step of each run."""
    found = record_table(*rows, size=10**6).runs()
    return [(row.offset - 500, count, step) for row, count, step in found]


def test_rows_that_are_alike_are_one_run():
    """Rows of one dtype and shape at equal distances become one run; a change of any of these begins a new one."""
    alike = [(1, 2, 0, 3, 4, 0, 0, 64 * i) for i in range(9)]
    assert runs(*alike) == [(0, 9, 64)]
    assert runs(*alike[:1]) == [(0, 1, 0)]
    assert runs(*alike[:2]) == [(0, 2, 64)]
    later = [(*row[:-1], row[-1] + 8) for row in alike]
    assert runs(*alike[:3], *later[3:]) == [(0, 3, 64), (200, 1, 0), (264, 5, 64)]
    for place, value in ((0, 0), (1, 1), (3, 2), (4, 3)):
        other = [tuple(value if at == place else item for at, item in enumerate(row)) for row in alike]
        assert runs(*alike[:4], *other[4:]) == [(0, 4, 64), (256, 5, 64)], place
        assert runs(*alike[:4], other[4], *alike[5:]) == [(0, 4, 64), (256, 1, 0), (320, 4, 64)]
    # Backwards is no run, however equal the distances are.
    assert runs(*reversed(alike[:4])) == [(64 * i, 1, 0) for i in (3, 2, 1, 0)]
    # Rows at the same place are one.
    assert runs(alike[0], alike[0], alike[0]) == [(0, 3, 0)]


@pytest.mark.parametrize("count", [4095, 4096, 4097])
def test_runs_of_as_many_rows_as_are_taken_at_once(count):
    """Around the number of rows that become objects at once, each row comes once."""
    rows = [(1, 1, 0, 4, 0, 0, 0, 4 * i) for i in range(count)]
    assert sum(n for _, n, _ in runs(*rows)) == count
    assert [row.offset for row in record_table(*rows, size=10**6).rows()] == [500 + 4 * i for i in range(count)]


@pytest.mark.parametrize("size", [65535, 65536, 65537])
def test_a_small_index_is_copied_and_a_large_one_is_not(put, size):
    """An index of up to 64 KiB is read, which is cheaper than mapping it; a larger one stays where it is."""
    draft = embd.Draft([("n" * (size - 32), noise("uint8", (1,)))], metadata=b"", aligned=False)
    assert draft.data_offset - draft.index_offset == size
    with wm.open(put(draft.seal()), mode="mmap") as f:
        assert isinstance(f._table._index, bytes) == (size <= 65536)
        assert [len(name) for name in f] == [size - 32]
