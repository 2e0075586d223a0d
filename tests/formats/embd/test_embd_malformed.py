"""EMBD files with one lie each: a valid file, one field changed, checksums made to fit, and the promised outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.attacks.embd import colliding_keys
from tests.builders import embd, noise, normal

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


def test_metadata_whose_hashes_collide() -> None:
    """Keys made to collide are distinguished, and a repeated key among them is found."""
    keys = colliding_keys(80)
    data = draft(metadata=embd.metadata_section((key, key[::-1]) for key in keys)).seal()
    assert dict(wm.open(memoryview(data)).metadata) == {key: key[::-1] for key in keys}
    wm.open(memoryview(data)).verify()
    data = draft(metadata=embd.metadata_section((key, "") for key in [*keys, keys[3]])).seal()
    with pytest.raises(wm.LayoutError, match="metadata entry 80 repeats the key"):
        wm.open(memoryview(data))


# ------------------------------------------------------------------------------------------------- attributes of errors


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
