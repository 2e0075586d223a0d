"""One handle on a model under deltas, and refusals before any data is trusted."""

import contextlib
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zstandard
from tests.deltas.delta_files import (
    EXPECTED,
    SUMS,
    digests,
    frame,
    lay,
    model,
    safetensors,
    stepped,
    write_delta,
    write_model,
)

import weightmap as wm
from weightmap import compat, deltas

GOOD, BAD = EXPECTED["good"], EXPECTED["bad"]


def chain(source, last):
    """The directories of versions 1 to `last`."""
    return [source / f"weight_v{version:06}" for version in range(1, last + 1)]


@pytest.mark.parametrize("case", GOOD)
def test_chains_of_trainers_open_as_one_model(tmp_path, case):
    """Every version of every chain: types, shapes and bytes; plans, verify and a pickled handle agree."""
    base, source = lay(tmp_path, GOOD[case])
    for version, tensors in GOOD[case]["versions"].items():
        with deltas.open(base, chain(source, int(version))) as f:
            assert digests(f) == {name: digest for name, (_, _, digest) in tensors.items()}
            assert [list(f.info(name).shape) for name in tensors] == [shape for _, shape, _ in tensors.values()]
            f.verify()
            with pickle.loads(pickle.dumps(f)) as again, wm.plan(f) as plan:
                assert digests(again) == digests(dict(plan.run())) == digests(f)


@pytest.mark.parametrize("case", [name for name, found in BAD.items() if found["delta"] and found["apply"]])
def test_malformed_deltas_are_refused(tmp_path, case):
    """With a `DeltaError`, at opening or when the tensor is used; the version before opens."""
    found = BAD[case]
    base, source = lay(tmp_path, found)
    dict(deltas.open(base, chain(source, found["good_to"])))
    versions = [*chain(source, found["good_to"]), source / found["delta"].rpartition("/")[2]]
    refused = found["verdict"] == "reject"
    with pytest.raises(wm.DeltaError) if refused else contextlib.suppress(wm.DeltaError):
        dict(deltas.open(base, versions))


@pytest.mark.parametrize("strict", [True, False])
def test_a_delta_alone_is_no_model(tmp_path, strict):
    """Its frames are never shown as tensors, by its directory or its index; a full version opens as ever."""
    old = model()
    base = write_model(tmp_path / "base", old)
    delta = write_delta(tmp_path, 1, old, stepped(old, 1))
    for path in (delta, delta / "model.safetensors.index.json"):
        with pytest.raises(wm.UnsupportedError, match=r"this is a delta: .*weightmap\.deltas\.open\(base, .*apply"):
            wm.open(path, strict=strict)
    dict(deltas.open(base, [delta]))
    deltas.pull(tmp_path / "local", tmp_path, base=base)
    assert digests(wm.load(tmp_path / "local")) == digests(stepped(old, 1))


@pytest.mark.parametrize("checksum", SUMS)
@pytest.mark.parametrize("indexed", [True, False])
def test_a_file_of_a_delta_is_no_model(tmp_path, checksum, indexed):
    """Its frames are never shown as tensors, by its path or in a folder whose index has not come yet."""
    old = model()
    write_model(tmp_path / "base", old)
    delta = write_delta(tmp_path, 1, old, stepped(old, 1), checksum=checksum)
    if not indexed:
        (delta / "model.safetensors.index.json").unlink()
    (file,) = delta.glob("*.safetensors")
    message = r"this is a file of a delta: tensor '.*' .* not values: use weightmap\.deltas\.open.*apply"
    uses = [wm.open, wm.load, wm.verify, lambda path: wm.open(path.read_bytes())]
    uses += [lambda path: wm.open(path, strict=False), lambda path: wm.convert(path, tmp_path / "out.gguf")]
    uses += [lambda path: wm.diff(path, tmp_path / "base"), wm.plan]
    for use in uses:
        with pytest.raises(wm.UnsupportedError, match=message) as caught:
            use(file)
        assert caught.value.path in (str(file), "<bytes>")
    if not indexed:
        with pytest.raises(wm.FormatError):
            wm.open(delta)
    with compat.safe_open(file, "np") as f:  # as safetensors itself
        assert {f.get_slice(name).get_dtype() for name in f.keys()} == {"U8"}  # noqa: SIM118 - of safetensors


def test_bytes_like_those_of_a_delta_are_tensors(tmp_path):
    """Compressed bytes without a checksum under their name, and bytes with one that are not a frame."""
    frame = np.frombuffer(zstandard.compress(bytes(100)), np.uint8)
    for value, metadata in ((frame, {}), (frame, {"w": "a comment"}), (np.arange(9, dtype="u1"), {"w": "0" * 32})):
        path = tmp_path / "m.safetensors"
        path.write_bytes(safetensors({"w": value}, metadata))
        with wm.open(path) as f:
            np.testing.assert_array_equal(f["w"], value)


def test_unchanged_tensors_are_views_of_the_base(tmp_path):
    """Two look-ups of one share memory; a changed tensor is decoded each time."""
    old = model()
    base = write_model(tmp_path / "base", {"embed": old["embed"]}, {"layer.0.w": old["layer.0.w"]})
    new = old | {"embed": stepped(old, 3)["embed"]}
    shared = ("embed", "layer.0.w")
    versions = [write_delta(tmp_path, 1, *({name: of[name] for name in shared} for of in (old, new)))]
    with deltas.open(base, versions) as f:
        assert np.shares_memory(f["layer.0.w"], f["layer.0.w"])
        assert not np.shares_memory(f["embed"], f["embed"])
        np.testing.assert_array_equal(f["embed"], new["embed"])
        with wm.plan(f, {"embed": np.s_[3:5], "layer.0.w": np.s_[1]}) as plan:
            parts = dict(plan.run())
        np.testing.assert_array_equal(parts["embed"], new["embed"][3:5])
    limits = wm.Limits(max_copy_bytes=1000)
    with deltas.open(base, versions, limits=limits) as f, pytest.raises(wm.LimitError):
        f["embed"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed there")
def test_a_handle_that_nobody_closed_keeps_no_descriptors(tmp_path):
    """No cycle holds it until the next collection."""
    old = model()
    base, delta = write_model(tmp_path / "base", old), write_delta(tmp_path, 1, old, stepped(old, 1))
    gc.collect()
    gc.disable()
    try:
        before = set(Path("/proc/self/fd").iterdir())
        f = deltas.open(base, [delta])
        dict(f), f.metadata, f.verify()
        assert set(Path("/proc/self/fd").iterdir()) > before
        del f
        assert set(Path("/proc/self/fd").iterdir()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("files", [1, 2])
def test_what_else_takes_a_model(tmp_path, files):
    """`convert`, `diff` of its result, `read`, `weights`, rows of devices: all see the changed tensors."""
    old = {name: value for name, value in model().items() if name != "empty"}
    new = stepped(old, 5)
    names = list(old)
    shards = [{name: old[name] for name in names[number::files]} for number in range(files)]
    base = write_model(tmp_path / "base", *shards)
    delta = write_delta(tmp_path, 1, old, new)
    write_model(tmp_path / "new", new)
    with deltas.open(base, [delta], verify="full") as f:
        for target in ("out.safetensors", "out.gguf", "out.bt"):
            wm.convert(f, tmp_path / target)
            found = wm.load(tmp_path / target)
            assert digests(found) == digests({name: new[name] for name in found})
        assert wm.diff(tmp_path / "out.safetensors", tmp_path / "new", tensors_only=True).equal
        assert digests(f.weights) == digests(new)
        for name in names:
            np.testing.assert_array_equal(f.read(name, new[name].dtype), new[name])
        with ThreadPoolExecutor(2) as pool:
            for run in (None, wm.Run(pool)):
                report = wm.convert(f, f"{tmp_path}/shards {run is None}/", format="safetensors", run=run)
                assert report.shards == files
                assert digests(wm.load(report.dst)) == digests(new)
        with pytest.raises(wm.TargetError):
            wm.convert(f, next(delta.glob("*.safetensors")))


def test_deltas_come_in_order(tmp_path):
    """A gap, a wrong order and a full version in a delta's place are refused."""
    old = model()
    base = write_model(tmp_path / "base", old)
    one, two = stepped(old, 1), stepped(old, 2)
    versions = [write_delta(tmp_path, 1, old, one), write_delta(tmp_path, 2, one, two)]
    for wrong in ([*versions[::-1]], [versions[0], versions[0]], [base]):
        with pytest.raises(wm.DeltaError):
            deltas.open(base, wrong)
    with pytest.raises(TypeError, match="directories must be"):
        deltas.open(base, str(versions[0]))


@pytest.mark.parametrize("indexed", [True, False])
def test_the_first_delta_is_built_on_the_recorded_version(tmp_path, indexed):
    """No checksum reveals a wrong base if other tensors change: a handle would show a version that never existed."""
    states = [{"a": np.zeros(9, np.float32), "b": np.ones(9, np.float32), "c": np.ones(9, np.float32)}]
    for number, name in enumerate("abc", 1):
        states.append(states[-1] | {name: np.full(9, 5, np.float32)})
        write_delta(tmp_path / "source", number, *states[-2:])
    shards = [{name: value} for name, value in states[0].items()] if indexed else states[:1]
    base, versions = write_model(tmp_path / "base", *shards), chain(tmp_path / "source", 3)
    deltas.apply(base, versions[0])
    index = base / f"model.safetensors{'.index.json' if indexed else ''}"
    for place in (base, index):
        for wrong in (versions, versions[:1], versions[2:]):
            with pytest.raises(wm.DeltaError, match="version 1, which is not the base of the delta: base_version is"):
                deltas.open(place, wrong)
        for count in (1, 2, 3):
            with deltas.open(place, versions[1:count]) as f, pickle.loads(pickle.dumps(f)) as again:
                assert digests(f) == digests(again) == digests(states[count])
    with deltas.open(index.read_bytes() if not indexed else base, versions[1:]) as f:
        assert digests(f) == digests(states[3])


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"version": "x"}, "version"),
        ({"version": True}, "version"),
        ({"version": "٢"}, "version"),
        ({"version": "000002"}, "version"),  # its directory says 1
        ({"base_version": None}, "base_version"),
        ({"base_version": "000001"}, "base_version"),
        ({"delta_encoding": ["xor"]}, "delta_encoding"),
        ({"compression_format": "lz4"}, "compression_format"),
        ({"checksum_format": "md5"}, "checksum_format"),
    ],
)
def test_metadata_is_checked(tmp_path, metadata, field):
    """Each field of the index, before a file is opened."""
    old = model()
    delta = write_delta(tmp_path, 1, old, stepped(old, 1), metadata=metadata)
    with pytest.raises(wm.DeltaError) as caught:
        deltas.open(write_model(tmp_path / "base", old), [delta])
    assert caught.value.field == field


def test_files_and_weight_map_agree(tmp_path):
    """An unnamed file, a missing one, a tensor in another file, a missing index."""
    old = model()
    base = write_model(tmp_path / "base", old)

    def refused(match):
        with pytest.raises(wm.DeltaError, match=match):
            deltas.open(base, [delta])

    delta = write_delta(tmp_path, 1, old, stepped(old, 1), files=2)
    index = delta / "model.safetensors.index.json"
    text = index.read_text(encoding="utf-8")
    (delta / "more.safetensors").write_bytes(b"")
    refused("'more.safetensors' is not in its weight_map")
    (delta / "more.safetensors").unlink()
    index.write_text(text.replace("model-00001-of-00002", "model-00000-of-00002"), encoding="utf-8")
    refused("is not in its weight_map")
    for name in ('"../model.safetensors"', '"/etc/x.safetensors"', '"a/b.safetensors"', "[]", "null", '"x.bin"'):
        index.write_text(text.replace('"model-00001-of-00002.safetensors"', name), encoding="utf-8")
        refused("file of tensor 'layer")
    index.write_text(text, encoding="utf-8")
    (delta / "model-00001-of-00002.safetensors").unlink()
    refused("'model-00001-of-00002.safetensors' with tensor 'layer.0.w' is missing")
    index.unlink()
    refused("unfinished")


@pytest.mark.parametrize(
    ("encoding", "data", "match"),
    [
        ("xor", b"no frame", "not zstd"),
        ("xor", b"", "not zstd"),
        ("xor", frame(bytes(4095), streamed=True), "ends early"),
        ("xor", frame(bytes(4097), streamed=True), "more than it should"),
        ("xor", frame(bytes(4096), streamed=True)[:-4], "ends early|checksum|damaged|xxh3-128"),
        ("overwrite", frame(b"\1\0\0", streamed=True), "ends early"),
        ("overwrite", frame(b"\xff" * 4, streamed=True), "number of changed bytes"),
        ("overwrite", frame(b"\2\0\0\0" + b"\5\0\0\0" * 2 + b"ab"), "rising order"),
        ("overwrite", frame(b"\1\0\0\0" + b"\0\x10\0\0" + b"a"), "a position"),
        ("overwrite", frame(b"\1\0\0\0" + b"\5\0\0\0" + b"ab"), "number of changed bytes"),
        ("overwrite", frame(b"\1\0\0\0" + b"\5\0\0\0" + b"ab", streamed=True), "more than it should"),
    ],
)
def test_frames_are_checked(tmp_path, encoding, data, match):
    """Short, long and damaged ones, and positions out of order or range: with the name of the tensor."""
    old = model()
    base = write_model(tmp_path / "base", old)
    delta = write_delta(tmp_path, 1, old, old, encoding=encoding, frames={"layer.0.w": data})
    with deltas.open(base, [delta]) as f, pytest.raises(wm.DeltaError, match=match) as caught:
        f["layer.0.w"]
    assert "'layer.0.w'" in str(caught.value)


def test_plans_count_the_frames(tmp_path):
    """The bytes read from deltas, only for planned tensors; in whole runs and by parts."""
    states = [model(), stepped(model(), 1)]
    base = write_model(tmp_path / "base", states[0])
    versions = [
        write_delta(tmp_path / "source", 1, *states, files=2),
        write_delta(tmp_path / "source", 2, *states[::-1]),
    ]
    sizes = {name: sum(len(stored(path)[name]) for path in frames_of(versions, name)) for name in ("embed", "steps")}
    with deltas.open(base, versions) as f:
        for names in (["embed"], ["steps"], ["embed", "steps"]):
            plan = wm.plan(f, names)
            assert plan.wanted_nbytes == sum(f.info(name).nbytes + sizes[name] for name in names)
            assert {path for path, _, _ in plan.reads} >= {str(p) for name in names for p in frames_of(versions, name)}
            assert {name: array.tobytes() for name, array in plan.run()} == {
                name: states[0][name].tobytes() for name in names
            }
            assert plan.warm() <= plan.nbytes
            assert plan.explain().wanted_nbytes == plan.wanted_nbytes


def stored(path):
    """The frames in a file."""
    with compat.safe_open(path, "np") as f:
        return {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - of safetensors


def frames_of(versions, name):
    """The files that hold frames of a tensor."""
    return [path for delta in versions for path in sorted(delta.glob("*.safetensors")) if name in stored(path)]
