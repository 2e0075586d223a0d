"""Fixtures shared by the whole suite."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import hypothesis
import pytest
from tests import sanitised

from weightmap import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# No test depends on how busy the machine is, nor on how slow the sanitisers make Python.
hypothesis.settings.register_profile(
    "patient",
    parent=hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Keep what the tests themselves are made of out of later collections of garbage: each took a tenth of a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, visibly, what cannot run under the sanitisers when they are there; begin with what takes longest."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/robustness/test_sanitised.py"))
    for item in items if sanitised.ACTIVE else ():
        reason = sanitised.reason_to_skip(item.nodeid)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"under the sanitisers: {reason}"))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what the user's environment says about modes."""
    monkeypatch.delenv("WEIGHTMAP_MODE", raising=False)


@pytest.fixture(params=kernels.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test once for each instruction set."""
    before = kernels.isa()
    kernels.use_isa(request.param)
    yield
    kernels.use_isa(before)


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes to a file in a fresh directory and return its path."""

    def write(data: bytes, name: str = "model.weights") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write
