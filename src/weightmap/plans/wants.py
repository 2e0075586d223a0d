"""Resolves wants to tensors by number, some in part, and divides whole tensors among ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import quoted
from weightmap.plans.indices import MOST_RUNS, Indices, Shard, axes_of, runs_of
from weightmap.quant.places import places_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.index.row import Row, TensorInfo
    from weightmap.model.spans import Spans

    Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]


class Slices(Mapping[int, Shard]):
    """The slice of one rank of every tensor that has its dimension, by number; without an object for each of them.

    Attributes
    ----------
    begins, ends : ndarray of int64
        The bytes of each tensor that hold its slice, where they lie together; those of all of it for one that is wanted
        whole, and none for one that `apart` or `others` has.
    nbytes : ndarray of int64
        Bytes of each slice, but of those that `others` has.
    others : sequence of int
        Tensors of blocks, of elements below a byte, that do not lie row-major, or in more parts than a plan has.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def __init__(self, spans: Spans, part: Shard) -> None:
        self._part = part
        outer, size, plain = spans.along(part.dim)
        self._sliced = size >= 0
        size = np.maximum(size, 0)
        step = -(-size // part.world_size)
        low = np.minimum(part.rank * step, size)
        high = np.minimum(low + step, size)
        # Bytes of an element of the dimension, with all that lies behind it; of an empty tensor, none.
        each = spans.nbytes // np.maximum(outer * size, 1)
        known = self._sliced & plain & (spans.nbytes > 0)
        together = known & ((outer == 1) | (low == high))
        apart = known & ~together & (high - low < size)
        others = self._sliced & ~plain | apart & (outer > MOST_RUNS)
        apart &= ~others
        self.begins = spans.begin + np.where(together, low * each, 0)
        self.ends = np.where(together, spans.begin + high * each, spans.begin + spans.nbytes)
        self.nbytes = np.where(apart, outer * (high - low) * each, self.ends - self.begins)
        self.ends = np.where(apart | others, self.begins, self.ends)
        self.others: list[int] = np.flatnonzero(others).tolist()
        numbers = np.flatnonzero(apart)
        self._apart = numbers, *(column[numbers] for column in (outer, low * each, (high - low) * each, size * each))

    @property
    def are_apart(self) -> bool:
        """Whether `apart` returns any."""
        return len(self._apart[0]) > 0

    def apart(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of a tensor, begin and end of each part of the slices that lie in several."""
        numbers, outer, skip, nbytes, step = self._apart
        numbers, first = np.repeat(numbers, outer), np.repeat(self.begins[numbers] + skip, outer)
        within = np.arange(len(numbers)) - np.repeat(np.cumsum(outer) - outer, outer)
        begins = first + within * np.repeat(step, outer)
        return numbers, begins, begins + np.repeat(nbytes, outer)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and bool(self._sliced[number])

    def __getitem__(self, number: int) -> Shard:
        return self._part

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._sliced).tolist())

    def __len__(self) -> int:
        return int(self._sliced.sum())


def resolve_wants(spans: Spans, wants: Any) -> tuple[NDArray[np.int64], Mapping[int, Any]]:
    """Return the numbers of the wanted tensors, in file order, and by number the index of those wanted in part.

    Raises
    ------
    TensorNotFoundError
    TypeError
        When `wants` is nothing that `weightmap.plan` takes.
    """
    if isinstance(wants, Shard):
        return np.arange(len(spans), dtype=np.int64), Slices(spans, wants)
    if isinstance(wants, Mapping):
        found = {spans.find(_name(name)): key for name, key in wants.items()}
        numbers: Iterable[int] = found
        indices = {number: key for number, key in found.items() if key is not None and key is not Ellipsis}
    elif callable(wants):
        numbers, indices = _chosen(spans, wants), {}
    elif isinstance(wants, Iterable):
        listed = [wants] if isinstance(wants, str) else list(wants)
        pairs = [want if isinstance(want, tuple) and len(want) == 2 else (want, None) for want in listed]
        parts: dict[int, list[Any]] = {}
        for name, key in pairs:
            parts.setdefault(spans.find(_name(name)), []).append(... if key is None else key)
        numbers = parts
        indices = {number: Indices(keys) for number, keys in parts.items() if any(key is not ... for key in keys)}
    else:
        expected = "None, names, a function of a TensorInfo, or names with indices"
        raise TypeError(f"wants is a {type(wants).__name__}, expected {expected}")
    return np.array(sorted(numbers), np.int64), indices


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a wanted tensor is a {type(name).__name__}, expected a string")
    return name


def _chosen(spans: Spans, wants: Callable[[TensorInfo], object]) -> Iterable[int]:
    """Yield the tensors whose `TensorInfo` satisfies a predicate."""
    numbers = np.arange(len(spans), dtype=np.int64)
    for number, name in zip(numbers.tolist(), spans.names(numbers), strict=True):
        if wants(spans.of(number).info(name)):
            yield number


def ranges_of(row: Row, key: Any, name: str) -> Ranges:
    """Return starts and stops, in its file, of the bytes that hold the part of a tensor that an index selects."""
    if isinstance(key, Indices):
        parts = [ranges_of(row, one, name) for one in key]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    what, shape = f"tensor {quoted(name)}", (row.nbytes,) if row.dtype.packed else row.shape
    axes = axes_of(key, shape, what)
    if row.geometry is not None:
        begin, end = row.geometry.extent(row, axes)
        return np.array([begin]), np.array([end])
    starts, length = runs_of(axes, shape, what)
    if row.dtype.quantized:
        return places_of(row, starts, length)
    itemsize = 1 if row.dtype.packed else row.dtype.bits // 8
    begins = row.offset + starts * itemsize
    return begins, begins + length * itemsize


def dealt(spans: Spans, rank: int, world_size: int) -> NDArray[np.int64]:
    """Return the numbers of the tensors that a rank is dealt: neighbours, and about as many bytes for each rank.

    Tensors that share bytes stay together. A rank has at most its part of all bytes, and one tensor more.
    """
    if not len(spans):
        return np.empty(0, np.int64)
    bounds, middles = spans.apart
    owners = np.minimum(middles * world_size, world_size - 1).astype(np.int64)
    low, high = np.searchsorted(owners, [rank, rank + 1]).tolist()
    return np.arange(bounds[low], bounds[high], dtype=np.int64)
