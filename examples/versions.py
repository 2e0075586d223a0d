"""A trainer that publishes versions of a model, and a server that follows, as two processes.

    python versions.py train published --steps 5
    python versions.py serve local published --steps 5

The trainer changes 1 % of the elements at each step. The server pulls new versions, opens them, and prints the version
that it serves.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import weightmap as wm
from weightmap import deltas

ROWS, LAYERS = 256, 4


def train(source: Path, steps: int) -> None:
    """Publish a base, which is version 0, and one version for each step."""
    rng = np.random.default_rng(0)
    weights = {f"layer.{i}.w": rng.standard_normal((ROWS, ROWS)).astype(np.float32) for i in range(LAYERS)}
    source.mkdir(parents=True, exist_ok=True)
    before = source / "base.safetensors"
    wm.save(before, {**weights, "step": np.array([0])})
    for step in range(1, steps + 1):
        for name, old in weights.items():
            weights[name] = np.where(rng.random(old.shape) < 0.01, old * np.float32(1.001), old)
        now = source / f"step{step}.safetensors"
        wm.save(now, {**weights, "step": np.array([step])})
        report = deltas.publish(before, now, source, version=step)
        print(f"published version {step}: {report.stored_nbytes} of {report.total_nbytes} bytes", flush=True)
        if step > 1:
            before.unlink()
        before = now


def serve(local: Path, source: Path, steps: int) -> None:
    """Follow until the last step is served."""
    version = -1
    while version < steps:
        try:
            report = deltas.pull(local, source, base=source / "base.safetensors")
        except (wm.DeltaError, FileNotFoundError):  # nothing is published yet
            time.sleep(0.05)
            continue
        if report.version == version:
            time.sleep(0.05)
            continue
        version = report.version
        with wm.open(local) as model:
            print(f"serving version {version}: step {model['step'][0]}, {len(model)} tensors", flush=True)


def main() -> int:
    """Run the command."""
    if len(sys.argv) == 1:
        print(__doc__, file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    trainer, server = commands.add_parser("train"), commands.add_parser("serve")
    server.add_argument("local", type=Path)
    for sub in (trainer, server):
        sub.add_argument("source", type=Path)
        sub.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    if args.command == "train":
        train(args.source, args.steps)
    else:
        serve(args.local, args.source, args.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
