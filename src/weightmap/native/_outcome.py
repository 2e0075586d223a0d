"""Calls of C that read and write files themselves: where their bytes lie, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.native._native import NULL, as_input, lib

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WHAT = {
    lib.WM_NOT_FINITE: "number",
    lib.WM_UNREADABLE: "read",
    lib.WM_OTHER_UNREADABLE: "read other",
    lib.WM_UNWRITABLE: "write",
}


class Failed(Exception):  # noqa: N818 - callers turn it into an error that names file and tensor
    """Why a call ended early.

    Attributes
    ----------
    what : {"number", "read", "read other", "write"}
        A number is not finite; or the file, the second of two, or the new one failed.
    at : int
        The number, or the byte that could not be read.
    error : int
        An errno; 0 where the file ends.
    """

    def __init__(self, what: str, at: int, error: int) -> None:
        super().__init__(what, at, error)
        self.what: str = what
        self.at: int = at
        self.error: int = error


def place_of(source: int | NDArray[np.uint8]) -> tuple[int, Any, int]:
    """Return descriptor, memory and size as C takes them: -1 for memory; NULL and 0 for a descriptor."""
    if isinstance(source, int):
        return source, NULL, 0
    memory = as_input(source)
    return -1, memory, len(memory)


def check_outcome(outcome: Any) -> None:
    """Raise `Failed` for a ``wm_outcome *`` that says so, and ValueError for sizes that do not fit together."""
    if outcome.what == lib.WM_UNFIT:
        raise ValueError("sizes that do not fit together")
    if outcome.what != lib.WM_DONE:
        raise Failed(_WHAT[outcome.what], outcome.at, outcome.error)
