"""ONNX models: every kind of content, data in other files, and the onnx package as the judge."""

import contextlib
import hashlib
import json
import math
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.builders import noise, normal
from tests.builders.onnx import CODES, HEAD, external, field, graph, model, packed, tensor_proto
from tests.fuzz.mutate import mutant
from tests.support import in_one_item

import weightmap as wm
from weightmap.core.model import reading

onnx = pytest.importorskip("onnx")
from onnx import numpy_helper  # noqa: E402 - once it is known to be there

DATA = Path(__file__).parent / "models"
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
# Elements of less than a byte.
BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
ARRAY = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("name", EXPECTED["good"])
def test_models_of_the_onnx_package(name):
    """Names, types, shapes, bytes and metadata of all; models that we may refuse are right if we do not."""
    expected = EXPECTED["good"][name]
    options = {"format": "onnx"} if expected["format"] else {}
    try:
        f = wm.open(DATA / "good" / name / "model.onnx", **options)
    except wm.LayoutError:
        assert expected["verdict"] == "either"
        return
    with f:
        infos = {info.name: (info.dtype, list(info.shape)) for info in f.infos()}
        assert infos == {name: (dtype, shape) for name, dtype, shape, _ in expected["tensors"]}
        for tensor, *_, digest in expected["tensors"]:
            assert hashlib.sha256(f[tensor].tobytes()).hexdigest() == digest
        # A text that is not there is left out; the package says that it is empty.
        assert expected["metadata"].items() <= (dict.fromkeys(expected["metadata"], "") | dict(f.metadata)).items()
        assert not set(expected["never"]) & set(f)
        f.verify()


@pytest.mark.parametrize("name", EXPECTED["bad"])
def test_malformed_models_are_refused(name):
    """With an error of the package, at opening or when the tensor is used."""
    path = DATA / "bad" / name / "model.onnx"
    refused = EXPECTED["bad"][name] == "reject"
    with pytest.raises(wm.FormatError) if refused else contextlib.suppress(wm.FormatError):
        wm.load(path, format="onnx")


def octets(array):
    """The bytes of an array of the onnx package as a file has them: packed below the byte, the first lowest."""
    bits = BITS.get(array.dtype.name)
    if bits is None:
        return array.astype(array.dtype.newbyteorder("<")).tobytes()
    codes = array.reshape(-1).view(np.uint8)
    each = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits]
    return np.packbits(each, bitorder="little").tobytes()


def judged(path, data):
    try:
        found = onnx.load_model_from_string(data)
        arrays = [(one.name, numpy_helper.to_array(one, str(path.parent))) for one in found.graph.initializer]
    except Exception:  # noqa: BLE001 - whatever it raises
        return None
    return {name: (array.dtype.name, array.shape, octets(array)) for name, array in arrays}


def ours(path, **options):
    """The same by weightmap; bits behind the last element are zero."""
    found = {}
    with wm.open(path, **options) as f:
        for info in f.infos():
            data, bits = bytearray(f[info.name].tobytes()), math.prod(info.shape) * BITS.get(info.dtype, 8)
            if bits % 8:
                data[-1] &= (1 << bits % 8) - 1
            found[info.name] = info.dtype, info.shape, bytes(data)
    return found


def same_as_package(path, data, **options):
    """Whether the package reads a file as we do, or one of both refuses it."""
    path.write_bytes(data)
    try:
        found = ours(path, format="onnx", **options)
    except wm.FormatError:
        return True
    expected = judged(path, data)
    return expected is None or {name: expected.get(name) for name in found} == found


@pytest.mark.parametrize("name", BITS)
def test_elements_of_less_than_a_byte_are_read_as_values(tmp_path, monkeypatch, name):
    """`read` returns the package's values, in any type, in pieces and in threads; ``f[name]`` has the bytes."""
    monkeypatch.setattr(reading, "_MIN_THREAD", 1 << 16)
    path, codes = tmp_path / "m.onnx", np.resize(np.arange(1 << BITS[name], dtype=np.uint8), 2**19 + 2**17 + 5)
    proto = numpy_helper.from_array(codes.view(getattr(ml_dtypes, name)).reshape(1, -1), "w")
    path.write_bytes(one(proto.SerializeToString()))
    expected = numpy_helper.to_array(proto).astype(np.float32)
    with wm.open(path) as f:
        for threads in (1, 3):
            np.testing.assert_array_equal(f.read("w", threads=threads), expected)
        got = f.read("w", "float16", out=np.empty(expected.shape[::-1], np.float16).T)
        np.testing.assert_array_equal(got, expected.astype(np.float16))
        assert f["w"].nbytes == -(-expected.size * BITS[name] // 8)


def one(*parts):
    return model([field(8, b"w") + b"".join(parts)])


FLOAT = struct.pack("<f", 1.5)
BYTES = field(1, 2) + field(2, 2)  # the fields of two bytes, and these
AB = field(9, b"ab")
LEGAL = {
    "numbers one by one": one(field(1, 3), field(2, 7), *(field(7, n) for n in (1, -2, 3))),
    "numbers in pieces": one(field(1, 4), field(7, packed([1])), field(7, packed([2, 3])), field(2, 7), field(7, 4)),
    "floats one by one": one(field(1, 2), field(2, 1), field(4, FLOAT, 5) * 2),
    "floats in pieces": one(field(1, 3), field(2, 1), field(4, FLOAT * 2), field(4, FLOAT, 5)),
    "doubles in pieces": one(field(1, 2), field(2, 11), field(10, bytes(7) + b"?") * 2),
    "dims packed and not": one(field(1, packed([2, 1])), field(1, 3), field(2, 2), field(9, b"abcdef")),
    "the last of each counts": one(field(2, 6), field(9, bytes(4)), field(8, b"v"), BYTES, field(8, b"w"), AB),
    "long varints": one(b"\x08\x82\x80\x00\x10\x82\x80\x80\x00", b"\x4a\x82\x00ab"),
    "minus one in 5 and in 10 bytes": one(field(1, 2), field(2, 6), field(5, packed([2**32 - 1, -1]))),
    "an empty piece beside raw data": one(BYTES, field(4, b""), AB),
    "unknown fields": one(field(200, 1), BYTES, field(201, bytes(8), 1), field(99, b"x"), AB),
    "the graph in pieces": HEAD
    + field(7, graph([tensor_proto("v", normal((2,)))]))
    + field(5, 1)
    + field(7, graph([tensor_proto("w", normal((3,)))])),
    "no data, no elements": one(field(1, 0), field(2, 7)),
    "a scalar": one(field(2, 7), field(7, packed([-5]))),
    "external_data that says nothing": one(BYTES, AB, field(13, field(1, b"location") + field(2, b"x"))),
}


@pytest.mark.parametrize("name", LEGAL)
def test_other_ways_to_write_the_same(tmp_path, name):
    """Rare forms that protobuf allows are read as the package reads them."""
    path = tmp_path / "m.onnx"
    path.write_bytes(LEGAL[name])
    expected = judged(path, LEGAL[name])
    assert expected
    assert ours(path, format="onnx", verify="full") == expected


# `MUTANTS` more: python -m pytest tests/core/formats/onnx -k differ, with WEIGHTMAP_ONNX=100000.
COUNT = int(os.environ.get("WEIGHTMAP_ONNX", "400"))


def test_mutants_differ_from_the_package_nowhere(tmp_path):
    """In damaged models, both find the same in all that both read."""
    for number in range(COUNT):
        data = mutant("onnx", number).files[""]
        for strict in (True, False):
            assert same_as_package(tmp_path / "m.onnx", data, strict=strict), number


def apart(name, location, array=ARRAY, **entries):
    dims = b"".join(field(1, dim) for dim in array.shape)
    start = dims + field(2, CODES[array.dtype.name][0]) + field(8, name.encode())
    return start + external(location=location, **entries)


@pytest.fixture
def path(tmp_path):
    """A model with tensors in three places, the first and the last in other files."""
    target = tmp_path / "m.onnx"
    inner = tensor_proto("inner", noise("int16", (300,)), typed=True)
    (tmp_path / "w.bin").write_bytes(bytes(4096) + ARRAY.tobytes() + (2 * ARRAY).tobytes())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "v.bin").write_bytes((-ARRAY).tobytes())
    first, last = apart("a", "w.bin", offset=4096, length=96), apart("c", "w.bin", offset=4192)
    target.write_bytes(model([first, inner, apart("b", "sub/v.bin"), last]))
    return target


@pytest.mark.parametrize(
    ("entries", "error", "field"),
    [
        ({"offset": 4288 - 95}, wm.TruncatedError, "offset"),
        ({"offset": 10**17}, wm.TruncatedError, "offset"),
        ({"length": 95}, wm.LayoutError, "length"),
        ({"length": 97}, wm.LayoutError, "length"),
    ],
)
def test_ranges_of_other_files(path, entries, error, field):
    path.write_bytes(model([apart("a", "w.bin", **entries)]))
    with pytest.raises(error) as caught:
        wm.open(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path.with_name('w.bin')}: ")


@pytest.mark.parametrize("right", [True, False])
def test_checksums(path, right):
    digest = hashlib.sha1(path.with_name("w.bin").read_bytes()).hexdigest()
    texts = (digest.upper(), digest) if right else (digest, "0" * 40)
    path.write_bytes(model([apart(name, "w.bin", checksum=text) for name, text in zip("ab", texts, strict=True)]))
    with wm.open(path) as f:
        if right:
            assert "SHA-1 of 1 file" in f.verify().checks
            return
        with pytest.raises(wm.ChecksumError, match=r"w\.bin") as caught:
            f.verify()
        assert caught.value.field == "checksum"


def test_a_made_tensor_is_made_within_limits():
    """Like inflated tensors: a handle that may not copy that much refuses its use."""
    data = model([tensor_proto("w", noise("int64", (100,)), typed=True)])
    with wm.open(data, limits=wm.Limits(max_copy_bytes=799)) as f, pytest.raises(wm.LimitError):
        _ = f["w"]


def test_a_model_that_changes_is_noticed_by_verify(tmp_path):
    """Fields that changed since the opening."""
    target = tmp_path / "m.onnx"
    target.write_bytes(model([tensor_proto("w", normal((2,)))]))
    with wm.open(target) as f:
        status = target.stat()
        with target.open("r+b") as file:
            file.write(model([tensor_proto("v", normal((2,)))]))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises((wm.FileChangedError, wm.LayoutError)):
            f.verify()


OTHERS = {
    "a SavedModel of TensorFlow": field(1, 1) + field(2, field(1, b"x" * 100)),
    "a long one": field(1, 1) + field(2, bytes(5000)),
    "a model of Core ML": field(1, 4) + field(2, field(1, b"x")) + field(500, field(1, b"y")),
    "no version": field(2, b"p") + field(7, b""),
    "version 0": field(1, 0) + field(7, b""),
    "version 256": field(1, 256) + field(7, b""),
    "two versions": field(1, 1) + field(1, 1) + field(7, b""),
    "a producer that is a number": field(1, 1) + field(2, 1) + field(7, b""),
    "no graph": field(1, 1) + field(2, b"p") + field(8, b""),
}


@in_one_item("data", OTHERS.values())
def test_other_files_of_protobuf_are_not_recognised(data):
    """A file is a model of ONNX when its first fields are, up to the graph."""
    with pytest.raises(wm.UnknownFormatError):
        wm.open(data)


def constant(output, proto, *more, op=b"Constant", name=b"value"):
    """A node with a tensor."""
    attribute = field(1, name) + field(5, proto) + field(20, 4)
    outputs = b"" if output is None else field(2, output)
    return field(1, outputs + field(4, op) + field(5, attribute) + b"".join(more))


def containing(*graphs):
    """A node with graphs, as If has them."""
    attributes = [field(5, field(1, b"branch") + field(6, graph)) for graph in graphs]
    return field(1, field(2, b"r") + field(4, b"If") + b"".join(attributes))


def test_graphs_within_graphs_end_somewhere():
    """Up to 64 levels are searched; deeper graphs are counted, and opening ends at any depth."""
    for depth, listed in ((62, ["w"]), (63, ["w"]), (64, []), (5000, [])):
        inner = constant(b"w", tensor_proto("", normal((2,))))
        for _ in range(depth):
            inner = containing(inner)
        with wm.open(model([], inner)) as f:
            assert list(f) == listed
            assert bool(f.verify().warnings) is not bool(listed)


def test_a_tensor_made_of_numbers_lies_beside_data_in_other_files(path):
    """It ends behind the end of its file, where no tensor of another file could."""
    made = tensor_proto("made", normal((999,), dtype="int64"), typed=True)
    path.write_bytes(model([made, apart("a", "w.bin", offset=4096, length=96)]))
    assert ours(path, verify="full") == judged(path, path.read_bytes())


@pytest.mark.parametrize("mode", [None, "mmap", "cow", "copy"])
def test_a_file_of_empty_tensors_is_empty(path, caplog, mode):
    """The system maps no empty file."""
    (path.parent / "none.bin").write_bytes(b"")
    path.write_bytes(model([apart("a", "none.bin", np.zeros((0, 3), np.float32))]))
    with wm.open(path, mode=mode) as f:
        assert f["a"].shape == (0, 3)
        assert f["a"].flags.writeable is (mode in ("cow", "copy"))
        assert f.verify()
    assert not caplog.records


def test_names_are_unique_among_all_files(path):
    """A name inside and one outside are one too many."""
    path.write_bytes(model([tensor_proto("a", normal((2,))), apart("a", "w.bin")]))
    with pytest.raises(wm.LayoutError, match="both called 'a'"):
        wm.open(path)


@pytest.mark.parametrize("part", [b"\x0a\x05k", b"\x0a\x80", b"\xff" * 12, b"\x0d\0", field(1, b"\xff")])
def test_metadata_that_is_damaged(part):
    """A message that ends within a field, a number without an end, a text that is not UTF-8."""
    with wm.open(model([], tail=field(14, part))) as f:
        with pytest.raises(wm.FormatError):
            _ = f.metadata
        with pytest.raises(wm.FormatError):
            f.verify()
