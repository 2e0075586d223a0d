"""Signals that end a command: first what it has begun is undone, and no file that is half written stays."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["undoing"]

# Sent by whoever stops a service, and when a terminal is closed. (That of Ctrl+C is an exception of Python's anyway.)
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Ended(BaseException):
    """A signal has come that ends this process."""


def undoing(command: Callable[[], int]) -> int:
    """Call a command and return what it returns. A signal that ends it ends the process, as if nobody had noticed.

    Signals that are ignored (nohup) or handled already stay so, as do all of them outside the main thread.
    """
    came: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise _Ended

    taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    try:
        try:
            for number in taken:
                signal.signal(number, end)
        except ValueError:  # not the main thread
            taken = []
        return command()
    except _Ended:
        return 0
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
        if came:
            signal.raise_signal(came[0])
