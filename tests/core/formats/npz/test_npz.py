"""numpy's .npy and .npz files, in any order, of any type, stored or deflated."""

import gc
import io
import itertools
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests import zip_files
from tests.builders import normal, npy, npz, torch

import weightmap as wm
from weightmap.core.bytes import source as sources
from weightmap.core.model.internals import dense_row

has_descriptors = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed there")
MATRIX = np.arange(12, dtype="<f4").reshape(3, 4)
ARRAYS = {
    "matrix": MATRIX,
    "fortran": np.asfortranarray(MATRIX),
    "fortran-3d": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
    "big-endian": MATRIX.astype(">f4"),
    "big-endian complex": MATRIX.astype(">c16"),
    "big-endian fortran": np.asfortranarray(MATRIX.astype(">i2")),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3)),
    "texts": np.array(["a", "bcd", "ñ"]),
    "bytes": np.array([b"a", b"bcd"]),
    "dates": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "structured": np.array([(1, 2.5), (3, 4.5)], [("a", ">i4"), ("b", "<f8")]),
    "nested": np.zeros(2, [("a", [("x", "<f4"), ("y", "u1", (2, 3))])]),
    "named beyond Latin-1": np.zeros(2, [("名", "<f4")]),
    "void": np.zeros(3, "V5"),
    "nothing wide": np.zeros(3, "S0"),
}


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("kind", ["npy", "npz", "deflated"])
def test_arrays_of_numpy(name, kind, tmp_path):
    array = ARRAYS[name]
    path = tmp_path / f"a.{'npy' if kind == 'npy' else 'npz'}"
    if kind == "npy":
        np.save(path, array)
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(path, w=array)
    key = "" if kind == "npy" else "w"
    with wm.open(path, verify="full") as f:
        got = f[key]
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert got.tobytes() == array.tobytes()
        assert not got.flags.writeable
        assert got.flags.f_contiguous == array.flags.f_contiguous
        little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.names is None else array
        assert b"".join(map(bytes, dense_row(f, key).chunks())) == little.tobytes()
        assert f.info(key).nbytes == array.nbytes
        assert next(iter(f.values())).tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_types_of_ml_dtypes_are_read_by_their_names(tmp_path, name):
    """numpy saves them as bytes, "<V2" and "<V1": `dtype` names their type, and nothing is guessed."""
    array = np.asfortranarray(MATRIX.astype(getattr(ml_dtypes, name)))
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", array)
    for suffix, key in ((".npy", ""), (".npz", "arr_0")):
        with wm.open(tmp_path / f"a{suffix}") as f:
            out = np.empty(array.shape, array.dtype)
            for got in (f.read(key, dtype=name), f.read(key, out=out)):
                assert (got.dtype, got.tobytes()) == (array.dtype, array.tobytes())
            for other in (None, "int16", "float16", "float8_e8m0fnu" if name == "bfloat16" else "bfloat16"):
                with pytest.raises(wm.UnsupportedError, match="dtype='bfloat16'" if name == "bfloat16" else "V1"):
                    f.read(key, dtype=other)


def test_deflated_members_are_inflated_within_the_limits():
    with io.BytesIO() as file:
        np.savez_compressed(file, w=np.zeros(1 << 20, "<f4"), v=np.ones(3))
        data = file.getvalue()
    with wm.open(data, limits=wm.Limits(max_copy_bytes=1 << 16)) as f:
        assert f["v"].tolist() == [1, 1, 1]
        for use in (f.__getitem__, f.read, lambda name: list(dense_row(f, name).chunks())):
            with pytest.raises(wm.LimitError):
                use("w")
    with wm.open(data, mode="copy") as f:
        assert f["w"].flags.writeable
        assert not f["w"].any()
        assert sum(map(len, dense_row(f, "w").chunks())) == 4 << 20


def test_what_is_no_array_is_left_out_if_not_strict():
    entries = [npz.entry("a", normal((2,))), zip_files.Entry(b"README", b"hello")]
    with wm.open(zip_files.archive(entries), strict=False) as f:
        assert list(f) == ["a"]
        assert any("README" in warning for warning in f.verify().warnings)


class Stream(io.RawIOBase):
    """A file that cannot seek, such as a pipe."""

    def __init__(self):
        self.data = bytearray()

    def writable(self):
        return True

    def seekable(self):
        return False

    def write(self, data):
        self.data += bytes(data)
        return len(bytes(data))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_that_was_written_to_a_stream(save):
    """numpy does not know the sizes in advance: a descriptor behind the bytes and the directory have them."""
    stream = Stream()
    save(stream, a=MATRIX, b=MATRIX + 1, c=np.zeros((0, 3)))
    data = bytes(stream.data)
    assert data[6] & zip_files.LATER
    with wm.open(data, verify="full") as f:
        np.testing.assert_array_equal(f["b"], MATRIX + 1)
        np.testing.assert_array_equal(f["a"], MATRIX)
    at = data.index(b"PK\7\x08") + 8
    for damaged in (data[:at] + b"\1" + data[at + 1 :], data[: at - 4] + b"\1" + data[at - 3 :]):
        with pytest.raises(wm.FormatError, match=r"descriptor|differ"):
            wm.open(damaged).verify()


def test_an_array_that_cannot_be_read_hides_no_other(tmp_path):
    """With strict=False arrays of objects, damaged headers and members of an unknown method are left out by name."""
    np.savez(tmp_path / "a.npz", w=MATRIX, b=MATRIX[0], meta=np.array({"lr": 0.1}, object))
    good = npz.entry("w", normal((2,)))
    odd = zip_files.Entry(b"odd.npy", b"hello", method=99, packed=b"hello")
    bad = zip_files.Entry(b"bad.npy", npy.build("{'descr': '<f4', 'shape': 3}", bytes(8)))
    short = zip_files.Entry(b"short.npy", npy.build(npy.TEXT % ("'<f4'", False, "(2,)"), bytes(4)))
    for source, names in (
        (tmp_path / "a.npz", {"meta"}),
        (zip_files.archive([odd, good, bad, short]), {"odd", "bad", "short"}),
    ):
        with pytest.raises(wm.FormatError):
            wm.open(source)
        with wm.open(source, strict=False) as f:
            assert "w" in f
            assert not set(f) & names
            assert f["w"].tobytes() == (MATRIX.tobytes() if "meta" in names else normal((2,)).data)
            left_out = " ".join(f.verify().warnings)
            assert all(f"'{name}.npy'" in left_out for name in names)


BAD_ENTRIES = {
    "encrypted": {"local": {"flags": 1}, "central": {"flags": 1}},
    "header of another name": {"local": {"name_len": 4}},
    "header of another method": {"local": {"method": 8}},
    "header of another size": {"local": {"size": 7}},
    "longer than the archive": {"local": {"stored": 1 << 20}, "central": {"stored": 1 << 20}},
    "into the next": {"local": {"stored": 300, "size": 300}, "central": {"stored": 300, "size": 300}},
    "beyond the directory": {"central": {"offset": 1 << 20}},
    "a name that ends at a zero byte": {"name": b"b\0ad.npy"},
    "a second name": {"more": b"\x75\x70\1\0x"},
}


@pytest.mark.parametrize("damage", BAD_ENTRIES)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_entry_of_an_archive_hides_no_other(damage, place):
    """With strict=False an ambiguous entry is left out by name, in any place."""
    sound = {"a": normal((4,), 1), "b": normal((2, 3), 2)}
    entries = [npz.entry(name, tensor) for name, tensor in sound.items()]
    bad = replace(npz.entry("bad", normal((2,))), **BAD_ENTRIES[damage])
    entries.insert(place, bad)
    data = zip_files.archive(entries)
    with pytest.raises(wm.FormatError):
        wm.open(data)
    with wm.open(data, format="npz", strict=False) as f:  # the first entry identifies archives
        assert {name: f[name].tobytes() for name in f} == {name: tensor.data for name, tensor in sound.items()}
        warnings = f.verify().warnings
        label = bad.name.decode()
        assert [warning for warning in warnings if warning.startswith(f"entry {label!r} is left out: ")]
        assert len(warnings) == 1


def test_bad_entries_are_left_out_each_by_its_name():
    """Also all of them; a directory that is itself damaged stays an error."""
    bad = [replace(npz.entry(f"bad{i}", normal((2,))), **BAD_ENTRIES["encrypted"]) for i in range(50)]
    with wm.open(zip_files.archive(bad), strict=False) as f:
        assert not list(f)
        assert len(f.verify().warnings) == 50
    data = zip_files.archive([*bad, npz.entry("a", normal((2,)))])
    at = data.rindex(b"PK\1\2")
    with pytest.raises(wm.LayoutError, match="signature of entry 50 of the central directory"):
        wm.open(data[:at] + b"XX" + data[at + 2 :], strict=False)


SOUND = npz.build({"a": normal((4,)), "b": normal((2, 3))})
CENTRAL, END = SOUND.index(b"PK\1\2"), SOUND.index(b"PK\5\6")
APART = "the header of entry 0 and its entry in the central directory differ in"


@pytest.mark.parametrize(
    ("at", "damage", "message"),
    [
        (CENTRAL, b"XX", rf"signature of entry 0 of the central directory is b'XX.*byte {CENTRAL}\)"),
        (CENTRAL + 28, b"\xff", rf"comment of entry 0 of the central directory is 255, expected at most .*{CENTRAL}\)"),
        (CENTRAL + 42, b"\xff\xff", rf"the end of entry 0 is 65535, expected at most {CENTRAL}, where"),
        (CENTRAL + 16, b"\xff\xff", f"{APART} sizes or CRC"),
        (30, b"z", f"{APART} signature, name"),
        (SOUND.index(b"\x93NUMPY"), b"X", r"entry 'a\.npy' is not an array: its magic is b'XNUMPY', expected"),
    ],
)
def test_messages_of_damaged_archives(at, damage, message):
    data = SOUND[:at] + damage + SOUND[at + len(damage) :]
    with pytest.raises(wm.LayoutError, match=message):
        wm.open(data)


NAMES = [b"", b"a", b"A", b".", b"../a", b"a\\b", b"a/b", b"a\0", b"\0"]
NAMES += [name.encode() for name in ("ü", "u\u0308", "├╝")]
MEMBERS = [name + suffix for name in NAMES for suffix in (b"", b".npy", b".npy.npy", b".npy\0x", b".NPY")]


def test_every_key_is_the_array_that_numpy_has():
    arrays = [normal((2,), 1), normal((2,), 2)]
    datas = [npy.build(npy.header_of(array), array.data) for array in arrays]
    accepted = 0
    for names in itertools.permutations(MEMBERS, 2):
        for flags in (0, zip_files.UTF8):
            fields = {"flags": flags}
            pairs = zip(names, datas, strict=True)
            data = zip_files.archive([zip_files.Entry(*pair, local=fields, central=fields) for pair in pairs])
            try:
                ours = {key: array.tobytes() for key, array in wm.open(data).items()}
            except wm.FormatError:
                continue
            with np.load(io.BytesIO(data)) as theirs:
                assert ours == {key: theirs[key].tobytes() for key in theirs.files}, names
            accepted += 1
    assert accepted > 1000


def refused(path, **options):
    """Return the message of an error of opening, which must close the file at once, not at the next collection."""
    gc.collect()
    gc.disable()
    try:
        before = set(Path("/proc/self/fd").iterdir())
        try:
            wm.open(path, **options)
        except wm.FormatError as error:
            message = str(error)
        assert set(Path("/proc/self/fd").iterdir()) == before
    finally:
        gc.enable()
    return message


@has_descriptors
def test_a_deflated_entry_that_is_cut_off_meanwhile_keeps_no_descriptor(tmp_path, monkeypatch):
    """The error and its traceback make no cycle."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(5000.0))
    real = sources.access.read_into
    # As for a file truncated after its directory, at its end, was read.
    monkeypatch.setattr(sources.access, "read_into", lambda *call: 0 if call[2] < 100 else real(*call))
    assert "became shorter while it was being read" in refused(path)


@has_descriptors
def test_a_damaged_archive_keeps_no_descriptor(tmp_path):
    path = tmp_path / "archive"
    np.savez(path.with_suffix(".npz"), a=MATRIX)
    data = path.with_suffix(".npz").read_bytes()
    begin = int.from_bytes(data[-6:-2], "little")
    path.write_bytes(data[:begin] + bytes(8) + data[begin:-6] + (begin + 8).to_bytes(4, "little") + data[-2:])
    assert "bytes of the archive belong to no entry" in refused(path)
    path.write_bytes(data[: begin + 28] + b"\xff" + data[begin + 29 :])
    assert "of the central directory" in refused(path, strict=False)
    program, _ = torch.stored({"w": normal((2, 3))})
    path.write_bytes(torch.zipped(torch.dump(program), {}))
    assert "has no entry 'archive/data/0', a storage" in refused(path)
