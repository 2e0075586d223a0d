"""The conversion rule for metadata, the same for all formats: which values are converted, and which are dropped.

Ours: the types of GGUF's key-values survive in formats without types. There a value is JSON, or the text of JSON if the
format holds only texts: ``"32"``, ``"[0.5, 1.0]"``; floats that are not finite are the strings NaN, Infinity and
-Infinity. The entry "weightmap.types" records the original types: a JSON object of types by key, such as ``{"a":
"UINT32", "b": "[FLOAT32]"}``. Types have gguf-dump's names; "[...]" is an array, "[ARRAY]" an empty array of arrays,
and a list has the types of inner arrays that differ in type. "JSON" is a number or truth value of JSON or TOML. Plain
texts are not listed. `convert` restores the types for GGUF or another format. Without the entry, values have the type
that they show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from weightmap.core.bytes import strict_json
from weightmap.core.model.sharded import json_form, plain
from weightmap.errors import TensorFileError

# The entry with the types of the other entries
TYPES = "weightmap.types"
_NUMBERS = frozenset(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)) | {"FLOAT32", "FLOAT64"}
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_KINDS = {str: "text", bool: "boolean", int: "integer", type(None): "null"}
_SCALARS = frozenset({"integer", "float", "boolean"})


def _kinds(value: Any) -> frozenset[str]:
    """Return the kinds of a value and of everything in it."""
    all_kinds, pending = set(), [value]
    while pending:
        inner = pending.pop()
        kinds = getattr(inner, "kinds", None)  # a lazily decoded sequence of texts
        if kinds is not None:
            all_kinds |= kinds
        elif hasattr(inner, "dtype"):
            all_kinds.add("array")
        elif isinstance(inner, Mapping):
            all_kinds.add("table")
            pending.extend(inner.values())
        elif isinstance(inner, (list, tuple)):
            all_kinds |= {"list", "mixed"} if len({bool, int, float, str} & set(map(type, inner))) > 1 else {"list"}
            pending.extend(inner)
        elif isinstance(inner, float):
            all_kinds.add("float" if math.isfinite(inner) else "non-finite")
        elif type(inner).__module__ == "datetime":
            all_kinds.add("time")
        elif type(inner) is int and not -(1 << 63) <= inner < 1 << 64:
            all_kinds.add("large")
        else:
            all_kinds.add(_KINDS.get(type(inner), "other"))
    return frozenset(all_kinds)


class Typed(dict[str, Any]):
    """Metadata with known types.

    Attributes
    ----------
    types : dict of str to (str or list)
        The type of each value other than plain text: see the module.
    odd : list of str
        Keys of values that contradict their stated type.
    """

    def __init__(self, values: Mapping[str, Any], types: Mapping[str, Any], odd: list[str]) -> None:
        super().__init__(values)
        self.types, self.odd = dict(types), odd

    def copy(self) -> Typed:
        """Return a copy with the same types."""
        return Typed(self, self.types, self.odd)

    def __or__(self, other: Any) -> Any:
        return Typed({**self, **other}, {key: kind for key, kind in self.types.items() if key not in other}, self.odd)


def typed(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata with values typed by the entry `TYPES`, as numpy's scalars and arrays; see the module.

    A value that does not fit its stated type stays as it is.
    """
    if TYPES not in metadata or hasattr(metadata, "types"):
        return metadata
    try:
        types = strict_json.loads(str(metadata[TYPES]).encode(), TYPES)
    except (TensorFileError, UnicodeEncodeError):
        return Typed(metadata, {}, [TYPES])
    result = {key: value for key, value in metadata.items() if key != TYPES}
    odd = []
    for key, kind in types.items():
        try:
            result[key] = _read(result[key], kind)
        except (KeyError, ValueError):
            if key in result:
                odd.append(key)
    stated = {key: kind for key, kind in types.items() if key in result and key not in odd and kind != "JSON"}
    return Typed(result, stated, odd)


def _read(stored: Any, kind: Any) -> Any:
    """Return a value of a type from its stored form. Raises ValueError if it does not fit the type."""
    if isinstance(stored, str) and not (kind == "STRING" or stored in _SPECIAL):
        try:
            (stored,) = strict_json.loads(b'{"":%b}' % stored.encode(), "value").values()
        except TensorFileError as error:
            raise ValueError from error
    return stored if kind == "JSON" else _value(stored, kind)


def _value(value: Any, kind: Any) -> Any:
    """Return a parsed value as one of a type. Raises ValueError if it does not fit."""
    if isinstance(kind, str) and kind[:1] != "[":
        if kind == "STRING" and isinstance(value, str):
            return value
        return _numbers([value], kind)[0]
    if not isinstance(value, list):
        raise ValueError(kind)  # noqa: TRY004 - what a file says, not an argument
    if isinstance(kind, list):
        return [_value(item, inner) for item, inner in zip(value, map(_of_array, kind), strict=True)]
    inner = kind[1:-1]
    if not value:  # only an array of numpy knows its type then
        kinds = {"STRING": np.empty(0, "U1")} | dict.fromkeys(["ARRAY", inner[:1] and "["], np.empty((0, 0), np.int32))
        return kinds[inner] if inner in kinds else _numbers([], inner)
    if inner == "STRING" and all(isinstance(item, str) for item in value):
        return value
    return [_value(item, inner) for item in value] if inner[:1] == "[" else _numbers(value, inner)


def _of_array(kind: Any) -> Any:
    if kind[:1] != "[" and not isinstance(kind, list):
        raise ValueError(kind)
    return kind


def _numbers(items: list[Any], kind: str) -> Any:
    """Return numbers or truth values as an array of a type. Raises ValueError if they do not fit."""
    if kind == "BOOL" and all(isinstance(item, bool) for item in items):
        return np.array(items, np.bool_)
    if kind not in _NUMBERS:
        raise ValueError(kind)
    dtype = np.dtype(kind.lower())
    if dtype.kind == "f":
        values = [_SPECIAL[item] if isinstance(item, str) and item in _SPECIAL else item for item in items]
        with np.errstate(over="ignore"):
            array = np.array([float(item) for item in values if type(item) in {int, float}], dtype)
        if len(array) == len(items) and np.isfinite(array).sum() == sum(type(item) is not str for item in items):
            return array
    elif all(type(item) is int for item in items):
        limits = np.iinfo(dtype)
        if not items or limits.min <= min(items) <= max(items) <= limits.max:
            return np.array(items, dtype)
    raise ValueError(kind)


def _kind_of(value: Any, kind: str) -> Any:
    """Return the type of a value as the module spells it; `kind` is the type of a scalar."""
    if isinstance(value, list) and not (value and isinstance(value[0], str)):
        inner = [_kind_of(item, kind) for item in value]
        if not inner:
            return "[ARRAY]"
        return f"[{inner[0]}]" if isinstance(inner[0], str) and inner.count(inner[0]) == len(inner) else inner
    if getattr(value, "ndim", 0):
        items = "STRING" if value.dtype.kind == "U" else value.dtype.name.upper()
        return "[ARRAY]" if value.ndim > 1 else f"[{items}]"
    return "[STRING]" if isinstance(value, list) or hasattr(value, "kinds") else kind


def _written(value: Any, kind: Any, types: frozenset[str], max_length: int | None) -> tuple[Any, Any] | None:
    """Return the form of a value in a format without types, and its type; None if it would not read back equal."""
    try:
        kind, stored = _kind_of(value, kind), json_form(value)
        if not _kinds(stored) <= types:
            stored = _text(stored)
        back = _read(stored, kind)
    except (TensorFileError, ValueError):  # strings that are not UTF-8, arrays too deep for the rest of the stack
        return None
    same = _bits(back, kind) == _bits(value, kind)
    return (stored, kind) if "text" in types and same and not _is_long(stored, max_length) else None


def _is_long(stored: Any, max_length: int | None) -> bool:
    """Whether a text has more than `max_length` bytes."""
    return max_length is not None and isinstance(stored, str) and len(stored.encode(errors="replace")) > max_length


def _text(stored: Any) -> str:
    from json import dumps  # noqa: PLC0415 - import takes 0.7 ms, and opening a file writes none

    return dumps(stored, ensure_ascii=False)


def _bits(value: Any, kind: Any) -> Any:
    """Return the bits of a value, for comparison."""
    if isinstance(kind, str) and kind[:1] != "[":
        return np.array(value, kind.lower()).tobytes()
    if kind in ("[STRING]", "[ARRAY]"):
        return list(value)
    return [_bits(item, _kind_of(item, "")) for item in value] if isinstance(value, list) else value.tobytes()


def fitted(
    metadata: dict[str, Any], places: frozenset[str] | None, storable: frozenset[str], max_length: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata that a format can hold, and the dropped keys.

    `places`, `storable` and `max_length` are the format's `metadata_keys`, `metadata_kinds` and `metadata_most`. A
    value of a kind in `storable` is copied unchanged, an array as a list if the format has no arrays; a number or a
    truth value becomes its JSON text if the format has only texts. The types of such values, and all other known types,
    are stored too: see the module. Other values, and keys outside `places`, are dropped.
    """
    only_texts = places is None and not storable >= _SCALARS and TYPES not in metadata
    changes: dict[str, Any] = {}
    behind = []
    types = {} if places is not None or "array" in storable else getattr(metadata, "types", {})
    kinds_of: dict[str, Any] = {}
    for key, value in metadata.items():
        if types.get(key, "STRING") != "STRING" or (types and key == TYPES):
            written = None if key == TYPES else _written(value, types[key], storable, max_length)
            if written is None:
                behind.append(key)
            else:
                changes[key], kinds_of[key] = written
            continue
        here, kinds = value, _kinds(value)
        if "array" not in storable and ("array" in kinds or "list" in kinds):
            here = plain(value)
            kinds = _kinds(here)
        if (places is not None and key not in places) or _is_long(here, max_length):
            behind.append(key)
        elif kinds <= {*_SCALARS, "large"} and only_texts:
            changes[key], kinds_of[key] = _text(here), "JSON"
        elif kinds <= storable:
            if here is not value:
                changes[key] = here
        elif kinds <= _SCALARS and "text" in storable:
            changes[key] = _text(here)
        else:
            behind.append(key)
    record = _text(dict(sorted(kinds_of.items())))
    if _is_long(record, max_length):
        behind += kinds_of
        changes = {key: value for key, value in changes.items() if key not in kinds_of}
        kinds_of = {}
    if not changes and not behind:
        return metadata, behind
    result = metadata.copy()
    for key in behind:
        del result[key]
    result.update(changes)
    if kinds_of:
        result[TYPES] = record
    return result, behind
