"""A format is two files: all suites find and test the example of docs/formats.md once it is in place."""

import os
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests import sanitised
from tests.attacks.table import between
from tests.fuzz.corpus import CHECKPOINT, SHARDED
from tests.places import ROOT, suite
from tests.support import HANG

import weightmap as wm

TOY = ROOT / "tests" / "toy"
# Where each of the two files goes.
PLACES = {"toy_format.py": "src/weightmap/core/formats/toy.py", "toy_builder.py": "tests/builders/toy.py"}
SUITES = ("contract", "attacks", "damage", "fuzz", "determinism", "formats", "diff")
# It limits the processor time; Python under the sanitisers takes a multiple.
SUITES += ("growth",) * (not sanitised.ACTIVE)


def install(folder):
    """Make a copy of package and tests, with the two files in it and nothing else touched."""
    without = shutil.ignore_patterns("__pycache__", "*.jsonl")
    shutil.copytree(Path(wm.__file__).parent, folder / "src" / "weightmap", ignore=without)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=without)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, place in PLACES.items():
        shutil.copy(TOY / name, folder / place)


@pytest.fixture(scope="module")
def installation(once):
    return once("installation", install)


def test_the_two_files_are_short():
    assert sum(len((TOY / name).read_text(encoding="utf-8").splitlines()) for name in PLACES) < 150


def python(installation, *arguments):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": f"{installation}/src", "WEIGHTMAP_FUZZ": "1000"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=installation, env=environment, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_every_suite_takes_the_new_format_up(installation):
    options = ("-v", "-m", "not slow", "-p", "no:cacheprovider", "-ktoy")
    printed = python(installation, "-m", "pytest", *options, *map(suite, SUITES)).splitlines()
    for name in SUITES:
        assert any(line.startswith(f"{suite(name)}::") and "PASSED" in line for line in printed), name


@pytest.mark.slow
def test_guided_fuzzing_takes_the_new_format_up(installation):
    """`make fuzz-guided` and OSS-Fuzz go through the formats that `tests.fuzz.seeds` prints, each with its inputs."""
    printed = python(installation, "-m", "tests.fuzz.seeds", "--plain", "seeds").split()
    assert printed == [*sorted({*wm.formats(), "toy"}), SHARDED, CHECKPOINT]
    assert len(list((installation / "seeds" / "fuzz_toy").iterdir())) > 3
    assert (installation / "seeds" / "fuzz_toy.dict").read_text(encoding="ascii")


@pytest.mark.slow
def test_coverage_takes_the_new_format_up(installation):
    """`make coverage` measures the branches of the new format, and runs tests that open its files."""
    settings = tomllib.loads((installation / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["coverage"]
    assert any(fnmatch(PLACES["toy_format.py"], pattern) for pattern in settings["report"]["include"])
    tests = python(installation, "-c", "from tests import branches; print(*branches.TESTS)").split()
    assert suite("attacks") in tests


def test_the_document_shows_the_format_as_it_is():
    document = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    shown = between(document, "tests.toy.toy_format.py").removeprefix("```python\n").removesuffix("\n```")
    assert shown == (TOY / "toy_format.py").read_text(encoding="utf-8").rstrip("\n")
