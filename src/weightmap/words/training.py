"""Product quantisation of a matrix: training, and encoding block by block.

Each row is cut into pieces of equal width. For the pieces at each place, k-means finds the vectors of a codebook; a
piece is stored as the number of the nearest vector (Jégou, Douze and Schmid, "Product quantization for nearest neighbor
search", 2011). With `projection`, rows are first rotated to the eigenvectors of their covariance, so that each place
has about the same share of the variance: each eigenvector goes to the place whose product of eigenvalues is smallest
(Ge, He, Ke and Sun, "Optimized product quantization", 2013, the parametric solution). With `norms`, rows are first
scaled to unit vectors, and each row's norm is stored.

The k-means is scipy's (the extra ``[pq]``).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.arguments import Globs, as_globs, as_integer
from weightmap.core.dtypes import SCHEMES
from weightmap.core.formats import Payload
from weightmap.core.model.reports import QuantizedInfo
from weightmap.core.native import quantised
from weightmap.core.quant import PQShape
from weightmap.core.quant.product import ProductQuantized
from weightmap.errors import MissingDependencyError, QuantError
from weightmap.words.importers._words import l2_norms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike, NDArray

    Blocks = Callable[[], Iterator[NDArray[np.float32]]]

# Rows to train on: 64 for each of 256 centroids.
SAMPLE = 1 << 14
_ITERATIONS = 20
# The largest element whose sums of squares fit float32.
_LARGEST = 1e15
# Rows to encode at once.
_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Pq:
    """Options for `convert` to store the rows of words by product quantisation.

    Parameters
    ----------
    n_subquantizers : int, optional
        Codes per row, a divisor of the row's length. By default the largest divisor up to half the length, so that
        pieces have two numbers if possible.
    n_bits : int
        Bits per code, 1 to 8. A codebook has ``2 ** n_bits`` centroids, or one for each row of a smaller sample.
    projection : bool
        Rotate the rows first.
    norms : bool
        Quantise unit vectors, and store the norms.
    seed : int
        The same seed gives the same result on the same machine.
    include : glob or sequence of globs, optional
        The name of the matrix, if several matrices have a row per word.

    Raises
    ------
    QuantError
        For numbers out of range.

    Examples
    --------
    >>> from weightmap.words import Pq
    >>> Pq(100, n_bits=9)
    Traceback (most recent call last):
    weightmap.errors.QuantError: n_bits is 9, expected 1 to 8
    """

    n_subquantizers: int | None = None
    _: KW_ONLY
    n_bits: int = 8
    projection: bool = False
    norms: bool = True
    seed: int = 0
    include: Globs = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.n_subquantizers is not None and as_integer("n_subquantizers", self.n_subquantizers) < 1:
            expected = "1 or more"
            raise QuantError("n_subquantizers", field="n_subquantizers", actual=self.n_subquantizers, expected=expected)
        if not 1 <= as_integer("n_bits", self.n_bits) <= 8:
            raise QuantError("n_bits", field="n_bits", actual=self.n_bits, expected="1 to 8")
        if as_integer("seed", self.seed) < 0:
            raise QuantError("seed", field="seed", actual=self.seed, expected="0 or more")
        object.__setattr__(self, "include", as_globs("include", self.include))


def train_pq(
    matrix: ArrayLike,
    *,
    n_subquantizers: int | None = None,
    n_bits: int = 8,
    projection: bool = False,
    norms: bool = True,
    sample: int = SAMPLE,
    iterations: int = _ITERATIONS,
    seed: int = 0,
) -> ProductQuantized:
    """Quantise a matrix by product quantisation.

    Parameters
    ----------
    matrix : array_like of float, shape (n, d)
        Finite numbers.
    n_subquantizers, n_bits, projection, norms, seed
        As for `Pq`.
    sample : int
        Train on at most this many rows, chosen at random.
    iterations : int
        Iterations of k-means.

    Returns
    -------
    ProductQuantized
        Shape (n, d).

    Raises
    ------
    QuantError
        When options do not fit the matrix, or an element is not finite.
    MissingDependencyError
        When scipy is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap.words import train_pq
    >>> train_pq(np.eye(4, dtype=np.float32), n_subquantizers=3)
    Traceback (most recent call last):
    weightmap.errors.QuantError: n_subquantizers is 3, expected a divisor of 4, the length of a row
    """
    dense = np.asarray(quantised.real_numbers(matrix), np.float32)
    if dense.ndim != 2:
        raise QuantError("number of dimensions of the matrix", actual=dense.ndim, expected=2)
    if not np.isfinite(dense).all():
        raise QuantError("an element of the matrix", actual="NaN or infinite", expected="a finite number")
    pq = Pq(n_subquantizers, n_bits=n_bits, projection=projection, norms=norms, seed=seed)
    rows, dims = dense.shape
    trainer = Trainer("matrix", rows, dims, lambda: _pieces(dense), pq, sample=sample, iterations=iterations)
    codes = np.concatenate([*trainer.codes(), np.empty((0, trainer.codebooks.shape[0]), np.uint8)])
    return ProductQuantized(codes, trainer.codebooks, trainer.projection, trainer.norms)


def _pieces(dense: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    for first in range(0, len(dense), _ROWS):
        yield dense[first : first + _ROWS].copy()


class Trainer:
    """Trains codebooks on a sample of a matrix that is read in blocks, and encodes its rows.

    Parameters
    ----------
    name : str
        Name of the tensor.
    rows, dims : int
    blocks : callable
        Returns an iterator over the rows in order; called twice, for training and for encoding.
    pq : Pq
    sample, iterations : int
        As for `train_pq`.

    Attributes
    ----------
    codebooks : ndarray of float32, shape (m, c, d / m)
    projection : ndarray of float32, shape (d, d), or None
    norms : ndarray of float32, shape (rows,), or None
    info : QuantizedInfo or None
        Size and error, set after the last code.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        dims: int,
        blocks: Blocks,
        pq: Pq,
        *,
        sample: int = SAMPLE,
        iterations: int = _ITERATIONS,
    ) -> None:
        self.name = name
        self.shape: tuple[int, int] = (rows, dims)
        self._blocks = blocks
        self._pq, self._sample_size, self._iterations = pq, sample, iterations
        self._check()
        cluster = _scipy()
        self.info: QuantizedInfo | None = None
        self.norms: NDArray[np.float32] | None = np.empty(rows, np.float32) if pq.norms else None
        chosen = self._sample()
        self.projection: NDArray[np.float32] | None
        self.projection = _rotation(chosen, self._subquantizers) if pq.projection else None
        if self.projection is not None:
            chosen = chosen @ self.projection
        self.codebooks: NDArray[np.float32] = self._train(chosen, cluster)
        self._cluster = cluster

    def _check(self) -> None:
        rows, dims = self.shape
        if not rows or not dims:
            raise QuantError("shape of the matrix", actual=self.shape, expected="a row and a column at least")
        count = self._pq.n_subquantizers
        if count is None:
            count = next(m for m in range(max(dims // 2, 1), 0, -1) if dims % m == 0)
        elif dims % count:
            expected = f"a divisor of {dims}, the length of a row"
            raise QuantError("n_subquantizers", field="n_subquantizers", actual=count, expected=expected)
        for field, value in (("sample", self._sample_size), ("iterations", self._iterations)):
            if as_integer(field, value) < 1:
                raise QuantError(field, field=field, actual=value, expected="1 or more")
        self._subquantizers = count

    def _sample(self) -> NDArray[np.float32]:
        """Read all rows once: return a sample, in the form to be encoded, and note the norms of all."""
        rows, dims = self.shape
        random = np.random.default_rng(self._pq.seed)
        count = min(rows, self._sample_size)
        chosen = np.sort(random.choice(rows, count, replace=False))
        sample = np.empty((count, dims), np.float32)
        at = position = 0
        for block in self._blocks():
            largest = float(np.abs(block).max(initial=0))
            if not largest <= _LARGEST:
                raise QuantError("an element of the matrix", actual=largest, expected=f"at most {_LARGEST:g}")
            if self.norms is not None:
                self.norms[at : at + len(block)] = l2_norms(block)
            stop = int(np.searchsorted(chosen, at + len(block)))
            sample[position:stop] = self._prepared(block, at)[chosen[position:stop] - at]
            position = stop
            at += len(block)
        return sample

    def _prepared(self, block: NDArray[np.float32], at: int) -> NDArray[np.float32]:
        if self.norms is None:
            return block
        norms = self.norms[at : at + len(block)]
        return (block / np.where(norms == 0, 1, norms)[:, None]).astype(np.float32, copy=False)

    def _train(self, sample: NDArray[np.float32], cluster: Any) -> NDArray[np.float32]:
        width = sample.shape[1] // self._subquantizers
        centroids = min(1 << self._pq.n_bits, len(sample))
        books = np.empty((self._subquantizers, centroids, width), np.float32)
        random = np.random.default_rng([self._pq.seed, 1])
        for j, book in enumerate(books):
            points = np.ascontiguousarray(sample[:, j * width : (j + 1) * width])
            start = points[np.sort(random.choice(len(points), centroids, replace=False))]
            with warnings.catch_warnings():
                # kmeans2 warns of clusters without points. These keep their place, but no code names them.
                warnings.simplefilter("ignore")
                book[:] = cluster.kmeans2(points, start, iter=self._iterations, minit="matrix")[0]
        return books

    def codes(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the codes of the rows, in blocks; sets `info` at the end."""
        error = square = 0.0
        at = 0
        count, _, width = self.codebooks.shape
        places = np.arange(count)
        for block in self._blocks():
            for first in range(0, len(block), _ROWS):
                rows = block[first : first + _ROWS]
                turned = self._prepared(rows, at)
                if self.projection is not None:
                    turned = turned @ self.projection
                codes = np.empty((len(rows), count), np.uint8)
                for j, book in enumerate(self.codebooks):
                    points = np.ascontiguousarray(turned[:, j * width : (j + 1) * width])
                    codes[:, j] = self._cluster.vq(points, book, check_finite=False)[0]
                back = self.codebooks[places, codes].reshape(len(rows), -1)
                if self.projection is not None:
                    back = back @ self.projection.T
                if self.norms is not None:
                    back *= self.norms[at : at + len(rows), None]
                error += float(np.square(rows - back, dtype=np.float64).sum())
                square += float(np.square(rows, dtype=np.float64).sum())
                at += len(rows)
                yield codes
        sizes = 4 * math.prod(self.shape), self.nbytes
        self.info = QuantizedInfo.of(self.name, "pq", self.shape, sizes, error, square)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        parts = (self.codebooks, self.projection, self.norms)
        nbytes: int = sum(part.nbytes for part in parts if part is not None)
        return nbytes + self.shape[0] * len(self.codebooks)

    def payload(self) -> Payload:
        """Return the tensor to write. Writing it reads the rows a second time, and encodes them."""

        def chunks() -> Iterator[Any]:
            for part in (self.projection, self.codebooks, self.norms):
                if part is not None:
                    yield part.astype("<f4", copy=False).tobytes()
            for codes in self.codes():
                yield codes.tobytes()

        count, centroids, _ = self.codebooks.shape
        parts = PQShape(count, centroids, self.projection is not None, self.norms is not None)
        return Payload(self.name, SCHEMES["pq"], self.shape, self.nbytes, chunks, parts=parts)


def _rotation(sample: NDArray[np.float32], places: int) -> NDArray[np.float32]:
    """Return the rotation P, shape (d, d), that takes rows x to ``x @ P``: see the module."""
    wide = sample.astype(np.float64)
    wide -= wide.mean(axis=0)
    values, vectors = np.linalg.eigh(wide.T @ wide / len(wide))
    room = sample.shape[1] // places
    # Negative logarithms would give the place with the most of them the smallest sum.
    logs = np.log(np.maximum(values, max(float(values[-1]), 1e-300) * 1e-12))
    logs -= logs.min()
    assigned: list[list[int]] = [[] for _ in range(places)]
    shares = [0.0] * places
    for i in range(len(logs) - 1, -1, -1):
        place = min((j for j in range(places) if len(assigned[j]) < room), key=shares.__getitem__)
        assigned[place].append(i)
        shares[place] += float(logs[i])
    return np.ascontiguousarray(vectors[:, [i for place in assigned for i in place]], np.float32)


def _scipy() -> Any:
    try:
        import scipy.cluster.vq as cluster  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingDependencyError(
            "product quantisation needs the k-means of scipy: pip install '.[pq]' in a checkout"
        ) from None
    return cluster
