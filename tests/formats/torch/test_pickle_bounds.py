"""The pickle machine at its bounds: what it accepts at the last value, and refuses at the one beyond it."""

from __future__ import annotations

import pytest
from tests.builders import torch as files

import weightmap as wm
from weightmap import kernels
from weightmap._kernels import ffi, lib


def fault(code: bytes) -> tuple[str, int, int, int] | None:
    """What is wrong with a program, where, and by how much; None when nothing is."""
    found = kernels.Pickle(code, 10, 1000).fault
    return None if found is None else (found.kind, found.at, found.actual, found.expected)


MEMO = {
    b"Nq\2.": None,
    b"Nq\3.": ("PICKLE_MEMO", 1, 3, 0),
    b"Nr\5\0\0\0.": None,
    b"Nr\6\0\0\0.": ("PICKLE_MEMO", 1, 6, 0),
    b"Nq\1" + b"0h\1.": None,
    b"Nq\1" + b"0h\0.": ("PICKLE_MEMO", 4, 0, 2),
    b"Nq\1" + b"0h\2.": ("PICKLE_MEMO", 4, 2, 2),
    b"Nq\1q\0" + b"0h\1.": None,
}


@pytest.mark.parametrize("code", MEMO)
def test_entries_of_the_memo(code: bytes) -> None:
    """An entry's number is below the bytes read; only entries that were written are read."""
    assert fault(code) == MEMO[code]


@pytest.mark.parametrize(
    "code",
    [b"K\1", b"M\1\1", b"J" + bytes(4), b"X\1\0\0\0a", b"C\1a", b"\x8d" + bytes(8), b"\x8a\2\1\1", b"\x8a\x09" + bytes(9)],
)
def test_the_last_operand_may_end_with_the_data(code: bytes) -> None:
    """A program that ends with an operand lacks an opcode; one byte shorter, it lacks a byte of the operand."""
    assert fault(code) == ("PICKLE_END", 0, 0, 1)
    kind, at, actual, expected = fault(code[:-1]) or ("", 0, 0, 0)
    assert (kind, at, expected - actual) == ("PICKLE_END", 0, 1)


@pytest.mark.parametrize("size", range(1, 10))
def test_integers_of_every_size(size: int) -> None:
    """Integers are two's complement, whatever number of bytes the pickler chose."""
    most = 2 ** (8 * size - 1)
    for value in (-most, 1 - most, -1, 0, 1, most - 1):
        code = b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
        with wm.open(files.zipped(files.dump({"a": files.Plain(code)}), {})) as f:
            assert f.metadata == {"a": value}


@pytest.mark.parametrize(("length", "words"), [(1, 1), (255, 1), (256, 2), (511, 2), (512, 3)])
def test_an_arena_without_room(length: int, words: int) -> None:
    """A program starts where the directory of the memo fits, and not in one word less."""
    out, found = ffi.new("wm_pickle *"), ffi.new("wm_fault *")
    arena = ffi.new("uint64_t[]", words)
    code = b"." + b"N" * (length - 1)
    assert lib.wm_pickle_run(code, length, arena, words, out, found) == -1
    assert found.code == kernels.FAULTS["PICKLE_STACK"]
    assert lib.wm_pickle_run(code, length, arena, words - 1, out, found) == -1
    assert found.code == kernels.FAULTS["PICKLE_MEMORY"]
    assert (found.actual, found.expected) == (words - 1, words)
