"""Serves tokens of a mixture of experts: each takes two experts of every layer, most of them by few favourites.

Arguments: who, path, budget in bytes, tokens. Prints a line when it is ready, and begins when it reads one. Then prints
seconds, bytes read from disk, and the most anonymous memory.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

EXPERTS, CHOSEN, SKEW = 32, 2, 0.8


def routed(layers: int, tokens: int) -> list[list[tuple[int, int]]]:
    """Return layer and expert of every step of each token, routed by Zipf's law."""
    rng = np.random.default_rng(1)
    law = 1 / np.arange(1, EXPERTS + 1) ** SKEW
    orders = [rng.permutation(EXPERTS) for _ in range(layers)]
    return [
        [
            (layer, int(orders[layer][expert]))
            for layer in range(layers)
            for expert in rng.choice(EXPERTS, CHOSEN, replace=False, p=law / law.sum())
        ]
        for _ in range(tokens)
    ]


def field(path: str, name: str) -> int:
    """Return a number of a file of /proc."""
    for line in Path(path).read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise KeyError(name)


def use(expert: np.ndarray[Any, Any]) -> float:
    """Touch every page."""
    return float(expert.reshape(-1)[::1024].sum())


def main() -> None:
    """Serve, and print time, bytes and memory."""
    who, path, budget, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if who == "safetensors":
        import safetensors

        model: Any = safetensors.safe_open(path, "numpy")
        names = list(model.keys())
        slices = {name: model.get_slice(name) for name in names}
        look: Any = lambda name, expert: use(slices[name][expert])  # noqa: E731 - one of four
    else:
        import weightmap as wm

        file = wm.open(path)
        names = list(file)
        if who == "mapping":
            look = lambda name, expert: use(file[name][expert])  # noqa: E731
        else:
            pool = file.pool(budget, direct={"pool": None, "pool, direct": True, "pool, buffered": False}[who])

            def look(name: str, expert: int) -> float:
                with pool.hold(name, expert) as array:
                    return use(array)

    steps = routed(len(names), tokens)
    print("ready", flush=True)
    sys.stdin.readline()
    before, most, begin = field("/proc/self/io", "read_bytes"), 0, time.perf_counter()
    for token in steps:
        if who.startswith("pool"):
            pool.prefetch([(names[layer], expert) for layer, expert in token])
        for layer, expert in token:
            look(names[layer], expert)
        most = max(most, field("/proc/self/status", "RssAnon"))
    seconds = time.perf_counter() - begin
    disk = field("/proc/self/io", "read_bytes") - before
    print(json.dumps({"seconds": seconds, "disk MiB": disk / 2**20, "anonymous MiB": most / 1024}))


main()
