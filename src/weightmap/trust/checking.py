"""`Trust`: compares whole files with the digests that they should have, as they are opened."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from weightmap.arguments import mistyped
from weightmap.errors import TensorFileError, TrustError, UnsupportedError, quoted
from weightmap.io.open_source import path_of
from weightmap.lazy import later
from weightmap.trust import record, recorded
from weightmap.trust.lists import ONLY, SHA256, Digest, Digests, add, of_file, of_mapping, of_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightmap.io.source import Source
    from weightmap.options import Limits

_ALGORITHMS: dict[str, Callable[[], Any]] = {
    "sha256": hashlib.sha256,
    "git": partial(hashlib.sha1, usedforsecurity=False),
    "blake3": later("blake3", "blake3"),
}
_RECORDED = "recorded"
_NOT_BY_PATH = "digests are compared for files that are opened by path: download it, and open that"
# Bytes read at a time: threads that hash at once wait for each other's calls, so there are few of these.
_PIECE = 1 << 20
# Folders and files of git and of downloads, which no list has.
_UNLISTED = (".git", ".gitattributes", ".gitignore", ".cache")


class Trust:
    """The digests that the files of one model must have. It can be pickled.

    Parameters
    ----------
    root : str
        The folder of the model.
    digests : dict
        By names relative to it; `ONLY` is the file that is opened.
    beside : bool
        Whether to look for more beside each file.
    ignored : tuple of str
        Names of files and folders that need no digest, as long as they are not opened.
    how : str
        Where the digests are from, for reports: "as recorded".
    signed : bool
        Whether they are those of a signature, which names every file.
    """

    def __init__(
        self,
        root: str,
        digests: Digests,
        *,
        beside: bool = False,
        ignored: tuple[str, ...] = (),
        how: str = "as given",
        signed: bool = False,
    ) -> None:
        self.root = root
        self.digests = digests
        self._beside = beside
        self._ignored = ignored
        self.how = how
        self.signed = signed
        # The files that this hashed, by what `record.state_of` says of them.
        self._hashed: set[tuple[tuple[int, ...], str]] = set()

    def name_of(self, path: str) -> str:
        """Return the name of a file in the lists. Raises `TrustError` for one outside the folder."""
        name = relative(path, self.root)
        if name.split("/")[0] == os.pardir:
            raise TrustError("this file lies outside of the folder whose digests are known", path=path)
        return name

    def ignores(self, name: str) -> bool:
        """Whether a file or folder needs no digest: see `weightmap.trust.whole`."""
        if self._beside and recorded.is_list(os.path.join(self.root, name)):
            return True
        return any(name == other or name.startswith(f"{other}/") for other in self._ignored)

    def expected(self, path: str) -> tuple[Digest, ...]:
        """Return the digests that a file must have. Raises `TrustError` if there is none."""
        name = self.name_of(path)
        found: Digests = {name: self.digests.get(name) or self.digests.get(ONLY, ())}
        if self._beside:
            for digest in recorded.beside(self.root, name).get(name, ()):
                add(found, name, digest)
        if not found[name]:
            where = "beside it" if self._beside else "in the list"
            raise TrustError(f"no digest of this file is {where}: {quoted(name)}", path=path)
        return found[name]

    def admit(self, source: Source, limits: Limits) -> None:
        """Hash an opened file, and compare. Raises `TrustError` for another file than the one that was meant.

        In modes that copy, what is hashed is the copy, while it is made; in others the file is read and then mapped.
        """
        path = source.absolute
        if path is None or source.store is not None:
            raise UnsupportedError(_NOT_BY_PATH, path=source.name)
        try:
            wanted = self.expected(path)
            sums = [_Sum(digest, source.size) for digest in wanted]
            if source.mode in {"copy", "sealed"}:
                self._copy(source, sums, limits)
            else:
                self._read(source, sums, wanted)
                source.prepare(explicit=not source.private, limits=limits)
            for own in sums:
                own.check()
            source.trust = self
        except TensorFileError as error:
            raise error.located(path=source.name) from None

    def _copy(self, source: Source, sums: Sequence[_Sum], limits: Limits) -> None:
        """Let the source copy its file, and hash the copy."""
        fed = 0

        def watch(piece: memoryview) -> None:
            nonlocal fed
            fed += len(piece)
            for own in sums:
                own.update(piece)

        source.watch = watch
        source.prepare(explicit=True, limits=limits)
        source.watch = None
        if fed != source.size:  # sealed memory is not copied
            for own in sums:
                own.update(memoryview(source.octets))

    def _read(self, source: Source, sums: Sequence[_Sum], wanted: Sequence[Digest]) -> None:
        """Read and hash a file that is going to be mapped, unless that was done before."""
        file = source.descriptor
        before, key = record.state_of(file), " ".join(map(str, wanted))
        if (before, key) in self._hashed or all(record.has(file, before, str(digest)) for digest in wanted):
            for own in sums:
                own.known()
            return
        settled = record.is_settled(before)
        for piece in source.chunks(0, source.size, _PIECE):
            for own in sums:
                own.update(piece)
        source.check_unchanged()
        if record.state_of(file) != before:
            raise TrustError("the file was changed while it was hashed")
        for own in sums:
            own.check()
        self._hashed.add((before, key))
        for digest in wanted if settled else ():
            record.add(file, before, str(digest))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_hashed": set()}


class _Sum:
    """A running digest of a file."""

    def __init__(self, digest: Digest, size: int) -> None:
        self._digest = digest
        self._own = _ALGORITHMS[digest.algorithm]()
        self.update: Callable[[Any], None] = self._own.update
        if digest.algorithm == "git":
            self.update(b"blob %d\0" % size)
        self._known = False

    def known(self) -> None:
        """Take the file for the one that was meant."""
        self._known = True

    def check(self) -> None:
        """Raise `TrustError` unless the bytes have the digest."""
        actual = f"{self._digest.algorithm}:{self._own.hexdigest()}"
        if not self._known and actual != str(self._digest):
            what = f"this is not the file that {self._digest.origin} is about: its digest"
            raise TrustError(what, field="digest", actual=actual, expected=str(self._digest))


def bound(trust: Any, source: Any, deltas: Sequence[str] = ()) -> Trust:
    """Return the digests that `trust` of `weightmap.open` gives for the files of a model."""
    path = path_of(source)
    if path is None or type(path) is not str:
        raise UnsupportedError(_NOT_BY_PATH, path=None if path is None else str(path))
    if deltas:
        raise UnsupportedError(f"trust= has no digest of a model under deltas, such as {quoted(deltas[0])}", path=path)
    if isinstance(trust, Trust):
        return trust
    given = os.path.abspath(path)
    root = given if os.path.isdir(given) else os.path.dirname(given)
    if isinstance(trust, Mapping):
        return Trust(root, of_mapping(trust), ignored=_UNLISTED)
    if hasattr(trust, "trust_for"):
        found: Trust = trust.trust_for(given, root)
        return found
    if not isinstance(trust, (str, os.PathLike)):
        raise mistyped(
            "trust", trust, "'recorded', 'sha256:...', a mapping, the path of a list of digests, or a signature"
        )
    if trust == _RECORDED:
        return Trust(root, recorded.listed_in(root), beside=True, ignored=_UNLISTED, how="as recorded")
    at = os.fsdecode(trust)
    if at.startswith(SHA256):
        return Trust(root, _of_one(given, root, (of_text(at, "trust"),)))
    raw = recorded.read_list(at)
    if raw is None:
        raise FileNotFoundError(2, os.strerror(2), at)
    digests = of_file(raw, at)
    if ONLY in digests:  # it is about the file that is opened, and no other one
        digests = _of_one(given, root, digests[ONLY])
    ignored = (*_UNLISTED, relative(os.path.abspath(at), root))
    return Trust(root, digests, ignored=ignored, how=f"as in {quoted(at)}")


def _of_one(given: str, root: str, digests: tuple[Digest, ...]) -> Digests:
    """Return the digests of the one file that is opened. Raises `TrustError` for a directory."""
    if os.path.isdir(given):
        what = "no digest of this directory is known, only that of one file: give a list of digests"
        raise TrustError(what, path=given)
    return {relative(given, root): digests}


def relative(path: str, root: str) -> str:
    """Return the name of a file relative to a folder, as lists have it."""
    return os.path.relpath(path, root).replace(os.sep, "/")
