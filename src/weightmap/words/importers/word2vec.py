"""word2vec's binary files.

A line ``rows dims`` in ASCII, then for each word its bytes, a space, and `dims` little-endian float32. Some programs
write a line feed behind each vector, some do not: one in front of a word is not part of it.
"""

from __future__ import annotations

from weightmap.core.formats._base import Importer
from weightmap.core.lazy import later
from weightmap.words.importers._words import ADVICE, declared, in_text


def claims(head: bytes, size: int) -> bool:
    """Whether anything but text follows a line of two numbers."""
    shape = declared(head)
    return shape is not None and not in_text(head, size, *shape[1:])


IMPORTER = Importer(
    name="word2vec",
    hint=f"this looks like word embeddings of word2vec: {ADVICE}",
    claims=claims,
    read=later("weightmap.words.importers._word2vec", "read"),
    plan=later("weightmap.words.importers._word2vec", "plan"),
)
