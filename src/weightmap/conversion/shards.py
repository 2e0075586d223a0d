"""Converts a model to shards: runs a task for each, records them, and writes the index when all are there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from typing import TYPE_CHECKING, Any

from weightmap.conversion.dealing import deal
from weightmap.conversion.running import Manifest, Runner, digest, is_shared, manifests_of, share_of
from weightmap.conversion.tasks import ShardReport, convert_shard
from weightmap.conversion.tensors import overflow_note, unaligned_note
from weightmap.core.bytes.atomic import file_exists, remove_leftovers
from weightmap.core.model.internals import name_of, parts_of
from weightmap.core.model.reports import ConvertReport
from weightmap.core.model.sharding import holding, write_index
from weightmap.errors import ShardsError, counted, quoted
from weightmap.huggingface.along import Along

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightmap.conversion.dealing import Deal
    from weightmap.conversion.running import Run
    from weightmap.conversion.spec import Spec
    from weightmap.conversion.tasks import ShardTask
    from weightmap.core.model.file import TensorFile
    from weightmap.core.model.reports import QuantizedInfo
    from weightmap.core.model.sharding import ShardTarget

# The fields of a manifest's records.
_RECORD = {"nbytes": int, "crc32": int, "tensor_bytes": int, "unaligned": int}


def convert_model(
    file: TensorFile,
    model: str | None,
    target: ShardTarget,
    spec: Spec,
    renamed: Mapping[str, str],
    run: Run,
    progress: Callable[[int, int], None] | None,
) -> ConvertReport:
    """Convert an open model to shards; `model` is its path within a Hugging Face directory, if it lies in one."""
    if run.executor is not None and parts_of(file)[0].absolute is None:
        raise ValueError(f"src is {name_of(file)}, expected a path: an executor opens files again")
    if run.world_size > 1 and run.manifest is None:
        raise ValueError("manifest= is needed by ranks: it says which shards the others have finished")
    if spec.threads is None and is_shared(run):
        spec = dataclasses.replace(spec, threads=1)
    dealt = deal(file, model, target, spec, renamed)
    with holding(target, run.rank if run.world_size > 1 else None):
        work = _Conversion(dealt, target, spec, run, progress)
        along = None
        if model is not None and target.whole:
            dtype = None if spec.quantize is not None else spec.dtype
            along = Along(model, target.folder, dtype=dtype, replace=work.resumes, decoded=spec.weights)
        if not spec.output.overwrite:
            work.check_free()
        work.run()
        nbytes, warnings = work.finish(along)
    return ConvertReport(
        name_of(file),
        target.path,
        spec.format,
        dealt.layout,
        sum(1 for name in dealt.where.values() if name in work.records),
        nbytes,
        tuple(dealt.dropped),
        tuple(dealt.warnings + warnings),
        tuple(info for number in sorted(work.quantized) for info in work.quantized[number]),
        len(work.tasks),
        work.skipped,
        work.copied,
    )


class _Conversion:
    """The tasks of one rank, or of the only run.

    Attributes
    ----------
    tasks : list of ShardTask
    resumes : bool
        Whether an earlier run with this manifest finished some of them.
    records : dict
        Finished shards by name.
    overflown : list of (int, int)
        Per task that ran: values out of the range of the new type, and tensors with such values.
    quantized : dict
        The quantised tensors of each task that ran.
    skipped : int
        Number of shards that an earlier run had finished.
    copied : tuple of str
        The files that went along.
    """

    def __init__(
        self, dealt: Deal, target: ShardTarget, spec: Spec, run: Run, progress: Callable[[int, int], None] | None
    ) -> None:
        self._deal, self._target, self._spec, self._run, self._progress = dealt, target, spec, run, progress
        manifests = self._manifests()
        if len(self._recorded(manifests)) < len(dealt.tasks):
            target.check_free()
        self._own = manifests[0] if manifests else None
        self._done = self._recorded(manifests[:1])
        self.resumes = bool(self._done)
        self.tasks = [self._begun(task) for task in share_of(run, dealt.tasks)]
        self.records: dict[str, dict[str, Any]] = {}
        self.overflown: list[tuple[int, int]] = []
        self.quantized: dict[int, tuple[QuantizedInfo, ...]] = {}
        self.skipped = 0
        self.copied: tuple[str, ...] = ()
        self._total, self._so_far = sum(dealt.weights[task.number] for task in self.tasks), 0

    def _manifests(self) -> list[Manifest]:
        """Read the manifest of this rank, then those of the others."""
        made_for = digest(self._target.index_name, self._spec.result, len(self._deal.tasks))
        return [
            Manifest(path, "convert", made_for, _RECORD, self._spec.opening.limits) for path in manifests_of(self._run)
        ]

    def _recorded(self, manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
        """Return the records of finished shards by name."""
        found = {}
        for task, key in zip(self._deal.tasks, self._deal.keys, strict=True):
            record = next((record for one in manifests if (record := one.find(task.name, key)) is not None), None)
            if record is not None:
                found[task.name] = {name: record[name] for name in _RECORD}
        return found

    def _begun(self, task: ShardTask) -> ShardTask:
        record = self._done.get(task.name)
        return task if record is None else task._replace(done=(record["nbytes"], record["crc32"]))

    def check_free(self) -> None:
        """Raise `TargetError` for a file in the place of a shard that no manifest tells of."""
        for path in (os.path.join(self._target.folder, task.name) for task in self.tasks if task.done is None):
            if os.path.lexists(path):
                raise file_exists(path)

    def run(self) -> None:
        """Run the tasks."""
        self._flush()
        self._tell()
        try:
            runner = Runner(self._run, flush=self._flush, folders=self._deal.folders)
            weights = [self._deal.weights[task.number] for task in self.tasks]
            convert = convert_shard
            if self._run.executor is None:
                convert = functools.partial(convert_shard, opened=self._deal.files)
            runner.run(convert, self.tasks, self._finished, weights)
        finally:
            self._flush()
            with contextlib.suppress(OSError):
                remove_leftovers(self._target.folder, [task.name for task in self.tasks])
                if self._own is not None:
                    self._own.clean()

    def _flush(self) -> None:
        if self._own is not None:
            self._own.write()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._so_far, self._total)

    def _finished(self, task: ShardTask, report: Any) -> None:
        """Note a finished task."""
        if not isinstance(report, ShardReport) or report.number != task.number:
            raise ShardsError(f"shard {quoted(task.name)}: the executor returned something else than its report")
        record = self._done.get(task.name, {})
        if report.converted:
            self.quantized[task.number] = report.quantized
            self.overflown.append(report.overflown)
            record = {name: getattr(report, name) for name in _RECORD}
        else:
            self.skipped += 1
        self.records[task.name] = record
        if self._own is not None:
            self._own.add(task.name, self._deal.keys[task.number], **record)
        self._so_far += self._deal.weights[task.number]
        self._tell()

    def finish(self, along: Along | None) -> tuple[int, list[str]]:
        """Copy what goes along, and write the index, if no shard is missing; return the bytes of all, and warnings."""
        target, tasks, align = self._target, self._deal.tasks, self._spec.output.alignment
        if self._run.world_size > 1:
            self.records = self._recorded(self._manifests()) | self.records
        values, tensors = (sum(counts) for counts in zip((0, 0), *self.overflown, strict=True))
        lost = overflow_note(values, tensors, self._spec.dtype)
        nbytes, missing = sum(record["nbytes"] for record in self.records.values()), len(tasks) - len(self.records)
        if missing:
            others = f"{counted(missing, 'shard')} of other ranks are missing"
            return nbytes, [*lost, f"{others}: the rank that ends last writes the index"]
        if along is not None:
            self.copied = along.copy()
        total = sum(record["tensor_bytes"] for record in self.records.values())
        durable = self._spec.output.durable
        nbytes += write_index(target, self._deal.where, total, self._deal.metadata, durable=durable)
        with contextlib.suppress(OSError):
            for folder, name in map(os.path.split, (target.index_name, *self.copied)):
                remove_leftovers(os.path.join(target.folder, folder), [name])
        odd = sum(record["unaligned"] for record in self.records.values())
        return nbytes, lost + unaligned_note(odd, len(self._deal.where), align)
