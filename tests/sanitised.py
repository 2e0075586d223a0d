"""Running under the sanitisers: which tests cannot, and which a run in every test of the package is to have.

`make sanitize` runs the whole suite with a C module that was built with the address and the undefined-behaviour
sanitiser; `test_sanitised.py` runs a part of it.
"""

from __future__ import annotations

import os

# The sanitiser's library has to be there before Python is, so it is preloaded.
ACTIVE = "libasan" in os.environ.get("LD_PRELOAD", "")

# Tests by the beginnings of their ids, with what keeps them from running under the sanitisers, or from telling anything.
LEFT_OUT = {
    "tests/faults/": "what these preload takes the place of the sanitiser's library",
    "tests/test_guard.py": "counts what the sanitiser adds to",
    "tests/test_packaging.py": "builds and installs the package as it is",
    "tests/test_sanitised.py": "runs the others like this",
}

# What reaches C with all its cases.
SELECTION = (
    *("attacks", "amb_malformed", "bintensors_malformed", "embd_malformed", "finalfusion_malformed", "table"),
    *("scan", "index", "safetensors_scan", "guard_pages", "crc32", "fnv1a", "half", "intblock", "quantize_kernels"),
    *("pq", "subwords", "memory", "pages", "roundtrip"),
)


def reason_to_skip(nodeid: str) -> str | None:
    """Return why this test is left out of a run under the sanitisers, or None where it is not."""
    return next((reason for start, reason in LEFT_OUT.items() if nodeid.startswith(start)), None)
