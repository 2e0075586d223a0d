"""Fixed-size records used where they lie, and pairs of strings: checks and look-up in C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.kernels._faults import fault_of
from weightmap.kernels._native import NULL, ffi, from_buffer, lib

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weightmap.kernels._faults import Fault


# Valid data allocates no wm_fault, which is a good part of a call's time. A failed check is repeated with one. If it
# then succeeds, because the file is being written to, the data counts as valid.
def pairs_check(data: bytes, count: int) -> Fault | None:
    """Check pairs of strings after their two u16 lengths: structure, UTF-8, unique keys; return a fault or None."""
    if lib.wm_pairs_check(data, len(data), count, NULL) == 0:
        return None
    fault = ffi.new("wm_fault *")
    return fault_of(fault) if lib.wm_pairs_check(data, len(data), count, fault) else None


def records_check(
    index: bytes | NDArray[np.uint8], count: int, rules: Any, data_size: int, room: int, *, lax: bool
) -> int | Fault:
    """Check `count` records of an index by a wm_rules, and the names behind them.

    Returns the bytes of the names, or the fault of a record or a name.
    """
    data = index if type(index) is bytes else from_buffer("uint8_t[]", index)
    asked = (data, len(data), count, rules, data_size, room, lax)
    used: int = lib.wm_records_check(*asked, NULL)
    if used < 0:
        fault = ffi.new("wm_fault *")
        used = lib.wm_records_check(*asked, fault)
    return fault_of(fault) if used < 0 else used


def records_find(index: bytes | NDArray[np.uint8], count: int, name: bytes) -> int:
    """Return the number of the record called `name`, or -1, by one pass over the stored hashes."""
    row: int = lib.wm_records_find(from_buffer("uint8_t[]", index), len(index), count, name, len(name))
    return row
