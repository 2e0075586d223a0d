"""Checksums and hashes: CRC-32 and FNV-1a, sums of parts of a file, n-grams of words."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.native import access
from weightmap.core.native.access import NULL, U32_MAX, ffi, from_buffer, lib, module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


def crc32(data: access.Buffer, value: int = 0, *, threads: int = 1) -> int:
    """Return the CRC-32 of zlib: reflected polynomial 0xEDB88320, initial value and final XOR 0xFFFFFFFF.

    Parameters
    ----------
    data : buffer
    value : int
        CRC of the bytes before `data`, as in `zlib.crc32`; only its low 32 bits count.
    threads : int
        The most threads that share the work; fewer if the input is too small to gain.

    Returns
    -------
    int
        The CRC, 0 to 2**32 - 1.

    Raises
    ------
    TypeError
        When `data` has no contiguous buffer, or another argument is not an integer.
    ValueError
        For `threads` below 1.

    Examples
    --------
    >>> from weightmap import kernels
    >>> hex(kernels.crc32(b"123456789"))
    '0xcbf43926'
    """
    buffer = access.as_input(data)
    crc: int = lib.wm_crc32(value & U32_MAX, buffer, len(buffer), access.thread_count(threads))
    return crc


def crc32_combine(crc1: int, crc2: int, len2: int) -> int:
    """Return the CRC-32 of A + B from the CRC-32s of A and B and the length of B in bytes, in time O(log len2).

    Parameters
    ----------
    crc1, crc2 : int
        The CRC-32s of A and B; only their low 32 bits count.
    len2 : int
        The bytes of B.

    Returns
    -------
    int
        The CRC, 0 to 2**32 - 1.

    Raises
    ------
    ValueError
        When `len2` is negative, or 2**64 or more.
    TypeError
        When an argument is not an integer.

    Examples
    --------
    >>> from weightmap.kernels import crc32, crc32_combine
    >>> crc32_combine(crc32(b"12345"), crc32(b"6789"), 4) == crc32(b"123456789")
    True
    """
    first, second, length = index(crc1), index(crc2), index(len2)
    if not 0 <= length < 1 << 64:
        raise ValueError(f"len2 is {length}, expected 0 to 2**64 - 1")
    crc: int = lib.wm_crc32_combine(first & U32_MAX, second & U32_MAX, length)
    return crc


def fnv1a32(data: access.Buffer) -> int:
    """Return the FNV-1a hash of 32 bits: basis 0x811C9DC5, prime 0x01000193.

    Parameters
    ----------
    data : buffer

    Returns
    -------
    int
        The hash, 0 to 2**32 - 1.

    Raises
    ------
    TypeError
        When `data` has no contiguous buffer.

    Examples
    --------
    >>> from weightmap import kernels
    >>> hex(kernels.fnv1a32(b"foobar"))
    '0xbf9cf968'
    """
    buffer = access.as_input(data)
    value: int = lib.wm_fnv1a32(buffer, len(buffer))
    return value


def fnv1a64(data: access.Buffer) -> int:
    """Return the FNV-1a hash of 64 bits: basis 0xCBF29CE484222325, prime 0x100000001B3.

    Parameters
    ----------
    data : buffer

    Returns
    -------
    int
        The hash, 0 to 2**64 - 1.

    Raises
    ------
    TypeError
        When `data` has no contiguous buffer.

    Examples
    --------
    >>> from weightmap import kernels
    >>> hex(kernels.fnv1a64(b"foobar"))
    '0x85944171f73967e8'
    """
    buffer = access.as_input(data)
    value: int = lib.wm_fnv1a64(buffer, len(buffer))
    return value


# Built-in functions of csrc/python replace the functions above, because a call through cffi takes longer than zlib
# takes for a kilobyte. The functions above remain as definition, types and documentation.
crc32_by_cffi, fnv1a32_by_cffi, fnv1a64_by_cffi = crc32, fnv1a32, fnv1a64
_DOCS = [
    ffi.new("char[]", f"{signature}\n--\n\n{function.__doc__}".encode())
    for signature, function in (
        ("crc32(data, value=0, *, threads=1)", crc32),
        ("fnv1a32(data)", fnv1a32),
        ("fnv1a64(data)", fnv1a64),
    )
]
if not TYPE_CHECKING and lib.wm_python_functions(ffi.new("char *[]", [*_DOCS, ffi.NULL])) == 0:
    crc32, fnv1a32, fnv1a64 = module.crc32, module.fnv1a32, module.fnv1a64
    crc32.__module__ = fnv1a32.__module__ = fnv1a64.__module__ = __name__


def fnv1a32_many(
    blob: access.Buffer, lengths: ArrayLike, *, out: NDArray[np.uint32] | None = None
) -> NDArray[np.uint32]:
    """Return the FNV-1a 32 hashes of many names, much faster than name by name.

    Parameters
    ----------
    blob : buffer
        The names back to back.
    lengths : array_like of int, shape (n,)
        Their lengths in bytes.
    out : ndarray of uint32, shape (n,), optional
        Filled and returned; contiguous and writeable.

    Returns
    -------
    ndarray of uint32, shape (n,)
        Their hashes.

    Raises
    ------
    ValueError
        When a length is negative, or 2**32 or more; when the lengths exceed `blob`, or `out` does not fit.
    TypeError
        When `blob` has no contiguous buffer, or `out` is not an array.

    Examples
    --------
    >>> from weightmap import kernels
    >>> [hex(h) for h in kernels.fnv1a32_many(b"foobara", [6, 1]).tolist()]
    ['0xbf9cf968', '0xe40c292c']
    """
    counts = np.asarray(lengths)
    if counts.dtype != np.uint32:
        if counts.size and counts.dtype.kind not in "ui":
            raise ValueError(f"lengths must be integers, not {counts.dtype}")
        if int(counts.min(initial=0)) < 0 or int(counts.max(initial=0)) > U32_MAX:
            actual = f"{counts.dtype} from {counts.min()} to {counts.max()}"
            raise ValueError(f"lengths must be integers from 0 to 2**32 - 1, not {actual}")
        counts = counts.astype(np.uint32)
    if counts.ndim != 1:
        raise ValueError(f"lengths has {counts.ndim} dimensions, expected 1")
    if not (counts.flags.c_contiguous and counts.flags.aligned):
        counts = counts.copy()
    if out is None:
        hashes = np.empty(len(counts), np.uint32)
    elif (
        (hashes := access.given_array(out)).dtype != np.uint32
        or hashes.shape != counts.shape
        or not hashes.flags.carray
    ):
        msg = f"out is {hashes.dtype} {hashes.shape}, expected uint32 {counts.shape}, contiguous and writeable"
        raise ValueError(msg)
    buffer = access.as_input(blob)
    words, target = access.as_items("uint32_t[]", counts), access.as_output(hashes, "uint32_t[]")
    where = lib.wm_fnv1a32_many(buffer, len(buffer), words, len(counts), 0, target)
    if where >= 0:
        raise ValueError(f"name {where} of {len(counts)} runs past the blob of {len(buffer)} bytes")
    return hashes


# ----------------------------------------------------------------------------------------------------
# CRC-32 of parts of files, in C: each byte is read once, by several threads.


class PartSummer:
    """Computes checksums of parts of a file. Its buffer serves all calls.

    Parameters
    ----------
    threads : int
        The most threads that share the work; fewer if there is too little to gain.
    """

    def __init__(self, threads: int) -> None:
        self._threads = access.thread_count(threads)
        self._room = np.empty(0, np.uint8)

    def __call__(
        self, source: int | NDArray[np.uint8], offset: int, nbytes: int, value: int, gaps: NDArray[np.uint64]
    ) -> tuple[int, NDArray[np.bool_]]:
        """Return the CRC-32 of `nbytes` bytes from `offset` on, and whether each gap has a nonzero byte there.

        Parameters
        ----------
        source : int or ndarray of uint8
            The descriptor of a file, or bytes that stay in memory.
        offset, nbytes : int
        value : int
            The CRC-32 of the bytes before.
        gaps : ndarray of uint64, shape (n, 2)
            Begin and end of ranges of padding: disjoint, in rising order, anywhere in the file.

        Returns
        -------
        crc : int
        filled : ndarray of bool, shape (n,)

        Raises
        ------
        Failed
        """
        filled = np.zeros(len(gaps), np.bool_)
        fd, memory, size = access.place_of(source)
        if fd >= 0 and not self._room.size:
            self._room = access.aligned(self._threads * lib.WM_SUM_ROOM)
        ranges = access.as_items("uint64_t[]", gaps) if len(gaps) else NULL
        part = ffi.new("wm_summed *", (fd, memory, size, offset, nbytes, ranges, len(gaps)))
        crc, outcome = ffi.new("uint32_t *", value & U32_MAX), ffi.new("wm_outcome *")
        buffer, flags = access.as_output(self._room, "uint8_t[]"), access.as_output(filled.view(np.uint8), "uint8_t[]")
        lib.wm_crc32_of_part(part, flags, len(filled), crc, buffer, self._room.size, self._threads, outcome)
        access.check_outcome(outcome)
        return crc[0], filled


# ----------------------------------------------------------------------------------------------------
# Character n-grams, and gathering and summing of rows, in C.

_KINDS = {
    "bucket": lib.WM_SUBWORDS_BUCKET,
    "fasttext": lib.WM_SUBWORDS_FASTTEXT,
    "explicit": lib.WM_SUBWORDS_EXPLICIT,
}
MAX_NGRAMS: int = lib.WM_NGRAMS_MOST
# Initial room for rows, per text and in all: a word of 15 characters has 54 n-grams of 3 to 6 characters.
_ROOM, _MIN_ROOM = 64, 256


def pack_texts(texts: Sequence[str], before: str = "", after: str = "") -> tuple[bytes, NDArray[np.uint32]] | None:
    """Return the UTF-8 of texts back to back, each between `before` and `after` (ASCII), and their bounds.

    Lone surrogates are encoded like characters, unlike in valid UTF-8. Returns None for 4 GiB or more in all. Raises
    TypeError for an item that is not a str.
    """
    text = f"{before}{(after + before).join(texts)}{after}" if len(texts) else ""
    packed = text.encode(errors="surrogatepass")
    if len(packed) > U32_MAX:
        return None
    bounds = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + len(before + after), out=bounds[1:])
    if len(packed) > len(text):  # bounds in characters become bounds in bytes
        begins = np.flatnonzero((np.frombuffer(packed, np.uint8) & 0xC0) != 0x80)
        bounds = np.append(begins, len(packed))[bounds]
    return packed, bounds.astype(np.uint32)


class Ngrams:
    """The n-grams of a vocabulary as a wm_subwords of kernels.h; keeps their arrays alive.

    Parameters
    ----------
    kind : str
        "bucket", "fasttext" or "explicit".
    min_n, max_n : int
    size : int
    first_row : int
        Added to each index.
    table : tuple, optional
        For an explicit vocabulary: data, bounds, gap and slots of the index over its n-grams, and their uint64 indices.
    """

    __slots__ = ("_keep", "_struct")

    def __init__(self, kind: str, min_n: int, max_n: int, size: int, first_row: int, table: Any = None) -> None:
        index, indices, count = NULL, NULL, 0
        if table is not None:
            data, bounds, gap, slots, numbers = table
            buffer, starts = access.as_input(data), access.as_items("uint32_t[]", bounds)
            places, indices, count = (
                access.as_items("uint32_t[]", slots),
                access.as_items("uint64_t[]", numbers),
                len(numbers),
            )
            index = ffi.new("wm_index *", (buffer, len(buffer), starts, len(bounds) - 1, gap, places, len(slots)))
            table = (buffer, starts, places, indices, index)
        self._keep = table
        size = 0 if kind == "explicit" else size
        self._struct = ffi.new("wm_subwords *", (_KINDS[kind], min_n, max_n, size, first_row, index, indices, count))

    def rows(
        self, blob: bytes, bounds: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | int | None:
        """Return the rows of the n-grams of many texts, and their bounds.

        None if several texts have more than `MAX_NGRAMS` rows in all; a single text may have `MAX_NGRAMS`.

        Parameters
        ----------
        blob, bounds
            The texts in brackets, as `pack_texts` returns them.

        Returns
        -------
        rows : ndarray of uint64
        row_bounds : ndarray of uint64, shape (texts + 1,)
            If a text has more than `MAX_NGRAMS` n-grams, the number of the first such text instead of both.
        """
        texts = len(bounds) - 1
        row_bounds = np.empty(texts + 1, np.uint64)
        starts, ends = access.as_items("uint32_t[]", bounds), access.as_output(row_bounds, "uint64_t[]")
        room = max(_MIN_ROOM, _ROOM * texts)
        while True:
            rows = np.empty(room, np.uint64)
            out = access.as_output(rows, "uint64_t[]")
            total: int = lib.wm_subword_rows(self._struct, blob, len(blob), starts, texts, out, room, ends)
            if total < 0:
                assert total != -1  # noqa: S101 - Subwords and pack_texts check the arguments
                return -2 - total
            if total <= room:
                return rows[:total], row_bounds
            if total > MAX_NGRAMS and texts > 1:
                return None
            room = total


def gather_rows(matrix: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any], *, threads: int = 1) -> NDArray[Any]:
    """Copy rows of `matrix` to `out`, and return it; a row that is negative or too large gives zeros.

    Parameters
    ----------
    matrix : ndarray, shape (n, d)
        C-contiguous, at any alignment.
    rows : ndarray of int64, shape (k,)
    out : ndarray, shape (k, d)
        Of the same type, C-contiguous.
    threads : int
        At most this many threads share the work.
    """
    source, target = from_buffer("uint8_t[]", _octets(matrix)), access.as_output(_octets(out), "uint8_t[]")
    width, numbers = matrix.shape[1] * matrix.itemsize, access.as_items("int64_t[]", rows)
    if lib.wm_gather_rows(
        source, matrix.nbytes, width, numbers, len(rows), target, out.nbytes, access.thread_count(threads)
    ):
        raise ValueError(f"out has shape {out.shape}, expected {len(rows)} rows of {matrix.shape[1]}")
    return out


def _octets(matrix: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of the bytes of a contiguous array of any type and alignment."""
    return matrix.reshape(-1).view(np.uint8)


def unit_sums(
    matrix: NDArray[np.float32],
    rows: NDArray[np.uint64],
    bounds: NDArray[np.uint64],
    out: NDArray[np.float32],
    *,
    places: NDArray[np.uint64] | None = None,
    norms: NDArray[np.float32] | None = None,
    threads: int = 1,
) -> int:
    """Fill rows `places` of `out` with sums of rows of `matrix`, each divided by its L2 norm.

    Parameters
    ----------
    matrix : ndarray of float32, shape (n, d)
        C-contiguous, at any alignment.
    rows : ndarray of uint64
        The numbers of the rows.
    bounds : ndarray of uint64, shape (k + 1,)
        Sum i adds the rows ``rows[bounds[i]:bounds[i + 1]]`` in this order in float32.
    out : ndarray of float32, shape (m, d)
        C-contiguous.
    places : ndarray of uint64, shape (k,), optional
        The row of `out` for each sum, all different; by default 0, 1, 2 …
    norms : ndarray of float32, shape (k,), optional
        Filled with the norms: roots of the sums of the squares in double precision.
    threads : int
        At most this many threads share the work. The result does not depend on it.

    Returns
    -------
    int
        -1, or the number of the first sum that names a row outside `matrix`.

    Raises
    ------
    ValueError
        When bounds or places do not fit.
    """
    bad: int = lib.wm_unit_sums(
        from_buffer("uint8_t[]", _octets(matrix)),
        matrix.nbytes,
        matrix.shape[1],
        access.as_items("uint64_t[]", rows),
        len(rows),
        access.as_items("uint64_t[]", bounds),
        NULL if places is None else access.as_items("uint64_t[]", places),
        len(bounds) - 1,
        access.as_output(out, "float[]"),
        len(out),
        NULL if norms is None else access.as_output(norms, "float[]"),
        access.thread_count(threads),
    )
    if bad == -2:
        raise ValueError("bounds or places do not fit the rows or the output")
    return bad
