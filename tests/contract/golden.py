"""Writes the files whose SHA-256 builders record: ``python -m tests.contract.golden FOLDER [INSTRUCTIONS]``."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from tests import builders
from tests.support import save_with

import weightmap as wm
from weightmap import kernels

SCHEMES = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive")


def content():
    """Tensors, texts and words that are the same on every machine: integers become floats exactly."""
    # A set: Python's hashes decide its order, and differ from process to process.
    names = sorted({f"layer.{i}" for i in range(60)} | {"ключ", "a b", ""})
    ramp = (np.arange(6000, dtype=np.int64) * 7919 % 2003 - 1001).reshape(60, 100)
    matrix = (ramp[:, :16] / 8).astype("f4")
    return SimpleNamespace(
        tensors={name: (ramp[:3, i : i + 4] / 16).astype("f4") for i, name in enumerate(names)},
        kinds={kind: ramp[:4, :5].astype(kind) for kind in ("f2", "i1", "u1", "i2", "u2", "i4", "u4")},
        metadata={name: name * 2 for name in names if name},
        words=[f"word{i}" for i in range(60)],
        matrix=matrix,
        half=(ramp[:12] / 4).astype("f2").reshape(3, 100, 2, 2),
        quantised={scheme: wm.quantize(matrix, scheme) for scheme in SCHEMES},
    )


def write(folder):
    found = content()
    for builder in builders.known().values():
        for name, golden in builder.golden.items():
            save_with(folder / name, **golden.arguments(found), durable=False)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        kernels.use_isa(sys.argv[2])
    write(Path(sys.argv[1]))
    wm.convert(Path(sys.argv[1], "upstream.fifu"), Path(sys.argv[1], "words.bin"), format="fasttext")
