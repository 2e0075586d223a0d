"""A checkpoint or an archive that changes between two steps of opening it: each step says so."""

import errno
import os

import numpy as np
import pytest
from tests.builders import torch as files
from tests.zip_files import Entry, archive

import weightmap as wm
from weightmap.formats._zip import Archive
from weightmap.formats.torch.program import Program
from weightmap.model.parts import parts_of
from weightmap.native import scans

TENSOR = files.Stored("0", "float32", 2, 0, (2,), (1,))
CHECKPOINT = files.zipped(files.dump({"a": TENSOR, "epoch": 3}), {"0": np.float32([1, 2]).tobytes()})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(CHECKPOINT)
    return path


def cut_before(monkeypatch, owner, step, path):
    taken = getattr(owner, step)

    def cutting(*args, **named):
        os.truncate(path, 40)
        return taken(*args, **named)

    monkeypatch.setattr(owner, step, cutting)


@pytest.mark.parametrize(
    ("owner", "step"),
    [(Program, "attempt"), (scans.Pickle, "storages"), (scans.Pickle, "tensors")],
    ids=["the program", "its storages", "its tensors"],
)
def test_a_checkpoint_that_shrinks_is_refused(monkeypatch, path, owner, step):
    cut_before(monkeypatch, owner, step, path)
    with pytest.raises(wm.TruncatedError, match="became shorter while it was being read") as caught:
        wm.open(path)
    assert caught.value.path == str(path)


def test_values_of_a_checkpoint_that_shrinks(monkeypatch, path):
    with wm.open(path) as file:
        cut_before(monkeypatch, scans.Pickle, "values", path)
        with pytest.raises(wm.TruncatedError, match="became shorter while it was being read"):
            file.metadata  # noqa: B018 - reads it


def test_a_program_that_the_system_does_not_read(monkeypatch, path):
    """The error has the number that the system gave, and the name of the file."""
    taken = Program.attempt

    def attempt(program, options):
        with path.open("ab") as file:  # a descriptor that cannot be read from
            monkeypatch.setattr(type(program.source), "scanned", (file.fileno(), None))
            return taken(program, options)

    monkeypatch.setattr(Program, "attempt", attempt)
    with pytest.raises(OSError, match="cannot be read") as caught:
        wm.open(path)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(path))


def test_arrays_of_an_archive_that_shrinks(monkeypatch, tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, a=np.arange(3.0))
    cut_before(monkeypatch, Archive, "npy_headers", path)
    with pytest.raises(wm.TruncatedError):
        wm.open(path)


def test_the_directory_of_an_archive_that_changed(tmp_path):
    program, path = files.dump({"a": TENSOR}), tmp_path / "m.pt"
    entries = [Entry(b"x/data.pkl", program), Entry(b"x/data/0", bytes(8))]
    before, after = (archive([*entries, Entry(name, data)]) for name, data in ((b"x/a", b"four"), (b"x/ab", b"to")))
    assert len(before) == len(after)
    path.write_bytes(before)
    with wm.open(path) as file:
        source, content, _ = parts_of(file)
        assert len(content.sums(source)) == 3
        path.write_bytes(after)
        with pytest.raises(wm.LayoutError, match="changed after the file was opened"):
            content.sums(source)
