"""Writing to stores: complete objects, the index last, nothing left after failures."""

import json
import tempfile

import numpy as np
import pytest
from tests.remote.servers import GenericError, Objects, Server, Taking

import weightmap as wm
from weightmap.remote import fetching
from weightmap.remote.stores import location_of

TENSORS = {f"t{n}": np.full(1000, n, np.float32) for n in range(4)}
SHARDS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
INDEX = "model.safetensors.index.json"
CLAIM = f"{INDEX}.upload"


@pytest.fixture
def store(monkeypatch, tmp_path):
    """A store of our own, and a folder for temporary files that is empty at the end."""
    monkeypatch.setattr(fetching, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield Taking(Objects({}))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("weightmap-")]


def at(store, key):
    return location_of(f"s3://bucket/{key}", wm.Remote(store))


def right(address):
    with wm.open(address) as file:
        assert {name: array.tobytes() for name, array in file.items()} == {
            name: array.tobytes() for name, array in TENSORS.items()
        }


def test_files_shards_and_folders_become_objects(store, tmp_path):
    wm.save(at(store, "a/m.safetensors"), TENSORS, output=wm.Output(sha256sums=True))
    wm.save(at(store, "a/m.weights"), TENSORS, output=wm.Output(sha256sums=True))
    lines = store.objects["a/SHA256SUMS"].decode().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["m.safetensors", "m.weights"]
    store.put.clear()
    wm.save(at(store, "b/model.safetensors"), TENSORS, max_shard_size=8000)
    assert store.put == [CLAIM, *SHARDS, INDEX]
    wm.save(tmp_path / INDEX, TENSORS, max_shard_size=8000, format="safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x"}))
    store.put.clear()
    report = wm.convert(tmp_path, at(store, "c/"), output=wm.Output(sha256sums=True))
    assert report.dst.startswith("s3://bucket/c")
    assert store.put == [CLAIM, "SHA256SUMS", "config.json", *SHARDS, INDEX]
    report = wm.convert(src=at(store, "c/"), dst=at(store, "d/m.gguf"))
    assert (report.src.rstrip("/"), report.dst) == ("s3://bucket/c", "s3://bucket/d/m.gguf")
    for key in ("a/m.safetensors", "a/m.weights", "b/", f"b/{INDEX}", "c/", "d/m.gguf"):
        right(at(store, key))


def test_what_is_there_is_kept(store, tmp_path):
    one, shards = at(store, "a/m.weights"), at(store, "b/model.safetensors")
    wm.save(one, {"old": np.ones(1, np.float32)})
    wm.save(one, TENSORS)  # one object is replaced
    right(one)
    wm.save(shards, TENSORS, max_shard_size=8000)
    wm.save(tmp_path / "m.safetensors", {"new": np.ones(3)})
    by_key = wm.Remote(store)
    before = dict(store.objects)
    refused = [
        lambda: wm.save(shards, {"new": np.ones(3)}),
        lambda: wm.save(shards, TENSORS, max_shard_size=4000),
        lambda: wm.save(at(store, "b/"), TENSORS, max_shard_size=8000, format="safetensors"),
        lambda: wm.convert(tmp_path / "m.safetensors", one, output=wm.Output(overwrite=False)),
        lambda: wm.convert(one, one),
        lambda: wm.convert(at(store, "b/"), at(store, f"b/{SHARDS[0]}")),
        lambda: wm.convert(at(store, f"b/{INDEX}"), at(store, "b/x.gguf")),
        lambda: wm.convert(wm.open("a/m.weights", remote=by_key), one, dtype="float16"),
        lambda: wm.convert(wm.open("a/m.weights", remote=by_key).weights, one, dtype="float16"),
        lambda: wm.convert(wm.open(f"b/{INDEX}", remote=by_key), at(store, f"b/{SHARDS[0]}"), dtype="float16"),
    ]
    for call in refused:
        with pytest.raises(wm.TargetError, match="s3://bucket/"):
            call()
    for key in ("/a/m.weights", "a//m.weights", "a/./m.weights", "a/../a/m.weights", "a/m.weights//"):
        with pytest.raises(wm.errors.AddressError, match="names no object"):
            at(store, key)
    wm.convert(wm.open("a/m.weights", remote=by_key), at(store, "f/m.weights"), dtype="float16")
    del store.objects["f/m.weights"]
    with pytest.raises(ValueError, match="run shares"):
        wm.convert(one, at(store, "x/"), run=wm.Run(world_size=2))
    with pytest.raises(wm.EncodeError) as caught:
        wm.convert(one, at(store, "x.weights"), rename=dict.fromkeys(TENSORS, "same"))
    assert caught.value.path == "s3://bucket/x.weights"
    assert store.objects == before


def test_what_fails_leaves_nothing(store):
    """A fault of any object of several; one that passes is tried again."""
    shards = at(store, "b/model.safetensors")
    for number in range(3):
        for fault, error in ((403, PermissionError), (400, wm.RemoteError)):
            store.faults[:] = [0] * number + [fault]
            with pytest.raises(error, match="s3://bucket/b/model") as caught:
                wm.save(shards, TENSORS, max_shard_size=8000)
            assert "secret" not in str(caught.value)
            assert not store.objects
    store.faults[:] = [503, 0, 500]
    wm.save(shards, TENSORS, max_shard_size=8000)
    right(shards.folder)


def test_an_answer_that_is_lost_is_no_other_writer(store):
    """The object that a repeated write meets may be our own."""
    store.faults[:] = ["lost"] * 3
    wm.save(at(store, "b/model.safetensors"), TENSORS, max_shard_size=8000)
    right(at(store, "b/"))
    assert CLAIM not in {key.rpartition("/")[2] for key in store.objects}


def test_a_fault_that_passes_leaves_no_claim(store, monkeypatch):
    """Neither of the request that looks at the claim, nor of the one that removes it."""
    delete, failed, faults = store.delete_async, [], store._stored.of.faults

    async def fail_once(key):
        if not failed:
            failed.append(key)
            raise GenericError("Server returned status code: 503")
        await delete(key)

    monkeypatch.setattr(store, "delete_async", fail_once)
    store.entered = lambda key: key.endswith(INDEX) and faults.append("503")
    wm.save(at(store, "b/model.safetensors"), TENSORS, max_shard_size=8000)
    assert (failed, faults) == ([f"b/{CLAIM}"], [])
    assert f"b/{CLAIM}" not in store.objects
    right(at(store, "b/"))


@pytest.mark.parametrize("whole", [32 << 20, 0], ids=["small", "large"])
@pytest.mark.parametrize("theirs", [SHARDS[1], INDEX])
def test_what_another_writer_has_written_meanwhile_stays(theirs, whole, store, monkeypatch):
    """An index or a shard of an equal name appears during an upload: it stays, and ours are removed."""
    monkeypatch.setattr(fetching, "_MAX_WHOLE_BYTES", whole)
    store.entered = lambda key: key == f"b/{SHARDS[0]}" and store.write(f"b/{theirs}", b"theirs")
    with pytest.raises(wm.TargetError, match=f"s3://bucket/b/{theirs}: another process has written this object"):
        wm.save(at(store, "b/model.safetensors"), TENSORS, max_shard_size=8000)
    assert store.objects == {f"b/{theirs}": b"theirs"}


def test_two_writers_of_one_model(store):
    """A claim is there while objects are written, and refuses whoever comes meanwhile, or after one that was killed."""
    held = []
    store.entered = lambda key: held.append(f"b/{CLAIM}" in store.objects)
    wm.save(at(store, "b/model.safetensors"), TENSORS, max_shard_size=8000)
    assert held == [False, True, True, True]
    store.write(f"c/{CLAIM}", b"another writer's")
    before = dict(store.objects)
    with pytest.raises(wm.TargetError, match=rf"s3://bucket/c/{CLAIM}: another process is writing this model.*remove"):
        wm.save(at(store, "c/model.safetensors"), TENSORS, max_shard_size=8000)
    assert store.objects == before


def test_addresses_for_reading_are_refused():
    with Server(Objects({})) as server, pytest.raises(wm.EncodeError, match="is for reading"):
        wm.save(f"{server.url}m.weights", TENSORS)
