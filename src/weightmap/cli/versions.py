"""The commands about versions of a model: ``delta publish``, ``delta apply`` and ``delta pull``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from weightmap import deltas
from weightmap._messages import counted
from weightmap.cli import show
from weightmap.cli.arguments import add_json, add_threads
from weightmap.cli.converting import spelt
from weightmap.cli.outcome import OK, UsageError
from weightmap.core.arguments import size

if TYPE_CHECKING:
    from weightmap.deltas.publishing import DeltaReport


def add_delta_publish(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``delta publish``."""
    sub.add_argument("base", metavar="BASE", help="the old model: a file, a directory or an *.index.json")
    sub.add_argument("new", metavar="NEW", help="the new model")
    sub.add_argument("directory", metavar="DIR", help="the directory of versions; made if it does not exist")
    sub.add_argument("--version", type=int, metavar="N", required=True, help="the number of the new version, from 1 on")
    sub.add_argument("--base-version", type=int, metavar="N", help="the version of BASE (default: N - 1)")
    sub.add_argument(
        "--encoding", choices=("xor", "overwrite"), default="xor", help="how changes are stored (default: xor)"
    )
    sums = ("xxh3-128", "blake3", "adler32")
    sub.add_argument(
        "--checksum",
        choices=sums,
        default="xxh3-128",
        help="the checksum of tensors (default: xxh3-128); ModelExpress reads adler32",
    )
    sub.add_argument("--level", type=int, metavar="N", default=1, help="the level of zstd, 1 to 22 (default: 1)")
    sub.add_argument("--max-shard-size", metavar="SIZE", help="most bytes per file (default: 5GB)")
    sub.add_argument(
        "--full",
        action=argparse.BooleanOptionalAction,
        help="always publish all of NEW, or never (default: only if a delta cannot express the difference)",
    )
    add_threads(sub)
    add_json(sub)


def delta_publish(args: argparse.Namespace) -> int:
    """Publish what changed between two models."""
    _check("version", args.version, 1)
    before = args.version - 1 if args.base_version is None else args.base_version
    if not 0 <= before < args.version:
        raise UsageError(f"--base-version is {before}, expected a number below --version, which is {args.version}")
    _check("level", args.level, 1, 22)
    options = {"encoding": args.encoding, "checksum": args.checksum, "level": args.level, "full": args.full}
    if args.max_shard_size is not None:
        options["max_shard_size"] = args.max_shard_size
    with spelt(args), show.progress_bar("publishing") as progress:
        report = deltas.publish(
            *(args.base, args.new, args.directory),
            version=args.version,
            base_version=args.base_version,
            threads=args.threads,
            progress=progress,
            **options,
        )
    where = f"{args.directory.rstrip('/')}/weight_v{report.version:06}"
    what = f"version {report.version}, on {report.base_version}"
    if report.full:
        what = f"version {report.version}, full{f' ({show.clean(report.reason)})' if report.reason else ''}"
    return _tell(args, "publish", where, what, report)


def add_delta_apply(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``delta apply``."""
    sub.add_argument("file", metavar="MODEL", help="a safetensors file, or the directory of a safetensors model")
    sub.add_argument("delta", metavar="DELTA", help="the directory of the delta")
    _add_in_place(sub)


def delta_apply(args: argparse.Namespace) -> int:
    """Bring a local model from the base of a delta to its version."""
    with show.progress_bar("applying") as progress:
        report = deltas.apply(args.file, args.delta, in_place=args.in_place, threads=args.threads, progress=progress)
    return _tell(args, "apply", args.file, f"version {report.version}, was {report.base_version}", report)


def add_delta_pull(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``delta pull``."""
    sub.add_argument("local", metavar="LOCAL", help="the directory of the model; made if it does not exist")
    sub.add_argument("source", metavar="SOURCE", help="the directory, or address, with weight_vNNNNNN/")
    sub.add_argument("--base", metavar="BASE", help="the model of version 0")
    sub.add_argument("--to", type=int, metavar="N", help="the version (default: the newest)")
    _add_in_place(sub)


def delta_pull(args: argparse.Namespace) -> int:
    """Bring a local model to a published version."""
    if args.to is not None:
        _check("to", args.to, 0)
    options = {"base": args.base, "version": args.to, "in_place": args.in_place, "threads": args.threads}
    with show.progress_bar("pulling") as progress:
        report = deltas.pull(args.local, args.source, **options, progress=progress)
    was = "as before" if report.version == report.base_version else f"was {report.base_version}"
    return _tell(args, "pull", args.local, f"version {report.version}, {was}", report)


def _add_in_place(sub: argparse.ArgumentParser) -> None:
    about = "change the files in place, by a journal, if no process has them open: for a disk without room for two"
    sub.add_argument("--in-place", action="store_true", help=about)
    add_threads(sub)
    add_json(sub)


def _check(option: str, value: int, low: int, high: int | None = None) -> None:
    if value < low or (high is not None and value > high):
        raise UsageError(f"--{option} is {value}, expected {low}{' or more' if high is None else f' to {high}'}")


def _tell(args: argparse.Namespace, command: str, where: str, what: str, report: DeltaReport) -> int:
    if args.json:
        show.emit_json({"command": f"delta {command}", "path": where, **report._asdict()})
        return OK
    changed = f"{counted(report.tensors, 'tensor')} of {size(report.changed_nbytes)} changed"
    stored = f"{size(report.stored_nbytes)} {'written' if command == 'publish' else 'read'}"
    show.emit(f"{show.clean(where)}: {what}: {changed}, {stored}, {show.duration(report.seconds)}")
    return OK
