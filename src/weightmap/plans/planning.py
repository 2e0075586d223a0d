"""`ReadPlan`: which bytes of a model's files one reader needs, in the order of the files."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.errors import PlanError, TensorFileError, counted, escape
from weightmap.model.file import TensorFile
from weightmap.model.opening import open as open_model
from weightmap.model.parts import check_open, name_of, parts_of
from weightmap.model.spans import spans_of
from weightmap.plans.indices import checked_rank
from weightmap.plans.wants import dealt, ranges_of, wanted

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from weightmap.model.spans import Spans

__all__ = ["ReadPlan", "plan"]


class ReadPlan:
    """Which bytes of a model's files one reader needs, in the order of the files. `weightmap.plan` makes one.

    Making a plan reads no tensor, but for the first bytes and the mask of a quantised one that is wanted in part.
    A plan keeps its handle open; as a context manager it closes a handle that `weightmap.plan` opened.

    Attributes
    ----------
    file : TensorFile
        The model.
    rank, world, local_rank, local_world, gap, max_over_read, chunk, budget
        As given.
    """

    def __init__(self, file: TensorFile, numbers: NDArray[np.int64], indices: dict[int, Any], **options: Any) -> None:
        self.file = file
        self.rank, self.world = options["rank"], options["world"]
        self.local_rank, self.local_world = options["local_rank"], options["local_world"]
        self.gap, self.max_over_read = options["gap"], options["max_over_read"]
        self.chunk, self.budget = options["chunk"], options["budget"]
        self._owned = options["owned"]
        self._spans: Spans = spans_of(file)
        self._numbers = numbers
        self._indices = indices
        self._ranges = {number: self._ranges_of(number, key) for number, key in indices.items()}
        self._files, self._starts, self._stops, self._wanted = kernels.join_ranges(
            *self._pieces(), gap=self.gap, most=self.max_over_read
        )

    def _ranges_of(self, number: int, key: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ref = self._spans.ref(number)
        try:
            return ranges_of(ref, key, self._spans.name(number))
        except TensorFileError as error:
            raise error.located(path=ref.source.name, format=self.file.format) from None

    def _pieces(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Return file, start and stop of every wanted range, in order."""
        spans, numbers = self._spans, self._numbers
        if not self._ranges:
            begins = spans.begin[numbers]
            return spans.file[numbers], begins, begins + spans.nbytes[numbers]
        whole = numbers[~np.isin(numbers, list(self._ranges))]
        parts = [(spans.file[whole], spans.begin[whole], spans.begin[whole] + spans.nbytes[whole])]
        for number, (starts, stops) in self._ranges.items():
            parts.append((np.full(len(starts), spans.file[number]), starts, stops))
        files, begins, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((begins, files))
        return files[order], begins[order], ends[order]

    # ---------------------------------------------------------------------------------------------- what it holds
    @property
    def names(self) -> tuple[str, ...]:
        """The names of the planned tensors, in file order."""
        return tuple(self._spans.names(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def reads(self) -> tuple[tuple[str | None, int, int], ...]:
        """Path, offset and bytes of each read, in file order; they share no byte. The path of a buffer is None."""
        paths = [parts_of(file)[0].path for file in self._spans.files]
        sizes = self._stops - self._starts
        columns = (self._files.tolist(), self._starts.tolist(), sizes.tolist())
        return tuple((paths[file], start, size) for file, start, size in zip(*columns, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of all reads, the gaps that they bridge included."""
        return int((self._stops - self._starts).sum())

    @property
    def wanted_nbytes(self) -> int:
        """Bytes that hold what is wanted; those that several tensors share count once."""
        return int(self._wanted.sum())

    # ------------------------------------------------------------------------------------------------- as an object
    def close(self) -> None:
        """Close the handle, where `weightmap.plan` opened it. Arrays obtained before remain valid."""
        if self._owned:
            self.file.close()

    def __enter__(self) -> Self:
        check_open(self.file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        what = f"{counted(len(self), 'tensor')}, {counted(len(self._starts), 'read')}, {self.nbytes} bytes"
        return f"<ReadPlan {escape(repr(name_of(self.file)))}: {what}>"


def plan(
    source: Any,
    wants: Any = None,
    *,
    rank: int = 0,
    world: int = 1,
    local_rank: int = 0,
    local_world: int = 1,
    gap: int = 64 << 10,
    max_over_read: float = 1.1,
    chunk: int = 16 << 20,
    budget: int | None = None,
) -> ReadPlan:
    """Plan which bytes of a model to read, and in which order.

    Parameters
    ----------
    source : TensorFile, or what `open` takes
        A handle stays yours; anything else is opened, and closed with the plan.
    wants : optional
        * None: every tensor, or with `world` this rank's part of them: whole tensors, dealt out by bytes;
        * names of tensors, or a function that a `TensorInfo` is given to and that says whether to have it;
        * a mapping from names to indices, such as ``{name: np.s_[:, 128:256]}`` or what `shard` returns: only the bytes
          that hold these elements. Indices are integers, slices and ``...``; None wants the whole tensor. Of a
          quantised tensor whole blocks are read.
    rank, world : int
        This reader and the number of readers. With `wants`, which say what *this* rank wants, they deal nothing out.
    local_rank, local_world : int
        The same among the readers on this machine, which divide the work of `ReadPlan.warm`.
    gap : int
        Wanted ranges closer to each other than so many bytes are one read,
    max_over_read : float
        as long as a read has at most so many times its wanted bytes.
    chunk : int
        Bytes read at once.
    budget : int, optional
        Bytes of memory that `ReadPlan.warm` and `ReadPlan.run` may fill; by default what memory and control group
        leave.

    Returns
    -------
    ReadPlan

    Raises
    ------
    PlanError
        When an index does not fit its tensor, a rank is not below its world, or a number is too small.
    TensorNotFoundError
        For a name that no tensor has.
    FormatError, OSError
        As of `open`.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.safetensors", {"w": np.arange(32, dtype=np.float32).reshape(8, 4)})
    >>> p = wm.plan("model.safetensors", {"w": wm.shard("w", 0, rank=1, world=4)})
    >>> p.names, p.nbytes, p.wanted_nbytes
    (('w',), 32, 32)
    """
    options: dict[str, int | None] = {"gap": _at_least(0, "gap", gap), "chunk": _at_least(1, "chunk", chunk)}
    options["budget"] = None if budget is None else _at_least(1, "budget", budget)
    options["rank"], options["world"] = number, count = checked_rank(rank, world)
    options["local_rank"], options["local_world"] = checked_rank(local_rank, local_world, ("local_rank", "local_world"))
    most = float(max_over_read)
    if not 1 <= most < math.inf:
        raise PlanError("max_over_read", field="max_over_read", actual=most, expected="a finite number, at least 1")
    owned = not isinstance(source, TensorFile)
    file = open_model(source) if owned else source
    try:
        spans = spans_of(file)
        numbers, indices = (dealt(spans, number, count), {}) if wants is None else wanted(file, spans, wants)
        return ReadPlan(file, numbers, indices, max_over_read=most, owned=owned, **options)
    except BaseException as error:
        if owned:
            file.close()
        if isinstance(error, TensorFileError):
            raise error.located(path=name_of(file)) from None
        raise


def _at_least(least: int, what: str, value: int) -> int:
    number = index(value)
    if number < least:
        raise PlanError(what, field=what, actual=number, expected=f"at least {least}")
    return number
