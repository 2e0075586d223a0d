"""FNV-1a 32 of many names: every instruction set, against fnv-hash-fast (a call a name) and plain Python."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from timing import EVERY_ISA, Timed, each_contender, need, ours, rival
from weightmap import kernels
from weightmap.core.native import access

LENGTH = 51  # a common length of names
PART = 100  # plain Python is slow: it hashes one name in this many


class Names(NamedTuple):
    """Names as separate objects, and as one blob with lengths."""

    apart: list[bytes]
    blob: bytes
    lengths: np.ndarray


def fnv1a32(data: bytes) -> int:
    """Return the hash, in plain Python."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def make(count: int, *, mixed: bool = False) -> Names:
    """Make names."""
    rng = np.random.default_rng(count)
    lengths = rng.integers(20, 61, count, np.uint32) if mixed else np.full(count, LENGTH, np.uint32)
    blob = rng.integers(97, 123, int(lengths.sum()), np.uint8).tobytes()
    ends = np.cumsum(lengths).tolist()
    return Names([blob[end - n : end] for end, n in zip(ends, lengths.tolist(), strict=True)], blob, lengths)


def weightmap(names):
    """Return ours: one call."""
    assert kernels.fnv1a32_many(names.blob, names.lengths)[0] == fnv1a32(names.apart[0])
    return Timed(partial(kernels.fnv1a32_many, names.blob, names.lengths), variant=access.variant("fnv1a32"))


def fnv_hash_fast(names):
    """Return the rival, which gets names as Python objects."""
    function = need("fnv_hash_fast").fnv1a_32
    assert function(names.apart[0]) == fnv1a32(names.apart[0])
    return Timed(lambda: [function(name) for name in names.apart])


class Scaled(Timed):
    """The clock of a part, scaled to the whole."""

    def __call__(self, calls):
        return PART * super().__call__(calls)


def python(names):
    """Return plain Python, timed on a part of the names."""
    some = names.apart[: len(names.apart) // PART]
    return Scaled(lambda: [fnv1a32(name) for name in some], timed_on=f"one name in {PART}")


CONTENDERS = ours(weightmap, isas=EVERY_ISA) | {"fnv-hash-fast": rival(fnv_hash_fast), "Python": rival(python)}


COUNTS = {"1,000 names": 1_000, "100,000 names": 100_000, "100,000 names of mixed lengths": 100_000}
GROUPS = {f"fnv1a32/{label}": CONTENDERS for label in COUNTS}


@each_contender(GROUPS)
def test_fnv1a32(compare, group, who):
    """Hash names of one length, or of 20 to 60 bytes."""
    label = group.partition("/")[2]
    compare(GROUPS, make(COUNTS[label], mixed="mixed" in label), items=COUNTS[label])
