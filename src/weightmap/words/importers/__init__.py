"""The importers: files that `weightmap.convert` reads once and `weightmap.open` cannot open in place.

Every module or folder here whose name does not begin with an underscore defines one record called ``IMPORTER``. To add
an importer, add a file: `open` then recognises its format in an error, `convert` reads it, and writes it if the record
has a `plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.core.formats._base import discover

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightmap.core.formats import Importer

IMPORTERS: dict[str, Importer] = discover(__name__, __path__, "IMPORTER")


def every() -> Iterable[Importer]:
    """Return the importers."""
    return IMPORTERS.values()


# The names that `convert` takes for files that it writes.
NAMES = tuple(name for name, importer in IMPORTERS.items() if importer.plan is not None)
