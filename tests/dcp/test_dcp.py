"""`WeightmapStorageReader` in one process: the metadata for torch, and loads without other ranks."""

import numpy as np
import pytest
from tests import builders
from tests.builders import normal

import weightmap as wm

torch = pytest.importorskip("torch", reason="needs PyTorch: make distributed-test")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint import HuggingFaceStorageWriter  # noqa: E402

from weightmap.dcp import WeightmapStorageReader, _reader  # noqa: E402
from weightmap.dcp._reader import TensorMetadata  # noqa: E402
from weightmap.torch import StateError, load_file  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
WAYS = ("map", "read")


def load(state, path, **options):
    reader = WeightmapStorageReader(path, **options)
    try:
        dcp.load(state, storage_reader=reader, no_dist=True)
    except dcp.CheckpointException as error:
        raise error.failures[0][0] from None
    return reader


def octets(tensor):
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("example", builders.examples(), ids=lambda e: f"{e.format}-{e.name}")
def test_every_format_loads_as_load_file_does(example, way, tmp_path):
    path = tmp_path / f"example{example.suffix}"
    path.write_bytes(example.data)
    expected = load_file(path)
    with wm.open(path) as file:
        listed = TensorMetadata(file, {})
        assert set(listed) == set(expected)
        state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in listed.items()}
    load(state, path, how=way, chunk=64)
    for name, tensor in state.items():
        assert octets(tensor) == octets(expected[name]), name
        assert tensor.shape == expected[name].shape
        assert tensor.dtype == expected[name].dtype


def test_targets_of_any_layout_and_type(tmp_path):
    path = tmp_path / "m.safetensors"
    wm.save(path, {"a": normal((8, 6)).array, "i": np.arange(6)})
    base = torch.zeros(6, 8)
    state = {"a": base.T, "i": torch.zeros(6, dtype=torch.float64)}
    load(state, path, chunk=16)
    assert torch.equal(base, torch.from_numpy(normal((8, 6)).array.copy()).T)
    assert state["i"].tolist() == list(range(6))
    with pytest.raises(StateError, match=r"is torch\.int64, which cannot hold torch\.float32 of the file"):
        load({"a": torch.zeros(8, 6, dtype=torch.int64)}, path)
    wm.save(path, {"a.weight": np.ones((4, 8), np.int8), "a.weight_scale": np.ones((4, 1), np.float32)})
    said = r"'a\.weight' is int8, codes .* dtype is bfloat16, .*; wm\.convert\(f\.weights, path\) writes the parameters"
    with pytest.raises(wm.UnsupportedError, match=said):
        load({"a.weight": torch.zeros(4, 8, dtype=torch.bfloat16)}, path)


@pytest.mark.parametrize(
    ("state", "options", "error", "message"),
    [
        ({"b": 1}, {}, RuntimeError, "Missing key in checkpoint state_dict: b"),
        ({"a": (3, 4)}, {}, ValueError, "Size mismatch"),
        ({"a": (8, 6)}, {"names": {"a": "absent"}}, wm.TensorNotFoundError, "no tensor is called 'absent'"),
        ({"a": (8, 6)}, {"format": "embd"}, wm.FormatError, "m.safetensors"),
        ({"a": (8, 6)}, {"gap": -1}, wm.PlanError, "gap is -1"),
    ],
)
def test_what_does_not_fit_is_one_error(state, options, error, message, tmp_path):
    path = tmp_path / "m.safetensors"
    wm.save(path, {"a": normal((8, 6)).array})
    with pytest.raises(error, match=message):
        load({name: torch.zeros(shape) for name, shape in state.items()}, path, **options)


def test_tied_tensors_of_a_checkpoint_are_read_once(tmp_path):
    """Two tensors over the same bytes of a torch file are one slice to read."""
    shared = torch.arange(24.0).reshape(6, 4)
    torch.save({"embed": shared, "head": shared}, tmp_path / "tied.pt")
    state = {name: torch.zeros(6, 4) for name in ("embed", "head")}
    reader = load(state, tmp_path / "tied.pt")
    assert reader.report is not None
    assert (reader.report.items, reader.report.tensors, reader.report.nbytes) == (2, 1, 96)
    assert torch.equal(state["embed"], shared)
    assert torch.equal(state["head"], shared)


@pytest.mark.parametrize("way", WAYS)
def test_memory_of_a_load_is_a_few_chunks(way, tmp_path):
    """Decoded pieces are copied as they come, and dense pieces that cannot be read straight to their place."""
    wm.save(tmp_path / "m.amb", {"w": wm.quantize(normal((256, 1024)).array, "int4_block")})
    wm.save(tmp_path / "m.safetensors", {"w": normal((256, 1024)).array})
    seen = []
    real = _reader.to_torch

    def watch(array, **options):
        seen.append(array.nbytes)
        return real(array, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_reader, "to_torch", watch)
        for suffix in ("amb", "safetensors"):
            load({"w": torch.zeros(256, 1024)}, tmp_path / f"m.{suffix}", how=way, chunk=16 << 10)
        # Views of a mapping take no memory, and so are not cut.
        assert seen[:64] == [16 << 10] * 64
        assert seen[64:] == ([1 << 20] if way == "map" else [])
        del seen[:]
        for state in (torch.zeros(256, 1024, dtype=torch.float64), torch.zeros(1024, 256).T):
            load({"w": state}, tmp_path / "m.safetensors", how=way, chunk=16 << 10)
    assert seen == [16 << 10] * 128


@pytest.mark.parametrize("distributed", [True, False])
def test_what_hugging_faces_writer_saves(distributed, tmp_path):
    """`verify` says that the shapes in a rank's file may be parts, but not of a file that one rank saves for all."""
    state = {"w": torch.arange(6.0), "s": torch.ones(2, 3)}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(tmp_path, save_distributed=distributed), no_dist=True)
    with wm.open(tmp_path) as f:
        assert set(f) == set(state)
        assert len(f.verify().warnings) == distributed
