"""String tables in C: walks, UTF-8, hash index. Used by weightmap.index.strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import NULL, as_input, as_output, ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightmap.kernels._native import Buffer


def walk_strings(data: Buffer, count: int, width: int, bounds: NDArray[np.uint32] | None = None) -> int:
    """Walk `count` strings, each after a length of `width` bytes; return the bytes walked or -1 - i for string i.

    `bounds`, shape (count + 1,), is filled as kernels.h says.
    """
    buffer = as_input(data)
    out = NULL if bounds is None else as_output(bounds, "uint32_t[]")
    walked: int = lib.wm_walk_strings(buffer, len(buffer), count, width, out)
    return walked


def utf8_strings(data: Buffer, bounds: NDArray[np.uint32], gap: int) -> int:
    """Return -1, or the number of the first string within `bounds` that is not strict UTF-8."""
    buffer = as_input(data)
    bad: int = lib.wm_utf8_strings(buffer, len(buffer), from_buffer("uint32_t[]", bounds), len(bounds) - 1, gap)
    return bad


def index_build(data: Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]) -> tuple[int, int, int]:
    """Fill `slots` (a power of two of entries, at least 4/3 of the strings) with a hash index over the strings.

    Returns how many strings equal an earlier one, and the numbers of the first such string and of its original; a count
    of -2 when somebody made the hashes collide.
    """
    buffer = as_input(data)
    pair = ffi.new("uint64_t[2]")
    count = lib.wm_index_build(
        buffer,
        len(buffer),
        from_buffer("uint32_t[]", bounds),
        len(bounds) - 1,
        gap,
        as_output(slots, "uint32_t[]"),
        len(slots),
        pair,
        pair + 1,
    )
    return count, pair[0], pair[1]


def index_finder(
    data: Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]
) -> Callable[[object], int]:
    """Return a function from a text to the number of the string equal to it, or -1. It keeps the arrays alive."""
    buffer, starts, table = as_input(data), from_buffer("uint32_t[]", bounds), from_buffer("uint32_t[]", slots)
    index = ffi.new("wm_index *", (buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots)))
    keep = (buffer, starts, table)
    lookup = lib.wm_index_lookup

    def finder(text: object, _keep: Any = keep) -> int:
        try:
            raw = text.encode()  # type: ignore[attr-defined]
        except (AttributeError, UnicodeEncodeError):  # no text, or a lone surrogate: no file can hold it
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
    """Return the numbers of the strings equal to names[name_bounds[i]:name_bounds[i + 1]], -1 where there is none."""
    buffer = as_input(data)
    rows = np.empty(len(name_bounds) - 1, np.int64)
    lib.wm_index_find_many(
        buffer,
        len(buffer),
        from_buffer("uint32_t[]", bounds),
        len(bounds) - 1,
        gap,
        from_buffer("uint32_t[]", slots),
        len(slots),
        names,
        len(names),
        from_buffer("uint32_t[]", name_bounds),
        len(name_bounds) - 1,
        as_output(rows, "int64_t[]"),
    )
    return rows
