"""Blocks of ggml: decoding every type in the second-level cache, and the usual types in memory.

The output begins on a page, but that of "np.empty", which numpy begins 16 bytes into a cache line. The limit writes as
many bytes. gguf-py decodes with numpy into fresh arrays. ggml's own functions in C take part where `make bench-ggml`
has built them: `WEIGHTMAP_GGML` names the library.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

import limits
from timing import AVX2, Timed, each_contender, need, ours, rival
from weightmap.core.native import access, quantised

CASES = {"L2": 1 << 19, "DRAM": 1 << 26}  # bytes of output
PLACES = {"L2": 9, "DRAM": 3}  # how many the work lies in: the caches of physical addresses tell them apart
# Where the upper bytes of a block's numbers of 16 bits lie, which make them NaN or infinite.
UPPER = dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (1, 3)) | {
    "q2_k": (81, 83),
    "q3_k": (109,),
    "q6_k": (209,),
    "iq1_m": (55,),
    "tq1_0": (53,),
    "tq2_0": (65,),
    "nvfp4": (),
}


class Work(NamedTuple):
    """A type, an output, and the blocks, which all contenders decode."""

    name: str
    out: np.ndarray
    raw: np.ndarray


def work_of(name, nbytes):
    """Return random blocks with finite scales, enough for this many bytes of output."""
    kind, out = quantised.GGML_TYPES[name], limits.memory(nbytes).view(np.float32)
    raw = np.random.default_rng(1).integers(0, 256, (out.size // kind.block_size, kind.block_bytes), np.uint8)
    for at in UPPER.get(name, (1,)):
        raw[:, at] &= 0x3F
    if name == "mxfp4":
        raw[:, 0] = 127
    return Work(name, out, limits.memory_of(raw))


def weightmap(work, *, empty=False):
    """Return our decoder; with `empty` into an array of np.empty."""
    out = np.empty(work.out.shape, work.out.dtype) if empty else work.out
    out[...] = 0
    function = partial(quantised.decode_ggml, work.raw, out.size, work.name, out=out)
    assert function() is out
    return Timed(function, variant=access.variant("ggml"), begins=f"{out.ctypes.data % 64} bytes into a line")


def by_gguf(work):
    """Return gguf-py's decoder, in numpy."""
    gguf = need("gguf")
    kind = getattr(gguf.GGMLQuantizationType, work.name.upper(), None)
    if kind is None:
        pytest.skip(f"this gguf-py does not know {work.name}")
    # In rows of 4,096 elements, as models have them.
    decode = partial(gguf.dequantize, work.raw.reshape(work.out.size // 4096, -1), kind)
    try:
        decode()
    except NotImplementedError:
        pytest.skip(f"this gguf-py does not decode {work.name}")
    return Timed(decode)


def by_ggml(work):
    """Return ggml's function in C, into the output."""
    path = os.environ.get("WEIGHTMAP_GGML")
    if not path:
        pytest.skip("ggml is built by make bench-ggml")
    name = work.name.replace("_k", "_K") if work.name.startswith("q") else work.name
    decode = getattr(ctypes.CDLL(path), f"dequantize_row_{name}")
    raw = work.raw
    arguments = ctypes.c_void_p(raw.ctypes.data), ctypes.c_void_p(work.out.ctypes.data), ctypes.c_int64(work.out.size)
    decode(*arguments)
    assert np.array_equal(work.out, quantised.decode_ggml(raw, work.out.size, work.name))

    def call(_keep=(raw, work.out)):
        decode(*arguments)

    return Timed(call)


OURS = ours(weightmap, isas=AVX2)
RIVALS = {"gguf-py": rival(by_gguf), "ggml": rival(by_ggml)}
EMPTY = ours(partial(weightmap, empty=True), "weightmap, np.empty", isas=AVX2)
WRITE = limits.of(limits.WRITE, lambda work: work.out)
LARGE = ("q4_0", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")
GROUPS = {f"decode {name}/L2": OURS | RIVALS for name in quantised.GGML_TYPES} | {
    f"decode {name}/DRAM": OURS | EMPTY | RIVALS | WRITE for name in LARGE
}


@each_contender(GROUPS)
def test_decoding(compare, smoke, group, who):
    """Decode blocks to float32."""
    question, _, case = group.partition("/")
    nbytes = 1 << 14 if smoke else CASES[case]
    work = partial(work_of, question.split()[1], nbytes)
    compare(GROUPS, work, nbytes=nbytes, places=PLACES.get(case, 1))
