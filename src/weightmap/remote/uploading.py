"""Writing to stores: files are made in a folder of the system, and become objects once all of them are complete.

A store renames nothing, and an object appears with its last byte. So one file replaces its object in one step; of
several files, none of which may be there, the index comes last, and a failure removes the written ones. Ours: the
specifications leave it open.
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
    """Call `write` with a path in a folder of its own, and write what is there then to the address.

    Parameters
    ----------
    write : callable
        Its result has the address as its `dst`, if it has one.
    address : Location
    source : str, os.PathLike or TensorFile
        May not be the address, nor lie in its folder.
    run : Run, optional
        May not share the work with other processes.
    overwrite : bool
        Whether an object of that name is replaced.
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
    """Yield a path; what is there in the end, and what was made beside it, is written to the address."""
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
        # A list that is shared with other models comes behind them all: a failure leaves it as it was.
        for name in names:
            if name not in written:
                folder.inside(name).put(os.path.join(at, name))


def upload(folder: Location, at: str, names: Iterable[str], *, new: bool) -> None:
    """Write files of the folder `at` as objects, one after another.

    With `new`, none of them may exist, and a failure removes the written ones. A store has no locks: the claim, a small
    object, tells other writers that these objects are being written.

    Raises
    ------
    FileExistsError
        With `new`, when one is there already.
    TargetError
        With `new`, when another process writes them.
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
    """Claim a model of several objects while they are written: by an object beside its last one, made at a path."""
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
    """Raise `TargetError` if one of these objects is there."""
    targets = {name.replace(os.sep, "/").partition("/")[0] for name in names}
    try:
        existing = {name.rstrip("/") for name in folder.inside("").names(sorted(targets))} & targets
    except (FileNotFoundError, NotADirectoryError):
        return
    if existing:
        raise TargetError(_EXISTS, path=folder.inside(min(existing)))


def _check_source(source: Any, address: Location) -> None:
    """Raise `TargetError` for the source's own address, one in its folder, or one of an object that it has opened.

    A source may have another name than the address: objects are known by size, tag and time.
    """
    name = path_of(source) if isinstance(source, (str, os.PathLike)) else getattr(source, "path", None)
    path = "" if name is None else str(name).rstrip("/")
    path = path.rpartition("/")[0] if path.endswith(INDEX_SUFFIX) else path
    opened = {one.identity for one in getattr(source, "_sources", ()) if one.store is not None}
    is_same = path and f"{address.rstrip('/')}/".startswith(f"{path}/")
    if is_same or (opened and not address.is_folder and address.state in opened):
        raise TargetError("the target is the source, or lies in its folder", path=address)


def _at(address: Location, path: str, file: str) -> str:
    """Return the address of a file that was written at a path, or in the same folder."""
    folder, at = (address, path) if os.path.isdir(path) else (address.folder, os.path.dirname(path))
    name = os.path.relpath(file, at)
    return str(address if name == "." else folder.inside(name))
