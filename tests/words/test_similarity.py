"""Similar words and analogies: exact, against brute force, and as the finalfusion projects have them."""

import functools
import io
import json
import pickle

import numpy as np
import pytest
from tests.places import GROUNDTRUTH
from tests.word_support import vocabulary

import weightmap as wm
from weightmap import cli
from weightmap.core.quant.product import ProductQuantized
from weightmap.core.table.vocabulary import Subwords
from weightmap.words import embeddings as similarity
from weightmap.words.embeddings import Embeddings

# Test data of the finalfusion projects, which is theirs: used where it lies, if it does.
UPSTREAM = GROUNDTRUTH / "upstream" / "finalfusion-python"
needs_upstream = pytest.mark.skipif(not UPSTREAM.is_dir(), reason="the test data of finalfusion is not here")

# The expected values of finalfusion-python's tests for that data.
LIKE_STUTTGART = "Karlsruhe Mannheim München Darmstadt Heidelberg Wiesbaden Kassel Düsseldorf Leipzig Berlin"
LIKE_BERLIN = (
    "Potsdam Hamburg Leipzig Dresden München Düsseldorf Bonn Stuttgart Weimar Berlin-Charlottenburg Rostock Karlsruhe "
    "Chemnitz Breslau Wiesbaden Hannover Mannheim Kassel Köln Danzig Erfurt Dessau Bremen Charlottenburg Magdeburg "
    "Neuruppin Darmstadt Jena Wien Heidelberg Dortmund Stettin Schwerin Neubrandenburg Greifswald Göttingen "
    "Braunschweig Berliner Warschau Berlin-Spandau"
)
AS_FRANCE_TO_PARIS = (
    "Deutschland Westdeutschland Sachsen Mitteldeutschland Brandenburg Polen Norddeutschland Dänemark "
    "Schleswig-Holstein Österreich Bayern Thüringen Bundesrepublik Ostdeutschland Preußen Deutschen Hessen Potsdam "
    "Mecklenburg Niedersachsen Hamburg Süddeutschland Bremen Russland Deutschlands BRD Litauen Mecklenburg-Vorpommern "
    "DDR West-Berlin Saarland Lettland Hannover Rostock Sachsen-Anhalt Pommern Schweden Deutsche deutschen Westfalen"
)


def words_of(results):
    return [word for word, _ in results]


@needs_upstream
def test_similar_words_of_finalfusion():
    with wm.open(UPSTREAM / "similarity.fifu") as f:
        e = f.embeddings
        assert " ".join(words_of(e.most_similar("Berlin", 40))) == LIKE_BERLIN
        assert " ".join(words_of(e.most_similar("Stuttgart"))) == LIKE_STUTTGART
        by_vector = words_of(e.most_similar(e["Stuttgart"], 11))
        assert " ".join(by_vector) == f"Stuttgart {LIKE_STUTTGART}"


@needs_upstream
def test_analogies_of_finalfusion():
    with wm.open(UPSTREAM / "simple_vocab.fifu") as f:
        e = f.embeddings
        assert " ".join(words_of(e.analogy("Paris", "Frankreich", "Berlin", 40))) == AS_FRANCE_TO_PARIS
        assert words_of(e.analogy("Paris", "Frankreich", "Paris", 1)) == ["Russland"]
        assert words_of(e.analogy("Frankreich", "Frankreich", "Frankreich", 1)) == ["Russland"]
        with pytest.raises(KeyError):
            e.analogy("Paris", "OOV", "Paris", 1)


WORDS = [f"w{i}" for i in range(500)]


def matrix(dtype=np.float32, rows=500):
    rng = np.random.default_rng(5)
    return (rng.standard_normal((rows, 12)) * rng.uniform(0.01, 100, (rows, 1))).astype(dtype)


def by_brute_force(rows, query, skip=()):
    wide = np.asarray(rows).astype(np.float64)[: len(WORDS)]
    query = np.asarray(query).astype(np.float64)
    cosines = wide @ query / np.linalg.norm(wide, axis=1) / np.linalg.norm(query)
    return {WORDS[i]: cosines[i] for i in np.argsort(-cosines, kind="stable") if WORDS[i] not in skip}


def check(found, expected, k):
    """The k best, in order up to rounding: answers this close may swap."""
    assert len(found) == len(set(words_of(found))) == min(k, len(expected))
    assert np.allclose([s for _, s in found], list(expected.values())[:k], rtol=0, atol=2e-6)
    assert np.allclose([s for _, s in found], [expected[word] for word, _ in found], rtol=0, atol=2e-6)


def codes():
    rng = np.random.default_rng(6)
    books = rng.standard_normal((4, 9, 3), dtype=np.float32)
    norms = rng.uniform(-3, 3, 500).astype(np.float32)
    return ProductQuantized(
        rng.integers(0, 9, (500, 4), dtype=np.uint8), books, rng.standard_normal((12, 12), dtype=np.float32), norms
    )


MATRICES = {
    "float32": matrix,
    "float64": lambda: matrix(np.float64),
    "float16": lambda: matrix(np.float16),
    "int16": lambda: matrix(np.int16) + np.int16(1),
    "strided": lambda: np.repeat(matrix(), 2, axis=0)[::2],
    "askew": lambda: np.frombuffer(b"x" + matrix().tobytes(), np.float32, 6000, 1).reshape(500, 12),
    "int4_block": lambda: wm.quantize(matrix(), "int4_block", block_size=4),
    "int8": lambda: wm.quantize(matrix(), "int8"),
    "pq": codes,
}


@pytest.mark.parametrize("block", [1, 70, 1 << 20])
@pytest.mark.parametrize("kind", MATRICES)
def test_search_is_exact(kind, block, monkeypatch):
    monkeypatch.setattr(similarity, "_BLOCK_ELEMENTS", block)
    monkeypatch.setattr(similarity, "_VIEW_ELEMENTS", block)
    rows = MATRICES[kind]()
    if kind == "int8":  # of one scale: short rows decode to nothing
        rows = wm.quantize(matrix() / np.linalg.norm(matrix(), axis=1)[:, None], "int8")
    e = Embeddings(vocabulary(WORDS), rows)
    for k in (1, 7, 500):
        check(e.most_similar("w3", k), by_brute_force(rows, rows[3], {"w3"}), k)
    vector = np.arange(12) - 4
    check(e.most_similar(vector, 9), by_brute_force(rows, vector), 9)
    unit = [np.asarray(rows[i]).astype(float) / np.linalg.norm(np.asarray(rows[i]).astype(float)) for i in (1, 2, 3)]
    check(e.analogy("w1", "w2", "w3", 5), by_brute_force(rows, unit[1] - unit[0] + unit[2], {"w1", "w2", "w3"}), 5)


def test_analogies_of_several_words():
    """The sum of the unit vectors of positive words minus negative ones, as in gensim's most_similar."""
    rows = matrix()
    e = Embeddings(vocabulary(WORDS), rows)
    unit = [row / np.linalg.norm(row) for row in rows.astype(np.float64)]
    three = {f"w{i}" for i in range(1, 4)}
    assert e.analogy("w1", "w2", "w3", 7) == e.analogy(k=7, positive=["w2", "w3"], negative=["w1"])
    found = e.analogy(k=9, positive=["w1", "w2", "w2"], negative=["w3"])
    check(found, by_brute_force(rows, unit[1] + 2 * unit[2] - unit[3], three), 9)
    found = e.analogy("w1", "w2", "w3", 9, positive=iter(["w4"]), negative=("w5", "w6"))
    query = unit[2] - unit[1] + unit[3] + unit[4] - unit[5] - unit[6]
    check(found, by_brute_force(rows, query, {f"w{i}" for i in range(1, 7)}), 9)
    check(e.analogy(k=3, negative=["w1"]), by_brute_force(rows, -unit[1], {"w1"}), 3)
    for wrong in ((), ("w1",), ("w1", "w2")):
        with pytest.raises(TypeError, match="three words, or positive and negative"):
            e.analogy(*wrong)
    with pytest.raises(KeyError):
        e.analogy(positive=["no"])


def test_analogies_are_those_of_gensim():
    gensim = pytest.importorskip("gensim.models")
    vectors = gensim.KeyedVectors(12)
    vectors.add_vectors(WORDS, matrix())
    e = Embeddings(vocabulary(WORDS), matrix())
    for positive, negative in ((["w1", "w2"], ["w3"]), (["w9"], []), (["w1", "w2", "w3", "w4"], ["w5", "w6"])):
        theirs = vectors.most_similar(positive=positive, negative=negative, topn=20)
        ours = e.analogy(k=20, positive=positive, negative=negative)
        assert words_of(ours) == words_of(theirs)
        assert [s for _, s in ours] == pytest.approx([s for _, s in theirs], abs=2e-6)


def test_rows_of_ngrams_are_no_answers():
    """Only words are found, never the rows of n-grams behind them; unknown words can be asked, too."""
    rows = matrix(rows=508)
    e = Embeddings(vocabulary(WORDS, Subwords("bucket", 500, 3, 6, 8)), rows)
    check(e.most_similar("unknown", 500), by_brute_force(rows, e["unknown"]), 500)
    assert len(e.analogy("w1", "unknown", "w2", 600)) == 498


def test_of_equal_similarities_the_earlier_word_comes_first(monkeypatch):
    monkeypatch.setattr(similarity, "_VIEW_ELEMENTS", 24)
    e = Embeddings(vocabulary(WORDS), np.ones((500, 12), np.float32))
    assert words_of(e.most_similar("w1", 4)) == ["w0", "w2", "w3", "w4"]
    assert words_of(e.most_similar(np.zeros(12), 2)) == ["w0", "w1"]


def test_rows_without_direction():
    """A row of zeros has similarity 0 to everything; one that holds NaN is never found."""
    rows = np.zeros((500, 12), np.float32)
    rows[0], rows[1], rows[2, 3] = 1, -1, np.nan
    results = Embeddings(vocabulary(WORDS), rows).most_similar("w0", 500)
    assert dict(results)["w3"] == 0
    assert words_of(results)[-1] == "w1"
    assert "w2" not in words_of(results)


def test_errors_on_unknown_words_name_the_file_and_similar_words(tmp_path):
    path = tmp_path / "w.weights"
    wm.save(path, {"e": np.eye(3, dtype=np.float32)}, vocab=["Berlin", "Paris", "Wien"])
    with wm.open(path) as f:
        e = f.embeddings
        for ask in (e.__getitem__, e.most_similar, lambda word: e.analogy("Paris", word, "Wien")):
            with pytest.raises(wm.UnknownWordError) as caught:
                ask("Berln")
            assert (caught.value.word, caught.value.args) == ("Berln", ("Berln",))
            assert str(caught.value) == (
                f"{path}: there is no vector for 'Berln' among those of 3 words; similar words: 'Berlin'"
            )
        copied = pickle.loads(pickle.dumps(caught.value))
        assert (type(copied), copied.word, str(copied)) == (wm.UnknownWordError, "Berln", str(caught.value))
        with pytest.raises(KeyError, match=r"no vector for 5 among those of 3 words; words are strings \(str\)$"):
            e[5]
        with pytest.raises(KeyError) as caught:
            e["x"]
        assert e.get("Berln") is None
        assert e.get("Berln", 5) == 5
    assert str(caught.value) == f"{path}: there is no vector for 'x' among those of 3 words"


def test_questions_that_make_no_sense():
    """Unknown words are KeyErrors; wrong shapes, NaN and counts below 1 are ValueErrors, other counts TypeErrors."""
    e = Embeddings(vocabulary(WORDS), matrix())
    with pytest.raises(KeyError, match="nobody"):
        e.most_similar("nobody")
    for wrong in (np.ones(11), np.ones((1, 12)), [np.nan] * 12, [np.inf] * 12):
        with pytest.raises(ValueError, match=r"shape|NaN"):
            e.most_similar(wrong)
    for k in (0, -1):
        with pytest.raises(ValueError, match="k is"):
            e.most_similar("w1", k)
    for given in (1.5, "3", None):
        for ask in (functools.partial(e.most_similar, "w1"), functools.partial(e.analogy, "w1", "w2", "w3")):
            with pytest.raises(TypeError, match=f"^k must be an integer, not {type(given).__name__}$"):
                ask(k=given)
    assert Embeddings(vocabulary([]), np.empty((0, 12), np.float32)).most_similar(np.ones(12)) == []


@pytest.fixture
def path(tmp_path):
    rows = np.array([[1, 0], [2, 1], [0, 1], [-1, 0]], np.float32)
    wm.save(tmp_path / "w.weights", {"e": rows}, vocab=["east", "north\x1b[2Jeast", "north", "west"])
    return str(tmp_path / "w.weights")


def test_similar_and_analogy_print_words_and_cosines(path, capsys):
    assert cli.main(["words", "similar", path, "east", "-k", "2"]) == 0
    assert capsys.readouterr().out == "north\\x1b[2Jeast 0.894427\nnorth 0.000000\n"
    assert cli.main(["words", "analogy", path, "east", "north", "west", "-k", "1"]) == 0
    assert capsys.readouterr().out == "north\\x1b[2Jeast -0.600000\n"
    assert cli.main(["words", "similar", path, "east", "-k", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["word"], document["results"][0]["word"]) == (1, "east", "north\x1b[2Jeast")


def test_words_without_vectors_are_reported(path, capsys):
    assert cli.main(["words", "analogy", path, "east", "nobody", "nowhere"]) == 1
    out, err = capsys.readouterr()
    said = f"weightmap: {path}: there is no vector for"
    assert out == ""
    assert [line.split(" among ")[0] for line in err.splitlines()] == [f"{said} 'nobody'", f"{said} 'nowhere'"]
    assert cli.main(["words", "similar", path, "nobody", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["results"] is None
    assert cli.main(["words", "similar", path, "east", "-k", "0"]) == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_word_whose_vector_has_no_direction(tmp_path, capsys, value):
    path = str(tmp_path / "w.weights")
    wm.save(path, {"e": np.array([[1, value], [0, 1]], np.float32)}, vocab=["bad\x1b[2J", "good"])
    with wm.open(path) as f:
        for ask in (lambda e: e.most_similar("bad\x1b[2J"), lambda e: e.analogy("good", "bad\x1b[2J", "good")):
            with pytest.raises(wm.FormatError, match=r"w\.weights: an element of the vector of 'bad.*no direction"):
                ask(f.embeddings)
    for command in (["similar", path, "bad\x1b[2J"], ["analogy", path, "good", "good", "bad\x1b[2J"]):
        assert cli.main(["words", *command]) == 3
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), "\x1b" in err) == ("", 1, False)
        assert "NaN or infinite" in err
    assert cli.main(["words", "similar", path, "good"]) == 0


def asked(monkeypatch, text, *argv):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    return cli.main(["words", *(str(argument) for argument in argv)])


@pytest.fixture
def words_file(tmp_path):
    path = tmp_path / "words.fifu"
    wm.save(path, {"embeddings": np.array([[1, 0], [1, 1], [0, 1], [-1, 1]], np.float32)}, vocab=["e", "ne", "n", "nw"])
    return path


def test_questions_from_standard_input(words_file, monkeypatch, capsys):
    """Without words, each line is a question, which its answers begin with; lines are UTF-8, or at least harmless."""
    assert asked(monkeypatch, b"e\n\nn\r\n", "lookup", words_file) == 0
    assert capsys.readouterr().out == "e 1 0\nn 0 1\n"
    assert asked(monkeypatch, b"e\nno\nn", "similar", words_file, "-k", 1) == 1
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()] == [["e", "ne"], ["n", "ne"]]
    assert err.startswith(f"weightmap: {words_file}: there is no vector for 'no' among those of ")
    assert "similar words" not in err
    assert asked(monkeypatch, b"e ne n\n", "analogy", words_file, "-k", 1) == 0
    assert capsys.readouterr().out.startswith("e ne n nw ")
    assert asked(monkeypatch, b"\xff\x1b[31m\n", "lookup", words_file) == 1
    assert capsys.readouterr().err.isprintable() is False  # its newline alone
    assert asked(monkeypatch, b"e ne\n", "analogy", words_file) == 2
    assert "has 2 words, expected three" in capsys.readouterr().err
    assert asked(monkeypatch, b"", "similar", words_file) == 0


def test_options_of_searches(words_file, monkeypatch, capsys):
    assert asked(monkeypatch, b"", "similar", words_file, "e", "-k", 1, "--skip", "ne") == 0
    assert capsys.readouterr().out.startswith("n 0.0000")
    argv = ["analogy", words_file, "--positive", "e", "--positive", "n", "--negative", "nw", "-k", 1]
    assert asked(monkeypatch, b"", *argv) == 0
    assert capsys.readouterr().out.startswith("ne ")
    assert asked(monkeypatch, b"", "analogy", words_file, "e", "n") == 2
    assert asked(monkeypatch, b"", "analogy", words_file, "--positive", "no") == 1
    monkeypatch.setattr("sys.stdin", None)
    assert cli.main(["words", "lookup", str(words_file)]) == 2
