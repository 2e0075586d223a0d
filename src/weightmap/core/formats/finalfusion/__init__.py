"""finalfusion ``.fifu``: word embeddings with a vocabulary, subwords, and a matrix that may be quantised.

Little-endian. ``"FiFu" | u32 version = 0 | u32 n_chunks | n_chunks x u32 chunk id``, then the chunks, each ``u32 id |
u64 length | payload``; the length counts the payload with its padding. In this order: optional metadata (5); a
vocabulary (1, 3, 7 or 8); a storage (2 or 4); optional norms (6).

Vocabularies; a word is ``u32 length, bytes`` in UTF-8, unique, and may be empty
---------------------------------------------------------------------------------
* 1 simple: ``u64 n | n words``; the matrix has n rows.
* 3 bucket: ``u64 n | u32 min_n | u32 max_n | u32 exponent | words``; n + 2**exponent rows.
* 7 fastText: ``u64 n | u32 min_n | u32 max_n | u32 buckets | words``; n + buckets rows.
* 8 explicit: ``u64 n | u64 n_ngrams | u32 min_n | u32 max_n | words | n_ngrams x {u32 length, bytes, u64 index}``; n
  rows and one for each distinct index. Several n-grams may share an index.

Every implementation writes the fields in this order ("upstream"). The specification has another ("spec"): ``u32 min_n
| u32 max_n | u32 exponent or buckets | u64 n | words``, and for explicit ones ``u32 min_n | u32 max_n | u64 n | words |
u64 n_ngrams | n_ngrams x {u32 length, bytes}``, where n-gram i has index i. The u32 4 bytes into the payload tells them
apart: 0 in the first (the upper half of n), max_n in the second. Both are read and written. n-grams have min_n >= 1 to
max_n characters; the exponent is 1 to 63; there is at least one bucket.

Storage
-------
* 2 matrix: ``u64 rows | u32 cols | u32 type | padding | data``, row-major. Types: 0 i8, 1 u8, 2 i16, 3 u16, 4 i32, 5
  u32, 6 i64, 7 u64, 8 i128, 9 u128 (unsupported: numpy has none), 10 f32, 11 f64. Implementations only write f32.
* 4 quantised, by product quantisation: ``u32 projection (0 or 1) | u32 norms (0 or 1) | u32 quantized_len | u32
  reconstructed_len | u32 n_centroids | u64 rows | u32 quantized_type = 1 | u32 reconstructed_type = 10 | padding``,
  then with R = reconstructed_len ``[projection f32 R x R] | codebooks f32 quantized_len x n_centroids x R /
  quantized_len | [norms f32 x rows] | codes u8 rows x quantized_len``. (The specification omits n_centroids and swaps
  the types.)
* 6 norms: ``u64 n | u32 type = 10 | padding | n x f32``, n being the number of words.
* 5 metadata: the text of a TOML document.

Padding is ``size - position % size`` zero bytes, where position is the offset behind the type, and size the bytes of an
element: 1 to 4 for f32, and never 0.

Ours
----
* The chunks are walked; `verify` warns if the header lists others.
* The length of a vocabulary is trusted if it leads to a whole storage chunk: a known type, rows that fit the
  vocabulary, and an end at the end of the file or at norms. Then opening reads nothing of the vocabulary. Otherwise it
  walks the strings, and `verify` warns of the wrong length: finalfusion-python writes the length of an explicit
  vocabulary 8 bytes short for every n-gram. If strings do not end at a trusted length, the first use of the vocabulary
  and `verify` raise `LayoutError`.
* The length of a storage or norms chunk determines its padding: 0 to 4 bytes, or up to the size of an element. If it
  leads neither to the end of the file nor to norms, but the padding by the rule above does, the rule counts, and
  `verify` warns. If the length leads a few bytes past the end of the file, the rule does not count: the file may be cut
  off.
* For repeated words or n-grams, the first look-up and `verify` raise `LayoutError`. Indices of n-grams must cover every
  row that the matrix has for n-grams, which their first use checks. One reader numbers n-grams by first appearance
  instead: `verify` warns of other indices, and `save` sorts the n-grams so that theirs agree.
* A file may have a single chunk of any kind, such as the parts of finalfusion-python write, if its header lists no
  other: a vocabulary without tensors, a storage or norms without words, metadata. (Norms may be alone whatever the
  header lists.) Such files are read; `save` writes whole ones.
* ``strict=False`` tolerates, with warnings, trailing bytes, chunks of unknown ids, missing chunks, padding that is not
  zero, and repeated strings.
* Metadata is parsed at the first use; writing it again unchanged keeps its text to the byte. Nesting deeper than 128
  and more than 65,536 keys are refused.

Writing
-------
``save(path, {"embeddings": matrix}, vocab=words)``, and optionally ``"norms"``, float32, one for each word. The matrix
is a two-dimensional array, or a `QuantizedTensor` of scheme "pq". A vocabulary with subwords has an attribute
``subwords``, like the `Vocabulary` of an opened file: a `weightmap.core.table.vocabulary.Subwords`, or any object with
its attributes ``kind`` ("bucket", "fasttext" or "explicit"), ``min_n``, ``max_n``, ``size`` (rows of subwords) and, if
explicit, ``ngrams``. `Vocabulary.of` makes such a vocabulary::

    vocab = Vocabulary.of(["one", "two"], subwords=Subwords("bucket", 2, 3, 6, 2**10))
    save("words.fifu", {"embeddings": matrix}, vocab=vocab)  # of 2 + 1024 rows
"""

from __future__ import annotations

import re
import struct
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

import weightmap.errors as errors
from weightmap.core.arguments import DEEPEST, Limits, Options
from weightmap.core.bytes import Range
from weightmap.core.dtypes import DTYPES, SCHEMES, DType
from weightmap.core.faults import cut_off, nonzero_padding, too_many
from weightmap.core.formats._base import TOML, Content, Format, take, trailing
from weightmap.core.hooks import later
from weightmap.core.native import scans
from weightmap.core.quant import PQShape
from weightmap.core.table import ANY_GAP, INT64_MAX, Rules, StringTable
from weightmap.core.table.columns import ColumnTable
from weightmap.core.table.vocabulary import Subwords, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification
    from weightmap.core.quant.blocks import QuantizedTensor
    from weightmap.core.table.table import Row

# The chunks of finalfusion: their fields, the end of a vocabulary, and the places of matrices and norms.

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
CHUNK_NAMES = ", ".join(f"{id_} {title}" for id_, title in sorted(TITLES.items()))

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
# The offset of each field in the payload.
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

U32_MAX = (1 << 32) - 1
# Most bytes of words or of n-grams: string tables hold positions of 32 bits.
MAX_STRINGS = U32_MAX - 12


class VocabChunk(NamedTuple):
    """A vocabulary chunk, described by its fields. Offsets count from the start of the file."""

    id: int
    offset: int  # of the payload
    declared: int  # the chunk's end by its length
    end: int  # its real end: as declared if trusted, else found by walking the strings
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

    listed: tuple[int, ...] | None  # ids in the header; None for an implausibly long list
    stored: tuple[int, ...]  # ids of the chunks in the file, in order
    metadata: Range | None  # the TOML text
    vocab: VocabChunk | None
    storage: Block | None
    norms: Block | None


# Bytes read at once by a walk
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


def check_count(count: int, item_nbytes: int, available: int, what: str, at: int) -> None:
    """Check a number of words or n-grams, each of at least `item_nbytes`, against the `available` bytes after it."""
    if count > available // item_nbytes:
        field = "vocab_len" if what == "words" else "n_ngrams"
        raise too_many(f"number of {what}", count, available // item_nbytes, field=field, offset=at)


def _check_lengths(min_n: int, max_n: int, at: int) -> None:
    if min_n < 1:
        raise errors.FormatError("min_n", field="min_n", offset=at, actual=min_n, expected="1 or more")
    if max_n < min_n:
        expected = f"{min_n} or more, which is min_n"
        raise errors.FormatError("max_n", field="max_n", offset=at + 4, actual=max_n, expected=expected)


def _check_last(id_: int, last: int, at: int) -> int:
    """Check the exponent or the number of buckets; return the resulting rows."""
    if id_ == BUCKET:
        if not 1 <= last <= MAX_EXPONENT:
            expected = f"1 to {MAX_EXPONENT}"
            raise errors.FormatError(
                "exponent of buckets", field="bucket_exp", offset=at, actual=last, expected=expected
            )
        return 1 << last
    if id_ == FASTTEXT and last == 0:
        raise errors.FormatError("number of buckets", field="buckets", offset=at, actual=0, expected="1 or more")
    return last


def check_size(vocab: VocabChunk, end: int, limits: Limits, what: str = "size of the vocabulary") -> None:
    """Check the bytes of words and n-grams up to `end` against the limits."""
    at = vocab.offset - U64.size  # the field of the chunk's length
    limits.check("max_header_bytes", end - vocab.words, what, offset=at)


def scan_end(source: Source, vocab: VocabChunk, limits: Limits) -> int:
    """Walk the words and n-grams in flat memory, within the limits; return where they end."""
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
    """Walk `count` strings from `position` on; yield the position after each piece, finally the end of the strings."""
    remaining = count
    while remaining:
        piece = source.pread(position, min(_PIECE, source.size - position))
        size, walked = scans.skip_strings(piece, remaining, tail)
        remaining -= walked
        position += size
        if not walked:  # the string is longer than a piece, or than the file
            end = position + 4 + int.from_bytes(piece[:4], "little") + tail
            if len(piece) < 4 or end > source.size:
                raise cut_off(f"{what} {count - remaining} of {count}", source.size, end, field="vocabulary")
            remaining -= 1
            position = end
        yield position


# Most bytes of padding before the data; wider types may have up to their width.
_MAX_PADDING = 4


class Placing(NamedTuple):
    """Finds the data of a chunk."""

    position: int  # offset of the chunk
    length: int  # as its header declares it
    size: int  # of the file
    warnings: list[str]
    starts_norms: Callable[[int], bool]  # whether a chunk of norms begins at an offset

    @property
    def payload(self) -> int:
        """Offset of the fields."""
        return self.position + CHUNK.size

    def lands(self, end: int, *, last: bool = False) -> bool:
        """Whether the file ends at `end` or, unless this must be the `last` chunk, norms begin there."""
        return end == self.size or (not last and end < self.size and self.starts_norms(end))

    def unpack(self, fields: struct.Struct, raw: bytes, what: str) -> tuple[Any, ...]:
        """Return the fields. Raises `TruncatedError` if the file ends within them."""
        if len(raw) < fields.size:
            raise cut_off(f"the fields of the {what}", self.size, self.payload + fields.size, field=what)
        return fields.unpack_from(raw)

    def block(
        self, what: str, code: int, shape: tuple[int, ...], nbytes: int, fields: int, product: PQShape | None = None
    ) -> Block:
        """Return the chunk with `nbytes` bytes of data after `fields` bytes: see `place`."""
        width = BITS[code] // 8 if product is None else 4
        data, end = self.place(what, fields, nbytes, width, last=what == "norms")
        padding, declared = self.payload + fields, self.payload + self.length
        return Block(code, shape, self.position, padding, data, end, product, declared)

    def place(self, what: str, fields: int, nbytes: int, width: int, *, last: bool = False) -> tuple[int, int]:
        """Return the offset of the data and the end of the chunk.

        The chunk's length determines its padding. If it leads neither to the end of the file nor to norms, but the
        padding that writers use does, the latter counts, with a warning.

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
        padding, max_padding = declared - start - nbytes, max(_MAX_PADDING, width)
        sound = 0 <= padding <= max_padding
        if sound and self.lands(declared, last=last):
            return start + padding, declared
        data = start + width - start % width
        cut = sound and declared > self.size  # by a few bytes, which shorter padding could hide
        if not cut and self.lands(data + nbytes, last=last) and data + nbytes != declared:
            contents = f"its contents take {data + nbytes - self.payload} bytes (at byte {self.position + 4})"
            self.warnings.append(f"the length of the {what} chunk is {self.length}, and {contents}")
            return data, data + nbytes
        if cut or start + nbytes > self.size:
            raise cut_off(f"the data of the {what}", self.size, declared if cut else start + nbytes, field=what)
        if not sound:
            cls = errors.TruncatedError if declared > self.size else errors.LayoutError
            needed = start + nbytes - self.payload
            expected = f"{needed} to {needed + max_padding}: fields, padding and data"
            msg = f"length of the {what} chunk"
            raise cls(msg, field="chunk_len", offset=self.position + 4, actual=self.length, expected=expected)
        return start + padding, declared


def _check_size(nbytes: int, what: str, offset: int) -> None:
    if nbytes > INT64_MAX:
        msg = f"the product of the shape of the {what} exceeds 2**63 - 1 bytes"
        raise errors.LayoutError(msg, field="shape", offset=offset)


def read_matrix(placing: Placing, raw: bytes) -> Block:
    """Read the fields of a plain matrix."""
    rows, cols, code = placing.unpack(MATRIX_FIELDS, raw, "matrix")
    at = placing.payload + 12
    if code >= len(TYPES) or TYPES[code] is None:
        what = f"type of the matrix ({TYPE_NAMES[code]})" if code < len(TYPES) else "type of the matrix"
        raise errors.UnsupportedError(what, field="type", offset=at, actual=code, expected=f"one of {KNOWN_TYPES}")
    width = BITS[code] // 8
    nbytes = rows * cols * width
    # For an empty matrix, numpy still multiplies the other dimension.
    _check_size(max(rows, 1) * max(cols, 1) * width, "matrix", placing.payload)
    return placing.block("matrix", code, (rows, cols), nbytes, MATRIX_FIELDS.size)


def read_product(placing: Placing, raw: bytes) -> Block:
    """Read the fields of a product-quantised matrix."""
    values = placing.unpack(QUANTIZED_FIELDS, raw, "quantised matrix")
    fields = dict(zip(QUANTIZED_NAMES, values, strict=True))
    _check_product(placing, fields)
    rows, width, parts = fields["rows"], fields["reconstructed_len"], fields["quantized_len"]
    product = PQShape(parts, fields["n_centroids"], bool(fields["projection"]), bool(fields["norms"]))
    nbytes = sum(product_sizes((rows, width), product))
    _check_size(nbytes, "quantised matrix", placing.payload)
    _check_size(max(rows, 1) * width * 4, "quantised matrix", placing.payload)
    return placing.block("quantised matrix", PQ_CODE, (rows, width), nbytes, QUANTIZED_FIELDS.size, product)


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
    def fail(name: str, expected: str, cls: type[errors.FormatError] = errors.FormatError) -> None:
        at = placing.payload + QUANTIZED_AT[name]
        raise cls(f"{name} of the quantised matrix", field=name, offset=at, actual=fields[name], expected=expected)

    for name in ("projection", "norms"):
        if fields[name] > 1:
            fail(name, "0 or 1")
    for name, code in (("quantized_type", U8_CODE), ("reconstructed_type", F32_CODE)):
        if fields[name] != code:
            fail(name, f"{code} ({TYPE_NAMES[code]})", errors.UnsupportedError)
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
        raise errors.UnsupportedError(what, field="type", offset=placing.payload + 8, actual=code, expected=expected)
    if words is not None and count != words:
        expected = f"{words}, the number of words"
        raise errors.LayoutError(
            "number of norms", field="n_norms", offset=placing.payload, actual=count, expected=expected
        )
    nbytes = 4 * count
    _check_size(nbytes, "norms", placing.payload)
    return placing.block("norms", F32_CODE, (count,), nbytes, NORMS_FIELDS.size)


# ----------------------------------------------------------------------------------------------------
# The metadata of finalfusion: TOML, bounded by keys and depth before it is parsed.

# Most parts of keys, including dotted keys and table names. The parser keeps up to two kilobytes for each.
MAX_KEYS = 1 << 16
# The pieces of a document: comments and strings, which `_check` skips, and the signs of its structure. An unclosed
# string ends with the line or the document; the parser reports it later.
_TOML_PIECE = r"""(?xs)
    \#[^\n]*+
    | \"""(?:[^"\\]++|\\.|"(?!""))*+(?:\"""\"{0,2})?
    | '''(?:[^']++|'(?!''))*+(?:'''\'{0,2})?
    | "(?:[^"\\\n]++|\\[^\n])*+"?
    | '[^'\n]*+'?
    | (?P<sign>[\n.=,\[\]{}])"""
_SIGNS = ".=[{"


class TooDeepError(ValueError):
    """Something is nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {DEEPEST} deep")


def loads(text: str) -> dict[str, Any]:
    """Parse a document.

    Raises
    ------
    LimitError
        When it has more than `MAX_KEYS` keys.
    ValueError
        `TooDeepError` for nesting deeper than `DEEPEST`; as `tomllib` for any other defect.
    """
    import tomllib  # noqa: PLC0415 - takes 5 ms, needed when metadata is used

    if sum(map(text.count, _SIGNS)) > DEEPEST:  # each key and each level has one of these
        _check(match["sign"] for match in re.finditer(_TOML_PIECE, text))
    try:
        content = tomllib.loads(text)
    except RecursionError:  # the caller has used up most of the stack
        raise TooDeepError from None
    if not shallow(content):
        raise TooDeepError
    return content


def _check(signs: Iterable[str | None]) -> None:
    """Check the parts of keys, and the depth of arrays and inline tables, by the signs of a document."""
    keys = 0
    parts = 1  # of the current key
    opened: list[str] = []
    in_key, in_name = True, False  # in a key or a table's name; in the latter, in brackets at the beginning of a line
    for sign in signs:
        if sign is None:
            continue
        if sign == "." and in_key:
            parts += 1
        elif sign == "=":
            keys, parts, in_key = keys + parts, 1, False
        elif sign == "\n" and not opened:
            keys, parts, in_key, in_name = keys + in_name * parts, 1, True, False
        elif sign == "[" and in_key and not opened:
            in_name = True
        elif sign in "[{":
            opened.append(sign)
            in_key = sign == "{"
        elif sign in "]}" and opened:
            opened.pop()
            in_key = False
        elif sign == ",":
            in_key = opened[-1:] == ["{"]
        if parts > DEEPEST or len(opened) > DEEPEST:
            raise TooDeepError
        if keys > MAX_KEYS:
            what, expected = "number of keys in the metadata", f"at most {MAX_KEYS}"
            raise errors.LimitError(what, field="metadata", actual=f"more than {MAX_KEYS}", expected=expected)


def shallow(content: Any) -> bool:
    """Whether content is nested at most `DEEPEST` deep, found without recursion."""
    level = [content]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return True
    return False


class TomlDocument(dict[str, Any]):
    """The content of a TOML document with its text, so that writing it again keeps comments and order.

    ``TensorFile.metadata`` is a read-only view of one; its ``copy()`` returns the document.
    """

    __slots__ = ("text",)

    def __init__(self, content: Mapping[str, Any], text: str) -> None:
        super().__init__(content)
        self.text: str = text

    def copy(self) -> TomlDocument:
        """Return a document with the same content and text."""
        return TomlDocument(self, self.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return TomlDocument, (dict(self), self.text)


def load_metadata(raw: bytes, offset: int) -> TomlDocument:
    """Parse a TOML document at `offset` of the file. Dates and times become `datetime` objects.

    Raises
    ------
    FormatError
        For bytes that are not UTF-8, bad syntax, numbers of thousands of digits, and nesting deeper than 128.
    LimitError
        For more than 65,536 keys.
    """

    def fail(reason: str, at: int = 0) -> errors.FormatError:
        return errors.FormatError(f"the metadata is not valid TOML: {reason}", field="metadata", offset=offset + at)

    try:
        text = raw.decode()
        return TomlDocument(loads(text), text)
    except UnicodeDecodeError as error:
        raise fail(f"it is not UTF-8 ({error.reason})", error.start) from None
    except errors.LimitError as error:
        error.offset = offset
        raise
    except ValueError as error:  # from the parser, int or datetime
        reason = "a number has too many digits" if "digits" in str(error) else str(error)[:200]
        raise fail(reason) from None


# ----------------------------------------------------------------------------------------------------
# The strings of vocabularies, which the first use walks, and each use decodes.


class VocabStrings:
    """The words and n-grams of a vocabulary, over mapped or private bytes.

    Parameters
    ----------
    source : Source
    vocab : VocabChunk
    octets : callable
        ``octets(begin, end)`` returns bytes of the file.
    distinct : int or None
        The matrix's rows for n-grams; None without a matrix.
    unique : bool
        Whether indexing refuses repeated strings.
    """

    def __init__(
        self,
        source: Source,
        vocab: VocabChunk,
        octets: Callable[[int, int], Any],
        distinct: int | None,
        *,
        unique: bool,
    ) -> None:
        self._source = source
        self._vocab = vocab
        self._octets = octets
        self._distinct = distinct
        self._unique = unique

    def words(self) -> UniqueStrings:
        """Walk the vocabulary and return its words. Raises `LayoutError` if it does not end with its chunk."""
        vocab = self._vocab
        data = self._section(vocab.words)
        bounds = np.empty(vocab.n_words + 1, np.uint32)
        walked = scans.walk_strings(data, vocab.n_words, 4, bounds)
        if walked < 0:
            self._fail(f"word {-1 - walked} of {vocab.n_words} runs past it")
        if vocab.id == EXPLICIT:
            count, begin = self._ngrams_at(vocab.words + walked)
            data_of_ngrams = self._section(begin)
            size, done = scans.skip_strings(data_of_ngrams, count, 0 if vocab.spec else INDEX)
            if done < count:
                self._fail(f"n-gram {done} of {count} runs past it")
            walked = begin + size - vocab.words
        if walked != len(data):
            self._fail(f"words and n-grams end at byte {vocab.words + walked}")
        return self._table(data, bounds, 4, "word")

    def ngrams(self) -> tuple[UniqueStrings, NDArray[np.uint64]]:
        """Return the n-grams of an explicit vocabulary and their indices, shape (n_ngrams,)."""
        try:
            return self._ngrams()
        except errors.TensorFileError as error:
            raise error.located(path=self._source.name, format="finalfusion") from None

    def _ngrams(self) -> tuple[UniqueStrings, NDArray[np.uint64]]:
        vocab = self._vocab
        data = self._section(vocab.words)
        words = scans.walk_strings(data, vocab.n_words, 4)
        if words < 0:
            self._fail(f"word {-1 - words} of {vocab.n_words} runs past it")
        count, begin = self._ngrams_at(vocab.words + words)
        data = self._section(begin)
        check_count(count, 4 if vocab.spec else 12, len(data), "n-grams", vocab.offset)
        if vocab.spec:
            bounds, indices = np.empty(count + 1, np.uint32), np.arange(count, dtype=np.uint64)
            walked = scans.walk_strings(data, count, 4, bounds)
        else:
            walked, bounds, indices = scans.walk_indexed(data, count)
        if walked < 0:
            self._fail(f"n-gram {-1 - walked} of {count} runs past it")
        if walked != len(data):
            self._fail(f"n-grams end at byte {begin + walked}")
        self._check_indices(indices)
        return self._table(data, bounds, 4 if vocab.spec else 12, "n-gram"), indices

    def _check_indices(self, indices: NDArray[np.uint64]) -> None:
        """Refuse indices beyond the matrix's rows for n-grams, and rows without an index."""
        if self._distinct is None:
            return
        outside = np.flatnonzero(indices >= self._distinct)
        if len(outside):
            first = int(outside[0])
            what, actual = f"index of n-gram {first}", int(indices[first])
            expected = f"less than {self._distinct}, the rows that the matrix has for n-grams"
            raise errors.LayoutError(what, field="index", offset=self._vocab.offset, actual=actual, expected=expected)
        # At most as long as the indices: a matrix without columns may declare any number of rows.
        named = np.zeros(min(self._distinct, len(indices)), np.bool_)
        named[indices.astype(np.intp)[indices < len(named)]] = True
        if len(named) != self._distinct or not named.all():
            rows = self._vocab.n_words + self._distinct
            expected = f"{self._vocab.n_words + len(np.unique(indices))}, one for each word and distinct n-gram index"
            raise errors.LayoutError(
                "number of rows", field="rows", offset=self._vocab.end, actual=rows, expected=expected
            )

    def _section(self, begin: int) -> Any:
        """Return the bytes from `begin` to the end of the vocabulary."""
        size = self._vocab.end - begin
        if size > MAX_STRINGS:
            what = "bytes of words or n-grams"
            expected = f"at most {MAX_STRINGS}, which this library can address"
            raise errors.UnsupportedError(what, field="vocabulary", offset=begin, actual=size, expected=expected)
        return self._octets(begin, self._vocab.end)

    def _ngrams_at(self, position: int) -> tuple[int, int]:
        """Return the number of n-grams and their offset; `position` is the end of the words."""
        vocab = self._vocab
        if vocab.n_ngrams is not None:
            return vocab.n_ngrams, position
        raw = bytes(self._octets(position, min(position + U64.size, vocab.end)))
        if len(raw) < U64.size:
            self._fail("the number of n-grams runs past it")
        return U64.unpack(raw)[0], position + U64.size

    def _table(self, data: Any, bounds: NDArray[np.uint32], gap: int, what: str) -> UniqueStrings:
        table = UniqueStrings(data, bounds, gap, what)
        table.strict, table.end = self._unique, self._vocab.end
        table.path, table.format = self._source.name, "finalfusion"
        return table

    def _fail(self, how: str) -> NoReturn:
        vocab = self._vocab
        msg = f"the {TITLES[vocab.id]} ends at byte {vocab.end}, where the next chunk begins, but {how}"
        raise errors.LayoutError(msg, field="vocabulary", offset=vocab.offset - CHUNK.size)


class UniqueStrings(StringTable):
    """Strings that must be unique; if `strict`, building the index refuses repeated ones."""

    __slots__ = ("strict",)
    strict: bool

    def _build(self) -> tuple[int, int, int]:
        index = super()._build()
        if index[0] and self.strict:
            self._find = self._slots = None
            raise self.repeated(*index)
        return index

    def repeated(self, count: int, second: int, first: int) -> errors.LayoutError:
        """Return the error for `count` repeated strings; `second` is the first of them, `first` its original."""
        what = self._what
        more = f", and {count - 1} more are repeated" if count > 1 else ""
        msg = f"{what}s {first} and {second} are both {self[second]!r}{more}: {what}s must be unique"
        return errors.LayoutError(msg, field=what, offset=self._offset(second), path=self.path, format=self.format)


def read_vocabulary(source: Source, vocab: VocabChunk, storage: Block | None, *, strict: bool) -> Vocabulary:
    """Return the vocabulary; its first use reads it."""
    distinct = None if storage is None else storage.shape[0] - vocab.n_words
    strings = VocabStrings(source, vocab, source.section, distinct, unique=strict)
    return Vocabulary(strings.words, vocab.n_words, subwords=subwords_of(vocab, distinct, strings))


def subwords_of(vocab: VocabChunk, distinct: int | None, strings: VocabStrings) -> Subwords | None:
    """Return the subwords of a vocabulary; None for a simple one."""
    if vocab.id == SIMPLE:
        return None
    kind = KINDS[vocab.id]
    if vocab.id != EXPLICIT:
        return Subwords(kind, vocab.n_words, vocab.min_n, vocab.max_n, vocab.size)
    size = distinct if distinct is not None else vocab.n_ngrams or 0
    return Subwords(kind, vocab.n_words, vocab.min_n, vocab.max_n, size, strings.ngrams)


# ----------------------------------------------------------------------------------------------------
# The checks of `TensorFile.verify` in a finalfusion file: everything that opening leaves unread.


def verify(run: Verification, chunks: Chunks, again: Chunks) -> None:
    """Check the whole file, reading each byte once; also check that its chunks have not changed since opening.

    `chunks` are the chunks at opening, `again` the chunks now.
    """
    if again != chunks:
        raise errors.LayoutError("the chunks changed after the file was opened", field="chunk", offset=0)
    run.checked("header and chunks: order, sizes, rows")
    _compare_list(run, chunks)
    text = chunks.metadata
    if text is not None:
        run.until(text.begin)
        load_metadata(run.read(text.begin, text.nbytes), text.begin)
        run.checked("metadata")
    if chunks.vocab is not None:
        run.until(chunks.vocab.words)
        _verify_vocabulary(run, chunks)
    for what, block in (("embeddings", chunks.storage), ("norms", chunks.norms)):
        if block is None:
            continue
        run.until(block.padding)
        _verify_padding(run, block)
        if block.product is not None:
            _verify_codes(run, block)
        elif what == "norms":
            _verify_norms(run, block.data, block.end - block.data, "norms")
            run.checked("norms")
    run.finish()


def _compare_list(run: Verification, chunks: Chunks) -> None:
    if chunks.listed != chunks.stored:
        listed = "too many" if chunks.listed is None else ", ".join(map(str, chunks.listed)) or "none"
        present = ", ".join(f"{id_} {TITLES[id_]}" for id_ in chunks.stored)
        run.warn(f"the header lists other chunks ({listed}) than there are ({present})")


def _verify_vocabulary(run: Verification, chunks: Chunks) -> None:
    vocab = chunks.vocab
    assert vocab is not None  # noqa: S101 - the caller has checked
    # A private copy cannot change between two checks.
    raw = np.frombuffer(run.read(vocab.words, vocab.end - vocab.words), np.uint8)
    distinct = None if chunks.storage is None else chunks.storage.shape[0] - vocab.n_words

    def octets(begin: int, end: int) -> NDArray[np.uint8]:
        return raw[begin - vocab.words : end - vocab.words]

    strings = VocabStrings(run.source, vocab, octets, distinct, unique=False)
    _verify_strings(run, strings.words())
    run.checked("words: ends, UTF-8, no repetition")
    if vocab.id == EXPLICIT:
        table, indices = strings.ngrams()
        _verify_strings(run, table)
        _verify_numbering(run, vocab, table, indices)
        run.checked("n-grams: ends, UTF-8, no repetition, indices")


def _verify_strings(run: Verification, table: UniqueStrings) -> None:
    bad = table.not_utf8()
    if bad >= 0:
        table[bad]  # raises the error for this string
    duplicates = table.duplicates()
    if duplicates[0]:
        run.tolerate(table.repeated(*duplicates))


def _verify_numbering(run: Verification, vocab: VocabChunk, table: UniqueStrings, indices: NDArray[np.uint64]) -> None:
    """Warn of indices that differ from first appearance: some readers ignore indices and number n-grams so."""
    if not numbered(indices):
        run.warn("indices of n-grams are not numbered by first appearance, as some readers number them")
    wrong = sum(not vocab.min_n <= len(ngram) <= vocab.max_n for ngram in table)
    if wrong:
        run.warn(f"n-grams shorter than {vocab.min_n} or longer than {vocab.max_n} characters: {wrong}")


def numbered(indices: NDArray[np.uint64]) -> bool:
    """Whether indices are numbered from 0 on by first appearance."""
    if not len(indices):
        return True
    highest = np.maximum.accumulate(indices)
    return bool(indices[0] == 0 and (indices[1:] <= highest[:-1] + np.uint64(1)).all())


def _verify_padding(run: Verification, block: Block) -> None:
    padding = run.read(block.padding, block.data - block.padding)
    if any(padding):
        run.tolerate(nonzero_padding("before the data", block.padding))
    width = 4 if block.product is not None else BITS[block.code] // 8
    if block.data % width:
        run.warn(f"the data at byte {block.data} is not aligned: elements have {width} bytes")


def _verify_codes(run: Verification, block: Block) -> None:
    """Read a quantised matrix, and check that every code has a centroid."""
    product = block.product
    assert product is not None  # noqa: S101 - the caller has checked
    projection, codebooks, norms, size = product_sizes(block.shape, product)
    start = block.data + projection + codebooks
    run.until(start)
    if norms:
        _verify_norms(run, start, norms, "norms of quantised rows")
    start += norms
    if product.n_centroids == 256:  # every value of a byte is valid
        run.until(start + size)
    else:
        position = start
        for chunk in run.chunks(start, size):
            codes = np.frombuffer(chunk, np.uint8)
            if codes.max() >= product.n_centroids:
                at = position + int(np.argmax(codes >= product.n_centroids))
                row, part = divmod(at - start, product.quantized_len)
                what = f"code {part} of row {row}"
                expected = f"less than {product.n_centroids}, the number of centroids"
                actual = int(codes[at - position])
                raise errors.QuantError(what, field="codes", offset=at, actual=actual, expected=expected)
            position += len(codes)
    run.checked("codes of the quantised matrix")


def _verify_norms(run: Verification, start: int, size: int, what: str) -> None:
    bad = 0
    for chunk in run.chunks(start, size):
        values = np.frombuffer(chunk, "<f4")
        bad += int((~(np.isfinite(values) & (values >= 0))).sum())
    if bad:
        run.warn(f"{what} that are NaN, infinite or negative: {bad}")


LAYOUTS = ("upstream", "spec")

_NAMES = ("embeddings", "norms")


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST
    min_ndim, max_ndim = 1, 2
    # Headers of chunks lie between the tensors; the walk, not the table, checks these gaps.
    max_gap = ANY_GAP


class _Decoder:
    """Decodes the product-quantised matrix of the file `name`."""

    def __init__(self, storage: Block, name: str) -> None:
        self._storage = storage
        self._name = name

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        del row  # a file has at most one such tensor
        return product_of(self._storage, octets, self._name)

    def row_parts(self) -> list[tuple[int, int]]:
        """Return the bytes of projection, codebooks, norms and codes, in all and for one row: see `Row`."""
        product, shape = self._storage.product, self._storage.shape
        assert product is not None  # noqa: S101 - its dtype says so
        per_row = (0, 0, 4, product.quantized_len)
        return list(zip(product_sizes(shape, product), per_row, strict=True))


def parse_finalfusion(source: Source, head: bytes, options: Options) -> Content:
    """Walk the chunks and return the content. Leave data unread, and words too if their length can be trusted."""
    warnings: list[str] = []
    chunks = _Walk(source, head, options, warnings).run()
    table = table_of(chunks, source.size)
    options.limits.check("max_tensors", len(table), "number of tensors")
    if options.checked:
        table.check()
    vocab, storage, metadata = chunks.vocab, chunks.storage, chunks.metadata

    def load() -> dict[str, Any]:
        if metadata is None:
            return {}
        return load_metadata(source.pread(metadata.begin, metadata.nbytes), metadata.begin)

    def check(run: Verification) -> None:
        verify(run, chunks, _Walk(source, b"", run.options, []).run())

    layout = "spec" if vocab is not None and vocab.spec else "upstream"
    content = Content(layout, table, load, check, warnings)
    content.has_metadata = metadata is not None
    if storage is not None and storage.product is not None:
        content.table.quantized = _Decoder(storage, source.name)
    if vocab is not None:
        content.load_vocab = lambda: read_vocabulary(source, vocab, storage, strict=options.strict)
    return content


def table_of(chunks: Chunks, size: int) -> ColumnTable:
    """Return the table of the one or two tensors in a file of `size` bytes."""
    parts = [(name, block) for name, block in zip(_NAMES, (chunks.storage, chunks.norms), strict=True) if block]
    names = [name.encode() for name, _ in parts]
    blocks = [block for _, block in parts]
    columns = scans.Columns(
        b"".join(names),
        np.array([0, *accumulate(map(len, names))], np.uint32),
        np.array([block.code for block in blocks], np.uint8),
        np.array([dim for block in blocks for dim in block.shape], np.uint64),
        np.array([0, *accumulate(len(block.shape) for block in blocks)], np.uint32),
        np.array([block.data for block in blocks], np.uint64),
        np.array([block.end for block in blocks], np.uint64),
    )
    return ColumnTable(columns, _Rules(0, size), utf8=False)


def product_of(storage: Block, octets: NDArray[np.uint8], name: str) -> QuantizedTensor:
    """Return the product-quantised matrix over its bytes, from projection to codes, of the file `name`."""
    from weightmap.core.quant.product import ProductQuantized  # noqa: PLC0415 - only quantised matrices need it

    product = storage.product
    assert product is not None  # noqa: S101 - its dtype says so
    rows, width = storage.shape
    parts = []
    start = 0
    for nbytes in product_sizes(storage.shape, product):
        parts.append(octets[start : start + nbytes])
        start += nbytes
    projection, codebooks, norms, codes = parts
    subspace = width // product.quantized_len
    return ProductQuantized(
        codes.reshape(rows, product.quantized_len),
        codebooks.view("<f4").reshape(product.quantized_len, product.n_centroids, subspace),
        projection.view("<f4").reshape(width, width) if product.projection else None,
        norms.view("<f4") if product.norms else None,
        origin=(name, "finalfusion", storage.data + start - len(codes)),
    )


# Longest plausible list of chunk ids; a longer one is not read.
_MAX_LISTED = 64
# Room for the header and the fields of any chunk, in bytes
_MAX_FIELDS = 64


class _Walk:
    """Finds the chunks of a file and checks their fields.

    Adds tolerated deviations to `warnings`. Raises the `FormatError` of the first other defect.
    """

    def __init__(self, source: Source, head: bytes, options: Options, warnings: list[str]) -> None:
        self._source = source
        self._head = head
        self._options = options
        self._warnings = warnings
        self._size = source.size
        self._metadata: Range | None = None
        self._vocab: VocabChunk | None = None
        self._storage: Block | None = None
        self._norms: Block | None = None
        self._listed: tuple[int, ...] | None = None

    def _take(self, offset: int, count: int) -> bytes:
        """Return `count` bytes, or fewer at the end of the file."""
        return take(self._source, self._head, offset, max(0, min(count, self._size - offset)))

    def run(self) -> Chunks:
        """Walk from the header to the end of the file."""
        self._listed, position = self._header()
        stage = -1
        ids: list[int] = []
        while position < self._size:
            raw = self._take(position, _MAX_FIELDS)
            if (self._storage or self._norms) and not self._is_chunk(raw, position):
                trailing(self._source, position, self._options, self._warnings)
                break
            if len(raw) < CHUNK.size:
                raise cut_off(f"the header of chunk {len(ids)}", self._size, position + CHUNK.size, field="chunk")
            id_, length = CHUNK.unpack_from(raw)
            if id_ not in STAGES:
                position = self._unknown(id_, length, position)
                continue
            self._check_order(id_, stage, position)
            stage = STAGES[id_]
            ids.append(id_)
            position = self._chunk(id_, length, position, raw[CHUNK.size :])
        self._check_complete(ids)
        return Chunks(self._listed, tuple(ids), self._metadata, self._vocab, self._storage, self._norms)

    def _header(self) -> tuple[tuple[int, ...] | None, int]:
        """Check the header; return the ids that it lists, and the offset of the first chunk."""
        raw = self._take(0, HEADER.size)
        if len(raw) < HEADER.size:
            raise cut_off("its header", len(raw), HEADER.size, field="header")
        magic, version, count = HEADER.unpack(raw)
        if magic != MAGIC:
            raise errors.FormatError("magic", field="magic", offset=0, actual=repr(magic), expected=repr(MAGIC))
        if version != VERSION:
            raise errors.UnsupportedError("version", field="version", offset=4, actual=version, expected=VERSION)
        max_chunks = (self._size - HEADER.size) // 4
        if count > max_chunks:
            raise too_many("number of chunks", count, max_chunks, field="n_chunks", offset=8)
        first = HEADER.size + 4 * count
        if count > _MAX_LISTED:
            return None, first
        ids = self._take(HEADER.size, 4 * count)
        return tuple(id_ for (id_,) in U32.iter_unpack(ids)), first

    def _is_chunk(self, raw: bytes, position: int) -> bool:
        """Whether the bytes after a storage may be another chunk, whole or cut off, rather than trailing bytes."""
        id_ = int.from_bytes(raw[:4], "little")
        if len(raw) < CHUNK.size:
            return raw[:4] == U32.pack(NORMS)[: len(raw)] and self._norms is None
        length = CHUNK.unpack_from(raw)[1]
        return id_ in STAGES or (id_ != 0 and length <= self._size - position - CHUNK.size)

    def _unknown(self, id_: int, length: int, position: int) -> int:
        """Refuse an unknown chunk, or step over it with ``strict=False``."""
        error = errors.UnsupportedError(
            "chunk id", field="chunk_id", offset=position, actual=id_, expected=f"one of {CHUNK_NAMES}"
        )
        if self._options.strict:
            raise error
        self._check_length(f"unknown chunk {id_}", length, position)
        self._warnings.append(f"{error}: stepped over")
        return position + CHUNK.size + length

    def _check_length(self, what: str, length: int, position: int) -> None:
        available = self._size - position - CHUNK.size
        if length > available:
            raise too_many(f"length of the {what}", length, available, field="chunk_len", offset=position + 4)

    def _check_order(self, id_: int, stage: int, position: int) -> None:
        """Refuse a repeated or misplaced chunk."""
        mine, title = STAGES[id_], TITLES[id_]
        if mine <= stage:
            repeated = (self._metadata, self._vocab, self._storage, self._norms)[mine] is not None
            second, late = f"is a second {STAGE_TITLES[mine]} chunk", f"comes after the {STAGE_TITLES[stage]}"
            msg = f"the {title} chunk {second if repeated else late}"
            raise errors.LayoutError(msg, field="chunk_id", offset=position)
        missing = [STAGE_TITLES[k] for k, part in ((1, self._vocab), (2, self._storage)) if k < mine and part is None]
        alone = stage == -1 and (id_ == NORMS or self._listed == (id_,))
        if missing and not alone:
            error = errors.LayoutError(
                f"the {title} chunk comes before any {missing[0]}", field="chunk_id", offset=position
            )
            self._options.tolerate(error, self._warnings)

    def _chunk(self, id_: int, length: int, position: int, fields: bytes) -> int:
        """Read one chunk; `fields` follow its header. Return its end."""
        payload = position + CHUNK.size
        if id_ == METADATA:
            self._check_length("metadata", length, position)
            self._options.limits.check("max_header_bytes", length, "size of the metadata", offset=position + 4)
            self._metadata = Range(payload, payload + length)
            return payload + length
        stage = STAGES[id_]
        if stage == 1:
            self._vocab = self._vocabulary(id_, length, position, fields)
            return self._vocab.end
        words = None if self._vocab is None else self._vocab.n_words
        if id_ == NORMS:
            self._norms = read_norms(self._placing(position, length), fields, words)
            return self._norms.end
        self._storage = self._read_storage(id_, length, position, fields)
        self._check_rows(self._storage)
        return self._storage.end

    def _vocabulary(self, id_: int, length: int, position: int, fields: bytes) -> VocabChunk:
        """Read the fields of a vocabulary, and find its end.

        The stated length counts if it leads to a whole storage chunk that fits the vocabulary; else walk the words.
        """
        vocab = read_fields(id_, length, position + CHUNK.size, fields, self._size)
        limits = self._options.limits
        if self._leads_to_storage(vocab):
            check_size(vocab, vocab.declared, limits)
            return vocab
        end = scan_end(self._source, vocab, limits)
        if end == vocab.declared:
            return vocab
        contents = f"its words and n-grams take {end - vocab.offset} bytes (at byte {position + 4})"
        self._warnings.append(f"the length of the {TITLES[id_]} chunk is {length}, and {contents}")
        return vocab._replace(end=end)

    def _leads_to_storage(self, vocab: VocabChunk) -> bool:
        """Whether the vocabulary's length leads to a whole storage chunk with the rows that the vocabulary needs."""
        position = vocab.declared
        if not vocab.words <= position < self._size:
            return False
        raw = self._take(position, _MAX_FIELDS)
        if len(raw) < CHUNK.size:
            return False
        id_, length = CHUNK.unpack_from(raw)
        if STAGES.get(id_) != 2:
            return False
        saved, self._vocab = self._vocab, vocab
        noted = len(self._warnings)
        try:
            storage = self._read_storage(id_, length, position, raw[CHUNK.size :])
            self._check_rows(storage)
            return self._placing(position, length).lands(storage.end)
        except errors.FormatError:
            return False
        finally:
            self._vocab = saved
            del self._warnings[noted:]

    def _placing(self, position: int, length: int) -> Placing:
        def starts_norms(end: int) -> bool:
            raw = self._take(end, CHUNK.size)
            return len(raw) == CHUNK.size and raw[:4] == U32.pack(NORMS)

        return Placing(position, length, self._size, self._warnings, starts_norms)

    def _read_storage(self, id_: int, length: int, position: int, fields: bytes) -> Block:
        read = read_product if id_ == QUANTIZED else read_matrix
        return read(self._placing(position, length), fields)

    def _check_rows(self, storage: Block) -> None:
        """Check that a storage has the rows that its vocabulary needs."""
        vocab = self._vocab
        if vocab is None:
            return
        rows, min_rows = storage.shape[0], vocab.n_words + vocab.size
        max_rows, reason = min_rows, f"{vocab.n_words} words"
        if vocab.size:
            reason += f" and {vocab.size} buckets"
        if vocab.min_n and not vocab.size:  # explicit: only the n-grams tell the number of distinct indices
            max_rows = rows if vocab.n_ngrams is None else min_rows + vocab.n_ngrams
            reason += f" and at most {max_rows - min_rows} n-grams" if max_rows != rows else " and its n-grams"
        if not min_rows <= rows <= max_rows:
            expected = f"{min_rows}: {reason}" if max_rows == min_rows else f"{min_rows} to {max_rows}: {reason}"
            at = storage.chunk + CHUNK.size + (0 if storage.product is None else 20)
            raise errors.LayoutError("number of rows", field="rows", offset=at, actual=rows, expected=expected)

    def _check_complete(self, ids: list[int]) -> None:
        """Refuse a file without a vocabulary or a storage, unless it has one chunk and its header lists no other."""
        if [*(self._listed or ())] == ids and len(ids) == 1:
            return
        if self._norms is not None and self._storage is None and self._vocab is None:
            return
        parts = (("vocabulary", self._vocab), ("storage", self._storage))
        missing = " or ".join(name for name, part in parts if part is None)
        if missing:
            error = errors.TruncatedError(f"the file ends without a {missing} chunk", field="chunk", offset=self._size)
            self._options.tolerate(error, self._warnings)


FORMAT = Format(
    name="finalfusion",
    title="finalfusion",
    suffixes=(".fifu",),
    layouts=LAYOUTS,
    parse=parse_finalfusion,
    plan=later(f"{__name__}.writing", "plan_finalfusion"),
    carries={layout: frozenset({"metadata", "vocab", "subwords"}) for layout in LAYOUTS},
    magic=MAGIC,
    metadata_kinds=TOML,
    embeddings=("embeddings", "norms"),
    dtypes={layout: frozenset(name for name in TYPES if name) for layout in LAYOUTS},
    schemes={layout: frozenset({"pq"}) for layout in LAYOUTS},
)
