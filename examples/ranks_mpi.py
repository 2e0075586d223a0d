"""Each rank of MPI reads its rows of every tensor: ``mpiexec -n 4 python examples/ranks_mpi.py MODEL``.

A rank is an integer. Only the first lines of `main` know MPI: any launcher that tells a process its rank will do.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import weightmap as wm


def load_slices(path: str, dim: int, rank: int, world_size: int) -> tuple[dict[str, Any], int]:
    """Return a rank's slice of every tensor along `dim`, and the bytes that were read for them."""
    with wm.plan(path, wm.shard("", dim, rank, world_size)) as plan:
        return dict(plan.run("read")), plan.nbytes


def main(path: str) -> None:
    """Load, and print the number of bytes read."""
    group: Any = import_module("mpi4py.MPI").COMM_WORLD
    slices, nbytes = load_slices(path, 0, group.rank, group.size)
    rows = sum(len(array) for array in slices.values() if array.ndim)
    for rank, (count, read) in enumerate(group.gather((rows, nbytes)) or ()):
        print(f"rank {rank}: {count} rows of {len(slices)} tensors, {read} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
