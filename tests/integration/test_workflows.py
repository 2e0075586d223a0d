"""The scripts that time whole workflows run: each contender with an installed library, once, on small files."""

import json
import os
import subprocess
import sys

import pytest
from tests.places import ROOT

FOLDER = ROOT / "benchmarks" / "workflows"


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("scripts", [("saving", "starting"), ("reading",)])
def test_each_contender_runs(tmp_path, scripts):
    place = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "WEIGHTMAP_FOLDER": str(tmp_path)}
    command = [sys.executable, str(FOLDER), *scripts, "--turns", "1", "--mib", "4", "--json", str(tmp_path / "out")]
    subprocess.run(command, check=True, env=os.environ | place)
    rows = json.loads((tmp_path / "out").read_text(encoding="utf-8"))["rows"]
    assert {row["who"].split(",")[0] for row in rows} >= {"weightmap"}
    assert all(row["seconds"] > 0 for row in rows)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_workers_share_a_model():
    options = ("--mib", "16", "--workers", "1", "3", "--turns", "1", "--only", "numpy", "--start", "fork")
    command = [sys.executable, str(FOLDER.parent / "workers.py"), *options]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [[cell.strip() for cell in line.split("|")] for line in found.splitlines() if "| fork | 3" in line]
    pss = {row[2]: float(row[5].replace(",", "")) for row in rows}
    assert pss["safetensors"] > 3 * 16
    assert pss["weightmap, sealed"] < 2 * 16
