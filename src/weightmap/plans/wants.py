"""Resolves wants to tensors by number, some in part, and divides whole tensors among ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from weightmap._messages import quoted
from weightmap.core.arguments import as_integer, mistyped
from weightmap.core.table.table import PackedInfo, Row, TensorInfo
from weightmap.errors import PlanError
from weightmap.plans.places import Ranges, places_of

if TYPE_CHECKING:
    from types import EllipsisType

    from numpy.typing import NDArray

    from weightmap.core.model.typing import TensorLike
    from weightmap.plans.residency import Spans

    # Elements of a tensor, and tensors, as in `weightmap.plan`.
    _Step: TypeAlias = int | slice | EllipsisType
    Index: TypeAlias = _Step | tuple[_Step, ...] | "Shard" | None
    _Names: TypeAlias = str | Iterable[str] | Iterable[tuple[str, Index]] | Mapping[str, Index]
    Wants: TypeAlias = _Names | Callable[[TensorInfo], object] | "Shard" | None

# Runs of one tensor: a column of a matrix has as many as rows. Beyond that, reading them one by one is a mistake.
MAX_RUNS = 1 << 24


class Axis(NamedTuple):
    """The part of one axis that an index selects: ``range(start, start + step * size, step)``."""

    start: int
    step: int
    size: int
    stays: bool  # whether the result has this axis; an integer removes it


class Indices(tuple[Any, ...]):
    """Several indices of one tensor, each a separate part."""

    __slots__ = ()

    @classmethod
    def of(cls, key: Any) -> Indices:
        """Return the indices in a key, which is one index or several."""
        return key if isinstance(key, cls) else cls((key,))


class Shard(NamedTuple):
    """One rank's slice of a tensor whose shape is not known yet: an index for `weightmap.plan`.

    Attributes
    ----------
    dim, rank, world_size : int
        As for `shard`.
    """

    dim: int
    rank: int
    world_size: int

    def of(self, shape: tuple[int, ...], what: str = "the tensor") -> tuple[slice, ...]:
        """Return the index for a tensor of this shape. Raises `PlanError` if it lacks the dimension."""
        if not -len(shape) <= self.dim < len(shape):
            raise PlanError(f"dim of a shard of {what}", actual=self.dim, expected=f"one of {len(shape)} dimensions")
        dim = self.dim % len(shape)
        size = shape[dim]
        step = -(-size // self.world_size)
        start = min(self.rank * step, size)
        return (*(slice(None),) * dim, slice(start, min(start + step, size)))


def shard(name_or_info: str | TensorInfo | TensorLike, dim: int, rank: int, world_size: int) -> Any:
    """Return the index of one rank's slice of a tensor, for tensor parallelism, with the sizes of `torch.chunk`.

    Along `dim`, each rank gets ``ceil(size / world_size)`` elements; the last ranks get the rest, perhaps nothing.

    Parameters
    ----------
    name_or_info : TensorInfo, or anything with a shape, or str
        The tensor. For a name, `weightmap.plan` completes the index once it knows the shape. For a type below the byte,
        such as float4, the bytes of ``f[name]`` are divided.
    dim : int
        The dimension to divide; negative numbers count from the last one.
    rank, world_size : int
        This rank, and the number of ranks.

    Returns
    -------
    tuple of slice, or Shard

    Raises
    ------
    PlanError
        When the rank is not below `world_size`, or the tensor has no such dimension.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.shard(np.zeros((10, 4)), 0, 3, 4)
    (slice(9, 10, None),)
    >>> wm.shard("weight", 1, 0, 2)
    Shard(dim=1, rank=0, world_size=2)
    """
    part = Shard(as_integer("dim", dim), *checked_rank(rank, world_size))
    if isinstance(name_or_info, str):
        return part
    if not hasattr(name_or_info, "shape"):
        raise mistyped("name_or_info", name_or_info, "a name, or something with a shape")
    name = getattr(name_or_info, "name", None)
    return part.of(shape_of(name_or_info), f"tensor {quoted(name)}" if isinstance(name, str) else "the tensor")


def shape_of(info: Any) -> tuple[int, ...]:
    """Return the shape to which indices of a tensor refer: packed elements are indexed by their bytes."""
    return (info.nbytes,) if isinstance(info, PackedInfo) else tuple(info.shape)


def checked_rank(rank: int, world_size: int, words: tuple[str, str] = ("rank", "world_size")) -> tuple[int, int]:
    """Return a rank and the number of ranks as integers. Raises `PlanError` if the rank is out of range."""
    number, count = as_integer(words[0], rank), as_integer(words[1], world_size)
    if count < 1:
        raise PlanError(words[1], field=words[1], actual=count, expected="at least 1")
    if not 0 <= number < count:
        raise PlanError(words[0], field=words[0], actual=number, expected=f"0 to {count - 1}, as {words[1]} is {count}")
    return number, count


def axes_of(key: Any, shape: tuple[int, ...], name: str, kind: str = "tensor") -> list[Axis]:
    """Return the part of each axis that an index selects: integers, slices and an ellipsis, as numpy takes them.

    Raises `PlanError` for an integer out of range, more entries than dimensions, and anything else.
    """
    if isinstance(key, Shard):
        key = key.of(shape, f"{kind} {quoted(name)}")
    parts, ellipses = [key], [0] if key is Ellipsis else []
    if type(key) is tuple:
        parts, ellipses = list(key), [at for at, part in enumerate(key) if part is Ellipsis]
    missing = len(shape) - len(parts) + len(ellipses)
    if missing < 0 or len(ellipses) > 1:
        raise _index_error(name, kind, "", actual=repr(key), expected=f"one for {len(shape)} dimensions")
    at = ellipses[0] if ellipses else len(parts)
    parts[at : at + 1] = [slice(None)] * missing
    return list(map(_axis, parts, shape, count(), repeat(name), repeat(kind)))


def _index_error(name: str, kind: str, where: str, **how: Any) -> PlanError:
    return PlanError(f"index of {kind} {quoted(name)}{where}", **how)


def _axis(part: Any, size: int, number: int, name: str, kind: str) -> Axis:
    if isinstance(part, slice):
        try:
            start, stop, step = part.indices(size)
        except (TypeError, ValueError) as error:
            raise _index_error(name, kind, f": {part!r} on axis {number}: {error}") from None
        return tuple.__new__(Axis, (start, step, len(range(start, stop, step)), True))
    try:
        at = None if isinstance(part, (bool, np.bool_)) else index(part)
    except TypeError:
        at = None
    if at is None:
        raise _index_error(name, kind, "", actual=repr(part)[:80], expected="integers, slices and an ellipsis")
    if not -size <= at < size:
        expected = f"{-size} to {size - 1}" if size else "a slice, as the axis is empty"
        raise _index_error(name, kind, f" on axis {number}", actual=at, expected=expected)
    return Axis(at % size, 1, 1, stays=False)


def runs_of(axes: list[Axis], shape: tuple[int, ...], name: str) -> tuple[NDArray[np.int64], int]:
    """Return the starts of runs of selected elements in the flattened tensor, in order, and the length of a run.

    Raises `PlanError` for too many runs to read one by one.
    """
    for axis in axes:
        if not axis.size:
            return np.empty(0, np.int64), 0
    # Start from the last axis; `each` is the number of elements between neighbours on an axis.
    length, begin, each, outer = 1, 0, 1, len(axes)
    while outer:
        start, step, size, _ = axes[outer - 1]
        if size > 1 and (length != each or abs(step) != 1):
            break
        # One element of this axis, or neighbours selected in full, are one run.
        begin += min(start, start + step * (size - 1)) * each
        length *= size
        outer -= 1
        each *= shape[outer]
    starts = np.array([begin], np.int64)
    if outer and math.prod(axis.size for axis in axes[:outer]) > MAX_RUNS:
        expected = f"at most {MAX_RUNS} runs of elements that lie together"
        raise _index_error(name, "tensor", "", actual="one of too many parts", expected=expected)
    while outer:
        outer -= 1
        start, step, size, _ = axes[outer]
        first = min(start, start + step * (size - 1))
        places = (first + abs(step) * np.arange(size, dtype=np.int64)) * each
        starts = (places[:, None] + starts).reshape(-1)
        each *= shape[outer]
    return starts, length


def arranged(elements: NDArray[Any], axes: list[Axis], key: Any) -> Any:
    """Return the array that an index selects, over the elements of all its runs in the order of the file."""
    array = elements.reshape(tuple(axis.size for axis in axes))
    index = tuple(slice(None, None, -1 if axis.step < 0 else 1) if axis.stays else 0 for axis in axes)
    # For a single element, numpy makes an array if the index has an ellipsis, else a scalar.
    ellipsis = key is Ellipsis or (isinstance(key, tuple) and Ellipsis in key)
    return array[(*index, ...) if ellipsis else index]


def boxes(starts: Sequence[int], sizes: Sequence[int], limit: int) -> Iterator[tuple[slice, ...]]:
    """Yield the indices of a box of elements in pieces of at most `limit` elements, in row-major order.

    Parameters
    ----------
    starts, sizes : sequence of int
        Begin and length of the box on each axis of the tensor.
    limit : int
        At least 1.

    Examples
    --------
    >>> from weightmap.plans.wants import boxes
    >>> list(boxes((0, 4), (3, 2), 4))
    [(slice(0, 2, None), slice(4, 6, None)), (slice(2, 3, None), slice(4, 6, None))]
    """
    whole = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
    size = math.prod(sizes)
    if size <= limit:
        if size:
            yield whole
        return
    axis = next(number for number, length in enumerate(sizes) if length > 1)
    each = size // sizes[axis]
    step = max(limit // each, 1)
    for first in range(0, sizes[axis], step):
        places, lengths = list(starts), list(sizes)
        places[axis], lengths[axis] = starts[axis] + first, min(step, sizes[axis] - first)
        yield from boxes(places, lengths, limit)


def at_least(minimum: int, what: str, value: int) -> int:
    """Return the number called `what`. Raises `PlanError` if it is below the minimum."""
    number = as_integer(what, value)
    if number < minimum:
        raise PlanError(what, field=what, actual=number, expected=f"at least {minimum}")
    return number


class Slices(Mapping[int, Shard]):
    """One rank's slice of every tensor that has the dimension, by number, without an object for each tensor.

    Attributes
    ----------
    begins, ends : ndarray of int64
        The contiguous bytes of each tensor's slice; all bytes of a wholly wanted tensor, and no bytes of a tensor in
        `disjoint` or `others`.
    nbytes : ndarray of int64
        Bytes of each slice, except the tensors in `others`.
    others : sequence of int
        Tensors that consist of blocks, have elements below a byte, are not row-major, or need too many parts.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def __init__(self, spans: Spans, part: Shard) -> None:
        self._part = part
        outer, size, plain = spans.dim_layout(part.dim)
        self._sliced = size >= 0
        size = np.maximum(size, 0)
        step = -(-size // part.world_size)
        low = np.minimum(part.rank * step, size)
        high = np.minimum(low + step, size)
        # Bytes of an index on the dimension, with all inner axes; 0 for an empty tensor.
        each = spans.nbytes // np.maximum(outer * size, 1)
        countable = self._sliced & plain & (spans.nbytes > 0)
        together = countable & ((outer == 1) | (low == high))
        disjoint = countable & ~together & (high - low < size)
        others = self._sliced & ~plain | disjoint & (outer > MAX_RUNS)
        disjoint &= ~others
        self.begins = spans.begin + np.where(together, low * each, 0)
        self.ends = np.where(together, spans.begin + high * each, spans.begin + spans.nbytes)
        self.nbytes = np.where(disjoint, outer * (high - low) * each, self.ends - self.begins)
        self.ends = np.where(disjoint | others, self.begins, self.ends)
        self.others: list[int] = np.flatnonzero(others).tolist()
        numbers = np.flatnonzero(disjoint)
        self._disjoint = numbers, *(column[numbers] for column in (outer, low * each, (high - low) * each, size * each))

    @property
    def are_disjoint(self) -> bool:
        """Whether `disjoint` returns any parts."""
        return len(self._disjoint[0]) > 0

    def disjoint(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the tensor's number, begin and end of each part, for slices of several parts."""
        numbers, outer, skip, nbytes, step = self._disjoint
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
    """Return the numbers of the wanted tensors, in file order, and the indices of partly wanted ones, by number.

    Raises
    ------
    TensorNotFoundError
    TypeError
        When `weightmap.plan` does not take such `wants`.
    """
    if isinstance(wants, Shard):
        return np.arange(len(spans), dtype=np.int64), Slices(spans, wants)
    if isinstance(wants, Mapping):
        pairs: Iterable[tuple[Any, Any]] = wants.items()
    elif callable(wants):
        return np.fromiter(_chosen(spans, wants), np.int64), {}
    elif isinstance(wants, Iterable):
        listed = [wants] if isinstance(wants, str) else list(wants)
        pairs = [want if isinstance(want, tuple) and len(want) == 2 else (want, None) for want in listed]
    else:
        expected = "None, names, a function of a TensorInfo, or names with indices"
        raise TypeError(f"wants is a {type(wants).__name__}, expected {expected}")
    parts: dict[int, list[Any]] = {}
    for name, key in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a wanted tensor is a {type(name).__name__}, expected a string")
        parts.setdefault(spans.find(name), []).append(... if key is None else key)
    in_part = {number: keys for number, keys in parts.items() if any(key is not ... for key in keys)}
    indices = {number: keys[0] if len(keys) == 1 else Indices(keys) for number, keys in in_part.items()}
    return np.array(sorted(parts), np.int64), indices


def _chosen(spans: Spans, wants: Callable[[TensorInfo], object]) -> Iterable[int]:
    """Yield the tensors whose `TensorInfo` satisfies a predicate."""
    numbers = np.arange(len(spans), dtype=np.int64)
    for number, name in zip(numbers.tolist(), spans.names(numbers), strict=True):
        if wants(spans.of(number).info(name)):
            yield number


def ranges_of(row: Row, key: Any, name: str) -> Ranges:
    """Return starts and stops, in its file, of the bytes that an index selects in a tensor."""
    if isinstance(key, Indices):
        parts = [ranges_of(row, one, name) for one in key]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    shape = (row.nbytes,) if row.dtype.packed else row.shape
    axes = axes_of(key, shape, name)
    if row.geometry is not None:
        begin, end = row.geometry.extent(row, axes)
        return np.array([begin]), np.array([end])
    starts, length = runs_of(axes, shape, name)
    if row.dtype.quantized:
        return places_of(row, starts, length)
    itemsize = 1 if row.dtype.packed else row.dtype.bits // 8
    begins = row.offset + starts * itemsize
    return begins, begins + length * itemsize


def divided(spans: Spans, rank: int, world_size: int) -> NDArray[np.int64]:
    """Return the numbers of a rank's tensors: neighbours, with about the same bytes for each rank.

    Tensors that share bytes stay together. A rank exceeds its part of all bytes by at most one tensor.
    """
    if not len(spans):
        return np.empty(0, np.int64)
    bounds, middles = spans.disjoint
    owners = np.minimum(middles * world_size, world_size - 1).astype(np.int64)
    low, high = np.searchsorted(owners, [rank, rank + 1]).tolist()
    return np.arange(bounds[low], bounds[high], dtype=np.int64)
