"""AMB ``.amb``, the format of embee.cpp: transformer models, dense or quantised.

Little-endian; four sections back to back behind a header of 28 bytes::

    "AMBEE" | u8 version = 1 | u16 flags = 0 | 3 x u32 sizes of metadata, config, tokenizer | u64 size of weights

* The file has 28 bytes plus the sizes of its sections. No flag is defined; files that set one are not supported.
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
* Padding ends every record, also the last one, at an offset in the file that is a multiple of 8, as in the
  specification's example. If the records then do not end with the section, they are read again with offsets from the
  start of the section. Spaces at the end of written metadata make both readings agree.
* The data_size of dense tensors follows from shape and dtype. A tensor may have no dimensions, and dimensions of 0.
* An absent special id is 0xFFFF; ``tokenizer.special_ids`` leaves it out. `verify` warns of an id that is not below the
  size of a known vocabulary.
* `convert` writes the vocabulary of a model directory to the tokenizer section. WordPiece: the tokens by id, in UTF-8,
  each followed by a line feed. BPE: a JSON object ``{"merges": [[left, right], ...], "vocab": {token: id}}``.
  SentencePiece: the serialised model (``tokenizer.model``). Custom: ``tokenizer.json``. Readers treat it as bytes.
* ``weightmap.types`` in the metadata, from `convert`, records the types of texts before: see `conversion.metadata`.
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

import contextlib
import math
import os
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import weightmap.errors as errors
from weightmap._messages import counted
from weightmap.core.bytes import strict_json
from weightmap.core.dtypes import DTYPES, NUMPY_MAX_NDIM, SCHEMES, DType
from weightmap.core.faults import cut_off, nonzero_padding, shrank
from weightmap.core.formats._base import JSON, Content, Format, take, trailing
from weightmap.core.hooks import later
from weightmap.core.native import access, checksums, quantised, scans
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.core.quant.schemes import BITS, BLOCKED
from weightmap.core.table import Rules
from weightmap.core.table.columns import ColumnTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.core.arguments import Limits, Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification
    from weightmap.core.table.table import Row, Table

# The sections of AMB: header, JSON, tokenizer, and the records of tensors.

MAGIC = b"AMBEE"
VERSION = 1
HEADER = struct.Struct("<5sBH3IQ")
# Before quantised data: quant_type, block_size, scale_type.
QUANT_HEADER = struct.Struct("<BHB")
ALIGNMENT = 8
U16_MAX, U32_MAX = 0xFFFF, 0xFFFFFFFF

DENSE = ("float32", "float16", "bfloat16", "int8")
SCHEME_CODES = {"int8": 3, "int4": 4, "int5": 5, "int4_block": 6, "int5_block": 7, "adaptive": 8}
# By the format's codes, then int8 again, because code 3 is dense or quantised.
TYPES: tuple[DType, ...] = (
    *(DTYPES[name] for name in DENSE),
    *(SCHEMES[name] for name in SCHEME_CODES if name != "int8"),
    SCHEMES["int8"],
)
DTYPE_NAMES = (*DENSE, *(name for name in SCHEME_CODES if name != "int8"))

# For quantised data: the codes of schemes; the types of scales and their bytes.
QUANT_TYPES: dict[str, int] = {name: code - 2 for name, code in SCHEME_CODES.items()}
SCALE_TYPES = ("fp32", "fp16")
SCALE_SIZES = {"fp32": 4, "fp16": 2}
# Defaults for blocks without a header.
BARE_DEFAULTS: dict[str, Any] = {"block_size": 32, "scale_type": "fp16"}


class Header(NamedTuple):
    """The checked header: the offset of each section; a section ends where the next begins."""

    metadata: int
    config: int
    tokenizer: int
    weights: int
    end: int  # of the last section


def read_header(source: Source, head: bytes, options: Options, warnings: list[str]) -> Header:
    """Check the header against the size of the file, before reading anything that it declares."""
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise errors.FormatError("magic", field="magic", offset=0, actual=repr(head[:5]), expected=repr(MAGIC))
    if len(head) > 5 and head[5] != VERSION:
        raise errors.UnsupportedError("version", field="version", offset=5, actual=head[5], expected=VERSION)
    if len(head) < HEADER.size:
        raise cut_off("its header", len(head), HEADER.size)
    _, _, flags, metadata, config, tokenizer, weights = HEADER.unpack_from(head)
    if flags:
        raise errors.UnsupportedError(
            "flags", field="flags", offset=6, actual=f"{flags:#06x}", expected="0: none is defined"
        )
    starts = [HEADER.size]
    for size in (metadata, config, tokenizer, weights):
        starts.append(starts[-1] + size)
    header = Header(*starts)
    if header.end > source.size:
        raise cut_off("the sections that its header declares", source.size, header.end, field="weights_size")
    trailing(source, header.end, options, warnings)
    for name, size, offset in (("metadata_size", metadata, 8), ("config_size", config, 12)):
        options.limits.check("max_header_bytes", size, name, offset=offset)
    if 0 < tokenizer < MIN_TOKENIZER:
        what, expected = "tokenizer_size", f"0, or at least {MIN_TOKENIZER}"
        raise errors.TruncatedError(what, field="tokenizer_size", offset=16, actual=tokenizer, expected=expected)
    return header


# Bytes of the tokenizer section before its vocabulary.
MIN_TOKENIZER = 11


def read_json(prefix: bytes, what: str, start: int, end: int) -> dict[str, Any]:
    """Return the JSON object in bytes `start` to `end` of `prefix`; an empty section is an empty object."""
    return strict_json.loads(prefix[start:end], what, offset=start) if end > start else {}


def bare_blocks(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return block size and bytes of a scale for blocks without a header, or None for a nonsensical configuration.

    A block size of 0, which schemes with one scale have, fits no blocks.
    """
    quant = config.get("quant", {})
    if not isinstance(quant, dict):
        return None
    settings = BARE_DEFAULTS | quant
    block_size, scale_type = settings["block_size"], settings["scale_type"]
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


class Records(NamedTuple):
    """The records of a file."""

    columns: scans.Columns
    relative: bool  # whether padding counts from the beginning of the section


def walk(
    source: Source, header: Header, bare: tuple[int, int] | None, options: Options, warnings: list[str]
) -> Records:
    """Walk the records, padding by offset in the file; if the walk does not end exactly, by offset in the section.

    `bare` has block size and bytes of a scale for blocks without a header. Raises the error of the longer walk.
    """
    fd, data = source.c_input  # keep it until this returns
    section = scans.Section(
        fd,
        data,
        header.weights,
        header.end,
        options.limits.max_tensors,
        options.limits.max_header_bytes,
        bare or (0, 0),
    )
    bases = (False, True) if header.weights % ALIGNMENT else (False,)
    failures: list[tuple[tuple[int, int], access.Fault, int]] = []
    for lax in (False,) if options.strict else (False, True):
        failures.clear()
        for relative in bases:
            columns, end, fault = scans.scan_section(section, relative=relative, lax=lax)
            if fault is None:
                warnings += _odd(end, source.name)
                return Records(columns, relative=relative)
            failures.append(((end.n_tensors, fault.at), fault, end.part))
    _, fault, part = max(failures, key=lambda failure: failure[0])
    raise _error(fault, part, source.name)


def _odd(scan: Any, name: str) -> list[str]:
    """Return the warnings of a walk that tolerated padding."""
    odd = []
    if scan.odd_padding:
        odd.append(nonzero_padding("behind a record", scan.odd_padding).located(path=name))
    if scan.unpadded:
        what = "the last record lacks padding"
        odd.append(errors.LayoutError(what, path=name, field="padding", offset=scan.unpadded))
    return list(map(str, odd))


# For faults that compare two values: the class of the error, the name of the wrong value, and the expected one.
_WORDS: dict[str, tuple[type[errors.TensorFileError], str, str]] = {
    "AMB_END": (
        errors.TruncatedError,
        "the weights section ends within its {field}: number of bytes left",
        "{expected}",
    ),
    "AMB_DATA": (errors.TruncatedError, "data_size", "at most {expected}, the bytes left in the weights section"),
    "AMB_NAMES": (errors.LimitError, "bytes of all names", "at most {expected} (Limits.max_header_bytes)"),
    "AMB_UNPADDED": (errors.LayoutError, "padding of the last record", "{expected} zero bytes"),
    "AMB_QUANT_TYPE": (errors.QuantError, "quant_type", "{expected} by its dtype"),
    "AMB_SCALE_TYPE": (errors.QuantError, "scale_type", "0 (FP32) or 1 (FP16)"),
    "AMB_SCHEME_SIZE": (errors.QuantError, "data_size", "{expected} by its shape, block size and scale type"),
    "TABLE_NDIM": (errors.LimitError, "number of dimensions", "at most {expected}"),
    "TABLE_SIZE": (errors.LayoutError, "data_size", "{expected} by its shape and dtype"),
}


def _error(  # noqa: PLR0911 - one return for each kind of fault
    fault: access.Fault, part: int, name: str
) -> errors.TensorFileError | OSError:
    kind, field = fault.kind, scans.SECTION_FIELDS[part]
    label = f"tensor {fault.row}"
    if kind == "AMB_READ":
        if fault.actual:
            return OSError(fault.actual, os.strerror(fault.actual), name)
        return shrank(fault.at)
    if kind == "CAPACITY":
        what, expected = "number of tensors", f"at most {fault.expected} (Limits.max_tensors)"
        return errors.LimitError(what, field="max_tensors", offset=fault.at, actual=fault.actual, expected=expected)
    if kind == "TABLE_DTYPE":
        codes = ", ".join(f"{code} {dtype}" for code, dtype in enumerate(DTYPE_NAMES))
        what, expected = f"{label}: dtype code", f"one of {codes}"
        return errors.UnsupportedError(what, field=field, offset=fault.at, actual=fault.actual, expected=expected)
    if kind == "TABLE_OVERFLOW":
        return errors.LayoutError(
            f"{label}: the product of its shape exceeds 2**63 - 1 bytes", field=field, offset=fault.at
        )
    if kind == "AMB_PADDING":
        return nonzero_padding(f"behind {label}", fault.at)
    if kind == "AMB_BLOCK_SIZE":
        what, step = f"{label}: block_size", fault.expected
        expected = f"a positive multiple of {step}" if step else "0: there is one scale"
        return errors.QuantError(what, field=field, offset=fault.at, actual=fault.actual, expected=expected)
    if kind in _WORDS:
        cls, what, expected = _WORDS[kind]
        expected = expected.format(expected=fault.expected)
        return cls(
            f"{label}: {what.format(field=field)}", field=field, offset=fault.at, actual=fault.actual, expected=expected
        )
    return errors.FormatError(f"{label}: the records are damaged ({kind or fault.code})", offset=fault.at)


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
        By the names bos, eos, pad, unk and mask; tokens that the file lacks are missing.
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
            except errors.TensorFileError as error:
                raise error.located(path=self._source.name, format="amb") from None
        return payload

    def tokens(self) -> list[str]:
        """Return the tokens of a WordPiece tokenizer by id, one a line of its payload (ours).

        Raises
        ------
        UnsupportedError
            For a tokenizer of another type.
        FormatError
            When the payload is not UTF-8.
        """
        if self.type != WORDPIECE:
            what = "type of the tokenizer"
            raise errors.UnsupportedError(what, field="type", actual=KINDS[self.type], expected=KINDS[WORDPIECE])
        try:
            text = self.payload.decode()
        except UnicodeDecodeError as error:
            msg = f"the vocabulary of the tokenizer is not UTF-8 ({error.reason})"
            name = None if self._source is None else self._source.name
            raise errors.FormatError(msg, path=name, format="amb", field="payload") from None
        return text.removesuffix("\n").split("\n") if text else []

    def __repr__(self) -> str:
        size = len(self._payload) if self._payload is not None else (self._place or (0, 0))[1]
        return f"<{KINDS[self.type]} Tokenizer: special ids {self._special_ids}, {size} bytes>"


def read_tokenizer(source: Source, head: bytes, start: int, end: int, limits: Limits) -> Tokenizer | None:
    """Return the tokenizer of the section [start, end) without reading its vocabulary; None for an empty section."""
    if start == end:
        return None
    kind, *ids = TOKENIZER_FIELDS.unpack(take(source, head, start, MIN_TOKENIZER))
    if kind >= len(KINDS):
        expected = ", ".join(f"{code} ({name})" for code, name in enumerate(KINDS))
        raise errors.UnsupportedError("tokenizer type", field="type", offset=start, actual=kind, expected=expected)
    special = {name: i for name, i in zip(SPECIAL_NAMES, ids, strict=True) if i != NO_ID}
    place = (start + MIN_TOKENIZER, end - start - MIN_TOKENIZER, limits)
    return Tokenizer(kind, special, source=source, place=place)


# ----------------------------------------------------------------------------------------------------
# Checks of masks and scales of quantised tensors, piece by piece.

_PIECE = 1 << 20
# Codes in the mask; 3 is unused.
_INT4, _INT5, _FP16, _NONE = range(4)
# For each value of a mask's byte, the number of blocks with each code.
_COUNTS = np.array([[sum(byte >> 2 * k & 3 == code for k in range(4)) for code in range(4)] for byte in range(256)])
_MAX_LISTED = 5


def check_scales(run: Verification, label: str, row: Row, how: Quantization) -> None:
    """Read a quantised tensor's payload, check its mask if it has one, and warn of scales that are not finite."""
    width = SCALE_SIZES[how.scale_type]
    at, end = row.offset + how.start, row.offset + row.nbytes
    if row.dtype.name == "adaptive":
        bad = _check_adaptive(run, label, row, how, at, end)
    elif row.dtype.name in BLOCKED:
        blocks = -(-math.prod(row.shape) // how.block_size)
        bad = _infinite(run, at, end, (end - at) // blocks, width) if blocks else []
    else:
        bad = _infinite(run, at, at + width, width, width)
        run.until(end)
    if bad:
        some = ", ".join(map(str, bad[:_MAX_LISTED])) + (", ..." if len(bad) > _MAX_LISTED else "")
        run.warn(f"{label}: NaN or infinite scale of block{'' if len(bad) == 1 else 's'} {some}")


def _infinite(run: Verification, at: int, end: int, step: int, width: int) -> list[int]:
    """Read [at, end), where every `step` bytes begin with a scale; return the numbers of scales that are not finite.

    The list stops growing once it has enough for a message.
    """
    bad: list[int] = []
    first = 0
    for piece in _pieces(run, at, end, step):
        scales = np.ascontiguousarray(piece.reshape(-1, step)[:, :width]).view(f"<f{width}")
        if len(bad) <= _MAX_LISTED:
            bad += [first + i for i in np.flatnonzero(~np.isfinite(scales)).tolist()]
        first += len(scales)
    return bad


def _pieces(run: Verification, at: int, end: int, step: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes [at, end) in pieces of about a MiB that are multiples of `step`."""
    size = max(_PIECE // step, 1) * step
    for offset in range(at, end, size):
        yield np.frombuffer(run.read(offset, min(size, end - offset)), np.uint8)


def _check_adaptive(run: Verification, label: str, row: Row, how: Quantization, at: int, end: int) -> list[int]:
    """Check mask and size of adaptive data; return the numbers of blocks whose scales are not finite."""
    blocks, block_size = -(-math.prod(row.shape) // how.block_size), how.block_size
    scales_at = at + (blocks + 3) // 4
    counts: Any = np.zeros(4, np.int64)
    first = 0
    for piece in _pieces(run, at, scales_at, 1):
        here = np.bincount(piece, minlength=256) @ _COUNTS
        if here[_NONE]:
            block = first + int(np.flatnonzero(_codes(piece) == _NONE)[0])
            what = f"{label}: precision of block {block} in the mask"
            raise errors.QuantError(what, field="mask", offset=at + block // 4, actual=_NONE, expected="0, 1 or 2")
        counts += here
        first += 4 * len(piece)
        if first > blocks and _codes(piece)[blocks - first :].any():
            what = f"{label}: the mask after the last block"
            raise errors.QuantError(what, field="mask", offset=scales_at - 1, actual="not zero", expected="0")
    counts[_INT4] -= first - blocks
    width = SCALE_SIZES[how.scale_type]
    codes_at = scales_at + width * int(counts[_INT4] + counts[_INT5])
    sizes = (block_size // 2, 5 * block_size // 8, 2 * block_size)
    nbytes = codes_at - row.offset + sum(int(count) * size for count, size in zip(counts, sizes, strict=False))
    if nbytes != row.nbytes:
        what = f"{label}: data_size"
        expected = f"{nbytes} by its mask"
        raise errors.QuantError(what, field="data_size", offset=row.offset - 8, actual=row.nbytes, expected=expected)
    bad = _infinite(run, scales_at, codes_at, width, width)
    run.until(end)
    if not bad:
        return bad
    # float16 blocks have no scale, so that scales and blocks have different numbers.
    numbers: list[int] = []
    shown = np.array(bad[: _MAX_LISTED + 1])  # enough for the message
    begin = before = 0
    for offset in range(at, scales_at, _PIECE):
        codes = _codes(np.frombuffer(run.source.pread(offset, min(_PIECE, scales_at - offset)), np.uint8))
        scaled = np.flatnonzero(codes != _FP16)
        here = shown[(shown >= before) & (shown < before + len(scaled))]
        numbers += (begin + scaled[here - before]).tolist()
        begin, before = begin + len(codes), before + len(scaled)
    return numbers


def _codes(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the two bits of each block, shape (4 * len(mask),)."""
    pairs: NDArray[np.uint8] = (mask[:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)).astype(np.uint8)
    return pairs.reshape(-1)


# ----------------------------------------------------------------------------------------------------
# The bytes of quantised tensors: a header of four bytes, and the size of the payload.


class Quantization(NamedTuple):
    """The parameters of a quantised tensor."""

    start: int  # of the payload within the data: 4 behind a header, else 0
    block_size: int  # 0 for the schemes of a whole tensor
    scale_type: str  # "fp32" or "fp16"


def quantization(row: Row, head: bytes, bare: tuple[int, int] | None) -> Quantization:
    """Return the quantisation of the tensor of `row`; `head` is the first bytes of its data, at most four.

    Raises `QuantError` when neither a header nor blocks without a header fit the data.
    """
    scheme, size = row.dtype.name, math.prod(row.shape)
    problem = "its data ends within its header"
    if len(head) >= QUANT_HEADER.size:
        quant_type, block_size, scale = QUANT_HEADER.unpack_from(head)
        if quant_type != QUANT_TYPES[scheme]:
            problem = f"quant_type is {quant_type}, expected {QUANT_TYPES[scheme]}"
        elif not _fits(scheme, block_size):
            problem = f"block_size is {block_size}"
        elif scale >= len(SCALE_TYPES):
            problem = f"scale_type is {scale}, expected 0 or 1"
        else:
            scale_type = SCALE_TYPES[scale]
            expected = payload_size(scheme, size, block_size, scale_type)
            if expected is None or QUANT_HEADER.size + expected == row.nbytes:
                return Quantization(QUANT_HEADER.size, block_size, scale_type)
            problem = f"data_size is {row.nbytes}, expected {QUANT_HEADER.size + expected}"
    if bare is not None and scheme in BLOCKED and _fits(scheme, bare[0]):
        block_size, scale_type = bare[0], next(name for name, of in SCALE_SIZES.items() if of == bare[1])
        if payload_size(scheme, size, block_size, scale_type) == row.nbytes:
            return Quantization(0, block_size, scale_type)
    raise errors.QuantError(f"quantised data of scheme {scheme}: {problem}", offset=row.offset)


def _fits(scheme: str, block_size: int) -> bool:
    if scheme == "adaptive" or scheme in BLOCKED:
        return block_size > 0 and block_size % (2 if scheme == "int4_block" else 8) == 0
    return block_size == 0


def payload_size(scheme: str, size: int, block_size: int, scale_type: str) -> int | None:
    """Return the bytes that `size` elements take without a header; None for "adaptive", where the mask decides."""
    bits = BITS.get(scheme)
    if bits is None:
        return None
    return quantised.blocks_size(size, bits=bits, block_size=block_size, scale_type=scale_type)


def tensor_of(row: Row, octets: NDArray[np.uint8], bare: tuple[int, int] | None) -> QuantizedTensor:
    """Return the tensor over its bytes, `octets`, without a copy.

    The header is checked again, on a copy, because the file may have changed since it was opened.
    """
    how = quantization(row, octets[: QUANT_HEADER.size].tobytes(), bare)
    start, block_size, scale_type = how
    with _named(row, how):
        return QuantizedTensor(row.dtype.name, row.shape, octets[start:], block_size=block_size, scale_type=scale_type)


def glance(row: Row, source: Source, bare: tuple[int, int] | None) -> Quantization:
    """Return the quantisation of the tensor of `row`, reading only its header and mask.

    Raises the same `QuantError` as `tensor_of`.
    """
    how = quantization(row, source.pread(row.offset, min(QUANT_HEADER.size, row.nbytes)), bare)
    if row.dtype.name == "adaptive":
        start, block_size, scale_type = how
        count, size = math.prod(row.shape), row.nbytes - start
        mask = source.pread(row.offset + start, min(-(-count // (4 * block_size)), size))
        with _named(row, how):
            quantised.adaptive_plan(mask, count, block_size, scale_type=scale_type, size=size)
    return how


@contextlib.contextmanager
def _named(row: Row, how: Quantization) -> Iterator[None]:
    """Add the scheme and the offset of the tensor to an error."""
    try:
        yield
    except errors.QuantError as error:
        error.what = f"quantised data of scheme {row.dtype.name}: {error.what}"
        error.offset = row.offset + how.start
        raise


# ----------------------------------------------------------------------------------------------------
# The checks of `TensorFile.verify` for an AMB file: everything that opening leaves unread.

# Usual names of the matrix of token embeddings.
_EMBEDDINGS = (
    *("wte", "wte.weight", "word_embeddings.weight", "embed_tokens.weight"),
    *("tok_embeddings.weight", "token_embd.weight", "embed_in.weight"),
)


def verify(run: Verification, header: Header, crc: int, records: Records, bare: tuple[int, int] | None) -> None:
    """Check the whole file, reading each byte once; also check that the parsed sections have not changed.

    `crc` is the CRC-32 at opening of everything before the tokenizer.
    """
    source, options = run.source, run.options
    start = run.read(0, header.tokenizer)
    run.unchanged(start, crc, "header, metadata or config")
    config = read_json(start, "config", header.config, header.tokenizer)
    run.checked("header, metadata and config")
    if "quant" in config and bare_blocks(config) is None:
        run.warn("config: 'quant' is not an object with a block_size up to 65535 and a scale_type fp16 or fp32")
    tokenizer = read_tokenizer(source, b"", header.tokenizer, header.weights, options.limits)
    lines = 0
    for chunk in run.chunks(header.tokenizer, header.weights - header.tokenizer):
        lines += bytes(chunk).count(b"\n")
    if tokenizer is not None:
        # Line feeds among the first eleven bytes of the section are parts of numbers.
        lines -= source.pread(header.tokenizer, 11).count(b"\n")
        _check_tokenizer(run, tokenizer, lines, config)
    again = walk(source, header, bare, options, [])
    if again.columns.content() != records.columns.content():
        raise errors.LayoutError("the records changed after the file was opened", offset=header.weights)
    table = table_of(again, header, options)
    table.check()
    run.checked("records: ranges, names and sizes")
    run.checked("padding is zero" if options.strict else "padding (see warnings)")
    if "" in table.names:
        run.warn("a tensor has an empty name")
    _check_config(run, table, config)
    _read_data(run, table, bare)


def _read_data(run: Verification, table: Table, bare: tuple[int, int] | None) -> None:
    """Read all records, and check masks and scales of quantised tensors."""
    quantised = 0
    for i, row in enumerate(table.rows()):
        if not row.dtype.quantized:
            continue  # read later, together with everything up to the next quantised tensor
        quantised += 1
        run.until(row.offset)
        how = quantization(row, run.source.pread(row.offset, min(QUANT_HEADER.size, row.nbytes)), bare)
        run.read(row.offset, how.start)
        check_scales(run, table.label(i), row, how)
    if quantised:
        run.checked(f"sizes, masks and scales of {counted(quantised, 'quantised tensor')}")
    run.finish()


def _check_tokenizer(run: Verification, tokenizer: Tokenizer, lines: int, config: Mapping[str, Any]) -> None:
    declared = {"config n_vocab": _count(config, "n_vocab")}
    if tokenizer.type == WORDPIECE and lines:
        declared["the lines of its vocabulary"] = lines
    for what, count in declared.items():
        outside = [f"{name} {i}" for name, i in tokenizer.special_ids.items() if count is not None and i >= count]
        if outside:
            run.warn(f"tokenizer: special ids are not below {count}, {what}: {', '.join(outside)}")
    counts = [count for count in declared.values() if count is not None]
    if len(set(counts)) > 1:
        run.warn(f"tokenizer: its vocabulary has {lines} tokens, and config n_vocab is {counts[0]}")
    run.checked("tokenizer")


def _check_config(run: Verification, table: Table, config: Mapping[str, Any]) -> None:
    """Compare the configuration with the matrix of token embeddings, if it has a usual name."""
    expected = {"n_vocab": _count(config, "n_vocab"), "n_embd": _count(config, "n_embd")}
    if all(count is None for count in expected.values()):
        return
    for i, name in enumerate(table.names):
        if not name.endswith(_EMBEDDINGS):
            continue
        shape = table.row(i).shape
        if len(shape) != 2:
            continue
        for axis, (key, count) in enumerate(expected.items()):
            if count is not None and shape[axis] != count:
                run.warn(f"config {key} is {count}, and tensor {name!r} has the shape {shape}")
        run.checked("config against the token embeddings")
        return


def _count(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int else None


class _Decoder:
    """Decodes the quantised tensors of a file; `bare` describes blocks without a header."""

    def __init__(self, bare: tuple[int, int] | None) -> None:
        self._bare = bare

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        return tensor_of(row, octets, self._bare)

    def layout(self, row: Row, head: bytes) -> tuple[int, int, str]:
        """Return start of the payload, block size and scale type, from the first bytes of the data."""
        return quantization(row, head, self._bare)

    def glance(self, row: Row, source: Source) -> tuple[int, int, str]:
        """Return the same, read from the file, and check a mask."""
        return glance(row, source, self._bare)


def parse_amb(source: Source, head: bytes, options: Options) -> Content:
    """Check header, JSON sections and records, and return the content. Data and vocabulary stay unread."""
    warnings: list[str] = []
    header = read_header(source, head, options, warnings)
    prefix = take(source, head, 0, header.tokenizer)
    metadata = read_json(prefix, "metadata", header.metadata, header.config)
    config = read_json(prefix, "config", header.config, header.tokenizer)
    crc = checksums.crc32(prefix)
    tokenizer = read_tokenizer(source, head, header.tokenizer, header.weights, options.limits)
    bare = bare_blocks(config)
    records = walk(source, header, bare, options, warnings)
    table = table_of(records, header, options)
    if options.checked:
        table.check()

    def check(run: Verification) -> None:
        verify(run, header, crc, records, bare)

    content = Content("amb", table, lambda: metadata, check, warnings)
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
