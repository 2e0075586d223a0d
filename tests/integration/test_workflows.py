"""The scripts that time whole work run: each contender whose library is here, once, on small files."""

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
