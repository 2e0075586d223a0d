"""The index of EMBD in C: records that stay where they lie, and the pairs of its metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.kernels._faults import fault_of
from weightmap.kernels._native import NULL, ffi, from_buffer, lib

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weightmap.kernels._faults import Fault


# Of what is in order nothing is to be told, and a wm_fault is a good part of what a call costs. So a check that fails
# is made once more, with one; and when it does not fail then, because somebody writes to the file, it did not fail.
def pairs_check(data: bytes, count: int) -> Fault | None:
    """Check pairs of strings after their two u16 lengths: structure, UTF-8, unique keys; return a fault or None."""
    if lib.wm_pairs_check(data, len(data), count, NULL) == 0:
        return None
    fault = ffi.new("wm_fault *")
    return fault_of(fault) if lib.wm_pairs_check(data, len(data), count, fault) else None


def records_check(
    index: bytes | NDArray[np.uint8],
    count: int,
    rules: Any,
    data_size: int,
    room: int,
    *,
    lax: bool,
) -> int | Fault:
    """Check `count` records as EMBD has them by a wm_rules, and the names that lie behind them.

    Returns the bytes that the names take, or what is wrong with a record or a name.
    """
    data = index if type(index) is bytes else from_buffer("uint8_t[]", index)
    asked = (data, len(data), count, rules, data_size, room, lax)
    used: int = lib.wm_records_check(*asked, NULL)
    if used < 0:
        fault = ffi.new("wm_fault *")
        used = lib.wm_records_check(*asked, fault)
    return fault_of(fault) if used < 0 else used


def records_find(index: bytes | NDArray[np.uint8], count: int, name: bytes) -> int:
    """Return the number of the record of this name, or -1, by one pass over the stored hashes."""
    row: int = lib.wm_records_find(from_buffer("uint8_t[]", index), len(index), count, name, len(name))
    return row
