"""Whatever goes wrong while a file is read: the right result or an exception that says what, and never a signal.

`shim.c` makes each system call fail, do half of its work, or find the file truncated; see `reading.py`.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.builders import Tensor, embd, normal
from tests.builders import safetensors as st
from tests.faults.support import drive
from tests.support import mappings, run_child

import weightmap as wm
from weightmap import source as sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALLS = ("open", "open, full", "verify", "read", "copy", "convert", "diff")
COMMANDS = ("command inspect", "command verify", "command convert", "command diff", "command export")
FILES = {
    "words.weights": (*CALLS, *COMMANDS),
    "a.safetensors": CALLS,
    "a.bt": CALLS,
    "a.bin": CALLS,
    "q.amb": CALLS,
    "words.fifu": CALLS,
    "pq.fifu": CALLS,
    "sharded": ("open", "verify", "read", "copy", "convert", "diff"),
}


@pytest.fixture(scope="module", params=FILES)
def swept(request: pytest.FixtureRequest, shim: Path, memory: Callable[[], Path]) -> dict[str, Any]:
    """What came of each fault of each call of every operation on one file."""
    name = request.param
    found: dict[str, Any] = drive("reading.py", shim, memory(), name, *FILES[name])
    return found


def rows_of(swept: dict[str, Any], *, truncated: bool) -> list[tuple[str, dict[str, Any], bool]]:
    """Operation, what came of the fault, and whether the result was the right one; of truncations or of failing calls."""
    return [
        (operation, row, row["result"] == found["expected"])
        for operation, found in swept.items()
        for row in found["rows"]
        if row["fault"].startswith("truncated") == truncated
    ]


def test_a_file_truncated_at_any_call_is_an_exception_and_no_signal(swept: dict[str, Any]) -> None:
    """Truncated before any of their calls, these end with the right result or an error of ours that names the file."""
    caught = 0
    for operation, row, right in rows_of(swept, truncated=True):
        assert row["signal"] == 0, (operation, row)
        error = row["error"]
        assert right or error, (operation, row)
        if error is not None:
            caught += 1
            assert error["own"] or error["status"] in {3, 4}, (operation, row)
            assert "sources" in error["text"], (operation, row)
    assert caught > len(swept)


def test_a_call_that_fails_is_an_os_error_or_changes_nothing(swept: dict[str, Any]) -> None:
    """EIO, EINTR and EACCES at any call: the right result, or that OSError with the name of the file."""
    caught = 0
    for operation, row, right in rows_of(swept, truncated=False):
        assert row["signal"] == 0, (operation, row)
        error = row["error"]
        assert right or error, (operation, row)
        if error is None:
            continue
        caught += 1
        code = getattr(errno, row["fault"])
        assert "sweep" in error["text"], (operation, row)
        if error["status"] is not None:
            assert error["status"] == 4, (operation, row)
            assert os.strerror(code) in error["text"], (operation, row)
        else:
            assert error["system"], (operation, row)
            assert not error["own"], (operation, row)
            # A directory that could not be recognised as one cannot be read.
            assert error["errno"] in ({code, errno.EISDIR} if row["call"] == "stat" else {code}), (operation, row)
    assert caught > len(swept)


def test_short_and_interrupted_reads_go_on(swept: dict[str, Any]) -> None:
    """A read that brings half of the bytes, or is interrupted, is taken up again."""
    for operation, row, right in rows_of(swept, truncated=False):
        if row["fault"] == "short" or (row["fault"] == "EINTR" and row["call"] in {"open", "pread"}):
            assert right, (operation, row)


def test_no_descriptor_leaks_when_reading_fails(swept: dict[str, Any]) -> None:
    """After each fault the process has the descriptors that it had before."""
    assert not [row for found in swept.values() for row in found["rows"] if row["leaked"]]
