"""`plan`: from what the caller wants to a `ReadPlan`."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.checkpoints.handle import stored_model
from weightmap.checkpoints.weights import Pieces
from weightmap.core.arguments import as_float, names_moved
from weightmap.core.bytes.geometry import ascending
from weightmap.core.dtypes import numpy_dtype
from weightmap.core.model.file import TensorFile
from weightmap.core.model.internals import name_of, not_found, parts_of
from weightmap.core.model.opening import as_handle
from weightmap.core.table import INT64_MAX
from weightmap.errors import PlanError, TensorFileError, quoted
from weightmap.plans.read_plan import PlanOptions, ReadPlan
from weightmap.plans.residency import spans_of
from weightmap.plans.wants import Indices, Shard, arranged, at_least, axes_of, checked_rank, divided, resolve_wants

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.core.model.opening import Model
    from weightmap.core.table.table import Row
    from weightmap.plans.residency import Spans
    from weightmap.plans.wants import Wants

# `ParameterPlan`: a plan of parameters, which reads the parts of their pieces that decode what is wanted.


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
            coding = pieces.coding
            self._axes = axes_of(key, shape, name, "parameter")
            start, step, size, _ = self._axes[0] if self._axes else (0, 1, 1, True)
            low, high = sorted((start, start + step * max(size - 1, 0)))
            self._rows = coding.around(low, high + 1) if size else (0, 0)
            cut = coding.cut(*self._rows)
            self.indices = {stored: cut[role] for stored, role in self._roles.items() if role in cut}
        self._read: dict[str, tuple[str, NDArray[Any]]] = {}

    def take(self, stored: str, array: NDArray[Any]) -> bool:
        """Take a piece; say whether it was the last one."""
        self._read[self._roles[stored]] = stored, array
        return len(self._read) == len(self.indices)

    def result(self) -> Any:
        """Return the parameter, or the part of it, and forget its pieces."""
        read, self._read = self._read, {}
        if self._key is None:
            return self._pieces.over({role: read[role] for role in self._roles.values()})
        first, last = self._rows
        parts = {role: array for role, (_, array) in read.items()}
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
        row: int = self._table.find(name)
        if row < 0:
            raise not_found(self._model, name)
        return row

    def names(self, _: object) -> Iterator[str]:
        return iter(self._model)

    def of(self, number: int) -> Row:
        row: Row = self._table.row(number)
        return row


class ParameterPlan(ReadPlan):
    """A plan of the parameters of a quantised checkpoint: see `weightmap.plan`.

    `reads` and byte counts are for stored tensors. `run` yields a parameter with the last of its pieces.
    """

    def __init__(self, spans: Spans, model: TensorFile, wants: Any, options: PlanOptions) -> None:
        try:
            chosen = dict(_chosen(spans, model, wants, options))
        except TensorFileError as error:
            raise error.located(path=name_of(spans.model), format=spans.model.format) from None
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
        super().__init__(spans, *resolve_wants(spans, stored), options)

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
                yield part.name, part.result()


def _chosen(spans: Spans, model: TensorFile, wants: Any, options: PlanOptions) -> Iterator[tuple[str, Any]]:
    """Yield the names of the wanted parameters, in file order, and their indices: None for all of one."""
    names = list(model)
    rows = parts_of(model)[1].table
    if wants is None:
        stored = set(spans.names(divided(spans, options.rank, options.world_size)))
        for number, name in enumerate(names):
            geometry = rows.row(number).geometry
            first = next(iter(geometry.rows.values()))[0] if isinstance(geometry, Pieces) else name
            if first in stored:
                yield name, None
    elif isinstance(wants, Shard):
        for number, name in enumerate(names):
            count = len(rows.row(number).shape)
            yield name, wants if -count <= wants.dim < count else None
    else:
        parameters: Any = _Names(model)
        numbers, indices = resolve_wants(parameters, wants)
        for number in numbers.tolist():
            key = indices.get(number)
            if isinstance(key, Indices):
                several = tuple(key)
                if len(several) != 1:
                    raise PlanError(f"index of parameter {quoted(names[number])}", expected="a single one")
                (key,) = several
            yield names[number], key


@names_moved
def plan(
    source: Model,
    wants: Wants = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    local_rank: int = 0,
    local_world_size: int = 1,
    gap: int = 64 << 10,
    max_over_read: float | None = None,
    chunk: int = 16 << 20,
    budget: int | None = None,
) -> ReadPlan:
    """Plan which bytes of a model to read, and in which order.

    Parameters
    ----------
    source : TensorFile, or what `open` takes
        A handle stays open; anything else is opened, and closed with the plan. For ``f.weights``, the plan reads only
        what decodes the requested rows. An index gives decoded elements, of the model's type; each parameter may have
        one, and `ReadPlan.run` takes neither `into` nor `cut`.
    wants : optional
        * None: every tensor, or with `world_size` this rank's share: whole tensors, divided by bytes;
        * names of tensors, or a predicate on `TensorInfo`;
        * pairs of a name and an index, several for a tensor if need be;
        * what `shard` returns for a name: that slice of every tensor; tensors without its dimension are whole;
        * a mapping from names to indices, such as ``{name: np.s_[:, 128:256]}`` or what `shard` returns: only the bytes
          that hold these elements. Indices are integers, slices and ``...``; None wants the whole tensor. Quantised
          tensors are read in whole blocks.
    rank, world_size : int
        This reader and the number of readers. `wants` are for *this* rank: with them, nothing is divided.
    local_rank, local_world_size : int
        The same among the readers on this machine, which divide the work of `ReadPlan.warm`.
    gap : int
        Wanted ranges less than this many bytes apart become one read. From a disk, smaller gaps within a tensor, such
        as between columns, are read too, up to eight times the wanted bytes.
    max_over_read : float, optional
        Ranges are joined as long as the read has at most this many times its wanted bytes; 1.1 when not given. In a
        store, ranges of one tensor, such as columns, are then joined wherever they are less than 512 KiB apart: that
        takes less time than another request.
    chunk : int
        Bytes read at once.
    budget : int, optional
        Bytes of memory that `ReadPlan.warm` and `ReadPlan.run` may fill; by default what memory and control group
        leave, divided among the local readers.

    Returns
    -------
    ReadPlan

    Raises
    ------
    PlanError
        When an index does not fit its tensor, a rank is not below its world_size, or a number is too small.
    TensorNotFoundError
        For a name that no tensor has.
    FormatError, OSError
        As of `open`.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.safetensors", {"w": np.arange(32, dtype=np.float32).reshape(8, 4)})
    >>> p = wm.plan("model.safetensors", {"w": wm.shard("w", 0, rank=1, world_size=4)})
    >>> p.names, p.nbytes, p.wanted_nbytes
    (('w',), 32, 32)
    """
    number, count = checked_rank(rank, world_size)
    local_rank, local_world_size = checked_rank(local_rank, local_world_size, ("local_rank", "local_world_size"))
    ratio = None if max_over_read is None else as_float("max_over_read", max_over_read)
    if ratio is not None and not 1 <= ratio < math.inf:
        raise PlanError("max_over_read", field="max_over_read", actual=ratio, expected="a finite number, at least 1")
    options = PlanOptions(
        rank=number,
        world_size=count,
        local_rank=local_rank,
        local_world_size=local_world_size,
        gap=at_least(0, "gap", gap),
        max_over_read=ratio,
        chunk=min(at_least(1, "chunk", chunk), INT64_MAX),  # the reads of columns count in 64 bits
        budget=None if budget is None else at_least(1, "budget", budget),
        owned=not isinstance(source, TensorFile),
        divided=wants is None and count > 1,
    )
    with ExitStack() as stack:
        model = stack.enter_context(as_handle(source, private=False))
        stored = stored_model(model)
        spans = spans_of(stored)
        try:
            if parts_of(model)[1].table is not parts_of(stored)[1].table:
                reads: ReadPlan = ParameterPlan(spans, model, wants, options)
            elif wants is None:
                reads = ReadPlan(spans, divided(spans, number, count), {}, options)
            else:
                reads = ReadPlan(spans, *resolve_wants(spans, wants), options)
        except TensorFileError as error:
            raise error.located(path=name_of(model)) from None
        stack.pop_all()  # the plan closes what was opened here
        return reads
