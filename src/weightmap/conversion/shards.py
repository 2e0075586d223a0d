"""Converts a model to shards: runs a task for each, records them, and writes the index when all are there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from weightmap.conversion.dealing import deal
from weightmap.conversion.manifest import Manifest, digest
from weightmap.conversion.overflow import overflow_note
from weightmap.conversion.reports import ConvertReport
from weightmap.conversion.running import Runner
from weightmap.conversion.shard import ShardReport, convert_shard
from weightmap.conversion.tensors import unaligned_note
from weightmap.errors import ShardsError, counted, quoted
from weightmap.io.atomic import remove_leftovers
from weightmap.model.parts import name_of
from weightmap.model.sharding import holding, write_index

if TYPE_CHECKING:
    from weightmap.conversion.dealing import Deal
    from weightmap.conversion.reports import QuantizedInfo
    from weightmap.conversion.running import Execution
    from weightmap.conversion.shard import ShardTask
    from weightmap.conversion.task import Arguments
    from weightmap.formats import Format
    from weightmap.model.file import TensorFile
    from weightmap.model.sharding import ShardTarget

__all__ = ["convert_model"]

# The fields of a manifest's records.
_RECORD = {"nbytes": int, "crc32": int, "tensor_bytes": int, "unaligned": int}


def convert_model(
    file: TensorFile, model: str | None, target: ShardTarget, found: Format, arguments: Arguments, how: Execution
) -> ConvertReport:
    """Convert an open model to shards; `model` is its path within a Hugging Face directory, if it lies in one."""
    if how.world > 1 and how.manifest is None:
        raise ValueError("manifest= is needed by ranks: it says which shards the others have finished")
    if arguments.threads is None and (how.executor is not None or how.world > 1):
        arguments = arguments._replace(threads=1)
    dealt = deal(file, model, target, found, arguments)
    settled = arguments._replace(threads=None, limits=None)  # type: ignore[arg-type]  # results do not depend on these
    run = digest(target.index_name, found.name, settled, len(dealt.tasks))
    with holding(target, how.rank if how.world > 1 else None):
        work = _Conversion(dealt, target, arguments, how, run)
        work.run()
        nbytes, warnings = work.finish()
    return ConvertReport(
        name_of(file),
        target.path,
        found.name,
        dealt.layout,
        sum(1 for name in dealt.where.values() if name in work.records),
        nbytes,
        tuple(dealt.dropped),
        tuple(dealt.warnings + warnings),
        tuple(info for number in sorted(work.quantized) for info in work.quantized[number]),
        len(work.tasks),
        work.skipped,
    )


class _Conversion:
    """The tasks of one rank, or of the only run.

    Attributes
    ----------
    tasks : list of ShardTask
    records : dict
        Finished shards by name.
    overflown : list of (int, int)
        Of each task that ran, values out of the range of the new type, and tensors that have some.
    quantized : dict
        The quantised tensors of each task that ran.
    skipped : int
        Number of shards that were there.
    """

    def __init__(self, dealt: Deal, target: ShardTarget, arguments: Arguments, how: Execution, run: str) -> None:
        self._deal, self._target, self._arguments, self._how, self._run = dealt, target, arguments, how, run
        manifests = self._manifests()
        if len(self._recorded(manifests)) < len(dealt.tasks):
            target.check_free()
        self._own = manifests[0] if manifests else None
        self._done = self._recorded(manifests[:1])
        self.tasks = [self._begun(task) for task in dealt.tasks[how.rank :: how.world]]
        self.records: dict[str, dict[str, Any]] = {}
        self.overflown: list[tuple[int, int]] = []
        self.quantized: dict[int, tuple[QuantizedInfo, ...]] = {}
        self.skipped = 0
        self._total, self._so_far = sum(dealt.weights[task.number] for task in self.tasks), 0

    def _manifests(self) -> list[Manifest]:
        """Read the manifest of this rank, and behind it those of the others."""
        path, rank, world = self._how.manifest, self._how.rank, self._how.world
        if path is None:
            return []
        paths = [path] if world == 1 else [f"{path}.{i}-of-{world}" for i in range(world)]
        paths.insert(0, paths.pop(rank))
        return [Manifest(path, "convert", self._run, _RECORD, self._arguments.limits) for path in paths]

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

    def run(self) -> None:
        """Run the tasks."""
        self._flush()
        self._tell()
        try:
            how = self._how
            runner = Runner(how.executor, keep_going=how.keep_going, flush=self._flush, folders=self._deal.folders)
            weights = [self._deal.weights[task.number] for task in self.tasks]
            runner.run(convert_shard, self.tasks, self._finished, weights)
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
        if self._how.progress is not None:
            self._how.progress(self._so_far, self._total)

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

    def finish(self) -> tuple[int, list[str]]:
        """Write the index if no shard is missing; return the bytes of all files there are, and warnings."""
        target, tasks, align = self._target, self._deal.tasks, self._arguments.align
        if self._how.world > 1:
            self.records = self._recorded(self._manifests()) | self.records
        values, tensors = (sum(counts) for counts in zip((0, 0), *self.overflown, strict=True))
        lost = overflow_note(values, tensors, self._arguments.dtype)
        nbytes, missing = sum(record["nbytes"] for record in self.records.values()), len(tasks) - len(self.records)
        if missing:
            others = f"{counted(missing, 'shard')} of other ranks are missing"
            return nbytes, [*lost, f"{others}: the rank that ends last writes the index"]
        total = sum(record["tensor_bytes"] for record in self.records.values())
        nbytes += write_index(target, self._deal.where, total, self._deal.metadata)
        with contextlib.suppress(OSError):
            remove_leftovers(target.folder, [target.index_name])
        odd = sum(record["unaligned"] for record in self.records.values())
        return nbytes, lost + unaligned_note(odd, len(self._deal.where), align)
