"""finalfusion: files of other writers, written bytes, metadata, subwords, product quantisation."""

import datetime as dt
import itertools
import json
import os
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw
from tests.attacks import finalfusion as lies
from tests.builders import finalfusion as ff
from tests.builders import noise, normal
from tests.fifu_support import Parts, Words, explicit, pairs_of, reconstruct, same_product, subwords_of
from tests.support import DATA, exercise, listing, same, save_with

import weightmap as wm
from weightmap.core.quant.product import ProductQuantized

TRUTH = DATA / "finalfusion"
MALFORMED = DATA / "malformed" / "finalfusion"
OF_PYTHON = sorted(path.stem for path in TRUTH.glob("*.json"))
WORDS = ff.WORDS
ROWS = len(WORDS)


@pytest.mark.parametrize("name", OF_PYTHON)
def test_files_of_finalfusion_python_have_the_recorded_content(name):
    known = json.loads((TRUTH / f"{name}.json").read_text(encoding="utf-8"))
    arrays = np.load(TRUTH / f"{name}.npz")
    with wm.open(TRUTH / f"{name}.fifu", verify="full") as f:
        assert (f.format, f.layout) == ("finalfusion", "upstream")
        assert list(f.vocab) == known["words"]
        assert dict(f.metadata) == (known["metadata"] or {})
        assert f.info("embeddings").shape == tuple(known["shape"])
        assert ("norms" in f) == known["has_norms"]
        if known["has_norms"]:
            np.testing.assert_array_equal(f["norms"], arrays["norms"])
        if "matrix" in arrays:
            np.testing.assert_array_equal(f["embeddings"], arrays["matrix"])
        else:
            q = f["embeddings"]
            np.testing.assert_array_equal(q.codes, arrays["codes"])
            for part, key in ((q.projection, "projection"), (q.norms, "storage_norms")):
                assert (part is None) == (key not in arrays)
                if part is not None:
                    np.testing.assert_array_equal(part, arrays[key])
            np.testing.assert_allclose(reconstruct(q), arrays["reconstructed"], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(q.dequantize(), arrays["reconstructed"], rtol=1e-5, atol=1e-6)
        if "min_n" in known:
            kinds = {"FinalfusionBucketVocab": "bucket", "FastTextVocab": "fasttext", "ExplicitVocab": "explicit"}
            size = known["shape"][0] - len(known["words"])
            assert subwords_of(f.vocab) == (kinds[known["vocab_type"]], known["min_n"], known["max_n"], size)
        else:
            assert f.vocab.subwords is None
        if "ngrams" in known:
            assert pairs_of(f.vocab) == [tuple(pair) for pair in known["ngrams"]]


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
def test_verdicts_are_those_of_finalfusion_python(name, verdict):
    try:
        with wm.open((MALFORMED / f"{name}.fifu").read_bytes()) as f:
            exercise(f)
        accepted = True
    except wm.TensorFileError:
        accepted = False
    assert (accepted != verdict.startswith("ACCEPT")) == (name in DIFFERENT)


BUCKET, FASTTEXT = (Words(WORDS, Parts(*kind)) for kind in (("bucket", 3, 6, 16), ("fasttext", 1, 1, 5)))
TWO = [("ab", 0), ("bc", 1)]
DENSE = {
    "simple": (Words(WORDS), [ff.simple(WORDS)], 0, "upstream"),
    "bucket": (BUCKET, [ff.hashed(ff.BUCKET, WORDS, 3, 6, 4)], 16, "upstream"),
    "bucket-spec": (BUCKET, [ff.hashed(ff.BUCKET, WORDS, 3, 6, 4, spec=True)], 16, "spec"),
    "fasttext": (FASTTEXT, [ff.hashed(ff.FASTTEXT, WORDS, 1, 1, 5)], 5, "upstream"),
    "fasttext-spec": (FASTTEXT, [ff.hashed(ff.FASTTEXT, WORDS, 1, 1, 5, spec=True)], 5, "spec"),
    "explicit": (explicit(WORDS, ff.PAIRS, 2, 3), [ff.explicit(WORDS, ff.PAIRS, 2, 3)], 4, "upstream"),
    "explicit-spec": (explicit(WORDS, TWO, 2, 2), [ff.explicit(WORDS, TWO, 2, 2, spec=True)], 2, "spec"),
}


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("case", DENSE)
def test_vocabularies_are_written_to_the_byte(case, with_norms, tmp_path):
    vocab, chunks, more, layout = DENSE[case]
    value, lengths = normal((ROWS + more, 3), 1), ff.lengths(ROWS)
    tensors = {"embeddings": value.array} | ({"norms": lengths.array} if with_norms else {})
    path = tmp_path / "t.fifu"
    wm.save(path, tensors, vocab=vocab, output=wm.Output(layout=layout))
    expected = ff.build([*chunks, ff.matrix(value), *([ff.norms(lengths)] if with_norms else [])])
    assert path.read_bytes() == expected
    with wm.open(path, verify="full") as f:
        assert f.layout == ("spec" if "spec" in case else "upstream")
        assert list(f.vocab) == list(WORDS)
        assert not f.verify().warnings


@pytest.mark.parametrize("dtype", ff.CODES)
@pytest.mark.parametrize("length", range(9))
def test_matrices_of_every_type_are_written_to_the_byte(dtype, length, tmp_path):
    """Every numeric type is written with the padding of its width, wherever the data begins, and is then aligned."""
    value = noise(dtype, (1, 3), 3)
    path = tmp_path / "t.fifu"
    wm.save(path, {"embeddings": value.array}, vocab=["x" * length])
    assert path.read_bytes() == ff.build([ff.simple(["x" * length]), ff.matrix(value)])
    with wm.open(path) as f:
        assert same(f["embeddings"], value)
        assert f["embeddings"].flags.aligned


PRODUCTS = list(itertools.product((False, True), (False, True), (1, 7, 256)))


@pytest.mark.parametrize(("projection", "row_norms", "centroids"), PRODUCTS)
def test_product_quantised_matrices_are_read_as_views_and_written_to_the_byte(
    projection, row_norms, centroids, tmp_path
):
    codes, books, rotation, lengths = ff.quantised(ROWS, 3, centroids, 2)
    parts = (codes, books, rotation if projection else None, lengths if row_norms else None)
    data = ff.build([ff.simple(WORDS), ff.product(*parts), ff.norms(normal((ROWS,), 2))])
    path, again = tmp_path / "t.fifu", tmp_path / "again.fifu"
    path.write_bytes(data)
    with wm.open(path, verify="full") as f:
        q = f["embeddings"]
        assert (q.scheme, q.shape) == ("pq", (ROWS, 6))
        assert same_product(q, parts)
        for part in (q.codes, q.codebooks, q.projection, q.norms):
            assert part is None or not (part.flags.owndata or part.flags.writeable)
        info = f.info("embeddings")
        assert info.dtype == "pq"
        assert info.nbytes == sum(part.nbytes for part in parts if part is not None)
        wm.save(again, dict(f), vocab=f.vocab)
    assert again.read_bytes() == data


@settings(max_examples=50, deadline=None)
@given(
    words=draw.lists(draw.text(draw.characters(exclude_categories=("Cs",)), max_size=9), max_size=9, unique=True),
    kind=draw.sampled_from(["simple", "bucket", "fasttext"]),
    dtype=draw.sampled_from(list(ff.CODES)),
    cols=draw.integers(0, 4),
    spec=draw.booleans(),
)
def test_anything_that_can_be_written_comes_back(words, kind, dtype, cols, spec):
    import tempfile

    more = {"simple": 0, "bucket": 4, "fasttext": 3}[kind]
    value = noise(dtype, (len(words) + more, cols), 7)
    vocab = words if kind == "simple" else Words(words, Parts(kind, 2, 5, more))
    chunk = ff.simple(words)
    if kind != "simple":
        chunk = ff.hashed(ff.BUCKET if kind == "bucket" else ff.FASTTEXT, words, 2, 5, {4: 2, 3: 3}[more], spec=spec)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.fifu"
        wm.save(path, {"embeddings": value.array}, vocab=vocab, output=wm.Output(layout="spec" if spec else None))
        assert path.read_bytes() == ff.build([chunk, ff.matrix(value)])
        with wm.open(path, verify="full") as f:
            assert list(f.vocab) == words
            assert all(f.vocab.index(word) == i for i, word in enumerate(words))
            assert same(f["embeddings"], value)


FINE = np.zeros((2, 3), np.float32)


def product(*shape):
    return ProductQuantized(np.zeros((2, shape[0]), np.uint8), np.zeros(shape, np.float32))


def nested(depth):
    return {"k": nested(depth - 1)} if depth else {}


REFUSED = {
    "no matrix": ({"norms": FINE[:, 0]}, {}, "'embeddings'"),
    "another tensor": ({"embeddings": FINE, "bias": FINE}, {}, "'bias'"),
    "no vocabulary": ({"embeddings": FINE}, {"vocab": None}, "there is no vocabulary"),
    "half precision": ({"embeddings": FINE.astype(np.float16)}, {}, "float16"),
    "a word twice": ({"embeddings": FINE}, {"vocab": ["a", "a"]}, "has the word 'a' twice"),
    "no text": ({"embeddings": FINE}, {"vocab": ["a", "\ud800"]}, "word 1"),
    "a number for a word": ({"embeddings": FINE}, {"vocab": ["a", 5]}, "word 1 is 5"),
    "norms of doubles": ({"embeddings": FINE, "norms": np.zeros(2)}, {}, "float64"),
    "unknown subwords": ({"embeddings": FINE}, {"vocab": Words("ab", Parts("floret", 3, 6, 4))}, "'floret'"),
    "a gap in indices": ({"embeddings": FINE}, {"vocab": explicit("ab", [("x", 1)], 1, 1)}, "leave out"),
    "an n-gram twice": ({"embeddings": FINE}, {"vocab": explicit("ab", [("x", 0), ("x", 1)], 1, 1)}, "repeated"),
    "shared indices": (
        {"embeddings": np.zeros((3, 3), np.float32)},
        {"vocab": explicit("ab", [("x", 0), ("y", 0)], 1, 1), "layout": "spec"},
        "share an index",
    ),
    "no n-grams": ({"embeddings": FINE}, {"vocab": Words("ab", Parts("explicit", 1, 3, 1))}, "without n-grams"),
    "no columns, quantised": ({"embeddings": product(1, 3, 0)}, {}, "rows without elements"),
    "another scheme": ({"embeddings": wm.quantize(FINE, "int4")}, {}, "int4"),
    "tables 129 deep": ({"embeddings": FINE}, {"metadata": nested(129)}, "nested more than 128 deep"),
    "None in metadata": ({"embeddings": FINE}, {"metadata": {"a": None}}, "metadata"),
    "surrogates in metadata": ({"embeddings": FINE}, {"metadata": {"a": "\udc00"}}, "metadata"),
    "special ids": ({"embeddings": FINE}, {"special_ids": {"pad": 0}}, "special_ids"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_expressed_is_refused_before_a_file_is_there(case, tmp_path):
    tensors, options, words = REFUSED[case]
    with pytest.raises(wm.EncodeError, match=re.escape(words)):
        save_with(tmp_path / "t.fifu", tensors, **{"vocab": ["a", "b"], **options})
    assert not listing(tmp_path)


BASE = [ff.simple(["a"]), ff.matrix(normal((1, 2)))]


def test_metadata_keeps_its_text_when_it_is_unchanged(tmp_path):
    """Comments, order and spacing survive; a changed copy is written anew, and reads back equal."""
    path, again = tmp_path / "t.fifu", tmp_path / "again.fifu"
    path.write_bytes(ff.build([ff.metadata(ff.TOML), *BASE]))
    with wm.open(path) as f:
        assert f.metadata == ff.PARSED
        wm.save(again, dict(f), vocab=f.vocab, metadata=f.metadata)
        assert again.read_bytes() == path.read_bytes()
        copy = pickle.loads(pickle.dumps(f.metadata.copy()))
        wm.save(again, dict(f), vocab=f.vocab, metadata=copy)
        assert again.read_bytes() == path.read_bytes()
        copy["hyper"]["dims"] = 5
        wm.save(again, dict(f), vocab=f.vocab, metadata=copy)
    with wm.open(again) as f:
        assert f.metadata == {**ff.PARSED, "hyper": {**ff.PARSED["hyper"], "dims": 5}}


@pytest.mark.parametrize(
    "metadata",
    [{1: 2}, {"a": {None: 1}}, {"a": None}, {"a": [b"bytes"]}, {"a": dt.time(1, tzinfo=dt.UTC)}, {"a": "\ud800"}],
    ids=ascii,
)
def test_what_toml_lacks_is_refused(metadata, tmp_path):
    """Keys that are not text, None, bytes, times of day with a zone and lone surrogates are an EncodeError."""
    with pytest.raises(wm.EncodeError, match="metadata"):
        wm.save(tmp_path / "t.fifu", {"embeddings": FINE}, vocab=["a", "b"], metadata=metadata)
    assert not listing(tmp_path)


@pytest.mark.parametrize("wrong", [0, 1, 30, 2**40, 2**64 - 1])
@pytest.mark.parametrize("case", ["simple", "bucket", "fasttext-spec", "explicit", "explicit-spec"])
def test_a_wrong_length_of_a_vocabulary_does_no_harm(case, wrong):
    _, [chunk], more, _ = DENSE[case]
    lie = ff.Chunk(chunk.id, chunk.fields, length=wrong)
    value = normal((ROWS + more, 3), 1)
    with wm.open(ff.build([lie, ff.matrix(value)])) as f:
        assert same(f["embeddings"], value)
        assert list(f.vocab) == list(WORDS)
        [warning] = f.verify().warnings
        assert f"is {wrong}, and its words and n-grams take {len(chunk.fields)} bytes" in warning


# Files with one lie each are in tests/attacks/finalfusion.py.
ATTACKS = {case.name: case for case in lies.cases()}


def test_repeated_words_are_found_by_looking_one_up():
    with wm.open(ATTACKS["1 words twice"].data) as f:
        assert list(f.vocab) == [*"abcda"]
        for _ in range(2):
            with pytest.raises(wm.LayoutError, match="words 0 and 4 are both 'a'"):
                f.vocab.index("b")


def test_a_file_that_changed_is_noticed_by_verify(put):
    """Chunks that changed since the opening are refused, though size and time are the same."""
    path = put(lies.WHOLE)
    with wm.open(path) as f:
        status = path.stat()
        with path.open("r+b") as file:
            file.seek(lies.S + 8)
            file.write(struct.pack("<II", 4, 3))  # four columns of i16
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(wm.LayoutError, match="changed"):
            f.verify()


@pytest.mark.parametrize("wide", [2**63, -(2**63) - 1, 2**64])
def test_integers_of_more_than_64_bits_are_not_written(tmp_path, wide):
    """TOML's integers have 64 bits: other programs refuse the file, or read another number."""
    path, tensors = tmp_path / "t.fifu", {"embeddings": np.ones((2, 3), np.float32)}
    for metadata in ({"k": wide}, {"a": {"b": [1, (wide,)]}}):
        with pytest.raises(wm.EncodeError, match="an integer of more than 64 bits"):
            wm.save(path, tensors, vocab=["a", "b"], metadata=metadata)
    assert not path.exists()
    metadata = {"least": -(2**63), "most": 2**63 - 1}
    wm.save(path, tensors, vocab=["a", "b"], metadata=metadata)
    assert wm.open(path).metadata == metadata
