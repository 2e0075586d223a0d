"""Fuzzing guided by coverage; needs atheris from PyPI.

    python -m tests.fuzz.guided FORMAT FOLDER -max_total_time=300

Inputs are files of one format. The run adds those that reach new code to FOLDER; `seeds.py` makes the first ones.
An exception outside our tree ends the run, and its input is left in a file. OSS-Fuzz gets a program for each
format from `oss_fuzz/build.sh`.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import atheris
import numpy as np

# Only modules imported in this block report their coverage, and the suite imports weightmap to make valid files.
assert "weightmap" not in sys.modules
with atheris.instrument_imports(include=["weightmap"]):
    from tests.checkpoints.checkpoints import EXAMPLES
    from tests.checkpoints.checkpoints import mutated as reconfigured

    import weightmap as wm

    from . import exercise
    from .corpus import CHECKPOINT, SHARDED, seeds, shards
    from .draws import Draws
    from .mutate import INDEX, mutated, sealed


WAYS = ({}, {"strict": False}, {"verify": "none", "strict": False}, {"verify": "full"})


def attempt(data, format):
    for options in WAYS:
        exercise.error_of(memoryview(data), data, format=format, **options)


class Index:
    def __init__(self):
        self.place = tempfile.TemporaryDirectory()
        for name, data in shards().items():
            (Path(self.place.name) / name).write_bytes(data)

    def attempt(self, data):
        (Path(self.place.name) / INDEX).write_bytes(data)
        for options in WAYS[:2]:
            exercise.error_of(Path(self.place.name), None, **options)


class Checkpoints:
    """Quantised checkpoints, each opened with a configuration that is not its own."""

    def __init__(self):
        self.place = tempfile.TemporaryDirectory()
        examples = enumerate(EXAMPLES.values())
        self.models = [make().write(Path(self.place.name, str(number))) for number, make in examples]

    def attempt(self, data):
        path = self.models[data[0] % len(self.models)] if data else self.models[0]
        path.with_name("config.json").write_bytes(data[1:])
        try:
            with np.errstate(all="ignore"), wm.open(path) as f:
                for w in f.weights.values():
                    assert np.asarray(w).shape == w.shape
        except wm.TensorFileError as error:
            text = str(error)
        else:
            return
        assert text.isprintable(), text
        assert len(text) < 2000, text


def reconfigure(data, seed):
    """Change a value of the configuration, where there is one."""
    try:
        return data[:1] + json.dumps(reconfigured(random.Random(seed), json.loads(data[1:]))).encode()
    except (ValueError, RecursionError):
        return None


def main(format):
    def mutate(data, most, seed):
        """A change by libFuzzer, made to fit half of the time; now and then a mutant of ours."""
        if format == CHECKPOINT:
            changed = reconfigure(data, seed) if seed % 4 else None
            return (changed or atheris.Mutate(data, most))[:most]
        if seed % 16 == 0:
            return mutated(format, Draws(seed))[:most]
        new = atheris.Mutate(data, most)
        return sealed(format, new)[:most] if seed % 2 else new

    folder = {SHARDED: Index, CHECKPOINT: Checkpoints}.get(format, lambda: None)()

    def one(data):
        if folder is not None:
            folder.attempt(data)
        else:
            attempt(data, format)

    # Many modules are imported when they are needed first, so every valid file is opened once, in all ways.
    with atheris.instrument_imports(include=["weightmap"]):
        for data in seeds(format):
            one(data)
    atheris.Setup(sys.argv, one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv.pop(1))
