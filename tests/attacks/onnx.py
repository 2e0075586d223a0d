"""Attacks on ONNX models: on the encoding of protobuf, on tensors, and on the names of other files."""

from typing import NamedTuple

from tests.builders import noise, normal
from tests.builders.onnx import HEAD, build, external, field, graph, model, packed, tensor_proto, varint

from .case import BAD_UTF8, U32, U63, U64, WILD_NAMES, Case

KIND = "onnx"
A, B = normal((2,), 1), noise("int16", (3,), 2)
SOUND = {KIND: build({"a": A, "b": B})}
ROWS = {
    "M1": "Fields of another wire type, groups, tags and numbers that protobuf has not: FormatError.",
    "M2": "Messages that end within a field, or are longer than the one around them: LayoutError. No graph: "
    "TruncatedError.",
    "M3": "Data in two fields, in one that is not for its type, or in segments: LayoutError or UnsupportedError.",
    "M4": "More or fewer numbers than the shape says, or larger ones than the type holds: LayoutError.",
    "M5": "Tensors of strings: UnsupportedError, left out if not strict. Sparse ones: left out, and a warning.",
    "M6": "A location in another directory, however it is spelled, or none: LayoutError, and nothing is opened.",
    "M7": "An offset or a length that is no decimal number: FormatError.",
    "M8": "Names longer than 65,535 bytes, or none: FormatError.",
}
# The data of two floats.
RAW = field(9, bytes(8))
LOCATIONS = {
    "above": "../x", "above, by dots within": "a/../../x", "absolute": "/etc/passwd", "of Windows": "..\\x",
    "a drive": "c:x", "encoded": "%2e%2e/x", "a zero byte": "x\0y", "the directory": ".", "missing": "gone.bin",
}  # fmt: skip


class Lie(NamedTuple):
    row: str
    name: str
    body: bytes
    error: str
    field: str
    part: bytes | None = None
    late: bool = False


def start(dtype=1, *dims):
    return b"".join(field(1, dim) for dim in dims) + field(2, dtype) + field(8, b"w")


def wire():
    for name, where, lie in (
        ("dims as 4 bytes", "dims", field(1, bytes(4), 5)),
        ("data_type as text", "data_type", field(2, b"\1")),
        ("a name as a number", "name", field(8, 1)),
        ("raw_data as a number", "raw_data", field(9, 8)),
        ("float_data as a number", "float_data", field(4, 8)),
        ("int64_data as 4 bytes", "int64_data", field(7, bytes(4), 5)),
        ("external_data as a number", "external_data", field(13, 1)),
        ("data_location as text", "data_location", field(14, b"\1")),
        ("a group", "20", b"\xa3\1\xa4\1"),
        ("many groups", "20", b"\xa3\1" * 50_000),
        ("wire type 7", "20", b"\xa7\1"),
        ("field 0", "0", b"\0\0"),
        ("a tag of 33 bits", str(1 << 30), varint(1 << 33) + b"\0"),
    ):
        yield Lie("M1", name, start(1, 2) + RAW + lie, "FormatError", where, lie)
    for name, lie in {"71": b"\xff" * 10 + b"\1", "65": b"\xff" * 9 + b"\2", "693": b"\x80" * 99}.items():
        yield Lie("M1", f"a number of {name} bits", start(1, 2) + RAW + b"\xa0\1" + lie, "FormatError", "20", lie)
    for name, length in {"9": 9, "2^32 - 1": U32, "2^63 - 1": U63, "2^64 - 1": U64}.items():
        lie = b"\x4a" + varint(length)
        yield Lie("M2", f"a length of {name}", start(1, 2) + lie + bytes(8), "LayoutError", "raw_data", lie)
    lie = field(1, b"\x80")
    yield Lie("M2", "dims end within a number", lie + start() + RAW, "LayoutError", "dims", lie[2:])
    yield Lie(
        "M2", "eight bytes that are four", start(1, 2) + RAW + b"\xa1\1" + bytes(4), "LayoutError", "20", b"\xa1\1"
    )


def shapes():
    for dim in (-1, -(2**63)):
        yield Lie("C4", f"a dimension of {dim}", field(1, dim) + start() + RAW, "LayoutError", "dims", field(1, dim))
    yield Lie("C4", "2^60 floats in 8 bytes", start(1, 2**60) + RAW, "LayoutError", "raw_data")
    lie = field(7, b"\1\2")
    yield Lie("C4", "2^60 numbers in 2 bytes", start(7, 2**60) + lie, "LayoutError", "int64_data", lie)
    for name, code, dims in (("2^32 by 2^32", 1, (2**32, 2**32)), ("2^63 - 1 of 4 bits", 22, (U63,))):
        yield Lie("C6", name, start(code, *dims) + RAW, "LayoutError", "dims")
    yield Lie("C6", "0 by 2^62 by 2^62", start(1, 0, 2**62, 2**62), "LayoutError", "dims")
    yield Lie("C8", "65 dimensions", field(1, packed([1] * 65)) + start() + RAW, "LimitError", "dims", b"\1\x10\1")
    yield Lie("C10", "the name of the first", tensor_proto("a", A), "LayoutError", "name")
    for name, raw in BAD_UTF8.items():
        yield Lie("C11", name, tensor_proto(raw, A), "FormatError", "name")
    for code in (0, 29, 99, U32, U64):
        yield Lie("C14", f"type {code}", start(code, 2) + RAW, "UnsupportedError", "data_type")
    for size in (0, 4, 7, 9, 12):
        yield Lie("C5", f"{size} bytes for 8", start(1, 2) + field(9, bytes(size)), "LayoutError", "raw_data")
    yield Lie("M8", "no name", field(1, 2) + field(2, 1) + RAW, "FormatError", "name")
    yield Lie("M8", "an empty name", tensor_proto("", A), "FormatError", "name")
    long = b"n" * 65536
    yield Lie("M8", "65,536 bytes", tensor_proto(long, A), "FormatError", "name", field(8, long))


def data():
    floats, segment = field(4, bytes(8)), field(3, field(1, 0) + field(2, 2))
    yield Lie("M3", "raw and numbers", start(1, 2) + RAW + floats, "LayoutError", "float_data", floats)
    more = field(5, b"\0")
    yield Lie("M3", "two fields of numbers", start(1, 2) + floats + more, "LayoutError", "int32_data", more)
    yield Lie("M3", "a segment", start(1, 2) + RAW + segment, "UnsupportedError", "segment", segment)
    there = external(location="x")
    yield Lie("M3", "raw and external", start(1, 2) + there + RAW, "LayoutError", "raw_data", RAW[2:])
    yield Lie("M3", "numbers and external", start(1, 2) + there + floats, "LayoutError", "float_data", floats)
    elsewhere = field(14, 2)
    yield Lie("M3", "data_location 2", start(1, 2) + RAW + elsewhere, "UnsupportedError", "data_location", elsewhere)
    for number, name, codes in (
        (4, "float_data", (6, 10, 11, 15)),
        (5, "int32_data", (1, 7, 8, 11, 12, 13, 14, 15)),
        (6, "string_data", (1, 2)),
        (7, "int64_data", (2, 6, 13)),
        (10, "double_data", (1, 14)),
        (11, "uint64_data", (6, 7, 10)),
    ):
        for code in codes:
            lie = field(number, bytes(16))
            yield Lie("M3", f"{name} of type {code}", start(code, 2) + lie, "LayoutError", name, lie)
    for name, where, lie in (
        ("one for two", "int64_data", field(7, b"\1")),
        ("7 bytes of floats", "float_data", field(4, bytes(7))),
        ("three floats in pieces", "float_data", field(4, bytes(4)) + field(4, bytes(8))),
        ("one double", "float_data", field(4, bytes(4), 5)),
    ):
        yield Lie("M4", name, start(7 if where[0] == "i" else 1, 2) + lie, "LayoutError", where, lie)
    lie = field(7, packed([1, 2, 3]))
    yield Lie("M4", "three for two", start(7, 2) + lie, "LayoutError", "int64_data", lie[4:], late=True)
    lie = field(7, packed([1 << 63]))
    yield Lie("M4", "one of ten bytes for two", start(7, 2) + lie, "LayoutError", "int64_data", lie, late=True)
    for code, bad in (
        *((2, 256), (3, -129), (9, 300), (10, 1 << 16), (16, 1 << 16), (6, 1 << 32), (6, -(1 << 31) - 1), (17, 256)),
        *((27, 64), (28, -1), (22, 256), (25, 256)),
    ):
        lie = varint(bad)
        body = start(code, {22: 4, 25: 8}.get(code, 2)) + field(5, b"\1" + lie)
        yield Lie("M4", f"{bad} in type {code}", body, "LayoutError", "int32_data", lie, late=True)
    lie = varint(1 << 32)
    yield Lie(
        "M4", "2^32 in uint32", start(12, 2) + field(11, b"\1" + lie), "LayoutError", "uint64_data", lie, late=True
    )


def elsewhere():
    yield Lie("M6", "empty", start(1, 2) + external(location=""), "LayoutError", "location")
    yield Lie("M6", "no location", start(1, 2) + external(offset="0"), "LayoutError", "location")
    long = "x" * 5000
    yield Lie("M6", "5,000 bytes", start(1, 2) + external(location=long), "LayoutError", "location", long.encode())
    for text in ("-1", "+1", "", "1 ", "1_0", "0x1", "1.0", "9" * 19, "9" * 5000, "\u0661"):
        for key in ("offset", "length"):
            entry = field(13, field(1, key.encode()) + field(2, text.encode()))
            body = start(1, 2) + external(**{key: text})
            part = text.encode() if text else body[body.index(entry) + len(entry) :]
            yield Lie("M7", f"{key} {text[:30]!r}", body, "FormatError", "external_data", part)


# Lies about the end of a message, or that the table of tensors finds: they concern the whole file.
WHOLE = {"a group", "many groups", "wire type 7", "field 0", "a tag of 33 bits", "2^60 floats in 8 bytes"}


def left_out(lie):
    """The warning for a tensor that strict=False leaves out; None if it refuses the lie too."""
    if (
        lie.late
        or lie.name in WHOLE
        or lie.name.startswith("a number of")
        or lie.row in {"M2", "C5", "C6", "C10", "C11"}
    ):
        return None
    return "without a name" if lie.row == "M8" else "cannot be read"


def cases():
    for lie in (*wire(), *shapes(), *data(), *elsewhere()):
        raw = model([tensor_proto("a", A), lie.body])
        at = raw.rindex(field(5, lie.body))
        if lie.part is not None:
            inner = raw.index(lie.body, at)
            at = inner + lie.body.rindex(lie.part)
        yield Case(lie.row, KIND, lie.name, raw, lie.error, lie.field, at, late=lie.late, odd=left_out(lie))
    for name, location in LOCATIONS.items():
        raw = model([start(1, 2) + external(location=location)])
        yield Case("M6", KIND, name, raw, "LayoutError", "location", odd="its tensors are left out")
    strings = model([tensor_proto("a", A), start(8, 1) + field(6, b"text")])
    at = strings.index(field(5, start(8, 1) + field(6, b"text")))
    yield Case("M5", KIND, "strings", strings, "UnsupportedError", "data_type", at, odd="holds strings")
    sparse = field(15, field(1, tensor_proto("s", A)))
    yield Case("M5", KIND, "a sparse one", model([tensor_proto("a", A)], sparse), odd="1 sparse tensor left out")
    yield Case("M2", KIND, "no graph", HEAD, "TruncatedError", "graph", len(HEAD))
    inner = graph([tensor_proto("a", A)])
    longer = HEAD + b"\x3a" + varint(len(inner) + 1) + inner
    yield Case("M2", KIND, "a graph longer than the file", longer, "TruncatedError", "graph", len(longer))
    longer = b"\x2a" + varint(len(tensor_proto("a", A)) + 1) + tensor_proto("a", A)
    short = HEAD + field(7, longer)
    yield Case("M2", KIND, "a tensor longer than the graph", short, "LayoutError", "initializer", len(HEAD) + 2)
    for name, text in WILD_NAMES.items():
        yield Case("C11", KIND, name, model([tensor_proto(text, A)]))
    yield Case("C7", KIND, "0 by 2^60", model([start(1, 0, 2**60)]))
    yield Case("C15", KIND, "truth values", model([start(9, 4) + field(9, b"\0\1\2\xff")]))
    yield Case("C15", KIND, "truth values in numbers", model([start(9, 3) + field(5, b"\0\1\2")]))
    yield Case("C20", KIND, "no tensors", model([]))
    deep = b""
    for _ in range(4000):  # graphs in attributes of nodes
        deep = field(1, field(5, field(6, deep)))
    yield Case("M1", KIND, "graphs in graphs", model([tensor_proto("a", A)], deep), odd="1 tensor in nodes")
