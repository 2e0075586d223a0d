"""What to say of a file that is no model: what it is, where that can be told from its beginning."""

from __future__ import annotations

from weightmap.errors import UnknownFormatError

__all__ = ["hint"]

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


def hint(head: bytes, least: int) -> UnknownFormatError | None:
    """Return the error that names what begins with the bytes `head`, told by `least` bytes or more; None if unknown."""
    start = head[:32].lower().lstrip()
    found = (text for magic, text in _HINTS if len(magic) >= least and start.startswith(magic))
    # A tar archive begins with the name of its first file.
    text = next(found, None) or ("this is a tar archive: unpack it first" if head[257:262] == b"ustar" else None)
    return None if text is None else UnknownFormatError(f"no format recognises this file: {text}", offset=0)
