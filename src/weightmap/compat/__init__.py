"""The interface of safetensors 0.8 and 0.9, on every format that `weightmap.open` reads.

Change the import, keep the code::

    from weightmap.compat import safe_open
    from weightmap.compat.torch import load_file, save_file

    with safe_open("model.safetensors", framework="pt") as f:
        for name in f.keys():
            part = f.get_slice(name)[:, ::2]

`patched` does that for libraries that import safetensors themselves: transformers, accelerate, peft, diffusers.

Modules and names as in safetensors: ``compat.{torch,numpy,flax,tensorflow,mlx}``, each with ``load``,
``load_file``, ``save`` and ``save_file``; ``load_model`` and ``save_model`` of ``compat.torch``; `serialize`,
`serialize_file`, `deserialize`, `TensorSpec`. `load_file` and `save_file` of this module take arrays and tensors alike.

Deliberate differences:

- Tensors are views of the mapped file; safetensors copies. With ``framework="np"`` they are read-only; with
  ``framework="pt"`` you may write to them without changing the file. For devices other than the CPU, the file is mapped
  read-only and copied through a buffer of a few MiB.
- Slices are numpy's: negative steps, bounds past the end, ``None``, lists and masks (the last two copy). With
  ``backend="pread"``, a slice reads its own bytes and not the whole tensor.
- ``framework="np"`` also has bfloat16 and float8, as types of ml_dtypes.
- Quantised tensors are decoded to float32. F4 is torch's type in torch and packed bytes elsewhere; F6 is packed bytes.
  Neither has slices.
- Errors are weightmap's, and `SafetensorError` is their root. Where safetensors raises a built-in exception, ours
  derives from it too: IndexError, ValueError, RuntimeError.
- Saving is atomic, and keeps the permissions of the replaced file. `save_file` writes safetensors whatever the suffix;
  for other formats, use `weightmap.save`.
- `load_model` leaves the module unchanged when names or shapes do not fit.
- Paddle is not supported.

docs/safetensors.md has the whole list, with the cases of safetensors' own tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.compat._reading import SafeSlice
from weightmap.compat._safe_open import load_file, safe_open
from weightmap.compat._safe_open import open_handle as _safe_open_handle
from weightmap.core.hooks import on_demand
from weightmap.errors import TensorFileError as SafetensorError

if TYPE_CHECKING:
    from weightmap.compat._patching import patched
    from weightmap.compat._prefetching import PrefetchError, PrefetchLoader, TensorMeta
    from weightmap.compat._saving import TensorSpec, deserialize, save_file, serialize, serialize_file

PySafeSlice = SafeSlice

__all__ = [
    "PrefetchError",
    "PrefetchLoader",
    "PySafeSlice",
    "SafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "_safe_open_handle",
    "deserialize",
    "load_file",
    "patched",
    "safe_open",
    "save_file",
    "serialize",
    "serialize_file",
]

_MODULES = ("flax", "gguf", "mlx", "numpy", "tensorflow", "torch")
__getattr__, _names = on_demand(
    __name__,
    globals(),
    dict.fromkeys(("TensorSpec", "deserialize", "save_file", "serialize", "serialize_file"), "_saving")
    | dict.fromkeys(("PrefetchError", "PrefetchLoader", "TensorMeta"), "_prefetching")
    | {"patched": "_patching"},
    _MODULES,
)


def __dir__() -> list[str]:
    return sorted({*_names(), *_MODULES})
