"""String tables in C: walks, UTF-8, hash index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import NULL, as_input, as_output, ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightmap.kernels._native import Buffer


def walk_strings(data: Buffer, count: int, width: int, bounds: NDArray[np.uint32] | None = None) -> int:
    """Walk `count` strings after lengths of `width` bytes; return the bytes walked, or -1 - i if string i does not fit.

    Fills `bounds`, shape (count + 1,), as kernels.h says.
    """
    buffer = as_input(data)
    out = NULL if bounds is None else as_output(bounds, "uint32_t[]")
    walked: int = lib.wm_walk_strings(buffer, len(buffer), count, width, out)
    return walked


def skip_strings(data: Buffer, count: int, tail: int) -> tuple[int, int]:
    """Walk those of `count` entries that lie whole in `data`: a u32 length, that many bytes, and `tail` bytes.

    Returns their bytes and their number.
    """
    buffer = as_input(data)
    walked = ffi.new("uint64_t *")
    size: int = lib.wm_finalfusion_skip(buffer, len(buffer), count, tail, walked)
    return size, walked[0]


def walk_indexed(data: Buffer, count: int) -> tuple[int, NDArray[np.uint32], NDArray[np.uint64]]:
    """Walk `count` strings, each after a u32 length and before a u64 index.

    The caller checks that `count` is at most a twelfth of the bytes.

    Returns
    -------
    walked : int
        Bytes walked, or -1 - i if entry i does not fit.
    bounds : ndarray of uint32, shape (count + 1,)
        As for `weightmap.index.strings.StringTable`, with gap 12.
    indices : ndarray of uint64, shape (count,)
    """
    buffer = as_input(data)
    bounds, indices = np.empty(count + 1, np.uint32), np.empty(count, np.uint64)
    starts, numbers = as_output(bounds, "uint32_t[]"), as_output(indices, "uint64_t[]")
    walked: int = lib.wm_finalfusion_ngrams(buffer, len(buffer), count, starts, numbers)
    return walked, bounds, indices


def utf8_strings(data: Buffer, bounds: NDArray[np.uint32], gap: int) -> int:
    """Return -1, or the number of the first string within `bounds` that is not strict UTF-8."""
    buffer = as_input(data)
    bad: int = lib.wm_utf8_strings(buffer, len(buffer), from_buffer("uint32_t[]", bounds), len(bounds) - 1, gap)
    return bad


def index_build(data: Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]) -> tuple[int, int, int]:
    """Fill `slots` (a power of two of entries, at least 4/3 of the strings) with a hash index over the strings.

    Returns how many strings equal an earlier one, and the numbers of the first such string and of its original; a count
    of -2 when too many hashes collide, as in an attack.
    """
    buffer, starts, table = as_input(data), from_buffer("uint32_t[]", bounds), as_output(slots, "uint32_t[]")
    pair = ffi.new("uint64_t[2]")
    count = lib.wm_index_build(buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots), pair, pair + 1)
    return count, pair[0], pair[1]


def index_finder(
    data: Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]
) -> Callable[[object], int]:
    """Return a function from a text to the number of the string equal to it, or -1; it keeps the arrays alive."""
    buffer, starts, table = as_input(data), from_buffer("uint32_t[]", bounds), from_buffer("uint32_t[]", slots)
    index = ffi.new("wm_index *", (buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots)))
    keep = (buffer, starts, table)
    lookup = lib.wm_index_lookup

    def finder(text: object, _keep: Any = keep) -> int:
        try:
            raw = text.encode()  # type: ignore[attr-defined]
        except (AttributeError, UnicodeEncodeError):  # no text, or a lone surrogate, which no file can hold
            return -1
        row: int = lookup(index, raw, len(raw))
        return row

    return finder


def index_find_many(
    data: Buffer,
    bounds: NDArray[np.uint32],
    gap: int,
    slots: NDArray[np.uint32],
    names: bytes,
    name_bounds: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """Return the numbers of the strings equal to names[name_bounds[i]:name_bounds[i + 1]], -1 for a missing one."""
    buffer, starts, table = as_input(data), from_buffer("uint32_t[]", bounds), from_buffer("uint32_t[]", slots)
    wanted, count = from_buffer("uint32_t[]", name_bounds), len(name_bounds) - 1
    rows = np.empty(count, np.int64)
    index = (buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots))
    lib.wm_index_find_many(*index, names, len(names), wanted, count, as_output(rows, "int64_t[]"))
    return rows
