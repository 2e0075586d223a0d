"""Residency, prefetching and release of tensors, behind the methods of `TensorFile`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.arguments import mistyped
from weightmap.errors import TensorFileError
from weightmap.io.pages import give_back, resident_in
from weightmap.model.parts import check_open, check_unchanged
from weightmap.model.spans import Spans, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class Residency(NamedTuple):
    """How much of a tensor is in memory.

    Attributes
    ----------
    resident, nbytes : int
        Bytes in memory, and all bytes.
    """

    resident: int
    nbytes: int


def residency(model: Any, names: str | Sequence[str] | None) -> dict[str, Residency]:
    """Implement `TensorFile.residency`."""
    check_unchanged(model)
    spans = spans_of(model)
    numbers = _numbers(spans, names)
    resident = resident_bytes(spans, numbers)
    columns = (spans.names(numbers), resident.tolist(), spans.nbytes[numbers].tolist())
    return {name: Residency(there, nbytes) for name, there, nbytes in zip(*columns, strict=True)}


def resident_bytes(spans: Spans, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the resident bytes of each of these tensors."""
    found = np.zeros(len(numbers), np.int64)
    for file, places in _by_file(spans, numbers):
        found[places] = resident_in(spans.sources[file], spans.begin[numbers[places]], spans.nbytes[numbers[places]])
    return found


def prefetch(model: Any, names: str | Sequence[str] | None) -> None:
    """Implement `TensorFile.prefetch`."""
    check_open(model)
    spans = spans_of(model)
    numbers = _numbers(spans, names)
    for file, places in _by_file(spans, numbers):
        some = numbers[places]
        spans.sources[file].prefetch(zip(spans.begin[some].tolist(), spans.nbytes[some].tolist(), strict=True))


def release(model: Any, names: str | Sequence[str] | None) -> int:
    """Implement `TensorFile.release`."""
    check_unchanged(model)
    spans = spans_of(model)
    numbers = _numbers(spans, names)
    before = _resident_or_none(spans, numbers)
    for file, places in _by_file(spans, numbers):
        begins, sizes = spans.begin[numbers[places]], spans.nbytes[numbers[places]]
        cuts = np.flatnonzero(begins[1:] > begins[:-1] + sizes[:-1] + _NEAR) + 1
        runs = zip(np.split(begins, cuts), np.split(begins + sizes, cuts), strict=True)
        ranges = [spans.outwards(file, int(starts[0]), int(stops.max())) for starts, stops in runs]
        give_back(spans.sources[file], ranges)
    after = _resident_or_none(spans, numbers)
    return 0 if before is None or after is None else max(0, before - after)


# Padding between tensors, which goes with them.
_NEAR = 4096


def _numbers(spans: Spans, names: str | Sequence[str] | None) -> NDArray[np.int64]:
    if names is None:
        return np.arange(len(spans), dtype=np.int64)
    return np.array(sorted({spans.find(name) for name in _listed(names)}), np.int64)


def _listed(names: str | Iterable[str]) -> Iterable[str]:
    """Return a name, or names, as names. Raises TypeError for anything else."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable):
        raise mistyped("names", names, "a name or a sequence of them")
    return names


def _by_file(spans: Spans, numbers: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Yield each file, and which of these tensors lie in it."""
    bounds = np.searchsorted(spans.file[numbers], np.arange(len(spans.sources) + 1)).tolist()
    for file, (low, high) in enumerate(pairwise(bounds)):
        if low < high:
            yield file, slice(low, high)


def _resident_or_none(spans: Spans, numbers: NDArray[np.int64]) -> int | None:
    """Return the bytes of these tensors that are in memory; None where the system does not say."""
    try:
        return int(resident_bytes(spans, numbers).sum())
    except TensorFileError:
        raise
    except OSError:
        return None
