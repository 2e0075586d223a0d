"""Checks every file of a model: everything that is listed is there and right, everything else is refused by name."""

from __future__ import annotations

import os
import stat
import threading
from collections import Counter
from typing import TYPE_CHECKING

from weightmap.arguments import as_threads
from weightmap.errors import TrustError, counted, quoted
from weightmap.io.open_source import from_path
from weightmap.native.late import cpus
from weightmap.options import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightmap.trust.checking import Trust

_CALLED = {"sha256": "SHA-256", "git": "git's SHA-1", "blake3": "BLAKE3"}


def check_all(
    trust: Trust,
    path: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    threads: int | None = None,
) -> list[str]:
    """Hash every file of a model, several at a time, and return their names.

    Of a path that is one file this is that file; of a directory, everything in it but the lists of digests themselves,
    the folders of git and of downloads, and what a signature leaves out. A link stands for the file that it leads to.

    Raises
    ------
    TrustError
        For a file that has another digest than its list says, or none, and for one that is listed and missing.
    """
    given = os.path.abspath(path)
    folder = os.path.isdir(given)
    names = sorted(_files(trust, given)) if folder else [trust.name_of(given)]
    for name in names:
        trust.expected(os.path.join(trust.root, name))
    missing = sorted(trust.digests.keys() - set(names)) if folder else []
    if missing:
        what = f"{quoted(missing[0])} is in the list of digests, and not in the folder"
        raise TrustError(what, path=trust.root)
    sizes = {name: os.stat(os.path.join(trust.root, name)).st_size for name in names}
    total, done, lock = sum(sizes.values()), 0, threading.Lock()

    def check(name: str) -> None:
        nonlocal done
        source = from_path(os.path.join(trust.root, name), "mmap")
        source.private = True
        try:
            trust.admit(source, DEFAULT_LIMITS)
        finally:
            source.close()
        with lock:
            done += sizes[name]
            if progress is not None:
                progress(done, total)

    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - its hooks of forks would come too late

    with ThreadPoolExecutor(cpus() if threads is None else as_threads(threads)) as pool:
        futures = [pool.submit(check, name) for name in sorted(names, key=lambda name: -sizes[name])]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return names


def compared(trust: Trust, names: Sequence[str]) -> str:
    """Say what `check_all` has compared, such as "SHA-256 of 2 files as recorded"."""
    kinds: Counter[str] = Counter()
    for name in names:
        digests = trust.expected(os.path.join(trust.root, name))
        kinds[" and ".join(dict.fromkeys(_CALLED[digest.algorithm] for digest in digests))] += 1
    said = (f"{kind} of {counted(count, 'file')}" for kind, count in sorted(kinds.items()))
    return f"{', '.join(said)} {trust.how}"


def _files(trust: Trust, folder: str, below: str = "") -> Iterator[str]:
    """Yield the names of the files in a folder."""
    with os.scandir(os.path.join(folder, below)) as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            status = entry.stat()
            if stat.S_ISDIR(status.st_mode):
                if entry.is_symlink() and trust.signed:
                    raise TrustError("this is a link to a folder, and a signature is about files", path=entry.path)
                if not entry.is_symlink() and (trust.signed or not trust.ignores(name)):
                    yield from _files(trust, folder, f"{name}/")
            elif not stat.S_ISREG(status.st_mode):
                raise TrustError("this is no regular file", path=entry.path)
            elif not trust.ignores(name):
                yield name
