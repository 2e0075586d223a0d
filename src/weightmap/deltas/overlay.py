"""A model under deltas: a handle whose unchanged tensors are views of the base, and whose changed tensors are decoded.

The row of a changed tensor has the place of its old bytes, and a `Patched` geometry, which decodes the frames of all
deltas over them. The files of the deltas are sources of the handle.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.core.arguments import Limits, Options, mistyped, unexpected
from weightmap.core.bytes import Range
from weightmap.core.bytes.derived import DecodedSource
from weightmap.core.bytes.geometry import DecodedOnUse
from weightmap.core.bytes.open_source import path_of
from weightmap.core.formats import Content, Verification
from weightmap.core.model.file import TensorFile
from weightmap.core.model.internals import name_of, parts_of, warnings_of
from weightmap.core.model.opening import OPEN_OPTIONS, located, open_with, options_of
from weightmap.core.table.columns import JoinedTable
from weightmap.deltas.frames import AT_ONCE, BLOCK, Frame, patched
from weightmap.deltas.local import Local, folder_of_model
from weightmap.deltas.versions import Delta, read_version
from weightmap.errors import DeltaError, TensorFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Place, Row, Table
    from weightmap.typing import ModelSource, OpenOptions


class Patched(DecodedOnUse):
    """A tensor that deltas changed: its old bytes lie in the base's file, the frames in the files of the deltas.

    Parameters
    ----------
    nbytes : int
    frames : sequence of Frame
        In the order of versions.
    limits : Limits
    """

    __slots__ = ("frames",)

    def __init__(self, nbytes: int, frames: Sequence[Frame], limits: Limits) -> None:
        super().__init__(nbytes, limits)
        self.frames: Sequence[Frame] = frames

    def pieces(self, row: Row, before: NDArray[np.uint8] | None = None) -> Iterator[memoryview]:
        """Yield the new bytes in pieces of at most `BLOCK` bytes; compare their checksums after the last piece.

        `before`, an array of `BLOCK` bytes, gets the old bytes of each piece.
        """
        return map(memoryview, patched(self.frames, self._old(row), row.nbytes, before))

    def stages(
        self, row: Row, at_once: int, back: Callable[[], Iterator[NDArray[np.uint8]]]
    ) -> Iterator[Iterator[memoryview]]:
        """Yield iterators like `pieces`, each over the bytes after some more versions; the last yields the new bytes.

        Decoding a frame takes some memory: long chains pass over the bytes several times, block by block; the caller
        stores them in between.

        Parameters
        ----------
        row : Row
        at_once : int
            Most frames to decode side by side.
        back : callable
            Returns the bytes of the previous iterator, in writable blocks of at most `BLOCK` bytes. A block may be
            reused once the next one is taken.
        """
        for start in range(0, len(self.frames), at_once):
            old = back() if start else self._old(row)
            yield map(memoryview, patched(self.frames[start : start + at_once], old, row.nbytes))

    @staticmethod
    def _old(row: Row) -> Iterator[NDArray[np.uint8]]:
        end = row.offset + row.nbytes
        source = row.source.ahead([Range(row.offset, end)])
        block = np.empty(min(BLOCK, row.nbytes), np.uint8)
        for at in range(row.offset, end, BLOCK):
            piece = block[: end - at]
            source.read_into(at, piece)
            yield piece

    def fill(self, row: Row, out: NDArray[np.uint8]) -> None:
        """Implement `DecodedOnUse.fill`."""

        def back() -> Iterator[NDArray[np.uint8]]:
            return (out[at : at + BLOCK] for at in range(0, len(out), BLOCK))

        for stage in self.stages(row, AT_ONCE, back):
            at = 0
            for piece in stage:
                out[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)

    def dense(self, row: Row) -> Source:
        """Return a source of these bytes."""
        return _PatchedSource(row, self)


class _PatchedSource(DecodedSource):
    """The bytes of a `Patched` tensor, read as a whole without memory for all of them."""

    _how: Patched

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        if (start, stop) == (0, self._row.nbytes):
            yield from (np.frombuffer(piece, np.uint8) for piece in self._how.pieces(self._row))
        else:  # a part may only be used if the checksum of the whole is right
            yield from super()._pieces(start, stop)


class OverlaidTable(JoinedTable):
    """The table of a base with changed rows: `changed` has their geometries by number."""

    def __init__(self, base: Table, changed: Mapping[int, Patched]) -> None:
        super().__init__([base], np.arange(len(base)), base.names)
        self.base: Table = base
        self.changed: Mapping[int, Patched] = changed

    def row(self, i: int) -> Row:
        """Return row i, checked."""
        row = super().row(i)
        how = self.changed.get(i)
        return row if how is None else row._replace(geometry=how)

    def rows(self) -> Iterator[Row]:
        """Yield every row, checked, in order."""
        changed = self.changed
        for number, row in enumerate(self.base.rows()):
            yield row if number not in changed else row._replace(geometry=changed[number])

    def place(self, i: int) -> Place:
        """Return row i: see `Table.place`. Raises `FileChangedError` if one of its files has changed."""
        dtype, shape, offset, nbytes, row = super().place(i)
        how = self.changed.get(i)
        if how is not None:
            for frame in how.frames:
                frame.source.check_unchanged()
            row = row._replace(geometry=how)  # type: ignore[union-attr] # a joined table has it
        return dtype, shape, offset, nbytes, row

    def dim_layout(self, dim: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Implement `Table.dim_layout`: the bytes of changed rows are not plain."""
        outer, size, plain = super().dim_layout(dim)
        plain[list(self.changed)] = False
        return outer, size, plain

    def side_ranges(self, rows: NDArray[np.int64]) -> Sequence[tuple[Source, Range]]:
        """Return the places of frames: see `Table.side_ranges`."""
        changes = (self.changed[row] for row in rows.tolist() if row in self.changed)
        frames = (frame for how in changes for frame in how.frames)
        return [(frame.source, Range(frame.offset, frame.offset + frame.nbytes)) for frame in frames]

    def check(self) -> None:
        """Check the table of the base."""
        self.base.check()

    def disorder(self) -> None:
        """Do nothing: verifying the base reports its disorder."""


class OverlaidContent(Content):
    """The content of a base under deltas."""

    table: OverlaidTable

    def __init__(self, base: TensorFile, deltas: Sequence[Delta], options: Options) -> None:
        _, below, _ = parts_of(base)
        table = OverlaidTable(below.table, _changed(below.table, name_of(base), deltas, options.limits))
        of_deltas = tuple(source for delta in deltas for source in delta.sources)
        verify = partial(_verify, below, table, of_deltas)
        super().__init__(below.layout, table, below.load_metadata, verify, warnings_of(base))
        self.deltas = deltas
        self.sources: tuple[Source, ...] = (*below.sources, *of_deltas)
        for name in ("has_metadata", "checksums", "config", "tokenizer", "part", "folder"):
            setattr(self, name, getattr(below, name))
        if below.load_vocab is not None:
            self.load_vocab = lambda: below.vocab
        self.sums = lambda source: () if source in of_deltas else below.sums(source)


def _verify(below: Content, table: OverlaidTable, of_deltas: Sequence[Source], run: Verification) -> None:
    """Verify the base, then decode every changed tensor."""
    below.verify(run)
    for source in of_deltas:
        run.turn(source)
    for number, how in table.changed.items():
        for _ in how.pieces(table.row(number)._replace(geometry=None)):
            pass
    if table.changed:
        run.checked(f"checksums of {counted(len(table.changed), 'tensor')} that deltas changed")


def _changed(table: Table, base: str, deltas: Sequence[Delta], limits: Limits) -> dict[int, Patched]:
    """Return the geometry of each row that deltas change. `base` is the path of the model."""
    frames: dict[int, list[Frame]] = {}
    for delta in deltas:
        for name, frame in delta.frames.items():
            number = table.find(name)
            if number < 0:
                raise frame.error(f"{base} has none and is not the base of this delta", field="weight_map")
            frames.setdefault(number, []).append(frame)
    changed = {}
    for number, several in frames.items():
        row = table.row(number)
        if row.geometry is not None or row.dtype.quantized or row.dtype.swapped:
            what = f"tensor {quoted(several[0].name)} of the base is not stored as plain elements, which deltas change"
            raise UnsupportedError(f"{what}: convert the base to safetensors", path=row.source.name)
        changed[number] = Patched(row.nbytes, several, limits)
    return changed


def check_chain(at: int | None, deltas: Sequence[Delta]) -> None:
    """Raise `DeltaError` unless each delta is built on the one before, and the first on `at` if a record has that."""
    for delta in deltas:
        if at is not None and at != delta.base_version:
            what = f"the model is at version {at}, which is not the base of the delta: base_version"
            raise DeltaError(what, path=delta.path, field="base_version", actual=delta.base_version, expected=at)
        at = delta.version


def read_delta(directory: str, options: Options, before: Sequence[Delta] = ()) -> Delta:
    """Read a delta as `read_version` does. Raises `DeltaError` for a full version too."""
    delta = read_version(directory, options, before)
    if delta is None:
        raise DeltaError("this is a full version, not a delta: it needs no base", path=directory)
    return delta


def overlay(base: TensorFile, directories: Sequence[str], options: Options) -> TensorFile:
    """Return a handle on a model under deltas. It takes over the base's handle, and closes it on failure."""
    deltas: list[Delta] = []
    try:
        for directory in directories:
            deltas.append(read_delta(directory, options, deltas))
        path = parts_of(base)[0].path
        folder = folder_of_model(path) if type(path) is str else None
        check_chain(None if folder is None else Local(folder).version(), deltas)
        return overlaid(base, deltas, options)
    except BaseException:
        base.close()
        for delta in deltas:
            delta.close()
        raise


def overlaid(base: TensorFile, deltas: Sequence[Delta], options: Options) -> TensorFile:
    """Return a handle on a model under deltas that are open.

    Closing the handle closes the files of both. If this fails, the base is closed, and the caller closes the deltas.
    """
    source, _, _ = parts_of(base)
    try:
        content = OverlaidContent(base, deltas, options)
        content.table.belongs_to(source, base.format)
        # Leave out the handles of the shards, which would show the base.
        file = TensorFile(source, base.format, content, options)
        if options.verify == "full":
            file.verify()
    except BaseException as error:
        base.close()
        if isinstance(error, TensorFileError):
            raise error.located(path=source.name) from None
        raise
    return file


def open(
    base: ModelSource,
    directories: Sequence[str | os.PathLike[str]],
    **open_options: Unpack[OpenOptions],
) -> TensorFile:
    """Open a model with published deltas laid over it.

    Parameters
    ----------
    base : str, os.PathLike, or anything else that `weightmap.open` takes
        The model before the first delta. Unchanged tensors are views of it; each look-up of a changed tensor decodes
        it, within the limits, and compares its checksum.
    directories : sequence of str or os.PathLike
        The directories of the deltas, or their addresses, in order.
    **open_options
        As for `weightmap.open`.

    Raises
    ------
    DeltaError
        When a delta is damaged, or does not continue the delta before it. The first one must continue the version in
        the record beside the base.
    UnsupportedError
        With ``trust=``: no digest is recorded for a model under deltas.
    MissingDependencyError
        When the extra ``[deltas]`` is not installed.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> from weightmap import deltas
    >>> wm.save("base.safetensors", {"a": np.zeros(3, np.float32)})
    >>> wm.save("tuned.safetensors", {"a": np.ones(3, np.float32)})
    >>> _ = deltas.publish("base.safetensors", "tuned.safetensors", "versions", version=1)
    >>> with deltas.open("base.safetensors", ["versions/weight_v000001"]) as f:
    ...     f["a"]
    array([1., 1., 1.], dtype=float32)
    """
    for keyword in open_options:
        if keyword not in OPEN_OPTIONS:
            raise unexpected("open", keyword, OPEN_OPTIONS)
    if isinstance(directories, (str, bytes)) or not hasattr(directories, "__iter__"):
        raise mistyped("directories", directories, "a sequence of directories")
    places = []
    for directory in directories:
        path = path_of(directory)
        if path is None:
            raise mistyped("a directory of deltas", directory, "a path")
        places.append(os.path.abspath(path) if type(path) is str else path)
    options: dict[str, Any] = {**open_options}
    remote = options.pop("remote", None)
    source = base if remote is None else located(base, remote)
    return open_with(source, options_of(source, **options, deltas=tuple(places)))
