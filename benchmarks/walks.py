"""Counts the calls within weightmap that one call makes: ``python benchmarks/walks.py [WALK ...] [--files]``.

Each walk runs twice; the second one is counted, by `sys.setprofile`, on the thread that calls. A generator counts each
time that it goes on. ``--files`` lists the files with their calls.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import sys
import tempfile
from pathlib import Path

import numpy as np

import weightmap as wm
from weightmap import deltas

HOME = str(Path(wm.__file__).parent)
LAYERS = 3
# Calls and files that each walk may take.
BOUNDS = {
    "f[name]": (4, 3),
    "convert": (350, 28),
    "convert q8_0": (500, 34),
    "open, plan, run": (200, 24),
    "deltas.pull": (550, 25),
}


def nine_tensors(scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return the tensors of three small layers."""
    tensors = {}
    for layer in range(LAYERS):
        tensors[f"layers.{layer}.weight"] = np.full((64, 64), scale, np.float32)
        tensors[f"layers.{layer}.bias"] = np.zeros(64, np.float32)
        tensors[f"layers.{layer}.norm"] = np.ones(64, np.float32)
    return tensors


class Walks:
    """The walks, over files in a folder. Each method returns a function that makes its second run like its first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._model = folder, folder / "model.safetensors"
        wm.save(self._model, nine_tensors())

    def lookup(self):
        """Take one tensor of an open file, whose index of names is built."""
        file = wm.open(self._model)
        for name in file:
            file[name]
        return lambda: file["layers.1.weight"]

    def convert(self, **options):
        """Convert nine tensors from safetensors to GGUF, over the file of the first run."""
        return lambda: wm.convert(self._model, self._folder / "model.gguf", **options)

    def planned(self):
        """Open, plan and run two parts: slices of two tensors."""
        wants = {f"layers.{layer}.weight": np.s_[16:32] for layer in (0, 2)}

        def walk() -> None:
            with wm.open(self._model) as file:
                dict(wm.plan(file, wants).run())

        return walk

    def pull(self):
        """Bring a model at version 0 to version 1 by a delta."""
        new, published = self._folder / "new.safetensors", self._folder / "published"
        wm.save(new, nine_tensors() | {"layers.1.weight": np.full((64, 64), 2.0, np.float32)})
        deltas.publish(self._model, new, published, version=1)
        places = iter([self._folder / "first", self._folder / "second"])
        return lambda: deltas.pull(next(places), published, base=self._model)

    def all(self):
        """Return the walks by name."""
        return {
            "f[name]": self.lookup,
            "convert": self.convert,
            "convert q8_0": lambda: self.convert(quantize="q8_0"),
            "open, plan, run": self.planned,
            "deltas.pull": self.pull,
        }


def counted(walk) -> collections.Counter[str]:
    """Count the calls into each file of the package, the second time that this is run."""
    walk()
    calls: collections.Counter[str] = collections.Counter()

    def note(frame, event, _) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            calls[frame.f_code.co_filename[len(HOME) + 1 :]] += 1

    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return calls


def main() -> int:
    """Print calls and files of each walk; return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("walks", nargs="*", metavar="WALK", help=f"any of {', '.join(BOUNDS)}")
    parser.add_argument("--files", action="store_true", help="list the files with their calls")
    arguments = parser.parse_args()
    failed = 0
    with contextlib.ExitStack() as stack:
        walks = Walks(Path(stack.enter_context(tempfile.TemporaryDirectory()))).all()
        for name in arguments.walks or walks:
            calls, (most_calls, most_files) = counted(walks[name]()), BOUNDS[name]
            exceeded = calls.total() > most_calls or len(calls) > most_files
            failed |= exceeded
            bound = f"at most {most_calls} in {most_files}"
            verdict = ": exceeded" if exceeded else ""
            sys.stdout.write(f"{name:16} {calls.total():5} calls in {len(calls):2} files, {bound}{verdict}\n")
            for file, count in calls.most_common() if arguments.files else ():
                sys.stdout.write(f"    {count:5} {file}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
