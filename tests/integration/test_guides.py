"""The guides for users of other libraries: their Python runs as it stands, from top to bottom."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
NEEDS = {"safetensors.md": "safetensors", "torch.md": "torch", "jax.md": "jax", "memmap.md": "numpy"}


@pytest.mark.parametrize("page", NEEDS)
def test_the_snippets_of_a_guide_run(page, tmp_path, monkeypatch):
    """Each snippet goes on with the names of those before; what they claim they assert."""
    pytest.importorskip(NEEDS[page])
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) > 1
    names = {}
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), names)
