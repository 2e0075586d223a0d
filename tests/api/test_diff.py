"""Comparison of two files of any formats: tensors by value, metadata, vocabulary."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
from tests import builders
from tests.builders import Tensor, cnn_v2, embd, noise, normal
from tests.builders import bintensors as bt
from tests.builders import safetensors as st

import weightmap as wm
from weightmap.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

every_suffix = pytest.mark.parametrize(
    "suffix", [builder.suffix for builder in builders.known().values() if builder.names_tensors and builder.metadata]
)
TENSORS = {"a": normal((2, 3), 1), "b": noise("int8", (5,), 2), "c": normal((4,), 3)}


def spec(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None, vocab: list[str] | None = None) -> bytes:
    """An EMBD file of this content."""
    return embd.Draft(tensors.items(), metadata or {}, vocab).seal()


def test_a_file_equals_itself_and_its_copy(put: Callable[..., Path]) -> None:
    """Two files of the same content are equal: no field of the report lists anything."""
    a, b = put(spec(TENSORS, {"k": "v"}, ["x"]), "a"), put(spec(TENSORS, {"k": "v"}, ["x"]), "b")
    for other in (a, b):
        report = wm.diff(a, other)
        assert report.equal is True
        assert not report.only_in_a
        assert not report.only_in_b
        assert not report.changed
        assert not report.metadata
        assert not report.vocab


def test_numbers_and_their_decimal_strings_are_the_same_metadata(put: Callable[..., Path]) -> None:
    """A CNN v2 file, whose metadata are integers, equals the same model in a format that holds strings alone."""
    layers = cnn_v2.names(cnn_v2.ODD)
    a = put(cnn_v2.build(cnn_v2.ODD, mip_level=2), "a.bin")
    b = put(bt.build(bt.ordered(layers), {"version": "2", "mip_level": "2"}), "b.bt")
    assert wm.diff(a, b).equal
    assert wm.diff(b, a).equal
    other = put(bt.build(bt.ordered(layers), {"version": "2", "mip_level": "02"}), "c.bt")
    assert wm.diff(a, other).metadata == (("mip_level", 2, "02"),)


def test_the_format_does_not_matter_for_tensors(put: Callable[..., Path]) -> None:
    """The same tensors in EMBD and safetensors, in any order, do not differ."""
    backwards = dict(reversed(TENSORS.items()))
    report = wm.diff(put(spec(TENSORS), "a"), put(st.build(backwards), "b"))
    assert report.equal
    assert not report.changed


def test_tensors_on_one_side(put: Callable[..., Path]) -> None:
    """Names that only one file has are listed under that file."""
    left = {"a": TENSORS["a"], "x": TENSORS["b"], "y": TENSORS["c"]}
    report = wm.diff(put(spec(left), "a"), put(spec(TENSORS), "b"))
    assert not report.equal
    assert sorted(report.only_in_a) == ["x", "y"]
    assert sorted(report.only_in_b) == ["b", "c"]
    assert not report.changed


@pytest.mark.parametrize(
    "other",
    [normal((2, 3), 9), normal((3, 2), 1), noise("int32", (2, 3), 1), Tensor("int8", (24,), normal((2, 3), 1).data)],
    ids=["values", "shape", "dtype", "both"],
)
def test_changed_tensors(put: Callable[..., Path], other: Tensor) -> None:
    """A tensor of another value, shape or dtype is a changed one, by name; the others are not."""
    report = wm.diff(put(spec(TENSORS), "a"), put(spec(TENSORS | {"a": other}), "b"))
    assert not report.equal
    assert len(report.changed) == 1
    assert "'a'" in repr(report.changed)
    assert not report.only_in_a
    assert not report.only_in_b


def test_one_bit_is_a_change(put: Callable[..., Path]) -> None:
    """Comparison is bit by bit: a sign of zero or a NaN payload counts, and equal NaNs are equal."""
    nan, other_nan = b"\x01\x00\xc0\x7f", b"\x02\x00\xc0\x7f"
    zero, minus_zero = bytes(4), b"\x00\x00\x00\x80"

    def file(name: str, data: bytes) -> Path:
        return put(spec({"t": Tensor("float32", (2,), data)}), name)

    assert wm.diff(file("a", nan + zero), file("b", nan + zero)).equal
    assert not wm.diff(file("a", nan + zero), file("b", other_nan + zero)).equal
    assert not wm.diff(file("a", nan + zero), file("b", nan + minus_zero)).equal


def test_metadata_and_vocabulary(put: Callable[..., Path]) -> None:
    """Differing metadata and vocabularies are reported apart from differing tensors."""
    base = put(spec(TENSORS, {"k": "v", "same": "s"}, ["x", "y"]), "a")
    report = wm.diff(base, put(spec(TENSORS, {"k": "w", "same": "s", "new": "n"}, ["x", "y"]), "b"))
    assert not report.equal
    assert "'k'" in repr(report.metadata)
    assert "'new'" in repr(report.metadata)
    assert "'same'" not in repr(report.metadata)
    assert not report.vocab
    assert not report.changed
    report = wm.diff(base, put(spec(TENSORS, {"k": "v", "same": "s"}, ["x", "z"]), "c"))
    assert not report.equal
    assert report.vocab
    assert not report.metadata
    report = wm.diff(base, put(spec(TENSORS, {"k": "v", "same": "s"}), "d"))
    assert not report.equal
    assert report.vocab


@pytest.mark.parametrize("example", builders.examples(), ids=lambda example: f"{example.format}-{example.name}")
def test_a_file_and_what_convert_made_of_it_are_equal(example: builders.Example, put: Callable[..., Path]) -> None:
    """A file differs from its conversion only in what the report of the conversion lists.

    Entries that a format states in every file are notes, not differences.
    """
    source = put(example.data, f"source{example.suffix}")
    for format_ in (found for found in FORMATS.values() if found.plan is not None):
        target = source.with_name(f"target{format_.suffixes[0]}")
        try:
            report = wm.convert(source, target)
        except wm.EncodeError:
            continue
        assert not report.dropped
        left = any("left behind" in warning for warning in report.warnings)
        for found in (wm.diff(source, target), wm.diff(target, source)):
            assert found.equal or left, (format_.name, found)
            assert all("states it" in note for note in found.notes)
        assert wm.diff(source, target, tensors_only=True) == found._replace(
            a=str(source), b=str(target), metadata=(), vocab=None, notes=()
        )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model directory: tensors, positions that need no storing, configuration and vocabulary."""
    folder = tmp_path / "model"
    folder.mkdir()
    positions = Tensor("int64", (1, 4), struct.pack("<4q", *range(4)))
    tensors = {"w": normal((2, 3), 1), "embeddings.position_ids": positions}
    (folder / "model.safetensors").write_bytes(st.build(tensors, {"format": "pt"}))
    config = {"_name_or_path": "owner/kind", "hidden_size": 3, "vocab_size": 2, "model_type": "bert"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("[PAD]\nword\n")
    return folder


@every_suffix
def test_a_model_directory_and_what_convert_made_of_it_are_equal(directory: Path, suffix: str) -> None:
    """Diff compares what convert takes from the files beside the tensors, whichever side they are on."""
    target = directory.parent / f"target{suffix}"
    report = wm.convert(directory, target)
    found = wm.diff(directory, target)
    assert found.equal, found
    assert [note.partition(" is in A only: ")[2] for note in found.notes] == [why for _, why in report.dropped]
    assert wm.diff(target, directory).equal
    (directory / "config.json").write_text('{"_name_or_path": "owner/other", "hidden_size": 3}')
    found = wm.diff(directory, target)
    assert found.metadata
    assert ("other", "kind") in [(a, b) for _, a, b in found.metadata]
    assert "hidden_size" not in [key for key, _, _ in found.metadata]
    assert wm.diff(directory, target, tensors_only=True).equal


def test_another_vocabulary_of_a_model_directory_is_a_difference(directory: Path) -> None:
    """The tokens of vocab.txt are compared with those of the file, and only where that has some."""
    target = directory.parent / "target.weights"
    wm.convert(directory, target)
    (directory / "vocab.txt").write_text("[PAD]\nworld\n")
    assert wm.diff(directory, target).vocab == "token 1 is 'world' and 'word'"
    assert wm.diff(directory / "model.safetensors", target).vocab == "only B has one"


def test_positions_that_do_not_count_up_are_a_difference(directory: Path) -> None:
    """A tensor that convert would not leave out is missed, and so is one where the other format could hold it."""
    target = directory.parent / "target.weights"
    wm.convert(directory, target, exclude="*.position_ids")
    assert wm.diff(directory, target).equal
    same = directory.parent / "target.safetensors"
    wm.convert(directory, same, exclude="*.position_ids")
    assert wm.diff(directory, same).only_in_a == ("embeddings.position_ids",)
    positions = Tensor("int64", (1, 4), struct.pack("<4q", 0, 1, 3, 2))
    (directory / "model.safetensors").write_bytes(
        st.build({"w": normal((2, 3), 1), "embeddings.position_ids": positions})
    )
    found = wm.diff(directory, target)
    assert found.only_in_a == ("embeddings.position_ids",)
    assert not found.notes


@every_suffix
def test_a_model_in_shards_and_what_convert_made_of_it_are_equal(tmp_path: Path, suffix: str) -> None:
    """The total size in an index of shards is not metadata of the model."""
    index = st.shard(tmp_path, {"one.safetensors": {"a": normal((2,), 1)}, "two.safetensors": {"b": normal((3,), 2)}})
    target = tmp_path / "folder" / f"target{suffix}"
    target.parent.mkdir()
    wm.convert(index, target)
    assert wm.diff(index, target) == wm.diff(index, target)._replace(metadata=(), notes=())
    assert wm.diff(index, target).equal
    assert wm.diff(target, tmp_path).equal


def test_errors_are_those_of_opening(put: Callable[..., Path], tmp_path: Path) -> None:
    """A malformed or missing file is the error that opening it would be."""
    good = put(spec(TENSORS), "a")
    with pytest.raises(wm.FormatError, match="bad"):
        wm.diff(good, put(spec(TENSORS)[:-1], "bad"))
    with pytest.raises(FileNotFoundError):
        wm.diff(tmp_path / "absent", good)


def test_reports_are_printable(put: Callable[..., Path]) -> None:
    """Repr of a report is printable text whatever the names hold."""
    nasty = {"\x1b[31m": TENSORS["a"]}
    report = wm.diff(put(spec(nasty), "a"), put(spec(TENSORS), "b"))
    assert repr(report).isprintable()
    assert not report.equal
