"""The header of a GGUF file: from its bytes to key-values and columns. Used by the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._columns import Columns
from weightmap.kernels._faults import fault_of
from weightmap.kernels._native import NULL, as_input, as_output, ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightmap.kernels._faults import Fault

# Fewest bytes of a key-value and of a tensor info, in any version.
GGUF_VALUE_LEAST, GGUF_TENSOR_LEAST = 9, 20
_DIMS: int = lib.WM_GGUF_NDIM
GGUF_KEY_MOST: int = lib.WM_GGUF_KEY
GGUF_DEEPEST: int = lib.WM_GGUF_DEPTH


def ggml_block(number: int) -> tuple[int, int]:
    """Return elements and bytes of a block of ggml's type of this number."""
    return lib.wm_ggml_elements(number), lib.wm_ggml_bytes(number)


def gguf_types(blocks: Sequence[tuple[int, int, int]]) -> Any:
    """Return a table of types for `GGUFHeader.tensors`: code, elements of a block and their bytes of each."""
    types = ffi.new("wm_gguf_type[]", lib.WM_GGUF_TYPES)
    for code, elements, octets in blocks:
        types[code] = (elements, octets)
    return types


class GGUFHeader:
    """What is known of a header so far: see wm_gguf in kernels.h.

    Parameters
    ----------
    limit : int
        No field reaches past it.
    version, big, count, n_tensors
        As the file says: its version, whether it is big-endian, how many key-values and tensors it has.
    pos : int
        Where the key-values begin.

    Attributes
    ----------
    native : wm_gguf
        Its fields are attributes of this object too.
    """

    __slots__ = ("_keys", "_room", "native")

    def __init__(self, limit: int, pos: int, count: int, n_tensors: int, version: int, *, big: bool) -> None:
        self.native = ffi.new("wm_gguf *", (limit, pos, count, n_tensors, version, big))
        self._keys: Any = NULL
        self._room = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def values(self, data: bytes | bytearray) -> Fault | bool:
        """Go on with the key-values, by what has been read: True when they are done, False when that takes more."""
        native = self.native
        room = min(native.count, len(data) // GGUF_VALUE_LEAST + 1)
        if room > self._room:
            keys = ffi.new("uint32_t[]", 2 * room)
            ffi.memmove(keys, self._keys, 8 * native.n_keys)
            self._keys, self._room = keys, room
        fault = ffi.new("wm_fault *")
        state = lib.wm_gguf_values(from_buffer("uint8_t[]", data), len(data), self._keys, room, native, fault)
        return fault_of(fault) if state < 0 else state == 0

    def tensors(self, data: bytes | bytearray, types: Any, most: int) -> tuple[Columns, Fault | bool]:
        """Read the tensor infos: columns, and what `values` returns. `most` rows are read: a fault CAPACITY."""
        native = self.native
        left = len(data) - native.pos
        count = min(native.n_tensors, left // GGUF_TENSOR_LEAST + 1, most)
        columns = Columns.scratch(left, count, _DIMS * count)
        fault = ffi.new("wm_fault *")
        octets = from_buffer("uint8_t[]", data)
        state = lib.wm_gguf_tensors(octets, len(data), types, columns.native, native, fault)
        columns.n_dims, columns.names_len = native.n_dims, native.names_len
        return columns, fault_of(fault) if state < 0 else state == 0

    def find(self, data: bytes | bytearray, key: bytes) -> int:
        """Return where the type of the value of this key stands; -1 where there is none."""
        native = self.native
        keys = self._keys
        octets = from_buffer("uint8_t[]", data)
        row = lib.wm_gguf_find(octets, len(data), keys, native.n_keys, key, len(key))
        return -1 if row < 0 else keys[2 * row + 1]

    def keys(self) -> NDArray[np.uint32]:
        """Return where each key begins and ends, shape (n_keys, 2)."""
        count = self.native.n_keys
        return np.frombuffer(ffi.buffer(self._keys, 8 * count), np.uint32).reshape(count, 2).copy()

    def skip(self, data: bytes | bytearray, pos: int) -> int:
        """Return where an array of the header ends the type of whose items stands at `pos`."""
        native = self.native
        end: int = lib.wm_gguf_array(from_buffer("uint8_t[]", data), len(data), pos, native.version, native.big)
        return end

    def strings(self, data: NDArray[np.uint8], count: int) -> tuple[NDArray[np.uint32], int]:
        """Return the bounds of an array of strings, and where it ends; -1 - i where string i does not fit."""
        bounds = np.empty(count + 1, np.uint32)
        native, octets = self.native, as_input(data)
        out = as_output(bounds, "uint32_t[]")
        end = lib.wm_gguf_strings(octets, len(octets), count, native.version, native.big, out)
        return bounds, end
