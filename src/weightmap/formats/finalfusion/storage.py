"""Matrices, product-quantised matrices and norms: their fields, and the places of their data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.errors import FormatError, LayoutError, TruncatedError, UnsupportedError, cut_off
from weightmap.formats.finalfusion import TYPES
from weightmap.formats.finalfusion.layout import (
    BITS,
    CHUNK,
    F32_CODE,
    INT64_MAX,
    KNOWN_TYPES,
    MATRIX_FIELDS,
    MAX_CENTROIDS,
    NORMS_FIELDS,
    PQ_CODE,
    QUANTIZED_AT,
    QUANTIZED_FIELDS,
    QUANTIZED_NAMES,
    TYPE_NAMES,
    U8_CODE,
    Block,
)
from weightmap.quant.ref import PQShape

if TYPE_CHECKING:
    from collections.abc import Callable
    from struct import Struct
    from typing import Any

# Most bytes of padding before the data; a wider type may have up to its width.
_PADDING_MOST = 4


class Placing:
    """Finds the data of a chunk."""

    __slots__ = ("length", "position", "size", "starts_norms", "warnings")

    def __init__(
        self, position: int, length: int, size: int, warnings: list[str], starts_norms: Callable[[int], bool]
    ) -> None:
        self.position: int = position  # offset of the chunk
        self.length: int = length  # that its header declares
        self.size: int = size  # of the file
        self.warnings: list[str] = warnings
        self.starts_norms: Callable[[int], bool] = starts_norms  # whether a chunk of norms begins at an offset

    @property
    def payload(self) -> int:
        """Offset of the fields."""
        return self.position + CHUNK.size

    def lands(self, end: int, *, last: bool = False) -> bool:
        """Whether the file ends at `end` or, unless this must be the `last` chunk, norms begin there."""
        return end == self.size or (not last and end < self.size and self.starts_norms(end))

    def unpack(self, fields: Struct, raw: bytes, what: str) -> tuple[Any, ...]:
        """Return the fields. Raises `TruncatedError` if the file ends within them."""
        if len(raw) < fields.size:
            raise cut_off(f"the fields of the {what}", self.size, self.payload + fields.size, field=what)
        return fields.unpack_from(raw)

    def place(self, what: str, fields: int, nbytes: int, width: int, *, last: bool = False) -> tuple[int, int]:
        """Return the offset of the data and the end of the chunk.

        The chunk's length tells its padding. If it leads neither to the end of the file nor to norms, but the padding
        that writers use does, that padding is taken, with a warning.

        Parameters
        ----------
        what : str
        fields : int
            Bytes of the fields before the padding.
        nbytes, width : int
            Bytes of the data, and of its widest element.
        last : bool
            Whether only the end of the file may follow.
        """
        start, declared = self.payload + fields, self.payload + self.length
        padding, most = declared - start - nbytes, max(_PADDING_MOST, width)
        sound = 0 <= padding <= most
        if sound and self.lands(declared, last=last):
            return start + padding, declared
        data = start + width - start % width
        cut = sound and declared > self.size  # by a few bytes, which the padding that writers put there may make up for
        if not cut and self.lands(data + nbytes, last=last) and data + nbytes != declared:
            taken = f"its contents take {data + nbytes - self.payload} bytes (at byte {self.position + 4})"
            self.warnings.append(f"the length of the {what} chunk is {self.length}, and {taken}")
            return data, data + nbytes
        if cut or start + nbytes > self.size:
            raise cut_off(f"the data of the {what}", self.size, declared if cut else start + nbytes, field=what)
        if not sound:
            cls = TruncatedError if declared > self.size else LayoutError
            wanted = start + nbytes - self.payload
            expected = f"{wanted} to {wanted + most}: fields, padding and data"
            msg = f"length of the {what} chunk"
            raise cls(msg, field="chunk_len", offset=self.position + 4, actual=self.length, expected=expected)
        return start + padding, declared


def _check_size(nbytes: int, what: str, offset: int) -> None:
    if nbytes > INT64_MAX:
        msg = f"the product of the shape of the {what} exceeds 2**63 - 1 bytes"
        raise LayoutError(msg, field="shape", offset=offset)


def read_matrix(placing: Placing, raw: bytes) -> Block:
    """Read the fields of a plain matrix."""
    rows, cols, code = placing.unpack(MATRIX_FIELDS, raw, "matrix")
    at = placing.payload + 12
    if code >= len(TYPES) or TYPES[code] is None:
        what = f"type of the matrix ({TYPE_NAMES[code]})" if code < len(TYPES) else "type of the matrix"
        raise UnsupportedError(what, field="type", offset=at, actual=code, expected=f"one of {KNOWN_TYPES}")
    width = BITS[code] // 8
    nbytes = rows * cols * width
    # numpy multiplies the other dimensions of an empty matrix too.
    _check_size(max(rows, 1) * max(cols, 1) * width, "matrix", placing.payload)
    data, end = placing.place("matrix", MATRIX_FIELDS.size, nbytes, width)
    padding, declared = placing.payload + MATRIX_FIELDS.size, placing.payload + placing.length
    return Block._make((code, (rows, cols), placing.position, padding, data, end, None, declared))


def read_product(placing: Placing, raw: bytes) -> Block:
    """Read the fields of a product-quantised matrix."""
    values = placing.unpack(QUANTIZED_FIELDS, raw, "quantised matrix")
    fields = dict(zip(QUANTIZED_NAMES, values, strict=True))
    _check_product(placing, fields)
    rows, width, parts = fields["rows"], fields["reconstructed_len"], fields["quantized_len"]
    product = PQShape(parts, fields["n_centroids"], bool(fields["projection"]), bool(fields["norms"]))
    nbytes = sum(product_sizes((rows, width), product))
    _check_size(nbytes, "quantised matrix", placing.payload)
    _check_size(max(rows, 1) * width * 4, "quantised matrix", placing.payload)
    data, end = placing.place("quantised matrix", QUANTIZED_FIELDS.size, nbytes, 4)
    padding, declared = placing.payload + QUANTIZED_FIELDS.size, placing.payload + placing.length
    return Block._make((PQ_CODE, (rows, width), placing.position, padding, data, end, product, declared))


def product_sizes(shape: tuple[int, ...], product: PQShape) -> tuple[int, int, int, int]:
    """Return the bytes of projection, codebooks, norms and codes, in file order."""
    rows, width = shape
    return (
        4 * width * width if product.projection else 0,
        4 * product.n_centroids * width,
        4 * rows if product.norms else 0,
        rows * product.quantized_len,
    )


def _check_product(placing: Placing, fields: dict[str, int]) -> None:
    def fail(name: str, expected: str, cls: type[FormatError] = FormatError) -> None:
        at = placing.payload + QUANTIZED_AT[name]
        what = f"{name} of the quantised matrix"
        raise cls(what, field=name, offset=at, actual=fields[name], expected=expected)

    for name in ("projection", "norms"):
        if fields[name] > 1:
            fail(name, "0 or 1")
    for name, code in (("quantized_type", U8_CODE), ("reconstructed_type", F32_CODE)):
        if fields[name] != code:
            fail(name, f"{code} ({TYPE_NAMES[code]})", UnsupportedError)
    parts, width = fields["quantized_len"], fields["reconstructed_len"]
    if not 0 < parts <= width or width % parts:
        fail("quantized_len", f"a divisor of reconstructed_len, {width}")
    if not 0 < fields["n_centroids"] <= MAX_CENTROIDS:
        fail("n_centroids", f"1 to {MAX_CENTROIDS}: codes are bytes")


def read_norms(placing: Placing, raw: bytes, words: int | None) -> Block:
    """Read the fields of the norms; `words` is the number of words, None without a vocabulary."""
    count, code = placing.unpack(NORMS_FIELDS, raw, "norms")
    if code != F32_CODE:
        what, expected = "type of the norms", f"{F32_CODE} ({TYPE_NAMES[F32_CODE]})"
        raise UnsupportedError(what, field="type", offset=placing.payload + 8, actual=code, expected=expected)
    if words is not None and count != words:
        expected = f"{words}, the number of words"
        raise LayoutError("number of norms", field="n_norms", offset=placing.payload, actual=count, expected=expected)
    nbytes = 4 * count
    _check_size(nbytes, "norms", placing.payload)
    data, end = placing.place("norms", NORMS_FIELDS.size, nbytes, 4, last=True)
    padding, declared = placing.payload + NORMS_FIELDS.size, placing.payload + placing.length
    return Block._make((F32_CODE, (count,), placing.position, padding, data, end, None, declared))
