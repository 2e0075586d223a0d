"""Commands show and convert the values beside the tensors of a checkpoint."""

import json
import re
import struct

import numpy as np
import pytest
from tests.builders import torch as files
from tests.core.formats.torch.test_beside_tensors import DATA, F4, NEW, SIX, UNKNOWN, W, dtype, of
from tests.core.formats.torch.test_ranks import CONSOLIDATE, FIRST, PART, shard

import weightmap as wm
from weightmap import cli

KEYS = {"a": 1, "b": None}


def array(shape, kind, raw, *, fortran=False):
    empty = of("numpy._core.multiarray", "_reconstruct", files.Plain(files.named("numpy", "ndarray")), (0,), b"b")
    return empty + files.code((1, shape, files.Plain(kind), fortran, raw)) + b"b"


def latin(raw):
    return files.Plain(of("_codecs", "encode", raw.decode("latin-1"), "latin1"))


def checkpoint(code, **tensors):
    storages = DATA | ({"1": bytes(8)} if b"QInt8" in code else {})
    return files.zipped(files.dump({"w": W, "x": files.Plain(code), **tensors}), storages)


NAMESPACE = files.named("argparse", "Namespace") + b")\x81"


VALUES = {
    "a set": (of("builtins", "set", [1, "a"]), {"x.0": 1, "x.1": "a"}),
    "a set of Python 2's name": (of("__builtin__", "set", [1]), {"x.0": 1}),
    "a set by opcodes": (b"\x8f(K\1K\2\x90", {"x.0": 1, "x.1": 2}),
    "an empty set": (files.named("builtins", "set") + b")R", {}),
    "a frozen set": (of("builtins", "frozenset", [1]), {"x.0": 1}),
    "a frozen set by an opcode": (b"(K\1K\2\x91", {"x.0": 1, "x.1": 2}),
    "a set of a list that grows": (
        b"](K\1eq\1" + b"0" + files.named("builtins", "set") + b"h\1\x85Rh\1K\2a\x86",
        {"x.0.0": 1, "x.1.0": 1, "x.1.1": 2},
    ),
    "a counter": (of("collections", "Counter", KEYS), {"x.a": 1, "x.b": None}),
    "a default": (
        of("collections", "defaultdict", files.Plain(files.named("builtins", "list"))) + b"NK\1s",
        {"x.None": 1},
    ),
    "a default of nothing": (of("collections", "defaultdict") + b"K\1K\2s", {"x.1": 2}),
    "keys": (
        files.code({(1, "a"): 1, (): 2, ("b", None): 3, True: 4, None: 5}),
        {"x.(1, a)": 1, "x.()": 2, "x.(b, None)": 3, "x.True": 4, "x.None": 5},
    ),
    "a namespace": (NAMESPACE + files.code({"lr": 0.5, "t": (1,)}) + b"b", {"x.lr": 0.5, "x.t.0": 1}),
    "a namespace of nothing": (NAMESPACE, {}),
    "a path": (of("pathlib", "PosixPath", "/", "a", "b"), {"x": "/a/b"}),
    "a path of Python 3.13": (of("pathlib._local", "PurePosixPath", "a", "b"), {"x": "a/b"}),
    "a path on Windows": (of("pathlib", "PureWindowsPath", "C:\\", "a", "b"), {"x": "C:\\a\\b"}),
    "no path": (of("pathlib", "WindowsPath"), {"x": "."}),
    "a complex number": (of("builtins", "complex", 0.5, 2), {"x": 0.5 + 2j}),
    "a bytearray": (of("builtins", "bytearray", b"a\xff"), {"x": b"a\xff"}),
    "a bytearray of a text": (of("builtins", "bytearray", "a\xff", "latin-1"), {"x": b"a\xff"}),
    "no bytes": (of("builtins", "bytes"), {"x": b""}),
    "a layout": (of("torch.serialization", "_get_layout", "torch.strided"), {"x": "torch.strided"}),
    "an array": (array((2, 3), F4, SIX.tobytes()), {"x": SIX.reshape(2, 3)}),
    "an array by protocol 2": (array((6,), F4, latin(SIX.tobytes())), {"x": SIX}),
    "an array in Fortran's order": (array((2, 3), F4, SIX.tobytes(), fortran=True), {"x": SIX.reshape(3, 2).T}),
    "an array of one": (array((), dtype("i8"), struct.pack("<q", -3)), {"x": np.array(-3)}),
    "an array by protocol 5": (
        of("numpy._core.numeric", "_frombuffer", SIX.tobytes(), files.Plain(F4), (3, 2), "F"),
        {"x": SIX.reshape(2, 3).T},
    ),
    "a type of numpy": (F4, {"x": "f4"}),
}


@pytest.mark.parametrize("name", VALUES)
def test_objects_of_everyday_python_are_values(name, tmp_path, capsys):
    """Each has the value that Python gives it, flattened as dictionaries are; commands show and convert it."""
    code, expected = VALUES[name]
    path = tmp_path / "a.pt"
    path.write_bytes(checkpoint(code))
    for strict in (True, False):
        with wm.open(path, strict=strict) as f:
            assert list(f) == ["w"]
            assert list(f.metadata) == list(expected)
            for key, value in expected.items():
                assert type(f.metadata[key]) is type(value)
                np.testing.assert_array_equal(f.metadata[key], value)
                assert getattr(f.metadata[key], "dtype", None) == getattr(value, "dtype", None)
            assert not f.verify().warnings
    assert cli.main(["inspect", str(path)]) == 0
    assert cli.main(["inspect", "--json", str(path)]) == 0
    capsys.readouterr()
    for suffix in (".safetensors", ".weights", ".gguf"):
        wm.convert(path, tmp_path / f"b{suffix}")
        assert wm.diff(path, tmp_path / f"b{suffix}", tensors_only=True).equal


def stored(kind, key, size):
    name = files.text("storage") + files.named("torch", kind)
    return b"(" + name + files.text(key) + files.text("cpu") + b"K" + bytes([size]) + b"tQ"


VIEW = files.tensor_code(W)[:-2]


BIG, OTHER = dtype("f4", ">"), "other things than little-endian numbers"


LEFT = {
    "an object": (NEW, "'x' is left out: it needs 'mine.Config', which is not known (save model.state_dict() and"),
    "an object by a call": (UNKNOWN + b"(K\1tR", "needs 'mine.Config'"),
    "an object of keywords": (UNKNOWN + b")}\x92", "needs 'mine.Config'"),
    "a list of its own": (UNKNOWN + b")R(K\1eK\1a", "needs 'mine.Config'"),
    "a dictionary of its own": (UNKNOWN + b")R(K\1K\1uK\1K\1s", "needs 'mine.Config'"),
    "a set of its own": (UNKNOWN + b")R(K\1\x90", "needs 'mine.Config'"),
    "a name alone": (UNKNOWN, "needs 'mine.Config'"),
    "a name in two texts": (files.text("mine") + files.text("Config") + b"\x93", "needs 'mine.Config'"),
    "a long name": (files.named("m" * 99, "Config") + b")R", f"needs '{'m' * 80}...'"),
    "an argument that is not known": (files.named("collections", "OrderedDict") + UNKNOWN + b"\x85R", "mine.Config"),
    "a whole module": (files.named("torch.nn.modules.linear", "Linear") + b")\x81}b", "a whole module (save model.st"),
    "a quantised tensor": (
        files.named("torch._utils", "_rebuild_qtensor") + b"(" + stored("QInt8Storage", "1", 8) + b"tR",
        "a tensor quantised by torch (save tensor.dequantize())",
    ),
    "a storage of a type that is not known": (stored("NewStorage", "0", 2), "needs 'torch.NewStorage'"),
    "a sparse tensor": (files.named("torch._utils", "_rebuild_sparse_tensor") + b")R", "(save tensor.to_dense())"),
    "a tensor without data": (files.named("torch._utils", "_rebuild_meta_tensor_no_storage") + b")R", "device meta"),
    "a type that numpy lacks": (files.named("torch", "complex32"), "(save tensor.to(torch.complex64))"),
    "a conjugate view": (VIEW + b"}" + files.text("conj") + b"\x88stR", "it is a conjugate view, whose values differ"),
    "a negative view": (
        VIEW + b"}(" + files.text("neg") + b"\x89utR",
        "it is a negative view, whose values differ from its storage (save tensor.resolve_neg())",
    ),
    "a storage": (files.storage("0", "float32", 2), "it is a storage by itself (save a tensor)"),
    "a class": (files.named("torch", "Tensor"), "it is a class or function by itself (save its name)"),
    "a key": (files.code({0.5: 1}), "'x' is left out: it has a key that is not a text, integer, truth value, None"),
    "a key in a tuple": (files.code({(0.5,): W}), "it has a key that is not a text"),
    "an array of objects": (array((1,), dtype("O8", "|"), [None]), "it is an array, scalar or type of numpy of other"),
    "a big-endian array": (array((1,), BIG, bytes(4)), OTHER),
    "a big-endian scalar": (of("numpy._core.multiarray", "scalar", files.Plain(BIG), bytes(4)), OTHER),
    "a big-endian type": (BIG, OTHER),
    "a big-endian type of the memo": (BIG.replace(b"R(", b"Rq\1(", 1) + b"0" + array((1,), b"h\1", bytes(4)), OTHER),
    "a type with fields": (dtype("V4", "|", {"a": 1}), OTHER),
    "an array of texts": (array((1,), dtype("U1"), bytes(4)), "'x' is left out: it is of numpy's type 'U1' (save num"),
    "an array without a state": (array((), F4, b"").partition(b"(K\1")[0], "an array, scalar or type of numpy"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_out(name, tmp_path, capsys):
    code, message = LEFT[name]
    path = tmp_path / "a.pt"
    path.write_bytes(checkpoint(code, y=[1, W]))
    with pytest.raises(wm.UnsupportedError, match=r"save .*; or open\(\.\.\., strict=False\) leaves it out") as caught:
        dict(wm.open(path).metadata)
    saved = re.search(r"\(save [^)]*\)?", message)
    assert saved is None or saved[0][1:].rstrip(")") in str(caught.value)
    with wm.open(path, strict=False) as f:
        assert (list(f), f.metadata) == (["w", "y.1"], {"y.0": 1})
        np.testing.assert_array_equal(f["w"], np.float32([1, 2]))
        (warning,) = f.verify().warnings
        assert message in warning
    target = str(tmp_path / "a.safetensors")
    assert cli.main(["convert", str(path), target]) == 3
    assert capsys.readouterr().err.count("; or --lenient leaves it out") == 1
    assert cli.main(["convert", "--lenient", str(path), target]) == 0
    assert "warning: tolerated in the source: 'x' is left out: it" in capsys.readouterr().out
    assert cli.main(["inspect", "--lenient", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [warning]
    assert cli.main(["verify", "--lenient", str(path)]) == 0
    assert message in capsys.readouterr().out


# The name of a file, its content, and the beginning of the warning.
SAID = {
    "a part that is not the first": (
        "a.safetensors",
        shard({"b": [0], "w": [3, 0]}),
        "its tensors are parts of larger ones ('w' begins at [3, 0] of its tensor)",
    ),
    "a first part": (FIRST, shard({"b": [0], "w": [0, 0]}), "its tensors may be parts of larger ones: "),
    "a first part of another name": ("a.safetensors", shard({"w": [0, 0]}), "its tensors may be"),
    "all of it, saved by one rank": ("model-00001-of-00001.safetensors", shard({"w": [0, 0]}), ""),
    "another key": ("a.safetensors", shard({"w": [3, 0]}, "SHARDING_INFO"), ""),
    "no JSON": ("a.safetensors", shard("{"), "its tensors may be"),
    "other JSON": ("a.safetensors", shard('{"w": 1, "x": {"saved_offsets": 3}, "y": {"saved_offsets": ["1"]}}'), "may"),
}


@pytest.mark.parametrize("case", SAID)
def test_one_file_of_a_rank_says_that_its_shapes_are_parts(case, tmp_path, capsys):
    name, data, message = SAID[case]
    path = tmp_path / name
    path.write_bytes(data)
    with wm.open(path) as f:
        assert list(f) == list(PART)
        warnings = f.verify().warnings
    assert len(warnings) == bool(message)
    assert cli.main(["inspect", str(path)]) == 0
    assert ("\nwarning: a rank of torch.distributed.checkpoint saved" in capsys.readouterr().out) == bool(message)
    assert cli.main(["inspect", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == list(warnings)
    for warning in warnings:
        assert message in warning
        assert CONSOLIDATE in warning
