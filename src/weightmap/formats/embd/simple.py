"""Reading the simple layout of EMBD, which the upstream converter and loader use."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weightmap import kernels
from weightmap.embeddings.vocabulary import Vocabulary
from weightmap.errors import FormatError, TruncatedError, UnsupportedError
from weightmap.formats._base import Content, trailing
from weightmap.formats._cursor import Cursor
from weightmap.formats.embd import MAGIC
from weightmap.formats.embd.layout import DTYPE_LIST, MAX_NDIM
from weightmap.formats.embd.vocabulary import string_table
from weightmap.index.columns import ColumnTable
from weightmap.index.rules import ANY_GAP, Rules

if TYPE_CHECKING:
    from weightmap.formats._verifying import Verification
    from weightmap.io.source import Source
    from weightmap.options import Options


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST[:1]
    min_ndim, max_ndim = 1, MAX_NDIM
    # Names lie between the tensors, and offsets count from the start of the file: the walk checks the gaps.
    max_gap = ANY_GAP


def parse_simple(source: Source, head: bytes, options: Options) -> Content:
    """Walk the file from its beginning to the end of the vocabulary, with which it must end."""
    reader = Cursor(head, source, options.limits)
    reader.skip(len(MAGIC))
    version = reader.number("u32", "version", "its version")
    if version != 1:
        raise UnsupportedError("version", field="version", offset=4, actual=version, expected=1)
    count = reader.count("u32", 8, "tensor_count", "number of tensors", "max_tensors")
    names: list[bytes] = []
    shapes: list[int] = []
    lengths, ndims, offsets = [0], [0], []
    names_size = 0
    for i in range(count):
        length = reader.number("u32", "name_length", f"the length of the name of tensor {i}")
        names_size += length  # the limit is for the sum, because all names are kept
        options.limits.check("max_header_bytes", names_size, "size of all names", offset=reader.position - 4)
        names.append(reader.take(length, "name", f"the name of tensor {i}"))
        lengths.append(length)
        ndim = reader.number("u32", "ndim", f"the number of dimensions of tensor {i}")
        if not 1 <= ndim <= MAX_NDIM:
            what = f"number of dimensions of tensor {i}"
            raise FormatError(what, field="ndim", offset=reader.position - 4, actual=ndim, expected=f"1 to {MAX_NDIM}")
        shape = reader.array("<u4", ndim, "shape", f"the shape of tensor {i}").tolist()
        shapes.extend(shape)
        ndims.append(ndim)
        nbytes = 4 * math.prod(shape)
        if nbytes > reader.left:
            label = repr(names[-1][:60].decode(errors="replace"))
            msg = f"the file ends within the data of tensor {i}, {label} of shape {tuple(shape)}"
            least = f"at least {reader.position + nbytes} bytes"
            raise TruncatedError(msg, field="data", offset=source.size, expected=least)
        offsets.append(reader.position)
        reader.skip(nbytes)
    vocab = _simple_vocabulary(reader, options)
    warnings: list[str] = []
    trailing(source, reader.position, options, warnings)
    columns = kernels.Columns(
        b"".join(names),
        np.cumsum(lengths, dtype=np.uint32),
        np.zeros(count, np.uint8),
        np.array(shapes, np.uint64),
        np.cumsum(ndims, dtype=np.uint32),
        np.array(offsets, np.uint64),
    )
    table = ColumnTable(columns, _Rules(0, source.size), utf8=True, locate=partial(_name_at, columns))
    if options.checked:
        table.check()

    def verify(run: Verification) -> None:
        run.rest()
        if vocab is not None:
            run.vocabulary(vocab)

    content = Content("simple", table, dict, verify, warnings)
    content.vocab = vocab
    return content


def _name_at(columns: kernels.Columns, row: int) -> int:
    """Return the offset of a tensor's name: before the number and values of its dimensions, and its data."""
    names, dims = columns.bounds, columns.dim_bounds
    at: int = columns.begin[row] - 4 - 4 * (dims[row + 1] - dims[row]) - (names[row + 1] - names[row])
    return at


def _simple_vocabulary(reader: Cursor, options: Options) -> Vocabulary | None:
    at = reader.position
    count = reader.count("u32", 4, "vocab_count", "number of tokens")
    if not count:
        return None
    options.limits.check("max_header_bytes", reader.left, "size of the vocabulary", offset=at)
    start = reader.position
    data = reader.take(reader.left, "vocabulary", "the vocabulary")
    walked = kernels.walk_strings(data, count, 4)
    if walked < 0:
        msg = f"the file ends within token {-1 - walked} of {count}"
        raise TruncatedError(msg, field="vocabulary", offset=reader.end)
    reader.position = start + walked
    return Vocabulary(lambda: string_table(data[:walked], count, start, 4), count)
