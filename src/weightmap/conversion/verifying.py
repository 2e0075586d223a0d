"""Verification of a model, its files shared out to an executor or to ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.checkpoints.weights import as_parameters
from weightmap.conversion.running import Manifest, Run, Runner, digest, is_shared, manifests_of, share_of, validated_run
from weightmap.conversion.tasks import FileRows, open_rows, state_of
from weightmap.core.arguments import as_threads, check_progress
from weightmap.core.bytes.open_source import called, folder_of, inside
from weightmap.core.model.internals import detach_index, name_of, parts_of
from weightmap.core.model.opening import open_privately
from weightmap.core.model.reports import VerifyReport, in_common
from weightmap.core.model.sharded import disagreements
from weightmap.core.options import Limits, Options, validated_limits
from weightmap.errors import ShardsError, counted, quoted
from weightmap.trust.checking import bound, check_all, compared

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from weightmap.core.model.file import TensorFile

# The fields of a manifest's records.
_RECORD = {"format": str, "layout": str, "checks": list, "warnings": list, "nbytes": int, "structure_only": str}


class VerifyTask(NamedTuple):
    """The work on one file: the directory of the model, the file in it, and arguments of `open`."""

    number: int
    folder: str
    piece: FileRows
    strict: bool
    limits: Limits
    threads: int | None

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.piece.name


def verify_shard(task: VerifyTask) -> VerifyReport:
    """Verify one file, in this process or another one."""
    options = Options(task.limits, strict=task.strict, private=True)
    with open_rows(task.folder, task.piece, options) as file:
        return file.verify(threads=task.threads)


def verify(
    source: Any,
    *,
    strict: bool = True,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
    run: Run | None = None,
    executor: Executor | None = None,
    manifest: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    weights: bool = False,
    trust: Any = None,
) -> VerifyReport:
    """Open a model and verify it: read every byte once, and check it against the stored checksums.

    Parameters
    ----------
    source, strict, limits
        As for `open`.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes.
    run : Run, optional
        How the files of a model are distributed. Its manifest records sound files: a later run skips them unless their
        size or time has changed.
    executor, manifest
        Short for ``run=Run(executor, manifest=manifest)``.
    threads : int, optional
        At most this many share the reading of a file; by default one for each CPU of this process, and one for a task
        of an executor or of ranks.
    weights : bool
        Also check that the stored tensors of a quantised checkpoint make its parameters, as `TensorFile.weights` does.
    trust : optional
        As for `open`; of a directory, every file in it is compared before, the ones that no tensor lies in too: what is
        listed has to be there, what is there has to be listed.

    Returns
    -------
    VerifyReport
        As from `TensorFile.verify`; on a rank, for its own files.

    Raises
    ------
    ChecksumError, FormatError, OSError
        As from `TensorFile.verify`.
    TrustError
        With `trust`, for a file that is not the one that was meant.
    TargetError
        When the manifest is that of another run.
    ShardsError
        When several files failed, with `keep_going`; or when the executor did.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.weights", {"w": np.ones(3, np.float32)})
    >>> wm.verify("model.weights").scope
    'structure and checksums'
    """
    run = validated_run(run, executor, manifest)
    check_progress(progress)
    threads = None if threads is None else as_threads(threads)
    limits = validated_limits(limits)
    trusted: str | None = None
    if trust is not None:
        trust = bound(trust, source)
        names = check_all(trust, os.fspath(source), threads=threads)
        trusted = compared(trust, names)
    with open_privately(source, strict=strict, limits=limits, trust=trust) as file:
        parameters = as_parameters(file) if weights else None
        if parameters is not None:
            detach_index(parameters)
            parts_of(parameters)[1].table.check()
        if run == Run():
            report = file.verify(progress=progress, threads=threads)
        else:
            threads = 1 if threads is None and is_shared(run) else threads
            report = _verify_files(file, run, progress, strict=strict, limits=limits, threads=threads)
        if parameters is not None:
            report = report._replace(checks=(*report.checks, counted(len(parameters), "parameter")))
        if trusted is None:
            return report
        return report._replace(checks=(trusted, *report.checks), structure_only=None, digests=trusted)


def _verify_files(
    file: TensorFile,
    run: Run,
    progress: Callable[[int, int], None] | None,
    *,
    strict: bool,
    limits: Limits,
    threads: int | None,
) -> VerifyReport:
    """Verify the files of an open model, each by itself."""
    source, content, _ = parts_of(file)
    if source.absolute is None:
        raise ValueError(f"source is {name_of(file)}, expected a path: tasks open files again")
    folder, files = folder_of(source.absolute), file.shards or {called(source.absolute): file}
    tasks = []
    for number, (name, part) in enumerate(files.items()):
        piece = FileRows(name, *state_of(part), ())
        tasks.append(VerifyTask(number, folder, piece, strict, limits, threads))
    tasks = list(share_of(run, tasks))
    own = None
    if run.manifest is not None:
        own = Manifest(manifests_of(run)[0], "verify", digest(called(source.absolute), strict), _RECORD, limits)
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
        if progress is not None:
            progress(done, total)

    left = []
    for task in tasks:
        record = None if own is None else own.find(task.name, digest(task.piece))
        if record is None:
            left.append(task)
        else:
            finished(task, _report(inside(folder, task.name), record))

    def flush() -> None:
        if own is not None:
            own.write()

    try:
        folders = {folder: os.path.dirname(name_of(file))}
        runner = Runner(run, flush=flush, folders=folders)
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
    del values["path"], values["digests"]  # `verify` adds digests to the report of the whole model
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
