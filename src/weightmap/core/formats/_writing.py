"""Requests to write a file, their payloads, helpers for a `plan`, and importers: not imported to open a file."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from weightmap._messages import counted
from weightmap.errors import EncodeError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.sink import Sink, WritePlan
    from weightmap.core.bytes.source import Source
    from weightmap.core.dtypes import DType
    from weightmap.core.quant import PQShape


class Payload:
    """One tensor to write.

    Attributes
    ----------
    name : str
    dtype : DType
    shape : tuple of int
    nbytes : int
    block_size, scale_type
        For a quantised tensor, whose dtype is a scheme, and whose bytes are the payload of a `QuantizedTensor`.
    parts : PQShape or None
        For a tensor of scheme "pq", whose bytes are projection, codebooks, norms and codes.
    refused : str
        Why a quantised tensor could not get a scheme of the format; usually empty.
    """

    __slots__ = ("_args", "_make", "block_size", "dtype", "name", "nbytes", "parts", "refused", "scale_type", "shape")

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: tuple[int, ...],
        nbytes: int,
        chunks: Callable[..., Any],
        *args: Any,
        block_size: int = 0,
        scale_type: str = "",
        parts: PQShape | None = None,
        refused: str = "",
    ) -> None:
        self.parts: PQShape | None = parts
        self.refused: str = refused
        self.name: str = name
        self.dtype: DType = dtype
        self.shape: tuple[int, ...] = shape
        self.nbytes: int = nbytes
        self._make = chunks
        # One tuple per tensor, beside its function: the garbage collector tracks fewer objects.
        self._args = args
        self.block_size: int = block_size
        self.scale_type: str = scale_type

    def chunks(self) -> Iterable[Any]:
        """Return the bytes, row-major and little-endian, in pieces of any size; each is valid until the next one."""
        chunks: Iterable[Any] = self._make(*self._args)
        return chunks

    def write(self, sink: Sink) -> None:
        """Append the bytes to a file."""
        for chunk in self._make(*self._args):
            sink.write(chunk)

    def is_made_by(self, chunks: Callable[..., Any]) -> bool:
        """Whether this function makes the bytes."""
        return self._make is chunks

    # `kind` and `again` are for conversions, whose `chunks` take name and row of a tensor first.
    @property
    def kind(self) -> tuple[Any, ...]:
        """All fields but name and row; equal for tensors that `again` can make from each other."""
        way = self._make, self._args[2:], self.refused
        return *way, self.dtype, self.shape, self.nbytes, self.block_size, self.scale_type, self.parts

    def again(self, name: str, place: Any) -> Payload:
        """Return the payload of another tensor of this kind, by its name and row."""
        other = object.__new__(type(self))
        other.parts, other.refused, other.name, other.dtype = self.parts, self.refused, name, self.dtype
        other.shape, other.nbytes, other._make = self.shape, self.nbytes, self._make
        other._args = (name, place, *self._args[2:])
        other.block_size, other.scale_type = self.block_size, self.scale_type
        return other


class Filled(Payload):
    """A tensor made directly in the write buffer: `chunks` is a function that takes the sink first."""

    __slots__ = ()

    def write(self, sink: Sink) -> None:
        """Append the bytes to a file."""
        self._make(sink, *self._args)


class Tensors:
    """The tensors of a request, in order.

    Attributes
    ----------
    kinds : sequence of Payload
        One tensor of each kind; others of the kind differ only in name and place of data.
    distinct : bool
        Whether the names are known to differ.
    """

    kinds: Sequence[Payload]
    distinct = False

    def __init__(self, payloads: Sequence[Payload]) -> None:
        self.kinds = payloads

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[Payload]:
        return iter(self.kinds)

    def write(self, sink: Sink) -> None:
        """Append the bytes of all tensors, back to back."""
        for tensor in self:
            tensor.write(sink)

    def names(self) -> Iterator[str]:
        """Yield the names of the tensors."""
        return (tensor.name for tensor in self.kinds)

    def origins(self) -> Iterator[str]:
        """Yield the callers' names of the tensors."""
        return self.names()

    def filter(self, test: Callable[[Payload], bool]) -> Iterator[Payload]:
        """Yield the tensors that pass a test, which may only look at their kind."""
        return filter(test, self if any(map(test, self.kinds)) else ())

    def arranged(self, rank: Callable[[Payload], Any]) -> Tensors:
        """Return the tensors sorted by the rank of their kind, then by the bytes of their names."""
        return Tensors(sorted(self, key=lambda tensor: (rank(tensor), tensor.name.encode())))


def check_names(tensors: Iterable[Tensors], path: str | None = None) -> None:
    """Raise `EncodeError` if two tensors share a name. Keeps only hashes of names: there may be a million."""
    parts = [part for part in tensors if not part.distinct]
    hashes = np.fromiter(map(hash, itertools.chain.from_iterable(part.names() for part in parts)), np.int64)
    hashes.sort()
    if not (hashes[1:] == hashes[:-1]).any():
        return
    first: dict[str, str] = {}
    for part in parts:
        for name, origin in zip(part.names(), part.origins(), strict=True):
            if name in first:
                both = f"tensors {_short(first[name])} and {_short(origin)}"
                raise EncodeError(f"{both} would both be called {_short(name)}: give them different names", path=path)
            first[name] = origin


class Request(NamedTuple):
    """Everything to write: see `weightmap.save`.

    For a model in several files, `part` is this file's number, from 0 on, the number of files, and the number of all
    tensors; None for a whole model.
    """

    tensors: Tensors
    layout: str
    metadata: Mapping[str, Any] | None = None
    vocab: Sequence[str] | None = None
    special_ids: Mapping[str, int] | None = None
    config: Mapping[str, Any] | None = None
    tokenizer: Any = None
    checksums: bool = True
    align: int = 1
    part: tuple[int, int, int] | None = None

    def unfit_texts(self) -> Iterator[Unfit]:
        """Yield the entries of `metadata` that are not texts, for a format that holds nothing else."""
        for key, value in (self.metadata or {}).items():
            if not (isinstance(key, str) and isinstance(value, str) and encodable(key) and encodable(value)):
                yield Unfit("metadata", str(key), "keys and values must be strings")


class Unfit(NamedTuple):
    """A named thing, such as a tensor, that a format cannot express."""

    what: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} {_short(self.name)}: {self.why}"


# A reason why a request cannot be written. Messages group the tensors that share a reason.
Reason: TypeAlias = str | Unfit

# Most characters of a message for the names of one reason, and for all reasons, so that it suits a terminal.
_NAMES, _REASONS = 300, 1000


def refuse(what: str, reasons: Sequence[Reason]) -> NoReturn:
    """Raise one `EncodeError` with everything that the format `what` cannot express."""
    # In a variable, the error would keep the caller's arrays until a garbage collection: its traceback has this frame.
    raise EncodeError(f"{what} cannot express this: {_together(reasons)}").naming(reasons)


def lacking(dtype: str, supported: Iterable[str]) -> str:
    """Return the reason why a data type cannot be written, with the types that the format holds."""
    return f"dtype {dtype} (expected {', '.join(supported)})"


def _short(name: object) -> str:
    return f"{name[:80]!r}..." if isinstance(name, str) and len(name) > 80 else repr(name)


def _together(reasons: Sequence[Reason]) -> str:
    """Return reasons as one text, each after the names that it concerns."""
    names: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        what, name, why = reason if isinstance(reason, Unfit) else ("", "", reason)
        names.setdefault((what, why), []).append(name)
    texts: list[str] = []
    room, n_listed = _REASONS, 0
    for (what, why), those in names.items():
        text = f"{what}{'s' * (len(those) > 1)} {listed(those)}: {why}" if what else why
        room -= len(text)
        if texts and room < 0:
            texts.append(f"and {counted(len(reasons) - n_listed, 'reason')} more")
            break
        texts.append(text[:_REASONS])
        n_listed += len(those)
    return "; ".join(texts)


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    shown: list[str] = []
    room = _NAMES
    for name in names:
        text = _short(name)
        room -= len(text)
        if shown and room < 0:
            return f"{', '.join(shown)} and {len(names) - len(shown):,} more"
        shown.append(text)
    return ", ".join(shown)


def encodable(text: str) -> bool:
    """Whether UTF-8 can encode `text`: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def framing(length: int, align: int) -> bytes:
    """Return the spaces to append to a header of `length` bytes, so that the data of `framed` is aligned."""
    return b" " * (-(8 + length) % max(align, 8))


def framed(header: bytearray, tensors: Tensors) -> Callable[[Sink], None]:
    """Return the function that writes a header behind its length, and tensors."""

    def write(sink: Sink) -> None:
        sink.write(len(header).to_bytes(8, "little"))
        sink.write(header)
        tensors.write(sink)

    return write


class NumberedPart(NamedTuple):
    """The place of a file among the numbered parts of a model.

    Attributes
    ----------
    number, parts : int
        The number of this part, from 0 on, and the number of parts.
    tensors : int or None
        Number of tensors of the whole model, if the file has it.
    names : tuple of str
        For the first part, which opens the model: the names of the other files, in order. Empty for other parts, and if
        the name of the file does not lead to them.
    keys : frozenset of str
        The metadata keys that hold these numbers, which do not apply to the whole model.
    """

    number: int
    parts: int
    tensors: int | None
    names: tuple[str, ...]
    keys: frozenset[str]


class Importer(NamedTuple):
    """A kind of file that `weightmap.convert` reads once and `weightmap.open` cannot open in place.

    Attributes
    ----------
    name : str
        As in ``weightmap.convert(..., format=name)``.
    hint : str
        Message of the error from `open`: the kind of the file, and how to convert it.
    claims : callable
        ``claims(head, size)``: does a file of `size` bytes with the beginning `head`, up to `LOOK` bytes, look like
        this kind? Asked for files that no format recognises.
    read : callable
        ``read(source, head, options)`` returns its words, or raises a `FormatError`.
    plan : callable or None
        ``plan(words)`` returns the `WritePlan` of such a file, or raises `EncodeError`. None for files that are only
        read.
    carries : frozenset of str
        The parts that such a file holds, from "metadata" and "subwords".
    """

    name: str
    hint: str
    claims: Callable[[bytes, int], bool]
    read: Callable[[Source, bytes, Any], Any]
    plan: Callable[[Any], WritePlan] | None = None
    carries: frozenset[str] = frozenset()

    def parse(self, _source: Source, _head: bytes, _options: Options) -> NoReturn:
        """Refuse to open such a file in place: see `Format.parse`."""
        raise UnknownFormatError(self.hint, offset=0)
