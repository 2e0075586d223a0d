"""GGUF, differentially: mutants given to gguf-py's reader and to weightmap.

Every disagreement has a reason from a short list, and each reason is a predicate on the file itself, which the suite's
own reader judges. A disagreement without a reason fails the test, and so does a reason that never occurs.
"""

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
from tests.builders import gguf, normal
from tests.fuzz.corpus import seeds
from tests.fuzz.mutate import mutant

import weightmap as wm

theirs = pytest.importorskip("gguf")


COUNT = 3_000

# The reference refuses files with one of these faults, and reads files with one of the others.
VERSION_1 = "the reference knows versions 2 and 3"
ALIGNMENT = "the reference wants a power of two as alignment"
UNIT = "an alignment that is no multiple of eight"
TEXT = "the reference decodes a text when it is asked for it"
KEY = "the reference reads keys of any length"
BOOL = "the reference takes any byte as a truth value"
PLACES = "the reference looks at no offset, hole, overlap or end of a file"
MANY = "the reference takes any number of dimensions, and elements modulo 2**64"
STRICT, LENIENT = {VERSION_1, ALIGNMENT}, {UNIT, TEXT, KEY, BOOL, PLACES, MANY}


@cache
def files():
    found = [mutant("gguf", number).files[""] for number in range(COUNT)]
    found += seeds("gguf")
    for value in (1, 4, 24, 40):
        found.append(
            gguf.build({"w": normal((3,))}, [gguf.KeyValue("general.alignment", "u32", value)], alignment=value)
        )
    five = gguf.Info("w", (1, 1, 1, 1, 2), 0, 0)
    wrapped = gguf.Info("w", (2**32, 2**32, 2), 0, 0)
    for info in (five, wrapped):
        head = gguf.header([info])
        found.append(head + gguf.padding(len(head)) + bytes(32))
    return tuple(found)


def plain(value):
    return repr(value.tolist() if hasattr(value, "tolist") else value)


def nested(value):
    return isinstance(value, list)


def ours(data):
    """The content that weightmap finds in a file; None when it refuses it."""
    try:
        with wm.open(memoryview(data), format="gguf") as f:
            tensors = {
                info.name: (gguf.CODES[info.dtype], info.shape, data[info.offset : info.offset + info.nbytes])
                for info in f.infos()
            }
            return tensors, {key: plain(value) for key, value in f.metadata.items() if not nested(value)}
    except wm.FormatError:
        return None


def other(path, data, flat):
    path.write_bytes(data)
    try:
        reader = theirs.GGUFReader(path)
        tensors = {
            tensor.name: (int(tensor.tensor_type), tuple(tensor.shape.tolist()[::-1]), tensor.data.tobytes())
            for tensor in reader.tensors
        }
        return tensors, {key: plain(reader.fields[key].contents()) for key in reader.fields if key in flat}
    except Exception:  # noqa: BLE001 - whatever comes up in it
        return None


def sizes_of(code):
    for known, elements, octets in gguf.BLOCKS.values():
        if known == code:
            return elements, octets
    name = next(name for name, known in gguf.DENSE.items() if known == code)
    return 1, 2 if name == "bfloat16" else np.dtype(name).itemsize


def faults(data):
    """The reasons that a file has, by the suite's own reader; None where a header does not end.

    Such a file is not given to the reference, which takes as many steps as an array declares items.
    """
    try:
        file = gguf.dissect(data)
        header = gguf.header(file.infos, file.values, gguf.Coder(file.version, file.big))
        sizes = [math.prod(info.dims) // sizes_of(info.type)[0] * sizes_of(info.type)[1] for info in file.infos]
    except AssertionError:
        return None
    except UnicodeError:
        return {TEXT}
    except (ArithmeticError, LookupError, StopIteration, TypeError):
        return set()
    found = {VERSION_1} if file.version == 1 else set()
    if file.alignment & (file.alignment - 1):
        found.add(ALIGNMENT)
    if file.alignment % 8:
        found.add(UNIT)
    if any(len(value.key) > 65_535 for value in file.values):
        found.add(KEY)
    if header != data[: len(header)]:
        found.add(BOOL)
    if any(len(info.dims) > 4 or math.prod(filter(None, info.dims)) >= 2**63 for info in file.infos):
        found.add(MANY)
    place = end = 0
    for begin, size in sorted(zip((info.offset for info in file.infos), sizes, strict=True)):
        if begin != place:
            found.add(PLACES)
        end = begin + size
        place = end + -end % file.alignment
    if len(data) not in ({file.base + end, file.base + place} if end else {len(header), file.base}):
        found.add(PLACES)
    return found


@pytest.mark.filterwarnings("ignore:.* the others are left out:weightmap.ModelWarning")
def test_every_disagreement_has_a_reason(tmp_path):
    agreements = Counter()
    reasons = Counter()
    for data in files():
        mine, why = ours(data), faults(data)
        if why is None:
            assert mine is None, f"{data!r}: the header does not end, weightmap {mine}"
            agreements["cut off"] += 1
            continue
        found = other(tmp_path / "m.gguf", data, set(mine[1]) if mine else set())
        if (mine is None) is (found is None):
            assert mine == found, data
            agreements["refused" if mine is None else "read"] += 1
            continue
        because = why & (LENIENT if mine is None else STRICT)
        assert because, (
            f"{data[:500]!r}, {why}, by weightmap {'refused' if mine is None else 'read'}, otherwise by gguf-py"
        )
        reasons.update(because)
    assert min(agreements[what] for what in ("read", "refused", "cut off")) > COUNT / 20
    assert set(reasons) == STRICT | LENIENT
