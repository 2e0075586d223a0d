"""The limits of this machine, measured in the same rounds as the contenders.

The loops of `limits.c` are compiled at the first use. Without a compiler, slower loops of numpy replace them, and
`extra_info` says so.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from timing import Clock, Contender, limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("limits.c")
KINDS = (
    "read",
    "read, prefetching",
    "write",
    "write, prefetching",
    "write, non-temporal",
    "copy",
    "copy, non-temporal",
    "read half as much and write",
)
READ, WRITE, COPY, WIDEN = KINDS[:2], KINDS[2:5], KINDS[5:7], KINDS[7]
STEP = 256  # bytes a step of the loops
HUGE = 2 << 20


@functools.cache
def library() -> ctypes.CDLL | None:
    """Compile and load the loops; return None where that fails."""
    folder = Path(tempfile.mkdtemp(prefix="weightmap-limits-"))
    target = folder / "limits.so"
    command = [*shlex.split(os.environ.get("CC", "cc")), "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
    try:
        subprocess.run([*command, str(SOURCE), "-o", str(target)], check=True, capture_output=True)
        loaded = ctypes.CDLL(str(target))
    except (OSError, subprocess.CalledProcessError):
        return None
    finally:
        target.unlink(missing_ok=True)
        folder.rmdir()
    loaded.limits_run.restype = loaded.limits_fresh.restype = ctypes.c_double
    loaded.limits_run.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    loaded.limits_fresh.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_long]
    loaded.limits_touch.restype = ctypes.c_uint64
    loaded.limits_touch.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    return loaded


def memory(nbytes: int) -> NDArray[np.uint8]:
    """Return touched memory at a multiple of 2 MiB, in huge pages where the system has them."""
    mapping = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, np.uint8)
    start = -whole.ctypes.data % HUGE
    array = whole[start : start + nbytes]
    array[...] = 1
    return array


def memory_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array in such memory."""
    copy = memory(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Loop:
    """The clock of a C loop, which reads the time itself."""

    def __init__(self, function: Callable[[int], float]) -> None:
        self.function, self.info = function, {"by": "C"}

    def __call__(self, calls: int) -> float:
        seconds = self.function(calls)
        assert seconds >= 0, "no threads, or no memory, for measuring a limit"
        return seconds


class NumpyLoop:
    """The clock of a numpy loop."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function, self.info = function, {"by": "numpy, without a C compiler"}

    def __call__(self, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            self.function()
        return time.perf_counter() - begin


class InTurn:
    """The clock of calls that several clocks take in turn."""

    def __init__(self, clocks: list[Clock]) -> None:
        self.each, self.info = itertools.cycle(clocks), clocks[0].info

    def __call__(self, calls: int) -> float:
        return sum(next(self.each)(1) for _ in range(calls))


def loop(kind: str, array: NDArray[Any], threads: int, half: NDArray[Any] | None = None) -> Clock:
    """Return the clock of passes over an array: reading it, writing it, or copying one half over the other.

    For `WIDEN`, `half` has half as many bytes, and each is written twice.
    """
    size = array.nbytes // (2 if kind in COPY else 1)
    begin = array.ctypes.data
    source = begin + size if kind in COPY else begin if half is None else half.ctypes.data
    if (found := library()) is None or size < STEP * threads or begin % 64:
        octets = array.reshape(-1).view(np.uint8)
        words = octets[: size // 8 * 8].view(np.uint64)
        if kind in COPY:
            return NumpyLoop(functools.partial(np.copyto, octets[:size], octets[size : 2 * size]))
        if half is not None:
            return NumpyLoop(functools.partial(np.copyto, array.view(np.uint32), half.view(np.uint16)))
        return NumpyLoop(words.max if kind in READ else functools.partial(words.fill, 1))
    number = KINDS.index(kind)

    def run(calls: int, keep: Any = (array, half)) -> float:
        seconds: float = found.limits_run(number, keep[0].ctypes.data, source, size, threads, calls)
        return seconds

    return Loop(run)


def fresh(nbytes: int, *, streaming: bool) -> Clock:
    """Return the clock of allocating memory, writing it and freeing it."""
    if (found := library()) is None:
        return NumpyLoop(lambda: np.empty(nbytes, np.uint8).fill(1))
    return Loop(lambda calls: found.limits_fresh(nbytes, int(streaming), calls))


def of(
    kinds: tuple[str, ...], array_of: Callable[..., NDArray[Any] | list[NDArray[Any]]], threads: tuple[int, ...] = (1,)
) -> dict[str, Contender]:
    """Return the limits of these kinds; `array_of(*case)` is the array of a case, or its arrays, taken in turn."""

    def prepare(*case: Any, kind: str, count: int) -> Clock:
        found = array_of(*case)
        if isinstance(found, list):
            return InTurn([loop(kind, array, count) for array in found])
        return loop(kind, found, count)

    return {
        f"limit: {kind}" + (f", {count} threads" if count > 1 else ""): limit(
            functools.partial(prepare, kind=kind, count=count), count
        )
        for kind in kinds
        for count in threads
    }


def touch(array: NDArray[Any], page: int = mmap.PAGESIZE) -> int:
    """Read a byte of every page of an array."""
    if (found := library()) is None:
        return int(array.reshape(-1).view(np.uint8)[::page].max())
    total: int = found.limits_touch(array.ctypes.data, array.nbytes, page)
    return total
