"""Every attack has exactly the outcome that its case states, and no row of the threat tables is without a case."""

import contextlib
import csv
import errno
import functools
import re
import string
import tracemalloc
from collections import Counter, defaultdict

import numpy as np
import pytest
from tests.attacks import TESTS, cases, rows, sound
from tests.attacks.__main__ import OUTCOMES, write_all
from tests.attacks.rows import parts
from tests.places import ROOT
from tests.support import each, exercise, run_child

import weightmap as wm
from weightmap.core.bytes import source as sources

# `verify` has the same lines.
pytestmark = pytest.mark.filterwarnings("ignore::weightmap.ModelWarning")
CASES = cases()
REFUSED = [case for case in CASES if case.error]
LEGAL = [case for case in CASES if not case.error]


def of_every(chosen):
    """Make a test of one case one of all these cases of a kind: 5,000 items took longer than the tests."""
    kinds = defaultdict(list)
    for case in chosen:
        kinds[case.kind].append(case)

    def decorate(test):
        def run(kind, folder):
            each(kinds[kind], lambda case: test(case, folder), name=lambda case: case.id)

        run.__doc__ = test.__doc__
        return pytest.mark.parametrize("kind", kinds)(run)

    return decorate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("attacks")


def attack(case, path, **options):
    """Open the file as its format; also verify it, where opening does not find the lie."""
    with wm.open(path, format=case.format, **options) as f:
        return f.verify() if case.late or not case.error or not options.get("strict", True) else None


def test_every_row_has_a_case():
    """Each row of the threat tables has a file that attacks by it, or a test by name; and no case has another row."""
    covered = {case.row for case in CASES}
    assert covered <= set(rows())
    assert set(TESTS) <= set(rows())
    assert set(rows()) - covered - set(TESTS) == set()


def test_the_tests_that_rows_name_are_there():
    files = (ROOT / "tests").rglob("test_*.py")
    found = {
        name for path in files for name in re.findall(r"^def (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {name for names in TESTS.values() for name in names} - found == set()


def test_no_two_rows_have_one_name():
    counts = Counter(name for found in parts().values() for name in found)
    free = sorted(set(string.ascii_uppercase) - {name[0] for name in counts})
    assert not [name for name, count in counts.items() if count > 1], f"these letters are free: {free}"


def test_no_two_cases_have_one_name():
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(case.id.isprintable() and "/" not in case.id and len(case.file) < 200 for case in CASES)


@pytest.mark.parametrize("kind", sound())
def test_the_files_that_attacks_change_are_sound(kind):
    with wm.open(sound()[kind], verify="full") as f:
        assert kind.startswith(f.format)
        assert not f.verify().warnings


@functools.cache
def import_what_it_takes(kind, folder):
    """Open a first file of this kind: modules that it imports do not count as a file's memory."""
    case = next(case for case in REFUSED if case.kind == kind)
    with contextlib.suppress(wm.TensorFileError):
        attack(case, case.write(folder))


@of_every(REFUSED)
def test_the_attack_is_refused(case, folder):
    """The very class of error, the field and the byte, and a message for people; and little memory is taken for it."""
    import_what_it_takes(case.kind, folder)
    path = case.write(folder)
    tracemalloc.start()
    try:
        with pytest.raises(wm.TensorFileError) as caught:
            attack(case, path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    error = caught.value
    assert (type(error).__name__, error.field, error.offset) == (case.error, case.field, case.offset)
    assert case.format in {None, error.format}
    text = str(error)
    assert text.startswith(f"{error.path}: ")
    assert case.file in text
    assert case.says in text
    assert text.isprintable()
    assert len(text) < 1000
    assert peak < 2**21 + 32 * (len(case.data) if isinstance(case.data, bytes) else 0)


@of_every([case for case in REFUSED if case.late])
def test_what_verify_finds_opening_leaves_unread(case, folder):
    """A lie among the data does not keep a file from being opened, unless opening verifies everything.

    Quantised data that is wrong is told when it is used, too.
    """
    path = case.write(folder)
    told = pytest.raises(wm.QuantError) if case.error == "QuantError" else contextlib.suppress(wm.TensorFileError)
    with wm.open(path) as f, told:
        [np.asarray(f[name]) for name in f]
    with pytest.raises(wm.TensorFileError) as caught:
        wm.open(path, verify="full")
    told = (type(caught.value).__name__, caught.value.field, caught.value.offset)
    assert told == (case.error, case.field, case.offset)


@of_every(REFUSED)
def test_no_option_lets_an_attack_through(case, folder):
    """With a named format, strict=False or verify="none" it is refused, reported, or harmless."""
    path = case.write(folder)
    with pytest.raises(wm.TensorFileError):
        wm.open(path, verify="full")
    try:
        report = attack(case, path, strict=False)
    except wm.TensorFileError:
        assert case.odd is None
    else:  # entries of archives and their tensors are left out by name
        told = (case.odd, "left out") if case.row[0] in "ZP" else (case.odd,)
        assert any(words in warning for warning in report.warnings for words in told if words)
    with pytest.raises(wm.TensorFileError) as caught, wm.open(path, format=case.format, verify="none") as f:
        f.verify()
    assert type(caught.value).__name__ == case.error
    for options in ({"verify": "none"}, {"verify": "none", "strict": False}, {"mode": "copy"}):
        if case.size is None or "mode" not in options:
            harmless(path, case, options)


def harmless(path, case, options):
    """Open and use the file; an error of ours that names it is fine, and so is none."""
    found = case.file
    try:
        with wm.open(path, format=case.format, **options) as f:
            exercise(f)
    except wm.QuantError:
        pass  # of an array that is being decoded, which knows no file
    except wm.TensorFileError as error:
        found = str(error)
    assert case.file in found


@of_every(LEGAL)
def test_what_only_looks_like_an_attack_opens(case, folder):
    """A legal file opens, recognised or named; `verify` has its warning and no other."""
    path = case.write(folder)
    for format in (None, case.format):
        with wm.open(path, format=format) as f:
            if case.size is not None:
                continue  # gibibytes of nothing: they are looked at, and not read
            warnings = f.verify().warnings
            exercise(f)
        assert len(warnings) == (case.odd is not None), warnings
        assert all(case.odd in warning and warning.isprintable() for warning in warnings)


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))"


def test_all_attacks_within_half_a_gibibyte(tmp_path):
    write_all(tmp_path, [case for case in CASES if case.size is None])
    with (tmp_path / "attacks.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert len(rows) > 1000
    assert run_child(f"{LIMITED}\n{OUTCOMES}", tmp_path, env={"OPENBLAS_NUM_THREADS": "1"}).stdout.strip() == "[]"


def test_shards_outside_the_directory_are_never_opened(tmp_path):
    """Absolute names, names with `..` and addresses are refused although such a file exists, and none is opened."""
    outside = next(case for case in CASES if case.id == "C30-sharded-outside,-0")
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.safetensors").write_bytes(sound()["safetensors"])
    for name, data in outside.data.items():
        (folder / name).write_bytes(data)
    code = """
import sys, weightmap as wm
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
try:
    wm.open(sys.argv[1])
except wm.FormatError:
    print([path for path in opened if path.endswith("outside.safetensors")])
"""
    assert run_child(code, folder).stdout.strip() == "[]"


@pytest.mark.parametrize("code", [errno.ENODEV, errno.EINVAL, errno.ENOMEM])
def test_a_file_that_cannot_be_mapped_is_read(tmp_path, monkeypatch, caplog, code):
    """If a file system refuses to map, a file is read instead, with a log message; mode="mmap" is an OSError."""
    path = tmp_path / "\x1b]0;m.weights"  # the names of shards come from a file
    path.write_bytes(sound()["embd"])

    def refuse(*_):
        raise OSError(code, "refused")

    monkeypatch.setattr(sources.access, "map_file", refuse)
    with wm.open(path) as f:
        assert f["a"].shape == (2, 3)
    assert "cannot be mapped" in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)
    with wm.open(path, limits=wm.Limits(max_copy_bytes=8)) as f, pytest.raises(wm.LimitError) as bounded:
        f.prefetch()
    assert bounded.value.path == str(path)
    with pytest.raises(OSError, match="refused") as caught:
        wm.open(path, mode="mmap")
    assert caught.value.errno == code


def test_the_checksum_is_that_of_the_bytes_written(tmp_path):
    array = np.zeros(3 << 20, np.float32)
    changes = []

    def change(done, total):
        array[:] = done
        changes.append(done)

    wm.save(tmp_path / "m.weights", {"w": array}, progress=change)
    assert len(changes) > 2
    with wm.open(tmp_path / "m.weights", verify="full") as f:
        assert len(np.unique(f["w"])) > 1
