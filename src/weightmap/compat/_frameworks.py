"""The libraries whose tensors `safe_open` hands out, and how to make their tensors from arrays."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import weightmap as wm
from weightmap.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.typing import Mode


def imported(module: str, package: str) -> Any:
    """Import an optional library. Raises `MissingDependencyError` without it."""
    if module_ := sys.modules.get(module):
        return module_
    try:
        return import_module(module)
    except ImportError:
        what = f"'.[{package}]' in a checkout" if package in {"torch", "jax"} else package
        raise MissingDependencyError(f"{package} is needed for this: pip install {what}") from None


class Framework(NamedTuple):
    """One library.

    Attributes
    ----------
    name : str
        Its name in messages.
    devices : bool
        Whether the caller can choose a device for tensors.
    writable : bool
        Whether its tensors are writable, so that they must not lie on a read-only mapping.
    deliver : callable or None
        ``deliver(array)`` returns a tensor on the CPU, without a copy if the library allows that. None for numpy.
    module : str
        The module to import.
    """

    name: str
    devices: bool
    writable: bool
    deliver: Callable[[Any], Any] | None
    module: str

    def mode(self) -> Mode | None:
        """Return the mode to open files in; None for the default."""
        if not self.writable:
            return None
        from weightmap.torch._tensors import writable_mode

        return writable_mode()


def _to_torch(array: Any) -> Any:
    return wm.torch.to_torch(array)


def _to_jax(array: Any) -> Any:
    return wm.jax.to_jax(array)


def _to_tensorflow(array: Any) -> Any:
    return _made_of(array, imported("tensorflow", "tensorflow").convert_to_tensor, "TensorFlow")


def _to_mlx(array: Any) -> Any:
    mlx = imported("mlx.core", "mlx")
    array = array if array.flags.c_contiguous else array.copy()  # the library refuses negative strides
    if array.dtype.name == "bfloat16":
        return mlx.array(array.view("u2")).view(mlx.bfloat16)
    return _made_of(array, mlx.array, "mlx")


def _made_of(array: Any, make: Callable[[Any], Any], library: str) -> Any:
    """Return the tensor that a library makes from an array."""
    try:
        return make(array)
    except (RuntimeError, TypeError, ValueError):
        raise UnsupportedError("data type", expected=f"one that {library} has", actual=array.dtype.name) from None


_NUMPY = Framework("numpy", devices=False, writable=False, deliver=None, module="numpy")
_TORCH = Framework("PyTorch", devices=True, writable=True, deliver=_to_torch, module="torch")
_JAX = Framework("jax", devices=False, writable=False, deliver=_to_jax, module="jax")
_TENSORFLOW = Framework("TensorFlow", devices=False, writable=False, deliver=_to_tensorflow, module="tensorflow")
_MLX = Framework("mlx", devices=False, writable=False, deliver=_to_mlx, module="mlx.core")

_NAMED = {
    **dict.fromkeys(("np", "numpy"), _NUMPY),
    **dict.fromkeys(("pt", "torch", "pytorch"), _TORCH),
    **dict.fromkeys(("flax", "jax"), _JAX),
    **dict.fromkeys(("tf", "tensorflow"), _TENSORFLOW),
    "mlx": _MLX,
}


def framework_named(name: str) -> Framework:
    """Return a framework by any of safetensors' names for it.

    Raises
    ------
    UnsupportedError
        The name is unknown.
    MissingDependencyError
        The library is not installed.
    """
    framework = _NAMED.get(name) if isinstance(name, str) else None
    if framework is None:
        raise UnsupportedError("framework", expected="np, pt, flax, jax, tf or mlx", actual=repr(name))
    imported(framework.module, framework.module.partition(".")[0])
    return framework
