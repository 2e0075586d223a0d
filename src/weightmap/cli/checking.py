"""The commands that check and compare models: ``verify``, ``sign``, ``diff`` and ``report``."""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap._messages import quoted
from weightmap.cli import outcome, show
from weightmap.cli.arguments import add_distribution, add_json, add_lenient, add_threads, add_weights, execution
from weightmap.core.arguments import sizes
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def add_verify(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``verify``."""
    sub.add_argument("files", metavar="FILE", nargs="+", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("-v", "--verbose", action="store_true", help="list the checks")
    sub.add_argument(
        "--trust",
        metavar="DIGESTS",
        help="also compare the SHA-256 of whole files with the digests recorded beside the model (recorded), with one "
        "file's digest (sha256:DIGITS), with a list (SHA256SUMS), or with a signature (its bundle)",
    )
    sub.add_argument("--key", metavar="PEM", help="the public key that checks the signature")
    sub.add_argument(
        "--certificate", metavar="PEM", action="append", help="a certificate that vouches for the signer (repeatable)"
    )
    sub.add_argument(
        "--identity",
        metavar="NAME",
        help="the name, e-mail address or URI that the certificate of the signer must have",
    )
    add_weights(sub, "check")
    add_threads(sub)
    add_json(sub)
    add_lenient(sub)
    add_distribution(sub)


def verify(args: argparse.Namespace) -> int:
    """Verify files one after the other; the worst outcome is the exit status."""
    if args.manifest is not None and len(args.files) > 1:
        raise outcome.UsageError("--manifest: for one FILE, which may be a model of many")
    args.trusted = _trusted(args)
    with execution(args) as run:
        if len(args.files) == 1:
            return _verify(args, args.files, run)
        from dataclasses import replace

        from weightmap.conversion.running import share_of  # 4 ms that `inspect` saves

        return _verify(args, share_of(run, args.files), replace(run, rank=0, world_size=1))


def _verify(args: argparse.Namespace, files: Sequence[str], run: wm.Run) -> int:
    """Verify this run's share of these files."""
    worst = outcome.OK
    documents: list[dict[str, object]] = []
    for path in files:
        start = time.perf_counter()
        document: dict[str, object] = {"path": path}
        try:
            name = os.path.basename(os.path.normpath(path))
            with outcome.opened(args, path, args.trusted) as file, show.progress_bar(f"verify {name}") as progress:
                report = wm.verify(file, progress=progress, run=run, threads=args.threads)
        except (TensorFileError, OSError, MemoryError) as error:
            outcome.suggest_lenient(args, error, path)
            worst = max(worst, outcome.status_of_verify(error))
            document |= {"ok": False, "error": outcome.error_document(error)}
            line = outcome.failed(path, outcome.reason(error))
            notes = []
        else:
            document |= {"ok": True, "scope": report.scope} | report._asdict() | {"path": path}
            took = show.duration(time.perf_counter() - start)
            kind = show.kind(report.format, report.layout)
            line = f"{show.clean(path)}: ok ({kind}, {sizes(report.nbytes)}, {took})"
            if report.structure_only is not None or report.digests is not None:
                line += f", {show.clean(report.scope)}"
            notes = [f"  checked: {show.clean(check)}" for check in report.checks] if args.verbose else []
            notes += [f"  warning: {warning}" for warning in show.folded(report.warnings)]
        documents.append(document)
        if not args.json:
            show.emit("\n".join([line, *notes]))
    if args.json:
        show.emit_json({"command": "verify", "ok": worst == outcome.OK, "files": documents})
    return worst


def _trusted(args: argparse.Namespace) -> Any:
    """Return the `trust` that the options of ``verify`` ask for."""
    if args.key is None and args.certificate is None:
        if args.identity is not None:
            raise outcome.UsageError("--identity: with --certificate")
        digest = re.fullmatch("sha256:(.*)|[0-9a-fA-F]{64}", args.trust or "")
        if digest is not None and not re.fullmatch("[0-9a-fA-F]{64}", digest[1] or ""):
            raise outcome.UsageError(f"--trust is {quoted(args.trust)}, expected sha256: and 64 hexadecimal digits")
        return args.trust
    if args.trust in {None, "recorded"}:
        raise outcome.UsageError("--key and --certificate check a signature: name its bundle by --trust FILE")
    if args.key is not None and (args.certificate or args.identity):
        raise outcome.UsageError("--key: without --certificate and --identity")
    from weightmap.trust import signature  # 2 ms that other commands save

    return signature(args.trust, key=args.key, certificate=args.certificate, identity=args.identity)


def add_sign(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``sign``."""
    sub.add_argument("file", metavar="MODEL", help="a file, or a model directory, to sign all its files")
    sub.add_argument("--key", metavar="PEM", required=True, help="the private key")
    sub.add_argument("--certificate", metavar="PEM", help="the certificate of the key")
    sub.add_argument(
        "--chain", metavar="PEM", action="append", help="a certificate between the key's and a trusted one (repeatable)"
    )
    sub.add_argument("--allow-symlinks", action="store_true", help="sign files behind symbolic links, as in a cache")
    sub.add_argument("--out", metavar="FILE", help="the bundle to write (default: model.sig in MODEL, or MODEL.sig)")


def sign(args: argparse.Namespace) -> int:
    """Sign a model."""
    from weightmap import trust  # as above

    chain, links = args.chain or (), args.allow_symlinks
    path = trust.sign(
        args.file, args.out, key=args.key, certificate=args.certificate, chain=chain, allow_symlinks=links
    )
    show.emit(f"{show.clean(path)}: signature of {show.clean(args.file)}")
    return outcome.OK


def add_diff(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``diff``."""
    sub.add_argument("a", metavar="A", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("b", metavar="B", help="another one")
    sub.add_argument("--tensors-only", action="store_true", help="compare neither metadata nor vocabulary")
    sub.add_argument(
        "--by-value",
        action="store_true",
        help="compare numbers, whatever the types that store them: quantised with dense, float32 with bfloat16",
    )
    add_weights(sub, "compare, by value,")
    for name, tolerance in (("rtol", "N times the absolute value in B"), ("atol", "N")):
        sub.add_argument(
            f"--{name}", type=float, metavar="N", help=f"compare by value, and let elements differ by {tolerance}"
        )
    add_json(sub)


def diff(args: argparse.Namespace) -> int:
    """Compare two files; 0 if they hold the same, 1 if not."""
    for name in ("rtol", "atol"):
        tolerance = getattr(args, name)
        if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
            raise outcome.UsageError(f"--{name} is {tolerance:g}, expected a finite number of at least 0")
    options = {name: getattr(args, name) for name in ("tensors_only", "by_value", "rtol", "atol")}
    with outcome.opened(args, args.a) as a, outcome.opened(args, args.b) as b:
        report = wm.diff(a, b, **options)
        disjoint = bool(report.only_in_a and report.only_in_b) and a.keys().isdisjoint(b)
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
        return outcome.OK if report.equal else outcome.DIFFERENT
    if report.equal:
        show.emit("no differences")
    else:
        _diff_text(args, report)
    if disjoint:
        cure = "convert A to GGUF for llama.cpp's names, or with --rename 'OLD*=NEW*', and compare the result"
        show.emit(f"\nno tensor has the same name in both: {cure}")
    for note in report.notes:
        show.emit(f"not counted: {show.clean(note)}")
    return outcome.OK if report.equal else outcome.DIFFERENT


def _diff_text(args: argparse.Namespace, report: wm.DiffReport) -> None:
    show.emit_pairs([("A", show.clean(args.a)), ("B", show.clean(args.b))])
    lone = [(name, "only in A") for name in report.only_in_a] + [(name, "only in B") for name in report.only_in_b]
    if lone:
        show.emit("")
        show.emit_table(("tensor", "where"), lone)
    if report.changed:
        columns = ("tensor", "what", "A", "B", "elements differing", "largest", "RMS", "relative", "worst row")
        count = 9 if any(change.relative is not None for change in report.changed) else 7  # two columns are about rows
        rows = [
            (
                change.name,
                change.what,
                change.a,
                change.b,
                "" if change.n_different is None else f"{change.n_different:,}",
                *("" if value is None else f"{value:.3g}" for value in (change.max_abs, change.rms, change.relative)),
                "" if change.worst_row is None else f"{change.worst_row:,}",
            )
            for change in report.changed
        ]
        show.emit("")
        show.emit_table(columns[:count], [row[:count] for row in rows], right=columns[4:])
    if report.metadata:
        show.emit("")
        show.emit_table(
            ("metadata", "A", "B"),
            [(key, _side(a), _side(b)) for key, a, b in report.metadata],
        )
    if report.vocab is not None:
        show.emit(f"\nvocabulary: {show.clean(report.vocab)}")


def _side(value: object) -> str:
    return "-" if value is None else show.shorten(show.value(value), 48)


def add_report(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    sub.add_argument("file", metavar="MODEL", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("other", metavar="OTHER", nargs="?", help="a model to compare it with")
    sub.add_argument("out", metavar="OUT", help="the page to write, whose name ends in .html")
    sub.add_argument("--no-verify", action="store_true", help="do not read the whole file to verify it")
    add_weights(sub, "show")
    add_json(sub)


def report(args: argparse.Namespace) -> int:
    """Write the page; 1 if verification failed, which the page reports."""
    from weightmap.report.writing import write_page

    if not args.out.lower().endswith(".html"):
        raise outcome.UsageError(f"OUT is {quoted(args.out)}, expected a name that ends in .html")
    start = time.perf_counter()
    with ExitStack() as stack:
        a = stack.enter_context(outcome.opened(args, args.file))
        b = None if args.other is None else stack.enter_context(outcome.opened(args, args.other))
        progress = stack.enter_context(show.progress_bar(f"report {Path(args.file).name}"))
        damage = write_page(args.out, a, b, verify=not args.no_verify, progress=progress)
    took = time.perf_counter() - start
    size = Path(args.out).stat().st_size
    if args.json:
        about = {"path": args.file, "other": args.other, "output": args.out, "nbytes": size}
        show.emit_json({"command": "report", **about, "verified": damage is None, "damage": damage, "seconds": took})
    else:
        if damage is not None:
            show.emit(outcome.failed(args.file, show.clean(damage)))
        show.emit(f"{show.clean(args.out)}: {sizes(size)}, {show.duration(took)}")
    return outcome.OK if damage is None else outcome.DIFFERENT
