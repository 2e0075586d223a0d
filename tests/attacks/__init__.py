"""Attacks: files with one lie each, by the row of the threat tables, and what has to come of them.

The files are made from valid ones by the builders, which share no code with the package; so any other library can be
tried on them as well. ``python -m tests.attacks FOLDER`` writes them all, with a table of what is expected.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

from .case import Case
from .rows import ROWS, TESTS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ROWS", "TESTS", "Case", "cases", "sound"]

MODULES = ("embd", "embd_simple", "amb", "cnn_v2", "bintensors", "safetensors", "finalfusion", "sharded", "anything")


@cache
def cases() -> tuple[Case, ...]:
    """Every attack."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    return tuple(case for module in modules for case in module.cases())


@cache
def sound() -> Mapping[str, bytes]:
    """The files that the lies are told about, without a lie, by format and layout."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    return {kind: data for module in modules for kind, data in getattr(module, "SOUND", {}).items()}
