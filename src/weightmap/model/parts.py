"""Functions on a `TensorFile` for the rest of the package: places of tensors, checks for changes, the files behind it.

They keep the handle itself free of members that users do not need.
"""

from __future__ import annotations

import os
from collections.abc import ItemsView, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap.dtypes import numpy_dtype
from weightmap.errors import TensorFileError, TensorNotFoundError, counted, quoted
from weightmap.index.table import Row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from weightmap.embeddings.embeddings import Embeddings
    from weightmap.io.source import Source
    from weightmap.quant import TensorRef

__all__ = [
    "SHARD",
    "Closed",
    "Items",
    "Values",
    "arrays",
    "check_index",
    "check_open",
    "check_unchanged",
    "detach_index",
    "embeddings_of",
    "files_of",
    "identities",
    "locate",
    "located",
    "name_of",
    "not_found",
    "parts_of",
    "row_of",
    "rows_of",
    "shared_descriptor",
]

# Runs of fewer tensors are made one by one.
_RUN = 4
OCTET = np.dtype(np.uint8)
# A row or an offset in a sharded model is that in the shard, plus the number of the shard times this.
SHARD = 1 << 64


def parts_of(file: Any) -> tuple[Any, Any, Any]:
    """Return source, content and options of a `TensorFile`; for a sharded model, source and content are a `Shards`."""
    return file._source, file._content, file._options


def files_of(file: Any) -> Collection[Any]:
    """Return the files of a sharded model, or the single file itself."""
    return file.shards.values() or (file,)


def name_of(file: Any) -> str:
    """Return the name of a file in messages: its path, or a word in angle brackets such as ``<bytes>``."""
    name: str = file._source.name
    return name


def identities(file: Any) -> dict[str, tuple[int, ...]]:
    """Return the `Source.identity` of each file by name, of a sharded model including its index."""
    source = file._source
    shards: Mapping[str, Any] = file.shards
    return {os.path.basename(source.absolute): source.identity} | {
        name: shard._source.identity for name, shard in shards.items()
    }


def check_open(file: Any) -> None:
    """Raise `ClosedError` if the handle was closed."""
    if file._source.closed:
        file._source.fail_closed()


def check_unchanged(file: Any) -> None:
    """Raise `FileChangedError` if size or modification time of a file have changed since it was opened."""
    check_open(file)
    for part in files_of(file):
        part._source.check_unchanged()


def check_index(file: Any) -> None:
    """Check the handle before its index is used: a file that shrank would make a mapped index fault."""
    source = file._source
    if source.closed:
        source.fail_closed()
    if file._table.is_mapped:
        source.check_unchanged()


def detach_index(file: Any) -> None:
    """Copy a mapped index into private memory, so that later reads of it cannot fault."""
    check_index(file)
    try:
        file._table.detach_index()
    except TensorFileError as error:
        raise _located(file, error) from None


def _located(file: Any, error: TensorFileError) -> TensorFileError:
    """Return an error of a table, which knows neither path nor format of the file."""
    return error.located(path=file._source.name, format=file.format)


def _number(file: Any, name: str) -> int:
    """Return the number of a tensor in the table. Raises `TensorNotFoundError`."""
    check_index(file)
    number: int = file._table.find(name)
    if number < 0:
        raise not_found(file, name)
    return number


def row_of(file: Any, name: str) -> Row:
    """Return the row of a tensor; offsets in a sharded model are those in the shard. Raises `TensorNotFoundError`."""
    i = _number(file, name)
    try:
        row: Row = file._table.row(i)
    except TensorFileError as error:
        raise _located(file, error) from None
    return row


def rows_of(file: Any) -> Iterator[Row]:
    """Yield the row of every tensor, in file order, as `row_of` returns them."""
    try:
        yield from file._table.rows()
    except TensorFileError as error:
        raise _located(file, error) from None


def locate(file: Any, name: str) -> TensorRef:
    """Return the place of a tensor. Raises `TensorNotFoundError`."""
    i = _number(file, name)
    try:
        ref: TensorRef = file._content.ref(file._source, i)
    except TensorFileError as error:
        raise _located(file, error) from None
    return ref


def located(file: Any) -> Iterator[TensorRef]:
    """Yield the place of every tensor, in file order; cheaper than `locate` for each."""
    try:
        yield from file._content.refs(file._source)
    except TensorFileError as error:
        raise _located(file, error) from None


def not_found(file: Any, name: object) -> TensorNotFoundError:
    """Return the error for a name that no tensor has; it suggests names."""
    from weightmap.index.spelling import others  # noqa: PLC0415 - for errors only

    message = f"no tensor is called {quoted(name)} among {counted(len(file), 'tensor')}{others(name, file)}"
    return TensorNotFoundError(message, path=file._source.name, format=file.format)


def arrays(file: Any) -> Iterator[Any]:
    """Yield all tensors, in file order."""
    check_open(file)
    source = file._source
    try:
        source.check_unchanged()
        for dtype, shape, offset, nbytes, count, step in file._table.runs():
            if dtype.quantized:
                yield file._quantized(Row._make((dtype, shape, offset, nbytes)))
                continue
            if dtype.placement is not None:
                yield source.placed(dtype.placement, numpy_dtype(dtype), shape, offset, nbytes)
                continue
            dims, stored = ((nbytes,), OCTET) if dtype.packed else (shape, dtype.numpy or numpy_dtype(dtype))
            if count >= _RUN and dims and nbytes:
                # Tensors of one shape at equal distances are rows of one strided array, which is five times as fast to
                # iterate. (Not empty ones: numpy may not be able to count their dimensions together.)
                yield from source.array_of(count, step, stored, dims, offset, nbytes)
            else:
                for k in range(count):
                    yield source.array(stored, dims, offset + k * step, nbytes)
    except TensorFileError as error:
        raise error.located(path=source.name, format=file.format) from None


class Values(ValuesView[Any]):
    """All tensors of a handle, in file order."""

    __slots__ = ()
    _mapping: Any

    def __iter__(self) -> Iterator[Any]:
        check_open(self._mapping)
        return arrays(self._mapping)


class Items(ItemsView[str, Any]):
    """All names and tensors of a handle, in file order."""

    __slots__ = ()
    _mapping: Any

    def __iter__(self) -> Iterator[tuple[str, Any]]:
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


def shared_descriptor(file: Any) -> int:
    """Return the descriptor of a handle's sealed memory: see `TensorFile.fileno`."""
    check_open(file)
    number: int | None = file._source.sealed
    if number is None:
        from io import UnsupportedOperation  # noqa: PLC0415 - for this message

        msg = 'only a single file opened with mode="sealed" has a descriptor to share'
        raise UnsupportedOperation(msg)
    return number


def embeddings_of(file: Any) -> Embeddings | None:
    """Return the word vectors of a handle, made at the first use: see `TensorFile.embeddings`."""
    check_open(file)
    # Another thread may close the handle at any moment, which forgets them.
    found: Embeddings | bool | None = file._embeddings
    if isinstance(found, bool):
        from weightmap.embeddings.embeddings import Embeddings  # noqa: PLC0415 - embeddings stand on a file, not under it
        from weightmap.formats import by_name  # noqa: PLC0415 - opening does not need it

        file._embeddings = found = Embeddings.of(file, by_name(file.format).embeddings)
        if file._source.closed:
            file._embeddings = False
    return found
