"""Frames of a delta: the changes of one tensor, decoded and encoded in blocks.

A zstd frame holds one payload, with little-endian numbers:

* "xor": new ^ old, exactly as long as the tensor;
* "overwrite": ``u32 count | count x u32 position | count x u8 value``, positions in bytes, ascending.

Sizes that a frame declares are compared with the tensor's size and never allocated. A frame takes the memory of some
blocks, and of its window: at most 128 MiB, and 512 KiB at the level that trainers use. Frames may lack their size and
have any level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes import Range
from weightmap.core.model.listing import new_sum, package
from weightmap.errors import DeltaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source

    # The blocks of the old and the new tensor, from the beginning.
    Blocks = Callable[[], Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]]

ENCODINGS = ("xor", "overwrite")
# Bytes of a tensor between decoding and writing, which stay in the L2 cache.
BLOCK = 1 << 19
# Bytes of a frame to read at once, and the most bytes of its header.
_READ, _HEAD = 1 << 17, 18
_WINDOW = 1 << 27
# Frames that are decoded side by side in all threads: each takes 1.7 MiB at the level that trainers use.
AT_ONCE = 36
# Positions are 32 bits wide.
MAX_POSITIONS = 1 << 32


class Frame(NamedTuple):
    """A delta's changes of one tensor.

    Attributes
    ----------
    name : str
        Of the tensor.
    source, offset, nbytes
        The place of the frame.
    encoding : str
        One of `ENCODINGS`.
    checksum, digest : str
        One of `CHECKSUMS`, and its hexadecimal digits for the whole new tensor.
    """

    name: str
    source: Source
    offset: int
    nbytes: int
    encoding: str
    checksum: str
    digest: str

    def error(self, what: str, *, field: str = "frame", actual: Any = None, expected: Any = None) -> DeltaError:
        """Return an error about this tensor."""
        error = DeltaError(f"tensor {quoted(self.name)}: {what}", field=field, actual=actual, expected=expected)
        error.path, error.offset = self.source.name, self.offset
        return error


def patched(
    frames: Iterable[Frame],
    old: Iterable[NDArray[np.uint8]],
    nbytes: int,
    before: NDArray[np.uint8] | None = None,
) -> Iterator[NDArray[np.uint8]]:
    """Yield the new bytes of a tensor in blocks, each valid until the next one.

    The frames, one for each version, are decoded side by side, so that the tensor is read once. Each result is compared
    with its checksum after its last byte.

    Parameters
    ----------
    frames : iterable of Frame
        In the order of versions.
    old : iterable of ndarray of uint8, shape (bytes,)
        The bytes of the tensor before the first frame, in blocks of at most `BLOCK` bytes, which are overwritten with
        the new bytes.
    nbytes : int
    before : ndarray of uint8, shape (BLOCK,), optional
        Gets the old bytes of each block.

    Raises
    ------
    DeltaError
    """
    patches = [(_Xor if frame.encoding == "xor" else _Overwrite)(frame, nbytes) for frame in frames]
    at = 0
    for block in old:
        if before is not None:
            before[: len(block)] = block
        for patch in patches:
            patch.apply(block, at)
        at += len(block)
        yield block
    for patch in patches:
        patch.finish()


class _Stored:
    """The bytes of a frame, as the file that zstd reads."""

    def __init__(self, frame: Frame) -> None:
        begin, end = frame.offset, frame.offset + frame.nbytes
        self._pieces = frame.source.ahead([Range(begin, end)]).chunks(begin, end - begin, _READ)

    def read(self, _: int) -> bytes:
        """Return the next piece; nothing at the end."""
        return bytes(next(self._pieces, b""))


class _Decoder:
    """The payload of a frame, decoded piece by piece."""

    def __init__(self, frame: Frame, low: int, high: int) -> None:
        """Open a frame whose payload has `low` to `high` bytes."""
        self._frame, self._zstd = frame, package("zstandard")
        head = frame.source.pread(frame.offset, min(_HEAD, frame.nbytes))
        try:
            header = self._zstd.get_frame_parameters(head)
        except self._zstd.ZstdError:
            header = None
        if header is None or header.dict_id or bytes(head[:4]) != self._zstd.FRAME_HEADER:
            raise frame.error("its frame is not zstd without a dictionary")
        self.size: int | None = header.content_size
        if self.size == self._zstd.CONTENTSIZE_UNKNOWN:
            self.size = None
        elif not low <= header.content_size <= high:
            expected = f"{low}" if low == high else f"{low} to {high}"
            raise frame.error("bytes that its frame declares", actual=self.size, expected=expected)
        if header.window_size > _WINDOW:
            raise frame.error("window of its frame", actual=header.window_size, expected=f"at most {_WINDOW} bytes")
        self._reader = self._zstd.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(_Stored(frame))

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Decode the next bytes of the payload."""
        done = self._decode(out)
        if done < len(out):
            raise self._frame.error(f"its frame ends early, at least {len(out) - done} bytes short")

    def _decode(self, out: NDArray[np.uint8]) -> int:
        done = 0
        try:
            while done < len(out) and (count := self._reader.readinto(out[done:])):
                done += count
        except self._zstd.ZstdError as error:
            raise self._frame.error(f"its frame is damaged: {error}") from None
        return done

    def finish(self) -> None:
        """Require the end of the payload."""
        if self._decode(np.empty(1, np.uint8)):
            raise self._frame.error("its frame holds more than it should")


class _Patch:
    """A frame on its way through a tensor."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._sum = new_sum(frame.checksum)

    def apply(self, block: NDArray[np.uint8], at: int) -> None:
        """Turn old bytes of the tensor, from byte `at` on, into new ones."""
        raise NotImplementedError

    def finish(self) -> None:
        """Require the end of the frame, and the checksum of the result."""
        digest = self._sum.hexdigest()
        if digest != self._frame.digest:
            what, expected = f"{self._frame.checksum} of the result", f"{self._frame.digest}, as the delta says"
            raise self._frame.error(what, field="checksum", actual=digest, expected=expected)


class _Xor(_Patch):
    def __init__(self, frame: Frame, nbytes: int) -> None:
        super().__init__(frame)
        self._decoder = _Decoder(frame, nbytes, nbytes)
        self._room = np.empty(min(BLOCK, nbytes), np.uint8)

    def apply(self, block: NDArray[np.uint8], at: int) -> None:  # noqa: ARG002 - in order
        difference = self._room[: len(block)]
        self._decoder.fill(difference)
        np.bitwise_xor(block, difference, out=block)
        self._sum.update(block)

    def finish(self) -> None:
        self._decoder.finish()
        super().finish()


class _Overwrite(_Patch):
    """Positions, followed by values: the frame is decoded twice at once, at two places."""

    def __init__(self, frame: Frame, nbytes: int) -> None:
        super().__init__(frame)
        self._nbytes = nbytes
        high = 4 + 5 * nbytes
        self._places, self._values = (_Decoder(frame, 4, high) for _ in range(2))
        head = np.empty(4, np.uint8)
        self._places.fill(head)
        self._pending = count = int(head.view("<u4")[0])
        declared = self._places.size
        if count > nbytes or declared not in (None, 4 + 5 * count):
            limit = nbytes if declared is None else min(nbytes, (declared - 4) // 5)
            raise frame.error("number of changed bytes", field="count", actual=count, expected=f"at most {limit}")
        self._positions = np.empty(0, np.int64)
        self._last = -1
        room = np.empty(BLOCK, np.uint8)
        for start in range(0, 4 + 4 * count, BLOCK):
            self._values.fill(room[: min(BLOCK, 4 + 4 * count - start)])

    def apply(self, block: NDArray[np.uint8], at: int) -> None:
        end = at + len(block)
        while len(self._positions) or self._pending:
            if not len(self._positions):
                self._read_places()
            count = int(np.searchsorted(self._positions, end))
            values = np.empty(count, np.uint8)
            self._values.fill(values)
            block[self._positions[:count] - at] = values
            self._positions = self._positions[count:]
            if len(self._positions):
                break
        self._sum.update(block)

    def _read_places(self) -> None:
        """Decode the next positions."""
        count = min(self._pending, BLOCK // 4)
        raw = np.empty(4 * count, np.uint8)
        self._places.fill(raw)
        positions = raw.view("<u4").astype(np.int64)
        if positions[0] <= self._last or bool((positions[1:] <= positions[:-1]).any()):
            raise self._frame.error("positions of changed bytes are not in rising order", field="positions")
        self._last = int(positions[-1])
        if self._last >= self._nbytes:
            expected = f"less than {self._nbytes}, the bytes of the tensor"
            raise self._frame.error("a position", field="positions", actual=self._last, expected=expected)
        self._positions, self._pending = positions, self._pending - count

    def finish(self) -> None:
        if self._pending or len(self._positions):  # for a tensor without bytes
            raise self._frame.error("a position lies outside of the tensor", field="positions")
        self._values.finish()
        super().finish()


# ------------------------------------------------------------------------------------------------------ encoding
def encoded(blocks: Blocks, nbytes: int, encoding: str, level: int) -> Iterator[bytes]:
    """Yield the frame of a tensor in pieces.

    Parameters
    ----------
    blocks : callable
        Returns an iterator over pairs of old and new blocks of at most `BLOCK` bytes; called once for "xor", three
        times for "overwrite".
    nbytes : int
        Bytes of the tensor.
    encoding : str
    level : int
        Level of zstd.
    """
    pieces: Iterator[Any]
    if encoding == "xor":
        pieces, size = _differences(blocks, nbytes), nbytes
    else:
        count = sum(int(np.count_nonzero(old != new)) for old, new in blocks())
        pieces, size = _changes(blocks, count), 4 + 5 * count
    packer = package("zstandard").ZstdCompressor(level=level).compressobj(size=size)
    for piece in pieces:
        packed = packer.compress(piece)
        if packed:
            yield packed
    yield packer.flush()


def _differences(blocks: Blocks, nbytes: int) -> Iterator[NDArray[np.uint8]]:
    block = np.empty(min(BLOCK, nbytes), np.uint8)
    for old, new in blocks():
        yield np.bitwise_xor(old, new, out=block[: len(new)])


def _changes(blocks: Blocks, count: int) -> Iterator[bytes]:
    yield count.to_bytes(4, "little")
    at = 0
    for old, new in blocks():
        yield (np.flatnonzero(old != new) + at).astype("<u4").tobytes()
        at += len(old)
    for old, new in blocks():
        yield new[old != new].tobytes()
