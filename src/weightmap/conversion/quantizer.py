"""Quantisation of tensors on their way from one file to another: which of them, how, and at which cost."""

from __future__ import annotations

import fnmatch
import functools
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.conversion.reports import QuantizedInfo
from weightmap.conversion.schemes import quantize
from weightmap.dtypes import FLOATING, SCHEMES, numpy_dtype
from weightmap.errors import QuantError
from weightmap.formats import Payload
from weightmap.quant.schemes import BITS, BLOCKED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.quant.ref import TensorRef

__all__ = ["Quantizer", "matches"]

# Elements quantised at once: a MiB of float32.
_PIECE = 1 << 18
# Bytes of adaptive tensors that are kept after their sizes were found. Those beyond are quantised a second time when
# they are written, so that memory stays flat.
_KEEP = 64 << 20


def matches(name: str, globs: str | Sequence[str]) -> bool:
    """Say whether a name matches one of these globs. Upper and lower case differ."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in ([globs] if isinstance(globs, str) else globs))


class Quantizer:
    """The quantiser of a conversion, and what it reports of each tensor.

    Parameters
    ----------
    scheme, block_size, scale_type, bits
        As of `weightmap.quantize`.
    threads : int, optional
        At most this many share the work; by default one for each CPU that this process may use.
    include, exclude : glob or sequence of globs, optional
        Quantise floating-point tensors whose name matches an `include`, by default those with two dimensions or more
        that are no embeddings (by their names), and no `exclude`.
    """

    def __init__(
        self,
        scheme: str,
        *,
        block_size: int = 32,
        scale_type: str = "fp16",
        bits: float = 5.0,
        threads: int | None = None,
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
    ) -> None:
        self.scheme = scheme
        self._options: dict[str, Any] = {
            "block_size": block_size,
            "scale_type": scale_type,
            "bits": bits,
            "threads": _cpus() if threads is None else threads,
        }
        self._include, self._exclude = include, exclude
        self.done: list[QuantizedInfo] = []
        self._kept = 0
        # Wrong options raise before any file is read.
        trial = quantize(np.zeros(1, np.float32), scheme, **self._options)
        self.block_size = trial.block_size

    def wants(self, name: str, place: TensorRef) -> bool:
        """Whether this tensor is to be quantised."""
        row = place.row
        if row.dtype.quantized or row.dtype.name not in FLOATING or (self._exclude and matches(name, self._exclude)):
            return False
        if self._include is not None:
            return matches(name, self._include)
        return len(row.shape) >= 2 and "embed" not in name.lower()

    def payload(self, name: str, place: TensorRef, held: Collection[str]) -> Payload:
        """Return a tensor to be written to a format that holds these schemes. It is read when it is written."""
        row, scale_type = place.row, self._options["scale_type"]
        size = math.prod(row.shape)
        if self.scheme not in held:  # the writer will refuse it by its name
            return Payload(name, SCHEMES[self.scheme], row.shape, 0, lambda: iter(()))
        if self.scheme in BITS:
            nbytes = kernels.blocks_size(
                size, bits=BITS[self.scheme], block_size=self.block_size, scale_type=scale_type
            )
            write = self._by_blocks if self.scheme in BLOCKED else self._whole
        else:  # the size depends on the kind that is chosen for each block
            found = self._quantized(name, place)
            nbytes = len(found[0])
            write = self._whole
            if self._kept + nbytes <= _KEEP:
                self._kept += nbytes
                write = functools.partial(self._whole, found=found)
        chunks = functools.partial(write, name, place, nbytes)
        dtype = SCHEMES[self.scheme]
        return Payload(name, dtype, row.shape, nbytes, chunks, block_size=self.block_size, scale_type=scale_type)

    def _by_blocks(self, name: str, place: TensorRef, nbytes: int) -> Iterator[NDArray[np.uint8]]:
        """Yield a tensor's blocks, some at a time."""
        step = max(_PIECE // self.block_size, 1) * self.block_size
        error = square = 0.0
        start = 0
        for values in _values(place, step):
            octets, errors = self._encoded(name, values, start)
            error += float(errors.sum())
            square += _sum_of_squares(values)
            start += len(values)
            yield octets
        self._note(name, place, nbytes, error, square)

    def _encoded(self, name: str, values: NDArray[np.float32], start: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        options = self._options
        try:
            return kernels.encode_with_errors(
                values,
                bits=BITS[self.scheme],
                block_size=self.block_size,
                scale_type=options["scale_type"],
                threads=options["threads"],
            )
        except QuantError as error:
            raise _named(error, name, start, values) from None

    def _whole(
        self, name: str, place: TensorRef, nbytes: int, *, found: tuple[NDArray[np.uint8], float, float] | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield all bytes of a tensor, which `payload` may have `found` already."""
        octets, error, square = self._quantized(name, place) if found is None else found
        self._note(name, place, nbytes, error, square)
        yield octets

    def _quantized(self, name: str, place: TensorRef) -> tuple[NDArray[np.uint8], float, float]:
        """Return the bytes of a tensor that is quantised as a whole, and its sums of squared errors and of squares."""
        values = next(_values(place, math.prod(place.row.shape)), np.empty(0, np.float32))
        try:
            tensor = quantize(values, self.scheme, **self._options)
        except QuantError as error:
            raise _named(error, name, 0, values) from None
        wrong = 0.0
        for at in range(0, len(values), _PIECE):
            piece = values[at : at + _PIECE]
            wrong += _sum_of_squares(piece - tensor.flat(at, at + len(piece)))
        return tensor.payload, wrong, _sum_of_squares(values)

    def _note(self, name: str, place: TensorRef, nbytes: int, error: float, square: float) -> None:
        row = place.row
        info = QuantizedInfo.of(name, self.scheme, row.shape, (row.nbytes, nbytes), error, square)
        self.done.append(info)


def _cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _sum_of_squares(values: NDArray[np.float32]) -> float:
    wide = values.astype(np.float64)
    return float(wide @ wide)


def _named(error: QuantError, name: str, start: int, values: NDArray[np.float32]) -> QuantError:
    """Return the error with the name of the tensor and the index, in all of it, of the element that is not finite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):
        error.what = f"tensor {name!r}: {error.what}"
        return error
    at = int(bad[0])
    return QuantError(
        f"tensor {name!r}: element {start + at} of the flattened tensor",
        actual=float(values[at]),
        expected="a finite number",
    )


def _values(place: TensorRef, count: int) -> Iterator[NDArray[np.float32]]:
    """Yield a tensor as flat float32, `count` elements at a time."""
    source, row, _ = place
    stored = numpy_dtype(row.dtype)
    for chunk in source.chunks(row.offset, row.nbytes, max(count, 1) * stored.itemsize):
        with np.errstate(over="ignore", invalid="ignore"):
            yield np.frombuffer(chunk, stored).astype(np.float32)
