"""`apply` and `pull`: bring a local model to another version, which is verified as a whole before any change."""

from __future__ import annotations

import contextlib
import json
import os
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.core.arguments import DEFAULT_LIMITS, Options, as_integer, as_path, as_threads, check_progress, mistyped
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.open_source import MAX_OPEN, called, inside, path_of, read_small
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.formats import Tensors, by_name
from weightmap.core.formats._writing import Payload, Request
from weightmap.core.model.internals import name_of, rows_of, sources_of, where_of
from weightmap.core.model.listing import new_sum
from weightmap.core.model.opening import open_with
from weightmap.core.native import access
from weightmap.deltas import versions
from weightmap.deltas.frames import AT_ONCE
from weightmap.deltas.local import Journal, Local, folder_of_model
from weightmap.deltas.overlay import Patched, check_chain, overlaid, read_delta
from weightmap.deltas.publishing import DeltaReport
from weightmap.deltas.writing import CHANGES, pieces, segments, write_changes, write_files, write_planned
from weightmap.errors import DeltaError, Remedy, TargetError, TensorFileError, UnsupportedError
from weightmap.huggingface.companion_files import CompanionFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from weightmap.core.bytes.source import Source
    from weightmap.core.model.file import TensorFile
    from weightmap.core.model.typing import ModelSource
    from weightmap.core.table.table import Row

# Files are read by pread: tensors are copied, not handed out.
_READING = Options(DEFAULT_LIMITS, private=True)


def apply(
    model: str | os.PathLike[str],
    delta: str | os.PathLike[str],
    *,
    in_place: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DeltaReport:
    """Bring a local model from the base version of a delta to its version.

    Every tensor is decoded and compared with its checksum before any change; then a single step makes the model the new
    one. Readers of the old files keep the old bytes: see `pull`.

    Parameters
    ----------
    model : str or os.PathLike
        A safetensors file, or the directory or index of a model in such files. A directory gets the record of its
        version, ``.weight_sync/``. A directory without a record counts as the base; the checksums of this delta, and of
        the delta before if it lies beside, confirm that.
    delta : str or os.PathLike
        The directory of the delta, or its address in a store.
    in_place : bool
        For a directory, as in `pull`.
    threads : int, optional
        The most threads that share the work, tensor by tensor; by default one for each CPU of this process.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes of the files that are written.

    Returns
    -------
    DeltaReport

    Raises
    ------
    DeltaError
        When the delta is damaged, or not built on the version of the model.
    TargetError
        When the disk lacks the room.
    UnsupportedError
        When the model is not stored as safetensors: convert it first.
    MissingDependencyError
        When the extra ``[deltas]`` is not installed.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> from weightmap import deltas
    >>> wm.save("old.safetensors", {"w": np.zeros(1000, np.float32)})
    >>> wm.save("new.safetensors", {"w": np.arange(1000, dtype=np.float32)})
    >>> report = deltas.publish("old.safetensors", "new.safetensors", "published", version=1)
    >>> deltas.apply("old.safetensors", "published/weight_v000001").tensors
    1
    >>> wm.diff("old.safetensors", "new.safetensors").equal
    True
    """
    started = time.perf_counter()
    path, work = _local_path("model", model), _Work(threads, progress, in_place=in_place)
    folder = folder_of_model(path)
    step = read_delta(_address("delta", delta), _READING)
    try:
        if step.base_version and (folder is None or not Local(folder).is_recorded):
            _check_base(path, step)
        if folder is None:
            if in_place:
                os.stat(path)  # a file that is not there
                remedy = Remedy("give its directory for {}", "in_place", switch=True)
                raise TargetError("a file on its own has no journal", path=path, remedy=remedy)
            return _apply_to_file(path, step, work, started)
        local = Local(folder, work.threads)
        with local.holding():
            at = local.version()
            if at == step.version:
                raise DeltaError(f"the model is already at version {at}, to which this delta leads", path=path)
            check_chain(at, [step])
            at = step.base_version if at is None else at
            return _advance(local, UpgradePath(local.folder, at, [step]), step.version, at, work, started)
    finally:
        step.close()


def pull(
    local: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    base: ModelSource | None = None,
    version: int | None = None,
    in_place: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DeltaReport:
    """Update a local model to a published version, by deltas if possible.

    The pull begins at the newest full version up to the wanted one, at `base`, or at the local version, whichever needs
    the fewest deltas. It writes all files beside the old ones, compares all checksums and flushes everything; then one
    step switches files and version. If it is stopped at any moment, the directory holds entirely the old or the new
    version, and the next pull continues. Arrays over the old files keep the old bytes.

    Parameters
    ----------
    local : str or os.PathLike
        The directory; made if it does not exist. It keeps its version in ``.weight_sync/state.json``, as SGLang's
        ``/pull_weights`` does, and the two can take turns. A model without a record counts as the base, which the
        checksums confirm.
    source : str or os.PathLike
        The directory with ``weight_vNNNNNN/``, or its address.
    base : str, os.PathLike or anything else that `weightmap.open` takes, optional
        The model of version 0. Its configuration and tokenizer are copied too, as for full versions.
    version : int, optional
        The wanted version. By default the newest finished one, unless the local model is newer, which then stays
        unchanged. A given older version is rebuilt.
    in_place : bool
        Change the files themselves, by a journal, if the pull begins at the local version and no process has them open:
        the disk then needs room only for the changes, which are written first. Meanwhile `weightmap.open` raises an
        error, so that readers never see a mixture: the model is being changed, or a stopped pull must be repeated. New
        files are written beside files that may be open, also on network file systems, which do not tell.
    threads : int, optional
        The most threads that share the work, tensor by tensor; by default one for each CPU of this process.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes of the files that are written.

    Returns
    -------
    DeltaReport

    Raises
    ------
    DeltaError
        When a version is missing, unfinished, damaged, or not built on the one before. The directory is unchanged.
    TargetError
        When the disk lacks the room.
    ValueError
        For a negative version.
    MissingDependencyError
        When the extra ``[deltas]`` is not installed.

    Notes
    -----
    If several processes pull at once, one does the work and the others wait. The old files stay in
    ``.weight_sync/spare/``; the next pull writes over them once no process has them open, which is faster than new
    files.
    """
    started = time.perf_counter()
    folder, published = _local_path("local", local), _address("source", source)
    work = _Work(threads, progress, in_place=in_place)
    number = None if version is None else as_integer("version", version)
    if number is not None and number < 0:
        raise ValueError(f"version is {number}, expected 0 or more")
    place = Local(folder, work.threads)
    with contextlib.suppress(OSError, OverflowError, TypeError, ValueError):
        if base is not None and os.path.samefile(base, place.folder):  # type: ignore[arg-type]  # suppressed
            base = None
    target = versions.newest_in(published) if number is None else number
    # Without a record, find the path before the lock, which makes a folder: a failure then leaves nothing behind.
    paths = [] if place.is_recorded else [_find_path(place, published, target, None, base)]
    try:
        with place.holding():
            at = place.version()
            if at is not None and (at == target or (number is None and at > target)):
                return _unchanged(place, at, started)
            if at is not None or not paths:
                paths.append(_find_path(place, published, target, at, base))
            return _advance(place, paths[-1], target, at, work, started)
    finally:
        for path in paths:
            path.close()


def chain_to(model: str, source: str) -> tuple[str, list[str]]:
    """Return the model from which deltas lead to a published version, and the directories of these deltas.

    Parameters
    ----------
    model : str
        A directory: the model that is version 0, or the version in its record.
    source : str
        A directory of versions, for the newest finished one, or one of its ``weight_vNNNNNN``.

    Raises
    ------
    DeltaError
        When a version on the way is missing, unfinished, damaged, or not built on the one before.
    """
    source, target = versions.split_version(source)
    place = Local(model)
    at = place.version()
    target = versions.newest_in(source) if target is None else target
    if at == target:
        return model, []
    path = _find_path(place, source, target, at, None)
    path.close()
    return path.begin, [delta.path for delta in path.deltas]


class _Work:
    """Threads and progress of the work."""

    def __init__(self, threads: int | None, progress: Callable[[int, int], None] | None, *, in_place: bool) -> None:
        check_progress(progress)
        self.in_place = in_place
        self.threads: int = access.cpus() if threads is None else as_threads(threads)
        self._progress, self._done, self._total = progress, 0, 0

    def begin(self, total: int) -> None:
        self._total = total
        self.add(0)

    def add(self, nbytes: int) -> None:
        self.reached(self._done + nbytes, self._total)

    def reached(self, done: int, total: int) -> None:
        self._done = done
        if self._progress is not None:
            self._progress(done, total)


class UpgradePath(NamedTuple):
    """The way to a version: the model to begin with, its version, and the deltas from there."""

    begin: Any
    version: int
    deltas: list[versions.Delta]

    def close(self) -> None:
        """Close the deltas."""
        for delta in self.deltas:
            delta.close()


def _local_path(name: str, value: Any) -> str:
    path = as_path(name, value)
    if "://" in path:
        raise TargetError("this is an address, and models are changed on a file system", path=path)
    return path


def _address(name: str, value: Any) -> str:
    path = path_of(value)
    if path is None:
        raise mistyped(name, value, "a path or an address")
    return path


def _find_path(place: Local, source: str, target: int, at: int | None, base: Any) -> UpgradePath:
    """Return the path to a version with the fewest deltas. Raises `DeltaError` if no path exists."""
    deltas: list[versions.Delta] = []
    try:
        begin, number = _walk_back(place, source, target, at, base, deltas)
    except BaseException as error:
        for delta in deltas:
            delta.close()
        if isinstance(error, TensorFileError):
            raise error.located(path=place.folder) from None
        raise
    return UpgradePath(begin, number, deltas[::-1])


def _walk_back(
    place: Local, source: str, target: int, at: int | None, base: Any, deltas: list[versions.Delta]
) -> tuple[Any, int]:
    """Add the deltas from a version back to a model; return that and its version."""
    number = target
    while number != at:
        if number == 0:
            if base is None and (at is not None or place.model() is None):
                what = "the deltas begin at version 0, which is not here"
                raise DeltaError(what, remedy=Remedy("give {}, the model that is version 0", "base"))
            return place.folder if base is None else base, 0
        directory = versions.folder_at(inside(source, versions.version_name(number)))
        delta = versions.read_version(directory, _READING, deltas)
        if delta is None:
            return directory, number
        deltas.append(delta)
        if delta.version != number:
            raise DeltaError("version", path=directory, field="version", actual=delta.version, expected=number)
        number = delta.base_version
    return place.folder, number


def _unchanged(place: Local, at: int, started: float) -> DeltaReport:
    with open_with(place.folder, _READING) as file:
        total = _nbytes(rows_of(file))
    return DeltaReport(at, at, 0, 0, 0, total, time.perf_counter() - started)


def _nbytes(rows: Iterable[Row]) -> int:
    return sum(map(attrgetter("nbytes"), rows))


def _advance(place: Local, path: UpgradePath, target: int, at: int | None, work: _Work, started: float) -> DeltaReport:
    """Go to a version: write all of its files, or what changes in them, and then make them the model's."""
    update = path.begin is place.folder  # of the local model itself, and no copy of another one
    in_place = work.in_place and update and place.is_unused()
    identities = place.identities()
    try:
        # The handle closes the files of the model and of the deltas. Nobody may have files open that change in place.
        with _opened(path) as (base, file):
            if not update:
                versions.check_values(base)
            rows = list(rows_of(file))
            changed = [row for row in rows if isinstance(row.geometry, Patched)]
            stages = not update or bool(changed)
            how = {"update": update, "in_place": in_place}
            change = _stage(place, base, file, changed, target, at, identities, work, **how) if stages else None
            stored = sum(map(attrgetter("nbytes"), path.deltas))
            if not update:
                stored += sum(map(attrgetter("size"), sources_of(base)))
            sizes = _nbytes(changed), stored, _nbytes(rows)
        if change is None:
            place.record(target)
        else:
            place.commit(change)
    except BaseException:
        try:
            place.give_up()
        except BaseException:  # an interrupt of that itself
            place.give_up()
            raise
        raise
    before = path.version if at is None else at
    return DeltaReport(target, before, len(changed), *sizes, time.perf_counter() - started)


@contextlib.contextmanager
def _opened(path: UpgradePath) -> Iterator[tuple[TensorFile, TensorFile]]:
    """Open the model at which a path begins, and the one at its end.

    If the checksum of a tensor differs, say that the first may not be the base version, or that it is the last one.
    """
    base = open_with(path.begin, _READING)
    with overlaid(base, path.deltas, _READING) as file:
        try:
            yield base, file
        except DeltaError as error:
            if error.field != "checksum":
                raise
            name = name_of(file)
            if all(_is_there(row) for row in rows_of(file) if isinstance(row.geometry, Patched)):
                raise DeltaError(f"the model is already at version {path.deltas[-1].version}", path=name) from None
            error.what = f"{name} is not version {path.version}, the base of the delta, or one is damaged: {error.what}"
            raise


def _is_there(row: Row) -> bool:
    """Whether a tensor has the same bytes before and after the deltas."""
    assert isinstance(row.geometry, Patched)  # noqa: S101 - that is what changed rows have
    frame, plain = row.geometry.frames[-1], row._replace(geometry=None)
    digest = new_sum(frame.checksum)
    for chunk in plain.chunks():
        digest.update(chunk)
    return str(digest.hexdigest()) == frame.digest


def _stage(
    place: Local,
    base: TensorFile,
    file: TensorFile,
    changed: Sequence[Row],
    target: int,
    at: int | None,
    before: dict[str, tuple[int, int]],
    work: _Work,
    *,
    update: bool,
    in_place: bool,
) -> Journal:
    """Write the files of a version to ``next/``, all of them or only the changed ones; return the journal for it."""
    parts = {name: sources_of(shard)[0] for name, shard in base.shards.items()}
    path = sources_of(file)[0].path  # of the index, or of the only file
    only = called(path) if update and path is not None else versions.SINGLE
    parts, sharded = parts or {only: sources_of(file)[0]}, bool(parts)
    formats = {part.format for part in (*base.shards.values(), base)}
    plan = None
    if formats != {"safetensors"}:
        if update:
            what = "format of the model"
            raise UnsupportedError(what, path=name_of(file), actual=file.format, expected="safetensors: convert it")
        parts, sharded, plan = {versions.SINGLE: sources_of(file)[0]}, False, _as_safetensors(file)
    of: dict[Source, list[Row]] = {source: [] for source in parts.values()}
    for row in () if plan is not None else changed:
        of[row.source].append(row)
    if update:
        parts = {name: source for name, source in parts.items() if of[source]}
    old = before.keys()
    names: dict[str, str] = {}
    for name in parts:
        # Only a directory that has no model yet gets the names of the source.
        plain = not sharded or (not old and "/" not in name)
        names[name] = name if plain else place.new_name(os.path.basename(name), target, {*names.values()})
    sizes = {names[name]: source.size if plan is None else plan.size for name, source in parts.items()}
    if in_place:
        work.begin(_nbytes(changed))
        frames = max(len(row.geometry.frames) for row in changed if isinstance(row.geometry, Patched))
        threads = max(1, min(work.threads, AT_ONCE // frames))
        write_changes([of[source] for source in parts.values()], place.begin_changes(), threads, work.add)
    else:
        work.begin(sum(sizes.values()))
        like = {names[name]: (name, _nbytes(of[source])) for name, source in parts.items()}
        shared, listed = place.begin(sizes, like if update else {}), [*parts.items()]
        if plan is not None:
            write_planned(plan, place.open_staged(versions.SINGLE, plan.size), work.add)
        for start in range(0, len(listed) if plan is None else 0, MAX_OPEN):  # a process has few descriptors
            files = [
                (part, of[part], place.open_staged(names[name], part.size), names[name] in shared)
                for name, part in listed[start : start + MAX_OPEN]
            ]
            write_files(files, work.threads, work.add)
    copied = () if update or path is None else CompanionFiles(path, place.staged(""), replace=True).copy()
    moves = [(name, name) for name in copied]
    switch: tuple[str | None, str] = (only, only)
    if sharded:
        index = called(path) if update and path is not None else versions.INDEX
        _write_index(place, path, index, {name: names.get(shard, shard) for name, shard in where_of(base).items()})
        shards = [(name, name) for name in names.values()]
        # If there was no model before, shards without their index might pass for one.
        *first, switch = (*shards, (index, index)) if old else ((index, index), *shards)
        moves += first
    elif not update and versions.INDEX in old:  # readers prefer an index: its end is the step
        moves.append((only, only))
        switch = (None, versions.INDEX)
    # Files behind a linked folder belong to others, who may still have a use for them.
    gone: set[str] = (
        (old & set(names) if sharded else set()) if update else old - {switch[1], *(new for _, new in moves)}
    )
    patches = [*names.items()] if in_place else []
    change = Journal(target, at, moves, switch, sorted(gone), {}, before, patches)
    staged = {name for name, _ in change.renamed()} - {name for _, name in patches} | ({CHANGES} if patches else set())
    return change._replace(coming={name: place.staged_identity(name) for name in staged})


def _write_index(place: Local, path: str | None, name: str, where: Mapping[str, str]) -> None:
    """Write the index of a model whose shards have new names, with the rest of the index at `path`."""
    content = strict_json.loads((path and read_small(path)) or b"{}", "index of shards")
    content["weight_map"] = dict(where)
    data = f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode()
    place.write_staged(name, data)


def _as_safetensors(file: TensorFile) -> WritePlan:
    """Return the plan of a file of safetensors with the tensors of a model in another format."""
    payloads = [
        Payload(name, row.dtype, row.shape, row.nbytes, row.chunks)
        for name, row in zip(file, rows_of(file), strict=True)
    ]
    target = by_name("safetensors")
    assert target.plan is not None  # noqa: S101 - for the type checker
    return target.plan(Request(Tensors(payloads), target.layouts[0], {"format": "pt"}))


def _check_base(model: str, step: versions.Delta) -> None:
    """Refuse a model without a record that lacks the changes of the previous delta, if this lies beside the delta.

    A delta has checksums only of the tensors that it changes: a model two versions behind may pass for its base.
    """
    source, _ = versions.split_version(step.path)
    before = None
    with contextlib.suppress(TensorFileError, OSError):  # then it cannot be checked
        before = versions.read_version(inside(source, versions.version_name(step.base_version)), _READING)
    if before is None:
        return
    # The others are compared with their checksums as they are decoded.
    before.frames = {name: frame for name, frame in before.frames.items() if name not in step.frames}
    with contextlib.closing(before), overlaid(open_with(model, _READING), [before], _READING) as file:
        if not all(_is_there(row) for row in rows_of(file) if isinstance(row.geometry, Patched)):
            what = f"the model lacks the changes of version {before.version}, the base of the delta"
            raise DeltaError(what, path=name_of(file), field="base_version")


def _apply_to_file(path: str, delta: versions.Delta, work: _Work, started: float) -> DeltaReport:
    """Replace a file by its next version, under a delta."""
    with _opened(UpgradePath(path, delta.base_version, [delta])) as (base, file):
        source, rows = sources_of(file)[0], list(rows_of(file))
        changed = [row for row in rows if isinstance(row.geometry, Patched)]
        if file.format != "safetensors" or base.shards:
            raise UnsupportedError(
                "format of the model", path=path, actual=file.format, expected="safetensors: convert it"
            )
        work.begin(source.size)

        def write(sink: Sink) -> None:
            for segment in segments(source, changed):
                for piece in pieces(source, *segment):
                    sink.write(piece)

        if changed:
            write_plan(path, WritePlan(source.size, write), progress=work.reached)
        sizes = _nbytes(changed), delta.nbytes, _nbytes(rows)
        return DeltaReport(delta.version, delta.base_version, len(changed), *sizes, time.perf_counter() - started)
