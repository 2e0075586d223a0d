"""Writes what the libFuzzer targets begin with: indexes of valid and malformed files, behind each target's parameters.

``python fuzz/c/seeds.py FOLDER`` from the root of the repository makes a folder for each target in FOLDER.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT)]

from tests import builders  # noqa: E402 - found by the line above
from tests.attacks import cases, sound  # noqa: E402
from tests.attacks.case import BAD_JSON, BAD_UTF8  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

# Larger ones make the fuzzer slow and teach it nothing.
MAX_BYTES = 4096


def files() -> Iterator[bytes]:
    """Yield every file that there is: of the tests' data, of their builders, and every attack."""
    for path in sorted((ROOT / "tests/data").rglob("*")):
        if path.is_file() and path.suffix not in {".json", ".npz", ".tsv", ".txt"}:
            yield path.read_bytes()
    yield from (example.data for example in builders.examples())
    yield from sound().values()
    yield from (case.data for case in cases() if isinstance(case.data, bytes))


def of_archive(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the central directory of an archive, behind what its end record says of it, and a pickle if it has one."""
    end = data.rindex(b"PK\5\6")
    count, _, begin = struct.unpack_from("<H2I", data.ljust(len(data) + 22), end + 10)
    if begin < 65536:
        yield "zip", struct.pack("<HB", begin, count & 0xFF) + data[:end]
    program = data.find(b"\x80", 30)
    if program >= 0:
        yield "pickle", data[program : program + 2048]


def of_model(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield an ONNX model, and its end as the numbers of a tensor, in every field and of every size."""
    yield "onnx", bytes((1, 99, 9, 0, 0)) + data
    for number in range(25):
        yield "onnx", bytes((0, 0, 0, number, 3)) + data[-40:]


def seeds(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the inputs that this file has for targets: their name and the input."""
    if data[:4] == b"EMBD" and len(data) >= 64:
        metadata, size, _, _, index, count, start = struct.unpack_from("<7I", data, 12)
        data_size = struct.unpack_from("<Q", data, 40)[0] & 0xFFFFFFFF
        yield "records", bytes((count & 0xFF, 6, 0)) + struct.pack("<I", data_size) + data[index:start]
        section = data[metadata : metadata + size]
        yield "pairs", section[:2] + section[8:]
        yield "strings", b"\xff\0\1" + data[struct.unpack_from("<I", data, 20)[0] + 12 :]
    elif data[:3] == b"AMB" and len(data) >= 28:
        meta, config, tokenizer = struct.unpack_from("<3I", data, 8)
        for flags in (4, 5, 7):
            yield "amb", bytes((flags, 0, 8, 0, 4, 4, 40)) + data[28 + meta + config + tokenizer :]
    elif data[:4] == b"GGUF" and len(data) >= 24:
        for big in (0, 1):
            tensors, values = struct.unpack_from("<>"[big] + "QQ", data, 8)
            yield "gguf", bytes((2 * big, values & 0xFF, tensors & 0xFF)) + data[24:]
            tensors, values = struct.unpack_from("<>"[big] + "II", data, 8)
            yield "gguf", bytes((1 + 2 * big, values & 0xFF, tensors & 0xFF)) + data[16:]
    elif data[:4] == b"PK\3\4" and b"PK\5\6" in data:
        yield from of_archive(data)
    elif data[:1] == b"\x80":
        yield "pickle", data
    elif data[:4] == b"CNN2":
        yield "cnn", b"\0" + data[20:]
    elif data[:4] == b"FiFu":
        for count in (1, 4, 20):
            for start in (40, 44, 52, 60):
                yield "strings", bytes((count, 0, 0)) + data[start:]
    elif len(data) > 8 and struct.unpack_from("<Q", data)[0] <= len(data) - 8:
        header = data[8 : 8 + struct.unpack_from("<Q", data)[0]]
        if header[:1] == b"{":
            yield "safetensors", b"\0" + header
            yield "json", header
        else:
            yield from (("bintensors", bytes((layouts,)) + header) for layouts in (1, 2, 3))


def all_seeds() -> Iterator[tuple[str, bytes]]:
    """Yield every input, with the name of its target."""
    for data in files():
        yield from of_model(data) if data[:1] == b"\x08" and any(data[4:8]) else seeds(data)
    yield from (("json", text) for text in BAD_JSON.values())
    yield from (("utf8", text) for text in (*BAD_UTF8.values(), "ü€😀".encode() * 9, b"a" * 70))
    yield "json", b'"a\\u00e9\\ud83d\\ude00\\n" '
    yield "json", b"18446744073709551615 "
    for choice in range(4):  # three blocks of eight elements, one of each kind
        yield "adaptive", struct.pack("<BHHB", 1, 24, 0, choice) + b"\x24" + bytes(range(8 + 4 + 5 + 16))


def main() -> None:
    """Write the inputs into the folder that is named on the command line."""
    folder, count = Path(sys.argv[1]), 0
    for target, data in all_seeds():
        if len(data) <= MAX_BYTES:
            (folder / target).mkdir(parents=True, exist_ok=True)
            (folder / target / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            count += 1
    print(f"{count} seeds in {folder}")


if __name__ == "__main__":
    main()
