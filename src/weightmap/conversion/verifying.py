"""Verification of a model, its files shared out to an executor or to ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.arguments import as_path
from weightmap.conversion.manifest import Manifest, digest
from weightmap.conversion.running import Execution, Runner
from weightmap.conversion.shard import Piece, open_piece, state_of
from weightmap.errors import ShardsError, quoted
from weightmap.model.opening import open_privately
from weightmap.model.parts import name_of, parts_of
from weightmap.model.shards import disagreements
from weightmap.model.verifying import VerifyReport, in_common
from weightmap.options import Limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from weightmap.model.file import TensorFile

__all__ = ["verify"]

# The fields of a manifest's records.
_RECORD = {"format": str, "layout": str, "checks": list, "warnings": list, "nbytes": int, "structure_only": str}


class VerifyTask(NamedTuple):
    """The work on one file: the directory of the model, the file in it, and arguments of `open`."""

    number: int
    folder: str
    piece: Piece
    strict: bool
    limits: Limits
    threads: int | None

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.piece.name


def verify_shard(task: VerifyTask) -> VerifyReport:
    """Verify one file, in this process or another one."""
    with open_piece(task.folder, task.piece, task.limits, strict=task.strict) as file:
        return file.verify(threads=task.threads)


def verify(
    source: Any,
    *,
    strict: bool = True,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
    manifest: str | os.PathLike[str] | None = None,
    keep_going: bool = False,
    rank: int = 0,
    world: int = 1,
    threads: int | None = None,
) -> VerifyReport:
    """Open a model and verify it: read all bytes once, and compare them with the checksums that they have.

    Parameters
    ----------
    source, strict, limits
        As for `open`.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes.
    executor : concurrent.futures.Executor, optional
        Shares out the files of a model, one task for each, as for `convert`.
    manifest : str or os.PathLike, optional
        A file that records files that are sound; a later run skips them unless their size or time has changed.
    keep_going : bool
        Verify the other files after one has failed, and raise all errors together.
    rank, world : int
        Verify every `world`-th file, from number `rank` on. With a manifest, each rank has one of its own.
    threads : int, optional
        At most this many share the reading of a file; by default one for each CPU of this process, and one for a task
        of an executor or of ranks.

    Returns
    -------
    VerifyReport
        The same as that of `TensorFile.verify`; of a rank, for its files.

    Raises
    ------
    ChecksumError, FormatError, OSError
        As from `TensorFile.verify`.
    TargetError
        When `manifest` is that of another run.
    ShardsError
        When several files failed, with `keep_going`; or one by an error of the executor.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.weights", {"w": np.ones(3, np.float32)})
    >>> wm.verify("model.weights").scope
    'structure and checksums'
    """
    recorded = None if manifest is None else as_path("manifest", manifest)
    how = Execution(executor, recorded, keep_going, rank, world, progress)
    how.check()
    limits = Limits() if limits is None else limits
    with open_privately(source, strict=strict, limits=limits) as file:
        if how._replace(progress=None) == Execution():
            return file.verify(progress=progress, threads=threads)
        if threads is None and (executor is not None or world > 1):
            threads = 1
        return _verify_files(file, how, strict=strict, limits=limits, threads=threads)


def _verify_files(
    file: TensorFile, how: Execution, *, strict: bool, limits: Limits, threads: int | None
) -> VerifyReport:
    """Verify the files of an open model, each by itself."""
    source, content, _ = parts_of(file)
    if source.absolute is None:
        raise ValueError(f"source is {name_of(file)}, expected a path: tasks open files again")
    folder, files = os.path.dirname(source.absolute), file.shards or {os.path.basename(source.absolute): file}
    tasks = []
    for number, (name, part) in enumerate(files.items()):
        piece = Piece(name, *state_of(parts_of(part)[0]), ())
        tasks.append(VerifyTask(number, folder, piece, strict, limits, threads))
    tasks = tasks[how.rank :: how.world]
    own = None
    if how.manifest is not None:
        path = how.manifest if how.world == 1 else f"{how.manifest}.{how.rank}-of-{how.world}"
        own = Manifest(path, "verify", digest(os.path.basename(source.absolute), strict), _RECORD, limits)
    reports: dict[int, VerifyReport] = {}
    total, done = sum(task.piece.size for task in tasks), 0

    def finished(task: VerifyTask, report: Any) -> None:
        nonlocal done
        if not isinstance(report, VerifyReport):
            raise ShardsError(f"shard {quoted(task.name)}: the executor returned something else than its report")
        reports[task.number] = report
        if own is not None:
            own.add(task.name, digest(task.piece), **_recorded(report))
        done += task.piece.size
        if how.progress is not None:
            how.progress(done, total)

    left = []
    for task in tasks:
        record = None if own is None else own.find(task.name, digest(task.piece))
        if record is None:
            left.append(task)
        else:
            finished(task, _report(os.path.join(folder, task.name), record))

    def flush() -> None:
        if own is not None:
            own.write()

    try:
        folders = {folder: os.path.dirname(name_of(file))}
        runner = Runner(how.executor, keep_going=how.keep_going, flush=flush, folders=folders)
        runner.run(verify_shard, left, finished, [task.piece.size for task in left])
    finally:
        flush()
    if not file.shards and reports:
        return reports[0]._replace(path=source.path)
    warnings = [*content.warnings, *disagreements(file, file.metadata)]
    checks = ["index of shards"] if file.shards else []
    for task in tasks:
        checks += [f"{task.name}: {check}" for check in reports[task.number].checks]
        warnings += [f"{task.name}: {warning}" for warning in reports[task.number].warnings]
    why = in_common([report.structure_only for report in reports.values()])
    return VerifyReport(source.path, file.format, file.layout, tuple(checks), tuple(warnings), done, why)


def _recorded(report: VerifyReport) -> dict[str, Any]:
    """Return a report as the values of a record."""
    values = report._asdict()
    del values["path"]
    return values | {
        "checks": list(report.checks),
        "warnings": list(report.warnings),
        "structure_only": report.structure_only or "",
    }


def _report(path: str, record: dict[str, Any]) -> VerifyReport:
    """Return the report of a record."""
    checks, warnings = (tuple(map(str, record[field])) for field in ("checks", "warnings"))
    why = record["structure_only"] or None
    return VerifyReport(path, record["format"], record["layout"], checks, warnings, record["nbytes"], why)
