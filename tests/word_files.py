"""Word embeddings of other programs: word2vec, text and fastText files, and fastText's vectors of rows."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

WORDS = ["one", "zwei", "три", "四", "five"]


def matrix(rows: int, dims: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Rows of normal numbers."""
    return np.random.default_rng(seed).normal(size=(rows, dims)).astype("<f4")


def raws(words: Sequence[str | bytes]) -> list[bytes]:
    return [word.encode() if isinstance(word, str) else word for word in words]


def word2vec(words: Sequence[str | bytes], rows: Any, *, end: bytes = b"\n", head: bytes | None = None) -> bytes:
    """A binary file; `end` stands behind each vector."""
    rows = np.asarray(rows, "<f4")
    out = f"{len(words)} {rows.shape[1]}\n".encode() if head is None else head
    return out + b"".join(raw + b" " + row.tobytes() + end for raw, row in zip(raws(words), rows, strict=True))


def text(words: Sequence[str | bytes], rows: Any, *, dims: bool = False, sep: str = " ", end: str = "\n") -> bytes:
    """A text file, each number with as many digits as float32 needs."""
    rows = np.asarray(rows, "<f4")
    out = f"{len(words)} {rows.shape[1]}{end}".encode() if dims else b""
    for raw, row in zip(raws(words), rows.tolist(), strict=True):
        out += raw + "".join(f"{sep}{value:.9g}" for value in row).encode() + end.encode()
    return out


def fasttext(words: Sequence[str | bytes], rows: Any, buckets: int, **fields: Any) -> bytes:
    """A model; `fields` are lies, or options other than the usual."""
    rows = np.asarray(rows, "<f4")
    known = {"magic": 793712314, "version": 12, "dim": rows.shape[1], "ws": 5, "epoch": 3, "min_count": 1, "neg": 5}
    known |= {"word_ngrams": 1, "loss": 2, "model": 2, "bucket": buckets, "minn": 3, "maxn": 6, "lr_update": 100}
    known |= {"t": 1e-4, "size": len(words), "nwords": len(words), "nlabels": 0, "ntokens": 99, "pruned": -1}
    tail = {"quant": 0, "m": rows.shape[0], "n": rows.shape[1], "kind": 0}
    tail |= {name: fields.pop(name) for name in list(fields) if name in tail}
    assert set(fields) <= set(known)
    known |= fields
    out = struct.pack("<14id3i2q", *known.values())
    out += b"".join(raw + b"\0" + struct.pack("<qb", 7, tail["kind"]) for raw in raws(words))
    out += struct.pack("<Bqq", tail["quant"], tail["m"], tail["n"]) + rows.tobytes()
    return out + struct.pack("<Bqq", 0, 1, rows.shape[1]) + rows[:1].tobytes()


def ngrams(word: str, shortest: int, longest: int) -> list[str]:
    """The n-grams of a word in its brackets, from each character on the longest first."""
    full = f"<{word}>"
    return [
        full[start : start + n]
        for start in range(len(full))
        for n in range(longest, shortest - 1, -1)
        if start + n <= len(full)
    ]


def fasttext_hash(ngram: str) -> int:
    """FNV-1a over signed bytes, as fastText's source has it."""
    value = 2166136261
    for byte in ngram.encode():
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value


def averaged(words: Sequence[str], rows: Any, buckets: int, shortest: int = 3, longest: int = 6) -> Any:
    """The mean of the row of each word and those of its n-grams, in double precision.

    fastText leaves out its first and its last n-gram of one character (Dictionary::computeSubwords).
    """
    wide = np.asarray(rows, np.float64)
    out = []
    for i, word in enumerate(words):
        some = ngrams(word, shortest, longest)
        if shortest == 1:
            some.remove("<")
            some = some[:-1]
        places = [len(words) + fasttext_hash(ngram) % buckets for ngram in some]
        out.append(wide[[i, *places]].mean(axis=0))
    return np.array(out)
