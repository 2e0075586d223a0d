"""Fixtures of the benchmarks: timing in turns, model files, and machine and ratios in the JSON file.

A benchmark belongs to a group, named by its question ("crc32/16 MiB"). ``extra_info`` has the contender (`who`), its
`role` ("ours", "rival" or "limit"), instruction set (`isa`) and `threads`; the bytes or items of a call (`bytes`,
`GB/s`, `items`); and, for ours, how many times as fast as the fastest rival it is (`best_rival`, `ratio_to_rival`) and
as the limit for the same number of threads (`best_limit`, `ratio_to_limit`: at most 1, but for noise).
"""

import sys

import pytest

import files
import machine
import timing

REPLAY = timing.Replay()


def pytest_collection_modifyitems(items):
    """Give pytest-benchmark a timer that replays the times of benchmarks that are timed in turns."""
    for item in items:
        if "compare" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.benchmark(timer=REPLAY))


@pytest.fixture(scope="session")
def results():
    """Return the results so far, by group."""
    return {}


@pytest.fixture(scope="session")
def smoke(request):
    """Tell whether everything runs once, untimed and with small files."""
    return request.config.option.benchmark_disable


def others(item):
    """Return the parameters of a benchmark without its contender."""
    return tuple((name, str(value)) for name, value in sorted(item.callspec.params.items()) if name != "who")


def chosen(request, contenders):
    """Return the contenders that this run has not deselected."""
    this = request.node
    return {
        item.callspec.params["who"]: contenders[item.callspec.params["who"]]
        for item in request.session.items
        if getattr(item, "originalname", None) == this.originalname
        and item.path == this.path
        and others(item) == others(this)
    }


@pytest.fixture
def compare(request, benchmark, results, smoke):
    """Return compare(groups, *case): time a whole group at its first benchmark, and report the times of this one.

    `groups` come from `each_contender`; the contenders are prepared for `case`. With `places`, that is a function,
    whose results are the same work in so many places in memory.
    """

    def compare(groups, *case, nbytes=None, items=None, places=None):
        group, who = (request.node.callspec.params[name] for name in ("group", "who"))
        contenders = groups[group]
        contender = contenders[who]
        made = (lambda: case) if places is None else (lambda: (case[0](),))
        if smoke:
            benchmark.pedantic(timing.Lane(contender, contender.prepare(*made())).turn, (1,))
            return
        key = (request.node.originalname, others(request.node))
        if key not in results:
            results[key] = timing.time_in_turns(chosen(request, contenders), *(made() for _ in range(places or 1)))
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

    return compare


@pytest.fixture(scope="session")
def shapes(smoke):
    """Shapes of the models to open, a hundredth as many in a smoke test."""
    part = 100 if smoke else 1
    many = {f"{count:,} tensors": files.many_shapes(-(-count // part)) for count in (100, 1_000, 10_000, 100_000)}
    return {"MiniLM": files.minilm_shapes()} | many


@pytest.fixture(scope="session")
def model(shapes, tmp_path_factory):
    """Return model(size, suffix) -> path of the file of that size and format, written at the first call."""
    folder = tmp_path_factory.mktemp("models")

    def model(size, suffix):
        path = folder / f"{size.replace(' ', '-')}.{suffix}"
        if not path.exists():
            files.WRITERS[suffix](path, shapes[size])
        return str(path)

    return model


def timed(config):
    """Return the benchmarks of this run that have times: none in a smoke test."""
    session = getattr(config, "_benchmarksession", None)
    return [one for one in getattr(session, "benchmarks", []) if one and one.stats.data]


def ratios(benchmarks):
    """Return {benchmark: {role: (fastest contender of that role in its group, ratio to it)}} for each of ours."""
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
    """Add the machine, the versions and the command."""
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
        cells = [f"{ratio:10.2f} x {name}" for name, ratio in found[one.fullname].values()]
        terminalreporter.write_line(f"{one.group}: {one.extra_info['who']}")
        terminalreporter.write_line("    " + "    ".join(cells))
