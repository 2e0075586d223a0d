"""`Row`: a tensor's place and layout, all that is needed to use it; `TensorInfo`: the description for users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.dtypes import numpy_dtype
from weightmap.errors import TensorFileError
from weightmap.lazy import NamedTuple, np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.dtypes import DType
    from weightmap.io.geometry import Geometry
    from weightmap.io.source import Source

# Elements swapped at once: they stay in the L2 cache.
_PIECE = 1 << 18


class Row(NamedTuple):
    """One checked row of a table: a tensor, and where it lies.

    Attributes
    ----------
    dtype : DType
    shape : tuple of int
    source : Source
        The file that it lies in.
    offset : int
        Position in that file.
    nbytes : int
        Size of the data, in bytes.
    geometry : Geometry or None
        How its elements lie in the file; None where they follow one another, row-major.
    quantized : callable or None
        `Table.quantized` if the dtype is a scheme: it makes a tensor of ``(row, octets)``.
    """

    dtype: DType
    shape: tuple[int, ...]
    source: Source
    offset: int
    nbytes: int
    geometry: Geometry | None = None
    quantized: Callable[[Row, NDArray[np.uint8]], Any] | None = None

    def info(self, name: str) -> TensorInfo:
        """Return the description for users of the tensor, called `name`."""
        return TensorInfo(name, self.dtype.name, self.shape, self.offset, self.nbytes)

    # ------------------------------------------------------------------------------------------------- as an array
    @property
    def viewed(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Dtype and shape of the array of a dense tensor; for packed elements, those of their bytes."""
        return (np.dtype(np.uint8), (self.nbytes,)) if self.dtype.packed else (numpy_dtype(self.dtype), self.shape)

    def array(self) -> Any:
        """Return the result of a look-up: a view of the mapping where possible, or a quantised tensor over it."""
        if self.geometry is not None:
            return self.geometry.array(self)
        if self.dtype.quantized:
            return self.decoded(self.source.array(np.dtype(np.uint8), (self.nbytes,), self.offset, self.nbytes))
        return self.source.array(*self.viewed, self.offset, self.nbytes)

    def over(self, octets: NDArray[np.uint8]) -> Any:
        """Return the same as `array`, over bytes that were read; for a row without geometry."""
        if self.dtype.quantized:
            return self.decoded(octets)
        stored, shape = self.viewed
        # Made over the memory, not from a view: so dtypes of ml_dtypes and unaligned addresses work.
        return np.ndarray(shape, stored, octets if len(octets) else np.empty(0, np.uint8))

    # -------------------------------------------------------------------------------------------------- as bytes
    @property
    def extent(self) -> tuple[int, int]:
        """Begin and end of the bytes of the file that hold it."""
        if self.geometry is None:
            return self.offset, self.offset + self.nbytes
        return self.geometry.extent(self, [(0, 1, size, True) for size in self.viewed[1]])

    def reads(self) -> Iterator[tuple[Source, int, int]]:
        """Yield the ranges (source, begin, end) that `array` reads from files, in order."""
        if self.geometry is None:
            return self.source.reads(self.offset, self.offset + self.nbytes)
        return self.geometry.reads(self)

    def reading(self, ahead: Mapping[Source, Source]) -> Row:
        """Return the row over other sources of the same bytes."""
        if self.geometry is None:
            return self._replace(source=self.source.reading(ahead))
        return self.geometry.reading(self, ahead)  # type: ignore[no-any-return]

    @property
    def dense(self) -> Row:
        """Itself; of a row with a geometry, one whose source has its bytes row-major, at the same offset."""
        if self.geometry is None:
            return self
        return self._replace(source=self.geometry.dense(self), geometry=None)

    def chunks(self, buffer: bytearray | None = None) -> Iterator[memoryview]:
        """Yield the bytes of a dense tensor, row-major and little-endian, in pieces; each is valid until the next one.

        With `buffer`, which many tensors may share, pieces are of its size.
        """
        source = self.source if self.geometry is None else self.dense.source
        if not self.dtype.swapped:
            given = () if buffer is None else (len(buffer), buffer)
            return source.chunks(self.offset, self.nbytes, *given)
        stored = numpy_dtype(self.dtype)
        pieces = source.chunks(self.offset, self.nbytes, _PIECE * stored.itemsize)
        return (memoryview(np.frombuffer(piece, stored).byteswap().view(np.uint8)) for piece in pieces)

    # ------------------------------------------------------------------------------------------------- quantised
    def decoded(self, octets: NDArray[np.uint8]) -> Any:
        """Return the quantised tensor of these bytes."""
        assert self.quantized is not None  # noqa: S101 - a row with a scheme comes from a format with schemes
        try:
            return self.quantized(self, octets)
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None

    def decoder(self) -> Any:
        """Read a quantised tensor into private memory."""
        return self.decoded(np.frombuffer(self.source.pread(self.offset, self.nbytes), np.uint8))

    def layout(self) -> tuple[int, int, str] | None:
        """Return the offset of a quantised tensor's payload in its data, its block size and its type of scales.

        None for schemes other than integers with scales.
        """
        find = getattr(self.quantized, "layout", None)
        if find is None:
            return None
        try:
            start, block_size, scale_type = find(self, self.source.pread(self.offset, min(4, self.nbytes)))
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None
        return start, block_size, scale_type

    def row_parts(self) -> list[tuple[int, int]] | None:
        """Return the parts of a tensor, each with a share of every row, in order; None for other schemes.

        Each is its bytes, and the bytes of one row: 0 for a part that every row needs, such as codebooks.
        """
        find = getattr(self.quantized, "row_parts", None)
        return None if find is None else find()

    def storage(self) -> tuple[str, int, str, int]:
        """Return scheme, block size, type of scales and payload bytes of a quantised tensor.

        Reads and checks its header or mask; raises `QuantError` when that is malformed.
        """
        glance = getattr(self.quantized, "glance", None)
        if glance is None:
            return self.dtype.name, 0, "", self.nbytes
        try:
            start, block_size, scale_type = glance(self, self.source)
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None
        return self.dtype.name, block_size, scale_type, self.nbytes - start


class TensorInfo(NamedTuple):
    """A tensor's entry in the index of its file.

    Attributes
    ----------
    name : str
    dtype : str
        Canonical name, such as "float32" or "bfloat16".
    shape : tuple of int
    offset : int
        Position of the first byte in the file.
    nbytes : int
        Size of the data, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
