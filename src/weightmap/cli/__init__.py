"""The command line: ``weightmap COMMAND …`` (also ``python -m weightmap``).

Results go to standard output, errors and progress to standard error. With ``--json``, standard output gets exactly one
document, also when the command fails. `main` lists the exit statuses. `weightmap.cli.show` escapes control characters
in everything that comes from a file or an argument.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from weightmap.cli import outcome, show
from weightmap.cli.arguments import locate
from weightmap.cli.parser import build_parser, command_of
from weightmap.core.model.single import mode_of
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        The arguments without the program's name; ``sys.argv[1:]`` if None.

    Returns
    -------
    int
        0 fine · 1 differences, verification failed, or a word without embedding · 2 usage (also an unknown tensor name,
        and a target format that cannot express the tensors) · 3 malformed or unsupported file · 4 input or output, or a
        missing optional dependency · 130 interrupted · 141 the reader of the output went away. SIGTERM and SIGHUP end
        the process, after removing half-written files.
    """
    if sys.stdout is None or sys.stderr is None:  # the calling program closed it
        if sys.stderr is not None:
            sys.stderr.write("weightmap: standard output is closed\n")
        return outcome.INPUT_OUTPUT
    try:
        return outcome.undoing(lambda: _run(list(sys.argv[1:] if argv is None else argv)))
    except BrokenPipeError:
        _silence_stdout()
        return _BROKEN_PIPE
    except OSError:  # the message or the document of an error cannot be printed
        return outcome.INPUT_OUTPUT
    except KeyboardInterrupt:  # a second interrupt, while reporting the first
        return outcome.INTERRUPTED


def _run(argv: list[str]) -> int:
    """Run one command and report the error that ends it, if any."""
    verifies, args = False, None
    try:
        args = build_parser(argv).parse_args(argv)
        verifies = getattr(args, "verify", False)
        _check_environment()
        locate(args)
        status: int = args.run(args)
        show.flush()
    except SystemExit as leaving:  # after --help or --version
        return leaving.code if isinstance(leaving.code, int) else 2
    except BrokenPipeError:
        raise
    except (outcome.UsageError, TensorFileError, OSError, MemoryError, KeyboardInterrupt) as error:
        source = getattr(args, "src", None) or getattr(args, "file", None)
        if source is not None:
            outcome.suggest_lenient(args, error, source)
        show.complain(outcome.reason(error))
        if "--json" in argv[: argv.index("--") if "--" in argv else None]:
            # A command prints its own document last, so it has printed none.
            show.emit_json({"command": command_of(argv), "error": outcome.error_document(error)})
            show.flush()
        return outcome.status_of_verify(error) if verifies else outcome.status_of(error)
    return status


def _check_environment() -> None:
    """Raise `UsageError` for an unknown WEIGHTMAP_MODE, even if this command would not use it."""
    try:
        mode_of(None)
    except ValueError as error:
        raise outcome.UsageError(str(error)) from None


def _silence_stdout() -> None:
    """Discard buffered output, about which the interpreter would complain while it shuts down."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a real file, so that nothing is flushed into a pipe
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
