"""The sections of AMB: header, JSON, tokenizer, and the records of tensors."""

from __future__ import annotations

import os
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap import native
from weightmap.dtypes import DTYPES, NUMPY_MAX_NDIM, SCHEMES
from weightmap.errors import (
    FormatError,
    LayoutError,
    LimitError,
    QuantError,
    TensorFileError,
    TruncatedError,
    UnsupportedError,
    cut_off,
    nonzero_padding,
    shrank,
)
from weightmap.formats._base import take, trailing
from weightmap.index import Rules
from weightmap.index.columns import ColumnTable
from weightmap.io import strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.dtypes import DType
    from weightmap.io.source import Source
    from weightmap.options import Limits, Options

MAGIC = b"AMBEE"
VERSION = 1
HEADER = struct.Struct("<5sBH3IQ")
# Before quantised data: quant_type, block_size, scale_type.
QUANT_HEADER = struct.Struct("<BHB")
ALIGNMENT = 8
U16_MAX, U32_MAX = 0xFFFF, 0xFFFFFFFF

DENSE = ("float32", "float16", "bfloat16", "int8")
SCHEME_CODES = {"int8": 3, "int4": 4, "int5": 5, "int4_block": 6, "int5_block": 7, "adaptive": 8}
# By the format's codes, then int8 again: code 3 is dense or quantised.
TYPES: tuple[DType, ...] = (
    *(DTYPES[name] for name in DENSE),
    *(SCHEMES[name] for name in SCHEME_CODES if name != "int8"),
    SCHEMES["int8"],
)
DTYPE_NAMES = (*DENSE, *(name for name in SCHEME_CODES if name != "int8"))

# For quantised data: codes of the schemes; types of scales, and their bytes.
QUANT_TYPES: dict[str, int] = {name: code - 2 for name, code in SCHEME_CODES.items()}
SCALE_TYPES = ("fp32", "fp16")
SCALE_SIZES = {"fp32": 4, "fp16": 2}
BY_BLOCKS = ("int4_block", "int5_block")
# Defaults for blocks without a header.
BARE_DEFAULTS: dict[str, Any] = {"block_size": 32, "scale_type": "fp16"}


class Header:
    """The checked header: the offset of each section, which ends where the next one begins."""

    __slots__ = ("config", "end", "metadata", "tokenizer", "weights")

    def __init__(self, metadata: int, config: int, tokenizer: int, weights: int, end: int) -> None:
        self.metadata: int = metadata
        self.config: int = config
        self.tokenizer: int = tokenizer
        self.weights: int = weights
        self.end: int = end  # of the last section


def read_header(source: Source, head: bytes, options: Options, warnings: list[str]) -> Header:
    """Check the header against the size of the file before anything that it declares is read."""
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:5]), expected=repr(MAGIC))
    if len(head) > 5 and head[5] != VERSION:
        raise UnsupportedError("version", field="version", offset=5, actual=head[5], expected=VERSION)
    if len(head) < HEADER.size:
        raise cut_off("its header", len(head), HEADER.size)
    _, _, flags, metadata, config, tokenizer, weights = HEADER.unpack_from(head)
    if flags:
        raise UnsupportedError("flags", field="flags", offset=6, actual=f"{flags:#06x}", expected="0: none is defined")
    starts = [HEADER.size]
    for size in (metadata, config, tokenizer, weights):
        starts.append(starts[-1] + size)
    header = Header(*starts)
    if header.end > source.size:
        raise cut_off("the sections that its header declares", source.size, header.end, field="weights_size")
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


# Most bytes between two tensors: padding and the longest header of a record. The walk knows the exact number.
_MAX_GAP = 7 + 2 + 65535 + 1 + 4 * NUMPY_MAX_NDIM + 1 + 8


class _Rules(Rules):
    __slots__ = ()
    dtypes = TYPES
    max_gap = _MAX_GAP
    fields = MappingProxyType({"name": ("name", 2)})


class Records:
    """The records of a file."""

    __slots__ = ("columns", "relative")

    def __init__(self, columns: native.Columns, *, relative: bool) -> None:
        self.columns: native.Columns = columns
        self.relative: bool = relative  # whether padding counts from the beginning of the section


def walk(
    source: Source, header: Header, bare: tuple[int, int] | None, options: Options, warnings: list[str]
) -> Records:
    """Walk the records, with padding by absolute offset; if that does not end exactly, by offset in the section.

    `bare` is block size and bytes of a scale of blocks without a header. Raises the error of the walk that got further.
    """
    fd, data = source.scanned  # held until this returns
    section = native.Section(
        fd,
        data,
        header.weights,
        header.end,
        options.limits.max_tensors,
        options.limits.max_header_bytes,
        bare or (0, 0),
    )
    bases = (False, True) if header.weights % ALIGNMENT else (False,)
    failures: list[tuple[tuple[int, int], native.Fault, int]] = []
    for lax in (False,) if options.strict else (False, True):
        failures.clear()
        for relative in bases:
            columns, found, fault = native.scan_section(section, relative=relative, lax=lax)
            if fault is None:
                warnings += _odd(found, source.name)
                return Records(columns, relative=relative)
            failures.append(((found.n_tensors, fault.at), fault, found.part))
    _, fault, part = max(failures, key=lambda failure: failure[0])
    raise _error(fault, part, source.name)


def _odd(found: Any, name: str) -> list[str]:
    """Return the warnings of a walk that tolerated padding."""
    odd = []
    if found.odd_padding:
        odd.append(nonzero_padding("behind a record", found.odd_padding).located(path=name))
    if found.unpadded:
        what = "the last record lacks padding"
        odd.append(LayoutError(what, path=name, field="padding", offset=found.unpadded))
    return list(map(str, odd))


# For faults that compare two values: the class of the error, the wrong value's name, and the expected value.
_WORDS: dict[str, tuple[type[TensorFileError], str, str]] = {
    "AMB_END": (TruncatedError, "the weights section ends within its {field}: number of bytes left", "{expected}"),
    "AMB_DATA": (TruncatedError, "data_size", "at most {expected}, the bytes left in the weights section"),
    "AMB_NAMES": (LimitError, "bytes of all names", "at most {expected} (Limits.max_header_bytes)"),
    "AMB_UNPADDED": (LayoutError, "padding of the last record", "{expected} zero bytes"),
    "AMB_QUANT_TYPE": (QuantError, "quant_type", "{expected} by its dtype"),
    "AMB_SCALE_TYPE": (QuantError, "scale_type", "0 (FP32) or 1 (FP16)"),
    "AMB_SCHEME_SIZE": (QuantError, "data_size", "{expected} by its shape, block size and scale type"),
    "TABLE_NDIM": (LimitError, "number of dimensions", "at most {expected}"),
    "TABLE_SIZE": (LayoutError, "data_size", "{expected} by its shape and dtype"),
}


def _error(  # noqa: PLR0911 - one return for each kind of fault
    fault: native.Fault, part: int, name: str
) -> TensorFileError | OSError:
    kind, field = fault.kind, native.SECTION_FIELDS[part]
    label = f"tensor {fault.row}"
    if kind == "AMB_READ":
        if fault.actual:
            return OSError(fault.actual, os.strerror(fault.actual), name)
        return shrank(fault.at)
    if kind == "CAPACITY":
        what, expected = "number of tensors", f"at most {fault.expected} (Limits.max_tensors)"
        return LimitError(what, field="max_tensors", offset=fault.at, actual=fault.actual, expected=expected)
    if kind == "TABLE_DTYPE":
        known = ", ".join(f"{code} {dtype}" for code, dtype in enumerate(DTYPE_NAMES))
        what, expected = f"{label}: dtype code", f"one of {known}"
        return UnsupportedError(what, field=field, offset=fault.at, actual=fault.actual, expected=expected)
    if kind == "TABLE_OVERFLOW":
        return LayoutError(f"{label}: the product of its shape exceeds 2**63 - 1 bytes", field=field, offset=fault.at)
    if kind == "AMB_PADDING":
        return nonzero_padding(f"behind {label}", fault.at)
    if kind == "AMB_BLOCK_SIZE":
        what, step = f"{label}: block_size", fault.expected
        expected = f"a positive multiple of {step}" if step else "0: there is one scale"
        return QuantError(what, field=field, offset=fault.at, actual=fault.actual, expected=expected)
    if kind in _WORDS:
        cls, what, expected = _WORDS[kind]
        expected = expected.format(expected=fault.expected)
        return cls(
            f"{label}: {what.format(field=field)}", field=field, offset=fault.at, actual=fault.actual, expected=expected
        )
    return FormatError(f"{label}: the records are damaged ({kind or fault.code})", offset=fault.at)


def table_of(records: Records, header: Header, options: Options) -> ColumnTable:
    """Return the table of the records; its names are unchecked."""
    columns, origin = records.columns, header.weights if records.relative else 0

    def locate(row: int) -> int:
        if row == 0:
            return header.weights
        end: int = header.weights + columns.end[row - 1]
        return end + -(end - origin) % ALIGNMENT

    rules = _Rules(header.weights, header.end, header.end - header.weights, lax=not options.strict)
    return ColumnTable(columns, rules, utf8=True, locate=locate)


KINDS = ("BPE", "SentencePiece", "WordPiece", "custom")
WORDPIECE = KINDS.index("WordPiece")
SPECIAL_NAMES = ("bos", "eos", "pad", "unk", "mask")
NO_ID: int = U16_MAX
TOKENIZER_FIELDS = struct.Struct("<B5H")


class Tokenizer:
    """The tokenizer of a model file: returned by ``TensorFile.tokenizer``, taken by ``weightmap.save``.

    Attributes
    ----------
    type : int
        0 BPE, 1 SentencePiece, 2 WordPiece, 3 custom.
    special_ids : dict of str to int
        By the names bos, eos, pad, unk and mask; without the tokens that the file lacks.
    payload : bytes
        The vocabulary, read from the file at the first use.
    """

    __slots__ = ("_payload", "_place", "_source", "_special_ids", "type")

    def __init__(
        self,
        type: int,
        special_ids: Mapping[str, int],
        payload: bytes | None = None,
        *,
        source: Source | None = None,
        place: tuple[int, int, Limits] | None = None,
    ) -> None:
        self.type: int = type
        self._special_ids = dict(special_ids)
        self._payload = payload
        self._source = source
        self._place = place

    @property
    def kind(self) -> str:
        """Name of the type: "BPE", "SentencePiece", "WordPiece" or "custom"."""
        return KINDS[self.type]

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens that the file has, by name: bos, eos, pad, unk, mask."""
        return dict(self._special_ids)

    @property
    def payload(self) -> bytes:
        """The vocabulary; its form depends on the type.

        Raises
        ------
        LimitError
            When it has more bytes than ``Limits.max_header_bytes``.
        ClosedError
            When the file was closed before the first use.
        """
        payload = self._payload
        if payload is None:
            assert self._source is not None  # noqa: S101 - for the type checker
            assert self._place is not None  # noqa: S101
            offset, size, limits = self._place
            try:
                limits.check("max_header_bytes", size, "size of the tokenizer's vocabulary", offset=offset)
                payload = self._payload = self._source.pread(offset, size)
            except TensorFileError as error:
                raise error.located(path=self._source.name, format="amb") from None
        return payload

    def tokens(self) -> list[str]:
        """Return the tokens of a WordPiece tokenizer by id: its payload has one on each line (ours).

        Raises
        ------
        UnsupportedError
            For a tokenizer of another type.
        FormatError
            When the payload is not UTF-8.
        """
        if self.type != WORDPIECE:
            what = "type of the tokenizer"
            raise UnsupportedError(what, field="type", actual=KINDS[self.type], expected=KINDS[WORDPIECE])
        try:
            text = self.payload.decode()
        except UnicodeDecodeError as error:
            msg = f"the vocabulary of the tokenizer is not UTF-8 ({error.reason})"
            name = None if self._source is None else self._source.name
            raise FormatError(msg, path=name, format="amb", field="payload") from None
        return text.removesuffix("\n").split("\n") if text else []

    def __repr__(self) -> str:
        size = len(self._payload) if self._payload is not None else (self._place or (0, 0))[1]
        return f"<{KINDS[self.type]} Tokenizer: special ids {self._special_ids}, {size} bytes>"


def read_tokenizer(source: Source, head: bytes, start: int, end: int, limits: Limits) -> Tokenizer | None:
    """Return the tokenizer of the section [start, end) without reading its vocabulary; None for an empty section."""
    if start == end:
        return None
    kind, *ids = TOKENIZER_FIELDS.unpack(take(source, head, start, TOKENIZER_LEAST))
    if kind >= len(KINDS):
        expected = ", ".join(f"{code} ({name})" for code, name in enumerate(KINDS))
        raise UnsupportedError("tokenizer type", field="type", offset=start, actual=kind, expected=expected)
    special = {name: i for name, i in zip(SPECIAL_NAMES, ids, strict=True) if i != NO_ID}
    place = (start + TOKENIZER_LEAST, end - start - TOKENIZER_LEAST, limits)
    return Tokenizer(kind, special, source=source, place=place)
