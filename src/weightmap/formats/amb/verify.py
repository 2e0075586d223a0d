"""The checks of `TensorFile.verify` in an AMB file: everything that opening leaves unread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.errors import LayoutError, counted
from weightmap.formats.amb.layout import QUANT_HEADER, WORDPIECE, bare_blocks, read_json, read_tokenizer, table_of, walk
from weightmap.formats.amb.quantized import quantization
from weightmap.formats.amb.scales import check_scales

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.formats._verification import Verification
    from weightmap.formats.amb.layout import Header, Records, Tokenizer
    from weightmap.index.table import Table

# Usual names of the matrix of token embeddings.
_EMBEDDINGS = (
    *("wte", "wte.weight", "word_embeddings.weight", "embed_tokens.weight"),
    *("tok_embeddings.weight", "token_embd.weight", "embed_in.weight"),
)


def verify(run: Verification, header: Header, crc: int, records: Records, bare: tuple[int, int] | None) -> None:
    """Check the whole file, reading each byte once, and that the parsed sections have not changed.

    `crc` is the CRC-32 at opening of everything before the tokenizer.
    """
    source, options = run.source, run.options
    start = run.read(0, header.tokenizer)
    run.unchanged(start, crc, "header, metadata or config")
    config = read_json(start, "config", header.config, header.tokenizer)
    run.checked("header, metadata and config")
    if "quant" in config and bare_blocks(config) is None:
        run.warn("config: 'quant' is not an object with a block_size up to 65535 and a scale_type fp16 or fp32")
    tokenizer = read_tokenizer(source, b"", header.tokenizer, header.weights, options.limits)
    lines = 0
    for chunk in run.chunks(header.tokenizer, header.weights - header.tokenizer):
        lines += bytes(chunk).count(b"\n")
    if tokenizer is not None:
        # Line feeds among its first eleven bytes are parts of numbers.
        lines -= source.pread(header.tokenizer, 11).count(b"\n")
        _check_tokenizer(run, tokenizer, lines, config)
    again = walk(source, header, bare, options, [])
    if again.columns.content() != records.columns.content():
        raise LayoutError("the records changed after the file was opened", offset=header.weights)
    table = table_of(again, header, options)
    table.check()
    run.checked("records: ranges, names and sizes")
    run.checked("padding is zero" if options.strict else "padding (see warnings)")
    if "" in table.names:
        run.warn("a tensor has an empty name")
    _check_config(run, table, config)
    _read_data(run, table, bare)


def _read_data(run: Verification, table: Table, bare: tuple[int, int] | None) -> None:
    """Read all records, and check masks and scales of quantised tensors."""
    quantised = 0
    for i, row in enumerate(table.rows()):
        if not row.dtype.quantized:
            continue  # read together with everything up to the next quantised one
        quantised += 1
        run.until(row.offset)
        how = quantization(row, run.source.pread(row.offset, min(QUANT_HEADER.size, row.nbytes)), bare)
        run.read(row.offset, how.start)
        check_scales(run, table.label(i), row, how)
    if quantised:
        run.checked(f"sizes, masks and scales of {counted(quantised, 'quantised tensor')}")
    run.rest()


def _check_tokenizer(run: Verification, tokenizer: Tokenizer, lines: int, config: Mapping[str, Any]) -> None:
    known = {"config n_vocab": _count(config, "n_vocab")}
    if tokenizer.type == WORDPIECE and lines:
        known["the lines of its vocabulary"] = lines
    for what, count in known.items():
        beyond = [f"{name} {i}" for name, i in tokenizer.special_ids.items() if count is not None and i >= count]
        if beyond:
            run.warn(f"tokenizer: special ids are not below {count}, {what}: {', '.join(beyond)}")
    counts = [count for count in known.values() if count is not None]
    if len(set(counts)) > 1:
        run.warn(f"tokenizer: its vocabulary has {lines} tokens, and config n_vocab is {counts[0]}")
    run.checked("tokenizer")


def _check_config(run: Verification, table: Table, config: Mapping[str, Any]) -> None:
    """Compare the configuration with the matrix of token embeddings, if it has a usual name."""
    wanted = {"n_vocab": _count(config, "n_vocab"), "n_embd": _count(config, "n_embd")}
    if all(count is None for count in wanted.values()):
        return
    for i, name in enumerate(table.names):
        if not name.endswith(_EMBEDDINGS):
            continue
        shape = table.row(i).shape
        if len(shape) != 2:
            continue
        for axis, (key, count) in enumerate(wanted.items()):
            if count is not None and shape[axis] != count:
                run.warn(f"config {key} is {count}, and tensor {name!r} has the shape {shape}")
        run.checked("config against the token embeddings")
        return


def _count(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int else None
