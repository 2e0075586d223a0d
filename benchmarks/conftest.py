"""What the benchmarks share: timing in turns, their files, and what the JSON file says of machine and ratios.

A benchmark belongs to a group, named by the question ("crc32/16 MiB"). ``extra_info`` says who it is (`who`), what it
is there (`role`: "ours", "rival" or "limit"), with which instruction set (`isa`) and how many `threads`; how many bytes
or items a call deals with (`bytes`, `GB/s`, `items`); and, for ours, how many times faster it is than the best rival
of its group (`best_rival`, `ratio_to_rival`) and by the limit (`best_limit`, `ratio_to_limit`: at most 1, but for
noise). The limit is that for the same number of threads.
"""

import sys

import pytest

import files
import machine
import timing

REPLAY = timing.Replay()


def pytest_collection_modifyitems(items):
    """Have the times of those that are timed in turns told to pytest-benchmark, which takes them for its own."""
    for item in items:
        if "race" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.benchmark(timer=REPLAY))


@pytest.fixture(scope="session")
def results():
    """Return what has been timed, by group."""
    return {}


@pytest.fixture(scope="session")
def smoke(request):
    """Tell whether everything is only called once, and nothing timed: files are small then."""
    return request.config.option.benchmark_disable


def others(item):
    """Return what a benchmark is parametrised by, but for who it is."""
    return tuple((name, str(value)) for name, value in sorted(item.callspec.params.items()) if name != "who")


def chosen(request, contenders):
    """Return those of the contenders that this run wants: whoever is not deselected."""
    this = request.node
    return {
        item.callspec.params["who"]: contenders[item.callspec.params["who"]]
        for item in request.session.items
        if getattr(item, "originalname", None) == this.originalname
        and item.path == this.path
        and others(item) == others(this)
    }


@pytest.fixture
def race(request, benchmark, results, smoke):
    """Return race(groups, *case): time a group when its first one comes, and report this one's times.

    `groups` are those of `everyone`, and `case` is handed to whoever prepares the contenders.
    """

    def race(groups, *case, nbytes=None, items=None):
        group, who = (request.node.callspec.params[name] for name in ("group", "who"))
        contenders = groups[group]
        contender = contenders[who]
        if smoke:
            benchmark.pedantic(timing.Lane(contender, contender.prepare(*case)).turn, (1,))
            return
        key = (request.node.originalname, others(request.node))
        if key not in results:
            results[key] = timing.compete(chosen(request, contenders), *case)
        times, info, out = results[key]
        if who in out:
            raise out[who]
        about = {"who": who, "role": contender.role, "threads": contender.threads, "isa": contender.isa}
        if nbytes:
            about |= {"bytes": nbytes, "GB/s": nbytes / sorted(times[who])[len(times[who]) // 2] / 1e9}
        if items:
            about["items"] = items
        benchmark.group = group
        benchmark.extra_info |= {name: value for name, value in (about | info[who]).items() if value is not None}
        REPLAY.load(times[who])
        benchmark.pedantic(lambda: None, rounds=len(times[who]))

    return race


@pytest.fixture(scope="session")
def shapes(smoke):
    """Tensors of each model that is opened. In a smoke test nothing is timed, and the largest is small."""
    part = 100 if smoke else 1
    many = {f"{count:,} tensors": files.many_shapes(-(-count // part)) for count in (100, 1_000, 10_000, 100_000)}
    return {"MiniLM": files.minilm_shapes()} | many


@pytest.fixture(scope="session")
def model(shapes, tmp_path_factory):
    """Return model(size, suffix) -> path: the file of that size and format, written when first asked for."""
    folder = tmp_path_factory.mktemp("models")

    def model(size, suffix):
        path = folder / f"{size.replace(' ', '-')}.{suffix}"
        if not path.exists():
            files.WRITERS[suffix](path, shapes[size])
        return str(path)

    return model


def timed(config):
    """Benchmarks of this run that have times: none in a smoke test."""
    session = getattr(config, "_benchmarksession", None)
    return [one for one in getattr(session, "benchmarks", []) if one and one.stats.data]


def ratios(benchmarks):
    """Return {benchmark: {role: (who is the fastest of that role in its group, ratio to it)}} for each of ours."""
    found = {}
    groups = {}
    for one in benchmarks:
        groups.setdefault(one.group, []).append(one)
    for one in benchmarks:
        if one.extra_info.get("role") != "ours":
            continue
        threads = one.extra_info.get("threads")
        for role in ("rival", "limit"):
            there = [other for other in groups[one.group] if other.extra_info.get("role") == role]
            if role == "limit":
                there = [other for other in there if other.extra_info.get("threads") == threads]
            if there:
                best = min(there, key=lambda other: other.stats.median)
                found.setdefault(one.fullname, {})[role] = (
                    best.extra_info["who"],
                    best.stats.median / one.stats.median,
                )
    return found


def pytest_benchmark_update_machine_info(config, machine_info):
    """Say what machine this is, what is installed, and what was run."""
    machine_info["weightmap"] = machine.describe() | {"command": " ".join(["pytest", *sys.argv[1:]])}


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
    terminalreporter.section("times as fast as the fastest rival, and as the limit (by medians)")
    for one in sorted((one for one in benchmarks if one.fullname in found), key=lambda one: (one.group, one.name)):
        told = [f"{ratio:10.2f} x {name}" for name, ratio in found[one.fullname].values()]
        terminalreporter.write_line(f"{one.group}: {one.extra_info['who']}")
        terminalreporter.write_line("    " + "    ".join(told))
