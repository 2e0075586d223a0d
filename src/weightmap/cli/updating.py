"""The commands about versions of a model: ``delta publish``, ``delta apply`` and ``delta pull``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap import deltas
from weightmap.cli import show
from weightmap.cli.outcome import OK, UsageError
from weightmap.core.amounts import size
from weightmap.core.model.sharding import bytes_of_size
from weightmap.errors import counted

if TYPE_CHECKING:
    import argparse

    from weightmap.deltas.publishing import DeltaReport


def publish(args: argparse.Namespace) -> int:
    """Publish what changed between two models."""
    _check("version", args.version, 1)
    before = args.version - 1 if args.base_version is None else args.base_version
    if not 0 <= before < args.version:
        raise UsageError(f"--base-version is {before}, expected a number below --version, which is {args.version}")
    _check("level", args.level, 1, 22)
    options = {"encoding": args.encoding, "checksum": args.checksum, "level": args.level, "full": args.full}
    if args.max_shard_size is not None:
        try:
            options["max_shard_size"] = bytes_of_size(args.max_shard_size)
        except ValueError as error:
            raise UsageError(f"--max-shard-size{str(error).removeprefix('max_shard_size')}") from None
    with show.progress_bar("publishing") as progress:
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


def apply(args: argparse.Namespace) -> int:
    """Bring a local model from the base of a delta to its version."""
    with show.progress_bar("applying") as progress:
        report = deltas.apply(args.file, args.delta, in_place=args.in_place, threads=args.threads, progress=progress)
    return _tell(args, "apply", args.file, f"version {report.version}, was {report.base_version}", report)


def pull(args: argparse.Namespace) -> int:
    """Bring a local model to a published version."""
    if args.to is not None:
        _check("to", args.to, 0)
    options = {"base": args.base, "version": args.to, "in_place": args.in_place, "threads": args.threads}
    with show.progress_bar("pulling") as progress:
        report = deltas.pull(args.local, args.source, **options, progress=progress)
    was = "as before" if report.version == report.base_version else f"was {report.base_version}"
    return _tell(args, "pull", args.local, f"version {report.version}, {was}", report)


def _check(option: str, given: int, least: int, most: int | None = None) -> None:
    if given < least or (most is not None and given > most):
        raise UsageError(f"--{option} is {given}, expected {least}{' or more' if most is None else f' to {most}'}")


def _tell(args: argparse.Namespace, command: str, where: str, what: str, report: DeltaReport) -> int:
    if args.json:
        show.emit_json({"command": f"delta {command}", "path": where, **report._asdict()})
        return OK
    changed = f"{counted(report.tensors, 'tensor')} of {size(report.changed_nbytes)} changed"
    stored = f"{size(report.stored_nbytes)} {'written' if command == 'publish' else 'read'}"
    show.emit(f"{show.clean(where)}: {what}: {changed}, {stored}, {show.seconds(report.seconds)}")
    return OK
