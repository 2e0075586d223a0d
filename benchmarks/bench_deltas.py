"""Versions of a model with 1 % changed elements: applying, publishing, and the decoding loop.

The rivals do what slime and SGLang do, with zstandard and numpy: the receiver decodes a frame, XORs it into a mapping
of the file, compares the checksum, and flushes nothing to the disk; in one variant frame by frame, in the other in
blocks that stay in cache. The publisher XORs, compresses and sums up tensor by tensor, and writes one file, which it
does not flush either. Ours writes beside, verifies, flushes, and switches.

Receivers go to and fro between two states, so every call but the first is one "from the second version on". Directories
of the disk are pytest's; set ``--basetemp`` to choose another disk.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from timing import Timed, each_contender, limit, need, ours, rival
from weightmap import deltas
from weightmap.core.native import files
from weightmap.deltas.frames import BLOCK

TENSORS, CHANGED = 16, 0.01
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


def publish_by_steps(old, new, target, version):
    """Publish as slime does."""
    zstd, xxhash, save = need("zstandard"), need("xxhash"), need("safetensors.numpy").save_file
    target.mkdir(parents=True)
    mapped = [np.memmap(model / FILE, np.uint8, "r") for model in (old, new)]
    (before, _), (after, _) = (layout(model / FILE) for model in (old, new))
    packer, frames, sums = zstd.ZstdCompressor(level=1), {}, {}
    for name, (begin, end) in after.items():
        now = mapped[1][begin:end]
        changed = mapped[0][slice(*before[name])] ^ now
        if changed.any():
            frames[name] = np.frombuffer(packer.compress(changed), np.uint8)
            sums[name] = xxhash.xxh3_128(now).hexdigest()
    save(frames, target / FILE, sums)
    metadata = {
        "version": f"{version:06}",
        "base_version": f"{version - 1:06}",
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
    }
    index = {"metadata": metadata, "weight_map": dict.fromkeys(frames, FILE)}
    (target / INDEX).write_text(json.dumps(index), encoding="utf-8")


class Case:
    """Two states of a model in a directory, and the deltas between them: version 1, and 2 that goes back."""

    def __init__(self, folder, size):
        self.folder = folder
        rng = np.random.default_rng(1)
        states = [{f"layer.{i}": rng.integers(0, 1 << 16, size, np.uint16) for i in range(TENSORS)}]
        states.append({name: value ^ self._flips(rng, size) for name, value in states[0].items()})
        for number, state in enumerate(states):
            (folder / str(number)).mkdir()
            wm.save(folder / str(number) / FILE, state)
        self.source = folder / "source"
        self.nbytes = TENSORS * 2 * size
        for version in (1, 2):
            deltas.publish(self.model(version - 1), self.model(version), self.source, version=version)

    @staticmethod
    def _flips(rng, size):
        return rng.integers(1, 4, size, np.uint16) * (rng.random(size, np.float32) < CHANGED)

    def model(self, state):
        """Return the directory of a state, which is 0 or 1."""
        return self.folder / str(state % 2)

    def delta(self, version):
        """Return the directory of a version, which is 1 or 2."""
        return self.source / f"weight_v{version:06}"

    def local(self):
        """Return a copy of the model for a receiver."""
        return Path(shutil.copytree(self.model(0), tempfile.mkdtemp(dir=self.folder), dirs_exist_ok=True))


@pytest.fixture(scope="module")
def case(tmp_path_factory, smoke):
    """Return case(kind) of a file system, made at the first call; a missing kind skips."""
    made, size = {}, 1 << (10 if smoke else 23)

    def case(kind):
        if kind not in made:
            memory = Path("/dev/shm")
            if kind == "tmpfs" and not memory.is_dir():
                pytest.skip("there is no tmpfs at /dev/shm")
            folder = tmp_path_factory.mktemp("deltas") if kind == "disk" else Path(tempfile.mkdtemp(dir=memory))
            made[kind] = Case(folder, size)
        return made[kind]

    yield case
    for one in made.values():
        shutil.rmtree(one.folder)


def layout(path):
    """Return {tensor: (begin, end)} and the metadata of a file of safetensors."""
    with path.open("rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
    sums = header.pop("__metadata__", {})
    return {name: [8 + size + at for at in entry["data_offsets"]] for name, entry in header.items()}, sums


def receiver(step):
    """Return the clock of a receiver: `step(local, case)` returns a function that brings it to version 1 or 2."""

    def prepare(case):
        local, versions = case.local(), cycle((1, 2))
        to = step(local, case)

        def begin():
            version = next(versions)
            sync = local / ".weight_sync"
            sync.mkdir(exist_ok=True)
            (sync / "state.json").write_text(json.dumps({"version": f"{version - 1:06}"}), encoding="utf-8")
            return version

        to(begin())
        assert wm.diff(local, case.model(1)).equal
        return Timed(to, begin)

    return prepare


def applying(local, case, threads=1, *, in_place=False):
    """Ours."""
    return lambda version: deltas.apply(local, case.delta(version), threads=threads, in_place=in_place)


def pulling(local, case, threads=1):
    """Ours, which finds the way itself."""
    return lambda version: deltas.pull(local, case.source, version=version, threads=threads)


def in_place(local, case, *, whole):
    """XOR each frame into a mapping, decoded as a whole or in blocks."""
    zstd, xxhash = need("zstandard"), need("xxhash")

    def frame(data, target):
        if whole:
            decoded = np.frombuffer(zstd.ZstdDecompressor().decompress(data), np.uint8)
            np.bitwise_xor(target, decoded, out=target)
            return xxhash.xxh3_128(target)
        reader, block, digest = zstd.ZstdDecompressor().stream_reader(data), bytearray(BLOCK), xxhash.xxh3_128()
        for at in range(0, len(target), BLOCK):
            part = target[at : at + BLOCK]
            got = 0
            while got < len(part):
                got += reader.readinto(memoryview(block)[got : len(part)])
            np.bitwise_xor(part, np.frombuffer(block, np.uint8)[: len(part)], out=part)
            digest.update(part)
        return digest

    def call(version):
        folder = case.delta(version)
        mapped, (places, _) = np.memmap(local / FILE, np.uint8, "r+"), layout(local / FILE)
        index = json.loads((folder / INDEX).read_bytes())
        for name in sorted(set(index["weight_map"].values())):
            stored = np.memmap(folder / name, np.uint8, "r")
            spans, sums = layout(folder / name)
            for tensor, (begin, end) in spans.items():
                first, last = places[tensor]
                digest = frame(stored[begin:end], mapped[first:last])
                assert digest.hexdigest() == sums[tensor]
        (local / ".weight_sync" / "state.json").write_text(json.dumps({"version": f"{version:06}"}), encoding="utf-8")

    return call


def copying(case, threads=1, *, in_place=False):
    """Read the file in blocks, write them over another one, and flush that: the cost of leaving the old file alone.

    In place, read it first, and then write it over itself: the cost of verifying all before anything changes.
    """
    target = case.local() / FILE
    source, size = target if in_place else case.model(0) / FILE, target.stat().st_size
    share, flushed = -(-size // threads), 8 << 20

    def go_through(old, new, begin):
        block = memoryview(bytearray(BLOCK))
        end = min(begin + share, size)
        for at in range(begin, end, BLOCK):
            part = block[: end - at]
            os.preadv(old.fileno(), [part], at)
            if new is not None:
                os.pwrite(new.fileno(), part, at)
                if (at - begin) % flushed == flushed - BLOCK:
                    files.begin_flush(new.fileno(), at + BLOCK - flushed, flushed)

    def call():
        with source.open("rb") as old, target.open("r+b") as new, ThreadPoolExecutor(threads) as pool:
            for to in [None, new] if in_place else [new]:
                list(pool.map(partial(go_through, old, to), range(0, size, share)))
            os.fsync(new.fileno())

    return Timed(call)


RECEIVERS = (
    ours(receiver(applying))
    | ours(receiver(partial(applying, threads=2)), "weightmap, 2 threads", threads=2)
    | ours(receiver(pulling), "weightmap, pull")
    | ours(receiver(partial(applying, in_place=True)), "weightmap, in place by a journal")
    | ours(receiver(partial(applying, in_place=True, threads=2)), "weightmap, in place, 2 threads", threads=2)
    | {
        "in place by frames": rival(receiver(partial(in_place, whole=True))),
        "in place by blocks": rival(receiver(partial(in_place, whole=False))),
        "copying and flushing alone": limit(copying),
        "copying and flushing, 2 threads": limit(partial(copying, threads=2), threads=2),
        "reading, copying in place, flushing": limit(partial(copying, in_place=True)),
    }
)
KINDS = ("disk", "tmpfs")
APPLY = {f"deltas/apply, {kind}": RECEIVERS for kind in KINDS}


@each_contender(APPLY)
def test_apply(compare, case, group, who):
    """Go to the next version, from the second on."""
    given = case(group.rpartition(" ")[2])
    compare(APPLY, given, nbytes=given.nbytes)


def publishing(case, threads=1):
    """Ours."""
    target = case.folder / f"published {threads}"

    def begin():
        shutil.rmtree(target, ignore_errors=True)

    def call(_):
        deltas.publish(case.model(0), case.model(1), target, version=1, threads=threads)

    return Timed(call, begin)


def steps_of_slime(case):
    """XOR, compress, sum up; write one file and the index."""
    target = case.folder / "published by steps"

    def begin():
        shutil.rmtree(target, ignore_errors=True)

    return Timed(lambda _: publish_by_steps(case.model(0), case.model(1), target, 1), begin)


def reading(case, threads=1):
    """Read both files in blocks, sum up the new one, and write and flush as many bytes as a delta has."""
    xxhash = need("xxhash")
    models, target = [case.model(state) / FILE for state in (0, 1)], case.folder / f"read {threads}"
    made = bytes(sum(path.stat().st_size for path in case.delta(1).iterdir()))
    size = models[0].stat().st_size
    share = -(-size // threads)

    def go_through(files, begin):
        blocks, digest = [memoryview(bytearray(BLOCK)) for _ in files], xxhash.xxh3_128()
        end = min(begin + share, size)
        for at in range(begin, end, BLOCK):
            for file, block in zip(files, blocks, strict=True):
                os.preadv(file.fileno(), [block[: end - at]], at)
            digest.update(blocks[-1][: end - at])

    def call(_):
        with models[0].open("rb") as old, models[1].open("rb") as new, ThreadPoolExecutor(threads) as pool:
            list(pool.map(partial(go_through, (old, new)), range(0, size, share)))
        with target.open("xb") as file:
            file.write(made)
            os.fsync(file.fileno())

    return Timed(call, lambda: target.unlink(missing_ok=True))


PUBLISHERS = (
    ours(publishing)
    | ours(partial(publishing, threads=2), "weightmap, 2 threads", threads=2)
    | {
        "numpy, zstandard": rival(steps_of_slime),
        "reading, summing and flushing alone": limit(reading),
        "reading, summing and flushing, 2 threads": limit(partial(reading, threads=2), threads=2),
    }
)
PUBLISH = {f"deltas/publish, {kind}": PUBLISHERS for kind in KINDS}


@each_contender(PUBLISH)
def test_publish(compare, case, group, who):
    """Publish what changed."""
    given = case(group.rpartition(" ")[2])
    compare(PUBLISH, given, nbytes=given.nbytes)


GROUPS = APPLY | PUBLISH
