"""Attacks on EMBD, the simple layout: float32 alone, nothing aligned, no checksums."""

import struct

from tests.builders import Tensor, embd, normal

from .case import BAD_UTF8, U32, WILD_NAMES, Case, put

KIND = "embd-simple"
ONE = [("a", normal((3,)))]
WHOLE = embd.simple(ONE, ["x", "y"])
# Version at 4, tensors at 8; of the tensor: length of its name at 12, name at 16, ndim at 17, dimension at 21, data at
# 25; number of tokens at 37, the tokens at 41 and 46.
END = len(WHOLE)
SOUND = {KIND: WHOLE}


def case(row, name, data, error="", field=None, offset=None, **more):
    return Case(row, KIND, name, data, error, field, offset, **more)


def number(row, name, place, value, error, field, offset=None, odd=None):
    data = put(WHOLE, place, struct.pack("<I", value))
    return case(row, name, data, error, field, place if offset is None else offset, odd=odd)


def cases():
    for version in (0, 2, U32):
        yield number("E2", f"version {version}", 4, version, "UnsupportedError", "version")
    yield number("E10", "no tensors", 8, 0, "TruncatedError", "vocabulary", END)
    # The following bytes are read as a second tensor: its name is as long as there are tokens.
    yield number("E10", "a tensor too many", 8, 2, "FormatError", "ndim", 43)
    yield number("C4", "10^6 tensors", 8, 10**6, "TruncatedError", "tensor_count")
    yield number("C4", "2^32 - 1 tensors", 8, U32, "LimitError", "max_tensors")
    for length in (U32, 2**31):
        yield number("C4", f"name of {length} bytes", 12, length, "LimitError", "max_header_bytes")
    yield number("E10", "name past the end", 12, 1000, "TruncatedError", "name", END)
    for ndim in (0, 5, U32):
        yield number("C8", f"{ndim} dimensions", 17, ndim, "FormatError", "ndim")
    for ndim in (1, 4):
        yield case("C8", f"{ndim} dimensions", embd.simple([("a", normal((1,) * ndim))]))
    # A tensor takes eight bytes, a token four.
    for tokens, count, *wrong in (
        (0, 0),
        (0, 1, "TruncatedError", "tensor_count", 8),
        (1, 1, "TruncatedError", "ndim", 20),
        (1, 2, "TruncatedError", "tensor_count", 8),
        (5, 3, "FormatError", "ndim", 21),
        (5, 4, "TruncatedError", "tensor_count", 8),
    ):
        data = put(embd.simple([], [""] * tokens), 8, struct.pack("<I", count))
        yield case("E10", f"{count} tensors in {len(data)} bytes", data, *wrong)
    for cut in (1, 4, 5):  # the data ends with the file
        data = embd.simple(ONE)[:-cut]
        wrong = ("vocab_count", "data")[cut > 4]
        yield case("E13", f"{cut} bytes less", data, "TruncatedError", wrong, len(data))
    data = embd.simple([], ["ab", "cd"])
    for count, field, at in ((3, "vocabulary", len(data)), (4, "vocab_count", 12)):
        lie = put(data, 12, struct.pack("<I", count))
        yield case("E8", f"{count} tokens in {len(data)} bytes", lie, "TruncatedError", field, at)
    for at in range(3):
        words = ["ab", "cd", "ef"]
        words[at] = b"\xff"
        data = embd.simple([], words)
        yield case("C11", f"token {at} ff", data, "FormatError", "token", data.index(b"\xff"), late=True)
    yield number("E13", "a row too many", 21, 4, "TruncatedError", "vocabulary", END)
    yield number("E13", "a row too few", 21, 2, "TruncatedError", "vocab_count", 33)
    yield number("C4", "2^32 - 1 rows", 21, U32, "TruncatedError", "data", END)
    yield number("C5", "bytes that wrap around", 21, 2**30, "TruncatedError", "data", END)
    yield number("E8", "a token too many", 37, 3, "TruncatedError", "vocab_count")
    yield number("E8", "a token too few", 37, 1, "LayoutError", "size", END - 5, odd="trailing")
    yield number("E8", "no tokens", 37, 0, "LayoutError", "size", END - 10, odd="trailing")
    yield number("C4", "2^32 - 1 tokens", 37, U32, "TruncatedError", "vocab_count")
    yield number("E8", "token past the end", 41, U32, "TruncatedError", "vocabulary", END)
    yield number("E8", "last token too long", 46, 2, "TruncatedError", "vocabulary", END)
    for name, second in (("twice", "a"), ("empty, twice", "")):
        first = normal((3,))
        data = embd.simple([(second, first), ("b", first), (second, first)])
        # Twelve bytes of data and 3 x 4 of numbers lie behind the name, then the number of tokens.
        yield case("C10", f"name {name}", data, "LayoutError", "name", len(data) - 4 - 12 - 8 - len(second))
    yield case("C10", "empty name", embd.simple([("", normal((3,)))]))
    for shape in ((2**16,) * 4, (2**16, 2**16), (U32,) * 4):
        data = embd.simple([("a", Tensor("float32", shape, b""))])
        yield case("C6", f"shape {'x'.join(map(str, shape))}", data, "TruncatedError", "data", len(data))
    data = embd.simple([("a", Tensor("float32", (0, U32, U32, U32), b""))])
    yield case("C6", "shape 0 and an overflow", data, "LayoutError", "shape", 16)
    for name, raw in BAD_UTF8.items():
        data = embd.simple([("first", normal((2,))), (raw, normal((2,)))])
        yield case("C11", f"name {name}", data, "FormatError", "name", data.index(raw))
        data = embd.simple(ONE, ["ok", raw])
        yield case("C11", f"token {name}", data, "FormatError", "token", len(data) - len(raw), late=True)
    for name, text in WILD_NAMES.items():
        yield case("C11", name, embd.simple([(text, normal((2,)))]))
    for shape in ((0,), (0, 4), (U32, 0)):
        yield case("C7", f"shape {'x'.join(map(str, shape))}", embd.simple([("a", Tensor("float32", shape, b""))]))
    yield case("C20", "no tensors", embd.simple())
    yield case("C16", "any bits", embd.simple([("a", Tensor("float32", (4,), bytes(range(0xF0, 0x100))))]))
