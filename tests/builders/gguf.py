"""GGUF files of every version and byte order: `build` writes any fields, `parse` reads a file back and asserts.

A value has a kind: the name of a type in `KINDS`, or a list of one kind for an array. A number may be given as bytes,
which are written as they are: so a test can tell one lie in a file that is otherwise right.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from tests.fuzz.anatomy import Walk

from . import Bounds, Builder, Example, Golden, Tensor, named, noise, normal, numpy_dtype

FORMAT = "gguf"
SUFFIX = ".gguf"
ALIGNMENT = 32
# Code and spelling in `struct` of every type of values; texts and arrays have none.
KINDS = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"),
    "bool": (7, "?"), "str": (8, ""), "array": (9, ""), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d"),
}  # fmt: skip
KIND_OF = {code: kind for kind, (code, _) in KINDS.items()}
DENSE = {"float32": 0, "float16": 1, "int8": 24, "int16": 25, "int32": 26, "int64": 27, "float64": 28, "bfloat16": 30}
# Types in blocks: code, elements and bytes of a block.
BLOCKS = {
    "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24), "q8_0": (8, 32, 34),
    "q8_1": (9, 32, 40), "q2_k": (10, 256, 84), "q3_k": (11, 256, 110), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210), "q8_k": (15, 256, 292), "iq2_xxs": (16, 256, 66), "iq2_xs": (17, 256, 74),
    "iq3_xxs": (18, 256, 98), "iq1_s": (19, 256, 50), "iq4_nl": (20, 32, 18), "iq3_s": (21, 256, 110),
    "iq2_s": (22, 256, 82), "iq4_xs": (23, 256, 136), "iq1_m": (29, 256, 56), "tq1_0": (34, 256, 54),
    "tq2_0": (35, 256, 66), "mxfp4": (39, 32, 17), "nvfp4": (40, 64, 36), "q1_0": (41, 128, 18), "q2_0": (42, 64, 18),
}  # fmt: skip
CODES = DENSE | {name: code for name, (code, _, _) in BLOCKS.items()}


class KeyValue(NamedTuple):
    """A key, the kind of its value, and the value."""

    key: str | bytes
    kind: Any
    value: Any


class Info(NamedTuple):
    """A tensor info, right or wrong; dimensions in the order of the file, the fastest first."""

    name: str | bytes
    dims: Sequence[int | bytes]
    type: int | bytes
    offset: int | bytes
    ndim: int | bytes | None = None


@dataclass
class Coder:
    """How numbers are written: by the version of the format and the order of bytes."""

    version: int = 3
    big: bool = False

    def number(self, value, code="I"):
        """A number; bytes as they are."""
        return value if isinstance(value, bytes) else struct.pack(("><"[not self.big]) + code, value)

    def count(self, value):
        """A length, count or dimension."""
        return self.number(value, "I" if self.version == 1 else "Q")

    def string(self, text, length=None):
        """A string; bytes need not be UTF-8, and `length` replaces the true one."""
        raw = text if isinstance(text, bytes) else text.encode()
        return self.count(len(raw) if length is None else length) + raw

    def value(self, kind, value):
        """A value without its type."""
        if isinstance(value, bytes) and kind != "str":
            return value
        if isinstance(kind, list):
            return (
                self.number(code_of(kind[0])) + self.count(len(value)) + b"".join(self.value(kind[0], v) for v in value)
            )
        return self.string(value) if kind == "str" else self.number(value, KINDS[kind][1])

    def key_value(self, entry):
        key, kind, value = entry
        return self.string(key) + self.number(code_of(kind)) + self.value(kind, value)

    def info(self, info):
        dims = b"".join(map(self.count, info.dims))
        ndim = self.number(len(info.dims) if info.ndim is None else info.ndim)
        return self.string(info.name) + ndim + dims + self.number(info.type) + self.number(info.offset, "Q")

    def swapped(self, value):
        """The data of a tensor in this byte order."""
        if not self.big or value.dtype not in DENSE:
            return value.data
        return np.frombuffer(value.data, f"u{numpy_dtype(value.dtype).itemsize}").byteswap().tobytes()


def code_of(kind):
    """The code of a kind of values; an unknown one may be given as its number."""
    return 9 if isinstance(kind, list) else kind if isinstance(kind, int) else KINDS[kind][0]


def padding(size, alignment=ALIGNMENT):
    """Zeros from `size` up to a multiple of the alignment."""
    return bytes(-size % alignment)


def infos_of(tensors, alignment=ALIGNMENT):
    """The infos of tensors that follow each other in this order."""
    infos, place = [], 0
    for name, value in tensors.items():
        infos.append(Info(name, value.shape[::-1], CODES[value.dtype], place))
        place += len(value.data) + -len(value.data) % alignment
    return infos


def header(infos, values=(), coder=None, *, tensor_count=None, kv_count=None):
    """The header without its padding; the counts replace the true ones."""
    coder = coder or Coder()
    counts = (len(infos) if tensor_count is None else tensor_count, len(values) if kv_count is None else kv_count)
    return b"".join(
        (
            b"GGUF",
            coder.number(coder.version),
            *map(coder.count, counts),
            *map(coder.key_value, values),
            *map(coder.info, infos),
        )
    )


def build(tensors, values=(), *, version=3, big=False, alignment=ALIGNMENT, padded=True, listed=None):
    """A valid file: tensors in the given order, listed as `listed` says, `padded` at its end."""
    coder = Coder(version, big)
    infos = infos_of(tensors, alignment)
    if listed is not None:
        infos.sort(key=lambda info: listed.index(info.name))
    head = header(infos, values, coder)
    head += padding(len(head), alignment)
    body = b""
    for number, value in enumerate(tensors.values(), 1):
        body += coder.swapped(value)
        if padded or number < len(tensors):
            body += padding(len(body), alignment)
    return head + body


@dataclass
class Found:
    """The content of a file: key-values with their kinds, infos, and the begin of the data section."""

    version: int
    big: bool
    values: list[KeyValue] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    base: int = 0
    alignment: int = ALIGNMENT


class _Cursor:
    def __init__(self, data):
        self.data, self.place = data, 0
        version = int.from_bytes(data[4:8], "little")
        self.big = version & 0xFFFF == 0
        self.place = 8
        self.version = int.from_bytes(data[4:8], "big") if self.big else version

    def take(self, size):
        assert size <= len(self.data) - self.place
        self.place += size
        return self.data[self.place - size : self.place]

    def number(self, code="I"):
        (value,) = struct.unpack(("><"[not self.big]) + code, self.take(struct.calcsize(code)))
        return value

    def count(self):
        return int(self.number("I" if self.version == 1 else "Q"))

    def string(self):
        return self.take(self.count()).decode()

    def value(self, code):
        if KIND_OF[code] == "str":
            return "str", self.string()
        if KIND_OF[code] != "array":
            return KIND_OF[code], self.number(KINDS[KIND_OF[code]][1])
        inner, count = self.number(), self.count()
        items = [self.value(inner) for _ in range(count)]
        kind = items[0][0] if items else KIND_OF[inner]
        return [kind], [item for _, item in items]


def dissect(data):
    """The fields of a file that is sound."""
    assert data[:4] == b"GGUF"
    cursor = _Cursor(data)
    found = Found(cursor.version, cursor.big)
    n_tensors, n_values = cursor.count(), cursor.count()
    for _ in range(n_values):
        key = cursor.string()
        found.values.append(KeyValue(key, *cursor.value(cursor.number())))
        if key == "general.alignment":
            found.alignment = found.values[-1].value
    for _ in range(n_tensors):
        name, ndim = cursor.string(), cursor.number()
        dims = [cursor.count() for _ in range(ndim)]
        found.infos.append(Info(name, dims, cursor.number(), cursor.number("Q")))
    found.base = cursor.place + -cursor.place % found.alignment
    return found


def parse(data):
    """Read a file back, asserting every duty of a writer; tensors in the order of their data."""
    found = dissect(data)
    names = {code: name for name, code in CODES.items()}
    assert (found.version, found.big) == (3, False)
    assert len({value.key for value in found.values}) == len(found.values)
    place, tensors = 0, {}
    for info in found.infos:
        assert info.offset == place
        dtype, shape = names[info.type], tuple(info.dims[::-1])
        if dtype in BLOCKS:
            _, elements, octets = BLOCKS[dtype]
            assert shape[-1] % elements == 0
            size = math.prod(shape) // elements * octets
        else:
            size = math.prod(shape) * numpy_dtype(dtype).itemsize
        begin = found.base + place
        tensors[str(info.name)] = Tensor(dtype, shape, data[begin : begin + size])
        place += size
        gap = -place % found.alignment
        assert data[found.base + place : found.base + place + gap] == bytes(gap)
        place += gap
    assert len(tensors) == len(found.infos)
    if place:
        assert len(data) == found.base + place
    return tensors, found.values


class Numbers(list[Any]):
    """The required numbers of an array, and their dtype: equal to such an array and to itself only."""

    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, values, dtype):
        super().__init__(values)
        self.dtype = dtype

    def __eq__(self, other):
        if isinstance(other, np.ndarray):
            return other.dtype == self.dtype and other.tolist() == list(self) and not other.flags.writeable
        return isinstance(other, Numbers) and (self.dtype, list(self)) == (other.dtype, list(other))


def read_as(kind, value):
    """The metadata's form of a value of a kind."""
    if not isinstance(kind, list):
        return value
    inner = kind[0]
    if inner == "str":
        return list(value)
    if isinstance(inner, list):
        return [read_as(inner, item) for item in value]
    return Numbers(value, "bool" if inner == "bool" else {"u": "uint", "i": "int", "f": "float"}[inner[0]] + inner[1:])


TOKENS = ("<unk>", "<s>", "</s>", "\u2581the", "\u2581", "", "n\u0303", "\u2581the", "\U0001f30e")
VOCAB = (
    KeyValue("tokenizer.ggml.model", "str", "llama"),
    KeyValue("tokenizer.ggml.tokens", ["str"], TOKENS),
    KeyValue("tokenizer.ggml.scores", ["f32"], [-float(i) for i in range(9)]),
    KeyValue("tokenizer.ggml.token_type", ["i32"], [2, 3, 3, 1, 1, 1, 1, 1, 6]),
    KeyValue("tokenizer.ggml.bos_token_id", "u32", 1),
    KeyValue("tokenizer.ggml.eos_token_id", "u32", 2),
    KeyValue("tokenizer.ggml.unknown_token_id", "u32", 0),
    KeyValue("tokenizer.ggml.padding_token_id", "i32", 5),
    KeyValue("tokenizer.ggml.seperator_token_id", "u64", 6),
    KeyValue("tokenizer.ggml.cls_token_id", "u16", 7),
    KeyValue("tokenizer.ggml.mask_token_id", "u8", 8),
    KeyValue("tokenizer.ggml.add_bos_token", "bool", True),
)
IDS = {"bos": 1, "eos": 2, "unk": 0, "pad": 5, "sep": 6, "cls": 7, "mask": 8}
EVERY_VALUE = (
    KeyValue("general.architecture", "str", "llama"),
    KeyValue("u8", "u8", 200),
    KeyValue("i8", "i8", -100),
    KeyValue("u16", "u16", 65000),
    KeyValue("i16", "i16", -30000),
    KeyValue("u32", "u32", 4_000_000_000),
    KeyValue("i32", "i32", -2_000_000_000),
    KeyValue("f32", "f32", 0.5),
    KeyValue("yes", "bool", True),
    KeyValue("no", "bool", False),
    KeyValue("", "str", ""),
    KeyValue("cl\u00e9 \u540d\0", "str", "na\u00efve\n\U0001f30e\0"),
    KeyValue("u64", "u64", 2**64 - 1),
    KeyValue("i64", "i64", -(2**63)),
    KeyValue("f64", "f64", -1e300),
    KeyValue("infinite", "f32", math.inf),
    KeyValue("u8s", ["u8"], [0, 255]),
    KeyValue("i8s", ["i8"], [-128, 127]),
    KeyValue("u16s", ["u16"], [0, 65535]),
    KeyValue("i16s", ["i16"], [-32768]),
    KeyValue("u32s", ["u32"], [2**32 - 1]),
    KeyValue("i32s", ["i32"], [1, -2, 3]),
    KeyValue("f32s", ["f32"], [0.5, -0.25]),
    KeyValue("bools", ["bool"], [True, False, True]),
    KeyValue("strs", ["str"], ["a", "", "\u00fc\u00df", "x" * 300]),
    KeyValue("u64s", ["u64"], [2**64 - 1]),
    KeyValue("i64s", ["i64"], [-(2**63)]),
    KeyValue("f64s", ["f64"], [1e300]),
    KeyValue("none", ["f32"], []),
    KeyValue("no texts", ["str"], []),
    KeyValue("nested", [["i16"]], [[1, 2], [], [3]]),
    KeyValue("nested texts", [[["str"]]], [[["a", "b"], []], [], [["c"]]]),
)
EVERY = {f"w.{dtype}": noise(dtype, (3, 5), seed) for seed, dtype in enumerate(DENSE)}
SWAPPED = {name: value for name, value in EVERY.items() if value.dtype != "bfloat16"}
SMALL = {"a.weight": normal((2, 3), 1), "a.bias": noise("float16", (5,), 2)}
RANKS = {
    "scalar": normal(()),
    "four": noise("int8", (1, 2, 1, 3)),
    "empty": normal((0, 4)),
    "": noise("int64", (3,), 5),
    '\u00fcn\u00ef"\\\n\0': noise("int16", (3,)),
    "\u540d\u524d": noise("int32", (1, 1)),
    "huge": noise("float64", (2**33, 0)),
}


@dataclass(frozen=True)
class BigEndian(Tensor):
    """A tensor with the bytes of a big-endian file."""

    @property
    def array(self):
        """The tensor as numpy reads these bytes."""
        return np.frombuffer(self.data, numpy_dtype(self.dtype).newbyteorder(">")).reshape(self.shape)


def swapped(tensors):
    """Tensors as a big-endian file has them."""
    coder = Coder(big=True)
    return {name: BigEndian(value.dtype, value.shape, coder.swapped(value)) for name, value in tensors.items()}


def metadata_of(values):
    """The metadata's form of key-values."""
    return {str(key): read_as(kind, value) for key, kind, value in values}


def examples():
    """Files of every version and byte order, from nothing to every dtype and every type of value."""

    def example(name, tensors, values=(), **options):
        data = build(tensors, values, **options)
        ids = IDS if values is VOCAB else None
        unpadded = build(tensors, values, **options | {"padded": False})
        head = len(header(infos_of(tensors), values, Coder(options.get("version", 3), options.get("big", False))))
        prefixes = {len(unpadded)} if any(value.data for value in tensors.values()) else {head}
        return Example(
            name,
            FORMAT,
            SUFFIX,
            data,
            swapped(tensors) if options.get("big") else tensors,
            metadata_of(values),
            TOKENS if values is VOCAB else None,
            ids,
            prefixes=frozenset(prefixes),
            written=not options,
        )

    aligned = [KeyValue("general.alignment", "u32", 96), *EVERY_VALUE]
    many = {f"n{number:03}": noise("int8", (number % 3,), number) for number in range(250)}
    return [
        example("nothing", {}),
        example("values", {}, EVERY_VALUE),
        example("every-dtype", EVERY, EVERY_VALUE),
        example("ranks", RANKS),
        example("vocabulary", SMALL, VOCAB),
        example("small", SMALL, [KeyValue("general.name", "str", "small")]),
        example("250-tensors", many),
        example("alignment-96", EVERY, aligned, alignment=96),
        example("unpadded", SMALL, VOCAB, padded=False),
        example("unsorted", SMALL, listed=list(SMALL)[::-1]),
        example("version-2", SMALL, EVERY_VALUE, version=2),
        example("version-1", SMALL, EVERY_VALUE, version=1),
        example("big-endian", SWAPPED, EVERY_VALUE, big=True),
        example("big-endian-vocabulary", SMALL, VOCAB, big=True),
        example("big-endian-version-1", SMALL, VOCAB, version=1, big=True),
    ]


def many(count):
    """A file of `count` tensors of one byte each, the last of them zeros."""
    tail = struct.pack("<IQI", 1, 1, DENSE["int8"])
    head = b"GGUF" + struct.pack("<IQQ", 3, count, 0)
    head += b"".join(struct.pack("<Q7s", 7, b"%07d" % i) + tail + struct.pack("<Q", 32 * i) for i in range(count))
    return head + padding(len(head)) + bytes(32 * count)


def tokens(count):
    """A file of `count` tokens, and one tensor."""
    values = b"".join(struct.pack("<Q7s", 7, b"%07d" % i) for i in range(count))
    entry = KeyValue("tokenizer.ggml.tokens", ["str"], struct.pack("<IQ", 8, count) + values)
    return build({"w": normal((2, 2))}, [entry])


def anatomy(data):
    """The header; big-endian files and version 1 have no anatomy, so their bytes change one by one."""
    walk = Walk(data)
    if data[4:8] not in (b"\2\0\0\0", b"\3\0\0\0"):
        return walk.anatomy
    _, _, n_tensors, n_values = walk.numbers(4, 4, 8, 8)
    for _ in walk.items(n_values):
        walk.string(8)
        _walk_value(walk, walk.field(4))
    for _ in walk.items(n_tensors):
        walk.string(8)
        ndim = walk.field(4)
        for _ in walk.items(ndim):
            walk.field(8)
        walk.numbers(4, 8)
    found = dissect(data)
    if found.alignment == ALIGNMENT:
        walk.found.pads.append((walk.at, found.base, ALIGNMENT))
    return walk.anatomy


def _walk_value(walk, kind):
    code = walk.value(kind)
    if KIND_OF[code] == "str":
        walk.string(8)
    elif KIND_OF[code] != "array":
        walk.field(struct.calcsize(KINDS[KIND_OF[code]][1]))
    else:
        inner = walk.field(4)
        for _ in walk.items(walk.field(8)):
            _walk_value(walk, inner)


BUILDER = Builder(
    format=FORMAT,
    title="GGUF",
    suffix=SUFFIX,
    holds="the models of llama.cpp: versions 1 to 3, either byte order, every type of blocks, split models",
    examples=examples,
    damage=("tests.attacks.gguf",),
    growing={"gguf": many},
    anatomy=anatomy,
    errors=(18, 20),
    magic=b"GGUF",
    saved={"gguf": lambda array: named(array) | {"metadata": {"k": "v", "n": 5}, "vocab": ["a", "b"]}},
    golden={
        "t.gguf": Golden(
            "7e341740012bcc0deb0749318b26b270930ca20085ed4ed82a805f41ed7b03c8",
            lambda c: {
                "tensors": c.tensors | {kind: c.kinds[kind] for kind in ("f2", "i1", "i2", "i4")},
                "metadata": c.metadata | {"i": [1, 2], "f": 0.5},
                "vocab": c.words,
            },
        )
    },
    metadata="typed",
    bounds={"gguf": Bounds(157, 154, 40, 32, 126, 21)},
)
