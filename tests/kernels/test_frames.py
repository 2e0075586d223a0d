"""Frames of zstd: all that zstd writes, and what nobody should, decoded by csrc/zstd.c; those of csrc/zstd_encode.c."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import zstandard

from weightmap.native import late

# Windows are at most so wide here.
MOST = 1 << 23


def room(nbytes):
    """Memory that held something else before."""
    return memoryview(np.full(nbytes, 0xA5, np.uint8))


def decode(data, most, *, sparse, piece=1 << 18, read=1 << 17):
    """The payload of a frame, taken and read in pieces, and how it ended; what is XORed is listed, if it is little."""
    header = late.frame_header(data[: late.FRAME_HEAD])
    changes = late.Changes(most // 8) if sparse else None
    decoder = late.FrameDecoder(header, most, room, sparse=sparse)
    out = np.zeros(most + 1, np.uint8) if sparse else np.full(most + 1, 0x5A, np.uint8)
    at, done = header.nbytes, 0
    if sparse:
        changes.begin(out)
    while True:
        # XOR to zeros is the payload too.
        how, made = decoder.decode(out[done : done + piece], exclusive=sparse, changes=changes)
        done += made
        if how == late.FRAME_HUNGRY and at < len(data):
            decoder.feed(data[at : at + read])
            at += read
        elif how != late.FRAME_FULL or done == len(out):
            if sparse:
                listed, places = changes.listed(), np.flatnonzero(out)
                assert (listed is None) == (len(places) > most // 8)
                assert listed is None or np.array_equal(listed, places << 8 | out[places])
            return how, out[:done].tobytes()


def payloads():
    """Payloads of every kind: zeros, differences of few and many elements, text, noise, runs, and far repetitions."""
    rng = np.random.default_rng(7)
    for size in (0, 1, 1000, 70_000, 300_001):
        yield f"zeros {size}", bytes(size)
        yield f"noise {size}", rng.integers(0, 256, size, np.uint8).tobytes()
        yield f"one {size}", b"\x07" * size
        for share in (0.01, 0.06, 0.3):
            flips = rng.integers(1, 4, size // 2 + 1, np.uint16) * (rng.random(size // 2 + 1) < share)
            yield f"{share} {size}", flips.astype(np.uint16).tobytes()[:size]
    sparse = (rng.integers(1, 200, 1 << 19, np.uint8) * (rng.random(1 << 19) < 0.01)).astype(np.uint8).tobytes()
    dense = rng.integers(0, 4, 1 << 18, np.uint8).tobytes()
    yield "sparse, dense, sparse", sparse[: 1 << 18] + dense[:150_000] + sparse[1 << 18 :]
    yield "far", sparse + sparse[: 1 << 18] + dense[:1000] + sparse
    rng = np.random.default_rng(7)
    for count in (10_000, 50_000, 96_000):  # long matches of many of them, from the first one on
        yield f"one bit of few words of {count}", (rng.random(count) < 0.02).astype("<u4").tobytes()
    yield "text", b"".join(b"%d tensors of %d bytes\n" % (i, i * i % 977) for i in range(30_000))


PAYLOADS = dict(payloads())


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("level", [1, 3, 19])
def test_what_zstd_writes(name, level):
    """Of any level, with and without its size and its checksum, in blocks of any size, in pieces of any size."""
    data = PAYLOADS[name]
    at_once = zstandard.ZstdCompressor(level=level).compress(data)
    assert decode(at_once, len(data), sparse=True) == (late.FRAME_ENDED, data)
    for declared, window in ((len(data), 0), (-1, 0), (len(data), 12), (-1, 15)):
        how = (
            zstandard.ZstdCompressionParameters.from_level(
                level, source_size=len(data), window_log=window or None, write_checksum=declared < 0
            )
            if window
            else None
        )
        given = {"compression_params": how} if window else {"level": level, "write_checksum": declared < 0}
        packer = zstandard.ZstdCompressor(**given).compressobj(size=declared)
        packed = packer.compress(data[:1001])
        if declared < 0:
            packed += packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        packed += packer.compress(data[1001:]) + packer.flush()
        header = late.frame_header(packed[: late.FRAME_HEAD])
        assert header.size == (None if declared < 0 else len(data))
        assert header.window == zstandard.get_frame_parameters(packed).window_size
        for sparse in (False, True):
            for piece, read in ((1 << 18, 1 << 17), (4099, 10_007)):
                found = decode(packed, len(data), sparse=sparse, piece=piece, read=read)
                assert found == (late.FRAME_ENDED, data)


def test_changes():
    """Are made in their order, as often as one likes, and none outside of the block."""
    block, changes = np.arange(100, dtype=np.uint8), late.Changes(4)
    changes.begin(block)
    assert changes.listed().tolist() == []
    changes.add(np.array([7, 99]), np.array([1, 255], np.uint8))
    changes.add(np.array([7, 0]), np.array([3, 4], np.uint8))
    wanted = block.copy()
    wanted[[0, 7, 99]] = 4, 3, 255
    for _ in range(2):
        assert late.change(block, changes.listed())
        assert np.array_equal(block, wanted)
    assert not late.change(block[:99], changes.listed())
    changes.add(np.array([1]), np.array([1], np.uint8))
    assert changes.listed() is None  # there is no room for so many
    changes.begin(block)
    assert changes.listed().tolist() == []


def test_damaged_frames():
    """A byte that is another one, or is not there: never more than the payload, and what both accept is the same."""
    rng = np.random.default_rng(5)
    outcomes = {"same": 0, "refused": 0, "accepted by us alone": 0}
    for name in ("0.01 1000", "0.06 70000", "noise 1000", "text", "0.3 70000", "one 1000"):
        data = PAYLOADS[name][:70_000]
        for level in (1, 19):
            packed = zstandard.ZstdCompressor(level=level).compress(data)
            for _ in range(150):
                broken = bytearray(packed)
                for _ in range(int(rng.integers(1, 3))):
                    broken[int(rng.integers(4, len(broken)))] ^= 1 << int(rng.integers(8))
                if rng.random() < 0.2:
                    del broken[int(rng.integers(6, len(broken))) :]
                broken = bytes(broken)
                header = late.frame_header(broken[: late.FRAME_HEAD])
                if header is None or header.window > MOST:
                    continue
                found = [decode(broken, len(data), sparse=sparse) for sparse in (False, True)]
                assert found[0] == found[1]
                how, ours = found[0]
                try:
                    reader = zstandard.ZstdDecompressor(max_window_size=MOST).stream_reader(broken)
                    theirs = reader.read(len(data) + 1)
                except zstandard.ZstdError:
                    theirs = None
                if how == late.FRAME_DAMAGED:
                    assert theirs != data  # zstd forgives bits that are left over
                    outcomes["refused"] += 1
                elif theirs is None:
                    outcomes["accepted by us alone"] += 1
                else:
                    assert ours.startswith(theirs) or theirs.startswith(ours)
                    outcomes["same"] += 1
    assert min(outcomes["same"], outcomes["refused"]) > 100, outcomes


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x28\xb5\x2f\xfd",
        b"\x27\xb5\x2f\xfd\x20\x01\x01\0\0",  # another number
        b"\x50\x2a\x4d\x18\4\0\0\0abcd",  # skippable
        b"\x28\xb5\x2f\xfd\x28\x01\x01\0\0",  # a reserved bit
        b"\x28\xb5\x2f\xfd\x21\x07\x01\x01\0\0",  # a dictionary
        b"\x28\xb5\x2f\xfd\xe0\x01\0\0",  # the end of its header is missing
    ],
)
def test_what_is_no_frame(data):
    """Or one that needs what nobody has."""
    assert late.frame_header(data) is None


@pytest.mark.parametrize(
    "block",
    [
        b"\x07\0\0",  # reserved
        b"\x01\0\x20" + bytes(1 << 18),  # larger than blocks may be
        b"\x15\0\0\0\x01",  # literals, and then less than a sequence
        b"\x1d\0\0\x00\x01\x54",  # tables that are used again, before there is one
        b"\x1d\0\0\x03\x00\x00",  # the same of literals
        b"\x25\0\0\x00\x01\x00\x00",  # bits without their mark
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_blocks_that_are_refused(block, sparse):
    """Not a byte is made."""
    frame = b"\x28\xb5\x2f\xfd\x00\x00" + block
    assert decode(frame, 1 << 18, sparse=sparse) == (late.FRAME_DAMAGED, b"")


@pytest.mark.parametrize("sparse", [False, True])
def test_matches_stay_in_the_window(sparse):
    """One that goes further back is refused."""
    data = PAYLOADS["far"]
    packed = bytearray(zstandard.ZstdCompressor(level=19).compress(data))
    assert decode(bytes(packed), len(data), sparse=sparse)[0] == late.FRAME_ENDED
    # The same blocks in a frame that declares the narrowest window for them.
    size = late.frame_header(packed[:18]).nbytes
    narrow = b"\x28\xb5\x2f\xfd\x00\x38" + bytes(packed[size:])
    assert decode(narrow, len(data), sparse=sparse)[0] == late.FRAME_DAMAGED


def encode(payload, piece):
    """The frame of a payload, which is what differs; None if too much does."""
    before = np.random.default_rng(3).integers(0, 256, len(payload), np.uint8)
    after = before ^ np.frombuffer(payload, np.uint8)
    encoder = late.FrameEncoder(len(payload), piece, room)
    found = encoder.header
    for at in range(0, len(payload) or 1, piece):
        made = encoder.encode(before[at : at + piece], after[at : at + piece])
        if made is None:
            return None
        found += made
    return found


def differences():
    """Payloads with few bytes that are not zero: of one value, of some, of all, of lone bits; in runs; of any size."""
    rng = np.random.default_rng(8)
    sizes = (1, 2, 63, 64, 65, 999, 1023, 1024, 5000, 70_000, 131_071, 131_072, 131_073, 400_001)
    values = {
        "one": lambda n: np.full(n, 255),
        "some": lambda n: rng.integers(1, 4, n),
        "all": lambda n: rng.integers(1, 256, n),
        "low": lambda n: np.minimum(255, rng.geometric(0.2, n)),
        "bits": lambda n: 1 << rng.integers(0, 8, n),
    }
    for size in sizes:
        for kind, made in values.items():
            for share in (0.0001, 0.002, 0.01, 0.05, 0.11):
                data = np.where(rng.random(size) < share, made(size), 0).astype(np.uint8)
                if share == 0.002 and size > 5000:  # and some stay as they are for long, or do not
                    at = int(rng.integers(0, size - 3000))
                    data[at : at + 3000] = made(3000)
                    data[at // 2 : at // 2 + 40_000] = 0
                yield f"{kind} {size} {share}", data.tobytes()


DIFFERENCES = dict(differences())


@pytest.mark.parametrize("size", [1, 5000, 131_072, 131_073, 400_001])
@pytest.mark.parametrize("step", [1 << 18, 1 << 17])
def test_files_that_are_encoded(tmp_path, size, step):
    """The same frame as from memory, with the bytes after; None where a file is short, or nobody can read it."""
    rng = np.random.default_rng(4)
    before = rng.integers(0, 256, size, np.uint8)
    after = before ^ (rng.random(size) < 0.01)
    path = tmp_path / "both"
    path.write_bytes(b"123" + before.tobytes() + after.tobytes())
    with path.open("rb") as file:

        def frame(*fds, beyond=0):
            encoder, old, new = late.FrameEncoder(size, step, room), np.empty(step, np.uint8), np.empty(step, np.uint8)
            found = encoder.header
            for at in range(0, size, step):
                n = min(step, size - at)
                made = encoder.encode(old[:n], new[:n], (*fds, 3 + at, 3 + size + at + beyond))
                if made is None:
                    return None
                assert new[:n].tobytes() == after[at : at + n].tobytes()
                found += made
            return found

        wanted = late.FrameEncoder(size, size, room)
        assert frame(file.fileno(), file.fileno()) == wanted.header + wanted.encode(before, after)
        assert frame(file.fileno(), file.fileno(), beyond=1) is None
        with Path(os.devnull).open("wb") as other:  # for writing alone
            assert frame(file.fileno(), other.fileno()) is None
            assert frame(other.fileno(), file.fileno()) is None


@pytest.mark.parametrize("piece", [1 << 18, 1 << 17, 3 << 16])
def test_what_is_encoded(piece):
    """zstd decodes it, and so do we; where few bytes differ it takes no more bytes than zstd at level 1."""
    few = 0
    for name, data in (PAYLOADS | DIFFERENCES).items():
        found = encode(data, piece)
        if found is None:
            assert np.count_nonzero(np.frombuffer(data, np.uint8)) > len(data) / 16, name
            continue
        assert zstandard.ZstdDecompressor().decompress(found, max_output_size=len(data)) == data, name
        assert decode(found, len(data), sparse=True) == (late.FRAME_ENDED, data), name
        if name in DIFFERENCES and "0.002" not in name and len(data) > 1 << 17 and piece % (1 << 17) == 0:
            few += 1
            assert len(found) < 1.02 * len(zstandard.ZstdCompressor(level=1).compress(data)) + 100, name
    assert (few > 20) == (piece % (1 << 17) == 0)
