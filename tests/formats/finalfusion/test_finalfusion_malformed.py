"""finalfusion files with one lie each: what is wrong, which field says so, and at which byte."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.attacks import finalfusion
from tests.attacks.case import U32
from tests.attacks.case import put as put_bytes
from tests.attacks.finalfusion import PARTS
from tests.builders import finalfusion as ff
from tests.builders import normal
from tests.support import DATA, same

import weightmap as wm
from weightmap.cli import main
from weightmap.formats.finalfusion import vocabulary as strings_of_vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MALFORMED = DATA / "malformed" / "finalfusion"
WORDS = ["one", "two", "drei"]
N = len(WORDS)
MATRIX, LENGTHS = normal((N, 2), 1), ff.lengths(N)
VOCAB, STORAGE, NORMS = ff.simple(WORDS), ff.matrix(MATRIX), ff.norms(LENGTHS)
ATTACKS = {case.name: case for case in finalfusion.cases()}


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
    "only_vocab": "a file may be one chunk that its header lists alone",
    "nd_type_f64": "every type of the specification is read",
    "bucket_SPEC_field_order": "the specification's order of fields is read",
}
VERDICTS = [line.split("\t")[:2] for line in (MALFORMED / "_results.tsv").read_text("utf-8").splitlines()[1:]]


@pytest.mark.parametrize(("name", "verdict"), VERDICTS, ids=[name for name, _ in VERDICTS])
def test_verdicts_are_those_of_finalfusion_python(name: str, verdict: str) -> None:
    """Files that finalfusion-python accepts open, those it refuses are a TensorFileError, except for known reasons."""
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


def test_repeated_words_are_found_by_looking_one_up() -> None:
    """The first look-up, which builds the index, refuses a word that is repeated, and so does every later one."""
    with wm.open(ATTACKS["a word twice"].data) as f:
        assert list(f.vocab) == ["a", "b", "a"]
        for _ in range(2):
            with pytest.raises(wm.LayoutError, match="words 0 and 2 are both 'a'"):
                f.vocab.index("b")


def test_damaged_ngrams_do_no_harm_to_words() -> None:
    """Wrong indices matter to n-grams alone: words are found, and the error of the n-grams names the file."""
    with wm.open(ATTACKS["index 2"].data) as f:
        assert f.vocab.index("two") == 1
        with pytest.raises(wm.LayoutError) as caught:
            f.vocab.subwords.ngrams()
        assert caught.value.path == "<bytes>"


LISTED = ff.explicit(WORDS, [("abcdefghijkl", 0), ("b", 1)], 1, 12)
BEGIN = finalfusion.start_of([LISTED, STORAGE], 0)
# In the order of the specification, and nothing behind the words.
UNCOUNTED = ff.Chunk(ff.EXPLICIT, struct.pack("<IIQ", 1, 3, N) + ff.strings(WORDS))


@pytest.mark.parametrize(
    ("chunk", "lie", "words"),
    [
        (LISTED, (BEGIN + 24, U32), "word 0 of 3 runs past it"),
        (LISTED, (BEGIN + 8, 3), "n-gram 2 of 3 runs past it"),
        (LISTED, (BEGIN + 8, 1), "n-grams end at byte"),
        (UNCOUNTED, None, "the number of n-grams runs past"),
    ],
    ids=["a word", "one more", "one less", "nothing behind the words"],
)
def test_ngrams_are_checked_when_they_are_asked_for_first(chunk: ff.Chunk, lie: Any, words: str) -> None:
    """Words and n-grams that do not fill their chunk are refused by whichever of both is asked for, and by `verify`."""
    data = ff.build([chunk, ff.matrix(normal((N + 1, 2)))])
    if lie is not None:
        data = put_bytes(data, lie[0], struct.pack("<I", lie[1]))
    with wm.open(data) as f:
        with pytest.raises(wm.LayoutError, match=words) as caught:
            f.vocab.subwords.ngrams()
        assert (caught.value.path, caught.value.field) == ("<bytes>", "vocabulary")
        for use in (lambda: list(f.vocab), f.verify):
            with pytest.raises(wm.LayoutError):
                use()


def test_ngrams_without_a_matrix_are_read() -> None:
    """Where strict=False lets a vocabulary stand alone, there are no rows that indices could miss."""
    with wm.open(ff.build([LISTED]), strict=False) as f:
        table, indices = f.vocab.subwords.ngrams()
        assert (list(table), indices.tolist()) == (["abcdefghijkl", "b"], [0, 1])


def test_strings_beyond_32_bits_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of more bytes than can be addressed (here 12) are an UnsupportedError when they are asked for."""
    monkeypatch.setattr(strings_of_vocabularies, "MAX_STRINGS", 12)
    for words, more in ((["a", "b"], 0), (["a", "bc", "d"], 1)):
        with wm.open(ff.build([ff.simple(words), ff.matrix(normal((len(words), 2)))])) as f:
            if more:
                with pytest.raises(wm.UnsupportedError, match="bytes of words or n-grams is 16, expected at most 12"):
                    list(f.vocab)
            else:
                assert list(f.vocab) == words


def test_any_number_of_rows_without_columns_allocates_nothing() -> None:
    """An explicit vocabulary in the specification's order cannot bound the rows: they are compared, not allocated."""
    chunk = ff.explicit(WORDS, [("a", 0)], 1, 3, spec=True)
    with wm.open(ff.build([chunk, ff.matrix(normal((0, 0)), rows=2**60, cols=0)])) as f:
        assert f["embeddings"].shape == (2**60, 0)
        with pytest.raises(wm.LayoutError) as caught:
            f.vocab.subwords.ngrams()
        assert caught.value.field == "rows"


# ------------------------------------------------------------------------------------------------- odd, and let pass

# Attacks that leave the matrix unchanged.
PASSED = [case for case in finalfusion.cases() if case.odd and MATRIX.data in case.data]


@pytest.mark.parametrize("case", PASSED, ids=[case.id for case in PASSED])
def test_what_is_let_pass_is_read_right(case: Any) -> None:
    """A file that is odd and legal, or refused and let pass with strict=False, has the matrix that was written."""
    assert same(wm.load(case.data, strict=not case.error)["embeddings"], MATRIX)


# ------------------------------------------------------------------------------------------------- at every byte

PAIRS = [("a", 0), ("b", 1)]
CHUNKS = [ff.metadata("a = 1"), ff.explicit(WORDS, PAIRS, 1, 3), ff.product(*ff.quantised(N + 2, 2, 3, 2)), NORMS]
FULL = ff.build(CHUNKS)
SUBWORDS = {
    "quantised": FULL,
    "fastText": ff.build([ff.hashed(ff.FASTTEXT, WORDS, 3, 6, 2), ff.matrix(normal((N + 2, 1))), NORMS]),
    "specification": ff.build([ff.explicit(WORDS, PAIRS, 1, 3, spec=True), ff.matrix(normal((N + 2, 1)))]),
}
INTERESTING = (0, 1, 2**31 - 1, 2**31 + 1, U32, 2**60, 2**63 - 1, 2**63, 2**64 - 1)


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
            width = 4 if value <= U32 else 8
            lie = data[:place] + value.to_bytes(width, "little") + data[place + width :]
            outcomes.add(survives(lie[: len(data)]))
    assert outcomes == {True, False}


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
            file.seek(finalfusion.start_of([VOCAB, STORAGE], 1) + 8)
            file.write(struct.pack("<II", 4, 3))  # four columns of i16
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(wm.LayoutError, match="changed"):
            f.verify()


def test_a_bad_code_is_located_when_it_is_read(tmp_path):
    """An invalid code, met while rows are decoded, is an error with its file and its place there."""
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
