"""Fuzzing guided by coverage; needs atheris from PyPI.

    python -m tests.fuzz.guided FORMAT FOLDER -max_total_time=300

Inputs are files of one format. The run adds those that reach new code to FOLDER; `seeds.py` makes the first ones.
An exception outside our tree ends the run, and its input is left in a file. OSS-Fuzz gets a program for each
format from `oss_fuzz/build.sh`.
"""

import sys
import tempfile
from pathlib import Path

import atheris

# Only modules imported in this block report their coverage, and the suite imports weightmap to make valid files.
assert "weightmap" not in sys.modules
with atheris.instrument_imports(include=["weightmap"]):
    from . import exercise
    from .corpus import SHARDED, seeds, shards
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


def main(format):
    def mutate(data, most, seed):
        """A change by libFuzzer, made to fit half of the time; now and then a mutant of ours."""
        if seed % 16 == 0:
            return mutated(format, Draws(seed))[:most]
        new = atheris.Mutate(data, most)
        return sealed(format, new)[:most] if seed % 2 else new

    index = Index() if format == SHARDED else None

    def one(data):
        if index is not None:
            index.attempt(data)
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
