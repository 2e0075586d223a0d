"""Fixtures shared by the whole suite."""

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from tests import leftovers, sanitised
from tests.places import ROOT

from weightmap import kernels

# No test depends on how busy the machine is, nor on how slow the sanitisers make Python.
hypothesis.settings.register_profile(
    "patient",
    parent=hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Fail tests that leave something behind, and take interrupts, which a shell lets its background ignore."""
    config.pluginmanager.register(leftovers)
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The objects of the tests stay out of garbage collections: each took a tenth of a second.
def pytest_collection() -> None:
    """Collect no garbage while tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave the tests out of later collections of garbage."""
    _freeze()
    gc.enable()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave out the objects that the tests of a file have imported and cached."""
    if nextitem is None or nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


# `make test` runs all tests of these folders but slow ones, and the first test of each other file.
QUICK = ("core", "contract")


@pytest.hookimpl(tryfirst=True)  # marks are looked at later
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark quick tests; leave out those that cannot run under the sanitisers; begin with the longest."""
    begun = set()
    for item in items:
        if item.path.is_relative_to(ROOT / "tests") and not item.get_closest_marker("slow"):
            whole = item.path.relative_to(ROOT / "tests").parts[0] in QUICK
            if whole or item.path not in begun:
                item.add_marker(pytest.mark.quick)
            begun.add(item.path)
    items.sort(key=lambda item: not item.nodeid.startswith("tests/robustness/test_sanitised.py"))
    for item in items if sanitised.ACTIVE else ():
        reason = sanitised.reason_to_skip(item.nodeid)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"under the sanitisers: {reason}"))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads the user's cache, nor writes to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return ``once(name, make)``: a folder that `make` fills once for all processes of the run."""
    fcntl = pytest.importorskip("fcntl")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base

    def filled(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / name
        with (shared / f"{name}.made").open("a+") as made:
            fcntl.flock(made, fcntl.LOCK_EX)
            if not made.tell():
                folder.mkdir(exist_ok=True)
                make(folder)
                made.write("made")
        return folder

    return filled


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on the mode in the user's environment."""
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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process; give (exit status, standard output, standard error)."""
    from weightmap import cli  # a part: the tests of the core do without

    def run(*argv: object) -> tuple[int, str, str]:
        status = cli.main([str(argument) for argument in argv])
        return status, *capsys.readouterr()

    return run
