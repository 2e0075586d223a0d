"""Differences between the tensors of two models, value by value: their number and size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import quoted
from weightmap.core.arguments import as_float
from weightmap.core.dtypes import DTYPES, FLOATING, numpy_dtype
from weightmap.core.model.internals import check_made, in_order, row_of, sources_of
from weightmap.core.native.access import Failed, cpus
from weightmap.core.native.files import COMPARED, FileComparer, differing
from weightmap.core.native.floats import in_type
from weightmap.core.quant.blocks import decode_chunks, decode_range
from weightmap.core.quant.ggml import in_pieces
from weightmap.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row

# numpy's kinds of types with numbers; V: the types of ml_dtypes.
_NUMBERS = "biufcV"
# Elements of quantised tensors decoded at once.
_PIECE = 1 << 18
# Bytes and tensors that C compares at once, between checks for signals.
_AT_ONCE, _MANY = 64 << 20, 4096


class Tolerance(NamedTuple):
    """The allowed difference of two values, ``atol + rtol * abs(b)``, as in `numpy.isclose`."""

    rtol: float = 0.0
    atol: float = 0.0

    @classmethod
    def of(cls, rtol: float | None, atol: float | None) -> Tolerance:
        """Return the tolerance of these options. Raises ValueError if one is negative or not finite."""
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None and not 0 <= as_float(name, value) < math.inf:
                raise ValueError(f"{name} is {value}, expected a finite number of at least 0")
        return cls(rtol or 0.0, atol or 0.0)


_EXACT = Tolerance()


def has_numbers(row: Row) -> bool:
    """Whether a tensor holds numbers to compare: not packed elements, texts or records."""
    dtype = row.dtype
    if dtype.quantized:
        return True
    return dtype.name in DTYPES and not dtype.packed and numpy_dtype(DTYPES[dtype.name]).kind in _NUMBERS


def both(a: TensorFile, b: TensorFile, names: Iterable[str]) -> Iterator[tuple[str, Row, Row]]:
    """Yield the rows of tensors that both models have.

    Raises `LimitError` for tensors that expand to too many bytes for their file: see `check_expansion`.
    """
    expanded = [0, 0]
    common = list(names)
    rows_a = in_order(a, (row_of(a, name).dense for name in common))
    rows_b = in_order(b, (row_of(b, name).dense for name in common))
    for name, row_a, row_b in zip(common, rows_a, rows_b, strict=True):
        if row_a.shape == row_b.shape:
            for side, (file, place) in enumerate(((a, row_a), (b, row_b))):
                expanded[side] += place.nbytes
                place.source.check_size(f"tensor {quoted(name)}", place.nbytes)
                check_made(file, "all tensors to compare", expanded[side])
        yield name, row_a, row_b


def read_at_all(a: TensorFile, b: TensorFile, names: Iterable[str]) -> Iterable[str]:
    """Return the names without tensors at the same bytes of files with one digest: these are equal."""
    digests = {source.digest for source in sources_of(a)} & {source.digest for source in sources_of(b)} - {None}
    return (name for name in names if not _is_same(row_of(a, name), row_of(b, name))) if digests else names


def _is_same(a: Row, b: Row) -> bool:
    digest, place = a.source.digest, (a.offset, a.nbytes, a.dtype, a.shape)
    return digest is not None and digest == b.source.digest and place == (b.offset, b.nbytes, b.dtype, b.shape)


def pairs(a: Row, b: Row) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the values of two tensors of one shape, in pieces of equal length.

    Floating-point and decoded values are float64, complex ones complex128; integers keep their type.
    """
    n_remaining = math.prod(a.shape)
    values_a = values_b = np.empty(0)
    pieces_a, pieces_b = _values(a), _values(b)
    while n_remaining:
        values_a = values_a if values_a.size else next(pieces_a)
        values_b = values_b if values_b.size else next(pieces_b)
        count = min(values_a.size, values_b.size)
        yield values_a[:count], values_b[:count]
        values_a, values_b, n_remaining = values_a[count:], values_b[count:], n_remaining - count


def _values(place: Row) -> Iterator[NDArray[Any]]:
    if place.dtype.quantized:
        for tensor in in_pieces(place):
            for values in decode_chunks(tensor, _PIECE):
                yield values.astype(np.float64)
        return
    stored = numpy_dtype(DTYPES[place.dtype.name])
    for chunk in place.chunks():
        yield _widened(np.frombuffer(chunk, stored))


def _widened(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers as they are, other numbers in double precision."""
    kind = values.dtype.kind
    return values if kind in "biu" else in_type(values, np.dtype(np.complex128 if kind == "c" else np.float64))


def distances(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Return the absolute differences of values from `pairs`; differences of integers are exact before rounding."""
    kinds = one.dtype.kind + other.dtype.kind
    if set(kinds) <= set("biu"):
        common = np.result_type(one.dtype, other.dtype, np.int64 if "i" in kinds else np.uint64)
        if common.kind in "iu":
            one_wide, other_wide = one.astype(common), other.astype(common)
            # The difference of two int64 may not fit into int64, but fits into uint64.
            exact = (np.maximum(one_wide, other_wide) - np.minimum(one_wide, other_wide)).view(np.uint64)
            wide: NDArray[np.float64] = exact.astype(np.float64)
            return wide
        one, other = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        distance: NDArray[np.float64] = np.abs(one - other).astype(np.float64)
    return distance


def unequal(
    one: NDArray[Any], other: NDArray[Any], distance: NDArray[np.float64], tolerance: Tolerance
) -> NDArray[np.bool_]:
    """Return which values differ by more than the tolerance; NaNs are equal, an infinity equals only itself."""
    close = distance == 0
    if tolerance != (0, 0):
        with np.errstate(invalid="ignore", over="ignore"):
            close |= np.isfinite(distance) & (distance <= tolerance.atol + tolerance.rtol * np.abs(other))
    differ: NDArray[np.bool_] = ~(close | (one == other) | (np.isnan(one) & np.isnan(other)))
    return differ


class TensorDiff(NamedTuple):
    """A tensor that differs between two files.

    Attributes
    ----------
    name : str
    what : {"dtype", "shape", "values"}
    a, b : str
        Dtype and shape in each file.
    n_different : int or None
        Number of elements whose bytes differ. If the dtypes differ, the number of elements whose values differ, for
        floating-point and quantised tensors of one shape; None for other tensors, and for codes of a quantised
        checkpoint.
    max_abs : float or None
        Largest absolute difference of two elements; NaN if one of them is not finite.
    rms : float or None
        Root of the mean square of the differences, over all elements, including equal ones.
    relative : float or None
        By value: `rms` divided by the root of the mean square of the elements in A.
    worst_row : int or None
        By value: the index on the first axis where the mean square of the differences is largest.
    """

    name: str
    what: str
    a: str
    b: str
    n_different: int | None
    max_abs: float | None
    rms: float | None = None
    relative: float | None = None
    worst_row: int | None = None


class _Difference:
    """The difference of two tensors: number of unequal elements, largest difference, sum of squared differences."""

    __slots__ = ("count", "largest", "squares")

    def __init__(self) -> None:
        self.count, self.largest, self.squares = 0, 0.0, 0.0

    def add(self, count: int, largest: float, squares: float) -> None:
        """Add the difference of a part."""
        self.count += count
        self.largest = float(np.maximum(self.largest, largest))
        self.squares += squares

    def add_distances(self, distance: NDArray[np.floating[Any]]) -> None:
        """Add the unequal elements of a part, by their distances."""
        with np.errstate(invalid="ignore", over="ignore"):
            self.add(distance.size, float(distance.max(initial=0)), float(np.square(distance, dtype=np.float64).sum()))

    def over(self, shape: tuple[int, ...]) -> tuple[int, float, float]:
        """Return count, largest and root mean square difference of a tensor of this shape."""
        return self.count, self.largest, math.sqrt(self.squares / max(math.prod(shape), 1))


def tensor_diffs(
    places: Iterable[tuple[str, Row, Row]], tolerance: Tolerance | None, codes: set[str]
) -> Iterator[TensorDiff]:
    """Yield the differences of tensors of two models, given by name and both rows; `codes` are not measured."""
    compared = (_compare(name, a, b, difference, tolerance, codes) for name, a, b, difference in _compared(places))
    return (differs for differs in compared if differs is not None)


def _compare(
    name: str, a: Row, b: Row, difference: _Difference | None, tolerance: Tolerance | None, codes: set[str]
) -> TensorDiff | None:
    """Compare two tensors: by value with a tolerance if both hold numbers, else bit by bit."""
    if tolerance is None or a.shape != b.shape or not (has_numbers(a) and has_numbers(b)):
        return _compare_bits(name, a, b, difference, codes)
    if _types(a) == _types(b) and _compare_bits(name, a, b, difference, codes) is None:
        return None  # the quick answer, for most tensors of similar files
    different, largest, rms = _compare_values(a, b, tolerance)
    text_a, text_b = (f"{row.dtype.name} {list(row.shape)}" for row in (a, b))
    return TensorDiff(name, "values", text_a, text_b, different, largest, rms) if different else None


def by_rows(differs: TensorDiff, a: Row, b: Row) -> TensorDiff:
    """Add to a difference the relative error of the tensor, and the row with the largest error."""
    if differs.n_different is None or not a.shape or not (has_numbers(a) and has_numbers(b)):
        return differs
    width, at, total = max(math.prod(a.shape[1:]), 1), 0, 0.0
    squares = np.zeros(a.shape[0])
    for one, other in pairs(a, b):
        with np.errstate(invalid="ignore", over="ignore"):
            errors = np.square(distances(one, other))
            total += float(np.square(np.abs(one).astype(np.float64)).sum())
            squares += np.bincount(np.arange(at, at + len(one)) // width, errors, len(squares))
        at += len(one)
    relative = math.sqrt(squares.sum() / total) if total else math.inf
    return differs._replace(relative=relative, worst_row=int(squares.argmax()))


def _types(row: Row) -> tuple[str, bool]:
    return row.dtype.name, row.dtype.quantized


def _compare_bits(name: str, a: Row, b: Row, difference: _Difference | None, codes: set[str]) -> TensorDiff | None:
    text_a, text_b = (f"{row.dtype.name} {list(row.shape)}" for row in (a, b))
    if _types(a) != _types(b):
        if a.dtype.name == b.dtype.name:  # "int8", a type on one side and a scheme on the other
            text_a, text_b = (
                f"{text}, {'' if row.dtype.quantized else 'not '}quantised" for text, row in ((text_a, a), (text_b, b))
            )
        comparable = name not in codes and a.shape == b.shape and _has_values(a) and _has_values(b)
        return TensorDiff(name, "dtype", text_a, text_b, *(_compare_values(a, b) if comparable else (None, None, None)))
    if a.shape != b.shape:
        return TensorDiff(name, "shape", text_a, text_b, None, None)
    if a.dtype.quantized:
        return _compare_decoded(name, a, b, (text_a, text_b))
    if difference is None:
        difference = _by_chunks(a, b)
    return TensorDiff(name, "values", text_a, text_b, *difference.over(a.shape)) if difference.count else None


def _by_chunks(a: Row, b: Row) -> _Difference:
    """Return the difference of two tensors of one dtype and shape, read in chunks."""
    difference = _Difference()
    size = 0 if a.dtype.packed else a.dtype.bits // 8
    for chunk_a, chunk_b in zip(a.chunks(), b.chunks(), strict=True):
        if a.dtype.name in COMPARED:
            difference.add(*differing(chunk_a, chunk_b, a.dtype.name))
            continue
        raw = np.frombuffer(chunk_a, np.uint8), np.frombuffer(chunk_b, np.uint8)
        if np.array_equal(*raw):
            continue
        if not size:  # elements of less than a byte: count bytes
            difference.add(int((raw[0] != raw[1]).sum()), float("nan"), float("nan"))
            continue
        differ = (raw[0] != raw[1]).reshape(-1, size).any(1)
        difference.add_distances(_distances(raw, differ, a))
    return difference


def _compared(
    places: Iterable[tuple[str, Row, Row]],
) -> Iterator[tuple[str, Row, Row, _Difference | None]]:
    """Yield tensors with their difference, which C finds in batches if it can read both files; else with None."""
    compare = FileComparer(cpus())
    batch: list[tuple[str, Row, Row, _Difference]] = []
    files: tuple[int, int] | None = None
    size = 0
    for name, a, b in places:
        row_files = _files_of(a, b)
        joins = row_files is not None and batch and row_files == files and a.dtype.name == batch[0][1].dtype.name
        if batch and not (joins and size < _AT_ONCE and len(batch) < _MANY):
            _compare_files(batch, files or (-1, -1), compare)
            yield from batch
            batch, size = [], 0
        files = row_files
        if row_files is None:
            yield name, a, b, None
        else:
            batch.append((name, a, b, _Difference()))
            size += a.nbytes
    if batch:
        _compare_files(batch, files or (-1, -1), compare)
        yield from batch


def _files_of(a: Row, b: Row) -> tuple[int, int] | None:
    """Return the descriptors of the files of two tensors if C can compare them there, or None."""
    if a.dtype.name not in COMPARED or a.dtype.name != b.dtype.name or a.shape != b.shape:
        return None
    if a.dtype.swapped or b.dtype.swapped or not a.nbytes:
        return None
    files = a.source.c_random_input, b.source.c_random_input
    return (files[0], files[1]) if isinstance(files[0], int) and isinstance(files[1], int) else None


def _compare_files(
    tensors: list[tuple[str, Row, Row, _Difference]], files: tuple[int, int], compare: FileComparer
) -> None:
    """Compare tensors of one dtype in two files; fill in their differences."""
    pairs = [(a, b) for _, a, b, _ in tensors]
    dtype = pairs[0][0].dtype.name
    width = COMPARED[dtype][1]
    step = _AT_ONCE // width
    parts = [
        (number, start, min(step, math.prod(a.shape) - start))
        for number, (a, _) in enumerate(pairs)
        for start in range(0, math.prod(a.shape), step)
    ]
    while parts:
        n = size = 0
        while n < len(parts) and (not n or size + parts[n][2] <= step):
            size += parts[n][2]
            n += 1
        batch, parts = parts[:n], parts[n:]
        offsets = np.array([[pairs[i][k].offset + at * width for i, at, _ in batch] for k in (0, 1)], np.int64)
        counts = np.array([count for _, _, count in batch], np.int64)
        try:
            results = compare(files, offsets, counts, dtype)
        except Failed as failed:
            number = int(failed.what == "read other")
            ends = offsets[number] + counts * width
            i = int(np.flatnonzero((offsets[number] <= failed.at) & (failed.at < ends))[0])
            pairs[batch[i][0]][number].source.fail_reading(failed.at, int(ends[i]), failed.error)
        for (i, _, _), (count, largest, squares) in zip(batch, results, strict=True):
            tensors[i][3].add(count, largest, squares)


def _compare_decoded(name: str, a: Row, b: Row, texts: tuple[str, str]) -> TensorDiff | None:
    """Compare the decoded values of two quantised tensors, bit by bit; their codes may differ."""
    difference = _Difference()
    for part_a, part_b in zip(in_pieces(a), in_pieces(b), strict=False):
        if (part_a.block_size, part_a.scale_type) != (part_b.block_size, part_b.scale_type):
            one, other = (
                f"{texts[0]}, blocks of {part.block_size}, {part.scale_type} scales" for part in (part_a, part_b)
            )
            return TensorDiff(name, "dtype", one, other, None, None)
        if np.array_equal(part_a.payload, part_b.payload):
            continue
        for at in range(0, part_a.size, _PIECE):
            values = [decode_range(part, at, min(at + _PIECE, part.size)) for part in (part_a, part_b)]
            differ = values[0].view(np.uint32) != values[1].view(np.uint32)
            with np.errstate(invalid="ignore"):
                distance = np.abs(values[0].astype(np.float64) - values[1])
            difference.add_distances(distance[differ])
    if not difference.count:
        return None
    return TensorDiff(name, "values", texts[0], texts[1], *difference.over(a.shape))


def _has_values(row: Row) -> bool:
    return row.dtype.quantized or row.dtype.name in FLOATING


def _compare_values(a: Row, b: Row, tolerance: Tolerance = _EXACT) -> tuple[int, float, float]:
    """Compare values of two tensors of one shape, of any types; return the number, largest and RMS of differences."""
    difference = _Difference()
    for one, other in pairs(a, b):
        distance = distances(one, other)
        differ = unequal(one, other, distance, tolerance)
        difference.add_distances(distance[differ])
    return difference.over(a.shape)


def _distances(raw: tuple[Any, Any], differ: Any, row: Row) -> NDArray[np.float64]:
    """Return the distances of unequal elements; NaN for a type without numbers."""
    try:
        dtype = numpy_dtype(DTYPES[row.dtype.name])
    except (KeyError, UnsupportedError):
        return np.full(int(differ.sum()), np.nan)
    one, other = (_widened(part.view(dtype)[differ]) for part in raw)
    return distances(one, other)
