"""`safe_open.prefetch` of safetensors 0.9: threads read tensors while others are used; each is handed out once.

Tensors in the page cache need no thread, unless the framework copies: they are mapped, and their pages are mapped in
when touched.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from weightmap._messages import quoted
from weightmap.compat._reading import OpenedFile, is_plain, is_region, over_region, packed_rows
from weightmap.core.arguments import as_integer, as_threads, mistyped
from weightmap.core.bytes import Range
from weightmap.core.bytes.memory import headroom
from weightmap.core.dtypes import DTYPES, numpy_dtype
from weightmap.core.model.internals import suggestion
from weightmap.errors import TensorFileError, TensorNotFoundError, UnsupportedError
from weightmap.plans.pages import is_cached

if TYPE_CHECKING:
    from types import TracebackType

    from weightmap.core.table.table import Row


# The default budget of a loader for tensors not yet taken, as a part of free memory.
_SHARE = 0.5


class TensorMeta(NamedTuple):
    """A tensor's entry in the header.

    Attributes
    ----------
    dtype : str
        As safetensors spells it: ``"F32"``.
    shape : list of int
    data_offsets : tuple of (int, int)
        Begin and end of its bytes, counted from the first byte of the data section.
    """

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class PrefetchError(TensorFileError, ValueError):
    """The plan of `safe_open.prefetch` is invalid, or a `PrefetchLoader` cannot hand out the tensor."""


class _Entry(NamedTuple):
    """A tensor of a loader: the index to read (None for the whole), its bytes, and their run in the mapping, if any."""

    part: Any
    nbytes: int
    run: Row | None


def _is_cached(run: Row | None) -> bool:
    return run is not None and is_cached(run.source, Range(run.offset, run.offset + run.nbytes))


def _load(loaded: dict[str, Any], reader: OpenedFile, name: str, entry: _Entry) -> None:
    """Read a tensor in a thread into `loaded`: a future would keep its result until the thread moves on."""
    loaded[name] = reader.resident(name, entry.part, entry.run)


def _count(part: Any, shape: tuple[int, ...]) -> int:
    """Return the number of elements that an index selects. Raises as numpy does, and IndexError past an axis.

    numpy would shorten a slice past an axis: the tensor is then not the planned one.
    """
    if is_region(part):
        return int(over_region(part, lambda box: _count(box, shape), lambda counts, _: sum(counts)))
    count: int = np.broadcast_to(np.uint8(0), shape)[part].size
    parts = tuple(item for item in (part if isinstance(part, tuple) else (part,)) if item is not None)
    if not is_plain(parts):
        return count
    at = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    for item, size in (*zip(parts[:at], shape, strict=False), *zip(parts[:at:-1], shape[::-1], strict=False)):
        if isinstance(item, slice) and (item.step or 1) > 0:
            for bound in (item.start, item.stop):
                if bound is not None and not -size <= bound <= size:
                    raise IndexError(f"bound {bound} is out of range for an axis of {size}")
    return count


class PrefetchLoader:
    """Tensors of a file that threads read in file order, and hand out once each: see `safe_open.prefetch`.

    It holds at most `budget` bytes of tensors not yet taken, or a single larger tensor. If a tensor is taken before its
    turn, the caller's thread reads it at once. Leaving the ``with`` block closes the loader.
    """

    def __init__(self, reader: OpenedFile, plan: Mapping[str, Any] | None, threads: int, budget: int | None) -> None:
        self._reader = reader
        self._entries = {name: self._entry(name, part) for name, part in self._planned(plan)}
        free = headroom().limit
        self._budget = math.inf if free is None else int(free * _SHARE)
        if budget is not None:
            self._budget = as_integer("budget", budget)
            if self._budget < 0:
                raise ValueError(f"budget is {budget}, expected a number of bytes")
        self._lock, self._process = Lock(), os.getpid()
        self._waiting = deque(self._entries)  # not read yet, or taken before their turn
        self._futures: dict[str, Future[None]] = {}  # being read, or read and not taken
        self._loaded: dict[str, Any] = {}  # tensors that were read, or mapped
        self._filled = 0  # bytes of tensors in `_futures`
        self._handed_out = set[str]()
        self._executor: ThreadPoolExecutor | None = ThreadPoolExecutor(as_threads(threads))
        self._read_ahead()

    def _planned(self, plan: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
        """Return names and indices, in file order."""
        names = self._reader.offset_keys()
        if plan is None:
            return [(name, None) for name in names]
        if not isinstance(plan, Mapping):
            raise mistyped("plan", plan, "a mapping of names to None or an index")
        if not plan:
            raise PrefetchError("prefetch plan selects no tensors")
        for name in plan:
            self._reader.check(name)
        return [(name, plan[name]) for name in names if name in plan]

    def _entry(self, name: str, part: Any) -> _Entry:
        """Check an index, and return its entry."""
        view = self._reader.slice_of(name)
        shape, dtype = tuple(view.get_shape()), DTYPES.get(view.stored_dtype)
        bits = 32 if dtype is None else dtype.bits if dtype.packed else 8 * numpy_dtype(dtype).itemsize
        if self._reader.device is not None and bits == 6:
            what = f"data type of tensor {quoted(name)}"
            raise UnsupportedError(what, actual=view.get_dtype(), expected="one that torch has; get_tensor gives bytes")
        if part is None:
            return _Entry(None, math.prod(shape) * bits // 8, self._reader.run_of(name, None))
        if is_region(part):
            part = tuple(item[0] if isinstance(item, list) and len(item) == 1 else item for item in part)
        try:
            count = _count(part, shape)
        except (IndexError, TypeError, ValueError) as error:
            what = f"invalid prefetch plan {repr(part)[:80]} for tensor {quoted(name)} of shape {list(shape)}"
            raise PrefetchError(f"{what}: {error}") from None
        if dtype is not None and dtype.packed:
            packed_rows(name, dtype, shape, part)
        return _Entry(part, count * bits // 8, self._reader.run_of(name, part))

    def names(self) -> list[str]:
        """Return the names that this loader hands out, in file order."""
        return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, name: str) -> Any:
        """Return a tensor; wait for it if it is being read.

        Raises
        ------
        TensorNotFoundError
            The plan does not have the tensor.
        PrefetchError
            The tensor was taken before, or the loader is closed.
        """
        if name not in self._entries:
            what = f"tensor {quoted(name)} is not in the prefetch plan{suggestion(name, self._entries)}"
            raise TensorNotFoundError(what)
        self._check_open()
        with suppress(CancelledError, KeyError):  # the loader has just been closed, or no thread reads the tensor
            self._futures[name].exception()  # after an interrupt here, the tensor can still be taken
        if not self._claim(name):
            raise PrefetchError(f"tensor {quoted(name)} was already delivered: it was already taken")
        return self._result(name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield names and tensors in file order; skip taken ones."""
        self._check_open()
        for name in self._entries:
            if self._claim(name):
                yield name, self._result(name)

    def _claim(self, name: str) -> bool:
        """Take a tensor; return False if it was taken before."""
        with self._lock:
            self._check_open()
            if name in self._handed_out:
                return False
            self._handed_out.add(name)
            return True

    def _result(self, name: str) -> Any:
        """Return a claimed tensor, which a thread has read, or which this call reads."""
        with self._lock:
            future = self._futures.pop(name, None)
        entry = self._entries[name]
        if future is None:
            mapped = self._loaded.pop(name, None)
            if mapped is None or entry.run is None:
                return self._reader.resident(name, entry.part, entry.run)
            entry.run.source.check_unchanged()
            return mapped
        try:
            future.result()
            return self._loaded.pop(name)
        except (CancelledError, KeyError):  # closed before or after reading it
            raise PrefetchError("the loader is closed") from None
        finally:
            with self._lock:
                self._filled -= entry.nbytes
            self._read_ahead()

    def close(self) -> None:
        """Stop reading, and drop the tensors not taken yet. Tensors handed out stay valid."""
        with self._lock:
            executor, self._executor = self._executor, None
            self._waiting.clear()
        if executor is not None:
            executor.shutdown(cancel_futures=True)
        self._futures.clear()
        self._loaded.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._executor is None:
            raise PrefetchError("the loader is closed")
        if self._process != os.getpid():
            raise PrefetchError("the loader is of another process, which has its threads: make one after the fork")

    def _read_ahead(self) -> None:
        """Map the next tensors if the page cache holds them, else let threads read them, as the budget allows."""
        with self._lock:
            while self._waiting and self._executor is not None:
                name = self._waiting[0]
                entry = self._entries[name]
                if name in self._handed_out:
                    pass
                elif not self._reader.copies and _is_cached(entry.run):
                    with suppress(Exception):  # `take` raises it again
                        _load(self._loaded, self._reader, name, entry)
                elif self._filled and self._filled + entry.nbytes > self._budget:
                    return
                else:
                    with suppress(RuntimeError):  # "can't start new thread": `take` reads the tensor
                        self._futures[name] = self._executor.submit(_load, self._loaded, self._reader, name, entry)
                        self._filled += entry.nbytes
                self._waiting.popleft()
