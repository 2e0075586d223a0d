"""Model folders from strangers, damaged versions and other programs: nothing is written elsewhere, and pulls go on."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
from tests.deltas.delta_files import digests, model, stepped, write_delta, write_model

import weightmap as wm
from weightmap import deltas
from weightmap.deltas.frames import BLOCK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="links, and files asked for who has them open")


def contents(folder):
    """All files below a directory with their bytes, and its links with their targets."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def world(tmp_path):
    """A model folder without a record, three versions of it, and files of a victim."""
    states = [model()]
    for number in (1, 2, 3):
        states.append(stepped(states[-1], number))
        write_delta(tmp_path / "source", number, *states[-2:])
    folder = write_model(tmp_path / "local", states[0])
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("thesis.txt", "photo.jpg"):
        (victim / name).write_text("precious")
    (folder / ".weight_sync").mkdir()
    return folder, tmp_path / "source", victim, states


def check_pulls(world):
    """Pull two versions: they are right, the victim's files unchanged, and nothing is left over."""
    folder, source, victim, states = world
    before = contents(victim)
    for version in (1, 2):
        deltas.pull(folder, source, base=folder, version=version)
        assert digests(wm.load(folder)) == digests(states[version])
        assert contents(victim) == before
        assert {path.name for path in (folder / ".weight_sync").iterdir()} <= {"lock", "state.json", "spare"}
        assert not (folder / ".weight_sync" / "spare").is_symlink()


@pytest.mark.parametrize("name", ["spare", "next"])
@pytest.mark.parametrize("kind", ["folder", "file", "missing", "itself"])
def test_links_in_the_place_of_folders(world, name, kind):
    """The links go; their targets stay."""
    targets = {"folder": "../../victim", "file": "../../victim/thesis.txt", "missing": "nothing", "itself": name}
    (world[0] / ".weight_sync" / name).symlink_to(targets[kind])
    check_pulls(world)


@pytest.mark.parametrize("name", ["spare", "next", "journal.json"])
def test_odd_things_in_the_folder(world, name):
    """Deep folders, links, second names of files and FIFOs in the place of ours."""
    folder, _, victim, states = world
    inner = folder / ".weight_sync" / name
    inner.mkdir()
    (inner / "sub" / "sub").mkdir(parents=True)
    (inner / "sub" / "sub" / "x").write_text("x")
    (inner / "sub" / "link").symlink_to(victim)
    (inner / "0").symlink_to(victim)
    os.mkfifo(inner / "fifo")
    size = (folder / "model.safetensors").stat().st_size
    (victim / "of the size").write_bytes(bytes(size))
    os.link(victim / "of the size", inner / "second name")
    deep, at = [], inner
    for _ in range(300):
        at /= "d"
        deep.append(at)
        at.mkdir()
    check_pulls(world)
    assert digests(wm.load(folder)) == digests(states[2])


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
@pytest.mark.parametrize("name", ["state.json", "lock", ""])
def test_a_record_or_lock_that_is_no_file(world, tmp_path, kind, name):
    """Is an error that names it; a link's target stays, and nothing is created there."""
    folder, source, victim, _ = world
    path = folder / ".weight_sync" / name
    if not name:
        path.rmdir()
        path = folder / ".weight_sync"
    before = contents(victim)
    if kind == "folder" and not name:
        return
    if kind in ("link", "dangling"):
        path.symlink_to(victim / ("thesis.txt" if name else "") if kind == "link" else tmp_path / "nothing")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises((wm.DeltaError, wm.TargetError, wm.NotRegularFileError), match="remove it"):
        deltas.pull(folder, source, base=folder, version=1)
    assert contents(victim) == before
    assert not (tmp_path / "nothing").exists()
    if not name or kind != "folder":
        path.unlink()
    else:
        path.rmdir()
    (folder / ".weight_sync").mkdir(exist_ok=True)
    check_pulls(world)


def journal_of(folder, **changed):
    """Write a journal as strangers would, about a file x in next/."""
    sync = folder / ".weight_sync"
    (sync / "next").mkdir(exist_ok=True)
    (sync / "next" / "x").write_text("ssh-ed25519 ATTACKER")
    status = (sync / "next" / "x").stat()
    content = {"version": 7, "base_version": None, "moves": [], "switch": [None, "nothing.safetensors"], "remove": []}
    content |= {"coming": {"x": [status.st_size, status.st_mtime_ns]}, "before": {}, "patches": []}
    (sync / "journal.json").write_text(json.dumps(content | changed))


JOURNALS = {
    "through a link": {"moves": [["x", "d/authorized_keys"]]},
    "a step through a link": {"switch": ["x", "d/thesis.txt"]},
    "the end of a name through a link": {"switch": [None, "d/thesis.txt"]},
    "a removal through a link": {"remove": ["d/photo.jpg"], "before": {"d/photo.jpg": [8, 0]}},
    "above": {"moves": [["x", "../victim/new"]]},
    "of the root": {"moves": [["x", "/tmp/new"]]},
    "hidden": {"moves": [["x", ".git/hooks/post-commit"]]},
    "in the record": {"moves": [["x", ".weight_sync/state.json"]]},
    "in place of a folder": {"moves": [["x", "inner"]]},
    "a long name": {"moves": [["x", "n" * 300]]},
    "a surrogate": {"moves": [["x", "\ud800"]]},
    "another time": {"moves": [["x", "model.safetensors"]], "coming": {"x": [20, 0]}},
    "a step that is a number": {"switch": [7, "x"]},
    "no step": {"switch": None},
    "moves that are words": {"moves": ["xy"], "remove": "xy"},
    "a huge version": {"version": 10**30},
    "a version without end": {"version": float("inf")},
    "twice": {"moves": [["x", "a"], ["x", "b"]]},
    "changes through a link": {"patches": [["d/thesis.txt", "x"]], "before": {"d/thesis.txt": [8, 0]}},
    "changes": {"patches": [["model.safetensors", "x"]]},
}


@pytest.mark.parametrize("case", JOURNALS)
@pytest.mark.parametrize("recorded", [False, True])
def test_journals_of_strangers(world, case, recorded):
    """Do not count: nothing is written through links, over folders or into hidden files; the pull goes on."""
    folder = world[0]
    (folder / "d").symlink_to(world[2])
    (folder / "inner").mkdir()
    (folder / ".git" / "hooks").mkdir(parents=True)
    journal_of(folder, **JOURNALS[case])
    if recorded:
        (folder / ".weight_sync" / "state.json").write_text('{"version": "000000"}')
    check_pulls(world)
    assert {path.name for path in folder.iterdir() if path.suffix != ".safetensors"} == {
        *(".weight_sync", ".git", "d", "inner", "config.json")
    }
    assert not list((folder / ".git" / "hooks").iterdir())


def test_a_journal_with_a_file_that_has_another_name(world):
    """Somebody's file in next/ is not changed in place, whatever the journal says."""
    folder, _, victim, _ = world
    sync = folder / ".weight_sync"
    journal_of(folder)
    (sync / "next" / "x").unlink()
    os.link(victim / "thesis.txt", sync / "next" / "x")
    log = sync / "next" / "changes"
    record = np.array([0, 0xFFFFFFFF], "=u4").tobytes() + np.array([0], "=u8").tobytes()
    log.write_bytes(record + np.array([4], "=u4").tobytes() + b"HACK")
    assert log.stat().st_size < BLOCK
    coming = {"x": [8, (victim / "thesis.txt").stat().st_mtime_ns]}
    coming["changes"] = [log.stat().st_size, log.stat().st_mtime_ns]
    journal_of_x = {"switch": ["x", "y.safetensors"], "patches": [["y.safetensors", "x"]], "coming": coming}
    content = json.loads((sync / "journal.json").read_text()) | journal_of_x
    (sync / "journal.json").write_text(json.dumps(content))
    check_pulls(world)
    assert (victim / "thesis.txt").read_text() == "precious"


def in_folder(tmp_path, states, name):
    """A model whose shards lie in a folder."""
    names = list(states[0])
    parts = [{name: states[0][name] for name in part} for part in (names[:2], names[2:])]
    folder = write_model(tmp_path / "sharded", *parts)
    (folder / name).mkdir(exist_ok=True) if not (folder / name).is_symlink() else None
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for shard in set(content["weight_map"].values()):
        shutil.move(folder / shard, folder / name / shard)
    content["weight_map"] = {tensor: f"{name}/{shard}" for tensor, shard in content["weight_map"].items()}
    index.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("in_place", [False, True])
def test_shards_in_a_folder(world, tmp_path, in_place):
    """Are pulled again and again."""
    _, source, _, states = world
    folder = in_folder(tmp_path, states, "sub")
    for version in (1, 2, 3):
        deltas.pull(folder, source, base=folder, version=version, in_place=in_place)
        assert digests(wm.load(folder)) == digests(states[version])
    deltas.pull(folder, source, base=tmp_path / "local", version=1)
    assert digests(wm.load(folder)) == digests(states[1])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_shards_in_a_linked_folder_belong_to_others(world, tmp_path, in_place, whole):
    """They stay there as they are, by a delta and by a full version."""
    _, source, _, states = world
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "sharded").mkdir()
    (tmp_path / "sharded" / "shards").symlink_to("../shared")
    folder = in_folder(tmp_path, states, "shards")
    before = contents(shared)
    assert len(before) == 2
    if whole:
        write_model(source / "weight_v000004", states[3])
    version = 4 if whole else 1
    deltas.pull(folder, source, base=folder, version=version, in_place=in_place)
    assert contents(shared) == before
    assert digests(wm.load(folder)) == digests(states[3 if whole else 1])
    (shared / "model-00001-of-00002.safetensors").unlink()
    assert digests(wm.load(folder)) == digests(states[3 if whole else 1])


def test_a_full_version_does_not_write_through_a_link(world, tmp_path):
    """A folder of its configuration that is a link here is an error before anything changes."""
    folder, source, victim, states = world
    full = write_model(source / "weight_v000004", states[3])
    (full / "modules.json").write_text('[{"path": "1_Pooling"}]')
    (full / "1_Pooling").mkdir()
    (full / "1_Pooling" / "config.json").write_text("{}")
    (folder / "1_Pooling").symlink_to(victim)
    before = contents(tmp_path / "victim"), contents(folder)
    with pytest.raises(wm.TargetError, match=r"1_Pooling/config.json: this path .* remove it"):
        deltas.pull(folder, source, base=folder)
    assert (contents(victim), {n: b for n, b in contents(folder).items() if n[-4:] != "lock"}) == before
    (folder / "1_Pooling").unlink()
    deltas.pull(folder, source, base=folder)
    assert digests(wm.load(folder)) == digests(states[3])


def test_a_full_version_has_no_hidden_files(world):
    """Programs trust names such as .git, so a version may not bring them: a folder is refused, a file left out."""
    folder, source, _, states = world
    full = write_model(source / "weight_v000004", states[3])
    for name in (".git", ".weight_sync", "1_Pooling"):
        (full / name).mkdir()
        (full / name / "config").write_text("a stranger's")
    before = contents(folder)
    for path in (".git", ".weight_sync", "1_Pooling/.git"):
        (full / "modules.json").write_text(f'[{{"path": "1_Pooling"}}, {{"path": "{path}"}}]')
        with pytest.raises(wm.FormatError, match="not hidden"):
            deltas.pull(folder, source, base=folder)
        assert {n: b for n, b in contents(folder).items() if n[-4:] != "lock"} == before
    (full / "modules.json").write_text('[{"path": "1_Pooling"}, {"path": "1_Pooling"}]')
    (full / "1_Pooling" / ".DS_Store").write_text("x")
    deltas.pull(folder, source, base=folder)
    assert sorted(path.name for path in (folder / "1_Pooling").iterdir()) == ["config"]
    assert deltas.pull(folder, source).version == 4
    assert digests(wm.load(folder)) == digests(states[3])


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_each_bit_of_an_index(tmp_path, encoding):
    """With any bit flipped, a pull gives the new model or nothing: frames never become weights."""
    old = {"w": np.zeros((9, 9), np.float32), "v": np.arange(3, dtype=np.float32)}
    new = stepped(old, 1, 0.3)
    base, source, folder = write_model(tmp_path / "base", old), tmp_path / "source", tmp_path / "local"
    index = write_delta(source, 1, old, new, encoding=encoding) / "model.safetensors.index.json"
    data, refused = index.read_bytes(), 0
    deltas.pull(folder, source, base=base, version=0)
    for at in range(len(data) * 8):
        index.write_bytes(data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :])
        try:
            deltas.pull(folder, source, version=1)
        except wm.TensorFileError:
            refused += 1
            assert digests(wm.load(folder)) == digests(old)
        else:
            assert digests(wm.load(folder)) == digests(new)
            deltas.pull(folder, source, base=base, version=0)
    assert refused > 4 * len(data)


@pytest.mark.parametrize("key", ["base_version", "compression_format", "checksum_format"])
def test_full_versions_have_no_words_of_deltas(tmp_path, key):
    """One such word shows that the index is damaged; other words are allowed."""
    folder = write_model(tmp_path / "source" / "weight_v000001", model(), {"more": np.zeros(3, np.float32)})
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["metadata"] |= {"version": "000001", "delta": "no"}
    index.write_text(json.dumps(content))
    deltas.pull(tmp_path / "local", tmp_path / "source")
    empty = {"weight_map": {}}, "the index names no tensors"
    content["metadata"][key] = "x"
    for damaged, why in (empty, (content, f"has {key} in 'metadata', as deltas have")):
        index.write_text(json.dumps(damaged))
        with pytest.raises(wm.DeltaError, match=why):
            deltas.pull(tmp_path / "other", tmp_path / "source", base=tmp_path / "local")
    with pytest.raises(wm.DeltaError, match=key):
        deltas.apply(tmp_path / "local", folder)


@pytest.mark.parametrize("name", ["weight_v0000000009", "weight_v\u0660\u0660\u0660\u0660\u0660\u0669"])
def test_folders_with_another_spelling_of_a_number(world, name):
    """They are no versions: the newest one is pulled."""
    folder, source, _, states = world
    (source / name).mkdir()
    assert deltas.pull(folder, source, base=folder).version == 3
    assert digests(wm.load(folder)) == digests(states[3])
