"""The words for what a scan in C found wrong with a table of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.errors import ChecksumError, FormatError, LayoutError, LimitError, UnsupportedError

if TYPE_CHECKING:
    from weightmap import kernels
    from weightmap.table import Table

__all__ = ["table_error"]

# numpy arrays have at most this many dimensions: no format's rule.
NUMPY_MAX_NDIM = 64


def table_error(table: Table, fault: kernels.Fault) -> FormatError:  # noqa: PLR0911 - one return for each kind of fault
    """Return the error that a fault deserves, with the name of the tensor where that can be read."""
    kind = fault.kind
    rules, row = table.rules, fault.row
    at = table.position(row)
    if kind == "TABLE_HOLE" and row == len(table):
        what = "the data section goes on after its last tensor: its size"
        return LayoutError(
            what, field="data_offset", actual=fault.actual, expected=f"{fault.expected}, the end of the last tensor"
        )
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
    if kind == "TABLE_RANGE":
        what, expected = f"{label}: end of its data", f"at most {fault.expected}, the size of the data section"
        return LayoutError(what, field="data_offset", offset=at, actual=fault.actual, expected=expected)
    if kind == "TABLE_ALIGN":
        what, expected = f"{label}: data offset", f"a multiple of {fault.expected}"
        return LayoutError(what, field="data_offset", offset=at, actual=fault.actual, expected=expected)
    if kind in ("TABLE_OVERLAP", "TABLE_HOLE"):
        problem = "overlaps the tensor before it" if kind == "TABLE_OVERLAP" else "leaves a hole"
        what = f"{label}: it {problem}: data offset"
        expected = f"{fault.expected}, where the tensor before it ends"
        return LayoutError(what, field="data_offset", offset=at, actual=fault.actual, expected=expected)
    if kind == "TABLE_SIZE":
        what, expected = f"{label}: bytes of data", f"{fault.expected} by its shape and dtype"
        return LayoutError(what, field="data_size", offset=at, actual=fault.actual, expected=expected)
    if kind == "NAME_HASH":
        what = f"{label}: stored FNV-1a hash of its name"
        return ChecksumError(
            what, field="name_hash", offset=at, actual=f"{fault.actual:#010x}", expected=f"{fault.expected:#010x}"
        )
    if kind == "NAME_DUPLICATE":
        return LayoutError(
            f"two tensors, {fault.expected} and {row}, are both called {_name(table, row)}", field="name", offset=at
        )
    if kind == "NAME_UTF8":
        return FormatError(f"{label}: its name is not UTF-8", field="name", offset=at)
    if kind == "NAME_RANGE":
        what = (
            "tensor names: their lengths add up to another size than their section"
            if row == len(table)
            else f"{label}: its name runs past the names"
        )
        return LayoutError(what, field="name_length", offset=at, actual=fault.actual, expected=fault.expected)
    return FormatError(f"{label}: the index is damaged ({kind or fault.code})", offset=at)


def _name(table: Table, row: int) -> str:
    try:
        return repr(table.names[row])
    except (FormatError, IndexError, ValueError):
        return f"the name of tensor {row}"
