"""Names that match globs: what `include` and `exclude` mean."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightmap.arguments import Globs


def matches(name: str, globs: str | Sequence[str]) -> bool:
    """Say whether a name matches one of these globs. Upper and lower case differ."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in ([globs] if isinstance(globs, str) else globs))


def takes(name: str, include: Globs, exclude: Globs) -> bool:
    """Say whether a name matches an `include`, if there is one, and no `exclude`."""
    return (not include or matches(name, include)) and not (exclude and matches(name, exclude))
