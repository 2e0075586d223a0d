"""safetensors' own tests, run on `weightmap.compat` where a checkout of them is at hand.

``WEIGHTMAP_SAFETENSORS_SUITE`` names the folder ``bindings/python/tests`` of the tag whose release is installed.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
from tests.places import ROOT
from tests.support import SOURCES

SUITE = os.environ.get("WEIGHTMAP_SAFETENSORS_SUITE")
DOCUMENT = ROOT / "docs" / "safetensors.md"
# Replace the library by ours before a test imports it.
_CONFTEST = """
import contextlib, importlib, sys
import weightmap.compat
sys.modules["safetensors"] = weightmap.compat
for name in ("flax", "mlx", "numpy", "tensorflow", "torch"):
    with contextlib.suppress(ImportError):
        sys.modules[f"safetensors.{name}"] = importlib.import_module(f"weightmap.compat.{name}")
"""


# The cases of a loader to a GPU, run on the CPU, except cases that count the GPU's memory or ask for device 0.
_CPU = {
    '"cuda:0"': '"cpu"',
    '"cuda", k': '"cpu", k',
    "torch.cuda.synchronize()": "pass",
    "torch.cuda.is_available()": "True",
}
_GPU_ONLY = "is_not_allocated or released_before_close or reuses_framework or int_device"


def documented():
    """The cases of the suite that docs/safetensors.md lists as better on purpose."""
    return set(re.findall(r"`(test_\w+\.py::\w+(?:::\w+)?)`", DOCUMENT.read_text(encoding="utf-8")))


@pytest.mark.skipif(SUITE is None, reason="WEIGHTMAP_SAFETENSORS_SUITE names no suite")
def test_their_suite_passes_but_for_what_is_better_on_purpose(tmp_path):
    shutil.copytree(SUITE, tmp_path / "tests")
    (tmp_path / "tests" / "data").mkdir(exist_ok=True)
    (tmp_path / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    on_cpu = (tmp_path / "tests" / "test_pread_backend.py").read_text(encoding="utf-8")
    on_cpu = re.sub(r"\nclass PreadBackendTests.*?(?=\n@)", "", on_cpu, flags=re.DOTALL)
    for gpu, cpu in _CPU.items():
        on_cpu = on_cpu.replace(gpu, cpu)
    (tmp_path / "tests" / "test_prefetch_on_cpu.py").write_text(on_cpu, encoding="utf-8")
    needs = {"torch": "torch", "flax": "flax", "tf": "tensorflow", "paddle": "none"}
    there = {name: importlib.util.find_spec(module) is not None for name, module in needs.items()}
    files = [
        path
        for path in sorted((tmp_path / "tests").glob("test_*.py"))
        if there.get(path.stem.split("_")[1], True) and (there["torch"] or "torch" not in path.read_text("utf-8"))
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-k",
        f"not ({_GPU_ONLY})",
        *files,
    ]
    path = os.pathsep.join(filter(None, (SOURCES, os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    found = re.findall(r"^(PASSED|FAILED|ERROR) tests/(\S+)", result.stdout, re.MULTILINE)
    assert sum("on_cpu" in case for _, case in found) > 10, result.stdout + result.stderr
    names = {path.name for path in files}
    expected = {case for case in documented() if case.split("::")[0] in names}
    assert {case for outcome, case in found if outcome != "PASSED"} == expected, result.stdout
