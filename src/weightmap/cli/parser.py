"""The parser of the command line, and the table of its commands.

Only the parser of the given command is built: building all parsers takes longer than many commands take to run.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from weightmap import __version__
from weightmap.cli import show
from weightmap.cli.arguments import add_remote
from weightmap.cli.outcome import UsageError
from weightmap.core.arguments import similar
from weightmap.core.hooks import later
from weightmap.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# The module imports every compressor of Python (4 ms), and only help needs the terminal's width: checking arguments
# takes a formatter of any width.
_terminal_size: Callable[..., Any] = later("shutil", "get_terminal_size")
_WIDTH = 80
_HELP = "weightmap help lists them all"
_SHELLS = ("bash", "zsh", "fish")
_EPILOG = """\
exit status:
  0    fine
  1    the files differ, verification failed, or a word has no embedding
  2    usage: wrong arguments, an unknown tensor, a target that cannot express the tensors
  3    malformed or unsupported file
  4    input or output error, or a missing optional dependency
  130  interrupted     141  the reader of the output went away
"""


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command that the arguments name, or of all; ``args.run`` is the command's function."""
    command = next((argument for argument in argv if not argument.startswith("-")), None)
    names = [command] if command in _COMMANDS else [*_COMMANDS]
    parser = _Parser(
        prog="weightmap",
        description="Look into, check, convert and compare files of tensors, opened in place.",
        epilog=_EPILOG,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=_WIDTH),
        allow_abbrev=False,
    )
    parser.add_argument("-v", "-V", "--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=_SHELLS,
        action=_Completion,
        help=f"print what a shell ({', '.join(_SHELLS)}) needs to complete commands, options and paths, and exit: "
        "source <(weightmap --print-completion bash). Needs the extra [cli]",
    )
    subparsers = _add_subparsers(parser, "weightmap")
    for name in names:
        entry = _COMMANDS[name]
        if isinstance(entry, _Command):
            _add_command(subparsers, name, entry)
        else:
            _add_group(subparsers, name, entry)
    if len(names) > 1:
        sub = _add_parser(subparsers, "help", "show the commands, or the options of one")
        sub.set_defaults(run=lambda args: parser.parse_args([*args.about, "--help"]).run(args))
        # Without a default, argparse lists an optional argument as required.
        choices = [*dict.fromkeys(word for command in all_commands(parser) for word in command.split())]
        sub.add_argument(
            "about", metavar="COMMAND", nargs="*", default=[], choices=choices, help="for example diff, or cache warm"
        )
    return parser


def command_of(argv: Sequence[str]) -> str | None:
    """Return the command that arguments name, such as "diff" or "cache warm"; None if there is none."""
    name, verb, *_ = [*(argument for argument in argv if not argument.startswith("-")), None, None]
    group = _COMMANDS.get(name or "")
    return f"{name} {verb}" if isinstance(group, _Group) and verb in group.commands else name


def _add_subparsers(parser: argparse.ArgumentParser, prog: str) -> Any:
    """Let a parser take commands; without a command, it lists them."""
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", prog=prog)

    def run(_: argparse.Namespace) -> NoReturn:
        parser.error("which command?" if prog == "weightmap" else f"which command? {', '.join(subparsers.choices)}")

    parser.set_defaults(run=run)
    return subparsers


def _add_group(subparsers: Any, name: str, group: _Group) -> None:
    inner = _add_subparsers(_add_parser(subparsers, name, group.summary, group.details), f"weightmap {name}")
    for verb, command in group.commands.items():
        _add_command(inner, verb, command)


def _add_command(subparsers: Any, name: str, command: _Command) -> None:
    sub = _add_parser(subparsers, name, command.summary, command.details)
    function = sub.prog.removeprefix("weightmap ").replace(" ", "_")
    sub.set_defaults(run=later(f"weightmap.cli.{command.module}", function), command=sub.prog)
    later(f"weightmap.cli.{command.module}", f"add_{function}")(sub)
    if command.addresses:
        add_remote(sub)


def _add_parser(subparsers: Any, name: str, summary: str, details: str = "") -> argparse.ArgumentParser:
    description = f"{summary[0].upper()}{summary[1:]}. {details}".strip()
    formatter = partial(argparse.HelpFormatter, width=_WIDTH)
    sub: argparse.ArgumentParser = subparsers.add_parser(
        name, help=summary, description=description, formatter_class=formatter, allow_abbrev=False
    )
    return sub


class _Command(NamedTuple):
    """A command: its module, with its function and the function that adds its arguments, and its help.

    The functions of ``cache show`` are called ``cache_show`` and ``add_cache_show``.
    """

    module: str
    summary: str
    details: str = ""
    addresses: bool = True  # whether it reads addresses of stores


class _Group(NamedTuple):
    """Commands about one topic, which share their first word."""

    summary: str
    details: str
    commands: dict[str, _Command]


_LINES = "Without words, each line of standard input is a question."
_COMMANDS: dict[str, _Command | _Group] = {
    "inspect": _Command("reading", "show the contents of files", "No tensor data is read."),
    "verify": _Command(
        "checking",
        "check the structure of files, and their checksums",
        "Every file is read to its end, even after one has failed. In a file without checksums, changed values of "
        "tensors go unnoticed: the first line about it says that only its structure was checked.",
    ),
    "diff": _Command(
        "checking",
        "compare two models",
        "Tensors, metadata and vocabulary count; formats may differ. A file and its conversion do not differ, unless "
        "convert was asked to change something, or reported that it renamed something or left it behind. What convert "
        "adds, such as metadata from the config.json of a model directory, does not count. The table counts the "
        "elements that differ: with a tolerance, those beyond it.",
    ),
    "report": _Command(
        "checking",
        "write a page for the browser about a model, or about the differences between two",
        "One HTML file that needs no network: modules, the map of the file, values, the cost of quantising, warnings. "
        "For two models: the difference of each tensor. Needs the extra [report].",
    ),
    "export": _Command(
        "reading",
        "write one tensor as a .npy file",
        "OUT is replaced if it exists. Types that .npy files lack (bfloat16, float8, quantised) become float32.",
    ),
    "convert": _Command("converting", "write a model in another format or layout", "DST is replaced in one step."),
    "quantize": _Command(
        "converting",
        "store the weights of a model as integers of few bits",
        "DST is replaced in one step. AMB files hold int8 to adaptive, GGUF files the other schemes. Tensors of one "
        "dimension, embeddings (by their names) and quantised tensors stay unchanged, except that a mixture of "
        "llama.cpp (such as q4_k_m) quantises embeddings, too.",
    ),
    "sign": _Command(
        "checking", "sign a model as OpenSSF model-signing does", "Needs the extra [trust].", addresses=False
    ),
    "doctor": _Command(
        "memory",
        "show the cost of using a model on this machine",
        "The place of the files, their share in memory, page faults, alignment, and the memory that is left for this "
        "process; with advice. No tensor is read.",
    ),
    "cache": _Group(
        "show how much of a model is in memory, bring it into memory, or release that memory",
        "",
        {
            "show": _Command("memory", "show how much of each tensor is in memory", "No tensor is read."),
            "warm": _Command("memory", "bring a model into memory", "As much as free memory and control group allow."),
            "evict": _Command("memory", "release the memory of a model", "Pages mapped by other processes stay."),
        },
    ),
    "delta": _Group(
        "publish the changes between two models, and update local models",
        "Needs the extra [deltas].",
        {
            "publish": _Command(
                "versions",
                "publish the changes between two models",
                "DIR gets weight_vNNNNNN/, the form of slime, SGLang and ModelExpress. Needs the extra [deltas].",
            ),
            "apply": _Command(
                "versions",
                "update a local model to the version of a delta",
                "First, every checksum is compared; then a single step switches to the new version. Needs the extra "
                "[deltas].",
                addresses=False,
            ),
            "pull": _Command(
                "versions",
                "update a local model to a published version",
                "Uses deltas if possible. If stopped at any moment, LOCAL is entirely the old or the new version. "
                "Needs the extra [deltas].",
            ),
        },
    ),
    "words": _Group(
        "look up word embeddings, search and convert them",
        "",
        {
            "lookup": _Command("words", "print the embeddings of words", _LINES),
            "similar": _Command("words", "print the words most similar to a word", f"By cosine. {_LINES}"),
            "analogy": _Command(
                "words",
                "print the words that are to C as B is to A",
                "The result leaves out the words of the question. Without A B C, --positive and --negative, each line "
                "of standard input is a question.",
            ),
            "convert": _Command(
                "words",
                "write words and their vectors in another format",
                "From word2vec, GloVe, fastText, gensim, or a model with a vocabulary and one matrix with a row for "
                "each word. DST is replaced in one step.",
            ),
        },
    ),
}
# Former names of commands, and the present ones
_RENAMED = {
    "residency": "weightmap cache show",
    **{name: f"weightmap cache {name}" for name in ("warm", "evict")},
    **{name: f"weightmap delta {name}" for name in ("apply", "pull")},
    **{name: f"weightmap words {name}" for name in ("lookup", "similar", "analogy")},
    "completions": "weightmap --print-completion",
    "demo": "make demo",
}


class _Parser(argparse.ArgumentParser):
    """A parser that raises an error instead of ending the process. Commands use this class too."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Accept options anywhere: argparse misses an optional argument after an option. Refuse unknown options."""
        argv = sys.argv[1:] if args is None else args
        ordered = argv if self._subparsers else self._options_first(argv)
        parsed, unknown = super().parse_known_args(ordered, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            if not option.startswith("-"):
                self.error(f"there are too many arguments: {' '.join(unknown)}")
            close = _suggestion(option, self._option_string_actions) or _elsewhere(option)
            self.error(f"there is no option {option}{close}")
        return parsed, unknown

    def format_help(self) -> str:
        """Return the help, as wide as the terminal."""
        formatter: Callable[..., Any] = self.formatter_class
        self.formatter_class = partial(formatter, width=_terminal_size().columns - 2)
        return super().format_help()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices; for a command, suggest similar ones."""
        if action.choices is None or value == [] or value in action.choices:  # a missing argument is []
            return
        if action.metavar == "COMMAND":
            if self.prog.removeprefix("weightmap ") in _COMMANDS:
                self.error(f"{self.prog} has no command {value!r}, only {', '.join(action.choices)}")
            if value in _RENAMED:
                self.error(f"there is no command {value!r}: it is {_RENAMED[value]} now")
            self.error(f"there is no command {value!r}{_suggestion(value, action.choices)}")
        name, choices = "/".join(action.option_strings) or action.metavar, ", ".join(action.choices)
        self.error(f"{name} is {value!r}, expected one of {choices}")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse ``--option=--``: argparse of Python 3.11 drops the value and then fails for lack of one."""
        if action.option_strings and arg_strings == ["--"]:
            self.error(f"{'/'.join(action.option_strings)} is '--', expected a value")
        return super()._get_values(action, arg_strings)

    def _options_first(self, args: Sequence[str]) -> list[str]:
        """Return the arguments with options and their values moved to the front."""
        actions, number = self._option_string_actions, self._negative_number_matcher
        options: list[str] = []
        others: list[str] = []
        remaining = iter(args)
        for arg in remaining:
            if arg == "--":
                others.extend(remaining)
            elif arg not in actions and (arg[:1] != "-" or arg == "-" or " " in arg or number.match(arg)):
                others.append(arg)
            else:
                options.append(arg)
                if arg in actions and actions[arg].nargs is None:
                    options.extend(itertools.islice(remaining, 1))
        return [*options, "--", *others] if others else options

    def error(self, message: str) -> NoReturn:
        """Raise the message as UsageError, with a pointer to the help; quoted arguments are cleaned when printed."""
        raise UsageError(f"{message} ({_HELP if self._subparsers else f'{self.prog} --help shows the options'})")


def _suggestion(word: str, choices: Iterable[str]) -> str:
    """Return the end of a message about a misspelt word: similar known ones."""
    close = similar(word, choices)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _elsewhere(option: str) -> str:
    """Return the end of a message about an option that other commands have."""
    progs = [sub.prog for sub in all_commands(build_parser()).values() if option in sub._option_string_actions]  # noqa: SLF001
    return f"; {' and '.join(progs[:3])} {'has' if len(progs) == 1 else 'have'} one" if progs else ""


def all_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, such as "diff" and "cache warm"."""
    commands: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list arguments
        for name, sub in action.choices.items() if isinstance(action.choices, dict) else ():
            inner = all_commands(sub)
            commands |= {f"{name} {verb}": one for verb, one in inner.items()} or {name: sub}
    return commands


class _Completion(argparse.Action):
    """Print the script that lets a shell complete commands, options, their values and paths."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: argparse.Namespace, values: Any, *_unused: Any
    ) -> None:
        """Print and leave, as ``--help`` does."""
        try:
            import shtab
        except ImportError as error:
            raise MissingDependencyError("completions need shtab: pip install '.[cli]' in a checkout") from error
        for action in (action for sub in all_commands(parser).values() for action in sub._actions):  # noqa: SLF001
            if action.nargs != 0 and action.choices is None:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # what shtab looks for
        show.emit(shtab.complete(parser, values))
        parser.exit()


class _Version(argparse.Action):
    """Print the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: Any, **_unused_options: Any) -> None:
        """Print and leave, as ``--help`` does."""
        show.emit(f"weightmap {__version__}")
        parser.exit()
