"""Paths of the project, its tests and the tested package. No other module of tests counts folders.

No test looks for a word in a path: a checkout may lie in any folder, `weightmap` and names with spaces among them.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Ground truth of other programs: in the folder of this variable, or beside a checkout.
GROUNDTRUTH = Path(os.environ.get("WEIGHTMAP_GROUNDTRUTH") or ROOT.parent / "shared" / "groundtruth")
# The tests of single formats, a folder for each.
FORMAT_TESTS = "tests/core/formats"


def suite(name: str) -> str:
    """Return the path of ``test_<name>.py``, in whatever folder of tests it stands, from the root of the project."""
    (found,) = (ROOT / "tests").rglob(f"test_{name}.py")
    return found.relative_to(ROOT).as_posix()
