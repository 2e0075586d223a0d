"""The examples of ranks run, and the Python of docs/distributed.md on loading."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.builders import normal
from tests.places import ROOT
from tests.support import HANG, SOURCES

import weightmap as wm

EXAMPLES = ROOT / "examples"


def run(*command, **env):
    done = subprocess.run(
        [*map(str, command)],
        env={**os.environ, "PYTHONPATH": SOURCES, **env},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def path(tmp_path):
    """Return a model of a matrix that four ranks divide, and a vector that they do not."""
    wm.save(tmp_path / "m.safetensors", {"a": normal((16, 4)).array, "b": normal((5,), 1).array})
    return tmp_path / "m.safetensors"


def test_ranks_without_a_framework(path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from ranks_mpi import load_slices

    parts = [load_slices(str(path), 0, rank, 4) for rank in range(4)]
    assert sum(nbytes for _, nbytes in parts) == 4 * (16 * 4 + 5)
    with wm.open(path) as file:
        for name, tensor in file.items():
            assert np.array_equal(np.concatenate([slices[name] for slices, _ in parts]), tensor)


def test_ranks_of_mpi(path):
    pytest.importorskip("mpi4py", reason="needs mpi4py: make distributed-test")
    launcher = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(launcher) if launcher.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("needs mpiexec: make distributed-test")
    printed = run(mpiexec, "-n", 4, sys.executable, EXAMPLES / "ranks_mpi.py", path)
    found = re.findall(r"rank (\d): (\d+) rows of 2 tensors, (\d+) bytes", printed)
    assert [(int(rank), int(rows)) for rank, rows, _ in found] == [(0, 6), (1, 6), (2, 5), (3, 4)]
    assert sum(int(nbytes) for *_, nbytes in found) == 4 * (16 * 4 + 5)


def test_devices_of_jax(path):
    pytest.importorskip("jax", reason="needs jax: make distributed-test")
    flags = "--xla_force_host_platform_device_count=4"
    printed = run(sys.executable, EXAMPLES / "ranks_jax.py", path, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    assert printed.splitlines() == ["a: (4, 4), (4, 4), (4, 4), (4, 4)", "b: (5,), (5,), (5,), (5,)"]


def test_the_guide_to_loading_runs(tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch: make distributed-test")
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Loading") : page.index("\n## Converting")]
    code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    assert "dcp.load" in code
    before = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', init_method='file://' + os.path.abspath('group'), rank=0, world_size=1)\n"
    )
    printed = run(sys.executable, "-c", before + code + "\ndist.destroy_process_group()")
    assert "1 slice of 1 tensor: 1 read, 4,194,304 bytes, 0 of them in gaps" in printed
    assert "0 absent.safetensors" in printed or "absent.safetensors" in printed
