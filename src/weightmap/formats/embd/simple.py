"""The simple layout of EMBD: what the upstream converter and loader really use."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weightmap import kernels
from weightmap.embeddings.vocabulary import Vocabulary
from weightmap.errors import FormatError, TruncatedError, UnsupportedError
from weightmap.formats._base import Content, Options, trailing
from weightmap.formats.embd import MAGIC
from weightmap.formats.embd.layout import DTYPE_LIST, MAX_NDIM
from weightmap.formats.embd.vocabulary import string_table, verify_vocabulary
from weightmap.index.columns import ColumnTable
from weightmap.index.table import ANY_GAP, Rules

if TYPE_CHECKING:
    from weightmap.formats._verifying import Verification
    from weightmap.io.source import Source


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST[:1]
    min_ndim, max_ndim = 1, MAX_NDIM
    # Offsets are those of the file, and names lie between the tensors: the walk has seen to the gaps.
    max_gap = ANY_GAP


class _Reader:
    """Walks the simple layout by pread: a window of the file at a time, never the tensor data."""

    WINDOW = 4096

    def __init__(self, source: Source, head: bytes) -> None:
        self.source = source
        self.position = len(MAGIC)
        self._window, self._start = head, 0

    def take(self, count: int, field: str, what: str) -> bytes:
        """Return the next `count` bytes: `field`, which messages call `what`."""
        at, end = self.position - self._start, self.position + count
        if end > self.source.size:
            msg = f"the file ends within {what}"
            raise TruncatedError(msg, field=field, offset=self.source.size, expected=f"at least {end} bytes")
        if at + count > len(self._window):
            size = min(max(count, self.WINDOW), self.source.size - self.position)
            self._window, self._start, at = self.source.pread(self.position, size), self.position, 0
        self.position = end
        return self._window[at : at + count]

    def u32(self, field: str, what: str) -> int:
        """Return the next u32."""
        return int.from_bytes(self.take(4, field, what), "little")


def parse_simple(source: Source, head: bytes, options: Options) -> Content:
    """Walk the file from its beginning to its end, which must be that of the vocabulary."""
    reader = _Reader(source, head)
    version = reader.u32("version", "its version")
    if version != 1:
        raise UnsupportedError("version", field="version", offset=4, actual=version, expected=1)
    count = reader.u32("tensor_count", "the number of tensors")
    options.limits.check("max_tensors", count, "number of tensors", offset=8)
    if count > source.size // 8:
        what, expected = "number of tensors", f"at most {source.size // 8}: a tensor takes 8 bytes or more"
        raise TruncatedError(what, field="tensor_count", offset=8, actual=count, expected=expected)
    names: list[bytes] = []
    shapes: list[int] = []
    lengths, ndims, offsets = [0], [0], []
    names_size = 0
    for i in range(count):
        length = reader.u32("name_length", f"the length of the name of tensor {i}")
        names_size += length  # all names are kept, so it is their sum that the limit is for
        options.limits.check("max_header_bytes", names_size, "size of all names", offset=reader.position - 4)
        names.append(reader.take(length, "name", f"the name of tensor {i}"))
        lengths.append(length)
        ndim = reader.u32("ndim", f"the number of dimensions of tensor {i}")
        if not 1 <= ndim <= MAX_NDIM:
            what = f"number of dimensions of tensor {i}"
            raise FormatError(what, field="ndim", offset=reader.position - 4, actual=ndim, expected=f"1 to {MAX_NDIM}")
        shape = struct.unpack(f"<{ndim}I", reader.take(4 * ndim, "shape", f"the shape of tensor {i}"))
        shapes.extend(shape)
        ndims.append(ndim)
        nbytes = 4
        for dim in shape:
            nbytes *= dim
        if nbytes > source.size - reader.position:
            label = repr(names[-1][:60].decode(errors="replace"))
            msg = f"the file ends within the data of tensor {i}, {label} of shape {shape}"
            raise TruncatedError(
                msg, field="data", offset=source.size, expected=f"at least {reader.position + nbytes} bytes"
            )
        offsets.append(reader.position)
        reader.position += nbytes
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
        for _ in run.chunks(0, source.size):
            pass
        run.checked("every byte is readable (the simple layout has no checksums)")
        if vocab is not None:
            verify_vocabulary(run, vocab)

    content = Content("simple", table, dict, verify, warnings)
    content.vocab = vocab
    return content


def _name_at(columns: kernels.Columns, row: int) -> int:
    """Return where the name of a tensor lies: before its data, and number and values of its dimensions."""
    names, dims = columns.bounds, columns.dim_bounds
    at: int = columns.begin[row] - 4 - 4 * (dims[row + 1] - dims[row]) - (names[row + 1] - names[row])
    return at


def _simple_vocabulary(reader: _Reader, options: Options) -> Vocabulary | None:
    at = reader.position
    count = reader.u32("vocab_count", "the number of tokens")
    rest = reader.source.size - reader.position
    if count > rest // 4:
        what, expected = "number of tokens", f"at most {rest // 4}: a token takes 4 bytes or more"
        raise TruncatedError(what, field="vocab_count", offset=at, actual=count, expected=expected)
    if not count:
        return None
    options.limits.check("max_header_bytes", rest, "size of the vocabulary", offset=at)
    start = reader.position
    data = reader.take(rest, "vocabulary", "the vocabulary")
    walked = kernels.walk_strings(data, count, 4)
    if walked < 0:
        msg = f"the file ends within token {-1 - walked} of {count}"
        raise TruncatedError(msg, field="vocabulary", offset=reader.source.size)
    reader.position = start + walked
    return Vocabulary(lambda: string_table(data[:walked], count, start, 4), count)
