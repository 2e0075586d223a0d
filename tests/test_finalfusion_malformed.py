"""finalfusion files with one lie each: what is wrong, which field says so, and at which byte."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.builders import finalfusion as ff
from tests.builders import normal
from tests.support import DATA, run_child, same

import weightmap as wm
from weightmap.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MALFORMED = DATA / "malformed" / "finalfusion"
WORDS = ["one", "two", "drei"]
N = len(WORDS)
MATRIX, LENGTHS = normal((N, 2), 1), ff.lengths(N)
VOCAB, STORAGE, NORMS = ff.simple(WORDS), ff.matrix(MATRIX), ff.norms(LENGTHS)
TEXT = ff.metadata("a = 1")
PARTS = ff.quantised(N, 2, 3, 2)
LIMIT = 2**32 - 1


def start_of(chunks: list[ff.Chunk], number: int) -> int:
    """Where the payload of a chunk begins in a file of these chunks."""
    return len(ff.build(chunks[:number], [chunk.id for chunk in chunks])) + 12


def use(data: bytes, **options: Any) -> tuple[str, ...]:
    """Open a file and use all of it; the warnings of `verify`."""
    with wm.open(data, **options) as f:
        for name in f:
            np.asarray(f[name]) if f.info(name).dtype != "pq" else f[name].codes.sum()
        words = list(f.vocab or ())
        if words:
            f.vocab.index(words[0])
            if f.vocab.subwords is not None and f.vocab.subwords.ngrams is not None:
                f.vocab.subwords.ngrams()
        dict(f.metadata)
        return f.verify().warnings


# ------------------------------------------------------------------------------------------------- recorded verdicts

# Where finalfusion-python 0.7.1 accepts and this package refuses, or the other way round, and why.
DIFFERENT = {
    "norms_then_trailing_bytes": "nothing may stand behind the last chunk",
    "norms_twice": "nothing may stand behind the last chunk",
    "pq_code_out_of_range": "it fails when the row is read, which `verify` does",
    "pad_0_when_aligned_min_padding": "the length of the chunk tells that there is no padding",
    "pq_pad_minimal": "the length of the chunk tells that there is no padding",
    "nd_type_f64": "every type of the specification is read",
    "bucket_SPEC_field_order": "the specification's order of fields is read",
}
VERDICTS = [line.split("\t")[:2] for line in (MALFORMED / "_results.tsv").read_text("utf-8").splitlines()[1:]]


@pytest.mark.parametrize(("name", "verdict"), VERDICTS, ids=[name for name, _ in VERDICTS])
def test_verdicts_are_those_of_finalfusion_python(name: str, verdict: str) -> None:
    """What finalfusion-python accepts is accepted, what it refuses is a TensorFileError, but for known reasons."""
    try:
        use((MALFORMED / f"{name}.fifu").read_bytes())
        accepted = True
    except wm.TensorFileError:
        accepted = False
    assert (accepted != verdict.startswith("ACCEPT")) == (name in DIFFERENT)


def test_verdicts_cover_the_files() -> None:
    """Every malformed file has a verdict, and every disagreement a file."""
    assert {path.stem for path in MALFORMED.glob("*.fifu")} == {name for name, _ in VERDICTS}
    assert set(DIFFERENT) <= {name for name, _ in VERDICTS}


# ---------------------------------------------------------------------------------------------------- one lie each

V = start_of([VOCAB, STORAGE], 0)
S = start_of([VOCAB, STORAGE], 1)
S3 = start_of([VOCAB, STORAGE, NORMS], 1)
NN = start_of([VOCAB, STORAGE, NORMS], 2)
SOUND = ff.build([VOCAB, STORAGE])
Case = tuple[bytes, type[Exception], str | None, int | None]


def product(**lies: Any) -> bytes:
    """A file with a quantised matrix."""
    return ff.build([VOCAB, ff.product(*PARTS, **lies)])


def hashed(id_: int, min_n: int, max_n: int, last: int, rows: int, **options: Any) -> bytes:
    """A file with buckets."""
    chunk = ff.hashed(id_, WORDS, min_n, max_n, last, **options)
    return ff.build([chunk, ff.matrix(normal((rows, 2)))])


def explicit(pairs: list[tuple[str, int]], rows: int, **lies: Any) -> bytes:
    """A file with n-grams."""
    return ff.build([ff.explicit(WORDS, pairs, 1, 3, **lies), ff.matrix(normal((rows, 2)))])


OPENING: dict[str, Case] = {
    "another version": (ff.build([VOCAB, STORAGE], version=1), wm.UnsupportedError, "version", 4),
    "too many chunks": (ff.build([VOCAB, STORAGE], count=LIMIT), wm.TruncatedError, "n_chunks", 8),
    "nothing but a header": (b"FiFu" + bytes(8), wm.TruncatedError, "chunk", 12),
    "a header cut off": (b"FiFu" + bytes(7), wm.TruncatedError, "header", 11),
    "a chunk of floret": (ff.build([ff.Chunk(9, bytes(30)), STORAGE]), wm.UnsupportedError, "chunk_id", 20),
    "chunk 0": (ff.build([ff.Chunk(0, b""), VOCAB, STORAGE]), wm.UnsupportedError, "chunk_id", 24),
    "an unknown chunk at the end": (
        ff.build([VOCAB, STORAGE, ff.Chunk(77, b"abc")]),
        wm.UnsupportedError,
        "chunk_id",
        NN - 12,
    ),
    "two metadata": (ff.build([TEXT, TEXT, VOCAB, STORAGE]), wm.LayoutError, "chunk_id", 28 + 12 + 5),
    "metadata behind words": (ff.build([VOCAB, TEXT, STORAGE]), wm.LayoutError, "chunk_id", S3 - 12),
    "two vocabularies": (ff.build([VOCAB, VOCAB, STORAGE]), wm.LayoutError, "chunk_id", S3 - 12),
    "two storages": (ff.build([VOCAB, STORAGE, STORAGE]), wm.LayoutError, "chunk_id", NN - 12),
    "norms before the storage": (ff.build([VOCAB, NORMS, STORAGE]), wm.LayoutError, "chunk_id", S3 - 12),
    "no vocabulary": (ff.build([STORAGE]), wm.LayoutError, "chunk_id", 16),
    "no storage": (ff.build([VOCAB]), wm.TruncatedError, "chunk", V - 4 + len(VOCAB.fields)),
    "metadata alone": (ff.build([TEXT]), wm.TruncatedError, "chunk", 16 + 12 + 5),
    "metadata past the end": (ff.build([TEXT, VOCAB, STORAGE])[:40], wm.TruncatedError, "chunk_len", 28),
    "metadata of 2^64 bytes": (
        ff.build([ff.metadata("", length=2**64 - 1), VOCAB, STORAGE]),
        wm.TruncatedError,
        "chunk_len",
        28,
    ),
    # vocabularies
    "2^60 words": (ff.build([ff.simple(WORDS, n=2**60), STORAGE]), wm.TruncatedError, "vocab_len", V),
    "words past the end": (ff.build([ff.simple(WORDS, n=9), STORAGE]), wm.TruncatedError, "vocabulary", None),
    "2^64 - 1 words, specification": (
        hashed(ff.BUCKET, 3, 6, 2, N + 4, spec=True, n=2**64 - 1),
        wm.TruncatedError,
        "vocab_len",
        V + 12,
    ),
    "2^60 n-grams": (explicit([("a", 0)], N + 1, m=2**60), wm.TruncatedError, "n_ngrams", V + 8),
    "2^60 n-grams, specification": (
        explicit([("a", 0)], N + 2, m=2**60, spec=True, length=0),
        wm.TruncatedError,
        "n_ngrams",
        V + 16 + 4 * N + 10,
    ),
    "min_n 0": (hashed(ff.BUCKET, 0, 6, 2, N + 4), wm.FormatError, "min_n", V + 8),
    "max_n below min_n": (hashed(ff.FASTTEXT, 3, 2, 4, N + 4), wm.FormatError, "max_n", V + 12),
    "max_n below min_n, specification": (hashed(ff.BUCKET, 3, 2, 4, 9, spec=True), wm.FormatError, "max_n", V + 4),
    "min_n 0, explicit": (
        ff.build([ff.explicit(WORDS, [("a", 0)], 0, 3), STORAGE]),
        wm.FormatError,
        "min_n",
        V + 16,
    ),
    "exponent 0": (hashed(ff.BUCKET, 3, 6, 0, N + 1), wm.FormatError, "bucket_exp", V + 16),
    "exponent 64": (hashed(ff.BUCKET, 3, 6, 64, N + 1), wm.FormatError, "bucket_exp", V + 16),
    "exponent 2^32 - 1, specification": (
        hashed(ff.BUCKET, 3, 6, LIMIT, N + 1, spec=True),
        wm.FormatError,
        "bucket_exp",
        V + 8,
    ),
    "no buckets": (hashed(ff.FASTTEXT, 3, 6, 0, N), wm.FormatError, "buckets", V + 16),
    # rows
    "a row too few": (ff.build([VOCAB, ff.matrix(normal((N - 1, 2)))]), wm.LayoutError, "rows", S),
    "a row too many": (ff.build([VOCAB, ff.matrix(normal((N + 1, 2)))]), wm.LayoutError, "rows", S),
    "no rows for buckets": (hashed(ff.BUCKET, 3, 6, 2, N), wm.LayoutError, "rows", S + 12),
    "2^63 buckets": (hashed(ff.BUCKET, 3, 6, 63, N), wm.LayoutError, "rows", S + 12),
    "a bucket too few": (hashed(ff.FASTTEXT, 3, 6, 5, N + 4), wm.LayoutError, "rows", S + 12),
    "a row of n-grams too many": (explicit([("a", 0)], N + 2), wm.LayoutError, "rows", None),
    "fewer rows than words": (explicit([("a", 0)], N - 1), wm.LayoutError, "rows", None),
    "quantised rows": (
        ff.build([VOCAB, ff.product(*ff.quantised(N + 1, 2, 3, 2))]),
        wm.LayoutError,
        "rows",
        S + 20,
    ),
    # matrices
    "a type that there is not": (ff.build([VOCAB, ff.matrix(MATRIX, code=12)]), wm.UnsupportedError, "type", S + 12),
    "i128": (ff.build([VOCAB, ff.matrix(MATRIX, code=8)]), wm.UnsupportedError, "type", S + 12),
    "u128": (ff.build([VOCAB, ff.matrix(MATRIX, code=9)]), wm.UnsupportedError, "type", S + 12),
    "2^60 rows": (ff.build([VOCAB, ff.matrix(MATRIX, rows=2**60)]), wm.LayoutError, "shape", S),
    "2^64 - 1 rows of nothing": (
        ff.build([VOCAB, ff.matrix(MATRIX, rows=2**64 - 1, cols=0)]),
        wm.LayoutError,
        "shape",
        S,
    ),
    "2^32 - 1 columns": (ff.build([VOCAB, ff.matrix(MATRIX, cols=LIMIT)]), wm.TruncatedError, "matrix", len(SOUND)),
    "a column less": (ff.build([VOCAB, ff.matrix(MATRIX, cols=1)]), wm.LayoutError, "chunk_len", S - 8),
    "five bytes of padding": (
        ff.build([VOCAB, ff.matrix(MATRIX, padding=bytes(5))]),
        wm.LayoutError,
        "chunk_len",
        S - 8,
    ),
    # product quantisation
    "projection 2": (product(projection=2), wm.FormatError, "projection", S),
    "norms 2": (product(norms=2), wm.FormatError, "norms", S + 4),
    "no codes": (product(quantized_len=0), wm.FormatError, "quantized_len", S + 8),
    "more codes than elements": (product(quantized_len=5), wm.FormatError, "quantized_len", S + 8),
    "codes that do not divide": (product(quantized_len=3), wm.FormatError, "quantized_len", S + 8),
    "no elements": (product(reconstructed_len=0), wm.FormatError, "quantized_len", S + 8),
    "no centroids": (product(n_centroids=0), wm.FormatError, "n_centroids", S + 16),
    "257 centroids": (product(n_centroids=257), wm.FormatError, "n_centroids", S + 16),
    "codes of floats": (product(quantized_type=10), wm.UnsupportedError, "quantized_type", S + 28),
    "doubles": (product(reconstructed_type=11), wm.UnsupportedError, "reconstructed_type", S + 32),
    "a projection of 2^64 bytes": (product(reconstructed_len=LIMIT - 1), wm.LayoutError, "shape", S),
    "a projection of 2^40 bytes": (
        product(reconstructed_len=2**19),
        wm.TruncatedError,
        "quantised matrix",
        len(product()),
    ),
    "2^60 quantised rows": (product(rows=2**60), wm.LayoutError, "shape", S),
    "2^50 quantised rows": (product(rows=2**50), wm.TruncatedError, "quantised matrix", len(product())),
    # norms
    "norms of doubles": (ff.build([VOCAB, STORAGE, ff.norms(LENGTHS, code=11)]), wm.UnsupportedError, "type", NN + 8),
    "a norm too few": (ff.build([VOCAB, STORAGE, ff.norms(ff.lengths(2))]), wm.LayoutError, "n_norms", NN),
    "2^62 norms": (ff.build([VOCAB, STORAGE, ff.norms(LENGTHS, count=2**62)]), wm.LayoutError, "n_norms", NN),
    "2^62 norms alone": (ff.build([ff.norms(LENGTHS, count=2**62)]), wm.LayoutError, "shape", 28),
    "norms twice": (ff.build([VOCAB, STORAGE, NORMS, NORMS]), wm.LayoutError, "chunk_id", None),
    "norms cut off": (ff.build([VOCAB, STORAGE, NORMS])[:-1], wm.TruncatedError, "norms", None),
    "a chunk header cut off": (ff.build([VOCAB, STORAGE, NORMS])[: NN - 1], wm.TruncatedError, "chunk", NN - 1),
    # the end
    "a byte more": (SOUND + b"\0", wm.LayoutError, "size", len(SOUND)),
    "bytes behind norms": (ff.build([VOCAB, STORAGE, NORMS]) + b"more", wm.LayoutError, "size", None),
    "two files": (SOUND * 2, wm.LayoutError, "size", len(SOUND)),
}


@pytest.mark.parametrize("case", OPENING)
def test_lies_that_opening_finds(case: str) -> None:
    """The very class of error, the field and the byte; without building anything of the declared size, at once."""
    data, error, field, offset = OPENING[case]
    wm.open(SOUND).close()
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        with pytest.raises(wm.TensorFileError) as caught:
            wm.open(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error
    assert caught.value.field == field
    if offset is not None:
        assert caught.value.offset == offset
    assert caught.value.format == "finalfusion"
    assert peak < 2 << 20
    assert time.perf_counter() - begin < 0.5


# An n-gram without an index.
BARE = struct.pack("<QQII", N, 1, 1, 3) + ff.strings([*WORDS, "a"])
LATER: dict[str, Case] = {
    "a word twice": (ff.build([ff.simple(["a", "b", "a"]), STORAGE]), wm.LayoutError, "word", 20 + 12 + 8 + 14),
    "a word that is not UTF-8": (ff.build([ff.simple([b"\xff", "b", "c"]), STORAGE]), wm.FormatError, "word", None),
    "an n-gram twice": (explicit([("a", 0), ("a", 1)], N + 2), wm.LayoutError, "n-gram", None),
    "an index beyond": (explicit([("a", 0), ("b", 2)], N + 2), wm.LayoutError, "index", V),
    "an index of 2^63": (explicit([("a", 0), ("b", 2**63)], N + 2), wm.LayoutError, "index", V),
    "fewer indices than rows": (explicit([("a", 0), ("b", 0)], N + 2), wm.LayoutError, "rows", None),
    "an n-gram that is not UTF-8": (explicit([("a", 0)], N + 1).replace(b"a", b"\xff"), wm.FormatError, "n-gram", None),
    "rows of n-grams, specification": (explicit([("a", 0)], N + 3, spec=True), wm.LayoutError, "rows", None),
    "no indices": (ff.build([ff.Chunk(8, BARE), ff.matrix(normal((N + 1, 2)))]), wm.LayoutError, "vocabulary", V - 12),
    "words that end too early": (
        ff.build([ff.Chunk(1, VOCAB.fields + bytes(4)), STORAGE]),
        wm.LayoutError,
        "vocabulary",
        V - 12,
    ),
    "a code that is too large": (
        ff.build([VOCAB, ff.product(PARTS[0] * 0 + 3, *PARTS[1:])]),
        wm.QuantError,
        "codes",
        len(product()) - 2 * N,
    ),
    "padding that is not zero": (
        ff.build([VOCAB, ff.matrix(MATRIX, padding=b"\0\1")]),
        wm.LayoutError,
        "padding",
        S + 16,
    ),
    "metadata that is not TOML": (ff.build([ff.metadata("a ="), VOCAB, STORAGE]), wm.FormatError, "metadata", 36),
    "metadata that is not UTF-8": (ff.build([ff.metadata(b"a\xff"), VOCAB, STORAGE]), wm.FormatError, "metadata", 37),
    "a number of 5000 digits": (
        ff.build([ff.metadata("a = " + "9" * 5000), VOCAB, STORAGE]),
        wm.FormatError,
        "metadata",
        36,
    ),
    "lists in lists in lists": (
        ff.build([ff.metadata("a = " + "[" * 100_000), VOCAB, STORAGE]),
        wm.FormatError,
        "metadata",
        36,
    ),
    "tables in tables in tables": (
        ff.build([ff.metadata(".".join("a" * 101) + " = 1"), VOCAB, STORAGE]),
        wm.FormatError,
        "metadata",
        36,
    ),
    "a key twice": (ff.build([ff.metadata("a = 1\na = 2"), VOCAB, STORAGE]), wm.FormatError, "metadata", 36),
}


@pytest.mark.parametrize("case", LATER)
def test_lies_that_are_found_when_they_matter(case: str) -> None:
    """What opening leaves unread is found by `verify`, with the same error as at its first use."""
    data, error, field, offset = LATER[case]
    for options in ({}, {"verify": "full"}):
        with pytest.raises(wm.TensorFileError) as caught:
            wm.open(data, **options).verify()
        assert type(caught.value) is error
        assert caught.value.field == field
        if offset is not None:
            assert caught.value.offset == offset
        assert caught.value.format == "finalfusion"
        assert caught.value.path == "<bytes>"


def test_repeated_words_are_found_by_looking_one_up() -> None:
    """The first look-up, which builds the index, refuses a word that is there twice, and so does every later one."""
    with wm.open(LATER["a word twice"][0]) as f:
        assert list(f.vocab) == ["a", "b", "a"]
        for _ in range(2):
            with pytest.raises(wm.LayoutError, match="words 0 and 2 are both 'a'"):
                f.vocab.index("b")


def test_damaged_ngrams_do_no_harm_to_words() -> None:
    """Indices matter to n-grams alone: words are found all the same, and the error of the n-grams names the file."""
    with wm.open(LATER["an index beyond"][0]) as f:
        assert f.vocab.index("two") == 1
        with pytest.raises(wm.LayoutError) as caught:
            f.vocab.subwords.ngrams()
        assert caught.value.path == "<bytes>"


def test_any_number_of_rows_without_columns_allocates_nothing() -> None:
    """An explicit vocabulary in the specification's order cannot bound the rows: they are compared, not allocated."""
    chunk = ff.explicit(WORDS, [("a", 0)], 1, 3, spec=True)
    with wm.open(ff.build([chunk, ff.matrix(normal((0, 0)), rows=2**60, cols=0)])) as f:
        assert f["embeddings"].shape == (2**60, 0)
        with pytest.raises(wm.LayoutError) as caught:
            f.vocab.subwords.ngrams()
        assert caught.value.field == "rows"


# ------------------------------------------------------------------------------------------------- odd, and let pass

ODD: dict[str, tuple[bytes, str]] = {
    "no list": (ff.build([VOCAB, STORAGE], []), "lists other chunks"),
    "another list": (ff.build([VOCAB, STORAGE], [5, 9, LIMIT]), "lists other chunks"),
    "a long list": (ff.build([VOCAB, STORAGE], [1] * 2000), "too many"),
    "permuted indices": (explicit([("b", 1), ("a", 0)], N + 2), "first appearance"),
    "n-grams of other lengths": (explicit([("abcd", 0)], N + 1), "shorter than 1 or longer than 3"),
    "no padding": (ff.build([ff.simple(["x" * 5, "y", "z"]), ff.matrix(MATRIX, padding=b"")]), "not aligned"),
    "a NaN among norms": (
        ff.build([VOCAB, STORAGE, ff.norms(ff.Tensor("float32", (3,), struct.pack("<3f", 1, float("nan"), -1)))]),
        "2 norms are NaN",
    ),
    "a storage of 2^64 bytes": (ff.build([VOCAB, ff.matrix(MATRIX, length=2**64 - 1)]), "its contents take"),
    "a storage without its padding": (
        ff.build([VOCAB, ff.matrix(MATRIX, length=16 + 24), NORMS]),
        "its contents take",
    ),
    "norms of 0 bytes": (ff.build([VOCAB, STORAGE, ff.norms(LENGTHS, length=0)]), "its contents take"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_odd_and_legal_is_a_warning(case: str) -> None:
    """The file opens to its right content, and `verify` has one warning."""
    data, words = ODD[case]
    [warning] = use(data)
    assert words in warning
    if "n-grams" not in case and "indices" not in case:
        assert same(wm.load(data)["embeddings"], MATRIX)


LAX: dict[str, tuple[bytes, str]] = {
    "trailing bytes": (SOUND + b"more", "trailing"),
    "an unknown chunk": (ff.build([ff.Chunk(9, bytes(30)), VOCAB, STORAGE]), "stepped over"),
    "an unknown chunk in between": (ff.build([VOCAB, ff.Chunk(9, bytes(30)), STORAGE]), "stepped over"),
    "an unknown chunk behind": (ff.build([VOCAB, STORAGE, ff.Chunk(9, bytes(30))]), "stepped over"),
    "no vocabulary": (ff.build([STORAGE]), "before any vocabulary"),
    "padding": (LATER["padding that is not zero"][0], "not zero"),
    "a word twice": (LATER["a word twice"][0], "both 'a'"),
}


@pytest.mark.parametrize("case", LAX)
def test_strict_false_lets_harmless_defects_pass(case: str) -> None:
    """What is an error becomes a warning, and the matrix is what it is."""
    data, words = LAX[case]
    with pytest.raises(wm.FormatError):
        use(data)
    assert any(words in warning for warning in use(data, strict=False))
    assert same(wm.load(data, strict=False)["embeddings"], MATRIX)


@pytest.mark.parametrize("case", [case for case in OPENING if "words" not in case and "chunk" not in case])
def test_strict_false_is_not_careless(case: str) -> None:
    """Everything else is refused as before, or opens to what can be used without another kind of error."""
    with contextlib.suppress(wm.TensorFileError):
        use(OPENING[case][0], strict=False)


# ------------------------------------------------------------------------------------------------- at every byte

PAIRS = [("a", 0), ("b", 1)]
CHUNKS = [ff.metadata("a = 1"), ff.explicit(WORDS, PAIRS, 1, 3), ff.product(*ff.quantised(N + 2, 2, 3, 2)), NORMS]
FULL = ff.build(CHUNKS)
SUBWORDS = {
    "quantised": FULL,
    "fastText": ff.build([ff.hashed(ff.FASTTEXT, WORDS, 3, 6, 2), ff.matrix(normal((N + 2, 1))), NORMS]),
    "specification": ff.build([ff.explicit(WORDS, PAIRS, 1, 3, spec=True), ff.matrix(normal((N + 2, 1)))]),
}
INTERESTING = (0, 1, 2**31 - 1, 2**31 + 1, LIMIT, 2**60, 2**63 - 1, 2**63, 2**64 - 1)


def survives(data: bytes) -> bool:
    """Whether a file opens and can be used; anything but a TensorFileError, when it cannot, fails the test."""
    try:
        use(data)
        with wm.open(data, strict=False) as f:
            list(f.vocab or ())
    except wm.TensorFileError:
        return False
    return True


@pytest.mark.parametrize("case", SUBWORDS)
def test_any_number_may_stand_at_any_byte(case: str) -> None:
    """With 4 or 8 bytes replaced at any place, a file opens and works or raises a TensorFileError."""
    data = SUBWORDS[case]
    assert survives(data)
    outcomes = set()
    for place in range(len(data)):
        for value in INTERESTING:
            width = 4 if value <= LIMIT else 8
            lie = data[:place] + value.to_bytes(width, "little") + data[place + width :]
            outcomes.add(survives(lie[: len(data)]))
    assert outcomes == {True, False}


def test_every_truncation_of_a_quantised_file_is_refused() -> None:
    """But for the one that takes the norms away as a whole."""
    whole = [size for size in range(len(FULL)) if survives(FULL[:size])]
    assert whole == [start_of(CHUNKS, 3) - 12]


# ------------------------------------------------------------------------------------------------------ and the rest


def test_dates_in_metadata_are_kept_and_shown(put: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Dates and times are objects; the command line prints them as texts, also as JSON."""
    path = put(ff.build([ff.metadata("day = 2020-01-02\nat = 07:32:00"), VOCAB, STORAGE]), "t.fifu")
    with wm.open(path) as f:
        assert f.metadata["day"].year == 2020
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["day"] == "2020-01-02"


def test_a_file_that_changed_is_noticed_by_verify(put: Callable[..., Path]) -> None:
    """Chunks that are not those of the opening are refused, though size and time are the same."""
    path = put(ff.build([VOCAB, STORAGE]))
    with wm.open(path) as f:
        status = path.stat()
        with path.open("r+b") as file:
            file.seek(S + 8)
            file.write(struct.pack("<II", 4, 3))  # four columns of i16
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(wm.LayoutError, match="changed"):
            f.verify()


def test_absurd_files_take_no_memory(put: Callable[..., Path]) -> None:
    """Every lie is told within half a gigabyte of address space, in a process that has no more."""
    paths = [put(data, f"{i}.fifu") for i, (data, *_) in enumerate(OPENING.values())]
    code = """
import resource, sys, weightmap as wm
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
for path in sys.argv[1:]:
    try:
        wm.open(path)
    except wm.TensorFileError:
        continue
    raise SystemExit(path)
print("fine")
"""
    assert run_child(code, *paths, env={"OPENBLAS_NUM_THREADS": "1"}).stdout.strip() == "fine"


def test_a_bad_code_is_located_when_it_is_read(tmp_path):
    """A code that stands for nothing, met while rows are decoded, is told with its file and its place there."""
    codes = PARTS[0].copy()
    codes[N - 1, 1] = 3
    data = ff.build([VOCAB, ff.product(codes, *PARTS[1:])])
    path = tmp_path / "bad.fifu"
    path.write_bytes(data)
    with wm.open(path) as f:
        matrix, embeddings = f["embeddings"], f.embeddings
        word = f.vocab[N - 1]
        for read in (
            lambda: matrix[N - 1],
            matrix.dequantize,
            lambda: f.read("embeddings"),
            lambda: embeddings[word],
            lambda: embeddings.batch([word]),
            lambda: embeddings.most_similar(np.ones(embeddings.dims)),
        ):
            with pytest.raises(wm.QuantError, match=f"code 1 of row {N - 1}") as caught:
                read()
            error = caught.value
            assert (error.path, error.format, error.field, error.offset) == (
                str(path),
                "finalfusion",
                "codes",
                len(data) - 1,
            )
