"""`WeightmapStorageReader`, with which `torch.distributed.checkpoint.load` reads a model."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader

from weightmap._messages import counted, quoted
from weightmap.core.model.codes import check_cast
from weightmap.core.model.internals import name_of, not_found, row_of
from weightmap.core.model.opening import open as open_model
from weightmap.errors import Remedy, TensorFileError, TensorNotFoundError, UnsupportedError
from weightmap.plans.planning import ReadPlan, reads_of
from weightmap.plans.planning import plan as make_plan
from weightmap.plans.wants import MAX_RUNS, axes_of, boxes, runs_of
from weightmap.torch._modules import StateError
from weightmap.torch._tensors import no_dtype, pairs_of, to_torch

if TYPE_CHECKING:
    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row


class Kind(NamedTuple):
    """How a file's tensor appears in torch.

    Attributes
    ----------
    dtype : torch.dtype
    shape : tuple of int
        In elements of that type.
    octets : bool
        Whether `weightmap` returns it as bytes, an array of one dimension.
    decoded : bool
        Whether it is quantised in the file.
    swapped : bool
        Whether it is big-endian in the file.
    """

    dtype: Any
    shape: tuple[int, ...]
    octets: bool = False
    decoded: bool = False
    swapped: bool = False

    @classmethod
    def of(cls, row: Row) -> Kind:
        name, shape = row.dtype.name, row.shape
        if row.dtype.quantized:
            return cls(torch.float32, shape, decoded=True)
        if not row.dtype.packed:
            dtype = getattr(torch, name, None)
            if not isinstance(dtype, torch.dtype):
                raise no_dtype(name)
            return cls(dtype, shape, swapped=row.dtype.swapped)
        dtype, shape = pairs_of(row) or (torch.uint8, (row.nbytes,))
        return cls(dtype, shape, octets=True)


class TensorMetadata(Mapping[str, Any]):
    """The metadata of all tensors, each made at its first use: a model may have half a million.

    Parameters
    ----------
    file : TensorFile
    names : mapping of str to str
        The file's names for some names of the state dict.
    """

    def __init__(self, file: TensorFile, names: Mapping[str, str]) -> None:
        self.file, self._names = file, names
        # The tensors used so far.
        self._rows: dict[str, tuple[str, Row, Kind]] = {}
        for name in names.values():
            if name not in file:
                raise not_found(file, name)

    def __getitem__(self, name: str) -> dcp_metadata.TensorStorageMetadata:
        try:
            kind = self.lookup(name)[2]
        except TensorNotFoundError:
            raise KeyError(name) from None
        size = torch.Size(kind.shape)
        whole = dcp_metadata.ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
        return dcp_metadata.TensorStorageMetadata(dcp_metadata.TensorProperties(dtype=kind.dtype), size, [whole])

    def lookup(self, name: str) -> tuple[str, Row, Kind]:
        """Return the file's name for a tensor, its place, and its form in torch."""
        entry = self._rows.get(name)
        if entry is None:
            stored = self._names.get(name, name)
            row = row_of(self.file, stored)
            try:
                entry = self._rows[name] = stored, row, Kind.of(row)
            except TensorFileError as error:
                raise error.located(path=name_of(self.file), format=self.file.format) from None
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self.file

    def __iter__(self) -> Iterator[str]:
        yield from self.file
        yield from (name for name in self._names if name not in self.file)

    def __len__(self) -> int:
        return len(self.file) + sum(name not in self.file for name in self._names)


class Unreadable(Mapping[str, Any]):
    """The metadata of a model that could not be opened: every access raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _fail(self, *_: object) -> NoReturn:
        raise self._error

    __getitem__ = __contains__ = __iter__ = __len__ = _fail


class _Item:
    """A slice that torch requests, and the number of its missing elements."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self.starts, self.sizes = tuple(item.storage_offsets), tuple(item.lengths)
        self.target: Any = None
        self.missing = math.prod(self.sizes)


class _Part(NamedTuple):
    """A slice of a tensor of the file, and all requests for it."""

    name: str
    kind: Kind
    # Whether the file stores the tensor's own bytes.
    plain: bool
    items: list[_Item]


class _Want(NamedTuple):
    """A slice, or a piece of one, as the plan delivers it."""

    part: _Part
    box: tuple[slice, ...]
    # Its remaining pieces, as indices of the tensor; empty before the slice is cut.
    pieces: deque[tuple[slice, ...]]
    # Arrays per piece
    arrays: int = 1


class Work:
    """A rank's wants for `weightmap.plan`, and their destinations.

    Parameters
    ----------
    tensors : TensorMetadata
    planner : LoadPlanner
    items : iterable of ReadItem
    chunk : int
        Most bytes of a piece that needs memory besides its slice.

    Attributes
    ----------
    wants : list of (str, index)
    parts : dict
        The slices by their bytes: slices of several names over the same bytes count as one.
    """

    def __init__(self, tensors: TensorMetadata, planner: Any, items: Any, chunk: int) -> None:
        self._planner, self._chunk, self._file = planner, chunk, tensors.file
        self.parts: dict[Any, _Part] = {}
        self._empty: list[_Item] = []
        for request in items:
            if request.type != LoadItemType.TENSOR:
                what, path = f"{quoted(request.storage_index.fqn)} of the state dict", name_of(tensors.file)
                raise StateError(what, path=path, actual="not a tensor", expected="one: models hold nothing else")
            self._add(_Item(request), *tensors.lookup(request.storage_index.fqn))
        self.wants: list[tuple[str, Any]] = []
        # The pieces that the plan delivers of each tensor, in order.
        self._wants: dict[str, deque[_Want]] = {}
        # The tensor that the next piece can be read into.
        self._place: Any = None
        for part in self.parts.values():
            self._ask(part)

    def _add(self, item: _Item, name: str, row: Row, kind: Kind) -> None:
        if 0 in item.sizes:
            self._empty.append(item)
            return
        same: Any = name
        in_file = row.geometry is None
        if in_file:
            same = (row.source.name, row.offset, row.nbytes, row.dtype.name, row.shape)  # equal for tied tensors
        key = same, item.starts, item.sizes
        part = self.parts.get(key)
        if part is None:
            plain = in_file and not (kind.octets or kind.swapped or kind.decoded)
            part = self.parts[key] = _Part(name, kind, plain, [])
        part.items.append(item)

    def _ask(self, part: _Part) -> None:
        """Note the wants of a slice: the whole slice, if a plan takes so many runs."""
        starts, sizes, kind = part.items[0].starts, part.items[0].sizes, part.kind
        wants = self._wants.setdefault(part.name, deque())
        each = max(self._chunk // kind.dtype.itemsize, 1)
        whole = sizes == kind.shape and math.prod(sizes) <= each and not kind.decoded
        for box in boxes(starts, sizes, each if kind.octets else MAX_RUNS):
            keys: list[Any] = [... if whole or not box else box]
            if kind.octets:
                runs, length = runs_of(axes_of(box, kind.shape, part.name), kind.shape, part.name)
                keys = [slice(start, start + length) for start in runs.tolist()]
            self.wants += [(part.name, key) for key in keys]
            wants.append(_Want(part, box, deque([box] if kind.octets or keys[0] is ... else ()), len(keys)))

    def run(self, plan: ReadPlan, how: str, *, verify: bool) -> None:
        """Read everything, and copy it to its destination."""
        for item in self._empty:
            self._planner.commit_tensor(item.item, self._target(item, None))
        arrived: list[Any] = []
        for name, array in plan.run(how, verify=verify, into=self._room, cut=self._cut):
            arrived.append(array)
            wants = self._wants[name]
            part, _, pieces, arrays = wants[0]
            if len(arrived) < arrays:
                continue
            box = pieces.popleft()
            if not pieces:
                wants.popleft()
            if part.kind.octets:
                sizes = [cut.stop - cut.start for cut in box]
                arrived = [np.concatenate([one.reshape(-1) for one in arrived]).reshape(sizes)]
            for item in part.items:
                self._fill(item, part, box, arrived[0])
            arrived, self._place = [], None

    def _cut(self, name: str, key: Any) -> Iterable[Any]:
        """Return the indices of the pieces of a slice: itself, or pieces of a chunk if they need memory."""
        part, box, pieces, _ = self._wants[name][0]
        if pieces:
            return (key,)
        if part.plain and len(part.items) == 1:
            target = self._of(part.items[0], part, box)
            if target.device.type == "cpu" and target.dtype == part.kind.dtype and target.is_contiguous():
                self._place = target
                pieces.append(box)
                return (key,)
        starts, sizes = [cut.start for cut in box], [cut.stop - cut.start for cut in box]
        pieces += boxes(starts, sizes, max(self._chunk // part.kind.dtype.itemsize, 1))
        return tuple(pieces)

    def _room(self, _: str, nbytes: int) -> Any:
        """Return the state dict's memory for the next piece, if the piece can be read into it."""
        if self._place is None:
            return None
        room = self._place.reshape(-1).view(torch.uint8).numpy()
        return room if len(room) == nbytes else None

    def _of(self, item: _Item, part: _Part, box: tuple[slice, ...]) -> Any:
        """Return the part of an item's memory in the state dict that a piece fills."""
        target = item.target
        if target is None:
            target = item.target = self._target(item, part)
        where = [slice(cut.start - start, cut.stop - start) for cut, start in zip(box, item.starts, strict=True)]
        return target[tuple(where)]

    def _fill(self, item: _Item, part: _Part, box: tuple[slice, ...], array: Any) -> None:
        target = self._of(item, part, box) if self._place is None else self._place
        on_cpu = target.device.type == "cpu"
        # Already read into place.
        if not (on_cpu and array.nbytes and array.ctypes.data == target.data_ptr()):
            # Never pass mapped pages to a driver: it might pin them, or fault them in one by one.
            source = to_torch(array, copy=None if on_cpu else True)
            target.copy_(source.view(part.kind.dtype) if part.kind.octets else source)
        item.missing -= target.numel()
        if not item.missing:  # the last piece
            whole, item.target = item.target, None
            self._planner.commit_tensor(item.item, whole)

    def _target(self, item: _Item, part: _Part | None) -> Any:
        """Return the tensor of the state dict, or the part of it, that a slice fills."""
        target = self._planner.resolve_tensor(item.item).detach()
        what = f"tensor {quoted(item.item.dest_index.fqn)} of the state dict"
        if tuple(target.shape) != item.sizes:
            raise StateError(f"the shape of {what}", actual=list(target.shape), expected=list(item.sizes))
        if part is not None and not torch.can_cast(part.kind.dtype, target.dtype):
            raise StateError(f"{what} is {target.dtype}, which cannot hold {part.kind.dtype} of the file")
        if part is not None and target.dtype != part.kind.dtype:
            row, dtype = row_of(self._file, part.name), str(target.dtype).removeprefix("torch.")
            try:
                check_cast(self._file, part.name, row, dtype)
            except UnsupportedError as error:
                error.remedy = Remedy("{} writes the parameters", "weights", python="wm.convert(f.weights, path)")
                raise
        return target


class LoadReport(NamedTuple):
    """One rank's reading.

    Attributes
    ----------
    items : int
        Slices that the rank requested.
    tensors : int
        Tensors of the file behind them.
    reads, nbytes, wanted_nbytes : int
        The plan's; ``nbytes - wanted_nbytes`` are the bytes of gaps between slices, which are read and dropped.
    """

    items: int
    tensors: int
    reads: int
    nbytes: int
    wanted_nbytes: int

    def __str__(self) -> str:
        over = self.nbytes - self.wanted_nbytes
        what = f"{counted(self.items, 'slice')} of {counted(self.tensors, 'tensor')}"
        return f"{what}: {counted(self.reads, 'read')}, {self.nbytes:,} bytes, {over:,} of them in gaps"


class WeightmapStorageReader(StorageReader):  # type: ignore[misc]
    """Reads a model of any format, in one file or in shards, for ``torch.distributed.checkpoint.load``.

    Each rank makes a plan (`weightmap.plan`) of its requested slices: neighbours are one read, and no byte is read
    twice. A rank decodes only its own blocks of a quantised tensor, to float32. The values are converted to the types
    of the state dict as torch does, but never to another kind (float to integer), and codes are not converted at all.
    An error on any rank, such as a damaged or missing file, ends the load on all ranks with a ``CheckpointException``
    whose ``failures`` have the error by rank.

    Parameters
    ----------
    path : str or os.PathLike
        A path as for `weightmap.open`: a file, an ``*.index.json``, a directory, a URL.
    names : mapping of str to str, optional
        The file's names for names of the state dict that it lacks: for tied tensors stored once, or below a prefix.
    how : {"read", "map", "auto"}
        As for `ReadPlan.run`. "read" reads from a disk only the slices and the gaps below `gap` bytes between them, and
        from a network only the slices; a file that shrinks meanwhile is an error. "map" is faster if the page cache has
        the file.
    verify : bool
        Check the checksums that cover a tensor, if the file has any, before using it. EMBD's checksum covers all
        tensors together: every rank then reads everything.
    gap, max_over_read, chunk
        As for `weightmap.plan`. A rank needs about two chunks of memory besides its slices.
    **open_options
        As for `weightmap.open`, except `mode`.

    Attributes
    ----------
    checkpoint_id : str
        The path.
    report : LoadReport or None
        This rank's reading in the last load.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        names: Mapping[str, str] | None = None,
        how: str = "read",
        verify: bool = False,
        gap: int = 64 << 10,
        max_over_read: float | None = None,
        chunk: int = 4 << 20,
        **open_options: Any,
    ) -> None:
        # Nothing is opened here or in `reset`: an error there would end one rank, and the others would wait for it.
        self.checkpoint_id: str = os.fspath(path)
        self._names = dict(names or {})
        self._how, self._verify = how, verify
        self._rules: dict[str, Any] = {"gap": gap, "max_over_read": max_over_read, "chunk": chunk}
        self._options = open_options
        self._file: TensorFile | None = None
        self._tensors: TensorMetadata | None = None
        self._error: Exception | None = None
        self.report: LoadReport | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, perhaps from another path."""
        self._close()
        self._error = self.report = None
        if checkpoint_id is not None:
            self.checkpoint_id = os.fspath(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this may be a model: an existing path, or a URL."""
        path = os.fspath(checkpoint_id) if isinstance(checkpoint_id, (str, os.PathLike)) else None
        return isinstance(path, str) and ("://" in path or os.path.exists(path))

    # torch would call a method that takes `kwargs` once more per rank, and then leave collectives out.
    def read_metadata(self) -> dcp_metadata.Metadata:
        """Open the model, and return the names, types and shapes of its tensors.

        An error is kept for `set_up_storage_reader`: torch would take an exception of this method for missing metadata,
        and lose it. Accessing tensors of the result raises it, too.
        """
        try:
            if self._file is None:
                self._file = open_model(self.checkpoint_id, **{"mode": "cow", **self._options})
                if self._how == "read":  # this rank reads only its slices, in large pieces
                    self._file.advise("random")
            self._tensors = TensorMetadata(self._file, self._names)
        except Exception as error:  # noqa: BLE001 - raised on the next call, on all ranks
            self._error = error
            return dcp_metadata.Metadata(state_dict_metadata=Unreadable(error))
        return dcp_metadata.Metadata(state_dict_metadata=self._tensors)

    def set_up_storage_reader(self, metadata: dcp_metadata.Metadata, is_coordinator: bool) -> None:  # noqa: ARG002, FBT001 - torch's
        """Raise the error of `read_metadata`, if any."""
        if self._error is not None:
            raise self._error

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return torch's plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Return the plans of all ranks unchanged, because none depends on another."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read the slices in torch's plan, and copy them to the destinations of its planner."""
        if self._tensors is None:
            self.read_metadata()
            if self._error is not None:
                raise self._error
        assert self._tensors is not None  # noqa: S101 - opened above
        try:
            work = Work(self._tensors, planner, plan.items, self._rules["chunk"])
            with make_plan(self._tensors.file, work.wants, **self._rules) as reads:
                sizes = reads_of(reads), reads.nbytes, reads.wanted_nbytes
                self.report = LoadReport(len(plan.items), len(work.parts), *sizes)
                work.run(reads, self._how, verify=self._verify)
        finally:
            self._close()
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    def _close(self) -> None:
        file, self._file, self._tensors = self._file, None, None
        if file is not None:
            file.close()

    def __repr__(self) -> str:
        return f"<WeightmapStorageReader {self.checkpoint_id!r}>"
