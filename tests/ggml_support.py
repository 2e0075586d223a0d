"""The block types of ggml, as gguf-py defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.builders.gguf import BLOCKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Blocks = NDArray[np.uint8]

# Those that gguf-py decodes: number in files, elements and bytes of a block.
TYPES = {name: kind for name, kind in BLOCKS.items() if name not in {"q8_1", "q8_k", "q1_0"}}
# Where the bytes lie that make a float16 of a block NaN or infinite, or not.
UPPER = dict.fromkeys(TYPES, (1,))
UPPER |= dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (1, 3)) | dict.fromkeys(("mxfp4", "nvfp4"), ())
UPPER |= {"q2_k": (81, 83), "q3_k": (109,), "q6_k": (209,), "tq1_0": (53,), "tq2_0": (65,), "iq1_m": (55,)}
NAN = 0x7FC00000  # the one that kernels give; numpy's depends on the CPU


def random_blocks(rng: np.random.Generator, name: str, count: int, *, finite: bool = False) -> Blocks:
    """Blocks of random bytes; one of a few has a scale that is NaN or infinite, unless they are to be finite."""
    blocks = rng.integers(0, 256, (count, TYPES[name][2]), np.uint8)
    if finite:
        for at in UPPER[name]:
            blocks[:, at] &= 0x3F
    return blocks


def values(name: str, blocks: Blocks) -> NDArray[np.float32]:
    """Decode blocks of this type by gguf-py: float32, shape (blocks, elements)."""
    gguf = pytest.importorskip("gguf")
    with np.errstate(all="ignore"):
        result = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name.upper()])
    bits: NDArray[np.uint32] = np.where(np.isnan(result), np.uint32(NAN), result.view(np.uint32))
    return bits.view(np.float32)
