"""Fixtures shared by the whole suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what the user's environment says about modes."""
    monkeypatch.delenv("WEIGHTMAP_MODE", raising=False)


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes to a file in a fresh directory and return its path."""

    def write(data: bytes, name: str = "model.weights") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write
