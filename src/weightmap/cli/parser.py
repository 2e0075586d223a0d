"""The arguments of the command line.

Building the parser imports nothing heavy, so that ``--help`` and a mistyped option answer at once.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from weightmap import __version__
from weightmap.cli import executing, show
from weightmap.cli.outcome import UsageError
from weightmap.dtypes import FLOATING, SHORT
from weightmap.formats import FORMATS
from weightmap.index.spelling import alike
from weightmap.lazy import later
from weightmap.llama import NAMES as NAMINGS
from weightmap.llama.mixtures import MIXTURES
from weightmap.quant.quantizing import SCHEMES
from weightmap.words.importers import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    _Command = Callable[..., argparse.ArgumentParser]

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
    """Return the parser; ``args.run`` is the function of the command.

    Where the arguments name a command, the parser has that one alone: the others' arguments take longer to build than
    many commands to run.
    """
    asked = next((argument for argument in argv if not argument.startswith("-")), None)
    parser, commands = _built(asked)
    return parser if asked in commands else _built(None)[0]


def _built(asked: str | None) -> tuple[argparse.ArgumentParser, Collection[str]]:
    """Return the parser with one command, or with all, and its commands."""
    parser = _Parser(
        prog="weightmap",
        description="Look into, check, convert and compare files of tensors, opened in place.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-v", "-V", "--version", action=_Version, nargs=0, help="print the version and exit")
    parser.set_defaults(run=lambda _: parser.error("which command?"))
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, module: str | None, summary: str, details: str = "") -> argparse.ArgumentParser:
        if asked is not None and name != asked:
            return _Left()  # type: ignore[return-value]
        sub = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {details}".strip(), allow_abbrev=False
        )
        if module is not None:  # it has a function of the command's name, and is imported when that runs
            sub.set_defaults(run=later(f"weightmap.cli.{module}", name))
        return sub

    _add_readers(command)
    _add_writers(command)
    _add_versions(command)
    _add_memory(command)
    _add_lookups(command)
    if asked is None:
        _add_help(command, parser, subparsers)
    return parser, subparsers.choices


class _Left:
    """Stands for the parser of a command that is not asked for, and takes its arguments for nothing."""

    def __getattr__(self, _: str) -> Callable[..., _Left]:
        return self._itself

    def _itself(self, *_: Any, **__: Any) -> _Left:
        return self


def _add_help(command: _Command, parser: argparse.ArgumentParser, subparsers: Any) -> None:
    """Add the commands about commands, which need all others."""
    from weightmap.cli import completions  # 2 ms

    sub = command(
        "completions",
        None,
        "print what a shell needs to complete commands and options",
        "For example: source <(weightmap completions bash)",
    )
    sub.set_defaults(run=lambda args: completions.completions(parser, args))
    sub.add_argument("shell", metavar="SHELL", choices=completions.SHELLS, help=", ".join(completions.SHELLS))
    sub = command("help", None, "show the commands, or the options of one")
    sub.set_defaults(
        run=lambda args: parser.parse_args(["--help"] if args.about is None else [args.about, "--help"]).run(args)
    )
    sub.add_argument("about", metavar="COMMAND", nargs="?", choices=subparsers.choices)


def _add_readers(command: _Command) -> None:
    """Add the commands that read models and write none."""
    sub = command("inspect", "reading", "show the contents of files", "No tensor data is read.")
    sub.add_argument("files", metavar="FILE", nargs="+", help="a tensor file, a model directory or an *.index.json")
    shape = sub.add_mutually_exclusive_group()
    shape.add_argument(
        "--tree", action="store_true", help="show modules, those built alike in one line (the default on a terminal)"
    )
    shape.add_argument("--flat", action="store_true", help="show a line for each tensor (the default in a pipe)")
    for name, what in (
        ("include", "list only tensors with such a name, and files that have some"),
        ("exclude", "list no tensors with such a name"),
    ):
        sub.add_argument(f"--{name}", metavar="GLOB", type=_text, action="append", help=f"{what} (repeatable)")
    sub.add_argument("--sort", choices=("nbytes", "name"), help="list the largest tensors first, or by name (flat)")
    _add_weights(sub, "list")
    _add_json(sub)
    _add_lenient(sub)

    sub = command("verify", "reading", "check the structure of files, and their checksums", _VERIFY)
    sub.add_argument("files", metavar="FILE", nargs="+")
    sub.add_argument("-v", "--verbose", action="store_true", help="list the checks")
    sub.add_argument(
        "--trust",
        metavar="LIST",
        help="also compare whole files with digests: 'recorded' beside the model, a SHA256SUMS, or a signature",
    )
    sub.add_argument("--key", metavar="PEM", help="the public key that checks a signature")
    sub.add_argument("--certificate", metavar="PEM", action="append", help="a certificate that vouches for the signer")
    sub.add_argument("--identity", metavar="NAME", help="a name, e-mail address or URI that the signer has to have")
    _add_weights(sub, "check")
    _add_threads(sub)
    _add_json(sub)
    _add_lenient(sub)
    executing.add_options(sub)

    sub = command("sign", "reading", "sign a model as OpenSSF model-signing does", "Needs the extra [trust].")
    sub.add_argument("file", metavar="MODEL", help="a model directory, all files of which are signed, or a file")
    sub.add_argument("--key", metavar="PEM", required=True, help="the private key")
    sub.add_argument("--certificate", metavar="PEM", help="the certificate of the key")
    sub.add_argument("--chain", metavar="PEM", action="append", help="a certificate between that one and a trusted one")
    sub.add_argument("--out", metavar="FILE", help="the bundle to write (default: model.sig in MODEL, or MODEL.sig)")

    sub = command("diff", "commands", "compare two files", _DIFF)
    sub.add_argument("a", metavar="A", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("b", metavar="B")
    sub.add_argument("--tensors-only", action="store_true", help="compare neither metadata nor vocabulary")
    sub.add_argument(
        "--by-value",
        action="store_true",
        help="compare numbers, whatever the types that store them: quantised with dense, float32 with bfloat16",
    )
    _add_weights(sub, "compare, by value,")
    for name, tolerance in (("rtol", "N times the absolute value in B"), ("atol", "N")):
        sub.add_argument(
            f"--{name}", type=float, metavar="N", help=f"compare by value, and let elements differ by {tolerance}"
        )
    _add_json(sub)

    sub = command(
        "report",
        "reporting",
        "write a page about a model, or about how two differ, to look at in a browser",
        "One HTML file that needs no network: modules, the map of the file, values, what quantising would cost, "
        "warnings. Of two models: how far each tensor is apart. Needs the extra [report].",
    )
    sub.add_argument("file", metavar="MODEL", help="a tensor file, a model directory or an *.index.json")
    sub.add_argument("other", metavar="OTHER", nargs="?", help="a model to compare it with")
    sub.add_argument("out", metavar="OUT", help="the page to write, whose name ends in .html")
    sub.add_argument("--no-verify", action="store_true", help="do not read the whole file to verify it")
    _add_weights(sub, "show")
    _add_json(sub)

    sub = command(
        "export",
        "commands",
        "write one tensor as a .npy file",
        "OUT is replaced if it exists. Types that .npy files lack (bfloat16, float8, quantised) become float32.",
    )
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("name", metavar="NAME", type=_text, help="the name of the tensor")
    sub.add_argument("out", metavar="OUT", help="the file to write, whose name ends in .npy")
    _add_lenient(sub)


def _add_writers(command: _Command) -> None:
    """Add the commands that write models."""
    sub = command("convert", "commands", "write a file in another format or layout", "DST is replaced in one step.")
    source = "a tensor file, a model directory, or word2vec, GloVe, fastText or gensim"
    _add_conversion(sub, source, [*(name for name, found in FORMATS.items() if found.plan), *NAMES])
    schemes = _Offered((*SCHEMES, *MIXTURES, "pq"))
    sub.add_argument("--quantize", metavar="SCHEME", choices=schemes, help=f"one of {', '.join(schemes)}")
    _add_words(sub)

    sub = command(
        "quantize",
        "quantising",
        "store the weights of a model as integers of few bits",
        "DST (AMB; GGUF for schemes that begin with q) is replaced in one step. Tensors of one dimension, embeddings "
        "(by their names) and tensors that are quantised already stay as they are.",
    )
    able = {name: frozenset().union(*found.schemes.values()) for name, found in FORMATS.items() if found.plan}
    held = [name for name, schemes in able.items() if schemes & {*SCHEMES}]
    _add_conversion(sub, "a tensor file or a model directory", held)
    sub.add_argument(
        *("--scheme", "--quantize"),
        dest="quantize",
        required=True,
        metavar="SCHEME",
        choices=_Offered((*SCHEMES, *MIXTURES)),
        help=", ".join((*SCHEMES, *MIXTURES)),
    )


def _add_weights(sub: argparse.ArgumentParser, verb: str) -> None:
    """Add the option for the parameters of quantised checkpoints."""
    about = f"{verb} the parameters of a quantised checkpoint (AWQ, GPTQ, FP8 ...), not the tensors that store them"
    sub.add_argument("--weights", action="store_true", help=about)


def _add_conversion(sub: argparse.ArgumentParser, source: str, formats: Sequence[str]) -> None:
    """Add the arguments common to all commands that write models."""
    sub.add_argument("src", metavar="SRC", help=source)
    sub.add_argument(
        "dst",
        metavar="DST",
        help="the file to write; its suffix decides the format; or a directory (OUT/, or from a model directory a name "
        "without a suffix; of the format of SRC) or *.index.json, for shards; to a directory, configuration and "
        "tokenizer of a model directory go along, and replace no file",
    )
    about = f"the format to write, whatever the suffix of DST: {', '.join(formats)}"
    sub.add_argument("--format", metavar="FORMAT", choices=_Offered(formats), help=about)
    layouts = {name: found.layouts for name in formats if (found := FORMATS.get(name)) and len(found.layouts) > 1}
    sub.add_argument(
        "--layout",
        metavar="LAYOUT",
        choices=_Offered(layout for several in layouts.values() for layout in several),
        help="a layout of that format other than its first one: "
        + "; ".join(f"{' or '.join(several)} of {name}" for name, several in layouts.items())
        if layouts
        else "a layout of that format other than its first one",
    )
    _add_weights(sub, "decode")
    about = "of a model directory in GGUF: auto gives llama.cpp's names where they are known, llama.cpp fails elsewhere"
    sub.add_argument("--names", metavar="NAMES", choices=_Offered(NAMINGS), help=about)
    about = f"store floating-point tensors as this type: {', '.join(FLOATING)}"
    sub.add_argument("--dtype", metavar="DTYPE", choices=_Offered((*FLOATING, *SHORT)), help=about)
    sub.add_argument(
        "--align", type=int, metavar="BYTES", help="align tensors to multiples of a power of two, for example 64"
    )
    sub.add_argument("--max-shard-size", metavar="SIZE", help="most bytes of tensors per file, for example 5GB")
    for option, what in (
        ("--include GLOB", "convert only tensors with such a name"),
        ("--exclude GLOB", "leave out tensors with such a name"),
        ("--rename OLD=NEW", "give a tensor another name"),
        ("--quantize-include GLOB", "quantise only tensors with such a name"),
        ("--quantize-exclude GLOB", "do not quantise tensors with such a name"),
    ):
        name, metavar = option.split()
        sub.add_argument(name, metavar=metavar, type=_text, action="append", help=f"{what} (repeatable)")
    sub.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        help="elements with one scale, for int4_block, int5_block and adaptive (default: 32)",
    )
    sub.add_argument("--bits", type=float, metavar="B", help="for adaptive: bits per weight, 4.5 to 16 (default: 5)")
    sub.add_argument("--scale-type", metavar="DTYPE", help="the type of scales, fp16 or fp32 (default: fp16)")
    _add_threads(sub)
    sub.add_argument("--no-overwrite", dest="overwrite", action="store_false", help="refuse a DST that exists")
    sub.add_argument(
        "--verify", action="store_true", help="verify SRC first; otherwise checksums of tensors are ignored"
    )
    _add_lenient(sub)
    executing.add_options(sub)
    _add_json(sub)


def _add_versions(command: _Command) -> None:
    """Add the commands about versions of a model."""
    sub = command(
        "delta",
        "updating",
        "publish what changed between two models",
        "DIR gets weight_vNNNNNN/, as slime, SGLang and ModelExpress exchange it. Needs the extra [deltas].",
    )
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
    _add_threads(sub)
    _add_json(sub)

    sub = command(
        "apply",
        "updating",
        "bring a local model to the version of a delta",
        "Every checksum is compared first; then the model is the new one in one step. Needs the extra [deltas].",
    )
    sub.add_argument("file", metavar="MODEL", help="a file of safetensors, or a directory of such a model")
    sub.add_argument("delta", metavar="DELTA", help="the directory of the delta")
    _add_in_place(sub)
    _add_threads(sub)
    _add_json(sub)

    sub = command(
        "pull",
        "updating",
        "bring a local model to a published version",
        "By deltas where possible. Stopped at any moment, LOCAL is wholly one version or the other. Needs the extra "
        "[deltas].",
    )
    sub.add_argument("local", metavar="LOCAL", help="the directory of the model; made if it does not exist")
    sub.add_argument("source", metavar="SOURCE", help="the directory, or address, with weight_vNNNNNN/")
    sub.add_argument("--base", metavar="BASE", help="the model that is version 0")
    sub.add_argument("--to", type=int, metavar="N", help="the version (default: the newest)")
    _add_in_place(sub)
    _add_threads(sub)
    _add_json(sub)


def _add_in_place(sub: argparse.ArgumentParser) -> None:
    text = "change files that nobody has open themselves, by a journal: for a disk without room for them twice"
    sub.add_argument("--in-place", action="store_true", help=text)


def _add_memory(command: _Command) -> None:
    """Add the commands about pages in memory."""
    sub = command(
        "doctor",
        "memory",
        "say what using a model will cost on this machine",
        "Where it lies, how much of it is in memory, page faults, alignment, what memory and control group leave; and "
        "what to do. No tensor is read.",
    )
    sub.add_argument("file", metavar="FILE", help="a tensor file, a model directory or an *.index.json")
    _add_json(sub)
    _add_lenient(sub)
    for name, summary, details in (
        ("residency", "show how much of each tensor is in memory", "No tensor is read."),
        ("warm", "bring a model into memory", "As much of it as memory and control group leave."),
        ("evict", "give the memory of a model back", "What another process has mapped stays."),
    ):
        sub = command(name, "memory", summary, details)
        sub.add_argument("file", metavar="FILE")
        sub.add_argument("names", metavar="NAME", type=_text, nargs="*", default=[], help="only tensors of these names")
        if name == "warm":
            _add_threads(sub, "8")
        _add_json(sub)
        _add_lenient(sub)


def _add_lookups(command: _Command) -> None:
    """Add the commands for words, and the demonstration."""
    # Without a default, argparse lists an optional argument as required.
    sub = command("lookup", "words", "print the embeddings of words", _LINES)
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("words", metavar="WORD", type=_text, nargs="*", default=[])
    _add_json(sub)

    sub = command("similar", "words", "print the words most similar to a word", f"By cosine. {_LINES}")
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("word", metavar="WORD", type=_text, nargs="?", help="the result leaves it out")
    _add_search(sub)

    sub = command(
        "analogy",
        "words",
        "print the words that are to C as B is to A",
        f"Words asked about are left out. Without A B C, --positive and --negative: {_LINES[0].lower()}{_LINES[1:]}",
    )
    sub.add_argument("file", metavar="FILE")
    for name in "abc":
        sub.add_argument(name, metavar=name.upper(), type=_text, nargs="?")
    for name, what in (("positive", "add"), ("negative", "subtract")):
        about = f"{what} the vector of a word (repeatable)"
        sub.add_argument(f"--{name}", metavar="WORD", type=_text, action="append", help=about)
    _add_search(sub)

    sub = command("demo", "commands", "embed sentences with a real model, straight from the mapped file")
    sub.add_argument("sentences", metavar="SENTENCE", nargs="*", default=[])
    sub.add_argument(
        "--model", metavar="FILE", help="a converted checkpoint, quantised or not; made if it does not exist"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-k", type=int, default=10, metavar="N", help="print at most this many words (default: 10)")
    parser.add_argument("--skip", metavar="WORD", type=_text, action="append", help="leave a word out (repeatable)")
    _add_json(parser)


def _add_threads(parser: argparse.ArgumentParser, default: str = "one for each CPU") -> None:
    parser.add_argument("--threads", type=_threads, metavar="N", help=f"use at most N threads (default: {default})")


def _text(given: str) -> str:
    """Return a name of a tensor or a word, which are UTF-8 in files: an argument is text of the system's encoding."""
    try:
        return os.fsencode(given).decode("utf-8", "surrogateescape")
    except UnicodeError:  # not from a command line: passed by a caller of `main`
        return given


def _threads(text: str) -> int:
    try:
        threads = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
    if threads < 1:
        raise UsageError(f"--threads is {threads}, expected 1 or more")
    return threads


def _add_words(parser: argparse.ArgumentParser) -> None:
    """Add the options of `convert` for word embeddings."""
    group = parser.add_argument_group("word embeddings")
    group.add_argument(
        "--lossy",
        action="store_true",
        help="replace bytes of words that are not UTF-8; keep the first row of a word that is repeated",
    )
    group.add_argument(
        "--normalize", action=argparse.BooleanOptionalAction, help="make unit vectors and store norms, or undo that"
    )
    group.add_argument("--subwords", choices=("explicit",), help="list the n-grams of a vocabulary with buckets")
    group.add_argument("--n-subquantizers", type=int, metavar="N", help="for pq: codes per row (default: dims / 2)")
    group.add_argument("--n-bits", type=int, metavar="N", help="for pq: bits per code, 1 to 8 (default: 8)")
    group.add_argument("--projection", action="store_true", help="for pq: rotate the rows first")
    group.add_argument("--seed", type=int, metavar="N", help="for pq: seed of all random choices (default: 0)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help='print one JSON document ("schema": 1), also of an error')


def _add_lenient(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lenient", action="store_true", help="tolerate harmless defects, such as trailing bytes")


class _Offered(tuple[str, ...]):
    """Values that completions offer. The command refuses others itself: it knows more about them."""

    __slots__ = ()

    def __contains__(self, _: object) -> bool:
        return True


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
            self.error(f"there is no option {option}{_alike(option, self._option_string_actions)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices; for a command, suggest similar ones."""
        if action.choices is None or value in action.choices:
            return
        if action.metavar == "COMMAND":
            self.error(f"there is no command {value!r}{_alike(value, action.choices)}")
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


def _alike(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about a misspelt word: similar known ones."""
    found = alike(word, known)
    return f"; did you mean {' or '.join(found)}?" if found else ""


class _Version(argparse.Action):
    """Print the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: Any, **_unused_options: Any) -> None:
        """Print and leave, as ``--help`` does."""
        show.emit(f"weightmap {__version__}")
        parser.exit()
