"""Results and costs of plans, counted by the kernel: `run`, `warm`, `TensorFile.residency` and `release`."""

import collections
import mmap
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests import builders
from tests.builders import Tensor, embd, normal, npz
from tests.builders import safetensors as safe
from tests.builders import torch as checkpoints
from tests.plans.test_plan_reads import indices, models, rules

import weightmap as wm
from weightmap.core.bytes.open_source import from_path
from weightmap.core.bytes.source import Source
from weightmap.core.model.internals import parts_of
from weightmap.core.native import files as native_files
from weightmap.plans import delivery, pages, warming
from weightmap.plans.pages import FileSystem, file_system_of, numbered

MIB = 1 << 20
PAGE = mmap.PAGESIZE
WAYS = ("map", "read")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is counted on Linux alone")


def equal(a, b):
    """Whether two tensors, or parts of them, are the same to the bit, dtype and shape included."""
    first, second = np.asarray(a), np.asarray(b)
    same = first.tobytes() == second.tobytes() and first.shape == second.shape and first.dtype == second.dtype
    return same and type(a) is type(b)


@given(models(), rules, some.data())
def test_a_run_gives_what_look_ups_give(data, how, draw):
    with wm.open(memoryview(data)) as f:
        names = draw.draw(some.lists(some.sampled_from(sorted(f)), unique=True))
        wants = {name: draw.draw(indices(f.info(name).shape)) for name in names}
        for plan in (wm.plan(f, wants, chunk=draw.draw(some.sampled_from((1, 7, 1 << 20))), **how), wm.plan(f, names)):
            for way in WAYS:
                found = list(plan.run(way))
                assert tuple(name for name, _ in found) == plan.names
                for name, array in found:
                    assert equal(array, f[name][wants[name]] if plan.file is f and len(plan._indices) else f[name])


EXAMPLES = builders.examples()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.format}-{e.name}")
def test_runs_over_every_format(example, way, tmp_path):
    path = tmp_path / f"example{example.suffix}"
    path.write_bytes(example.data)
    with wm.open(path) as f:
        for verify in (True, "last"):
            for name, tensor in wm.plan(f, chunk=100).run(way, verify=verify, release=True):
                assert equal(tensor, f[name]), name
        first = {name: 0 for name in f if f[name].ndim and f[name].shape[0]}
        for name, tensor in wm.plan(f, first).run(way):
            assert np.asarray(tensor).tobytes() == np.asarray(f[name][0]).tobytes()


@pytest.mark.parametrize("suffix", [".npy", ".npz", "deflated", ".pt"])
def test_tensors_that_do_not_lie_row_major(suffix, tmp_path):
    """Transposed, stepped, expanded or deflated, whole and in part: equal to look-ups, by every way of reading."""
    path = tmp_path / f"placed.{suffix.lstrip('.')}"
    matrix = np.asfortranarray(np.arange(60, dtype=np.float32).reshape(5, 12))
    if suffix == ".npy":
        np.save(path, matrix)
    elif suffix == ".pt":
        one = checkpoints.Stored("0", "float32", 60, 0, (12, 5), (1, 12))
        stepped = one._replace(shape=(4, 12), strides=(0, 2), offset=3)
        tensors = {"a": one, "b": stepped, "c": one._replace(strides=(5, 1))}
        storages = {"0": np.arange(60, dtype="<f4").tobytes()}
        path.write_bytes(checkpoints.zipped(checkpoints.dump(tensors), storages))
    else:
        write = np.savez if suffix == ".npz" else np.savez_compressed
        path = tmp_path / "placed.npz"
        integers = np.arange(60, dtype=">i4").reshape(5, 12)
        write(path, a=matrix, b=integers, c=np.zeros((0, 3), order="F"), d=np.array("ab"))
    keys = [None, 1, -1, ..., np.s_[1:3], np.s_[..., 2:9:3], np.s_[::-1], np.s_[3:1], np.s_[3, ..., 2], np.s_[0, ...]]
    with wm.open(path) as f:
        assert any(parts_of(f)[1].table.row(number).geometry for number in range(len(f)))
        for key in keys:
            wants = {name: key for name in f if key is None or (f[name].size and f[name].ndim == 2)}
            plan = wm.plan(f, wants, gap=0)
            for way in WAYS:
                found = dict(plan.run(way))
                assert list(found) == list(plan.names)
                for name, part in found.items():
                    expected = f[name] if key is None else f[name][key]
                    assert equal(part, np.asarray(expected) if isinstance(part, np.ndarray) else expected), (name, key)


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "probe").write_bytes(b"probe")
    found = file_system_of(from_path(str(tmp_path / "probe"), "mmap"))
    if found.kind not in {"local", "overlay"}:
        pytest.skip(f"temporary files lie on {found.name}")
    return tmp_path


def put(path, data):
    """Write a file to the disk: pages that are not written yet cannot be given back."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path


def model(tensors, size):
    return safe.build(
        {f"t{i:03}": Tensor("uint8", (size // 256, 256), bytes([i % 251]) * size) for i in range(tensors)}
    )


def resident(f):
    return sum(one.resident for one in f.residency().values())


def bytes_read():
    line = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()[0]
    return int(line.removeprefix("rchar: "))


def warmed(f):
    """Bring a model into memory; a system that takes pages back meanwhile gets another try."""
    return any(wm.plan(f).warm() >= 0 and resident(f) == wm.plan(f).wanted_nbytes for _ in range(20))


@linux
def test_residency_follows_what_happens(disk):
    """Warm, everything is in memory; given back, nothing is; touched, at least the page that was touched."""
    path = put(disk / "m.safetensors", model(40, 3 * MIB // 10 // 256 * 256))
    with wm.open(path) as f:
        f.advise("random")
        assert warmed(f)
        assert 0 < f.release() <= wm.plan(f).wanted_nbytes
        assert resident(f) == 0
        assert f.residency(["t003", "t001"]).keys() == {"t003", "t001"}
        begin = (f.info("t007").offset + 100 * 256) // PAGE * PAGE
        there = 0
        for _ in range(20):
            f["t007"][100].sum()
            there = max(there, f.residency("t007")["t007"].resident)
        assert there >= min(begin + PAGE, f.info("t008").offset) - max(begin, f.info("t007").offset)


@linux
@pytest.mark.parametrize("way", WAYS)
def test_a_run_gives_back_what_was_consumed(way, disk):
    path = put(disk / "m.safetensors", model(48, MIB))
    with wm.open(path) as f:
        f.release()
        plan, most = wm.plan(f, chunk=MIB, budget=8 * MIB), 0
        for number, (name, array) in enumerate(plan.run(way, release=True)):
            assert array[-1, -1] == number % 251, name
            most = max(most, resident(f))
        assert most <= 24 * MIB
        assert resident(f) == 0


@linux
@pytest.mark.parametrize("wants", [None, ["t001"], {"t001": np.s_[10:20], "t002": np.s_[:, 5:9]}], ids=str)
def test_a_run_reads_what_is_planned(wants, disk):
    path = put(disk / "m.safetensors", model(4, MIB))
    with wm.open(path) as f:
        plan = wm.plan(f, wants, chunk=100_000, gap=0)
        slack = 4096  # the counter itself is read
        for way in WAYS:  # what is imported at the first use is read, too
            collections.deque(plan.run(way), 0)
        for way, wanted in (("read", plan.nbytes), ("map", 0)):
            before = bytes_read()
            for _ in plan.run(way):
                pass
            assert wanted <= bytes_read() - before <= wanted + slack
        assert plan.nbytes == plan.wanted_nbytes


@linux
def test_warming_counts_what_was_cold(disk):
    """Everything is cold once, and warm afterwards; progress goes from nothing to all."""
    path = put(disk / "m.safetensors", model(8, MIB))
    seen = []
    with wm.open(path) as f:
        f.release()
        plan = wm.plan(f, ["t001", "t002", "t006"], gap=0)
        assert plan.warm(threads=3, progress=lambda done, total: seen.append((done, total))) == plan.wanted_nbytes
        assert seen[0] == (0, plan.nbytes)
        assert seen[-1] == (plan.nbytes, plan.nbytes)
        assert sorted(seen) == seen
        assert any(plan.warm() == 0 for _ in range(20))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_handed_out_before_it_is_verified(way, tmp_path):
    data = bytearray(embd.Draft([(f"t{i}", normal((40, 50), i)) for i in range(4)]).seal())
    path = tmp_path / "m.weights"
    path.write_bytes(data)
    with wm.open(path) as f:
        at = f.info("t3").offset
        assert len(list(wm.plan(f).run(way, verify=True))) == 4
    data[at] ^= 1
    path.write_bytes(data)
    for release in (False, True):
        run = wm.plan(path, ["t0"]).run(way, verify=True, release=release)
        with pytest.raises(wm.ChecksumError, match=r"m\.weights: stored CRC-32 of the tensor data"):
            next(run)
    assert len(list(wm.plan(path).run(way))) == 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunk", [100, 1 << 20])
@pytest.mark.parametrize("where", ["t0", "t2", "t3", "behind t1"])
def test_a_changed_byte_is_an_error_before_the_last_tensor(way, chunk, where, tmp_path):
    data = bytearray(embd.Draft([(f"t{i}", normal((40, 49), i)) for i in range(4)]).seal())
    path = tmp_path / "m.weights"
    path.write_bytes(data)
    wants = [None, ["t0", "t2"], {"t0": 3, "t1": np.s_[:, 7:9], "t3": ...}, ["t3"]]
    with wm.open(path) as f:
        info = f.info(where[-2:])
        whole = [list(wm.plan(f, want, chunk=chunk).run(way, verify="last")) for want in wants]
    data[info.offset + info.nbytes if " " in where else info.offset + 9] ^= 1
    path.write_bytes(data)
    for want, expected in zip(wants, whole, strict=True):
        found = []
        with pytest.raises(wm.ChecksumError, match=r"m\.weights: stored CRC-32 of the tensor data"):
            found.extend(wm.plan(path, want, chunk=chunk).run(way, verify="last", release=True))
        assert [name for name, _ in found] == [name for name, _ in expected[:-1]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("suffix", [".npz", ".pt"])
@pytest.mark.parametrize("verify", [True, "last"])
def test_entries_of_archives_are_verified_one_by_one(suffix, way, verify, tmp_path):
    """A changed byte is an error before its tensor comes; those before it do come."""
    path = tmp_path / f"m{suffix}"
    arrays = {f"t{i}": normal((40, 50), i) for i in range(4)}
    if suffix == ".npz":
        path.write_bytes(npz.build(arrays))
    else:
        state, storages = checkpoints.stored(arrays)
        path.write_bytes(checkpoints.zipped(checkpoints.dump(state), storages))
    with wm.open(path) as f:
        at = f.info("t2").offset + 7
        assert [name for name, _ in wm.plan(f).run(way, verify=verify)] == list(arrays)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    run = wm.plan(path, chunk=1).run(way, verify=verify)
    assert [next(run)[0], next(run)[0]] == ["t0", "t1"]
    with pytest.raises(wm.ChecksumError, match=rf"m\{suffix}: stored CRC-32 of entry '.*[2/].*' is 0x"):
        next(run)
    assert [name for name, _ in wm.plan(path, ["t0", "t3"]).run(way, verify=verify)] == ["t0", "t3"]


@pytest.mark.parametrize(
    ("number", "name", "kind", "way"),
    [
        (0xEF53, "ext4", "local", "map"),
        (0x01021994, "tmpfs", "memory", "map"),
        (0x794C7630, "overlay", "overlay", "map"),
        (0x6969, "nfs", "network", "read"),
        (0xFF534D42, "cifs", "network", "read"),
        (0x0BD00BD0, "lustre", "network", "read"),
        (0x65735546, "fuse", "fuse", "read"),
        (0x12345678, "0x12345678", "unknown", "map"),
        (-38, "not told", "unknown", "map"),
        (-5, "unknown", "unknown", "map"),
    ],
)
def test_auto_reads_where_mappings_may_fail(number, name, kind, way, tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    path.write_bytes(model(2, 4096))
    assert numbered(number) == FileSystem(name, kind)
    with wm.open(path) as f:
        monkeypatch.setattr(native_files, "file_system", lambda _: number)
        mapped = [np.shares_memory(array, f[name]) for name, array in wm.plan(f).run()]
        assert mapped == [way == "map"] * 2


def test_a_handle_closed_while_its_run_asks_for_pages(tmp_path, monkeypatch):
    """By another thread, just before the call: the error says that the handle is closed."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(model(2, 4096))
    f = wm.open(path)
    monkeypatch.setattr(delivery, "reads_ahead", lambda _: False)
    monkeypatch.setattr(pages, "is_cached", lambda *_: f.close())
    with pytest.raises(wm.ClosedError):
        dict(wm.plan(f).run(how="map"))


def test_a_way_that_there_is_not_is_an_error_at_once(tmp_path):
    """Before the first tensor is asked for."""
    with wm.open(memoryview(model(1, 256))) as f, pytest.raises(ValueError, match="how is 'fly', expected one of auto"):
        wm.plan(f).run("fly")


@pytest.mark.parametrize("wants", [None, {f"t{i:03}": np.s_[:, 1] for i in range(3)}], ids=["whole", "columns"])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_becomes_shorter_under_way(way, wants, tmp_path):
    """Truncated between two tensors, it is an error of the package when the next one is asked for."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(model(3, MIB))
    with wm.open(path) as f:
        run = wm.plan(f, wants, chunk=1000).run(way)
        next(run)
        os.truncate(path, MIB)
        with pytest.raises((wm.TruncatedError, wm.FileChangedError), match=r"m\.safetensors"):
            next(run)
        with pytest.raises(wm.FileChangedError):
            wm.plan(f).run(way)


@pytest.mark.parametrize("left", [0, 3, 8])
def test_runs_of_a_file_that_becomes_shorter(left, tmp_path, monkeypatch):
    """Columns whose file ends in one of their runs, or between two: an error that names the first byte missing."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(safe.build({"w": normal((50, 100))}))
    with wm.open(path) as f:
        run = wm.plan(f, {"w": np.s_[:, 10:12]}, gap=0).run("read")
        monkeypatch.setattr(Source, "check_unchanged", lambda _: os.truncate(path, first + left))
        first = f.info("w").offset + 4 * (20 * 100 + 10)
        at = first + left if left < 8 else first + 400
        with pytest.raises(wm.TruncatedError, match=r"m\.safetensors.*became shorter") as caught:
            next(run)
        assert caught.value.offset == at


def test_warming_in_a_process_that_gets_no_more_threads(tmp_path, monkeypatch):
    wm.save(tmp_path / "m.weights", {name: np.ones((1 << 20,), np.float32) for name in "abc"})
    real, started = threading.Thread.start, []

    def start(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    told = []
    source = from_path(str(tmp_path / "m.weights"), "mmap")
    work = [(0, at, at + (1 << 20)) for at in range(0, 8 << 20, 1 << 20)]
    warming._bring_in([source], work, 1 << 18, 4, lambda done, total: told.append((done, total)))
    source.close()
    assert not started[0].is_alive()
    assert told[-1] == (8 << 20, 8 << 20)


def test_a_file_that_becomes_shorter_while_it_is_warmed(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    path.write_bytes(model(8, MIB))
    monkeypatch.setattr(warming, "cold_in", lambda _, reads: (reads[2] - reads[1], True))
    with wm.open(path) as f:
        plan = wm.plan(f, chunk=MIB)
        os.utime(path, ns=(0, f._source.identity[3]))
        real = pages.bring_in

        def truncated(source, part):
            os.truncate(path, MIB)
            real(source, part)

        monkeypatch.setattr(warming, "bring_in", truncated)
        with pytest.raises(wm.TruncatedError, match=r"m\.safetensors"):
            plan.warm(threads=4)
        with pytest.raises(wm.FileChangedError):
            plan.warm()


@linux
@pytest.mark.parametrize("counts", [True, False], ids=["counted", "listed"])
def test_pages_here_and_there_are_counted_in_halves(counts, tmp_path, monkeypatch):
    """Resident bytes of overlapping ranges; pages are listed only where some are in memory, if the system counts."""
    page, there = native_files.page_size(), np.repeat([1, 0, 1, 0], [1, 150, 60, 89])
    asked, listed = [], []

    def those(_, offset, size):
        return there[offset // page : -(-(offset + size) // page)]

    def cached_pages(*of):
        asked.append(of)
        return int(those(*of).sum()) if counts else -1

    def resident_pages(_, offset, size):
        listed.append(len(those(None, offset, size)))
        return those(None, offset, size)

    monkeypatch.setattr(native_files, "cached_pages", cached_pages)
    monkeypatch.setattr(native_files, "resident_pages", resident_pages)
    monkeypatch.setattr(pages, "_WINDOW", 4 * page)
    path = tmp_path / "m.bin"
    path.write_bytes(bytes(300 * page))
    source = from_path(str(path), "mmap")
    starts, sizes = np.random.default_rng(5).integers(0, 150 * page, (2, 40))
    bytes_there = np.repeat(there, page)
    expected = [bytes_there[start : start + size].sum() for start, size in zip(starts, sizes, strict=True)]
    assert pages.resident_in(source, starts, sizes).tolist() == expected
    assert (sum(listed) < 20) is counts
    assert len(asked) < 45  # there are 75 windows
    source.close()


@linux
def test_who_may_not_ask_is_not_told(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    path.write_bytes(model(3, 4096))
    monkeypatch.setattr(native_files, "cached_pages", lambda *_: -1)
    real = native_files.resident_pages
    monkeypatch.setattr(native_files, "resident_pages", lambda *of: real(*of) | np.uint8(1))
    with wm.open(path) as f:
        assert resident(f) == 3 * 4096
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(PermissionError, match=r"m\.safetensors"):
            f.residency()
        assert f.release() == 0
        assert wm.plan(f).warm() == 3 * 4096
        monkeypatch.setattr(os, "access", lambda *_: True)
        assert resident(f) == 3 * 4096
        monkeypatch.setattr(native_files, "resident_pages", lambda *_: 38)
        with pytest.raises(OSError, match="not implemented"):
            f.residency()
