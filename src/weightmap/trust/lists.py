r"""Lists of digests: mappings, the output of sha256sum, Git LFS pointers, metadata of downloads.

The output of sha256sum is specified by the manual of GNU coreutils: a line has 64 hexadecimal digits, a space, a space
or an asterisk, and a name. A backslash in front of a line says that ``\\``, ``\n`` and ``\r`` in the name stand for a
backslash, a line feed and a carriage return. ``SHA256 (NAME) = DIGEST`` is the same, as BSD writes it. Lines that begin
with ``#`` are comments. Git LFS pointers: its docs/spec.md. Hubs call a small file by git's object hash, the SHA-1 of
``blob``, its size and its content.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.errors import TrustError, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

SHA256 = "sha256:"
# The name of the only file in a list that does not name it.
ONLY = ""
# Most bytes of a list: a million files.
MOST = 1 << 28
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_LARGEST_POINTER = 1024
_LINE = re.compile(r"([0-9a-fA-F]{64})(?: [ *]|\t)(.+)", re.DOTALL)
_BSD = re.compile(r"SHA256 \((.+)\) = ([0-9a-fA-F]{64})", re.DOTALL)
_BARE = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED = {"\\": "\\", "n": "\n", "r": "\r"}
_OF_LFS = re.compile(rb"(?:[a-z0-9.-]+ [^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,18})\n")


class Digest(NamedTuple):
    """What a file should be.

    Attributes
    ----------
    algorithm : str
        "sha256", "git" (git's object hash of a file, by SHA-1) or "blake3".
    value : str
        In hexadecimal digits, of lower case.
    origin : str
        Where it stands, for messages.
    """

    algorithm: str
    value: str
    origin: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"


Digests = dict[str, tuple[Digest, ...]]
_LENGTHS = {64: "sha256", 40: "git"}


def of_etag(text: str, origin: str) -> Digest | None:
    """Return the digest that a blob's name or an ETag is; None if it is another tag."""
    found = text.strip().removeprefix("W/").strip('"').lower()
    algorithm = _LENGTHS.get(len(found))
    return None if algorithm is None or not re.fullmatch("[0-9a-f]+", found) else Digest(algorithm, found, origin)


def plain(name: str, origin: str) -> str:
    """Return a name relative to the folder of a model. Raises `TrustError` for one that leads out of it."""
    given = name.replace("\\", "/") if os.name == "nt" else name
    parts = [part for part in given.split("/") if part not in {"", "."}]
    if given.startswith("/") or ".." in parts or "\0" in given or not parts or (os.name == "nt" and ":" in given):
        raise TrustError("a name in a list of digests", path=origin, actual=quoted(name), expected="one in the folder")
    return "/".join(parts)


def add(digests: Digests, name: str, digest: Digest) -> None:
    """Add a digest of a file. Raises `TrustError` if there is another one of the same kind."""
    for own in digests.get(name, ()):
        if own.algorithm == digest.algorithm:
            if own.value == digest.value:
                return
            what = f"two digests of {quoted(name)} contradict each other: that in {digest.origin}"
            raise TrustError(what, path=own.origin, actual=digest, expected=f"{own}, as in {own.origin}")
    digests[name] = (*digests.get(name, ()), digest)


def of_mapping(given: Mapping[Any, Any]) -> Digests:
    """Return the digests of a mapping such as ``{"model.safetensors": "sha256:..."}``."""
    found: Digests = {}
    for name, value in given.items():
        if not isinstance(name, (str, os.PathLike)) or not isinstance(value, str):
            what = f"trust has a {type(name).__name__} with a {type(value).__name__}"
            raise TypeError(f"{what}, expected names of files with texts such as 'sha256:...'")
        add(found, plain(os.fsdecode(name), "trust"), of_text(value, f"the digest of {quoted(name)} in trust"))
    return found


def of_text(text: str, what: str) -> Digest:
    """Return the SHA-256 in ``sha256:`` and digits, or in digits alone. Raises `TrustError` for another text."""
    digits = text.removeprefix(SHA256)
    if not re.fullmatch("[0-9a-fA-F]{64}", digits):
        raise TrustError(what, path="trust", actual=quoted(text), expected="sha256: and 64 hexadecimal digits")
    return Digest("sha256", digits.lower(), "trust")


def of_sums(raw: bytes, origin: str) -> Digests:
    """Return the digests of a file that sha256sum wrote. Raises `TrustError` for one that it would not write."""
    found: Digests = {}
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
            raise TrustError(f"line {number} is no line of sha256sum: {quoted(line)}", path=origin)
        if escaped:
            if any(mark not in _ESCAPED for mark in _ESCAPE.findall(name)):
                raise TrustError(f"line {number} has an escape that sha256sum does not write", path=origin)
            name = _ESCAPE.sub(lambda mark: _ESCAPED[mark[1]], name)
        add(found, plain(name, origin), Digest("sha256", digits.lower(), origin))
    return found


def of_pointer(raw: bytes, origin: str) -> Digest | None:
    """Return the digest in a Git LFS pointer; None for anything else."""
    if len(raw) > _LARGEST_POINTER or not raw.startswith(_POINTER):
        return None
    match = _OF_LFS.fullmatch(raw[len(_POINTER) :])
    return None if match is None else Digest("sha256", match[1].decode(), origin)


def of_file(raw: bytes, origin: str) -> Digests:
    """Return the digests of a file: that of one file, under the name `ONLY`, or those that it lists by names."""
    pointer = of_pointer(raw, origin)
    if pointer is not None:
        return {ONLY: (pointer,)}
    bare = _BARE.fullmatch(raw)
    if bare is not None:
        return {ONLY: (Digest("sha256", bare[1].decode().lower(), origin),)}
    found = of_sums(raw, origin)
    if not found:
        raise TrustError("there is no digest in this list", path=origin)
    return found
