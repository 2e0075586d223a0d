"""Ratios of two functions' times, taken in turns: on a shared machine times drift from one benchmark to the next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def times_faster(
    ours: Callable[[], object],
    rival: Callable[[], object],
    *,
    rounds: int = 9,
    least: float = 2e-3,
) -> float:
    """Return by how many times `ours` is faster than `rival`: the best of `rounds` rounds of each, in turns.

    A round calls a function as often as fills `least` seconds.
    """
    best = []
    calls = []
    for function in (ours, rival):
        begin = time.perf_counter()
        function()
        once = time.perf_counter() - begin
        best.append(once)
        calls.append(max(1, min(10_000, int(least / max(once, 1e-9)))))
    for _ in range(rounds):
        for i, function in enumerate((ours, rival)):
            begin = time.perf_counter()
            for _ in range(calls[i]):
                function()
            best[i] = min(best[i], (time.perf_counter() - begin) / calls[i])
    return round(best[1] / best[0], 3)
