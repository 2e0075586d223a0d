"""The command ``quantize``, and what ``convert --quantize`` has in common with it: options and the report."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.cli import show
from weightmap.cli.outcome import OK, UsageError, reason
from weightmap.conversion.quantizer import Quantizer
from weightmap.errors import QuantError, TensorFileError, counted, quoted
from weightmap.model.opening import open_privately

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from weightmap.conversion.reports import QuantizedInfo

_BLOCKED = ("int4_block", "int5_block", "adaptive")


def check(scheme: str | None, args: argparse.Namespace) -> None:
    """Raise UsageError for options of quantisation that do not go together."""
    wrong = _misused(scheme, args)
    if wrong is not None:
        raise UsageError(wrong)


def _misused(scheme: str | None, args: argparse.Namespace) -> str | None:
    """Say what is wrong with the options of quantisation; None when nothing is.

    Those of pq are of `convert` alone.

    Whether a scheme takes a block size or a number of bits is known before any file is opened, and is a mistake in the
    command line, not in a file.
    """
    training = [f"--{name}" for name in ("subquantizers", "projection", "seed") if getattr(args, name, None)]
    if scheme == "pq" or training:
        return _misused_pq(args) if scheme == "pq" else f"{', '.join(training)}: for --quantize pq"
    given = {
        "--block-size": args.block_size,
        "--bits": args.bits,
        "--scale-type": args.scale_type,
        "--threads": args.threads,
    }
    unused = [name for name, value in given.items() if value is not None]
    if scheme is None:
        return f"{', '.join(unused)}: for --quantize, which was not given" if unused else None
    if args.block_size is not None and scheme not in _BLOCKED:
        return f"--block-size: {scheme} has one scale for the whole tensor, and no blocks"
    if args.bits is not None and scheme != "adaptive":
        return f"--bits: for adaptive; the bits of {scheme} follow from the scheme"
    if args.threads is not None and args.threads < 1:
        return f"--threads: {args.threads}, expected 1 or more"
    return _misused_scheme(scheme, options(scheme, args))


def _misused_scheme(scheme: str, wanted: dict[str, Any]) -> str | None:
    try:
        Quantizer(
            scheme,
            block_size=wanted.get("block_size", 32),
            scale_type=wanted["scale_type"],
            bits=wanted["bits"],
        )
    except QuantError as error:
        return reason(error)
    return None


def _misused_pq(args: argparse.Namespace) -> str | None:
    others = {"--block-size": args.block_size, "--scale-type": args.scale_type, "--threads": args.threads}
    unused = [name for name, value in others.items() if value is not None]
    if unused:
        return f"{', '.join(unused)}: not for pq"
    if args.bits is not None and args.bits not in range(1, 9):
        return f"--bits: {args.bits:g}, expected a whole number from 1 to 8 for pq"
    return None


def options(scheme: str | None, args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `weightmap.convert` that say how to quantise."""
    if scheme is None:
        return {}
    if scheme == "pq":
        return {
            "quantize": scheme,
            "n_bits": 8 if args.bits is None else int(args.bits),
            "n_subquantizers": args.subquantizers,
            "projection": args.projection,
            "seed": args.seed or 0,
        }
    chosen: dict[str, Any] = {
        "quantize": scheme,
        "scale_type": args.scale_type or "fp16",
        "bits": 5.0 if args.bits is None else args.bits,
        "threads": args.threads,
    }
    return chosen if args.block_size is None else chosen | {"block_size": args.block_size}


def quantize(args: argparse.Namespace) -> int:
    """Write a quantised copy of a model, and report size and error of every tensor."""
    start = time.perf_counter()
    check(args.scheme, args)
    try:
        with open_privately(args.src) as file:
            before = file.nbytes
        with show.progress_bar(f"quantize {Path(args.src).name}") as progress:
            report = wm.convert(
                args.src,
                args.dst,
                dtype=args.dtype,
                quantize_include=args.include,
                quantize_exclude=args.exclude,
                progress=progress,
                **options(args.scheme, args),
            )
    except TensorFileError:
        raise
    except (TypeError, ValueError) as error:  # a suffix or a type that does not exist
        raise UsageError(reason(error)) from error
    took = time.perf_counter() - start
    after = report.nbytes
    if args.json:
        show.emit_json(
            {
                "command": "quantize",
                "src": args.src,
                "dst": args.dst,
                "format": report.format,
                "layout": report.layout,
                "scheme": args.scheme,
                "tensors": report.tensors,
                "nbytes_before": before,
                "nbytes": after,
                "quantized": [info._asdict() for info in report.quantized],
                "total": total(report.quantized),
                "dropped": [{"name": name, "reason": why} for name, why in report.dropped],
                "warnings": report.warnings,
                "seconds": took,
            }
        )
        return OK
    _report(report)
    show.emit(
        f"{show.clean(args.dst)}: {show.sizes(before)} -> {show.sizes(after)}, {counted(report.tensors, 'tensor')}, "
        f"{show.seconds(took)}"
    )
    return OK


def _report(report: wm.ConvertReport) -> None:
    if report.quantized:
        show.emit_table(
            ("name", "shape", "bytes before", "after", "bits", "rmse", "relative"),
            [
                (
                    info.name,
                    show.shape(info.shape),
                    f"{info.nbytes_before:,}",
                    f"{info.nbytes:,}",
                    f"{info.bits_per_weight:.3f}",
                    f"{info.rmse:.3e}",
                    f"{info.relative_error:.4f}",
                )
                for info in report.quantized
            ],
            right=("bytes before", "after", "bits", "rmse", "relative"),
        )
        show.emit("")
    emit_left_behind(report)
    show.emit(summary(report))


def emit_left_behind(report: wm.ConvertReport) -> None:
    """Print what did not go along with a conversion."""
    for name, why in report.dropped:
        show.emit(f"dropped {show.clean(quoted(name))}: {show.clean(why)}")
    for warning in report.warnings:
        show.emit(f"warning: {show.clean(warning)}")


def total(infos: Sequence[QuantizedInfo]) -> dict[str, int | float]:
    """Return what the quantised tensors come to, all together.

    Returns
    -------
    dict
        ``tensors``, ``elements``, ``nbytes_before``, ``nbytes``, ``bits_per_weight`` and ``rmse``: of all elements, as
        if they were one tensor; 0 where there are none.
    """
    sizes = [math.prod(info.shape) for info in infos]
    elements, nbytes = sum(sizes), sum(info.nbytes for info in infos)
    squares = math.fsum(size * info.rmse**2 for size, info in zip(sizes, infos, strict=True))
    return {
        "tensors": len(infos),
        "elements": elements,
        "nbytes_before": sum(info.nbytes_before for info in infos),
        "nbytes": nbytes,
        "bits_per_weight": 8 * nbytes / elements if elements else 0.0,
        "rmse": math.sqrt(squares / elements) if elements else 0.0,
    }


def summary(report: wm.ConvertReport) -> str:
    """Return one line on the quantised tensors of a conversion."""
    if not report.quantized:
        return (
            "no tensor was quantised: none was of floating point, not quantised yet, of two dimensions, and asked for"
        )
    whole = total(report.quantized)
    return (
        f"quantised to {report.quantized[0].scheme}: {whole['tensors']:,} of {counted(report.tensors, 'tensor')}, "
        f"{show.sizes(int(whole['nbytes_before']))} -> {show.sizes(int(whole['nbytes']))}, "
        f"{whole['bits_per_weight']:.3f} bits per weight, RMSE {whole['rmse']:.3e}"
    )
