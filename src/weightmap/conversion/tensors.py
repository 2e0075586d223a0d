"""Prepares the file that a conversion writes: its tensors as payloads, and what goes along or stays behind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.conversion.extras import dropped_because, extras_of, metadata_of, pop_left_out
from weightmap.conversion.packing import Packed, copy
from weightmap.conversion.pieces import in_pieces
from weightmap.conversion.quantizer import Quantizer, Regrouper
from weightmap.core.arguments import entries
from weightmap.core.dtypes import DTYPES, FLOATING, DType, numpy_dtype
from weightmap.core.formats import FORMATS, Filled, Payload, Request, Tensors
from weightmap.core.model.internals import check_made, name_of, parts_of
from weightmap.core.model.opening import open_privately
from weightmap.core.model.saving import choose_layout, from_quantized, plan_request
from weightmap.core.model.sharded import disagreements
from weightmap.core.native.access import cpus
from weightmap.errors import TensorFileError, counted, quoted
from weightmap.llama.tensors import stays_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.conversion.spec import Spec
    from weightmap.core.bytes.sink import WritePlan
    from weightmap.core.dtypes import DType
    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row
    from weightmap.huggingface.directory import ModelDirectory

# Integers of the same size, which compare faster than the types of ml_dtypes.
_INTEGERS: dict[int, tuple[type[Any], type[Any]]] = {
    1: (np.uint8, np.int8),
    2: (np.uint16, np.int16),
    4: (np.uint32, np.int32),
    8: (np.uint64, np.int64),
}
# Elements of a quantised tensor that are decoded at once.
_PIECE = 1 << 18


class Overflow:
    """The values that one file's conversion to another type makes infinite or NaN, by tensor."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    @property
    def total(self) -> tuple[int, int]:
        """The number of such values, and of tensors with some."""
        return sum(self._counts.values()), len(self._counts)

    def cast(self, name: str, pieces: Iterable[NDArray[Any]], wanted: DType) -> Iterator[memoryview]:
        """Yield the bytes of a tensor, given in pieces of one type, as `wanted`."""
        target = numpy_dtype(wanted)
        # A type of sign and magnitude: larger magnitudes than that of its largest number are infinity and NaN. The
        # largest signed integer is the largest positive magnitude, the largest unsigned one that of a negative number.
        unsigned, signed = _INTEGERS[target.itemsize]
        limit = _largest(target)
        largest, lowest = (int(np.array(end, target).view(unsigned)) for end in (limit, -limit))
        self._counts.pop(name, None)
        for values in pieces:
            with np.errstate(over="ignore", invalid="ignore"):
                cast = values.astype(target)
            narrower = _largest(values.dtype) > limit
            if narrower and cast.size and (cast.view(signed).max() > largest or cast.view(unsigned).max() > lowest):
                count = int(np.count_nonzero(np.isfinite(values) & ~np.isfinite(cast)))
                if count:
                    self._counts[name] = self._counts.get(name, 0) + count
            yield memoryview(cast.view(np.uint8))


def _largest(dtype: np.dtype[Any]) -> float:
    """Return the largest number of a floating-point type."""
    import ml_dtypes  # noqa: PLC0415 - 5 ms, for conversions to another type alone

    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def overflow_note(values: int, tensors: int, dtype: str | None) -> list[str]:
    """Return a line about values that a conversion to this type made infinite or NaN, if there are any."""
    if not values or dtype is None:
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        beyond = np.array(np.inf).astype(numpy_dtype(DTYPES[dtype]))
    became = "infinite" if np.isinf(beyond) else "NaN"
    what = f"{counted(values, 'value')} of {counted(tensors, 'tensor')}"
    are, they = ("is", "it") if values == 1 else ("are", "they")
    return [f"{what} {are} out of the range of {dtype}: {they} became {became}"]


class Prepared(NamedTuple):
    """A file that is ready to be written.

    Attributes
    ----------
    plan : WritePlan
    layout : str
    tensors : Packed
    dropped : list of (str, str)
        Name of each tensor that is left out, and the reason.
    warnings : list of str
        Losses besides tensors.
    """

    plan: WritePlan
    layout: str
    tensors: Packed
    dropped: list[tuple[str, str]]
    warnings: list[str]


class Preparer:
    """Prepares the files of a new model, and notes what their tensors lose.

    Attributes
    ----------
    overflow : Overflow
    quantizer : Quantizer or None
    """

    def __init__(self, spec: Spec) -> None:
        self._spec, self._format = spec, spec.target_format
        self.overflow: Overflow = Overflow()
        how = spec.quantize
        self.quantizer: Quantizer | None = None if how is None else Quantizer(how, spec.threads, spec.shape)
        layout = choose_layout(self._format, spec.output.layout, None)
        self._held = self._format.schemes.get(layout, frozenset[str]())
        self._dtype = None if spec.dtype is None else DTYPES[spec.dtype]
        self._threads = cpus() if spec.threads is None else spec.threads
        self._regrouper = Regrouper(self._held)

    @property
    def notes(self) -> list[str]:
        """Lines about tensors whose scheme differs from the requested one, or from the one they had."""
        return [*self._regrouper.notes, *([] if self.quantizer is None else self.quantizer.notes)]

    def prepare(
        self,
        file: TensorFile,
        places: Iterable[tuple[str, Row]],
        directory: ModelDirectory | None,
        target: str,
        renamed: Mapping[str, str],
        *,
        part: bool = False,
        numbers: tuple[int, int, int] | None = None,
        trial: bool = False,
    ) -> Prepared:
        """Prepare a new file of some tensors of a model, with configuration and vocabulary of its directory.

        Raises what the conversion would raise before it creates a file. `renamed` has the new name of each tensor that
        gets one. A `part` loses the metadata that say which part of a model it was; `numbers` are the `part` of its
        `Request`. A `trial` reads no data to find out: its plan has estimated sizes, and must not be written.
        """
        spec, found = self._spec, self._format
        metadata = metadata_of(file, directory, found)
        for key, value in found.usual_metadata.items() if spec.configured else ():
            metadata.setdefault(key, value)
        left_out = []
        nested = file.format in FORMATS and FORMATS[file.format].nested  # shards may be of several formats
        if nested and not (spec.include is None and not spec.exclude):
            left_out = pop_left_out(metadata, file, spec.takes)
        own = parts_of(file)[1].part
        if part and own is not None:
            for key in own.keys & metadata.keys():
                del metadata[key]
        try:
            layout = choose_layout(found, spec.output.layout, metadata)
        except TensorFileError as error:
            raise error.located(path=target, format=found.name) from None
        try:
            packed, dropped = self._packed(places, layout, renamed, trial=trial)
            check_total(file, spec, packed.nbytes)
        except TensorFileError as error:
            raise error.located(path=name_of(file)) from None
        extras, warnings = extras_of(file, directory, metadata, found, layout, along=part)
        if left_out:
            some = ", ".join(map(quoted, left_out[:5])) + ", ..." * (len(left_out) > 5)
            warnings.append(f"{entries(len(left_out))} of what was left out ({some}): left behind")
        warnings += [f"{what}: left behind" for what in disagreements(file, file.metadata)]
        tensors: Tensors = packed
        if found.embeddings is not None and file.format != found.name:
            tensors, named = _as_embeddings(packed, *found.embeddings)
            warnings += named
        output = spec.output
        extras |= {"checksums": output.checksums, "align": output.alignment}
        request = Request(tensors, layout, **extras, part=numbers)
        return Prepared(plan_request(target, found, request), layout, packed, dropped, warnings)

    def _packed(
        self, places: Iterable[tuple[str, Row]], layout: str, renamed: Mapping[str, str], *, trial: bool
    ) -> tuple[Packed, list[tuple[str, str]]]:
        """Return the tensors to write, and name and reason for each one that is left out."""
        spec, found, quantizer = self._spec, self._format, self.quantizer
        all_taken = spec.include is None and not spec.exclude
        packed, dropped = Packed(renamed, self._threads), []
        known: dict[Any, int] = {}
        for name, place in places:
            if not (all_taken or spec.takes(name)):
                continue
            dtype, shape, source, offset, nbytes, _, _ = place
            if dtype.name == "int64" and (why := dropped_because(name, place, found, layout)) is not None:
                dropped.append((name, why))
                continue
            scheme = None if quantizer is None else quantizer.wants(name, place)
            kept = spec.translated and stays_float32(name, shape)
            # Dense tensors of one shape are of one kind: making a payload for each takes as long as copying small ones.
            key: Any = (scheme, kept, source, dtype, shape, nbytes)
            number = None if dtype.quantized else known.get(key)
            if number is None:
                source.check_size(f"tensor {quoted(name)}", nbytes)
                made = self._payload(name, place, quantizing=scheme is not None, kept=kept, trial=trial)
                if dtype.quantized:
                    key = (made.kind, source, dtype, nbytes)
                    number = known.get(key)
            if number is None:
                number = packed.add_kind(made, place)
                if made.dtype.name != "adaptive":  # whose sizes depend on their values
                    known[key] = number
            packed.add(name, number, offset)
        return packed, dropped

    def _payload(self, name: str, row: Row, *, quantizing: bool, kept: bool, trial: bool) -> Payload:
        """Return the payload of a tensor, whose type is `kept` or the wanted one.

        A `trial` reads no data to find out, and estimates sizes.
        """
        if self.quantizer is not None and quantizing:
            return self.quantizer.payload(name, row, self._held, trial=trial)
        wanted = None if kept else self._dtype
        if row.dtype.quantized:
            if wanted is None or self.quantizer is not None:  # with a quantiser, it stays as it is
                return _as_quantized(name, row, self._regrouper, trial=trial)
            size = math.prod(row.shape)
            return Payload(name, wanted, row.shape, size * wanted.bits // 8, _decoded, name, row, wanted, self.overflow)
        if wanted is None or row.dtype.name not in FLOATING or row.dtype.name == wanted.name:
            dtype = DTYPES[row.dtype.name] if row.dtype.swapped else row.dtype
            return Filled(name, dtype, row.shape, row.nbytes, copy, name, row, self._threads)
        nbytes = row.nbytes // (row.dtype.bits // 8) * (wanted.bits // 8)
        return Payload(name, wanted, row.shape, nbytes, _cast, name, row, wanted, self.overflow)


def check_total(file: TensorFile, spec: Spec, nbytes: int) -> None:
    """Raise `LimitError` for more bytes of tensors than may be copied of a model."""
    spec.opening.limits.check("max_copy_bytes", nbytes, "bytes of tensors to copy")
    check_made(file, "all tensors to copy", nbytes)


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


def _as_quantized(name: str, row: Row, regrouper: Regrouper, *, trial: bool) -> Payload:
    """Return a quantised tensor as it is, or in the target's blocks. Its bytes are read when they are written."""
    layout = row.layout()
    if layout is None:  # product quantisation
        model = from_quantized(name, row.decoder())
        return Payload(name, model.dtype, model.shape, model.nbytes, _parts, name, row, parts=model.parts)
    start, block_size, scale_type = layout
    if regrouper.wants(row.dtype.name):
        return regrouper.payload(name, row, block_size, scale_type, trial=trial)
    nbytes = row.nbytes - start
    made: tuple[Any, ...] = (_from, name, row, start)
    if row.dtype.name == "adaptive":  # nothing has checked its mask so far
        made = (_checked, name, row)
    return Payload(name, row.dtype, row.shape, nbytes, *made, block_size=block_size, scale_type=scale_type)


def _from(_: str, place: Row, start: int) -> Iterator[Any]:
    """Return the bytes of a tensor from `start` on."""
    return place.source.chunks(place.offset + start, place.nbytes - start)


def _checked(_: str, place: Row) -> Iterator[Any]:
    yield place.decoder().payload


def _parts(name: str, place: Row) -> Iterator[Any]:
    yield from from_quantized(name, place.decoder()).chunks()


def _decoded(name: str, place: Row, wanted: DType, overflow: Overflow) -> Iterator[memoryview]:
    pieces = (values for tensor in in_pieces(place) for values in tensor.in_runs(_PIECE))
    return overflow.cast(name, pieces, wanted)


def _cast(name: str, place: Row, wanted: DType, overflow: Overflow) -> Iterator[memoryview]:
    return overflow.cast(name, _stored(place), wanted)


def _stored(row: Row) -> Iterator[NDArray[Any]]:
    stored = numpy_dtype(row.dtype)
    for chunk in row.source.chunks(row.offset, row.nbytes):
        yield np.frombuffer(chunk, stored)
