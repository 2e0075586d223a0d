"""GGUF, the format of llama.cpp: ``"GGUF" | u32 version | u64 tensor_count | u64 metadata_kv_count``.

Key-values and tensor infos follow, then zeros up to a multiple of the alignment, then the data section.

Encoding
--------
* Key-value: ``key | u32 value_type | value``. Types: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool (a byte 0
  or 1), 8 string, 9 array, 10 u64, 11 i64, 12 f64. Keys are strings: a u64 length and UTF-8. An array is
  ``u32 type | u64 count | items``; items may be arrays. A key has at most 65,535 bytes and occurs once.
* Tensor info: ``name | u32 n_dimensions (0 to 4) | u64 x n_dimensions | u32 type | u64 offset``. The fastest dimension
  comes first: numpy's shapes are reversed. Offsets count from the beginning of the data section.
* ``general.alignment``, a u32 and a multiple of 8, by default 32, aligns the data section and every offset.
* Tensor types are those of gguf-py, see `TYPES`. A row of a block type consists of whole blocks.
* Version 2 is the same; version 1 has u32 lengths, counts and dimensions. If the low 16 bits of the version are 0, the
  file is big-endian: the bytes of every number behind the magic are swapped.
* ``split.no`` and ``split.count`` number the parts of a model in several files, ``x-00001-of-00003.gguf``. Opening the
  first part, by these numbers or by its name, opens all; any other part opens alone, with a warning. `save` and
  `convert` to shards write these two, u16, and ``split.tensors.count``, an i32: the number of tensors in all parts.

Our choices, where the specification is silent or implementations differ
------------------------------------------------------------------------
* Each tensor begins at the first multiple of the alignment after the one before. The header may list tensors in any
  order; iteration follows the order of their data. Padding is zero, which `verify` checks.
* A file ends with its last tensor, or with the padding of that tensor; one without tensors may end with its header, and
  is padded to at most 4,096 bytes when it is written. The place of an empty tensor lies within the file too.
* ``general.alignment`` says how a file is laid out: `convert` takes it from GGUF files, and from no others.
* Schemes have the names of types in lower case, such as "q4_k". Nothing decodes Q8_1 and Q8_K: they are listed, copied
  to other GGUF files, and returned as bytes.
* A type that is not in the list is refused. ``strict=False`` shows such tensors, of up to 128 types, as bytes: those up
  to the next tensor or the end of the file. Their dtype is "gguf_" and the number of the type.
* Arrays of big-endian files are big-endian. Looking up blocks there, or bfloat16, which has no byte order in numpy,
  raises an `UnsupportedError`.
* Arrays nest at most 64 deep. Strings in arrays are checked for UTF-8 when they are used, and by `verify`; all other
  strings when the file is opened.
* Metadata are plain values; an array of numbers is a read-only ndarray, an array of strings a sequence that decodes on
  use. `convert`, and `save` given ``f.metadata``, its copy or ``f.metadata | {...}``, write values with the types that
  they were read with. New values may be bool, str, int (i32, else i64, else u64), float (f32 if exact, else f64) and
  lists of one of these; numpy's scalars and arrays keep their types. An empty list becomes an array of i32.
* In formats without types, `convert` writes an entry that says what the values were, and takes them back from there:
  see `weightmap.formats._metadata`.
* `vocab` reads ``tokenizer.ggml.tokens``, if that is an array of strings; a repeated token has the id of its first
  place. Special ids are ``tokenizer.ggml.{bos,eos,unknown,padding,separator,cls,mask}_token_id`` (also "seperator",
  gguf-py's spelling), under the names bos, eos, unk, pad, sep, cls and mask.
* `save` writes version 3, little-endian, with tensors in the order given; the last one is padded.
"""

from __future__ import annotations

import functools
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from weightmap import native
from weightmap.dtypes import DECLARED, DTYPES, GGML_SCHEMES, SCHEMES, DType
from weightmap.errors import UnsupportedError, cut_off
from weightmap.formats._base import TYPED, Content, Format, NumberedPart, new_vocabulary, trailing
from weightmap.formats.gguf.header import (
    ALIGNMENT,
    ARRAY,
    BLOCKS,
    DENSE,
    MAGIC,
    OPAQUE,
    SPECIAL_IDS,
    SPLIT_COUNT,
    SPLIT_NO,
    SPLIT_TENSORS,
    STRING,
    TOKENS,
    TYPES,
    Header,
    aligned,
    integer,
    locate,
    read_header,
)
from weightmap.index import Rules
from weightmap.index.columns import ColumnTable
from weightmap.io.open_source import called
from weightmap.lazy import later

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.embeddings.vocabulary import Vocabulary
    from weightmap.index.row import Row
    from weightmap.index.strings import StringTable
    from weightmap.io.source import Source
    from weightmap.options import Options
    from weightmap.quant.blocks import QuantizedTensor


# Name of one of several files. A model of one part is whole.
_PART = r"(?si)(.*)-([0-9]{5})-of-([0-9]{5})(\.gguf)"
_FEWEST = 2
_metadata = later(f"{__name__}.values", "metadata")
_string_table = later(f"{__name__}.values", "string_table")
_verify = later(f"{__name__}.verify", "verify")


def _dtype(name: str, *, big: bool) -> DType:
    """Return the type of this name in a file of either byte order."""
    if name in OPAQUE:
        return DType(name, DECLARED)
    dense = DTYPES.get(name)
    if dense is None:
        return SCHEMES[name]
    if not big or dense.bits == 8:
        return dense
    # numpy has no big-endian bfloat16: look-ups refuse it as they refuse blocks.
    code = dense.code
    return DType(name, dense.bits, None if code is None else code.replace("<", ">"), quantized=code is None)


def _dtypes(others: tuple[int, ...] = (), *, big: bool) -> tuple[DType | None, ...]:
    known = [_dtype(TYPES[code], big=big) if code in TYPES else None for code in range(native.GGUF_TYPES)]
    return (*known, *(DType(f"gguf_{code}", DECLARED) for code in others))


class _Rules(Rules):
    __slots__ = ()
    dtypes = _dtypes(big=False)
    max_ndim = 4
    alignment, max_gap = 32, 31
    fields = MappingProxyType({"data_offset": ("offset", 0), "shape": ("dimensions", 0), "dtype": ("type", 0)})


@functools.lru_cache(maxsize=16)
def _rules(alignment: int, others: tuple[int, ...], *, big: bool) -> type[Rules]:
    """Return the rules of files of this alignment and byte order, with types of these `others` codes."""
    if alignment == _Rules.alignment and not others and not big:
        return _Rules
    return _Rules.varied(dtypes=_dtypes(others, big=big), alignment=alignment, max_gap=alignment - 1)


class GGUFContent(Content):
    """The content of a GGUF file.

    Attributes
    ----------
    header : Header
        For `weightmap.compat.gguf` and the command line, which show its raw values.
    """

    header: Header


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header and return the table of tensors."""
    header, columns = read_header(source, head, options)
    scan, warnings = header.scan, list[str]()
    ordered = scan.ordered or columns.count < 2
    others = scan.others
    rules = _rules(header.alignment, others, big=bool(scan.big))(header.base, source.size, lax=not options.strict)
    if columns.count and not scan.data_end and source.size < header.base:  # where look-ups of empty tensors would fail
        raise cut_off("the padding behind its header", source.size, header.base, field="size")
    order = None if ordered else columns.order()
    if order is not None:
        columns = columns.take(order)
    if others:
        scan.reach(columns, rules.room)
        codes = ", ".join(map(str, others))
        warnings.append(f"tensors of types that weightmap does not know are shown as bytes (type codes: {codes})")
    _check_end(source, header, options, warnings)

    def where(row: int) -> int | None:
        return locate(header, row if order is None else int(order[row]))

    table = ColumnTable(columns, rules, utf8=True, locate=where)
    if options.checked:
        table.check()
    vocab = _vocabulary(header)
    content = GGUFContent(
        "gguf",
        table,
        functools.partial(_metadata, header),
        functools.partial(_verify, header, table, vocab),
        warnings,
    )
    content.header = header
    content.load_vocab = vocab
    content.part = _part(source, header)
    table.quantized = _swapped if scan.big else _BLOCKS
    return content


def _check_end(source: Source, header: Header, options: Options, warnings: list[str]) -> None:
    """Check that the file ends with its last tensor, or with the padding of that tensor."""
    data_end = header.scan.data_end
    end = header.base + data_end if data_end else header.end
    padded = aligned(end, header.alignment)
    if end < source.size < padded:
        if any(source.pread(end, source.size - end)):
            padded = end
        else:
            error = cut_off("the padding of its last tensor", source.size, padded, field="size")
            options.tolerate(error, warnings)
            return
    trailing(source, padded, options, warnings)


def _part(source: Source, header: Header) -> NumberedPart | None:
    """Return which part of a model in several files this is; None for a whole model."""
    number, count = integer(header, (SPLIT_NO,)), integer(header, (SPLIT_COUNT,))
    if number is None or count is None or count < _FEWEST:
        return None
    match = re.fullmatch(_PART, called(source.path or ""))
    names: tuple[str, ...] = ()
    if match is not None and int(match[3]) == count and (number == 0 or int(match[2]) == 1):
        numbers = (i for i in range(1, count + 1) if i != int(match[2]))
        names = tuple(f"{match[1]}-{i:05}-of-{match[3]}{match[4]}" for i in numbers)
    keys = frozenset((SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS))
    return NumberedPart(number, count, integer(header, (SPLIT_TENSORS,)), names, keys)


def _vocabulary(header: Header) -> Callable[[], Vocabulary] | None:
    at = header.find(TOKENS)
    if at < 0 or header.u32(at) != ARRAY:
        return None
    kind, count, _ = header.array(at + 4)
    if kind != STRING:
        return None

    def load() -> StringTable:
        return _string_table(header, at, "token")  # type: ignore[no-any-return]

    def special_ids() -> dict[str, int]:
        found = {name: integer(header, keys) for name, keys in SPECIAL_IDS.items()}
        return {name: i for name, i in found.items() if i is not None}

    return lambda: new_vocabulary(load, count, special_ids)


class _Blocks:
    """Quantised tensors of little-endian files: see `Table.quantized`."""

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        from weightmap.quant.ggml import GgmlTensor  # noqa: PLC0415 - opening a file needs none of it

        return GgmlTensor(row.dtype.name, row.shape, octets)

    def layout(self, row: Row, head: bytes) -> tuple[int, int, str]:
        """Return offset of the payload, elements of a block, and type of scales."""
        del head
        return 0, BLOCKS[row.dtype.name][0], _scale_type(row.dtype.name)

    def glance(self, row: Row, source: Source) -> tuple[int, int, str]:
        """Return the same: blocks have no header to check."""
        del source
        return self.layout(row, b"")


@functools.cache
def _scale_type(scheme: str) -> str:
    from weightmap.quant.ggml import GgmlTensor  # noqa: PLC0415 - as above

    return GgmlTensor(scheme, (0, BLOCKS[scheme][0]), b"").scale_type


_BLOCKS = _Blocks()


def _swapped(row: Row, octets: NDArray[np.uint8]) -> NoReturn:
    del octets
    what = f"big-endian data of type {row.dtype.name}"
    raise UnsupportedError(what, field="type", offset=row.offset, expected="a little-endian file for this type")


FORMAT = Format(
    name="gguf",
    title="GGUF",
    suffixes=(".gguf",),
    layouts=("gguf",),
    parse=parse,
    plan=later(f"{__name__}.writing", "plan"),
    carries={"gguf": frozenset({"metadata", "vocab", "special_ids"})},
    dtypes={"gguf": frozenset(DENSE | OPAQUE)},
    schemes={"gguf": frozenset(GGML_SCHEMES)},
    magic=MAGIC,
    metadata_kinds=TYPED,
    vocab_keys={TOKENS: None, **{key: name for name, keys in SPECIAL_IDS.items() for key in keys}},
    own_keys=frozenset({ALIGNMENT}),
    special_ids=frozenset(SPECIAL_IDS),
    aligns={"gguf": 4096},
    numbered=True,
    program="llama.cpp",
    expected_keys={"general.architecture": "llama.cpp will not load this file; tensors keep the names of the source"},
)
