"""fastText's models, ``.bin``.

Little-endian. ``i32 793712314 | i32 11 or 12 | 12 x i32 options | f64 sampling threshold | i32 entries | i32 words |
i32 labels | i64 tokens | i64 pruned``, then the entries: ``bytes, 0 | i64 count | i8 type``, then ``u8 quantised | i64
rows | i64 cols | f32 x rows x cols``: the rows of the words, and those of the buckets of n-grams. The output matrix
behind them, with the same fields, serves training: only its size is read, which tells whether the file is whole.

Entries of type 0 are words, those of type 1 behind them labels: words that begin with ``__label__``, which have no row.
Supervised models, whose rows serve labels, are refused.
"""

from __future__ import annotations

import struct

from weightmap.formats._base import Importer
from weightmap.lazy import later
from weightmap.words.importers._first_line import ADVICE

MAGIC = 793712314
VERSION = 12
# Of the versions before, 11 differs in supervised models alone.
VERSIONS = (11, 12)
HEAD = struct.Struct("<2i12id3i2q")
ENTRY = struct.Struct("<qb")
MATRIX = struct.Struct("<?qq")
# The options in their order, by finalfusion's names.
OPTIONS = (
    "dims",
    "window_size",
    "epoch",
    "min_count",
    "ns",
    "word_ngrams",
    "loss",
    "model",
    "buckets",
    "min_n",
    "max_n",
    "lr_update_rate",
    "sampling_threshold",
)
LOSSES = ("HierarchicalSoftmax", "NegativeSampling", "Softmax")
MODELS = ("CBOW", "SkipGram", "Supervised")


def claims(head: bytes, size: int) -> bool:
    """Whether this begins with the magic number."""
    return size >= 4 and head[:4] == MAGIC.to_bytes(4, "little")


IMPORTER = Importer(
    name="fasttext",
    hint=f"this is a model of fastText: {ADVICE}",
    claims=claims,
    read=later(f"{__name__}.reading", "read"),
    plan=later(f"{__name__}.writing", "plan"),
    carries=frozenset({"metadata", "subwords"}),
)
