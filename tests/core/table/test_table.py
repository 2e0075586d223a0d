"""The table of tensors in C, against a plain definition of a sound table."""

import math
import random
import re
import struct
from functools import partial

import numpy as np
import pytest
from tests.builders.embd import fnv1a32
from tests.collisions import colliding
from tests.support import in_one_item
from tests.table_support import rules

import weightmap as wm
from weightmap.core.dtypes import DTYPES, numpy_dtype
from weightmap.core.native import access, scans
from weightmap.core.table import Rules
from weightmap.core.table.columns import ColumnTable, RecordTable

RECORD = struct.Struct("<I2BH4IQ")
BITS = bytes([32, 16, 16, 32, 16, 8, 32, 16, 8])
LIMIT = 2**63 - 1


def verdict(rows, names, data_size, alignment, max_gap, lax):
    """The defect of a table by the documented rules: a word and a row, or None."""
    end = 0
    for i, (_, code, ndim, _, *dims, offset) in enumerate(rows):
        if code >= len(BITS):
            return "TABLE_DTYPE", i
        if not 1 <= ndim <= 4:
            return "TABLE_NDIM", i
        count = 1
        for dim in dims[:ndim]:
            if dim:
                count *= dim
                if count > LIMIT:
                    return "TABLE_OVERFLOW", i
        if any(dims[ndim:]):
            return "TABLE_UNUSED_DIM", i
        if count * BITS[code] // 8 > LIMIT:
            return "TABLE_OVERFLOW", i
        nbytes = 0 if 0 in dims[:ndim] else count * BITS[code] // 8
        if offset + nbytes > data_size:
            return "TABLE_RANGE", i
        if offset % alignment:
            return "TABLE_ALIGN", i
        if not lax and offset < end:
            return "TABLE_OVERLAP", i
        if not lax and offset - end > max_gap:
            return "TABLE_HOLE", i
        end = offset + nbytes
    if not lax and data_size - end > max_gap:
        return "TABLE_HOLE", len(rows)
    position, seen, spans = 0, {}, []
    for i, row in enumerate(rows):
        if position + row[3] > len(names):
            return "NAME_RANGE", i
        spans.append(names[position : position + row[3]])
        position += row[3]
    for i, name in enumerate(spans):
        try:
            name.decode()
        except UnicodeDecodeError:
            return "NAME_UTF8", i
    for i, (row, name) in enumerate(zip(rows, spans, strict=True)):
        if row[0] != fnv1a32(name):
            return "NAME_HASH", i
    for i, name in enumerate(spans):
        if name in seen:
            return "NAME_DUPLICATE", i
        seen[name] = i
    return None


def check(rows, names, data_size, alignment=64, max_gap=63, *, lax=False):
    records = b"".join(RECORD.pack(*row) for row in rows)
    asked = rules(BITS, min_ndim=1, max_ndim=4, alignment=alignment, max_gap=max_gap)
    found = scans.records_check(records + names, len(rows), asked, data_size, LIMIT, lax=lax)
    if isinstance(found, int):
        assert found == sum(row[3] for row in rows)
        return None
    words = {code: word for word, code in access.faults().items()}
    return words[found.code], found.row


def table(names, rng):
    rows, end = [], 0
    for name in names:
        code, ndim = rng.randrange(9), rng.randint(1, 4)
        dims = [rng.choice([0, 1, 2, 3, 7]) for _ in range(ndim)]
        offset = -(-end // 64) * 64
        count = 1
        for dim in dims:
            count *= dim
        rows.append([fnv1a32(name), code, ndim, len(name), *[*dims, 0, 0, 0][:4], offset])
        end = offset + count * BITS[code] // 8
    return rows, end


def test_a_sound_table_passes():
    """Tables that keep every rule are accepted, of no tensor, of one, and of thousands."""
    rng = random.Random(1)
    for count in (0, 1, 2, 103, 1023, 1024, 1025, 5000):
        names = [f"layer.{i}.weight".encode() for i in range(count)]
        rows, size = table(names, rng)
        assert check(rows, b"".join(names), size) is None
        assert check(rows, b"".join(names) + b"\0" * 17, size) is None, "padding after the names is not theirs"


def test_one_lie_in_a_table_is_found_where_the_definition_finds_it():
    rng = random.Random(2)
    interesting = [0, 1, 2, 4, 5, 8, 9, 63, 64, 65, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 64, 2**63]
    interesting += [2**64 - 64, 2**64 - 1]
    widths = [32, 8, 8, 16, 32, 32, 32, 32, 64]
    outcomes = set()
    for _ in range(10_000):
        names = [bytes(rng.choices(b"abc.", k=rng.randint(0, 6))) + b"%d" % i for i in range(rng.randint(1, 6))]
        rows, size = table(names, rng)
        row, field = rng.choice(rows), rng.randrange(9)
        row[field] = rng.choice(interesting) & (2 ** widths[field] - 1)
        if rng.random() < 0.1:  # a shape whose product overflows takes several large dimensions
            row[2], row[4:8] = 4, [rng.choice([2**32 - 1, 2**31, 2**16, 1, 0]) for _ in range(4)]
        size += rng.choice([0, 0, 0, -1, 1, 63, 64])
        if size < 0:
            continue
        lax, blob = rng.random() < 0.2, b"".join(names)
        alignment, gap = rng.choice([(64, 63), (1, 0), (1, 63)])
        expected = verdict(rows, blob, size, alignment, gap, lax)
        assert check(rows, blob, size, alignment, gap, lax=lax) == expected
        outcomes.add(expected and expected[0])
    words = ("DTYPE", "NDIM", "UNUSED_DIM", "OVERFLOW", "RANGE", "HOLE", "ALIGN", "OVERLAP")
    assert {None, *(f"TABLE_{word}" for word in words), "NAME_RANGE", "NAME_HASH"} <= outcomes


def test_names_are_checked_one_by_one():
    """A sequence of UTF-8 that straddles two names is invalid in both; repeats are found."""
    rng = random.Random(3)
    for names in (
        [b"a\xc3", b"\xa9b"],
        [b"\xff"],
        [b"", b"", b"x"],
        [b"x", b"y", b"x"],
        [b"ok", b"\xed\xa0\x80"],
        ["é".encode(), b"z"],
    ):
        rows, size = table(names, rng)
        assert check(rows, b"".join(names), size) == verdict(rows, b"".join(names), size, 64, 63, lax=False)


def test_duplicates_among_many_names():
    rng = random.Random(4)
    names = [b"costarring", b"liquid"] + [b"t%d" % i for i in range(20_000)]
    rows, size = table(names, rng)
    assert check(rows, b"".join(names), size) is None
    names.append(b"costarring")
    rows, size = table(names, rng)
    assert check(rows, b"".join(names), size) == ("NAME_DUPLICATE", len(names) - 1)


def pairs(entries):
    return b"".join(struct.pack("<2H", len(k), len(v)) + k + v for k, v in entries)


@pytest.mark.parametrize("count", [0, 1, 3, 63, 64, 65, 500])
def test_pairs(count):
    """Pairs pass when they fill their bytes with unique UTF-8 keys; every truncation of a few of them fails."""
    entries = [(b"key%d" % i, "wért".encode() * (i % 5)) for i in range(count)]
    data = pairs(entries)
    assert scans.pairs_check(data, count) is None
    assert scans.pairs_check(data + b"\0", count).code == access.faults()["NAME_RANGE"]
    if count:
        assert scans.pairs_check(data + pairs(entries[:1]), count + 1).code == access.faults()["NAME_DUPLICATE"]
        assert scans.pairs_check(pairs([(b"\xff", b"")]) + data, count + 1).code == access.faults()["NAME_UTF8"]
        assert scans.pairs_check(pairs([(b"", b"\xc3")]) + data, count + 1).code == access.faults()["NAME_UTF8"]
        for cut in range(min(len(data), 60)):
            assert scans.pairs_check(data[: len(data) - 1 - cut], count).code == access.faults()["NAME_RANGE"]
    assert scans.pairs_check(b"", 2**60).code == access.faults()["NAME_RANGE"]


@pytest.fixture(autouse=True)
def loaded():
    numpy_dtype(DTYPES["int8"])
    numpy_dtype(DTYPES["float16"])


TYPES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8")


class Four(Rules):
    __slots__ = ()
    dtypes = tuple(DTYPES[name] for name in TYPES)
    min_ndim, max_ndim = 1, 4


def records(rows, names, asked):
    """A table of records, unchecked; `asked` is the rules, or the size of a file with data alone."""
    index = b"".join(RECORD.pack(*row) for row in rows) + b"".join(names)
    return RecordTable(lambda: index, len(rows), 0, Four(0, asked) if isinstance(asked, int) else asked)


def in_columns(rows, names, asked, *, ends=True):
    dims = [row[4 : 4 + min(row[2], 4)] for row in rows]
    bits = dict(enumerate(BITS))
    stops = [row[8] + math.prod(shape) * bits.get(row[1], 8) // 8 for row, shape in zip(rows, dims, strict=True)]
    columns = scans.Columns(
        b"".join(names),
        np.cumsum([0, *map(len, names)], dtype=np.uint32),
        np.array([row[1] for row in rows], np.uint8),
        np.array([dim for row in dims for dim in row], np.uint64),
        np.cumsum([0, *map(len, dims)], dtype=np.uint32),
        np.array([row[8] for row in rows], np.uint64),
        np.array([end % 2**64 for end in stops], np.uint64) if ends else None,
    )
    return ColumnTable(columns, Four(0, asked) if isinstance(asked, int) else asked, utf8=True)


every_kind = pytest.mark.parametrize("make", [records, in_columns, partial(in_columns, ends=False)])


def three():
    """Rows of three tensors of 24 bytes, which can be made to lie."""
    return [[fnv1a32(b"abc"[i : i + 1]), 0, 2, 1, 2, 3, 0, 0, 24 * i] for i in range(3)]


# Each case: the rules for three tensors of 24 bytes, at 0, 24 and 48; a lie about the second, by the number of the
# field in its record; the error and its message. Of CONTRACT the row that lies is refused by itself too.
TIGHT, ALIGNED, WIDE = Four, Four.varied(alignment=8), Four.varied(alignment=32, max_gap=31)
LEAST, MOST, PADDED = Four.varied(min_ndim=2), Four.varied(max_ndim=2), Four.varied(max_gap=63)
OVERFLOW = {2: 4, 4: 2**31, 5: 2**31, 6: 2, 7: 1}
ASKEW = "'b': data offset is 25, expected a multiple of 32"
CONTRACT = [
    ("sound", TIGHT(0, 72), {}, None, ""),
    ("sound, in a section", TIGHT(0, 100, 72), {}, None, ""),
    ("sound, aligned", ALIGNED(0, 72), {}, None, ""),
    ("dtype after the last", TIGHT(0, 72), {1: 9}, wm.UnsupportedError, "'b': dtype code is 9"),
    ("dtype 255", TIGHT(0, 72), {1: 255}, wm.UnsupportedError, "'b': dtype code is 255"),
    ("overflow", TIGHT(0, 72), OVERFLOW, wm.FormatError, "'b'"),
    ("a byte past the file", TIGHT(0, 72), {8: 49}, wm.TruncatedError, "ends within tensor 'b'"),
    ("at the end of u64", TIGHT(0, 72), {8: 2**64 - 1}, wm.TruncatedError, "ends within tensor 'b'"),
    ("empty, past the file", TIGHT(0, 72), {4: 0, 8: 73}, wm.TruncatedError, "ends within tensor 'b'"),
    ("a byte past the section", TIGHT(0, 99, 72), {8: 49}, wm.LayoutError, "'b': end of its data is 73"),
    ("past section and file", TIGHT(0, 99, 72), {8: 2**63}, wm.LayoutError, "'b': end of its data is 92233"),
    ("past the file in the section", TIGHT(0, 72, 99), {8: 49}, wm.TruncatedError, "ends within tensor 'b'"),
    ("too few dimensions", LEAST(0, 72), {2: 1, 5: 0}, wm.FormatError, "'b': number of dimensions is 1"),
    ("too many dimensions", MOST(0, 72), {2: 3, 6: 1}, wm.FormatError, "'b': number of dimensions is 3"),
]
ONLY_TOGETHER = [
    ("not aligned", WIDE(0, 96), {8: 25}, wm.LayoutError, ASKEW),
    ("not aligned, lax", WIDE(0, 96, lax=True), {8: 25}, wm.LayoutError, ASKEW),
    ("an overlap", TIGHT(0, 72), {8: 23}, wm.LayoutError, "'b' overlaps the tensor before it"),
    ("an overlap, lax", TIGHT(0, 72, lax=True), {8: 23}, None, ""),
    ("a hole", TIGHT(0, 72), {8: 25}, wm.LayoutError, "'b' leaves a hole"),
    ("bytes behind the last", TIGHT(0, 73), {}, wm.LayoutError, "trailing bytes: the size of the data section is"),
    ("bytes behind the last, lax", TIGHT(0, 73, lax=True), {}, None, ""),
    ("the section cut off", PADDED(0, 72, 80), {}, wm.TruncatedError, "the file ends within the data section"),
]


@every_kind
@in_one_item("name, asked, lie, error, message", CONTRACT + ONLY_TOGETHER)
def test_every_kind_of_table_keeps_the_contract(make, name, asked, lie, error, message):
    rows = three()
    for field, value in lie.items():
        rows[1][field] = value
    table = make(rows, [b"a", b"b", b"c"], asked)
    uses = [lambda: table.row(1), lambda: list(table.rows()), table.spans]
    uses *= any(name == case[0] for case in CONTRACT)
    for use in (*uses, table.check):
        if error is None:
            use()
        else:
            with pytest.raises(error, match=re.escape(message)):
                use()
    assert [table.row(i).offset for i in (0, 2)] == [0, 48]


@every_kind
def test_names_whose_hashes_collide_are_distinguished(make):
    """Names made to collide pass if they differ, and are refused if two are equal."""
    names = colliding()[:80]
    for more, fault in (([], None), ([names[3]], "tensors 3 and 80 are both called")):
        rows = [[fnv1a32(name), 8, 1, len(name), 1, 0, 0, 0, i] for i, name in enumerate([*names, *more])]
        table = make(rows, [*names, *more], len(rows))
        if fault is None:
            table.check()
            assert [table.find(name.decode()) for name in names] == list(range(80))
        else:
            with pytest.raises(wm.LayoutError, match=fault):
                table.check()
