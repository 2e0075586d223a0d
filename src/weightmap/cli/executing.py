"""The options of commands that share the files of a model out: to Dask's workers, or to ranks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from weightmap.cli.outcome import UsageError
from weightmap.errors import MissingDependencyError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    group = parser.add_argument_group("models in several files")
    group.add_argument("--dask", metavar="ADDRESS", help="run on the workers of a Dask scheduler, tcp://HOST:PORT")
    group.add_argument("--rank", type=int, metavar="R", help="do every N-th file, from number R on (0 to N - 1)")
    group.add_argument("--world", type=int, metavar="N", help="the number of ranks, which share a file system")
    group.add_argument("--manifest", metavar="FILE", help="record finished files, and skip them when started again")
    group.add_argument("--keep-going", action="store_true", help="go on after an error, and report all of them")


@contextlib.contextmanager
def execution(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `weightmap.convert` and `verify` for these options."""
    given = {name: getattr(args, name) for name in ("manifest", "rank", "world")}
    chosen = {name: value for name, value in given.items() if value is not None}
    rank, world = chosen.get("rank", 0), chosen.get("world", 1)
    if rank not in range(world):
        raise UsageError(f"--rank is {rank} and --world {world}, expected 0 <= rank < world")
    if args.keep_going:
        chosen["keep_going"] = True
    if args.dask is None:
        yield chosen
        return
    try:
        from distributed import Client
    except ImportError:
        raise MissingDependencyError(
            "--dask needs Dask, the extra [dask]: pip install dask distributed, or '.[dask]' in a checkout"
        ) from None
    # Not the process's default client: commands run inside of other programs too.
    with (
        Client(args.dask, set_as_default=False) as client,
        client.get_executor(retries=3) as executor,  # a task whose worker died runs again elsewhere
    ):
        yield {**chosen, "executor": executor}
