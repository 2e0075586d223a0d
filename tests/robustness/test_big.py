"""Big files, cheaply: sparse files beyond 4 GiB, a flood of names with one hash."""

import json
import os
import struct
import time
import tracemalloc

import numpy as np
import pytest
from tests.attacks import bintensors
from tests.builders import Tensor, embd, gguf, normal
from tests.builders import safetensors as st
from tests.collisions import colliding
from tests.support import address, mappings, same

import weightmap as wm
from weightmap.core.table.vocabulary import strings_of

GIB = 2**30


def sparse(path, tensors, *, aligned=True):
    """Write an EMBD file whose tensors without bytes are holes; return the absolute offset of each tensor."""
    draft = embd.Draft(
        [(name, Tensor(dtype, shape, b"")) for name, dtype, shape, _ in tensors], aligned=aligned, checksums=False
    )
    start, offset, places = draft.data_offset, 0, []
    for number, (_, dtype, shape, _) in enumerate(tensors):
        offset = embd.align(offset) if aligned else offset
        draft.descriptor(number, data_offset=offset)
        places.append(offset)
        size = 1
        for dim in shape:
            size *= dim
        offset += size * np.dtype(dtype).itemsize
    draft.header(tensor_data_size=offset, total_file_size=start + offset + 16)
    head = draft.seal()
    with path.open("wb") as file:
        file.write(head[:start])
        for place, (*_, data) in zip(places, tensors, strict=True):
            if data is not None:
                file.seek(start + place)
                file.write(data)
        file.seek(start + offset)
        file.write(head[-16:])
    return {name: start + place for place, (name, *_) in zip(places, tensors, strict=True)}


def test_data_beyond_four_gibibytes(tmp_path):
    path = tmp_path / "big.weights"
    low, high = normal((4, 4), 1), normal((1000,), 2)
    places = sparse(
        path,
        [
            ("low", "float32", (4, 4), low.data),
            ("huge", "uint8", (5, GIB), None),
            ("high", "float32", (1000,), high.data),
        ],
    )
    if path.stat().st_blocks * 512 > GIB:
        pytest.skip("this file system keeps no sparse files")
    tracemalloc.start()
    begin = time.process_time()
    with wm.open(path) as f:
        assert same(f["low"], low)
        assert same(f["high"], high)
        assert f.info("high").offset == places["high"] > 5 * GIB
        huge = f["huge"]
        assert (huge.shape, huge.nbytes) == ((5, GIB), 5 * GIB)
        [(start, end)] = mappings(path)
        assert end - start >= 5 * GIB
        assert address(f["high"]) - start == places["high"]
        assert huge[4, -1] == 0
    took = time.process_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took < 2
    assert peak < 2**21


def test_a_sparse_safetensors_file(tmp_path):
    path = tmp_path / "big.safetensors"
    value = normal((100,), 3)
    head = {"huge": st.entry("U8", [5 * GIB], 0, 5 * GIB), "high": st.entry("F32", [100], 5 * GIB, 5 * GIB + 400)}
    with path.open("wb") as file:
        file.write(st.raw(json.dumps(head).encode()))
        file.seek(5 * GIB, os.SEEK_CUR)
        file.write(value.data)
    with wm.open(path) as f:
        assert same(f["high"], value)
        assert f["huge"].shape == (5 * GIB,)
        assert f["huge"][-1] == 0


@pytest.fixture(scope="module")
def flood():
    return [name.decode() for name in colliding()]


def test_a_collision_flood_stays_quick(flood):
    assert len({embd.fnv1a32(name.encode()) for name in flood}) == 1
    absent, names = flood[-1], flood[:-1]
    data = embd.Draft([(name, Tensor("float32", (1,), struct.pack("<f", i))) for i, name in enumerate(names)]).seal()
    begin = time.process_time()
    with wm.open(memoryview(data)) as f:
        assert [f[name].item() for name in names] == list(range(len(names)))
        assert absent not in f
        assert list(f) == names
    assert time.process_time() - begin < 2
    twice = [*names, names[len(names) // 2]]
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(embd.Draft([(name, normal((1,))) for name in twice]).seal()))


def test_a_flooded_vocabulary_stays_quick(flood):
    data = embd.Draft([], vocab=flood).seal()
    begin = time.process_time()
    with wm.open(memoryview(data)) as f:
        assert [f.vocab.index(token) for token in flood] == list(range(len(flood)))
        assert "absent" not in f.vocab
        assert strings_of(f.vocab).find_many([*flood, "absent"]).tolist() == [*range(len(flood)), -1]
        assert strings_of(f.vocab).index is None, "there is a dict in its place"
    assert time.process_time() - begin < 2


# Files with these entries of metadata, by the place of the entries.
ENTRIES = {
    "embd": lambda pairs: embd.Draft(metadata=embd.metadata_section(pairs)).seal(),
    "gguf": lambda pairs: gguf.build({}, [gguf.KeyValue(key, "str", value) for key, value in pairs]),
    "bintensors-spec": lambda pairs: bintensors.make("spec", metadata=sorted(pairs)),
    "bintensors-current": lambda pairs: bintensors.make("current", metadata=sorted(pairs)),
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_keys_whose_hashes_collide(kind):
    keys = [name.decode() for name in colliding()[:200]]
    pairs = [(key, key[::-1]) for key in keys]
    with wm.open(ENTRIES[kind](pairs)) as f:
        assert dict(f.metadata) == dict(pairs)
        f.verify()
    with pytest.raises(wm.LayoutError, match=r"repeats the key|twice|both have the key"):
        wm.open(ENTRIES[kind]([*pairs, pairs[3]]), format=kind.partition("-")[0])
