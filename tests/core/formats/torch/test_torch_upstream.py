"""Checkpoints that PyTorch writes, opened beside PyTorch's own loader.

`make torch-test` runs this in its own environment, with a pinned PyTorch.
"""

import argparse
import collections
import datetime as dt
import fractions
import io
import os
import pathlib
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weightmap as wm

if not os.environ.get("WEIGHTMAP_TORCH"):
    pytest.skip("opt-in: make torch-test", allow_module_level=True)
torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402 - nothing here makes sense without torch

# torch.load(weights_only=True) knows the first protocol alone.
LAYOUTS = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    "zip, protocol 5": {"pickle_protocol": 5},
    "legacy, protocol 4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}
SAFE = ("zip", "legacy")
# Types of torch, with the type of numpy that holds the same bits where numpy lacks it.
DTYPES = {
    **{name: name for name in ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")},
    **{name: name for name in ("complex64", "complex128", "uint16", "uint32", "uint64")},
    "bfloat16": "uint16",
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), "uint8"),
}
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4), (1, 1, 2, 1, 3))


def saved(value, layout):
    out = io.BytesIO()
    torch.save(value, out, **LAYOUTS[layout])
    return out.getvalue()


def leaves(value, name=""):
    """Yield the members of nested containers by the names that weightmap gives them."""
    if isinstance(value, dict | list | tuple) and not isinstance(value, torch.Tensor):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in members:
            yield from leaves(member, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def bits(tensor):
    return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def check(value, layout, verify="full"):
    """Open torch's file of a value, and compare all of it; return the number of tensors."""
    data = saved(value, layout)
    loaded = dict(leaves(torch.load(io.BytesIO(data), weights_only=layout in SAFE)))
    tensors = {name: leaf for name, leaf in loaded.items() if isinstance(leaf, torch.Tensor)}
    with wm.open(data, verify=verify) as f:
        assert f.layout == layout.partition(",")[0]
        assert list(f) == list(tensors)
        for name, tensor in tensors.items():
            array, kind = f[name], str(tensor.dtype).removeprefix("torch.")
            assert f.info(name).dtype == kind, name
            assert array.shape == tuple(tensor.shape), name
            assert np.ascontiguousarray(array).tobytes() == bits(tensor), name
            if kind == "float32":
                assert f.read(name).tobytes() == bits(tensor), name
        for name, other in tensors.items():  # tied tensors lie in the same bytes, and no others do
            first = next(iter(tensors))
            tied = other.untyped_storage().data_ptr() == tensors[first].untyped_storage().data_ptr()
            if other.numel() and tensors[first].numel() and not tied:
                assert not np.shares_memory(f[name], f[first])
        values = {name: leaf for name, leaf in loaded.items() if name not in tensors}
        shown = {name: str(v) if isinstance(v, torch.dtype | torch.device) else v for name, v in values.items()}
        assert f.metadata == shown
    return len(tensors)


def filled(dtype, shape):
    generator = torch.Generator().manual_seed(len(dtype) + sum(shape))
    kind = getattr(torch, dtype)
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (size,), dtype=torch.uint8, generator=generator)
    return raw.view(kind).reshape(shape) if size else torch.empty(shape, dtype=kind)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_type_and_shape(layout):
    # In the old layout torch cannot load its own files of types without a storage class.
    names = [
        name for name in DTYPES if "zip" in layout or not name.startswith(("uint16", "uint32", "uint64", "float8"))
    ]
    value = {f"{dtype}.{shape}": filled(dtype, shape) for dtype in names for shape in SHAPES}
    assert check(value, layout) == len(names) * len(SHAPES)
    floats = {name: torch.nn.Parameter(filled(name, (3, 5))) for name in ("float32", "float64", "bfloat16")}
    assert check(floats, layout) == len(floats)


VIEWS = {
    "transposed": lambda t: t.T,
    "expanded": lambda t: t[:1].expand(6, 8),
    "stepped": lambda t: t[::2, 1::3],
    "a column": lambda t: t[:, 3],
    "a row": lambda t: t[2],
    "an element": lambda t: t[1, 1],
    "diagonal": lambda t: t.diagonal(),
    "permuted": lambda t: t.reshape(2, 3, 8).permute(2, 0, 1),
    "channels last": lambda t: t.reshape(1, 2, 4, 6).to(memory_format=torch.channels_last),
    "the end": lambda t: t[-1, -1:],
    "nothing of it": lambda t: t[3:3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex128"])
def test_views_of_one_storage(layout, dtype):
    whole = filled(dtype, (6, 8))
    for name, view in VIEWS.items():
        assert check({name: view(whole), "whole": whole}, layout) == 2
    assert check({name: view(whole) for name, view in VIEWS.items()}, layout) == len(VIEWS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tied_tensors_share_memory(layout):
    weight = torch.randn(4, 3)
    with wm.open(saved({"in": weight, "out": weight.T, "part": weight[1:]}, layout)) as f:
        assert np.shares_memory(f["in"], f["out"])
        assert np.shares_memory(f["in"], f["part"])
        np.testing.assert_array_equal(f["in"].T, f["out"])


def model():
    """A small model with buffers, tied weights and a module that repeats."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    whole = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(40, 16), "encoder": encoder, "norm": torch.nn.BatchNorm1d(16)}
    )
    whole["head"] = torch.nn.Linear(16, 40, bias=False)
    whole["head"].weight = whole["embed"].weight
    return whole


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoints_of_training(layout):
    whole = model()
    for make in (torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW):
        options = {"momentum": 0.9} if make is torch.optim.SGD else {}
        optimizer = make(whole.parameters(), lr=1e-3, **options)
        sum(parameter.square().sum() for parameter in whole.parameters()).backward()
        optimizer.step()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        value = {"model": whole.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        value |= {"epoch": 3, "rng": torch.get_rng_state(), "loss": 0.25, "args": {"lr": 1e-3, "name": "ü", "x": None}}
        assert check(value, layout) > 40
    assert check(whole.state_dict(), layout) > 40
    assert check(torch.randn(3), layout) == 1
    assert check([torch.randn(3), (torch.randn(2), {"a": torch.zeros(1)})], layout) == 3


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from([name for name in DTYPES if not name.startswith(("uint", "float8"))]).map(
        lambda name: filled(name, (2, 3)).T
    ),
    st.sampled_from([torch.float16, torch.device("cpu"), torch.device("cuda", 1)]),
)
KEYS = st.text("abcxyz_", min_size=1, max_size=6)
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(collections.OrderedDict),
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, OBJECTS, max_size=5), st.sampled_from(list(LAYOUTS)))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_object(value, layout):
    check(value, layout)


class Runs:
    """Runs a function if somebody trusts the pickle."""

    def __init__(self, function, *args):
        self._made = function, args

    def __reduce__(self):
        return self._made


REFUSED = {
    "a function of the system": lambda: Runs(os.system, "true"),
    "eval": lambda: Runs(eval, "1"),
    "exec": lambda: Runs(exec, "pass"),
    "getattr": lambda: Runs(getattr, 1, "real"),
    "a module": model,
    "a part of a module": lambda: torch.nn.Linear(2, 3),
    "a date": lambda: dt.datetime(2026, 11, 22, tzinfo=dt.UTC),
    "a fraction": lambda: fractions.Fraction(1, 3),
    "a slice": lambda: slice(1, 2),
    "a class": lambda: dt.date,
}


@pytest.mark.parametrize("layout", SAFE)
@pytest.mark.parametrize("name", REFUSED)
def test_what_weights_only_refuses(layout, name):
    """Objects that torch.load refuses by a name are refused here by the same name."""
    data = saved({"weight": torch.zeros(2), "thing": REFUSED[name]()}, layout)
    with pytest.raises(Exception, match=r"(?i)weights.only") as theirs:
        torch.load(io.BytesIO(data), weights_only=True)
    with pytest.raises(wm.UnsupportedError) as ours:
        wm.open(data)
    shown = re.search(r"GLOBAL (\S+)", str(theirs.value))
    assert shown is not None, theirs.value
    assert shown[1].strip("`.") in str(ours.value)


# Objects beside tensors, and weightmap's values for them.
BESIDE = {
    "a set": (lambda: {1, 2}, {"x.0": 1, "x.1": 2}),
    "a frozen set": (lambda: frozenset({"a"}), {"x.0": "a"}),
    "keys": (lambda: {(1, "a"): 2, None: 3, True: 4}, {"x.(1, a)": 2, "x.None": 3, "x.True": 4}),
    "a default": (lambda: collections.defaultdict(list, {"a": [1]}), {"x.a.0": 1}),
    "a counter": (lambda: collections.Counter("aab"), {"x.a": 2, "x.b": 1}),
    "an array": (lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)), {"x": np.arange(6.0).reshape(2, 3)}),
    "an array of one": (lambda: np.array(-3), {"x": np.array(-3)}),
    "two arrays of one type": (lambda: [np.ones(2), np.zeros(0)], {"x.0": np.ones(2), "x.1": np.zeros(0)}),
    "a path": (lambda: pathlib.PurePosixPath("/a/b"), {"x": "/a/b"}),
    "a path on Windows": (lambda: pathlib.PureWindowsPath("C:/a"), {"x": "C:\\a"}),
    "a namespace": (lambda: argparse.Namespace(lr=0.5, n=(1, 2)), {"x.lr": 0.5, "x.n.0": 1, "x.n.1": 2}),
    "a complex number": (lambda: 1 + 2j, {"x": 1 + 2j}),
    "bytes": (lambda: [b"", b"a\xff", bytearray(b"a")], {"x.0": b"", "x.1": b"a\xff", "x.2": b"a"}),
    "a layout": (lambda: torch.sparse_coo, {"x": "torch.sparse_coo"}),
    "a scalar of numpy": (lambda: [np.float32(1.5), np.bool_(True)], {"x.0": 1.5, "x.1": True}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BESIDE)
def test_what_there_is_beside_tensors(layout, name):
    make, wanted = BESIDE[name]
    with wm.open(saved({"x": make(), "weight": torch.ones(2)}, layout)) as f:
        assert (list(f), list(f.metadata)) == (["weight"], list(wanted))
        for key, value in wanted.items():
            np.testing.assert_array_equal(f.metadata[key], value)
            assert getattr(f.metadata[key], "dtype", None) == getattr(value, "dtype", None)


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


# Tensors that are not views of a storage, and words of the warning.
LEFT = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "a sparse tensor (save tensor.to_dense())"),
    "sparse in rows": (lambda: torch.eye(3).to_sparse_csr(), "a sparse tensor"),
    "without data": (lambda: torch.empty(3, device="meta"), "a tensor without data"),
    "nested": (nested, "a nested tensor"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantised by torch"),
    "a conjugate view": (lambda: torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj()"),
    "a negative view": (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, "resolve_neg()"),
    "complex32": (lambda: torch.ones(2).to(torch.complex32), "a type that numpy lacks"),
    "a storage": (lambda: torch.ones(3).untyped_storage(), "a storage by itself"),
    "a storage with a type": (lambda: torch.ones(3).storage(), "a storage by itself"),
    "a module": (lambda: torch.nn.Linear(2, 3), "(save model.state_dict())"),
    "a date": (lambda: dt.datetime(2026, 11, 22, tzinfo=dt.UTC), "needs 'datetime.datetime'"),
    "an array of texts": (lambda: np.array(["a", "b"]), "it is of numpy's type 'U1'"),
    "an array of objects": (lambda: np.array([None], object), "other things than little-endian numbers"),
    "an array of records": (lambda: np.zeros(2, [("a", "f4")]), "other things than little-endian numbers"),
    "a date of numpy": (lambda: np.datetime64("2026-11-30"), "other things than little-endian numbers"),
    "an array of dates": (lambda: np.zeros(2, "M8[s]"), "other things than little-endian numbers"),
    "a big-endian array": (lambda: np.ones(2, ">f4"), "other things than little-endian"),
    "a key": (lambda: {0.5: 1}, "it has a key that is not a text"),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:Sparse CSR")
@pytest.mark.filterwarnings("ignore:.*quantize", "ignore:ComplexHalf")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_out(layout, name):
    """It hides nothing that lies beside it, before or behind it."""
    make, message = LEFT[name]
    weight = torch.arange(6.0).reshape(2, 3)
    if "legacy" in layout and name == "complex32":
        pytest.skip("torch does not save it so")
    data = saved({"a": weight.T, "x": make(), "b": {"c": weight[1], "n": 1}}, layout)
    with pytest.raises(wm.UnsupportedError, match=r"strict=False\) leaves it out"):
        dict(wm.open(data).metadata)
    with wm.open(data, strict=False) as f:
        assert (list(f), f.metadata) == (["a", "b.c"], {"b.n": 1})
        np.testing.assert_array_equal(f["a"], weight.T)
        np.testing.assert_array_equal(f["b.c"], weight[1])
        found = [warning for warning in f.verify().warnings if "left out" in warning]
        assert len(found) == 1
        assert message in found[0]
        assert "'x'" in found[0]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_ranks_save_is_refused_with_a_command_that_works(tmp_path):
    """Neither a folder of torch.distributed.checkpoint nor a file of it opens; the error's command makes one file."""
    state = {"model": {"w": torch.arange(6.0), "s": torch.ones(2, 3)}, "epoch": 3}
    folder, made = tmp_path / "folder", tmp_path / "made.pt"
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    for path in (folder, *folder.iterdir()):
        with pytest.raises(wm.FormatError, match=r"run python -m (\S+) dcp_to_torch FOLDER FILE.pt") as caught:
            wm.open(path)
    program = re.search(r"python -m (\S+)", str(caught.value))
    assert program is not None
    subprocess.run([sys.executable, "-m", program[1], "dcp_to_torch", folder, made], check=True, capture_output=True)
    with wm.open(made) as f:
        assert (list(f), f.metadata) == (["model.w", "model.s"], {"epoch": 3})
        np.testing.assert_array_equal(f["model.w"], state["model"]["w"])
