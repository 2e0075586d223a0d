"""The checks of `TensorFile.verify` in a finalfusion file: everything that opening leaves unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.errors import LayoutError, QuantError, nonzero_padding
from weightmap.formats.finalfusion.layout import BITS, EXPLICIT, TITLES, Block, Chunks, VocabChunk, product_sizes
from weightmap.formats.finalfusion.metadata import load_metadata
from weightmap.formats.finalfusion.vocabulary import VocabStrings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.formats._verification import Verification
    from weightmap.formats.finalfusion.vocabulary import UniqueStrings


def verify(run: Verification, chunks: Chunks, again: Chunks) -> None:
    """Check the whole file, reading each byte once, and that its chunks have not changed since opening.

    `chunks` are those that were found then, `again` those of today.
    """
    if again != chunks:
        msg = "the chunks changed after the file was opened"
        raise LayoutError(msg, field="chunk", offset=0)
    run.checked("header and chunks: order, sizes, rows")
    _compare_list(run, chunks)
    if chunks.metadata is not None:
        offset, size = chunks.metadata
        run.until(offset)
        load_metadata(run.read(offset, size), offset)
        run.checked("metadata")
    if chunks.vocab is not None:
        run.until(chunks.vocab.words)
        _verify_vocabulary(run, chunks)
    for what, block in (("embeddings", chunks.storage), ("norms", chunks.norms)):
        if block is None:
            continue
        run.until(block.padding)
        _verify_padding(run, block)
        if block.product is not None:
            _verify_codes(run, block)
        elif what == "norms":
            _verify_norms(run, block)
    run.rest()


def _compare_list(run: Verification, chunks: Chunks) -> None:
    if chunks.listed != chunks.found:
        listed = "too many" if chunks.listed is None else ", ".join(map(str, chunks.listed)) or "none"
        found = ", ".join(f"{id_} {TITLES[id_]}" for id_ in chunks.found)
        run.warn(f"the header lists other chunks ({listed}) than there are ({found})")


def _verify_vocabulary(run: Verification, chunks: Chunks) -> None:
    vocab = chunks.vocab
    assert vocab is not None  # noqa: S101 - the caller has checked
    # Private bytes cannot change between two checks.
    raw = np.frombuffer(run.read(vocab.words, vocab.end - vocab.words), np.uint8)
    distinct = None if chunks.storage is None else chunks.storage.shape[0] - vocab.n_words

    def octets(begin: int, end: int) -> NDArray[np.uint8]:
        return raw[begin - vocab.words : end - vocab.words]

    strings = VocabStrings(run.source, vocab, octets, distinct, unique=False)
    _verify_strings(run, strings.words())
    run.checked("words: ends, UTF-8, no repetition")
    if vocab.id == EXPLICIT:
        table, indices = strings.ngrams()
        _verify_strings(run, table)
        _verify_numbering(run, vocab, table, indices)
        run.checked("n-grams: ends, UTF-8, no repetition, indices")


def _verify_strings(run: Verification, table: UniqueStrings) -> None:
    bad = table.not_utf8()
    if bad >= 0:
        table[bad]  # raises the error for this string
    found = table.duplicates()
    if found[0]:
        run.tolerate(table.repeated(*found))


def _verify_numbering(run: Verification, vocab: VocabChunk, table: UniqueStrings, indices: NDArray[np.uint64]) -> None:
    """Warn of indices that some readers ignore: these number n-grams by first appearance instead."""
    if not numbered(indices):
        run.warn("indices of n-grams are not numbered by first appearance, as some readers number them")
    wrong = sum(not vocab.min_n <= len(ngram) <= vocab.max_n for ngram in table)
    if wrong:
        run.warn(f"n-grams shorter than {vocab.min_n} or longer than {vocab.max_n} characters: {wrong}")


def numbered(indices: NDArray[np.uint64]) -> bool:
    """Whether indices are numbered from 0 on by first appearance."""
    if not len(indices):
        return True
    highest = np.maximum.accumulate(indices)
    return bool(indices[0] == 0 and (indices[1:] <= highest[:-1] + np.uint64(1)).all())


def _verify_padding(run: Verification, block: Block) -> None:
    padding = run.read(block.padding, block.data - block.padding)
    if any(padding):
        run.tolerate(nonzero_padding("before the data", block.padding))
    width = 4 if block.product is not None else BITS[block.code] // 8
    if block.data % width:
        run.warn(f"the data at byte {block.data} is not aligned: elements have {width} bytes")


def _verify_codes(run: Verification, block: Block) -> None:
    """Read a quantised matrix, and check that every code has a centroid."""
    product = block.product
    assert product is not None  # noqa: S101 - the caller has checked
    projection, codebooks, norms, size = product_sizes(block.shape, product)
    start = block.data + projection + codebooks
    run.until(start)
    if norms:
        bad = _count_bad(run, start, norms)
        if bad:
            run.warn(f"norms of quantised rows that are NaN, infinite or negative: {bad}")
    start += norms
    if product.n_centroids == 256:  # every value of a byte is valid
        run.until(start + size)
    else:
        position = start
        for chunk in run.chunks(start, size):
            codes = np.frombuffer(chunk, np.uint8)
            if codes.max() >= product.n_centroids:
                at = position + int(np.argmax(codes >= product.n_centroids))
                row, part = divmod(at - start, product.quantized_len)
                what = f"code {part} of row {row}"
                expected = f"less than {product.n_centroids}, the number of centroids"
                actual = int(codes[at - position])
                raise QuantError(what, field="codes", offset=at, actual=actual, expected=expected)
            position += len(codes)
    run.checked("codes of the quantised matrix")


def _verify_norms(run: Verification, block: Block) -> None:
    bad = _count_bad(run, block.data, block.end - block.data)
    if bad:
        run.warn(f"norms that are NaN, infinite or negative: {bad}")
    run.checked("norms")


def _count_bad(run: Verification, start: int, size: int) -> int:
    bad = 0
    for chunk in run.chunks(start, size):
        values = np.frombuffer(chunk, "<f4")
        bad += int((~(np.isfinite(values) & (values >= 0))).sum())
    return bad
