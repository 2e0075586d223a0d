"""Which tensors are in memory, and what brings them there and out of it: the functions behind those of `TensorFile`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.arguments import mistyped
from weightmap.errors import TensorFileError
from weightmap.io.pages import give_back, resident_in
from weightmap.model.parts import check_open, check_unchanged, locate, parts_of
from weightmap.model.spans import Spans, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.io.source import Source

__all__ = ["Residency", "prefetch", "release", "residency"]


class Residency(NamedTuple):
    """How much of a tensor is in memory.

    Attributes
    ----------
    resident, nbytes : int
        Bytes in memory, and in all.
    """

    resident: int
    nbytes: int


def residency(model: Any, names: str | Sequence[str] | None) -> dict[str, Residency]:
    """Do what `TensorFile.residency` says."""
    check_unchanged(model)
    spans = spans_of(model)
    numbers = _numbers(model, spans, names)
    resident = resident_bytes(spans, numbers)
    columns = (spans.names(numbers), resident.tolist(), spans.nbytes[numbers].tolist())
    return {name: Residency(there, nbytes) for name, there, nbytes in zip(*columns, strict=True)}


def resident_bytes(spans: Spans, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes of each of these tensors are in memory."""
    found = np.zeros(len(numbers), np.int64)
    for file, places in _by_file(spans, numbers):
        source = parts_of(spans.files[file])[0]
        found[places] = resident_in(source, spans.begin[numbers[places]], spans.nbytes[numbers[places]])
    return found


def prefetch(model: Any, names: str | Sequence[str] | None) -> None:
    """Do what `TensorFile.prefetch` says."""
    check_open(model)
    if names is None:
        source, content, _ = parts_of(model)
        size = source.size
        # Tensors whose elements share bytes may have more bytes than the file.
        source.prefetch(
            (offset, min(nbytes + (count - 1) * step, size - offset))
            for _, _, offset, nbytes, count, step in content.table.runs()
        )
        return
    wanted: dict[Source, list[tuple[int, int]]] = {}
    for name in _listed(names):
        source, row, _ = locate(model, name)
        wanted.setdefault(source, []).append((row.offset, row.nbytes))
    for source, ranges in wanted.items():
        source.prefetch(ranges)


def release(model: Any, names: str | Sequence[str] | None) -> int:
    """Do what `TensorFile.release` says."""
    check_unchanged(model)
    spans = spans_of(model)
    numbers = _numbers(model, spans, names)
    before = _resident_or_none(spans, numbers)
    for file, places in _by_file(spans, numbers):
        begins, sizes = spans.begin[numbers[places]], spans.nbytes[numbers[places]]
        cuts = np.flatnonzero(begins[1:] > begins[:-1] + sizes[:-1] + _NEAR) + 1
        runs = zip(np.split(begins, cuts), np.split(begins + sizes, cuts), strict=True)
        ranges = [spans.outwards(file, int(starts[0]), int(stops.max())) for starts, stops in runs]
        give_back(parts_of(spans.files[file])[0], ranges)
    after = _resident_or_none(spans, numbers)
    return 0 if before is None or after is None else max(0, before - after)


# Padding between tensors, which goes with them.
_NEAR = 4096


def _numbers(model: Any, spans: Spans, names: str | Sequence[str] | None) -> NDArray[np.int64]:
    if names is None:
        return np.arange(len(spans), dtype=np.int64)
    return np.array(sorted({spans.find(model, name) for name in _listed(names)}), np.int64)


def _listed(names: str | Iterable[str]) -> Iterable[str]:
    """Return a name, or names, as names. Raises TypeError for anything else."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable):
        raise mistyped("names", names, "a name or a sequence of them")
    return names


def _by_file(spans: Spans, numbers: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Yield each file, and which of these tensors lie in it."""
    files = spans.file[numbers]
    for file in np.unique(files).tolist():
        low, high = np.searchsorted(files, [file, file + 1]).tolist()
        yield file, slice(low, high)


def _resident_or_none(spans: Spans, numbers: NDArray[np.int64]) -> int | None:
    """Return the bytes of these tensors that are in memory; None where the system does not say."""
    try:
        return int(resident_bytes(spans, numbers).sum())
    except TensorFileError:
        raise
    except OSError:
        return None
