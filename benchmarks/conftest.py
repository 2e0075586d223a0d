"""What the benchmarks share: their files, the roles of those compared, and the table of ratios at the end.

A benchmark belongs to a group, and says in ``benchmark.extra_info["role"]`` what it is there: "ours", "rival", or
"floor" for what no reader can do without. Under the closing table, and in the JSON file, each of ours then stands with
its ratio to the fastest rival of its group: 3.0 means three times as fast.
"""

import pytest

import files


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
    writers = {
        "weights": files.write_embd,
        "safetensors": files.write_safetensors,
        "bt": files.write_bintensors,
        "spec.bt": files.write_bintensors_spec,
    }

    def model(size, suffix):
        label, shapes = sizes[size]
        path = folder / f"{size}.{suffix}"
        if not path.exists():
            writers[suffix](path, shapes)
        return label, str(path)

    return model


def ratios(benchmarks):
    """Return {benchmark: {role: (fastest of that role in its group, ratio to it)}} for each of ours."""
    found = {}
    for one in benchmarks:
        if one.extra_info.get("role") != "ours":
            continue
        beside = [other for other in benchmarks if other.group == one.group]
        for role in ("rival", "floor"):
            if there := [other for other in beside if other.extra_info.get("role") == role]:
                best = min(there, key=lambda other: other.stats.median)
                found.setdefault(one.fullname, {})[role] = (best.name, best.stats.median / one.stats.median)
    return found


def timed(config):
    """Benchmarks of this run that have times: none in a smoke test."""
    session = getattr(config, "_benchmarksession", None)
    return [one for one in getattr(session, "benchmarks", []) if one and one.stats.data]


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Write the ratios into the JSON file."""
    found = ratios(timed(config))
    for entry in output_json["benchmarks"]:
        for role, (name, ratio) in found.get(entry["fullname"], {}).items():
            entry["extra_info"] |= {f"best_{role}": name, f"ratio_to_{role}": ratio}


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter, config):
    """Show the ratios, below the table of times."""
    benchmarks = timed(config)
    found = ratios(benchmarks)
    if not found:
        return
    terminalreporter.section("times as fast as the fastest rival, and as the floor (by medians)")
    for one in sorted((one for one in benchmarks if one.fullname in found), key=lambda one: (one.group, one.name)):
        told = [f"{ratio:10.2f} x {name}" for name, ratio in found[one.fullname].values()]
        terminalreporter.write_line(f"{one.group}  {one.name}")
        terminalreporter.write_line("    " + "    ".join(told))
