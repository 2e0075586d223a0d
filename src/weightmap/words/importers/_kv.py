"""Reading gensim's ``.kv``: the words, and the vectors in the file or beside it."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.dtypes import numpy_dtype
from weightmap.errors import FormatError, LayoutError, TensorFileError, UnsupportedError
from weightmap.formats._npy import FIRST, read_header
from weightmap.io.open_source import beside, called, from_path
from weightmap.words.importers._pickled import Bytes, Machine, Object, Pairs
from weightmap.words.importers._words import Words, check_finite, firsts, only, rows_in_block, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.io.source import Source
    from weightmap.options import ImportOptions

_FLOATS = {b"f2", b"f4", b"f8"}
_ORDERS = {b"<": "<", b">": ">", b"=": "<", b"|": "<"}


def read(source: Source, head: bytes, options: ImportOptions) -> Words:
    """Find the words of a file. The vectors are read when `Words.blocks` is iterated."""
    del head
    machine = Machine(source)
    root = machine.run()
    if not isinstance(root, Object) or root.kind.module != b"gensim.models.keyedvectors":
        raise FormatError("the pickle holds no KeyedVectors", field="pickle", offset=0)
    if not isinstance(root.state, Pairs):
        raise FormatError("the KeyedVectors have no attributes", field="pickle", offset=0)
    words = root.state.get(b"index_to_key")
    if words is None:
        what = "there is no attribute 'index_to_key': load and save the file with gensim 4 or newer"
        raise UnsupportedError(what, field="index_to_key", offset=0)
    if type(words) is not list or not all(type(word) is bytes for word in words):
        raise FormatError("'index_to_key' must be a list of texts", field="index_to_key", offset=machine.words_at)
    kept = firsts(words, lossy=options.lossy)
    chosen = words if kept is None else [words[i] for i in kept]
    table = table_of(chosen, _Everywhere(machine.words_at), lossy=options.lossy)
    beside, dtype, shape, offset = _vectors(source, root.state)
    rows = len(words)
    if len(shape) != 2 or shape[0] != rows or not 1 <= shape[1] < 1 << 31:
        raise LayoutError(
            "shape of 'vectors'", field="vectors", offset=0, actual=list(shape), expected=f"[{rows}, dims]"
        )
    make = functools.partial(_blocks, beside, dtype, shape, offset)
    return only(Words((source, beside), "gensim", table, rows, shape[1], make), kept)


class _Everywhere(list[int]):
    """One offset for every word."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __getitem__(self, _: Any) -> Any:
        return self._offset


def _vectors(source: Source, state: Pairs) -> tuple[Source, np.dtype[Any], tuple[int, ...], int]:
    """Return the place of the vectors: file, type, shape and byte."""
    vectors, apart = state.get(b"vectors"), state.get(b"__numpys")
    if vectors is None and isinstance(apart, list) and b"vectors" in apart:
        return _beside(source)
    try:
        dtype, shape, fortran, data = _array(vectors)
    except (TypeError, ValueError, AttributeError, KeyError):
        raise FormatError("'vectors' must be a numpy array as gensim writes it", field="vectors", offset=0) from None
    nbytes = math.prod(shape) * dtype.itemsize
    if data.nbytes != nbytes:
        what = "bytes of 'vectors'"
        raise LayoutError(what, field="vectors", offset=data.offset, actual=data.nbytes, expected=nbytes)
    if fortran and min(shape, default=0) > 1:
        raise UnsupportedError("'vectors' lie column by column", field="vectors", offset=data.offset)
    return source, dtype, shape, data.offset


def _array(made: Any) -> tuple[np.dtype[Any], tuple[int, ...], bool, Bytes]:
    """Return type, shape, order and bytes of an array; raises one of several errors for anything else."""
    if made.kind.name != b"_reconstruct":
        raise ValueError
    _, shape, kind, fortran, data = made.state
    code, order = kind.args[0], kind.state[1]
    if kind.kind.name != b"dtype" or code not in _FLOATS or not isinstance(data, Bytes) or type(fortran) is not bool:
        raise ValueError
    if type(shape) is not tuple or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise ValueError
    return np.dtype(_ORDERS[order] + code.decode()), shape, fortran, data


def _beside(source: Source) -> tuple[Source, np.dtype[Any], tuple[int, ...], int]:
    """Return the same for the array in the file beside this one."""
    own = source.absolute
    if own is None:
        what = "the vectors lie in a file beside this one, and this source has no path"
        raise UnsupportedError(what, field="vectors", offset=0)
    path = beside(own, f"{called(own)}.vectors.npy")
    other = from_path(path, "mmap")
    size = other.size
    try:
        head = other.pread(0, min(FIRST, size))
        array = read_header(head, lambda count: other.pread(0, min(count, size)), "the array", 0)
        dtype, end = numpy_dtype(array.dtype), array.start + array.nbytes
        if dtype.kind != "f" or array.strides is not None:
            raise UnsupportedError("the vectors must be rows of floating-point numbers", field="descr", offset=0)
        if end != size:
            raise LayoutError("size of the file", field="shape", offset=min(end, size), actual=size, expected=end)
    except TensorFileError as error:
        raise error.located(path=path) from None
    return other, dtype, array.shape, array.start


def _blocks(source: Source, dtype: np.dtype[Any], shape: tuple[int, int], offset: int) -> Iterator[NDArray[np.float32]]:
    """Yield the vectors in blocks."""
    rows, dims = shape
    step, width = rows_in_block(dims), dims * dtype.itemsize
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = source.pread(offset + first * width, count * width)
        with np.errstate(over="ignore", invalid="ignore"):
            block = np.frombuffer(data, dtype).astype(np.float32).reshape(count, dims)
        check_finite(block, first, lambda row: offset + row * width)
        yield block
    source.check_unchanged()
