"""Files that are often found where a model was expected: each kind gets its own message, at once."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import socket
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from tests.support import listing

import weightmap as wm
from weightmap import cli


def tar():
    with io.BytesIO() as target:
        with tarfile.open(fileobj=target, mode="w") as archive:
            member = tarfile.TarInfo("model.bin")
            member.size = 4
            archive.addfile(member, io.BytesIO(b"abcd"))
        return target.getvalue()


def zipped(*names):
    with io.BytesIO() as target:
        with zipfile.ZipFile(target, "w") as archive:
            for name in names:
                archive.writestr(name, "content")
        return target.getvalue()


def png():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


PICKLE = "this is a Python pickle, and not one of torch.save, or a damaged one: pickles are programs, and not run here"
CUT_ZIP = "this is a ZIP archive that ends within the header of its first file: was the download complete?"
JSON = "this is JSON text: a configuration, or an error that a server sent in place of a file"
HTML = "this is an HTML page: a download went wrong"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"
# The bytes of each kind, and the message behind the file name.
MESSAGES = {
    "empty": (b"", "the file is empty"),
    "LFS pointer": (POINTER, "this is a Git LFS pointer: the file itself was never fetched (git lfs pull)"),
    "HTML": (b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>", HTML),
    "HTML, indented": (b"\n  <html><body>Bad gateway</body></html>", HTML),
    "XML": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "this is an XML document"),
    "JSON": (b'{"error": "Repository not found"}', JSON),
    "JSON, indented": (b'{\n  "architectures": ["BertModel"]\n}', JSON),
    "text": (b"Entry not found", "its beginning is b'Entry not found', expected the start of AMB"),
    "gzip": (gzip.compress(b"abc" * 100, mtime=0), "this is gzip: decompress it first"),
    "bzip2": (bz2.compress(b"abc" * 100), "this is bzip2: decompress it first"),
    "xz": (lzma.compress(b"abc" * 100), "this is xz: decompress it first"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(60), "this is zstd: decompress it first"),
    "ZIP": (
        zipped("model.onnx"),
        "this is a ZIP archive, and neither a PyTorch checkpoint nor an .npz archive of numpy",
    ),
    "ZIP, cut within its header": (zipped("arr_0.npy")[:29], CUT_ZIP),
    "ZIP, cut within a name": (zipped("arr_0.npy")[:38], CUT_ZIP),
    "7-Zip": (b"7z\xbc\xaf\x27\x1c" + bytes(60), "this is a 7-Zip archive: unpack it first"),
    "tar": (tar(), "this is a tar archive: unpack it first"),
    "pickle 2": (pickle.dumps({"a": [1]}, 2), PICKLE),
    "pickle 3": (pickle.dumps({"a": [1]}, 3), PICKLE),
    "pickle 4": (pickle.dumps({"a": [1]}, 4), PICKLE),
    "pickle 5": (pickle.dumps({"a": [1]}, 5), PICKLE),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(80), "this is HDF5, perhaps a Keras model: convert it to safetensors first"),
    "PNG": (png(), "this is a PNG image"),
    "JPEG": (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(60), "this is a JPEG image"),
    "PDF": (b"%PDF-1.7\n" + bytes(60), "this is a PDF document"),
    "EMBD swapped": (b"DMBE" + bytes(100), "this looks like EMBD with swapped bytes"),
    "ELF": (b"\x7fELF\2\1\1" + bytes(60), "its beginning is b'\\\\x7fELF"),
    "zeros": (bytes(4096), "its beginning is nothing but zero bytes"),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_errors_on_other_files_name_their_kind(kind, put, capsys):
    """Opening or converting each kind is an error of ours that names the file and its kind; so in commands."""
    data, message = MESSAGES[kind]
    path = put(data, "model.bin")
    expected = wm.UnknownFormatError if data else wm.TruncatedError
    for use in (wm.open, wm.load, lambda path: wm.convert(path, path.with_name("out.safetensors"))):
        with pytest.raises(expected) as caught:
            use(path)
        text = str(caught.value)
        assert text.startswith(f"{path}: ")
        assert message.replace("\\\\", "\\") in text
        assert text.endswith("(at byte 0)")
        assert text.isprintable()
        assert len(text.removeprefix(str(path))) < 250
    assert listing(path.parent) == ["model.bin"]
    assert cli.main(["inspect", str(path)]) == 3
    assert capsys.readouterr().err == f"weightmap: {text}\n"


def tensors(beginning=b"", *, length=None):
    """A safetensors file with other first bytes of its JSON, or another length."""
    text = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    text = beginning + text[len(beginning) :]
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(4)


DAMAGED_JSON = "this looks like a safetensors header whose JSON is damaged: its beginning is "
DAMAGED_LENGTH = "this looks like a safetensors header whose length is damaged: it is "
DAMAGED = {
    "a wrong bracket": (tensors(b"["), DAMAGED_JSON + 'b\'["w":{"dtype":"F\', expected \'{"\' (at byte 8)'),
    "a wrong quotation mark": (tensors(b"{'"), DAMAGED_JSON + "b'{\\'w\":{\"dtype\":\"F', expected '{\"' (at byte 8)"),
    "both": (tensors(b"x'"), "no format recognises this file"),
    "no JSON, and the wrong length": (tensors(b"x", length=1 << 40), "no format recognises this file"),
    "a length of 2**40": (tensors(length=1 << 40), f"{DAMAGED_LENGTH}{1 << 40}, expected 2 to 58 (at byte 0)"),
    "a length of 1": (tensors(length=1), f"{DAMAGED_LENGTH}1, expected 2 to 58 (at byte 0)"),
    "a length of 2": (tensors(b"[", length=2), DAMAGED_JSON),
    "the longest that fits": (tensors(b"[", length=58), DAMAGED_JSON),
    "a byte more": (tensors(b"[", length=59), "no format recognises this file"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_beginning_of_safetensors_is_named(case, put):
    data, message = DAMAGED[case]
    with pytest.raises(wm.UnknownFormatError) as caught:
        wm.open(put(data, "model.safetensors"))
    assert message in str(caught.value)


def test_an_empty_index_of_shards_is_an_empty_file(put):
    path = put(b"", "model.safetensors.index.json")
    with pytest.raises(wm.TruncatedError) as caught:
        wm.open(path)
    assert str(caught.value) == f"{path}: the file is empty (at byte 0)"


ROWS = b"hello 0.1 -2 3e-5\nworld 1 2 3\n"
VECTOR = np.arange(3, dtype="<f4").tobytes()
WORDS = {
    "word2vec": (b"2 3\nhello " + VECTOR + b"\nworld " + VECTOR, "this looks like word embeddings of word2vec"),
    "word2vec text": (b"2 3\r\n" + ROWS, "this looks like word embeddings of word2vec or fastText, in text"),
    "GloVe": (ROWS, "this looks like word embeddings in text, such as GloVe"),
    "GloVe, long": (b"the" + b" -0.12345" * 1000 + b"\n", "this looks like word embeddings in text, such as GloVe"),
    "fastText": (struct.pack("<2i", 793712314, 12) + bytes(100), "this is a model of fastText"),
}


@pytest.mark.parametrize("kind", WORDS)
def test_errors_on_files_of_words_say_how_to_convert_them(kind, put):
    data, message = WORDS[kind]
    with pytest.raises(wm.UnknownFormatError) as caught:
        wm.open(put(data, "words"))
    assert f"words: {message}: convert it to finalfusion first (weightmap convert FILE words.fifu)" in str(caught.value)


@pytest.mark.parametrize("data", [b"hello world", b"a 1", b"a 1 2x 3", b"1 2", b"12 34 and so on"])
def test_a_file_that_only_begins_like_words_is_not_named_so(data, put):
    with pytest.raises(wm.UnknownFormatError, match="its beginning is"):
        wm.open(put(data, "words"))


FOREIGN = {
    "x.NPZ": ".npz is not written (numpy.savez",
    "x.npy": ".npy holds one array, which weightmap export writes",
    "x.pt": "PyTorch checkpoints are not written (torch.save",
    "x.onnx": "ONNX is not written",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_formats_are_named_by_their_suffix(name, tmp_path):
    with pytest.raises(wm.EncodeError) as caught:
        wm.save(tmp_path / name, {"w": np.ones(2, np.float32)})
    assert str(caught.value).startswith(f"{tmp_path / name}: {FOREIGN[name]}")
    assert ".safetensors" in str(caught.value)
    wm.save(tmp_path / name, {"w": np.ones(2, np.float32)}, format="safetensors")


@pytest.fixture
def places(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    here = os.getcwd()  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(tmp_path)  # the path of a socket may have 107 bytes
        bound.bind("socket")
        os.chdir(here)
        yield tmp_path


REGULAR = "not a regular file: only regular files can be opened"
LOOP = "this path is a loop of symbolic links, expected a file: replace or remove the link"
PLACES = {
    "fifo": (wm.NotRegularFileError, f"this is a FIFO, {REGULAR}"),
    "socket": (wm.NotRegularFileError, f"this is a socket, {REGULAR}"),
    "dir": (wm.NotRegularFileError, "this directory has no *.index.json and no model file ("),
    "/dev/zero": (wm.NotRegularFileError, f"this is a device, {REGULAR}"),
    "/dev/null": (wm.NotRegularFileError, f"this is a device, {REGULAR}"),
    "/proc/self/maps": (wm.TruncatedError, "the file is empty"),
    "dangling": (FileNotFoundError, "No such file or directory"),
    "loop": (wm.NotRegularFileError, LOOP),
    "loop/file": (wm.NotRegularFileError, LOOP),
    "absent": (FileNotFoundError, "No such file or directory"),
    "absent/file": (FileNotFoundError, "No such file or directory"),
}


@pytest.mark.parametrize("name", PLACES)
def test_errors_on_paths_that_are_no_regular_files_name_their_kind(name, places, capsys):
    """Each kind of file type has its own message; an error of the system passes through unchanged."""
    kind, message = PLACES[name]
    path = places / name
    uses = [
        wm.open,
        wm.load,
        lambda path: wm.convert(path, places / "out.safetensors"),
        lambda path: wm.diff(path, path),
    ]
    if REGULAR in message or message == LOOP:
        for target in (path, f"{path}/") if message == LOOP else (path,):
            with pytest.raises(wm.NotRegularFileError):
                wm.save(target, {}, format="embd")
    for use in uses:
        with pytest.raises(kind) as caught:
            use(path)
        assert isinstance(caught.value, wm.TensorFileError) == (kind.__module__ == "weightmap.errors")
        assert str(path) in str(caught.value)
        assert message in str(caught.value)
    assert cli.main(["verify", str(path)]) == (3 if kind is wm.TruncatedError else 4)
    assert message in capsys.readouterr().out
