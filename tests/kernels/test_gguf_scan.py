"""The scan of GGUF's header in pieces: how many bytes it asks for."""

import pytest
from tests.builders import gguf, normal

from weightmap.native import scans

KV = gguf.KeyValue
START = 24


def scan_of(data, limit=None):
    tensors, values = int.from_bytes(data[8:16], "little"), int.from_bytes(data[16:24], "little")
    return scans.GGUFHeader(len(data) if limit is None else limit, START, values, tensors, 3, big=False)


@pytest.mark.parametrize("read", [0, 1, 3, 7, 50, 978, 979, 998, 999])
@pytest.mark.parametrize(("length", "cut"), [(10, 0), (10, 5), (10, 9), (0, 0), (0, 7)])
def test_a_list_of_texts_is_expected_to_go_on_as_it_begins(read, length, cut):
    count = 1000
    data = gguf.header([], [KV("k", ["str"], ["x" * length] * count), KV("z", "u64", 1)])
    begin = START + 9 + 4 + 12
    scan = scan_of(data)
    end = begin + read * (8 + length)
    assert scan.values(data[: end + cut]) is False
    each = (8 + length) + 1 if read else 8
    assert scan.wanted == min(len(data), end + (count - read) * each)


def test_a_long_text_counts_more_than_what_is_expected():
    """What the next text takes is asked for, where that is more than the rest is expected to take."""
    data = gguf.header([], [KV("k", ["str"], ["x", "y" * 5000])])
    begin = START + 9 + 4 + 12
    scan = scan_of(data)
    assert scan.values(data[: begin + 9 + 8]) is False
    assert scan.wanted == begin + 9 + 8 + 5000


def test_no_more_is_expected_than_the_limit():
    data = gguf.header([], [KV("k", ["str"], ["x" * 100, *[""] * 500])])
    begin, limit = START + 9 + 4 + 12, 24 + 9 + 4 + 12 + 108 + 501 * 8
    scan = scan_of(data, limit)
    assert scan.values(data[: begin + 108]) is False
    assert scan.wanted == limit


@pytest.mark.parametrize("read", [0, 1, 20])
def test_tensor_infos_are_expected_to_go_on_as_they_begin(read):
    tensors = {f"tensor{i:03}": normal((1,), i) for i in range(100)}
    data = gguf.header(gguf.infos_of(tensors))
    info = (len(data) - START) // 100
    scan = scan_of(data)
    types = scans.gguf_types([(0, 1, 4)])
    assert scan.values(data[:START]) is True
    columns, done = scan.tensors(data[: START + read * info], types, 100)
    assert done is False
    assert columns.count <= 100
    each = info + 1 if read else 20
    assert scan.wanted == min(len(data), START + read * info + (100 - read) * each)


def test_the_last_number_of_a_file_is_asked_for():
    """A number that is cut off is asked for, also where nothing follows it."""
    data = gguf.header([], [KV("k", "u64", 1)])
    scan = scan_of(data)
    assert scan.values(data[:-1]) is False
    assert scan.wanted == len(data)
    assert scan.values(data) is True


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("big", [False, True])
def test_arrays_are_skipped(version, big):
    """An array ends where the next field begins, in every version and order of bytes."""
    coder = gguf.Coder(version, big)
    array = coder.value([["u16"]], [[1, 2], [], [3]])
    scan = scans.GGUFHeader(len(array) + 9, 3, 0, 0, version, big=big)
    assert scan.skip(b"abc" + array + b"def", 3) == 3 + len(array)
