"""The command line: its output, its streams and its exit statuses."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.builders import Tensor, embd, tensor
from tests.builders import safetensors as st
from tests.core.formats.finalfusion.test_finalfusion import ATTACKS
from tests.support import HANG

import weightmap
from weightmap import cli
from weightmap.cli import parser

NASTY = {
    "escape": "red\x1b[31m",
    "clipboard": "\x1b]52;c;aGk=\x07",
    "link": "\x1b]8;;http://example.org\x1b\\text",
    "c1": "csi\x9b31m",
    "delete": "a\x7fb",
    "newline": "two\nlines\r",
    "reversed": "a\u202egnp.exe\u2066",
    "markup": "[red]b[/red][link=x]",
    "wide": "重み.é",
}


def floats(*values):
    return tensor(np.float32(values))


WORDS = ["[PAD]", "[UNK]", "word\x1b[2J", "hello"]


COMMANDS = parser.all_commands(parser.build_parser())
# The commands that print a JSON document with --json.
WITH_JSON = [name for name, command in COMMANDS.items() if "--json" in command.format_usage()]


@pytest.fixture
def words_file(tmp_path):
    path = tmp_path / "words.weights"
    matrix = tensor(np.arange(8, dtype=np.float32).reshape(4, 2))
    path.write_bytes(embd.Draft([("e", matrix)], vocab=WORDS, ids=(0, 1, 2, 3, 0)).seal())
    return path


@pytest.fixture
def write(tmp_path):
    def write(name="model.safetensors", tensors=None, metadata=None):
        if tensors is None:
            matrix = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
            tensors = {"weight": matrix, "half": Tensor("bfloat16", (2,), b"\x80\x3f\x00\xc0")}
        path = tmp_path / name
        path.write_bytes(st.build(tensors, metadata))
        return str(path)

    return write


def start(*argv, **options):
    command = [sys.executable, "-m", "weightmap", *map(str, argv)]
    return subprocess.run(command, timeout=HANG, check=False, **{"capture_output": True, **options})


def on_terminal(*argv):
    """Run a command on a pseudo-terminal 100 columns wide; return its exit status and its output to the terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "weightmap", *map(str, argv)]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        sent = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not part:
                break
            sent += part
        process.wait(timeout=HANG)
    os.close(leader)
    return process.returncode, sent.decode()


def is_printable(text):
    """No control character other than the newlines of the program's own, and nothing that changes direction."""
    return not any(
        (ord(c) < 0x20 and c != "\n") or 0x7F <= ord(c) <= 0x9F or c in "\u2028\u2029\u202e\u2066" for c in text
    )


def test_inspect_shows_format_size_metadata_tensors_and_totals(write, run):
    path = write(metadata={"author": "somebody"})
    status, out, err = run("inspect", path)
    assert (status, err) == (0, "")
    assert path in out
    assert "safetensors" in out
    assert "author  somebody" in out
    rows = [line.split() for line in out.splitlines()]
    offset = Path(path).stat().st_size - 28
    assert ["weight", "float32", "[2,", "3]", str(offset), "24"] in rows
    assert ["half", "bfloat16", "[2]", str(offset + 24), "4"] in rows
    assert ["float32", "1", "24", "bytes"] in rows


def test_inspect_shows_tensors_first_and_folds_training_state(write, run):
    """An optimiser's state is one line, except with --flat or a glob; so are the items of a list in metadata."""
    names = ["model.weight", *(f"optimizer.state.{i}.exp_avg" for i in range(3))]
    listed = {f"optimizer.param_groups.0.params.{i}": str(i) for i in range(12)}
    path = write(tensors=dict.fromkeys(names, floats(1, 2)), metadata={"epoch": "3", **listed})
    for view in ([], ["--tree"]):
        out = run("inspect", path, *view)[1]
        assert re.search(
            "^parameters +2 elements of 32.000 bits; not counted: 6 elements of training", out, re.MULTILINE
        )
        assert "... and 3 tensors of training state, 24 bytes: --flat lists them\n" in out
        assert "exp_avg" not in out
        assert out.index("training state, 24") < out.index("\nmetadata\n")
        assert re.search(
            r"^  optimizer.param_groups.0.params.\{0…11\}  0, 1, 2, 3, 4, 5, 6, 7, \.\.\.$", out, re.MULTILINE
        )
    for more in (["--flat"], ["--include", "*"]):
        assert [name in run("inspect", path, *more)[1] for name in names] == [True] * 4
    document = json.loads(run("inspect", path, "--json")[1])
    assert document["weight"]["parameters"] == 2
    assert len(document["tensors"]) == 4
    Path(path).write_bytes(st.build({"optimizer.state.0.exp_avg": floats(1)}))
    assert "exp_avg" in run("inspect", path)[1]


@pytest.mark.parametrize("length", [199, 200, 201, 60_000])
def test_columns_are_bounded(write, run, tmp_path, length):
    long, many = "L" * length, 300
    tensors = {f"n{i}": floats(i) for i in range(many)} | {long: floats(1)}
    a = write("a.safetensors", tensors, {f"k{i}": "v" for i in range(many)} | {long: long})
    b = write("b.safetensors", {f"m{i}": floats(i) for i in range(many)}, {})
    c = write(
        "c.safetensors",
        {name: Tensor("float32", (1, 1), value.data) for name, value in tensors.items()},
        {long: "other"},
    )
    for argv in (["inspect", a], ["diff", a, b], ["diff", a, c], ["verify", "-v", a]):
        _, out, err = run(*argv)
        assert 0 < max(map(len, out.splitlines())) < 500, argv
        assert err == ""
    for argv in (["quantize", c, tmp_path / "q.amb", "--scheme", "int8"], ["inspect", tmp_path / "q.amb"]):
        _, out, _ = run(*argv)
        assert 0 < max(map(len, out.splitlines())) < 500, argv
    _, out, _ = run("inspect", a)
    assert (f"{'L' * 199}… ({length:,} characters)" in out) is (length > 200)
    assert (long in out) is (length <= 200)
    assert long in (tensor["name"] for tensor in json.loads(run("inspect", "--json", a)[1])["tensors"])


def test_a_table_that_is_printed_in_pieces_is_one_table(tmp_path, run):
    weightmap.save(
        tmp_path / "m.safetensors", {f"t{'x' * (i % 9)}{i}": np.zeros(i % 11, np.float32) for i in range(600)}
    )
    table = run("inspect", tmp_path / "m.safetensors")[1].split("\n\n")[1].splitlines()
    assert len(table) == 601
    assert {line.find("float32") for line in table[1:]} == {table[0].find("dtype")}
    assert len(set(map(len, table))) == 1  # the last column is aligned to the right


def test_inspect_json_holds_everything(write, run):
    path = write(metadata={"k": "v"})
    status, out, err = run("inspect", path, "--json")
    document = json.loads(out)
    offset = Path(path).stat().st_size - 28
    assert (status, err) == (0, "")
    assert document["schema"] == 1
    assert (document["path"], document["format"]) == (path, "safetensors")
    assert document["nbytes"] == Path(path).stat().st_size
    assert document["metadata"] == {"k": "v"}
    assert document["vocab"] is None
    assert document["tensors"] == [
        {"name": "weight", "dtype": "float32", "shape": [2, 3], "offset": offset, "nbytes": 24},
        {"name": "half", "dtype": "bfloat16", "shape": [2], "offset": offset + 24, "nbytes": 4},
    ]
    assert document["totals"]["bfloat16"] == {"tensors": 1, "nbytes": 4}


def test_dates_in_metadata_are_kept_and_shown(put, run):
    """Dates and times are objects; the command line prints them as texts, also as JSON."""
    path = put(ATTACKS["dates"].data, "t.fifu")
    with weightmap.open(path) as f:
        assert f.metadata["day"].year == 2020
    status, out, _ = run("inspect", path, "--json")
    assert (status, json.loads(out)["metadata"]["day"]) == (0, "2020-01-02")


def test_a_directory_of_shards_is_one_model(write, run, tmp_path):
    write("one.safetensors", {"a": floats(1, 2)})
    write("two.safetensors", {"b": floats(3)})
    index = {"metadata": {"total_size": 12}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    status, out, _ = run("inspect", "--json", tmp_path)
    assert status == 0
    tensors = [(tensor["name"], tensor["shard"]) for tensor in json.loads(out)["tensors"]]
    assert tensors == [("a", "one.safetensors"), ("b", "two.safetensors")]
    rows = [line.split() for line in run("inspect", tmp_path)[1].splitlines()]
    offset = str((tmp_path / "two.safetensors").stat().st_size - 4)
    assert ["name", "dtype", "shape", "shard", "offset", "bytes"] in rows
    assert ["b", "float32", "[1]", "two.safetensors", offset, "4"] in rows
    assert "total_size  12" in run("inspect", tmp_path)[1]
    assert run("verify", tmp_path)[0] == 0
    assert run("export", tmp_path, "b", tmp_path / "b.npy")[0] == 0
    assert np.load(tmp_path / "b.npy").tolist() == [3]


def test_a_stream_that_lacks_a_character_gets_it_escaped(write):
    path = write(tensors={"重み": floats(1)})
    done = start("inspect", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert rb"\u91cd\u307f" in done.stdout


def layered(layers=3):
    """Return a model of alike layers, but one that has another shape, and tensors beside them."""
    tensors = {"embed.weight": Tensor("float32", (4, 2), bytes(32))}
    for i in range(layers):
        rows = 3 if i == 1 else 2
        tensors |= {
            f"layers.{i}.up.weight": Tensor("float32", (rows, 2), bytes(8 * rows)),
            f"layers.{i}.up.bias": floats(*range(rows)),
        }
    return tensors | {"norm": floats(1)}


def test_inspect_shows_a_tree_on_a_terminal_and_lines_in_a_pipe(write, run):
    path = write(tensors=layered())
    status, tree, _ = run("inspect", "--tree", path)
    assert status == 0
    lines = [line.split() for line in tree.splitlines()]
    assert ["layers", "████████▍···", "84", "B", "6"] in lines
    at = lines.index(["{0,", "2}.up", "████▊·······", "48", "B", "4"])
    assert lines[at + 2] == ["bias", "█▌··········", "16", "B", "2", "float32", "[2]"]
    assert lines[at + 3] == ["1.up", "███▌········", "36", "B", "2"]
    assert "offset" not in tree
    flat = run("inspect", path)[1]
    assert flat == run("inspect", "--flat", path)[1]
    assert "layers.2.up.bias" in flat
    assert "layers.2.up.bias" not in tree
    status, sent = on_terminal("inspect", path)
    assert (status, "{0, 2}.up" in sent, "layers.2.up.bias" in sent) == (0, True, False)
    status, sent = on_terminal("inspect", "--flat", path)
    assert (status, "{0, 2}.up" in sent, "layers.2.up.bias" in sent) == (0, False, True)
    assert run("inspect", "--flat", "--tree", path)[0] == 2


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """Return bash's completions of the last of some words, in a folder with one file."""
    folder = tmp_path_factory.mktemp("completions")
    (folder / "model.gguf").touch()
    command = [sys.executable, "-m", "weightmap", "--print-completion", "bash"]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    script += """
    COMP_WORDS=(weightmap "$@"); COMP_CWORD=$#; _shtab_weightmap; printf '%s\n' "${COMPREPLY[@]}"
    """

    def offers(*words):
        done = subprocess.run(
            ["bash", "-c", script, "bash", *words], cwd=folder, capture_output=True, text=True, check=True
        )
        return set(done.stdout.split())

    return offers


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes_commands_options_values_and_paths(completed):
    assert completed("conv") == {"convert"}
    assert completed("") == {name.split()[0] for name in COMMANDS}
    assert completed("diff", "--tens") == {"--tensors-only"}
    assert {"int4_block", "int5_block"} <= completed("quantize", "--scheme", "int")
    assert completed("--print-completion", "f") == {"fish"}
    assert completed("cache", "w") == {"warm"}
    assert completed("help", "insp") == {"inspect"}
    assert completed("inspect", "mo") == completed("verify", "--key", "mo") == {"model.gguf"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_know_every_option(run, shell):
    status, script, err = run("--print-completion", shell)
    assert (status, err) == (0, "")
    for name, command in COMMANDS.items():
        flags = [flag for action in command._actions for flag in action.option_strings]
        assert all((flag.lstrip("-") if shell == "fish" else flag) in script for flag in (*name.split(), *flags))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_completions_without_shtab(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    said = "weightmap: completions need shtab: pip install '.[cli]' in a checkout\n"
    assert run("--print-completion", "bash") == (4, "", said)


def test_verify_tries_every_file_and_reports_each_on_a_line(write, run, tmp_path):
    good, bad, missing = write(), tmp_path / "bad.bin", tmp_path / "missing"
    bad.write_bytes(b"nothing of ours" * 10)
    status, out, _ = run("verify", bad, missing, good)
    lines = [line for line in out.splitlines() if not line.startswith("  ")]
    assert status == 4
    assert lines[0].startswith(f"{bad}: failed: ")
    assert lines[1] == f"{missing}: failed: No such file or directory"
    assert lines[2].startswith(f"{good}: ok (safetensors")
    assert len(lines) == 3
    status, out, _ = run("verify", "--json", good, missing)
    document = json.loads(out)
    assert (status, document["schema"], document["ok"]) == (4, 1, False)
    assert [entry["ok"] for entry in document["files"]] == [True, False]
    assert document["files"][0]["checks"]
    assert document["files"][1]["error"]["type"] == "FileNotFoundError"
    assert run("verify", good, bad)[0] == 3
    assert run("verify", good)[0] == 0


def test_a_wrong_checksum_is_1(words_file, run):
    """One changed bit in the data fails the verification, and only that: inspecting reads no data."""
    content = bytearray(words_file.read_bytes())
    content[-16 - 32] ^= 1  # the first byte of the matrix
    words_file.write_bytes(content)
    status, out, _ = run("verify", words_file)
    assert status == 1
    assert out.startswith(f"{words_file}: failed: ")
    assert len(out.splitlines()) == 1
    assert run("inspect", words_file)[0] == 0
    said = out.removeprefix(f"{words_file}: failed: ")
    target = words_file.with_name("out.amb")
    for command in (("convert", words_file, target), ("quantize", words_file, target, "--scheme", "int8")):
        assert run(*command, "--verify") == (1, "", f"weightmap: {words_file}: {said}")
        assert not target.exists()
    words_file.write_bytes(content[:-1])
    assert run("convert", words_file, target, "--verify")[0] == 3


def test_verify_says_first_when_it_could_check_the_structure_only(write, words_file, run, tmp_path):
    plain = write()
    status, out, _ = run("verify", plain, words_file)
    assert status == 0
    lines = [line for line in out.splitlines() if not line.startswith("  ")]
    assert lines[0].startswith(f"{plain}: ok (")
    assert lines[0].endswith(", structure only, every byte readable: safetensors has no checksums")
    assert "structure" not in lines[1]
    first, second = json.loads(run("verify", "--json", plain, words_file)[1])["files"]
    assert first["scope"] == "structure only, every byte readable: safetensors has no checksums"
    assert first["structure_only"] == "safetensors has no checksums"
    assert (second["scope"], second["structure_only"]) == ("structure and checksums", None)
    assert "checked: " not in run("verify", plain)[1]
    first, *checks = run("verify", "-v", plain)[1].splitlines()
    assert "no checksums" in first
    assert checks
    assert all(line.startswith("  checked: ") and "checksums" not in line for line in checks)


def test_many_entries_of_metadata_leave_room_for_the_tensors(run, tmp_path):
    """A training checkpoint has thousands: the list gives their number, and the way to see all."""
    path, metadata = tmp_path / "m.safetensors", {f"key{i}.lr": str(i) for i in range(1000)}
    weightmap.save(path, {"w": np.ones((2, 3), np.float32)}, metadata=metadata)
    status, out, _ = run("inspect", path)
    assert (status, out.count(".lr "), "... and 936 more: --json lists all\n" in out) == (0, 64, True)
    assert re.search(r"^tensors +1, of 6 elements$", out, re.MULTILINE)
    assert json.loads(run("inspect", "--json", path)[1])["metadata"] == metadata


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("inspect MODEL --include zz", "--include 'zz': none of 2 tensors is left"),
        ("inspect MODEL --sort size", "--sort is 'size', expected one of nbytes, name"),
        ("verify MODEL --key k.pem", "--key and --certificate check a signature: name its bundle by --trust FILE"),
        ("verify MODEL MODEL --manifest m.json", "--manifest: for one FILE"),
        ("verify MODEL --rank 1", "--rank needs --world-size"),
        ("verify MODEL --trust sha256:12", "--trust is 'sha256:12', expected sha256: and 64 hexadecimal digits"),
        (f"verify MODEL --trust {'a' * 64}", f"--trust is '{'a' * 64}', expected sha256: and 64 hexadecimal digits"),
        ("verify MODEL --threads 0", "--threads is 0, expected 1 or more"),
        ("diff MODEL MODEL --rtol -1", "--rtol is -1, expected a finite number of at least 0"),
        ("diff MODEL MODEL --atol nan", "--atol is nan, expected a finite number of at least 0"),
        ("report MODEL page.txt", "OUT is 'page.txt', expected a name that ends in .html"),
        ("export MODEL w a.txt", "OUT is 'a.txt', expected a name that ends in .npy"),
        ("export MODEL w weight.npy.csv", "OUT is 'weight.npy.csv', expected a name that ends in .npy"),
        ("export MODEL w npy", "OUT is 'npy', expected a name that ends in .npy"),
        ("export MODEL wieght a.npy", "no tensor is called 'wieght' among 2 tensors; similar names: 'weight'"),
        ("cache show MODEL nope", "no tensor is called 'nope'"),
        ("cache warm MODEL --threads -1", "--threads is -1, expected 1 or more"),
        ("convert MODEL MODEL", "this file is an input, and would be replaced"),
        ("convert MODEL a.weights --format nope", "weightmap: --format is 'nope', expected one of "),
        ("convert MODEL a.weights --layout nope", "weightmap: --layout is 'nope', expected one of "),
        ("convert MODEL a.gguf --layout nope", "weightmap: --layout is 'nope', and GGUF has none"),
        ("convert MODEL a.weights --dtype layout=3", "weightmap: --dtype is 'layout=3', expected one of "),
        ("convert TEXT a.fifu --format text --layout spec", "--layout is not for files of format text"),
        ("convert MODEL a.weights --align 3", "--align is 3, expected a power of two from 8 to 4096"),
        ("convert MODEL a.weights --max-shard-size x", "--max-shard-size is 'x', expected a number of bytes"),
        ("convert MODEL a.weights --include=--", "--include is '--', expected a value"),
        ("convert MODEL a.weights --names llama.cpp", "and the target is EMBD; leave --names llama.cpp out"),
        ("convert MODEL a.weights --rename x", "--rename is 'x', expected OLD=NEW"),
        ("convert MODEL a.gguf --quantize q4_k_m", "this model does not get (a Hugging Face directory gets them)"),
        ("convert MODEL a.fifu --lossy", "there is no vocabulary"),
        ("convert TEXT a.fifu --dtype float16", "--dtype is not for word embeddings, which stay float32"),
        ("convert TEXT a.fifu --names llama.cpp", "--names is not for word embeddings, which stay float32"),
        ("convert TEXT a.fifu --lossy --align 64", "--align: not for word embeddings"),
        ("convert TEXT a.fifu --lossy --names llama.cpp", "--names: not for word embeddings"),
        ("quantize MODEL a.weights --scheme int8", "it holds no quantised tensors, as AMB does"),
        ("delta publish MODEL MODEL d --version 0", "--version is 0, expected 1 or more"),
        (
            "delta publish MODEL MODEL d --version 2 --base-version 2",
            "--base-version is 2, expected a number below --version",
        ),
        ("delta publish MODEL MODEL d --version 1 --level 99", "--level is 99, expected 1 to 22"),
        (
            "delta publish MODEL MODEL d --version 1 --max-shard-size x",
            "--max-shard-size is 'x', expected a number of bytes",
        ),
        ("delta pull d d --to -1", "--to is -1, expected 0 or more"),
        ("words lookup MODEL a", "there are no words to look up"),
        ("words similar MODEL a -k 0", "-k is 0, expected 1 or more"),
        ("words analogy MODEL a", "the analogy has 1 word, expected three: A B C"),
        ("words convert TEXT a.fifu --seed 1", "--seed: only with --quantize pq"),
        ("--print-completion sh", "--print-completion is 'sh', expected one of bash, zsh, fish"),
        *((old, f"there is no command '{old}': it is {new} now") for old, new in parser._RENAMED.items()),
        ("delta MODEL MODEL d --version 1", "/model.safetensors', only publish, apply, pull"),
        ("cache", "which command? show, warm, evict"),
        ("convert MODEL a.weights --normalize", "no option --normalize; weightmap words convert has one"),
        ("help inspekt", "there is no command 'inspekt'; did you mean inspect?"),
        ("inspect https://", "the https address names no host"),
    ],
)
def test_usage_ends_with_2(write, run, tmp_path, monkeypatch, command, said):
    """Errors of usage, not of a file: one line that names the option, and nothing is written."""
    model, text = write(), tmp_path / "glove.txt"
    text.write_bytes(b"a 1 2\n")
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.iterdir()}
    arguments = [{"MODEL": model, "TEXT": text}.get(argument, argument) for argument in command.split()]
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n"), said in err) == (2, "", 1, True), err
    assert {*tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "command",
    [
        *("inspect", "verify", "doctor", "cache show", "cache warm", "cache evict", "diff MODEL", "report MODEL"),
        *("export BAD w a.npy", "convert BAD a.weights", "quantize BAD a.amb --scheme int8"),
        *("delta publish BAD MODEL d --version 1", "words lookup BAD x", "words convert BAD a.fifu"),
    ],
)
def test_malformed_ends_with_3_and_missing_with_4(write, run, tmp_path, monkeypatch, command):
    """The same for every command; verify prints the error as its result."""
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_bytes(b"no model" * 99)
    for bad, expected in (("bad", 3), ("missing", 4)):
        words = command.split() if "BAD" in command else [*command.split(), "BAD"]
        words += ["page.html"] if words[0] == "report" else []
        arguments = [{"MODEL": write(), "BAD": bad}.get(word, word) for word in words]
        status, out, err = run(*arguments)
        assert (status, (err or out).count("\n"), bad in (err or out)) == (expected, 1, True), err or out


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["FILE", "--threads", "2", "a", "b"], ["a", "b"]),
        (["--threads=2", "FILE", "a", "--json", "b"], ["a", "b"]),
        (["FILE", "a", "--threads", "2", "--", "--json", "-x"], ["a", "--json", "-x"]),
        (["FILE", "--threads", "2", "-1", "-", "-a b"], ["-1", "-", "-a b"]),
        (["FILE", "--threads", "2"], []),
    ],
)
def test_options_may_stand_anywhere(given, names):
    args = parser.build_parser().parse_args(["cache", "warm", *given])
    assert (args.file, args.names, args.threads) == ("FILE", names, 2)


def test_diff_names_the_differences(write, run):
    a = write("a.safetensors", {"same": floats(1), "left": floats(2), "changed": floats(3, 4)}, {"k": "one"})
    b = write("b.safetensors", {"same": floats(1), "right": floats(2), "changed": floats(3, 5)}, {"k": "two"})
    status, out, err = run("diff", a, b)
    assert (status, err) == (1, "")
    words = [line.split() for line in out.splitlines()]
    assert ["left", "only", "in", "A"] in words
    assert ["right", "only", "in", "B"] in words
    assert any(line[0] == "changed" for line in words if line)
    assert ["k", "one", "two"] in words
    assert not any(line[0] == "same" for line in words if line)
    assert "same name in both" not in out
    other = write("c.safetensors", {"net.same": floats(1)})
    assert "with --rename 'OLD*=NEW*'" in run("diff", a, other)[1]
    status, out, _ = run("diff", a, b, "--json")
    document = json.loads(out)
    assert (status, document["schema"], document["equal"]) == (1, 1, False)
    assert document["only_in_a"] == ["left"]
    assert document["only_in_b"] == ["right"]
    assert [change["name"] for change in document["changed"]] == ["changed"]
    assert document["metadata"] == [{"key": "k", "a": "one", "b": "two"}]


def test_inspect_finds_tensors_in_several_files(write, run, tmp_path):
    one = write(tensors={"a.w": floats(1, 2), "a.bias": floats(*range(9)), "b.w": floats(1, 2, 3)})
    two, three = tmp_path / "two.safetensors", tmp_path / "three.safetensors"
    two.write_bytes(st.build({"c.w": floats(1)}))
    three.write_bytes(st.build({"c.bias": floats(1)}))
    options = ["--include", "*.w", "--include", "*bias", "--exclude", "c.b*"]
    for by, names in ((["--sort", "nbytes"], ["a.bias", "b.w", "a.w"]), (["--sort", "name"], ["a.bias", "a.w", "b.w"])):
        status, out, err = run("inspect", one, two, three, *options, *by, "--json")
        assert (status, err) == (0, "")
        files = json.loads(out)["files"]
        assert [Path(file["path"]) for file in files] == [Path(one), two]
        assert [[tensor["name"] for tensor in file["tensors"]] for file in files] == [names, ["c.w"]]
        assert [total["tensors"] for file in files for total in file["totals"].values()] == [3, 1]
    out = run("inspect", one, two, three, *options)[1]
    assert [line for line in out.splitlines() if line.startswith("file")] == [f"file  {one}", f"file  {two}"]
    assert all(name in out for name in ("a.w", "a.bias", "b.w", "c.w"))
    assert "c.bias" not in out
    assert run("inspect", two, "--include", "d*") == (2, "", "weightmap: --include 'd*': none of 1 tensor is left\n")
    assert run("inspect", two, tmp_path / "none")[0] == 4


def test_numpy_loads_exported_files(write, run, tmp_path):
    target = tmp_path / "out.NPY"
    target.write_bytes(b"old")
    status, _, err = run("export", write(), "weight", target)
    assert (status, err) == (0, "")
    loaded = np.load(target)
    assert loaded.dtype == np.float32
    assert loaded.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "out.NPY"]


def outputs(file):
    return [
        ("export", file, "weight"),
        ("convert", file, "--include", "half", "--format", "safetensors"),
        ("quantize", file, "--scheme", "int8", "--format", "amb"),
    ]


@pytest.mark.parametrize("number", range(3))
def test_an_output_never_replaces_an_input(write, run, tmp_path, number):
    path = Path(write())
    content = path.read_bytes()
    (tmp_path / "link.out").symlink_to(path)
    os.link(path, tmp_path / "hard.out")
    for target in (
        path,
        tmp_path / "link.out",
        tmp_path / "hard.out",
        tmp_path / "." / ".." / tmp_path.name / path.name,
    ):
        status, out, err = run(*outputs(path)[number], target)
        assert (status, out) == (2, "")
        assert err == f"weightmap: {target}: this file is an input, and would be replaced: choose another target\n"
    assert path.read_bytes() == content
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["hard.out", "link.out", path.name]


@pytest.mark.parametrize("target", ["a.safetensors", "b.safetensors", "m.safetensors.index.json"])
def test_an_output_never_replaces_a_part_of_a_model(write, run, tmp_path, target):
    write("a.safetensors", {"weight": floats(1.0)})
    write("b.safetensors", {"other": floats(2.0)})
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "a.safetensors", "other": "b.safetensors"}}))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for command in outputs(index):
        assert run(*command, tmp_path / target)[0] == 2, command
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# Commands on versions name another file first: tests/deltas.
@pytest.mark.parametrize("command", [name for name in WITH_JSON if name not in {"delta apply", "delta pull"}])
@pytest.mark.parametrize("content", [None, b"<html>"], ids=["missing", "malformed"])
def test_an_error_is_a_document_too(run, tmp_path, command, content):
    path = tmp_path / "file\x1b[31m"
    if content is not None:
        path.write_bytes(content)
    rest = {
        "convert": ["o.bt"],
        "report": ["o.html"],
        "quantize": ["o.amb", "--scheme", "int8"],
        "diff": [path],
        "delta publish": [path, tmp_path / "published", "--version", 1],
        "words analogy": ["a", "b", "c"],
        "words convert": ["o.fifu"],
    }
    argv = [*command.split(), path, *rest.get(command, [] if command in {"doctor", "inspect", "verify"} else ["word"])]
    status, out, err = run(*argv)
    got, document, complaint = run(*argv, "--json")
    assert is_printable(document)
    told = json.loads(document)
    assert (got, complaint) == (status, err)
    assert (told["schema"], told["command"]) == (1, command)
    error = told["files"][0]["error"] if command == "verify" else told["error"]
    assert error["type"] == ("FileNotFoundError" if content is None else "UnknownFormatError")
    assert error["path"] == str(path)
    assert error["message"].removeprefix(cli.show.clean(path)) in (out if command == "verify" else err)


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("inspect", []),
        ("verify", []),
        ("convert", ["o.bt"]),
        ("quantize", ["o.amb", "--scheme", "int8"]),
        ("export", ["weight", "o.npy"]),
        ("doctor", []),
        ("cache show", []),
    ],
)
def test_lenient_is_named_where_it_helps(write, run, tmp_path, monkeypatch, command, rest):
    """A harmless defect is an error that names the option, which works; other defects, and commands, do not name it."""
    monkeypatch.chdir(tmp_path)
    path = Path(write())
    sound = path.read_bytes()
    path.write_bytes(sound + b"xx")
    status, out, err = run(*command.split(), path, *rest)
    assert status == 3
    assert "; --lenient tolerates this (at byte " in out + err
    status, out, err = run(*command.split(), path, *rest, "--lenient")
    assert (status, err) == (0, "")
    if command == "convert":
        assert "warning: tolerated in the source: there are trailing bytes" in out
    path.write_bytes(sound[:-2])
    assert "--lenient" not in "".join(run(*command.split(), path, *rest)[1:])


@pytest.mark.skipif(sys.platform == "win32", reason="arguments are UTF-16 there")
def test_names_among_the_arguments_are_utf_8(tmp_path):
    """Names in files are UTF-8 too, whatever encoding the system claims for arguments."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(st.build({"über": floats(1), "w": floats(1)}))
    environment = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    # Without site: in this locale Python itself cannot read .pth files below a folder whose name is not ASCII.
    command = [sys.executable, "-S", "-m", "weightmap"]
    for argv in (["inspect", path, "--include", "über"], ["export", path, "über", tmp_path / "o.npy"]):
        done = subprocess.run([*command, *argv], check=False, env=environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("argv", "command", "said"),
    [
        (["--json"], None, "--json"),
        (["--bogus", "--json"], None, "there is no option --bogus (weightmap help lists them all)"),
        (["frobnicate", "--json"], "frobnicate", "there is no command 'frobnicate' (weightmap help lists them all)"),
        (["insepct", "--json"], "insepct", "there is no command 'insepct'; did you mean inspect?"),
        (["help", "convrt", "--json"], "help", "there is no command 'convrt'; did you mean convert?"),
        (["inspect", "f", "--lenint", "--json"], "inspect", "there is no option --lenint; did you mean --lenient?"),
        (["verify", "f", "g", "--jsn=3", "--json"], "verify", "there is no option --jsn; did you mean --json?"),
        (
            ["convert", "f", "g", "--quantize", "int8", "--scale-type", "fp", "--json"],
            "convert",
            "--scale-type is 'fp', ",
        ),
        (["report", "f", "g.gguf", "--json"], "report", "OUT is 'g.gguf', expected a name that ends in .html"),
        (["cache", "cold", "--json"], "cache", "weightmap cache has no command 'cold', only show, warm, evict"),
        (["inspect", "--json"], "inspect", "FILE (weightmap inspect --help shows the options)"),
        (["doctor", "--json", "f", "\x1b]0;t\x07"], "doctor", "\\x1b]0;t\\x07"),
        (["words", "similar", "f", "w", "-k", "0", "--json"], "words similar", "-k"),
        (["convert", "f", "g", "--block-size", "8", "--json"], "convert", "--quantize"),
        (["export", "--json", "f", "n", "o"], "export", "--json"),
        (["convert", "f", "--json", "--dtype"], "convert", "--dtype: expected one argument"),
        (["convert", "f", "g", "--dtype", "--json"], "convert", "--dtype: expected one argument"),
        (["convert", "f", "g", "-x", "--json"], "convert", "there is no option -x"),
    ],
)
def test_wrong_usage_is_a_document_too(run, argv, command, said):
    status, out, err = run(*argv)
    document = json.loads(out)
    assert (status, document["schema"], document["command"]) == (2, 1, command)
    assert document["error"]["type"] == "UsageError"
    assert said in document["error"]["message"]
    assert err == f"weightmap: {document['error']['message']}\n"
    assert len(err.splitlines()) == 1
    assert is_printable(err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("count", [1, 5000])
def test_a_full_standard_output_is_one_error(write, count):
    path = write(tensors={f"tensor.{i}": floats(i) for i in range(count)})
    for argv in (["inspect", path], ["inspect", path, "--json"], ["inspect", "missing", "--json"]):
        with Path("/dev/full").open("wb") as full:
            done = start(*argv, capture_output=False, stdout=full, stderr=subprocess.PIPE)
        said = "missing: No such file or directory" if "missing" in argv else "standard output: No space left on device"
        assert (done.returncode, done.stderr.decode()) == (4, f"weightmap: {said}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_an_error_that_cannot_be_printed_is_4(write):
    """The status is not 1, which says that files differ."""
    for argv in (["inspect", "missing"], ["inspect", "missing", "--json"], ["verify", write()]):
        with Path("/dev/full").open("wb") as full:
            assert start(*argv, capture_output=False, stdout=full, stderr=full).returncode == 4


def test_a_wrong_mode_of_the_environment_is_2(write, run, tmp_path, monkeypatch):
    path = write()
    monkeypatch.setenv("WEIGHTMAP_MODE", "bogus")
    modes = "mmap, cow, copy, sealed, direct"
    said = f"weightmap: the environment variable WEIGHTMAP_MODE is 'bogus', expected one of {modes}\n"
    for argv in (["inspect", path], ["doctor", tmp_path], ["convert", path, tmp_path / "o.safetensors"]):
        assert run(*argv) == (2, "", said)


def test_there_are_thirteen_commands_and_each_argument_has_help():
    names = "inspect verify diff report export convert quantize sign doctor cache delta words help"
    assert list(dict.fromkeys(name.split()[0] for name in COMMANDS)) == names.split()
    assert not [(name, action) for name, command in COMMANDS.items() for action in command._actions if not action.help]


def test_help_and_version_are_0(run):
    status, out, _ = run("--help")
    assert status == 0
    assert run("help") == (0, out, "")
    for word in ("inspect", "verify", "convert", "diff", "export", "words", "exit status"):
        assert word in out
    version = 0, f"weightmap {weightmap.__version__}\n", ""
    assert [run("--version"), run("-v"), run("-V")] == [version] * 3
    assert run("help", "convert") == run("convert", "--help")
    told = " ".join(run("convert", "--help")[1].split())
    assert "whatever the suffix of DST: amb, bintensors, cnn_v2, embd, finalfusion, gguf, safetensors, " in told
    assert "v2 or v1 of cnn_v2; spec or simple of embd" in told
    status, out, err = run()
    assert (status, out, err.splitlines()[-1]) == (2, "", "weightmap: which command? (weightmap help lists them all)")


def test_a_reader_that_goes_away_ends_the_command_quietly(write):
    """`weightmap inspect FILE | head -1` leaves no traceback."""
    path = write(tensors={f"tensor.{i}": floats(i) for i in range(5000)})
    command = [sys.executable, "-m", "weightmap", "inspect", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        complaints = process.stderr.read()
        status = process.wait(timeout=HANG)
    assert (status, complaints) == (141, b"")


def test_interrupting_is_130_without_traceback(write, run, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("weightmap.cli.outcome.open_privately", interrupted)
    assert run("inspect", write()) == (128 + signal.SIGINT, "", "weightmap: interrupted\n")
    status, out, _ = run("inspect", write(), "--json")
    assert (status, json.loads(out)["error"]["message"]) == (128 + signal.SIGINT, "interrupted")


def test_a_pipe_gets_no_progress_and_no_escapes(write, tmp_path):
    done = start("convert", write(), tmp_path / "out.safetensors")
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


def test_a_terminal_gets_a_progress_bar(write, tmp_path):
    pytest.importorskip("rich")
    status, sent = on_terminal("convert", write(), tmp_path / "out.safetensors")
    assert status == 0
    assert "convert " in sent
    assert "\x1b[" in sent
    assert "2 tensors" in sent


def test_terminal_tables_survive_without_rich(write, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    path = write()
    status, out, _ = run("inspect", path)
    assert status == 0
    assert "weight" in out
    assert re.search(r"24 B +float32 +\[2, 3\]", out)
    status, out, _ = run("inspect", "--flat", path)
    assert status == 0
    assert "weight  float32" in out
