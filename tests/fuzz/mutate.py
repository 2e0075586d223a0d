"""Mutants: a valid file with a few lies, the same ones for the same format and number.

Half of the mutants have their lengths, offsets, counts and checksums made to fit again after the lie was told.
"""

from __future__ import annotations

import random
import struct
import zlib
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tests.attacks.case import INDEX
from tests.builders import embd

from .anatomy import DECIMAL, NUMBER, TEXT, TOKEN, VARINT, Anatomy, Edit, Field, encoded, value_of
from .corpus import FORMATS, seeds, shards
from .dictionary import FORMS, NUMBERS, PARTS, STRINGS, TEXTS, TOKENS
from .walks import WALKS

if TYPE_CHECKING:
    from collections.abc import Mapping


class Mutant(NamedTuple):
    """A file to be tried.

    Attributes
    ----------
    files : mapping of str to bytes
        By name; of all formats but "sharded" there is one, and its name is "".
    options : dict
        How it is to be opened.
    """

    files: Mapping[str, bytes]
    options: dict[str, object]


@cache
def anatomies(format: str) -> tuple[Anatomy, ...]:
    """The seeds of a format, taken apart."""
    return tuple(WALKS[format](data) for data in seeds(format))


def mutant(format: str, number: int) -> Mutant:
    """The mutant of a format with this number."""
    rng = random.Random(len(FORMATS) * number + FORMATS.index(format))
    options: dict[str, object] = {
        "verify": rng.choice(("header", "header", "full", "none")),
        "strict": rng.random() < 0.6,
    }
    if format == "sharded":
        files = dict(shards())
        if rng.random() < 0.7:
            files[INDEX] = mutated("sharded", rng)
        else:
            files[rng.choice([name for name in files if name != INDEX])] = mutated("safetensors", rng)
        return Mutant(files, options)
    if rng.random() < 0.75:
        options["format"] = format
    if rng.random() < 0.05:
        options["mode"] = rng.choice(("cow", "copy"))
    return Mutant({"": mutated(format, rng)}, options)


def mutated(format: str, rng: random.Random) -> bytes:
    """A file of the format with something wrong."""
    anatomy = rng.choice(anatomies(format))
    follow = rng.random() < 0.5
    count = rng.choice((1, 1, 1, 1, 1, 2, 2, 3, 5))
    data = anatomy.apply([edit(format, anatomy, rng) for _ in range(count)], follow=follow)
    if rng.random() < 0.15:
        data = coarse(format, data, rng)
    return sealed(data) if follow and format == "embd" else data


def edit(format: str, anatomy: Anatomy, rng: random.Random) -> Edit:
    """One lie: mostly about a field; or a part doubled, left out, exchanged; or some bytes."""
    how = rng.random()
    data = anatomy.data
    if how < 0.55 and anatomy.fields:
        field = rng.choice(anatomy.fields)
        return Edit(field.begin, field.end, lie(anatomy, field, rng))
    if how < 0.75 and anatomy.items:
        begin, end, _ = rng.choice(anatomy.items)
        kind = rng.randrange(5)
        if kind == 0:
            return Edit(begin, end, b"")
        if kind == 4:
            return Edit(begin, begin, rng.choice(PARTS))
        if kind == 1:
            return Edit(begin, begin, data[begin:end])
        other = anatomy if kind == 2 else rng.choice(anatomies(format))
        first, last, _ = rng.choice(other.items or [(0, 0, None)])
        return Edit(begin, end, other.data[first:last])
    place = rng.randrange(len(data) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        return Edit(place, min(place + 1, len(data)), bytes([rng.randrange(256)]))
    if kind == 1:
        turned = bytes(byte ^ 1 << rng.randrange(8) for byte in data[place : place + 1])
        return Edit(place, place + len(turned), turned)
    if kind == 2:  # any aligned number
        size = rng.choice((1, 2, 4, 8))
        place -= place % size
        return Edit(place, min(place + size, len(data)), encoded(NUMBER, rng.choice(NUMBERS), size))
    size = rng.choice((0, 0, 1, 2, 4, 8, 40))
    new = rng.choice((b"", bytes(rng.randrange(9)), rng.randbytes(rng.randrange(9)), data[place : place + 40]))
    return Edit(place, min(place + size, len(data)), new)


def lie(anatomy: Anatomy, field: Field, rng: random.Random) -> bytes:
    """Something else for a field to hold."""
    data, kind = anatomy.data, field.kind
    old = data[field.begin : field.end]
    if kind == TEXT:
        return other_text(anatomy, old, rng)
    if kind == TOKEN or (kind == DECIMAL and rng.random() < 0.2):
        way = rng.random()
        if way < 0.4:
            begin, end, _ = rng.choice([other for other in anatomy.fields if other.kind == kind])
            return data[begin:end]
        return rng.choice(STRINGS if way < 0.7 else TOKENS)
    if kind == VARINT and rng.random() < 0.15:
        return rng.choice(FORMS)
    value = value_of(kind, old)
    way = rng.randrange(6)
    if way < 2:
        new = rng.choice(NUMBERS)
    elif way < 4:
        new = max(value + rng.choice((-64, -8, -4, -2, -1, 1, 1, 2, 4, 8, 64, 256)), 0)
    elif way == 4:
        new = rng.choice((len(data) - 1, len(data), len(data) + 1, value * 2, value // 2, -value, rng.randrange(256)))
    else:
        numbers = [other for other in anatomy.fields if other.kind == kind]
        begin, end, _ = rng.choice(numbers)
        new = value_of(kind, data[begin:end])
    return encoded(kind, new, len(old))


def other_text(anatomy: Anatomy, old: bytes, rng: random.Random) -> bytes:
    """Another text: one that is hard to take, one that is there already, or the old one with something wrong."""
    way = rng.randrange(3)
    if way == 0:
        return rng.choice(TEXTS) if rng.random() < 0.9 else rng.choice(TOKENS)
    if way == 1:
        begin, end, _ = rng.choice([field for field in anatomy.fields if field.kind == TEXT])
        return anatomy.data[begin:end]
    place = rng.randrange(len(old) + 1)
    return old[:place] + rng.choice((b"", b"\0", b"\xff", b"\x80", b"x", old)) + old[place + rng.randrange(2) :]


def coarse(format: str, data: bytes, rng: random.Random) -> bytes:
    """Cut a file off, let it go on, join it with another one, or exchange parts of it."""
    place, other = rng.randrange(len(data) + 1), rng.choice(seeds(format))
    kind = rng.randrange(6)
    if kind < 2:
        return data[:place]
    if kind == 2:
        return data + rng.choice((b"\0", b" ", bytes(64), b"PK\5\6" + bytes(18), other))
    if kind == 3:
        return data[:place] + other[rng.randrange(len(other) + 1) :]
    if kind == 4:
        return data[:place] + other[place:]
    second = rng.randrange(len(data) + 1)
    first, last = min(place, second), max(place, second)
    return data[:first] + data[last:] + data[first:last]


def sealed(data: bytes) -> bytes:
    """A file of EMBD with the hashes and checksums that its bytes have; anything else as it is."""
    if len(data) < 80 or data[:4] != b"EMBD":
        return data
    out = bytearray(data)
    head = embd.fields_of(data)
    index, count = head["tensor_index_offset"], head["tensor_index_count"]
    place = index + 32 * count
    if count <= 64 and place <= len(out):
        for number in range(count):
            at = index + 32 * number
            length = int.from_bytes(out[at + 6 : at + 8], "little")
            name = bytes(out[place : place + length])
            place += length
            if len(name) < 400:
                struct.pack_into("<I", out, at, embd.fnv1a32(name))
    struct.pack_into("<I", out, 56, zlib.crc32(out[:56]))
    end = len(out) - 16
    if end >= 64 and head["flags"] & embd.CHECKSUM_ENABLED:
        start = head["tensor_data_offset"]
        part = out[start : start + head["tensor_data_size"]] if start <= end else b""
        struct.pack_into("<II", out, end, zlib.crc32(part), 0)
        struct.pack_into("<I", out, end + 4, zlib.crc32(out[:end]))
    return bytes(out)
