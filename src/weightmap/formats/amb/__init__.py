"""AMB ``.amb``, the format of embee.cpp: transformer models, dense or quantised.

Little-endian; four sections back to back behind a header of 28 bytes::

    "AMBEE" | u8 version = 1 | u16 flags = 0 | 3 x u32 sizes of metadata, config, tokenizer | u64 size of weights

* The sizes and 28 make the size of the file. No flag is defined: one that is set is not supported.
* metadata, config: a JSON object in UTF-8.
* tokenizer: ``u8 type | u16 bos, eos, pad, unk, mask | vocabulary``, or nothing. Types: 0 BPE, 1 SentencePiece, 2
  WordPiece, 3 custom.
* weights: records to the end of the section, and no count of them::

      u16 name_length | name | u8 ndim | ndim x u32 | u8 dtype | u64 data_size | data | 0-7 zero bytes

dtype: 0 FP32, 1 FP16, 2 BF16, 3 INT8, 4 INT4, 5 INT5, 6 INT4BLOCK, 7 INT5BLOCK, 8 ADAPTIVE. Data is row-major. It lies
at any address, so an array is often unaligned (``flags.aligned`` is False), which numpy handles.

Ours, where the specification is silent
---------------------------------------
* Metadata and config may be empty, which is read as ``{}``, and end in white space. Both are read strictly: no repeated
  keys, no NaN. They are written with sorted keys, so that the same content gives the same bytes.
* Padding brings the end of the data to a multiple of 8 of the offset in the file, as the specification's example does,
  and the last record has it too. A file whose records do not end with the section so is read once more with offsets
  that count from the start of the section. Metadata is written with spaces at its end, such that both are the same.
* The data_size of dense tensors is that of shape and dtype. A tensor may have no dimension, and dimensions of 0.
* An absent special id is 0xFFFF; ``tokenizer.special_ids`` leaves it out. An id that is not below the size of the
  vocabulary, where that is known, is a warning of `verify`.
* The vocabulary in the tokenizer section, as `convert` writes it from a model directory. WordPiece: the tokens by id,
  in UTF-8, a line feed behind each. BPE: a JSON object ``{"merges": [[left, right], ...], "vocab": {token: id}}``.
  SentencePiece: the serialised model (``tokenizer.model``). Custom: ``tokenizer.json``. To a reader it is just bytes.
* ``strict=False`` also lets pass: padding that is not zero, or missing behind the last record, and trailing bytes.

Quantised tensors (ours: the specification leaves position, packing and codes open)
-----------------------------------------------------------------------------------
Data begins with ``u8 quant_type | u16 block_size | u8 scale_type``, then comes the payload; data_size counts both.
quant_type: 0 none, 1 INT8, 2 INT4, 3 INT5, 4 INT4_BLOCK, 5 INT5_BLOCK, 6 ADAPTIVE, as the dtype says. scale_type: 0
float32, 1 float16.

* Integers are two's complement, and value = scale * integer.
* Of 4 bits: element 2i in the low half of byte i, element 2i + 1 in the high one. Of 5 bits: element k in bits 5k,
  5k + 1, ... 5k + 4 of a stream, bit 0 being the lowest of byte 0.
* INT8, INT4, INT5: block_size 0; one scale, then the codes of all elements. INT8 may be dense as well: data_size tells.
* INT4BLOCK, INT5BLOCK: for each block of the flattened tensor its scale, then its codes. The last block is whole, its
  missing elements 0. block_size is even for 4 bits, a multiple of 8 for 5.
* ADAPTIVE: a mask of two bits for each block, the first in the lowest bits, padded with 0 to a byte: 0 INT4, 1 INT5, 2
  FP16; then a scale for each block that is not FP16; then the codes of each block, or its halves. block_size is a
  multiple of 8.
* Bare blocks: INT4BLOCK and INT5BLOCK without the header of four bytes. When no header fits the data_size, and the
  blocks that ``config["quant"]`` describes do (``block_size``, by default 32; ``scale_type`` "fp16" or "fp32", by
  default fp16), they are read so.
* Written: always with the header, and ``config["quant"] = {"type", "block_size", "scale_type"}``; where tensors differ,
  of those that take most bytes.
* A size, block size, type or mask that contradicts the rest is a QuantError. Of adaptive data opening checks bounds;
  the mask is read at the first use, and by `verify`. A scale that is NaN or infinite gives such values; `verify` warns
  of it.
"""

from __future__ import annotations

from weightmap.formats._base import Format
from weightmap.formats._metadata import JSON
from weightmap.lazy import later

MAGIC = b"AMBEE"
DENSE = ("float32", "float16", "bfloat16", "int8")
SCHEME_CODES = {"int8": 3, "int4": 4, "int5": 5, "int4_block": 6, "int5_block": 7, "adaptive": 8}

FORMAT = Format(
    name="amb",
    title="AMB (embee.cpp)",
    suffixes=(".amb",),
    layouts=("amb",),
    parse=later(f"{__name__}.reading", "parse_amb"),
    plan=later(f"{__name__}.writing", "plan_amb"),
    carries={"amb": frozenset({"metadata", "config", "tokenizer"})},
    dtypes={"amb": frozenset(DENSE)},
    magic=MAGIC,
    metadata_kinds=JSON,
    schemes={"amb": frozenset(SCHEME_CODES)},
)
