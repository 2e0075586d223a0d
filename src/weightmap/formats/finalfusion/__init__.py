"""finalfusion ``.fifu``: word embeddings with a vocabulary, subwords, and a matrix that may be quantised.

Little-endian. ``"FiFu" | u32 version = 0 | u32 n_chunks | n_chunks x u32 chunk id``, then the chunks, each ``u32 id |
u64 length | payload``, the length being that of the payload with its padding. In this order: metadata (5), which may
be missing; a vocabulary (1, 3, 7 or 8); a storage (2 or 4); norms (6), which may be missing.

Vocabularies; a word is ``u32 length, bytes`` in UTF-8, unique, and may be empty
---------------------------------------------------------------------------------
* 1 simple: ``u64 n | n words``; the matrix has n rows.
* 3 bucket: ``u64 n | u32 min_n | u32 max_n | u32 exponent | words``; n + 2**exponent rows.
* 7 fastText: ``u64 n | u32 min_n | u32 max_n | u32 buckets | words``; n + buckets rows.
* 8 explicit: ``u64 n | u64 n_ngrams | u32 min_n | u32 max_n | words | n_ngrams x {u32 length, bytes, u64 index}``; n
  + as many rows as there are different indices. Several n-grams may share one.

This is the order in which every implementation writes the fields ("upstream"). The specification has another
("spec"): ``u32 min_n | u32 max_n | u32 exponent or buckets | u64 n | words``, and for explicit ones ``u32 min_n | u32
max_n | u64 n | words | u64 n_ngrams | n_ngrams x {u32 length, bytes}``, n-gram i having index i. The u32 4 bytes into
the payload tells them apart: 0 in the first (the upper half of n), max_n in the second. Both are read and written.
n-grams have 1 <= min_n to max_n characters; the exponent is 1 to 63; there is a bucket at least.

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

Padding is ``size - position % size`` zero bytes, position being that after the type and size the bytes of an element:
1 to 4 for f32, never none.

Ours
----
* The header's list of chunks is not believed: the chunks are walked. A difference is a warning of `verify`.
* The length of a vocabulary is believed when it leads to a whole storage chunk: a known type, rows that fit the
  vocabulary, and an end that is the file's or where norms begin. Then nothing of the vocabulary is read. If not, its
  strings are walked, and a wrong length is a warning of `verify`: finalfusion-python writes those of explicit
  vocabularies 8 bytes short for every n-gram. Strings that do not end where a believed length said are a
  `LayoutError` at the first use of the vocabulary, and of `verify`.
* The length of a storage or norms chunk tells how much padding there is: 0 to 4 bytes, or up to the size of an
  element. Where it leads neither to the end of the file nor to norms, and the padding of the rule above does, that
  one is taken, with a warning of `verify`; but not where the length leads a few bytes past the end of the file, which
  may have been cut off.
* Strings that are repeated, in words or n-grams, are a `LayoutError` of `verify` and of the first look-up. Indices of
  n-grams must name every row that the matrix has for them, which is known at the first use of the n-grams. Indices
  that are not numbered by their first appearance are a warning, since one reader numbers them so; they are written
  so, by putting the n-grams in their order.
* A file that has norms and nothing else, as finalfusion-python writes them, has one tensor "norms" and no vocabulary.
* ``strict=False`` lets pass, with warnings: trailing bytes, chunks of unknown ids, missing chunks, padding that is
  not zero, repeated strings.
* Metadata is parsed when it is asked for. Written again unchanged it keeps its text to the byte. Nesting deeper than
  128 and more than 65,536 keys are refused.

Writing
-------
``save(path, {"embeddings": matrix}, vocab=words)``, and optionally ``"norms"``, float32, one for each word. The
matrix is a two-dimensional array, or a `QuantizedTensor` of scheme "pq". A vocabulary of subwords is told by an
attribute ``subwords`` of `vocab`, as the `Vocabulary` of an opened file has it: a
`weightmap.embeddings.subwords.Subwords`, or anything with its attributes ``kind`` ("bucket", "fasttext" or "explicit"),
``min_n``, ``max_n``, ``size`` (rows of subwords) and, if explicit, ``ngrams``. `Vocabulary.of` makes one::

    vocab = Vocabulary.of(["one", "two"], subwords=Subwords("bucket", 2, 3, 6, 2**10))
    save("words.fifu", {"embeddings": matrix}, vocab=vocab)  # of 2 + 1024 rows
"""

from __future__ import annotations

from weightmap.formats._base import Format
from weightmap.formats._metadata import TOML
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
