"""`Backend`: all that loading requires of a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import numpy as np
    from numpy.typing import NDArray


class Change(NamedTuple):
    """A conversion on the device, from bytes as stored to elements of another type.

    Attributes
    ----------
    stored : str
        The type of the elements in the file, or the scheme of a quantised tensor.
    quantized : bool
        Whether `stored` is a scheme: "int8" names a type and a scheme.
    dtype : str
        The type of the result.
    elements : int
        Their number. The bytes of a scheme form a whole tensor of one dimension, as `QuantizedTensor` and `GgmlTensor`
        take them.
    block_size, scale_type
        As of `QuantizedTensor`; 0 and "" for other types.
    """

    stored: str
    quantized: bool
    dtype: str
    elements: int
    block_size: int = 0
    scale_type: str = ""


class Event(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Return when the device has done all earlier work."""


class Exchange(Protocol):
    """The ranks that load the same plan at the same time, each to its own device; all of them make the same calls.

    Attributes
    ----------
    rank, world_size : int
        The number of this one, and how many there are.
    """

    rank: int
    world_size: int

    def tell(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""

    def share(self, buffer: Any, bounds: Sequence[int]) -> None:
        """Send the bytes from ``bounds[rank]`` to ``bounds[rank + 1]`` of device memory to all, and get their parts."""


class Backend(ABC):
    """A device: memory, copies, and changes of types, all in one order of their own.

    `copy` and `change` may return before the work is done. The device does them one after another, in the order of the
    calls. Any method may raise the error of its library.

    Attributes
    ----------
    key : hashable
        Slots pinned by one backend serve every other with an equal key.
    node : int or None
        The NUMA node nearest to the device, if known.
    pinned : bool
        Whether `pin` is useful. Otherwise slots are small and not kept.
    """

    key: Hashable
    node: int | None = None
    pinned: bool = True

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """Return device memory, aligned to 256 bytes, its contents undefined."""

    @abstractmethod
    def free(self, buffer: Any) -> None:
        """Free memory from `allocate` that was not handed out: at once, even if something still refers to it."""

    @abstractmethod
    def pin(self, memory: NDArray[np.uint8]) -> None:
        """Let the device copy from host memory directly."""

    @abstractmethod
    def unpin(self, memory: NDArray[np.uint8]) -> None:
        """Undo `pin`."""

    @abstractmethod
    def begin(self) -> None:
        """Let later copies wait for the caller's earlier work on the device."""

    @abstractmethod
    def end(self) -> None:
        """Let the caller's later work on the device wait for the copies so far."""

    @abstractmethod
    def copy(self, memory: NDArray[np.uint8], buffer: Any, at: int) -> None:
        """Copy host memory to `buffer`, from byte `at` on."""

    @abstractmethod
    def event(self) -> Event:
        """Return the event after all work so far."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work so far."""

    @abstractmethod
    def decodes(self, scheme: str) -> bool:
        """Whether `change` decodes quantised tensors of this scheme."""

    @abstractmethod
    def change(self, source: Any, begin: int, end: int, change: Change, buffer: Any, at: int) -> None:
        """Make elements of the bytes `begin` to `end` of a buffer, and write them to another one from byte `at` on."""

    @abstractmethod
    def check(self, dtype: str) -> None:
        """Raise `UnsupportedError` for a type that the device lacks."""

    @abstractmethod
    def tensor(self, buffer: Any, at: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a tensor over `buffer` from byte `at` on; one of bytes for types packed below the byte."""

    def tensors(self, buffer: Any, described: Sequence[tuple[int, str, tuple[int, ...]]]) -> list[Any]:
        """Return many tensors over `buffer`, each by its place, type and shape: see `tensor`."""
        return [self.tensor(buffer, *one) for one in described]

    @abstractmethod
    def flip(self, tensor: Any, axes: tuple[int, ...]) -> Any:
        """Return a tensor with the elements of these axes in reverse order."""
