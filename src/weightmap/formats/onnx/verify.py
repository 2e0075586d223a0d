"""The checks of `TensorFile.verify` in a model of ONNX: its fields again, made tensors, checksums of other files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import native
from weightmap.errors import ChecksumError, FileChangedError, counted, quoted
from weightmap.formats.onnx import Side, own_table, scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.formats._verification import Verification


def verify(
    model: native.Initialisers, sides: dict[str, Side], metadata: Callable[[], object], run: Verification
) -> None:
    """Check that the fields have not changed since opening, and compare side files with their SHA-1."""
    source = run.source
    if _contents(scan(source, run.options)) != _contents(model):
        raise FileChangedError("its fields changed after it was opened", path=source.name)
    metadata()
    run.checked("fields and metadata")
    columns = model.columns
    table = own_table(columns, model.at, source, run.options)
    table.belongs_to(source, "onnx")
    marks = columns.array(columns.dtype, columns.count, "u1") & native.ONNX_MADE
    made = np.flatnonzero(marks).tolist()
    for i in made:
        row = table.row(i)
        assert row.geometry is not None  # noqa: S101 - for the type checker
        run.until(columns.end[i])
        row.geometry.array(row)
    if made:
        run.checked(f"numbers of {counted(len(made), 'tensor')}")
    run.until(source.size)
    summed = [side for side in sides.values() if side.checksums]
    for side in summed:
        _check_sum(run, side)
    if summed:
        run.checked(f"SHA-1 of {counted(len(summed), 'file')}")
    run.rest()


def _check_sum(run: Verification, side: Side) -> None:
    run.turn(side.source)
    found = hashlib.sha1(usedforsecurity=False)
    for piece in run.chunks(0, side.source.size):
        found.update(piece)
    for checksum in side.checksums - {found.hexdigest()}:
        what, expected = "its SHA-1 in the model", f"{found.hexdigest()}, computed from its bytes"
        raise ChecksumError(what, path=side.source.name, field="checksum", actual=quoted(checksum), expected=expected)


def _contents(model: native.Initialisers) -> tuple[Any, ...]:
    """Return the content of the fields, for comparison."""
    return *model.columns.content(), model.at.tobytes(), model.files, model.kept
