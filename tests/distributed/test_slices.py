"""The engine of slices, which knows no framework: parts of tensors planned and read for ranks that are integers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.builders import normal

import weightmap as wm
from weightmap.plans.wants import boxes

WAYS = ("map", "read")


@given(some.lists(some.tuples(some.integers(0, 5), some.integers(0, 6)), max_size=4), some.integers(1, 30))
def test_a_box_in_pieces_is_the_box(axes, most):
    starts, sizes = [start for start, _ in axes], [size for _, size in axes]
    shape = tuple(start + size for start, size in axes)
    places = np.arange(math.prod(shape)).reshape(shape)
    pieces = list(boxes(starts, sizes, most))
    found = [places[piece] for piece in pieces]
    assert all(0 < piece.size <= most for piece in found)
    whole = places[tuple(slice(start, start + size) for start, size in axes)]
    assert [place for piece in found for place in np.ravel(piece).tolist()] == np.ravel(whole).tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_may_have_several_indices(way, tmp_path):
    """Each is a part of its own, in the order given; bytes that lie together are one read, and none is read twice."""
    path = tmp_path / "m.safetensors"
    wm.save(path, {"a": normal((8, 6)).array, "b": normal((4,), 1).array})
    wants = [("a", np.s_[4:6]), ("b", None), ("a", np.s_[0:2, 1:3]), ("a", np.s_[6:8]), ("a", 5)]
    with wm.plan(path, wants, gap=0) as plan:
        f = plan.file
        found = [(name, np.asarray(part)) for name, part in plan.run(way)]
        assert [name for name, _ in found] == ["a", "a", "a", "a", "b"]
        expected = [f["a"][4:6], f["a"][0:2, 1:3], f["a"][6:8], f["a"][5], f["b"]]
        assert all(np.array_equal(part, want) for (_, part), want in zip(found, expected, strict=True))
        at = f.info("a").offset
        assert plan.wanted_nbytes == plan.nbytes == 4 * (4 + 4 * 6 + 4)
        assert plan.reads[-1] == (str(path), at + 4 * 24, 4 * 28)


def test_a_column_reads_the_blocks_of_its_rows(tmp_path):
    tensor = wm.quantize(normal((64, 4096)).array, "int4_block")
    wm.save(tmp_path / "m.amb", {"w": tensor})
    for rank in range(4):
        with wm.plan(tmp_path / "m.amb", {"w": wm.shard("w", 1, rank, 4)}) as plan:
            assert abs(plan.nbytes - tensor.nbytes // 4) < 16  # the header of a tensor
            [(_, part)] = plan.run("read")
            assert np.array_equal(part, tensor.dequantize()[:, 1024 * rank : 1024 * (rank + 1)])
