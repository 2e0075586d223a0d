"""`load`: the tensors of a plan on a device."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from weightmap.core.model.codes import check_computable
from weightmap.core.model.internals import check_unchanged
from weightmap.device._groups import groups_of, groups_of_parameters
from weightmap.device._loader import Loader
from weightmap.device._slots import Worker
from weightmap.errors import PlanError
from weightmap.plans.delivery import check_when
from weightmap.plans.planning import ParameterPlan
from weightmap.plans.wants import at_least

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weightmap.device._backend import Backend, Exchange
    from weightmap.device._cargo import ArrayCargo
    from weightmap.device._groups import Group
    from weightmap.device._slots import Staging
    from weightmap.plans.delivery import Check
    from weightmap.plans.read_plan import ReadPlan


def load(
    plan: ReadPlan,
    backend: Backend,
    *,
    dtype: str | None = None,
    verify: Check = False,
    group: int | None = None,
    staging: Staging | None = None,
    exchange: Exchange | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a plan on a device, in its order.

    Parameters
    ----------
    plan : ReadPlan
        What to load; parts of tensors are read alone. Parameters (``weights=True``) are decoded by the CPU, and every
        rank reads its own.
    backend : Backend
    dtype : str, optional
        The type of floating-point and quantised tensors. By default the file's, and float32 for quantised ones. The
        device converts them, with its own rounding.
    verify : bool or "last"
        Check the checksums that cover a tensor, on the bytes that went to the device, before it is handed out. With
        "last", each checksum is checked only before its last tensor: the ones before are handed out unchecked.
    group : int, optional
        Bytes of tensors that share one piece of device memory; by default one piece per file, or per parameter. With
        ``verify=True``, all tensors of one checksum stay together. While a group is used, the next one is read: three
        pieces are alive at once where a loop still holds the last tensor of the group before.
    staging : Staging, optional
    exchange : Exchange, optional
        Ranks that load the same plan: each reads a part of the bytes of each group, and gets the others from the other
        devices. An error of one is an error of all. Where one ends otherwise, or hangs, the others get an error when
        their exchange raises it: `torch.distributed` does so at once, or after the timeout of the process group.

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
    if dtype is not None and not isinstance(plan, ParameterPlan):
        check_computable(plan.file, set(plan.names).__contains__, "dtype=")
    if isinstance(plan, ParameterPlan):
        exchange = None
        groups = groups_of_parameters(plan, backend, dtype, group, verify=verify)
    else:
        groups = groups_of(plan, backend, dtype, group, exchange, verify=verify)
    yield from _Turns(Loader(backend, staging), groups, exchange)


def sent(loader: Loader, made: ArrayCargo) -> Any:
    """Send an array to memory of its own on the device; return the tensor."""
    backend = loader.backend
    backend.check(made.dtype)
    buffer = backend.allocate(made.nbytes)
    try:
        loader.send(made, buffer, 0)
        loader.finish().wait()
    except BaseException:
        loader.give_up([buffer])
        raise
    ((_, tensor),) = made.delivered(backend, buffer, 0)
    return tensor


class _Turns:
    """Groups in their order: each is filled while the one before is used."""

    def __init__(self, loader: Loader, groups: Iterable[Group], exchange: Exchange | None) -> None:
        self._loader, self._left, self._exchange = loader, iter(groups), exchange
        self._worker = Worker()
        self._alive: list[Group] = []  # with memory that nobody has yet
        self._postponed = False
        self._failed: BaseException | None = None  # raised when its turn comes

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        failed: BaseException | None = None
        try:
            group = self._first()
            while group is not None or self._failed is not None:
                failed, self._failed = self._failed, None
                following = self._begun() if failed is None else None
                _told(self._exchange, failed)
                if group is not None:
                    group.meet()
                    yield from group.tensors(self._loader.backend)
                    self._alive.remove(group)
                self._finish(following)
                group = following
        except BaseException as error:
            failed = error
            raise
        finally:
            self._loader.stop()
            interrupt = self._worker.end(partial(_close, self._loader, self._alive, failed))
            failed = None
            if interrupt is not None:
                raise interrupt

    def _reserve(self, group: Group, *, divide: bool) -> None:
        if group not in self._alive:
            self._alive.append(group)
        # Ranks have the same groups.
        rest = group.reserve(self._loader.backend, divide=divide and self._exchange is None)
        self._left = chain(rest, self._left)

    def _first(self) -> Group | None:
        """Fill the first group."""
        group = None
        try:
            self._loader.__enter__()
            group = next(self._left, None)
            if group is not None:
                self._reserve(group, divide=True)
                group.fill(self._loader)
        except Exception as error:  # noqa: BLE001 - raised when the other ranks know of it
            self._failed = error
        return group

    def _begun(self) -> Group | None:
        """Begin to fill the next group; where there is no memory for it yet, that is postponed."""
        group = None
        try:
            group = next(self._left, None)
            if group is not None:
                self._postponed = True
                self._reserve(group, divide=False)
                self._postponed = False
                self._worker.begin(partial(group.fill, self._loader))
        except Exception as error:  # noqa: BLE001 - raised when what was there before is handed out
            self._failed = error
        return group

    def _finish(self, group: Group | None) -> None:
        """Return when the next group is filled, or cannot be."""
        if group is None:
            return
        try:
            if self._postponed:  # what was handed out may be free by now
                self._failed, self._postponed = None, False
                self._reserve(group, divide=True)
                group.fill(self._loader)
            else:
                self._worker.wait()
        except Exception as error:  # noqa: BLE001 - raised when the other ranks know of it
            self._failed = error


def _told(exchange: Exchange | None, failed: BaseException | None) -> None:
    """Raise the error of this rank, or of another one, once all know of it."""
    told = [] if exchange is None else exchange.tell(None if failed is None else repr(failed))
    try:
        if failed is not None:
            raise failed
    finally:
        failed = None  # its traceback has this frame: together they would keep files open
    for rank, error in enumerate(told):
        if error is not None:
            raise PlanError(f"rank {rank} could not read its part: {error}")


def _close(loader: Loader, alive: list[Group], failed: BaseException | None) -> None:
    """Free the memory that nobody has, and give the slots back."""
    buffers = [buffer for group in alive for buffer in group.buffers]
    try:
        if buffers:
            loader.give_up(buffers)
    finally:
        loader.__exit__(None if failed is None else type(failed), failed, None)
