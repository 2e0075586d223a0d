"""`Trust` compares whole files with their digests when they are opened; `check_all` compares every file of a model."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from weightmap._messages import counted, quoted
from weightmap.core.arguments import DEFAULT_LIMITS, Limits, as_threads, mistyped
from weightmap.core.bytes.open_source import from_path, path_of
from weightmap.core.hooks import later
from weightmap.core.native.access import cpus, in_threads, status_of
from weightmap.errors import Remedy, TensorFileError, TrustError, UnsupportedError
from weightmap.trust import lists

if TYPE_CHECKING:
    from weightmap.core.bytes.source import Source

_ALGORITHMS: dict[str, Callable[[], Any]] = {
    "sha256": hashlib.sha256,
    "git": partial(hashlib.sha1, usedforsecurity=False),
    "blake3": later("blake3", "blake3"),
}
_TITLES = {"sha256": "SHA-256", "git": "git's SHA-1", "blake3": "BLAKE3"}
_RECORDED = "recorded"
_NOT_BY_PATH = "digests are compared for files that are opened by path: download it, and open that"
# Bytes to read at once. Pieces are large, because hashing threads wait for the GIL at each call.
_PIECE = 1 << 20
# Folders and files of git and of downloads, which lists leave out.
_UNLISTED = (".git", ".gitattributes", ".gitignore", ".cache")


class Trust:
    """The digests that the files of one model must have. It can be pickled.

    Parameters
    ----------
    root : str
        The folder of the model.
    digests : dict
        By file names relative to `root`; `ONLY` stands for the opened file.
    siblings : bool
        Whether to look for recorded digests beside each file, too.
    ignored : tuple of str
        Names of files and folders that need no digest, as long as they are not opened.
    how : str
        The origin of the digests, for reports, such as "as recorded".
    signed : bool
        Whether the digests come from a signature, which names every file.
    """

    def __init__(
        self,
        root: str,
        digests: lists.Digests,
        *,
        siblings: bool = False,
        ignored: tuple[str, ...] = (),
        how: str = "as given",
        signed: bool = False,
    ) -> None:
        self.root = root
        self.opened = root  # the file or folder that was opened
        self.digests = digests
        self._siblings = siblings
        self._ignored = ignored
        self.how = how
        self.signed = signed
        # State and digests of files that were hashed already: converting checks a whole model and then opens it.
        self._hashed: set[tuple[tuple[int, ...], str]] = set()

    def name_of(self, path: str) -> str:
        """Return the name of a file in the lists. Raises `TrustError` for one outside the folder."""
        name = relative(path, self.root)
        if name.split("/")[0] == os.pardir:
            raise TrustError("this file lies outside of the folder whose digests are known", path=path)
        return name

    def ignores(self, name: str) -> bool:
        """Whether a file or folder needs no digest: see `check_all`."""
        listed = self._siblings and lists.is_list(os.path.join(self.root, name))
        return listed or any(name == other or name.startswith(f"{other}/") for other in self._ignored)

    def expected(self, path: str) -> tuple[lists.Digest, ...]:
        """Return the digests that a file must have. Raises `TrustError` if none is known."""
        name = self.name_of(path)
        digests: lists.Digests = {name: self.digests.get(name) or self.digests.get(lists.ONLY, ())}
        if self._siblings:
            for digest in lists.recorded(self.root, name).get(name, ()):
                lists.add(digests, name, digest)
        if not digests[name]:
            where = "beside it" if self._siblings else "in the list"
            remedy = Remedy("{} compares one file with a digest that you have", "trust", f"{lists.SHA256}...")
            if self.opened == self.root:
                remedy = Remedy("{} takes what sha256sum prints for all files of the folder", "trust", "LIST")
            raise TrustError(f"this file has no digest {where}: {quoted(name)}", path=path, remedy=remedy)
        return digests[name]

    def admit(self, source: Source, limits: Limits = DEFAULT_LIMITS) -> None:
        """Hash an opened file, and raise `TrustError` unless it has the expected digests.

        Modes that copy hash the copy while making it; others read the file and then map it.
        """
        path = source.absolute
        if path is None or source.store is not None:
            raise UnsupportedError(_NOT_BY_PATH, path=source.name)
        try:
            expected = self.expected(path)
            sums = [_Sum(digest, source.size) for digest in expected]
            if source.mode in {"copy", "sealed"}:
                self._copy(source, sums, limits)
                for sum_ in sums:
                    sum_.check()
            else:
                self._read(source, sums, expected)
                source.prepare(explicit=not source.private, limits=limits)
            source.trust = self
        except TensorFileError as error:
            raise error.located(path=source.name) from None

    def _copy(self, source: Source, sums: Sequence[_Sum], limits: Limits) -> None:
        """Make the source copy its file, and hash the copy."""
        hashed = 0

        def watch(piece: memoryview) -> None:
            nonlocal hashed
            hashed += len(piece)
            for sum_ in sums:
                sum_.update(piece)

        source.watch = watch
        source.prepare(explicit=True, limits=limits)
        source.watch = None
        if hashed != source.size:  # the file is already sealed memory, so that nothing was copied
            for sum_ in sums:
                sum_.update(memoryview(source.octets))

    def _read(self, source: Source, sums: Sequence[_Sum], expected: Sequence[lists.Digest]) -> None:
        """Read and hash a file, unless this object has hashed it before."""
        file = source.descriptor
        before = _state_of(file)
        entry = before, " ".join(map(str, expected))
        if entry in self._hashed:
            return
        for piece in source.chunks(0, source.size, _PIECE):
            for sum_ in sums:
                sum_.update(piece)
        source.check_unchanged()
        if _state_of(file) != before:
            raise TrustError("the file was changed while it was hashed")
        for sum_ in sums:
            sum_.check()
        self._hashed.add(entry)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_hashed": set()}


def _state_of(file: int) -> tuple[int, ...]:
    """Return device, inode, size, and the times of modification and change in ns, which differ for a changed file."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _Sum:
    """A running digest of a file."""

    def __init__(self, digest: lists.Digest, size: int) -> None:
        self._digest = digest
        self._hash = _ALGORITHMS[digest.algorithm]()
        self.update: Callable[[Any], None] = self._hash.update
        if digest.algorithm == "git":
            self.update(b"blob %d\0" % size)

    def check(self) -> None:
        """Raise `TrustError` unless the bytes have the digest."""
        actual = f"{self._digest.algorithm}:{self._hash.hexdigest()}"
        if actual != str(self._digest):
            what = f"the file does not match {self._digest.origin}: its digest"
            raise TrustError(what, field="digest", actual=actual, expected=str(self._digest))


def resolve_trust(trust: Any, source: Any, deltas: Sequence[str] = ()) -> Trust:
    """Return the digests that a model's files must have, from the argument `trust` of `weightmap.open`."""
    resolved = _resolve(trust, source, deltas)
    resolved.opened = os.path.abspath(os.fspath(source))
    return resolved


def _resolve(trust: Any, source: Any, deltas: Sequence[str]) -> Trust:
    path = path_of(source)
    if path is None or type(path) is not str:
        raise UnsupportedError(_NOT_BY_PATH, path=None if path is None else str(path))
    if deltas:
        raise UnsupportedError(f"trust= has no digest of a model under deltas, such as {quoted(deltas[0])}", path=path)
    if isinstance(trust, Trust):
        return trust
    absolute = os.path.abspath(path)
    root = absolute if os.path.isdir(absolute) else os.path.dirname(absolute)
    if isinstance(trust, Mapping):
        return Trust(root, lists.of_mapping(trust), ignored=_UNLISTED)
    if hasattr(trust, "trust_for"):
        result: Trust = trust.trust_for(absolute, root)
        return result
    if not isinstance(trust, (str, os.PathLike)):
        raise mistyped(
            "trust", trust, "'recorded', 'sha256:...', a mapping, the path of a list of digests, or a signature"
        )
    if trust == _RECORDED:
        return Trust(root, lists.listed_in(root), siblings=True, ignored=_UNLISTED, how="as recorded")
    list_path = os.fsdecode(trust)
    if list_path.startswith(lists.SHA256):
        return Trust(root, _of_one(absolute, root, (lists.of_text(list_path, "trust"),)))
    raw = lists.read_list(list_path)
    if raw is None:
        if re.fullmatch("[0-9a-fA-F]{64}", list_path):
            expected = "sha256: and 64 hexadecimal digits"
            raise TrustError("trust", path="trust", actual=quoted(list_path), expected=expected)
        raise FileNotFoundError(2, os.strerror(2), list_path)
    digests = lists.of_file(raw, list_path)
    if lists.ONLY in digests:  # the list is a bare digest of the opened file
        digests = _of_one(absolute, root, digests[lists.ONLY])
    ignored = (*_UNLISTED, relative(os.path.abspath(list_path), root))
    return Trust(root, digests, ignored=ignored, how=f"as in {quoted(list_path)}")


def _of_one(path: str, root: str, digests: tuple[lists.Digest, ...]) -> lists.Digests:
    """Return the digests of the opened file. Raises `TrustError` for a directory."""
    if os.path.isdir(path):
        raise TrustError("this is a directory, and the digest is of one file: give a list of digests", path=path)
    return {relative(path, root): digests}


def relative(path: str, root: str) -> str:
    """Return the name of a file relative to a folder, in the form of lists."""
    return os.path.relpath(path, root).replace(os.sep, "/")


def check_all(trust: Trust, path: str, *, threads: int | None = None) -> list[str]:
    """Hash every file of a model, several at a time, and return their names.

    A model of one file has only that file. A directory has all listed files, and all others except lists of digests,
    signatures, the files of git and of downloads, and files that a signature leaves out. A link stands for its target.

    Raises
    ------
    TrustError
        For a file with a wrong digest or none, and for a listed file that is missing.
    """
    absolute = os.path.abspath(path)
    folder = os.path.isdir(absolute)
    names = sorted({*_files(trust, absolute), *trust.digests}) if folder else [trust.name_of(absolute)]
    for name in names:
        trust.expected(os.path.join(trust.root, name))
    missing = next((name for name in names if not os.path.isfile(os.path.join(trust.root, name))), None)
    if missing is not None:
        raise TrustError(f"{quoted(missing)} is in the list of digests, and not in the folder", path=trust.root)
    sizes = {name: status_of(os.path.join(trust.root, name)).st_size for name in names}

    def check(name: str) -> None:
        source = from_path(os.path.join(trust.root, name), "mmap")
        source.private = True
        try:
            trust.admit(source)
        finally:
            source.close()

    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - opening hashes without it

    with ThreadPoolExecutor(cpus() if threads is None else as_threads(threads)) as pool:
        try:
            for _ in in_threads(pool, check, sorted(names, key=lambda name: -sizes[name])):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return names


def compared(trust: Trust, names: Sequence[str]) -> str:
    """Return a line about the comparison of `check_all`, such as "SHA-256 of 2 files as recorded"."""
    kinds: Counter[str] = Counter()
    for name in names:
        digests = trust.expected(os.path.join(trust.root, name))
        kinds[" and ".join(dict.fromkeys(_TITLES[digest.algorithm] for digest in digests))] += 1
    lines = (f"{kind} of {counted(count, 'file')}" for kind, count in sorted(kinds.items()))
    return f"{', '.join(lines)} {trust.how}"


def _files(trust: Trust, folder: str) -> Iterator[str]:
    """Yield the names of the files in a folder and its subfolders, which may be of any depth."""
    prefixes = [""]
    for prefix in prefixes:  # which grows
        for entry in [*os.scandir(os.path.join(folder, prefix))]:
            name, mode = f"{prefix}{entry.name}", status_of(entry.path).st_mode
            if stat.S_ISDIR(mode):
                if entry.is_symlink() and trust.signed:
                    raise TrustError("this is a link to a folder, and a signature is about files", path=entry.path)
                if not entry.is_symlink() and (trust.signed or not trust.ignores(name)):
                    prefixes.append(f"{name}/")
            elif not stat.S_ISREG(mode):
                raise TrustError("not a regular file", path=entry.path)
            elif not trust.ignores(name):
                yield name
