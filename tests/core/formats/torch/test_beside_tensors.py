"""Objects beside the tensors of checkpoints: everyday Python is read as values, others are left out by name."""

import re
import struct

import numpy as np
import pytest
from tests.builders import torch as files

import weightmap as wm

W = files.Stored("0", "float32", 2, 0, (2,), (1,))
DATA = {"0": struct.pack("<2f", 1, 2)}


def of(module, name, *args):
    return files.named(module, name) + files.code(args) + b"R"


def dtype(code, order="<", fields=None, *more):
    made = of("numpy", "dtype", code, False, True)
    return made + files.code((3 + len(more), order, None, None, fields, -1, -1, 0, *more)) + b"b"


F4, SIX = dtype("f4"), np.arange(6, dtype="<f4")
UNKNOWN = files.named("mine", "Config")
NEW = UNKNOWN + b")\x81" + files.code({"a": 1, "w": W}) + b"b"


def test_a_file_of_which_nothing_is_left_is_refused():
    """A module that was saved whole is not an empty model."""
    with pytest.raises(wm.UnsupportedError, match=r"nothing is left of it: '' is left out: it needs 'mine\.Config'"):
        wm.open(files.zipped(files.dump(files.Plain(NEW)), DATA), strict=False)


def test_a_name_that_is_there_twice():
    turned = files.Stored("1", "float32", 6, 0, (3, 2), (1, 3))
    value = {"a.b": W, "a": {"b": turned, "c": turned}, "x.y": 1, "x": {"y": 2, "z": 3}}
    data = files.zipped(files.dump(value), DATA | {"1": SIX.tobytes()})
    with pytest.raises(wm.LayoutError, match=r"both called 'a\.b'"):
        wm.open(data)
    with wm.open(data, strict=False) as f:
        assert list(f) == ["a.b", "a.c"]
        np.testing.assert_array_equal(f["a.b"], np.float32([1, 2]))
        np.testing.assert_array_equal(f["a.c"], SIX.reshape(2, 3).T)
        assert f.metadata == {"x.y": 1, "x.z": 3}
        assert [re.findall(r"called '(\S+)'", warning) for warning in f.verify().warnings] == [["x.y"], ["a.b"]]


def test_a_date_of_numpy_hides_no_tensor():
    """The state of its type has nine items: the last one is the unit."""
    day = dtype("M8", "<", None, ({}, (of("_codecs", "encode", "D", "latin1"), 1, 1, 1)))
    date = of("numpy._core.multiarray", "scalar", files.Plain(day), bytes(8))
    data = files.zipped(files.dump({"day": files.Plain(date), "w": W}), DATA)
    with pytest.raises(wm.UnsupportedError, match=r"numpy of other things than .*, strict=False\) leaves it"):
        wm.open(data)
    with wm.open(data, strict=False) as f:
        assert (list(f), f.metadata) == (["w"], {})
        assert any("'day' is left out" in warning for warning in f.verify().warnings)
