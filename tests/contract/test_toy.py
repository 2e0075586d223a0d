"""A format is two files: the example of docs/formats.md, put into place, is found and tried by everything there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attacks.table import between
from tests.places import suite

import weightmap as wm

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests" / "toy"
# Where each of the two files goes, and by which mark docs/formats.md shows it.
PLACES = {"toy_format.py": "src/weightmap/formats/toy.py", "toy_builder.py": "tests/builders/toy.py"}
SUITES = ("contract", "attacks", "damage", "fuzz", "determinism", "formats", "diff", "growth")
# What takes minutes, or a tool that is not there everywhere, and tells nothing more of the two files.
LEFT_OUT = "not ten_times_as_many"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of package and tests, with the two files in it and nothing else touched."""
    folder = tmp_path_factory.mktemp("installation")
    without = shutil.ignore_patterns("__pycache__", "*.jsonl")
    shutil.copytree(Path(wm.__file__).parent, folder / "src" / "weightmap", ignore=without)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=without)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, place in PLACES.items():
        shutil.copy(TOY / name, folder / place)
    return folder


def test_the_two_files_are_short() -> None:
    """A format that is only read, and its builder, take less than 150 lines together."""
    assert sum(len((TOY / name).read_text(encoding="utf-8").splitlines()) for name in PLACES) < 150


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_takes_the_new_format_up(installation: Path, name: str) -> None:
    """Contract, attacks, damage, mutants, growth, determinism and comparison run on it, and nothing of that fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        f"-ktoy and {LEFT_OUT}",
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(installation / "src"), "WEIGHTMAP_FUZZ": "1000"}
    done = subprocess.run(
        [*command, suite(name)],
        cwd=installation,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("name", PLACES)
def test_the_document_shows_the_files_as_they_are(name: str) -> None:
    """docs/formats.md has both files, whole: `python -m tests.toy` puts them there."""
    document = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    shown = between(document, f"tests.toy.{name}").removeprefix("```python\n").removesuffix("\n```")
    assert shown == (TOY / name).read_text(encoding="utf-8").rstrip("\n")
