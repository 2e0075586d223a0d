"""The threads that write the tensors of a version: the first error ends all of their work."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from weightmap.io import buffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def exhaust(work: Sequence[Iterator[int]], threads: int, progress: Callable[[int], None]) -> None:
    """Exhaust iterators, each in a thread; `progress` is called with what they yield, by one thread at a time.

    They begin in order. After an error none begins, and those that have begun end where they yield next.
    """
    lock, failed = threading.Lock(), threading.Event()

    def go_through(steps: Iterator[int]) -> None:
        with buffers.keeping():
            for done in steps:
                if failed.is_set():
                    return
                with lock:
                    progress(done)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        futures = [pool.submit(go_through, steps) for steps in work]
        try:
            for future in futures:
                future.result()
        except BaseException:
            failed.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
