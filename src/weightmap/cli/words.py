"""The commands that compare words: ``similar`` and ``analogy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import weightmap as wm
from weightmap.cli import show
from weightmap.cli.outcome import DIFFERENT, OK, UsageError, no_embeddings
from weightmap.errors import quoted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from weightmap.embeddings.embeddings import Embeddings


def similar(args: argparse.Namespace) -> int:
    """Print the words most similar to a word; 1 if it has no embedding."""
    return _search(args, "similar", {"word": args.word}, lambda e: e.most_similar(args.word, args.k))


def analogy(args: argparse.Namespace) -> int:
    """Print the words that are to C as B is to A; 1 if one of them has no embedding."""
    words = {"a": args.a, "b": args.b, "c": args.c}
    return _search(args, "analogy", words, lambda e: e.analogy(args.a, args.b, args.c, args.k))


def _search(
    args: argparse.Namespace,
    command: str,
    words: dict[str, str],
    search: Callable[[Embeddings], list[tuple[str, float]]],
) -> int:
    if args.k < 1:
        raise UsageError(f"-k is {args.k}, expected 1 or more")
    with wm.open(args.file) as file:
        embeddings = file.embeddings
        if embeddings is None:
            raise no_embeddings(args.file)
        missing = [word for word in dict.fromkeys(words.values()) if embeddings.get(word) is None]
        found = [] if missing else search(embeddings)
    if args.json:
        results = [{"word": word, "similarity": similarity} for word, similarity in found]
        show.emit_json({"command": command, "path": args.file, **words, "results": None if missing else results})
    else:
        for word, similarity in found:
            show.emit(f"{show.clean(word)} {similarity:.6f}")
    for word in missing:
        show.complain(f"no embedding for {show.clean(quoted(word))}")
    return DIFFERENT if missing else OK
