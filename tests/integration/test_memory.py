"""The anonymous memory of look-ups, verifying and converting, measured: parts of a model, not all."""

import json
import struct
import sys
from functools import partial

import numpy as np
import pytest
from tests.builders import Tensor, amb, embd
from tests.support import peak_of, sparse
from tests.word_files import word2vec

MIB = 2**20
TENSORS = 16

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts the memory of a process as Linux does")


def numbered(path, kind, size):
    """Write 16 tensors of `size` bytes each, tensor i holding one u64 of i + 1 among zeros."""
    if kind == "embd":
        draft = embd.Draft([(f"t{i}", Tensor("uint8", (0, 8), b"")) for i in range(TENSORS)], checksums=False)
        for i in range(TENSORS):
            draft.descriptor(i, shape0=size // 8, data_offset=i * size)
        start, total = draft.data_offset, TENSORS * size
        draft.header(tensor_data_size=total, total_file_size=start + total + 16)
        path.write_bytes(draft.seal()[:start])
        tail = draft.seal()[-16:]
    else:
        sparse(path, {f"t{i}": (size // 8, 8) for i in range(TENSORS)}, "U8")
        start, tail = path.stat().st_size - TENSORS * size, b""
    with path.open("r+b") as file:
        for i in range(TENSORS):
            file.seek(start + i * size + size // 2 // 8 * 8)
            file.write(bytes([i + 1]))
        file.truncate(start + TENSORS * size)
        file.seek(0, 2)
        file.write(tail)


def quantised(path, size, code):
    """Write one quantised tensor of this many rows, with only its header in the file."""
    nbytes = 4 + (size * 1024 // 32 * 18 if code == amb.INT4BLOCK else size * 1024 + 2)
    record = amb.Record("w", (size, 1024), code, b"", data_size=nbytes)
    head = record.head() + struct.pack("<BHB", code - 2, 32 if code == amb.INT4BLOCK else 0, 1)
    weights = -(-(28 + len(head) - 4 + nbytes) // 8) * 8 - 28
    with path.open("wb") as file:
        file.write(amb.build(head, weights_size=weights))
        file.truncate(28 + weights)


def dense(path, size):
    """Write 256 MiB, 192 of them in one tensor, or little."""
    sparse(path, {"t0": (48 * size, 1024)} | {f"t{i}": (size, 1024) for i in range(1, 17)})


def shards(path, size):
    path.mkdir()
    where = {f"w{i}": f"{i}.safetensors" for i in range(4)}
    for name, file in where.items():
        sparse(path / file, {name: (16 * size, 1024)})
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def words(path, size):
    rows = np.ones((40 * size, 400), "<f4")
    path.write_bytes(word2vec([f"w{i}" for i in range(len(rows))], rows))


VIEW = """views = list(wm.open(source{}).values())
    assert [int(view.reshape(-1).view(np.uint64).max()) for view in views] == [*range(1, 17)]"""
EXECUTOR = """from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as pool:
        wm.convert(source, out + "/", format="amb", quantize="int4_block", run=wm.Run(pool))"""
PASS = """wm.convert(source, f"{out}.amb")
    wm.convert(source, f"{out}.safetensors", dtype="float16")
    assert wm.diff(source, f"{out}.amb").equal"""
WORDS = """wm.convert(source, f"{out}.fifu")
    wm.convert(f"{out}.fifu", f"{out}.w2v", format="word2vec")"""
# A function that writes the source from a number, large and small; the operation; and its limit in MiB.
CASES = {
    **{
        f"view {kind}{mode}": (partial(numbered, kind=kind), (16 * MIB, 64), VIEW.format(mode), 4)
        for kind in ("embd", "safetensors")
        for mode in ("", ", mode='cow'")
    },
    "verify": (partial(numbered, kind="embd"), (16 * MIB, 64), "wm.open(source).verify()", 32),
    "convert": (dense, (1024, 1), "wm.convert(source, f'{out}.weights')", 48),
    "cast": (dense, (1024, 1), "wm.convert(source, f'{out}.weights', dtype='float16')", 48),
    "quantise int4": (dense, (1024, 1), "wm.convert(source, f'{out}.amb', quantize='int4_block')", 48),
    "quantise int5": (dense, (1024, 1), "wm.convert(source, f'{out}.amb', quantize='int5_block')", 48),
    "quantise int8": (dense, (1024, 1), "wm.convert(source, f'{out}.amb', quantize='int8')", 48),
    "quantise adaptive": (dense, (1024, 1), "wm.convert(source, f'{out}.amb', quantize='adaptive')", 128),
    "by an executor": (shards, (1024, 1), EXECUTOR, 128 + 16),
    "int8 passes": (partial(quantised, code=amb.INT8), (2**15, 2**9), PASS, 24),
    "int4 passes": (partial(quantised, code=amb.INT4BLOCK), (2**15, 2**9), PASS, 24),
    "words": (words, (1000, 1), WORDS, 40),
}


@pytest.mark.parametrize("case", CASES)
def test_memory_stays_flat(tmp_path, case):
    write, sizes, work, most = CASES[case]
    for name, size in zip(("big", "small"), sizes, strict=True):
        write(tmp_path / name, size=size)
    assert peak_of(work, tmp_path / "big", tmp_path / "small", tmp_path / "out") < most * MIB
