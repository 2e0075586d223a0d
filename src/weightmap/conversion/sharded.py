"""Converts a model to shards: plans a task for each shard, runs them, and writes the index after the last one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import counted, quoted
from weightmap.conversion.running import FileRows, Manifest, Run, Runner, is_shared, manifests_of, plain_name, share_of
from weightmap.conversion.spec import Spec, conversion_view
from weightmap.conversion.tensors import Prepared, Preparer, check_total, overflow_note, unaligned, unaligned_note
from weightmap.core.bytes.atomic import file_exists, remove_leftovers, write_plan
from weightmap.core.bytes.open_source import called, folder_of
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.formats import check_names
from weightmap.core.model.internals import name_of, named_rows, parts_of, rows_of, where_of
from weightmap.core.model.reports import ConvertReport, QuantizedInfo
from weightmap.core.model.sharded import equal
from weightmap.core.model.sharding import ShardTarget, encode_index, holding, removing_new, tensor_bytes, write_index
from weightmap.errors import EncodeError, ShardsError, TensorFileError
from weightmap.huggingface.companion_files import CompanionFiles, check_not_read, is_whole
from weightmap.huggingface.directory import read_beside
from weightmap.llama.translating import without_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row


class ShardTask(NamedTuple):
    """The work on one shard, in plain values: files and ranges of them, and the file to write.

    Attributes
    ----------
    number : int
    folder : str
        The directory of the source, or its address in a store, which workers read with their own credentials.
    pieces : tuple of FileRows
        The places of its tensors. The shard gets the metadata of the first file.
    target, name : str
        The directory to write to, and the name of the shard in it.
    spec : Spec
    model : str or None
        For the first shard of a Hugging Face directory: its model file or index. The shard gets the configuration and
        vocabulary of the directory.
    part : tuple of int or None
        The `part` of its `Request`, for formats that number their shards.
    renamed : tuple of (str, str)
        Old and new name of each renamed tensor.
    done : tuple of int or None
        Size and checksum of the shard if an earlier run has finished it.
    """

    number: int
    folder: str
    pieces: tuple[FileRows, ...]
    target: str
    name: str
    spec: Spec
    model: str | None
    part: tuple[int, int, int] | None
    renamed: tuple[tuple[str, str], ...]
    done: tuple[int, int] | None


class ShardReport(NamedTuple):
    """The result of a `ShardTask`.

    Attributes
    ----------
    number : int
        The number of the task.
    nbytes, crc32 : int
        Size and checksum of the shard.
    tensor_bytes : int
        Bytes of its tensors, as an index counts them.
    unaligned : int
        Number of tensors that could not be aligned.
    overflown : tuple of int
        Number of values out of the range of the new type, and of tensors with such values.
    quantized : tuple of QuantizedInfo
    converted : bool
        False if the shard is intact from an earlier run.
    """

    number: int
    nbytes: int
    crc32: int
    tensor_bytes: int
    unaligned: int
    overflown: tuple[int, int]
    quantized: tuple[QuantizedInfo, ...]
    converted: bool


def convert_shard(task: ShardTask, opened: Mapping[str, TensorFile] | None = None) -> ShardReport:
    """Write a shard, unless an earlier run did. `opened` has the open files of its source; None opens them."""
    path = os.path.join(task.target, plain_name(task.name, "name"))
    if task.done is not None and is_whole(path, *task.done):
        return ShardReport(task.number, *task.done, 0, 0, (0, 0), (), converted=False)
    spec = task.spec
    with contextlib.ExitStack() as stack:
        if opened is None:
            files = [stack.enter_context(piece.open(task.folder, spec.opening)) for piece in task.pieces]
        else:
            files = [opened[piece.name] for piece in task.pieces]
            if spec.translated and task.number:
                files = list(map(without_keys, files))
        if spec.is_view and opened is None:
            files = [conversion_view(file, spec, with_keys=not task.number)[0] for file in files]
        places = (place for file, piece in zip(files, task.pieces, strict=True) for place in _places(file, piece.rows))
        directory = None if task.model is None else read_beside(task.model, spec.opening.trust)
        preparer = Preparer(spec)
        prepared = preparer.prepare(files[0], places, directory, path, dict(task.renamed), part=True, numbers=task.part)
        sinks: list[Sink] = []  # the sink that wrote the file

        def write(sink: Sink) -> None:
            sink.digest = 0
            sinks.append(sink)
            prepared.plan.write(sink)

        try:
            plan = WritePlan(prepared.plan.size, write, exact=prepared.plan.exact)
            size = write_plan(path, plan, durable=spec.output.durable)
        except TensorFileError as error:  # tensors are read and quantised while they are written
            raise error.located(path=name_of(files[0])) from None
    align = spec.output.alignment
    not_aligned = unaligned(path, align)[0] if align > 1 else 0
    done = () if preparer.quantizer is None else tuple(preparer.quantizer.done)
    overflown, crc = preparer.overflow.total, sinks[0].digest or 0
    return ShardReport(task.number, size, crc, tensor_bytes(path), not_aligned, overflown, done, converted=True)


def _places(file: TensorFile, rows: Sequence[tuple[int, int]]) -> Iterator[tuple[str, Row]]:
    """Yield name and row of the tensors in ascending ranges."""
    pairs, position = named_rows(file), 0
    for start, stop in rows:
        yield from itertools.islice(pairs, start - position, stop - position)
        position = stop


# Names of scales, zero points, shapes or orders; the group `of` is the prefix of the name of their weights. FP8 of
# Hugging Face (weight_scale_inv), compressed-tensors (weight_scale), GPTQ and AWQ (scales, qzeros, g_idx), bitsandbytes
# (absmax, quant_map, quant_state), gpt-oss (blocks and scales).
_SCALES = re.compile(
    r"(?P<of>.+?)(?:"
    r"[._](?:scales?|scale_inv|scale_2|global_scale|zeros|qzeros|zero_points?|g_idx|shape|absmax|nested_absmax|quant_map"
    r"|nested_quant_map)|\.quant_state\..+)",
    re.DOTALL,
)
# Endings of the weights' name, after `of`.
_WEIGHTS = ("", ".weight", ".qweight", ".weight_packed", "_packed", "_blocks", ".blocks")


def moved_scales(where: Mapping[str, str]) -> dict[str, str]:
    """Return the shard of the weights for each tensor of scales that lies in another shard.

    A shard with the scales of its weights can be used alone. `where` is the shard of each tensor.
    """
    moved = {}
    for name, shard in where.items():
        match = _SCALES.fullmatch(name)
        if match is None:
            continue
        weights = next((match["of"] + ending for ending in _WEIGHTS if match["of"] + ending in where), None)
        if weights is not None and weights != name and where[weights] != shard:
            moved[name] = where[weights]
    return moved


class ShardPlan(NamedTuple):
    """The work of a conversion to shards.

    Attributes
    ----------
    tasks : list of ShardTask
    keys : list of str
        For each task, a `digest` of the inputs of its result, besides the arguments.
    weights : list of int
        For each task, the bytes of its tensors in the source.
    where : dict
        The shard of each tensor of the new model.
    metadata : dict
        The metadata of the new index.
    dropped, warnings, layout
        As in the report.
    files : dict
        The open files of the source, by their names in tasks.
    folders : dict
        Maps the absolute directories of source and target, as in tasks, to the caller's spelling.
    """

    tasks: list[ShardTask]
    keys: list[str]
    weights: list[int]
    where: dict[str, str]
    metadata: dict[str, Any]
    dropped: list[tuple[str, str]]
    warnings: list[str]
    layout: str
    files: Mapping[str, TensorFile]
    folders: dict[str, str]


def plan_shards(
    file: TensorFile, model: str | None, target: ShardTarget, spec: Spec, renamed: Mapping[str, str]
) -> ShardPlan:
    """Plan the shards of a model: a task for each shard with a tensor to write.

    Checks, for all shards and before any file exists, everything that can be checked without reading data.
    """
    source = parts_of(file)[0]
    path = source.absolute or source.name
    folder = folder_of(path)
    files: Mapping[str, TensorFile] = file.shards or {called(path): file}
    where = where_of(file) or {name: shard for shard, part in files.items() for name in part}
    shard_of = {name: shard for name, shard in where.items() if spec.takes(name)}
    labels = _labels(files, shard_of, target, spec)
    moved = moved_scales(labels)
    preparer = Preparer(spec, trial=True)
    dropped: list[tuple[str, str]] = []
    warnings: dict[str, None] = {}
    ready: list[tuple[tuple[FileRows, ...], Prepared, int]] = []
    refused: list[EncodeError] = []
    directory = None if model is None else read_beside(model, spec.opening.trust)
    for shard, chosen in _chosen(labels, moved, where):
        pieces, places = _pieces(files, chosen)
        try:
            config = None if ready else directory
            prepared = preparer.prepare(files[shard], places, config, target.path, renamed, part=True)
        except EncodeError as error:
            refused.append(error)
            continue
        dropped += prepared.dropped
        if prepared.tensors:
            warnings |= dict.fromkeys(prepared.warnings)
            ready.append((pieces, prepared, sum(place.nbytes for _, place in places)))
    if refused:
        raise _joined(refused)
    tensors_of = [prepared.tensors for _, prepared, _ in ready]
    check_total(file, spec, sum(tensors.nbytes for tensors in tensors_of))
    check_names(tensors_of, target.path)
    notes = [*warnings, *preparer.notes]
    if moved:
        notes.append(f"{counted(len(moved), 'tensor')} of scales went to the shards of their weights")
    if not ready:
        raise EncodeError("there is no tensor to write", path=target.path)
    names = target.names(len(ready))
    targets = [target.folder if target.whole else target.path, *(os.path.join(target.folder, name) for name in names)]
    check_not_read(file, *targets)
    shard_of_new = {new: name for name, tensors in zip(names, tensors_of, strict=True) for new in tensors.names()}
    target_folder = os.path.abspath(target.folder)
    tasks = [
        ShardTask(
            number=i,
            folder=folder,
            pieces=pieces,
            target=target_folder,
            name=name,
            spec=spec,
            model=None if i else model,
            part=(i, len(names), len(shard_of_new)) if spec.target_format.numbered else None,
            renamed=tuple((name, renamed[name]) for name in prepared.tensors.origins() if name in renamed),
            done=None,
        )
        for i, (name, (pieces, prepared, _)) in enumerate(zip(names, ready, strict=True))
    ]
    shared = None if directory is None else (sorted(directory.metadata.items()), sorted(directory.stamps.items()))
    keys = [
        Manifest.key(
            task.number, len(tasks), task.pieces, shared if task.model else None, task.renamed, *(task.part or ())
        )
        for task in tasks
    ]
    metadata = _index_metadata(file)
    encode_index(target, shard_of_new, 2**63, metadata)  # what cannot be said in an index fails now
    return ShardPlan(
        tasks,
        keys,
        [weight for *_, weight in ready],
        shard_of_new,
        metadata,
        dropped,
        notes,
        ready[0][1].layout,
        files,
        {folder: os.path.dirname(name_of(file)), target_folder: target.folder},
    )


def _chosen(
    labels: Mapping[str, str], moved: Mapping[str, str], where: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield for each new shard the file of its first tensor, and its tensors by file, scales with their weights."""
    members: dict[str, list[str]] = {}
    for name, label in labels.items():
        members.setdefault(label, []).append(name)
    arriving = {label: [name for name, to in moved.items() if to == label] for label in set(moved.values())}
    for label, names in members.items():
        shard = where[names[0]]
        chosen = {shard: [name for name in names if name not in moved]}
        for name in arriving.get(label, ()):
            chosen.setdefault(where[name], []).append(name)
        yield shard, chosen


def _labels(
    files: Mapping[str, TensorFile], shard_of: Mapping[str, str], target: ShardTarget, spec: Spec
) -> dict[str, str]:
    """Return the label of each converted tensor's new shard: a source file, or a part of one."""
    max_nbytes, labels = spec.max_shard_size, dict(shard_of)
    if spec.is_view or spec.opening.deltas:  # files are opened as one: the source of a tensor tells them apart
        for shard, part in files.items():
            labels |= {
                name: f"{shard}/{row.source.name}"
                for name, row in zip(part, rows_of(part), strict=True)
                if name in shard_of
            }
    for shard, part in files.items() if max_nbytes is not None else ():
        places = [(name, place) for name, place in named_rows(part) if shard_of.get(name) == shard]
        sizes = {name: place.nbytes for name, place in places}
        # A later error names all tensors that cannot be written.
        with contextlib.suppress(EncodeError):
            prepared = Preparer(spec, trial=True).prepare(part, places, None, target.path, {}, part=True)
            sizes |= {tensor.name: tensor.nbytes for tensor in prepared.tensors}
        number = filled = 0
        for name, _ in places:
            if filled and filled + sizes[name] > (max_nbytes or 0):
                number, filled = number + 1, 0
            filled += sizes[name]
            labels[name] = f"{shard}/{number}"
    return labels


def _pieces(
    files: Mapping[str, TensorFile], chosen: Mapping[str, Sequence[str]]
) -> tuple[tuple[FileRows, ...], list[tuple[str, Row]]]:
    """Return the pieces of a task, and the rows of its tensors. `chosen` has their names by shard of the source."""
    pieces, places = [], []
    for shard, names in chosen.items():
        members = frozenset(names)
        rows = [i for i, name in enumerate(files[shard]) if name in members]
        pieces.append(FileRows.of(shard, files[shard], _ranges(rows)))
        places += [(name, row) for name, row in named_rows(files[shard]) if name in members]
    return tuple(pieces), places


def _ranges(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending numbers as ranges [start, stop)."""
    # The numbers of one range differ from their places by one number.
    for _, run in itertools.groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        numbers = [row for _, row in run]
        yield numbers[0], numbers[-1] + 1


def _joined(refused: Sequence[EncodeError]) -> EncodeError:
    """Join the errors of all shards that the target cannot express."""
    first = refused[0]
    if len(refused) > 1:
        first.what += f"; and {counted(len(refused) - 1, 'more shard')} cannot be written"
        first.refused = tuple(line for error in refused for line in error.refused or (str(error),))
    return first


def _index_metadata(file: TensorFile) -> dict[str, Any]:
    """Return the metadata of a model's index that its shards lack."""
    return {
        key: value
        for key, value in (file.metadata if file.shards else {}).items()
        if key != "total_size"
        and not any(key in shard.metadata and equal(shard.metadata[key], value) for shard in file.shards.values())
    }


# The fields of a manifest's records, and their types.
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
    """Convert an open model to shards; `model` is its path, if it lies in a Hugging Face directory."""
    if run.executor is not None and parts_of(file)[0].absolute is None:
        raise ValueError(f"src is {name_of(file)}, expected a path: an executor opens files again")
    if run.world_size > 1 and run.manifest is None:
        raise ValueError("manifest= is needed by ranks: it says which shards the others have finished")
    if spec.threads is None and is_shared(run):
        spec = dataclasses.replace(spec, threads=1)
    plan = plan_shards(file, model, target, spec, renamed)
    with holding(target, run.rank if run.world_size > 1 else None):
        work = _Conversion(plan, target, spec, run, progress)
        files = None
        if model is not None and target.whole:
            dtype = None if spec.quantize is not None else spec.dtype
            trust = spec.opening.trust
            files = CompanionFiles(model, target.folder, trust, dtype=dtype, replace=work.resumes, decoded=spec.weights)
        if not spec.output.overwrite:
            work.check_free()
        new = {*plan.where.values(), *(files.names if files is not None else ())}
        with removing_new(target, () if run.manifest or run.keep_going else new):
            work.run()
            nbytes, warnings = work.finish(files)
    return ConvertReport(
        name_of(file),
        target.path,
        spec.format,
        plan.layout,
        sum(1 for name in plan.where.values() if name in work.records),
        nbytes,
        tuple(plan.dropped),
        tuple(plan.warnings + warnings),
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
        Whether an earlier run with this manifest has finished some tasks.
    records : dict
        Finished shards by name.
    overflown : list of (int, int)
        For each task that ran: number of values out of the range of the new type, and of tensors with such values.
    quantized : dict
        The quantised tensors of each task that ran.
    skipped : int
        Number of shards that an earlier run had finished.
    copied : tuple of str
        The files that were copied with the model.
    """

    def __init__(
        self, plan: ShardPlan, target: ShardTarget, spec: Spec, run: Run, progress: Callable[[int, int], None] | None
    ) -> None:
        self._plan, self._target, self._spec, self._run, self._progress = plan, target, spec, run, progress
        manifests = self._manifests()
        if len(self._recorded(manifests)) < len(plan.tasks):
            target.check_free(() if manifests else set(plan.where.values()))
        self._manifest = manifests[0] if manifests else None
        self._done = self._recorded(manifests[:1])
        self.resumes = bool(self._done)
        self.tasks = [self._resumed(task) for task in share_of(run, plan.tasks)]
        self.records: dict[str, dict[str, Any]] = {}
        self.overflown: list[tuple[int, int]] = []
        self.quantized: dict[int, tuple[QuantizedInfo, ...]] = {}
        self.skipped = 0
        self.copied: tuple[str, ...] = ()
        self._total, self._so_far = sum(plan.weights[task.number] for task in self.tasks), 0

    def _manifests(self) -> list[Manifest]:
        """Read the manifest of this rank, then the manifests of the others."""
        key = Manifest.key(self._target.index_name, self._spec.result, len(self._plan.tasks))
        return [Manifest(path, "convert", key, _RECORD, self._spec.opening.limits) for path in manifests_of(self._run)]

    def _recorded(self, manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
        """Return the records of finished shards by name."""
        records = {}
        for task, key in zip(self._plan.tasks, self._plan.keys, strict=True):
            record = next((record for m in manifests if (record := m.find(task.name, key)) is not None), None)
            if record is not None:
                records[task.name] = {name: record[name] for name in _RECORD}
        return records

    def _resumed(self, task: ShardTask) -> ShardTask:
        record = self._done.get(task.name)
        return task if record is None else task._replace(done=(record["nbytes"], record["crc32"]))

    def check_free(self) -> None:
        """Raise `TargetError` if a file has the name of a shard that no manifest records."""
        for path in (os.path.join(self._target.folder, task.name) for task in self.tasks if task.done is None):
            if os.path.lexists(path):
                raise file_exists(path)

    def run(self) -> None:
        """Run the tasks."""
        if self._manifest is not None:
            self._manifest.write()  # where that fails, it fails before any shard is written
        self._report()
        try:
            runner = Runner(self._run, self._manifest, self._plan.folders)
            weights = [self._plan.weights[task.number] for task in self.tasks]
            convert = convert_shard
            if self._run.executor is None:
                convert = functools.partial(convert_shard, opened=self._plan.files)
            runner.run(convert, self.tasks, self._finished, weights)
        finally:
            remove_leftovers(self._target.folder, [task.name for task in self.tasks])
            if self._manifest is not None:
                self._manifest.clean()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._so_far, self._total)

    def _finished(self, task: ShardTask, report: Any) -> None:
        """Note a finished task."""
        if not isinstance(report, ShardReport) or report.number != task.number:
            raise ShardsError(f"shard {quoted(task.name)}: the executor did not return the report of this task")
        record = self._done.get(task.name, {})
        if report.converted:
            self.quantized[task.number] = report.quantized
            self.overflown.append(report.overflown)
            record = {name: getattr(report, name) for name in _RECORD}
        else:
            self.skipped += 1
        self.records[task.name] = record
        if self._manifest is not None:
            self._manifest.add(task.name, self._plan.keys[task.number], **record)
        self._so_far += self._plan.weights[task.number]
        self._report()

    def finish(self, companion_files: CompanionFiles | None) -> tuple[int, list[str]]:
        """Copy companion files and write the index, unless a shard is missing. Return all bytes, and warnings."""
        target, tasks, align = self._target, self._plan.tasks, self._spec.output.alignment
        if self._run.world_size > 1:
            self.records = self._recorded(self._manifests()) | self.records
        values, tensors = (sum(counts) for counts in zip((0, 0), *self.overflown, strict=True))
        warnings = overflow_note(values, tensors, self._spec.dtype)
        nbytes, missing = sum(record["nbytes"] for record in self.records.values()), len(tasks) - len(self.records)
        if missing:
            others = f"{counted(missing, 'shard')} of other ranks are missing"
            return nbytes, [*warnings, f"{others}: the rank that ends last writes the index"]
        if companion_files is not None:
            self.copied = companion_files.copy()
        total = sum(record["tensor_bytes"] for record in self.records.values())
        durable = self._spec.output.durable
        nbytes += write_index(target, self._plan.where, total, self._plan.metadata, durable=durable)
        for folder, name in map(os.path.split, (target.index_name, *self.copied)):
            remove_leftovers(os.path.join(target.folder, folder), [name])
        count = sum(record["unaligned"] for record in self.records.values())
        return nbytes, warnings + unaligned_note(count, len(self._plan.where), align)
