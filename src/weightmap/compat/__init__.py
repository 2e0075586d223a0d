"""Drop-in for code written against safetensors, on every format that `weightmap.open` reads.

Change the import, keep the code::

    from weightmap.compat import safe_open, load_file, save_file

    with safe_open("model.safetensors", framework="np") as f:
        for name in f.keys():
            part = f.get_slice(name)[:, ::2]

What differs from safetensors 0.8:

- Tensors are views of the mapped file; safetensors copies. With ``framework="np"`` they are read-only; with
  ``framework="pt"`` you may write to them, and the file does not change. For other devices than the CPU, the file is
  mapped read-only and copied through a buffer of a few MiB.
- Slices are numpy's: negative steps, bounds past the end, ``None``, lists and masks (the last two copy).
- ``framework="np"`` has bfloat16 and float8 too, as types of ml_dtypes.
- Quantised tensors are decoded to float32. F4 is torch's type in torch and packed bytes in numpy; F6 is packed bytes in
  both. Neither has slices.
- Errors are weightmap's, and `SafetensorError` is their root. A numpy index out of bounds is an IndexError.
- `save_file` writes atomically, and non-contiguous tensors right. It writes safetensors whatever the suffix; other
  formats take `weightmap.save`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import weightmap as wm
from weightmap.dtypes import DTYPES
from weightmap.errors import ClosedError, EncodeError, TensorFileError, UnsupportedError
from weightmap.formats.safetensors import DTYPE_NAMES
from weightmap.model.foreign import PAIRS, is_torch
from weightmap.model.parts import locate
from weightmap.quant.ref import in_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

__all__ = ["SafetensorError", "load_file", "safe_open", "save_file"]

SafetensorError = TensorFileError

_FRAMEWORKS = {"np": "np", "numpy": "np", "pt": "pt", "torch": "pt", "pytorch": "pt"}

# As safetensors spells the data types, by our names.
_DTYPE_CODES = {name: code for code, name in DTYPE_NAMES.items()}


class safe_open:  # noqa: N801 - the name that safetensors gave it
    """A file whose tensors are arrays or tensors of torch.

    Parameters
    ----------
    filename : str or os.PathLike
        A file of any format, a directory of shards, or anything else that `weightmap.open` takes. Bytes are content.
    framework : str
        ``"np"`` or ``"numpy"`` for arrays; ``"pt"`` or ``"torch"`` for tensors.
    device : str or int, default "cpu"
        Where the tensors of torch go. Arrays are on the CPU.
    backend : str, default "mmap"
        ``"mmap"`` maps the file; ``"pread"`` reads it into memory.

    Raises
    ------
    UnsupportedError
        For an unknown framework or device, or an unsupported file.
    FormatError, OSError
        As `weightmap.open`.
    MissingDependencyError
        ``framework="pt"`` without torch.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: str | int = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        kind = _FRAMEWORKS.get(framework)
        if kind is None:
            raise UnsupportedError("framework", expected="np, numpy, pt or torch", actual=repr(framework))
        if backend not in {"mmap", "pread"}:
            raise UnsupportedError("backend", expected="mmap or pread", actual=repr(backend))
        if kind == "np" and device != "cpu":
            raise UnsupportedError("device", expected="cpu with arrays of numpy", actual=repr(device))
        self._device: Any = None
        if kind == "pt":
            from weightmap.torch import torch_device

            self._device = torch_device(device)
        mode = None if backend == "mmap" else "copy"
        # torch has no read-only tensors; those for another device are copied there, and never written to here.
        if mode is None and self._device is not None and self._device.type == "cpu":
            mode = "copy" if os.environ.get("WEIGHTMAP_MODE") in {"copy", "sealed"} else "cow"
        self._file = wm.open(filename, mode=mode)
        self._closed = False

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file; tensors handed out before stay valid."""
        self._closed = True
        self._file.close()

    def keys(self) -> list[str]:
        """Return the names of the tensors, sorted, as safetensors does."""
        return sorted(self._open_file())

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order of their data, shard after shard where there are several."""
        file = self._open_file()
        if file.layout == "sharded":  # offsets count within the shard
            return list(file)
        infos = sorted(file.infos(), key=lambda info: (info.offset, info.offset + info.nbytes))
        return [info.name for info in infos]

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata as strings, values of other types as JSON; None when the file has none."""
        file = self._open_file()
        metadata = {
            str(key): value if isinstance(value, str) else json.dumps(value, default=str)
            for key, value in file.metadata.items()
        }
        return metadata if metadata or file.has_metadata else None

    def get_tensor(self, name: str) -> Any:
        """Return a tensor, as a view of the file where its type and the device allow it.

        Raises
        ------
        TensorNotFoundError
            The file has no such tensor.
        """
        file = self._open_file()
        value = file[name]
        if self._device is None:
            return _dense(file, name, value)
        from weightmap.torch import STAGE, staged

        if not isinstance(value, np.ndarray) and self._device.type != "cpu":
            runs = (run for tensor in in_pieces(locate(file, name)) for run in tensor.in_runs(STAGE // 4))
            return staged(runs, value.shape, np.dtype(np.float32), self._device)
        return _paired(self._deliver(_dense(file, name, value)), file.info(name))

    def get_tensors(self) -> dict[str, Any]:
        """Return every tensor, in the order of `offset_keys`."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> SafeSlice:
        """Return an object that gives the shape and the type of a tensor, and parts of it by indexing.

        Raises
        ------
        TensorNotFoundError
            The file has no such tensor.
        """
        self._open_file().info(name)  # raises if there is none
        return SafeSlice(self._open_file, name, self.get_tensor, self._deliver)

    def _open_file(self) -> wm.TensorFile:
        if self._closed:
            raise ClosedError("file is closed", path=None if self._file.path is None else str(self._file.path))
        return self._file

    def _deliver(self, array: np.ndarray[Any, Any]) -> Any:
        """Return an array as it is, or as a tensor on the device."""
        if self._device is None:
            return array
        from weightmap.torch import to_device, to_torch

        return to_torch(array) if self._device.type == "cpu" else to_device(array, self._device)


class SafeSlice:
    """Part of a tensor on demand: ``handle.get_slice(name)[2:5, ::-1]``."""

    def __init__(
        self,
        file: Callable[[], wm.TensorFile],
        name: str,
        get_tensor: Callable[[str], Any],
        deliver: Callable[[np.ndarray[Any, Any]], Any],
    ) -> None:
        self._file = file
        self._name = name
        self._get_tensor = get_tensor
        self._deliver = deliver

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        return list(self._file().info(self._name).shape)

    def get_dtype(self) -> str:
        """Return the type as safetensors spells it: ``"F32"``, ``"BF16"`` … (``"F32"`` for quantised tensors)."""
        return _DTYPE_CODES.get(self._file().info(self._name).dtype, "F32")

    def __getitem__(self, index: Any) -> Any:
        """Return what numpy gives for this index, always as an array (of no dimension for one element).

        Raises
        ------
        IndexError
            As numpy: too many indices, or an integer out of bounds.
        UnsupportedError
            For a part of a tensor whose elements are packed below the byte.
        """
        parts = index if isinstance(index, tuple) else (index,)
        dtype = self._file().info(self._name).dtype
        if dtype in DTYPES and DTYPES[dtype].packed:
            if all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts):
                return self._get_tensor(self._name)
            what = f"tensor {self._name!r} packs elements of {DTYPES[dtype].bits} bits, which cannot be sliced"
            raise UnsupportedError(f"{what}: get_tensor gives their bytes")
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, Ellipsis)  # keeps a single element an array, a view, instead of a scalar
        file = self._file()
        value = file[self._name]
        # Quantised tensors are read before they are decoded, as by `TensorFile.read`, and not mapped.
        whole = value if isinstance(value, np.ndarray) else locate(file, self._name).decoder()
        return self._deliver(whole[parts])


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, framework: str = "np", backend: str = "mmap"
) -> dict[str, Any]:
    """Return every tensor of a file.

    Parameters
    ----------
    filename, device, backend
        As for `safe_open`.
    framework : str, default "np"
        ``"pt"`` for what ``safetensors.torch.load_file`` gives.

    Returns
    -------
    dict[str, np.ndarray] or dict[str, torch.Tensor]
        In the order of the data in the file. The tensors keep the mapping alive.
    """
    with safe_open(filename, framework, device, backend=backend) as file:
        return file.get_tensors()


def save_file(
    tensor_dict: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file, atomically.

    Parameters
    ----------
    tensor_dict : mapping of str to np.ndarray or torch.Tensor
        Any strides and byte order. Tensors of torch that share memory are written each in full.
    filename : str or os.PathLike
        Of any suffix.
    metadata : mapping of str to str, optional
        Free text to keep in the file.

    Raises
    ------
    EncodeError
        safetensors cannot express some of the tensors; nothing is written.
    OSError
        The file cannot be written.
    """
    for name, value in tensor_dict.items():
        if not is_torch(value) and not (hasattr(value, "dtype") and hasattr(value, "shape")):
            raise EncodeError(f"tensor {name!r}", expected="an array or a tensor", actual=f"a {type(value).__name__}")
    wm.save(filename, tensor_dict, format="safetensors", metadata=metadata)


def _dense(file: wm.TensorFile, name: str, value: Any) -> np.ndarray[Any, Any]:
    return value if isinstance(value, np.ndarray) else file.read(name, np.float32)


def _paired(tensor: Any, info: wm.TensorInfo) -> Any:
    """Return F4 as pairs, as safetensors does, if torch has these; other tensors, and other torch, as it is."""
    import torch

    pairs = getattr(torch, PAIRS, None)
    if info.dtype != "float4_e2m1fn" or pairs is None or not info.shape or info.shape[-1] % 2:
        return tensor
    return tensor.view(pairs).reshape(*info.shape[:-1], info.shape[-1] // 2)
