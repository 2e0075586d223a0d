"""The block types of ggml, as gguf-py defines them; this file defines those that it lacks, bit by bit."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.builders.gguf import BLOCKS

Blocks = NDArray[np.uint8]
# The decoded types: number in files, elements and bytes of a block.
TYPES = {name: kind for name, kind in BLOCKS.items() if name not in {"q8_1", "q8_k"}}
# Bits of an element, and the value of each code in units of the scale, of the types that gguf-py lacks.
PLAIN = {"q1_0": (1, (-1, 1)), "q2_0": (2, (-1, 0, 1, 2))}
# The bytes that decide whether a float16 of a block is finite.
UPPER = dict.fromkeys(TYPES, (1,))
UPPER |= dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (1, 3)) | dict.fromkeys(("mxfp4", "nvfp4"), ())
UPPER |= {"q2_k": (81, 83), "q3_k": (109,), "q6_k": (209,), "tq1_0": (53,), "tq2_0": (65,), "iq1_m": (55,)}
NAN = 0x7FC00000  # the kernels' NaN; numpy's depends on the CPU


def random_blocks(rng: np.random.Generator, name: str, count: int, *, finite: bool = False) -> Blocks:
    """Blocks of random bytes; one of a few has a scale that is NaN or infinite, unless they are to be finite."""
    blocks = rng.integers(0, 256, (count, TYPES[name][2]), np.uint8)
    if finite:
        for at in UPPER[name]:
            blocks[:, at] &= 0x3F
    return blocks


def plain_values(blocks: Blocks, width: int, units: tuple[int, ...]) -> NDArray[np.float32]:
    """Decode a float16 and codes of this many bits, the lowest bits of the first byte first."""
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").reshape(len(blocks), -1, width)
    codes = (bits * (1 << np.arange(width))).sum(axis=2)
    return scales * np.array(units, np.float32)[codes]


def values(name: str, blocks: Blocks) -> NDArray[np.float32]:
    """Decode blocks of this type, by gguf-py where it knows the type: float32, shape (blocks, elements)."""
    with np.errstate(all="ignore"):
        if name in PLAIN:
            result = plain_values(blocks, *PLAIN[name])
        else:
            gguf = pytest.importorskip("gguf")
            result = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name.upper()])
    bits: NDArray[np.uint32] = np.where(np.isnan(result), np.uint32(NAN), result.view(np.uint32))
    return bits.view(np.float32)
