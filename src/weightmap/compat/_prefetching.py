"""`safe_open.prefetch` of safetensors 0.9: tensors that threads read while others are used, each handed out once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from weightmap.core.arguments import as_integer, as_threads, mistyped
from weightmap.core.bytes.memory import headroom
from weightmap.core.dtypes import DTYPES, numpy_dtype
from weightmap.core.model.internals import not_found
from weightmap.errors import TensorFileError, UnsupportedError, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
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


class _Entry(NamedTuple):
    """A tensor of a loader: the index of what is read of it, None for all, and the bytes that this takes."""

    part: Any
    nbytes: int


def _read(handle: _Handle, name: str, part: Any) -> Any:
    return handle.get_tensor(name) if part is None else handle.get_slice(name)[part]


class PrefetchLoader:
    """Tensors of a file that threads read in file order, and hand out once each: see `safe_open.prefetch`.

    It holds at most `budget` bytes that nobody has taken, and one tensor where that is larger. A tensor that is taken
    before its turn is read at once by the thread that asks. Leaving the ``with`` block closes the loader.
    """

    def __init__(self, handle: _Handle, plan: Mapping[str, Any] | None, threads: int, budget: int | None) -> None:
        self._handle = handle
        self._entries = {name: self._entry(name, part) for name, part in self._planned(plan)}
        free = headroom().limit
        self._budget = math.inf if free is None else int(free * _SHARE)
        if budget is not None:
            self._budget = as_integer("budget", budget)
            if self._budget < 0:
                raise ValueError(f"budget is {budget}, expected a number of bytes")
        self._lock = Lock()
        self._waiting = deque(self._entries)  # not read yet, or taken before their turn
        self._futures: dict[str, Future[Any]] = {}  # being read, or read and not taken
        self._filled = 0  # bytes of these
        self._handed_out = set[str]()
        self._executor: ThreadPoolExecutor | None = ThreadPoolExecutor(as_threads(threads))
        self._read_ahead()

    def _planned(self, plan: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
        """Return names and indices, in file order."""
        names = self._handle.offset_keys()
        if plan is None:
            return [(name, None) for name in names]
        if not isinstance(plan, Mapping):
            raise mistyped("plan", plan, "a mapping of names to None or an index")
        if not plan:
            raise PrefetchError("prefetch plan selects no tensors")
        unknown = next((name for name in plan if name not in self._handle.opened_file()), None)
        if unknown is not None:
            raise not_found(self._handle.opened_file(), unknown)
        return [(name, plan[name]) for name in names if name in plan]

    def _entry(self, name: str, part: Any) -> _Entry:
        """Check an index, and return what it selects."""
        view = self._handle.get_slice(name)
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
        if name not in self._entries:
            raise not_found(self._handle.opened_file(), name)
        future = self._futures.get(name)
        if future is not None:
            wait((future,))  # an interrupt here leaves the tensor to be taken
        if not self._claim(name):
            raise PrefetchError(f"tensor {quoted(name)} was already taken")
        return self._result(name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield names and tensors in file order; those that were taken are skipped."""
        self._check_open()
        for name in self._entries:
            if self._claim(name):
                yield name, self._result(name)

    def _claim(self, name: str) -> bool:
        """Whether nobody has taken a tensor before this call, which takes it."""
        with self._lock:
            self._check_open()
            if name in self._handed_out:
                return False
            self._handed_out.add(name)
            return True

    def _result(self, name: str) -> Any:
        """Return a claimed tensor: what a thread has read, or else reads now."""
        with self._lock:
            future = self._futures.pop(name, None)
        if future is None:
            return _read(self._handle, name, self._entries[name].part)
        try:
            return future.result()
        except CancelledError:
            raise PrefetchError("the loader is closed") from None
        finally:
            with self._lock:
                self._filled -= self._entries[name].nbytes
            self._read_ahead()

    def close(self) -> None:
        """Stop reading, and drop the tensors that nobody has taken. Those handed out stay valid."""
        with self._lock:
            executor, self._executor = self._executor, None
            self._waiting.clear()
        if executor is not None:
            executor.shutdown(cancel_futures=True)
        self._futures.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._executor is None:
            raise PrefetchError("the loader is closed")

    def _read_ahead(self) -> None:
        """Let the threads read the next tensors that the budget has room for."""
        with self._lock:
            while self._waiting and self._executor is not None:
                name = self._waiting[0]
                nbytes = self._entries[name].nbytes
                if name not in self._handed_out:
                    if self._filled and self._filled + nbytes > self._budget:
                        return
                    self._filled += nbytes
                    self._futures[name] = self._executor.submit(_read, self._handle, name, self._entries[name].part)
                self._waiting.popleft()
