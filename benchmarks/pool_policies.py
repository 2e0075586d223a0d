"""How many holds of a pool find their expert in memory, beside LRU and the optimum, which knows the future.

``python benchmarks/pool_policies.py [--into benchmarks/NOTES.md]`` runs three traces of a mixture of 24 layers of 32
experts, of which each token takes two in every layer, with room for 200 of the 768. The pool is the real one; the
others are simulated here.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np

import weightmap as wm

LAYERS, EXPERTS, CHOSEN, ROOM, TOKENS, SKEW = 24, 32, 2, 200, 400, 0.8
SIZE = 4096
BEGIN, END = "<!-- policies -->\n", "<!-- end of policies -->\n"


def routed(change: int) -> list[tuple[int, int]]:
    """Return layer and expert of every step, by Zipf's law; the favourites change after `change` tokens."""
    rng = np.random.default_rng(1)
    law = 1 / np.arange(1, EXPERTS + 1) ** SKEW
    steps = []
    for token in range(TOKENS):
        if token % change == 0:
            orders = [rng.permutation(EXPERTS) for _ in range(LAYERS)]
        for layer in range(LAYERS):
            chosen = rng.choice(EXPERTS, CHOSEN, replace=False, p=law / law.sum())
            steps += [(layer, int(orders[layer][expert])) for expert in chosen]
    return steps


TRACES = {
    "Zipf's law, exponent 0.8": routed(TOKENS),
    "the same, other favourites every 100 tokens": routed(100),
    "all experts in turn, 25 times": [(layer, expert) for layer in range(LAYERS) for expert in range(EXPERTS)] * 25,
}


def of_pool(steps: list[tuple[int, int]]) -> float:
    """Return the share of holds that found their expert in a pool."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.safetensors")
        wm.save(
            path,
            {f"{layer}": np.zeros((EXPERTS, SIZE), np.uint8) for layer in range(LAYERS)},
            output=wm.Output(align=SIZE),
        )
        with wm.open(path) as file, file.pool(ROOM * SIZE, direct=False) as pool:
            for layer, expert in steps:
                pool.hold(f"{layer}", expert).release()
            return pool.stats.hits / len(steps)


def of_lru(steps: list[tuple[int, int]]) -> float:
    """Return the share if the expert that was used least recently is evicted."""
    hits, kept = 0, OrderedDict[tuple[int, int], None]()
    for step in steps:
        hits += step in kept
        kept[step] = None
        kept.move_to_end(step)
        if len(kept) > ROOM:
            kept.popitem(last=False)
    return hits / len(steps)


def of_optimum(steps: list[tuple[int, int]]) -> float:
    """Return the share if the expert that is needed last is evicted (Belady), which nobody can know."""
    following, seen = [0] * len(steps), dict[tuple[int, int], int]()
    for at in reversed(range(len(steps))):
        following[at] = seen.get(steps[at], len(steps))
        seen[steps[at]] = at
    hits, kept, heap = 0, dict[tuple[int, int], int](), list[tuple[int, tuple[int, int]]]()
    for at, step in enumerate(steps):
        hits += step in kept
        kept[step] = following[at]
        heapq.heappush(heap, (-following[at], step))
        while len(kept) > ROOM:
            when, other = heapq.heappop(heap)
            if kept.get(other) == -when:
                del kept[other]
    return hits / len(steps)


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, help="a page with a place for the table")
    into = parser.parse_args().into
    table = "| trace | LRU | pool | optimum |\n|---|--:|--:|--:|\n"
    for name, steps in TRACES.items():
        table += f"| {name} | {of_lru(steps):.3f} | {of_pool(steps):.3f} | {of_optimum(steps):.3f} |\n"
    if into is None:
        sys.stdout.write(table)
        return
    text = into.read_text(encoding="utf-8")
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    into.write_text(text[:before] + table + text[after:], encoding="utf-8")


if __name__ == "__main__":
    main()
