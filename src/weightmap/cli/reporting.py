"""The command ``report``: a page about one model or two."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from weightmap.amounts import sizes
from weightmap.cli import show
from weightmap.cli.outcome import DIFFERENT, OK

if TYPE_CHECKING:
    import argparse


def report(args: argparse.Namespace) -> int:
    """Write the page; 1 if verification failed, which the page then says."""
    from weightmap.report import write_report

    start = time.perf_counter()
    with show.progress_bar(f"report {Path(args.file).name}") as progress:
        sound = write_report(args.output, args.file, args.other, verify=not args.no_verify, progress=progress)
    took = time.perf_counter() - start
    size = Path(args.output).stat().st_size
    if args.json:
        about = {"path": args.file, "other": args.other, "output": args.output, "nbytes": size}
        show.emit_json({"command": "report", **about, "verified": sound, "seconds": took})
    else:
        note = "" if sound else ", verification failed"
        show.emit(f"{show.clean(args.output)}: {sizes(size)}, {show.seconds(took)}{note}")
    return OK if sound else DIFFERENT
