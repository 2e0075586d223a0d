"""Attacks: files with one lie each, by the row of the threat tables, and the error that each must raise.

The files are made from valid ones by the builders, which share no code with the package; so any other library can be
tried on them as well. ``python -m tests.attacks FOLDER`` writes them all, with a table of what is expected.
"""

from functools import cache

from tests import builders

from .case import Case
from .rows import TESTS, parts, rows

__all__ = ["TESTS", "Case", "cases", "parts", "rows", "sound"]


@cache
def cases():
    """Every attack: of each format, on models in a directory, and those that are the same for all formats."""
    from . import anything, sharded

    modules = [module for builder in builders.known().values() for module in builder.damaging]
    return tuple(case for module in (*modules, sharded, anything) for case in module.cases())


@cache
def sound():
    modules = [module for builder in builders.known().values() for module in builder.damaging]
    return {kind: data for module in modules for kind, data in module.SOUND.items()}
