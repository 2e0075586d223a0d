"""NVIDIA's ModelExpress as the other side: it reads our versions, and we read its (make modelexpress-test)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deltas.delta_files import digests, model, stepped, write_model

import weightmap as wm
from weightmap import deltas

PYTHON = os.environ.get("WEIGHTMAP_MODELEXPRESS")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="WEIGHTMAP_MODELEXPRESS names no Python with modelexpress")
CHILD = Path(__file__).with_name("modelexpress_child.py")


def run(*argv):
    subprocess.run([PYTHON, CHILD, *map(str, argv)], check=True)


@pytest.fixture
def states():
    """Tensors that change, and some that do not."""
    found = [{name: value for name, value in model().items() if name != "empty"}]
    for number in range(1, 5):
        found.append(stepped(found[-1], number) | {"layer.1.w": found[-1]["layer.1.w"]})
    return found


def test_chains_of_both(tmp_path, states):
    """Versions in turns by its publisher and ours, applied in turns by its receiver and ours, bit for bit."""
    split = [({"embed": state["embed"]}, {n: a for n, a in state.items() if n != "embed"}) for state in states]
    folders = [write_model(tmp_path / f"m{number}", *state) for number, state in enumerate(split)]
    source = tmp_path / "source"
    theirs = shutil.copytree(folders[0], tmp_path / "theirs")
    for number in range(1, 5):
        version, base = f"{number:06}", f"{number - 1:06}"
        if number % 2:
            run("publish", folders[number - 1], folders[number], source / f"weight_v{version}", version, base)
        else:
            deltas.publish(folders[number - 1], folders[number], source, version=number, checksum="adler32")
        run("receive", theirs, source / f"weight_v{version}", version, base)
        assert digests(wm.load(theirs)) == digests(states[number])
        assert deltas.pull(tmp_path / "ours", source, base=folders[0]).version == number
        assert digests(wm.load(tmp_path / "ours")) == digests(states[number])
    deltas.pull(tmp_path / "late", source, base=folders[0])
    assert digests(wm.load(tmp_path / "late")) == digests(states[4])
