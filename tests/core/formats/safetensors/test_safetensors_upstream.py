"""safetensors, differentially: mutants given to the reference implementation and to weightmap.

Every disagreement must have a reason from a short list, and each reason is a predicate on the file itself, which the
suite's own reader judges. A disagreement without a reason fails the test, and so does a reason that never occurs.
"""

import json
import math
from collections import Counter
from functools import cache
from typing import Any

import safetensors
from tests.builders import numpy_dtype
from tests.builders import safetensors as st
from tests.fuzz.corpus import seeds
from tests.fuzz.mutate import mutant

import weightmap as wm

COUNT = 20_000

# The reference's names of the types; types below a byte have no array, so the suite's builder lacks them.
CODES = st.CODES | {"float4_e2m1fn": "F4", "float6_e2m3fn": "F6_E2M3", "float6_e3m2fn": "F6_E3M2"}
CODES |= {"float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}


@cache
def files():
    found = [mutant("safetensors", number).files[""] for number in range(COUNT)]
    for data in seeds("safetensors"):
        text = data[8 : 8 + int.from_bytes(data[:8], "little")]
        rest, inner = data[8 + len(text) :], text.strip(b" ")
        heads = [b" " + inner, b"\n" + inner, inner + b"\n", inner + b"\t \r\n", inner + b" " * 40, inner + b"\0"]
        heads += [
            inner.replace(b'"dtype"', b'"x":' + b"[" * depth + b"]" * depth + b',"dtype"', 1)
            for depth in (1, 64, 65, 200)
        ]
        heads += [inner.replace(b'"dtype"', b'"x":' + value + b',"dtype"', 1) for value in VALUES]
        heads += [inner.replace(b"{", b'{"__metadata__":' + value + b",", 1) for value in METADATA]
        heads += [inner.replace(b"}}", b'},"list":["F32",[0],[0,0]]}', 1)]
        heads += [
            inner.replace(b"{", b'{"empty":{"dtype":"F32","shape":%s,"data_offsets":[0,0]},' % shape, 1)
            for shape in SHAPES
        ]
        found += [st.raw(head, rest) for head in heads]
    return tuple(found)


VALUES = (b"1", b"-1.5e3", b"null", b'"\\u00e9"', b'{"a":{"b":[1]}}', b"1e999", b"01", b"nul", b'"\\ud800"', b"[1,]")
METADATA = (b"null", b"nul", b"0", b"{}", b'{"k":null}', b'null,"__metadata__":null', b'{},"__metadata__":null')
SHAPES = (
    b"[0,4611686018427387904,2]",
    b"[4294967296,0,4294967296]",
    b"[0,18446744073709551615]",
    b"[0%s]" % (b",1" * 70),
)


def ours(data):
    """The content that weightmap finds in a file; None when it refuses it."""
    try:
        with wm.open(memoryview(data), format="safetensors") as f:
            # Not every type has an array: bytes are compared where they lie.
            return {
                info.name: (CODES[info.dtype], info.shape, data[info.offset : info.offset + info.nbytes])
                for info in f.infos()
            }
    except wm.FormatError:
        return None


def theirs(data):
    """The content that the reference implementation finds; None when it refuses the file."""
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None
    return {name: (item["dtype"], tuple(item["shape"]), bytes(item["data"])) for name, item in found}


NAME_TWICE = "the reference reads a name twice: the last of the tensors counts"
KEY_TWICE = "the reference reads a key of the metadata twice: the last value counts"
WHITE_SPACE = "the reference reads white space before the object"
DEEP = "the reference skips values that are nested more than 64 deep, up to 125"
LIST = "the reference reads a tensor that is a list of its three values"
IMPOSSIBLE = "the shape is beyond what numpy can hold"
REASONS = {NAME_TWICE, KEY_TWICE, WHITE_SPACE, DEEP, LIST, IMPOSSIBLE}
# Files that weightmap reads and the reference refuses: a number in a value that both skip, and elements below the byte
# that do not fill whole bytes, which no file here has.
LARGE = b"1e999"


class Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, which may repeat keys."""

    def twice(self):
        return len(dict(self)) < len(self)


def faults(data):
    """The known reasons that a file has, by the suite's own reader; none where it cannot be read."""
    text = data[8 : 8 + int.from_bytes(data[:8], "little")]
    try:
        top = json.loads(text.decode(), object_pairs_hook=Pairs)
    except (ValueError, RecursionError):
        return set()
    found = set()
    if not text.startswith(b"{"):
        found.add(WHITE_SPACE)
    if not isinstance(top, Pairs):
        return found
    if top.twice():
        found.add(NAME_TWICE)
    for name, item in top:
        if isinstance(item, list) and not isinstance(item, Pairs):
            found.add(LIST)
        if not isinstance(item, Pairs):
            continue
        if name == "__metadata__":
            found |= {KEY_TWICE} if item.twice() else set()
            continue
        if b"[" * 65 in text:
            found.add(DEEP)
        found |= {IMPOSSIBLE} if beyond(dict(item)) else set()
    return found


def beyond(item):
    """Whether numpy has no array of this shape: too many dimensions, or too many bytes even without dimensions of 0."""
    shape, name = item.get("shape"), st.NAMES.get(str(item.get("dtype")))
    if name is None or not isinstance(shape, list) or not all(isinstance(part, int) for part in shape):
        return False
    return len(shape) > 64 or math.prod(filter(None, shape)) * numpy_dtype(name).itemsize >= 2**63


def test_every_disagreement_has_a_reason():
    agreements = Counter()
    reasons = Counter()
    for data in files():
        mine, other = ours(data), theirs(data)
        if mine == other:
            agreements["refused" if mine is None else "read"] += 1
            continue
        why = faults(data)
        if other is None and LARGE in data:
            continue
        assert mine is None, f"{data!r}: weightmap {mine}, safetensors {other}"
        assert why, f"{data!r}: weightmap refuses it, safetensors {other}"
        reasons.update(why)
    assert min(agreements["read"], agreements["refused"]) > COUNT / 20
    assert set(reasons) == REASONS
