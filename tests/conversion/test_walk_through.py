"""The walk-through of docs/distributed.md, command by command."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from tests.places import ROOT
from tests.support import HANG, SOURCES

NEEDED = ("torch", "distributed", "obstore", "moto")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return str(sock.getsockname()[1])


def test_the_walk_through_runs(tmp_path):
    """Its own commands, on other ports: each succeeds, and prints what the page shows."""
    for name in NEEDED:
        pytest.importorskip(name, reason=f"needs {name}: make distributed-test")
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    text = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text.partition("## A walk-through")[2], re.DOTALL)
    assert len(blocks) == 4
    script = "\n".join(["set -eu", *blocks, "echo all of it"]).replace("examples/", shlex.quote(f"{ROOT}/examples/"))
    for port in ("5555", "8786"):
        script = script.replace(port, free_port())
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, module in {
        "python": "",
        "weightmap": "-m weightmap",
        "dask": "-m dask",
        "torchrun": "-m torch.distributed.run",
    }.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (tools / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "out").open("w+") as out, (tmp_path / "errors").open("w+") as errors:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=work, env=env, stdout=out, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(timeout=HANG)
        finally:  # servers, which the script leaves in the background
            os.killpg(process.pid, signal.SIGTERM)
        out.seek(0)
        errors.seek(0)
        told = out.read()
        assert code == 0, told + errors.read()
    assert told.rstrip().endswith("all of it")
    for number in range(1, 9):
        assert f"layers.{number}.weight" in told
    assert told.count("quantised to int4_block: 8 of 8 tensors") == 1, "the second run skips all shards"
    assert ": ok" in told
    ranks = re.findall(r"rank (\d): 8 slices of 8 tensors: .*? 0 of them in gaps", told)
    assert sorted(ranks) == ["0", "1", "2", "3"]
