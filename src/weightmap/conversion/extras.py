"""Configuration, vocabulary and metadata that accompany a model's tensors, and what a target has no place for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import counted, quoted
from weightmap.formats import FORMATS, fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightmap.formats import Format
    from weightmap.importers._huggingface import ModelDirectory
    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.model.file import TensorFile
    from weightmap.quant import TensorRef

__all__ = ["entries", "extras_of", "file_metadata", "metadata_of", "spared"]

# Keys of metadata that a message names.
_NAMED = 5


def entries(number: int) -> str:
    """Return a number of metadata entries in words."""
    return "1 metadata entry" if number == 1 else f"{number:,} metadata entries"


def file_metadata(file: TensorFile) -> dict[str, Any]:
    """Return the metadata of a file that a conversion takes along."""
    metadata: dict[str, Any] = file.metadata.copy()  # type: ignore[attr-defined]  # a TOML document with its text
    if file.layout == "sharded":
        metadata.pop("total_size", None)  # the size of the shards, not of the new file
    return metadata


def metadata_of(file: TensorFile, directory: ModelDirectory | None, found: Format) -> dict[str, Any]:
    """Return the metadata of a model: of its file, and of its directory.

    A format that has a place for the configuration does not get its numbers here.
    """
    metadata = file_metadata(file)
    if file.format != found.name and file.vocab is not None and "vocab" in found.carries[found.layouts[0]]:
        for key, name in FORMATS[file.format].vocab_keys.items() if file.format in FORMATS else ():
            if name is None or name in found.special_ids:  # it goes along with the vocabulary
                metadata.pop(key, None)
    if directory is None:
        return metadata
    return metadata | (directory.about if "config" in found.carries[found.layouts[0]] else directory.metadata)


def extras_of(
    file: TensorFile, directory: ModelDirectory | None, metadata: dict[str, Any], found: Format, layout: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the accompanying parts by their names in a `Request`, and lines about those that stay behind."""
    carried = found.carries[layout]
    places = found.metadata_keys if "metadata" in carried else frozenset[str]()
    metadata, homeless = fitted(metadata, places, found.metadata_kinds)
    foreign = found.own_keys & metadata.keys() if file.format != found.name else frozenset[str]()
    if foreign:
        metadata = {key: value for key, value in metadata.items() if key not in foreign}
    own, config, tokenizer, notes = file.vocab, file.config, file.tokenizer, []
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
    have = {
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
    lost = []
    if homeless:
        some = ", ".join(map(quoted, homeless[:_NAMED])) + (", ..." if len(homeless) > _NAMED else "")
        lost.append(f"{entries(len(homeless))} ({some})")
    if config and "config" not in carried:
        lost.append("the configuration")
    if tokenizer is not None and "tokenizer" not in carried:
        lost.append("the tokenizer")
    if vocab is not None and "vocab" not in carried:
        lost.append(f"the vocabulary of {counted(len(vocab), 'token')}")
    return extras, notes + [f"{found.title} has no place for {what}: left behind" for what in lost]


def spared(name: str, place: TensorRef, format_: Format, layout: str) -> str | None:
    """Say why a layout that cannot hold a tensor can do without it; None if it cannot."""
    row = place.row
    buffer = row.dtype.name == "int64" and name.rpartition(".")[2] == "position_ids" and len(row.shape) > 0
    if not buffer or "int64" in format_.dtypes[layout] or not _counts(place.source, row):
        return None
    return f"{format_.title} has no int64, and these are just the numbers 0 to {row.shape[-1] - 1}"


def _counts(source: Source, row: Row) -> bool:
    """Say whether each last axis of an int64 tensor counts 0, 1, 2 ..."""
    period, position = row.shape[-1], 0
    for chunk in source.chunks(row.offset, row.nbytes):
        values = np.frombuffer(chunk, "<i8")
        if not np.array_equal(values, np.arange(position, position + len(values)) % period):
            return False
        position += len(values)
    return True
