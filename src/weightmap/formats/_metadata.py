"""The conversion rule for metadata, the same for all formats: which values go along, which stay behind."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["JSON", "TEXT", "TOML", "fitted"]

# Kinds of values. The items of lists and tables must be of a kind that the format has, too.
TEXT = frozenset({"text"})
JSON = TEXT | {"integer", "float", "boolean", "null", "list", "table"}
TOML = (JSON - {"null"}) | {"non-finite", "time"}
_KINDS = {str: "text", bool: "boolean", int: "integer", type(None): "null"}
_SCALARS = frozenset({"integer", "float", "boolean"})


def _kinds(value: Any) -> frozenset[str]:
    """Return the kinds of a value and of everything in it."""
    found, left = set(), [value]
    while left:
        inner = left.pop()
        if isinstance(inner, Mapping):
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


def fitted(
    metadata: dict[str, Any], places: frozenset[str] | None, held: frozenset[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata that a format takes, and the keys that stay behind.

    `places` and `held` are the format's `metadata_keys` and `metadata_kinds`. A value of a kind in `held` goes along
    unchanged; a number or a truth value becomes its JSON text if the format holds only texts. Everything else stays
    behind, and so does every key outside of `places`.
    """
    kept, behind = dict(metadata), []
    for key, value in metadata.items():
        kinds = _kinds(value)
        if places is not None and key not in places:
            behind.append(key)
        elif kinds <= held:
            continue
        elif kinds <= _SCALARS and "text" in held:
            kept[key] = json.dumps(value)
        else:
            behind.append(key)
    for key in behind:
        del kept[key]
    return (metadata if kept == metadata and not behind else kept), behind
