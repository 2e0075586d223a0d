"""The formats: discovered by looking into this folder, recognised by content.

Every module here (or folder, where a format takes several) that does not begin with an underscore defines one record
called ``FORMAT`` (see `_base`). To add a format, add a file; nothing else is to be told.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from weightmap.errors import EncodeError, TruncatedError, UnknownFormatError
from weightmap.formats._base import HEAD, Content, Format, Options, Parts, Payload, Plan, Request, Verification, refuse

if TYPE_CHECKING:
    from weightmap.source import Source

__all__ = [
    "FORMATS",
    "HEAD",
    "Content",
    "Format",
    "Options",
    "Parts",
    "Payload",
    "Plan",
    "Request",
    "Verification",
    "by_name",
    "by_suffix",
    "formats",
    "identify",
    "mistaken",
    "refuse",
]


def _module_names() -> list[str]:
    found: set[str] = set()
    for folder in __path__:
        try:
            entries = os.listdir(folder)
        except OSError:  # inside a zip archive
            import pkgutil  # noqa: PLC0415

            return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
        found.update(
            entry.removesuffix(".py")
            for entry in entries
            if entry[0] not in "_." and (entry.endswith(".py") or "." not in entry)
        )
    return sorted(found)


# Imported with the package: opening a file must import nothing.
FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (importlib.import_module(f"{__name__}.{name}") for name in _module_names())
}


def formats() -> tuple[str, ...]:
    """Return the names of the formats that can be read.

    Examples
    --------
    >>> "embd" in formats()
    True
    """
    return tuple(FORMATS)


def by_name(name: str) -> Format:
    """Return the format called `name`. Raises ValueError when there is none."""
    try:
        return FORMATS[name]
    except KeyError:
        msg = f"format is {name!r}, expected one of {', '.join(FORMATS)}"
        raise ValueError(msg) from None


def by_suffix(path: str) -> Format:
    """Return the format that is written to files with this suffix. Raises `EncodeError` when there is none."""
    for format_ in FORMATS.values():
        if format_.plan is not None and path.lower().endswith(format_.suffixes):
            return format_
    known = ", ".join(suffix for format_ in FORMATS.values() if format_.plan for suffix in format_.suffixes)
    msg = "the suffix does not tell the format; give format=, or use one of"
    raise EncodeError(f"{msg} {known}", path=path)


_BY_MAGIC = {format_.magic[:4]: format_ for format_ in FORMATS.values() if format_.magic}

# What is often found where a model was expected, and what to say then.
_HINTS = (
    (b"version https://git-lfs", "this is a Git LFS pointer: the file itself was never fetched (git lfs pull)"),
    (b"<!doctype", "this is an HTML page: a download went wrong"),
    (b"<html", "this is an HTML page: a download went wrong"),
    (b"<?xml", "this is an XML document: a download went wrong"),
    (b"\x1f\x8b\x08", "this is gzip: decompress it first"),
    (b"\x28\xb5\x2f\xfd", "this is zstd: decompress it first"),
    (b"bzh", "this is bzip2: decompress it first"),
    (b"\xfd7zxz", "this is xz: decompress it first"),
    (b"7z\xbc\xaf", "this is a 7-Zip archive: unpack it first"),
    (b"pk\x05\x06", "this is an empty ZIP archive"),
    (b"pk\x03\x04", "this is a ZIP archive, perhaps a PyTorch checkpoint: convert it to safetensors first"),
    (b"\x80\x02", "this is a Python pickle, perhaps a PyTorch checkpoint: convert it to safetensors first"),
    (b"\x80\x03", "this is a Python pickle: convert it to safetensors first"),
    (b"\x80\x04\x95", "this is a Python pickle: convert it to safetensors first"),
    (b"\x80\x05\x95", "this is a Python pickle: convert it to safetensors first"),
    (b"\x93numpy", "this is a .npy file: numpy.load reads it"),
    (b"\x89hdf", "this is HDF5, perhaps a Keras model: convert it to safetensors first"),
    (b"\x89png", "this is a PNG image"),
    (b"\xff\xd8\xff", "this is a JPEG image"),
    (b"%pdf", "this is a PDF document"),
    (b'{"', "this is JSON text: a configuration, or what a server said in place of a file"),
    (b"{\n", "this is JSON text: a configuration, or what a server said in place of a file"),
    (b"{\r\n", "this is JSON text: a configuration, or what a server said in place of a file"),
    (b"dmbe", "this looks like EMBD with swapped bytes"),
    (b"2nnc", "this looks like CNN v2 with swapped bytes"),
    (b"gguf", "this is GGUF"),
)


def _hint(head: bytes, least: int) -> UnknownFormatError | None:
    start = head[:32].lower().lstrip()
    found = (text for magic, text in _HINTS if len(magic) >= least and start.startswith(magic))
    # A tar archive begins with the name of its first file.
    hint = next(found, None) or ("this is a tar archive: unpack it first" if head[257:262] == b"ustar" else None)
    return None if hint is None else UnknownFormatError(f"no format recognises this file: {hint}", offset=0)


def mistaken(format_: Format, head: bytes) -> UnknownFormatError | None:
    """Return what to say instead, when a file that `format_` recognised and refused is known to be something else.

    The length of a header, with which formats without magic bytes begin, may look like those of another kind of file.
    """
    return None if format_.magic else _hint(head, 3)


def identify(source: Source, head: bytes) -> Format:
    """Return the one format that recognises the file.

    Raises
    ------
    TruncatedError
        When the file is empty.
    UnknownFormatError
        When no format recognises it, or more than one does.
    """
    # A file that begins with one format's magic bytes needs no other to be asked: those without magic bytes begin with
    # a length of at most 100,000,000, and four printable characters are a larger number than that.
    format_ = _BY_MAGIC.get(head[:4])
    if format_ is not None and format_.sniff(head, source.size):
        return format_
    claims = [format_ for format_ in FORMATS.values() if format_.sniff(head, source.size)]
    if len(claims) == 1:
        return claims[0]
    if not head:
        msg = "the file is empty"
        raise TruncatedError(msg, offset=0)
    if claims:
        msg = f"more than one format recognises this file: {', '.join(claim.name for claim in claims)}; give format="
        raise UnknownFormatError(msg)
    hint = _hint(head, 2)
    if hint is not None:
        raise hint
    found = "nothing but zero bytes" if not any(head) else repr(head[:16])
    what = "no format recognises this file: its beginning"
    raise UnknownFormatError(what, offset=0, actual=found, expected=f"that of one of {', '.join(FORMATS)}")
