"""`trust=`: whole files against digests that were recorded elsewhere."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.conversion.test_executors import Inline
from tests.device_support import FakeDevice

import weightmap as wm
from weightmap import cli
from weightmap.conversion import converting, running
from weightmap.core.bytes import source as sources
from weightmap.core.model import single
from weightmap.device import Staging, load
from weightmap.trust import checking

MODES = ["mmap", "cow", "copy", "sealed"]
NAME = "model.safetensors"
ZEROS = "0" * 64


@pytest.fixture
def model(tmp_path):
    """A folder with a model of one file."""
    folder = tmp_path / "model"
    folder.mkdir()
    wm.save(folder / NAME, {"w": np.arange(200_000, dtype=np.float32)})
    return folder


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def git(path):
    return git_of(Path(path).read_bytes())


def git_of(raw):
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw).hexdigest()


def pointer(path):
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(path)}\nsize {path.stat().st_size}\n"


def sums(folder):
    return "".join(f"{sha256(path)}  {path.name}\n" for path in folder.iterdir())


def refused(source, given, match, **how):
    with pytest.raises(wm.TrustError, match=match) as caught:
        wm.open(source, trust=given, **how)
    return caught.value


def in_sums(folder):
    (folder / "SHA256SUMS").write_text(sums(folder))


def in_own_list(folder):
    (folder / f"{NAME}.sha256").write_text(f"{sha256(folder / NAME).upper()} *{NAME}\r\n")


def bare(folder):
    (folder / f"{NAME}.sha256").write_text(sha256(folder / NAME) + "\n")


def in_pointer(folder):
    (folder / f"{NAME}.lfs").write_text(pointer(folder / NAME))


def downloaded(folder):
    notes = folder / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    (notes / f"{NAME}.metadata").write_text(f"{'c' * 40}\n{sha256(folder / NAME)}\n1700000000.5\n")


def downloaded_above(folder):
    notes = folder.parent / ".cache" / "huggingface" / "download" / folder.name
    notes.mkdir(parents=True)
    (notes / f"{NAME}.metadata").write_text(f"{'c' * 40}\n{git(folder / NAME)}\n1700000000.5\n")


def cached(folder, digest=sha256):
    """Turn the folder into a snapshot of a hub cache."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / ("c" * 40)
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    blob = blobs / digest(folder / NAME)
    (folder / NAME).rename(blob)
    (snapshot / NAME).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def small(folder):
    return cached(folder, git)


PLACES = [in_sums, in_own_list, bare, in_pointer, downloaded, downloaded_above, cached, small]


@pytest.mark.parametrize("place", PLACES)
def test_what_lies_beside_a_model_is_its_digest(model, place):
    path = (place(model) or model) / NAME
    for mode in MODES:
        for opened in (path, path.parent):
            with wm.open(opened, trust="recorded", mode=mode) as file:
                assert file["w"][-1] == 199_999
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    for mode in MODES:
        error = refused(path, "recorded", "its digest is", mode=mode)
        assert error.path == str(path)
        assert {len(error.actual), len(error.expected)} <= {len("sha256:") + 64, len("git:") + 40}
        assert error.actual != error.expected
    assert isinstance(pickle.loads(pickle.dumps(error)), wm.ChecksumError)
    path.write_bytes(before)
    wm.open(path, trust="recorded").close()


@pytest.mark.parametrize("mode", MODES)
def test_a_mapping_and_a_path_of_a_list(model, tmp_path, mode):
    path, good = model / NAME, sha256(model / NAME)
    lists = {
        "SUMS": sums(model),
        "bsd": f"# by hand\n\nSHA256 (./{NAME}) = {good}\n",
        "lfs": pointer(path),
        "bare": good,
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        wm.open(path, trust=tmp_path / name, mode=mode).close()
    assert list(wm.load(path, trust={NAME: f"sha256:{good}"}, mode=mode)) == ["w"]
    for given in ({NAME: good.upper()}, f"sha256:{good}"):
        wm.open(path, trust=given, mode=mode).close()
    refused(path, f"sha256:{ZEROS}", "its digest is sha256:", mode=mode)
    for digits in ("sha256:12", good):
        refused(path, digits, "expected sha256: and 64 hexadecimal digits", mode=mode)
    refused(model, f"sha256:{good}", "the digest is of one file: give a list of digests", mode=mode)
    refused(path, {NAME: f"sha256:{ZEROS}"}, "its digest is sha256:", mode=mode)
    refused(path, {"other": f"sha256:{good}"}, f"this file has no digest in the list: '{NAME}'", mode=mode)
    refused(path, "recorded", "this file has no digest beside it", mode=mode)
    (tmp_path / "lfs2").write_text(pointer(path))
    refused(
        model / ".." / "model", tmp_path / "lfs2", "the digest is of one file", mode=mode
    )  # of a directory's file, it says nothing


@pytest.mark.parametrize("name", ["../model/model.safetensors", "/model.safetensors", "a/../model.safetensors", "./"])
def test_names_that_lead_out_of_the_folder_are_refused(model, tmp_path, name):
    (tmp_path / "list").write_text(f"{sha256(model / NAME)}  {name}\n")
    for given in ({name: f"sha256:{sha256(model / NAME)}"}, tmp_path / "list"):
        refused(model / NAME, given, "expected one in the folder")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no digest in this list"),
        (f"{ZEROS[1:]}  {NAME}\n", "line 1 is not a line"),
        (f"{ZEROS}{NAME}\n", "line 1 is not a line"),
        (f"\\{ZEROS}  a\\tb\n", "escape"),
        (f"{ZEROS}  {NAME}\n{ZEROS[1:]}1  ./{NAME}\n", "contradict"),
        (f"SHA1 ({NAME}) = {ZEROS}\n", "line 1 is not a line"),
        ("\0\xff", "line 1 is not a line"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:zz\nsize 3\n", "line 1 is not a line"),
    ],
)
def test_a_list_that_sha256sum_would_not_write_is_refused(model, tmp_path, text, match):
    (tmp_path / "list").write_bytes(text.encode("latin-1"))
    refused(model / NAME, tmp_path / "list", match)


def test_places_that_contradict_each_other_are_refused(model):
    in_sums(model)
    (model / f"{NAME}.sha256").write_text(ZEROS)
    refused(model / NAME, "recorded", "contradict")
    (model / f"{NAME}.sha256").write_text(f"{sha256(model / NAME)}  other\n")
    refused(model / NAME, "recorded", "another file")
    (model / f"{NAME}.sha256").unlink()
    downloaded(model)  # another kind of digest: the file has to agree with both
    notes = model / ".cache" / "huggingface" / "download" / f"{NAME}.metadata"
    notes.write_text(f"{'c' * 40}\n{'0' * 40}\n1\n")
    refused(model / NAME, "recorded", "its digest is git:")


def test_arguments(model, tmp_path):
    for given in (3, b"recorded", {NAME: 3}, {3: "x"}):
        with pytest.raises(TypeError):
            wm.open(model / NAME, trust=given)
    refused(model / NAME, {NAME: "md5:00"}, "expected sha256:")
    with pytest.raises(FileNotFoundError):
        wm.open(model / NAME, trust=tmp_path / "none")
    os.mkfifo(tmp_path / "fifo")
    refused(model / NAME, tmp_path / "fifo", "a list of digests must be a regular file")
    for source in ((model / NAME).read_bytes(), "https://example.org/model.safetensors"):
        with pytest.raises(wm.UnsupportedError, match="opened by path"):
            wm.open(source, trust="recorded")
    with pytest.raises(wm.UnsupportedError, match="deltas"):
        wm.deltas.open(model / NAME, [tmp_path], trust="recorded")


def test_every_file_that_is_opened_is_listed(tmp_path):
    """Index, shards and configuration; each that lacks a digest, or has another one, is refused by name."""
    tensors = {f"t{n}": np.full(1000, n, np.float32) for n in range(6)}
    wm.save(tmp_path / NAME, tensors, max_shard_size=8000)
    (tmp_path / "config.json").write_text("{}")
    names = sorted(path.name for path in tmp_path.iterdir())
    digests = {name: f"sha256:{sha256(tmp_path / name)}" for name in names}
    assert len(names) == 5
    for mode in MODES:
        with wm.open(tmp_path, trust=digests, mode=mode) as file:
            assert [array[0] for array in file.values()] == list(range(6))
            assert list(file.weights) == list(tensors)
            again = pickle.loads(pickle.dumps(file))
            assert again["t5"][0] == 5
            again.close()
        for name in names:
            for change in ({name: f"sha256:{ZEROS}"}, {}):
                given = {other: digest for other, digest in digests.items() if other != name} | change
                with pytest.raises(wm.TrustError) as caught:
                    wm.open(tmp_path, trust=given, mode=mode).weights  # noqa: B018
                assert caught.value.path == str(tmp_path / name)


def bytes_read():
    return int(Path("/proc/self/io").read_text().split()[1])


def looked_up(folder, trust, mode):
    with wm.open(folder, trust=trust, mode=mode) as file:
        yield from file.items()


def planned(folder, trust, mode):
    with wm.open(folder, trust=trust, mode=mode) as file:
        yield from wm.plan(file, budget=1 << 20).run(verify=True)


def uploaded(folder, trust, mode):
    with wm.open(folder, trust=trust, mode=mode) as file:
        yield from load(wm.plan(file), FakeDevice(), staging=Staging(2, 1 << 18), group=1 << 18)


def served(folder, trust, mode):
    settings, _ = wm.vllm.ExtraConfig.of({"trust": trust, "mode": mode})
    yield from wm.vllm.tensors(sorted(map(str, folder.glob("*.safetensors"))), settings, shared=False)


class Steps:
    """Counts steps, and does something before one of them."""

    def __init__(self, at, what):
        self.at, self.what, self.count = at, what, 0
        self.lock = threading.Lock()

    def step(self):
        with self.lock:
            if self.count == self.at:
                self.what()
            self.count += 1

    def before(self, function):
        def call(*args):
            self.step()
            return function(*args)

        return call


@pytest.mark.parametrize("use", [looked_up, planned, uploaded, served])
@pytest.mark.parametrize("mode", ["copy", "sealed"])
@pytest.mark.parametrize("swap", ["in place", "by rename"])
def test_a_swap_at_any_step_hands_out_no_other_bytes(tmp_path, monkeypatch, use, mode, swap):
    """Steps are each read of a file, each digest that is begun, and each tensor that is handed out."""
    tensors = {f"t{n}": np.full(200_000, n, np.float32) for n in range(4)}
    good, other = tmp_path / "good", tmp_path / "other"
    wm.save(good / NAME, tensors, max_shard_size=1_700_000)
    wm.save(other / NAME, {name: -1 - array for name, array in tensors.items()}, max_shard_size=1_700_000)
    digests = {own.name: f"sha256:{sha256(own)}" for own in good.iterdir()}
    monkeypatch.setattr(wm.vllm, "read_tensor", lambda file, name, array: array)  # without torch
    finished = refused = 0
    for at in range(100):
        model = tmp_path / f"model{at}"
        shutil.copytree(good, model)

        def swapped(model=model):
            for own in model.glob("*.safetensors"):
                raw = (other / own.name).read_bytes()
                if swap == "by rename":
                    (model / "new").write_bytes(raw)
                    (model / "new").replace(own)
                else:
                    with own.open("r+b") as file:  # never shorter: another thread may be reading it
                        file.write(raw)

        steps = Steps(at, swapped)
        with monkeypatch.context() as patched:
            patched.setattr(sources.access, "read_into", steps.before(sources.access.read_into))
            patched.setattr(checking, "_Sum", steps.before(checking._Sum))
            try:
                for name, array in use(model, digests, mode):
                    assert array[0] == array[-1] == tensors[name][0], (at, name)
                    steps.step()
            except (wm.TrustError, wm.FileChangedError):
                refused += 1
            else:
                finished += 1
        shutil.rmtree(model)
        if steps.count <= at:
            break
    assert at > 10
    assert refused >= 1
    assert finished >= 1


@pytest.mark.parametrize("mode", MODES)
def test_every_opening_hashes(model, mode):
    """Other bytes of the same size, in place, with the old times as far as a program can set them."""
    path, given = model / NAME, {NAME: f"sha256:{sha256(model / NAME)}"}
    for _ in range(2):
        before = bytes_read()
        wm.open(path, trust=given, mode=mode).close()
        assert bytes_read() - before > path.stat().st_size
    status, raw = path.stat(), bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    refused(path, given, "its digest is", mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_verify_reads_a_file_once(model, mode):
    """Hashing proves that every byte is readable; the format's checksums need a second read."""
    nbytes, given = (model / NAME).stat().st_size, {NAME: f"sha256:{sha256(model / NAME)}"}
    before = bytes_read()
    with wm.open(model / NAME, trust=given, mode=mode) as file:
        opened, seen = bytes_read(), []
        report = wm.verify(file, progress=lambda done, total: seen.append((done, total)))
        assert bytes_read() - (before if mode in {"mmap", "cow"} else opened) < 1.5 * nbytes
    assert report.checks[1:] == ("header", "every byte is readable")
    assert report.nbytes == nbytes
    assert seen[-1] == (nbytes, nbytes)


def test_plans_conversions_and_safe_open(model, tmp_path):
    (model / "config.json").write_text("{}")
    good = {name: f"sha256:{sha256(model / name)}" for name in (NAME, "config.json")}
    bad = good | {NAME: f"sha256:{ZEROS}"}
    path, new = model / NAME, tmp_path / "new.weights"
    calls = {
        "plan": lambda given: dict(wm.plan(wm.open(path, trust=given)).run()),
        "safe_open": lambda given: wm.compat.safe_open(path, "np", trust=given),
        "pread": lambda given: wm.compat.safe_open(path, "np", backend="pread", trust=given),
        "convert": lambda given: wm.convert(wm.open(path, trust=given), new),
        "a directory": lambda given: wm.convert(wm.open(model, trust=given), tmp_path / "copy"),
        "verify": lambda given: wm.verify(wm.open(model, trust=given)),
    }
    for call in calls.values():
        call(good)
    new.unlink()
    for call in calls.values():
        with pytest.raises(wm.TrustError):
            call(bad)
    assert not new.exists()
    assert wm.verify(wm.open(model, trust=good)).checks[0] == "SHA-256 of 2 files as given"
    (model / "README.md").write_text("new")
    with pytest.raises(wm.TrustError, match=r"README\.md"):
        wm.verify(wm.open(model, trust=good))
    (model / "README.md").unlink()
    with pytest.raises(wm.TrustError, match="'gone' is in the list"):
        wm.verify(wm.open(model, trust={**good, "gone": f"sha256:{ZEROS}"}))


def test_shards_of_an_index_are_counted(tmp_path):
    """They are compared when they are opened."""
    wm.save(tmp_path / "m.safetensors", {f"t{i}": np.ones(1000, np.float32) for i in range(3)}, max_shard_size=4000)
    given = {path.name: f"sha256:{sha256(path)}" for path in tmp_path.iterdir()}
    assert len(given) == 4
    with wm.open(tmp_path / "m.safetensors.index.json", trust=given) as f:
        assert f"SHA-256 of {len(given)} files as given" in wm.verify(f).scope


@pytest.mark.parametrize("name", [".gitattributes", ".cache/note"])
def test_a_listed_file_is_compared_whatever_its_name(model, name):
    """Unlisted, these need no digest."""
    given = {NAME: f"sha256:{sha256(model / NAME)}"}
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("a")
    assert wm.verify(wm.open(model, trust=given)).checks[0] == "SHA-256 of 1 file as given"
    given[name] = f"sha256:{sha256(model / name)}"
    assert wm.verify(wm.open(model, trust=given)).checks[0] == "SHA-256 of 2 files as given"
    (model / name).write_text("b")
    with pytest.raises(wm.TrustError, match="its digest is"):
        wm.verify(wm.open(model, trust=given))
    (model / name).unlink()
    with pytest.raises(wm.TrustError, match="is in the list of digests, and not in the folder"):
        wm.verify(wm.open(model, trust=given))


def test_folders_of_any_depth(model):
    """A stranger's folder may be deeper than Python's stack."""
    given = {NAME: f"sha256:{sha256(model / NAME)}"}
    folders = [Path(f"{model}/{'d/' * count}") for count in range(1, 1200)]
    unlisted = folders[-1] / "x"
    try:
        for folder in folders:
            folder.mkdir()
        assert wm.verify(wm.open(model, trust=given)).checks[0] == "SHA-256 of 1 file as given"
        unlisted.touch()
        with pytest.raises(wm.TrustError, match="this file has no digest in the list: 'd/d/d/"):
            wm.verify(wm.open(model, trust=given))
    finally:  # `shutil.rmtree`, which pytest uses, is as deep as the folder
        unlisted.unlink(missing_ok=True)
        for folder in reversed(folders):
            folder.rmdir()


def test_verify_says_what_was_compared(model, tmp_path, capsys):
    """It does not add that changed values would go unnoticed: a digest of a whole file notices them."""
    snapshot, good = cached(model), sha256(model / "snapshots" / ("c" * 40) / NAME)
    (model / "blobs" / git_of(b"{}")).write_bytes(b"{}")
    (snapshot / "config.json").symlink_to(model / "blobs" / git_of(b"{}"))
    (tmp_path / "SUMS").write_text(f"{good}  {NAME}\n")
    said = {
        (snapshot, "recorded"): "SHA-256 of 1 file, git's SHA-1 of 1 file as recorded",
        (snapshot / NAME, "recorded"): "SHA-256 of 1 file as recorded",
        (snapshot / NAME, f"sha256:{good}"): "SHA-256 of 1 file as given",
        (snapshot / NAME, str(tmp_path / "SUMS")): f"SHA-256 of 1 file as in '{tmp_path / 'SUMS'}'",
    }
    for (path, given), expected in said.items():
        assert wm.verify(wm.open(path, trust=given)).scope.split(", ", 1)[1] == expected
        assert cli.main(["verify", str(path), "--trust", given]) == 0
        printed = capsys.readouterr().out
        assert expected in printed
        assert "structure only" not in printed
        assert cli.main(["verify", str(path), "--trust", given, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["files"][0]["digests"] == expected


@pytest.mark.parametrize("mode", [None, "mmap"])
def test_a_server_hands_out_what_was_hashed(tmp_path, mode):
    """Each file is hashed while the one before is used; a wrong one stops the load before any of its tensors."""
    vllm = wm.vllm
    for number in range(4):
        wm.save(tmp_path / f"m{number}.safetensors", {f"t{number}": np.full(9, number, np.float32)})
    paths = [str(tmp_path / f"m{number}.safetensors") for number in range(4)]
    digests = {Path(path).name: f"sha256:{sha256(path)}" for path in paths}
    settings, _ = vllm.ExtraConfig.of({"trust": digests, "mode": mode} if mode else {"trust": digests})
    found = []
    patched = vllm.read_tensor
    vllm.read_tensor = lambda file, name, array: (file.is_stable, array[0])  # without torch
    try:
        assert list(vllm.tensors(paths, settings, shared=False)) == [(f"t{n}", (mode is None, n)) for n in range(4)]
        settings, _ = vllm.ExtraConfig.of({"trust": digests | {"m2.safetensors": f"sha256:{ZEROS}"}})
        with pytest.raises(wm.TrustError, match=r"m2\.safetensors"):
            found.extend(name for name, _ in vllm.tensors(paths, settings, shared=False))
        next(vllm.tensors(paths, settings, shared=False))  # stops early: files that were opened ahead are closed
    finally:
        vllm.read_tensor = patched
    assert found == ["t0", "t1"]
    with pytest.raises(TypeError, match="trust is a int"):
        vllm.ExtraConfig.of({"trust": 3})


def test_lists_are_written_as_sha256sum_does(tmp_path):
    """Files, shards and directories; a list that is there keeps its other lines."""
    tensors = {f"t{n}": np.full(1000, n, np.float32) for n in range(4)}
    wm.save(tmp_path / "b\\c.safetensors", tensors, output=wm.Output(sha256sums=True))
    wm.save(tmp_path / NAME, tensors, max_shard_size=8000, output=wm.Output(sha256sums=True))
    wm.convert(tmp_path / "b\\c.safetensors", tmp_path / "a.weights", output=wm.Output(sha256sums=True))
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    names = sorted(path.name for path in tmp_path.iterdir() if path.name != "SHA256SUMS")
    assert len(names) == 5
    assert sorted(line.split("  ")[1].replace("\\\\", "\\") for line in lines) == names
    assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=False).returncode == 0
    for name in ("b\\c.safetensors", "a.weights", f"{NAME}.index.json"):
        assert len(wm.load(tmp_path / name, trust="recorded")) == 4
    (tmp_path / "config.json").write_text("{}")
    for name in ("a.weights", "b\\c.safetensors"):
        (tmp_path / name).unlink()
    wm.convert(tmp_path, tmp_path / "new/", output=wm.Output(sha256sums=True))
    wm.verify(wm.open(tmp_path / "new", trust="recorded"))
    assert "config.json" in (tmp_path / "new" / "SHA256SUMS").read_text()


CODE = "modeling_x.py"


@pytest.fixture
def directory(model):
    """A model directory of two shards with code, a vocabulary and a module; and the digests of its files."""
    (model / NAME).unlink()
    wm.save(model / NAME, {"a": np.ones((4, 1000), np.float32), "b": np.ones(1000, np.float32)}, max_shard_size=17_000)
    (model / "config.json").write_text('{"dtype": "float32"}')
    (model / CODE).write_text("good = 1")
    (model / "vocab.txt").write_text("good\n")
    (model / "modules.json").write_text('[{"path": "1_Dense"}]')
    (model / "1_Dense").mkdir()
    (model / "1_Dense" / "model.safetensors").write_bytes(b"good")
    names = [str(path.relative_to(model)) for path in model.rglob("*") if path.is_file()]
    return model, {name: f"sha256:{sha256(model / name)}" for name in names}


def tampered(path):
    path.write_bytes(path.read_bytes().replace(b"good", b"evil").replace(b"float32", b"float64"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["config.json", CODE, "vocab.txt", "modules.json", "1_Dense/model.safetensors"])
def test_files_beside_a_model_are_copied_as_they_were_hashed(directory, tmp_path, mode, name):
    """Somebody changes one while shards are written."""
    model, given = directory

    def progress(done, total):
        if done == total:
            (model / name).write_text("evil")

    with wm.open(model, trust=given, mode=mode) as file:
        assert wm.convert(file, tmp_path / "good/", dtype="fp16").copied
        with pytest.raises(wm.TrustError) as caught:
            wm.convert(file, tmp_path / "new/", dtype="fp16", progress=progress)
    assert caught.value.path == str(model / name)
    copied = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    assert not [path.name for path in copied if path.suffix == ".json" and "index" in path.name]
    assert not [path.name for path in copied if b"evil" in path.read_bytes()]


@pytest.mark.parametrize("name", ["config.json", "vocab.txt"])
@pytest.mark.parametrize("target", ["new.weights", "new.gguf", "new/"])
def test_what_a_conversion_reads_beside_a_model_is_what_was_hashed(directory, tmp_path, monkeypatch, name, target):
    """A file restored before all files are hashed, and one that cannot be parsed."""
    model, given = directory
    good = (model / name).read_bytes()

    def check_all(*args):
        (model / name).write_bytes(good)
        checking.check_all(*args)

    monkeypatch.setattr(converting, "check_all", check_all)
    for damage in (tampered, lambda path: path.write_bytes(b"{\xff")):
        damage(model / name)
        with wm.open(model, trust=given) as file, pytest.raises(wm.TrustError) as caught:
            wm.convert(file, tmp_path / target)
        assert caught.value.path == str(model / name)
        (model / name).write_bytes(good)
    assert not (tmp_path / target).exists()


def test_a_comparison_reads_what_was_hashed(directory, tmp_path):
    model, given = directory
    wm.convert(model, tmp_path / "other.weights")
    with wm.open(model, trust=given) as file:
        assert wm.diff(file, tmp_path / "other.weights").vocab is None
    tampered(model / "vocab.txt")
    with wm.open(model, trust=given) as file, pytest.raises(wm.TrustError, match=r"vocab\.txt"):
        wm.diff(file, tmp_path / "other.weights")


def test_a_published_version_has_the_files_that_were_hashed(directory, tmp_path):
    model, given = directory
    with wm.open(model, trust=given, mode="copy") as file, pytest.raises(wm.TrustError, match=CODE):
        wm.deltas.publish(file, file, tmp_path / "to", version=1, full=True, progress=lambda *_: tampered(model / CODE))
    assert not list((tmp_path / "to").rglob("*.py"))


@pytest.mark.parametrize("mode", ["copy", "sealed"])
def test_workers_use_the_bytes_that_were_hashed(directory, tmp_path, monkeypatch, mode):
    """Somebody changes a shard in place as soon as a worker has opened it."""
    model, given = directory
    opened = []

    def open_file(source, path, options):
        file = single.open_file(source, path, options)
        with Path(path).open("r+b") as other:
            other.seek(-4, os.SEEK_END)
            other.write(b"evil")
        opened.append(path)
        return file

    monkeypatch.setattr(running, "open_file", open_file)
    with wm.open(model, trust=given, mode=mode) as file:
        wm.convert(file, tmp_path / "new/", run=wm.Run(executor=Inline()))
    assert len(opened) == 2
    for array in wm.load(tmp_path / "new").values():
        assert np.all(array == 1)
