"""`WeightmapStorageReader`: what `torch.distributed.checkpoint.load` calls to read a model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import StorageReader

from weightmap.core.model.opening import open as open_model
from weightmap.dcp._work import TensorMetadata, Unreadable, Work
from weightmap.errors import counted
from weightmap.plans.planning import plan as make_plan
from weightmap.plans.read_plan import reads_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.core.model.file import TensorFile


class LoadReport(NamedTuple):
    """One rank's reading.

    Attributes
    ----------
    items : int
        Slices that the rank asked for.
    tensors : int
        Tensors of the file behind them.
    reads, nbytes, wanted_nbytes : int
        Of the plan; ``nbytes - wanted_nbytes`` are bytes of gaps between slices, read in vain.
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
        A path as for `weightmap.open`: a file, an ``*.index.json``, a directory, a URL.
    names : mapping of str to str, optional
        The file's names for names of the state dict that it lacks: for tied tensors stored once, or below a prefix.
    how : {"read", "map", "auto"}
        As for `ReadPlan.run`. Reading takes no more of a disk than the slices and the gaps below `gap` bytes between
        them, and of a network no more than the slices; a file that shrinks meanwhile is an error. Mappings are faster
        where the page cache has the file.
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
        """Begin another load, perhaps of another path."""
        self._close()
        self._error = self.report = None
        if checkpoint_id is not None:
            self.checkpoint_id = os.fspath(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this may be a model: an existing path, or a URL."""
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
                self._file = open_model(self.checkpoint_id, **{"mode": "cow", **self._options})
                if self._how == "read":  # this rank reads just its slices, in large pieces
                    self._file.advise("random")
            self._tensors = TensorMetadata(self._file, self._names)
        except Exception as error:  # noqa: BLE001 - raised on the next call, on all ranks
            self._error = error
            return Metadata(state_dict_metadata=Unreadable(error))
        return Metadata(state_dict_metadata=self._tensors)

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
        """Read the slices in a plan of torch, and copy them to the places that its planner names."""
        if self._tensors is None:
            self.read_metadata()
            if self._error is not None:
                raise self._error
        assert self._tensors is not None  # noqa: S101 - opened above
        try:
            work = Work(self._tensors, planner, plan.items, self._rules["chunk"])
            with make_plan(self._tensors.file, work.wants, **self._rules) as reads:
                self.report = LoadReport(
                    len(plan.items), len(work.parts), reads_of(reads), reads.nbytes, reads.wanted_nbytes
                )
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
