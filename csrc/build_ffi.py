"""Describes the C module to cffi: kernels.h without its '#' lines, the sources, the flags."""

import os
import platform
import sysconfig
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).parent

# No -march=native: variants are chosen when the module is loaded. No -ffast-math, and no contraction: a fused
# multiply-add differs from numpy in a quarter of all lanes.
FLAGS = ["-O3", "-std=c11", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-parameter"]
# WEIGHTMAP_SANITIZE=address,undefined builds the module for a run under the sanitisers.
SANITIZE = os.environ.get("WEIGHTMAP_SANITIZE", "")


def sources() -> list[str]:
    """Every C file of csrc/; those of another architecture compile to nothing."""
    return sorted(path.relative_to(ROOT.parent).as_posix() for path in ROOT.rglob("*.c"))


def make_ffi() -> FFI:
    """Return the FFI object that setuptools builds `weightmap._kernels` from."""
    header = (ROOT / "kernels.h").read_text(encoding="utf-8")
    ffi = FFI()
    ffi.cdef("\n".join(line for line in header.splitlines() if not line.startswith("#")))
    msvc = platform.system() == "Windows"
    flags = [] if msvc else list(FLAGS)
    link = [] if msvc else ["-pthread", "-lm"]
    if SANITIZE:
        flags += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined", "-g", "-O1"]
        link += [f"-fsanitize={SANITIZE}"]
    ffi.set_source(
        "weightmap._kernels",
        '#include "kernels.h"',
        sources=sources(),
        include_dirs=["csrc"],
        depends=sorted(path.relative_to(ROOT.parent).as_posix() for path in ROOT.rglob("*.h")),
        extra_compile_args=flags,
        extra_link_args=link,
        py_limited_api=not sysconfig.get_config_var("Py_GIL_DISABLED"),
    )
    return ffi
