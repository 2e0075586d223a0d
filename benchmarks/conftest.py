"""What the benchmarks share: their files, the roles of those compared, and the table of ratios at the end.

A benchmark belongs to a group, and says in ``benchmark.extra_info["role"]`` what it is there: "ours", "rival", or "floor" for
what no reader can do without. Under the closing table, and in the JSON file, each of ours then stands with its ratio to the
fastest rival of its group: 3.0 means three times as fast.
"""

import pytest
from benchmarks import files


def pytest_addoption(parser):
    """Let a run be made quicker, for smoke tests and for a first look."""
    parser.addoption("--largest", type=int, default=100_000, help="number of tensors in the largest benchmark files")


@pytest.fixture
def run(benchmark):
    """Return run(group, role, function, ...): benchmark one contender of a group."""

    def run(group, role, function, *args, setup=None, rounds=None):
        benchmark.group = group
        benchmark.extra_info["role"] = role
        if rounds or setup:
            return benchmark.pedantic(function, args=args, setup=setup, rounds=rounds or 50, warmup_rounds=1)
        return benchmark(function, *args)

    return run


@pytest.fixture(scope="session")
def sizes(request):
    """Label and tensors of each model that is opened. In a smoke test nothing is timed, and the largest is small."""
    largest = 1_000 if request.config.option.benchmark_disable else request.config.option.largest
    return {
        "minilm": ("MiniLM", files.minilm_shapes()),
        "middle": (f"{largest // 10:,} tensors", files.many_shapes(largest // 10)),
        "large": (f"{largest:,} tensors", files.many_shapes(largest)),
    }


@pytest.fixture(scope="session")
def model(sizes, tmp_path_factory):
    """Return model(size, suffix) -> label, path: the file of that size and format, written when first asked for."""
    folder = tmp_path_factory.mktemp("models")
    writers = {"weights": files.write_embd, "safetensors": files.write_safetensors, "bt": files.write_bintensors}

    def model(size, suffix):
        label, shapes = sizes[size]
        path = folder / f"{size}.{suffix}"
        if not path.exists():
            writers[suffix](path, shapes)
        return label, str(path)

    return model


def ratios(benchmarks):
    """Return (benchmark, fastest rival, ratio) for each of ours in a group that has rivals."""
    rows = []
    for one in benchmarks:
        rivals = [other for other in benchmarks if other.group == one.group and other.extra_info.get("role") == "rival"]
        if one.extra_info.get("role") == "ours" and rivals:
            best = min(rivals, key=lambda other: other.stats.median)
            rows.append((one, best, best.stats.median / one.stats.median))
    return rows


def timed(config):
    """Benchmarks of this run that have times: none in a smoke test."""
    session = getattr(config, "_benchmarksession", None)
    return [one for one in getattr(session, "benchmarks", []) if one and one.stats.data]


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Write the ratios into the JSON file."""
    found = {one.fullname: (best.name, ratio) for one, best, ratio in ratios(timed(config))}
    for entry in output_json["benchmarks"]:
        if entry["fullname"] in found:
            entry["extra_info"]["best_rival"], entry["extra_info"]["ratio"] = found[entry["fullname"]]


def pytest_terminal_summary(terminalreporter, config):
    """Show the ratios."""
    rows = ratios(timed(config))
    if not rows:
        return
    terminalreporter.section("ratio to the fastest rival, by medians")
    for one, best, ratio in sorted(rows, key=lambda row: (row[0].group, row[0].name)):
        terminalreporter.write_line(f"{one.group:36} {one.name:44} {ratio:10.2f} x {best.name}")
