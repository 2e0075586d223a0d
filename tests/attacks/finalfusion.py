"""Attacks on finalfusion: header, chunks, vocabularies, matrices, product quantisation, norms, TOML."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from tests.builders import Tensor, normal
from tests.builders import finalfusion as ff

from .case import BAD_UTF8, U32, U64, WILD_NAMES, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = "finalfusion"
WORDS = ["one", "two", "drei"]
N = len(WORDS)
MATRIX, LENGTHS = normal((N, 2), 1), ff.lengths(N)
VOCAB, STORAGE, NORMS = ff.simple(WORDS), ff.matrix(MATRIX), ff.norms(LENGTHS)
TEXT = ff.metadata("a = 1")
PARTS = ff.quantised(N, 2, 3, 2)
UNKNOWN = ff.Chunk(9, bytes(30))
# The rows of the threat tables about this format: a fault of a file, and the required outcome.
ROWS = {
    "F1": "finalfusion's number of chunks is 0 or 2^32 - 1: an error without memory for them.",
    "F2": "A list of chunks that disagrees with the file: a warning.",
    "F3": "An unknown chunk: UnsupportedError, stepped over if not strict.",
    "F4": "A repeated chunk: LayoutError.",
    "F5": "Lengths of chunks that are wrong: an error where it matters, else a warning.",
    "F6": "Padding that is not zero or of another length: LayoutError.",
    "F7": "More or longer words than there is room for: TruncatedError.",
    "F8": "A repeated word: LayoutError, a warning if not strict.",
    "F9": "A bucket exponent above 63 or rows that are not words and buckets: an error.",
    "F10": "No buckets: FormatError.",
    "F11": "min_n of 0 or above max_n: FormatError.",
    "F12": "Indices of n-grams that are too large or leave gaps: LayoutError.",
    "F13": "Rows times columns times bytes beyond 2^63: LayoutError.",
    "F14": "Element types that do not exist, or that numpy lacks: UnsupportedError.",
    "F15": "quantized_len of 0, too large, or not a divisor: FormatError.",
    "F16": "No centroids, or more than codes can name: FormatError.",
    "F17": "A code without a centroid: QuantError, when it is read.",
    "F18": "A flag that is neither 0 nor 1: FormatError.",
    "F19": "A projection of 2^40 bytes and more: TruncatedError or LayoutError.",
    "F20": "Another number of norms than of words: LayoutError.",
    "F21": "Norms that are NaN: a warning.",
    "F22": "Norms before the matrix, chunks out of order: LayoutError.",
    "F23": "Metadata that is not TOML: FormatError.",
}


def start_of(chunks: list[ff.Chunk], number: int) -> int:
    """Where the payload of a chunk begins in a file of these chunks."""
    return len(ff.build(chunks[:number], [chunk.id for chunk in chunks])) + 12


def product(**lies: Any) -> bytes:
    """A file with a quantised matrix."""
    return ff.build([VOCAB, ff.product(*PARTS, **lies)])


def hashed(id_: int, min_n: int, max_n: int, last: int, rows: int, **options: Any) -> bytes:
    """A file with buckets."""
    return ff.build([ff.hashed(id_, WORDS, min_n, max_n, last, **options), ff.matrix(normal((rows, 2)))])


def explicit(pairs: list[tuple[str, int]], rows: int, min_n: int = 1, **lies: Any) -> bytes:
    """A file with n-grams."""
    return ff.build([ff.explicit(WORDS, pairs, min_n, 3, **lies), ff.matrix(normal((rows, 2)))])


def matrix(**lies: Any) -> bytes:
    """A file of words and a matrix that lies."""
    return ff.build([VOCAB, ff.matrix(MATRIX, **lies)])


V = start_of([VOCAB, STORAGE], 0)
S = start_of([VOCAB, STORAGE], 1)
S3 = start_of([VOCAB, STORAGE, NORMS], 1)
NN = start_of([VOCAB, STORAGE, NORMS], 2)
WHOLE = ff.build([VOCAB, STORAGE])
WITH_NORMS = ff.build([VOCAB, STORAGE, NORMS])
END = len(WHOLE)
SOUND = {
    KIND: WHOLE,
    "finalfusion-norms": WITH_NORMS,
    "finalfusion-quantised": product(),
    "finalfusion-buckets": hashed(ff.BUCKET, 3, 6, 2, N + 4),
    "finalfusion-explicit": explicit([("a", 0)], N + 1),
}


def case(row: str, name: str, data: bytes, error: str = "", field: Any = None, offset: Any = None, **more: Any) -> Case:
    """An attack on this format."""
    return Case(row, KIND, name, data, error, field, offset, **more)


def cases() -> Iterator[Case]:
    """Every attack."""
    for part in (chunks, vocabularies, rows, matrices, products, norms, later, odd, legal):
        yield from part()


def chunks() -> Iterator[Case]:
    """The header, and which chunks there are."""
    built = ff.build
    yield case("C3", "version 1", built([VOCAB, STORAGE], version=1), "UnsupportedError", "version", 4)
    for count in (U32, 2**31):
        data = built([VOCAB, STORAGE], count=count)
        yield case("F1", f"{count} chunks", data, "TruncatedError", "n_chunks", 8)
    yield case(
        "F1", "a header alone of 2^32 - 1 chunks", b"FiFu" + struct.pack("<II", 0, U32), "TruncatedError", "n_chunks", 8
    )
    yield case("F1", "no chunks", b"FiFu" + bytes(8), "TruncatedError", "chunk", 12, odd="without a vocabulary")
    yield case("F1", "a header cut off", b"FiFu" + bytes(7), "TruncatedError", "header", 11)
    yield case(
        "F3", "the chunk of floret", built([UNKNOWN, STORAGE]), "UnsupportedError", "chunk_id", 20, odd="stepped over"
    )
    yield case(
        "F3",
        "chunk 0",
        built([ff.Chunk(0, b""), VOCAB, STORAGE]),
        "UnsupportedError",
        "chunk_id",
        24,
        odd="stepped over",
    )
    for name, where, number in (
        ("in front", [UNKNOWN, VOCAB, STORAGE], 0),
        ("in between", [VOCAB, UNKNOWN, STORAGE], 1),
        ("at the end", [VOCAB, STORAGE, UNKNOWN], 2),
    ):
        at = start_of(where, number) - 12
        yield case(
            "F3", f"an unknown chunk {name}", built(where), "UnsupportedError", "chunk_id", at, odd="stepped over"
        )
    for row, name, where, number, lax in (
        ("F4", "two metadata", [TEXT, TEXT, VOCAB, STORAGE], 1, None),
        ("F22", "metadata behind words", [VOCAB, TEXT, STORAGE], 1, None),
        ("F4", "two vocabularies", [VOCAB, VOCAB, STORAGE], 1, None),
        ("F4", "two storages", [VOCAB, STORAGE, STORAGE], 2, None),
        ("F22", "norms before the storage", [VOCAB, NORMS, STORAGE], 1, None),
        ("F4", "norms twice", [VOCAB, STORAGE, NORMS, NORMS], 3, None),
        ("F22", "no vocabulary", [STORAGE, NORMS], 0, "before any vocabulary"),
    ):
        at = start_of(where, number) - 12
        yield case(row, name, built(where), "LayoutError", "chunk_id", at, odd=lax)
    data = ff.build([VOCAB], [ff.SIMPLE, ff.MATRIX])
    yield case("F22", "no storage", data, "TruncatedError", "chunk", len(data), odd="without a storage")
    data = ff.build([TEXT], [ff.METADATA, ff.SIMPLE])
    yield case("F22", "metadata, and no more", data, "TruncatedError", "chunk", len(data), odd="without a vocabulary")
    data = built([TEXT, VOCAB, STORAGE])[:40]
    yield case("F5", "metadata past the end", data, "TruncatedError", "chunk_len", 28)
    data = built([ff.metadata("", length=U64), VOCAB, STORAGE])
    yield case("F5", "metadata of 2^64 bytes", data, "TruncatedError", "chunk_len", 28)
    data = WITH_NORMS[: NN - 1]
    yield case("F5", "a chunk header cut off", data, "TruncatedError", "chunk", NN - 1)
    data = WITH_NORMS + b"more"
    yield case("C2", "bytes behind norms", data, "LayoutError", "size", len(WITH_NORMS), odd="trailing")


def vocabularies() -> Iterator[Case]:
    """Fields of vocabularies."""
    for n in (2**60, U64):
        yield case("C4", f"{n} words", ff.build([ff.simple(WORDS, n=n), STORAGE]), "TruncatedError", "vocab_len", V)
    nine = ff.build([ff.simple(WORDS, n=9), STORAGE])
    yield case("F7", "more words than there are", nine, "TruncatedError", "vocabulary", len(nine))
    data = WHOLE[: V + 8] + struct.pack("<I", U32) + WHOLE[V + 12 :]
    late = {"late": True}
    yield case("F7", "a word of 2^32 - 1 bytes", data, "LayoutError", "vocabulary", V - 12, **late)
    data = hashed(ff.BUCKET, 3, 6, 2, N + 4, spec=True, n=U64)
    yield case("C4", "2^64 - 1 words, specification", data, "TruncatedError", "vocab_len", V + 12)
    data = explicit([("a", 0)], N + 1, m=2**60)
    yield case("C4", "2^60 n-grams", data, "TruncatedError", "n_ngrams", V + 8)
    data = explicit([("a", 0)], N + 2, m=2**60, spec=True, length=0)
    yield case("C4", "2^60 n-grams, specification", data, "TruncatedError", "n_ngrams", V + 16 + 4 * N + 10)
    for name, data, field, at in (
        ("min_n 0", hashed(ff.BUCKET, 0, 6, 2, N + 4), "min_n", 8),
        ("min_n 0, explicit", explicit([("a", 0)], N + 1, 0), "min_n", 16),
        ("max_n below min_n", hashed(ff.FASTTEXT, 3, 2, 4, N + 4), "max_n", 12),
        ("max_n below min_n, specification", hashed(ff.BUCKET, 3, 2, 4, 9, spec=True), "max_n", 4),
    ):
        yield case("F11", name, data, "FormatError", field, V + at)
    for exponent in (0, 64, 255, U32):
        data = hashed(ff.BUCKET, 3, 6, exponent, N + 1)
        yield case("F9", f"exponent {exponent}", data, "FormatError", "bucket_exp", V + 16)
    data = hashed(ff.BUCKET, 3, 6, U32, N + 1, spec=True)
    yield case("F9", "exponent 2^32 - 1, specification", data, "FormatError", "bucket_exp", V + 8)
    yield case("F10", "no buckets", hashed(ff.FASTTEXT, 3, 6, 0, N), "FormatError", "buckets", V + 16)
    data = hashed(ff.FASTTEXT, 3, 6, 0, N, spec=True)
    yield case("F10", "no buckets, specification", data, "FormatError", "buckets", V + 8)


def rows() -> Iterator[Case]:
    """Matrices of another number of rows than the vocabulary calls for."""
    for row, name, data, at in (
        ("F9", "a row too few", ff.build([VOCAB, ff.matrix(normal((N - 1, 2)))]), S),
        ("F9", "a row too many", ff.build([VOCAB, ff.matrix(normal((N + 1, 2)))]), S),
        ("F9", "no rows for buckets", hashed(ff.BUCKET, 3, 6, 2, N), S + 12),
        ("F9", "2^63 buckets", hashed(ff.BUCKET, 3, 6, 63, N), S + 12),
        ("F9", "a bucket too few", hashed(ff.FASTTEXT, 3, 6, 5, N + 4), S + 12),
        ("F9", "2^32 - 1 buckets", hashed(ff.FASTTEXT, 3, 6, U32, N + 4), S + 12),
        ("F9", "quantised rows", ff.build([VOCAB, ff.product(*ff.quantised(N + 1, 2, 3, 2))]), S + 20),
        ("F12", "a row of n-grams too many", explicit([("a", 0)], N + 2), ngram_rows([("a", 0)])),
        ("F12", "fewer rows than words", explicit([("a", 0)], N - 1), ngram_rows([("a", 0)])),
    ):
        yield case(row, name, data, "LayoutError", "rows", at)


def ngram_rows(pairs: list[tuple[str, int]], **lies: Any) -> int:
    """Where the number of rows stands behind an explicit vocabulary."""
    return start_of([ff.explicit(WORDS, pairs, 1, 3, **lies), STORAGE], 1)


def matrices() -> Iterator[Case]:
    """Fields of plain matrices."""
    for code in (8, 9, 12, U32):
        yield case("F14", f"type {code}", matrix(code=code), "UnsupportedError", "type", S + 12)
    for name, lies in (
        ("2^60 rows", {"rows": 2**60}),
        ("2^64 - 1 rows", {"rows": U64}),
        ("2^64 - 1 rows of nothing", {"rows": U64, "cols": 0}),
    ):
        yield case("F13", name, matrix(**lies), "LayoutError", "shape", S)
    yield case("F13", "2^32 - 1 columns", matrix(cols=U32), "TruncatedError", "matrix", END)
    yield case("F5", "a column less", matrix(cols=1), "LayoutError", "chunk_len", S - 8)
    yield case("F6", "five bytes of padding", matrix(padding=bytes(5)), "LayoutError", "chunk_len", S - 8)
    expected = {"field": "padding", "offset": S + 16, "late": True, "odd": "not zero"}
    yield case("F6", "padding that is not zero", matrix(padding=b"\0\1"), "LayoutError", **expected)


def products() -> Iterator[Case]:
    """Fields of quantised matrices."""
    end = len(product())
    for row, field, value, error, at in (
        ("F18", "projection", 2, "FormatError", 0),
        ("F18", "norms", 2, "FormatError", 4),
        ("F15", "quantized_len", 0, "FormatError", 8),
        ("F15", "quantized_len", 3, "FormatError", 8),
        ("F15", "quantized_len", 5, "FormatError", 8),
        ("F16", "n_centroids", 0, "FormatError", 16),
        ("F16", "n_centroids", 257, "FormatError", 16),
        ("F16", "n_centroids", U32, "FormatError", 16),
        ("F14", "quantized_type", 10, "UnsupportedError", 28),
        ("F14", "reconstructed_type", 11, "UnsupportedError", 32),
    ):
        yield case(row, f"{field} {value}", product(**{field: value}), error, field, S + at)
    data = product(reconstructed_len=0)
    yield case("F15", "no elements", data, "FormatError", "quantized_len", S + 8)
    data = product(reconstructed_len=U32 - 1)
    yield case("F19", "a projection of 2^64 bytes", data, "LayoutError", "shape", S)
    data = product(reconstructed_len=2**19)
    yield case("F19", "a projection of 2^40 bytes", data, "TruncatedError", "quantised matrix", end)
    yield case("F13", "2^60 quantised rows", product(rows=2**60), "LayoutError", "shape", S)
    yield case("F13", "2^50 quantised rows", product(rows=2**50), "TruncatedError", "quantised matrix", end)
    data = ff.build([VOCAB, ff.product(PARTS[0] * 0 + 3, *PARTS[1:])])
    yield case("F17", "a code too large", data, "QuantError", "codes", end - 2 * N, late=True)


def norms() -> Iterator[Case]:
    """Norms."""

    def with_norms(**lies: Any) -> bytes:
        return ff.build([VOCAB, STORAGE, ff.norms(lies.pop("value", LENGTHS), **lies)])

    yield case("F14", "norms of doubles", with_norms(code=11), "UnsupportedError", "type", NN + 8)
    yield case("F20", "a norm too few", with_norms(value=ff.lengths(2)), "LayoutError", "n_norms", NN)
    yield case("F20", "2^62 norms", with_norms(count=2**62), "LayoutError", "n_norms", NN)
    data = ff.build([ff.norms(LENGTHS, count=2**62)])
    yield case("F20", "2^62 norms alone", data, "LayoutError", "shape", 28)
    data = WITH_NORMS[:-1]
    yield case("F20", "norms cut off", data, "TruncatedError", "norms", len(data))
    value = Tensor("float32", (3,), struct.pack("<3f", 1, float("nan"), -1))
    yield case("F21", "a NaN and a negative number", with_norms(value=value), odd="infinite or negative: 2")
    data = ff.build([VOCAB, ff.product(*PARTS[:3], value.array)])
    yield case("F21", "a NaN and a negative number, quantised", data, odd="norms of quantised rows that are NaN")


def later() -> Iterator[Case]:
    """What opening leaves unread: words, n-grams, texts."""

    def late(
        row: str, name: str, data: bytes, error: str, field: str, at: int | None, words: str | None = None
    ) -> Case:
        return case(row, name, data, error, field, at, late=True, odd=words)

    def built(text: str | bytes) -> bytes:
        return ff.build([ff.metadata(text), VOCAB, STORAGE])

    twice = ff.build([ff.simple(["a", "b", "a"]), STORAGE])
    yield late("F8", "a word twice", twice, "LayoutError", "word", V + 8 + 14, "both 'a'")
    for name, raw in BAD_UTF8.items():
        data = ff.build([ff.simple([raw, "b", "c"]), STORAGE])
        yield late("C11", f"word {name}", data, "FormatError", "word", V + 8 + 4)
    for name, text in WILD_NAMES.items():
        yield case("C11", f"word {name}", ff.build([ff.simple([text, "b", "c"]), STORAGE]))
    data = explicit([("a", 0)], N + 1).replace(b"a", b"\xff")
    first = V + 24 + 4 * N + 10
    yield late("C11", "an n-gram that is not UTF-8", data, "FormatError", "n-gram", first + 4)
    data = explicit([("a", 0), ("a", 1)], N + 2)
    yield late("F12", "an n-gram twice", data, "LayoutError", "n-gram", first + 4 + 1 + 8 + 4, "both 'a'")
    for index in (2, 2**63, U64):
        data = explicit([("a", 0), ("b", index)], N + 2)
        yield late("F12", f"index {index}", data, "LayoutError", "index", V)
    data = explicit([("a", 0), ("b", 0)], N + 2)
    storage = ngram_rows([("a", 0), ("b", 0)]) - 12
    yield late("F12", "fewer indices than rows", data, "LayoutError", "rows", storage)
    data = explicit([("a", 0)], N + 3, spec=True)
    storage = ngram_rows([("a", 0)], spec=True) - 12
    yield late("F12", "rows of n-grams, specification", data, "LayoutError", "rows", storage)
    # An n-gram without an index.
    bare = struct.pack("<QQII", N, 1, 1, 3) + ff.strings([*WORDS, "a"])
    data = ff.build([ff.Chunk(8, bare), ff.matrix(normal((N + 1, 2)))])
    yield late("F12", "no indices", data, "LayoutError", "vocabulary", V - 12)
    data = ff.build([ff.Chunk(1, VOCAB.fields + bytes(4)), STORAGE])
    yield late("F5", "words that end too early", data, "LayoutError", "vocabulary", V - 12)
    for name, text, at in (
        ("no TOML", "a =", 0),
        ("not UTF-8", b"a\xff", 1),
        ("a number of 5000 digits", "a = " + "9" * 5000, 0),
        ("lists in lists in lists", "a = " + "[" * 100_000, 0),
        ("tables in tables in tables", ".".join("a" * 129) + " = 1", 0),
        ("a key twice", "a = 1\na = 2", 0),
    ):
        row = "F23" if name in {"no TOML", "not UTF-8"} else "C13"
        yield late(row, f"metadata {name}", built(text), "FormatError", "metadata", 36 + at)
    yield case("C13", "dates", built("day = 2020-01-02\nat = 07:32:00"))


def odd() -> Iterator[Case]:
    """Legal content that `verify` warns about."""
    for row, name, data, words in (
        ("F2", "no list", ff.build([VOCAB, STORAGE], []), "lists other chunks"),
        ("F2", "another list", ff.build([VOCAB, STORAGE], [5, 9, U32]), "lists other chunks"),
        ("F2", "a list of 2000 chunks", ff.build([VOCAB, STORAGE], [1] * 2000), "too many"),
        ("F12", "indices in another order", explicit([("b", 1), ("a", 0)], N + 2), "first appearance"),
        ("F11", "n-grams of other lengths", explicit([("abcd", 0)], N + 1), "shorter than 1 or longer than 3"),
        (
            "F6",
            "no padding",
            ff.build([ff.simple(["x" * 5, "y", "z"]), ff.matrix(MATRIX, padding=b"")]),
            "not aligned",
        ),
        ("F5", "a storage of 2^64 bytes", matrix(length=U64), "its contents take"),
        (
            "F5",
            "a storage without its padding",
            ff.build([VOCAB, ff.matrix(MATRIX, length=16 + 24), NORMS]),
            "its contents take",
        ),
        ("F5", "norms of 0 bytes", ff.build([VOCAB, STORAGE, ff.norms(LENGTHS, length=0)]), "its contents take"),
    ):
        yield case(row, name, data, odd=words)


def legal() -> Iterator[Case]:
    """What looks odd and has to load."""
    yield case("C20", "no words", ff.build([ff.simple([]), ff.matrix(normal((0, 4)))]))
    yield case("C20", "no words, and vectors of 16 GiB", ff.build([ff.simple([]), ff.matrix(normal((0, 4)), cols=U32)]))
    yield case("C7", "no columns", ff.build([VOCAB, ff.matrix(normal((N, 0)))]))
    yield case("C16", "any bits", ff.build([VOCAB, ff.matrix(Tensor("float32", (3, 1), bytes(range(0xF4, 0x100))))]))
    yield case("F7", "an empty word", ff.build([ff.simple(["", "b", "c"]), STORAGE]))
    yield case("F22", "norms alone", ff.build([NORMS]))
