"""The commands that write and compare: ``convert``, ``diff``, ``export``.

Every command is a function from its arguments to an exit status; errors pass through it to `weightmap.cli.main`.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

import weightmap as wm
from weightmap.cli import quantising, show
from weightmap.cli.outcome import DIFFERENT, OK, UsageError
from weightmap.core.amounts import sizes
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.sink import WritePlan
from weightmap.core.dtypes import numpy_dtype
from weightmap.core.model.inputs import check_not_read
from weightmap.core.model.internals import check_unchanged, dense_row
from weightmap.core.model.opening import open_privately
from weightmap.core.model.saving import pieces
from weightmap.errors import quoted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from weightmap.core.bytes.sink import Sink


def convert(args: argparse.Namespace) -> int:
    """Write a file in another format, and report dropped metadata and parts."""
    report, took = quantising.converted(args, "convert")
    quantising.emit_conversion(args, "convert", report, took)
    return OK


def diff(args: argparse.Namespace) -> int:
    """Compare two files; 0 if they hold the same, 1 if not."""
    for name in ("rtol", "atol"):
        given = getattr(args, name)
        if given is not None and not (math.isfinite(given) and given >= 0):
            raise UsageError(f"--{name} is {given:g}, expected a finite number of at least 0")
    options = {name: getattr(args, name) for name in ("tensors_only", "by_value", "weights", "rtol", "atol")}
    report = wm.diff(args.a, args.b, **options)
    if args.json:
        show.emit_json(
            {
                "command": "diff",
                "equal": report.equal,
                **report._asdict(),
                "a": args.a,
                "b": args.b,
                "changed": [change._asdict() for change in report.changed],
                "metadata": [{"key": key, "a": a, "b": b} for key, a, b in report.metadata],
            }
        )
        return OK if report.equal else DIFFERENT
    if report.equal:
        show.emit("no differences")
    else:
        _diff_text(args, report)
    for note in report.notes:
        show.emit(f"not counted: {show.clean(note)}")
    return OK if report.equal else DIFFERENT


def _diff_text(args: argparse.Namespace, report: wm.DiffReport) -> None:
    show.emit_pairs([("A", show.clean(args.a)), ("B", show.clean(args.b))])
    lone = [(name, "only in A") for name in report.only_in_a] + [(name, "only in B") for name in report.only_in_b]
    if lone:
        show.emit("")
        show.emit_table(("tensor", "where"), lone)
    if report.changed:
        show.emit("")
        show.emit_table(
            (
                "tensor",
                "what",
                "A",
                "B",
                "elements differing",
                "largest",
                "RMS",
                *(("relative", "worst row") * args.weights),
            ),
            [
                (
                    change.name,
                    change.what,
                    change.a,
                    change.b,
                    "" if change.n_different is None else f"{change.n_different:,}",
                    "" if change.max_abs is None else f"{change.max_abs:.3g}",
                    "" if change.rms is None else f"{change.rms:.3g}",
                    *(("" if change.relative is None else f"{change.relative:.3g}",) * args.weights),
                    *(("" if change.worst_row is None else f"{change.worst_row:,}",) * args.weights),
                )
                for change in report.changed
            ],
            right=("elements differing", "largest", "RMS", "relative", "worst row"),
        )
    if report.metadata:
        show.emit("")
        show.emit_table(
            ("metadata", "A", "B"),
            [(key, _side(a), _side(b)) for key, a, b in report.metadata],
        )
    if report.vocab is not None:
        show.emit(f"\nvocabulary: {show.clean(report.vocab)}")


def export(args: argparse.Namespace) -> int:
    """Write one tensor as a ``.npy`` file, through a temporary file beside it."""
    with open_privately(args.file, strict=not args.lenient) as file:
        check_not_read(file, args.out)
        if not args.out.lower().endswith(".npy"):
            raise UsageError(f"OUT is {quoted(args.out)}, expected a name that ends in .npy, the format of export")
        row = dense_row(file, args.name)
        row.source.check_size(f"tensor {quoted(args.name)}", row.nbytes)
        check_unchanged(file)
        stored = None if row.dtype.quantized else numpy_dtype(row.dtype)
        # numpy.load could not interpret the raw "void" records of ml_dtypes' types.
        chunks: Iterable[bytes | memoryview]
        if native := stored is not None and stored.type.__module__ == "numpy":
            dtype, chunks = stored, row.source.chunks(row.offset, row.nbytes)
        else:
            dtype, chunks = np.dtype("<f4"), pieces(file.read(args.name, np.float32))
        size = _save_npy(args.out, dtype, row.shape, chunks)
    if not native:
        what = f"{show.clean(quoted(args.name))} is {row.dtype.name}, which .npy files lack"
        show.emit(f"{what}: written as float32 values")
    show.emit(f"{show.clean(args.out)}: {dtype.name} {show.shape(row.shape)}, {sizes(size)}")
    return OK


def _save_npy(path: str, dtype: np.dtype[Any], shape: tuple[int, ...], chunks: Iterable[bytes | memoryview]) -> int:
    """Write an array, row-major and little-endian, as `wm.save` writes files; return the size of the file.

    It never writes in place, since a process may have mapped the old file, and never over a device or a FIFO.
    """
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, header)

    def write(sink: Sink) -> None:
        sink.write(head.getvalue())
        for chunk in chunks:
            sink.write(chunk)

    return write_plan(path, WritePlan(len(head.getvalue()) + math.prod(shape) * dtype.itemsize, write))


def _side(value: object) -> str:
    return "-" if value is None else show.shorten(show.value(value), 48)
