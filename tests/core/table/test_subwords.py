"""N-grams of words and their rows, against plain definitions and at the edge of memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.word_files import ngrams
from tests.word_support import WORDS, bucket_hash, fasttext_hash, listed, table, vocabulary

import weightmap as wm
from weightmap.core.table import StringTable
from weightmap.core.table.vocabulary import Subwords

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too


def rows_by_definition(subwords, word, known):
    indices = {
        "bucket": lambda ngram: bucket_hash(ngram) % subwords.size,
        "fasttext": lambda ngram: fasttext_hash(ngram) % subwords.size,
        "explicit": known.get,
    }[subwords.kind]
    found = map(indices, ngrams(word, subwords.min_n, subwords.max_n))
    return [subwords.n_words + index for index in found if index is not None]


def test_the_example_of_the_specification():
    """The n-gram "<hallo" has index 1321513 among 2^21 buckets, and rows of n-grams follow rows of words."""
    assert Subwords("bucket", 0, 6, 6, 1 << 21).indices("hallo")[0] == 1321513
    assert Subwords("bucket", 1000, 6, 6, 1 << 21).indices("hallo")[0] == 1322513


@pytest.mark.parametrize("character", ["x", "ö", "語", "🌎"])
@pytest.mark.parametrize(("shortest", "longest"), [(3, 3), (3, 6), (240, 300)])
def test_bucket_rows_of_long_words(character, shortest, longest):
    """Words around 256 bytes, the limit of splitting a text at once, get their buckets by the definition."""
    width = len(character.encode())
    subwords = Subwords("bucket", 17, shortest if longest < 300 else shortest // width, longest, 1 << 21)
    # All n-grams of a long word, in Python, take seconds.
    for size in (252, 254, 255, 256, 300) if longest < 300 else (255, 256):
        word = "".join(chr(ord(character) + i % 7) for i in range(size // width))
        assert subwords.indices(word) == rows_by_definition(subwords, word, {})


@pytest.mark.parametrize("kind", ["bucket", "fasttext"])
@given(word=ANY_TEXT, min_n=st.integers(1, 7), more=st.integers(0, 40), size=st.integers(1, 2**32 - 1))
def test_rows_of_buckets_follow_the_definition(kind, word, min_n, more, size):
    """FNV-1a of 64 bits over the characters of an n-gram, or fastText's of 32 bits over its UTF-8."""
    subwords = Subwords(kind, 17, min_n, min_n + more, size if kind == "fasttext" else 1 << size % 64)
    assert subwords.indices(word) == rows_by_definition(subwords, word, {})


@given(words=st.lists(ANY_TEXT, max_size=4), min_n=st.integers(1, 4), more=st.integers(0, 5), data=st.data())
def test_explicit_rows_follow_the_definition(words, min_n, more, data):
    legal = {n for word in words for n in ngrams(word, min_n, min_n + more) if n.isprintable()}
    known = {n: data.draw(st.integers(0, 5)) for n in sorted(legal)[::2]}
    subwords = Subwords("explicit", 17, min_n, min_n + more, 6, listed(known))
    for word in words:
        assert subwords.indices(word) == rows_by_definition(subwords, word, known)


def test_a_word_too_short_has_no_ngrams():
    """Brackets add two characters to a word; if it is still shorter than min_n, it has no n-grams."""
    subwords = Subwords("bucket", 0, 3, 6, 8)
    assert subwords.indices("") == []
    assert len(subwords.indices("a")) == 1


@pytest.mark.parametrize("kind", ["bucket", "fasttext", "explicit"])
def test_a_word_with_absurdly_many_ngrams_is_refused(kind):
    known = listed({"ab": 0}) if kind == "explicit" else None
    subwords = Subwords(kind, 0, 1, 2**32 - 1, 8, known)
    assert len(subwords.indices("ab")) == (10 if known is None else 1)
    with pytest.raises(wm.LimitError, match="n-grams"):
        subwords.indices("w" * 2000)


class Colliding(StringTable):
    """A table that claims that its hashes collide."""

    __slots__ = ()
    index = None


def test_ngrams_whose_hashes_collide_are_looked_up_all_the_same():
    known = {n: i for i, n in enumerate(dict.fromkeys(n for word in WORDS for n in ngrams(word, 2, 4)))}
    plain = table(list(known))
    numbers = np.arange(len(known), dtype=np.uint64)
    slow = Subwords("explicit", 7, 2, 4, len(known), lambda: (Colliding(*plain.index[:3], "n-gram"), numbers))
    fast = Subwords("explicit", 7, 2, 4, len(known), lambda: (plain, numbers))
    for word in WORDS:
        assert slow.indices(word) == fast.indices(word)
    with pytest.raises(wm.LimitError, match="n-grams"):
        Subwords("explicit", 0, 1, 9999, 8, lambda: (Colliding(*plain.index[:3], "n-gram"), numbers)).indices(
            "w" * 2000
        )


@pytest.mark.parametrize(
    ("kind", "min_n", "max_n", "size"),
    [
        ("bucket", 0, 3, 8),
        ("bucket", 4, 3, 8),
        ("bucket", 1, 1 << 32, 8),
        ("bucket", 3, 6, 0),
        ("bucket", 3, 6, 9),
        ("bucket", 3, 6, 1 << 64),
        ("fasttext", 3, 6, 0),
        ("fasttext", 3, 6, 1 << 32),
    ],
)
def test_parameters_out_of_range_are_refused(kind, min_n, max_n, size):
    with pytest.raises(wm.LayoutError):
        Subwords(kind, 0, min_n, max_n, size)


def test_a_vocabulary_returns_the_rows_of_ngrams():
    subwords = Subwords("bucket", 2, 3, 6, 8)
    assert vocabulary(["yes", "no"], subwords).ngram_indices("yes") == subwords.indices("yes")
    assert vocabulary(["yes", "no"], subwords).subwords is subwords
    assert vocabulary(["yes", "no"]).ngram_indices("yes") == []
