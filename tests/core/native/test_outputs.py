"""No result has a byte of the memory's old content: of no kernel, and of no reader, whatever happens to the file.

Results are made twice, in memory that was filled with one value and with another. A byte that nobody wrote differs. And
of the same files, wherever they lie, kernels get numbers only where C may load them.
"""

import numpy as np
import pytest
from tests import builders, kernel_calls
from tests.kernel_calls import CALLS, Place
from tests.support import DATA, kernel_modules

import weightmap as wm
from weightmap._kernels import ffi
from weightmap.core.quant.blocks import QuantizedTensor, decode_range
from weightmap.core.quant.product import ProductQuantized
from weightmap.core.table.vocabulary import strings_of

FILLS = (0xA5, 0x5A)
# Kernels that fill only a part of their outputs, and how the caller knows the part.
IN_PART = {
    "wm_walk_strings": "bounds up to the string that is not there, which the result tells",
    "wm_finalfusion_ngrams": "bounds and indices up to the n-gram that is not there, which the result tells",
    "wm_index_build": "the first duplicate and its original, if the result tells of any",
    "wm_subword_rows": "row_bounds and rows where these are more than there is room for, which the result tells",
    "wm_pq_decode": "its scratch",
    **dict.fromkeys(("wm_adaptive_choose", "wm_adaptive_encode"), "the room, as far as there are steps"),
    "wm_join_ranges": "the ranges in place, and none beyond those that the result counts",
    "wm_columns_place": "columns, which a scan fills",
    "wm_safetensors_scan": "columns beyond the tensors that the result counts",
    "wm_bintensors_scan": "columns beyond the tensors that the result counts",
    "wm_cnn_layers": "columns beyond the tensors that the result counts",
    "wm_amb_walk": "columns beyond the tensors that the result counts",
    "wm_onnx_scan": "columns, files and bytes beyond those that the result counts",
    "wm_onnx_numbers": "elements from the first number that is refused on",
    "wm_gguf_values": "keys beyond those that the result counts",
    "wm_gguf_tensors": "columns beyond the tensors that the result counts",
    **dict.fromkeys(("wm_pickle_run", "wm_pickle_walk", "wm_pickle_list"), "the arena, as far as a program goes"),
    "wm_zip_scan": "columns up to the entry that is refused, names and dimensions, as many as the result counts",
    "wm_gguf_reach": "ends of tensors of types that the caller does not know",
    "wm_gguf_strings": "bounds up to the string that is not there, which the result tells",
}
SIZES = (0, 1, 7, 63, 64, 65, 200, 1025, 4097)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", CALLS)
def test_kernels_write_all_of_their_outputs(monkeypatch, name):
    """A kernel's outputs do not depend on their old content, except where it returns how much it wrote."""
    told, written = set(), set()
    for size in SIZES:
        found = []
        for fill in FILLS:
            monkeypatch.setattr(kernel_calls, "FILL", fill)
            place = Place(None)
            found.append((list(CALLS[name](place, size)), place.outputs()))
        told.add(found[0][0] == found[1][0])
        written.add(found[0][1] == found[1][1])
    assert told == {True}
    assert (False in written) == (name in IN_PART)


MATRIX = np.random.default_rng(3).standard_normal((70, 64)).astype(np.float32)
SCHEMES = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive")
# The new content of a file while a program holds views of it.
CHANGES = {
    "none": None,
    "zeros": bytes,
    "ones": lambda size: b"\xff" * size,
    "noise": lambda size: np.random.default_rng(size).bytes(size),
}
UNKNOWN = ("no such word", "", "q")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    found = {f"{example.name}{example.suffix}": example.data for example in builders.examples()}
    found |= {path.name: path.read_bytes() for path in sorted((DATA / "finalfusion").glob("*.fifu"))}
    path = tmp_path_factory.mktemp("corpus") / "q.amb"
    wm.save(path, {scheme: wm.quantize(MATRIX, scheme) for scheme in SCHEMES}, output=wm.Output(durable=False))
    # Making an array contiguous never copies a single element, wherever it lies.
    of_one = ProductQuantized(np.uint8([[0], [1]]), np.float32([[[2], [3]]]), np.float32([[-1]]), np.float32([4, 5]))
    words = path.with_name("one.fifu")
    wm.save(words, {"embeddings": of_one}, vocab=["a", "b"], output=wm.Output(durable=False))
    return found | {path.name: path.read_bytes() for path in (path, words)}


def poisoned(fill):
    empty = np.empty

    def filled(*args, **options):
        array = empty(*args, **options)
        array.reshape(-1).view(np.uint8)[...] = fill
        return array

    return filled


def readings(f):
    """The readings of a file, prepared now and done later."""
    for info in f.infos():
        if info.dtype in {"complex64", "complex128", "bool"}:
            continue
        yield from (lambda name=info.name, dtype=dtype: f.read(name, dtype) for dtype in ("float32", "float64", ">f2"))
        yield lambda info=info: f.read(info.name, out=np.empty(info.shape[::-1], np.float32).T, threads=2)
        tensor = f[info.name]
        if isinstance(tensor, QuantizedTensor):
            keys = (slice(1, None), [0, -1], 0, slice(None, None, 3), (slice(None), -1))
            yield from (lambda q=tensor, key=key: q[key] for key in keys)
            yield from (lambda q=tensor, t=t: q.dequantize("float16", threads=t) for t in (1, 2))
            yield lambda q=tensor: decode_range(q, 1, q.size - 1)
            yield lambda q=tensor: (q.kinds, q.scales, q.payload)
    if f.vocab is not None:
        words = [*list(f.vocab)[:5], *UNKNOWN]
        yield lambda: (list(f.vocab), strings_of(f.vocab).find_many(words))


def plain(result):
    if isinstance(result, (list, tuple)):
        return [plain(item) for item in result]
    return (result.dtype, result.shape, result.tobytes()) if isinstance(result, np.ndarray) else repr(result)


def outcome(reading):
    try:
        return plain(reading())
    except Exception as error:  # noqa: BLE001 - any is as good as another here
        return type(error).__name__, str(error)


@pytest.mark.parametrize("change", CHANGES)
def test_results_do_not_depend_on_old_memory(monkeypatch, corpus, change):
    new = CHANGES[change]
    count = 0
    for name, data in corpus.items():
        found = []
        for fill in FILLS:
            memory = bytearray(data)
            with monkeypatch.context() as patch, wm.open(memory) as f, np.errstate(all="ignore"):
                patch.setattr(np, "empty", poisoned(fill))
                prepared = list(readings(f))
                if new is not None:
                    memory[:] = new(len(data))
                found.append([outcome(reading) for reading in prepared])
        assert found[0] == found[1], name
        count += len(found[0])
    assert count > 1000


@pytest.fixture
def pointers(monkeypatch):
    """The types of the numbers behind kernels' pointers, and whether C may load them there."""
    found = []

    def checked(ctype, *args, **options):
        pointer = ffi.from_buffer(ctype, *args, **options)
        width = ffi.sizeof(ffi.typeof(ctype).item)
        if width > 1:
            found.append((ctype, int(ffi.cast("uintptr_t", pointer)) % width == 0))
        return pointer

    for module in kernel_modules():
        monkeypatch.setattr(module, "from_buffer", checked, raising=False)
    return found


@pytest.mark.parametrize("shift", [1, 2, 4, 7])
def test_kernels_get_aligned_numbers(pointers, corpus, shift):
    for data in corpus.values():
        memory = memoryview(bytes(64 + shift) + data)[64 + shift :]
        with wm.open(memory) as f, np.errstate(all="ignore"):
            for reading in readings(f):
                outcome(reading)
    assert len(pointers) > 1000
    assert all(aligned for _, aligned in pointers)
