"""The arguments of the commands that write models: ``convert``, ``quantize`` and ``words convert``.

They name every format and scheme, whose modules other commands do without.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from weightmap.cli.arguments import Offered, add_distribution, add_json, add_lenient, add_threads, add_weights, text
from weightmap.core.dtypes import FLOATING, SHORT
from weightmap.core.formats import FORMATS
from weightmap.core.quant.quantizing import SCHEMES
from weightmap.llama import NAMES as NAMINGS
from weightmap.llama.tensors import MIXTURES
from weightmap.words.importers import NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence


def add_convert(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``convert``."""
    source = "a tensor file, a model directory, or word2vec, GloVe, fastText or gensim"
    formats = [*(name for name, found in FORMATS.items() if found.plan), *NAMES]
    _add_conversion(sub, source, formats, "--quantize", schemes=(*SCHEMES, *MIXTURES, "pq"))
    _add_lossy(sub)


def add_quantize(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``quantize``."""
    able = {name: frozenset().union(*found.schemes.values()) for name, found in FORMATS.items() if found.plan}
    held = [name for name, schemes in able.items() if schemes & {*SCHEMES}]
    source = "a tensor file or a model directory"
    _add_conversion(sub, source, held, "--scheme", "--quantize", schemes=(*SCHEMES, *MIXTURES), required=True)


def _add_conversion(
    sub: argparse.ArgumentParser,
    source: str,
    formats: Sequence[str],
    *quantize: str,
    schemes: Sequence[str],
    required: bool = False,
) -> None:
    """Add the arguments common to all commands that write models; `quantize` spells the option for the scheme."""
    sub.add_argument("src", metavar="SRC", help=source)
    sub.add_argument(
        "dst",
        metavar="DST",
        help="the file to write; its suffix decides the format; or a directory (OUT/, or from a model directory a name "
        "without a suffix; of the format of SRC) or *.index.json, for shards; to a directory, configuration and "
        "tokenizer of a model directory go along, and replace no file",
    )
    about = f"the format to write, whatever the suffix of DST: {', '.join(formats)}"
    sub.add_argument("--format", metavar="FORMAT", choices=Offered(formats), help=about)
    layouts = {name: found.layouts for name in formats if (found := FORMATS.get(name)) and len(found.layouts) > 1}
    sub.add_argument(
        "--layout",
        metavar="LAYOUT",
        choices=Offered(layout for several in layouts.values() for layout in several),
        help="a layout of that format other than its first one: "
        + "; ".join(f"{' or '.join(several)} of {name}" for name, several in layouts.items())
        if layouts
        else "a layout of that format other than its first one",
    )
    add_weights(sub, "decode")
    about = (
        "of a model directory in GGUF: auto (the default) gives llama.cpp's names where they are known, llama.cpp "
        "fails where they are not, keep gives none"
    )
    sub.add_argument("--names", metavar="NAMES", choices=Offered(NAMINGS), help=about)
    about = f"store floating-point tensors as this type: {', '.join(FLOATING)}"
    sub.add_argument("--dtype", metavar="DTYPE", choices=Offered((*FLOATING, *SHORT)), help=about)
    sub.add_argument(
        "--align", type=int, metavar="BYTES", help="align tensors to multiples of a power of two, for example 64"
    )
    sub.add_argument("--max-shard-size", metavar="SIZE", help="most bytes of tensors per file, for example 5GB")
    sub.add_argument(
        *quantize,
        dest="quantize",
        required=required,
        metavar="SCHEME",
        choices=Offered(schemes),
        help=f"quantise the weights by one of {', '.join(schemes)}",
    )
    for option, what in (
        ("--include GLOB", "convert only tensors with such a name"),
        ("--exclude GLOB", "leave out tensors with such a name"),
        ("--rename OLD=NEW", "give a tensor another name"),
        ("--quantize-include GLOB", "quantise only tensors with such a name"),
        ("--quantize-exclude GLOB", "do not quantise tensors with such a name"),
    ):
        name, metavar = option.split()
        sub.add_argument(name, metavar=metavar, type=text, action="append", help=f"{what} (repeatable)")
    sub.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        help="elements with one scale, for int4_block, int5_block and adaptive (default: 32)",
    )
    sub.add_argument("--bits", type=float, metavar="B", help="for adaptive: bits per weight, 4.5 to 16 (default: 5)")
    sub.add_argument("--scale-type", metavar="DTYPE", help="the type of scales, fp16 or fp32 (default: fp16)")
    add_threads(sub)
    sub.add_argument("--no-overwrite", dest="overwrite", action="store_false", help="refuse a DST that exists")
    sub.add_argument(
        "--verify", action="store_true", help="verify SRC first; otherwise checksums of tensors are ignored"
    )
    add_lenient(sub)
    add_distribution(sub)
    add_json(sub)


def add_words(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``words convert``."""
    sub.add_argument("src", metavar="SRC", help="word2vec, GloVe, fastText or gensim, or a model with a vocabulary")
    sub.add_argument("dst", metavar="DST", help="the file to write; its suffix decides the format")
    formats = [*NAMES, *(name for name, found in FORMATS.items() if found.plan)]
    about = f"the format to write, whatever the suffix of DST: {', '.join(formats)}"
    sub.add_argument("--format", metavar="FORMAT", choices=Offered(formats), help=about)
    _add_lossy(sub)
    sub.add_argument(
        "--normalize", action=argparse.BooleanOptionalAction, help="make unit vectors and store norms, or undo that"
    )
    sub.add_argument("--subwords", choices=("explicit",), help="list the n-grams of a vocabulary with buckets")
    sub.add_argument(
        "--quantize",
        metavar="SCHEME",
        choices=("pq",),
        help="store the rows by product quantisation: pq, in finalfusion",
    )
    for option, metavar, kind, what in (
        ("--quantize-include", "GLOB", text, "the matrix of a model with several that fit (repeatable)"),
        ("--n-subquantizers", "N", int, "codes per row (default: dims / 2)"),
        ("--n-bits", "N", int, "bits per code, 1 to 8 (default: 8)"),
        ("--seed", "N", int, "seed of all random choices (default: 0)"),
    ):
        action = "append" if kind is text else "store"
        sub.add_argument(option, metavar=metavar, type=kind, action=action, help=f"for pq: {what}")
    sub.add_argument("--projection", action="store_true", help="for pq: rotate the rows first")
    add_lenient(sub)
    add_json(sub)


def _add_lossy(sub: argparse.ArgumentParser) -> None:
    about = "replace bytes of words that are not UTF-8; keep the first row of a word that is repeated"
    sub.add_argument("--lossy", action="store_true", help=about)
