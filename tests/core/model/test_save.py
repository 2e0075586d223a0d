"""Writing: the bytes of the file, refusals before a file exists, and atomic replacement.

Files are read back by the suite's own parser, not only by the package.
"""

import errno
import gc
import os
import re
import stat
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from tests import builders
from tests.builders import embd, tensor
from tests.builders import safetensors as st
from tests.support import DATA, listing, mappings, same, save_with

import weightmap as wm
from weightmap.core.bytes import atomic
from weightmap.core.formats import FORMATS

RNG = np.random.default_rng(7)


def holds(path, kind, tensors):
    """Whether a file has these tensors and no others, by the suite's own reader or writer."""
    data = path.read_bytes()
    if kind == "simple":
        return data == embd.simple(tensors.items())
    return (embd.parse(data).tensors if kind == "embd" else st.parse(data)[0]) == tensors


def save_as(path, tensors, kind, **options):
    if kind == "simple":
        save_with(path, tensors, format="embd", layout="simple", **options)
    else:
        save_with(path, tensors, format=kind, **options)


every_kind = pytest.mark.parametrize("kind", ["embd", "simple", "safetensors"])


BASE = RNG.standard_normal((6, 8)).astype(np.float32)
SHAPES_OF_ARRAYS = {
    "plain": BASE,
    "fortran": np.asfortranarray(BASE),
    "transposed": BASE.T,
    "strided": BASE[::2, 1::3],
    "reversed": BASE[::-1, ::-1],
    "broadcast": np.broadcast_to(BASE[:1], (4, 8)),
    "permuted": RNG.standard_normal((2, 3, 4, 5)).astype(np.float32).transpose(2, 0, 3, 1),
    "big-endian": BASE.astype(">f4"),
    "big-endian strided": BASE.astype(">f4")[:, ::-2],
    "empty": np.zeros((0, 7), np.float32),
    "empty inside": np.zeros((3, 0, 2), np.float32),
    "one": np.array([3.5], np.float32),
    "read-only": np.frombuffer(BASE.tobytes(), np.float32),
    "unaligned": np.frombuffer(b"x" + BASE.tobytes(), np.float32, offset=1),
    "special values": np.array([np.nan, -0.0, np.inf, -np.inf, 1e-45], np.float32),
}


@every_kind
def test_arrays_of_any_strides_and_byte_order(tmp_path, kind):
    path = tmp_path / "out"
    for arrays in (SHAPES_OF_ARRAYS, *({name: array} for name, array in SHAPES_OF_ARRAYS.items())):
        expected = {name: tensor(array) for name, array in arrays.items()}
        save_as(path, arrays, kind)
        assert holds(path, kind, expected)
        with wm.open(path, verify="full") as f:
            assert all(same(f[name], value) for name, value in expected.items())


@pytest.mark.parametrize("source", ["ground truth", "builder"])
def test_the_writer_equals_the_ground_truth(tmp_path, source):
    """Saving the contents of the ground-truth file, and of the builder's largest, gives that file byte for byte."""
    if source == "builder":
        data = next(item for item in embd.examples() if item.name == "spec-everything").data
    else:
        data = (DATA / "embd" / "spec_ourreading" / "all_dtypes_aligned.weights").read_bytes()
    content, path = embd.parse(data), tmp_path / "out.weights"
    tensors = {name: value.array for name, value in content.tensors.items()}
    wm.save(path, tensors, metadata=content.metadata, vocab=content.vocab, special_ids=content.special_ids)
    assert path.read_bytes() == data


def test_the_suffix_chooses_the_format(tmp_path):
    wm.save(tmp_path / "a.weights", {"t": BASE})
    wm.save(tmp_path / "a.safetensors", {"t": BASE})
    assert (tmp_path / "a.weights").read_bytes()[:4] == b"EMBD"
    assert st.parse((tmp_path / "a.safetensors").read_bytes())[0]
    with pytest.raises(ValueError, match=r"\.weights"):
        wm.save(tmp_path / "a.unknown", {"t": BASE})
    with pytest.raises(ValueError, match="nonsense"):
        wm.save(tmp_path / "a.weights", {"t": BASE}, format="nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        wm.save(tmp_path / "a.weights", {"t": BASE}, output=wm.Output("nonsense"))
    assert listing(tmp_path) == ["a.safetensors", "a.weights"]


SEVERAL = {"good": BASE} | {name: np.zeros(2, kind) for name, kind in zip("bifc", ["?", "i8", "f8", "c8"], strict=True)}
REFUSED = {
    "no dimensions": ({"good": BASE, "scalar": np.zeros((), np.float32)}, {}, ["scalar"]),
    "several dtypes": (SEVERAL, {}, ["b", "i", "f", "c"]),
    "u64 and float8": ({"u": np.zeros(2, np.uint64), "e": np.zeros(2, ml_dtypes.float8_e5m2)}, {}, ["u", "e"]),
    "objects": ({"o": np.array([None, {}])}, {}, ["o"]),
    "text": ({"s": np.array(["a", "b"]), "y": np.array([b"a"])}, {}, ["s", "y"]),
    "times and records": ({"d": np.zeros(1, "M8[s]"), "r": np.zeros(1, [("x", "f4")])}, {}, ["d", "r"]),
    "name with a surrogate": ({"\ud800": BASE}, {}, ["\\ud800"]),
    "metadata with a surrogate": ({"a": BASE}, {"metadata": {"key": "\udfff"}}, ["key"]),
    "metadata of bytes": ({"a": BASE}, {"metadata": {"key": b"bytes"}}, ["key"]),
    "metadata of objects": ({"a": BASE}, {"metadata": {"key": {"nested": 1}}}, ["key"]),
    "token with a surrogate": ({"a": BASE}, {"vocab": ["ok", "\ud800"]}, []),
    "unknown special id": ({"a": BASE}, {"vocab": ["ok"], "special_ids": {"bos": 0}}, ["bos"]),
    "special ids alone": ({"a": BASE}, {"special_ids": {"pad": 0}}, ["special_ids without a vocabulary"]),
}
NOT_SIMPLE = {
    "float16": ({"h": np.zeros(2, np.float16)}, {}),
    "int32": ({"i": np.zeros(2, np.int32)}, {}),
    "scalar": ({"s": np.zeros((), np.float32)}, {}),
    "metadata": ({"a": BASE}, {"metadata": {"key": "value"}}),
    "special ids": (
        {"a": BASE},
        {"vocab": ["x"], "special_ids": dict.fromkeys(["pad", "unk", "cls", "sep", "mask"], 0)},
    ),
}
NOT_SAFETENSORS = {
    "objects": ({"o": np.array([None])}, {}),
    "text": ({"s": np.array(["text"])}, {}),
    "longdouble": ({"l": np.zeros(2, np.longdouble)}, {}),
    "surrogate name": ({"\ud800": BASE}, {}),
    "reserved name": ({"__metadata__": BASE}, {}),
    "metadata type": ({"a": BASE}, {"metadata": {"key": 5.5}}),
    "metadata text": ({"a": BASE}, {"metadata": {"key": "\ud800"}}),
    "vocabulary": ({"a": BASE}, {"vocab": ["a"]}),
}
CASES = {"embd": REFUSED, "simple": NOT_SIMPLE, "safetensors": NOT_SAFETENSORS}


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind, cases in CASES.items() for case in cases])
def test_what_a_format_cannot_express(tmp_path, kind, case):
    """Content that does not fit EMBD is an EncodeError that names every offender, before any file is touched."""
    tensors, options, *named = CASES[kind][case]
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(wm.EncodeError) as caught:
        save_as(path, tensors, kind, **options)
    text = str(caught.value)
    assert all(name in text for names in named for name in names), text
    assert "'good'" not in text
    assert len(text) < 2000
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == ["out"]


@pytest.mark.parametrize(("dtype", "options"), [("complex128", {}), ("float32", {"config": {}})], ids=["dtype", "part"])
def test_an_error_keeps_no_array(tmp_path, dtype, options):
    """The error and its traceback make no cycle: arrays are freed at once, not at the next collection."""
    array = np.zeros(4, dtype)
    reference = weakref.ref(array)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(wm.EncodeError) as caught:
            wm.save(tmp_path / "x.safetensors", {"w": array}, **options)
        assert caught.value.refused
        del array, caught
        assert reference() is None
    finally:
        gc.enable()


@every_kind
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0, 0o666)])
def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path, kind, umask, mode):
    before = os.umask(umask)
    try:
        save_as(tmp_path / "out", {"a": BASE}, kind)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444, 0o4755, 0o2755, 0o1644, 0o6711])
def test_new_content_has_the_permissions_of_the_old_and_does_not_run_as_somebody_else(tmp_path, mode):
    """The setuid, setgid and sticky bits belong to the old content: the new one keeps only the permissions."""
    path = tmp_path / "out.weights"
    path.write_bytes(b"old")
    path.chmod(mode)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    wm.save(path, {"a": BASE})
    assert stat.S_IMODE(path.stat().st_mode) == mode & 0o777
    assert embd.parse(path.read_bytes()).tensors


@pytest.mark.parametrize("dangling", [False, True])
def test_a_symbolic_link_stays_a_link(tmp_path, dangling):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "model.weights", tmp_path / "link.weights"
    if not dangling:
        target.write_bytes(b"old")
    link.symlink_to(target)
    wm.save(link, {"a": BASE})
    assert link.is_symlink()
    assert embd.parse(target.read_bytes()).tensors
    assert listing(tmp_path / "real") == ["model.weights"]


def test_targets_that_are_no_files(tmp_path):
    (tmp_path / "dir.weights").mkdir()
    os.mkfifo(tmp_path / "fifo.weights")
    before = listing(tmp_path)
    for name, error in (
        ("dir", IsADirectoryError),
        ("fifo", wm.NotRegularFileError),
        ("no/such/place", FileNotFoundError),
    ):
        with pytest.raises(error):
            wm.save(tmp_path / f"{name}.weights", {"a": BASE})
    assert listing(tmp_path) == before
    assert stat.S_ISFIFO((tmp_path / "fifo.weights").stat().st_mode)


@pytest.mark.parametrize("error", [OSError("enough"), BrokenPipeError(errno.EPIPE, "Broken pipe")])
def test_an_error_of_progress_does_not_name_the_file(tmp_path, error):
    """It would seem to be about the model; the words of an error without a number would be lost."""
    message = str(error)

    def progress(_done, _total):
        raise error

    with pytest.raises(OSError, match=re.escape(message)) as caught:
        wm.save(tmp_path / "w.bt", {"a": BASE}, progress=progress)
    assert caught.value is error
    assert (str(error), error.filename) == (message, None)
    assert listing(tmp_path) == []


@pytest.mark.parametrize("name", ["new/", "there/", "dir/", "dir/new/", "slash link", "."])
def test_a_directory_is_not_taken_for_a_file(tmp_path, name):
    """A path that ends in a slash names a directory, as it does to `open`: nothing is written under the bare name."""
    (tmp_path / "there").write_bytes(b"old")
    (tmp_path / "dir").mkdir()
    (tmp_path / "slash link").symlink_to("new/")
    target = os.path.join(tmp_path, name)  # noqa: PTH118 - a Path has no slash at its end
    with pytest.raises(IsADirectoryError, match="this is a directory: give the name of a file in it, or ") as caught:
        wm.save(target, {"a": BASE}, format="embd")
    assert caught.value.filename == target
    with pytest.raises(IsADirectoryError):
        open(target, "wb").close()  # noqa: PTH123
    assert listing(tmp_path) == ["dir", "slash link", "there"]
    assert (tmp_path / "there").read_bytes() == b"old"
    assert listing(tmp_path / "dir") == []


def test_a_directory_gets_shards(tmp_path):
    with pytest.raises(IsADirectoryError, match="or max_shard_size= and format= for shards"):
        wm.save(tmp_path, {"a": BASE})
    wm.save(tmp_path, {"a": BASE}, max_shard_size="1GB", format="safetensors")
    with wm.open(tmp_path) as f:
        assert list(f) == ["a"]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "n" + "é" * 127, "w.bt"])
def test_the_longest_names(tmp_path, name, monkeypatch):
    """Any valid file name can be saved to; the name of the temporary file is no longer, and is valid UTF-8."""
    seen = []
    replace = os.replace

    def watched(source, target, **options):
        seen.append(os.fsencode(source))
        replace(source, target, **options)

    monkeypatch.setattr(os, "replace", watched)
    wm.save(tmp_path / name, {"a": BASE}, format="safetensors")
    assert listing(tmp_path) == [name]
    assert all(len(found) <= max(len(name.encode()), 64) and found.decode().startswith(".") for found in seen)


@every_kind
def test_saving_over_the_file_that_is_mapped(tmp_path, kind):
    path = tmp_path / "out"
    save_as(path, {"a": BASE, "b": BASE * 2}, kind)
    f = wm.open(path)
    old = f["a"]
    assert mappings(path)
    save_as(path, {"a": f["b"], "b": f["a"], "c": f["a"][::-1]}, kind)
    assert same(old, tensor(BASE))
    f.close()
    assert holds(path, kind, {"a": tensor(BASE * 2), "b": tensor(BASE), "c": tensor(BASE[::-1])})


def test_two_writers_both_complete(tmp_path):
    path, failed = tmp_path / "out.weights", []

    def write(number):
        try:
            for _ in range(5):
                wm.save(path, {"n": np.full(5000, number, np.int32)})
        except BaseException as error:  # noqa: BLE001 - a thread's error has to reach the test
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(set(wm.load(path)["n"].tolist())) == 1
    assert listing(tmp_path) == ["out.weights"]


MIB = 1 << 20
# The suffixes of formats that hold bytes under any name.
OF_BYTES = [
    builder.suffix
    for name, builder in builders.known().items()
    if builder.names_tensors and any("uint8" in dtypes for dtypes in FORMATS[name].dtypes.values())
]
# Bytes of tensors, one after another: none, few, and many around the pieces in which a file is written.
LENGTHS = {
    "small ones": [1 << 18] * 40,
    "one": [11 * MIB + 5],
    "small before large": [5, 9 * MIB],
    "large, then small": [5 * MIB, 1, 3],
    "ends at a piece": [4 * MIB - 64, 64, 2 * MIB],
    "longer than one direct write": [3, 37 * MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1],
    "small": [1000],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("suffix", OF_BYTES)
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("in_memory", [True, False])
def test_files_are_written_in_large_aligned_pieces(tmp_path, monkeypatch, suffix, lengths, *, checksums, in_memory):
    """Each write but the last part's begins at a multiple of 2 MiB and is 2 MiB long; the beginning comes last.

    On tmpfs each is one piece of 256 KiB.
    """
    monkeypatch.setattr(atomic, "_is_in_memory", lambda *_: in_memory)
    piece = MIB // 4 if in_memory else 2 * MIB
    written = []
    real = os.pwrite

    def pwrite(fd, data, offset):
        written.append((offset, len(data)))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    tensors = {f"t{i:02}": RNG.integers(0, 256, length, np.uint8) for i, length in enumerate(lengths)}
    path = tmp_path / f"model{suffix}"
    save_with(path, tensors, checksums=checksums, durable=False)
    size = path.stat().st_size
    assert written[-1][0] == 0
    written.sort()
    assert [offset for offset, _ in written] == [0, *(sum(pair) for pair in written[:-1])]  # each byte once
    assert sum(written[-1]) == size
    assert all(offset % piece == 0 for offset, _ in written)
    assert all(count == piece if in_memory else count % piece == 0 for _, count in written[:-1])
    with wm.open(path, verify="full") as f:
        assert all(np.array_equal(f[name], array) for name, array in tensors.items())


def test_subclasses_of_arrays_are_saved_right_or_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3).view(np.matrix)
    wm.save(path, {"m": matrix})
    assert np.array_equal(wm.load(path)["m"], np.asarray(matrix))
    with pytest.raises(wm.EncodeError, match="'masked'"):
        wm.save(path, {"masked": np.ma.masked_array(np.ones(2, np.float32), [True, False])})


def test_remedies_for_an_ambiguous_suffix_are_ones_that_save_has(tmp_path):
    """Only if tensors or words show that another format was meant, not if another argument is wrong."""
    path, layers = tmp_path / "x.bin", {"layer.0.weight": np.ones((2, 3, 3, 3), np.float16)}
    remedy = "; for words, convert with format='word2vec' or fasttext; for a model, write safetensors"
    for tensors, options in (
        ({"embeddings": np.ones((2, 3))}, {"vocab": ["a", "b"]}),
        ({"a": np.ones((2, 3, 3, 3), np.float16)}, {}),
    ):
        with pytest.raises(wm.EncodeError, match="bin means CNN v2 here") as caught:
            wm.save(path, tensors, **options)
        assert str(caught.value).endswith(remedy)
    for options in ({"metadata": {"x": 1}}, {"metadata": {"mip_level": -1}}, {"output": wm.Output(align=64)}):
        with pytest.raises(wm.EncodeError, match="bin means CNN v2 here") as caught:
            wm.save(path, layers, **options)
        assert "; " not in str(caught.value)


@pytest.mark.parametrize("code", ["F4", "F6_E2M3", "F6_E3M2", "U8"])
def test_packed_elements_of_a_handle_keep_their_type(tmp_path, code):
    """numpy's bytes do not tell the type; a path and a handle do."""
    octets = bytes(range(3 * int(code[1])))
    head = b'{"w":{"dtype":"%b","shape":[3,8],"data_offsets":[0,%d]}}' % (code.encode(), len(octets))
    (tmp_path / "a.safetensors").write_bytes(st.raw(head, octets))
    with wm.open(tmp_path / "a.safetensors") as f:
        for source in (f, tmp_path / "a.safetensors"):
            wm.save(tmp_path / "b.safetensors", source)
            with wm.open(tmp_path / "b.safetensors") as g:
                assert (g.info("w").dtype, g.info("w").shape) == (f.info("w").dtype, (3, 8))
                assert g["w"].tobytes() == octets
        if code != "U8":
            with pytest.raises(wm.EncodeError, match=f"'w': dtype {f.info('w').dtype}"):
                wm.save(tmp_path / "b.weights", f)
