"""Words: opening a file of a million of them, finding one, finding many, taking apart those that it does not have.

With ``--largest N`` the file has ten times N words of 300 dimensions, and buckets for n-grams.
"""

import random
import subprocess
import sys

import numpy as np
import pytest

import files
import weightmap as wm

DIMS = 300
RUNS = 5


class Words:
    """The file, and the words that are asked for."""

    def __init__(self, config, folder):
        smoke = config.option.benchmark_disable
        count = 1_000 if smoke else 10 * config.option.largest
        self.label = f"{count:,} words"
        self.words = files.words_like(count, "")
        self.path = str(folder / "words.fifu")
        files.write_finalfusion(self.path, self.words, DIMS, 8 if smoke else 18)
        rng = random.Random(1)
        self.known = rng.sample(self.words, 100 if smoke else min(count, 100_000))
        self.unknown = files.words_like(100 if smoke else 10_000, "-")
        self.folder = folder


@pytest.fixture(scope="module")
def words(request, tmp_path_factory):
    """Return the file, made once."""
    return Words(request.config, tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def gensim_path(words):
    """Return the words in the format of gensim, written by it."""
    models = pytest.importorskip("gensim.models")
    with wm.open(words.path) as f:
        vectors = models.KeyedVectors(DIMS, count=0)
        vectors.add_vectors(words.words, f["embeddings"][: len(words.words)])
    path = str(words.folder / "words.gensim")
    vectors.save(path)
    return path


@pytest.fixture
def opener(words, request):
    """Return opener(who) -> role, function that opens the file and returns something to be asked for words."""

    def opener(who):
        if who == "weightmap":
            return "ours", lambda: wm.open(words.path).embeddings
        if who == "finalfusion":
            library = pytest.importorskip("finalfusion")
            return "rival", lambda: library.load_finalfusion(words.path, mmap=True)
        models, path = pytest.importorskip("gensim.models"), request.getfixturevalue("gensim_path")
        return "rival", lambda: models.KeyedVectors.load(path, mmap="r")

    return opener


EVERYBODY = ("weightmap", "finalfusion", "gensim")


def stacked(vectors, words):
    """Look words up one after another, which is the only way that the rivals have; gensim does it by itself."""
    return np.stack([vectors[word] for word in words])


@pytest.mark.parametrize("who", EVERYBODY)
def test_open(run, words, opener, who):
    """Open the file, so that it could be asked for words."""
    role, fresh = opener(who)
    assert run(f"words: open/{words.label}", role, fresh, rounds=RUNS) is not None


@pytest.mark.parametrize("who", EVERYBODY)
def test_first_lookup(run, words, opener, who):
    """The first word in a fresh handle; opening it is not counted."""
    role, fresh = opener(who)
    word = words.known[0]
    vector = run(f"words: first/{words.label}", role, lambda e: e[word], setup=lambda: ((fresh(),), {}), rounds=RUNS)
    assert vector.shape == (DIMS,)


@pytest.mark.parametrize("who", EVERYBODY)
def test_later_lookup(run, words, opener, who):
    """A known word in a handle that has been used before."""
    role, fresh = opener(who)
    embeddings, word = fresh(), words.known[0]
    assert embeddings[word].shape == (DIMS,)
    assert run(f"words: known/{words.label}", role, lambda: embeddings[word]).shape == (DIMS,)


@pytest.mark.parametrize("who", EVERYBODY)
def test_many_known_words(run, words, opener, who):
    """The vectors of many known words, as a matrix."""
    role, fresh = opener(who)
    embeddings = fresh()
    look = (lambda: embeddings.batch(words.known)[0]) if role == "ours" else lambda: stacked(embeddings, words.known)
    matrix = run(f"words: {len(words.known):,} known/{words.label}", role, look, rounds=RUNS)
    assert matrix.shape == (len(words.known), DIMS)


@pytest.mark.parametrize("who", ["weightmap", "weightmap, 2 threads", "finalfusion"])
def test_many_unknown_words(run, words, opener, who):
    """The vectors of many unknown words, by their n-grams, as a matrix."""
    role, fresh = opener(who.split(",")[0])
    embeddings = fresh()
    threads = 2 if "threads" in who else 1
    look = lambda: stacked(embeddings, words.unknown)  # noqa: E731 - the rival's, unless it is ours
    if role == "ours":
        look = lambda: embeddings.batch(words.unknown, threads=threads)[0]  # noqa: E731
    matrix = run(f"words: {len(words.unknown):,} unknown/{words.label}", role, look, rounds=RUNS)
    assert np.allclose(np.linalg.norm(matrix[:50], axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("who", EVERYBODY)
def test_similar_words(run, words, opener, who):
    """The ten words most similar to one, in a handle that has been used before."""
    role, fresh = opener(who)
    embeddings, word = fresh(), words.known[0]
    search = embeddings.word_similarity if who == "finalfusion" else embeddings.most_similar
    assert len(run(f"words: similar/{words.label}", role, search, word, rounds=RUNS)) == 10


MEMORY = """
import sys
def anonymous():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))
who, path, word = sys.argv[1:]
if who == "weightmap":
    import weightmap
    def opened():
        return weightmap.open(path).embeddings
elif who == "finalfusion":
    import finalfusion
    def opened():
        return finalfusion.load_finalfusion(path, mmap=True)
else:
    from gensim.models import KeyedVectors
    def opened():
        return KeyedVectors.load(path, mmap="r")
before = anonymous()
embeddings = opened()
after = anonymous()
embeddings[word]
print(after - before, anonymous() - before)
"""


@pytest.mark.parametrize("who", EVERYBODY)
def test_memory(benchmark, words, opener, request, who):
    """Private memory that opening and the first look-up take, of a process of its own (KiB, in `extra_info`)."""
    if not sys.platform.startswith("linux"):
        pytest.skip("asks /proc")
    role, _ = opener(who)
    path = request.getfixturevalue("gensim_path") if who == "gensim" else words.path
    command = [sys.executable, "-c", MEMORY, who, path, words.known[0]]
    benchmark.group = f"words: a process that opens and looks up/{words.label}"
    out = benchmark.pedantic(subprocess.check_output, (command,), {"text": True}, rounds=1)
    opening, lookup = map(int, out.split())
    benchmark.extra_info |= {"role": role, "KiB after opening": opening, "KiB after the first look-up": lookup}
    print(f"\n{who}: {opening:,} KiB after opening, {lookup:,} KiB after the first look-up")  # noqa: T201
