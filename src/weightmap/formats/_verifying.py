"""A run of `TensorFile.verify`, as formats see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightmap.errors import TensorFileError
    from weightmap.formats._base import Options
    from weightmap.io.source import Source

__all__ = ["Verification"]


class Verification:
    """A run of `TensorFile.verify`: reads bytes once, by pread, and collects what was checked and what is odd."""

    def __init__(self, source: Source, options: Options, progress: Callable[[int, int], None] | None) -> None:
        self.source = source
        self.options = options
        self.checks: list[str] = []
        self.warnings: list[str] = []
        self.done = 0
        self._progress = progress
        self._report(0)

    def _report(self, count: int) -> None:
        self.done += count
        if self._progress is not None:
            self._progress(self.done, self.source.size)

    def checked(self, what: str) -> None:
        """Note that `what` was checked."""
        self.checks.append(what)

    def warn(self, what: str) -> None:
        """Note something that is odd but legal."""
        self.warnings.append(what)

    def read(self, offset: int, count: int) -> bytes:
        """Return bytes as a private copy. Bounded by the caller."""
        data = self.source.pread(offset, count)
        self._report(count)
        return data

    def chunks(self, offset: int, count: int) -> Iterator[memoryview]:
        """Yield the bytes in pieces that are valid until the next one."""
        for piece in self.source.chunks(offset, count):
            yield piece
            self._report(len(piece))

    def odd(self, error: TensorFileError) -> None:
        """Raise `error` in strict mode, else note it as a warning."""
        self.options.odd(error, self.warnings)
