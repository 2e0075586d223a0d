"""Writes one shard of a model, by a task of plain values: the part of a conversion that runs in a worker."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap import kernels
from weightmap.conversion.tensors import prepare, unaligned
from weightmap.errors import FileChangedError, TensorFileError
from weightmap.formats import Plan, by_name
from weightmap.importers._huggingface import read_directory
from weightmap.io.atomic import write_plan
from weightmap.io.opening import from_path, path_of
from weightmap.model.parts import located, name_of, parts_of
from weightmap.model.sharding import plain_name, tensor_bytes
from weightmap.model.single import open_file
from weightmap.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightmap.conversion.reports import QuantizedInfo
    from weightmap.conversion.task import Arguments
    from weightmap.importers._huggingface import ModelDirectory
    from weightmap.io.sink import Sink
    from weightmap.io.source import Source
    from weightmap.model.file import TensorFile
    from weightmap.options import Limits
    from weightmap.quant import TensorRef

__all__ = ["Piece", "ShardReport", "ShardTask", "convert_shard", "open_piece", "read_beside", "state_of"]


class Piece(NamedTuple):
    """Tensors of a source file: its name in the source's directory, its state, and ranges of rows [start, stop)."""

    name: str
    size: int
    state: int | str
    rows: tuple[tuple[int, int], ...]


class ShardTask(NamedTuple):
    """The work on one shard, in plain values: files and ranges of them, and the file to write.

    Attributes
    ----------
    number : int
    folder : str
        The directory of the source, or its address in a store, where workers go with the credentials that they have.
    pieces : tuple of Piece
        The first one's metadata go along.
    target, name : str
        The directory to write to, and the name of the shard in it.
    format : str
    arguments : Arguments
    model : str or None
        For the first shard of a Hugging Face directory: its model file or index. Configuration and vocabulary of the
        directory go along.
    part : tuple of int or None
        The `part` of its `Request`, for formats that are numbered.
    done : tuple of int or None
        Size and checksum of the shard if an earlier run has finished it.
    """

    number: int
    folder: str
    pieces: tuple[Piece, ...]
    target: str
    name: str
    format: str
    arguments: Arguments
    model: str | None
    part: tuple[int, int, int] | None
    done: tuple[int, int] | None


class ShardReport(NamedTuple):
    """The result of a `ShardTask`.

    Attributes
    ----------
    number : int
        That of the task.
    nbytes, crc32 : int
        Size and checksum of the shard.
    tensor_bytes : int
        Bytes of its tensors, as an index counts them.
    unaligned : int
        Number of tensors that could not be aligned.
    overflown : tuple of int
        Number of values that are out of the range of the new type, and of tensors that have some.
    quantized : tuple of QuantizedInfo
    converted : bool
        False if the shard was there already, whole.
    """

    number: int
    nbytes: int
    crc32: int
    tensor_bytes: int
    unaligned: int
    overflown: tuple[int, int]
    quantized: tuple[QuantizedInfo, ...]
    converted: bool


def convert_shard(task: ShardTask) -> ShardReport:
    """Write one shard, in this process or another one, unless it is there already."""
    path = os.path.join(task.target, plain_name(task.name, "name"))
    if task.done is not None and _is_whole(path, *task.done):
        return ShardReport(task.number, *task.done, 0, 0, (0, 0), (), converted=False)
    arguments, found = task.arguments, by_name(task.format)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_piece(task.folder, piece, arguments.limits)) for piece in task.pieces]
        places = (place for file, piece in zip(files, task.pieces, strict=True) for place in _places(file, piece.rows))
        directory = None if task.model is None else read_beside(task.model)
        work = arguments.task(name_of(files[0]), path, found)
        made = prepare(files[0], places, directory, work, part=True, numbers=task.part)
        summed: list[Sink] = []

        def write(sink: Sink) -> None:
            sink.digest = 0
            summed.append(sink)
            made.plan.write(sink)

        try:
            size = write_plan(path, Plan(made.plan.size, write, exact=made.plan.exact))
        except TensorFileError as error:  # of a tensor that is read, or quantised, as it is written
            raise error.located(path=name_of(files[0])) from None
    odd = unaligned(path, arguments.align)[0] if arguments.align > 1 else 0
    done = () if work.quantizer is None else tuple(work.quantizer.done)
    lost, nbytes = work.overflow.total, tensor_bytes(path)
    return ShardReport(task.number, size, summed[0].digest or 0, nbytes, odd, lost, done, converted=True)


def open_piece(folder: str, piece: Piece, limits: Limits, *, strict: bool = True) -> TensorFile:
    """Open a source file of a task. Raises `FileChangedError` if it is not the one that the task was made for."""
    path = path_of(os.path.join(folder, plain_name(piece.name, "name")))
    file = open_file(path, path, Options(limits, strict=strict, private=True))
    size, state = state_of(parts_of(file)[0])
    if (size, state) != (piece.size, piece.state):
        file.close()
        expected = f"{piece.size} bytes and {piece.state}"
        what = "the file was changed after its shards were dealt out: its size and time of modification, or tag"
        raise FileChangedError(what, path=path, actual=f"{size} bytes and {state}", expected=expected)
    return file


def state_of(source: Source) -> tuple[int, int | str]:
    """Return size and time of modification of a file, or the tag of an object in a store."""
    state = source.identity
    return (source.size, state[3] if source.store is None else str(state[1] or state[2]))


def read_beside(model: str) -> ModelDirectory:
    """Read what lies beside the model file or index of a Hugging Face directory, which may be an address."""
    path: Any = path_of(model)
    return read_directory(os.path.dirname(path) if type(path) is str else path.beside(""), path)


def _places(file: TensorFile, rows: Sequence[tuple[int, int]]) -> Iterator[tuple[str, TensorRef]]:
    """Yield name and place of the tensors in these ranges, which rise."""
    every, at = zip(file, located(file), strict=True), 0
    for start, stop in rows:
        yield from itertools.islice(every, start - at, stop - at)
        at = stop


def _is_whole(path: str, nbytes: int, crc: int) -> bool:
    """Say whether a file has this size and checksum."""
    try:
        source = from_path(path, "mmap")
    except (OSError, TensorFileError):  # it is not there, or no file
        return False
    try:
        if source.size != nbytes:
            return False
        found = 0
        for chunk in source.chunks(0, nbytes):
            found = kernels.crc32(chunk, found)
        return found == crc
    finally:
        source.close()
