"""Arguments of a wrong type: what public functions say of them. Hot paths import this only when they found one."""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["as_float", "as_integer", "as_path", "check_progress", "mistyped"]


def mistyped(name: str, given: object, expected: str) -> TypeError:
    """Return the error for an argument of a wrong type.

    Examples
    --------
    >>> mistyped("gap", "64K", "an integer")
    TypeError('gap must be an integer, not str')
    """
    return TypeError(f"{name} must be {expected}, not {type(given).__name__}")


def as_integer(name: str, given: Any) -> int:
    """Return an argument as an int. Raises TypeError for anything but an integer."""
    try:
        return operator.index(given)
    except TypeError:
        raise mistyped(name, given, "an integer") from None


def as_float(name: str, given: Any) -> float:
    """Return an argument as a float. Raises TypeError for anything but a real number."""
    try:
        if not isinstance(given, (str, bytes, bytearray)):  # float reads their text
            return float(given)
    except TypeError:
        pass
    raise mistyped(name, given, "a number")


def as_path(name: str, given: Any) -> str:
    """Return an argument as the path that it is. Raises TypeError for anything else."""
    try:
        return os.fsdecode(os.fspath(given))
    except TypeError:
        raise mistyped(name, given, "a path (str, bytes or os.PathLike)") from None


def check_progress(progress: Callable[[int, int], None] | None) -> None:
    """Raise TypeError for a `progress` that cannot be called, before any work is done."""
    if progress is not None and not callable(progress):
        raise mistyped("progress", progress, "a function of two numbers, done and total")
