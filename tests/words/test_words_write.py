"""From finalfusion to the files of other programs and back, explicit n-grams, and models with a vocabulary."""

import json
import struct
import sys

import numpy as np
import pytest
from tests import word_files as wb

import weightmap as wm
from weightmap.core.formats._base import discover
from weightmap.core.table.vocabulary import Subwords, Vocabulary
from weightmap.words import convert as convert_words
from weightmap.words import importers

ROWS = wb.matrix(5, 4)
BUILT = {
    "word2vec": wb.word2vec(wb.WORDS, ROWS),
    "text": wb.text(wb.WORDS, ROWS),
    "textdims": wb.text(wb.WORDS, ROWS, dims=True),
}


@pytest.mark.parametrize("name", ["word2vec", "text", "textdims", "fasttext"])
def test_there_and_back(name, put, tmp_path):
    """Normalised rows are multiplied by their norms, which gives the old rows up to rounding."""
    wm.convert(put(BUILT["word2vec"]), tmp_path / "a.fifu")
    report = wm.convert(tmp_path / "a.fifu", tmp_path / "b", format=name)
    assert (report.format, report.nbytes) == (name, (tmp_path / "b").stat().st_size)
    convert_words(tmp_path / "b", tmp_path / "c.fifu", normalize=False)
    with wm.open(tmp_path / "c.fifu") as f:
        assert list(f.vocab) == wb.WORDS
        np.testing.assert_allclose(f["embeddings"], ROWS, rtol=2e-7)


@pytest.mark.parametrize("source", BUILT)
@pytest.mark.parametrize("name", BUILT)
def test_between_them(source, name, put, tmp_path):
    wm.convert(put(BUILT[source]), tmp_path / "b", format=name)
    written = (tmp_path / "b").read_bytes()
    if name == "word2vec":
        assert written == BUILT[name]
        return
    lines = written.decode().splitlines()
    assert lines[: name == "textdims"] == ["5 4"][: name == "textdims"]
    fields = [line.split(" ") for line in lines[name == "textdims" :]]
    assert [field[0] for field in fields] == wb.WORDS
    assert np.array([field[1:] for field in fields], np.float32).tobytes() == ROWS.tobytes()


def test_fasttext_comes_back(put, tmp_path):
    """The rows of words become their own again, those of buckets are untouched, and so are the options."""
    pytest.importorskip("tomli_w")
    rows = wb.matrix(5 + 19, 6, 4)
    wm.convert(put(wb.fasttext(wb.WORDS, rows, 19, loss=1, epoch=77)), tmp_path / "a.fifu")
    wm.convert(tmp_path / "a.fifu", tmp_path / "b.bin", format="fasttext")
    data = (tmp_path / "b.bin").read_bytes()
    fields = struct.unpack_from("<14id3i2q", data)
    assert fields[:5] == (793712314, 12, 6, 5, 77)
    assert fields[8:14] == (1, 2, 19, 3, 6, 100)
    assert fields[15:18] == (5, 5, 0)
    at = data.index(b"five\0") + len("five") + 10
    assert struct.unpack_from("<Bqq", data, at) == (0, 24, 6)
    back = np.frombuffer(data, "<f4", 24 * 6, at + 17).reshape(24, 6)
    assert back[5:].tobytes() == rows[5:].tobytes()
    np.testing.assert_allclose(back, rows, atol=2e-5)
    assert data[at + 17 + back.nbytes :] == struct.pack("<Bqq", 0, 0, 6)


def subword_file(path, kind, rows, **extra):
    """Save words with n-grams of 2 to 4 characters in 8 buckets."""
    vocab = Vocabulary.of(wb.WORDS, subwords=Subwords(kind, 5, 2, 4, 8))
    wm.save(path, {"embeddings": rows, **extra}, vocab=vocab)


def test_rows_of_ngrams_are_left_behind_with_a_warning(tmp_path):
    """word2vec cannot hold n-grams; fastText cannot hold foreign buckets."""
    rows = wb.matrix(13, 3)
    subword_file(tmp_path / "a.fifu", "bucket", rows)
    report = wm.convert(tmp_path / "a.fifu", tmp_path / "b", format="word2vec")
    assert report.warnings == ("format word2vec has no place for n-grams: 8 rows left behind",)
    assert (tmp_path / "b").read_bytes() == wb.word2vec(wb.WORDS, rows[:5])
    with pytest.raises(wm.EncodeError, match="vocabulary of kind bucket"):
        wm.convert(tmp_path / "a.fifu", tmp_path / "c", format="fasttext")


@pytest.mark.parametrize("kind", ["bucket", "fasttext"])
def test_explicit_ngrams(kind, tmp_path):
    """Each n-gram of the words is listed with the row of its bucket, rows numbered by first appearance."""
    rows, norms = wb.matrix(13, 3), np.arange(1, 6, dtype=np.float32)
    subword_file(tmp_path / "a.fifu", kind, rows, norms=norms)
    convert_words(tmp_path / "a.fifu", tmp_path / "b.fifu", subwords="explicit")
    with wm.open(tmp_path / "a.fifu") as a, wm.open(tmp_path / "b.fifu") as b:
        b.verify()
        table, indices = b.vocab.subwords.ngrams()
        expected = {}
        for word in wb.WORDS:
            expected |= dict.fromkeys(wb.ngrams(word, 2, 4))
        assert list(table) == list(expected)
        firsts = list(dict.fromkeys(indices.tolist()))
        assert firsts == list(range(len(firsts)))
        assert b["norms"].tolist() == norms.tolist()
        assert b["embeddings"][:5].tobytes() == rows[:5].tobytes()
        # Every n-gram of a word leads to its bucket's old row.
        old = [a["embeddings"][i].tolist() for i in a.vocab.ngram_indices("zwei")]
        assert [b["embeddings"][i].tolist() for i in b.vocab.ngram_indices("zwei")] == old


BAD_WORDS = [
    ("word2vec", ["a b"]),
    ("word2vec", ["a\nb"]),
    ("text", ["a\tb", "", "\0"]),
    ("textdims", ["", "\0"]),
    ("fasttext", ["a\0b"]),
]


@pytest.mark.parametrize(("name", "words"), BAD_WORDS)
def test_words_that_have_no_place(name, words, tmp_path):
    wm.save(tmp_path / "a.fifu", {"embeddings": wb.matrix(len(words), 2)}, vocab=words)
    with pytest.raises(wm.EncodeError) as caught:
        wm.convert(tmp_path / "a.fifu", tmp_path / "b", format=name)
    assert all(f"word {i}, " in str(caught.value) for i in range(len(words)))
    assert not (tmp_path / "b").exists()


def test_the_matrix_of_a_model_becomes_embeddings(tmp_path):
    words, rows = ["[PAD]", "one", "two"], wb.matrix(3, 4)
    tensors = {"embeddings.word_embeddings.weight": rows, "encoder.weight": wb.matrix(4, 4)}
    wm.save(tmp_path / "model.weights", tensors, vocab=words)
    report = wm.convert(tmp_path / "model.weights", tmp_path / "w.fifu", include="*word_embeddings*")
    assert "tensor 'embeddings.word_embeddings.weight' is written as 'embeddings'" in report.warnings
    with wm.open(tmp_path / "w.fifu") as f:
        assert list(f.vocab) == words
        assert list(f) == ["embeddings"]
        assert f["embeddings"].tobytes() == rows.tobytes()
        assert f.embeddings["two"].tolist() == rows[2].tolist()
    wm.convert(tmp_path / "w.fifu", tmp_path / "back.weights")
    with wm.open(tmp_path / "back.weights") as f:
        assert list(f.vocab) == words
        assert f["embeddings"].tobytes() == rows.tobytes()
    wm.convert(tmp_path / "model.weights", tmp_path / "w.vec", format="textdims")
    assert (tmp_path / "w.vec").read_text(encoding="utf-8").startswith("3 4\n[PAD] ")


def test_a_directory_gives_its_vocabulary(tmp_path):
    (tmp_path / "m").mkdir()
    rows = wb.matrix(2, 3)
    wm.save(tmp_path / "m" / "model.safetensors", {"w": rows})
    (tmp_path / "m" / "vocab.txt").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "m" / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    wm.convert(tmp_path / "m", tmp_path / "b", format="word2vec")
    assert (tmp_path / "b").read_bytes() == wb.word2vec(["one", "two"], rows)


TOY = """
from weightmap.core.formats import Importer
from weightmap.words.importers._words import Words
from weightmap.words.importers.text import IMPORTER as TEXT

def read(source, head, options):
    return TEXT.read(source, head, options)._replace(format="toy")

IMPORTER = Importer("toy", "this is a toy: convert it", lambda head, size: head.startswith(b"toy "), read)
"""


def test_an_importer_is_added_by_adding_a_file(put, tmp_path, monkeypatch):
    """A file that defines IMPORTER is all that it takes: `open` names such a file, `convert` reads it, to any format.

    Where two claim a file, both are named.
    """
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(importers, "__path__", [*importers.__path__, str(tmp_path)])
    found = discover("weightmap.words.importers", importers.__path__, "IMPORTER")
    try:
        assert list(found) == sorted([*importers.IMPORTERS, "toy"])
        monkeypatch.setattr(importers, "IMPORTERS", {"toy": found["toy"]})
        source = put(b"toy 1 2\nb 3 4\n")
        with pytest.raises(wm.UnknownFormatError, match="this is a toy: convert it") as caught:
            wm.open(source)
        assert (caught.value.path, caught.value.format, caught.value.offset) == (str(source), "toy", 0)
        convert_words(source, tmp_path / "a.fifu", normalize=False)
        with wm.open(tmp_path / "a.fifu") as f:
            assert f["embeddings"].tolist() == [[1, 2], [3, 4]]
        monkeypatch.setattr(importers, "IMPORTERS", found)
        with pytest.raises(wm.UnknownFormatError, match="more than one format recognises this file: text, toy"):
            wm.convert(source, tmp_path / "b.fifu")
    finally:
        del sys.modules["weightmap.words.importers.toy"], importers.toy


def test_the_command_line(put, tmp_path):
    from weightmap.cli import main

    source = put(wb.word2vec(["ok", b"z\xffz"], [[3, 4], [6, 8]]), "w.bin")
    assert main(["convert", str(source), str(tmp_path / "a.fifu")]) == 3
    assert main(["convert", str(source), str(tmp_path / "a.fifu"), "--lossy"]) == 0
    with wm.open(tmp_path / "a.fifu") as f:
        assert f["norms"].tolist() == [5, 10]
    assert main(["words", "convert", str(source), str(tmp_path / "b.fifu"), "--lossy", "--no-normalize"]) == 0
    with wm.open(tmp_path / "b.fifu") as f:
        assert f["embeddings"].tolist() == [[3, 4], [6, 8]]
    assert main(["convert", str(tmp_path / "a.fifu"), str(tmp_path / "c"), "--format", "text"]) == 0
    subword_file(tmp_path / "d.fifu", "bucket", wb.matrix(13, 3))
    assert main(["words", "convert", str(tmp_path / "d.fifu"), str(tmp_path / "e.fifu"), "--subwords", "explicit"]) == 0
    with wm.open(tmp_path / "e.fifu") as f:
        assert f.vocab.subwords.kind == "explicit"
    for wrong in (["--seed", "3"], ["--quantize", "pq", "--bits", "9"], ["--quantize", "int8", "--projection"]):
        assert main(["convert", str(source), str(tmp_path / "f.fifu"), "--lossy", *wrong]) == 2


@pytest.mark.parametrize("name", ["word2vec", "text", "textdims", "fasttext"])
def test_rows_without_elements_have_no_place(tmp_path, name):
    """No program reads such a file."""
    wm.save(tmp_path / "a.fifu", {"embeddings": np.zeros((2, 0), np.float32)}, vocab=["a", "b"])
    with pytest.raises(wm.EncodeError, match=f"format {name} has no place for rows without elements"):
        convert_words(tmp_path / "a.fifu", tmp_path / "x", format=name)
    assert not (tmp_path / "x").exists()


def test_more_rows_than_may_be_copied_are_an_error_that_names_the_file(tmp_path):
    wm.save(tmp_path / "a.fifu", {"embeddings": np.ones((2, 4), np.float32)}, vocab=["a", "b"])
    with pytest.raises(wm.LimitError, match=r"a\.fifu: bytes of rows to copy is 32, expected at most 31"):
        convert_words(tmp_path / "a.fifu", tmp_path / "b.fifu", limits=wm.Limits(max_copy_bytes=31))


def test_a_format_that_does_not_exist(tmp_path):
    wm.save(tmp_path / "a.fifu", {"embeddings": np.ones((1, 2), np.float32)}, vocab=["a"])
    with pytest.raises(ValueError, match=r"format is 'glove', expected one of .*embd.*word2vec"):
        convert_words(tmp_path / "a.fifu", tmp_path / "x", format="glove")


def test_metadata_of_models_is_kept_or_named(tmp_path):
    """Tokens and special ids in the metadata of GGUF are the vocabulary; TOML has no arrays of numpy."""
    pytest.importorskip("tomli_w")
    ids = {"tokenizer.ggml.tokens": wb.WORDS, "tokenizer.ggml.bos_token_id": 1}
    wm.save(tmp_path / "a.gguf", {"w": ROWS}, metadata=ids | {"n": 3, "list": [1, 2], "texts": ["x"], "b": True})
    assert convert_words(tmp_path / "a.gguf", tmp_path / "b.fifu").warnings == (
        "words have no special ids: bos left behind",
    )
    with wm.open(tmp_path / "b.fifu") as f:
        assert (list(f.vocab), f.metadata) == (wb.WORDS, {"n": 3, "list": [1, 2], "texts": ["x"], "b": True})
    report = convert_words(tmp_path / "b.fifu", tmp_path / "d.weights")
    what = "words are written to EMBD without 4 metadata entries ('n', 'list', 'texts', 'b'): left behind"
    assert report.warnings == (what,)
    assert wm.open(tmp_path / "d.weights").metadata == {}


@pytest.mark.parametrize("name", ["include", "exclude"])
def test_globs_that_no_tensor_matches_are_errors(name, tmp_path):
    wm.save(tmp_path / "a.weights", {"w": ROWS, "x": ROWS}, vocab=wb.WORDS)
    with pytest.raises(wm.EncodeError, match=f"{name} is 'z', which matches none of 2 tensors"):
        wm.convert(tmp_path / "a.weights", tmp_path / "b.txt", format="text", **{"exclude": "w", name: ["w", "z"]})
    assert not (tmp_path / "b.txt").exists()
    assert wm.convert(tmp_path / "a.weights", tmp_path / "b.txt", format="text", exclude="w").tensors == 1
