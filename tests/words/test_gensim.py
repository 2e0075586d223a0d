"""gensim's native files, ``.kv``: read without gensim, without executing anything, and compared with gensim."""

import pickle
import random
import struct
import sys
import types

import numpy as np
import pytest

import weightmap as wm
from weightmap.words import convert as convert_words

WORDS = ["one", "two", "vectors", "日本", "", "a b"]
FRAME = b"\x80\x04\x95" + struct.pack("<Q", 859)
ROWS = np.arange(1, 31, dtype=np.float32).reshape(6, 5)


class KeyedVectors:
    """Stands for gensim's class of this name, which pickles know by its module."""


KeyedVectors.__module__ = "gensim.models.keyedvectors"
KeyedVectors.__qualname__ = "KeyedVectors"


def build(words=WORDS, protocol=4, vectors=ROWS, **more):
    made = KeyedVectors()
    made.__dict__ |= {"vector_size": 5, "index_to_key": list(words), "next_index": 0}
    made.__dict__ |= {"key_to_index": {word: i for i, word in enumerate(words)}, "vectors": vectors, "norms": None}
    made.__dict__ |= {"expandos": {"count": np.arange(len(words))}, "mapfile_path": None}
    made.__dict__ |= {"lifecycle_events": [{"ignore": frozenset(), "sep_limit": 10**7, "python": "3.11", "x": 1.5}]}
    made.__dict__ |= {"__numpys": [], "__scipys": [], "__ignoreds": [], "__recursive_saveloads": []} | more
    module = types.ModuleType("gensim.models.keyedvectors")
    module.KeyedVectors = KeyedVectors
    names = {"gensim": types.ModuleType("gensim"), "gensim.models": types.ModuleType("gensim.models")}
    before = {name: sys.modules.get(name) for name in (*names, module.__name__)}
    sys.modules |= {**names, module.__name__: module}
    try:
        return pickle.dumps(made, protocol)
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


def converted(path, **options):
    target = path.with_suffix(".fifu")
    convert_words(path, target, normalize=False, **options)
    with wm.open(target) as f:
        assert f.vocab is not None
        return list(f.vocab), f["embeddings"].copy()


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
def test_words_and_rows_are_those_of_the_file(tmp_path, protocol, dtype):
    (tmp_path / "m.kv").write_bytes(build(protocol=protocol, vectors=ROWS.astype(dtype)))
    words, rows = converted(tmp_path / "m.kv")
    assert words == WORDS
    assert np.array_equal(rows, ROWS)


def test_vectors_beside_the_file(tmp_path):
    """Large arrays lie in FILE.vectors.npy; one that is missing, of another shape or type, is an error."""
    path, beside = tmp_path / "m.kv", tmp_path / "m.kv.vectors.npy"
    path.write_bytes(build(vectors=None, __numpys=["vectors"]))
    with pytest.raises(FileNotFoundError):
        wm.convert(path, tmp_path / "o.fifu")
    np.save(beside, ROWS)
    assert np.array_equal(converted(path)[1], ROWS)
    with pytest.raises(wm.TargetError, match=r"m\.kv\.vectors\.npy: this file is an input"):
        wm.convert(path, beside, format="text")
    for wrong in (ROWS[:5], ROWS.ravel(), ROWS.astype(np.int32), np.asfortranarray(ROWS)):
        np.save(beside, wrong)
        with pytest.raises(wm.FormatError):
            wm.convert(path, tmp_path / "o.fifu")
    np.save(beside, ROWS)
    beside.write_bytes(beside.read_bytes()[:-1])
    with pytest.raises(wm.LayoutError, match=r"m\.kv\.vectors\.npy"):
        wm.convert(path, tmp_path / "o.fifu")
    with pytest.raises(wm.UnsupportedError, match="has no path"):
        wm.convert(path.read_bytes(), tmp_path / "o.fifu")


class Evil:
    """Would run a command if it was unpickled."""

    def __reduce__(self):
        return print, ("taken",)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (build(more=Evil()), wm.UnsupportedError, r"needs '(__builtin__|builtins)\.print'"),
        (build(protocol=5), wm.UnsupportedError, "protocol"),
        (build(protocol=2), wm.UnsupportedError, "protocol"),
        (build(["a", "a"], vectors=ROWS[:2]), wm.FormatError, "words are unique"),
        (build(WORDS[:5]), wm.LayoutError, r"expected \[5, dims\]"),
        (build(vectors=ROWS[:, :0]), wm.LayoutError, "shape"),
        (build(vectors=ROWS.astype(np.int32)), wm.FormatError, "must be a numpy array"),
        (build(vectors=np.asfortranarray(ROWS)), wm.UnsupportedError, "column"),
        (build(vectors=[1, 2]), wm.FormatError, "must be a numpy array"),
        (build(vectors=np.where(ROWS == 7, np.nan, ROWS)), wm.FormatError, "finite"),
        (build(index_to_key={"a": 1}), wm.FormatError, "must be a list of texts"),
        (build(index_to_key=None), wm.UnsupportedError, "gensim 4"),
        (build() + b"x", wm.LayoutError, "size of the file"),
        (build(deep=[[] for _ in range(10_001)]), wm.UnsupportedError, "more than 10000 containers"),
        (b"\x80\x04\x8c\x0dgensim.models\x94.", wm.FormatError, "no KeyedVectors"),
        (FRAME + b"\x8d" + struct.pack("<Q", 1 << 60) + b"gensim.models", wm.FormatError, "text of"),
        (FRAME + b"\x8e" + struct.pack("<Q", 1 << 60) + b"gensim.models", wm.TruncatedError, "within an array"),
        (b"\x80\x03\x8c\x0dgensim.modelsr\xff\xff\xff\x7f.", wm.FormatError, "remembers entry 2147483647"),
        (b"\x80\x04\x8c\x0dgensim.modelsj\xff\xff\xff\xff.", wm.FormatError, "recalls entry"),
        (b"\x80\x04Pgensim.models\n.", wm.UnsupportedError, "opcode is 0x50"),
    ],
)
def test_what_is_refused(tmp_path, capsys, data, error, message):
    """Names that could run something, and everything malformed, is one clear error; nothing is executed or written."""
    (tmp_path / "m.kv").write_bytes(data)
    with pytest.raises(error, match=message):
        wm.convert(tmp_path / "m.kv", tmp_path / "o.fifu")
    assert capsys.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["m.kv"]


def test_every_truncation_and_many_mutants_are_errors_of_ours(tmp_path):
    data, target, draws = build(), tmp_path / "o.fifu", random.Random(3)
    for end in range(len(data)):
        with pytest.raises(wm.TensorFileError):
            wm.convert(data[:end], target, format=None)
    for at in range(len(data)):
        mutant = bytearray(data)
        mutant[at] = draws.choice([0, 1, 0x7F, 0x80, 0xFF, mutant[at] ^ 1, *b"(.]}tbeuR0\x85\x94\x81"])
        try:
            wm.convert(bytes(mutant), target)
        except wm.TensorFileError:
            continue


@pytest.mark.parametrize("rows", [6, 40_000])
def test_files_that_gensim_writes(tmp_path, rows):
    gensim = pytest.importorskip("gensim.models")
    vectors = gensim.KeyedVectors(300)
    values = np.random.default_rng(1).standard_normal((rows, 300), np.float32)
    vectors.add_vectors([f"w{i}" for i in range(rows)], values)
    path = tmp_path / "m.kv"
    vectors.save(str(path))
    assert (tmp_path / "m.kv.vectors.npy").exists() is (rows > 6)
    theirs = gensim.KeyedVectors.load(str(path))
    words, found = converted(path)
    assert words == theirs.index_to_key
    assert np.array_equal(found, theirs.vectors)
