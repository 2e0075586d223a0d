"""BinTensors, differentially: thousands of damaged files, given to the reference implementation and to weightmap.

Every disagreement must have a reason from a short list, and each reason is a predicate on the file itself, which the
suite's own reader judges. A disagreement without a reason fails the test, and so does a reason that never occurs.
"""

import ast
import contextlib
import functools
import importlib.util
import os
import struct
import subprocess
from collections import Counter
from typing import NamedTuple

import pytest
from tests.builders import bintensors as bt
from tests.fuzz.mutate import mutant
from tests.support import HANG

import weightmap as wm

COUNT = 4000
# Path of an interpreter that has bintensors 0.0.5, the last release to write the specification's layout.
OLD = os.environ.get("WEIGHTMAP_BINTENSORS_005")

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


@functools.cache
def damaged(count=2 * COUNT):
    found, row = [bt.BOTH, bt.SPECIFICATION_BYTES], bt.Row("a", 1, (1,), 0, 1)
    empty = row._replace(shape=(0, 2**40, 2**40), end=0)
    for layout in bt.LAYOUTS:  # mutants seldom have these
        twice = bt.header([row], [("k", "1"), ("k", "2")], layout)
        many = bt.header([row._replace(shape=(1,) * 65)], layout=layout)
        found += [bt.raw(bt.padded(twice), b"x"), bt.raw(bt.padded(many), b"x")]
        found.append(bt.raw(bt.padded(bt.header([empty], layout=layout))))
    return found + [mutant("bintensors", number).files[""] for number in range(count)]


def ours(data, *, strict=True):
    """The content that weightmap finds; None if refused. A file that only strict=False reads has a warning."""
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
        timeout=HANG,
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


# Faults for a strict reader that bintensors accepts.
IGNORED = {
    "tail": "the header's tail holds something else than up to seven spaces",
    "duplicate metadata keys": "a metadata key occurs twice",
    "index map": "the index map names a tensor twice",
    "duplicate names": "the index map holds a name twice",
}
# Types without arrays in numpy.
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
    # Faults that strict=False accepts in the other layout, in which a file may be read.
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


@needs_reference
def test_every_disagreement_with_0_2_0_has_a_reason():
    agreements, reasons = compare("current", ((data, theirs(data)) for data in damaged()))
    assert min(agreements["read"], agreements["refused"]) > COUNT / 20
    assert set(reasons) >= {OTHER_LAYOUT, IGNORED["tail"], IGNORED["duplicate metadata keys"], *IMPOSSIBLE.values()}
    assert set(reasons) <= {OTHER_LAYOUT, WIDE_DTYPE, *IGNORED.values(), *IMPOSSIBLE.values()}


@needs_reference
def test_lax_mode_reads_every_file_that_0_2_0_reads():
    assert check_lax("current", ((data, theirs(data)) for data in damaged())) > 20


@needs_old
def test_every_disagreement_with_0_0_5_has_a_reason():
    agreements, reasons = compare("spec", zip(damaged(), of_0_0_5(str(OLD)), strict=True))
    assert min(agreements["read"], agreements["refused"]) > COUNT / 20
    assert set(reasons) >= {OTHER_LAYOUT, *IGNORED.values(), *IMPOSSIBLE.values()}


@needs_old
def test_lax_mode_reads_every_file_that_0_0_5_reads():
    assert check_lax("spec", zip(damaged(), of_0_0_5(str(OLD)), strict=True)) > 20
