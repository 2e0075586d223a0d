"""gensim's native files of word vectors, ``.kv``, as ``KeyedVectors.save`` writes them.

A pickle of protocol 3 or 4 with one object, whose attributes are "index_to_key", a list of the words, and "vectors", an
array with a row for each. An array of ten million elements or more lies beside the file, in ``FILE.vectors.npy``.
Nothing of the pickle is executed: see `weightmap.words.importers._pickled`.
"""

from __future__ import annotations

from weightmap.formats._base import Importer
from weightmap.lazy import later
from weightmap.words.importers._first_line import ADVICE


def claims(head: bytes, size: int) -> bool:
    """Whether this begins a pickle that soon names gensim."""
    return size > 2 and head[:1] == b"\x80" and head[1] in range(2, 6) and b"gensim.models" in head[:256]


IMPORTER = Importer(
    name="gensim",
    hint=f"this looks like word vectors of gensim: {ADVICE}",
    claims=claims,
    read=later("weightmap.words.importers._kv", "read"),
)
