"""Word embeddings of other programs become finalfusion files; errors name their defects precisely."""

import functools
import struct

import numpy as np
import pytest
from tests import word_files as wb

import weightmap as wm
from weightmap._messages import counted
from weightmap.cli import main
from weightmap.core.model import single
from weightmap.words import convert as convert_words

ROWS = wb.matrix(5, 4)
UNIT = ROWS / np.linalg.norm(ROWS, axis=1)[:, None]
UNFINISHED = "the last line has no end: was the download complete?"

FILES = {
    "word2vec": wb.word2vec(wb.WORDS, ROWS),
    "word2vec without line feeds": wb.word2vec(wb.WORDS, ROWS, end=b""),
    "text": wb.text(wb.WORDS, ROWS),
    "text, CRLF": wb.text(wb.WORDS, ROWS, end="\r\n"),
    "text, tabs": wb.text(wb.WORDS, ROWS, sep="\t"),
    "text, many spaces": wb.text(wb.WORDS, ROWS, sep="  "),
    "text, spaces at the ends of lines": wb.text(wb.WORDS, ROWS, end=" \n"),
    "text, last line without an end": wb.text(wb.WORDS, ROWS)[:-1],
    "textdims": wb.text(wb.WORDS, ROWS, dims=True),
    "fasttext without n-grams": wb.fasttext(wb.WORDS, ROWS, 0, minn=0, maxn=0),
    "fasttext with unused buckets": wb.fasttext(wb.WORDS, np.vstack([ROWS, ROWS]), 5, minn=0, maxn=0),
}


@pytest.mark.parametrize("kind", FILES)
def test_rows_become_unit_vectors_and_norms(kind, put, tmp_path):
    """From every kind of file words arrive in order, rows as unit vectors, and their norms."""
    report = wm.convert(put(FILES[kind], "source.bin"), tmp_path / "out.fifu")
    warnings = (UNFINISHED,) if kind == "text, last line without an end" else ()
    assert (report.format, report.tensors, report.warnings) == ("finalfusion", 2, warnings)
    with wm.open(tmp_path / "out.fifu") as f:
        f.verify()
        assert list(f.vocab) == wb.WORDS
        np.testing.assert_allclose(f["embeddings"], UNIT, rtol=1e-6)
        np.testing.assert_allclose(f["norms"], np.linalg.norm(ROWS, axis=1), rtol=1e-6)


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_rows_are_kept_bit_by_bit_on_request(data, put, tmp_path):
    convert_words(put(data, "source.bin"), tmp_path / "out.fifu", normalize=False)
    with wm.open(tmp_path / "out.fifu") as f:
        assert list(f) == ["embeddings"]
        assert f["embeddings"].tobytes() == ROWS.tobytes()


def test_other_formats_take_words_too(put, tmp_path):
    source = put(FILES["text"], "glove.txt")
    assert wm.convert(source, tmp_path / "out.weights").warnings == ()
    with wm.open(tmp_path / "out.weights") as f:
        assert list(f.vocab) == wb.WORDS
        assert f["embeddings"].tobytes() == ROWS.tobytes()
    assert "vocabulary of 5 words" in wm.convert(source, tmp_path / "out.safetensors").warnings[0]


def test_words_with_spaces_in_text(put, tmp_path):
    """A word of GloVe may be several fields, as long as the later ones are not numbers."""
    for lines in (b"x 1 2\n. . . 3 4\na b 5 6\nc 7 8\n", b". . . 3 4\na b 5 6\nx 1 2\n", b"a b 5 6\nx 1 2\n"):
        found = {line[:-4].decode(): [int(line[-3:-2]), int(line[-1:])] for line in lines.splitlines()}
        convert_words(put(lines), tmp_path / "out.fifu", normalize=False)
        with wm.open(tmp_path / "out.fifu") as f:
            assert dict(zip(f.vocab, f["embeddings"].tolist(), strict=True)) == found


def test_blocks_are_joined_rightly(put, tmp_path, monkeypatch):
    rows, names = wb.matrix(400, 7), [f"wörd{i}" for i in range(400)]
    monkeypatch.setattr("weightmap.words.importers._words.BLOCK", 1000)
    for data in (wb.text(names, rows), wb.word2vec(names, rows), wb.fasttext(names, rows, 0, minn=0, maxn=0)):
        convert_words(put(data), tmp_path / "out.fifu", normalize=False)
        with wm.open(tmp_path / "out.fifu") as f:
            assert list(f.vocab) == names
            assert f["embeddings"].tobytes() == rows.tobytes()


def test_fasttext_words_are_means(put, tmp_path):
    """A word's row becomes the mean of its own and its n-grams' rows; buckets stay; options become metadata."""
    pytest.importorskip("tomli_w")
    words = ["one", "zwei", "три", "a", "</s>", "hello"]
    rows = wb.matrix(6 + 37, 5, 3)
    convert_words(put(wb.fasttext(words, rows, 37)), tmp_path / "out.fifu", normalize=False)
    with wm.open(tmp_path / "out.fifu") as f:
        np.testing.assert_allclose(f["embeddings"][:6], wb.averaged(words, rows, 37), rtol=2e-5, atol=1e-6)
        assert f["embeddings"][6:].tobytes() == rows[6:].tobytes()
        subwords = f.vocab.subwords
        assert (subwords.kind, subwords.min_n, subwords.max_n, subwords.size) == ("fasttext", 3, 6, 37)
        assert f.metadata["model"] == "SkipGram"
        assert f.metadata["buckets"] == 37
        unknown = [6 + wb.fasttext_hash(ngram) % 37 for ngram in wb.ngrams("newword", 3, 6)]
        expected = rows[unknown].astype(np.float64).sum(axis=0)
        np.testing.assert_allclose(f.embeddings["newword"], expected / np.linalg.norm(expected), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("longest", [1, 2, 4])
def test_fasttext_of_single_characters(put, tmp_path, longest):
    """fastText has no n-grams of brackets alone: known words agree with it, and a list of n-grams omits them."""
    words = ["东京", "a", "b>c", "三"]
    rows = wb.matrix(4 + 37, 5, 3)
    source = put(wb.fasttext(words, rows, 37, minn=1, maxn=longest))
    wanted = wb.averaged(words, rows, 37, 1, longest)
    report = convert_words(source, tmp_path / "out.fifu", normalize=False)
    assert any("min_n is 1" in warning for warning in report.warnings)
    with wm.open(tmp_path / "out.fifu") as f:
        np.testing.assert_allclose(f["embeddings"][:4], wanted, rtol=2e-5, atol=1e-6)
    convert_words(tmp_path / "out.fifu", tmp_path / "back.bin", normalize=False, format="fasttext")
    convert_words(tmp_path / "back.bin", tmp_path / "again.fifu", normalize=False)
    convert_words(source, tmp_path / "listed.fifu", normalize=False, subwords="explicit")
    for name in ("again.fifu", "listed.fifu"):
        with wm.open(tmp_path / name) as f:
            np.testing.assert_allclose(f["embeddings"][:4], wanted, rtol=2e-4, atol=1e-5)
    with wm.open(tmp_path / "listed.fifu") as f:
        assert not {"<", ">"} & set(f.vocab.subwords.ngrams()[0])


DAMAGED = wb.word2vec(["ok", b"z\xffz"], [[1, 2], [3, 4]])


@pytest.mark.parametrize("kind", ["text", "textdims"])
@pytest.mark.parametrize("target", ["out.fifu", "out.txt"])
def test_a_last_line_without_end_is_a_warning(kind, target, put, tmp_path):
    options = {"format": "text"} if target.endswith("txt") else {}
    whole = FILES[kind].rstrip() + b"\n"
    assert wm.convert(put(whole), tmp_path / target, **options).warnings == ()
    for cut in (whole[:-1], whole[:-2]):
        assert wm.convert(put(cut), tmp_path / target, **options).warnings == (UNFINISHED,)


BIG = 10**15
MODEL = wb.fasttext(wb.WORDS, wb.matrix(5 + 7, 4), 7)


def model(**lies):
    return wb.fasttext(wb.WORDS, wb.matrix(5 + 7, 4), 7, **lies)


PAIRS = [[1, 2], [3, 4]]
# By kind of file: its bytes, and the message about them.
WRONG = {
    "word2vec": [
        (DAMAGED, r"word 1, b'z\\xffz', is not UTF-8.*\(at byte 16\)"),
        (wb.word2vec("aba", [[1, 2]] * 3), r"word 2 is 'a', as 0 is: .*lossy=True\) keeps the first row .*byte 26\)"),
        (wb.word2vec("ab", [[1, 2], [3, np.nan]]), r"number 1 of row 1 is nan.*byte 17"),
        (wb.word2vec("a", [[1, np.inf]]), "number 1 of row 0 is inf"),
        (wb.word2vec("a", [[1, 2]], head=b"2 2\n"), "number of words with 2 numbers each is 2"),
        (wb.word2vec(["a" * 20], [[1, 2]], head=b"2 2\n"), "the file ends within word 1 of 2"),
        (wb.word2vec("ab", PAIRS, head=b"1 2\n"), "trailing bytes: the size of the file is 26"),
        (wb.word2vec("a", [[1, 2]], head=b"%d 2\n" % BIG), f"words with 2 numbers each is {BIG}"),
        (wb.word2vec("a", [[1, 2]], head=b"1 %d\n" % BIG), "number of dimensions is"),
        (b"1 0\na \n", "number of dimensions is 0"),
        (wb.word2vec("ab", wb.matrix(2, 9))[:-5], "words with 9 numbers each is 2|ends within"),
        (wb.word2vec(["aaaa", "b"], wb.matrix(2, 9))[:-5], "ends within the vector of word 1 of 2, b'b'"),
        (b"1 2\n" + b"\x01" * 100_000, "word 0 has no end"),
    ],
    "text": [
        (b"a 1 2\nz\xffz 3 4\n", r"the word of line 2, b'z\\xffz', is not UTF-8.*byte 6"),
        (b"a 1 2\nb 3 4\na 5 6\n", r"the word of line 3 is 'a', as 1 is.*byte 12"),
        (b"a 1 2\nb 3\n", r"number of numbers in line 2 is 1, expected 2 \(at byte 6\)"),
        (b"a 1 2\nb 3 4 5\n", "numbers in line 2 is 3, expected 2"),
        (b"a 1 2\nb 3\nc 4 5 6\n", "numbers in line 2 is 1"),
        (b"a 1 2\nb 3 x\n", r"number 2 of line 2 is 'x'.*\(at byte 6\)"),
        (b"a 1 2\nb 3 1_0\n", "number 2 of line 2 is '1_0'"),
        (b"a 1 2\nb nan 3\n", "number 1 of line 2 is 'nan'"),
        (b"a 1 2\nb 1e39 3\n", "number 1 of line 2 is '1e39', expected a finite number in the range of float32"),
        (b"a 1 2\n\nb 3 4\n", r"line 2 is empty \(at byte 6\)"),
    ],
    "textdims": [
        (b"2 2\na 1 2\nb 3 4\nc 5 6\n", "number of lines with words is 3, expected 2"),
        (b"9 2\na 1 2\nb 3 4\n", "number of lines with words is 2, expected 9"),
        (b"%d 2\na 1 2\n" % BIG, "number of lines with words is 1"),
        (b"2 3\na 1 2\nb 3 4\n", "numbers in line 2 is 2, expected 3"),
        (b"2 2\na 1 2\na 3 4\n", "the word of line 3 is 'a', as 2 is"),
    ],
    "fasttext": [
        (model(version=10), r"version is 10, expected 11 or 12 \(at byte 4\)"),
        (model(version=13), r"version is 13, expected 11 or 12 \(at byte 4\)"),
        (model(model=3), "supervised"),
        (model(nlabels=2), r"numbers of words and labels is 5 and 2, expected 5 together, the number of entries"),
        (model(nwords=7, nlabels=-2), "numbers of words and labels is 7 and -2"),
        (model(nwords=3, nlabels=2), "type of entry 3 is 0, expected 1, a label"),
        (model(pruned=4), "pruned"),
        (model(quant=1), "this model is quantised"),
        (model(kind=1), "type of entry 0 is 1"),
        (model(size=2**31 - 1), "number of words is 2147483647"),
        (model(size=-1), "number of words is -1"),
        (model(m=11), "number of rows is 11, expected 12"),
        (model(m=2**60), "number of rows is"),
        (model(n=5), "number of columns is 5, expected 4"),
        (model(dim=0), "dims is 0"),
        (wb.fasttext(["a"], np.full((8, 2), np.nan), 7), "number 0 of row 0 is nan"),
        (wb.fasttext(["a", "a"], wb.matrix(2, 2), 0, minn=0, maxn=0), "word 1 is 'a'"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [(kind, *case) for kind, cases in WRONG.items() for case in cases],
    ids=[f"{kind}: {message}" for kind, cases in WRONG.items() for _, message in cases],
)
def test_the_message_says_what_is_wrong(kind, data, message, put, tmp_path):
    source = put(data, "source.bin")
    with pytest.raises(wm.FormatError, match=message) as caught:
        wm.convert(source, tmp_path / "out.fifu")
    assert caught.value.path == str(source)
    assert caught.value.format == kind
    assert [path.name for path in tmp_path.iterdir()] == ["source.bin"]


REPEATED = ["a", "b", "a", "c", "b", "a"]


@pytest.mark.parametrize("data", [wb.word2vec, wb.text, functools.partial(wb.text, dims=True)])
@pytest.mark.parametrize("block", [24, 1 << 20])
def test_repeated_words_are_left_out_on_demand(put, tmp_path, monkeypatch, capsys, data, block):
    monkeypatch.setattr("weightmap.words.importers._words.BLOCK", block)
    rows = wb.matrix(len(REPEATED), 3)
    source = put(data(REPEATED, rows))
    report = convert_words(source, tmp_path / "out.fifu", lossy=True, normalize=False)
    assert "3 repeated words left out: the first row of each word stays" in report.warnings
    with wm.open(tmp_path / "out.fifu") as f:
        assert list(f.vocab) == ["a", "b", "c"]
        assert f["embeddings"].tobytes() == rows[[0, 1, 3]].tobytes()
    target = tmp_path / "again.fifu"
    assert main(["words", "convert", str(source), str(target), "--lossy", "--no-normalize"]) == 0
    assert "3 repeated words left out" in capsys.readouterr().out
    assert target.read_bytes() == (tmp_path / "out.fifu").read_bytes()
    assert main(["convert", str(source), str(target)]) == 3
    assert "--lossy keeps the first row of each word" in capsys.readouterr().err


@pytest.mark.parametrize("declared", [0, 1, 4, 5, 6, 10**17])
@pytest.mark.parametrize("kind", ["word2vec", "word2vec, no line feeds", "textdims"])
def test_a_wrong_number_of_words_is_refused_or_said(put, tmp_path, capsys, kind, declared):
    """By default an error with the remedy, which takes the words that are there; its warning has both counts."""
    data = {
        "word2vec": wb.word2vec(wb.WORDS, ROWS, head=b"%d 4\n" % declared),
        "word2vec, no line feeds": wb.word2vec(wb.WORDS, ROWS, end=b"", head=b"%d 4\n" % declared),
        "textdims": wb.text(wb.WORDS, ROWS, dims=True).replace(b"5 4", b"%d 4" % declared, 1),
    }[kind]
    source, target = put(data, "words.bin"), tmp_path / "out.fifu"
    if declared != len(wb.WORDS):
        for convert in (wm.convert, convert_words):
            with pytest.raises(
                wm.FormatError, match=r"; weightmap\.words\.convert\(strict=False\) takes the words that are there"
            ):
                convert(source, target)
        assert main(["convert", str(source), str(target)]) == 3
        assert "; --lenient takes the words that are there" in capsys.readouterr().err
    warning = f"the first line declares {counted(declared, 'word')}, the file has 5"
    report = convert_words(source, target, strict=False)
    assert report.warnings == (() if declared == 5 else (warning,))
    with wm.open(target) as f:
        assert list(f.vocab) == wb.WORDS
    assert main(["convert", str(source), str(target), "--lenient"]) == 0
    assert (warning in capsys.readouterr().out) == (declared != 5)


@pytest.mark.parametrize("kind", ["word2vec", "text", "textdims", "model"])
def test_cut_anywhere_it_is_an_error_of_ours(kind, put, tmp_path):
    data = {**FILES, "model": MODEL}[kind]
    refused = 0
    for size in range(0, len(data), 5):
        try:
            wm.convert(put(data[:size]), tmp_path / "out.fifu")
        except wm.FormatError:
            refused += 1
    assert refused > len(data) // 20


@pytest.mark.parametrize("kind", ["word2vec", "text", "textdims", "model"])
def test_damaged_anywhere_it_is_an_error_of_ours(kind, put, tmp_path):
    data, random = {**FILES, "model": MODEL}[kind], np.random.default_rng(1)
    for at in random.choice(len(data), 20, replace=False).tolist():
        for value in (0, 0x20, 0xFF, data[at] ^ 1):
            try:
                wm.convert(put(data[:at] + bytes([value]) + data[at + 1 :]), tmp_path / "out.fifu")
            except wm.TensorFileError:
                continue
            with wm.open(tmp_path / "out.fifu") as f:
                f.verify()


def test_a_file_that_changes_while_it_is_recognised(put, tmp_path, monkeypatch):
    path = put(FILES["text"], "source.bin")

    def changing(*args):
        put(FILES["textdims"], "source.bin")
        return identify(*args)

    identify = single.identify
    monkeypatch.setattr(single, "identify", changing)
    with pytest.raises(wm.FileChangedError, match=r"source\.bin: the file was changed while"):
        convert_words(path, tmp_path / "out.fifu")


def test_what_is_none_of_these_stays_unknown(put, tmp_path):
    for data in (b"hello world, this is prose\n", b'{"a": 1}', struct.pack("<8d", *range(8)), b"\n", b""):
        with pytest.raises(wm.FormatError) as caught:
            wm.convert(put(data), tmp_path / "out.fifu")
        assert caught.value.format is None


@pytest.mark.parametrize("version", [11, 12])
def test_words_that_look_like_labels_have_no_vector(tmp_path, version):
    """fastText takes a word that begins with `__label__` for a label, which stands behind the words."""
    rows = wb.matrix(5 + 7, 4)
    whole = wb.fasttext(wb.WORDS, rows, 7, version=version)
    entry = b"__label__\0" + struct.pack("<qb", 3, 1)
    end = struct.calcsize("<14id3i2q") + sum(len(raw) + 10 for raw in wb.raws(wb.WORDS))
    path = tmp_path / "m.bin"
    head = struct.pack("<3i", 6, 5, 1)
    path.write_bytes(whole[:64] + head + whole[76:end] + entry + whole[end:])
    report = wm.convert(path, tmp_path / "m.fifu")
    assert any("1 label, such as '__label__', left out" in warning for warning in report.warnings)
    with wm.open(tmp_path / "m.fifu") as f:
        assert list(f.vocab) == wb.WORDS
        wanted = wb.averaged(wb.WORDS, rows, 7)
        for word, row in zip(wb.WORDS, wanted, strict=True):
            unit, norm = f.embeddings.embedding_with_norm(word)
            np.testing.assert_allclose(unit * norm, row, rtol=1e-5)
