"""The conversion rule for metadata, the same for all formats: which values go along, which stay behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["equal", "fitted", "plain"]

_KINDS = {str: "text", bool: "boolean", int: "integer", type(None): "null"}
_SCALARS = frozenset({"integer", "float", "boolean"})


def _kinds(value: Any) -> frozenset[str]:
    """Return the kinds of a value and of everything in it."""
    found, left = set(), [value]
    while left:
        inner = left.pop()
        kinds = getattr(inner, "kinds", None)  # a sequence of texts that decodes them when they are used
        if kinds is not None:
            found |= kinds
        elif hasattr(inner, "dtype"):
            found.add("array")
        elif isinstance(inner, Mapping):
            found.add("table")
            left.extend(inner.values())
        elif isinstance(inner, (list, tuple)):
            found.add("list")
            left.extend(inner)
        elif isinstance(inner, float):
            found.add("float" if math.isfinite(inner) else "non-finite")
        elif type(inner).__module__ == "datetime":
            found.add("time")
        else:
            found.add(_KINDS.get(type(inner), "other"))
    return frozenset(found)


def plain(value: Any) -> Any:
    """Return a value with lists in the place of arrays and of lazy sequences."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def equal(a: Any, b: Any) -> bool:
    """Say whether two values are equal; arrays and lists of the same items are."""
    return a is b or bool(plain(a) == plain(b))


def fitted(
    metadata: dict[str, Any], places: frozenset[str] | None, held: frozenset[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata that a format takes, and the keys that stay behind.

    `places` and `held` are the format's `metadata_keys` and `metadata_kinds`. A value of a kind in `held` goes along
    unchanged, an array as a list if the format has no arrays; a number or a truth value becomes its JSON text if the
    format holds only texts. Everything else stays behind, and so does every key outside of `places`.
    """
    changes: dict[str, Any] = {}
    behind = []
    for key, value in metadata.items():
        here, kinds = value, _kinds(value)
        if "array" not in held and ("array" in kinds or "list" in kinds):
            here = plain(value)
            kinds = _kinds(here)
        if places is not None and key not in places:
            behind.append(key)
        elif kinds <= held:
            if here is not value:
                changes[key] = here
        elif kinds <= _SCALARS and "text" in held:
            from json import dumps  # noqa: PLC0415 - import takes 0.7 ms, and opening a file writes none

            changes[key] = dumps(here)
        else:
            behind.append(key)
    if not changes and not behind:
        return metadata, behind
    kept = metadata.copy()
    kept.update(changes)
    for key in behind:
        del kept[key]
    return kept, behind
