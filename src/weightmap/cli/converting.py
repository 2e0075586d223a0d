"""The commands that write models: ``convert`` and ``quantize``."""

from __future__ import annotations

import contextlib
import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap._messages import counted
from weightmap.cli import arguments, show
from weightmap.cli.outcome import OK, UsageError, opened, reason
from weightmap.core.arguments import sizes
from weightmap.core.dtypes import FLOATING, SHORT
from weightmap.core.formats import FORMATS
from weightmap.core.quant.quantizing import SCHEMES
from weightmap.errors import EncodeError, QuantError, TensorFileError, UnknownFormatError
from weightmap.llama import NAMES as NAMINGS
from weightmap.llama.tensors import MIXTURES
from weightmap.words.importers import NAMES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from weightmap.core.model.reports import QuantizedInfo


# Options of quantising
_QUANTISING = ("block_size", "bits", "scale_type", "quantize_include", "quantize_exclude", "threads")
_RUN = ("dask", "rank", "world_size", "manifest", "keep_going")
# Options that `weightmap.convert` takes as they are.
_TENSORS = ("include", "exclude", "dtype", "max_shard_size", "names")


def add_convert(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``convert``."""
    source = "a tensor file, a model directory, or a file of word2vec, GloVe, fastText or gensim"
    formats = [*(name for name, format in FORMATS.items() if format.plan), *NAMES]
    _add_conversion(sub, source, formats, "--quantize", schemes=(*SCHEMES, *MIXTURES, "pq"))


def add_quantize(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``quantize``."""
    schemes = {name: frozenset().union(*format.schemes.values()) for name, format in FORMATS.items() if format.plan}
    formats = [name for name, able in schemes.items() if able & {*SCHEMES}]
    source = "a tensor file or a model directory"
    _add_conversion(sub, source, formats, "--scheme", "--quantize", schemes=(*SCHEMES, *MIXTURES), required=True)


def _add_conversion(
    sub: argparse.ArgumentParser,
    source: str,
    formats: Sequence[str],
    *quantize: str,
    schemes: Sequence[str],
    required: bool = False,
) -> None:
    """Add the arguments of a command that writes models; `quantize` spells the option for the scheme."""
    sub.add_argument("src", metavar="SRC", help=source)
    sub.add_argument(
        "dst",
        metavar="DST",
        help="the file to write; its suffix decides the format. For shards, an *.index.json, or a directory (OUT/, or "
        "any name without a suffix if SRC is a model directory), which keeps the format of SRC. A directory also gets "
        "copies of the configuration and tokenizer of a model directory, which replace no file",
    )
    sub.add_argument("--no-overwrite", dest="overwrite", action="store_false", help="refuse a DST that exists")
    sub.add_argument(
        "--verify", action="store_true", help="verify SRC first; otherwise checksums of tensors are ignored"
    )
    arguments.add_lenient(sub)
    arguments.add_threads(sub)
    arguments.add_json(sub)

    group = sub.add_argument_group("which tensors")
    _add_texts(
        group,
        ("--include GLOB", "convert only tensors with such a name"),
        ("--exclude GLOB", "leave out tensors with such a name"),
        ("--rename OLD=NEW", "rename a tensor; 'OLD*=NEW*' renames all that begin with OLD"),
    )
    arguments.add_weights(group, "convert")

    group = sub.add_argument_group("how they are stored")
    about = f"the format to write, whatever the suffix of DST: {', '.join(formats)}"
    group.add_argument("--format", metavar="FORMAT", choices=arguments.Offered(formats), help=about)
    several = {name: format.layouts for name in formats if (format := FORMATS.get(name)) and len(format.layouts) > 1}
    if several:
        listed = "; ".join(f"{' or '.join(layouts)} of {name}" for name, layouts in several.items())
        about = f"the layout, if not the first one of the format: {listed}"
        offered = arguments.Offered(layout for layouts in several.values() for layout in layouts)
        group.add_argument("--layout", metavar="LAYOUT", choices=offered, help=about)
    sub.set_defaults(layout=None)
    group.add_argument(
        "--names",
        metavar=f"{{{','.join(NAMINGS)}}}",
        choices=arguments.Offered(NAMINGS),
        help="names in GGUF for the tensors of a model directory. auto, the default: llama.cpp's names if they are "
        "known; llama.cpp: its names, or an error; keep: the names in SRC",
    )
    about = f"store floating-point tensors as this type: {', '.join(FLOATING)}"
    group.add_argument("--dtype", metavar="DTYPE", choices=arguments.Offered((*FLOATING, *SHORT)), help=about)
    about = "align tensors to multiples of a power of two, for example 64"
    group.add_argument("--align", type=int, metavar="BYTES", help=about)
    group.add_argument("--max-shard-size", metavar="SIZE", help="most bytes of tensors per file, for example 5GB")

    group = sub.add_argument_group("quantising")
    group.add_argument(
        *quantize,
        dest="quantize",
        required=required,
        metavar="SCHEME",
        choices=arguments.Offered(schemes),
        help=f"quantise the weights by one of {', '.join(schemes)}",
    )
    _add_texts(
        group,
        ("--quantize-include GLOB", "quantise only tensors with such a name"),
        ("--quantize-exclude GLOB", "do not quantise tensors with such a name"),
    )
    about = "elements with one scale, for int4_block, int5_block and adaptive (default: 32)"
    group.add_argument("--block-size", type=int, metavar="N", help=about)
    about = "for adaptive: bits per weight, 4.5 to 16 (default: 5)"
    group.add_argument("--bits", type=float, metavar="B", help=about)
    group.add_argument("--scale-type", metavar="DTYPE", help="the type of scales, fp16 or fp32 (default: fp16)")
    if not required:
        add_lossy(sub.add_argument_group("word embeddings (weightmap words convert has more options)"))
    arguments.add_distribution(sub)


def _add_texts(group: Any, *options: tuple[str, str]) -> None:
    """Add options that may be repeated."""
    for option, about in options:
        name, metavar = option.split()
        group.add_argument(name, metavar=metavar, type=arguments.text, action="append", help=f"{about} (repeatable)")


def add_lossy(group: Any) -> None:
    """Add ``--lossy``."""
    about = "replace bytes of words that are not UTF-8; keep the first row of a word that is repeated"
    group.add_argument("--lossy", action="store_true", help=about)


def convert(args: argparse.Namespace) -> int:
    """Write a file in another format, and report dropped metadata and parts."""
    report, took = converted(args, "convert")
    emit_conversion(args, "convert", report, took)
    return OK


def quantize(args: argparse.Namespace) -> int:
    """Write a quantised copy of a model, and report size and error of every tensor."""
    with opened(args, args.src) as file:
        before = file.nbytes
    report, took = converted(args, "quantize")
    if args.json:
        about = {"scheme": args.quantize, "nbytes_before": before, "total": total(report.quantized)}
        show.emit_json(document(args, "quantize", report, took) | about)
        return OK
    _report(report)
    show.emit(
        f"{show.clean(report.dst)}: {sizes(before)} -> {sizes(report.nbytes)}, "
        f"{counted(report.tensors, 'tensor')}{in_files(report)}, {show.duration(took)}"
    )
    return OK


def as_options(args: argparse.Namespace, *names: str) -> list[str]:
    """Return those of these options that were given, as the user wrote them."""
    return [f"--{name.replace('_', '-')}" for name in names if getattr(args, name, None) not in (None, False)]


def converted(args: argparse.Namespace, command: str) -> tuple[wm.ConvertReport, float]:
    """Convert SRC to DST; return the report, and the seconds that it took."""
    start = time.perf_counter()
    with (
        spelt(args),
        arguments.execution(args) as run,
        show.progress_bar(f"{command} {Path(args.src).name}") as progress,
    ):
        common = {"format": args.format, "progress": progress}
        if getattr(args, "lossy", False):
            report = _words(args, **common)
        elif not (args.lenient or args.weights or args.verify or args.config):
            report = wm.convert(args.src, args.dst, **common, **_options(args), run=run)
        else:
            report = _by_handle(args, **common, run=run)
    return report, time.perf_counter() - start


def _words(args: argparse.Namespace, **common: Any) -> wm.ConvertReport:
    """Convert words of another program with options that only `weightmap.words.convert` has."""
    of_tensors = ("layout", "align", "weights", "quantize", "rename", "verify")
    if unused := as_options(args, *_TENSORS, *of_tensors, *_QUANTISING, *_RUN):
        raise UsageError(f"{', '.join(unused)}: not for word embeddings")
    lossy = getattr(args, "lossy", False)
    report: wm.ConvertReport = wm.words.convert(args.src, args.dst, strict=not args.lenient, lossy=lossy, **common)
    return report


def _by_handle(args: argparse.Namespace, *, run: wm.Run, **common: Any) -> wm.ConvertReport:
    """Convert through a handle: to open with options, to verify first, or to convert parameters."""
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(opened(args, args.src))
        except UnknownFormatError:  # words of another program have no checksums
            if args.lenient:
                return _words(args, **common)
            source = args.src
        else:
            if args.verify:
                source.verify()
        return wm.convert(source, args.dst, **common, **_options(args), run=run)


@contextlib.contextmanager
def spelt(args: argparse.Namespace) -> Iterator[None]:
    """Make errors of usage name the options of the command line."""
    try:
        yield
    except (TypeError, ValueError) as error:  # a format, layout, suffix or type that does not exist
        text = _as_written(error, args)
        if isinstance(error, TensorFileError) and not text.startswith("--"):
            raise
        raise UsageError(text) from error


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `weightmap.convert`."""
    options: dict[str, Any] = {name: getattr(args, name) for name in (*_TENSORS, "threads")}
    options["output"] = wm.Output(args.layout, align=args.align, overwrite=args.overwrite)
    options["names"] = args.names or "auto"
    if args.rename is not None:
        pairs = [pair.partition("=") for pair in args.rename]
        if wrong := next((old for old, sign, _ in pairs if not sign), None):
            raise UsageError(f"--rename is {wrong!r}, expected OLD=NEW")
        options["rename"] = {old: new for old, _, new in pairs}
    if args.quantize is None:
        if unused := as_options(args, *_QUANTISING):
            raise UsageError(f"{', '.join(unused)}: only with --quantize, which was not given")
        return options
    how = {name.removeprefix("quantize_"): getattr(args, name) for name in _QUANTISING if name != "threads"}
    how = {name: value for name, value in how.items() if value is not None}
    # Pass a lone scheme on unchecked, because the conversion can suggest similar schemes of its target.
    options["quantize"] = wm.Quantize(args.quantize, **how) if how else args.quantize
    return options


def _as_written(error: Exception, args: argparse.Namespace) -> str:
    """Return the message of an error; if it begins with a parameter, replace that by the user's option."""
    text = reason(error)
    if isinstance(error, TensorFileError):
        if not isinstance(error, QuantError | EncodeError):  # the message may begin with a field of a file
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
        f"{sizes(report.nbytes)}, {show.duration(took)}"
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
    """Return the number of files, for a model in several."""
    return f" in {counted(report.shards, 'file')}" if report.shards else ""


def emit_left_behind(report: wm.ConvertReport) -> None:
    """Print what a conversion left behind."""
    for warning in show.folded(report.warnings):
        show.emit(f"warning: {warning}")
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
    """Return a line about the quantised tensors of a conversion."""
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
