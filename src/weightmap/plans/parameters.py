"""`ParameterPlan`: a plan of parameters, which reads the parts of their pieces that decode what is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.dtypes import numpy_dtype
from weightmap.errors import PlanError, TensorFileError, quoted
from weightmap.io.geometry import ascending
from weightmap.model.parts import name_of, not_found, parts_of
from weightmap.model.spans import spans_of
from weightmap.model.weights import Pieces
from weightmap.plans.indices import Indices, Shard, arranged, axes_of
from weightmap.plans.read_plan import ReadPlan
from weightmap.plans.wants import dealt, resolve_wants

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.index.row import Row
    from weightmap.model.file import TensorFile


class _Part:
    """A wanted parameter of several pieces, and those of its pieces that have been read.

    Parameters
    ----------
    name : str
    pieces : Pieces
    key : index or None
        None for all of it.
    shape : tuple of int
    """

    def __init__(self, name: str, pieces: Pieces, key: Any, shape: tuple[int, ...]) -> None:
        self.name, self._pieces, self._key = name, pieces, key
        self._roles = {stored: role for role, (stored, _) in pieces.rows.items()}
        self.indices: dict[str, Any] = dict.fromkeys(self._roles)
        if key is not None:
            what, coding = f"parameter {quoted(name)}", pieces.coding
            self._axes = axes_of(key, shape, what)
            start, step, size, _ = self._axes[0] if self._axes else (0, 1, 1, True)
            low, high = sorted((start, start + step * max(size - 1, 0)))
            self._rows = coding.around(low, high + 1) if size else (0, 0)
            cut = coding.cut(*self._rows)
            self.indices = {stored: cut[role] for stored, role in self._roles.items() if role in cut}
        self._found: dict[str, tuple[str, NDArray[Any]]] = {}

    def take(self, stored: str, array: NDArray[Any]) -> bool:
        """Take a piece; say whether it was the last one."""
        self._found[self._roles[stored]] = stored, array
        return len(self._found) == len(self.indices)

    def made(self) -> Any:
        """Return the parameter, or the part of it, and forget its pieces."""
        found, self._found = self._found, {}
        if self._key is None:
            return self._pieces.over({role: found[role] for role in self._roles.values()})
        first, last = self._rows
        parts = {role: array for role, (_, array) in found.items()}
        rows = self._pieces.coding.rows(parts, first, last, numpy_dtype(self._pieces.own))
        part = rows[ascending([self._axes[0]._replace(start=self._axes[0].start - first), *self._axes[1:]])]
        return arranged(np.ascontiguousarray(part).reshape(-1), self._axes, self._key)


class _Names:
    """The parameters of a model by number, as `resolve_wants` asks for them."""

    def __init__(self, model: TensorFile) -> None:
        self._model, self._table = model, parts_of(model)[1].table

    def __len__(self) -> int:
        return len(self._table)

    def find(self, name: str) -> int:
        found: int = self._table.find(name)
        if found < 0:
            raise not_found(self._model, name)
        return found

    def names(self, _: object) -> Iterator[str]:
        return iter(self._model)

    def of(self, number: int) -> Row:
        row: Row = self._table.row(number)
        return row


class ParameterPlan(ReadPlan):
    """A plan of the parameters of a quantised checkpoint: see `weightmap.plan`, ``weights=True``.

    `reads` and byte counts are those of the stored tensors. `run` yields a parameter with the last of its pieces.
    """

    def __init__(self, file: TensorFile, model: TensorFile, wants: Any, **options: Any) -> None:
        try:
            chosen = dict(_chosen(file, model, wants, options["rank"], options["world_size"]))
        except TensorFileError as error:
            raise error.located(path=name_of(file), format=file.format) from None
        rows = parts_of(model)[1].table
        self._parameters: dict[str, _Part | None] = {}
        self._of: dict[str, _Part] = {}
        stored: dict[str, Any] = {}
        for name, key in chosen.items():
            row: Row = rows.row(rows.find(name))
            part = _Part(name, row.geometry, key, row.shape) if isinstance(row.geometry, Pieces) else None
            self._parameters[name] = part
            indices: Mapping[str, Any] = {name: key} if part is None else part.indices
            stored |= indices
            self._of |= dict.fromkeys(indices, part) if part is not None else {}
        super().__init__(file, *resolve_wants(spans_of(file), stored), **options)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the planned parameters, in file order."""
        return tuple(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def run(self, how: str = "auto", **options: Any) -> Iterator[tuple[str, Any]]:
        """Yield name and parameter, or the wanted part of it: see `ReadPlan.run`."""
        for name, array in super().run(how, **options):
            part = self._of.get(name)
            if part is None:
                yield name, array
            elif part.take(name, array):
                yield part.name, part.made()


def _chosen(file: TensorFile, model: TensorFile, wants: Any, rank: int, world_size: int) -> Iterator[tuple[str, Any]]:
    """Yield the names of the wanted parameters, in file order, and their indices: None for all of one."""
    names = list(model)
    rows = parts_of(model)[1].table
    if wants is None:
        spans = spans_of(file)
        own = set(spans.names(dealt(spans, rank, world_size)))
        for number, name in enumerate(names):
            geometry = rows.row(number).geometry
            first = next(iter(geometry.rows.values()))[0] if isinstance(geometry, Pieces) else name
            if first in own:
                yield name, None
    elif isinstance(wants, Shard):
        for number, name in enumerate(names):
            count = len(rows.row(number).shape)
            yield name, wants if -count <= wants.dim < count else None
    else:
        known: Any = _Names(model)
        numbers, indices = resolve_wants(known, wants)
        for number in numbers.tolist():
            key = indices.get(number)
            if isinstance(key, Indices):
                several = tuple(key)
                if len(several) != 1:
                    raise PlanError(f"index of parameter {quoted(names[number])}", expected="one with weights=True")
                (key,) = several
            yield names[number], key
