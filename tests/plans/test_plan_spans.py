"""The columns that plans are made of hold what the handles say of each tensor."""

import json
import math
import weakref

import numpy as np
import pytest
from tests import builders
from tests.builders import normal
from tests.builders import safetensors as st

import weightmap as wm
from weightmap.index import table
from weightmap.model.parts import dense_rows, parts_of
from weightmap.model.residency import spans_of

EXAMPLES = builders.examples()


@pytest.mark.parametrize("few", [0, table._FEW])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.format}-{e.name}")
def test_the_columns_of_a_table_are_its_rows(example, few, monkeypatch):
    monkeypatch.setattr(table, "_FEW", few)
    with wm.open(memoryview(example.data)) as f:
        begins, sizes = parts_of(f)[1].table.spans()
        rows = list(dense_rows(f))
        assert begins.tolist() == [row.offset for row in rows]
        assert sizes.tolist() == [row.nbytes for row in rows]
        for dim in (-3, -2, -1, 0, 1, 2):
            outer, size, plain = parts_of(f)[1].table.along(dim)
            for row, parts, length in zip(rows, outer.tolist(), size.tolist(), strict=True):
                there = -len(row.shape) <= dim < len(row.shape)
                assert length == (row.shape[dim] if there else -1)
                assert not there or parts == math.prod(row.shape[: dim % len(row.shape)])
        kinds = [kind for kind in parts_of(f)[1].table.rules.dtypes if kind is not None]
        known = len(kinds) > 1 or not kinds[0].declared  # not where each array has a type of its own, as numpy's
        assert plain.tolist() == [known and not row.dtype.quantized and not row.dtype.packed for row in rows]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.format}-{e.name}")
def test_numbers_are_in_file_order(example):
    """Numbers of tensors go by offset; name, place and look-up agree."""
    with wm.open(memoryview(example.data)) as f:
        spans = spans_of(f)
        assert len(spans) == len(f)
        assert sorted(spans.begin.tolist()) == spans.begin.tolist()
        names = list(spans.names(np.arange(len(spans))))
        assert sorted(names) == sorted(f)
        for number, name in enumerate(names):
            assert spans.name(number) == name
            assert spans.find(name) == number
            assert spans.of(number).offset == spans.begin[number] == f.info(name).offset
        assert spans_of(f).begin is spans.begin


def test_plans_keep_no_handle(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(st.build({"a": normal((4,))}))
    f = wm.open(path)
    plan = wm.plan(f)
    handle, columns = weakref.ref(f), weakref.ref(plan._spans.begin)
    del f
    assert handle() is not None
    del plan
    assert handle() is None
    assert columns() is None


def test_rows_in_another_order_than_the_data():
    data = bytes(range(24))
    header = {
        name: {"dtype": "U8", "shape": [8], "data_offsets": [8 * at, 8 * at + 8]}
        for name, at in (("last", 2), ("first", 0), ("middle", 1))
    }
    with wm.open(memoryview(st.raw(json.dumps(header).encode().ljust(256), data))) as f:
        assert wm.plan(f).names == ("first", "middle", "last")
        assert [spans_of(f).find(name) for name in ("first", "middle", "last")] == [0, 1, 2]
        assert wm.plan(f, ["last", "first"]).names == ("first", "last")


def test_tensors_that_the_index_of_shards_leaves_out_are_planned(tmp_path):
    one, two = {"a": normal((4,)), "hidden": normal((4,), 1), "b": normal((4,), 2)}, {"c": normal((4,), 3)}
    index = st.shard(tmp_path, {"1.safetensors": one, "2.safetensors": two})
    content = json.loads(index.read_text("utf-8"))
    del content["weight_map"]["hidden"]
    content.pop("metadata", None)
    index.write_text(json.dumps(content), "utf-8")
    with pytest.warns(wm.ModelWarning, match=r"'hidden' is in shard '1\.safetensors' but not in the index"):
        f = wm.open(index)
    with f:
        plan = wm.plan(f)
        assert plan.names == tuple(f) == ("a", "hidden", "b", "c")
        assert plan.wanted_nbytes == 4 * 16
        assert [spans_of(f).find(name) for name in plan.names] == [0, 1, 2, 3]
