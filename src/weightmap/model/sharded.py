"""Models in several files: a Hugging Face ``*.index.json`` or a model directory, opened as one `TensorFile`."""

from __future__ import annotations

import errno
import os
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap.errors import (
    FileChangedError,
    FormatError,
    LayoutError,
    NotRegularFileError,
    TensorFileError,
    UnknownFormatError,
    counted,
    escape,
    quoted,
)
from weightmap.formats import FORMATS
from weightmap.io import strict_json
from weightmap.io.opening import from_path
from weightmap.model.file import TensorFile
from weightmap.model.reports import VerifyReport
from weightmap.model.single import INDEX_SUFFIX, mode_of, open_file, source_of
from weightmap.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightmap.io.source import Source
    from weightmap.quant.ref import TensorRef

__all__ = ["ShardedTensorFile", "find_model", "open_sharded"]

# What Hugging Face calls the file of a model, and its index.
_USUAL = ("model.safetensors.index.json", "model.safetensors")
# Models of more files than this keep no descriptor of any: systems grant a process 256 or 1024 of them.
_KEPT = 64
# How the system says that there is no such file: also of a name that none can have, or with a file for a directory.
_MISSING = (errno.ENOENT, errno.ENAMETOOLONG, errno.ENOTDIR)


def find_model(folder: str) -> str:
    """Return the path of the one model, or index of shards, in a directory.

    Raises
    ------
    NotRegularFileError
        When there is none.
    UnknownFormatError
        When there are several and none has the usual name.
    """
    names = sorted(os.listdir(folder))
    for name in _USUAL:
        if name in names:
            return os.path.join(folder, name)
    suffixes = tuple(suffix for format_ in FORMATS.values() for suffix in format_.suffixes)
    found = [name for name in names if name.endswith(INDEX_SUFFIX)] or [
        name for name in names if name.endswith(suffixes)
    ]
    if not found:
        looked = f"there is no *{INDEX_SUFFIX} and no file with one of {', '.join(suffixes)}"
        msg = f"this is a directory without a model file: {looked}"
        raise NotRegularFileError(msg, path=folder)
    if len(found) > 1:
        msg = f"this directory has several model files, open one of them: {', '.join(map(repr, found[:10]))}"
        raise UnknownFormatError(msg, path=folder)
    return os.path.join(folder, found[0])


def open_sharded(path: str, options: Options) -> TensorFile:
    """Open a directory or an index of shards, with the options of `weightmap.open`."""
    mode_of(options.mode)  # the index itself is read in any mode: a wrong one is told before, as of one file
    if os.path.isdir(path):
        path = find_model(path)
        if not path.endswith(INDEX_SUFFIX):
            return open_file(path, path, options)
    source = from_path(path, "copy")
    try:
        options.limits.check("max_header_bytes", source.size, "size of the index of shards")
        index = strict_json.loads(source.pread(0, source.size), "index of shards")
        file = ShardedTensorFile(source, index, options)
    except TensorFileError as error:
        raise error.located(path=path) from None
    finally:
        source.close()
    if options.verify == "full":
        try:
            file.verify()
        except BaseException:
            file.close()
            raise
    return file


def _shard_name(name: object) -> str:
    """Return the name of a shard when it is a plain relative path that stays within the directory."""
    if not isinstance(name, str):
        msg = f"name of a shard is a {type(name).__name__}, expected a string"
        raise FormatError(msg, field="weight_map")
    # Lexically: a symbolic link within the directory is the owner's own doing, and how the caches of model hubs work.
    parts = name.split("/")
    bad = (
        not name
        or "\\" in name
        or ":" in name
        or "\0" in name
        or name.startswith("/")
        or any(p in ("", ".", "..") for p in parts)
    )
    if bad:
        what = "name of a shard"
        expected = "a relative path within the directory of the index"
        raise FormatError(what, field="weight_map", actual=quoted(name), expected=expected)
    return name


class ShardedTensorFile(TensorFile):
    """A model of several files, as one.

    Its `path` is that of the index, and `info(name).offset` counts within the shard. Its metadata is the index's, and
    what the shards say besides: an entry that the index lacks and that has one value in all shards that have it. Where
    shards disagree on a value, the model has no such entry, and `disagreements` tells.

    Shards are opened with the model; a shard that is missing, or that lacks a tensor it should have, or that has one
    that the index places elsewhere, is a `LayoutError`. Order: shards by name, tensors as in their shard.

    Of up to 64 shards each keeps the descriptor of its file, as a single file does. With more of them none does, for a
    process has few: they are mapped when the model is opened, and their files closed again. `read`, `verify` and
    conversions then open a shard by its path and raise `FileChangedError` when it is another file by now. A look-up
    asks the path, and not a descriptor, whether the file is unchanged; one that was replaced by rename or deleted is
    no changed file to it here either, for the mapping keeps the old one.
    """

    __slots__ = ("_closed", "_index", "_nbytes", "_settled", "_shards", "_warnings", "_where")

    def __init__(self, index: Source, content: dict[str, Any], options: Options) -> None:
        where = content.get("weight_map")
        if not isinstance(where, dict):
            msg = "the index of shards has no weight_map, an object of tensor names and shard names"
            raise FormatError(msg, field="weight_map")
        options.limits.check("max_tensors", len(where), "number of tensors")
        metadata = content.get("metadata", {})
        if not isinstance(metadata, dict):
            msg = "metadata of the index of shards is no object"
            raise FormatError(msg, field="metadata")
        folder = os.path.dirname(index.path or "")
        names = sorted({_shard_name(name) for name in where.values()})
        options.limits.check("max_shards", len(names), "number of shards")
        self._shards: dict[str, TensorFile] = {}
        self._where: dict[str, str] = {}
        self._warnings: list[str] = []
        self._closed = self._settled = False
        self._source = index
        self._embeddings = False
        self._options = options
        try:
            for name in names:
                shard = self._shards[name] = self._open_shard(folder, name, options)
                if len(names) > _KEPT:
                    shard.release_descriptor()
            self._place(where)
            self._check_total(metadata)
        except BaseException:
            self.close()
            raise
        found = {shard.format for shard in self._shards.values()}
        self.format = found.pop() if len(found) == 1 else "mixed"
        self.layout = "sharded"
        self._nbytes = sum(shard.nbytes for shard in self._shards.values())
        self._metadata = None
        self._index = metadata

    def _open_shard(self, folder: str, name: str, options: Options) -> TensorFile:
        # verify="full" verifies the model as a whole, once it is open.
        asked = Options(**options.keywords(verify="header" if options.checked else "none"))
        path = os.path.join(folder, name)
        if name.endswith(INDEX_SUFFIX) or os.path.isdir(path):
            # An index that names an index could name itself, and would be opened for ever.
            msg = f"shard {quoted(name)} is an index or a directory, expected a model file"
            raise LayoutError(msg, field="weight_map")
        try:
            return open_file(path, path, asked)
        except OSError as error:
            if error.errno not in _MISSING:
                raise
            msg = f"shard {quoted(name)}, which the index names, is missing"
            raise LayoutError(msg, field="weight_map") from None

    def _place(self, where: Mapping[str, str]) -> None:
        for shard_name, shard in self._shards.items():
            for tensor in shard:
                wanted = where.get(tensor)
                if wanted == shard_name:
                    self._where[tensor] = shard_name
                elif wanted is not None:
                    found = f"tensor {quoted(tensor)} lies in shard {quoted(shard_name)}"
                    msg = f"{found}, and the index places it in {quoted(wanted)}"
                    raise LayoutError(msg, field="weight_map")
                else:
                    found = f"tensor {quoted(tensor)} lies in shard {quoted(shard_name)}"
                    self._warnings.append(f"{found} and is not in the index")
        missing = [tensor for tensor in where if tensor not in self._where]
        if missing:
            what = f"tensor {quoted(missing[0])} is not in shard {quoted(where[missing[0]])}, where the index places it"
            msg = f"{what} ({counted(len(missing), 'such tensor')})"
            raise LayoutError(msg, field="weight_map")

    def _check_total(self, metadata: Mapping[str, Any]) -> None:
        stated = metadata.get("total_size")
        total = sum(place.row.nbytes for place in self.located())
        if stated is not None and stated != total:
            error = LayoutError(
                "total_size of the index of shards",
                field="total_size",
                actual=stated,
                expected=f"{total}, the bytes of all tensors",
            )
            self._options.tolerate(error, self._warnings)

    # ---------------------------------------------------------------------------- what one file does otherwise
    def __getitem__(self, name: str) -> Any:
        self._check_open()
        return self._shards[self._shard_of(name)][name]

    def _shard_of(self, name: object) -> str:
        shard = self._where.get(name) if isinstance(name, str) else None  # what is no string may not be hashable
        if shard is None:
            raise self._not_found(name)
        return shard

    def __contains__(self, name: object) -> bool:
        self._check_open()
        return isinstance(name, str) and name in self._where

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[str]:
        self._check_open()
        return iter(self._where)

    def locate(self, name: str) -> TensorRef:
        """Return where a tensor lies within its shard."""
        self._check_open()
        return self._shards[self._shard_of(name)].locate(name)

    def located(self) -> Iterator[TensorRef]:
        """Yield `locate` of every tensor, in file order."""
        for shard_name, shard in self._shards.items():
            for name, located in zip(shard, shard.located(), strict=True):
                if self._where.get(name) == shard_name:
                    yield located

    def _arrays(self) -> Iterator[Any]:
        for shard_name, shard in self._shards.items():
            for name, array in shard.items():
                if self._where.get(name) == shard_name:
                    yield array

    def _prefetch_all(self) -> None:
        for shard in self._shards.values():
            shard.prefetch()

    @property
    def nbytes(self) -> int:
        """Size of all shards together, in bytes."""
        return self._nbytes

    @property
    def is_stable(self) -> bool:
        """Whether all shards are: see `TensorFile.is_stable`."""
        self._check_open()
        return all(shard.is_stable for shard in self._shards.values())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the index, and what the shards agree on besides; read-only."""
        metadata = self._metadata
        if metadata is None:
            self._check_open()
            said = self._said()
            agreed = {key: values[0][1] for key, values in said.items() if all(v == values[0][1] for _, v in values)}
            metadata = self._metadata = MappingProxyType({**agreed, **self._index})
        return metadata

    def _said(self) -> dict[str, list[tuple[str, Any]]]:
        """Return what the shards say where the index says nothing: by key, the names of shards and their values."""
        said: dict[str, list[tuple[str, Any]]] = {}
        for name, shard in self._shards.items():
            for key, value in shard.metadata.items():
                if key not in self._index:
                    said.setdefault(key, []).append((name, value))
        return said

    @property
    def disagreements(self) -> list[str]:
        """What shards disagree on, one line for each entry of their metadata."""
        self._check_open()
        found = []
        for key, (first, *others) in self._said().items():
            other = next((other for other in others if other[1] != first[1]), None)
            if other is not None:
                values = " and ".join(f"{quoted(value)} in {quoted(name)}" for name, value in (first, other))
                found.append(f"the shards disagree on the metadata entry {quoted(key)}: {values}")
        return found

    @property
    def has_metadata(self) -> bool:
        """Whether the index or a shard has metadata."""
        return bool(self._index) or any(shard.has_metadata for shard in self._shards.values())

    @property
    def vocab(self) -> None:
        """None: shards have no vocabulary."""

    @property
    def config(self) -> None:
        """None: shards have no configuration."""

    @property
    def tokenizer(self) -> None:
        """None: shards have no tokenizer."""

    @property
    def shards(self) -> Mapping[str, TensorFile]:
        """The files of the model, by name."""
        return dict(self._shards)

    @property
    def identities(self) -> Mapping[str, tuple[int, ...]]:
        """Device, inode, size and modification time of the index and of every shard, by name."""
        index = os.path.basename(self._source.absolute or "")
        return {index: self._source.identity} | {name: shard.identity for name, shard in self._shards.items()}

    def detach_index(self) -> None:
        """Hold the index of every shard: see `TensorFile.detach_index`."""
        self._check_open()
        if not self._settled:
            for shard in self._shards.values():
                shard.detach_index()
            self._settled = True

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Verify every shard: see `TensorFile.verify`."""
        self._check_open()
        checks: list[str] = ["index of shards"]
        warnings = [*self._warnings, *self.disagreements]
        reasons: list[str | None] = []
        done = 0
        for name, shard in self._shards.items():
            start = done
            report = shard.verify(progress=progress and (lambda n, _, start=start: progress(start + n, self._nbytes)))  # type: ignore[misc]
            done += shard.nbytes
            checks += [f"{name}: {check}" for check in report.checks]
            warnings += [f"{name}: {warning}" for warning in report.warnings]
            reasons.append(report.structure_only)
        why = _in_common(reasons)
        return VerifyReport(self.path, self.format, self.layout, tuple(checks), tuple(warnings), done, why)

    def check_unchanged(self) -> None:
        """Raise `FileChangedError` when a shard is no longer what it was when it was opened."""
        self._check_open()
        for shard in self._shards.values():
            shard.check_unchanged()

    def _check_open(self) -> None:
        if self._closed:
            self._source.fail_closed()

    def close(self) -> None:
        """Close every shard."""
        self._closed = True
        for shard in self._shards.values():
            shard.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._source.absolute, self._options.keywords(), self.identities)

    def __repr__(self) -> str:
        state = "closed " if self._closed else ""
        counts = f"{counted(len(self._shards), 'shard')}, {counted(len(self), 'tensor')}, {self._nbytes} bytes"
        return f"<{state}TensorFile {escape(repr(self._source.name))}: {counts}>"


def _in_common(reasons: list[str | None]) -> str | None:
    """Say for a whole model why shards could be checked for their structure alone; where some could not, how many."""
    counts = Counter(reason for reason in reasons if reason is not None)
    if len(counts) == 1 and None not in reasons:
        return next(iter(counts))
    return "; ".join(f"{reason} ({count} of {len(reasons)} shards)" for reason, count in counts.items()) or None


def _reopen(path: str, options: dict[str, Any], identities: Mapping[str, tuple[int, ...]]) -> TensorFile:
    # Compared before anything is parsed, for another file may be no model at all; and once more when all are open.
    for name, identity in identities.items():
        source_of(os.path.join(os.path.dirname(path), name), "mmap", identity).close()
    file = open_sharded(path, Options(**options))
    if not isinstance(file, ShardedTensorFile) or file.identities != identities:
        file.close()
        msg = "a file of the model is no longer the one that the pickled handle was opened on"
        raise FileChangedError(msg, path=path)
    return file
