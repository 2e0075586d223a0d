"""The environment of `make distributed-test` has the engines that its requirements name."""

import os
import re
from importlib.metadata import version

import pytest
from tests.places import ROOT

PINNED = re.findall(
    r"^([\w-]+)(?:\[.*\])?==([\w.]+)$", (ROOT / "requirements" / "distributed.txt").read_text(), re.MULTILINE
)


@pytest.mark.skipif(not os.environ.get("WEIGHTMAP_DISTRIBUTED"), reason="opt-in: make distributed-test")
@pytest.mark.parametrize(("name", "wanted"), PINNED)
def test_an_engine_is_there(name, wanted):
    """Each engine is installed, in the version that the tests were written for: nothing is skipped for want of one."""
    assert version(name).partition("+")[0] == wanted
