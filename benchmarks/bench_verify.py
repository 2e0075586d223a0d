"""Checking both checksums of an EMBD file: of the tensor data, and of the whole file.

The specification reads as two passes. One is enough: the checksum of the file is combined from those of its parts.
"""

import struct
import zlib

import numpy as np
import pytest

import weightmap as wm

MEGABYTES = 128


@pytest.fixture(scope="module")
def path(tmp_path_factory, request):
    """An EMBD file of random tensors, with checksums."""
    size = 1 if request.config.option.benchmark_disable else MEGABYTES
    rng = np.random.default_rng(1)
    tensors = {f"layer.{i}": rng.random(1 << 17, np.float32) for i in range(2 * size)}
    path = tmp_path_factory.mktemp("verify") / "model.weights"
    wm.save(path, tensors)
    return path


def test_verify(run, path):
    """Everything that `verify` checks, the checksums among it."""
    report = run(f"verify/EMBD {MEGABYTES} MiB", "ours", lambda: wm.open(path).verify(), rounds=10)
    assert "CRC-32 of the file" in report.checks


def two_passes(path, crc32):
    """Both checksums as the specification describes them, each by a pass over the mapped file."""
    data = np.memmap(path, np.uint8, mode="r")
    start, size = struct.unpack("<IQ", data[36:48].tobytes())
    footer = struct.unpack("<II", data[-16:-8].tobytes())
    assert (crc32(data[start : start + size]), crc32(data[:-16])) == footer


def test_two_passes_by_reading(run, path):
    """Two passes that read the file as `verify` does: a file that shrinks meanwhile is an error and no SIGBUS."""

    def passes():
        buffer = memoryview(bytearray(1 << 20))
        with path.open("rb", buffering=0) as file:
            header = file.read(64)
            start, size = struct.unpack("<IQ", header[36:48])
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

    run(f"verify/EMBD {MEGABYTES} MiB", "rival", passes, rounds=10)


def test_two_passes_by_zlib(run, path):
    """What a straightforward reader does."""
    run(f"verify/EMBD {MEGABYTES} MiB", "rival", two_passes, path, zlib.crc32, rounds=5)


def test_two_passes_by_zlib_ng(run, path):
    """The same with the fastest build of zlib."""
    zlib_ng = pytest.importorskip("zlib_ng.zlib_ng")
    run(f"verify/EMBD {MEGABYTES} MiB", "rival", two_passes, path, zlib_ng.crc32, rounds=10)


def test_two_passes_by_our_kernel(run, path):
    """Two passes over the mapping with the kernel of `verify`: faster than reading; a SIGBUS if the file shrinks."""
    run(f"verify/EMBD {MEGABYTES} MiB", "rival", two_passes, path, wm.kernels.crc32, rounds=10)
