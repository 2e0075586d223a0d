"""Functions on a `TensorFile` for the rest of the package: places of tensors, checks for changes, files of a handle.

As methods, they would show users of a handle members that they do not need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from io import UnsupportedOperation
from typing import TYPE_CHECKING, NoReturn, Protocol

from weightmap._messages import counted, quoted
from weightmap.core.arguments import Options, check_expansion, similar
from weightmap.core.bytes import Range
from weightmap.core.bytes.open_source import sibling_name, stays_inside
from weightmap.core.bytes.source import BETWEEN, Source
from weightmap.core.formats import FORMATS, Content
from weightmap.core.hooks import import_part
from weightmap.errors import FormatError, TensorFileError, TensorNotFoundError

if TYPE_CHECKING:
    from weightmap.core.model.typing import Embeddings, TensorLike
    from weightmap.core.table.table import Row, Table, TensorInfo
    from weightmap.core.table.vocabulary import Vocabulary

    class Handle(Collection[str], Protocol):
        """The members of a `TensorFile` that these functions use."""

        _source: Source
        _sources: tuple[Source, ...]
        _content: Content
        _options: Options
        _table: Table
        _embeddings: Embeddings | bool | None
        format: str

        @property
        def shards(self) -> Mapping[str, Handle]:
            """The files of a model in several files."""

        @property
        def nbytes(self) -> int:
            """Bytes of all files."""

        @property
        def vocab(self) -> Vocabulary | None:
            """The vocabulary of the file."""

        def info(self, name: str) -> TensorInfo:
            """Return the description of a tensor."""

        def infos(self) -> list[TensorInfo]:
            """Return the description of every tensor."""

        def __getitem__(self, name: str, /) -> TensorLike: ...


_Ranges = defaultdict[Source, list[Range]]
# Runs of fewer tensors are made one by one.
_RUN = 4
# Most names, and their most characters, that the error for a missing name lists if no name resembles it.
_LISTED, _LISTED_CHARACTERS = 5, 200


def parts_of(file: Handle) -> tuple[Source, Content, Options]:
    """Return source, content and options of a handle; the source of a model in several files has no bytes."""
    return file._source, file._content, file._options


def sources_of(file: Handle) -> tuple[Source, ...]:
    """Return the sources of all files of a handle, its own first; without bytes if the model has several files."""
    return file._sources


def is_remote(file: Handle) -> bool:
    """Whether tensors lie in a store, so that a second read fetches them again."""
    return any(source.store is not None for source in file._sources)


def names_of(file: Handle) -> dict[Source, str]:
    """Return the names of all files of a handle, relative to the directory of the first."""
    sources = sources_of(file)
    first = sources[0].absolute or ""
    return {source: sibling_name(source.absolute or "", first) for source in sources}


def folder_opened(file: Handle) -> str | None:
    """Return the directory that a handle was opened on; None for one opened on a file or an index."""
    return file._content.folder


def warnings_of(file: Handle) -> list[str]:
    """Return the warnings of opening a file, or the files of a sharded model."""
    warnings = [*file._content.warnings]
    for name, shard in file.shards.items():
        warnings += (f"{name}: {warning}" for warning in shard._content.warnings)
    return warnings


def where_of(file: Handle) -> dict[str, str]:
    """Return the file of each tensor of a model in several files; nothing for a single file."""
    return file._content.where if file.shards else {}


def name_of(file: Handle) -> str:
    """Return the name of a file in messages: its path, or a word in angle brackets such as ``<bytes>``."""
    return file._source.name


def identities(file: Handle) -> dict[str, tuple[int, ...]]:
    """Return the `Source.identity` of each file of a handle, by name."""
    return {name: source.identity for source, name in names_of(file).items()}


def check_open(file: Handle) -> None:
    """Raise `ClosedError` if the handle was closed."""
    if file._source.closed:
        file._source.fail_closed()


def check_unchanged(file: Handle) -> None:
    """Raise `FileChangedError` if the size or modification time of an opened file has changed."""
    check_open(file)
    for source in sources_of(file):
        source.check_unchanged()


def check_index(file: Handle) -> None:
    """Check the handle before its index is used: a file that shrank would make a mapped index fault."""
    source = file._source
    if source.closed:
        source.fail_closed()
    if file._table.is_mapped:
        source.check_unchanged()


def detach_index(file: Handle) -> None:
    """Copy a mapped index into private memory, so that later reads of it cannot fault."""
    check_index(file)
    try:
        file._table.detach_index()
    except TensorFileError as error:
        raise _located(file, error) from None


def _located(file: Handle, error: TensorFileError) -> TensorFileError:
    """Add path and format of the file, which the table does not know, to its error; return it."""
    return error.located(path=file._source.name, format=file.format)


def _number(file: Handle, name: str) -> int:
    """Return the number of a tensor in the table. Raises `TensorNotFoundError`."""
    check_index(file)
    number = file._table.find(name)
    if number < 0:
        raise not_found(file, name)
    return number


def row_of(file: Handle, name: str) -> Row:
    """Return the row of a tensor. Raises `TensorNotFoundError`."""
    i = _number(file, name)
    try:
        return file._table.row(i)
    except TensorFileError as error:
        raise _located(file, error) from None


def rows_of(file: Handle) -> Iterator[Row]:
    """Yield the row of every tensor, in file order; cheaper than `row_of` for each."""
    try:
        yield from file._table.rows()
    except TensorFileError as error:
        raise _located(file, error) from None


def dense_row(file: Handle, name: str) -> Row:
    """Return the row of a tensor for reading it: see `Row.dense`. Raises `TensorNotFoundError`."""
    return row_of(file, name).dense


def dense_rows(file: Handle) -> Iterator[Row]:
    """Yield `dense_row` of every tensor, in file order; cheaper than one by one."""
    return (row if row.geometry is None else row.dense for row in rows_of(file))


def named_rows(file: Handle) -> Iterator[tuple[str, Row]]:
    """Yield name and `dense_row` of every tensor, in file order."""
    check_index(file)
    try:
        for name, row in zip(file._table.names, file._table.rows(), strict=True):
            yield name, row if row.geometry is None else row.dense
    except TensorFileError as error:
        raise _located(file, error) from None


def in_order(file: Handle, rows: Iterable[Row], *, arrays: bool = False) -> Iterable[Row]:
    """Return rows for reading one after another; if the file is in a store, request the next ones meanwhile.

    `arrays` says that the caller uses `Row.array`.
    """
    return requested(list(rows), arrays=arrays) if is_remote(file) else rows


def requested(rows: Sequence[Row], *, arrays: bool = False) -> Iterator[Row]:
    """Request the bytes of rows in stores now, in order, and yield rows over the answers: see `in_order`."""
    extents, whole_arrays = _Ranges(list), _Ranges(list)
    for row in rows:
        for source, begin, end in row.reads():
            extents[source].append(Range(begin, end))
            if arrays and row.geometry is None:
                whole_arrays[source].append(Range(begin, end))
    ahead = {source: source.ahead(ranges, BETWEEN, whole_arrays[source]) for source, ranges in extents.items()}
    return (row.reading(ahead) for row in rows)


def check_made(file: Handle, what: str, nbytes: int) -> None:
    """Raise `LimitError` if a model would expand to too many bytes: see `check_expansion`."""
    check_expansion(file._options.limits, nbytes, file.nbytes, f"size of {what}", file._source.name)


def check_copied(file: Handle, name: str, nbytes: int) -> None:
    """Raise `LimitError` if the copy of a view would be too large for its file: see `check_expansion`."""
    dense_row(file, name).source.check_size(f"tensor {quoted(name)}", nbytes)


def not_found(file: Handle, name: object) -> TensorNotFoundError:
    """Return the error for a name that no tensor has, with suggestions."""
    message = f"no tensor is called {quoted(name)} among {counted(len(file), 'tensor')}{suggestion(name, file)}"
    return TensorNotFoundError(message, path=file._source.name, format=file.format)


def suggestion(name: object, names: Collection[str]) -> str:
    """Return the end of a message about a missing name: similar names, or all if they are few, or its wrong type."""
    if not isinstance(name, str):
        return "; names are strings (str)"
    close = similar(name, names)
    if close:
        return f"; similar names: {', '.join(map(quoted, close))}"
    if not 0 < len(names) <= _LISTED or sum(map(len, names)) > _LISTED_CHARACTERS:
        return ""
    return f"; {'the names are' if len(names) > 1 else 'its name is'} {', '.join(map(quoted, names))}"


def arrays(file: Handle) -> Iterator[TensorLike]:
    """Yield all tensors, in file order."""
    check_open(file)
    source = file._source
    try:
        source.check_unchanged()
        if is_remote(file):
            for row in in_order(file, file._table.rows(), arrays=True):
                yield row.array()
            return
        for row, count, step in file._table.runs():
            if row.geometry is not None or row.dtype.quantized:
                yield row.array()
                continue
            (dtype, shape), row_source, offset, nbytes = row.viewed, row.source, row.offset, row.nbytes
            if count >= _RUN and shape and nbytes:
                # Tensors of one shape at equal distances are rows of one strided array, which is five times as fast to
                # iterate. (Not empty ones: numpy may not be able to count their dimensions together.)
                yield from row_source.array_of(count, step, dtype, shape, offset, nbytes)
            else:
                for k in range(count):
                    yield row_source.array(dtype, shape, offset + k * step, nbytes)
    except TensorFileError as error:
        raise error.located(path=source.name, format=file.format) from None


class Values(ValuesView["TensorLike"]):
    """All tensors of a handle, in file order."""

    __slots__ = ()
    _mapping: Handle

    def __iter__(self) -> Iterator[TensorLike]:
        check_open(self._mapping)
        return arrays(self._mapping)


class Items(ItemsView[str, "TensorLike"]):
    """All names and tensors of a handle, in file order."""

    __slots__ = ()
    _mapping: Handle

    def __iter__(self) -> Iterator[tuple[str, TensorLike]]:
        return zip(self._mapping, arrays(self._mapping), strict=True)


class Closed:
    """Stand-in for a closed handle's table and content: any access but `len` raises `ClosedError`."""

    __slots__ = ("_count", "_source")

    def __init__(self, source: Source, count: int) -> None:
        self._source = source
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, _: str) -> NoReturn:
        self._source.fail_closed()


def shared_descriptor(file: Handle) -> int:
    """Return the descriptor of a handle's sealed memory: see `TensorFile.fileno`."""
    check_open(file)
    number = file._source.sealed
    if number is None or len(file._sources) > 1:
        raise UnsupportedOperation('only a single file opened with mode="sealed" has a descriptor to share')
    return number


def embeddings_of(file: Handle) -> Embeddings | None:
    """Return the word vectors of a handle, made at the first use: see `TensorFile.embeddings`."""
    check_open(file)
    # Another thread may close the handle at any moment, which clears them.
    embeddings = file._embeddings
    if isinstance(embeddings, bool):
        words, format_ = import_part("weightmap.words.embeddings", "f.embeddings"), FORMATS.get(file.format)
        # Shards of several formats have the format "mixed", which is none of them.
        file._embeddings = embeddings = words.Embeddings.of(file, None if format_ is None else format_.embeddings)
        if file._source.closed:
            file._embeddings = False
    return embeddings


def shard_name(name: object) -> str:
    """Return the name of a shard if it is a plain relative path that stays within the directory."""
    if not isinstance(name, str):
        raise FormatError(f"name of a shard is a {type(name).__name__}, expected a string", field="weight_map")
    # Only the name is checked: the owner of the directory may use symbolic links, as the caches of model hubs do.
    if not stays_inside(name):
        what = "name of a shard"
        expected = "a relative path within the directory of the index"
        raise FormatError(what, field="weight_map", actual=quoted(name), expected=expected)
    return name
