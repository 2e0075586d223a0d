"""EMBD ``.weights``, the format of cpp_embedder: the layout of its specification and the one its converter writes.

Specification layout ("spec")
-----------------------------
Little-endian; sections in this order: header, metadata, vocabulary, tensor index, tensor data, footer.

Header, 64 bytes: ``"EMBD" | u16 major = 1 | u16 minor = 0 | u32 flags | u32 metadata_offset, metadata_size | u32
vocab_offset, vocab_size | u32 tensor_index_offset, tensor_index_count | u32 tensor_data_offset | u64 tensor_data_size |
u64 total_file_size | u32 header_checksum | u32 reserved = 0``. The checksum is the CRC-32 (as of zlib) of bytes 0 to
55.

Flags: 1 VOCAB_EMBEDDED, 2 TENSORS_ALIGNED (to 64 bytes), 4 CHECKSUM_ENABLED, 8 COMPRESSED (reserved); others are
reserved.

Metadata: ``u32 entry_count, u32 total_size``, then entries ``u16 klen, u16 vlen, key, value`` in UTF-8.

Vocabulary: ``u32 token_count, u32 total_size, u32 special_tokens``, then ``u16 length, bytes`` for each id, then five
u32: the ids of the pad, unk, cls, sep and mask tokens. The sizes of both sections in the header include these
sub-headers and ids.

Tensor index: descriptors of 32 bytes ``u32 name_hash | u8 dtype | u8 ndim | u16 name_length | 4 x u32 shape | u64
data_offset``, then all names back to back. The hash is FNV-1a 32 of the name; collisions are legal. dtype: 0 float32, 1
float16, 2 bfloat16, 3 int32, 4 int16, 5 int8, 6 uint32, 7 uint16, 8 uint8. ndim is 1 to 4; unused dimensions are 0, and
used ones may be. The offset counts from tensor_data_offset; data is row-major.

Footer, the last 16 bytes: ``u32 data_crc | u32 file_crc | "DBME" | u32 reserved = 0``: the CRC-32 of the tensor data
section with its padding, and of everything before the footer.

Ours, where the specification is silent or contradicts itself
-------------------------------------------------------------
* special_tokens is written as an absolute offset, behind the entries. It is read as absolute if that lies within the
  vocabulary, else as relative to it. If it points right behind the sub-header, the entries begin after the ids.
* A special id of 0xFFFFFFFF means that there is no such token. `verify` warns of an id that is not below token_count.
* tensor_data_offset and every data_offset are written as multiples of 64.
* Padding between sections, between aligned tensors, and before the footer is at most 63 zero bytes; without
  TENSORS_ALIGNED, tensors lie back to back.
* With CHECKSUM_ENABLED clear, the footer's CRCs are written as 0 and not read, and a header checksum of 0 means none,
  of which `verify` warns. Any other wrong header checksum is an error, with or without the flag. The header checksum is
  always written. With VOCAB_EMBEDDED clear, vocab_offset and vocab_size are 0.
* `verify` warns of a minor version above 0, a repeated token, a wrong total_size of the metadata, and missing keys that
  the specification requires, unless all of them are missing: then it says so among its checks.
* ``strict=False`` also tolerates reserved fields that are not 0, and holes and overlaps of tensors.

Simple layout ("simple")
------------------------
The layout that the upstream converter and loader really use: ``"EMBD", u32 1, u32 n``, n times ``u32 length, name, u32
ndim, ndim x u32, float32 data``, then ``u32 vocab_count``, and for each token ``u32 length, token``. A file has the
specification layout if it has 80 bytes or more, its size at byte 48 and "DBME" 8 bytes before its end; otherwise the
simple layout must consume it exactly. If neither fits, the error is that of the specification layout if one of its
signs is there (ours: a right header checksum is a third sign), else that of the simple layout.
"""

from __future__ import annotations

from weightmap.formats._base import TEXT, Format
from weightmap.lazy import later

MAGIC = b"EMBD"
DTYPE_NAMES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8")

FORMAT = Format(
    name="embd",
    title="EMBD",
    suffixes=(".weights",),
    layouts=("spec", "simple"),
    parse=later(f"{__name__}.reading", "parse"),
    plan=later(f"{__name__}.writing", "plan"),
    carries={"spec": frozenset({"metadata", "vocab", "special_ids"}), "simple": frozenset({"vocab"})},
    magic=MAGIC,
    metadata_kinds=TEXT | {"integer"},  # written as decimal strings
    dtypes={"spec": frozenset(DTYPE_NAMES), "simple": frozenset({"float32"})},
    checksums=frozenset({"spec"}),
    aligns={"spec": 64},
    special_ids=frozenset({"pad", "unk", "cls", "sep", "mask"}),
)
