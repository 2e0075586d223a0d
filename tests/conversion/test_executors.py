"""Many shards: converted, verified and quantised by executors and ranks, started again by manifests."""

import json
import multiprocessing
import os
import pickle
import pickletools
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from tests.builders import normal, tensor
from tests.builders import safetensors as st

import weightmap as wm
from weightmap.conversion import sharded, verifying

COUNT = 6
QUANTISED = {"format": "amb", "quantize": "int4_block"}


def name_of(number, count=COUNT, suffix=".safetensors"):
    return f"model-{number:05}-of-{count:05}{suffix}"


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shards = {
        name_of(i): {f"layer.{i}.weight": normal((8, 64), i), f"layer.{i}.bias": normal((8,), 100 + i)}
        for i in range(1, COUNT + 1)
    }
    st.shard(folder, shards)
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Inline(Executor):
    """Runs each task when it is submitted, or holds tasks behind a failed one back until they are cancelled."""

    def __init__(self):
        self.tasks = []
        self.held = []
        self.results = []
        self.failed = False

    def submit(self, call, /, *_, **__):
        future = Future()
        if self.failed:
            self.held.append(future)
            return future
        call.tasks = pickle.loads(pickle.dumps(call.tasks))
        self.tasks += call.tasks
        try:
            result = pickle.loads(pickle.dumps(call()))
        except Exception as error:  # noqa: BLE001
            self.failed = True
            future.set_exception(error)
        else:
            self.results.append(result)
            future.set_result(result)
        return future


@pytest.fixture
def converted(monkeypatch):
    """The names of the shards that were not skipped."""
    names = []
    convert_shard = sharded.convert_shard

    def counted(task, **opened):
        report = convert_shard(task, **opened)
        if report.converted:
            names.append(task.name)
        return report

    monkeypatch.setattr(sharded, "convert_shard", counted)
    return names


SPAWN = multiprocessing.get_context("spawn")
EXECUTORS = {
    "threads": lambda: ThreadPoolExecutor(2),
    "processes": lambda: ProcessPoolExecutor(2, mp_context=SPAWN),
    "inline": Inline,
}


@pytest.mark.parametrize("executor", EXECUTORS.values(), ids=EXECUTORS)
def test_executors_write_what_a_serial_run_writes(model, tmp_path, executor):
    serial = wm.convert(model, tmp_path / "serial" / "x.amb.index.json", **QUANTISED)
    seen = []
    with executor() as pool:
        shared = wm.convert(
            model,
            tmp_path / "shared" / "x.amb.index.json",
            progress=lambda done, total: seen.append((done, total)),
            run=wm.Run(pool),
            **QUANTISED,
        )
    assert content(tmp_path / "shared") == content(tmp_path / "serial")
    assert shared._replace(dst=serial.dst) == serial
    assert (serial.shards, serial.skipped, serial.tensors) == (COUNT, 0, 2 * COUNT)
    assert len(serial.quantized) == COUNT
    assert seen == sorted(seen)
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] == COUNT * (8 * 64 + 8) * 4
    with wm.open(tmp_path / "serial") as file:
        assert file.verify().nbytes == serial.nbytes - (tmp_path / "serial" / "x.amb.index.json").stat().st_size


def test_tasks_are_small_and_plain(model, tmp_path):
    with Inline() as pool:
        wm.convert(model, f"{tmp_path}/out/", include=["layer.*"], run=wm.Run(pool), **QUANTISED)
        wm.verify(model, run=wm.Run(pool))
    assert len(pool.tasks) == 2 * COUNT
    for value in (*pool.tasks, *pool.results):
        pickled = pickle.dumps(value)
        assert len(pickled) < 4096
        texts = [text for code, text, _ in pickletools.genops(pickled) if code.name in ("SHORT_BINUNICODE", "GLOBAL")]
        modules = {text for text in texts if isinstance(text, str) and text.startswith(("weightmap.", "builtins"))}
        assert modules
        assert all(name.startswith("weightmap.") for name in modules)
        assert not {"os", "posix", "subprocess", "functools"} & set(texts)


def test_a_task_of_a_directory_that_it_leaves_is_refused(model, tmp_path):
    """A task may only name files below its two directories, whoever made it."""
    with Inline() as pool:
        wm.convert(model, f"{tmp_path}/out/", run=wm.Run(pool), **QUANTISED)
    task = pool.tasks[0]
    for name in ("../x.amb", "/tmp/x.amb", "a/../../x.amb", "C:x", ""):
        with pytest.raises(wm.FormatError, match="relative path within the directory"):
            sharded.convert_shard(task._replace(name=name))
        bad = task._replace(pieces=(task.pieces[0]._replace(name=name),))
        with pytest.raises(wm.FormatError, match="relative path within the directory"):
            sharded.convert_shard(bad)
    assert set(content(tmp_path / "out")) == {name_of(i, suffix=".amb") for i in range(1, COUNT + 1)} | {
        "model.amb.index.json"
    }


def test_a_report_of_another_kind_is_refused(model, tmp_path):
    class Lying(Inline):
        def submit(self, call, /, *_, **__):
            future = super().submit(call)
            lie = Future()
            lie.set_result(tuple(future.result()))
            return lie

    with pytest.raises(wm.ShardsError, match=r"'model-00001-of-00006\.amb': the executor did not return"):
        wm.convert(model, f"{tmp_path}/out/", run=wm.Run(Lying()), **QUANTISED)
    with pytest.raises(wm.ShardsError, match=r"'model-00001-of-00006\.safetensors': the executor did not return"):
        wm.verify(model, run=wm.Run(Lying()))


def test_a_run_goes_on_where_another_ended(model, tmp_path, converted):
    """A restarted run converts only shards that are missing, damaged or made from a changed source."""
    out, path = tmp_path / "out", tmp_path / "manifest.json"

    class Stops(Exception):  # noqa: N818
        pass

    def stop(done, total):
        if done * 2 >= total:
            raise Stops

    with pytest.raises(Stops):
        wm.convert(model, f"{out}/", progress=stop, run=wm.Run(manifest=path), **QUANTISED)
    assert converted == [name_of(i, suffix=".amb") for i in (1, 2, 3)]
    assert "model.amb.index.json" not in content(out)
    (out / ".model-00005-of-00006.amb.0123456789ab.tmp").touch()
    converted.clear()
    report = wm.convert(model, f"{out}/", run=wm.Run(manifest=path), **QUANTISED)
    assert converted == [name_of(i, suffix=".amb") for i in (4, 5, 6)]
    assert (report.shards, report.skipped, len(report.quantized)) == (6, 3, 3)
    wm.convert(model, f"{tmp_path}/serial/", **QUANTISED)
    whole = content(tmp_path / "serial")
    assert content(out) == whole
    converted.clear()
    assert wm.convert(model, f"{out}/", run=wm.Run(manifest=path), **QUANTISED).skipped == 6
    damaged, missing, long = (out / name_of(i, suffix=".amb") for i in (2, 4, 6))
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    missing.unlink()
    with long.open("ab") as file:
        file.write(b"\0")
    assert not converted
    assert wm.convert(model, f"{out}/", run=wm.Run(manifest=path), **QUANTISED).skipped == 3
    assert converted == [damaged.name, missing.name, long.name]
    assert content(out) == whole
    (out / "model.amb.index.json").unlink()
    source = model / name_of(3)
    source.write_bytes(source.read_bytes())
    converted.clear()
    assert wm.convert(model, f"{out}/", run=wm.Run(manifest=path), **QUANTISED).skipped == 5
    assert converted == [name_of(3, suffix=".amb")]
    assert content(out) == whole
    record = json.loads(path.read_text())["shards"][name_of(1, suffix=".amb")]
    assert record["nbytes"] == len(whole[name_of(1, suffix=".amb")])
    assert record["crc32"] == wm.kernels.crc32(whole[name_of(1, suffix=".amb")])


RECORD = {"key": "", "nbytes": 1, "crc32": 0, "tensor_bytes": 0, "unaligned": 0}
NO_MANIFEST = "not a manifest: needs the number 'weightmap_manifest' and the object 'shards'"
# A whole file, or the records of one that is otherwise sound.
DAMAGED = {
    "cut off": ('{"weightmap_manifest": 1, "shards": {', wm.FormatError, "manifest"),
    "empty": ("", wm.FormatError, "manifest"),
    "no version": ('{"shards": {}}', wm.FormatError, NO_MANIFEST),
    "a version in words": ('{"weightmap_manifest": "1", "shards": {}}', wm.FormatError, NO_MANIFEST),
    "no shards": ('{"weightmap_manifest": 1, "shards": []}', wm.FormatError, NO_MANIFEST),
    "another version": ('{"weightmap_manifest": 2, "shards": {}}', wm.UnsupportedError, "is 2, expected 1"),
    "another run": ('{"weightmap_manifest": 1, "shards": {}}', wm.TargetError, "another target or other arguments"),
    "a record of nothing": ({"a": {}}, wm.FormatError, "record of shard 'a'"),
    "a record in words": ({"a": "b"}, wm.FormatError, "record of shard 'a'"),
    "a name that leaves": ({"../a": RECORD}, wm.FormatError, "relative path"),
    "a negative size": ({"a": RECORD | {"nbytes": -1}}, wm.FormatError, "nbytes of shard 'a'"),
    "a size without bound": ({"a": RECORD | {"nbytes": 1 << 63}}, wm.FormatError, "nbytes of shard 'a'"),
    "a truth value": ({"a": RECORD | {"crc32": True}}, wm.FormatError, "crc32 of shard 'a'"),
}


@pytest.mark.parametrize(("damage", "error", "words"), DAMAGED.values(), ids=DAMAGED)
def test_a_bad_manifest_is_one_clear_error(model, tmp_path, damage, error, words):
    path, out = tmp_path / "manifest.json", tmp_path / "out"
    out.mkdir()
    wm.convert(model, out, run=wm.Run(manifest=path), **QUANTISED)
    (out / "model.amb.index.json").unlink()
    (out / name_of(1, suffix=".amb")).write_bytes(b"not ours")
    text = damage if isinstance(damage, str) else json.dumps(json.loads(path.read_text()) | {"shards": damage})
    path.write_text(text)
    before = content(out)
    with pytest.raises(error, match=words) as caught:
        wm.convert(model, out, run=wm.Run(manifest=path), **QUANTISED)
    assert str(caught.value).startswith(f"{path}: ")
    assert path.read_text() == text
    assert content(out) == before


def test_a_manifest_longer_than_limits_allow(model, tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(" " * 1_000_000)
    with pytest.raises(wm.LimitError, match="size of the manifest"):
        wm.verify(wm.open(model, limits=wm.Limits(max_header_bytes=500_000)), run=wm.Run(manifest=path))


def test_a_manifest_of_other_arguments(model, tmp_path):
    """Another scheme or target needs another manifest; threads and limits do not."""
    path = tmp_path / "manifest.json"
    wm.convert(model, f"{tmp_path}/out/", run=wm.Run(manifest=path), **QUANTISED)
    before = content(tmp_path / "out")
    with pytest.raises(wm.TargetError, match="another target or other arguments"):
        wm.convert(model, f"{tmp_path}/out/", run=wm.Run(manifest=path), **QUANTISED | {"quantize": "int5_block"})
    with pytest.raises(wm.TargetError, match="another target or other arguments"):
        wm.verify(model, run=wm.Run(manifest=path))
    with wm.open(model, limits=wm.Limits(max_tensors=10_000)) as file:
        again = wm.convert(file, f"{tmp_path}/out/", run=wm.Run(manifest=path), threads=1, **QUANTISED)
    assert again.skipped == COUNT
    assert content(tmp_path / "out") == before


def test_a_model_that_no_manifest_accounts_for_is_not_replaced(model, tmp_path):
    out = tmp_path / "out"
    wm.convert(model, f"{out}/", **QUANTISED)
    before = content(out)
    for more in ({}, {"run": wm.Run(manifest=tmp_path / "manifest.json")}):
        with pytest.raises(wm.TargetError, match="this model exists already"):
            wm.convert(model, out, **QUANTISED, **more)
    assert content(out) == before


def damage(model, *numbers):
    """Put a NaN into weights, which cannot be quantised."""
    for number in numbers:
        path = model / name_of(number)
        tensors, _ = st.parse(path.read_bytes())
        bad = tensors[f"layer.{number}.weight"].array.copy()
        bad[0, 0] = np.nan
        path.write_bytes(st.build(tensors | {f"layer.{number}.weight": tensor(bad)}))


def test_the_first_error_stops_what_has_not_begun(model, tmp_path, converted):
    """The task's error names the shard; later tasks are cancelled, finished ones recorded."""
    damage(model, 3, 5)
    path = tmp_path / "manifest.json"
    with pytest.raises(wm.QuantError, match=rf"{name_of(3)}: tensor 'layer\.3\.weight': element 0 .* is nan"):
        wm.convert(model, f"{tmp_path}/a/", **QUANTISED)
    assert converted == [name_of(i, suffix=".amb") for i in (1, 2)]
    pool = Inline()
    with pytest.raises(wm.QuantError, match=rf"{name_of(3)}: "):
        wm.convert(model, f"{tmp_path}/b/", run=wm.Run(pool, manifest=path), **QUANTISED)
    assert len(pool.held) == 3
    assert all(future.cancelled() for future in pool.held)
    assert set(content(tmp_path / "b")) == {name_of(i, suffix=".amb") for i in (1, 2)}
    assert set(json.loads(path.read_text())["shards"]) == set(content(tmp_path / "b"))


@pytest.mark.parametrize("threads", [False, True])
def test_keep_going_collects_errors(model, tmp_path, *, threads):
    damage(model, 3, 5)
    run = wm.Run(ThreadPoolExecutor(2) if threads else None, keep_going=True)
    with pytest.raises(wm.ShardsError, match=r"2 shards failed: .*layer") as caught:
        wm.convert(model, f"{tmp_path}/a/", run=run, **QUANTISED)
    assert sorted(name for name, _ in caught.value.errors) == [name_of(i, suffix=".amb") for i in (3, 5)]
    assert {type(error) for _, error in caught.value.errors} == {wm.QuantError}
    assert pickle.loads(pickle.dumps(caught.value)).errors[0][0] == caught.value.errors[0][0]
    assert set(content(tmp_path / "a")) == {name_of(i, suffix=".amb") for i in (1, 2, 4, 6)}


def test_keep_going_names_every_shard_that_does_not_open(model, tmp_path, monkeypatch):
    """Of a directory and of an index; without it, the first one."""
    (model / name_of(2)).unlink()
    path = model / name_of(5)
    path.write_bytes(path.read_bytes()[:20])
    index = model / "model.safetensors.index.json"
    for run in (
        lambda source, how: wm.verify(source, run=how),
        lambda source, how: wm.convert(source, f"{tmp_path}/a/", run=how),
    ):
        for source in (model, str(index)):
            with pytest.raises(wm.ShardsError, match=r"2 shards failed: .*is missing.*ends within") as caught:
                run(source, wm.Run(keep_going=True))
            assert [name for name, _ in caught.value.errors] == [name_of(2), name_of(5)]
            with pytest.raises(wm.LayoutError, match=name_of(2)):
                run(source, wm.Run(manifest=tmp_path / "m"))
    monkeypatch.chdir(model)  # damaged content has no other path
    with pytest.raises(wm.TruncatedError):
        wm.verify(b"EMBD", run=wm.Run(keep_going=True))
    (model / name_of(2)).symlink_to(name_of(1))
    with pytest.raises(wm.TruncatedError, match=name_of(5)):
        wm.verify(model, run=wm.Run(keep_going=True))


def test_errors_of_the_executor_name_the_shard(model, tmp_path):
    """A lost worker, or an executor that was shut down, is one error of ours, with its cause."""

    class Broken(Inline):
        def submit(self, call, /, *_, **__):
            if len(self.tasks) == 2:
                raise RuntimeError("the pool is broken")
            return super().submit(call)

    class Gone(Inline):
        def submit(self, *_, **__):
            future = Future()
            future.set_exception(RuntimeError("the worker is gone"))
            return future

    with pytest.raises(wm.ShardsError, match=r"1 shard failed: 'model-00003-of-00006\.amb': RuntimeError: the pool is"):
        wm.convert(model, f"{tmp_path}/a/", run=wm.Run(Broken()), **QUANTISED)
    with pytest.raises(
        wm.ShardsError, match=r"'model-00001-of-00006\.amb': RuntimeError: the worker is gone"
    ) as caught:
        wm.convert(model, f"{tmp_path}/b/", run=wm.Run(Gone()), **QUANTISED)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not (tmp_path / "b").exists()
    with pytest.raises(wm.ShardsError, match=r"6 shards failed: .*; and 3 more"):
        wm.convert(model, f"{tmp_path}/b/", run=wm.Run(Gone(), keep_going=True), **QUANTISED)


def test_a_source_that_changes_after_the_deal(model, tmp_path):
    pool = Inline()
    wm.convert(model, f"{tmp_path}/out/", run=wm.Run(pool), **QUANTISED)
    path = model / name_of(1)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(wm.FormatError):
        sharded.convert_shard(pool.tasks[0])
    path.write_bytes(st.build({"layer.1.weight": normal((2, 2), 1)}))
    with pytest.raises(wm.FileChangedError, match=f"{name_of(1)}: the file was changed after its shards were planned"):
        sharded.convert_shard(pool.tasks[0])


def test_ranks_share_the_shards_out(model, tmp_path, converted):
    wm.convert(model, f"{tmp_path}/serial/", **QUANTISED)
    converted.clear()
    out, runs = tmp_path / "out", [wm.Run(manifest=tmp_path / "m", rank=rank, world_size=4) for rank in range(4)]
    for i, rank in enumerate((2, 0, 3)):
        report = wm.convert(model, f"{out}/", run=runs[rank], **QUANTISED)
        assert report.warnings[-1].endswith("of other ranks are missing: the rank that ends last writes the index")
        assert "model.amb.index.json" not in content(out), i
    assert report.tensors == 8
    report = wm.convert(model, f"{out}/", run=runs[1], **QUANTISED)
    assert (report.warnings, report.tensors, report.shards) == ((), 12, 2)
    assert len(converted) == COUNT
    assert content(out) == content(tmp_path / "serial")
    assert wm.convert(model, f"{out}/", run=runs[2], **QUANTISED).skipped == 1
    assert content(out) == content(tmp_path / "serial")
    assert sorted(path.name for path in tmp_path.glob("m.*")) == [f"m.{i}-of-4" for i in range(4)]
    (tmp_path / "m.3-of-4").write_text("{")
    with pytest.raises(wm.FormatError, match=r"m\.3-of-4: "):
        wm.convert(model, f"{out}/", run=runs[0], **QUANTISED)
    verified = [wm.verify(model, run=wm.Run(rank=rank, world_size=4)) for rank in range(4)]
    assert sum(report.nbytes for report in verified) == wm.verify(model).nbytes


def test_scales_go_to_the_shard_of_their_weights(tmp_path):
    weight, scale = normal((4, 4), 1), normal((1, 1), 2)
    shards = {
        name_of(1, 3): {"a.weight": weight, "b.weight_scale_inv": scale},
        name_of(2, 3): {"a.weight_scale_inv": scale, "b.weight": weight},
        name_of(3, 3): {"lone_scale": scale},
    }
    st.shard(tmp_path, shards)
    pool = Inline()
    report = wm.convert(tmp_path, f"{tmp_path}/out/", format="embd", run=wm.Run(pool))
    assert report.warnings == ("2 tensors of scales went to the shards of their weights",)
    assert [[(piece.name, piece.rows) for piece in task.pieces] for task in pool.tasks] == [
        [(name_of(1, 3), ((0, 1),)), (name_of(2, 3), ((0, 1),))],
        [(name_of(2, 3), ((1, 2),)), (name_of(1, 3), ((1, 2),))],
        [(name_of(3, 3), ((0, 1),))],
    ]
    with wm.open(tmp_path / "out") as file:
        parts = [*([f"{name}.weight", f"{name}.weight_scale_inv"] for name in "ab"), ["lone_scale"]]
        assert [list(part) for part in file.shards.values()] == parts
    assert wm.diff(tmp_path, tmp_path / "out", tensors_only=True).equal


def test_a_directory_keeps_its_configuration(model, tmp_path):
    (model / "config.json").write_text('{"hidden_size": 64, "vocab_size": 3}')
    (model / "vocab.txt").write_text("[PAD]\n[UNK]\nwörd\n")
    report = wm.convert(model, f"{tmp_path}/out/", format="embd")
    assert not report.warnings
    with wm.open(tmp_path / "out") as file:
        assert file.metadata["hidden_size"] == "64"
        assert list(file.vocab or ()) == ["[PAD]", "[UNK]", "wörd"]
        assert [part.vocab is not None for part in file.shards.values()] == [True, *[False] * (COUNT - 1)]
    path = tmp_path / "manifest.json"
    options = {"format": "embd", "run": wm.Run(manifest=path)}
    wm.convert(model, f"{tmp_path}/b/", **options)
    (model / "config.json").touch()
    assert wm.convert(model, f"{tmp_path}/b/", **options).skipped == COUNT
    state = (model / "config.json").stat()
    (model / "config.json").write_text('{"hidden_size": 65, "vocab_size": 3}')
    os.utime(model / "config.json", ns=(state.st_atime_ns, state.st_mtime_ns))
    (tmp_path / "b" / "model.weights.index.json").unlink()
    assert wm.convert(model, f"{tmp_path}/b/", **options).skipped == COUNT - 1
    with wm.open(tmp_path / "b") as file:
        assert file.metadata["hidden_size"] == "65"


def test_verify_by_an_executor_says_the_same(model, tmp_path, monkeypatch):
    out = tmp_path / "out"
    wm.convert(model, f"{out}/", format="embd")
    with wm.open(out) as file:
        serial = file.verify()
    path, verified, verify_shard = tmp_path / "m", [], verifying.verify_shard
    threads = set()

    def watched(task):
        verified.append(task.name)
        threads.add(task.threads)
        return verify_shard(task)

    monkeypatch.setattr(verifying, "verify_shard", watched)
    assert wm.verify(out) == serial
    with ThreadPoolExecutor(2) as pool:
        assert wm.verify(out, run=wm.Run(pool)) == serial
        assert threads == {1}  # the executor shares the processors out
        assert wm.verify(out, threads=2, run=wm.Run(pool)) == serial
        assert threads == {1, 2}
        verified.clear()
        seen = []
        assert wm.verify(out, progress=lambda *now: seen.append(now), run=wm.Run(pool, manifest=path)) == serial
        assert seen[-1][0] == seen[-1][1] == serial.nbytes
        assert wm.verify(out, run=wm.Run(pool, manifest=path)) == serial
        assert len(verified) == COUNT
    one = out / name_of(2, suffix=".weights")
    with wm.open(one) as file:
        alone = file.verify()
    assert wm.verify(one, run=wm.Run(ThreadPoolExecutor(1))) == alone
    data = bytearray(one.read_bytes())
    data[-100] ^= 1
    one.write_bytes(data)
    verified.clear()
    with pytest.raises(wm.ChecksumError, match=one.name):
        wm.verify(out, run=wm.Run(manifest=path))
    assert verified == [one.name]
    verified.clear()
    with pytest.raises(wm.ShardsError, match="1 shard failed"):
        wm.verify(out, run=wm.Run(keep_going=True))
    assert len(verified) == COUNT


def test_commands(model, tmp_path, run):
    out, manifest = f"{tmp_path}/out/", tmp_path / "m"
    for rank in (1, 0):
        argv = ("quantize", model, out, "--scheme", "int4_block", "--format", "amb", "--manifest", manifest)
        status, text, err = run(*argv, "--rank", rank, "--world-size", 2, "--json")
        assert status == 0, err
        assert (json.loads(text)["shards"], json.loads(text)["skipped"]) == (3, 0)
    wm.convert(model, f"{tmp_path}/serial/", **QUANTISED)
    assert content(tmp_path / "out") == content(tmp_path / "serial")
    status, text, _ = run("convert", model, f"{tmp_path}/embd/", "--format", "embd")
    assert (status, text.splitlines()[-1].startswith(f"{tmp_path}/embd/")) == (0, True)
    assert run("verify", tmp_path / "embd", "--manifest", tmp_path / "v")[0] == 0
    for i in (2, 4):
        path = tmp_path / "embd" / name_of(i, suffix=".weights")
        path.write_bytes(path.read_bytes()[:-70] + b"x" * 70 if i == 4 else b"")
    status, text, _ = run("verify", tmp_path / "embd", "--keep-going")
    assert status == 3
    status, _, err = run("verify", model, "--rank", 2, "--world-size", 2)
    assert (status, err) == (2, "weightmap: --rank is 2 and --world-size 2, expected 0 <= rank < world-size\n")
    for command in (("verify", model), ("convert", model, f"{tmp_path}/alone/")):
        for given, lacking in (("--rank", "--world-size"), ("--world-size", "--rank")):
            status, _, err = run(*command, given, 0 if given == "--rank" else 2)
            assert (status, f"weightmap: {given} needs {lacking}: " in err) == (2, True)
    assert not (tmp_path / "alone").exists()
    status, _, err = run("verify", model, model, "--manifest", "m")
    assert (status, err.startswith("weightmap: --manifest: for one FILE")) == (2, True)
    files = [model / name_of(i) for i in (1, 2, 3)]
    status, text, _ = run("verify", *files, "--rank", 1, "--world-size", 2)
    assert (status, text.count(": ok"), name_of(2) in text) == (0, 1, True)
    status, _, err = run("convert", model, tmp_path / "one.amb", "--keep-going")
    assert (status, "is one file: give a directory or an *.index.json" in err) == (2, True)
