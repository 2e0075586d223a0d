"""The commands about pages in memory: `doctor`, `cache show`, `cache warm` and `cache evict`."""

import json
import re

import numpy as np
import pytest
from tests.builders import Tensor
from tests.builders import safetensors as safe
from tests.cli.test_cli import on_terminal

import weightmap as wm
from weightmap.plans import residency

MIB = 1 << 20
COMMANDS = ("doctor", "cache show", "cache warm", "cache evict")


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "m.safetensors"
    target.write_bytes(safe.build({f"t{i}": Tensor("uint8", (MIB,), bytes([i]) * MIB) for i in range(3)}))
    return target


@pytest.fixture
def half(monkeypatch):
    """Of the tensors nothing, half and all is in memory."""
    part = np.array([0, MIB // 2, MIB])
    monkeypatch.setattr(residency, "resident_bytes", lambda _, numbers: part[numbers])


@pytest.mark.parametrize("command", COMMANDS)
def test_each_prints_one_document(command, path, run):
    status, out, err = run(*command.split(), path, "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert (document["schema"], document["command"], document["path"]) == (1, command, str(path))
    assert document["nbytes"] == 3 * MIB
    status, out, err = run(*command.split(), str(path) + "x", "--json")
    assert status == 4
    assert json.loads(out)["error"]["type"] == "FileNotFoundError"
    assert "No such file" in err


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_names_choose_tensors(command, path, run):
    status, out, _ = run(*command.split(), path, "t0", "t2", "--json")
    assert status == 0
    assert json.loads(out)["nbytes"] == 2 * MIB
    status, out, err = run(*command.split(), path, "t7")
    assert (status, out) == (2, "")
    assert "no tensor is called 't7'" in err
    status, _, err = run(*command.split())  # names may be missing
    assert status == 2
    assert "required: FILE (" in err


@pytest.mark.usefixtures("half")
def test_residency_is_a_bar_a_tensor(path, run):
    """A line each, with a bar as long as the part that is in memory, and one for all."""
    status, out, _ = run("cache", "show", path)
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["tensor", "in", "memory", "bytes"]
    assert lines[1] == ["t0", "·" * 24, "0%", "1,048,576"]
    assert lines[2] == ["t1", "█" * 12 + "·" * 12, "50.0%", "1,048,576"]
    assert lines[3] == ["t2", "█" * 24, "100%", "1,048,576"]
    assert lines[4] == ["total", "█" * 12 + "·" * 12, "50.0%", "3,145,728"]
    status, out, _ = run("cache", "show", path, "--json")
    document = json.loads(out)
    assert document["resident"] == 3 * MIB // 2
    assert document["tensors"][1] == {"name": "t1", "resident": MIB // 2, "nbytes": MIB}


def test_warm_and_evict_say_how_much(path, run, monkeypatch):
    monkeypatch.setattr(wm.ReadPlan, "warm", lambda _, threads, progress: 5 * (threads or 1))
    status, out, _ = run("cache", "warm", path, "--threads", 3)
    assert status == 0
    assert re.fullmatch(rf"{path}: 15 bytes of 3\.0 MiB were cold \([0-9.]+ m?s, [1-9][0-9.,]* ([KM]i)?B/s\)\n", out)
    monkeypatch.setattr(wm.ReadPlan, "warm", lambda _, threads, progress: 0)
    assert "/s" not in run("cache", "warm", path)[1]
    monkeypatch.setattr(residency, "resident_bytes", lambda _, numbers: np.full(len(numbers), 100))
    status, out, _ = run("cache", "evict", path)
    assert status == 0
    assert out == f"{path}: 0 bytes of 3.0 MiB left memory; 300 bytes stay\n"


def test_doctor_says_what_and_what_to_do(path, run, tmp_path):
    status, out, _ = run("doctor", path)
    assert status == 0
    facts, _, advice = out.partition("\n\n")
    labels = [line.split("  ")[0] for line in facts.splitlines()]
    assert labels[:3] == ["file", "format", "parameters"]
    assert {"in memory", "alignment", "memory", "budget"} <= set(labels)
    assert all(line.startswith("* ") for line in advice.splitlines())
    folder = tmp_path / "model"
    folder.mkdir()
    safe.shard(folder, {f"{i}.safetensors": {f"t{i}": Tensor("uint8", (64,), bytes(64))} for i in range(2)})
    status, out, _ = run("doctor", folder)
    assert status == 0
    assert "2 tensors in 2 files" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_on_a_terminal(command, path):
    pytest.importorskip("rich")
    status, sent = on_terminal(*command.split(), path)
    assert status == 0
    assert ("t0" if command == "cache show" else "m.safetensors") in sent
    if command == "cache warm":
        assert "\x1b[" in sent
        assert "were cold" in sent
