"""Verification of a model, with its files distributed to an executor or to ranks."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import quoted
from weightmap.checkpoints.handle import Weights, stored_model
from weightmap.conversion.running import FileRows, Manifest, Run, Runner, as_run, is_shared, manifests_of, share_of
from weightmap.core.arguments import Options, as_threads, check_progress, names_moved
from weightmap.core.bytes.open_source import called, folder_of, inside
from weightmap.core.model.internals import name_of, parts_of, sources_of
from weightmap.core.model.opening import Model, as_handle
from weightmap.core.model.reports import VerifyReport, in_common
from weightmap.core.model.sharded import disagreements, naming_all
from weightmap.errors import ShardsError
from weightmap.trust.checking import check_all, compared

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.core.model.file import TensorFile

# The fields of a manifest's records.
_RECORD = {"format": str, "layout": str, "checks": list, "warnings": list, "nbytes": int, "structure_only": str}


class VerifyTask(NamedTuple):
    """The work on one file: the directory of the model, the file in it, and how to open it."""

    number: int
    folder: str
    piece: FileRows
    options: Options
    threads: int | None

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.piece.name


def verify_shard(task: VerifyTask) -> VerifyReport:
    """Verify one file, in this process or another one."""
    with task.piece.open(task.folder, task.options) as file:
        return file.verify(threads=task.threads)


@names_moved
def verify(
    source: Model,
    *,
    run: Run | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Verify a model: read every byte once, and check it against the stored checksums.

    Parameters
    ----------
    source : TensorFile, or anything else that `open` takes
        A handle stays open. With ``f.weights``, the stored tensors must also make the parameters. In a directory that
        was opened with ``trust=``, every file is compared with its digest, also files without tensors: every listed
        file must exist, and every file must be listed.
    run : Run, optional
        How to distribute the files of a model. Its manifest records sound files: a later run skips them unless their
        size or time has changed.
    threads : int, optional
        The most threads that share the reading of a file; by default one for each CPU of this process, but one for a
        task of an executor or of a rank.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes.

    Returns
    -------
    VerifyReport
        As from `TensorFile.verify`; on a rank, for the rank's files.

    Raises
    ------
    ChecksumError, FormatError, OSError
        As from `TensorFile.verify`.
    TrustError
        For a file that no longer has the digest with which it was opened.
    TargetError
        When the manifest belongs to another run.
    ShardsError
        When several files failed, with `keep_going`; or when the executor failed.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.weights", {"w": np.ones(3, np.float32)})
    >>> wm.verify("model.weights").scope
    'structure and checksums'
    """
    run = as_run(run)
    check_progress(progress)
    threads = None if threads is None else as_threads(threads)
    with naming_all(source) if run.keep_going else nullcontext():
        opened = as_handle(source)
    with opened as model:
        file, trust = stored_model(model), parts_of(model)[2].trust
        if trust is not None:
            names = check_all(trust, trust.opened, threads=threads)
        if run == Run():
            report = file.verify(progress=progress, threads=threads)
        else:
            threads = 1 if threads is None and is_shared(run) else threads
            report = _verify_files(file, run, progress, threads)
        if isinstance(model, Weights):
            report = model.verified(report)
        if trust is None:
            return report
        # The shards of an index were compared when they were opened.
        line = compared(trust, sorted({trust.name_of(str(one.absolute)) for one in sources_of(file)}.union(names)))
        return report._replace(checks=(line, *report.checks), structure_only=None, digests=line)


def _verify_files(
    file: TensorFile, run: Run, progress: Callable[[int, int], None] | None, threads: int | None
) -> VerifyReport:
    """Verify the files of an open model, each by itself."""
    source, content, opening = parts_of(file)
    if source.absolute is None:
        raise ValueError(f"source is {name_of(file)}, expected a path: tasks open files again")
    folder, files = folder_of(source.absolute), file.shards or {called(source.absolute): file}
    options = Options(opening.limits, strict=opening.strict)
    every = [
        VerifyTask(number, folder, FileRows.of(name, part, ()), options, threads)
        for number, (name, part) in enumerate(files.items())
    ]
    tasks = share_of(run, every)
    manifest = None
    if run.manifest is not None:
        key = Manifest.key(called(source.absolute), options.strict)
        manifest = Manifest(manifests_of(run)[0], "verify", key, _RECORD, options.limits)
    reports: dict[int, VerifyReport] = {}
    total, done = sum(task.piece.size for task in tasks), 0

    def finished(task: VerifyTask, report: Any) -> None:
        nonlocal done
        if not isinstance(report, VerifyReport):
            raise ShardsError(f"shard {quoted(task.name)}: the executor did not return the report of this task")
        reports[task.number] = report
        if manifest is not None:
            manifest.add(task.name, Manifest.key(task.piece), **_recorded(report))
        done += task.piece.size
        if progress is not None:
            progress(done, total)

    remaining = []
    for task in tasks:
        record = None if manifest is None else manifest.find(task.name, Manifest.key(task.piece))
        if record is None:
            remaining.append(task)
        else:
            finished(task, _report(inside(folder, task.name), record))

    runner = Runner(run, manifest, {folder: os.path.dirname(name_of(file))})
    runner.run(verify_shard, remaining, finished, [task.piece.size for task in remaining])
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
