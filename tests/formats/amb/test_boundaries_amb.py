"""Bounds of AMB files, exactly: sizes of quantised data, headers of it, sections, padding."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from tests.bounds_support import around, error_of, refused, warnings_of
from tests.builders import amb, noise, normal

import weightmap as wm
from weightmap.dtypes import SCHEMES
from weightmap.formats.amb import scales
from weightmap.formats.amb.quantized import quantization
from weightmap.index.row import Row

BITS = {amb.INT4: 4, amb.INT5: 5, amb.INT4BLOCK: 4, amb.INT5BLOCK: 5}
STEPS = {amb.INT4BLOCK: 2, amb.INT5BLOCK: 8, amb.ADAPTIVE: 8}
FACTORS = (7 * 7 * 73 * 127 * 337, 92737, 649657)  # of 2^63 - 1


def packed(bits: int, count: int) -> int:
    """Bytes of so many codes."""
    return math.ceil(bits * count / 8)


def sizes(code: int, n: int, block: int, scale: int) -> tuple[int, int]:
    """The fewest and the most bytes of n elements behind the header."""
    blocks = math.ceil(n / block) if block else 1
    if code == amb.ADAPTIVE:
        mask = math.ceil(blocks / 4)
        return mask + blocks * (scale + block // 2), mask + blocks * 2 * block
    size = blocks * (scale + packed(BITS[code], block or n))
    return size, size


def stored(code: int, n: int, size: int, block: int, scale_type: int, *, kind: int | None = None) -> bytes:
    """A file with one quantised tensor of so many bytes, its header included; nothing else may be its header."""
    config = amb.text({"quant": {"block_size": 0}})  # fits no blocks
    head = struct.pack("<BHB", code - 2 if kind is None else kind, block, scale_type)
    return amb.build([amb.Record("q", (n,), code, (head + bytes(max(size - 4, 0)))[:size])], config=config)


WAYS = [(code, 0) for code in (amb.INT4, amb.INT5)]
WAYS += [(amb.INT4BLOCK, 2), (amb.INT4BLOCK, 8), (amb.INT5BLOCK, 8), (amb.INT5BLOCK, 16)]
WAYS += [(amb.ADAPTIVE, 8), (amb.ADAPTIVE, 16)]


@pytest.mark.parametrize("scale_type", [0, 1])
@pytest.mark.parametrize(("code", "block"), WAYS)
def test_sizes_of_quantised_data(code, block, scale_type):
    """Data has the bytes that shape, block size and type of scales call for, adaptive data at least and at most."""
    for n in (*range(1, 18), 31, 32, 33, 63, 64, 65, 71, 72, 73, 127, 128, 129):
        least, most = (4 + size for size in sizes(code, n, block, 2 if scale_type else 4))
        for size in {least - 1, least, most, most + 1}:
            error = error_of(stored(code, n, size, block, scale_type))
            if least <= size <= most:
                assert error is None
                continue
            assert type(error) is wm.QuantError
            assert (error.field, error.actual) == ("data_size", size)
            assert str(error.expected) == f"{least if size < least else most} by its shape, block size and scale type"


@pytest.mark.parametrize("size", range(5))
@pytest.mark.parametrize("code", [amb.INT4, amb.ADAPTIVE])
def test_the_header_of_quantised_data_has_four_bytes(code, size):
    """Data of fewer than four bytes has no header, and says so by its size; none at all is no exception."""
    error = refused(stored(code, 1, size, 0 if code == amb.INT4 else 8, 1))
    assert (type(error), error.field, error.actual) == (wm.QuantError, "data_size", size)
    assert str(error.expected).startswith(
        "4 " if size < 4 else f"{4 + sizes(code, 1, 0 if code == amb.INT4 else 8, 2)[0]} "
    )


@pytest.mark.parametrize("code", [*BITS, amb.ADAPTIVE])
def test_block_sizes_of_quantised_data(code):
    """Schemes of one scale have no block size, others a multiple of 2 or 8; the error says which."""
    step = STEPS.get(code, 0)
    for block in (*range(34), 65534, 65535):
        good = block > 0 and block % step == 0 if step else block == 0
        size = 4 + sizes(code, 3, block, 2)[0]
        error = error_of(stored(code, 3, size, block, 1))
        if good:
            assert error is None
            continue
        assert type(error) is wm.QuantError
        assert (error.field, error.actual) == ("block_size", block)
        assert error.expected == (f"a positive multiple of {step}" if step else "0: there is one scale")


@pytest.mark.parametrize("code", [*BITS, amb.ADAPTIVE])
def test_types_of_quantised_data_and_of_scales(code):
    """quant_type is that of the dtype, and there are two types of scales."""
    block = STEPS.get(code, 0)
    for kind in range(9):
        error = error_of(stored(code, 3, 4 + sizes(code, 3, block, 2)[0], block, 1, kind=kind))
        assert (error is None) == (kind == code - 2)
        if error is not None:
            assert (error.field, error.actual, error.expected) == ("quant_type", kind, f"{code - 2} by its dtype")
    for scale in range(5):
        error = error_of(stored(code, 3, 4 + sizes(code, 3, block, 2 if scale else 4)[0], block, scale))
        assert (error is None) == (scale <= 1)
        assert error is None or (error.field, error.actual) == ("scale_type", scale)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 16])
def test_sizes_of_int8(n):
    """int8 is dense where it takes a byte for each element, quantised with a header and one scale, else wrong."""
    for size in range(n + 12):
        head = struct.pack("<BHB", 1, 0, int(size == n + 6))
        error = error_of(amb.build([amb.Record("q", (n,), amb.INT8, (head + bytes(size))[:size])]))
        assert (error is None) == (size in {n, n + 6, n + 8}), size
        assert error is None or (error.field, error.actual) == ("data_size", size)


@pytest.mark.parametrize("code", [amb.INT4BLOCK, amb.INT5BLOCK])
def test_blocks_without_a_header(code):
    """Where the configuration says how, blocks lack a header if their bytes fit exactly, however few they are."""
    for scale, kind in ((2, "fp16"), (4, "fp32")):
        config = amb.text({"quant": {"block_size": 8, "scale_type": kind}})
        for n in (1, 7, 8, 9, 16, 17):
            size = sizes(code, n, 8, scale)[0]
            for other in around(size):
                data = amb.build([amb.Record("q", (n,), code, b"\xee" * other)], config=config)
                error = error_of(data)
                assert (error is None) == (other == size), (n, other)
                if error is None:
                    with wm.open(memoryview(data)) as f:
                        assert f["q"].block_size == 8


@pytest.mark.parametrize(("block", "odd"), [(0, False), (8, False), (65535, False), (65536, True), (-1, True)])
def test_block_sizes_that_a_configuration_may_have(block, odd):
    """A block size up to 65,535 makes sense in a configuration; a larger one is odd."""
    found = warnings_of(amb.build([], config=amb.text({"quant": {"block_size": block, "scale_type": "fp16"}})))
    assert any("'quant' is not an object" in text for text in found) == odd


def row(scheme: str, n: int, nbytes: int) -> Row:
    """A row of a table."""
    return Row(SCHEMES[scheme], (n,), None, 100, nbytes)


@pytest.mark.parametrize("scheme", ["int8", "int4", "int5", "int4_block", "int5_block", "adaptive"])
def test_quantised_data_is_checked_again_when_it_is_used(scheme):
    """A file may change after it was opened: headers are checked by the same rules at each use."""
    code = {**amb.SCHEMES, "adaptive": amb.ADAPTIVE}[scheme]
    right, step = code - 2, STEPS.get(code, 0)
    block = step

    def problem(head: bytes, nbytes: int) -> str:
        try:
            return "" if quantization(row(scheme, 24, nbytes), head, None).start == 4 else "no header"
        except wm.QuantError as error:
            return str(error).partition(": ")[2].removesuffix(" (at byte 100)")

    size = {"int8": 28, "adaptive": 999}.get(scheme) or sizes(code, 24, block, 2)[0] + 4
    size = 24 + 2 + 4 if scheme == "int8" else size
    for kind in range(8):
        found = problem(struct.pack("<BHB", kind, block, 1), size)
        assert found == ("" if kind == right else f"quant_type is {kind}, expected {right}")
    for other in range(34):
        good = other > 0 and other % step == 0 if step else other == 0
        found = problem(struct.pack("<BHB", right, other, 1), size)
        assert (found == f"block_size is {other}") == (not good)
    for scale in range(4):
        found = problem(struct.pack("<BHB", right, block, scale), size)
        assert (found == f"scale_type is {scale}, expected 0 or 1") == (scale > 1)
    for cut in range(4):
        assert problem(struct.pack("<BHB", right, block, 1)[:cut], size) == "its data ends within its header"
    for other in around(size):
        found = problem(struct.pack("<BHB", right, block, 1), other)
        assert found == ("" if other == size or scheme == "adaptive" else f"data_size is {other}, expected {size}")


def test_blocks_without_a_header_when_they_are_used():
    """Blocks without a header are recognised by their size; a size that the scheme lacks is an error."""
    for scheme, step in (("int4_block", 2), ("int5_block", 8)):
        code = amb.SCHEMES[scheme]
        for block in range(1, 34):
            size = sizes(code, 64, block, 2)[0]
            for nbytes in around(size):
                try:
                    found = quantization(row(scheme, 64, nbytes), b"\xee\xee\xee\xee", (block, 2))
                except wm.QuantError:
                    found = None
                expected = (0, block, "fp16") if nbytes == size and block % step == 0 else None
                assert found == expected, (scheme, block)


# ------------------------------------------------------------------------------------------------------------ scales


def scaled(bad: list[int], count: int = 12) -> bytes:
    """A file with a tensor of blocks, some of whose scales are infinite."""
    blocks = [(math.inf if i in bad else 1.0, [0] * 8) for i in range(count)]
    data = amb.pack_blocks(blocks, 4, 8, 1)
    return amb.build([amb.quantised("q", (8 * count,), amb.INT4BLOCK, data, 8, 1)])


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 6, 7])
def test_infinite_scales_are_named_up_to_five(count):
    """The warning names the first five scales that are not finite, and says that there are more."""
    found = [text for text in warnings_of(scaled(list(range(1, 1 + count)))) if "scale" in text]
    names = ", ".join(map(str, range(1, 1 + min(count, 5)))) + (", ..." if count > 5 else "")
    word = "block" if count == 1 else "blocks"
    assert found == ([f"tensor 'q': NaN or infinite scale of {word} {names}"] if count else [])


@pytest.mark.parametrize("piece", [1, 6, 12, 18])
@pytest.mark.parametrize("count", [4, 5, 6, 7])
def test_infinite_scales_in_the_pieces_that_are_read(monkeypatch, piece, count):
    """However little is read at once, the first five are named, and whether there are more."""
    monkeypatch.setattr(scales, "_PIECE", piece)
    found = [text for text in warnings_of(scaled(list(range(3, 3 + count)))) if "scale" in text]
    names = ", ".join(map(str, range(3, 3 + min(count, 5)))) + (", ..." if count > 5 else "")
    assert found == [f"tensor 'q': NaN or infinite scale of blocks {names}"]
    blocks = [(b % 3, np.inf if 2 <= b < 2 + count else 0.5, [0.25 if b % 3 == 2 else 1] * 8) for b in range(20)]
    data = amb.pack_adaptive(blocks, 8, 1)
    [found] = warnings_of(amb.build([amb.quantised("q", (160,), amb.ADAPTIVE, data, 8, 1)]))
    bad = [b for b in range(2, 2 + count) if b % 3 != 2]  # blocks of halves have no scale
    assert found == f"tensor 'q': NaN or infinite scale of blocks {', '.join(map(str, bad[:5]))}"


@pytest.mark.parametrize("count", [1, 3, 4, 5, 7, 8, 9, 17])
@pytest.mark.parametrize("scale_type", [0, 1])
def test_masks_of_adaptive_data(count, scale_type):
    """The mask tells the size of the data, exactly, of any number of blocks; nothing stands behind its last one."""
    for kinds in ([0], [1], [2], [0, 1, 2], [2, 1, 0, 0]):
        blocks = [(kinds[i % len(kinds)], 0.5, [0.25 if kinds[i % len(kinds)] == 2 else 1] * 8) for i in range(count)]
        payload = amb.pack_adaptive(blocks, 8, scale_type)
        for more in (-1, 0, 1):
            data = payload[:-1] if more < 0 else payload + bytes(more)
            least, most = sizes(amb.ADAPTIVE, 8 * count, 8, 2 if scale_type else 4)
            if not least <= len(data) <= most:
                continue
            file = amb.build([amb.quantised("q", (8 * count,), amb.ADAPTIVE, data, 8, scale_type)])
            if more == 0:
                assert warnings_of(file) == ()
            else:
                with wm.open(memoryview(file)) as f, pytest.raises(wm.QuantError, match="data_size"):
                    f.verify()
    for place in range(count % 4, 4) if count % 4 else ():
        wrong = bytearray(amb.pack_adaptive([(0, 0.5, [1] * 8)] * count, 8, scale_type))
        wrong[count // 4] |= 1 << 2 * place
        file = amb.build([amb.quantised("q", (8 * count,), amb.ADAPTIVE, bytes(wrong), 8, scale_type)])
        with wm.open(memoryview(file)) as f, pytest.raises(wm.QuantError, match="the mask after the last block"):
            f.verify()


@pytest.mark.parametrize("place", [0, 1, 3, 4, 6])
def test_a_precision_that_there_is_not(place):
    """Code 3 of a mask is none; the error names the block."""
    wrong = bytearray(amb.pack_adaptive([(0, 0.5, [1] * 8)] * 7, 8, 1))
    wrong[place // 4] |= 3 << 2 * (place % 4)
    file = amb.build([amb.quantised("q", (56,), amb.ADAPTIVE, bytes(wrong), 8, 1)])
    with wm.open(memoryview(file)) as f, pytest.raises(wm.QuantError, match=f"precision of block {place} ") as caught:
        f.verify()
    assert caught.value.actual == 3


@pytest.mark.parametrize("count", [1, 2])
def test_checked_tensors_are_counted(count):
    """The report of `verify` tells how many quantised tensors there were."""
    records = [amb.quantised(f"q{i}", (8,), amb.INT4, amb.pack_scale(1.0, 1) + bytes(4), 0, 1) for i in range(count)]
    with wm.open(memoryview(amb.build(records))) as f:
        checks = f.verify().checks
    assert f"sizes, masks and scales of {count} quantised tensor{'s' * (count > 1)}" in checks


# ---------------------------------------------------------------------------------------------------------- sections


@pytest.mark.parametrize("size", range(13))
def test_the_smallest_tokenizer(size):
    """A tokenizer has eleven bytes at least, or none."""
    error = error_of(amb.build([], tokens=amb.tokenizer(0, [0] * 5, b"xx")[:size]))
    assert (error is None) == (size == 0 or size >= 11)
    assert error is None or (error.field, error.actual) == ("tokenizer_size", size)


@pytest.mark.parametrize("kind", range(6))
def test_types_of_tokenizers(kind):
    """There are four."""
    error = error_of(amb.build([], tokens=amb.tokenizer(kind, [0] * 5)))
    assert (error is None) == (kind < 4)
    assert error is None or (error.field, error.actual) == ("type", kind)


@pytest.mark.parametrize("size", range(30))
def test_files_that_end_within_the_header(size):
    """Any beginning of the header is a TruncatedError with its size."""
    data = amb.build([])[:size]
    error = error_of(data, format="amb")
    if size < 28:
        assert isinstance(error, wm.TruncatedError)
        assert error.offset == size
    else:
        assert error is None


@pytest.mark.parametrize("size", range(4, 9))
def test_the_version_is_looked_at_first(size):
    """A file of six bytes tells its version, and a newer one is not called a file that is cut off."""
    error = refused(amb.build([], version=2)[:size], format="amb")
    assert (error.field == "version") == (size >= 6)


@pytest.mark.parametrize("field", ["metadata_size", "config_size", "tokenizer_size", "weights_size"])
def test_sections_end_with_the_file(field):
    """The sections together end where the file does: a byte more is cut off, a byte less is left over."""
    parts = {"metadata": b'{"a": 1}', "config": b"{}", "tokens": amb.tokenizer(0, [0] * 5)}
    record = amb.dense("a", normal((2,)))
    start = 28 + sum(map(len, parts.values()))
    sizes_ = {"metadata_size": 8, "config_size": 2, "tokenizer_size": 11}
    sizes_["weights_size"] = len(amb.weights([record], start))
    error = refused(amb.build([record], **parts, **{field: sizes_[field] + 1}))
    assert (type(error), error.field) == (wm.TruncatedError, "weights_size")
    error = refused(amb.build([record], **parts, **{field: sizes_[field] - 1}))
    assert (type(error), error.field) == (wm.LayoutError, "size")


def test_special_ids_are_below_the_number_of_tokens():
    """The id of the last token is one, and the number of tokens is one too many."""
    for last, odd in ((2, False), (3, True), (amb.NO_ID, False)):
        tokens = amb.tokenizer(2, [0, 1, amb.NO_ID, amb.NO_ID, last], b"a\nb\nc\n")
        found = warnings_of(amb.build([], tokens=tokens))
        assert any("special ids are not below 3" in text for text in found) == odd


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_configuration_and_the_number_of_tokens(count):
    """A vocabulary of another number of tokens than the configuration says is odd, and so is a matrix of other rows."""
    tokens = amb.tokenizer(2, [0] * 5, b"a\nb\nc\n")
    config = amb.text({"n_vocab": count, "n_embd": 2})
    found = warnings_of(amb.build([amb.dense("wte.weight", normal((3, 2)))], config=config, tokens=tokens))
    assert any("its vocabulary has 3 tokens" in text for text in found) == (count != 3)
    assert any("has the shape (3, 2)" in text for text in found) == (count != 3)


# ----------------------------------------------------------------------------------------------------------- records


def test_shapes_that_can_just_be_counted():
    """A shape of 2^63 - 1 bytes is counted, and more than the data has; one of 2^63 cannot be."""
    for shape, code, cls, field in (
        (FACTORS, amb.INT8, wm.LayoutError, "data_size"),
        (FACTORS, amb.CODES["float16"], wm.LayoutError, "shape"),
        ((2**31, 2**31, 2), amb.INT8, wm.LayoutError, "shape"),
        ((2**31, 2**31, 1), amb.CODES["float16"], wm.LayoutError, "shape"),
        ((2**31, 2**31), amb.INT8, wm.LayoutError, "data_size"),
    ):
        error = refused(amb.build([amb.Record("a", shape, code, b"x")]))
        assert (type(error), error.field) == (cls, field), shape


@pytest.mark.parametrize("number", [0, 1, 2])
def test_where_a_record_stands(number):
    """An error about a name has the place of its record, that of the first one too."""
    records = [amb.dense(name, noise("int8", (5,))) for name in ("a", "bc", "d")]
    starts = [28]
    for record in records:
        end = starts[-1] + len(record.head()) + len(record.data)
        starts.append(end + -(end - 28) % 8)
    records[number] = records[number].but(name=b"\xff" * len(records[number].name))
    error = refused(amb.build(records, relative=True))
    assert (error.field, error.offset) == ("name", starts[number] + 2)


@pytest.mark.parametrize("ndim", [0, 1, 63, 64, 65, 255])
def test_dimensions_of_records(ndim):
    """There are up to 64."""
    error = error_of(amb.build([amb.Record("a", (1,) * ndim, amb.INT8, b"x")]))
    assert (error is None) == (ndim <= 64)
    assert error is None or (type(error), error.field, error.actual) == (wm.LimitError, "ndim", ndim)


@pytest.mark.parametrize("code", range(12))
def test_dtypes_of_records(code):
    """There are nine, and the error for another one says where it stands."""
    error = refused(amb.build([amb.Record("a", (7,), code, b"x")]))
    assert (type(error) is wm.UnsupportedError) == (code >= 9)
    assert error.field == ("dtype" if code >= 9 else "data_size")
    if code >= 9:
        names = ("float32", "float16", "bfloat16", "int8", "int4", "int5", "int4_block", "int5_block", "adaptive")
        assert error.expected == f"one of {', '.join(f'{number} {name}' for number, name in enumerate(names))}"


def test_every_end_of_a_record():
    """Wherever the section ends within a record, the error names the field that is cut off, and where it begins."""
    whole = amb.dense("name", noise("int8", (2, 3)))
    head = len(whole.head())
    fields = [("name_length", 0, 2), ("name", 2, 6), ("ndim", 6, 7), ("shape", 7, 15), ("dtype", 15, 16)]
    fields += [("data_size", 16, head)]
    body = whole.head() + whole.data
    for size in range(1, len(body)):
        error = refused(amb.build(body[:size]))
        assert isinstance(error, wm.TruncatedError), size
        if size >= head:
            assert (error.field, error.offset) == ("data_size", 28 + 16)
            continue
        name, begin, _ = next(field for field in fields if field[1] <= size < field[2])
        assert (error.field, error.offset) == (name, 28 + begin), size
        assert error.actual == size - begin
        assert f"the weights section ends within its {name}: number of bytes left is {size - begin}" in str(error)


@pytest.mark.parametrize("size", range(17))
def test_padding_of_the_last_record(size):
    """The last record is padded to a multiple of eight, exactly; with ``strict=False`` its padding may be missing."""
    record = amb.Record("a", (size,), amb.INT8, bytes(size))
    whole = record.head() + record.data
    start, metadata = 32, b"{}  "  # a multiple of eight itself, so that all count alike
    needed = -(start + len(whole)) % 8
    for padding in range(needed + 1):
        data = amb.build(whole + bytes(padding), metadata)
        error = error_of(data)
        assert (error is None) == (padding == needed)
        with wm.open(memoryview(data), strict=False) as f:
            assert any("lacks padding" in text for text in f.verify().warnings) == (padding != needed)
    for place in range(needed):
        fill = bytearray(needed)
        fill[place] = 1
        error = refused(amb.build(whole + bytes(fill), metadata))
        assert (error.field, error.offset) == ("padding", start + len(whole) + place)


@pytest.mark.parametrize("size", [*range(3960, 4100), 65535])
def test_names_and_data_across_the_window_of_the_walk(put, size):
    """Records of all sizes around a page, and around what is read at once, are walked the same from a file."""
    records = [amb.dense("n" * (size % 60000), noise("int8", (5,), size)), amb.dense("b", noise("int8", (size,), 1))]
    records += [amb.dense("c", normal((2,), size)), amb.dense("d", noise("int8", (9000 + size % 8,), size))]
    # Behind the last one lies padding of any length, which nothing that was read before it brought along.
    with wm.open(put(amb.build(records))) as f:
        assert [np.asarray(f[name]).tobytes() for name in f] == [record.data for record in records]


@pytest.mark.parametrize("length", range(1, 10))
def test_a_last_record_without_data(length):
    """A record without data may end with the file, at once or behind its padding."""
    record = amb.Record("n" * length, (0,), amb.INT8, b"")
    with wm.open(memoryview(amb.build([record]))) as f:
        assert [info.shape for info in f.infos()] == [(0,)]


@pytest.mark.parametrize("past", range(9))
def test_padding_that_begins_behind_the_first_read(put, past):
    """Padding is read where it lies: behind the end of a page by any number of bytes, and it has to be zero."""
    head = len(amb.Record("a", (1,), amb.INT8, b"").head())
    start, size = 32, 3 * 4096 + past - 32 - head
    record = amb.Record("a", (size,), amb.INT8, bytes(size))
    for byte in (b"\0", b"\1"):
        data = amb.build([record], b"{}  ", fill=byte)
        padding = -(start + head + size) % 8
        error = None
        try:
            wm.open(put(data)).close()
        except wm.LayoutError as found:
            error = found
        assert (error is None) == (byte == b"\0" or padding == 0)
        assert error is None or (error.field, error.offset) == ("padding", start + head + size)
