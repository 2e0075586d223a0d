"""Attacks on every format alike, and files of no format at all."""

import struct

from tests import builders

from . import sound
from .case import Case, put

# The end of an empty ZIP archive: a reader that begins at the end takes any file with it for a ZIP archive.
ZIP = b"PK\5\6" + bytes(18)
PDF = b"\n%%EOF\n"

# Files that are often found where a model was expected.
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
    "pdf": b"%PDF-1.7\n" + bytes(60),
    "EMBD with swapped bytes": b"DBME" + bytes(100),
    "EMBD with swapped halves": b"DMBE" + bytes(100),
    "CNN v2 with swapped bytes": b"2NNC" + bytes(100),
    "all ones": b"\xff" * 64,
    "blanks": b" " * 70_000,
    "line ends": b"\n" * 70_000,
}


def cases():
    for name, data in OTHERS.items():
        yield Case("C3", "any", name, data, "UnknownFormatError", None, 0)
    for builder in builders.known().values():
        data = next(iter(builder.damaging[0].SOUND.values()))
        for at in range(len(builder.magic[:4])):
            wrong = put(data, at, bytes([data[at] ^ 0x20]))  # another case of the letter
            name = f"{builder.format} with letter {at} of another case"
            yield Case("C3", "any", name, wrong, "UnknownFormatError", None, 0)
    # The length of a header may read like two letters of another format.
    for start in (b'{"', b"{\n", b"\x80\2"):
        data = start.ljust(28, b"\0")
        yield Case("C1", "any", f"{start.hex()} and zeros", data, "TruncatedError", "n", len(data))
    for kind, header in (("safetensors", b"{}  "), ("bintensors-current", b"\0\0\0 ")):
        for size, field, says in (
            (1, None, "within the length of its header"),
            (7, None, "within the length of its header"),
            (8, "n", "within its header (was the download complete?), expected at least 12 bytes"),
            (11, "n", "within its header (was the download complete?), expected at least 12 bytes"),
        ):
            data, name = (struct.pack("<Q", 4) + header)[:size], f"{size} bytes of a header"
            yield Case("C1", kind, name, data, "TruncatedError", field, size, says=says)
    yield Case("C3", "any", "one zero byte", b"\0", "UnknownFormatError", None, 0)
    yield Case("C20", "any", "nothing at all", b"", "TruncatedError", None, 0)
    for kind, data in sound().items():
        builder = builders.format_of(kind)
        assert builder is not None
        for name, tail in (
            ("a NUL behind the end", b"\0"),
            ("a newline behind the end", b"\n"),
            ("a ZIP archive behind the end", ZIP),
            ("the end of a PDF behind the end", PDF),
            ("64 zeros behind the end", bytes(64)),
            ("a second file behind the end", data),
        ):
            error, field, offset, odd = builder.trailing(kind, data, tail)
            yield Case("C2", kind, name, data + tail, error, field, offset, odd=odd)
