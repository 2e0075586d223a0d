"""Samples of a tensor's elements: range, moments, a histogram, and the estimated cost of quantising.

Elements are read by pread, never through a mapping, a bounded number of them from runs that lie evenly over the tensor:
memory stays flat and a file of 500 GB takes as long as one of 5.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.conversion.quantizer import Quantizer
from weightmap.conversion.spec import Quantize
from weightmap.conversion.tensor_diffs import has_numbers
from weightmap.dtypes import DTYPES, GGML_SCHEMES, numpy_dtype
from weightmap.errors import QuantError
from weightmap.native import late
from weightmap.quant.blocks import QuantizedTensor
from weightmap.quant.ggml import GgmlTensor
from weightmap.quant.quantizing import quantize
from weightmap.quant.schemes import BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.index.row import Row

# Elements sampled per tensor, at most and at least, and per model.
_MOST, _LEAST, _ALL = 1 << 16, 1 << 11, 1 << 25
# Runs per sample, and their unit: whole blocks of every scheme.
_RUNS, _BLOCK = 16, 256
_BINS = 32
# Elements per tensor quantised for an estimate
_TRIED = 1 << 14
# The estimated schemes, from the most bits to the fewest
SCHEMES = ("q8_0", "int8", "q6_k", "q5_0", "int5_block", "q4_k", "q4_0", "int4_block")


class Numbers(NamedTuple):
    """Statistics of a sample of a tensor's elements.

    Attributes
    ----------
    seen : int
        Elements looked at.
    low, high, mean, deviation : float or None
        Of the finite elements; None without any.
    zeros, nans, infinities : int
    bins : tuple of int
        A histogram of the finite ones, in equal steps from `low` to `high`.
    """

    seen: int
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
        Bytes of the whole tensor then.
    error, square : float
        Sums of squared errors and of squares, estimated for the whole tensor.
    """

    nbytes: int
    error: float
    square: float

    @property
    def relative(self) -> float:
        """Root mean square of the errors relative to that of the values."""
        return math.sqrt(self.error / self.square) if self.square else 0.0


def budget(tensors: int) -> int:
    """Return the elements to sample per tensor, of this many tensors."""
    return min(_MOST, max(_LEAST, _ALL // max(tensors, 1) // (_RUNS * _BLOCK) * _RUNS * _BLOCK))


def sample(row: Row, most: int) -> NDArray[Any] | None:
    """Return up to `most` elements of a tensor, in order; None of one that holds no numbers."""
    if not has_numbers(row):
        return None
    pieces = list(_runs(row, math.prod(row.shape), most))
    return np.concatenate(pieces) if pieces else np.empty(0, np.float32)


def _starts(size: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield where runs begin, at multiples of blocks, and how long they are."""
    if size <= most:
        if size:
            yield 0, size
        return
    length = max(most // _RUNS // _BLOCK, 1) * _BLOCK
    for run in range(max(most // length, 1)):
        first = (size - length) * run // max(most // length - 1, 1) // _BLOCK * _BLOCK
        yield first, length


def _runs(row: Row, size: int, most: int) -> Iterator[NDArray[Any]]:
    source = row.source
    if not row.dtype.quantized:
        stored = row.dtype.loaded or numpy_dtype(DTYPES[row.dtype.name])
        width = stored.itemsize
        places = [(row.offset + first * width, count * width) for first, count in _starts(size, most)]
        source = source.ahead((at, at + nbytes) for at, nbytes in places)
        for at, nbytes in places:
            yield np.frombuffer(source.pread(at, nbytes), stored)
        return
    scheme, layout = row.dtype.name, row.layout()
    if layout is None or (scheme not in BITS and scheme not in GGML_SCHEMES):
        left = most  # schemes whose blocks differ in size: the first elements
        for values in row.decoder().in_runs(min(most, 1 << 14)):
            yield values[:left]
            left -= len(values)
            if left <= 0:
                return
        return
    if scheme in GGML_SCHEMES:
        runs = [(row.offset + late.ggml_size(first, scheme), count) for first, count in _starts(size, most)]
        source = source.ahead((begin, begin + late.ggml_size(count, scheme)) for begin, count in runs)
        for begin, count in runs:
            octets = source.pread(begin, late.ggml_size(count, scheme))
            yield GgmlTensor(scheme, (count,), octets).dequantize()
        return
    start, block_size, scale_type = layout
    at, bits = row.offset + start, BITS[scheme]

    def bytes_of(count: int) -> int:
        return late.blocks_size(count, bits=bits, block_size=block_size, scale_type=scale_type)

    step = math.lcm(block_size or 1, 8)
    scale = b"" if block_size else source.pread(at, bytes_of(0))
    for wanted, length in _starts(size, most):
        first = wanted // step * step
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
        # Within -1 and 1, squares and the span do not overflow; a power of two rounds nothing.
        exponent = math.frexp(max(-low, high))[1]
        scaled = np.ldexp(finite, -exponent)
        least, most = float(scaled.min()), float(scaled.max())
        if most > least:
            where = np.minimum(((scaled - least) / (most - least) * _BINS).astype(np.int64), _BINS - 1)
            bins = tuple(np.bincount(where, minlength=_BINS).tolist())
        else:
            bins = (len(finite),)
        # Rounding may carry both past the elements, and those near the largest float64 past it.
        mean = math.ldexp(min(max(float(scaled.mean()), least), most), exponent)
        deviation = math.ldexp(min(float(scaled.std()), (most - least) / 2), exponent)
        return Numbers(len(wide), low, high, mean, deviation, zeros, nans, infinities, bins)


def costs_of(name: str, place: Row, values: NDArray[Any]) -> dict[str, Cost]:
    """Return the cost of quantising a tensor, by scheme; nothing for one that `convert` leaves dense.

    Estimated from a sample of its elements, which also gives the scale of schemes with one per tensor, such as "int8".
    Where rows are not whole blocks of a scheme, the costs are of the scheme that `convert` takes instead.
    """
    wanting = {scheme: quantizer for scheme, quantizer in _quantizers().items() if quantizer.wants(name, place)}
    if not wanting:
        return {}
    found: dict[str, Cost] = {}
    tried = values
    if len(values) > _TRIED:  # whole blocks, from all of the runs
        tried = values[: len(values) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)[:: len(values) // _TRIED].reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        tried = tried.astype(np.float32)
    known: dict[str, Cost] = {}
    for scheme, quantizer in wanting.items():
        used = quantizer.scheme_of(name, place.shape) or scheme
        if used not in known:
            block = late.GGML_TYPES[used].block_size if used in GGML_SCHEMES else 1
            whole = tried[: len(tried) // block * block]
            try:
                known[used] = _cost(whole, used, math.prod(place.shape))
            except QuantError:  # NaN or infinite
                return {}
        found[scheme] = known[used]
    return found


@functools.cache
def _quantizers() -> dict[str, Quantizer]:
    return {scheme: Quantizer(Quantize(scheme)) for scheme in SCHEMES}


def _cost(values: NDArray[np.float32], scheme: str, size: int) -> Cost:
    if not len(values):
        return Cost(0, 0.0, 0.0)
    tensor = quantize(values, scheme)
    wide = values.astype(np.float64)
    apart = tensor.dequantize().astype(np.float64) - wide
    times = size / len(values)
    per_tensor = scheme in BITS and not tensor.block_size
    nbytes = -(-size * BITS[scheme] // 8) + 2 if per_tensor else round(tensor.payload.nbytes * times)
    return Cost(nbytes, float(apart @ apart) * times, float(wide @ wide) * times)
