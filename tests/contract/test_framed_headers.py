"""safetensors and BinTensors, whose headers their length frames: the smallest files, the first page, empty metadata."""

import json
import struct

import numpy as np
import pytest
from tests.bounds_support import refused
from tests.builders import bintensors as bt
from tests.builders import noise
from tests.builders import safetensors as st

import weightmap as wm
from weightmap.core.arguments import Options
from weightmap.core.bytes.open_source import from_buffer
from weightmap.core.formats import FORMATS


def test_metadata_that_is_there_and_empty():
    for format, build in (("safetensors", st.build), ("bintensors", bt.build)):
        for metadata in (None, {}, {"a": "b"}):
            source = from_buffer(build({"a": noise("uint8", (1,))}, metadata), "mmap")
            content = FORMATS[format].parse(source, bytes(source.octets[:4096]), Options(wm.Limits()))
            assert content.has_metadata == (metadata is not None)
            assert content.load_metadata() == (metadata or {})


@pytest.mark.parametrize("text", [b"{}", b"\0\0"])
def test_the_smallest_files(text):
    data = struct.pack("<Q", 2) + text
    with wm.open(memoryview(data)) as f:
        assert (len(f), f.format) == (0, "safetensors" if text == b"{}" else "bintensors")
    assert type(refused(data[:9])) is wm.UnknownFormatError
    if text[0] == 0:  # behind the length there is one of two tags
        assert type(refused(struct.pack("<Q", 2) + b"\2\0")) is wm.UnknownFormatError
        assert type(refused(struct.pack("<Q", 2) + b"\1\0")) is not wm.UnknownFormatError
    # A header that is longer, and not there.
    assert type(refused(struct.pack("<Q", 3) + text)) is wm.TruncatedError
    for length in (0, 1):
        assert type(refused(struct.pack("<Q", length) + text + bytes(20))) is wm.UnknownFormatError


@pytest.mark.parametrize("size", range(4086, 4092))
def test_headers_as_long_as_the_first_read(put, size):
    """A header that ends with the first page, or a byte before or behind it, is read whole."""
    for head in (st.header_of({"a": noise("uint8", (3,))})[0], None):
        if head is None:
            text = bt.header([bt.Row("n" * (size - 300), 1, (3,), 0, 3)], {"k": "v"})
            text = bt.header([bt.Row("n" * (size - 300), 1, (3,), 0, 3)], {"k": "v" * (size - len(text) - 1)})
        else:
            text = json.dumps(head | {"__metadata__": {"k": ""}}).encode()
            text = json.dumps(head | {"__metadata__": {"k": "v" * (size - len(text))}}).encode()
        assert len(text) == size
        with wm.open(put(st.raw(text, b"abc"))) as f:
            assert [np.asarray(f[name]).tobytes() for name in f] == [b"abc"]
            assert f.metadata["k"].count("v") in range(200, size)
