"""What the machine can do: reading, writing and copying memory, with one thread and two, wherever it lies."""

import limits
from timing import everyone

SIZES = {"L2": 1 << 19, "L3": 1 << 23, "DRAM": 1 << 28}
WHAT = {"read": limits.READ, "write": limits.WRITE, "copy": limits.COPY}
GROUPS = {
    f"limits/{what} {size}": limits.of(kinds, lambda array: array, (1, 2))
    for what, kinds in WHAT.items()
    for size in SIZES
}


@everyone(GROUPS)
def test_limit(race, smoke, group, who):
    """Pass over memory, half of which is copied over the other half where it is copied."""
    what, size = group.removeprefix("limits/").split()
    nbytes = 1 << 16 if smoke else SIZES[size]
    race(GROUPS, limits.memory(nbytes * (2 if what == "copy" else 1)), nbytes=nbytes)
