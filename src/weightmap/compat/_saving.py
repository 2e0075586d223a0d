"""Writing as safetensors does: `save_file`, `serialize` of memory at an address, and the reverse, `deserialize`."""

from __future__ import annotations

import ctypes
import math
import os
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap._messages import quoted
from weightmap.compat._reading import code_of, dtype_of
from weightmap.compat._safe_open import safe_open
from weightmap.core.arguments import as_integer, as_path
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.sink import WritePlan, to_bytes
from weightmap.core.dtypes import DTYPES, PAIRS
from weightmap.core.formats import Payload, Request, Tensors, by_name
from weightmap.core.formats.safetensors import DTYPE_NAMES
from weightmap.core.model.saving import check_mappings, from_arrays, is_torch, plan_request
from weightmap.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_FORMAT = by_name("safetensors")
# The types that `TensorSpec` takes, by numpy's and torch's names.
_STORABLE = {name: DTYPES[name] for name in DTYPE_NAMES.values() if not DTYPES[name].packed}
_STORABLE[PAIRS] = DTYPES["float4_e2m1fn"]


class TorchEncodeError(EncodeError, RuntimeError):
    """Tensors of torch cannot be written as they are: some share memory, or have no data."""


# ------------------------------------------------------------------------------------------------- arrays and tensors


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return arrays or tensors as the content of a safetensors file."""
    return to_bytes(_planned("<bytes>", _checked(tensors), metadata))


def save_file(
    tensor_dict: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file, atomically.

    Parameters
    ----------
    tensor_dict : mapping of str to np.ndarray, torch.Tensor or jax.Array
        Any strides and byte order.
    filename : str or os.PathLike
        May have any suffix.
    metadata : mapping of str to str, optional
        Free text to keep in the file.

    Raises
    ------
    EncodeError
        safetensors cannot express some of the tensors; nothing is written. If torch tensors share memory or have no
        data, it is a RuntimeError too; `weightmap.save` writes each tensor that shares memory in full.
    OSError
        The file cannot be written.
    """
    # Not `wm.save`, which refuses to write beside an index of this name: transformers writes over its older models.
    path = as_path("filename", filename)
    write_plan(path, _planned(path, _checked(tensor_dict), metadata))


def _checked(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse what safetensors refuses."""
    if not hasattr(tensors, "items"):
        raise EncodeError(f"Expected a dict of [str, tensor] but received {type(tensors)}")
    for name, value in tensors.items():
        if not is_torch(value) and not (hasattr(value, "dtype") and hasattr(value, "shape")):
            actual = f"a {type(value).__name__}"
            raise EncodeError(f"tensor {quoted(name)}", expected="an array or a tensor", actual=actual)
    check_torch({name: value for name, value in tensors.items() if is_torch(value)})
    return tensors


def check_torch(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors of torch that have no data, or that share memory: they would be written more than once."""
    if not tensors:
        return
    without = [name for name, tensor in tensors.items() if tensor.device.type == "meta"]
    if without:
        raise TorchEncodeError(f"Cannot copy out of meta tensor: no data in {', '.join(map(quoted, without))}")
    failing = [names for names in shared(tensors) if len(names) > 1]
    if failing:
        what = f"Some tensors share memory, and each of them would be written in full: {failing}"
        raise TorchEncodeError(f"{what}; save_model writes one of each, weightmap.save all")


def shared(tensors: Mapping[str, Any]) -> list[set[str]]:
    """Return the names of tensors of torch in groups that share memory.

    Tensors without data are omitted; disjoint tensors in one storage have separate groups.
    """
    storages: dict[tuple[Any, int, int], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        storage, size = storage_of(tensor)
        if tensor.device.type != "meta" and storage and size:
            storages.setdefault((tensor.device, storage, size), []).append((*extent(tensor), name))
    groups: list[set[str]] = []
    for places in storages.values():
        reach = -1
        for start, stop, name in sorted(places):
            if start >= reach:
                groups.append(set())
            groups[-1].add(name)
            reach = max(reach, stop)
    return groups


def storage_of(tensor: Any) -> tuple[int, int]:
    """Return address and bytes of the memory behind a torch tensor; address 0 without memory."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (AttributeError, NotImplementedError, RuntimeError):  # sparse, or a subclass without its own memory
        return 0, 0


def extent(tensor: Any) -> tuple[int, int]:
    """Return the addresses of the first byte of a torch tensor and of the byte after its last."""
    start: int = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (steps + 1) * tensor.element_size()


# --------------------------------------------------------------------------------------------- memory by its address


class TensorSpec:
    """A tensor by the address of its memory, for `serialize` and `serialize_file`.

    Parameters
    ----------
    dtype : str
        The name of numpy or torch: "float32", "bfloat16", "float4_e2m1fn_x2".
    shape : sequence of int
        The shape in that library; for "float4_e2m1fn_x2", whose elements are pairs, the last dimension is doubled.
    data_ptr : int
        The address of contiguous, little-endian memory, which must exist until the tensor is written.
    data_len : int
        Its size in bytes.

    Raises
    ------
    EncodeError
        The type is unknown.
    """

    __slots__ = ("_dtype", "data_len", "data_ptr", "shape")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        dtype_ = _STORABLE.get(dtype)
        if dtype_ is None:
            raise EncodeError(f"Unknown dtype {dtype!r}. Supported dtypes: {', '.join(_STORABLE)}")
        dims = [as_integer("shape", size) for size in shape]
        self.data_ptr: int = as_integer("data_ptr", data_ptr)
        self.data_len: int = as_integer("data_len", data_len)
        if min(*dims, self.data_ptr, self.data_len) < 0:
            raise EncodeError("shape, address and size of a tensor cannot be negative")
        if dtype_.packed and dims:
            dims[-1] *= 2
        self._dtype = dtype_
        self.shape: list[int] = dims

    @property
    def dtype(self) -> str:
        """The type's name in safetensors, such as "F32"."""
        return code_of(self._dtype.name)

    def __repr__(self) -> str:
        return (
            f"TensorSpec(dtype='{self.dtype}', shape={self.shape}, data_ptr={self.data_ptr}, data_len={self.data_len})"
        )

    def payload(self, name: str) -> Payload:
        """Return the tensor as a payload to write."""
        dtype, shape = self._dtype, tuple(self.shape)
        nbytes = math.prod(shape) * dtype.bits // 8
        if nbytes != self.data_len or (nbytes and not self.data_ptr):
            what = f"tensor {quoted(name)} of {self.data_len} bytes at address {self.data_ptr}"
            raise EncodeError(what, expected=f"{nbytes} bytes for {self.dtype} of shape {self.shape}")
        return Payload(name, dtype, shape, nbytes, self._octets)

    def _octets(self) -> Iterable[memoryview]:
        if self.data_len:
            yield memoryview((ctypes.c_ubyte * self.data_len).from_address(self.data_ptr)).cast("B")


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors in memory as the content of a safetensors file.

    Raises
    ------
    EncodeError
        The size of a tensor does not match its shape, or safetensors cannot express the request.
    TypeError
        A value is not a `TensorSpec`.
    """
    return to_bytes(_plan("<bytes>", _payloads(tensor_dict), metadata))


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors in memory to a safetensors file, atomically.

    Raises
    ------
    EncodeError, TypeError
        As `serialize`; nothing is written.
    OSError
        The file cannot be written.
    """
    path = os.fsdecode(os.fspath(filename))
    write_plan(path, _plan(path, _payloads(tensor_dict), metadata))


def deserialize(bytes: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the tensors of a file's content: name, and "shape", "dtype" and "data" as a bytearray.

    Parameters
    ----------
    bytes : bytes-like
        The content of a file of any format that `weightmap.open` reads.

    Raises
    ------
    FormatError
        As `weightmap.open`.
    """
    with wm.open(memoryview(bytes)) as file:
        entries = []
        for info in file.infos():
            array = file[info.name]
            octets = array if hasattr(array, "nbytes") and hasattr(array, "tobytes") else file.read(info.name)
            shape, dtype = list(info.shape), code_of(dtype_of(file, info))
            entries.append((info.name, {"shape": shape, "dtype": dtype, "data": bytearray(octets.tobytes())}))
        return entries


def load(data: Any, framework: str) -> dict[str, Any]:
    """Return the tensors of a file's content.

    Raises
    ------
    TypeError
        `data` is not bytes, but perhaps a path.
    """
    with safe_open(memoryview(data), framework) as file:  # type: ignore[arg-type]
        return file.get_tensors()


def _payloads(tensor_dict: Mapping[str, TensorSpec]) -> list[Payload]:
    check_mappings(tensor_dict)
    for name, spec in tensor_dict.items():
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"tensor {quoted(name)} is a {type(spec).__name__}, expected a TensorSpec")
    return [spec.payload(name) for name, spec in tensor_dict.items()]


def _planned(path: str, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None) -> WritePlan:
    try:
        payloads = from_arrays(tensors)
    except EncodeError as error:
        raise error.located(path=path) from None
    return _plan(path, payloads, metadata)


def _plan(path: str, payloads: list[Payload], metadata: Mapping[str, str] | None) -> WritePlan:
    check_mappings({}, metadata=metadata)
    request = Request(Tensors(payloads), _FORMAT.layouts[0], metadata)
    return plan_request(path, _FORMAT, request, "give tensors of TYPE", "leave these out")
