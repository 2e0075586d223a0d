"""Mutants: a valid file with a few lies that format and number determine.

In half of the mutants, lengths, offsets, counts and checksums are corrected after the lie.
"""

import zlib
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from tests import builders
from tests.attacks.case import INDEX
from tests.attacks.sharded import SHARD_FORMAT

from .anatomy import DECIMAL, NUMBER, TEXT, TOKEN, VARINT, Edit, Walk, encoded, value_of
from .corpus import SHARDED, seeds, shards
from .dictionary import FORMS, NUMBERS, PARTS, STRINGS, TEXTS, TOKENS
from .draws import Draws


class Mutant(NamedTuple):
    files: Mapping[str, bytes]
    options: dict[str, object]
    opened: str = ""


VERIFY = ("header", "header", "full", "none")
# The number of lies in a mutant.
COUNTS = (1, 1, 1, 1, 1, 2, 2, 3, 5)
# The deviation of a number.
STEPS = (-64, -8, -4, -2, -1, 1, 1, 2, 4, 8, 64, 256)


@cache
def anatomies(format):
    take_apart = index_of_shards if format == SHARDED else builders.known()[format].anatomy
    return tuple(take_apart(data) for data in seeds(format))


def mutant(format, number):
    draws = Draws(number << 32 | zlib.crc32(format.encode()))  # whatever other formats there are
    options = {"verify": draws.choice(VERIFY), "strict": draws.percent(60)}
    if format == SHARDED:
        files = dict(shards())
        if draws.percent(70):
            files[INDEX] = mutated(SHARDED, draws)
        else:
            files[draws.choice([name for name in files if name != INDEX])] = mutated(SHARD_FORMAT, draws)
        return Mutant(files, options, draws.choice(("", INDEX)))
    if draws.percent(75):
        options["format"] = format
    if draws.percent(5):
        options["mode"] = draws.choice(("cow", "copy"))
    return Mutant({"": mutated(format, draws)}, options)


def mutated(format, draws):
    anatomy = draws.choice(anatomies(format))
    follow = draws.percent(50)
    edits = [edit(format, anatomy, draws) for _ in range(draws.choice(COUNTS))]
    data = anatomy.apply(edits, follow=follow)
    if draws.percent(15):
        data = coarse(format, data, draws)
    return sealed(format, data) if follow else data


def edit(format, anatomy, draws):
    how = draws.below(100)
    data = anatomy.data
    if how < 55 and anatomy.fields:
        field = draws.choice(anatomy.fields)
        return Edit(field.begin, field.end, lie(anatomy, field, draws))
    if how < 75 and anatomy.items:
        begin, end, _ = draws.choice(anatomy.items)
        kind = draws.below(5)
        if kind == 0:
            return Edit(begin, end, b"")
        if kind == 4:
            return Edit(begin, begin, draws.choice(PARTS))
        if kind == 1:
            return Edit(begin, begin, data[begin:end])
        other = anatomy if kind == 2 else draws.choice(anatomies(format))
        first, last, _ = draws.choice(other.items or [(0, 0, None)])
        return Edit(begin, end, other.data[first:last])
    place = draws.below(len(data) + 1)
    kind = draws.below(4)
    if kind == 0:
        return Edit(place, min(place + 1, len(data)), draws.octets(1))
    if kind == 1:
        turned = bytes(byte ^ 1 << draws.below(8) for byte in data[place : place + 1])
        return Edit(place, place + len(turned), turned)
    if kind == 2:  # any aligned number
        size = draws.choice((1, 2, 4, 8))
        place -= place % size
        return Edit(place, min(place + size, len(data)), encoded(NUMBER, draws.choice(NUMBERS), size))
    size = draws.choice((0, 0, 1, 2, 4, 8, 40))
    new = draws.choice((b"", bytes(draws.below(9)), draws.octets(draws.below(9)), data[place : place + 40]))
    return Edit(place, min(place + size, len(data)), new)


def lie(anatomy, field, draws):
    data, kind = anatomy.data, field.kind
    old = data[field.begin : field.end]
    if kind == TEXT:
        return other_text(anatomy, old, draws)
    if kind == TOKEN or (kind == DECIMAL and draws.percent(20)):
        way = draws.below(10)
        if way < 4:
            begin, end, _ = draws.choice(anatomy.alike[kind])
            return data[begin:end]
        return draws.choice(STRINGS if way < 7 else TOKENS)
    if kind == VARINT and draws.percent(15):
        return draws.choice(FORMS)
    value = value_of(kind, old)
    way = draws.below(6)
    if way < 2:
        new = draws.choice(NUMBERS)
    elif way < 4:
        new = max(value + draws.choice(STEPS), 0)
    elif way == 4:
        size = len(data)
        new = draws.choice((size - 1, size, size + 1, value * 2, value // 2, -value, draws.below(256)))
    else:
        begin, end, _ = draws.choice(anatomy.alike[kind])
        new = value_of(kind, data[begin:end])
    return encoded(kind, new, len(old))


def other_text(anatomy, old, draws):
    """Another text: a hard one, one that the file has already, or the old one with a defect."""
    way = draws.below(3)
    if way == 0:
        return draws.choice(TEXTS if draws.percent(90) else TOKENS)
    if way == 1:
        begin, end, _ = draws.choice(anatomy.alike[TEXT])
        return anatomy.data[begin:end]
    place = draws.below(len(old) + 1)
    return old[:place] + draws.choice((b"", b"\0", b"\xff", b"\x80", b"x", old)) + old[place + draws.below(2) :]


def coarse(format, data, draws):
    """Cut a file off, extend it, join it with another one, or swap parts of it."""
    place, other = draws.below(len(data) + 1), draws.choice(seeds(format))
    kind = draws.below(6)
    if kind < 2:
        return data[:place]
    if kind == 2:
        return data + draws.choice((b"\0", b" ", bytes(64), b"PK\5\6" + bytes(18), other))
    if kind == 3:
        return data[:place] + other[draws.below(len(other) + 1) :]
    if kind == 4:
        return data[:place] + other[place:]
    second = draws.below(len(data) + 1)
    first, last = min(place, second), max(place, second)
    return data[:first] + data[last:] + data[first:last]


def sealed(format, data):
    """A file with its checksums corrected, if its format has checksums."""
    builder = builders.known().get(format)
    return data if builder is None or builder.sealed is None else builder.sealed(data)


def index_of_shards(data):
    walk = Walk(data)
    walk.json(len(data))
    return walk.anatomy
