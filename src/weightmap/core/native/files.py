"""Calls of C that read, copy and compare files, and manage their pages in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.native import access
from weightmap.core.native.access import ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Buffer, Callable

    from numpy.typing import NDArray


def join_ranges(
    files: NDArray[np.integer], starts: NDArray[np.int64], stops: NDArray[np.int64], *, gap: int, max_over_read: float
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the reads that cover ranges: for each read its file, start, stop, and number of wanted bytes.

    Parameters
    ----------
    files, starts, stops : ndarray, shape (n,)
        In order of file, then of start.
    gap : int
        Ranges less than this many bytes apart are joined into one read.
    max_over_read : float
        Ranges are joined while the read has at most this many times its wanted bytes.
    """
    file = np.array(files, np.uint32)
    columns = np.empty((3, len(file)), np.int64)  # starts, stops, bytes asked for; C writes the result here
    columns[0], columns[1] = starts, stops
    pointers = map(from_buffer, ("uint32_t[]", *("uint64_t[]",) * 3), (file, *columns))
    count = lib.wm_join_ranges(*pointers, len(file), min(gap, (1 << 63) - 1), max_over_read)
    begins, ends, needed = columns[:, :count]
    return file[:count], begins, ends, needed


# ----------------------------------------------------------------------------------------------------
# Pages of files in memory: listing, reading and releasing them.


def page_size() -> int:
    """Return the bytes of a page of memory."""
    size: int = lib.wm_page_size()
    return size


def drop_pages(memory: Any, offset: int, size: int, *, private: bool) -> int:
    """Unmap pages of a mapping until they are touched; if `private`, only unchanged ones. Return 0 or an errno."""
    buffer = access.as_input(memory)
    error: int = lib.wm_drop(buffer, len(buffer), offset, size, private)
    return error


def resident_pages(memory: Any, offset: int, size: int) -> NDArray[np.uint8] | int:
    """Return whether each page of these bytes of a mapping is in memory; or an errno."""
    buffer, page = access.as_input(memory), page_size()
    skipped = (int(ffi.cast("uintptr_t", buffer)) + offset) % page
    pages = np.empty(-(-(skipped + size) // page), np.uint8)
    error: int = lib.wm_resident(buffer, len(buffer), offset, size, access.as_output(pages, "uint8_t[]"), len(pages))
    return error or pages


def cached_pages(fd: int, offset: int, size: int) -> int:
    """Return the number of pages of these bytes that the page cache holds, or a negative errno."""
    count: int = lib.wm_cached(fd, offset, size)
    return count


def file_system(fd: int) -> int:
    """Return the type of the file system of a file, as of statfs; or a negative errno."""
    number: int = lib.wm_file_system(fd)
    return number


def begin_flush(fd: int, offset: int, size: int) -> None:
    """Start writing these bytes of a file out to the disk, and return at once: a hint, which only Linux takes.

    A size of 0 means up to the end of the file.
    """
    lib.wm_begin_flush(fd, offset, size)


def read_runs(fd: int, starts: NDArray[np.int64], length: int, target: NDArray[np.uint8], gap: int = 0) -> int:
    """Fill `target` with runs of `length` bytes of a file, which begin at `starts` in rising order.

    If a read from the disk is needed, runs less than `gap` bytes apart are read together with the gap, which is faster.
    Returns the number of bytes read. Raises OSError.
    """
    if len(target) != len(starts) * length or (len(starts) and starts[0] < 0):
        raise ValueError(f"{len(starts)} runs of {length} bytes do not fill {len(target)}")
    places = access.as_items("uint64_t[]", np.ascontiguousarray(starts, np.uint64))
    error = ffi.new("int *")
    got: int = lib.wm_read_runs(
        fd, ffi.cast("uint64_t *", places), len(starts), length, gap, access.as_output(target, "uint8_t[]"), error
    )
    if error[0]:
        raise OSError(error[0], os.strerror(error[0]))
    return got


# ----------------------------------------------------------------------------------------------------
# `Reader`: lets scans in C read a file without a descriptor through a function of Python.


class Reader:
    """A function that returns bytes of a file, for a scan in C.

    Parameters
    ----------
    pread : callable
        ``pread(offset, count)`` returns `count` bytes, or raises.

    Attributes
    ----------
    hook : tuple
        Function and context for the structure of a scan.
    """

    __slots__ = ("error", "hook", "pread")

    def __init__(self, pread: Callable[[int, int], bytes]) -> None:
        self.pread: Callable[[int, int], bytes] = pread
        self.error: BaseException | None = None
        self.hook: tuple[Any, Any] = (lib.wm_read_by_python, ffi.new_handle(self))

    def check(self) -> None:
        """Raise the exception that the function raised during the scan, if any."""
        error, self.error = self.error, None
        if error is not None:
            raise error


@ffi.def_extern(name="wm_read_by_python", error=-1)  # type: ignore[untyped-decorator]
def _read(context: Any, buffer: Any, count: int, at: int) -> int:
    reader = ffi.from_handle(context)
    try:
        data = reader.pread(at, count)
    except BaseException as error:  # noqa: BLE001 - raised again after the scan
        reader.error = error
        return -1
    ffi.memmove(buffer, data, len(data))
    return len(data)


# ----------------------------------------------------------------------------------------------------
# Comparison of two tensors of one type, in C.

# The types that `differing` knows, by their names, as the kernel numbers them.
COMPARED = {"float32": (0, 4), "float64": (1, 8), "float16": (2, 2), "bfloat16": (3, 2)}

# Bytes of each file that are compared at once: both pieces stay in the second-level cache.
_PIECE = 1 << 17


def differing(a: Buffer, b: Buffer, dtype: str) -> tuple[int, float, float]:
    """Return the number of elements of two equally long buffers whose bytes differ, and the size of the differences.

    Parameters
    ----------
    a, b : buffers
        Whole elements, little-endian, at any alignment.
    dtype : str
        A key of `COMPARED`.

    Returns
    -------
    count : int
    largest : float
        The largest absolute difference, in float64; NaN if any difference is NaN.
    squares : float
        The sum of the squares of the differences.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap.core.native.files import differing
    >>> differing(np.float32([1, 2, 3]), np.float32([1, 2.5, 3]), "float32")
    (1, 0.5, 0.25)
    """
    kind, size = COMPARED[dtype]
    first, right = from_buffer("uint8_t[]", a), from_buffer("uint8_t[]", b)
    if len(first) != len(right) or len(first) % size:
        raise ValueError("buffers of different sizes, or of parts of elements")
    measures = ffi.new("double[2]")
    count = lib.wm_differing(first, right, len(first) // size, kind, measures, measures + 1)
    return count, measures[0], measures[1]


class FileComparer:
    """Compares tensors of files, many in a call. Its buffers serve all calls.

    Parameters
    ----------
    threads : int
        At most this many share the work; fewer if there is too little to gain.
    """

    def __init__(self, threads: int) -> None:
        self._threads = access.thread_count(threads)
        self._room = access.aligned(2 * _PIECE * self._threads)

    def __call__(
        self, files: tuple[int, int], offsets: NDArray[np.int64], counts: NDArray[np.int64], dtype: str
    ) -> list[tuple[int, float, float]]:
        """Compare tensors that lie in two files, given by their descriptors.

        Parameters
        ----------
        files : tuple of int
        offsets : ndarray of int64, shape (2, n)
            The offset of each tensor in the first file and in the second.
        counts : ndarray of int64, shape (n,)
            The number of elements of each tensor: at least one.
        dtype : str
            A key of `COMPARED`.

        Returns
        -------
        list of (int, float, float)
            For each tensor the result of `differing`.

        Raises
        ------
        Failed
        """
        kind, width = COMPARED[dtype]
        piece = _PIECE // width
        pieces = (counts + (piece - 1)) // piece
        begins = np.cumsum(pieces) - pieces
        part = np.arange(int(pieces.sum()), dtype=np.int64) - np.repeat(begins, pieces)
        sizes = np.minimum(np.repeat(counts, pieces) - part * piece, piece)
        places = [np.repeat(offset, pieces) + part * _PIECE for offset in offsets]
        different, measures = np.empty(len(part), np.int64), np.empty((len(part), 2), np.float64)
        columns = [access.as_items("uint64_t[]", column) for column in (*places, sizes)]
        pairs = ffi.new("wm_pairs *", (*files, kind, *columns, len(part), _PIECE))
        outcome, buffer = ffi.new("wm_outcome *"), access.as_output(self._room, "uint8_t[]")
        out = access.as_output(different, "int64_t[]"), access.as_output(measures, "double[]")
        lib.wm_differing_files(pairs, *out, buffer, len(buffer), self._threads, outcome)
        access.check_outcome(outcome)
        return list(
            zip(
                np.add.reduceat(different, begins).tolist(),
                np.maximum.reduceat(measures[:, 0], begins).tolist(),
                np.add.reduceat(measures[:, 1], begins).tolist(),
                strict=True,
            )
        )


# ----------------------------------------------------------------------------------------------------
# Copying pieces of files to a staging buffer, in C and by several threads; memory on the node of a device.


def stage(
    source: int | NDArray[np.uint8],
    pieces: tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]],
    out: NDArray[np.uint8],
    *,
    crcs: NDArray[np.uint32] | None = None,
    threads: int = 1,
) -> tuple[int, int]:
    """Copy pieces of a file or of memory to a buffer.

    Parameters
    ----------
    source : int or ndarray of uint8
        The descriptor of a file, or bytes that stay in memory.
    pieces : three ndarrays of uint64, shape (n,)
        The offset of each piece in the source and in `out`, and its size.
    out : ndarray of uint8
    crcs : ndarray of uint32, shape (n,), optional
        Filled with the CRC-32 of each piece in `out`.
    threads : int

    Returns
    -------
    (int, int)
        -1 and 0 if all pieces were copied; else the number of a piece that failed, and an errno, or 0 if the file ends
        within it.

    Raises
    ------
    ValueError
        When columns have different lengths, or a piece does not lie within the source or `out`.
    """
    count = len(pieces[0])
    if any(len(column) != count for column in pieces) or (crcs is not None and len(crcs) != count):
        raise ValueError("the columns of pieces differ in length")
    columns = [access.as_items("uint64_t[]", column) for column in pieces]
    memory = ffi.NULL if isinstance(source, int) else access.as_input(source)
    room = access.as_output(out, "uint8_t[]")
    fd, size = (source, 0) if isinstance(source, int) else (-1, len(memory))
    staging = ffi.new("wm_staging *", (fd, memory, size, *columns, room, len(room)))
    sums = ffi.NULL if crcs is None else access.as_output(crcs, "uint32_t[]")
    error = ffi.new("int *")
    failed: int = lib.wm_stage(staging, count, sums, access.thread_count(threads), error)
    if error[0] < 0:
        raise ValueError(f"piece {failed} does not lie within its source or the buffer")
    return failed, error[0]


def prefer_node(memory: NDArray[np.uint8], node: int) -> int:
    """Bind memory to a NUMA node if possible, and move its used pages there. Returns 0, or an errno."""
    room = access.as_output(memory, "uint8_t[]")
    error: int = lib.wm_prefer_node(room, len(room), node)
    return error
