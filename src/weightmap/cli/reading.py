"""The commands that examine files: ``inspect`` and ``verify``."""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.checkpoints.weights import TRAINING, as_parameters, storage_of, stored_rows, weight_of
from weightmap.cli import executing, show
from weightmap.cli.outcome import OK, UsageError, error_document, failed, reason, status_of_verify, suggest_lenient
from weightmap.core.amounts import brief, sizes
from weightmap.core.globs import takes
from weightmap.core.lazy import later
from weightmap.core.model.internals import each_row, warnings_of, where_of
from weightmap.core.model.opening import open_privately
from weightmap.errors import QuantError, TensorFileError, counted, quoted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from weightmap.checkpoints.weights import Weight
    from weightmap.core.table.table import Row

    _Chosen: TypeAlias = list[tuple[wm.TensorInfo, Row]]

# Only a terminal shows the tree.
module_tree: Callable[..., Any] = later("weightmap.report.modules", "module_tree")
separator: Callable[..., Any] = later("weightmap.report.modules", "separator")
label_of: Callable[..., Any] = later("weightmap.report.modules", "label_of")

# Most lines per module in the tree, and most entries of metadata
_MOST_LINES = 64


def inspect(args: argparse.Namespace) -> int:
    """Print the contents of files; with globs, only of files with matching tensors."""
    tree = args.tree or (sys.stdout.isatty() and not args.flat and args.sort is None)
    selective, count = bool(args.include or args.exclude), 0
    documents: list[dict[str, object]] = []
    found = False
    for path in args.files:
        args.file = path  # an error is about this one
        with open_privately(path, strict=not args.lenient) as opened:
            file = as_parameters(opened) if args.weights else opened
            chosen, count = _chosen(file, args), count + len(file)
            if selective and not chosen:
                continue
            weight, problem = _weight(file, chosen, selective=selective)
            if args.json:
                document = _inspect_document(path, file, chosen)
                documents.append(document | {"weight": weight and weight._asdict(), "problem": problem})
            else:
                if found:
                    show.emit("")
                parameters = f"not known: {problem}" if weight is None else str(weight)
                parameters = "" if selective and not args.weights else parameters
                fold = not (selective or args.flat or args.sort)
                _inspect_text(path, file, chosen, parameters, tree=tree, selective=selective, fold=fold)
            found = True
    if not found:
        given = [f"--{name} {quoted(glob)}" for name in ("include", "exclude") for glob in getattr(args, name) or ()]
        raise UsageError(f"{' '.join(given)}: none of {counted(count, 'tensor')} is left")
    if args.json:
        several = len(args.files) > 1
        show.emit_json({"command": "inspect", **({"files": documents} if several else documents[0])})
    return OK


def _chosen(file: wm.TensorFile, args: argparse.Namespace) -> _Chosen:
    """Return the tensors to list, in the order to list them."""
    every = stored_rows(file) if args.weights else ((row.info(name), row) for name, row in each_row(file))
    chosen = [(info, row) for info, row in every if takes(info.name, args.include, args.exclude)]
    if args.sort is not None:
        chosen.sort(key=lambda one: (-one[0].nbytes if args.sort == "nbytes" else 0, one[0].name))
    return chosen


def _weight(file: wm.TensorFile, chosen: _Chosen, *, selective: bool) -> tuple[Weight | None, str | None]:
    """Weigh the parameters of a file or of the chosen ones; or return why that is not possible."""
    try:
        model = as_parameters(file)
        names = {info.name for info, _ in chosen}
        return weight_of(pair for pair in stored_rows(model) if not selective or pair[0].name in names), None
    except (TensorFileError, OSError) as error:  # of a configuration beside the file
        return None, reason(error)


def _totals(chosen: _Chosen) -> dict[str, dict[str, int]]:
    """Return the number of tensors and of bytes of each dtype, the largest first."""
    tensors: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for info, _ in chosen:
        tensors[info.dtype] += 1
        nbytes[info.dtype] += info.nbytes
    return {dtype: {"tensors": tensors[dtype], "nbytes": total} for dtype, total in nbytes.most_common()}


def _storage(chosen: _Chosen) -> Iterator[tuple[wm.TensorInfo, dict[str, Any] | None]]:
    """Yield each tensor, and how it is quantised; None for a dense one.

    Reads the header of a quantised tensor, and the mask of an adaptive one. Damage there replaces the numbers, and does
    not stop `inspect`.
    """
    for info, place in chosen:
        how = None if place.geometry is None else storage_of(place)
        if how is None and not place.dtype.quantized:  # the name does not tell: "int8" is a dense type and a scheme
            yield info, None
            continue
        try:
            scheme, block_size, scale_type, nbytes = how or place.storage()
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


def _types(file: wm.TensorFile) -> dict[str, str]:
    """Return the types of metadata by key, where the format has several."""
    return getattr(file.metadata.copy(), "types", {})  # type: ignore[attr-defined]  # what a file's metadata is a view of


def _inspect_document(path: str, file: wm.TensorFile, chosen: _Chosen) -> dict[str, object]:
    vocab, tokenizer, shards = file.vocab, file.tokenizer, where_of(file)
    return {
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
            for info, how in _storage(chosen)
        ],
        "totals": _totals(chosen),
        "warnings": warnings_of(file),
    }


def _inspect_text(
    path: str, file: wm.TensorFile, chosen: _Chosen, parameters: str, *, tree: bool, selective: bool, fold: bool
) -> None:
    about = [("file", show.clean(path))] if selective else _about(path, file)
    show.emit_pairs([*about, *([("parameters", show.clean(parameters))] if parameters else [])])
    if chosen:
        show.emit("")
        listed = [pair for pair in chosen if not TRAINING.match(pair[0].name)] if fold else chosen
        listed = listed or chosen
        if tree:
            _tree_table([info for info, _ in listed])
        else:
            _tensor_table(file, listed)
        if len(listed) < len(chosen):
            nbytes = sum(info.nbytes for info, _ in chosen) - sum(info.nbytes for info, _ in listed)
            state = f"{counted(len(chosen) - len(listed), 'tensor')} of training state, {sizes(nbytes)}"
            show.emit(f"... and {state}: --flat lists them")
        show.emit("")
        show.emit_table(
            ("total", "tensors", "bytes"),
            [(dtype, f"{of['tensors']:,}", sizes(of["nbytes"])) for dtype, of in _totals(chosen).items()],
            right=("tensors", "bytes"),
        )
    if not selective:
        _metadata_text(file)
    for warning in warnings_of(file):
        show.emit(f"\nwarning: {show.clean(warning)}")


def _about(path: str, file: wm.TensorFile) -> list[tuple[str, str]]:
    """Return labels and values: what a file is."""
    pairs = [
        ("file", show.clean(path)),
        ("format", show.kind(file.format, file.layout)),
        ("size", sizes(file.nbytes)),
        ("tensors", f"{len(file):,}, of {counted(sum(math.prod(info.shape) for info in file.infos()), 'element')}"),
    ]
    if file.vocab is not None:
        pairs.append(("vocabulary", f"{counted(len(file.vocab), 'token')}{_ids_text(file.vocab.special_ids)}"))
    if file.tokenizer is not None:
        payload = sizes(len(file.tokenizer.payload))
        kind = file.tokenizer.kind
        about = f"type {file.tokenizer.type} ({kind}), {payload}{_ids_text(file.tokenizer.special_ids)}"
        pairs.append(("tokenizer", about))
    return pairs


def _metadata_text(file: wm.TensorFile) -> None:
    """Print metadata and configuration."""
    types = _types(file)
    if types:
        show.emit("\nmetadata")
        shown = itertools.islice(file.metadata.items(), _MOST_LINES)
        rows = [(k, types.get(k, ""), *show.some(v)[::-1]) for k, v in shown]
        cells = [(k, kind, "" if n is None else f"{n:,}", show.shorten(text)) for k, kind, n, text in rows]
        show.emit_table(("key", "type", "items", "value"), cells, right=("items",))
        _emit_unlisted(len(file.metadata))
    for title, mapping in (("metadata", {} if types else file.metadata), ("config", file.config)):
        if mapping:
            show.emit(f"\n{title}")
            lines = _folded(mapping)
            first = [(key, show.shorten(text)) for key, _, text in itertools.islice(lines, _MOST_LINES)]
            show.emit_pairs(first, indent="  ")
            _emit_unlisted(_MOST_LINES + sum(count for _, count, _ in lines))


def _folded(mapping: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yield a key, how many entries it stands for, and their text: one line for the items of a flattened list."""

    def parent(key: str) -> tuple[str, str]:
        before, _, last = key.rpartition(".")
        return (before, "") if before and last.isascii() and last.isdigit() else (before, last)

    for (before, last), group in itertools.groupby(mapping, parent):
        keys = [*group]
        if last or len(keys) == 1:
            yield from ((key, 1, show.value(mapping[key])) for key in keys)
        else:
            values = ", ".join(show.value(mapping[key]) for key in keys[:8])
            numbers = label_of([key[len(before) + 1 :] for key in keys])
            yield f"{before}.{numbers}", len(keys), values + ", ..." * (len(keys) > 8)


def _emit_unlisted(count: int) -> None:
    """Count the entries of metadata that are not listed."""
    if count > _MOST_LINES:
        show.emit(f"  ... and {count - _MOST_LINES:,} more: --json lists all")


def _tensor_table(file: wm.TensorFile, chosen: _Chosen) -> None:
    """Print a line for each tensor, with columns of quantisation if any tensor is quantised."""
    stored, shards = list(_storage(chosen)), where_of(file)
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


def _tree_table(infos: Sequence[wm.TensorInfo]) -> None:
    """Print a line for each module, those built alike in one, and for each tensor in them."""
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
    """Verify files one after the other; the worst outcome is the exit status."""
    if args.manifest is not None and len(args.files) > 1:
        raise UsageError("--manifest: for one FILE, which may be a model of many")
    args.trusted = _trusted(args)
    with executing.execution(args) as run:
        if len(args.files) == 1:
            return _verify(args, args.files, run)
        from dataclasses import replace

        from weightmap.conversion.running import share_of  # 4 ms, which `inspect` does without

        return _verify(args, share_of(run, args.files), replace(run, rank=0, world_size=1))


def _verify(args: argparse.Namespace, files: Sequence[str], run: wm.Run) -> int:
    """Verify this run's share of these files."""
    worst = OK
    documents: list[dict[str, object]] = []
    for path in files:
        start = time.perf_counter()
        document: dict[str, object] = {"path": path}
        try:
            with show.progress_bar(f"verify {os.path.basename(os.path.normpath(path))}") as progress:
                report = wm.verify(
                    path,
                    strict=not args.lenient,
                    progress=progress,
                    run=run,
                    threads=args.threads,
                    weights=args.weights,
                    trust=args.trusted,
                )
        except (TensorFileError, OSError, MemoryError) as error:
            suggest_lenient(args, error, path)
            worst = max(worst, status_of_verify(error))
            document |= {"ok": False, "error": error_document(error)}
            line = failed(path, reason(error))
            notes = []
        else:
            document |= {"ok": True, "scope": report.scope} | report._asdict() | {"path": path}
            took = show.seconds(time.perf_counter() - start)
            kind = show.kind(report.format, report.layout)
            line = f"{show.clean(path)}: ok ({kind}, {sizes(report.nbytes)}, {took})"
            if report.structure_only is not None or report.digests is not None:
                line += f", {show.clean(report.scope)}"
            notes = [f"  checked: {show.clean(check)}" for check in report.checks] if args.verbose else []
            notes += [f"  warning: {show.clean(warning)}" for warning in report.warnings]
        documents.append(document)
        if not args.json:
            show.emit("\n".join([line, *notes]))
    if args.json:
        show.emit_json({"command": "verify", "ok": worst == OK, "files": documents})
    return worst


def _trusted(args: argparse.Namespace) -> Any:
    """Return the `trust` that the options of ``verify`` ask for."""
    if args.key is None and args.certificate is None:
        if args.identity is not None:
            raise UsageError("--identity: with --certificate")
        return args.trust
    if args.trust in {None, "recorded"}:
        raise UsageError("--key and --certificate check a signature: name its bundle by --trust FILE")
    if args.key is not None and (args.certificate or args.identity):
        raise UsageError("--key: without --certificate and --identity")
    from weightmap.trust import signature  # 2 ms, which the other commands do without

    return signature(args.trust, key=args.key, certificate=args.certificate, identity=args.identity)


def sign(args: argparse.Namespace) -> int:
    """Sign a model."""
    from weightmap import trust  # as above

    chain, links = args.chain or (), args.allow_symlinks
    path = trust.sign(
        args.file, args.out, key=args.key, certificate=args.certificate, chain=chain, allow_symlinks=links
    )
    show.emit(f"{show.clean(path)}: signature of {show.clean(args.file)}")
    return OK


def _ids_text(ids: Mapping[str, int]) -> str:
    return "".join(f"{'; ' if not index else ', '}{show.clean(k)} {v}" for index, (k, v) in enumerate(ids.items()))
