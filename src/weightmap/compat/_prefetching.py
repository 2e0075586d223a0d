"""`safe_open.prefetch` of safetensors 0.9: tensors that threads read while others are used, each handed out once."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from weightmap.core.arguments import as_integer, as_threads, mistyped
from weightmap.core.bytes.memory import headroom
from weightmap.core.dtypes import DTYPES, numpy_dtype
from weightmap.core.model.internals import not_found
from weightmap.errors import TensorFileError, UnsupportedError, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from weightmap.core.model.file import TensorFile

# The part of free memory that a loader fills by default with tensors nobody has taken yet.
_SHARE = 0.5


class _Slice(Protocol):
    """A tensor of the handle: see `SafeSlice`."""

    @property
    def stored_dtype(self) -> str: ...
    def get_shape(self) -> list[int]: ...
    def __getitem__(self, index: Any) -> Any: ...


class _Handle(Protocol):
    """The handle that tensors are read from: see `safe_open`."""

    def opened_file(self) -> TensorFile: ...
    def offset_keys(self) -> list[str]: ...
    def get_tensor(self, name: str) -> Any: ...
    def get_slice(self, name: str) -> _Slice: ...


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
    """A plan of `safe_open.prefetch`, or a name asked of a `PrefetchLoader`, is not what it takes."""


class _Entry:
    """A tensor of a loader: not begun, being read, there, or taken."""

    __slots__ = ("error", "nbytes", "part", "state", "value")

    def __init__(self, part: Any, nbytes: int) -> None:
        self.part, self.nbytes = part, nbytes
        self.state = "waiting"  # then "reading", "ready", "taken"
        self.value: Any = None
        self.error: BaseException | None = None


class PrefetchLoader:
    """Tensors of a file that threads read in file order, and hand out once each: see `safe_open.prefetch`.

    It holds at most `budget` bytes that nobody has taken, and one tensor where that is larger. A tensor that is taken
    before its turn is read at once by the thread that asks. Leaving the ``with`` block closes the loader.
    """

    def __init__(self, handle: _Handle, plan: Mapping[str, Any] | None, threads: int, budget: int | None) -> None:
        self._handle = handle
        names = handle.offset_keys()
        if plan is not None:
            names = self._planned(plan, names)
        self._entries = {name: self._entry(name, None if plan is None else plan[name]) for name in names}
        free = headroom().limit
        self._budget = math.inf if free is None else int(free * _SHARE)
        if budget is not None:
            self._budget = as_integer("budget", budget)
            if self._budget < 0:
                raise ValueError(f"budget is {budget}, expected a number of bytes")
        self._filled = 0
        self._closed = False
        self._change = threading.Condition()
        count = min(as_threads(threads), len(self._entries))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _planned(plan: Mapping[str, Any], names: list[str]) -> list[str]:
        if not isinstance(plan, Mapping):
            raise mistyped("plan", plan, "a mapping of names to None or an index")
        if not plan:
            raise PrefetchError("prefetch plan selects no tensors")
        return [name for name in names if name in plan] + [name for name in plan if name not in set(names)]

    def _entry(self, name: str, part: Any) -> _Entry:
        """Check an index, and return what it selects."""
        view = self._handle.get_slice(name)  # raises for an unknown name
        shape, dtype = view.get_shape(), DTYPES.get(view.stored_dtype)
        if dtype is not None and dtype.packed:
            if part is not None:
                what = f"tensor {quoted(name)} packs elements of {dtype.bits} bits, which cannot be sliced"
                raise UnsupportedError(what)
            return _Entry(None, math.prod(shape) * dtype.bits // 8)
        try:
            count = math.prod(shape) if part is None else np.broadcast_to(np.uint8(0), tuple(shape))[part].size
        except IndexError as error:
            raise PrefetchError(f"prefetch plan index {part!r} for tensor {quoted(name)}: {error}") from None
        return _Entry(part, count * (4 if dtype is None else numpy_dtype(dtype).itemsize))

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
            The plan has no such tensor.
        PrefetchError
            It was taken before, or the loader is closed.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise not_found(self._handle.opened_file(), name)
        with self._change:
            self._check()
            if entry.state == "taken":
                raise PrefetchError(f"tensor {quoted(name)} was already taken")
            if entry.state == "waiting":
                entry.state = "taken"
                mine = True
            else:
                mine = False
                self._change.wait_for(lambda: entry.state != "reading" or self._closed)
        return self._read(name, entry) if mine else self._handed_out(name, entry)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield names and tensors as they are read; those that were taken are skipped."""
        while True:
            with self._change:
                self._check()
                pending = [(name, entry) for name, entry in self._entries.items() if entry.state != "taken"]
                if not pending:
                    return
                ready = [pair for pair in pending if pair[1].state == "ready"]
                waiting = [pair for pair in pending if pair[1].state == "waiting"]
                if not ready and not waiting:
                    self._change.wait()
                    continue
                name, entry = (ready or waiting)[0]
                mine = not ready
                if mine:
                    entry.state = "taken"
            yield name, self._read(name, entry) if mine else self._handed_out(name, entry)

    def close(self) -> None:
        """Stop reading, and drop the tensors that nobody has taken. Those handed out stay valid."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        for entry in self._entries.values():
            entry.value = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise PrefetchError("the loader is closed")

    def _handed_out(self, name: str, entry: _Entry) -> Any:
        with self._change:
            self._check()
            if entry.state == "taken":
                raise PrefetchError(f"tensor {quoted(name)} was already taken")
            value, error = entry.value, entry.error
            entry.state, entry.value, entry.error = "taken", None, None
            self._filled -= entry.nbytes
            self._change.notify_all()
        if error is not None:
            raise error
        return value

    def _read(self, name: str, entry: _Entry) -> Any:
        if entry.part is None:
            return self._handle.get_tensor(name)
        return self._handle.get_slice(name)[entry.part]

    def _next(self) -> tuple[str, _Entry] | None:
        """Return the next tensor to read, once there is room for it; None when there is none."""
        with self._change:
            while not self._closed:
                waiting = ((name, entry) for name, entry in self._entries.items() if entry.state == "waiting")
                name, entry = next(waiting, (None, None))
                if name is None or entry is None:
                    return None
                if not self._filled or self._filled + entry.nbytes <= self._budget:
                    entry.state = "reading"
                    self._filled += entry.nbytes
                    return name, entry
                self._change.wait()
        return None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            name, entry = job
            try:
                entry.value = self._read(name, entry)
            except BaseException as error:  # noqa: BLE001 - whoever takes the tensor gets it
                entry.error = error
            with self._change:
                entry.state = "ready"
                self._change.notify_all()
