"""Text: a line for each word, with its numbers (GloVe)."""

from __future__ import annotations

from weightmap.formats._base import Importer
from weightmap.lazy import later
from weightmap.words.importers._first_line import ADVICE, declared, is_row, whole_fields


def claims(head: bytes, size: int) -> bool:
    """Say whether this begins with a word and numbers.

    A first line of one number, or with fields that are none among its numbers, takes a second line like it: a wrong
    number does not make a file something else.
    """
    if b"\0" in head or declared(head) is not None:
        return False
    first, _, rest = whole_fields(head, size).partition(b"\n")
    if is_row(first, 0) and len(first.split()) > 2:
        return True
    return is_row(first, 0.5) and is_row(rest.lstrip().partition(b"\n")[0], 0.5)


IMPORTER = Importer(
    name="text",
    hint=f"this looks like word embeddings in text, such as GloVe: {ADVICE}",
    claims=claims,
    read=later("weightmap.words.importers._lines", "read_plain"),
    plan=later("weightmap.words.importers._lines", "plan_plain"),
)
