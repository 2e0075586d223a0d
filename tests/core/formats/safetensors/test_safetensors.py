"""safetensors: agreement with the reference implementation both ways, and our own errors."""

import importlib
import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from tests.attacks import sound
from tests.builders import noise, normal
from tests.builders import safetensors as st
from tests.support import listing, same

import weightmap as wm


def dumps(header):
    return json.dumps(header, separators=(",", ":")).encode()


@pytest.mark.parametrize("dtype", st.CODES)
def test_the_reference_reads_our_files(tmp_path, dtype):
    values = {name: noise(dtype, shape, 4) for name, shape in {"m": (3, 5), "s": (), "e": (0, 2), "ünï": (7,)}.items()}
    path = tmp_path / "m.safetensors"
    wm.save(path, {name: value.array for name, value in values.items()}, metadata={"who": "weightmap", "ключ": "値"})
    found = dict(safetensors.deserialize(path.read_bytes()))
    assert set(found) == set(values)
    for name, value in values.items():
        assert found[name]["dtype"] == st.CODES[dtype]
        assert tuple(found[name]["shape"]) == value.shape
        assert bytes(found[name]["data"]) == value.data
    with safetensors.safe_open(path, "np") as reference:
        assert reference.metadata() == {"who": "weightmap", "ключ": "値"}


def test_headers_in_any_json_dress():
    """White space, key order, escapes and unsorted offsets are legal JSON and legal safetensors."""
    value, data = normal((2, 3)), normal((2, 3)).data + b"\1\2"
    header = b"""{ "__metadata__" : { } ,
      "b\\u00e9" : { "shape" : [ 2 ], "data_offsets" : [ 24 , 26 ] , "dtype" : "U8" } ,\t
      "\\u65e5\\ud83c\\udf0e\\n\\/" : { "data_offsets":[0,24], "dtype":"F32", "shape":[2,3] } }   """
    with wm.open(memoryview(st.raw(header, data))) as f:
        assert same(f["日🌎\n/"], value)
        assert f["bé"].tolist() == [1, 2]
        assert f.metadata == {}


@pytest.mark.parametrize(("dtype", "nbytes"), [("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6)])
def test_dtypes_below_a_byte(dtype, nbytes, put):
    """Packed types of four and six bits have their own type and size, views of their bytes, and values by `read`."""
    # Six in a row of one shape, since these are handed out together, and one of another.
    header = {f"a{i}": st.entry(dtype, [2, 4], i * nbytes, (i + 1) * nbytes) for i in range(6)}
    header["b"] = st.entry("U8", [1], 6 * nbytes, 6 * nbytes + 1)
    header["c"] = st.entry(dtype, [8, 0], 6 * nbytes + 1, 6 * nbytes + 1)
    data = bytes(range(6 * nbytes + 1))
    path = put(st.raw(dumps(header), data), "m.safetensors")
    named = {"F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn"}[dtype]
    with wm.open(path) as f:
        assert (f.info("a1").dtype, f.info("a1").shape, f.info("a1").nbytes) == (named, (2, 4), nbytes)
        assert repr(f.info("a1")).startswith(f"TensorInfo(name='a1', dtype='{named}', shape=(2, 4), offset=")
        everything = dict(f.items())
        for i in range(6):
            for array in (f[f"a{i}"], everything[f"a{i}"]):
                assert (array.dtype, array.shape) == (np.uint8, (nbytes,))
                assert array.tobytes() == data[i * nbytes : (i + 1) * nbytes]
                assert not array.flags.writeable
                assert np.shares_memory(array, f[f"a{i}"])
        assert f["c"].shape == everything["c"].shape == (0,)
        assert f["b"].tolist() == [6 * nbytes]
        bits = sum(byte << 8 * i for i, byte in enumerate(data[nbytes : 2 * nbytes]))
        codes = np.array([bits >> i * nbytes & (1 << nbytes) - 1 for i in range(8)], np.uint8)  # eight elements
        assert f.read("a1").reshape(-1).tolist() == codes.view(getattr(ml_dtypes, named)).astype(np.float32).tolist()
        assert f.read("c").shape == (8, 0)
    assert list(wm.load(path)) == list(header)
    assert wm.load(path, mode="copy")["a2"].tobytes() == data[2 * nbytes : 3 * nbytes]


@pytest.mark.parametrize(("format", "module"), [("safetensors", "safetensors.writing"), ("bintensors", "bintensors")])
def test_a_header_longer_than_readers_allow_is_not_written(tmp_path, format, module, monkeypatch):
    monkeypatch.setattr(importlib.import_module(f"weightmap.core.formats.{module}"), "MAX_HEADER", 64)
    wm.save(tmp_path / "fits", {}, format=format, metadata={"k": "v"})
    with pytest.raises(wm.EncodeError, match="a header of"):
        wm.save(tmp_path / "long", {}, format=format, metadata={"k": "v" * 64})
    assert listing(tmp_path) == ["fits"]


@pytest.mark.parametrize("kind", ["safetensors", "bintensors-spec"])
def test_verify_notices_a_header_that_changed(kind):
    data = bytearray(sound()[kind])
    f = wm.open(data)
    data[12] ^= 1
    with pytest.raises(wm.LayoutError, match="the header changed"):
        f.verify()


@pytest.mark.parametrize(
    ("shape", "data"),
    [([0, 2**62, 2**62], b""), ([2**64 - 1, 0], b""), ([0, 2**62], b""), ([1] * 65, bytes(4)), ([1] * 255, bytes(4))],
    ids=["product", "dimension", "bytes", "65 dimensions", "255 dimensions"],
)
def test_shapes_that_numpy_refuses(shape, data):
    header = dumps({"w": st.entry("F32", shape, 0, len(data))})
    with pytest.raises(wm.FormatError):
        wm.open(st.raw(header, data))
    f = wm.open(st.raw(header, data), verify="none")
    for use in (lambda: f["w"], lambda: list(f.values()), lambda: f.read("w"), lambda: f.info("w"), f.infos):
        with pytest.raises(wm.FormatError) as caught:
            use()
        assert (caught.value.path, caught.value.format) == ("<bytes>", "safetensors")


GOOD = '{"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (GOOD + '"a": {"dtype": "F32", "x": 1}}', "tensor 'a' lacks a key, expected dtype, shape and data_offsets"),
        (GOOD + '"a": {"dtype": "F32", "dtype": "F32"}}', "a key of tensor 'a' is 'dtype', expected"),
        (GOOD + '"a\\"b": {"dtype": "F32"}}', r"tensor 'a\\\\\"b' lacks a key, expected dtype, shape and"),
        (GOOD + '"a": {"shape": [-4]}}', "a number in shape of tensor 'a' is b'-4', expected an integer from 0 to"),
        (GOOD + '"a": {"shape": [2, NaN]}}', "a number in shape of tensor 'a' is b'NaN', expected an integer"),
        (GOOD + '"a": {"shape": [2], "data_offsets": [0, 1.5]}}', "a number in data_offsets of tensor 'a' is b'1.5'"),
        (GOOD + '"a": {"shape": 4}}', r"JSON of the header, in tensor 'a', is b'4}}', expected an object with dtype"),
        (GOOD + '"a": 3}', r"JSON of the header, in tensor 'a', is b'3}', expected an object with dtype"),
        ("[1]", r"JSON of the header, in tensor 0, is b'\[1\]', expected"),
        ('{"a":', "the header ends before its JSON does, in tensor 'a'"),
        (GOOD[:-2] + "}x", f"trailing bytes: the size of the header is {len(GOOD)}, expected {len(GOOD) - 1} "),
        (GOOD + '"a": {"dtype": "F33"}}', "dtype of tensor 'a' is 'F33', expected one of BOOL"),
        (GOOD + '"a": {"dtype": 3}}', "tensor 'a'"),
    ],
)
def test_messages_of_headers(header, message):
    with pytest.raises(wm.FormatError, match=message):
        wm.open(struct.pack("<Q", len(header)) + header.encode() + bytes(4), format="safetensors")


def test_keys_that_the_format_does_not_define_are_left_out_by_name():
    inner = [b'"x":1', b'"note":{"deep":[[{"k":"v"}],null,true,-1.5e3,"\\u00e9"]}', b'"dtype_":"F32"', b'"x":{}']
    entry = b'"%s":{%s,"dtype":"U8",%s,"shape":[1],%s,"data_offsets":[%d,%d],%s}'
    text = b"{" + b",".join(entry % (b"ab"[i : i + 1], *inner[:3], i, i + 1, inner[3]) for i in range(2)) + b"}"
    with wm.open(st.raw(text, b"\7\10")) as f:
        assert {name: f[name].tolist() for name in f} == {"a": [7], "b": [8]}
        (warning,) = f.verify().warnings
        assert "8 keys of tensors that the format does not define" in warning
        assert warning.endswith("the first is 'x' of tensor 'a'")
    for wrong in (b'"x":01', b'"x":nul', b'"x":[1', b'"x"', b'"x":"\\ud800"', b'"x":' + b"[" * 65 + b"]" * 65):
        file = st.raw(b'{"a":{"dtype":"U8",%s,"shape":[1],"data_offsets":[0,1]}}' % wrong, b"\7")
        with pytest.raises(wm.FormatError, match=r"JSON of the header|nested too deeply|surrogate"):
            wm.open(file, format="safetensors", strict=False)


def shorter(entries):
    head = {name: st.entry("U8", [end - begin], begin, end) for name, (begin, end) in entries.items()}
    size = max(end for _, end in entries.values())
    with wm.open(memoryview(st.raw(json.dumps(head).encode(), bytes(size)))) as f:
        return list(f)


@pytest.mark.parametrize(
    ("entries", "order"),
    [
        ({"a": (1, 2), "b": (0, 1)}, ["b", "a"]),
        ({"a": (0, 4), "b": (0, 0)}, ["b", "a"]),
        ({"a": (0, 1), "b": (0, 0)}, ["b", "a"]),
        ({"a": (0, 0), "b": (0, 1)}, ["a", "b"]),
        ({"a": (0, 0), "b": (0, 0), "c": (0, 2)}, ["a", "b", "c"]),
        ({"c": (2, 3), "a": (0, 1), "b": (1, 2)}, ["a", "b", "c"]),
        ({"a": (0, 1), "c": (2, 3), "b": (1, 2)}, ["a", "b", "c"]),
    ],
)
def test_tensors_stand_in_the_order_of_their_data(entries, order):
    """A header may list tensors in any order; we order them by begin and then by end, to the byte."""
    assert shorter(entries) == order
