"""Running under the sanitisers: which tests cannot, and which a run in every test of the package is to have.

`make sanitize` runs the whole suite with a C module that was built with the address and the undefined-behaviour
sanitiser; `test_sanitised.py` runs a part of it.
"""

from __future__ import annotations

import os

# The sanitiser's library has to be there before Python is, so it is preloaded.
ACTIVE = "libasan" in os.environ.get("LD_PRELOAD", "")

# Tests by the beginnings of their ids, with what keeps them from running under the sanitisers.
LEFT_OUT = {
    "tests/faults/": "what these preload takes the place of the sanitiser's library",
    **dict.fromkeys(
        (
            "tests/test_attacks.py::test_all_attacks_within_half_a_gibibyte",
            "tests/test_attacks.py::test_other_libraries_can_be_tried_on_the_attacks",
            "tests/test_cnn_v2.py::test_four_billion_layers_take_no_memory",
            "tests/test_crc32.py::test_no_threads_to_be_had",
        ),
        "limits the address space, of which the sanitiser takes 16 TiB",
    ),
    "tests/test_bintensors_malformed.py::test_messages_show_the_beginning_of_a_long_name": "takes a second at most",
    **dict.fromkeys(
        ("tests/test_guard_pages.py::test_the_pages_are_forbidden", "tests/test_crc32.py::test_guard_pages_guard"),
        "the sanitiser has a handler for segmentation faults",
    ),
    "tests/test_guard.py": "counts what the sanitiser adds to",
    "tests/test_packaging.py": "builds and installs the package as it is",
    "tests/test_sanitised.py": "runs the others like this",
}

# What a run of all tests takes of this, besides all attacks: what reaches C and takes seconds, not minutes.
SELECTION = tuple(f"tests/test_{name}.py" for name in ("table",))


def reason_to_skip(nodeid: str) -> str | None:
    """Return why this test is left out of a run under the sanitisers, or None where it is not."""
    return next((reason for start, reason in LEFT_OUT.items() if nodeid.startswith(start)), None)


def environment(library: str, packages: str) -> dict[str, str]:
    """Return the environment for a Python with the sanitiser's library, and the sanitised package in `packages`."""
    return {
        **os.environ,
        "LD_PRELOAD": library,
        # Python keeps what it has until it ends, which is no leak; and who asks for too much memory is to get none.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        # Or small objects would lie back to back in pools of Python's own, where no access is out of bounds.
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": packages,
    }
