"""Every byte of small files missing or wrong: the rest is refused, or opens and is consistent."""

import contextlib
import faulthandler
import json
import sys
import tracemalloc
from pathlib import Path

import pytest
from tests import builders
from tests.attacks.case import INDEX, put
from tests.attacks.sharded import folder
from tests.fuzz import exercise
from tests.fuzz.corpus import small_files
from tests.fuzz.mutate import sealed
from tests.support import each

import weightmap as wm

# Replacements for a byte, and bits to flip; a byte of data, whose value means nothing, gets two of them.
VALUES = (0x00, 0x7F, 0xFA, 0xFB, 0xFD, 0xFF)
BITS = (0x01, 0x80)
# Numbers of two, four and eight bytes: small ones, and those around the largest of each type.
EDGES = [
    value.to_bytes(width, "little")
    for width in (2, 4, 8)
    for top in [1 << 8 * width]
    for value in (0, 1, 2, 5, 63, 65, top // 16, top // 2 - 1, top // 2, top // 2 + 1, top - 64, top - 1)
]
# The most that opening a smaller file may allocate.
HEAP = 1 << 20


FILES = small_files()
every_file = pytest.mark.parametrize("kind", FILES)


@pytest.fixture(autouse=True)
def _bounded():
    """No test here takes minutes: if one hangs, the process ends and tells where."""
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def limited(extra=1 << 28):
    """Limit this process to its memory plus 256 MiB: declared sizes cannot be allocated."""
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


def outcome(data, **options):
    return exercise.outcome(memoryview(data), data, **options)


def places(data):
    """Every place of a file, and the values by which the byte there is replaced."""
    with wm.open(memoryview(data)) as f:
        spans = [(info.offset, info.offset + info.nbytes) for info in f.infos() if f.info(info.name).dtype in DENSE]
    for place, byte in enumerate(data):
        turned = {byte ^ bit for bit in BITS}
        payload = any(begin <= place < end for begin, end in spans)
        yield place, turned if payload else (turned | set(VALUES)) - {byte}


DENSE = {"float32", "float16", "bfloat16", "int8", "uint8", "float64"}


@pytest.mark.parametrize("format", builders.known())
def test_every_prefix_is_refused(format):
    def check(example):
        for size in set(range(len(example.data))) - example.prefixes:
            with pytest.raises((wm.TruncatedError, wm.UnknownFormatError, wm.LayoutError)) as caught:
                wm.open(memoryview(example.data[:size]))
            if isinstance(caught.value, wm.LayoutError):  # half of the spare half of CNN v2: a byte too many
                assert size - 1 in example.prefixes

    with limited():
        each(builders.known()[format].examples(), check, name=lambda example: example.name)
    with pytest.raises(wm.TruncatedError, match="the file is empty"):
        wm.open(memoryview(b""))


@every_file
def test_every_prefix_is_refused_or_consistent_in_lax_mode(kind):
    """With `strict=False` a prefix may open to its present part, with `verify="none"` to later errors."""
    data = FILES[kind]
    with limited():
        for size in range(len(data)):
            outcome(data[:size], strict=False)
            outcome(data[:size], verify="none")


@every_file
@pytest.mark.parametrize("most", [1_000, pytest.param(sys.maxsize, marks=pytest.mark.slow)], ids=["some", "all"])
def test_any_byte_may_be_wrong(kind, most):
    whole, outcomes = FILES[kind], set()
    data = bytearray(whole)
    with limited():
        assert outcome(whole) == ""
        changes = [(place, value) for place, values in places(whole) for value in sorted(values)]
        for place, value in changes[:: len(changes) // most + 1]:
            data[place] = value
            outcomes.add(outcome(bytes(data)))
            data[place] = whole[place]
    assert len(outcomes - {""}) > 2


@every_file
@pytest.mark.parametrize("most", [300, pytest.param(sys.maxsize, marks=pytest.mark.slow)], ids=["some", "all"])
def test_any_number_may_stand_anywhere(kind, most):
    """The same with a number at an edge, of two, four or eight bytes, at any place; checksums are made to fit."""
    whole, format, outcomes = FILES[kind], kind.partition("-")[0], set()
    changes = [(place, number) for number in EDGES for place in range(len(whole) - len(number) + 1)]
    with limited():
        for place, number in changes[:: len(changes) // most + 1]:
            outcomes.add(outcome(sealed(format, put(whole, place, number))))
    assert len(outcomes - {""}) > 2


@every_file
def test_no_wrong_byte_takes_memory(kind):
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
def test_any_byte_may_be_wrong_where_little_is_checked(kind):
    data, name = bytearray(FILES[kind]), kind.partition("-")[0]
    with limited():
        for place, byte in enumerate(FILES[kind]):
            data[place] = byte ^ 0x80
            outcome(bytes(data), format=name, verify="none")
            data[place] = byte ^ 0x01
            outcome(bytes(data), format=name, strict=False)
            data[place] = byte


def test_checksums_find_any_wrong_byte():
    whole = FILES["embd"]
    data = bytearray(whole)
    with limited():
        for place, byte in enumerate(whole):
            for bit in BITS:
                data[place] = byte ^ bit
                with pytest.raises(wm.FormatError):
                    wm.open(memoryview(data), verify="full")
            data[place] = byte


@pytest.mark.filterwarnings("ignore::weightmap.errors.ModelWarning")  # for an index that only disagrees
def test_any_byte_of_an_index_of_shards_may_be_wrong(tmp_path):
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
