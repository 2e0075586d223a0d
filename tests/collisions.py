"""Names that have one and the same hash, as an attacker finds them."""

import functools

import numpy as np


def fnv1a(blocks: np.ndarray, state: int = 0x811C9DC5) -> np.ndarray:
    """FNV-1a 32 of each row of bytes, beginning in `state`."""
    hashes = np.full(len(blocks), state, np.uint32)
    for column in blocks.T:
        hashes = (hashes ^ column) * np.uint32(0x01000193)
    return hashes


@functools.cache
def colliding() -> list[bytes]:
    """Return 512 different names with one and the same FNV-1a 32 hash.

    Two blocks that lead from one state to the same next state can stand for each other. k such pairs one after another
    give 2^k names. A pair is a coincidence among some 200,000 blocks: the birthday paradox.
    """
    names, state = [b""], 0x811C9DC5
    rng = np.random.default_rng(11)
    while len(names) < 512:
        blocks = np.unique(rng.integers(97, 123, (200_000, 6), np.uint8).view("S6")).view(np.uint8).reshape(-1, 6)
        hashes = fnv1a(blocks, state)
        order = np.argsort(hashes)
        same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        if not same.size:
            continue
        one, two = blocks[order[same[0]]], blocks[order[same[0] + 1]]
        names = [name + block.tobytes() for name in names for block in (one, two)]
        state = int(fnv1a(one[None], state)[0])
    assert len(set(names)) == len(names)
    assert set(fnv1a(np.array([list(name) for name in names], np.uint8)).tolist()) == {state}
    return names
