"""`Limits` bounds vocabularies too, also those of files that are nearly all holes."""

import random
import struct
import tracemalloc

import numpy as np
import pytest
from tests.bounds_support import refused
from tests.builders import amb, bintensors, cnn_v2, embd, noise, normal, safetensors
from tests.builders import finalfusion as ff
from tests.support import run_child
from tests.word_files import fasttext, ngrams

import weightmap as wm
from weightmap.words import convert as convert_words

WORDS = ["one", "two", "drei"]
PAIRS = [("ab", 0), ("b", 1)]
KINDS = {
    "simple": lambda **lies: (ff.simple(WORDS, **lies), 3),
    "bucket": lambda **lies: (ff.hashed(ff.BUCKET, WORDS, 1, 3, 2, **lies), 7),
    "fasttext": lambda **lies: (ff.hashed(ff.FASTTEXT, WORDS, 1, 3, 4, **lies), 7),
    "explicit": lambda **lies: (ff.explicit(WORDS, PAIRS, 1, 3, **lies), 5),
    "bucket-spec": lambda **lies: (ff.hashed(ff.BUCKET, WORDS, 1, 3, 2, spec=True, **lies), 7),
    "explicit-spec": lambda **lies: (ff.explicit(WORDS, PAIRS, 1, 3, spec=True, **lies), 5),
}
# Bytes of the words, and of n-grams with their lengths and indices.
SIZES = dict.fromkeys(KINDS, 12 + 10) | {"explicit": 22 + 2 * 12 + 3, "explicit-spec": 22 + 8 + 2 * 4 + 3}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("believed", [True, False], ids=["believed", "walked"])
def test_vocabularies_of_finalfusion_are_bounded(kind, believed):
    chunk, rows = KINDS[kind](**({} if believed else {"length": 5}))
    data = ff.build([chunk, ff.matrix(normal((rows, 2)))])
    with wm.open(data, limits=wm.Limits(max_header_bytes=SIZES[kind])) as f:
        assert list(f.vocab) == WORDS
    error = refused(data, limits=wm.Limits(max_header_bytes=SIZES[kind] - 1))
    assert isinstance(error, wm.LimitError)
    assert (error.field, error.actual, error.offset) == ("max_header_bytes", SIZES[kind], 12 + 8 + 4)


def test_a_walk_ends_where_words_are_too_many_already():
    chunk = ff.Chunk(8, struct.pack("<QQII", 3, 0, 1, 3) + ff.strings(WORDS), length=5)
    data = ff.build([chunk])
    assert refused(data, limits=wm.Limits(max_header_bytes=21)).field == "max_header_bytes"


def headers():
    """Files, and the bytes of the largest header, index or section of metadata in each, by its kind."""
    text = {"k": "v" * 1000}
    rows = [("n" * 900, noise("uint8", (1,)))]
    spec = embd.Draft(rows, metadata=embd.metadata_section(text.items()))
    index = embd.Draft(rows, metadata=b"")
    words = embd.simple([("a", normal((1,)))], ["t" * 1000])
    toml = ff.metadata("a = 1 #" + "x" * 1000)
    layers = [cnn_v2.layer(1, 1, 1)] * 30
    framed = {
        "safetensors": safetensors.build({"n" * 900: normal((1,))}),
        "bintensors": bintensors.build({"n" * 900: normal((1,))}),
    }
    return {
        "EMBD metadata": (spec.seal(), 8 + 4 + 1 + 1000),
        "EMBD index": (index.seal(), index.data_offset - index.index_offset),
        "EMBD vocabulary": (embd.Draft([], vocab=["t" * 1000]).seal(), 12 + 2 + 1000 + 20),
        "EMBD vocabulary, simple": (words, 4 + 1000),
        "finalfusion metadata": (ff.build([toml, ff.simple(["w"]), ff.matrix(normal((1, 1)))]), len(toml.fields)),
        "AMB metadata": (amb.build(metadata=b'{"a": 1}' + b" " * 92), 100),
        "AMB configuration": (amb.build(config=b'{"a": 1}' + b" " * 92), 100),
        "CNN v2": (cnn_v2.build(layers), 20 + 20 * len(layers)),
    } | {name: (data, int.from_bytes(data[:8], "little")) for name, data in framed.items()}


@pytest.mark.parametrize("name", headers())
def test_headers_as_large_as_allowed(name):
    data, size = headers()[name]
    wm.open(memoryview(data), limits=wm.Limits(max_header_bytes=size)).close()
    error = refused(data, limits=wm.Limits(max_header_bytes=size - 1))
    assert isinstance(error, wm.LimitError)
    assert (error.field, error.actual) == ("max_header_bytes", size)


@pytest.mark.parametrize("format", ["safetensors", "bintensors"])
def test_the_largest_header_that_the_references_read(format):
    """A header of 100,000,000 bytes is read from the file; a larger one if `limits` allow it, up to 4 GiB."""
    start = b'{"' if format == "safetensors" else b"\0\0"
    refusals = ((10**8, wm.TruncatedError), (10**8 + 1, wm.TruncatedError), (2**32 - 2, wm.TruncatedError))
    for length, cls in (*refusals, (2**32 - 1, wm.FormatError)):
        error = refused(struct.pack("<Q", length) + start, format=format, limits=wm.Limits(max_header_bytes=2**62))
        assert (type(error), error.field) == (cls, "n")
    error = refused(struct.pack("<Q", 10**8 + 1) + start, format=format)
    assert type(error) is wm.LimitError


@pytest.mark.parametrize("format", ["embd", "amb"])
def test_names_are_limited_together(format):
    """Names stay in memory: if their sum exceeds the limit, it is a LimitError, although each is below it."""
    tensors = [(f"{i}" * 40, normal((2,))) for i in range(5)]
    data = embd.simple(tensors) if format == "embd" else amb.build([amb.dense(*tensor) for tensor in tensors])
    with wm.open(data, limits=wm.Limits(max_header_bytes=200)) as f:
        assert len(f) == 5
    error = refused(data, limits=wm.Limits(max_header_bytes=199))
    assert isinstance(error, wm.LimitError)
    assert "names" in str(error)
    assert error.actual == 200


OPEN = """
import resource, sys, weightmap as wm
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for path in sys.argv[1:]:
    try:
        wm.convert(path, path + ".fifu") if path.endswith(".bin") else wm.open(path)
    except wm.LimitError as error:
        print(error.field)
with open("/proc/self/status") as file:
    print(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) >> 10)
"""


def write_sparse(path, parts):
    """Write a file of bytes and of holes, which are given by their lengths."""
    with path.open("wb") as file:
        for part in parts:
            if isinstance(part, bytes):
                file.write(part)
            else:
                file.truncate(file.tell() + part)
                file.seek(0, 2)
    return path


@pytest.mark.slow
def test_files_full_of_holes_are_refused_in_little_memory(tmp_path):
    """Billions of empty words, and one word of gibibytes, that take no room on the disk: LimitError in time and memory.

    The vocabularies have 64 GiB, which would take minutes to walk, or 400 GB as words of a fastText model.
    """
    hole = 1 << 36
    many = hole // 4
    paths = []
    for name, words, text in (("empty", many, []), ("long", 1, [struct.pack("<I", 2**32 - 1)])):
        for lie in (0, 1):
            # The length of the vocabulary is right, or wrong by one; a matrix of int8 with one column stands behind it.
            head = struct.pack("<4s4IQQ", b"FiFu", 0, 2, 1, 2, 8 + hole + lie, words)
            head = head[:20] + struct.pack("<I", 1) + head[20:]
            storage = struct.pack("<IQQII", 2, 17 + words, words, 1, 0) + b"\0"
            parts = [head, *text, hole - len(b"".join(text)), storage, words]
            paths.append(write_sparse(tmp_path / f"{name}{lie}.fifu", parts))
    model = fasttext([], np.zeros((1, 1), np.float32), 0, minn=0, maxn=0, size=2**31 - 1)
    model = model[:68] + struct.pack("<2i", 2**31 - 1, 0) + model[76:92]  # as many words, and no labels
    paths.append(write_sparse(tmp_path / "words.bin", [model, hole]))
    *fields, megabytes = run_child(OPEN, *paths).stdout.split()
    assert fields == ["max_header_bytes"] * len(paths)
    assert int(megabytes) < 400


def letters(length, seed):
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=length))


def ngram_bomb(path):
    """Four words of 1,000 characters, with buckets for n-grams of any length: 4 kB."""
    words = [letters(1000, i) for i in range(4)]
    chunk = ff.hashed(ff.BUCKET, words, 1, 2**30, 1)
    path.write_bytes(ff.build([chunk, ff.matrix(normal((6, 1)))]))
    return path


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_bomb_of_ngrams_is_refused_in_little_memory(tmp_path):
    path = ngram_bomb(tmp_path / "bomb.fifu")
    wm.convert(path, tmp_path / "warm.fifu")

    def convert():
        with pytest.raises(wm.LimitError, match="n-grams of a word is 168171004") as caught:
            convert_words(path, tmp_path / "x.fifu", subwords="explicit")
        assert caught.value.path == str(tmp_path / "x.fifu")

    assert peak_of(convert) < 4 << 20
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bomb.fifu", "warm.fifu"]


def listed(words, shortest, longest):
    """The n-grams of words by their first appearance, by the definition."""
    return list(dict.fromkeys(ngram for word in words for ngram in ngrams(word, shortest, longest)))


def test_listed_ngrams_are_bounded(tmp_path):
    words = [letters(200, i % 3) + str(i) for i in range(8)]
    path = tmp_path / "in.fifu"
    path.write_bytes(ff.build([ff.hashed(ff.BUCKET, words, 2, 50, 4), ff.matrix(normal((24, 2)))]))
    expected = listed(words, 2, 50)
    size = sum(map(len, expected)) + 12 * len(expected)
    convert_words(path, tmp_path / "x.fifu", subwords="explicit", limits=wm.Limits(max_header_bytes=size))
    with wm.open(tmp_path / "x.fifu") as f:
        assert list(f.vocab.subwords.ngrams()[0]) == expected
    with pytest.raises(wm.LimitError) as caught:
        convert_words(path, tmp_path / "y.fifu", subwords="explicit", limits=wm.Limits(max_header_bytes=size - 1))
    assert caught.value.actual == size


@pytest.mark.slow
def test_listing_ngrams_takes_memory_for_each_one_once(tmp_path):
    """Four times as many words with nearly the same n-grams take the same memory: that of what is compared at once."""
    peaks = []
    for count in (64, 256):
        words = [letters(400, 1) + f"{i:x}" for i in range(count)]
        path = tmp_path / "in.fifu"
        path.write_bytes(ff.build([ff.hashed(ff.BUCKET, words, 1, 40, 4), ff.matrix(normal((count + 16, 1)))]))
        convert_words(path, tmp_path / "warm.fifu", subwords="explicit")
        peaks.append(peak_of(lambda path=path: convert_words(path, tmp_path / "x.fifu", subwords="explicit")))
    assert peaks[1] < peaks[0] + (2 << 20)
