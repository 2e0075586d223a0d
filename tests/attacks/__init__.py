"""Attacks: files with one lie each, by the row of the threat tables, and the error that each must raise.

The files are made from valid ones by the builders, which share no code with the package; so they can test any other
library as well. ``python -m tests.attacks FOLDER`` writes them all, with a table of the expected errors.
"""

from functools import cache

from tests import builders

from .case import Case
from .rows import TESTS, parts, rows

__all__ = ["TESTS", "Case", "cases", "parts", "rows", "sound"]


@cache
def cases():
    """Every attack: on each format, on models in a directory, and on all formats alike."""
    from . import anything, sharded

    modules = [module for builder in builders.known().values() for module in builder.damaging]
    return tuple(case for module in (*modules, sharded, anything) for case in module.cases())


@cache
def sound():
    modules = [module for builder in builders.known().values() for module in builder.damaging]
    return {kind: data for module in modules for kind, data in module.SOUND.items()}
