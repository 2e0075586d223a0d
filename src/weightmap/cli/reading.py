"""The commands that look at one file: ``inspect`` and ``verify``."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import weightmap as wm
from weightmap.cli import show
from weightmap.cli.outcome import DIFFERENT, OK, reason, status_of
from weightmap.errors import ChecksumError, TensorFileError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


def inspect(args: argparse.Namespace) -> int:
    """Print what a file holds."""
    with wm.open(args.file, strict=not args.lenient) as file:
        if args.json:
            show.emit_json(_inspect_document(args.file, file))
        else:
            _inspect_text(args.file, file)
    return OK


def _totals(file: wm.TensorFile) -> dict[str, dict[str, int]]:
    """Return the number of tensors and of bytes of each dtype, the largest first."""
    tensors: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for info in file.infos():
        tensors[info.dtype] += 1
        nbytes[info.dtype] += info.nbytes
    return {dtype: {"tensors": tensors[dtype], "nbytes": total} for dtype, total in nbytes.most_common()}


def _inspect_document(path: str, file: wm.TensorFile) -> dict[str, object]:
    vocab, tokenizer = file.vocab, file.tokenizer
    return {
        "command": "inspect",
        "path": path,
        "format": file.format,
        "layout": file.layout,
        "nbytes": file.nbytes,
        "metadata": file.metadata,
        "vocab": None if vocab is None else {"size": len(vocab), "special_ids": vocab.special_ids},
        "config": file.config,
        "tokenizer": tokenizer
        and {
            "type": tokenizer.type,
            "special_ids": tokenizer.special_ids,
            "payload_nbytes": len(tokenizer.payload),
        },
        "tensors": [
            {
                "name": info.name,
                "dtype": info.dtype,
                "shape": info.shape,
                "offset": info.offset,
                "nbytes": info.nbytes,
            }
            for info in file.infos()
        ],
        "totals": _totals(file),
    }


def _inspect_text(path: str, file: wm.TensorFile) -> None:
    infos = file.infos()
    pairs = [
        ("file", show.clean(path)),
        ("format", show.kind(file.format, file.layout)),
        ("size", show.sizes(file.nbytes)),
        ("tensors", f"{len(infos):,}"),
    ]
    if file.vocab is not None:
        pairs.append(("vocabulary", f"{len(file.vocab):,} tokens{_ids_text(file.vocab.special_ids)}"))
    if file.tokenizer is not None:
        payload = show.sizes(len(file.tokenizer.payload))
        pairs.append(("tokenizer", f"type {file.tokenizer.type}, {payload}{_ids_text(file.tokenizer.special_ids)}"))
    show.emit_pairs(pairs)
    for title, mapping in (("metadata", file.metadata), ("config", file.config)):
        if mapping:
            show.emit(f"\n{title}")
            show.emit_pairs((f"  {show.clean(k)}", show.shorten(show.value(v))) for k, v in mapping.items())
    if infos:
        show.emit("")
        show.emit_table(
            ("name", "dtype", "shape", "offset", "bytes"),
            [(info.name, info.dtype, show.shape(info.shape), info.offset, info.nbytes) for info in infos],
            right=("offset", "bytes"),
        )
        show.emit("")
        show.emit_table(
            ("total", "tensors", "bytes"),
            [(dtype, f"{of['tensors']:,}", show.sizes(of["nbytes"])) for dtype, of in _totals(file).items()],
            right=("tensors", "bytes"),
        )


def verify(args: argparse.Namespace) -> int:
    """Check files one after the other; the worst outcome decides the exit status."""
    worst = OK
    documents: list[dict[str, object]] = []
    for path in args.files:
        start = time.perf_counter()
        document: dict[str, object] = {"path": path}
        try:
            with (
                show.progress_bar(f"verify {Path(path).name}") as progress,
                wm.open(path, strict=not args.lenient) as file,
            ):
                report = file.verify(progress=progress)
        except (TensorFileError, OSError, MemoryError) as error:
            # Bytes that contradict their checksum are what this command looks for; the rest could not even be checked.
            worst = max(worst, DIFFERENT if isinstance(error, ChecksumError) else status_of(error))
            document |= {"ok": False, "error": _error_document(error)}
            line = f"{show.clean(path)}: failed: {reason(error).removeprefix(f'{show.clean(path)}: ')}"
            notes = []
        else:
            document |= {
                "ok": True,
                "format": report.format,
                "layout": report.layout,
                "nbytes": report.nbytes,
                "checks": report.checks,
                "warnings": report.warnings,
            }
            took = show.seconds(time.perf_counter() - start)
            kind = show.kind(report.format, report.layout)
            line = f"{show.clean(path)}: ok ({kind}, {show.sizes(report.nbytes)}, {took})"
            notes = [f"  checked: {show.clean(check)}" for check in report.checks] if args.verbose else []
            notes += [f"  warning: {show.clean(warning)}" for warning in report.warnings]
        documents.append(document)
        if not args.json:
            show.emit("\n".join([line, *notes]))
    if args.json:
        show.emit_json({"command": "verify", "ok": worst == OK, "files": documents})
    return worst


def _error_document(error: BaseException) -> dict[str, object]:
    document: dict[str, object] = {"type": type(error).__name__, "message": reason(error)}
    if isinstance(error, TensorFileError):
        document |= {"field": error.field, "offset": error.offset}
    return document


def _ids_text(ids: Mapping[str, int]) -> str:
    return "".join(f"{'; ' if not index else ', '}{show.clean(k)} {v}" for index, (k, v) in enumerate(ids.items()))
