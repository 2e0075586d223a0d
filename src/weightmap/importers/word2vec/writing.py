"""Writing word2vec's binary files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.formats import Plan
from weightmap.importers._words import refuse_words

if TYPE_CHECKING:
    from weightmap.importers._words import Words
    from weightmap.io.sink import Sink


def plan(words: Words) -> Plan:
    """Lay out a file. Raises `EncodeError` for words that it has no place for."""
    raws = [words.table.raw(i) for i in range(len(words.table))]
    refuse_words("word2vec", raws, b" \n\r")
    head = f"{len(raws)} {words.dims}\n".encode()
    size = len(head) + sum(map(len, raws)) + (2 + 4 * words.dims) * len(raws)

    def write(sink: Sink) -> None:
        sink.write(head)
        at = 0
        for block in words.word_blocks():
            little = block.astype("<f4", copy=False)
            names = raws[at : at + len(block)]
            sink.write(b"".join(b"%b %b\n" % (raw, row.tobytes()) for raw, row in zip(names, little, strict=True)))
            at += len(block)

    return Plan(size, write)
