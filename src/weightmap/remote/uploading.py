"""Writing to stores: files are made in a local folder, and become objects once all of them are complete.

A store cannot rename, and an object appears with its last byte. So a single file replaces its object in one step. If a
model has several files, none may exist in the store; the index is written last, and a failure removes the objects
already written. This is our choice: the specifications leave it open.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from weightmap.core.bytes.atomic import scratch_folder
from weightmap.core.bytes.open_source import path_of, read_small
from weightmap.core.model.single import INDEX_SUFFIX, USUAL_NAMES
from weightmap.errors import EncodeError, TargetError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from weightmap.remote.location import Location

_SUMS = "SHA256SUMS"
_CLAIM = ".upload"
_EXISTS = "this object exists already, and is not replaced: remove it, or choose another target"
_WRITTEN = "another process has written this object meanwhile, and it is not replaced: choose another target"


def write_to_address(
    write: Callable[[str], Any], address: Location, *, source: Any, run: Any = None, overwrite: bool
) -> Any:
    """Call `write` with a path in a scratch folder, and write the files made there to the address.

    Parameters
    ----------
    write : callable
        If its result has a `dst`, the address replaces it.
    address : Location
    source : str, os.PathLike or TensorFile
        Must not be the address, nor contain it as a folder.
    run : Run, optional
        Must not share the work with other processes.
    overwrite : bool
        Whether to replace an object of this name.
    """
    if run is not None and (run.executor, run.manifest, run.world_size) != (None, None, 1):
        raise ValueError(f"run shares the work through a file system, and {address} is an address")
    with _filled(address, source, overwrite=overwrite) as path:
        result = write(path)
        if hasattr(result, "dst"):
            result = result._replace(dst=_at(address, path, os.path.abspath(result.dst)))
    return result


@contextlib.contextmanager
def _filled(address: Location, source: Any, *, overwrite: bool) -> Iterator[str]:
    """Yield a path; at the end, write the files there, and beside it, to the address."""
    if not address.takes_objects:
        raise EncodeError("this address is for reading: write to a folder or a store", path=address)
    _check_source(source, address)
    with scratch_folder() as room:
        is_folder = address.has_names
        path = os.path.join(room, address.rstrip("/").rpartition("/")[2] or "model")
        if is_folder:
            os.mkdir(path)
            _check_free(address, USUAL_NAMES)
        else:
            _check_free(address.folder, [address.called + INDEX_SUFFIX, *(() if overwrite else [address.called])])
            sums = read_small(address.sibling(_SUMS))
            if sums is not None:
                with open(os.path.join(room, _SUMS), "wb") as file:
                    file.write(sums)
        try:
            yield os.path.join(path, "") if is_folder else path
        except TensorFileError as error:
            if error.path is not None and error.path.startswith(room):
                error.path = _at(address, path, error.path)
            raise
        at, folder = (path, address) if os.path.isdir(path) else (room, address.folder)
        names = sorted(os.path.relpath(os.path.join(up, name), at) for up, _, inner in os.walk(at) for name in inner)
        if not is_folder and sums is not None and (room, _SUMS) == (at, names[0]):
            with open(os.path.join(room, _SUMS), "rb") as file:
                names = names[1:] if file.read() == sums else names
        written = [name for name in names if at == path or name != _SUMS]
        if len(written) > 1:
            _check_free(folder, written)
        else:
            _check_source(source, folder.inside(written[0]))
        last = next((name for name in written if name.endswith(INDEX_SUFFIX)), written[0])
        in_order = [*(name for name in written if name != last), last]
        try:
            upload(folder, at, in_order, new=len(written) > 1 or not overwrite)
        except FileExistsError as error:
            raise TargetError(_WRITTEN, path=error.filename) from None
        # A list shared with other models comes last, so that a failure leaves it unchanged.
        for name in names:
            if name not in written:
                folder.inside(name).put(os.path.join(at, name))


def upload(folder: Location, at: str, names: Iterable[str], *, new: bool) -> None:
    """Write files of the folder `at` as objects, one after another.

    With `new`, no object may exist, and a failure removes the written ones. A store has no locks: instead, a small
    object, the claim, tells other writers that these objects are being written.

    Raises
    ------
    FileExistsError
        With `new`, when an object already exists.
    TargetError
        With `new`, when another process is writing them.
    PermissionError, RemoteError
    """
    every = [(folder.inside(name), os.path.join(at, name)) for name in names]
    done = []
    last, path = every[-1]
    with _claimed(last, path + _CLAIM) if new and len(every) > 1 else contextlib.nullcontext():
        try:
            for location, path in every:
                done.append((location, location.put(path, new=new)))
        except BaseException:
            for location, tag in done if new else ():
                location.remove(tag)
            raise


@contextlib.contextmanager
def _claimed(last: Location, path: str) -> Iterator[None]:
    """Claim a model of several objects while writing it, by an object beside the last one, from a file at `path`."""
    claim = last.sibling(last.called + _CLAIM)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{os.urandom(16).hex()}: {last.called} is being written by weightmap\n")
    try:
        tag = claim.put(path, new=True)
    except FileExistsError:
        what = "another process is writing this model, or was killed meanwhile: if none is, remove this object"
        raise TargetError(what, path=claim) from None
    try:
        yield
    finally:
        claim.remove(tag)


def _check_free(folder: Location, names: Iterable[str]) -> None:
    """Raise `TargetError` if one of these objects exists."""
    targets = {name.replace(os.sep, "/").partition("/")[0] for name in names}
    try:
        existing = {name.rstrip("/") for name in folder.inside("").names(sorted(targets))} & targets
    except (FileNotFoundError, NotADirectoryError):
        return
    if existing:
        raise TargetError(_EXISTS, path=folder.inside(min(existing)))


def _check_source(source: Any, address: Location) -> None:
    """Raise `TargetError` if the address is the source's, lies in its folder, or leads to an object it has opened.

    The source may have another name for the object: size, tag and time identify it.
    """
    name = path_of(source) if isinstance(source, (str, os.PathLike)) else getattr(source, "path", None)
    path = "" if name is None else str(name).rstrip("/")
    path = path.rpartition("/")[0] if path.endswith(INDEX_SUFFIX) else path
    opened = {one.identity for one in getattr(source, "_sources", ()) if one.store is not None}
    is_same = path and f"{address.rstrip('/')}/".startswith(f"{path}/")
    if is_same or (opened and not address.is_folder and address.state in opened):
        raise TargetError("the target is the source, or lies in its folder", path=address)


def _at(address: Location, path: str, file: str) -> str:
    """Return the address for a file that was written at or below `path`, or beside it."""
    folder, at = (address, path) if os.path.isdir(path) else (address.folder, os.path.dirname(path))
    name = os.path.relpath(file, at)
    return str(address if name == "." else folder.inside(name))
