"""A message's advice can be followed where it is printed, and helps."""

import ast
import hashlib
import inspect
import re
import shutil
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests import word_files as wb
from tests.builders import gguf
from tests.places import ROOT

import weightmap as wm
import weightmap.pool.pool
from weightmap import cli
from weightmap.cli.parser import all_commands, build_parser

SOURCES = Path(wm.__file__).parent
ROWS = wb.matrix(5, 4)
PLAIN = {"a": np.ones((4, 32), np.float32), "b": np.ones(4, np.float32)}


def texts(path):
    """Yield line and text of every string in a source that may be printed: docstrings, keys and names are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            skipped.add(id(node.body[0].value) if isinstance(node.body[0], ast.Expr) else 0)
        if isinstance(node, ast.JoinedStr):
            skipped |= set(map(id, node.values))
    for node in ast.walk(tree):
        pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
        if id(node) in skipped or not all(isinstance(p, ast.Constant | ast.FormattedValue) for p in pieces):
            continue
        text = "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in pieces)
        if isinstance(getattr(pieces[0], "value", None), str) or len(pieces) > 1:
            yield node.lineno, text


@cache
def messages():
    """Return place and text of every string in the sources that is more than a word, but for pages of HTML."""
    return [
        (f"{path.relative_to(SOURCES)}:{line}", text)
        for path in sorted(SOURCES.rglob("*.py"))
        for line, text in texts(path)
        if " " in text.strip() and "</" not in text and "<span" not in text
    ]


def collected(pattern):
    """Return place, text and match of everything in messages that a pattern finds."""
    return [(place, text, match) for place, text in messages() for match in re.finditer(pattern, text)]


# Whose keywords a bare ``name=`` in a message of a room means; ``function(name=`` names its function itself.
SPEAKERS = {
    "compat": ("save", "open"),
    "conversion": ("convert", "Output", "Run", "verify", "diff"),
    "core/formats": ("open", "save", "convert"),
    "core/model/reading": ("f.read",),
    "core/model/saving": ("save",),
    "core/model": ("open",),
    "core/arguments": ("open", "save", "convert", "quantize", "verify", "diff", "plan"),
    "core/quant": ("core.quant.blocks.QuantizedTensor.__array__",),
    "deltas": ("deltas.publish", "deltas.apply", "deltas.pull"),
    "dlpack": ("open",),
    "llama": ("convert",),
    "plans": ("open", "plan", "ReadPlan.run"),
    "pool": ("open", "pool.pool.Pool.hold"),
    "remote": ("Remote",),
    "torch": ("open", "torch.load_file", "torch.load_into", "torch.to_torch"),
    "trust": ("open", "trust.signature", "trust.sign"),
    "words": ("words.convert",),
}
FOREIGN_OPTIONS = {"--mistral-format"}  # of a script of llama.cpp
LISTED = ("Limits(max_header", "TensorSpec(", "crc32(data")  # not a message: a repr, or a docstring of C


@cache
def resolved(name):
    """Return the object of a dotted name: in the package, in its examples' environment, or of a handle."""
    owners = {"f": wm.TensorFile, "plan": wm.ReadPlan, "wm": wm, "weightmap": wm}
    first, *others = name.split(".")
    if first not in owners:
        owners, others = {first: wm if hasattr(wm, first) else wm.words}, [first, *others]
    thing = owners[first]
    for attribute in others:
        thing = getattr(thing, attribute)
    return thing


def keywords_of(function):
    if inspect.isclass(function):
        function = function.__init__ if "__init__" in vars(function) else function
    return set(inspect.signature(function).parameters)


def test_every_option_of_a_message_exists():
    flags = {flag for sub in all_commands(build_parser()).values() for flag in sub._option_string_actions}
    flags |= set(build_parser()._option_string_actions) | FOREIGN_OPTIONS
    found = collected(r"(?<![\w-])--[a-z][\w-]*")
    assert len(found) > 20
    assert not [(place, match[0]) for place, _, match in found if match[0] not in flags]


def test_every_command_of_a_message_exists():
    commands = all_commands(build_parser())
    found = collected(r"`weightmap ([a-z ]+)")
    assert found
    for place, _, match in found:
        assert any(f"{match[1]} ".startswith(f"{command} ") for command in commands), (place, match[0])


def test_every_package_of_a_message_is_an_extra():
    """weightmap is on no index, so messages name a checkout; packages without an extra are named themselves."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    found = collected(r"pip install (.*)")
    assert len(found) > 10
    for place, _, match in found:
        extra = re.fullmatch(r"'\.\[(\w+)\]' in a checkout", match[1])
        assert match[1] in {"ml_dtypes", "onnxruntime", "{}"} if extra is None else extra[1] in extras, place
    assert not [place for place, *_ in collected(r"weightmap\[")]
    assert not [place for place, _, match in collected(r"extra \[(\w+)\]") if match[1] not in extras]


def test_every_name_of_a_message_exists():
    found = collected(r"\b(?:weightmap|wm|f|plan)(?:\.[A-Za-z_]+)+")
    assert len(found) > 10
    for place, _, match in found:
        try:
            assert resolved(match[0]) is not None, place
        except wm.errors.MissingDependencyError:
            assert match[0] in {"weightmap.dcp", "weightmap.jax"}, place


def test_every_keyword_of_a_message_exists():
    """As ``function(keyword=``, or bare: then a function that prints this message has it."""
    pip_and_pages = r"(?:([A-Za-z_][\w.]*)\((?:[^()=]*, )?)?(?<![\w.'\"])([a-z_]+)=(?!=)"
    found = collected(pip_and_pages)
    assert len(found) > 30
    for place, text, match in found:
        if text.startswith(LISTED):
            continue
        function, keyword = match.groups()
        if function == "save_model":  # compat's, in safetensors' words, and needs torch
            continue
        if function:
            assert keyword in keywords_of(resolved(function)), (place, text)
            continue
        room = max((room for room in SPEAKERS if place.startswith(room)), key=len, default=None)
        assert room is not None, (place, text)
        known = set().union(*(keywords_of(resolved(name)) for name in SPEAKERS[room]))
        assert keyword in known, (place, text)


def remedies():
    """Yield place, option and the longest fixed piece of the text of every `Remedy` that the package makes."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "Remedy":
                said = "" if isinstance(node.args[0], ast.Call) else ast.unparse(node.args[0]).strip("f'")
                piece = max(re.split(r"\{+.*?\}+|,", said), key=len).strip()
                yield f"{path.name}:{node.lineno}", ast.literal_eval(node.args[1]), piece


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


def unknown_type(path):
    """A GGUF file with a tensor of a type that is not known."""
    head = gguf.header([gguf.Info("a", (2,), 139, 0)])
    path.write_bytes(head + gguf.padding(len(head)) + bytes(32))


def versioned(path):
    wm.save(path, {"layer.0.weight": np.ones((4, 1, 4, 4), np.float16)}, metadata={"version": 9})


AWQ = ROOT / "tests" / "checkpoints" / "groundtruth" / "awq_gemm"


def codes(path):
    """A model directory with a quantised checkpoint."""
    shutil.copytree(AWQ, path)


def codes_alone(path):
    codes(path)
    (path / "config.json").unlink()


def parameters(source, config):
    with wm.open(source, config=config) as f:
        return f.weights


def weights_of(source, target):
    with wm.open(source) as f:
        return wm.convert(f.weights, target, dtype="float16")


def converting(**options):
    return lambda source, target: wm.convert(source, target, **options)


class Case(NamedTuple):
    """A source, the failing operation, and the remedy: as a call in Python, and as options."""

    source: str
    write: Callable
    target: str
    said: str
    cure: Callable
    flags: list[str]
    start: Callable = converting()
    command: str = "convert"
    before: tuple[str, ...] = ()


LOSSY = Case(
    *("w.bin", None, "w.fifu", "weightmap.words.convert(lossy=True)"),
    *(lambda source, target: wm.words.convert(source, target, lossy=True), ["--lossy"]),
)
DECLARED = LOSSY._replace(
    said="weightmap.words.convert(strict=False)",
    cure=lambda source, target: wm.words.convert(source, target, strict=False),
    flags=["--lenient"],
)
CASES = {
    "bytes that are not UTF-8": LOSSY._replace(write=words(wb.word2vec([b"a", b"\xff"], ROWS[:2]))),
    "words that become equal": LOSSY._replace(write=words(wb.word2vec([b"\xfe", b"\xff"], ROWS[:2]))),
    "repeated words": LOSSY._replace(write=words(wb.word2vec(["a", "b", "a"], ROWS[:3]))),
    "too many words declared": DECLARED._replace(source="w.vec", write=words(b"3 2\na 1 2\nb 1 2\n")),
    "too few words declared": DECLARED._replace(write=words(wb.word2vec("ab", ROWS[:2], head=b"1 4\n"))),
    "bytes that are not UTF-8, in words convert": LOSSY._replace(
        write=words(wb.word2vec([b"a", b"\xff"], ROWS[:2])), start=wm.words.convert, command="words convert"
    ),
    "two matrices of words": Case(
        *("w.weights", two_matrices, "w.txt", "include=", converting(format="text", include="two")),
        *(["--include", "two"], converting(format="text"), "convert", ("--format", "text")),
    ),
    "a suffix of no format": Case(
        *("m.safetensors", model(), "m.xyz", "format=", converting(format="embd"), ["--format", "embd"])
    ),
    "a directory whose name has a suffix": Case(
        *("awq", codes, "out.v2", "give format=, or end the name of a directory in a slash"),
        *(converting(format="safetensors"), ["--format", "safetensors"]),
    ),
    "a suffix of words": Case(
        *("w.vec", words(wb.text(wb.WORDS, ROWS, dims=True)), "w.txt"),
        *("format='text", converting(format="textdims"), ["--format", "textdims"]),
    ),
    "a type that the target lacks": Case(
        *("m.safetensors", model(c=np.ones(3)), "m.weights"),
        *("dtype='float32'", converting(dtype="float32"), ["--dtype", "float32"]),
    ),
    "a tensor that the target lacks": Case(
        *("m.safetensors", model(c=np.ones(3, np.complex64)), "m.weights"),
        *("exclude=", converting(exclude="c"), ["--exclude", "c"]),
    ),
    "llama.cpp's names elsewhere": Case(
        *("m.safetensors", model(), "m.weights", "names='llama.cpp'", converting(), []),
        *(converting(names="llama.cpp"), "convert", ("--names", "llama.cpp")),
    ),
    "a version that the target lacks": Case(
        *("m.amb", versioned, "m.bin", "output=Output(layout=...)"),
        *(converting(format="cnn_v2", output=wm.Output("v1")), ["--layout", "v1"], converting(format="cnn_v2")),
        *("convert", ("--format", "cnn_v2")),
    ),
    "codes without scales": Case(
        *("awq", codes, "m.safetensors", "f.weights", weights_of),
        *(["--weights"], converting(dtype="float16"), "convert", ("--dtype", "float16")),
    ),
    "codes without a configuration": Case(
        *("awq", codes_alone, "", "open(..., config=...)", lambda source, _: parameters(source, AWQ / "config.json")),
        *(
            ["--config", f"{AWQ / 'config.json'}"],
            lambda source, _: parameters(source, None),
            "inspect",
            ("--weights",),
        ),
    ),
    "a type of GGUF that is not known": Case(
        *("m.gguf", unknown_type, "", "open(..., strict=False)", lambda source, _: wm.open(source, strict=False)),
        *(["--lenient"], lambda source, _: wm.open(source), "inspect"),
    ),
}


# Options of remedies that other suites take, with a server or a package that may be missing.
ELSEWHERE = {
    "redirects": "remote/test_requests.py",
    "unversioned": "remote/test_requests.py",
    "deadline": "remote/test_requests.py",
    "base_version": "deltas/test_publish.py",
    "base": "deltas/test_pull.py",
    "in_place": "deltas/test_pull.py",
    "allow_symlinks": "trust/test_signing.py",
    "key": "trust/test_signing.py",
}


@pytest.mark.parametrize("case", CASES)
def test_the_remedy_helps(case, tmp_path, capsys):
    """In Python and on the command line: the error names the remedy, and with it the operation succeeds."""
    case = CASES[case]
    source, target = tmp_path / case.source, tmp_path / case.target
    case.write(source)
    with pytest.raises(wm.TensorFileError) as caught:
        case.start(source, target)
    assert case.said in str(caught.value)
    argv = [*case.command.split(), str(source), *([str(target)] if case.target else [])]
    assert cli.main([*argv, *case.before]) in {2, 3}
    said = capsys.readouterr().err
    assert (case.flags[:1] or ["--names"])[0] in said
    assert case.said not in said
    result = case.cure(source, target)
    if case.target:
        target.unlink()
    else:
        result.close()
    assert cli.main([*argv, *(case.before if case.flags else []), *case.flags]) == 0
    assert target.exists()


def test_a_digest_is_compared_where_none_is_recorded(tmp_path, capsys):
    path = tmp_path / "m.safetensors"
    wm.save(path, PLAIN)
    trust = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    with pytest.raises(wm.errors.TrustError, match=r"; open\(\.\.\., trust='sha256:\.\.\.'\) compares one file"):
        wm.open(path, trust="recorded")
    wm.open(path, trust=trust).close()
    assert cli.main(["verify", str(path), "--trust", "recorded"]) == 1
    assert "; --trust sha256:... compares one file with a digest that you have" in capsys.readouterr().out
    assert cli.main(["verify", str(path), "--trust", trust]) == 0


def test_a_folder_is_compared_with_a_list_where_a_file_has_no_digest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    wm.save("model/model.safetensors", PLAIN)
    digest = hashlib.sha256((tmp_path / "model/model.safetensors").read_bytes()).hexdigest()
    with pytest.raises(wm.errors.TrustError, match=r"; open\(\.\.\., trust='LIST'\) takes what sha256sum"):
        wm.open("model", trust="recorded")
    assert cli.main(["verify", "model", "--trust", "recorded"]) == 1
    assert "; --trust LIST takes what sha256sum prints for all files of the folder" in capsys.readouterr().out
    (tmp_path / "LIST").write_text(f"{digest}  model.safetensors\n")
    wm.open("model", trust="LIST").close()
    assert cli.main(["verify", "model", "--trust", "LIST"]) == 0


def test_a_name_of_an_index_gets_shards(tmp_path):
    index = tmp_path / "m.safetensors.index.json"
    with pytest.raises(wm.EncodeError, match="; max_shard_size= writes shards and their index"):
        wm.save(index, PLAIN)
    wm.save(index, PLAIN, max_shard_size="1GB")
    assert index.exists()


def test_every_remedy_is_taken(tmp_path):
    """Here, or where another suite quotes the message; and no option is left that no suite takes."""
    suites = {path: path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    quoted = "".join(suites.values())
    for number, case in enumerate(CASES.values()):
        source, target = tmp_path / f"{number}{case.source}", tmp_path / case.target
        case.write(source)
        with pytest.raises(wm.TensorFileError) as caught:
            case.start(source, target)
        quoted += str(caught.value)
    taken = " ".join(f"{case.said} {' '.join(case.flags)}" for case in CASES.values())
    for place, option, piece in remedies():
        assert piece in quoted, place
        name = option.rpartition(".")[2]
        if name in ELSEWHERE:
            assert f"{name}=" in suites[ROOT / "tests" / ELSEWHERE[name]], place
        elif option not in {"lenient", "max_shard_size", "trust"}:
            assert f"{name}=" in taken or f"--{name}" in taken, place


def test_the_remedy_for_two_matrices_fits_what_was_asked(tmp_path, capsys):
    """With options of words, `include` belongs to the conversion without them, and to `Pq`."""
    two_matrices(tmp_path / "w.weights")
    source, target = str(tmp_path / "w.weights"), str(tmp_path / "w.fifu")
    with pytest.raises(wm.EncodeError, match=r"weightmap\.convert\(include=\.\.\.\) chooses it"):
        wm.words.convert(source, target, normalize=False)
    wm.convert(source, target, include="two")
    assert cli.main(["words", "convert", source, target, "--no-normalize"]) == 2
    assert "; weightmap convert --include chooses it" in capsys.readouterr().err
    pytest.importorskip("scipy")
    with pytest.raises(wm.EncodeError, match=r"Pq\(include=\.\.\.\) chooses it"):
        wm.words.convert(source, target, pq=wm.words.Pq(2))
    assert cli.main(["words", "convert", source, target, "--quantize", "pq", "--n-subquantizers", "2"]) == 2
    assert "--quantize-include chooses it" in capsys.readouterr().err
    wm.words.convert(source, target, pq=wm.words.Pq(2, include="two"))
    arguments = ["--quantize", "pq", "--n-subquantizers", "2", "--quantize-include", "two"]
    assert cli.main(["words", "convert", source, target, *arguments]) == 0
