"""Arguments shared by several commands, and their effects."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.cli.outcome import UsageError
from weightmap.core.model.opening import located
from weightmap.errors import AddressError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Arguments that may be addresses to read
_SOURCES = frozenset({"files", "file", "src", "a", "b", "other", "base", "new", "source", "delta"})


class Offered(tuple[str, ...]):
    """Values that completions offer. The command itself refuses others, with a better message."""

    __slots__ = ()

    def __contains__(self, _: object) -> bool:
        return True


def add_weights(sub: Any, verb: str) -> None:
    """Add the option for the parameters of quantised checkpoints."""
    about = f"{verb} the parameters of a quantised checkpoint (AWQ, GPTQ, FP8 ...), not the tensors that store them"
    sub.add_argument("--weights", action="store_true", help=about)
    add_config(sub)


def add_config(sub: Any) -> None:
    """Add ``--config``."""
    about = "the config.json that says how a checkpoint is quantised (default: the one beside the file)"
    sub.add_argument("--config", metavar="FILE", help=about)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help='print one JSON document ("schema": 1), even for an error')


def add_lenient(parser: argparse.ArgumentParser) -> None:
    """Add ``--lenient``."""
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="open a file despite defects, such as trailing bytes or a missing shard",
    )


def add_threads(parser: argparse.ArgumentParser, default: str = "one for each CPU") -> None:
    """Add ``--threads``."""
    parser.add_argument("--threads", type=_threads, metavar="N", help=f"use at most N threads (default: {default})")


def add_distribution(parser: argparse.ArgumentParser) -> None:
    """Add the options that distribute the files of a model."""
    group = parser.add_argument_group("models in several files")
    group.add_argument("--dask", metavar="ADDRESS", help="run on the workers of a Dask scheduler, tcp://HOST:PORT")
    group.add_argument("--rank", type=int, metavar="R", help="do every N-th file, from number R on (0 to N - 1)")
    group.add_argument("--world-size", type=int, metavar="N", help="the number of ranks, which share a file system")
    group.add_argument("--manifest", metavar="FILE", help="record finished files, and skip them when started again")
    group.add_argument("--keep-going", action="store_true", help="go on after an error, and report all of them")


def add_remote(parser: argparse.ArgumentParser) -> None:
    """Add the options for addresses of stores."""
    group = parser.add_argument_group("addresses (s3://, gs://, az://, https://, hf://)")
    group.add_argument("--redirects", action="store_true", help="follow redirects of an https:// address")
    about = "read an object that has no version: neither an ETag nor a time of modification"
    group.add_argument("--unversioned", action="store_true", help=about)
    group.add_argument("--deadline", type=float, metavar="S", help="give a request S seconds (default: 60)")


def locate(args: argparse.Namespace) -> None:
    """Apply these options to the addresses among the arguments. Raises `UsageError` for an impossible one.

    Addresses become locations, whose text omits the query: it may be a signature, which no command may print.
    """
    how: dict[str, Any] = {name: getattr(args, name, None) for name in ("redirects", "unversioned", "deadline")}

    def location(value: str) -> Any:
        return located(value, remote) if "://" in value else value

    try:
        remote = wm.Remote(**{name: value for name, value in how.items() if value is not None})
        for name in _SOURCES & vars(args).keys():
            value = getattr(args, name)
            if isinstance(value, str):
                setattr(args, name, location(value))
            elif value:
                setattr(args, name, [location(one) for one in value])
    except AddressError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None


def text(argument: str) -> str:
    """Return the name of a tensor, or a word, from an argument in the system's encoding: names in files are UTF-8."""
    try:
        return os.fsencode(argument).decode("utf-8", "surrogateescape")
    except UnicodeError:  # not from a command line, but from a caller of `main`
        return argument


def _threads(argument: str) -> int:
    try:
        threads = int(argument)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {argument!r}") from None
    if threads < 1:
        raise UsageError(f"--threads is {threads}, expected 1 or more")
    return threads


@contextlib.contextmanager
def execution(args: argparse.Namespace) -> Iterator[wm.Run]:
    """Yield the `run` of `weightmap.convert` and `verify` for these options."""
    for name, option, other in (("rank", "--rank", "--world-size"), ("world_size", "--world-size", "--rank")):
        if getattr(args, name) is not None and None in {args.rank, args.world_size}:
            raise UsageError(f"{option} needs {other}: each rank gives its own number and how many there are")
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
    # Do not become the process's default client: commands also run inside other programs.
    with (
        Client(args.dask, set_as_default=False) as client,
        client.get_executor(retries=3) as executor,  # repeats the task of a dead worker elsewhere
    ):
        yield wm.Run(executor, **how)
