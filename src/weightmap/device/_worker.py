"""`Worker`: the thread of one load, which reads and sends what comes next while the caller uses what is there."""

from __future__ import annotations

import contextlib
import os
from _thread import allocate_lock, get_ident, start_new_thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable

# An interrupt may take a lock's only release with it: flags decide, and locks spare the time between two looks.
_LOOK = 1.0


class Worker:
    """A thread that makes one call at a time. It starts with the first call and is gone after `end`."""

    def __init__(self) -> None:
        self._asked, self._told = allocate_lock(), allocate_lock()
        self._asked.acquire()
        self._told.acquire()
        self._call: Callable[[], object] | None = None
        self._then: Callable[[], object] | None = None
        self._error: BaseException | None = None
        self._ident: int | None = None
        self._owner = os.getpid()
        self._started = self._finished = self._ending = self._gone = False

    def begin(self, call: Callable[[], object]) -> None:
        """Let the thread make a call; `wait` before the next one."""
        self._call, self._finished = call, False
        if not self._started:
            try:
                start_new_thread(self._work, ())
            except RuntimeError:  # no thread to be had: `wait` makes the call
                return
            self._started = True
        _release(self._asked)

    def wait(self) -> None:
        """Return when the call is made. Raises its error."""
        if not self._started:
            self._make()
        while not self._finished:
            self._told.acquire(timeout=_LOOK)
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            error = None  # its traceback has this frame: together they would keep files open

    def end(self, then: Callable[[], object]) -> BaseException | None:
        """End the thread, then call `then`, however often this is interrupted; return the last interrupt.

        The call that is being made comes to its end. Where garbage is collected in the thread itself, `then` waits for
        that, and this does not.
        """
        self._ending = True
        if self._ident == get_ident():
            self._then = then
            return None
        interrupt = None
        _release(self._asked)
        while self._started and not self._gone and self._owner == os.getpid():
            try:
                self._told.acquire(timeout=_LOOK)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                interrupt = error
        then()
        return interrupt

    def _make(self) -> None:
        call, self._call = self._call, None
        try:
            if call is not None:
                call()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._error = error
        self._finished = True

    def _work(self) -> None:
        self._ident = get_ident()
        while not self._ending:
            if not self._asked.acquire(timeout=_LOOK):
                continue
            self._make()
            _release(self._told)
        then, self._then = self._then, None
        self._gone = True
        _release(self._told)
        if then is not None:
            then()


def _release(lock: LockType) -> None:
    """Release a lock that may be free already."""
    with contextlib.suppress(RuntimeError):
        lock.release()
