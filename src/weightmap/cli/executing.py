"""How the files of a model are distributed: to Dask's workers, or to ranks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import weightmap as wm
from weightmap.cli.outcome import UsageError
from weightmap.errors import MissingDependencyError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


@contextlib.contextmanager
def execution(args: argparse.Namespace) -> Iterator[wm.Run]:
    """Yield the `run` of `weightmap.convert` and `verify` for these options."""
    for given, name, other in (("rank", "--rank", "--world-size"), ("world_size", "--world-size", "--rank")):
        if getattr(args, given) is not None and None in {args.rank, args.world_size}:
            raise UsageError(f"{name} needs {other}: each rank gives its own number and how many there are")
    rank, size = args.rank or 0, 1 if args.world_size is None else args.world_size
    if rank not in range(size):
        raise UsageError(f"--rank is {rank} and --world-size {size}, expected 0 <= rank < world-size")
    how = {"manifest": args.manifest, "rank": rank, "world_size": size, "keep_going": args.keep_going}
    if args.dask is None:
        yield wm.Run(**how)
        return
    try:
        from distributed import Client
    except ImportError:
        raise MissingDependencyError("--dask needs Dask: pip install '.[dask]' in a checkout") from None
    # Not the process's default client: commands run inside of other programs too.
    with (
        Client(args.dask, set_as_default=False) as client,
        client.get_executor(retries=3) as executor,  # a task whose worker died runs again elsewhere
    ):
        yield wm.Run(executor, **how)
