"""`plan`: from what the caller wants to a `ReadPlan`."""

from __future__ import annotations

import math
from typing import Any

from weightmap.arguments import as_float
from weightmap.errors import PlanError, TensorFileError
from weightmap.index import INT64_MAX
from weightmap.model.file import TensorFile
from weightmap.model.opening import open as open_model
from weightmap.model.parts import name_of
from weightmap.model.spans import spans_of
from weightmap.model.weights import as_parameters
from weightmap.plans.indices import at_least, checked_rank
from weightmap.plans.parameters import ParameterPlan
from weightmap.plans.read_plan import ReadPlan
from weightmap.plans.wants import dealt, resolve_wants


def plan(
    source: Any,
    wants: Any = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    local_rank: int = 0,
    local_world: int = 1,
    gap: int = 64 << 10,
    max_over_read: float | None = None,
    chunk: int = 16 << 20,
    budget: int | None = None,
    weights: bool = False,
    trust: Any = None,
) -> ReadPlan:
    """Plan which bytes of a model to read, and in which order.

    Parameters
    ----------
    source : TensorFile, or what `open` takes
        A handle stays yours; anything else is opened, and closed with the plan.
    wants : optional
        * None: every tensor, or with `world_size` this rank's part of them: whole tensors, dealt out by bytes;
        * names of tensors, or a predicate on `TensorInfo`;
        * pairs of a name and an index, where a tensor may have several: each is a part of its own;
        * what `shard` returns for a name: that slice of every tensor, and the whole of those without its dimension;
        * a mapping from names to indices, such as ``{name: np.s_[:, 128:256]}`` or what `shard` returns: only the bytes
          that hold these elements. Indices are integers, slices and ``...``; None wants the whole tensor. Of a
          quantised tensor whole blocks are read.
    rank, world_size : int
        This reader and the number of readers. With `wants`, which are those of *this* rank, nothing is divided.
    local_rank, local_world : int
        The same among the readers on this machine, which divide the work of `ReadPlan.warm`.
    gap : int
        Wanted ranges less than this many bytes apart are joined into one read. Gaps below it in a tensor, such as
        between columns, also come from a disk that is not in the page cache, up to eight times what is wanted.
    max_over_read : float, optional
        Ranges are joined as long as the read has at most this many times its wanted bytes; 1.1 when not given. Of a
        model in a store, the ranges of one tensor, such as columns, are then joined wherever less than 512 KiB lie
        between them, which come sooner than the answer to another request.
    chunk : int
        Bytes read at once.
    budget : int, optional
        Bytes of memory that `ReadPlan.warm` and `ReadPlan.run` may fill; by default what memory and control group
        leave, divided among the local readers.
    weights : bool
        Plan the parameters of a quantised checkpoint, as `TensorFile.weights` has them: of their stored tensors, only
        what decodes the rows that are wanted. An index gives decoded elements, of the model's type. Each parameter may
        have one index; `ReadPlan.run` takes neither `into` nor `cut`.
    trust : optional
        As for `open`, of a source that is opened here: whole files are hashed, whatever is wanted of them. Pass a
        handle in mode "copy" or "sealed" to be handed out the very bytes that were hashed.

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
    options: dict[str, Any] = {"gap": at_least(0, "gap", gap)}
    options["chunk"] = min(at_least(1, "chunk", chunk), INT64_MAX)  # the reads of columns count in 64 bits
    options["budget"] = None if budget is None else at_least(1, "budget", budget)
    options["rank"], options["world_size"] = number, count = checked_rank(rank, world_size)
    options["local_rank"], options["local_world"] = checked_rank(local_rank, local_world, ("local_rank", "local_world"))
    most = None if max_over_read is None else as_float("max_over_read", max_over_read)
    if most is not None and not 1 <= most < math.inf:
        raise PlanError("max_over_read", field="max_over_read", actual=most, expected="a finite number, at least 1")
    owned = not isinstance(source, TensorFile)
    if not owned and trust is not None:
        raise ValueError("trust= is for a source that is opened here: open the handle with it")
    file = open_model(source, trust=trust) if owned else source
    try:
        whose = {"owned": owned, "dealt": wants is None and count > 1}
        model = as_parameters(file) if weights else file
        if model is not file:
            return ParameterPlan(file, model, wants, max_over_read=most, **whose, **options)
        spans = spans_of(file)
        numbers, indices = (dealt(spans, number, count), {}) if wants is None else resolve_wants(spans, wants)
        return ReadPlan(file, numbers, indices, max_over_read=most, **whose, **options)
    except BaseException as error:
        if owned:
            file.close()
        if isinstance(error, TensorFileError):
            raise error.located(path=name_of(file)) from None
        raise
