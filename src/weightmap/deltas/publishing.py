"""`publish`: writes the changes between two models as a version in a source directory."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import quoted
from weightmap.conversion.converting import convert
from weightmap.core.arguments import as_integer, as_path, as_threads, check_progress, names_moved
from weightmap.core.bytes import Range
from weightmap.core.bytes.atomic import Folder, flush_folder, name_error, write_plan
from weightmap.core.bytes.open_source import inside, names_in, path_of
from weightmap.core.bytes.sink import WritePlan, write_all
from weightmap.core.dtypes import DTYPES
from weightmap.core.formats import Payload, Request, Tensors, by_name
from weightmap.core.model.internals import dense_rows, name_of, parts_of, rows_of, sources_of
from weightmap.core.model.listing import CHECKSUMS, new_sum
from weightmap.core.model.opening import Model, as_handle
from weightmap.core.model.sharding import ShardTarget, bytes_of_size, holding
from weightmap.core.native import access
from weightmap.deltas.frames import BLOCK, ENCODINGS, MAX_POSITIONS, encoded
from weightmap.deltas.versions import INDEX, MAX_VERSION, SINGLE, folder_at, version_name
from weightmap.deltas.writing import Tree, exhaust
from weightmap.errors import DeltaError, EncodeError, Remedy, TargetError
from weightmap.huggingface.companion_files import CompanionFiles
from weightmap.remote.uploading import upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row


class DeltaReport(NamedTuple):
    """The result of `publish`, `apply` and `pull`.

    Attributes
    ----------
    version, base_version : int
        The published or current version, and its base or the previous version.
    tensors : int
        Number of tensors that changed.
    changed_nbytes : int
        Bytes of these tensors.
    stored_nbytes : int
        Bytes of the files of deltas and full versions that were written or read.
    total_nbytes : int
        Bytes of all tensors of the model.
    seconds : float
        Duration.
    full : bool
        Whether `publish` wrote a full version.
    reason : str
        The reason for an unrequested full version: a change that a delta cannot express, with the name of a tensor.
    """

    version: int
    base_version: int
    tensors: int
    changed_nbytes: int
    stored_nbytes: int
    total_nbytes: int
    seconds: float
    full: bool = False
    reason: str = ""


# Bytes to write at once, because a sparse frame comes in many small pieces.
_SPOOL_BYTES = 1 << 18
# Levels of zstd.
_LEVELS = range(1, 23)


@names_moved
def publish(
    base: Model,
    new: Model,
    directory: str | os.PathLike[str],
    *,
    version: int,
    base_version: int | None = None,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    level: int = 1,
    max_shard_size: int | str = "5GB",
    full: bool | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DeltaReport:
    """Publish the changes from one model to the next as ``weight_vNNNNNN/`` in a directory.

    slime, SGLang's ``/pull_weights`` and NVIDIA's ModelExpress use this layout. The version appears complete, in one
    step: its files, with the index last, are written and flushed in a hidden directory, which is then renamed.

    Parameters
    ----------
    base, new : TensorFile, or anything else that `weightmap.open` takes
        The model before, which receivers have as `base_version`, and the model after. Their shards may differ. Tensors
        are compared byte by byte. Handles stay open.
    directory : str or os.PathLike
        The source directory; made if it does not exist. Or its address in a store that takes objects (``s3://``,
        ``gs://``, ``az://``): the version is then made in the system's directory for temporary files, and the file that
        completes it is uploaded last.
    version : int
        From 1 on, of at most 18 digits: seconds of a clock fit, nanoseconds do not.
    base_version : int, optional
        By default the version before, which must be in the directory unless it is 0 or this version is full.
    encoding : {"xor", "overwrite"}
        "xor" stores the differing bits of every byte, "overwrite" the positions and values of changed bytes, for
        tensors of up to 4 GiB.
    checksum : {"xxh3-128", "blake3", "adler32"}
        ModelExpress reads only "adler32", which is weak, with "xor". A checksum does not show who wrote the delta,
        because it lies in the file that it protects.
    level : int
        Level of zstd, from 1 to 22.
    max_shard_size : int or str
        The most bytes per file, such as ``"5GB"``. A larger tensor gets its own file.
    full : bool, optional
        True publishes a full version: all of `new`, as a checkpoint in safetensors with the files beside it. A delta
        cannot express new or missing tensors, or a changed shape or dtype: None then publishes a full version, and the
        report says why; False raises an error.
    threads : int, optional
        The most threads that share the work, tensor by tensor; by default one for each CPU of this process.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes of tensors.

    Returns
    -------
    DeltaReport

    Raises
    ------
    TargetError
        When the version exists, or another run is writing it; or when the version before is missing.
    DeltaError
        When a delta cannot express the difference, and `full` is False.
    EncodeError
        When `new` has tensors that safetensors cannot hold, or tensors that are too large for "overwrite".
    ValueError
        For an unknown encoding, checksum or level, and for versions that do not follow each other.
    MissingDependencyError
        When the extra ``[deltas]`` is not installed.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> from weightmap import deltas
    >>> wm.save("old.safetensors", {"a": np.zeros(1000, np.float32), "b": np.ones(5)})
    >>> wm.save("new.safetensors", {"a": np.arange(1000, dtype=np.float32), "b": np.ones(5)})
    >>> report = deltas.publish("old.safetensors", "new.safetensors", "published", version=1)
    >>> report.tensors, report.changed_nbytes, report.total_nbytes
    (1, 4000, 4040)
    """
    started = time.perf_counter()
    number = as_integer("version", version)
    before = number - 1 if base_version is None else as_integer("base_version", base_version)
    if not 0 <= before < number < MAX_VERSION:
        limits = "0 <= base_version < version < 10**18"
        raise ValueError(f"version is {number} and base_version {before}, expected {limits}")
    count = access.cpus() if threads is None else as_threads(threads)
    check_progress(progress)
    how = _Encoding.of(encoding, checksum, level, max_shard_size)
    address = path_of(directory)
    source: Any = as_path("directory", directory) if address is None else address
    needed = None if base_version is not None or before == 0 else inside(source, version_name(before))
    job = _Job(base, new, number, before, needed, how, full, count, progress)
    report = _publish(job, source) if type(source) is str else _publish_to_store(job, source)
    return report._replace(seconds=time.perf_counter() - started)


class _Job(NamedTuple):
    """A version to publish; `needed` is the version before, if a delta needs it."""

    base: Any
    new: Any
    version: int
    base_version: int
    needed: Any
    how: _Encoding
    full: bool | None
    threads: int
    progress: Callable[[int, int], None] | None


def _publish(job: _Job, folder: str) -> DeltaReport:
    """Publish to a directory."""
    name, full = version_name(job.version), job.full
    target = ShardTarget(os.path.join(folder, ""), name, "model", ".safetensors")
    final, hidden = os.path.join(folder, name), os.path.join(folder, f".{name}.tmp")
    with as_handle(job.base) as old, as_handle(job.new) as now, _folders(folder), holding(target):
        if os.path.lexists(final):
            raise _exists(final)
        with _new_folder(folder, os.path.basename(hidden)):
            difference = _inexpressible(old, now)
            if difference is not None and full is False:
                raise DeltaError(f"{difference}: only a full version can express that", path=name_of(now))
            is_full = bool(full) or difference is not None
            if is_full:
                changed = _write_full(now, job.new, hidden, job.how, job.progress)
            else:
                _check_needed(job)
                encoder = _Encoder(old, now, job.how, hidden, job.progress)
                changed = encoder.write(job.version, job.base_version, job.threads)
            stored = sum(entry.stat().st_size for entry in os.scandir(hidden) if entry.name.endswith(".safetensors"))
            _reveal(hidden, final, folder)
        sizes = {name: row.nbytes for name, row in zip(now, rows_of(now), strict=True)}
        changed_nbytes, total = sum(sizes[name] for name in changed), sum(sizes.values())
        reason = "" if full or difference is None else f"{difference}, which a delta cannot express"
        versions = job.version, job.base_version
        return DeltaReport(*versions, len(changed), changed_nbytes, stored, total, 0.0, is_full, reason)


@contextlib.contextmanager
def _folders(path: str) -> Iterator[None]:
    """Make a folder and its missing parents; at the end, remove the new ones that are empty."""
    new, parent = list[str](), os.path.abspath(path)
    while not os.path.lexists(parent) and parent != os.path.dirname(parent):
        new.append(parent)
        parent = os.path.dirname(parent)
    try:
        os.makedirs(path, exist_ok=True)
        yield
    finally:
        for each in new:
            with contextlib.suppress(OSError):
                os.rmdir(each)


@contextlib.contextmanager
def _new_folder(folder: str, name: str) -> Iterator[None]:
    """Make a folder, and remove it at the end, even if the removal is interrupted once."""
    tree = Tree.of(folder)
    try:
        tree.clear(name)  # left by a killed run
        tree.make(name)
        yield
    except OSError as error:
        name_error(error, os.path.join(folder, name))
        if isinstance(error.filename, str):  # the folder gets its final name only when it is complete
            error.filename = error.filename.replace(name, name.removeprefix(".").removesuffix(".tmp"))
        raise
    finally:
        try:
            tree.clear(name)
        except BaseException:
            tree.clear(name)
            raise


def _is_version(path: str) -> bool:
    """Whether a path is a finished version."""
    try:
        return not {INDEX, SINGLE}.isdisjoint(names_in(folder_at(path), (INDEX, SINGLE)))
    except FileNotFoundError:
        return False


def _check_needed(job: _Job) -> None:
    """Raise `TargetError` if the version that a delta would be built on is not published."""
    if job.needed is not None and not _is_version(job.needed):
        what = f"version {job.base_version}, on which version {job.version} would be built, is missing"
        raise TargetError(what, path=job.needed, remedy=Remedy("give {}, the version of the base", "base_version"))


def _publish_to_store(job: _Job, address: Any) -> DeltaReport:
    """Publish at an address. A store has no locks: only one publisher may run at a time."""
    final = inside(address, version_name(job.version))
    if _is_version(final):
        raise _exists(final)
    workspace = os.path.join(tempfile.gettempdir(), f"weightmap-{os.urandom(8).hex()}")
    with _new_folder(*os.path.split(workspace)):
        report = _publish(job, workspace)
        root = os.path.join(workspace, version_name(report.version))
        names = [os.path.relpath(os.path.join(at, name), root) for at, _, files in os.walk(root) for name in files]
        last = INDEX if INDEX in names else SINGLE
        try:
            upload(final, root, [*sorted(set(names) - {last}), last], new=True)  # type: ignore[arg-type]
        except FileExistsError:
            raise _exists(final) from None
    return report


def _reveal(hidden: str, final: str, folder: str) -> None:
    """Flush a complete version, and give it its final name."""
    for path, _, _ in os.walk(hidden):
        flush_folder(path)
    opened = Folder(folder)  # first, so that an error leaves no version
    try:
        os.rename(hidden, final)
    except OSError:
        if os.path.lexists(final):
            raise _exists(final) from None
        raise
    flush_folder(folder, opened)


def _exists(final: str) -> TargetError:
    return TargetError("this version exists: publish another one", path=final)


class _Encoding(NamedTuple):
    """The checked arguments for the form of a delta."""

    encoding: str
    checksum: str
    level: int
    max_shard_size: int

    @classmethod
    def of(cls, encoding: str, checksum: str, level: int, max_shard_size: int | str) -> _Encoding:
        """Check the arguments of `publish`."""
        for name, value, values in (("encoding", encoding, ENCODINGS), ("checksum", checksum, tuple(CHECKSUMS))):
            if value not in values:
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(values)}")
        if as_integer("level", level) not in _LEVELS:
            raise ValueError(f"level is {level}, expected 1 to {_LEVELS[-1]}")
        return cls(encoding, checksum, level, bytes_of_size(max_shard_size))


def _inexpressible(old: TensorFile, now: TensorFile) -> str | None:
    """Return a difference of two models that a delta cannot express, or None."""
    rows = dict(zip(old, rows_of(old), strict=True))
    for name, row in zip(now, rows_of(now), strict=True):
        before = rows.get(name)
        if before is None:
            return f"tensor {quoted(name)} appeared"
        if (before.dtype.name, before.shape) != (row.dtype.name, row.shape):
            kinds = f"from {before.dtype.name} {list(before.shape)} to {row.dtype.name} {list(row.shape)}"
            return f"tensor {quoted(name)} changed {kinds}"
    removed = next((name for name in old if name not in now), None)
    return None if removed is None else f"tensor {quoted(removed)} vanished"


def _write_full(
    now: TensorFile, new: Any, hidden: str, how: _Encoding, progress: Callable[[int, int], None] | None
) -> list[str]:
    """Write a checkpoint of all tensors; return their names."""
    convert(new, os.path.join(hidden, SINGLE), max_shard_size=how.max_shard_size, progress=progress)
    path = sources_of(now)[0].path
    if path is not None:
        CompanionFiles(path, hidden, parts_of(now)[2].trust, replace=True).copy()
    return list(now)


class _Frame(NamedTuple):
    """An encoded tensor: its parts in the spool file, and the checksum of its new bytes."""

    parts: list[Range]
    digest: str

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class _Encoder:
    """Encodes the tensors that changed, by threads, and writes them to the files of a delta.

    Frames first go to a nameless spool file, because the headers of the files need their sizes.
    """

    def __init__(
        self,
        old: TensorFile,
        now: TensorFile,
        how: _Encoding,
        hidden: str,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._how, self._hidden, self._progress = how, hidden, progress
        before = dict(zip(old, dense_rows(old), strict=True))
        self._pairs = {name: (before[name], row) for name, row in zip(now, dense_rows(now), strict=True)}
        self._total, self._done = sum(row.nbytes for _, row in self._pairs.values()), 0
        for name, (_, row) in self._pairs.items():
            if how.encoding == "overwrite" and row.nbytes > MAX_POSITIONS:
                what = f"bytes of tensor {quoted(name)}"
                raise EncodeError(
                    what, actual=row.nbytes, expected=f'at most {MAX_POSITIONS} with encoding="overwrite"'
                )
        self._lock, self._end = threading.Lock(), 0
        self._frames: dict[str, _Frame] = {}
        path = os.path.join(hidden, "frames")
        self._spool = access.take_ownership(os.open, path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)

    def write(self, version: int, base_version: int, threads: int) -> list[str]:
        """Write the delta; return the names of the tensors in it."""
        names = sorted(self._pairs, key=lambda name: -self._pairs[name][1].nbytes)
        self._report(0)
        exhaust([self._encode(name) for name in names], threads, self._report)
        frames = {name: self._frames[name] for name in self._pairs if name in self._frames}
        file_of = self._write_files(frames)
        metadata = {
            "version": f"{version:06}",
            "base_version": f"{base_version:06}",
            "delta_encoding": self._how.encoding,
            "compression_format": "zstd",
            "checksum_format": self._how.checksum,
        }
        data = json.dumps({"metadata": metadata, "weight_map": file_of}, indent=2, ensure_ascii=False).encode()
        write_plan(os.path.join(self._hidden, INDEX), WritePlan(len(data), lambda sink: sink.write(data)))
        return list(frames)

    def _report(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _encode(self, name: str) -> Iterator[int]:
        """Encode a tensor into the spool file, if it changed; yield 0 on the way, and its bytes at the end."""
        before, row = self._pairs[name]
        for old, new in _blocks(before, row):
            if not np.array_equal(old, new):
                break
            yield 0
        else:
            yield row.nbytes
            return
        digest = new_sum(self._how.checksum)
        summed = 0

        # An encoding may walk the blocks more than once; the digest takes each block the first time.
        def blocks() -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
            nonlocal summed
            at = 0
            for old, new in _blocks(before, row):
                yield old, new
                at += len(new)
                if at > summed:
                    digest.update(new)
                    summed = at

        parts: list[Range] = []
        pending = bytearray()

        def spool() -> None:
            with self._lock:
                at, self._end = self._end, self._end + len(pending)
            parts.append(Range(at, at + len(pending)))
            write_all(self._spool, memoryview(pending), at)
            pending.clear()

        for piece in encoded(blocks, row.nbytes, self._how.encoding, self._how.level):
            pending += piece
            if len(pending) >= _SPOOL_BYTES:
                spool()
                yield 0
        spool()
        self._frames[name] = _Frame(parts, digest.hexdigest())
        yield row.nbytes

    def _write_files(self, frames: dict[str, _Frame]) -> dict[str, str]:
        """Write the files of a delta; return the file of each tensor."""
        groups: list[list[str]] = []
        filled = 0
        for name, frame in frames.items():
            if not groups or filled + frame.nbytes > self._how.max_shard_size:
                groups.append([])
                filled = 0
            groups[-1].append(name)
            filled += frame.nbytes
        file_of: dict[str, str] = {}
        plan = by_name("safetensors").plan
        assert plan is not None  # noqa: S101 - for the type checker
        for number, group in enumerate(groups):
            file = f"model-{number:05}-of-{len(groups):05}.safetensors"
            payloads = [
                Payload(name, DTYPES["uint8"], (frames[name].nbytes,), frames[name].nbytes, self._read, frames[name])
                for name in group
            ]
            sums = {name: frames[name].digest for name in group}
            write_plan(os.path.join(self._hidden, file), plan(Request(Tensors(payloads), "safetensors", sums)))
            file_of |= dict.fromkeys(group, file)
        return file_of

    def _read(self, frame: _Frame) -> Iterator[bytearray]:
        for part in frame.parts:
            yield access.read_bytes(self._spool, part.nbytes, part.begin, self._hidden)


def _blocks(old: Row, new: Row) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield the bytes of two tensors of one size, block by block."""
    for old_block, new_block in zip(old.chunks(BLOCK), new.chunks(BLOCK), strict=True):
        yield np.frombuffer(old_block, np.uint8), np.frombuffer(new_block, np.uint8)
