"""The chunks of finalfusion: their fields, their descriptions, and the walk to the end of a vocabulary."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from weightmap import kernels
from weightmap.dtypes import DTYPES, SCHEMES
from weightmap.errors import FormatError, cut_off, too_many
from weightmap.formats.finalfusion import TYPES
from weightmap.lazy import Named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.dtypes import DType
    from weightmap.io.source import Source
    from weightmap.options import Limits
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


class VocabChunk(Named):
    """A vocabulary chunk, described by its fields. Offsets count from the start of the file."""

    __slots__ = ()

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


class Block(Named):
    """A storage or norms chunk. Offsets count from the start of the file."""

    __slots__ = ()

    code: int  # of its type; `PQ_CODE` for a quantised matrix
    shape: tuple[int, ...]
    chunk: int  # offset of the chunk
    padding: int  # offset of the zero bytes before the data
    data: int  # offset of the data
    end: int  # of the data
    product: PQShape | None
    declared: int  # the chunk's end by its length


class Chunks(Named):
    """The chunks of a file."""

    __slots__ = ()

    listed: tuple[int, ...] | None  # ids in the header; None for a list that is too long to be one
    found: tuple[int, ...]  # ids of the chunks in the file, in order
    metadata: tuple[int, int] | None  # offset and size of the TOML text
    vocab: VocabChunk | None
    storage: Block | None
    norms: Block | None


# One read of the walk.
_PIECE = 1 << 20
_OR_MORE = "size of the vocabulary (or more)"


def read_fields(id_: int, length: int, offset: int, raw: bytes, size: int) -> VocabChunk:
    """Read the fields of a vocabulary from `raw`, its payload at `offset` of a file of `size` bytes."""
    # Bytes 4 to 7 are 0 in upstream's order (the upper half of a u64), and max_n, never 0, in the specification's.
    spec = id_ != SIMPLE and raw[4:8] != bytes(4)[: len(raw[4:8])]
    fields = (SPEC_FIELDS if spec else UPSTREAM_FIELDS)[id_]
    if len(raw) < fields.size:
        raise cut_off(f"the fields of the {TITLES[id_]}", size, offset + fields.size, field="vocabulary")
    values = fields.unpack_from(raw)
    ngrams: int | None = None
    last = 0
    min_n = max_n = 0
    if id_ == SIMPLE:
        (words,) = values
    elif id_ == EXPLICIT and spec:
        min_n, max_n, words = values
    elif id_ == EXPLICIT:
        words, ngrams, min_n, max_n = values
    elif spec:
        min_n, max_n, last, words = values
    else:
        words, min_n, max_n, last = values
    start = offset + fields.size
    at_n = start - 8 if spec else offset
    check_count(words, 4, size - start, "words", at_n)
    if ngrams is not None:
        check_count(ngrams, 12, size - start, "n-grams", offset + 8)
    if id_ != SIMPLE:
        at = offset if spec else start - (8 if id_ == EXPLICIT else 12)
        _check_lengths(min_n, max_n, at)
        last = _check_last(id_, last, at + 8)
    return VocabChunk._make((id_, offset, offset + length, 0, spec, words, ngrams, min_n, max_n, last, start))


def check_count(count: int, least: int, left: int, what: str, at: int) -> None:
    """Bound a number of words or n-grams by the `left` bytes that follow it; each takes at least `least`."""
    if count > left // least:
        field = "vocab_len" if what == "words" else "n_ngrams"
        raise too_many(f"number of {what}", count, left // least, field=field, offset=at)


def _check_lengths(min_n: int, max_n: int, at: int) -> None:
    if min_n < 1:
        raise FormatError("min_n", field="min_n", offset=at, actual=min_n, expected="1 or more")
    if max_n < min_n:
        expected = f"{min_n} or more, which is min_n"
        raise FormatError("max_n", field="max_n", offset=at + 4, actual=max_n, expected=expected)


def _check_last(id_: int, last: int, at: int) -> int:
    """Check the exponent or the number of buckets; return the rows that it means."""
    if id_ == BUCKET:
        if not 1 <= last <= MAX_EXPONENT:
            expected = f"1 to {MAX_EXPONENT}"
            raise FormatError("exponent of buckets", field="bucket_exp", offset=at, actual=last, expected=expected)
        return 1 << last
    if id_ == FASTTEXT and last == 0:
        raise FormatError("number of buckets", field="buckets", offset=at, actual=0, expected="1 or more")
    return last


def check_size(vocab: VocabChunk, end: int, limits: Limits, what: str = "size of the vocabulary") -> None:
    """Check the bytes of words and n-grams up to `end` against the limits."""
    at = vocab.offset - U64.size  # the field of the chunk's length
    limits.check("max_header_bytes", end - vocab.words, what, offset=at)


def scan_end(source: Source, vocab: VocabChunk, limits: Limits) -> int:
    """Walk the words and n-grams in flat memory, no further than the limits allow; return where they end."""
    position = vocab.words
    for end in _skip(source, position, vocab.n_words, 0, "word"):
        check_size(vocab, end, limits, _OR_MORE)
        position = end
    if vocab.id != EXPLICIT:
        return position
    count, position = ngram_count(source, vocab, position)
    for end in _skip(source, position, count, 0 if vocab.spec else INDEX, "n-gram"):
        check_size(vocab, end, limits, _OR_MORE)
        position = end
    return position


def ngram_count(source: Source, vocab: VocabChunk, position: int) -> tuple[int, int]:
    """Return the number of n-grams and the offset of the first one; `position` is the end of the words."""
    if vocab.n_ngrams is not None:
        return vocab.n_ngrams, position
    if source.size - position < U64.size:
        raise cut_off("the number of n-grams", source.size, position + U64.size, field="n_ngrams")
    (count,) = U64.unpack(source.pread(position, U64.size))
    check_count(count, 4, source.size - position - U64.size, "n-grams", position)
    return count, position + U64.size


def _skip(source: Source, position: int, count: int, tail: int, what: str) -> Iterator[int]:
    """Walk `count` strings from `position` on; yield the position after each piece, at last the end of the strings."""
    left = count
    while left:
        piece = source.pread(position, min(_PIECE, source.size - position))
        size, walked = kernels.skip_strings(piece, left, tail)
        left -= walked
        position += size
        if not walked:  # the string is longer than a piece, or than the file
            end = position + 4 + int.from_bytes(piece[:4], "little") + tail
            if len(piece) < 4 or end > source.size:
                raise cut_off(f"{what} {count - left} of {count}", source.size, end, field="vocabulary")
            left -= 1
            position = end
        yield position
