"""Checkpoints at the bounds of reading: the last accepted value, and the first refused one."""

import struct

import numpy as np
import pytest
from tests.builders import torch as files
from tests.zip_files import Entry, archive

import weightmap as wm

TENSOR = files.Stored("0", "float32", 2, 0, (2,), (1,))
DATA = struct.pack("<2f", 1, 2)
PROGRAM = files.dump({"a": TENSOR})


def test_the_first_entry_may_be_any():
    parts = {"data.pkl": PROGRAM, "byteorder": b"big", "data/0": np.array([1, 2], ">f4").tobytes()}
    for first in parts:
        names = sorted(parts, key=lambda name, first=first: name != first)
        with wm.open(archive([Entry(f"x/{name}".encode(), parts[name]) for name in names])) as f:
            assert f["a"].tolist() == [1, 2]
    script = [Entry(b"x/constants.pkl", b"."), Entry(b"x/data.pkl", PROGRAM), Entry(b"x/data/0", DATA)]
    with pytest.raises(wm.UnsupportedError, match="TorchScript"):
        wm.open(archive(script))


def test_a_deflated_storage_behind_a_stored_one():
    program = files.dump({"a": TENSOR, "b": TENSOR._replace(key="1")})
    entries = [Entry(b"x/data.pkl", program), Entry(b"x/data/0", DATA)]
    with pytest.raises(wm.UnsupportedError, match="x/data/1") as caught:
        wm.open(archive([*entries, Entry(b"x/data/1", DATA, method=8, packed=DATA)]))
    assert caught.value.field == "method"


def test_a_legacy_file_whose_number_is_in_a_frame():
    data = files.legacy(PROGRAM, {"0": files.Item(DATA, 4)})
    number = files.MAGIC.removeprefix(b"\x80\2")
    framed = b"\x80\4\x95" + struct.pack("<Q", len(number)) + number + data.removeprefix(files.MAGIC)
    for found in (data, framed):
        with wm.open(found) as f:
            assert f.layout == "legacy"
    with pytest.raises(wm.FormatError):
        wm.open(framed.replace(b"\x95", b"\x96", 1))


def test_a_cut_program_and_the_limit_of_headers():
    data = files.legacy(files.dump({"text": "x" * 9000}), {})[:8000]
    with pytest.raises(wm.TruncatedError):
        wm.open(data, limits=wm.Limits(max_header_bytes=len(data)))
    with pytest.raises(wm.LimitError, match="max_header_bytes"):
        wm.open(data, limits=wm.Limits(max_header_bytes=len(data) - 1))


@pytest.mark.parametrize(("keys", "what"), [(["x"], "'x' which no tensor mentions"), (["0", "0"], "'0' twice")])
def test_keys_that_are_wrong(keys, what):
    data = files.legacy(PROGRAM, {"0": files.Item(DATA, 4)})
    listed = files.dump(keys)
    data = data.replace(files.dump(["0"]), listed) + struct.pack("<Q", 2) + DATA
    with pytest.raises(wm.LayoutError, match=what):
        wm.open(data)


@pytest.mark.parametrize("elements", [0, 1, 2])
def test_the_end_of_the_last_storage(elements):
    tensor = files.Stored("0", "float32", elements, 0, (elements,), (1,))
    data = files.legacy(files.dump({"a": tensor}), {"0": files.Item(bytes(4 * elements), 4)})
    with wm.open(data) as f:
        assert f["a"].tolist() == [0] * elements
    for cut in range(1, 8 + 4 * elements + 1):
        with pytest.raises(wm.TruncatedError) as caught:
            wm.open(data[:-cut])
        assert caught.value.field == "storage"
        assert caught.value.expected == f"at least {len(data)} bytes"
