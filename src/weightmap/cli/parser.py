"""The command line's commands, and their arguments.

A command line has the parser of its own command alone: the arguments of all take longer to build than many commands to
run.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from weightmap import __version__
from weightmap.cli import show
from weightmap.cli.arguments import (
    add_distribution,
    add_json,
    add_lenient,
    add_remote,
    add_threads,
    add_weights,
    text,
)
from weightmap.cli.outcome import UsageError
from weightmap.core.arguments import similar
from weightmap.core.lazy import later
from weightmap.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_VERIFY = (
    "Every file is read to its end, even after one has failed. In a file without checksums, changed values of tensors "
    "go unnoticed: the first line about it says that only its structure was checked."
)
_DIFF = (
    "Tensors, metadata and vocabulary count; formats may differ. A file and its conversion do not differ, unless "
    "convert was asked to change something, or reported that it renamed something or left it behind. What convert "
    "adds, such as metadata from the config.json of a model directory, does not count. The table counts the elements "
    "that differ: with a tolerance, those beyond it."
)
_HELP = "weightmap help lists them all"
_LINES = "Without words, each line of standard input is a question."
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        known = [*dict.fromkeys(word for command in all_commands(parser) for word in command.split())]
        sub.add_argument(
            "about", metavar="COMMAND", nargs="*", default=[], choices=known, help="for example diff, or cache warm"
        )
    return parser


def command_of(argv: Sequence[str]) -> str | None:
    """Return the command that arguments name, such as "diff" or "cache warm"; None if there is none."""
    name, verb, *_ = [*(argument for argument in argv if not argument.startswith("-")), None, None]
    group = _COMMANDS.get(name or "")
    return f"{name} {verb}" if isinstance(group, _Group) and verb in group.commands else name


def _add_subparsers(parser: argparse.ArgumentParser, prog: str) -> Any:
    """Let a parser take commands; without one, it lists them."""
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
    sub.set_defaults(run=later(f"weightmap.cli.{command.module}", command.function or name), command=sub.prog)
    command.add_arguments(sub)
    if command.addresses:
        add_remote(sub)


def _add_parser(subparsers: Any, name: str, summary: str, details: str = "") -> argparse.ArgumentParser:
    description = f"{summary[0].upper()}{summary[1:]}. {details}".strip()
    sub: argparse.ArgumentParser = subparsers.add_parser(
        name, help=summary, description=description, allow_abbrev=False
    )
    return sub


# --------------------------------------------------------------------------------------------------- reading models
def _inspect(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("files", metavar="FILE", nargs="+", help="a tensor file, a model directory or an *.index.json")
    shape = sub.add_mutually_exclusive_group()
    shape.add_argument(
        "--tree", action="store_true", help="show modules, those built alike in one line (the default on a terminal)"
    )
    shape.add_argument(
        "--flat",
        action="store_true",
        help="show a line for each tensor (the default in a pipe, without training state)",
    )
    for name, what in (
        ("include", "list only tensors with such a name, and files that have some"),
        ("exclude", "list no tensors with such a name"),
    ):
        sub.add_argument(f"--{name}", metavar="GLOB", type=text, action="append", help=f"{what} (repeatable)")
    sub.add_argument("--sort", choices=("nbytes", "name"), help="list the largest tensors first, or by name (flat)")
    add_weights(sub, "list")
    add_json(sub)
    add_lenient(sub)


def _verify(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("files", metavar="FILE", nargs="+")
    sub.add_argument("-v", "--verbose", action="store_true", help="list the checks")
    sub.add_argument(
        "--trust",
        metavar="LIST",
        help="also compare whole files with digests: 'recorded' beside the model, sha256:DIGITS of one file, a "
        "SHA256SUMS, or a signature",
    )
    sub.add_argument("--key", metavar="PEM", help="the public key that checks a signature")
    sub.add_argument("--certificate", metavar="PEM", action="append", help="a certificate that vouches for the signer")
    sub.add_argument("--identity", metavar="NAME", help="a name, e-mail address or URI that the signer has to have")
    add_weights(sub, "check")
    add_threads(sub)
    add_json(sub)
    add_lenient(sub)
    add_distribution(sub)


def _sign(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="MODEL", help="a model directory, all files of which are signed, or a file")
    sub.add_argument("--key", metavar="PEM", required=True, help="the private key")
    sub.add_argument("--certificate", metavar="PEM", help="the certificate of the key")
    sub.add_argument("--chain", metavar="PEM", action="append", help="a certificate between that one and a trusted one")
    sub.add_argument("--allow-symlinks", action="store_true", help="sign what symbolic links lead to, as in a cache")
    sub.add_argument("--out", metavar="FILE", help="the bundle to write (default: model.sig in MODEL, or MODEL.sig)")


def _diff(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("a", metavar="A", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("b", metavar="B")
    sub.add_argument("--tensors-only", action="store_true", help="compare neither metadata nor vocabulary")
    sub.add_argument(
        "--by-value",
        action="store_true",
        help="compare numbers, whatever the types that store them: quantised with dense, float32 with bfloat16",
    )
    add_weights(sub, "compare, by value,")
    for name, tolerance in (("rtol", "N times the absolute value in B"), ("atol", "N")):
        sub.add_argument(
            f"--{name}", type=float, metavar="N", help=f"compare by value, and let elements differ by {tolerance}"
        )
    add_json(sub)


def _report(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="MODEL", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("other", metavar="OTHER", nargs="?", help="a model to compare it with")
    sub.add_argument("out", metavar="OUT", help="the page to write, whose name ends in .html")
    sub.add_argument("--no-verify", action="store_true", help="do not read the whole file to verify it")
    add_weights(sub, "show")
    add_json(sub)


def _export(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("name", metavar="NAME", type=text, help="the name of the tensor")
    sub.add_argument("out", metavar="OUT", help="the file to write, whose name ends in .npy")
    add_lenient(sub)


# ----------------------------------------------------------------------------------------------- versions of a model
def _publish(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("base", metavar="BASE", help="the model before: a file, a directory or an *.index.json")
    sub.add_argument("new", metavar="NEW", help="the model after")
    sub.add_argument("directory", metavar="DIR", help="the directory of versions; made if it does not exist")
    sub.add_argument("--version", type=int, metavar="N", required=True, help="the number of the new version, from 1 on")
    sub.add_argument("--base-version", type=int, metavar="N", help="that of BASE (default: the one before)")
    sub.add_argument("--encoding", choices=("xor", "overwrite"), default="xor", help="default: xor")
    sums = ("xxh3-128", "blake3", "adler32")
    sub.add_argument(
        "--checksum", choices=sums, default="xxh3-128", help="default: xxh3-128; ModelExpress reads adler32"
    )
    sub.add_argument("--level", type=int, metavar="N", default=1, help="of zstd, 1 to 22 (default: 1)")
    sub.add_argument("--max-shard-size", metavar="SIZE", help="most bytes per file (default: 5GB)")
    sub.add_argument(
        "--full",
        action=argparse.BooleanOptionalAction,
        help="publish all of NEW, or fail where only that would do (default: if a delta cannot express the difference)",
    )
    add_threads(sub)
    add_json(sub)


def _apply(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="MODEL", help="a file of safetensors, or a directory of such a model")
    sub.add_argument("delta", metavar="DELTA", help="the directory of the delta")
    _add_in_place(sub)


def _pull(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("local", metavar="LOCAL", help="the directory of the model; made if it does not exist")
    sub.add_argument("source", metavar="SOURCE", help="the directory, or address, with weight_vNNNNNN/")
    sub.add_argument("--base", metavar="BASE", help="the model that is version 0")
    sub.add_argument("--to", type=int, metavar="N", help="the version (default: the newest)")
    _add_in_place(sub)


def _add_in_place(sub: argparse.ArgumentParser) -> None:
    about = "change files that nobody has open themselves, by a journal: for a disk without room for them twice"
    sub.add_argument("--in-place", action="store_true", help=about)
    add_threads(sub)
    add_json(sub)


# --------------------------------------------------------------------------------------------------- pages in memory
def _doctor(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE", help="a tensor file, a model directory or an *.index.json")
    add_json(sub)
    add_lenient(sub)


def _cache(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("names", metavar="NAME", type=text, nargs="*", default=[], help="only tensors of these names")
    add_json(sub)
    add_lenient(sub)


def _warm(sub: argparse.ArgumentParser) -> None:
    _cache(sub)
    add_threads(sub, "8")


def _lookup(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE")
    # Without a default, argparse lists an optional argument as required.
    sub.add_argument("words", metavar="WORD", type=text, nargs="*", default=[])
    add_json(sub)


def _similar(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("word", metavar="WORD", type=text, nargs="?", help="the result leaves it out")
    _add_search(sub)


def _analogy(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE")
    for name in "abc":
        sub.add_argument(name, metavar=name.upper(), type=text, nargs="?")
    for name, what in (("positive", "add"), ("negative", "subtract")):
        about = f"{what} the vector of a word (repeatable)"
        sub.add_argument(f"--{name}", metavar="WORD", type=text, action="append", help=about)
    _add_search(sub)


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-k", type=int, default=10, metavar="N", help="print at most this many words (default: 10)")
    parser.add_argument("--skip", metavar="WORD", type=text, action="append", help="leave a word out (repeatable)")
    add_json(parser)


# ------------------------------------------------------------------------------------------------------- the commands
class _Command(NamedTuple):
    """A command.

    Attributes
    ----------
    module : str
        The module of its function, which is called `function`, or as the command.
    summary, details : str
        The first line and the rest of its help.
    add_arguments : callable
    addresses : bool
        Whether it reads addresses of stores.
    """

    module: str
    summary: str
    details: str
    add_arguments: Callable[[argparse.ArgumentParser], Any]
    addresses: bool = True
    function: str = ""


class _Group(NamedTuple):
    """Commands about one thing, which have one name in front."""

    summary: str
    details: str
    commands: dict[str, _Command]


_COMMANDS: dict[str, _Command | _Group] = {
    "inspect": _Command("reading", "show the contents of files", "No tensor data is read.", _inspect),
    "verify": _Command("reading", "check the structure of files, and their checksums", _VERIFY, _verify),
    "diff": _Command("commands", "compare two files", _DIFF, _diff),
    "report": _Command(
        "reporting",
        "write a page about a model, or about how two differ, to look at in a browser",
        "One HTML file that needs no network: modules, the map of the file, values, what quantising would cost, "
        "warnings. Of two models: how much each tensor differs. Needs the extra [report].",
        _report,
    ),
    "export": _Command(
        "commands",
        "write one tensor as a .npy file",
        "OUT is replaced if it exists. Types that .npy files lack (bfloat16, float8, quantised) become float32.",
        _export,
    ),
    "convert": _Command(
        "commands",
        "write a file in another format or layout",
        "DST is replaced in one step.",
        later("weightmap.cli.writers", "add_convert"),
    ),
    "quantize": _Command(
        "quantising",
        "store the weights of a model as integers of few bits",
        "DST is replaced in one step: AMB for int8 to adaptive, GGUF for the other schemes. Tensors of one dimension, "
        "embeddings (by their names) and tensors that are quantised already stay as they are; a mixture of llama.cpp "
        "(q4_k_m and the like) quantises embeddings, too.",
        later("weightmap.cli.writers", "add_quantize"),
    ),
    "sign": _Command(
        "reading", "sign a model as OpenSSF model-signing does", "Needs the extra [trust].", _sign, addresses=False
    ),
    "doctor": _Command(
        "memory",
        "say what using a model will cost on this machine",
        "Where it lies, how much of it is in memory, page faults, alignment, what memory and control group leave; and "
        "what to do. No tensor is read.",
        _doctor,
    ),
    "cache": _Group(
        "show how much of a model is in memory, bring it in, or give that memory back",
        "",
        {
            "show": _Command(
                "memory",
                "show how much of each tensor is in memory",
                "No tensor is read.",
                _cache,
                function="residency",
            ),
            "warm": _Command(
                "memory", "bring a model into memory", "As much of it as memory and control group leave.", _warm
            ),
            "evict": _Command(
                "memory", "give the memory of a model back", "What another process has mapped stays.", _cache
            ),
        },
    ),
    "delta": _Group(
        "publish what changed between two models, and bring local models up to date",
        "Needs the extra [deltas].",
        {
            "publish": _Command(
                "updating",
                "publish what changed between two models",
                "DIR gets weight_vNNNNNN/, as slime, SGLang and ModelExpress exchange it. Needs the extra [deltas].",
                _publish,
            ),
            "apply": _Command(
                "updating",
                "bring a local model to the version of a delta",
                "Every checksum is compared first; then the model is the new one in one step. Needs the extra "
                "[deltas].",
                _apply,
                addresses=False,
            ),
            "pull": _Command(
                "updating",
                "bring a local model to a published version",
                "By deltas where possible. Stopped at any moment, LOCAL is wholly one version or the other. Needs the "
                "extra [deltas].",
                _pull,
            ),
        },
    ),
    "words": _Group(
        "look up word embeddings, search and convert them",
        "",
        {
            "lookup": _Command("words", "print the embeddings of words", _LINES, _lookup),
            "similar": _Command("words", "print the words most similar to a word", f"By cosine. {_LINES}", _similar),
            "analogy": _Command(
                "words",
                "print the words that are to C as B is to A",
                "Words asked about are left out. Without A B C, --positive and --negative: "
                f"{_LINES[0].lower()}{_LINES[1:]}",
                _analogy,
            ),
            "convert": _Command(
                "words",
                "write words and their vectors in another format",
                "From word2vec, GloVe, fastText, gensim or a model with a vocabulary and a matrix of its rows. DST is "
                "replaced in one step.",
                later("weightmap.cli.writers", "add_words"),
            ),
        },
    ),
}
# What commands were called, and are called now
_RENAMED = {
    "residency": "cache show",
    **{name: f"cache {name}" for name in ("warm", "evict")},
    **{name: f"delta {name}" for name in ("apply", "pull")},
    **{name: f"words {name}" for name in ("lookup", "similar", "analogy")},
    "completions": "--print-completion",
}


class _Parser(argparse.ArgumentParser):
    """A parser that raises an error instead of ending the process. Commands use this class too."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Accept options anywhere: argparse misses an optional argument behind an option. Refuse unknown ones."""
        given = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args(given if self._subparsers else self._options_first(given), namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            if not option.startswith("-"):
                self.error(f"there are too many arguments: {' '.join(unknown)}")
            close = _suggestion(option, self._option_string_actions) or _elsewhere(option)
            self.error(f"there is no option {option}{close}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices; for a command, suggest similar ones."""
        if action.choices is None or value == [] or value in action.choices:  # no argument is a list
            return
        if action.metavar == "COMMAND":
            if self.prog.removeprefix("weightmap ") in _COMMANDS:
                self.error(f"{self.prog} has no command {value!r}, only {', '.join(action.choices)}")
            if value in _RENAMED:
                self.error(f"there is no command {value!r}: it is weightmap {_RENAMED[value]} now")
            self.error(f"there is no command {value!r}{_suggestion(value, action.choices)}")
        name, known = "/".join(action.option_strings) or action.metavar, ", ".join(action.choices)
        self.error(f"{name} is {value!r}, expected one of {known}")

    def _options_first(self, args: Sequence[str]) -> list[str]:
        """Return the arguments with the options and their values first."""
        known, number = self._option_string_actions, self._negative_number_matcher
        options: list[str] = []
        others: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                others.extend(rest)
            elif arg not in known and (arg[:1] != "-" or arg == "-" or " " in arg or number.match(arg)):
                others.append(arg)
            else:
                options.append(arg)
                if arg in known and known[arg].nargs is None:
                    options.extend(itertools.islice(rest, 1))
        return [*options, "--", *others] if others else options

    def error(self, message: str) -> NoReturn:
        """Raise the message as UsageError, with a pointer to the help; quoted arguments are cleaned when printed."""
        raise UsageError(f"{message} ({_HELP if self._subparsers else f'{self.prog} --help shows the options'})")


def _suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about a misspelt word: similar known ones."""
    close = similar(word, known)
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
    """Print the script by which a shell completes commands, options, their values and paths."""

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
