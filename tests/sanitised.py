"""Running under the sanitisers: the environment, excluded tests, and tests of every run of all tests.

``make sanitize`` runs the whole suite with a C module that was built with the address and the undefined-behaviour
sanitiser; that is ``python -m tests.sanitised FOLDER ARGUMENT...``, the folder being the one with the package, and the
arguments those of pytest. `test_sanitised.py` runs a part of it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.places import suite

# The sanitiser's library must be loaded before Python, so it is preloaded.
ACTIVE = "libasan" in os.environ.get("LD_PRELOAD", "")

# Tests by the beginnings of their ids, with the reason why they cannot run under the sanitisers.
LEFT_OUT = {
    **dict.fromkeys(
        (
            "tests/robustness/test_attacks.py::test_all_attacks_within_half_a_gibibyte",
            "tests/robustness/test_limits.py::test_files_full_of_holes_are_refused_in_little_memory",
            "tests/plans/test_plan_memory.py::test_a_model_larger_than_its_control_group",
            "tests/plans/test_plan_memory.py::test_a_model_larger_than_the_memory_of_its_process",
        ),
        "limits the address space, of which the sanitiser takes terabytes",
    ),
    "tests/core/native/test_guard_pages.py::test_the_pages_are_forbidden": (
        "the sanitiser has a handler for segmentation faults"
    ),
    **dict.fromkeys(
        ("tests/contract/test_growth.py::test_ten_times_as_many_take_no_more_than_fifteen_times",),
        "valgrind, which counts there, cannot load the sanitiser's library",
    ),
    **dict.fromkeys(
        (
            "tests/deltas/test_pull.py::test_memory_is_that_of_some_blocks",
            "tests/pool/test_pool.py::test_memory_stays_within_the_budget",
            "tests/faults/test_threads.py::test_ten_thousand_openings_leave_nothing",
            "tests/integration/test_memory.py::test_memory_stays_flat[words]",
        ),
        "counts memory, of which the sanitiser keeps for a while what was freed",
    ),
    "tests/contract/test_growth.py::test_very_many_tensors_open_in_bounded_time_and_memory": (
        "limits the processor time, of which Python's own loops take a multiple"
    ),
    # gcc 12: the child, or a thread of it, then waits for ever, seen in its allocator. Processes of pytest-xdist have
    # a thread beside the one that forks; `-n 0` has none.
    **dict.fromkeys(
        (
            "tests/faults/test_threads.py::test_forking_while_threads_run",
            "tests/faults/test_threads.py::test_one_handle_serves_a_forked_child",
        ),
        "the sanitiser keeps its locks in a fork",
    ),
    "tests/robustness/test_sanitised.py": "runs the others like this",
}

# The processes in which `make test-all` runs the others: enough for two or four processors to share well.
PARTS = 6

# Tests that `make test-all` leaves to `make sanitize`, each with the reason why it can wait.
LATER = {
    "tests/faults/": "minutes; what fails there are calls of the system, and C gets what other tests give it",
    **dict.fromkeys(
        (
            "tests/cli/test_cli_memory.py",
            *(suite(name) for name in ("guard", "memory")),
            "tests/plans/test_plan_run.py::test_a_run_gives_back_what_was_consumed",
            "tests/robustness/test_limits.py::test_listing_ngrams_takes_memory_for_each_one_once",
            "tests/robustness/test_nesting.py::test_toml_is_bounded_before_it_is_parsed",
        ),
        "count instructions, calls and memory, of large files",
    ),
    **dict.fromkeys(
        ("tests/conversion/test_quantizing.py", *(suite(name) for name in ("damage", "demo"))),
        "minutes; the same files and kernels as in the tests of formats and of kernels",
    ),
    # Counted with gcov: these run no line of C that the other tests do not run.
    **dict.fromkeys(
        (
            f"tests/{folder}/"
            for folder in ("checkpoints", "contract", "dcp", "deltas", "hub", "llama", "remote", "report", "trust")
        ),
        "what they try is in Python; C gets what it gets in the tests of formats and of kernels",
    ),
    suite("guard_pages"): "test_outputs calls the same functions in memory that the sanitiser watches",
    **dict.fromkeys(
        (
            "tests/core/native/test_decoding.py::test_output_beyond_the_caches",
            "tests/core/native/test_lookup.py::test_what_is_streamed_is_the_same",
        ),
        "outputs of 36 MiB, of which a shorter one takes the same way, except where outputs are streamed",
    ),
    **dict.fromkeys(
        (
            *(suite(name) for name in ("docs", "imports", "packaging")),
            "tests/integration/test_pages.py",
            "tests/report/test_page.py",
        ),
        "nothing of the C module, or next to it",
    ),
}

SETTINGS = {
    # Python keeps memory until it ends, which is not a leak.
    "detect_leaks": 0,
    # A request for too much memory must fail, not end the process.
    "allocator_may_return_null": 1,
    # Freed memory is kept for a while, so that its use is noticed; the default of 256 MiB would trip bounds on memory.
    "quarantine_size_mb": 16,
}


def reason_to_skip(nodeid: str) -> str | None:
    """Return why this test is left out of a run under the sanitisers, or None where it is not."""
    return next((reason for start, reason in LEFT_OUT.items() if nodeid.startswith(start)), None)


def selection(part: int) -> list[str]:
    """Return the arguments for pytest by which `make test-all` takes one of `PARTS` parts: files by turns."""
    folder = Path(__file__).parent
    files = sorted(path.relative_to(folder.parent).as_posix() for path in folder.rglob("test_*.py"))
    taken = [name for name in files if not name.startswith(tuple(LATER))]
    return ["-m", "not slow", *(f"--deselect={start}" for start in LATER if "::" in start), *taken[part::PARTS]]


def library() -> str | None:
    """Where gcc has its sanitiser's library, with that of C++ after it, as `LD_PRELOAD` takes them, or None.

    The sanitiser looks for C++'s way of throwing when it starts. Without it, the first exception that another package's
    module throws, caught or not, ends the process; sentencepiece has one for a damaged model.
    """
    compiler = shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    names = ("libasan.so", "libstdc++.so.6")
    found = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in names]
    # A name that gcc gives back as it is: it has no such library.
    return ":".join(name for name in found if Path(name).is_absolute()) if Path(found[0]).is_absolute() else None


def environment(library: str, packages: str, *, small: bool = True) -> dict[str, str]:
    """Return the environment for a Python with the sanitiser's library, and the sanitised package in `packages`.

    With `small`, Python takes the memory of its small objects one by one. Otherwise objects below 512 bytes lie back to
    back in Python's own pools, where no access is out of bounds; that takes half of the time.
    """
    return {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in SETTINGS.items()),
        "PYTHONMALLOC": "malloc" if small else "pymalloc",
        "PYTHONPATH": packages,
    }


def main() -> None:
    """Become pytest, with the sanitised package and its tests."""
    found = library()
    if found is None:
        sys.exit("needs gcc with the address sanitiser; on Debian: apt install gcc")
    # pytest captures only Python's own streams, or the message of a sanitiser that ends the process would be lost.
    command = [sys.executable, "-m", "pytest", "--capture=sys", *sys.argv[2:]]
    os.execve(sys.executable, command, environment(found, str(Path(sys.argv[1]).resolve())))


if __name__ == "__main__":
    main()
