"""`load`: the tensors of a plan on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.device._cargo import Cargo
from weightmap.device._loader import ALIGN, Loader
from weightmap.device._sums import Sums
from weightmap.errors import TensorFileError, counted
from weightmap.model.parts import check_unchanged, name_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightmap.device._backend import Backend
    from weightmap.device._slots import Staging
    from weightmap.io.source import Source
    from weightmap.model.file import TensorFile
    from weightmap.plans.read_plan import ReadPlan

__all__ = ["load"]


def load(
    plan: ReadPlan,
    backend: Backend,
    *,
    dtype: str | None = None,
    verify: bool = False,
    group: int | None = None,
    staging: Staging | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a plan on a device, in its order.

    Parameters
    ----------
    plan : ReadPlan
        What to load; parts of tensors are read alone.
    backend : Backend
    dtype : str, optional
        The type of floating-point and quantised tensors. By default that of the file, and float32 for quantised ones.
        The device converts them, as it rounds.
    verify : bool
        Check the checksums that cover a tensor, on the bytes that went to the device, before it is handed out.
    group : int, optional
        Bytes of tensors that share one piece of device memory; a file has one by default. What one checksum covers
        stays together.
    staging : Staging, optional

    Raises
    ------
    ChecksumError
        With `verify`, for bytes that are not those that were written.
    TruncatedError, FileChangedError
        When a file changes before its last tensor was handed out.
    PlanError, UnsupportedError, QuantError
        As of `ReadPlan.run`, and for types that the device lacks.
    """
    check_unchanged(plan.file)
    with Loader(backend, staging) as loader:
        for file, wanted, reads in plan.parts():
            try:
                yield from _of_file(loader, plan, file, wanted, reads, dtype, group, verify=verify)
            except TensorFileError as error:
                raise error.located(path=name_of(file), format=file.format) from None


def _of_file(
    loader: Loader,
    plan: ReadPlan,
    file: TensorFile,
    wanted: Sequence[tuple[int, Any]],
    reads: Sequence[tuple[int, int]],
    dtype: str | None,
    group: int | None,
    *,
    verify: bool,
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that a plan has of one file."""
    source, content, _ = parts_of(file)
    spans = plan.spans
    cargos = [Cargo(loader.backend, spans.name(number), spans.ref(number), key, dtype) for number, key in wanted]
    sums = Sums(source, content.sums(), [cargo.ref.row for cargo in cargos]) if verify else None
    ahead = source.ahead(reads)
    for together in _groups(cargos, group, sums):
        yield from _together(loader, file, together, ahead, sums)


def _groups(cargos: list[Cargo], most: int | None, sums: Sums | None) -> Iterator[list[Cargo]]:
    """Yield tensors that go over together: at most so many bytes, or one tensor, or what one checksum covers."""
    begin = nbytes = end = 0
    for number, cargo in enumerate(cargos):
        row = cargo.ref.row
        over = most is not None and number > begin and nbytes + cargo.nbytes > most
        if over and (sums is None or not sums.join(end, row.offset)):
            yield cargos[begin:number]
            begin, nbytes = number, 0
        nbytes += cargo.nbytes
        end = max(end, row.offset + row.nbytes)
    yield cargos[begin:]


def _together(
    loader: Loader, file: TensorFile, cargos: list[Cargo], source: Source, sums: Sums | None
) -> Iterator[tuple[str, Any]]:
    """Yield tensors that share one piece of device memory, when all of them are there and checked."""
    backend = loader.backend
    sizes = np.array([cargo.nbytes + -cargo.nbytes % ALIGN for cargo in cargos], np.int64)
    places = (np.cumsum(sizes) - sizes).tolist()
    try:
        buffer = backend.allocate(int(sizes.sum()))
    except Exception as error:
        error.add_note(
            f"while asking for {int(sizes.sum())} bytes for {counted(len(cargos), 'tensor')} of {name_of(file)}"
        )
        raise
    try:
        rows = [cargo.ref.row for cargo in cargos]
        begin, end = min(row.offset for row in rows), max(row.offset + row.nbytes for row in rows)
        if sums is not None:
            sums.upto(end)
        loader.expect(source, begin, end, sums)
        for cargo, place in zip(cargos, places, strict=True):
            # Of a tensor that is stored otherwise, its own source makes the bytes.
            own = cargo.ref.source
            loader.send(cargo, buffer, place, source if own is parts_of(file)[0] else own)
        loader.finish()
        check_unchanged(file)
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
