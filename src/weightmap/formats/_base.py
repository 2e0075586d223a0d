"""What a format is: one file in this folder that defines one `Format` record called `FORMAT`.

Reading: `sniff` says yes or no from the first bytes; `parse` checks the header and returns a `Content`, which holds a
table of tensors and no tensor data. Writing: `plan` checks everything that could go wrong and returns the exact size of
the file and a function that writes it, so that no file is created for what cannot be expressed.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from weightmap.errors import EncodeError, LayoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.dtypes import DType
    from weightmap.errors import TensorFileError
    from weightmap.limits import Limits
    from weightmap.quant import QuantizedTensor
    from weightmap.saving import Sink
    from weightmap.source import Source
    from weightmap.strings import Vocabulary
    from weightmap.table import Row, Table

__all__ = ["HEAD", "Content", "Format", "Options", "Parts", "Payload", "Plan", "Request", "Verification", "refuse"]

# Bytes from the start of a file that `sniff` and `parse` get without reading again: a page.
HEAD = 4096


class Options:
    """How a file is to be opened.

    Attributes
    ----------
    checked : bool
        Whether the index is validated (``verify`` is not "none").
    strict : bool
    limits : Limits
    """

    __slots__ = ("checked", "limits", "strict")

    def __init__(
        self,
        *,
        checked: bool,
        strict: bool,
        limits: Limits,
    ) -> None:
        self.checked = checked
        self.strict = strict
        self.limits = limits

    def odd(self, error: TensorFileError, warnings: list[str]) -> None:
        """Raise `error` in strict mode, else add it to `warnings`."""
        if self.strict:
            raise error
        warnings.append(str(error))


class Content:
    """What a format found in a file.

    Attributes
    ----------
    layout : str
        Which layout of the format the file has.
    table : Table
    load_metadata : callable
        Returns the metadata; called at the first use.
    has_metadata : bool
        Whether the file has metadata, be it empty: some formats tell that from none.
    vocab : Vocabulary or None
    config, tokenizer
        None in formats that have none.
    verify : callable
        Checks all that opening left unchecked: see `Verification`.
    quantized : callable or None
        ``quantized(row, octets)`` returns the `QuantizedTensor` of a row whose dtype is a scheme; `octets` are its
        bytes, an array of uint8 that may be a view of the mapping. Where tensors are of integers and scales it has a
        method ``layout(row, head)``, which returns where the payload begins, block size and type of scales, by the
        first four bytes. None in formats that have none.
    warnings : list of str
        What is odd and was let pass.
    """

    __slots__ = (
        "config",
        "has_metadata",
        "layout",
        "load_metadata",
        "quantized",
        "table",
        "tokenizer",
        "verify",
        "vocab",
        "warnings",
    )

    def __init__(
        self,
        layout: str,
        table: Table,
        *,
        load_metadata: Callable[[], dict[str, Any]],
        has_metadata: bool = False,
        verify: Callable[[Verification], None],
        vocab: Vocabulary | None = None,
        config: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        quantized: Callable[[Row, NDArray[np.uint8]], QuantizedTensor] | None = None,
        warnings: list[str] | None = None,
    ) -> None:
        self.layout = layout
        self.table = table
        self.load_metadata = load_metadata
        self.has_metadata = has_metadata
        self.quantized = quantized
        self.verify = verify
        self.vocab = vocab
        self.config = config
        self.tokenizer = tokenizer
        self.warnings = warnings if warnings is not None else []


class Verification:
    """A run of `TensorFile.verify`: reads bytes once, by pread, and collects what was checked and what is odd."""

    def __init__(self, source: Source, options: Options, progress: Callable[[int, int], None] | None) -> None:
        self.source = source
        self.options = options
        self.checks: list[str] = []
        self.warnings: list[str] = []
        self.done = 0
        self._progress = progress
        self._report(0)

    def _report(self, count: int) -> None:
        self.done += count
        if self._progress is not None:
            self._progress(self.done, self.source.size)

    def checked(self, what: str) -> None:
        """Note that `what` was checked."""
        self.checks.append(what)

    def warn(self, what: str) -> None:
        """Note something that is odd but legal."""
        self.warnings.append(what)

    def read(self, offset: int, count: int) -> bytes:
        """Return bytes as a private copy. Bounded by the caller."""
        data = self.source.pread(offset, count)
        self._report(count)
        return data

    def chunks(self, offset: int, count: int) -> Iterator[memoryview]:
        """Yield the bytes in pieces that are valid until the next one."""
        for piece in self.source.chunks(offset, count):
            yield piece
            self._report(len(piece))

    def odd(self, error: TensorFileError) -> None:
        """Raise `error` in strict mode, else note it as a warning."""
        self.options.odd(error, self.warnings)


class Parts(NamedTuple):
    """What a tensor by product quantisation is made of, besides its shape (rows, length).

    Attributes
    ----------
    quantized_len : int
        Codes of a row.
    n_centroids : int
        Of each codebook.
    projection, norms : bool
        Whether it has them.
    """

    quantized_len: int
    n_centroids: int
    projection: bool
    norms: bool


class Payload:
    """One tensor to be written.

    Attributes
    ----------
    name : str
    dtype : DType
    shape : tuple of int
    nbytes : int
    block_size, scale_type
        Of a quantised tensor, whose dtype is a scheme and whose bytes are the payload of a `QuantizedTensor`.
    parts : Parts or None
        Of a tensor of scheme "pq", whose bytes are its projection, codebooks, norms and codes.
    """

    __slots__ = ("_args", "_make", "block_size", "dtype", "name", "nbytes", "parts", "scale_type", "shape")

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: tuple[int, ...],
        nbytes: int,
        chunks: Callable[..., Iterable[Any]],
        *args: Any,
        block_size: int = 0,
        scale_type: str = "",
        parts: Parts | None = None,
    ) -> None:
        self.parts = parts
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.nbytes = nbytes
        self._make = chunks
        # Beside the function, so that of tensors by the thousand each is one object for the collector to look at.
        self._args = args
        self.block_size = block_size
        self.scale_type = scale_type

    def chunks(self) -> Iterable[Any]:
        """Return the bytes, row-major and little-endian, in pieces of any size that are valid until the next one.

        They come from the function given as `chunks`, called with `args`.
        """
        return self._make(*self._args)


class Request:
    """All that is to be written: see `weightmap.save`."""

    __slots__ = ("checksums", "config", "layout", "metadata", "special_ids", "tensors", "tokenizer", "vocab")

    def __init__(
        self,
        tensors: Sequence[Payload],
        layout: str,
        metadata: Mapping[str, Any] | None = None,
        vocab: Sequence[str] | None = None,
        special_ids: Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        *,
        checksums: bool = True,
    ) -> None:
        self.tensors = tensors
        self.layout = layout
        self.metadata = metadata
        self.vocab = vocab
        self.special_ids = special_ids
        self.config = config
        self.tokenizer = tokenizer
        self.checksums = checksums


class Plan:
    """A file that can be written: its size in bytes, and the function that does it.

    The size is exact, unless `exact` is False: then it is an estimate, by which progress is told.
    """

    __slots__ = ("exact", "size", "write")

    def __init__(
        self,
        size: int,
        write: Callable[[Sink], None],
        *,
        exact: bool = True,
    ) -> None:
        self.size = size
        self.write = write
        self.exact = exact


class Format:
    """One file format.

    Attributes
    ----------
    name : str
        As in ``weightmap.open(..., format=name)``.
    title : str
        For people.
    suffixes : tuple of str
        By which `save` and `convert` choose the format. Reading never looks at them.
    layouts : tuple of str
        The first is written by default.
    sniff : callable
        ``sniff(head, size)``: does a file that begins with the bytes `head` and has `size` bytes claim to be of this
        format?
    parse : callable
        ``parse(source, head, options)`` returns the `Content`, or raises a `FormatError`.
    plan : callable or None
        ``plan(request)`` returns the `Plan`, or raises `EncodeError`. None for formats that are only read.
    carries : mapping of str to frozenset
        By layout: which of "metadata", "vocab", "special_ids", "config", "tokenizer" it can hold.
    magic : bytes
        What every file begins with, at least four printable characters; empty where the format has no such thing.
    dtypes : mapping of str to frozenset
        By layout: the canonical names of the data types that it can hold.
    schemes : mapping of str to frozenset
        By layout: the schemes of quantisation that it can hold; none where it is not mentioned.
    metadata_keys : frozenset of str or None
        The only metadata keys that it has a place for: `save` refuses others, `convert` leaves them behind. None: any.
    text_metadata : bool
        Metadata values are strings and nothing else: `convert` writes integers as decimal strings.
    layout_for : callable or None
        ``layout_for(metadata)``: which layout the metadata calls for, where the caller asked for none; None for the
        first. Raises `EncodeError` for a layout that does not exist.
    """

    __slots__ = (
        "carries",
        "dtypes",
        "layout_for",
        "layouts",
        "magic",
        "metadata_keys",
        "name",
        "parse",
        "plan",
        "schemes",
        "sniff",
        "suffixes",
        "text_metadata",
        "title",
    )

    def __init__(
        self,
        name: str,
        title: str,
        suffixes: tuple[str, ...],
        layouts: tuple[str, ...],
        sniff: Callable[[bytes, int], bool],
        parse: Callable[[Source, bytes, Options], Content],
        plan: Callable[[Request], Plan] | None,
        carries: Mapping[str, frozenset[str]],
        dtypes: Mapping[str, frozenset[str]],
        magic: bytes = b"",
        *,
        schemes: Mapping[str, frozenset[str]] = MappingProxyType({}),
        metadata_keys: frozenset[str] | None = None,
        text_metadata: bool = False,
        layout_for: Callable[[Mapping[str, Any] | None], str | None] | None = None,
    ) -> None:
        self.name = name
        self.title = title
        self.suffixes = suffixes
        self.layouts = layouts
        self.sniff = sniff
        self.parse = parse
        self.plan = plan
        self.carries = carries
        self.dtypes = dtypes
        self.magic = magic
        self.schemes = schemes
        self.metadata_keys = metadata_keys
        self.text_metadata = text_metadata
        self.layout_for = layout_for


def refuse(what: str, reasons: Sequence[str]) -> NoReturn:
    """Raise the one `EncodeError` that names everything that `what` cannot express."""
    shown = "; ".join(reasons[:100]) + (f"; and {len(reasons) - 100} more" if len(reasons) > 100 else "")
    msg = f"{what} cannot express this: {shown}"
    raise EncodeError(msg)


def encodable(text: str) -> bool:
    """Say whether a text can be UTF-8: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def trailing(source: Source, end: int, options: Options, warnings: list[str]) -> None:
    """Refuse, or in lax mode note, bytes after `end`, where the content of a file should have ended."""
    if source.size != end:
        error = LayoutError(
            "size of the file",
            field="size",
            offset=end,
            actual=source.size,
            expected=f"{end}: there are trailing bytes",
        )
        options.odd(error, warnings)


def take(source: Source, head: bytes, offset: int, size: int) -> bytes:
    """Return bytes of the file: of `head`, its first page, where they lie there, else by reading."""
    end = offset + size
    return head[offset:end] if end <= len(head) else source.pread(offset, size)
