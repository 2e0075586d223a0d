"""`load`: the tensors of a plan on a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.device._cargo import ArrayCargo, Cargo
from weightmap.device._loader import ALIGN, Loader
from weightmap.dtypes import DTYPES, FLOATING
from weightmap.errors import TensorFileError, counted, quoted
from weightmap.model.parts import check_unchanged, parts_of
from weightmap.plans.indices import at_least
from weightmap.plans.parameters import ParameterPlan
from weightmap.plans.sums import Sums, check_when

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightmap.device._backend import Backend
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
        all tensors of one checksum stay together.
    staging : Staging, optional

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
    with Loader(backend, staging) as loader:
        if isinstance(plan, ParameterPlan):
            for name, array in plan.run(verify=verify):
                kind = dtype if array.dtype.name in FLOATING else None
                yield name, sent(loader, ArrayCargo(f"parameter {quoted(name)}", array, kind))
            return
        for source, wanted, reads in plan.parts():
            try:
                yield from _of_file(loader, plan, source, wanted, reads, dtype, group, verify=verify)
            except TensorFileError as error:
                raise error.located(path=source.name, format=source.format) from None


def sent(loader: Loader, made: ArrayCargo) -> Any:
    """Send an array to memory of its own on the device; return the tensor."""
    backend = loader.backend
    backend.check(made.dtype)
    buffer = backend.allocate(math.prod(made.shape) * DTYPES[made.dtype].bits // 8)
    try:
        loader.send(made, buffer, 0)
        loader.finish()
    except BaseException:
        loader.give_up(buffer)
        raise
    return backend.tensor(buffer, 0, made.dtype, made.shape)


def _of_file(
    loader: Loader,
    plan: ReadPlan,
    source: Source,
    wanted: Sequence[tuple[int, Any]],
    reads: Sequence[tuple[int, int]],
    dtype: str | None,
    group: int | None,
    *,
    verify: Check,
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that a plan has of one file."""
    spans, content = plan.spans, parts_of(plan.file)[1]
    cargos = [Cargo(loader.backend, spans.name(number), spans.of(number), key, dtype) for number, key in wanted]
    sums = None
    if verify:
        rows = [cargo.ref for cargo in cargos]
        begins, ends = [row.offset for row in rows], [row.offset + row.nbytes for row in rows]
        sums = Sums(source, content.sums(source), begins, ends, last=verify == "last")
    ahead = source.ahead(reads)
    for together in _groups(cargos, group, sums):
        yield from _together(loader, together, ahead, sums)


def _groups(cargos: list[Cargo], most: int | None, sums: Sums | None) -> Iterator[list[Cargo]]:
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


def _together(loader: Loader, cargos: list[Cargo], source: Source, sums: Sums | None) -> Iterator[tuple[str, Any]]:
    """Yield tensors that share one piece of device memory, once all have arrived and are checked."""
    backend = loader.backend
    sizes = np.array([cargo.nbytes + -cargo.nbytes % ALIGN for cargo in cargos], np.int64)
    places = (np.cumsum(sizes) - sizes).tolist()
    try:
        buffer = backend.allocate(int(sizes.sum()))
    except Exception as error:
        error.add_note(
            f"while asking for {int(sizes.sum())} bytes for {counted(len(cargos), 'tensor')} of {source.name}"
        )
        raise
    try:
        rows = [cargo.ref for cargo in cargos]
        begin, end = min(row.offset for row in rows), max(row.offset + row.nbytes for row in rows)
        loader.expect(source, begin, end, sums)
        for cargo, place in zip(cargos, places, strict=True):
            loader.send(cargo, buffer, place, source)
        loader.finish()
        source.check_unchanged()
        made = [
            (cargo.name, cargo.delivered(backend, backend.tensor(buffer, place, cargo.dtype, cargo.shape)))
            for cargo, place in zip(cargos, places, strict=True)
        ]
    except BaseException:
        loader.give_up(buffer)
        raise
    del buffer
    while made:
        yield made.pop(0)
