"""Exit statuses, and errors as lines of text and as JSON."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

import weightmap.errors as errors
from weightmap.cli import show
from weightmap.core.model.opening import open_privately

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from types import FrameType

    from weightmap.core.model.file import TensorFile

OK, DIFFERENT, USAGE, MALFORMED, INPUT_OUTPUT = range(5)
INTERRUPTED = 130  # 128 + SIGINT, a shell's status for an interrupted program


class UsageError(Exception):
    """A command line with options that do not exist or contradict each other."""


_USAGE = (UsageError, errors.AddressError, errors.TensorNotFoundError, errors.EncodeError, errors.TargetError)


def no_embeddings(path: str) -> UsageError:
    """Return the error of a command for words when the file has none."""
    return UsageError(f"{path}: there are no words to look up: no vocabulary with one matrix of embeddings")


def status_of(error: BaseException) -> int:
    """Return the exit status for an error that ended a command."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, errors.UnknownWordError):
        return DIFFERENT
    if isinstance(error, _USAGE):
        return USAGE
    if isinstance(error, OSError | errors.MissingDependencyError | MemoryError):
        return INPUT_OUTPUT
    if isinstance(error, errors.ShardsError) and error.errors:
        return max(status_of(one) for _, one in error.errors)
    return MALFORMED


def status_of_verify(error: BaseException) -> int:
    """Return the exit status of commands that verify, for which a wrong checksum is a finding."""
    every = [one for _, one in error.errors] if isinstance(error, errors.ShardsError) else [error]
    # Any other error means that nothing was verified.
    return max(
        [DIFFERENT if isinstance(one, errors.ChecksumError) else status_of(one) for one in every], default=MALFORMED
    )


def reason(error: BaseException) -> str:
    """Return the message of an error on one line."""
    if isinstance(error, OSError) and not isinstance(error, errors.TensorFileError) and error.strerror:
        # str() of an OSError begins with "[Errno 2]", which most readers do not understand.
        place = "" if error.filename is None else f"{_path_text(error.filename) or repr('')}: "
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        return show.clean(f"{place}{error.strerror}{notes}")
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError):
        return show.clean(f"out of memory: {error}" if str(error) else "out of memory")
    return show.clean(error.render(_option) if isinstance(error, errors.TensorFileError) else error)


def suggest_lenient(args: argparse.Namespace | None, error: BaseException, source: str) -> None:
    """Make an error suggest ``--lenient``, if the command has this option and the file opens only with it."""
    if getattr(args, "lenient", True) or not isinstance(error, errors.FormatError) or error.remedy is not None:
        return
    for strict in (True, False):
        try:
            open_privately(source, strict=strict).close()
        except (errors.TensorFileError, OSError, MemoryError):
            continue
        if not strict:
            error.remedy = errors.Remedy("{} tolerates this", "lenient")
        return


@contextlib.contextmanager
def opened(args: argparse.Namespace, path: str, trust: Any = None) -> Iterator[TensorFile]:
    """Open a model with the options ``--lenient``, ``--config`` and ``--weights``."""
    strict, config = not getattr(args, "lenient", False), getattr(args, "config", None)
    with open_privately(path, strict=strict, trust=trust, config=config) as file:
        yield file.weights if getattr(args, "weights", False) else file


def failed(path: str, why: str) -> str:
    """Return the line about a file that failed verification; the message may already begin with its path."""
    name = show.clean(path)
    return f"{name}: failed: {why.removeprefix(f'{name}: ')}"


def _option(remedy: errors.Remedy) -> str:
    """Return a command's option for the argument of a function."""
    named = "--lenient" if remedy.option == "strict" else f"--{remedy.option.replace('_', '-')}"
    option = remedy.flag or named
    return option if not remedy.value else f"{option} {remedy.value}"


def error_document(error: BaseException) -> dict[str, object]:
    """Return an error for JSON documents: class, message, and place as far as known."""
    place = getattr(error, "path" if isinstance(error, errors.TensorFileError) else "filename", None)
    return {
        "type": type(error).__name__,
        "message": reason(error),
        "path": None if place is None else _path_text(place),
        "field": getattr(error, "field", None),
        "offset": getattr(error, "offset", None),
        **({"refused": error.refused} if isinstance(error, errors.EncodeError) else {}),
    }


def _path_text(path: object) -> str:
    return path.decode("utf-8", "backslashreplace") if isinstance(path, bytes) else str(path)


# ----------------------------------------------------------------------------------------------------
# Signals that end a command, after undoing its work: no half-written file stays.

# Signals that stop a service, or come from a closing terminal. (Ctrl+C raises an exception in Python anyway.)
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Ended(BaseException):
    """A signal that ends this process has come."""


def undoing(command: Callable[[], int]) -> int:
    """Call a command and return its status. A signal first undoes the command's work, then ends the process as usual.

    Signals that are already ignored (nohup) or handled stay so; outside the main thread, all signals do.
    """
    came: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise _Ended

    handled = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    try:
        try:
            for number in handled:
                signal.signal(number, end)
        except ValueError:  # not the main thread
            handled = []
        return command()
    except _Ended:
        return 0
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
        if came:
            signal.raise_signal(came[0])
