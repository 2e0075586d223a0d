"""The drop-in for safetensors, held against safetensors itself on the same files."""

import json
import pickle

import ml_dtypes
import numpy as np
import pytest
from tests.builders import safetensors as st

import weightmap as wm
from weightmap import compat
from weightmap.compat import _reading

safetensors = pytest.importorskip("safetensors")
theirs_numpy = pytest.importorskip("safetensors.numpy")

RNG = np.random.default_rng(7)

# Of these, safetensors' numpy side reads the first group only.
PLAIN = dict(
    zip(
        ["F64", "F32", "F16", "I64", "U64", "I32", "U32", "I16", "U16", "I8", "U8", "BOOL", "C64"],
        map(np.dtype, ["f8", "f4", "f2", "i8", "u8", "i4", "u4", "i2", "u2", "i1", "u1", "?", "c8"]),
        strict=True,
    )
)
EXTENDED = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


def write(path, tensors, metadata=None):
    """Write {name: (dtype code, shape, bytes)} as safetensors, in this order, without either library."""
    head, end = ({} if metadata is None else {"__metadata__": metadata}), 0
    for name, (code, shape, data) in tensors.items():
        head[name] = st.entry(code, list(shape), end, end + len(data))
        end += len(data)
    text = json.dumps(head).encode()
    path.write_bytes(st.raw(text + b" " * (-len(text) % 8), b"".join(data for _, _, data in tensors.values())))
    return path


def entry(code, array):
    return code, array.shape, array.tobytes()


@pytest.fixture
def mixed(tmp_path):
    tensors = {}
    for i, (code, dtype) in enumerate(reversed(PLAIN.items())):
        values = RNG.integers(0, 2, (3, i + 1)) if code == "BOOL" else RNG.integers(0, 100, (3, i + 1))
        tensors[f"t.{code}"] = entry(code, values.astype(dtype))
    tensors["scalar"] = entry("F32", np.array(2.5, np.float32))
    tensors["empty"] = entry("F32", np.zeros((0, 4), np.float32))
    tensors["Größe"] = entry("I8", np.arange(5, dtype=np.int8))
    return write(tmp_path / "mixed.safetensors", tensors, {"one": "1", "two": "zwei"})


@pytest.fixture
def matrix(tmp_path):
    values = np.arange(120, dtype=np.float32).reshape(5, 4, 6)
    path = tmp_path / "matrix.safetensors"
    write(path, {"a": entry("F32", values), "s": entry("F32", np.array(1.5, np.float32))})
    return path, values


def test_keys_types_shapes_and_values_agree(mixed):
    loaded = compat.load_file(mixed)
    with compat.safe_open(mixed, framework="np") as ours, safetensors.safe_open(mixed, framework="np") as theirs:
        assert ours.keys() == theirs.keys()
        assert isinstance(ours.keys(), list)
        assert [n for n in ours.offset_keys() if n != "empty"] == [n for n in theirs.offset_keys() if n != "empty"]
        assert sorted(ours.offset_keys()) == ours.keys()
        assert list(loaded) == list(ours.get_tensors()) == ours.offset_keys()
        assert ours.metadata() == theirs.metadata() == {"one": "1", "two": "zwei"}
        for name in theirs.keys():  # noqa: SIM118 - a method here, not a mapping
            expected, got = theirs.get_tensor(name), ours.get_tensor(name)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            assert got.tobytes() == expected.tobytes()
            np.testing.assert_array_equal(loaded[name], expected, strict=True)
            mine, other = ours.get_slice(name), theirs.get_slice(name)
            assert (mine.get_dtype(), mine.get_shape()) == (other.get_dtype(), other.get_shape())


@pytest.mark.parametrize("code", EXTENDED)
def test_types_that_numpy_lacks(tmp_path, code):
    """bfloat16 and float8 come as types of ml_dtypes, under the type string that safetensors uses."""
    raw = np.arange(24, dtype=np.uint8)
    values = raw.view(EXTENDED[code])
    path = write(tmp_path / "x.safetensors", {"x": entry(code, values)})
    with compat.safe_open(path, "np") as ours, safetensors.safe_open(path, "np") as theirs:
        assert ours.get_slice("x").get_dtype() == theirs.get_slice("x").get_dtype() == code
        got = ours.get_tensor("x")
        assert got.dtype == EXTENDED[code]
        assert got.tobytes() == raw.tobytes()
        assert ours.get_slice("x")[2:5].tobytes() == values[2:5].tobytes()


@pytest.mark.parametrize("metadata", [None, {}, {"k": "v"}])
def test_metadata_that_is_empty_is_not_none(tmp_path, metadata):
    path = write(tmp_path / "x.safetensors", {"x": entry("I8", np.zeros(1, np.int8))}, metadata)
    with compat.safe_open(path, "np") as ours:
        assert ours.metadata() == metadata
    compat.save_file({"x": np.zeros(1, np.int8)}, path, metadata)
    with compat.safe_open(path, "np") as ours, safetensors.safe_open(path, "np") as theirs:
        assert ours.metadata() == theirs.metadata() == metadata


def test_what_writers_add_to_a_header_changes_nothing(tmp_path):
    """mlx writes null for no metadata, others pad with newlines; either is a file without metadata."""
    header = b'{"__metadata__":null,"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}\r\n\t '
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\1\2")
    with wm.open(path) as f, compat.safe_open(path, "np") as ours, safetensors.safe_open(path, "np") as theirs:
        assert (f["a"].tolist(), f.metadata, f.verify().warnings) == ([1, 2], {}, ())
        assert ours.metadata() is theirs.metadata() is None


def test_arrays_are_views_that_outlive_the_handle(matrix):
    path, values = matrix
    with compat.safe_open(path, "np") as file:
        whole, part = file.get_tensor("a"), file.get_slice("a")[1:3, ::2]
        assert np.shares_memory(whole, file.get_tensor("a"))
        assert np.shares_memory(whole, part)
    assert not any((whole.flags.writeable, part.flags.writeable, whole.flags.owndata))
    np.testing.assert_array_equal(whole, values)
    np.testing.assert_array_equal(part, values[1:3, ::2])


def test_errors_are_those_of_safetensors_in_kind(matrix, tmp_path):
    path, _ = matrix
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 40)
    cases = [
        lambda module: module.safe_open(path, "np").get_tensor("nope"),
        lambda module: module.safe_open(path, "np").get_slice("nope"),
        lambda module: module.safe_open(path, "cobol"),
        lambda module: module.safe_open(path, "np", device="cuda"),
        lambda module: module.safe_open(path, "np", backend="carrier pigeon"),
        lambda module: module.safe_open(broken, "np"),
    ]
    for case in cases:
        with pytest.raises(safetensors.SafetensorError):
            case(safetensors)
        with pytest.raises(compat.SafetensorError) as caught:
            case(compat)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with compat.safe_open(path, "np") as file, pytest.raises(KeyError):
        file.get_tensor("nope")


def test_a_closed_handle_says_so(matrix):
    with compat.safe_open(matrix[0], "np") as file:
        part = file.get_slice("a")
    for use in (file.keys, file.offset_keys, file.metadata, file.get_tensors, lambda: file.get_tensor("a")):
        with pytest.raises(wm.errors.ClosedError):
            use()
    np.testing.assert_array_equal(part[0], matrix[1][0])  # a slice keeps the file, as there


def test_a_file_that_another_thread_closes(tmp_path, monkeypatch):
    """A request made before is still answered."""
    wm.save(tmp_path / "m.safetensors", {"w": np.arange(6.0)})
    file = compat.safe_open(tmp_path / "m.safetensors", framework="np")
    real = _reading.OpenedFile.check
    monkeypatch.setattr(_reading.OpenedFile, "check", lambda *given: (real(*given), file.__exit__(None, None, None)))
    assert file.get_tensor("w").tolist() == [*range(6)]
    with pytest.raises(wm.errors.ClosedError):
        file.get_tensor("w")


def test_what_save_file_writes_safetensors_reads(tmp_path):
    path = tmp_path / "ours.safetensors"
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {code: np.arange(6).astype(dtype).reshape(2, 3) for code, dtype in PLAIN.items()}
    arrays |= {"f": np.asfortranarray(base), "strided": base[::2, ::-1], "big": base.astype(">f4")}
    arrays |= {"scalar": np.array(1, np.int32), "empty": np.zeros((0, 2), np.int16)}
    with pytest.raises(wm.errors.EncodeError, match="wrong"):
        compat.save_file({"wrong": [1, 2]}, path)
    assert not path.exists()
    compat.save_file(arrays, path, metadata={"k": "v"})
    read = theirs_numpy.load_file(path)
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype.newbyteorder("=")
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"k": "v"}


@pytest.mark.parametrize("scheme", ["int8", "int4", "int5_block"])
def test_a_quantised_tensor_has_the_type_that_it_is_decoded_to(tmp_path, scheme):
    """F32, also for the scheme with a type's name; whole, in part and deserialised."""
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    wm.save(tmp_path / "m.amb", {"q": wm.quantize(values, scheme), "d": np.ones((2, 32), np.int8)})
    with compat.safe_open(tmp_path / "m.amb", "np") as file:
        assert [file.get_slice(name).get_dtype() for name in "qd"] == ["F32", "I8"]
        assert [file.get_tensor(name).dtype for name in "qd"] == [np.float32, np.int8]
        assert [file.get_slice(name)[:1].dtype for name in "qd"] == [np.float32, np.int8]
    found = dict(compat.deserialize((tmp_path / "m.amb").read_bytes()))
    assert [(found[name]["dtype"], len(found[name]["data"])) for name in "qd"] == [("F32", 256), ("I8", 64)]


@pytest.mark.parametrize(("code", "nbytes"), [("F4", 16), ("F6_E2M3", 24), ("F6_E3M2", 24)])
def test_types_below_a_byte_are_bytes(tmp_path, code, nbytes):
    """Packed elements are listed as safetensors lists them, come as bytes, and spoil nothing beside them."""
    data = bytes(range(nbytes))
    path = write(tmp_path / "x.safetensors", {"x": (code, (4, 8), data), "y": entry("I8", np.arange(3, dtype=np.int8))})
    with compat.safe_open(path, "np") as ours, safetensors.safe_open(path, "np") as theirs:
        mine, other = ours.get_slice("x"), theirs.get_slice("x")
        assert (mine.get_dtype(), mine.get_shape()) == (other.get_dtype(), other.get_shape()) == (code, [4, 8])
        for array in (ours.get_tensor("x"), mine[...], mine[:], mine[:, :]):
            assert (array.dtype, array.tobytes()) == (np.uint8, data)
        for part in (np.s_[1:], np.s_[0], np.s_[:, ::2], np.array([True, False, True, False])):
            with pytest.raises(wm.UnsupportedError, match="get_tensor gives their bytes"):
                mine[part]
    assert {name: array.tobytes() for name, array in compat.load_file(path).items()} == {"x": data, "y": b"\0\1\2"}


def test_shards_are_one_model(tmp_path):
    a, b = np.arange(4, dtype=np.float32), np.arange(3, dtype=np.int8)
    write(tmp_path / "1.safetensors", {"z": entry("F32", a)})
    write(tmp_path / "2.safetensors", {"a": entry("I8", b)})
    index = {"metadata": {"total_size": 19}, "weight_map": {"z": "1.safetensors", "a": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with compat.safe_open(tmp_path, "np") as file:
        assert file.keys() == ["a", "z"]
        assert file.offset_keys() == ["z", "a"]
        np.testing.assert_array_equal(file.get_tensor("z"), a)
        assert file.metadata() == {"total_size": "19"}
