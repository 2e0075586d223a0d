"""All of safetensors' surface: modules, memory by its address, content as bytes, errors, reading by pread.

The facts come from safetensors' own tests, which tests/compat/test_compat_suite.py runs where they are at hand.
"""

import ast
import inspect
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests import builders
from tests.support import run_child, sparse

from weightmap import compat
from weightmap.compat import numpy as ours

safetensors = pytest.importorskip("safetensors")
theirs = pytest.importorskip("safetensors.numpy")

SLICED = np.arange(50, dtype=np.float64).reshape(10, 5)


def spec(array, **other):
    given = {"dtype": array.dtype.name, "shape": array.shape, "data_ptr": array.ctypes.data, "data_len": array.nbytes}
    return compat.TensorSpec(**given | other)


def test_the_surface_is_that_of_safetensors():
    for name in ("SafetensorError", "TensorSpec", "_safe_open_handle", "deserialize", "safe_open", "serialize"):
        assert hasattr(compat, name)
        assert hasattr(safetensors, name)
    for module in ("numpy", "flax", "mlx", "tensorflow"):
        # Not imported: it imports its library, which may be missing.
        source = Path(safetensors.__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
        defined = {node.name: node.args for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        for name in ("load", "load_file", "save", "save_file"):
            function = getattr(getattr(compat, module), name)
            assert function.__module__ == f"weightmap.compat.{module}"
            assert pickle.loads(pickle.dumps(function)) is function
            assert inspect.getdoc(function)
            arguments = defined[name]
            assert list(inspect.signature(function).parameters) == [
                argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)
            ]
    assert {"torch", "numpy", "flax", "patched", "serialize_file"} <= set(dir(compat))
    with pytest.raises(AttributeError, match="nothing"):
        compat.nothing  # noqa: B018


@pytest.mark.parametrize("framework", ["pt", "jax", "flax", "tf", "tensorflow", "mlx"])
def test_a_framework_that_is_not_installed_is_named(tmp_path, framework):
    ours.save_file({"a": SLICED}, tmp_path / "m.safetensors")
    code = f"""
import sys
for name in ("torch", "jax", "tensorflow", "mlx", "mlx.core"): sys.modules[name] = None
from weightmap import compat
try: compat.safe_open(sys.argv[1], {framework!r})
except ImportError as error: print(type(error).__name__, error)
"""
    assert "MissingDependencyError" in run_child(code, tmp_path / "m.safetensors").stdout


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"test": np.zeros((2, 2), np.int32)}, None),
        ({"test1": np.zeros((2, 2), ">i4")}, {"framework": "pt"}),
        ({"b": np.zeros((2, 2), np.float16), "a": np.zeros((2, 2), np.int32)}, None),
    ],
    ids=["plain", "big-endian with metadata", "sorted by size of the type"],
)
def test_saving_to_bytes_gives_the_bytes_of_safetensors(tmp_path, tensors, metadata):
    content = ours.save(tensors, metadata)
    assert type(content) is bytes
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in tensors.items()}
    assert content == theirs.save(native, metadata) == theirs.save(dict(reversed(native.items())), metadata)
    ours.save_file(tensors, tmp_path / "m", metadata)
    assert (tmp_path / "m").read_bytes() == content


def test_loading_from_bytes(tmp_path):
    tensors = {"a": np.zeros((2, 2)), "b": np.arange(6, dtype=np.uint8).reshape(2, 3), "c": np.asarray(False)}
    content = theirs.save(tensors)
    for loaded in map(ours.load, (content, bytearray(content), memoryview(content))):
        assert set(loaded) == set(tensors)
        for name, array in tensors.items():
            np.testing.assert_array_equal(loaded[name], array, strict=True)
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(TypeError):
        ours.load(str(tmp_path / "m"))
    with pytest.raises(TypeError, match="metadata must be a mapping"):
        ours.save(tensors, "x")
    with pytest.raises(TypeError):
        compat.TensorSpec(dtype="float32", shape=[2.5], data_ptr=0, data_len=8)
    for address, nbytes in ((1.5, 8), (0, 8.0), ("a", 8)):
        with pytest.raises(TypeError, match=r"data_(ptr|len) must be an integer"):
            compat.TensorSpec(dtype="float32", shape=[2], data_ptr=address, data_len=nbytes)
    with pytest.raises(compat.SafetensorError):
        ours.load(b"\xff" * 40)


def test_deserialize_gives_names_types_shapes_and_bytes():
    tensors = {"a": SLICED, "b": np.arange(3, dtype=np.int8), "empty": np.zeros((0, 2), np.float32)}
    content = theirs.save(tensors)
    assert dict(compat.deserialize(bytes=content)) == dict(safetensors.deserialize(bytes=content))
    assert all(type(value["data"]) is bytearray for _, value in compat.deserialize(content))
    with pytest.raises(compat.SafetensorError):
        compat.deserialize(b"")


def test_serialize_writes_memory_by_its_address(tmp_path):
    bf16 = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    arrays = {"a": SLICED, "b": bf16, "empty": np.zeros((0, 3), np.int8)}
    specs = {name: spec(array) for name, array in arrays.items()}
    other = {
        name: safetensors.TensorSpec(dtype=a.dtype.name, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, a in arrays.items()
    }
    expected = safetensors.serialize(other, {"k": "v"})
    assert compat.serialize(specs, {"k": "v"}) == expected
    compat.serialize_file(specs, tmp_path / "m", {"k": "v"})
    assert (tmp_path / "m").read_bytes() == expected
    octets = np.arange(4, dtype=np.uint8)
    packed = compat.serialize({"x": spec(octets, dtype="float4_e2m1fn_x2", shape=[2, 2])})
    assert compat.deserialize(packed) == [("x", {"dtype": "F4", "shape": [2, 4], "data": bytearray(octets.tobytes())})]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (np.s_[2:, -6], "Invalid index -6 for dimension 1 of size 5"),
        (
            np.s_[2:, 20],
            (
                "Error during slicing [2:, 20] with shape [10, 5]: "
                "index 20 out of bounds for tensor dimension #1 of size 5"
            ),
        ),
        (
            np.s_[10],
            "Error during slicing [10] with shape [10, 5]: index 10 out of bounds for tensor dimension #0 of size 10",
        ),
        (np.s_[0, 0, 0], "too many indices"),
        (np.s_[[11]], "out of bounds"),
        (np.s_["a"], "only integers"),
        (np.s_[10, np.arange(2)], "index 10 out of bounds for tensor dimension #0"),
        (np.s_[::0], "step cannot be zero"),
        (np.s_[2**63], "out of bounds"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_an_index_out_of_bounds_has_the_words_of_safetensors(tmp_path, index, words, backend):
    ours.save_file({"a": SLICED}, tmp_path / "m")
    with compat.safe_open(tmp_path / "m", "np", backend=backend) as file:
        part = file.get_slice("a")
        with pytest.raises(compat.SafetensorError) as caught:
            part[index]
    assert isinstance(caught.value, IndexError)
    assert isinstance(caught.value, ValueError)  # what torch and numpy raise for a step of 0
    assert words in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_missing_file_has_the_words_of_safetensors(tmp_path):
    """It is a FileNotFoundError with number and name, in the words of safetensors."""
    for backend in ("mmap", "pread"):
        with pytest.raises(FileNotFoundError) as caught:
            compat.safe_open("notafile", "np", backend=backend)
        assert str(caught.value) == "No such file or directory: notafile"
        assert (caught.value.errno, caught.value.filename) == (2, "notafile")
    with pytest.raises(FileNotFoundError) as other:
        safetensors.safe_open("notafile", "np")
    assert str(other.value) == str(caught.value)


@pytest.mark.parametrize("index", [np.s_[:1], np.s_[..., ::-2], np.s_[None, 1:, None], np.s_[1:, ..., :2]], ids=repr)
def test_slices_by_pread_of_every_format_are_those_of_the_mapping(index):
    """For tensors of any layout, transposed, deflated or quantised, both give the same values; pread's are writable."""
    sliced = 0
    for example in builders.examples():
        with (
            compat.safe_open(example.data, "np") as mapped,
            compat.safe_open(example.data, "np", backend="pread") as read,
        ):
            for name in mapped.keys():  # noqa: SIM118 - it is not a mapping
                one, other = mapped.get_slice(name), read.get_slice(name)
                try:
                    expected = one[index]
                except compat.SafetensorError as error:  # too few axes, or elements below the byte
                    with pytest.raises(type(error)):
                        other[index]
                    continue
                found = other[index]
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                assert found.tobytes() == expected.tobytes()
                assert found.flags.writeable
                sliced += 1
    assert sliced > 100


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("index", "most"),
    [(np.s_[100:104], 4 << 20), (np.s_[7, :2048], 8 << 10), (np.s_[::16, 1 << 17 :], 8 << 19), (np.s_[-1], 1 << 20)],
    ids=repr,
)
def test_pread_reads_the_slice_and_not_the_tensor(tmp_path, index, most):
    """The process reads the bytes of the slice, and a page for the header."""
    path = sparse(tmp_path / "m", {"a": (128, 1 << 18)})
    code = """
import sys, numpy as np
from weightmap import compat
def read():
    return int(next(line for line in open("/proc/self/io") if line.startswith("rchar")).split()[1])
with compat.safe_open(sys.argv[1], "np", backend="pread") as file:
    part = file.get_slice("a")
    part[::64, :1]  # imports what slices of any kind need
    before, again = read(), read()
    part[eval(sys.argv[2], {"slice": slice})]
    print(read() - again - (again - before))
    print(any(sys.argv[1] in line for line in open("/proc/self/maps")))
"""
    out = run_child(code, path, repr(index)).stdout.split()
    assert 0 < int(out[0]) <= most + 4096
    assert out[1] == "False"


def test_patched_holds_within_its_block_only(tmp_path):
    """Functions of safetensors under any name use ours, and so does `safe_open`, imported before the block or in it.

    The end of the block restores modules imported within it, too, and the names that the script imports there.
    """
    (tmp_path / "client.py").write_text(
        "from safetensors import safe_open\nfrom safetensors.numpy import load_file as load, save_file\n"
    )
    (tmp_path / "friend.py").write_text("from weightmap.compat import safe_open\n")
    (tmp_path / "late.py").write_text("from safetensors import safe_open\n")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, client, friend, safetensors
from weightmap import compat
from weightmap.compat import _patching
before = [dict(vars(module)) for module in (client, safetensors, safetensors.numpy)]
theirs = safetensors.safe_open
path = sys.argv[1] + "/m.safetensors"
with compat.patched():
    assert client.safe_open is compat.safe_open is safetensors.safe_open
    assert not {"safetensors.flax", "safetensors.mlx", "safetensors.tensorflow", "safetensors.torch"} & {*sys.modules}
    client.save_file({"a": np.ones(3)}, path)
    assert not client.load(path)["a"].flags.writeable
    import late
    from safetensors import safe_open
    assert late.safe_open is safe_open is compat.safe_open
    look, _patching._importers = _patching._importers, None  # a block within a block looks at no module
    with compat.patched():
        assert late.safe_open is compat.safe_open
    _patching._importers = look
    assert late.safe_open is compat.safe_open
assert before == [vars(module) for module in (client, safetensors, safetensors.numpy)]
assert client.load(path)["a"].flags.writeable
assert late.safe_open is safe_open is theirs
assert friend.safe_open is compat.safe_open is not theirs
try:
    with compat.patched(): raise KeyError
except KeyError: pass
assert safetensors.safe_open is theirs
"""
    run_child(code, tmp_path)


def test_patched_blocks_that_overlap_hold_until_the_last_one_ends():
    """As blocks of threads do."""
    code = """
import safetensors
from weightmap import compat
theirs = safetensors.safe_open
for order in (1, -1):
    blocks = [compat.patched(), compat.patched()]
    for block in blocks:
        block.__enter__()
        assert safetensors.safe_open is compat.safe_open
    for is_last, block in enumerate(blocks[::order]):
        block.__exit__(None, None, None)
        assert (safetensors.safe_open is theirs) == is_last
"""
    run_child(code)


def test_patched_needs_what_it_patches():
    code = """
import sys
import weightmap
from weightmap import compat
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "safetensors":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
try:
    with compat.patched(): raise AssertionError
except weightmap.MissingDependencyError as error:
    assert str(error) == "safetensors is needed for this: pip install safetensors", error
"""
    run_child(code)
