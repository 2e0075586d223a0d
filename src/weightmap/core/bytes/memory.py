"""Memory that this process may still fill, bounded by the machine and by control groups."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from weightmap.core.hooks import later
from weightmap.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import DTypeLike, NDArray

# Per-process objects.

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """An object with threads or locks, made anew in each forked child.

    Threads do not survive a fork, and a lock held during a fork is never released.

    Parameters
    ----------
    make : callable
        Makes the object: now, and in each forked child.

    Attributes
    ----------
    instance : object
        The object of this process.
    """

    __slots__ = ("_make", "instance")

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.instance: _T = self._make()


# Version 1 expresses "no limit" as a number above this.
_NO_LIMIT = 1 << 60


class ControlGroup(NamedTuple):
    """A control group that bounds the memory of this process.

    Attributes
    ----------
    path : str
        Directory of its files.
    version : int
        1 or 2.
    limit, used : int
        In bytes.
    files : int
        The part of `used` in pages of files, which the kernel reclaims when needed.
    """

    path: str
    version: int
    limit: int
    used: int
    files: int

    @property
    def available(self) -> int:
        """Bytes that may still be filled, counting reclaimed pages of files."""
        return max(0, self.limit - max(0, self.used - self.files))


class Headroom(NamedTuple):
    """How much memory is left.

    Attributes
    ----------
    available : int or None
        Memory of the machine available for new uses, in bytes; None if the system does not tell.
    groups : tuple of ControlGroup
        The control groups of this process that have a limit, innermost first.
    """

    available: int | None
    groups: tuple[ControlGroup, ...]

    @property
    def limit(self) -> int | None:
        """The tightest limit on this process; None if unknown."""
        bounds = [group.available for group in self.groups]
        return min(bounds if self.available is None else [*bounds, self.available], default=None)


def headroom(root: str = "/") -> Headroom:
    """Return how much memory is left, from Linux's files under `root`; on other systems nothing is known."""
    available = None
    for line in _lines(root, "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = _number(line.split()[1]) * 1024
    return Headroom(available, tuple(_groups(root)))


def check_room(nbytes: int, what: str) -> None:
    """Raise `LimitError` when `nbytes`, described by `what`, exceed the memory that this process may fill.

    A system that promises more memory than it has would kill the process that fills it.
    """
    available = headroom().limit
    if available is not None and nbytes > available:
        expected = f"at most {available}, the memory that is left (a mapping takes none)"
        raise LimitError(what, actual=nbytes, expected=expected)


def _groups(root: str) -> Iterator[ControlGroup]:
    """Yield the groups of this process with a limit, of both versions."""
    mounts = {version: (point, top) for version, point, top in _mounts(root)}
    for line in _lines(root, "proc/self/cgroup"):
        number, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        version = 2 if number == "0" and not controllers else 1 if "memory" in controllers.split(",") else 0
        if version not in mounts:
            continue
        point, top = mounts[version]
        # The path starts at the root of the hierarchy; a container mounts a part, and the path may lie outside it.
        inner = path.removeprefix(top.rstrip("/")) if path == top or path.startswith(f"{top.rstrip('/')}/") else ""
        parts = [part for part in inner.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = "/".join([point, *parts[:depth]])
            group = _group(root, folder, version)
            if group is not None:
                yield group


def _mounts(root: str) -> Iterator[tuple[int, str, str]]:
    """Yield the mounts of memory control groups: version, mount point, and the part of the hierarchy mounted there."""
    for line in _lines(root, "proc/self/mountinfo"):
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.partition(" ")
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split()[-1].split(",")):
            _, _, _, top, point, *_ = fields.split()
            yield 2 if kind == "cgroup2" else 1, _unescaped(point), _unescaped(top)


def _unescaped(text: str) -> str:
    r"""Return a path of mountinfo, which has spaces as ``\040`` and the like."""
    return text if "\\" not in text else text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def _group(root: str, folder: str, version: int) -> ControlGroup | None:
    """Return a control group, or None if it has no limit."""
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit = _line(root, f"{folder}/{names[0]}")
    if not limit.isdigit() or _number(limit) >= _NO_LIMIT:
        return None
    used = _line(root, f"{folder}/{names[1]}")
    # "file" would include tmpfs, which is not a cache. Version 1 uses other names for sums over the groups below.
    keys = ("active_file", "inactive_file") if version == 2 else ("total_active_file", "total_inactive_file")
    pages = (line.split() for line in _lines(root, f"{folder}/memory.stat"))
    files = sum(_number(pair[1]) for pair in pages if pair[0] in keys)
    return ControlGroup(folder, version, _number(limit), _number(used), files)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _line(root: str, path: str) -> str:
    return next(iter(_lines(root, path)), "")


def _lines(root: str, path: str) -> list[str]:
    """Return the lines of a file of the system; none if it is missing."""
    try:
        # Each call reads several of these files, and a buffered text file takes twice as long.
        with open(os.path.join(root, path.lstrip("/")), "rb", buffering=0) as file:
            return file.read().decode(errors="surrogateescape").split("\n")[:-1]
    except OSError:
        return []


# ----------------------------------------------------------------------------------------------------
# Arrays as large as a tensor, for work that needs the whole tensor.

_temporary_file: Callable[..., Any] = later("tempfile", "TemporaryFile")
# Most bytes in anonymous memory: making a file takes longer than filling these.
_MAX_ANONYMOUS = 16 << 20


def scratch(count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array.

    A large array lies in a temporary file, if the disk has room: the system writes it out when memory is short.
    """
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes > _MAX_ANONYMOUS and hasattr(os, "posix_fallocate"):
        with contextlib.suppress(OSError), _temporary_file() as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)  # a disk that fills up later would cause SIGBUS
            return np.memmap(file, dtype, "r+", shape=(count,)).view(np.ndarray)
    return np.empty(count, dtype)
