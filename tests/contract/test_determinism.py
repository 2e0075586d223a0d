"""The same content is the same file on every machine, in every process, and after reading and saving it again."""

import hashlib
import os
import subprocess
import sys

import pytest
from tests import builders
from tests.contract.golden import content
from tests.places import ROOT
from tests.support import HANG, SOURCES, listing

import weightmap as wm
from weightmap import kernels
from weightmap.core.formats import by_name

EXAMPLES = [example for example in builders.examples() if example.written]

# Files of word embeddings have no builders: they are written, not opened.
CONVERTED = {"words.bin": "64861920128d98d91c4d7c12f828b254b74f742a5ba46f9076e008e1de12c5cb"}
GOLDEN = CONVERTED | {name: it.sha256 for builder in builders.known().values() for name, it in builder.golden.items()}


def written(folder, *arguments, **environment):
    python = os.pathsep.join((SOURCES, str(ROOT), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "tests.contract.golden", str(folder), *arguments]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": python, **environment}, check=True, timeout=HANG)
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in listing(folder)}


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_the_same_content_gives_the_same_bytes(tmp_path, seed):
    assert written(tmp_path, PYTHONHASHSEED=seed) == GOLDEN


@pytest.mark.parametrize("tier", kernels.available_isas())
def test_the_same_content_gives_the_same_bytes_on_every_processor(tmp_path, tier):
    assert written(tmp_path, tier) == GOLDEN


@pytest.mark.parametrize("builder", builders.known().values(), ids=builders.known())
def test_every_layout_that_is_written_has_a_recorded_sum(builder, tmp_path):
    """A layout without a golden file would not be held to its bytes."""
    found, format_ = content(), by_name(builder.format)
    layouts = {golden.arguments(found).get("layout", format_.layouts[0]) for golden in builder.golden.values()}
    assert layouts == (set(format_.layouts) if format_.plan else set())


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{example.format}-{example.name}" for example in EXAMPLES])
def test_reading_and_writing_once_more_changes_nothing(example, tmp_path):
    """A file of another program becomes one with the same content, which stays the same when read and written again.

    A file of a read-only format becomes one of a format that can hold all of it.
    """
    suffix, options = example.suffix, {"format": example.format, "output": wm.Output(layout=example.layout)}
    if by_name(example.format).plan is None:
        suffix, options = ".safetensors", {}
    original, first, second = (tmp_path / f"{name}{suffix}" for name in ("original", "first", "second"))
    original.write_bytes(example.data)
    wm.convert(original, first, **options)
    wm.convert(first, second, **options)
    assert first.read_bytes() == second.read_bytes()
    assert wm.diff(original, first).equal
