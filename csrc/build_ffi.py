"""Describes the C module to cffi: its declarations (scans.h, archives.h and kernels.h), sources and compiler flags."""

import os
import platform
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).parent

# No -march=native: the module chooses variants when it is loaded. No -ffast-math and no contraction: a fused
# multiply-add rounds differently from numpy in a quarter of all lanes. Nobody reads the floating-point exception flags;
# without them compilers vectorise comparisons too.
ARITHMETIC = ["-ffp-contract=off", "-fno-trapping-math"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
FLAGS = ["-O3", "-std=c11", "-fvisibility=hidden", *ARITHMETIC, *WARNINGS]
# WEIGHTMAP_SANITIZE=address,undefined builds the module for a run under the sanitisers.
SANITIZE = os.environ.get("WEIGHTMAP_SANITIZE", "")
# Intel's CPUs from Skylake to Cascade Lake do not cache the decoded instructions of a 32-byte line if a branch touches
# its end (the fix for erratum SKX102, "Jump Conditional Code"). A short loop that happens to lie there takes up to
# twice as long. GNU's assembler and clang each have an option that moves branches away, for slightly longer code.
BRANCHES = ("-Wa,-mbranches-within-32B-boundaries", "-mbranches-within-32B-boundaries")


def sources() -> list[str]:
    """Return every C file of csrc/; those for another architecture compile to nothing."""
    return sorted(path.relative_to(ROOT.parent).as_posix() for path in ROOT.rglob("*.c"))


def branch_flags() -> list[str]:
    """Return the option of `BRANCHES` that the compiler accepts on x86-64, if any."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return []
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.c")
        source.write_text("int empty;\n", encoding="ascii")
        for flag in BRANCHES:
            command = [*compiler, "-Werror", flag, "-c", str(source), "-o", str(source.with_suffix(".o"))]
            try:
                done = subprocess.run(command, check=False, capture_output=True)  # noqa: S603  (the build runs it too)
            except OSError:  # no compiler: the build says so
                return []
            if done.returncode == 0:
                return [flag]
    return []


def make_ffi() -> FFI:
    """Return the FFI object that setuptools builds `weightmap._kernels` from."""
    headers = [(ROOT / "core" / name).read_text(encoding="utf-8") for name in ("scans.h", "archives.h", "kernels.h")]
    ffi = FFI()
    ffi.cdef("\n".join(line for header in headers for line in header.splitlines() if not line.startswith("#")))
    # What C calls to read files that no descriptor reads: see native/access.py.
    ffi.cdef('extern "Python" int64_t wm_read_by_python(void *, uint8_t *, uint64_t, uint64_t);')
    msvc = platform.system() == "Windows"
    flags = [] if msvc else FLAGS + branch_flags()
    link = [] if msvc else ["-pthread", "-lm"]
    if SANITIZE:
        flags += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined", "-g1", "-O1"]
        link += [f"-fsanitize={SANITIZE}"]
    ffi.set_source(
        "weightmap._kernels",
        '#include "core/kernels.h"',
        sources=sources(),
        include_dirs=["csrc"],
        depends=sorted(path.relative_to(ROOT.parent).as_posix() for path in ROOT.rglob("*.h")),
        extra_compile_args=flags,
        extra_link_args=link,
        py_limited_api=not sysconfig.get_config_var("Py_GIL_DISABLED"),
    )
    return ffi
