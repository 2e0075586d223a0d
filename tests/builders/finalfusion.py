"""finalfusion files: a header and chunks; `build` puts any of them together, right or wrong."""

import struct
from dataclasses import dataclass

import numpy as np
from tests.fuzz.anatomy import NUMBER, Walk
from tests.fuzz.dictionary import MARKUP

from . import Bounds, Builder, Example, Golden, Tensor, noise, normal

FORMAT = "finalfusion"
SUFFIX = ".fifu"
SIMPLE, MATRIX, BUCKET, PQ, METADATA, NORMS, FASTTEXT, EXPLICIT = 1, 2, 3, 4, 5, 6, 7, 8
CODES = {"int8": 0, "uint8": 1, "int16": 2, "uint16": 3, "int32": 4, "uint32": 5}
CODES |= {"int64": 6, "uint64": 7, "float32": 10, "float64": 11}
WIDTHS = (1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 4, 8)


@dataclass(frozen=True)
class Chunk:
    """A chunk: its payload is the fields, padding so that the data is at a multiple of `width`, and the data.

    With `width` 0 there is no padding; `padding` replaces the padding, `length` is a lie about it.
    """

    id: int
    fields: bytes
    data: bytes = b""
    width: int = 0
    padding: bytes | None = None
    length: int | None = None

    def at(self, position):
        """The chunk's bytes at a position of the file."""
        start = position + 12 + len(self.fields)
        rule = bytes(self.width - start % self.width) if self.width else b""
        padding = rule if self.padding is None else self.padding
        size = len(self.fields) + len(padding) + len(self.data)
        length = size if self.length is None else self.length
        return struct.pack("<IQ", self.id, length) + self.fields + padding + self.data


def build(chunks, listed=None, version=0, count=None):
    """A file of these chunks; the header lists `listed`, or the true chunks."""
    ids = [chunk.id for chunk in chunks] if listed is None else list(listed)
    out = struct.pack("<4sII", b"FiFu", version, len(ids) if count is None else count)
    out += struct.pack(f"<{len(ids)}I", *ids)
    for chunk in chunks:
        out += chunk.at(len(out))
    return out


def strings(words):
    """Strings behind their lengths."""
    raws = [word.encode() if isinstance(word, str) else word for word in words]
    return b"".join(struct.pack("<I", len(raw)) + raw for raw in raws)


def ngrams(pairs):
    """n-grams with an index behind each."""
    return b"".join(strings([text]) + struct.pack("<Q", index) for text, index in pairs)


def simple(words, **lies):
    return Chunk(SIMPLE, struct.pack("<Q", lies.pop("n", len(words))) + strings(words), **lies)


def hashed(id_, words, min_n, max_n, last, *, spec=False, **lies):
    """A bucket vocabulary, whose `last` field is the exponent, or a fastText one, whose is the number of buckets."""
    n = lies.pop("n", len(words))
    fields = struct.pack("<IIIQ", min_n, max_n, last, n) if spec else struct.pack("<QIII", n, min_n, max_n, last)
    return Chunk(id_, fields + strings(words), **lies)


def explicit(words, pairs, min_n, max_n, *, spec=False, **lies):
    """An explicit vocabulary; in the order of the specification indices are not written."""
    n, m = lies.pop("n", len(words)), lies.pop("m", len(pairs))
    if spec:
        head = struct.pack("<IIQ", min_n, max_n, n) + strings(words)
        return Chunk(EXPLICIT, head + struct.pack("<Q", m) + strings(text for text, _ in pairs), **lies)
    return Chunk(EXPLICIT, struct.pack("<QQII", n, m, min_n, max_n) + strings(words) + ngrams(pairs), **lies)


def matrix(value, **lies):
    """A plain matrix; `rows`, `cols` and `code` override its fields."""
    code = lies.pop("code", CODES[value.dtype])
    rows, cols = lies.pop("rows", value.shape[0]), lies.pop("cols", value.shape[1])
    width = WIDTHS[CODES[value.dtype]]
    return Chunk(MATRIX, struct.pack("<QII", rows, cols, code), value.data, width, **lies)


def norms(value, **lies):
    count, code = lies.pop("count", value.shape[0]), lies.pop("code", 10)
    return Chunk(NORMS, struct.pack("<QI", count, code), value.data, 4, **lies)


def metadata(text, **lies):
    return Chunk(METADATA, text.encode() if isinstance(text, str) else text, **lies)


def product(codes, codebooks, rotation=None, row_norms=None, **lies):
    """A matrix by product quantisation; the fields can be overridden by their names."""
    parts, centroids, length = codebooks.shape
    fields = {"projection": int(rotation is not None), "norms": int(row_norms is not None), "quantized_len": parts}
    fields |= {"reconstructed_len": parts * length, "n_centroids": centroids, "rows": len(codes)}
    fields |= {"quantized_type": 1, "reconstructed_type": 10}
    fields |= {name: lies.pop(name) for name in list(lies) if name in fields}
    floats = [part.astype("<f4").tobytes() for part in (rotation, codebooks, row_norms) if part is not None]
    data = b"".join(floats) + codes.astype(np.uint8).tobytes()
    return Chunk(PQ, struct.pack("<5IQ2I", *fields.values()), data, 4, **lies)


def quantised(rows, parts, centroids, length, seed=0):
    """Codes, codebooks, projection and norms of a matrix of ordinary numbers."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, centroids, (rows, parts), np.uint8)
    books = random.standard_normal((parts, centroids, length)).astype("<f4")
    projection = random.standard_normal((parts * length, parts * length)).astype("<f4")
    return codes, books, projection, random.random(rows).astype("<f4") + 1


def lengths(n):
    """The norms of n words: positive numbers."""
    return Tensor("float32", (n,), (np.random.default_rng(n).random(n) + 0.5).astype("<f4").tobytes())


WORDS = ("one", "two", "", "dreißig", "日本語", "a b\tc", "🌎")
TOML = """# A comment that stays where it is.
name = "tïny"   # and this one
[hyper]
dims = 300
lr = 0.05
list = [1, 2, 3]
"""
PARSED = {"name": "tïny", "hyper": {"dims": 300, "lr": 0.05, "list": [1, 2, 3]}}
PAIRS = (("<on", 0), ("one", 1), ("ne>", 0), ("<tw", 2), ("日本", 3))


def example(name, chunks, tensors, vocab=WORDS, text=None, layout="upstream", **options):
    """An example. A file with norms is also a file without them, up to their beginning."""
    data = build(chunks, **options)
    before = build(chunks[:-1], options.get("listed", [chunk.id for chunk in chunks]))
    cut = frozenset({len(before)} if chunks[-1].id == NORMS and len(chunks) > 1 else ())
    words = None if vocab is None else tuple(vocab)
    # The specification lets a reader accept a file without a matrix; no writer has to make one.
    written = "embeddings" in tensors and vocab is not None
    return Example(name, FORMAT, SUFFIX, data, tensors, text or {}, words, layout=layout, prefixes=cut, written=written)


def single(words, seed):
    """The chunks of a file with one word, and its tensors."""
    rows, sizes = normal((1, 2), seed), lengths(1)
    return [simple(words), matrix(rows), norms(sizes)], {"embeddings": rows, "norms": sizes}


def examples():
    """Every vocabulary in both orders of its fields, every type of matrix, with and without norms and metadata."""
    n = len(WORDS)
    plain, sizes = normal((n, 5), 1), lengths(n)
    both = {"embeddings": plain, "norms": sizes}
    buckets, explicits = normal((n + 8, 3), 3), normal((n + 4, 2), 4)
    of_buckets = {"embeddings": buckets}
    of_spec = hashed(BUCKET, WORDS, 3, 6, 3, spec=True), hashed(FASTTEXT, WORDS, 1, 2, 8, spec=True)
    every = {dtype: noise(dtype, (n, 3), 5) for dtype in CODES}
    own = [(text, i) for i, (text, _) in enumerate(PAIRS)]
    short = explicit(WORDS, PAIRS, 2, 3, length=len(explicit(WORDS, PAIRS, 2, 3).fields) - 8 * len(PAIRS))
    return [
        example("simple", [simple(WORDS), matrix(plain)], {"embeddings": plain}),
        example("everything", [metadata(TOML), simple(WORDS), matrix(plain), norms(sizes)], both, text=PARSED),
        # Words of 1 to 4 bytes more bring every padding.
        *(example(f"padding-{k}", *single(["x" * k], k), ["x" * k]) for k in range(1, 5)),
        *(example(f"type-{dtype}", [simple(WORDS), matrix(it)], {"embeddings": it}) for dtype, it in every.items()),
        example("no-words", [simple([]), matrix(normal((0, 4)))], {"embeddings": normal((0, 4))}, []),
        example("no-columns", [simple(WORDS), matrix(normal((n, 0)))], {"embeddings": normal((n, 0))}),
        example("bucket", [hashed(BUCKET, WORDS, 3, 6, 3), matrix(buckets)], of_buckets),
        example("bucket-spec", [of_spec[0], matrix(buckets), norms(sizes)], both | of_buckets, layout="spec"),
        example("fasttext", [hashed(FASTTEXT, WORDS, 1, 2, 8), matrix(buckets)], of_buckets),
        example("fasttext-spec", [of_spec[1], matrix(buckets)], of_buckets, layout="spec"),
        example("explicit", [explicit(WORDS, PAIRS, 2, 3), matrix(explicits)], {"embeddings": explicits}),
        example("explicit-short", [short, matrix(explicits)], {"embeddings": explicits}),
        example(
            "explicit-spec",
            [metadata(TOML), explicit(WORDS, own, 2, 3, spec=True), matrix(normal((n + 5, 2), 6))],
            {"embeddings": normal((n + 5, 2), 6)},
            text=PARSED,
            layout="spec",
        ),
        example("wrong-list", [simple(WORDS), matrix(plain), norms(sizes)], both, listed=[2, 1]),
        example("no-list", [simple(WORDS), matrix(plain)], {"embeddings": plain}, listed=[]),
        example("norms-alone", [norms(sizes)], {"norms": sizes}, None),
        example("words-alone", [hashed(BUCKET, WORDS, 3, 6, 3)], {}),
        example("matrix-alone", [matrix(plain)], {"embeddings": plain}, None),
        example("metadata-alone", [metadata(TOML)], {}, None, text=PARSED),
    ]


def many(count):
    """The words of finalfusion: it has one matrix, and as many words as rows."""
    words = [b"%07d" % i for i in range(count)]
    return build([simple(words), matrix(Tensor("float32", (count, 1), bytes(4 * count)))])


def small():
    """A file with every chunk that can stand together, and one in the order of fields that the specification has."""
    words = ["one", "two", "drei"]
    every = [
        metadata("a = 1\nb = [2020-01-01]"),
        explicit(words, [("a", 0), ("b", 1)], 1, 3),
        product(*quantised(5, 2, 3, 2)),
        norms(lengths(3)),
    ]
    spec = hashed(FASTTEXT, words, 1, 3, 2, spec=True)
    return {"finalfusion-everything": build(every), "finalfusion-specification": build([spec, matrix(normal((5, 1)))])}


def anatomy(data):
    """finalfusion, chunk by chunk; in a chunk that upstream would not write, every four bytes are a number."""
    walk = Walk(data)
    *_, listed = walk.numbers(4, 4, 4)
    walk.numbers(*[4] * walk.value(listed))
    while walk.at < len(data):
        begin = walk.at
        id_, length = walk.numbers(4, 8)
        start, end = walk.at, min(walk.at + walk.value(length), len(data))  # of one example it is a lie
        walk.span(length, start, end)
        if walk.value(id_) == METADATA:
            walk.toml(end)
        else:
            _anatomy_chunk(walk, walk.value(id_), end)
        walk.at = end
        walk.found.items.append((begin, end, listed))
    return walk.anatomy


def _anatomy_chunk(walk, id_, end):
    start, found = walk.at, walk.found
    before = len(found.fields), len(found.spans), len(found.items)
    try:
        _ANATOMIES[id_](walk)
        if walk.at <= end:
            return
    except (IndexError, ValueError, KeyError):
        pass
    del found.fields[before[0] :], found.spans[before[1] :], found.items[before[2] :]
    walk.at = start
    while walk.at + 4 <= end:
        walk.field(4, NUMBER)


def _anatomy_words(walk, *sizes, grams=False):
    counters = walk.numbers(8, *sizes)
    for number, counter in enumerate(counters[: 1 + grams]):
        for _ in walk.items(counter):
            walk.string(4)
            if number:
                walk.field(8)
            if walk.at > len(walk.data):
                raise IndexError


def _anatomy_padded(walk, *sizes):
    """Numbers, the last one a type, and padding up to a multiple of its size; never none."""
    width = WIDTHS[walk.value(walk.numbers(*sizes)[-1])]
    walk.found.pads.append((walk.at, walk.at + width - walk.at % width, width))


_ANATOMIES = {
    SIMPLE: _anatomy_words,
    BUCKET: lambda walk: _anatomy_words(walk, 4, 4, 4),
    FASTTEXT: lambda walk: _anatomy_words(walk, 4, 4, 4),
    EXPLICIT: lambda walk: _anatomy_words(walk, 8, 4, 4, grams=True),
    MATRIX: lambda walk: _anatomy_padded(walk, 8, 4, 4),
    PQ: lambda walk: _anatomy_padded(walk, 4, 4, 4, 4, 4, 8, 4, 4),
    NORMS: lambda walk: _anatomy_padded(walk, 8, 4),
}


def trailing(_, data, tail):
    """Bytes long enough for the head of a chunk are read as one, of an unknown kind."""
    if tail[:2] == b"PK":
        return "UnsupportedError", "chunk_id", len(data), "trailing"
    return "LayoutError", "size", len(data), "trailing"


BUILDER = Builder(
    format=FORMAT,
    title="finalfusion",
    suffix=SUFFIX,
    holds="word embeddings of finalfusion; word2vec, text and fastText files convert to it and back",
    examples=examples,
    damage=("tests.attacks.finalfusion",),
    growing={"finalfusion": many},
    anatomy=anatomy,
    errors=(33, 39),
    magic=b"FiFu",
    small=small,
    trailing=trailing,
    dictionary=MARKUP,
    saved={
        "finalfusion": lambda array: {
            "tensors": {"embeddings": array},
            "vocab": [f"word{i}" for i in range(len(array))],
        }
    },
    golden={
        "upstream.fifu": Golden(
            "a1cb699fd1e98dddb959ace8665eb239f41a526a54b5de681f69332b3f22b8ab",
            lambda c: {
                "tensors": {"embeddings": c.matrix, "norms": c.matrix[:, 0]},
                "vocab": c.words,
                "metadata": {"b": 1, "a": "x"},
            },
        ),
        "spec.fifu": Golden(
            "ffa4597968db32cbc7b34a539dfd720542ac2c2dd85487549cd983e1486b221c",
            lambda c: {"tensors": {"embeddings": c.matrix}, "vocab": c.words, "layout": "spec"},
        ),
    },
    metadata="TOML",
    bounds={"finalfusion": Bounds(209, 206, 72, 32, 66, 21)},
)
