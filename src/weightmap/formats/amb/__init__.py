"""AMB ``.amb``, the format of embee.cpp: transformer models, dense or quantised.

Little-endian; four sections back to back behind a header of 28 bytes::

    "AMBEE" | u8 version = 1 | u16 flags = 0 | 3 x u32 sizes of metadata, config, tokenizer | u64 size of weights

* The file has 28 bytes plus the sizes of its sections. No flag is defined; a file that sets one is not supported.
* metadata, config: a JSON object in UTF-8.
* tokenizer: ``u8 type | u16 bos, eos, pad, unk, mask | vocabulary``, or nothing. Types: 0 BPE, 1 SentencePiece, 2
  WordPiece, 3 custom.
* weights: records up to the end of the section, without a count::

      u16 name_length | name | u8 ndim | ndim x u32 | u8 dtype | u64 data_size | data | 0-7 zero bytes

dtype: 0 FP32, 1 FP16, 2 BF16, 3 INT8, 4 INT4, 5 INT5, 6 INT4BLOCK, 7 INT5BLOCK, 8 ADAPTIVE. Data is row-major and lies
at any address; numpy handles unaligned arrays (``flags.aligned`` is False).

Ours, where the specification is silent
---------------------------------------
* Empty metadata or config is read as ``{}``. Both may end in white space, and are read strictly: no repeated keys, no
  NaN. They are written with sorted keys, so that the same content gives the same bytes.
* Padding ends the data of every record, the last one too, at a multiple of 8 of the offset in the file, as in the
  specification's example. If the records then do not end with the section, they are read again with offsets from the
  start of the section. Metadata is written with spaces at its end, so that both readings agree.
* The data_size of dense tensors follows from shape and dtype. A tensor may have no dimensions, and dimensions of 0.
* An absent special id is 0xFFFF; ``tokenizer.special_ids`` leaves it out. `verify` warns of an id that is not below the
  size of a known vocabulary.
* The vocabulary in the tokenizer section, as `convert` writes it from a model directory. WordPiece: the tokens by id,
  in UTF-8, each followed by a line feed. BPE: a JSON object ``{"merges": [[left, right], ...], "vocab": {token: id}}``.
  SentencePiece: the serialised model (``tokenizer.model``). Custom: ``tokenizer.json``. A reader treats it as bytes.
* ``weightmap.types`` in the metadata, which `convert` writes, says what values of GGUF were: see `formats._metadata`.
* ``strict=False`` also tolerates padding that is not zero or is missing behind the last record, and trailing bytes.

Quantised tensors (ours: the specification leaves position, packing and codes open)
-----------------------------------------------------------------------------------
Data is ``u8 quant_type | u16 block_size | u8 scale_type``, then the payload; data_size counts both. quant_type, which
repeats the dtype: 0 none, 1 INT8, 2 INT4, 3 INT5, 4 INT4_BLOCK, 5 INT5_BLOCK, 6 ADAPTIVE. scale_type: 0 float32, 1
float16.

* Integers are two's complement, and value = scale * integer.
* 4 bits: element 2i is the low half of byte i, element 2i + 1 the high half. 5 bits: element k is bits 5k to 5k + 4 of
  a stream whose bit 0 is the lowest bit of byte 0.
* INT8, INT4, INT5: block_size 0; one scale, then the codes of all elements. data_size tells dense from quantised INT8.
* INT4BLOCK, INT5BLOCK: each block of the flattened tensor is its scale, then its codes. The last block is whole, its
  missing elements 0. block_size is even for 4 bits, a multiple of 8 for 5.
* ADAPTIVE: a mask of two bits for each block (0 INT4, 1 INT5, 2 FP16), the first block in the lowest bits, padded with
  0 to a byte; then a scale for each block that is not FP16; then each block's codes or float16 values. block_size is a
  multiple of 8.
* Bare blocks: INT4BLOCK and INT5BLOCK without the header of four bytes, read when no header fits the data_size but the
  blocks of ``config["quant"]`` do (``block_size``, by default 32; ``scale_type`` "fp16", the default, or "fp32").
* Written: always with the header, and ``config["quant"] = {"type", "block_size", "scale_type"}`` of the quantisation
  that covers most bytes.
* A size, block size, type or mask that contradicts the rest is a QuantError. Opening checks the bounds of adaptive
  data; the first use and `verify` read the mask. A NaN or infinite scale gives such values; `verify` warns of it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap.formats._base import JSON, Content, Format, take
from weightmap.formats.amb.layout import (
    DENSE,
    MAGIC,
    SCHEME_CODES,
    bare_blocks,
    read_header,
    read_json,
    read_tokenizer,
    table_of,
    walk,
)
from weightmap.lazy import later
from weightmap.native import late

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weightmap.formats._verification import Verification
    from weightmap.index.row import Row
    from weightmap.io.source import Source
    from weightmap.options import Options
    from weightmap.quant.blocks import QuantizedTensor

_tensor_of = later(f"{__name__}.quantized", "tensor_of")
_quantization = later(f"{__name__}.quantized", "quantization")
_glance = later(f"{__name__}.quantized", "glance")
_verify = later(f"{__name__}.verify", "verify")


class _Decoder:
    """Decodes the quantised tensors of a file; `bare` describes blocks without a header."""

    def __init__(self, bare: tuple[int, int] | None) -> None:
        self._bare = bare

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        found: QuantizedTensor = _tensor_of(row, octets, self._bare)
        return found

    def layout(self, row: Row, head: bytes) -> tuple[int, int, str]:
        """Return start of the payload, block size and scale type, from the first bytes of the data."""
        found: tuple[int, int, str] = _quantization(row, head, self._bare)
        return found

    def glance(self, row: Row, source: Source) -> tuple[int, int, str]:
        """Return the same, read from the file, and check a mask."""
        found: tuple[int, int, str] = _glance(row, source, self._bare)
        return found


def parse_amb(source: Source, head: bytes, options: Options) -> Content:
    """Check header, JSON sections and records, and return the content. Data and vocabulary stay unread."""
    warnings: list[str] = []
    header = read_header(source, head, options, warnings)
    prefix = take(source, head, 0, header.tokenizer)
    metadata = read_json(prefix, "metadata", header.metadata, header.config)
    config = read_json(prefix, "config", header.config, header.tokenizer)
    crc = late.crc32(prefix)
    tokenizer = read_tokenizer(source, head, header.tokenizer, header.weights, options.limits)
    bare = bare_blocks(config)
    records = walk(source, header, bare, options, warnings)
    table = table_of(records, header, options)
    if options.checked:
        table.check()

    def load_metadata() -> dict[str, Any]:
        return metadata

    def check(run: Verification) -> None:
        _verify(run, header, crc, records, bare)

    content = Content("amb", table, load_metadata, check, warnings)
    content.config = MappingProxyType(config)
    content.tokenizer = tokenizer
    table.quantized = _Decoder(bare)
    return content


FORMAT = Format(
    name="amb",
    title="AMB",
    suffixes=(".amb",),
    layouts=("amb",),
    parse=parse_amb,
    plan=later(f"{__name__}.writing", "plan_amb"),
    carries={"amb": frozenset({"metadata", "config", "tokenizer"})},
    dtypes={"amb": frozenset(DENSE)},
    magic=MAGIC,
    metadata_kinds=JSON,
    schemes={"amb": frozenset(SCHEME_CODES)},
)
