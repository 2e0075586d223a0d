"""Names that match globs: what `include` and `exclude` mean."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightmap.core.arguments import Globs


def matches(name: str, globs: str | Sequence[str]) -> bool:
    """Say whether a name matches one of these globs. Upper and lower case differ."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in listed(globs))


def takes(name: str, include: Globs, exclude: Globs) -> bool:
    """Say whether a name matches an `include` (None: any name does) and no `exclude`."""
    return (include is None or matches(name, include)) and not (exclude and matches(name, exclude))


def listed(globs: Globs) -> tuple[str, ...]:
    """Return globs as a tuple, an empty one for None."""
    return () if globs is None else (globs,) if isinstance(globs, str) else tuple(globs)
