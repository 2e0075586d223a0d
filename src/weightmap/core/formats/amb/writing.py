"""Writing AMB."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping
from typing import Any

from weightmap.core.arguments import DEEPEST
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.formats import amb
from weightmap.core.formats._writing import Payload, Reason, Request, Tensors, Unfit, lacking, refuse
from weightmap.errors import FormatError

_CODES = {name: code for code, name in enumerate(amb.DENSE)}
# Most spaces that metadata is padded with
_FILL = b" " * (amb.ALIGNMENT - 1)
_PARTS = frozenset({"type", "special_ids", "payload"})


def plan_amb(request: Request) -> WritePlan:
    """Lay out an AMB file."""
    reasons: list[Reason] = []
    # Collect bytes back to back: an object for each of 100,000 tensors would take more memory.
    heads, lengths, weights = bytearray(), array("I"), 0
    for tensor in request.tensors:
        problems = _problems(tensor)
        if problems:
            reasons.append(Unfit("tensor", tensor.name, ", ".join(problems)))
            continue
        head = _head(tensor)
        heads += head
        lengths.append(len(head))
        weights += _whole(len(head) + tensor.nbytes)
    metadata = _encode_json("metadata", request.metadata, reasons)
    config = _encode_json("config", _config(request), reasons)
    tokenizer = _encode_tokenizer(request.tokenizer, reasons)
    if reasons:
        refuse("AMB", reasons)
    # Records end at multiples of 8 from the start of the file. Their section begins at one too, so that readers that
    # count from its start find the same records.
    metadata += _FILL[: -(amb.HEADER.size + len(metadata) + len(config) + len(tokenizer)) % amb.ALIGNMENT]
    sections = (metadata, config, tokenizer)
    start = amb.HEADER.pack(amb.MAGIC, amb.VERSION, 0, *map(len, sections), weights) + b"".join(sections)
    return WritePlan(len(start) + weights, lambda sink: _write(sink, start, request.tensors, heads, lengths))


def _whole(size: int) -> int:
    return -(-size // amb.ALIGNMENT) * amb.ALIGNMENT


def _write(sink: Sink, start: bytes, tensors: Tensors, heads: bytearray, lengths: array[int]) -> None:
    sink.write(start)
    begin = 0
    for tensor, length in zip(tensors, lengths, strict=True):
        sink.write(heads[begin : begin + length])
        begin += length
        tensor.write(sink)
        sink.pad(-(length + tensor.nbytes) % amb.ALIGNMENT)


def _head(tensor: Payload) -> bytes:
    """Return the bytes before the data of a tensor, including the header of quantised data."""
    name, shape = tensor.name.encode(), tensor.shape
    code, quant = _CODES.get(tensor.dtype.name, 0), b""
    if tensor.dtype.quantized:
        code = amb.SCHEME_CODES[tensor.dtype.name]
        scale = amb.SCALE_TYPES.index(tensor.scale_type)
        quant = amb.QUANT_HEADER.pack(amb.QUANT_TYPES[tensor.dtype.name], tensor.block_size, scale)
    dims = struct.pack(f"<B{len(shape)}I", len(shape), *shape)
    return struct.pack("<H", len(name)) + name + dims + struct.pack("<BQ", code, len(quant) + tensor.nbytes) + quant


def _problems(tensor: Payload) -> list[str]:
    """Return why a tensor cannot be written. Records allow more dimensions than arrays."""
    problems, name = [], tensor.dtype.name
    if tensor.dtype.quantized:  # in a scheme of this format: `save` has refused others
        if tensor.block_size > amb.U16_MAX:
            problems.append(f"blocks of {tensor.block_size} elements (at most {amb.U16_MAX})")
    elif name not in _CODES:
        problems.append(lacking(name, amb.DENSE))
    if max(tensor.shape, default=0) > amb.U32_MAX:
        problems.append(f"shape {tensor.shape} (a dimension is below 2**32)")
    try:
        size = len(tensor.name.encode())
    except UnicodeEncodeError:
        problems.append("a name that is not Unicode text")
    else:
        if size > amb.U16_MAX:
            problems.append(f"a name of {size} bytes (at most {amb.U16_MAX})")
    return problems


def _config(request: Request) -> Mapping[str, Any] | None:
    """Return the configuration; if tensors are quantised, with the quantisation that covers most bytes."""
    bytes_by_way: dict[tuple[str, int, str], int] = {}
    for tensor in request.tensors.filter(lambda tensor: tensor.dtype.quantized):
        way = (tensor.dtype.name, tensor.block_size, tensor.scale_type)
        bytes_by_way[way] = bytes_by_way.get(way, 0) + tensor.nbytes
    if not bytes_by_way or not isinstance(request.config or {}, Mapping):
        return request.config
    way = max(bytes_by_way, key=bytes_by_way.__getitem__)
    return {**(request.config or {}), "quant": dict(zip(("type", "block_size", "scale_type"), way, strict=True))}


def _encode_json(what: str, value: Mapping[str, Any] | None, reasons: list[Reason]) -> bytes:
    """Return an object as JSON that reads back equal. Keys are sorted, so that equal objects give equal bytes."""
    if value is None:
        return b"{}"
    bad = _not_json(value, 0)
    if bad is None:
        raw = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False, default=dict).encode()
        try:
            strict_json.loads(raw, what)
        except FormatError as error:
            bad = str(error)
        if len(raw) + len(_FILL) <= amb.U32_MAX and bad is None:
            return raw
        bad = bad or f"{len(raw)} bytes (at most {amb.U32_MAX})"
    reasons.append(f"{what}: {bad}")
    return b"{}"


_LARGEST = 10**1000


def _not_json(value: Any, depth: int) -> str | None:  # noqa: PLR0911 - one return for each kind of value
    """Return why a value is not JSON that every reader accepts; None if it is."""
    if depth > DEEPEST:
        return f"it is nested more than {DEEPEST} deep"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{value[:80]!r} (Unicode text)"
        return None
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if -_LARGEST < value < _LARGEST else "an integer of more than 1000 digits"
    if isinstance(value, float):
        return None if value - value == 0 else f"{value} (a finite number)"
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                return f"the key {repr(key)[:80]} (a string)"
            fault = _not_json(key, depth) or _not_json(inner, depth + 1)
            if fault is not None:
                return f"{key[:80]!r}: {fault}" if depth == 0 and isinstance(key, str) else fault
        return None
    if isinstance(value, (list, tuple)):
        return next((fault for inner in value if (fault := _not_json(inner, depth + 1)) is not None), None)
    return f"{type(value).__name__} (not JSON)"


def _encode_tokenizer(tokenizer: Any, reasons: list[Reason]) -> bytes:
    """Return the section for a `Tokenizer`, a mapping, or an object with its attributes."""
    if tokenizer is None:
        return b""
    if isinstance(tokenizer, Mapping):
        unknown = [repr(key)[:80] for key in tokenizer if key not in _PARTS]
        if unknown:
            reasons.append(f"tokenizer: {', '.join(unknown[:10])} (expected {', '.join(sorted(_PARTS))})")
        parts = [tokenizer.get(name) for name in ("type", "special_ids", "payload")]
    else:
        parts = [getattr(tokenizer, name, None) for name in ("type", "special_ids", "payload")]
        if parts == [None] * 3:
            what = "a mapping, or an object with attributes: type, special_ids, payload"
            reasons.append(f"tokenizer: {type(tokenizer).__name__} ({what})")
            return b""
    kind, special, payload = parts
    if type(kind) is not int or not 0 <= kind < len(amb.KINDS):
        reasons.append(f"tokenizer type: {repr(kind)[:80]} (an integer from 0 to {len(amb.KINDS) - 1})")
        kind = 0
    ids = _encode_ids({} if special is None else special, reasons)
    try:
        vocabulary = b"" if payload is None else bytes(memoryview(payload))
    except (TypeError, ValueError):
        reasons.append(f"tokenizer payload: {type(payload).__name__} (bytes)")
        vocabulary = b""
    if len(vocabulary) > amb.U32_MAX - amb.MIN_TOKENIZER:
        reasons.append(f"tokenizer payload: {len(vocabulary)} bytes (the section has fewer than 2**32)")
    return amb.TOKENIZER_FIELDS.pack(kind, *ids) + vocabulary


def _encode_ids(special: Any, reasons: list[Reason]) -> list[int]:
    if not isinstance(special, Mapping):
        reasons.append(f"tokenizer special_ids: {type(special).__name__} (a mapping)")
        return [amb.NO_ID] * len(amb.SPECIAL_NAMES)
    unknown = [repr(key)[:80] for key in special if key not in amb.SPECIAL_NAMES]
    if unknown:
        reasons.append(f"tokenizer special ids {', '.join(unknown[:10])} (expected {', '.join(amb.SPECIAL_NAMES)})")
    ids = []
    for name in amb.SPECIAL_NAMES:
        value = special.get(name)
        if value is None:
            value = amb.NO_ID
        elif isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value.__index__() < amb.NO_ID:
            reasons.append(f"tokenizer special id {name!r}: {repr(value)[:80]} (an integer from 0 to {amb.NO_ID - 1})")
            value = amb.NO_ID
        ids.append(value.__index__())
    return ids
