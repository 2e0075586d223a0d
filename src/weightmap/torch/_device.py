"""PyTorch's devices for `weightmap.device`: CUDA with pinned slots and a stream, other devices by plain copies."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightmap._messages import escape
from weightmap.core.dtypes import PAIRS
from weightmap.core.model.internals import dense_row
from weightmap.device import Backend, Change, Exchange, Loader, Staging, load
from weightmap.device._loader import send_array
from weightmap.device._transfers import ArrayTransfer, Transfer
from weightmap.errors import PlanError, UnsupportedError
from weightmap.plans.planning import ParameterPlan, ReadPlan
from weightmap.torch._tensors import imported_torch, in_pairs, no_dtype, torch_device

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.core.quant.blocks import QuantizedTensor
    from weightmap.plans.delivery import Check


class TorchBackend(Backend):
    """A device of PyTorch.

    Copies to a CUDA device run on a separate stream, from memory that CUDA has registered. Tensors of other devices are
    filled at once, through small buffers, so that a driver never sees pages of a file.

    Parameters
    ----------
    device : str, int or torch.device

    Raises
    ------
    UnsupportedError
        torch does not know the device.
    MissingDependencyError
        torch is not installed.
    """

    def __init__(self, device: Any) -> None:
        self._torch = torch = imported_torch()
        where = torch_device(device)
        self.pinned: bool = where.type == "cuda"
        self._stream: Any = None
        if self.pinned:
            where = torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
            self.node = _node_of(where.index)
            self._stream = torch.cuda.Stream(where)
        self.device: Any = where
        self.key: Hashable = str(where)

    # ---------------------------------------------------------------------------------------------------------- memory
    def allocate(self, nbytes: int) -> Any:
        """Return bytes on the device. Copies to them wait for earlier users of this memory."""
        self.begin()
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self.device)

    def free(self, buffer: Any) -> None:
        """Free the memory, even if the current error refers to it."""
        buffer.untyped_storage().resize_(0)

    def pin(self, memory: NDArray[np.uint8]) -> None:
        """Register memory with CUDA."""
        with self._torch.cuda.device(self.device):
            self._check(self._torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))

    def unpin(self, memory: NDArray[np.uint8]) -> None:
        """Undo `pin`."""
        with self._torch.cuda.device(self.device):
            self._check(self._torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data))

    def _check(self, error: Any) -> None:
        if not int(error):
            return
        # CUDA keeps the error, which torch would raise for the next kernel: run an unneeded kernel to clear it.
        with contextlib.suppress(RuntimeError):
            self._torch.empty(1, device=self.device).fill_(0)
        raise self._torch.cuda.CudaError(int(error))

    # ---------------------------------------------------------------------------------------------------------- copies
    def begin(self) -> None:
        """Make copies wait for the current stream's work so far. Raises `UnsupportedError` during graph capture."""
        if self._stream is not None:
            if self._torch.cuda.is_current_stream_capturing():
                raise UnsupportedError("loading while a CUDA graph is being captured: load before that, or after it")
            self._stream.wait_stream(self._torch.cuda.current_stream(self.device))

    def end(self) -> None:
        """Make the current stream wait for copies."""
        if self._stream is not None:
            self._torch.cuda.current_stream(self.device).wait_stream(self._stream)

    @contextlib.contextmanager
    def _ours(self, buffer: Any) -> Iterator[None]:
        """Work on the stream, and write to a buffer in the mode of the thread that allocated it."""
        with (
            self._torch.inference_mode(buffer.is_inference()),
            contextlib.nullcontext() if self._stream is None else self._torch.cuda.stream(self._stream),
        ):
            yield

    def copy(self, memory: NDArray[np.uint8], buffer: Any, at: int) -> None:
        """Copy bytes; from pinned memory this returns at once."""
        with self._ours(buffer):
            buffer[at : at + len(memory)].copy_(self._torch.from_numpy(memory), non_blocking=self.pinned)

    def event(self) -> Any:
        """Return an event of the stream; other devices are done already."""
        return _Event(None if self._stream is None else self._stream.record_event())

    def synchronize(self) -> None:
        """Wait for the stream."""
        if self._stream is not None:
            self._stream.synchronize()

    # ----------------------------------------------------------------------------------------------------------- types
    def decodes(self, scheme: str) -> bool:
        """Whether Triton has a kernel for the scheme and runs kernels on this device."""
        kernels = _kernels()
        if kernels is None or scheme not in kernels.SCHEMES:
            return False
        return (self.pinned or (self.device.type == "cpu" and kernels.interpreted())) and _launches(self.device)

    def change(self, source: Any, begin: int, end: int, change: Change, buffer: Any, at: int) -> None:
        """Convert as torch does, or decode by Triton's kernels."""
        dtype = getattr(self._torch, change.dtype)
        target = buffer[at : at + change.elements * dtype.itemsize].view(dtype)
        with self._ours(target):
            if not change.quantized:
                target.copy_(source[begin:end].view(getattr(self._torch, change.stored)))
                return
            kernels: Any = _kernels()
            with self._torch.cuda.device(self.device) if self.pinned else contextlib.nullcontext():
                kernels.decode(source[begin:end], change, target)

    def check(self, dtype: str) -> None:
        """Raise `UnsupportedError` unless torch has the type."""
        if not isinstance(getattr(self._torch, dtype, None), self._torch.dtype):
            raise no_dtype(dtype)

    def tensor(self, buffer: Any, at: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a tensor as a view of the buffer."""
        kind = getattr(self._torch, dtype)
        return buffer[at : at + kind.itemsize * math.prod(shape)].view(kind).view(shape)

    def flip(self, tensor: Any, axes: tuple[int, ...]) -> Any:
        """Return a copy in reverse order, also of types that torch does not flip."""
        widths = {1: "int8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
        same = getattr(self._torch, widths[tensor.dtype.itemsize])
        return tensor.view(same).flip(axes).view(tensor.dtype)


class TorchExchange(Exchange):
    """The ranks of a `torch.distributed` process group that load the same plan: each rank reads a part of the bytes.

    Parameters
    ----------
    group : ProcessGroup, optional
        A group that can send tensors of the device; by default the group of all processes.
    cpu : ProcessGroup, optional
        The same ranks, for small messages; by default `group`. A "gloo" group keeps them off the device.
    """

    def __init__(self, group: Any = None, cpu: Any = None) -> None:
        self._distributed = distributed = imported_torch().distributed
        self._group = distributed.group.WORLD if group is None else group
        self._cpu = self._group if cpu is None else cpu
        self.rank: int = distributed.get_rank(self._group)
        self.world_size: int = distributed.get_world_size(self._group)

    def tell(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        gathered: list[Any] = [None] * self.world_size
        with _answering():
            self._distributed.all_gather_object(gathered, value, group=self._cpu)
        return gathered

    def share(self, buffer: Any, bounds: Sequence[int]) -> None:
        """Make each rank send its part; the current stream waits for it."""
        for rank, (begin, end) in enumerate(pairwise(bounds)):
            if begin < end:
                source = self._distributed.get_global_rank(self._group, rank)
                with _answering():
                    self._distributed.broadcast(buffer[begin:end], source, group=self._group)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raise `PlanError` if another rank has ended, or does not answer within the timeout of the process group."""
    try:
        yield
    except RuntimeError as error:
        raise PlanError(f"another rank of this load has ended, or does not answer: {error}") from error


class _Event:
    """An event of CUDA; None for a device with synchronous calls."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def wait(self) -> None:
        """Wait for it."""
        if self._event is not None:
            self._event.synchronize()


# A block of q8_0: scale 1, and the codes 0 to 31.
_PROBE = bytes([0x00, 0x3C, *range(32)])


@functools.cache
def _launches(device: Any) -> bool:
    """Whether a kernel runs on a device and decodes a block. Tried once, because Triton compiles only at a launch.

    Compiling needs a C compiler, an assembler and a writable folder, which an image may lack.
    """
    torch, change = imported_torch(), Change("q8_0", quantized=True, dtype="float32", elements=32)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            data = torch.frombuffer(bytearray(_PROBE), dtype=torch.uint8).to(device)
            output = torch.empty(32, device=device)
            kernels: Any = _kernels()
            kernels.decode(data, change, output)
            problem: object = "" if output.tolist() == list(range(32)) else "it gives wrong values"
    except Exception as error:  # noqa: BLE001 - Triton, its compiler and CUDA raise what they like
        problem = error
    if not problem:
        return True
    what = "Triton runs no kernels on %s: the CPU decodes quantised tensors (%s)"
    logging.getLogger("weightmap").warning(what, device, escape(str(problem).strip()) or type(problem).__name__)
    return False


@functools.cache
def _kernels() -> Any:
    """Return the module of Triton's kernels; None if Triton is missing or does not load."""
    try:
        from weightmap.torch import _triton
    except (ImportError, RuntimeError, AttributeError):
        return None
    return _triton


def _node_of(index: int) -> int | None:
    """Return the NUMA node of a GPU, from its place on the PCI bus; None if the system does not tell."""
    properties = imported_torch().cuda.get_device_properties(index)
    try:
        place = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        node = int(Path("/sys/bus/pci/devices", place, "numa_node").read_text(encoding="ascii"))
    except (AttributeError, OSError, ValueError):
        return None
    return node if node >= 0 else None


def load_plan(
    plan: ReadPlan,
    device: Any,
    *,
    dtype: Any = None,
    verify: Check = False,
    group: int | None = None,
    staging: Staging | None = None,
    exchange: Exchange | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a plan on a device of torch; see `weightmap.device.load`."""
    dtype_name = None if dtype is None else str(dtype).removeprefix("torch.")
    options: dict[str, Any] = {"verify": verify, "group": group, "staging": staging, "exchange": exchange}
    tensors = load(plan, TorchBackend(device), dtype=dtype_name, **options)
    for name, tensor in tensors:
        parameters = isinstance(plan, ParameterPlan)  # whose names the file does not have
        yield name, tensor if parameters else in_pairs(tensor, dense_row(plan.file, name))


def to_device(array: np.ndarray[Any, Any] | QuantizedTensor, device: Any) -> Any:
    """Return a new tensor on a device with the values of `array`.

    Values are copied through a small buffer: a driver that gets mapped pages may fault them in, pin or migrate them.

    Parameters
    ----------
    array : np.ndarray or QuantizedTensor
        As for `to_torch`, with any strides. A quantised tensor is decoded to its `dtype`, piece by
        piece.
    device : str, int or torch.device
        Anything that `torch.device` takes.

    Returns
    -------
    torch.Tensor
        Same shape, contiguous.

    Raises
    ------
    UnsupportedError
        torch lacks the dtype, or does not know the device.
    MissingDependencyError
        torch is not installed.
    """
    with Loader(TorchBackend(device)) as loader:
        return send_array(loader, ArrayTransfer("an array", array))


def pour(loader: Loader, transfer: Transfer | ArrayTransfer, target: Any) -> None:
    """Send elements to a tensor of any strides, in the order of the current stream.

    Parameters
    ----------
    loader : Loader
        A loader for the tensor's device, with a `TorchBackend`.
    transfer : Transfer or ArrayTransfer
        As many elements as `target`; torch converts them if the types differ.
    target : torch.Tensor
    """
    torch = imported_torch()
    loader.backend.begin()
    flat = target.detach()
    raw = flat.view(torch.uint8) if str(flat.dtype) == f"torch.{PAIRS}" else flat
    kind = getattr(torch, transfer.dtype)
    ready = raw.dtype == kind and raw.is_contiguous()
    plain = raw if ready else torch.empty(raw.shape, dtype=kind, device=flat.device)
    loader.send(transfer, plain.reshape(-1).view(torch.uint8), 0)
    loader.flush()
    if not ready:
        raw.copy_(plain)
