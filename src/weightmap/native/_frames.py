"""Frames of zstd, decoded and encoded block by block: csrc/zstd.c, csrc/zstd_encode.c."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.native._native import as_input, ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightmap.native._native import Buffer

    # Two open files, and where in each its bytes begin.
    Files = tuple[int, int, int, int]

# Most bytes of a header.
FRAME_HEAD = 18
# How `FrameDecoder.decode` ends: with `out` full; without the whole of the next block; at the end of the frame.
FRAME_FULL: int = lib.WM_FRAME_FULL
FRAME_HUNGRY: int = lib.WM_FRAME_HUNGRY
FRAME_ENDED: int = lib.WM_FRAME_ENDED
FRAME_DAMAGED: int = lib.WM_FRAME_DAMAGED
_UNKNOWN = (1 << 64) - 1


# Magic number, a size of eight bytes, and a window of 128 KiB.
_HEADER = struct.Struct("<IBBQ")
_MAGIC, _FORM, _WINDOW = 0xFD2FB528, 0xC0, 0x38
_BLOCK = 1 << 17


class FrameHeader(NamedTuple):
    """What a frame says of itself: bytes of its payload if it does, those that a match may go back, of its header."""

    size: int | None
    window: int
    nbytes: int


def frame_header(data: Buffer) -> FrameHeader | None:
    """Read the header of a frame, up to `FRAME_HEAD` bytes; None where none begins, or one that needs a dictionary."""
    buffer, found = as_input(data), ffi.new("wm_frame *")
    if not lib.wm_frame_header(buffer, len(buffer), found):
        return None
    return FrameHeader(None if found.size == _UNKNOWN else found.size, found.window, found.header)


class FrameDecoder:
    """The blocks of a frame.

    Parameters
    ----------
    header : FrameHeader
    most : int
        Bytes of the payload that will be asked for: no more of its window are kept.
    new_room : callable
        Returns memory of so many bytes, aligned to eight.
    sparse : bool
        Most bytes of the payload will be zero.
    """

    def __init__(self, header: FrameHeader, most: int, new_room: Callable[[int], memoryview], *, sparse: bool) -> None:
        window = min(header.window, most)
        self._memory = as_input(new_room(lib.wm_frame_room(window)))
        self._counts = ffi.new("uint64_t[2]")
        self._data, self._at = b"", 0
        self._given = from_buffer("uint8_t[]", self._data)
        lib.wm_frame_begin(self._memory, window, header.window, sparse)

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the frame, behind its header."""
        self._data, self._at = self._data[self._at :] + data, 0
        self._given = from_buffer("uint8_t[]", self._data)

    def decode(self, out: NDArray[np.uint8], *, exclusive: bool, changes: Changes | None = None) -> tuple[int, int]:
        """Decode the next bytes of the payload; with `exclusive`, XOR them to what is there, which is listed.

        Returns how it ended, and the bytes made.
        """
        at, target, counts = self._at, from_buffer("uint8_t[]", out, require_writable=True), self._counts
        left, size = len(self._data) - at, len(target)
        how: int = lib.wm_frame_decode(
            self._memory,
            self._given + at,
            left,
            target,
            size,
            exclusive,
            counts,
            counts + 1,
            ffi.NULL if changes is None else changes.found,
        )
        self._at = at + counts[0]
        return how, counts[1]


class Changes:
    """The bytes of a block that changed, in the order in which they did.

    Parameters
    ----------
    most : int
        Changes that may be listed.

    Attributes
    ----------
    found : wm_changes *
        What C adds to: bytes of the block from `begin` on.
    """

    def __init__(self, most: int) -> None:
        self._list = np.empty(most, np.uint32)
        self._memory = from_buffer("uint32_t[]", self._list)
        self.found: Any = ffi.new("wm_changes *", {"list": self._memory, "most": most})

    def begin(self, block: NDArray[np.uint8]) -> None:
        """Begin with a block, of at most 16 MiB, which is kept."""
        self._block = from_buffer("uint8_t[]", block)
        self.found.block, self.found.count = self._block, 0

    def add(self, places: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
        """Add bytes at their places in the block."""
        at, end = self.found.count, self.found.count + len(places)
        if end <= len(self._list):
            self._list[at:end] = places << 8 | values
        self.found.count = end

    def listed(self) -> NDArray[np.uint32] | None:
        """Return ``place << 8 | value`` of each, until `begin`; None if there are too many."""
        count = self.found.count
        return self._list[:count] if count <= len(self._list) else None


def change(block: Buffer, listed: Buffer) -> bool:
    """Make changes that `Changes.listed` gave; return whether all of them lie in the block."""
    target, given = from_buffer("uint8_t[]", block, require_writable=True), from_buffer("uint32_t[]", listed)
    return bool(lib.wm_change(target, len(target), given, len(given)))


class FrameEncoder:
    """The frame of what differs between two payloads of one size, by XOR; few bytes do.

    Parameters
    ----------
    nbytes : int
        Of each payload.
    most : int
        Bytes that are given at once.
    new_room : callable
        Returns memory of so many bytes, aligned to eight.
    """

    def __init__(self, nbytes: int, most: int, new_room: Callable[[int], memoryview]) -> None:
        self.header: bytes = _HEADER.pack(_MAGIC, _FORM, _WINDOW, nbytes)
        self._left = nbytes
        self._room = as_input(new_room(lib.wm_frame_encode_room()))
        self._out = new_room(most + 3 * (most // _BLOCK + 1))
        self._target = from_buffer("uint8_t[]", self._out)

    def encode(self, before: Buffer, after: Buffer, files: Files | None = None) -> memoryview | None:
        """Return the next blocks, valid until the next call; None where so many bytes differ that zstd is better.

        With `files`, `after` is filled with the bytes of the second one, and `before` is room for a block of the first
        one. None also where they cannot be read.
        """
        n = len(after)
        self._left -= n
        given = from_buffer("uint8_t[]", before), from_buffer("uint8_t[]", after), n, self._left == 0, self._target
        if files is None:
            made: int = lib.wm_frame_encode(self._room, *given)
        else:
            made = lib.wm_frame_encode_files(self._room, ffi.new("wm_two_files *", files), *given)
        return self._out[:made] if made else None
