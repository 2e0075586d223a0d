"""The tree of errors: base classes, fields and messages."""

import copy
import pickle

import numpy as np
import pytest
from tests.builders import embd, normal
from tests.support import in_one_item

import weightmap as wm

BASES = {
    "TensorFileError": (Exception,),
    "FormatError": (wm.TensorFileError, ValueError),
    "UnknownFormatError": (wm.FormatError,),
    "UnsupportedError": (wm.FormatError,),
    "TruncatedError": (wm.FormatError,),
    "LayoutError": (wm.FormatError,),
    "ChecksumError": (wm.FormatError,),
    "LimitError": (wm.FormatError,),
    "EncodeError": (wm.TensorFileError, ValueError),
    "QuantError": (wm.TensorFileError, ValueError),
    "PlanError": (wm.TensorFileError, ValueError, IndexError),
    "TensorNotFoundError": (wm.TensorFileError, KeyError),
    "UnknownWordError": (wm.TensorFileError, KeyError),
    "ClosedError": (wm.TensorFileError, ValueError),
    "FileChangedError": (wm.TensorFileError, OSError),
    "NotRegularFileError": (wm.TensorFileError, OSError),
    "AddressError": (wm.TensorFileError, ValueError),
    "RemoteError": (wm.TensorFileError, OSError),
    "TargetError": (wm.TensorFileError, OSError),
    "ShardsError": (wm.TensorFileError,),
    "MissingDependencyError": (wm.TensorFileError, ImportError),
}
CARRIED = ("path", "format", "field", "offset", "expected", "actual")


@pytest.mark.parametrize("name", BASES)
def test_the_tree_is_as_published(name):
    cls = getattr(wm, name)
    assert set(cls.__bases__) == set(BASES[name])
    assert name in wm.__all__


@pytest.mark.parametrize("name", BASES)
@in_one_item("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_class_survives_pickling(name, protocol):
    cls = getattr(wm, name)
    values = dict(zip(CARRIED, ("m.weights", "embd", "flags", 8, 7, [8]), strict=True))
    error = cls("flags", **values)
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(again) is cls
        assert (str(again), repr(again)) == (str(error), f"{name}({str(error)!r})")
        assert {key: getattr(again, key) for key in CARRIED} == values


@pytest.mark.parametrize("name", BASES)
def test_attributes_are_always_there(name):
    error = getattr(wm, name)("bare")
    assert all(getattr(error, key) is None for key in CARRIED)
    assert str(error) == "bare"


def raised(action):
    with pytest.raises(wm.TensorFileError) as caught:
        action()
    return caught.value


def sample(**header):
    return embd.Draft([("weight", normal((2, 2)))]).header(**header).seal()


def test_real_errors_survive_pickling(put, tmp_path):
    good = put(sample(), "good.weights")
    closed = wm.open(good)
    closed.close()
    errors = [
        raised(lambda: wm.open(put(b"who knows", "a"))),
        raised(lambda: wm.open(put(sample(flags=8), "b"))),
        raised(lambda: wm.open(put(sample()[:-20], "c"))),
        raised(lambda: wm.open(put(sample(tensor_data_offset=65), "d"))),
        raised(lambda: wm.open(put(sample(header_checksum=3), "e"))),
        raised(lambda: wm.open(good, limits=wm.Limits(max_tensors=0))),
        raised(lambda: wm.save(tmp_path / "f.weights", {"x": np.zeros((), np.float32)})),
        raised(lambda: wm.open(good)["wieght"]),
        raised(lambda: closed["weight"]),
        raised(lambda: wm.open("/dev/null")),
    ]
    kinds = {type(error).__name__ for error in errors}
    assert len(kinds) >= 9
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert {key: getattr(again, key) for key in CARRIED} == {key: getattr(error, key) for key in CARRIED}


def test_messages_have_one_form(put):
    """A message reads `<file>: <what> <was>, expected <…> (at byte <n>)`."""
    path = put(sample(version_major=9))
    text = str(raised(lambda: wm.open(path)))
    assert text.startswith(f"{path}: ")
    assert "9" in text
    assert ", expected " in text
    assert text.endswith("(at byte 4)")


def test_limits_show_their_values():
    limits = wm.Limits(max_tensors=10)
    assert repr(limits) == "Limits(max_header_bytes=100000000, max_tensors=10, max_copy_bytes=None, max_shards=32768)"
    assert pickle.loads(pickle.dumps(limits)) == limits
