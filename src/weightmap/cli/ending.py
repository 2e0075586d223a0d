"""Signals that end a command: its work is undone first, and no half-written file stays."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# Sent to stop a service, and by a terminal that closes. (Ctrl+C raises an exception in Python anyway.)
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Ended(BaseException):
    """A signal that ends this process has come."""


def undoing(command: Callable[[], int]) -> int:
    """Call a command and return its status. After undoing, a signal ends the process as it would have without us.

    Signals that are ignored (nohup) or handled already stay so, and all do outside the main thread.
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
