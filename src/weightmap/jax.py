"""Arrays of jax over the memory of arrays and files; the first call imports ``jax``.

Arrays of jax are immutable, so they may lie on a read-only mapping, which is the default mode::

    with weightmap.open("model.safetensors") as f:
        weight = weightmap.jax.to_jax(f["weight"])

On the CPU, jax shares memory that begins at a multiple of 64 bytes and copies any other. ``weightmap convert SRC DST
--align 64`` writes files whose tensors begin there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.checkpoints.handle import Weights
from weightmap.core.arguments import mistyped, names_moved
from weightmap.core.model.internals import check_copied, is_remote, not_found
from weightmap.core.model.opening import Model, as_handle
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.errors import MissingDependencyError
from weightmap.plans.planning import plan
from weightmap.plans.wants import shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightmap.core.model.file import TensorFile

__all__ = ["load_file", "read_sharded", "to_jax"]


def to_jax(array: np.ndarray[Any, Any] | QuantizedTensor, device: Any = None) -> Any:
    """Return a jax array with the values of `array`.

    Parameters
    ----------
    array : np.ndarray or QuantizedTensor
        Any type that jax has, also bfloat16 and float8 of ml_dtypes; 64-bit types become 32-bit unless jax enables
        them. A quantised tensor is decoded to float32.
    device : jax.Device or jax.sharding.Sharding, optional
        Device or sharding of the result; by default jax's own choice.

    Returns
    -------
    jax.Array
        On the CPU it shares contiguous memory that begins at a multiple of 64 bytes, and keeps that memory, or the
        mapping, alive. Do not write to `array` then.

    Raises
    ------
    MissingDependencyError
        jax is not installed.
    """
    jax = _jax()
    dense = array.dequantize() if isinstance(array, QuantizedTensor) else array
    if not hasattr(dense, "dtype"):
        raise mistyped("array", array, "a numpy array or a QuantizedTensor")
    return jax.device_put(dense if dense.dtype.isnative else dense.astype(dense.dtype.newbyteorder("=")), device)


@names_moved
def load_file(path: Model, sharding: Any = None) -> dict[str, Any]:
    """Return the tensors of a file as jax arrays.

    Parameters
    ----------
    path : TensorFile, or anything that `weightmap.open` takes
        A handle stays open; ``f.weights`` are decoded to the model's type.
    sharding : jax.sharding.Sharding, or mapping or function of names to one, optional
        The sharding of each array; only each device's part is read. None, or a name missing in the mapping, means
        jax's own choice of device.

    Returns
    -------
    dict of str to jax.Array
        In the order of the file. Quantised tensors are decoded to float32.

    Raises
    ------
    FormatError, OSError
        As `weightmap.open`.
    MissingDependencyError
        jax is not installed.
    TensorNotFoundError
        The mapping names a tensor that the file lacks.
    """
    _jax()
    with as_handle(path, private=False) as file:
        choose = _chooser(sharding, file)
        if is_remote(file) and not isinstance(file, Weights):
            return _fetched(file, {name: choose(name) for name in file})
        return {
            name: to_jax(_viewed(file, name)) if placement is None else read_sharded(file, name, placement)
            for name, placement in ((name, choose(name)) for name in file)
        }


def read_sharded(file: TensorFile, name: str, sharding: Any) -> Any:
    """Return a tensor as an array with the given sharding; read only the parts for this process's devices.

    Parameters
    ----------
    file : TensorFile
    name : str
    sharding : jax.sharding.Sharding

    Returns
    -------
    jax.Array

    Raises
    ------
    TensorNotFoundError
    """
    jax = _jax()
    tensor = _viewed(file, name)

    stored = tensor.dtype.newbyteorder("=")

    def part(index: tuple[slice, ...]) -> Any:
        return np.asarray(tensor[index or ...], stored)

    return jax.make_array_from_callback(tensor.shape, sharding, part)


def _fetched(file: TensorFile, shardings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a file in a store: one plan reads the parts for the devices of this process."""
    jax = _jax()
    indices: dict[str, dict[str, Any]] = {}
    for name, sharding in shardings.items():
        shape = shape_of(file.info(name))
        parts = [()] if sharding is None else sharding.addressable_devices_indices_map(shape).values()
        indices[name] = {str(index): index or ... for index in parts}  # slices are not keys before Python 3.12
    pieces: dict[str, list[Any]] = {name: [] for name in shardings}
    with plan(file, [(name, index) for name, parts in indices.items() for index in parts.values()]) as reads:
        for name, array in reads.run():
            pieces[name].append(array)
    result = {}
    for name, sharding in shardings.items():
        if sharding is None:
            result[name] = to_jax(pieces[name][0])
            continue
        arrays = dict(zip(indices[name], map(np.asarray, pieces[name]), strict=True))
        native = {key: array.astype(array.dtype.newbyteorder("="), copy=False) for key, array in arrays.items()}
        result[name] = jax.make_array_from_callback(
            shape_of(file.info(name)), sharding, lambda index, native=native: native[str(index)]
        )
    return result


def _viewed(file: TensorFile, name: str) -> Any:
    """Return a tensor. Raises `LimitError` for a view that jax, which copies it, would make too large."""
    tensor = file[name]
    if isinstance(tensor, np.ndarray) and not tensor.flags.c_contiguous:
        check_copied(file, name, tensor.nbytes)
    return tensor


def _chooser(sharding: Any, file: TensorFile) -> Callable[[str], Any]:
    if sharding is None or hasattr(sharding, "devices_indices_map"):
        return lambda _: sharding
    for name in sharding if hasattr(sharding, "get") else ():
        if name not in file:
            raise not_found(file, name)
    chosen: Callable[[str], Any] = getattr(sharding, "get", sharding)
    return chosen


def _jax() -> Any:
    try:
        import jax
    except ImportError:
        raise MissingDependencyError("jax is needed for this: pip install '.[jax]' in a checkout") from None
    return jax
