"""The cost of a plan, with advice: `ReadPlan.explain` and the command ``doctor``."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import counted
from weightmap.core.arguments import size
from weightmap.core.bytes import Range
from weightmap.core.bytes.memory import Headroom, headroom
from weightmap.core.formats import FORMATS, Format
from weightmap.core.model.internals import parts_of, rows_of
from weightmap.core.model.single import is_index
from weightmap.plans.pages import Sample, file_system_of, sample
from weightmap.plans.warming import cold_in, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row
    from weightmap.plans.residency import Spans

# jax shares arrays that begin at multiples of this many bytes, a line of the cache.
_ALIGNMENT = 64
# The kernel's default fault-around window, in bytes
_AROUND, _LARGE = 64 << 10, 2 << 20
# Bytes to map for a sample: at most, and at least; fewer would tell nothing about how a file was written.
_MAX_SAMPLE_BYTES, _MIN_SAMPLE_BYTES = 64 << 20, 8 << 20
# Descriptions of the use of files, by `how` or by the kind of file system.
_USES = {"map": "mapped", "read": "read, since touching it may fail", "store": "fetched by requests"}
# With less than this part in memory, warming pays; with less than this part in large pages, rewriting pays.
_WARM_PART, _LARGE_PART = 0.9, 0.5


class Place(NamedTuple):
    """Files of a plan that lie on the same kind of file system.

    Attributes
    ----------
    file_system, kind : str
        Such as "ext4" and "local": see `weightmap.plans.pages`.
    how : str
        The choice of ``run("auto")`` for them: "map" or "read".
    files, nbytes : int
        Number of files, and bytes read from them.
    """

    file_system: str
    kind: str
    how: str
    files: int
    nbytes: int


class PlanReport(NamedTuple):
    """The cost of a plan. ``str()`` makes a readable text, `as_dict` values for JSON.

    Attributes
    ----------
    path : str or None
    tensors, reads, nbytes, wanted_nbytes : int
        The plan's.
    places : tuple of Place
    cold : int or None
        Bytes that are not in memory; None if the system does not tell.
    faults : int or None
        Estimated page faults of touching everything once it is in memory; None if they could not be measured.
    large_pages : float or None
        Fraction of a sample of resident bytes that the system maps by pages of 2 MiB.
    seconds : float or None
        Estimated time to map all pages, from the sample.
    misaligned, misaligned_nbytes : int
        Tensors, and their bytes, that jax copies only because they do not begin at a multiple of 64 bytes. Quantised
        tensors, and other tensors not stored as arrays, do not count.
    memory : Headroom
        Memory that machine and control groups leave.
    budget : int or None
        Bytes that the plan may fill; None if unknown.
    advice : tuple of str
        Advice, of a sentence or two each; empty if all is well.
    """

    path: str | None
    tensors: int
    reads: int
    nbytes: int
    wanted_nbytes: int
    places: tuple[Place, ...]
    cold: int | None
    faults: int | None
    large_pages: float | None
    seconds: float | None
    misaligned: int
    misaligned_nbytes: int
    memory: Headroom
    budget: int | None
    advice: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        report = self._asdict()
        report["places"] = [place._asdict() for place in self.places]
        groups = [group._asdict() | {"left": group.available} for group in self.memory.groups]
        report["memory"] = {"available": self.memory.available, "groups": groups, "left": self.memory.limit}
        report["advice"] = list(self.advice)
        return report

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the report as pairs of a label and its text."""
        over = self.nbytes - self.wanted_nbytes
        more = f", {size(over)} of them in gaps" if over else ""
        yield "reads", f"{counted(self.reads, 'read')}, {size(self.nbytes)}{more}"
        for place in self.places:
            files = f"{counted(place.files, 'file')}, {size(place.nbytes)}: "
            yield place.file_system, files + _USES.get(place.kind, _USES[place.how])
        if self.cold is None:
            yield "in memory", "the system does not say"
        else:
            warm = (self.nbytes - self.cold) / self.nbytes if self.nbytes else 1.0
            yield "in memory", f"{size(self.nbytes - self.cold)} of {size(self.nbytes)} ({warm:.0%})"
        if self.faults is not None:
            pages = f"{self.large_pages:.0%} in pages of 2 MiB"
            yield (
                "touching it",
                f"about {counted(self.faults, 'page fault')} and {self.seconds:.2g} s, once in memory; {pages}",
            )
        if self.misaligned:
            tensors = f"{self.misaligned:,} of {counted(self.tensors, 'tensor')} ({size(self.misaligned_nbytes)})"
            yield "alignment", f"not at a multiple of {_ALIGNMENT} bytes: {tensors}"
        else:
            yield "alignment", f"every array begins at a multiple of {_ALIGNMENT} bytes"
        if self.memory.available is not None:
            yield "memory", f"{size(self.memory.available)} available"
        for group in self.memory.groups:
            used = f"{size(group.used)} of {size(group.limit)} used"
            yield (
                "control group",
                f"{group.path}: {used}, {size(group.files)} of that by files; {size(group.available)} left",
            )
        if self.budget is not None:
            yield "budget", size(self.budget)

    def __str__(self) -> str:
        pairs = list(self.lines())
        width = max(len(label) for label, _ in pairs)
        text = [f"{label:<{width}}  {value}" for label, value in pairs]
        return "\n".join([*text, *(f"-> {line}" for line in self.advice)])


def explain(
    file: TensorFile,
    spans: Spans,
    numbers: NDArray[np.int64],
    sources: Sequence[Source],
    reads: tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]],
    wanted_nbytes: int,
    bound: int | None,
) -> PlanReport:
    """Implement `ReadPlan.explain`."""
    files, starts, stops = reads
    nbytes = int((stops - starts).sum())
    per_file = np.bincount(files, weights=stops - starts, minlength=len(sources)).astype(np.int64)
    memory = headroom()
    parts = pieces(reads, _MIN_SAMPLE_BYTES)
    cold, known_cold = cold_in(sources, parts)
    sampled = _sampled(sources, parts, cold) if known_cold else None
    begins, sizes = spans.begin[numbers], spans.nbytes[numbers]
    off = (begins % _ALIGNMENT != 0) & (sizes > 0)
    if off.any():
        off &= np.array(list(map(_is_array, rows_of(file))))[spans.row[numbers]]
    faults = large = touching = None
    if sampled is not None:
        large = sampled.large / sampled.mapped
        faults = round(nbytes * (large / _LARGE + (1 - large) / _AROUND))
        touching = sampled.seconds * nbytes / sampled.mapped
    report = PlanReport(
        file.path,
        len(numbers),
        len(starts),
        nbytes,
        wanted_nbytes,
        tuple(_places(sources, per_file)),
        int(cold.sum()) if known_cold else None,
        faults,
        large,
        touching,
        int(off.sum()),
        int(sizes[off].sum()),
        memory,
        bound,
        (),
    )
    return report._replace(advice=tuple(_advice(report, sampled, file)))


def _is_array(row: Row) -> bool:
    """Whether the stored bytes of a tensor are an array without conversion."""
    return row.geometry is None and not (row.dtype.declared or row.dtype.packed or row.dtype.swapped)


def _places(sources: Sequence[Source], per_file: NDArray[np.int64]) -> Iterator[Place]:
    """Yield the kinds of file systems that hold the files to read."""
    places: dict[tuple[str, str, str], list[int]] = {}
    for number in np.flatnonzero(per_file).tolist():
        system = file_system_of(sources[number])
        of = places.setdefault((*system, "read" if system.is_remote else "map"), [0, 0])
        of[0] += 1
        of[1] += int(per_file[number])
    for (name, kind, how), (files, nbytes) in places.items():
        yield Place(name, kind, how, files, nbytes)


def _sampled(
    sources: Sequence[Source],
    parts: tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]],
    cold: NDArray[np.int64],
) -> Sample | None:
    """Map the largest run of parts that are wholly in memory; None without one of sufficient size."""
    files, starts, stops = parts
    warm = cold == 0
    if not warm.any():
        return None
    follows = warm[1:] & warm[:-1] & (files[1:] == files[:-1]) & (starts[1:] == stops[:-1])
    runs = np.cumsum(np.concatenate([[False], ~follows]))
    sizes = np.bincount(runs, weights=np.where(warm, stops - starts, 0))
    best = np.flatnonzero(runs == sizes.argmax())
    begin, end = int(starts[best[0]]), int(stops[best[-1]])
    if sizes.max() < _MIN_SAMPLE_BYTES:
        return None
    return sample(sources[int(files[best[0]])], Range(begin, min(end, begin + _MAX_SAMPLE_BYTES)))


def _advice(report: PlanReport, sampled: Sample | None, file: TensorFile) -> Iterator[str]:
    """Yield the advice."""
    remote = [place for place in report.places if place.how == "read" and place.kind != "store"]
    stored = sum(place.nbytes for place in report.places if place.kind == "store")
    if stored:
        yield f"{size(stored)} come from a store at each look-up: in Python, plan.run() fetches them in few requests"
    if remote:
        nbytes, names = sum(place.nbytes for place in remote), ", ".join(place.file_system for place in remote)
        yield (
            f"{size(nbytes)} lie on {names}, where a lost connection ends a process that touches a mapping: copy them "
            'to a local disk; in Python, read them with plan.run(), or open the file with mode="copy"'
        )
    if report.budget is not None and report.nbytes > report.budget:
        yield (
            f"{size(report.nbytes)} are more than the {size(report.budget)} {_bound(report)}: in Python, take them "
            "from plan.run(release=True), or divide them among ranks"
        )
    elif report.cold and report.cold - stored > (1 - _WARM_PART) * report.nbytes:
        first = f"{size(report.cold)} come from the disk at the first touch"
        yield f"{first}: `weightmap cache warm`, or plan.warm() in Python, reads them in parallel"
    if sampled is not None and sampled.large < _LARGE_PART * sampled.mapped:
        part = f"{sampled.large / sampled.mapped:.0%} of {size(sampled.mapped)} in pages of 2 MiB"
        small = f"the page cache holds this file in small pages ({part})"
        anew = _conversion(file, 1)
        cure = "" if anew is None else f": `{anew}` writes it anew, in large ones"
        yield f"{small}, as it does where a file was written in small pieces{cure}"
    aligned = _conversion(file, _ALIGNMENT) if report.misaligned else None
    if aligned is not None:
        tensors = f"{counted(report.misaligned, 'misaligned tensor')} ({size(report.misaligned_nbytes)})"
        yield f"jax copies {tensors}, numpy and torch do not: `{aligned} --align {_ALIGNMENT}` is the cure"


def _conversion(file: TensorFile, align: int) -> str | None:
    """Return the command that rewrites a model with the smallest loss; None if no format holds all tensors."""
    target = _holding(file, align)
    if target is None:
        return None
    path = file.path or "FILE"
    folder, name = os.path.split(path)
    stem, option = f"{os.path.splitext(name)[0]}.new{target.suffixes[0]}", ""
    if is_index(name) or os.path.lexists(os.path.join(folder, "config.json")):  # a directory, as it is
        named = "://" in path or os.path.basename(folder) not in {"", os.curdir, os.pardir}
        folder, name = os.path.split(folder if named else os.path.abspath(folder))
        stem, option = f"{name}.new/", "" if target.name == file.format else f" --format {target.name}"
    new = stem if "://" in path else os.path.join(folder, stem)
    return f"weightmap convert {shlex.quote(path)} {shlex.quote(new)}{option}"


def _holding(file: TensorFile, align: int) -> Format | None:
    """Return the format that holds all tensors with this alignment and the smallest loss; None if none does."""
    record = FORMATS.get(file.format)
    # The model's own format loses nothing. But a file of words may lack parts that its format requires in new files.
    if record is not None and record.plan is not None and record.embeddings is None and _max_align(record) >= align:
        layout = record.layouts[0]
        if parts_of(file)[1].table.dtypes() <= record.dtypes[layout] | record.schemes.get(layout, frozenset()):
            return record
    from weightmap.conversion.converting import losses  # noqa: PLC0415 - few files need it

    able = []
    for target in FORMATS.values():
        lost = losses(file, target, align) if target.plan is not None and _max_align(target) >= align else None
        if lost is not None:
            able.append((lost, target is not record, -_max_align(target), target.suffixes[0], target.name))
    return FORMATS[min(able)[-1]] if able else None


def _max_align(target: Format) -> int:
    """Return the most bytes to which a format aligns tensors."""
    return target.aligns.get(target.layouts[0], 1)


def _bound(report: PlanReport) -> str:
    """Return the owner of the budget's limit, as the end of a sentence."""
    if report.budget != report.memory.limit:
        return "that this plan may fill"
    return "that are available" if report.budget == report.memory.available else "that the control group leaves"
