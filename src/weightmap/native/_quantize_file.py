"""Quantising in C from a file to a buffer, while what was quantised before is written to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.native._blocks import scale_code
from weightmap.native._differ import COMPARED
from weightmap.native._native import NULL, as_input, as_output, ffi, lib, thread_count
from weightmap.native._outcome import check_outcome, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Unwritten(NamedTuple):
    """Bytes to be written to a file, at an offset; `flush` lets the disk begin with them at once."""

    fd: int
    data: memoryview
    offset: int
    flush: bool


class BlockEncoder:
    """Quantises numbers of any tensor to blocks of one kind. Its buffers serve all calls.

    Parameters
    ----------
    ggml : int
        The number of a type of ggml's blocks; -1 for blocks of integers:
    bits, block_size, scale_type
        As for `encode_blocks`.
    threads : int
        At most this many share the work.
    room : callable
        Makes the memory to work in, by its bytes.
    """

    def __init__(
        self,
        ggml: int,
        *,
        bits: int = 4,
        block_size: int = 32,
        scale_type: str = "fp16",
        threads: int = 1,
        room: Callable[[int], memoryview | bytearray] = bytearray,
    ) -> None:
        self._make = room
        self._blocks = ffi.new("wm_blocks *", (ggml, bits, scale_code(scale_type), block_size))
        self._numbers, self._outcome = ffi.new("wm_numbers *"), ffi.new("wm_outcome *")
        self._pieces = ffi.new("uint64_t *")
        self._threads = thread_count(threads)
        self._room, self._sums = np.empty(0, np.uint8), np.empty(0, np.float64)

    def __call__(
        self,
        source: int | NDArray[np.uint8],
        at: int,
        dtype: str,
        count: int,
        out: memoryview,
        earlier: Unwritten | None = None,
    ) -> tuple[float, float]:
        """Fill `out` with the blocks of `count` numbers that lie from byte `at` of a file or of memory on.

        Parameters
        ----------
        source : int or ndarray of uint8
            The descriptor of a file, or bytes that nobody can take away.
        at : int
        dtype : str
            A key of `COMPARED`.
        count : int
        out : memoryview
            Exactly the bytes of the blocks.
        earlier : Unwritten, optional
            Written meanwhile.

        Returns
        -------
        (float, float)
            The sums of the squared errors and of the squares.

        Raises
        ------
        Failed
        """
        numbers, pieces = self._numbers, self._pieces
        numbers.fd, memory, numbers.size = place_of(source)
        numbers.memory, numbers.at = memory, at
        numbers.kind, numbers.n = COMPARED[dtype][0], count
        each = lib.wm_quantize_room(numbers, self._blocks, pieces)
        wanted = min(self._threads, max(pieces[0], 1)) * each
        if self._room.size < wanted:
            self._room = np.frombuffer(self._make(wanted), np.uint8)
        if self._sums.size < 2 * pieces[0]:
            self._sums = np.empty(2 * pieces[0], np.float64)
        sums, room = self._sums[: 2 * pieces[0]], self._room
        target: Any = as_output(np.frombuffer(out, np.uint8), "uint8_t[]") if len(out) else NULL
        before = NULL
        if earlier is not None:
            data = as_input(earlier.data)
            before = ffi.new("wm_unwritten *", (earlier.fd, data, len(data), earlier.offset, earlier.flush))
        lib.wm_quantize_numbers(
            numbers,
            self._blocks,
            target,
            len(out),
            as_output(sums, "double[]"),
            sums.size,
            as_output(room, "uint8_t[]"),
            room.size,
            before,
            self._threads,
            self._outcome,
        )
        check_outcome(self._outcome)
        error, square = sums.reshape(-1, 2).sum(axis=0).tolist() if pieces[0] else (0.0, 0.0)
        return error, square
