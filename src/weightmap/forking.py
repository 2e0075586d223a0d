"""Forking while other threads read: a child must not wait for a module that one of them was loading.

Much of this package is imported when it is first used. A thread that does so holds the lock of that module; a child
that is forked at that moment inherits the lock, but not the thread, and would wait for ever at the same import. So
before a process with several threads forks, what reading may need is loaded: that waits for a load under way, and
leaves none to be begun. It takes some ten milliseconds once, and the children need not do it again, each for itself.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["load_all"]

# Programs and integrations, and what only conversions of word embeddings need.
_APART = frozenset({"__main__", "cli", "compat", "demo", "importers", "torch", "words"})
# Not `logging` and `concurrent.futures`, which are to be told of a fork themselves: from here that would come too late.
_OTHERS = ("ml_dtypes", "tomllib")
_loaded = False


def load_all() -> None:
    """Load what reading may load on demand, if another thread could be doing so. Runs before every fork."""
    global _loaded  # noqa: PLW0603 - a process loads it once
    if _loaded or len(sys._current_frames()) < 2:  # noqa: SLF001 - documented, in spite of its name
        return
    for name in _OTHERS:
        import_module(name)
    _load_package("weightmap", sys.modules["weightmap"].__path__)
    _loaded = True


def _load_package(name: str, folders: Iterable[str]) -> None:
    import pkgutil  # noqa: PLC0415 - for processes that fork

    for found in pkgutil.iter_modules(folders, f"{name}."):
        if found.name.rpartition(".")[2] not in _APART:
            module = import_module(found.name)
            if found.ispkg:
                _load_package(found.name, module.__path__)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=load_all)
