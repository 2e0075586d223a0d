"""Configuration, vocabulary and metadata that accompany a model's tensors, and what a target has no place for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.conversion.metadata import TYPES, fitted, typed
from weightmap.core.arguments import entries
from weightmap.core.formats import FORMATS
from weightmap.errors import counted, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from weightmap.core.formats import Format
    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row
    from weightmap.huggingface.directory import ModelDirectory
    from weightmap.typing import TokenizerLike


def file_metadata(file: TensorFile) -> dict[str, Any]:
    """Return the metadata of a file that a conversion takes along."""
    metadata: dict[str, Any] = file.metadata.copy()  # type: ignore[attr-defined]  # a TOML document with its text
    if file.layout == "sharded":
        for key in ("total_size", "total_parameters"):  # the books of the index, not what the model is
            metadata.pop(key, None)
    return typed(metadata)


def token_keys(file: TensorFile) -> set[str]:
    """Return the keys of the metadata that hold the tokens of a file's vocabulary."""
    keys = FORMATS[file.format].vocab_keys if file.format in FORMATS else {}
    return {key for key, name in keys.items() if name is None}


def metadata_of(file: TensorFile, directory: ModelDirectory | None, found: Format) -> dict[str, Any]:
    """Return the metadata of a model: of its file, and of its directory.

    A format that has a place for the configuration does not get its numbers here.
    """
    metadata = file_metadata(file)
    if file.format != found.name and file.vocab is not None and "vocab" in found.carries[found.layouts[0]]:
        for key in token_keys(file):  # they go along as the vocabulary; ids of special ones stay for their types
            metadata.pop(key, None)
    if directory is None:
        return metadata
    return metadata | (directory.about if "config" in found.carries[found.layouts[0]] else directory.metadata)


def pop_left_out(metadata: dict[str, Any], names: Iterable[str], takes: Callable[[str], bool]) -> list[str]:
    """Remove the metadata of modules all tensors of which are left out, where keys lead through modules; return keys.

    A key in a module without tensors is chosen as a tensor of this name is; a key in no module stays.
    """
    modules: dict[str, bool] = {}  # whether any tensor in them is taken
    for name in names:
        taken, module = takes(name), name
        while module := module.rpartition(".")[0]:
            modules[module] = modules.get(module, False) or taken
    left_out = []
    for key in metadata:
        module = key.rpartition(".")[0]
        while module and module not in modules:
            module = module.rpartition(".")[0]
        if not (modules[module] if module else "." not in key or takes(key)):
            left_out.append(key)
    for key in left_out:
        del metadata[key]
    return left_out


def extras_of(
    file: TensorFile,
    directory: ModelDirectory | None,
    metadata: dict[str, Any],
    found: Format,
    layout: str,
    *,
    along: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return the accompanying parts by their names in a `Request`, and lines about those that stay behind.

    Where files of the directory go `along`, its vocabulary does not stay behind.
    """
    carried = found.carries[layout]
    places = found.metadata_keys if "metadata" in carried else frozenset[str]()
    odd = getattr(metadata, "odd", ())
    metadata, homeless = fitted(metadata, places, found.metadata_kinds, found.metadata_most)
    foreign = found.own_keys & metadata.keys() if file.format != found.name else frozenset[str]()
    if foreign:
        metadata = {key: value for key, value in metadata.items() if key not in foreign}
    own, config, notes = file.vocab, file.config, list[str]()
    tokenizer: TokenizerLike | Mapping[str, Any] | None = file.tokenizer
    vocab: Sequence[str] | None = own
    special_ids = None if own is None else own.special_ids
    if special_ids is not None and file.format != found.name:
        special_ids = {name: i for name, i in special_ids.items() if name in found.special_ids}
    if directory is not None:
        if directory.vocab is not None:
            vocab, special_ids = directory.vocab, directory.special_ids
        if "config" in carried:
            config = {**(config or {}), **directory.config}
        if "tokenizer" in carried and (parts := directory.tokenizer()) is not None:
            tokenizer = {"type": parts.type, "special_ids": parts.special_ids, "payload": parts.payload}
            vocab = special_ids = None  # its tokens are in there
            for name, i in parts.large_ids.items():
                config = {**(config or {}), f"{name}_token_id": i}
                notes.append(f"the special id {name} is {i}, more than 16 bits hold: it went to the configuration")
    have: dict[str, Any] = {
        "metadata": metadata if metadata or file.has_metadata else None,
        "vocab": vocab,
        "special_ids": special_ids,
        "config": config,
        "tokenizer": tokenizer,
    }
    extras = {name: value for name, value in have.items() if name in carried and value is not None}
    notes += (
        f"metadata {key!r} says how a file of {found.title} is laid out, and this model is not from one: left behind"
        for key in sorted(foreign)
    )
    if odd:
        some = ", ".join(map(quoted, odd))
        notes.append(f"{entries(len(odd))} ({some}): not of the type that {TYPES!r} states, kept as stored")
    lost = []
    if homeless:
        lost.append(f"{entries(len(homeless))} ({', '.join(map(quoted, homeless))})")
    if config and "config" not in carried:
        lost.append("the configuration")
    if tokenizer is not None and "tokenizer" not in carried:
        lost.append("the tokenizer")
    tokens = not token_keys(file) & metadata.keys() if vocab is own else not along
    if vocab is not None and "vocab" not in carried and tokens:
        lost.append(f"the vocabulary of {counted(len(vocab), 'token')}")
    expected = found.expected_keys.items() if file.format != found.name else ()
    notes += [
        f"there is no metadata {key!r}: {what}" for key, what in expected if key not in extras.get("metadata", ())
    ]
    return extras, notes + [f"{found.title} has no place for {what}: left behind" for what in lost]


def dropped_because(name: str, row: Row, format_: Format, layout: str) -> str | None:
    """Say why a layout that cannot hold a tensor of int64 can do without it; None if it cannot."""
    buffer = name.rpartition(".")[2] == "position_ids" and len(row.shape) > 0
    if not buffer or "int64" in format_.dtypes[layout]:
        return None
    row.source.check_size(f"tensor {quoted(name)}", row.nbytes)
    if not _counts(row):
        return None
    return f"{format_.title} has no int64, and these are just the numbers 0 to {row.shape[-1] - 1}"


def _counts(row: Row) -> bool:
    """Say whether each last axis of an int64 tensor counts 0, 1, 2 ..."""
    period, position = row.shape[-1], 0
    for chunk in row.source.chunks(row.offset, row.nbytes):
        values = np.frombuffer(chunk, "<i8")
        if not np.array_equal(values, np.arange(position, position + len(values)) % period):
            return False
        position += len(values)
    return True
