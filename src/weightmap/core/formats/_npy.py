r"""Headers of numpy's .npy files: the file itself, and each member of an .npz archive.

``"\x93NUMPY" | u8 major | u8 minor | u16 (1.0) or u32 (2.0, 3.0) length | header``, and then the data. The header is a
Python dictionary literal with the keys "descr", "fortran_order" and "shape", in Latin-1 (1.0, 2.0) or UTF-8 (3.0), of
at most 1 MiB. `_Literal` reads it and knows no other Python, so that nothing is compiled; `numpy.lib.format` turns
"descr" into the data type. Arrays of Python objects hold pickles, and raise an `UnsupportedError`.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import counted
from weightmap.core.bytes import Range
from weightmap.core.dtypes import DECLARED, DType, dtype_of
from weightmap.core.faults import cut_off
from weightmap.core.formats import NPY_MAGIC
from weightmap.core.table import INT64_MAX, Rules
from weightmap.errors import FormatError, LayoutError, LimitError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    Header = tuple[DType, tuple[int, ...], tuple[int, ...] | None, Range]

MAGIC = NPY_MAGIC
_MAX_LITERAL = 1 << 20
# Bytes that hold nearly every header.
FIRST = 128
_VERSIONS = {(1, 0): ("latin-1", 2), (2, 0): ("latin-1", 4), (3, 0): ("utf-8", 4)}
_KEYS = {"descr", "fortran_order", "shape"}
# Errors from making a data type of bad input, or of old spellings if a filter turns warnings into errors.
_BAD = (ValueError, TypeError, LookupError, AttributeError, SyntaxError, RecursionError, OverflowError, Warning)
# Texts, whole numbers (Python 2's may end in L), words and brackets.
_PIECE = r"""(?s)\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\d{1,19})L?|(True|False|None)|([][(){},:]))"""
_ESCAPE = r"(?s)\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([nrt\\'\"])|(.))"
_WORDS = {"True": True, "False": False, "None": None}
_DEPTH = 16


class _Literal:
    """Reads a Python dictionary literal of texts, numbers, words, lists and tuples, without compiling anything.

    Raises ValueError for anything else.
    """

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        # Compiled at the first use: it takes half a millisecond.
        self._match = re.compile(_PIECE).match
        self._next: re.Match[str] | None = None
        self._advance()

    def _advance(self) -> str:
        """Go on to the next token; return the last one if it was a bracket, comma or colon, else ""."""
        last = self._next
        self._next = self._match(self._text, self._at)
        if self._next is not None:
            self._at = self._next.end()
        return (last and last[5]) or ""

    def _is(self, mark: str) -> bool:
        """Whether the next token is this mark; if so, skip it."""
        if self._next is None or self._next[5] != mark:
            return False
        self._advance()
        return True

    def value(self, depth: int = 0) -> Any:
        """Return the value that begins here."""
        token = self._next
        if token is None or depth > _DEPTH:
            raise ValueError
        single, double, number, word, mark = token.groups()
        self._advance()
        if word is not None:
            return _WORDS[word]
        if number is not None:
            return int(number)
        if mark is None:
            return re.sub(_ESCAPE, _unescaped, single if single is not None else double)
        if mark == "{":
            return self._dictionary(depth)
        if mark not in "[(":
            raise ValueError
        close, commas = "])"["[(".index(mark)], 0
        items: list[Any] = []
        while not self._is(close):
            if len(items) != commas:
                raise ValueError
            items.append(self.value(depth + 1))
            commas += self._is(",")
        if mark == "[":
            return items
        return tuple(items) if commas or not items else items[0]

    def _dictionary(self, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not self._is("}"):
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in items or not self._is(":"):
                raise ValueError
            items[key] = self.value(depth + 1)
            if not self._is(",") and (self._next is None or self._next[5] != "}"):
                raise ValueError
        return items

    def finished(self) -> bool:
        """Whether only white space is left."""
        return self._next is None and not self._text[self._at :].strip()


def _unescaped(match: re.Match[str]) -> str:
    narrow, wide, widest, plain, other = match.groups()
    if other is not None:
        raise ValueError
    if plain is not None:
        return {"n": "\n", "r": "\r", "t": "\t"}.get(plain, plain)
    return chr(int(narrow or wide or widest, 16))


def read_header(data: bytes, read: Callable[[int], bytes], what: str, at: int) -> Header:
    """Return dtype, shape, strides (None for a row-major array) and the range of the data after the header.

    `data` are the first `FIRST` bytes, or a whole shorter file; ``read(n)`` returns the first n bytes; `what` and `at`
    are for messages.
    """
    if not MAGIC.startswith(data[:6]):
        raise FormatError(f"magic of {what}", field="magic", offset=at, actual=repr(data[:6]), expected=repr(MAGIC))
    if len(data) < 8:
        raise cut_off("its header", at + len(data), at + 8, field="header", whole=what)
    version = (data[6], data[7])
    if version not in _VERSIONS:
        shown = ".".join(map(str, version))
        raise UnsupportedError(
            f"version of {what}", field="version", offset=at + 6, actual=shown, expected="1.0, 2.0 or 3.0"
        )
    encoding, width = _VERSIONS[version]
    begin = 8 + width
    length = int.from_bytes(data[8:begin], "little")
    if len(data) >= begin and length > _MAX_LITERAL:
        expected = f"at most {_MAX_LITERAL}"
        raise LimitError(
            f"bytes of the header of {what}", field="header", offset=at + 8, actual=length, expected=expected
        )
    if FIRST <= len(data) < begin + length:
        data = read(begin + length)
    if len(data) < begin + length:
        raise cut_off(f"its header of {length} bytes", at + len(data), at + begin + length, field="header", whole=what)
    dtype, shape, fortran = _parse(data[begin : begin + length], encoding, what, at + begin)
    return _array(dtype, shape, begin + length, what, at + begin, fortran=fortran)


def _parse(raw: bytes, encoding: str, what: str, at: int) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    try:
        return _literal(raw, encoding)
    except _BAD:
        expected = f"a dictionary of descr, fortran_order and shape, in {counted(len(raw), 'byte')} as its length says"
        actual = f"{raw[:80]!r}{'...' * (len(raw) > 80)}"
        raise FormatError(f"header of {what}", field="header", offset=at, actual=actual, expected=expected) from None


def _literal(raw: bytes, encoding: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Return the content of a header. Raises one of `_BAD` for a wrong one."""
    parser = _Literal(raw.decode(encoding))
    literal = parser.value()
    if not parser.finished() or not isinstance(literal, dict) or literal.keys() != _KEYS:
        raise ValueError
    fortran, shape = literal["fortran_order"], literal["shape"]
    whole = isinstance(shape, tuple) and all(type(dim) is int and dim >= 0 for dim in shape)
    dtype = np.lib.format.descr_to_dtype(literal["descr"])
    if not whole or type(fortran) is not bool or not isinstance(dtype, np.dtype):
        raise ValueError
    return dtype, shape, fortran


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], start: int, what: str, at: int, *, fortran: bool) -> Header:
    if dtype.hasobject:
        raise UnsupportedError(
            f"{what} holds Python objects: their pickles could run any program", field="descr", offset=at
        )
    if dtype.subdtype is not None:
        raise UnsupportedError(f"descr of {what} is an array itself", field="descr", offset=at)
    if not dtype.itemsize:
        raise UnsupportedError(f"descr of {what} has elements of no bytes", field="descr", offset=at)
    if len(shape) > Rules.max_ndim:
        expected = f"at most {Rules.max_ndim}"
        raise LimitError(
            f"number of dimensions of {what}", field="shape", offset=at, actual=len(shape), expected=expected
        )
    if math.prod(dim or 1 for dim in shape) * dtype.itemsize > INT64_MAX:
        raise LayoutError(f"the product of the shape of {what} exceeds 2**63 - 1 bytes", field="shape", offset=at)
    strides = fortran_strides(shape, dtype.itemsize) if fortran else None
    return dtype_of_array(dtype), shape, strides, Range(start, start + math.prod(shape) * dtype.itemsize)


def fortran_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...] | None:
    """Return the strides of an array in Fortran order; None if it is also row-major."""
    if sum(dim > 1 for dim in shape) <= 1:
        return None
    steps = [itemsize]
    for dim in shape[:-1]:
        steps.append(steps[-1] * dim)
    return tuple(steps)


def dtype_of_array(dtype: np.dtype[Any]) -> DType:
    """Return the data type of arrays of a numpy dtype, of either byte order."""
    named = dtype_of(dtype)
    little = dtype.newbyteorder("<")
    if named is not None and named.code is not None and np.dtype(named.code) == dtype == little:
        return named
    name = str(dtype) if dtype.names is not None else dtype.newbyteorder("=").name
    return DType(name if named is None else named.name, dtype.itemsize * 8, dtype.str, loaded=dtype)


class ArrayRules(Rules):
    """The rules of tables of arrays, which lie anywhere in the file."""

    __slots__ = ()
    dtypes = (DType("any", DECLARED),) * 256
    scattered = True
