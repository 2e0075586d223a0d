"""The promises of `TensorFile`, stated once and tested on every example file of every format.

A format takes part by having a module in `builders/`; one without fails the first test.
"""

import gc
import inspect
import io
import mmap
import os
import pickle
from collections.abc import Mapping

import numpy as np
import pytest
from tests import builders
from tests.support import address, each, exercise, in_one_item, mappings, run_child, same

import weightmap as wm
from weightmap.core.bytes import open_source
from weightmap.core.bytes import source as sources

EXAMPLES = builders.examples()
WITH_DATA = [example for example in EXAMPLES if any(value.data for value in example.tensors.values())]
# The largest small file of each format and layout.
TYPICAL = [e for e in sorted(WITH_DATA, key=lambda e: len(e.data)) if len(e.data) <= 1000]
TYPICAL = list({(e.format, e.layout): e for e in TYPICAL}.values())
MODES = ("mmap", "cow", "copy", "sealed") if hasattr(os, "memfd_create") else ("mmap", "cow", "copy")
every_mode = in_one_item("mode", MODES)
needs_sealing = pytest.mark.skipif("sealed" not in MODES, reason="this system has no memory that can be sealed")


def of_every(examples):
    """Make a test of one example one of all examples of a format: an item for each of them took longer than the tests.

    Each example has a folder of its own, and is there as a file if the test has a parameter `path`.
    """
    formats = {example.format: [other for other in examples if other.format == example.format] for example in examples}

    def decorate(test):
        wanted = inspect.signature(test).parameters
        others = [wanted[name] for name in wanted if name not in {"example", "path", "tmp_path"}]

        def run(format, tmp_path, **more):
            def check(example):
                folder = tmp_path / example.name
                folder.mkdir()
                target = folder / f"example{example.suffix}"
                if "path" in wanted:
                    target.write_bytes(example.data)
                given = {"example": example, "path": target, "tmp_path": folder} | more
                test(**{name: given[name] for name in wanted})

            each(formats[format], check, name=lambda example: example.name)

        run.__doc__ = test.__doc__
        own = inspect.signature(run).parameters
        run.__signature__ = inspect.Signature([own["format"], own["tmp_path"], *others])
        run.pytestmark = [*getattr(test, "pytestmark", ())]
        return pytest.mark.parametrize("format", formats)(run)

    return decorate


every_example = of_every(EXAMPLES)
every_with_data = of_every(WITH_DATA)
# One of each layout, for tests of the way to the bytes, of many threads or of thousands of openings.
every_typical = of_every(TYPICAL)


def first_with_data(example):
    return next(name for name, value in example.tensors.items() if value.data)


def test_every_format_has_examples():
    known = builders.known()
    missing = [name for name in wm.formats() if name not in known]
    assert not missing
    for name, builder in known.items():
        assert builder.examples(), name


def test_builders_know_no_format_that_the_package_does_not():
    assert set(builders.known()) <= set(wm.formats())


@every_example
def test_content_is_the_builders(example, path):
    with wm.open(path) as f:
        assert set(f) == set(example.tensors)
        for name, value in example.tensors.items():
            assert same(f[name], value), name
        assert dict(f.metadata) == dict(example.metadata)
        assert tuple(f.vocab or ()) == (example.vocab or ())
        if example.special_ids is not None:
            assert dict(f.vocab.special_ids) == dict(example.special_ids)
        assert f.format == example.format
        assert isinstance(f.layout, str)
        if example.layout is not None:
            assert f.layout == example.layout
        assert os.fspath(f.path) == str(path)


@every_example
def test_it_is_a_mapping_in_file_order(example, path):
    with wm.open(path) as f:
        assert isinstance(f, Mapping)
        assert len(f) == len(example.tensors)
        assert list(f) == list(example.tensors)
        assert list(f.keys()) == list(f)
        assert [name for name, _ in f.items()] == list(f)
        assert all(same(array, value) for array, value in zip(f.values(), example.tensors.values(), strict=True))
        assert all(same(array, example.tensors[name]) for name, array in f.items())
        assert all(name in f for name in example.tensors)
        assert all(same(f.get(name), value) for name, value in example.tensors.items())
        assert "no such tensor" not in f
        assert f.get("no such tensor") is None
        assert f.get("no such tensor", 5) == 5
        assert 5 not in f
        assert all(type(name) is str for name in f)


@every_example
def test_info_reads_no_data(example, path):
    """Info and infos give name, dtype, shape, absolute offset and size; the bytes at that offset are the tensor's."""
    with wm.open(path) as f:
        infos = list(f.infos())
        assert [info.name for info in infos] == list(example.tensors)
        for info in infos:
            value = example.tensors[info.name]
            assert (info.dtype, info.shape, info.nbytes) == (value.dtype, value.shape, len(value.data))
            assert example.data[info.offset : info.offset + info.nbytes] == value.data
            assert f.info(info.name) == info
            assert isinstance(info.shape, tuple)
            assert all(type(part) is int for part in (*info.shape, info.offset, info.nbytes))
            assert type(info.dtype) is str


@every_example
def test_unknown_names_are_key_errors(example, path):
    with wm.open(path) as f:
        for look_up in (f.__getitem__, f.info, f.read):
            with pytest.raises(wm.TensorNotFoundError) as caught:
                look_up("no such tensor")
            assert isinstance(caught.value, KeyError)
            assert "no such tensor" in str(caught.value)
            with pytest.raises(
                wm.TensorNotFoundError, match=r"no tensor is called 7 among .*; names are strings \(str\)$"
            ):
                look_up(7)


@every_example
def test_metadata_is_a_read_only_mapping_and_what_a_format_lacks_is_none(example, path):
    with wm.open(path) as f:
        assert isinstance(f.metadata, Mapping)
        with pytest.raises((TypeError, AttributeError)):
            f.metadata["new"] = "value"
        assert f.config == example.config
        assert (f.tokenizer and f.tokenizer.payload) == example.tokenizer
        assert type(f.nbytes) is int
        assert f.nbytes in {len(example.data), sum(len(value.data) for value in example.tensors.values())}


@every_example
def test_repr_is_short_and_harmless(example, path):
    f = wm.open(path)
    shown = repr(f)
    f.close()
    for text in (shown, repr(f)):
        assert text.isprintable()
        assert len(text) < 500


@every_with_data
def test_arrays_are_views_of_the_mapping(example, path):
    with wm.open(path) as f:
        held = list(f.values())
        assert len(mappings(path)) == 1
        for name, value, array in zip(example.tensors, example.tensors.values(), held, strict=True):
            assert not array.flags.owndata
            assert not array.flags.writeable
            if value.data:
                with pytest.raises(ValueError, match=r"WRITEABLE|read-only|writeable"):
                    array.flags.writeable = True
                [(start, _)] = [area for area in mappings(path) if area[0] <= address(array) < area[1]]
                assert address(array) - start == f.info(name).offset
                assert address(array) == address(f[name])
                with pytest.raises(ValueError, match="read-only"):
                    array.reshape(-1).view(np.uint8)[0] = 1


@every_with_data
def test_views_outlive_close(example, path):
    f = wm.open(path)
    held = dict(f)
    f.close()
    del f
    gc.collect()
    path.unlink()
    assert all(same(array, example.tensors[name]) for name, array in held.items())


@every_with_data
def test_the_mapping_goes_with_the_last_view(example, path):
    f = wm.open(path)
    array = f[first_with_data(example)]
    f.close()
    assert mappings(path)
    del array
    gc.collect()
    assert not mappings(path)


@every_example
def test_close_is_idempotent_and_look_ups_then_fail(example, path):
    f = wm.open(path)
    f.close()
    f.close()
    name = next(iter(example.tensors), "anything")
    for look_up in (f.__getitem__, f.read):
        with pytest.raises(wm.ClosedError) as caught:
            look_up(name)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(wm.ClosedError):
        f.verify()
    f = wm.open(path)
    with f as inside:
        assert inside is f
    with pytest.raises(wm.ClosedError):
        f[name]
    with pytest.raises(ZeroDivisionError), wm.open(path):
        raise ZeroDivisionError


@every_example
def test_a_closed_handle_does_not_claim_that_the_file_had_nothing(example, path):
    """A closed handle answers with a ClosedError that has the path, and not with a None that says "there is none"."""
    f = wm.open(path)
    repr(f.embeddings)  # after the first look the handle keeps it
    f.close()
    for attribute in ("vocab", "config", "tokenizer", "embeddings", "metadata"):
        with pytest.raises(wm.ClosedError) as caught:
            getattr(f, attribute)
        assert caught.value.path == str(path)


@every_with_data
def test_mode_cow_is_writable_and_leaves_the_file_alone(example, path):
    name = first_with_data(example)
    with wm.open(path, mode="cow") as f:
        raw = f[name].reshape(-1).view(np.uint8)
        assert mappings(path)
        raw[...] = ~raw
        assert f[name].tobytes() == bytes(255 - byte for byte in example.tensors[name].data)
    assert path.read_bytes() == example.data
    with wm.open(path) as f:
        assert same(f[name], example.tensors[name])


@every_example
def test_mode_copy_leaves_no_mapping(example, path):
    """In mode "copy" the content is the same, nothing is mapped, and the file may even be emptied afterwards."""
    with wm.open(path, mode="copy") as f:
        held = dict(f)
        assert not mappings(path)
        path.write_bytes(b"")
        assert all(same(array, example.tensors[name]) for name, array in held.items())


@every_example
@needs_sealing
def test_mode_sealed_keeps_the_content_of_the_file(example, path):
    """In mode "sealed" the content is the same and read-only for good, and the file may even be emptied afterwards."""
    with wm.open(path, mode="sealed") as f:
        held = dict(f)
        assert not mappings(path)
        path.write_bytes(b"")
        assert f.is_stable
        for name, array in held.items():
            assert same(array, example.tensors[name])
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.setflags(write=True)
        assert f.verify().checks
        assert list(f.vocab or ()) == list(example.vocab or ())


@every_typical
@every_mode
def test_the_environment_sets_the_default_mode(example, path, mode, monkeypatch):
    """WEIGHTMAP_MODE chooses the mode unless the call does."""
    monkeypatch.setenv("WEIGHTMAP_MODE", mode)
    name = first_with_data(example)
    with wm.open(path) as f:
        array = f[name]
        assert bool(mappings(path)) == (mode in {"mmap", "cow"})
        assert array.flags.writeable or mode != "cow"
        assert not array.flags.writeable or mode in {"cow", "copy"}
    with wm.open(path, mode="mmap") as f:
        assert not f[name].flags.writeable
        assert mappings(path)


def test_an_unknown_mode_or_format_is_a_value_error(tmp_path):
    path = tmp_path / "absent.weights"
    for options in ({"mode": "nonsense"}, {"format": "nonsense"}, {"verify": "nonsense"}):
        with pytest.raises(ValueError, match="nonsense"):
            wm.open(path, **options)


@pytest.mark.parametrize("of", ["model.safetensors", "", "model.safetensors.index.json"])
def test_an_unknown_mode_of_the_environment_names_the_variable(tmp_path, monkeypatch, of):
    options = {"max_shard_size": 4} if of.endswith(".json") else {}
    wm.save(tmp_path / "model.safetensors", {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}, **options)
    monkeypatch.setenv("WEIGHTMAP_MODE", "bogus")
    for call in (wm.open, wm.verify):
        with pytest.raises(ValueError, match=r"^the environment variable WEIGHTMAP_MODE is 'bogus', expected one of "):
            call(tmp_path / of)
    wm.open(tmp_path / of, mode="mmap").close()


def _as_map(path):
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


SOURCES = {
    "str": str,
    "PathLike": lambda path: path,
    "BytesIO": lambda path: io.BytesIO(path.read_bytes()),
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "array": lambda path: np.frombuffer(path.read_bytes(), np.uint8),
    "mmap": _as_map,
}


@every_typical
@in_one_item("kind", SOURCES)
def test_every_kind_of_source(example, path, kind):
    with wm.open(SOURCES[kind](path)) as f:
        assert list(f) == list(example.tensors)
        assert all(same(array, example.tensors[name]) for name, array in f.items())
        assert tuple(f.vocab or ()) == (example.vocab or ())
        f.verify()


@every_typical
def test_a_descriptor_is_borrowed(example, path):
    """An int descriptor is neither closed nor moved, and may be closed by its owner while the handle lives."""
    fd = os.open(path, os.O_RDONLY)
    os.lseek(fd, 3, os.SEEK_SET)
    with wm.open(fd) as f:
        exercise(f)
        assert os.lseek(fd, 0, os.SEEK_CUR) == 3
        os.close(fd)
        assert all(same(array, example.tensors[name]) for name, array in f.items())
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)
    fd = os.open(path, os.O_RDONLY)
    wm.open(fd).close()
    assert os.pread(fd, 8, 0) == example.data[:8]
    os.close(fd)


@every_typical
def test_a_file_object_is_borrowed(example, path):
    with path.open("rb") as file:
        file.seek(5)
        with wm.open(file) as f:
            assert all(same(array, example.tensors[name]) for name, array in f.items())
        assert not file.closed
        assert file.tell() == 5


@every_with_data
def test_a_buffer_is_not_copied(example, path):
    buffer = bytearray(example.data)
    with wm.open(buffer) as f:
        name = first_with_data(example)
        array = f[name]
        assert address(array) == address(np.frombuffer(buffer, np.uint8)) + f.info(name).offset
        with pytest.raises(BufferError):
            buffer.extend(b"more")


@every_typical
def test_a_strided_memoryview_is_refused(example):
    spread = bytearray(2 * len(example.data))
    spread[::2] = example.data
    with pytest.raises(TypeError):
        wm.open(memoryview(spread)[::2])


@pytest.mark.parametrize("source", [None, 3.5, ..., ["a"]], ids=repr)
def test_a_source_of_a_wrong_type_is_a_type_error(source):
    with pytest.raises(TypeError):
        wm.open(source)


@every_typical
def test_the_suffix_means_nothing(example, put):
    for suffix in (*(builder.suffix for builder in builders.known().values()), ".txt", ""):
        with wm.open(put(example.data, "file" + suffix)) as f:
            assert f.format == example.format


@every_example
def test_the_format_may_be_named(example, path):
    with wm.open(path, format=example.format) as f:
        assert list(f) == list(example.tensors)
    for other in wm.formats():
        if other != example.format:
            with pytest.raises(wm.FormatError):
                wm.open(path, format=other)


@every_example
def test_read_widens_to_float32(example, path):
    """Read gives a new, writable float32 array with numpy's own values, and fills `out` in place when given.

    float64 and complex numbers, which float32 cannot hold, keep their type.
    """
    with wm.open(path) as f, np.errstate(all="ignore"):
        for name, value in example.tensors.items():
            wanted = value.dtype if value.dtype in {"float64", "complex64", "complex128"} else "float32"
            expected = value.array.astype(wanted)
            got = f.read(name)
            assert got.dtype == wanted
            assert got.shape == value.shape
            assert got.flags.writeable
            np.testing.assert_array_equal(got, expected)
            out = np.full(value.shape, 9, wanted)
            assert f.read(name, out=out) is out
            np.testing.assert_array_equal(out, expected)


@every_example
def test_read_in_the_tensors_own_dtype_is_a_copy(example, path):
    with wm.open(path) as f:
        for name, value in example.tensors.items():
            got = f.read(name, value.array.dtype)
            assert same(got, value)
            assert got.flags.writeable
            assert not np.may_share_memory(got, f[name])


@every_example
def test_load_gives_arrays_that_need_no_handle(example, path):
    loaded = wm.load(path)
    path.unlink()
    assert type(loaded) is dict
    assert list(loaded) == list(example.tensors)
    assert all(same(array, example.tensors[name]) for name, array in loaded.items())


@every_example
def test_prefetch_returns_nothing_and_changes_nothing(example, path):
    with wm.open(path) as f:
        assert f.prefetch() is None
        assert f.prefetch(list(example.tensors)[:1]) is None
        assert f.prefetch([]) is None
        with pytest.raises(wm.TensorNotFoundError):
            f.prefetch(["no such tensor"])
        exercise(f)


@every_example
def test_a_pool_holds_every_tensor(example, path):
    """Read-only, with the same bits, also of its entries; nothing is a view of the mapping."""
    with wm.open(path) as f, f.pool(16 << 20) as pool:
        pool.prefetch(list(f))
        for name, value in example.tensors.items():
            with pool.hold(name) as array:
                assert same(array, value)
                assert not array.flags.writeable
                assert not np.may_share_memory(array, f[name])
            if value.shape and value.shape[0]:
                with pool.hold(name, -1) as entry:
                    assert entry.tobytes() == value.array[-1:].tobytes()


@every_example
@pytest.mark.parametrize("level", ["header", "full", "none"])
def test_a_sound_file_passes_every_level(example, path, level):
    with wm.open(path, verify=level) as f:
        assert all(same(array, example.tensors[name]) for name, array in f.items())


@every_example
def test_verify_reports_its_checks(example, path):
    seen = []
    with wm.open(path) as f:
        report = f.verify(progress=lambda done, total: seen.append((done, total)))
    assert report.checks
    assert all(isinstance(line, str) for line in (*report.checks, *report.warnings))
    for done, total in seen:
        assert 0 <= done <= total <= 2 * len(example.data)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    if seen:
        assert seen[-1][0] == seen[-1][1]
    assert (report.structure_only is None) == example.checksums
    why = f"structure only, every byte readable: {report.structure_only}"
    assert report.scope == ("structure and checksums" if example.checksums else why)
    assert example.checksums or why.endswith(" has no checksums")


@every_typical
def test_verify_says_the_same_by_any_number_of_threads(example, path):
    with wm.open(path) as f:
        report = f.verify()
        assert all(f.verify(threads=threads) == report for threads in (1, 2, 3))
    assert wm.verify(path, threads=2) == report


@every_with_data
def test_a_changed_tensor_fails_its_checksum_and_nothing_else(example, path):
    """`verify` keeps its promise: a changed bit in any tensor is a ChecksumError where the file has checksums."""
    with wm.open(path) as f:
        places = [info.offset for info in f.infos() if info.nbytes]
    for offset in places:
        data = bytearray(example.data)
        data[offset] ^= 1
        path.write_bytes(data)
        try:
            with wm.open(path) as f:
                f.verify()
        except wm.ChecksumError:
            assert example.checksums
        except wm.TensorFileError:  # such as an impossible scale or code
            assert not example.checksums
        else:
            assert not example.checksums


@every_typical
@every_mode
def test_a_pickled_handle_reopens_its_path(example, path, mode):
    with wm.open(path, mode=mode) as f:
        blob = pickle.dumps(f)
    assert len(blob) < 2000 + len(example.data) // 2
    with pickle.loads(blob) as g:
        assert all(same(array, example.tensors[name]) for name, array in g.items())
        assert list(g) == list(example.tensors)
        has_data = any(value.data for value in example.tensors.values())
        assert bool(mappings(path)) == (mode in {"mmap", "cow"}) or not has_data


@every_example
def test_unpickling_notices_another_file(example, path):
    with wm.open(path) as f:
        blob = pickle.dumps(f)
    other = path.with_name("other")
    other.write_bytes(example.data[:-1] + bytes([example.data[-1] ^ 1]))
    other.replace(path)
    with pytest.raises(wm.FileChangedError) as caught:
        pickle.loads(blob)
    assert isinstance(caught.value, OSError)


@every_with_data
def test_a_file_that_changed_is_noticed_at_look_up(example, path):
    f = wm.open(path)
    os.truncate(path, 10)
    for name in example.tensors:
        with pytest.raises(wm.FileChangedError):
            f[name]
    with pytest.raises((wm.TensorFileError, OSError)):
        f.verify()
    f.close()


@every_with_data
def test_replacing_the_file_by_rename_is_safe(example, path):
    with wm.open(path) as f:
        held = f[first_with_data(example)]
        other = path.with_name("other")
        other.write_bytes(b"something else entirely")
        other.replace(path)
        assert same(held, example.tensors[first_with_data(example)])


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "cow"])
def test_a_handle_closed_while_it_maps_or_reads_keeps_nothing(tmp_path, monkeypatch, mode):
    """A handle that another thread closes at its first look-up releases everything that the look-up opened."""
    path = tmp_path / "m.weights"
    wm.save(path, {"w": np.arange(3000, dtype=np.float32)})
    inner = open_source.from_path(str(path), mode)
    function = "aligned" if mode == "copy" else "map_file"
    original = getattr(sources.access, function)
    monkeypatch.setattr(sources.access, function, lambda *args: (inner.close(), original(*args))[1])
    with pytest.raises(wm.ClosedError):
        inner.array(np.dtype("<f4"), (3,), 0, 12)
    assert not mappings(path)


def test_two_first_look_ups_where_nothing_can_be_mapped(tmp_path, monkeypatch):
    """Where a file system cannot map, an overtaken look-up finds the file that the other one has read."""
    path = tmp_path / "m.weights"
    wm.save(path, {"w": np.arange(3000, dtype=np.float32)})
    inner = open_source.from_path(str(path), "copy")
    load = sources.Source._load

    def overtaken(self):
        load(self)  # as another thread does it, after this one saw that there was no memory yet
        return load(self)

    monkeypatch.setattr(sources.Source, "_load", overtaken)
    assert inner.array(np.dtype("u1"), (4,), 0, 4).tobytes() == b"EMBD"


CYCLES = """
import gc, sys, weightmap as wm
class Box: pass
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    for source in (path, data, bytearray(data), memoryview(data), memoryview(data).toreadonly()[:]):
        for used in range(2):
            handle, first = wm.open(source), None
            if used:
                try:
                    handle["no such tensor"]
                except KeyError as error:
                    first = error
                list(handle.values()), handle.vocab and list(handle.vocab)
            # The collector clears the oldest first: the parts of the handle come before the cycle that holds it.
            box = Box()
            box.me, box.handle, box.error = box, handle, first
            del box, handle, first
            gc.collect()
    try:
        wm.open(memoryview(data + b"tail"))
    except wm.FormatError as error:
        kept = error
        kept.me = kept
    del kept
    gc.collect()
print("alive")
"""


def test_handles_in_reference_cycles_are_collected_unharmed(tmp_path):
    """The garbage collector may find handles, buffers, arrays and errors in any cycle and clear them in any order."""
    paths = [tmp_path / f"{number}{example.suffix}" for number, example in enumerate(TYPICAL)]
    for path, example in zip(paths, TYPICAL, strict=True):
        path.write_bytes(example.data)
    assert run_child(CYCLES, *paths).stdout.strip() == "alive"


@every_typical
def test_truncated_files_on_disk_are_errors_too(example, put):
    for size in set(range(0, len(example.data), 7)) - example.prefixes:
        path = put(example.data[:size])
        for mode in MODES:
            with pytest.raises(wm.FormatError) as caught:
                wm.open(path, mode=mode)
            assert "model.weights" in str(caught.value)


@every_example
def test_limits_are_enforced(example, path):
    count = len(example.tensors)
    with wm.open(path, limits=wm.Limits(max_tensors=count)) as f:
        assert len(f) == count
    for most in {0, count // 2, count - 1} - {-1, count}:
        with pytest.raises(wm.LimitError) as caught:
            wm.open(path, limits=wm.Limits(max_tensors=most))
        assert caught.value.field == "max_tensors"


def test_read_takes_every_name_that_info_gives_and_checks_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    wm.save(path, {"w": np.ones(3, np.float32)})
    with wm.open(path) as f:
        assert f.read("w", "bfloat16").dtype.name == "bfloat16"
        os.utime(path, ns=(1, 1))
        with pytest.raises(wm.FileChangedError):
            f.read("w")
    with wm.open(path, limits=wm.Limits(max_copy_bytes=1)) as f, pytest.raises(wm.LimitError) as caught:
        f.read("w")
    assert caught.value.path == str(path)
