"""What the machine can do: reading, writing and copying memory, with one thread and two, wherever it lies."""

import limits
import pytest

SIZES = {"L2": 1 << 19, "L3": 1 << 23, "DRAM": 1 << 28}
WHAT = {"read": limits.READ, "write": limits.WRITE, "copy": limits.COPY}
CONTENDERS = {what: limits.of(kinds, lambda array: array, (1, 2)) for what, kinds in WHAT.items()}
CASES = [(what, size, who) for what, contenders in CONTENDERS.items() for size in SIZES for who in contenders]


@pytest.mark.parametrize(("what", "size", "who"), CASES)
def test_limit(race, smoke, what, size, who):
    """Pass over memory, half of which is copied over the other half where it is copied."""
    nbytes = 1 << 16 if smoke else SIZES[size] * (2 if what == "copy" else 1)
    race(
        f"limits/{what} {size}", CONTENDERS[what], limits.memory(nbytes), nbytes=nbytes // (2 if what == "copy" else 1)
    )
