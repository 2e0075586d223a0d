"""Frames of zstd in deltas: valid ones of every kind, and malformed ones."""

import subprocess
import sys

import numpy as np
import pytest
import zstandard
from tests.deltas.delta_files import frame, payload, write_delta, write_model

import weightmap as wm
from weightmap import deltas

# A block of ours and some more.
SIZE = 600_001


def flips(share):
    """The difference of two tensors: few or many low bits."""
    draw = np.random.default_rng(3)
    return (draw.integers(1, 4, SIZE, np.uint8) * (draw.random(SIZE) < share)).astype(np.uint8)


OLD = {"w": np.random.default_rng(2).integers(0, 256, SIZE, np.uint8), "other": np.arange(3, dtype=np.uint8)}
STEPS = {
    "nothing": OLD["w"],
    "few": OLD["w"] ^ flips(0.01),
    "many": OLD["w"] ^ flips(0.3),
    "all": np.random.default_rng(4).integers(0, 256, SIZE, np.uint8),
}


@pytest.fixture
def look_up(tmp_path):
    """Return a function that looks the tensor up under one delta with this frame, or one written by us."""
    base, count = write_model(tmp_path / "base", OLD), iter(range(10_000))

    def look_up(new, packed, encoding="xor"):
        source = tmp_path / f"source{next(count)}"
        delta = write_delta(source, 1, OLD, OLD | {"w": new}, encoding=encoding, frames={"w": packed})
        with deltas.open(base, [delta]) as f:
            return f["w"].tobytes()

    return look_up


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("level", [1, 9])
@pytest.mark.parametrize("step", STEPS)
def test_what_zstd_writes(look_up, step, level, encoding):
    """Of any level, with and without size and checksum, of narrow and wide windows, and in blocks of any size."""
    new, data = STEPS[step], payload(OLD["w"].tobytes(), STEPS[step].tobytes(), encoding)
    for streamed, checked in ((False, False), (False, True), (True, False)):
        packed = frame(data, streamed=streamed, level=level, checked=checked)
        assert look_up(new, packed, encoding) == new.tobytes()
    for window in (10, 27):
        how = zstandard.ZstdCompressionParameters.from_level(level, window_log=window)
        packer = zstandard.ZstdCompressor(compression_params=how).compressobj()
        packed = packer.compress(data[:1001]) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        packed += packer.compress(data[1001:]) + packer.flush()
        assert look_up(new, packed, encoding) == new.tobytes()


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_damaged_frames(look_up, encoding):
    """Flipped bits, and missing or surplus bytes: the right tensor, or an error that names it."""
    new, draw, outcomes = STEPS["few"], np.random.default_rng(5), {"right": 0, "refused": 0, "nameless": 0}
    data = payload(OLD["w"].tobytes(), new.tobytes(), encoding)
    whole = [frame(data, level=(1, 9)[i % 2], streamed=i % 4 > 1, checked=i > 3) for i in range(8)]
    for number in range(120):
        packed = bytearray(whole[number % 8])
        if number % 3 == 0:
            packed[int(draw.integers(len(packed)))] ^= 1 << int(draw.integers(8))
        elif number % 3 == 1:
            del packed[int(draw.integers(len(packed))) :]
        else:
            packed[int(draw.integers(20))] = int(draw.integers(256))
        try:
            assert look_up(new, bytes(packed), encoding) == new.tobytes()
            outcomes["right"] += 1
        except wm.DeltaError as error:
            outcomes["refused" if "tensor 'w'" in str(error) else "nameless"] += 1
    assert outcomes["refused"] > 90, outcomes
    assert not outcomes["nameless"]


# Prints the peak memory of this process alone, without its parent's.
PEAK = """
print(next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
OPEN = """
import sys
import weightmap as wm
from weightmap import deltas
with deltas.open(sys.argv[1], [sys.argv[2]]) as f:
    try:
        f["w"]
    except wm.DeltaError as error:
        print(error)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")


def peak_of(code, *given):
    """The output of a process, and its peak memory."""
    done = subprocess.run(
        [sys.executable, "-c", code + PEAK, *map(str, given)], capture_output=True, text=True, check=True
    )
    *said, peak = done.stdout.splitlines()
    return said, int(peak)


@linux
def test_a_bomb_takes_no_memory(tmp_path):
    """A frame of some hundred bytes with 1 GiB of zeros for a tensor of 600 kB, whose size it does not declare."""
    base = write_model(tmp_path / "base", OLD)
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    packed = b"".join(packer.compress(bytes(1 << 24)) for _ in range(64)) + packer.flush()
    peaks = []
    for number, data in enumerate((frame(bytes(SIZE)), packed)):
        said, peak = peak_of(OPEN, base, write_delta(tmp_path / f"source{number}", 1, OLD, OLD, frames={"w": data}))
        assert bool(said) == bool(number)
        peaks.append(peak)
    assert "holds more than it should" in said[0]
    assert peaks[1] < peaks[0] + (8 << 20)
