"""A guard against growing slower that no noise can trip: counts of calls, of objects and of instructions, with bounds.

Times vary by a half from run to run; these counts do not, or hardly. Each bound is a little above what was counted when
it was set. A change that trips one has made something do more work: find out why, and raise the bound only if that is
worth it. A change that stays far below a bound should lower it.
"""

import functools
import gc
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from tests import builders
from tests.builders import Tensor, embd
from tests.support import HANG, compiled

import weightmap as wm

# Numbers of tensors (of words, in finalfusion, which has one matrix). Bounds are the same for all of them: nothing that
# is counted here may grow with the number.
COUNTS = (10, 1_000, 10_000)


BOUNDS = {kind: bounds for builder in builders.known().values() for kind, bounds in builder.bounds.items()}
# Calls for each tensor when all are viewed: the two iterators, which are entered again for each.
VIEWING = 2.1
# Calls for each tensor that is converted: its payload is made twice, to lay out the file and to write it.
CONVERTING = {None: 71, "int4_block": 120}
every_kind = pytest.mark.parametrize("kind", BOUNDS)
every_count = pytest.mark.parametrize("count", COUNTS)
cpython = pytest.mark.skipif(
    sys.implementation.name != "cpython" or not hasattr(sys, "getallocatedblocks"),
    reason="counts what CPython does",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return model(kind, count): the path of a file of that many tensors, written when first asked for."""
    folder = tmp_path_factory.mktemp("guard")

    @functools.cache
    def write(kind, count):
        path = folder / f"{count}-{kind}"
        path.write_bytes(builders.format_of(kind).growing[kind](count))
        for verify in ("header", "none"):  # what is imported, or made, at the first use of all
            with wm.open(path, verify=verify) as f:
                names = list(f)
                [f[name] for name in (names[-1], names[0], names[0], names[-1])]
                dict(f.items())
        return path

    return write


def calls(function):
    """How many functions are entered, and what the outermost returns."""
    count = 0

    def note(_, event, __):
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()  # a collection in between would call finalisers of other tests
    gc.disable()
    before = sys.getprofile()
    try:
        sys.setprofile(note)
        try:
            result = function()
        finally:
            sys.setprofile(before)
    finally:
        gc.enable()
    return count, result


@cpython
@every_kind
@every_count
@pytest.mark.parametrize("verify", ["header", "none"])
def test_calls_of_opening(model, kind, count, verify):
    path = str(model(kind, count))
    counted, f = calls(lambda: wm.open(path, verify=verify))
    f.close()
    assert counted <= (BOUNDS[kind].open_calls if verify == "header" else BOUNDS[kind].lazy_calls)


@cpython
@every_kind
@every_count
def test_calls_of_looking_up(model, kind, count):
    """The first look-up of a name, the second, which may build an index, and later ones: each has its bound."""
    with wm.open(str(model(kind, count))) as f:
        names = list(wm.open(model(kind, count)))
        bounds = BOUNDS[kind]
        for name, bound in (
            (names[-1], bounds.first_calls),
            (names[0], bounds.second_calls),
            (names[0], bounds.later_calls),
            (names[-1], bounds.later_calls),
        ):
            counted, _ = calls(lambda name=name: f[name])
            assert counted <= bound


@cpython
@every_kind
@every_count
def test_objects_of_an_open_handle(model, kind, count):
    """An open handle keeps a bounded number of objects, however many tensors there are."""
    path = str(model(kind, count))
    kept = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):  # the least of them: a list that grows, or a cache, costs one of them a block or two
            before = sys.getallocatedblocks()
            f = wm.open(path)
            kept.append(sys.getallocatedblocks() - before)
            f.close()
            del f
    finally:
        gc.enable()
    assert min(kept) <= BOUNDS[kind].blocks


@cpython
def test_memory_of_an_open_handle(model):
    for count in COUNTS:
        path = str(model("embd", count))
        tracemalloc.start()
        try:
            f = wm.open(path)
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        f.close()
        assert kept <= 160_000
        assert peak <= 320_000


@cpython
@pytest.mark.parametrize("kind", [kind for kind in BOUNDS if builders.format_of(kind).names_tensors])
def test_calls_of_viewing_all(model, kind):
    with wm.open(str(model(kind, COUNTS[-1]))) as f:
        counted, arrays = calls(lambda: dict(f.items()))
    assert len(arrays) == COUNTS[-1]
    assert counted <= VIEWING * len(arrays)


@cpython
@pytest.mark.parametrize("scheme", CONVERTING)
def test_calls_of_converting(tmp_path, scheme):
    counted = []
    for count in (10, 10, 210):  # the first makes what is made once
        source, target = tmp_path / "source.safetensors", tmp_path / f"{len(counted)}.amb"
        wm.save(source, {f"{i}.weight": np.full((2, 32), i, np.float32) for i in range(count)})
        counted.append(calls(functools.partial(wm.convert, source, target, threads=1, quantize=scheme))[0])
    each = (counted[2] - counted[1]) / 200
    assert each <= CONVERTING[scheme]


# --------------------------------------------------------------------------------------------- instructions

VALGRIND, COMPILER = shutil.which("valgrind"), shutil.which("gcc")
NAME = 51  # bytes of a name
# Instructions for each unit of the input, by tier (valgrind knows no AVX-512), a tenth above those of gcc 12.
INSTRUCTIONS = {
    "crc32": ("byte", {"portable": 4.0, "sse4": 0.5, "avx2": 0.5}),
    "fnv1a32_many": ("byte", {"portable": 4.7, "avx2": 1.46}),
    "f16_to_f32": ("element", {"avx2": 0.56}),
    "bf16_to_f32": ("element", {"avx2": 0.7}),
    "int4": ("element", {"avx2": 1.6}),
    "int5": ("element", {"avx2": 1.6}),
    "int4_streamed": ("element", {"avx2": 2.5}),
    "quantize_int4": ("element", {"portable": 411.0, "avx2": 64.0}),
    "quantize_int5": ("element", {"portable": 551.0, "avx2": 83.0}),
    "records_check": ("record", {"portable": 435.0, "avx2": 273.0}),
    "records_find": ("record", {"avx2": 9.6}),
}
ELEMENTS, RECORDS = 1 << 16, 2_000


@pytest.fixture(scope="module")
def program(once, tmp_path_factory):
    if VALGRIND is None or COMPILER is None:
        pytest.skip("counts instructions with valgrind, of what gcc makes: one of them is not installed")
    built = tmp_path_factory.mktemp("guard") / "instructions"
    compiled(once, "instructions", built)
    return built


def index_of(count):
    """The index of an EMBD file of `count` tensors with names of `NAME` bytes, and the bytes of its data."""
    content = [(f"{i:08}.weight".rjust(NAME, "x"), Tensor("float32", (16,), bytes(64))) for i in range(count)]
    data = embd.Draft(content, checksums=False).seal()
    header = {name: embd.struct.unpack_from(f"<{kind}", data, at)[0] for name, (at, kind) in embd.HEADER_FIELDS.items()}
    start = header["tensor_index_offset"]
    return data[start : start + count * (32 + NAME)], header["tensor_data_size"]


def input_of(kernel):
    """The driver's input: the bytes, COUNT, SIZE, and the number of units that instructions are counted by."""
    if kernel == "crc32":
        return bytes(range(256)) * 1024, 0, 0, 1 << 18
    if kernel == "fnv1a32_many":
        return b"layer.attention.self.query" * NAME * 400, 26 * 400, NAME, 26 * NAME * 400
    if kernel.startswith("records"):
        index, size = index_of(RECORDS)
        return index, RECORDS, size, RECORDS
    if kernel.startswith("int"):
        block = b"\0\x3c" + bytes(range(4 * int(kernel[3])))
        return block * (ELEMENTS // 32), ELEMENTS, 0, ELEMENTS
    if kernel.startswith("quantize"):
        elements = np.random.default_rng(1).standard_normal(ELEMENTS).astype(np.float32)
        return elements.tobytes(), ELEMENTS, 0, ELEMENTS
    return np.linspace(-3, 3, ELEMENTS).astype(np.float16).tobytes(), ELEMENTS, 0, ELEMENTS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "tier"), [(kernel, tier) for kernel, (_, tiers) in INSTRUCTIONS.items() for tier in tiers]
)
def test_instructions(program, tmp_path, kernel, tier):
    data, count, size, units = input_of(kernel)
    path = tmp_path / "input"
    path.write_bytes(data)
    tool = [str(VALGRIND), "--tool=callgrind", "--toggle-collect=measured", "--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*tool, str(program), kernel, tier, str(path), str(count), str(size)],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG,
    )
    if done.stdout == "no such tier here\n":
        pytest.skip(f"neither this CPU nor valgrind need have {tier}")
    assert done.stdout == f"{tier}\n"
    collected = next(line for line in done.stderr.splitlines() if "Collected :" in line)
    counted = int(collected.rsplit(" ", 1)[1]) / units
    unit, bounds = INSTRUCTIONS[kernel]
    assert counted <= bounds[tier], f"{counted:.3f} instructions for each {unit}"
