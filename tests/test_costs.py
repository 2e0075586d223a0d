"""What opening and looking up costs, by counts that no busy machine changes: of allocations, and of instructions.

The bounds leave room for another compiler or Python, and none for a loop in Python over the tensors.
"""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.builders import Tensor, embd

import weightmap as wm

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
FEW, MANY = 100, 5_000


def blocks(function: Callable[[], object]) -> int:
    """How many blocks of Python's memory a call leaves taken while its result is kept, the least of some calls."""
    function()
    taken = []
    for _ in range(5):
        gc.collect()
        before = sys.getallocatedblocks()
        kept = function()
        taken.append(sys.getallocatedblocks() - before)
        del kept
    return min(taken)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """EMBD files of few tensors and of many."""
    folder = tmp_path_factory.mktemp("costs")
    found = {}
    for count in (FEW, MANY):
        tensors = [(f"model.layers.{i:06}.weight", Tensor("float32", (2,), bytes(8))) for i in range(count)]
        found[count] = folder / f"{count}.weights"
        found[count].write_bytes(embd.Draft(tensors).seal())
    return found


@pytest.mark.skipif(not hasattr(sys, "getallocatedblocks"), reason="this Python does not count its allocations")
@pytest.mark.parametrize("verify", ["header", "none"])
def test_opening_allocates_as_much_for_many_tensors_as_for_few(paths: dict[int, Path], verify: str) -> None:
    """Larger numbers are objects of their own; but there is no object for each tensor, and there are few in all."""
    few, many = (blocks(lambda path=paths[count]: wm.open(path, verify=verify)) for count in (FEW, MANY))
    assert many <= few + 25
    assert few < 100


@pytest.mark.skipif(not hasattr(sys, "getallocatedblocks"), reason="this Python does not count its allocations")
def test_a_lookup_allocates_an_array_and_little_else(paths: dict[int, Path]) -> None:
    """A view that is kept takes fewer than ten blocks, and listing a thousand views fewer than ten for each."""
    with wm.open(paths[MANY]) as f:
        names = list(f)[:1_000]
        for name in names[:10]:
            f[name]
        assert blocks(lambda: f[names[500]]) < 10
        assert blocks(lambda: [f[name] for name in names]) < 10 * len(names)


def instructions(program: Path, function: str, count: int) -> int:
    """Instructions within a function of the program and those that it calls, counted by callgrind."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={function}"]
    done = subprocess.run([*command, str(program), str(count)], capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that checks an index and looks a name up."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    target = tmp_path_factory.mktemp("costs") / "costs"
    sources = [path for path in sorted((ROOT / "csrc").rglob("*.c")) if path.name != "python.c"]
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    flags = ["-std=c11", "-O3", f"-I{ROOT / 'csrc'}", "-pthread"]
    subprocess.run(
        [compiler, *flags, str(ROOT / "tests/c/costs.c"), *map(str, sources), "-o", str(target), "-lm"], check=True
    )
    return target


@pytest.mark.parametrize(("function", "most"), [("wm_records_check", 320), ("wm_records_find", 14)])
def test_instructions_for_each_tensor(program: Path, function: str, most: int) -> None:
    """Checking an index takes at most so many instructions a tensor, of a name of 24 bytes; finding a name few."""
    few, many = (instructions(program, function, count) for count in (1_000, 4_000))
    assert 0 < (many - few) / 3_000 <= most
