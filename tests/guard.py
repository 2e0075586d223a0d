"""Buffers flush against an inaccessible page: a read one byte too far is a segmentation fault.

A sanitiser sees only code that it was compiled into, and not the padding of numpy's allocations; memory protection
sees every access of every kernel, at no cost.
"""

import ctypes
import mmap
import sys

PAGE = mmap.PAGESIZE
PROT_NONE = 0
AVAILABLE = sys.platform != "win32"


def guarded(data: bytes | bytearray | memoryview, *, at: str = "end") -> memoryview:
    """Return a writable copy of `data` with a forbidden page right behind it (at="end") or before it (at="start").

    The pages live as long as the view or anything made from it.
    """
    inner = max(1, -(-len(data) // PAGE)) * PAGE
    pages = mmap.mmap(-1, inner + 2 * PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    anchor = ctypes.c_char.from_buffer(pages)
    address = ctypes.addressof(anchor)
    del anchor  # or the map could never be closed
    for forbidden in (address, address + PAGE + inner):
        if libc.mprotect(forbidden, PAGE, PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    begin = {"start": PAGE, "end": PAGE + inner - len(data)}[at]
    view = memoryview(pages)[begin : begin + len(data)]
    view[:] = data
    return view


class Pages:
    """Writable memory between two forbidden pages, used again for one buffer after the other.

    Where there is no ``mprotect`` it is plain memory.
    """

    def __init__(self, size: int) -> None:
        self._size = max(1, -(-size // PAGE)) * PAGE
        self._view = guarded(bytes(self._size)) if AVAILABLE else memoryview(bytearray(self._size))
        anchor = ctypes.c_char.from_buffer(self._view)
        self._address = ctypes.addressof(anchor)

    def place(self, size: int, *, at: str = "end", shift: int = 0, align: int = 1) -> tuple[memoryview, int]:
        """Return `size` bytes and their address: the last or the first ones, moved by `shift` towards the other end.

        As far as `align` allows: a `shift` is rounded down, and aligned memory ends as near as it can.
        """
        shift -= shift % align
        begin = shift if at == "start" else self._size - size - shift
        assert 0 <= begin <= self._size - size
        begin -= begin % align
        return self._view[begin : begin + size], self._address + begin
