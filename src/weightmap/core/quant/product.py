"""Product quantisation: a row is stored as a few codes, each the index of a vector in a codebook.

A row of R elements is cut into m pieces of equal width. The code of piece j is the index of the nearest vector in
codebook j. Row i is decoded in float32, as

1. y = the vectors ``codebooks[j, codes[i, j]]`` one after another;
2. with a projection, ``x = y @ projection.T``: the terms ``projection[:, k] * y[k]`` are added in the order of k, from
   0 on; each product and each sum is rounded separately;
3. with norms, ``x = x * norms[i]``.

The bits of a row therefore depend neither on the CPU nor on the rows decoded with it. Another order of additions would
round differently, by less than ``2 * R * 2**-24`` times the sum of the magnitudes of an element's terms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from weightmap.core.native import quantised
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.errors import QuantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# A projection P counts as a rotation, which keeps norms, if P Pt is at most this far from the identity.
_ROTATION = 1e-4


class ProductQuantized(QuantizedTensor):
    """A matrix stored by product quantisation, decoded row by row on request.

    Parameters
    ----------
    codes : ndarray of uint8, shape (n, m)
        May be mapped and change at any time: every use checks each code.
    codebooks : ndarray of float32, shape (m, c, w)
        For each piece of a row, c vectors of w elements.
    projection : ndarray of float32, shape (m * w, m * w), optional
    norms : ndarray of float32, shape (n,), optional
    origin : tuple of (str, str, int), optional
        Path and format of the file, and the offset of the codes in it; for messages.

    Attributes
    ----------
    shape : tuple of int
        (n, m * w).
    scheme : str
        "pq".
    codes, codebooks, projection, norms : ndarray
        Views of the parameters; projection and norms may be None.

    Raises
    ------
    QuantError
        When shapes or dtypes do not fit together; and, with its place, when a decoded code is not below c.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap.core.quant.product import ProductQuantized
    >>> books = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    >>> q = ProductQuantized(np.array([[0, 1], [1, 0]], np.uint8), books)
    >>> q.shape, q[1].tolist()
    ((2, 4), [2.0, 3.0, 4.0, 5.0])
    """

    __slots__ = ("_codebooks", "_codes", "_native", "_norms", "_origin", "_projection")

    _direct: ClassVar[tuple[np.dtype[Any], ...]] = (np.dtype(np.float32),)

    def __init__(
        self,
        codes: NDArray[np.uint8],
        codebooks: NDArray[np.float32],
        projection: NDArray[np.float32] | None = None,
        norms: NDArray[np.float32] | None = None,
        *,
        origin: tuple[str, str, int] | None = None,
    ) -> None:
        self._origin = origin
        self._codes = _checked("codes", codes, np.dtype(np.uint8), (None, None))
        self._codebooks = _checked("codebooks", codebooks, np.dtype(np.float32), (self._codes.shape[1], None, None))
        rows, width = self._codes.shape[0], self._codebooks.shape[0] * self._codebooks.shape[2]
        square, column = (width, width), (rows,)
        float32 = np.dtype(np.float32)
        self._projection = None if projection is None else _checked("projection", projection, float32, square)
        self._norms = None if norms is None else _checked("norms", norms, float32, column)
        self.scheme = "pq"
        self.shape: tuple[int, ...] = (rows, width)
        self.size: int = rows * width
        self.block_size: int = 0
        self.scale_type: str = ""
        self._native: quantised.ProductCodes | None = None

    def _described(self) -> str:
        pieces, centroids, width = self._codebooks.shape
        extras = [name for name in ("projection", "norms") if getattr(self, name) is not None]
        return f"{list(self.shape)}, {' and '.join([f'{pieces} codebooks of {centroids} x {width}', *extras])}"

    @property
    def codes(self) -> NDArray[np.uint8]:
        """The codes, uint8, shape (n, m): a view."""
        return self._codes

    @property
    def codebooks(self) -> NDArray[np.float32]:
        """The vectors that codes index, float32, shape (m, c, w): a view."""
        return self._codebooks

    @property
    def projection(self) -> NDArray[np.float32] | None:
        """The matrix P in ``x = y @ P.T`` of a decoded row: a view, or None."""
        return self._projection

    @property
    def norms(self) -> NDArray[np.float32] | None:
        """The factor of each decoded row, float32, shape (n,): a view, or None."""
        return self._norms

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        parts = (self._codes, self._codebooks, self._projection, self._norms)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def n_blocks(self) -> int:
        """0: product quantisation has no blocks."""
        return 0

    @property
    def payload(self) -> NDArray[np.uint8]:
        """All bytes in the order of finalfusion files, shape (nbytes,): a copy that joins the parts."""
        parts = (self._projection, self._codebooks, self._norms, self._codes)
        return np.concatenate([np.frombuffer(part.tobytes(), np.uint8) for part in parts if part is not None])

    @property
    def scales(self) -> NoReturn:
        """Raises AttributeError: product quantisation has no scales."""
        raise AttributeError("a product-quantised tensor has codebooks, no scales")

    def _check_scales(self) -> None:
        for name, part in (("codebooks", self._codebooks), ("projection", self._projection), ("norms", self._norms)):
            if part is not None and not np.isfinite(part).all():
                raise QuantError(f"an element of the {name}", actual="NaN or infinite", expected="a finite number")

    @property
    def _ready(self) -> quantised.ProductCodes:
        native = self._native
        if native is None:
            turned = None if self._projection is None else self._projection.T
            parts = map(_aligned, (self._codebooks, turned, self._norms))
            native = quantised.ProductCodes(np.require(self._codes, requirements="C"), *parts)
            self._native = native
        return native

    def _decode_to(self, start: int, stop: int, out: NDArray[Any], threads: int) -> None:
        if start == stop:
            return
        width, flat = self.shape[1], out.reshape(-1)
        first, last = -(-start // width), stop // width  # the rows to decode whole
        if first <= last:
            head, tail = first * width - start, stop - last * width
            self._check(self._ready.decode(flat[head : len(flat) - tail], first=first, threads=threads))
            if head:
                flat[:head] = self._row(first - 1)[width - head :]
            if tail:
                flat[len(flat) - tail :] = self._row(last)[:tail]
        else:
            row = start // width
            flat[:] = self._row(row)[start - row * width : stop - row * width]

    def _row(self, row: int) -> NDArray[np.float32]:
        values = np.empty(self.shape[1], np.float32)
        self._check(self._ready.decode(values, first=row))
        return values

    def _gather(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        return self.gather(rows)

    def gather(self, rows: Sequence[int] | NDArray[Any], *, threads: int = 1) -> NDArray[np.float32]:
        """Return the values of many rows.

        Parameters
        ----------
        rows : sequence of int, length k
            Row numbers, from 0 on.
        threads : int
            At most this many threads share the work.

        Returns
        -------
        ndarray of float32, shape (k, m * w)

        Raises
        ------
        IndexError
            For a row that does not exist.
        """
        numbers = np.require(rows, np.uint64, ("C", "A"))
        values = np.empty((len(numbers), self.shape[1]), np.float32)
        if values.size:
            self._check(self._ready.decode(values, rows=numbers, threads=threads))
        return values

    def _check(self, bad: int) -> None:
        if bad < 0:
            return
        row, position = divmod(bad, self._codes.shape[1])
        path, format_, begin = self._origin or (None, None, None)
        what, actual = f"code {position} of row {row}", int(self._codes[row, position])
        expected = f"less than {self._codebooks.shape[1]}, the number of centroids"
        offset = None if begin is None else begin + bad
        raise QuantError(
            what, path=path, format=format_, field="codes", offset=offset, actual=actual, expected=expected
        )

    def dots(self, query: NDArray[np.float32], start: int, stop: int) -> NDArray[np.float32]:
        """Return the dot products of a vector with rows `start` to `stop`, looked up in a table.

        Parameters
        ----------
        query : ndarray of float32, shape (m * w,)
        start, stop : int
            0 <= start <= stop <= n.

        Returns
        -------
        ndarray of float32, shape (stop - start,)
            Equal to ``self[start:stop] @ query`` except for rounding.
        """
        pieces, _, width = self._codebooks.shape
        turned = query if self._projection is None else query @ self._projection
        table = np.einsum("jcw,jw->jc", self._codebooks, turned.reshape(pieces, width))
        sums = self._sums(table, start, stop)
        return sums if self._norms is None else sums * self._norms[start:stop]

    def row_norms(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the L2 norms of rows `start` to `stop`, float32, shape (stop - start,).

        They come from a table, or from decoded rows if the projection is not a rotation.
        """
        projection = self._projection
        if projection is not None:
            off = projection @ projection.T
            off[np.diag_indices_from(off)] -= 1
            if not np.abs(off).max(initial=0) <= _ROTATION:
                return np.linalg.norm(self._rows(start, stop), axis=1)  # type: ignore[no-any-return]
        norms = np.sqrt(self._sums(np.einsum("jcw,jcw->jc", self._codebooks, self._codebooks), start, stop))
        return norms if self._norms is None else norms * np.abs(self._norms[start:stop])

    def _sums(self, table: NDArray[Any], start: int, stop: int) -> NDArray[np.float32]:
        sums = np.empty(stop - start, np.float32)
        self._check(self._ready.sums(_aligned(table), sums, first=start))
        return sums

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self._codes, self._codebooks, self._projection, self._norms)
        return ProductQuantized, tuple(None if part is None else np.array(part) for part in parts)


def _checked(name: str, array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return a read-only view of an array after checking dtype and shape; None stands for any length."""
    array = np.asarray(array)
    fits = array.ndim == len(shape) and all(size in {None, n} for n, size in zip(array.shape, shape, strict=True))
    if array.dtype != dtype or not fits:
        expected = f"{dtype} {tuple('any' if length is None else length for length in shape)}"
        raise QuantError(f"type and shape of the {name}", actual=f"{array.dtype} {array.shape}", expected=expected)
    view = array.view()
    view.flags.writeable = False
    return view


def _aligned(array: NDArray[Any] | None) -> Any:
    """Return an array contiguous and aligned for C; copy it only if necessary."""
    return None if array is None else np.require(array, np.float32, ("C", "A"))
