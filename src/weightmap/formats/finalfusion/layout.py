"""The fields of finalfusion files, and what the parts of one are found to be."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from weightmap.dtypes import DTYPES, SCHEMES
from weightmap.formats.finalfusion import TYPES

if TYPE_CHECKING:
    from weightmap.dtypes import DType
    from weightmap.formats._writing import PQShape

VERSION = 0
HEADER = struct.Struct("<4sII")
CHUNK = struct.Struct("<IQ")

SIMPLE, MATRIX, BUCKET, QUANTIZED, METADATA, NORMS, FASTTEXT, EXPLICIT = range(1, 9)
TITLES = {
    METADATA: "metadata",
    SIMPLE: "simple vocabulary",
    BUCKET: "bucket vocabulary",
    FASTTEXT: "fastText vocabulary",
    EXPLICIT: "explicit vocabulary",
    MATRIX: "matrix",
    QUANTIZED: "quantised matrix",
    NORMS: "norms",
}
# Where each may stand: in this order, one of each number.
STAGES = {METADATA: 0, SIMPLE: 1, BUCKET: 1, FASTTEXT: 1, EXPLICIT: 1, MATRIX: 2, QUANTIZED: 2, NORMS: 3}
STAGE_TITLES = ("metadata", "vocabulary", "storage", "norms")
KNOWN = ", ".join(f"{id_} {title}" for id_, title in sorted(TITLES.items()))

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
MATRIX_FIELDS = struct.Struct("<QII")  # rows, cols, type
QUANTIZED_FIELDS = struct.Struct("<5IQ2I")
NORMS_FIELDS = struct.Struct("<QI")
QUANTIZED_NAMES = (
    "projection",
    "norms",
    "quantized_len",
    "reconstructed_len",
    "n_centroids",
    "rows",
    "quantized_type",
    "reconstructed_type",
)
# Where each of them stands in its chunk.
QUANTIZED_AT = dict(zip(QUANTIZED_NAMES, (0, 4, 8, 12, 16, 20, 28, 32), strict=True))
# A vocabulary's fields before its words: after n (upstream), or all of them (specification).
UPSTREAM_FIELDS = {
    SIMPLE: struct.Struct("<Q"),
    BUCKET: struct.Struct("<QIII"),
    FASTTEXT: struct.Struct("<QIII"),
    EXPLICIT: struct.Struct("<QQII"),
}
SPEC_FIELDS = {BUCKET: struct.Struct("<IIIQ"), FASTTEXT: struct.Struct("<IIIQ"), EXPLICIT: struct.Struct("<IIQ")}
KINDS = {SIMPLE: "simple", BUCKET: "bucket", FASTTEXT: "fasttext", EXPLICIT: "explicit"}

TYPE_NAMES = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "i128", "u128", "f32", "f64"]
KNOWN_TYPES = ", ".join(f"{code} {name}" for code, name in enumerate(TYPE_NAMES) if TYPES[code])
U8_CODE, F32_CODE = 1, 10
# After them, for our own table of tensors: product quantisation.
PQ_CODE = len(TYPES)
DTYPE_LIST: tuple[DType | None, ...] = (*(None if name is None else DTYPES[name] for name in TYPES), SCHEMES["pq"])
BITS = tuple(0 if dtype is None else dtype.bits for dtype in DTYPE_LIST)
MAX_CENTROIDS = 256  # codes are bytes
MAX_EXPONENT = 63

# Bytes of the index behind an n-gram.
INDEX = 8

INT64_MAX = (1 << 63) - 1
U32_MAX = (1 << 32) - 1
# A vocabulary is held by positions of 32 bits.
MAX_STRINGS = U32_MAX - 12


class VocabChunk(NamedTuple):
    """A vocabulary, as far as its fields tell.

    Attributes
    ----------
    id : int
    offset : int
        Of the chunk's payload.
    declared : int
        Where the chunk ends by its length.
    end : int
        Where it ends: as its words and n-grams were walked, or as declared where that could be believed.
    spec : bool
        In the order of the specification.
    n_words : int
    n_ngrams : int or None
        Of an explicit vocabulary; None when their number stands behind the words.
    min_n, max_n : int
        0 in simple vocabularies.
    size : int
        Rows of subwords: 2**exponent, or the number of buckets. 0 where the fields do not tell.
    words : int
        Where the first word's length stands.
    """

    id: int
    offset: int
    declared: int
    end: int
    spec: bool
    n_words: int
    n_ngrams: int | None
    min_n: int
    max_n: int
    size: int
    words: int


class Block(NamedTuple):
    """A storage or the norms.

    Attributes
    ----------
    code : int
        Of its type; `PQ_CODE` for a quantised matrix.
    shape : tuple of int
    chunk : int
        Where the chunk begins.
    padding, data, end : int
        Where the zero bytes before the data, the data and what follows begin.
    product : PQShape or None
    declared : int
        Where the chunk ends by its length.
    """

    code: int
    shape: tuple[int, ...]
    chunk: int
    padding: int
    data: int
    end: int
    product: PQShape | None
    declared: int


class Chunks(NamedTuple):
    """What a file is made of.

    Attributes
    ----------
    listed : tuple of int or None
        Chunk ids by the header; None for a list too long to be one.
    found : tuple of int
        Ids of the chunks that are there, in order.
    metadata : tuple of int or None
        Offset and size of the TOML text.
    vocab : VocabChunk or None
    storage, norms : Block or None
    """

    listed: tuple[int, ...] | None
    found: tuple[int, ...]
    metadata: tuple[int, int] | None
    vocab: VocabChunk | None
    storage: Block | None
    norms: Block | None
