"""Writing finalfusion files."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import counted
from weightmap.core.arguments import DEEPEST
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.formats import finalfusion
from weightmap.core.formats._writing import Payload, Reason, Request, Unfit, encodable, lacking, refuse
from weightmap.errors import LimitError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.table import StringTable

_IDS = {kind: id_ for id_, kind in finalfusion.KINDS.items()}
# Strings joined for a single write.
_BATCH = 4096


class _Ngrams(NamedTuple):
    """N-grams to write."""

    table: StringTable
    indices: NDArray[np.uint64]
    order: NDArray[np.int64] | None  # the order to write them in; None for the order of the table

    def entries(self) -> Iterator[tuple[list[bytes], list[int]]]:
        """Yield n-grams and their indices in batches, because n-grams are many more than words."""
        for first in range(0, len(self.indices), _BATCH):
            some = slice(first, first + _BATCH)
            chosen = np.arange(len(self.indices))[some] if self.order is None else self.order[some]
            yield [self.table.raw(i) for i in chosen.tolist()], self.indices[chosen].tolist()


class _Vocab(NamedTuple):
    """A vocabulary to write: the chunk's id and fields, and the strings behind them."""

    id: int
    fields: bytes
    words: list[bytes]
    ngrams: _Ngrams | None
    spec: bool
    rows: int

    def size(self) -> int:
        """Bytes of the payload."""
        size = len(self.fields) + sum(map(len, self.words)) + 4 * len(self.words)
        if self.ngrams is not None:
            entry = 4 if self.spec else 12
            table = self.ngrams.table
            size += table.text_nbytes + entry * len(table) + (8 if self.spec else 0)
        return size

    def write(self, sink: Sink) -> None:
        """Write the payload."""
        sink.write(self.fields)
        for first in range(0, len(self.words), _BATCH):
            batch = self.words[first : first + _BATCH]
            sink.write(b"".join(part for raw in batch for part in (finalfusion.U32.pack(len(raw)), raw)))
        if self.ngrams is None:
            return
        if self.spec:
            sink.write(finalfusion.U64.pack(len(self.ngrams.table)))
        for batch, indices in self.ngrams.entries():
            tails = [b""] * len(batch) if self.spec else map(finalfusion.U64.pack, indices)
            pairs = zip(batch, tails, strict=True)
            sink.write(b"".join(part for raw, tail in pairs for part in (finalfusion.U32.pack(len(raw)), raw, tail)))


def plan_finalfusion(request: Request) -> WritePlan:
    """Lay out a finalfusion file."""
    reasons: list[Reason] = []
    tensors = {tensor.name: tensor for tensor in request.tensors}
    matrix, norms = tensors.get("embeddings"), tensors.get("norms")
    others = [name for name in tensors if name not in ("embeddings", "norms")]
    if matrix is None:
        reasons.append("there is no tensor 'embeddings', the matrix that every file has")
    reasons.extend(Unfit("tensor", name, "it has only 'embeddings' and 'norms'") for name in others)
    metadata = None if request.metadata is None else _encode_metadata(request.metadata, reasons)
    vocab = _encode_vocab(request.vocab, request.layout, reasons)
    if matrix is not None:
        _check_matrix(matrix, vocab, reasons)
    if norms is not None:
        _check_norms(norms, vocab, reasons)
    if reasons or matrix is None or vocab is None:
        refuse("finalfusion", reasons)

    ids = [finalfusion.METADATA] * (metadata is not None) + [
        vocab.id,
        finalfusion.MATRIX if matrix.parts is None else finalfusion.QUANTIZED,
    ]
    ids += [finalfusion.NORMS] * (norms is not None)
    start = finalfusion.HEADER.pack(finalfusion.MAGIC, finalfusion.VERSION, len(ids)) + b"".join(
        map(finalfusion.U32.pack, ids)
    )
    if metadata is not None:
        start += finalfusion.CHUNK.pack(finalfusion.METADATA, len(metadata)) + metadata
    words = vocab.size()
    start += finalfusion.CHUNK.pack(vocab.id, words)
    position = len(start) + words
    tail: list[tuple[bytes, Payload]] = []
    for tensor in (matrix, norms):
        if tensor is not None:
            before = _before(tensor, position)
            tail.append((before, tensor))
            position += len(before) + tensor.nbytes

    def write(sink: Sink) -> None:
        sink.write(start)
        vocab.write(sink)
        for before, tensor in tail:
            sink.write(before)
            tensor.write(sink)

    return WritePlan(position, write)


def _before(tensor: Payload, position: int) -> bytes:
    """Return the header, fields and padding before the data of a tensor, in a chunk at `position`."""
    width = tensor.dtype.bits // 8
    if tensor.parts is not None:
        parts, (rows, cols) = tensor.parts, tensor.shape
        flags = (parts.projection, parts.norms)
        id_, width = finalfusion.QUANTIZED, 4
        fields = finalfusion.QUANTIZED_FIELDS.pack(
            *flags, parts.quantized_len, cols, parts.n_centroids, rows, finalfusion.U8_CODE, finalfusion.F32_CODE
        )
    elif len(tensor.shape) == 1:
        id_, fields = finalfusion.NORMS, finalfusion.NORMS_FIELDS.pack(*tensor.shape, finalfusion.F32_CODE)
    else:
        id_, fields = (
            finalfusion.MATRIX,
            finalfusion.MATRIX_FIELDS.pack(*tensor.shape, finalfusion.TYPES.index(tensor.dtype.name)),
        )
    at = position + finalfusion.CHUNK.size + len(fields)
    padding = bytes(width - at % width)
    return finalfusion.CHUNK.pack(id_, len(fields) + len(padding) + tensor.nbytes) + fields + padding


def _check_matrix(matrix: Payload, vocab: _Vocab | None, reasons: list[Reason]) -> None:
    what = "tensor 'embeddings'"
    parts = matrix.parts
    if parts is not None:  # in a scheme of this format: `save` has refused others
        if not 1 <= parts.n_centroids <= finalfusion.MAX_CENTROIDS:
            reasons.append(f"{what}: {parts.n_centroids} centroids (expected 1 to {finalfusion.MAX_CENTROIDS})")
        elif not matrix.shape[1]:
            reasons.append(f"{what}: rows without elements")
    elif matrix.dtype.name not in finalfusion.TYPES:
        reasons.append(f"{what}: {lacking(matrix.dtype.name, filter(None, finalfusion.TYPES))}")
    if len(matrix.shape) != 2:
        reasons.append(f"{what}: {counted(len(matrix.shape), 'dimension')} (expected 2)")
        return
    rows, cols = matrix.shape
    if cols > finalfusion.U32_MAX:
        reasons.append(f"{what}: {cols} columns (expected at most {finalfusion.U32_MAX})")
    if vocab is not None and rows != vocab.rows:
        subwords = vocab.rows - len(vocab.words)
        of = counted(len(vocab.words), "word") + (f" and {counted(subwords, 'subword')}" if subwords else "")
        reasons.append(f"{what}: {counted(rows, 'row')} (expected {vocab.rows}: the vocabulary has {of})")


def _check_norms(norms: Payload, vocab: _Vocab | None, reasons: list[Reason]) -> None:
    if norms.dtype.name != "float32" or norms.dtype.quantized:
        reasons.append(f"tensor 'norms': {lacking(norms.dtype.name, ('float32',))}")
    if len(norms.shape) != 1:
        reasons.append(f"tensor 'norms': {counted(len(norms.shape), 'dimension')} (expected 1)")
    elif vocab is not None and norms.shape[0] != len(vocab.words):
        actual, words = counted(norms.shape[0], "element"), len(vocab.words)
        reasons.append(f"tensor 'norms': {actual} (expected {words}, one for each word)")


def _encode_vocab(words: Sequence[str] | None, layout: str, reasons: list[Reason]) -> _Vocab | None:
    """Return the vocabulary; None if it cannot be expressed, with the reasons added to `reasons`."""
    if words is None:
        reasons.append("there is no vocabulary, which every file has")
        return None
    before = len(reasons)
    raws = _encode_words(words, reasons)
    if len(reasons) > before:
        return None
    subwords = getattr(words, "subwords", None)
    if subwords is None:
        return _Vocab(
            finalfusion.SIMPLE,
            finalfusion.UPSTREAM_FIELDS[finalfusion.SIMPLE].pack(len(raws)),
            raws,
            None,
            spec=False,
            rows=len(raws),
        )
    id_ = _IDS.get(subwords.kind, finalfusion.SIMPLE)
    spec = layout == "spec"
    ngrams = None
    last: tuple[int, ...] = ()
    if not 1 <= subwords.min_n <= subwords.max_n <= finalfusion.U32_MAX:
        reasons.append(f"n-grams of {subwords.min_n} to {subwords.max_n} characters (1 <= min_n <= max_n < 2**32)")
    if id_ == finalfusion.BUCKET:
        last = (int(subwords.size).bit_length() - 1,)
        if subwords.size < 2 or subwords.size & (subwords.size - 1) or last[0] > finalfusion.MAX_EXPONENT:
            reasons.append(f"{subwords.size} buckets (a power of two from 2 to 2**{finalfusion.MAX_EXPONENT})")
    elif id_ == finalfusion.FASTTEXT:
        last = (int(subwords.size),)
        if not 1 <= subwords.size <= finalfusion.U32_MAX:
            reasons.append(f"{subwords.size} buckets (1 to {finalfusion.U32_MAX})")
    elif id_ == finalfusion.EXPLICIT:
        ngrams = _encode_ngrams(subwords, reasons, spec=spec)
    else:
        reasons.append(f"subwords of kind {subwords.kind!r} (expected bucket, fasttext and explicit)")
    if len(reasons) > before:
        return None
    lengths, count = (int(subwords.min_n), int(subwords.max_n)), len(raws)
    if spec:
        fields = finalfusion.SPEC_FIELDS[id_].pack(*lengths, *last, count)
    else:
        counts = (count,) if ngrams is None else (count, len(ngrams.table))
        fields = finalfusion.UPSTREAM_FIELDS[id_].pack(*counts, *lengths, *last)
    size = int(subwords.size) if ngrams is None else int(ngrams.indices.max(initial=0)) + 1 if len(ngrams.table) else 0
    return _Vocab(id_, fields, raws, ngrams, spec, count + size)


def _encode_words(words: Sequence[str], reasons: list[Reason]) -> list[bytes]:
    try:
        raws = [word.encode() for word in words]
    except (AttributeError, UnicodeEncodeError):  # not a text, or a lone surrogate
        i = next(i for i, word in enumerate(words) if not (isinstance(word, str) and encodable(word)))
        reasons.append(f"word {i} is {repr(words[i])[:80]} (Unicode text)")
        return []
    if any(len(raw) > finalfusion.U32_MAX for raw in raws):
        reasons.append("a word of 2**32 bytes or more")
    if len(set(raws)) != len(raws):
        encoded: set[bytes] = set()
        twice = next(raw for raw in raws if raw in encoded or encoded.add(raw))  # type: ignore[func-returns-value]
        reasons.append(f"the vocabulary has the word {twice[:80].decode(errors='replace')!r} twice")
    return raws


def _encode_ngrams(subwords: Any, reasons: list[Reason], *, spec: bool) -> _Ngrams | None:
    """Return the n-grams of an explicit vocabulary, ordered so that their indices count by first appearance."""
    if subwords.ngrams is None:
        reasons.append("explicit subwords without n-grams")
        return None
    table, given_indices = subwords.ngrams()
    indices = np.asarray(given_indices, np.uint64)
    if len(indices) != len(table) or table.duplicates()[0]:
        reasons.append("repeated n-grams, or not one index for each n-gram")
        return None
    distinct = np.unique(indices)
    if len(distinct) and int(distinct[-1]) != len(distinct) - 1:
        reasons.append("indices of n-grams that leave out a number")
        return None
    if spec and len(distinct) != len(indices):
        reasons.append("n-grams that share an index, in layout 'spec'")
        return None
    # Sort the n-grams, not the rows of the matrix. If no two n-grams share an index, the sorted indices are 0, 1, 2
    # and so on, as layout "spec" needs them.
    return _Ngrams(table, indices, None if finalfusion.numbered(indices) else np.argsort(indices, kind="stable"))


def _encode_metadata(metadata: Mapping[str, Any], reasons: list[Reason]) -> bytes:
    """Return metadata as TOML; unchanged metadata keeps its original text.

    Adds values that TOML cannot express to `reasons`. Raises `MissingDependencyError` when new text needs the missing
    package tomli_w.
    """
    document = metadata.copy() if isinstance(metadata, MappingProxyType) else metadata
    if isinstance(document, finalfusion.TomlDocument) and _says(document):
        return document.text.encode()
    if not document:
        return b""
    try:
        import tomli_w  # noqa: PLC0415 - optional
    except ImportError:
        msg = "new metadata of finalfusion files needs tomli-w: pip install '.[fifu]' in a checkout"
        raise MissingDependencyError(msg) from None
    if not finalfusion.shallow(_plain(document)):
        reasons.append(f"metadata nested more than {DEEPEST} deep")
        return b""
    try:
        _check_integers(_plain(document))
        text: str = tomli_w.dumps(document)
        finalfusion.loads(text)
        return text.encode()
    except LimitError as error:
        reasons.append(str(error))
        return b""
    except (TypeError, ValueError, RecursionError, AttributeError) as error:
        reasons.append(f"metadata that is not TOML: {str(error)[:200]}")
        return b""


def _check_integers(value: Any) -> None:
    """Raise ValueError for an integer of more than TOML's 64 bits, however deep."""
    if isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_integers(inner)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer of more than 64 bits")


def _says(document: finalfusion.TomlDocument) -> bool:
    """Whether the text of a document still matches its content, which the caller may have changed."""
    try:
        return finalfusion.loads(document.text) == document
    except (ValueError, RecursionError):
        return False


def _plain(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else dict(value)
