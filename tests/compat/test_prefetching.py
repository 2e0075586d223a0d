"""`safe_open.prefetch`, as in safetensors 0.9, and beyond it."""

import errno
import gc
import mmap
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from tests.builders import safetensors as st
from tests.support import each, in_one_item, run_child

import weightmap as wm
from weightmap import compat
from weightmap.compat import PrefetchError, _frameworks, _prefetching, _reading, safe_open
from weightmap.core.native import access

TENSORS = {
    "a": np.arange(60, dtype=np.float32).reshape(5, 4, 3),
    "b": np.arange(8, dtype=np.int64),
    "c": np.full((2, 2), 0.5, np.float16),
    "d": np.zeros((0, 3), np.float32),
    "e": np.array(7.0),
}
SUFFIXES = (".safetensors", ".gguf", ".weights", ".bt")


@pytest.fixture(autouse=True, params=(False, True), ids=("on disk", "in the page cache"))
def cached(request, monkeypatch):
    """Whether files seem to lie in the page cache: tensors are mapped then, without a thread, and else read."""
    for module in (_prefetching, _reading):
        monkeypatch.setattr(module, "is_cached", lambda *_: request.param)
    return request.param


def saved(path):
    tensors = TENSORS if path.suffix == ".safetensors" else {"a": TENSORS["a"], "c": TENSORS["c"]}
    wm.save(path, tensors)
    return path, tensors


@in_one_item("suffix", SUFFIXES)
def test_each_tensor_is_handed_out_once(tmp_path, suffix):
    """By name and by iteration, from every format; a second time raises, and so does an unknown name."""
    path, tensors = saved(tmp_path / f"m{suffix}")
    with safe_open(path, "np") as f, f.prefetch() as loader:
        assert set(loader.names()) == set(tensors)
        assert len(loader) == len(tensors)
        np.testing.assert_array_equal(loader.take("c"), tensors["c"])
        others = dict(loader)
        assert set(others) == set(tensors) - {"c"}
        for name, value in others.items():
            np.testing.assert_array_equal(value, tensors[name])
        for name in tensors:
            with pytest.raises(PrefetchError, match="already delivered"):
                loader.take(name)
        with pytest.raises(wm.TensorNotFoundError, match="not in the prefetch plan"):
            loader.take("zz")
        assert list(loader) == []


PLANS = {
    "rows": ("a", slice(1, 4)),
    "a step": ("a", slice(None, None, 2)),
    "backwards": ("a", slice(None, None, -1)),
    "another dimension": ("a", (slice(None), slice(1, 3), 0)),
    "an integer": ("a", 2),
    "a list": ("a", [0, 3]),
    "a mask and a list": ("a", (np.array([1, 0, 0, 1, 0], bool), [2, 3])),
    "all": ("b", None),
    "nothing": ("d", slice(0, 0)),
}


@pytest.mark.parametrize("budget", [None, 0, 100, 1 << 20])
def test_parts(tmp_path, budget):
    """With any index of slices and any budget; tensors outside the plan are not read."""
    path, tensors = saved(tmp_path / "m.safetensors")

    def check(kind):
        name, index = PLANS[kind]
        with safe_open(path, "np") as f, f.prefetch({name: index, "c": None}, budget=budget) as loader:
            assert sorted(loader.names()) == sorted({name, "c"})
            expected = tensors[name] if index is None else tensors[name][index]
            np.testing.assert_array_equal(loader.take(name), expected)
            np.testing.assert_array_equal(loader.take("c"), tensors["c"])

    each(PLANS, check)


def test_tensors_nobody_takes_stay_within_the_budget(tmp_path):
    """Tensors read ahead and not taken fit the budget; taking them makes room for more."""
    tensors = {f"t{i}": np.full(256, i, np.float32) for i in range(8)}  # 1 KiB each
    wm.save(tmp_path / "m.safetensors", tensors)
    with safe_open(tmp_path / "m.safetensors", "np") as f, f.prefetch(budget=3 << 10, threads=2) as loader:
        names = []
        for name, value in loader:
            with loader._lock:
                assert loader._filled <= 3 << 10
            names.append(name)
            np.testing.assert_array_equal(value, tensors[name])
        assert sorted(names) == sorted(tensors)


def test_tensors_that_a_framework_copies_stay_within_the_budget(tmp_path, monkeypatch):
    """In the page cache too: only mapped ones take no memory."""
    copied = []

    def deliver(array):
        copied.append(array.nbytes)
        return array.copy()

    monkeypatch.setitem(_frameworks._NAMED, "mlx", _frameworks.Framework("mlx", False, False, deliver, "numpy"))
    wm.save(tmp_path / "m.safetensors", {f"t{i}": np.full(256, i, np.float32) for i in range(8)})  # 1 KiB each
    with safe_open(tmp_path / "m.safetensors", "mlx") as f, f.prefetch(budget=2 << 10) as loader:
        assert len(copied) <= len(loader._futures) == 2
        assert [tensor[0] for _, tensor in loader] == list(range(8))


def resident():
    """The bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_memory_is_the_budget_and_a_tensor(tmp_path, framework):
    """Pages of a tensor leave with its last view; a kept view has its values, and later writes."""
    if framework == "pt":
        pytest.importorskip("torch")
    size = 8 << 20
    wm.save(tmp_path / "m.safetensors", {f"t{i:02}": np.full((2, size // 2), i, np.uint8) for i in range(16)})
    kept = []
    with safe_open(tmp_path / "m.safetensors", framework) as f:
        before, most = resident(), 0
        with f.prefetch(budget=2 * size, threads=2) as loader:
            for number, name in enumerate(loader.names()):
                tensor = loader.take(name)
                assert (tensor[:, ::4096] == number).all()
                if number == 0:
                    kept.append(tensor[1, -9:])
                    if framework == "pt":
                        kept[0][:] = 7
                most = max(most, resident() - before)
                del tensor
        assert most < 6.5 * size  # the budget, a tensor, and the one whose view is kept: 4.3 here
    assert set(kept[0].tolist()) == {7 if framework == "pt" else 0}


def test_the_file_of_the_handle_is_read(tmp_path, monkeypatch):
    """Even if its path or the number of its descriptor leads elsewhere by now."""
    wm.save(tmp_path / "m.safetensors", {"a": np.zeros(4)})
    wm.save(tmp_path / "other.safetensors", {"a": np.ones(4)})
    monkeypatch.chdir(tmp_path)
    with Path("m.safetensors").open("rb") as file:
        from_descriptor = compat._safe_open_handle(file, "np")
    handles = [from_descriptor, safe_open("m.safetensors", "np"), safe_open("m.safetensors", "np", backend="pread")]
    with Path("other.safetensors").open("rb"):
        wm.save("m.safetensors", {"a": np.ones(4)})
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        for handle in handles:
            with handle.prefetch() as loader:
                assert loader.take("a").tolist() == [0] * 4


def test_what_is_written_to_a_tensor_stays_there(tmp_path):
    """A loader gives back only its own tensors' pages."""
    pytest.importorskip("torch")
    wm.save(tmp_path / "m.safetensors", {"a": np.zeros(1 << 16, np.uint8)})
    with safe_open(tmp_path / "m.safetensors", "pt") as f:
        tensor = f.get_tensor("a")
        tensor[:] = 7
        with f.prefetch() as loader:
            assert not loader.take("a").any()
        gc.collect()
        assert (tensor == 7).all()


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_deflated_and_strided_tensors(tmp_path, framework):
    """Whole and in parts, large ones too, by `prefetch` and by slices."""
    if framework == "pt":
        pytest.importorskip("torch")
    array = np.arange(1 << 19, dtype=np.float32).reshape(1024, 512)
    np.savez(tmp_path / "strided.npz", a=array.T.copy().T)
    np.savez_compressed(tmp_path / "deflated.npz", a=array)
    for name in ("strided", "deflated"):
        with safe_open(tmp_path / f"{name}.npz", framework) as f:
            for index in (..., slice(100, 900), (slice(None), slice(0, 500, 3))):
                np.testing.assert_array_equal(f.get_slice("a")[index], array[index])
                with f.prefetch({"a": None if index is ... else index}) as loader:
                    np.testing.assert_array_equal(loader.take("a"), array[index])


def test_rows_of_packed_tensors(tmp_path):
    """Rows of whole bytes; other parts of elements below the byte are refused before anything is read."""
    path = tmp_path / "x.safetensors"
    head = b'{"x":{"dtype":"F4","shape":[4,8],"data_offsets":[0,16]},'
    head += b'"y":{"dtype":"F4","shape":[2,3],"data_offsets":[16,19]}}'
    path.write_bytes(st.raw(head, bytes(range(19))))
    for backend in ("mmap", "pread"):
        with safe_open(path, "np", backend=backend) as f:
            with f.prefetch({"x": ([slice(1, 3)], [slice(0, 8)]), "y": None}) as loader:
                assert loader.take("x").tolist() == list(range(4, 12))
                assert loader.take("y").tolist() == [16, 17, 18]
            with f.prefetch({"x": ()}) as loader:
                assert loader.take("x").tolist() == list(range(16))
            for plan in ({"x": slice(0, 4, 2)}, {"x": (slice(None), slice(4))}, {"y": slice(1)}):
                with pytest.raises(wm.UnsupportedError, match="whole bytes"):
                    f.prefetch(plan)


def test_torch_has_no_float6(tmp_path):
    """As safetensors 0.9: refused before any byte is read, and before a missing device is used."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.safetensors"
    path.write_bytes(st.raw(b'{"x":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}', bytes(3)))
    for device in ("cpu", "cuda:0"):
        with safe_open(path, "pt", device) as f, pytest.raises(wm.UnsupportedError, match="F6_E2M3"):
            f.prefetch()
    if not torch.cuda.is_available():
        with safe_open(path, "pt", "cuda:0") as f, pytest.raises(wm.UnsupportedError, match=r"cuda:0.*torch has here"):
            f.get_tensor("x")


WRONG = {
    "an unknown name": ({"zz": None}, wm.TensorNotFoundError, "zz"),
    "no names": ({}, PrefetchError, "selects no tensors"),
    "too many dimensions": ({"b": (0, 0)}, PrefetchError, "'b'"),
    "beyond the end": ({"b": 8}, PrefetchError, "'b'"),
    "rows beyond the end": ({"b": slice(0, 9)}, PrefetchError, "'b'.* 9 is out of range"),
    "columns beyond the end": ({"a": (..., slice(-4, None))}, PrefetchError, "-4 is out of range"),
    "lists beyond the end": ({"b": ([slice(0, 4), slice(6, 9)],)}, PrefetchError, "'b'.* 9 is out of range"),
    "lists beside an integer": ({"a": (0, [slice(0, 1)])}, PrefetchError, "'a'"),
    "a step of 0": ({"b": slice(0, 3, 0)}, PrefetchError, "invalid prefetch plan slice.*'b'"),
    "no index": ({"b": slice("a")}, PrefetchError, "'b'"),
    "no mapping": (["a"], TypeError, "plan"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_plans_that_do_not_fit_are_refused(tmp_path, kind):
    plan, error, words = WRONG[kind]
    path, _ = saved(tmp_path / "m.safetensors")
    threads = threading.active_count()
    with safe_open(path, "np") as f, pytest.raises(error, match=words):
        f.prefetch(plan)
    assert threading.active_count() == threads


def test_closing_ends_the_threads_and_keeps_what_was_handed_out(tmp_path):
    path, tensors = saved(tmp_path / "m.safetensors")
    with safe_open(path, "np") as f:
        loader = f.prefetch(threads=1)
        kept = loader.take("a")
        loader.close()
        loader.close()
        np.testing.assert_array_equal(kept, tensors["a"])
        with pytest.raises(PrefetchError, match="closed"):
            loader.take("b")
        with pytest.raises(PrefetchError, match="closed"):
            list(loader)
        with pytest.raises(ValueError, match="threads"):
            f.prefetch(threads=0)
    with pytest.raises(wm.ClosedError):
        f.prefetch()


def test_a_forked_child_has_no_threads_to_wait_for(tmp_path):
    path, tensors = saved(tmp_path / "m.safetensors")
    code = """
import os, signal, sys
from weightmap import compat
with compat.safe_open(sys.argv[1], "np") as f:
    loader = f.prefetch(threads=1, budget=0)
    child = os.fork()
    if not child:
        signal.alarm(30)
        said = []
        for use in (list, lambda loader: loader.take("a")):
            try:
                use(loader)
            except compat.PrefetchError as error:
                said.append("of another process" in str(error))
        loader.close()
        os._exit(40 + len(list(f.prefetch())) if said == [True, True] else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(list(loader)))
"""
    assert run_child(code, path).stdout.split() == [str(40 + len(tensors)), str(len(tensors))]


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_engines_that_call_safetensors(tmp_path, framework):
    """As transformers and vLLM call 0.9: a plan has lists of slices for each axis; a loader outlives its handle."""
    if framework == "pt":
        pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors")
    path, tensors = saved(tmp_path / "m.safetensors")
    with compat.patched(), safetensors.safe_open(path, framework=framework, device="cpu") as f:
        regions = {"a": ([slice(0, 1), slice(3, 5)], [slice(0, 4)], [slice(0, 1), slice(2, 3)]), "b": ([slice(2, 4)],)}
        for backend in ("mmap", "pread"):
            loader = safetensors.safe_open(path, framework=framework, backend=backend).prefetch(regions, device="cpu")
            a = np.asarray(loader.take("a"))
            np.testing.assert_array_equal(a, tensors["a"][np.ix_([0, 3, 4], range(4), [0, 2])])
            np.testing.assert_array_equal(np.asarray(loader.take("b")), tensors["b"][2:4])
            loader.close()
        for name in f.offset_keys():
            meta, view = f.get_tensor_meta(name), f.get_slice(name)
            assert (meta.dtype, meta.shape) == (view.get_dtype(), view.get_shape())
        for name, value in safetensors.safe_open(path, framework=framework).prefetch(device="cpu"):
            np.testing.assert_array_equal(np.asarray(value), tensors[name])
        f.prefetch()  # nobody takes from it
        rows = {name: slice(0, meta.shape[0] // 2) for name in ("a", "b") if (meta := f.get_tensor_meta(name))}
        with f.prefetch(rows, threads=2) as loader:
            for name, value in loader:
                np.testing.assert_array_equal(np.asarray(value), tensors[name][rows[name]])
        np.testing.assert_array_equal(np.asarray(f.get_tensor("c")), tensors["c"])


def test_an_error_reaches_who_takes_the_tensor(tmp_path):
    path, _ = saved(tmp_path / "m.safetensors")
    with safe_open(path, "np") as f, f.prefetch(budget=0, threads=1) as loader:
        with path.open("r+b") as file:  # the file shrinks under the loader
            file.truncate(8)
        with pytest.raises((wm.FileChangedError, wm.TruncatedError)):
            dict(loader)


def test_an_error_of_the_system_reaches_who_takes_the_tensor(tmp_path, monkeypatch):
    """Neither the maker of the loader, nor takers of other tensors."""
    path, tensors = saved(tmp_path / "m.safetensors")
    stale, memory_of = wm.open(path).info("c").offset, _reading.OpenedFile._memory_of

    def failing(reader, row):
        if row.offset == stale:
            raise OSError(errno.ESTALE, "stale file handle", str(path))
        return memory_of(reader, row)

    monkeypatch.setattr(_reading.OpenedFile, "_memory_of", failing)
    with safe_open(path, "np") as f, f.prefetch() as loader:
        for name in tensors.keys() - {"c"}:
            np.testing.assert_array_equal(loader.take(name), tensors[name])
        with pytest.raises(OSError, match="stale"):
            loader.take("c")


def test_a_process_that_gets_no_threads(tmp_path, monkeypatch):
    """Whoever takes a tensor reads it."""
    path, tensors = saved(tmp_path / "m.safetensors")

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with safe_open(path, "np") as f, f.prefetch() as loader:
        assert dict(loader).keys() == tensors.keys()
    with safe_open(path, "np", backend="pread") as f, f.prefetch() as loader:
        for name, expected in tensors.items():
            np.testing.assert_array_equal(loader.take(name), expected)


def test_another_thread_closes_the_loader_while_a_tensor_is_waited_for(tmp_path, monkeypatch):
    """A future that `close` cancels wakes callers of its `result`, not of `concurrent.futures.wait`."""
    path, _ = saved(tmp_path / "m.safetensors")
    begin, said = threading.Event(), []
    monkeypatch.setattr(_prefetching, "is_cached", lambda *_: False)
    monkeypatch.setattr(_prefetching, "_load", lambda *_: begin.wait())

    def take(loader):
        with pytest.raises(PrefetchError, match="the loader is closed"):
            loader.take(last)
        said.append("closed")

    with safe_open(path, "np") as f, f.prefetch(threads=1) as loader:
        *_, last = loader.names()
        loader._futures[last].cancel()  # as `close` does, before it waits for the thread that reads another tensor
        thread = threading.Thread(target=take, args=(loader,), daemon=True)
        thread.start()
        thread.join(10)
        begin.set()
        assert said == ["closed"]


def test_another_thread_closes_the_loader_once_a_tensor_is_read(tmp_path, monkeypatch):
    path, _ = saved(tmp_path / "m.safetensors")
    monkeypatch.setattr(_prefetching, "is_cached", lambda *_: False)
    with safe_open(path, "np") as f, f.prefetch() as loader:
        read = loader._futures["a"]

        class Read(Future):
            def result(self, timeout=None):
                read.result(timeout)
                loader.close()

        loader._futures["a"] = Read()
        loader._futures["a"].set_result(None)
        with pytest.raises(PrefetchError, match="the loader is closed"):
            loader.take("a")


def test_meta(tmp_path):
    """Type, shape and place of a tensor, from the header alone."""
    path, tensors = saved(tmp_path / "m.safetensors")
    header = int.from_bytes(path.read_bytes()[:8], "little")
    with safe_open(path, "np") as f:
        for name, array in tensors.items():
            meta = f.get_tensor_meta(name)
            assert meta.shape == list(array.shape)
            begin, end = meta.data_offsets
            assert path.read_bytes()[8 + header :][begin:end] == array.tobytes()
        assert f.get_tensor_meta("a").dtype == "F32"
        for ask in (f.get_tensor_meta, f.get_slice, f.get_tensor):
            with pytest.raises(wm.TensorNotFoundError, match="does not contain"):
                ask("zz")
        assert isinstance(f.get_slice("a"), compat.PySafeSlice)


def test_a_loader_that_nobody_closes_leaves_no_thread(tmp_path, cached):
    """Tensors in the page cache need none."""
    path, _ = saved(tmp_path / "m.safetensors")
    before = set(threading.enumerate())
    with safe_open(path, "np") as f:
        loader = f.prefetch(budget=0)
        threads = set(threading.enumerate()) - before
        assert bool(threads) is not cached
        del loader
        gc.collect()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


MIB = 1 << 20
AHEAD = {
    "half of the rows": (slice(512, None), [(MIB, MIB)]),
    "rows, backwards": (slice(511, None, -1), [(0, MIB)]),
    "half of each row": ((slice(None), slice(512)), [(0, 2 * MIB - 1024)]),
    "few rows": (slice(0, 9), []),
    "all": (..., []),
}


def test_parts_of_a_mapped_tensor_are_read_ahead(tmp_path, monkeypatch):
    """A rank's parts and small tensors are requested byte by byte; other tensors load when they are touched."""
    path, asked = tmp_path / "m.safetensors", []
    wm.save(
        path, {"a": np.ones((1024, 1024), np.uint16), "experts": np.ones((4, 512, 512), np.uint8), "norm": np.ones(8)}
    )
    with wm.open(path) as f:
        base = {info.name: info.offset for info in f.infos()}

    def will_need(memory, offset, size):
        asked.append((offset, size))

    monkeypatch.setattr(access, "will_need", will_need)
    monkeypatch.setattr(_reading, "is_cached", lambda *_: False)  # as where the system does not tell

    def check(kind):
        asked.clear()
        index, expected = AHEAD[kind]
        with safe_open(path, "np") as f:
            assert f.get_slice("a")[index].size
        assert asked == [(base["a"] + offset, size) for offset, size in expected]

    each(AHEAD, check)
    asked.clear()
    with safe_open(path, "np") as f:
        f.get_slice("experts")[:, 256:]
        f.get_slice("norm")[...]
    assert asked == [(base["experts"] + (2 * i + 1) * MIB // 8, MIB // 8) for i in range(4)] + [(base["norm"], 64)]
