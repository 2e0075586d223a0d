"""BinTensors files, both header layouts: `header` writes any fields, `dissect` reads them back, `parse` asserts.

Wherever a header holds an integer or a string, the builder takes bytes as well and writes them as they are: so a test
can tell one lie in a file that is otherwise right.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.fuzz.anatomy import Walk
from tests.fuzz.dictionary import FORMS

from . import Bounds, Builder, Example, Golden, Tensor, named, noise, normal, numpy_dtype, safetensors

FORMAT = "bintensors"
SUFFIX = ".bt"
LAYOUTS = ("spec", "current")

# In the order of their codes; spelled by the specification and the reference implementation as safetensors does.
THEIRS = {name: code for name, code in safetensors.CODES.items() if name not in {"float8_e8m0fnu", "complex64"}}
NAMES = tuple(THEIRS)
CODES = {name: code for code, name in enumerate(NAMES)}
MAX_HEADER = 100_000_000

# The example of the specification: I32 of shape [1, 4] named "test".
SPECIFICATION_BYTES = bytes.fromhex("1000000000000000 00010902010400100104746573740020") + bytes(16)

_WIDTHS = {251: "<H", 252: "<I", 253: "<Q"}


def varint(value, marker=None):
    """An unsigned integer; `marker` (251, 252, 253) forces that form even where a shorter one would do."""
    if marker is None:
        marker = 0 if value <= 250 else 251 if value < 2**16 else 252 if value < 2**32 else 253
    return bytes([marker]) + struct.pack(_WIDTHS[marker], value) if marker else bytes([value])


def number(value):
    """An integer in its shortest form; bytes as they are."""
    return value if isinstance(value, bytes) else varint(value)


def string(text):
    """Length and UTF-8; bytes go behind the length as they are, so they need not be UTF-8."""
    raw = text if isinstance(text, bytes) else text.encode()
    return varint(len(raw)) + raw


class Row(NamedTuple):
    """One tensor of a header, right or wrong."""

    name: str | bytes
    dtype: int | bytes
    shape: Sequence[int | bytes]
    begin: int | bytes
    end: int | bytes
    ndim: int | bytes | None = None


def mapping(pairs, count=None):
    """A map of encoded keys and values, in this order; `count` replaces the true number of them."""
    items = list(pairs)
    return number(len(items) if count is None else count) + b"".join(key + value for key, value in items)


def option(metadata):
    """The metadata: None and {} differ. A mapping is sorted by key, a list of pairs is written as it is."""
    if isinstance(metadata, bytes):
        return metadata
    if metadata is None:
        return b"\0"
    pairs = metadata if isinstance(metadata, list | tuple) else sorted(metadata.items(), key=lambda pair: utf8(pair[0]))
    return b"\1" + mapping((string(key), string(value)) for key, value in pairs)


def utf8(name):
    """The bytes by which names are sorted."""
    return name if isinstance(name, bytes) else name.encode()


def header(rows, metadata=None, layout="spec", *, count=None, index=None, index_count=None):
    """The header without its padding.

    `count` and `index_count` replace the true numbers of tensors and of entries of the index map, `index` its entries.
    """
    parts = [option(metadata), number(len(rows) if count is None else count)]
    for row in rows:
        if layout == "current":
            parts.append(string(row.name))
        parts += (number(row.dtype), number(len(row.shape) if row.ndim is None else row.ndim), *map(number, row.shape))
        parts += (number(row.begin), number(row.end))
    if layout == "spec":
        if index is None:
            index = sorted(((row.name, place) for place, row in enumerate(rows)), key=lambda pair: utf8(pair[0]))
        parts.append(mapping(((string(name), number(place)) for name, place in index), index_count))
    return b"".join(parts)


def padded(head):
    """The header with spaces up to a multiple of eight."""
    return head + b" " * (-len(head) % 8)


def raw(head, data=b"", length=None):
    """A file of these header bytes; `length` replaces the true length."""
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def rows_of(tensors):
    """The rows of tensors that follow each other in this order."""
    rows, place = [], 0
    for name, value in tensors.items():
        rows.append(Row(name, CODES[value.dtype], value.shape, place, place + len(value.data)))
        place += len(value.data)
    return rows


def ordered(tensors):
    """The tensors as a writer has to order them: by descending code of their dtype, then by the bytes of their name."""
    return dict(sorted(tensors.items(), key=lambda item: (-CODES[item[1].dtype], utf8(item[0]))))


def build(tensors, metadata=None, layout="spec", *, pad=True):
    """A valid file, tensors in the given order."""
    head = header(rows_of(tensors), metadata, layout)
    return raw(padded(head) if pad else head, b"".join(value.data for value in tensors.values()))


class Malformed(Exception):  # noqa: N818 - a verdict on a file, not a mistake of the program
    """The header cannot be read in the requested layout."""


@dataclass
class Found:
    """The fields of a header that could be read to its end, and its oddities.

    `long` counts the integers that a shorter form could have held; `wide_dtype` says that a dtype took nine bytes.
    """

    metadata: list[tuple[str, str]] | None
    rows: list[tuple[str, int, tuple[int, ...], int, int]]
    index: list[tuple[str, int]]
    tail: bytes
    data: bytes
    long: int = 0
    wide_dtype: bool = False


class _Cursor:
    def __init__(self, head):
        self.head, self.place, self.long = head, 0, 0

    def take(self, size):
        if size > len(self.head) - self.place:
            raise Malformed("the header ends too early")
        self.place += size
        return self.head[self.place - size : self.place]

    def number(self):
        first = self.take(1)[0]
        if first <= 250:
            return first
        if first > 253:
            raise Malformed("an integer that begins with 254 or 255")
        code = _WIDTHS[first]
        (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        self.long += len(varint(value)) < 1 + struct.calcsize(code)
        return int(value)

    def string(self):
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise Malformed("a string that is not UTF-8") from None

    def count(self, least):
        value = self.number()
        if value * least > len(self.head) - self.place:
            raise Malformed("more entries than bytes")
        return value


def dissect(data, layout):
    """Read a header in one layout as far as each field makes sense; does not judge how they fit together."""
    if len(data) < 8:
        raise Malformed("shorter than the length of a header")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(MAX_HEADER, len(data) - 8):
        raise Malformed("the length of the header")
    cursor, body = _Cursor(data[8 : 8 + size]), data[8 + size :]
    tag = cursor.take(1)[0]
    if tag > 1:
        raise Malformed("neither None nor Some")
    metadata = [(cursor.string(), cursor.string()) for _ in range(cursor.count(2))] if tag else None
    rows, wide = [], False
    for _ in range(cursor.count(5 if layout == "current" else 4)):
        name = cursor.string() if layout == "current" else ""
        wide |= cursor.head[cursor.place : cursor.place + 1] == b"\xfd"
        dtype = cursor.number()
        if dtype >= len(NAMES):
            raise Malformed("an unknown dtype")
        shape = tuple(cursor.number() for _ in range(cursor.count(1)))
        rows.append((name, dtype, shape, cursor.number(), cursor.number()))
    index = [(cursor.string(), cursor.number()) for _ in range(cursor.count(2))] if layout == "spec" else []
    return Found(metadata, rows, index, cursor.head[cursor.place :], body, cursor.long, wide)


def faults(found, layout):
    """The reasons why a header is invalid, in words that tests refer to."""
    out, place = set(), 0
    for _, dtype, shape, begin, end in found.rows:
        size = math.prod(shape) * numpy_dtype(NAMES[dtype]).itemsize
        if begin != place or end < begin:
            out.add("offsets")
        elif end - begin != size:
            out.add("size")
        # The reference multiplies from the left and stops at the first product of more than 64 bits, zeros included.
        product = 1
        for part in (*shape, numpy_dtype(NAMES[dtype]).itemsize):
            product *= part
            if product >= 2**64:
                out.add("product")
        if math.prod(filter(None, shape)) * numpy_dtype(NAMES[dtype]).itemsize >= 2**63:
            out.add("numpy cannot hold the shape")
        if len(shape) > 64:
            out.add("more than 64 dimensions")
        place = end
    if place != len(found.data):
        out.add("data missing" if place > len(found.data) else "trailing data")
    if layout == "spec":
        if len({name for name, _ in found.index}) != len(found.index):
            out.add("duplicate names")
        if sorted(place for _, place in found.index) != list(range(len(found.rows))):
            out.add("index map")
    elif len({row[0] for row in found.rows}) != len(found.rows):
        out.add("duplicate names")
    if found.metadata is not None and len(dict(found.metadata)) != len(found.metadata):
        out.add("duplicate metadata keys")
    if found.tail.strip(b" ") or len(found.tail) > 7:
        out.add("tail")
    return out


def valid(data, layout):
    """Whether a strict reader of this layout accepts the file."""
    try:
        return not faults(dissect(data, layout), layout)
    except Malformed:
        return False


def content(found, layout):
    """The tensors, in the order of their data."""
    names = [row[0] for row in found.rows]
    if layout == "spec":
        for name, place in found.index:
            names[place] = name
    return {
        name: Tensor(NAMES[dtype], shape, found.data[begin:end])
        for name, (_, dtype, shape, begin, end) in zip(names, found.rows, strict=True)
    }


def parse(data, layout="spec"):
    """Read a valid file, asserting every duty of a writer; tensors in the order of their data."""
    found = dissect(data, layout)
    assert faults(found, layout) == set()
    assert struct.unpack_from("<Q", data)[0] % 8 == 0
    assert found.long == 0
    tensors = content(found, layout)
    assert list(tensors) == list(ordered(tensors))
    assert found.index == sorted(found.index, key=lambda pair: utf8(pair[0]))
    if found.metadata is None:
        return tensors, None
    assert found.metadata == sorted(found.metadata, key=lambda pair: utf8(pair[0]))
    return tensors, dict(found.metadata)


EVERY = ordered({f"w.{dtype}": noise(dtype, (3, 5), seed) for seed, dtype in enumerate(CODES)})
SMALL = ordered({"a": normal((2, 3), 1), "b.bias": noise("float16", (5,), 2)})
RANKS = ordered(
    {
        "scalar": normal(()),
        "truth": noise("bool", ()),
        "five": noise("int8", (1, 2, 1, 2, 1)),
        "empty": normal((0, 4)),
        "": noise("bfloat16", (3,), 5),
        'ünï"\\\n\0': noise("uint8", (3,)),
        "\u540d\u524d": noise("int64", (1, 1)),
        "huge": noise("float64", (2**33, 0)),
    }
)
# Valid in both readings, and by design: everything from the shape on stands in the name of the current layout.
# spec: {"x\x0b\1\0\0": float16[0]}      current: {"\1\0\0\0\1\5x": float32[0]}
BOTH = raw(padded(b"\0\1" + string(b"\1\0\0\0\1\5x") + b"\x0b\1\0\0\0"))


def examples():
    """Files of both layouts, from nothing to every dtype, and files that only a foreign writer makes."""

    def example(name, layout, tensors, metadata=None, data=None, **options):
        whole = build(tensors, metadata, layout, **options) if data is None else data
        return Example(f"{layout}-{name}", FORMAT, SUFFIX, whole, tensors, metadata or {}, layout=layout)

    many = {"longest.name": noise("uint8", (3,))}
    many |= {f"n{number:03}": noise("uint8", (number % 3,), number) for number in range(250)}
    long = {"k" * 251: "v" * 300, "clé": "ñ", "": ""}
    backwards = dict(reversed(SMALL.items()))
    return [
        example("specification", "spec", {"test": Tensor("int32", (1, 4), bytes(16))}, data=SPECIFICATION_BYTES),
        example("nothing", "spec", {}),
        example("every-dtype", "spec", EVERY),
        example("ranks", "spec", RANKS, {}),
        example("unpadded-header", "spec", SMALL, {"é": ""}, pad=False),
        example("251-tensors", "spec", many, long),
        example("nothing", "current", {}, {}),
        example("every-dtype", "current", EVERY, {"format": "pt", "clé": "ñ"}),
        example("ranks", "current", RANKS),
        example("unsorted-unpadded", "current", backwards, pad=False),
        example("valid-in-both", "spec", {"x\x0b\1\0\0": Tensor("float16", (0,), b"")}, data=BOTH),
    ]


def many(count, layout="current"):
    """BinTensors: integers of one to five bytes, names with the tensors or in a map behind them."""
    numbers = [varint(i) for i in range(count + 1)]
    begin = b"\0" + varint(count)
    if layout == "current":
        parts = [b"\7%07d\1\1\1" % i + numbers[i] + numbers[i + 1] for i in range(count)]
    else:
        parts = [b"\1\1\1" + numbers[i] + numbers[i + 1] for i in range(count)]
        parts += [varint(count), *(b"\7%07d" % i + numbers[i] for i in range(count))]
    return raw(padded(begin + b"".join(parts)), bytes(count))


def anatomy(data):
    """BinTensors, in the layout in which the whole header makes sense."""
    for current in (True, False):
        walk = Walk(data)
        try:
            _bincode(walk, current=current)
        except IndexError:
            continue
        end = 8 + int.from_bytes(data[:8], "little")
        if walk.at <= end and not data[walk.at : end].strip(b" "):
            break
    return walk.anatomy


def _bincode(walk, *, current):
    length = walk.field(8)
    walk.span(length, 8, 8 + walk.value(length))
    if walk.value(walk.field(1)):
        for _ in walk.items(walk.varint()):
            walk.string()
            walk.string()
    count = walk.varint()
    for _ in walk.items(count):
        if current:
            walk.string()
        walk.varint()
        ndim = walk.varint()
        for _ in range(walk.value(ndim)):
            walk.varint()
        walk.varint()
        walk.varint()
    if not current:
        for _ in walk.items(walk.varint()):
            walk.string()
            walk.varint()


def trailing(_, data, __):
    """The last tensor ends where the file does."""
    return "LayoutError", "data_offsets", len(data), "trailing"


BUILDER = Builder(
    format=FORMAT,
    title="BinTensors",
    suffix=SUFFIX,
    holds="written by the bintensors package, a binary sibling of safetensors; both header layouts",
    examples=examples,
    damage=("tests.attacks.bintensors",),
    growing={"bintensors-current": many, "bintensors-spec": lambda count: many(count, "spec")},
    anatomy=anatomy,
    errors=(21, 24),
    trailing=trailing,
    dictionary=FORMS,
    saved={"bintensors": lambda array: named(array) | {"metadata": {"k": "v"}}},
    golden={
        "spec.bt": Golden(
            "0232e0830a960eaea40659ecddfaea40e78d956e388f235746595ba3e4409d37",
            lambda c: {"tensors": c.tensors | c.kinds, "metadata": c.metadata},
        ),
        "current.bt": Golden(
            "3c8c5fe694e0951f01198a8020c328e9f1c235cdedb95ed870fcb9dcf1053324",
            lambda c: {"tensors": c.tensors | c.kinds, "metadata": c.metadata, "layout": "current"},
        ),
    },
    metadata="texts",
    bounds={"bintensors-spec": Bounds(88, 88, 40, 32, 126, 21)},
)
