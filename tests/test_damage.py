"""Every byte of small files gone or wrong: what is left is refused, or opens and is consistent."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests import builders
from tests.attacks import sound
from tests.attacks.case import INDEX
from tests.attacks.sharded import folder
from tests.builders import amb
from tests.builders import finalfusion as ff

import weightmap as wm

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = builders.examples()
# A byte is replaced by each of these values, and with one of these bits turned; a byte of data with two of them: no
# value of it means anything.
VALUES = (0x00, 0x7F, 0xFA, 0xFB, 0xFD, 0xFF)
BITS = (0x01, 0x80)
# What may be allocated to open a file that is smaller than this.
HEAP = 1 << 20


def quantised() -> bytes:
    """An AMB file with a tensor of every scheme."""
    blocks = [(0.5, range(-4, 4)), (-1.0, range(8)), (6e-8, [7, -8, 1])]
    mixed = [(0, 0.5, range(-8, 8)), (2, 0.0, [0.25] * 16), (1, -2.0, range(-16, 0))]
    records = [
        amb.quantised("int8", (3, 4), amb.INT8, amb.pack_scale(0.5, 1) + bytes(range(12)), 0, 1),
        amb.quantised("int4", (7,), amb.INT4, amb.pack_scale(2.0, 0) + amb.pack(range(-4, 3), 4), 0, 0),
        amb.quantised("int5", (3,), amb.INT5, amb.pack_scale(2.0, 1) + amb.pack([1, -16, 15], 5), 0, 1),
        amb.quantised("int4_block", (19,), amb.INT4BLOCK, amb.pack_blocks(blocks, 4, 8, 1), 8, 1),
        amb.quantised("int5_block", (19,), amb.INT5BLOCK, amb.pack_blocks(blocks, 5, 8, 0), 8, 0),
        amb.Record("bare", (3, 8), amb.INT4BLOCK, amb.pack_blocks(blocks, 4, 8, 0)),
        amb.quantised("adaptive", (3, 16), amb.ADAPTIVE, amb.pack_adaptive(mixed, 16, 1), 16, 1),
    ]
    config = amb.text({"quant": {"block_size": 8, "scale_type": "fp32"}})
    return amb.build(records, b'{"n": 1}', config, amb.tokenizer(0, (0, 1, 2, 3, 4), b"ab"))


def files() -> dict[str, bytes]:
    """A small file of each format and layout, and one of each part that a format has in several kinds."""
    words = ["one", "two", "drei"]
    found = dict(sound())
    # Of CNN v2, one whose data is smaller than its records.
    for version in (1, 2):
        found[f"cnn_v2-v{version}"] = next(
            example.data for example in EXAMPLES if example.format == "cnn_v2" and example.layout == f"v{version}"
        )
    found["cnn_v2-v2"] = next(e.data for e in EXAMPLES if (e.format, e.name) == ("cnn_v2", "odd-padded"))
    found["amb-quantised"] = quantised()
    every = [
        ff.metadata("a = 1\nb = [2020-01-01]"),
        ff.explicit(words, [("a", 0), ("b", 1)], 1, 3),
        ff.product(*ff.quantised(5, 2, 3, 2)),
        ff.norms(ff.lengths(3)),
    ]
    found["finalfusion-everything"] = ff.build(every)
    spec = ff.hashed(ff.FASTTEXT, words, 1, 3, 2, spec=True)
    found["finalfusion-specification"] = ff.build([spec, ff.matrix(builders.normal((5, 1)))])
    return found


FILES = files()
every_file = pytest.mark.parametrize("kind", FILES)


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """No test here takes minutes: if one hangs, the process ends and tells where."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def limited(extra: int = 1 << 28) -> Iterator[None]:
    """Let this process have no more memory than it has, and 256 MiB: what a file declares cannot be allocated."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + extra, before[1]))
    except (OSError, ValueError):  # not Linux, or limited already
        size = 0
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def consistent(data: bytes, f: wm.TensorFile) -> None:
    """Whatever a handle says of its file is within the file, and the same in every place."""
    names = list(f)
    infos = f.infos()
    assert len(f) == len(names) == len(infos)
    for name, info in zip(names, infos, strict=True):
        assert info.name == name
        assert f.info(name) in infos
        assert 0 <= info.offset <= info.offset + info.nbytes <= len(data)
        with contextlib.suppress(wm.QuantError):  # codes and masks are looked at when they are used
            tensor = f[name]
            array = np.asarray(tensor)
            assert array.shape == tensor.shape == f.info(name).shape
            if tensor is array:
                first = f.info(name).offset  # of two names that are equal, which lax mode lets pass, it is the first
                assert array.tobytes() == data[first : first + array.nbytes]
    repr(f)
    dict(f.metadata)
    if f.config is not None:
        dict(f.config)
    if f.tokenizer is not None:
        assert f.tokenizer.payload in data
    vocab = f.vocab
    if vocab is not None:
        words = list(vocab)
        assert len(words) == len(vocab)
        for number, word in enumerate(words):
            assert vocab[number] == word
            assert words[vocab.index(word)] == word
        dict(vocab.special_ids)
    embeddings = f.embeddings
    if embeddings is not None and vocab is not None:
        with contextlib.suppress(wm.QuantError, KeyError):
            embeddings["two"], embeddings["unknown"]


def outcome(data: bytes, **options: Any) -> str:
    """Open, use and verify a file: the class of the error of ours that came of it, or nothing."""
    try:
        with wm.open(memoryview(data), **options) as f:
            consistent(data, f)
            f.verify()
            return ""
    except wm.TensorFileError as error:
        found = error
    assert str(found).startswith("<memoryview>: ")
    return type(found).__name__


def places(data: bytes) -> Iterator[tuple[int, set[int]]]:
    """Every place of a file, and the values by which the byte there is replaced."""
    with wm.open(memoryview(data)) as f:
        spans = [(info.offset, info.offset + info.nbytes) for info in f.infos() if f.info(info.name).dtype in DENSE]
    for place, byte in enumerate(data):
        turned = {byte ^ bit for bit in BITS}
        payload = any(begin <= place < end for begin, end in spans)
        yield place, turned if payload else (turned | set(VALUES)) - {byte}


DENSE = {"float32", "float16", "bfloat16", "int8", "uint8", "float64"}


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{example.format}-{example.name}" for example in EXAMPLES])
def test_every_prefix_is_refused(example: builders.Example) -> None:
    """Cut off at any byte, a file is told to be too short or no file of any format; an empty one, to be empty."""
    with limited():
        for size in set(range(len(example.data))) - example.prefixes:
            with pytest.raises((wm.TruncatedError, wm.UnknownFormatError, wm.LayoutError)) as caught:
                wm.open(memoryview(example.data[:size]))
            if isinstance(caught.value, wm.LayoutError):  # half of the spare half of CNN v2: a byte too many
                assert size - 1 in example.prefixes
    with pytest.raises(wm.TruncatedError, match="the file is empty"):
        wm.open(memoryview(b""))


@every_file
def test_every_prefix_is_refused_or_consistent_in_lax_mode(kind: str) -> None:
    """Without strictness a prefix may open, to what is there; with `verify="none"` it may open to errors later."""
    data = FILES[kind]
    with limited():
        for size in range(len(data)):
            outcome(data[:size], strict=False)
            outcome(data[:size], verify="none")


@every_file
def test_any_byte_may_be_wrong(kind: str) -> None:
    """With any one byte replaced by any of many values, a file is refused with an error of ours or is consistent."""
    whole, outcomes = FILES[kind], set()
    data = bytearray(whole)
    with limited():
        assert outcome(whole) == ""
        for place, values in places(whole):
            for value in values:
                data[place] = value
                outcomes.add(outcome(bytes(data)))
            data[place] = whole[place]
    assert len(outcomes - {""}) > 2


@every_file
def test_no_wrong_byte_takes_memory(kind: str) -> None:
    """With any byte of a length, a count or a dimension too large, opening takes less than a MiB of memory."""
    whole = FILES[kind]
    data = bytearray(whole)
    tracemalloc.start()
    try:
        for place, values in places(whole):
            for value in values & {0xFF, whole[place] ^ 0x80}:
                data[place] = value
                tracemalloc.reset_peak()
                start = tracemalloc.get_traced_memory()[0]
                with contextlib.suppress(wm.TensorFileError):
                    wm.open(memoryview(bytes(data))).close()
                assert tracemalloc.get_traced_memory()[1] - start < HEAP
            data[place] = whole[place]
    finally:
        tracemalloc.stop()


@every_file
def test_any_byte_may_be_wrong_where_little_is_checked(kind: str) -> None:
    """The same with `verify="none"` and with `strict=False`, where the format is named."""
    data, name = bytearray(FILES[kind]), kind.partition("-")[0]
    with limited():
        for place, byte in enumerate(FILES[kind]):
            data[place] = byte ^ 0x80
            outcome(bytes(data), format=name, verify="none")
            data[place] = byte ^ 0x01
            outcome(bytes(data), format=name, strict=False)
            data[place] = byte


def test_checksums_find_any_wrong_byte() -> None:
    """No byte of an EMBD file with checksums can be replaced without an error from opening or verifying it."""
    whole = FILES["embd"]
    data = bytearray(whole)
    with limited():
        for place, byte in enumerate(whole):
            for bit in BITS:
                data[place] = byte ^ bit
                with pytest.raises(wm.FormatError):
                    wm.open(memoryview(data), verify="full")
            data[place] = byte


def test_any_byte_of_an_index_of_shards_may_be_wrong(tmp_path: Path) -> None:
    """With any one byte of the index replaced, a sharded model is refused with an error of ours or is consistent."""
    content = folder()
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    whole = content[INDEX]
    wanted = set(json.loads(whole)["weight_map"])
    refused = 0
    for place, byte in enumerate(whole):
        for value in {0x00, 0x22, 0xFF, byte ^ 1, byte ^ 0x80} - {byte}:
            (tmp_path / INDEX).write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            text = str(tmp_path)
            try:
                with wm.open(tmp_path / INDEX) as f:
                    assert set(f) <= wanted
                    assert all(f[name].nbytes == f.info(name).nbytes for name in f)
            except wm.TensorFileError as error:
                refused += 1
                text = str(error)
            assert text.startswith(str(tmp_path))
            assert text.isprintable()
    assert refused > len(whole)
    for size in range(len(whole)):
        (tmp_path / INDEX).write_bytes(whole[:size])
        with pytest.raises(wm.FormatError):
            wm.open(tmp_path / INDEX)
