"""The commands that show the content of a file: ``inspect`` and ``export``."""

from __future__ import annotations

import io
import itertools
import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.checkpoints.configuration import TRAINING, Weight, as_parameters, weight_of
from weightmap.cli import show
from weightmap.cli.arguments import add_json, add_lenient, add_weights, text
from weightmap.cli.outcome import OK, UsageError, opened, reason
from weightmap.core.arguments import brief, sizes, takes
from weightmap.core.dtypes import numpy_dtype
from weightmap.core.hooks import later
from weightmap.core.model.internals import check_unchanged, dense_row, named_rows, rows_of, warnings_of, where_of
from weightmap.errors import QuantError, TensorFileError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import weightmap as wm
    from weightmap.core.bytes.sink import Sink
    from weightmap.core.table.table import Row

    _Chosen: TypeAlias = list[tuple[wm.TensorInfo, Row]]

# Only `export` writes.
_check_not_read: Callable[..., None] = later("weightmap.huggingface.companion_files", "check_not_read")
_pieces: Callable[..., Any] = later("weightmap.core.model.saving", "pieces")
_new_plan: Callable[..., Any] = later("weightmap.core.bytes.sink", "WritePlan")
_write_plan: Callable[..., int] = later("weightmap.core.bytes.atomic", "write_plan")
# Only quantised checkpoints need them.
_storage_of: Callable[..., Any] = later("weightmap.checkpoints.weights", "storage_of")
_stored_rows: Callable[..., Any] = later("weightmap.checkpoints.weights", "stored_rows")
# Only a terminal shows the tree.
module_tree: Callable[..., Any] = later("weightmap.report.modules", "module_tree")
separator: Callable[..., Any] = later("weightmap.report.modules", "separator")
label_of: Callable[..., Any] = later("weightmap.report.modules", "label_of")

# Most lines of a module in the tree, and of metadata.
_MAX_LINES = 64


def add_inspect(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``inspect``."""
    sub.add_argument("files", metavar="FILE", nargs="+", help="a tensor file, a model directory or an *.index.json")
    shape = sub.add_mutually_exclusive_group()
    shape.add_argument(
        "--tree", action="store_true", help="show modules, those built alike in one line (the default on a terminal)"
    )
    shape.add_argument(
        "--flat",
        action="store_true",
        help="show a line for each tensor (the default in a pipe, without training state)",
    )
    for name, what in (
        ("include", "list only tensors with such a name, and only files that have one"),
        ("exclude", "list no tensors with such a name"),
    ):
        sub.add_argument(f"--{name}", metavar="GLOB", type=text, action="append", help=f"{what} (repeatable)")
    sub.add_argument("--sort", choices=("nbytes", "name"), help="list the largest tensors first, or by name (flat)")
    add_weights(sub, "list")
    add_json(sub)
    add_lenient(sub)


def inspect(args: argparse.Namespace) -> int:
    """Print the contents of files; with globs, only of files with matching tensors."""
    tree = args.tree or (sys.stdout.isatty() and not args.flat and args.sort is None)
    selective, count = bool(args.include or args.exclude), 0
    documents: list[dict[str, object]] = []
    shown_any = False
    for path in args.files:
        args.file = path  # for errors
        with opened(args, path) as file:
            chosen = _chosen(file, args)
            count += len(file)
            if selective and not chosen:
                continue
            weight, problem = _weight(file, chosen, selective=selective)
            if args.json:
                document = _inspect_document(path, file, chosen)
                documents.append(document | {"weight": weight and weight._asdict(), "problem": problem})
            else:
                if shown_any:
                    show.emit("")
                parameters = ""
                if args.weights or not selective:
                    parameters = f"not known: {problem}" if weight is None else str(weight)
                fold = not (selective or args.flat or args.sort)
                _inspect_text(path, file, chosen, parameters, tree=tree, selective=selective, fold=fold)
            shown_any = True
    if not shown_any:
        globs = [f"--{name} {quoted(glob)}" for name in ("include", "exclude") for glob in getattr(args, name) or ()]
        raise UsageError(f"{' '.join(globs)}: none of {counted(count, 'tensor')} is left")
    if args.json:
        several = len(args.files) > 1
        show.emit_json({"command": "inspect", **({"files": documents} if several else documents[0])})
    return OK


def _chosen(file: wm.TensorFile, args: argparse.Namespace) -> _Chosen:
    """Return the tensors to list, in order."""
    chosen = list(_stored_rows(file) if args.weights else ((row.info(name), row) for name, row in named_rows(file)))
    if args.include or args.exclude:
        chosen = [pair for pair in chosen if takes(pair[0].name, args.include, args.exclude)]
    if args.sort is not None:
        chosen.sort(key=lambda pair: (-pair[0].nbytes if args.sort == "nbytes" else 0, pair[0].name))
    return chosen


def _weight(file: wm.TensorFile, chosen: _Chosen, *, selective: bool) -> tuple[Weight | None, str | None]:
    """Return the weight of a file's parameters, or of the chosen ones; if it is unknown, None and the reason."""
    try:
        model = as_parameters(file)
        if model is file:
            return weight_of((info.name, row) for info, row in chosen), None
        names = {info.name for info, _ in chosen}
        pairs = zip(model, rows_of(model), strict=True)
        return weight_of(pair for pair in pairs if not selective or pair[0] in names), None
    except (TensorFileError, OSError) as error:  # a configuration beside the file may be damaged
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
    """Yield each tensor, and its quantisation; None for a dense tensor.

    Reads the header of a quantised tensor, and the mask of an adaptive one. Damage there takes the place of the numbers
    and does not stop `inspect`.
    """
    for info, row in chosen:
        storage = None if row.geometry is None else _storage_of(row)
        if storage is None and not row.dtype.quantized:  # "int8" names a dense type and a scheme
            yield info, None
            continue
        try:
            scheme, block_size, scale_type, nbytes = storage or row.storage()
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
    """Return the types of metadata by key, if the format has several."""
    return getattr(file.metadata.copy(), "types", {})  # type: ignore[attr-defined]  # a view with copy()


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
                **(storage or {}),
            }
            for info, storage in _storage(chosen)
        ],
        "totals": _totals(chosen),
        "warnings": warnings_of(file),
    }


def _inspect_text(
    path: str, file: wm.TensorFile, chosen: _Chosen, parameters: str, *, tree: bool, selective: bool, fold: bool
) -> None:
    about = [("file", show.clean(path))] if selective else _about(path, file, chosen)
    show.emit_pairs([*about, *([("parameters", show.clean(parameters))] if parameters else [])])
    if chosen:
        show.emit("")
        weights = [pair for pair in chosen if not TRAINING.match(pair[0].name)] if fold else chosen
        listed = weights or chosen  # a file with only training state is listed whole
        if tree:
            _tree_table([info for info, _ in listed])
        else:
            _tensor_table(file, listed)
        if len(listed) < len(chosen):
            nbytes = sum(info.nbytes for info, _ in chosen) - sum(info.nbytes for info, _ in listed)
            unlisted = f"{counted(len(chosen) - len(listed), 'tensor')} of training state, {sizes(nbytes)}"
            show.emit(f"... and {unlisted}: --flat lists them")
        show.emit("")
        show.emit_table(
            ("total", "tensors", "bytes"),
            [(dtype, f"{total['tensors']:,}", sizes(total["nbytes"])) for dtype, total in _totals(chosen).items()],
            right=("tensors", "bytes"),
        )
    if not selective:
        _metadata_text(file)
    for warning in show.folded(warnings_of(file)):
        show.emit(f"\nwarning: {warning}")


def _about(path: str, file: wm.TensorFile, every: _Chosen) -> list[tuple[str, str]]:
    """Return the labels and values of the summary of a file."""
    pairs = [
        ("file", show.clean(path)),
        ("format", show.kind(file.format, file.layout)),
        ("size", sizes(file.nbytes)),
        ("tensors", f"{len(file):,}, of {counted(sum(math.prod(info.shape) for info, _ in every), 'element')}"),
    ]
    if file.vocab is not None:
        pairs.append(("vocabulary", f"{counted(len(file.vocab), 'token')}{_ids_text(file.vocab.special_ids)}"))
    if file.tokenizer is not None:
        payload = sizes(len(file.tokenizer.payload))
        kind = file.tokenizer.kind
        about = f"type {file.tokenizer.type} ({kind}), {payload}{_ids_text(file.tokenizer.special_ids)}"
        pairs.append(("tokenizer", about))
    return pairs


def _ids_text(ids: Mapping[str, int]) -> str:
    return "".join(f"{'; ' if not index else ', '}{show.clean(k)} {v}" for index, (k, v) in enumerate(ids.items()))


def _metadata_text(file: wm.TensorFile) -> None:
    """Print metadata and configuration."""
    types = _types(file)
    if types:
        show.emit("\nmetadata")
        shown = itertools.islice(file.metadata.items(), _MAX_LINES)
        rows = [(k, types.get(k, ""), *show.some(v)[::-1]) for k, v in shown]
        cells = [(k, kind, "" if n is None else f"{n:,}", show.shorten(text)) for k, kind, n, text in rows]
        show.emit_table(("key", "type", "items", "value"), cells, right=("items",))
        _emit_unlisted(len(file.metadata))
    for title, mapping in (("metadata", {} if types else file.metadata), ("config", file.config)):
        if mapping:
            show.emit(f"\n{title}")
            lines = _folded(mapping)
            first = [(key, show.shorten(text)) for key, _, text in itertools.islice(lines, _MAX_LINES)]
            show.emit_pairs(first, indent="  ")
            _emit_unlisted(_MAX_LINES + sum(count for _, count, _ in lines))


def _folded(mapping: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yield a key, the number of its entries, and their text. Numbered keys, the items of a list, share a line."""

    def split(key: str) -> tuple[str, str]:
        parent, _, last = key.rpartition(".")
        return (parent, "") if parent and last.isascii() and last.isdigit() else (parent, last)

    for (parent, last), group in itertools.groupby(mapping, split):
        keys = [*group]
        if last or len(keys) == 1:
            yield from ((key, 1, show.value(mapping[key])) for key in keys)
        else:
            values = ", ".join(show.value(mapping[key]) for key in keys[:8])
            numbers = label_of([key[len(parent) + 1 :] for key in keys])
            yield f"{parent}.{numbers}", len(keys), values + ", ..." * (len(keys) > 8)


def _emit_unlisted(count: int) -> None:
    """Print the number of metadata entries that are not listed."""
    if count > _MAX_LINES:
        show.emit(f"  ... and {count - _MAX_LINES:,} more: --json lists all")


def _tensor_table(file: wm.TensorFile, chosen: _Chosen) -> None:
    """Print a line for each tensor, with columns of quantisation if any tensor is quantised."""
    infos, shards = [info for info, _ in chosen], where_of(file)
    columns: dict[str, Sequence[object]] = {
        "name": [info.name for info in infos],
        "dtype": [info.dtype for info in infos],
        "shape": [show.shape(info.shape) for info in infos],
        **({"shard": [shards[info.name] for info in infos]} if shards else {}),
        "offset": [info.offset for info in infos],
        "bytes": [info.nbytes for info in infos],
    }
    storages = [storage for _, storage in _storage(chosen)]
    if any(storages):
        quantisation = zip(*map(_quantisation, storages), strict=True)
        columns |= zip(("block", "scales", "bits"), quantisation, strict=True)
    show.emit_columns(columns, right=("offset", "bytes", "block", "bits"))


def _quantisation(storage: dict[str, Any] | None) -> tuple[object, object, str]:
    """Return the cells about the quantisation of a tensor."""
    if storage is None:
        return "", "", ""
    if "problem" in storage:
        return "?", "?", "damaged"
    bits = storage["bits_per_weight"]
    return storage["block_size"] or "", storage["scale_type"], "" if bits is None else f"{bits:.3f}"


def _tree_table(infos: Sequence[wm.TensorInfo]) -> None:
    """Print a line for each module and for each tensor; modules that are built alike share a line."""
    mark = separator(info.name for info in infos)
    root = module_tree(infos, mark)
    rows = []
    for line in root.lines(mark, _MAX_LINES):
        kind = ("", "") if line.tensor is None else (line.tensor.dtype, show.shape(line.tensor.shape))
        label = "  " * line.depth + (line.label or "(itself)")
        count = "" if line.tensor is not None and line.tensors == 1 else f"{line.tensors:,}"
        rows.append((label, show.bar(line.nbytes, root.nbytes, 12), brief(line.nbytes), count, *kind))
    show.emit_table(("module", "share", "size", "tensors", "type", "shape"), rows, right=("size", "tensors"))


def add_export(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``export``."""
    sub.add_argument("file", metavar="FILE", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("name", metavar="NAME", type=text, help="the name of the tensor")
    sub.add_argument("out", metavar="OUT", help="the file to write, whose name ends in .npy")
    add_weights(sub, "export one of")
    add_lenient(sub)


def export(args: argparse.Namespace) -> int:
    """Write one tensor as a ``.npy`` file, through a temporary file beside it."""
    with opened(args, args.file) as file:
        _check_not_read(file, args.out)
        if not args.out.lower().endswith(".npy"):
            raise UsageError(f"OUT is {quoted(args.out)}, expected a name that ends in .npy, the format of export")
        row = dense_row(file, args.name)
        row.source.check_size(f"tensor {quoted(args.name)}", row.nbytes)
        check_unchanged(file)
        stored = None if row.dtype.quantized else numpy_dtype(row.dtype)
        chunks: Iterable[bytes | memoryview]
        if native := stored is not None and stored.type.__module__ == "numpy":
            dtype, chunks = stored, row.source.chunks(row.offset, row.nbytes)
        else:  # numpy.load reads the types of ml_dtypes as raw "void" records
            dtype, chunks = np.dtype("<f4"), _pieces(file.read(args.name, np.float32))
        size = _save_npy(args.out, dtype, row.shape, chunks)
    if not native:
        what = f"{show.clean(quoted(args.name))} is {row.dtype.name}, which .npy files lack"
        show.emit(f"{what}: written as float32 values")
    show.emit(f"{show.clean(args.out)}: {dtype.name} {show.shape(row.shape)}, {sizes(size)}")
    return OK


def _save_npy(path: str, dtype: np.dtype[Any], shape: tuple[int, ...], chunks: Iterable[bytes | memoryview]) -> int:
    """Write an array, row-major and little-endian, as `wm.save` writes files; return the size of the file.

    Never writes in place, because a process may have mapped the old file, and never over a device or a FIFO.
    """
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, header)

    def write(sink: Sink) -> None:
        sink.write(head.getvalue())
        for chunk in chunks:
            sink.write(chunk)

    return _write_plan(path, _new_plan(len(head.getvalue()) + math.prod(shape) * dtype.itemsize, write))
