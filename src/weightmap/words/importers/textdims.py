"""Text with a first line ``rows dims``: word2vec's text output, fastText's ``.vec``."""

from __future__ import annotations

from weightmap.core.formats._writing import Importer
from weightmap.core.hooks import later
from weightmap.words.importers._words import ADVICE, declared, in_text


def claims(head: bytes, size: int) -> bool:
    """Whether text follows a line of two numbers."""
    shape = declared(head)
    return shape is not None and in_text(head, size, *shape[1:])


IMPORTER = Importer(
    name="textdims",
    hint=f"this looks like word embeddings of word2vec or fastText, in text: {ADVICE}",
    claims=claims,
    read=later("weightmap.words.importers.text", "read_declared"),
    plan=later("weightmap.words.importers.text", "plan_declared"),
)
