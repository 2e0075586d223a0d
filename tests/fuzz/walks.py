"""The anatomy of a valid file of each format: one function a format, written by the specification alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.builders import embd as embd_builder
from tests.builders import finalfusion as ff

from .anatomy import NUMBER, TEXT, Anatomy, Field, Walk

if TYPE_CHECKING:
    from collections.abc import Callable


def embd(data: bytes) -> Anatomy:
    """EMBD, either layout."""
    return _spec(data) if len(data) > 64 and data[-8:-4] == b"DBME" else _simple(data)


def _simple(data: bytes) -> Anatomy:
    walk = Walk(data)
    *_, count = walk.numbers(4, 4, 4)
    for _ in walk.items(count):
        walk.string(4)
        ndim = walk.field(4)
        size = 4
        for number in walk.numbers(*[4] * walk.value(ndim)):
            size *= walk.value(number)
        walk.at += size
    words = walk.field(4)
    for _ in walk.items(words):
        walk.string(4)
    return walk.anatomy


def _spec(data: bytes) -> Anatomy:
    walk = Walk(data)
    head: dict[str, Field] = {}
    for name, (place, code) in embd_builder.HEADER_FIELDS.items():
        walk.at = place
        head[name] = walk.field({"H": 2, "I": 4, "Q": 8, "4s": 4}[code])
    at = {name: walk.value(number) for name, number in head.items()}
    for name, number in head.items():
        if name.endswith("_offset"):
            walk.span(number, 0, at[name])
    walk.span(head["metadata_size"], 64, 64 + at["metadata_size"])
    walk.span(head["vocab_size"], at["vocab_offset"], at["vocab_offset"] + at["vocab_size"])
    start = at["tensor_data_offset"]
    walk.span(head["tensor_data_size"], start, start + at["tensor_data_size"])
    walk.span(head["total_file_size"], 0, len(data))
    walk.at = 64
    count, total = walk.numbers(4, 4)
    walk.span(total, walk.at, 64 + at["metadata_size"])
    for _ in walk.items(count):
        key, value = walk.numbers(2, 2)
        walk.text(key)
        walk.text(value)
    if at["vocab_size"]:
        _vocabulary(walk, at["vocab_offset"])
    walk.at = at["tensor_index_offset"]
    lengths = []
    for _ in walk.items(head["tensor_index_count"]):
        lengths.append(walk.numbers(4, 1, 1, 2)[3])
        place = walk.numbers(4, 4, 4, 4, 8)[4]
        walk.span(place, start, start + walk.value(place))
    for length in lengths:
        walk.text(length)
    walk.at = len(data) - 16
    walk.numbers(4, 4, 4, 4)
    return walk.anatomy


def _vocabulary(walk: Walk, begin: int) -> None:
    walk.at = begin
    count, total, special = walk.numbers(4, 4, 4)
    ids = walk.value(special)
    if ids < begin + 12:  # counted from the start of the section
        ids += begin
        walk.span(special, begin, ids)
    else:
        walk.span(special, 0, ids)
    if ids == walk.at:
        walk.numbers(4, 4, 4, 4, 4)
    first = walk.at
    for _ in walk.items(count):
        walk.string(2)
    walk.span(total, first, walk.at)
    walk.at = ids
    walk.numbers(4, 4, 4, 4, 4)


def amb(data: bytes) -> Anatomy:
    """AMB."""
    walk = Walk(data)
    *_, metadata, config, tokens, weights = walk.numbers(5, 1, 2, 4, 4, 4, 8)
    for section in (metadata, config):
        end = walk.at + walk.value(section)
        walk.span(section, walk.at, end)
        walk.json(end)
    end = walk.at + walk.value(tokens)
    walk.span(tokens, walk.at, end)
    if end > walk.at:
        walk.numbers(1, 2, 2, 2, 2, 2)
        walk.field(end - walk.at, TEXT)
    walk.at = end
    walk.span(weights, end, len(data))
    while walk.at < len(data):
        begin = walk.at
        walk.string(2)
        ndim = walk.field(1)
        walk.numbers(*[4] * walk.value(ndim))
        code, size = walk.numbers(1, 8)
        end = walk.at + walk.value(size)
        walk.span(size, walk.at, end)
        if walk.value(code) >= 3 and end - walk.at >= 8:  # block header, mask or scale
            walk.numbers(1, 2, 1, 2, 2)
        # Data may be padded to a multiple of eight from the start of the file or of the section.
        steps = (-end % 8, -(end - weights.end) % 8)
        pad = next((k for k in steps if not any(data[end : end + k])), 0)
        walk.at = min(end + pad, len(data))
        walk.found.pads.append((end, walk.at, 8))
        walk.found.items.append((begin, walk.at, None))
    return walk.anatomy


def cnn_v2(data: bytes) -> Anatomy:
    """CNN v2 and v1."""
    walk = Walk(data)
    _, version, layers, _ = walk.numbers(4, 4, 4, 4)
    if walk.value(version) == 2:
        walk.field(4)
    for _ in walk.items(layers):
        walk.numbers(4, 4, 4, 4, 4)
    return walk.anatomy


def bintensors(data: bytes) -> Anatomy:
    """BinTensors, in the layout in which the whole header makes sense."""
    for current in (True, False):
        walk = Walk(data)
        try:
            _bincode(walk, current=current)
        except IndexError:
            continue
        end = 8 + int.from_bytes(data[:8], "little")
        if walk.at <= end and not data[walk.at : end].strip(b" "):
            break
    return walk.anatomy


def _bincode(walk: Walk, *, current: bool) -> None:
    length = walk.field(8)
    walk.span(length, 8, 8 + walk.value(length))
    if walk.value(walk.field(1)):
        for _ in walk.items(walk.varint()):
            walk.string()
            walk.string()
    count = walk.varint()
    for _ in walk.items(count):
        if current:
            walk.string()
        walk.varint()
        ndim = walk.varint()
        for _ in range(walk.value(ndim)):
            walk.varint()
        walk.varint()
        walk.varint()
    if not current:
        for _ in walk.items(walk.varint()):
            walk.string()
            walk.varint()


def safetensors(data: bytes) -> Anatomy:
    """safetensors."""
    walk = Walk(data)
    length = walk.field(8)
    end = 8 + walk.value(length)
    walk.span(length, 8, end)
    walk.json(end)
    return walk.anatomy


def index(data: bytes) -> Anatomy:
    """The index of shards: JSON, and nothing else."""
    walk = Walk(data)
    walk.json(len(data))
    return walk.anatomy


def finalfusion(data: bytes) -> Anatomy:
    """finalfusion, chunk by chunk; of one that upstream would not write, every four bytes are a number."""
    walk = Walk(data)
    *_, listed = walk.numbers(4, 4, 4)
    walk.numbers(*[4] * walk.value(listed))
    while walk.at < len(data):
        begin = walk.at
        id_, length = walk.numbers(4, 8)
        start, end = walk.at, min(walk.at + walk.value(length), len(data))  # of one example it is a lie
        walk.span(length, start, end)
        if walk.value(id_) == ff.METADATA:
            walk.toml(end)
        else:
            _chunk(walk, walk.value(id_), end)
        walk.at = end
        walk.found.items.append((begin, end, listed))
    return walk.anatomy


def _chunk(walk: Walk, id_: int, end: int) -> None:
    start, found = walk.at, walk.found
    before = len(found.fields), len(found.spans), len(found.items)
    try:
        CHUNKS[id_](walk)
        if walk.at <= end:
            return
    except (IndexError, ValueError, KeyError):
        pass
    del found.fields[before[0] :], found.spans[before[1] :], found.items[before[2] :]
    walk.at = start
    while walk.at + 4 <= end:
        walk.field(4, NUMBER)


def _words(walk: Walk, *sizes: int, grams: bool = False) -> None:
    counters = walk.numbers(8, *sizes)
    for number, counter in enumerate(counters[: 1 + grams]):
        for _ in walk.items(counter):
            walk.string(4)
            if number:
                walk.field(8)
            if walk.at > len(walk.data):
                raise IndexError


def _padded(walk: Walk, *sizes: int) -> None:
    """Numbers, of which the last one is a type, and padding up to a multiple of its size; never none."""
    width = ff.WIDTHS[walk.value(walk.numbers(*sizes)[-1])]
    walk.found.pads.append((walk.at, walk.at + width - walk.at % width, width))


CHUNKS: dict[int, Callable[[Walk], object]] = {
    ff.SIMPLE: _words,
    ff.BUCKET: lambda walk: _words(walk, 4, 4, 4),
    ff.FASTTEXT: lambda walk: _words(walk, 4, 4, 4),
    ff.EXPLICIT: lambda walk: _words(walk, 8, 4, 4, grams=True),
    ff.MATRIX: lambda walk: _padded(walk, 8, 4, 4),
    ff.PQ: lambda walk: _padded(walk, 4, 4, 4, 4, 4, 8, 4, 4),
    ff.NORMS: lambda walk: _padded(walk, 8, 4),
}

WALKS: dict[str, Callable[[bytes], Anatomy]] = {
    "embd": embd,
    "amb": amb,
    "cnn_v2": cnn_v2,
    "bintensors": bintensors,
    "finalfusion": finalfusion,
    "safetensors": safetensors,
    "sharded": index,
}
