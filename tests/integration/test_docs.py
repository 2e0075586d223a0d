"""The documentation is true: its examples run, its links lead somewhere."""

import doctest
import importlib
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import builders
from tests.places import ROOT

from weightmap import cli
from weightmap.core.formats import by_name

PACKAGE = ROOT / "src" / "weightmap"
# Written by `make docs`.
GENERATED = {"api.md", "file-formats.md"}
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(path for path in (ROOT / "docs").glob("*.md") if path.name not in GENERATED),
    ]
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), globs={})
    assert not failed


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_examples_of_the_first_pages_run(page, tmp_path, monkeypatch, capsys):
    text = (ROOT / page).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page, "exec"), {})
    printed = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert printed
    assert capsys.readouterr().out == "".join(printed)


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], "README.md", "exec"), {})
    commands = re.findall(r"^weightmap (.*?) *#", text, re.MULTILINE)
    assert len(commands) == 3
    for line in commands:
        assert cli.main(line.split()) == 0, line


def test_the_example_of_quantisation_runs(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "quantisation.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(block, "quantisation.md", "exec"), names)
    q = names["q"]
    assert (q.scheme, q.shape, q.block_size) == ("int4_block", (512, 384), 32)
    assert (q.scales.shape, q.codes.shape, names["rows"].shape) == ((6144,), (6144, 16), (3, 384))
    assert [info.name for info in names["report"].quantized] == ["bias"]
    names["f"].close()


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Run the Python of a page in an empty folder, one block after another; give the names that it has made."""
    monkeypatch.chdir(tmp_path)

    def run(page):
        names = {}
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL):
            exec(compile(block, page, "exec"), names)
        return names

    return run


GUIDES = {
    "safetensors.md": "safetensors",
    "torch.md": "torch",
    "jax.md": "jax",
    "memmap.md": "numpy",
    "pool.md": "numpy",
}


@pytest.mark.parametrize("page", GUIDES)
def test_the_snippets_of_a_guide_run(page, play):
    pytest.importorskip(GUIDES[page])
    assert play(page)


def test_the_example_of_reports_runs(play):
    assert play("report.md")["sound"] is True
    assert Path("report.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_the_example_of_checkpoints_runs(play, tmp_path):
    shutil.copytree(ROOT / "tests" / "checkpoints" / "groundtruth" / "awq_gemm", tmp_path / "Qwen2.5-7B-Instruct-AWQ")
    names = play("checkpoints.md")
    assert (names["w"].scheme, names["w"].shape, len(names["w"].pieces)) == ("awq gemm", (32, 128), 3)
    names["f"].close()


def test_the_example_of_gguf_runs(play):
    names = play("gguf.md")
    f, q = names["f"], names["q"]
    assert (f.metadata["llama.block_count"], f.vocab[2], f.vocab.special_ids) == (1, "b", {"bos": 0})
    assert (q.scheme, names["rows"].shape, names["half"].dtype) == ("q6_k", (2, 512), "float16")
    with names["wm"].open("more.gguf") as more:
        assert more.metadata["general.name"] == "tiny"
        assert more["blk.0.ffn_up.weight"].payload.tobytes() == q.payload.tobytes()
    f.close()


def test_the_example_of_words_runs(play, capsys):
    play("words.md")
    assert capsys.readouterr().out == "3 ['a', 'b', 'c'] [0. 1. 0.]\n"


def test_the_examples_of_serving_run(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if 'mode="sealed"' not in block or sys.platform == "linux":
            exec(compile(block, "serving.md", "exec"), names)
    assert "(128, 256) (512, 64)\n" in capsys.readouterr().out
    assert names["report"].nbytes == names["plan"].nbytes == 8 * 512 * 256 * 4
    commands = re.findall(r"^weightmap (.*)$", "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)), re.MULTILINE)
    assert len(commands) == 4
    for line in commands:
        assert cli.main(line.partition("#")[0].split()) == 0, line


def test_the_table_of_formats_is_that_of_the_builders():
    """README has a row for every format, as its builder describes it, and says whether it is written."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for builder in builders.known().values():
        written = "no" if by_name(builder.format).plan is None else "yes"
        assert f"\n| {builder.title} | `{builder.suffix}` | yes | {written} | {builder.holds} |\n" in text


def test_the_versions_of_the_readme_are_those_that_its_targets_install():
    text = (ROOT / "README.md").read_text("utf-8").partition("### Run with")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `make ([a-z]+)-test` \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 5
    for target, versions in rows:
        pinned = "".join(path.read_text("utf-8") for path in (ROOT / "requirements").glob(f"{target}*.txt"))
        absent = [each for each in versions.split(", ") if f"\n{each.replace(' ', '==')}" not in f"\n{pinned}"]
        assert not absent, target


@pytest.mark.skipif(sys.maxsize < 1 << 40, reason="an address space of 64 bits")
def test_forty_gib_open_without_that_much_memory(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "larger_than_memory.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("for 40 GiB, value 0.0") == 2


def test_the_pages_of_the_interface_have_every_public_name():
    assert runpy.run_path(str(ROOT / "docs" / "conf.py"))["api_pages"]()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)[)#]", text)
    assert not [target for target in targets if not (document.parent / target).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_documents_tell_to_run_is_there(document):
    text = document.read_text(encoding="utf-8")
    commands = " ".join(re.findall(r"(?:pytest|python|mpiexec|torchrun) [^`\n]*", text))
    paths = re.findall(r"\b(?:tests|examples|benchmarks)/[\w./]*\w", commands)
    assert not [path for path in paths if not (ROOT / path).exists()]
    assert not [name for name in re.findall(r"`(test_\w+\.py)`", text) if not [*(ROOT / "tests").rglob(name)]]
    sources = [path for path in re.findall(r"`((?:\w+/)+\w+\.(?:py|c|h))`", text) if not path.endswith("/toy.py")]
    assert not [path for path in sources if not any((base / path).exists() for base in (ROOT, PACKAGE))]
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "Makefile", *ROOT.glob("*.mk")))
    targets = re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE)
    assert not [target for target in targets if not re.search(rf"^{target}:", rules, re.MULTILINE)]


def test_what_the_architecture_page_names_is_there():
    """Each file that docs/architecture.md names exists, and beside it each function and class; each room is there."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*)`(?:, `([A-Za-z_]\w+(?:\.\w+)?)`)?", text)
    assert len(named) > 40
    for path, name in named:
        found = [base / path for base in (ROOT, PACKAGE) if (base / path).exists()]
        assert found, path
        if name:
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", found[0].read_text(encoding="utf-8")), (path, name)
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= {path.strip("/") for path, _ in named}
