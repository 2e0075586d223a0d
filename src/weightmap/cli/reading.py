"""The commands that look at one file: ``inspect`` and ``verify``."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.amounts import brief, sizes
from weightmap.cli import executing, show
from weightmap.cli.outcome import OK, UsageError, error_document, failed, reason, status_of_verify
from weightmap.errors import QuantError, TensorFileError, counted
from weightmap.model.modules import module_tree, separator
from weightmap.model.opening import open_privately
from weightmap.model.parts import located

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

# Lines that the tree shows of one module.
_MOST_LINES = 64


def inspect(args: argparse.Namespace) -> int:
    """Print the contents of a file."""
    with open_privately(args.file, strict=not args.lenient) as file:
        if args.json:
            show.emit_json(_inspect_document(args.file, file))
        else:
            _inspect_text(args.file, file, tree=args.tree or (sys.stdout.isatty() and not args.flat))
    return OK


def _totals(file: wm.TensorFile) -> dict[str, dict[str, int]]:
    """Return the number of tensors and of bytes of each dtype, the largest first."""
    tensors: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for info in file.infos():
        tensors[info.dtype] += 1
        nbytes[info.dtype] += info.nbytes
    return {dtype: {"tensors": tensors[dtype], "nbytes": total} for dtype, total in nbytes.most_common()}


def _storage(file: wm.TensorFile) -> Iterator[tuple[wm.TensorInfo, dict[str, Any] | None]]:
    """Yield each tensor, and how it is quantised; None for a dense one.

    This reads the header of a quantised tensor, and the mask of an adaptive one. Damage there is reported in place of
    the numbers, and does not stop `inspect`.
    """
    for info, place in zip(file.infos(), located(file), strict=True):
        if not place.row.dtype.quantized:  # the name does not tell: "int8" is a dense type and a scheme
            yield info, None
            continue
        try:
            scheme, block_size, scale_type, nbytes = place.storage()
        except QuantError as error:
            yield info, {"scheme": info.dtype, "problem": reason(error)}
            continue
        size = math.prod(info.shape)
        yield (
            info,
            {
                "scheme": scheme,
                "block_size": block_size or None,
                "scale_type": scale_type,
                "bits_per_weight": 8 * nbytes / size if size else None,
            },
        )


def _shards(file: wm.TensorFile) -> dict[str, str]:
    """Return the shard of each tensor, in which its offset counts; nothing for a single file."""
    return {tensor: shard for shard, part in file.shards.items() for tensor in part}


def _types(file: wm.TensorFile) -> dict[str, str]:
    """Return the types of metadata by key, where the format has several."""
    return getattr(file.metadata.copy(), "types", {})  # type: ignore[attr-defined]  # what a file's metadata is a view of


def _inspect_document(path: str, file: wm.TensorFile) -> dict[str, object]:
    vocab, tokenizer, shards = file.vocab, file.tokenizer, _shards(file)
    return {
        "command": "inspect",
        "path": path,
        "format": file.format,
        "layout": file.layout,
        "nbytes": file.nbytes,
        "metadata": file.metadata,
        **({"metadata_types": types} if (types := _types(file)) else {}),
        "vocab": None if vocab is None else {"size": len(vocab), "special_ids": vocab.special_ids},
        "config": file.config,
        "tokenizer": tokenizer
        and {
            "type": tokenizer.type,
            "kind": tokenizer.kind,
            "special_ids": tokenizer.special_ids,
            "payload_nbytes": len(tokenizer.payload),
        },
        "tensors": [
            {
                **info._asdict(),
                **({"shard": shards[info.name]} if shards else {}),
                **({} if how is None else how),
            }
            for info, how in _storage(file)
        ],
        "totals": _totals(file),
    }


def _inspect_text(path: str, file: wm.TensorFile, *, tree: bool) -> None:
    infos = file.infos()
    pairs = [
        ("file", show.clean(path)),
        ("format", show.kind(file.format, file.layout)),
        ("size", sizes(file.nbytes)),
        ("tensors", f"{len(infos):,}"),
    ]
    if file.vocab is not None:
        pairs.append(("vocabulary", f"{counted(len(file.vocab), 'token')}{_ids_text(file.vocab.special_ids)}"))
    if file.tokenizer is not None:
        payload = sizes(len(file.tokenizer.payload))
        kind = file.tokenizer.kind
        about = f"type {file.tokenizer.type} ({kind}), {payload}{_ids_text(file.tokenizer.special_ids)}"
        pairs.append(("tokenizer", about))
    show.emit_pairs(pairs)
    types = _types(file)
    if types:
        show.emit("\nmetadata")
        rows = [(k, types.get(k, ""), *show.some(v)[::-1]) for k, v in file.metadata.items()]
        cells = [(k, kind, "" if n is None else f"{n:,}", show.shorten(text)) for k, kind, n, text in rows]
        show.emit_table(("key", "type", "items", "value"), cells, right=("items",))
    for title, mapping in (("metadata", {} if types else file.metadata), ("config", file.config)):
        if mapping:
            show.emit(f"\n{title}")
            show.emit_pairs(((k, show.shorten(show.value(v))) for k, v in mapping.items()), indent="  ")
    if infos:
        show.emit("")
        (_tree_table if tree else _tensor_table)(file)
        show.emit("")
        show.emit_table(
            ("total", "tensors", "bytes"),
            [(dtype, f"{of['tensors']:,}", sizes(of["nbytes"])) for dtype, of in _totals(file).items()],
            right=("tensors", "bytes"),
        )


def _tensor_table(file: wm.TensorFile) -> None:
    """Print a line for each tensor; columns of quantisation only where there is one."""
    stored, shards = list(_storage(file)), _shards(file)
    columns, rows = ["name", "dtype", "shape", *(["shard"] if shards else []), "offset", "bytes"], []
    if any(how is not None for _, how in stored):
        columns += ["block", "scales", "bits"]
    for info, how in stored:
        where = [shards[info.name]] if shards else []
        row = [info.name, info.dtype, show.shape(info.shape), *where, info.offset, info.nbytes]
        if how is None:
            row += [""] * (len(columns) - len(row))
        elif "problem" in how:
            row += ["?", "?", "damaged"]
        else:
            bits = how["bits_per_weight"]
            row += [how["block_size"] or "", how["scale_type"], "" if bits is None else f"{bits:.3f}"]
        rows.append(row)
    show.emit_table(columns, rows, right=("offset", "bytes", "block", "bits"))


def _tree_table(file: wm.TensorFile) -> None:
    """Print a line for each module, those built alike in one, and for each tensor in them."""
    infos = file.infos()
    mark = separator(info.name for info in infos)
    root = module_tree(infos, mark)
    rows = []
    for line in root.lines(mark, _MOST_LINES):
        kind = ("", "") if line.tensor is None else (line.tensor.dtype, show.shape(line.tensor.shape))
        label = "  " * line.depth + (line.label or "(itself)")
        count = "" if line.tensor is not None and line.tensors == 1 else f"{line.tensors:,}"
        rows.append((label, show.bar(line.nbytes, root.nbytes, 12), brief(line.nbytes), count, *kind))
    show.emit_table(("module", "share", "size", "tensors", "type", "shape"), rows, right=("size", "tensors"))


def verify(args: argparse.Namespace) -> int:
    """Check files one after the other; the worst outcome decides the exit status."""
    if args.manifest is not None and len(args.files) > 1:
        raise UsageError("--manifest: for one FILE, which may be a model of many")
    with executing.execution(args) as how:
        if args.threads is not None:
            how["threads"] = args.threads
        files = args.files
        if len(files) > 1 and "world" in how:  # ranks share them out
            files = files[how.pop("rank", 0) :: how.pop("world")]
        return _verify(args, files, how)


def _verify(args: argparse.Namespace, files: list[str], how: dict[str, Any]) -> int:
    """Verify these files, with these arguments of `weightmap.verify`."""
    worst = OK
    documents: list[dict[str, object]] = []
    for path in files:
        start = time.perf_counter()
        document: dict[str, object] = {"path": path}
        try:
            with show.progress_bar(f"verify {Path(path).name}") as progress:
                report = wm.verify(path, strict=not args.lenient, progress=progress, **how)
        except (TensorFileError, OSError, MemoryError) as error:
            worst = max(worst, status_of_verify(error))
            document |= {"ok": False, "error": error_document(error)}
            line = failed(path, reason(error))
            notes = []
        else:
            document |= {"ok": True, "scope": report.scope} | report._asdict() | {"path": path}
            took = show.seconds(time.perf_counter() - start)
            kind = show.kind(report.format, report.layout)
            line = f"{show.clean(path)}: ok ({kind}, {sizes(report.nbytes)}, {took})"
            if report.structure_only is not None:
                line += f", {show.clean(report.scope)}"
            notes = [f"  checked: {show.clean(check)}" for check in report.checks] if args.verbose else []
            notes += [f"  warning: {show.clean(warning)}" for warning in report.warnings]
        documents.append(document)
        if not args.json:
            show.emit("\n".join([line, *notes]))
    if args.json:
        show.emit_json({"command": "verify", "ok": worst == OK, "files": documents})
    return worst


def _ids_text(ids: Mapping[str, int]) -> str:
    return "".join(f"{'; ' if not index else ', '}{show.clean(k)} {v}" for index, (k, v) in enumerate(ids.items()))
