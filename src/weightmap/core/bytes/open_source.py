"""Makes a `Source` from a path, a descriptor, a binary file object or a buffer; opens files that another file names."""

from __future__ import annotations

import errno
import io
import os
import posixpath
import re
import stat
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from weightmap._messages import quoted
from weightmap.core import hooks
from weightmap.core.arguments import Limits
from weightmap.core.bytes.source import CHUNK, Source
from weightmap.core.native.access import aligned, open_descriptor, refuse_loop, status_of, take_ownership
from weightmap.errors import FormatError, LayoutError, NotRegularFileError, TensorFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

_P = ParamSpec("_P")
_R = TypeVar("_R")


def is_missing(error: OSError) -> bool:
    """Whether an error means that a file does not exist: it is missing, its name impossible, or its folder a file."""
    return error.errno in (errno.ENOENT, errno.ENAMETOOLONG, errno.ENOTDIR)


def path_of(source: Any) -> str | None:
    """Return `source` as a path, or None if it is not one. Bytes are content, never a path.

    The address of an object in a store becomes a `Location`, a string with its store.
    """
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = os.fsdecode(os.fspath(source))
    if hasattr(path, "access"):
        return path
    if "://" in path:
        location: str = hooks.location_of(path)
        return location
    return str(path)


def takes_addresses(target: str, at: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a function that writes to the path `target`, its argument number `at`, also write to addresses in stores."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def call(*args: _P.args, **options: _P.kwargs) -> _R:
            address = path_of(args[at] if at < len(args) else options.get(target))
            if address is None or type(address) is str:
                return function(*args, **options)

            def write(path: str) -> _R:
                if at < len(args):
                    return function(*args[:at], path, *args[at + 1 :], **options)  # type: ignore[arg-type]
                return function(*args, **options | {target: path})  # type: ignore[arg-type]

            source = (args[0] if args else options.get("src")) if at else None
            run = options.get("run")
            overwrite = bool(getattr(options.get("output"), "overwrite", options.get("overwrite", True)))
            return hooks.write_to_address(write, address, source=source, run=run, overwrite=overwrite)  # type: ignore[no-any-return]

        return call

    return decorate


def is_directory(path: str) -> bool:
    """Whether a path is a directory, or an address has objects below it.

    Raises `OSError` if the system cannot tell; `os.path.isdir` would return False.
    """
    if type(path) is not str:
        return bool(path.has_names)  # type: ignore[attr-defined]
    try:
        return stat.S_ISDIR(status_of(path).st_mode)
    except OSError as error:
        if is_missing(error):
            return False
        raise


def names_in(folder: str, usual: Sequence[str]) -> list[str]:
    """Return the names in a directory; if a store cannot list, the `usual` ones that exist."""
    if type(folder) is not str:
        return folder.names(usual)  # type: ignore[attr-defined,no-any-return]
    try:
        return os.listdir(folder or os.curdir)
    except OSError as error:
        refuse_loop(error, folder)
        raise


def neighbours(path: str) -> list[str] | None:
    """Return the names in the directory of a file; None if it cannot be listed."""
    if type(path) is not str:
        return path.neighbours()  # type: ignore[attr-defined,no-any-return]
    try:
        return os.listdir(os.path.dirname(path) or os.curdir)
    except OSError:  # a directory may allow opening its files but not listing them
        return None


def inside(folder: str, name: str) -> str:
    """Return the path of a file in a directory."""
    return os.path.join(folder, name) if type(folder) is str else folder.inside(name)  # type: ignore[attr-defined]


def modified_at(path: str) -> float:
    """Return the modification time of a file, in seconds."""
    return os.stat(path).st_mtime if type(path) is str else path.modified  # type: ignore[attr-defined]


def called(path: str) -> str:
    """Return the name of a file in its directory."""
    return os.path.basename(path) if type(path) is str else path.called  # type: ignore[attr-defined]


def folder_of(path: str) -> str:
    """Return the directory of a file."""
    return os.path.dirname(path) if type(path) is str else path.folder  # type: ignore[attr-defined]


def sibling_path(path: str, name: str) -> str:
    """Return the path of a file in the directory of another."""
    return os.path.join(os.path.dirname(path), name) if type(path) is str else path.sibling(name)  # type: ignore[attr-defined]


def sibling_name(path: str, other: str) -> str:
    """Return the name by which `sibling_path` finds a file, given another one."""
    if type(path) is str:
        return path.removeprefix(os.path.join(os.path.dirname(other), ""))
    name: str = path.sibling_name(other)  # type: ignore[attr-defined]
    return name


def open_source(source: Any, path: str | None, mode: str) -> Source:
    """Open a `source` as `weightmap.open` accepts it; `path` is its `path_of`."""
    if path is not None:
        return Source(path, path, mode, open_descriptor(path)) if type(path) is str else hooks.open_location(path, mode)
    if isinstance(source, int) and not isinstance(source, bool):
        return _from_descriptor(source, mode)
    mmap = sys.modules.get("mmap")
    content = isinstance(source, memoryview) or (mmap is not None and isinstance(source, mmap.mmap))
    if not content and hasattr(source, "read"):
        return _from_object(source, mode)
    try:
        return from_buffer(source, mode)
    except TypeError:
        if not isinstance(source, (bytes, bytearray, memoryview, np.ndarray)):
            raise _no_source(source) from None
        raise


def from_path(path: str, mode: str) -> Source:
    """Open the file at `path`. Raises `IsADirectoryError` for a directory, and other `OSError` unchanged."""
    return Source(path, path, mode, open_descriptor(path)) if type(path) is str else hooks.open_location(path, mode)


def _from_descriptor(fd: int, mode: str) -> Source:
    """Open the file behind a descriptor of the caller, which is duplicated; its offset does not move."""
    try:
        file = take_ownership(os.dup, fd)
    except OverflowError:  # no descriptor has such a number
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    return Source(None, f"<file descriptor {fd}>", mode, file)


def take_over(shared: Any, path: str | None, identity: tuple[int, ...]) -> Source:
    """Open the sealed memory that a parent process handed over by `Source.to_child`."""
    return Source(path, path or "<sealed memory>", "sealed", take_ownership(shared.detach), identity=identity)


def from_buffer(data: Any, mode: str) -> Source:
    """Open the memory of a bytes-like object; mode "mmap" does not copy it."""
    view, name = memoryview(data), f"<{type(data).__name__}>"
    if not view.c_contiguous:
        raise TypeError(f"source is a {type(data).__name__} with strides {view.strides}, expected a contiguous buffer")
    octets = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
    if mode == "mmap":
        octets.flags.writeable = False
        return Source(None, name, mode, octets=octets, stable=isinstance(view.obj, bytes))
    if mode == "sealed" and len(octets):
        from weightmap.core.bytes.sealed import seal  # noqa: PLC0415 - few handles need it

        whole = memoryview(octets)
        try:
            file = seal(whole[start : start + CHUNK] for start in range(0, len(whole), CHUNK))
        except OSError as error:
            error.filename = name
            raise
        return Source(None, name, mode, file)
    copy = aligned(len(octets))
    copy[:] = octets
    return Source(None, name, mode, octets=copy)


def _from_object(file: Any, mode: str) -> Source:
    """Open a binary file object by its descriptor if it has one, else read its whole content."""
    if isinstance(file, io.TextIOBase):
        raise TypeError("source is a file in text mode, expected a binary file object")
    if isinstance(file, io.BytesIO):
        return from_buffer(file.getbuffer(), mode)
    try:
        fd = file.fileno()
    except (AttributeError, OSError):
        if not (hasattr(file, "tell") and hasattr(file, "seek")):
            raise _no_source(file) from None
        position = file.tell()
        file.seek(0)
        data = file.read()
        file.seek(position)
        return from_buffer(data, mode)
    return _from_descriptor(fd, mode)


def _no_source(what: Any) -> TypeError:
    expected = "a path, a file descriptor, a binary file object or a bytes-like object"
    return TypeError(f"source is a {type(what).__name__}, expected {expected}")


# ----------------------------------------------------------------------------------------------------
# Files that another file names: they lie in its directory, and are opened in its mode.

# An empty part of a path, or dots followed by blanks: a system may read these as "." or "..".
_UPWARDS = r"(?:^|[/\\])[.\s]*(?:$|[/\\])"
# Most links in a row, as Linux follows them; the name of a shared blob
_MAX_LINKS = 40
_SHARED = "[0-9a-f]{64}"
# Layers of percent-encoding that are undone.
_ROUNDS = 8


def stays_inside(name: str) -> bool:
    """Whether a name is a plain relative path that stays within its directory, however it is encoded."""
    bad = any(character in name for character in "\\:\0")
    return not bad and not any(re.search(_UPWARDS, spelling) for spelling in _spellings(name))


def is_hidden(name: str) -> bool:
    """Whether a part of a name begins with a dot: programs such as git trust the files below hidden folders."""
    return "/." in f"/{name}"


def plain(name: str) -> str:
    """Return a relative path without redundant parts such as ``./``, from its text alone.

    Examples
    --------
    >>> from weightmap.core.bytes.open_source import plain
    >>> plain("./model.data"), plain("a/./../model.data"), plain("../model.data")
    ('model.data', 'model.data', '../model.data')
    """
    return posixpath.normpath(name) if name else name


def _spellings(name: str) -> Iterator[str]:
    """Yield a name and its repeated decodings, which servers and proxies may apply."""
    for _ in range(_ROUNDS):
        yield name
        if "%" not in name:
            return
        from urllib.parse import unquote  # noqa: PLC0415 - a tenth of a first opening; few names have a percent sign

        decoded = unquote(name)
        if decoded == name:
            return
        name = decoded
    yield ".."


def blob_of(path: str) -> str | None:
    """Return the path of the blob that a file of the Hub's cache links to; None for any other file.

    ``models--o--n/snapshots/COMMIT/NAME`` links to ``models--o--n/blobs/DIGEST``, which is a file, or itself a link to
    a file that repositories share (`is_shared`).
    """
    for _ in range(_MAX_LINKS):
        folder, name = os.path.realpath(os.path.dirname(path)), os.path.basename(path)
        above, kind = os.path.split(folder)
        if kind == "blobs" and os.path.isdir(os.path.join(above, "snapshots")):
            return os.path.join(folder, name)
        try:
            path = os.path.join(folder, os.readlink(os.path.join(folder, name)))
        except (OSError, ValueError):  # no link
            return None
    return None


def is_shared(real: str, blob: str) -> bool:
    """Whether repositories share a file, in the cache that has this blob.

    huggingface_hub keeps shared files as ``blobs/XX/XXYYYY...`` beside ``models--o--n``; a file marks the folder.
    """
    store = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(blob))), "blobs")
    name = os.path.basename(real)
    is_there = re.fullmatch(_SHARED, name) is not None and real == os.path.join(store, name[:2], name)
    return is_there and os.path.isfile(os.path.join(store, ".huggingface-shared-blobs"))


# With more files than this, descriptors are closed: systems grant a process 256 or 1024.
MAX_OPEN = 64


def open_beside(source: Source, name: str) -> Source:
    """Open another file in the directory of `source` that holds some of its tensors, in the same mode.

    Raises
    ------
    LayoutError
        For a name or link to another directory, and for a missing file. ``./`` and the like in a name are ignored.
    UnsupportedError
        When `source` was not opened by path.
    """
    path = source.path
    if path is None:
        raise UnsupportedError(f"tensors lie in {quoted(name)}, beside this file: open it by its path")
    target = sibling_path(path, plain(name))
    if not stays_inside(plain(name)) or (type(path) is str and not is_near(target, path)):
        expected = "a file in the same directory"
        raise LayoutError("a file with tensors", field="location", actual=quoted(name), expected=expected)
    try:
        sibling = from_path(target, source.mode)
    except (IsADirectoryError, NotRegularFileError):
        raise LayoutError(f"{quoted(name)}, in which tensors lie, is not a regular file", field="location") from None
    except OSError as error:
        if not is_missing(error):
            raise
        raise LayoutError(f"file {quoted(name)}, in which tensors lie, is missing", field="location") from None
    try:
        sibling.follow(source)
    except BaseException:
        sibling.close()
        raise
    return sibling


def open_all_beside(source: Source, names: Collection[str]) -> list[Source]:
    """Open files as `open_beside` does; after an error, none stays open."""
    siblings: list[Source] = []
    try:
        for name in names:
            siblings.append(open_beside(source, name))
            if len(names) > MAX_OPEN:
                siblings[-1].release_descriptor()
    except BaseException:
        for opened in siblings:
            opened.close()
        raise
    return siblings


def is_near(path: str, other: str) -> bool:
    """Whether a file really lies below the directory of another file, or below the directory of its link target.

    Files of one repository in the Hub's cache are near, wherever the cache stores them.
    """
    if os.path.dirname(path) == os.path.dirname(other) and not _is_link(path):
        return True
    real = os.path.realpath(path)
    folders = os.path.realpath(os.path.dirname(other)), os.path.dirname(os.path.realpath(other))
    if any(real.startswith(os.path.join(folder, "")) for folder in folders):
        return True
    blob_, blob = blob_of(other), blob_of(path)
    if blob_ is None or blob is None or os.path.dirname(blob_) != os.path.dirname(blob):
        return False
    return real == blob or is_shared(real, blob)


def _is_link(path: str) -> bool:
    """Whether a path is a link; `os.path.islink` takes a path that the system cannot look up for none."""
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # or a name with NUL
        return False


def check_near(path: str, other: str) -> None:
    """Raise `FormatError` if a link leads away from a model's file `other`: copies of the target may be published."""
    if type(path) is str and not is_near(path, other):
        expected = "a file below its directory, or of the same repository in a cache: copy it there"
        raise FormatError("where the link leads", path=path, expected=expected)


def read_small(path: str, trust: Any = None, model: str | None = None) -> bytes | None:
    """Return the content of a small file, or None if it is missing.

    `trust` has its required digest. `model` is its model, if the content may be published: see `check_near`.
    """
    if model is not None:
        check_near(path, model)
    try:
        source = from_path(path, "copy")
    except FileNotFoundError:
        return None
    try:
        Limits().check("max_header_bytes", source.size, "size of the file")
        if trust is not None:
            trust.admit(source)
        return source.pread(0, source.size)
    except TensorFileError as error:
        raise error.located(path=path) from None
    finally:
        source.close()
