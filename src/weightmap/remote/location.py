"""Objects in stores: `Location`, a URL with its store, and `Stored`, an opened object."""

from __future__ import annotations

import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import quote, unquote

from weightmap.core.native.access import in_threads
from weightmap.errors import FileChangedError, Remedy, RemoteError
from weightmap.remote.fetching import Access, Call, Pieces, Pin, StoreError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence


# Bytes of the first request: the footer and one tensor then cost at most 64 KiB more than the tensor.
_FIRST_REQUEST_BYTES = 32 << 10


class Location(str):
    """The URL of an object or a folder of objects, or a key in a store; together with the store.

    The text has no credentials.

    Attributes
    ----------
    access : Access
    base : str
        The text before the key of an object.
    encoded : bool
        Whether the key is percent-encoded, as in HTTP addresses. Names are not encoded: `inside` and `sibling` encode
        them, once.
    """

    __slots__ = ("access", "base", "encoded")

    access: Access
    base: str
    encoded: bool

    def __new__(cls, text: str, access: Access, base: str, encoded: bool) -> Self:  # noqa: FBT001 - of a pickle
        """Make a location from its text."""
        location = super().__new__(cls, text)
        location.access, location.base, location.encoded = access, base, encoded
        return location

    def __reduce__(self) -> tuple[Any, ...]:
        return Location, (str(self), self.access, self.base, self.encoded)

    def _with(self, text: str) -> Location:
        return Location(text, self.access, self.base, self.encoded)

    @property
    def key(self) -> str:
        """The object's name in its store."""
        return self[len(self.base) :]

    @property
    def called(self) -> str:
        """The object's name in its folder."""
        return self.sibling_name(self)

    @property
    def folder(self) -> Location:
        """The location of its folder."""
        return self._with(self[: self.rfind("/") + 1])

    def inside(self, name: str) -> Location:
        """Return the location of an object or folder in this folder."""
        name = quote(name) if self.encoded else name
        return self._with(f"{self.rstrip('/')}/{name}" if self else name)

    def sibling_name(self, other: Location) -> str:
        """Return the name by which `other.sibling` returns this location."""
        name = self.removeprefix(other.folder)
        return unquote(name) if self.encoded else name

    def sibling(self, name: str) -> Location:
        """Return the location of an object in the same folder."""
        return self if name == self.called else self.folder.inside(name)

    @property
    def is_folder(self) -> bool:
        """Whether the text is marked as a folder."""
        return not self.key or self.endswith("/")

    @property
    def has_names(self) -> bool:
        """Whether objects lie below this location; if the store cannot list, whether it is marked as a folder."""
        return self.is_folder or bool(self._answer(self.access.names(self.key)))

    @property
    def takes_objects(self) -> bool:
        """Whether the store can be written to."""
        return self.access.takes_objects

    def put(self, path: str, *, new: bool = False) -> str | None:
        """Write the object from a file, in several parts if it is large, and return its tag.

        With `new`, only if the object does not exist.

        Raises
        ------
        FileExistsError
            With `new`, when the object exists.
        PermissionError, RemoteError
        """
        try:
            tag: str | None = self.access.run(self.access.put(self.key, path, os.path.getsize(path), new=new))
        except StoreError as fault:
            if fault.kind == "exists" or (new and fault.kind == "changed"):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self)) from None
            if fault.kind == "denied":
                fail(fault, str(self))
            raise RemoteError(f"it cannot be written to its store: {fault.words}", path=str(self)) from None
        return tag

    def remove(self, tag: str | None) -> None:
        """Remove an object that was just written, if the store can, without errors: the caller is raising one.

        With its tag, an object stays that another writer has put in its place.
        """
        with contextlib.suppress(StoreError):
            self.access.run(self.access.remove(self.key, tag))

    @property
    def cached(self) -> str | None:
        """The path of a local file with the same bytes, or None if the store keeps none."""
        path: str | None = self.of_store("cached")
        return path

    @property
    def digest(self) -> str | None:
        """The digest of the object, or None if the store has none: objects with one digest have the same bytes."""
        digest: str | None = self.of_store("digest")
        return digest

    def of_store(self, what: str) -> Any:
        """Call a method of the store for the object and return its result; None without such a method."""
        find = getattr(self.access.store, what, None)
        return None if find is None else self._answer(self.access.call(find, self.key))

    @property
    def state(self) -> Pin | None:
        """The state of the object; None if it does not exist, or the store does not tell its version."""
        try:
            pin: Pin = self.access.run(self.access.look(self.key))
        except StoreError:
            return None
        return pin if pin.is_versioned else None

    @property
    def modified(self) -> float:
        """Modification time of the object, in seconds; 0 if the store does not tell."""
        return (self.state or Stored.open(self)[0].pin).modified

    def neighbours(self) -> list[str] | None:
        """Return the names in the object's folder; None if the store cannot list, or does not allow it."""
        try:
            listed: Iterable[str] | None = self._answer(self.access.names(self.key.rpartition("/")[0]))
        except PermissionError:
            return None
        return None if listed is None else list(listed)

    def _answer(self, question: Coroutine[Any, Any, Any]) -> Any:
        """Return the store's answer."""
        try:
            return self.access.run(question)
        except StoreError as fault:
            fail(fault, str(self))

    def names(self, usual: Sequence[str]) -> list[str]:
        """Return the names in a folder; if the store cannot list, the existing names among `usual`."""
        names = self._answer(self.access.names(self.key.rstrip("/")))
        if not names and not self.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self))
        return list(self._existing(usual) if names is None else names)

    def _existing(self, usual: Sequence[str]) -> Iterator[str]:
        def exists(name: str) -> bool:
            try:
                Stored.open(self.inside(name))
            except FileNotFoundError:
                return False
            return True

        with ThreadPoolExecutor(len(usual) or 1) as pool:
            yield from compress(usual, in_threads(pool, exists, usual))


class Stored:
    """An object in a store in its state at opening: every request asks for this state.

    Attributes
    ----------
    name : str
        The name for messages.
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
        """Open an object with a first request; return it and its first bytes.

        Raises
        ------
        FileNotFoundError, PermissionError, RemoteError
        IsADirectoryError
            When the object does not exist, but objects below it do.
        """
        if location.is_folder:
            _fail_folder(location)
        head, access = bytearray(_FIRST_REQUEST_BYTES), location.access
        try:
            pin: Pin = access.run(access.fetch(location.key, 0, _FIRST_REQUEST_BYTES, memoryview(head), None))
        except StoreError as fault:
            pin = _opened_without(fault, location)
        if pin.size and not (pin.is_versioned or access.unversioned):
            words = "the store states neither an ETag nor a time of modification, so nothing would show that the object"
            remedy = Remedy("download it, or {} opens it", "unversioned", switch=True)
            fail(StoreError("refused", f"{words} was replaced between two requests", remedy=remedy), str(location))
        return cls(location, pin), bytes(head[: pin.size])

    def fetch(self, begin: int, end: int, target: memoryview | Pieces) -> Call:
        """Request the bytes from `begin` to `end` into memory; return the call for `wait`."""
        return self.access.submit(self.access.fetch(self._key, begin, end, target, self.pin))

    def wait(self, call: Call, begin: int, end: int) -> None:
        """Wait for bytes.

        Raises
        ------
        FileChangedError
            When the object was replaced or removed.
        PermissionError, RemoteError
        """
        try:
            call.result()
        except StoreError as fault:
            gone = StoreError("changed", fault.words) if fault.kind in {"missing", "beyond"} else fault
            fail(gone, self.name, f"bytes {begin} to {end}")
        except BaseException:
            call.stop()
            raise


def _opened_without(fault: StoreError, location: Location) -> Pin:
    """Open an empty object, which has no range; raise the first request's error for anything else."""
    access, pin, folder = location.access, None, False
    try:
        if fault.kind == "beyond":
            state = access.run(access.look(location.key))
            pin = None if state.size else state
        elif fault.kind == "missing":
            folder = bool(access.run(access.names(location.key)))
    except StoreError:
        pass  # the first error is the one to report
    if folder:
        _fail_folder(location)
    if pin is None:
        fail(fault, str(location))
    return pin  # type: ignore[no-any-return]


def _fail_folder(location: Location) -> NoReturn:
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(location)) from None


def fail(fault: StoreError, name: str, what: str = "") -> NoReturn:
    """Raise the error for a fault, without the store's exception, which may hold signed addresses."""
    if fault.kind == "missing":
        slash = "; the address of a folder ends in a slash" if name.startswith("http") else ""
        what = fault.words if fault.specific else f"{os.strerror(errno.ENOENT)} ({fault.words}{slash})"
        raise FileNotFoundError(errno.ENOENT, what, name) from None
    if fault.kind == "denied":
        raise PermissionError(errno.EACCES, f"the store refuses it: {fault.words}", name) from None
    if fault.kind == "changed":
        raise FileChangedError("the object was changed, replaced or deleted after it was opened", path=name) from None
    msg = f"{what or 'it'} cannot be read from its store: {fault.words}"
    raise RemoteError(msg, path=name, remedy=fault.remedy) from None
