"""`plan`: turns the caller's wants into a `ReadPlan`, the bytes that one reader needs from each file, in order."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from weightmap._messages import counted, escape, quoted
from weightmap.checkpoints.handle import stored_model
from weightmap.checkpoints.weights import Components
from weightmap.core.arguments import as_float, names_moved
from weightmap.core.bytes import Range
from weightmap.core.bytes.geometry import ascending
from weightmap.core.bytes.memory import headroom
from weightmap.core.bytes.source import ROUND_TRIP, Source
from weightmap.core.dtypes import numpy_dtype
from weightmap.core.model.file import TensorFile
from weightmap.core.model.internals import check_open, check_unchanged, name_of, not_found, parts_of
from weightmap.core.model.opening import Model, as_handle
from weightmap.core.native import files as native_files
from weightmap.core.table import INT64_MAX
from weightmap.errors import PlanError, TensorFileError
from weightmap.plans.delivery import Check, FileReader, FileShare, PageRelease, RunOptions, check_when, mapped
from weightmap.plans.pages import file_system_of
from weightmap.plans.places import Heads
from weightmap.plans.residency import Spans, spans_of
from weightmap.plans.wants import (
    Indices,
    Shard,
    Slices,
    arranged,
    at_least,
    axes_of,
    checked_rank,
    divided,
    ranges_of,
    resolve_wants,
)
from weightmap.plans.warming import share, warm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from weightmap.core.table.table import Row
    from weightmap.plans.explaining import PlanReport
    from weightmap.plans.wants import Wants

# Most bytes of a read per wanted byte, by default.
_MAX_OVER_READ = 1.1
_WAYS = ("auto", "map", "read")
# The only index of a wholly wanted tensor.
_WHOLE = (None,)
# Bytes of a mapping to prefetch at once.
_WINDOW = 64 << 20


@dataclass(slots=True, frozen=True, kw_only=True)
class PlanOptions:
    """The arguments of `weightmap.plan`, checked.

    Attributes
    ----------
    owned : bool
        Whether the plan opened its handle, and must close it.
    divided : bool
        Whether whole tensors are divided among the ranks.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    gap: int
    max_over_read: float | None
    chunk: int
    budget: int | None
    owned: bool
    divided: bool


class ReadPlan:
    """The bytes of a model's files that one reader needs, in the order of the files. `weightmap.plan` makes a plan.

    Making a plan reads no tensor, except the first bytes and the mask of a partly wanted quantised tensor. A plan keeps
    its handle open; as a context manager it closes a handle that `weightmap.plan` opened.

    Attributes
    ----------
    file : TensorFile
        The model.
    spans : Spans
        The places of all tensors of the model, by the numbers of `parts`.
    rank, world_size, local_rank, local_world_size, gap, max_over_read, chunk, budget
        As given, or the defaults.
    """

    def __init__(
        self, spans: Spans, numbers: NDArray[np.int64], indices: Mapping[int, Any], options: PlanOptions
    ) -> None:
        self.file: TensorFile = spans.model
        self.rank: int = options.rank
        self.world_size: int = options.world_size
        self.local_rank: int = options.local_rank
        self.local_world_size: int = options.local_world_size
        self.gap: int = options.gap
        self.max_over_read: float = options.max_over_read or _MAX_OVER_READ
        # Gap and over-read within a tensor: in a store, reading a gap is faster than another request.
        in_store = options.max_over_read is None and {source.store for source in spans.sources} != {None}
        self._within = (ROUND_TRIP, math.inf) if in_store else (self.gap, self.max_over_read)
        self.chunk: int = options.chunk
        self.budget: int | None = options.budget
        self._owned, self._divided = options.owned, options.divided
        self.spans: Spans = spans
        self._numbers, self._indices = numbers, indices
        in_part: Iterable[int] = indices
        if isinstance(indices, Slices):
            self._begins, self._ends, in_part = indices.begins, indices.ends, indices.others
            self._nbytes = indices.nbytes
        else:
            self._begins, self._nbytes = spans.begin[numbers], spans.nbytes[numbers]
            self._ends = self._begins + self._nbytes
        # Rows and ranges of partly wanted tensors, unless `Slices` computes them; heads of quantised tensors.
        self._rows: dict[int, Row] = {}
        self._heads: Heads | None = None
        self._ranges = {number: self._ranges_of(number, indices[number]) for number in in_part}
        self._files, self._starts, self._stops, self._needed = self._joined_ranges(in_store=in_store)

    def _joined_ranges(self, *, in_store: bool) -> tuple[NDArray[Any], ...]:
        """Return file, start and stop of each read, and the number of its wanted bytes."""
        spans = self.spans
        owners, begins, ends = self._wanted_ranges()
        reads = self._join(spans.file[owners], begins, ends)
        if in_store and len(owners) > len(self._numbers):
            # Join the ranges of each tensor, then the ranges of each file. Wanted bytes never count gaps.
            order = np.lexsort((begins, owners))
            columns = owners[order].astype(np.uint32), begins[order], ends[order]
            owners, begins, ends, _ = native_files.join_ranges(*columns, gap=ROUND_TRIP, max_over_read=math.inf)
            files = spans.file[owners]
            order = np.lexsort((begins, files))
            reads = (*self._join(files[order], begins[order], ends[order])[:3], reads[3])
        # Ranges that only decoding reads; their files have the last numbers.
        side = spans.side_ranges(self._numbers)
        if not len(side):
            return reads
        return tuple(map(np.concatenate, zip(reads, self._join(*side.T.copy()), strict=True)))

    def _join(
        self, files: NDArray[Any], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[Any], ...]:
        return native_files.join_ranges(files, begins, ends, gap=self.gap, max_over_read=self.max_over_read)

    def _ranges_of(self, number: int, key: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        row = self._rows.get(number)
        if row is None:
            row = self._rows[number] = self.spans.of(number)
        if row.dtype.quantized:
            self._heads = self._heads or Heads()
            row = self._heads.of(number, row)
        try:
            return ranges_of(row, key, self.spans.name(number))
        except TensorFileError as error:
            raise error.located(path=row.source.name, format=self.file.format) from None

    def _wanted_ranges(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Return the tensor, start and stop of every wanted range, in the order of the files."""
        whole, parts = ~np.isin(self._numbers, list(self._ranges)), []
        if isinstance(self._indices, Slices) and self._indices.are_disjoint:
            parts.append(self._indices.disjoint())
        if not parts and not self._ranges:
            return self._numbers, self._begins, self._ends
        parts.append((self._numbers[whole], self._begins[whole], self._ends[whole]))
        for number, (starts, stops) in self._ranges.items():
            parts.append((np.full(len(starts), number), starts, stops))
        owners, begins, ends = map(np.concatenate, zip(*parts, strict=True))
        order = np.lexsort((begins, self.spans.file[owners]))
        return owners[order], begins[order], ends[order]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the planned tensors, in file order."""
        return tuple(self.spans.names(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def reads(self) -> tuple[tuple[str | None, int, int], ...]:
        """Path, offset and bytes of each read, in file order, without overlap. The path of a buffer is None."""
        paths = [source.path for source in self.spans.sources]
        sizes = self._stops - self._starts
        columns = (self._files.tolist(), self._starts.tolist(), sizes.tolist())
        return tuple((paths[file], start, size) for file, start, size in zip(*columns, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of all reads, including the gaps that they bridge."""
        return int((self._stops - self._starts).sum())

    @property
    def wanted_nbytes(self) -> int:
        """Bytes of the wanted elements; bytes that several tensors share count once."""
        return int(self._needed.sum())

    def _memory_limit(self) -> int | None:
        """Return the bytes of memory that may be filled; None if unknown."""
        if self.budget is not None:
            return self.budget
        available = headroom().limit
        return None if available is None else available // self.local_world_size

    def warm(self, threads: int | None = None, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Bring the bytes of all reads into the page cache, and wait for them.

        Local ranks with the same plan divide the reads. (If `rank` and `world_size` chose whole tensors, these are the
        rank's share already.) A plan larger than its budget is warmed from its beginning; `run` prefetches the rest.

        Parameters
        ----------
        threads : int, optional
            The most threads that read at once; 8 when not given.
        progress : callable, optional
            Called as ``progress(done, total)``, in bytes.

        Returns
        -------
        int
            Bytes that were cold and are in memory now; all bytes if the system does not tell.

        Raises
        ------
        TruncatedError, FileChangedError
            When a file changed.
        """
        check_unchanged(self.file)
        reads = (self._files, self._starts, self._stops)
        if not self._divided:
            reads = share(reads, self.local_rank, self.local_world_size)
        return warm(self.spans.sources, reads, self.chunk, self._memory_limit(), threads, progress)

    def run(
        self,
        how: str = "auto",
        *,
        release: bool = False,
        direct: bool = False,
        verify: Check = False,
        into: Callable[[str, int], NDArray[np.uint8] | None] | None = None,
        cut: Callable[[str, Any], Iterable[Any]] | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Yield name and tensor, or its wanted part, in file order: the same as ``file[name][index]``.

        Memory stays flat: a read takes at most a chunk, or one larger tensor, and prefetching stays within the budget.
        A plan that needs more than the budget gives pages back as with `release`.

        Parameters
        ----------
        how : {"auto", "map", "read"}
            "map": arrays are views of the mapping. "read": arrays are read into new memory; tensors that are read
            together share a piece of it. "auto" reads on network and FUSE file systems, where touching a mapping may
            fail or crawl, and maps elsewhere.
        release : bool
            Give the pages of a tensor back to the system when the caller asks for the next one. Views stay valid:
            touching them reads the file again.
        direct : bool
            Read files past the page cache, and leave nothing of them there: arrays are in new memory. See
            `weightmap.open`.
        verify : bool or "last"
            Before yielding a tensor, check the checksums that cover it, if the file has any. Archives (.npz, PyTorch
            checkpoints) have a checksum for each entry. EMBD has one for all tensors, so that everything is read before
            the first tensor. "last" yields tensors unchecked while it computes their checksum, and checks it before the
            last one: the file is read once, and a run that ends without an error has yielded sound tensors. Other bytes
            under a checksum are read too.
        into : callable, optional
            ``into(name, nbytes)`` returns the memory for reading the next part of a dense tensor: a contiguous array of
            that many bytes, or None.
        cut : callable, optional
            ``cut(name, index)`` returns the indices of the pieces in which to yield a wanted part of a tensor, in the
            order of the file. The caller provides the memory for each piece.

        Raises
        ------
        PlanError
            When a tensor that must be read is larger than the budget.
        ChecksumError
            With `verify`, when a checksum does not match.
        TruncatedError, FileChangedError
            When a file changed.
        ValueError
            For another `how` or `verify`, and for `direct` with "map".
        """
        if how not in _WAYS:
            raise ValueError(f"how is {how!r}, expected one of {', '.join(_WAYS)}")
        check_when(verify)
        check_open(self.file)
        for source in self.spans.sources:
            source.check_unchanged()
        if direct and how == "map":
            raise ValueError("direct=True reads: how is 'map', expected 'read' or 'auto'")
        ways = ["read" if direct else self._way(source, how) for source in self.spans.sources]
        # The system reclaims mapped pages: a plan of one window needs no limit.
        limit = self.budget if "read" not in ways and self.nbytes <= _WINDOW else self._memory_limit()
        if limit is not None:
            self._check_limit(limit, ways, cut=cut is not None)
            release = release or self.nbytes > limit
        chunk = self.chunk if limit is None else min(self.chunk, max(limit, 1))
        window = _WINDOW if limit is None else min(_WINDOW, max(limit // 2, 1))
        return self._run(ways, RunOptions(release, direct, verify, into, cut, chunk, window))

    def parts(self) -> Iterator[tuple[Source, list[tuple[int, Any]], list[Range]]]:
        """Yield for each file its source, the numbers and indices of its wanted tensors, and its reads.

        An index of None means the whole tensor; a tensor of several parts comes several times.
        """
        for file, numbers in self.spans.by_file(self._numbers):
            parts: list[tuple[int, Any]] = [
                (number, key)
                for number in numbers.tolist()
                for key in (Indices.of(self._indices[number]) if number in self._indices else _WHOLE)
            ]
            yield self.spans.sources[file], parts, list(self._reads_of(file))

    def explain(self) -> PlanReport:
        """Return the cost of this plan, with advice: ``print(plan.explain())``.

        The report names the file systems of the files, their part in memory, the cost of touching them, their
        alignment, the memory that machine and control groups leave, and the choice of ``run("auto")``. No tensor is
        read; pages in memory are mapped for a moment, to count the page faults.

        Returns
        -------
        PlanReport
        """
        from weightmap.plans.explaining import explain  # noqa: PLC0415 - a plan needs none of it

        check_unchanged(self.file)
        reads = (self._files, self._starts, self._stops)
        arguments = (self.spans, self._numbers, self.spans.sources, reads, self.wanted_nbytes, self._memory_limit())
        return explain(self.file, *arguments)

    def _way(self, source: Source, how: str) -> str:
        """Return the way to use a file: "map" or "read"."""
        if how != "auto":
            return how
        return "read" if file_system_of(source).is_remote else "map"

    def _check_limit(self, limit: int, ways: Sequence[str], *, cut: bool) -> None:
        """Raise `PlanError` if a tensor that must be read is larger than the memory that may be filled."""
        spans, numbers = self.spans, self._numbers
        read = np.array(ways)[spans.file[numbers]] == "read"
        for position in np.flatnonzero((spans.nbytes[numbers] > limit) & read).tolist():
            number = int(numbers[position])
            if cut and number in self._indices:
                continue
            nbytes = int(self._nbytes[position])
            if number in self._ranges:
                keys = Indices.of(self._indices[number])
                ranges = [self._ranges[number]] if len(keys) == 1 else [self._ranges_of(number, key) for key in keys]
                nbytes = max(int(np.sum(stops - starts)) for starts, stops in ranges)
            if nbytes > limit:
                expected = f"at least {nbytes}, the bytes to be read of tensor {quoted(spans.name(number))}"
                raise PlanError("budget", path=name_of(self.file), field="budget", actual=limit, expected=expected)

    def _run(self, ways: Sequence[str], options: RunOptions) -> Iterator[tuple[str, Any]]:
        for file, numbers in self.spans.by_file(self._numbers):
            source = self.spans.sources[file]
            share = FileShare(
                self.spans, source, file, numbers, self._indices, self._rows, self._heads, self.gap, self._within
            )
            sums = parts_of(self.file)[1].sums(source) if options.verify else ()
            release = PageRelease(share, options) if options.release else None
            try:
                if ways[file] == "map":
                    yield from mapped(share, options, sums, release)
                else:
                    yield from FileReader(share, options, sums, release, self._reads_of(file)).tensors()
            except TensorFileError as error:
                raise error.located(path=source.name, format=source.format) from None
            finally:
                if release is not None:
                    release.finish()

    def _reads_of(self, file: int) -> Iterator[Range]:
        """Yield the reads of a file."""
        low, high = np.searchsorted(self._files, [file, file + 1]).tolist()
        return map(Range, self._starts[low:high].tolist(), self._stops[low:high].tolist())

    def close(self) -> None:
        """Close the handle, if `weightmap.plan` opened it. Arrays obtained before remain valid."""
        if self._owned:
            self.file.close()

    def __enter__(self) -> Self:
        check_open(self.file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a plan cannot be pickled: pickle the path of its model, and plan again there")

    def __repr__(self) -> str:
        what = f"{counted(len(self), 'tensor')}, {counted(len(self._starts), 'read')}, {self.nbytes} bytes"
        return f"<ReadPlan {escape(repr(name_of(self.file)))}: {what}>"


def reads_of(plan: ReadPlan) -> int:
    """Return the number of reads without making `ReadPlan.reads`: a slice of columns has a read for each row."""
    return len(plan._starts)  # noqa: SLF001 - a function of this module


class _Part:
    """A wanted parameter of several components, and the components read so far.

    Parameters
    ----------
    name : str
    components : Components
    key : index or None
        None for the whole parameter.
    shape : tuple of int
    """

    def __init__(self, name: str, components: Components, key: Any, shape: tuple[int, ...]) -> None:
        self.name, self._components, self._key = name, components, key
        self._roles = {stored: role for role, (stored, _) in components.rows.items()}
        self.indices: dict[str, Any] = dict.fromkeys(self._roles)
        if key is not None:
            coding = components.coding
            self._axes = axes_of(key, shape, name, "parameter")
            start, step, size, _ = self._axes[0] if self._axes else (0, 1, 1, True)
            low, high = sorted((start, start + step * max(size - 1, 0)))
            self._rows = coding.around(low, high + 1) if size else (0, 0)
            cut = coding.cut(*self._rows)
            self.indices = {stored: cut[role] for stored, role in self._roles.items() if role in cut}
        # For stored tensors with components of several parameters, which are read whole.
        self._cuts = {name: cut for name, cut in self.indices.items() if self._roles[name] in components.starts}
        self.indices |= dict.fromkeys(self._cuts)
        self._read: dict[str, tuple[str, NDArray[Any]]] = {}

    def take(self, stored: str, array: NDArray[Any]) -> bool:
        """Take a component; return whether it was the last one."""
        role = self._roles[stored]
        if stored in self._cuts:
            array = self._components.piece_of(role, array)[self._cuts[stored] or ...]
        self._read[role] = stored, array
        return len(self._read) == len(self.indices)

    def result(self) -> Any:
        """Return the parameter, or its wanted part, and forget its components."""
        read, self._read = self._read, {}
        if self._key is None:
            return self._components.over({role: read[role] for role in self._roles.values()})
        first, end = self._rows
        arrays = {role: array for role, (_, array) in read.items()}
        rows = self._components.coding.rows(arrays, first, end, numpy_dtype(self._components.model_dtype))
        outer, *inner = self._axes
        part = rows[ascending([outer._replace(start=outer.start - first), *inner])]
        return arranged(np.ascontiguousarray(part).reshape(-1), self._axes, self._key)


class _Names:
    """The parameters of a model by number, for `resolve_wants`."""

    def __init__(self, model: TensorFile) -> None:
        self._model, self._table = model, parts_of(model)[1].table

    def __len__(self) -> int:
        return len(self._table)

    def find(self, name: str) -> int:
        row: int = self._table.find(name)
        if row < 0:
            raise not_found(self._model, name)
        return row

    def names(self, _: object) -> Iterator[str]:
        return iter(self._model)

    def of(self, number: int) -> Row:
        return self._table.row(number)


class ParameterPlan(ReadPlan):
    """A plan of the parameters of a quantised checkpoint: see `weightmap.plan`.

    `reads` and byte counts are for stored tensors. `run` yields a parameter with the last of its components.
    """

    def __init__(self, spans: Spans, model: TensorFile, wants: Any, options: PlanOptions) -> None:
        try:
            chosen = dict(_chosen(spans, model, wants, options))
        except TensorFileError as error:
            raise error.located(path=name_of(spans.model), format=spans.model.format) from None
        rows = parts_of(model)[1].table
        self._chosen = tuple(chosen)
        self._parts_of: dict[str, list[_Part]] = {}  # by the name of a component
        stored: dict[str, Any] = {}
        for name, key in chosen.items():
            row: Row = rows.row(rows.find(name))
            if not isinstance(row.geometry, Components):
                stored[name] = key
                continue
            part = _Part(name, row.geometry, key, row.shape)
            stored |= part.indices
            for component in part.indices:
                self._parts_of.setdefault(component, []).append(part)
        super().__init__(spans, *resolve_wants(spans, stored), options)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the planned parameters, in file order."""
        return self._chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def run(self, how: str = "auto", **options: Any) -> Iterator[tuple[str, Any]]:
        """Yield name and parameter, or the wanted part of it: see `ReadPlan.run`."""
        for name, array in super().run(how, **options):
            if name not in self._parts_of:
                yield name, array
            for part in self._parts_of.get(name, ()):
                if part.take(name, array):
                    yield part.name, part.result()


def _chosen(spans: Spans, model: TensorFile, wants: Any, options: PlanOptions) -> Iterator[tuple[str, Any]]:
    """Yield the names of the wanted parameters, in file order, and their indices; None for a whole parameter."""
    names = list(model)
    rows = parts_of(model)[1].table
    if wants is None:
        stored = set(spans.names(divided(spans, options.rank, options.world_size)))
        for number, name in enumerate(names):
            geometry = rows.row(number).geometry
            first = next(iter(geometry.rows.values()))[0] if isinstance(geometry, Components) else name
            if first in stored:
                yield name, None
    elif isinstance(wants, Shard):
        for number, name in enumerate(names):
            count = len(rows.row(number).shape)
            yield name, wants if -count <= wants.dim < count else None
    else:
        parameters: Any = _Names(model)
        numbers, indices = resolve_wants(parameters, wants)
        for number in numbers.tolist():
            key = indices.get(number)
            if isinstance(key, Indices):
                raise PlanError(f"index of parameter {quoted(names[number])}", expected="a single one")
            yield names[number], key


@names_moved
def plan(
    source: Model,
    wants: Wants = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    local_rank: int = 0,
    local_world_size: int = 1,
    gap: int = 64 << 10,
    max_over_read: float | None = None,
    chunk: int = 16 << 20,
    budget: int | None = None,
) -> ReadPlan:
    """Plan which bytes of a model to read, and in which order.

    Parameters
    ----------
    source : TensorFile, or anything that `open` takes
        A handle stays open; anything else is opened, and closed with the plan. For ``f.weights``, the plan reads only
        the bytes that decode the wanted rows. An index selects decoded elements, of the model's type; each parameter
        may have one index, and `ReadPlan.run` takes neither `into` nor `cut`.
    wants : optional
        * None: every tensor, or with `world_size` this rank's share: whole tensors, divided by bytes;
        * names of tensors, or a predicate on `TensorInfo`;
        * pairs of a name and an index, perhaps several for a tensor;
        * the result of `shard` for a name: this slice of every tensor; tensors without its dimension are whole;
        * a mapping from names to indices, such as ``{name: np.s_[:, 128:256]}`` or results of `shard`: only the bytes
          of these elements. Indices are integers, slices and ``...``; None means the whole tensor. Quantised tensors
          are read in whole blocks.
    rank, world_size : int
        This reader and the number of readers. `wants` apply to *this* rank: with them, nothing is divided.
    local_rank, local_world_size : int
        The same among the readers on this machine, which divide the work of `ReadPlan.warm`.
    gap : int
        Wanted ranges less than this many bytes apart become one read. From a disk, smaller gaps within a tensor, such
        as between columns, are read too, up to eight times the wanted bytes.
    max_over_read : float, optional
        Ranges are joined as long as the read has at most this many times its wanted bytes; 1.1 when not given. In a
        store, ranges of one tensor, such as columns, are then joined whenever they are less than 512 KiB apart: that is
        faster than another request.
    chunk : int
        Bytes read at once.
    budget : int, optional
        Bytes of memory that `ReadPlan.warm` and `ReadPlan.run` may fill; by default the free memory of machine and
        control group, divided among the local readers.

    Returns
    -------
    ReadPlan

    Raises
    ------
    PlanError
        When an index does not fit its tensor, a rank is not below its world_size, or a number is too small.
    TensorNotFoundError
        For a name that no tensor has.
    FormatError, OSError
        As of `open`.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.safetensors", {"w": np.arange(32, dtype=np.float32).reshape(8, 4)})
    >>> p = wm.plan("model.safetensors", {"w": wm.shard("w", 0, rank=1, world_size=4)})
    >>> p.names, p.nbytes, p.wanted_nbytes
    (('w',), 32, 32)
    """
    number, count = checked_rank(rank, world_size)
    local_rank, local_world_size = checked_rank(local_rank, local_world_size, ("local_rank", "local_world_size"))
    ratio = None if max_over_read is None else as_float("max_over_read", max_over_read)
    if ratio is not None and not 1 <= ratio < math.inf:
        raise PlanError("max_over_read", field="max_over_read", actual=ratio, expected="a finite number, at least 1")
    options = PlanOptions(
        rank=number,
        world_size=count,
        local_rank=local_rank,
        local_world_size=local_world_size,
        gap=at_least(0, "gap", gap),
        max_over_read=ratio,
        chunk=min(at_least(1, "chunk", chunk), INT64_MAX),  # reads of columns are counted in 64 bits
        budget=None if budget is None else at_least(1, "budget", budget),
        owned=not isinstance(source, TensorFile),
        divided=wants is None and count > 1,
    )
    with ExitStack() as stack:
        model = stack.enter_context(as_handle(source, private=False))
        stored = stored_model(model)
        spans = spans_of(stored)
        try:
            if parts_of(model)[1].table is not parts_of(stored)[1].table:
                reads: ReadPlan = ParameterPlan(spans, model, wants, options)
            elif wants is None:
                reads = ReadPlan(spans, divided(spans, number, count), {}, options)
            else:
                reads = ReadPlan(spans, *resolve_wants(spans, wants), options)
        except TensorFileError as error:
            raise error.located(path=name_of(model)) from None
        stack.pop_all()  # the plan closes the handle
        return reads
