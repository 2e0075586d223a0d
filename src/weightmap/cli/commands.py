"""What each command of the command line does: arguments in, exit status out."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import weightmap as wm
from weightmap.cli import show
from weightmap.errors import (
    ChecksumError,
    EncodeError,
    MissingDependencyError,
    TensorFileError,
    TensorNotFoundError,
)

Command = Callable[[argparse.Namespace], int]

_SCHEMA = 1

OK, DIFFERENT, USAGE, MALFORMED, INPUT_OUTPUT = range(5)


def status_of(error: BaseException) -> int:
    """Return the exit status for an error that ended a command."""
    if isinstance(error, TensorNotFoundError | EncodeError):
        return USAGE
    if isinstance(error, OSError | MissingDependencyError | MemoryError):
        return INPUT_OUTPUT
    return MALFORMED


def reason(error: BaseException) -> str:
    """Return the message of an error on one line."""
    if isinstance(error, OSError) and not isinstance(error, TensorFileError) and error.strerror:
        # str() of an OSError begins with "[Errno 2]", which tells a reader nothing.
        place = "" if error.filename is None else f"{_path_text(error.filename)}: "
        return show.clean(f"{place}{error.strerror}")
    if isinstance(error, MemoryError):
        return show.clean(f"out of memory: {error}" if str(error) else "out of memory")
    return show.clean(error)


def report(error: BaseException) -> None:
    """Print an error that ended a command."""
    show.complain(reason(error))


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
        "schema": _SCHEMA,
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
        ("format", _format_text(file.format, file.layout)),
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
            show.emit_pairs((f"  {show.clean(k)}", show.shorten(show.clean(v))) for k, v in mapping.items())
    if infos:
        show.emit("")
        show.emit_table(
            ("name", "dtype", "shape", "offset", "bytes"),
            [(info.name, info.dtype, _shape_text(info.shape), info.offset, info.nbytes) for info in infos],
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
                show.progress_bar(f"verify {path}") as progress,
                wm.open(path, strict=not args.lenient) as file,
            ):
                outcome = file.verify(progress=progress)
        except (TensorFileError, OSError, MemoryError) as error:
            # Bytes that contradict their checksum are what this command looks for; the rest could not even be checked.
            worst = max(worst, DIFFERENT if isinstance(error, ChecksumError) else status_of(error))
            document |= {"ok": False, "error": _error_document(error)}
            line = f"{show.clean(path)}: failed: {reason(error).removeprefix(f'{show.clean(path)}: ')}"
            notes = []
        else:
            document |= {
                "ok": True,
                "format": outcome.format,
                "layout": outcome.layout,
                "nbytes": outcome.nbytes,
                "checks": outcome.checks,
                "warnings": outcome.warnings,
            }
            took = show.seconds(time.perf_counter() - start)
            kind = _format_text(outcome.format, outcome.layout)
            line = f"{show.clean(path)}: ok ({kind}, {show.sizes(outcome.nbytes)}, {took})"
            notes = [f"  checked: {show.clean(check)}" for check in outcome.checks] if args.verbose else []
            notes += [f"  warning: {show.clean(warning)}" for warning in outcome.warnings]
        documents.append(document)
        if not args.json:
            show.emit("\n".join([line, *notes]))
    if args.json:
        show.emit_json({"schema": _SCHEMA, "command": "verify", "ok": worst == OK, "files": documents})
    return worst


def convert(args: argparse.Namespace) -> int:
    """Write a file in another format and say what went along."""
    if args.format is not None and args.format not in wm.formats():
        show.complain(f"unknown format {args.format!r}; known: {', '.join(wm.formats())}")
        return USAGE
    start = time.perf_counter()
    with show.progress_bar(f"convert {args.src}") as progress:
        outcome = wm.convert(
            args.src,
            args.dst,
            format=args.format,
            layout=args.layout,
            include=args.include,
            exclude=args.exclude,
            dtype=args.dtype,
            progress=progress,
        )
    took = time.perf_counter() - start
    size = Path(args.dst).stat().st_size
    if args.json:
        show.emit_json(
            {
                "schema": _SCHEMA,
                "command": "convert",
                "src": args.src,
                "dst": args.dst,
                "format": outcome.format,
                "layout": outcome.layout,
                "tensors": outcome.tensors,
                "nbytes": size,
                "dropped": [{"name": name, "reason": why} for name, why in outcome.dropped],
                "warnings": outcome.warnings,
                "seconds": took,
            }
        )
        return OK
    for name, why in outcome.dropped:
        show.emit(f"dropped {show.clean(repr(name))}: {show.clean(why)}")
    for warning in outcome.warnings:
        show.emit(f"warning: {show.clean(warning)}")
    show.emit(
        f"{show.clean(args.dst)}: {_format_text(outcome.format, outcome.layout)}, {outcome.tensors:,} tensors, "
        f"{show.sizes(size)}, {show.seconds(took)}"
    )
    return OK


def diff(args: argparse.Namespace) -> int:
    """Compare two files; 0 if they hold the same, 1 if not."""
    outcome = wm.diff(args.a, args.b)
    if args.json:
        show.emit_json(
            {
                "schema": _SCHEMA,
                "command": "diff",
                "a": args.a,
                "b": args.b,
                "equal": outcome.equal,
                "only_in_a": outcome.only_in_a,
                "only_in_b": outcome.only_in_b,
                "changed": [dataclasses.asdict(change) for change in outcome.changed],
                "metadata": [{"key": key, "a": a, "b": b} for key, a, b in outcome.metadata],
                "vocab": outcome.vocab,
            }
        )
    elif outcome.equal:
        show.emit("no differences")
    else:
        _diff_text(args, outcome)
    return OK if outcome.equal else DIFFERENT


def _diff_text(args: argparse.Namespace, outcome: wm.DiffReport) -> None:
    show.emit_pairs([("A", show.clean(args.a)), ("B", show.clean(args.b))])
    lone = [(name, "only in A") for name in outcome.only_in_a] + [(name, "only in B") for name in outcome.only_in_b]
    if lone:
        show.emit("")
        show.emit_table(("tensor", "where"), lone)
    if outcome.changed:
        show.emit("")
        show.emit_table(
            ("tensor", "what", "A", "B", "elements", "largest"),
            [
                (
                    change.name,
                    change.what,
                    change.a,
                    change.b,
                    "" if change.n_different is None else f"{change.n_different:,}",
                    "" if change.max_abs is None else f"{change.max_abs:.3g}",
                )
                for change in outcome.changed
            ],
            right=("elements", "largest"),
        )
    if outcome.metadata:
        show.emit("")
        show.emit_table(
            ("metadata", "A", "B"),
            [(key, _side(a), _side(b)) for key, a, b in outcome.metadata],
        )
    if outcome.vocab is not None:
        show.emit(f"\nvocabulary: {show.clean(outcome.vocab)}")


def export(args: argparse.Namespace) -> int:
    """Write one tensor as a ``.npy`` file, through a temporary file beside it."""
    with wm.open(args.file) as file:
        value = file[args.name]
        info = file.info(args.name)
        # The types of ml_dtypes would be written as raw "void" records that numpy.load cannot interpret.
        native = isinstance(value, np.ndarray) and value.dtype.type.__module__ == "numpy"
        array = value if native else file.read(args.name, np.float32)
        _save_npy(Path(args.out), array)
    if not native:
        show.emit(f"{show.clean(repr(args.name))} is {info.dtype}, which .npy files lack: written as float32 values")
    size = show.sizes(Path(args.out).stat().st_size)
    show.emit(f"{show.clean(args.out)}: {array.dtype} {_shape_text(array.shape)}, {size}")
    return OK


def _save_npy(path: Path, array: np.ndarray) -> None:
    """Write `array` to a new file and move it to `path`.

    Never in place: `path` may be the mapped file itself, or hold the only good copy when the disk is full.
    """
    from weightmap.save import atomic_writer

    with atomic_writer(path) as stream:
        np.save(stream, array)


def lookup(args: argparse.Namespace) -> int:
    """Print the embeddings of words; 1 if one of them has none."""
    missing = []
    found: dict[str, object] = {}
    with wm.open(args.file) as file:
        embeddings = file.embeddings
        if embeddings is None:
            show.complain(f"{show.clean(args.file)}: holds no vocabulary with one matrix of embeddings")
            return USAGE
        for word in args.words:
            vector = embeddings.get(word)
            if vector is None:
                missing.append(word)
                found[word] = None
                continue
            found[word] = vector.tolist()
            if not args.json:
                show.emit(" ".join([show.clean(word), *(format(value, ".6g") for value in vector.tolist())]))
    if args.json:
        show.emit_json({"schema": _SCHEMA, "command": "lookup", "path": args.file, "embeddings": found})
    for word in missing:
        show.complain(f"no embedding for {show.clean(repr(word))}")
    return DIFFERENT if missing else OK


def demo(args: argparse.Namespace) -> int:
    """Run the demonstration."""
    from weightmap import demo as demonstration

    return demonstration.run(args.model, args.sentences)


def _error_document(error: BaseException) -> dict[str, object]:
    document: dict[str, object] = {"type": type(error).__name__, "message": reason(error)}
    if isinstance(error, TensorFileError):
        document |= {"field": error.field, "offset": error.offset}
    return document


def _format_text(name: str, layout: str | None) -> str:
    return name if layout is None else f"{name}, {layout} layout"


def _ids_text(ids: Mapping[str, int]) -> str:
    return "".join(f"{'; ' if not index else ', '}{show.clean(k)} {v}" for index, (k, v) in enumerate(ids.items()))


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _path_text(path: object) -> str:
    return path.decode("utf-8", "backslashreplace") if isinstance(path, bytes) else str(path)


def _side(value: object) -> str:
    return "-" if value is None else show.shorten(show.clean(value), 48)
