"""Every attack, with exactly the outcome that its case states; and that no row of the threat tables is without a case."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from tests.attacks import ROWS, Case, cases, sound
from tests.support import exercise, survives

import weightmap as wm

if TYPE_CHECKING:
    from pathlib import Path

CASES = cases()
REFUSED = [case for case in CASES if case.error]
LEGAL = [case for case in CASES if not case.error]


def by_id(chosen: list[Case]) -> Any:
    """Run a test for each of these cases."""
    return pytest.mark.parametrize("case", chosen, ids=[case.id for case in chosen])


def trial(path: Path, case: Case, **options: Any) -> Any:
    """Open the file as its format, and verify it."""
    with wm.open(path, format=case.format, **options) as f:
        return f.verify()


@by_id(REFUSED)
def test_the_attack_is_refused(case: Case, tmp_path: Path) -> None:
    """The very class of error, the field and the byte, in a message for people, before any memory is taken."""
    path = case.write(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(wm.TensorFileError) as caught:
            if case.late:
                trial(path, case)
            else:
                wm.open(path, format=case.format)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    error = caught.value
    assert (type(error).__name__, error.field, error.offset) == (case.error, case.field, case.offset)
    assert case.format in (None, error.format)
    text = str(error)
    assert text.startswith(f"{error.path}: ")
    assert case.file in text
    assert text.isprintable()
    assert len(text) < 1000
    size = len(case.data) if isinstance(case.data, bytes) else 0
    assert peak < 2**21 + 32 * size
