"""Large results: backed by huge pages, in memory that is used again, but never while its array lives."""

import os

import numpy as np
import pytest
from tests.support import run_child

from weightmap.core.native import access

LARGE = 40 << 20


def test_arrays_that_live_have_memory_of_their_own():
    """Successive arrays keep their values, also if only a view of them is kept."""
    kept = []
    for number in range(6):
        array = access.empty((2, LARGE // 8), np.float32)
        array.fill(number)
        kept.append(array[1, -5:])  # keeps all of it
        del array
        if number % 2:
            del kept[0]  # whose memory the next may take
    assert [part.tolist() for part in kept] == [[number] * 5 for number in (3, 4, 5)]


FORKED = """
import os, numpy as np
from weightmap.core.native import access

def make(value):
    array = access.empty((40 << 20,), np.uint8)
    array.fill(value)
    return array

held = make(1)
make(2)  # freed at once, and kept
child = os.fork()
other = make(3 if child else 4)
assert (held == 1).all() and (other == (3 if child else 4)).all()
del held, other
assert (make(5) == 5).all()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("ok")
else:
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork_each_has_its_own():
    assert run_child(FORKED).stdout == "ok\n"
