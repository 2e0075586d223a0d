"""A table of tensors as C takes it, and its answers."""

from typing import Any

from weightmap._kernels import ffi

U64 = 2**64 - 1


def rules(bits: bytes, *, min_ndim: int = 0, max_ndim: int = 255, alignment: int = 1, max_gap: int = 0) -> Any:
    """A wm_rules: bits of an element by dtype code, and the other rules for every row."""
    return ffi.new("wm_rules *", (min_ndim, max_ndim, alignment, max_gap, bits.ljust(256, b"\0")))
