"""Where the files of tests stand, for those that run some of them by name."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The tests of single formats, a folder for each.
FORMAT_TESTS = "tests/formats"


def suite(name: str) -> str:
    """Return the path of ``test_<name>.py``, in whatever folder of tests it stands, from the root of the project."""
    (found,) = (ROOT / "tests").rglob(f"test_{name}.py")
    return found.relative_to(ROOT).as_posix()
