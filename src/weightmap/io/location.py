"""Where objects lie: `Location`, a URL that knows the way to its store, and `Stored`, an opened object there."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, NoReturn

from weightmap.errors import FileChangedError, RemoteError
from weightmap.io.fetching import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future
    from typing import Self

    from weightmap.io.fetching import Access, Pin

__all__ = ["Location", "Stored"]

# Bytes of the first request: with a footer and a tensor it stays within 64 KiB more than the tensor.
_FIRST = 32 << 10


class Location(str):
    """The URL of an object or of a folder of objects, or a key in a store, and the way to the store.

    The text holds no credentials.

    Attributes
    ----------
    access : Access
    base : str
        What the text has before the key of an object.
    """

    __slots__ = ("access", "base")

    access: Access
    base: str

    def __new__(cls, text: str, access: Access, base: str) -> Self:
        """Make a location of its text."""
        made = super().__new__(cls, text)
        made.access, made.base = access, base
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Location, (str(self), self.access, self.base)

    @property
    def key(self) -> str:
        """What the store calls the object."""
        return self[len(self.base) :]

    def inside(self, name: str) -> Location:
        """Return the location of something in this folder."""
        return Location(f"{self.rstrip('/')}/{name}" if self else name, self.access, self.base)

    def beside(self, name: str) -> Location:
        """Return the location of another object in the same folder."""
        return Location(self[: self.rfind("/") + 1] + name, self.access, self.base)

    @property
    def is_folder(self) -> bool:
        """Whether it says that it is a folder."""
        return not self.key or self.endswith("/")

    @property
    def has_names(self) -> bool:
        """Whether there is something below it; where no store lists that, whether it says that it is a folder."""
        return self.is_folder or bool(self._listed(self.key))

    @property
    def modified(self) -> float:
        """When the object was modified, in seconds; 0 where the store does not say."""
        return Stored.open(self)[0].pin.modified

    def unlisted(self, names: Iterable[str]) -> list[str]:
        """Return those of the objects beside it that the store does not list; none where it does not list any."""
        try:
            listed = self._listed(self.key.rpartition("/")[0])
        except PermissionError:
            return []
        return [] if listed is None else sorted({name for name in names if "/" not in name} - set(listed))

    def _listed(self, prefix: str) -> Iterable[str] | None:
        try:
            found: Iterable[str] | None = self.access.run(self.access.names(prefix))
        except StoreError as fault:
            fail(fault, str(self))
        return found

    def names(self, usual: Iterable[str]) -> list[str]:
        """Return the names in a folder; of a store that does not list them, those of the `usual` ones that exist."""
        found = self._listed(self.key.rstrip("/"))
        if not found and not self.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self))
        return list(self._existing(usual) if found is None else found)

    def _existing(self, usual: Iterable[str]) -> Iterator[str]:
        for name in usual:
            try:
                Stored.open(self.inside(name))
            except FileNotFoundError:
                continue
            yield name


class Stored:
    """An object in a store as it was when it was opened: every request asks for that one.

    Attributes
    ----------
    name : str
        For messages.
    access : Access
    pin : Pin
    """

    def __init__(self, location: Location, pin: Pin) -> None:
        self.name: str = str(location)
        self.access: Access = location.access
        self.pin: Pin = pin
        self._key = location.key

    @classmethod
    def open(cls, location: Location) -> tuple[Stored, bytes]:
        """Open an object by its first request; return it with its first bytes.

        Raises
        ------
        FileNotFoundError, PermissionError, RemoteError
        IsADirectoryError
            When there is no such object, but objects below it.
        """
        if location.is_folder:
            _fail_folder(location)
        head, access = bytearray(_FIRST), location.access
        try:
            pin: Pin = access.run(access.fetch(location.key, 0, _FIRST, memoryview(head), None))
        except StoreError as fault:
            pin = _opened_without(fault, location)
        return cls(location, pin), bytes(head[: pin.size])

    def fetch(self, begin: int, end: int, target: memoryview) -> Future[Any]:
        """Ask for the bytes from `begin` to `end`, which go to memory; return what `wait` waits for."""
        return self.access.submit(self.access.fetch(self._key, begin, end, target, self.pin))

    def wait(self, future: Future[Any], begin: int, end: int) -> None:
        """Wait for bytes.

        Raises
        ------
        FileChangedError
            When another object is there, or none.
        PermissionError, RemoteError
        """
        try:
            future.result()
        except StoreError as fault:
            gone = StoreError("changed", fault.words) if fault.kind in {"missing", "beyond"} else fault
            fail(gone, self.name, f"bytes {begin} to {end}")
        except BaseException:
            future.cancel()
            raise


def _opened_without(fault: StoreError, location: Location) -> Pin:
    """Open an object of no bytes, which has no range; raise the error for anything else."""
    access, pin, folder = location.access, None, False
    try:
        if fault.kind == "beyond":
            pin = access.run(access.empty(location.key))
        elif fault.kind == "missing":
            folder = bool(access.run(access.names(location.key)))
    except StoreError:
        pass  # what went wrong first is what there is to say
    if folder:
        _fail_folder(location)
    if pin is None:
        fail(fault, str(location))
    return pin  # type: ignore[no-any-return]


def _fail_folder(location: Location) -> NoReturn:
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(location)) from None


def fail(fault: StoreError, name: str, what: str = "") -> NoReturn:
    """Raise the error for a fault. A store's own exception, which may hold addresses with signatures, stays behind."""
    if fault.kind == "missing":
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
    if fault.kind == "denied":
        raise PermissionError(errno.EACCES, f"the store refuses it: {fault.words}", name) from None
    if fault.kind == "changed":
        msg = "the object was changed, replaced or deleted after it was opened"
        raise FileChangedError(msg, path=name) from None
    raise RemoteError(f"{what or 'it'} cannot be read from its store: {fault.words}", path=name) from None
