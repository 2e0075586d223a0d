"""Defines `Format`: each format is a file in this folder with one such record, called `FORMAT`.

To read, `parse` checks the header and returns a `Content`, which holds a table of tensors and no tensor data. To write
(see `_writing`), `plan` checks everything that could go wrong and returns the exact size of the file and a function
that writes it: a request that fails creates nothing. In a format of several modules, `hooks.later` imports the writing
module when `plan` is called.
"""

from __future__ import annotations

import functools
import os
import struct
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.core.faults import cut_off, too_many, trailing_bytes
from weightmap.core.hooks import later
from weightmap.core.native import checksums
from weightmap.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.arguments import Limits, Options
    from weightmap.core.bytes.sink import WritePlan
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Sum, Verification
    from weightmap.core.formats._writing import NumberedPart, Request
    from weightmap.core.table.table import Table
    from weightmap.core.table.vocabulary import Vocabulary

# First bytes of a file, a page, for `sniff` and `parse`.
HEAD = 4096
# First bytes of a file from which importers recognise it
LOOK = 1 << 16
# How to join the parts that the ranks of torch.distributed.checkpoint save as safetensors.
CONSOLIDATE = (
    "to make one model of their folder, call consolidate_safetensors_files(FOLDER, OTHER_FOLDER, {NAME: 1 for each"
    " tensor}) of torch.distributed.checkpoint._consolidate_hf_safetensors"
)
# `Vocabulary`, for `Content.load_vocab`
new_vocabulary = later("weightmap.core.table.vocabulary", "Vocabulary")
# Kinds of metadata values, see `weightmap.conversion.metadata`; "array" means numpy's, "mixed" a list of several types,
# "large" an integer of more than 64 bits. Items of lists and tables must also be of kinds that the format has.
TEXT = frozenset({"text"})
JSON = TEXT | {"integer", "large", "float", "boolean", "null", "list", "mixed", "table"}
TOML = (JSON - {"large", "null"}) | {"non-finite", "time"}
TYPED = TEXT | {"integer", "float", "non-finite", "boolean", "list", "array"}
_NONE: Mapping[str, Any] = MappingProxyType({})


class Content:
    """The result of parsing a file.

    Attributes
    ----------
    layout : str
        The layout of the file, one of the format's.
    table : Table
    load_metadata : callable
        Returns the metadata; called once, when it is first used.
    has_metadata : bool
        Whether the file has metadata, even if empty: some formats distinguish that from none.
    may_hold_frames : bool
        Whether the file may belong to a delta, whose tensors are frames: see `refuse_frames`.
    load_vocab : callable or None
        Returns the vocabulary; None for a file without one.
    config, tokenizer
        None in formats without such sections.
    verify : callable
        Checks everything that opening has not checked: see `Verification`.
    checksums : bool
        False if the file leaves out the checksums of its layout: see `Format.checksums`.
    sources : tuple of Source
        Other files that hold rows of the table: see `JoinedTable`. Closing, checks for changes, pickling and
        verification include them.
    part : NumberedPart or None
        The place among the files of a model in several files.
    sums : callable
        ``sums(source)`` returns a list of `Sum`: the checksums of tensor data in one of its files that can be checked
        without the rest of that file.
    warnings : list of str
        Deviations tolerated by ``strict=False``.
    folder : str or None
        The opened directory, if this is its model.
    ambiguous : frozenset of str
        Names shared with tensors that are left out, in graphs within the graph; and names local to a function.
    """

    # Class attributes: few formats set them, and each assignment makes opening slower.
    has_metadata = False
    may_hold_frames = False
    checksums = True
    load_vocab: Callable[[], Vocabulary | None] | None = None
    config: Mapping[str, Any] | None = None
    tokenizer: Any = None
    part: NumberedPart | None = None
    sources: tuple[Source, ...] = ()
    folder: str | None = None
    ambiguous: frozenset[str] = frozenset()
    sums: Callable[[Source], Sequence[Sum]] = staticmethod(lambda _: ())

    def __init__(
        self,
        layout: str,
        table: Table,
        load_metadata: Callable[[], dict[str, Any]],
        verify: Callable[[Verification], None],
        warnings: list[str],
    ) -> None:
        self.layout = layout
        self.table = table
        self.load_metadata = load_metadata
        self.verify = verify
        self.warnings = warnings

    @property
    def where(self) -> dict[str, str]:
        """The file of each tensor of a model in several files."""
        return {}

    @functools.cached_property
    def vocab(self) -> Vocabulary | None:
        """The vocabulary, made at its first use."""
        vocab = None if self.load_vocab is None else self.load_vocab()
        if vocab is not None and vocab.path is None:
            vocab.path, vocab.format = self.table.path, self.table.format
        return vocab

    def varied(self, **changes: Any) -> Content:
        """Return the same content with other attributes."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), **changes)
        return copy


class Format(NamedTuple):
    """One file format.

    Attributes
    ----------
    name : str
        As in ``weightmap.open(..., format=name)``.
    title : str
        Its name in messages.
    suffixes : tuple of str
        `save` and `convert` choose the format by them; reading ignores them.
    layouts : tuple of str
        The first is written by default.
    sniff : callable, optional
        ``sniff(head, size)``: does a file of `size` bytes that begins with `head` look like this format? For formats
        without `magic`.
    parse : callable
        ``parse(source, head, options)`` returns the `Content`, or raises a `FormatError`.
    plan : callable or None
        ``plan(request)`` returns the `WritePlan`, or raises `EncodeError`. None for formats that are only read; of the
        attributes below, these need only `magic`.
    carries : mapping of str to frozenset
        By layout: the parts that it can hold, from "metadata", "vocab", "special_ids", "subwords", "config",
        "tokenizer".
    magic : bytes
        The first bytes of every file, at least four printable characters; empty in formats without magic bytes.
    dtypes : mapping of str to frozenset
        By layout: the canonical names of the data types that it can hold.
    schemes : mapping of str to frozenset
        By layout: the schemes of quantisation that it can hold. Layouts missing here hold none.
    metadata_keys : frozenset of str or None
        The only metadata keys that it can hold, empty without metadata: `save` refuses others, `convert` drops them.
        None: any.
    vocab_keys : mapping of str to (str or None)
        For a format with the vocabulary in its metadata: the keys of the parts of `Content.vocab`, each with the name
        of a special id, or None for the tokens.
    own_keys : frozenset of str
        The metadata keys that describe the layout of a file: `convert` takes them only from files of this format.
    special_ids : frozenset of str
        Names of the special ids that its vocabularies can hold.
    metadata_kinds : frozenset of str
        Kinds of values that its metadata holds: see `weightmap.conversion.metadata`, the rule of `convert`.
    metadata_most : int or None
        Most bytes per text in its metadata.
    layout_for : callable or None
        ``layout_for(metadata)`` returns the layout that the metadata asks for, if the caller names none; None means the
        first. Raises `EncodeError` for an unknown one.
    leads : bytes
        For a format whose `sniff` is as reliable as magic bytes (a recognised file has this format, intact or damaged):
        the possible first bytes of a file. `sniff` sees only files that begin with one of them.
    embeddings : tuple of (str, str), optional
        For formats of word embeddings: the names of the matrix, and of its rows' norms before normalisation.
    aligns : mapping of str to int
        By layout: the largest power of two to which it can align tensors for `Request.align`. Layouts missing here
        cannot align.
    nested : bool
        Whether keys of metadata are paths through modules, as names of tensors are.
    numbered : bool
        Whether each file of a model in several records its part number: see `Request`.
    suffix_means : str
        For a format with ambiguous suffixes: the kind of its files, for messages.
    expected_keys : mapping of str to str
        Metadata keys required by other programs, with the consequence of a missing key, of which `convert` warns.
    program : str
        The program whose names and keys files of this format use; empty if each program uses its own.
    usual_metadata : mapping of str to str
        Metadata expected by programs of Hugging Face: `convert` adds it to a model beside a ``config.json``.
    checksums : frozenset of str
        The layouts with checksums of tensors. In other layouts, verification finds only damaged structure, and says so.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    layouts: tuple[str, ...]
    parse: Callable[[Source, bytes, Options], Content]
    plan: Callable[[Request], WritePlan] | None = None
    carries: Mapping[str, frozenset[str]] = _NONE
    dtypes: Mapping[str, frozenset[str]] = _NONE
    magic: bytes = b""
    sniff: Callable[[bytes, int], bool] | None = None
    leads: bytes = b""
    schemes: Mapping[str, frozenset[str]] = _NONE
    metadata_keys: frozenset[str] | None = None
    metadata_kinds: frozenset[str] = TEXT
    metadata_most: int | None = None
    layout_for: Callable[[Mapping[str, Any] | None], str | None] | None = None
    embeddings: tuple[str, str] | None = None
    checksums: frozenset[str] = frozenset()
    vocab_keys: Mapping[str, str | None] = _NONE
    own_keys: frozenset[str] = frozenset()
    special_ids: frozenset[str] = frozenset()
    aligns: Mapping[str, int] = _NONE
    nested: bool = False
    numbered: bool = False
    suffix_means: str = ""
    expected_keys: Mapping[str, str] = _NONE
    usual_metadata: Mapping[str, str] = _NONE
    program: str = ""

    def claims(self, head: bytes, size: int) -> bool:
        """Whether a file of `size` bytes that begins with `head` looks like this format."""
        sniff = self.sniff
        return sniff(head, size) if sniff is not None else self.magic != b"" and head.startswith(self.magic)

    def structure_only(self, content: Content) -> str | None:
        """Return why verification cannot find changed tensor data in a file; None if checksums cover all of it."""
        if content.layout in self.checksums:
            return None if content.checksums else "this file has no checksums"
        return f"{f'the {content.layout} layout of ' if self.checksums else ''}{self.title} has no checksums"


def discover(package: str, folders: Iterable[str], record: str) -> dict[str, Any]:
    """Import every module of a package that does not begin with an underscore; return their records by name."""
    records = [getattr(import_module(f"{package}.{name}"), record) for name in module_names(folders)]
    return {entry.name: entry for entry in records}


def module_names(folders: Iterable[str]) -> list[str]:
    """Return the names of the modules and packages in these folders that do not begin with an underscore."""
    names: set[str] = set()
    for folder in folders:
        try:
            entries = os.listdir(folder)
        except OSError:  # inside a zip archive
            import pkgutil  # noqa: PLC0415 - for archives alone

            return sorted(module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_"))
        names.update(
            entry.removesuffix(".py")
            for entry in entries
            if entry[0] not in "_." and (entry.endswith(".py") or "." not in entry)
        )
    return sorted(names)


def trailing(source: Source, end: int, options: Options, warnings: list[str], field: str = "size") -> None:
    """Refuse, or with ``strict=False`` note, bytes after `end`, the end of the file's content."""
    if source.size > end:
        options.tolerate(trailing_bytes(source.size, end, field=field), warnings)


def take(source: Source, head: bytes, offset: int, size: int) -> bytes:
    """Return bytes of the file, from `head`, its first page, if they lie there; otherwise read them."""
    end = offset + size
    return head[offset:end] if end <= len(head) else source.pread(offset, size)


# ----------------------------------------------------------------------------------------------------
# Reading headers: as a whole after their length, or field by field with bounds

LENGTH = struct.Struct("<Q")
# Positions in a header take 32 bits.
_MAX_HEADER = 0xFFFFFFFE


def read_header(source: Source, head: bytes, options: Options) -> bytes:
    """Return the header as private bytes; check its length before reading it."""
    if len(head) < LENGTH.size:
        raise cut_off("the length of its header", len(head), LENGTH.size)
    (length,) = LENGTH.unpack_from(head)
    options.limits.check("max_header_bytes", length, "length of the header", offset=0)
    if length > _MAX_HEADER:
        expected = f"at most {_MAX_HEADER}"
        raise FormatError("length of the header", field="n", offset=0, actual=length, expected=expected)
    base = LENGTH.size + length
    if base > source.size:
        raise cut_off("its header", source.size, base, field="n")
    return head[8:base] if base <= len(head) else source.pread(8, length)


def verifier(header: bytes, table: Table) -> Callable[[Verification], None]:
    """Return the function that verifies such a file. It keeps only a checksum of the header."""
    base, crc = LENGTH.size + len(header), checksums.crc32(header)

    def verify(run: Verification) -> None:
        run.unchanged(run.read(0, base)[LENGTH.size :], crc, "the header")
        run.checked("header")
        if "" in table.names:
            run.warn("a tensor has an empty name")
        run.finish()

    return verify


# Bytes read at once from a source.
_WINDOW = 4096
_NUMBERS = {
    kind: struct.Struct(f"<{code}")
    for kind, code in zip(
        ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64"), "BbHhIiQqfd", strict=True
    )
}


class Cursor:
    """A position in private bytes of a file; every read advances it.

    Each method takes the `field` and its name in messages. It raises `TruncatedError` when the field does not fit,
    before it allocates anything.

    Parameters
    ----------
    data : bytes
        The header; with a `source`, its beginning.
    source : Source, optional
        Supplies the bytes after `data`, a window at a time.
    limits : Limits, optional
        With a source: bounds a field by ``max_header_bytes``.
    start : int
        Offset of `data` in the file.
    whole : str
        Name of the data in messages: "header" or "file".

    Attributes
    ----------
    position, end : int
        Offsets in the file: of the next field, and of the end.
    """

    __slots__ = ("_data", "_limits", "_source", "_start", "_whole", "end", "position")

    def __init__(
        self,
        data: bytes,
        source: Source | None = None,
        limits: Limits | None = None,
        *,
        start: int = 0,
        whole: str = "file",
    ) -> None:
        self._data = data
        self._source = source
        self._limits = limits
        self._start = self.position = start
        self._whole = whole
        self.end = start + len(data) if source is None else source.size

    @property
    def remaining(self) -> int:
        """Bytes from the position to the end."""
        return self.end - self.position

    def take(self, count: int, field: str, what: str) -> bytes:
        """Return the next `count` bytes."""
        at, end = self.position - self._start, self.position + count
        if end > self.end:
            raise cut_off(what, self.end, end, field=field, whole=f"the {self._whole}")
        if self._source is not None and not 0 <= at <= len(self._data) - count:
            if self._limits is not None:
                self._limits.check("max_header_bytes", count, f"size of {what}", offset=self.position)
            size = min(max(count, _WINDOW), self.remaining)
            self._data, self._start, at = self._source.pread(self.position, size), self.position, 0
        self.position = end
        return self._data[at : at + count]

    def skip(self, count: int) -> None:
        """Step over bytes known to exist, such as the data of a tensor."""
        self.position += count

    def number(self, kind: str, field: str, what: str) -> Any:
        """Return the next number, of kind u8, i8, ... u64, i64, f32 or f64."""
        number = _NUMBERS[kind]
        return number.unpack(self.take(number.size, field, what))[0]

    def count(self, kind: str, item_nbytes: int, field: str, what: str, limit: str | None = None) -> int:
        """Return the next number, the count of the items that follow, each of at least `item_nbytes` bytes.

        Raises `LimitError` when it exceeds the attribute `limit` of `Limits`.
        """
        offset = self.position
        count: int = self.number(kind, field, f"the {what}")
        if limit is not None and self._limits is not None:
            self._limits.check(limit, count, what, offset=offset)
        maximum = self.remaining // item_nbytes
        if count > maximum:
            raise too_many(what, count, maximum, field=field, offset=offset)
        return count

    def text(self, kind: str, field: str, what: str) -> str:
        """Return the next string: its length in bytes, a number of `kind`, then strict UTF-8."""
        length: int = self.number(kind, field, f"the length of {what}")
        at = self.position
        try:
            return self.take(length, field, what).decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{what} is not UTF-8 ({error.reason})", field=field, offset=at + error.start) from None

    def array(self, dtype: str, count: int, field: str, what: str) -> NDArray[Any]:
        """Return the next `count` numbers of a numpy dtype, shape (count,)."""
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize, field, what), dtype)
