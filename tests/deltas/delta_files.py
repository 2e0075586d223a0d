"""Models and deltas for tests, written from the description of the layout alone; and the ground truth."""

import hashlib
import json
import shutil
import struct
import zlib
from pathlib import Path

import blake3
import numpy as np
import xxhash
import zstandard

TRUTH = Path(__file__).parent / "groundtruth"
EXPECTED = json.loads((TRUTH / "expected.json").read_text(encoding="utf-8"))
SUMS = {
    "xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
}
CODES = {"float32": "F32", "uint8": "U8", "float16": "F16", "int64": "I64"}


def lay(where, case):
    """Copies of base and source of a case of the ground truth, in a new directory."""
    source = where / "source"
    shutil.copytree(TRUTH / str(case["source"]), source)
    for entry in source.iterdir():
        if entry.is_file() and entry.name.startswith("weight_v"):  # it names the directory that it replaces
            shared = (TRUTH / str(case["source"]) / entry.read_text(encoding="utf-8").strip()).resolve()
            entry.unlink()
            shutil.copytree(shared, entry)
    base = where / "base"
    shutil.copytree(TRUTH / str(case["base"]), base)
    for path in [source, base, *source.rglob("*"), *base.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return base, source


def digests(tensors):
    return {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in tensors.items()}


def safetensors(tensors, metadata=None):
    """A file of safetensors, its tensors in the order given."""
    header = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, value in tensors.items():
        spans = [at, at + value.nbytes]
        header[name] = {"dtype": CODES[value.dtype.name], "shape": list(value.shape), "data_offsets": spans}
        at += value.nbytes
    raw = json.dumps(header, ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + b"".join(value.tobytes() for value in tensors.values())


def write_model(folder, *shards, config="{}"):
    """A checkpoint of one file, or of several with an index; beside it a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config, encoding="utf-8")
    if len(shards) == 1:
        (folder / "model.safetensors").write_bytes(safetensors(shards[0]))
        return folder
    where = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (folder / name).write_bytes(safetensors(tensors))
        where |= dict.fromkeys(tensors, name)
    total = sum(value.nbytes for tensors in shards for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def payload(old, new, encoding):
    """What a frame holds."""
    before, after = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    if encoding == "xor":
        return (before ^ after).tobytes()
    places = np.flatnonzero(before != after)
    return struct.pack("<I", len(places)) + places.astype("<u4").tobytes() + after[places].tobytes()


def frame(data, *, streamed=False, level=1, checked=False):
    """A frame of zstd; streamed ones lack the size of their content."""
    packer = zstandard.ZstdCompressor(level=level, write_checksum=checked)
    if not streamed:
        return packer.compress(data)
    stream = packer.compressobj()
    return stream.compress(data) + stream.flush()


def write_delta(
    source,
    version,
    old,
    new,
    *,
    encoding="xor",
    checksum="xxh3-128",
    base_version=None,
    files=1,
    frames=None,
    metadata=None,
    **how,
):
    """A delta between two sets of tensors, as `weight_vNNNNNN` of a source."""
    folder = source / f"weight_v{version:06}"
    folder.mkdir(parents=True)
    changed = [name for name in new if new[name].tobytes() != old[name].tobytes() or name in (frames or {})]
    where = {}
    count = min(files, len(changed))
    for number in range(count):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        held, sums = {}, {}
        for tensor in changed[number::count]:
            data = (frames or {}).get(tensor)
            if data is None:
                data = frame(payload(old[tensor].tobytes(), new[tensor].tobytes(), encoding), **how)
            held[tensor], sums[tensor] = np.frombuffer(data, np.uint8), SUMS[checksum](new[tensor].tobytes())
        (folder / name).write_bytes(safetensors(held, sums))
        where |= dict.fromkeys(held, name)
    said = {
        "version": f"{version:06}",
        "base_version": f"{version - 1 if base_version is None else base_version:06}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
        **(metadata or {}),
    }
    index = {"metadata": said, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def stepped(tensors, seed, share=0.02):
    """The same tensors after a step of training: a share of the elements differs in a low bit."""
    draw = np.random.default_rng(seed)
    found = {}
    for name, value in tensors.items():
        octets = np.frombuffer(value.tobytes(), np.uint8).copy()
        places = np.flatnonzero(draw.random(value.size) < share) * value.itemsize
        octets[places] ^= 1
        found[name] = octets.view(value.dtype).reshape(value.shape)
    return found


def model(seed=0):
    """Tensors of some types, one larger than a block, one of no elements."""
    draw = np.random.default_rng(seed)
    return {
        "embed": draw.standard_normal((450, 320)).astype(np.float32),
        "layer.0.w": draw.standard_normal((64, 32)).astype(np.float16),
        "layer.1.w": draw.standard_normal((64, 32)).astype(np.float16),
        "steps": np.arange(5),
        "empty": np.empty((0, 3), np.float32),
    }
