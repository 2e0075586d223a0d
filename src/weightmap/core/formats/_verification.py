"""The state of one `TensorFile.verify`, which formats fill."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightmap._messages import counted
from weightmap.core.bytes import Range
from weightmap.core.native import access, checksums
from weightmap.core.table.vocabulary import Vocabulary, strings_of
from weightmap.errors import ChecksumError, LayoutError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source

_AT_ONCE = 1 << 26  # bytes between reports of progress: some milliseconds
_NO_GAPS = np.empty((0, 2), np.uint64)


class Sum(NamedTuple):
    """A CRC-32 that a file stores of some of its bytes.

    Attributes
    ----------
    offset, nbytes : int
        The bytes that it covers.
    crc : int
        The stored value.
    what, field : str
        Its name in messages, such as "CRC-32 of the tensor data", and the field of the format.
    at : int
        Offset of the stored value.
    """

    offset: int
    nbytes: int
    crc: int
    what: str
    field: str
    at: int

    def check(self, crc: int) -> None:
        """Raise `ChecksumError` unless the bytes have the checksum that is stored."""
        if self.crc != crc:
            what, actual = f"stored {self.what}", f"{self.crc:#010x}"
            expected = f"{crc:#010x}, computed from its bytes: they have changed since they were written"
            raise ChecksumError(what, field=self.field, offset=self.at, actual=actual, expected=expected)


class Verification:
    """A run of `TensorFile.verify`: reads each byte once, by pread, and collects checks and warnings.

    Attributes
    ----------
    source : Source
        The file whose bytes are read: the first one, until `turn`.
    threads : int or None
        The most threads that share the reading; None: one for each CPU.
    position : int
        Offset after the bytes read so far: a format reads them in file order.
    total : int
        Bytes of all files.
    reasons : list of (str or None), optional
        For a sharded model, the reason of each shard: see `VerifyReport.structure_only`.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        options: Options,
        progress: Callable[[int, int], None] | None,
        threads: int | None = None,
    ) -> None:
        self._others = list(sources[1:])
        self.total: int = sum(source.size for source in sources)
        self.reasons: list[str | None] | None = None
        self.turn(sources[0])
        self.options = options
        self.checks: list[str] = []
        self.warnings: list[str] = []
        self.done: int = 0
        self.threads = threads
        self._progress = progress
        self._sums = checksums.PartSummer(access.cpus() if threads is None else threads)
        self.reached(0)

    def turn(self, source: Source) -> None:
        """Continue with another file, from its beginning."""
        self.source: Source = source.ahead([Range(0, source.size)]) if source.size else source
        self.position: int = 0
        if source in self._others:
            self._others.remove(source)

    def reached(self, done: int) -> None:
        """Note and report that `done` bytes have been read."""
        self.done = done
        if self._progress is not None:
            self._progress(done, self.total)

    def onwards(self) -> Callable[[int, int], None]:
        """Return a `progress` for verifying a part, which adds its bytes to the bytes read so far."""
        start = self.done
        return lambda done, _: self.reached(start + done)

    def checked(self, what: str) -> None:
        """Record that `what` was checked."""
        self.checks.append(what)

    def warn(self, what: str) -> None:
        """Record a legal oddity."""
        self.warnings.append(what)

    def read(self, offset: int, count: int) -> bytes:
        """Return bytes as a private copy. The caller bounds `count`."""
        data = self.source.pread(offset, count)
        self.position = max(self.position, offset + count)
        self.reached(self.done + count)
        return data

    def crc32(self, offset: int, count: int, gaps: NDArray[np.uint64] = _NO_GAPS) -> tuple[int, list[int]]:
        """Return the CRC-32 of bytes, and the numbers of the gaps that contain a byte other than 0.

        `gaps` has the begin and end of ranges of padding in the file, in rising order and disjoint.
        """
        crc, filled, source = 0, np.zeros(len(gaps), np.bool_), self.source.c_random_input
        if source is None:
            at = offset
            for piece in self.chunks(offset, count):
                crc = checksums.crc32(piece, crc)
                begins, ends = gaps[:, 0], gaps[:, 1]
                for i in range(int(np.searchsorted(ends, at, "right")), int(np.searchsorted(begins, at + len(piece)))):
                    filled[i] |= any(piece[max(int(begins[i]) - at, 0) : int(ends[i]) - at])
                at += len(piece)
            return crc, np.flatnonzero(filled).tolist()
        for at in range(offset, offset + count, _AT_ONCE):
            size = min(_AT_ONCE, offset + count - at)
            try:
                crc, gap_faults = self._sums(source, at, size, crc, gaps)
            except access.Failed as failed:
                self.source.fail_reading(failed.at, offset + count, failed.error)
            filled |= gap_faults
            self.reached(self.done + size)
        self.position = max(self.position, offset + count)
        return crc, np.flatnonzero(filled).tolist()

    def chunks(self, offset: int, count: int) -> Iterator[memoryview]:
        """Yield bytes in pieces; each is valid until the next one."""
        for piece in self.source.chunks(offset, count):
            yield piece
            self.reached(self.done + len(piece))
        self.position = max(self.position, offset + count)

    def until(self, end: int) -> None:
        """Read on to `end`, to show that the bytes are readable; hashing has already read a trusted file."""
        nbytes = max(end - self.position, 0)  # tensors often adjoin
        if nbytes and self.source.trust is None:
            self.crc32(self.position, nbytes)
        elif nbytes:
            self.position = end
            self.reached(self.done + nbytes)

    def finish(self) -> None:
        """Read on to the end of the file, and read its side files; record that every byte is readable."""
        self.until(self.source.size)
        while self._others:
            self.turn(self._others[0])
            self.until(self.source.size)
        self.checked("every byte is readable")

    def unchanged(self, data: bytes, crc: int, what: str) -> None:
        """Refuse `data` unless its CRC-32 is `crc`, which `what` had at opening."""
        if checksums.crc32(data) != crc:
            raise LayoutError(f"{what} changed after the file was opened", offset=0)

    def vocabulary(self, vocab: Vocabulary) -> None:
        """Check that tokens are UTF-8; warn of repeated tokens, and of special ids without a token."""
        table = strings_of(vocab)
        bad = table.not_utf8()
        if bad >= 0:
            table[bad]  # raises the error for this token
        repeated, duplicate, original = table.duplicates()
        if repeated:
            first = f"the first is {table[duplicate]!r} (ids {original} and {duplicate})"
            self.warn(f"the vocabulary has {counted(repeated, 'repeated token')}: {first}")
        outside = [f"{name} {i}" for name, i in vocab.special_ids.items() if not 0 <= i < len(vocab)]
        if outside:
            self.warn(f"special ids are not below the number of tokens, {len(vocab)}: {', '.join(outside)}")
        self.checked("vocabulary")

    def tolerate(self, error: TensorFileError) -> None:
        """Raise `error` in strict mode; otherwise record it as a warning."""
        self.options.tolerate(error, self.warnings)
