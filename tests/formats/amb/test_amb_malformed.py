"""AMB files with one lie each: what is wrong, which field says so, and at which byte."""

from __future__ import annotations

import errno
import os
import time
import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.builders import amb, noise, normal

import weightmap as wm
from weightmap.formats.amb import layout
from weightmap.io.opening import from_buffer, from_path
from weightmap.kernels import _scans
from weightmap.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST = amb.dense("first", normal((2, 3), 1))
SECOND = amb.dense("second", noise("float16", (5,), 2))
CONFIG = b'{"n_vocab": 3}'
TOKENS = amb.tokenizer(2, (0, 1, 2, amb.NO_ID, amb.NO_ID), b"a\nb\nc\n")
METADATA = b'{"name": "x"}'
OPTIONS = Options(wm.Limits())
# Where the records of a file with all sections begin, and the fields of the first one.
START = 28 + len(METADATA) + len(CONFIG) + len(TOKENS)
NDIM = START + 2 + 5
SHAPE, DTYPE, SIZE, DATA = NDIM + 1, NDIM + 9, NDIM + 10, NDIM + 18


def sound(*records: amb.Record, **options: Any) -> bytes:
    """A file with all sections; the records given, or two."""
    return amb.build(records or (FIRST, SECOND), METADATA, CONFIG, TOKENS, **options)


# ------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(("section", "at"), [("metadata", 8), ("config", 12)])
def test_texts_beyond_the_limit_are_not_read(section: str, at: int) -> None:
    """A text larger than `max_header_bytes` is a LimitError at its size; one byte less is fine."""
    data = amb.build(**{section: b'{"a": "' + b"x" * 91 + b'"}'})  # 100 bytes
    wm.open(data, limits=wm.Limits(max_header_bytes=100)).close()
    with pytest.raises(wm.LimitError) as caught:
        wm.open(data, limits=wm.Limits(max_header_bytes=99))
    assert caught.value.offset == at


# ------------------------------------------------------------------------------------------------- records


def test_names_of_control_characters_load_and_are_escaped() -> None:
    """A name that would speak to a terminal is legal, and no message shows it as it is."""
    name = "\x1b]0;owned\x07"
    with wm.open(sound(FIRST.but(name=name))) as f:
        assert list(f) == [name]
        with pytest.raises(wm.TensorNotFoundError) as caught:
            f[name + "x"]
        assert "\x1b" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- limits


def test_names_of_more_bytes_than_allowed() -> None:
    """Names that together exceed `max_header_bytes` are a LimitError."""
    records = [amb.dense(str(i) * 40, noise("int8", (1,), i)) for i in range(5)]
    data = amb.build(records)
    wm.open(data, limits=wm.Limits(max_header_bytes=200)).close()
    with pytest.raises(wm.LimitError, match="names"):
        wm.open(data, limits=wm.Limits(max_header_bytes=199))


@pytest.mark.parametrize(
    "make", [bytes, lambda count: b"\0\0\1\0\0\0\0\3" + bytes(count - 8)], ids=["zeros", "records"]
)
def test_a_huge_sparse_section_is_answered_at_once(tmp_path: Path, make: Callable[[int], bytes]) -> None:
    """A TiB of zeros for weights, which are no records, is refused in little processor time and no memory."""
    path = tmp_path / "sparse.amb"
    with path.open("wb") as file:
        file.write(amb.build(b"", weights_size=1 << 40) + make(64))
        file.truncate(28 + (1 << 40))
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(wm.LayoutError):
        wm.open(path)
    assert time.process_time() - begin < 5
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


# ------------------------------------------------------------------------------------------------- files that change


def walked(source: Any, data: bytes) -> None:
    """Walk the records of a source by the sections of other bytes."""
    header = layout.read_header(from_buffer(data, "mmap"), data, OPTIONS, [])
    layout.walk(source, header, None, OPTIONS, [])


def test_a_file_that_shrinks_before_the_walk(tmp_path: Path) -> None:
    """Headers of records that are gone when the walk comes to them are a TruncatedError; data is not looked at."""
    data = sound()
    path = tmp_path / "shrinks.amb"
    for size in range(START, len(data) - len(SECOND.data)):
        path.write_bytes(data)
        source = from_path(str(path), "mmap")
        os.truncate(path, size)
        with pytest.raises(wm.TruncatedError, match="became shorter"):
            walked(source, data)


def test_an_error_of_the_system_passes_through(tmp_path: Path) -> None:
    """An error of the system while records are read is an OSError with its number and the name of the file."""
    with (tmp_path / "x.amb").open("wb") as file, pytest.raises(OSError, match="descriptor") as caught:
        walked(SimpleNamespace(scanned=(file.fileno(), None), name="x.amb"), sound())
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, "x.amb")


def test_records_that_grow_between_two_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that did not fit, and does not fit its own size at the second walk, is an error and no wrong table."""
    walk = _scans._walk
    found = []

    def growing(section: Any, room: tuple[int, int, int], **options: Any) -> Any:
        columns, result, fault = walk(section, room, **options)
        result.n_tensors += 600 * (1 + len(found))
        found.append(room)
        return columns, result, fault

    monkeypatch.setattr(_scans, "_walk", growing)
    with pytest.raises(wm.TruncatedError, match="changed"):
        wm.open(sound())
    assert len(found) == 2
