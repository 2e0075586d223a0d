"""The command ``quantize``, and what ``convert --quantize`` has in common with it: options and the report."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.amounts import sizes
from weightmap.cli import executing, show
from weightmap.cli.outcome import OK, UsageError, reason
from weightmap.conversion.quantizer import Quantizer
from weightmap.dtypes import GGML_SCHEMES
from weightmap.errors import EncodeError, QuantError, TensorFileError, counted, quoted
from weightmap.model.opening import open_privately

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from weightmap.conversion.reports import QuantizedInfo

_BLOCKED = ("int4_block", "int5_block", "adaptive")


def check(scheme: str | None, args: argparse.Namespace) -> None:
    """Raise UsageError for options of quantisation that contradict each other, before any file is opened."""
    wrong = next(_mistakes(scheme, args), None)
    if wrong is not None:
        raise UsageError(wrong)


def _mistakes(scheme: str | None, args: argparse.Namespace) -> Iterator[str]:
    training = _given(args, "subquantizers", "projection", "seed")
    if scheme == "pq":
        if unused := _given(args, "block_size", "scale_type", "threads"):
            yield f"{', '.join(unused)}: not for pq"
        if args.bits is not None and args.bits not in range(1, 9):
            yield f"--bits is {args.bits:g}, expected a whole number from 1 to 8 for pq"
    elif training:
        yield f"{', '.join(training)}: only for --quantize pq"
    elif scheme is None:
        if unused := _given(args, "block_size", "bits", "scale_type", "threads"):
            yield f"{', '.join(unused)}: only with --quantize, which was not given"
    else:
        if args.block_size is not None and scheme not in _BLOCKED:
            blocks = "blocks of one size" if scheme in GGML_SCHEMES else "one scale for the whole tensor, and no blocks"
            yield f"--block-size: {scheme} has {blocks}"
        if args.bits is not None and scheme != "adaptive":
            yield f"--bits: only for adaptive; {scheme} has a fixed number of bits"
        chosen = options(scheme, args)
        try:
            Quantizer(chosen.pop("quantize"), **chosen)
        except QuantError as error:
            yield _as_written(error, args)


def _given(args: argparse.Namespace, *names: str) -> list[str]:
    """Return those of these options that were given, as the user wrote them."""
    given = vars(args)
    return [f"--{name.replace('_', '-')}" for name in names if given.get(name) not in (None, False)]


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
    chosen = {name: getattr(args, name) for name in ("block_size", "scale_type", "bits", "threads")}
    return {"quantize": scheme} | {name: value for name, value in chosen.items() if value is not None}


def converted(args: argparse.Namespace, command: str, **options: Any) -> tuple[wm.ConvertReport, float]:
    """Convert SRC to DST; return the report, and how many seconds that took."""
    start = time.perf_counter()
    try:
        with (
            executing.execution(args) as how,
            show.progress_bar(f"{command} {Path(args.src).name}") as progress,
        ):
            report = wm.convert(args.src, args.dst, dtype=args.dtype, progress=progress, **how, **options)
    except (TypeError, ValueError) as error:  # a format, layout, suffix or type that does not exist
        text = _as_written(error, args)
        if isinstance(error, TensorFileError) and not text.startswith("--"):
            raise
        raise UsageError(text) from error
    return report, time.perf_counter() - start


# The options of parameters that have another name.
_OPTIONS = {"n_bits": "bits", "n_subquantizers": "subquantizers"}


def _as_written(error: Exception, args: argparse.Namespace) -> str:
    """Return the message of an error; where it begins with a parameter, with the option that the user wrote."""
    text = reason(error)
    if isinstance(error, TensorFileError):
        if not isinstance(error, QuantError | EncodeError):  # it may begin with a field of a file
            return text
        text = text.removeprefix(f"{show.clean(error.path or '')}: ")
    names = "|".join((*vars(args), *_OPTIONS))
    return re.sub(
        rf"^({names})=?(?= (is|of|for) )",
        lambda match: f"--{_OPTIONS.get(match[1], match[1]).replace('_', '-')}",
        text,
    )


def document(args: argparse.Namespace, command: str, report: wm.ConvertReport, took: float) -> dict[str, Any]:
    """Return the JSON document of a conversion."""
    return {
        "command": command,
        "src": args.src,
        "dst": args.dst,
        "format": report.format,
        "layout": report.layout,
        "tensors": report.tensors,
        "nbytes": report.nbytes,
        "dropped": [{"name": name, "reason": why} for name, why in report.dropped],
        "warnings": report.warnings,
        "quantized": [info._asdict() for info in report.quantized],
        "seconds": took,
        **({"shards": report.shards, "skipped": report.skipped} if report.shards else {}),
    }


def quantize(args: argparse.Namespace) -> int:
    """Write a quantised copy of a model, and report size and error of every tensor."""
    check(args.scheme, args)
    with open_privately(args.src) as file:
        before = file.nbytes
    chosen = options(args.scheme, args)
    chosen |= {"format": args.format, "quantize_include": args.include, "quantize_exclude": args.exclude}
    chosen["verify"] = args.verify
    report, took = converted(args, "quantize", **chosen)
    if args.json:
        about = {"scheme": args.scheme, "nbytes_before": before, "total": total(report.quantized)}
        show.emit_json(document(args, "quantize", report, took) | about)
        return OK
    _report(report)
    show.emit(
        f"{show.clean(report.dst)}: {sizes(before)} -> {sizes(report.nbytes)}, "
        f"{counted(report.tensors, 'tensor')}{in_files(report)}, {show.seconds(took)}"
    )
    return OK


def _report(report: wm.ConvertReport) -> None:
    if report.quantized:
        show.emit_table(
            ("name", "shape", "scheme", "bytes before", "after", "bits", "rmse", "relative"),
            [
                (
                    info.name,
                    show.shape(info.shape),
                    info.scheme,
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


def in_files(report: wm.ConvertReport) -> str:
    """Say in how many files a model is that has several."""
    return f" in {counted(report.shards, 'file')}" if report.shards else ""


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
        others = "no other" if report.warnings else "none"  # a warning names those that the scheme does not fit
        return (
            f"no tensor was quantised: {others} that was selected holds floating-point numbers and, unless --include "
            "names it, has two or more dimensions and is no embedding by its name"
        )
    whole = total(report.quantized)
    schemes = " and ".join(dict.fromkeys(info.scheme for info in report.quantized))
    return (
        f"quantised to {schemes}: {whole['tensors']:,} of {counted(report.tensors, 'tensor')}, "
        f"{sizes(int(whole['nbytes_before']))} -> {sizes(int(whole['nbytes']))}, "
        f"{whole['bits_per_weight']:.3f} bits per weight, RMSE {whole['rmse']:.3e}"
    )
