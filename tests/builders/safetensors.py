"""safetensors files: eight bytes of header length, a JSON object, the data; `build` puts any header before any data."""

import json
import struct

from tests.fuzz.anatomy import Walk
from tests.fuzz.dictionary import MARKUP

from . import Bounds, Builder, Example, Golden, Tensor, named, noise, normal, tensor

FORMAT = "safetensors"
SUFFIX = ".safetensors"

CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0", "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16", "int32": "I32",
    "uint32": "U32", "float32": "F32", "complex64": "C64", "float64": "F64", "int64": "I64", "uint64": "U64",
}  # fmt: skip
NAMES = {code: name for name, code in CODES.items()}


def raw(header, data=b"", length=None):
    """A file with these header bytes; `length` replaces the true header length."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype, shape, begin, end):
    """A header entry, right or wrong."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def header_of(tensors, metadata=None):
    """The header object and the data of a valid file, tensors in the given order."""
    head = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, value in tensors.items():
        head[name] = entry(CODES[value.dtype], list(value.shape), len(data), len(data) + len(value.data))
        data += value.data
    return head, data


def build(tensors, metadata=None, *, pad=True, ascii_only=False):
    """A valid file; `pad` fills the header with spaces to a multiple of eight as the reference writer does."""
    head, data = header_of(tensors, metadata)
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    return raw(text + b" " * (-len(text) % 8 if pad else 0), data)


def sharded(arrays, count):
    """The files of a model of `count` shards, by name; each shard has every `count`-th array."""
    files, where = {}, {}
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {key: tensor(array) for key, array in list(arrays.items())[number::count]}
        where |= dict.fromkeys(part, name)
        files[name] = build(part)
    index = json.dumps({"metadata": {}, "weight_map": where}).encode()
    return files | {"model.safetensors.index.json": index}


def parse(data):
    """Read a valid file, asserting what the format demands of a writer; tensors in the order of their data."""
    (length,) = struct.unpack_from("<Q", data)
    assert length % 8 == 0
    assert data[8:9] == b"{"
    head = json.loads(data[8 : 8 + length].decode())
    body = data[8 + length :]
    metadata = head.pop("__metadata__", {})
    assert all(isinstance(value, str) for value in metadata.values())
    tensors, end = {}, 0
    for name, item in sorted(head.items(), key=lambda pair: pair[1]["data_offsets"]):
        assert item["data_offsets"][0] == end
        end = item["data_offsets"][1]
        tensors[name] = Tensor(NAMES[item["dtype"]], tuple(item["shape"]), body[slice(*item["data_offsets"])])
        assert tensors[name].array.nbytes == len(tensors[name].data)
    assert end == len(body)
    return tensors, metadata


def shard(folder, shards, **changes):
    """Write a Hugging Face sharded model and return its index; `changes` replace top-level keys of the index."""
    total, where = 0, {}
    for file, tensors in shards.items():
        (folder / file).write_bytes(build(tensors, {"format": "pt"}))
        total += sum(len(value.data) for value in tensors.values())
        where.update(dict.fromkeys(tensors, file))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where, **changes}), encoding="utf-8")
    return index


def examples():
    """Files from `{}` to one with every dtype that numpy or ml_dtypes has."""
    every = {f"w.{dtype}": noise(dtype, (3, 5), seed) for seed, dtype in enumerate(CODES)}
    small = {"a": normal((2, 3), 1), "b.bias": noise("float16", (5,), 2)}
    ranks = {
        "scalar": normal(()),
        "five": noise("int8", (1, 2, 1, 2, 1)),
        "empty": normal((0, 4)),
        'ünï"\\\n': noise("uint8", (3,)),
        "odd": noise("bfloat16", (3,), 5),
    }

    def example(name, tensors, metadata=None, **options):
        return Example(name, FORMAT, SUFFIX, build(tensors, metadata, **options), tensors, metadata or {})

    return [
        example("nothing", {}),
        example("small", small, {"format": "pt", "clé": "ñ"}),
        example("every-dtype", every),
        example("ranks", ranks, {}),
        example("unpadded-header", small, pad=False),
        example("escaped-header", ranks, {"☃": "日本"}, ascii_only=True),
    ]


def many(count):
    """The header of safetensors is JSON."""
    entry = '"%07d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
    return raw(b"{" + ",".join([entry % (i, i, i + 1) for i in range(count)]).encode() + b"}", bytes(count))


def anatomy(data):
    """safetensors."""
    walk = Walk(data)
    length = walk.field(8)
    end = 8 + walk.value(length)
    walk.span(length, 8, end)
    walk.json(end)
    return walk.anatomy


def trailing(_, data, __):
    """The last tensor ends where the file does."""
    return "LayoutError", "data_offsets", len(data), "trailing"


BUILDER = Builder(
    format=FORMAT,
    title="safetensors",
    suffix=SUFFIX,
    holds="written by the Hub and transformers; also directories and `*.index.json` of sharded models",
    examples=examples,
    damage=("tests.attacks.safetensors",),
    growing={"safetensors": many},
    anatomy=anatomy,
    errors=(10, 12),
    trailing=trailing,
    dictionary=MARKUP,
    saved={"safetensors": lambda array: named(array) | {"metadata": {"k": "v"}}},
    golden={
        "a.safetensors": Golden(
            "97d140948adb335f7f4f792c5d226fa8d165a7be25043bd1aa4b155943ed1fdc",
            lambda c: {"tensors": c.tensors | c.kinds, "metadata": c.metadata},
        )
    },
    metadata="texts",
    bounds={"safetensors": Bounds(80, 76, 36, 32, 126, 21)},
)
