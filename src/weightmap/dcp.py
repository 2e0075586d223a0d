"""Any model for ``torch.distributed.checkpoint``: each rank reads the bytes of its own slices, and no more.

::

    import torch.distributed.checkpoint as dcp
    from weightmap.dcp import WeightmapStorageReader

    dcp.load(model.state_dict(), storage_reader=WeightmapStorageReader("model.safetensors"))

The module needs PyTorch, which it imports; `weightmap` itself does not import this module.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from weightmap.errors import MissingDependencyError, TensorFileError, UnsupportedError, counted, quoted
from weightmap.io.source import Source
from weightmap.model.foreign import PAIRS
from weightmap.model.opening import open as open_model
from weightmap.model.parts import locate, name_of, not_found
from weightmap.plans.indices import axes_of, boxes, runs_of
from weightmap.plans.planning import plan as make_plan
from weightmap.torch import StateError, to_torch

try:
    import torch
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner import LoadItemType
    from torch.distributed.checkpoint.storage import StorageReader
except ImportError:
    raise MissingDependencyError("PyTorch is needed for weightmap.dcp: pip install weightmap[torch]") from None

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.model.file import TensorFile
    from weightmap.plans.planning import ReadPlan
    from weightmap.quant.ref import TensorRef

__all__ = ["LoadReport", "WeightmapStorageReader"]


class LoadReport(NamedTuple):
    """What one rank has read.

    Attributes
    ----------
    items : int
        Slices that the rank asked for.
    tensors : int
        Tensors of the file that they come from.
    reads, nbytes, wanted_nbytes : int
        Of the plan; ``nbytes - wanted_nbytes`` is what was read for nothing, in the gaps between slices.
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

    Each rank makes a plan (`weightmap.plan`) of the slices that it is asked for: neighbours are one read, and no byte
    is read twice. Of a quantised tensor the rank decodes its own blocks alone, to float32. The values are converted to
    the types of the state dict as torch does, but never to another kind (float to integer). An error of any rank, a
    damaged or missing file among them, ends the load on all of them with a ``CheckpointException`` that has it in
    ``failures``, by rank.

    Parameters
    ----------
    path : str or os.PathLike
        What `weightmap.open` takes as a path: a file, an ``*.index.json``, a directory, a URL.
    names : mapping of str to str, optional
        For names of the state dict that the file does not have, the names that it has instead: of tied tensors that
        the file has once, or below a prefix.
    how : {"read", "map", "auto"}
        As for `ReadPlan.run`. Reading takes no more of a disk than the slices, and a file that shrinks meanwhile is an
        error; mappings are faster where the page cache has the file, and for columns.
    verify : bool
        Check the checksums that cover a tensor, where the file has any, before it is used. Those of EMBD cover all
        tensors together: every rank then reads everything.
    gap, max_over_read, chunk
        As for `weightmap.plan`. A rank needs about two chunks of memory besides its slices.
    **open_options
        As for `weightmap.open`, but for `mode`.

    Attributes
    ----------
    checkpoint_id : str
        The path.
    report : LoadReport or None
        What this rank has read in the last load.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        names: Mapping[str, str] | None = None,
        how: str = "read",
        verify: bool = False,
        gap: int = 64 << 10,
        max_over_read: float = 1.1,
        chunk: int = 4 << 20,
        **open_options: Any,
    ) -> None:
        # Nothing is opened here or in `reset`: an error there would end one rank, and the others would wait for it.
        self.checkpoint_id = os.fspath(path)
        self._names = dict(names or {})
        self._how, self._verify = how, verify
        self._rules: dict[str, Any] = {"gap": gap, "max_over_read": max_over_read, "chunk": chunk}
        self._options = open_options
        self._file: TensorFile | None = None
        self._error: Exception | None = None
        self.report: LoadReport | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, perhaps of another path."""
        self._close()
        self._error = self.report = None
        if checkpoint_id is not None:
            self.checkpoint_id = os.fspath(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this may be a model: a path where something is, or a URL."""
        path = os.fspath(checkpoint_id) if isinstance(checkpoint_id, (str, os.PathLike)) else None
        return isinstance(path, str) and ("://" in path or os.path.exists(path))

    # torch calls a method that takes `kwargs` once more for each rank alone, and then leaves collectives out.
    def read_metadata(self) -> Metadata:
        """Open the model, and return the names, types and shapes of its tensors.

        An error is kept for `set_up_storage_reader`: torch takes an exception of this method for missing metadata, and
        loses it. Asking the result for tensors raises it, too.
        """
        try:
            if self._file is None:
                self._file = open_model(self.checkpoint_id, mode="cow", **{"advise": self._advice(), **self._options})
            tensors: Mapping[str, Any] = _Tensors(self._file, self._names)
        except Exception as error:  # noqa: BLE001 - raised on the next call, on all ranks
            self._error = error
            tensors = _Unreadable(error)
        return Metadata(state_dict_metadata=tensors)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:  # noqa: ARG002, FBT001 - torch's
        """Raise the error of `read_metadata`, if any."""
        if self._error is not None:
            raise self._error

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return torch's plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Return the plans of all ranks as they are: none depends on another."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read what a plan of torch asks for, and copy it to where its planner says."""
        if self._file is None:
            self.read_metadata()
            if self._error is not None:
                raise self._error
        assert self._file is not None  # noqa: S101 - opened above
        try:
            work = _Work(self._file, self._names, planner, plan.items, self._rules["chunk"])
            with make_plan(self._file, work.wants, **self._rules) as reads:
                self.report = LoadReport(
                    len(plan.items), len(work.parts), len(reads.reads), reads.nbytes, reads.wanted_nbytes
                )
                work.run(reads, self._how, verify=self._verify)
        finally:
            self._close()
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    def _advice(self) -> str | None:
        """Return how the system is to read ahead: not at all where this rank reads what it wants, in large pieces."""
        return "random" if self._how == "read" else None

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __repr__(self) -> str:
        return f"<WeightmapStorageReader {self.checkpoint_id!r}>"


# ------------------------------------------------------------------------------------------------------- what is there


class _Kind(NamedTuple):
    """How a tensor of a file looks in torch.

    Attributes
    ----------
    dtype : torch.dtype
    shape : tuple of int
        In elements of that type.
    octets : bool
        Whether `weightmap` has it as bytes, an array of one dimension.
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
    def of(cls, ref: TensorRef) -> _Kind:
        row = ref.row
        name, shape = row.dtype.name, row.shape
        if row.dtype.quantized:
            return cls(torch.float32, shape, decoded=True)
        if not row.dtype.packed:
            found = getattr(torch, name, None)
            if not isinstance(found, torch.dtype):
                raise UnsupportedError("data type", expected="one that torch has", actual=name)
            return cls(found, shape, swapped=row.dtype.swapped)
        pairs = getattr(torch, PAIRS, None)
        if name == "float4_e2m1fn" and pairs is not None and shape and shape[-1] % 2 == 0:
            return cls(pairs, (*shape[:-1], shape[-1] // 2), octets=True)
        return cls(torch.uint8, (row.nbytes,), octets=True)


class _Tensors(Mapping[str, Any]):
    """The metadata of all tensors, each made when it is asked for: a model may have half a million."""

    def __init__(self, file: TensorFile, names: Mapping[str, str]) -> None:
        self._file, self._names = file, names
        for name in names.values():
            if name not in file:
                raise not_found(file, name)

    def __getitem__(self, name: str) -> TensorStorageMetadata:
        if name not in self:
            raise KeyError(name)
        try:
            kind = _Kind.of(locate(self._file, self._names.get(name, name)))
        except TensorFileError as error:
            raise error.located(path=name_of(self._file), format=self._file.format) from None
        size = torch.Size(kind.shape)
        whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
        return TensorStorageMetadata(TensorProperties(dtype=kind.dtype), size, [whole])

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self._file

    def __iter__(self) -> Iterator[str]:
        yield from self._file
        yield from (name for name in self._names if name not in self._file)

    def __len__(self) -> int:
        return len(self._file) + sum(name not in self._file for name in self._names)


class _Unreadable(Mapping[str, Any]):
    """The metadata of a model that could not be opened: asking for anything raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _fail(self, *_: object) -> NoReturn:
        raise self._error

    __getitem__ = __contains__ = __iter__ = __len__ = _fail


# ------------------------------------------------------------------------------------------------------- what is wanted


class _Item:
    """A slice that torch asks for, and how many of its pieces are to come."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self.starts, self.sizes = tuple(item.storage_offsets), tuple(item.lengths)
        self.target: Any = None
        self.left = 0


class _Part(NamedTuple):
    """A slice of a tensor of the file, and all who want it."""

    name: str
    kind: _Kind
    items: list[_Item]


class _Piece(NamedTuple):
    """What comes of a slice at once: its index there, and in how many arrays it comes."""

    part: _Part
    where: tuple[slice, ...]
    arrays: int


class _Work:
    """What a rank wants, as `weightmap.plan` takes it, and where it goes.

    Parameters
    ----------
    file : TensorFile
    names : mapping of str to str
        The names that the file has for some of the state dict.
    planner : LoadPlanner
    items : iterable of ReadItem
    chunk : int
        Bytes of a piece.

    Attributes
    ----------
    wants : list of (str, index)
    parts : dict
        The slices by what they are: slices of several names over the same bytes are one.
    """

    def __init__(self, file: TensorFile, names: Mapping[str, str], planner: Any, items: Any, chunk: int) -> None:
        self._file, self._planner = file, planner
        self.parts: dict[Any, _Part] = {}
        self._empty: list[_Item] = []
        for asked in items:
            name = asked.storage_index.fqn
            if asked.type != LoadItemType.TENSOR:
                what = f"{quoted(name)} of the state dict"
                raise StateError(what, path=name_of(file), actual="not a tensor", expected="one: models have no more")
            self._add(_Item(asked), names.get(name, name))
        self.wants: list[tuple[str, Any]] = []
        # What the plan hands out of each tensor, in order.
        self._pieces: dict[str, deque[_Piece]] = {}
        for part in self.parts.values():
            self._cut(part, chunk)

    def _add(self, item: _Item, name: str) -> None:
        ref = locate(self._file, name)
        if 0 in item.sizes:
            self._empty.append(item)
            return
        row = ref.row
        same: Any = name
        if isinstance(ref.source, Source):  # and not one that is derived from a tensor that is not row-major
            same = (ref.source.name, row.offset, row.nbytes, row.dtype.name, row.shape)  # as of tied tensors
        found = self.parts.setdefault((same, item.starts, item.sizes), _Part(name, _Kind.of(ref), []))
        found.items.append(item)

    def _cut(self, part: _Part, chunk: int) -> None:
        """Cut a slice into pieces of at most a chunk: nobody needs memory for more."""
        starts, sizes, kind = part.items[0].starts, part.items[0].sizes, part.kind
        pieces = self._pieces.setdefault(part.name, deque())
        cut = list(boxes(starts, sizes, max(chunk // kind.dtype.itemsize, 1)))
        whole = len(cut) == 1 and sizes == kind.shape and not kind.decoded
        for box in cut:
            keys: list[Any] = [... if whole or not box else box]
            if kind.octets:
                what = f"tensor {quoted(part.name)}"
                runs, length = runs_of(axes_of(box, kind.shape, what), kind.shape, what)
                keys = [slice(start, start + length) for start in runs.tolist()]
            self.wants += [(part.name, key) for key in keys]
            where = tuple(slice(b.start - start, b.stop - start) for b, start in zip(box, starts, strict=True))
            pieces.append(_Piece(part, where, len(keys)))
        for item in part.items:
            item.left = len(cut)

    def run(self, plan: ReadPlan, how: str, *, verify: bool) -> None:
        """Read everything, and copy it to where it belongs."""
        for item in self._empty:
            self._planner.commit_tensor(item.item, self._target(item, None))
        arrived: list[Any] = []
        for name, array in plan.run(how, verify=verify, into=self._room):
            arrived.append(array)
            pieces = self._pieces[name]
            if len(arrived) < pieces[0].arrays:
                continue
            part, where, _ = pieces.popleft()
            if part.kind.octets:
                sizes = [cut.stop - cut.start for cut in where]
                arrived = [np.concatenate([one.reshape(-1) for one in arrived]).reshape(sizes)]
            for item in part.items:
                self._fill(item, part, where, arrived[0])
            arrived = []

    def _room(self, name: str, nbytes: int) -> Any:
        """Return the memory of the state dict that the next piece of a tensor is for, if it can be read to there."""
        part, where, arrays = self._pieces[name][0]
        if len(part.items) > 1 or arrays > 1 or part.kind.octets or part.kind.swapped:
            return None
        item = part.items[0]
        if item.target is None:
            item.target = self._target(item, part)
        target = item.target[where]
        if target.device.type != "cpu" or target.dtype != part.kind.dtype or not target.is_contiguous():
            return None
        room = target.reshape(-1).view(torch.uint8).numpy()
        return room if len(room) == nbytes else None

    def _fill(self, item: _Item, part: _Part, where: tuple[slice, ...], array: Any) -> None:
        if item.target is None:
            item.target = self._target(item, part)
        target = item.target[where]
        if target.device.type == "cpu" and array.nbytes and array.ctypes.data == target.data_ptr():
            self._done(item)  # it was read to there
            return
        on_cpu = target.device.type == "cpu"
        # A driver never gets mapped pages: it might pin them, or fault them in one by one.
        source = to_torch(array, copy=None if on_cpu else True)
        if part.kind.octets:
            source = source.view(part.kind.dtype)
        target.copy_(source)
        self._done(item)

    def _done(self, item: _Item) -> None:
        """Note that a piece has come; commit the slice with its last one."""
        item.left -= 1
        if not item.left:
            whole, item.target = item.target, None
            self._planner.commit_tensor(item.item, whole)

    def _target(self, item: _Item, part: _Part | None) -> Any:
        """Return the tensor of the state dict that a slice belongs to, or the part of it."""
        target = self._planner.resolve_tensor(item.item).detach()
        what = f"tensor {quoted(item.item.dest_index.fqn)} of the state dict"
        if tuple(target.shape) != item.sizes:
            raise StateError(f"the shape of {what}", actual=list(target.shape), expected=list(item.sizes))
        if part is not None and not torch.can_cast(part.kind.dtype, target.dtype):
            raise StateError(f"{what} is {target.dtype}, which cannot hold {part.kind.dtype} of the file")
        return target
