"""The block types of ggml, defined element by element, without the package or gguf-py.

`values` decodes blocks by formulas for one element: which byte holds its code, at which bit, and which numbers scale
it. The code books of the iq types are not repeated here: they are read out of decoded blocks, and must have the
hashes of those in gguf-py 0.19.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from tests.builders.gguf import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Blocks = NDArray[np.uint8]

# Those that gguf-py decodes: number in files, elements and bytes of a block.
TYPES = {name: kind for name, kind in BLOCKS.items() if name not in {"q8_1", "q8_k", "q1_0"}}
# Where the bytes lie that make a float16 of a block NaN or infinite, or not.
UPPER = dict.fromkeys(TYPES, (1,))
UPPER |= dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (1, 3)) | dict.fromkeys(("mxfp4", "nvfp4"), ())
UPPER |= {"q2_k": (81, 83), "q3_k": (109,), "q6_k": (209,), "tq1_0": (53,), "tq2_0": (65,), "iq1_m": (55,)}
NAN = 0x7FC00000
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
# Of the books as int8, entry after entry.
HASHES = {
    "iq2_xxs": "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54",
    "iq2_xs": "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de",
    "iq2_s": "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88",
    "iq3_xxs": "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d",
    "iq3_s": "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f",
    "iq1": "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a",
}


def random_blocks(rng: np.random.Generator, name: str, count: int, *, finite: bool = False) -> Blocks:
    """Blocks of random bytes; one of a few has a scale that is NaN or infinite, unless they are to be finite."""
    blocks = rng.integers(0, 256, (count, TYPES[name][2]), np.uint8)
    if finite:
        for at in UPPER[name]:
            blocks[:, at] &= 0x3F
    return blocks


def half(b: Blocks, at: int) -> NDArray[np.float32]:
    """The float16 at a byte of each block, as a column."""
    return np.ascontiguousarray(b[:, at : at + 2]).view("<f2").astype(np.float32)


def word(b: Blocks, at: NDArray[np.intp], width: int) -> NDArray[np.int64]:
    """For each element, the number of so many bytes that begins at its byte."""
    return sum(b[:, at + k].astype(np.int64) << (8 * k) for k in range(width))  # type: ignore[return-value]


def code(b: Blocks, at: NDArray[np.intp], shift: NDArray[np.intp] | int, mask: int) -> NDArray[np.int64]:
    """For each element, bits of its byte."""
    return b[:, at].astype(np.int64) >> shift & mask


def signed(q: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes as signed ones."""
    return (q ^ 128) - 128


def f32(q: NDArray[np.int64]) -> NDArray[np.float32]:
    """Integers as float32."""
    return q.astype(np.float32)


def k_scale(b: Blocks, g: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The two numbers of 6 bits of group g, of q4_k and q5_k."""
    low, high = code(b, 4 + g % 4, 0, 63), code(b, 8 + g % 4, 0, 63)
    last = 12 + g % 4
    upper = code(b, last, 0, 15) | code(b, 4 + g % 4, 6, 3) << 4, code(b, last, 4, 15) | code(b, 8 + g % 4, 6, 3) << 4
    return np.where(g < 4, low, upper[0]), np.where(g < 4, high, upper[1])


def sign(bits: NDArray[np.int64], e: NDArray[np.intp]) -> NDArray[np.int64]:
    """-1 or 1: bit e of eight."""
    return 1 - 2 * (bits >> e & 1)


def even_sign(seven: NDArray[np.int64], e: NDArray[np.intp]) -> NDArray[np.int64]:
    """The same of seven bits and one that makes the number of ones even."""
    ones = sum(seven >> k & 1 for k in range(7))
    return sign(seven | (ones & 1) << 7, e)


def values(name: str, b: Blocks, books: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """Decode blocks of this type: float32, shape (blocks, elements)."""
    i = np.arange(TYPES[name][1])
    g, half_block, part = i // 32, i // 128, i % 128 // 32  # groups of 32; of those, four make a half
    with np.errstate(invalid="ignore", over="ignore"):
        result = DEFINITIONS[name](b, i, g, half_block, part, books)
    assert result.dtype == np.float32
    bits = np.ascontiguousarray(np.broadcast_to(result, (len(b), len(i)))).view(np.uint32).copy()
    bits[np.isnan(result)] = NAN
    return bits.view(np.float32)


def _nibble(b, at, i):
    return code(b, at + i % 16, i // 16 * 4, 15)


def _q5(b, at, i):
    return _nibble(b, at + 4, i) | code(b, at + i // 8, i % 8, 1) << 4


def _q2_k(b, i, g, h, part, books):
    q, scale = code(b, 16 + 32 * h + i % 32, 2 * part, 3), code(b, i // 16, 0, 255)
    return (half(b, 80) * f32(scale & 15)) * f32(q) - half(b, 82) * f32(scale >> 4)


def _q3_k(b, i, g, h, part, books):
    q = code(b, 32 + 32 * h + i % 32, 2 * part, 3) - 4 + 4 * code(b, i % 32, g, 1)
    j = i // 16
    scale = (code(b, 96 + j % 8, j // 8 * 4, 15) | code(b, 104 + j % 4, j // 4 * 2, 3) << 4) - 32
    return (half(b, 108) * f32(scale)) * f32(q)


def _q4_k(b, i, g, h, part, books):
    scale, least = k_scale(b, g)
    q = code(b, 16 + g // 2 * 32 + i % 32, g % 2 * 4, 15)
    return (half(b, 0) * f32(scale)) * f32(q) - half(b, 2) * f32(least)


def _q5_k(b, i, g, h, part, books):
    scale, least = k_scale(b, g)
    q = code(b, 48 + g // 2 * 32 + i % 32, g % 2 * 4, 15) | code(b, 16 + i % 32, g, 1) << 4
    return (half(b, 0) * f32(scale)) * f32(q) - half(b, 2) * f32(least)


def _q6_k(b, i, g, h, part, books):
    low = code(b, 64 * h + part % 2 * 32 + i % 32, part // 2 * 4, 15)
    q = (low | code(b, 128 + 32 * h + i % 32, 2 * part, 3) << 4) - 32
    return (half(b, 208) * f32(signed(code(b, 192 + i // 16, 0, 255)))) * f32(q)


def _iq4_xs(b, i, g, h, part, books):
    scale = (code(b, 4 + g // 2, g % 2 * 4, 15) | code(b, 2 + g // 4, g % 4 * 2, 3) << 4) - 32
    return (half(b, 0) * f32(scale)) * f32(IQ4[code(b, 8 + 16 * g + i % 16, i % 32 // 16 * 4, 15)])


def _mxfp4(b, i, g, h, part, books):
    scale = np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128).astype(np.float32)
    return scale * f32(FP4[_nibble(b, 1, i)])


def _nvfp4(b, i, g, h, part, books):
    e4m3 = b[:, i // 16].astype(np.int32)
    exponent, fraction = e4m3 >> 3 & 15, e4m3 & 7
    scale = np.where(exponent > 0, np.ldexp(8.0 + fraction, exponent - 11), np.ldexp(fraction, -10))
    scale = np.where(e4m3 == 0x7F, 0, scale).astype(np.float32)
    return scale * f32(FP4[code(b, 4 + i // 16 * 8 + i % 8, i % 16 // 8 * 4, 15)])


def _tq1_0(b, i, g, h, part, books):
    at = np.where(i < 160, i % 32, np.where(i < 240, 32 + i % 16, 48 + i % 4))
    digit = np.where(i < 160, i // 32, np.where(i < 240, (i - 160) // 16, (i - 240) // 4))
    return half(b, 52) * f32((code(b, at, 0, 255) * 3**digit % 256 * 3 >> 8) - 1)


def _tq2_0(b, i, g, h, part, books):
    return half(b, 64) * f32(code(b, 32 * h + i % 32, 2 * part, 3) - 1)


def _quarter(x):
    """(0.5 + x) / 4, as float32."""
    return (np.float32(0.5) + f32(x)) * np.float32(0.25)


def _iq2_xxs(b, i, g, h, part, books):
    w, k = word(b, 6 + 8 * g, 4), i % 32 // 8
    q = books["iq2_xxs"][b[:, 2 + 8 * g + k], i % 8] * even_sign(w >> 7 * k & 127, i % 8)
    return half(b, 0) * _quarter(w >> 28) * f32(q)


def _iq2_xs(b, i, g, h, part, books):
    w = word(b, 2 + i // 8 * 2, 2)
    q = books["iq2_xs"][w & 511, i % 8] * even_sign(w >> 9, i % 8)
    return half(b, 0) * _quarter(code(b, 66 + g, i // 16 % 2 * 4, 15)) * f32(q)


def _iq2_s(b, i, g, h, part, books):
    entry = code(b, 2 + i // 8, 0, 255) | code(b, 66 + g, i // 8 % 4 * 2, 3) << 8
    q = books["iq2_s"][entry, i % 8] * sign(code(b, 34 + i // 8, 0, 255), i % 8)
    return half(b, 0) * _quarter(code(b, 74 + g, i // 16 % 2 * 4, 15)) * f32(q)


def _iq3_xxs(b, i, g, h, part, books):
    w = word(b, 66 + 4 * g, 4)
    q = books["iq3_xxs"][b[:, 2 + i // 4], i % 4] * even_sign(w >> (i % 32 // 8 * 7) & 127, i % 8)
    return half(b, 0) * (_quarter(w >> 28) * np.float32(2)) * f32(q)


def _iq3_s(b, i, g, h, part, books):
    entry = code(b, 2 + i // 4, 0, 255) | code(b, 66 + g, i // 4 % 8, 1) << 8
    q = books["iq3_s"][entry, i % 4] * sign(code(b, 74 + i // 8, 0, 255), i % 8)
    return half(b, 0) * f32(1 + 2 * code(b, 106 + g // 2, g % 2 * 4, 15)) * f32(q)


def _iq1_s(b, i, g, h, part, books):
    w = word(b, 34 + 2 * g, 2)
    entry = code(b, 2 + i // 8, 0, 255) | (w >> (i // 8 % 4 * 3) & 7) << 8
    value = f32(books["iq1"][entry, i % 8]) + np.where(w >> 15, np.float32(-0.125), np.float32(0.125))
    return half(b, 0) * f32(1 + 2 * (w >> 12 & 7)) * value


def _iq1_m(b, i, g, h, part, books):
    quarters = [b[:, 49 + 2 * k].astype(np.uint16) >> 4 << 4 * k for k in range(4)]
    d = np.bitwise_or.reduce(quarters).astype("<u2").view("<f2").astype(np.float32)[:, None]
    scale = word(b, 48 + i // 64 * 2, 2) >> (i % 64 // 16 * 3) & 7
    high = code(b, 32 + i // 16, i // 8 % 2 * 4, 15)
    entry = code(b, i // 8, 0, 255) | (high & 7) << 8
    value = f32(books["iq1"][entry, i % 8]) + np.where(high >> 3, np.float32(-0.125), np.float32(0.125))
    return d * f32(1 + 2 * scale) * value


DEFINITIONS: dict[str, Callable[..., NDArray[np.float32]]] = {
    "q4_0": lambda b, i, *_: half(b, 0) * f32(_nibble(b, 2, i) - 8),
    "q4_1": lambda b, i, *_: half(b, 0) * f32(_nibble(b, 4, i)) + half(b, 2),
    "q5_0": lambda b, i, *_: half(b, 0) * f32(_q5(b, 2, i) - 16),
    "q5_1": lambda b, i, *_: half(b, 0) * f32(_q5(b, 4, i)) + half(b, 2),
    "q8_0": lambda b, i, *_: half(b, 0) * f32(signed(code(b, 2 + i, 0, 255))),
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq2_xxs": _iq2_xxs,
    "iq2_xs": _iq2_xs,
    "iq3_xxs": _iq3_xxs,
    "iq1_s": _iq1_s,
    "iq4_nl": lambda b, i, *_: half(b, 0) * f32(IQ4[_nibble(b, 2, i)]),
    "iq3_s": _iq3_s,
    "iq2_s": _iq2_s,
    "iq4_xs": _iq4_xs,
    "iq1_m": _iq1_m,
    "tq1_0": _tq1_0,
    "tq2_0": _tq2_0,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}


def read_books(decode: Callable[[Blocks, str], NDArray[np.float32]]) -> dict[str, NDArray[np.int64]]:
    """Read each code book out of blocks with a scale of 1 and no signs, whose elements are all entries in turn."""
    found = {}
    for book, (name, entries, width, scale, at, put) in _READING.items():
        each = 256 // width
        b = np.zeros((entries // each, TYPES[name][2]), np.uint8)
        entry = np.arange(entries).reshape(len(b), each)
        b[:, at] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
        put(b, entry)
        decoded = decode(b, name).reshape(entries, width) / np.float32(scale)
        found[book] = np.round(decoded - (0.125 if book == "iq1" else 0)).astype(np.int64)
    return found


def hash_of(book: NDArray[np.int64]) -> str:
    """What `HASHES` has of a book."""
    return hashlib.sha256(book.astype(np.int8).tobytes()).hexdigest()


def _put_iq2_xxs(b, entry):
    b[:, (2 + 8 * (np.arange(32) // 4) + np.arange(32) % 4)] = entry


def _put_iq2_xs(b, entry):
    b[:, 2:66:2], b[:, 3:66:2] = entry & 255, entry >> 8


def _put_iq2_s(b, entry):
    b[:, 2:34] = entry & 255
    for k in range(4):
        b[:, 66:74] |= (entry[:, k::4] >> 8 << 2 * k).astype(np.uint8)


def _put_iq3_xxs(b, entry):
    b[:, 2:66] = entry


def _put_iq3_s(b, entry):
    b[:, 2:66] = entry & 255
    for k in range(8):
        b[:, 66:74] |= (entry[:, k::8] >> 8 << k).astype(np.uint8)


def _put_iq1(b, entry):
    b[:, 2:34] = entry & 255
    high = sum(entry[:, k::4] >> 8 << 3 * k for k in range(4))
    b[:, 34:50:2], b[:, 35:50:2] = high & 255, high >> 8


# Of each book: a type that uses it, entries, values of one, the scale that comes out, where the float16 is, the filler.
_READING = {
    "iq2_xxs": ("iq2_xxs", 256, 8, 0.125, slice(0, 2), _put_iq2_xxs),
    "iq2_xs": ("iq2_xs", 512, 8, 0.125, slice(0, 2), _put_iq2_xs),
    "iq2_s": ("iq2_s", 1024, 8, 0.125, slice(0, 2), _put_iq2_s),
    "iq3_xxs": ("iq3_xxs", 256, 4, 0.25, slice(0, 2), _put_iq3_xxs),
    "iq3_s": ("iq3_s", 512, 4, 1, slice(0, 2), _put_iq3_s),
    "iq1": ("iq1_s", 2048, 8, 1, slice(0, 2), _put_iq1),
}
