"""Functions that take a model take a source of `open`, an open handle or `f.weights`; a handle stays open."""

import pickle

import numpy as np
import pytest
from tests.device_support import FakeDevice
from tests.places import ROOT
from tests.remote.servers import Objects, Server

import weightmap as wm
from weightmap.report.survey import survey

QUANTISED = ROOT / "tests" / "checkpoints" / "groundtruth" / "awq_shards"
TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float32)}


def published(model, folder):
    return wm.deltas.publish(model, model, folder / "versions", version=1)


USES = {
    "convert": lambda model, folder: wm.convert(model, folder / "copy.safetensors"),
    "diff": lambda model, _: wm.diff(model, model).equal,
    "verify": lambda model, _: wm.verify(model),
    "load": lambda model, _: wm.load(model),
    "save": lambda model, folder: wm.save(folder / "saved.safetensors", model),
    "plan": lambda model, _: dict(wm.plan(model).run()),
    "publish": published,
    "device": lambda model, _: dict(wm.device.load(model, FakeDevice())),
}


@pytest.fixture(params=["path", "directory", "handle", "shards", "handle on a directory", "address", "object"])
def model(request, tmp_path):
    """A model as each function takes it."""
    path, folder = tmp_path / "model.safetensors", tmp_path / "model"
    wm.save(path, TENSORS)
    folder.mkdir()
    wm.save(f"{folder}/", TENSORS, format="safetensors", max_shard_size=24)
    objects = Objects({"model.safetensors": path.read_bytes()})
    with Server(objects) as server:
        url = f"{server.url}model.safetensors"
        yield {
            "path": lambda: path,
            "directory": lambda: folder,
            "handle": lambda: wm.open(path),
            "shards": lambda: wm.open(folder / "model.safetensors.index.json"),
            "handle on a directory": lambda: wm.open(folder),
            "address": lambda: url,
            "object": lambda: wm.open(url),
        }[request.param]()


@pytest.mark.parametrize("use", USES)
def test_a_model_in_every_form(model, use, tmp_path):
    USES[use](model, tmp_path)
    if isinstance(model, wm.TensorFile):
        (tmp_path / "again").mkdir()
        USES[use](model.weights, tmp_path / "again")
        np.testing.assert_array_equal(model["a"], TENSORS["a"])  # it is still open
        model.close()
        with pytest.raises(wm.ClosedError):
            USES[use](model, tmp_path / "closed")


@pytest.mark.parametrize("use", ["diff", "verify", "load", "plan", "convert", "device"])
def test_parameters_of_a_quantised_model(use, tmp_path):
    with wm.open(QUANTISED) as file:
        USES[use](file.weights, tmp_path)
        assert len(dict(file)) > len(dict(file.weights))


def test_a_report_shows_parameters_and_where_they_are_stored():
    with wm.open(QUANTISED) as file:
        surveyed = survey(file.weights, verify=True, progress=None)
        assert [tensor.info for tensor in surveyed.tensors] == file.weights.infos()
        assert [stored.info for stored in surveyed.stored] == file.infos()


def test_weights_are_a_handle(tmp_path):
    with wm.open(QUANTISED) as file:
        weights = file.weights
        assert isinstance(weights, wm.TensorFile)
        assert weights is file.weights is weights.weights
        assert (weights.path, weights.metadata) == (file.path, file.metadata)
        (quantised, *_) = [name for name, value in weights.items() if isinstance(value, wm.QuantizedTensor)]
        info = weights.info(quantised)
        assert (info.dtype, info.shape) == (weights[quantised].scheme, weights[quantised].shape)
        assert info in weights.infos()
        assert info.nbytes == sum(piece.nbytes for piece in weights[quantised].pieces.values())
        for dtype in (np.float32, "bfloat16", np.float64):
            np.testing.assert_array_equal(weights.read(quantised, dtype), weights[quantised].dequantize(dtype))
        assert weights.verify().checks[-1] == f"{len(weights)} parameters"
        assert weights.residency(quantised)[quantised].nbytes == info.nbytes
        weights.prefetch([quantised])
        weights.release(quantised)
        with weights.pool(1 << 20) as pool, pool.hold(quantised) as held:
            np.testing.assert_array_equal(held.dequantize(), weights[quantised].dequantize())
        copy = pickle.loads(pickle.dumps(weights))
        assert list(copy) == list(weights)
        with pytest.raises(wm.EncodeError, match=r"no format stores awq gemm as one tensor; dequantize\(\) or"):
            wm.save(tmp_path / "model.safetensors", weights)
        wm.save(tmp_path / "model.safetensors", file)
    with pytest.raises(wm.ClosedError):
        weights[quantised]
    wm.save(tmp_path / "plain.safetensors", TENSORS)
    with wm.open(tmp_path / "plain.safetensors") as file, file.weights as weights:
        assert list(weights) == list(file)
