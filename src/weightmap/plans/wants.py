"""What is wanted of a model: tensors by number, of some a part; and which whole tensors a rank is dealt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import quoted
from weightmap.plans.indices import Indices, Shard, axes_of, runs_of
from weightmap.quant.places import places_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.index.table import TensorInfo
    from weightmap.model.spans import Spans
    from weightmap.quant.ref import TensorRef

    Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]

__all__ = ["Slices", "dealt", "ranges_of", "wanted"]


class Slices(Mapping[int, Shard]):
    """The slice of one rank of every tensor that has its dimension, by number; without an object for each of them.

    Attributes
    ----------
    begins, ends : ndarray of int64
        The bytes of each tensor that hold its slice, where they lie together; those of all of it for one that is wanted
        whole, and none for one that `others` has.
    others : sequence of int
        Tensors whose slice is in several parts, or of blocks.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __init__(self, spans: Spans, part: Shard) -> None:
        self._part = part
        self.begins, self.ends = spans.begin.copy(), spans.begin + spans.nbytes
        size, plain = spans.leading
        if part.dim == 0:
            step = -(-size // part.world)
            low = np.minimum(part.rank * step, size)
            each = spans.nbytes // np.maximum(size, 1)
            together = plain & (size > 0)
            self.ends = np.where(together, self.begins + np.minimum(low + step, size) * each, self.ends)
            self.begins = np.where(together, self.begins + low * each, self.begins)
        else:
            together = np.zeros(len(spans), np.bool_)
        self._sliced = together.copy()
        self.others: list[int] = []
        for number in np.flatnonzero(~together).tolist():
            ndim = len(spans.ref(number).row.shape)
            if -ndim <= part.dim < ndim:
                self._sliced[number] = True
                self.others.append(number)
        self.ends[self.others] = self.begins[self.others]

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and bool(self._sliced[number])

    def __getitem__(self, number: int) -> Shard:
        return self._part

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._sliced).tolist())

    def __len__(self) -> int:
        return int(self._sliced.sum())


def wanted(model: Any, spans: Spans, wants: Any) -> tuple[NDArray[np.int64], Mapping[int, Any]]:
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
        found = {spans.find(model, _name(name)): key for name, key in wants.items()}
        numbers: Iterable[int] = found
        indices = {number: key for number, key in found.items() if key is not None and key is not Ellipsis}
    elif callable(wants):
        numbers, indices = _chosen(spans, wants), {}
    elif isinstance(wants, Iterable):
        listed = [wants] if isinstance(wants, str) else list(wants)
        pairs = [want if isinstance(want, tuple) and len(want) == 2 else (want, None) for want in listed]
        parts: dict[int, list[Any]] = {}
        for name, key in pairs:
            parts.setdefault(spans.find(model, _name(name)), []).append(... if key is None else key)
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
    """Yield the tensors that a function of their `TensorInfo` wants."""
    numbers = np.arange(len(spans), dtype=np.int64)
    for number, name in zip(numbers.tolist(), spans.names(numbers), strict=True):
        row = spans.ref(number).row
        if wants(row.info(name)):
            yield number


def ranges_of(ref: TensorRef, key: Any, name: str) -> Ranges:
    """Return starts and stops, in its file, of the bytes that hold the part of a tensor that an index selects."""
    if isinstance(key, Indices):
        parts = [ranges_of(ref, one, name) for one in key]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    row, what = ref.row, f"tensor {quoted(name)}"
    shape = (row.nbytes,) if row.dtype.packed else row.shape
    axes = axes_of(key, shape, what)
    starts, length = runs_of(axes, shape, what)
    if row.dtype.quantized:
        return places_of(ref, starts, length)
    itemsize = 1 if row.dtype.packed else row.dtype.bits // 8
    begins = row.offset + starts * itemsize
    return begins, begins + length * itemsize


def dealt(spans: Spans, rank: int, world: int) -> NDArray[np.int64]:
    """Return the numbers of the tensors that a rank is dealt: neighbours, and about as many bytes for each rank.

    Tensors that share bytes stay together. A rank has at most its part of all bytes, and one tensor more.
    """
    if not len(spans):
        return np.empty(0, np.int64)
    bounds, middles = spans.apart
    owners = np.minimum(middles * world, world - 1).astype(np.int64)
    low, high = np.searchsorted(owners, [rank, rank + 1]).tolist()
    return np.arange(bounds[low], bounds[high], dtype=np.int64)
