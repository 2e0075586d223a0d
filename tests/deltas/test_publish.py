"""Versions that `publish` writes: read by plain definitions and by `pull`, and by nobody before they are complete."""

import errno
import json
import os
import re
import shutil
import threading

import numpy as np
import pytest
import zstandard
from tests.deltas.delta_files import SUMS, digests, model, payload, stepped, write_model
from tests.remote.servers import Objects, Server, Taking

import weightmap as wm
from weightmap import deltas
from weightmap.deltas import publishing
from weightmap.remote import fetching
from weightmap.remote.stores import location_of


def read(folder):
    """Index, and the payload and checksum of each tensor, by definition alone."""
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        raw = (folder / name).read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        sums = header.pop("__metadata__")
        assert header.keys() == sums.keys() == {tensor for tensor, file in index["weight_map"].items() if file == name}
        for tensor, entry in header.items():
            begin, end = entry["data_offsets"]
            assert (entry["dtype"], entry["shape"]) == ("U8", [end - begin])
            data = raw[8 + size + begin : 8 + size + end]
            assert zstandard.get_frame_parameters(data).content_size < 1 << 40  # SGLang needs the size
            found[tensor] = zstandard.ZstdDecompressor().decompress(data), sums[tensor]
    return index, found


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", SUMS)
@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_published(tmp_path, encoding, checksum, threads):
    """Payloads, sums and index of the changed tensors; other shards in `new`; six digits."""
    old = model()
    new = stepped(old, 1) | {"layer.1.w": old["layer.1.w"]}
    base = write_model(tmp_path / "base", old)
    after = write_model(tmp_path / "new", {"steps": new["steps"]}, {n: a for n, a in new.items() if n != "steps"})
    seen = []
    report = deltas.publish(
        *(base, after, tmp_path / "source"),
        version=7,
        base_version=6,
        encoding=encoding,
        checksum=checksum,
        threads=threads,
        progress=lambda *at: seen.append(at),
    )
    index, found = read(tmp_path / "source" / "weight_v000007")
    assert index["metadata"] == {
        "version": "000007",
        "base_version": "000006",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }
    changed = [name for name in old if old[name].tobytes() != new[name].tobytes()]
    assert found == {
        name: (payload(old[name].tobytes(), new[name].tobytes(), encoding), SUMS[checksum](new[name].tobytes()))
        for name in changed
    }
    nbytes = sum(old[name].nbytes for name in changed), sum(value.nbytes for value in old.values())
    assert report[:4] == (7, 6, len(changed), nbytes[0])
    assert report.total_nbytes == nbytes[1] == seen[-1][0] == seen[-1][1]
    assert [path.name for path in (tmp_path / "source").iterdir()] == ["weight_v000007"]
    with deltas.open(base, [tmp_path / "source" / "weight_v000007"]) as f:
        assert digests(f) == digests(new)


def test_a_chain_of_all_kinds_is_pulled(tmp_path):
    """Deltas in several files, a version without changes, one with other tensors, which is full."""
    states = [model()]
    states.append(stepped(states[0], 1))
    states.append(states[1])
    states.append({**states[1], "more": np.arange(3), "steps": np.arange(6)})
    states.append(stepped(states[3], 4))
    folders = [
        write_model(tmp_path / f"model{i}", state, config=json.dumps({"a": i})) for i, state in enumerate(states)
    ]
    source = tmp_path / "source"
    for number in range(1, 5):
        deltas.publish(folders[number - 1], folders[number], source, version=number, max_shard_size=1000)
        assert deltas.pull(tmp_path / "local", source, base=folders[0]).version == number
        assert digests(wm.load(tmp_path / "local")) == digests(states[number])
    files = {
        number: sorted(path.name for path in (source / f"weight_v{number:06}").iterdir()) for number in range(1, 5)
    }
    assert files[1][:2] == ["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    assert files[2] == ["model.safetensors.index.json"]
    assert "config.json" in files[3]
    assert (tmp_path / "local" / "config.json").read_text(encoding="utf-8") == '{"a": 3}'
    assert deltas.publish(folders[0], folders[1], source, version=5, full=True).tensors == 5
    assert digests(wm.load(source / "weight_v000005")) == digests(states[1])


def test_a_delta_needs_the_version_before(tmp_path):
    """Unless `base_version` is given; a full version needs none, nor does one that has to be full."""
    old = model()
    base, after = write_model(tmp_path / "base", old), write_model(tmp_path / "new", stepped(old, 1))
    more = write_model(tmp_path / "more", old | {"x": np.zeros(1, np.float32)})
    source = tmp_path / "source"
    with pytest.raises(wm.TargetError, match=r"version 4, .* is missing; give .*=, the version of the base"):
        deltas.publish(base, after, source, version=5)
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "some" / "new" / "folder", tmp_path / "there" / "folder"):
        with pytest.raises(wm.TargetError):
            deltas.publish(base, after, folder, version=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "more", "new", "there"]
    assert not list((tmp_path / "there").iterdir())
    deltas.publish(base, after, source, version=1)
    with pytest.raises(wm.TargetError, match="version 2, on which version 3 would be built, is missing"):
        deltas.publish(base, after, source, version=3)
    (source / "weight_v000004").mkdir()  # not finished
    with pytest.raises(wm.TargetError, match="is missing"):
        deltas.publish(base, after, source, version=5)
    assert deltas.publish(base, after, source, version=6, base_version=0).base_version == 0
    assert deltas.publish(base, after, source, version=8, full=True).full
    assert deltas.publish(base, more, source, version=10).full
    assert not deltas.publish(base, after, source, version=11).full
    store = location_of("s3://bucket/source", wm.Remote(Taking(Objects({}), ())))
    with pytest.raises(wm.TargetError, match="version 1, on which"):
        deltas.publish(base, after, store, version=2)
    assert deltas.publish(base, after, store, version=1).version == 1
    assert deltas.publish(base, after, store, version=2).version == 2


def test_what_is_refused(tmp_path, monkeypatch):
    """An existing version, changes that a delta cannot express, wrong arguments; each leaves nothing behind."""
    old = model()
    base, after = write_model(tmp_path / "base", old), write_model(tmp_path / "new", stepped(old, 1))
    source = tmp_path / "source"
    deltas.publish(base, after, source, version=1)
    before = sorted(source.rglob("*"))
    with pytest.raises(wm.TargetError, match="exists"):
        deltas.publish(base, after, source, version=1)
    for number, odd in enumerate((old | {"x": np.zeros(1)}, {"embed": old["embed"]}, old | {"steps": np.zeros(5)})):
        other = write_model(tmp_path / f"odd{number}", {n: a.astype(np.float32) for n, a in odd.items()})
        with pytest.raises(wm.DeltaError, match="only a full version"):
            deltas.publish(base, other, source, version=2, full=False)
    for wrong in (
        *({"version": 0}, {"version": 2, "base_version": 2}, {"version": 2, "encoding": "add"}),
        *({"version": 2, "checksum": "md5"}, {"version": 2, "level": 0}, {"version": 2, "threads": 0}),
        {"version": 10**18, "full": True},  # no reader takes that many digits
    ):
        with pytest.raises(ValueError, match="expected"):
            deltas.publish(base, after, source, **wrong)
    monkeypatch.setattr(publishing, "MAX_POSITIONS", 1000)
    with pytest.raises(wm.EncodeError, match="'embed' is 576000, expected at most 1000"):
        deltas.publish(base, after, source, version=2, encoding="overwrite")
    assert sorted(source.rglob("*")) == before


def test_an_error_at_any_call_says_whether_there_is_a_version(tmp_path, monkeypatch):
    """Each open, listing or flush fails in turn: no version, or a note that it is in place."""
    base = write_model(tmp_path / "base", model())
    new, source = write_model(tmp_path / "new", stepped(model(), 1)), tmp_path / "source"
    number, ended = 0, False
    while not ended:
        number, left = number + 1, number + 1

        def around(call):
            def run(*given, **named):
                nonlocal left
                left -= 1
                if not left:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return call(*given, **named)

            return run

        with monkeypatch.context() as patch:
            for name in ("open", "scandir", "fsync", "rename"):
                patch.setattr(os, name, around(getattr(os, name)))
            told = None
            try:
                deltas.publish(base, new, source, version=1, threads=1)
                ended = left > 0
            except OSError as error:
                told = getattr(error, "__notes__", [])
        there = (source / "weight_v000001").exists()
        assert told is None or not there or "the new file is in place" in str(told)
        shutil.rmtree(source, ignore_errors=True)
    assert number > 10


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """An error of a call with a descriptor names the version in `publish`, and the model in `pull`."""
    base, new = write_model(tmp_path / "base", model()), write_model(tmp_path / "new", stepped(model(), 1))

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="weight_v000001") as caught:
            deltas.publish(base, new, tmp_path / "source", version=1, full=False)
        assert str(caught.value.filename).startswith(str(tmp_path / "source"))
    deltas.publish(base, new, tmp_path / "source", version=1)
    for name in ("fsync", "pwrite", "fstat"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match=re.escape(str(base))):
                deltas.pull(base, tmp_path / "source")


def test_a_disk_that_says_nothing(tmp_path, monkeypatch):
    """Where no folder can be looked at, not even the root, the way up ends there."""
    base, real = write_model(tmp_path / "base", model()), os.path.lexists
    new = write_model(tmp_path / "new", stepped(model(), 1))
    asked = []

    def lexists(path):
        asked.append(path)
        assert len(asked) < 100
        return False

    monkeypatch.setattr(os.path, "lexists", lexists)
    deltas.publish(base, new, tmp_path / "source", version=1)
    assert real(tmp_path / "source" / "weight_v000001")


@pytest.mark.parametrize(("step", "name"), [("_write_full", "weight_v000001/model.safetensors"), ("_reveal", "")])
def test_an_error_names_the_version(tmp_path, monkeypatch, step, name):
    """Its hidden folder is gone by then."""

    def fail(*args):
        hidden = tmp_path / "source" / ".weight_v000001.tmp"
        raise OSError(errno.ENOSPC, "No space", *([str(hidden / "model.safetensors")] if name else []))

    monkeypatch.setattr(publishing, step, fail)
    base = write_model(tmp_path / "base", model())
    with pytest.raises(OSError, match="No space") as caught:
        deltas.publish(base, base, tmp_path / "source", version=1, full=True)
    assert caught.value.filename == str(tmp_path / "source" / (name or "weight_v000001"))
    assert not (tmp_path / "source").exists()


def test_nobody_sees_half_a_version(tmp_path, monkeypatch):
    """It has no name until it is complete; remains of a killed publisher do not hinder, a running one does."""
    old = model()
    base, after = write_model(tmp_path / "base", old), write_model(tmp_path / "new", stepped(old, 1))
    source = tmp_path / "source"
    (source / ".weight_v000001.tmp" / "inner").mkdir(parents=True)
    rename, errors = os.rename, []

    def looking(old_name, new_name):
        assert not list(source.glob("weight_v*"))
        one = threading.Thread(target=again)
        one.start()
        one.join()
        rename(old_name, new_name)

    def again():
        with pytest.raises(wm.TargetError):
            deltas.publish(base, after, source, version=1)
        errors.append(True)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", looking)
        deltas.publish(base, after, source, version=1)
    assert len(errors) == 1
    assert [path.name for path in source.iterdir()] == ["weight_v000001"]


def test_versions_in_a_store(tmp_path, monkeypatch):
    """The completing file comes last; faults are retried; a version stays if it exists or comes meanwhile."""
    monkeypatch.setattr(fetching, "FIRST_WAIT", 0.0)
    old = write_model(tmp_path / "old", model())
    new = write_model(tmp_path / "new", stepped(model(), 1), config='{"a": 1}')
    store = Taking(Objects({}), (503, 500))
    place = location_of("s3://bucket/source", wm.Remote(store))
    deltas.publish(old, new, place, version=1, max_shard_size=2000)
    assert (len(store.put), store.put[-1]) == (4, "model.safetensors.index.json")
    deltas.publish(old, new, place, version=2, full=True)
    assert store.put[4:] == ["model.safetensors.upload", "config.json", "model.safetensors"]
    assert not [key for key in store.objects if key.endswith(".upload")]
    for version in (1, 2):
        deltas.pull(tmp_path / "local", place, base=old, version=version)
        assert digests(wm.load(tmp_path / "local")) == digests(wm.load(new))
    with pytest.raises(wm.TargetError, match="exists"):
        deltas.publish(new, old, place, version=1)
    before = publishing.names_in
    monkeypatch.setattr(publishing, "names_in", lambda *_: [])
    with pytest.raises(wm.TargetError, match="exists"):
        deltas.publish(new, old, place, version=1)
    monkeypatch.setattr(publishing, "names_in", before)
    store.faults += [403]
    with pytest.raises(PermissionError, match="refuses"):
        deltas.publish(old, new, place, version=3)
    for faults in ([503] * 9, [400]):
        store.faults[:] = faults
        with pytest.raises(wm.RemoteError, match="cannot be written") as found:
            deltas.publish(old, new, place, version=3)
        assert "secret" not in str(found.value)
    with Server(Objects({})) as server, pytest.raises(wm.RemoteError, match="read-only"):
        deltas.publish(old, new, f"{server.url}source/", version=1)
