"""Fuzzing: mutants by the thousand of every format are refused or are sound, in bounded time and memory."""

import os
import sys

import pytest
from tests import builders
from tests.fuzz import worker
from tests.fuzz.__main__ import campaign
from tests.fuzz.corpus import FORMATS, SHARDED
from tests.fuzz.mutate import mutant

# Mutants of each format; `make test-all` tries MANY, and `make fuzz` millions.
COUNT = int(os.environ.get("WEIGHTMAP_FUZZ", "2000"))
MANY = 40_000
# How many different errors (class and field) a campaign on a model in a directory has to come to, at least, and one of
# 40,000 mutants: a mutator that only ever breaks the first bytes would find nothing. Builders say so of their formats.
ERRORS = {SHARDED: (11, 16)} | {builder.format: builder.errors for builder in builders.known().values()}
# If the tests themselves run in several processes, each has one for its mutants.
JOBS = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(os.cpu_count() or 1, 4)
every_format = pytest.mark.parametrize("format", FORMATS)


@every_format
@pytest.mark.parametrize("count", [COUNT, pytest.param(MANY, marks=pytest.mark.slow)])
def test_no_mutant_crashes_hangs_or_raises_another_error(format, count, tmp_path):
    """Thousands of mutants: an error of ours or a sound file, within a second each, 512 MiB, and little to open."""
    found = campaign(format, 0, count, jobs=JOBS, failures=tmp_path)
    assert not found.failures, "\n".join(found.failures)
    assert found.outcomes.total() == count
    assert found.outcomes[""] > count // 50
    if count >= 2_000:  # what the builders count; fewer, as under the sanitisers, come to fewer different errors
        assert len(found.outcomes) > ERRORS[format][count >= MANY]


def test_a_process_that_dies_is_reported_with_its_mutant(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -KILL $$\n", encoding="ascii")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    found = campaign("amb", 7, 5, jobs=1, failures=tmp_path)
    assert [line.splitlines()[0] for line in found.failures] == ["amb 7 ended the process with status -9"]


def test_a_forbidden_outcome_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "error_of", lambda *_, **__: {}["a bug"])
    assert worker.run("amb", 7, 2, bytearray(8), tmp_path) == {"failed": 2}
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [mutant("amb", k).files[""] for k in (7, 8)]
