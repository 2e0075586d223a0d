"""`Reader`: a function of Python that scans in C read a file by, where no descriptor does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.native._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable


class Reader:
    """A function that returns bytes of a file, for a scan in C.

    Parameters
    ----------
    pread : callable
        ``pread(offset, count)`` returns so many bytes, or raises.

    Attributes
    ----------
    hook : tuple
        Function and context for the structure of a scan.
    """

    __slots__ = ("error", "hook", "pread")

    def __init__(self, pread: Callable[[int, int], bytes]) -> None:
        self.pread = pread
        self.error: BaseException | None = None
        self.hook = lib.wm_read_by_python, ffi.new_handle(self)

    def check(self) -> None:
        """Raise what the function raised during the scan."""
        error, self.error = self.error, None
        if error is not None:
            raise error


@ffi.def_extern(name="wm_read_by_python", error=-1)  # type: ignore[untyped-decorator]
def _read(context: Any, buffer: Any, count: int, at: int) -> int:
    reader = ffi.from_handle(context)
    try:
        data = reader.pread(at, count)
    except BaseException as error:  # noqa: BLE001 - raised again behind the scan
        reader.error = error
        return -1
    ffi.memmove(buffer, data, len(data))
    return len(data)
