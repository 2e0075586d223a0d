"""Reading past the page cache: O_DIRECT where the file system has it, else pages are given back after each read."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np

from weightmap.kernels import take_ownership

if TYPE_CHECKING:
    from weightmap.io.source import Source
    from weightmap.kernels import Descriptor

# O_DIRECT wants offsets, sizes and addresses that are multiples of the device's block; no device has larger ones.
ALIGN = 4096
# What file systems without O_DIRECT answer, and systems without /proc.
_LACKING = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT, errno.EACCES, errno.EPERM)


class DirectReader:
    """Reads the bytes of a source into memory of the caller, and leaves none of them in the page cache.

    It never touches a mapping: a file that was cut off is an error and no fault. Many threads may use it at once.

    Parameters
    ----------
    source : Source
    direct : bool
        Whether to read past the page cache. Sources that are in memory or in a store are read as they are.
    """

    def __init__(self, source: Source, *, direct: bool = True) -> None:
        self._source = source
        self._file: Descriptor | None = None
        self._drops = False
        if not direct or source.in_memory or not source.has_pages or source.store is not None:
            return
        flag = getattr(os, "O_DIRECT", None)
        try:
            if flag is not None:
                # By its descriptor: another file may have taken the path.
                self._file = take_ownership(os.open, f"/proc/self/fd/{int(source.descriptor)}", os.O_RDONLY | flag)
        except OSError as error:
            if error.errno not in _LACKING:
                raise
        self._drops = self._file is None

    def window(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range to read for these bytes: it begins and ends at multiples of `ALIGN`."""
        return begin // ALIGN * ALIGN, -(-end // ALIGN) * ALIGN

    def read(self, at: int, end: int, memory: memoryview) -> None:
        """Read a window, which begins at `at`, of which the bytes before `end` are wanted.

        Parameters
        ----------
        at, end : int
        memory : memoryview
            As large as the window, and aligned like it.

        Raises
        ------
        FileChangedError, TruncatedError, ClosedError, OSError
        """
        source, file, got = self._source, self._file, 0
        source.check_unchanged()
        while file is not None and at + got < end:
            try:
                more = os.preadv(file, [memory[got:]], at + got)
            except OSError as error:
                if error.errno not in _LACKING:
                    source.fail_reading(at + got, end, error.errno or 0)
                file = self._file = None
                self._drops = True
                break
            got += more
            if more == 0 or (got % ALIGN and at + got < end):
                source.fail_reading(at + got, end, 0)
        if at + got < end:
            source.read_into(at + got, np.frombuffer(memory[got : end - at], np.uint8))
        if self._drops and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(source.descriptor, at, len(memory), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close its descriptor."""
        self._file = None
