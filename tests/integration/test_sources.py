"""Sources: bytes are the content of a file, wherever one is taken, and never a path."""

import os
from pathlib import Path

import numpy as np
import pytest
from tests.support import in_one_item, listing

import weightmap as wm
from weightmap import compat
from weightmap.core.model.opening import open_privately


class _Bytes(bytes):
    """A subclass, as some libraries have it."""


class _Named(os.PathLike[bytes]):
    """A path as some libraries have it: `os.fspath` gives bytes."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return os.fsencode(self.path)


# Every call that takes a source, as a function; `tmp_path` is the working directory.
TAKERS = {
    "open": lambda source: list(wm.open(source)),
    "open-privately": lambda source: list(open_privately(source)),
    "load": lambda source: list(wm.load(source)),
    "diff-a": lambda source: wm.diff(source, "other.safetensors").only_in_b,
    "diff-b": lambda source: wm.diff("other.safetensors", source).only_in_a,
    "convert": lambda source: wm.convert(source, "converted.safetensors").tensors,
    "convert-words": lambda source: wm.convert(source, "words.txt", format="text").tensors,
    "safe_open": lambda source: compat.safe_open(source, "np").keys(),
    "load_file": lambda source: list(compat.load_file(source)),
}


@pytest.mark.parametrize("taker", TAKERS)
@in_one_item("name", ["other.safetensors", ".", "model.safetensors.index.json", "absent.weights", "words"])
@in_one_item("make", [bytes, _Bytes, bytearray])
def test_bytes_are_content_and_never_a_path(tmp_path, monkeypatch, taker, name, make):
    """Bytes that spell the name of a file, a directory or nothing are a file of a few letters."""
    monkeypatch.chdir(tmp_path)
    wm.save("other.safetensors", {"x": np.ones(2, np.float32)})
    Path("model.safetensors.index.json").write_text('{"weight_map": {"x": "other.safetensors"}}', encoding="utf-8")
    Path("words").write_text("a 1 2\nb 3 4\n", encoding="utf-8")
    before = listing(tmp_path)
    for spelt in (name, str(tmp_path / name)):
        with pytest.raises(wm.errors.UnknownFormatError, match=r"^<\w+>: no format recognises") as caught:
            TAKERS[taker](make(os.fsencode(spelt)))
        assert any("os.fsdecode" in note for note in getattr(caught.value, "__notes__", [])) is (make is not bytearray)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("taker", [taker for taker in TAKERS if taker != "convert-words"])
def test_bytes_are_content_wherever_a_source_is_taken(tmp_path, monkeypatch, taker):
    monkeypatch.chdir(tmp_path)
    wm.save("other.safetensors", {"x": np.ones(2, np.float32)})
    expected = TAKERS[taker]("other.safetensors")
    assert TAKERS[taker](Path("other.safetensors").read_bytes()) == expected
    assert TAKERS[taker](os.fsdecode(b"other.safetensors")) == expected
    assert TAKERS[taker](_Named(Path("other.safetensors"))) == expected


def test_words_are_converted_from_bytes(tmp_path):
    report = wm.convert(b"a 1 2\nb 3 4\n", tmp_path / "words.fifu")
    assert (report.src, report.format) == ("<bytes>", "finalfusion")
    with wm.open(tmp_path / "words.fifu") as f:
        assert list(f.vocab or ()) == ["a", "b"]
    with pytest.raises(wm.FormatError, match=r"^<bytes>: .*line 2"):
        wm.convert(b"a 1 2\nb 3 x\n", tmp_path / "wrong.fifu")


def test_a_handle_is_no_source_of_open(tmp_path):
    """An open file has `read`, but is not a file object; functions that take a model take it, and leave it open."""
    wm.save(tmp_path / "x.weights", {"x": np.ones(2, np.float32)})
    with wm.open(tmp_path / "x.weights") as f:
        with pytest.raises(TypeError, match="is a TensorFile, expected a path"):
            wm.open(f)
        assert wm.verify(f).checks
        wm.convert(f, tmp_path / "y.weights")
        assert wm.load(tmp_path / "y.weights")["x"].tolist() == f["x"].tolist() == [1, 1]


@pytest.mark.parametrize("address", ["ftp://host/m.weights", "file:///m.weights"])
def test_other_addresses_are_paths_with_a_hint(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        wm.open(address)
    assert caught.value.filename == address
    [note] = caught.value.__notes__
    assert note == "the addresses that are read begin with s3://, gs://, az://, https://, http:// or hf://"
