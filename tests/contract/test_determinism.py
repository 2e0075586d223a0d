"""The same content is the same file: on every machine and in every process, and once more when it is read and saved."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from tests import builders
from tests.support import listing, run_child

import weightmap as wm
from weightmap import kernels
from weightmap.formats import by_name

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = [example for example in builders.examples() if example.written]

# Integers become floats exactly, so this content is the same wherever it is made.
WRITE = """
import os, sys, numpy as np, weightmap as wm
from weightmap import kernels
folder, tier = sys.argv[1:]
if tier:
    kernels.use_isa(tier)
names = sorted({f"layer.{i}" for i in range(60)} | {"ключ", "a b", ""})
ramp = (np.arange(6000, dtype=np.int64) * 7919 % 2003 - 1001).reshape(60, 100)
tensors = {name: (ramp[:3, i : i + 4] / 16).astype("f4") for i, name in enumerate(names)}
kinds = {kind: ramp[:4, :5].astype(kind) for kind in ("f2", "i1", "u1", "i2", "u2", "i4", "u4")}
metadata = {name: name * 2 for name in names if name}
words = [f"word{i}" for i in range(60)]
matrix = (ramp[:, :16] / 8).astype("f4")
half = (ramp[:12] / 4).astype("f2").reshape(3, 100, 2, 2)
schemes = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive")
quantised = {scheme: wm.quantize(matrix, scheme) for scheme in schemes}
tokenizer = {"type": 0, "special_ids": {}, "payload": b"tokens"}

def save(name, tensors, **options):
    wm.save(os.path.join(folder, name), tensors, durable=False, **options)

save("spec.weights", tensors | kinds, metadata=metadata, vocab=words, special_ids={"pad": 0, "unk": 5})
save("bare.weights", tensors, checksums=False)
save("simple.weights", tensors, layout="simple", vocab=words)
save("a.safetensors", tensors | kinds, metadata=metadata)
save("spec.bt", tensors | kinds, metadata=metadata)
save("current.bt", tensors | kinds, metadata=metadata, layout="current")
save("v1.bin", {"layer.0.weight": half}, layout="v1")
save("v2.bin", {"layer.0.weight": half, "layer.1.weight": half[:1, :1]}, metadata={"mip_level": 2})
save("dense.amb", {"w": matrix, "h": matrix.astype("f2")}, metadata=metadata, config=metadata, tokenizer=tokenizer)
save("quantised.amb", quantised)
save("upstream.fifu", {"embeddings": matrix, "norms": matrix[:, 0]}, vocab=words, metadata={"b": 1, "a": "x"})
save("spec.fifu", {"embeddings": matrix}, vocab=words, layout="spec")
wm.convert(os.path.join(folder, "upstream.fifu"), os.path.join(folder, "words.bin"), format="fasttext")
"""
# Changed knowingly, these say what a release does to the files that others keep and compare by their sums.
GOLDEN: dict[str, str] = {
    "a.safetensors": "97d140948adb335f7f4f792c5d226fa8d165a7be25043bd1aa4b155943ed1fdc",
    "bare.weights": "d892c93f4340a4709e4950d4d1fdb7beed526af334179b703ec861957084fd17",
    "current.bt": "3c8c5fe694e0951f01198a8020c328e9f1c235cdedb95ed870fcb9dcf1053324",
    "dense.amb": "71a39c3059528bc2b54a657cad26fed7c23ee73d8c2aa7e4f37eb57b4a46bc8e",
    "quantised.amb": "b80c63712b2535ddc5812cb40668fd58684248b69d58523295eb6e6ce78f8b0b",
    "simple.weights": "6f5d72a64e81634cb72d90ab126d088cec96c3a565f55d3e6c149320ae02278c",
    "spec.bt": "0232e0830a960eaea40659ecddfaea40e78d956e388f235746595ba3e4409d37",
    "spec.fifu": "ffa4597968db32cbc7b34a539dfd720542ac2c2dd85487549cd983e1486b221c",
    "spec.weights": "413ea7d870f3140fd2733e0d35a920342f2726ac2c2f5be2c7cb81c3a37d9ade",
    "upstream.fifu": "a1cb699fd1e98dddb959ace8665eb239f41a526a54b5de681f69332b3f22b8ab",
    "v1.bin": "385b35602f80c84360b0f8812d950b430d7c1b8ec15bde3b6480fbddd9314c2d",
    "v2.bin": "f0c61b6c0445429aa989fbf243899c786dc1bfbc78c57b52ffe925a5fb7e0372",
    "words.bin": "64861920128d98d91c4d7c12f828b254b74f742a5ba46f9076e008e1de12c5cb",
}


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in listing(folder)}


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_files_have_the_sums_that_are_written_down(tmp_path: Path, seed: str) -> None:
    """Every format and layout, whatever the order of Python's sets and dictionaries by hash: the recorded SHA-256."""
    run_child(WRITE, tmp_path, "", env={"PYTHONHASHSEED": seed})
    assert sums(tmp_path) == GOLDEN


@pytest.mark.parametrize("tier", kernels.available_isas())
def test_files_are_the_same_on_every_processor(tmp_path: Path, tier: str) -> None:
    """With the instructions of any processor, quantised tensors and checksums included: the same."""
    run_child(WRITE, tmp_path, tier)
    assert sums(tmp_path) == GOLDEN


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{example.format}-{example.name}" for example in EXAMPLES])
def test_reading_and_writing_once_more_changes_nothing(example: builders.Example, tmp_path: Path) -> None:
    """What another program wrote becomes a file that holds the same, and that file, read and written, is itself.

    Of a format that is only read, a file of another one that can hold all of it.
    """
    suffix, options = example.suffix, {"format": example.format, "layout": example.layout}
    if by_name(example.format).plan is None:
        suffix, options = ".safetensors", {}
    original, first, second = (tmp_path / f"{name}{suffix}" for name in ("original", "first", "second"))
    original.write_bytes(example.data)
    wm.convert(original, first, **options)
    wm.convert(first, second, **options)
    assert first.read_bytes() == second.read_bytes()
    assert wm.diff(original, first).equal
