"""Headers of members, read by C or by Python: they mean what numpy makes of them."""

import io
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_one_item
from tests.zip_files import Entry, archive

import weightmap as wm
from weightmap.core.native import scans
from weightmap.core.native.files import Reader

SHAPE = "(2, 3)"


def header(descr="'<f4'", fortran="False", shape=SHAPE, end=", }"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}{end}"


def member(text, nbytes, *, pad=118, version=b"\x01\x00", last=b"\n"):
    raw = text if isinstance(text, bytes) else text.encode("latin-1")
    raw = raw.ljust(pad - len(last)) + last
    return b"\x93NUMPY" + version + struct.pack("<H", len(raw)) + raw + bytes(range(256)) * (nbytes // 256 + 1)


def cut(text, nbytes, **options):
    data = member(text, nbytes, **options)
    return data[: 10 + struct.unpack_from("<H", data, 8)[0] + nbytes]


# Headers that numpy writes: C reads them.
PLAIN = {
    "row-major": (header(), 24),
    "Fortran order": (header(fortran="True"), 24),
    "Fortran order of a row": (header(fortran="True", shape="(1, 6)"), 24),
    "one dimension": (header(shape="(6,)"), 24),
    "no dimension": (header(shape="()"), 4),
    "empty": (header(shape="(0, 3)"), 0),
    "many dimensions": (header(shape=f"({', '.join('1' * 32)})"), 4),
    "big-endian": (header("'>i8'", shape="(3,)"), 24),
    "truth values": (header("'|b1'", shape="(3,)"), 3),
    "complex": (header("'<c16'", shape="(1,)"), 16),
    "the largest number": (header("'|u1'", shape=f"(0, {10**17})"), 0),
}
# Other valid headers: Python reads them.
ODD = {
    "double quotes": (header('"<f4"'), 24),
    "other spaces": (header(shape="( 2,3 )"), 24),
    "a comma more": (header(shape="(2, 3,)"), 24),
    "no comma at the end": (header(end="}"), 24),
    "another order of keys": ("{'shape': (2, 3), 'descr': '<f4', 'fortran_order': False}", 24),
    "a structure": (header("[('a', '<f4')]"), 24),
    "lines in a name": (header(r"[('a\n\r\t\\n\'\"\x01', '<f4')]"), 24),
    "texts": (header("'<U2'"), 48),
    "dates": (header("'<M8[s]'"), 48),
    "a sign before the size": (header("'f4'"), 24),
    "native order": (header("'=f4'"), 24),
}


def test_one_read_has_both_headers_of_a_member():
    """Its own, with an extra field, and its array's."""
    whole = cut(header(shape="(1024,)"), 4096, pad=118)
    data, reads = archive([Entry(b"%d.npy" % i, whole, wide=True) for i in range(3)]), []

    def pread(at, count):
        reads.append(at)
        return data[at : at + count]

    central = data.index(b"PK\1\2")
    found = scans.zip_scan(-1, Reader(pread), central, data[central : len(data) - 22], 3, arrays=True)
    assert reads == found.offset.tolist()
    assert found.arrays.kinds == ["<f4"]


@in_one_item("name", [*PLAIN, *ODD])
def test_headers_mean_the_same_to_numpy(name):
    text, nbytes = (PLAIN | ODD)[name]
    data = archive([Entry(b"a.npy", cut(text, nbytes, pad=max(118, len(text) + 1)))])
    with np.load(io.BytesIO(data)) as theirs, wm.open(data) as f:
        ours, wanted = f["a"], theirs["a"]
        assert (ours.dtype, ours.shape, ours.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
        assert ours.flags.f_contiguous == wanted.flags.f_contiguous


@given(st.lists(st.sampled_from([*PLAIN.values(), *ODD.values()]), max_size=12), st.data())
def test_plain_and_other_members_in_any_order(members, draw):
    methods = draw.draw(st.lists(st.sampled_from([0, 0, 8]), min_size=len(members), max_size=len(members)))
    wholes = [cut(text, nbytes, pad=max(118, len(text) + 1)) for text, nbytes in members]
    entries = [
        Entry(b"%d.npy" % i, data, method=how) for i, (data, how) in enumerate(zip(wholes, methods, strict=True))
    ]
    strangers = draw.draw(st.sets(st.integers(0, len(entries)), max_size=2))
    for i in sorted(strangers, reverse=True):
        entries.insert(i, Entry(b"readme%d" % i, b"text"))
    data = archive(entries)
    if strangers:
        with pytest.raises(wm.LayoutError, match="is not an array"):
            wm.open(data, format="npz")
    with wm.open(data, format="npz", strict=not strangers) as f:
        assert list(f) == [str(i) for i in range(len(members))]
        for name, whole in zip(f, wholes, strict=True):
            array = f[name]
            begin = 10 + struct.unpack_from("<H", whole, 8)[0]
            order = "F" if b"'fortran_order': True" in whole else "C"
            assert array.tobytes(order) == whole[begin:]


def nested(levels, shape=""):
    kind = "'<f4'"
    for level in range(levels):
        kind = f"[('a', {kind}{shape if not level else ''})]"
    return kind


def test_the_depth_of_structures():
    """Brackets may lie 16 deep within each other."""
    with wm.open(archive([Entry(b"a.npy", cut(header(nested(7, ", (2,)"), shape="(1,)"), 8, pad=246))])) as f:
        assert f["a"].nbytes == 8
    with pytest.raises(wm.FormatError):
        wm.open(archive([Entry(b"a.npy", cut(header(nested(8), shape="(1,)"), 4, pad=246))]))


def test_the_most_dimensions():
    data, more = (archive([Entry(b"a.npy", cut(header(shape=f"({'1, ' * ndim})"), 4, pad=310))]) for ndim in (64, 65))
    assert wm.open(data)["a"].shape == (1,) * 64
    with pytest.raises(wm.LimitError):
        wm.open(more)


@pytest.mark.parametrize("descr", ["'a4'", "[('x', 'a4')]"])
def test_an_old_spelling_where_warnings_are_errors(descr):
    """numpy warns of it; where a filter makes that an exception, it is an error of the package all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(wm.FormatError, match="descr"):
            wm.open(archive([Entry(b"w.npy", cut(header(descr), 24))]))
