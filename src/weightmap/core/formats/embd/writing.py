"""Writing EMBD, in both layouts."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import counted
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.formats import embd
from weightmap.core.formats._writing import Payload, Reason, Request, Tensors, Unfit, lacking, refuse
from weightmap.core.native import checksums

if TYPE_CHECKING:
    from collections.abc import Sequence


_CODES = {name: code for code, name in enumerate(embd.DTYPE_NAMES)}


def plan(request: Request) -> WritePlan:
    """Lay out a file in the requested layout."""
    return _plan_simple(request) if request.layout == "simple" else _plan_spec(request)


def _utf8(text: object, limit: int) -> bytes | None:
    """Return a text as UTF-8; None if it is not a text, has a lone surrogate, or takes more than `limit` bytes."""
    if not isinstance(text, str):
        return None
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return None
    return raw if len(raw) <= limit else None


def _check_tensors(request: Request, dtypes: Sequence[str], reasons: list[Reason]) -> tuple[bytearray, list[int]]:
    """Return the names of tensors, back to back, and their lengths."""
    supported, names, lengths = frozenset(dtypes), bytearray(), list[int]()
    for tensor in request.tensors:
        shape, name = tensor.shape, _utf8(tensor.name, embd.U16_MAX)
        good = tensor.dtype.name in supported and 1 <= len(shape) <= embd.MAX_NDIM and max(shape) <= embd.U32_MAX
        if good and name is not None:
            names += name
            lengths.append(len(name))
            continue
        problems = []
        if tensor.dtype.name not in supported:
            problems.append(lacking(tensor.dtype.name, dtypes))
        if not 1 <= len(shape) <= embd.MAX_NDIM:
            problems.append(f"{counted(len(shape), 'dimension')} (expected 1 to {embd.MAX_NDIM})")
        if any(dim > embd.U32_MAX for dim in shape):
            problems.append(f"shape {shape} (a dimension is below 2**32)")
        if name is None:
            problems.append("a name that is not Unicode text of at most 65535 bytes")
        reasons.append(Unfit("tensor", tensor.name, ", ".join(problems)))
    return names, lengths


def _plan_spec(request: Request) -> WritePlan:
    reasons: list[Reason] = []
    names, lengths = _check_tensors(request, embd.DTYPE_NAMES, reasons)
    metadata = _encode_metadata(request, reasons)
    vocab = _encode_vocabulary(request, reasons)
    if reasons:
        refuse("EMBD", reasons)
    vocab_offset = embd.HEADER.size + len(metadata)
    if vocab:
        struct.pack_into("<I", vocab, 8, vocab_offset + len(vocab) - embd.SPECIAL.size)
    index_offset = vocab_offset + len(vocab)
    index_end = index_offset + embd.DESCRIPTOR.size * len(lengths) + len(names)
    data_offset = -(-index_end // embd.ALIGNMENT) * embd.ALIGNMENT
    if data_offset > embd.U32_MAX:
        refuse("EMBD", [f"tensor data would begin at byte {data_offset}, and sections begin below 2**32"])
    hashes = checksums.fnv1a32_many(names, np.array(lengths, np.uint32))
    # Pack in place: objects for the parts of 100,000 tensors would take 20 MB.
    index, offset, end, at = bytearray(data_offset - index_offset), 0, 0, 0
    for tensor, length, digest in zip(request.tensors, lengths, hashes, strict=True):
        offset = -(-end // embd.ALIGNMENT) * embd.ALIGNMENT
        end = offset + tensor.nbytes
        shape = (*tensor.shape, 0, 0, 0)[:4]
        code, ndim = _CODES[tensor.dtype.name], len(tensor.shape)
        embd.DESCRIPTOR.pack_into(index, at, digest, code, ndim, length, *shape, offset)
        at += embd.DESCRIPTOR.size
    index[at : at + len(names)] = names
    header = embd.Header(
        magic=embd.MAGIC,
        version_major=1,
        version_minor=0,
        flags=embd.TENSORS_ALIGNED
        | (embd.VOCAB_EMBEDDED if vocab else 0)
        | (embd.CHECKSUM_ENABLED if request.checksums else 0),
        metadata_offset=embd.HEADER.size,
        metadata_size=len(metadata),
        vocab_offset=vocab_offset if vocab else 0,
        vocab_size=len(vocab),
        tensor_index_offset=index_offset,
        tensor_index_count=len(lengths),
        tensor_data_offset=data_offset,
        tensor_data_size=end,
        total_file_size=data_offset + end + embd.FOOTER.size,
        header_checksum=0,
        reserved=0,
    )
    header = header._replace(header_checksum=checksums.crc32(header.packed()[:56]))
    prefix = header.packed(), metadata, vocab, index
    return WritePlan(header.total_file_size, lambda sink: _write_spec(sink, prefix, request, end))


def _write_spec(sink: Sink, prefix: Sequence[bytes | bytearray], request: Request, data_size: int) -> None:
    if request.checksums:
        sink.begin_sum()
    for part in prefix:
        sink.write(part)
    prefix_crc = sink.crc32()
    end = 0
    for tensor in request.tensors:
        padding = -end % embd.ALIGNMENT
        if padding:
            sink.pad(padding)
        tensor.write(sink)
        end += padding + tensor.nbytes
    data_crc = sink.crc32()
    file_crc = checksums.crc32_combine(prefix_crc, data_crc, data_size)
    sink.write(embd.FOOTER.pack(data_crc, file_crc, embd.MAGIC_END, 0))  # both CRCs are 0 without `begin_sum`


def _encode_metadata(request: Request, reasons: list[Reason]) -> bytes:
    entries = []
    for key, value in (request.metadata or {}).items():
        # The specification writes integers as decimal strings.
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        raw_key, raw_value = _utf8(key, embd.U16_MAX), _utf8(text, embd.U16_MAX)
        if raw_key is None or raw_value is None:
            what = f"metadata {str(key)[:80]!r}"
            reasons.append(f"{what}: keys and values must be strings of at most 65535 bytes of UTF-8")
            continue
        entries.append(struct.pack("<2H", len(raw_key), len(raw_value)) + raw_key + raw_value)
    total = sum(map(len, entries))
    if total > embd.U32_MAX:
        reasons.append(f"metadata of {total} bytes (expected fewer than 2**32)")
        return b""
    return embd.PAIR.pack(len(entries), total) + b"".join(entries)


def _encode_vocabulary(request: Request, reasons: list[Reason]) -> bytearray:
    if request.vocab is None:
        if request.special_ids:
            reasons.append("special_ids without a vocabulary")
        return bytearray()
    ids = _special(request.special_ids, request.vocab, reasons)
    tokens = _encode_tokens(request.vocab, "<H", embd.U16_MAX, reasons)
    if len(tokens) > embd.U32_MAX - embd.VOCAB_HEADER.size - embd.SPECIAL.size:
        reasons.append(f"a vocabulary of {len(tokens)} bytes (expected fewer than 2**32)")
        return bytearray()
    return bytearray(embd.VOCAB_HEADER.pack(len(request.vocab), len(tokens), 0) + tokens + embd.SPECIAL.pack(*ids))


def _special(special_ids: Any, vocab: Sequence[str], reasons: list[Reason]) -> list[int]:
    """Return the five special ids: the given ones, else the ids of the usual tokens, else "none"."""
    ids = dict(special_ids) if special_ids is not None else {}
    if special_ids is None:
        for i, token in enumerate(vocab):
            if token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
                ids.setdefault(token[1:-1].lower(), i)
    for name, value in list(ids.items()):
        if name not in embd.SPECIAL_NAMES or not isinstance(value, int) or not 0 <= value <= embd.NO_ID:
            reasons.append(
                f"special id {name!r}: {value!r} (expected {', '.join(embd.SPECIAL_NAMES)}, each below 2**32)"
            )
            ids[name] = embd.NO_ID
    return [ids.get(name, embd.NO_ID) for name in embd.SPECIAL_NAMES]


def _encode_tokens(vocab: Sequence[str], prefix: str, limit: int, reasons: list[Reason]) -> bytes:
    length = struct.Struct(prefix)
    parts = []
    for i, token in enumerate(vocab):
        raw = _utf8(token, limit)
        if raw is None:
            reasons.append(f"token {i}: a token is Unicode text of at most {limit} bytes")
            continue
        parts += [length.pack(len(raw)), raw]
    return b"".join(parts)


def _plan_simple(request: Request) -> WritePlan:
    reasons: list[Reason] = []
    _check_tensors(request, ("float32",), reasons)
    tokens = _encode_tokens(request.vocab or (), "<I", embd.U32_MAX, reasons)
    if len(request.tensors) > embd.U32_MAX:
        reasons.append(f"{len(request.tensors)} tensors")
    if reasons:
        refuse("the simple layout of EMBD", reasons)
    start = embd.MAGIC + struct.pack("<2I", 1, len(request.tensors))
    end = struct.pack("<I", len(request.vocab or ())) + tokens
    size = len(start) + sum(len(_simple_head(tensor)) + tensor.nbytes for tensor in request.tensors) + len(end)
    return WritePlan(size, lambda sink: _write_simple(sink, start, request.tensors, end))


def _simple_head(tensor: Payload) -> bytes:
    name, ndim = tensor.name.encode(), len(tensor.shape)
    return struct.pack("<I", len(name)) + name + struct.pack(f"<{1 + ndim}I", ndim, *tensor.shape)


def _write_simple(sink: Sink, start: bytes, tensors: Tensors, end: bytes) -> None:
    sink.write(start)
    for tensor in tensors:
        sink.write(_simple_head(tensor))
        tensor.write(sink)
    sink.write(end)
