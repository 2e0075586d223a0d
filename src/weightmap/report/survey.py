"""The content of a report on one model, as plain values: tensors, the map of the files, costs, warnings."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.checkpoints.configuration import Weight, weight_of_model
from weightmap.checkpoints.handle import stored_model
from weightmap.checkpoints.weights import stored_rows
from weightmap.conversion.quantizer import Quantize, Quantizer
from weightmap.conversion.tensor_diffs import has_numbers
from weightmap.core.bytes import Range
from weightmap.core.dtypes import DTYPES, GGML_SCHEMES, numpy_dtype
from weightmap.core.model.codes import codes_among
from weightmap.core.model.internals import names_of, rows_of
from weightmap.core.native import quantised
from weightmap.core.quant.blocks import QuantizedTensor, decode_chunks
from weightmap.core.quant.ggml import GgmlTensor
from weightmap.core.quant.quantizing import quantize
from weightmap.core.quant.schemes import BITS
from weightmap.errors import QuantError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.model.file import TensorFile
    from weightmap.core.model.reports import Residency, VerifyReport
    from weightmap.core.table.table import Row, TensorInfo

# Samples of a tensor's elements: range, moments, a histogram, and the estimated cost of quantising.
#
# A bounded number of elements is read by pread, never through a mapping, in runs spread evenly over the tensor. So
# memory stays flat, and a file of 500 GB takes as long as a file of 5 GB.

# Elements sampled per tensor, at most and at least, and per model.
_MAX_SAMPLE, _MIN_SAMPLE, _MAX_SAMPLED = 1 << 16, 1 << 11, 1 << 25
# Runs per sample, and their unit: whole blocks of every scheme.
_RUNS, _BLOCK = 16, 256
_BINS = 32
# Elements per tensor to quantise for an estimate.
_MAX_TRIED = 1 << 14
# The estimated schemes, from the most bits to the fewest.
SCHEMES = ("q8_0", "int8", "q6_k", "q5_0", "int5_block", "q4_k", "q4_0", "int4_block")


class Numbers(NamedTuple):
    """Statistics of a sample of a tensor's elements.

    Attributes
    ----------
    sampled : int
        Number of sampled elements.
    low, high, mean, deviation : float or None
        Over the finite elements; None without any.
    zeros, nans, infinities : int
    bins : tuple of int
        A histogram of the finite elements, in equal steps from `low` to `high`.
    """

    sampled: int
    low: float | None
    high: float | None
    mean: float | None
    deviation: float | None
    zeros: int
    nans: int
    infinities: int
    bins: tuple[int, ...]


class Cost(NamedTuple):
    """The cost of quantising a tensor.

    Attributes
    ----------
    nbytes : int
        Bytes of the whole quantised tensor.
    error, square : float
        Sums of squared errors and of squares, estimated for the whole tensor.
    """

    nbytes: int
    error: float
    square: float

    @property
    def relative(self) -> float:
        """Root mean square of the errors, divided by the root mean square of the values."""
        return math.sqrt(self.error / self.square) if self.square else 0.0


def budget(tensors: int) -> int:
    """Return the number of elements to sample per tensor, for a model with this many tensors."""
    return min(_MAX_SAMPLE, max(_MIN_SAMPLE, _MAX_SAMPLED // max(tensors, 1) // (_RUNS * _BLOCK) * _RUNS * _BLOCK))


def sample(row: Row, max_elements: int) -> NDArray[Any] | None:
    """Return up to `max_elements` elements of a tensor, in order; None for a tensor without numbers."""
    if not has_numbers(row):
        return None
    pieces = list(_runs(row, math.prod(row.shape), max_elements))
    return np.concatenate(pieces) if pieces else np.empty(0, np.float32)


def _starts(size: int, max_elements: int) -> Iterator[tuple[int, int]]:
    """Yield the beginning, a multiple of a block, and the length of each run."""
    if size <= max_elements:
        if size:
            yield 0, size
        return
    length = max(max_elements // _RUNS // _BLOCK, 1) * _BLOCK
    for run in range(max(max_elements // length, 1)):
        first = (size - length) * run // max(max_elements // length - 1, 1) // _BLOCK * _BLOCK
        yield first, length


def _runs(row: Row, size: int, max_elements: int) -> Iterator[NDArray[Any]]:
    source = row.source
    if not row.dtype.quantized:
        stored = row.dtype.loaded or numpy_dtype(DTYPES[row.dtype.name])
        width = stored.itemsize
        places = [(row.offset + first * width, count * width) for first, count in _starts(size, max_elements)]
        source = source.ahead(Range(at, at + nbytes) for at, nbytes in places)
        for at, nbytes in places:
            yield np.frombuffer(source.pread(at, nbytes), stored)
        return
    scheme, layout = row.dtype.name, row.layout()
    if layout is None or (scheme not in BITS and scheme not in GGML_SCHEMES):
        remaining = max_elements  # blocks differ in size: take the first elements
        for values in decode_chunks(row.decoder(), min(max_elements, 1 << 14)):
            yield values[:remaining]
            remaining -= len(values)
            if remaining <= 0:
                return
        return
    if scheme in GGML_SCHEMES:
        runs = [
            (row.offset + quantised.ggml_size(first, scheme), count) for first, count in _starts(size, max_elements)
        ]
        source = source.ahead(Range(begin, begin + quantised.ggml_size(count, scheme)) for begin, count in runs)
        for begin, count in runs:
            octets = source.pread(begin, quantised.ggml_size(count, scheme))
            yield GgmlTensor(scheme, (count,), octets).dequantize()
        return
    start, block_size, scale_type = layout
    at, bits = row.offset + start, BITS[scheme]

    def bytes_of(count: int) -> int:
        return quantised.blocks_size(count, bits=bits, block_size=block_size, scale_type=scale_type)

    step = math.lcm(block_size or 1, 8)
    scale = b"" if block_size else source.pread(at, bytes_of(0))
    for begin, length in _starts(size, max_elements):
        first = begin // step * step
        count = min(max(length, step), size - first)
        octets = source.pread(at + bytes_of(first), bytes_of(count) - len(scale))
        tensor = QuantizedTensor(scheme, (count,), scale + octets, block_size=block_size, scale_type=scale_type)
        yield tensor.dequantize()[:length]


def numbers_of(values: NDArray[Any]) -> Numbers:
    """Return the statistics of these elements; for complex ones, of their absolute values."""
    with np.errstate(over="ignore", invalid="ignore"):
        wide = np.abs(values).astype(np.float64) if values.dtype.kind == "c" else values.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        nans = int(np.isnan(wide).sum())
        zeros, infinities = int((wide == 0).sum()), len(wide) - len(finite) - nans
        if not len(finite):
            return Numbers(len(wide), None, None, None, None, zeros, nans, infinities, ())
        low, high = float(finite.min()), float(finite.max())
        # Scale to -1 and 1, so that squares and the span do not overflow; a power of two does not round.
        exponent = math.frexp(max(-low, high))[1]
        scaled = np.ldexp(finite, -exponent)
        lowest, highest = float(scaled.min()), float(scaled.max())
        if highest > lowest:
            where = np.minimum(((scaled - lowest) / (highest - lowest) * _BINS).astype(np.int64), _BINS - 1)
            bins = tuple(np.bincount(where, minlength=_BINS).tolist())
        else:
            bins = (len(finite),)
        # Rounding may carry both beyond the elements, even beyond the largest float64.
        mean = math.ldexp(min(max(float(scaled.mean()), lowest), highest), exponent)
        deviation = math.ldexp(min(float(scaled.std()), (highest - lowest) / 2), exponent)
        return Numbers(len(wide), low, high, mean, deviation, zeros, nans, infinities, bins)


def costs_of(quantizers: dict[str, Quantizer], name: str, place: Row, values: NDArray[Any]) -> dict[str, Cost]:
    """Return the costs of quantising a tensor, by scheme; none for a tensor that `convert` leaves dense.

    A sample of its elements gives the estimate, and the scale of schemes with one per tensor, such as "int8". If rows
    are not whole blocks of a scheme, the cost is for the scheme that `convert` takes instead.
    """
    wanting = {scheme: quantizer for scheme, quantizer in quantizers.items() if quantizer.wants(name, place)}
    if not wanting:
        return {}
    by_scheme: dict[str, Cost] = {}
    sampled = values
    if len(values) > _MAX_TRIED:  # take whole blocks from all runs
        sampled = values[: len(values) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)[:: len(values) // _MAX_TRIED].reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        sampled = sampled.astype(np.float32)
    costs: dict[str, Cost] = {}
    for scheme, quantizer in wanting.items():
        used = quantizer.scheme_of(name, place.shape) or scheme
        if used not in costs:
            block = quantised.GGML_TYPES[used].block_size if used in GGML_SCHEMES else 1
            whole = sampled[: len(sampled) // block * block]
            try:
                costs[used] = _cost(whole, used, math.prod(place.shape))
            except QuantError:  # NaN or infinite
                return {}
        by_scheme[scheme] = costs[used]
    return by_scheme


def _cost(values: NDArray[np.float32], scheme: str, size: int) -> Cost:
    if not len(values):
        return Cost(0, 0.0, 0.0)
    tensor = quantize(values, scheme)
    wide = values.astype(np.float64)
    difference = tensor.dequantize().astype(np.float64) - wide
    times = size / len(values)
    per_tensor = scheme in BITS and not tensor.block_size
    nbytes = -(-size * BITS[scheme] // 8) + 2 if per_tensor else round(tensor.payload.nbytes * times)
    return Cost(nbytes, float(difference @ difference) * times, float(wide @ wide) * times)


class Stored(NamedTuple):
    """A tensor stored in a file: its entry, its file, and its share in memory."""

    info: TensorInfo
    file: str
    resident: int | None


class Tensor(NamedTuple):
    """A tensor of the report: its entry, its sample, and the costs of quantising it."""

    info: TensorInfo
    quantized: bool
    numbers: Numbers | None
    costs: dict[str, Cost]
    problem: str | None


class Gap(NamedTuple):
    """Bytes of a file outside all tensors: header, padding or footer."""

    kind: str
    begin: int
    end: int


class File(NamedTuple):
    """A file of the model."""

    name: str
    nbytes: int
    gaps: tuple[Gap, ...]


class Survey(NamedTuple):
    """The content of a report on one model.

    Attributes
    ----------
    format, layout : str
    nbytes : int
    metadata : dict
    tokens : int or None
        Length of the vocabulary.
    files : tuple of File
    stored : tuple of Stored
        The tensors of the files.
    tensors : tuple of Tensor
        The stored tensors, or the parameters made of them.
    weight : Weight or None
        For the parameters; None if the configuration beside the file cannot be used.
    verified : VerifyReport or None
        None if verification failed or was not requested.
    damage : str or None
        The reason why verification failed.
    per_tensor : int
        Most elements sampled per tensor.
    """

    format: str
    layout: str | None
    nbytes: int
    metadata: dict[str, Any]
    tokens: int | None
    files: tuple[File, ...]
    stored: tuple[Stored, ...]
    tensors: tuple[Tensor, ...]
    weight: Weight | None
    verified: VerifyReport | None
    damage: str | None
    per_tensor: int


def survey(model: TensorFile, *, verify: bool, progress: Callable[[int, int], None] | None) -> Survey:
    """Survey a model; `progress` gets bytes read and bytes in all, first for the verification.

    For ``f.weights``, survey its parameters. Raises `FormatError` if its pieces make none.
    """
    file = stored_model(model)
    entries = [(info, row.dense) for info, row in stored_rows(model)]
    infos = [info for info, _ in entries]
    max_elements = budget(len(infos))
    before = file.nbytes if verify else 0
    whole = before + sum(min(info.nbytes, max_elements * 4) for info in infos)

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, whole)

    verified, damage = None, None
    resident = _residency(file)  # before anything is read
    if verify:
        try:
            verified = file.verify(progress=lambda done, _: tell(min(done, before)))
        except TensorFileError as error:
            damage = str(error)
    tensors = []
    sources, codes = names_of(file), codes_among(model, lambda _: True)[0]
    if len(sources) == 1:
        sources = dict.fromkeys(sources, "the file")
    done, quantizers = before, {scheme: Quantizer(Quantize(scheme)) for scheme in SCHEMES}
    for info, place in entries:
        numbers, costs, problem = None, {}, None
        try:
            values = None if info.name in codes else sample(place, max_elements)
            if values is not None:
                numbers = numbers_of(values)
                costs = costs_of(quantizers, info.name, place, values)
        except QuantError as error:
            problem = str(error)
        tensors.append(Tensor(info, place.dtype.quantized, numbers, costs, problem))
        done += min(info.nbytes, max_elements * 4)
        tell(done)
    stored = [Stored(info, sources[row.source], _resident(resident, info.name)) for info, row in _stored(file)]
    weight = None
    with contextlib.suppress(TensorFileError, OSError):
        weight = weight_of_model(file)
    return Survey(
        file.format,
        file.layout,
        file.nbytes,
        dict(file.metadata),
        None if file.vocab is None else len(file.vocab),
        tuple(_files(sources, stored)),
        tuple(stored),
        tuple(tensors),
        weight,
        verified,
        damage,
        max_elements,
    )


def _stored(file: TensorFile) -> Iterator[tuple[TensorInfo, Row]]:
    return zip(file.infos(), rows_of(file), strict=True)


def _resident(resident: dict[str, Residency] | None, name: str) -> int | None:
    return None if resident is None else resident[name].resident if name in resident else 0


def _residency(file: TensorFile) -> dict[str, Residency] | None:
    """Return the residency of each tensor in memory; None if the system does not tell."""
    with contextlib.suppress(OSError):
        return file.residency()
    return None


def _files(sources: dict[Source, str], tensors: list[Stored]) -> Iterator[File]:
    places: dict[str, list[Range]] = {name: [] for name in sources.values()}
    for tensor in tensors:
        places[tensor.file].append(Range(tensor.info.offset, tensor.info.offset + tensor.info.nbytes))
    for source, name in sources.items():
        if not source.size:  # the source of a sharded model is a name without bytes
            continue
        yield File(name, source.size, tuple(_gaps(sorted(places[name]), source.size)))


def _gaps(places: list[Range], size: int) -> Iterator[Gap]:
    end = 0
    for place in places:
        if place.begin > end:
            yield Gap("padding" if end else "header", end, place.begin)
        end = max(end, place.end)
    if end < size:
        yield Gap("footer" if end else "header", end, size)


def alignment(offset: int) -> int:
    """Return the largest power of two, up to 4096, that divides an offset."""
    return math.gcd(offset, 4096)
