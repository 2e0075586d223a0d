"""`weightmap.dlpack.export`: the protocol, read through the structs of dlpack.h and by numpy, torch and jax."""

import ctypes
import gc
import importlib.util
import weakref

import ml_dtypes
import numpy as np
import pytest
from tests.support import address, in_one_item, mappings, run_child

import weightmap as wm
from weightmap.dlpack import export

# (code, bits) of dlpack.h by the name of the type.
CODES = {
    "bool": (6, 8), "uint8": (1, 8), "int8": (0, 8), "uint16": (1, 16), "int16": (0, 16), "float16": (2, 16),
    "bfloat16": (4, 16), "uint32": (1, 32), "int32": (0, 32), "float32": (2, 32), "uint64": (1, 64), "int64": (0, 64),
    "float64": (2, 64), "complex64": (5, 64), "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
}  # fmt: skip


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Legacy(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]


def look(capsule, *, versioned):
    """The struct in a capsule; it lives as long as the capsule."""
    name, kind = (b"dltensor_versioned", Versioned) if versioned else (b"dltensor", Legacy)
    return kind.from_address(_pointer(capsule, name))


def read(tensor):
    n = tensor.ndim
    return tensor.data, tuple(tensor.shape[:n]), tuple(tensor.strides[:n]), (tensor.code, tensor.bits, tensor.lanes)


@pytest.mark.parametrize("name", CODES)
@in_one_item("version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_structs_say_what_the_array_is(name, version):
    array = np.zeros((3, 4, 5), getattr(ml_dtypes, name, name))[1:, ::-2, 1:]
    assert export(array).__dlpack_device__() == (1, 0)
    capsule = export(array).__dlpack__(max_version=version)
    versioned = version is not None and version >= (1, 0)
    managed = look(capsule, versioned=versioned)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    assert read(managed.tensor) == (address(array), array.shape, strides, (*CODES[name], 1))
    assert (managed.tensor.device_type, managed.tensor.device_id, managed.tensor.byte_offset) == (1, 0, 0)
    if versioned:
        assert (managed.major, managed.flags) == (1, 0)


@pytest.fixture
def path(tmp_path):
    wm.save(
        tmp_path / "m.weights",
        {"w": np.arange(24, dtype=np.float32).reshape(4, 6), "b": np.arange(4).astype(ml_dtypes.bfloat16)},
    )
    return tmp_path / "m.weights"


def test_read_only_memory_is_flagged_or_copied(path):
    """Consumers that know version 1 get the memory and a flag, others a copy, and with copy=False an error."""
    with wm.open(path) as file:
        array = file["w"]
    managed = look(capsule := export(array).__dlpack__(max_version=(1, 0)), versioned=True)
    assert (managed.tensor.data, managed.flags) == (address(array), 1)
    managed = look(capsule := export(array).__dlpack__(), versioned=False)
    copy = np.frombuffer((ctypes.c_char * array.nbytes).from_address(managed.tensor.data), np.float32)
    assert managed.tensor.data != address(array)
    assert copy.tobytes() == array.tobytes()
    with pytest.raises(BufferError, match="read-only"):
        export(array).__dlpack__(copy=False)
    del capsule
    with wm.open(path, mode="cow") as file:
        array = file["w"]
    managed = look(_ := export(array).__dlpack__(copy=False), versioned=False)
    assert managed.tensor.data == address(array)


def test_what_dlpack_lacks_is_refused():
    for dtype in ("M8[s]", "U3", ml_dtypes.int4, np.clongdouble):
        array = np.zeros(2, dtype)
        with pytest.raises(wm.UnsupportedError, match="DLPack"):
            export(array)
    with pytest.raises(BufferError, match="device"):
        export(np.zeros(2)).__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        export(np.zeros(2)).__dlpack__(stream=1)


def test_the_mapping_lives_until_the_last_consumer(path):
    """A capsule that nobody takes, and one whose consumer calls its deleter once, each let go of the array then."""
    for versioned, version, name in ((False, None, b"used_dltensor"), (True, (1, 0), b"used_dltensor_versioned")):
        with wm.open(path, mode="cow") as file:
            array = file["w"]
        gone = weakref.ref(array)
        taken, left = (export(array).__dlpack__(max_version=version) for _ in range(2))
        managed = look(taken, versioned=versioned)
        where = ctypes.addressof(managed)
        _rename(taken, name)
        del array, file, left, taken
        gc.collect()
        assert gone() is not None
        assert mappings(path)
        managed.deleter(where)
        assert gone() is None
        assert not mappings(path)


def test_numpy_shares_the_memory(path):
    for mode in ("mmap", "cow"):
        with wm.open(path, mode=mode) as file:
            array = file["w"]
        shared = np.from_dlpack(export(array))
        assert np.shares_memory(shared, array)
        assert shared.flags.writeable == (mode == "cow")
        del array, file
        assert shared.tolist() == np.arange(24).reshape(4, 6).tolist()
        assert not np.shares_memory(np.from_dlpack(export(shared), copy=True), shared)
    q = wm.quantize(np.ones((2, 32), np.float32), "int8")
    np.testing.assert_array_equal(np.from_dlpack(export(q)), np.asarray(q))


def test_exporting_imports_no_framework(path):
    code = "import sys, weightmap as wm, numpy as np; from weightmap.dlpack import export\n"
    code += "np.from_dlpack(export(wm.open(sys.argv[1])['w'])); assert not {'torch', 'jax'} & set(sys.modules)"
    run_child(code, path)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("name", CODES)
def test_torch_never_writes_to_read_only_memory(tmp_path, name):
    """torch disregards the flag: it gets a copy, an error with copy=False, and the memory itself in mode "cow"."""
    import torch

    values = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name, name))
    wm.save(tmp_path / "m.safetensors", {"w": values})
    for mode in ("mmap", "cow"):
        with wm.open(tmp_path / "m.safetensors", mode=mode) as file:
            array = file["w"]
        for take in (torch.from_dlpack, torch.utils.dlpack.from_dlpack):
            tensor = take(export(array))
            assert tensor.dtype == getattr(torch, name)
            assert (tensor.data_ptr() == address(array)) == (mode == "cow")
            assert tensor.view(torch.uint8).numpy().tobytes() == array.tobytes()
            tensor.view(torch.uint8).zero_()
        if mode == "mmap":
            assert array.tobytes() == values.tobytes()
            with pytest.raises(BufferError, match='mode="cow"'):
                torch.from_dlpack(export(array), copy=False)
            torch.from_dlpack(export(array).__dlpack__()).view(torch.uint8).zero_()
        assert torch.from_dlpack(export(array), copy=True).data_ptr() != address(array)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_torch_gets_a_copy_of_reversed_arrays(path):
    """A negative stride ends the process, which nobody can catch."""
    code = "import sys, torch, weightmap as wm; from weightmap.dlpack import export\n"
    code += "a = wm.open(sys.argv[1], mode='cow')['w'][::-1, ::-2]\n"
    code += "assert a.tolist() == torch.from_dlpack(export(a)).tolist()"
    run_child(code, path)
    with pytest.raises(BufferError, match="negative stride"):
        importlib.import_module("torch").from_dlpack(export(np.zeros(3)[::-1]), copy=False)
