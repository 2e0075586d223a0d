"""Runs one task for each shard of a model: one after the other, or by an executor."""

from __future__ import annotations

import contextlib
import os
import queue
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from weightmap.arguments import as_integer, check_progress, mistyped
from weightmap.errors import ShardsError, TensorFileError, counted, quoted
from weightmap.io.buffers import keeping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor, Future

__all__ = ["Execution", "Runner", "bundled"]

# Errors that a message names.
_NAMED = 3
# An executor takes some milliseconds for each call, so small tasks go there together: at most so many, of so many bytes
# together, and so many calls in all that workers end at about the same time.
_TOGETHER, _BYTES, _CALLS = 16, 64 << 20, 16


class Execution(NamedTuple):
    """How to work on many shards: the arguments of `convert` and `verify` for that."""

    executor: Executor | None = None
    manifest: str | None = None
    keep_going: bool = False
    rank: int = 0
    world: int = 1
    progress: Callable[[int, int], None] | None = None

    def check(self) -> None:
        """Raise ValueError for ranks that do not exist, and TypeError for arguments that are something else."""
        check_progress(self.progress)
        if self.executor is not None and not hasattr(self.executor, "submit"):
            raise mistyped("executor", self.executor, "a concurrent.futures.Executor")
        if not 0 <= as_integer("rank", self.rank) < as_integer("world", self.world):
            raise ValueError(f"rank is {self.rank} of world {self.world}, expected 0 <= rank < world")


class Runner:
    """Runs tasks and collects their errors.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        By default tasks run here, one after the other.
    keep_going : bool
        After an error, run the other tasks.
    flush : callable
        Called without arguments when finished tasks have been handed out and no other is finished yet.
    folders : mapping of str to str
        The directories that tasks work in, which are absolute, and each as the caller gave it: errors name files so.
    """

    def __init__(
        self, executor: Executor | None, *, keep_going: bool, flush: Callable[[], None], folders: Mapping[str, str]
    ) -> None:
        self._executor = executor
        self._keep_going = keep_going
        self._flush = flush
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

        Small tasks are one call of the executor, by their `weights` in bytes.

        Raises
        ------
        TensorFileError, OSError, MemoryError
            The first error of a task. Tasks that have not begun then do not begin, those that run run to their end.
        ShardsError
            For an error of the executor or of another class; with `keep_going`, for all errors together.
        """
        if self._executor is None:
            self._serially(function, tasks, finished)
        else:
            bundles = [_Bundle(function, some, keep_going=self._keep_going) for some in bundled(tasks, weights)]
            self._by_executor(self._executor, bundles, finished)
        if self._errors:
            self._fail()

    def _serially(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], finished: Callable[[Any, Any], None]
    ) -> None:
        with keeping():
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
        for task, result in zip(tasks, results, strict=False):  # those behind an error did not begin
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

    def _fail(self) -> NoReturn:
        """Raise the error of the run."""
        errors = self._errors
        for _, error in errors:
            self._name_as_given(error)
        first = errors[0][1]
        if not self._keep_going and isinstance(first, TensorFileError | OSError | MemoryError):
            raise first
        some = "; ".join(f"{quoted(name)}: {_text(error)}" for name, error in errors[:_NAMED])
        more = f"; and {len(errors) - _NAMED:,} more" if len(errors) > _NAMED else ""
        failed = ShardsError(f"{counted(len(errors), 'shard')} failed: {some}{more}")
        failed.errors = tuple(errors)
        raise failed from first

    def _name_as_given(self, error: BaseException) -> None:
        """Put the path of a file as the caller gave it into an error of a task."""
        attribute = "path" if isinstance(error, TensorFileError) else "filename"
        path = getattr(error, attribute, None)
        if isinstance(path, str):
            folder, name = os.path.split(path)
            if folder in self._folders:
                setattr(error, attribute, os.path.join(self._folders[folder], name))


class _Bundle:
    """What a worker calls: a function of each of some tasks, in turn, up to the first error unless `keep_going`.

    No two are equal. Dask answers a call that equals an earlier one with the result, or the error, of that one, as long
    as somebody holds it: a conversion that is started again would not run.

    Attributes
    ----------
    tasks : tuple
    """

    def __init__(self, function: Callable[[Any], Any], tasks: tuple[Any, ...], *, keep_going: bool) -> None:
        self.__name__ = function.__name__  # Dask shows it
        self.tasks = tasks
        self._function, self._keep_going = function, keep_going
        self._process, self._number = os.getpid(), os.urandom(16)

    def __call__(self) -> list[Any]:
        results: list[Any] = []
        with keeping(afterwards=os.getpid() != self._process):
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
    most = min(_TOGETHER, len(tasks) // _CALLS)
    found: list[tuple[Any, ...]] = []
    bundle: list[Any] = []
    nbytes = 0
    for task, weight in zip(tasks, weights, strict=True):
        if bundle and (len(bundle) >= most or nbytes + weight > _BYTES):
            found.append(tuple(bundle))
            bundle, nbytes = [], 0
        bundle.append(task)
        nbytes += weight
    return [*found, tuple(bundle)] if bundle else found


def _text(error: BaseException) -> str:
    own = isinstance(error, TensorFileError | OSError)
    return str(error) if own else f"{type(error).__name__}: {error}"
