"""`load`: the tensors of a plan on a device."""

from __future__ import annotations

import math
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.device._cargo import ArrayCargo, Cargo
from weightmap.device._loader import ALIGN, Loader
from weightmap.device._worker import Worker
from weightmap.dtypes import DTYPES, FLOATING
from weightmap.errors import TensorFileError, counted, quoted
from weightmap.model.parts import check_unchanged, parts_of
from weightmap.plans.indices import at_least
from weightmap.plans.parameters import ParameterPlan
from weightmap.plans.sums import Sums, check_when

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weightmap.device._backend import Backend, Event
    from weightmap.device._slots import Staging
    from weightmap.io.source import Source
    from weightmap.plans.read_plan import ReadPlan
    from weightmap.plans.sums import Check


def load(
    plan: ReadPlan,
    backend: Backend,
    *,
    dtype: str | None = None,
    verify: Check = False,
    group: int | None = None,
    staging: Staging | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a plan on a device, in its order.

    Parameters
    ----------
    plan : ReadPlan
        What to load; parts of tensors are read alone. Parameters (``weights=True``) are decoded by the CPU.
    backend : Backend
    dtype : str, optional
        The type of floating-point and quantised tensors. By default the file's, and float32 for quantised ones. The
        device converts them, with its own rounding.
    verify : bool or "last"
        Check the checksums that cover a tensor, on the bytes that went to the device, before it is handed out. With
        "last", each checksum is checked only before its last tensor: the ones before are handed out unchecked.
    group : int, optional
        Bytes of tensors that share one piece of device memory; by default one piece per file. With ``verify=True``,
        all tensors of one checksum stay together. While a group is used, the next one is read: three pieces are alive
        at once where a loop still holds the last tensor of the group before.
    staging : Staging, optional

    Notes
    -----
    A piece of memory lives as long as one of its tensors: whoever keeps a few of many copies them. Where the device has
    no room for a piece, what was handed out before is waited for, and the tensors are divided among smaller pieces.

    Raises
    ------
    ChecksumError
        With `verify`, for bytes other than those written.
    TruncatedError, FileChangedError
        When a file changes before its last tensor was handed out.
    PlanError, UnsupportedError, QuantError
        As from `ReadPlan.run` and `Staging.checked`, and for types that the device lacks.
    """
    check_when(verify)
    group = None if group is None else at_least(1, "group", group)
    check_unchanged(plan.file)
    if isinstance(plan, ParameterPlan):
        with Loader(backend, staging) as loader:
            for name, array in plan.run(verify=verify):
                kind = dtype if array.dtype.name in FLOATING else None
                yield name, sent(loader, ArrayCargo(f"parameter {quoted(name)}", array, kind))
        return
    yield from _in_turn(Loader(backend, staging), _groups(plan, backend, dtype, group, verify=verify))


def sent(loader: Loader, made: ArrayCargo) -> Any:
    """Send an array to memory of its own on the device; return the tensor."""
    backend = loader.backend
    backend.check(made.dtype)
    buffer = backend.allocate(math.prod(made.shape) * DTYPES[made.dtype].bits // 8)
    try:
        loader.send(made, buffer, 0)
        loader.finish().wait()
    except BaseException:
        loader.give_up([buffer])
        raise
    return backend.tensor(buffer, 0, made.dtype, made.shape)


class _Group:
    """Tensors of one file that are handed out together, and the pieces of device memory that they share.

    Attributes
    ----------
    buffers : list
        The pieces, until the first tensor is handed out.
    """

    def __init__(self, source: Source, ahead: Source, cargos: list[Cargo], sums: Sums | None, *, cuts: bool) -> None:
        self.buffers: list[Any] = []
        self._source, self._ahead, self._cargos, self._sums, self._cuts = source, ahead, cargos, sums, cuts
        self._places: list[tuple[Cargo, Any, int]] = []
        self._event: Event | None = None

    def reserve(self, backend: Backend, *, divide: bool) -> list[_Group]:
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
                return [_Group(self._source, self._ahead, later, self._sums, cuts=True) for later in left]
            self.buffers.append(buffer)
            self._places += zip(cargos, [buffer] * len(cargos), (np.cumsum(sizes) - sizes).tolist(), strict=True)
        return []

    def fill(self, loader: Loader) -> None:
        """Read the tensors, and let the device copy them."""
        rows = [cargo.ref for cargo, _, _ in self._places]
        begin, end = min(row.offset for row in rows), max(row.offset + row.nbytes for row in rows)
        try:
            loader.expect(self._ahead, begin, end, self._sums)
            for cargo, buffer, place in self._places:
                loader.send(cargo, buffer, place, self._ahead)
            self._event = loader.finish()
            self._ahead.check_unchanged()
        except TensorFileError as error:
            raise error.located(path=self._source.name, format=self._source.format) from None

    def tensors(self, backend: Backend) -> Iterator[tuple[str, Any]]:
        """Yield the tensors, once the device has all of them; what was handed out is not held here."""
        if self._event is not None:
            self._event.wait()
        made = [
            (cargo.name, cargo.delivered(backend, backend.tensor(buffer, place, cargo.dtype, cargo.shape)))
            for cargo, buffer, place in reversed(self._places)
        ]
        self.buffers, self._places = [], []
        while made:
            yield made.pop()


def _groups(
    plan: ReadPlan, backend: Backend, dtype: str | None, most: int | None, *, verify: Check
) -> Iterator[_Group]:
    """Yield the groups of a plan, in the order of its files."""
    content = parts_of(plan.file)[1]
    for source, wanted, reads in plan.parts():
        spans, sums = plan.spans, None
        try:
            cargos = [Cargo(backend, spans.name(number), spans.of(number), key, dtype) for number, key in wanted]
            if verify:
                rows = [cargo.ref for cargo in cargos]
                begins, ends = [row.offset for row in rows], [row.offset + row.nbytes for row in rows]
                sums = Sums(source, content.sums(source), begins, ends, last=verify == "last")
            ahead = source.ahead(reads)
        except TensorFileError as error:
            raise error.located(path=source.name, format=source.format) from None
        # Divided before anything is read: checksums that were checked are forgotten.
        for together in list(_divided(cargos, most, sums)):
            yield _Group(source, ahead, together, sums, cuts=verify is not True)


def _divided(cargos: list[Cargo], most: int | None, sums: Sums | None) -> Iterator[list[Cargo]]:
    """Yield groups of tensors to send: at most `most` bytes, or one tensor, or all tensors of one checksum."""
    begin = nbytes = end = 0
    for number, cargo in enumerate(cargos):
        row = cargo.ref
        over = most is not None and number > begin and nbytes + cargo.nbytes > most
        if over and (sums is None or not sums.join(end, row.offset)):
            yield cargos[begin:number]
            begin, nbytes = number, 0
        nbytes += cargo.nbytes
        end = max(end, row.offset + row.nbytes)
    yield cargos[begin:]


def _in_turn(loader: Loader, groups: Iterable[_Group]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of groups, and fill each group while the one before is used."""
    backend, left, worker = loader.backend, iter(groups), Worker()
    alive: list[_Group] = []  # with memory that nobody has yet

    def reserved(group: _Group, *, divide: bool) -> _Group:
        nonlocal left
        if group not in alive:
            alive.append(group)
        left = chain(group.reserve(backend, divide=divide), left)
        return group

    failed: BaseException | None = None
    try:
        loader.__enter__()
        group = next(left, None)
        if group is not None:
            reserved(group, divide=True).fill(loader)
        while group is not None:
            following = postponed = None
            try:
                following = next(left, None)
                if following is not None:
                    postponed = following
                    reserved(following, divide=False)
                    postponed = None
                    worker.begin(partial(following.fill, loader))
            except Exception as error:  # noqa: BLE001 - raised when those before are handed out
                failed = error
            yield from group.tensors(backend)
            alive.remove(group)
            if postponed is not None:  # what was handed out may be free by now
                failed = None
                reserved(postponed, divide=True).fill(loader)
            elif failed is not None:
                raise failed  # noqa: TRY301 - its turn has come
            elif following is not None:
                worker.wait()
            group = following
    except BaseException as error:
        failed = error
        raise
    finally:
        loader.stop()
        interrupt = worker.end(partial(_close, loader, alive, failed))
        failed = None
        if interrupt is not None:
            raise interrupt


def _close(loader: Loader, alive: list[_Group], failed: BaseException | None) -> None:
    """Free the memory that nobody has, and give the slots back."""
    buffers = [buffer for group in alive for buffer in group.buffers]
    try:
        if buffers:
            loader.give_up(buffers)
    finally:
        loader.__exit__(None if failed is None else type(failed), failed, None)
