"""The fields of finalfusion files, and the descriptions of their chunks."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from weightmap.dtypes import DTYPES, SCHEMES
from weightmap.formats.finalfusion import TYPES

if TYPE_CHECKING:
    from weightmap.dtypes import DType
    from weightmap.quant.ref import PQShape

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
# The order of the chunks: at most one of each stage.
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
# The byte of each field in the payload.
QUANTIZED_AT = dict(zip(QUANTIZED_NAMES, (0, 4, 8, 12, 16, 20, 28, 32), strict=True))
# A vocabulary's fields before its words, in either order.
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
# The code of product quantisation in our own table of tensors.
PQ_CODE = len(TYPES)
DTYPE_LIST: tuple[DType | None, ...] = (*(None if name is None else DTYPES[name] for name in TYPES), SCHEMES["pq"])
BITS = tuple(0 if dtype is None else dtype.bits for dtype in DTYPE_LIST)
MAX_CENTROIDS = 256  # codes are bytes
MAX_EXPONENT = 63

INDEX = 8  # bytes of the index behind an n-gram

INT64_MAX = (1 << 63) - 1
U32_MAX = (1 << 32) - 1
# Most bytes of words or of n-grams: string tables hold positions of 32 bits.
MAX_STRINGS = U32_MAX - 12


class VocabChunk(NamedTuple):
    """A vocabulary chunk, described by its fields. Offsets count from the start of the file."""

    id: int
    offset: int  # of the payload
    declared: int  # the chunk's end by its length
    end: int  # its real end: the declared one if trusted, else that of a walk over the strings
    spec: bool  # whether fields are in the order of the specification
    n_words: int
    n_ngrams: int | None  # of an explicit vocabulary; None if the number lies behind the words
    min_n: int  # 0 in a simple vocabulary, like max_n
    max_n: int
    size: int  # rows of subwords: 2**exponent, or the number of buckets; 0 for other kinds
    words: int  # offset of the first word's length


class Block(NamedTuple):
    """A storage or norms chunk. Offsets count from the start of the file."""

    code: int  # of its type; `PQ_CODE` for a quantised matrix
    shape: tuple[int, ...]
    chunk: int  # offset of the chunk
    padding: int  # offset of the zero bytes before the data
    data: int  # offset of the data
    end: int  # of the data
    product: PQShape | None
    declared: int  # the chunk's end by its length


class Chunks(NamedTuple):
    """The chunks of a file."""

    listed: tuple[int, ...] | None  # ids in the header; None for a list that is too long to be one
    found: tuple[int, ...]  # ids of the chunks in the file, in order
    metadata: tuple[int, int] | None  # offset and size of the TOML text
    vocab: VocabChunk | None
    storage: Block | None
    norms: Block | None
