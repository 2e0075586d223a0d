"""Opens a model in several files as one `TensorFile`: an ``*.index.json``, a model directory, or numbered parts."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

import weightmap.errors as errors
from weightmap._messages import counted, escape, quoted
from weightmap.core.arguments import DEFAULT_LIMITS, Options
from weightmap.core.bytes import open_source, strict_json
from weightmap.core.formats import FOREIGN, SUFFIXES, Content, Verification, by_suffix, of_ranks
from weightmap.core.model import single
from weightmap.core.model.file import TensorFile
from weightmap.core.model.internals import check_index, folder_opened, parts_of, shard_name, sources_of
from weightmap.core.model.listing import Listing, check_tensors, kind_in, read_listing
from weightmap.core.native.access import cpus
from weightmap.core.table.columns import JoinedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Sum
    from weightmap.core.table.vocabulary import Vocabulary


class _Table(JoinedTable):
    """The tensors of all shards, ordered by the name of the shard, then as in the shard."""

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
    options : Options
    listing : Listing, optional
        The content of the index; without an index the model has all tensors of all shards.
    odd : sequence of str
        Disagreements found before the shards were open.

    Attributes
    ----------
    odd : list of str
        Statements of the index, or of a part, that the files contradict: see `ModelWarning`.
    """

    table: JoinedTable

    def __init__(
        self,
        shards: Mapping[str, TensorFile],
        options: Options,
        listing: Listing | None = None,
        odd: Sequence[str] = (),
    ) -> None:
        self.shards = shards
        self.odd: list[str] = list(odd)
        self._contents: list[Content] = [parts_of(file)[1] for file in shards.values()]
        self._of = {source: parts_of(file)[1] for file in shards.values() for source in sources_of(file)}
        for file in shards.values():
            check_index(file)
        tables = [content.table for content in self._contents]
        table: JoinedTable = _Table(tables)
        # Functions are methods here: in attributes they would keep an unclosed handle until a garbage collection.
        self.layout, self.table, self.warnings = "sharded", table, []
        options.limits.check("max_tensors", len(table), "number of tensors")
        # The number of the shard of each tensor.
        self._numbers: NDArray[np.int64] = np.repeat(
            np.arange(len(shards)), np.array(list(map(len, shards.values())), np.int64)
        )
        if table.names.duplicates()[0]:
            order = self._once(listing, options)
            self.table, self._numbers = _Table(tables, order, table.names.take(order)), self._numbers[order]
        if listing is not None:
            self._compare(listing, options)
        self.sources: tuple[Source, ...] = tuple(self._of)
        self._index_metadata = {} if listing is None else listing.metadata
        # Metadata keys that describe a single part.
        self._keys = frozenset(key for content in self._contents if content.part for key in content.part.keys)
        self.has_metadata: bool = bool(self._index_metadata) or any(content.has_metadata for content in self._contents)
        self.may_hold_frames: bool = self.has_metadata
        with_vocab = (content for content in self._contents if content.load_vocab is not None)
        self.load_vocab: Callable[[], Vocabulary] | None = next(
            (functools.partial(getattr, content, "vocab") for content in with_vocab), None
        )
        self.config: Mapping[str, Any] | None = self._first("config")
        self.tokenizer: Any = self._first("tokenizer")

    def sums(self, source: Source) -> Sequence[Sum]:
        """Return the checksums of tensors in a shard."""
        return self._of[source].sums(source)

    @property
    def where(self) -> dict[str, str]:
        """The shard of each tensor."""
        shards = list(self.shards)
        return {name: shards[number] for name, number in zip(self.table.names, self._numbers.tolist(), strict=True)}

    def _first(self, name: str) -> Any:
        """Return an attribute of the first shard that has it."""
        return next((value for content in self._contents if (value := getattr(content, name)) is not None), None)

    def _once(self, listing: Listing | None, options: Options) -> NDArray[np.int64]:
        """Return each tensor's row once when files repeat names: from the shard that the index names, or the first.

        Raises `LayoutError` in strict mode.
        """
        shards, numbers = list(self.shards), self._numbers.tolist()
        meant = {} if listing is None else dict(listing.pairs())
        kind, field = ("parts", "name") if listing is None else ("shards", "weight_map")
        rows: dict[str, int] = {}
        repeated = set()
        for row, name in enumerate(self.table.names):
            first = rows.setdefault(name, row)
            if first == row:
                continue
            one, other = shards[numbers[first]], shards[numbers[row]]
            if options.strict:
                what = f"tensor {quoted(name)} is in two {kind}, {quoted(one)} and {quoted(other)}"
                raise errors.LayoutError(what, field=field)
            repeated.add(name)
            rows[name] = row if meant.get(name) == other else first
            lost = one if rows[name] == row else other
            self.odd.append(f"tensor {quoted(name)} is in several {kind}: the one in {quoted(lost)} is left out")
        return np.array(sorted(rows.values()), np.int64)

    def _compare(self, listing: Listing, options: Options) -> None:
        """Note where the index and the shards disagree. Raises `LayoutError` in strict mode for missing tensors."""
        names, shards = self.table.names, list(self.shards)
        rows = listing.numbers_in(names)
        numbers = {name: number for number, name in enumerate(shards)}
        meant = [numbers.get(name, -1) if isinstance(name, str) else -1 for name in listing.shards]
        there = rows >= 0
        placed = np.full(len(rows), -1, np.int64)
        placed[there] = self._numbers[rows[there]]
        moved = there & (placed != np.array(meant, np.int64)[listing.shard])
        listed = np.zeros(len(names), np.bool_)
        listed[rows[there]] = True
        if bool(there.all()) and not bool(moved.any()) and bool(listed.all()):
            return
        said = [_spelt(listing.shards[number]) for number in listing.shard.tolist()]
        lines = [
            f"tensor {quoted(listing.names[i])} is not in shard {said[i]}, where the index places it"
            for i in np.flatnonzero(~there).tolist()
        ]
        if lines and options.strict:
            raise errors.LayoutError(f"{lines[0]} ({counted(len(lines), 'such tensor')})", field="weight_map")
        self.odd += lines
        for i in np.flatnonzero(moved).tolist():
            actual = quoted(shards[placed[i]])
            self.odd.append(
                f"tensor {quoted(listing.names[i])} is in shard {actual}, but the index places it in {said[i]}"
            )
        for i in np.flatnonzero(~listed).tolist():
            actual = quoted(shards[self._numbers[i]])
            self.odd.append(f"tensor {quoted(names[i])} is in shard {actual} but not in the index")

    def load_metadata(self) -> dict[str, Any]:
        """Return the metadata of the index, and entries on which all shards that have them agree."""
        said: dict[str, list[Any]] = {}
        for file in self.shards.values():
            for key, value in file.metadata.items():
                if key not in self._keys:
                    said.setdefault(key, []).append(value)
        agreed = {key: values[0] for key, values in said.items() if all(equal(value, values[0]) for value in values)}
        # A copy of the first shard's metadata, whose class may know more than the values, such as their types.
        metadata: dict[str, Any] = next((file.metadata.copy() for file in self.shards.values()), {})  # type: ignore[attr-defined]
        for key in metadata.keys() - agreed.keys():
            del metadata[key]
        metadata.update({key: value for key, value in agreed.items() if key not in metadata})
        metadata.update(self._index_metadata)
        return metadata

    def verify(self, run: Verification) -> None:
        """Verify every shard."""
        run.checked("index of shards")
        run.reasons = []
        run.warnings += disagreements(self, ShardedContent.load_metadata(self))
        for name, file in self.shards.items():
            report = file.verify(progress=run.onwards(), threads=run.threads)
            run.checks += [f"{name}: {check}" for check in report.checks]
            run.warnings += [f"{name}: {warning}" for warning in report.warnings]
            run.reasons.append(None if self._sums(run, name, file) else report.structure_only)

    def _sums(self, run: Verification, name: str, file: TensorFile) -> bool:
        """Check a shard's checksums of its tensors; return whether it has any."""
        kind = kind_in(self._index_metadata)
        try:
            if kind is not None:
                check_tensors(file, kind)
                run.checked(f"{name}: {kind} of every tensor")
        except errors.MissingDependencyError as error:
            run.warn(f"{name}: checksums of tensors are not compared: {error}")
            return False
        return kind is not None


def _spelt(value: Any) -> str:
    """Return a value of an index for a message."""
    if isinstance(value, str):
        return quoted(value)
    short = isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() < _LONGEST)
    return str(value) if short else strict_json.kind_of(value)


def disagreements(file: Any, metadata: Mapping[str, Any]) -> list[str]:
    """Return a line for each metadata entry that the shards disagree on, and that `metadata` therefore lacks."""
    lines = []
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
            lines.append(f"the shards disagree on the metadata entry {quoted(key)}: {said}")
    return lines


# Larger integers, in bits, are not written out: Python refuses from about 14,000 bits on.
_LONGEST = 256
# Most lines in one warning; `verify` lists all.
_MAX_LINES = 8
# Where `deltas.pull` keeps its files in a directory.
_PULLS = ".weight_sync"
# Most names of a directory to search for models.
_MAX_FOLDERS = 100
# Files of the same kind, but without weights, that programs save beside a model.
_NO_WEIGHTS = re.compile(r"\.|(?:training_args|optimizer|scheduler|scaler|rng_state|random_states)")


def warn_of(file: Any, lines: Sequence[str], options: Options) -> None:
    """Warn the caller of `open` of disagreements; callers that open privately list `Content.warnings`."""
    if not lines or options.private:
        return
    shown = "; ".join(lines[:_MAX_LINES])
    more = f"; and {counted(len(lines) - _MAX_LINES, 'more line')}, which verify() lists"
    level, frame = 2, sys._getframe(1)  # noqa: SLF001 - `skip_file_prefixes` needs Python 3.12
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "weightmap":
        level, frame = level + 1, frame.f_back
    text = f"{parts_of(file)[0].name}: {shown}{more if len(lines) > _MAX_LINES else ''}"
    warnings.warn(escape(text), errors.ModelWarning, stacklevel=level)


# The name of one of several shards; the index has the same name without the numbers.
_NUMBERED = re.compile(r"(.+)-\d{5}-of-(?!00001)\d{5}(\.\w+)", re.DOTALL)


def find_model(folder: str) -> str:
    """Return the path of the one model, or index of shards, in a directory: see `look_in`."""
    return look_in(folder)[0]


def look_in(folder: str, *, strict: bool = True) -> tuple[str, list[str]]:
    """Return the path of the only model, or index of shards, in a directory; and lines about other files beside it.

    Without `strict`, a single shard whose index is missing counts as the model's file.

    Raises
    ------
    NotRegularFileError
        When the directory has no model.
    UnknownFormatError
        When it has several and none has a usual name, or indexes of one usual name in several formats.
    UnsupportedError
        When each file holds parts of tensors.
    """
    names = sorted(open_source.names_in(folder, single.USUAL_NAMES))
    indexes = [name for name in names if single.is_index(name)]
    usual = next((name for name in single.USUAL_NAMES if name in names), None)
    if usual is None:
        candidates = indexes or [name for name in names if name.endswith(SUFFIXES)]
    elif usual in indexes:  # ambiguous beside an index of the same model in another format
        stem = os.path.splitext(usual.removesuffix(single.INDEX_SUFFIX))[0]
        same = {usual, *(f"{stem}{suffix}{single.INDEX_SUFFIX}" for suffix in SUFFIXES)}
        candidates = [name for name in indexes if name in same]
    else:
        candidates = [usual]
    if len(candidates) != 1 and (parts := of_ranks(candidates or names, folder)) is not None:
        raise parts
    if not candidates:
        what = f"this directory has no *{single.INDEX_SUFFIX} and no model file ({', '.join(SUFFIXES)}){_away(folder)}"
        inner = _folders_with_models(folder, names)
        if inner:
            what += f"; its folders hold models, open one of them: {', '.join(map(quoted, inner))}"
        raise errors.NotRegularFileError(what, path=folder)
    # Shards of ranks ("shard-00001-model-00001-of-00002") have no index.
    unlisted = () if indexes else (name for name in candidates if not name.startswith("shard-"))
    shards = [match for name in unlisted if (match := _NUMBERED.fullmatch(name))]
    msg = ""
    if shards and not by_suffix(shards[0][0]).numbered:
        index = f"{shards[0][1]}{shards[0][2]}{single.INDEX_SUFFIX}"
        msg = f"this directory has shards of a model, and their index is missing: {quoted(index)}"
    elif len(candidates) > 1:
        msg = f"this directory has several model files; open one of them: {', '.join(map(repr, candidates[:10]))}"
    if msg and (strict or len(candidates) > 1):
        raise errors.UnknownFormatError(msg, path=folder)
    path, others = _whole_beside(folder, candidates[0], names)
    return path, [msg, *others] if msg else others


def _whole_beside(folder: str, name: str, names: Collection[str]) -> tuple[str, list[str]]:
    """Return path and lines as `look_in` does; a whole file replaces an index whose shards are missing.

    The lines name other files of the same kind; opening an index compares it with its directory.
    """
    path, whole = open_source.inside(folder, name), single.single_name(name)
    lines = []
    if single.is_index(name):
        gone = sorted(_missing(path, names)) if whole in names else []
        if not gone:
            return path, []
        lines = [f"index {quoted(name)} names {quoted(gone[0])}, which is missing: {quoted(whole)} is opened instead"]
        name, path = whole, open_source.inside(folder, whole)
    others = _unnamed(path, {name}, names)
    return path, [*lines, *(f"file {quoted(other)} lies beside this model, and is left out" for other in others)]


def _folders_with_models(folder: str, names: Sequence[str]) -> list[str]:
    """Return the folders in a directory that hold models, as in a pipeline of diffusers."""
    if type(folder) is not str and "model_index.json" not in names:  # a store is not searched
        return []
    inner = [name for name in names if not name.startswith(".")][:_MAX_FOLDERS]
    folders = []
    for name in inner:
        path = open_source.inside(folder, name if type(folder) is str else f"{name}/")
        try:
            there = open_source.names_in(path, ()) if open_source.is_directory(path) else ()
        except OSError:
            continue
        if any(single.is_index(other) or other.endswith(SUFFIXES) for other in there):
            folders.append(name)
    return folders


def _shards_named(path: str) -> set[str]:
    """Return the files that an index names; none if it is damaged or gone."""
    try:
        source = open_source.from_path(path, "copy")
        try:
            shards = read_listing(source, Options(DEFAULT_LIMITS)).shards
        finally:
            source.close()
    except (OSError, errors.TensorFileError):
        return set()
    return {name for name in shards if isinstance(name, str) and open_source.stays_inside(name)}


def _missing(path: str, names: Collection[str]) -> set[str]:
    """Return the files that an index names and that are missing among the `names` in its directory."""
    shards = _shards_named(path)
    if type(path) is str:
        return {name for name in shards if not os.path.exists(open_source.sibling_path(path, name))}
    return set() if open_source.neighbours(path) is None else {name for name in shards if "/" not in name} - set(names)


def _unnamed(path: str, shards: Collection[str], names: Collection[str]) -> list[str]:
    """Return the weight files in a directory that neither belong to a model nor are named by another index."""
    suffixes = tuple(
        {os.path.splitext(name)[1] for name in (single.single_name(open_source.called(path)), *shards)} - {""}
    )
    others = {name for name in names if name.endswith(suffixes)} - set(shards)
    others = {name for name in others if not _NO_WEIGHTS.match(name)}
    if _PULLS in names:  # shards of two versions lie there while one replaces the other
        return []
    for index in names if others else ():
        if single.is_index(index) and index != open_source.called(path):
            others -= _shards_named(open_source.sibling_path(path, index))
    return sorted(others)


def other_models(file: TensorFile) -> list[str]:
    """Return a line for each other model in the directory that a handle was opened on, and in its folders.

    Opening itself names other models of the same format.
    """
    folder, path = folder_opened(file), file.path
    if folder is None or path is None:
        return []
    names = sorted(open_source.names_in(folder, ()))
    opened = open_source.called(path)
    same = {os.path.splitext(name)[1] for name in (single.single_name(opened), *file.shards)}
    others = [
        name for name in names if name.endswith(tuple({*SUFFIXES, *FOREIGN} - same)) and not _NO_WEIGHTS.match(name)
    ]
    others += [name for name in names if single.is_index(name) and name != opened]
    inner = _folders_with_models(folder, names) if type(folder) is str else []
    return [
        *(f"file {quoted(name)} lies beside this model, and is left out" for name in others),
        *(f"folder {quoted(name)} has a model, which is left out" for name in inner),
    ]


def _away(folder: str) -> str:
    """Return why a model's files may be missing: the Hub was not asked, or a pull is going on (deltas/local.py)."""
    if type(folder) is not str:
        why = folder.of_store("offline")  # type: ignore[attr-defined]
        return f": {why}" if why else ""
    if not os.path.lexists(os.path.join(folder, _PULLS, "next", "changes")):
        return ""
    return ": a pull changes it in place; if that was stopped, pull again"


def open_directory(path: str, options: Options) -> TensorFile:
    """Open the one model in a directory, with the options of `weightmap.open`."""
    single.mode_of(options.mode, private=options.private)  # refuses a wrong mode before it reads the directory
    while True:
        model_path, odd = look_in(path, strict=options.strict)
        try:
            if not single.is_index(model_path):
                file = single.open_file(model_path, model_path, options)
                stale = [line for line in odd if not line.startswith("file")]
                if type(file) is not TensorFile:  # the words of an importer
                    return file
                file = open_parts(model_path, file, options) if parts_of(file)[1].part is not None else file
                file = _with_lines(file, odd, stale, options)
            else:
                file = _open_index(open_source.from_path(model_path, "copy"), model_path, options, whole=True)
        except FileNotFoundError:  # a single file just replaced shards, or the reverse
            if type(path) is not str or look_in(path, strict=options.strict)[0] == model_path:
                raise
        except IsADirectoryError:
            what = "the model file of this directory is a directory"
            raise errors.NotRegularFileError(what, path=model_path) from None
        else:
            parts_of(file)[1].folder = path
            return file


def open_sharded(path: str, options: Options) -> TensorFile:
    """Open an index of shards, with the options of `weightmap.open`; or a directory named like an index.

    Strict mode raises a `LayoutError` for a missing shard, for a tensor of the index that no shard has, and for a
    tensor that two shards have. Other wrong statements of the index are a `ModelWarning`.

    Up to 64 shards each keep the descriptor of their file, as a single file does. With more shards none does, because
    a process has few descriptors: all are mapped now, and later reads open a shard again by its path and raise
    `FileChangedError` if another file is there. Look-ups check for changes through the path; a file that was replaced
    by rename or deleted counts as unchanged, because the mapping keeps the old file.

    If the index is replaced while its shards are being opened, it is read again, so that all have one version.
    """
    single.mode_of(options.mode, private=options.private)  # refuses a wrong mode before it reads the index
    try:
        source = open_source.from_path(path, "copy")
    except IsADirectoryError:
        return open_directory(path, options)
    return _open_index(source, path, options)


def _open_index(source: Source, path: str, options: Options, *, whole: bool = False) -> TensorFile:
    """Open the shards of an open index; start again whenever another index replaces it meanwhile.

    `whole` says that the caller opened the directory.
    """
    while True:
        try:
            model = _open_listed(source, path, options, whole=whole)
        except errors.TensorFileError:
            if not _is_replaced(source, path):
                raise
        else:
            if not _is_replaced(source, path):
                return model
            model.close()
        source = open_source.from_path(path, "copy")


def _is_replaced(source: Source, path: str) -> bool:
    """Whether a path leads to another file than the opened one; False for a store, without a request."""
    if type(path) is not str:
        return False
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) != source.identity


def _open_listed(source: Source, path: str, options: Options, *, whole: bool) -> TensorFile:
    files: dict[str, TensorFile] = {}
    try:
        if options.trust is not None:
            options.trust.admit(source, options.limits)
        odd: list[str] = []
        listing = read_listing(source, options, odd)
        _refuse_delta(listing)
        names = _names_of(listing, options, odd)
        options.limits.check("max_shards", len(names), "number of shards")
        there = open_source.neighbours(path)
        names = _listed_in(path, names, there, options, odd)
        _open_all(_open_shards(path, names, _of_shards(options)), files, odd, len(names))
        content = ShardedContent(files, options, listing, odd)
        _check_total(content, listing.metadata)
        # Opened as a directory, it holds one model; beside an index opened by its path, others may lie.
        (content.odd if whole else content.warnings).extend(
            f"file {quoted(other)} lies beside this model, and the index does not name it: it is left out"
            for other in _unnamed(path, names, there or ())
        )
        model = _joined(source, content, options)
    except BaseException as error:
        for shard in files.values():
            shard.close()
        if isinstance(error, errors.TensorFileError):
            raise error.located(path=path) from None
        raise
    finally:
        source.close()
    return model


def open_parts(path: str | None, first: TensorFile, options: Options) -> TensorFile:
    """Open the remaining parts of a model, and return it as one handle.

    Names help to find the parts; the numbers in them decide their order. The first part opens alone if its name does
    not lead to the others, and so does any other part, with a `ModelWarning`. Strict mode raises a `LayoutError` for a
    missing part, and for a tensor in two parts.
    """
    source, of_first, _ = parts_of(first)
    part = of_first.part
    if path is None or part is None or not part.names:
        return _one_part(first, part, options)
    files: dict[str, TensorFile] = {}
    odd: list[str] = []
    try:
        options.limits.check("max_shards", part.parts, "number of parts")
        others = _open_shards(path, part.names, _of_shards(options))
        _open_all(others, files, odd, part.parts)
        files[open_source.called(path)] = first
        files = _by_number(files, sorted((open_source.called(path), *part.names)), part, options, odd)
        content = ShardedContent(files, options, odd=odd)
        count = len(content.table)
        if part.tensors is not None and part.tensors != count:
            what, expected = "number of tensors in all parts", f"{part.tensors}, from the first part"
            options.tolerate(errors.LayoutError(what, field="part", actual=count, expected=expected), content.odd)
        model = _joined(source, content, options)
    except BaseException as error:
        for file in (first, *files.values()):
            file.close()
        if isinstance(error, errors.TensorFileError):
            raise error.located(path=path) from None
        raise
    return model


def _one_part(file: TensorFile, part: Any, options: Options) -> TensorFile:
    """Return a part that opens alone, with a line that says so."""
    whole = "" if part.tensors is None else f" of {part.tensors:,}"
    stem, suffix = os.path.splitext(open_source.called(file.path or ""))
    name = f"{stem}-00001-of-{part.parts:05}{suffix}"
    remedy = "open the first part"
    if not part.number:
        named = f"its path leads to them if it is called {quoted(name)}, as theirs are"
        remedy = "open it by its path" if file.path is None else named
    here = f"this is part {part.number + 1} of {part.parts} of a model"
    line = f"{here}, and the others are left out ({len(file):,}{whole} tensors): {remedy}"
    return _with_lines(file, [line], [line], options)


def _with_lines(file: TensorFile, lines: Sequence[str], odd: Sequence[str], options: Options) -> TensorFile:
    """Warn of the first of these lines; return the file, whose `verify` lists them all."""
    try:
        parts_of(file)[1].warnings.extend(lines)
        warn_of(file, odd, options)
    except BaseException:  # a warning may be an error
        file.close()
        raise
    return file


def _open_all(
    opening: Iterator[tuple[str, TensorFile | errors.TensorFileError]],
    files: dict[str, TensorFile],
    odd: list[str],
    count: int,
) -> None:
    """Fill `files` with shards as they open; note those left out. `count` is the model's number of shards."""
    for name, file in opening:
        if isinstance(file, errors.TensorFileError):
            odd.append(f"shard {quoted(name)} is left out: {file}")
            continue
        files[name] = file
        if count > open_source.MAX_OPEN:
            _release(file)


def _joined(source: Source, content: ShardedContent, options: Options) -> TensorFile:
    """Return the handle of a model under the name of `source`, its index or its first part."""
    formats = {shard.format for shard in content.shards.values()}
    name = formats.pop() if len(formats) == 1 else "mixed"
    if options.mode in {"copy", "sealed", "direct"}:
        nbytes = sum(one.size for shard in content.shards.values() for one in sources_of(shard))
        options.limits.check("max_copy_bytes", nbytes, "bytes of all files to copy")
    name_only = source.without_bytes()
    content.table.belongs_to(name_only, name)
    content.warnings[:0] = content.odd
    model = TensorFile(name_only, name, content, options, content.shards)
    if options.verify == "full":
        model.verify()
    warn_of(model, content.odd, options)
    return model


def _release(file: TensorFile) -> None:
    """Close the descriptors of a shard: see `open_sharded`."""
    for source in sources_of(file):
        source.release_descriptor()


def _by_number(
    files: Mapping[str, TensorFile], names: Sequence[str], part: Any, options: Options, odd: list[str]
) -> dict[str, TensorFile]:
    """Return the parts of a model by number; `names` has them by name.

    Strict mode raises `LayoutError` for a missing part. Otherwise files of other models, and a second part with the
    same number, are left out.
    """
    numbered: dict[int, str] = {}
    wrong: list[tuple[str, errors.LayoutError]] = []
    for place, name in enumerate(names):
        if name not in files:
            continue
        numbers = parts_of(files[name])[1].part
        number = numbers.number if numbers is not None and numbers.parts == part.parts else -1
        if number != place:
            actual = "not a part of a model"
            if numbers is not None:
                actual = f"part {numbers.number + 1} of {numbers.parts}"
            what, expected = f"by its metadata, {quoted(name)}", f"part {place + 1} of {part.parts}"
            wrong.append((name, errors.LayoutError(what, field="part", actual=actual, expected=expected)))
        if 0 <= number < part.parts:
            numbered.setdefault(number, name)
    if wrong and options.strict and len(numbered) < part.parts:
        raise wrong[0][1]
    used = set(numbered.values())
    odd.extend(str(error) if name in used else f"{error}: it is left out" for name, error in wrong)
    for name in files.keys() - used:
        files[name].close()
    absent = [number + 1 for number in range(part.parts) if number not in numbered]
    odd.extend(f"part {number} of {part.parts} of this model is missing" for number in absent)
    return {numbered[number]: files[numbered[number]] for number in sorted(numbered)}


def _refuse_delta(listing: Listing) -> None:
    """Raise `UnsupportedError` for the index of a delta: its files hold frames, not values."""
    if "delta_encoding" in listing.metadata:
        raise single.delta_error("this is a delta: its files hold", "delta_encoding")


def _names_of(listing: Listing, options: Options, odd: list[str]) -> list[str]:
    """Return the names of the shards of an index. Raises `FormatError` in strict mode for impossible file names."""
    names = []
    for name in listing.shards:
        try:
            names.append(shard_name(name))
        except errors.FormatError as error:
            options.tolerate(error, odd)
    return sorted(names)


def _listed_in(
    path: str, names: list[str], there: Collection[str] | None, options: Options, odd: list[str]
) -> list[str]:
    """Return the shards that a store lists; on a file system, opening a shard shows whether it is there.

    Strict mode raises `LayoutError` for tensors whose shards the store does not list.
    """
    if type(path) is str or there is None:
        return names
    missing = sorted({name for name in names if "/" not in name} - set(there))
    if missing:
        what = f"the store lists no {quoted(missing[0])}, which the index names"
        error = errors.LayoutError(f"{what} ({counted(len(missing), 'such shard')})", field="weight_map")
        if options.strict:
            raise error
    odd.extend(f"shard {quoted(name)} is left out: the store does not list it" for name in missing)
    return [name for name in names if name not in missing]


def _of_shards(options: Options) -> Options:
    """Return the options for opening shards: "full" verifies the whole model later, once it is open."""
    return Options(**options.keywords(verify="header" if options.checked else "none"))


def _open_shards(
    index: str, names: Sequence[str], options: Options
) -> Iterator[tuple[str, TensorFile | errors.TensorFileError]]:
    """Open shards, in order; in a store many at a time, because opening one mostly waits for its header.

    As many threads as processors open shards that must be hashed. Where `strict` is False, the error of an unreadable
    shard takes its place.
    """
    hashed = options.trust is not None
    if len(names) < 2 or (type(index) is str and not hashed):
        for name in names:
            yield name, _open_or_error(index, name, options)
        return
    from concurrent.futures import Future, ThreadPoolExecutor  # noqa: PLC0415 - 5 ms, for stores and hashing

    def opened(name: str) -> TensorFile | errors.TensorFileError:
        file = _open_or_error(index, name, options)
        if (
            hashed and len(names) > open_source.MAX_OPEN and isinstance(file, TensorFile)
        ):  # the caller may be far behind
            _release(file)
        return file

    with ThreadPoolExecutor(min(len(names), cpus() if hashed else index.access.small)) as pool:  # type: ignore[attr-defined]
        opening: list[Future[TensorFile | errors.TensorFileError]] = []
        with contextlib.suppress(RuntimeError):  # no more threads to be had: this one opens the others
            opening.extend(pool.submit(opened, name) for name in names)
        first, others = names[: len(opening)], names[len(opening) :]
        try:
            for name in first:
                yield name, opening.pop(0).result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            for future in opening:
                if not future.cancelled() and future.exception() is None:
                    result = future.result()
                    if isinstance(result, TensorFile):
                        result.close()
            raise
    for name in others:
        yield name, opened(name)


def _open_or_error(index: str, name: str, options: Options) -> TensorFile | errors.TensorFileError:
    """Open a shard; unless `strict`, return the error for a shard that is missing, damaged or not a file."""
    try:
        return _open_shard(index, name, options)
    except (errors.FormatError, errors.NotRegularFileError) as error:
        if options.strict or isinstance(error, (errors.TrustError, errors.LimitError)):
            raise
        return error


def _open_shard(index: str, name: str, options: Options) -> TensorFile:
    path = open_source.sibling_path(index, name)
    if single.is_index(name):  # an index that names itself would never end
        raise _no_file(name)
    try:
        return single.open_file(path, path, options)
    except IsADirectoryError:
        raise _no_file(name) from None
    except OSError as error:
        if not open_source.is_missing(error):
            raise
        msg = f"file {quoted(name)} of this model is missing{_away(open_source.folder_of(index))}"
        raise errors.LayoutError(msg, field="weight_map") from None


@contextlib.contextmanager
def naming_all(source: Any) -> Iterator[None]:
    """Let the error of opening a model name every shard that does not open, not only the first."""
    try:
        yield
    except (errors.TensorFileError, OSError):
        failed = list(_closed_shards(source))
        try:
            if len(failed) < 2:
                raise
            raise errors.ShardsError.of(failed)
        finally:
            del failed  # a frame that refers to errors, as they to it, keeps files open until a garbage collection


def _closed_shards(source: Any) -> Iterator[tuple[str, Exception]]:
    """Yield the shards of a model that do not open, with their errors; none for a model without an index."""
    path = open_source.path_of(source)
    if path is None:
        return
    with contextlib.suppress(errors.TensorFileError, OSError):  # no directory, or one without a model
        path = path if single.is_index(path) else find_model(path)
    for name in sorted(_shards_named(path)) if single.is_index(path) else ():
        try:
            _open_shard(path, name, Options(DEFAULT_LIMITS, private=True)).close()
        except (errors.TensorFileError, OSError) as error:
            yield name, error


def _no_file(name: str) -> errors.LayoutError:
    return errors.LayoutError(
        f"shard {quoted(name)} is an index or a directory, expected a model file", field="weight_map"
    )


def _check_total(content: ShardedContent, metadata: Mapping[str, Any]) -> None:
    """Compare the total size in the index with the tensors': only a warning, since programs count differently."""
    stated = metadata.get("total_size")
    total = int(content.table.spans()[1].sum())
    if stated is not None and stated != total:
        line = f"total_size of the index of shards is {_spelt(stated)}, expected {total}, the bytes of all tensors"
        # transformers counts only the first of tensors that share memory.
        shared = any(parts_of(file)[1].table.rules.scattered for file in content.shards.values())
        (content.warnings if shared else content.odd).append(line)


def plain(value: Any) -> Any:
    """Return a value with lists in place of arrays and lazy sequences."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def json_form(value: Any) -> Any:
    """Return a value for JSON: arrays as lists, floats that are not finite as the texts NaN, Infinity and -Infinity."""
    value = plain(value)
    if isinstance(value, (list, tuple)):
        return [json_form(item) if isinstance(item, (list, tuple, float)) else item for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def equal(a: Any, b: Any) -> bool:
    """Whether two values are equal; an array equals a list of the same items, and NaN equals NaN."""
    return a is b or bool(json_form(a) == json_form(b))
