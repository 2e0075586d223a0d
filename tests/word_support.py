"""Helpers for the tests of words and subwords: vocabularies made of lists, and the definitions in plain Python."""

import struct

import numpy as np

from weightmap.core.table import StringTable
from weightmap.core.table.vocabulary import Subwords, Vocabulary

# Characters of one to four bytes in UTF-8, of one to three bytes as code points; zero bytes; no characters at all.
WORDS = [
    "hallo",
    "a",
    "",
    "Daniël",
    "日本語",
    "🌎🌎",
    "naïve",
    "zz top",
    "\x00",
    "x\x00y",
    "ÿĀ\uffff\U0010ffff",
    "w" * 40,
]


def table(strings: list[str], what: str = "word") -> StringTable:
    """Return a table of strings that lie back to back."""
    raws = [string.encode() for string in strings]
    return StringTable(b"".join(raws), np.cumsum([0, *map(len, raws)]).astype(np.uint32), 0, what)


def listed(ngrams: dict[str, int]):
    """Return what loads the n-grams of an explicit vocabulary."""
    return lambda: (table(list(ngrams), "n-gram"), np.array(list(ngrams.values()), np.uint64))


def vocabulary(words: list[str], subwords: Subwords | None = None) -> Vocabulary:
    return Vocabulary(lambda: table(words), len(words), subwords=subwords)


def bucket_hash(ngram: str) -> int:
    """FNV-1a of 64 bits, over the number of characters and each character."""
    value = 0xCBF29CE484222325
    for byte in struct.pack(f"<Q{len(ngram)}I", len(ngram), *map(ord, ngram)):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def fasttext_hash(ngram: str) -> int:
    """FNV-1a of 32 bits over the UTF-8, each byte widened with its sign."""
    value = 0x811C9DC5
    for byte in ngram.encode(errors="surrogatepass"):
        value = (value ^ (byte if byte < 0x80 else byte | 0xFFFFFF00)) * 0x01000193 % 2**32
    return value


def unit_sum(rows: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Return the sum of rows, added one after another in float32, as a unit vector, and its norm."""
    total = np.zeros(rows.shape[1], np.float32)
    for row in rows:
        total = total + row
    lanes = [0.0] * 8
    for i, element in enumerate(total.tolist()):
        lanes[i % 8] += element * element
    even, odd = (lanes[0] + lanes[2]) + (lanes[4] + lanes[6]), (lanes[1] + lanes[3]) + (lanes[5] + lanes[7])
    norm = np.float32(np.sqrt(even + odd))
    return (total / norm if norm else total), norm
