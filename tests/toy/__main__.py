"""Puts the format of the example into docs/formats.md: ``python -m tests.toy``."""

from pathlib import Path

from tests.attacks.table import put_between
from tests.places import ROOT

FOLDER = Path(__file__).parent

if __name__ == "__main__":
    code = (FOLDER / "toy_format.py").read_text(encoding="utf-8").splitlines()
    put_between(ROOT / "docs" / "formats.md", "tests.toy.toy_format.py", ["```python", *code, "```"])
