"""The limits of the machine: reading, writing and copying in caches and memory, with one thread and two."""

import limits
from timing import each_contender

SIZES = {"L2": 1 << 19, "L3": 1 << 23, "DRAM": 1 << 28}
WHAT = {"read": limits.READ, "write": limits.WRITE, "copy": limits.COPY}
GROUPS = {
    f"limits/{what} {size}": limits.of(kinds, lambda array: array, (1, 2))
    for what, kinds in WHAT.items()
    for size in SIZES
}


@each_contender(GROUPS)
def test_limit(compare, smoke, group, who):
    """Read or write memory, or copy one half over the other."""
    what, size = group.removeprefix("limits/").split()
    nbytes = 1 << 16 if smoke else SIZES[size]
    compare(GROUPS, limits.memory(nbytes * (2 if what == "copy" else 1)), nbytes=nbytes)
