"""PyTorch checkpoints, converted: strided tensors, pairs of float4, expanded elements."""

from argparse import Namespace

import numpy as np
import pytest
from tests.builders import torch as files
from tests.core.formats.torch.test_torch import TWO, strided

import weightmap as wm
import weightmap.report
from weightmap import compat
from weightmap.cli.reading import export

WAYS = {
    "transposed": ((4, 6), (1, 4), 0),
    "transposed with an offset": ((3, 5), (1, 4), 2),
    "stepped": ((5,), (3,), 1),
    "rows apart": ((3, 4), (8, 1), 0),
    "permuted": ((4, 2, 3), (1, 12, 4), 0),
    "expanded": ((5, 3), (0, 1), 7),
    "expanded at the end": ((3, 5), (1, 0), 7),
    "one element, many times": ((4, 4), (0, 0), 9),
    "overlapping": ((5, 4), (1, 1), 0),
    "axes of one": ((1, 4, 1, 2), (99, 1, 55, 12), 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_that_is_not_row_major_is_a_view(way, tmp_path):
    shape, strides, offset = WAYS[way]
    want = np.lib.stride_tricks.as_strided(TWO[offset:], shape, [4 * s for s in strides])
    path = tmp_path / "a.pt"
    path.write_bytes(strided(shape, strides, offset))
    with wm.open(path) as f:
        array = f["w"]
        assert not array.flags.owndata
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, want)
        np.testing.assert_array_equal(next(iter(f.values())), want)
        assert f.info("w").nbytes == want.nbytes
        assert f.info("w") == f.infos()[0]
        np.testing.assert_array_equal(f.read("w"), want)
        np.testing.assert_array_equal(f.read("w", np.float64), want)
        f.prefetch()
        f.prefetch("w")
        assert not f.verify().warnings
    wm.convert(path, tmp_path / "a.safetensors")
    np.testing.assert_array_equal(wm.load(tmp_path / "a.safetensors")["w"], want)
    assert wm.diff(path, tmp_path / "a.safetensors").equal


WALKS = {
    "read": lambda path, _: wm.open(path).read("w"),
    "read out": lambda path, _: wm.open(path).read("w", out=np.broadcast_to(np.float32(0), wm.open(path)["w"].shape)),
    "convert": wm.convert,
    "convert as float16": lambda path, to: wm.convert(path, to, dtype="float16"),
    "convert to shards": lambda path, to: wm.convert(path, f"{to}/", format="safetensors"),
    "convert to many shards": lambda path, to: wm.convert(path, to, max_shard_size="1GB"),
    "quantize": lambda path, to: wm.convert(path, to, format="amb", quantize="int8"),
    "diff": lambda path, _: wm.diff(path, path),
    "diff by value": lambda path, _: wm.diff(path, path, by_value=True),
    "export": lambda path, to: export(Namespace(file=path, name="w", out=f"{to}.npy", lenient=False)),
    "report": lambda path, to: wm.report.write_report(to, path, path),
    "get_tensor": lambda path, _: compat.safe_open(path, "np", backend="pread").get_tensor("w"),
    "get_slice": lambda path, _: compat.safe_open(path, "np", backend="pread").get_slice("w")[1:],
}


# Operations on a whole model that make no fewer bytes of it.
WHOLE = ("convert", "convert to shards", "convert to many shards", "diff", "diff by value", "report")


@pytest.mark.parametrize(
    ("kind", "walk"),
    [
        *(("expanded", walk) for walk in WALKS),
        *(pytest.param("many tensors", walk, marks=[pytest.mark.slow] * (walk == "report")) for walk in WHOLE),
    ],
)
def test_elements_that_no_file_holds_are_walked_on_request(kind, walk, tmp_path):
    path, to = tmp_path / "a.pt", tmp_path / "o.safetensors"
    if kind == "expanded":
        path.write_bytes(strided((1 << 20, 1 << 20), (0, 0), 3))
    else:
        same = files.Stored("0", "float32", 1 << 16, 0, (1 << 8, 1 << 8), (1 << 8, 1))
        path.write_bytes(files.zipped(files.dump({f"w{i}": same for i in range(3000)}), {"0": bytes(1 << 18)}))
    size = path.stat().st_size
    with pytest.raises(wm.LimitError, match=f"expected at most {1032 * size + (64 << 20)} of a file of {size} bytes"):
        WALKS[walk](path, to)
    assert [entry.name for entry in tmp_path.rglob("*") if entry.is_file()] == ["a.pt"]


PAIRS = "float4_e2m1fn_x2"


def pairs(shape, strides, elements=8):
    """A tensor of bytes with two numbers each."""
    inner = b"(" + files.text("storage") + files.named("torch.storage", "UntypedStorage") + files.text("0")
    inner += files.text("cpu") + files.number(elements) + b"tQ" + files.number(0)
    inner += b"".join(b"(" + b"".join(map(files.number, part)) + b"t" for part in (shape, strides))
    code = files.named("torch._utils", "_rebuild_tensor_v3") + b"(" + inner + b"\x89" + files.ORDERED
    return files.Plain(code + files.named("torch", PAIRS) + b"tR")


def test_pairs_of_float4_are_float4_with_twice_the_last_dimension(tmp_path):
    raw = bytes(range(8))
    program = files.dump({"w": pairs((2, 4), (4, 1)), "b": files.Stored("1", "float32", 2, 0, (2,), (1,))})
    path = tmp_path / "m.pt"
    path.write_bytes(files.zipped(program, {"0": raw, "1": bytes(8)}))
    with wm.open(path) as f:
        assert f.info("w")[:3] == ("w", "float4_e2m1fn", (2, 8))
        assert f["w"].tobytes() == raw
    wm.convert(path, tmp_path / "m.safetensors")
    with wm.open(tmp_path / "m.safetensors") as f:
        assert (f.info("w").shape, f["w"].tobytes()) == ((2, 8), raw)
    for shape, strides in (((4, 2), (1, 4)), ((), ())):
        program = files.dump({"w": pairs(shape, strides), "b": files.Stored("1", "float32", 2, 0, (2,), (1,))})
        data = files.zipped(program, {"0": raw, "1": bytes(8)})
        with pytest.raises(wm.UnsupportedError, match=r"tensor 'w' of float4_e2m1fn_x2 is not row-major, or has no"):
            wm.open(data)
        assert list(wm.open(data, strict=False)) == ["b"]
