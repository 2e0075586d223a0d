"""docs/benchmarks.md comes from the results of a run, and its figures name benchmarks that exist."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import report
import results
import targets
from weightmap import kernels

BENCHMARKS = Path(targets.FILE).parent
MODULES = sorted(path.stem for path in BENCHMARKS.glob("bench_*.py"))
FIGURES = targets.load()


def entry(group, who, role, median, threads=1, **info):
    """A benchmark as pytest-benchmark records it."""
    about = {"who": who, "role": role, "threads": threads, **info}
    return {"group": group, "name": who, "extra_info": about, "stats": {"median": median}}


GIB = {"bytes": 1 << 30}
LIMIT = "limit: read"
SMALL = [
    entry("crc32/1 GiB", "weightmap", "ours", 0.040, isa="avx512", **GIB),
    entry("crc32/1 GiB", "weightmap, avx2", "ours", 0.080, isa="avx2", **GIB),
    entry("crc32/1 GiB", "weightmap, 2 threads", "ours", 0.030, threads=2, isa="avx512", **GIB),
    entry("crc32/1 GiB", "zlib-ng", "rival", 0.060, **GIB),
    entry("crc32/1 GiB", "isal", "rival", 0.050, **GIB),
    entry("crc32/1 GiB", LIMIT, "limit", 0.032, **GIB),
    entry("crc32/1 GiB", "limit: read, 2 threads", "limit", 0.027, threads=2, **GIB),
    entry("limits/read DRAM", LIMIT, "limit", 0.016, bytes=1 << 28),
    entry("look-up/later, 100,000 tensors", "weightmap, EMBD", "ours", 1.2e-6),
    entry("open/MiniLM", "weightmap, EMBD", "ours", 3e-5, items=103),
    entry("open/MiniLM", "bintensors", "rival", 2e-5, items=103),
    entry(
        "memory/MiniLM",
        "weightmap, EMBD",
        "ours",
        0.01,
        **{f"{kind} MiB after {when}": 1.5 for kind in ("anonymous", "file-backed") for when in ("opening", "use")},
        **{"peak MiB": 2.0, "seconds to read all bytes": 0.02},
    ),
]


@pytest.fixture
def run(tmp_path):
    """A small recorded run, and the path of its file."""
    versions = {"weightmap": "1.2.3", "isal": "4.5.6", "torch": "not installed"}
    machine = {"cpu": "A CPU of 3 GHz", "cores": 2, "kernel": "Linux 7", "isas": ["portable", "avx2", "avx512"]}
    document = {
        "benchmarks": SMALL,
        "datetime": "2026-11-20T12:00:00",
        "commit_info": {"id": "0123456789abcdef", "dirty": False},
        "machine_info": {"weightmap": machine | {"versions": versions, "command": "pytest benchmarks"}},
    }
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return results.load(path), path


def figure(name):
    """The figure of targets.toml of this name."""
    return next(one for one in FIGURES if one.id == name)


def groups():
    """All groups of all benchmarks, with their contenders."""
    return {
        name: set(contenders)
        for module in MODULES
        for name, contenders in importlib.import_module(module).GROUPS.items()
    }


def test_every_figure_names_existing_benchmarks():
    """Groups and contenders that targets.toml names are those of a benchmark; those of AVX2 where the CPU has it."""
    there = groups()
    for one in FIGURES:
        for group in one.groups:
            assert group in there, f"{one.id}: no benchmark has the group {group}"
            wanted = {one.ours, *(name for name in one.rivals if name and name != "limit")}
            if "avx2" not in kernels.available_isas():
                wanted = {name for name in wanted if not name.endswith(", avx2")}
            assert wanted <= there[group], f"{one.id}: {group} lacks {wanted - there[group]}"


def test_every_figure_can_be_judged():
    """Each has one bound, of times or of a reported number, and no two have the same name."""
    assert len({one.id for one in FIGURES}) == len(FIGURES)
    for one in FIGURES:
        assert (one.at_least is None) != (one.at_most is None), one.id
        assert bool(one.beside) == (one.at_least is not None), one.id
        assert one.at_most is None or one.info or one.unit in targets.SECONDS, one.id


def test_a_ratio_is_that_of_medians(run):
    """Against a rival, and against the limit for as many threads; with AVX2 in place of the best as well."""
    outcome = targets.evaluate(figure("crc32-1gib-zlib-ng"), run[0])
    assert (outcome.value, outcome.avx2, outcome.verdict) == (pytest.approx(1.5), pytest.approx(0.75), "reached")
    outcome = targets.evaluate(figure("crc32-1gib-limit"), run[0])
    assert (outcome.value, outcome.other.who, outcome.verdict) == (pytest.approx(0.8), LIMIT, "missed")
    assert outcome.times == "40.0 ms, 32.0 ms"
    outcome = targets.evaluate(figure("crc32-threads-limit"), run[0])
    assert (outcome.value, outcome.other.who) == (pytest.approx(0.9), "limit: read, 2 threads")


def test_a_time_is_shown_in_its_unit(run):
    """Seconds become microseconds, and less is better."""
    outcome = targets.evaluate(figure("lookup-later"), run[0])
    assert (outcome.format(outcome.value), outcome.verdict) == ("1.20 µs", "reached")


def test_of_several_sizes_the_worst_counts(run):
    """A figure for several groups takes the one that is furthest from what was asked."""
    both = targets.Figure(
        id="both",
        section="",
        question="",
        groups=["crc32/1 GiB", "crc32/half"],
        ours="weightmap",
        beside="isal",
        at_least=1,
        tried="",
    )
    half = {
        name: results.Entry("crc32/half", name, "ours", 1, median, {})
        for name, median in {"weightmap": 2.0, "isal": 1.0}.items()
    }
    outcome = targets.evaluate(both, run[0]._replace(groups=run[0].groups | {"crc32/half": half}))
    assert (outcome.value, outcome.where, outcome.verdict) == (0.5, "crc32/half", "missed")


def test_missing_measurements_are_listed(run):
    """A rival that was not there leaves no figure, and the page names it."""
    outcome = targets.evaluate(figure("half-dram-torch"), run[0])
    assert (outcome.verdict, outcome.value) == ("not measured", None)
    assert "f16 to f32/DRAM: torch" in outcome.absent


def test_a_figure_meaningless_on_this_cpu_is_left_alone(run):
    """Kernels of PCLMULQDQ are no rivals where the rivals use VPCLMULQDQ."""
    newer = run[0]._replace(machine={"isas": ["portable", "avx2", "avx512", "avx512icl"]})
    assert targets.evaluate(figure("crc32-pclmulqdq"), newer).verdict == "does not apply"


def write(path, folder):
    """Write page and details of a run into a folder; return both texts."""
    page, details = folder / "benchmarks.md", folder / "details"
    assert report.main([str(path), "--into", str(page), "--details", str(details), "--no-plots"]) == 0
    return page.read_text(encoding="utf-8"), (details / "details.md").read_text(encoding="utf-8")


def test_the_page_has_the_run_and_every_figure(run, tmp_path, capsys):
    """It has machine, versions, date, commit and command, and every figure; an unexplained miss is loud."""
    text, _ = write(run[1], tmp_path)
    for part in ("A CPU of 3 GHz", "Linux 7", "isal 4.5.6", "torch not installed", "2026-11-20", "0123456789ab"):
        assert part in text
    assert "`pytest benchmarks`" in text
    assert all(one.question in text for one in FIGURES)
    assert "| 1 × zlib-ng | 1.50 × | 40.0 ms, 60.0 ms | 0.75 × | reached |" in text
    missed = figure("open-minilm")
    assert missed.tried or report.UNEXPLAINED in text
    assert missed.tried or f"{missed.id} is missed" in capsys.readouterr().err


def test_the_details_have_all_times(run, tmp_path):
    """Ratios, limits, memory and every time lie beside the page and not on it."""
    page, details = write(run[1], tmp_path)
    for line in (
        "| crc32/1 GiB: weightmap | 40.0 ms | isal | 1.25 × | 0.62 × | 0.80 × | 0.40 × |",
        "| read, 1 thread | 16.8 |",
        "| 1 GiB | zlib-ng | rival | 60.0 ms | 17.9 GB/s |",
        "| weightmap, EMBD | 1.50 | 1.50 | 1.50 | 2.00 | 10.0 ms | 20.0 ms |",
    ):
        assert line in details
        assert line not in page


def test_the_page_is_the_same_each_time(run, tmp_path):
    """Written twice from the same run, page and details are the same to the byte."""
    assert write(run[1], tmp_path / "a") == write(run[1], tmp_path / "b")


def test_the_page_in_the_tree_has_every_figure():
    """docs/benchmarks.md lists the figures of targets.toml, and fits on one page."""
    text = (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert not [one.id for one in FIGURES if f"| {one.question} | {one.asked} |" not in text]
    assert len(text.splitlines()) < 180
