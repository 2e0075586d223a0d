"""The plots of a run. A contender has one colour in all of them; limits are dashed lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from results import Run
    from targets import Outcome

# Okabe and Ito's colours, which the colour-blind can tell apart, and a mark for each, for print.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#B8A800", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#777777"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "grid.color": "#dddddd",
    "figure.facecolor": "white",  # the page may be dark
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "weightmap",  # the same numbers make the same file
}
# The contenders of a plot: name, colour, mark.
CRC32 = [
    ("weightmap", BLUE, "o"),
    ("weightmap, avx2", SKY, "s"),
    ("weightmap, 2 threads", BLACK, "D"),
    ("zlib-ng", ORANGE, "^"),
    ("isal", GREEN, "v"),
    ("zlib", RED, "x"),
]
DECODING = [
    ("weightmap", BLUE, "o"),
    ("weightmap, avx2", SKY, "s"),
    ("weightmap, 2 threads", BLACK, "D"),
    ("bitsandbytes nf4", ORANGE, "^"),
    ("onnxruntime", GREEN, "v"),
    ("torch operations", RED, "x"),
    ("gguf-py, blocks of 32", PINK, "+"),
]
FLOOR = "limit: open, fstat, mmap"
OPENING = [
    ("weightmap, EMBD", BLUE, "o"),
    ("weightmap, EMBD, lazy", SKY, "s"),
    ("weightmap, safetensors", BLACK, "D"),
    ("bintensors", ORANGE, "^"),
    ("safetensors, numpy", GREEN, "v"),
    ("torch.load(mmap)", RED, "x"),
    ("gguf-py", PINK, "+"),
]
LOADING = (
    "weightmap, EMBD", "weightmap, safetensors", "weightmap, BinTensors", "safetensors, torch", "torch.load(mmap)",
    "gguf-py", "bintensors", "safetensors, numpy", "np.load",
)  # fmt: skip


# The page's plot for the labelled figures of a section; the others belong to decoding.
PLOTS = {"Opening": "opening", "Loading": "loading"}


def size(nbytes: float) -> str:
    """Format a number of bytes for an axis."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):g} {unit}"
    return f"{nbytes:g} B"


def lines(ax: Axes, run: Run, prefix: str, who: list[tuple[str, str, str]], least: int) -> None:
    """Draw throughput by size of contenders and limits."""
    entries = [e for name, group in run.groups.items() if name.startswith(prefix) for e in group.values()]
    entries = [e for e in entries if e.info.get("bytes", 0) >= least]
    for name, colour, mark in who:
        points = sorted((e.info["bytes"], e.info["bytes"] / e.median / 1e9) for e in entries if e.who == name)
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, marker=mark, markersize=5, linewidth=1.5, label=name)
    for threads, dashes in ((1, "--"), (2, ":")):
        best: dict[int, float] = {}
        for e in entries:
            if e.role == "limit" and e.threads == threads:
                n = e.info["bytes"]
                best[n] = max(best.get(n, 0.0), n / e.median / 1e9)
        if best:
            label = "limit of the machine" + (", 2 threads" if threads == 2 else "")
            ax.plot(*zip(*sorted(best.items()), strict=True), color=GREY, linestyle=dashes, linewidth=2, label=label)
    sizes = sorted({e.info["bytes"] for e in entries})
    ax.set_xscale("log", base=2)
    marked = [n for before, n in zip([0, *sizes], sizes, strict=False) if n >= 4 * before]  # labels need room
    ax.set_xticks(marked, [size(n) for n in marked])
    ax.xaxis.set_minor_locator(NullLocator())


def by_size(run: Run, prefix: str, who: list[tuple[str, str, str]], title: str, *, least: int = 0) -> Figure | None:
    """Draw throughput by size on a logarithmic scale, which keeps the slow contenders off the axis."""
    if not any(name.startswith(prefix) for name in run.groups):
        return None
    figure, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
    lines(ax, run, prefix, who, least)
    ax.set_yscale("log")
    plain(ax.yaxis)
    ax.set_title(title)
    ax.set_ylabel("GB/s")
    ax.tick_params(axis="x", labelrotation=30)
    figure.legend(loc="outside right center")
    return figure


def plain(axis: object) -> None:
    """Label a logarithmic axis with numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def opening(run: Run) -> Figure | None:
    """Draw opening time by number of tensors."""
    entries = [e for name, group in run.groups.items() if name.startswith("open/") for e in group.values()]
    entries = [e for e in entries if e.info.get("items")]
    if not entries:
        return None
    figure, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for name, colour, mark in OPENING:
        points = sorted((e.info["items"], 1e3 * e.median) for e in entries if e.who == name)
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, marker=mark, markersize=5, linewidth=1.5, label=name)
    points = sorted((e.info["items"], 1e3 * e.median) for e in entries if e.who == FLOOR)
    if points:
        ax.plot(*zip(*points, strict=True), color=GREY, linestyle="--", linewidth=2, label=FLOOR)
    ax.set_xscale("log")
    ax.set_yscale("log")
    plain(ax.yaxis)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_title("Opening a file, ready for look-ups by name")
    ax.set_xlabel("tensors (the first: MiniLM)")
    ax.set_ylabel("ms")
    figure.legend(loc="outside right center")
    return figure


def memory(run: Run) -> Figure | None:
    """Draw the memory of loading: anonymous, file-backed and peak."""
    models = [name for name in ("memory/MiniLM", "memory/4 GiB") if name in run.groups]
    if not models:
        return None
    figure, axes = plt.subplots(1, len(models), figsize=(9, 3.8), layout="constrained", sharey=True, squeeze=False)
    for ax, model in zip(axes[0], models, strict=True):
        there = run.groups[model]
        who = [name for name in reversed(LOADING) if any(name in run.groups[m] for m in models)]
        found = [there[name].info if name in there else {} for name in who]
        anonymous = [info.get("anonymous MiB after use", 0) for info in found]
        backed = [info.get("file-backed MiB after use", 0) for info in found]
        ax.barh(who, anonymous, color=RED, label="anonymous: of the process alone")
        ax.barh(who, backed, left=anonymous, color=SKY, label="file-backed: shared, taken back when memory is short")
        ax.plot([info.get("peak MiB") for info in found], who, "|", color=BLACK, markersize=12, label="peak")
        ax.set_title(model.removeprefix("memory/"))
        ax.set_xlabel("MiB")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.locator_params(axis="x", nbins=5)
        ax.grid(axis="y", visible=False)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def plots(run: Run) -> Iterator[tuple[str, str, Figure]]:
    """Yield name, description and figure of every plot that the run has results for."""
    kinds = {
        "crc32": ("CRC-32 by length", lambda: by_size(run, "crc32/", CRC32, "CRC-32 by length", least=1 << 10)),
        "int4": (
            "int4 to float32, by size of the output",
            lambda: by_size(run, "dequantise int4/", DECODING, "int4 to float32, by size of the output"),
        ),
        "int5": (
            "int5 to float32, by size of the output",
            lambda: by_size(run, "dequantise int5/", DECODING, "int5 to float32, by size of the output"),
        ),
        "opening": ("opening time by number of tensors", lambda: opening(run)),
        "memory": ("memory after loading MiniLM and a model of 4 GiB", lambda: memory(run)),
    }
    for name, (description, draw) in kinds.items():
        if (figure := draw()) is not None:
            yield name, description, figure


def ratios(outcomes: list[Outcome], title: str) -> Figure:
    """Draw how many times as fast each figure is, as a bar from 1 on a logarithmic scale."""
    figure, ax = plt.subplots(figsize=(8, 0.9 + 0.3 * len(outcomes)), layout="constrained")
    who = range(len(outcomes))
    found = [one.value or 0.0 for one in outcomes]
    colours = [BLUE if value >= 1 else RED for value in found]
    ax.barh(who, [value - 1 for value in found], left=1, color=colours, height=0.6)
    ax.set_yticks(who, [f"{one.figure.label}: {short(one)}" for one in outcomes])
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlim(min(0.7, *found) / 1.15, max(found) * 3)
    for at, one, value in zip(who, outcomes, found, strict=True):
        ax.annotate(f" {one.format(value)}", (max(value, 1.0), at), va="center", fontsize=9, color="black")
    plain(ax.xaxis)
    ax.axvline(1, color=GREY, linestyle="-", linewidth=1.5)
    ax.grid(axis="y", visible=False)
    ax.set_title(title, loc="left")
    ax.set_xlabel("times as fast as this library")
    return figure


def short(outcome: Outcome) -> str:
    """Name the rival of a figure in a few words."""
    beside = outcome.figure.beside
    return beside if isinstance(beside, str) else f"the fastest of {len(beside)}"


def summary(outcomes: list[Outcome]) -> Iterator[tuple[str, str, Figure]]:
    """Yield name, description and figure of the plots of the page: opening, loading, decoding."""
    there = [one for one in outcomes if one.figure.label and one.value is not None]
    titles = {
        "opening": "Opening a model, beside others",
        "loading": "Loading every tensor, beside others",
        "decoding": "Decoding to float32, beside others",
    }
    for name, title in titles.items():
        if chosen := [one for one in there if PLOTS.get(one.figure.section, "decoding") == name]:
            yield f"benchmarks-{name}", title, ratios(chosen, title)


def save(made: Iterable[tuple[str, str, Figure]], folder: Path) -> dict[str, str]:
    """Write plots as SVG, and return {file name: description}."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.use("svg")
    saved = {}
    with mpl.rc_context(STYLE):
        for name, description, figure in made:
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
            plt.close(figure)
            saved[f"{name}.svg"] = description
    return saved
