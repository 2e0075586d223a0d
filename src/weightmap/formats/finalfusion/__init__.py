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

from weightmap.formats._base import TOML, Format
from weightmap.lazy import later

MAGIC = b"FiFu"
LAYOUTS = ("upstream", "spec")
# By the format's codes; numpy has no integers of 128 bits.
TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", None, None, "float32", "float64")

FORMAT = Format(
    name="finalfusion",
    title="finalfusion",
    suffixes=(".fifu",),
    layouts=LAYOUTS,
    parse=later(f"{__name__}.reading", "parse_finalfusion"),
    plan=later(f"{__name__}.writing", "plan_finalfusion"),
    carries={layout: frozenset({"metadata", "vocab", "subwords"}) for layout in LAYOUTS},
    magic=MAGIC,
    metadata_kinds=TOML,
    embeddings=("embeddings", "norms"),
    dtypes={layout: frozenset(name for name in TYPES if name) for layout in LAYOUTS},
    schemes={layout: frozenset({"pq"}) for layout in LAYOUTS},
)
