"""Attacks on BinTensors, both layouts of its header."""

from dataclasses import replace

from tests.builders import bintensors as bt
from tests.builders import noise

from .case import BAD_UTF8, U64, WILD_NAMES, Case

A, B = bt.Row("a", 11, (2,), 0, 8), bt.Row("b", 1, (3,), 8, 11)
BODY = bytes(range(11))
# The rows of the threat tables about this format: a fault of a file, and the required outcome.
ROWS = {
    "B1": "BinTensors' header length of 0, beyond the file or 100,000,000: an error. Not a multiple of 8: a warning.",
    "B2": "Bytes other than a few spaces behind the header's last entry: LayoutError, a warning if not strict.",
    "B3": "The tag of an optional value above 1: FormatError.",
    "B4": "Integers beginning with 254 or 255, or cut off: an error. Longer than necessary: a warning.",
    "B5": "Lengths of strings and lists beyond the bytes left: TruncatedError.",
    "B6": "A dtype above 14: UnsupportedError.",
    "B7": "Data offsets that do not follow one another, or do not end with the file: LayoutError or TruncatedError.",
    "B8": "A map of names that is not a bijection: LayoutError.",
    "B9": "A repeated metadata key: LayoutError, a warning if not strict.",
    "B10": "A file that is valid in both layouts: the specification's, always.",
}


def make(layout, rows=(A, B), data=BODY, metadata=None, *, tail=None, length=None, **lies):
    """A file of two tensors, float32 [2] and uint8 [3], right unless arguments say otherwise."""
    head = bt.header(rows, metadata, layout, **lies)
    return bt.raw(bt.padded(head) if tail is None else head + tail, data, length)


def wide(value):
    return bt.varint(value, 253)


def kind_of(layout):
    return f"bintensors-{layout}"


SOUND = {kind_of(layout): make(layout) for layout in bt.LAYOUTS}
# The entries of both tensors begin here, in a header without metadata: after the length, a tag and a count.
FIRST = 10


def second(layout):
    """Where the entry of the second tensor begins; a name of one byte takes two."""
    return FIRST + (5 if layout == "spec" else 7)


def field_at(layout, field):
    order = ("dtype", "ndim", "shape", "begin", "end")
    return FIRST + order.index(field) + (0 if layout == "spec" else 2)


ALIASED = "the map of names has more than one name for a tensor"
ABSURD = (2**20, 2**32 - 1, 2**40, 2**60, 2**63, U64)
# A file does not name its layout: the layout that reads further gives the error. Some lies let the other layout go
# further, so its error refuses the file: class, field and place.
PADDING = ("LayoutError", "padding")
OTHER_READING = {
    **{f"B4-bintensors-spec-{first}-as-ndim": (*PADDING, 33) for first in (254, 255)},
    **{
        f"B4-bintensors-spec-{first}-as-{field}": (*PADDING, 31)
        for first in (254, 255)
        for field in ("dimension", "begin", "end")
    },
    **{f"B4-bintensors-current-{first}-as-dtype": ("TruncatedError", "shape", 11) for first in (254, 255)},
    **{f"B5-bintensors-spec-{value}-dimensions": ("UnsupportedError", "dtype", 39) for value in ABSURD},
    **{f"B5-bintensors-spec-{value}-bytes-in-a-name": (*PADDING, 15) for value in ABSURD},
    **{f"B5-bintensors-current-{value}-bytes-in-a-name": ("UnsupportedError", "dtype", 10) for value in ABSURD},
    "B8-bintensors-spec-254-as-count": (*PADDING, 31),
    f"B5-bintensors-spec-{2**40}-entries-of-the-map": (*PADDING, 33),
}


def cases():
    for layout in bt.LAYOUTS:
        for part in (lengths, integers, strings, offsets, sizes, names, ends, tails, absurd, legal):
            for case in part(layout, kind_of(layout)):
                yield told(case)
    for case in maps():
        yield told(case)


def told(case):
    other = OTHER_READING.get(case.id)
    if other is None:
        return case
    return replace(case, error=other[0], field=other[1], offset=other[2])


def lengths(layout, kind):
    whole = make(layout)
    yield Case("B1", kind, "length 0", bt.raw(b"", BODY, 0), "TruncatedError", "metadata", 8)
    yield Case("B1", kind, "length 1", bt.raw(b"\0"), "TruncatedError", "tensors", 9)
    for length in (10**6, len(whole) - 7):
        yield Case("B1", kind, f"length {length}", make(layout, length=length), "TruncatedError", "n", len(whole))
    for length in (100_000_001, 2**32, 2**60, 2**63 - 1, 2**63, U64):
        row = "B1" if length < 2**60 else "C4"
        yield Case(row, kind, f"length {length}", make(layout, length=length), "LimitError", "max_header_bytes", 0)
    head = bt.header([A, B], None, layout)[:-4]
    cut = {"spec": ("index_map", second(layout) + 5), "current": ("shape", 8 + len(head))}[layout]
    yield Case("B1", kind, "length that cuts the header", bt.raw(head), "TruncatedError", *cut)


def integers(layout, kind):
    for tag in (2, 3, 32, 250, 251, 254, 255):
        yield Case("B3", kind, f"tag {tag}", make(layout, metadata=bytes([tag])), "FormatError", "metadata", 8)
    for first in (254, 255):
        value = bytes([first]) + bytes(16)
        at = 7 if layout == "current" else 5
        for name, data, field, offset in (
            ("number of tensors", make(layout, count=value), "tensors", 9),
            ("dtype", make(layout, (A._replace(dtype=value), B)), "dtype", field_at(layout, "dtype")),
            ("ndim", make(layout, (A._replace(ndim=value), B)), "shape", field_at(layout, "ndim")),
            ("dimension", make(layout, (A._replace(shape=(value,)), B)), "shape", field_at(layout, "shape")),
            ("begin", make(layout, (A._replace(begin=value), B)), "data_offsets", field_at(layout, "begin")),
            ("end", make(layout, (A, B._replace(end=value))), "data_offsets", field_at(layout, "end") + at),
            ("number of metadata", make(layout, metadata=b"\1" + value), "metadata", 9),
            ("length of a key", make(layout, metadata=b"\1\1" + value), "metadata", 10),
        ):
            yield Case("B4", kind, f"{first} as {name}", data, "FormatError", field, offset)
    for marker, full in ((251, 3), (252, 5), (253, 9)):
        for size in range(1, full):
            data = bt.raw(b"\0" + bt.varint(5, marker)[:size])
            yield Case("B4", kind, f"integer cut after {size} of {full}", data, "TruncatedError", "tensors", 9)
    yield Case("B4", kind, "no number of tensors", bt.raw(b"\0"), "TruncatedError", "tensors", 9)
    for value, marker, long in (
        (249, None, False),
        (250, None, False),
        (250, 251, True),
        (251, 251, False),
        (65535, 251, False),
        (65535, 252, True),
        (65536, 252, False),
        (2**32 - 1, 252, False),
        (2**32 - 1, 253, True),
        (2**32, 253, False),
        (0, 253, True),
    ):
        data = make(layout, (bt.Row("a", 1, (bt.varint(value, marker), 0), 0, 0),), b"")
        odd = "takes more bytes than it needs" if long else None
        yield Case("B4", kind, f"{value} behind {marker}", data, odd=odd)
    for code in (13, 14):
        yield Case("B6", kind, f"dtype {code}", make(layout, (bt.Row("a", code, (0,), 0, 0),), b""))
    for code in (15, 250, 11 + 256, 11 + 2**32):
        data = make(layout, (A._replace(dtype=code), B))
        at, says = field_at(layout, "dtype"), f"is {code}, expected one of 0 bool, 1 uint8, 2 int8"
        yield Case("B6", kind, f"dtype {code}", data, "UnsupportedError", "dtype", at, says=says)
    odd = "an integer of the header takes more bytes than it needs"
    long = {
        "count": {"count": wide(2)},
        "dtype": {"rows": (A._replace(dtype=bt.varint(11, 252)), B)},
        "ndim": {"rows": (A._replace(ndim=bt.varint(1, 251)), B)},
        "dimension": {"rows": (A._replace(shape=(wide(2),)), B)},
        "begin": {"rows": (A._replace(begin=wide(0)), B)},
        "end": {"rows": (A, B._replace(end=wide(11)))},
        "metadata": {"metadata": b"\1" + wide(0)},
        "key": {"metadata": b"\1\1" + wide(1) + b"k" + bt.varint(1, 251) + b"v"},
    }
    if layout == "spec":
        long["index"] = {"index": [("a", wide(0)), ("b", bt.varint(1, 252))]}
        long["index count"] = {"index_count": bt.varint(2, 251)}
    for name, lie in long.items():
        yield Case("B4", kind, f"long form of {name}", make(layout, **lie), odd=odd)


def strings(layout, kind):
    for name, raw in BAD_UTF8.items():
        rows = (A._replace(name=raw), B)
        data = make(layout, rows, index=[(raw, 0), ("b", 1)])
        yield Case("C11", kind, f"name {name}", data, "FormatError", "name", FIRST)
        data = make(layout, metadata=[(raw, "v")])
        yield Case("C11", kind, f"key {name}", data, "FormatError", "metadata", 10)
        data = make(layout, metadata=[("k", raw)])
        yield Case("C11", kind, f"value {name}", data, "FormatError", "metadata", 12)
    data = make(layout, metadata=[(b"\xc3", b"\xa9")])
    yield Case("C11", kind, "UTF-8 across key and value", data, "FormatError", "metadata", 10)
    for name, text in WILD_NAMES.items():
        yield Case("C11", kind, name, make(layout, (A._replace(name=text), B)))


def offsets(layout, kind):
    other = second(layout)

    def case(row, name, rows, data=BODY, at=other):
        return Case(row, kind, name, make(layout, rows, data), "LayoutError", "data_offsets", at)

    shifted = (bt.Row("a", 11, (2,), 3, 11), bt.Row("b", 1, (3,), 11, 14))
    yield case("C9", "a hole", (A, bt.Row("b", 1, (3,), 9, 12)), bytes(12))
    yield case("C9", "a hole in front", shifted, bytes(14), FIRST)
    yield case("C9", "an overlap", (A, bt.Row("b", 1, (3,), 7, 10)), bytes(10))
    yield case("C9", "the same bytes twice", (A, bt.Row("b", 11, (2,), 0, 8)), bytes(8))
    yield case("C9", "out of order", (B, A), BODY, FIRST)
    yield case("B7", "end before begin", (A._replace(begin=8, end=0), B), BODY, FIRST)
    yield case("B7", "begin of 2^63 + 8", (A, B._replace(begin=2**63 + 8)))
    empty = bt.Row("c", 1, (0,), 3, 3)
    yield case("B7", "empty tensor past its turn", (A, B, empty), BODY, other + (5 if layout == "spec" else 7))
    far = make(layout, (A._replace(begin=2**63 + 8, end=2**63 + 16), B))
    yield Case("C5", kind, "begin and end past 2^63", far, "TruncatedError", "data_offsets", len(far))
    for end in (2**63, U64):
        yield case("C5", f"end of {end}", (A, B._replace(end=end)))


def sizes(layout, kind):
    other = second(layout)
    for name, row in (
        ("a row too many", A._replace(shape=(3,))),
        ("a row too few", A._replace(shape=(1,))),
        ("a wider dtype", A._replace(dtype=12)),
        ("a narrower dtype", A._replace(dtype=7)),
        ("scalar of eight bytes", A._replace(shape=())),
        ("empty with bytes", A._replace(shape=(0, 2))),
    ):
        yield Case("B7", kind, name, make(layout, (row, B)), "LayoutError", "data_offsets", FIRST)
    data = make(layout, (A, B._replace(shape=(2**63 + 1,))))
    yield Case("C5", kind, "dimension of 2^63 + 1", data, "LayoutError", "shape", other)
    wraps = make(layout, (A, B._replace(shape=(3, 2**64 // 3 + 2))))
    yield Case("C6", kind, "size that wraps to 3", wraps, "LayoutError", "shape", other)
    for name, row in (
        ("product of 2^64 is 0", bt.Row("b", 1, (2**32, 2**32), 8, 8)),
        ("product of 2^64 bytes is 0", bt.Row("b", 12, (2**61,), 8, 8)),
        ("overflow, then zero", bt.Row("b", 1, (2**40, 2**40, 0), 8, 8)),
        ("zero, then overflow", bt.Row("b", 1, (0, 2**40, 2**40), 8, 8)),
    ):
        yield Case("C6", kind, name, make(layout, (A, row), BODY[:8]), "LayoutError", "shape", other)
    for count in (65, 300):
        data = make(layout, (A, B._replace(shape=(*[1] * (count - 1), 3))))
        yield Case("C8", kind, f"{count} dimensions", data, "LimitError", "ndim", other)


def names(layout, kind):
    for label, name in (("one name", "a"), ("the empty name", "")):
        rows = (A._replace(name=name), B._replace(name=name))
        data = make(layout, rows, index=[(name, 0), (name, 1)])
        at = second(layout) - (1 if layout == "current" and not name else 0)
        yield Case("C10", kind, f"{label} twice", data, "LayoutError", "name", at)
    yield Case("C10", kind, "empty name", make(layout, (A._replace(name=""), B)), odd="empty name")


def ends(layout, kind):
    for name, data in (("data a byte short", make(layout, data=BODY[:-1])), ("no data", make(layout, data=b""))):
        yield Case("B7", kind, name, data, "TruncatedError", "data_offsets", len(data))
    # The bytes behind the last tensor are read as one more: spaces, or the map of names.
    third = second(layout) + (5 if layout == "spec" else 7)
    fewer = {"spec": ("index_map", third + 5), "current": ("tensors", 9)}[layout]
    yield Case("B5", kind, "a tensor fewer than counted", make(layout, count=3), "TruncatedError", *fewer)
    more = {"spec": ("index_map", third - 2), "current": ("padding", third - 7)}[layout]
    odd = "padding of the header" if layout == "current" else None
    yield Case("B2", kind, "a tensor more than counted", make(layout, count=1), "LayoutError", *more, odd=odd)
    # Forty tensors of the fewest bytes, and none left for the map that names them.
    yield Case("B8", kind, "tensors without names", bt.raw(b"\0\x28" + bytes(160)), "TruncatedError", "tensors", 9)


def tails(layout, kind):
    at = 8 + len(bt.header((A, B), None, layout))
    for name, tail in {
        "junk": b"junk",
        "zeros": bytes(3),
        "a zero between spaces": b"  \0  ",
        "eight spaces": b" " * 8,
        "a hundred spaces": b" " * 100,
        "a hidden page": b"\x7fELF" * 1024,
    }.items():
        yield Case("B2", kind, name, make(layout, tail=tail), "LayoutError", "padding", at, odd="padding of the header")
    end = len(make(layout))
    for name, more in (("a byte behind the data", b"x"), ("a file behind the data", make(layout))):
        data = make(layout, data=BODY + more)
        yield Case("C2", kind, name, data, "LayoutError", "data_offsets", end, odd="trailing")
    data = make(layout, metadata=[("k", "1"), ("l", ""), ("k", "2")])
    yield Case("B9", kind, "a key twice", data, "LayoutError", "metadata", 10, odd="the key 'k' twice")
    for tail in (b"", b" ", b" " * 7):
        data = make(layout, tail=tail)
        odd = None if int.from_bytes(data[:8], "little") % 8 == 0 else "not a multiple of 8"
        yield Case("B1", kind, f"{len(tail)} spaces of padding", data, odd=odd)


def absurd(layout, kind):
    for value in ABSURD:
        n = wide(value)
        for name, data, field, offset in (
            ("tensors", make(layout, count=n), "tensors", 9),
            ("dimensions", make(layout, (A._replace(ndim=n), B)), "shape", field_at(layout, "ndim")),
            ("metadata", make(layout, metadata=b"\1" + n), "metadata", 9),
            ("bytes in a key", make(layout, metadata=b"\1\1" + n + b"k"), "metadata", 10),
            ("bytes in a value", make(layout, metadata=b"\1\1\1k" + n + b"v"), "metadata", 12),
            ("bytes in a name", long_name(layout, n), "name" if layout == "current" else "index_map", None),
        ):
            at = offset if offset is not None else 10 if layout == "current" else 15
            yield Case("B5", kind, f"{value} {name}", data, "TruncatedError", field, at)
        data = make(layout, (A._replace(shape=(value,)), B))
        row, field = ("B7", "data_offsets") if value <= 2**60 else ("C6", "shape")
        yield Case(row, kind, f"{value} rows", data, "LayoutError", field, FIRST)


def long_name(layout, length):
    head = b"\0\1" + length + b"\0\0\0\0" if layout == "current" else b"\0\1\0\0\0\0\1" + length + b"\0\0"
    return bt.raw(bt.padded(head))


def legal(layout, kind):
    def single(dtype, shape, data):
        return make(layout, (bt.Row("w", bt.CODES[dtype], shape, 0, len(data)),), data)

    for shape in ((0,), (2**33, 0), (0, 2**40)):
        yield Case("C7", kind, f"shape {'x'.join(map(str, shape))}", single("float32", shape, b""))
    yield Case("C8", kind, "no dimensions", single("float32", (), bytes(4)))
    yield Case("C8", kind, "64 dimensions", single("float32", (1,) * 64, bytes(4)))
    yield Case("C15", kind, "any truth values", single("bool", (256,), bytes(range(256))))
    for dtype in ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn"):
        value = noise(dtype, (64,))
        yield Case("C16", kind, f"any bits of {dtype}", single(dtype, (64,), value.data))
    yield Case("C20", kind, "no tensors", make(layout, (), b""))
    if layout == "spec":
        yield Case("B10", kind, "valid in both layouts", bt.BOTH)


def maps():
    kind = kind_of("spec")
    at = 8 + len(bt.header((A, B), None, "spec", index=[], index_count=b""))
    for name, lie, error, offset in (
        ("an entry too few", {"index": [("a", 0)]}, "LayoutError", at),
        ("no entry", {"index": []}, "LayoutError", at),
        ("an entry too many", {"index": [("a", 0), ("b", 1), ("c", 1)]}, "LayoutError", at),
        ("index 2 of 2", {"index": [("a", 0), ("b", 2)]}, "LayoutError", at + 6),
        ("index 2^64 - 1", {"index": [("a", 0), ("b", U64)]}, "LayoutError", at + 6),
        ("index 2^32", {"index": [("a", 0), ("b", 2**32)]}, "LayoutError", at + 6),
        ("index 2^32 + 1", {"index": [("a", 0), ("b", 2**32 + 1)]}, "LayoutError", at + 6),
        ("two names for one", {"index": [("a", 0), ("b", 0)]}, "LayoutError", at + 6),
        ("count too small", {"index_count": 1}, "LayoutError", at),
        ("count too large", {"index_count": 3}, "LayoutError", at),
        ("254 as count", {"index_count": b"\xfe" + bytes(16)}, "FormatError", at),
        ("255 as an index", {"index": [("a", 0), ("b", b"\xff" + bytes(8))]}, "FormatError", at + 6),
        ("no map", {"index": [], "index_count": b""}, "TruncatedError", at),
    ):
        says = {
            "index 2 of 2": "is 2, expected less than 2",
            "two names for one": "expected one that no earlier entry has",
        }
        odd = ALIASED if name == "two names for one" else None
        yield Case("B8", kind, name, make("spec", **lie), error, "index_map", offset, odd=odd, says=says.get(name, ""))
    for index, at_ in (([("a", 1)], 3), ([("a", 0), ("b", 0)], 0)):
        data = make("spec", (B._replace(begin=0, end=3),), BODY[:3], index=index)
        where = second("spec") + at_
        yield Case("B8", kind, f"{len(index)} names of one tensor", data, "LayoutError", "index_map", where)
    # A map with a name for no tensor; the other layout sees three bytes behind an empty list, which tells more.
    data = bt.raw(b"\0\0\1\0\0")
    yield Case("B8", kind, "a map that nothing precedes", data, "LayoutError", "padding", 10, odd="padding of")
    data = make("spec", index=[("a", 0), ("a", 1)])
    yield Case("B8", kind, "one name for both", data, "LayoutError", "name", second("spec"))
    for value in ABSURD:
        data = make("spec", index_count=wide(value))
        yield Case("B5", kind, f"{value} entries of the map", data, "TruncatedError", "index_map", at)
    rows = [bt.Row("a", 1, (1,), 0, 1), bt.Row("b", 1, (1,), 1, 2)]
    data = bt.raw(bt.padded(bt.header(rows, index=[("a", 0), ("b", 0)])), b"12")
    where = data.index(b"\1b\0") + 2
    yield Case("B10", kind, "a map that lies, not a tail of junk", data, "LayoutError", "index_map", where, odd=ALIASED)
    yield Case("B8", kind, "a map in another order", make("spec", index=[("z", 1), ("a", 0)]))
