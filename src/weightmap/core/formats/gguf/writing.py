"""Writing GGUF, version 3, little-endian."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import counted
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.formats import gguf
from weightmap.core.formats._writing import Payload, Reason, Request, Unfit, encodable, lacking, refuse
from weightmap.core.native import access, scans

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Encodes metadata as key-values of version 3: unchanged ones as they were read, new ones by their Python types.

_CODES = {spelling: code for code, spelling in gguf.NUMBERS.items()}
# Types for new integers, with their ranges: the first that holds all of them is used.
_INTEGERS = [("i4", -(2**31), 2**31 - 1), ("i8", -(2**63), 2**63 - 1), ("u8", 0, 2**64 - 1)]
# Levels of arrays of arrays that the scan allows, above an array of values.
_DEEPEST = scans.GGUF_DEEPEST + 1
# Number and count of parts are stored in 16 bits.
_MAX_PARTS = 2**16 - 1


class _Misfit(Exception):  # noqa: N818 - a verdict on a value, not an error of ours
    """Says why no type holds a value."""


def key_values(request: Request, reasons: list[Reason]) -> tuple[list[bytes], int]:
    """Return the encoded key-values of a request, and the alignment; report values without encoding in `reasons`."""
    metadata = request.metadata or {}
    stored = gguf.KeyValues.of(metadata)
    merged = dict(metadata)
    if _alignment(merged) % request.align:
        merged[gguf.ALIGNMENT] = request.align
    _add_vocabulary(request, merged, reasons)
    _add_part(request, merged, reasons)
    _add_shapes(request, merged)
    pairs = []
    for key, value in merged.items():
        if not isinstance(key, str) or not encodable(key) or len(key.encode()) > scans.MAX_GGUF_KEY:
            reasons.append(Unfit("metadata", str(key), f"keys are Unicode text of at most {scans.MAX_GGUF_KEY} bytes"))
            continue
        raw = stored.stored(key) if stored is not None and metadata.get(key) is value else None
        try:
            pairs.append(gguf.encode_string(key.encode()) + (_new(key, value) if raw is None else raw))
        except _Misfit as reason:
            reasons.append(Unfit("metadata", key, str(reason)))
    return pairs, _alignment(merged)


def _alignment(metadata: Mapping[str, Any]) -> int:
    value = metadata.get(gguf.ALIGNMENT)
    return 32 if value is None or _bad_alignment(value) else int(value)


def _bad_alignment(value: Any) -> bool:
    return (
        not isinstance(value, (int, np.integer)) or not 0 < value <= access.U32_MAX or bool(value % gguf.ALIGNMENT_UNIT)
    )


def _add_vocabulary(request: Request, metadata: dict[str, Any], reasons: list[Reason]) -> None:
    """Add tokens and special ids to the metadata, unless these have the same ones already."""
    vocab, ids = request.vocab, request.special_ids
    if vocab is not None and not _same_tokens(metadata.get(gguf.TOKENS), vocab):
        bad = next((i for i, token in enumerate(vocab) if not isinstance(token, str) or not encodable(token)), None)
        if bad is None:
            metadata[gguf.TOKENS] = gguf.Strings.of(vocab)
        else:
            reasons.append(f"token {bad}, which is not Unicode text")
    for name, value in (ids or {}).items():
        keys = gguf.SPECIAL_IDS.get(name)
        if keys is None or not isinstance(value, (int, np.integer)) or not 0 <= value <= access.U32_MAX:
            reasons.append(
                Unfit("special id", str(name), f"an id of {', '.join(gguf.SPECIAL_IDS)}, from 0 to 2**32 - 1")
            )
            continue
        key = next((key for key in keys if key in metadata), keys[0])
        if metadata.get(key) != value:
            metadata[key] = np.uint32(value)


def _add_shapes(request: Request, metadata: dict[str, Any]) -> None:
    """Add the shapes of tensors stored in another shape, and correct shapes that the metadata name."""
    if any(str(key).startswith(gguf.SHAPE_OF) for key in metadata) or any(map(_laid_out, request.tensors.kinds)):
        for tensor in request.tensors:
            key = f"{gguf.SHAPE_OF}{tensor.name}"
            if key in metadata or _laid_out(tensor):
                metadata[key] = list(tensor.shape)


def _add_part(request: Request, metadata: dict[str, Any], reasons: list[Reason]) -> None:
    """Add the numbers of a part, of the types that llama.cpp's gguf-split writes. A model of one part is whole."""
    number, parts, tensors = request.part or (0, 1, 0)
    if parts > _MAX_PARTS:
        reasons.append(f"{counted(parts, 'part')} (expected at most {_MAX_PARTS})")
    elif parts > 1:
        metadata |= {
            gguf.SPLIT_NO: np.uint16(number),
            gguf.SPLIT_COUNT: np.uint16(parts),
            gguf.SPLIT_TENSORS: np.int32(tensors),
        }


def _same_tokens(stored: Any, vocab: Sequence[str]) -> bool:
    """Whether the metadata hold exactly these tokens already."""
    if not isinstance(stored, (gguf.Strings, list, tuple)) or len(stored) != len(vocab):
        return False
    return all(a == b for a, b in zip(stored, vocab, strict=True))


def _new(key: str, value: Any) -> bytes:
    """Encode a new value: its type, and itself."""
    if key == gguf.ALIGNMENT:  # readers accept no other type
        if _bad_alignment(value):
            raise _Misfit(f"it must be a multiple of {gguf.ALIGNMENT_UNIT} below 2**32")
        return struct.pack("<2I", gguf.U32, int(value))
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, str):
        return struct.pack("<I", gguf.STRING) + gguf.encode_string(_text(value))
    spelling = _spelling(value)
    if spelling is not None:
        return struct.pack("<I", _CODES[spelling]) + np.array(value, f"<{spelling}").tobytes()
    return struct.pack("<I", gguf.ARRAY) + _array(value, 1)


def _text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _Misfit("text that is not Unicode") from None


def _spelling(value: Any) -> str | None:
    """Return numpy's code for the type of a number or truth value; None for anything else."""
    if isinstance(value, np.generic):
        return _of_dtype(value.dtype)
    if isinstance(value, bool):
        return "?"
    if isinstance(value, int):
        return _of_integers([value])
    return _of_floats(np.array([value])) if isinstance(value, float) else None


def _of_dtype(dtype: np.dtype[Any]) -> str:
    spelling = "?" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"
    if spelling == "f2":
        return "f4"
    if spelling not in _CODES:
        raise _Misfit(f"numbers of dtype {dtype}")
    return spelling


def _of_integers(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    for spelling, first, last in _INTEGERS:
        if first <= low and high <= last:
            return spelling
    raise _Misfit("integers that need more than 64 bits")


def _of_floats(values: NDArray[np.float64]) -> str:
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    return "f4" if np.array_equal(narrow, values, equal_nan=True) else "f8"


def _array(value: Any, depth: int) -> bytes:
    """Encode an array: the type of its items, their number, and the items."""
    if depth > _DEEPEST:
        raise _Misfit(f"lists nested more than {_DEEPEST} deep")
    if isinstance(value, gguf.Strings):
        return _strings(value.table.raws(), len(value))
    if isinstance(value, np.ndarray) and value.dtype.kind not in "UT":
        if value.ndim > 1:
            return _arrays(list(value), depth)
        return _numbers(value, _of_dtype(value.dtype))
    if isinstance(value, np.ndarray) and not len(value):
        return _strings((), 0)
    if isinstance(value, (bytes, bytearray, memoryview, Mapping)) or not isinstance(value, (Sequence, np.ndarray)):
        raise _Misfit(
            f"a value of type {type(value).__name__}; values are numbers, strings, truth values and lists of one kind"
        )
    return _items(list(value), depth)


def _items(items: list[Any], depth: int) -> bytes:
    """Encode a list; raise `_Misfit` unless its items all have one type."""
    kinds = {_kind(item) for item in items} or {int}
    if len(kinds) > 1:
        raise _Misfit("a list of several types")
    (kind,) = kinds
    if kind is str:
        return _strings((_text(item) for item in items), len(items))
    if kind is list:
        return _arrays(items, depth)
    if kind is int:
        spelling = _of_integers(items) if items else "i4"
        return _numbers(np.array(items, spelling), spelling)
    values = np.array(items)
    return _numbers(values, kind if isinstance(kind, str) else "?" if kind is bool else _of_floats(values))


def _kind(item: Any) -> Any:
    """Return the kind of an item; all items of a list must have the same."""
    if isinstance(item, np.generic) and not isinstance(item, (np.str_, np.float64)):
        return _of_dtype(item.dtype)
    return next((kind for kind in (str, bool, int, float) if isinstance(item, kind)), list)


def _numbers(values: NDArray[Any], spelling: str) -> bytes:
    return struct.pack("<IQ", _CODES[spelling], len(values)) + np.ascontiguousarray(values, f"<{spelling}").tobytes()


def _strings(texts: Any, count: int) -> bytes:
    parts = [struct.pack("<IQ", gguf.STRING, count)]
    for raw in texts:
        parts += (struct.pack("<Q", len(raw)), raw)
    return b"".join(parts)


def _arrays(items: Sequence[Any], depth: int) -> bytes:
    return b"".join((struct.pack("<IQ", gguf.ARRAY, len(items)), *(_array(item, depth + 1) for item in items)))


_MAX_NDIM, _VERSION = 4, 3
# Elements of a row where ComfyUI's converter lays out a tensor anew.
_ROW = 256
# A file without tensors is padded up to this alignment: the metadata may declare one of 4 GiB.
_PADDED = 4096


def plan(request: Request) -> WritePlan:
    """Lay out a GGUF file."""
    reasons: list[Reason] = []
    tensors = request.tensors
    if any(map(_problems, tensors.kinds)) or not encodable("".join(tensors.names())):
        reasons += [Unfit("tensor", t.name, ", ".join(problems)) for t in tensors if (problems := _problems(t))]
    values, alignment = key_values(request, reasons)
    if reasons:
        refuse("GGUF", reasons)
    header, offset, gaps = bytearray(struct.pack("<4sI2Q", gguf.MAGIC, _VERSION, len(tensors), len(values))), 0, False
    for value in values:
        header += value
    for tensor in tensors:
        name, shape = tensor.name.encode(), ((tensor.dtype.declared and _laid_out(tensor)) or tensor.shape)[::-1]
        numbers = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, gguf.CODES[tensor.dtype.name], offset)
        header += struct.pack("<Q", len(name)) + name + numbers
        offset += tensor.nbytes + (gap := -tensor.nbytes % alignment)
        gaps = gaps or gap > 0
    if len(header) >= access.U32_MAX - 1:
        refuse("GGUF", [f"a header of {len(header)} bytes, more than positions of 32 bits"])
    base = gguf.aligned(len(header), alignment)
    padded = len(tensors) > 0 or alignment <= _PADDED

    def write(sink: Sink) -> None:
        sink.write(header)
        sink.pad(base - len(header) if padded else 0)
        if not gaps:
            tensors.write(sink)
            return
        for tensor in tensors:
            tensor.write(sink)
            sink.pad(-tensor.nbytes % alignment)

    return WritePlan(base + offset if padded else len(header), write)


def _laid_out(tensor: Payload) -> tuple[int, ...]:
    """Return the shape in the file of a tensor whose rows are not whole blocks; else ()."""
    size, block = math.prod(tensor.shape), gguf.BLOCKS.get(tensor.dtype.name, (1,))[0]
    if not tensor.dtype.declared or not tensor.shape or tensor.shape[-1] % block == 0:
        return ()
    width = block if size % _ROW else _ROW
    return size // width, width


def _problems(tensor: Payload) -> list[str]:
    """Return the properties of a tensor that the format cannot express."""
    name, shape = tensor.dtype.name, _laid_out(tensor) or tensor.shape
    problems = []
    if name not in (gguf.BLOCKS if tensor.dtype.declared else gguf.DENSE):
        problems.append(lacking(name, gguf.DENSE))
    if len(shape) > _MAX_NDIM:
        problems.append(f"{counted(len(shape), 'dimension')} (expected 0 to {_MAX_NDIM})")
    if not encodable(tensor.name):
        problems.append("a name that is not Unicode text")
    return problems
