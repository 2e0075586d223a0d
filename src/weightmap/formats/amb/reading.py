"""Reading AMB: from the bytes of a file to its `Content`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap import kernels
from weightmap.formats._base import Content, take
from weightmap.formats.amb.layout import bare_blocks, read_header, read_json, table_of, walk
from weightmap.formats.amb.tokenizer import read_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weightmap.formats._verifying import Verification
    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.options import Options
    from weightmap.quant.blocks import QuantizedTensor


class _Decoder:
    """Decodes the quantised tensors of a file; `bare` describes blocks without a header."""

    def __init__(self, bare: tuple[int, int] | None) -> None:
        self._bare = bare

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        from weightmap.formats.amb.quantized import tensor_of  # noqa: PLC0415 - see `parse_amb`

        return tensor_of(row, octets, self._bare)

    def layout(self, row: Row, head: bytes) -> tuple[int, int, str]:
        """Return start of the payload, block size and scale type, from the first bytes of the data."""
        from weightmap.formats.amb.quantized import quantization  # noqa: PLC0415 - see `parse_amb`

        return quantization(row, head, self._bare)

    def glance(self, row: Row, source: Source) -> tuple[int, int, str]:
        """Return the same, read from the file, and check a mask."""
        from weightmap.formats.amb.quantized import glance  # noqa: PLC0415 - see `parse_amb`

        return glance(row, source, self._bare)


def parse_amb(source: Source, head: bytes, options: Options) -> Content:
    """Check header, JSON sections and records, and return the content. Data and vocabulary stay unread."""
    warnings: list[str] = []
    header = read_header(source, head, options, warnings)
    prefix = take(source, head, 0, header.tokenizer)
    metadata = read_json(prefix, "metadata", header.metadata, header.config)
    config = read_json(prefix, "config", header.config, header.tokenizer)
    crc = kernels.crc32(prefix)
    tokenizer = read_tokenizer(source, head, header.tokenizer, header.weights, options.limits)
    bare = bare_blocks(config)
    records = walk(source, header, bare, options, warnings)
    table = table_of(records, header, options)
    if options.checked:
        table.check()

    def load_metadata() -> dict[str, Any]:
        return metadata

    # Quantised tensors and `verify` import their modules at the first use: opening needs none of them.
    def check(run: Verification) -> None:
        from weightmap.formats.amb.verify import verify  # noqa: PLC0415 - see above

        verify(run, header, crc, records, bare)

    content = Content("amb", table, load_metadata, check, warnings)
    content.config = MappingProxyType(config)
    content.tokenizer = tokenizer
    content.quantized = _Decoder(bare)
    return content
