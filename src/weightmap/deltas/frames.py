"""Frames of a delta: what changed in one tensor, decoded and encoded in blocks.

A frame of zstd holds one payload, all numbers little-endian:

* "xor": new ^ old, exactly as long as the tensor;
* "overwrite": ``u32 count | count x u32 position | count x u8 value``, positions in bytes, ascending.

Sizes that a frame declares are compared with the tensor's and never allocated. Memory is some blocks a frame, and its
window: at most 128 MiB, 512 KiB at the level that trainers use. Frames may lack their size and have any level. A
checksum of their own is not compared: that of the result is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.errors import DeltaError, quoted
from weightmap.io.buffers import room
from weightmap.model.tensor_sums import new_sum, package
from weightmap.native import late

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.io.source import Source
    from weightmap.native.late import Changes, Files

    # The blocks of the old and the new tensor, from the beginning; with `unread`, maybe of files, yet to be read.
    Blocks = Callable[..., Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], Files | None]]]

ENCODINGS = ("xor", "overwrite")
# Bytes of a tensor between decoding and writing: they stay in the L2 cache.
BLOCK = 1 << 19
# Bytes of a frame that are read at once.
_READ = 1 << 17
_WINDOW = 1 << 27
# Positions are 32 bits wide.
MOST = 1 << 32


class Frame(NamedTuple):
    """What a delta holds of one tensor.

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
    frames: Iterable[Frame], old: Iterable[NDArray[np.uint8]], nbytes: int, changes: Changes | None = None
) -> Iterator[NDArray[np.uint8]]:
    """Yield the new bytes of a tensor in blocks, each valid until the next one.

    The frames, one for each version, are decoded side by side, so the tensor is read once. Each result is compared with
    its checksum once all bytes were taken.

    Parameters
    ----------
    frames : iterable of Frame
        In the order of versions.
    old : iterable of ndarray of uint8, shape (bytes,)
        The bytes of the tensor before the first frame, in blocks of at most `BLOCK` bytes, which become the new ones.
    nbytes : int
    changes : Changes, optional
        Gets those of each block.

    Raises
    ------
    DeltaError
    """
    patches = [(_Xor if frame.encoding == "xor" else _Overwrite)(frame, nbytes) for frame in frames]
    at = 0
    for block in old:
        if changes is not None:
            changes.begin(block)
        for patch in patches:
            patch.apply(block, at, changes)
        at += len(block)
        yield block
    for patch in patches:
        patch.finish()


class _Decoder:
    """The payload of a frame, decoded piece by piece."""

    def __init__(self, frame: Frame, low: int, high: int, *, sparse: bool) -> None:
        """Open a frame whose payload has `low` to `high` bytes; `sparse` if most of them will be zero."""
        self._frame = frame
        header = late.frame_header(frame.source.pread(frame.offset, min(late.FRAME_HEAD, frame.nbytes)))
        if header is None:
            raise frame.error("its frame is not one of zstd without a dictionary")
        if header.size is not None and not low <= header.size <= high:
            expected = f"{low}" if low == high else f"{low} to {high}"
            raise frame.error("bytes that its frame declares", actual=header.size, expected=expected)
        if header.window > _WINDOW:
            raise frame.error("window of its frame", actual=header.window, expected=f"at most {_WINDOW} bytes")
        self.size = header.size
        begin, end = frame.offset + header.nbytes, frame.offset + frame.nbytes
        self._pieces = frame.source.ahead([(begin, end)]).chunks(begin, end - begin, _READ)
        self._decoder = late.FrameDecoder(header, high, room, sparse=sparse)

    def fill(self, out: NDArray[np.uint8], *, exclusive: bool = False, changes: Changes | None = None) -> None:
        """Decode the next bytes of the payload; with `exclusive`, XOR them to what is there."""
        made = self._decode(out, exclusive=exclusive, changes=changes)
        if made < len(out):
            raise self._frame.error(f"its frame ends early, {len(out) - made} bytes short")

    def _decode(self, out: NDArray[np.uint8], *, exclusive: bool, changes: Changes | None = None) -> int:
        done = 0
        while True:
            how, made = self._decoder.decode(out[done:] if done else out, exclusive=exclusive, changes=changes)
            done += made
            if how == late.FRAME_DAMAGED:
                raise self._frame.error("its frame is damaged")
            if how != late.FRAME_HUNGRY:
                return done
            piece = next(self._pieces, None)
            if piece is None:
                raise self._frame.error(f"its frame ends early, at least {len(out) - done} bytes short")
            self._decoder.feed(piece)

    def finish(self) -> None:
        """Require the end of the payload."""
        if self._decode(np.empty(1, np.uint8), exclusive=False):
            raise self._frame.error("its frame holds more than it should")


class _Patch:
    """A frame on its way through a tensor."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._sum = new_sum(frame.checksum)

    def apply(self, block: NDArray[np.uint8], at: int, changes: Changes | None) -> None:
        """Make the old bytes of the tensor from byte `at` on the new ones."""
        raise NotImplementedError

    def finish(self) -> None:
        """Require the end of the frame, and the checksum of the result."""
        found = self._sum.hexdigest()
        if found != self._frame.digest:
            what, expected = f"{self._frame.checksum} of the result", f"{self._frame.digest}, as the delta says"
            raise self._frame.error(what, field="checksum", actual=found, expected=expected)


class _Xor(_Patch):
    def __init__(self, frame: Frame, nbytes: int) -> None:
        super().__init__(frame)
        self._decoder = _Decoder(frame, nbytes, nbytes, sparse=True)

    def apply(self, block: NDArray[np.uint8], at: int, changes: Changes | None) -> None:  # noqa: ARG002 - in order
        self._decoder.fill(block, exclusive=True, changes=changes)
        self._sum.update(block)

    def finish(self) -> None:
        self._decoder.finish()
        super().finish()


class _Overwrite(_Patch):
    """Positions and values, which lie one behind the other: the frame is decoded twice, at two places."""

    def __init__(self, frame: Frame, nbytes: int) -> None:
        super().__init__(frame)
        self._nbytes = nbytes
        high = 4 + 5 * nbytes
        self._places, self._values = (_Decoder(frame, 4, high, sparse=False) for _ in range(2))
        head = np.empty(4, np.uint8)
        self._places.fill(head)
        self._left = count = int(head.view("<u4")[0])
        declared = self._places.size
        if count > nbytes or declared not in (None, 4 + 5 * count):
            most = nbytes if declared is None else min(nbytes, (declared - 4) // 5)
            raise frame.error("number of changed bytes", field="count", actual=count, expected=f"at most {most}")
        self._known = np.empty(0, np.int64)
        self._last = -1
        room = np.empty(BLOCK, np.uint8)
        for start in range(0, 4 + 4 * count, BLOCK):
            self._values.fill(room[: min(BLOCK, 4 + 4 * count - start)])

    def apply(self, block: NDArray[np.uint8], at: int, changes: Changes | None) -> None:
        end = at + len(block)
        while True:
            if not len(self._known):
                if not self._left:
                    break
                self._read_places()
            count = int(np.searchsorted(self._known, end))
            values = np.empty(count, np.uint8)
            self._values.fill(values)
            places = self._known[:count] - at
            block[places] = values
            if changes is not None:
                changes.add(places, values)
            self._known = self._known[count:]
            if len(self._known):
                break
        self._sum.update(block)

    def _read_places(self) -> None:
        """Decode the next positions."""
        count = min(self._left, BLOCK // 4)
        raw = np.empty(4 * count, np.uint8)
        self._places.fill(raw)
        known = raw.view("<u4").astype(np.int64)
        if known[0] <= self._last or bool((known[1:] <= known[:-1]).any()):
            raise self._frame.error("positions of changed bytes are not in rising order", field="positions")
        self._last = int(known[-1])
        if self._last >= self._nbytes:
            expected = f"less than {self._nbytes}, the bytes of the tensor"
            raise self._frame.error("a position", field="positions", actual=self._last, expected=expected)
        self._known, self._left = known, self._left - count

    def finish(self) -> None:
        if self._left or len(self._known):  # of a tensor without bytes
            raise self._frame.error("a position lies outside of the tensor", field="positions")
        self._values.finish()
        super().finish()


# ------------------------------------------------------------------------------------------------------ encoding
def encoded(blocks: Blocks, nbytes: int, encoding: str, level: int) -> Iterator[Any]:
    """Yield the frame of a tensor in pieces, each valid until the next one; None where it begins anew.

    Parameters
    ----------
    blocks : callable
        Returns an iterator of pairs of blocks, old and new, of at most `BLOCK` bytes; called up to twice for "xor",
        three times for "overwrite".
    nbytes : int
        Bytes of the tensor.
    encoding : str
    level : int
        Of zstd. At level 1 differences are encoded here, unless there are too many: zstd looks for what is known.
    """
    zstd = package("zstandard")  # asked for whether or not these tensors need it
    pieces: Iterator[Any]
    if encoding == "xor":
        if level == 1 and (yield from _sparse(blocks, nbytes)):
            return
        pieces, size = _differences(blocks, nbytes), nbytes
    else:
        count = sum(int(np.count_nonzero(old != new)) for old, new, _ in blocks())
        pieces, size = _changes(blocks, count), 4 + 5 * count
    packer = zstd.ZstdCompressor(level=level).compressobj(size=size)
    for piece in pieces:
        packed = packer.compress(piece)
        if packed:
            yield packed
    yield packer.flush()


def _sparse(blocks: Blocks, nbytes: int) -> Generator[memoryview | bytes | None, None, bool]:
    """Yield a frame of few differences; return whether they were few."""
    encoder = late.FrameEncoder(nbytes, min(BLOCK, nbytes), room)
    yield encoder.header
    for old, new, files in blocks(unread=True):
        piece = encoder.encode(old, new, files)
        yield piece
        if piece is None:
            return False
    return True


def _differences(blocks: Blocks, nbytes: int) -> Iterator[NDArray[np.uint8]]:
    block = np.empty(min(BLOCK, nbytes), np.uint8)
    for old, new, _ in blocks():
        yield np.bitwise_xor(old, new, out=block[: len(new)])


def _changes(blocks: Blocks, count: int) -> Iterator[bytes]:
    yield count.to_bytes(4, "little")
    at = 0
    for old, new, _ in blocks():
        yield (np.flatnonzero(old != new) + at).astype("<u4").tobytes()
        at += len(old)
    for old, new, _ in blocks():
        yield new[old != new].tobytes()
