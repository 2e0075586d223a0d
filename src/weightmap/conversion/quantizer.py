"""Quantises tensors in a conversion: chooses them, encodes them, and measures the error."""

from __future__ import annotations

import fnmatch
import functools
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap import kernels
from weightmap.conversion.reports import QuantizedInfo
from weightmap.conversion.schemes import quantize
from weightmap.dtypes import FLOATING, GGML_SCHEMES, SCHEMES, numpy_dtype
from weightmap.errors import QuantError, counted
from weightmap.formats import Payload, listed
from weightmap.quant.schemes import BITS, BLOCKED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.quant.ref import TensorRef

__all__ = ["Quantizer", "matches"]

# Elements quantised at once: as float32 half of the second-level cache of common CPUs.
_PIECE = 1 << 17
# Bytes of adaptive tensors that are kept after their sizes were found. Those beyond are quantised a second time when
# they are written, so that memory stays flat.
_KEEP = 64 << 20
# Parts of the names of embeddings in models of Hugging Face and of llama.cpp.
_EMBEDDINGS = ("embed", "embd")
# llama.cpp's replacements for tensors whose rows are not whole blocks of 256.
_INSTEAD = {"q4_k": "q5_0", "q6_k": "q8_0"}


def matches(name: str, globs: str | Sequence[str]) -> bool:
    """Say whether a name matches one of these globs. Upper and lower case differ."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in ([globs] if isinstance(globs, str) else globs))


class _Blocks(NamedTuple):
    """A scheme of blocks that are quantised one by one: their elements, their bytes, and what encodes them."""

    elements: int
    nbytes: Callable[[int], int]
    encode: Callable[[NDArray[np.float32]], tuple[NDArray[np.uint8], NDArray[np.float64]]]


class Quantizer:
    """The quantiser of a conversion, which records the error of each tensor.

    Parameters
    ----------
    scheme, block_size, scale_type, bits
        As for `weightmap.quantize`.
    threads : int, optional
        At most this many share the work; by default one for each CPU that this process may use.
    include, exclude : glob or sequence of globs, optional
        Quantise floating-point tensors whose name matches an `include`, by default those with two dimensions or more
        that are not embeddings (by their names), and no `exclude`.

    Attributes
    ----------
    done : list of QuantizedInfo
        What became of each tensor.
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
        self._others: dict[str | None, list[str]] = {}
        # Wrong options raise before any file is read.
        row = kernels.GGML_TYPES[scheme].block_size if scheme in GGML_SCHEMES else 1
        trial = quantize(np.zeros(row, np.float32), scheme, **self._options)
        self.block_size: int = trial.block_size

    def wants(self, name: str, place: TensorRef) -> bool:
        """Whether to quantise this tensor."""
        row = place.row
        if row.dtype.quantized or row.dtype.name not in FLOATING or (self._exclude and matches(name, self._exclude)):
            return False
        if self._include is not None:
            wanted = matches(name, self._include)
        else:
            wanted = len(row.shape) >= 2 and not any(part in name.lower() for part in _EMBEDDINGS)
        if not wanted:
            return False
        scheme = self.scheme_of(row.shape)
        if scheme != self.scheme:
            self._others.setdefault(scheme, []).append(name)
        return scheme is not None

    def scheme_of(self, shape: tuple[int, ...]) -> str | None:
        """Return the scheme for a tensor of this shape; None if its rows are not whole blocks of any."""
        scheme: str | None = self.scheme
        while scheme in GGML_SCHEMES and (not shape or shape[-1] % kernels.GGML_TYPES[scheme].block_size):
            scheme = _INSTEAD.get(scheme)
        return scheme

    @property
    def notes(self) -> list[str]:
        """Lines about tensors that did not get the requested scheme."""
        rows = f"rows are not a multiple of {self.block_size} elements"
        return [
            f"{counted(len(names), 'tensor')} {'stayed dense' if scheme is None else f'became {scheme}'} instead of "
            f"{self.scheme}, since {rows}: {listed(names)}"
            for scheme, names in self._others.items()
        ]

    def payload(self, name: str, place: TensorRef, held: Collection[str], *, trial: bool = False) -> Payload:
        """Return the payload of a tensor for a format that holds these schemes. It is read when it is written.

        A `trial` only estimates the size where that depends on the values.
        """
        row, scale_type = place.row, self._options["scale_type"]
        size = math.prod(row.shape)
        scheme = self.scheme_of(row.shape) or self.scheme
        if scheme not in held:  # the writer will refuse it by its name
            return Payload(name, SCHEMES[scheme], row.shape, 0, lambda: iter(()))
        blocks, block_size, write = self._blocks(scheme), self.block_size, self._whole
        if blocks is not None:
            nbytes, block_size = blocks.nbytes(size), blocks.elements
            write = functools.partial(self._by_blocks, scheme, blocks)
        elif scheme in BITS:
            nbytes = kernels.blocks_size(size, bits=BITS[scheme], block_size=0, scale_type=scale_type)
        elif trial:
            nbytes = -(-size * self._options["bits"] // 8)
        else:  # the size depends on the kind that is chosen for each block
            found = self._quantized(name, place)
            nbytes = len(found[0])
            if self._kept + nbytes <= _KEEP:
                self._kept += nbytes
                write = functools.partial(self._whole, found=found)
        chunks = functools.partial(write, name, place, nbytes)
        return Payload(name, SCHEMES[scheme], row.shape, nbytes, chunks, block_size=block_size, scale_type=scale_type)

    def _blocks(self, scheme: str) -> _Blocks | None:
        """Return how to quantise by blocks; None for a scheme that takes a tensor as a whole."""
        options, threads = self._options, self._options["threads"]
        if scheme in GGML_SCHEMES:
            return _Blocks(
                kernels.GGML_TYPES[scheme].block_size,
                functools.partial(kernels.ggml_size, name=scheme),
                functools.partial(kernels.encode_ggml, name=scheme, threads=threads),
            )
        if scheme not in BLOCKED:
            return None
        kind = {"bits": BITS[scheme], "block_size": self.block_size, "scale_type": options["scale_type"]}
        return _Blocks(
            self.block_size,
            functools.partial(kernels.blocks_size, **kind),
            functools.partial(kernels.encode_with_errors, **kind, threads=threads),
        )

    def _by_blocks(
        self, scheme: str, blocks: _Blocks, name: str, place: TensorRef, nbytes: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield a tensor's blocks, some at a time."""
        step = max(_PIECE // blocks.elements, 1) * blocks.elements
        error = square = 0.0
        start = 0
        for values in _values(place, step):
            try:
                octets, errors = blocks.encode(values)
            except QuantError as bad:
                raise _named(bad, name, start, values) from None
            error += float(errors.sum())
            square += kernels.sum_of_squares(values)
            start += len(values)
            yield octets
        self._note(name, scheme, place, nbytes, error, square)

    def _whole(
        self, name: str, place: TensorRef, nbytes: int, *, found: tuple[NDArray[np.uint8], float, float] | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield all bytes of a tensor, which `payload` may have `found` already."""
        octets, error, square = self._quantized(name, place) if found is None else found
        self._note(name, self.scheme, place, nbytes, error, square)
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
            wrong += kernels.sum_of_squares(piece - tensor.flat(at, at + len(piece)))
        return tensor.payload, wrong, kernels.sum_of_squares(values)

    def _note(self, name: str, scheme: str, place: TensorRef, nbytes: int, error: float, square: float) -> None:
        row = place.row
        self.done.append(QuantizedInfo.of(name, scheme, row.shape, (row.nbytes, nbytes), error, square))


def _cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _named(error: QuantError, name: str, start: int, values: NDArray[np.float32]) -> QuantError:
    """Return an error that names the tensor and the index, in the whole of it, of the element that is not finite."""
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
    """Yield a tensor as flat float32, `count` elements at a time; each piece is valid until the next one."""
    source, row, _ = place
    stored = numpy_dtype(row.dtype)
    for chunk in source.chunks(row.offset, row.nbytes, max(count, 1) * stored.itemsize):
        with np.errstate(over="ignore", invalid="ignore"):
            yield np.frombuffer(chunk, stored).astype(np.float32, copy=False)
