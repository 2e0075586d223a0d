"""The chunks of finalfusion: their fields, the end of a vocabulary, and the places of matrices and norms."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from weightmap import native
from weightmap.dtypes import DTYPES, SCHEMES
from weightmap.errors import FormatError, LayoutError, TruncatedError, UnsupportedError, cut_off, too_many
from weightmap.lazy import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from struct import Struct
    from typing import Any

    from weightmap.dtypes import DType
    from weightmap.io.source import Source
    from weightmap.options import Limits
    from weightmap.quant import PQShape

MAGIC = b"FiFu"
VERSION = 0
# By the format's codes; numpy has no integers of 128 bits.
TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", None, None, "float32", "float64")
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


class VocabChunk(Record):
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


class Block(Record):
    """A storage or norms chunk. Offsets count from the start of the file."""

    code: int  # of its type; `PQ_CODE` for a quantised matrix
    shape: tuple[int, ...]
    chunk: int  # offset of the chunk
    padding: int  # offset of the zero bytes before the data
    data: int  # offset of the data
    end: int  # of the data
    product: PQShape | None
    declared: int  # the chunk's end by its length


class Chunks(Record):
    """The chunks of a file."""

    listed: tuple[int, ...] | None  # ids in the header; None for a list that is too long to be one
    found: tuple[int, ...]  # ids of the chunks in the file, in order
    metadata: tuple[int, int] | None  # offset and size of the TOML text
    vocab: VocabChunk | None
    storage: Block | None
    norms: Block | None


# Bytes per read of the walk
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
    end = offset + length  # if the length is right
    return VocabChunk(id_, offset, end, end, spec, words, ngrams, min_n, max_n, last, start)


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
    """Check the exponent or the number of buckets; return the resulting rows."""
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
        size, walked = native.skip_strings(piece, left, tail)
        left -= walked
        position += size
        if not walked:  # the string is longer than a piece, or than the file
            end = position + 4 + int.from_bytes(piece[:4], "little") + tail
            if len(piece) < 4 or end > source.size:
                raise cut_off(f"{what} {count - left} of {count}", source.size, end, field="vocabulary")
            left -= 1
            position = end
        yield position


# Most bytes of padding before the data; wider types may have up to their width.
_PADDING_MOST = 4


class Placing:
    """Finds the data of a chunk."""

    __slots__ = ("length", "position", "size", "starts_norms", "warnings")

    def __init__(
        self, position: int, length: int, size: int, warnings: list[str], starts_norms: Callable[[int], bool]
    ) -> None:
        self.position: int = position  # offset of the chunk
        self.length: int = length  # that its header declares
        self.size: int = size  # of the file
        self.warnings: list[str] = warnings
        self.starts_norms: Callable[[int], bool] = starts_norms  # whether a chunk of norms begins at an offset

    @property
    def payload(self) -> int:
        """Offset of the fields."""
        return self.position + CHUNK.size

    def lands(self, end: int, *, last: bool = False) -> bool:
        """Whether the file ends at `end` or, unless this must be the `last` chunk, norms begin there."""
        return end == self.size or (not last and end < self.size and self.starts_norms(end))

    def unpack(self, fields: Struct, raw: bytes, what: str) -> tuple[Any, ...]:
        """Return the fields. Raises `TruncatedError` if the file ends within them."""
        if len(raw) < fields.size:
            raise cut_off(f"the fields of the {what}", self.size, self.payload + fields.size, field=what)
        return fields.unpack_from(raw)

    def place(self, what: str, fields: int, nbytes: int, width: int, *, last: bool = False) -> tuple[int, int]:
        """Return the offset of the data and the end of the chunk.

        The chunk's length tells its padding. If it leads neither to the end of the file nor to norms, but the padding
        that writers use does, that padding is taken, with a warning.

        Parameters
        ----------
        what : str
        fields : int
            Bytes of the fields before the padding.
        nbytes, width : int
            Bytes of the data, and of its widest element.
        last : bool
            Whether only the end of the file may follow.
        """
        start, declared = self.payload + fields, self.payload + self.length
        padding, most = declared - start - nbytes, max(_PADDING_MOST, width)
        sound = 0 <= padding <= most
        if sound and self.lands(declared, last=last):
            return start + padding, declared
        data = start + width - start % width
        cut = sound and declared > self.size  # by a few bytes, which the padding that writers put there may make up for
        if not cut and self.lands(data + nbytes, last=last) and data + nbytes != declared:
            taken = f"its contents take {data + nbytes - self.payload} bytes (at byte {self.position + 4})"
            self.warnings.append(f"the length of the {what} chunk is {self.length}, and {taken}")
            return data, data + nbytes
        if cut or start + nbytes > self.size:
            raise cut_off(f"the data of the {what}", self.size, declared if cut else start + nbytes, field=what)
        if not sound:
            cls = TruncatedError if declared > self.size else LayoutError
            wanted = start + nbytes - self.payload
            expected = f"{wanted} to {wanted + most}: fields, padding and data"
            msg = f"length of the {what} chunk"
            raise cls(msg, field="chunk_len", offset=self.position + 4, actual=self.length, expected=expected)
        return start + padding, declared


def _check_size(nbytes: int, what: str, offset: int) -> None:
    if nbytes > INT64_MAX:
        msg = f"the product of the shape of the {what} exceeds 2**63 - 1 bytes"
        raise LayoutError(msg, field="shape", offset=offset)


def read_matrix(placing: Placing, raw: bytes) -> Block:
    """Read the fields of a plain matrix."""
    rows, cols, code = placing.unpack(MATRIX_FIELDS, raw, "matrix")
    at = placing.payload + 12
    if code >= len(TYPES) or TYPES[code] is None:
        what = f"type of the matrix ({TYPE_NAMES[code]})" if code < len(TYPES) else "type of the matrix"
        raise UnsupportedError(what, field="type", offset=at, actual=code, expected=f"one of {KNOWN_TYPES}")
    width = BITS[code] // 8
    nbytes = rows * cols * width
    # numpy multiplies the other dimensions of an empty matrix too.
    _check_size(max(rows, 1) * max(cols, 1) * width, "matrix", placing.payload)
    data, end = placing.place("matrix", MATRIX_FIELDS.size, nbytes, width)
    padding, declared = placing.payload + MATRIX_FIELDS.size, placing.payload + placing.length
    return Block(code, (rows, cols), placing.position, padding, data, end, None, declared)


def read_product(placing: Placing, raw: bytes) -> Block:
    """Read the fields of a product-quantised matrix."""
    from weightmap.quant import PQShape  # noqa: PLC0415 - only quantised matrices need it

    values = placing.unpack(QUANTIZED_FIELDS, raw, "quantised matrix")
    fields = dict(zip(QUANTIZED_NAMES, values, strict=True))
    _check_product(placing, fields)
    rows, width, parts = fields["rows"], fields["reconstructed_len"], fields["quantized_len"]
    product = PQShape(parts, fields["n_centroids"], bool(fields["projection"]), bool(fields["norms"]))
    nbytes = sum(product_sizes((rows, width), product))
    _check_size(nbytes, "quantised matrix", placing.payload)
    _check_size(max(rows, 1) * width * 4, "quantised matrix", placing.payload)
    data, end = placing.place("quantised matrix", QUANTIZED_FIELDS.size, nbytes, 4)
    padding, declared = placing.payload + QUANTIZED_FIELDS.size, placing.payload + placing.length
    return Block(PQ_CODE, (rows, width), placing.position, padding, data, end, product, declared)


def product_sizes(shape: tuple[int, ...], product: PQShape) -> tuple[int, int, int, int]:
    """Return the bytes of projection, codebooks, norms and codes, in file order."""
    rows, width = shape
    return (
        4 * width * width if product.projection else 0,
        4 * product.n_centroids * width,
        4 * rows if product.norms else 0,
        rows * product.quantized_len,
    )


def _check_product(placing: Placing, fields: dict[str, int]) -> None:
    def fail(name: str, expected: str, cls: type[FormatError] = FormatError) -> None:
        at = placing.payload + QUANTIZED_AT[name]
        what = f"{name} of the quantised matrix"
        raise cls(what, field=name, offset=at, actual=fields[name], expected=expected)

    for name in ("projection", "norms"):
        if fields[name] > 1:
            fail(name, "0 or 1")
    for name, code in (("quantized_type", U8_CODE), ("reconstructed_type", F32_CODE)):
        if fields[name] != code:
            fail(name, f"{code} ({TYPE_NAMES[code]})", UnsupportedError)
    parts, width = fields["quantized_len"], fields["reconstructed_len"]
    if not 0 < parts <= width or width % parts:
        fail("quantized_len", f"a divisor of reconstructed_len, {width}")
    if not 0 < fields["n_centroids"] <= MAX_CENTROIDS:
        fail("n_centroids", f"1 to {MAX_CENTROIDS}: codes are bytes")


def read_norms(placing: Placing, raw: bytes, words: int | None) -> Block:
    """Read the fields of the norms; `words` is the number of words, None without a vocabulary."""
    count, code = placing.unpack(NORMS_FIELDS, raw, "norms")
    if code != F32_CODE:
        what, expected = "type of the norms", f"{F32_CODE} ({TYPE_NAMES[F32_CODE]})"
        raise UnsupportedError(what, field="type", offset=placing.payload + 8, actual=code, expected=expected)
    if words is not None and count != words:
        expected = f"{words}, the number of words"
        raise LayoutError("number of norms", field="n_norms", offset=placing.payload, actual=count, expected=expected)
    nbytes = 4 * count
    _check_size(nbytes, "norms", placing.payload)
    data, end = placing.place("norms", NORMS_FIELDS.size, nbytes, 4, last=True)
    padding, declared = placing.payload + NORMS_FIELDS.size, placing.payload + placing.length
    return Block(F32_CODE, (count,), placing.position, padding, data, end, None, declared)
