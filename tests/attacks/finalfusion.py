"""Attacks on finalfusion: header, chunks, vocabularies, matrices, product quantisation, norms, TOML."""

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from tests.builders import Tensor, noise, normal
from tests.builders import finalfusion as ff

from .case import BAD_UTF8, U32, U63, U64, WILD_NAMES, Case, put

KIND = "finalfusion"
WORDS = ["one", "two", "drei"]
N = len(WORDS)
MATRIX, LENGTHS = normal((N, 2), 1), ff.lengths(N)
VOCAB, STORAGE, NORMS = ff.simple(WORDS), ff.matrix(MATRIX), ff.norms(LENGTHS)
TEXT = ff.metadata("a = 1")
PARTS = ff.quantised(N, 2, 3, 2)
UNKNOWN = ff.Chunk(9, bytes(30))
# The rows of the threat tables about this format: a fault of a file, and the required outcome.
ROWS = {
    "F1": "finalfusion's number of chunks is 0 or 2^32 - 1: an error without memory for them.",
    "F2": "A list of chunks that disagrees with the file: a warning.",
    "F3": "An unknown chunk: UnsupportedError, stepped over if not strict.",
    "F4": "A repeated chunk: LayoutError.",
    "F5": "Lengths of chunks that are wrong: an error where it matters, else a warning.",
    "F6": "Padding that is not zero or of another length: LayoutError.",
    "F7": "More or longer words than there is room for: TruncatedError.",
    "F8": "A repeated word: LayoutError, a warning if not strict.",
    "F9": "A bucket exponent above 63 or rows that are not words and buckets: an error.",
    "F10": "No buckets: FormatError.",
    "F11": "min_n of 0 or above max_n: FormatError.",
    "F12": "Indices of n-grams that are too large or leave gaps: LayoutError.",
    "F13": "Rows times columns times bytes beyond 2^63: LayoutError.",
    "F14": "Element types that do not exist, or that numpy lacks: UnsupportedError.",
    "F15": "quantized_len of 0, too large, or not a divisor: FormatError.",
    "F16": "No centroids, or more than codes can name: FormatError.",
    "F17": "A code without a centroid: QuantError, when it is read.",
    "F18": "A flag that is neither 0 nor 1: FormatError.",
    "F19": "A projection of 2^40 bytes and more: TruncatedError or LayoutError.",
    "F20": "Another number of norms than of words: LayoutError.",
    "F21": "Norms that are NaN: a warning.",
    "F22": "Norms before the matrix, chunks out of order: LayoutError.",
    "F23": "Metadata that is not TOML: FormatError.",
}


def start_of(chunks, number):
    return len(ff.build(chunks[:number], [chunk.id for chunk in chunks])) + 12


def product(**lies):
    return ff.build([VOCAB, ff.product(*PARTS, **lies)])


def hashed(id_, min_n, max_n, last, rows, **options):
    return ff.build([ff.hashed(id_, WORDS, min_n, max_n, last, **options), ff.matrix(normal((rows, 2)))])


def explicit(pairs, rows, min_n=1, **lies):
    return ff.build([ff.explicit(WORDS, pairs, min_n, 3, **lies), ff.matrix(normal((rows, 2)))])


def matrix(**lies):
    return ff.build([VOCAB, ff.matrix(MATRIX, **lies)])


PAIRS = [("on", 0), ("one", 1), ("tw", 2), ("ei", 0)]
OWN = [("on", 0), ("one", 1), ("tw", 2)]


class Kind(NamedTuple):
    make: Callable[..., ff.Chunk]
    fields: int
    count: int
    rows: int
    least: int
    most: int
    says: str
    pairs: list[tuple[str, int]]


_BUCKET = partial(ff.hashed, ff.BUCKET, min_n=1, max_n=3, last=2)
_FASTTEXT = partial(ff.hashed, ff.FASTTEXT, min_n=1, max_n=3, last=5)
_EXPLICIT = partial(ff.explicit, min_n=1, max_n=3)
KINDS = {
    "simple": Kind(ff.simple, 8, 0, 3, 3, 3, "3: 3 words", []),
    "bucket": Kind(_BUCKET, 20, 0, 7, 7, 7, "7: 3 words and 4 buckets", []),
    "bucket-spec": Kind(partial(_BUCKET, spec=True), 20, 12, 7, 7, 7, "7: 3 words and 4 buckets", []),
    "fasttext": Kind(_FASTTEXT, 20, 0, 8, 8, 8, "8: 3 words and 5 buckets", []),
    "fasttext-spec": Kind(partial(_FASTTEXT, spec=True), 20, 12, 8, 8, 8, "8: 3 words and 5 buckets", []),
    "explicit": Kind(partial(_EXPLICIT, pairs=PAIRS), 24, 0, 6, 3, 7, "3 to 7: 3 words and at most 4 n-grams", PAIRS),
    # If the number of n-grams stands behind the words, only the file bounds the number of rows.
    "explicit-spec": Kind(
        partial(_EXPLICIT, pairs=OWN, spec=True), 16, 8, 6, 3, U32, "3 to 2: 3 words and its n-grams", OWN
    ),
}
V = start_of([VOCAB, STORAGE], 0)
S = start_of([VOCAB, STORAGE], 1)
NN = start_of([VOCAB, STORAGE, NORMS], 2)
WHOLE = ff.build([VOCAB, STORAGE])
WITH_NORMS = ff.build([VOCAB, STORAGE, NORMS])
END = len(WHOLE)
SOUND = {
    KIND: WHOLE,
    "finalfusion-norms": WITH_NORMS,
    "finalfusion-quantised": product(),
    "finalfusion-buckets": hashed(ff.BUCKET, 3, 6, 2, N + 4),
    "finalfusion-explicit": explicit([("a", 0)], N + 1),
}


def case(row, name, data, error="", field=None, offset=None, **more):
    return Case(row, KIND, name, data, error, field, offset, **more)


def cases():
    for part in (chunks, vocabularies, rows, matrices, products, norms, later, odd, legal):
        yield from part()


def chunks():
    built = ff.build
    yield case("C3", "version 1", built([VOCAB, STORAGE], version=1), "UnsupportedError", "version", 4)
    for count in (U32, 2**31):
        data = built([VOCAB, STORAGE], count=count)
        yield case("F1", f"{count} chunks", data, "TruncatedError", "n_chunks", 8)
    three = built([], [1, 2, 3])
    for count, field, at in ((3, "chunk", 24), (4, "n_chunks", 8)):
        data, odd = put(three, 8, struct.pack("<I", count)), "without a vocabulary" if count == 3 else None
        says = "" if count == 3 else "is 4, expected at most 3"
        yield case("F1", f"{count} chunks of 3", data, "TruncatedError", field, at, odd=odd, says=says)
    data = b"FiFu" + struct.pack("<II", 0, U32)
    yield case("F1", "a header alone of 2^32 - 1 chunks", data, "TruncatedError", "n_chunks", 8)
    yield case("F1", "no chunks", b"FiFu" + bytes(8), "TruncatedError", "chunk", 12, odd="without a vocabulary")
    for size in range(1, 12):
        yield case("F1", f"a header of {size} bytes", (b"FiFu" + bytes(7))[:size], "TruncatedError", "header", size)
    data = built([UNKNOWN, STORAGE])
    yield case("F3", "the chunk of floret", data, "UnsupportedError", "chunk_id", 20, odd="stepped over")
    data = built([ff.Chunk(0, b""), VOCAB, STORAGE])
    yield case("F3", "chunk 0", data, "UnsupportedError", "chunk_id", 24, odd="stepped over")
    for name, where, number in (
        ("in front", [UNKNOWN, VOCAB, STORAGE], 0),
        ("in between", [VOCAB, UNKNOWN, STORAGE], 1),
        ("at the end", [VOCAB, STORAGE, UNKNOWN], 2),
    ):
        at = start_of(where, number) - 12
        data = built(where)
        yield case("F3", f"an unknown chunk {name}", data, "UnsupportedError", "chunk_id", at, odd="stepped over")
    for row, name, where, number, lax in (
        ("F4", "two metadata", [TEXT, TEXT, VOCAB, STORAGE], 1, None),
        ("F22", "metadata behind words", [VOCAB, TEXT, STORAGE], 1, None),
        ("F4", "two vocabularies", [VOCAB, VOCAB, STORAGE], 1, None),
        ("F4", "two storages", [VOCAB, STORAGE, STORAGE], 2, None),
        ("F22", "norms before the storage", [VOCAB, NORMS, STORAGE], 1, None),
        ("F4", "norms twice", [VOCAB, STORAGE, NORMS, NORMS], 3, None),
        ("F22", "no vocabulary", [STORAGE, NORMS], 0, "before any vocabulary"),
    ):
        at = start_of(where, number) - 12
        yield case(row, name, built(where), "LayoutError", "chunk_id", at, odd=lax)
    data = ff.build([VOCAB], [ff.SIMPLE, ff.MATRIX])
    yield case("F22", "no storage", data, "TruncatedError", "chunk", len(data), odd="without a storage")
    data = ff.build([TEXT], [ff.METADATA, ff.SIMPLE])
    yield case("F22", "metadata, and no more", data, "TruncatedError", "chunk", len(data), odd="without a vocabulary")
    for part in (VOCAB, STORAGE, TEXT):  # a file of one chunk is whole where the header lists that chunk alone
        yield case("F22", f"chunk {part.id} alone", built([part]))
        for ids in ([], [part.id, 6], [part.id + 1], [part.id] * 65):
            data, name = built([part], ids), f"chunk {part.id} alone of {len(ids)} that begin with {ids[:1]}"
            at = 12 + 4 * len(ids)
            wrong = ("LayoutError", "chunk_id", at) if part is STORAGE else ("TruncatedError", "chunk", len(data))
            yield case("F22", name, data, *wrong, odd="without a")
    for ids in ([], [ff.NORMS, 9], [ff.NORMS] * 65):
        yield case("F22", f"norms alone of {len(ids)}", built([NORMS], ids), odd="lists other chunks")
    data = built([TEXT, VOCAB])
    yield case("F22", "words without a storage", data, "TruncatedError", "chunk", len(data), odd="without a storage")
    for count in (63, 64, 65):
        says = "too many" if count > 64 else ", ".join(["9"] * count)
        says = f"the header lists other chunks ({says}) than there are (1 simple vocabulary, 2 matrix)"
        yield case("F2", f"a list of {count} chunks", built([VOCAB, STORAGE], [9] * count), odd=says)
    for size in range(1, 12):
        data = WHOLE + b"\xff" * size
        yield case("C2", f"{size} bytes behind the matrix", data, "LayoutError", "size", END, odd="trailing")
    for id_ in (ff.SIMPLE, ff.MATRIX, ff.METADATA):
        data = WHOLE + struct.pack("<IQ", id_, 0)
        yield case("F22", f"the head of chunk {id_} at the end", data, "LayoutError", "chunk_id", END)
    # Bytes behind the matrix that look like a chunk which fits the file are an unknown chunk.
    tail = struct.pack("<IQ", 99, 5)
    for left in (4, 5, 6):
        name, chunk = f"an unknown chunk of 5 bytes in {left}", tail + bytes(left)
        wrong = ("LayoutError", "size") if left == 4 else ("UnsupportedError", "chunk_id")
        data = WHOLE + chunk
        yield case("F3", f"{name} behind the matrix", data, *wrong, END, odd="trailing" if left != 5 else "stepped")
        odd = "stepped" if left == 5 else None
        yield case("F3", name, built([]) + chunk, "UnsupportedError", "chunk_id", 12, odd=odd)
        data = built([ff.metadata("a = 1"[:left] + "#" * (left - 5), length=5)], [ff.METADATA, ff.SIMPLE])
        wrong = ("chunk_len", 24) if left == 4 else ("chunk", len(data))
        odd = "without a vocabulary" if left == 5 else None
        yield case("F5", f"metadata of 5 bytes in {left}", data, "TruncatedError", *wrong, odd=odd)
    data = built([TEXT, VOCAB, STORAGE])[:40]
    yield case("F5", "metadata past the end", data, "TruncatedError", "chunk_len", 28)
    data = built([ff.metadata("", length=U64), VOCAB, STORAGE])
    yield case("F5", "metadata of 2^64 bytes", data, "TruncatedError", "chunk_len", 28)
    data = WITH_NORMS[: NN - 1]
    yield case("F5", "a chunk header cut off", data, "TruncatedError", "chunk", NN - 1)
    data = WITH_NORMS + b"more"
    yield case("C2", "bytes behind norms", data, "LayoutError", "size", len(WITH_NORMS), odd="trailing")


def vocabularies():
    for n in (2**60, U64):
        yield case("C4", f"{n} words", ff.build([ff.simple(WORDS, n=n), STORAGE]), "TruncatedError", "vocab_len", V)
    nine = ff.build([ff.simple(WORDS, n=9), STORAGE])
    yield case("F7", "more words than there are", nine, "TruncatedError", "vocabulary", len(nine))
    for name, kind in KINDS.items():
        yield from vocabulary(name, kind)
    data = hashed(ff.BUCKET, 3, 6, 2, N + 4, spec=True, n=U64)
    yield case("C4", "2^64 - 1 words, specification", data, "TruncatedError", "vocab_len", V + 12)
    data = explicit([("a", 0)], N + 1, m=2**60)
    yield case("C4", "2^60 n-grams", data, "TruncatedError", "n_ngrams", V + 8)
    data = explicit([("a", 0)], N + 2, m=2**60, spec=True, length=0)
    yield case("C4", "2^60 n-grams, specification", data, "TruncatedError", "n_ngrams", V + 16 + 4 * N + 10)
    for name, data, field, at in (
        ("min_n 0", hashed(ff.BUCKET, 0, 6, 2, N + 4), "min_n", 8),
        ("min_n 0, explicit", explicit([("a", 0)], N + 1, 0), "min_n", 16),
        ("max_n below min_n", hashed(ff.FASTTEXT, 3, 2, 4, N + 4), "max_n", 12),
        ("max_n below min_n, specification", hashed(ff.BUCKET, 3, 2, 4, 9, spec=True), "max_n", 4),
    ):
        yield case("F11", name, data, "FormatError", field, V + at)
    for exponent in (0, 64, 255, U32):
        data = hashed(ff.BUCKET, 3, 6, exponent, N + 1)
        says = f"is {exponent}, expected 1 to 63"
        yield case("F9", f"exponent {exponent}", data, "FormatError", "bucket_exp", V + 16, says=says)
    for n in (1, 3):
        yield case("F11", f"n-grams of {n} characters", hashed(ff.FASTTEXT, n, n, 1, N + 1))
    for exponent in (1, 60, 62, 63):  # numpy counts no matrix of 2^62 rows and more
        vocab, empty = ff.hashed(ff.BUCKET, WORDS, 1, 2, exponent), Tensor("float32", (0, 0), b"")
        data = ff.build([vocab, ff.matrix(empty, rows=N + 2**exponent, cols=0)])
        wrong = () if exponent < 62 else ("LayoutError", "shape", start_of([vocab, STORAGE], 1))
        yield case("F9", f"rows for an exponent of {exponent}", data, *wrong)
    data = hashed(ff.BUCKET, 3, 6, U32, N + 1, spec=True)
    yield case("F9", "exponent 2^32 - 1, specification", data, "FormatError", "bucket_exp", V + 8)
    yield case("F10", "no buckets", hashed(ff.FASTTEXT, 3, 6, 0, N), "FormatError", "buckets", V + 16)
    data = hashed(ff.FASTTEXT, 3, 6, 0, N, spec=True)
    yield case("F10", "no buckets, specification", data, "FormatError", "buckets", V + 8)


def vocabulary(name, kind):
    whole = kind.make(words=WORDS)
    alone = ff.build([whole])
    begin = 28 + kind.fields
    for size, field, says in (
        (27, "chunk", "at least 28"),
        (28, "vocabulary", "within the fields"),
        (begin - 1, "vocabulary", "within the fields"),
        (len(alone) - 1, "vocabulary", ""),
    ):
        yield case("F7", f"{name}, {size} bytes", alone[:size], "TruncatedError", field, size, says=says)
    at = 28 + kind.count
    data = alone[:begin]
    yield case("F7", f"{name}, no words", data, "TruncatedError", "vocab_len", at, says="is 3, expected at most 0")
    room = (len(alone) - begin) // 4
    data = ff.build([kind.make(words=WORDS, n=room)])
    yield case("F7", f"{name}, room for as many words", data, "TruncatedError", "vocabulary", len(data))
    data, says = ff.build([kind.make(words=WORDS, n=room + 1)]), f"at most {room}, given the bytes that follow"
    yield case("F7", f"{name}, room for a word less", data, "TruncatedError", "vocab_len", at, says=says)
    for rows in {kind.least - 1, kind.least, kind.rows - 1, kind.rows, kind.rows + 1, min(kind.most + 1, 9)}:
        data, title = ff.build([whole, ff.matrix(normal((rows, 2)))]), f"{name}, {rows} rows"
        at = start_of([whole, STORAGE], 1)
        if not kind.least <= rows <= kind.most:
            yield case("F9", title, data, "LayoutError", "rows", at, says=f"is {rows}, expected {kind.says}")
        elif rows < kind.rows:  # n-grams are counted when they are read
            yield case("F12", title, data, "LayoutError", "index", V, late=True, says=f"less than {rows - N}")
        elif rows > kind.rows:
            yield case(
                "F12", title, data, "LayoutError", "rows", at - 12, late=True, says=f"is {rows}, expected {kind.rows}"
            )
        else:
            yield case("F9", title, data)
    data, at = ff.build([whole, ff.matrix(normal((kind.rows, 2)))]), V + kind.fields
    for what, texts, index in (("word", WORDS, 0), ("n-gram", [text for text, _ in kind.pairs], 8)):
        at += 8 if index and name == "explicit-spec" else 0
        for number, text in enumerate(texts):
            says = f"{what} {number} of {len(texts)} runs past it"
            lie = put(data, at, struct.pack("<I", len(data)))
            yield case("F7", f"{name}, {says}", lie, "LayoutError", "vocabulary", V - 12, late=True, says=says)
            at += 4 + len(text) + (0 if name == "explicit-spec" else index)


def rows():
    for name, data, at in (
        ("2^63 buckets", hashed(ff.BUCKET, 3, 6, 63, N), S + 12),
        ("2^32 - 1 buckets", hashed(ff.FASTTEXT, 3, 6, U32, N + 4), S + 12),
        ("quantised rows", ff.build([VOCAB, ff.product(*ff.quantised(N + 1, 2, 3, 2))]), S + 20),
    ):
        yield case("F9", name, data, "LayoutError", "rows", at)


def ngram_rows(pairs, **lies):
    """Where the number of rows stands behind an explicit vocabulary."""
    return start_of([ff.explicit(WORDS, pairs, 1, 3, **lies), STORAGE], 1)


def matrices():
    for code, says in {8: "(i128) is 8", 9: "(u128) is 9", 12: "is 12,", 13: "is 13,", U32: f"is {U32},"}.items():
        yield case("F14", f"type {code}", matrix(code=code), "UnsupportedError", "type", S + 12, says=says)
    # The largest countable number of bytes, more than any file has, and one more.
    for rows, cols, dtype, wrong in (
        (U64, 7, "uint8", ("LayoutError", "shape")),
        (U63 // 7, 7, "uint8", ("TruncatedError", "matrix")),
        (U63 // 7 + 1, 7, "uint8", ("LayoutError", "shape")),
        (U63 // 7, 7, "int16", ("LayoutError", "shape")),
        (2**61 - 1, 1, "float32", ("TruncatedError", "matrix")),
        (2**61, 1, "float32", ("LayoutError", "shape")),
        (U63, 0, "uint8", ()),
        (U63 + 1, 0, "uint8", ("LayoutError", "shape")),
        (0, U32, "float64", ()),
    ):
        data = ff.build([ff.matrix(Tensor(dtype, (0, 0), b""), rows=rows, cols=cols)])
        at = [] if not wrong else [28 if wrong[1] == "shape" else len(data)]
        yield case("F13", f"{rows} rows of {cols} {dtype}", data, *wrong, *at)
    yield case("F13", "2^32 - 1 columns", matrix(cols=U32), "TruncatedError", "matrix", END)
    yield case("F5", "a column less", matrix(cols=1), "LayoutError", "chunk_len", S - 8)
    # Padding is up to four bytes or an element, as the length says; usual padding makes up for a wrong length.
    for dtype in ("uint8", "int16", "float32", "float64"):
        value = MATRIX if dtype == "float32" else noise(dtype, (N, 2))
        width = value.array.itemsize
        most, usual = max(4, width), width - S % width
        for size in range(most + 2):
            data, name = ff.build([VOCAB, ff.matrix(value, padding=bytes(size))]), f"{size} bytes of padding of {dtype}"
            odd = "not aligned" if (S + 16 + size) % width else None
            wrong = ("LayoutError", "chunk_len", S - 8) if size > most else ()
            yield case("F6", name, data, *wrong, odd=None if wrong else odd)
        true = 16 + usual + len(value.data)
        for lie in (-8, -1, most - usual + 1, 9):
            data = ff.build([VOCAB, ff.matrix(value, length=true + lie)])
            yield case("F5", f"a matrix of {dtype} {lie} bytes longer", data, odd="its contents take")
    for lie in (-1, 0, 1, 2):
        length = 16 + 9 + len(MATRIX.data) + lie
        data, says = matrix(padding=bytes(9), length=length), f"is {length}"
        name, error = f"9 bytes of padding and a length of {lie} more", "TruncatedError" if lie > 0 else "LayoutError"
        yield case("F6", name, data, error, "chunk_len", S - 8, says=says)
    for lie in (-5, -1, 1, 4):
        data = matrix(padding=b"", length=16 + len(MATRIX.data) + lie)
        wrong = ("LayoutError", "chunk_len", S - 8) if lie < 0 else ("TruncatedError", "matrix", len(data))
        yield case("F6", f"no padding and a length of {lie} more", data, *wrong)
        raw = data[:-1]
        yield case("F6", f"no padding, a length of {lie} more, cut off", raw, "TruncatedError", "matrix", len(data) - 1)
    for size, field, says in (
        (S - 1, "chunk", "at least"),
        (S, "matrix", "within the fields"),
        (S + 15, "matrix", "within the fields"),
        (S + 16, "matrix", "within the data"),
        (END - 1, "matrix", "within the data"),
    ):
        yield case("F5", f"a matrix that ends at {size}", WHOLE[:size], "TruncatedError", field, size, says=says)
    expected = {"field": "padding", "offset": S + 16, "late": True, "odd": "not zero"}
    yield case("F6", "padding that is not zero", matrix(padding=b"\0\1"), "LayoutError", **expected)


def products():
    end = len(product())
    for row, field, value, error, at in (
        ("F18", "projection", 2, "FormatError", 0),
        ("F18", "norms", 2, "FormatError", 4),
        ("F15", "quantized_len", 0, "FormatError", 8),
        ("F15", "quantized_len", 3, "FormatError", 8),
        ("F15", "quantized_len", 5, "FormatError", 8),
        ("F15", "quantized_len", 8, "FormatError", 8),
        ("F16", "n_centroids", 0, "FormatError", 16),
        ("F16", "n_centroids", 257, "FormatError", 16),
        ("F16", "n_centroids", U32, "FormatError", 16),
        ("F18", "projection", U32, "FormatError", 0),
        ("F18", "norms", U32, "FormatError", 4),
        ("F14", "quantized_type", 0, "UnsupportedError", 28),
        ("F14", "quantized_type", 2, "UnsupportedError", 28),
        ("F14", "quantized_type", 10, "UnsupportedError", 28),
        ("F14", "reconstructed_type", 9, "UnsupportedError", 32),
        ("F14", "reconstructed_type", 11, "UnsupportedError", 32),
    ):
        yield case(row, f"{field} {value}", product(**{field: value}), error, field, S + at, says=f"is {value}")
    for parts, width in ((1, 0), (2, 1), (3, 2), (5, 4)):
        data = product(quantized_len=parts, reconstructed_len=width)
        yield case("F15", f"{parts} parts of {width}", data, "FormatError", "quantized_len", S + 8)
    for parts, centroids in ((1, 1), (4, 2), (2, 255), (2, 256)):
        data = ff.build([VOCAB, ff.product(*ff.quantised(N, parts, centroids, 4 // parts))])
        yield case("F16", f"{parts} parts of {centroids} centroids", data)
    data = product(reconstructed_len=U32 - 1)
    yield case("F19", "a projection of 2^64 bytes", data, "LayoutError", "shape", S)
    data = product(reconstructed_len=2**19)
    yield case("F19", "a projection of 2^40 bytes", data, "TruncatedError", "quantised matrix", end)
    # Rows that take 2^63 bytes when they are decoded could never be.
    for count in (2**59, 2**63):
        yield case("F13", f"{count} quantised rows", product(rows=count), "LayoutError", "shape", S)
    data = product(rows=2**59 - 1)
    yield case("F13", "2^59 - 1 quantised rows", data, "TruncatedError", "quantised matrix", end)
    for centroids in (1, 2, 128, 254, 255):
        _, books, _, _ = ff.quantised(N, 2, centroids, 1)
        for place in (0, 1, 3, 5):  # the first code without a centroid; before it, the largest code
            codes = np.full(2 * N, centroids - 1)
            codes[place:] = centroids
            data = ff.build([VOCAB, ff.product(codes.reshape(N, 2), books)])
            at, says = len(data) - 2 * N + place, f"code {place % 2} of row {place // 2} is {centroids}"
            name = f"code {place} of {centroids} centroids"
            yield case("F17", name, data, "QuantError", "codes", at, late=True, says=says)
        yield case("F17", f"the last of {centroids} centroids", put(data, len(data) - 1, bytes([centroids - 1])))


def norms():
    def with_norms(**lies):
        return ff.build([VOCAB, STORAGE, ff.norms(lies.pop("value", LENGTHS), **lies)])

    for code in (0, 9, 11):
        yield case("F14", f"norms of type {code}", with_norms(code=code), "UnsupportedError", "type", NN + 8)
    for count in (N - 1, N + 1):
        yield case("F20", f"{count} norms", with_norms(value=ff.lengths(count)), "LayoutError", "n_norms", NN)
    yield case("F20", "2^62 norms", with_norms(count=2**62), "LayoutError", "n_norms", NN)
    data = ff.build([ff.norms(LENGTHS, count=2**62)])
    yield case("F20", "2^62 norms alone", data, "LayoutError", "shape", 28)
    data = WITH_NORMS[:-1]
    yield case("F20", "norms cut off", data, "TruncatedError", "norms", len(data))
    for value, odd in ((0.0, 0), (-0.0, 0), (1e-45, 0), (-1e-45, 1), (float("inf"), 1)):
        three = Tensor("float32", (3,), struct.pack("<3f", 1, value, 2))
        yield case("F21", f"a norm of {value}", with_norms(value=three), odd="infinite or negative: 1" if odd else None)
    value = Tensor("float32", (3,), struct.pack("<3f", 1, float("nan"), -1))
    yield case("F21", "a NaN and a negative number", with_norms(value=value), odd="infinite or negative: 2")
    data = ff.build([VOCAB, ff.product(*PARTS[:3], value.array)])
    yield case("F21", "a NaN and a negative number, quantised", data, odd="norms of quantised rows that are NaN")


def later():
    def late(row, name, data, error, field, at, words=None):
        return case(row, name, data, error, field, at, late=True, odd=words)

    def built(text):
        return ff.build([ff.metadata(text), VOCAB, STORAGE])

    for count in (1, 2, 3):
        words = [*"abcd", *"abcd"[:count]]
        twice = ff.build([ff.simple(words), ff.matrix(normal((len(words), 2)))])
        more = "" if count == 1 else f", and {count - 1} more are repeated"
        says = f"words 0 and 4 are both 'a'{more}: words must be unique"
        yield late("F8", f"{count} words twice", twice, "LayoutError", "word", V + 8 + 24, says)
    for name, raw in BAD_UTF8.items():
        for at in range(N):
            data = ff.build([ff.simple([*["b"] * at, raw, *["c"] * (N - 1 - at)]), STORAGE])
            yield late("C11", f"word {at} {name}", data, "FormatError", "word", V + 8 + 5 * at + 4)
    for name, text in WILD_NAMES.items():
        yield case("C11", f"word {name}", ff.build([ff.simple([text, "b", "c"]), STORAGE]))
    data = explicit([("a", 0)], N + 1).replace(b"a", b"\xff")
    first = V + 24 + 4 * N + 10
    yield late("C11", "an n-gram that is not UTF-8", data, "FormatError", "n-gram", first + 4)
    data = explicit([("a", 0), ("a", 1)], N + 2)
    yield late("F12", "an n-gram twice", data, "LayoutError", "n-gram", first + 4 + 1 + 8 + 4, "both 'a'")
    for index in (2, 2**63, U64):
        data = explicit([("a", 0), ("b", index)], N + 2)
        yield late("F12", f"index {index}", data, "LayoutError", "index", V)
    data = explicit([("a", 0), ("b", 0)], N + 2)
    storage = ngram_rows([("a", 0), ("b", 0)]) - 12
    yield late("F12", "fewer indices than rows", data, "LayoutError", "rows", storage)
    data = ff.build([ff.explicit(WORDS, [("a", 0)], 1, 3, spec=True), ff.matrix(normal((0, 0)), rows=2**60, cols=0)])
    yield late("F12", "2^60 rows of n-grams", data, "LayoutError", "rows", ngram_rows([("a", 0)], spec=True) - 12)
    # An n-gram without an index.
    bare = struct.pack("<QQII", N, 1, 1, 3) + ff.strings([*WORDS, "a"])
    data = ff.build([ff.Chunk(8, bare), ff.matrix(normal((N + 1, 2)))])
    yield late("F12", "no indices", data, "LayoutError", "vocabulary", V - 12)
    data = ff.build([ff.Chunk(1, VOCAB.fields + bytes(4)), STORAGE])
    yield late("F5", "words that end too early", data, "LayoutError", "vocabulary", V - 12)
    data = put(WHOLE, S - 12 - 8, struct.pack("<I", 3))
    yield late("F5", "a word that is a byte shorter", data, "LayoutError", "vocabulary", V - 12)
    data = put(explicit([("abcdefghijkl", 0), ("b", 1)], N + 1), V + 8, b"\1")
    says = "n-grams end at byte"
    yield case("F5", "n-grams that end early", data, "LayoutError", "vocabulary", V - 12, late=True, says=says)
    data = ff.build([ff.Chunk(1, struct.pack("<Q", N)), STORAGE])
    yield late("F5", "no bytes of words", data, "LayoutError", "vocabulary", V - 12)
    for size in (0, 7, 8):
        bare = ff.Chunk(8, struct.pack("<IIQ", 1, 3, N) + ff.strings(WORDS) + bytes(size))
        wrong = ("LayoutError", "vocabulary", V - 12) if size < 8 else ("", None, None)
        says = "the number of n-grams runs past it" if size < 8 else ""
        name, data = f"{size} bytes of a number of n-grams", ff.build([bare, STORAGE])
        yield case("F5", name, data, *wrong, late=size < 8, says=says)
    data = ff.build([ff.explicit(WORDS, [], 1, 3, spec=True)])
    yield case("F5", "a number of n-grams at the end", data)
    data = data[:-1]
    yield case("F5", "a number of n-grams cut off", data, "TruncatedError", "n_ngrams", len(data))
    # The last byte of the fields is a matrix's id.
    fields = struct.pack("<QQII", 0, 0, 1, 2 << 24)
    part = ff.matrix(Tensor("float32", (0, 2), b"")).at(12 + 12 + len(fields) - 1)
    data = ff.build([], []) + struct.pack("<IQ", ff.EXPLICIT, len(fields) - 1) + fields + part[1:]
    yield case("F5", "a matrix that begins within the fields", data, "UnsupportedError", "chunk_id", 48)
    for name, text, at in (
        ("no TOML", "a =", 0),
        ("not UTF-8", b"a\xff", 1),
        ("a number of 5000 digits", "a = " + "9" * 5000, 0),
        ("lists in lists in lists", "a = " + "[" * 100_000, 0),
        ("tables in tables in tables", ".".join("a" * 129) + " = 1", 0),
        ("a key twice", "a = 1\na = 2", 0),
    ):
        row = "F23" if name in {"no TOML", "not UTF-8"} else "C13"
        yield late(row, f"metadata {name}", built(text), "FormatError", "metadata", 36 + at)
    yield case("C13", "dates", built("day = 2020-01-02\nat = 07:32:00"))


def odd():
    for row, name, data, words in (
        ("F2", "no list", ff.build([VOCAB, STORAGE], []), "lists other chunks"),
        ("F2", "another list", ff.build([VOCAB, STORAGE], [5, 9, U32]), "lists other chunks"),
        ("F2", "a list of 2000 chunks", ff.build([VOCAB, STORAGE], [1] * 2000), "too many"),
        ("F12", "indices in another order", explicit([("b", 1), ("a", 0)], N + 2), "first appearance"),
        *(
            ("F11", f"n-gram {text!r}", explicit([(text, 0)], N + 1, 2), words)
            for text, words in (
                ("a", "shorter than 2 or longer than 3 characters: 1"),
                ("ab", None),
                ("日本", None),
                ("abc", None),
                ("abcd", "shorter than 2 or longer than 3 characters: 1"),
            )
        ),
        ("F6", "no padding", ff.build([ff.simple(["x" * 5, "y", "z"]), ff.matrix(MATRIX, padding=b"")]), "not aligned"),
        ("F5", "a storage of 2^64 bytes", matrix(length=U64), "its contents take"),
        (
            "F5",
            "a storage without its padding",
            ff.build([VOCAB, ff.matrix(MATRIX, length=16 + 24), NORMS]),
            "its contents take",
        ),
        ("F5", "norms of 0 bytes", ff.build([VOCAB, STORAGE, ff.norms(LENGTHS, length=0)]), "its contents take"),
    ):
        yield case(row, name, data, odd=words)


def legal():
    yield case("C20", "no words", ff.build([ff.simple([]), ff.matrix(normal((0, 4)))]))
    yield case("C20", "no words, and vectors of 16 GiB", ff.build([ff.simple([]), ff.matrix(normal((0, 4)), cols=U32)]))
    yield case("C7", "no columns", ff.build([VOCAB, ff.matrix(normal((N, 0)))]))
    yield case("C16", "any bits", ff.build([VOCAB, ff.matrix(Tensor("float32", (3, 1), bytes(range(0xF4, 0x100))))]))
    for kind in ("explicit", "explicit-spec"):
        data = ff.build([KINDS[kind].make(words=[]), ff.matrix(normal((3, 2)))])
        yield case("C20", f"n-grams and no words, {kind}", data)
    yield case("F7", "an empty word", ff.build([ff.simple(["", "b", "c"]), STORAGE]))
    yield case("F22", "norms alone", ff.build([NORMS]))
