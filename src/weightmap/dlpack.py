"""Arrays for other libraries, by the DLPack protocol: also bfloat16, float8 and read-only memory.

``numpy.ndarray`` has the protocol, too, but refuses types of ml_dtypes, and refuses read-only memory to consumers that
do not declare that they know it::

    with weightmap.open("model.safetensors") as f:
        shared = numpy.from_dlpack(weightmap.dlpack.export(f["weight"]))  # no copy, read-only

A consumer keeps the memory, and with it the mapping, as long as it needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.arguments import mistyped
from weightmap.core.native.access import dlpack_capsule
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Exported", "export"]

# DLPack's codes for numpy's kinds, and for the types of ml_dtypes.
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED = {
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
_CPU = (1, 0)
_READ_ONLY, _COPIED = 1, 2
# DLPack counts the bits of an element in a byte.
_MAX_ITEMSIZE = 31
# Libraries with immutable arrays that do not declare that they know read-only memory.
_IMMUTABLE = ("jax", "jaxlib")


def export(array: NDArray[Any] | QuantizedTensor) -> Exported:
    """Return an object that other libraries take by DLPack, for example ``numpy.from_dlpack(export(a))``.

    Parameters
    ----------
    array : np.ndarray or QuantizedTensor
        A quantised tensor is decoded to float32.

    Returns
    -------
    Exported
        With ``__dlpack__`` and ``__dlpack_device__``.

    Raises
    ------
    UnsupportedError
        DLPack has no such type.
    """
    if not hasattr(array, "dtype"):
        raise mistyped("array", array, "a numpy array or a QuantizedTensor")
    return Exported(array.dequantize() if isinstance(array, QuantizedTensor) else array)


class Exported:
    """The memory of an array, for consumers of DLPack: see `export`.

    Consumers of version 1, such as numpy, get read-only memory with a flag that marks it; consumers of version 0 get a
    copy, because they do not know the flag. Two consumers are known by name. jax, whose arrays are immutable, gets the
    memory itself. torch ignores the flag, so that a write would end the process; it gets a copy, or with ``copy=False``
    an error. A capsule that you request yourself, by ``__dlpack__(max_version=(1, 0))``, is only as safe as its
    consumer.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        dtype = array.dtype
        code = _NAMED.get(dtype.name, _KINDS.get(dtype.kind))
        if code is None or dtype.itemsize > _MAX_ITEMSIZE:
            raise UnsupportedError("data type", expected="one that DLPack has", actual=dtype.name)
        self._array = array
        self._code = code

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the type and the number of the device: the CPU."""
        return _CPU

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a capsule with the memory of the array, or of a copy.

        Parameters
        ----------
        stream : None
            The CPU has none.
        max_version : tuple of int, optional
            The version of DLPack that the consumer knows; None for version 0.
        dl_device : tuple of int, optional
            The consumer's device, which must be the CPU.
        copy : bool, optional
            None copies when necessary: read-only memory for a consumer that does not know the flag, misaligned or
            byte-swapped elements, strides between elements, and negative strides for torch. True always copies, False
            never does.

        Raises
        ------
        BufferError
            ``copy=False`` and a copy is needed; or the device is not the CPU.
        """
        if dl_device is not None and tuple(dl_device) != _CPU:
            raise BufferError("the array lies on the CPU: it cannot be exported to another device")
        if stream is not None:
            raise BufferError("memory of the CPU has no stream")
        array = self._array
        versioned = max_version is not None and max_version[0] >= 1
        reason, consumer = _unfit(array), _consumer()
        if consumer == "torch" and min(array.strides, default=0) < 0:
            reason = "torch ends the process at a negative stride"
        if reason is None and not array.flags.writeable:
            if consumer == "torch":
                reason = 'torch would write to read-only memory: open the file with mode="cow", or copy'
            elif not versioned and consumer not in _IMMUTABLE:
                reason = "the consumer cannot know that the memory is read-only"
        if reason is not None and copy is False:
            raise BufferError(f"no export without a copy: {reason}")
        if copy or reason is not None:
            array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
            return dlpack_capsule(array, self._code, _COPIED if versioned else None)
        return dlpack_capsule(array, self._code, (0 if array.flags.writeable else _READ_ONLY) if versioned else None)


def _unfit(array: NDArray[Any]) -> str | None:
    """Return why DLPack cannot describe the memory of an array, or None if it can."""
    if not array.dtype.isnative:
        return "the elements are byte-swapped"
    if not array.flags.aligned:
        return "the elements are misaligned"
    if any(stride % array.itemsize for stride in array.strides):
        return "the elements lie between multiples of their size"
    return None


def _consumer() -> str:
    """Return the package whose function called `Exported.__dlpack__`."""
    name = sys._getframe(2).f_globals.get("__name__")  # noqa: SLF001 - the protocol does not tell
    return name.partition(".")[0] if isinstance(name, str) else ""
