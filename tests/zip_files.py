"""ZIP archives, right or with any lie in them: `archive` writes one, `walk` finds its fields for the fuzzer.

It shares no code with the package, nor with `zipfile`, which writes only valid archives.
"""

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.anatomy import TOKEN, Field, Walk

LOCAL = ("signature", "version", "flags", "method", "time", "date", "crc", "stored", "size", "name_len", "extra_len")
CENTRAL = (
    *("signature", "made", "version", "flags", "method", "time", "date", "crc", "stored", "size"),
    *("name_len", "extra_len", "comment_len", "disk", "internal", "external", "offset"),
)
END = ("signature", "disk", "first_disk", "here", "count", "length", "begin", "comment_len")
WIDE_END = ("signature", "record", "made", "version", "disk", "first_disk", "here", "count", "length", "begin")
LOCATOR = ("signature", "disk", "place", "disks")
FORMATS = {LOCAL: "<4s5H3I2H", CENTRAL: "<4s6H3I5H2I", END: "<4s4H2IH", WIDE_END: "<4sQ2H2I4Q", LOCATOR: "<4sIQI"}
NARROW = 0xFFFFFFFF
SHORT = 0xFFFF
LATER, UTF8 = 8, 0x800
NAME = 0x7075


def record(names: tuple[str, ...], values: Mapping[str, Any]) -> bytes:
    """A record of fixed size; missing fields are 0."""
    default = {"signature": b""}
    return struct.pack(FORMATS[names], *(values.get(name, default.get(name, 0)) for name in names))


@dataclass
class Entry:
    """A file of an archive.

    `local` and `central` replace fields of its two headers, `packed` its bytes in the file; `extra` stands in the local
    header, `more` in that of the directory, `gap` before the entry.
    """

    name: bytes
    data: bytes
    method: int = 0
    wide: bool = False
    descriptor: int = 0
    align: int = 1
    extra: bytes = b""
    more: bytes = b""
    gap: bytes = b""
    packed: bytes | None = None
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> bytes:
        """Its bytes in the file."""
        if self.packed is not None:
            return self.packed
        if not self.method:
            return self.data
        engine = zlib.compressobj(wbits=-15)
        return engine.compress(self.data) + engine.flush()


def descriptor(entry: Entry) -> bytes:
    """The data descriptor of an entry, of 12, 16, 20 or 24 bytes."""
    if not entry.descriptor:
        return b""
    signed, wide = entry.descriptor in (16, 24), entry.descriptor >= 20
    sizes = struct.pack("<2Q" if wide else "<2I", len(entry.stored), len(entry.data))
    return (b"PK\7\x08" if signed else b"") + struct.pack("<I", zlib.crc32(entry.data)) + sizes


def archive(
    entries: Sequence[Entry],
    *,
    comment: bytes = b"",
    wide: bool = False,
    end: Mapping[str, Any] | None = None,
    wide_end: Mapping[str, Any] | None = None,
    locator: Mapping[str, Any] | None = None,
    before_end: bytes = b"",
    inside: bytes = b"",
) -> bytes:
    """An archive; the last arguments replace fields of its last records."""
    out, central = bytearray(), bytearray()
    for entry in entries:
        out += entry.gap
        offset, stored, crc = len(out), entry.stored, zlib.crc32(entry.data)
        flags = (LATER if entry.descriptor else 0) | (0 if entry.name.isascii() else UTF8)
        said = {"version": 20, "flags": flags, "method": entry.method, "date": 33}
        said |= {"crc": crc, "stored": len(stored), "size": len(entry.data), "name_len": len(entry.name)}
        here = dict(said)
        if entry.descriptor:
            here |= {"crc": 0, "stored": 0, "size": 0}
        extra = entry.extra
        if entry.wide:
            extra += struct.pack("<2H2Q", 1, 16, len(entry.data), len(stored))
            here |= {"stored": NARROW, "size": NARROW}
        room = -(offset + 30 + len(entry.name) + len(extra)) % entry.align
        if room:
            room += entry.align if room < 4 else 0
            extra += struct.pack("<2s H", b"FB", room - 4) + b"Z" * (room - 4)
        out += record(LOCAL, here | {"signature": b"PK\3\4", "extra_len": len(extra)} | entry.local)
        out += entry.name + extra + stored + descriptor(entry)
        wide_extra = entry.more
        if entry.wide:
            wide_extra += struct.pack("<2H3Q", 1, 24, len(entry.data), len(stored), offset)
            said |= {"stored": NARROW, "size": NARROW}
        said |= {"signature": b"PK\1\2", "offset": NARROW if entry.wide else offset, "extra_len": len(wide_extra)}
        central += record(CENTRAL, said | entry.central) + entry.name + wide_extra
    begin = len(out)
    out += central + before_end
    numbers = {"here": len(entries), "count": len(entries), "length": len(central), "begin": begin}
    if wide:
        at = len(out)
        out += record(WIDE_END, {"signature": b"PK\6\6", "record": 44} | numbers | (wide_end or {}))
        out += inside
        out += record(LOCATOR, {"signature": b"PK\6\7", "place": at, "disks": 1} | (locator or {}))
        numbers = {"here": SHORT, "count": SHORT, "length": NARROW, "begin": NARROW}
    out += record(END, {"signature": b"PK\5\6", "comment_len": len(comment)} | numbers | (end or {}))
    return bytes(out) + comment


def sizes_of(names: tuple[str, ...]) -> list[int]:
    """The bytes of each field of a record."""
    code = FORMATS[names]
    sizes = {"H": 2, "I": 4, "Q": 8, "s": 4}
    return [sizes[letter] for letter in _letters(code)]


def _letters(code: str) -> list[str]:
    found, repeat = [], ""
    for letter in code[1:]:
        if letter.isdigit():
            repeat += letter
            continue
        found += ["s"] if letter == "s" else [letter] * int(repeat or 1)
        repeat = ""
    return found


def walk(walk: Walk) -> dict[bytes, tuple[int, int]]:
    """Go through a sound archive without ZIP64; return where the bytes of each entry begin and end."""
    data = walk.data
    end_at = _end_of(data)
    count, length, begin = struct.unpack_from("<H2I", data, end_at + 10)
    names, places = [], []
    at = begin
    offsets = []
    for _ in range(count):
        fields = dict(zip(CENTRAL, struct.unpack_from(FORMATS[CENTRAL], data, at), strict=True))
        offsets.append((fields["offset"], fields["stored"]))
        if NARROW in (fields["stored"], fields["offset"]):
            return {}
        at += 46 + fields["name_len"] + fields["extra_len"] + fields["comment_len"]
    for offset, stored in offsets:
        walk.at = offset
        local = dict(zip(LOCAL, walk.numbers(*sizes_of(LOCAL)), strict=True))
        name_at = walk.at
        _name(walk, local["name_len"])
        extra_at = walk.at
        walk.at += walk.value(local["extra_len"])
        walk.span(local["extra_len"], extra_at, walk.at)
        names.append(data[name_at:extra_at])
        places.append((walk.at, walk.at + stored))
        _span(walk, local, walk.at, walk.at + stored)
    walk.at = begin
    records = []
    first = walk.at
    for (offset, _), place in zip(offsets, places, strict=True):
        item = walk.at
        central = dict(zip(CENTRAL, walk.numbers(*sizes_of(CENTRAL)), strict=True))
        _name(walk, central["name_len"])
        walk.at += walk.value(central["extra_len"])
        _span(walk, central, *place)
        walk.span(central["offset"], 0, offset)
        records.append((item, walk.at))
    end = dict(zip(END, walk.numbers(*sizes_of(END)), strict=True))
    walk.span(end["length"], first, first + length)
    walk.span(end["begin"], 0, begin)
    for item, stop in records:
        walk.found.items += [(item, stop, end["count"]), (item, stop, end["here"])]
    return dict(zip(names, places, strict=True))


def _end_of(data: bytes) -> int:
    """Where the end record begins whose comment ends with the file; -1 without one."""
    found = (match.start() for match in re.finditer(b"PK\5\6", data))
    ends = ((at, at + 22 + int.from_bytes(data[at + 20 : at + 22], "little")) for at in found)
    return next((at for at, end in ends if end == len(data)), -1)


def _name(walk: Walk, length: Field) -> None:
    """A name that another header repeats, so it cannot be made longer alone."""
    begin = walk.at
    walk.field(walk.value(length), TOKEN)
    walk.span(length, begin, walk.at)


def _span(walk: Walk, fields: Mapping[str, Field], begin: int, end: int) -> None:
    walk.span(fields["stored"], begin, end)
    walk.span(fields["size"], begin, end)


def sealed(data: bytes) -> bytes:
    """A damaged archive with the CRC-32s of its stored entries corrected, where these can be found."""
    out = bytearray(data)
    at = _end_of(data)
    if at < 0:
        return data
    count, _, place = struct.unpack_from("<H2I", data, at + 10)
    for _ in range(count):
        if data[place : place + 4] != b"PK\1\2" or len(data) - place < 46:
            break
        fields = dict(zip(CENTRAL, struct.unpack_from(FORMATS[CENTRAL], data, place), strict=True))
        offset = fields["offset"]
        if offset + 30 > len(data):
            break
        name_len, extra_len = struct.unpack_from("<2H", data, offset + 26)
        begin = offset + 30 + name_len + extra_len
        crc = struct.pack("<I", zlib.crc32(data[begin : begin + fields["stored"]]))
        out[place + 16 : place + 20] = crc
        out[offset + 14 : offset + 18] = crc
        place += 46 + fields["name_len"] + fields["extra_len"] + fields["comment_len"]
    return bytes(out)


def trailing(kind: str, data: bytes, tail: bytes) -> tuple[str, str, int, str | None]:
    """The error for bytes behind an archive: if they end with an end record, it is wrong."""
    del kind
    at = tail.rfind(b"PK\5\6")
    if data[:2] == b"PK" and at >= 0:
        return "LayoutError", "end record", len(data) + at, None
    return "LayoutError", "size", len(data), "trailing"
