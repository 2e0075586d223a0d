"""Deals out the work of a conversion to shards, and finds everything that can go wrong before a file is there."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.conversion.manifest import digest
from weightmap.conversion.scales import moved_scales
from weightmap.conversion.shard import Piece, ShardTask, read_beside, state_of
from weightmap.conversion.tensors import Prepared, prepare, regrouper_for
from weightmap.errors import EncodeError, counted
from weightmap.formats._metadata import equal
from weightmap.model.inputs import check_not_read
from weightmap.model.parts import located, name_of, parts_of
from weightmap.model.saving import choose_layout
from weightmap.model.sharding import encode_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightmap.conversion.task import Arguments
    from weightmap.formats import Format
    from weightmap.model.file import TensorFile
    from weightmap.model.sharding import ShardTarget
    from weightmap.quant import TensorRef

__all__ = ["Deal", "deal"]


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
    folders : dict
        The directories of source and target, which tasks know as absolute ones, and each as the caller gave it.
    """

    tasks: list[ShardTask]
    keys: list[str]
    weights: list[int]
    where: dict[str, str]
    metadata: dict[str, Any]
    dropped: list[tuple[str, str]]
    warnings: list[str]
    layout: str
    folders: dict[str, str]


def deal(file: TensorFile, model: str | None, target: ShardTarget, found: Format, arguments: Arguments) -> Deal:
    """Deal out the shards of a model, a task for each that has a tensor to write.

    Everything that could go wrong without reading data is checked here, for all shards, before any file is there.
    """
    source = parts_of(file)[0]
    if source.absolute is None:
        raise ValueError(f"src is {name_of(file)}, expected a path: shards are read from files")
    folder = os.path.dirname(source.absolute)
    files: Mapping[str, TensorFile] = file.shards or {os.path.basename(source.absolute): file}
    work = arguments.task(name_of(file), target.path, found)
    where = {name: shard for shard, part in files.items() for name in part if not file.shards or name in file}
    taken = {name: shard for name, shard in where.items() if work.takes(name)}
    parts = _parts(files, taken, target, found, arguments)
    moved = moved_scales(parts)
    arriving = {shard: [name for name, to in moved.items() if to == shard] for shard in set(moved.values())}
    regrouper = regrouper_for(found, choose_layout(found, arguments.layout, None))
    made: list[tuple[str, tuple[Piece, ...], Prepared, int]] = []
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
            one = prepare(part, places, None if made else beside, work, regrouper, part=True, trial=True)
        except EncodeError as error:
            refused.append(error)
            continue
        dropped += one.dropped
        if one.tensors:
            warnings |= dict.fromkeys(one.warnings)
            made.append((shard, pieces, one, sum(place.row.nbytes for _, place in places)))
    if refused:
        raise _together(refused)
    work.limits.check("max_copy_bytes", sum(one.tensors.nbytes for _, _, one, _ in made), "bytes of tensors to copy")
    notes = [*warnings, *regrouper.notes, *([] if work.quantizer is None else work.quantizer.notes)]
    if moved:
        notes.append(f"{counted(len(moved), 'tensor')} of scales went to the shards of their weights")
    if not made:
        raise EncodeError("there is no tensor to write", path=target.path)
    names = target.names(len(made))
    check_not_read(file, *(os.path.join(target.folder, name) for name in names))
    whole = {tensor.name: name for name, (_, _, one, _) in zip(names, made, strict=True) for tensor in one.tensors}
    into = os.path.abspath(target.folder)
    tasks = [
        ShardTask(
            number=i,
            folder=folder,
            pieces=pieces,
            target=into,
            name=name,
            format=found.name,
            arguments=arguments,
            model=None if i or model is None else str(model),
            part=(i, len(names), len(whole)) if found.numbered else None,
            done=None,
        )
        for i, (name, (_, pieces, _, _)) in enumerate(zip(names, made, strict=True))
    ]
    along = None if beside is None else (sorted(beside.metadata.items()), sorted(beside.seen.items()))
    keys = [
        digest(task.number, len(tasks), task.pieces, along if task.model else None, *(task.part or ()))
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
        {folder: os.path.dirname(name_of(file)), into: target.folder},
    )


def _parts(
    files: Mapping[str, TensorFile], taken: Mapping[str, str], target: ShardTarget, found: Format, arguments: Arguments
) -> dict[str, str]:
    """Return for each tensor that is taken a label of its new shard: one for each source file, or parts of it."""
    most, labels = arguments.max_shard_size, dict(taken)
    for shard, part in files.items() if most is not None else ():
        places = [(name, place) for name, place in zip(part, located(part), strict=True) if taken.get(name) == shard]
        sizes = {name: place.row.nbytes for name, place in places}
        # A tensor that cannot be written is refused with all others of its kind, later.
        with contextlib.suppress(EncodeError):
            work = arguments.task(name_of(part), target.path, found)
            regrouper = regrouper_for(found, choose_layout(found, arguments.layout, None))
            made = prepare(part, places, None, work, regrouper, part=True, trial=True)
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
) -> tuple[tuple[Piece, ...], list[tuple[str, TensorRef]]]:
    """Return the pieces of a task, and the places of its tensors, which are chosen by the shard that they lie in."""
    pieces, places = [], []
    for shard, names in chosen.items():
        wanted = frozenset(names)
        rows = [i for i, name in enumerate(files[shard]) if name in wanted]
        pieces.append(Piece(shard, *state_of(parts_of(files[shard])[0]), tuple(_ranges(rows))))
        places += [(name, ref) for name, ref in zip(files[shard], located(files[shard]), strict=True) if name in wanted]
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
