"""An ONNX model with tensors in a second file: everything that walks bytes walks both."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.builders import onnx, tensor
from tests.device_support import FakeDevice

import weightmap as wm
from weightmap.core.model.internals import sources_of
from weightmap.device import Staging, load

AT = 4096
INLINE = np.arange(1024, dtype="<f4")
BESIDE = {"a": np.arange(2048, dtype="<f4").reshape(32, 64) + 0.5, "c": -np.arange(600, dtype="<f4").reshape(20, 30)}
WANT = {"a": BESIDE["a"], "b": INLINE, "c": BESIDE["c"]}
WAYS = ("map", "read")


def apart(name, offset, location="m.data"):
    dims = b"".join(onnx.field(1, dim) for dim in BESIDE[name].shape)
    where = onnx.external(location=location, offset=offset, length=BESIDE[name].nbytes)
    return dims + onnx.field(2, 1) + onnx.field(8, name.encode()) + where


def lay(path, location="m.data"):
    inner = onnx.tensor_proto("b", tensor(INLINE))
    path.write_bytes(onnx.model([apart("a", AT, location), inner, apart("c", AT + 8192, location)]))
    return path


@pytest.fixture
def model(tmp_path):
    (tmp_path / "m.data").write_bytes(bytes(AT) + BESIDE["a"].tobytes() + BESIDE["c"].tobytes())
    return lay(tmp_path / "m.onnx")


def _equal(found):
    return list(found) == list(WANT) and all(np.array_equal(found[name], WANT[name]) for name in WANT)


def test_tensors_are_those_of_both_files(model, tmp_path):
    sizes = [(tmp_path / name).stat().st_size for name in ("m.onnx", "m.data")]
    with wm.open(model) as f:
        assert _equal({name: f[name] for name in f})
        assert _equal(dict(f.items()))
        assert _equal({name: f.read(name) for name in f})
        assert [f.info(name).offset for name in "ac"] == [AT, AT + 8192]
        assert f.nbytes == sum(sizes)
        report = f.verify()
        assert report.nbytes == sum(sizes)
        f.prefetch()
        f.prefetch("a")
        plan = wm.plan(f, gap=0)
        assert plan.nbytes == plan.wanted_nbytes == sum(tensor.nbytes for tensor in WANT.values())
        assert {Path(str(path)).name for path, _, _ in plan.reads} == {"m.onnx", "m.data"}
        assert plan.warm() <= plan.nbytes
        for how in WAYS:
            found = dict(plan.run(how))
            assert _equal({name: found[name] for name in WANT})
            for key in (np.s_[3], np.s_[::-2], np.s_[2:5]):
                parts = dict(wm.plan(f, dict.fromkeys(WANT, key)).run(how))
                assert all(np.array_equal(parts[name], WANT[name][key]) for name in WANT)
        device = dict(load(plan, FakeDevice(), staging=Staging(slots=2, slot_bytes=1 << 16)))
        assert all(
            np.array_equal(np.asarray(device[name]).view("<f4").reshape(WANT[name].shape), WANT[name]) for name in WANT
        )
    wm.convert(model, tmp_path / "m.safetensors")
    assert wm.diff(model, tmp_path / "m.safetensors").equal


def test_pages_of_both_files_are_counted_and_given_back(model):
    """`residency` and `release` have every byte of every tensor."""
    with wm.open(model) as f:
        _ = [f.read(name) for name in f]
        there = f.residency()
        assert {name: found.nbytes for name, found in there.items()} == {name: WANT[name].nbytes for name in WANT}
        assert all(found.resident == found.nbytes for found in there.values())
        assert 0 <= f.release() <= sum(found.nbytes for found in there.values())
        assert _equal(dict(f.items()))


USES = {
    "a look-up": lambda f: f["a"],
    "all": lambda f: dict(f.items()),
    "reading": lambda f: f.read("c"),
    "a plan": lambda f: wm.plan(f, ["a"]),
    "residency": lambda f: f.residency("a"),
    "release": lambda f: f.release("a"),
    "verify": lambda f: f.verify(),
    "a copy": lambda f: pickle.loads(pickle.dumps(f)),
}


@pytest.mark.parametrize("use", USES)
def test_a_second_file_that_changed_is_an_error(use, model):
    side = model.with_name("m.data")
    with wm.open(model) as f:
        with pickle.loads(pickle.dumps(f)) as copy:
            assert np.array_equal(copy["a"], WANT["a"])
        os.utime(side, ns=(1, 1))
        with pytest.raises(wm.FileChangedError, match=r"m\.data"):
            USES[use](f)
        assert np.array_equal(f["b"], WANT["b"])


@pytest.mark.parametrize("mode", ["mmap", "cow", "copy", "sealed"])
def test_both_files_are_opened_in_one_mode(mode, model):
    if mode == "sealed" and not hasattr(os, "memfd_create"):
        pytest.skip("needs Linux")
    f = wm.open(model, mode=mode)
    assert f.is_stable == (mode in ("copy", "sealed"))
    assert f["a"].flags.writeable == f["b"].flags.writeable == (mode in ("cow", "copy"))
    if mode in ("copy", "sealed"):
        model.with_name("m.data").write_bytes(b"other")
    assert _equal(dict(f.items()))
    with pytest.raises(OSError, match="only a single file"):
        f.fileno()
    f.close()
    assert all(source.closed for source in sources_of(f))
    with pytest.raises(wm.ClosedError):
        f["a"]


def test_a_copy_of_a_second_file_is_within_the_limit(model):
    with pytest.raises(wm.LimitError, match=r"m\.data"):
        wm.open(model, mode="copy", limits=wm.Limits(max_copy_bytes=10_000))


def test_a_second_file_that_ends_early_is_an_error(model):
    side = model.with_name("m.data")
    side.write_bytes(side.read_bytes()[:-1])
    with pytest.raises(wm.TruncatedError, match=r"m\.data"):
        wm.open(model)


def test_no_file_of_a_model_is_a_target(model):
    """Converting a model over its second file would lose it."""
    os.link(model.with_name("m.data"), model.with_name("m.safetensors"))
    with pytest.raises(wm.TargetError, match="input"):
        wm.convert(model, model.with_name("m.safetensors"))


@pytest.mark.parametrize("name", ["./m.data", "a/../m.data", ".//./m.data"])
def test_parts_of_a_name_that_say_nothing(name, model):
    with wm.open(lay(model, name)) as f:
        assert _equal(dict(f.items()))


def test_a_loop_of_links_beside_a_file_is_an_error_of_the_file(model):
    model.with_name("loop").symlink_to("loop")
    with pytest.raises(wm.LayoutError, match="'loop', in which tensors lie, is not a regular file"):
        wm.open(lay(model, "loop"))


@pytest.mark.parametrize("name", ["../m.data", "/m.data", "a/../../m.data", "", "link", "gone", "c:m.data", "./"])
def test_names_that_lead_elsewhere(name, model):
    """A file lies below the directory of the file that names it, links included, or it is an error."""
    (model.parent.parent / "m.data").write_bytes(bytes(1 << 16))
    model.with_name("link").symlink_to(model.parent.parent / "m.data")
    with pytest.raises(wm.LayoutError) as caught:
        wm.open(lay(model, name))
    assert caught.value.field == "location"


def test_a_cache_of_links(model, tmp_path):
    """Model hubs keep files elsewhere and link both of them."""
    blobs, view = tmp_path / "blobs", tmp_path / "view"
    blobs.mkdir()
    view.mkdir()
    for name in ("m.onnx", "m.data"):
        (tmp_path / name).rename(blobs / name)
        (view / name).symlink_to(blobs / name)
    with wm.open(view / "m.onnx") as f:
        assert _equal(dict(f.items()))


def test_a_model_without_a_path_has_no_files_beside_it(model):
    with pytest.raises(wm.UnsupportedError, match="by its path"):
        wm.open(model.read_bytes())
