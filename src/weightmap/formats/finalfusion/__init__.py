"""finalfusion ``.fifu``: word embeddings with a vocabulary, subwords, and a matrix that may be quantised.

Little-endian. ``"FiFu" | u32 version = 0 | u32 n_chunks | n_chunks x u32 chunk id``, then the chunks, each ``u32 id |
u64 length | payload``; the length is that of the payload with its padding. In this order: optional metadata (5); a
vocabulary (1, 3, 7 or 8); a storage (2 or 4); optional norms (6).

Vocabularies; a word is ``u32 length, bytes`` in UTF-8, unique, and may be empty
---------------------------------------------------------------------------------
* 1 simple: ``u64 n | n words``; the matrix has n rows.
* 3 bucket: ``u64 n | u32 min_n | u32 max_n | u32 exponent | words``; n + 2**exponent rows.
* 7 fastText: ``u64 n | u32 min_n | u32 max_n | u32 buckets | words``; n + buckets rows.
* 8 explicit: ``u64 n | u64 n_ngrams | u32 min_n | u32 max_n | words | n_ngrams x {u32 length, bytes, u64 index}``; n
  rows and one for each distinct index. Several n-grams may share an index.

Every implementation writes the fields in this order ("upstream"). The specification has another ("spec"): ``u32 min_n
| u32 max_n | u32 exponent or buckets | u64 n | words``, and for explicit ones ``u32 min_n | u32 max_n | u64 n | words |
u64 n_ngrams | n_ngrams x {u32 length, bytes}``, where n-gram i has index i. The u32 4 bytes into the payload tells them
apart: 0 in the first (the upper half of n), max_n in the second. Both are read and written. n-grams have min_n >= 1 to
max_n characters; the exponent is 1 to 63; there is at least one bucket.

Storage
-------
* 2 matrix: ``u64 rows | u32 cols | u32 type | padding | data``, row-major. Types: 0 i8, 1 u8, 2 i16, 3 u16, 4 i32, 5
  u32, 6 i64, 7 u64, 8 i128, 9 u128 (unsupported: numpy has none), 10 f32, 11 f64. Implementations write f32 alone.
* 4 quantised, by product quantisation: ``u32 projection (0 or 1) | u32 norms (0 or 1) | u32 quantized_len | u32
  reconstructed_len | u32 n_centroids | u64 rows | u32 quantized_type = 1 | u32 reconstructed_type = 10 | padding``,
  then with R = reconstructed_len ``[projection f32 R x R] | codebooks f32 quantized_len x n_centroids x R /
  quantized_len | [norms f32 x rows] | codes u8 rows x quantized_len``. (The specification omits n_centroids and swaps
  the types.)
* 6 norms: ``u64 n | u32 type = 10 | padding | n x f32``, n being the number of words.
* 5 metadata: the text of a TOML document.

Padding is ``size - position % size`` zero bytes, where position is the offset behind the type, and size the bytes of an
element: 1 to 4 for f32, and never 0.

Ours
----
* The chunks are walked; `verify` warns if the header lists others.
* The length of a vocabulary is trusted if it leads to a whole storage chunk: a known type, rows that fit the
  vocabulary, and an end at the end of the file or at norms. Then opening reads nothing of the vocabulary. Otherwise it
  walks the strings, and `verify` warns of the wrong length: finalfusion-python writes that of explicit vocabularies 8
  bytes short for every n-gram. If strings do not end at a trusted length, the first use of the vocabulary and `verify`
  raise `LayoutError`.
* The length of a storage or norms chunk tells its padding: 0 to 4 bytes, or up to the size of an element. If it leads
  neither to the end of the file nor to norms, but the padding of the rule above does, that padding is taken, and
  `verify` warns. It is not taken if the length leads a few bytes past the end of the file, which may be cut off.
* For repeated words or n-grams, the first look-up and `verify` raise `LayoutError`. Indices of n-grams must cover every
  row that the matrix has for n-grams, which their first use checks. `verify` warns of indices that are not numbered by
  first appearance, because one reader numbers them so; they are written so, by sorting the n-grams.
* A file may have a single chunk of any kind, as each part of finalfusion-python writes itself, where its header lists
  no other: a vocabulary without tensors, a storage or norms without words, metadata. (Norms may be alone whatever the
  header lists.) Such files are read; `save` writes whole ones.
* ``strict=False`` tolerates, with warnings, trailing bytes, chunks of unknown ids, missing chunks, padding that is not
  zero, and repeated strings.
* Metadata is parsed at the first use, and keeps its text to the byte when it is written again unchanged. Nesting deeper
  than 128 and more than 65,536 keys are refused.

Writing
-------
``save(path, {"embeddings": matrix}, vocab=words)``, and optionally ``"norms"``, float32, one for each word. The matrix
is a two-dimensional array, or a `QuantizedTensor` of scheme "pq". A vocabulary with subwords has an attribute
``subwords``, as the `Vocabulary` of an opened file has: a `weightmap.embeddings.subwords.Subwords`, or anything with
its attributes ``kind`` ("bucket", "fasttext" or "explicit"), ``min_n``, ``max_n``, ``size`` (rows of subwords) and, if
explicit, ``ngrams``. `Vocabulary.of` makes one::

    vocab = Vocabulary.of(["one", "two"], subwords=Subwords("bucket", 2, 3, 6, 2**10))
    save("words.fifu", {"embeddings": matrix}, vocab=vocab)  # of 2 + 1024 rows
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from weightmap import native
from weightmap.errors import FormatError, LayoutError, TruncatedError, UnsupportedError, cut_off, too_many
from weightmap.formats._base import TOML, Content, Format, take, trailing
from weightmap.formats.finalfusion.layout import (
    CHUNK,
    DTYPE_LIST,
    HEADER,
    KNOWN,
    MAGIC,
    METADATA,
    NORMS,
    QUANTIZED,
    STAGE_TITLES,
    STAGES,
    TITLES,
    TYPES,
    U32,
    VERSION,
    Block,
    Chunks,
    Placing,
    VocabChunk,
    check_size,
    product_sizes,
    read_fields,
    read_matrix,
    read_norms,
    read_product,
    scan_end,
)
from weightmap.index import ANY_GAP, Rules
from weightmap.index.columns import ColumnTable
from weightmap.lazy import later, np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.formats._verification import Verification
    from weightmap.index.row import Row
    from weightmap.io.source import Source
    from weightmap.options import Options
    from weightmap.quant.blocks import QuantizedTensor

_load_metadata = later(f"{__name__}.metadata", "load_metadata")  # imports the parser of TOML
_read_vocabulary = later(f"{__name__}.vocabulary", "read_vocabulary")
_verify = later(f"{__name__}.verify", "verify")
LAYOUTS = ("upstream", "spec")

_NAMES = ("embeddings", "norms")


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST
    min_ndim, max_ndim = 1, 2
    # Headers of chunks lie between the tensors, and offsets count from the start of the file: the walk checks the gaps.
    max_gap = ANY_GAP


class _Decoder:
    """Decodes the product-quantised matrix of a file; `name` is that of the file."""

    def __init__(self, storage: Block, name: str) -> None:
        self._storage = storage
        self._name = name

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        del row  # a file has at most one such tensor
        return product_of(self._storage, octets, self._name)

    def row_parts(self) -> list[tuple[int, int]]:
        """Return the bytes of projection, codebooks, norms and codes, each with those of one row: see `Row`."""
        product, shape = self._storage.product, self._storage.shape
        assert product is not None  # noqa: S101 - its dtype says so
        per_row = (0, 0, 4, product.quantized_len)
        return list(zip(product_sizes(shape, product), per_row, strict=True))


def parse_finalfusion(source: Source, head: bytes, options: Options) -> Content:
    """Walk the chunks and return the content. Data stays unread, and so do words if their length can be trusted."""
    warnings: list[str] = []
    chunks = walk(source, head, options, warnings)
    table = table_of(chunks, source.size)
    options.limits.check("max_tensors", len(table), "number of tensors")
    if options.checked:
        table.check()
    vocab, storage, metadata = chunks.vocab, chunks.storage, chunks.metadata

    def load() -> dict[str, Any]:
        if metadata is None:
            return {}
        found: dict[str, Any] = _load_metadata(source.pread(*metadata), metadata[0])
        return found

    def check(run: Verification) -> None:
        _verify(run, chunks, walk(source, b"", run.options, []))

    layout = "spec" if vocab is not None and vocab.spec else "upstream"
    content = Content(layout, table, load, check, warnings)
    content.has_metadata = metadata is not None
    if storage is not None and storage.product is not None:
        content.table.quantized = _Decoder(storage, source.name)
    if vocab is not None:
        content.load_vocab = lambda: _read_vocabulary(source, vocab, storage, strict=options.strict)
    return content


def table_of(chunks: Chunks, size: int) -> ColumnTable:
    """Return the table of the one or two tensors in a file of `size` bytes."""
    parts = [(name, block) for name, block in zip(_NAMES, (chunks.storage, chunks.norms), strict=True) if block]
    names = [name.encode() for name, _ in parts]
    blocks = [block for _, block in parts]
    columns = native.Columns(
        b"".join(names),
        np.array([0, *accumulate(map(len, names))], np.uint32),
        np.array([block.code for block in blocks], np.uint8),
        np.array([dim for block in blocks for dim in block.shape], np.uint64),
        np.array([0, *accumulate(len(block.shape) for block in blocks)], np.uint32),
        np.array([block.data for block in blocks], np.uint64),
        np.array([block.end for block in blocks], np.uint64),
    )
    return ColumnTable(columns, _Rules(0, size), utf8=False)


def product_of(storage: Block, octets: NDArray[np.uint8], name: str) -> QuantizedTensor:
    """Return the product-quantised matrix over its bytes, from projection to codes; `name` is that of the file."""
    from weightmap.quant.product import ProductQuantized  # noqa: PLC0415 - only quantised matrices need it

    product = storage.product
    assert product is not None  # noqa: S101 - its dtype says so
    rows, width = storage.shape
    parts = []
    start = 0
    for nbytes in product_sizes(storage.shape, product):
        parts.append(octets[start : start + nbytes])
        start += nbytes
    projection, codebooks, norms, codes = parts
    subspace = width // product.quantized_len
    return ProductQuantized(
        codes.reshape(rows, product.quantized_len),
        codebooks.view("<f4").reshape(product.quantized_len, product.n_centroids, subspace),
        projection.view("<f4").reshape(width, width) if product.projection else None,
        norms.view("<f4") if product.norms else None,
        origin=(name, "finalfusion", storage.data + start - len(codes)),
    )


# Longest plausible list of chunk ids; a longer one is not read.
_LISTED_MOST = 64
# Room for the header and the fields of any chunk, in bytes
_FIELDS_MOST = 64


def walk(source: Source, head: bytes, options: Options, warnings: list[str]) -> Chunks:
    """Find the chunks of a file and check their fields.

    Adds tolerated deviations to `warnings`. Raises the `FormatError` of the first other defect.
    """
    return _Walk(source, head, options, warnings).run()


class _Walk:
    def __init__(self, source: Source, head: bytes, options: Options, warnings: list[str]) -> None:
        self._source = source
        self._head = head
        self._options = options
        self._warnings = warnings
        self._size = source.size
        self._metadata: tuple[int, int] | None = None
        self._vocab: VocabChunk | None = None
        self._storage: Block | None = None
        self._norms: Block | None = None
        self._listed: tuple[int, ...] | None = None

    def _take(self, offset: int, count: int) -> bytes:
        """Return `count` bytes, or fewer at the end of the file."""
        return take(self._source, self._head, offset, max(0, min(count, self._size - offset)))

    def run(self) -> Chunks:
        """Walk from the header to the end of the file."""
        self._listed, position = self._header()
        stage = -1
        found: list[int] = []
        while position < self._size:
            raw = self._take(position, _FIELDS_MOST)
            if (self._storage or self._norms) and not self._is_chunk(raw, position):
                trailing(self._source, position, self._options, self._warnings)
                break
            if len(raw) < CHUNK.size:
                raise cut_off(f"the header of chunk {len(found)}", self._size, position + CHUNK.size, field="chunk")
            id_, length = CHUNK.unpack_from(raw)
            if id_ not in STAGES:
                position = self._unknown(id_, length, position)
                continue
            self._check_order(id_, stage, position)
            stage = STAGES[id_]
            found.append(id_)
            position = self._chunk(id_, length, position, raw[CHUNK.size :])
        self._check_complete(found)
        return Chunks(self._listed, tuple(found), self._metadata, self._vocab, self._storage, self._norms)

    def _header(self) -> tuple[tuple[int, ...] | None, int]:
        """Check the header; return the ids that it lists, and the offset of the first chunk."""
        raw = self._take(0, HEADER.size)
        if len(raw) < HEADER.size:
            raise cut_off("its header", len(raw), HEADER.size, field="header")
        magic, version, count = HEADER.unpack(raw)
        if magic != MAGIC:
            raise FormatError("magic", field="magic", offset=0, actual=repr(magic), expected=repr(MAGIC))
        if version != VERSION:
            raise UnsupportedError("version", field="version", offset=4, actual=version, expected=VERSION)
        most = (self._size - HEADER.size) // 4
        if count > most:
            raise too_many("number of chunks", count, most, field="n_chunks", offset=8)
        first = HEADER.size + 4 * count
        if count > _LISTED_MOST:
            return None, first
        ids = self._take(HEADER.size, 4 * count)
        return tuple(id_ for (id_,) in U32.iter_unpack(ids)), first

    def _is_chunk(self, raw: bytes, position: int) -> bool:
        """Whether the bytes behind a storage may be another chunk, whole or cut off, and not trailing bytes."""
        known = int.from_bytes(raw[:4], "little")
        if len(raw) < CHUNK.size:
            return raw[:4] == U32.pack(NORMS)[: len(raw)] and self._norms is None
        length = CHUNK.unpack_from(raw)[1]
        return known in STAGES or (known != 0 and length <= self._size - position - CHUNK.size)

    def _unknown(self, id_: int, length: int, position: int) -> int:
        """Refuse an unknown chunk, or step over it with ``strict=False``."""
        error = UnsupportedError("chunk id", field="chunk_id", offset=position, actual=id_, expected=f"one of {KNOWN}")
        if self._options.strict:
            raise error
        self._check_length(f"unknown chunk {id_}", length, position)
        self._warnings.append(f"{error}: stepped over")
        return position + CHUNK.size + length

    def _check_length(self, what: str, length: int, position: int) -> None:
        left = self._size - position - CHUNK.size
        if length > left:
            raise too_many(f"length of the {what}", length, left, field="chunk_len", offset=position + 4)

    def _check_order(self, id_: int, stage: int, position: int) -> None:
        """Refuse a repeated or misplaced chunk."""
        mine, title = STAGES[id_], TITLES[id_]
        if mine <= stage:
            repeated = (self._metadata, self._vocab, self._storage, self._norms)[mine] is not None
            second, late = f"is a second {STAGE_TITLES[mine]} chunk", f"comes after the {STAGE_TITLES[stage]}"
            msg = f"the {title} chunk {second if repeated else late}"
            raise LayoutError(msg, field="chunk_id", offset=position)
        missing = [STAGE_TITLES[k] for k, part in ((1, self._vocab), (2, self._storage)) if k < mine and part is None]
        alone = stage == -1 and (id_ == NORMS or self._listed == (id_,))
        if missing and not alone:
            error = LayoutError(f"the {title} chunk comes before any {missing[0]}", field="chunk_id", offset=position)
            self._options.tolerate(error, self._warnings)

    def _chunk(self, id_: int, length: int, position: int, fields: bytes) -> int:
        """Read one chunk; `fields` follow its header. Return its end."""
        payload = position + CHUNK.size
        if id_ == METADATA:
            self._check_length("metadata", length, position)
            self._options.limits.check("max_header_bytes", length, "size of the metadata", offset=position + 4)
            self._metadata = (payload, length)
            return payload + length
        stage = STAGES[id_]
        if stage == 1:
            self._vocab = self._vocabulary(id_, length, position, fields)
            return self._vocab.end
        words = None if self._vocab is None else self._vocab.n_words
        if id_ == NORMS:
            self._norms = read_norms(self._placing(position, length), fields, words)
            return self._norms.end
        self._storage = self._read_storage(id_, length, position, fields)
        self._check_rows(self._storage)
        return self._storage.end

    def _vocabulary(self, id_: int, length: int, position: int, fields: bytes) -> VocabChunk:
        """Read the fields of a vocabulary, and find its end.

        Its length is the end if it leads to a whole storage chunk that fits the vocabulary; else the words are walked.
        """
        vocab = read_fields(id_, length, position + CHUNK.size, fields, self._size)
        limits = self._options.limits
        if self._leads_to_storage(vocab):
            check_size(vocab, vocab.declared, limits)
            return vocab
        end = scan_end(self._source, vocab, limits)
        if end == vocab.declared:
            return vocab
        taken = f"its words and n-grams take {end - vocab.offset} bytes (at byte {position + 4})"
        self._warnings.append(f"the length of the {TITLES[id_]} chunk is {length}, and {taken}")
        return vocab.replaced(end=end)

    def _leads_to_storage(self, vocab: VocabChunk) -> bool:
        """Whether the vocabulary's length leads to a whole storage chunk with the rows that the vocabulary needs."""
        position = vocab.declared
        if not vocab.words <= position < self._size:
            return False
        raw = self._take(position, _FIELDS_MOST)
        if len(raw) < CHUNK.size:
            return False
        id_, length = CHUNK.unpack_from(raw)
        if STAGES.get(id_) != 2:
            return False
        kept, self._vocab = self._vocab, vocab
        noted = len(self._warnings)
        try:
            storage = self._read_storage(id_, length, position, raw[CHUNK.size :])
            self._check_rows(storage)
            return self._placing(position, length).lands(storage.end)
        except FormatError:
            return False
        finally:
            self._vocab = kept
            del self._warnings[noted:]

    def _placing(self, position: int, length: int) -> Placing:
        def starts_norms(end: int) -> bool:
            raw = self._take(end, CHUNK.size)
            return len(raw) == CHUNK.size and raw[:4] == U32.pack(NORMS)

        return Placing(position, length, self._size, self._warnings, starts_norms)

    def _read_storage(self, id_: int, length: int, position: int, fields: bytes) -> Block:
        read = read_product if id_ == QUANTIZED else read_matrix
        return read(self._placing(position, length), fields)

    def _check_rows(self, storage: Block) -> None:
        """Check that a storage has the rows that its vocabulary needs."""
        vocab = self._vocab
        if vocab is None:
            return
        rows, least = storage.shape[0], vocab.n_words + vocab.size
        most, reason = least, f"{vocab.n_words} words"
        if vocab.size:
            reason += f" and {vocab.size} buckets"
        if vocab.min_n and not vocab.size:  # explicit: only the n-grams tell the number of distinct indices
            most = rows if vocab.n_ngrams is None else least + vocab.n_ngrams
            reason += f" and at most {most - least} n-grams" if most != rows else " and its n-grams"
        if not least <= rows <= most:
            expected = f"{least}: {reason}" if most == least else f"{least} to {most}: {reason}"
            at = storage.chunk + CHUNK.size + (0 if storage.product is None else 20)
            raise LayoutError("number of rows", field="rows", offset=at, actual=rows, expected=expected)

    def _check_complete(self, found: list[int]) -> None:
        """Refuse a file without a vocabulary or a storage, unless it has one chunk and its header lists no other."""
        if [*(self._listed or ())] == found and len(found) == 1:
            return
        if self._norms is not None and self._storage is None and self._vocab is None:
            return
        parts = (("vocabulary", self._vocab), ("storage", self._storage))
        missing = " or ".join(name for name, part in parts if part is None)
        if missing:
            error = TruncatedError(f"the file ends without a {missing} chunk", field="chunk", offset=self._size)
            self._options.tolerate(error, self._warnings)


FORMAT = Format(
    name="finalfusion",
    title="finalfusion",
    suffixes=(".fifu",),
    layouts=LAYOUTS,
    parse=parse_finalfusion,
    plan=later(f"{__name__}.writing", "plan_finalfusion"),
    carries={layout: frozenset({"metadata", "vocab", "subwords"}) for layout in LAYOUTS},
    magic=MAGIC,
    metadata_kinds=TOML,
    embeddings=("embeddings", "norms"),
    dtypes={layout: frozenset(name for name in TYPES if name) for layout in LAYOUTS},
    schemes={layout: frozenset({"pq"}) for layout in LAYOUTS},
)
