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

__all__ = ["load_all"]

_OURS = (
    "embeddings",
    "formats.amb.quantized",
    "formats.amb.verify",
    "formats.embd.verify",
    "formats.finalfusion.verify",
    "kernels._adaptive",
    "kernels._amb",
    "kernels._blocks",
    "kernels._checksums",
    "kernels._columns",
    "kernels._faults",
    "kernels._fifu",
    "kernels._files",
    "kernels._half",
    "kernels._pq",
    "kernels._records",
    "kernels._scans",
    "kernels._strings",
    "kernels._subwords",
    "pq",
    "prefetching",
    "quant",
    "sharded",
)
# Not `logging` and `concurrent.futures`, which are to be told of a fork themselves: from here that would come too late.
_OTHERS = ("difflib", "ml_dtypes", "tomllib")
_loaded = False


def load_all() -> None:
    """Load what reading may load on demand, if another thread could be doing so. Runs before every fork."""
    global _loaded  # noqa: PLW0603 - a process loads it once
    if _loaded or len(sys._current_frames()) < 2:  # noqa: SLF001 - documented, in spite of its name
        return
    for name in _OTHERS:
        import_module(name)
    for name in _OURS:
        import_module(f"weightmap.{name}")
    _loaded = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=load_all)
