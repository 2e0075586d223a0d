"""AMB files with a few lies of any kind at once: whatever is in them, an error of this library or a sound file."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from typing import Any

import numpy as np
from tests.builders import amb, noise, normal

import weightmap as wm

CONFIG = {"architecture": "bert", "n_vocab": 3, "n_embd": 5, "quant": {"block_size": 8, "scale_type": "fp32"}}
TOKENS = amb.tokenizer(2, (0, 1, 2, amb.NO_ID, amb.NO_ID), b"a\nb\nc\n")
MIXED = [(0, 0.5, range(-8, 8)), (2, 0.0, [0.25] * 16), (1, -2.0, range(-16, 0)), (0, 0.0, [])]
BLOCKS = [(0.5, range(-4, 4)), (-1.0, range(8)), (6e-8, [7, -8, 1])]
RECORDS = (
    amb.dense("f32", normal((2, 3), 1)),
    amb.dense("f16", noise("float16", (5,), 2)),
    amb.dense("i8", noise("int8", (), 3)),
    amb.quantised("int8", (3, 4), amb.INT8, amb.pack_scale(0.5, 1) + bytes(range(12)), 0, 1),
    amb.quantised("int4", (7,), amb.INT4, amb.pack_scale(2.0, 0) + amb.pack(range(-4, 3), 4), 0, 0),
    amb.quantised("int5", (3,), amb.INT5, amb.pack_scale(2.0, 1) + amb.pack([1, -16, 15], 5), 0, 1),
    amb.quantised("int4_block", (19,), amb.INT4BLOCK, amb.pack_blocks(BLOCKS, 4, 8, 1), 8, 1),
    amb.quantised("int5_block", (19,), amb.INT5BLOCK, amb.pack_blocks(BLOCKS, 5, 8, 0), 8, 0),
    amb.Record("bare", (3, 8), amb.INT4BLOCK, amb.pack_blocks(BLOCKS, 4, 8, 0)),
    amb.quantised("adaptive", (4, 16), amb.ADAPTIVE, amb.pack_adaptive(MIXED, 16, 1), 16, 1),
    amb.quantised("empty", (0, 3), amb.ADAPTIVE, b"", 8, 1),
    amb.quantised("vast", (2**31, 0, 2**31), amb.INT8, b"\0\0", 0, 1),
    amb.quantised("long", (2**32 - 1, 0), amb.INT4BLOCK, b"", 8, 1),
)
ROUNDS = 1000
NUMBERS = [0, 1, 2, 3, 7, 8, 9, 31, 32, 127, 128, 250, 255]
NUMBERS += [(1 << bits) + k for bits in (15, 16, 31, 32, 60, 63, 64) for k in (-1, 0, 1)]


def lie_about(record: amb.Record, rng: random.Random) -> amb.Record:
    """The record with one field changed."""
    number = rng.choice(NUMBERS)
    kind = rng.randrange(8)
    if kind == 0:
        return record.but(code=rng.choice([number & 255, rng.randrange(9)]))
    if kind == 1:
        return record.but(data_size=rng.choice([number & 2**64 - 1, max(len(record.data) + rng.randrange(-9, 9), 0)]))
    if kind == 2:
        return record.but(ndim=number & 255)
    if kind == 3:
        return record.but(name_length=number & 0xFFFF)
    if kind == 4:
        shape = list(record.shape)
        shape.insert(rng.randrange(len(shape) + 1), number & 2**32 - 1)
        return record.but(shape=tuple(shape if rng.randrange(2) else rng.sample(shape, rng.randrange(len(shape)))))
    data = bytearray(record.data)
    if kind == 5 and data:  # the header of quantised data, a mask, a scale
        at = rng.randrange(min(len(data), 8))
        data[at : at + rng.choice((1, 2))] = rng.choice([b"\xff\xff", b"\0", b"\x7c", bytes([rng.randrange(256)])])
    elif kind == 6:
        del data[rng.randrange(len(data) + 1) :]
    else:
        data += rng.randbytes(rng.randrange(20))
    return record.but(data=bytes(data))


def broken(rng: random.Random) -> bytes:
    """A file with some records, some of which lie, and perhaps more wrong with it."""
    records = rng.sample(RECORDS, rng.randrange(1, 5))
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(records))
        records[at] = lie_about(records[at], rng)
    header: dict[str, Any] = {}
    if rng.randrange(8) == 0:
        header[rng.choice(["metadata_size", "config_size", "tokenizer_size"])] = rng.choice(NUMBERS) & 2**32 - 1
    data = bytearray(
        amb.build(records, b'{"name": "x"}', amb.text(CONFIG), TOKENS, relative=not rng.randrange(3), **header)
    )
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(max(len(data), 1))
        how = rng.randrange(4)
        if len(data) < 8:
            break
        if how == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            struct.pack_into("<Q", data, min(at, len(data) - 8), rng.choice(NUMBERS) & 2**64 - 1)
        elif how == 2:
            del data[max(at, 1) :]
        else:
            data[at:at] = data[at : at + rng.randrange(40)]
    if len(data) >= 28 and rng.randrange(3):  # sizes that add up again, so that the records are come to
        rest = len(data) - 28 - sum(struct.unpack_from("<3I", data, 8))
        struct.pack_into("<Q", data, 20, rest & 2**64 - 1)
    return bytes(data)


def use(data: bytes, strict: bool) -> int:
    """Open a file and do with it all there is to do; how many tensors there were."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        f = wm.open(data, strict=strict, format="amb")
    finally:
        assert tracemalloc.get_traced_memory()[1] - before < (1 << 20) + 32 * len(data)
    dict(f.metadata), dict(f.config), f.tokenizer and f.tokenizer.payload, repr(f), f.infos()
    for name in f:
        try:
            tensor = f[name]
            read = f.read(name)
        except wm.TensorFileError:
            continue
        values = np.asarray(tensor)
        assert read.shape == values.shape == f.info(name).shape
        if isinstance(tensor, wm.QuantizedTensor):
            assert np.array_equal(read, values, equal_nan=True)
            _ = (
                tensor.scales,
                tensor.codes,
                tensor.kinds,
                repr(tensor),
                tensor[...],
                tensor[::2][:1] if tensor.ndim else 0,
            )
    with np.errstate(all="ignore"):
        f.verify()
    return len(f)


def test_files_with_lies_of_any_kind() -> None:
    """Of thousands of damaged files each is a sound file or an error of this library, at once and in little memory."""
    rng = random.Random(11)
    opened = refused = 0
    tracemalloc.start()
    try:
        for number in range(ROUNDS):
            data = broken(rng)
            start = time.perf_counter()
            try:
                opened += bool(use(data, strict=bool(number % 4)))
            except wm.TensorFileError:
                refused += 1
            assert time.perf_counter() - start < 1
    finally:
        tracemalloc.stop()
    assert min(opened, refused) > ROUNDS // 20
