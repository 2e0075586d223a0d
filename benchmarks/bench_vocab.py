"""Word embeddings: opening a file of a million words, and looking up one, many, and unknown ones by their n-grams.

The vectors have 300 dimensions, and n-grams have buckets. finalfusion-python runs in its own process (`external_env`);
gensim reads its own file.
"""

import random
from functools import partial

import numpy as np
import pytest

import files
import weightmap as wm
from external_env import ExternalClock
from processes import Loading
from timing import AVX2, EVERY_ISA, Timed, each_contender, need, ours, rival

COUNT, DIMS = 1_000_000, 300
LABEL = f"{COUNT:,} words"


class Words:
    """The file, and the words to look up."""

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
        """Write a list of words for another process, and return its path."""
        path = self.folder / f"{which}.txt"
        path.write_text("\n".join(getattr(self, which)), encoding="utf-8")
        return str(path)

    def of_gensim(self):
        """Write the same words with gensim, once, and return the path."""
        path = self.folder / "words.gensim"
        if not path.exists():
            vectors = need("gensim.models").KeyedVectors(DIMS, count=0)
            with wm.open(self.path) as f:
                vectors.add_vectors(self.words, f["embeddings"][: len(self.words)])
            vectors.save(str(path))
        return str(path)


@pytest.fixture(scope="module")
def words(tmp_path_factory, smoke):
    """Return the file and its words."""
    return Words(tmp_path_factory.mktemp("words"), smoke=smoke)


def our_opener(words):
    """Return a function that opens the file with weightmap."""
    return lambda: wm.open(words.path).embeddings


def gensim_opener(words):
    """Return a function that opens gensim's file."""
    load, path = need("gensim.models").KeyedVectors.load, words.of_gensim()
    return partial(load, path, mmap="r")


def finalfusion(question, which="known"):
    """Return the rival in its own process."""
    return rival(lambda words: ExternalClock("finalfusion", question, words.path, words.listed(which)))


def stacked(vectors, words):
    """Look words up one after another, as gensim does for a list."""
    return np.stack([vectors[word] for word in words])


def opening(opener, words):
    """Time opening the file."""
    return Timed(opener(words))


def first(opener, words):
    """Time the first word in a fresh handle, without its opening."""
    word = words.known[0]
    return Timed(lambda vectors: vectors[word], setup=opener(words))


def open_and_first(opener, words):
    """Time opening and the first word together: libraries divide the work differently."""
    fresh, word = opener(words), words.known[0]
    return Timed(lambda: fresh()[word])


def later(opener, words):
    """Time a known word in a used handle."""
    vectors, word = opener(words)(), words.known[0]
    assert vectors[word].shape == (DIMS,)
    return Timed(lambda: vectors[word])


def batch(opener, words, which="known", threads=None):
    """Time many words in one call."""
    vectors, wanted = opener(words)(), getattr(words, which)
    options = {} if threads is None else {"threads": threads}
    matrix, there = vectors.batch(wanted, **options)
    assert there.all()
    assert np.allclose(np.linalg.norm(matrix[:50], axis=1), 1, rtol=1e-5)
    return Timed(lambda: vectors.batch(wanted, **options))


def one_by_one(opener, words):
    """Time many words, one after another."""
    vectors = opener(words)()
    return Timed(lambda: stacked(vectors, words.known))


def similar(opener, words):
    """Time the ten words most similar to one."""
    vectors, word = opener(words)(), words.known[0]
    assert len(vectors.most_similar(word)) == 10
    return Timed(lambda: vectors.most_similar(word))


def contenders_for(our_clock, question, gensim_clock=None):
    """Return the contenders for a question."""
    return (
        ours(partial(our_clock, our_opener), isas=AVX2)
        | {"finalfusion-python": finalfusion(question)}
        | {"gensim": rival(partial(gensim_clock or our_clock, gensim_opener))}
    )


QUESTIONS = {
    "open": contenders_for(opening, "open"),
    "first": contenders_for(first, "first"),
    "open and first": contenders_for(open_and_first, "open and first"),
    "known": contenders_for(later, "known"),
    "100,000 known": contenders_for(batch, "many", one_by_one),
    "10,000 unknown": (
        ours(partial(batch, our_opener, which="unknown", threads=1), isas=EVERY_ISA)
        | ours(partial(batch, our_opener, which="unknown", threads=2), "weightmap, 2 threads", isas=AVX2, threads=2)
        | {"finalfusion-python": finalfusion("many", "unknown")}
    ),
    "similar": contenders_for(similar, "similar"),
}


WORDS = {f"vocabulary/{question}, {LABEL}": contenders for question, contenders in QUESTIONS.items()}


@each_contender(WORDS)
def test_words(compare, words, group, who):
    """Open the file or look words up."""
    compare(WORDS, words)


def loading(opener, words):
    """Time opening and one look-up in a process that measures its memory."""
    path = words.of_gensim() if opener == "gensim" else words.path
    return Loading(opener, path, words.known[0], words=len(words.words))


MEMORY = {
    f"vocabulary/memory, {LABEL}": ours(partial(loading, "weightmap, words"))
    | {"finalfusion-python": rival(partial(loading, "finalfusion")), "gensim": rival(partial(loading, "gensim"))}
}
GROUPS = WORDS | MEMORY


@each_contender(MEMORY)
def test_memory(compare, words, group, who):
    """Private memory after opening and the first look-up."""
    compare(MEMORY, words)
