"""The checks of `TensorFile.verify` in the specification layout: everything that opening leaves unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.errors import nonzero_padding
from weightmap.formats._verification import Sum
from weightmap.formats.embd.layout import (
    CHECKSUM_ENABLED,
    DESCRIPTOR,
    FOOTER,
    HEADER,
    REQUIRED_KEYS,
    VOCAB_EMBEDDED,
    Header,
    check_table,
    load_metadata,
    record_rules,
    vocabulary,
)
from weightmap.index.columns import RecordTable
from weightmap.io.open_source import from_buffer
from weightmap.native import late

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from weightmap.formats._verification import Verification


def verify_spec(run: Verification, header: Header, footer: tuple[Any, ...]) -> None:
    """Check the whole file: everything before the data again, on private bytes, then the data in one pass.

    `header` and `footer` are the fields at opening.
    """
    raw, start = header.packed(), header.tensor_data_offset
    run.options.limits.check("max_header_bytes", start, "size of everything before the tensor data")
    prefix = run.read(0, start)
    run.unchanged(prefix[: HEADER.size], late.crc32(raw), "the header")
    has_checksum = header.header_checksum == late.crc32(raw[:56])  # otherwise it is 0: opening checked it
    run.checked("header checksum" if has_checksum else "no header checksum: the file has none")
    at = header.metadata_offset
    metadata = load_metadata(prefix[at : at + header.metadata_size], at)
    missing = [key for key in REQUIRED_KEYS if key not in metadata]
    if 0 < len(missing) < len(REQUIRED_KEYS):
        run.warn(f"metadata lacks keys that the specification requires: {', '.join(missing)}")
    # Without any of them, the file is not meant for cpp_embedder, as are those that `save` writes without metadata.
    run.checked(
        "metadata" if len(missing) < len(REQUIRED_KEYS) else "metadata: none of the keys of cpp_embedder's models"
    )
    index = prefix[header.tensor_index_offset :]
    rules = record_rules(header.flags, start, header.tensor_data_size, run.source.size, run.options)
    table = RecordTable(lambda: index, header.tensor_index_count, header.tensor_index_offset, rules)
    check_table(table, header.tensor_index_offset, start)
    if "" in table.names:
        run.warn("a tensor has an empty name")
    run.checked("tensor index: ranges, names and their hashes")
    if header.flags & VOCAB_EMBEDDED:
        run.vocabulary(vocabulary(from_buffer(prefix, "mmap"), prefix, header)())
    _verify_section_padding(run, prefix, header, table)
    _verify_data(run, late.crc32(prefix), header, footer, table)


def _verify_data(
    run: Verification, prefix_crc: int, header: Header, footer: tuple[Any, ...], table: RecordTable
) -> None:
    """Read the data once for its padding and its CRC, and combine the CRC of the file from those of its parts."""
    start, size = header.tensor_data_offset, header.tensor_data_size
    gaps = _gaps(table, start + size)
    data_crc, filled = run.crc32(start, size, gaps)
    for i in filled:
        run.tolerate(nonzero_padding("between tensors", int(gaps[i, 0])))
    end = run.source.size
    tail = run.read(start + size, end - start - size)[: -FOOTER.size]
    if any(tail):
        run.tolerate(nonzero_padding("before the footer", start + size))
    run.checked("padding is zero")
    if not header.flags & CHECKSUM_ENABLED:
        run.checked("no data checksums: the file has none")
        return
    file_crc = late.crc32(tail, late.crc32_combine(prefix_crc, data_crc, size))
    whole = Sum(0, end, footer[1], "CRC-32 of the file", "file_checksum", end - 12)
    for stored, computed in ((data_sum(header, footer, end), data_crc), (whole, file_crc)):
        stored.check(computed)
        run.checked(stored.what)


def data_sum(header: Header, footer: tuple[Any, ...], end: int) -> Sum:
    """Return the checksum of the tensor data of a file that ends at `end`."""
    start, size = header.tensor_data_offset, header.tensor_data_size
    return Sum(start, size, footer[0], "CRC-32 of the tensor data", "data_checksum", end - 16)


def _verify_section_padding(run: Verification, prefix: bytes, header: Header, table: RecordTable) -> None:
    end = HEADER.size
    sections = [(header.metadata_offset, header.metadata_size), (header.vocab_offset, header.vocab_size)]
    sections.append((header.tensor_index_offset, DESCRIPTOR.size * len(table) + table.names_size))
    sections.append((header.tensor_data_offset, 0))
    for start, size in sections:
        if start == 0:  # an absent section
            continue
        if any(prefix[end:start]):
            run.tolerate(nonzero_padding("between sections", end))
        end = start + size


def _gaps(table: RecordTable, end: int) -> NDArray[np.uint64]:
    """Return begin and end of every piece of padding in the tensor data, which ends at `end`."""
    previous, gaps = table.rules.base, []
    for row in table.rows():
        if row.offset > previous:
            gaps.append((previous, row.offset))
        previous = row.offset + row.nbytes
    if end > previous:
        gaps.append((previous, end))
    return np.array(gaps, np.uint64).reshape(-1, 2)
