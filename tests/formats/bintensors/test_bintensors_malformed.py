"""BinTensors files with one lie each: what is refused and how, and what strict=False lets pass with a warning."""

from __future__ import annotations

import ast
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.attacks import bintensors
from tests.attacks.bintensors import BODY, A, B, make
from tests.builders import bintensors as bt
from tests.scan_support import Arena
from tests.support import DATA

import weightmap as wm
from weightmap import kernels
from weightmap._kernels import ffi, lib

if TYPE_CHECKING:
    from pathlib import Path

VERDICTS = DATA / "malformed" / "bintensors"
MORE = "a tensor more than counted"
# Attacks that leave both tensors unchanged.
PASSED = [
    case
    for case in bintensors.cases()
    if case.row in {"B1", "B2", "B4", "B9", "C2"} and (case.odd or not case.error) and case.name != MORE
]

every_layout = pytest.mark.parametrize("layout", bt.LAYOUTS)


# ------------------------------------------------------------------------------------------------- recorded verdicts

# Attacks that the reference accepts and strict mode refuses: why, and whether strict=False lets them pass.
STRICTER = {
    "spec/pad_zero_bytes.bt": ("the header is padded with zeros, not spaces", True),
    "current/shape_zero_then_huge.bt": ("numpy has no array of shape (0, 2**40, 2**40)", False),
}
# Files that the reader of one layout refuses, and that are valid in the other.
OTHER_LAYOUT = {"current/layout_spec_given_to_current_reader.bt", "spec/layout_current_given_to_spec_reader.bt"}


def verdicts() -> list[tuple[str, str]]:
    """File and what the reference implementation of that layout made of it."""
    found = []
    for layout in bt.LAYOUTS:
        for row in (VERDICTS / layout / "_results.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            name, verdict = row.split("\t")[:2]
            found.append((f"{layout}/{name}", verdict))
    return found


@pytest.mark.parametrize(("name", "verdict"), verdicts())
def test_recorded_verdicts(name: str, verdict: str) -> None:
    """Files that the reference refuses are a FormatError; accepted ones open with its values, or are listed above."""
    path, layout = VERDICTS / name, name.partition("/")[0]
    if name in OTHER_LAYOUT:
        with wm.open(path) as f:
            assert f.layout != layout
            assert f["a"].tobytes() + f["b"].tobytes() == bytes(range(16))
        return
    refused = verdict.startswith("REJECT")
    if refused or name in STRICTER:
        with pytest.raises(wm.FormatError) as caught:
            wm.open(path, format="bintensors")
        assert path.name in str(caught.value)
        assert caught.value.format == "bintensors"
        with pytest.raises(wm.FormatError):
            wm.open(path)
        if refused or not STRICTER[name][1]:
            return
    with wm.open(path, strict=name not in STRICTER) as f:
        assert f.layout == layout
        for tensor, (dtype, shape, data) in ast.literal_eval(verdict.removeprefix("ACCEPT ")).items():
            info = f.info(tensor)
            assert (bt.THEIRS[info.dtype], list(info.shape), f[tensor].tobytes().hex()) == (dtype, shape, data)
        assert bool(f.verify().warnings) == (name in STRICTER or name in ODD)


ODD = {"current/header_not_multiple_of_8.bt", "spec/ndim_nonminimal_varint.bt"}


# ------------------------------------------------------------------------------------------------- one lie each


@every_layout
def test_messages_show_the_beginning_of_a_long_name(layout: str) -> None:
    """A name or a key of a megabyte makes no message of a megabyte, and looking one up does not take long."""
    long = "n" * 10**6
    twice = (A._replace(name=long), B._replace(name=long))
    for data in (
        make(layout, (A._replace(name=long, shape=(3,)), B)),
        make(layout, twice, index=[(long, 0), (long, 1)]),
        make(layout, metadata=[(long, "1"), (long, "2")]),
    ):
        with pytest.raises(wm.LayoutError, match=r"nnn'\.\.\. \(1000000 characters\)") as caught:
            wm.open(memoryview(data), format="bintensors")
        assert len(str(caught.value)) < 400
    started = time.process_time()
    with (
        wm.open(memoryview(make(layout, (A._replace(name=long), B)))) as f,
        pytest.raises(wm.TensorNotFoundError) as lost,
    ):
        f[long[1:]]
    assert len(str(lost.value)) < 400
    assert time.process_time() - started < 1


def test_the_index_map_gives_the_names() -> None:
    """A map in any order that names each tensor once is right: names go where it says."""
    with wm.open(memoryview(make("spec", index=[("z", 1), ("a", 0)]))) as f:
        assert [(info.name, info.shape) for info in f.infos()] == [("a", (2,)), ("z", (3,))]
    with wm.open(memoryview(make("spec", index=[("a", 1), ("b", 0)]))) as f:
        assert [(info.name, info.shape) for info in f.infos()] == [("b", (2,)), ("a", (3,))]


def test_errors_on_unknown_dtypes_list_the_known_ones() -> None:
    """Code 15 is an UnsupportedError that lists the codes that exist."""
    for layout in bt.LAYOUTS:
        with pytest.raises(wm.UnsupportedError) as caught:
            wm.open(memoryview(make(layout, (A._replace(dtype=15), B))), format="bintensors")
        assert caught.value.field == "dtype"
        assert "15" in str(caught.value.actual)
        assert all(name in str(caught.value).upper() for name in ("BOOL", "BF16", "U64", "F8_E4M3")) or all(
            name in str(caught.value) for name in ("bool", "bfloat16", "uint64", "float8_e4m3fn")
        )


# ------------------------------------------------------------------------------------------------- the scan in C


def test_the_scan_stays_within_its_memory() -> None:
    """With the header and every column flush against a page that nobody may touch, any header is read within bounds."""
    dice = random.Random(3)
    arenas = [Arena(8192) for _ in range(8)]
    types = ("uint8_t *", "uint32_t *", "uint8_t *", "uint64_t *", "uint32_t *", "uint64_t *", "uint64_t *")
    found, fault = ffi.new("wm_bintensors *"), ffi.new("wm_fault *")
    heads = [bt.padded(bt.header(bt.rows_of(bt.RANKS), {"k": "v", "l": ""}, layout)) for layout in bt.LAYOUTS]
    heads += [bytes([0, count]) + bytes(size * count) for count in (1, 7, 40) for size in (3, 4, 5, 6, 7)]
    seen = set()
    for _ in range(6000):
        head = bytearray(dice.choice(heads))
        for _ in range(dice.randrange(4)):
            head[dice.randrange(len(head))] = dice.choice(
                (0, 1, 2, 5, 32, 40, 250, 251, 252, 253, 254, dice.randrange(256))
            )
        del head[dice.randrange(2, len(head) + 1) :]
        size = len(head)
        cap = dice.choice((size // 5 + 1, size // 5 + 1, 0, 1, 3))
        sizes = (size, 4 * (cap + 1), cap, 8 * size, 4 * (cap + 1), 8 * cap, 8 * cap)
        pointers = [arena.end(*each) for arena, each in zip(arenas[1:], zip(sizes, types, strict=True), strict=True)]
        columns = ffi.new("wm_columns *", (cap, size, size, *pointers))
        failed = lib.wm_bintensors_scan(arenas[0].put(bytes(head)), size, dice.choice((1, 2, 3)), columns, found, fault)
        assert bool(failed) == (fault.code != 0)
        assert fault.code != kernels.faults()["COLUMN"]
        if cap > size // 5:
            # The columns that kernels.h says suffice do suffice.
            assert fault.code != kernels.faults()["CAPACITY"], bytes(head)
        seen.add(fault.code)
    assert len(seen) > 8


# ------------------------------------------------------------------------------------------------- absurd numbers


def test_the_header_limit_holds_for_a_header_that_is_there(tmp_path: Path) -> None:
    """A header of 100,000,001 bytes that the file really has is a LimitError."""
    path = tmp_path / "big.bt"
    with path.open("wb") as file:
        file.write(bt.raw(b"\0\0", length=100_000_001))
        file.truncate(8 + 100_000_001)
    with pytest.raises(wm.LimitError):
        wm.open(path, format="bintensors")


@every_layout
def test_two_equal_names_among_many(layout: str) -> None:
    """100,000 tensors open; with the last name that of the first they are refused, without a quadratic search."""
    rows = [bt.Row(f"t{i:06}", 1, (1,), i, i + 1) for i in range(100_000)]
    with wm.open(memoryview(bt.raw(bt.padded(bt.header(rows, None, layout)), bytes(100_000)))) as f:
        assert len(f) == 100_000
        assert f.info("t099999").offset == f.nbytes - 1
    rows[-1] = rows[-1]._replace(name="t000000")
    started = time.process_time()
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(bt.raw(bt.padded(bt.header(rows, None, layout)), bytes(100_000))), format="bintensors")
    assert time.process_time() - started < 5


# ------------------------------------------------------------------------------------------------- strict=False


@pytest.mark.parametrize("case", PASSED, ids=[case.id for case in PASSED])
def test_what_is_let_pass_is_read_right(case: Any) -> None:
    """A file that is odd and legal, or refused and let pass with strict=False, holds what was written into it."""
    for format in (None, "bintensors"):
        with wm.open(memoryview(case.data), format=format, strict=not case.error) as f:
            assert case.kind == f"bintensors-{f.layout}"
            assert {name: f[name].tobytes() for name in f} == {"a": BODY[:8], "b": BODY[8:]}


@every_layout
def test_the_last_of_two_metadata_values_wins(layout: str) -> None:
    """With strict=False a key that occurs twice has its last value, as in the reference implementation."""
    with wm.open(memoryview(make(layout, metadata=[("k", "1"), ("l", ""), ("k", "2")])), strict=False) as f:
        assert dict(f.metadata) == {"k": "2", "l": ""}


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ([("a", 0), ("b", 0)], {"a": BODY[:8], "b": BODY[:8]}),
        ([("a", 1), ("b", 1)], {"a": BODY[8:], "b": BODY[8:]}),
        ([("a", 0), ("b", 1), ("a", 1)], {"a": BODY[8:], "b": BODY[8:]}),
        ([("a", 1), ("b", 1), ("a", 0)], {"a": BODY[:8], "b": BODY[8:]}),
        ([("a", 17), ("b", 1), ("a", 0)], {"a": BODY[:8], "b": BODY[8:]}),
    ],
    ids=["both the first", "both the second", "a second time", "a second time, then right", "past the end, then right"],
)
def test_index_maps_that_only_0_0_5_accepts(index: list[tuple[str, int]], found: dict[str, bytes]) -> None:
    """Two names for one tensor are a LayoutError; with strict=False each name is what 0.0.5 takes it for."""
    data = make("spec", index=index)
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(data), format="bintensors")
    with wm.open(memoryview(data), format="bintensors", strict=False) as f:
        assert f.layout == "spec"
        assert {name: f[name].tobytes() for name in f} == found
        assert f.verify().warnings


def test_index_maps_that_no_reader_can_follow() -> None:
    """With strict=False too an index past the tensors is refused, and so are tensors with two names and a hole."""
    options: dict[str, Any] = {"format": "bintensors", "strict": False}
    with pytest.raises(wm.LayoutError, match="index of a tensor") as caught:
        wm.open(memoryview(make("spec", index=[("a", 0), ("b", 2)])), **options)
    assert (caught.value.actual, caught.value.expected) == (2, "less than 2")
    apart = (A, B._replace(begin=A.end + 1, end=B.end + 1))
    with pytest.raises(wm.LayoutError, match="do not lie one after another"):
        wm.open(memoryview(make("spec", apart, BODY + b"\0", index=[("a", 0), ("b", 0)])), **options)


def test_a_scan_of_either_layout_leaves_the_columns_of_the_one_it_names() -> None:
    """Where the specification's layout fits but for its padding, the columns are those of its reading."""
    header = bytes.fromhex("00010b0102000801017400") + bytes(5)  # one tensor, "t"; padded with zeros
    columns, found, fault = kernels.scan_bincode(header, 3, 10)
    assert (fault, found.layout, found.complete) == (None, 1, 0)
    assert (columns.text(), columns.count, list(columns.bounds[0:2])) == (b"t", 1, [0, 1])
    assert (list(columns.dims[0:1]), columns.begin[0], columns.end[0]) == ([2], 0, 8)
