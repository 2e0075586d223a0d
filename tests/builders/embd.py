"""EMBD files of both layouts, built field by field: `Draft` is a valid file with replaceable fields, `parse` a reader.

A draft keeps its checksums right while single fields lie, so a test reaches the check that it names.
"""

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.fuzz.anatomy import Walk

from . import Bounds, Builder, Example, Golden, Tensor, named, noise, normal, numpy_dtype

FORMAT = "embd"
SUFFIX = ".weights"

VOCAB_EMBEDDED, TENSORS_ALIGNED, CHECKSUM_ENABLED, COMPRESSED = 1, 2, 4, 8
CODES = {
    "float32": 0, "float16": 1, "bfloat16": 2, "int32": 3, "int16": 4, "int8": 5, "uint32": 6, "uint16": 7, "uint8": 8,
}  # fmt: skip
NAMES = {code: name for name, code in CODES.items()}

HEADER_FIELDS = {
    "magic": (0, "4s"), "version_major": (4, "H"), "version_minor": (6, "H"), "flags": (8, "I"),
    "metadata_offset": (12, "I"), "metadata_size": (16, "I"), "vocab_offset": (20, "I"), "vocab_size": (24, "I"),
    "tensor_index_offset": (28, "I"), "tensor_index_count": (32, "I"), "tensor_data_offset": (36, "I"),
    "tensor_data_size": (40, "Q"), "total_file_size": (48, "Q"), "header_checksum": (56, "I"), "reserved": (60, "I"),
}  # fmt: skip
DESCRIPTOR_FIELDS = {
    "name_hash": (0, "I"), "dtype": (4, "B"), "ndim": (5, "B"), "name_length": (6, "H"), "shape0": (8, "I"),
    "shape1": (12, "I"), "shape2": (16, "I"), "shape3": (20, "I"), "data_offset": (24, "Q"),
}  # fmt: skip
FOOTER_FIELDS = {"data_checksum": (0, "I"), "file_checksum": (4, "I"), "magic_end": (8, "4s"), "reserved": (12, "I")}

REQUIRED = {
    "model_name": "all-MiniLM-L6-v2", "model_version": "1.0.0", "embedding_dim": "384", "vocab_size": "6",
    "num_layers": "6", "num_attention_heads": "12", "hidden_size": "384", "intermediate_size": "1536",
    "max_position_emb": "512", "created_at": "2025-01-16T12:00:00Z",
}  # fmt: skip
SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")


def fnv1a32(data):
    """FNV-1a, 32 bits, as its authors define it."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def utf8(text):
    """The bytes of a name; a test passes bytes beyond UTF-8 as they are."""
    return text if isinstance(text, bytes) else text.encode()


def metadata_section(pairs, count=None, total=None):
    """The metadata section; `count` and `total` replace the true values of entry_count and total_size."""
    entries = [(utf8(key), utf8(value)) for key, value in pairs]
    body = b"".join(struct.pack("<HH", len(key), len(value)) + key + value for key, value in entries)
    return struct.pack("<II", len(entries) if count is None else count, len(body) if total is None else total) + body


def vocab_section(tokens, ids=(0, 1, 2, 3, 4), *, special="after", offset=0, count=None, total=None):
    """The vocabulary section that begins at `offset` in its file.

    `special` says where the five ids stand, "after" the entries or "before" them, and, as "relative-after" and
    "relative-before", that special_tokens counts from the start of the section.
    """
    body = b"".join(struct.pack("<H", len(token)) + token for token in map(utf8, tokens))
    before = special.endswith("before")
    place = (12 if before else 12 + len(body)) + (0 if special.startswith("relative") else offset)
    head = struct.pack("<III", len(tokens) if count is None else count, len(body) if total is None else total, place)
    five = struct.pack("<5I", *ids)
    return head + (five + body if before else body + five)


def align(position, step=64):
    """The first multiple of `step` at or after `position`."""
    return -(-position // step) * step


class Draft:
    """A valid file of the specification layout whose fields can be changed one by one before it is sealed.

    Parameters give the content; `aligned` and `checksums` set the flags of those names. `metadata` as bytes and
    `vocab_bytes` are ready-made sections, right or wrong.
    """

    def __init__(
        self,
        tensors=(),
        metadata=REQUIRED,
        vocab=None,
        ids=(0, 1, 2, 3, 4),
        *,
        special="after",
        aligned=True,
        checksums=True,
        vocab_bytes=None,
    ):
        meta = metadata if isinstance(metadata, bytes) else metadata_section(metadata.items())
        vocab_offset = 64 + len(meta)
        words = vocab_bytes
        if words is None:
            words = b"" if vocab is None else vocab_section(vocab, ids, special=special, offset=vocab_offset)
        index_offset = vocab_offset + len(words)
        named = [(utf8(name), value) for name, value in tensors]
        descriptors, payload = bytearray(), bytearray()
        for name, value in named:
            if aligned:
                payload += bytes(align(len(payload)) - len(payload))
            shape = (*value.shape, 0, 0, 0, 0)[:4]
            code, ndim = CODES[value.dtype], len(value.shape)
            descriptors += struct.pack("<IBBH4IQ", fnv1a32(name), code, ndim, len(name), *shape, len(payload))
            payload += value.data
        descriptors += b"".join(name for name, _ in named)
        data_offset = index_offset + len(descriptors)
        data_offset = align(data_offset) if aligned else data_offset
        size = data_offset + len(payload) + 16
        flags = VOCAB_EMBEDDED * bool(words) | TENSORS_ALIGNED * aligned | CHECKSUM_ENABLED * checksums
        places = 64, len(meta), vocab_offset if words else 0, len(words), index_offset, len(named), data_offset
        header = struct.pack("<4sHHIIIIIIIIQQII", b"EMBD", 1, 0, flags, *places, len(payload), size, 0, 0)
        body = header + meta + words + bytes(descriptors)
        self.data = bytearray(body + bytes(data_offset - len(body)) + payload + struct.pack("<II4sI", 0, 0, b"DBME", 0))
        self.checksums = checksums
        self.metadata_offset, self.vocab_offset = 64, vocab_offset
        self.index_offset, self.data_offset = index_offset, data_offset
        self.data_size = len(payload)
        self.after = []

    def header(self, **values):
        """Change header fields. The header_checksum fits unless it is one of them."""
        for name, value in values.items():
            place, code = HEADER_FIELDS[name]
            self._put(place, code, value, late=name == "header_checksum")
        return self

    def descriptor(self, number, **values):
        """Change fields of descriptor `number`."""
        for name, value in values.items():
            place, code = DESCRIPTOR_FIELDS[name]
            self._put(self.index_offset + 32 * number + place, code, value)
        return self

    def footer(self, **values):
        """Change footer fields; a changed checksum stays as given."""
        for name, value in values.items():
            place, code = FOOTER_FIELDS[name]
            self._put(len(self.data) - 16 + place, code, value, late=name.endswith("checksum"))
        return self

    def bytes_at(self, place, value):
        """Overwrite bytes at an absolute offset."""
        self.data[place : place + len(value)] = value
        return self

    def _put(self, place, code, value, *, late=False):
        if late:
            self.after.append((place, code, value))
        else:
            struct.pack_into("<" + code, self.data, place, value)

    def seal(self):
        """The file; every checksum is right unless it was replaced."""
        end = len(self.data) - 16
        struct.pack_into("<I", self.data, 56, zlib.crc32(self.data[:56]))
        if self.checksums:
            struct.pack_into(
                "<I", self.data, end, zlib.crc32(self.data[self.data_offset : self.data_offset + self.data_size])
            )
            struct.pack_into("<I", self.data, end + 4, zlib.crc32(self.data[:end]))
        for place, code, value in self.after:
            struct.pack_into("<" + code, self.data, place, value)
        return bytes(self.data)


def simple(tensors=(), vocab=()):
    """A file of the simple layout, as the upstream converter writes it."""
    named = [(utf8(name), value) for name, value in tensors]
    out = bytearray(struct.pack("<4sII", b"EMBD", 1, len(named)))
    for name, value in named:
        assert value.dtype == "float32"
        out += (
            struct.pack("<I", len(name)) + name + struct.pack(f"<I{len(value.shape)}I", len(value.shape), *value.shape)
        )
        out += value.data
    out += struct.pack("<I", len(vocab))
    for token in map(utf8, vocab):
        out += struct.pack("<I", len(token)) + token
    return bytes(out)


@dataclass
class Parsed:
    """The content that `parse` finds."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    vocab: list[str] | None
    special_ids: dict[str, int] | None
    fields: dict[str, Any]


def fields_of(data):
    """The header fields by name."""
    return {name: struct.unpack_from("<" + code, data, place)[0] for name, (place, code) in HEADER_FIELDS.items()}


def parse(data):
    """Read a file of the specification layout and assert everything that the specification demands of a writer."""
    head = fields_of(data)
    assert (head["magic"], head["version_major"], head["version_minor"], head["reserved"]) == (b"EMBD", 1, 0, 0)
    assert head["header_checksum"] == zlib.crc32(data[:56])
    assert head["total_file_size"] == len(data)
    assert not head["flags"] & ~7
    data_crc, file_crc, magic_end, reserved = struct.unpack("<II4sI", data[-16:])
    assert (magic_end, reserved) == (b"DBME", 0)
    start, size = head["tensor_data_offset"], head["tensor_data_size"]
    assert start + size + 16 == len(data)
    if head["flags"] & CHECKSUM_ENABLED:
        assert data_crc == zlib.crc32(data[start : start + size])
        assert file_crc == zlib.crc32(data[:-16])
    else:
        assert (data_crc, file_crc) == (0, 0)
    meta = data[head["metadata_offset"] : head["metadata_offset"] + head["metadata_size"]]
    count, total = struct.unpack_from("<II", meta)
    assert total == len(meta) - 8
    metadata, place = {}, 8
    for _ in range(count):
        klen, vlen = struct.unpack_from("<HH", meta, place)
        key = meta[place + 4 : place + 4 + klen].decode()
        assert key not in metadata
        metadata[key] = meta[place + 4 + klen : place + 4 + klen + vlen].decode()
        place += 4 + klen + vlen
    assert place == len(meta)
    vocab, special = None, None
    if head["flags"] & VOCAB_EMBEDDED:
        vocab, special = _parse_vocab(data, head["vocab_offset"], head["vocab_size"])
    else:
        assert head["vocab_offset"] == head["vocab_size"] == 0
    return Parsed(_parse_tensors(data, head), metadata, vocab, special, head)


def _parse_vocab(data, offset, size):
    """Tokens and special ids, the ids at an absolute place after the entries as the project writes them."""
    count, total, special = struct.unpack_from("<III", data, offset)
    assert size == 12 + total + 20
    assert special == offset + 12 + total
    tokens, place = [], offset + 12
    for _ in range(count):
        (length,) = struct.unpack_from("<H", data, place)
        tokens.append(data[place + 2 : place + 2 + length].decode())
        place += 2 + length
    assert place == special
    return tokens, dict(zip(SPECIAL_NAMES, struct.unpack_from("<5I", data, special), strict=True))


def _parse_tensors(data, head):
    """The tensors in descriptor order; asserts alignment, zero padding, name hashes and that nothing is left over."""
    count, index, start = head["tensor_index_count"], head["tensor_index_offset"], head["tensor_data_offset"]
    aligned = bool(head["flags"] & TENSORS_ALIGNED)
    names_at, used = index + 32 * count, 0
    found = {}
    for number in range(count):
        name_hash, code, ndim, length, *rest = struct.unpack_from("<IBBH4IQ", data, index + 32 * number)
        shape, offset = tuple(rest[:ndim]), rest[4]
        assert 1 <= ndim <= 4
        assert not any(rest[ndim:4])
        raw = data[names_at : names_at + length]
        names_at += length
        assert name_hash == fnv1a32(raw)
        assert raw.decode() not in found
        nbytes = math.prod(shape) * numpy_dtype(NAMES[code]).itemsize
        if aligned:
            assert (start % 64, offset % 64) == (0, 0)
        assert offset >= used
        assert not any(data[start + used : start + offset])
        assert offset + nbytes <= head["tensor_data_size"]
        used = offset + nbytes
        found[raw.decode()] = Tensor(NAMES[code], shape, data[start + offset : start + offset + nbytes])
    assert not any(data[start + used : start + head["tensor_data_size"]])
    assert not any(data[names_at:start])
    return found


TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##ing", "日本", "", "🌎", "a b")
IDS = dict(zip(SPECIAL_NAMES, range(5), strict=True))


def _spec(name, tensors, metadata=REQUIRED, **options):
    draft = Draft(tensors.items(), metadata, **options)
    vocab = tuple(options["vocab"]) if options.get("vocab") is not None else None
    ids = None if vocab is None else dict(zip(SPECIAL_NAMES, options.get("ids", range(5)), strict=True))
    sums = draft.checksums
    return Example(f"spec-{name}", FORMAT, SUFFIX, draft.seal(), tensors, metadata, vocab, ids, "spec", checksums=sums)


def _simple(name, tensors, vocab=()):
    words = tuple(vocab) or None
    return Example(f"simple-{name}", FORMAT, SUFFIX, simple(tensors.items(), vocab), tensors, {}, words, None, "simple")


def examples():
    """Files of both layouts, from the smallest to one with every dtype and dimension count."""
    dtypes = {f"w.{dtype}": noise(dtype, (3, 5), seed) for seed, dtype in enumerate(CODES)}
    ranks = {
        "r1": normal((7,)),
        "r3": noise("int8", (2, 3, 5)),
        "r4": noise("uint16", (1, 2, 3, 4)),
        "ünïcode.名前": normal((3,)),
    }
    empties = {"empty": normal((0, 4)), "empty.first": normal((0,))}
    small = {"a": normal((2, 3), 1), "b.bias": noise("float16", (5,), 2)}
    odd = {
        "one": noise("uint8", (1,), 3),
        "half": noise("bfloat16", (3,), 4),
        "word": normal((2, 2), 5),
        "last": noise("int8", (3,)),
    }
    everything = {**dtypes, **ranks, **empties, "costarring": normal((1,), 6), "liquid": normal((1,), 7)}
    return [
        _spec("minimal", {}, {}),
        _spec("small", small, {"model_name": "kleines Modell ☃"}),
        _spec("everything", everything, vocab=TOKENS),
        _spec("ids-before-entries", small, vocab=TOKENS, special="before"),
        _spec("ids-relative-after", small, vocab=TOKENS, special="relative-after", ids=(4, 3, 2, 1, 0)),
        _spec("ids-relative-before", small, vocab=TOKENS, special="relative-before"),
        _spec("unaligned", odd, aligned=False),
        _spec("no-checksums", small, checksums=False, vocab=TOKENS),
        _spec("empty-vocabulary-strings", {}, vocab=("", "a", "b", "c", "d")),
        _simple("nothing", {}),
        _simple("small", {"a": normal((3,), 8)}, ("x", "y")),
        _simple(
            "ranks",
            {"m": normal((3, 5), 9), "t": normal((2, 1, 3), 10), "n": normal((0, 2)), "v": normal((2,))},
            TOKENS,
        ),
        _simple("no-vocabulary", {"m": normal((3, 5), 9)}),
    ]


def many(count):
    """EMBD: fixed-size records, checked with all their names and hashes."""
    digits = np.arange(count)[:, None] // 10 ** np.arange(6, -1, -1) % 10
    names = (digits + ord("0")).astype(np.uint8)
    hashes = np.full(count, 0x811C9DC5, np.uint32)
    for column in names.T:
        hashes = (hashes ^ column) * np.uint32(0x01000193)
    fields = [("hash", "<u4"), ("dtype", "u1"), ("ndim", "u1"), ("length", "<u2"), ("shape", "<u4", 4), ("at", "<u8")]
    index = np.zeros(count, fields)
    index["hash"], index["dtype"], index["ndim"], index["length"] = hashes, CODES["uint8"], 1, 7
    index["shape"][:, 0], index["at"] = 1, np.arange(count)
    draft = Draft([], aligned=False, checksums=False)
    start = draft.index_offset + len(index.tobytes()) + names.size
    draft.header(tensor_index_count=count, tensor_data_offset=start, tensor_data_size=count)
    data = draft.header(total_file_size=start + count + 16).seal()
    return data[: draft.index_offset] + index.tobytes() + names.tobytes() + bytes(count) + data[-16:]


def many_simple(count):
    """The other layout of EMBD: heads and data in turn."""
    rest = struct.pack("<2I", 1, 1) + bytes(4)
    body = b"".join(b"\7\0\0\0%07d" % i + rest for i in range(count))
    return struct.pack("<4s2I", b"EMBD", 1, count) + body + bytes(4)


def anatomy(data):
    """EMBD, either layout."""
    return _anatomy_spec(data) if len(data) > 64 and data[-8:-4] == b"DBME" else _anatomy_simple(data)


def _anatomy_simple(data):
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


def _anatomy_spec(data):
    walk = Walk(data)
    head = {}
    for name, (place, code) in HEADER_FIELDS.items():
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
        _anatomy_vocabulary(walk, at["vocab_offset"])
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


def _anatomy_vocabulary(walk, begin):
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


def sealed(data):
    """A file of the layout with checksums, with the hashes and checksums that its bytes have; another one as it is."""
    if len(data) < 80 or data[:4] != b"EMBD":
        return data
    out = bytearray(data)
    head = fields_of(data)
    index, count = head["tensor_index_offset"], head["tensor_index_count"]
    place = index + 32 * count
    if count <= 64 and place <= len(out):
        for number in range(count):
            at = index + 32 * number
            length = int.from_bytes(out[at + 6 : at + 8], "little")
            name = bytes(out[place : place + length])
            place += length
            if len(name) < 400:
                struct.pack_into("<I", out, at, fnv1a32(name))
    struct.pack_into("<I", out, 56, zlib.crc32(out[:56]))
    end = len(out) - 16
    if end >= 64 and head["flags"] & CHECKSUM_ENABLED:
        start = head["tensor_data_offset"]
        part = out[start : start + head["tensor_data_size"]] if start <= end else b""
        struct.pack_into("<II", out, end, zlib.crc32(part), 0)
        struct.pack_into("<I", out, end + 4, zlib.crc32(out[:end]))
    return bytes(out)


def trailing(kind, data, _):
    """The layout with a header records the file's length in it."""
    if kind == FORMAT:
        return "LayoutError", "total_file_size", 48, None
    return "LayoutError", "size", len(data), "trailing"


BUILDER = Builder(
    format=FORMAT,
    title="EMBD",
    suffix=SUFFIX,
    holds="written by cpp_embedder: sentence encoders with their vocabulary; both layouts, checksums",
    examples=examples,
    damage=("tests.attacks.embd", "tests.attacks.embd_simple"),
    growing={"embd": many, "embd-simple": many_simple},
    anatomy=anatomy,
    errors=(50, 57),
    magic=b"EMBD",
    # The simple layout has heads between its data and is read by Python.
    seconds={"embd-simple": 30},
    sealed=sealed,
    trailing=trailing,
    saved={
        "embd": lambda array: named(array) | {"vocab": [f"word{i}" for i in range(len(array))]},
        "embd-simple": lambda array: named(array) | {"layout": "simple"},
    },
    golden={
        "spec.weights": Golden(
            "413ea7d870f3140fd2733e0d35a920342f2726ac2c2f5be2c7cb81c3a37d9ade",
            lambda c: {
                "tensors": c.tensors | c.kinds,
                "metadata": c.metadata,
                "vocab": c.words,
                "special_ids": {"pad": 0, "unk": 5},
            },
        ),
        "bare.weights": Golden(
            "d892c93f4340a4709e4950d4d1fdb7beed526af334179b703ec861957084fd17",
            lambda c: {"tensors": c.tensors, "checksums": False},
        ),
        "simple.weights": Golden(
            "6f5d72a64e81634cb72d90ab126d088cec96c3a565f55d3e6c149320ae02278c",
            lambda c: {"tensors": c.tensors, "layout": "simple", "vocab": c.words},
        ),
    },
    metadata="texts",
    bounds={"embd": Bounds(74, 47, 51, 37, 126, 17)},
)
