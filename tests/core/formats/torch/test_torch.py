"""PyTorch checkpoints: files of torch, tensors that are not row-major, values, and programs that torch never wrote."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from tests import zip_files
from tests.builders import torch as files
from tests.support import DATA

import weightmap as wm
from weightmap.core.bytes import derived
from weightmap.core.model.internals import dense_row

TRUTH = sorted(path for path in (DATA / "torch").iterdir() if path.suffix in {".pt", ".npy", ".npz"})
TWO = np.arange(24, dtype="<f4")


def by_name(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.name)


@by_name(TRUTH)
@pytest.mark.parametrize("in_memory", [False, True])
def test_files_of_torch_and_numpy(path, in_memory):
    truth = json.loads((path.parent / f"{path.name}.json").read_text(encoding="utf-8"))
    source = path.read_bytes() if in_memory else path
    if truth["verdict"] == "reject":
        with pytest.raises(wm.FormatError):
            wm.open(source)
        return
    with wm.open(source, verify="full") as f:
        if truth["verdict"] == "either":
            return
        assert set(f) == set(truth["tensors"])
        for name, stated in truth["tensors"].items():
            array = f[name]
            assert list(array.shape) == stated["shape"]
            raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
            assert b"".join(map(bytes, dense_row(f, name).chunks())) == raw
            if stated["dtype"][0] == ">":
                assert array.dtype == stated["dtype"]
                raw = array.byteswap().tobytes() if raw.hex() != stated["hex"] else raw
            else:
                assert f.info(name).dtype == stated["dtype"]
            assert raw.hex() == stated["hex"]
        assert truth["values"].items() <= dict(f.metadata).items()


def strided(shape, strides, offset=0, elements=24):
    t = files.Stored("0", "float32", elements, offset, shape, strides)
    return files.zipped(files.dump({"w": t}), {"0": np.arange(elements, dtype="<f4").tobytes()})


@pytest.mark.parametrize("seed", range(40))
def test_any_strides_in_pieces_of_any_size(seed, monkeypatch):
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.integers(1, 5, random.integers(1, 5)))
    order = random.permutation(len(shape))
    strides, step = [0] * len(shape), int(random.integers(1, 3))
    for axis in order:
        strides[axis] = step * int(random.integers(0, 4) > 0)
        step *= int(shape[axis]) * int(random.integers(1, 3))
    elements = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    for name, sizes in {"_GROUP": (1, 16, 64), "_WINDOW": (4, 32, 1 << 20), "_GAP": (1, 16)}.items():
        monkeypatch.setattr(derived, name, int(random.choice(sizes)))
    want = np.lib.stride_tricks.as_strided(np.arange(elements, dtype="<f4"), shape, [4 * s for s in strides]).tobytes()
    with wm.open(strided(shape, tuple(strides), 0, elements)) as f:
        row = dense_row(f, "w")
        source = row.source
        for size in (4, 12, 1 << 18):
            pieces = [bytes(piece) for piece in source.chunks(row.offset, row.nbytes, size)]
            assert b"".join(pieces) == want
            assert {len(piece) for piece in pieces[:-1]} <= {size}
        for start, stop in itertools.combinations(range(0, len(want) + 1, 4), 2):
            if (start + stop) % 3 == 0:
                assert source.pread(row.offset + start, stop - start) == want[start:stop]


def test_an_expanded_tensor_takes_no_more_memory_than_asked_for():
    data = strided((1 << 20, 1 << 20), (0, 0), 3)
    with wm.open(data, limits=wm.Limits(max_copy_bytes=1 << 30)) as f:
        assert f["w"][5, 7] == 3
        assert f.info("w").nbytes == 4 << 40
        with pytest.raises(wm.LimitError):
            f.read("w")


def test_tied_tensors_share_memory():
    whole = files.Stored("0", "float32", 24, 0, (4, 6), (6, 1))
    tied = {"a": whole, "b": whole, "row": whole._replace(offset=6, shape=(6,), strides=(1,))}
    with wm.open(files.zipped(files.dump(tied), {"0": TWO.tobytes()})) as f:
        assert np.shares_memory(f["a"], f["b"])
        assert np.shares_memory(f["a"], f["row"])
        np.testing.assert_array_equal(f["row"], TWO[6:12])


def numpy_scalar(code, raw, *, latin=False):
    kind = files.named("numpy", "dtype") + b"(" + files.text(code) + b"\x89\x88tR"
    state = b"(K\3" + files.text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    content = files.code(raw)
    if latin:
        content = (
            files.named("_codecs", "encode") + b"(" + files.text(raw.decode("latin-1")) + files.text("latin1") + b"tR"
        )
    return files.Plain(files.named("numpy.core.multiarray", "scalar") + b"(" + kind + state + content + b"tR")


def test_values():
    device = files.Plain(files.named("torch", "device") + b"(" + files.text("cuda") + b"K\1tR")
    size = files.Plain(files.named("torch", "Size") + b"((K\2K\3ttR")
    value = {
        "f8": numpy_scalar("f8", np.float64(0.25).tobytes()),
        "i4": numpy_scalar("i4", np.int32(-9).tobytes(), latin=True),
        "device": device,
        "size": size,
        "dtype": files.Dtype("bfloat16"),
        5: "five",
        -1: "minus",
        "raw": b"\0\xff",
        "empty": {},
    }
    found = {"f8": 0.25, "i4": -9, "device": "cuda:1", "size.0": 2, "size.1": 3, "dtype": "torch.bfloat16"}
    with wm.open(files.zipped(files.dump(value), {})) as f:
        assert f.metadata == {**found, "5": "five", "-1": "minus", "raw": b"\0\xff"}


LATIN = files.named("_codecs", "encode") + b"(" + files.text("\u20ac") + files.text("latin1") + b"tR"
BAD_VALUES = {
    "no UTF-8": {"a": files.Plain(files.text(b"\xff"))},
    "four bytes of eight": {"a": numpy_scalar("f8", b"1234")},
    "an object": {"a": numpy_scalar("O", b"12345678")},
    "a date": {"a": numpy_scalar("M8", b"12345678")},
    "bytes spelled as a text that are no bytes": {"a": files.Plain(LATIN)},
    "two values of one name": {"a.b": 1, "a": {"b": 2}},
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_bad_value_is_an_error_of_metadata(name):
    with wm.open(files.zipped(files.dump(BAD_VALUES[name]), {})) as f, pytest.raises(wm.FormatError):
        dict(f.metadata)


@pytest.mark.parametrize("count", [2, 3, 1000, 30_000])
def test_keys_that_are_told_apart(count, tmp_path):
    """A repeated key is found anywhere; keys with equal beginnings, ends or numbers are different."""
    keys = [f"{'n' * 300}{i}" if i % 3 else i for i in range(count)]
    path = tmp_path / "a.pt"
    for more in ([], [keys[0]], [keys[-1]]):
        code = b"}(" + b"".join(files.code(key) + b"}" for key in (*keys, *more)) + b"u"
        path.write_bytes(files.zipped(files.dump({"a": files.Plain(code)}), {}))
        if not more:
            wm.open(path).close()
            continue
        with pytest.raises(wm.LayoutError, match="a dictionary has a key twice"):
            wm.open(path)


def test_an_archive_packed_again_is_recognised(tmp_path):
    """``zip -r`` puts the folders before their files, with more about each in its header."""
    program = files.dump({"w": files.Stored("0", "float32", 2, 0, (2,), (1,))})
    parts = {"data.pkl": program, "data/0": np.arange(2, dtype="<f4").tobytes(), "version": b"3"}
    folders = [zip_files.Entry(name, b"", extra=b"UT\5\0\3abcd") for name in (b"m/", b"m/data/")]
    entries = [*folders, *(zip_files.Entry(f"m/{name}".encode(), data) for name, data in parts.items())]
    with wm.open(zip_files.archive(entries)) as f:
        assert (f.format, f["w"].tolist()) == ("torch", [0, 1])
    with pytest.raises(wm.UnknownFormatError, match="this is a ZIP archive, and neither"):
        wm.open(zip_files.archive(folders[:1]))


def test_an_archive_of_torch_export_says_what_it_is():
    for name in (b"m/archive_format", b"serialized_exported_program.json"):
        first = zip_files.Entry(b"m/data/weights/weight_0" if b"/" in name else name, b"pt2")
        data = zip_files.archive([first] if first.name == name else [first, zip_files.Entry(name, b"pt2")])
        with pytest.raises(
            wm.UnsupportedError, match=r"this archive is a program of torch\.export: save torch\.export\."
        ):
            wm.open(data)


BAD_STORAGES = {
    "encrypted": {"local": {"flags": 1}, "central": {"flags": 1}},
    "header that disagrees": {"local": {"crc": 1}},
    "deflated": {"method": 8},
    "too short": {"data": bytes(8)},
    "not there": None,
}


@pytest.mark.parametrize("damage", BAD_STORAGES)
@pytest.mark.parametrize("key", ["0", "1", "2"])
def test_a_storage_that_cannot_be_read_hides_no_other(damage, key):
    """With strict=False its tensors are left out by name, strided and tied ones too."""
    values = np.arange(12, dtype="<f4")
    tensors = {
        f"{key}.{kind}": files.Stored(key, "float32", 12, 0, shape, strides)
        for key in "012"
        for kind, shape, strides in (("rows", (3, 4), (4, 1)), ("columns", (4, 3), (1, 4)))
    }
    bad = f"archive/data/{key}"
    entries = [zip_files.Entry(b"archive/data.pkl", files.dump(tensors))]
    for other in "012":
        entry = zip_files.Entry(f"archive/data/{other}".encode(), (values + int(other)).tobytes(), align=64)
        fields = BAD_STORAGES[damage] if other == key else {}
        if fields is not None:
            entries.append(replace(entry, **fields))
    data = zip_files.archive(entries)
    with pytest.raises(wm.FormatError):
        wm.open(data)
    with wm.open(data, strict=False, verify="full") as f:
        assert set(f) == {name for name in tensors if not name.startswith(key)}
        for name in f:
            rows = (values + int(name[0])).reshape(3, 4)
            np.testing.assert_array_equal(f[name], rows if name.endswith("rows") else rows.T)
        warnings = f.verify().warnings
        assert sum(f"'{bad}'" in warning for warning in warnings) == 1
        for kind in ("rows", "columns"):
            assert f"tensor '{key}.{kind}' is left out: its storage cannot be read" in warnings


@pytest.mark.parametrize("name", ["data.pkl", "byteorder"])
def test_a_checkpoint_whose_program_or_byte_order_cannot_be_read_is_refused(name):
    """The other entries have no meaning then: the error is the entry's."""
    program = files.dump({"w": files.Stored("0", "float32", 2, 0, (2,), (1,))})
    entries = [
        zip_files.Entry(b"archive/data.pkl", program),
        zip_files.Entry(b"archive/byteorder", b"big"),
        zip_files.Entry(b"archive/data/0", bytes(8)),
    ]
    fields = {"local": {"flags": 1}, "central": {"flags": 1}}
    data = zip_files.archive([replace(e, **fields) if e.name.endswith(name.encode()) else e for e in entries])
    with pytest.raises(wm.UnsupportedError, match=r"entry \d is encrypted"):
        wm.open(data, strict=False)
