"""Opening a model file: `open` and the handle that it returns, `TensorFile`."""

from __future__ import annotations

import os
import sys
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from weightmap.formats import Content, HEAD, Options, Verification, by_name, identify
from weightmap.dtypes import numpy_dtype
from weightmap.errors import FileChangedError, TensorFileError, TensorNotFoundError
from weightmap.limits import Limits
from weightmap.source import MODES, Source
from weightmap.table import Rules, Table, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import DTypeLike, NDArray

    from weightmap.embeddings import Embeddings
    from weightmap.strings import Vocabulary
    from weightmap.table import Row

__all__ = ["TensorFile", "VerifyReport", "load", "open"]

_VERIFY = ("none", "header", "full")
# Fewer tensors than this are made one by one.
_RUN = 4


class VerifyReport(NamedTuple):
    """What `TensorFile.verify` found. A file that fails raises instead.

    Attributes
    ----------
    path : str or None
    format, layout : str
    checks : tuple of str
        What was checked, in words.
    warnings : tuple of str
        What is odd but legal.
    nbytes : int
        Bytes read.
    """

    path: str | None
    format: str
    layout: str
    checks: tuple[str, ...]
    warnings: tuple[str, ...]
    nbytes: int


class TensorFile(Mapping[str, Any]):
    """An open model file: a read-only mapping from tensor names to arrays that are views of the file.

    Obtained from `weightmap.open`. Iteration is in file order. The arrays keep the mapping alive by themselves: they remain valid
    after `close` and after the handle is gone. A handle may be read from many threads at once, and pickled when it was opened by
    path (the copy opens the path again, and raises `FileChangedError` when the file is no longer the same).

    Attributes
    ----------
    format, layout : str
        Such as "embd" and "spec".
    path : str or None
        As it was given; None for a descriptor or a buffer.
    nbytes : int
        Size of the file.

    Notes
    -----
    Every look-up first asks whether the opened file still has its size and modification time, and raises `FileChangedError` if not. A
    file that is truncated in place *after* that faults the process that touches its pages (SIGBUS): replace model files by rename, as
    `save` does, or open with ``mode="copy"``.
    """

    __slots__ = ("__weakref__", "_content", "_embeddings", "_metadata", "_options", "_reopen", "_source", "_table", "format", "layout")

    def __init__(self, source: Source, format_: str, content: Content, options: Options, reopen: dict[str, Any]) -> None:
        self._source = source
        self._content = content
        self._table: Table = content.table
        self._options = options
        self._reopen = reopen
        self._metadata: Mapping[str, Any] | None = None
        self._embeddings: Embeddings | None | bool = False
        self.format = format_
        self.layout = content.layout

    # ------------------------------------------------------------------------------------------------- mapping
    def __getitem__(self, name: str) -> Any:
        source = self._source
        try:
            source.check_unchanged()
            table = self._table
            i = table.find(name)
            if i >= 0:
                dtype, shape, offset, nbytes = table.row(i)
                return source.array(dtype.numpy or numpy_dtype(dtype), shape, offset, nbytes)
        except TensorFileError as error:
            raise error.located(path=source.name, format=self.format) from None
        raise self._not_found(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the tensor called `name`, or `default` when there is none."""
        return self[name] if name in self else default

    def __contains__(self, name: object) -> bool:
        self._check_open()
        return self._table.find(name) >= 0

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[str]:
        self._check_open()
        return iter(self._table.names)

    def values(self) -> ValuesView[Any]:
        """Return a view of all tensors, in file order."""
        return _Values(self)

    def items(self) -> ItemsView[str, Any]:
        """Return a view of all pairs of name and tensor, in file order."""
        return _Items(self)

    # What a model of several files does otherwise: see sharded.py.
    def _locate(self, name: str) -> tuple[Source, Row]:
        """Return where a tensor lies."""
        self._check_open()
        i = self._table.find(name)
        if i < 0:
            raise self._not_found(name)
        try:
            return self._source, self._table.row(i)
        except TensorFileError as error:
            raise error.located(path=self._source.name, format=self.format) from None

    def _located(self) -> Iterator[tuple[Source, Row]]:
        """Yield where every tensor lies, in file order; cheaper than looking each of them up."""
        source = self._source
        try:
            for row in self._table.rows():
                yield source, row
        except TensorFileError as error:
            raise error.located(path=source.name, format=self.format) from None

    def _arrays(self) -> Iterator[NDArray[Any]]:
        """Yield all tensors."""
        self.check_unchanged()
        source = self._source
        for dtype, shape, offset, nbytes, count, step in self._table.runs():
            try:
                stored = dtype.numpy or numpy_dtype(dtype)
            except TensorFileError as error:
                raise error.located(path=source.name, format=self.format) from None
            if count >= _RUN and shape:
                # Rows of one shape at equal distances are the rows of one strided array: iterating it costs a fifth.
                yield from source.array_of(count, step, stored, shape, offset, nbytes)
            else:
                for k in range(count):
                    yield source.array(stored, shape, offset + k * step, nbytes)

    def _check_open(self) -> None:
        if self._source.closed:
            self._source.fail_closed()

    def _not_found(self, name: object) -> TensorNotFoundError:
        import difflib  # noqa: PLC0415 - 3 ms, for messages only

        text = str(name)
        # Bounded: comparing with every one of a million names would take minutes.
        near = [other for other in self if abs(len(other) - len(text)) < 4][:1000]  # noqa: PLR2004
        close = difflib.get_close_matches(text, near, n=3)
        hint = f"; close: {', '.join(map(repr, close))}" if close else ""
        message = f"no tensor is called {name!r} among {len(self)}{hint}"
        return TensorNotFoundError(message, path=self._source.name, format=self.format)

    # ----------------------------------------------------------------------------------------------- properties
    @property
    def path(self) -> str | None:
        """The path as it was given; None for a descriptor or a buffer."""
        return self._source.path

    @property
    def nbytes(self) -> int:
        """Size of the file, in bytes."""
        return self._source.size

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the file: a read-only mapping, empty where there is none."""
        metadata = self._metadata
        if metadata is None:
            metadata = self._metadata = MappingProxyType(self._content.load_metadata())
        return metadata

    @property
    def vocab(self) -> Vocabulary | None:
        """The vocabulary, where the file has one. Nothing of it is read before it is used."""
        return self._content.vocab

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The configuration of the model (AMB), else None."""
        return self._content.config

    @property
    def tokenizer(self) -> Any:
        """The tokenizer section (AMB), else None."""
        return self._content.tokenizer

    @property
    def embeddings(self) -> Embeddings | None:
        """Word vectors: of a file with a vocabulary and one matrix that has a row for each of its tokens; else None."""
        if self._embeddings is False:
            from weightmap.embeddings import Embeddings  # noqa: PLC0415 - embeddings stand on a file, not under it

            self._embeddings = Embeddings.of(self)
        return self._embeddings  # type: ignore[return-value]

    # ---------------------------------------------------------------------------------------------- information
    def info(self, name: str) -> TensorInfo:
        """Return name, dtype, shape, offset and bytes of a tensor, without touching its data.

        Raises
        ------
        TensorNotFoundError
        """
        return _info(name, self._locate(name)[1])

    def infos(self) -> list[TensorInfo]:
        """Return the `TensorInfo` of every tensor, in file order, without touching any data."""
        return [_info(name, row) for name, (_, row) in zip(self, self._located(), strict=True)]

    # -------------------------------------------------------------------------------------------------- reading
    def read(
        self, name: str, dtype: DTypeLike = np.float32, *, out: NDArray[Any] | None = None, threads: int | None = None
    ) -> NDArray[Any]:
        """Return a tensor as a new dense array of the wanted dtype.

        Unlike ``f[name]`` this copies: it reads the file (never through the mapping, so a file that shrinks meanwhile is an exception) and
        converts, piece by piece.

        Parameters
        ----------
        name : str
        dtype : dtype_like
            Of the result; ignored when `out` is given. Values are converted as `numpy.ndarray.astype` converts them.
        out : ndarray, optional
            Filled in place and returned; of the tensor's shape, of any dtype and strides.
        threads : int, optional
            Number of threads that may share the work. One is used today.

        Raises
        ------
        TensorNotFoundError
        ValueError
            When `out` has another shape, or cannot be written.
        """
        del threads
        source, row = self._locate(name)
        if out is None:
            self._options.limits.check("max_copy_bytes", row.nbytes, f"size of tensor {name!r}")
            out = np.empty(row.shape, dtype)
        elif out.shape != row.shape:
            msg = f"out has shape {out.shape}, tensor {name!r} has {row.shape}"
            raise ValueError(msg)
        stored = numpy_dtype(row.dtype)
        flat = out.reshape(-1) if out.flags.c_contiguous else None
        target = np.empty(out.size, out.dtype) if flat is None else flat
        position = 0
        for chunk in source.chunks(row.offset, row.nbytes):
            piece = np.frombuffer(chunk, stored)
            target[position : position + len(piece)] = piece
            position += len(piece)
        if flat is None:
            out[...] = target.reshape(out.shape)
        return out

    def prefetch(self, names: Sequence[str] | None = None) -> None:
        """Ask the kernel to bring the pages of these tensors (default: all) into memory. Returns at once.

        Parameters
        ----------
        names : sequence of str, optional

        Raises
        ------
        TensorNotFoundError
        """
        self._check_open()
        located = self._located() if names is None else map(self._locate, names)
        wanted: dict[Source, list[tuple[int, int]]] = {}
        for source, row in located:
            wanted.setdefault(source, []).append((row.offset, row.nbytes))
        for source, ranges in wanted.items():
            source.will_need(ranges)

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check everything that can be checked, reading each byte of the file once (by pread, with flat memory).

        Parameters
        ----------
        progress : callable, optional
            Called as ``progress(done, total)``, in bytes, from 0 to the size of the file.

        Returns
        -------
        VerifyReport

        Raises
        ------
        ChecksumError
            When a checksum does not match.
        FormatError
            When anything else is wrong.
        FileChangedError
            When the file is no longer the one that was opened.
        """
        self._check_open()
        source = self._source
        try:
            source.check_unchanged()
            run = Verification(source, self._options, progress)
            self._content.verify(run)
        except TensorFileError as error:
            raise error.located(path=source.name, format=self.format) from None
        if progress is not None and run.done != source.size:
            progress(source.size, source.size)
        warnings = (*self._content.warnings, *run.warnings)
        return VerifyReport(source.path, self.format, self.layout, tuple(run.checks), warnings, run.done)

    def check_unchanged(self) -> None:
        """Raise `FileChangedError` when the file's size or modification time is no longer that of when it was opened."""
        self._check_open()
        self._source.check_unchanged()

    # -------------------------------------------------------------------------------------------------- closing
    def close(self) -> None:
        """Let go of the file. Idempotent; never raises; arrays obtained before remain valid."""
        source = self._source
        source.close()
        # The table and the vocabulary look into the mapping too.
        self._table = _ClosedTable(source, len(self._table))
        self._content = Content(self.layout, self._table, load_metadata=source.fail_closed, verify=source.fail_closed)

    def __enter__(self) -> TensorFile:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._source.absolute is None:
            msg = f"a handle on {self._source.name} cannot be pickled: only one opened by path can"
            raise TypeError(msg)
        return _reopen, (self._source.absolute, self._reopen, self._source.identity)

    def __repr__(self) -> str:
        state = "closed " if self._source.closed else ""
        count = f"{len(self)} tensor{'' if len(self) == 1 else 's'}"
        return f"<{state}TensorFile {self._source.name!r}: {self.format}/{self.layout}, {count}, {self.nbytes} bytes>"

    # Mapping defines these by comparing all values, which for arrays means nothing.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class _ClosedTable(Table):
    """What a closed handle has for a table: its length, and a `ClosedError` for everything else."""

    __slots__ = ("_source",)

    def __init__(self, source: Source, count: int) -> None:
        super().__init__(count, Rules((), b"", 0, 0))
        self._source = source

    def _fail(self, *_: Any) -> NoReturn:
        self._source.fail_closed()

    find = row = runs = _load_names = _fail  # type: ignore[assignment]


class _Values(ValuesView[Any]):
    __slots__ = ()
    _mapping: TensorFile

    def __iter__(self) -> Iterator[Any]:
        self._mapping._check_open()  # noqa: SLF001 - the same module
        return self._mapping._arrays()  # noqa: SLF001


class _Items(ItemsView[str, Any]):
    __slots__ = ()
    _mapping: TensorFile

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return zip(self._mapping, self._mapping._arrays(), strict=True)  # noqa: SLF001


def _info(name: str, row: Row) -> TensorInfo:
    return TensorInfo(name, row.dtype.name, row.shape, row.offset, row.nbytes)


def _reopen(path: str, options: dict[str, Any], identity: tuple[int, ...]) -> TensorFile:
    source = Source.from_path(path, _mode(options["mode"]))
    if source.identity != identity:
        source.close()
        msg = "the file is no longer the one that the pickled handle was opened on"
        raise FileChangedError(msg, path=path)
    return _open_source(source, options)


# `os.environ.get` encodes the name and raises and catches a KeyError: 3 us of the 30 that opening a file takes. The dictionary
# behind it is the same one and always up to date; where there is none, or one of another kind, the public one serves.
_environment: Any = getattr(os.environ, "_data", None)
_MODE_VARIABLE: Any = b"WEIGHTMAP_MODE"
if type(_environment) is not dict or os.name == "nt":
    _environment, _MODE_VARIABLE = os.environ, "WEIGHTMAP_MODE"


def _mode(mode: str | None) -> str:
    """Return the mode to open in: as asked, else as the environment says."""
    chosen = mode if mode is not None else _environment.get(_MODE_VARIABLE) or "mmap"
    if type(chosen) is bytes:
        chosen = os.fsdecode(chosen)
    if chosen not in MODES:
        msg = f"mode is {chosen!r}, expected one of {', '.join(MODES)}"
        raise ValueError(msg)
    return chosen


def open(  # noqa: A001 - the name of the interface, as of `gzip.open`
    source: Any,
    *,
    format: str | None = None,  # noqa: A002
    mode: str | None = None,
    verify: str = "header",
    strict: bool = True,
    limits: Limits | None = None,
) -> TensorFile:
    """Open a model file in place.

    Parameters
    ----------
    source : str, bytes, os.PathLike, int, file object or buffer
        A path; a file descriptor or a binary file object (not closed, its position not moved); or any contiguous bytes-like object that
        holds a file. A `bytes` object is a path when a file of that name exists, or when it could only be a path. A directory or
        an ``*.index.json`` opens a sharded model as one.
    format : str, optional
        One of `formats()`; by default the content tells.
    mode : {"mmap", "cow", "copy"}, optional
        "mmap": arrays are read-only views of a shared mapping. "cow": of a private copy-on-write mapping, writable; the file never
        changes. "copy": the file is read into memory. Default: the environment variable ``WEIGHTMAP_MODE``, else "mmap"; the default falls
        back to reading, with a log message, where the file system cannot map.
    verify : {"header", "full", "none"}
        "header": the index is validated. "full": also all checksums, as by `TensorFile.verify`. "none": only what is needed to find
        the index; each tensor is still checked when it is looked up.
    strict : bool
        False lets harmless defects pass (holes, overlaps, trailing bytes, reserved fields); `TensorFile.verify` lists them.
    limits : Limits, optional
        Bounds on what the file may ask for.

    Returns
    -------
    TensorFile

    Raises
    ------
    FormatError
        When the file is damaged, unknown or unsupported: one of its subclasses.
    NotRegularFileError
        For a FIFO, socket or device.
    OSError
        As the system reports it: no such file, no permission.
    TypeError, ValueError
        When an argument is not one of the above.

    Examples
    --------
    >>> import weightmap as wm
    >>> wm.save("model.weights", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    >>> with wm.open("model.weights") as f:
    ...     w = f["w"]
    >>> w[1]
    array([3., 4., 5.], dtype=float32)
    """
    chosen = _mode(mode)
    if verify not in _VERIFY:
        msg = f"verify is {verify!r}, expected one of {', '.join(_VERIFY)}"
        raise ValueError(msg)
    if format is not None:
        by_name(format)
    limits = _LIMITS if limits is None else limits
    options = {"format": format, "mode": mode, "verify": verify, "strict": strict, "limits": limits}
    path = _as_path(source)
    if path is not None and path.endswith(".index.json"):
        return _open_sharded(path, options)
    try:
        opened = _source(source, path, chosen)
    except IsADirectoryError:
        if path is None:
            raise
        return _open_sharded(path, options)
    return _open_source(opened, options)


_LIMITS = Limits()


def _open_source(source: Source, options: dict[str, Any]) -> TensorFile:
    """Recognise and parse what was opened, with the options of `open`."""
    verify, limits, explicit = options["verify"], options["limits"], options["mode"] is not None
    parsing = Options(verify != "none", options["strict"], limits)
    try:
        source.prepare(explicit=explicit, limits=limits)
        head = source.pread(0, min(source.size, HEAD))
        found = identify(source, head) if options["format"] is None or not head else by_name(options["format"])
        try:
            content = found.parse(source, head, parsing)
        except TensorFileError as error:
            raise error.located(path=None, format=found.name) from None
        vocab = content.vocab
        if vocab is not None:
            vocab.path, vocab.format = source.name, found.name
        file = TensorFile(source, found.name, content, parsing, options)
        if verify == "full":
            file.verify()
    except TensorFileError as error:
        source.close()
        raise error.located(path=source.name) from None
    except BaseException:
        source.close()
        raise
    return file


def _open_sharded(path: str, options: dict[str, Any]) -> TensorFile:
    from weightmap.sharded import open_sharded  # noqa: PLC0415 - sharded models stand on files, not under them

    return open_sharded(path, options)


def _as_path(source: Any) -> str | None:
    """Return the path that `source` is, or None when it is something else."""
    if type(source) is str:
        return source
    if isinstance(source, bytes):
        # Either a path or the content of a file. Every format has a zero byte among its first ones, and no path has any.
        if b"\0" in source or not source or not (os.path.exists(source) or _like_path(source)):  # noqa: PTH110 - bytes
            return None
        return os.fsdecode(source)
    if isinstance(source, (str, os.PathLike)):
        return os.fsdecode(os.fspath(source))
    return None


def _like_path(source: bytes) -> bool:
    """Whether bytes that name no file are more likely a wrong path than the content of a damaged file."""
    parent = os.path.dirname(source)  # noqa: PTH120 - bytes
    return bool(parent) and source.isascii() and os.path.isdir(parent)  # noqa: PTH112


def _source(source: Any, path: str | None, mode: str) -> Source:
    if path is not None:
        return Source.from_path(path, mode)
    if isinstance(source, int) and not isinstance(source, bool):
        return Source.from_fd(source, mode)
    if hasattr(source, "read") and not isinstance(source, memoryview) and not _is_mmap(source):
        return Source.from_object(source, mode)
    try:
        return Source.from_buffer(source, mode)
    except TypeError:
        if not isinstance(source, (bytes, bytearray, memoryview, np.ndarray)):
            msg = f"source is a {type(source).__name__}, expected a path, a file descriptor, a binary file object or a bytes-like object"
            raise TypeError(msg) from None
        raise


def _is_mmap(source: Any) -> bool:
    mmap = sys.modules.get("mmap")
    return mmap is not None and isinstance(source, mmap.mmap)


def load(source: Any, **open_options: Any) -> dict[str, Any]:
    """Open a file and return all its tensors as a dictionary of views, in file order.

    The views keep the mapping alive; nothing is copied (unless ``mode="copy"``).

    Parameters
    ----------
    source, **open_options
        As of `open`.

    Examples
    --------
    >>> import weightmap as wm
    >>> wm.save("model.safetensors", {"b": np.zeros(2, np.float32)})
    >>> wm.load("model.safetensors")
    {'b': array([0., 0.], dtype=float32)}
    """
    with open(source, **open_options) as file:
        return dict(file.items())


