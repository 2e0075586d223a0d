"""Words: opening a file of a million of them, finding one, finding many, taking apart those that it does not have.

They have 300 dimensions, and buckets for n-grams. finalfusion-python runs in a process of its own (`external_env`),
gensim reads a file of its own.
"""

import random
from functools import partial

import numpy as np
import pytest

import files
import weightmap as wm
from external_env import Elsewhere
from processes import Loading
from timing import AVX2, EVERY_ISA, Timed, everyone, need, ours, rival

COUNT, DIMS = 1_000_000, 300
LABEL = f"{COUNT:,} words"


class Words:
    """The file, and the words that are asked for."""

    def __init__(self, folder, *, smoke):
        count = 1_000 if smoke else COUNT
        self.words = files.words_like(count, "")
        self.path = str(folder / "words.fifu")
        files.write_finalfusion(self.path, self.words, DIMS, 8 if smoke else 18)
        rng = random.Random(1)
        self.known = rng.sample(self.words, 100 if smoke else 100_000)
        self.unknown = files.words_like(100 if smoke else 10_000, "-")
        self.folder = folder

    def listed(self, which):
        """Return the path of a list of words, for another process."""
        path = self.folder / f"{which}.txt"
        path.write_text("\n".join(getattr(self, which)), encoding="utf-8")
        return str(path)

    def of_gensim(self):
        """Return the path of the same words as gensim writes them, once."""
        path = self.folder / "words.gensim"
        if not path.exists():
            vectors = need("gensim.models").KeyedVectors(DIMS, count=0)
            with wm.open(self.path) as f:
                vectors.add_vectors(self.words, f["embeddings"][: len(self.words)])
            vectors.save(str(path))
        return str(path)


@pytest.fixture(scope="module")
def words(tmp_path_factory, smoke):
    """Return the file, made once."""
    return Words(tmp_path_factory.mktemp("words"), smoke=smoke)


def our_opener(words):
    """Return the function that opens the file with ours."""
    return lambda: wm.open(words.path).embeddings


def gensim_opener(words):
    """Return the function that opens gensim's file."""
    load, path = need("gensim.models").KeyedVectors.load, words.of_gensim()
    return partial(load, path, mmap="r")


def finalfusion(question, which="known"):
    """Return the rival that answers in a process of its own."""
    return rival(lambda words: Elsewhere("finalfusion", question, words.path, words.listed(which)))


def stacked(vectors, words):
    """Look words up one after another, which is the only way that gensim has; it does it by itself."""
    return np.stack([vectors[word] for word in words])


def opening(opener, words):
    """Open the file, so that it could be asked for words."""
    return Timed(opener(words))


def first(opener, words):
    """The first word in a fresh handle; opening it is not counted."""
    word = words.known[0]
    return Timed(lambda vectors: vectors[word], setup=opener(words))


def open_and_first(opener, words):
    """Opening and the first word together: some do at the one what others do at the other."""
    fresh, word = opener(words), words.known[0]
    return Timed(lambda: fresh()[word])


def later(opener, words):
    """A known word in a handle that has been used before."""
    vectors, word = opener(words)(), words.known[0]
    assert vectors[word].shape == (DIMS,)
    return Timed(lambda: vectors[word])


def batch(opener, words, which="known", threads=None):
    """Many words in one call."""
    vectors, wanted = opener(words)(), getattr(words, which)
    options = {} if threads is None else {"threads": threads}
    matrix, there = vectors.batch(wanted, **options)
    assert there.all()
    assert np.allclose(np.linalg.norm(matrix[:50], axis=1), 1, rtol=1e-5)
    return Timed(lambda: vectors.batch(wanted, **options))


def one_by_one(opener, words):
    """Many words, one after another."""
    vectors = opener(words)()
    return Timed(lambda: stacked(vectors, words.known))


def similar(opener, words):
    """The ten words most similar to one."""
    vectors, word = opener(words)(), words.known[0]
    assert len(vectors.most_similar(word)) == 10
    return Timed(lambda: vectors.most_similar(word))


def everybody(our_clock, question, gensim_clock=None):
    """Return the contenders for a question."""
    return (
        ours(partial(our_clock, our_opener), isas=AVX2)
        | {"finalfusion-python": finalfusion(question)}
        | {"gensim": rival(partial(gensim_clock or our_clock, gensim_opener))}
    )


QUESTIONS = {
    "open": everybody(opening, "open"),
    "first": everybody(first, "first"),
    "open and first": everybody(open_and_first, "open and first"),
    "known": everybody(later, "known"),
    "100,000 known": everybody(batch, "many", one_by_one),
    "10,000 unknown": (
        ours(partial(batch, our_opener, which="unknown", threads=1), isas=EVERY_ISA)
        | ours(partial(batch, our_opener, which="unknown", threads=2), "weightmap, 2 threads", isas=AVX2, threads=2)
        | {"finalfusion-python": finalfusion("many", "unknown")}
    ),
    "similar": everybody(similar, "similar"),
}


WORDS = {f"vocabulary/{question}, {LABEL}": contenders for question, contenders in QUESTIONS.items()}


@everyone(WORDS)
def test_words(race, words, group, who):
    """Ask for words."""
    race(WORDS, words)


def loading(opener, words):
    """Open and look a word up, in a process that tells what memory that took."""
    path = words.of_gensim() if opener == "gensim" else words.path
    return Loading(opener, path, words.known[0], words=len(words.words))


MEMORY = {
    f"vocabulary/memory, {LABEL}": ours(partial(loading, "weightmap, words"))
    | {"finalfusion-python": rival(partial(loading, "finalfusion")), "gensim": rival(partial(loading, "gensim"))}
}
GROUPS = WORDS | MEMORY


@everyone(MEMORY)
def test_memory(race, words, group, who):
    """Private memory that opening and the first look-up take."""
    race(MEMORY, words)
