"""The scan of a GGUF header: from bytes to key-values and columns. Used by the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._columns import Columns
from weightmap.kernels._native import NULL, Fault, as_input, as_output, fault_of, ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# The fewest bytes of a key-value and of a tensor info, in any version.
GGUF_VALUE_LEAST, GGUF_TENSOR_LEAST = 9, 20
_DIMS: int = lib.WM_GGUF_NDIM
GGUF_KEY_MOST: int = lib.WM_GGUF_KEY
GGUF_DEEPEST: int = lib.WM_GGUF_DEPTH


def ggml_block(number: int) -> tuple[int, int]:
    """Return elements and bytes of a block of the ggml type with this number."""
    return lib.wm_ggml_elements(number), lib.wm_ggml_bytes(number)


def gguf_types(blocks: Sequence[tuple[int, int, int]]) -> Any:
    """Return a table for `GGUFHeader.tensors` from code, block elements and block bytes of each type."""
    types = ffi.new("wm_gguf_type[]", lib.WM_GGUF_TYPES)
    for code, elements, octets in blocks:
        types[code] = (elements, octets)
    return types


class GGUFHeader:
    """A scan in progress: see wm_gguf in scans.h, whose fields are attributes too.

    Parameters
    ----------
    limit : int
        Position that no field may reach past.
    pos : int
        Position of the first key-value.
    count, n_tensors, version, big
        From the file: number of key-values and of tensors, version, whether it is big-endian.
    """

    __slots__ = ("_keys", "_room", "native")

    def __init__(self, limit: int, pos: int, count: int, n_tensors: int, version: int, *, big: bool) -> None:
        self.native = ffi.new("wm_gguf *", (limit, pos, count, n_tensors, version, big))
        self._keys: Any = NULL
        self._room = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def values(self, data: bytes | bytearray) -> Fault | bool:
        """Scan on through the key-values: return True at their end, False if that takes more data, or a fault."""
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
        """Scan tensor infos; return columns, and a state as `values` does. A row past `most` is a fault CAPACITY."""
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
        """Return the position of the value (its type) of a key, or -1."""
        native = self.native
        keys = self._keys
        octets = from_buffer("uint8_t[]", data)
        row = lib.wm_gguf_find(octets, len(data), keys, native.n_keys, key, len(key))
        return -1 if row < 0 else keys[2 * row + 1]

    def keys(self) -> NDArray[np.uint32]:
        """Return the bounds of each key, shape (n_keys, 2)."""
        count = self.native.n_keys
        return np.frombuffer(ffi.buffer(self._keys, 8 * count), np.uint32).reshape(count, 2).copy()

    def skip(self, data: bytes | bytearray, pos: int) -> int:
        """Return the end of the array whose item type is at `pos`."""
        native = self.native
        end: int = lib.wm_gguf_array(from_buffer("uint8_t[]", data), len(data), pos, native.version, native.big)
        return end

    def strings(self, data: NDArray[np.uint8], count: int) -> tuple[NDArray[np.uint32], int]:
        """Return the bounds of an array of strings, and its end; -1 - i if string i does not fit."""
        bounds = np.empty(count + 1, np.uint32)
        native, octets = self.native, as_input(data)
        out = as_output(bounds, "uint32_t[]")
        end = lib.wm_gguf_strings(octets, len(octets), count, native.version, native.big, out)
        return bounds, end
