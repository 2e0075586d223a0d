"""Names the kind of a file that is not a model, by its first bytes, for error messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weightmap.core.formats._base import CONSOLIDATE, HEAD
from weightmap.errors import UnknownFormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

_PICKLE = "this is a Python pickle, and not one of torch.save, or a damaged one: pickles are programs, and not run here"
# Beginnings of files often mistaken for models, in lower case, and the message for each.
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
    (b"pk\x03\x04", "this is a ZIP archive, and neither a PyTorch checkpoint nor an .npz archive of numpy"),
    (b"\x80\x02", _PICKLE),
    (b"\x80\x03", _PICKLE),
    (b"\x80\x04\x95", _PICKLE),
    (b"\x80\x05\x95", _PICKLE),
    (b"\x89hdf", "this is HDF5, perhaps a Keras model: convert it to safetensors first"),
    (b"\x89png", "this is a PNG image"),
    (b"\xff\xd8\xff", "this is a JPEG image"),
    (b"%pdf", "this is a PDF document"),
    (b'{"', "this is JSON text: a configuration, or an error that a server sent in place of a file"),
    (b"{\n", "this is JSON text: a configuration, or an error that a server sent in place of a file"),
    (b"{\r\n", "this is JSON text: a configuration, or an error that a server sent in place of a file"),
    (b"dmbe", "this looks like EMBD with swapped bytes"),
    (b"2nnc", "this looks like CNN v2 with swapped bytes"),
)


# How to join the parts that the ranks of torch.distributed.checkpoint save.
DISTCP = (
    "to make one checkpoint of their folder, which weightmap opens, run"
    " python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt"
)
# Names that HuggingFaceStorageWriter gives to the files of a rank.
_RANK = re.compile(r"shard-\d{5,}-model-\d{5,}-of-\d{5,}\.safetensors")
_METADATA = b"torch.distributed.checkpoint.metadata"


# Suffixes that weightmap does not write, and the program that does.
FOREIGN = {
    ".npz": ".npz is not written (numpy.savez(DST, **weightmap.load(SRC)) does that)",
    ".npy": ".npy holds one array, which weightmap export writes",
    ".pt": "PyTorch checkpoints are not written (torch.save does that)",
    ".pth": "PyTorch checkpoints are not written (torch.save does that)",
    ".ckpt": "PyTorch checkpoints are not written (torch.save does that)",
    ".onnx": "ONNX is not written",
    ".h5": "HDF5 is not written",
}
# Suffixes of word embeddings in text, and the names of these files for `convert`.
WORDS = {".txt": "text", ".vec": "textdims"}


def hint(head: bytes, min_length: int) -> UnknownFormatError | None:
    """Return the error that names the kind of a file, known by `min_length` bytes or more; None for an unknown one."""
    start = head[:32].lower().lstrip()
    matches = (text for magic, text in _HINTS if len(magic) >= min_length and start.startswith(magic))
    text = _archive(head) or next(matches, None)
    if text is _PICKLE and _METADATA in head[:64]:
        text = f"this says which tensors the .distcp files beside it hold parts of: {DISTCP}"
    return None if text is None else UnknownFormatError(text, offset=0)


def of_ranks(names: Iterable[str], path: str) -> UnsupportedError | None:
    """Return the error for a directory where each file holds one rank's parts of tensors; None for other directories.

    `names` are the files that may be models, or all files if none may.
    """
    suffixes = {".distcp" if name.endswith(".distcp") else _RANK.fullmatch(name) and ".safetensors" for name in names}
    if ".distcp" in suffixes:
        what = f"the .distcp files of this directory hold parts of tensors, as ranks saved them: {DISTCP}"
    elif suffixes == {".safetensors"}:
        what = f"the files of this directory hold parts of tensors, as ranks saved them: {CONSOLIDATE}"
    else:
        return None
    return UnsupportedError(what, path=path)


def damaged(head: bytes, size: int) -> UnknownFormatError | None:
    """Return the error for a header of safetensors with a wrong length, or a wrong byte where its JSON begins.

    None for another file.
    """
    length, available = int.from_bytes(head[:8], "little"), size - 8
    fits, begin = 2 <= length <= available, head[8:10]
    if begin == b'{"' and not fits:
        what = "this looks like a safetensors header whose length is damaged: it"
        return UnknownFormatError(what, offset=0, actual=length, expected=f"2 to {available}")
    if not fits or not (begin.startswith(b"{") or begin.endswith(b'"')):
        return None
    what = "this looks like a safetensors header whose JSON is damaged: its beginning"
    return UnknownFormatError(what, offset=8, actual=repr(head[8:24]), expected="""'{"'""")


def _archive(head: bytes) -> str | None:
    """Return the message for an archive by the name of its first file, if the file reaches that far."""
    if head.startswith(b"PK\3\4") and (len(head) < 30 or len(head) < 30 + int.from_bytes(head[26:28], "little") < HEAD):
        return "this is a ZIP archive that ends within the header of its first file: was the download complete?"
    if head[257:262] == b"ustar":
        return "this is a tar archive: unpack it first"
    return None
