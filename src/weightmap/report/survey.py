"""The content of a report on one model, as plain values: its tensors, the map of its files, costs, warnings."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.errors import QuantError, TensorFileError
from weightmap.model.parts import names_of, rows_of
from weightmap.model.weights import Weight, as_parameters, stored_rows, weight_of_model
from weightmap.report.sampling import Cost, Numbers, budget, costs_of, numbers_of, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightmap.index.row import Row, TensorInfo
    from weightmap.io.source import Source
    from weightmap.model.file import TensorFile
    from weightmap.model.residency import Residency
    from weightmap.model.verify_report import VerifyReport


class Stored(NamedTuple):
    """A tensor as it lies in a file: its entry, its file, and how much of it is in memory."""

    info: TensorInfo
    file: str
    resident: int | None


class Tensor(NamedTuple):
    """A tensor of the report: its entry, its sample, the costs of quantising it."""

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
        The same, or the parameters that they make.
    weight : Weight or None
        Of the parameters; None where the configuration beside the file cannot be used.
    verified : VerifyReport or None
        None where verification failed or was not asked for.
    damage : str or None
        Why verification failed.
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


def survey(
    file: TensorFile, *, verify: bool, weights: bool = False, progress: Callable[[int, int], None] | None
) -> Survey:
    """Survey a model; `progress` gets bytes read and bytes in all, first of the verification.

    With `weights`, its parameters, as in `TensorFile.weights`. Raises `FormatError` if then pieces make none.
    """
    entries = [(info, row.dense) for info, row in (stored_rows(as_parameters(file)) if weights else _stored(file))]
    infos = [info for info, _ in entries]
    most = budget(len(infos))
    before = file.nbytes if verify else 0
    whole = before + sum(min(info.nbytes, most * 4) for info in infos)

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
    sources = names_of(file)
    if len(sources) == 1:
        sources = dict.fromkeys(sources, "the file")
    done = before
    for info, place in entries:
        numbers, costs, problem = None, {}, None
        try:
            values = sample(place, most)
            if values is not None:
                numbers = numbers_of(values)
                costs = costs_of(info.name, place, values)
        except QuantError as error:
            problem = str(error)
        tensors.append(Tensor(info, place.dtype.quantized, numbers, costs, problem))
        done += min(info.nbytes, most * 4)
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
        most,
    )


def _stored(file: TensorFile) -> Iterator[tuple[TensorInfo, Row]]:
    return zip(file.infos(), rows_of(file), strict=True)


def _resident(resident: dict[str, Residency] | None, name: str) -> int | None:
    return None if resident is None else resident[name].resident if name in resident else 0


def _residency(file: TensorFile) -> dict[str, Residency] | None:
    """Return how much of each tensor is in memory; None where the system does not say."""
    with contextlib.suppress(OSError):
        return file.residency()
    return None


def _files(sources: dict[Source, str], tensors: list[Stored]) -> Iterator[File]:
    places: dict[str, list[tuple[int, int]]] = {name: [] for name in sources.values()}
    for tensor in tensors:
        places[tensor.file].append((tensor.info.offset, tensor.info.nbytes))
    for source, name in sources.items():
        if not source.size:  # a sharded model: a name without bytes
            continue
        yield File(name, source.size, tuple(_gaps(sorted(places[name]), source.size)))


def _gaps(places: list[tuple[int, int]], size: int) -> Iterator[Gap]:
    end = 0
    for begin, nbytes in places:
        if begin > end:
            yield Gap("padding" if end else "header", end, begin)
        end = max(end, begin + nbytes)
    if end < size:
        yield Gap("footer" if end else "header", end, size)


def alignment(offset: int) -> int:
    """Return the largest power of two up to 4096 that an offset is a multiple of."""
    return math.gcd(offset, 4096)
