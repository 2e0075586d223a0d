"""Puts the two files of the example into docs/formats.md: ``python -m tests.toy``."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.table import put_between
from tests.places import ROOT

FOLDER = Path(__file__).parent

if __name__ == "__main__":
    for name in ("toy_format.py", "toy_builder.py"):
        code = (FOLDER / name).read_text(encoding="utf-8").splitlines()
        put_between(ROOT / "docs" / "formats.md", f"tests.toy.{name}", ["```python", *code, "```"])
