"""The commands `delta`, `apply` and `pull`, and the page about them."""

import json
import re

import numpy as np
import pytest
from tests.deltas.delta_files import digests, model, stepped, write_model
from tests.places import ROOT

import weightmap as wm
from weightmap import cli


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command in its own directory; return its status and output."""
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        status = cli.main([str(argument) for argument in argv])
        return status, *capsys.readouterr()

    return run


def test_versions_from_the_command_line(run, tmp_path):
    """Published, pulled and applied, each with a JSON document, or a line for people."""
    states = [model()]
    states += [stepped(states[0], 1), stepped(states[0], 2)]
    for number, state in enumerate(states):
        write_model(tmp_path / f"m{number}", state)
    status, out, _ = run("delta", "publish", "m0", "m1", "source", "--version", 1, "--checksum", "adler32")
    assert (status, out.splitlines()[0].partition(":")[0]) == (0, "source/weight_v000001")
    assert "version 1, on 0" in out
    told = json.loads(
        run("delta", "publish", "m1", "m2", "source", "--version", 2, "--encoding", "overwrite", "--json")[1]
    )
    assert told["command"] == "delta publish"
    assert (told["schema"], told["version"], told["base_version"], told["path"]) == (1, 2, 1, "source/weight_v000002")
    told = json.loads(run("delta", "pull", "local", "source", "--base", "m0", "--to", 1, "--threads", 1, "--json")[1])
    assert (told["version"], told["tensors"] > 0) == (1, True)
    assert told["total_nbytes"] == sum(a.nbytes for a in states[0].values())
    assert digests(wm.load("local")) == digests(states[1])
    assert "version 2, was 1" in run("delta", "apply", "local", "source/weight_v000002")[1]
    assert digests(wm.load("local")) == digests(states[2])
    assert "version 2, as before: 0 tensors" in run("delta", "pull", "local", "source")[1]


def test_errors_of_the_command_line(run, tmp_path):
    """Statuses and documents: 2 for mistakes of the caller, 3 for a wrong delta."""
    for name, state in (("a", model()), ("b", stepped(model(), 1))):
        write_model(tmp_path / name, state)
    np.save(tmp_path / "odd.npy", np.zeros(3))
    run("delta", "publish", "a", "b", "s", "--version", 1)
    for status, argv in (
        (2, ("delta", "publish", "a", "b", "s", "--version", 1)),
        (2, ("delta", "publish", "a", "b", "s", "--version", 0)),
        (2, ("delta", "publish", "a", "b", "s", "--version", 2, "--base-version", 2)),
        (2, ("delta", "publish", "a", "b", "s", "--version", 2, "--level", 99)),
        (2, ("delta", "publish", "a", "b", "s", "--version", 2, "--encoding", "add")),
        (2, ("delta", "pull", "l", "s", "--to", -1)),
        (3, ("delta", "publish", "a", "odd.npy", "s", "--version", 2, "--no-full")),
        (3, ("delta", "pull", "l", "s", "--to", 5)),
        (3, ("delta", "apply", "b", "s/weight_v000001")),
        (3, ("delta", "apply", "a", "s/weight_v000002")),
        (4, ("delta", "apply", "nothing", "s/weight_v000001")),
    ):
        got, document, err = run(*argv, "--json")
        assert (got, json.loads(document)["command"]) == (status, " ".join(argv[:2])), err


def test_the_page_runs(tmp_path, monkeypatch):
    """The walk-through: a trainer that changes 1 % a step, and a server that follows."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "deltas.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    exec(blocks[0][1], {})
    for line in blocks[1][1].splitlines():
        assert cli.main(line.removeprefix("weightmap ").split()) == 0, line
    assert blocks[1][1].startswith("weightmap delta publish ")
