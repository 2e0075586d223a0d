"""Attacks that are the same for every format, and files that are of no format at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import amb, bintensors, cnn_v2, embd, embd_simple, finalfusion, safetensors
from .case import Case, put

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = (amb, bintensors, cnn_v2, embd, embd_simple, finalfusion, safetensors)
SOUNDS = {kind: data for module in MODULES for kind, data in module.SOUND.items()}
# The end of an empty ZIP archive: with it, a file is a ZIP archive to those who read them from their end.
ZIP = b"PK\5\6" + bytes(18)
PDF = b"\n%%EOF\n"

# What is often found where a model was expected.
OTHERS = {
    "zeros": bytes(4096),
    "text": b"hello, world\n" * 20,
    "html": b"<!DOCTYPE html><html><body>not found</body></html>",
    "html without doctype": b"<html><body>not found</body></html>",
    "xml": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    "LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "gzip": b"\x1f\x8b\x08" + bytes(60),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(60),
    "zip": b"PK\3\4" + bytes(60),
    "pickle": b"\x80\x02}q\0." + bytes(60),
    "pickle of protocol 4": b"\x80\x04\x95" + bytes(60),
    "npy": b"\x93NUMPY\1\0v\0" + bytes(60),
    "pdf": b"%PDF-1.7\n" + bytes(60),
    "gguf": b"GGUF\3\0\0\0" + bytes(60),
    "EMBD with swapped bytes": b"DBME" + bytes(100),
    "EMBD with swapped halves": b"DMBE" + bytes(100),
    "CNN v2 with swapped bytes": b"2NNC" + bytes(100),
    "all ones": b"\xff" * 64,
}


def cases() -> Iterator[Case]:
    """Every attack."""
    for name, data in OTHERS.items():
        yield Case("C3", "any", name, data, "UnknownFormatError", None, 0)
    for kind in ("embd", "amb", "cnn_v2-v2", "finalfusion"):
        for at in range(4):
            data = put(SOUNDS[kind], at, bytes([SOUNDS[kind][at] ^ 0x20]))  # another case of the letter
            row = "E1" if kind == "embd" else "C3"
            yield Case(row, "any", f"{kind} with letter {at} of another case", data, "UnknownFormatError", None, 0)
    yield Case("C3", "any", "one zero byte", b"\0", "UnknownFormatError", None, 0)
    yield Case("C20", "any", "nothing at all", b"", "TruncatedError", None, 0)
    for kind, data in SOUNDS.items():
        family = kind.partition("-")[0]
        for name, tail in (
            ("a NUL behind the end", b"\0"),
            ("a newline behind the end", b"\n"),
            ("a ZIP archive behind the end", ZIP),
            ("the end of a PDF behind the end", PDF),
            ("64 zeros behind the end", bytes(64)),
            ("a second file behind the end", data),
        ):
            field, offset = TRAILING.get(kind) or TRAILING.get(family) or ("size", len(data))
            if offset < 0:
                offset += 1 + len(data)
            odd = None if kind == "embd" else "trailing"
            error = "LayoutError"
            if family == "finalfusion" and tail == ZIP:  # as it reads, that is an unknown chunk
                error, field = "UnsupportedError", "chunk_id"
            yield Case("C2", kind, name, data + tail, error, field, offset, odd=odd)


# The field that tells of bytes behind the end, and where; -1 is the end.
TRAILING = {
    "embd": ("total_file_size", 48),
    "embd-simple": ("size", -1),
    "bintensors": ("data_offsets", -1),
    "safetensors": ("data_offsets", -1),
}
