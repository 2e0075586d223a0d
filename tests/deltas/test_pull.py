"""`pull` and `apply`: every version of a chain, whole or not at all, despite any stop and any reader."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.deltas.delta_files import EXPECTED, digests, lay, model, stepped, write_delta, write_model
from tests.remote.servers import Objects, Server
from tests.support import run_child

import weightmap as wm
from weightmap import deltas
from weightmap.cli import main
from weightmap.deltas import local as places
from weightmap.deltas import pulling

GOOD, BAD = EXPECTED["good"], EXPECTED["bad"]


def contents(folder):
    """All files of a directory with their bytes."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def recorded(folder):
    return int(json.loads((folder / ".weight_sync" / "state.json").read_text(encoding="utf-8"))["version"])


def open_files():
    """The paths of the files that this process has open, where the system lists them."""
    return [os.path.realpath(path) for path in Path("/proc/self/fd").glob("*")]


def split(tensors):
    """Tensors divided into two shards."""
    names = list(tensors)
    return [{name: tensors[name] for name in part} for part in (names[:2], names[2:])]


@pytest.fixture
def chain(tmp_path):
    """A base in two shards, and a source: 1 and 2 deltas, 3 full in a single file, 4 a delta, 5 full in shards."""
    states = [model()]
    for number in range(1, 7):
        states.append(stepped(states[-1], number))
    base, source = write_model(tmp_path / "base", *split(states[0]), config='{"a": 0}'), tmp_path / "source"
    for number in (1, 2, 4, 6):
        write_delta(source, number, states[number - 1], states[number], encoding=("xor", "overwrite")[number // 2 % 2])
    write_model(source / "weight_v000003", states[3], config='{"a": 3}')
    write_model(source / "weight_v000005", *split(states[5]), config='{"a": 5}')
    return base, source, states


@pytest.mark.parametrize("case", GOOD)
def test_chains_of_trainers(tmp_path, case):
    """Each version step by step, all at once, back to the first, and applied one by one to the base itself."""
    found = GOOD[case]
    base, source = lay(tmp_path, found)
    newest = len(found["kinds"])
    wanted = {int(version): {n: d for n, (_, _, d) in each.items()} for version, each in found["versions"].items()}
    folder = tmp_path / "local"
    for version in (*range(newest + 1), 1, 0):
        report = deltas.pull(folder, source, base=base, version=version)
        assert (report.version, digests(wm.load(folder)), recorded(folder)) == (version, wanted[version], version)
    assert deltas.pull(folder, source).version == newest
    assert digests(wm.load(folder)) == wanted[newest]
    assert {"config.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    for version in range(1, newest + 1):
        report = deltas.apply(base, source / f"weight_v{version:06}")
        assert report.tensors == len(found["listed"][str(version)])
        assert digests(wm.load(base)) == wanted[version]


PULL = """import resource, sys
from weightmap import deltas
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
print(*deltas.pull(*sys.argv[1:], threads=1)[:2])"""
OPEN = """import resource, sys
from weightmap import deltas
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
with deltas.open(sys.argv[1], [f"{sys.argv[2]}/weight_v{number:06}" for number in range(1, 641)]) as f:
    print(f["w"])"""


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on descriptors, as Unix has it")
def test_more_deltas_than_descriptors(tmp_path):
    """All deltas are read and compared before anything changes, few open at once; also laid over a model."""
    states = [{"w": np.arange(4, dtype=np.uint8)}]
    for number in range(1, 641):
        states.append({"w": states[-1]["w"] + np.uint8(1)})
        write_delta(tmp_path / "source", number, *states[-2:])
    folder, part = tmp_path / "local", tmp_path / "source" / "weight_v000500" / "model-00000-of-00001.safetensors"
    write_model(folder, states[0])
    good = part.read_bytes()
    part.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(wm.DeltaError, match="weight_v000500"):
        deltas.pull(folder, tmp_path / "source")
    assert digests(wm.load(folder)) == digests(states[0])
    part.write_bytes(good)
    assert run_child(OPEN, folder, tmp_path / "source").stdout == f"{states[-1]['w']}\n"
    assert run_child(PULL, folder, tmp_path / "source").stdout.split() == ["640", "0"]
    assert (recorded(folder), digests(wm.load(folder))) == (640, digests(states[-1]))


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on descriptors, as Unix has it")
@pytest.mark.parametrize("in_place", [False, True])
def test_more_changed_shards_than_descriptors(tmp_path, in_place):
    """Some shards are written at a time, new ones and over spare ones; in place, too."""
    states = [{f"w{number}": np.arange(4, dtype=np.uint8) for number in range(500)}]
    for number in (1, 2):
        states.append({name: array + np.uint8(1) for name, array in states[-1].items()})
        write_delta(tmp_path / "source", number, *states[-2:])
    folder = write_model(tmp_path / "local", *({name: array} for name, array in states[0].items()))
    for number in (1, 2):
        code = PULL.replace("threads=1", f"threads=1, version={number}, in_place={in_place}")
        assert run_child(code, folder, tmp_path / "source").stdout.split() == [f"{number}", f"{number - 1}"]
        assert (recorded(folder), digests(wm.load(folder))) == (number, digests(states[number]))


@pytest.mark.parametrize("single", [False, True])
def test_a_model_two_versions_behind_is_not_taken_for_the_base(tmp_path, single):
    """No tensor of the delta reveals it: the model would become the newest version, with an old tensor."""
    states = [{"a": np.zeros(9, np.float32), "b": np.ones(9, np.float32)}]
    states.append(states[0] | {"a": np.full(9, 5, np.float32)})
    states.append(states[1] | {"b": np.full(9, 7, np.float32)})
    source = tmp_path / "source"
    for number in (1, 2):
        write_delta(source, number, *states[number - 1 : number + 1])
    folders = [write_model(tmp_path / f"{number}", state) for number, state in enumerate(states[:2])]
    targets = [folder / "model.safetensors" if single else folder for folder in folders]
    before = contents(folders[0])
    with pytest.raises(wm.DeltaError, match="the model lacks the changes of version 1, the base of the delta"):
        deltas.apply(targets[0], source / "weight_v000002")
    assert contents(folders[0]) == before
    (tmp_path / "damaged.safetensors").write_bytes(bytes(99))
    with pytest.raises(wm.FormatError) as caught:
        deltas.apply(tmp_path / "damaged.safetensors", source / "weight_v000002")
    assert caught.tb is not None
    assert not [path for path in open_files() if path.startswith(f"{source}")]  # while the error is held
    deltas.apply(targets[0], source / "weight_v000001")
    for target in targets:
        assert deltas.apply(target, source / "weight_v000002").version == 2
        assert digests(wm.load(target)) == digests(states[2])


@pytest.mark.parametrize("version", [None, 1, 2, 9])
@pytest.mark.parametrize("holds", ["nothing", "no model", "a model"])
def test_a_pull_that_finds_no_path_leaves_nothing_behind(tmp_path, version, holds):
    """A version that is not there; no version 0; a damaged delta on the way."""
    states = [model()]
    states.append(stepped(states[0], 1))
    source, folder = tmp_path / "source", tmp_path / "local"
    write_delta(source, 1, *states)
    (source / "weight_v000002").mkdir()
    if holds == "a model":
        write_model(folder, states[0])
        (source / "weight_v000001" / "model.safetensors.index.json").write_text("{")
    elif holds == "no model":
        folder.mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(wm.TensorFileError):
        deltas.pull(folder, source, version=version)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", BAD)
def test_malformed_versions_change_nothing(tmp_path, case):
    """With the expected verdict; no byte of the local model or its record changes."""
    found = BAD[case]
    base, source = lay(tmp_path, found)
    folder = tmp_path / "local"
    deltas.pull(folder, source, base=base, version=found["good_to"])
    before = contents(folder)
    assert digests(wm.load(folder)) == {name: digest for name, (_, _, digest) in found["before"].items()}
    for run in (
        lambda: deltas.pull(folder, source, base=base, version=found["to"]),
        lambda: deltas.apply(folder, source / f"weight_v{found['to']:06}"),
    ):
        if found["verdict"] == "reject":
            with pytest.raises(wm.DeltaError):
                run()
        assert contents(folder) == before


def test_full_versions_reset_the_chain(chain, tmp_path):
    """Other sharding, and back; configuration comes along; old shards go; nothing is left over."""
    base, source, states = chain
    folder = tmp_path / "local"
    for version in (0, 1, 2, 3, 4, 5, 6, 4, 2, 6):
        report = deltas.pull(folder, source, base=base, version=version)
        assert (report.version, digests(wm.load(folder))) == (version, digests(states[version]))
        weights = {path.name for path in folder.glob("*.safetensors*")}
        sharded = version not in (3, 4)
        assert len(weights) == (3 if sharded else 1), weights
        assert ("model.safetensors.index.json" in weights) == sharded
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config == {"a": {0: 0, 1: 0, 2: 0, 3: 3, 4: 3, 5: 5, 6: 5}[version]}
        assert {path.name for path in (folder / ".weight_sync").iterdir()} <= {"lock", "state.json", "spare"}


def test_the_newest_finished_version_is_pulled(chain, tmp_path):
    """An unfinished version is left out, unless it is requested; a newer record stays."""
    base, source, states = chain
    folder = tmp_path / "local"
    shutil.copytree(source / "weight_v000006", source / "weight_v000007")
    (source / "weight_v000007" / "model.safetensors.index.json").unlink()
    assert deltas.pull(folder, source, base=base).version == 6
    with pytest.raises(wm.DeltaError, match="unfinished"):
        deltas.pull(folder, source, version=7)
    shutil.rmtree(source / "weight_v000006")
    report = deltas.pull(folder, source)
    assert (report.version, report.tensors) == (6, 0)
    assert digests(wm.load(folder)) == digests(states[6])


def test_without_a_finished_version_no_directory_is_made(tmp_path):
    (tmp_path / "empty").mkdir()
    for source, error in (("empty", wm.DeltaError), ("missing", FileNotFoundError)):
        with pytest.raises(error):
            deltas.pull(tmp_path / "local", tmp_path / source)
    assert not (tmp_path / "local").exists()
    with pytest.raises(OSError, match="Bad file descriptor"):
        deltas.pull(tmp_path / "local", tmp_path / "empty", base=1 << 70, version=0)


def test_a_model_without_a_record_is_taken_for_the_base(chain, tmp_path):
    """The checksums decide: the base is pulled on, anything else stays unchanged."""
    base, source, states = chain
    copy = shutil.copytree(base, tmp_path / "copy")
    assert deltas.pull(copy, source, version=2).base_version == 0
    assert digests(wm.load(copy)) == digests(states[2])
    other = write_model(tmp_path / "other", *split(states[1]))
    with pytest.raises(wm.DeltaError, match=r"other.* is not version 0, the base of the delta, or .* of the result"):
        deltas.pull(other, source, version=2)
    with pytest.raises(wm.DeltaError, match="already at version 1"):
        deltas.pull(other, source, version=1)
    assert digests(wm.load(other)) == digests(states[1])
    with pytest.raises(wm.DeltaError, match="give base=, the model that is version 0"):
        deltas.pull(tmp_path / "nothing", source, version=2)


def test_an_index_that_is_rewritten_meanwhile(chain, tmp_path, monkeypatch):
    """The new index says where the tensors of the opened model are, whatever the old file says by now."""
    base, source, states = chain
    monkeypatch.setattr(pulling, "read_small", lambda _: b'{"metadata": {"kept": "yes"}}')
    deltas.pull(tmp_path / "local", source, base=base, version=1)
    index = json.loads((tmp_path / "local" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"] == {"kept": "yes"}
    assert digests(wm.load(tmp_path / "local")) == digests(states[1])


def test_gaps_and_wrong_bases_are_refused(chain, tmp_path, capsys):
    """The numbers decide, since no delta has the sums of unchanged tensors."""
    base, source, _ = chain
    folder = tmp_path / "local"
    deltas.pull(folder, source, base=base, version=1)
    with pytest.raises(wm.DeltaError, match="version 1, which is not the base of the delta: base_version is 3, expec"):
        deltas.apply(folder, source / "weight_v000004")
    with pytest.raises(wm.DeltaError, match="the model is already at version 1, to which this delta leads"):
        deltas.apply(folder, source / "weight_v000001")
    with pytest.raises(wm.DeltaError, match="full version"):
        deltas.apply(folder, source / "weight_v000003")
    wm.save(tmp_path / "other.safetensors", {"x": np.ones(1, np.float32)})
    with pytest.raises(wm.DeltaError, match=r"tensor .*other\.safetensors has none and is not the base of this delta"):
        deltas.pull(tmp_path / "new", source, base=tmp_path / "other.safetensors", version=1)
    deltas.pull(folder, source, version=3)
    with pytest.raises(wm.DeltaError, match="give base="):
        deltas.pull(folder, source, version=2)
    (folder / ".weight_sync" / "state.json").write_text('{"version": "x"}', encoding="utf-8")
    with pytest.raises(wm.DeltaError, match=r"damaged: version is 'x', .*digits; remove it and pull with base=$"):
        deltas.pull(folder, source)
    assert main(["delta", "pull", str(folder), str(source)]) == 3
    assert capsys.readouterr().err.endswith("digits; remove it and pull with --base\n")


def test_a_journal_needs_a_directory(chain, tmp_path, capsys):
    """A file on its own is refused in the words of the caller; one that does not exist is missing."""
    base, source, _ = chain
    alone, delta = tmp_path / "alone.safetensors", source / "weight_v000001"
    with pytest.raises(FileNotFoundError, match=r"alone\.safetensors"):
        deltas.apply(alone, delta, in_place=True)
    wm.convert(base, alone)
    with pytest.raises(wm.TargetError, match="has no journal; give its directory for in_place=True"):
        deltas.apply(alone, delta, in_place=True)
    assert main(["delta", "apply", str(alone), str(delta), "--in-place"]) == 2
    assert capsys.readouterr().err.endswith("has no journal; give its directory for --in-place\n")


def test_a_base_of_any_format_and_a_single_file(tmp_path):
    """A base of another format becomes a safetensors file; `apply` takes a file on its own."""
    old = {name: value for name, value in model().items() if name != "empty"}
    new = stepped(old, 1)
    wm.save(tmp_path / "base.gguf", old)
    write_delta(tmp_path / "source", 1, old, new)
    deltas.pull(tmp_path / "local", tmp_path / "source", base=tmp_path / "base.gguf")
    assert digests(wm.load(tmp_path / "local")) == digests({name: new[name] for name in wm.load(tmp_path / "local")})
    wm.save(tmp_path / "alone.safetensors", old)
    before = wm.load(tmp_path / "alone.safetensors")
    deltas.apply(tmp_path / "alone.safetensors", tmp_path / "source" / "weight_v000001")
    now = wm.load(tmp_path / "alone.safetensors")
    assert digests(now) == digests({name: new[name] for name in now})
    assert digests(before) == digests({name: old[name] for name in before})
    assert {path.name for path in tmp_path.iterdir()} == {"base.gguf", "alone.safetensors", "local", "source"}
    with pytest.raises(wm.DeltaError, match=r"alone\.safetensors: the model is already at version 1"):
        deltas.apply(tmp_path / "alone.safetensors", tmp_path / "source" / "weight_v000001")
    wm.save(tmp_path / "other.safetensors", stepped(old, 2))
    with pytest.raises(wm.DeltaError, match=r"other.safetensors is not version 0, the base of the delta, or one is da"):
        deltas.apply(tmp_path / "other.safetensors", tmp_path / "source" / "weight_v000001")
    (tmp_path / "other.safetensors").unlink()
    with pytest.raises(wm.UnsupportedError, match="convert"):
        deltas.apply(tmp_path / "base.gguf", tmp_path / "source" / "weight_v000001")


class Stopped(BaseException):
    """The simulated end of a process."""


def stopping(number):
    """A step that stops a process at the number-th call."""
    left = number

    def stop(name):
        nonlocal left
        left -= 1
        if not left:
            raise Stopped(name)

    return stop


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell who has a file open")
@pytest.mark.parametrize(
    ("begin", "target", "in_place"),
    [
        *((*way, False) for way in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (5, 4), (None, 0), (None, 3)]),
        *((*way, True) for way in [(0, 1), (0, 2), (1, 2), (3, 4), (5, 6)]),
    ],
)
def test_stopped_at_every_step(chain, tmp_path, monkeypatch, begin, target, in_place):
    """The whole old version or the whole new one, files and record alike; the next pull ends at the target.

    In place it may also be an error that says to pull again, which then reaches the new version.
    """
    base, source, states = chain
    number, reached, refused = 0, False, 0
    while not reached:
        number += 1
        folder = tmp_path / f"local{number}"
        if begin is not None:
            deltas.pull(folder, source, base=base, version=begin)
            if in_place:
                shutil.rmtree(folder / ".weight_sync" / "spare", ignore_errors=True)
        files = {path.stat().st_ino for path in folder.glob("*.safetensors")}
        with monkeypatch.context() as patch:
            patch.setattr(places, "step", stopping(number))
            if in_place:  # stopping one of several threads would leave the order of blocks to chance
                patch.setattr(places.access, "cpus", lambda: 1)
            else:  # like a kill, it leaves all files: nothing cleans up
                patch.setattr(places.Local, "abandon", lambda _: None)
            try:
                deltas.pull(folder, source, base=base, version=target, in_place=in_place)
                reached = True
            except Stopped:
                pass
        version = places.Local(folder).version()
        assert version in (begin, target, *[None] * in_place)
        if version is None:
            with pytest.raises(wm.TensorFileError, match="pull again" if in_place else None):
                wm.open(folder)
            refused += 1
        else:
            assert digests(wm.load(folder)) == digests(states[version])
        deltas.pull(folder, source, base=base, version=target)
        assert digests(wm.load(folder)) == digests(states[target])
        assert recorded(folder) == target
        assert not in_place or version == begin or files == {p.stat().st_ino for p in folder.glob("*.safetensors")}
        assert {path.name for path in (folder / ".weight_sync").iterdir()} <= {"lock", "state.json", "spare"}
        assert len(list(folder.glob("*.safetensors*"))) == (1 if target in (3, 4) else 3)
    assert number > (8 if in_place else 6)
    assert not in_place or refused > 3


def failing(number):
    """A stat of a file in an open directory that fails at the number-th call, as if a server were away."""
    left, real = number, os.stat

    def call(path, *, dir_fd=None, **options):
        nonlocal left
        left -= dir_fd is not None
        if dir_fd is not None and left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, dir_fd=dir_fd, **options)

    return call, lambda: left <= 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell who has a file open")
@pytest.mark.parametrize(("then", "in_place"), [(None, False), ("move", False), ("remove", False), ("patch", True)])
def test_a_file_that_cannot_be_looked_at_is_not_missing(chain, tmp_path, monkeypatch, then, in_place):
    """A pull, or the one after a killed one, meets an error at each look; the next one ends at the target."""
    base, source, states = chain
    deltas.pull(tmp_path / "from", source, base=base, version=0)
    shutil.rmtree(tmp_path / "from" / ".weight_sync" / "spare", ignore_errors=True)
    if then is not None:
        with monkeypatch.context() as patch, contextlib.suppress(Stopped):

            def step(name):
                if name == then:
                    raise Stopped

            patch.setattr(places, "step", step)
            patch.setattr(places.Local, "abandon", lambda _: None)
            patch.setattr(places.access, "cpus", lambda: 1)
            deltas.pull(tmp_path / "from", source, version=1, in_place=in_place)
    number, failed = 0, True
    while failed:
        number += 1
        folder = tmp_path / "local"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "from", folder)
        call, met = failing(number)
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", call)
            with contextlib.suppress(OSError):
                deltas.pull(folder, source, version=1, in_place=in_place, threads=1)
            failed = met()
        deltas.pull(folder, source, version=1)
        assert digests(wm.load(folder)) == digests(states[1])
        assert recorded(folder) == 1
        assert {path.name for path in (folder / ".weight_sync").iterdir()} <= {"lock", "state.json", "spare"}
        assert len(list(folder.glob("*.safetensors*"))) == 3
    assert number > 10


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell who has a file open")
@pytest.mark.parametrize("in_place", [False, True])
def test_reads_that_return_fewer_bytes(chain, tmp_path, monkeypatch, in_place):
    """As signals and network file systems may cause: each read returns half of the possible bytes."""
    base, source, states = chain
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, count, at: pread(fd, (count + 1) // 2, at))
    monkeypatch.setattr(os, "preadv", lambda fd, rooms, at: preadv(fd, [rooms[0][: (len(rooms[0]) + 1) // 2]], at))
    folder = tmp_path / "local"
    deltas.pull(folder, source, base=base, version=0)
    with monkeypatch.context() as patch, contextlib.suppress(Stopped):
        patch.setattr(places, "step", stopping(6))
        patch.setattr(places.Local, "abandon", lambda _: None)
        deltas.pull(folder, source, version=1, in_place=in_place)
    deltas.pull(folder, source, version=2, in_place=in_place)
    assert digests(wm.load(folder)) == digests(states[2])
    report = deltas.publish(folder, base, tmp_path / "published", version=3, base_version=2, full=False)
    assert report.tensors
    deltas.apply(folder, tmp_path / "published" / "weight_v000003")
    assert digests(wm.load(folder)) == digests(states[0])


def test_another_program_takes_its_turn_after_a_kill(chain, tmp_path, monkeypatch):
    """Its record voids our journal; so do, without a record, files that are no longer ours."""
    base, source, states = chain
    for step in ("forget", "move", "switch", "record", "clean"):
        for written in (True, False):
            folder = tmp_path / f"{step}{written}"
            deltas.pull(folder, source, base=base, version=3)

            def stop(name, step=step):
                if name == step:
                    raise Stopped

            with monkeypatch.context() as patch:
                patch.setattr(places, "step", stop)
                patch.setattr(places.Local, "abandon", lambda _: None)
                with pytest.raises(Stopped):
                    deltas.pull(folder, source, version=5)
            # As SGLang does without a record: it copies a full version in place, and removes other files.
            for path in folder.iterdir():
                if path.is_file():
                    path.unlink()
            shutil.copytree(source / "weight_v000003", folder, dirs_exist_ok=True)
            state = folder / ".weight_sync" / "state.json"
            if written:
                state.write_text('{"version": "000003"}', encoding="utf-8")
            else:
                state.unlink(missing_ok=True)
            assert places.Local(folder).version() == (3 if written else None)
            deltas.pull(folder, source, base=base, version=4)
            assert digests(wm.load(folder)) == digests(states[4])
            assert len(list(folder.glob("*.safetensors*"))) == 1


def test_arrays_over_old_files_keep_their_bytes(chain, tmp_path):
    """Files are replaced, never written to; a spare file that somebody still maps is not written over."""
    base, source, states = chain
    folder = tmp_path / "local"
    held = []
    for version in range(7):
        deltas.pull(folder, source, base=base, version=version)
        held.append(wm.load(folder))
        assert [digests(tensors) for tensors in held] == [digests(state) for state in states[: version + 1]]


@pytest.mark.parametrize("way", [(1, 2), (2, 3), (4, 5)])
@pytest.mark.parametrize("moment", ["index", "shard"])
def test_a_reader_between_two_files(chain, tmp_path, monkeypatch, way, moment):
    """A pull between reading the index, or a shard, and opening the next shard: the handle has one version."""
    from weightmap.core.model import sharded

    base, source, states = chain
    folder = tmp_path / "local"
    deltas.pull(folder, source, base=base, version=way[0])
    pulled = []

    def meanwhile(function):
        def run(*args, **options):
            result = function(*args, **options)
            if not pulled:
                pulled.append(True)
                deltas.pull(folder, source, base=base, version=way[1])
            return result

        return run

    name = "look_in" if moment == "index" else "_open_shard"
    monkeypatch.setattr(sharded, name, meanwhile(getattr(sharded, name)))
    # A single file has no shards, and is opened at once.
    assert digests(wm.load(folder)) == digests(states[way[0] if way == (4, 5) and moment == "shard" else way[1]])


def test_base_and_source_at_an_address(chain, tmp_path):
    """Versions come by requests for parts of objects; a store that cannot list needs the number."""
    _, _, states = chain
    objects = {f"{path.relative_to(tmp_path)}": path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with Server(Objects(objects)) as server:
        place = {"base": f"{server.url}base/", "source": f"{server.url}source/"}
        for version in (2, 6):
            deltas.pull(tmp_path / "local", **place, version=version)
            assert digests(wm.load(tmp_path / "local")) == digests(states[version])
        with pytest.raises(wm.DeltaError, match="name one"):
            deltas.pull(tmp_path / "local", **place)
        with deltas.open(place["base"], [f"{place['source']}weight_v00000{number}" for number in (1, 2)]) as f:
            assert digests(f) == digests(states[2])
        with pytest.raises(wm.DeltaError, match="unfinished"):
            deltas.pull(tmp_path / "local", **place, version=8)


@pytest.mark.skipif(sys.platform != "linux", reason="the system says what memory is anonymous")
@pytest.mark.parametrize(("nbytes", "versions", "most"), [(96 << 20, 1, 24), (4 << 20, 45, 96)])
@pytest.mark.parametrize("in_place", [False, True])
def test_memory_is_that_of_some_blocks(tmp_path, nbytes, versions, most, in_place):
    """With a tensor larger than the bound, and a chain of more versions than are decoded at once; in MiB."""
    state = {"w": np.zeros(nbytes, np.uint8)}
    base, source, folder = write_model(tmp_path / "base", state), tmp_path / "source", tmp_path / "local"
    for version in range(1, versions + 1):
        before = state["w"]
        state = {"w": before.copy()}
        state["w"][version::400] ^= version
        write_delta(source, version, {"w": before}, state)
    deltas.pull(folder, source, base=base, version=0)
    code = f"""
import re
from weightmap.deltas import pull
def anonymous():
    return int(re.search(r"RssAnon:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
pull({str(tmp_path / "warm")!r}, {str(source)!r}, base={str(base)!r}, version=0)
begin, seen = anonymous(), []
pull({str(folder)!r}, {str(source)!r}, in_place={in_place}, threads=2, progress=lambda *_: seen.append(anonymous()))
print((max(seen) - begin) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) <= most
    with wm.open(folder) as f:
        assert np.array_equal(f["w"], state["w"])


@pytest.mark.skipif(sys.platform == "win32", reason="calls by absolute paths")
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("open", ".weight_sync"),
        ("open", ".weight_sync/lock"),
        ("open", ".weight_sync/state.json"),
        ("mkdir", ".weight_sync/next"),
        ("stat", "model-00002-of-00002.safetensors"),
        ("replace", "model-00001-of-00002.v000002.safetensors"),
        ("unlink", ".weight_sync/state.json"),
    ],
)
def test_errors_of_the_system_name_a_path_from_the_root(chain, tmp_path, monkeypatch, call, name):
    """Not the name alone of a file in an open directory."""
    base, source, _ = chain
    folder = tmp_path / "local"
    deltas.pull(folder, source, base=base, version=1)
    system = getattr(os, call)

    def refuse(path, *args, dir_fd=None, **how):
        target = args[0] if call == "replace" else path
        if (dir_fd, how.get("dst_dir_fd")) != (None, None) and target == name.rpartition("/")[2]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path, None, *args[:1] * (call == "replace"))
        return system(path, *args, **how) if dir_fd is None else system(path, *args, dir_fd=dir_fd, **how)

    monkeypatch.setattr(os, call, refuse)
    monkeypatch.setattr(os, "supports_dir_fd", {*os.supports_dir_fd, refuse})
    with pytest.raises(PermissionError) as caught:
        deltas.pull(folder, source, version=2)
    path = folder if call == "replace" else folder / name
    assert (caught.value.filename, caught.value.filename2) == (f"{path}", None)
