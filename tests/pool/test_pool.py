"""Pools: tensors in memory within a budget, read past mappings."""

import _thread
import ctypes
import mmap
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.builders import Tensor, gguf
from tests.places import ROOT
from tests.support import HANG, peak_of, run_child

import weightmap as wm
from weightmap.core.bytes.source import Source
from weightmap.plans import direct as direct_reading
from weightmap.plans.direct import ALIGN
from weightmap.pool.arena import Arena, slot_size

SIZE = 4 * ALIGN
NAMES = [f"expert.{number}" for number in range(8)]
WAYS = [True, False]
CHECKPOINTS = ROOT / "tests" / "checkpoints" / "groundtruth"


def rows(name):
    return np.full((4, ALIGN // 4), int(name[-1]) + 1, np.float32) + np.arange(4, dtype=np.float32)[:, None] / 8


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.safetensors"
    wm.save(path, {name: rows(name) for name in NAMES} | {"scalar": np.float32(3), "empty": np.zeros((0, 2))})
    with wm.open(path) as file:
        yield file


def check(pool, name, index=None):
    with pool.hold(name, index) as found:
        np.testing.assert_array_equal(found, rows(name) if index is None else rows(name)[index])
        assert not found.flags.writeable


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_is_right_and_the_budget_is_kept(model, way):
    budget = 3 * (SIZE + ALIGN)
    with model.pool(budget, direct=way) as pool:
        for name in [*NAMES, *reversed(NAMES)]:
            check(pool, name)
            for index in (0, -1):
                check(pool, name, index)
            assert pool.stats.resident_nbytes <= budget
        with pool.hold("scalar") as scalar, pool.hold("empty") as empty:
            assert (scalar, empty.shape) == (3, (0, 2))
        stats = pool.stats
        assert stats.hits + stats.misses == 6 * len(NAMES) + 2
        assert stats.evictions > 0
        assert stats.held_nbytes == 0
        last, hits = len(rows(NAMES[0])) - 1, pool.stats.hits
        with pool.hold(NAMES[0], last), pool.hold(NAMES[0], -1):  # one and the same
            assert pool.stats.held_nbytes in {ALIGN, 2 * ALIGN}
            assert pool.stats.hits > hits


@pytest.mark.parametrize("format_", ["embd", "amb", "bintensors", "npz", "gguf"])
def test_every_format(tmp_path, format_):
    """Also tensors that are deflated, strided, swapped or quantised, and entries of these."""
    path = tmp_path / f"m.{format_}"
    if format_ == "npz":
        np.savez_compressed(path, a=rows("x1"), b=np.asfortranarray(rows("x2")), c=rows("x3").astype(">f4"))
    else:
        wm.save(path, {"a": rows("x1")}, format=format_)
    if format_ in {"amb", "gguf"}:
        wm.convert(path, tmp_path / f"q.{format_}", quantize="int4_block" if format_ == "amb" else "q4_0")
        path = tmp_path / f"q.{format_}"
    with wm.open(path) as file, file.pool(1 << 20) as pool:
        for name in file:
            with pool.hold(name) as found:
                np.testing.assert_array_equal(np.asarray(found), np.asarray(file[name]))
            with pool.hold(name, 2) as found:
                np.testing.assert_array_equal(np.asarray(found), np.asarray(file[name][2]))


def test_texts_of_a_deflated_archive(tmp_path):
    np.savez_compressed(tmp_path / "m.npz", one=np.array(b"ab"), two=np.array([b"c", b"de"]))
    with wm.open(tmp_path / "m.npz") as file, file.pool(1 << 20) as pool:
        with pool.hold("one") as one, pool.hold("two") as two:
            assert (one[()], two.tolist()) == (b"ab", [b"c", b"de"])
        with pool.hold("two", 1) as item:
            assert item[()] == b"de"


def test_experts_of_gguf_stay_quantised(put):
    blocks = bytes(np.arange(3 * 2 * 18, dtype=np.uint8) & 0x3F)
    path = put(gguf.build({"w": Tensor("q4_0", (3, 2, 32), blocks)}), "m.gguf")
    with wm.open(path) as file, file.pool(1 << 16) as pool, pool.hold("w", 1) as expert:
        assert expert.scheme == "q4_0"
        assert expert.shape == (2, 32)
        np.testing.assert_array_equal(expert.dequantize(), file["w"].dequantize()[1])
        assert pool.stats.read_nbytes <= ALIGN


def test_parameters_of_quantised_checkpoints(tmp_path):
    """By the name of the parameter: whole ones stay quantised over their pieces, entries are decoded."""
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (3, 4, 2, 16), np.uint8)
    tensors = {"m.experts.up_blocks": blocks, "m.experts.up_scales": rng.integers(100, 130, (3, 4, 2), np.uint8)}
    wm.save(tmp_path / "m.safetensors", tensors)
    with (
        wm.open(tmp_path / "m.safetensors", config={"quantization_config": {"quant_method": "mxfp4"}}) as file,
        file.pool(1 << 20) as pool,
    ):
        (name,) = file.weights
        expected = file.weights[name].dequantize()
        with pool.hold(name) as found:
            np.testing.assert_array_equal(found.dequantize(), expected)
        with pool.hold(name, 1) as found:
            np.testing.assert_array_equal(found, expected[1])
        with pool.hold("m.experts.up_blocks", 2) as found:
            np.testing.assert_array_equal(found, blocks[2])


def test_prefetching(model):
    """In the background, within the budget; it evicts nothing that is needed soon."""
    budget = 3 * (SIZE + ALIGN)
    with model.pool(budget, threads=2) as pool:
        pool.prefetch([*((name, None) for name in NAMES[:2]), NAMES[2], *NAMES[3:]])
        for name in NAMES[:3]:
            check(pool, name)
        stats = pool.stats
        assert (stats.hits, stats.misses, stats.evictions) == (3, 0, 0)
        pool.prefetch([NAMES[0], (NAMES[5], 1)])
        check(pool, NAMES[5], 1)
        assert pool.stats.hits == 4
        assert pool.stats.resident_nbytes <= budget


@pytest.fixture
def at_once(monkeypatch):
    """Let workers read where they are told to, before `prefetch` returns; list what is read: begin, end, places."""
    counted, read = [], direct_reading.DirectReader.read
    monkeypatch.setattr(_thread, "start_new_thread", lambda call, given: call(*given))
    monkeypatch.setattr(
        direct_reading.DirectReader,
        "read",
        lambda self, at, end, parts: (counted.append((at, end, len(parts))), read(self, at, end, parts))[1],
    )
    return counted


@pytest.mark.parametrize("way", WAYS)
def test_neighbours_are_read_together(model, at_once, way):
    """Each into its own slot; they share pages, since no tensor begins at one. Far ones and other sizes lie between."""
    with model.pool(1 << 20, direct=way) as pool:
        pool.prefetch([NAMES[5], NAMES[2], NAMES[3], (NAMES[0], 1), (NAMES[0], 3), NAMES[4], "scalar", "empty"])
        reads = len(at_once)
        check(pool, NAMES[0], 1)
        check(pool, NAMES[0], 3)
        for name in NAMES[2:6]:
            check(pool, name)
        assert pool.stats.misses == 0
        assert len(at_once) == reads
        if model._source.has_pages and pool._readers[model._source]._file is not None:
            assert reads == 1
            assert pool.stats.read_nbytes <= model.nbytes + ALIGN


def test_arrays_are_aligned_and_joined(model, tmp_path):
    """The result does not depend on the tensors' places in the file, or on their number."""
    with model.pool(1 << 20) as pool:
        for name in (NAMES[1], "scalar", (NAMES[3], NAMES[0]), tuple(NAMES[1:4])):
            with pool.hold(name) as found:
                several = [name] if isinstance(name, str) else name
                expected = [model[own] for own in several]
                np.testing.assert_array_equal(found, np.concatenate(expected) if found.ndim else expected[0])
                assert found.ctypes.data % 64 == 0
                assert not found.flags.writeable
        for wrong, error in (
            ((NAMES[0], "empty"), wm.PlanError),
            (("scalar", "scalar"), wm.PlanError),
            ((NAMES[0], "none"), wm.TensorNotFoundError),
        ):
            with pytest.raises(error):
                pool.hold(wrong)
        with pytest.raises(wm.PlanError, match="expected one name"):
            pool.hold((NAMES[0], NAMES[1]), 1)
    wm.save(tmp_path / "m.gguf", {"a": rows("x1"), "b": rows("x2")})
    wm.convert(tmp_path / "m.gguf", tmp_path / "q.gguf", quantize="q4_0")
    with wm.open(tmp_path / "q.gguf") as file, file.pool(1 << 20) as pool, pool.hold(("a", "b")) as found:
        np.testing.assert_array_equal(found, np.concatenate([file[name].dequantize() for name in "ab"]))


JOINED = """with wm.open(source) as f, f.pool(320 << 20) as pool, pool.hold(("a", "b")) as found:
        assert found.nbytes <= pool.stats.resident_nbytes
        assert found.ctypes.data % 64 == 0"""


def test_quantised_tensors_are_joined_in_the_memory_that_they_take(tmp_path):
    """No decoded piece exists beside it: 64 MiB of float32, and 18 MiB of blocks."""
    for name, size in (("big", 2048), ("small", 32)):
        tensor = wm.quantize(np.ones((size, 4096), np.float32), "q8_0")
        wm.save(tmp_path / f"{name}.gguf", {"a": tensor, "b": tensor})
    assert peak_of(JOINED, tmp_path / "big.gguf", tmp_path / "small.gguf", tmp_path) < 96 << 20


def test_decoded_entries_are_aligned(tmp_path):
    """And strided ones: products with them are the same to the last bit."""
    rows_ = np.arange(8 * 33, dtype=np.float32).reshape(8, 33)
    wm.save(tmp_path / "m.amb", {"w": wm.quantize(rows_, "int4")})
    np.savez(tmp_path / "m.npz", w=rows_.T.copy().T)
    for name in ("m.amb", "m.npz"):
        with wm.open(tmp_path / name) as file, file.pool(1 << 20) as pool:
            for index in (*range(8), None):
                with pool.hold("w", index) as found:
                    if isinstance(found, wm.QuantizedTensor):
                        continue
                    assert found.ctypes.data % 64 == 0
                    np.testing.assert_array_equal(found, file.read("w") if index is None else file.read("w")[index])


def values_of(held):
    return held.dequantize() if isinstance(held, wm.QuantizedTensor) else held


@pytest.mark.parametrize("name", ["fp8_block_ragged", "fp8_ue8m0_u8", "modelopt_nvfp4", "gptq4_v1"])
def test_parameters_are_held_and_no_codes(name):
    """A pool of `f.weights` has parameters under their names, alone and joined, and nothing else."""
    with wm.open(CHECKPOINTS / name) as file, file.weights.pool(64 << 20) as pool:
        for parameter, values in file.weights.items():
            expected = values_of(values)
            with pool.hold(parameter) as held:
                assert isinstance(held, type(values))
                np.testing.assert_array_equal(values_of(held), expected)
            if expected.ndim:
                with pool.hold((parameter, parameter)) as held:
                    np.testing.assert_array_equal(held, np.concatenate([expected] * 2))
                with pool.hold(parameter, -1) as held:
                    np.testing.assert_array_equal(held, expected[-1])
        for stored in set(file) - set(file.weights):
            with pytest.raises(wm.TensorNotFoundError):
                pool.hold(stored)


def test_one_read_for_many_threads(model, monkeypatch):
    """A thread that wants a tensor which another one reads waits for it."""
    begun, go, reads = threading.Event(), threading.Event(), []
    read = direct_reading.DirectReader.read

    def slow(self, at, end, parts):
        reads.append(at)
        begun.set()
        assert go.wait(HANG)
        read(self, at, end, parts)

    monkeypatch.setattr(direct_reading.DirectReader, "read", slow)
    with model.pool(1 << 20) as pool:
        threads = [threading.Thread(target=check, args=(pool, NAMES[3])) for _ in range(4)]
        threads[0].start()
        assert begun.wait(HANG)
        for thread in threads[1:]:
            thread.start()
        go.set()
        for thread in threads:
            thread.join()
        assert len(reads) == 1
        stats = pool.stats
        assert (stats.hits, stats.misses) == (3, 1)


HELD = """rng = np.random.default_rng(0)
    with wm.open(source) as file, file.pool(4 << 20, direct=True) as pool:
        before, names = anonymous(), list(file)
        for number in rng.integers(0, len(names), 400).tolist():
            pool.prefetch([names[number - 1], names[number - 2]])
            with pool.hold(names[number]) as array:
                assert array.all()
    assert anonymous() - before < 4 << 20"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the memory of a process as Linux does")
def test_memory_stays_within_the_budget(tmp_path):
    """For any sequence of sizes; 4 MiB are for the pool itself and its threads."""
    sizes = np.random.default_rng(1).permutation(np.geomspace(500, 1_000_000, 60).astype(int)).tolist()
    for name, some in (("big", sizes), ("small", sizes[:3])):
        wm.save(tmp_path / f"{name}.safetensors", {f"t{size}": np.ones(size, np.uint8) for size in some})
    models = (tmp_path / f"{name}.safetensors" for name in ("big", "small"))
    assert peak_of(HELD, *models, tmp_path / "out") < 8 << 20


def resident_pages(address, nbytes):
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        return sum(np.frombuffer(file.read(nbytes // mmap.PAGESIZE * 8), np.uint64) >> np.uint64(63))


@pytest.mark.skipif(sys.platform != "linux", reason="makes huge pages as Linux does, whenever it likes")
def test_what_was_given_back_does_not_return_with_a_huge_page():
    """Most arrays that share huge pages are freed. Linux then makes the rest huge pages again."""
    huge, madvise, collapse = 2 << 20, ctypes.CDLL(None).madvise, 25

    def pages_after_collapse(first, n_huge):
        madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        refused = [madvise(first + number * huge, huge, collapse) for number in range(n_huge)]
        return resident_pages(first, n_huge * huge), any(refused)

    other = np.frombuffer(mmap.mmap(-1, 2 * huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    begin = -other.ctypes.data % huge
    other[begin] = 1
    if pages_after_collapse(other.ctypes.data + begin, 1) != (huge // mmap.PAGESIZE, False):
        pytest.skip("a system without MADV_COLLAPSE")
    arena = Arena()
    arrays = [arena.allocate(slot_size(100_000 + 9_000 * number), 1 << 30) for number in range(80)]
    for array in arrays:
        array[:] = 1
    first, arrays = arrays[0].ctypes.data, arrays[::8]
    del array
    arena.trim()
    nbytes = sum(array.nbytes for array in arrays)
    assert nbytes == arena.nbytes
    pages, _ = pages_after_collapse(first, 16)
    assert pages * mmap.PAGESIZE <= nbytes
    for array in arrays:
        assert array.all()


def test_what_does_not_fit_is_refused_at_once(model):
    with model.pool(SIZE + ALIGN) as pool:
        with pool.hold(NAMES[0]), pytest.raises(wm.LimitError, match=r"memory for tensor 'expert\.1' is .* are held"):
            pool.hold(NAMES[1])
        check(pool, NAMES[1])
    with model.pool(ALIGN) as pool, pytest.raises(wm.LimitError, match="the budget is 4096"):
        pool.hold(NAMES[0])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda pool: pool.hold("expert.9"), wm.TensorNotFoundError, "expert"),
        (lambda pool: pool.hold(NAMES[0], 4), IndexError, "first dimension is 4"),
        (lambda pool: pool.hold("scalar", 0), IndexError, "first dimension is 0"),
        (lambda pool: pool.hold(NAMES[0], -5), wm.PlanError, "index -5 .* first dimension is 4"),
        (lambda pool: pool.hold(NAMES[0], 1.5), wm.PlanError, r"'expert\.0' is 1\.5, expected a whole number"),
        (lambda pool: pool.hold(NAMES[0], (1, 2)), wm.PlanError, r"is \(1, 2\), expected a whole number, an entry"),
        (lambda pool: pool.hold(NAMES[0], slice(1, 2)), wm.PlanError, "expected a whole number"),
        (lambda pool: pool.hold(NAMES[0], True), wm.PlanError, "is True, expected a whole number"),
        (lambda pool: pool.hold(NAMES[0], np.True_), wm.PlanError, "expected a whole number"),
        (lambda pool: pool.hold(5), wm.PlanError, "what is held is 5, expected the name of a tensor, or several"),
        (lambda pool: pool.hold(()), wm.PlanError, "expected the name of a tensor"),
        (lambda pool: pool.hold((NAMES[0], 1)), wm.PlanError, "expected the name of a tensor"),
        (lambda pool: pool.prefetch(["nothing"]), wm.TensorNotFoundError, "nothing"),
        (lambda pool: pool.prefetch([(NAMES[0], 1, 2)]), wm.PlanError, "what is prefetched is .* expected a name, or"),
        (lambda pool: pool.prefetch([5]), wm.PlanError, "expected a name, or"),
    ],
)
def test_wrong_arguments(model, call, error, match):
    with model.pool(1 << 20) as pool, pytest.raises(error, match=match):
        call(pool)


def test_closing(model):
    pool = model.pool(1 << 20)
    hold = pool.hold(NAMES[0])
    pool.prefetch(NAMES[1:3])
    with pytest.raises(wm.ClosedError, match=r"tensor 'expert\.0' is held while the pool is closed"):
        pool.close()
    with hold as found:
        np.testing.assert_array_equal(found, rows(NAMES[0]))
    assert pool.stats.resident_nbytes == 0
    for call in (lambda: pool.hold(NAMES[0]), lambda: pool.prefetch([]), hold.__enter__):
        with pytest.raises(wm.ClosedError):
            call()
    with pytest.raises(wm.TensorNotFoundError), model.pool(1 << 20) as pool, pool.hold(NAMES[0]):  # is not hidden
        pool.hold("nothing")
    with pytest.raises(wm.TensorNotFoundError), model.pool(1 << 20) as pool:  # nor by held tensors
        [pool.hold(name) for name in (NAMES[0], "nothing")]
    with model.pool(1 << 20) as pool:
        model.close()
        with pytest.raises(wm.ClosedError):
            pool.hold(NAMES[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["cut", "changed", "rewritten"])
def test_files_that_change(tmp_path, way, how):
    """An error, not a fault; after a replacement, the old file is read."""
    path = tmp_path / "m.safetensors"
    wm.save(path, {name: rows(name) for name in NAMES})
    with wm.open(path) as file, file.pool(1 << 20, direct=way) as pool:
        check(pool, NAMES[0])
        if how != "rewritten":
            os.truncate(path, 3 * SIZE) if how == "cut" else os.utime(path, (0, 0))
            with pytest.raises((wm.FileChangedError, wm.TruncatedError)):
                pool.hold(NAMES[7])
        else:
            wm.save(path, {name: rows(name) + 1 for name in NAMES})
            check(pool, NAMES[7])


CUT = """
import os, sys, threading
import numpy as np
import weightmap as wm

path, way = sys.argv[1], sys.argv[2] == "True"
for number in range(10):
    wm.save(path, {f"t{i}": np.ones((64, 4096), np.float32) for i in range(8)})
    with wm.open(path) as file, file.pool(4 << 20, direct=way) as pool:
        names = list(file)
        threading.Timer(0.002 * number, os.truncate, (path, file.nbytes // 8 * (number % 8))).start()
        try:
            while True:
                pool.prefetch(names)
                for name in names:
                    with pool.hold(name) as array:
                        assert array.all()
        except (wm.FileChangedError, wm.TruncatedError):
            print("an error of ours")
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_file_cut_while_it_is_read_ends_no_process(tmp_path, way):
    assert run_child(CUT, tmp_path / "m.safetensors", way).stdout == "an error of ours\n" * 10


@pytest.mark.parametrize("way", WAYS)
def test_a_file_cut_behind_a_read_is_noticed(model, monkeypatch, way):
    """Bytes read at that moment may end with zeros: nobody gets them."""

    def cutting(read):
        def call(*arguments):
            found = read(*arguments)
            os.truncate(model.path, Path(model.path).stat().st_size - 1)
            return found

        return call

    with model.pool(1 << 20, direct=way) as pool:
        monkeypatch.setattr(os, "preadv", cutting(os.preadv))
        monkeypatch.setattr(Source, "read_into", cutting(Source.read_into))
        with pytest.raises(wm.FileChangedError):
            pool.hold(NAMES[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_process_opens_its_own(model):
    with model.pool(1 << 20) as pool:
        check(pool, NAMES[0])
        child = os.fork()
        if not child:
            try:
                pool.hold(NAMES[0])
            except wm.ClosedError as error:
                os._exit(0 if "parent process" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


def halves(path, dim):
    """The second halves of all tensors."""
    with wm.plan(path, {name: wm.shard(name, dim, 1, 2) for name in NAMES}) as plan:
        return dict(plan.run(direct=True))


def held(path):
    """All tensors, copied from a pool."""
    with wm.open(path) as file, file.pool(1 << 30, direct=True) as pool:
        pool.prefetch(list(file))
        found = {}
        for name in file:
            with pool.hold(name) as array:
                found[name] = array.copy()
        return found


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux does")
@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda path: wm.load(path, mode="direct"), ...),
        (lambda path: dict(wm.plan(path).run(release=True, direct=True)), ...),
        (lambda path: dict(wm.plan(path, chunk=5000).run("read", direct=True)), ...),
        (lambda path: dict(wm.plan(path, chunk=1 << 20).run("read", release=True, direct=True, verify="last")), ...),
        (lambda path: halves(path, 0), (slice(32, 64),)),
        (lambda path: halves(path, 1), (slice(None), slice(4096, None))),
        (held, ...),
    ],
)
def test_whole_models_past_the_page_cache(tmp_path, monkeypatch, call, part):
    """Only the head stays there, and pages from before, as on a file system in memory."""
    path, counted = tmp_path / "m.safetensors", []
    tensors = {name: np.arange(64 * 8192, dtype=np.float32).reshape(64, 8192) + int(name[-1]) for name in NAMES}
    wm.save(path, tensors)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    read = direct_reading.DirectReader.read
    monkeypatch.setattr(
        direct_reading.DirectReader,
        "read",
        lambda self, *given: (counted.append(given[1] - given[0]), read(self, *given)),
    )

    def cached():
        with wm.open(path) as file:
            return sum(found.resident for found in file.residency().values())

    before = cached()
    found = call(path)
    assert cached() - before < 1 << 20
    assert list(found) == NAMES
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array[part])
    assert sum(counted) >= sum(array.nbytes for array in found.values())


@pytest.mark.skipif(sys.platform != "linux", reason="reads past the page cache as Linux does")
@pytest.mark.parametrize("call", [lambda path: wm.load(path, mode="direct"), lambda path: halves(path, 0), held])
def test_reads_past_the_page_cache_that_return_fewer_bytes(tmp_path, monkeypatch, call):
    """As a file system of a network may; a file that was cut off is still an error."""
    path, real = tmp_path / "m.safetensors", os.preadv
    wm.save(path, {name: np.arange(64 * 1024, dtype=np.float32).reshape(64, 1024) + int(name[-1]) for name in NAMES})
    expected = call(path)
    monkeypatch.setattr(os, "preadv", lambda *given: (real(*given) + 2) // 3)
    found = call(path)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)

    def cut(*given):
        os.truncate(path, 5000)
        return real(*given)

    monkeypatch.setattr(os, "preadv", cut)
    with pytest.raises((wm.TruncatedError, wm.FileChangedError)):
        call(path)
