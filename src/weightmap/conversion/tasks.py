"""Writes one shard of a model, by a task of plain values: the part of a conversion that runs in a worker."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, NamedTuple

from weightmap.conversion.tensors import Preparer, unaligned
from weightmap.conversion.viewing import viewed
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.open_source import folder_of, inside
from weightmap.core.bytes.sink import WritePlan
from weightmap.core.model.internals import name_of, named_rows, sources_of
from weightmap.core.model.opening import open_with
from weightmap.core.model.sharding import plain_name, tensor_bytes
from weightmap.core.model.single import is_index, open_file
from weightmap.errors import FileChangedError, TensorFileError
from weightmap.huggingface.along import is_whole
from weightmap.huggingface.directory import read_directory
from weightmap.llama.translating import without_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightmap.conversion.spec import Spec
    from weightmap.core.bytes.sink import Sink
    from weightmap.core.model.file import TensorFile
    from weightmap.core.model.reports import QuantizedInfo
    from weightmap.core.options import Options
    from weightmap.core.table.table import Row
    from weightmap.huggingface.directory import ModelDirectory


class FileRows(NamedTuple):
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
        The directory of the source, or its address in a store, which workers read with their own credentials.
    pieces : tuple of FileRows
        The first one's metadata go along.
    target, name : str
        The directory to write to, and the name of the shard in it.
    spec : Spec
    model : str or None
        For the first shard of a Hugging Face directory: its model file or index. Configuration and vocabulary of the
        directory go along.
    part : tuple of int or None
        The `part` of its `Request`, for formats that are numbered.
    renamed : tuple of (str, str)
        The tensors that get another name, and that name.
    done : tuple of int or None
        Size and checksum of the shard if an earlier run has finished it.
    """

    number: int
    folder: str
    pieces: tuple[FileRows, ...]
    target: str
    name: str
    spec: Spec
    model: str | None
    part: tuple[int, int, int] | None
    renamed: tuple[tuple[str, str], ...]
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
        Number of values out of the range of the new type, and of tensors with such values.
    quantized : tuple of QuantizedInfo
    converted : bool
        False if the shard already existed, intact.
    """

    number: int
    nbytes: int
    crc32: int
    tensor_bytes: int
    unaligned: int
    overflown: tuple[int, int]
    quantized: tuple[QuantizedInfo, ...]
    converted: bool


def convert_shard(task: ShardTask, opened: Mapping[str, TensorFile] | None = None) -> ShardReport:
    """Write one shard unless it is there already: of files that this process has `opened`, or else opens."""
    path = os.path.join(task.target, plain_name(task.name, "name"))
    if task.done is not None and is_whole(path, *task.done):
        return ShardReport(task.number, *task.done, 0, 0, (0, 0), (), converted=False)
    spec = task.spec
    with contextlib.ExitStack() as stack:
        if opened is None:
            files = [stack.enter_context(open_rows(task.folder, piece, spec.opening)) for piece in task.pieces]
        else:
            files = [opened[piece.name] for piece in task.pieces]
            if spec.translated and task.number:
                files = list(map(without_keys, files))
        if spec.is_view and opened is None:
            files = [viewed(file, spec, with_keys=not task.number)[0] for file in files]
        places = (place for file, piece in zip(files, task.pieces, strict=True) for place in _places(file, piece.rows))
        directory = None if task.model is None else read_beside(task.model)
        preparer = Preparer(spec)
        made = preparer.prepare(files[0], places, directory, path, dict(task.renamed), part=True, numbers=task.part)
        summed: list[Sink] = []

        def write(sink: Sink) -> None:
            sink.digest = 0
            summed.append(sink)
            made.plan.write(sink)

        try:
            plan = WritePlan(made.plan.size, write, exact=made.plan.exact)
            size = write_plan(path, plan, durable=spec.output.durable)
        except TensorFileError as error:  # of a tensor that is read, or quantised, as it is written
            raise error.located(path=name_of(files[0])) from None
    align = spec.output.alignment
    odd = unaligned(path, align)[0] if align > 1 else 0
    done = () if preparer.quantizer is None else tuple(preparer.quantizer.done)
    lost, nbytes = preparer.overflow.total, tensor_bytes(path)
    return ShardReport(task.number, size, summed[0].digest or 0, nbytes, odd, lost, done, converted=True)


def open_rows(folder: str, piece: FileRows, options: Options) -> TensorFile:
    """Open a source file of a task. Raises `FileChangedError` if it has changed since the task was made."""
    path = inside(folder, plain_name(piece.name, "name"))
    whole = is_index(path) or options.deltas
    file = open_with(path, options) if whole else open_file(path, path, options)
    size, state = state_of(file)
    if (size, state) != (piece.size, piece.state):
        file.close()
        expected = f"{piece.size} bytes and {piece.state}"
        what = "the file was changed after its shards were dealt out: its size and time of modification, or tag"
        raise FileChangedError(what, path=path, actual=f"{size} bytes and {state}", expected=expected)
    return file


def state_of(file: TensorFile) -> tuple[int, int | str]:
    """Return size and time of modification of a file, or the tag of an object in a store; of several, all of these."""
    states: list[int | str] = []
    for source in sources_of(file):
        if source.store is not None:
            states.append(str(source.identity[1] or source.identity[2]))
        else:
            states.append(source.identity[3] if source.identity else 0)  # a buffer has no time
    return file.nbytes, states[0] if len(states) == 1 else ", ".join(map(str, states))


def read_beside(model: str) -> ModelDirectory:
    """Read what lies beside the model file or index of a Hugging Face directory, which may be an address."""
    return read_directory(folder_of(model), model)


def _places(file: TensorFile, rows: Sequence[tuple[int, int]]) -> Iterator[tuple[str, Row]]:
    """Yield name and place of the tensors in these ranges, which rise."""
    every, at = named_rows(file), 0
    for start, stop in rows:
        yield from itertools.islice(every, start - at, stop - at)
        at = stop
