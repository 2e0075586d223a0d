"""The threads that work on the tensors of a version: the first error ends all of their work, and so does an interrupt.

A handler of a signal raises its exception in the main thread, wherever that is: within a condition, which then releases
a lock that it does not have, or while a thread is started or joined, which is then lost. So the main thread does none
of these: one thread starts the others and waits for them, and the caller waits for that one until all have ended.
"""

from __future__ import annotations

import _thread
import threading
import time
from typing import TYPE_CHECKING

from weightmap.io import buffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Seconds between two looks at threads that end; and between those at the end of all work, if nobody is woken for it.
_SHORT, _LONG = 0.001, 0.1


def exhaust(work: Sequence[Iterator[int]], threads: int, progress: Callable[[int], None]) -> None:
    """Exhaust iterators, each in a thread; `progress` is called with what they yield, by one thread at a time.

    They begin in order. After an error or an interrupt none begins, and those that have begun end where they yield
    next; no thread is left when this ends.
    """
    crew = _Crew(work, min(threads, len(work)), progress)
    try:
        _thread.start_new_thread(crew.supervise, ())
        crew.wait()
    finally:
        try:
            crew.end()
        except BaseException:  # an interrupt of the end itself
            crew.end()
            raise
    if crew.errors:
        error = crew.errors[0]
        crew.errors.clear()  # it has a traceback, which has this crew
        try:
            raise error
        finally:
            del error


class _Crew:
    """Threads and their work."""

    def __init__(self, work: Sequence[Iterator[int]], threads: int, progress: Callable[[int], None]) -> None:
        self._left, self._threads, self._progress = list(reversed(work)), threads, progress
        self._lock, self._telling, self._awake = threading.Lock(), threading.Lock(), threading.Lock()
        self._awake.acquire()
        self._stopped = self._begun = self._ended = False
        self.errors: list[BaseException] = []

    def supervise(self) -> None:
        """Start the threads, and wait for their end: in a thread of its own."""
        with self._lock:
            if self._stopped:
                return
            self._begun = True
        crew: list[threading.Thread] = []
        try:
            for _ in range(self._threads):
                # Whether it is a daemon is said, and its end looked for: otherwise Python would register this thread.
                crew.append(threading.Thread(target=self._go_through, daemon=False))
                crew[-1].start()
        except BaseException as error:  # noqa: BLE001 - the caller gets it, such as that there are too many threads
            self._fail(error)
            crew.pop()
        for each in crew:
            while each.is_alive():
                time.sleep(_SHORT)
        with self._lock:
            self._left.clear()  # this thread lives a moment longer than the caller waits
        self._ended = True
        self._awake.release()

    def wait(self) -> None:
        """Wait for the end of all work."""
        while not self._ended:
            self._awake.acquire(timeout=_LONG)

    def end(self) -> None:
        """Let no work begin, and wait for the end of what has begun."""
        with self._lock:
            self._stopped, begun = True, self._begun
            self._left.clear()  # the thread that starts the others may yet begin, and has no part in their files
        if begun:
            self.wait()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.errors.append(error)
            self._stopped = True

    def _next(self) -> Iterator[int] | None:
        with self._lock:
            return self._left.pop() if self._left and not self._stopped else None

    def _go_through(self) -> None:
        try:
            with buffers.keeping():
                while (steps := self._next()) is not None:
                    for done in steps:
                        if self._stopped:
                            return
                        if done:
                            with self._telling:
                                self._progress(done)
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._fail(error)
