"""PyTorch checkpoints of both layouts: `dump` writes the opcodes of an object; `zipped` and `legacy` make files.

`Plain` stands for opcodes as they are, `Stored` for a tensor with any strides. They use no pickler, so a program may be
wrong in any way.
"""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tests import zip_files
from tests.fuzz.anatomy import TEXT, TOKEN, Walk

from . import Builder, Example, noise, normal, numpy_dtype
from .gguf import BigEndian, swapped

FORMAT = "torch"
SUFFIX = ".pt"
STORAGES = {
    "float32": "FloatStorage", "float64": "DoubleStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage",
    "uint8": "ByteStorage", "bool": "BoolStorage", "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}  # fmt: skip
# Types without a storage class, named in a call of _rebuild_tensor_v3.
UNTYPED = (
    "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)  # fmt: skip
MAGIC = b"\x80\x02\x8a\x0a" + 0x1950A86A20F9469CFC6C.to_bytes(10, "little") + b"."
PROTOCOL = b"\x80\x02M\xe9\x03."


class Plain(NamedTuple):
    """Opcodes as they are."""

    code: bytes


class Stored(NamedTuple):
    """A tensor in a storage: the storage's key, dtype and elements, and the tensor's place in it, in elements."""

    key: str
    dtype: str
    elements: int
    offset: int
    shape: Sequence[int]
    strides: Sequence[int]
    wrapper: str = ""


class Dtype(NamedTuple):
    name: str


def named(module, name):
    """The opcode that pushes a function."""
    return f"c{module}\n{name}\n".encode()


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value):
    """An integer, as picklers write it."""
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    size = (~value if value < 0 else value).bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def row_major(shape):
    return tuple(math.prod(max(dim, 1) for dim in shape[i + 1 :]) for i in range(len(shape)))


def storage(key, dtype, elements):
    """The opcodes that push a storage."""
    kind = named("torch", STORAGES[dtype]) if dtype in STORAGES else named("torch.storage", "UntypedStorage")
    count = elements if dtype in STORAGES else elements * numpy_dtype(dtype).itemsize
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(count) + b"tQ"


def tensor_code(t):
    """The opcodes that push a tensor."""
    numbers = [b"(" + b"".join(map(number, part)) + b"t" for part in (t.shape, t.strides)]
    inner = storage(t.key, t.dtype, t.elements) + number(t.offset) + b"".join(numbers) + b"\x89" + ORDERED
    if t.dtype in STORAGES:
        made = named("torch._utils", "_rebuild_tensor_v2") + b"(" + inner + b"tR"
    else:
        made = named("torch._utils", "_rebuild_tensor_v3") + b"(" + inner + named("torch", t.dtype) + b"tR"
    if t.wrapper:
        return named("torch._utils", t.wrapper) + b"(" + made + b"\x88" + ORDERED + b"tR"
    return made


ORDERED = named("collections", "OrderedDict") + b")R"


def code(value):
    """The opcodes that push a value."""
    if isinstance(value, Plain):
        return value.code
    if isinstance(value, Stored):
        return tensor_code(value)
    if isinstance(value, Dtype):
        return named("torch", value.name)
    if isinstance(value, dict):
        return b"}(" + b"".join(code(key) + code(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(code, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(code, value)) + b"t"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if value is None:
        return b"N"
    if isinstance(value, int):
        return number(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"B" + struct.pack("<I", len(value)) + value
    return text(value)


def dump(value):
    """A program of protocol 2 that makes a value."""
    return b"\x80\x02" + code(value) + b"."


def stored(tensors, values=None):
    """The object of tensors, each in its own storage, and other values; and the storages."""
    found, storages = {}, {}
    for key, (name, t) in enumerate(tensors.items()):
        size = len(t.data) // numpy_dtype(t.dtype).itemsize
        found[name] = Stored(str(key), t.dtype, size, 0, t.shape, row_major(t.shape))
        storages[str(key)] = t.data
    return found | dict(values or {}), storages


def zipped(program, storages, *, prefix="archive", order="little", **options):
    """A file of the layout "zip"."""
    entries = [zip_files.Entry(f"{prefix}/data.pkl".encode(), program)]
    if order is not None:
        entries.append(zip_files.Entry(f"{prefix}/byteorder".encode(), order.encode()))
    entries += [zip_files.Entry(f"{prefix}/data/{key}".encode(), data, align=64) for key, data in storages.items()]
    entries.append(zip_files.Entry(f"{prefix}/version".encode(), b"3\n"))
    return zip_files.archive(entries, **options)


class Item(NamedTuple):
    """A storage of a legacy file: its bytes, and the bytes of an element."""

    data: bytes
    size: int


def legacy(program, storages, *, little=True):
    """A file of the layout "legacy"."""
    system = dump({"protocol_version": 1001, "little_endian": little, "type_sizes": {"short": 2, "int": 4, "long": 4}})
    out = MAGIC + PROTOCOL + system + program + dump(list(storages))
    return out + b"".join(struct.pack("<Q", len(s.data) // s.size) + s.data for s in storages.values())


def items(tensors):
    """The storages of a legacy file, one for each tensor."""
    sizes = [numpy_dtype(t.dtype).itemsize if t.dtype in STORAGES else 1 for t in tensors.values()]
    return {str(key): Item(t.data, size) for key, (t, size) in enumerate(zip(tensors.values(), sizes, strict=True))}


EVERY = {f"w.{dtype}": noise(dtype, (3, 5), seed) for seed, dtype in enumerate((*STORAGES, *UNTYPED))}
SMALL = {"a.weight": normal((2, 3), 1), "a.bias": noise("float16", (5,), 2)}
RANKS = {
    "scalar": normal(()),
    "five": noise("int8", (1, 2, 1, 2, 1)),
    "empty": normal((0, 4)),
    'ünï"\\\n': noise("uint8", (3,)),
    "..": noise("bfloat16", (3,), 5),
}
VALUES = {
    "epoch": 3,
    "large": 2**70,
    "negative": -5,
    "long": -(2**40),
    "rate": 0.1,
    "text": "ü\0",
    "": "",
    "none": None,
    "yes": True,
    "no": False,
    "raw": b"\0\xff",
}


def examples():
    """Files of both layouts."""

    def zip_example(name, tensors, values=None, **options):
        found, storages = stored(tensors, values)
        data = zipped(dump(found), storages, **options)
        return Example(name, FORMAT, SUFFIX, data, tensors, values or {}, layout="zip", checksums=True, written=False)

    def legacy_example(name, tensors, values=None, **options):
        found, _ = stored(tensors, values)
        data = legacy(dump(found), items(tensors), **options)
        return Example(name, FORMAT, SUFFIX, data, tensors, values or {}, layout="legacy", written=False)

    plain = {name: t for name, t in EVERY.items() if not t.dtype.startswith(("bfloat16", "float8", "complex", "uint"))}
    nested = {"model": {"0": [Stored("0", "float32", 6, 0, (2, 3), (3, 1))]}, "lr": [0.5, (1, {"x": Dtype("float16")})]}
    inner = {"model.0.0": normal((2, 3))}
    values = {"lr.0": 0.5, "lr.1.0": 1, "lr.1.1.x": "torch.float16"}
    return [
        zip_example("nothing", {}),
        zip_example("small", SMALL, {"epoch": 3}),
        zip_example("every-dtype", EVERY),
        zip_example("ranks", RANKS, VALUES, prefix="ünï"),
        zip_example("zip64", SMALL, wide=True),
        zip_example("comment", SMALL, comment=b"PK\5\6 and more"),
        zip_example("big-endian", swapped(plain), order="big"),
        zip_example("no-byteorder", SMALL, order=None),
        Example(
            "nested",
            FORMAT,
            SUFFIX,
            zipped(dump(nested), {"0": inner["model.0.0"].data}),
            inner,
            values,
            layout="zip",
            checksums=True,
            written=False,
        ),
        legacy_example("legacy-nothing", {}),
        legacy_example("legacy-small", SMALL, {"epoch": 3}),
        legacy_example("legacy-every", EVERY),
        legacy_example("legacy-ranks", RANKS, VALUES),
        legacy_example("legacy-big", plain, little=False),
    ]


def many(count):
    """A million tensors of one storage."""
    size = struct.Struct("<I")
    one = named("torch._utils", "_rebuild_tensor_v2")
    # The function, the storage and the strides are in the memo, as picklers have them.
    head = (
        b"\x80\x02"
        + one
        + b"q\0"
        + b"0"
        + storage("0", "int8", count)
        + b"q\1"
        + b"0"
        + number(1)
        + b"\x85q\2"
        + b"0"
        + ORDERED
        + b"q\3"
        + b"0}("
    )
    parts = [b"X\7\0\0\0%07dh\0(h\1J%sh\2h\2\x89h\3tR" % (i, size.pack(i)) for i in range(count)]
    return zipped(head + b"".join(parts) + b"u.", {"0": bytes(count)})


def anatomy(data):
    """The records of an archive, and the numbers and texts of its program."""
    walk = Walk(data)
    if b"PK\6\6" in data:  # the walk knows no ZIP64
        return walk.anatomy
    if data[:2] == b"PK":
        begin, end = next(place for name, place in zip_files.walk(walk).items() if name.endswith(b"data.pkl"))
    else:
        begin, end = 0, len(data)
    _program(walk, begin, end)
    return walk.anatomy


# Opcodes with an argument, and its bytes.
_ARGUMENTS = {b"K": 1, b"M": 2, b"J": 4, b"G": 8, b"h": 1, b"q": 1, b"\x80": 1}


def _text(walk, size, *, fixed):
    length = walk.field(size)
    begin, stop = walk.at, walk.at + walk.value(length)
    text = walk.data[begin:stop]
    walk.field(stop - begin, TOKEN if fixed or text == b"storage" or text.isdigit() else TEXT)
    walk.span(length, begin, stop)


def _program(walk, begin, end):
    walk.at = begin
    stops = 0
    while walk.at < end and stops < (1 if begin else 5):
        op = walk.data[walk.at : walk.at + 1]
        walk.field(1)
        if op in _ARGUMENTS:
            walk.field(_ARGUMENTS[op])
        elif op in (b"X", b"B"):
            # The key of a storage, a number, is the name of an entry or in a list. A legacy file has four others.
            _text(walk, 4, fixed=not begin and stops != 3)
        elif op == b"\x8a":
            _text(walk, 1, fixed=True)
        elif op == b"c":
            for _ in range(2):
                walk.field(walk.data.index(b"\n", walk.at) - walk.at, TOKEN)
                walk.at += 1
        stops += op == b"."


BUILDER = Builder(
    format=FORMAT,
    title="PyTorch",
    suffix=SUFFIX,
    holds="checkpoints of `torch.save`, zip and legacy; nothing in them is run",
    examples=examples,
    damage=("tests.attacks.torch",),
    growing={"torch": many},
    anatomy=anatomy,
    errors=(10, 12),
    sealed=zip_files.sealed,
    trailing=zip_files.trailing,
)
__all__ = ["BUILDER", "BigEndian"]
