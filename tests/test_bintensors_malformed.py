"""BinTensors files with one lie each: what is refused and how, and what strict=False lets pass with a warning."""

from __future__ import annotations

import ast
import random
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from tests.builders import bintensors as bt
from tests.scan_support import Arena
from tests.support import DATA, exercise, survives

import weightmap as wm
from weightmap import kernels
from weightmap._kernels import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERDICTS = DATA / "malformed" / "bintensors"
A, B = bt.Row("a", 11, (2,), 0, 8), bt.Row("b", 1, (3,), 8, 11)
BODY = bytes(range(11))
FULL = 2**64 - 1

every_layout = pytest.mark.parametrize("layout", bt.LAYOUTS)


def make(
    layout: str,
    rows: tuple[bt.Row, ...] = (A, B),
    data: bytes = BODY,
    metadata: Any = None,
    *,
    tail: bytes | None = None,
    length: int | None = None,
    **lies: Any,
) -> bytes:
    """A file of two tensors, float32 [2] and uint8 [3], right where nothing else is said."""
    head = bt.header(rows, metadata, layout, **lies)
    return bt.raw(bt.padded(head) if tail is None else head + tail, data, length)


def wide(value: int) -> bytes:
    """An integer in nine bytes."""
    return bt.varint(value, 253)


# ------------------------------------------------------------------------------------------------- recorded verdicts

# What the reference accepts and strict mode refuses: why, and whether strict=False lets it pass.
STRICTER = {
    "spec/pad_zero_bytes.bt": ("the header is padded with zeros, not spaces", True),
    "current/shape_zero_then_huge.bt": ("numpy has no array of shape (0, 2**40, 2**40)", False),
}
# What the reader of one layout refused and is a right file of the other.
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
    """What the reference refuses is a FormatError; what it accepts opens with its values, or is listed above."""
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

LIES: dict[str, tuple[Callable[[str], bytes], Any]] = {
    # The length of the header.
    "n of 0": (lambda layout: bt.raw(b"", BODY, 0), wm.FormatError),
    "n of 1": (lambda layout: bt.raw(b"\0"), wm.FormatError),
    "n past the end": (lambda layout: make(layout, length=10**6), wm.TruncatedError),
    "n one past the end": (lambda layout: make(layout, length=len(make(layout)) - 7), wm.TruncatedError),
    "n cuts the header": (lambda layout: bt.raw(bt.header([A, B], None, layout)[:-4]), wm.FormatError),
    **{
        f"n of {length}": (lambda layout, length=length: make(layout, length=length), wm.LimitError)
        for length in (100_000_001, 2**32, 2**60, 2**63 - 1, 2**63, FULL)
    },
    # Tags and integers.
    **{
        f"option tag {tag}": (lambda layout, tag=tag: make(layout, metadata=bytes([tag])), wm.FormatError)
        for tag in (2, 3, 32, 250, 251, 254, 255)
    },
    **{
        f"{first} as {field}": (
            lambda layout, first=first, lie=lie: make(layout, **lie(bytes([first]) + bytes(16))),
            wm.FormatError,
        )
        for first in (254, 255)
        for field, lie in {
            "number of tensors": lambda value: {"count": value},
            "dtype": lambda value: {"rows": (A._replace(dtype=value), B)},
            "ndim": lambda value: {"rows": (A._replace(ndim=value), B)},
            "dimension": lambda value: {"rows": (A._replace(shape=(value,)), B)},
            "begin": lambda value: {"rows": (A._replace(begin=value), B)},
            "end": lambda value: {"rows": (A, B._replace(end=value))},
            "number of metadata": lambda value: {"metadata": b"\1" + value},
            "length of a key": lambda value: {"metadata": b"\1\1" + value},
        }.items()
    },
    **{
        f"an integer cut after {size} of {full}": (
            lambda layout, marker=marker, size=size: bt.raw(b"\0" + bt.varint(5, marker)[:size]),
            wm.FormatError,
        )
        for marker, full in ((251, 3), (252, 5), (253, 9))
        for size in range(1, full)
    },
    "no number of tensors": (lambda layout: bt.raw(b"\0"), wm.FormatError),
    "dtype 15": (lambda layout: make(layout, (A._replace(dtype=15), B)), wm.UnsupportedError),
    "dtype 250": (lambda layout: make(layout, (A, B._replace(dtype=250))), wm.UnsupportedError),
    "dtype 11 + 256": (lambda layout: make(layout, (A._replace(dtype=11 + 256), B)), wm.UnsupportedError),
    "dtype 11 + 2**32": (lambda layout: make(layout, (A._replace(dtype=11 + 2**32), B)), wm.UnsupportedError),
    # Strings.
    **{
        f"name {raw!r}": (
            lambda layout, raw=raw: make(layout, (A._replace(name=raw), B), index=[(raw, 0), ("b", 1)]),
            wm.FormatError,
        )
        for raw in (b"\xff", b"\xc3(", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"abc\xe2\x82")
    },
    "key not UTF-8": (lambda layout: make(layout, metadata=[(b"\xff", "v")]), wm.FormatError),
    "value not UTF-8": (lambda layout: make(layout, metadata=[("k", b"v\xed\xa0\x80")]), wm.FormatError),
    "UTF-8 across key and value": (lambda layout: make(layout, metadata=[(b"\xc3", b"\xa9")]), wm.FormatError),
    # Where the data lies.
    "hole": (lambda layout: make(layout, (A, bt.Row("b", 1, (3,), 9, 12)), bytes(12)), wm.LayoutError),
    "hole in front": (
        lambda layout: make(layout, (bt.Row("a", 11, (2,), 3, 11), bt.Row("b", 1, (3,), 11, 14)), bytes(14)),
        wm.LayoutError,
    ),
    "overlap": (lambda layout: make(layout, (A, bt.Row("b", 1, (3,), 7, 10)), bytes(10)), wm.LayoutError),
    "the same bytes twice": (lambda layout: make(layout, (A, bt.Row("b", 11, (2,), 0, 8)), bytes(8)), wm.LayoutError),
    "out of order": (lambda layout: make(layout, (B, A)), wm.LayoutError),
    "end before begin": (lambda layout: make(layout, (A._replace(begin=8, end=0), B)), wm.LayoutError),
    "empty tensor past its turn": (
        lambda layout: make(layout, (A, B, bt.Row("c", 1, (0,), 3, 3))),
        wm.LayoutError,
    ),
    "begin of 2**63 + 8": (lambda layout: make(layout, (A, B._replace(begin=2**63 + 8))), wm.LayoutError),
    "end of 2**63": (lambda layout: make(layout, (A, B._replace(end=2**63))), wm.FormatError),
    "end of 2**64 - 1": (lambda layout: make(layout, (A, B._replace(end=FULL))), wm.FormatError),
    "begin and end past 2**63": (
        lambda layout: make(layout, (A._replace(begin=2**63 + 8, end=2**63 + 16), B)),
        wm.FormatError,
    ),
    # Sizes.
    "one row too many": (lambda layout: make(layout, (A._replace(shape=(3,)), B)), wm.LayoutError),
    "one row too few": (lambda layout: make(layout, (A._replace(shape=(1,)), B)), wm.LayoutError),
    "a wider dtype": (lambda layout: make(layout, (A._replace(dtype=12), B)), wm.LayoutError),
    "a narrower dtype": (lambda layout: make(layout, (A._replace(dtype=7), B)), wm.LayoutError),
    "scalar of eight bytes": (lambda layout: make(layout, (A._replace(shape=()), B)), wm.LayoutError),
    "empty with bytes": (lambda layout: make(layout, (A._replace(shape=(0, 2)), B)), wm.LayoutError),
    "dimension of 2**63 + 1": (lambda layout: make(layout, (A, B._replace(shape=(2**63 + 1,)))), wm.LayoutError),
    "size that wraps to 3": (lambda layout: make(layout, (A, B._replace(shape=(3, 2**64 // 3 + 2)))), wm.LayoutError),
    "product of 2**64 is 0": (
        lambda layout: make(layout, (A, bt.Row("b", 1, (2**32, 2**32), 8, 8)), BODY[:8]),
        wm.LayoutError,
    ),
    "product of 2**64 bytes is 0": (
        lambda layout: make(layout, (A, bt.Row("b", 12, (2**61,), 8, 8)), BODY[:8]),
        wm.LayoutError,
    ),
    "overflow, then zero": (
        lambda layout: make(layout, (A, bt.Row("b", 1, (2**40, 2**40, 0), 8, 8)), BODY[:8]),
        wm.FormatError,
    ),
    "zero, then overflow": (
        lambda layout: make(layout, (A, bt.Row("b", 1, (0, 2**40, 2**40), 8, 8)), BODY[:8]),
        wm.FormatError,
    ),
    "65 dimensions": (lambda layout: make(layout, (A, B._replace(shape=(*[1] * 64, 3)))), wm.LimitError),
    "300 dimensions": (lambda layout: make(layout, (A, B._replace(shape=(*[1] * 299, 3)))), wm.LimitError),
    # Names.
    "one name twice": (
        lambda layout: make(layout, (A, B._replace(name="a")), index=[("a", 0), ("a", 1)]),
        wm.LayoutError,
    ),
    "the empty name twice": (
        lambda layout: make(layout, (A._replace(name=""), B._replace(name="")), index=[("", 0), ("", 1)]),
        wm.LayoutError,
    ),
    # How many bytes follow.
    "data one byte short": (lambda layout: make(layout, data=BODY[:-1]), wm.TruncatedError),
    "no data": (lambda layout: make(layout, data=b""), wm.TruncatedError),
    "one tensor fewer than counted": (lambda layout: make(layout, count=3), wm.FormatError),
    # Forty tensors of the fewest bytes, and none left for the map that names them.
    "tensors without names": (lambda layout: bt.raw(b"\0\x28" + bytes(160)), wm.TruncatedError),
}


@every_layout
@pytest.mark.parametrize("case", LIES)
def test_one_lie(case: str, layout: str, put: Callable[..., Path]) -> None:
    """Each lie is an error of the right kind that names file and format, and no strict=False lets it pass."""
    lie, error = LIES[case]
    path = put(lie(layout), "m.bt")
    for options in ({"format": "bintensors"}, {"format": "bintensors", "strict": False}):
        with pytest.raises(error) as caught:
            exercise(wm.open(path, **options))
        assert caught.value.format == "bintensors"
        assert caught.value.path == str(path)
        assert "m.bt" in str(caught.value)
        assert caught.value.offset is None or 0 <= caught.value.offset <= max(path.stat().st_size, 8)
    for mode in ("mmap", "copy"):
        with pytest.raises(wm.FormatError):
            exercise(wm.open(path, mode=mode))
    assert survives(path.read_bytes())


# The field that an error names, and the byte of the lie itself or of the tensor that tells it.
NAMED = {
    "n past the end": ("n", None),
    "option tag 2": ("metadata", 8),
    "255 as number of tensors": ("tensors", 9),
    "255 as number of metadata": ("metadata", 9),
    "255 as length of a key": ("metadata", 10),
    "dtype 15": ("dtype", "first"),
    "key not UTF-8": ("metadata", 10),
    "hole": ("data_offsets", "second"),
    "overlap": ("data_offsets", "second"),
    "out of order": ("data_offsets", "first"),
    "product of 2**64 is 0": ("shape", "second"),
    "65 dimensions": ("ndim", "second"),
    "one name twice": ("name", "second"),
}


@every_layout
@pytest.mark.parametrize("case", NAMED)
def test_errors_name_field_and_place(case: str, layout: str) -> None:
    """The error names the field that lies and a byte of its header, in the tensor that it is about."""
    field, place = NAMED[case]
    with pytest.raises(wm.FormatError) as caught:
        wm.open(memoryview(LIES[case][0](layout)), format="bintensors")
    assert caught.value.field == field
    # A tensor takes 5 bytes in the one layout (dtype, ndim, dimension, begin, end), and a name of 2 more in the other.
    width = 5 if layout == "spec" else 7
    starts = {"first": range(10, 10 + width), "second": range(10 + width, 10 + 2 * width)}
    if place is not None:
        assert caught.value.offset in (starts[place] if isinstance(place, str) else (place,))


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
    started = time.perf_counter()
    with (
        wm.open(memoryview(make(layout, (A._replace(name=long), B)))) as f,
        pytest.raises(wm.TensorNotFoundError) as lost,
    ):
        f[long[1:]]
    assert len(str(lost.value)) < 400
    assert time.perf_counter() - started < 1


@every_layout
def test_a_tensor_more_than_counted(layout: str) -> None:
    """A second tensor behind the one that is counted is no padding, and its data is not expected."""
    with pytest.raises(wm.FormatError):
        wm.open(memoryview(make(layout, count=1)), format="bintensors")


@every_layout
def test_the_file_without_a_lie_opens(layout: str) -> None:
    """The file that all the lies are told in is right without them."""
    with wm.open(memoryview(make(layout))) as f:
        assert f.layout == layout
        assert {name: f[name].tobytes() for name in f} == {"a": BODY[:8], "b": BODY[8:]}
        assert list(f.verify().warnings) == []


INDEX_LIES: dict[str, tuple[dict[str, Any], Any]] = {
    "an entry too few": ({"index": [("a", 0)]}, wm.FormatError),
    "no entry": ({"index": []}, wm.FormatError),
    "an entry too many": ({"index": [("a", 0), ("b", 1), ("c", 1)]}, wm.FormatError),
    "index 2 of 2": ({"index": [("a", 0), ("b", 2)]}, wm.LayoutError),
    "index 2**64 - 1": ({"index": [("a", 0), ("b", FULL)]}, wm.LayoutError),
    "index 2**32": ({"index": [("a", 0), ("b", 2**32)]}, wm.LayoutError),
    "index 2**32 + 1": ({"index": [("a", 0), ("b", 2**32 + 1)]}, wm.LayoutError),
    "one name for both": ({"index": [("a", 0), ("a", 1)]}, wm.LayoutError),
    "count too small": ({"index_count": 1}, wm.FormatError),
    "count too large": ({"index_count": 3}, wm.FormatError),
    "254 as count": ({"index_count": b"\xfe" + bytes(16)}, wm.FormatError),
    "255 as an index": ({"index": [("a", 0), ("b", b"\xff" + bytes(8))]}, wm.FormatError),
    "no map": ({"index": [], "index_count": b""}, wm.FormatError),
}


@pytest.mark.parametrize("case", INDEX_LIES)
def test_an_index_map_that_lies(case: str) -> None:
    """An index map of the wrong size or past the tensors is refused, strict or not: 0.0.5 refuses these, or panics."""
    lie, error = INDEX_LIES[case]
    for strict in (True, False):
        with pytest.raises(error) as caught:
            exercise(wm.open(memoryview(make("spec", **lie)), format="bintensors", strict=strict))
        assert caught.value.format == "bintensors"


def test_an_index_map_that_lies_is_told_from_a_tail_of_junk() -> None:
    """Where one layout reads to the very end but for an index, and the other leaves bytes over, it is the index."""
    rows = [bt.Row("a", 1, (1,), 0, 1), bt.Row("b", 1, (1,), 1, 2)]
    data = bt.raw(bt.padded(bt.header(rows, index=[("a", 0), ("b", 0)])), b"12")
    assert bt.faults(bt.dissect(data, "current"), "current") >= {"tail"}
    with pytest.raises(wm.LayoutError, match="one that no earlier entry has") as caught:
        wm.open(memoryview(data), format="bintensors")
    assert caught.value.field == "index_map"


def test_the_index_map_gives_the_names() -> None:
    """A map in any order that names each tensor once is right: names go where it says."""
    with wm.open(memoryview(make("spec", index=[("z", 1), ("a", 0)]))) as f:
        assert [(info.name, info.shape) for info in f.infos()] == [("a", (2,)), ("z", (3,))]
    with wm.open(memoryview(make("spec", index=[("a", 1), ("b", 0)]))) as f:
        assert [(info.name, info.shape) for info in f.infos()] == [("b", (2,)), ("a", (3,))]


def test_unknown_dtypes_are_told_with_those_that_are_known() -> None:
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
        assert fault.code != kernels.FAULTS["COLUMN"]
        if cap > size // 5:
            # The columns that kernels.h says suffice do suffice.
            assert fault.code != kernels.FAULTS["CAPACITY"], bytes(head)
        seen.add(fault.code)
    assert len(seen) > 8


# ------------------------------------------------------------------------------------------------- absurd numbers

ABSURD: dict[str, Callable[[str, int], bytes]] = {
    "tensors": lambda layout, n: make(layout, count=wide(n)),
    "dimensions": lambda layout, n: make(layout, (A._replace(ndim=wide(n)), B)),
    "dimension": lambda layout, n: make(layout, (A._replace(shape=(n,)), B)),
    "metadata": lambda layout, n: make(layout, metadata=b"\1" + wide(n)),
    "length of a key": lambda layout, n: make(layout, metadata=b"\1\1" + wide(n) + b"k"),
    "length of a value": lambda layout, n: make(layout, metadata=b"\1\1\1k" + wide(n) + b"v"),
    "length of a name": lambda layout, n: (
        bt.raw(bt.padded(b"\0\1" + wide(n) + b"\0\0\0\0"))
        if layout == "current"
        else bt.raw(bt.padded(b"\0\1\0\0\0\0\1" + wide(n) + b"\0\0"))
    ),
    "entries of the index map": lambda layout, n: make("spec", index_count=wide(n)),
}


@every_layout
@pytest.mark.parametrize("value", [2**20, 2**32 - 1, 2**40, 2**60, 2**63, FULL])
@pytest.mark.parametrize("field", ABSURD)
def test_absurd_counts_cost_nothing(field: str, value: int, layout: str) -> None:
    """A count or length that the file cannot hold is refused at once, before anything of its size is allocated."""
    data = ABSURD[field](layout, value)
    started = time.perf_counter()
    tracemalloc.start()
    try:
        for strict in (True, False):
            with pytest.raises(wm.FormatError) as caught:
                wm.open(memoryview(data), format="bintensors", strict=strict)
            assert caught.value.format == "bintensors"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20
    assert time.perf_counter() - started < 1


def test_the_header_limit_holds_for_a_header_that_is_there(tmp_path: Path) -> None:
    """A header of 100,000,001 bytes that the file really has is a LimitError; a user's own limit is held too."""
    path = tmp_path / "big.bt"
    with path.open("wb") as file:
        file.write(bt.raw(b"\0\0", length=100_000_001))
        file.truncate(8 + 100_000_001)
    with pytest.raises(wm.LimitError):
        wm.open(path, format="bintensors")
    for layout in bt.LAYOUTS:
        data = make(layout)
        size = int.from_bytes(data[:8], "little")
        wm.open(memoryview(data), limits=wm.Limits(max_header_bytes=size)).close()
        with pytest.raises(wm.LimitError):
            wm.open(memoryview(data), format="bintensors", limits=wm.Limits(max_header_bytes=size - 1))


@every_layout
def test_many_names_of_which_two_are_one(layout: str) -> None:
    """100,000 tensors open; with the last name that of the first they are refused, without a quadratic search."""
    rows = [bt.Row(f"t{i:06}", 1, (1,), i, i + 1) for i in range(100_000)]
    with wm.open(memoryview(bt.raw(bt.padded(bt.header(rows, None, layout)), bytes(100_000)))) as f:
        assert len(f) == 100_000
        assert f.info("t099999").offset == f.nbytes - 1
    rows[-1] = rows[-1]._replace(name="t000000")
    started = time.perf_counter()
    with pytest.raises(wm.LayoutError):
        wm.open(memoryview(bt.raw(bt.padded(bt.header(rows, None, layout)), bytes(100_000))), format="bintensors")
    assert time.perf_counter() - started < 5


# ------------------------------------------------------------------------------------------------- strict=False

# Refused, and let pass with a warning by strict=False.
LAX: dict[str, Callable[[str], bytes]] = {
    "junk in the tail": lambda layout: make(layout, tail=b"junk"),
    "zeros in the tail": lambda layout: make(layout, tail=bytes(3)),
    "one zero between spaces": lambda layout: make(layout, tail=b"  \0  "),
    "eight spaces": lambda layout: make(layout, tail=b" " * 8),
    "a hundred spaces": lambda layout: make(layout, tail=b" " * 100),
    "a hidden page": lambda layout: make(layout, tail=b"\x7fELF" * 1024),
    "bytes behind the data": lambda layout: make(layout, data=BODY + b"x"),
    "a file behind the data": lambda layout: make(layout, data=BODY + make(layout)),
    "a metadata key twice": lambda layout: make(layout, metadata=[("k", "1"), ("l", ""), ("k", "2")]),
}


@every_layout
@pytest.mark.parametrize("case", LAX)
def test_what_only_strict_mode_refuses(case: str, layout: str) -> None:
    """A LayoutError in strict mode; with strict=False a file like any other, about which verify warns."""
    data = LAX[case](layout)
    for format in (None, "bintensors"):
        with pytest.raises(wm.FormatError) as caught:
            wm.open(memoryview(data), format=format)
        assert format is None or type(caught.value) is wm.LayoutError
        with wm.open(memoryview(data), format=format, strict=False) as f:
            assert f.layout == layout
            assert {name: f[name].tobytes() for name in f} == {"a": BODY[:8], "b": BODY[8:]}
            assert f.verify().warnings


@every_layout
def test_the_last_of_two_metadata_values_wins(layout: str) -> None:
    """With strict=False a key that occurs twice has its last value, as in the reference implementation."""
    with wm.open(memoryview(LAX["a metadata key twice"](layout)), strict=False) as f:
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


@every_layout
def test_long_forms_of_integers_are_let_pass(layout: str) -> None:
    """Each integer of a header may take more bytes than it needs: the file opens, and verify warns of it."""
    cases = {
        "count": {"count": wide(2)},
        "dtype": {"rows": (A._replace(dtype=bt.varint(11, 252)), B)},
        "ndim": {"rows": (A._replace(ndim=bt.varint(1, 251)), B)},
        "dimension": {"rows": (A._replace(shape=(wide(2),)), B)},
        "begin": {"rows": (A._replace(begin=wide(0)), B)},
        "end": {"rows": (A, B._replace(end=wide(11)))},
        "metadata": {"metadata": b"\1" + wide(0)},
        "key": {"metadata": b"\1\1" + wide(1) + b"k" + bt.varint(1, 251) + b"v"},
    }
    if layout == "spec":
        cases["index"] = {"index": [("a", wide(0)), ("b", bt.varint(1, 252))]}
        cases["index count"] = {"index_count": bt.varint(2, 251)}
    for case, lie in cases.items():
        with wm.open(memoryview(make(layout, **lie))) as f:
            assert f.layout == layout, case
            assert {name: f[name].tobytes() for name in f} == {"a": BODY[:8], "b": BODY[8:]}
            assert f.verify().warnings, case


@every_layout
@pytest.mark.parametrize("tail", [b"", b" ", b" " * 7])
def test_headers_of_any_length_are_let_pass(tail: bytes, layout: str) -> None:
    """Up to seven spaces behind the header are padding, whatever length results; verify warns of an odd one."""
    data = make(layout, tail=tail)
    with wm.open(memoryview(data)) as f:
        assert f.layout == layout
        assert {name: f[name].tobytes() for name in f} == {"a": BODY[:8], "b": BODY[8:]}
        assert bool(f.verify().warnings) == (int.from_bytes(data[:8], "little") % 8 != 0)


@every_layout
def test_the_unchecked_file_is_survived_too(layout: str) -> None:
    """verify="none" skips checks and not safety: every lie is an error or an answer, nothing worse."""
    for lie, _ in LIES.values():
        try:
            with wm.open(memoryview(lie(layout)), format="bintensors", verify="none") as f:
                exercise(f)
        except wm.TensorFileError:
            pass
