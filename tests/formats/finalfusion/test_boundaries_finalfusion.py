"""Bounds of finalfusion files, exactly: counts, lengths of chunks, padding, rows, codes, norms."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from tests.bounds_support import around, error_of, refused, warnings_of
from tests.builders import Tensor, noise, normal
from tests.builders import finalfusion as ff

import weightmap as wm
from weightmap.formats.finalfusion import layout as chunk
from weightmap.formats.finalfusion import vocabulary as strings
from weightmap.formats.finalfusion.verify import numbered

WORDS = ["one", "two", "drei"]
N = len(WORDS)
MATRIX = normal((N, 2), 1)
SEVENTH = (2**63 - 1) // 7  # 2^63 - 1 is seven times that
PAIRS = [("on", 0), ("one", 1), ("tw", 2), ("ei", 0)]


def matrix(rows: int, cols: int = 2) -> ff.Chunk:
    """A matrix of so many rows."""
    return ff.matrix(normal((rows, cols)))


# --------------------------------------------------------------------------------------------- header and chunk list


def test_files_that_end_within_the_header():
    """Any beginning of the header is a TruncatedError; behind it, the error names the missing parts."""
    data = ff.build([])
    for size in range(1, 13):
        error = refused(data[:size], format="finalfusion")
        assert type(error) is wm.TruncatedError
        assert (error.field, error.offset) == ("header" if size < 12 else "chunk", size)


def test_chunks_around_the_first_4096_bytes():
    """What opening has read already, it reads no further than that goes, wherever a chunk begins or ends."""
    for size in range(4010, 4090):
        data = ff.build([ff.metadata("#".ljust(size)), ff.simple(WORDS), ff.matrix(MATRIX)])
        with wm.open(data) as f:
            assert [array.tobytes() for array in f.values()] == [MATRIX.data], size
            assert list(f.vocab) == WORDS, size


@pytest.mark.parametrize("count", range(6))
def test_chunks_that_the_header_may_list(count):
    """The list of chunks lies within the file: as many as there is room for, and one more is an error."""
    data = bytearray(ff.build([], [1, 2, 3]))  # twelve bytes
    struct.pack_into("<I", data, 8, count)
    error = refused(bytes(data))
    assert (error.field == "n_chunks") == (count > 3)
    assert count <= 3 or (error.actual, error.expected) == (count, "at most 3, given the bytes that follow")


@pytest.mark.parametrize("part", [ff.simple(WORDS), matrix(N), ff.metadata("a = 1")], ids=lambda part: str(part.id))
def test_a_single_chunk_is_a_file(part):
    """Of any kind, where the header lists it and no other; else the file is one that was cut off."""
    data = ff.build([part])
    assert error_of(data) is None
    assert warnings_of(data) == ()
    for listed in ([], [part.id, 6], [part.id + 1], [part.id] * 65):
        error = error_of(ff.build([part], listed))
        assert type(error) in {wm.LayoutError, wm.TruncatedError}
        assert error.field in {"chunk_id", "chunk"}
    two = error_of(ff.build([ff.metadata("a = 1"), ff.simple(WORDS)]))
    assert type(two) is wm.TruncatedError


@pytest.mark.parametrize("listed", [[ff.NORMS], [], [ff.NORMS, 9], [ff.NORMS] * 65])
def test_norms_alone_are_a_file(listed):
    """Whatever the header lists: they come last, so nothing was cut off."""
    assert error_of(ff.build([ff.norms(ff.lengths(N))], listed)) is None


@pytest.mark.parametrize("count", [63, 64, 65])
def test_a_list_of_chunks_that_is_one(count):
    """Up to 64 listed chunks that are missing are reported; a longer list is ignored."""
    found = warnings_of(ff.build([ff.simple(WORDS), matrix(N)], [9] * count))
    words = "too many" if count > 64 else ", ".join(["9"] * count)
    assert found == (f"the header lists other chunks ({words}) than there are (1 simple vocabulary, 2 matrix)",)


@pytest.mark.parametrize("size", range(14))
def test_what_stands_behind_the_last_chunk(size):
    """Bytes behind the matrix are trailing bytes, or a chunk that is cut off where they begin as one of norms does."""
    whole = ff.build([ff.simple(WORDS), matrix(N)])
    for tail in (b"\xff" * 14, ff.norms(ff.lengths(N)).at(0)):
        error = error_of(whole + tail[:size])
        if size == 0:
            assert error is None
        elif tail[:1] == b"\xff":
            assert (type(error), error.field) == (wm.LayoutError, "size")
        else:
            assert type(error) is wm.TruncatedError
            assert error.field == ("chunk" if size < 12 else "norms")
    assert type(error_of(whole + bytes(size))) is (wm.LayoutError if size else type(None))


@pytest.mark.parametrize("id_", [ff.SIMPLE, ff.MATRIX, ff.METADATA, ff.NORMS, 99])
def test_the_header_of_a_chunk_that_ends_the_file(id_):
    """Twelve bytes behind the matrix that begin a known chunk are one in the wrong place, or cut off."""
    error = refused(ff.build([ff.simple(WORDS), matrix(N)]) + struct.pack("<IQ", id_, 0))
    assert error.field == {ff.NORMS: "norms"}.get(id_, "chunk_id")


@pytest.mark.parametrize("difference", [-1, 0, 1])
def test_an_unknown_chunk_behind_the_matrix(difference):
    """Bytes that begin like a chunk that fits the file are an unknown chunk; others are trailing bytes."""
    tail = struct.pack("<IQ", 99, 5 + difference) + bytes(5)
    error = refused(ff.build([ff.simple(WORDS), matrix(N)]) + tail)
    assert error.field == ("size" if difference > 0 else "chunk_id")


@pytest.mark.parametrize("difference", [-1, 0, 1])
def test_stepping_over_an_unknown_chunk(difference):
    """With ``strict=False`` an unknown chunk is stepped over, as far as the file goes."""
    data = ff.build([]) + struct.pack("<IQ", 99, 5 + difference) + bytes(5)
    error = error_of(data, strict=False)
    if difference == 0:
        assert error is None
    else:
        assert type(error) is wm.TruncatedError
        # Of one that is too short, a byte is left over, which begins another one.
        assert error.field == ("chunk_len" if difference > 0 else "chunk")
        assert difference < 0 or (error.actual, error.expected) == (6, "at most 5, given the bytes that follow")


@pytest.mark.parametrize("difference", [-1, 0, 1])
def test_metadata_ends_with_the_file(difference):
    """The metadata may take what is left of the file, and not a byte more."""
    data = ff.build([ff.metadata("a = 1", length=5 + difference)], [ff.METADATA, ff.SIMPLE])
    error = refused(data)
    assert (error.field == "chunk_len") == (difference > 0)


# -------------------------------------------------------------------------------------------------------- vocabularies


def vocabulary(kind: str, words: list[str] = WORDS, **lies: Any) -> tuple[ff.Chunk, int]:
    """A vocabulary of one of the kinds, and the rows that it calls for."""
    if kind == "simple":
        return ff.simple(words, **lies), len(words)
    spec = kind.endswith("spec")
    if kind.startswith("explicit"):
        pairs = [("on", 0), ("one", 1), ("tw", 2)] if spec else PAIRS
        return ff.explicit(words, pairs, 1, 3, spec=spec, **lies), len(words) + 3
    if kind.startswith("bucket"):
        return ff.hashed(ff.BUCKET, words, 1, 3, 2, spec=spec, **lies), len(words) + 4
    return ff.hashed(ff.FASTTEXT, words, 1, 3, 5, spec=spec, **lies), len(words) + 5


KINDS = ["simple", "explicit", "explicit-spec", "bucket", "bucket-spec", "fasttext", "fasttext-spec"]
FIELDS = {"simple": 8, "explicit": 24, "explicit-spec": 16}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_end_within_a_vocabulary(kind):
    """Wherever a file ends within a vocabulary, the error says what is cut off, and how long the file has to be."""
    part, _ = vocabulary(kind)
    whole = ff.build([part])
    fields = FIELDS.get(kind, 20)
    for size in range(16, len(whole)):
        error = refused(whole[:size], format="finalfusion")
        assert type(error) is wm.TruncatedError, size
        if size < 16 + 12:
            assert error.field == "chunk"
            assert error.expected == ("at least 28 bytes" if size > 16 else None)
        elif size < 28 + fields:
            # The second half of the first number distinguishes the orders of the fields.
            assert error.field == "vocabulary"
            assert "within the fields" in str(error)
            assert str(28 + fields) in str(error.expected) or kind.endswith("spec")
        else:
            assert error.field in {"vocabulary", "vocab_len", "n_ngrams"}, size
            assert "within the fields" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_words_that_there_is_room_for(kind):
    """A word takes four bytes: where there is room for their number, the first that is missing is named."""
    part, _ = vocabulary(kind)
    left = len(part.fields) - FIELDS.get(kind, 20)
    for n in around(left // 4):
        error = refused(ff.build([vocabulary(kind, n=n)[0]]))
        assert type(error) is wm.TruncatedError
        assert (error.field == "vocab_len") == (n > left // 4)
        assert n <= left // 4 or error.expected == f"at most {left // 4}, given the bytes that follow"


def test_ngrams_that_there_is_room_for():
    """An n-gram takes twelve bytes with its index and four without: of more than that, the number is refused."""
    part, _ = vocabulary("explicit")
    left = len(part.fields) - 24
    for m in around(left // 12):
        error = refused(ff.build([vocabulary("explicit", m=m)[0]], []))
        assert (error.field == "n_ngrams") == (m > left // 12)
    left = len(ff.strings(text for text, _ in PAIRS[:3]))
    for m in around(left // 4):
        error = refused(ff.build([vocabulary("explicit-spec", m=m)[0]], []))
        assert (error.field == "n_ngrams") == (m > left // 4)


@pytest.mark.parametrize(("min_n", "max_n", "field"), [(0, 3, "min_n"), (1, 1, None), (2, 1, "max_n"), (3, 3, None)])
@pytest.mark.parametrize("spec", [False, True])
def test_lengths_of_ngrams(min_n, max_n, field, spec):
    """min_n is 1 or more, and max_n is not below it."""
    vocab = ff.hashed(ff.FASTTEXT, WORDS, min_n, max_n, 2, spec=spec)
    error = error_of(ff.build([vocab, matrix(N + 2)]))
    assert (error and error.field) == field


@pytest.mark.parametrize("exponent", [0, 1, 2, 62, 63, 64])
def test_exponents_of_buckets(exponent):
    """From 1 to 63."""
    vocab = ff.hashed(ff.BUCKET, WORDS, 1, 2, exponent)
    empty = Tensor("float32", (0, 0), b"")
    error = error_of(ff.build([vocab, ff.matrix(empty, rows=min(N + 2**exponent, 2**63 + 3), cols=0)]))
    if 1 <= exponent <= 61:
        assert error is None
    elif exponent in {62, 63}:  # numpy counts no matrix of as many rows
        assert error is not None
        assert error.field == "shape"
    else:
        assert error is not None
        assert (error.field, error.actual, error.expected) == ("bucket_exp", exponent, "1 to 63")


@pytest.mark.parametrize("buckets", [0, 1, 2])
def test_buckets_of_fasttext(buckets):
    """One or more."""
    vocab = ff.hashed(ff.FASTTEXT, WORDS, 1, 2, buckets)
    error = error_of(ff.build([vocab, matrix(N + buckets)]))
    assert (error and error.field) == (None if buckets else "buckets")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_a_vocabulary_calls_for(kind):
    """Words and buckets or n-grams have a row each: one less or more is an error with the expected number."""
    part, right = vocabulary(kind)
    reasons = {
        "simple": "3: 3 words",
        "explicit": "3 to 7: 3 words and at most 4 n-grams",
        "explicit-spec": None,
        "bucket": "7: 3 words and 4 buckets",
        "fasttext": "8: 3 words and 5 buckets",
    }
    reason = reasons.get(kind, reasons[kind.partition("-")[0]])
    least, most = (
        (N, N + len(PAIRS)) if kind == "explicit" else (N, 10**9) if kind == "explicit-spec" else (right, right)
    )
    for rows in {*around(right), *around(least), *around(min(most, 10))}:
        error = error_of(ff.build([part, matrix(rows)]))
        if least <= rows <= most:
            assert error is None, rows
            continue
        assert error is not None
        assert (type(error), error.field, error.actual) == (wm.LayoutError, "rows", rows)
        # Where its number of n-grams stands behind the words, the file alone can tell how many rows there may be.
        assert error.expected == (reason or f"{N} to {rows}: 3 words and its n-grams")


@pytest.mark.parametrize("kind", ["explicit", "explicit-spec"])
def test_indices_of_ngrams(kind):
    """Each index is that of a row behind the words, and each such row is that of an n-gram."""
    part, right = vocabulary(kind)
    for rows in around(right):
        f = wm.open(memoryview(ff.build([part, matrix(rows)])))
        if rows == right:
            assert len(f.vocab.subwords.ngrams()[0]) == (3 if kind.endswith("spec") else 4)
            continue
        with pytest.raises(wm.LayoutError) as caught:
            f.vocab.subwords.ngrams()
        assert (caught.value.field, caught.value.actual) == (("index", 2) if rows < right else ("rows", rows))


@pytest.mark.parametrize("kind", KINDS)
def test_strings_that_run_past_their_vocabulary(kind):
    """A vocabulary that its length ends before a string does is refused when it is used, and the string is numbered."""
    part, rows = vocabulary(kind)
    file = ff.build([part, matrix(rows)])
    start = 12 + 8 + 12 + FIELDS.get(kind, 20)
    texts = list(WORDS)
    ngrams = [text for text, _ in (PAIRS if kind == "explicit" else PAIRS[:3])] if "explicit" in kind else []
    at = start
    for number, text in enumerate(texts):
        broken = bytearray(file)
        struct.pack_into("<I", broken, at, len(file))
        with pytest.raises(wm.LayoutError, match=f"word {number} of {N} runs past it"):
            wm.open(memoryview(bytes(broken))).vocab.index("one")
        at += 4 + len(text)
    at += 8 if kind == "explicit-spec" else 0
    for number, text in enumerate(ngrams):
        broken = bytearray(file)
        struct.pack_into("<I", broken, at, len(file))
        with pytest.raises(wm.LayoutError, match=f"n-gram {number} of {len(ngrams)} runs past it"):
            wm.open(memoryview(bytes(broken))).vocab.index("one")
        with pytest.raises(wm.LayoutError, match=f"n-gram {number} of {len(ngrams)} runs past it"):
            wm.open(memoryview(bytes(broken))).vocab.subwords.ngrams()
        at += 4 + len(text) + (0 if kind == "explicit-spec" else 8)
    # One string a byte shorter than it is: the last one does not end where the vocabulary does.
    if kind == "simple":
        broken = bytearray(file)
        struct.pack_into("<I", broken, at - 8, 3)
        with pytest.raises(wm.LayoutError, match="end at byte"):
            wm.open(memoryview(bytes(broken))).vocab.index("one")


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_repeated_words_are_counted(repeats):
    """The error for a word that is repeated says of how many more that is so."""
    words = [f"w{i}" for i in range(4)] + [f"w{i}" for i in range(repeats)]
    f = wm.open(memoryview(ff.build([ff.simple(words), matrix(len(words))])))
    with pytest.raises(wm.LayoutError) as caught:
        f.vocab.index("w0")
    more = "" if repeats == 1 else f", and {repeats - 1} more are repeated"
    assert f"words 0 and 4 are both 'w0'{more}: words must be unique" in str(caught.value)


@pytest.mark.parametrize("piece", [4, 5, 7, 8, 16, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_words_longer_than_a_read(monkeypatch, piece, kind):
    """However little is read at once, a vocabulary without a matrix behind it ends where its last string does."""
    monkeypatch.setattr(chunk, "_PIECE", piece)
    words = ["a" * n for n in (0, 1, 3, 4, 5, 11, 12, 13, 20)]
    part, _ = vocabulary(kind, words)
    whole = ff.build([part])
    with wm.open(memoryview(whole), strict=False) as f:
        assert list(f.vocab) == words
    for cut in (1, 2, 3, 4, 5):
        error = refused(whole[:-cut], strict=False)
        assert type(error) is wm.TruncatedError
        assert error.field in {"vocabulary", "n_ngrams"}
    # A length of a chunk that leads nowhere is no matter, where the words can be walked.
    lied, rows = vocabulary(kind, words, length=3)
    with wm.open(memoryview(ff.build([lied, matrix(rows)]))) as f:
        assert list(f.vocab) == words
        assert len(f.verify().warnings) == 1


@pytest.mark.parametrize("left", range(40))
def test_a_length_that_leads_to_no_matrix(left):
    """The length of a vocabulary is believed where a whole matrix begins, and not near the end of the file."""
    part, rows = vocabulary("simple")
    whole = ff.build([part, matrix(rows)])
    lied = vocabulary("simple", length=len(whole) - left - 32)[0]  # the payload begins at byte 32
    with wm.open(memoryview(ff.build([lied, matrix(rows)], [1, 2]))) as f:
        assert list(f.vocab) == WORDS


@pytest.mark.parametrize("kind", ["simple", "explicit"])
def test_strings_that_positions_count(monkeypatch, kind):
    """A vocabulary as large as positions can count is read, and a larger one refused; here they count to few."""
    part, rows = vocabulary(kind)
    size = len(part.fields) - FIELDS[kind]
    file = ff.build([part, matrix(rows)])
    for most in (size - 1, size):
        monkeypatch.setattr(strings, "MAX_STRINGS", most)
        with wm.open(memoryview(file)) as f:
            if most == size:
                assert list(f.vocab) == WORDS
                continue
            with pytest.raises(wm.UnsupportedError) as caught:
                list(f.vocab)
        assert (caught.value.actual, caught.value.expected) == (size, f"at most {most}, which this library can address")


@pytest.mark.parametrize("place", range(N))
def test_words_that_are_not_utf_8(place):
    """`verify` finds a word that is not UTF-8, at the beginning and at the end."""
    words: list[Any] = list(WORDS)
    words[place] = b"\xff"
    with (
        wm.open(memoryview(ff.build([ff.simple(words), matrix(N)]))) as f,
        pytest.raises(wm.FormatError, match="UTF-8"),
    ):
        f.verify()


@pytest.mark.parametrize("size", range(9))
def test_a_vocabulary_that_ends_within_a_count(size):
    """A vocabulary that its length ends within the number of n-grams is refused when it is used."""
    part = ff.Chunk(ff.EXPLICIT, struct.pack("<IIQ", 1, 3, N) + ff.strings(WORDS) + bytes(size))
    with wm.open(memoryview(ff.build([part, matrix(N)]))) as f:
        if size == 8:
            assert list(f.vocab) == WORDS
            return
        with pytest.raises(wm.LayoutError, match="the number of n-grams runs past it"):
            list(f.vocab)


def test_a_vocabulary_of_ngrams_alone():
    """There may be n-grams and no words."""
    for kind in ("explicit", "explicit-spec"):
        part, rows = vocabulary(kind, [])
        with wm.open(memoryview(ff.build([part, matrix(rows)]))) as f:
            assert list(f.vocab) == []
            assert len(f.vocab.subwords.ngrams()[0]) == (3 if kind.endswith("spec") else 4)


def test_a_count_of_ngrams_that_ends_the_file():
    """The number of n-grams may be the last of the file, where there are none, and no matrix."""
    part = ff.explicit(WORDS, [], 1, 3, spec=True)
    with wm.open(memoryview(ff.build([part])), strict=False) as f:
        assert list(f.vocab) == WORDS
    error = refused(ff.build([part])[:-1], strict=False)
    assert (type(error), error.field) == (wm.TruncatedError, "n_ngrams")


def test_a_matrix_that_would_begin_within_the_fields():
    """A vocabulary does not end before its words begin, even by a byte with which a matrix might begin."""
    fields = struct.pack("<QQII", 0, 0, 1, 2 << 24)  # the last byte is that of a matrix's id
    part = ff.matrix(Tensor("float32", (0, 2), b"")).at(12 + 12 + len(fields) - 1)
    error = refused(ff.build([], []) + struct.pack("<IQ", ff.EXPLICIT, len(fields) - 1) + fields + part[1:])
    assert isinstance(error, wm.FormatError)


def test_a_vocabulary_without_the_bytes_of_its_words():
    """A length that leads to a matrix at once is believed; reading the words then finds that there are none."""
    lied = ff.Chunk(ff.SIMPLE, struct.pack("<Q", N))
    file = ff.build([lied, matrix(N)])
    with wm.open(memoryview(file)) as f, pytest.raises(wm.LayoutError, match="word 0 of 3 runs past it"):
        list(f.vocab)
    with wm.open(memoryview(ff.build([ff.simple([]), matrix(0)]))) as f:
        assert list(f.vocab) == []


# ------------------------------------------------------------------------------------------------------------- storage


def outcome(part: ff.Chunk, tail: bytes = b"") -> tuple[str, Any]:
    """The outcome of a file of words and this chunk: "right" or "odd" with its data, or the field of an error."""
    data = ff.build([ff.simple(WORDS), part], [1, part.id]) + tail
    try:
        with wm.open(memoryview(data)) as f:
            [name] = f
            found = f.verify().warnings
            odd = [text for text in found if "chunk is" in text]
            return ("odd" if odd else "right"), np.asarray(f[name]).tobytes() == part.data
    except wm.TensorFileError as error:
        return type(error).__name__, error.field


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_padding_and_lengths_of_a_matrix(dtype):
    """Padding is up to four bytes or an element, as the length says; usual padding makes up for a wrong length."""
    value = noise(dtype, (N, 2)) if dtype != "float32" else MATRIX
    width = value.array.itemsize
    plain = ff.matrix(value)
    start = 12 + 8 + len(ff.simple(WORDS).fields) + 12 + 12 + 16
    usual = width - start % width
    most = max(4, width)
    for padding in range(most + 4):
        found = outcome(ff.matrix(value, padding=bytes(padding)))
        if padding <= most:
            assert found == ("right", True), padding
        else:
            assert found == ("LayoutError", "chunk_len"), padding
    true = len(plain.fields) + usual + len(value.data)
    for lie in range(-8, 9):
        found = outcome(ff.matrix(value, length=true + lie))
        if lie == 0:
            assert found == ("right", True)
        elif not 0 <= usual + lie <= most or lie < 0:
            assert found == ("odd", True), lie
        else:  # the file is cut off by so many bytes, or its padding is not the usual one
            assert found[0] in {"TruncatedError", "odd"}, lie


@pytest.mark.parametrize("difference", [-1, 0, 1, 2])
def test_a_length_that_fits_no_padding(difference):
    """A chunk whose length leaves too much for padding is wrong, or cut off where that leads past the end."""
    padding = bytes(9)
    length = 16 + len(padding) + len(MATRIX.data) + difference
    error = refused(ff.build([ff.simple(WORDS), ff.matrix(MATRIX, padding=padding, length=length)]))
    assert type(error) is (wm.TruncatedError if difference > 0 else wm.LayoutError)
    assert (error.field, error.actual) == ("chunk_len", length)


@pytest.mark.parametrize("difference", [-5, -1, 1, 4])
def test_a_length_that_fits_no_data(difference):
    """Where data without padding ends with the file, a smaller length is wrong, and a larger one cut off."""
    length = 16 + len(MATRIX.data) + difference
    error = refused(ff.build([ff.simple(WORDS), ff.matrix(MATRIX, padding=b"", length=length)]))
    if difference < 0:
        assert (type(error), error.field, error.actual) == (wm.LayoutError, "chunk_len", length)
        cut = refused(ff.build([ff.simple(WORDS), ff.matrix(MATRIX, padding=b"", length=length)])[:-1])
        assert (type(cut), cut.field) == (wm.TruncatedError, "matrix")
    else:
        assert (type(error), error.field) == (wm.TruncatedError, "matrix")


@pytest.mark.parametrize("cut", range(1, 40))
def test_files_that_end_within_a_matrix(cut):
    """Wherever a file ends within a matrix, that is what the error says."""
    whole = ff.build([ff.simple(WORDS), ff.matrix(MATRIX)])
    part = len(ff.matrix(MATRIX).at(len(ff.build([ff.simple(WORDS)], [1, 2]))))
    error = refused(whole[:-cut])
    assert type(error) is wm.TruncatedError
    inside = part - cut
    assert error.field == ("chunk" if inside < 12 else "matrix")
    assert ("within the fields" in str(error)) == (12 <= inside < 28)
    assert ("within the data" in str(error)) == (inside >= 28)


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "field"),
    [
        (SEVENTH, 7, "uint8", "matrix"),
        (SEVENTH + 1, 7, "uint8", "shape"),
        (2**63 - 1, 0, "uint8", None),
        (2**63, 0, "uint8", "shape"),
        (SEVENTH, 7, "int16", "shape"),
        (2**61 - 1, 1, "float32", "matrix"),
        (2**61, 1, "float32", "shape"),
        (0, 2**32 - 1, "float64", None),
    ],
)
def test_shapes_that_can_just_be_counted(rows, cols, dtype, field):
    """A matrix of 2^63 - 1 bytes is counted, and larger than the file; a larger one cannot be, empty or not."""
    part = ff.matrix(Tensor(dtype, (0, 0), b""), rows=rows, cols=cols)
    error = error_of(ff.build([part], [2]), strict=False)
    assert (error and error.field) == field


@pytest.mark.parametrize("code", range(14))
def test_types_of_a_matrix(code):
    """There are twelve types, of which two have no numpy dtype; the error for one of these says what it is called."""
    error = refused(ff.build([ff.simple(WORDS), ff.matrix(MATRIX, code=code, rows=N + 1)]))
    if code in {8, 9, 12, 13}:
        assert (type(error), error.field, error.actual) == (wm.UnsupportedError, "type", code)
        assert (f"({ {8: 'i128', 9: 'u128'}.get(code) })".replace("( ", "(") in str(error)) == (code < 12)
    else:
        assert error.field != "type"


def product(**lies: Any) -> ff.Chunk:
    """A quantised matrix of N rows in two parts, of three centroids, of two elements each."""
    return ff.product(*ff.quantised(N, 2, 3, 2), **lies)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("projection", [0, 1], [2, 2**32 - 1]),
        ("norms", [0, 1], [2, 2**32 - 1]),
        ("quantized_len", [1, 2, 4], [0, 3, 5, 8]),
        ("n_centroids", [1, 3, 255, 256], [0, 257]),
        ("quantized_type", [1], [0, 2, 10]),
        ("reconstructed_type", [10], [9, 11, 1]),
    ],
)
def test_fields_of_a_quantised_matrix(field, good, bad):
    """Each field has the values that it may have, and the error for the ones next to them names it."""
    for value in good:
        error = error_of(ff.build([ff.simple(WORDS), product(**{field: value})]))
        assert error is None or error.field != field, value
    for value in bad:
        error = refused(ff.build([ff.simple(WORDS), product(**{field: value})]))
        assert (error.field, error.actual) == (field, value)


@pytest.mark.parametrize(("parts", "width"), [(1, 0), (2, 1), (3, 2), (5, 4)])
def test_parts_of_rows_that_are_shorter(parts, width):
    """A row is not taken apart into more parts than it has elements, nor one without elements into any."""
    error = refused(ff.build([ff.simple(WORDS), product(quantized_len=parts, reconstructed_len=width)]))
    assert (error.field, error.actual) == ("quantized_len", parts)


@pytest.mark.parametrize(("rows", "field"), [(2**59 - 1, "quantised matrix"), (2**59, "shape"), (2**63, "shape")])
def test_quantised_matrices_that_can_just_be_counted(rows, field):
    """A matrix whose rows, decoded, take 2^63 bytes or more is not a matrix that could ever be decoded."""
    part = product(rows=rows)
    error = refused(ff.build([part], [4]), strict=False)
    assert error.field == field


@pytest.mark.parametrize("centroids", [1, 2, 128, 254, 255, 256])
@pytest.mark.parametrize("place", [None, 0, 1, 3, 5])
def test_codes_of_a_quantised_matrix(centroids, place):
    """Each code is that of a centroid; the first that is none is named with its row and its part."""
    codes, books, _, _ = ff.quantised(N, 2, centroids, 1)
    codes = codes.copy()
    codes.reshape(-1)[:] = centroids - 1
    if place is not None:
        if centroids == 256:
            return  # every byte is a code
        codes.reshape(-1)[place:] = centroids
    data = ff.build([ff.simple(WORDS), ff.product(codes, books)])
    with wm.open(memoryview(data)) as f:
        if place is None:
            f.verify()
            return
        with pytest.raises(wm.QuantError, match=f"code {place % 2} of row {place // 2} ") as caught:
            f.verify()
    assert caught.value.actual == centroids
    assert caught.value.offset == len(data) - 6 + place


@pytest.mark.parametrize("difference", [-1, 0, 1])
def test_norms_are_one_for_each_word(difference):
    """As many norms as words, no less and no more."""
    data = ff.build([ff.simple(WORDS), matrix(N), ff.norms(ff.lengths(N + difference))])
    error = error_of(data)
    assert (error and error.field) == (None if difference == 0 else "n_norms")


@pytest.mark.parametrize("code", [0, 9, 10, 11])
def test_the_type_of_norms(code):
    """It is that of float32."""
    error = error_of(ff.build([ff.simple(WORDS), matrix(N), ff.norms(ff.lengths(N), code=code)]))
    assert (error and error.field) == (None if code == 10 else "type")


@pytest.mark.parametrize(
    ("value", "odd"), [(0.0, False), (-0.0, False), (1e-45, False), (-1e-45, True), (np.inf, True), (np.nan, True)]
)
def test_norms_that_are_odd(value, odd):
    """A norm is 0 or more, and finite."""
    norms = Tensor("float32", (N,), np.array([1, value, 2], "<f4").tobytes())
    found = warnings_of(ff.build([ff.simple(WORDS), matrix(N), ff.norms(norms)]))
    assert any("norms that are NaN, infinite or negative: 1" in text for text in found) == odd


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([], True),
        ([0], True),
        ([1], False),
        ([0, 0, 1], True),
        ([0, 1, 0, 2], True),
        ([0, 2], False),
        ([0, 1, 3], False),
        ([0, 1, 2, 1, 3], True),
        ([0, 1, 1, 3], False),
    ],
)
def test_indices_numbered_by_appearance(indices, expected):
    """The first index is 0, and each new one is one more than the largest before it."""
    assert numbered(np.array(indices, np.uint64)) == expected


@pytest.mark.parametrize(("text", "odd"), [("a", True), ("ab", False), ("abc", False), ("abcd", True), ("日本", False)])
def test_ngrams_of_other_lengths(text, odd):
    """An n-gram of fewer than min_n characters, or of more than max_n, is odd."""
    vocab = ff.explicit(WORDS, [(text, 0)], 2, 3)
    found = warnings_of(ff.build([vocab, matrix(N + 1)]))
    assert any("n-grams shorter than 2 or longer than 3 characters: 1" in words for words in found) == odd
