"""The index of EMBD in C: records that stay where they lie, and the pairs of its metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.kernels._native import fault_of, ffi, from_buffer, lib

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weightmap.kernels._faults import Fault


def pairs_check(data: bytes, count: int) -> Fault | None:
    """Check pairs of strings after their two u16 lengths: structure, UTF-8, unique keys; return a fault or None."""
    fault = ffi.new("wm_fault *")
    return fault_of(fault) if lib.wm_pairs_check(data, len(data), count, fault) else None


def records_check(
    index: bytes | NDArray[np.uint8],
    count: int,
    bits: bytes,
    data_size: int,
    alignment: int,
    max_gap: int,
    *,
    lax: bool,
) -> tuple[int, Fault | None]:
    """Check `count` records as EMBD has them, and the names that lie behind them.

    Returns
    -------
    used : int
        Bytes that the names take.
    fault : Fault or None
        What is wrong with a record or a name.
    """
    used, fault = ffi.new("uint64_t *"), ffi.new("wm_fault *")
    data = index if type(index) is bytes else from_buffer("uint8_t[]", index)
    failed = lib.wm_records_check(
        data, len(data), count, bits, len(bits), data_size, alignment, max_gap, lax, used, fault
    )
    return used[0], fault_of(fault) if failed else None


def records_find(index: bytes | NDArray[np.uint8], count: int, name: bytes) -> int:
    """Return the number of the record of this name, or -1, by one pass over the stored hashes."""
    row: int = lib.wm_records_find(from_buffer("uint8_t[]", index), len(index), count, name, len(name))
    return row
