"""Checking both checksums of an EMBD file, for the tensor data and for the whole file.

The specification describes two passes. One is enough: its parts' checksums combine to the file's.
"""

import struct
import zlib
from functools import partial

import numpy as np
import pytest

import limits
import weightmap as wm
from timing import AVX2, EVERY_ISA, Timed, each_contender, need, ours, rival

MEBIBYTES = 128


@pytest.fixture(scope="module")
def path(tmp_path_factory, smoke):
    """An EMBD file of random tensors, with checksums."""
    rng = np.random.default_rng(1)
    tensors = {f"layer.{i}": rng.random(1 << 17, np.float32) for i in range(2 * (1 if smoke else MEBIBYTES))}
    path = tmp_path_factory.mktemp("verify") / "model.weights"
    wm.save(path, tensors)
    return path


def weightmap(path, threads=1):
    """Run all checks of `verify`, the checksums included."""
    assert "CRC-32 of the file" in wm.open(path).verify().checks
    return Timed(lambda: wm.open(path).verify(threads=threads))


def mapped(path, crc32):
    """Compute each checksum by its own pass over the mapped file, as the specification describes."""

    def call():
        data = np.memmap(path, np.uint8, mode="r")
        start, size = struct.unpack("<IQ", data[36:48].tobytes())
        footer = struct.unpack("<II", data[-16:-8].tobytes())
        assert (crc32(data[start : start + size]), crc32(data[:-16])) == footer

    return Timed(call)


def by_reading(path):
    """Make two passes that read the file as `verify` does, so that a shrinking file is an error instead of a SIGBUS."""

    def call():
        room = np.empty((1 << 20) + 64, np.uint8)  # whose part from a line of the cache on is filled faster
        buffer = memoryview(room)[-room.ctypes.data % 64 :][: 1 << 20]
        with path.open("rb", buffering=0) as file:
            start, size = struct.unpack("<IQ", file.read(64)[36:48])
            end = path.stat().st_size - 16
            found = []
            for first, last in ((start, start + size), (0, end)):
                file.seek(first)
                crc, left = 0, last - first
                while left:
                    got = file.readinto(buffer[: min(len(buffer), left)])
                    crc = wm.kernels.crc32(buffer[:got], crc)
                    left -= got
                found.append(crc)
            file.seek(end)
            assert tuple(found) == struct.unpack("<II", file.read(8))

    return Timed(call)


CONTENDERS = (
    ours(weightmap, isas=EVERY_ISA)
    | ours(partial(weightmap, threads=2), "weightmap, 2 threads", isas=AVX2, threads=2)
    | ours(partial(weightmap, threads=None), "weightmap, threads=None", threads=2)
    # Reading the mapping is faster, but a file that shrinks ends the process by SIGBUS, so `verify` does not do it.
    | ours(partial(mapped, crc32=wm.kernels.crc32), "two passes, mapped", isas=AVX2)
    | ours(by_reading, "two passes, read", isas=AVX2)
    | {
        "two passes, zlib, mapped": rival(partial(mapped, crc32=zlib.crc32)),
        "two passes, zlib-ng, mapped": rival(lambda path: mapped(path, need("zlib_ng.zlib_ng").crc32)),
    }
    | limits.of(limits.READ, lambda path: np.memmap(path, np.uint8, mode="r"))
)


GROUPS = {f"verify/EMBD, {MEBIBYTES} MiB": CONTENDERS}


@each_contender(GROUPS)
def test_verify(compare, path, group, who):
    """Check the checksums of a file in the page cache."""
    compare(GROUPS, path, nbytes=path.stat().st_size)
