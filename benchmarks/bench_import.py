"""What `import weightmap` costs a program, measured in fresh interpreters."""

import statistics
import subprocess
import sys

import pytest

# Prints the milliseconds that a statement takes in an interpreter that has imported numpy already.
BEYOND_NUMPY = "import time, numpy; start = time.perf_counter(); {}; print((time.perf_counter() - start) * 1e3)"
STATEMENTS = {
    "weightmap": ("ours", "import weightmap"),
    "safetensors": ("rival", "import safetensors.numpy"),
    "bintensors": ("rival", "import bintensors.numpy"),
    "numpy": ("floor", "import numpy"),
}


def python(code):
    """Run `code` in a new interpreter and return what it printed."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("who", STATEMENTS)
def test_import(run, benchmark, who):
    """Start an interpreter and import; `beyond_numpy_ms` is the median of what comes on top of numpy."""
    if who != "numpy":
        pytest.importorskip(who)
    role, statement = STATEMENTS[who]
    run("import, whole process", role, python, statement, rounds=15)
    times = [float(python(BEYOND_NUMPY.format(statement))) for _ in range(5)]
    benchmark.extra_info["beyond_numpy_ms"] = round(statistics.median(times), 2)
    assert min(times) >= 0
