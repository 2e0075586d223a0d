"""The command ``quantize``, and the options and report that ``convert --quantize`` shares with it."""

from __future__ import annotations

import contextlib
import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.cli import executing, show
from weightmap.cli.outcome import OK, UsageError, reason
from weightmap.core.amounts import sizes
from weightmap.core.model.opening import open_privately
from weightmap.errors import EncodeError, QuantError, TensorFileError, counted, quoted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from weightmap.core.model.reports import QuantizedInfo

# Options of quantising
_QUANTISING = ("block_size", "bits", "scale_type", "quantize_include", "quantize_exclude", "threads")
_RUN = ("dask", "rank", "world_size", "manifest", "keep_going")
# Options that `weightmap.convert` takes as they are.
_TENSORS = ("layout", "include", "exclude", "dtype", "align", "max_shard_size", "weights", "names")


def as_options(args: argparse.Namespace, *names: str) -> list[str]:
    """Return the given ones of these options, as the user wrote them."""
    given = vars(args)
    return [f"--{name.replace('_', '-')}" for name in names if given.get(name) not in (None, False)]


def converted(args: argparse.Namespace, command: str) -> tuple[wm.ConvertReport, float]:
    """Convert SRC to DST; return the report, and how many seconds that took."""
    start = time.perf_counter()
    with (
        spelt(args),
        executing.execution(args) as run,
        show.progress_bar(f"{command} {Path(args.src).name}") as progress,
    ):
        options = {"format": args.format, "strict": not args.lenient, "progress": progress}
        if getattr(args, "lossy", False):
            unused = as_options(args, *_TENSORS, "quantize", "rename", "verify", *_QUANTISING, *_RUN)
            if unused:
                raise UsageError(f"{', '.join(unused)}: not for word embeddings")
            report = wm.words.convert(args.src, args.dst, **options, lossy=True)
        else:
            report = wm.convert(args.src, args.dst, **options, **_options(args), run=run)
    return report, time.perf_counter() - start


@contextlib.contextmanager
def spelt(args: argparse.Namespace) -> Iterator[None]:
    """Make errors of usage name options as the command line has them."""
    try:
        yield
    except (TypeError, ValueError) as error:  # a format, layout, suffix or type that does not exist
        text = _as_written(error, args)
        if isinstance(error, TensorFileError) and not text.startswith("--"):
            raise
        raise UsageError(text) from error


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `weightmap.convert`."""
    options: dict[str, Any] = {name: getattr(args, name) for name in (*_TENSORS, "overwrite", "verify", "threads")}
    options["names"] = args.names or "auto"
    if args.rename is not None:
        pairs = [given.partition("=") for given in args.rename]
        if wrong := next((old for old, sign, _ in pairs if not sign), None):
            raise UsageError(f"--rename is {wrong!r}, expected OLD=NEW")
        options["rename"] = {old: new for old, _, new in pairs}
    if args.quantize is None:
        if unused := as_options(args, *_QUANTISING):
            raise UsageError(f"{', '.join(unused)}: only with --quantize, which was not given")
        return options
    given = {name.removeprefix("quantize_"): getattr(args, name) for name in _QUANTISING if name != "threads"}
    given = {name: value for name, value in given.items() if value is not None}
    # A scheme alone is passed on unchecked: the conversion suggests similar ones of its target.
    options["quantize"] = wm.Quantize(args.quantize, **given) if given else args.quantize
    return options


def _as_written(error: Exception, args: argparse.Namespace) -> str:
    """Return the message of an error; a parameter at its beginning becomes the option that the user wrote."""
    text = reason(error)
    if isinstance(error, TensorFileError):
        if not isinstance(error, QuantError | EncodeError):  # it may begin with a field of a file
            return text
        text = text.removeprefix(f"{show.clean(error.path or '')}: ")
    options = {name: f"--{name.replace('_', '-')}" for name in vars(args)}
    options |= {f"Quantize.{name}": f"--quantize-{name}" for name in ("include", "exclude")}
    options |= {
        "scheme": "--quantize" if args.command != "weightmap quantize" else "--scheme",
        "run": ", ".join(as_options(args, *_RUN)),
    }
    return re.sub(rf"^({'|'.join(options)})=?(?= (is|of|for|has) )", lambda match: options[match[1]], text)


def emit_conversion(args: argparse.Namespace, command: str, report: wm.ConvertReport, took: float) -> None:
    """Print the report of a conversion."""
    if args.json:
        about = document(args, command, report, took)
        if args.quantize is None:
            del about["quantized"]
        else:
            about["quantized_total"] = total(report.quantized)
        show.emit_json(about)
        return
    emit_left_behind(report)
    if report.quantized:
        show.emit(summary(report))
    show.emit(
        f"{show.clean(report.dst)}: {show.kind(report.format, report.layout)}, "
        f"{counted(report.tensors, 'tensor')}{in_files(report)}, "
        f"{sizes(report.nbytes)}, {show.seconds(took)}"
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
        **({"shards": report.shards, "skipped": report.skipped, "copied": report.copied} if report.shards else {}),
    }


def quantize(args: argparse.Namespace) -> int:
    """Write a quantised copy of a model, and report size and error of every tensor."""
    with open_privately(args.src, strict=not args.lenient) as file:
        before = file.nbytes
    report, took = converted(args, "quantize")
    if args.json:
        about = {"scheme": args.quantize, "nbytes_before": before, "total": total(report.quantized)}
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
    """Count the files of a model in several."""
    return f" in {counted(report.shards, 'file')}" if report.shards else ""


def emit_left_behind(report: wm.ConvertReport) -> None:
    """Print what a conversion left behind."""
    for name, why in report.dropped:
        show.emit(f"dropped {show.clean(quoted(name))}: {show.clean(why)}")
    for warning in report.warnings:
        show.emit(f"warning: {show.clean(warning)}")
    if report.copied:
        show.emit(f"copied {', '.join(report.copied)}")


def total(infos: Sequence[QuantizedInfo]) -> dict[str, int | float]:
    """Return the totals of the quantised tensors.

    Returns
    -------
    dict
        ``tensors``, ``elements``, ``nbytes_before``, ``nbytes``, ``bits_per_weight`` and ``rmse``, the last two over
        all elements together; 0 without any.
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
            "no tensor was quantised: the default is floating-point tensors of two dimensions or more, except "
            "embeddings (by their names); --quantize-include chooses others"
        )
    whole = total(report.quantized)
    schemes = " and ".join(dict.fromkeys(info.scheme for info in report.quantized))
    return (
        f"quantised to {schemes}: {whole['tensors']:,} of {counted(report.tensors, 'tensor')}, "
        f"{sizes(int(whole['nbytes_before']))} -> {sizes(int(whole['nbytes']))}, "
        f"{whole['bits_per_weight']:.3f} bits per weight, RMSE {whole['rmse']:.3e}"
    )
