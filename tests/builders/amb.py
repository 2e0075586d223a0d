"""AMB files: a header, two JSON texts, a tokenizer, records; `build` puts any of them together, right or wrong."""

import itertools
import json
import struct
from dataclasses import dataclass, replace

from tests.fuzz.anatomy import TEXT, Walk
from tests.fuzz.dictionary import MARKUP

from . import Bounds, Builder, Example, Golden, Tensor, named, noise, normal

FORMAT = "amb"
SUFFIX = ".amb"
CODES = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3}
INT8, INT4, INT5, INT4BLOCK, INT5BLOCK, ADAPTIVE = 3, 4, 5, 6, 7, 8
SCHEMES = {"int8": INT8, "int4": INT4, "int5": INT5, "int4_block": INT4BLOCK, "int5_block": INT5BLOCK}
NO_ID = 0xFFFF


@dataclass(frozen=True)
class Record:
    """A record; None stands for the number that follows from shape, name or data."""

    name: str | bytes
    shape: tuple[int, ...]
    code: int
    data: bytes
    name_length: int | None = None
    ndim: int | None = None
    data_size: int | None = None

    def head(self):
        """The bytes before the data."""
        name = self.name.encode() if isinstance(self.name, str) else self.name
        length = len(name) if self.name_length is None else self.name_length
        ndim = len(self.shape) if self.ndim is None else self.ndim
        size = len(self.data) if self.data_size is None else self.data_size
        start = struct.pack("<H", length) + name + struct.pack("<B", ndim)
        return start + struct.pack(f"<{len(self.shape)}I", *self.shape) + struct.pack("<BQ", self.code, size)

    def but(self, **changes):
        """The same with some fields changed."""
        return replace(self, **changes)


def dense(name, value):
    """The record of a dense tensor."""
    return Record(name, value.shape, CODES[value.dtype], value.data)


def quantised(name, shape, code, payload, block_size, scale_type):
    """The record of a quantised tensor with the header of four bytes."""
    return Record(name, shape, code, struct.pack("<BHB", code - 2, block_size, scale_type) + payload)


def weights(records, start, *, origin=0, fill=b"\x00", last=True):
    """The records, from byte `start` of the file on, data padded to multiples of 8 counted from `origin`."""
    out, padding = b"", 0
    for record in records:
        out += record.head() + record.data
        padding = -(start + len(out) - origin) % 8
        out += fill * padding
    return out if last or not padding else out[:-padding]


def tokenizer(kind, ids, payload=b""):
    """A tokenizer section; `ids` are of bos, eos, pad, unk and mask."""
    return struct.pack("<B5H", kind, *ids) + payload


def text(value):
    """A JSON section."""
    return json.dumps(value).encode()


def build(records=(), metadata=b"", config=b"", tokens=b"", *, relative=False, fill=b"\x00", last=True, **header):
    """A file; `header` overrides magic, version, flags, metadata_size, config_size, tokenizer_size, weights_size."""
    start = 28 + len(metadata) + len(config) + len(tokens)
    body = (
        records
        if isinstance(records, bytes)
        else weights(records, start, origin=start if relative else 0, fill=fill, last=last)
    )
    sizes = (header.get("metadata_size", len(metadata)), header.get("config_size", len(config)))
    sizes += (header.get("tokenizer_size", len(tokens)), header.get("weights_size", len(body)))
    begin = header.get("magic", b"AMBEE") + struct.pack("<BH", header.get("version", 1), header.get("flags", 0))
    return begin + struct.pack("<3IQ", *sizes) + metadata + config + tokens + body


def parse(data):
    """Read a file, asserting what the format demands of a writer: sections, records and where their data begins."""
    assert data[:8] == b"AMBEE\1\0\0"
    sizes = struct.unpack_from("<3IQ", data, 8)
    assert 28 + sum(sizes) == len(data)
    ends = [28]
    for size in sizes:
        ends.append(ends[-1] + size)
    sections = [data[a:b] for a, b in itertools.pairwise(ends)]
    records, pos = [], ends[3]
    while pos < len(data):
        (length,) = struct.unpack_from("<H", data, pos)
        name, ndim = data[pos + 2 : pos + 2 + length].decode(), data[pos + 2 + length]
        pos += 3 + length
        shape = struct.unpack_from(f"<{ndim}I", data, pos)
        code, size = struct.unpack_from("<BQ", data, pos + 4 * ndim)
        pos += 4 * ndim + 9
        records.append((Record(name, shape, code, data[pos : pos + size]), pos))
        pos += size
        assert not any(data[pos : pos + -pos % 8])
        pos += -pos % 8
    assert pos == len(data)
    return sections[0], sections[1], sections[2], records


def pack(codes, bits):
    """Two's complement of `bits` bits each, the first one in the lowest bits of the first byte."""
    number = count = 0
    for code in codes:
        number |= (code & (1 << bits) - 1) << count
        count += bits
    return number.to_bytes((count + 7) // 8, "little")


def unpack(data, bits, count):
    """The first `count` integers of such bytes."""
    number = int.from_bytes(data, "little")
    fields = [number >> bits * i & (1 << bits) - 1 for i in range(count)]
    return [field - (1 << bits) if field >> bits - 1 else field for field in fields]


def pack_scale(value, scale_type):
    """A scale: type 0 float32, 1 float16."""
    return struct.pack("<e" if scale_type else "<f", value)


def pack_blocks(blocks, bits, block_size, scale_type):
    """Blocks of a scale and codes, each filled up with zeros."""
    return b"".join(
        pack_scale(scale, scale_type) + pack([*codes, *[0] * (block_size - len(codes))], bits)
        for scale, codes in blocks
    )


def pack_adaptive(blocks, block_size, scale_type):
    """Mask, scales, codes; a block is its code (0 INT4, 1 INT5, 2 FP16), its scale, and its integers or halves."""
    mask = pack([code for code, _, _ in blocks], 2)
    scales = b"".join(pack_scale(scale, scale_type) for code, scale, _ in blocks if code != 2)
    parts = []
    for code, _, values in blocks:
        whole = [*values, *[0] * (block_size - len(values))]
        parts.append(struct.pack(f"<{block_size}e", *whole) if code == 2 else pack(whole, 4 + code))
    return mask + scales + b"".join(parts)


def decode(payload, bits, size, block_size, scale_type):
    """The values of blocks (or, with a block size of 0, of one), by the definition: scale times integer, exactly."""
    width, values = (2 if scale_type else 4), []
    length = block_size or size
    step = width + (bits * length + 7) // 8
    for first in range(0, len(payload) if size else 0, step):
        (scale,) = struct.unpack_from("<e" if scale_type else "<f", payload, first)
        values += [scale * q for q in unpack(payload[first + width : first + step], bits, length)]
    return values[:size]


def examples():
    """Dense files from nothing at all to every dtype, aligned and not, with and without the other sections."""
    mixed = {
        "f32": normal((3, 5), 1),
        "f16": noise("float16", (7,), 2),
        "bf16": noise("bfloat16", (2, 1, 3), 3),
        "i8": noise("int8", (9,), 4),
    }
    odd = {
        "scalar": normal((), 5),
        "empty": Tensor("float32", (0, 4), b""),
        "": normal((1,), 6),
        "ünï": normal((2, 2), 7, "float16"),
    }
    bits = {name: noise(name, (3, 2), 8) for name in CODES}
    many = {f"block.{number}.weight": normal((2,), number) for number in range(24)}
    metadata = {"name": "tiny", "tags": ["a", "ü"], "layers": 2, "nested": {"scale": 0.5, "none": None}}
    config = {"architecture": "bert", "n_vocab": 3, "n_embd": 5}
    section = tokenizer(2, (1, 2, 0, NO_ID, NO_ID), b"a\nb\nc\n")

    def example(name, tensors, texts=None, *sections, **options):
        first = b"" if texts is None else text(texts) + options.pop("space", b"")
        data = build([dense(key, value) for key, value in tensors.items()], first, *sections, **options)
        config, tokens = (*sections, b"", b"")[:2]
        found = {"config": json.loads(config or "{}"), "tokenizer": tokens[11:] if tokens else None}
        return Example(name, FORMAT, SUFFIX, data, tensors, texts or {}, layout="amb", **found)

    return [
        example("no-tensors", {}),
        example("no-tensors-but-text", {}, metadata, text(config)),
        example("plain", mixed),
        example("all-sections", mixed, metadata, text(config), section),
        example("odd-shapes", odd, {"name": "odd"}),
        example("any-bits", bits, {}),
        example("many", many, metadata),
        # Sections of 28 + 13, 28 + 14, ... bytes: data begins anywhere within eight bytes.
        *(example(f"unaligned-{k}", bits, {"name": "x" * k}) for k in range(1, 8, 2)),
        *(example(f"relative-{k}", mixed, {"name": "x" * k}, relative=True) for k in (2, 5)),
        example("spaces", mixed, metadata, text(config) + b"\n", space=b" \t\r\n"),
        example("tokenizer-only", {}, None, b"", tokenizer(0, (NO_ID,) * 5)),
    ]


def many(count):
    """AMB: heads and data in turn; such a record has 24 bytes, so none needs padding."""
    record = struct.Struct("<H7sBIBQx").pack
    body = b"".join(record(7, b"%07d" % i, 1, 1, CODES["int8"], 1) for i in range(count))
    return build(body, b"{}  ")


def every_scheme():
    """An AMB file with a tensor of every scheme."""
    blocks = [(0.5, range(-4, 4)), (-1.0, range(8)), (6e-8, [7, -8, 1])]
    mixed = [(0, 0.5, range(-8, 8)), (2, 0.0, [0.25] * 16), (1, -2.0, range(-16, 0))]
    records = [
        quantised("int8", (3, 4), INT8, pack_scale(0.5, 1) + bytes(range(12)), 0, 1),
        quantised("int4", (7,), INT4, pack_scale(2.0, 0) + pack(range(-4, 3), 4), 0, 0),
        quantised("int5", (3,), INT5, pack_scale(2.0, 1) + pack([1, -16, 15], 5), 0, 1),
        quantised("int4_block", (19,), INT4BLOCK, pack_blocks(blocks, 4, 8, 1), 8, 1),
        quantised("int5_block", (19,), INT5BLOCK, pack_blocks(blocks, 5, 8, 0), 8, 0),
        Record("bare", (3, 8), INT4BLOCK, pack_blocks(blocks, 4, 8, 0)),
        quantised("adaptive", (3, 16), ADAPTIVE, pack_adaptive(mixed, 16, 1), 16, 1),
    ]
    config = text({"quant": {"block_size": 8, "scale_type": "fp32"}})
    return build(records, b'{"n": 1}', config, tokenizer(0, (0, 1, 2, 3, 4), b"ab"))


def empty_schemes():
    """An AMB file with quantised tensors of no elements, and a scalar."""
    records = [
        quantised("empty", (0, 3), ADAPTIVE, b"", 8, 1),
        quantised("long", (2**32 - 1, 0), INT4BLOCK, b"", 8, 1),
        quantised("scalar", (), INT8, pack_scale(0.5, 1) + b"\5", 0, 1),
    ]
    return build(records)


def anatomy(data):
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


BUILDER = Builder(
    format=FORMAT,
    title="AMB",
    suffix=SUFFIX,
    holds="written by embee.cpp: transformers with configuration and tokenizer; tensors of 4, 5 and 8 bits",
    examples=examples,
    damage=("tests.attacks.amb",),
    growing={"amb": many},
    anatomy=anatomy,
    errors=(26, 30),
    magic=b"AMBEE",
    small=lambda: {"amb-quantised": every_scheme(), "amb-empty": empty_schemes()},
    dictionary=MARKUP,
    saved={"amb": named},
    golden={
        "dense.amb": Golden(
            "71a39c3059528bc2b54a657cad26fed7c23ee73d8c2aa7e4f37eb57b4a46bc8e",
            lambda c: {
                "tensors": {"w": c.matrix, "h": c.matrix.astype("f2")},
                "metadata": c.metadata,
                "config": c.metadata,
                "tokenizer": {"type": 0, "special_ids": {}, "payload": b"tokens"},
            },
        ),
        "quantised.amb": Golden(
            "4f22451803df8b3ffbda90068d28aa5b7fc91c841666c886568806ff2d0bcbf6", lambda c: {"tensors": c.quantised}
        ),
    },
    metadata="JSON",
    bounds={"amb": Bounds(149, 145, 58, 32, 126, 21)},
)
