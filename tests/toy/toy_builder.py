"""Toy files, made by the specification alone."""

import struct

from tests.attacks.case import Case, put
from tests.fuzz.anatomy import Walk

from . import Builder, Example, Tensor, noise, normal


def build(tensors):
    """A file with these tensors, in this order."""
    records, data = bytearray(), bytearray()
    for name, value in tensors.items():
        raw, shape = name.encode(), value.shape
        records += struct.pack(f"<H{len(raw)}s2B", len(raw), raw, ("float32", "int8").index(value.dtype), len(shape))
        records += struct.pack(f"<{len(shape)}I2Q", *shape, len(data), len(data) + len(value.data))
        data += value.data
    return struct.pack("<4s3I", b"TOYT", 1, 16 + len(records), len(tensors)) + bytes(records + data)


EVERY = {"ñ": normal(()), "b": noise("int8", (3,)), "c": normal((0, 4)), "d": noise("int8", (1, 2, 1, 2))}
FILES = {"nothing": {}, "small": {"a": normal((2, 3)), "b": noise("int8", (5,))}, "every": EVERY}
SOUND = {"toy": build(FILES["small"])}  # the record of a begins at 16, that of b at 45, the data at 70


def cases():
    """Files with one lie each: row of the threat tables, where it is, and the error, its field and its byte."""
    for row, place, lie, error, field, offset in (
        ("C3", 4, b"\2", "UnsupportedError", "version", 4),
        ("C4", 12, b"\xff" * 4, "LimitError", "max_tensors", 12),
        ("C5", 62, b"\xff" * 8, "LayoutError", "data_offset", 45),
        ("C10", 47, b"a", "LayoutError", "name", 45),
        ("C14", 48, b"\2", "UnsupportedError", "dtype", 45),
    ):
        yield Case(row, "toy", f"byte {place}", put(SOUND["toy"], place, lie), error, field, offset)


def anatomy(data):
    """Where the fields of a file are."""
    walk = Walk(data)
    _, _, size, count = walk.numbers(4, 4, 4, 4)
    for _ in walk.items(count):
        walk.string(2)
        _, ndim = walk.numbers(1, 1)
        walk.numbers(*[4] * walk.value(ndim), 8, 8)
    walk.span(size, 0, walk.at)
    return walk.anatomy


BUILDER = Builder(
    format="toy",
    title="Toy",
    suffix=".toy",
    holds="the example of docs/formats.md",
    examples=lambda: [Example(name, "toy", ".toy", build(tensors), tensors) for name, tensors in FILES.items()],
    damage=(__name__,),
    growing={"toy": lambda count: build({f"{i:07}": Tensor("int8", (1,), b"\0") for i in range(count)})},
    anatomy=anatomy,
    errors=(5, 5),
    magic=b"TOYT",
)
