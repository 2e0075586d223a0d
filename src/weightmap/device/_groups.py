"""Groups of tensors that are handed out together: their device memory, what is read for them, and by which rank."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.dtypes import FLOATING
from weightmap.core.model.internals import parts_of
from weightmap.device._cargo import ALIGN, AnyCargo, ArrayCargo, Cargo, Crate
from weightmap.errors import TensorFileError, counted
from weightmap.plans.delivery import Sums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row
    from weightmap.device._backend import Backend, Event, Exchange
    from weightmap.device._loader import Loader
    from weightmap.plans.delivery import Check
    from weightmap.plans.planning import ParameterPlan
    from weightmap.plans.read_plan import ReadPlan


# Bytes of small tensors that are one item of a group.
_TOGETHER = 4 << 20


class Told:
    """The checksums of bytes that this rank has read, for those that all ranks tell each other."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int]] = []

    def feed(self, starts: Iterable[int], sizes: Iterable[int], crcs: Iterable[int]) -> None:
        """As of `Sums`."""
        self.runs += zip(starts, sizes, crcs, strict=True)

    def finish(self, end: int) -> None:
        """As of `Sums`, which learns it when all ranks have told what they read."""


class Group:
    """Tensors of one file that are handed out together, and the pieces of device memory that they share.

    Attributes
    ----------
    buffers : list
        The pieces, until the first tensor is handed out.
    """

    def __init__(
        self,
        source: Source,
        ahead: Source,
        cargos: list[AnyCargo],
        sums: Sums | None,
        exchange: Exchange | None = None,
        *,
        cuts: bool,
    ) -> None:
        self.buffers: list[Any] = []
        self._source, self._ahead, self._cargos, self._sums, self._cuts = source, ahead, cargos, sums, cuts
        self._exchange, self._told = exchange, Told()
        self._places: list[tuple[AnyCargo, Any, int]] = []
        self._event: Event | None = None

    def reserve(self, backend: Backend, *, divide: bool) -> list[Group]:
        """Allocate memory: one piece, or, if `divide` and there is no room for it, several ones.

        Returns what is left of the group, where that may be handed out later: in smaller groups, for a caller holds
        the last tensor of one while the next is allocated.
        """
        waiting = [self._cargos]
        while waiting:
            cargos = waiting.pop()
            sizes = np.array([cargo.nbytes + -cargo.nbytes % ALIGN for cargo in cargos], np.int64)
            total = int(sizes.sum())
            try:
                buffer = backend.allocate(total)
            except Exception as error:
                if divide and len(cargos) > 1:
                    half = int(np.searchsorted(np.cumsum(sizes), total // 2)) + 1
                    half = min(half, len(cargos) - 1)
                    waiting += [cargos[half:], cargos[:half]]
                    continue
                error.add_note(
                    f"while asking for {total} bytes for {counted(len(cargos), 'tensor')} of {self._source.name}"
                )
                raise
            if waiting and self._cuts:
                # So much there is room for, and half of it beside as much that a caller still holds.
                backend.free(buffer)
                self._cargos, *left = _divided(self._cargos, total // 2, None)
                self.reserve(backend, divide=False)
                return [Group(self._source, self._ahead, later, self._sums, cuts=True) for later in left]
            self.buffers.append(buffer)
            self._places += zip(cargos, [buffer] * len(cargos), (np.cumsum(sizes) - sizes).tolist(), strict=True)
        return []

    def fill(self, loader: Loader) -> None:
        """Read the tensors, or the part of this rank, and let the device copy them."""
        exchange = self._exchange
        first, last = 0, math.inf
        if exchange is not None:
            first, last = self._bounds(exchange.world_size)[exchange.rank :][:2]
        found = []
        for cargo, buffer, place in self._places:
            low, high = max(first - place, 0), int(min(last - place, cargo.nbytes))
            if low < high or not cargo.nbytes:
                part = None if (low, high) == (0, cargo.nbytes) else (low, high)
                begin = cargo.begin
                ends = (begin, cargo.end) if part is None or cargo.cut else (begin + low, begin + high)
                found.append((cargo, buffer, place, part, *ends))
        sums: Any = self._sums if exchange is None or self._sums is None else self._told
        try:
            if found:
                loader.expect(self._ahead, min(one[4] for one in found), max(one[5] for one in found), sums)
            for cargo, buffer, place, part, _, _ in found:
                loader.send(cargo, buffer, place, self._ahead, part)
            self._event = loader.finish()
            self._ahead.check_unchanged()
        except TensorFileError as error:
            raise error.located(path=self._source.name, format=self._source.format) from None

    def _bounds(self, ranks: int) -> list[int]:
        """Return where the parts of the ranks begin and end in the memory: about equal, within divisible tensors."""
        ends = [place + cargo.nbytes + -cargo.nbytes % ALIGN for cargo, _, place in self._places]
        bounds = [0]
        for rank in range(1, ranks):
            wanted = ends[-1] * rank // ranks
            cargo, _, place = self._places[number := min(bisect_right(ends, wanted), len(ends) - 1)]
            if cargo.divisible:
                bounds.append(wanted // ALIGN * ALIGN)
            else:
                bounds.append(place if wanted - place < ends[number] - wanted else ends[number])
        return [*bounds, ends[-1]]

    def meet(self) -> None:
        """Exchange parts with the other ranks."""
        exchange = self._exchange
        if exchange is None:
            return
        if self._event is not None:
            self._event.wait()
        if self._sums is not None:
            runs = sorted(run for told in exchange.tell(self._told.runs) for run in told)
            self._sums.feed(*zip(*runs, strict=True)) if runs else None
            self._sums.finish(max(cargo.end for cargo, _, _ in self._places))
        for buffer in self.buffers:
            exchange.share(buffer, self._bounds(exchange.world_size))

    def tensors(self, backend: Backend) -> Iterator[tuple[str, Any]]:
        """Yield the tensors, once the device has all of them; what was handed out is not held here."""
        if self._event is not None:
            self._event.wait()
        made = self._made(backend)
        self.buffers, self._places = [], []
        while made:
            yield made.pop()

    def _made(self, backend: Backend) -> list[tuple[str, Any]]:
        """Return names and tensors, the first one last."""
        made = [pair for cargo, buffer, place in self._places for pair in cargo.delivered(backend, buffer, place)]
        made.reverse()
        return made


def groups_of(
    plan: ReadPlan, backend: Backend, dtype: str | None, most: int | None, exchange: Exchange | None, *, verify: Check
) -> Iterator[Group]:
    """Yield the groups of a plan, in the order of its files."""
    content = parts_of(plan.file)[1]
    for source, wanted, reads in plan.parts():
        sums = None
        try:
            cargos = list[AnyCargo](
                _cargos(plan, backend, wanted, dtype, _TOGETHER if most is None else min(most, _TOGETHER))
            )
            if verify:
                begins, ends = [cargo.begin for cargo in cargos], [cargo.end for cargo in cargos]
                sums = Sums(source, content.sums(source), begins, ends, last=verify == "last")
            ahead = source.ahead(reads)
        except TensorFileError as error:
            raise error.located(path=source.name, format=source.format) from None
        # Divided before anything is read: checksums that were checked are forgotten.
        for together in list(_divided(cargos, most, sums)):
            yield Group(source, ahead, together, sums, exchange, cuts=verify is not True)


def groups_of_parameters(
    plan: ParameterPlan, backend: Backend, dtype: str | None, most: int | None, *, verify: Check
) -> Iterator[Group]:
    """Yield the groups of a plan of parameters, which are decoded when a group is filled; by default one each."""
    source = parts_of(plan.file)[0]
    together, nbytes = list[AnyCargo](), 0
    for name, array in plan.run(verify=verify):
        cargo = ArrayCargo(name, array, dtype if array.dtype.name in FLOATING else None)
        backend.check(cargo.dtype)
        if together and nbytes + cargo.nbytes > (most or 0):
            yield Group(source, source, together, None, cuts=False)
            together, nbytes = [], 0
        together.append(cargo)
        nbytes += cargo.nbytes
        if nbytes >= (most or 0):  # now: an error of the next one is due later
            yield Group(source, source, together, None, cuts=False)
            together, nbytes = [], 0
    if together:
        yield Group(source, source, together, None, cuts=False)


def _cargos(
    plan: ReadPlan, backend: Backend, wanted: Iterable[tuple[int, Any]], dtype: str | None, most: int
) -> Iterator[Cargo | Crate]:
    """Yield the tensors that are wanted of a file; small ones in crates of about `most` bytes."""
    small: list[tuple[str, Row]] = []
    spans, nbytes, known = plan.spans, 0, set()
    for number, key in wanted:
        name, row = spans.name(number), spans.of(number)
        crated = key is None and Crate.takes(row, dtype)
        if small and (not crated or nbytes + row.nbytes + ALIGN > most):
            yield _crate(small)
            small, nbytes = [], 0
        if not crated:
            yield Cargo(backend, name, row, key, dtype)
            continue
        if row.dtype.name not in known:
            backend.check(row.dtype.name)
            known.add(row.dtype.name)
        small.append((name, row))
        nbytes += row.nbytes + -row.nbytes % ALIGN
    if small:
        yield _crate(small)


def _crate(small: list[tuple[str, Row]]) -> Crate:
    names, rows = zip(*small, strict=True)
    return Crate(list(names), list(rows))


def _divided(cargos: list[AnyCargo], most: int | None, sums: Sums | None) -> Iterator[list[AnyCargo]]:
    """Yield groups of tensors to send: at most `most` bytes, or one tensor, or all tensors of one checksum."""
    begin = nbytes = end = 0
    for number, cargo in enumerate(cargos):
        over = most is not None and number > begin and nbytes + cargo.nbytes > most
        if over and (sums is None or not sums.join(end, cargo.begin)):
            yield cargos[begin:number]
            begin, nbytes = number, 0
        nbytes += cargo.nbytes
        end = max(end, cargo.end)
    yield cargos[begin:]
