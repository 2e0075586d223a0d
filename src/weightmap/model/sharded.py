"""Opens a model in several files as one `TensorFile`: an ``*.index.json``, a model directory, or numbered parts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightmap.errors import (
    LayoutError,
    NotRegularFileError,
    TensorFileError,
    UnknownFormatError,
    counted,
    quoted,
)
from weightmap.formats import FORMATS
from weightmap.io.opening import MISSING, beside, from_path, inside, names_in, unlisted
from weightmap.model.file import TensorFile
from weightmap.model.listing import read_listing, shard_name
from weightmap.model.parts import parts_of
from weightmap.model.shards import Shards
from weightmap.model.single import INDEX_SUFFIX, mode_of, open_file
from weightmap.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightmap.io.source import Source

__all__ = ["find_model", "open_directory", "open_parts", "open_sharded"]

# Hugging Face's names for an index and a model file.
_USUAL = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
# Models of more files keep no descriptors: systems grant a process 256 or 1024.
_KEPT = 64


def find_model(folder: str) -> str:
    """Return the path of the one model, or index of shards, in a directory.

    Raises
    ------
    NotRegularFileError
        When there is none.
    UnknownFormatError
        When there are several and none has a usual name; or indexes of one usual name in several formats.
    """
    names = sorted(names_in(folder, _USUAL))
    suffixes = tuple(dict.fromkeys(suffix for format_ in FORMATS.values() for suffix in format_.suffixes))
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    usual = next((name for name in _USUAL if name in names), None)
    if usual is None:
        found = indexes or [name for name in names if name.endswith(suffixes)]
    elif usual in indexes:  # beside one of the same model in another format, it is one of several
        stem = os.path.splitext(usual.removesuffix(INDEX_SUFFIX))[0]
        same = {usual, *(f"{stem}{suffix}{INDEX_SUFFIX}" for suffix in suffixes)}
        found = [name for name in indexes if name in same]
    else:
        found = [usual]
    if not found:
        msg = f"this directory has no *{INDEX_SUFFIX} and no model file ({', '.join(suffixes)})"
        raise NotRegularFileError(msg, path=folder)
    if len(found) > 1:
        msg = f"this directory has several model files; open one of them: {', '.join(map(repr, found[:10]))}"
        raise UnknownFormatError(msg, path=folder)
    return inside(folder, found[0])


def open_directory(path: str, options: Options) -> TensorFile:
    """Open the one model in a directory, with the options of `weightmap.open`."""
    mode_of(options.mode)  # refuses a wrong mode before it reads the directory
    path = find_model(path)
    if not path.endswith(INDEX_SUFFIX):
        return open_file(path, path, options)
    return _open_index(from_path(path, "copy"), path, options)


def open_sharded(path: str, options: Options) -> TensorFile:
    """Open an index of shards, with the options of `weightmap.open`; or a directory that has the name of one.

    Raises a `LayoutError` for a shard that is missing, lacks a tensor that the index places there, or has one that the
    index places elsewhere.

    Up to 64 shards each keep the descriptor of their file, as a single file does. With more shards none does, for a
    process has few descriptors: all are mapped now, and later reads open a shard again by its path and raise
    `FileChangedError` if another file is there. Look-ups check for changes through the path; a file that was replaced
    by rename or deleted counts as unchanged, for the mapping keeps the old one.
    """
    mode_of(options.mode)  # refuses a wrong mode before it reads the index
    try:
        source = from_path(path, "copy")
    except IsADirectoryError:
        return open_directory(path, options)
    return _open_index(source, path, options)


def _open_index(source: Source, path: str, options: Options) -> TensorFile:
    files: dict[str, TensorFile] = {}
    try:
        listing = read_listing(source, options)
        names = sorted(map(shard_name, listing.shards))
        options.limits.check("max_shards", len(names), "number of shards")
        _check_listed(path, names)
        asked = _of_shards(options)
        for name in names:
            files[name] = _open_shard(path, name, asked)
            if len(names) > _KEPT:
                parts_of(files[name])[0].release_descriptor()
        shards: Any = Shards(source, files, listing)
        _check_total(shards, listing.metadata, options)
        formats = {shard.format for shard in files.values()}
        model = TensorFile(shards, formats.pop() if len(formats) == 1 else "mixed", shards, options, files)
        if options.verify == "full":
            model.verify()
    except BaseException as error:
        for shard in files.values():
            shard.close()
        if isinstance(error, TensorFileError):
            raise error.located(path=path) from None
        raise
    finally:
        source.close()
    return model


def open_parts(path: str, first: TensorFile, options: Options) -> TensorFile:
    """Open the other parts of a model whose `first` one is open, and return all as one.

    Raises a `LayoutError` for a part that is missing or has another number than its name says, and for a tensor that
    is in two parts.
    """
    source, content, _ = parts_of(first)
    part = content.part
    files = {os.path.basename(path): first}
    try:
        options.limits.check("max_shards", part.parts, "number of parts")
        asked = _of_shards(options)
        for name in part.names:
            files[name] = _open_shard(path, name, asked)
            if part.parts > _KEPT:
                parts_of(files[name])[0].release_descriptor()
        count = _check_parts(files, part.parts)
        options.limits.check("max_tensors", count, "number of tensors")
        shards: Any = Shards(source, files)
        if part.tensors is not None and part.tensors != count:
            what, expected = "number of tensors in all parts", f"{part.tensors}, from the first part"
            options.tolerate(LayoutError(what, field="part", actual=count, expected=expected), shards.warnings)
        model = TensorFile(shards, first.format, shards, options, files)
        if options.verify == "full":
            model.verify()
    except BaseException as error:
        for file in files.values():
            file.close()
        if isinstance(error, TensorFileError):
            raise error.located(path=path) from None
        raise
    return model


def _check_parts(files: Mapping[str, TensorFile], parts: int) -> int:
    """Return the number of all tensors; refuse files that are not these parts, and a tensor in two of them."""
    where: dict[str, str] = {}
    for number, (name, file) in enumerate(files.items()):
        own = parts_of(file)[1].part
        if own is None or (own.number, own.parts) != (number, parts):
            actual = "not a part of a model" if own is None else f"part {own.number + 1} of {own.parts}"
            what, expected = f"by its metadata, {quoted(name)}", f"part {number + 1} of {parts}"
            raise LayoutError(what, field="part", actual=actual, expected=expected)
        for tensor in file:
            if where.setdefault(tensor, name) != name:
                msg = f"tensor {quoted(tensor)} is in two parts, {quoted(where[tensor])} and {quoted(name)}"
                raise LayoutError(msg, field="name")
    return len(where)


def _check_listed(path: str, names: Iterable[str]) -> None:
    """Refuse an index in a store that does not list all of its shards; opening shards finds it out elsewhere."""
    missing = unlisted(path, names)
    if missing:
        what = f"the store lists no {quoted(missing[0])}, which the index names"
        raise LayoutError(f"{what} ({counted(len(missing), 'such shard')})", field="weight_map")


def _of_shards(options: Options) -> Options:
    """Return the options that shards are opened with: "full" verifies the model as a whole, once it is open."""
    return Options(**options.keywords(verify="header" if options.checked else "none"))


def _open_shard(index: str, name: str, options: Options) -> TensorFile:
    path = beside(index, name)
    if name.endswith(INDEX_SUFFIX):  # an index could name itself, and opening would never end
        raise _no_file(name)
    try:
        return open_file(path, path, options)
    except IsADirectoryError:
        raise _no_file(name) from None
    except OSError as error:
        if error.errno not in MISSING:
            raise
        msg = f"file {quoted(name)} of this model is missing"
        raise LayoutError(msg, field="weight_map") from None


def _no_file(name: str) -> LayoutError:
    return LayoutError(f"shard {quoted(name)} is an index or a directory, expected a model file", field="weight_map")


def _check_total(shards: Shards, metadata: Mapping[str, Any], options: Options) -> None:
    """Compare the total size in the index with that of all tensors."""
    stated = metadata.get("total_size")
    total = shards.tensor_bytes()
    if stated is not None and stated != total:
        expected = f"{total}, the bytes of all tensors"
        what = "total_size of the index of shards"
        error = LayoutError(what, field="total_size", actual=stated, expected=expected)
        if any(parts_of(file)[1].table.rules.scattered for file in shards.shards.values()):
            # Of tensors that share memory, transformers counts the first.
            shards.warnings.append(str(error))
        else:
            options.tolerate(error, shards.warnings)
