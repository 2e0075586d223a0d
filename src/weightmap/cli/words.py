"""The commands ``words``: ``lookup``, ``similar`` and ``analogy`` of arguments or standard input, and ``convert``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import weightmap as wm
from weightmap._messages import counted, quoted
from weightmap.cli import show
from weightmap.cli.arguments import Offered, add_json, add_lenient, text
from weightmap.cli.converting import add_lossy, as_options, emit_conversion, spelt
from weightmap.cli.outcome import DIFFERENT, OK, UsageError, no_embeddings, reason
from weightmap.core.formats import FORMATS
from weightmap.words.embeddings import no_vector
from weightmap.words.importers import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightmap.typing import Embeddings

    _Search = Callable[[Embeddings, Any], list[tuple[str, float]]]


class _Query(NamedTuple):
    """A question: its words by their names in the JSON document, and all words."""

    named: dict[str, Any]
    words: list[str]


def add_words_lookup(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``words lookup``."""
    sub.add_argument("file", metavar="FILE", help="a file with a vocabulary and a matrix of embeddings")
    # Without a default, argparse lists an optional argument as required.
    sub.add_argument("words", metavar="WORD", type=text, nargs="*", default=[], help="the words to look up")
    add_json(sub)


def words_lookup(args: argparse.Namespace) -> int:
    """Print the embeddings of words; 1 if one of them has none."""
    missing = False
    vectors: dict[str, object] = {}
    with wm.open(args.file) as file:
        embeddings = _embeddings(file, args.file)
        for word in args.words or _lines():
            vector = embeddings.get(word)
            if args.json:
                vectors[word] = None if vector is None else vector.tolist()
            elif vector is not None:
                show.emit(" ".join([show.clean(word), *(format(value, ".6g") for value in vector.tolist())]))
            if vector is None:
                missing = True
                _complain(word, file, suggest=bool(args.words))
    if args.json:
        show.emit_json({"command": "words lookup", "path": args.file, "embeddings": vectors})
    return DIFFERENT if missing else OK


def add_words_similar(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``words similar``."""
    sub.add_argument("file", metavar="FILE", help="a file with a vocabulary and a matrix of embeddings")
    sub.add_argument("word", metavar="WORD", type=text, nargs="?", help="a word, which the result leaves out")
    _add_search(sub)


def words_similar(args: argparse.Namespace) -> int:
    """Print the words most similar to a word; 1 if it has no embedding."""

    def search(embeddings: Embeddings, query: dict[str, Any]) -> list[tuple[str, float]]:
        return embeddings.most_similar(query["word"], args.k, skip=args.skip or ())

    one = None if args.word is None else _Query({"word": args.word}, [args.word])
    return _answer(args, "similar", one, lambda line: _Query({"word": line}, [line]), search)


def add_words_analogy(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``words analogy``."""
    sub.add_argument("file", metavar="FILE", help="a file with a vocabulary and a matrix of embeddings")
    for name, about in (("a", "for example Paris"), ("b", "then France"), ("c", "then Berlin, of Germany")):
        sub.add_argument(f"word_{name}", metavar=name.upper(), type=text, nargs="?", help=about)
    for name, what in (("positive", "add"), ("negative", "subtract")):
        about = f"{what} the vector of a word (repeatable)"
        sub.add_argument(f"--{name}", metavar="WORD", type=text, action="append", help=about)
    _add_search(sub)


def words_analogy(args: argparse.Namespace) -> int:
    """Print the words that are to C as B is to A; 1 if one of them has no embedding."""
    three = [word for word in (args.word_a, args.word_b, args.word_c) if word is not None]
    more = {"positive": args.positive or [], "negative": args.negative or []}

    def search(embeddings: Embeddings, query: dict[str, Any]) -> list[tuple[str, float]]:
        return embeddings.analogy(k=args.k, skip=args.skip or (), **{**more, **query})

    def of_three(words: list[str], what: str) -> _Query:
        if len(words) != 3:
            raise UsageError(f"{what} has {counted(len(words), 'word')}, expected three: A B C")
        return _Query(dict(zip("abc", words, strict=True)), [*words, *more["positive"], *more["negative"]])

    one = None
    if three:
        one = of_three(three, "the analogy")
    elif more["positive"] or more["negative"]:
        one = _Query(more, more["positive"] + more["negative"])
    return _answer(args, "analogy", one, lambda line: of_three(line.split(), f"the line {quoted(line)}"), search)


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-k", type=int, default=10, metavar="N", help="print at most this many words (default: 10)")
    parser.add_argument("--skip", metavar="WORD", type=text, action="append", help="leave a word out (repeatable)")
    add_json(parser)


def _answer(
    args: argparse.Namespace,
    command: str,
    one: _Query | None,
    query_of: Callable[[str], _Query],
    search: _Search,
) -> int:
    """Answer the question of the arguments, or one for each line of standard input."""
    if args.k < 1:
        raise UsageError(f"-k is {args.k}, expected 1 or more")
    missing = False
    documents = []
    with wm.open(args.file) as file:
        embeddings = _embeddings(file, args.file)
        for query in map(query_of, _lines()) if one is None else [one]:
            lacking = [word for word in dict.fromkeys(query.words) if embeddings.get(word) is None]
            similar = [] if lacking else search(embeddings, query.named)
            if args.json:
                results = [{"word": word, "similarity": similarity} for word, similarity in similar]
                documents.append({**query.named, "results": None if lacking else results})
            else:
                # With several questions, each line begins with its question.
                question = "" if one is not None else f"{show.clean(' '.join(query.named.values()))} "
                for word, similarity in similar:
                    show.emit(f"{question}{show.clean(word)} {similarity:.6f}")
            missing |= bool(lacking)
            for word in lacking:
                _complain(word, file, suggest=one is not None)
    if args.json:
        answers = {"queries": documents} if one is None else documents[0]
        show.emit_json({"command": f"words {command}", "path": args.file, **answers})
    return DIFFERENT if missing else OK


def add_words_convert(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of ``words convert``."""
    sub.add_argument("src", metavar="SRC", help="word2vec, GloVe, fastText or gensim, or a model with a vocabulary")
    sub.add_argument("dst", metavar="DST", help="the file to write; its suffix decides the format")
    formats = [*NAMES, *(name for name, format in FORMATS.items() if format.plan)]
    about = f"the format to write, whatever the suffix of DST: {', '.join(formats)}"
    sub.add_argument("--format", metavar="FORMAT", choices=Offered(formats), help=about)
    add_lossy(sub)
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


def words_convert(args: argparse.Namespace) -> int:
    """Write words and their vectors in another format."""
    start, pq = time.perf_counter(), None
    names = ("n_subquantizers", "n_bits", "projection", "seed")
    with spelt(args), show.progress_bar(f"convert {Path(args.src).name}") as progress:
        if args.quantize is not None:
            options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
            pq = wm.words.Pq(**options, include=args.quantize_include)
        elif unused := as_options(args, *names, "quantize_include"):
            raise UsageError(f"{', '.join(unused)}: only with --quantize pq")
        report = wm.words.convert(
            *(args.src, args.dst),
            format=args.format,
            normalize=args.normalize,
            subwords=args.subwords,
            lossy=args.lossy,
            strict=not args.lenient,
            pq=pq,
            progress=progress,
        )
    emit_conversion(args, "words convert", report, time.perf_counter() - start)
    return OK


def _embeddings(file: wm.TensorFile, path: str) -> Embeddings:
    embeddings = file.embeddings
    if embeddings is None:
        raise no_embeddings(path)
    return embeddings


def _lines() -> Iterator[str]:
    """Yield the non-empty lines of standard input; output is flushed before each is read."""
    if sys.stdin is None:
        raise UsageError("no words were given, and standard input is closed")
    for line in getattr(sys.stdin, "buffer", sys.stdin):
        text = line.decode("utf-8", "surrogateescape") if isinstance(line, bytes) else line
        if word := text.rstrip("\r\n"):
            yield word
            show.flush()


def _complain(word: str, file: wm.TensorFile, *, suggest: bool) -> None:
    """Report a word without a vector, as the library's error does; `suggest` similar words for few words only."""
    vocab = file.vocab
    assert vocab is not None  # noqa: S101 - a file with embeddings has a vocabulary
    show.complain(reason(no_vector(word, vocab, suggest=suggest)))
