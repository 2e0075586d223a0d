"""gensim's native files of word vectors, ``.kv``, written by ``KeyedVectors.save``.

A pickle of protocol 3 or 4 holds one object, with the attributes "index_to_key", a list of the words, and "vectors", an
array with a row for each word. An array of ten million elements or more lies beside the file, in ``FILE.vectors.npy``.
Nothing in the pickle is executed: see `Machine`.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes.open_source import called, from_path, sibling_path
from weightmap.core.dtypes import numpy_dtype
from weightmap.core.faults import cut_off
from weightmap.core.formats._npy import FIRST, read_header
from weightmap.core.formats._writing import Importer
from weightmap.errors import FormatError, LayoutError, TensorFileError, UnsupportedError
from weightmap.words.importers._words import ADVICE, Words, check_finite, firsts, only, rows_in_block, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.arguments import ImportOptions
    from weightmap.core.bytes.source import Source

# A machine for pickles of word vectors, which knows a few names and calls nothing.
#
# It makes texts (as bytes), numbers, lists and lists of pairs; an object becomes a name, its arguments and its state.
# Bytes, which may be gigabytes of vectors, stay in the file. The bytes that it reads bound its memory.

_WINDOW = 1 << 20
# Most containers and objects per file; gensim writes some dozens.
_MAX_MADE = 10_000
# Longest text, and longest integer.
_LONGEST, _LONG = 1 << 24, 16
_CLASSES = ("KeyedVectors", "Word2VecKeyedVectors", "EuclideanKeyedVectors")
_ALLOWED = {
    *((b"gensim.models.keyedvectors", name.encode()) for name in _CLASSES),
    (b"numpy._core.multiarray", b"_reconstruct"),
    (b"numpy.core.multiarray", b"_reconstruct"),
    (b"numpy", b"ndarray"),
    (b"numpy", b"dtype"),
    (b"builtins", b"frozenset"),
    (b"__builtin__", b"frozenset"),
}
_MARK = object()


class Bytes(NamedTuple):
    """Bytes that stay in the file."""

    offset: int
    nbytes: int


class Name:
    """The name of a class or function."""

    def __init__(self, module: bytes, name: bytes) -> None:
        self.module: bytes = module
        self.name: bytes = name


class Object:
    """An object: its class, the arguments of its constructor, and its state."""

    def __init__(self, kind: Name, args: tuple[Any, ...]) -> None:
        self.kind: Name = kind
        self.args: tuple[Any, ...] = args
        self.state: Any = None


class Pairs(list[Any]):
    """The items of a dictionary: key, value, key, value. Keys are not hashed."""

    def get(self, name: bytes) -> Any:
        """Return the last value of a key."""
        return next(
            (self[i + 1] for i in range(len(self) - 2, -1, -2) if type(self[i]) is bytes and self[i] == name), None
        )


class Machine:
    """Runs a pickle, whose texts become bytes: see the comment above."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._base, self._window, self._at = 0, b"", 0
        self.stack: list[Any] = []
        self._memo: list[Any] = []
        self._created = 0
        # The position of the longest list.
        self.words_at = 0

    @property
    def _position(self) -> int:
        return self._base + self._at

    def _fill(self, count: int) -> None:
        """Read the next `count` bytes into the window."""
        position = self._position
        if count > self._source.size - position:
            raise cut_off("its pickle", self._source.size, position + count, field="pickle")
        size = min(max(count, _WINDOW), self._source.size - position)
        self._base, self._window, self._at = position, self._source.pread(position, size), 0

    def _take(self, count: int) -> bytes:
        if self._at + count > len(self._window):
            self._fill(count)
        data = self._window[self._at : self._at + count]
        self._at += count
        return data

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def _fail(self, what: str) -> NoReturn:
        raise FormatError(f"the pickle {what}", field="pickle", offset=self._position)

    def _pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            self._fail("takes from an empty stack")
        return self.stack.pop()

    def _top(self, *kinds: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kinds):
            self._fail("changes an object that cannot change")
        return self.stack[-1]

    def _marked(self) -> list[Any]:
        """Pop everything above the last mark."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                items = self.stack[at + 1 :]
                del self.stack[at:]
                return items
        return self._fail("has no mark")

    def _make(self, value: Any) -> None:
        self._created += 1
        if self._created > _MAX_MADE:
            what = f"the pickle has more than {_MAX_MADE} containers and objects: too many for word vectors"
            raise UnsupportedError(what, field="pickle", offset=self._position)
        self.stack.append(value)

    def _text(self, count: int) -> None:
        if count > _LONGEST:
            self._fail(f"has a text of {count} bytes, expected at most {_LONGEST}")
        self.stack.append(self._take(count))

    def _bytes(self, count: int) -> None:
        """Step over bytes."""
        position = self._position
        if count > self._source.size - position:
            raise cut_off("an array", self._source.size, position + count, field="pickle")
        self.stack.append(Bytes(position, count))
        self._base, self._window, self._at = (
            (self._base, self._window, self._at + count)
            if self._at + count <= len(self._window)
            else (position + count, b"", 0)
        )

    def _remember(self, number: int) -> None:
        if number > len(self._memo) or not self.stack:
            self._fail(f"remembers entry {number} of {len(self._memo)}")
        self._memo[number : number + 1] = self.stack[-1:]

    def _recall(self, number: int) -> None:
        if number >= len(self._memo):
            self._fail(f"recalls entry {number} of {len(self._memo)}")
        self.stack.append(self._memo[number])

    def _global(self, module: Any, name: Any) -> None:
        if not (type(module) is type(name) is bytes and (module, name) in _ALLOWED):
            parts = [part.decode(errors="replace")[:80] for part in (module, name) if isinstance(part, bytes)]
            what = (
                f"the pickle needs {quoted('.'.join(parts))}: only plain KeyedVectors are known, and nothing is called"
            )
            raise UnsupportedError(what, field="name", offset=self._position)
        self._make(Name(module, name))

    def _object(self) -> None:
        args, kind = self._pop(), self._pop()
        if not isinstance(kind, Name) or type(args) is not tuple:
            self._fail("makes an object of something that is not a class")
        self._make(Object(kind, args))

    def run(self) -> Any:
        """Return the value of the pickle."""
        table, stack = self._table(), self.stack
        while True:
            if self._at + 1 > len(self._window):
                self._fill(1)
            opcode = self._window[self._at]
            self._at += 1
            if opcode == 0x94:  # MEMOIZE, behind every word
                if not stack:
                    self._fail("remembers an empty stack")
                self._memo.append(stack[-1])
            elif opcode == 0x8C:  # SHORT_BINUNICODE
                self._text(self._take(1)[0])
            elif opcode == 0x2E:  # STOP
                break
            else:
                action = table.get(opcode)
                if action is None:
                    what, shown = "the pickle: opcode", f"{opcode:#04x}"
                    expected = "one that gensim writes"
                    raise UnsupportedError(
                        what, field="pickle", offset=self._position - 1, actual=shown, expected=expected
                    )
                action()
        value = self._pop()
        if stack:
            self._fail("leaves something on the stack")
        if self._position != self._source.size:
            what = "size of the file"
            raise LayoutError(
                what, field="pickle", offset=self._position, actual=self._source.size, expected=self._position
            )
        return value

    def _table(self) -> dict[int, Callable[[], Any]]:
        push = self.stack.append
        return {
            ord("("): lambda: push(_MARK),
            ord("0"): self._pop,
            ord("h"): lambda: self._recall(self._take(1)[0]),
            ord("j"): lambda: self._recall(self._number("<I")),
            ord("q"): lambda: self._remember(self._take(1)[0]),
            ord("r"): lambda: self._remember(self._number("<I")),
            ord("K"): lambda: push(self._take(1)[0]),
            ord("M"): lambda: push(self._number("<H")),
            ord("J"): lambda: push(self._number("<i")),
            0x8A: self._long,
            ord("G"): lambda: push(struct.unpack(">d", self._take(8))[0]),
            ord("N"): lambda: push(None),
            0x88: lambda: push(True),  # noqa: FBT003 - a value
            0x89: lambda: push(False),  # noqa: FBT003 - a value
            ord("X"): lambda: self._text(self._number("<I")),
            0x8D: lambda: self._text(self._number("<Q")),
            ord("C"): lambda: self._bytes(self._take(1)[0]),
            ord("B"): lambda: self._bytes(self._number("<I")),
            0x8E: lambda: self._bytes(self._number("<Q")),
            ord("}"): lambda: self._make(Pairs()),
            ord("]"): lambda: self._make([]),
            0x8F: lambda: self._make([]),
            ord(")"): lambda: push(()),
            ord("t"): lambda: self._make(tuple(self._marked())),
            0x85: lambda: self._tuple(1),
            0x86: lambda: self._tuple(2),
            0x87: lambda: self._tuple(3),
            0x91: lambda: self._make(self._marked()),  # a frozen set
            0x90: self._extend,  # a set
            ord("e"): self._extend,
            ord("a"): self._append,
            ord("s"): lambda: self._set([self._pop(), self._pop()][::-1]),
            ord("u"): lambda: self._set(self._marked()),
            ord("c"): self._line_global,
            0x93: lambda: self._global(*[self._pop(), self._pop()][::-1]),
            0x81: self._object,
            ord("R"): self._object,
            ord("b"): self._build,
            0x80: self._protocol,
            0x95: lambda: self._number("<Q"),
        }

    def _protocol(self) -> None:
        protocol = self._take(1)[0]
        if protocol not in {3, 4}:
            expected = "3 or 4, as gensim writes by default"
            raise UnsupportedError(
                "protocol of the pickle", field="pickle", offset=1, actual=protocol, expected=expected
            )

    def _long(self) -> None:
        count = self._take(1)[0]
        if count > _LONG:
            self._fail(f"has an integer of {count} bytes, expected at most {_LONG}")
        self.stack.append(int.from_bytes(self._take(count), "little", signed=True))

    def _tuple(self, count: int) -> None:
        self._make(tuple([self._pop() for _ in range(count)][::-1]))

    def _extend(self) -> None:
        at, items = self._position, self._marked()
        listed = self._top(list)
        if isinstance(listed, Pairs):
            self._fail("appends to a dictionary")
        self.words_at = self.words_at or at
        listed += items

    def _append(self) -> None:
        value = self._pop()
        listed = self._top(list)
        if isinstance(listed, Pairs):
            self._fail("appends to a dictionary")
        listed.append(value)

    def _set(self, items: list[Any]) -> None:
        if len(items) % 2:
            self._fail("has a key without a value")
        self._top(Pairs).extend(items)

    def _line_global(self) -> None:
        lines = []
        for _ in range(2):
            line = bytearray()
            while (byte := self._take(1)) != b"\n":
                line += byte
                if len(line) > 256:
                    self._fail("has a name without an end")
            lines.append(bytes(line))
        self._global(*lines)

    def _build(self) -> None:
        state = self._pop()
        self._top(Object).state = state


# ----------------------------------------------------------------------------------------------------
# Reading gensim's ``.kv``: the words, and the vectors in the file or beside it.

_FLOATS = {b"f2", b"f4", b"f8"}
_ORDERS = {b"<": "<", b">": ">", b"=": "<", b"|": "<"}


def read(source: Source, head: bytes, options: ImportOptions) -> Words:
    """Find the words of a file. Iterating `Words.blocks` reads the vectors."""
    del head
    machine = Machine(source)
    root = machine.run()
    if not isinstance(root, Object) or root.kind.module != b"gensim.models.keyedvectors":
        raise FormatError("the pickle holds no KeyedVectors", field="pickle", offset=0)
    if not isinstance(root.state, Pairs):
        raise FormatError("the KeyedVectors have no attributes", field="pickle", offset=0)
    words = root.state.get(b"index_to_key")
    if words is None:
        what = "there is no attribute 'index_to_key': load and save the file with gensim 4 or newer"
        raise UnsupportedError(what, field="index_to_key", offset=0)
    if type(words) is not list or not all(type(word) is bytes for word in words):
        raise FormatError("'index_to_key' must be a list of texts", field="index_to_key", offset=machine.words_at)
    first_rows = firsts(words, lossy=options.lossy)
    chosen = words if first_rows is None else [words[i] for i in first_rows]
    table = table_of(chosen, _Everywhere(machine.words_at), lossy=options.lossy)
    sibling, dtype, shape, offset = _vectors(source, root.state)
    rows = len(words)
    if len(shape) != 2 or shape[0] != rows or not 1 <= shape[1] < 1 << 31:
        raise LayoutError(
            "shape of 'vectors'", field="vectors", offset=0, actual=list(shape), expected=f"[{rows}, dims]"
        )
    make = functools.partial(_blocks, sibling, dtype, shape, offset)
    return only(Words((source, sibling), "gensim", table, rows, shape[1], make), first_rows)


class _Everywhere(list[int]):
    """One offset for every word."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __getitem__(self, _: Any) -> Any:
        return self._offset


def _vectors(source: Source, state: Pairs) -> tuple[Source, np.dtype[Any], tuple[int, ...], int]:
    """Return the place of the vectors: file, dtype, shape and offset."""
    vectors, external = state.get(b"vectors"), state.get(b"__numpys")
    if vectors is None and isinstance(external, list) and b"vectors" in external:
        return _open_sibling(source)
    try:
        dtype, shape, fortran, data = _array(vectors)
    except (TypeError, ValueError, AttributeError, KeyError):
        raise FormatError("'vectors' must be a numpy array as gensim writes it", field="vectors", offset=0) from None
    nbytes = math.prod(shape) * dtype.itemsize
    if data.nbytes != nbytes:
        what = "bytes of 'vectors'"
        raise LayoutError(what, field="vectors", offset=data.offset, actual=data.nbytes, expected=nbytes)
    if fortran and min(shape, default=0) > 1:
        raise UnsupportedError("'vectors' lie column by column", field="vectors", offset=data.offset)
    return source, dtype, shape, data.offset


def _array(value: Any) -> tuple[np.dtype[Any], tuple[int, ...], bool, Bytes]:
    """Return dtype, shape, order and bytes of an array; raise one of several errors for anything else."""
    if value.kind.name != b"_reconstruct":
        raise ValueError
    _, shape, kind, fortran, data = value.state
    code, order = kind.args[0], kind.state[1]
    if kind.kind.name != b"dtype" or code not in _FLOATS or not isinstance(data, Bytes) or type(fortran) is not bool:
        raise ValueError
    if type(shape) is not tuple or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise ValueError
    return np.dtype(_ORDERS[order] + code.decode()), shape, fortran, data


def _open_sibling(source: Source) -> tuple[Source, np.dtype[Any], tuple[int, ...], int]:
    """Return the place of the vectors in the file beside this one, like `_vectors`."""
    model = source.absolute
    if model is None:
        what = "the vectors lie in a file beside this one, and this source has no path"
        raise UnsupportedError(what, field="vectors", offset=0)
    path = sibling_path(model, f"{called(model)}.vectors.npy")
    other = from_path(path, "mmap")
    size = other.size
    try:
        head = other.pread(0, min(FIRST, size))
        kind, shape, strides, data = read_header(head, lambda count: other.pread(0, min(count, size)), "the array", 0)
        dtype = numpy_dtype(kind)
        if dtype.kind != "f" or strides is not None:
            raise UnsupportedError("the vectors must be rows of floating-point numbers", field="descr", offset=0)
        if data.end != size:
            at = min(data.end, size)
            raise LayoutError("size of the file", field="shape", offset=at, actual=size, expected=data.end)
    except TensorFileError as error:
        raise error.located(path=path) from None
    return other, dtype, shape, data.begin


def _blocks(source: Source, dtype: np.dtype[Any], shape: tuple[int, int], offset: int) -> Iterator[NDArray[np.float32]]:
    """Yield the vectors in blocks."""
    rows, dims = shape
    step, width = rows_in_block(dims), dims * dtype.itemsize
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = source.pread(offset + first * width, count * width)
        with np.errstate(over="ignore", invalid="ignore"):
            block = np.frombuffer(data, dtype).astype(np.float32).reshape(count, dims)
        check_finite(block, first, lambda row: offset + row * width)
        yield block
    source.check_unchanged()


def claims(head: bytes, size: int) -> bool:
    """Whether the file begins like a pickle that soon names gensim."""
    return size > 2 and head[:1] == b"\x80" and head[1] in range(2, 6) and b"gensim.models" in head[:256]


IMPORTER = Importer(
    name="gensim",
    hint=f"this looks like word vectors of gensim: {ADVICE}",
    claims=claims,
    read=read,
)
