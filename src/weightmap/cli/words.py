"""The commands ``words``: ``lookup``, ``similar``, ``analogy`` for arguments or standard input, and ``convert``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import weightmap as wm
from weightmap.cli import quantising, show
from weightmap.cli.outcome import DIFFERENT, OK, UsageError, no_embeddings, reason
from weightmap.errors import counted, quoted
from weightmap.words.embeddings import no_vector

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from weightmap.words.embeddings import Embeddings

    _Search = Callable[[Embeddings, Any], list[tuple[str, float]]]


class _Query(NamedTuple):
    """A question: the JSON document's names for its words, and all words."""

    named: dict[str, Any]
    words: list[str]


def lookup(args: argparse.Namespace) -> int:
    """Print the embeddings of words; 1 if one of them has none."""
    missing = False
    found: dict[str, object] = {}
    with wm.open(args.file) as file:
        embeddings = _embeddings(file, args.file)
        for word in args.words or _lines():
            vector = embeddings.get(word)
            if args.json:
                found[word] = None if vector is None else vector.tolist()
            elif vector is not None:
                show.emit(" ".join([show.clean(word), *(format(value, ".6g") for value in vector.tolist())]))
            if vector is None:
                missing = True
                _complain(word, file, suggest=bool(args.words))
    if args.json:
        show.emit_json({"command": "words lookup", "path": args.file, "embeddings": found})
    return DIFFERENT if missing else OK


def similar(args: argparse.Namespace) -> int:
    """Print the words most similar to a word; 1 if it has no embedding."""

    def search(embeddings: Embeddings, query: dict[str, Any]) -> list[tuple[str, float]]:
        return embeddings.most_similar(query["word"], args.k, skip=args.skip or ())

    one = None if args.word is None else _Query({"word": args.word}, [args.word])
    return _answer(args, "similar", one, lambda line: _Query({"word": line}, [line]), search)


def analogy(args: argparse.Namespace) -> int:
    """Print the words that are to C as B is to A; 1 if one of them has no embedding."""
    three = [word for word in (args.a, args.b, args.c) if word is not None]
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
            found = [] if lacking else search(embeddings, query.named)
            if args.json:
                results = [{"word": word, "similarity": similarity} for word, similarity in found]
                documents.append({**query.named, "results": None if lacking else results})
            else:
                # Lines of several questions begin with their question.
                asked = "" if one is not None else f"{show.clean(' '.join(query.named.values()))} "
                for word, similarity in found:
                    show.emit(f"{asked}{show.clean(word)} {similarity:.6f}")
            missing |= bool(lacking)
            for word in lacking:
                _complain(word, file, suggest=one is not None)
    if args.json:
        answers = {"queries": documents} if one is None else documents[0]
        show.emit_json({"command": f"words {command}", "path": args.file, **answers})
    return DIFFERENT if missing else OK


def convert(args: argparse.Namespace) -> int:
    """Write words and their vectors in another format."""
    start, pq = time.perf_counter(), None
    names = ("n_subquantizers", "n_bits", "projection", "seed")
    with quantising.spelt(args), show.progress_bar(f"convert {Path(args.src).name}") as progress:
        if args.quantize is not None:
            options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
            pq = wm.words.Pq(**options, include=args.quantize_include)
        elif unused := quantising.as_options(args, *names, "quantize_include"):
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
    quantising.emit_conversion(args, "words convert", report, time.perf_counter() - start)
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
