"""The arguments of the command line.

Building the parser imports nothing heavy, so that ``--help`` and a mistyped option answer at once.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from weightmap.cli import commands, completions, executing, memory, quantising, reading, reporting, show, words
from weightmap.cli.outcome import UsageError
from weightmap.conversion.schemes import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _Command = Callable[..., argparse.ArgumentParser]

_VERIFY = (
    "Every file is read to its end, even after one has failed. In a file without checksums, changed values of tensors "
    "go unnoticed: the first line about it says that only its structure was checked."
)
_DIFF = (
    "Tensors, metadata and vocabulary count; formats may differ. A file and its conversion do not differ, unless "
    "convert was asked to change something, or reported that it renamed something or left it behind. What convert "
    "adds, such as metadata from the config.json of a model directory, does not count."
)
_LINES = "Without words, each line of standard input is a question."
_EPILOG = """\
exit status:
  0    fine
  1    the files differ, verification failed, or a word has no embedding
  2    usage: wrong arguments, an unknown tensor, a target that cannot express the tensors
  3    malformed or unsupported file
  4    input or output error, or a missing optional dependency
  130  interrupted     141  the reader of the output went away
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; ``args.run`` is the function of the command."""
    parser = _Parser(
        prog="weightmap",
        description="Look into, check, convert and compare files of tensors, opened in place.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], summary: str, details: str = ""
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {details}".strip(), allow_abbrev=False
        )
        sub.set_defaults(run=run)
        return sub

    _add_readers(command)
    _add_writers(command)
    _add_memory(command)
    _add_lookups(command)
    sub = command(
        "completions",
        lambda args: completions.completions(parser, args),
        "print what a shell needs to complete commands and options",
        "For example: source <(weightmap completions bash)",
    )
    sub.add_argument("shell", metavar="SHELL", choices=completions.SHELLS, help=", ".join(completions.SHELLS))
    return parser


def _add_readers(command: _Command) -> None:
    """Add the commands that read models and write none."""
    sub = command("inspect", reading.inspect, "show the contents of a file", "No tensor data is read.")
    sub.add_argument("file", metavar="FILE", help="a tensor file, a model directory or an *.index.json")
    shape = sub.add_mutually_exclusive_group()
    shape.add_argument(
        "--tree", action="store_true", help="show modules, those built alike in one line (the default on a terminal)"
    )
    shape.add_argument("--flat", action="store_true", help="show a line for each tensor (the default in a pipe)")
    _add_json(sub)
    _add_lenient(sub)

    sub = command("verify", reading.verify, "check the structure of files, and their checksums", _VERIFY)
    sub.add_argument("files", metavar="FILE", nargs="+")
    sub.add_argument("-v", "--verbose", action="store_true", help="list the checks")
    _add_threads(sub)
    _add_json(sub)
    _add_lenient(sub)
    executing.add_options(sub)

    sub = command("diff", commands.diff, "compare two files", _DIFF)
    sub.add_argument("a", metavar="A", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("b", metavar="B")
    sub.add_argument("--tensors-only", action="store_true", help="compare neither metadata nor vocabulary")
    sub.add_argument(
        "--by-value",
        action="store_true",
        help="compare numbers, whatever the types that store them: quantised with dense, float32 with bfloat16",
    )
    for name, tolerance in (("rtol", "N times the absolute value in B"), ("atol", "N")):
        sub.add_argument(
            f"--{name}", type=float, metavar="N", help=f"compare by value, and let elements differ by {tolerance}"
        )
    _add_json(sub)

    sub = command(
        "report",
        reporting.report,
        "write a page about a model, or about how two differ, to look at in a browser",
        "One HTML file that needs no network: modules, the map of the file, values, what quantising would cost, "
        "warnings. Of two models: how far each tensor is apart. Needs the extra [report].",
    )
    sub.add_argument("file", metavar="MODEL", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("other", metavar="OTHER", nargs="?", help="a model to compare it with")
    sub.add_argument("-o", "--output", metavar="OUT", required=True, help="the page to write, for example report.html")
    sub.add_argument("--no-verify", action="store_true", help="do not read the whole file to verify it")
    _add_json(sub)

    sub = command(
        "export",
        commands.export,
        "write one tensor as a .npy file",
        "OUT is replaced if it exists. Types that .npy files lack (bfloat16, float8, quantised) become float32.",
    )
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("name", metavar="NAME", help="the name of the tensor")
    sub.add_argument("out", metavar="OUT", help="the .npy file to write")


def _add_writers(command: _Command) -> None:
    """Add the commands that write models."""
    sub = command(
        "convert", commands.convert, "write a file in another format or layout", "DST is replaced in one step."
    )
    sub.add_argument(
        "src", metavar="SRC", help="a tensor file, a model directory, or word2vec, GloVe, fastText or gensim"
    )
    sub.add_argument(
        "dst",
        metavar="DST",
        help="the file to write; its suffix decides the format; or a directory or *.index.json, for shards",
    )
    sub.add_argument("--format", help="the format to write, whatever the suffix of DST")
    sub.add_argument("--layout", help="a layout of that format other than its usual one")
    sub.add_argument("--dtype", help="store floating-point tensors as this type, for example float16")
    sub.add_argument(
        "--align", type=int, metavar="BYTES", help="let tensors begin at multiples of a power of two, for example 64"
    )
    sub.add_argument(
        "--max-shard-size", metavar="SIZE", help="write files with up to so many bytes of tensors, for example 5GB"
    )
    sub.add_argument(
        "--include", metavar="GLOB", action="append", help="convert only tensors with such a name (repeatable)"
    )
    sub.add_argument(
        "--exclude", metavar="GLOB", action="append", help="leave out tensors with such a name (repeatable)"
    )
    _add_verify(sub)
    _add_quantisation(sub, "; for pq: bits of a code, 1 to 8 (default: 8)")
    _add_words(sub)
    executing.add_options(sub)
    _add_json(sub)

    sub = command(
        "quantize",
        quantising.quantize,
        "store the weights of a model as integers of few bits",
        "DST (AMB; GGUF for schemes that begin with q) is replaced in one step. Tensors of one dimension, embeddings "
        "(by their names) and tensors that are quantised already stay as they are.",
    )
    _add_quantize(sub)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify", action="store_true", help="verify SRC first; without this, checksums of tensors are not looked at"
    )


def _add_memory(command: _Command) -> None:
    """Add the commands about pages in memory."""
    sub = command(
        "doctor",
        memory.doctor,
        "say what using a model will cost on this machine",
        "Where it lies, how much of it is in memory, page faults, alignment, what memory and control group leave; and "
        "what to do. No tensor is read.",
    )
    sub.add_argument("file", metavar="FILE", help="a tensor file, a model directory or an *.index.json")
    _add_json(sub)
    for run, summary, details in (
        (memory.residency, "show how much of each tensor is in memory", "No tensor is read."),
        (memory.warm, "bring a model into memory", "As much of it as memory and control group leave."),
        (memory.evict, "give the memory of a model back", "What another process has mapped stays."),
    ):
        sub = command(run.__name__, run, summary, details)
        sub.add_argument("file", metavar="FILE")
        sub.add_argument("names", metavar="NAME", nargs="*", default=[], help="only tensors of these names")
        if run is memory.warm:
            _add_threads(sub, "8")
        _add_json(sub)


def _add_lookups(command: _Command) -> None:
    """Add the commands for words, and the demonstration."""
    # Without a default, an argument that may be missing is named among those that are required.
    sub = command("lookup", words.lookup, "print the embeddings of words", _LINES)
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("words", metavar="WORD", nargs="*", default=[])
    _add_json(sub)

    sub = command("similar", words.similar, "print the words most similar to a word", f"By cosine. {_LINES}")
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("word", metavar="WORD", nargs="?", help="the result leaves it out")
    _add_search(sub)

    sub = command(
        "analogy",
        words.analogy,
        "print the words that are to C as B is to A",
        f"Words asked about are left out. Without A B C, --positive and --negative: {_LINES[0].lower()}{_LINES[1:]}",
    )
    sub.add_argument("file", metavar="FILE")
    for name in "abc":
        sub.add_argument(name, metavar=name.upper(), nargs="?")
    for name, what in (("positive", "add"), ("negative", "subtract")):
        sub.add_argument(f"--{name}", metavar="WORD", action="append", help=f"{what} the vector of a word (repeatable)")
    _add_search(sub)

    sub = command("demo", commands.demo, "embed sentences with a real model, straight from the mapped file")
    sub.add_argument("sentences", metavar="SENTENCE", nargs="*", default=[])
    sub.add_argument(
        "--model", metavar="FILE", help="a converted checkpoint, quantised or not; made if it does not exist"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-k", type=int, default=10, metavar="N", help="print at most this many words (default: 10)")
    parser.add_argument("--skip", metavar="WORD", action="append", help="leave a word out (repeatable)")
    _add_json(parser)


def _add_quantize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", help="a tensor file or a model directory")
    parser.add_argument("dst", metavar="DST", help="the file to write; or a directory or *.index.json, for shards")
    parser.add_argument("--format", help="the format to write, whatever the suffix of DST")
    parser.add_argument("--scheme", required=True, metavar="SCHEME", choices=SCHEMES, help=", ".join(SCHEMES))
    _add_quantisation(parser)
    parser.add_argument("--dtype", help="store dense tensors as this type, for example float16")
    parser.add_argument(
        "--include", metavar="GLOB", action="append", help="quantise only tensors with such a name (repeatable)"
    )
    parser.add_argument(
        "--exclude", metavar="GLOB", action="append", help="leave such tensors as they are (repeatable)"
    )
    _add_verify(parser)
    executing.add_options(parser)
    _add_json(parser)


def _add_quantisation(parser: argparse.ArgumentParser, bits: str = "") -> None:
    """Add the options of quantising; `bits` is what one of them means besides."""
    parser.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        help="elements with one scale, for int4_block, int5_block and adaptive (default: 32)",
    )
    parser.add_argument(
        "--bits",
        type=float,
        metavar="B",
        help=f"for adaptive: bits per weight, 4.5 to 16 (default: 5){bits}",
    )
    parser.add_argument("--scale-type", choices=("fp16", "fp32"), help="the type of scales (default: fp16)")
    _add_threads(parser)


def _add_threads(parser: argparse.ArgumentParser, default: str = "one for each CPU") -> None:
    parser.add_argument("--threads", type=_threads, metavar="N", help=f"use at most N threads (default: {default})")


def _threads(text: str) -> int:
    try:
        threads = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
    if threads < 1:
        raise UsageError(f"--threads is {threads}, expected 1 or more")
    return threads


def _add_words(parser: argparse.ArgumentParser) -> None:
    """Add the options of `convert` for word embeddings, and with pq that for all schemes."""
    schemes = (*SCHEMES, "pq")
    parser.add_argument("--quantize", metavar="SCHEME", choices=schemes, help=f"one of {', '.join(schemes)}")
    group = parser.add_argument_group("word embeddings")
    group.add_argument("--lossy", action="store_true", help="replace bytes of words that are not UTF-8")
    group.add_argument(
        "--normalize", action=argparse.BooleanOptionalAction, help="make unit vectors and store norms, or undo that"
    )
    group.add_argument("--subwords", choices=("explicit",), help="list the n-grams of a vocabulary with buckets")
    group.add_argument("--subquantizers", type=int, metavar="N", help="for pq: codes of a row (default: dims / 2)")
    group.add_argument("--projection", action="store_true", help="for pq: rotate the rows first")
    group.add_argument("--seed", type=int, metavar="N", help="for pq: seed of all random choices (default: 0)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help='print one JSON document ("schema": 1), also of an error')


def _add_lenient(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lenient", action="store_true", help="tolerate harmless defects, such as trailing bytes")


class _Parser(argparse.ArgumentParser):
    """A parser that raises an error where argparse would end the process. Commands use this class too."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Let options stand anywhere: argparse misses an optional argument that follows one."""
        given = sys.argv[1:] if args is None else args
        return super().parse_known_args(given if self._subparsers else self._options_first(given), namespace)

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
        """Print the usage and raise the message as UsageError; printing it will clean the arguments that it quotes."""
        show.emit(self.format_usage().rstrip(), stream=sys.stderr)
        raise UsageError(message)


class _Version(argparse.Action):
    """Print the version, which is looked up only now."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: Any, **_unused_options: Any) -> None:
        """Print and leave, as ``--help`` does."""
        import weightmap

        show.emit(f"weightmap {weightmap.__version__}")
        parser.exit()
