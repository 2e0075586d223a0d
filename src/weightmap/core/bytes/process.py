"""Per-process objects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """An object with threads or locks, made anew in each forked child.

    Threads do not survive a fork, and a lock held meanwhile is never released.

    Parameters
    ----------
    make : callable
        Makes the object: now, and in each forked child.

    Attributes
    ----------
    own : object
        The one of this process.
    """

    __slots__ = ("_make", "own")

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.own: _T = self._make()
