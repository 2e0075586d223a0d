"""Whole models from stores: every call that knows what comes next has several requests under way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.remote.servers import Objects, Server

import weightmap as wm
from weightmap import compat
from weightmap.io import ahead
from weightmap.io.open_source import open_source, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KIB = 1 << 10
FLOATS = {f"layer.{i}.w": np.arange(64 * 256, dtype=np.float32).reshape(64, 256) + i for i in range(24)}
NBYTES = sum(array.nbytes for array in FLOATS.values())


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """A store of one model, whose tensors are larger than a request."""
    monkeypatch.setattr(ahead, "PART", 48 * KIB)
    wm.save(tmp_path / "model.safetensors", FLOATS)
    return Objects({"m": (tmp_path / "model.safetensors").read_bytes()})


@pytest.fixture
def url(objects: Objects) -> Iterator[str]:
    """The address of the model on a server of the store."""
    with Server(objects) as server:
        yield server.url + "m"


def valued(url: str, _: Path) -> dict[str, Any]:
    """Iterate over the arrays alone."""
    with wm.open(url) as file:
        return dict(zip(file, file.values(), strict=True))


def converted(url: str, tmp: Path, **options: Any) -> dict[str, Any]:
    """Convert to a format that orders tensors by other rules."""
    wm.convert(url, tmp / "new.bt", **options)
    return wm.load(tmp / "new.bt")


def compared(url: str, tmp: Path) -> dict[str, Any]:
    """Compare with a model that has the same tensors."""
    assert wm.diff(url, tmp / "model.safetensors").equal
    return FLOATS


def verified(url: str, _: Path) -> dict[str, Any]:
    """Verify the model."""
    wm.verify(url)
    return FLOATS


CALLS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "load": lambda url, _: wm.load(url),
    "items": lambda url, _: dict(wm.open(url).items()),
    "values": valued,
    "plan": lambda url, _: dict(wm.plan(url).run()),
    "compat.load_file": lambda url, _: compat.load_file(url),
    "compat.load_file, pread": lambda url, _: compat.load_file(url, backend="pread"),
    "convert": converted,
    "convert, renamed": lambda url, tmp: {
        name.replace("z", "layer"): array
        for name, array in converted(url, tmp, rename=lambda name: name.replace("layer", "z")).items()
    },
    "diff": compared,
    "verify": verified,
}


@pytest.mark.parametrize("call", CALLS)
def test_several_requests_are_under_way(call: str, objects: Objects, url: str, tmp_path: Path) -> None:
    """Behind the first request, which opens the model, three wait for each other; each byte is asked for once."""
    together, lock, number = threading.Barrier(3), threading.Lock(), 0

    def enter() -> None:
        nonlocal number
        with lock:
            number += 1
            waits = 1 < number <= 4
        if waits:
            together.wait(20)

    objects.entered = enter
    found = CALLS[call](url, tmp_path)
    assert found.keys() == FLOATS.keys()
    assert all(np.array_equal(found[name], array) for name, array in FLOATS.items())
    assert objects.nbytes <= NBYTES + 40 * KIB
    assert len(objects.requests) <= 2 + NBYTES / (48 * KIB)


@pytest.mark.parametrize(
    ("order", "again"),
    [([0, 1, 2, 3], 0), ([0, 3], 0), ([2, 0], 1), ([1, 1, 2], 1)],
    ids=["in order", "some are left out", "one before", "one twice"],
)
def test_ranges_are_read_in_any_order(order: list[int], again: int, objects: Objects, url: str) -> None:
    """What is left out is given up, and what comes too late is asked for again: every order gives the right bytes."""
    ranges = [(begin, begin + 20 * KIB) for begin in range(100 * KIB, 500 * KIB, 100 * KIB)]
    data = objects.objects["m"]
    source = open_source(url, path_of(url), "mmap").ahead(ranges)
    for number in order:
        begin, end = ranges[number]
        assert source.pread(begin, end - begin) == data[begin:end]
    assert len(objects.requests) <= 1 + len(ranges) + again


def test_pieces_have_their_size_wherever_requests_end(objects: Objects, url: str) -> None:
    """`chunks` yields pieces of one size, the last one shorter, over windows, requests and what was not announced."""
    data = objects.objects["m"]
    source = open_source(url, path_of(url), "mmap").ahead([(10 * KIB, 300 * KIB), (310 * KIB, 400 * KIB)])
    pieces = [bytes(piece) for piece in source.chunks(9 * KIB, 395 * KIB, 7 * KIB)]
    assert b"".join(pieces) == data[9 * KIB : 404 * KIB]
    assert {len(piece) for piece in pieces[:-1]} == {7 * KIB}
