"""`write_report`: looks at one model or two, and writes the page."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from typing import TYPE_CHECKING, Any

from weightmap.formats import Plan
from weightmap.io.atomic import write_plan
from weightmap.model.file import TensorFile
from weightmap.model.modules import module_tree, separator
from weightmap.model.opening import open_privately
from weightmap.model.parts import name_of
from weightmap.report import charts
from weightmap.report.comparing import comparison
from weightmap.report.page import Cell, amount, document, figure, named, number, pairs, short, spark, table, text
from weightmap.report.sampling import SCHEMES
from weightmap.report.survey import alignment, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from weightmap.model.modules import Line
    from weightmap.report.comparing import Comparison, Pair
    from weightmap.report.survey import Survey, Tensor

__all__ = ["write_report"]

# Lines of one module in the tree.
_MOST_LINES = 400
_NUMBER = re.compile(r"(?<![^./])\d+(?![^./])")
# Values that JSON and a colour scale can take.
_HUGE = 1e300

_Section = tuple[str, str, str]


def write_report(
    out: Any,
    a: Any,
    b: Any = None,
    *,
    verify: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Write a page about a model, or about how two models differ.

    The page is one file of HTML with tables, charts and the library that draws them. It fetches nothing, and without
    JavaScript it has all its tables. Memory stays flat: elements are read by pread, of each tensor a sample of at most
    65,536. Two models are compared element by element.

    Parameters
    ----------
    out : path
        The page; replaced in one step.
    a, b : TensorFile or anything that `weightmap.open` takes
        With `b`, the page compares the two.
    verify : bool
        Read the whole file and check it, as `TensorFile.verify` does; not for two models.
    progress : callable, optional
        ``progress(done, total)``, in bytes.

    Returns
    -------
    bool
        False when verification failed; the page says why.

    Raises
    ------
    MissingDependencyError
        Without the package vl-convert-python, which the extra ``[report]`` names.
    """
    with contextlib.ExitStack() as stack:
        files = [
            source if isinstance(source, TensorFile) else stack.enter_context(open_privately(source))
            for source in ((a,) if b is None else (a, b))
        ]
        names = [name_of(file) for file in files]
        sound = True
        if b is None:
            found = survey(files[0], verify=verify, progress=progress)
            sound = found.damage is None
            page = _one(names[0], found)
        else:
            page = _two(names, [file.nbytes for file in files], comparison(files[0], files[1], progress))
    write_plan(os.fsdecode(os.fspath(out)), Plan(len(page), lambda sink: sink.write(page)))
    return sound


# ------------------------------------------------------------------------------------------------ one model
def _one(name: str, found: Survey) -> bytes:
    specs: dict[str, Any] = {}
    sets: dict[str, list[dict[str, Any]]] = {}
    sections = [_about(name, found), _warnings(found), _modules(found)]
    tensors = [tensor for tensor in found.tensors if tensor.numbers is not None]
    drawable = [tensor for tensor in tensors if _has_bins(tensor)]
    sections.append(_map(found, specs, sets))
    if tensors:
        sections.append(_values(found, drawable, specs, sets))
    if any(tensor.costs for tensor in tensors):
        sections.append(_quantising(found, specs, sets))
    first = max(range(len(drawable)), key=lambda at: drawable[at].info.nbytes, default=0)
    chosen = [
        {"name": short(one.info.name), "low": one.numbers.low, "high": one.numbers.high, "bins": one.numbers.bins}
        for one in drawable
        if one.numbers is not None
    ]
    return document(os.path.basename(name) or name, sections, specs, {"sets": sets, "tensors": chosen, "first": first})


def _has_bins(tensor: Tensor) -> bool:
    numbers = tensor.numbers
    return numbers is not None and numbers.low is not None and max(-numbers.low, numbers.high or 0) < _HUGE


def _about(name: str, found: Survey) -> _Section:
    sizes: dict[str, list[int]] = {}
    for tensor in found.tensors:
        sizes.setdefault(tensor.info.dtype, []).append(tensor.info.nbytes)
    elements = sum(math.prod(tensor.info.shape) for tensor in found.tensors)
    rows = [
        ("file", text(name)),
        ("format", text(found.format if found.layout in {None, found.format} else f"{found.format}, {found.layout}")),
        ("size", f"{amount(found.nbytes)} ({found.nbytes:,} bytes)"),
        ("tensors", f"{len(found.tensors):,}, {elements:,} elements"),
        (
            "types",
            ", ".join(f"{text(dtype)}: {amount(sum(each))} in {len(each):,}" for dtype, each in sizes.items()),
        ),
    ]
    if len(found.files) > 1:
        rows.append(("files", f"{len(found.files):,}"))
    if found.tokens is not None:
        rows.append(("vocabulary", f"{found.tokens:,} tokens"))
    content = pairs(rows)
    if found.metadata:
        metadata = pairs((short(key), text(value)) for key, value in list(found.metadata.items())[:500])
        content += f"<details><summary>metadata, {len(found.metadata):,} entries</summary>{metadata}</details>"
    return "summary", "What it is", content


def _warnings(found: Survey) -> _Section:
    if found.damage is not None:
        content = f'<p class="bad">Verification failed: {text_of(found.damage)}</p>'
    elif found.verified is None:
        content = "<p>The file was not verified.</p>"
    else:
        report = found.verified
        content = f'<p><span class="good">Verified</span>: {text_of(report.scope)}.</p>'
        if report.warnings:
            content += f"<ul>{''.join(f'<li>{text_of(warning)}</li>' for warning in report.warnings)}</ul>"
        else:
            content += "<p>No warnings.</p>"
    problems = [tensor for tensor in found.tensors if tensor.problem is not None]
    odd = [t for t in found.tensors if t.numbers is not None and (t.numbers.nans or t.numbers.infinities)]
    if problems:
        lines = "".join(f"<li>{text(t.info.name)}: {text_of(t.problem)}</li>" for t in problems[:100])
        content += f'<p class="bad">{len(problems):,} tensors do not decode:</p><ul>{lines}</ul>'
    if odd:
        lines = "".join(f"<li>{text(t.info.name)}</li>" for t in odd[:100])
        content += f"<p>NaN or infinite elements in {len(odd):,} tensors, of those looked at:</p><ul>{lines}</ul>"
    return "warnings", "Warnings", content


def text_of(message: Any) -> str:
    """Return a message as HTML; it has its texts of files spelt out and cut already."""
    return text(message) if len(str(message)) <= 200 else " ".join(text(part) for part in _parts(str(message)))


def _parts(message: str) -> Iterator[str]:
    for at in range(0, min(len(message), 2000), 200):
        yield message[at : at + 200]


def _modules(found: Survey) -> _Section:
    if not found.tensors:
        return "modules", "Modules", "<p>The model has no tensors.</p>"
    infos = [tensor.info for tensor in found.tensors]
    mark = separator(info.name for info in infos)
    root = module_tree(infos, mark)
    lines = list(root.lines(mark, _MOST_LINES))
    content = "<p>Modules that are built alike share a line.</p>"
    content += f'<div class="tree">{"".join(_tree(lines, root.nbytes))}</div>'
    return "modules", "Modules", content


def _tree(lines: Sequence[Line], whole: int) -> Iterator[str]:
    """Yield the tree as nested elements that open and close, those of the first level open."""
    depth = 0
    for line, following in itertools.zip_longest(lines, lines[1:]):
        while depth > line.depth:
            yield "</details>"
            depth -= 1
        share = line.nbytes / whole if whole else 0.0
        said = f"{text(line.label or '(itself)')}"
        meter = f'<meter min="0" max="1" value="{share:.4f}">{share:.1%}</meter>'
        about = amount(line.nbytes)
        if line.tensor is not None:
            about += f' <span class="faint">{text(line.tensor.dtype)} {text(list(line.tensor.shape))}</span>'
        if line.tensors > 1:
            about += f' <span class="faint">{line.tensors:,} tensors</span>'
        name = f'<span class="name">{said}</span>'
        row = f'<span class="row d{min(line.depth, 9)}">{name}{meter}<span>{about}</span></span>'
        if following is not None and following.depth > line.depth:
            yield f"<details{' open' if line.depth == 0 else ''}><summary>{row}</summary>"
            depth += 1
        else:
            yield f'<div class="leaf">{row}</div>'
    yield "</details>" * depth


def _map(found: Survey, specs: dict[str, Any], sets: dict[str, list[dict[str, Any]]]) -> _Section:
    rows = []
    for file in found.files:
        name = short(file.name)
        rows += [
            {"file": name, "name": gap.kind, "type": gap.kind, "begin": gap.begin, "end": gap.end}
            | {"nbytes": gap.end - gap.begin, "align": None, "resident": None}
            for gap in file.gaps
        ]
    for tensor in found.tensors:
        info = tensor.info
        rows.append(
            {
                "file": short(tensor.file),
                "name": short(info.name),
                "type": info.dtype,
                "begin": info.offset,
                "end": info.offset + info.nbytes,
                "nbytes": info.nbytes,
                "align": alignment(info.offset),
                "resident": None if tensor.resident is None else tensor.resident / info.nbytes if info.nbytes else 1.0,
            }
        )
    sets["map"] = rows
    specs["bytes-map"] = charts.bytes_map(len(found.files), max(file.nbytes for file in found.files))
    totals: dict[str, list[int]] = {"header": [], "padding": [], "footer": []}
    for file in found.files:
        for gap in file.gaps:
            totals[gap.kind].append(gap.end - gap.begin)
    alignments: dict[int, int] = {}
    for tensor in found.tensors:
        at = alignment(tensor.info.offset)
        alignments[at] = alignments.get(at, 0) + 1
    known = [tensor.resident for tensor in found.tensors if tensor.resident is not None]
    lines = [(kind, f"{amount(sum(each))} in {len(each):,}") for kind, each in totals.items() if each]
    lines.append(
        (
            "tensors begin at multiples of",
            ", ".join(f"{at} ({count:,})" for at, count in sorted(alignments.items(), reverse=True)),
        )
    )
    if known:
        lines.append(("in memory", f"{amount(sum(known))} before this report read the file"))
    content = figure("bytes-map", specs["bytes-map"], "places") + pairs(lines) + _places(found)
    return "map", "Map of the file", content


def _places(found: Survey) -> str:
    several = len(found.files) > 1
    columns = [("tensor", False), ("type", False), ("offset", True), ("bytes", True), ("aligned to", True)]
    columns += [("in memory", True), *([("file", False)] if several else [])]
    rows = []
    for tensor in found.tensors:
        info = tensor.info
        share = None if tensor.resident is None or not info.nbytes else tensor.resident / info.nbytes
        rows.append(
            [
                Cell(named(info.name)),
                Cell(text(info.dtype)),
                number(info.offset, ",d"),
                number(info.nbytes, ",d"),
                number(alignment(info.offset), "d"),
                number(share, ".0%"),
                *([Cell(text(tensor.file))] if several else []),
            ]
        )
    kinds = dict.fromkeys(tensor.info.dtype for tensor in found.tensors)
    return table("places", "Where each tensor lies in its file", columns, rows, kinds=kinds)


def _values(
    found: Survey, drawable: Sequence[Tensor], specs: dict[str, Any], sets: dict[str, list[dict[str, Any]]]
) -> _Section:
    place = {id(tensor): at for at, tensor in enumerate(drawable)}
    sets["ranges"] = []
    rows = []
    for tensor in found.tensors:
        info, numbers = tensor.info, tensor.numbers
        at = place.get(id(tensor))
        name = named(info.name)
        if at is not None:
            name = f'<button type="button" data-tensor="{at}">{name}</button>'
        row = [Cell(name), Cell(text(info.dtype)), Cell(text(list(info.shape)))]
        if numbers is None:
            rows.append([*row, *[Cell("")] * 8])
            continue
        if at is not None and numbers.low is not None and numbers.mean is not None:
            mean, deviation = numbers.mean, numbers.deviation or 0.0
            sets["ranges"].append(
                {"at": len(sets["ranges"]), "name": short(info.name), "low": numbers.low, "high": numbers.high}
                | {"mean": mean, "deviation": deviation, "below": mean - deviation, "above": mean + deviation}
            )
        share = numbers.zeros / numbers.seen if numbers.seen else None
        rows.append(
            [
                *row,
                *(number(value) for value in (numbers.low, numbers.high, numbers.mean, numbers.deviation)),
                number(share, ".2%"),
                number(numbers.nans + numbers.infinities, ",d"),
                Cell(f'<span class="spark" aria-hidden="true">{spark(numbers.bins)}</span>'),
                number(numbers.seen / max(math.prod(info.shape), 1), ".1%"),
            ]
        )
    specs["ranges"], specs["histogram"] = charts.ranges(), charts.histogram()
    imaginary = any(tensor.info.dtype.startswith("complex") for tensor in found.tensors)
    columns = [("tensor", False), ("type", False), ("shape", False), ("smallest", True), ("largest", True)]
    columns += [("mean", True), ("deviation", True), ("zeros", True), ("NaN, infinite", True), ("histogram", False)]
    columns += [("looked at", True)]
    content = (
        f"<p>Of each tensor, up to {found.per_tensor:,} elements were looked at, in runs that lie evenly over it."
        f"{' Of complex elements, the table has the magnitudes.' if imaginary else ''}</p>"
        + figure("ranges", specs["ranges"], "values")
        + '<h3 class="script" id="histogram-title" aria-live="polite">Histogram of <span id="histogram-of"></span></h3>'
        + '<p class="script faint">The names in the table choose the tensor.</p>'
        + figure("histogram", specs["histogram"], "values")
        + table(
            "values",
            "Values of each tensor",
            columns,
            rows,
            kinds=dict.fromkeys(tensor.info.dtype for tensor in found.tensors),
        )
    )
    return "tensors", "Values", content


def _place_of(name: str) -> tuple[str, str]:
    """Return the layer that a tensor is part of, and its place there: further numbers become a star."""
    match = _NUMBER.search(name)
    if match is None:
        return "", name
    rest = name[match.end() :].lstrip("./")
    return name[: match.end()], _NUMBER.sub("*", rest) or "(itself)"


def _heat(rows: Iterable[tuple[str, dict[str, float | None]]]) -> list[dict[str, Any]]:
    """Return one row for each layer and place in it: of several tensors there, the largest value of each measure."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, measures in rows:
        layer, slot = _place_of(name)
        if not layer:  # outside of all layers: a row of its own would have a column of its own, too
            continue
        row = found.setdefault((layer, slot), {"layer": short(layer), "slot": short(slot)})
        for measure, value in measures.items():
            if value is not None and math.isfinite(value):
                row[measure] = max(row.get(measure, 0.0), min(value, _HUGE))
    return list(found.values())


def _quantising(found: Survey, specs: dict[str, Any], sets: dict[str, list[dict[str, Any]]]) -> _Section:
    able = [tensor for tensor in found.tensors if tensor.costs]
    schemes = [scheme for scheme in SCHEMES if any(scheme in tensor.costs for tensor in able)]
    whole = sum(tensor.info.nbytes for tensor in found.tensors)
    sets["costs"], summary = [], []
    for scheme in schemes:
        fitting = [(tensor, tensor.costs[scheme]) for tensor in able if scheme in tensor.costs]
        after = sum(cost.nbytes for _, cost in fitting)
        weights = sum(math.prod(tensor.info.shape) for tensor, _ in fitting)
        error, square = (sum(getattr(cost, field) for _, cost in fitting) for field in ("error", "square"))
        nbytes = whole - sum(tensor.info.nbytes for tensor, _ in fitting) + after
        relative = math.sqrt(error / square) if square else 0.0
        rms = math.sqrt(error / weights) if weights else 0.0
        bits = 8 * after / weights if weights else 0.0
        sets["costs"].append({"scheme": scheme, "nbytes": nbytes, "bits": bits, "relative": relative})
        summary.append(
            [
                Cell(scheme),
                number(len(fitting), ",d"),
                number(bits, ".3f"),
                Cell(amount(nbytes), nbytes),
                number(rms, ".3e"),
                number(relative, ".3%"),
            ]
        )
    specs["costs"] = charts.costs()
    heat = _heat(
        (tensor.info.name, {scheme: cost.relative for scheme, cost in tensor.costs.items()}) for tensor in able
    )
    content = (
        "<p>Estimated from a sample of each floating-point tensor of two dimensions or more, embeddings left out: what "
        "<code>weightmap quantize</code> would quantise. The root of the mean squared error is relative to that of the "
        "values.</p>" + figure("costs", specs["costs"], "schemes")
    )
    columns = [("scheme", False), ("tensors", True), ("bits per weight", True), ("model", True), ("RMS error", True)]
    content += table("schemes", "The whole model by scheme", [*columns, ("relative", True)], summary)
    if len({row["layer"] for row in heat}) > 1:
        sets["cost-heat"] = heat
        layers = len({row["layer"] for row in heat})
        specs["cost-heat"] = charts.heat(
            "cost-heat",
            "Relative error by layer and tensor.",
            {scheme: scheme for scheme in schemes[::-1]},
            layers,
            zero=False,
        )
        content += "<h3>By layer</h3>" + figure("cost-heat", specs["cost-heat"], "each")
    rows = [
        [
            Cell(named(tensor.info.name)),
            Cell(text(tensor.info.dtype)),
            *(number(tensor.costs[scheme].relative if scheme in tensor.costs else None, ".3%") for scheme in schemes),
        ]
        for tensor in able
    ]
    columns = [("tensor", False), ("type", False), *((scheme, True) for scheme in schemes)]
    content += table("each", "Relative RMS error of each tensor by scheme", columns, rows)
    return "quantising", "What quantising would cost", content


# ------------------------------------------------------------------------------------------------ two models
def _two(names: Sequence[str], sizes: Sequence[int], found: Comparison) -> bytes:
    specs: dict[str, Any] = {}
    sets: dict[str, list[dict[str, Any]]] = {}
    known = [pair for pair in found.pairs if pair.rms is not None]
    same = sum(pair.largest == 0 and not pair.odd for pair in known)
    rows = [(side, f"{text(name)}, {amount(nbytes)}") for side, name, nbytes in zip("AB", names, sizes, strict=True)]
    rows += [
        ("tensors in both", f"{len(found.pairs):,}, of equal values {same:,}"),
        ("only in A", f"{len(found.only_in_a):,}"),
        ("only in B", f"{len(found.only_in_b):,}"),
    ]
    sections = [("summary", "What is compared", pairs(rows)), _differences(found.pairs, specs, sets)]
    sections.append(("only", "Only in one", _alone(found)))
    title = " beside ".join(map(os.path.basename, names))
    return document(title, sections, specs, {"sets": sets, "tensors": [], "first": 0})


def _differences(found: Sequence[Pair], specs: dict[str, Any], sets: dict[str, list[dict[str, Any]]]) -> _Section:
    measures = {
        "relative": "RMS difference by RMS of A",
        "rms": "RMS difference",
        "largest": "largest difference",
        "angle": "1 - cosine",
    }
    heat = _heat(
        (
            pair.name,
            {"relative": pair.relative, "rms": pair.rms, "largest": pair.largest}
            | {"angle": None if pair.cosine is None else 1 - pair.cosine},
        )
        for pair in found
    )
    content = ""
    if heat:
        sets["heat"] = heat
        layers = len({row["layer"] for row in heat})
        specs["heat"] = charts.heat(
            "heat", "How far the two are apart, by layer and tensor.", measures, layers, zero=True
        )
        content = figure("heat", specs["heat"], "differences-of")
    rows = [
        [
            Cell(named(pair.name)),
            Cell(text(pair.a)),
            Cell(text(pair.b if pair.b != pair.a else "the same")),
            *(number(value) for value in (pair.largest, pair.rms, pair.relative)),
            number(pair.cosine, ".6f"),
            number(pair.odd, ",d"),
            Cell("" if pair.problem is None else text_of(pair.problem)),
        ]
        for pair in found
    ]
    columns = [("tensor", False), ("in A", False), ("in B", False), ("largest", True), ("RMS", True)]
    columns += [("relative", True), ("cosine", True), ("NaN, infinite", True), ("note", False)]
    content += table("differences-of", "Differences of each tensor", columns, rows)
    return "differences", "Differences", content


def _alone(found: Comparison) -> str:
    rows = [[Cell(named(name)), Cell("A")] for name in found.only_in_a]
    rows += [[Cell(named(name)), Cell("B")] for name in found.only_in_b]
    if not rows:
        return "<p>Both have the same tensors.</p>"
    return table("alone", "Tensors of one model only", [("tensor", False), ("in", False)], rows, kinds="AB")
