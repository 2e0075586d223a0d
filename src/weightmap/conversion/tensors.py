"""Prepares the file that a conversion writes: its tensors as payloads, what goes along, and what stays behind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.conversion.extras import extras_of, metadata_of, spared
from weightmap.conversion.packing import Packed
from weightmap.conversion.regrouping import Regrouper
from weightmap.dtypes import DTYPES, FLOATING, DType, numpy_dtype
from weightmap.errors import TensorFileError, counted, quoted
from weightmap.formats import Payload, Plan, Request, Tensors
from weightmap.model.opening import open_privately
from weightmap.model.parts import parts_of
from weightmap.model.payload import from_quantized
from weightmap.model.saving import choose_layout, plan_request
from weightmap.model.shards import disagreements
from weightmap.quant.pieces import in_pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.conversion.overflow import Overflow
    from weightmap.conversion.task import Task
    from weightmap.formats import Format
    from weightmap.importers._huggingface import ModelDirectory
    from weightmap.model.file import TensorFile
    from weightmap.quant import TensorRef

__all__ = ["Prepared", "prepare", "regrouper_for", "unaligned", "unaligned_note"]

# Elements of a quantised tensor that are decoded at once.
_PIECE = 1 << 18


class Prepared(NamedTuple):
    """A file that is ready to be written.

    Attributes
    ----------
    plan : Plan
    layout : str
    tensors : Packed
        Its tensors, by their names in the source.
    dropped : list of (str, str)
        Name of each tensor that is left out, and the reason.
    warnings : list of str
        Losses besides tensors.
    """

    plan: Plan
    layout: str
    tensors: Packed
    dropped: list[tuple[str, str]]
    warnings: list[str]


def prepare(
    file: TensorFile,
    places: Iterable[tuple[str, TensorRef]],
    directory: ModelDirectory | None,
    task: Task,
    regrouper: Regrouper | None = None,
    *,
    part: bool = False,
    numbers: tuple[int, int, int] | None = None,
    trial: bool = False,
) -> Prepared:
    """Prepare a new file of some tensors of a model, with configuration and vocabulary of its directory.

    Raises what the conversion would raise before it creates a file. A `part` loses the metadata that say which part of
    a model it was; `numbers` are the `part` of its `Request`. A `trial` reads no data to find out: its plan has
    estimated sizes, and must not be written.
    """
    found: Format = task.format
    metadata = metadata_of(file, directory, found)
    own = parts_of(file)[1].part
    if part and own is not None:
        for key in own.keys & metadata.keys():
            del metadata[key]
    try:
        layout = choose_layout(found, task.layout, metadata)
    except TensorFileError as error:
        raise error.located(path=task.target, format=found.name) from None
    try:
        shared = regrouper is not None
        regrouper = regrouper_for(found, layout) if regrouper is None else regrouper
        packed, dropped = _packed(places, layout, task, regrouper, trial=trial)
        task.limits.check("max_copy_bytes", packed.nbytes, "bytes of tensors to copy")
    except TensorFileError as error:
        raise error.located(path=task.source) from None
    extras, warnings = extras_of(file, directory, metadata, found, layout)
    if not shared:
        warnings += regrouper.notes
    warnings += [f"{what}: left behind" for what in disagreements(file, file.metadata)]
    tensors: Tensors = packed
    if found.embeddings is not None and file.format != found.name:
        tensors, renamed = _as_embeddings(packed, *found.embeddings)
        warnings += renamed
    request = Request(tensors, layout, **extras, align=task.arguments.align, part=numbers)
    plan = plan_request(task.target, found, request)
    return Prepared(plan, layout, packed, dropped, warnings)


def regrouper_for(found: Format, layout: str) -> Regrouper:
    """Return a regrouper for the schemes of a target."""
    return Regrouper(found.schemes.get(layout, frozenset()))


def _packed(
    places: Iterable[tuple[str, TensorRef]], layout: str, task: Task, regrouper: Regrouper, *, trial: bool
) -> tuple[Packed, list[tuple[str, str]]]:
    """Return the tensors to write, and name and reason for each one that is left out."""
    found, quantizer = task.format, task.quantizer
    all_taken = not (task.arguments.include or task.arguments.exclude)
    held = found.schemes.get(layout, frozenset())
    packed, dropped = Packed(), []
    known: dict[Any, int] = {}
    for name, place in places:
        if not (all_taken or task.takes(name)):
            continue
        why = spared(name, place, found, layout)
        if why is not None:
            dropped.append((name, why))
            continue
        source, (dtype, shape, offset, nbytes), _ = place
        quantizing = quantizer is not None and quantizer.wants(name, place)
        # Dense tensors of one shape are of one kind. Making the payload of each takes as long as copying small ones.
        key: Any = (quantizing, source, dtype, shape, nbytes)
        number = None if dtype.quantized else known.get(key)
        if number is None:
            source.check_size(f"tensor {quoted(name)}")
            if quantizer is not None and quantizing:
                made = quantizer.payload(name, place, held, trial=trial)
            else:  # with a quantiser, a quantised tensor stays as it is
                wanted = None if quantizer is not None and dtype.quantized else task.dtype
                made = _payload(name, place, wanted, regrouper, task.overflow, trial=trial)
            if dtype.quantized:
                key = (made.kind, source, dtype, nbytes)
                number = known.get(key)
        if number is None:
            number = packed.add_kind(made, place)
            if made.dtype.name != "adaptive":  # whose sizes depend on their values
                known[key] = number
        packed.add(name, number, offset)
    return packed, dropped


def unaligned(target: str, align: int) -> tuple[int, int]:
    """Return how many tensors of a new file do not begin at a multiple of `align`, and how many it has."""
    with open_privately(target) as file:
        return sum(1 for info in file.infos() if info.offset % align), len(file)


def unaligned_note(odd: int, count: int, align: int) -> list[str]:
    """Return a line about tensors that could not be aligned."""
    return [f"{counted(odd, 'tensor')} of {count} could not be aligned to {align} bytes"] if odd else []


def _as_embeddings(tensors: Tensors, matrix: str, norms: str) -> tuple[Tensors, list[str]]:
    """Give the only matrix of a model the name that the format of embeddings requires, and a line that says so."""
    payloads = list(tensors)
    others = [payload for payload in payloads if payload.name != norms]
    if len(others) != 1 or others[0].name == matrix or len(others[0].shape) != 2:
        return tensors, []
    name, others[0].name = others[0].name, matrix
    return Tensors(payloads), [f"tensor {quoted(name)} is written as {matrix!r}"]


def _payload(
    name: str, place: TensorRef, wanted: DType | None, regrouper: Regrouper, overflow: Overflow, *, trial: bool
) -> Payload:
    """Return the payload of a tensor, converted to the floating-point type `wanted` if it has one."""
    row = place.row
    if row.dtype.quantized:
        if wanted is None:
            return _as_quantized(name, place, regrouper, trial=trial)
        size = math.prod(row.shape)
        return Payload(name, wanted, row.shape, size * wanted.bits // 8, _decoded, name, place, wanted, overflow)
    if wanted is None or row.dtype.name not in FLOATING or row.dtype.name == wanted.name:
        dtype = DTYPES[row.dtype.name] if row.dtype.swapped else row.dtype
        return Payload(name, dtype, row.shape, row.nbytes, _copied, name, place)
    nbytes = row.nbytes // (row.dtype.bits // 8) * (wanted.bits // 8)
    return Payload(name, wanted, row.shape, nbytes, _cast, name, place, wanted, overflow)


def _as_quantized(name: str, place: TensorRef, regrouper: Regrouper, *, trial: bool) -> Payload:
    """Return a quantised tensor as it is, or in the target's blocks. Its bytes are read when they are written."""
    row = place.row
    layout = place.layout()
    if layout is None:  # product quantisation
        model = from_quantized(name, place.decoder())
        return Payload(name, model.dtype, model.shape, model.nbytes, _parts, name, place, parts=model.parts)
    start, block_size, scale_type = layout
    if regrouper.wants(row.dtype.name):
        return regrouper.payload(name, place, block_size, scale_type, trial=trial)
    nbytes = row.nbytes - start
    made: tuple[Any, ...] = (_from, name, place, start)
    if row.dtype.name == "adaptive":  # nothing has checked its mask so far
        made = (_checked, name, place)
    return Payload(name, row.dtype, row.shape, nbytes, *made, block_size=block_size, scale_type=scale_type)


def _copied(_: str, place: TensorRef) -> Iterator[Any]:
    return place.chunks()


def _from(_: str, place: TensorRef, start: int) -> Iterator[Any]:
    """Return the bytes of a tensor from `start` on."""
    return place.source.chunks(place.row.offset + start, place.row.nbytes - start)


def _checked(_: str, place: TensorRef) -> Iterator[Any]:
    yield place.decoder().payload


def _parts(name: str, place: TensorRef) -> Iterator[Any]:
    yield from from_quantized(name, place.decoder()).chunks()


def _decoded(name: str, place: TensorRef, wanted: DType, overflow: Overflow) -> Iterator[memoryview]:
    pieces = (values for tensor in in_pieces(place) for values in tensor.in_runs(_PIECE))
    return overflow.cast(name, pieces, wanted)


def _cast(name: str, place: TensorRef, wanted: DType, overflow: Overflow) -> Iterator[memoryview]:
    return overflow.cast(name, _stored(place), wanted)


def _stored(place: TensorRef) -> Iterator[NDArray[Any]]:
    source, row, _ = place
    stored = numpy_dtype(row.dtype)
    for chunk in source.chunks(row.offset, row.nbytes):
        yield np.frombuffer(chunk, stored)
