"""Models in several files of bounded size: which tensors go into which, and writing them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from weightmap.io.atomic import write_plan
from weightmap.model.sharding import ShardTarget, sharded_target, write_shards
from weightmap.model.single import INDEX_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightmap.formats import Format, Payload, Plan

__all__ = ["Written", "beside", "bytes_of_size", "named_by", "write_split"]

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([A-Za-z]*)")


class Written(NamedTuple):
    """What was written: the path that opens the model, the bytes of its files, and how many shards there are."""

    path: str
    nbytes: int
    shards: int


def bytes_of_size(size: int | str) -> int:
    """Return a size such as 5_000_000_000, "5GB" or "4.5GiB" in bytes. Raises ValueError for one that is none."""
    found = 0
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = None if match is None else _UNITS.get(match[2].upper().replace("IB", "iB"))
        if match is not None and unit is not None and (unit > 1 or "." not in match[1]):
            found = int(float(match[1]) * unit)
    elif not isinstance(size, bool) and (hasattr(size, "__index__") or (isinstance(size, float) and size.is_integer())):
        found = int(size)
    if found < 1:
        msg = f"max_shard_size is {size!r}, expected a number of bytes, or a text such as '5GB' or '4GiB'"
        raise ValueError(msg)
    return found


def named_by(path: str) -> str:
    """Return the name whose suffix says the format of shards: that of an index without its ending."""
    return path.removesuffix(INDEX_SUFFIX)


def write_split(
    path: str,
    found: Format,
    payloads: Sequence[Payload],
    most: int,
    plan: Callable[[str, Sequence[Payload], tuple[int, int, int] | None], Plan],
    *,
    progress: Callable[[int, int], None] | None = None,
    durable: bool = True,
) -> Written:
    """Write a model to files with up to `most` bytes of tensors each, in their order.

    A model that fits into one file becomes that file, unless `path` is a directory or an index. A larger tensor gets a
    file for itself.

    Parameters
    ----------
    path : str
    found : Format
    payloads : sequence of Payload
    most : int
    plan : callable
        ``plan(path, payloads, part)`` returns the plan of a file; `part` is that of its `Request`.
    progress, durable
        As for `save`.
    """
    groups = _groups(payloads, most)
    target = sharded_target(path, found)
    if target is None and len(groups) == 1:
        return Written(path, write_plan(path, plan(path, groups[0], None), progress=progress, durable=durable), 0)
    if target is None:
        target = beside(path, found)
    shards = [
        (
            plan(os.path.join(target.folder, name), group, (i, len(groups), len(payloads))),
            [payload.name for payload in group],
        )
        for i, (name, group) in enumerate(zip(target.names(len(groups)), groups, strict=True))
    ]
    return Written(target.path, write_shards(target, shards, progress=progress, durable=durable), len(shards))


def _groups(payloads: Sequence[Payload], most: int) -> list[list[Payload]]:
    groups: list[list[Payload]] = [[]]
    filled = 0
    for payload in payloads:
        if groups[-1] and filled + payload.nbytes > most:
            groups.append([])
            filled = 0
        groups[-1].append(payload)
        filled += payload.nbytes
    return groups


def beside(path: str, found: Format) -> ShardTarget:
    """Return the target of a model whose single file would have been `path`: shards and index lie in its place."""
    folder, name = os.path.split(path)
    suffix = next((suffix for suffix in found.suffixes if name.lower().endswith(suffix)), "")
    stem = name[: -len(suffix)] if suffix else name
    return ShardTarget(folder, f"{name}{INDEX_SUFFIX}", stem or "model", name[len(stem) :], path)
