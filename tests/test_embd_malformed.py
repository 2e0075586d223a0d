"""EMBD files with one lie each: a valid file, one field changed, checksums made to fit, and the promised outcome."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from tests.builders import Tensor, embd, noise, normal
from tests.support import exercise, survives

import weightmap as wm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FULL = 2**32 - 1
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "zwölf"]
TENSORS = [("a", normal((2, 3))), ("b", noise("int8", (5,))), ("c", noise("float16", (2, 2)))]


def draft(**options: Any) -> embd.Draft:
    """Three tensors (data at 0, 64 and 128 of the data section), metadata and a vocabulary."""
    options.setdefault("vocab", WORDS)
    return embd.Draft(TENSORS, **options)


HEADER_LIES: list[tuple[str, dict[str, Any], type[Exception] | tuple[type[Exception], ...]]] = [
    ("magic", {"magic": b"EMBE"}, wm.UnknownFormatError),
    ("magic reversed", {"magic": b"DBME"}, wm.UnknownFormatError),
    ("magic lower case", {"magic": b"embd"}, wm.UnknownFormatError),
    ("major 0", {"version_major": 0}, wm.UnsupportedError),
    ("major 2", {"version_major": 2}, wm.UnsupportedError),
    ("major big-endian", {"version_major": 256}, wm.UnsupportedError),
    ("compressed", {"flags": 7 | 8}, wm.UnsupportedError),
    *[(f"flag bit {bit}", {"flags": 7 | 1 << bit}, wm.UnsupportedError) for bit in (4, 5, 16, 31)],
    ("header checksum", {"header_checksum": 0}, wm.ChecksumError),
    ("reserved", {"reserved": 1}, wm.FormatError),
    ("file size smaller", {"total_file_size": 100}, (wm.LayoutError, wm.TruncatedError)),
    ("file size larger", {"total_file_size": 10**6}, (wm.LayoutError, wm.TruncatedError)),
    ("file size huge", {"total_file_size": 2**64 - 1}, (wm.LayoutError, wm.TruncatedError)),
    *[
        (f"{section} at {place}", {section: place}, wm.LayoutError)
        for section in ("metadata_offset", "vocab_offset", "tensor_index_offset", "tensor_data_offset")
        for place in (0, 1, 63)
    ],
    *[
        (f"{section} past the end", {section: place}, (wm.LayoutError, wm.TruncatedError))
        for section in ("metadata_offset", "vocab_offset", "tensor_index_offset", "tensor_data_offset")
        for place in (10**6, 2**31, FULL)
    ],
    *[
        (f"{section} of {size}", {section: size}, (wm.LayoutError, wm.TruncatedError, wm.LimitError))
        for section in ("metadata_size", "vocab_size")
        for size in (0, 1, 7, 10**6, 2**31, FULL)
    ],
    ("vocabulary inside metadata", {"vocab_offset": 64}, wm.LayoutError),
    ("index inside metadata", {"tensor_index_offset": 72}, wm.LayoutError),
    ("flag without vocabulary", {"vocab_offset": 0, "vocab_size": 0}, wm.LayoutError),
    ("one tensor too many", {"tensor_index_count": 4}, wm.FormatError),
    ("vocabulary without flag", {"flags": 6}, wm.LayoutError),
    *[
        (f"{count} tensors", {"tensor_index_count": count}, (wm.TruncatedError, wm.LayoutError, wm.LimitError))
        for count in (0, 1, 2, 1000, 2**27, 2**27 + 3, 2**31, FULL)
    ],
    *[
        (f"data size {size}", {"tensor_data_size": size}, (wm.TruncatedError, wm.LayoutError))
        for size in (0, 1, 64, 135, 137, 200, 2**32, 2**63, 2**64 - 16, 2**64 - 1)
    ],
]


@pytest.mark.parametrize(("lie", "error"), [case[1:] for case in HEADER_LIES], ids=[case[0] for case in HEADER_LIES])
def test_a_header_field_that_lies(lie: dict[str, Any], error: Any) -> None:
    """Each header field, with a checksum that fits, is checked in its own right and raises its own error."""
    with pytest.raises(error) as caught:
        wm.open(memoryview(draft().header(**lie).seal()))
    assert isinstance(caught.value, wm.TensorFileError)


def swapped() -> embd.Draft:
    """Index and vocabulary in exchanged places: every section is whole, only the order is wrong."""
    d = draft()
    first = bytes(d.data[d.vocab_offset : d.index_offset])
    second = bytes(d.data[d.index_offset : d.index_offset + 32 * 3 + 3])
    d.bytes_at(d.vocab_offset, second + first)
    moved = d.vocab_offset + len(second)
    d.bytes_at(moved + 8, struct.pack("<I", moved + len(first) - 20))
    return d.header(vocab_offset=moved, tensor_index_offset=d.vocab_offset)


def test_sections_out_of_order() -> None:
    """Sections that do not overlap but stand in another order are a LayoutError."""
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(swapped().seal()))


def test_hidden_bytes_between_sections() -> None:
    """Text in a hole between two sections is a LayoutError, at the latest of verify."""
    d = draft()
    hole = embd.Draft(TENSORS, vocab_bytes=embd.vocab_section(WORDS, offset=d.vocab_offset) + b"hidden text")
    hole.header(vocab_size=len(embd.vocab_section(WORDS)))
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(hole.seal())).verify()


def test_padding_before_the_data_is_zero_and_short() -> None:
    """Between names and data only zero bytes may stand; verify, at the latest, finds others."""
    d = draft()
    place = d.index_offset + 32 * 3 + 3
    assert place < d.data_offset
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(d.bytes_at(place, b"\1").seal())).verify()


DESCRIPTOR_LIES: list[tuple[str, dict[str, int], Any]] = [
    ("wrong hash", {"name_hash": 1}, wm.ChecksumError),
    *[(f"dtype {code}", {"dtype": code}, wm.UnsupportedError) for code in (9, 10, 127, 255)],
    *[(f"ndim {ndim}", {"ndim": ndim}, wm.FormatError) for ndim in (0, 5, 64, 255)],
    ("ndim less than shape", {"ndim": 1}, wm.FormatError),
    ("unused dimension", {"shape2": 1}, wm.FormatError),
    ("last unused dimension", {"shape3": FULL}, wm.FormatError),
    ("name longer", {"name_length": 2}, wm.FormatError),
    ("name of 65535", {"name_length": 65535}, wm.FormatError),
    ("name shorter", {"name_length": 0}, wm.FormatError),
    ("rows past the data", {"shape0": 1000}, wm.LayoutError),
    ("rows into the next tensor", {"shape0": 6}, wm.LayoutError),
    ("huge rows", {"shape0": FULL}, wm.LayoutError),
    ("huge rows and columns", {"shape0": FULL, "shape1": FULL}, wm.LayoutError),
    (
        "product of 2^64",
        {"ndim": 4, "shape0": 2**16, "shape1": 2**16, "shape2": 2**16, "shape3": 2**16},
        wm.LayoutError,
    ),
    (
        "all dimensions full",
        {"ndim": 4, "shape0": FULL, "shape1": FULL, "shape2": FULL, "shape3": FULL},
        wm.LayoutError,
    ),
    ("bytes of 2^64", {"ndim": 4, "shape0": 2**31, "shape1": 2**31, "shape2": 1, "shape3": 1}, wm.LayoutError),
    ("offset past the data", {"data_offset": 10**6}, wm.LayoutError),
    ("offset just past the data", {"data_offset": 136}, wm.LayoutError),
    ("offset that wraps", {"data_offset": 2**64 - 24}, wm.LayoutError),
    ("offset that wraps to 0", {"data_offset": 2**64 - 64}, wm.LayoutError),
    ("offset of all ones", {"data_offset": 2**64 - 1}, wm.LayoutError),
    ("offset unaligned", {"data_offset": 4}, wm.LayoutError),
    ("same bytes as the next", {"data_offset": 64}, wm.LayoutError),
]


@pytest.mark.parametrize(
    ("lie", "error"), [case[1:] for case in DESCRIPTOR_LIES], ids=[case[0] for case in DESCRIPTOR_LIES]
)
def test_a_descriptor_field_that_lies(lie: dict[str, int], error: Any) -> None:
    """Each field of the first descriptor is checked at open; the error says which field and where."""
    with pytest.raises(error) as caught:
        wm.open(memoryview(draft().descriptor(0, **lie).seal()))
    assert isinstance(caught.value, wm.TensorFileError)
    assert caught.value.format == "embd"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_descriptor_is_checked(number: int) -> None:
    """A lie is found in the first, a middle and the last descriptor, and the offset points into it."""
    d = draft().descriptor(number, dtype=77)
    with pytest.raises(wm.UnsupportedError) as caught:
        wm.open(memoryview(d.seal()))
    start = d.index_offset + 32 * number
    assert caught.value.field is not None
    assert start <= caught.value.offset < start + 32
    assert "77" in str(caught.value)


def test_an_unknown_dtype_lists_the_known_ones() -> None:
    """The error for an unknown dtype code lists the codes that exist."""
    with pytest.raises(wm.UnsupportedError, match="8") as caught:
        wm.open(memoryview(draft().descriptor(1, dtype=200).seal()))
    assert caught.value.field == "dtype"
    assert caught.value.actual == 200


def test_a_wrong_name_hash_names_its_field() -> None:
    """A hash that doesn't match its name is a ChecksumError of the field name_hash, with both values."""
    with pytest.raises(wm.ChecksumError) as caught:
        wm.open(memoryview(draft().descriptor(2, name_hash=5).seal()))
    assert caught.value.field == "name_hash"
    assert [int(str(value), 0) for value in (caught.value.expected, caught.value.actual)] == [embd.fnv1a32(b"c"), 5]


def test_duplicate_names_are_refused() -> None:
    """Two tensors of one name are a LayoutError, next to each other or far apart."""
    for names in (["a", "a"], ["a", "b", "c", "a"], ["", ""], ["costarring", "liquid", "costarring"]):
        with pytest.raises(wm.LayoutError):
            wm.open(memoryview(embd.Draft([(name, normal((2,))) for name in names]).seal()))


@pytest.mark.parametrize("name", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"ok\xf5", b"\xe2\x82"], ids=bytes.hex)
def test_names_that_are_not_utf8_are_refused(name: bytes) -> None:
    """A name of invalid, overlong or surrogate UTF-8 is a FormatError, at open or at the first use of names."""
    with pytest.raises(wm.FormatError):
        list(wm.open(memoryview(embd.Draft([("first", normal((2,))), (name, normal((2,)))]).seal())))


def test_overlapping_tensors_are_refused_in_any_order() -> None:
    """Two tensors that share bytes are a LayoutError, also when the later descriptor has the smaller offset."""
    for first, second in ((0, 0), (0, 64), (64, 0), (64, 64)):
        d = embd.Draft([("a", noise("uint8", (100,))), ("b", noise("uint8", (100,)))])
        d.descriptor(0, data_offset=first).descriptor(1, data_offset=second)
        with pytest.raises(wm.LayoutError):
            wm.open(memoryview(d.seal()))


def test_a_hole_in_the_data_is_refused() -> None:
    """64 or more unclaimed bytes between two tensors, or behind the last, hide something: LayoutError."""
    middle = embd.Draft([("a", noise("uint8", (64,))), ("b", noise("uint8", (64,))), ("c", noise("uint8", (64,)))])
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(middle.descriptor(1, shape0=0).seal()))
    tail = embd.Draft([("a", noise("uint8", (64,))), ("b", noise("uint8", (200,)))])
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(tail.descriptor(1, shape0=10).seal()))


FOOTER_LIES: list[tuple[dict[str, Any], Any]] = [
    ({"magic_end": b"EMBD"}, wm.TruncatedError),
    ({"magic_end": b"DBM\0"}, wm.TruncatedError),
    ({"reserved": 1}, wm.FormatError),
]


@pytest.mark.parametrize(("lie", "error"), FOOTER_LIES, ids=str)
def test_a_footer_field_that_lies(lie: dict[str, Any], error: Any) -> None:
    """A footer without its magic is told as a partial download; a non-zero reserved field is refused."""
    with pytest.raises(error):
        wm.open(memoryview(draft().footer(**lie).seal()))


PAIRS = [("model_name", "m"), ("key", "value")]
METADATA_LIES: list[tuple[str, bytes]] = [
    ("fewer entries than there are", embd.metadata_section(PAIRS, count=1)),
    ("no entries", embd.metadata_section(PAIRS, count=0)),
    ("one entry more", embd.metadata_section(PAIRS, count=3)),
    ("all the entries in the world", embd.metadata_section(PAIRS, count=FULL)),
    ("key past the section", embd.metadata_section(PAIRS)[:-9] + struct.pack("<HH", 65535, 5) + b"value"),
    (
        "value past the section",
        embd.metadata_section([("key", "value")])[:8] + struct.pack("<HH", 3, 65535) + b"keyvalue",
    ),
    ("value one byte past", embd.metadata_section([("key", "value")])[:8] + struct.pack("<HH", 3, 6) + b"keyvalue"),
    ("duplicate key", embd.metadata_section([("key", "1"), ("key", "2")])),
    ("key not UTF-8", embd.metadata_section([(b"\xff", "1")])),
    ("value not UTF-8", embd.metadata_section([("key", b"\xc3")])),
    ("surrogate in a value", embd.metadata_section([("key", b"\xed\xa0\x80")])),
    ("bytes behind the entries", embd.metadata_section(PAIRS) + b"hidden"),
    ("too short for its header", b"\0\0\0\0"),
]


@pytest.mark.parametrize("section", [case[1] for case in METADATA_LIES], ids=[case[0] for case in METADATA_LIES])
def test_metadata_that_lies(section: bytes) -> None:
    """Damaged metadata is a FormatError, at open or when metadata is first read, and of verify."""
    data = draft(metadata=section).seal()
    with pytest.raises(wm.FormatError):
        dict(wm.open(memoryview(data)).metadata)
    with pytest.raises(wm.FormatError):
        wm.open(memoryview(data)).verify()


def colliding_keys(count: int) -> list[str]:
    """Keys whose FNV-1a hashes lead to one and the same slot of a table of up to 256 slots."""
    keys, number = [], 0
    while len(keys) < count:
        key = f"key{number}"
        number += 1
        if embd.fnv1a32(key.encode()) * 0x9E3779B97F4A7C15 % 2**64 >> 56 == 0:
            keys.append(key)
    return keys


def test_metadata_whose_hashes_collide() -> None:
    """Keys made to collide are told apart all the same, and a key among them that is there twice is still found."""
    keys = colliding_keys(80)
    data = draft(metadata=embd.metadata_section((key, key[::-1]) for key in keys)).seal()
    assert dict(wm.open(memoryview(data)).metadata) == {key: key[::-1] for key in keys}
    wm.open(memoryview(data)).verify()
    data = draft(metadata=embd.metadata_section((key, "") for key in [*keys, keys[3]])).seal()
    with pytest.raises(wm.LayoutError, match="metadata entry 80 has a key"):
        wm.open(memoryview(data))


def vocab(**options: Any) -> Callable[[int], bytes]:
    """A vocabulary section as a function of its offset."""
    return lambda offset: embd.vocab_section(WORDS, offset=offset, **options)


VOCABULARY_LIES: list[tuple[str, Callable[[int], bytes]]] = [
    ("one token more", vocab(count=len(WORDS) + 1)),
    ("one token fewer", vocab(count=len(WORDS) - 1)),
    ("no token", vocab(count=0)),
    ("all the tokens in the world", vocab(count=FULL)),
    ("2^31 tokens", vocab(count=2**31)),
    ("total size too small", vocab(total=3)),
    ("total size huge", vocab(total=FULL)),
    ("first token past the end", lambda at: vocab()(at)[:12] + b"\xff\xff" + vocab()(at)[14:]),
    ("last token one byte longer", lambda at: vocab()(at)[:-20][:-8] + b"\7\0" + vocab()(at)[-26:]),
    ("special ids past the section", lambda at: vocab()(at)[:8] + struct.pack("<I", 10**6) + vocab()(at)[12:]),
    (
        "special ids half outside",
        lambda at: vocab()(at)[:8] + struct.pack("<I", at + len(vocab()(at)) - 8) + vocab()(at)[12:],
    ),
    ("special ids at the end of memory", lambda at: vocab()(at)[:8] + struct.pack("<I", FULL) + vocab()(at)[12:]),
    ("special ids in the section's own header", lambda at: vocab()(at)[:8] + struct.pack("<I", at) + vocab()(at)[12:]),
    ("bytes behind the ids", lambda at: vocab()(at) + b"hidden"),
    ("shorter than its header", lambda at: vocab()(at)[:8]),
    ("without room for ids", lambda at: vocab()(at)[:12]),
]


@pytest.mark.parametrize("section", [case[1] for case in VOCABULARY_LIES], ids=[case[0] for case in VOCABULARY_LIES])
def test_a_vocabulary_that_lies(section: Callable[[int], bytes]) -> None:
    """A damaged vocabulary is a FormatError at open or at its first use, and always of verify."""
    at = 64 + len(embd.metadata_section(embd.REQUIRED.items()))
    data = memoryview(draft(vocab=None, vocab_bytes=section(at)).seal())

    def use() -> None:
        with wm.open(data) as f:
            list(f.vocab)
            dict(f.vocab.special_ids)

    def verify() -> None:
        with wm.open(data) as f:
            f.verify()

    for action in (use, verify):
        with pytest.raises(wm.FormatError):
            action()


@pytest.mark.parametrize("count", [2**27, 2**31, FULL])
@pytest.mark.parametrize("field", ["tensors", "tokens", "entries"])
def test_counts_are_bounded_before_anything_is_allocated(field: str, count: int) -> None:
    """Absurd counts are refused at open, by the bytes that remain, without memory for them."""
    import tracemalloc

    at = 64 + len(embd.metadata_section(embd.REQUIRED.items()))
    data = {
        "tensors": lambda: draft().header(tensor_index_count=count),
        "tokens": lambda: draft(vocab=None, vocab_bytes=embd.vocab_section(WORDS, offset=at, count=count)),
        "entries": lambda: draft(metadata=embd.metadata_section(PAIRS, count=count)),
    }[field]().seal()
    survives(data)
    tracemalloc.start()
    try:
        with pytest.raises(wm.FormatError):
            exercise(wm.open(memoryview(data)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20


# ------------------------------------------------------------------------------------------------- the simple layout

ONE = [("a", normal((3,)))]


def simple_with(place: int, value: bytes) -> bytes:
    """A small simple file with some bytes overwritten."""
    data = bytearray(embd.simple(ONE, ["x", "y"]))
    data[place : place + len(value)] = value
    return bytes(data)


def u32(value: int) -> bytes:
    """Four bytes, little-endian."""
    return struct.pack("<I", value)


SIMPLE_LIES: list[tuple[str, bytes]] = [
    ("version 0", simple_with(4, u32(0))),
    ("version 2", simple_with(4, u32(2))),
    ("no tensors", simple_with(8, u32(0))),
    ("one tensor more", simple_with(8, u32(2))),
    ("2^32 - 1 tensors", simple_with(8, u32(FULL))),
    ("name past the end", simple_with(12, u32(FULL))),
    ("name length 2^31", simple_with(12, u32(2**31))),
    ("name not UTF-8", simple_with(16, b"\xff")),
    ("ndim 0 shifts everything", simple_with(17, u32(0))),
    ("ndim 5", simple_with(17, u32(5))),
    ("ndim 2^32 - 1", simple_with(17, u32(FULL))),
    ("dimension too big", simple_with(21, u32(4))),
    ("dimension too small", simple_with(21, u32(2))),
    ("dimension 2^32 - 1", simple_with(21, u32(FULL))),
    ("bytes that wrap", simple_with(21, u32(2**30))),
    ("one token more", simple_with(37, u32(3))),
    ("one token fewer", simple_with(37, u32(1))),
    ("2^32 - 1 tokens", simple_with(37, u32(FULL))),
    ("token past the end", simple_with(41, u32(FULL))),
    ("token one byte longer", simple_with(46, u32(2))),
    ("duplicate names", embd.simple([*ONE, *ONE])),
    ("no vocabulary count", embd.simple(ONE)[:-4]),
    ("trailing byte", embd.simple(ONE) + b"\0"),
    ("five dimensions", embd.simple([("a", Tensor("float32", (1, 1, 1, 1, 1), bytes(4)))])),
    ("no dimensions", embd.simple([("a", Tensor("float32", (), bytes(4)))])),
    ("product of 2^64", embd.simple([("a", Tensor("float32", (2**16,) * 4, b""))])),
    ("product of 2^32 floats", embd.simple([("a", Tensor("float32", (2**16, 2**16), b""))])),
]


@pytest.mark.parametrize("data", [case[1] for case in SIMPLE_LIES], ids=[case[0] for case in SIMPLE_LIES])
def test_a_simple_file_that_lies(data: bytes) -> None:
    """The simple layout must consume the file exactly; every lie is a FormatError at open."""
    with pytest.raises(wm.FormatError):
        wm.open(memoryview(data))


def test_a_token_of_the_simple_layout_that_is_not_utf8() -> None:
    """A token that is no text is a FormatError when it is asked for."""
    with wm.open(memoryview(embd.simple(ONE, ["ok", b"\xff"]))) as f, pytest.raises(wm.FormatError):
        list(f.vocab)


# ------------------------------------------------------------------------------------------------- what errors carry


def test_errors_carry_where_and_what(put: Callable[..., Path]) -> None:
    """A FormatError tells file, field, byte offset, expected and actual value, in attributes and in its text."""
    path = put(draft().header(version_major=3).seal())
    with pytest.raises(wm.UnsupportedError) as caught:
        wm.open(path)
    error = caught.value
    assert str(error.path) == str(path)
    assert (error.format, error.field, error.offset, error.actual) == ("embd", "version_major", 4, 3)
    assert error.expected is not None
    text = str(error)
    assert text.startswith(f"{path}: ")
    assert "version_major" in text
    assert "expected" in text
    assert "at byte 4" in text


@pytest.mark.parametrize("field", [name for name in embd.HEADER_FIELDS if name not in {"magic", "header_checksum"}])
@pytest.mark.parametrize("value", [0, 1, 2**31 - 1, 2**31 + 1, FULL, 2**60, 2**63, 2**64 - 1])
def test_no_header_value_whatever_does_harm(field: str, value: int) -> None:
    """Each header field takes each extreme value, the checksum fitting: a right answer or a TensorFileError."""
    width = {"H": 2, "I": 4, "Q": 8}[embd.HEADER_FIELDS[field][1]]
    survives(draft().header(**{field: value % 2 ** (8 * width)}).seal())


@pytest.mark.parametrize("field", embd.DESCRIPTOR_FIELDS)
@pytest.mark.parametrize(
    "value", [0, 1, 2, 3, 5, 63, 65, 2**31 - 1, 2**31 + 1, FULL, 2**60, 2**63, 2**64 - 64, 2**64 - 1]
)
def test_no_descriptor_value_whatever_does_harm(field: str, value: int) -> None:
    """The same for each descriptor field of each descriptor."""
    width = {"B": 1, "H": 2, "I": 4, "Q": 8}[embd.DESCRIPTOR_FIELDS[field][1]]
    for number in range(3):
        survives(draft().descriptor(number, **{field: value % 2 ** (8 * width)}).seal())


def test_an_empty_record_of_large_dimensions_is_refused_when_it_is_used() -> None:
    """With verify="none" a record of no bytes whose other dimensions overflow is a LayoutError, not one of numpy."""
    data = draft().descriptor(0, shape0=0, shape1=FULL, shape2=FULL, ndim=3).seal()
    f = wm.open(memoryview(data), verify="none")
    for use in (lambda: f["a"], lambda: list(f.values()), lambda: f.read("a")):
        with pytest.raises(wm.LayoutError, match="product of its shape") as caught:
            use()
        assert (caught.value.path, caught.value.format) == ("<memoryview>", "embd")


def test_the_names_of_the_simple_layout_are_limited_together() -> None:
    """Names are kept in memory, so many that are each below the limit are a LimitError when their sum is not."""
    data = embd.simple([(f"{i}" * 40, normal((2,))) for i in range(5)])
    assert len(wm.open(memoryview(data), limits=wm.Limits(max_header_bytes=200))) == 5
    with pytest.raises(wm.LimitError, match="size of all names") as caught:
        wm.open(memoryview(data), limits=wm.Limits(max_header_bytes=199))
    assert caught.value.actual == 200
