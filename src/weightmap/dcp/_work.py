"""What one rank wants of a model: as pieces that a plan reads, and where each of them goes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint.planner import LoadItemType

from weightmap.dcp._tensors import Kind
from weightmap.errors import quoted
from weightmap.io.source import Source
from weightmap.model.parts import locate, name_of
from weightmap.plans.indices import axes_of, boxes, runs_of
from weightmap.torch import StateError, to_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.model.file import TensorFile
    from weightmap.plans.read_plan import ReadPlan

__all__ = ["Work"]


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
    kind: Kind
    items: list[_Item]


class _Piece(NamedTuple):
    """What comes of a slice at once: its index there, and in how many arrays it comes."""

    part: _Part
    where: tuple[slice, ...]
    arrays: int


class Work:
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
        found = self.parts.setdefault((same, item.starts, item.sizes), _Part(name, Kind.of(ref), []))
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
