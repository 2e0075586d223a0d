"""The fields of AMB files: header, codes, and the sections before the records."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from weightmap.dtypes import DTYPES, SCHEMES
from weightmap.errors import FormatError, TruncatedError, UnsupportedError
from weightmap.formats._base import trailing
from weightmap.formats.amb import DENSE, MAGIC, SCHEME_CODES
from weightmap.io import strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.dtypes import DType
    from weightmap.io.source import Source
    from weightmap.options import Options

VERSION = 1
HEADER = struct.Struct("<5sBH3IQ")
# Before quantised data: quant_type, block_size, scale_type.
QUANT_HEADER = struct.Struct("<BHB")
ALIGNMENT = 8
U16_MAX, U32_MAX = 0xFFFF, 0xFFFFFFFF

# By the format's codes, then int8 again: code 3 is dense or quantised.
TYPES: tuple[DType, ...] = (
    *(DTYPES[name] for name in DENSE),
    *(SCHEMES[name] for name in SCHEME_CODES if name != "int8"),
    SCHEMES["int8"],
)
DTYPE_NAMES = (*DENSE, *(name for name in SCHEME_CODES if name != "int8"))

# For quantised data: codes of the schemes; types of scales, and their bytes.
QUANT_TYPES = {name: code - 2 for name, code in SCHEME_CODES.items()}
SCALE_TYPES = ("fp32", "fp16")
SCALE_SIZES = {"fp32": 4, "fp16": 2}
BY_BLOCKS = ("int4_block", "int5_block")
# Defaults for blocks without a header.
BARE_DEFAULTS = {"block_size": 32, "scale_type": "fp16"}


class Header:
    """The checked header: the offset of each section, which ends where the next one begins."""

    __slots__ = ("config", "end", "metadata", "tokenizer", "weights")

    def __init__(self, metadata: int, config: int, tokenizer: int, weights: int, end: int) -> None:
        self.metadata = metadata
        self.config = config
        self.tokenizer = tokenizer
        self.weights = weights
        self.end = end  # of the last section


def read_header(source: Source, head: bytes, options: Options, warnings: list[str]) -> Header:
    """Check the header against the size of the file before anything that it declares is read."""
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:5]), expected=repr(MAGIC))
    if len(head) > 5 and head[5] != VERSION:
        raise UnsupportedError("version", field="version", offset=5, actual=head[5], expected=VERSION)
    if len(head) < HEADER.size:
        what = "the file ends within its header: its size"
        raise TruncatedError(what, offset=len(head), actual=len(head), expected=f"at least {HEADER.size}")
    _, _, flags, metadata, config, tokenizer, weights = HEADER.unpack_from(head)
    if flags:
        raise UnsupportedError("flags", field="flags", offset=6, actual=f"{flags:#06x}", expected="0: none is defined")
    starts = [HEADER.size]
    for size in (metadata, config, tokenizer, weights):
        starts.append(starts[-1] + size)
    header = Header(*starts)
    if header.end > source.size:
        what, expected = "the file ends before its sections do: its size", f"{header.end}, by the sizes in its header"
        raise TruncatedError(what, field="weights_size", offset=source.size, actual=source.size, expected=expected)
    trailing(source, header.end, options, warnings)
    for name, size, offset in (("metadata_size", metadata, 8), ("config_size", config, 12)):
        options.limits.check("max_header_bytes", size, name, offset=offset)
    if 0 < tokenizer < TOKENIZER_LEAST:
        what, expected = "tokenizer_size", f"0, or at least {TOKENIZER_LEAST}"
        raise TruncatedError(what, field="tokenizer_size", offset=16, actual=tokenizer, expected=expected)
    return header


# Bytes of the tokenizer section before its vocabulary.
TOKENIZER_LEAST = 11


def read_json(prefix: bytes, what: str, start: int, end: int) -> dict[str, Any]:
    """Return the JSON object in [start, end) of the bytes before the tokenizer; an empty section is an empty object."""
    return strict_json.loads(prefix[start:end], what, offset=start) if end > start else {}


def bare_blocks(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return block size and bytes of a scale for blocks without a header, or None if the configuration is nonsense.

    A block size of 0, as schemes with one scale have it, fits no blocks.
    """
    quant = config.get("quant", {})
    if not isinstance(quant, dict):
        return None
    known = BARE_DEFAULTS | quant
    block_size, scale_type = known["block_size"], known["scale_type"]
    if type(block_size) is not int or not 0 <= block_size <= U16_MAX:
        return None
    if not isinstance(scale_type, str) or scale_type not in SCALE_SIZES:
        return None
    return block_size, SCALE_SIZES[scale_type]
