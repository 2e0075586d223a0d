"""The machine of a run, and the versions of the libraries."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import external_env
import weightmap as wm

LIBRARIES = (
    "numpy", "ml_dtypes", "cffi", "zlib-ng", "isal", "fnv-hash-fast", "safetensors", "bintensors", "torch", "gguf",
    "onnxruntime", "bitsandbytes", "gensim",
)  # fmt: skip


def read(path: str) -> str:
    """Return the text of a system file, or nothing where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def cpu() -> str:
    """Return the model name of the CPU."""
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of all libraries, the other environment's too."""
    found = {"weightmap": wm.__version__, "Python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found | {"finalfusion": external_env.version("finalfusion") or "not installed"}


def describe() -> dict[str, Any]:
    """Return the description of the machine for docs/benchmarks.md."""
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    kinds = {read(f"{path}/level") + read(f"{path}/type")[:1]: read(f"{path}/size") for path in caches}
    return {
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": {f"L{kind[0]}": size for kind, size in kinds.items() if kind[1:] != "I"},
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "isas": list(wm.kernels.available_isas()),
        "versions": versions(),
    }
