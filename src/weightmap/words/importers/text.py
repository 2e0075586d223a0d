"""Text: a line for each word, with its numbers (GloVe)."""

from __future__ import annotations

from weightmap.core.formats._base import Importer
from weightmap.core.lazy import later
from weightmap.words.importers._words import ADVICE, declared, is_row, whole_fields


def claims(head: bytes, size: int) -> bool:
    """Whether this begins with a word and numbers.

    A first line with one number, or with other fields among its numbers, must be followed by a second line like it: a
    file with a wrong number is still text.
    """
    if b"\0" in head or declared(head) is not None:
        return False
    first, _, tail = whole_fields(head, size).partition(b"\n")
    if is_row(first, 0) and len(first.split()) > 2:
        return True
    return is_row(first, 0.5) and is_row(tail.lstrip().partition(b"\n")[0], 0.5)


IMPORTER = Importer(
    name="text",
    hint=f"this looks like word embeddings in text, such as GloVe: {ADVICE}",
    claims=claims,
    read=later("weightmap.words.importers._lines", "read_plain"),
    plan=later("weightmap.words.importers._lines", "plan_plain"),
)
