"""The pickle program of a checkpoint: running it, the errors of one that is refused, and its values."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.dtypes import DECLARED, DTYPES, DType
from weightmap.errors import FormatError, LayoutError, LimitError, TruncatedError, UnsupportedError, quoted
from weightmap.lazy import Named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightmap.kernels import Fault, Pickle, PickleValues
    from weightmap.options import Options

__all__ = ["DTYPE_NAMES", "Span", "dtypes", "error_of", "run", "values_of"]

# By the codes of csrc/pickle_calls.c.
DTYPE_NAMES = (
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
# What is known of names that are refused.
_KINDS = (
    ("qtensor", "a tensor quantised by torch"),
    ("sparse", "a sparse tensor"),
    ("nested", "a nested tensor"),
    ("meta_tensor", "a tensor without data, of the device meta"),
    ("wrapper_subclass", "a subclass of tensors"),
)
_SHOWN = 80
# Bytes of an integer; Python refuses to write out one of 1,786.
_LONG_MOST = 1024
_OF_KIND = {number: name for name, number in kernels.PICKLE_VALUES.items()}


class Span(Named):
    """Where a program lies in the file, and how messages call it."""

    __slots__ = ()

    name: str
    offset: int


def run(data: bytes | bytearray, span: Span, options: Options) -> Pickle:
    """Run a program. Raises the error of one that is refused."""
    limits = options.limits
    pickle = kernels.Pickle(data, limits.max_tensors, limits.max_header_bytes)
    if pickle.fault is not None:
        raise error_of(pickle.fault, data, span, options)
    return pickle


def error_of(fault: Fault, data: bytes | bytearray, span: Span, options: Options) -> FormatError:  # noqa: PLR0911 - one return for each kind of fault
    """Return the error for a fault of the machine."""
    kind, row, actual, expected = fault.kind, fault.row, fault.actual, fault.expected
    name, at = span.name, span.offset + fault.at
    if kind == "PICKLE_NAME":
        module, attribute = (bytes(data[a : a + n]) for a, n in ((row, expected), (fault.at, actual)))
        called = b".".join((module, attribute)).decode(errors="replace")
        shown = called if len(called) <= _SHOWN else f"{called[:_SHOWN]}..."
        reason = next((f", {what}" for part, what in _KINDS if part in called), "")
        what = f"{name} needs {quoted(shown)}{reason}: only the names of plain tensors are known, and nothing is called"
        return UnsupportedError(what, field="name", offset=at)
    if kind == "PICKLE_END":
        return TruncatedError(f"{name} ends within an opcode", field="pickle", offset=at)
    if kind == "PICKLE_OPCODE":
        what = f"{name}: protocol" if actual == 0x80 else f"{name}: opcode"
        shown, wanted = (
            (str(expected), "at most 5") if actual == 0x80 else (f"{actual:#04x}", "one that torch.save writes")
        )
        return UnsupportedError(what, field="pickle", offset=at, actual=shown, expected=wanted)
    if kind == "PICKLE_STACK":
        return FormatError(
            f"{name}: opcode {actual:#04x} finds on the stack what it cannot take", field="pickle", offset=at
        )
    if kind == "PICKLE_MEMO":
        what = f"{name}: number of an entry of the memo"
        return FormatError(what, field="pickle", offset=at, actual=actual, expected=f"less than {expected}")
    if kind == "PICKLE_CALL":
        what = f"{name}: opcode {actual:#04x} calls a function with arguments that torch.save does not write"
        return UnsupportedError(what, field="pickle", offset=at)
    if kind == "PICKLE_RANGE":
        what = f"{name}: a tensor reaches past its storage, to element"
        return LayoutError(what, field="pickle", offset=at, actual=actual, expected=f"less than {expected}")
    if kind == "PICKLE_OVERFLOW":
        what = f"{name}: the product of a shape exceeds 2**63 - 1 bytes"
        return LayoutError(what, field="pickle", offset=at)
    if kind == "PICKLE_DEEP":
        what = f"{name}: depth of containers within each other"
        return LimitError(
            what, field="pickle", offset=span.offset, actual=f"more than {expected}", expected=f"at most {expected}"
        )
    if kind == "PICKLE_LAUGHS":
        what = f"{name}: containers that hold each other many times have more members than the program has bytes"
        return LimitError(what, field="pickle", offset=span.offset)
    if kind == "PICKLE_NAMES":
        what, wanted = (
            f"{name}: bytes of names",
            f"at most {expected} (by the size of the pickle, and Limits.max_header_bytes)",
        )
        return LimitError(what, field="max_header_bytes", offset=span.offset, actual=actual, expected=wanted)
    if kind == "CAPACITY":
        return LimitError(
            f"{name}: number of tensors or storages",
            field="max_tensors",
            offset=span.offset,
            actual=f"more than {expected}",
            expected=f"at most {options.limits.max_tensors} (Limits.max_tensors)",
        )
    if kind == "PICKLE_KEY":
        return UnsupportedError(f"{name}: a key is neither a text nor an integer", field="pickle", offset=span.offset)
    if kind == "PICKLE_LEAF":
        what = f"{name}: a storage or a class is saved by itself, where a tensor or value is expected"
        return UnsupportedError(what, field="pickle", offset=span.offset)
    return LimitError(
        f"{name} takes more memory than any that torch.save writes ({kind})", field="pickle", offset=span.offset
    )


def values_of(values: PickleValues, data: bytes | bytearray, span: Span) -> dict[str, Any]:
    """Return the values of a program that are no tensors, by name."""
    found: dict[str, Any] = {}
    made: dict[tuple[str, int, int], Any] = {}  # one that is stored once and mentioned often is made once
    bounds, raw = values.bounds.tolist(), values.names.tobytes()
    columns = zip(values.kind.tolist(), values.length.tolist(), values.at.tolist(), strict=True)
    for i, (kind, length, at) in enumerate(columns):
        name = _text(raw[bounds[i] : bounds[i + 1]], "a name", span)
        if name in found:
            raise LayoutError(f"{span.name}: two values are called {quoted(name)}", field="name", offset=span.offset)
        key = (_OF_KIND[kind], length, at)
        if key not in made:
            made[key] = _value(*key, data, span, name)
        found[name] = made[key]
    return found


def _value(kind: str, length: int, at: int, data: bytes | bytearray, span: Span, name: str) -> Any:  # noqa: PLR0911 - one return for each kind of value
    if kind == "NONE":
        return None
    if kind == "BOOLEAN":
        return bool(at)
    if kind == "INTEGER":
        return at - (1 << 64) if at >> 63 else at
    if kind == "REAL":
        return struct.unpack("<d", at.to_bytes(8, "little"))[0]
    if kind == "DTYPE":
        return f"torch.{DTYPE_NAMES[at]}"
    if kind.startswith("SCALAR"):
        return _scalar(kind, length, at, data, span, name)
    if kind == "LONG" and length > _LONG_MOST:
        what, expected = f"{span.name}: bytes of the integer {quoted(name)}", f"at most {_LONG_MOST}"
        raise LimitError(what, field="pickle", offset=span.offset + at, actual=length, expected=expected)
    raw = bytes(data[at : at + length])
    if kind == "LONG":
        return int.from_bytes(raw, "little", signed=True)
    if kind == "BYTES":
        return raw
    text = _text(raw, f"the value {quoted(name)}", span)
    return _latin(text, span, name) if kind == "LATIN" else text


def _text(raw: bytes, what: str, span: Span) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{span.name}: {what} is not UTF-8", field="pickle", offset=span.offset) from None


def _latin(text: str, span: Span, name: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise FormatError(
            f"{span.name}: the bytes of {quoted(name)} are no bytes", field="pickle", offset=span.offset
        ) from None


def _scalar(kind: str, length: int, at: int, data: bytes | bytearray, span: Span, name: str) -> Any:
    """Return a scalar of numpy as a Python number."""
    dtype_at, raw_at, dtype_len, raw_len = at >> 32, at & 0xFFFFFFFF, length >> 16, length & 0xFFFF
    code, raw = bytes(data[dtype_at : dtype_at + dtype_len]), bytes(data[raw_at : raw_at + raw_len])
    if kind == "SCALAR_LATIN":
        raw = _latin(_text(raw, f"the value {quoted(name)}", span), span, name)
    dtype = _NUMPY.get(code)
    if dtype is None or dtype.itemsize != len(raw):
        what = f"{span.name}: {quoted(name)} is a scalar of numpy of the type {quoted(code.decode(errors='replace'))}"
        raise UnsupportedError(f"{what} and {len(raw)} bytes, and not a number", field="pickle", offset=span.offset)
    return np.frombuffer(raw, dtype)[0].item()


_NUMPY = {
    code.encode(): np.dtype(code).newbyteorder("<")
    for code in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
}


def dtypes(*, big: bool) -> Sequence[DType | None]:
    """Return the data types by their codes, and again with `PICKLE_STRIDED` for tensors that are not row-major."""
    plain = [_swapped(DTYPES[name]) if big else DTYPES[name] for name in DTYPE_NAMES]
    spare = [None] * (kernels.PICKLE_STRIDED - len(plain))
    return (*plain, *spare, *(_declared(dtype) for dtype in plain))


def _swapped(dtype: DType) -> DType | None:
    if dtype.bits == 8:
        return dtype
    return None if dtype.numpy is None else DType(dtype.name, dtype.bits, dtype.numpy.newbyteorder(">"))


def _declared(dtype: DType | None) -> DType | None:
    return None if dtype is None else DType(dtype.name, DECLARED)
