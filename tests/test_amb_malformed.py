"""AMB files with one lie each: what is wrong, which field says so, and at which byte."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.builders import amb, noise, normal

import weightmap as wm
from weightmap.formats import Options
from weightmap.formats.amb import layout, records
from weightmap.kernels import _amb
from weightmap.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST = amb.dense("first", normal((2, 3), 1))
SECOND = amb.dense("second", noise("float16", (5,), 2))
CONFIG = b'{"n_vocab": 3}'
TOKENS = amb.tokenizer(2, (0, 1, 2, amb.NO_ID, amb.NO_ID), b"a\nb\nc\n")
METADATA = b'{"name": "x"}'
OPTIONS = Options(wm.Limits())
# Where the records of a file with all sections begin, and the fields of the first one.
START = 28 + len(METADATA) + len(CONFIG) + len(TOKENS)
NDIM = START + 2 + 5
SHAPE, DTYPE, SIZE, DATA = NDIM + 1, NDIM + 9, NDIM + 10, NDIM + 18


def sound(*records: amb.Record, **options: Any) -> bytes:
    """A file with all sections; the records given, or two."""
    return amb.build(records or (FIRST, SECOND), METADATA, CONFIG, TOKENS, **options)


def put(data: bytes, at: int, new: bytes) -> bytes:
    """The bytes with some of them overwritten."""
    return data[:at] + new + data[at + len(new) :]


def refused(data: bytes, error: type[Exception], field: str | None, offset: int | None, words: str = "") -> None:
    """The bytes are refused with this very class of error, field, offset and words, in either mode, checked or not."""
    for options in ({}, {"verify": "none"}, {"strict": False}):
        with pytest.raises(wm.TensorFileError) as caught:
            wm.open(data, **options)  # type: ignore[arg-type]
        assert type(caught.value) is error
        assert (caught.value.field, caught.value.offset) == (field, offset)
        assert words in str(caught.value)
        assert caught.value.format == "amb"


def test_the_file_that_all_lies_are_told_about_is_sound() -> None:
    """Without a lie the file opens, and the places that the lies go to are the right ones."""
    data = sound()
    with wm.open(data, verify="full") as f:
        assert list(f) == ["first", "second"]
        assert f.info("first").offset == DATA
    assert data[NDIM] == 2
    assert struct.unpack_from("<2IBQ", data, SHAPE) == (2, 3, 0, 24)


# ------------------------------------------------------------------------------------------------- header


def test_another_magic_is_unknown() -> None:
    """A wrong letter anywhere in the magic makes it no AMB; named as one it is refused by the magic."""
    for at in range(5):
        data = put(sound(), at, b"x")
        with pytest.raises(wm.UnknownFormatError):
            wm.open(data)
        with pytest.raises(wm.FormatError) as caught:
            wm.open(data, format="amb")
        assert caught.value.field == "magic"


@pytest.mark.parametrize("version", [0, 2, 0xFF])
def test_other_versions_are_unsupported(version: int) -> None:
    """Version 1 is the only one."""
    refused(sound(version=version), wm.UnsupportedError, "version", 5, f"is {version}")


@pytest.mark.parametrize("bit", range(16))
def test_flags_are_unsupported(bit: int) -> None:
    """No flag is defined, so none is let pass, not even with strict=False."""
    refused(sound(flags=1 << bit), wm.UnsupportedError, "flags", 6)


@pytest.mark.parametrize("size", [6, 8, 20, 27])
def test_a_file_that_ends_within_its_header(size: int) -> None:
    """Less than 28 bytes are a TruncatedError at their end."""
    refused(sound()[:size], wm.TruncatedError, None, size, "at least 28")


SIZES = {"metadata_size": len(METADATA), "config_size": len(CONFIG), "tokenizer_size": len(TOKENS)}
LIES = [(name, lie) for name, true in SIZES.items() for lie in (true + 1, 2**31, 2**32 - 1)]
LIES += [("weights_size", lie) for lie in (len(sound()) - START + 1, 2**32, 2**60, 2**63, 2**64 - 1)]


@pytest.mark.parametrize(("name", "lie"), LIES)
def test_sections_larger_than_the_file_are_truncated(name: str, lie: int) -> None:
    """A section size that makes the sum larger than the file is a TruncatedError, whatever it is."""
    refused(sound(**{name: lie}), wm.TruncatedError, "weights_size", len(sound()), "by the sizes of the sections")


def test_a_sum_that_wraps_around_is_truncated() -> None:
    """A weights size near 2^64 does not wrap around to something small."""
    refused(sound(weights_size=2**64 - START), wm.TruncatedError, "weights_size", len(sound()))


def test_a_sum_smaller_than_the_file_is_a_layout_error() -> None:
    """Bytes after the last section are trailing ones: an error, and with strict=False a warning."""
    data = sound()
    with pytest.raises(wm.LayoutError) as caught:
        wm.open(data + b"\0")
    assert (caught.value.field, caught.value.offset) == ("size", len(data))
    with wm.open(data + b"more", strict=False) as f:
        assert list(f) == ["first", "second"]
        assert any("trailing" in text for text in f.verify().warnings)


# ------------------------------------------------------------------------------------------------- texts

BAD_JSON = {
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "cut off": b'{"a": ',
    "a repeated key": b'{"a": 1, "a": 2}',
    "a repeated key within": b'{"b": {"a": 1, "a": 2}}',
    "NaN": b'{"a": NaN}',
    "an infinity": b'{"a": -Infinity}',
    "an overflow": b'{"a": 1e999}',
    "a long integer": b'{"a": ' + b"1" * 5000 + b"}",
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a list": b"[1]",
    "a number": b"1",
    "spaces": b"   ",
    "depth": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "something behind": b"{} x",
}


@pytest.mark.parametrize("section", ["metadata", "config"])
@pytest.mark.parametrize("what", BAD_JSON)
def test_texts_that_are_no_strict_json(section: str, what: str) -> None:
    """Metadata and config that are no JSON object in the strict sense are a FormatError that names the section."""
    with pytest.raises(wm.FormatError) as caught:
        wm.open(amb.build([FIRST], **{section: BAD_JSON[what]}))
    assert type(caught.value) is wm.FormatError
    assert caught.value.field == section
    assert caught.value.offset >= 28


@pytest.mark.parametrize(("section", "at"), [("metadata", 8), ("config", 12)])
def test_texts_beyond_the_limit_are_not_read(section: str, at: int) -> None:
    """A text larger than `max_header_bytes` is a LimitError at its size; one byte less is fine."""
    data = amb.build(**{section: b'{"a": "' + b"x" * 91 + b'"}'})  # 100 bytes
    wm.open(data, limits=wm.Limits(max_header_bytes=100)).close()
    with pytest.raises(wm.LimitError) as caught:
        wm.open(data, limits=wm.Limits(max_header_bytes=99))
    assert caught.value.offset == at


# ------------------------------------------------------------------------------------------------- tokenizer


@pytest.mark.parametrize("size", range(1, 11))
def test_a_tokenizer_of_less_than_its_numbers(size: int) -> None:
    """One to ten bytes are too few for the type and the five ids."""
    refused(amb.build(tokens=TOKENS[:size]), wm.TruncatedError, "tokenizer_size", 16, "at least 11")


@pytest.mark.parametrize("kind", [4, 255])
def test_unknown_tokenizers_are_unsupported(kind: int) -> None:
    """A type above 3 is an UnsupportedError that lists the known ones."""
    refused(amb.build(tokens=amb.tokenizer(kind, (0,) * 5)), wm.UnsupportedError, "type", 28, "WordPiece")


# ------------------------------------------------------------------------------------------------- records


def test_records_that_end_within_a_field() -> None:
    """Cut within the header of the last record, the section size still right: a TruncatedError at the field."""
    last = amb.weights([FIRST], START, last=True)
    head = SECOND.head()
    begin = START + len(last)
    fields = [(0, "name_length"), (2, "name"), (8, "ndim"), (9, "shape"), (13, "dtype"), (14, "data_size")]
    for cut in range(1, len(head)):
        at, field = next((at, field) for at, field in reversed(fields) if cut >= at)
        data = amb.build(last + head[:cut], METADATA, CONFIG, TOKENS)
        refused(data, wm.TruncatedError, field, begin + at, "tensor 1")


def test_a_name_longer_than_the_section() -> None:
    """A name of 65,535 bytes in a small file is a TruncatedError before anything is allocated for it."""
    refused(sound(FIRST.but(name_length=0xFFFF)), wm.TruncatedError, "name", START + 2)


@pytest.mark.parametrize("ndim", [65, 255])
def test_more_dimensions_than_numpy_has(ndim: int) -> None:
    """65 dimensions are a LimitError, also where they do not fit into the file."""
    refused(put(sound(), NDIM, bytes([ndim])), wm.LimitError, "ndim", NDIM, f"is {ndim}")


@pytest.mark.parametrize("code", [9, 10, 0x7F, 0xFF])
def test_unknown_dtypes_are_unsupported(code: int) -> None:
    """A dtype above 8 is an UnsupportedError that lists the known ones."""
    refused(put(sound(), DTYPE, bytes([code])), wm.UnsupportedError, "dtype", DTYPE, "8 adaptive")


@pytest.mark.parametrize("size", [0, 23, 25])
def test_a_data_size_that_contradicts_the_shape(size: int) -> None:
    """Bytes that are not those of shape and dtype are a LayoutError: so is 0, which reads as a whole record."""
    refused(put(sound(), SIZE, struct.pack("<Q", size)), wm.LayoutError, "data_size", SIZE, "expected 24")


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_every_dense_dtype_has_its_own_size(code: int) -> None:
    """One element too few and one too many are a LayoutError for each dense dtype."""
    width = (4, 2, 2, 1)[code]
    for count in (2, 4):
        record = amb.Record("w", (3,), code, bytes(width * count))
        refused(amb.build([record]), wm.LayoutError, "data_size", 28 + 2 + 1 + 1 + 4 + 1, f"expected {3 * width}")


@pytest.mark.parametrize("size", [10**4, 2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1])
def test_data_beyond_the_section(size: int) -> None:
    """A data size that exceeds what is left of the section is a TruncatedError, up to 2^64 - 1."""
    refused(put(sound(), SIZE, struct.pack("<Q", size)), wm.TruncatedError, "data_size", SIZE, f"is {size}")


@pytest.mark.parametrize("shape", [(2**32 - 1,) * 4, (2**31, 2**31, 2), (0, 2**31, 2**31, 2)])
@pytest.mark.parametrize("code", [0, 3, 4, 6, 8])
def test_shapes_whose_product_overflows(shape: tuple[int, ...], code: int) -> None:
    """A product of 2^63 or more is a LayoutError, also of quantised and empty tensors: numpy would refuse it."""
    refused(amb.build([amb.Record("w", shape, code, b"")]), wm.LayoutError, "shape", 28 + 4, "2**63")


@pytest.mark.parametrize("relative", [False, True])
def test_padding_that_is_not_zero(*, relative: bool) -> None:
    """A byte between records that is not 0 is a LayoutError at that byte, and with strict=False a warning."""
    records = [amb.dense(f"t{i}", noise("int8", (i + 1,), i)) for i in range(4)]
    clean = amb.build(records, b'{"n": 1}' + b" " * 3, relative=relative)
    dirty = amb.build(records, b'{"n": 1}' + b" " * 3, relative=relative, fill=b"\1")
    at = next(i for i, (a, b) in enumerate(zip(clean, dirty, strict=True)) if a != b)
    for data in (dirty, put(clean, at, b"\x80")):
        with pytest.raises(wm.LayoutError) as caught:
            wm.open(data)
        assert caught.value.field == "padding"
        assert caught.value.offset == at
        with wm.open(data, strict=False) as f:
            assert list(f) == [record.name for record in records]
            assert any(f"at byte {at}" in text for text in f.verify().warnings)


def test_the_last_records_padding_is_missing() -> None:
    """A file that ends with its data and without padding is a LayoutError, and with strict=False a warning."""
    data = sound(SECOND, FIRST.but(data=FIRST.data[:20], shape=(5,)), last=False)
    assert len(data) % 8
    with pytest.raises(wm.LayoutError) as caught:
        wm.open(data)
    assert caught.value.field == "padding"
    with wm.open(data, strict=False) as f:
        assert list(f) == ["second", "first"]
        assert any("lacks padding" in text for text in f.verify().warnings)


def test_two_tensors_of_one_name() -> None:
    """A repeated name is a LayoutError with the number of both, at the name of the second."""
    data = sound(FIRST, SECOND.but(name="first"))
    with pytest.raises(wm.LayoutError, match="0 and 1") as caught:
        wm.open(data)
    assert caught.value.field == "name"
    assert data[caught.value.offset :].startswith(b"first")


def test_a_name_that_is_not_utf8() -> None:
    """Names are strict UTF-8: overlong forms and surrogates are a FormatError at the name."""
    for name in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        with pytest.raises(wm.FormatError) as caught:
            wm.open(sound(SECOND, FIRST.but(name=name)))
        assert caught.value.field == "name"


def test_names_of_control_characters_load_and_are_escaped() -> None:
    """A name that would speak to a terminal is legal, and no message shows it as it is."""
    name = "\x1b]0;owned\x07"
    with wm.open(sound(FIRST.but(name=name))) as f:
        assert list(f) == [name]
        with pytest.raises(wm.TensorNotFoundError) as caught:
            f[name + "x"]
        assert "\x1b" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- limits


def test_more_tensors_than_allowed() -> None:
    """One tensor more than `max_tensors` is a LimitError, found while walking and not after."""
    records = [amb.dense(f"t{i}", noise("int8", (1,), i)) for i in range(50)]
    data = amb.build(records)
    wm.open(data, limits=wm.Limits(max_tensors=50)).close()
    for most in (49, 10, 0):
        with pytest.raises(wm.LimitError) as caught:
            wm.open(data, limits=wm.Limits(max_tensors=most))
        assert caught.value.field == "max_tensors"


def test_names_of_more_bytes_than_allowed() -> None:
    """Names that together exceed `max_header_bytes` are a LimitError."""
    records = [amb.dense(str(i) * 40, noise("int8", (1,), i)) for i in range(5)]
    data = amb.build(records)
    wm.open(data, limits=wm.Limits(max_header_bytes=200)).close()
    with pytest.raises(wm.LimitError, match="names"):
        wm.open(data, limits=wm.Limits(max_header_bytes=199))


@pytest.mark.parametrize(
    "make", [bytes, lambda count: b"\0\0\1\0\0\0\0\3" + bytes(count - 8)], ids=["zeros", "records"]
)
def test_a_huge_sparse_section_is_answered_at_once(tmp_path: Path, make: Callable[[int], bytes]) -> None:
    """A TiB of zeros for weights, which are no records, is refused in no time and no memory."""
    path = tmp_path / "sparse.amb"
    with path.open("wb") as file:
        file.write(amb.build(b"", weights_size=1 << 40) + make(64))
        file.truncate(28 + (1 << 40))
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(wm.LayoutError):
        wm.open(path)
    assert time.perf_counter() - begin < 5
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


def test_a_million_records_take_seconds_and_no_more(tmp_path: Path) -> None:
    """A million empty tensors, the most that the limits allow, open in a few seconds; one more is refused."""
    count = 10**6
    record = struct.Struct("<H5sBIBQ3x").pack
    body = b"".join(record(5, b"%05x" % i, 1, 0, 3, 0) for i in range(count))
    path = tmp_path / "many.amb"
    path.write_bytes(amb.build(body, b"{}  "))
    begin = time.perf_counter()
    with wm.open(path) as f:
        assert len(f) == count
    assert time.perf_counter() - begin < 10
    with pytest.raises(wm.LimitError):
        wm.open(path, limits=wm.Limits(max_tensors=count - 1))


def test_records_are_damaged_before_memory_is_taken() -> None:
    """Counts of every size at every field of a small file never make opening it take more than 2 MiB."""
    data = sound()
    tracemalloc.start()
    for at in range(8, DATA):
        for lie in (b"\xff" * 8, b"\xff" * 4, b"\0\0\0\x10\0\0\0\0", b"\0" * 7 + b"\x80"):
            tracemalloc.reset_peak()
            with contextlib.suppress(wm.TensorFileError):
                wm.open(put(data, at, lie)).close()
            assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


# ------------------------------------------------------------------------------------------------- files that change


def walked(source: Any, data: bytes) -> None:
    """Walk the records of a source by the sections of other bytes."""
    header = layout.read_header(Source.from_buffer(data, "mmap"), data, OPTIONS, [])
    records.walk(source, header, None, OPTIONS, [])


def test_a_file_that_shrinks_before_the_walk(tmp_path: Path) -> None:
    """Headers of records that are gone when the walk comes to them are a TruncatedError; data is not looked at."""
    data = sound()
    path = tmp_path / "shrinks.amb"
    for size in range(START, len(data) - len(SECOND.data)):
        path.write_bytes(data)
        source = Source.from_path(str(path), "mmap")
        os.truncate(path, size)
        with pytest.raises(wm.TruncatedError, match="became shorter"):
            walked(source, data)


def test_an_error_of_the_system_passes_through(tmp_path: Path) -> None:
    """What the system says while records are read is an OSError with its number and the name of the file."""
    with (tmp_path / "x.amb").open("wb") as file, pytest.raises(OSError, match="descriptor") as caught:
        walked(SimpleNamespace(descriptor=file.fileno(), name="x.amb"), sound())
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, "x.amb")


def test_records_that_grow_between_two_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that did not fit, and does not fit its own size at the second walk, is an error and no wrong table."""
    walk = _amb._walk
    found = []

    def growing(section: Any, room: tuple[int, int, int], **options: Any) -> Any:
        columns, result, fault = walk(section, room, **options)
        result.n_tensors += 600 * (1 + len(found))
        found.append(room)
        return columns, result, fault

    monkeypatch.setattr(_amb, "_walk", growing)
    with pytest.raises(wm.TruncatedError, match="changed"):
        wm.open(sound())
    assert len(found) == 2
