"""Arrays whose numbers lie where C may not load them: every kernel copies such inputs, and refuses such outputs."""

import re
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.builders import torch
from tests.kernel_calls import LEFT_OUT
from tests.support import kernel_modules
from tests.table_support import rules

from weightmap import _kernels, kernels
from weightmap._kernels import ffi, lib
from weightmap.kernels import late

ROOT = Path(__file__).resolve().parents[2]
# Functions that take pointers to numbers, all of which Python allocates for the call or the object.
OWN = {
    **dict.fromkeys(
        (
            *("wm_columns_place", "wm_safetensors_scan", "wm_bintensors_scan", "wm_cnn_layers", "wm_amb_walk"),
            *("wm_gguf_values", "wm_gguf_tensors", "wm_gguf_find", "wm_gguf_strings", "wm_npy_scan", "wm_zip_scan"),
            *("wm_zip_order", "wm_pickle_run", "wm_pickle_walk", "wm_pickle_list", "wm_finalfusion_skip"),
            *("wm_finalfusion_ngrams", "wm_records_check", "wm_pairs_check", "wm_differing", "wm_quantize_room"),
            *("wm_onnx_scan", "wm_onnx_numbers", "wm_frame_header", "wm_frame_decode"),
        ),
        "columns and structs that a scan fills",
    ),
    **dict.fromkeys(("wm_quantize_numbers", "wm_adaptive_encode"), "bytes, at any address, and buffers of the object"),
    **dict.fromkeys(("wm_index_find", "wm_index_lookup"), "the hash index of one string, for C"),
    **dict.fromkeys(
        ("wm_f16_to_f32", "wm_bf16_to_f32"), "bytes, and outputs that are refused below; called by a table"
    ),
}


def odd(array):
    """The same array, one byte behind where its numbers would be aligned."""
    array = np.asarray(array)
    memory = np.empty(array.nbytes + 16, np.uint8)
    found = np.ndarray(array.shape, array.dtype, memory, 1 - memory.ctypes.data % 8 + 8)
    found[...] = array
    assert array.itemsize == 1 or not found.flags.aligned
    return found


F4 = np.arange(64, dtype=np.float32).reshape(8, 8) - 20
TEXT, BOUNDS = b"abcdabc", np.array([0, 2, 4, 7], np.uint32)
SLOTS = np.empty(4, np.uint32)
assert kernels.index_build(TEXT, BOUNDS, 0, SLOTS)[0] == 0
CODES, BOOKS = np.arange(16, dtype=np.uint8).reshape(8, 2) % 4, F4.reshape(2, 4, 8)
ROWS = np.array([3, 0, 2], np.uint64)
PLAN = late.adaptive_plan(bytes(7), 8, 8)


def codes(array):
    return late.ProductCodes(
        CODES, array(BOOKS), array(np.eye(16, dtype=np.float32)), array(np.arange(8, dtype=np.float32))
    )


def filled(call, shape=8, dtype=np.float32, *, out=np.asarray):
    array = out(np.zeros(shape, dtype))
    return call(array), array.tolist()


def in_file(call):
    with tempfile.TemporaryFile() as file:
        file.write(F4.tobytes())
        file.flush()
        return call(file.fileno())


def columns(array):
    given = BOUNDS[:3], bytes(2), np.array([4, 8], np.uint64), np.array([0, 1, 2], np.uint32)
    ends = np.array([16, 48], np.uint64)
    names, dtype, dims, dim_bounds = (array(part) if isinstance(part, np.ndarray) else part for part in given)
    table = kernels.Columns(b"abcd", names, dtype, dims, dim_bounds, array(ends - dims * 4), array(ends))
    return table.find(b"cd"), table.check(rules(bytes([32])), 48, 48, lax=False, utf8=True)


def ngrams(array):
    table = TEXT, array(BOUNDS), 0, array(SLOTS), array(np.arange(3, dtype=np.uint64))
    return late.Ngrams("explicit", 1, 4, 0, 5, table).rows(b"abc", array(np.array([0, 3], np.uint32)))


def tensors(array):
    code = torch.dump({"w": torch.Stored("0", "float32", 24, 0, (2, 3), (3, 1))})
    found = kernels.Pickle(code, 10, 1000).tensors(array(np.array([64], np.uint64)))
    assert isinstance(found, tuple)
    return found[0].raw(0), found[1]


# Calls of kernels with arrays as inputs, each given by a function.
def looked_up(a):
    codes, scales, out = (
        np.arange(8, dtype=np.uint8).reshape(2, 4),
        np.ones(2, np.float32),
        np.zeros((2, 4), np.float16),
    )
    every = a(np.arange(256, dtype=np.float32))
    late.look_up(codes, 8, every, a(scales), out, height=1, width=4, zeros=a(scales))
    return out


def grouped(a):
    """Values of 32 codes of eight rows, with scales and zero points of two groups."""
    out = np.zeros((8, 32), np.float16)
    group, numbers = np.arange(32, dtype=np.uint32) % 2, np.arange(16, dtype=np.float32).reshape(2, 8)
    late.decode_groups(np.arange(32, dtype=np.int32).reshape(4, 8), 4, a(group), a(numbers), a(numbers), out)
    return out


INPUTS = {
    "look_up": looked_up,
    "decode_groups": grouped,
    "fnv1a32_many": lambda a: kernels.fnv1a32_many(TEXT, a(np.array([2, 5], np.uint32))),
    "f16_to_f32": lambda a: kernels.f16_to_f32(a(F4.astype(np.float16))),
    "bf16_to_f32": lambda a: kernels.bf16_to_f32(a(F4.view(np.uint16))),
    "unpack_f16_pairs": lambda a: kernels.unpack_f16_pairs(a(F4.view(np.uint32))),
    "quantize_int4": lambda a: kernels.quantize_int4(a(F4), 32),
    "quantize_adaptive": lambda a: late.quantize_adaptive(a(F4), 32, bits=6),
    "encode_ggml": lambda a: late.encode_ggml(a(F4), "q8_0"),
    "sum_of_squares": lambda a: late.sum_of_squares(a(F4)),
    "decode_blocks": lambda a: late.decode_blocks(a(np.arange(10, dtype=np.uint8)), 8, bits=8, block_size=8),
    "decode_ggml": lambda a: late.decode_ggml(a(np.arange(34, dtype=np.uint8)), 32, "q8_0"),
    "decode_adaptive": lambda a: late.decode_adaptive(bytes(7), 8, 8, plan=a(PLAN)),
    "decode_adaptive into": lambda a: filled(lambda out: late.decode_adaptive(bytes(7), 8, 8, plan=a(PLAN), out=out)),
    "utf8_strings": lambda a: kernels.utf8_strings(TEXT, a(BOUNDS), 0),
    "index_build": lambda a: filled(lambda out: kernels.index_build(TEXT, a(BOUNDS), 0, out), 4, np.uint32),
    "index_finder": lambda a: kernels.index_finder(TEXT, a(BOUNDS), 0, a(SLOTS))("cd"),
    "index_find_many": lambda a: kernels.index_find_many(TEXT, a(BOUNDS), 0, a(SLOTS), TEXT, a(BOUNDS)),
    "Ngrams": ngrams,
    "unit_sums": lambda a: filled(
        lambda out: late.unit_sums(a(F4), a(ROWS), a(ROWS[[1, 0]]), out, places=a(ROWS[:1])), (4, 8)
    ),
    "gather_rows": lambda a: filled(lambda out: late.gather_rows(a(F4), a(ROWS.view(np.int64)), out), (3, 8), out=a),
    "ProductCodes.decode": lambda a: filled(lambda out: codes(a).decode(out, rows=a(ROWS)), (3, 16)),
    "ProductCodes.sums": lambda a: filled(codes(a).sums and partial(codes(a).sums, a(F4[0]))),
    "Columns": columns,
    "Pickle.tensors": tensors,
    "read_runs": lambda a: in_file(
        lambda fd: filled(lambda out: late.read_runs(fd, a(np.array([0, 9])), 4, out), 8, np.uint8)
    ),
    "join_ranges": lambda a: late.join_ranges(a(ROWS), a(np.arange(3)), a(np.arange(3) + 1), gap=4, most=2.0),
    "stage": lambda a: filled(lambda out: late.stage(F4.view(np.uint8).ravel(), (a(ROWS),) * 3, out), 8, np.uint8),
    "differing": lambda a: late.differing(a(F4), a(F4[::-1].copy()), "float32"),
    "FileComparer": lambda a: in_file(
        lambda fd: late.FileComparer(1)((fd, fd), a(np.array([[0, 4], [8, 9]])), a(np.array([3, 2])), "float32")
    ),
    "PartSummer": lambda a: late.PartSummer(1)(
        F4.view(np.uint8).ravel(), 0, 64, 0, a(np.array([[3, 7], [9, 12]], np.uint64))
    ),
}
# Calls of kernels with an array to be filled, by its shape and dtype.
OUTPUTS = {
    "fnv1a32_many": (lambda out: kernels.fnv1a32_many(TEXT, [2, 5], out=out), 2, np.uint32),
    "f16_to_f32": (lambda out: kernels.f16_to_f32(bytes(16), out=out), 8, np.float32),
    "bf16_to_f32": (lambda out: kernels.bf16_to_f32(bytes(16), out=out), 8, np.float32),
    "widen": (lambda out: late.widen("float16", bytes(16), out), 8, np.float32),
    "decode_blocks": (
        lambda out: late.decode_blocks(bytes(6), 8, bits=4, block_size=8, scale_type="fp16", out=out),
        8,
        np.float32,
    ),
    "decode_ggml": (lambda out: late.decode_ggml(bytes(34), 32, "q8_0", out=out), 32, np.float32),
    "decode_adaptive": (lambda out: late.decode_adaptive(bytes(7), 8, 8, out=out), 8, np.float32),
    "decode_adaptive to halves": (lambda out: late.decode_adaptive(bytes(7), 8, 8, out=out), 8, np.float16),
    "walk_strings": (lambda out: kernels.walk_strings(b"\1\0a\0\0", 2, 2, out), 3, np.uint32),
    "index_build": (lambda out: kernels.index_build(TEXT, BOUNDS, 0, out), 4, np.uint32),
    "pack_texts": (lambda out: _kernels.pack_texts(["a", "b"], "", "", out), 3, np.uint32),
    "unit_sums": (lambda out: late.unit_sums(F4, ROWS, ROWS[[1, 0]], out), (1, 8), np.float32),
    "norms": (
        lambda out: late.unit_sums(F4, ROWS, ROWS[[1, 0]], np.zeros((1, 8), np.float32), norms=out),
        1,
        np.float32,
    ),
    "ProductCodes.decode": (lambda out: codes(np.asarray).decode(out, rows=ROWS), (3, 16), np.float32),
    "ProductCodes.sums": (lambda out: codes(np.asarray).sums(F4[0], out), 8, np.float32),
    "stage": (
        lambda out: late.stage(F4.view(np.uint8).ravel(), (ROWS,) * 3, np.zeros(8, np.uint8), crcs=out),
        3,
        np.uint32,
    ),
}


def misplaced(pointer):
    """The types of the numbers to which a pointer leads, itself or from a struct, where they may not lie."""
    kind = ffi.typeof(pointer) if isinstance(pointer, ffi.CData) else None
    if kind is None or kind.kind not in ("pointer", "array") or not pointer:
        return []
    found = []
    if kind.item.kind == "struct" and kind.item.fields:
        found = [name for field, _ in kind.item.fields for name in misplaced(getattr(pointer, field))]
    if kind.item.kind not in ("primitive", "struct"):
        return found
    if int(ffi.cast("uintptr_t", pointer)) % ffi.alignof(kind.item):
        found.append(kind.cname)
    return found


class Watched:
    def __init__(self):
        self.called = set()
        self.wrong = []

    def __getattr__(self, name):
        function = getattr(lib, name)
        if not name.startswith("wm_"):
            return function

        def call(*args):
            self.called.add(name)
            self.wrong += [(name, kind) for argument in args for kind in misplaced(argument)]
            return function(*args)

        return call


@pytest.fixture
def watched(monkeypatch):
    found = Watched()
    for module in kernel_modules():
        monkeypatch.setattr(module, "lib", found, raising=False)
    return found


def plain(result):
    if isinstance(result, (tuple, list)):
        return [plain(item) for item in result]
    return result.tolist() if isinstance(result, np.ndarray) else result


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_may_lie_anywhere(watched, name):
    """The result is the one of aligned arrays, and C never gets a pointer to others."""
    assert plain(INPUTS[name](odd)) == plain(INPUTS[name](np.ascontiguousarray))
    assert watched.wrong == []


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_are_not_aligned_are_refused(watched, name):
    """ValueError, and nothing is written; of aligned ones, something is."""
    call, shape, dtype = OUTPUTS[name]
    out = odd(np.full(shape, 77, dtype))
    with pytest.raises(ValueError, match=r"aligned|contiguous"):
        call(out)
    assert (out == 77).all()
    assert watched.wrong == []
    out = np.full(shape, 77, dtype)
    call(out)
    assert not (out == 77).all()


def test_every_function_that_takes_numbers_is_called(watched):
    headers = "".join(
        (ROOT / "csrc" / f"{name}.h").read_text(encoding="utf-8") for name in ("kernels", "scans", "archives")
    )
    headers = re.sub(r"/\*.*?\*/", "", headers, flags=re.DOTALL)
    functions = re.findall(r"^\w[\w ]*[ *](wm_\w+)\(([^;]*)\);", headers, flags=re.MULTILINE)
    taking = {name for name, given in functions if re.search(r"\b(?!u?int8_t|char)\w+ \*", given)}
    for call in INPUTS.values():
        call(odd)
    for call, shape, dtype in OUTPUTS.values():
        call(np.zeros(shape, dtype))
    missing = taking - watched.called - set(OWN) - set(LEFT_OUT)
    assert missing == set()
