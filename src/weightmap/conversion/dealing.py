"""Divides a conversion to shards into tasks, and finds errors before any file exists."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.conversion.running import digest
from weightmap.conversion.tasks import FileRows, ShardTask, read_beside, state_of
from weightmap.conversion.tensors import Prepared, Preparer, check_total
from weightmap.core.bytes.open_source import called, folder_of
from weightmap.core.formats import check_names
from weightmap.core.model.internals import name_of, named_rows, parts_of, rows_of, where_of
from weightmap.core.model.sharded import equal
from weightmap.core.model.sharding import encode_index
from weightmap.errors import EncodeError, counted
from weightmap.huggingface.inputs import check_not_read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightmap.conversion.spec import Spec
    from weightmap.core.model.file import TensorFile
    from weightmap.core.model.sharding import ShardTarget
    from weightmap.core.table.table import Row

# Names that belong to the weights of which they hold scales, zero points, shapes or orders: FP8 of Hugging Face
# (weight_scale_inv), compressed-tensors (weight_scale), GPTQ and AWQ (scales, qzeros, g_idx), bitsandbytes (absmax,
# quant_map, quant_state), gpt-oss (blocks and scales).
_SCALES = re.compile(
    r"(?P<of>.+?)(?:"
    r"[._](?:scales?|scale_inv|scale_2|global_scale|zeros|qzeros|zero_points?|g_idx|shape|absmax|nested_absmax|quant_map"
    r"|nested_quant_map)|\.quant_state\..+)",
    re.DOTALL,
)
# What the name of the weights may have behind the rest.
_WEIGHTS = ("", ".weight", ".qweight", ".weight_packed", "_packed", "_blocks", ".blocks")


def moved_scales(where: Mapping[str, str]) -> dict[str, str]:
    """Return the shard of the weights for each tensor of scales that lies in another one.

    A shard that is converted with its scales can be used alone; `where` is the shard of each tensor.
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


class Deal(NamedTuple):
    """The work of a conversion to shards.

    Attributes
    ----------
    tasks : list of ShardTask
    keys : list of str
        For each task, a `digest` of what its result depends on, besides the arguments.
    weights : list of int
        For each task, the bytes of its tensors in the source.
    where : dict
        The shard of each tensor of the new model.
    metadata : dict
        Those of the new index.
    dropped, warnings, layout
        As in the report.
    files : dict
        The open files of the source, by the names in tasks.
    folders : dict
        The absolute directories of source and target, as in tasks, each with the caller's spelling.
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


def deal(file: TensorFile, model: str | None, target: ShardTarget, spec: Spec, renamed: Mapping[str, str]) -> Deal:
    """Deal out the shards of a model, a task for each that has a tensor to write.

    Everything that can be checked without reading data is checked here, for all shards, before any file exists.
    """
    source = parts_of(file)[0]
    path = source.absolute or source.name
    folder = folder_of(path)
    files: Mapping[str, TensorFile] = file.shards or {called(path): file}
    where = where_of(file) or {name: shard for shard, part in files.items() for name in part}
    taken = {name: shard for name, shard in where.items() if spec.takes(name)}
    parts = _parts(files, taken, target, spec)
    moved = moved_scales(parts)
    arriving = {shard: [name for name, to in moved.items() if to == shard] for shard in set(moved.values())}
    preparer = Preparer(spec)
    made: list[tuple[str, tuple[FileRows, ...], Prepared, int]] = []
    dropped: list[tuple[str, str]] = []
    warnings: dict[str, None] = {}
    refused: list[EncodeError] = []
    members: dict[str, list[str]] = {}
    for name, label in parts.items():
        members.setdefault(label, []).append(name)
    beside = None if model is None else read_beside(model)
    for label, own in members.items():
        shard = where[own[0]]
        part = files[shard]
        chosen = {shard: [name for name in own if name not in moved]}
        for name in arriving.get(label, ()):
            chosen.setdefault(where[name], []).append(name)
        pieces, places = _pieces(files, chosen)
        try:
            one = preparer.prepare(part, places, None if made else beside, target.path, renamed, part=True, trial=True)
        except EncodeError as error:
            refused.append(error)
            continue
        dropped += one.dropped
        if one.tensors:
            warnings |= dict.fromkeys(one.warnings)
            made.append((shard, pieces, one, sum(place.nbytes for _, place in places)))
    if refused:
        raise _together(refused)
    check_total(file, spec, sum(one.tensors.nbytes for _, _, one, _ in made))
    check_names((one.tensors for _, _, one, _ in made), target.path)
    notes = [*warnings, *preparer.notes]
    if moved:
        notes.append(f"{counted(len(moved), 'tensor')} of scales went to the shards of their weights")
    if not made:
        raise EncodeError("there is no tensor to write", path=target.path)
    names = target.names(len(made))
    check_not_read(file, *(os.path.join(target.folder, name) for name in names))
    whole = {tensor: name for name, (_, _, one, _) in zip(names, made, strict=True) for tensor in one.tensors.names()}
    into = os.path.abspath(target.folder)
    tasks = [
        ShardTask(
            number=i,
            folder=folder,
            pieces=pieces,
            target=into,
            name=name,
            spec=spec,
            model=None if i else model,
            part=(i, len(names), len(whole)) if spec.target_format.numbered else None,
            renamed=tuple((name, renamed[name]) for name in one.tensors.origins() if name in renamed)
            if renamed
            else (),
            done=None,
        )
        for i, (name, (_, pieces, one, _)) in enumerate(zip(names, made, strict=True))
    ]
    along = None if beside is None else (sorted(beside.metadata.items()), sorted(beside.seen.items()))
    keys = [
        digest(task.number, len(tasks), task.pieces, along if task.model else None, task.renamed, *(task.part or ()))
        for task in tasks
    ]
    encode_index(target, whole, 2**63, _index_metadata(file))
    return Deal(
        tasks,
        keys,
        [weight for *_, weight in made],
        whole,
        _index_metadata(file),
        dropped,
        notes,
        made[0][2].layout,
        files,
        {folder: os.path.dirname(name_of(file)), into: target.folder},
    )


def _parts(
    files: Mapping[str, TensorFile], taken: Mapping[str, str], target: ShardTarget, spec: Spec
) -> dict[str, str]:
    """Return for each tensor that is taken a label of its new shard: one for each source file, or parts of it."""
    most, labels = spec.max_shard_size, dict(taken)
    if spec.is_view or spec.opening.deltas:  # of several files, opened as one: a tensor may lie in more than one
        for shard, part in files.items():
            labels |= {
                name: f"{shard}/{row.source.name}"
                for name, row in zip(part, rows_of(part), strict=True)
                if name in taken
            }
    for shard, part in files.items() if most is not None else ():
        places = [(name, place) for name, place in named_rows(part) if taken.get(name) == shard]
        sizes = {name: place.nbytes for name, place in places}
        # A tensor that cannot be written is refused with all others of its kind, later.
        with contextlib.suppress(EncodeError):
            made = Preparer(spec).prepare(part, places, None, target.path, {}, part=True, trial=True)
            sizes |= {tensor.name: tensor.nbytes for tensor in made.tensors}
        number = filled = 0
        for name, _ in places:
            if filled and filled + sizes[name] > (most or 0):
                number, filled = number + 1, 0
            filled += sizes[name]
            labels[name] = f"{shard}/{number}"
    return labels


def _pieces(
    files: Mapping[str, TensorFile], chosen: Mapping[str, Sequence[str]]
) -> tuple[tuple[FileRows, ...], list[tuple[str, Row]]]:
    """Return the pieces of a task, and the places of its tensors, which are chosen by the shard that they lie in."""
    pieces, places = [], []
    for shard, names in chosen.items():
        wanted = frozenset(names)
        rows = [i for i, name in enumerate(files[shard]) if name in wanted]
        pieces.append(FileRows(shard, *state_of(files[shard]), tuple(_ranges(rows))))
        places += [(name, row) for name, row in named_rows(files[shard]) if name in wanted]
    return tuple(pieces), places


def _ranges(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield rising numbers as ranges [start, stop)."""
    start = stop = -1
    for row in rows:
        if row != stop:
            if stop > start:
                yield start, stop
            start = row
        stop = row + 1
    if stop > start:
        yield start, stop


def _together(refused: Sequence[EncodeError]) -> EncodeError:
    """Return one error for all shards that the target cannot express."""
    first = refused[0]
    if len(refused) > 1:
        first.what += f"; and {counted(len(refused) - 1, 'more shard')} cannot be written"
        first.refused = tuple(line for error in refused for line in error.refused or (str(error),))
    return first


def _index_metadata(file: TensorFile) -> dict[str, Any]:
    """Return the metadata of a model's index, without those that its shards have themselves."""
    return {
        key: value
        for key, value in (file.metadata if file.shards else {}).items()
        if key != "total_size"
        and not any(key in shard.metadata and equal(shard.metadata[key], value) for shard in file.shards.values())
    }
