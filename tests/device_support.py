"""A device of numpy arrays that works as late as it may, and notices what would break a real one."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support import HANG

import weightmap as wm
from weightmap.core.dtypes import GGML_SCHEMES, dtype_named
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.core.quant.ggml import GgmlTensor
from weightmap.device import Backend, Change, Exchange

_ALIGN = 256

__all__ = ["DECODED", "FakeDevice", "LateError", "Ranks"]

DECODED = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive", "q4_0", "q8_0", "q4_k", "q6_k")


class LateError(AssertionError):
    """Memory was used while the device still worked with it."""


class Point:
    """An event: waiting for it lets the device do all earlier work."""

    def __init__(self, device: "FakeDevice", upto: int) -> None:
        self._device, self._upto = device, upto

    def wait(self) -> None:
        """Let the device do all earlier work."""
        self._device.work(self._upto)


class Ranks(Exchange):
    """One of several ranks, each in its own thread, that exchange parts through the memory of this process."""

    def __init__(self, rank: int, meeting: threading.Barrier, table: dict[int, Any]) -> None:
        self.rank, self.world_size = rank, meeting.parties
        self._meeting, self._table = meeting, table

    @classmethod
    def of(cls, count: int) -> "list[Ranks]":
        meeting, table = threading.Barrier(count, timeout=HANG), {}
        return [cls(rank, meeting, table) for rank in range(count)]

    def tell(self, value: Any) -> list[Any]:
        """Put a value on the table, and read all values."""
        self._table[self.rank] = value
        self._meeting.wait()
        found = [self._table[rank] for rank in range(self.world_size)]
        self._meeting.wait()
        return found

    def share(self, buffer: Any, bounds: Sequence[int]) -> None:
        """Send the device's present bytes."""
        begin, end = bounds[self.rank : self.rank + 2]
        for rank, part in enumerate(self.tell(buffer[begin:end].copy())):
            buffer[bounds[rank] : bounds[rank + 1]] = part


class FakeDevice(Backend):
    """A device whose copies happen when somebody waits for them, and no earlier.

    Attributes
    ----------
    log : list of tuple
        What was asked for: ("copy", bytes), ("change", scheme), ("event",), ("synchronize",) …
    fails : dict of str to int
        After how many calls a method raises an error.
    before, after : callable
        Called with the name of each method: before it does anything, and when it has done its work.
    capacity : int, optional
        Bytes of memory that may be alive.
    pins : dict of int to int
        The addresses of pinned memory, and the bytes there.
    pinnable : int, optional
        How many bytes can be pinned in all.
    peak : int
        The most bytes that were alive.
    """

    def __init__(self, key: str = "fake:0", *, decodes: tuple[str, ...] = DECODED, **fails: int) -> None:
        self.key = key
        self.fails = fails
        self.log: list[tuple[Any, ...]] = []
        self.pins: dict[int, int] = {}
        self.pinnable: int | None = None
        self.done = 0
        self._scheme = decodes
        self._asked: list[Callable[[], None]] = []
        self._lock = threading.RLock()  # for a load asks and waits in two threads
        self._alive: list[weakref.ref[Any]] = []
        self.capacity: int | None = None
        self.peak = 0
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None

    def _call(self, what: str, *more: Any) -> None:
        self.before(what)
        self.log.append((what, *more))
        left = self.fails.get(what)
        if left is not None:
            self.fails[what] = left - 1
            if left <= 0:
                raise RuntimeError(f"the device failed: {what}")

    def count(self, what: str) -> int:
        return sum(entry[0] == what for entry in self.log)

    @property
    def alive(self) -> int:
        """Pieces of memory that were not freed and that somebody refers to, perhaps by a tensor."""
        return len(self._rooms())

    @property
    def alive_nbytes(self) -> int:
        return sum(len(room) - _ALIGN for room in self._rooms())

    def _rooms(self) -> list[NDArray[np.uint8]]:
        return [room for ref in self._alive if (room := ref()) is not None]

    def work(self, upto: int | None = None) -> None:
        with self._lock:
            upto = len(self._asked) if upto is None else upto
            while self.done < upto:
                self._asked[self.done]()
                self._asked[self.done] = lambda: None  # which refers to no memory
                self.done += 1

    def forget(self) -> None:
        """Drop all pending work."""
        self.done = len(self._asked)

    @property
    def idle(self) -> bool:
        return self.done == len(self._asked)

    # ---------------------------------------------------------------------------------------------------- the backend
    def allocate(self, nbytes: int) -> Any:
        """Return memory that holds no zeros."""
        self._call("allocate", nbytes)
        if self.capacity is not None and self.alive_nbytes + nbytes > self.capacity:
            raise MemoryError(f"the device has no {nbytes} bytes")
        # numpy makes this array the base of all views, so it lives as long as one of them.
        room = np.full(nbytes + _ALIGN, 0xEE, np.uint8)
        start = -room.ctypes.data % _ALIGN
        self._alive.append(weakref.ref(room))
        self.peak = max(self.peak, self.alive_nbytes)
        return room[start : start + nbytes]

    def free(self, buffer: Any) -> None:
        self._call("free", len(buffer))
        if not self.idle:
            raise LateError("memory is freed that copies are under way to")
        rest = [ref for ref in self._alive if ref() is not buffer.base]
        if len(rest) == len(self._alive):
            raise LateError("memory is freed that is not this device's, or for the second time")
        self._alive = rest
        buffer[:] = 0xDD

    def pin(self, memory: NDArray[np.uint8]) -> None:
        self._call("pin", len(memory))
        if self.pinnable is not None and sum(self.pins.values()) + len(memory) > self.pinnable:
            raise RuntimeError("no memory left to pin")
        self.pins[memory.ctypes.data] = len(memory)
        self.after("pin")

    def unpin(self, memory: NDArray[np.uint8]) -> None:
        self._call("unpin", len(memory))
        if not self.idle:
            raise LateError("memory is unpinned that copies are under way from")
        if memory.ctypes.data not in self.pins:
            raise RuntimeError("this memory is not pinned")
        del self.pins[memory.ctypes.data]
        self.after("unpin")

    def begin(self) -> None:
        self._call("begin")

    def end(self) -> None:
        self._call("end")

    def copy(self, memory: NDArray[np.uint8], buffer: Any, at: int) -> None:
        """Copy the present bytes, later."""
        self._call("copy", len(memory))
        if at < 0 or at + len(memory) > len(buffer):
            raise LateError(f"bytes {at} to {at + len(memory)} of {len(buffer)} are written")
        now = memory.tobytes()

        def done() -> None:
            if memory.tobytes() != now:
                raise LateError("a slot was written to before the copy from it was done")
            np.asarray(buffer)[at : at + len(now)] = np.frombuffer(now, np.uint8)

        self._asked.append(done)

    def event(self) -> Point:
        """Return the point behind all work so far."""
        self._call("event")
        return Point(self, len(self._asked))

    def synchronize(self) -> None:
        self._call("synchronize")
        self.work()

    def decodes(self, scheme: str) -> bool:
        return scheme in self._scheme

    def change(self, source: Any, begin: int, end: int, change: Change, buffer: Any, at: int) -> None:
        """Decode or convert later, as the host does."""
        self._call("change", change.stored)

        def done() -> None:
            octets = np.asarray(source)[begin:end]
            values = elements(change, octets)
            with np.errstate(over="ignore"):
                result = values.astype(dtype_named(change.dtype))
            np.asarray(buffer)[at : at + result.nbytes] = result.view(np.uint8)

        self._asked.append(done)

    def check(self, dtype: str) -> None:
        """Refuse float64."""
        if dtype == "float64":
            raise wm.UnsupportedError("data type", expected="one that this device has", actual=dtype)

    def tensor(self, buffer: Any, at: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return an array over memory."""
        kind = dtype_named(dtype)
        if at % kind.itemsize:
            raise LateError(f"a tensor of {dtype} begins at byte {at}")
        return np.ndarray(shape, kind, buffer, at) if len(buffer) > at else np.empty(shape, kind)

    def flip(self, tensor: Any, axes: tuple[int, ...]) -> Any:
        """Flip as numpy does."""
        return np.flip(tensor, axes)


def elements(change: Change, octets: NDArray[np.uint8]) -> NDArray[Any]:
    """The elements that a change reads from bytes, in its first type: float32 for a scheme."""
    if not change.quantized:
        return np.frombuffer(octets.tobytes(), dtype_named(change.stored))
    shape = (change.elements,)
    if change.stored in GGML_SCHEMES:
        return GgmlTensor(change.stored, shape, octets.tobytes()).dequantize()
    given = {"block_size": change.block_size, "scale_type": change.scale_type}
    return QuantizedTensor(change.stored, shape, octets.tobytes(), **given).dequantize()
