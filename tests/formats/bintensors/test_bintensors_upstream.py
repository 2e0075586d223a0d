"""BinTensors, differentially: thousands of damaged files, given to the reference implementation and to weightmap.

Every disagreement must have a reason from a short list, and each reason is a predicate on the file itself, which the
suite's own reader judges. A disagreement without a reason fails the test, and so does a reason that never occurs.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import os
import random
import struct
import subprocess
from collections import Counter
from typing import NamedTuple

import pytest
from tests.builders import bintensors as bt
from tests.fuzz.mutate import mutant

import weightmap as wm

COUNT = 4000
# Path of an interpreter that has bintensors 0.0.5, the last release to write the specification's layout.
OLD = os.environ.get("WEIGHTMAP_BINTENSORS_005")

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


# ------------------------------------------------------------------------------------------------- damaged files

NAMES = ["", "a", "b", "w.weight", "é", "e\u0301", "\u540d\u524d", "\0", "\x01\x03", "n" * 251]
NAMES += [b"\xff", b"\xed\xa0\x80"]
SIZES = [0, 0, 1, 1, 2, 3, 5]
EDGES = [0, 1, 2, 15, 250, 251, 2**16 - 1, 2**16, 2**31, 2**32 - 1, 2**32, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1]
FORMS = [b"\xfe" + bytes(16), b"\xff", b"\xfb\x01", b"\xfd\x01", b""]
TAILS = [b"", b" ", b" " * 7, b" " * 8, b" " * 40, b"\0", b"junk", b"\0" * 8, b"\x01\x01a\0", b"  \n"]


class Plan:
    def __init__(self, rng):
        self.layout = rng.choice(bt.LAYOUTS)
        names = rng.sample(NAMES[:10], rng.choice([0, 1, 1, 2, 2, 3, 4]))
        self.rows, self.data = [], b""
        for name in names:
            dtype = rng.randrange(15)
            shape = tuple(rng.choice(SIZES) for _ in range(rng.choice([0, 1, 1, 2, 3])))
            if rng.random() < 0.1:
                # Empty, so that any other dimension goes.
                shape = tuple(rng.sample([0, rng.choice(EDGES), rng.choice(EDGES)], 3))
            size = 0 if 0 in shape else bt.numpy_dtype(bt.NAMES[dtype]).itemsize
            for part in shape:
                size *= part
            if size > 2000:
                shape, size = (size % 7, 0), 0
            self.rows.append(bt.Row(name, dtype, shape, len(self.data), len(self.data) + size))
            self.data += rng.randbytes(size)
        self.index = [(name, place) for place, name in enumerate(names)]
        rng.shuffle(self.index)
        self.metadata = rng.choice([None, None, {}, {"k": "v"}, {"z": "", "a": "x" * 260}])
        self.count = None
        self.index_count = None
        self.tail = rng.choice([None] * 9 + [b"", b"", b" "])
        self.length = None

    def put_together(self):
        head = bt.header(
            self.rows, self.metadata, self.layout, count=self.count, index=self.index, index_count=self.index_count
        )
        head = bt.padded(head) if self.tail is None else head + self.tail
        length = None if self.length is None else self.length % 2**64
        return bt.raw(head, self.data, length)


def other_number(rng, value):
    if isinstance(value, bytes):
        return value
    kind = rng.randrange(4)
    if kind == 0:
        least = {1: 251, 3: 251, 5: 252, 9: 253}[len(bt.varint(value))]
        return bt.varint(value, rng.choice([marker for marker in (251, 252, 253) if marker >= least]))
    if kind == 1:
        return max(value + rng.choice([-1, 1, 1, 4, 256]), 0) % 2**64
    return rng.choice(EDGES) if kind == 2 else rng.choice(FORMS)


def change(rng, plan):
    kinds = ["metadata", "count", "tail", "length", "data", "rows"] + ["field"] * 5 * bool(plan.rows)
    kinds += ["name", "swap"] * bool(plan.rows) + ["index"] * 3 * (plan.layout == "spec")
    kind = rng.choice(kinds)
    if kind == "metadata":
        plan.metadata = rng.choice(
            [
                {},
                {"": ""},
                [("k", "1"), ("k", "2")],
                [("b", "1"), ("a", "2"), ("b", "3"), ("b", "")],
                [(b"\xff", "")],
                b"\2",
                b"\1" + bt.varint(rng.choice(EDGES)),
                b"\1" + bt.varint(0, 253),
                b"\1\1" + bt.varint(1, 252) + b"k\0",
            ]
        )
    elif kind == "count":
        plan.count = other_number(rng, len(plan.rows))
    elif kind == "tail":
        plan.tail = rng.choice(TAILS)
    elif kind == "length":
        size = len(plan.put_together()) - 8 - len(plan.data)
        plan.length = rng.choice([size - 8, size - 1, size + 1, size + 8, 0, *EDGES])
    elif kind == "data":
        plan.data = rng.choice([plan.data[:-1], b"", plan.data + b"\0", plan.data * 2])
    elif kind == "rows":
        plan.rows = rng.choice([plan.rows[1:], plan.rows * 2, plan.rows[::-1]])
    elif kind == "field":
        place = rng.randrange(len(plan.rows))
        row = plan.rows[place]
        field = rng.choice(["dtype", "shape", "begin", "end", "ndim", "more"])
        if field == "more":
            shape = rng.choice([(*row.shape, 1), (1, *row.shape), (1,) * 65 + tuple(row.shape), row.shape[1:]])
            plan.rows[place] = row._replace(shape=shape)
        elif field == "shape":
            shape = list(row.shape) or [1]
            at = rng.randrange(len(shape))
            shape[at] = other_number(rng, shape[at])
            plan.rows[place] = row._replace(shape=tuple(shape))
        else:
            value = len(row.shape) if field == "ndim" else getattr(row, field)
            plan.rows[place] = row._replace(**{field: other_number(rng, value)})
    elif kind == "name":
        place = rng.randrange(len(plan.rows))
        name = rng.choice([*NAMES, plan.rows[0].name])
        plan.index = [(name if at == place else old, at) for old, at in plan.index]
        plan.rows[place] = plan.rows[place]._replace(name=name)
    elif kind == "swap":
        one, two = rng.randrange(len(plan.rows)), rng.randrange(len(plan.rows))
        plan.rows[one], plan.rows[two] = plan.rows[two], plan.rows[one]
    elif plan.index and rng.random() < 0.7:
        place = rng.randrange(len(plan.index))
        name, at = plan.index[place]
        other = [(rng.choice(NAMES[:5]), at), (name, plan.index[0][1]), (plan.index[0][0], at)]
        plan.index[place] = rng.choice([(name, other_number(rng, at)), *other])
    elif plan.index and rng.random() < 0.5:
        plan.index += rng.choices(plan.index, k=1)
    else:
        plan.index_count = other_number(rng, len(plan.index))


def spoil(rng, data, other):
    end = min(len(data), 8 + int.from_bytes(data[:8], "little"))
    place = rng.randrange(end + 1) if rng.random() < 0.9 else rng.randrange(len(data) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    if kind == 1:
        return data[:place] + bytes([(data[place : place + 1] or b"\0")[0] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    if kind == 2:
        return data[: rng.randrange(len(data) + 1)]
    if kind == 3:
        # The head of one file and the end of another.
        return data[:place] + other[place:]
    # Bytes put in or left out, and the length made to fit.
    place = max(place, 8)
    new = rng.choice([data[:place] + rng.randbytes(1) + data[place:], data[:place] + data[place + 1 :]])
    return struct.pack("<Q", max(end - 8 + len(new) - len(data), 0)) + new[8:]


@functools.cache
def damaged(count=COUNT, seed=20):
    rng, files = random.Random(seed), [bt.BOTH, bt.SPECIFICATION_BYTES]
    while len(files) < count:
        plan = Plan(rng)
        for _ in range(rng.choice([0, 1, 1, 1, 1, 1, 2, 3])):
            change(rng, plan)
        data = plan.put_together()
        files.append(spoil(rng, data, rng.choice(files)) if rng.random() < 0.25 else data)
    return files + [mutant("bintensors", number).files[""] for number in range(count)]


# ------------------------------------------------------------------------------------------------- the readers


def ours(data, *, strict=True):
    """The content that weightmap finds; None if it refuses the file. One that only strict=False reads has a warning."""
    try:
        with wm.open(memoryview(data), format="bintensors", strict=strict) as f:
            found = {
                info.name: (bt.THEIRS[info.dtype], info.shape, f[info.name].tobytes(order="C")) for info in f.infos()
            }
            if not strict and ours(data) is None:
                assert f.verify().warnings
            return found
    except wm.FormatError:
        return None


def theirs(data):
    """The content that the installed reference implementation finds; None when it refuses the file or panics."""
    import bintensors

    try:
        found = bintensors.deserialize(data)
    except Exception:  # noqa: BLE001 - any refusal, whatever it is called
        return None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None
    return {name: (item["dtype"], tuple(item["shape"]), bytes(item["data"])) for name, item in found}


ORACLE = """
import struct, sys, bintensors
assert bintensors.__version__ == "0.0.5"
stream = sys.stdin.buffer
while size := stream.read(8):
    data = stream.read(struct.unpack("<Q", size)[0])
    try:
        found = bintensors.deserialize(data)
    except KeyboardInterrupt:
        raise
    except BaseException:
        print(None)
    else:
        print({name: (item["dtype"], tuple(item["shape"]), bytes(item["data"])) for name, item in found})
"""


@functools.cache
def of_0_0_5(python):
    stream = b"".join(struct.pack("<Q", len(data)) + data for data in damaged())
    result = subprocess.run(
        [python, "-c", ORACLE],
        input=stream,
        capture_output=True,
        check=True,
        timeout=300,
        env={**os.environ, "RUST_BACKTRACE": "0", "PYTHONIOENCODING": "utf-8"},
    )
    return [ast.literal_eval(line) for line in result.stdout.decode().splitlines()]


class Reading(NamedTuple):
    """The verdict of the suite's own reader: valid layouts, and by layout the faults of a readable header."""

    valid: tuple[str, ...]
    faults: dict[str, set[str]]
    content: dict[str, Tensors]
    wide_dtype: bool


def judge(data):
    valid, faults, content, wide = [], {}, {}, False
    for layout in bt.LAYOUTS:
        with contextlib.suppress(bt.Malformed):
            found = bt.dissect(data, layout)
            wide |= found.wide_dtype
            faults[layout] = bt.faults(found, layout)
            if not faults[layout]:
                valid.append(layout)
                content[layout] = {
                    name: (bt.THEIRS[value.dtype], value.shape, value.data)
                    for name, value in bt.content(found, layout).items()
                }
    return Reading(tuple(valid), faults, content, wide)


# ------------------------------------------------------------------------------------------------- the reasons

# Faults for a strict reader that bintensors accepts.
IGNORED = {
    "tail": "the header's tail holds something else than up to seven spaces",
    "duplicate metadata keys": "a metadata key occurs twice",
    "index map": "the index map names a tensor twice",
    "duplicate names": "the index map holds a name twice",
}
# Types that numpy has no array for.
IMPOSSIBLE = {
    "numpy cannot hold the shape": "the shape is beyond what numpy can hold",
    "more than 64 dimensions": "the shape has more dimensions than numpy has",
}
OTHER_LAYOUT = "read in the layout that this bintensors does not know"
WIDE_DTYPE = "bintensors reads a dtype of at most four bytes"


def reason(reading, layout, mine, other):
    """Why weightmap and the bintensors that knows `layout` disagree about a file; empty when there is no reason."""
    another = "current" if layout == "spec" else "spec"
    faults = reading.faults.get(layout, {"unreadable"})
    if mine is not None and another in reading.valid and (layout == "current" or layout not in reading.valid):
        return OTHER_LAYOUT
    if mine is not None and other is None and reading.wide_dtype and not faults:
        return WIDE_DTYPE
    if mine is None and other is not None and faults and faults <= {*IGNORED, *IMPOSSIBLE}:
        return "; ".join(sorted({**IGNORED, **IMPOSSIBLE}[fault] for fault in faults))
    return ""


def compare(layout, verdicts):
    agreements = Counter()
    reasons = Counter()
    for data, other in verdicts:
        mine = ours(data)
        if mine == other:
            agreements["refused" if mine is None else "read"] += 1
        else:
            why = reason(judge(data), layout, mine, other)
            assert why, f"{data.hex()}: weightmap {mine}, bintensors {other}"
            reasons.update(why.split("; "))
    return agreements, reasons


def check_lax(layout, verdicts):
    gained = 0
    another = "current" if layout == "spec" else "spec"
    # Faults that strict=False lets pass in the other layout, in which a file may be read.
    passing = {*IGNORED, "trailing data"}
    for data, other in verdicts:
        if other is None:
            continue
        mine, reading = ours(data, strict=False), judge(data)
        if mine is None:
            assert reading.faults[layout] & set(IMPOSSIBLE), data.hex()
        elif mine != other:
            assert reading.faults.get(another, {"unreadable"}) <= passing, data.hex()
        gained += mine is not None and ours(data) is None
    return gained


needs_reference = pytest.mark.skipif(
    importlib.util.find_spec("bintensors") is None and "CI" not in os.environ, reason="needs bintensors"
)
needs_old = pytest.mark.skipif(
    OLD is None, reason="WEIGHTMAP_BINTENSORS_005 names no interpreter with bintensors 0.0.5"
)


# ------------------------------------------------------------------------------------------------- the tests


def test_weightmap_agrees_with_the_suite_s_own_reader():
    read = Counter()
    for data in damaged():
        reading, mine = judge(data), ours(data)
        layout = reading.valid[0] if reading.valid else ""
        read[layout] += 1
        assert mine == reading.content.get(layout), data.hex()
        if mine is not None:
            assert list(mine) == list(reading.content[layout])
            assert ours(data, strict=False) == mine, data.hex()
            with wm.open(memoryview(data)) as f:
                assert f.layout == layout
    assert min(read[layout] for layout in ("spec", "current", "")) > COUNT / 20


@needs_reference
def test_every_disagreement_with_0_2_0_has_a_reason():
    agreements, reasons = compare("current", ((data, theirs(data)) for data in damaged()))
    assert min(agreements["read"], agreements["refused"]) > COUNT / 20
    assert set(reasons) >= {OTHER_LAYOUT, IGNORED["tail"], IGNORED["duplicate metadata keys"], *IMPOSSIBLE.values()}
    assert set(reasons) <= {OTHER_LAYOUT, WIDE_DTYPE, *IGNORED.values(), *IMPOSSIBLE.values()}


@needs_reference
def test_lax_mode_reads_every_file_that_0_2_0_reads():
    assert check_lax("current", ((data, theirs(data)) for data in damaged())) > 20


@needs_reference
def test_metadata_is_that_of_0_2_0(tmp_path):
    """Metadata of files that both read, in lax mode too, where the last of two values wins."""
    import bintensors

    path, compared = tmp_path / "m.bt", Counter[str]()
    for data in damaged():
        if theirs(data) is None or len(judge(data).faults) != 1 or ours(data, strict=False) is None:
            continue
        path.write_bytes(data)
        with bintensors.safe_open(path, "np") as reference, wm.open(path, strict=False) as f:
            assert dict(f.metadata) == (reference.metadata() or {})
            compared[str(sorted(f.metadata))] += 1
        if sum(compared.values()) == 400:
            break
    assert len(compared) > 3


@needs_old
def test_every_disagreement_with_0_0_5_has_a_reason():
    agreements, reasons = compare("spec", zip(damaged(), of_0_0_5(str(OLD)), strict=True))
    assert min(agreements["read"], agreements["refused"]) > COUNT / 20
    assert set(reasons) >= {OTHER_LAYOUT, *IGNORED.values(), *IMPOSSIBLE.values()}


@needs_old
def test_lax_mode_reads_every_file_that_0_0_5_reads():
    assert check_lax("spec", zip(damaged(), of_0_0_5(str(OLD)), strict=True)) > 20
