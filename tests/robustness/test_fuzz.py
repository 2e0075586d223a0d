"""Fuzzing: mutants by the thousand of every format are refused or are sound, in bounded time and memory."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests import builders
from tests.fuzz import worker
from tests.fuzz.__main__ import campaign
from tests.fuzz.anatomy import TEXT, Edit
from tests.fuzz.corpus import FORMATS, SHARDED, seeds
from tests.fuzz.exercise import outcome
from tests.fuzz.mutate import anatomies, mutant, sealed

# Mutants of each format; `make test-all` tries MANY, and `make fuzz` millions.
COUNT = int(os.environ.get("WEIGHTMAP_FUZZ", "2000"))
MANY = 40_000
# How many different errors (class and field) a campaign on a model in a directory has to come to, at least, and one of
# 40,000 mutants: a mutator that only ever breaks the first bytes would find nothing. Builders say so of their formats.
ERRORS = {SHARDED: (11, 16)} | {builder.format: builder.errors for builder in builders.known().values()}
# Where the tests themselves run in several processes, each has one for its mutants.
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


@every_format
def test_a_number_is_always_the_same_mutant(format):
    first = [mutant(format, number) for number in range(300)]
    assert first == [mutant(format, number) for number in range(300)]
    assert len({str(found) for found in first}) > 250


def test_a_model_in_shards_is_written_as_its_mutant_has_it(tmp_path):
    """The opened folder has every file of the mutant, though only one of them is written again."""
    sources = worker.Sources(tmp_path)
    opened = Counter[str]()
    for number in range(60):
        found = mutant("sharded", number)
        place = Path(sources.of(found)[0])
        opened[found.opened] += 1
        folder = place.parent if found.opened else place
        assert place.name == (found.opened or folder.name)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == found.files
    assert min(opened["model.safetensors.index.json"], opened[""]) > 10
    assert len(list(tmp_path.iterdir())) == 3


@every_format
def test_files_are_taken_apart_and_put_together(format):
    """The anatomy of a file has its fields where they are: without an edit, it is the file, and most of it is read."""
    for data, anatomy in zip(seeds(format), anatomies(format), strict=True):
        assert anatomy.apply([], follow=True) == data
        assert all(0 <= begin <= end <= len(data) for begin, end, _ in (*anatomy.fields, *anatomy.items))


@pytest.mark.filterwarnings("ignore::weightmap.errors.ModelWarning")  # for a part alone
@pytest.mark.parametrize("format", [name for name in FORMATS if any(TEXT in found.alike for found in anatomies(name))])
def test_lengths_follow(format):
    refused, tried = [], 0
    for anatomy in anatomies(format):
        for begin, _, kind in anatomy.fields:
            if kind == TEXT:
                data = sealed(format, anatomy.apply([Edit(begin, begin, b"xyz")], follow=True))
                found = outcome(memoryview(data), data, format=format, strict=False)
                tried += 1
                refused += [f"byte {begin}: {found}"] * bool(found)
    assert tried > 5
    assert len(refused) < 0.1 * tried, f"has every length and offset its span in the anatomy? {refused}"
