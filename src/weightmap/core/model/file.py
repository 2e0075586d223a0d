"""The handle of an open model file, `TensorFile`."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from weightmap._messages import counted, escape, quoted
from weightmap.core import hooks
from weightmap.core.model import internals
from weightmap.core.native import access
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    A = TypeVar("A", bound=NDArray[Any])
    T = TypeVar("T", bound=np.generic)

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats import Content
    from weightmap.core.formats.amb import Tokenizer
    from weightmap.core.model.reports import Residency, VerifyReport
    from weightmap.core.model.typing import Advice, Embeddings, Pool
    from weightmap.core.table.table import Table, TensorInfo
    from weightmap.core.table.vocabulary import Vocabulary

_NO_SHARDS: Mapping[str, Any] = MappingProxyType({})


# Members that only the package needs are functions in model/internals.py.
class TensorFile(Mapping[str, Any]):
    """An open model file: a read-only mapping from tensor names to arrays that are views of the file.

    Obtained from `weightmap.open`. Iteration is in file order. The arrays keep the mapping alive: they remain valid
    after `close` and after the handle is gone. numpy lacks elements of less than a byte (float4, float6): such a tensor
    is its packed bytes, a uint8 array of one dimension; `info` has dtype and shape, `read` the values. Many threads
    may read from a handle at once. A handle that was opened by path can be pickled: the copy opens the path again, and
    raises `FileChangedError` if the file has changed. In mode "sealed", `multiprocessing` passes the memory itself to a
    new process, which opens and copies nothing.

    For a model in several files, `path` is the index's, `info` counts offsets within a shard, and `metadata` has the
    index's entries and the entries that all shards share.

    Attributes
    ----------
    format, layout : str
        Such as "embd" and "spec".
    path : str or None
        The path as given; None for a descriptor or a buffer.
    nbytes : int
        Size of the file, in bytes.

    Notes
    -----
    Every look-up first checks that the opened file still has its size and modification time, and raises
    `FileChangedError` if not. A file truncated in place *after* that faults the process that touches its pages
    (SIGBUS): replace model files by rename, as `save` does, or open with ``mode="copy"`` or, on Linux, "sealed".

    A handle keeps its file open, and goes on reading it after another file has taken its path. Arrays need no
    descriptor.
    """

    __slots__ = (
        "__weakref__",
        "_content",
        "_embeddings",
        "_metadata",
        "_options",
        "_quantisation",
        "_shards",
        "_source",
        "_sources",
        "_table",
        "_weights",
        "format",
        "layout",
    )

    def __init__(
        self,
        source: Source,
        format_: str,
        content: Content,
        options: Options,
        shards: Mapping[str, TensorFile] = _NO_SHARDS,
    ) -> None:
        self._source = source
        # All sources with tensor bytes; in a sharded model the first has only a name.
        self._sources: tuple[Source, ...] = (source, *content.sources) if content.sources else (source,)
        self._content = content
        self._table: Table = content.table
        self._options = options
        self._shards = shards
        self._metadata: Mapping[str, Any] | None = None
        self._embeddings: Embeddings | bool | None = False
        self._weights: TensorFile | None = None
        self._quantisation: str | None = None
        self.format: str = format_
        self.layout: str = content.layout

    def __getitem__(self, name: str) -> NDArray[Any] | Any:
        source = self._source
        try:
            source.check_unchanged()
            table = self._table
            i = table.find(name)
            if i >= 0:
                dtype, shape, offset, nbytes, row = table.place(i)
                if row is None:
                    return source.array(dtype.loaded, shape, offset, nbytes)  # type: ignore[arg-type] # see `place`
                return row.array()
        except TensorFileError as error:
            raise error.located(path=source.name, format=self.format) from None
        raise internals.not_found(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the tensor called `name`, or `default` when there is none."""
        try:
            present = name in self
        except TypeError:  # not hashable, so no name
            present = False
        return self[name] if present else default

    def __contains__(self, name: object) -> bool:
        internals.check_index(self)
        return self._table.find(name) >= 0

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[str]:
        internals.check_index(self)
        return iter(self._table.names)

    def values(self) -> ValuesView[Any]:
        """Return a view of all tensors, in file order."""
        return internals.Values(self)

    def items(self) -> ItemsView[str, Any]:
        """Return a view of all pairs of name and tensor, in file order."""
        return internals.Items(self)

    @property
    def path(self) -> str | None:
        """The path as given; None for a descriptor or a buffer."""
        return self._source.path

    @property
    def nbytes(self) -> int:
        """Size of the file, in bytes; for a model in several files, their total."""
        return sum(source.size for source in self._sources)

    @property
    def is_stable(self) -> bool:
        """Whether nothing outside this process can change the tensors or make them fault.

        True for copies (modes "copy" and "sealed"), descriptors of sealed memory, and `bytes`.
        """
        internals.check_open(self)
        return all(source.is_stable for source in self._sources)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the file: a read-only mapping, empty if there is none."""
        metadata = self._metadata
        if metadata is None:
            try:
                metadata = self._metadata = MappingProxyType(self._content.load_metadata())
            except TensorFileError as error:
                raise error.located(path=self._source.name, format=self.format) from None
        return metadata

    @property
    def shards(self) -> Mapping[str, TensorFile]:
        """The files of a model in several files, by name; empty for a single file."""
        return dict(self._shards)

    @property
    def has_metadata(self) -> bool:
        """Whether the file has metadata, even if empty: safetensors and BinTensors distinguish that from none."""
        return self._content.has_metadata

    @property
    def vocab(self) -> Vocabulary | None:
        """The vocabulary of the file, read at its first use, or None."""
        internals.check_open(self)
        return self._content.vocab

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The configuration of the model (AMB), else None."""
        return self._content.config

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer section (AMB), else None."""
        return self._content.tokenizer  # type: ignore[no-any-return]

    @property
    def embeddings(self) -> Embeddings | None:
        """Word vectors of a file with a vocabulary and one matrix that has a row for each token; else None."""
        return internals.embeddings_of(self)

    @property
    def weights(self) -> TensorFile:
        """The parameters of the model, under the names of the unquantised model: a handle like this one.

        Every function that takes a handle takes this one: ``wm.convert(f.weights, "model.gguf")``. `info` has the
        scheme and the stored bytes of a parameter. Both handles share their files: closing one closes both.

        If a checkpoint stores a quantised parameter as several tensors (AWQ, GPTQ, compressed-tensors, FP8 with
        scales, MXFP4 of gpt-oss, ModelOpt, bitsandbytes), the parameter is one `QuantizedTensor` over views of these,
        at the place of the first; they may lie in several files. Other tensors are as in ``f[name]``. The scheme comes
        from ``quantization_config`` in the ``config.json`` beside the file, in a part of it such as ``text_config``, or
        in the argument `config` of `open`, else from the files that older tools write beside the model. If none of
        these declares the model quantised, names and arrays are the file's.

        Raises
        ------
        FormatError
            When the configuration is damaged, or a parameter is stored twice. Looking up a parameter whose pieces are
            incomplete, damaged or contradict the configuration raises an error that names them.
        UnsupportedError
            For a method or variant that is not decoded, and for codes that no configuration explains. Codes are
            recognised by their type and the scales beside them, so that they never pass for a parameter.
        ClosedError
        """
        weights = self._weights
        if weights is None:
            internals.check_open(self)
            weights = self._weights = hooks.weights_of(self)
        return weights

    def info(self, name: str) -> TensorInfo:
        """Return name, dtype, shape, offset and size of a tensor, without touching its data.

        Raises
        ------
        TensorNotFoundError
        ClosedError
        """
        return internals.row_of(self, name).info(name)

    def infos(self) -> list[TensorInfo]:
        """Return the `TensorInfo` of every tensor, in file order, without touching any data."""
        return [row.info(name) for name, row in zip(self, internals.rows_of(self), strict=True)]

    if TYPE_CHECKING:

        @overload
        def read(
            self, name: str, dtype: type[T] | np.dtype[T], *, out: None = None, threads: int | None = None
        ) -> NDArray[T]: ...
        @overload
        def read(self, name: str, dtype: DTypeLike | None = ..., *, out: A, threads: int | None = None) -> A: ...
        @overload
        def read(
            self,
            name: str,
            dtype: DTypeLike | None = ...,
            *,
            out: NDArray[Any] | None = None,
            threads: int | None = None,
        ) -> NDArray[Any]: ...

    def read(
        self,
        name: str,
        dtype: DTypeLike | None = None,
        *,
        out: NDArray[Any] | None = None,
        threads: int | None = None,
    ) -> NDArray[Any]:
        """Return a tensor as a new dense array of the wanted dtype: widened, decoded or just copied.

        Unlike ``f[name]`` this copies: it reads and converts the file piece by piece, so a file that shrinks meanwhile
        raises an exception. Changes made to arrays in mode "cow" do not show here. Kernels such as
        `weightmap.kernels.bf16_to_f32` turn float16, bfloat16 and float8 into float32. They read the mapping once a
        look-up such as ``f[name]`` has made one: a file truncated in place faults then, as for such a look-up.

        Parameters
        ----------
        name : str
        dtype : dtype_like, optional
            Dtype of the result; short names such as "f16" work as in `convert`, and here mean float16. Ignored when
            `out` is given. Values convert as with `numpy.ndarray.astype`. By default float32; only float64, complex64
            and complex128, which float32 cannot hold, keep their types. Integers become float32 too, rounded if
            float32 lacks digits.
        out : ndarray, optional
            Filled in place and returned: an array of the tensor's shape, with any dtype and strides.
        threads : int, optional
            The most threads that share the work of a large tensor; one when not given.

        Returns
        -------
        ndarray
            A new array of the tensor's shape; or `out`.

        Raises
        ------
        TensorNotFoundError
        FileChangedError
            When the file has changed since it was opened.
        LimitError
            When the result is larger than `Limits.max_copy_bytes`, or than numpy can count.
        ValueError
            When `out` has another shape, or is read-only.
        TypeError
            When `out` is not an array.
        ClosedError
        UnsupportedError
            For codes of a quantised parameter, unless `dtype` is their own type: `weights` has the parameter. Codes are
            known by their type and the scales beside them, or by the configuration of the model.
        """
        from weightmap.core.model.codes import check_readable  # noqa: PLC0415 - views need none of it
        from weightmap.core.model.reading import read  # noqa: PLC0415 - views need none of it

        internals.detach_index(self)
        row = internals.dense_row(self, name)
        try:
            check_readable(self, name, row, dtype if out is None else access.given_array(out).dtype)
            return read(row, dtype, out, threads, self._options.limits, f"tensor {quoted(name)}")
        except TensorFileError as error:
            raise error.located(path=row.source.name, format=self.format) from None

    def prefetch(self, names: str | Sequence[str] | None = None) -> None:
        """Bring the pages of these tensors (default: all) into memory, in the background. Returns at once.

        Touching them later causes at most cheap page faults. One thread of the process does the work, and stops early
        when the handle is closed and no array is left. No effect on buffers and in mode "copy".

        Parameters
        ----------
        names : str or sequence of str, optional

        Raises
        ------
        TensorNotFoundError
        FileChangedError
            When the file has changed since it was opened.
        ClosedError
        """
        hooks.import_part("weightmap.plans.residency", "f.prefetch").prefetch(self, names)

    def advise(self, advice: Advice) -> None:
        """Tell the system how the tensors will be accessed from now on, for its read-ahead. Changes speed only.

        A pickled handle keeps the advice. No effect on buffers and objects in stores, in modes that copy, and on
        systems without such advice.

        Parameters
        ----------
        advice : {"random", "sequential", "normal"}
            "random" suits single rows of a large matrix on a disk, "sequential" one pass; "normal" lets the system
            decide.

        Raises
        ------
        ValueError
        ClosedError
        """
        if advice not in access.ADVICE:
            raise ValueError(f"advice is {advice!r}, expected one of {', '.join(access.ADVICE)}")
        internals.check_open(self)
        for source in self._sources:
            source.advise(advice)

    def residency(self, names: str | Sequence[str] | None = None) -> dict[str, Residency]:
        """Return the resident bytes and all bytes of each of these tensors (default: all), by name.

        Tensors that share a page each count their own part of it. No tensor is touched. Bytes in the memory of this
        process (mode "copy", buffers) count as resident.

        Parameters
        ----------
        names : str or sequence of str, optional

        Returns
        -------
        dict of str to Residency
            In each, ``resident`` and ``nbytes``.

        Raises
        ------
        TensorNotFoundError
        FileChangedError
            When the file has changed since it was opened.
        ClosedError
        OSError
            If the system does not tell: outside Linux, and for files that you neither own nor can write to.
        """
        by_name: dict[str, Residency]
        by_name = hooks.import_part("weightmap.plans.residency", "f.residency").residency(self, names)
        return by_name

    def release(self, names: str | Sequence[str] | None = None) -> int:
        """Give the pages of these tensors (default: all) back to the system; return how many bytes left memory.

        Arrays stay valid: touching them reads the file again. Pages stay if another process has mapped them, if their
        file system lies in memory (tmpfs), or if the program wrote to them through arrays of mode "cow". The system
        frees units of up to 2 MiB, and keeps a unit that other tensors share. No effect in modes "copy" and "sealed".

        Parameters
        ----------
        names : str or sequence of str, optional
            All when not given.

        Returns
        -------
        int

        Raises
        ------
        TensorNotFoundError
        FileChangedError
            When the file has changed since it was opened.
        ClosedError
        """
        released: int = hooks.import_part("weightmap.plans.residency", "f.release").release(self, names)
        return released

    def pool(self, budget: int, *, direct: bool | None = None, threads: int | None = None) -> Pool:
        """Return a pool that keeps tensors in its own memory, within a budget: for a model larger than memory.

        ``with f.pool(8 << 30) as pool, pool.hold("layers.0.experts.w1", 5) as w: ...``: a held tensor is in memory.
        Once released, it stays there until another tensor needs its room. See `weightmap.pool.pool.Pool`.

        Parameters
        ----------
        budget : int
            The most bytes of memory that its tensors take, in whole pages.
        direct : bool, optional
            Read past the page cache: by O_DIRECT if the file system has it, otherwise by giving pages back after each
            read. Default: if model and pool together exceed the free memory, or the pool has room for a whole model
            that is not in the page cache.
        threads : int, optional
            The most threads that prefetch; 4 when not given, 16 from a store.

        Raises
        ------
        ClosedError
        """
        pool: Pool = hooks.import_part("weightmap.pool.pool", "f.pool").Pool(
            self, budget, direct=direct, threads=threads
        )
        return pool

    def verify(self, *, progress: Callable[[int, int], None] | None = None, threads: int | None = None) -> VerifyReport:
        """Read the whole file once (by pread, with flat memory); check its structure, and its checksums if it has any.

        Without checksums in the format, a file that passes is well-formed, but values of its tensors may have changed:
        the report says so (`VerifyReport.structure_only`). Bytes without a checksum are not read again if opening with
        ``trust=`` has hashed them.

        Parameters
        ----------
        progress : callable, optional
            Called as ``progress(done, total)``, in bytes.
        threads : int, optional
            The most threads that share the reading; by default one for each CPU of this process.

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
            When the file has changed since it was opened.
        ClosedError
        """
        from weightmap.core.model.reports import verify  # noqa: PLC0415 - opening does not need it

        return verify(self, progress, threads)

    def fileno(self) -> int:
        """Return the descriptor of the sealed memory that the file was copied to, in mode "sealed".

        ``weightmap.open(descriptor, mode="sealed")`` opens the same memory in this process, or in another one that has
        the descriptor or a duplicate: a forked child, a program started with ``pass_fds=``, a receiver of
        `socket.send_fds`. Closing this handle closes it; duplicates live on.

        Raises
        ------
        io.UnsupportedOperation
            In any other mode, and for a model of several files.
        ClosedError
        """
        return internals.shared_descriptor(self)

    def close(self) -> None:
        """Release the file. Idempotent; never raises; arrays obtained before remain valid."""
        source = self._source
        source.close()
        if self._shards or len(self._sources) > 1:
            every: tuple[Any, ...] = (*self._sources, *self._shards.values())
            for each in every:
                each.close()
        # Table and vocabulary would keep the mapping alive.
        closed: Any = internals.Closed(source, len(self._table))
        self._table = self._content = closed
        self._embeddings = False
        self._weights = None

    def __enter__(self) -> Self:
        internals.check_open(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed " if self._source.closed else ""
        kind = counted(len(self._shards), "shard") if self._shards else f"{self.format}/{self.layout}"
        count = counted(len(self), "tensor")
        return f"<{state}TensorFile {escape(repr(self._source.name))}: {kind}, {count}, {self.nbytes} bytes>"

    # Mapping compares all values, which makes no sense for arrays.
    def __eq__(self, other: object) -> bool:
        return True if self is other else NotImplemented

    def __hash__(self) -> int:
        return id(self) >> 4
