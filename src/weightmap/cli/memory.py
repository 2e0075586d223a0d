"""The commands about pages in memory: ``doctor``, ``cache show``, ``cache warm`` and ``cache evict``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import weightmap as wm
from weightmap._messages import counted
from weightmap.checkpoints.configuration import weight_of_model
from weightmap.cli import show
from weightmap.cli.arguments import add_config, add_json, add_lenient, add_threads, text
from weightmap.cli.outcome import OK, opened, reason
from weightmap.core.arguments import brief, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from weightmap.core.model.reports import Residency


def add_doctor(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``doctor``."""
    sub.add_argument("file", metavar="FILE", help="a tensor file, a model directory or an *.index.json")
    add_config(sub)
    add_json(sub)
    add_lenient(sub)


def doctor(args: argparse.Namespace) -> int:
    """Print the cost of using a model on this machine, and advice."""
    with opened(args, args.file) as file:
        report = wm.plan(file).explain()
        kind, shards = show.kind(file.format, file.layout), len(file.shards)
        weight, problem = None, None
        try:
            weight = weight_of_model(file)
        except (wm.TensorFileError, OSError) as error:  # a bad configuration beside a usable file
            problem = reason(error)
    if args.json:
        about = {"weight": weight and weight._asdict(), "problem": problem}
        show.emit_json({"command": "doctor", **report.as_dict(), **about, "path": args.file})
        return OK
    tensors = f"{counted(report.tensors, 'tensor')}{f' in {shards:,} files' if shards else ''}"
    parameters = ("parameters", str(weight) if problem is None else f"not known: {problem}")
    pairs = [("file", args.file), ("format", f"{kind}, {tensors}"), parameters, *report.lines()]
    show.emit_pairs([(label, show.clean(value)) for label, value in pairs])
    show.emit("")
    for line in report.advice or ("nothing to do",):
        show.emit(f"* {show.clean(line)}")
    return OK


def add_cache_show(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cache show``."""
    sub.add_argument("file", metavar="FILE", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("names", metavar="NAME", type=text, nargs="*", default=[], help="only tensors of these names")
    add_json(sub)
    add_lenient(sub)


add_cache_evict = add_cache_show


def add_cache_warm(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cache warm``."""
    add_cache_show(sub)
    add_threads(sub, "8")


def cache_show(args: argparse.Namespace) -> int:
    """Print how much of each tensor is in memory."""
    with opened(args, args.file) as file:
        residency = file.residency(args.names or None)
    resident, nbytes = _totals(residency)
    if args.json:
        tensors = [{"name": name, **one._asdict()} for name, one in residency.items()]
        show.emit_json(
            {"command": "cache show", "path": args.file, "resident": resident, "nbytes": nbytes, "tensors": tensors}
        )
        return OK
    rows = [
        (name, show.bar(one.resident, one.nbytes), _percent(*one), f"{one.nbytes:,}") for name, one in residency.items()
    ]
    rows.append(("total", show.bar(resident, nbytes), _percent(resident, nbytes), f"{nbytes:,}"))
    show.emit_table(("tensor", "in memory", "", "bytes"), rows, right=("", "bytes"))
    return OK


def cache_warm(args: argparse.Namespace) -> int:
    """Bring the tensors of a model into the page cache."""
    start = time.perf_counter()
    with (
        opened(args, args.file) as file,
        show.progress_bar(f"warm {Path(args.file).name}") as progress,
    ):
        wants = wm.plan(file, args.names or None)
        cold = wants.warm(args.threads, progress=progress)
        nbytes = wants.nbytes
    took = time.perf_counter() - start
    if args.json:
        show.emit_json({"command": "cache warm", "path": args.file, "cold": cold, "nbytes": nbytes, "seconds": took})
        return OK
    rate = f", {brief(max(1, round(cold / took)))}/s" if cold else ""
    show.emit(f"{show.clean(args.file)}: {size(cold)} of {size(nbytes)} were cold ({show.duration(took)}{rate})")
    return OK


def cache_evict(args: argparse.Namespace) -> int:
    """Give the pages of the tensors of a model back to the system."""
    with opened(args, args.file) as file:
        released = file.release(args.names or None)
        resident, nbytes = _totals(file.residency(args.names or None))
    if args.json:
        counts = {"released": released, "resident": resident, "nbytes": nbytes}
        show.emit_json({"command": "cache evict", "path": args.file, **counts})
        return OK
    staying = f"; {size(resident)} stay" if resident else ""
    show.emit(f"{show.clean(args.file)}: {size(released)} of {size(nbytes)} left memory{staying}")
    return OK


def _percent(part: int, whole: int) -> str:
    """Return a part as a percentage: 0 and 100 mean exactly none and all."""
    if part in (0, whole):
        return "100%" if part == whole else "0%"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.1f}%"


def _totals(residency: Mapping[str, Residency]) -> tuple[int, int]:
    return sum(one.resident for one in residency.values()), sum(one.nbytes for one in residency.values())
