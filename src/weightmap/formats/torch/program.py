"""The pickle program of a checkpoint: running it, the errors of one that is refused, and its values."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.dtypes import DECLARED, DTYPES, DType
from weightmap.errors import (
    FormatError,
    LayoutError,
    LimitError,
    UnsupportedError,
    cut_off,
    quoted,
    shrank,
)
from weightmap.io.source import CHUNK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightmap.io.source import Source
    from weightmap.kernels import Fault, Pickle, PickleValues
    from weightmap.options import Options

__all__ = ["DTYPE_NAMES", "Program", "columns_of", "dtypes", "error_of", "items_of", "values_of"]

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
# Values that are handed out at once; bytes of one that is not kept in case it is mentioned again; bytes that are read
# at once.
_PIECE, _SHORT, _READ = 4096, 64, 1 << 16
_OF_KIND = {number: name for name, number in kernels.PICKLE_VALUES.items()}


class Program:
    """A program, at its place in the file.

    Attributes
    ----------
    source : Source
    name : str
        What messages call it.
    offset, size : int
        Where it begins, and the bytes that it may have.
    """

    __slots__ = ("name", "offset", "size", "source")

    def __init__(self, source: Source, name: str, offset: int, size: int) -> None:
        self.source: Source = source
        self.name: str = name
        self.offset: int = offset
        self.size: int = size

    def read(self, at: int, count: int) -> bytes:
        """Return bytes of the program."""
        return self.source.pread(self.offset + at, count)

    def attempt(self, options: Options) -> Pickle:
        """Run the program; it may have a fault then."""
        fd, octets = self.source.scanned
        data: Any = None
        if isinstance(octets, np.ndarray):
            data = octets[self.offset : self.offset + self.size]
        elif octets is not None:  # a function that asks a store
            data = self.read(0, self.size)
        most, most_names = options.limits.max_tensors, options.limits.max_header_bytes
        return kernels.Pickle(data, most, most_names, fd=fd, begin=self.offset, size=self.size)

    def run(self, options: Options) -> Pickle:
        """Run the program. Raises the error of one that is refused."""
        pickle = self.attempt(options)
        if pickle.fault is not None:
            raise error_of(pickle.fault, self, options)
        return pickle

    def crc32(self, size: int) -> int:
        """Return the CRC-32 of its first `size` bytes."""
        crc = 0
        for at in range(0, size, CHUNK):
            crc = kernels.crc32(self.read(at, min(CHUNK, size - at)), crc)
        return crc


def error_of(fault: Fault, program: Program, options: Options) -> FormatError | OSError:  # noqa: PLR0911 - one return for each kind of fault
    """Return the error for a fault of the machine."""
    kind, row, actual, expected = fault.kind, fault.row, fault.actual, fault.expected
    name, at = program.name, program.offset + fault.at
    if kind == "PICKLE_READ":
        if actual:
            return OSError(actual, f"{name} cannot be read", program.source.name)
        return shrank(at)
    if kind == "PICKLE_NAME":
        # What is shown of them, and one byte more.
        module, attribute = (program.read(a, min(n, _SHOWN + 1)) for a, n in ((row, expected), (fault.at, actual)))
        called = b".".join((module, attribute)).decode(errors="replace")
        shown = called if len(called) <= _SHOWN else f"{called[:_SHOWN]}..."
        reason = next((f", {what}" for part, what in _KINDS if part in called), "")
        what = f"{name} needs {quoted(shown)}{reason}: only the names of plain tensors are known, and nothing is called"
        return UnsupportedError(what, field="name", offset=at)
    if kind == "PICKLE_END":
        return cut_off("an opcode", at, field="pickle", whole=name)
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
    if kind == "PICKLE_KEY":
        what = f"{name}: a key is neither a text nor an integer"
        return UnsupportedError(what, field="pickle", offset=program.offset)
    if kind == "PICKLE_LEAF":
        what = f"{name}: a storage or a class is saved by itself, where a tensor or value is expected"
        return UnsupportedError(what, field="pickle", offset=program.offset)
    return _excess_of(fault, program, options)


def _excess_of(fault: Fault, program: Program, options: Options) -> LimitError:
    """Return the error for a fault that is too much of something."""
    kind, name, actual, expected = fault.kind, program.name, fault.actual, fault.expected
    if kind == "PICKLE_DEEP":
        what = f"{name}: depth of containers within each other"
        return LimitError(
            what, field="pickle", offset=program.offset, actual=f"more than {expected}", expected=f"at most {expected}"
        )
    if kind == "PICKLE_LAUGHS":
        what = f"{name}: containers that hold each other many times have more members than the program has bytes"
        return LimitError(what, field="pickle", offset=program.offset)
    if kind == "PICKLE_NAMES":
        what, wanted = (
            f"{name}: bytes of names",
            f"at most {expected} (by the size of the pickle, and Limits.max_header_bytes)",
        )
        return LimitError(what, field="max_header_bytes", offset=program.offset, actual=actual, expected=wanted)
    if kind == "CAPACITY":
        return LimitError(
            f"{name}: number of tensors or storages",
            field="max_tensors",
            offset=program.offset,
            actual=f"more than {expected}",
            expected=f"at most {options.limits.max_tensors} (Limits.max_tensors)",
        )
    return LimitError(
        f"{name} takes more memory than any that torch.save writes ({kind})", field="pickle", offset=program.offset
    )


def values_of(pickle: Pickle, program: Program, options: Options) -> dict[str, Any]:
    """Return what a program makes besides tensors, by name."""
    found: dict[str, Any] = {}
    for name, value in items_of(columns_of(pickle, program, options), program):
        if name in found:
            what = f"{program.name}: two values are called {quoted(name)}"
            raise LayoutError(what, field="name", offset=program.offset)
        found[name] = value
    return found


def columns_of(pickle: Pickle, program: Program, options: Options) -> PickleValues:
    """Return what a program makes besides tensors, as columns."""
    values = pickle.values()
    if isinstance(values, kernels.Fault):
        raise error_of(values, program, options)
    return values


def items_of(values: PickleValues, program: Program) -> Iterator[tuple[str, Any]]:
    """Yield what a program makes besides tensors, each with its name."""
    window = _Window(program)
    made: dict[tuple[str, int, int], Any] = {}  # a long one that is stored once and mentioned often is made once
    # Piece by piece: a list of as many Python integers is larger than all that is kept.
    for first in range(0, len(values.kind), _PIECE):
        bounds = values.bounds[first : first + _PIECE + 1].tolist()
        pieces = (column[first : first + _PIECE].tolist() for column in (values.kind, values.length, values.at))
        for (begin, end), kind, length, at in zip(itertools.pairwise(bounds), *pieces, strict=True):
            name = _text(values.names[begin:end].tobytes(), "a name", program)
            key = (_OF_KIND[kind], length, at)
            value = made[key] if key in made else _value(*key, window, program, name)
            if length > _SHORT:
                made[key] = value
            yield name, value


class _Window:
    """The part of a program that was read last: values lie close to each other."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._begin, self._data = 0, b""

    def read(self, at: int, count: int) -> bytes:
        """Return bytes of the program."""
        begin = at - self._begin
        if begin < 0 or begin + count > len(self._data):
            self._begin, begin = at, 0
            self._data = self._program.read(at, min(max(count, _READ), self._program.size - at))
        return self._data[begin : begin + count]


def _value(kind: str, length: int, at: int, window: _Window, program: Program, name: str) -> Any:  # noqa: PLR0911 - one return for each kind of value
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
        return _scalar(kind, length, at, window, program, name)
    if kind == "LONG" and length > _LONG_MOST:
        what, expected = f"{program.name}: bytes of the integer {quoted(name)}", f"at most {_LONG_MOST}"
        raise LimitError(what, field="pickle", offset=program.offset + at, actual=length, expected=expected)
    if kind == "DEVICE":
        number = f":{(length >> 8) - 1}" if length >> 8 else ""
        return _text(window.read(at, length & 0xFF), f"the value {quoted(name)}", program) + number
    raw = window.read(at, length)
    if kind == "LONG":
        return int.from_bytes(raw, "little", signed=True)
    if kind == "BYTES":
        return raw
    text = _text(raw, f"the value {quoted(name)}", program)
    return _latin(text, program, name) if kind == "LATIN" else text


def _text(raw: bytes, what: str, program: Program) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{program.name}: {what} is not UTF-8", field="pickle", offset=program.offset) from None


def _latin(text: str, program: Program, name: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise FormatError(
            f"{program.name}: the bytes of {quoted(name)} are no bytes", field="pickle", offset=program.offset
        ) from None


def _scalar(kind: str, length: int, at: int, window: _Window, program: Program, name: str) -> Any:
    """Return a scalar of numpy as a Python number."""
    dtype_at, raw_at, dtype_len, raw_len = at >> 32, at & 0xFFFFFFFF, length >> 16, length & 0xFFFF
    code, raw = window.read(dtype_at, dtype_len), window.read(raw_at, raw_len)
    if kind == "SCALAR_LATIN":
        raw = _latin(_text(raw, f"the value {quoted(name)}", program), program, name)
    dtype = np.dtype(code.decode()).newbyteorder("<") if code in _NUMBERS else None
    if dtype is None or dtype.itemsize != len(raw):
        shown = quoted(code.decode(errors="replace"))
        what = f"{program.name}: {quoted(name)} is a scalar of numpy of the type {shown} and {len(raw)} bytes"
        raise UnsupportedError(f"{what}, and not a number", field="pickle", offset=program.offset)
    return np.frombuffer(raw, dtype)[0].item()


# numpy's codes of scalars.
_NUMBERS = frozenset(b"b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())


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
