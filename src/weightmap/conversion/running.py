"""Runs a task for each shard of a model, in this process or by an executor; a manifest records finished shards."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import quoted
from weightmap.core.arguments import Limits, Options, as_integer, as_path, check_flags, mistyped
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.atomic import remove_leftovers, write_plan
from weightmap.core.bytes.open_source import from_path, inside
from weightmap.core.bytes.sink import WritePlan
from weightmap.core.model.internals import shard_name, sources_of
from weightmap.core.model.opening import open_with
from weightmap.core.model.single import is_index, open_file
from weightmap.errors import FileChangedError, FormatError, ShardsError, TargetError, TensorFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from weightmap.core.model.file import TensorFile


# An executor takes some milliseconds for each call, so that small tasks share a call: at most this many tasks or bytes,
# in at least this many calls, so that workers end at about the same time.
_TOGETHER, _BYTES, _CALLS = 16, 64 << 20, 16
# The entries that mark a manifest.
_MARK, _VERSION = "weightmap_manifest", 1


@dataclass(frozen=True, slots=True)
class Run:
    """How the files of a sharded model are distributed, for `convert` and `verify`.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        Runs one task per shard: threads, processes, ``dask.distributed.Client.get_executor()``. Tasks hold paths and
        ranges, less than 4 KiB pickled, and the new names of renamed tensors; source and target lie on a file system
        that all workers share. Each task uses one thread unless `threads` says more. By default, this process handles
        the shards one by one. The files are the same, byte for byte.
    manifest : str or os.PathLike, optional
        A file that records finished shards, with size and checksum. A run with the same arguments skips shards that are
        intact and whose source is unchanged.
    rank, world_size : int
        Handle every `world_size`-th shard, from number `rank` on; other processes handle the rest. `convert` then needs
        a `manifest`: each rank writes its own, and the last rank to finish writes the index.
    keep_going : bool
        After an error in a shard, go on with the others, and raise all errors together. By default, no more shards
        begin, the first error is raised, and `convert` removes its shards unless a `manifest` records them. It writes
        no index in either case.

    Raises
    ------
    ValueError
        For a rank that does not exist.

    Examples
    --------
    >>> import weightmap as wm
    >>> wm.Run(manifest="done.json", rank=1, world_size=4)
    Run(executor=None, manifest='done.json', rank=1, world_size=4, keep_going=False)
    """

    executor: Executor | None = None
    _: KW_ONLY
    manifest: str | None = None
    rank: int = 0
    world_size: int = 1
    keep_going: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        if self.executor is not None and not hasattr(self.executor, "submit"):
            raise mistyped("executor", self.executor, "a concurrent.futures.Executor")
        check_flags(self, "keep_going")
        if self.manifest is not None:
            object.__setattr__(self, "manifest", as_path("manifest", self.manifest))
        if not 0 <= as_integer("rank", self.rank) < as_integer("world_size", self.world_size):
            expected = "expected 0 <= rank < world_size"
            raise ValueError(f"rank is {self.rank} and world_size {self.world_size}, {expected}")


# This process, one shard after another.
ALONE = Run()


def as_run(run: Run | None) -> Run:
    """Return the argument `run` of a function, by default one process. Raises TypeError for anything else."""
    if run is None:
        return ALONE
    if not isinstance(run, Run):
        raise mistyped("run", run, "a weightmap.Run")
    return run


def is_shared(run: Run) -> bool:
    """Whether tasks run beside others, so that each gets one thread."""
    return run.executor is not None or run.world_size > 1


def manifests_of(run: Run) -> list[str]:
    """Return the paths of the manifests: this rank's first, then the others'."""
    if run.manifest is None:
        return []
    count = run.world_size
    paths = [run.manifest] if count == 1 else [f"{run.manifest}.{i}-of-{count}" for i in range(count)]
    return [paths.pop(run.rank), *paths]


def share_of(run: Run, tasks: Sequence[Any]) -> Sequence[Any]:
    """Return this rank's share of tasks or files."""
    return tasks[run.rank :: run.world_size]


class Runner:
    """Runs tasks and collects their errors.

    Parameters
    ----------
    run : Run
    manifest : Manifest or None
        Written whenever all finished tasks have been handed out, and at the end.
    folders : mapping of str to str
        Maps the absolute directories of tasks to the caller's spelling, for errors.
    """

    def __init__(self, run: Run, manifest: Manifest | None, folders: Mapping[str, str]) -> None:
        self._executor = run.executor
        self._keep_going = run.keep_going
        self._manifest = manifest
        self._folders = folders
        self._errors: list[tuple[str, BaseException]] = []

    def run(
        self,
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        finished: Callable[[Any, Any], None],
        weights: Sequence[int],
    ) -> None:
        """Call ``finished(task, function(task))`` for each task, in any order; a task has a `name` for errors.

        Small tasks, by their `weights` in bytes, share a call of the executor.

        Raises
        ------
        TensorFileError, OSError, MemoryError
            The first error of a task. Tasks that have not begun are cancelled; running ones finish.
        ShardsError
            For an error of the executor or of another class; with `keep_going`, for all errors together.
        """
        try:
            if self._executor is None:
                self._serially(function, tasks, finished)
            else:
                bundles = [_Bundle(function, some, keep_going=self._keep_going) for some in bundled(tasks, weights)]
                self._by_executor(self._executor, bundles, finished)
        finally:
            self._flush()
        if self._errors:
            raise self._error()

    def _flush(self) -> None:
        if self._manifest is not None:
            self._manifest.write()

    def _serially(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], finished: Callable[[Any, Any], None]
    ) -> None:
        for task in tasks:
            try:
                result = function(task)
            except (TensorFileError, OSError) as error:
                self._errors.append((task.name, error))
                if not self._keep_going:
                    break
                continue
            finished(task, result)
            self._flush()

    def _by_executor(
        self,
        executor: Executor,
        bundles: Iterable[_Bundle],
        finished: Callable[[Any, Any], None],
    ) -> None:
        done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        running: dict[Future[Any], tuple[Any, ...]] = {}
        try:
            for bundle in bundles:
                try:
                    future = executor.submit(bundle)
                except Exception as error:  # noqa: BLE001 - the executor's: it is broken, or was shut down
                    self._errors.append((bundle.tasks[0].name, error))
                    break
                running[future] = bundle.tasks
                future.add_done_callback(done.put)
            if self._errors:
                self._cancel(running)
            while running:
                self._take(done.get(), running, finished)
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._take(done.get_nowait(), running, finished)
                self._flush()
        finally:
            self._cancel(running)

    def _take(
        self,
        future: Future[Any],
        running: dict[Future[Any], tuple[Any, ...]],
        finished: Callable[[Any, Any], None],
    ) -> None:
        """Hand out the results of tasks that are done, or note an error and cancel the others."""
        tasks = running.pop(future, None)
        if tasks is None or (future.cancelled() and self._errors and not self._keep_going):
            return
        try:
            results = future.result()
        except Exception as error:  # noqa: BLE001 - the executor's, such as one of a worker that was killed
            self._failed(tasks[0].name, error, running)
            return
        if type(results) is not list or len(results) > len(tasks):
            results = [results]
        for task, result in zip(tasks, results, strict=False):  # tasks after an error did not begin
            if isinstance(result, Exception):
                self._failed(task.name, result, running)
            else:
                finished(task, result)

    def _failed(self, name: str, error: Exception, running: dict[Future[Any], tuple[Any, ...]]) -> None:
        self._errors.append((name, error))
        if not self._keep_going:
            self._cancel(running)

    @staticmethod
    def _cancel(running: dict[Future[Any], tuple[Any, ...]]) -> None:
        for future in list(running):
            future.cancel()

    def _error(self) -> BaseException:
        """Return the error of the run, and forget it: its traceback refers to this object, and to open files."""
        errors, self._errors = self._errors, []
        for _, error in errors:
            self._name_as_given(error)
        first = errors[0][1]
        if not self._keep_going and isinstance(first, TensorFileError | OSError | MemoryError):
            return first
        return ShardsError.of(errors)

    def _name_as_given(self, error: BaseException) -> None:
        """Make the error of a task use the caller's spelling of a path."""
        attribute = "path" if isinstance(error, TensorFileError) else "filename"
        path = getattr(error, attribute, None)
        if isinstance(path, str):
            folder, name = os.path.split(path)
            if folder in self._folders:
                setattr(error, attribute, os.path.join(self._folders[folder], name))


class _Bundle:
    """Calls a function for several tasks in turn, in a worker, up to the first error unless `keep_going`.

    No two bundles are equal. Dask answers a call that equals an earlier one with the earlier result or error, as long
    as that is referenced: a conversion that is started again would not run.

    Attributes
    ----------
    tasks : tuple
    """

    def __init__(self, function: Callable[[Any], Any], tasks: tuple[Any, ...], *, keep_going: bool) -> None:
        self.__name__ = function.__name__  # Dask shows it
        self.tasks = tasks
        self._function, self._keep_going = function, keep_going
        self._number = os.urandom(16)

    def __call__(self) -> list[Any]:
        results: list[Any] = []
        for task in self.tasks:
            try:
                results.append(self._function(task))
            except Exception as error:
                if len(self.tasks) == 1:
                    raise
                results.append(error)
                if not self._keep_going:
                    break
        return results


def bundled(tasks: Sequence[Any], weights: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the tasks in order, small ones together."""
    bundle_size = min(_TOGETHER, len(tasks) // _CALLS)
    bundles: list[tuple[Any, ...]] = []
    bundle: list[Any] = []
    nbytes = 0
    for task, weight in zip(tasks, weights, strict=True):
        if bundle and (len(bundle) >= bundle_size or nbytes + weight > _BYTES):
            bundles.append(tuple(bundle))
            bundle, nbytes = [], 0
        bundle.append(task)
        nbytes += weight
    return [*bundles, tuple(bundle)] if bundle else bundles


class FileRows(NamedTuple):
    """Tensors of a source file: its name in the source's directory, its state, and ranges of rows [start, stop)."""

    name: str
    size: int
    state: int | str
    rows: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, name: str, file: TensorFile, rows: Iterable[tuple[int, int]]) -> FileRows:
        """Return rows of an open file, with the size and modification time, or tag in a store, of all its sources."""
        states: list[int | str] = []
        for source in sources_of(file):
            if source.store is not None:
                states.append(str(source.identity[1] or source.identity[2]))
            else:
                states.append(source.identity[3] if source.identity else 0)  # a buffer has no time
        return cls(name, file.nbytes, states[0] if len(states) == 1 else ", ".join(map(str, states)), tuple(rows))

    def open(self, folder: str, options: Options) -> TensorFile:
        """Open the file. Raises `FileChangedError` if it has changed since the task was made."""
        path = inside(folder, plain_name(self.name, "name"))
        # With digests, use the caller's mode: "copy" uses the bytes that were hashed.
        mode = options.mode if options.trust else None
        options = Options(**options.keywords(mode=mode, verify="header", private=True))
        file = open_with(path, options) if is_index(path) or options.deltas else open_file(path, path, options)
        now = FileRows.of(self.name, file, self.rows)
        if now != self:
            file.close()
            expected = f"{self.size} bytes and {self.state}"
            what = "the file was changed after its shards were planned: its size and time of modification, or tag"
            raise FileChangedError(what, path=path, actual=f"{now.size} bytes and {now.state}", expected=expected)
        return file


def plain_name(name: str, field: str) -> str:
    """Return the name of a shard if it stays within its directory; `field` is the place of the name."""
    try:
        return shard_name(name)
    except FormatError as error:
        error.field = field
        raise


class Manifest:
    """Records of finished shards, kept in a file that each `write` replaces as a whole.

    Parameters
    ----------
    path : str
    work, run : str
        The kind of run, "convert" or "verify", and the `key` of everything that its shards have in common.
    fields : mapping of str to type
        The fields of a record, besides "key".
    limits : Limits

    Raises
    ------
    FormatError
        When the file is damaged, or longer than `limits` allow; `UnsupportedError` for another version.
    TargetError
        When it is the manifest of another run.
    """

    def __init__(self, path: str, work: str, run: str, fields: Mapping[str, type], limits: Limits) -> None:
        self.path = path
        self._head: dict[str, Any] = {_MARK: _VERSION, "work": work, "run": run}
        self._fields = {"key": str, **fields}
        try:
            self._records: dict[str, dict[str, Any]] = self._read(limits)
        except TensorFileError as error:
            raise error.located(path=path) from None

    @staticmethod
    def key(*values: Any) -> str:
        """Return a fingerprint of plain values, such as a task: the key of its record."""
        return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _read(self, limits: Limits) -> dict[str, Any]:
        """Return the records of the file; none if it does not exist."""
        try:
            source = from_path(self.path, "copy")
        except FileNotFoundError:
            return {}
        try:
            limits.check("max_header_bytes", source.size, "size of the manifest")
            content = strict_json.loads(source.pread(0, source.size), "manifest")
        finally:
            source.close()
        version, records = content.get(_MARK), content.get("shards")
        if type(version) is not int or not isinstance(records, dict):
            raise FormatError(f"not a manifest: needs the number {_MARK!r} and the object 'shards'", field="manifest")
        if version != _VERSION:
            raise UnsupportedError("version of the manifest", field=_MARK, actual=version, expected=_VERSION)
        if {key: content.get(key) for key in self._head} != self._head:
            msg = "this is the manifest of a run with another target or other arguments: give another one, or remove it"
            raise TargetError(msg, field="run")
        for name, record in records.items():
            self._check(name, record)
        return records

    def _check(self, name: str, record: Any) -> None:
        plain_name(name, "shards")
        expected = ", ".join(self._fields)
        if not isinstance(record, dict) or record.keys() != self._fields.keys():
            actual = ", ".join(record) if isinstance(record, dict) else strict_json.kind_of(record)
            what = f"record of shard {quoted(name)} in the manifest"
            raise FormatError(what, field="shards", actual=actual[:200], expected=expected)
        for field, kind in self._fields.items():
            value: Any = record[field]
            if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 1 << 63):
                what = f"{field} of shard {quoted(name)} in the manifest"
                raise FormatError(what, field=field, actual=strict_json.kind_of(value), expected=kind.__name__)

    def find(self, name: str, key: str) -> dict[str, Any] | None:
        """Return the record of a shard if it has this key, which changes with the source of the shard."""
        record = self._records.get(name)
        return record if record is not None and record["key"] == key else None

    def add(self, name: str, key: str, **values: Any) -> None:
        """Record a finished shard; `write` saves the record."""
        self._records[name] = {"key": key, **values}

    def write(self) -> None:
        """Write all records, without flushing to the disk: after a power cut, shards are only done again."""
        data = json.dumps({**self._head, "shards": self._records}).encode() + b"\n"
        write_plan(self.path, WritePlan(len(data), lambda sink: sink.write(data)), durable=False)

    def clean(self) -> None:
        """Remove temporary files of a run that was killed while it wrote this manifest."""
        folder, name = os.path.split(self.path)
        remove_leftovers(folder, [name])
