"""The pickle program of a checkpoint: running it, its errors, and its values."""

from __future__ import annotations

import itertools
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes.source import CHUNK, Source
from weightmap.core.dtypes import DECLARED, DTYPES, PAIRS, DType
from weightmap.core.faults import cut_off, shrank
from weightmap.core.native import access, checksums, scans
from weightmap.errors import FormatError, LayoutError, LimitError, Remedy, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.native.scans import Pickle, PickleValues

# By the codes of csrc/formats/pickle_calls.c.
DTYPE_NAMES = (
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn",
)
# By part of a name that is not on the list: the kind of its values, and what to save instead.
_KINDS = (
    ("qtensor", "a tensor quantised by torch", "tensor.dequantize()"),
    ("sparse", "a sparse tensor", "tensor.to_dense()"),
    ("nested", "a nested tensor", "tensor.unbind()"),
    ("meta_tensor", "a tensor without data, of the device meta", "tensors with data"),
    ("distributed.tensor", "a tensor that ranks share", "tensor.full_tensor()"),
    ("torch.nn.modules", "a whole module", "model.state_dict()"),
    ("wrapper_subclass", "a subclass of tensors", "plain tensors"),
    ("complex32", "a type that numpy lacks", "tensor.to(torch.complex64)"),
    ("", "", "model.state_dict() and plain values"),
)
# The same texts for other odd values.
_ODD = {
    "CONJUGATE": ("a conjugate view, whose values differ from its storage", "tensor.resolve_conj()"),
    "NEGATIVE": ("a negative view, whose values differ from its storage", "tensor.resolve_neg()"),
    "STORAGE": ("a storage by itself", "a tensor"),
    "CLASS": ("a class or function by itself", "its name"),
    "KEY": ("a key that is not a text, integer, truth value, None or tuple of such", "texts as keys"),
    "ARRAY": ("an array, scalar or type of numpy of other things than little-endian numbers", "a tensor"),
}
_LAX = Remedy("or {} leaves it out", "strict", value=False)
_SHOWN = 80
# Most bytes of an integer; from 1,786 bytes on, Python refuses to print it.
_MAX_LONG = 1024
# Values to hand out at once; bytes of a value that is too short to keep for later mentions; bytes to read at once.
_PIECE, _SHORT, _READ = 4096, 64, 1 << 16
# Most bytes of repeated values, for each byte of a program and in addition: writing metadata writes each repetition.
_REPEATED, _MIN_REPEATED = 32, 1 << 20
# Kinds of values whose length is in bytes of the program.
_STORED = frozenset(("TEXT", "BYTES", "LATIN", "LONG"))
_OF_KIND = {number: name for name, number in scans.PICKLE_VALUES.items()}


_CALLS = "calls a function with arguments that torch.save does not write"
_CYCLE = "a container holds itself, and has no end: save what it holds without it"
_LAUGHS = "containers that hold each other many times have more members than the program has bytes"
_NAMES = "at most {} (by the size of the pickle, and Limits.max_header_bytes)"
_MEMORY = "{name} takes more memory than any that torch.save writes ({kind})"
# For other faults: the class of the error, its text, its field, and the expected value unless it is a number.
_FAULTS: dict[str, tuple[type[FormatError], str, str, str]] = {
    "PICKLE_STACK": (FormatError, "{name}: opcode {actual:#04x} does not fit the values on the stack", "pickle", ""),
    "PICKLE_MEMO": (FormatError, "{name}: number of an entry of the memo", "pickle", "less than {}"),
    "PICKLE_CALL": (UnsupportedError, f"{{name}}: opcode {{actual:#04x}} {_CALLS}", "pickle", ""),
    "PICKLE_RANGE": (LayoutError, "{name}: a tensor reaches past its storage, to element", "pickle", "less than {}"),
    "PICKLE_OVERFLOW": (LayoutError, "{name}: the product of a shape exceeds 2**63 - 1 bytes", "pickle", ""),
    "PICKLE_REPEATED": (LayoutError, "{name}: a dictionary has a key twice, or a set a member", "name", ""),
    "PICKLE_CYCLE": (LimitError, f"{{name}}: {_CYCLE}", "pickle", ""),
    "PICKLE_LAUGHS": (LimitError, f"{{name}}: {_LAUGHS}", "pickle", ""),
    "PICKLE_NAMES": (LimitError, "{name}: bytes of names", "max_header_bytes", _NAMES),
}


class Program(NamedTuple):
    """A program, at its place in the file.

    Attributes
    ----------
    source : Source
    name : str
        Its name in messages.
    offset, size : int
        Its beginning, and the most bytes that it may have.
    """

    source: Source
    name: str
    offset: int
    size: int

    def read(self, at: int, count: int) -> bytes:
        """Return bytes of the program."""
        return self.source.pread(self.offset + at, count)

    def attempt(self, options: Options) -> Pickle:
        """Run the program; the result may have a fault."""
        fd, octets = self.source.c_input
        data: Any = None
        if isinstance(octets, np.ndarray):
            data = octets[self.offset : self.offset + self.size]
        elif octets is not None:  # a function that reads from a store
            data = self.read(0, self.size)
        max_tensors, most_names = options.limits.max_tensors, options.limits.max_header_bytes
        span = {"begin": self.offset, "size": self.size}
        return scans.Pickle(data, max_tensors, most_names, fd=fd, **span, lax=not options.strict)

    def run(self, options: Options) -> Pickle:
        """Run the program. Raises the error for a program that is refused."""
        pickle = self.attempt(options)
        if pickle.fault is not None:
            raise error_of(pickle.fault, self, options)
        return pickle

    def crc32(self, size: int) -> int:
        """Return the CRC-32 of its first `size` bytes."""
        crc = 0
        for at in range(0, size, CHUNK):
            crc = checksums.crc32(self.read(at, min(CHUNK, size - at)), crc)
        return crc


def error_of(fault: access.Fault, program: Program, options: Options) -> FormatError | OSError:  # noqa: PLR0911 - one return for each kind of fault
    """Return the error for a fault of the machine."""
    kind, row, actual, expected = fault.kind, fault.row, fault.actual, fault.expected
    name, at = program.name, program.offset + fault.at
    if kind == "PICKLE_READ":
        if actual:
            return OSError(actual, f"{name} cannot be read", program.source.name)
        return shrank(at)
    if kind == "PICKLE_NAME":
        # The bytes to show, and one more.
        module, attribute = (program.read(a, min(n, _SHOWN + 1)) for a, n in ((row, expected), (fault.at, actual)))
        called, effect, instead = _unknown(module, attribute)
        needs = f"{name} needs {called}{effect and ', '}{effect}"
        what = f"{needs}: only tensors and plain values are read, and nothing is called: save {instead}"
        return UnsupportedError(what, field="name", offset=at, remedy=_LAX)
    if kind == "PICKLE_ODD":
        effect, instead = _ODD[scans.PICKLE_ODD[actual]]
        return UnsupportedError(f"{name} has {effect}: save {instead}", field="pickle", offset=at, remedy=_LAX)
    if kind == "PICKLE_END":
        return cut_off("an opcode", at, field="pickle", whole=name)
    if kind == "PICKLE_OPCODE":
        what = f"{name}: protocol" if actual == 0x80 else f"{name}: opcode"
        shown, requirement = (
            (str(expected), "at most 5") if actual == 0x80 else (f"{actual:#04x}", "one that torch.save writes")
        )
        return UnsupportedError(what, field="pickle", offset=at, actual=shown, expected=requirement)
    if kind == "PICKLE_DEEP":
        what, depth = f"{name}: depth of containers within each other", f"more than {expected}"
        return LimitError(what, field="pickle", offset=program.offset, actual=depth, expected=f"at most {expected}")
    if kind == "CAPACITY":
        what, count = f"{name}: number of tensors or storages", f"more than {expected}"
        limit = f"at most {options.limits.max_tensors} (Limits.max_tensors)"
        return LimitError(what, field="max_tensors", offset=program.offset, actual=count, expected=limit)
    cls, what, field, limit = _FAULTS.get(kind, (LimitError, _MEMORY, "pickle", ""))
    error = cls(what.format(name=name, actual=actual, kind=kind), field=field, offset=at)
    if cls is LimitError or kind == "PICKLE_REPEATED":  # no single byte is at fault
        error.offset = program.offset
    if limit:
        error.actual, error.expected = actual, limit.format(expected)
    return error


def _unknown(module: bytes, attribute: bytes) -> tuple[str, str, str]:
    """Return a name that is not on the list, for messages, the kind of its values if known, and what to save."""
    called = b".".join((module, attribute)).decode(errors="replace")
    shown = called if len(called) <= _SHOWN else f"{called[:_SHOWN]}..."
    effect, instead = next((effect, instead) for part, effect, instead in _KINDS if part in called)
    return quoted(shown), effect, instead


class LeftOut(NamedTuple):
    """A placeholder for a value that is neither a tensor nor a plain value.

    Attributes
    ----------
    why : str
    instead : str
        What to save instead.
    """

    why: str
    instead: str


def values_of(pickle: Pickle, program: Program, options: Options, warnings: list[str] | None = None) -> dict[str, Any]:
    """Return the values of a program besides tensors, by name.

    Values left out, only with ``strict=False``, go to `warnings`.
    """
    values: dict[str, Any] = {}
    warnings = [] if warnings is None else warnings
    for name, value in items_of(pickle, program, options):
        if isinstance(value, LeftOut):
            if options.strict:
                what = f"{program.name}: {quoted(name)} cannot be read: {value.why}: save {value.instead}"
                raise UnsupportedError(what, field="pickle", offset=program.offset, remedy=_LAX)
            warnings.append(f"{quoted(name)} is left out: {value.why} (save {value.instead})")
        elif name in values:
            what = f"{program.name}: two values are called {quoted(name)}: the first one stays"
            options.tolerate(LayoutError(what, field="name", offset=program.offset), warnings)
        else:
            values[name] = value
    return values


def items_of(pickle: Pickle, program: Program, options: Options) -> Iterator[tuple[str, Any]]:
    """Return the values of a program besides tensors, each with its name."""
    values = pickle.values()
    if isinstance(values, access.Fault):
        raise error_of(values, program, options)
    return _items(values, program)


def _items(values: PickleValues, program: Program) -> Iterator[tuple[str, Any]]:
    window = _Window(program)
    cache: dict[tuple[str, int, int], Any] = {}  # a long value that is mentioned often is made once
    rows = _rows(values)
    for begin, end, kind, length, at in rows:
        name = _text(values.names[begin:end].tobytes(), "a name", program)
        key = (_OF_KIND[kind], length, at)
        if key[0] in _OF_PARTS:
            parts = [(_OF_KIND[kind], length, at) for _, _, kind, length, at in itertools.islice(rows, length)]
            yield name, _OF_PARTS[key[0]](at, parts, window, program, name)
            continue
        if key in cache:
            window.mention(at, length)
        else:
            cache[key] = _value(*key, window, program, name)
        yield name, cache[key] if key[0] in _STORED and length > _SHORT else cache.pop(key)


def _rows(values: PickleValues) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the beginning and end of each name, with the value's kind, length and place.

    They come in pieces, because a full list of Python integers would be larger than the rest of the data.
    """
    for first in range(0, len(values.kind), _PIECE):
        bounds = values.bounds[first : first + _PIECE + 1].tolist()
        pieces = (column[first : first + _PIECE].tolist() for column in (values.kind, values.length, values.at))
        yield from zip(bounds, bounds[1:], *pieces, strict=False)


class _Window:
    """The part of a program that was read last, because values lie close together."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._begin, self._data = 0, b""
        self._mentioned: set[int] = set()
        self._repeated, self._max_repeated = 0, _REPEATED * program.size + _MIN_REPEATED

    def mention(self, at: int, count: int) -> None:
        """Count bytes of the program that several values share: writing metadata repeats them."""
        self._repeated += count if at in self._mentioned else 0
        self._mentioned.add(at)
        if self._repeated > self._max_repeated:
            name, begin = self._program.name, self._program.offset
            what, expected = f"{name}: bytes of texts that values share", f"at most {self._max_repeated}, by its size"
            raise LimitError(what, field="pickle", offset=begin, actual=self._repeated, expected=expected)

    def read(self, at: int, count: int) -> bytes:
        """Return bytes of the program."""
        if count > _SHORT:
            self.mention(at, count)
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
        return f"torch.{PAIRS if at == len(DTYPE_NAMES) - 1 else DTYPE_NAMES[at]}"
    if kind == "LONG" and length > _MAX_LONG:
        what, expected = f"{program.name}: bytes of the integer {quoted(name)}", f"at most {_MAX_LONG}"
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
            f"{program.name}: the bytes of {quoted(name)} are not bytes", field="pickle", offset=program.offset
        ) from None


_Part: TypeAlias = "tuple[str, int, int]"


def _left_out(at: int, parts: list[_Part], window: _Window, _program: Program, _name: str) -> LeftOut:
    odd = scans.PICKLE_ODD[at]
    if odd != "UNKNOWN":
        why, instead = _ODD[odd]
        return LeftOut(f"it is {why}" if odd != "KEY" else f"it has {why}", instead)
    called, effect, instead = _unknown(*(window.read(begin, min(length, _SHOWN + 1)) for _, length, begin in parts))
    return LeftOut(f"it needs {called}, {effect or 'which is not known'}", instead)


def _complex(_at: int, parts: list[_Part], window: _Window, program: Program, name: str) -> complex:
    real, imaginary = (_value(*part, window, program, name) for part in parts)
    return complex(real, imaginary)


def _path(windows: int, parts: list[_Part], window: _Window, program: Program, name: str) -> str:
    """Return a path as a text."""
    import pathlib  # noqa: PLC0415 - few checkpoints have one

    texts = [_value(*part, window, program, name) for part in parts]
    return str(pathlib.PureWindowsPath(*texts) if windows else pathlib.PurePosixPath(*texts))


def _scalar(_at: int, parts: list[_Part], window: _Window, program: Program, name: str) -> Any:
    """Return a scalar of numpy as a Python number."""
    array = _array(0, [*parts, ("BOOLEAN", 0, 0)], window, program, name)
    return array if isinstance(array, LeftOut) else array.item()


def _array(_at: int, parts: list[_Part], window: _Window, program: Program, name: str) -> NDArray[Any] | LeftOut:
    """Return a numpy array, made from its dtype, bytes, order and dimensions."""
    (_, length, at), stored, (_, _, fortran), *dims = parts
    code, shape = window.read(at, min(length, _SHOWN)), tuple(dim for _, _, dim in dims)
    if code not in _NUMBERS:
        return LeftOut(f"it is of numpy's type {quoted(code.decode(errors='replace'))}", "numbers, texts or lists")
    raw, dtype = _value(*stored, window, program, name), np.dtype(code.decode()).newbyteorder("<")
    whole, label = dtype.itemsize * math.prod(shape), f"{quoted(name)}, of numpy's type {dtype}"
    if whole != len(raw):
        what = f"{program.name}: bytes of {label}"
        raise LayoutError(what, field="pickle", offset=program.offset, actual=len(raw), expected=whole)
    try:
        return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")
    except ValueError:  # an empty array with too large dimensions
        what = f"{program.name}: numpy cannot have the shape of {label}"
        raise LayoutError(what, field="pickle", offset=program.offset) from None


# numpy's codes for scalars.
_NUMBERS = frozenset(b"b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
# Functions that make a value from its parts, which are the rows behind it.
_OF_PARTS: dict[str, Callable[[int, list[_Part], _Window, Program, str], Any]] = {
    "SCALAR": _scalar,
    "COMPLEX": _complex,
    "PATH": _path,
    "ARRAY": _array,
    "ODD": _left_out,
}


def dtypes(*, big: bool) -> Sequence[DType | None]:
    """Return the data types by their codes, and again with `PICKLE_STRIDED` for tensors that are not row-major."""
    plain = [_swapped(DTYPES[name]) if big else DTYPES[name] for name in DTYPE_NAMES]
    unused = [None] * (scans.PICKLE_STRIDED - len(plain))
    return (*plain, *unused, *(_declared(dtype) for dtype in plain))


def _swapped(dtype: DType) -> DType | None:
    if dtype.bits <= 8:
        return dtype
    return None if dtype.code is None else DType(dtype.name, dtype.bits, dtype.code.replace("<", ">"))


def _declared(dtype: DType | None) -> DType | None:
    return None if dtype is None else DType(dtype.name, DECLARED)
