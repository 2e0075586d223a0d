"""Writers of the benchmark files, without the package: struct and numpy, or the rivals' own writers."""

import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np

EMBD_DTYPES = {"float32": 0, "float16": 1, "int32": 3, "int8": 5}
ALIGNED, CHECKSUMS = 2, 4


def minilm_shapes():
    """Return names and shapes of the 103 float tensors of all-MiniLM-L6-v2."""
    hidden, inner = 384, 1536
    norm = {"weight": (hidden,), "bias": (hidden,)}
    shapes = {
        "embeddings.word_embeddings.weight": (30522, hidden),
        "embeddings.position_embeddings.weight": (512, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        **{f"embeddings.LayerNorm.{part}": shape for part, shape in norm.items()},
    }
    for number in range(6):
        layer = f"encoder.layer.{number}"
        dense = {
            "attention.self.query": (hidden, hidden),
            "attention.self.key": (hidden, hidden),
            "attention.self.value": (hidden, hidden),
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (inner, hidden),
            "output.dense": (hidden, inner),
        }
        for name, shape in dense.items():
            shapes[f"{layer}.{name}.weight"] = shape
            shapes[f"{layer}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}.{name}.{part}": shape for part, shape in norm.items()}
    return shapes | {"pooler.dense.weight": (hidden, hidden), "pooler.dense.bias": (hidden,)}


def many_shapes(count):
    """Return `count` shapes of 64 bytes, with names of 51 characters, as long as in real models."""
    return {f"model.layers.{i // 100:06}.attention.experts.{i % 100:03}.weight": (16,) for i in range(count)}


def fnv1a32(name):
    """Return the FNV-1a of the UTF-8 of `name`, as the descriptors of the format hold it."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def write_embd(path, shapes, dtype="float32"):
    """Write an EMBD file of the specification's layout with zero tensors and sparse data."""
    itemsize = np.dtype(dtype).itemsize
    pairs = {"format": "weightmap benchmark", "dtype": dtype}
    entries = b"".join(
        struct.pack("<HH", len(key), len(value)) + key + value
        for key, value in ((key.encode(), value.encode()) for key, value in pairs.items())
    )
    metadata = struct.pack("<II", len(pairs), len(entries)) + entries

    index, names, size = [], [], 0
    for name, shape in shapes.items():
        encoded = name.encode()
        dims = (*shape, *[0] * (4 - len(shape)))
        descriptor = (fnv1a32(name), EMBD_DTYPES[dtype], len(shape), len(encoded), *dims, size)
        index.append(struct.pack("<IBBH4IQ", *descriptor))
        names.append(encoded)
        size += -(-int(np.prod(shape)) * itemsize // 64) * 64
    index_offset = 64 + len(metadata)
    before = metadata + b"".join(index) + b"".join(names)
    data_offset = -(-(64 + len(before)) // 64) * 64
    total = data_offset + size + 16

    flags = ALIGNED | CHECKSUMS
    places = (64, len(metadata), 0, 0, index_offset, len(shapes), data_offset, size, total)
    header = struct.pack("<4sHHI7IQQ", b"EMBD", 1, 0, flags, *places)
    head = (header + struct.pack("<II", zlib.crc32(header), 0) + before).ljust(data_offset, b"\0")
    zeros = bytes(size)
    footer = struct.pack("<II4sI", zlib.crc32(zeros), zlib.crc32(zeros, zlib.crc32(head)), b"DBME", 0)
    with Path(path).open("wb") as file:
        file.write(head)
        file.seek(data_offset + size)
        file.write(footer)


def write_safetensors(path, shapes, dtype="float32"):
    """Write a safetensors file of the same tensors, with sparse data."""
    itemsize = np.dtype(dtype).itemsize
    header, size = {}, 0
    for name, shape in shapes.items():
        end = size + int(np.prod(shape)) * itemsize
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [size, end]}
        size = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with Path(path).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)


def write_bintensors(path, shapes, dtype="float32"):
    """Write a BinTensors file of the same tensors with the rival's own writer."""
    from bintensors.numpy import save_file

    save_file({name: np.zeros(shape, dtype) for name, shape in shapes.items()}, path)


def write_gguf(path, shapes):
    """Write a GGUF file of the same tensors, float32, with sparse data."""
    key, value = b"general.architecture", b"benchmark"
    parts, size = [struct.pack("<4sIQQQ", b"GGUF", 3, len(shapes), 1, len(key)), key], 0
    parts += [struct.pack("<IQ", 8, len(value)), value]
    for name, shape in shapes.items():
        encoded = name.encode()
        parts += [struct.pack("<Q", len(encoded)), encoded]
        parts.append(struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, size))
        size += -(-int(np.prod(shape)) * 4 // 32) * 32
    head = b"".join(parts)
    head += bytes(-len(head) % 32)
    with Path(path).open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)


def write_torch(path, shapes):
    """Write the same tensors as PyTorch does."""
    import torch

    torch.save({name: torch.zeros(shape) for name, shape in shapes.items()}, path)


def write_npz(path, shapes):
    """Write the same tensors as numpy does."""
    np.savez(path, **{name: np.zeros(shape, np.float32) for name, shape in shapes.items()})


def varint(value):
    """Return an integer as bincode writes it."""
    if value < 251:
        return bytes([value])
    if value < 1 << 16:
        return struct.pack("<BH", 251, value)
    return struct.pack("<BI", 252, value) if value < 1 << 32 else struct.pack("<BQ", 253, value)


def write_bintensors_spec(path, shapes):
    """Write a BinTensors file of the specification's layout, float32, with sparse data."""
    parts, size = [b"\0", varint(len(shapes))], 0
    for shape in shapes.values():
        end = size + 4 * int(np.prod(shape))
        parts += (b"\x0b", varint(len(shape)), *map(varint, shape), varint(size), varint(end))
        size = end
    parts.append(varint(len(shapes)))
    for index, name in enumerate(shapes):
        parts += (varint(len(name.encode())), name.encode(), varint(index))
    header = b"".join(parts)
    header += b" " * (-len(header) % 8)
    with Path(path).open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)


WRITERS = {
    "weights": write_embd,
    "safetensors": write_safetensors,
    "bt": write_bintensors,
    "spec.bt": write_bintensors_spec,
    "gguf": write_gguf,
    "pt": write_torch,
    "npz": write_npz,
}


def write_gguf_tokens(path, tokens, tensors):
    """Write a GGUF file with a tokenizer of `tokens` tokens, 40 numbers, and `tensors` tensors of 1 KiB."""
    texts = [f"token{i}".encode() for i in range(tokens)]
    merges = [f"t{i} o{i}".encode() for i in range(tokens)]

    def string(text):
        return struct.pack("<Q", len(text)) + text

    values = [string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama")]
    for key, items in ((b"tokens", texts), (b"merges", merges)):
        values.append(string(b"tokenizer.ggml." + key) + struct.pack("<IIQ", 9, 8, len(items)))
        values += map(string, items)
    values.append(string(b"tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, tokens) + bytes(4 * tokens))
    values.append(string(b"tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, tokens) + bytes(4 * tokens))
    values += (string(b"llama.key%d" % i) + struct.pack("<II", 4, i) for i in range(40))
    infos = [
        string(b"blk.%d.attn_%d.weight" % divmod(i, 10)) + struct.pack("<IQQIQ", 2, 32, 8, 0, 1024 * i)
        for i in range(tensors)
    ]
    head = b"".join((struct.pack("<4sIQQ", b"GGUF", 3, tensors, 45), *values, *infos))
    with Path(path).open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        file.truncate(len(head) + -len(head) % 32 + 1024 * tensors)


SYLLABLES = ["ba", "ne", "ko", "sti", "ur", "el", "tra", "min", "ös", "la", "ge", "ver", "un", "heit", "er", "ing"]


def words_like(count, suffix):
    """Return `count` different words of two to five syllables, a number and a suffix."""
    rng = random.Random(count)
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 5))) + f"{i:x}{suffix}" for i in range(count)]


def write_finalfusion(path, words, dims, exponent):
    """Write a finalfusion file of these words with n-grams of 3 to 6 characters in 2**exponent buckets."""
    rows = len(words) + 2**exponent
    encoded = [word.encode() for word in words]
    listed = b"".join(struct.pack("<I", len(word)) + word for word in encoded)
    vocabulary = struct.pack("<QIII", len(words), 3, 6, exponent) + listed
    head = struct.pack("<4sIIII", b"FiFu", 0, 2, 3, 2) + struct.pack("<IQ", 3, len(vocabulary)) + vocabulary
    padding = bytes(4 - (len(head) + 28) % 4)
    storage = struct.pack("<QII", rows, dims, 10) + padding
    vectors = np.random.default_rng(0).standard_normal((4096, dims), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with Path(path).open("wb") as file:
        file.write(head + struct.pack("<IQ", 2, len(storage) + 4 * rows * dims) + storage)
        file.writelines(vectors[: rows - first].tobytes() for first in range(0, rows, len(vectors)))
