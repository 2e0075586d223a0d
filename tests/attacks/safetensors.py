"""Attacks on safetensors: the length of the header, the JSON, the entries."""

import json
import struct

from tests.builders import noise
from tests.builders import safetensors as st

from .case import BAD_UTF8, U64, WILD_NAMES, Case

KIND = "safetensors"
E = st.entry
GOOD = {"a": E("F32", [2], 0, 8), "b": E("U8", [3], 8, 11)}
DEEP = 100_000
NESTED = json.loads("[" * 65 + "]" * 65)
# The rows of the threat tables about this format: a fault of a file, and the required outcome.
ROWS = {
    "T1": "A safetensors header whose entries lack something or have too much, or values of a wrong type: FormatError.",
    "T2": "A safetensors header length beyond the file or the limit: TruncatedError or LimitError.",
}


def dumps(header):
    return json.dumps(header, separators=(",", ":")).encode()


WHOLE = st.raw(dumps(GOOD), bytes(range(11)))
SOUND = {KIND: WHOLE}
# The entry of one tensor "a", U8 [0], with bytes in the place of some part of it.
NAMED = b'{"%s":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
DIMENSION = b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,0]}}'

# Row, name, header, bytes of data, error, field, and the place: the text there in the header, or its offset.
LAYOUTS = [
    ("C9", "a hole in front", {"a": E("F32", [2], 4, 12)}, 12, "LayoutError", "data_offsets", b'"a"'),
    ("C9", "a hole", {"a": E("U8", [2], 0, 2), "b": E("U8", [2], 4, 6)}, 6, "LayoutError", "data_offsets", b'"b"'),
    ("C9", "an overlap", {"a": E("U8", [4], 0, 4), "b": E("U8", [4], 2, 6)}, 6, "LayoutError", "data_offsets", b'"b"'),
    (
        "C9",
        "shared bytes",
        {"a": E("U8", [4], 0, 4), "b": E("U8", [4], 0, 4)},
        4,
        "LayoutError",
        "data_offsets",
        b'"b"',
    ),
    (
        "C9",
        "begin a byte on",
        {"a": E("U8", [2], 0, 2), "b": E("U8", [0], 3, 2)},
        2,
        "LayoutError",
        "data_offsets",
        b'"b"',
    ),
    (
        "C9",
        "begin two back",
        {"a": E("U8", [2], 0, 2), "b": E("U8", [0], 1, 2)},
        2,
        "LayoutError",
        "data_offsets",
        b'"b"',
    ),
    ("C9", "end before begin", {"a": E("U8", [0], 4, 0)}, 4, "LayoutError", "data_offsets", b'"a"'),
    ("C2", "bytes behind the last", GOOD, 12, "LayoutError", "data_offsets", -1),
    ("C2", "data without tensors", b"{}      ", 6, "LayoutError", "data_offsets", -6),
    ("T2", "data missing", GOOD, 10, "TruncatedError", "data_offsets", -0),
    ("T2", "no data", GOOD, 0, "TruncatedError", "data_offsets", -0),
    ("T1", "size not of shape", {"a": E("F32", [3], 0, 8)}, 8, "LayoutError", "data_offsets", b'"a"'),
    ("T1", "size not of dtype", {"a": E("F64", [2], 0, 8)}, 8, "LayoutError", "data_offsets", b'"a"'),
    ("C6", "shape beyond 2^64", {"a": E("U8", [2**32, 2**32], 0, 0)}, 0, "LayoutError", "shape", b'"a"'),
    ("C6", "overflow, then zero", {"a": E("U8", [2**33, 2**33, 0], 0, 0)}, 0, "LayoutError", "shape", b'"a"'),
    ("C6", "zero, then overflow", {"a": E("U8", [0, 2**33, 2**33], 0, 0)}, 0, "LayoutError", "shape", b'"a"'),
    ("C6", "bytes beyond 2^63", {"a": E("F64", [0, 2**61], 0, 0)}, 0, "LayoutError", "shape", b'"a"'),
    (
        "C5",
        "a dimension beyond u64",
        {"a": E("U8", [2**70], 0, 8)},
        8,
        "FormatError",
        "header",
        b"1180591620717411303424",
    ),
    (
        "C5",
        "offsets beyond u64",
        {"a": E("U8", [8], 2**64, 2**64 + 8)},
        8,
        "FormatError",
        "header",
        b"18446744073709551616",
    ),
    (
        "C5",
        "offsets at the end of u64",
        {"a": E("U8", [8], 2**64 - 9, 2**64 - 1)},
        8,
        "TruncatedError",
        "data_offsets",
        -0,
    ),
    ("T1", "negative dimension", {"a": E("U8", [-1, -8], 0, 8)}, 8, "FormatError", "header", b"-1"),
    ("T1", "negative offset", {"a": E("U8", [8], -8, 0)}, 8, "FormatError", "header", b"-8"),
    ("T1", "fractional dimension", {"a": E("U8", [8.0], 0, 8)}, 8, "FormatError", "header", b"8.0"),
    ("T1", "true as a dimension", {"a": E("U8", [True], 0, 1)}, 1, "FormatError", "header", b"true"),
    ("T1", "text as a dimension", {"a": E("U8", ["8"], 0, 8)}, 8, "FormatError", "header", b'"8"'),
    ("T1", "null offset", {"a": E("U8", [8], None, 8)}, 8, "FormatError", "header", b"null"),
    ("C8", "65 dimensions", {"a": E("U8", [1] * 65, 0, 1)}, 1, "LimitError", "ndim", b'"a"'),
    ("C8", "256 dimensions", {"a": E("U8", [1] * 256, 0, 1)}, 1, "FormatError", "header", 546),
    ("C14", "unknown dtype", {"a": E("X9", [8], 0, 8)}, 8, "UnsupportedError", "dtype", b'"X9"'),
    ("C14", "lower-case dtype", {"a": E("u8", [8], 0, 8)}, 8, "UnsupportedError", "dtype", b'"u8"'),
    ("T1", "dtype no text", {"a": {**E("U8", [8], 0, 8), "dtype": 5}}, 8, "FormatError", "header", b"5"),
    ("T1", "no dtype", {"a": {"shape": [8], "data_offsets": [0, 8]}}, 8, "FormatError", "header", 47),
    ("T1", "no shape", {"a": {"dtype": "U8", "data_offsets": [0, 8]}}, 8, "FormatError", "header", 48),
    ("T1", "no offsets", {"a": {"dtype": "U8", "shape": [8]}}, 8, "FormatError", "header", 39),
    (
        "T1",
        "three offsets",
        {"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 4, 8]}},
        8,
        "FormatError",
        "header",
        b",8]",
    ),
    ("T1", "deep unknown key", {"a": {**E("U8", [8], 0, 8), "extra": NESTED}}, 8, "FormatError", "header", 132),
    ("T1", "entry a list", {"a": [1, 2]}, 0, "FormatError", "header", b"[1"),
    ("T1", "entry null", {"a": None}, 0, "FormatError", "header", b"null"),
]
TEXTS = [
    ("C12", "root a list", b"[]      ", 0, "FormatError", "header", b"["),
    ("C12", "root a number", b"5       ", 0, "FormatError", "header", b"5"),
    ("C12", "root null", b"null    ", 0, "FormatError", "header", b"n"),
    ("C12", "two objects", b"{}{}    ", 0, "LayoutError", "header", 10),
    ("C12", "no header", b"", 0, "FormatError", "header", 8),
    ("C12", "only spaces", b"        ", 0, "FormatError", "header", 8),
    ("C10", "name twice", NAMED[:-1] % b"a" + b"," + NAMED[1:] % b"a", 0, "LayoutError", "name", 61),
    ("C10", "name twice by escape", NAMED[:-1] % b"a" + b"," + NAMED[1:] % b"\\u0061", 0, "LayoutError", "name", 61),
    (
        "C12",
        "key twice in an entry",
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}',
        0,
        "FormatError",
        "header",
        b'"dtype":"I8"',
    ),
    ("C12", "metadata twice", b'{"__metadata__":{},"__metadata__":{}}', 0, "FormatError", "header", 27),
    ("C12", "key of metadata twice", b'{"__metadata__":{"k":"1","k":"2"}}', 0, "FormatError", "__metadata__", b'{"k"'),
    ("T1", "metadata a text", b'{"__metadata__":"text"}', 0, "FormatError", "header", b'"text"'),
    ("T1", "metadata null, and again", b'{"__metadata__":null,"__metadata__":null}', 0, "FormatError", "header", 29),
    ("T1", "metadata nul", b'{"__metadata__":nul}', 0, "FormatError", "header", b"nul"),
    ("T1", "metadata value a number", b'{"__metadata__":{"k":5}}', 0, "FormatError", "__metadata__", b'{"k"'),
    ("T1", "metadata value an object", b'{"__metadata__":{"k":{}}}', 0, "FormatError", "__metadata__", b'{"k"'),
    ("C12", "metadata NaN", b'{"__metadata__":{"k":NaN}}', 0, "FormatError", "header", b"NaN"),
    ("C12", "dimension NaN", DIMENSION % b"NaN", 0, "FormatError", "header", b"NaN"),
    ("C12", "dimension Infinity", DIMENSION % b"Infinity", 0, "FormatError", "header", b"Infinity"),
    ("C12", "dimension 1e999", DIMENSION % b"1e999", 0, "FormatError", "header", b"1e999"),
    ("C12", "dimension 007", DIMENSION % b"007", 0, "FormatError", "header", b"007"),
    ("C12", "5000 digits", DIMENSION % (b"9" * 5000), 0, "FormatError", "header", b"999"),
    ("C12", "lone surrogate in a name", NAMED % b"\\ud800", 0, "FormatError", "header", b'"\\ud800'),
    ("C12", "lone surrogate in metadata", b'{"__metadata__":{"k":"\\udfff"}}', 0, "FormatError", "header", b'"\\udfff'),
    ("C12", "UTF-16", (NAMED % b"a").decode().encode("utf-16-le"), 0, "FormatError", "header", b"\0"),
    ("C12", "byte order mark", b"\xef\xbb\xbf{}   ", 0, "FormatError", "header", b"\xef"),
    ("C12", "raw control character", NAMED % b"a\nb", 0, "FormatError", "header", b"\nb"),
    ("C12", "bad escape", NAMED % b"a\\x", 0, "FormatError", "header", b"\\x"),
    ("C12", "single quotes", b"{'a':{}}", 0, "FormatError", "header", b"'"),
    ("C12", "trailing comma", (NAMED % b"a")[:-1] + b",}", 0, "FormatError", "header", 61),
    ("C12", "comment", b"{/* */}  ", 0, "FormatError", "header", b"/"),
    ("C12", "NUL behind the object", b"{}\0\0\0\0\0\0", 0, "LayoutError", "header", b"\0"),
    ("C12", "unclosed", (NAMED % b"a")[:-1], 0, "FormatError", "header", -0),
    ("C12", "deep lists", b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}", 0, "FormatError", "header", b"["),
    ("C12", "deep objects", b'{"a":' * DEEP + b"1" + b"}" * DEEP, 0, "FormatError", "header", 338),
    ("C12", "deep and unclosed", b'{"a":' + b"[" * DEEP, 0, "FormatError", "header", b"["),
    (
        "C12",
        "deep metadata",
        b'{"__metadata__":{"a":' + b"[" * DEEP + b"]" * DEEP + b"}}",
        0,
        "FormatError",
        "header",
        92,
    ),
]


def case(row, name, data, error="", field=None, offset=None, **more):
    return Case(row, KIND, name, data, error, field, offset, **more)


def place(where, data, header):
    if isinstance(where, bytes):
        return 8 + header.index(where) if where in header else len(data)
    return len(data) + where if where is not None and where <= 0 else where


def cases():
    for row, name, header, size, error, field, where in LAYOUTS + TEXTS:
        text = header if isinstance(header, bytes) else dumps(header)
        data = st.raw(text, bytes(size))
        odd = ODD.get(name)
        yield case(row, name, data, error, field, place(where, data, text), odd=odd)
    for length in (100_000_001, 2**31, 2**32, 2**40, 2**60, 2**63 - 1, 2**63, U64):
        data = st.raw(dumps(GOOD), bytes(11), length)
        row = "T2" if length < 2**60 else "C4"
        yield case(row, f"length {length}", data, "LimitError", "max_header_bytes", 0)
    for length in (len(WHOLE) - 7, 10**6):
        data = st.raw(dumps(GOOD), bytes(11), length)
        yield case("T2", f"length {length}", data, "TruncatedError", "n", len(data))
    big = struct.pack("<Q", 100_000_001) + b"{"
    expected = {"error": "LimitError", "field": "max_header_bytes", "offset": 0, "size": 8 + 100_000_001}
    yield case("C17", "a header beyond the limit that is there", big, **expected)
    for name, raw in BAD_UTF8.items():
        data = st.raw(NAMED % raw)
        yield case("C11", f"name {name}", data, "FormatError", "header", data.index(raw) - 1)
        data = st.raw(b'{"__metadata__":{"k":"%s"}}' % raw)
        yield case("C11", f"value {name}", data, "FormatError", "header", data.index(raw) - 1)
    yield from legal()


# Faults that strict=False lets pass.
ODD = {"bytes behind the last": "trailing", "data without tensors": "trailing"}
ODD |= {"a hole in front": "leaves a hole", "a hole": "leaves a hole"}
ODD |= {"an overlap": "overlaps the tensor before it", "shared bytes": "overlaps the tensor before it"}


def legal():
    for name, text in WILD_NAMES.items():
        yield case("C11", name, st.raw(dumps({text: E("U8", [1], 0, 1)}), b"\1"))
    yield case("C10", "empty name", st.raw(dumps({"": E("U8", [1], 0, 1)}), b"\1"), odd="empty name")
    for shape in ([0], [2**62, 0], [0, 4]):
        yield case("C7", f"shape {'x'.join(map(str, shape))}", st.raw(dumps({"a": E("U8", shape, 0, 0)})))
    yield case("C8", "no dimensions", st.raw(dumps({"a": E("F32", [], 0, 4)}), bytes(4)))
    yield case("C8", "64 dimensions", st.raw(dumps({"a": E("F32", [1] * 64, 0, 4)}), bytes(4)))
    yield case("C15", "any truth values", st.raw(dumps({"a": E("BOOL", [256], 0, 256)}), bytes(range(256))))
    for dtype in ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn"):
        value = noise(dtype, (64,))
        data = st.raw(dumps({"a": E(st.CODES[dtype], [64], 0, len(value.data))}), value.data)
        yield case("C16", f"any bits of {dtype}", data)
    yield case("C20", "no tensors", st.raw(b"{}"))
