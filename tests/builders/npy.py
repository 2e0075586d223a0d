"""numpy's .npy files: `build` writes any header before any data."""

import struct

from tests.fuzz.anatomy import TOKEN, Walk

from . import Builder, Example, noise, normal
from .gguf import BigEndian

FORMAT = "npy"
SUFFIX = ".npy"
CODES = {
    "bool": "|b1", "uint8": "|u1", "int8": "|i1", "uint16": "<u2", "int16": "<i2", "float16": "<f2", "uint32": "<u4",
    "int32": "<i4", "float32": "<f4", "uint64": "<u8", "int64": "<i8", "float64": "<f8", "complex64": "<c8",
    "complex128": "<c16",
}  # fmt: skip
TEXT = "{'descr': %s, 'fortran_order': %s, 'shape': %s, }"


def build(header, data=b"", version=(1, 0), length=None):
    """A file with this header, padded as numpy does it; `length` replaces the true one."""
    raw = header.encode("utf-8" if version == (3, 0) else "latin-1") if isinstance(header, str) else header
    width = 2 if version == (1, 0) else 4
    raw += b" " * (-(8 + width + len(raw) + 1) % 64) + b"\n"
    size = len(raw) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if width == 2 else "<I", size) + raw + data


def header_of(tensor, *, fortran=False):
    code = CODES[tensor.dtype]
    if isinstance(tensor, BigEndian):
        code = code.replace("<", ">")
    return TEXT % (repr(code), fortran, repr(tensor.shape))


def examples():
    """One array of each type, and of each number of dimensions."""
    arrays = {dtype: noise(dtype, (3, 5), seed) for seed, dtype in enumerate(CODES)}
    arrays |= {"scalar": normal(()), "empty": normal((0, 4)), "vector": normal((7,)), "four": normal((1, 2, 1, 3))}
    found = [
        Example(name, FORMAT, SUFFIX, build(header_of(t), t.data), {"": t}, written=False) for name, t in arrays.items()
    ]
    small = normal((2, 3))
    found += [
        Example(
            f"version-{version[0]}",
            FORMAT,
            SUFFIX,
            build(header_of(small), small.data, version),
            {"": small},
            written=False,
        )
        for version in ((2, 0), (3, 0))
    ]
    big = BigEndian("int32", (4,), struct.pack(">4i", 1, -2, 3, -4))
    found.append(Example("big-endian", FORMAT, SUFFIX, build(header_of(big), big.data), {"": big}, written=False))
    return found


def anatomy(data):
    """The length of the header, and the tokens of it."""
    walk = Walk(data)
    walk.at = 6
    walk.numbers(1, 1)
    length = walk.field(2 if data[6] == 1 else 4)
    begin = walk.at
    end = begin + walk.value(length)
    walk.span(length, begin, end)
    for match in tokens(data, begin, end):
        walk.at = match.start()
        walk.field(len(match.group()), TOKEN)
    walk.at = end
    return walk.anatomy


def tokens(data, begin, end):
    import re

    return (
        list(re.finditer(rb"'[^']*'|\d+|True|False|[](){},:[]", data[begin:end]))
        if begin == 0
        else list(re.compile(rb"'[^']*'|\d+|True|False|[](){},:[]").finditer(data, begin, end))
    )


BUILDER = Builder(
    format=FORMAT,
    title="numpy .npy",
    suffix=SUFFIX,
    holds='one array of `numpy.save`, called `""`; arrays of objects are refused',
    examples=examples,
    damage=("tests.attacks.npy",),
    growing={},
    anatomy=anatomy,
    errors=(4, 4),
    dictionary=(b"'descr'", b"'|O'", b"'<f4'", b"[('a', '<i4')]"),
)
