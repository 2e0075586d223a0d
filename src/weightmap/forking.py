"""A fork hook that keeps a child from waiting for an import of another thread; the package registers it.

Much of this package is imported at its first use. A thread that imports a module holds its lock. A child forked at that
moment inherits the lock without the thread, and would wait forever at the same import. So before a process with
several threads forks, this module imports everything that reading may need. That takes about 60 ms, once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Not needed for reading files: programs, integrations, words, deltas but their overlay, and stores, whose
# libraries take a quarter of a second and register hooks of their own.
_APART = frozenset(
    {"__main__", "cli", "compat", "dcp", "deltas", "jax", "report", "torch", "typing", "vllm", "words"}
    | {"ahead", "fetching", "hub", "location", "proxies", "remote", "stores", "web"}
)
# Without `logging` and `concurrent.futures`: imported during a fork, they would register their own hooks too late.
_OTHERS = ("ml_dtypes", "tomllib", "weightmap.deltas.overlay")
_loaded = False


def load_all() -> None:
    """Import everything that reading may import later, if other threads run. Runs before every fork."""
    global _loaded  # noqa: PLW0603 - a process loads it once
    if _loaded or len(sys._current_frames()) < 2:  # noqa: SLF001 - documented, despite its name
        return
    for name in _OTHERS:
        import_module(name)
    _load_package("weightmap", sys.modules["weightmap"].__path__)
    _loaded = True


def _load_package(name: str, folders: Iterable[str]) -> None:
    import pkgutil  # noqa: PLC0415 - only processes that fork need it

    for found in pkgutil.iter_modules(folders, f"{name}."):
        if found.name.rpartition(".")[2] not in _APART:
            module = import_module(found.name)
            if found.ispkg:
                _load_package(found.name, module.__path__)
