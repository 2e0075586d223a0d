"""A format that is only read, of what formats have in common: found, opened, verified, converted from, not written.

Its files are ``"TOYW" | u32 tensors | tensors | padding to 32 | data``. A tensor is the u64 length of its name, the
name, u8 dtype, u8 ndim, u64 dimensions and the u64 offset of its data, a multiple of 32. Neither the size of the data
nor where a tensor ends is declared. The metadata of all files are the same.
"""

import datetime as dt
import math
import struct

import numpy as np
import pytest
from tests import builders
from tests.support import add_format

import weightmap as wm
from weightmap import kernels
from weightmap.conversion.metadata import fitted
from weightmap.core.dtypes import DTYPES
from weightmap.core.formats import FORMATS
from weightmap.core.formats._base import Content, Cursor, Format
from weightmap.core.native import scans
from weightmap.core.table import ANY_GAP, Rules
from weightmap.core.table.columns import ColumnTable
from weightmap.words.importers import NAMES as WORDS

METADATA = {"name": "wört", "layers": 12, "eps": 1e-12, "tied": True, "lengths": [1, 2, 3], "odd": math.inf}


class _Rules(Rules):
    __slots__ = ()
    dtypes = (DTYPES["float32"], DTYPES["int8"])
    min_ndim, max_ndim = 1, 4
    alignment, max_gap = 32, ANY_GAP


def parse(source, head, options):
    cursor = Cursor(head, source, options.limits)
    cursor.skip(4)
    names, codes, dims, ndims, begins = [b""], [], [], [0], []
    for _ in range(cursor.count("u32", 18, "tensors", "number of tensors", "max_tensors")):
        names.append(cursor.text("u64", "name", "a name").encode())
        codes.append(cursor.number("u8", "dtype", "a dtype"))
        ndims.append(cursor.number("u8", "ndim", "a number of dimensions"))
        dims.append(cursor.array("<u8", ndims[-1], "shape", "a shape"))
        begins.append(cursor.number("u64", "offset", "an offset"))
    columns = scans.Columns(
        b"".join(names),
        np.cumsum([len(name) for name in names], dtype=np.uint32),
        np.array(codes, np.uint8),
        np.concatenate([np.empty(0, np.uint64), *dims]),
        np.cumsum(ndims, dtype=np.uint32),
        np.array(begins, np.uint64),
    )
    base = -(-cursor.position // 32) * 32
    crc = kernels.crc32(source.pread(0, cursor.position))
    size = cursor.position
    table = ColumnTable(columns, _Rules(base, source.size, lax=not options.strict), utf8=False)
    if options.checked:
        table.check()

    def verify(run):
        run.unchanged(run.read(0, size), crc, "the header")
        run.checked("header")
        run.finish()

    return Content("toy", table, METADATA.copy, verify, [])


FORMAT = Format("toy", "Toy", (".toy",), ("toy",), parse, magic=b"TOYW")


def build(tensors, offset=None):
    """A file; `offset` is a lie about the last tensor."""
    entries, data = [], b""
    for i, (name, array) in enumerate(tensors.items()):
        data = data.ljust(-(-len(data) // 32) * 32, b"\0")
        at = len(data) if offset is None or i < len(tensors) - 1 else offset
        code = {"float32": 0, "int8": 1}[array.dtype.name]
        head = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<BB", code, array.ndim)
        entries.append(head + struct.pack(f"<{array.ndim}QQ", *array.shape, at))
        data += array.tobytes()
    header = b"TOYW" + struct.pack("<I", len(entries)) + b"".join(entries)
    return header.ljust(-(-len(header) // 32) * 32, b"\0") + data


TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(5, dtype=np.int8),
    "c": np.ones((1, 2), np.float32),
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The format is there as if its file lay in the folder of formats."""
    add_format(monkeypatch, FORMAT)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.toy"
    path.write_bytes(build(TENSORS))
    return path


def test_it_is_opened_and_verified(path):
    assert "toy" in wm.formats()
    for how in ({}, {"format": "toy"}, {"verify": "none"}, {"verify": "full"}, {"mode": "copy"}):
        with wm.open(path, **how) as file:
            assert (file.format, file.layout, dict(file.metadata)) == ("toy", "toy", METADATA)
            assert all(np.array_equal(file[name], array) for name, array in TENSORS.items())
            assert file.verify().checks == ("header", "every byte is readable")
            assert file.embeddings is None


def test_what_it_declares_not_is_checked_all_the_same():
    """Cut off at any byte it is refused, as are offsets past the end or not a multiple of 32, strict or not."""
    data = build(TENSORS)
    for length in range(1, len(data)):
        with pytest.raises((wm.TruncatedError, wm.UnknownFormatError)):
            wm.open(data[:length], format="toy" if length >= 4 else None)
    for strict in (True, False):
        with pytest.raises(wm.LayoutError, match="'c': data offset is 65, expected a multiple of 32"):
            wm.open(build(TENSORS, offset=65).ljust(1000, b"\0"), strict=strict)
    with pytest.raises(
        wm.TruncatedError,
        match=r"ends within tensor 'c' \(was the download complete\?\), expected at least 232 bytes \(at byte 200\)",
    ):
        wm.open(build(TENSORS, offset=96))
    with wm.open(build(TENSORS, offset=96), verify="none") as file, pytest.raises(wm.TruncatedError):
        file["c"]


def test_it_is_not_written(path):
    target = path.parent / "new.toy"
    for how in ({}, {"format": "toy"}):
        with pytest.raises(wm.EncodeError, match="Toy files can be read but not written"):
            wm.save(target, {"w": TENSORS["a"]}, **how)
        with pytest.raises(wm.EncodeError, match="Toy files can be read but not written"):
            wm.convert(path, target, **how)
    with pytest.raises(wm.EncodeError, match=f"^{path.parent}/: Toy files can be read but not written"):
        wm.convert(path, f"{path.parent}/", format="toy")
    assert not target.exists()


def test_it_is_not_offered_where_a_format_is_written(path, tmp_path):
    target = tmp_path / "new"
    written = ", ".join(name for name, format_ in FORMATS.items() if format_.plan is not None)
    with pytest.raises(ValueError, match=f"^format is 'nope', expected one of {written}$"):
        wm.save(target, {"w": TENSORS["a"]}, format="nope")
    for place in (target, tmp_path):  # a file and shards
        with pytest.raises(ValueError, match=f"^format is 'nope', expected one of {written}, {', '.join(WORDS)}$"):
            wm.convert(path, place, format="nope")
    with pytest.raises(ValueError, match=f"^format is 'nope', expected one of {', '.join(FORMATS)}$"):
        wm.open(path, format="nope")


def going_along(metadata, name):
    """The metadata that goes along to the format of this name, and the keys that stay behind."""
    return fitted(metadata, FORMATS[name].metadata_keys, FORMATS[name].metadata_kinds)


# By what a format's metadata holds (`Builder.metadata`): what typed metadata become, and the keys that stay behind.
TYPES = '{"eps": "JSON", "layers": "JSON", "tied": "JSON"}'
AS_TEXT = {"name": "wört", "layers": "12", "eps": "1e-12", "tied": "true", "weightmap.types": TYPES}
CONVERTED = {
    "texts": (AS_TEXT, ["lengths", "odd"]),
    "JSON": ({key: value for key, value in METADATA.items() if key != "odd"}, ["odd"]),
    "TOML": (METADATA, []),
    "typed": (METADATA, []),
    "": ({}, list(METADATA)),
}
WRITTEN = [name for name, builder in builders.known().items() if builder.saved]


def test_every_format_that_is_written_has_files_that_are_saved():
    assert set(WRITTEN) == {name for name, format_ in FORMATS.items() if format_.plan is not None}


@pytest.mark.parametrize("name", WRITTEN)
def test_typed_metadata_are_converted_by_one_rule(path, name):
    """Metadata that the format holds goes along, numbers as texts if it has only those; the report lists the rest."""
    builder, target = builders.known()[name], path.parent / "target"
    expected, behind = CONVERTED[builder.metadata]
    kept, homeless = going_along(METADATA, name)
    assert homeless == behind
    assert kept == expected
    arrays = next(iter(builder.saved.values()))(TENSORS["a"])["tensors"]
    if "w" not in arrays:  # the names of tensors are the format's
        return
    dtypes = FORMATS[name].dtypes[FORMATS[name].layouts[0]]
    include = [name for name, array in TENSORS.items() if array.dtype.name in dtypes]
    report = wm.convert(path, target, format=name, dtype=None, include=include)
    lines = [line for line in report.warnings if "metadata entr" in line]
    assert len(lines) == bool(behind)
    assert all(repr(key) in lines[0] for key in behind)
    with wm.open(target) as file:
        found = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in file.metadata.items()}
        assert found == expected


@pytest.mark.parametrize("value", [None, {"a": [1, None]}, b"bytes"], ids=str)
def test_what_no_text_can_hold_stays_behind(value):
    """In a format of texts; and in TOML what has nothing in it, however deep."""
    for name in WRITTEN:
        json = builders.known()[name].metadata == "JSON"
        assert going_along({"k": value}, name)[1] == ([] if json and not isinstance(value, bytes) else ["k"])


def test_times_go_along_to_toml_alone():
    times = {"when": dt.datetime(2026, 11, 21, 12, 30, tzinfo=dt.UTC), "days": [dt.date(2026, 11, 21)]}
    for name in WRITTEN:
        held = times if builders.known()[name].metadata == "TOML" else {}
        assert going_along(times, name) == (held, [key for key in times if key not in held])
