r"""Lists of digests: mappings, the output of sha256sum, Git LFS pointers, metadata of downloads; and `write_sums`.

The output of sha256sum is specified by the manual of GNU coreutils: a line has 64 hexadecimal digits, a space, a space
or an asterisk, and a name. A backslash in front of a line says that ``\\``, ``\n`` and ``\r`` in the name stand for a
backslash, a line feed and a carriage return. ``SHA256 (NAME) = DIGEST`` is the same, as BSD writes it. Lines that begin
with ``#`` are comments. Git LFS pointers: its docs/spec.md. Hubs call a small file by git's object hash, the SHA-1 of
``blob``, its size and its content.

``trust="recorded"`` reads ``SHA256SUMS`` in the model's folder; ``NAME.sha256`` and Git LFS pointers, called ``NAME``
and any suffix, in the file's folder; the name of the blob to which a hub cache links a file
(``models--o--n/snapshots/REVISION/NAME`` to ``models--o--n/blobs/DIGEST``); and the ETag that huggingface_hub keeps for
a file downloaded to a folder (the second line of ``FOLDER/.cache/huggingface/download/NAME.metadata``).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import quoted
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.open_source import blob_of, is_missing
from weightmap.core.bytes.sink import WritePlan
from weightmap.core.model.single import INDEX_SUFFIX
from weightmap.core.native.access import refuse_loop, status_of
from weightmap.errors import Remedy, TrustError

if TYPE_CHECKING:
    from collections.abc import Mapping

SHA256 = "sha256:"
# The name of the only file in a list that does not name it.
ONLY = ""
# Most bytes of a list: a million files.
MAX_NBYTES = 1 << 28
SUMS = "SHA256SUMS"
SUFFIX = ".sha256"
_DOWNLOADS = os.path.join(".cache", "huggingface", "download")
# How many folders, from the model's own upwards, may hold the notes of a download.
_ABOVE = 4
_SMALL = 1 << 16
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_LARGEST_POINTER = 1024
_LINE = re.compile(r"([0-9a-fA-F]{64})(?: [ *]|\t)(.+)", re.DOTALL)
_BSD = re.compile(r"SHA256 \((.+)\) = ([0-9a-fA-F]{64})", re.DOTALL)
_BARE = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED = {"\\": "\\", "n": "\n", "r": "\r"}
_OF_LFS = re.compile(rb"(?:[a-z0-9.-]+ [^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,18})\n")


class Digest(NamedTuple):
    """The expected digest of a file.

    Attributes
    ----------
    algorithm : str
        "sha256", "git" (git's object hash of a file, by SHA-1) or "blake3".
    value : str
        In hexadecimal digits, in lower case.
    origin : str
        The source of the digest, for messages.
    """

    algorithm: str
    value: str
    origin: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"


Digests = dict[str, tuple[Digest, ...]]
_LENGTHS = {64: "sha256", 40: "git"}


def of_etag(text: str, origin: str) -> Digest | None:
    """Return the digest in a blob's name or an ETag; None for another kind of tag."""
    etag = text.strip().removeprefix("W/").strip('"').lower()
    algorithm = _LENGTHS.get(len(etag))
    return None if algorithm is None or not re.fullmatch("[0-9a-f]+", etag) else Digest(algorithm, etag, origin)


def plain(name: str, origin: str) -> str:
    """Return a name relative to the folder of a model. Raises `TrustError` if it leads out of the folder."""
    path = name.replace("\\", "/") if os.name == "nt" else name
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/") or ".." in parts or "\0" in path or not parts or (os.name == "nt" and ":" in path):
        raise TrustError("a name in a list of digests", path=origin, actual=quoted(name), expected="one in the folder")
    return "/".join(parts)


def add(digests: Digests, name: str, digest: Digest) -> None:
    """Add a digest of a file. Raises `TrustError` if the file has a different digest of the same kind."""
    for digest_ in digests.get(name, ()):
        if digest_.algorithm == digest.algorithm:
            if digest_.value == digest.value:
                return
            what = f"two digests of {quoted(name)} contradict each other: the one in {digest.origin}"
            raise TrustError(what, path=digest_.origin, actual=digest, expected=f"{digest_}, as in {digest_.origin}")
    digests[name] = (*digests.get(name, ()), digest)


def of_mapping(mapping: Mapping[Any, Any]) -> Digests:
    """Return the digests of a mapping such as ``{"model.safetensors": "sha256:..."}``."""
    digests: Digests = {}
    for name, value in mapping.items():
        if not isinstance(name, (str, os.PathLike)) or not isinstance(value, str):
            what = f"trust has a {type(name).__name__} with a {type(value).__name__}"
            raise TypeError(f"{what}, expected names of files with texts such as 'sha256:...'")
        add(digests, plain(os.fsdecode(name), "trust"), of_text(value, f"the digest of {quoted(name)} in trust"))
    return digests


def of_text(text: str, what: str) -> Digest:
    """Return the SHA-256 in ``sha256:`` and digits, or in bare digits. Raises `TrustError` for another text."""
    digits = text.removeprefix(SHA256)
    if not re.fullmatch("[0-9a-fA-F]{64}", digits):
        raise TrustError(what, path="trust", actual=quoted(text), expected="sha256: and 64 hexadecimal digits")
    return Digest("sha256", digits.lower(), "trust")


def of_sums(raw: bytes, origin: str) -> Digests:
    """Return the digests in the output of sha256sum. Raises `TrustError` for a file that it would not write."""
    digests: Digests = {}
    for number, line in enumerate(os.fsdecode(raw).split("\n"), 1):
        text = line.removesuffix("\r")
        if not text or text.startswith("#"):
            continue
        escaped = text.startswith("\\")
        text = text.removeprefix("\\")
        if (match := _LINE.fullmatch(text)) is not None:
            digits, name = match.groups()
        elif (match := _BSD.fullmatch(text)) is not None:
            name, digits = match.groups()
        else:
            of_bundle = Remedy("{} checks a signature", "key", "PEM", python="weightmap.trust.signature(path, key=...)")
            remedy = of_bundle if line.startswith("{") else None
            raise TrustError(f"line {number} is not a line of sha256sum: {quoted(line)}", path=origin, remedy=remedy)
        if escaped:
            if any(mark not in _ESCAPED for mark in _ESCAPE.findall(name)):
                raise TrustError(f"line {number} has an escape that sha256sum does not write", path=origin)
            name = _ESCAPE.sub(lambda mark: _ESCAPED[mark[1]], name)
        add(digests, plain(name, origin), Digest("sha256", digits.lower(), origin))
    return digests


def of_pointer(raw: bytes, origin: str) -> Digest | None:
    """Return the digest in a Git LFS pointer; None for anything else."""
    if len(raw) > _LARGEST_POINTER or not raw.startswith(_POINTER):
        return None
    match = _OF_LFS.fullmatch(raw[len(_POINTER) :])
    return None if match is None else Digest("sha256", match[1].decode(), origin)


def of_file(raw: bytes, origin: str) -> Digests:
    """Return the digests in a file, by name; a digest without a name has the name `ONLY`."""
    if (pointer := of_pointer(raw, origin)) is not None:
        return {ONLY: (pointer,)}
    if (bare := _BARE.fullmatch(raw)) is not None:
        return {ONLY: (Digest("sha256", bare[1].decode().lower(), origin),)}
    digests = of_sums(raw, origin)
    if not digests:
        raise TrustError("there is no digest in this list", path=origin)
    return digests


# -------------------------------------------------------------------------------------- what the folder of a model says


def is_list(path: str) -> bool:
    """Whether a file holds digests of others, perhaps signed, so that it needs no digest itself."""
    if os.path.basename(path) == SUMS or path.endswith((SUFFIX, ".sig")):
        return True
    raw = read_list(path, _SMALL) if os.path.isfile(path) and os.stat(path).st_size <= _SMALL else None
    return raw is not None and of_pointer(raw, path) is not None


def read_list(path: str, max_nbytes: int = MAX_NBYTES) -> bytes | None:
    """Return the content of a file of digests; None if it is missing. Raises `TrustError` if it is too large."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TrustError("a list of digests must be a regular file", path=path)
            raw = file.read(max_nbytes + 1)
    except OSError as error:
        if is_missing(error):
            return None
        refuse_loop(error, path)
        raise
    if len(raw) > max_nbytes:
        raise TrustError("a list of digests is too large", path=path, expected=f"at most {max_nbytes} bytes")
    return raw


def listed_in(folder: str) -> Digests:
    """Return the digests in the ``SHA256SUMS`` of a folder."""
    path = os.path.join(folder, SUMS)
    raw = read_list(path)
    return {} if raw is None else of_sums(raw, path)


def recorded(folder: str, name: str) -> Digests:
    """Return the recorded digests of one file of a model, apart from ``SHA256SUMS``."""
    digests: Digests = {}
    path = os.path.join(folder, *name.split("/"))
    for digest in (_blob(path), _download(folder, name), *_neighbours(path)):
        if digest is not None:
            add(digests, name, digest)
    return digests


def _neighbours(path: str) -> list[Digest]:
    """Return the digests in ``NAME.sha256`` and in pointers beside a file."""
    recorded_: list[Digest] = []
    at, filename = os.path.split(path)
    raw = read_list(path + SUFFIX)
    if raw is not None:
        origin = path + SUFFIX
        lists = of_file(raw, origin)
        if lists.keys() - {ONLY, filename}:
            raise TrustError("this list names another file than the one that it lies beside", path=origin)
        recorded_ += [digest for digests in lists.values() for digest in digests]
    for name in sorted(os.listdir(at)):
        if name.startswith(f"{filename}.") and not name.endswith((SUFFIX, ".metadata")):
            other = os.path.join(at, name)
            status = status_of(other)
            if stat.S_ISREG(status.st_mode) and status.st_size <= _SMALL:
                pointer = of_pointer(read_list(other, _SMALL) or b"", other)
                recorded_ += [] if pointer is None else [pointer]
    return recorded_


def _blob(path: str) -> Digest | None:
    """Return the digest that is a file's name in a hub cache."""
    blob = blob_of(path)
    return None if blob is None else of_etag(os.path.basename(blob), blob)


def _download(folder: str, name: str) -> Digest | None:
    """Return the digest that huggingface_hub noted for a file downloaded to a folder."""
    for _ in range(_ABOVE):
        path = os.path.join(folder, _DOWNLOADS, *name.split("/")) + ".metadata"
        raw = read_list(path, _SMALL)
        if raw is not None:
            lines = os.fsdecode(raw).split("\n")
            if len(lines) < 2:
                raise TrustError("the metadata of a download has no ETag", path=path)
            return of_etag(lines[1], path)
        above, filename = os.path.split(folder)
        if not filename:
            return None
        folder, name = above, f"{filename}/{name}"
    return None


# -------------------------------------------------------------------------------------------------------------- writing


def write_sums(path: str) -> None:
    """Write the digests of a model: of all files in a directory, of a file, or of an index and its shards.

    The list lies in the folder of the model. An existing list keeps its lines about other files. Files whose names
    begin with a dot, and other lists, are left out.
    """
    absolute = os.path.abspath(path)
    folder, filename = (absolute, "") if os.path.isdir(absolute) else os.path.split(absolute)
    if not filename:
        names = [os.path.relpath(at, folder) for at in _files(folder)]
    elif os.path.isfile(absolute) and not filename.endswith(INDEX_SUFFIX):
        names = [filename]
    else:
        index = filename if filename.endswith(INDEX_SUFFIX) else f"{filename}{INDEX_SUFFIX}"
        listing = strict_json.loads(Path(folder, index).read_bytes(), index)
        names = sorted({index, *map(str, listing["weight_map"].values())})
    target = os.path.join(folder, SUMS)
    try:
        digests = listed_beside(path)
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                hexdigest = hashlib.file_digest(file, "sha256").hexdigest()
            key = name.replace(os.sep, "/")
            digests[key] = (Digest("sha256", hexdigest, target),)
        content = os.fsencode("".join(_line(name, digest.value) for name, (digest,) in sorted(digests.items())))
        write_plan(target, WritePlan(len(content), lambda sink: sink.write(content)))
    except BaseException as error:
        error.add_note(f"{path} is in place, but {SUMS} does not describe it")
        raise


def listed_beside(path: str) -> Digests:
    """Return the digests that `write_sums` keeps from an existing list. Raises as `read_list` does."""
    absolute = os.path.abspath(path)
    folder = absolute if os.path.isdir(absolute) else os.path.dirname(absolute)
    target = os.path.join(folder, SUMS)
    if os.path.islink(target):
        raise TrustError("this is a link, and would be written through: remove it", path=target)
    return {} if folder == absolute else listed_in(folder)


def _line(name: str, digest: str) -> str:
    escaped = name.translate(_ESCAPES)
    return f"{'' if escaped == name else chr(92)}{digest}  {escaped}\n"


def _files(folder: str) -> list[str]:
    regular = []
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [os.path.join(at, name) for name in names if not name.startswith(".") and name != SUMS]
        regular += [path for path in paths if stat.S_ISREG(status_of(path).st_mode)]
    return regular
