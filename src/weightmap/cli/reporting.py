"""The command ``report``: a page about one model or two."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from weightmap.cli import show
from weightmap.cli.outcome import DIFFERENT, OK, UsageError, failed
from weightmap.core.amounts import sizes
from weightmap.errors import quoted

if TYPE_CHECKING:
    import argparse


def report(args: argparse.Namespace) -> int:
    """Write the page; 1 if verification failed, which the page reports."""
    from weightmap.report.writing import write_page

    if not args.out.lower().endswith(".html"):
        raise UsageError(f"OUT is {quoted(args.out)}, expected a name that ends in .html")
    start = time.perf_counter()
    with show.progress_bar(f"report {Path(args.file).name}") as progress:
        damage = write_page(
            args.out, args.file, args.other, verify=not args.no_verify, weights=args.weights, progress=progress
        )
    took = time.perf_counter() - start
    size = Path(args.out).stat().st_size
    if args.json:
        about = {"path": args.file, "other": args.other, "output": args.out, "nbytes": size}
        show.emit_json({"command": "report", **about, "verified": damage is None, "damage": damage, "seconds": took})
    else:
        if damage is not None:
            show.emit(failed(args.file, show.clean(damage)))
        show.emit(f"{show.clean(args.out)}: {sizes(size)}, {show.seconds(took)}")
    return OK if damage is None else DIFFERENT
