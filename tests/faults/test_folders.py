"""No folder stays behind, wherever an exception comes, from an upload or a conversion to GGUF."""

import tempfile
from pathlib import Path

import pytest
from tests.llama import models
from tests.points import EACH, Interrupter

import weightmap as wm
from weightmap.core.bytes.atomic import scratch_folder

# In finalisers of generators and references: Python drops such an exception, and a signal's too.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The system's folder for temporary files, empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_folder_of_the_moment(scratch):
    def use():
        with scratch_folder() as room:
            (Path(room) / "inner").mkdir()
            for name in ("a", "inner/b"):
                (Path(room) / name).write_bytes(b"x")

    counting = Interrupter()
    counting.run(use)
    assert not list(scratch.iterdir())
    interrupted = 0
    for number in range(counting.count):
        interrupted += Interrupter(number).run(use)
        assert not list(scratch.iterdir()), number
    assert interrupted > 50


def test_a_conversion_to_gguf(scratch, tmp_path):
    """The target is the old file or the new one, and nothing is beside it or anywhere else."""
    pytest.importorskip("gguf")
    name = "Qwen2ForCausalLM"
    source = models.write(tmp_path / "model", models.config_of(name), models.tensors_of(name))
    (source / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    target = tmp_path / "out" / "x.gguf"
    target.parent.mkdir()
    for _ in range(2):  # whatever is loaded at the first time is there
        wm.convert(source, target)
    new = target.read_bytes()
    counting = Interrupter()
    counting.run(lambda: wm.convert(source, target))
    assert target.read_bytes() == new
    interrupted = 0
    for number in range(0, counting.count, 29 * EACH):
        target.write_bytes(b"old")
        interrupted += Interrupter(number).run(lambda: wm.convert(source, target))
        assert target.read_bytes() in {b"old", new}
        assert not list(scratch.iterdir())
        assert list(target.parent.iterdir()) == [target]
    assert interrupted > 20
