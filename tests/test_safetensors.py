"""safetensors: agreement with the reference implementation both ways, and the errors that only we promise."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from tests.builders import noise, normal
from tests.builders import safetensors as st
from tests.support import exercise, same

import weightmap as wm
from weightmap.formats.safetensors import reading as safetensors_format

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def dumps(header: Any) -> bytes:
    """JSON without white space."""
    return json.dumps(header, separators=(",", ":")).encode()


# ------------------------------------------------------------------------------------------------- with the reference


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "float64", "int64", "uint64"],
)
def test_files_of_the_reference_writer(tmp_path: Path, dtype: str) -> None:
    """What safetensors writes reads bit by bit, as views."""
    values = {
        name: noise(dtype, shape, 3)
        for name, shape in {"m": (3, 5), "s": (), "e": (0, 2), "r": (1, 2, 1, 2, 3)}.items()
    }
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({name: value.array for name, value in values.items()}, path, {"format": "np"})
    with wm.open(path) as f:
        assert set(f) == set(values)
        assert all(same(f[name], value) for name, value in values.items())
        assert not f["m"].flags.owndata
        assert dict(f.metadata) == {"format": "np"}


@pytest.mark.parametrize("dtype", st.CODES)
def test_the_reference_reads_our_files(tmp_path: Path, dtype: str) -> None:
    """Safetensors accepts what weightmap writes, every dtype, and finds the same bits, dtypes, shapes and metadata."""
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


def test_bfloat16_is_ml_dtypes_bfloat16(tmp_path: Path) -> None:
    """bfloat16 comes as ml_dtypes' type and computes as such."""
    array = np.array([1.5, -2.25, 3e38], ml_dtypes.bfloat16)
    path = tmp_path / "b.safetensors"
    wm.save(path, {"b": array})
    with wm.open(path) as f:
        assert f["b"].dtype == ml_dtypes.bfloat16
        assert f["b"].tobytes() == array.tobytes()
        assert f.info("b").dtype == "bfloat16"
        np.testing.assert_array_equal(f.read("b"), array.astype(np.float32))


def test_what_the_reference_gets_wrong_is_right(tmp_path: Path) -> None:
    """Fortran-order and strided arrays, which safetensors.numpy writes wrong, are right to its own reader."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    path = tmp_path / "m.safetensors"
    wm.save(path, {"f": np.asfortranarray(base), "s": base[::2, ::3], "t": base.T})
    loaded = safetensors.numpy.load_file(path)
    for name, expected in {"f": base, "s": base[::2, ::3], "t": base.T}.items():
        np.testing.assert_array_equal(loaded[name], expected)


def test_tensors_are_aligned_to_their_dtype(tmp_path: Path) -> None:
    """Our writer orders tensors so that each starts at a multiple of its item size, whatever order they came in."""
    path = tmp_path / "m.safetensors"
    wm.save(
        path,
        {
            "a": np.zeros(3, np.int8),
            "b": np.zeros(3, np.float64),
            "c": np.zeros(1, np.float16),
            "d": np.zeros(1, np.int32),
        },
    )
    with wm.open(path) as f:
        assert all(f[name].flags.aligned for name in f)


def test_headers_in_any_json_dress() -> None:
    """White space, key order, escapes and unsorted offsets are legal JSON and legal safetensors."""
    value, data = normal((2, 3)), normal((2, 3)).data + b"\1\2"
    header = b"""{ "__metadata__" : { } ,
      "b\\u00e9" : { "shape" : [ 2 ], "data_offsets" : [ 24 , 26 ] , "dtype" : "U8" } ,\t
      "a" : { "data_offsets":[0,24], "dtype":"F32", "shape":[2,3] } }   """
    with wm.open(memoryview(st.raw(header, data))) as f:
        assert same(f["a"], value)
        assert f["bé"].tolist() == [1, 2]
        assert f.metadata == {}


# ------------------------------------------------------------------------------------------------- what is refused

E = st.entry
GOOD = {"a": E("F32", [2], 0, 8)}
DEEP = 100_000

HEADERS: dict[str, tuple[bytes, bytes, Any]] = {
    "hole at the start": (dumps({"a": E("F32", [2], 4, 12)}), bytes(12), wm.LayoutError),
    "hole in the middle": (dumps({"a": E("U8", [2], 0, 2), "b": E("U8", [2], 4, 6)}), bytes(6), wm.LayoutError),
    "overlap": (dumps({"a": E("U8", [4], 0, 4), "b": E("U8", [4], 2, 6)}), bytes(6), wm.LayoutError),
    "shared bytes": (dumps({"a": E("U8", [4], 0, 4), "b": E("U8", [4], 0, 4)}), bytes(4), wm.LayoutError),
    "bytes behind the last": (dumps(GOOD), bytes(9), wm.LayoutError),
    "data missing": (dumps(GOOD), bytes(7), wm.TruncatedError),
    "no data": (dumps(GOOD), b"", wm.TruncatedError),
    "data without tensors": (b"{}      ", b"hidden", wm.LayoutError),
    "end before start": (dumps({"a": E("U8", [0], 4, 0)}), bytes(4), wm.LayoutError),
    "size not of shape": (dumps({"a": E("F32", [3], 0, 8)}), bytes(8), wm.LayoutError),
    "size not of dtype": (dumps({"a": E("F64", [2], 0, 8)}), bytes(8), wm.LayoutError),
    "shape overflow": (dumps({"a": E("U8", [2**32, 2**32], 0, 0)}), b"", wm.FormatError),
    "shape overflow, then zero": (dumps({"a": E("U8", [2**33, 2**33, 0], 0, 0)}), b"", wm.FormatError),
    "shape beyond u64": (dumps({"a": E("U8", [2**70], 0, 8)}), bytes(8), wm.FormatError),
    "offsets beyond u64": (dumps({"a": E("U8", [8], 2**64, 2**64 + 8)}), bytes(8), wm.FormatError),
    "offsets at the end of u64": (dumps({"a": E("U8", [8], 2**64 - 9, 2**64 - 1)}), bytes(8), wm.FormatError),
    "negative dimension": (dumps({"a": E("U8", [-1, -8], 0, 8)}), bytes(8), wm.FormatError),
    "negative offset": (dumps({"a": E("U8", [8], -8, 0)}), bytes(8), wm.FormatError),
    "fractional dimension": (dumps({"a": E("U8", [8.0], 0, 8)}), bytes(8), wm.FormatError),
    "true as a dimension": (dumps({"a": E("U8", [True], 0, 1)}), bytes(1), wm.FormatError),
    "text as a dimension": (dumps({"a": E("U8", ["8"], 0, 8)}), bytes(8), wm.FormatError),
    "null offset": (dumps({"a": E("U8", [8], None, 8)}), bytes(8), wm.FormatError),
    "65 dimensions": (dumps({"a": E("U8", [1] * 65, 0, 1)}), bytes(1), wm.FormatError),
    "unknown dtype": (dumps({"a": E("X9", [8], 0, 8)}), bytes(8), wm.UnsupportedError),
    "lower-case dtype": (dumps({"a": E("u8", [8], 0, 8)}), bytes(8), wm.UnsupportedError),
    "dtype no text": (dumps({"a": {**E("U8", [8], 0, 8), "dtype": 5}}), bytes(8), wm.FormatError),
    "no dtype": (dumps({"a": {"shape": [8], "data_offsets": [0, 8]}}), bytes(8), wm.FormatError),
    "no shape": (dumps({"a": {"dtype": "U8", "data_offsets": [0, 8]}}), bytes(8), wm.FormatError),
    "no offsets": (dumps({"a": {"dtype": "U8", "shape": [8]}}), bytes(8), wm.FormatError),
    "three offsets": (dumps({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 4, 8]}}), bytes(8), wm.FormatError),
    "unknown key": (dumps({"a": {**E("U8", [8], 0, 8), "extra": 1}}), bytes(8), wm.FormatError),
    "entry no object": (dumps({"a": [1, 2]}), b"", wm.FormatError),
    "entry null": (dumps({"a": None}), b"", wm.FormatError),
    "root a list": (b"[]      ", b"", wm.FormatError),
    "root a number": (b"5       ", b"", wm.FormatError),
    "root null": (b"null    ", b"", wm.FormatError),
    "two objects": (b"{}{}    ", b"", wm.FormatError),
    "no header": (b"", b"", wm.FormatError),
    "only spaces": (b"        ", b"", wm.FormatError),
    "duplicate tensor": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        bytes(1),
        wm.FormatError,
    ),
    "duplicate tensor by escape": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        bytes(2),
        wm.FormatError,
    ),
    "duplicate key in an entry": (
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        bytes(1),
        wm.FormatError,
    ),
    "duplicate metadata": (b'{"__metadata__":{},"__metadata__":{}}', b"", wm.FormatError),
    "duplicate metadata key": (b'{"__metadata__":{"k":"1","k":"2"}}', b"", wm.FormatError),
    "metadata no object": (b'{"__metadata__":"text"}', b"", wm.FormatError),
    "metadata null": (b'{"__metadata__":null}', b"", wm.FormatError),
    "metadata value no text": (b'{"__metadata__":{"k":5}}', b"", wm.FormatError),
    "metadata value an object": (b'{"__metadata__":{"k":{}}}', b"", wm.FormatError),
    "metadata NaN": (b'{"__metadata__":{"k":NaN}}', b"", wm.FormatError),
    "dimension NaN": (b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "dimension Infinity": (b'{"a":{"dtype":"U8","shape":[Infinity],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "dimension 1e999": (b'{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "dimension 007": (b'{"a":{"dtype":"U8","shape":[007],"data_offsets":[0,7]}}', bytes(7), wm.FormatError),
    "5000 digits": (b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "lone surrogate in a name": (b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "lone surrogate in metadata": (b'{"__metadata__":{"k":"\\udfff"}}', b"", wm.FormatError),
    "invalid UTF-8": (b'{"\xff":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "overlong UTF-8": (b'{"\xc0\xaf":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "surrogate UTF-8": (b'{"\xed\xa0\x80":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "UTF-16": ('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'.encode("utf-16-le"), b"", wm.FormatError),
    "byte order mark": (b"\xef\xbb\xbf{}   ", b"", wm.FormatError),
    "raw control character": (b'{"a\nb":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "bad escape": (b'{"a\\x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", wm.FormatError),
    "single quotes": (b"{'a':{}}", b"", wm.FormatError),
    "trailing comma": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},}', b"", wm.FormatError),
    "comment": (b"{/* */}  ", b"", wm.FormatError),
    "NUL behind the object": (b"{}\0\0\0\0\0\0", b"", wm.FormatError),
    "unclosed": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}', b"", wm.FormatError),
    "deep lists": (b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}", b"", wm.FormatError),
    "deep objects": (b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"", wm.FormatError),
    "deep and unclosed": (b'{"a":' + b"[" * DEEP, b"", wm.FormatError),
}


@pytest.mark.parametrize("case", HEADERS)
def test_bad_headers(case: str, put: Callable[..., Path]) -> None:
    """Each defect of header or layout is refused, with the file's name and without any other exception."""
    header, data, error = HEADERS[case]
    path = put(st.raw(header, data), "m.safetensors")
    with pytest.raises(error) as caught:
        exercise(wm.open(path, format="safetensors"))
    assert "m.safetensors" in str(caught.value)
    with pytest.raises(wm.FormatError):
        exercise(wm.open(path))


@pytest.mark.parametrize("length", [100_000_001, 2**31, 2**32, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1])
def test_absurd_header_lengths(length: int) -> None:
    """A header length past the file or past 100,000,000 is refused at once, without memory for it."""
    with pytest.raises((wm.LimitError, wm.TruncatedError, wm.UnknownFormatError)):
        wm.open(memoryview(st.raw(dumps(GOOD), bytes(8), length)))
    with pytest.raises((wm.LimitError, wm.TruncatedError)):
        wm.open(memoryview(st.raw(dumps(GOOD), bytes(8), length)), format="safetensors")


def test_the_header_limit_holds_for_a_header_that_is_there(tmp_path: Path) -> None:
    """A header of 100,000,001 bytes that the (sparse) file really has is a LimitError, and quick."""
    path = tmp_path / "big.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001) + b"{")
        file.truncate(8 + 100_000_001)
    with pytest.raises(wm.LimitError):
        wm.open(path, format="safetensors")


def test_a_header_of_many_small_errors_is_quick() -> None:
    """100,000 metadata entries and 10,000 tensors parse; with the last one wrong they are refused."""
    head: dict[str, Any] = {"__metadata__": {f"k{i}": "v" for i in range(100_000)}}
    head.update({f"t{i}": E("U8", [1], i, i + 1) for i in range(10_000)})
    with wm.open(memoryview(st.raw(dumps(head), bytes(10_000)))) as f:
        assert len(f) == 10_000
        assert len(f.metadata) == 100_000
        assert f.info("t9999").nbytes == 1
    head["t9999"]["data_offsets"] = [9999, 10_001]
    with pytest.raises(wm.FormatError):
        wm.open(memoryview(st.raw(dumps(head), bytes(10_000))))


@pytest.mark.parametrize(("dtype", "nbytes"), [("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6)])
def test_dtypes_below_a_byte_are_listed_but_have_no_view(dtype: str, nbytes: int, put: Callable[..., Path]) -> None:
    """Packed types of four and six bits open and are listed with their true size; a look-up is an UnsupportedError."""
    header = {"a": E(dtype, [8], 0, nbytes), "b": E("U8", [1], nbytes, nbytes + 1)}
    path = put(st.raw(dumps(header), bytes(nbytes) + b"\5"), "m.safetensors")
    with wm.open(path) as f:
        assert (f.info("a").shape, f.info("a").nbytes) == ((8,), nbytes)
        with pytest.raises(wm.UnsupportedError, match=r"m\.safetensors: .*bits"):
            f["a"]
        assert f["b"].tolist() == [5]


def test_trailing_bytes_are_a_warning_when_not_strict() -> None:
    """strict=False opens a file with bytes behind its end, and verify warns of them."""
    data = memoryview(st.raw(dumps(GOOD), bytes(8) + b"tail"))
    with pytest.raises(wm.LayoutError):
        wm.open(data)
    with wm.open(data, strict=False) as f:
        assert f["a"].tobytes() == bytes(8)
        assert f.verify().warnings


def test_escaped_names_are_one_with_their_text() -> None:
    """A name written with escapes, surrogate pairs included, is the name that it spells."""
    header = b'{"\\u65e5\\ud83c\\udf0e\\n\\/":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    with wm.open(memoryview(st.raw(header, b"\7"))) as f:
        assert list(f) == ["日🌎\n/"]
        assert f["日🌎\n/"].tolist() == [7]


def test_errors_of_copying_tell_the_file(tmp_path: Path) -> None:
    """What may not be copied, or has no type in numpy, is an error with the path, of `read` and of `convert`."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(st.raw(dumps({"w": st.entry("F32", [2], 0, 8), "x": st.entry("F4", [2], 8, 9)}), bytes(9)))
    tight = wm.Limits(max_copy_bytes=7)
    for error, act in (
        (wm.LimitError, lambda: wm.open(path, limits=tight).read("w")),
        (wm.UnsupportedError, lambda: wm.open(path).read("x")),
        (wm.LimitError, lambda: wm.convert(path, tmp_path / "n.safetensors", limits=tight)),
    ):
        with pytest.raises(error) as caught:
            act()
        assert caught.value.path == str(path)


def test_large_metadata_is_forgotten_with_its_file() -> None:
    """Small metadata, which many files share, is remembered after its file is gone; a megabyte of it is not."""
    kept = safetensors_format._metadata.cache_info().currsize
    text = "x" * 2**20
    f = wm.open(st.raw(dumps({"__metadata__": {"key": text}})))
    assert f.metadata == {"key": text}
    assert safetensors_format._metadata.cache_info().currsize == kept


# ------------------------------------------------------------------------------------------------- what numpy refuses


@pytest.mark.parametrize(
    ("shape", "data"),
    [([0, 2**62, 2**62], b""), ([2**64 - 1, 0], b""), ([0, 2**62], b""), ([1] * 65, bytes(4)), ([1] * 255, bytes(4))],
    ids=["product", "dimension", "bytes", "65 dimensions", "255 dimensions"],
)
def test_shapes_that_numpy_refuses(shape: list[int], data: bytes) -> None:
    """A shape that no array can have is an error of ours with path and format, with verify="none" at its first use."""
    header = dumps({"w": st.entry("F32", shape, 0, len(data))})
    with pytest.raises(wm.FormatError):
        wm.open(st.raw(header, data))
    f = wm.open(st.raw(header, data), verify="none")
    for use in (lambda: f["w"], lambda: list(f.values()), lambda: f.read("w"), lambda: f.info("w"), f.infos):
        with pytest.raises(wm.FormatError) as caught:
            use()
        assert (caught.value.path, caught.value.format) == ("<bytes>", "safetensors")


def test_many_empty_tensors_of_large_dimensions() -> None:
    """Empty tensors whose dimensions are near the limit of numpy are read, alone and all together."""
    shape = (0, 2**57)
    f = wm.open(st.raw(dumps({f"w{i}": st.entry("F32", list(shape), 0, 0) for i in range(9)})))
    assert f["w0"].shape == shape
    assert [array.shape for array in f.values()] == [shape] * 9
