"""Finds the numbers, texts and repeated parts of a file, and which numbers depend on others.

So a mutator can tell one lie at a time: it changes one part and corrects everything that depends on it (the
length of a section, the offset of the next, the count of entries). Then the lie meets the
check that is meant for it, not the first one.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

# How a field is written: little-endian, as a variable-length integer of BinTensors or of protobuf (seven bits a byte),
# as decimal digits; a text, which has its length elsewhere; a lexical token of JSON or TOML other than a number.
NUMBER, VARINT, LEB, DECIMAL, TEXT, TOKEN = "number", "varint", "leb", "decimal", "text", "token"


class Field(NamedTuple):
    begin: int
    end: int
    kind: str


class Edit(NamedTuple):
    begin: int
    end: int
    new: bytes


@dataclass
class Anatomy:
    data: bytes
    fields: list[Field] = field(default_factory=list)
    spans: list[tuple[Field, int, int]] = field(default_factory=list)
    pads: list[tuple[int, int, int]] = field(default_factory=list)
    items: list[tuple[int, int, Field | None]] = field(default_factory=list)

    def apply(self, edits, *, follow):
        """The file with these edits; earlier ones win; `follow` makes lengths, offsets, counts fit."""
        kept = []
        for edit in edits:
            _put(kept, edit)
        if follow:
            self._follow(kept)
        return rebuilt(self.data, kept)

    @cached_property
    def alike(self):
        found = {}
        for one in self.fields:
            found.setdefault(one.kind, []).append(one)
        return found

    @cached_property
    def _counted(self):
        """The fields that count one more or one less after an edit which doubles an item or leaves it out."""
        found = {}
        for begin, end, counter in self.items:
            if counter is not None:
                found.setdefault(Edit(begin, end, b""), []).append(counter)
                if end > begin:
                    found.setdefault(Edit(begin, begin, self.data[begin:end]), []).append(counter)
        return found

    def _follow(self, kept):
        more = {}
        for edit in kept:
            for counter in self._counted.get(edit, ()):
                more[counter] = more.get(counter, 0) + (1 if edit.new else -1)
        for counter, change in more.items():
            self._add(kept, counter, change)
        changes = _changes(kept)
        if not changes:
            return
        for begin, end, step in self.pads:
            shift = sum(grown for _, last, grown in changes if last <= begin)
            if shift % step:
                wanted = -(begin + shift) % step
                _put(kept, Edit(begin, end, bytes(wanted or (step if end - begin == step else 0))))
                changes = _changes(kept)
        # From the innermost on: a number that takes more bytes lengthens the spans around it.
        for number, begin, end in self.spans:
            grown = sum(more for first, last, more in changes if begin <= first < end >= last)
            if grown:
                self._add(kept, number, grown)
                changes = _changes(kept)

    def _add(self, kept, number, more):
        """Make a number larger, unless an edit turned it into a lie."""
        begin, end, kind = number
        text = self.data[begin:end]
        _put(kept, Edit(begin, end, encoded(kind, value_of(kind, text) + more, end - begin)))


def _put(kept, edit):
    begin, end, _ = edit
    if not any((begin, end) == (first, last) or (begin < last and first < end) for first, last, _ in kept):
        kept.append(edit)


def _changes(kept):
    return [(begin, end, len(new) - (end - begin)) for begin, end, new in kept if len(new) != end - begin]


def rebuilt(data, edits):
    out, place = [], 0
    for begin, end, new in sorted(edits):
        out += (data[place:begin], new)
        place = end
    return b"".join((*out, data[place:]))


def value_of(kind, text):
    if kind == NUMBER:
        return int.from_bytes(text, "little")
    if kind == VARINT:
        return text[0] if len(text) == 1 else int.from_bytes(text[1:], "little")
    if kind == LEB:
        return sum((byte & 127) << 7 * i for i, byte in enumerate(text))
    try:
        return int(text[:20])
    except ValueError:
        return 0


def encoded(kind, value, size):
    if kind == NUMBER:
        return (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    if kind == DECIMAL:
        return b"%d" % value
    value &= 2**64 - 1
    if kind == LEB:
        count = max(1, -(-value.bit_length() // 7))
        return bytes(value >> 7 * i & 127 | (128 if i < count - 1 else 0) for i in range(count))
    width = 0 if value <= 250 else 2 if value < 2**16 else 4 if value < 2**32 else 8
    return bytes([value]) if width == 0 else bytes([250 + width.bit_length() - 1]) + value.to_bytes(width, "little")


class Walk:
    def __init__(self, data):
        self.data, self.at = data, 0
        self.found = Anatomy(data)

    @property
    def anatomy(self):
        self.found.spans.sort(key=lambda span: span[2] - span[1])
        return self.found

    def field(self, size, kind=NUMBER):
        found = Field(self.at, self.at + size, kind)
        self.at += size
        self.found.fields.append(found)
        return found

    def value(self, number):
        return value_of(number.kind, self.data[number.begin : number.end])

    def numbers(self, *sizes):
        return [self.field(size) for size in sizes]

    def varint(self):
        first = self.data[self.at]
        return self.field(1 if first <= 250 else 1 + (2, 4, 8)[first - 251], VARINT)

    def leb(self):
        size = next(i for i in range(1, 11) if self.data[self.at + i - 1] < 128)
        return self.field(size, LEB)

    def string(self, size=0):
        length = self.field(size) if size else self.varint()
        self.text(length)

    def text(self, length):
        begin = self.at
        self.field(self.value(length), TEXT)
        self.found.spans.append((length, begin, self.at))

    def span(self, length, begin, end):
        self.found.spans.append((length, begin, end))

    def items(self, counter, count=None):
        """Go through the number of parts in a field; the caller reads each."""
        for number in range(self.value(counter) if count is None else count):
            begin = self.at
            yield number
            self.found.items.append((begin, self.at, counter))

    def json(self, end):
        """A JSON text up to `end`: its scalars, and as items the members of its objects and arrays."""
        tokens = [m.span() for m in JSON.finditer(self.data, self.at, end)]
        for begin, stop in tokens:
            if self.data[begin] not in b"{}[]:,":
                self.at = begin
                self.field(stop - begin, DECIMAL if self.data[begin] in b"-0123456789" else TOKEN)
        self._members(tokens)
        self.at = end

    def _members(self, tokens):
        starts = []  # of the member that is being read, by depth
        for begin, stop in tokens:
            byte = self.data[begin]
            if byte in b"{[":
                starts.append(stop)
            elif byte in b"}],":
                first = starts[-1]
                if byte in b"}]":
                    starts.pop()
                    if self.data[first - 1] == ord(","):
                        first -= 1
                else:
                    starts[-1] = stop
                last = stop if byte == ord(",") else begin
                if last > first:
                    self.found.items.append((first, last, None))

    def toml(self, end):
        for match in TOML.finditer(self.data, self.at, end):
            begin, stop = match.span()
            kind = DECIMAL if self.data[begin:stop].isdigit() else TOKEN
            self.found.fields.append(Field(begin, stop, kind))
        for match in re.compile(rb"[^\n]*\n").finditer(self.data, self.at, end):
            self.found.items.append((*match.span(), None))
        self.at = end


JSON = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[\[\]{}:,]')
TOML = re.compile(rb'"[^"\n]*"|[A-Za-z_]+|[\d.:T+-]+|[\[\]{}=,]')
