"""Writes models in several files: which tensors go into which numbered shard, and last the index that joins them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.core.arguments import DEFAULT_LIMITS, Options
from weightmap.core.bytes.atomic import no_directory, remove_leftovers, write_plan
from weightmap.core.bytes.open_source import is_missing
from weightmap.core.bytes.sink import WritePlan
from weightmap.core.formats import FORMATS, Format, Payload, Tensors, check_names
from weightmap.core.model.internals import dense_rows
from weightmap.core.model.single import INDEX_SUFFIX, USUAL_NAMES, check_replaceable, exists_already, open_file
from weightmap.core.native.access import Descriptor, refuse_loop, take_ownership
from weightmap.errors import EncodeError, Remedy, TargetError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence


# Most bytes of an index that `open` reads by default.
_MAX_INDEX_NBYTES = DEFAULT_LIMITS.max_header_bytes
# Errors of file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class ShardTarget(NamedTuple):
    """The place of a sharded model: ``FOLDER/STEM-00001-of-00008SUFFIX`` ..., and the index."""

    folder: str
    index_name: str
    stem: str
    suffix: str
    # The single file that the shards replace, if any.
    single: str = ""
    # Whether the whole directory belongs to the model: the caller named it, not a file in it.
    whole: bool = False

    @property
    def path(self) -> str:
        """The path of the index."""
        return os.path.join(self.folder, self.index_name)

    def names(self, count: int) -> list[str]:
        """Return the file names of `count` shards. Raises `TargetError` for a link: the caller did not choose it."""
        names = [f"{self.stem}-{i:05}-of-{count:05}{self.suffix}" for i in range(1, count + 1)]
        refuse_links(self.folder, names)
        return names

    def check_free(self, shards: Collection[str] = ()) -> None:
        """Raise `TargetError` if the index exists: writing its shards would change a model in use.

        Nor may all `shards` exist: in GGUF they are a model without an index. Nor may the directory have another model
        under a usual name: programs would open that instead.
        """
        check_replaceable(self.path.removesuffix(INDEX_SUFFIX))
        if shards and all(os.path.lexists(os.path.join(self.folder, name)) for name in shards):
            raise exists_already(os.path.join(self.folder, min(shards)))
        others = {*USUAL_NAMES, f"{self.stem}{self.suffix}"} - {self.index_name} if self.whole else ()
        for other in (os.path.join(self.folder, name) for name in sorted(others)):
            if os.path.lexists(other):
                msg = "this model exists already, and would be opened instead: remove it, or choose another target"
                raise TargetError(msg, path=other)
        if self.single and os.path.lexists(self.single):  # two models side by side would be ambiguous
            msg = "this file exists, and the new model takes several: remove it, or choose another target"
            raise TargetError(msg, path=self.single)


def refuse_links(folder: str, names: Iterable[str]) -> None:
    """Raise `TargetError` if one of these names in a directory is a link: writing would change a file elsewhere."""
    for path in (os.path.join(folder, name) for name in names):
        if os.path.islink(path):
            raise TargetError("this is a link, and would be written through: remove it", path=path)


def is_folder(path: str) -> bool:
    """Whether a target is a directory: an existing one, or a path that ends in a slash."""
    return path != "" and (not os.path.basename(path) or os.path.isdir(path))


def sharded_target(path: str, target_format: Format | None) -> ShardTarget | None:
    """Return the target of a sharded model if `path` names one, else None.

    A directory (one that exists, or a path that ends in a slash) gets the index ``model.SUFFIX.index.json``; any other
    path names an index, ``*.index.json``, whose name says the format unless `target_format` is given.

    Raises
    ------
    EncodeError
        When neither the name nor an argument gives the format.
    """
    if path.endswith(INDEX_SUFFIX):
        folder, index = os.path.split(path)
        stem, suffix = _split(index.removesuffix(INDEX_SUFFIX), target_format)
    elif is_folder(path):
        folder, stem, suffix = (
            os.path.join(path, ""),
            "model",
            target_format.suffixes[0] if target_format is not None else "",
        )
        index = f"{stem}{suffix}{INDEX_SUFFIX}"
    else:
        return None
    if not suffix:
        msg = "no writable format is known for the shards in this directory"
        if path.endswith(INDEX_SUFFIX):
            msg = f"this index must name the format of its shards, as model.safetensors{INDEX_SUFFIX} does"
        raise EncodeError(msg, path=path, remedy=Remedy("give {}", "format"))
    return ShardTarget(folder, index, stem, suffix, whole=not path.endswith(INDEX_SUFFIX))


def _split(name: str, target_format: Format | None) -> tuple[str, str]:
    """Return stem and suffix of the shards of an index of this name."""
    formats = FORMATS.values() if target_format is None else (target_format,)
    for suffix in (suffix for format_ in formats for suffix in format_.suffixes):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)] or "model", name[-len(suffix) :]
    return name or "model", "" if target_format is None else target_format.suffixes[0]


def encode_index(target: ShardTarget, where: Mapping[str, str], total: int, metadata: Mapping[str, Any]) -> bytes:
    """Return the content of an index: the shard of each tensor, the bytes of all tensors, and metadata.

    Raises `EncodeError` for an index that is longer than `open` reads by default.
    """
    content = {"metadata": {**metadata, "total_size": total}, "weight_map": where}
    data = f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode("utf-8", "surrogatepass")
    if len(data) > _MAX_INDEX_NBYTES:
        raise EncodeError(
            "size of the index", path=target.path, actual=len(data), expected=f"at most {_MAX_INDEX_NBYTES} bytes"
        )
    return data


def write_index(
    target: ShardTarget, where: Mapping[str, str], total: int, metadata: Mapping[str, Any], *, durable: bool = True
) -> int:
    """Write the index, which makes whole shards a model; return its size."""
    data = encode_index(target, where, total, metadata)
    return write_plan(target.path, WritePlan(len(data), lambda sink: sink.write(data)), durable=durable)


def tensor_bytes(path: str) -> int:
    """Return the bytes of all tensors of a file, as an index counts them."""
    with open_file(path, path, Options(DEFAULT_LIMITS, private=True)) as file:
        return sum(place.nbytes for place in dense_rows(file))


def write_shards(
    target: ShardTarget,
    shards: Sequence[tuple[WritePlan, Sequence[str]]],
    *,
    progress: Callable[[int, int], None] | None = None,
    durable: bool = True,
) -> int:
    """Write a model in several files, each from a plan with the names of its tensors; return the bytes of all files.

    Raises `TargetError`, and writes nothing, if the model exists or another run is writing it.
    """
    names = target.names(len(shards))
    where = {tensor: name for name, (_, tensors) in zip(names, shards, strict=True) for tensor in tensors}
    encode_index(target, where, 2**63, {})
    total, done, nbytes = sum(plan.size for plan, _ in shards), 0, 0
    with holding(target):
        target.check_free(names)
        with removing_new(target, names):
            for name, (plan, _) in zip(names, shards, strict=True):
                path = os.path.join(target.folder, name)
                done += write_plan(path, plan, progress=within(progress, done, plan.size, total), durable=durable)
                nbytes += tensor_bytes(path)
            done += write_index(target, where, nbytes, {}, durable=durable)
        remove_leftovers(target.folder, [*names, target.index_name])
    return done


@contextlib.contextmanager
def removing_new(target: ShardTarget, names: Iterable[str]) -> Iterator[None]:
    """After an error, remove the files of these names that were not there before, unless the index joins them.

    Also remove their folders within the target's, if new and empty.
    """
    below = {name.rsplit("/", count)[0] for name in names for count in range(name.count("/") + 1)}
    # The content of a folder comes before the folder.
    new = [path for name in sorted(below, reverse=True) if _is_new(path := os.path.join(target.folder, name))]
    try:
        yield
    except BaseException:
        for path in () if os.path.lexists(target.path) else new:
            with contextlib.suppress(OSError):  # it does not exist, or has other files
                (os.rmdir if os.path.isdir(path) else os.unlink)(path)
        raise


def _is_new(path: str) -> bool:
    """Whether a path is free. False if the system cannot tell, because we may only remove our own files."""
    try:
        os.lstat(path)
    except OSError as error:
        return is_missing(error)
    return False


def within(
    progress: Callable[[int, int], None] | None, done: int, share: int, total: int
) -> Callable[[int, int], None] | None:
    """Return the progress callback of a part, which follows `done` and makes up `share` of the total."""
    if progress is None:
        return None
    return lambda part, whole: progress(done + (share * part // whole if whole else share), total)


@contextlib.contextmanager
def holding(target: ShardTarget, part: int | None = None) -> Iterator[None]:
    """Hold a target, or one of the parts that ranks write; make its directory if only that is missing.

    A lock on the hidden file ``.INDEX.lock`` keeps other runs out, even on other machines if the file system shares
    locks. The lock ends with the process; the last run removes the file.

    Raises
    ------
    TargetError
        When another run holds the target, or this part of it.
    """
    new_folder = _make_folder(target)
    path = os.path.join(target.folder, f".{target.index_name}.lock")
    file: Descriptor | None = None
    try:
        while file is None or not _is_there(file, path):  # the run before may have just removed the file
            file = _open_lock(path, os.O_CREAT)
            if not _lock(file, 0 if part is None else part, 0 if part is None else 1):
                msg = "another run is writing this model: wait for its end, or choose another target"
                raise TargetError(msg, path=target.path)
        yield
    finally:
        folder = target.folder if new_folder else None
        try:
            _release(file, path, folder)
        except BaseException:  # an interrupt
            _release(file, path, folder)
            raise


def _release(file: Descriptor | None, path: str, folder: str | None) -> None:
    """Remove the file of a lock, unless other ranks hold their parts; and its folder, if empty.

    `file` is None if an interrupt came while it was being opened.
    """
    with contextlib.suppress(OSError):
        file = _open_lock(path) if file is None else file
        if _is_there(file, path) and _lock(file, 0, 0):
            os.unlink(path)
    del file  # before its folder goes
    if folder is not None:
        with contextlib.suppress(OSError):  # the folder is not empty
            os.rmdir(folder)


def _make_folder(target: ShardTarget) -> bool:
    """Make the directory of a target; say whether it was missing."""
    if not target.folder:
        return False
    try:
        os.mkdir(target.folder)
    except FileExistsError:
        if not os.path.isdir(target.folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target.folder) from None
        return False
    except FileNotFoundError:
        raise no_directory(os.path.dirname(target.folder.rstrip(os.sep)), target.folder) from None
    except OSError as error:
        refuse_loop(error, target.folder)
        raise
    return True


def _open_lock(path: str, flags: int = 0) -> Descriptor:
    """Open the file of a lock. Raises `TargetError` for a link, which might make a file elsewhere."""
    flags |= os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        return take_ownership(os.open, path, flags, 0o666)
    except OSError as error:
        refuse_links("", [path])
        refuse_loop(error, path)
        folder, name = os.path.split(path)
        error.filename = os.path.join(folder, name[1 : -len(".lock")])  # the caller names the index
        raise


def _is_there(file: Descriptor, path: str) -> bool:
    """Say whether the path still leads to this file."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(file: Descriptor, start: int, length: int) -> bool:
    """Lock bytes of a file, all from `start` on if the length is 0; return False if another run holds them."""
    if sys.platform == "win32":
        return True
    try:
        if sys.platform == "linux":  # a lock per descriptor also excludes another run in this process
            flock = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, flock)
        else:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in NO_LOCKS:
            raise
    return True


_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([A-Za-z]*)")


def bytes_of_size(size: int | str) -> int:
    """Return a size such as 5_000_000_000, "5GB" or "4.5GiB" in bytes. Raises ValueError for anything else."""
    nbytes = 0
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = None if match is None else _UNITS.get(match[2].upper().replace("IB", "iB"))
        if match is not None and unit is not None and (unit > 1 or "." not in match[1]):
            nbytes = int(float(match[1]) * unit)
    elif not isinstance(size, bool) and (hasattr(size, "__index__") or (isinstance(size, float) and size.is_integer())):
        nbytes = int(size)
    if nbytes < 1:
        raise ValueError(f"max_shard_size is {size!r}, expected a number of bytes, or a text such as '5GB' or '4GiB'")
    return nbytes


def write_split(
    path: str,
    target_format: Format,
    payloads: Sequence[Payload],
    max_nbytes: int,
    plan: Callable[[str, Sequence[Payload], tuple[int, int, int] | None], WritePlan],
    *,
    progress: Callable[[int, int], None] | None,
    durable: bool,
    overwrite: bool,
) -> None:
    """Write a model to files with up to `max_nbytes` bytes of tensors each, in their order.

    A model that fits into one file becomes that file, unless `path` is a directory or an index. A larger tensor gets a
    file for itself.

    Parameters
    ----------
    path : str
    target_format : Format
    payloads : sequence of Payload
    max_nbytes : int
    plan : callable
        ``plan(path, payloads, part)`` returns the plan of a file; its `Request` has the `part`.
    progress, durable, overwrite
        As for `save` and `Output`.
    """
    check_names([Tensors(payloads)])
    groups = _groups(payloads, max_nbytes)
    target = sharded_target(path, target_format)
    if target is None and len(groups) == 1:
        write_plan(path, plan(path, groups[0], None), progress=progress, durable=durable, overwrite=overwrite)
        return
    if target is None:
        target = shards_in_place_of(path, target_format)
    shards = [
        (
            plan(os.path.join(target.folder, name), group, (i, len(groups), len(payloads))),
            [payload.name for payload in group],
        )
        for i, (name, group) in enumerate(zip(target.names(len(groups)), groups, strict=True))
    ]
    write_shards(target, shards, progress=progress, durable=durable)


def _groups(payloads: Sequence[Payload], max_nbytes: int) -> list[list[Payload]]:
    groups: list[list[Payload]] = [[]]
    filled = 0
    for payload in payloads:
        if groups[-1] and filled + payload.nbytes > max_nbytes:
            groups.append([])
            filled = 0
        groups[-1].append(payload)
        filled += payload.nbytes
    return groups


def shards_in_place_of(path: str, target_format: Format) -> ShardTarget:
    """Return the target of a model whose single file would have been `path`: shards and index lie in its place."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    folder, name = os.path.split(path)
    suffix = next((suffix for suffix in target_format.suffixes if name.lower().endswith(suffix)), "")
    stem = name[: -len(suffix)] if suffix else name
    return ShardTarget(folder, f"{name}{INDEX_SUFFIX}", stem or "model", name[len(stem) :], path)
