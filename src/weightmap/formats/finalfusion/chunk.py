"""The fields of a vocabulary chunk, and the walk that finds its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap import kernels
from weightmap.errors import FormatError, TruncatedError
from weightmap.formats.finalfusion.layout import (
    BUCKET,
    EXPLICIT,
    FASTTEXT,
    INDEX,
    MAX_EXPONENT,
    SIMPLE,
    SPEC_FIELDS,
    TITLES,
    U64,
    UPSTREAM_FIELDS,
    VocabChunk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.io.source import Source
    from weightmap.options import Limits

# One read of the walk.
_PIECE = 1 << 20
_OR_MORE = "size of the vocabulary (or more)"


def read_fields(id_: int, length: int, offset: int, raw: bytes, size: int) -> VocabChunk:
    """Read the fields of a vocabulary from `raw`, its payload at `offset` of a file of `size` bytes."""
    # Bytes 4 to 7 are 0 in upstream's order (the upper half of a u64), and max_n, never 0, in the specification's.
    spec = id_ != SIMPLE and raw[4:8] != bytes(4)[: len(raw[4:8])]
    fields = (SPEC_FIELDS if spec else UPSTREAM_FIELDS)[id_]
    if len(raw) < fields.size:
        what = f"the file ends within the fields of the {TITLES[id_]}"
        raise TruncatedError(what, field="vocabulary", offset=size, expected=f"at least {offset + fields.size} bytes")
    values = fields.unpack_from(raw)
    ngrams: int | None = None
    last = 0
    min_n = max_n = 0
    if id_ == SIMPLE:
        (words,) = values
    elif id_ == EXPLICIT and spec:
        min_n, max_n, words = values
    elif id_ == EXPLICIT:
        words, ngrams, min_n, max_n = values
    elif spec:
        min_n, max_n, last, words = values
    else:
        words, min_n, max_n, last = values
    start = offset + fields.size
    at_n = start - 8 if spec else offset
    check_count(words, 4, size - start, "words", at_n)
    if ngrams is not None:
        check_count(ngrams, 12, size - start, "n-grams", offset + 8)
    if id_ != SIMPLE:
        at = offset if spec else start - (8 if id_ == EXPLICIT else 12)
        _check_lengths(min_n, max_n, at)
        last = _check_last(id_, last, at + 8)
    return VocabChunk(id_, offset, offset + length, 0, spec, words, ngrams, min_n, max_n, last, start)


def check_count(count: int, least: int, left: int, what: str, at: int) -> None:
    """Bound a number of words or n-grams by the `left` bytes that follow it; each takes at least `least`."""
    if count > left // least:
        expected = f"at most {left // least}, given the bytes that follow"
        field = "vocab_len" if what == "words" else "n_ngrams"
        raise TruncatedError(f"number of {what}", field=field, offset=at, actual=count, expected=expected)


def _check_lengths(min_n: int, max_n: int, at: int) -> None:
    if min_n < 1:
        raise FormatError("min_n", field="min_n", offset=at, actual=min_n, expected="1 or more")
    if max_n < min_n:
        expected = f"{min_n} or more, which is min_n"
        raise FormatError("max_n", field="max_n", offset=at + 4, actual=max_n, expected=expected)


def _check_last(id_: int, last: int, at: int) -> int:
    """Check the exponent or the number of buckets; return the rows that it means."""
    if id_ == BUCKET:
        if not 1 <= last <= MAX_EXPONENT:
            expected = f"1 to {MAX_EXPONENT}"
            raise FormatError("exponent of buckets", field="bucket_exp", offset=at, actual=last, expected=expected)
        return 1 << last
    if id_ == FASTTEXT and last == 0:
        raise FormatError("number of buckets", field="buckets", offset=at, actual=0, expected="1 or more")
    return last


def check_size(vocab: VocabChunk, end: int, limits: Limits, what: str = "size of the vocabulary") -> None:
    """Check the bytes of words and n-grams up to `end` against the limits."""
    at = vocab.offset - U64.size  # the field of the chunk's length
    limits.check("max_header_bytes", end - vocab.words, what, offset=at)


def scan_end(source: Source, vocab: VocabChunk, limits: Limits) -> int:
    """Walk the words and n-grams in flat memory, no further than the limits allow; return where they end."""
    position = vocab.words
    for end in _skip(source, position, vocab.n_words, 0, "word"):
        check_size(vocab, end, limits, _OR_MORE)
        position = end
    if vocab.id != EXPLICIT:
        return position
    count, position = ngram_count(source, vocab, position)
    for end in _skip(source, position, count, 0 if vocab.spec else INDEX, "n-gram"):
        check_size(vocab, end, limits, _OR_MORE)
        position = end
    return position


def ngram_count(source: Source, vocab: VocabChunk, position: int) -> tuple[int, int]:
    """Return the number of n-grams and the offset of the first one; `position` is the end of the words."""
    if vocab.n_ngrams is not None:
        return vocab.n_ngrams, position
    if source.size - position < U64.size:
        what = "the file ends before the number of n-grams"
        raise TruncatedError(what, field="n_ngrams", offset=source.size, expected=f"at least {position + 8} bytes")
    (count,) = U64.unpack(source.pread(position, U64.size))
    check_count(count, 4, source.size - position - U64.size, "n-grams", position)
    return count, position + U64.size


def _skip(source: Source, position: int, count: int, tail: int, what: str) -> Iterator[int]:
    """Walk `count` strings from `position` on; yield the position after each piece, at last the end of the strings."""
    left = count
    while left:
        piece = source.pread(position, min(_PIECE, source.size - position))
        size, walked = kernels.skip_strings(piece, left, tail)
        left -= walked
        position += size
        if not walked:  # the string is longer than a piece, or than the file
            end = position + 4 + int.from_bytes(piece[:4], "little") + tail
            if len(piece) < 4 or end > source.size:
                msg = f"{what} {count - left} of {count} runs past the end of the file"
                raise TruncatedError(msg, field="vocabulary", offset=position, expected=f"at least {end} bytes")
            left -= 1
            position = end
        yield position
