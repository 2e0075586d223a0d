"""What a message tells its reader to do can be done where it is printed, and helps."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
from tests import word_files as wb

import weightmap as wm
from weightmap import cli
from weightmap.cli.outcome import _option
from weightmap.cli.parser import all_commands, build_parser
from weightmap.errors import Remedy

SOURCES = Path(wm.__file__).parent
ROWS = wb.matrix(5, 4)
PLAIN = {"a": np.ones((4, 32), np.float32), "b": np.ones(4, np.float32)}


def remedies():
    """Yield the place, the option and the flag of every `Remedy` that the package makes."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Remedy":
                option = node.args[1]
                assert isinstance(option, ast.Constant), ast.unparse(node)
                flag = next((each.value.value for each in node.keywords if each.arg == "flag"), "")
                yield f"{path.name}:{node.lineno}", option.value, flag


def test_every_option_that_a_remedy_names_exists():
    functions = [wm.open, wm.save, wm.convert, wm.verify, wm.diff, wm.words.convert, wm.hub.download]
    functions += [wm.deltas.publish, wm.deltas.apply, wm.deltas.pull, wm.trust.signature, wm.trust.sign]
    keywords = {name for function in functions for name in inspect.signature(function).parameters}
    keywords |= {name for options in (wm.Output, wm.Remote) for name in inspect.signature(options).parameters}
    keywords |= {f"Pq.{name}" for name in inspect.signature(wm.words.Pq).parameters}
    flags = {flag for sub in all_commands(build_parser()).values() for flag in sub._option_string_actions}
    found = list(remedies())
    assert len(found) > 10
    for place, option, flag in found:
        remedy = Remedy("{}", option, flag=flag)
        if place.split(":")[0] != "outcome.py":  # that of the command line alone
            assert option in keywords, place
        assert _option(remedy) in flags, place


def words(data):
    def write(path):
        path.write_bytes(data)

    return write


def model(**more):
    def write(path):
        wm.save(path, PLAIN | more)

    return write


def two_matrices(path):
    matrix = np.ones((2, 4), np.float32)
    wm.save(path, {"one": matrix, "two": matrix}, format="embd", vocab=["a", "b"])


REPEATED = wb.word2vec(["a", "b", "a"], ROWS[:3])
# Name of the source, what writes it, name of the target, option of the remedy, and the value that helps; and what was
# asked for at first.
CASES = {
    "bytes that are not UTF-8": ("w.bin", words(wb.word2vec([b"a", b"\xff"], ROWS[:2])), "w.fifu", "lossy", True),
    "words that become equal": ("w.bin", words(wb.word2vec([b"\xfe", b"\xff"], ROWS[:2])), "w.fifu", "lossy", True),
    "repeated words": ("w.bin", words(REPEATED), "w.fifu", "lossy", True),
    "too many words declared": ("w.vec", words(b"3 2\na 1 2\nb 1 2\n"), "w.fifu", "strict", False),
    "too few words declared": ("w.bin", words(wb.word2vec("ab", ROWS[:2], head=b"1 4\n")), "w.fifu", "strict", False),
    "two matrices of words": ("w.weights", two_matrices, "w.txt", "include", "two"),
    "a suffix of no format": ("m.safetensors", model(), "m.xyz", "format", "embd"),
    "a suffix of words": ("w.vec", words(wb.text(wb.WORDS, ROWS, dims=True)), "w.txt", "format", "text"),
    "a directory without a format": ("w.bin", words(wb.word2vec(wb.WORDS, ROWS)), "w.vec", "format", "textdims"),
    "a type that the target lacks": ("m.safetensors", model(c=np.ones(3)), "m.weights", "dtype", None),
    "llama.cpp's names elsewhere": ("m.safetensors", model(), "m.weights", "names", "auto"),
}
BEFORE = {
    "llama.cpp's names elsewhere": {"names": "llama.cpp"},
    "two matrices of words": {"format": "text"},
}


def flags_of(options):
    """Options as the command line spells them."""
    switches = {"lossy": "--lossy", "strict": "--lenient"}
    for name, value in options.items():
        yield from [switches[name]] if name in switches else [f"--{name.replace('_', '-')}", str(value)]


@pytest.mark.parametrize("case", CASES)
def test_the_remedy_helps(case, tmp_path, capsys):
    """In Python and on the command line: the error names the option as it is spelt there, and with it all goes well."""
    name, write, target, option, value = CASES[case]
    source, before = tmp_path / name, BEFORE.get(case, {})
    write(source)
    with pytest.raises(wm.TensorFileError) as caught:
        wm.convert(source, tmp_path / target, **before)
    remedy = caught.value.remedy
    assert remedy is not None, caught.value
    assert remedy.option == option
    assert f"{option}=" in str(caught.value)
    value = remedy.value if value is None else value
    assert cli.main(["convert", str(source), str(tmp_path / target), *flags_of(before)]) in {2, 3}
    said = capsys.readouterr().err
    assert next(iter(flags_of({option: value}))) in said
    assert f"{option}=" not in said
    cured = before | {option: value}
    wm.convert(source, tmp_path / target, **cured)
    (tmp_path / target).unlink()
    assert cli.main(["convert", str(source), str(tmp_path / target), *flags_of(cured)]) == 0
    assert (tmp_path / target).exists()


def test_the_remedy_for_two_matrices_fits_what_was_asked(tmp_path, capsys):
    """Options of words leave `include` to the conversion without them, and to `Pq`."""
    two_matrices(tmp_path / "w.weights")
    source, target = str(tmp_path / "w.weights"), str(tmp_path / "w.fifu")
    with pytest.raises(wm.EncodeError, match="conversion without options for words chooses it by include="):
        wm.words.convert(source, target, normalize=False)
    pytest.importorskip("scipy")
    with pytest.raises(wm.EncodeError, match=r"Pq\.include= chooses it"):
        wm.words.convert(source, target, pq=wm.words.Pq(2))
    assert cli.main(["words", "convert", source, target, "--quantize", "pq", "--n-subquantizers", "2"]) == 2
    assert "--quantize-include chooses it" in capsys.readouterr().err
    wm.words.convert(source, target, pq=wm.words.Pq(2, include="two"))
    arguments = ["--quantize", "pq", "--n-subquantizers", "2", "--quantize-include", "two"]
    assert cli.main(["words", "convert", source, target, *arguments]) == 0
