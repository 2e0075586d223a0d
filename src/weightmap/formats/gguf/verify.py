"""Checks of `TensorFile.verify` for GGUF: the parts of a file that opening leaves unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.errors import nonzero_padding
from weightmap.formats.gguf.values import Strings, metadata
from weightmap.native import late

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from weightmap.embeddings.vocabulary import Vocabulary
    from weightmap.formats._verification import Verification
    from weightmap.formats.gguf.header import Header
    from weightmap.index.table import Table


def verify(header: Header, table: Table, load_vocab: Callable[[], Vocabulary] | None, run: Verification) -> None:
    """Check the whole file: header unchanged, texts, padding, and that every byte can be read."""
    run.unchanged(run.read(0, header.end), late.crc32(header.octets[: header.end]), "the header")
    run.checked("header")
    for key, value in metadata(header).items():
        _check_texts(key, value)
    if "" in table.names:
        run.warn("a tensor has an empty name")
    if load_vocab is not None:
        run.vocabulary(load_vocab())
    run.checked("key-values")
    end = header.end
    for row in (*table.rows(), None):
        # The end of the file may be padding too. Overlapping tensors, which strict=False allows, have none.
        begin = run.source.size if row is None else row.offset
        if end < begin:
            run.until(end)
            if begin - end < header.alignment and any(run.read(end, begin - end)):
                run.tolerate(nonzero_padding("between tensors", end))
        if row is not None:
            end = max(end, row.offset + row.nbytes)
    run.checked("padding is zero")
    run.rest()


def _check_texts(key: str, value: Any) -> None:
    """Raise a `FormatError` for the first string in an array that is not UTF-8."""
    for inner in value if isinstance(value, list) else (value,):
        if isinstance(inner, list):
            _check_texts(key, inner)
        elif isinstance(inner, Strings):
            bad = inner.table.not_utf8()
            if bad >= 0:
                inner[bad]  # raises, saying which
