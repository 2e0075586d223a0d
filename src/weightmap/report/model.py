"""The page about one model."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING

from weightmap._messages import counted
from weightmap.core.arguments import brief, entries, sizes
from weightmap.report import charts, page
from weightmap.report.charts import HUGE, by_layer, pooled_bars, pooled_ranges
from weightmap.report.modules import Line, module_tree, separator
from weightmap.report.survey import SCHEMES, Survey, Tensor, alignment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Most lines of a module in the tree, and most entries of metadata.
_MAX_LINES = 400


def model_page(name: str, survey: Survey) -> bytes:
    """Return the page about a model called `name`."""
    figures = page.Figures()
    sections = [_about(name, survey), _warnings(survey), _modules(survey)]
    tensors = [tensor for tensor in survey.tensors if tensor.numbers is not None]
    drawable = [tensor for tensor in tensors if _has_bins(tensor)]
    sections.append(_map(survey, figures))
    if tensors:
        sections.append(_values(survey, drawable, figures))
    if any(tensor.costs for tensor in tensors):
        sections.append(_quantising(survey, figures))
    first = max(range(len(drawable)), key=lambda at: drawable[at].info.nbytes, default=0)
    chosen = [
        {
            "name": page.short(one.info.name) or "(no name)",
            "low": one.numbers.low,
            "high": one.numbers.high,
            "bins": one.numbers.bins,
        }
        for one in drawable
        if one.numbers is not None
    ]
    (title,) = page.titles([name])
    return page.document(title, sections, figures, chosen, first)


def _has_bins(tensor: Tensor) -> bool:
    numbers = tensor.numbers
    return numbers is not None and numbers.low is not None and max(-numbers.low, numbers.high or 0) < HUGE


def _about(name: str, survey: Survey) -> page.Section:
    kinds: dict[str, list[int]] = {}
    for tensor in survey.tensors:
        kinds.setdefault(tensor.info.dtype, []).append(tensor.info.nbytes)
    elements = sum(math.prod(tensor.info.shape) for tensor in survey.tensors)
    layout = "" if survey.layout in {None, survey.format} else f", {survey.layout}"
    types = (f"{page.text(dtype)}: {brief(sum(each))} in {len(each):,}" for dtype, each in kinds.items())
    rows = [
        ("file", page.text(name)),
        ("format", page.text(f"{survey.format}{layout}")),
        ("size", sizes(survey.nbytes)),
        ("tensors", f"{len(survey.tensors):,}, of {counted(elements, 'element')}"),
        *([("parameters", str(survey.weight))] if survey.weight is not None else []),
        ("types", ", ".join(types)),
    ]
    if len(survey.files) > 1:
        rows.append(("files", f"{len(survey.files):,}"))
    if survey.tokens is not None:
        rows.append(("vocabulary", counted(survey.tokens, "token")))
    content = page.pairs(rows)
    if survey.metadata:
        shown = list(survey.metadata.items())[:_MAX_LINES]
        metadata = page.pairs((page.short(key), page.text(value)) for key, value in shown)
        cut = f", the first {_MAX_LINES} of them" if len(survey.metadata) > _MAX_LINES else ""
        content += f"<details><summary>{entries(len(survey.metadata))}{cut}</summary>{metadata}</details>"
    return "summary", "What it is", content


def _warnings(survey: Survey) -> page.Section:
    if survey.damage is not None:
        content = f'<p class="bad">Verification failed: {page.message(survey.damage)}</p>'
    elif survey.verified is None:
        content = "<p>The file was not verified.</p>"
    else:
        report = survey.verified
        content = f'<p><span class="good">Verified</span>: {page.message(report.scope)}.</p>'
        if report.warnings:
            content += f"<ul>{''.join(f'<li>{page.message(warning)}</li>' for warning in report.warnings)}</ul>"
    problems = [tensor for tensor in survey.tensors if tensor.problem is not None]
    odd = [t for t in survey.tensors if t.numbers is not None and (t.numbers.nans or t.numbers.infinities)]
    if problems:
        lines = "".join(f"<li>{page.text(t.info.name)}: {page.message(t.problem)}</li>" for t in problems[:100])
        content += f'<p class="bad">{counted(len(problems), "tensor")} cannot be decoded:</p><ul>{lines}</ul>'
    if odd:
        lines = "".join(f"<li>{page.text(t.info.name)}</li>" for t in odd[:100])
        content += (
            f"<p>NaN or infinite among the sampled elements of {counted(len(odd), 'tensor')}:</p><ul>{lines}</ul>"
        )
    if survey.verified is not None and not (survey.verified.warnings or problems or odd):
        content += "<p>No warnings.</p>"
    return "warnings", "Warnings", content


def _modules(survey: Survey) -> page.Section:
    if not survey.tensors:
        return "modules", "Modules", "<p>The model has no tensors.</p>"
    infos = [tensor.info for tensor in survey.tensors]
    mark = separator(info.name for info in infos)
    root = module_tree(infos, mark)
    lines = list(root.lines(mark, _MAX_LINES))
    content = "<p>Modules that are built alike share a line.</p>"
    content += f'<div class="tree">{"".join(_tree(lines, root.nbytes))}</div>'
    return "modules", "Modules", content


def _tree(lines: Sequence[Line], whole: int) -> Iterator[str]:
    """Yield the tree as nested elements that the reader can open and close; the first level is open."""
    depth = 0
    for line, following in itertools.zip_longest(lines, lines[1:]):
        while depth > line.depth:
            yield "</details>"
            depth -= 1
        share = line.nbytes / whole if whole else 0.0
        said = page.named(line.label or "(itself)")
        # The style of a page cannot make the bar of a <meter> fill its box.
        meter = f'<span class="meter" role="img" aria-label="{share:.1%}" style="--share:{share:.2%}"></span>'
        about = brief(line.nbytes)
        if line.tensor is not None:
            about += f' <span class="faint">{page.text(line.tensor.dtype)} {page.text(list(line.tensor.shape))}</span>'
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


def _map(survey: Survey, figures: page.Figures) -> page.Section:
    rows = []
    for file in survey.files:
        name = page.short(file.name)
        rows += [
            {"file": name, "name": gap.kind, "type": gap.kind, "begin": gap.begin, "end": gap.end}
            | {"nbytes": gap.end - gap.begin, "align": None, "resident": None}
            for gap in file.gaps
        ]
    for tensor in survey.stored:
        info = tensor.info
        rows.append(
            {
                "file": page.short(tensor.file),
                "name": page.short(info.name),
                "type": info.dtype,
                "begin": info.offset,
                "end": info.offset + info.nbytes,
                "nbytes": info.nbytes,
                "align": alignment(info.offset),
                "resident": None if tensor.resident is None else tensor.resident / info.nbytes if info.nbytes else 1.0,
            }
        )
    longest = max(file.nbytes for file in survey.files)
    totals: dict[str, list[int]] = {"header": [], "padding": [], "footer": []}
    for file in survey.files:
        for gap in file.gaps:
            totals[gap.kind].append(gap.end - gap.begin)
    alignments = Counter(alignment(tensor.info.offset) for tensor in survey.stored)
    resident = [tensor.resident for tensor in survey.stored if tensor.resident is not None]
    lines = [(kind, f"{brief(sum(each))} in {len(each):,}") for kind, each in totals.items() if each]
    multiples = (f"{at} ({count:,})" for at, count in sorted(alignments.items(), reverse=True))
    lines.append(("tensors begin at multiples of", ", ".join(multiples)))
    if resident:
        lines.append(("in memory", f"{brief(sum(resident))} before this report read the file"))
    chart = figures.add("bytes-map", charts.bytes_map(len(survey.files), longest), "places", pooled_bars(rows, longest))
    return "map", "Map of the file", chart + page.pairs(lines) + _places(survey)


def _places(survey: Survey) -> str:
    several = len(survey.files) > 1
    columns = [("tensor", False), ("type", False), ("offset", True), ("bytes", True), ("aligned to", True)]
    columns += [("in memory", True), *([("file", False)] if several else [])]
    rows = []
    for tensor in survey.stored:
        info = tensor.info
        share = None if tensor.resident is None or not info.nbytes else tensor.resident / info.nbytes
        rows.append(
            [
                page.Cell(page.named(info.name)),
                page.Cell(page.text(info.dtype)),
                page.number(info.offset, ",d"),
                page.number(info.nbytes, ",d"),
                page.number(alignment(info.offset), "d"),
                page.number(share, ".0%"),
                *([page.Cell(page.text(tensor.file))] if several else []),
            ]
        )
    kinds = dict.fromkeys(tensor.info.dtype for tensor in survey.stored)
    return page.table("places", "Where each tensor lies in its file", columns, rows, kinds=kinds)


def _values(survey: Survey, drawable: Sequence[Tensor], figures: page.Figures) -> page.Section:
    place = {id(tensor): at for at, tensor in enumerate(drawable)}
    rows, spans = [], []
    for tensor in survey.tensors:
        info, numbers = tensor.info, tensor.numbers
        at = place.get(id(tensor))
        name = page.named(info.name)
        if at is not None:
            name = f'<button type="button" data-tensor="{at}">{name}</button>'
        row = [page.Cell(name), page.Cell(page.text(info.dtype)), page.Cell(page.text(list(info.shape)))]
        if numbers is None:
            rows.append([*row, *[page.Cell("")] * 8])
            continue
        if at is not None and numbers.low is not None and numbers.mean is not None:
            mean, deviation = numbers.mean, numbers.deviation or 0.0
            spans.append(
                {"name": page.short(info.name), "low": numbers.low, "high": numbers.high}
                | {"below": mean - deviation, "above": mean + deviation}
            )
        share = numbers.zeros / numbers.sampled if numbers.sampled else None
        rows.append(
            [
                *row,
                *(page.number(value) for value in (numbers.low, numbers.high, numbers.mean, numbers.deviation)),
                page.number(share, ".2%"),
                page.number(numbers.nans + numbers.infinities, ",d"),
                page.Cell(f'<span class="spark" aria-hidden="true">{page.spark(numbers.bins)}</span>'),
                page.number(numbers.sampled / max(math.prod(info.shape), 1), ".1%"),
            ]
        )
    kinds = dict.fromkeys(tensor.info.dtype for tensor in survey.tensors)
    imaginary = any(kind.startswith("complex") for kind in kinds)
    columns = [("tensor", False), ("type", False), ("shape", False), ("smallest", True), ("largest", True)]
    columns += [("mean", True), ("deviation", True), ("zeros", True), ("NaN, infinite", True), ("histogram", False)]
    columns += [("looked at", True)]
    content = (
        f"<p>A sample of up to {survey.per_tensor:,} elements of each tensor, in runs that lie evenly over it."
        f"{' For complex elements, the table has the magnitudes.' if imaginary else ''}</p>"
        + figures.add("ranges", charts.ranges(), "values", pooled_ranges(spans))
        + '<h3 class="script" id="histogram-title" aria-live="polite">Histogram of <span id="histogram-of"></span></h3>'
        + '<p class="script faint">The names in the table choose the tensor.</p>'
        + figures.add("histogram", charts.histogram(), "values")
        + page.table("values", "Values of each tensor", columns, rows, kinds=kinds)
    )
    return "tensors", "Values", content


def _quantising(survey: Survey, figures: page.Figures) -> page.Section:
    able = [tensor for tensor in survey.tensors if tensor.costs]
    schemes = [scheme for scheme in SCHEMES if any(scheme in tensor.costs for tensor in able)]
    whole = sum(tensor.info.nbytes for tensor in survey.tensors)
    costs, summary = [], []
    for scheme in schemes:
        fitting = [(tensor, tensor.costs[scheme]) for tensor in able if scheme in tensor.costs]
        after = sum(cost.nbytes for _, cost in fitting)
        weights = sum(math.prod(tensor.info.shape) for tensor, _ in fitting)
        error, square = (sum(getattr(cost, field) for _, cost in fitting) for field in ("error", "square"))
        nbytes = whole - sum(tensor.info.nbytes for tensor, _ in fitting) + after
        relative = math.sqrt(error / square) if square else 0.0
        rms = math.sqrt(error / weights) if weights else 0.0
        bits = 8 * after / weights if weights else 0.0
        costs.append({"scheme": scheme, "nbytes": nbytes, "bits": bits, "relative": relative})
        summary.append(
            [
                page.Cell(scheme),
                page.number(len(fitting), ",d"),
                page.number(bits, ".3f"),
                page.Cell(brief(nbytes), nbytes),
                page.number(rms, ".3e"),
                page.number(relative, ".3%"),
            ]
        )
    heat = by_layer(
        (tensor.info.name, {scheme: cost.relative for scheme, cost in tensor.costs.items()}) for tensor in able
    )
    content = (
        "<p>Estimated from a sample of each tensor that <code>weightmap quantize</code> quantises: floating-point, "
        "of two dimensions or more, no embeddings. The relative error is the RMS error divided by the RMS of the "
        "values.</p>" + figures.add("costs", charts.costs(), "schemes", costs)
    )
    columns = [("scheme", False), ("tensors", True), ("bits per weight", True), ("model", True), ("RMS error", True)]
    content += page.table("schemes", "The whole model by scheme", [*columns, ("relative", True)], summary)
    layers = {row["layer"] for row in heat}
    if len(layers) > 1:
        measures = {scheme: scheme for scheme in reversed(schemes)}
        spec = charts.heat("cost-heat", "Relative error by layer and tensor.", measures, len(layers), zero=False)
        content += "<h3>By layer</h3>" + figures.add("cost-heat", spec, "each", heat)
    rows = []
    for tensor in able:
        errors = [tensor.costs[scheme].relative if scheme in tensor.costs else None for scheme in schemes]
        name, dtype = page.Cell(page.named(tensor.info.name)), page.Cell(page.text(tensor.info.dtype))
        rows.append([name, dtype, *(page.number(error, ".3%") for error in errors)])
    columns = [("tensor", False), ("type", False), *((scheme, True) for scheme in schemes)]
    content += page.table("each", "Relative RMS error of each tensor by scheme", columns, rows)
    return "quantising", "What quantising would cost", content
