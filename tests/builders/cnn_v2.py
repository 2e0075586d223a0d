"""CNN v2 files: a header, layer records of five numbers, halves; `build` puts any numbers before any weights."""

import struct

import numpy as np
from tests.fuzz.anatomy import Walk

from . import Bounds, Builder, Example, Golden, noise, normal

FORMAT = "cnn_v2"
SUFFIX = ".bin"
FIELDS = ("kernel_size", "in_channels", "out_channels", "weight_offset", "weight_count")


def header(layers, total, mip_level=0, version=2, magic=b"CNN2"):
    """A header with these numbers; version 1 has no mip_level."""
    start = magic + struct.pack("<3I", version, layers, total)
    return start if version == 1 else start + struct.pack("<I", mip_level)


def record(kernel, inputs, outputs, offset, count=None):
    """A layer record; by default its count follows from the shape."""
    count = outputs * inputs * kernel**2 if count is None else count
    return struct.pack("<5I", kernel, inputs, outputs, offset, count)


def records(tensors):
    """The records of layers that lie one after another, and the number of their weights."""
    parts, offset = [], 0
    for value in tensors:
        outputs, inputs, kernel, _ = value.shape
        parts.append(record(kernel, inputs, outputs, offset))
        offset += len(value.data) // 2
    return b"".join(parts), offset


def build(tensors, mip_level=0, version=2, *, pad=True):
    """A valid file; `pad` completes the last pair of an odd number of weights with zero."""
    parts, total = records(tensors)
    data = b"".join(value.data for value in tensors)
    spare = bytes(2) if pad and total % 2 else b""
    return header(len(tensors), total, mip_level, version) + parts + data + spare


def layer(outputs, inputs, kernel, seed=0):
    """A layer of ordinary numbers."""
    return normal((outputs, inputs, kernel, kernel), seed, "float16")


def names(tensors):
    """The layers under the names that a reader gives them."""
    return {f"layer.{number}.weight": value for number, value in enumerate(tensors)}


# Layers of 9, 2, 9 and 25 weights begin at halves 0, 9, 11 and 20, even and odd; their sum, 45, is odd.
ODD = (layer(1, 1, 3, 1), layer(2, 1, 1, 2), layer(1, 1, 3, 3), layer(1, 1, 5, 4))


def examples():
    """Files from no layer to the specification's example, both versions, odd numbers of weights in both sizes."""
    network = [layer(4, 12, 3, seed) for seed in range(3)]
    bits = [noise("float16", (3, 1, 1, 1), 7), noise("float16", (2, 3, 3, 3), 8)]

    def example(name, tensors, mip_level=0, version=2, **options):
        data = build(tensors, mip_level, version, **options)
        metadata = {"version": version, "mip_level": mip_level}
        spare = len(data) - len(header(0, 0, 0, version)) - sum(20 + len(value.data) for value in tensors)
        # Without the spare half of its last pair, a file with an odd number of weights is a file as well.
        also = frozenset({len(data) - spare} if spare else ())
        layout = f"v{version}"
        return Example(name, FORMAT, SUFFIX, data, names(tensors), metadata, layout=layout, prefixes=also)

    return [
        example("network", network),
        example("version-1", network[:1], version=1),
        example("mip-level", [layer(2, 12, 1)], mip_level=3),
        example("no-layers", []),
        example("no-layers-version-1", [], version=1),
        example("one-weight", [layer(1, 1, 1)]),
        example("odd-padded", ODD),
        example("odd-unpadded", ODD, pad=False),
        example("odd-padded-version-1", ODD[:2], version=1),
        example("any-bits", bits, mip_level=1),
        example("eleven-layers", [layer(1, 1, 1, seed) for seed in range(11)]),
    ]


def many(count):
    """CNN v2: records of five numbers."""
    records = np.ones((count, 5), "<u4")
    records[:, 3] = np.arange(count)
    return header(count, count) + records.tobytes() + bytes(2 * (count + count % 2))


def anatomy(data):
    """CNN v2 and v1."""
    walk = Walk(data)
    _, version, layers, _ = walk.numbers(4, 4, 4, 4)
    if walk.value(version) == 2:
        walk.field(4)
    for _ in walk.items(layers):
        walk.numbers(4, 4, 4, 4, 4)
    return walk.anatomy


def small():
    """A file of each version whose data is smaller than its records."""
    found = {example.name: example.data for example in examples()}
    return {"cnn_v2-v1": next(e.data for e in examples() if e.layout == "v1"), "cnn_v2-v2": found["odd-padded"]}


BUILDER = Builder(
    format=FORMAT,
    title="CNN v2",
    suffix=SUFFIX,
    holds="written by trainers of small convolutional networks for shaders; versions 1 and 2",
    examples=examples,
    damage=("tests.attacks.cnn_v2",),
    growing={"cnn_v2": many},
    anatomy=anatomy,
    errors=(13, 15),
    magic=b"CNN2",
    small=small,
    saved={"cnn_v2": lambda array: {"tensors": {"layer.0.weight": array.astype("f2").reshape(*array.shape, 1, 1)}}},
    golden={
        "v1.bin": Golden(
            "385b35602f80c84360b0f8812d950b430d7c1b8ec15bde3b6480fbddd9314c2d",
            lambda c: {"tensors": {"layer.0.weight": c.half}, "layout": "v1"},
        ),
        "v2.bin": Golden(
            "f0c61b6c0445429aa989fbf243899c786dc1bfbc78c57b52ffe925a5fb7e0372",
            lambda c: {
                "tensors": {"layer.0.weight": c.half, "layer.1.weight": c.half[:1, :1]},
                "metadata": {"mip_level": 2},
            },
        ),
    },
    bounds={"cnn_v2": Bounds(69, 64, 36, 32, 126, 21)},
)
