"""The errors for the faults that a scan in C finds in a table of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from weightmap.dtypes import NUMPY_MAX_NDIM
from weightmap.errors import (
    ChecksumError,
    FormatError,
    LayoutError,
    LimitError,
    UnsupportedError,
    cut_off,
    quoted,
    trailing_bytes,
)

if TYPE_CHECKING:
    from weightmap import native
    from weightmap.index import Rules
    from weightmap.index.strings import StringTable

_INT64_MAX = (1 << 63) - 1
# The names of these fields in messages, for formats without names of their own.
_WORDS = (("data_offset", ("data offset", 0)), ("data_size", ("bytes of data", 0)))


class _Described(Protocol):
    """The part of `weightmap.index.table.Table` that messages need."""

    @property
    def rules(self) -> Rules: ...
    @property
    def names(self) -> StringTable: ...
    def position(self, row: int) -> int | None: ...
    def label(self, row: int) -> str: ...
    def __len__(self) -> int: ...


def table_error(table: _Described, fault: native.Fault) -> FormatError:
    """Return the error for a fault, with the tensor's name where it can be read.

    Field and offset are those of the format's own field, where its rules name it.
    """
    error = _describe(table, fault)
    named = table.rules.fields.get(error.field or "")
    if named is not None:
        error.field, within = named
        if error.offset is not None and fault.kind != "TABLE_TRUNCATED":  # its offset is the end of the file
            error.offset += within
    return error


def _describe(table: _Described, fault: native.Fault) -> FormatError:  # noqa: PLR0911 - one return for each kind of fault
    kind = fault.kind
    rules, row = table.rules, fault.row
    at = table.position(row)
    if kind == "TABLE_HOLE" and row == len(table):
        at = rules.base + fault.expected
        return trailing_bytes(fault.actual, fault.expected, field="data", offset=at, whole="the data section")
    label = table.label(row) if not kind.startswith("NAME_") else f"tensor {row}"
    if kind == "TABLE_DTYPE":
        known = ", ".join(f"{code} {dtype.name}" for code, dtype in enumerate(rules.dtypes) if dtype is not None)
        return UnsupportedError(
            f"{label}: dtype code", field="dtype", offset=at, actual=fault.actual, expected=f"one of {known}"
        )
    if kind == "TABLE_NDIM":
        what, expected = f"{label}: number of dimensions", f"{rules.min_ndim} to {rules.max_ndim}"
        error = LimitError if rules.max_ndim == NUMPY_MAX_NDIM else FormatError
        return error(what, field="ndim", offset=at, actual=fault.actual, expected=expected)
    if kind == "TABLE_UNUSED_DIM":
        return FormatError(f"{label}: unused dimension", field="shape", offset=at, actual=fault.actual, expected=0)
    if kind == "TABLE_OVERFLOW":
        return LayoutError(f"{label}: the product of its shape exceeds 2**63 - 1 bytes", field="shape", offset=at)
    # Offsets and sizes, in the words and units of the format.
    actual, bound = fault.actual // rules.unit, fault.expected // rules.unit
    offset_word, size_word = _words(rules)
    if kind in ("TABLE_RANGE", "TABLE_TRUNCATED"):
        whole = row == len(table)
        return _out_of_range(kind, "the data section" if whole else label, rules, at, actual, bound)
    if kind == "TABLE_ALIGN":
        what, expected = f"{label}: {offset_word}", f"a multiple of {bound}"
        return LayoutError(what, field="data_offset", offset=at, actual=actual, expected=expected)
    if kind in ("TABLE_OVERLAP", "TABLE_HOLE"):
        problem = "overlaps the tensor before it" if kind == "TABLE_OVERLAP" else "leaves a hole before it"
        what, expected = f"{label} {problem}: {offset_word}", f"{bound}, where the tensor before it ends"
        return LayoutError(what, field="data_offset", offset=at, actual=actual, expected=expected)
    if kind == "TABLE_SIZE" and fault.actual > _INT64_MAX:
        return LayoutError(f"{label} ends before it begins", field="data_offset", offset=at)
    if kind == "TABLE_SIZE":
        what, expected = f"{label}: {size_word}", f"{bound} by its shape and dtype"
        return LayoutError(what, field="data_size", offset=at, actual=actual, expected=expected)
    if kind == "NAME_HASH":
        what = f"{label}: stored FNV-1a hash of its name"
        return ChecksumError(
            what, field="name_hash", offset=at, actual=f"{fault.actual:#010x}", expected=f"{fault.expected:#010x}"
        )
    if kind == "NAME_DUPLICATE":
        what = f"tensors {fault.expected} and {row} are both called {_name(table, row)}"
        return LayoutError(what, field="name", offset=at)
    if kind == "NAME_UTF8":
        return FormatError(f"name of {label} is not UTF-8", field="name", offset=at)
    if kind == "NAME_RANGE":
        whole = row == len(table)
        what = "tensor names: the sum of their lengths" if whole else f"{label}: end of its name"
        whose = "the size of their section" if whole else "the end of all names"
        expected = f"{'' if whole else 'at most '}{fault.expected}, {whose}"
        return LayoutError(what, field="name_length", offset=at, actual=fault.actual, expected=expected)
    return FormatError(f"{label}: the index is damaged ({kind or fault.code})", offset=at)


def _out_of_range(kind: str, label: str, rules: Rules, at: int | None, actual: int, bound: int) -> FormatError:
    if kind == "TABLE_RANGE":
        what, expected = f"{label}: end of its data", f"at most {bound}, the size of the data section"
        return LayoutError(what, field="data_offset", offset=at, actual=actual, expected=expected)
    # In bytes from the beginning of the file, whatever the format counts from.
    return cut_off(
        f"{label} (was the download complete?)",
        rules.base + rules.room,
        rules.base + actual * rules.unit,
        field="data_offset",
    )


def _words(rules: Rules) -> tuple[str, str]:
    """Return the format's names for the offset and the size of a tensor's data."""
    offset, size = (rules.fields.get(*pair)[0] for pair in _WORDS)
    return offset, _WORDS[1][1][0] if size == offset else size  # a field for both does not name the size


def _name(table: _Described, row: int) -> str:
    try:
        return quoted(table.names[row])
    except (FormatError, IndexError, ValueError):
        return f"the name of tensor {row}"
