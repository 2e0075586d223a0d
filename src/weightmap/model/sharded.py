"""Opens a model in several files as one `TensorFile`: an ``*.index.json``, a model directory, or numbered parts."""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Any

from weightmap.errors import (
    LayoutError,
    MissingDependencyError,
    NotRegularFileError,
    TensorFileError,
    UnknownFormatError,
    counted,
    quoted,
)
from weightmap.formats import FORMATS, Content, by_suffix, of_ranks
from weightmap.formats._metadata import equal
from weightmap.index.joined import JoinedTable
from weightmap.io.beside import KEPT
from weightmap.io.open_source import beside, called, from_path, inside, is_missing, names_in, unlisted
from weightmap.lazy import np
from weightmap.model.file import TensorFile
from weightmap.model.listing import read_listing, shard_name
from weightmap.model.parts import check_index, parts_of, sources_of
from weightmap.model.single import INDEX_SUFFIX, USUAL_NAMES, mode_of, open_file
from weightmap.native.late import cpus
from weightmap.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.formats import Verification
    from weightmap.io.source import Source
    from weightmap.model.listing import Listing


class _Table(JoinedTable):
    """The tensors of all shards: ordered by the name of the shard, and as there."""

    def check(self) -> None:
        """Do nothing: verifying a shard checks its table."""

    def disorder(self) -> None:
        """Do nothing: verifying a shard reports its own."""


class ShardedContent(Content):
    """The joint content of a sharded model's files.

    Parameters
    ----------
    shards : mapping of str to TensorFile
        The shards by name.
    listing : Listing, optional
        The content of the index; without one the model has all tensors of all shards.
    """

    table: JoinedTable

    def __init__(self, shards: Mapping[str, TensorFile], listing: Listing | None = None) -> None:
        self.shards = shards
        self._contents: list[Content] = [parts_of(file)[1] for file in shards.values()]
        self._of = {source: parts_of(file)[1] for file in shards.values() for source in sources_of(file)}
        for file in shards.values():
            check_index(file)
        tables = [content.table for content in self._contents]
        table: JoinedTable = _Table(tables)
        super().__init__("sharded", table, self._metadata, self._verify, [])
        order = None if listing is None else self._compare(listing, table)
        if order is not None:
            self.table = _Table(tables, order, table.names.take(order))
        self.sources: tuple[Source, ...] = tuple(self._of)
        self._own = {} if listing is None else listing.metadata
        # The metadata keys that are about one part.
        self._keys = frozenset(key for content in self._contents if content.part for key in content.part.keys)
        self.has_metadata: bool = bool(self._own) or any(content.has_metadata for content in self._contents)
        with_vocab = (content for content in self._contents if content.load_vocab is not None)
        self.load_vocab = next((functools.partial(getattr, content, "vocab") for content in with_vocab), None)
        self.config = self._first("config")
        self.tokenizer = self._first("tokenizer")
        self.sums = lambda source: self._of[source].sums(source)

    def _first(self, name: str) -> Any:
        """Return an attribute of the first shard that has it."""
        return next((found for content in self._contents if (found := getattr(content, name)) is not None), None)

    def _compare(self, listing: Listing, table: JoinedTable) -> NDArray[np.int64] | None:
        """Refuse a tensor of the index that is in another shard or none; return the rows that it lists, if not all."""
        names = table.names
        repeated = names.duplicates()[0]
        found = listing.numbers_in(names)
        own = np.repeat(np.arange(len(self.shards)), list(map(len, self.shards.values())))
        numbers = {name: number for number, name in enumerate(self.shards)}
        meant = np.array([numbers[name] for name in listing.shards], np.int64)[listing.shard]
        if repeated or bool((found < 0).any()) or bool((own[found] != meant).any()):
            self._refuse(dict(listing.pairs()))
        if len(found) == len(names):
            return None
        listed = np.zeros(len(names), np.bool_)
        listed[found] = True
        for number in np.flatnonzero(~listed).tolist():
            shard = quoted(list(self.shards)[own[number]])
            self.warnings.append(f"tensor {quoted(names[number])} is in shard {shard} but not in the index")
        return np.flatnonzero(listed)

    def _refuse(self, where: Mapping[str, str]) -> None:
        """Raise the error for the first tensor that is not where the index places it."""
        seen = set()
        for shard, file in self.shards.items():
            for name in file:
                wanted = where.get(name)
                if wanted == shard:
                    seen.add(name)
                elif wanted is not None:
                    found = f"tensor {quoted(name)} is in shard {quoted(shard)}"
                    msg = f"{found}, but the index places it in {quoted(wanted)}"
                    raise LayoutError(msg, field="weight_map")
        missing = [name for name in where if name not in seen]
        if missing:
            what = f"tensor {quoted(missing[0])} is not in shard {quoted(where[missing[0]])}, where the index places it"
            msg = f"{what} ({counted(len(missing), 'such tensor')})"
            raise LayoutError(msg, field="weight_map")

    def _metadata(self) -> dict[str, Any]:
        """Return the metadata of the index, and entries on which all shards that have them agree."""
        said: dict[str, list[Any]] = {}
        for file in self.shards.values():
            for key, value in file.metadata.items():
                if key not in self._keys:
                    said.setdefault(key, []).append(value)
        agreed = {key: values[0] for key, values in said.items() if all(equal(value, values[0]) for value in values)}
        # A copy of the first shard's metadata, whose class may know more than the values, such as their types.
        found: dict[str, Any] = next((file.metadata.copy() for file in self.shards.values()), {})  # type: ignore[attr-defined]
        for key in found.keys() - agreed.keys():
            del found[key]
        found.update({key: value for key, value in agreed.items() if key not in found})
        found.update(self._own)
        return found

    def _verify(self, run: Verification) -> None:
        """Verify every shard."""
        run.checked("index of shards")
        run.reasons = []
        run.warnings += disagreements(self, self._metadata())
        for name, file in self.shards.items():
            report = file.verify(progress=run.onwards(), threads=run.threads)
            run.checks += [f"{name}: {check}" for check in report.checks]
            run.warnings += [f"{name}: {warning}" for warning in report.warnings]
            run.reasons.append(None if self._sums(run, name, file) else report.structure_only)

    def _sums(self, run: Verification, name: str, file: TensorFile) -> bool:
        """Check the checksums that a shard has of its tensors; say whether there are any."""
        from weightmap.model.tensor_sums import check_tensors, kind_in  # noqa: PLC0415 - opening needs no zlib

        kind = kind_in(self._own)
        try:
            if kind is not None:
                check_tensors(file, kind)
                run.checked(f"{name}: {kind} of every tensor")
        except MissingDependencyError as error:
            run.warn(f"{name}: checksums of tensors are not compared: {error}")
            return False
        return kind is not None


def disagreements(file: Any, metadata: Mapping[str, Any]) -> list[str]:
    """Return a line for each entry that is missing in a model's `metadata` because its shards disagree on it."""
    found = []
    values: dict[str, list[tuple[str, Any]]] = {}
    for name, shard in file.shards.items():
        part = parts_of(shard)[1].part
        for key, value in shard.metadata.items():
            if part is None or key not in part.keys:
                values.setdefault(key, []).append((name, value))
    for key, (first, *others) in values.items():
        other = next((other for other in others if not equal(other[1], first[1])), None)
        if key not in metadata and other is not None:
            said = " and ".join(f"{quoted(value)} in {quoted(name)}" for name, value in (first, other))
            found.append(f"the shards disagree on the metadata entry {quoted(key)}: {said}")
    return found


# The name of a shard: the index has the same one without its numbers.
_NUMBERED = re.compile(r"(.+)-\d{5}-of-\d{5}(\.\w+)", re.DOTALL)


def find_model(folder: str) -> str:
    """Return the path of the one model, or index of shards, in a directory.

    Raises
    ------
    NotRegularFileError
        When there is none.
    UnknownFormatError
        When there are several and none has a usual name; or indexes of one usual name in several formats.
    UnsupportedError
        When each file holds parts of tensors.
    """
    names = sorted(names_in(folder, USUAL_NAMES))
    suffixes = tuple(dict.fromkeys(suffix for format_ in FORMATS.values() for suffix in format_.suffixes))
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    usual = next((name for name in USUAL_NAMES if name in names), None)
    if usual is None:
        found = indexes or [name for name in names if name.endswith(suffixes)]
    elif usual in indexes:  # beside one of the same model in another format, it is one of several
        stem = os.path.splitext(usual.removesuffix(INDEX_SUFFIX))[0]
        same = {usual, *(f"{stem}{suffix}{INDEX_SUFFIX}" for suffix in suffixes)}
        found = [name for name in indexes if name in same]
    else:
        found = [usual]
    if len(found) != 1 and (parts := of_ranks(found or names, folder)) is not None:
        raise parts
    if not found:
        msg = f"this directory has no *{INDEX_SUFFIX} and no model file ({', '.join(suffixes)}){_away(folder)}"
        raise NotRegularFileError(msg, path=folder)
    if len(found) > 1:
        # Those of ranks ("shard-00001-model-00001-of-00002") have no index.
        own = () if indexes else (name for name in found if not name.startswith("shard-"))
        shards = [match for name in own if (match := _NUMBERED.fullmatch(name))]
        if shards and not by_suffix(shards[0][0]).numbered:
            index = f"{shards[0][1]}{shards[0][2]}{INDEX_SUFFIX}"
            msg = f"this directory has shards of a model, and their index is missing: {quoted(index)}"
            raise UnknownFormatError(msg, path=folder)
        msg = f"this directory has several model files; open one of them: {', '.join(map(repr, found[:10]))}"
        raise UnknownFormatError(msg, path=folder)
    return inside(folder, found[0])


def _away(folder: str) -> str:
    """Return why files of a model are missing: the Hub was not asked, or deltas change it (see deltas/local.py)."""
    if type(folder) is not str:
        why = folder.of_store("offline")  # type: ignore[attr-defined]
        return f": {why}" if why else ""
    if not os.path.lexists(os.path.join(folder, ".weight_sync", "next", "changes")):
        return ""
    return ": a pull changes it in place; if that was stopped, pull again"


def open_directory(path: str, options: Options) -> TensorFile:
    """Open the one model in a directory, with the options of `weightmap.open`."""
    mode_of(options.mode, private=options.private)  # refuses a wrong mode before it reads the directory
    while True:
        found = find_model(path)
        try:
            if not found.endswith(INDEX_SUFFIX):
                return open_file(found, found, options)
            return _open_index(from_path(found, "copy"), found, options)
        except FileNotFoundError:  # a version with a single file takes the place of one with shards, or the reverse
            if type(path) is not str or find_model(path) == found:
                raise


def open_sharded(path: str, options: Options) -> TensorFile:
    """Open an index of shards, with the options of `weightmap.open`; or a directory that has the name of one.

    Raises a `LayoutError` for a shard that is missing, lacks a tensor that the index places there, or has one that the
    index places elsewhere.

    Up to 64 shards each keep the descriptor of their file, as a single file does. With more shards none does, for a
    process has few descriptors: all are mapped now, and later reads open a shard again by its path and raise
    `FileChangedError` if another file is there. Look-ups check for changes through the path; a file that was replaced
    by rename or deleted counts as unchanged, for the mapping keeps the old one.

    An index that is replaced while its shards are opened is read again, so that all are of one version.
    """
    mode_of(options.mode, private=options.private)  # refuses a wrong mode before it reads the index
    try:
        source = from_path(path, "copy")
    except IsADirectoryError:
        return open_directory(path, options)
    return _open_index(source, path, options)


def _open_index(source: Source, path: str, options: Options) -> TensorFile:
    """Open the shards of an index that is open; again as long as another index takes its place meanwhile."""
    while True:
        try:
            model = _open_listed(source, path, options)
        except TensorFileError:
            if not _is_replaced(source, path):
                raise
        else:
            if not _is_replaced(source, path):
                return model
            model.close()
        source = from_path(path, "copy")


def _is_replaced(source: Source, path: str) -> bool:
    """Whether a path leads to another file than the one that was opened; not asked of stores."""
    if type(path) is not str:
        return False
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) != source.identity


def _open_listed(source: Source, path: str, options: Options) -> TensorFile:
    files: dict[str, TensorFile] = {}
    try:
        if options.trust is not None:
            options.trust.admit(source, options.limits)
        listing = read_listing(source, options)
        names = sorted(map(shard_name, listing.shards))
        options.limits.check("max_shards", len(names), "number of shards")
        _check_listed(path, names)
        asked = _of_shards(options)
        for name, file in _open_shards(path, names, asked):
            files[name] = file
            if len(names) > KEPT:
                _release(file)
        content = ShardedContent(files, listing)
        _check_total(content, listing.metadata, options)
        model = _joined(source, content, options)
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
    source, of_first, _ = parts_of(first)
    part = of_first.part
    files = {called(path): first}
    try:
        options.limits.check("max_shards", part.parts, "number of parts")
        asked = _of_shards(options)
        for name, file in _open_shards(path, part.names, asked):
            files[name] = file
            if part.parts > KEPT:
                _release(file)
        count = _check_parts(files, part.parts)
        options.limits.check("max_tensors", count, "number of tensors")
        content = ShardedContent(files)
        if part.tensors is not None and part.tensors != count:
            what, expected = "number of tensors in all parts", f"{part.tensors}, from the first part"
            options.tolerate(LayoutError(what, field="part", actual=count, expected=expected), content.warnings)
        model = _joined(source, content, options)
    except BaseException as error:
        for file in files.values():
            file.close()
        if isinstance(error, TensorFileError):
            raise error.located(path=path) from None
        raise
    return model


def _joined(source: Source, content: ShardedContent, options: Options) -> TensorFile:
    """Return the handle of a model that has the name of a source, its index or its first part."""
    formats = {shard.format for shard in content.shards.values()}
    name = formats.pop() if len(formats) == 1 else "mixed"
    own = source.nameplate()
    content.table.belongs_to(own, name)
    model = TensorFile(own, name, content, options, content.shards)
    if options.verify == "full":
        model.verify()
    return model


def _release(file: TensorFile) -> None:
    """Close the descriptors of a shard: see `open_sharded`."""
    for source in sources_of(file):
        source.release_descriptor()


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


def _open_shards(index: str, names: Sequence[str], options: Options) -> Iterator[tuple[str, TensorFile]]:
    """Open shards, in order; those in a store many at a time, since opening one is waiting for its header.

    Those that are hashed are opened by as many threads as there are processors.
    """
    hashed = options.trust is not None
    if len(names) < 2 or (type(index) is str and not hashed):
        for name in names:
            yield name, _open_shard(index, name, options)
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 5 ms, for stores and hashing

    def opened(name: str) -> TensorFile:
        file = _open_shard(index, name, options)
        if hashed and len(names) > KEPT:  # the caller may be far behind
            _release(file)
        return file

    with ThreadPoolExecutor(min(len(names), cpus() if hashed else index.access.small)) as pool:  # type: ignore[attr-defined]
        opening = [pool.submit(opened, name) for name in names]
        try:
            while opening:
                yield names[-len(opening)], opening.pop(0).result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            for future in opening:
                if not future.cancelled() and future.exception() is None:
                    future.result().close()
            raise


def _open_shard(index: str, name: str, options: Options) -> TensorFile:
    path = beside(index, name)
    if name.endswith(INDEX_SUFFIX):  # an index could name itself, and opening would never end
        raise _no_file(name)
    try:
        return open_file(path, path, options)
    except IsADirectoryError:
        raise _no_file(name) from None
    except OSError as error:
        if not is_missing(error):
            raise
        msg = f"file {quoted(name)} of this model is missing{_away(os.path.dirname(index))}"
        raise LayoutError(msg, field="weight_map") from None


def _no_file(name: str) -> LayoutError:
    return LayoutError(f"shard {quoted(name)} is an index or a directory, expected a model file", field="weight_map")


def _check_total(content: ShardedContent, metadata: Mapping[str, Any], options: Options) -> None:
    """Compare the total size in the index with that of all tensors."""
    stated = metadata.get("total_size")
    total = int(content.table.spans()[1].sum())
    if stated is not None and stated != total:
        expected = f"{total}, the bytes of all tensors"
        what = "total_size of the index of shards"
        error = LayoutError(what, field="total_size", actual=stated, expected=expected)
        if any(parts_of(file)[1].table.rules.scattered for file in content.shards.values()):
            # Of tensors that share memory, transformers counts the first.
            content.warnings.append(str(error))
        else:
            options.tolerate(error, content.warnings)
