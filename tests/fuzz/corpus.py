"""The valid files that are mutated, by format: the golden files and those of the builders, as far as they are small."""

from __future__ import annotations

from functools import cache

from tests import builders
from tests.attacks import sharded, sound
from tests.attacks.case import INDEX
from tests.builders import amb
from tests.builders import finalfusion as ff
from tests.support import DATA

FORMATS = ("embd", "amb", "cnn_v2", "bintensors", "finalfusion", "safetensors", "sharded")
# Most of the time goes into what is done with a file, and a small one has the same fields.
LARGEST = 1500
GOLDEN = {"embd": "*.weights", "amb": "*.amb", "cnn_v2": "*.bin", "bintensors": "*.bt", "finalfusion": "*.fifu"}


def quantised() -> bytes:
    """An AMB file with a tensor of every scheme."""
    blocks = [(0.5, range(-4, 4)), (-1.0, range(8)), (6e-8, [7, -8, 1])]
    mixed = [(0, 0.5, range(-8, 8)), (2, 0.0, [0.25] * 16), (1, -2.0, range(-16, 0))]
    records = [
        amb.quantised("int8", (3, 4), amb.INT8, amb.pack_scale(0.5, 1) + bytes(range(12)), 0, 1),
        amb.quantised("int4", (7,), amb.INT4, amb.pack_scale(2.0, 0) + amb.pack(range(-4, 3), 4), 0, 0),
        amb.quantised("int5", (3,), amb.INT5, amb.pack_scale(2.0, 1) + amb.pack([1, -16, 15], 5), 0, 1),
        amb.quantised("int4_block", (19,), amb.INT4BLOCK, amb.pack_blocks(blocks, 4, 8, 1), 8, 1),
        amb.quantised("int5_block", (19,), amb.INT5BLOCK, amb.pack_blocks(blocks, 5, 8, 0), 8, 0),
        amb.Record("bare", (3, 8), amb.INT4BLOCK, amb.pack_blocks(blocks, 4, 8, 0)),
        amb.quantised("adaptive", (3, 16), amb.ADAPTIVE, amb.pack_adaptive(mixed, 16, 1), 16, 1),
    ]
    config = amb.text({"quant": {"block_size": 8, "scale_type": "fp32"}})
    return amb.build(records, b'{"n": 1}', config, amb.tokenizer(0, (0, 1, 2, 3, 4), b"ab"))


def empty_quantised() -> bytes:
    """An AMB file with quantised tensors of no elements, one of them of dimensions that do not multiply."""
    records = [
        amb.quantised("empty", (0, 3), amb.ADAPTIVE, b"", 8, 1),
        amb.quantised("vast", (2**31, 0, 2**31), amb.INT8, b"\0\0", 0, 1),
        amb.quantised("long", (2**32 - 1, 0), amb.INT4BLOCK, b"", 8, 1),
        amb.quantised("scalar", (), amb.INT8, amb.pack_scale(0.5, 1) + b"\5", 0, 1),
    ]
    return amb.build(records)


@cache
def small_files() -> dict[str, bytes]:
    """A small file of each format and layout, and one of each part that a format has in several kinds."""
    words = ["one", "two", "drei"]
    found = dict(sound())
    examples = builders.examples()
    # Of CNN v2, one whose data is smaller than its records.
    for version in (1, 2):
        layout = f"v{version}"
        found[f"cnn_v2-{layout}"] = next(e.data for e in examples if (e.format, e.layout) == ("cnn_v2", layout))
    found["cnn_v2-v2"] = next(e.data for e in examples if (e.format, e.name) == ("cnn_v2", "odd-padded"))
    found["amb-quantised"] = quantised()
    every = [
        ff.metadata("a = 1\nb = [2020-01-01]"),
        ff.explicit(words, [("a", 0), ("b", 1)], 1, 3),
        ff.product(*ff.quantised(5, 2, 3, 2)),
        ff.norms(ff.lengths(3)),
    ]
    found["finalfusion-everything"] = ff.build(every)
    spec = ff.hashed(ff.FASTTEXT, words, 1, 3, 2, spec=True)
    found["finalfusion-specification"] = ff.build([spec, ff.matrix(builders.normal((5, 1)))])
    return found


@cache
def seeds(format: str) -> tuple[bytes, ...]:
    """The files of a format that are mutated; of "sharded", the index of the model in `shards`."""
    if format == "sharded":
        return (shards()[INDEX],)
    found = [data for kind, data in small_files().items() if kind.partition("-")[0] == format]
    found += [example.data for example in builders.examples() if example.format == format]
    if format in GOLDEN:
        found += [path.read_bytes() for path in sorted((DATA / format).rglob(GOLDEN[format]))]
    if format == "amb":
        found.append(empty_quantised())
    return tuple(dict.fromkeys(data for data in found if len(data) <= LARGEST))


@cache
def shards() -> dict[str, bytes]:
    """The files of a model in two shards, by name."""
    return sharded.folder()
