"""Conversion on Dask: two thousand shards, a worker and then the client killed, and nothing lost or done twice."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
from tests.support import HANG, SOURCES

import weightmap as wm

distributed = pytest.importorskip("distributed", reason="needs Dask: make distributed-test")

pytestmark = pytest.mark.skipif(not os.environ.get("WEIGHTMAP_DISTRIBUTED"), reason="opt-in: make distributed-test")

SHARDS = int(os.environ.get("WEIGHTMAP_SHARDS", "2000"))
OPTIONS = {"format": "amb", "quantize": "int4_block"}
# A client in its own process: it converts, and prints how many shards it had to do.
CLIENT = """
import json, sys
import weightmap as wm
from distributed import Client
address, src, dst, manifest = sys.argv[1:]
with Client(address, set_as_default=False) as client, client.get_executor(retries=3) as executor:
    report = wm.convert(src, dst, run=wm.Run(executor, manifest=manifest), format="amb", quantize="int4_block")
print(json.dumps([report.shards, report.skipped]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    where, rng = {}, np.random.default_rng(1)
    for i in range(1, SHARDS + 1):
        name = f"model-{i:05}-of-{SHARDS:05}.safetensors"
        tensors = {f"layer.{i}.weight": rng.standard_normal((16, 64)).astype(np.float32)}
        wm.save(folder / name, tensors, output=wm.Output(durable=False))
        where |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


@pytest.fixture
def cluster():
    """Two worker processes, each with one thread, that import this weightmap."""
    with mock.patch.dict(os.environ):  # Dask sets its own variables in it
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SOURCES, os.environ.get("PYTHONPATH"))))
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
        ) as cluster:
            yield cluster


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def files(folder):
    """The inode of each shard, which changes when the shard is written again."""
    return {path.name: path.stat().st_ino for path in folder.glob("model-*")} if folder.exists() else {}


def wait_for(what, process=None):
    """Wait until a condition holds: this forces the order of events without sleeping."""
    end = time.monotonic() + HANG
    while not what():
        assert time.monotonic() < end, "nothing happens"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def running(dask_worker):
    """How many tasks a worker runs, including tasks that nobody waits for any more."""
    return dask_worker.state.executing_count


@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_and_a_killed_client_lose_nothing(model, cluster, tmp_path):
    """The files equal a serial run's, byte for byte; no recorded shard is converted again."""
    serial, out, manifest = tmp_path / "serial", tmp_path / "out", tmp_path / "manifest.json"
    wm.convert(model, f"{serial}/", **OPTIONS)
    arguments = [sys.executable, "-c", CLIENT, cluster.scheduler_address, str(model), f"{out}/", str(manifest)]
    first = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: len(files(out)) > SHARDS // 8, first)
        with distributed.Client(cluster, set_as_default=False) as client:
            pid = client.submit(
                os.getpid, pure=False, workers=[next(iter(client.scheduler_info()["workers"]))]
            ).result()
        os.kill(pid, signal.SIGKILL)
        seen = len(files(out))
        wait_for(lambda: len(files(out)) > seen + SHARDS // 8, first)
        first.kill()
    finally:
        first.kill()
        first.communicate()
    assert not (out / "model.amb.index.json").exists()
    # Tasks that ran when their client died run to their end: these are the ones in flight.
    with distributed.Client(cluster, set_as_default=False) as client:
        wait_for(lambda: not any(client.run(running).values()))
    recorded = json.loads(manifest.read_text())["shards"]
    before = files(out)
    assert len(recorded) > SHARDS // 4
    assert len(recorded) < SHARDS
    in_flight = before.keys() - recorded.keys()
    second = subprocess.run(arguments, capture_output=True, text=True, timeout=HANG, check=False)
    assert second.returncode == 0, second.stderr
    shards, skipped = json.loads(second.stdout.splitlines()[-1])
    assert (shards, skipped) == (SHARDS, len(recorded))
    assert content(out) == content(serial)
    after = files(out)
    again = {name for name, inode in before.items() if after[name] != inode}
    assert again <= in_flight
    # At most 16 calls of 16 tasks are out at a time.
    assert len(in_flight) <= 256
    assert not list(tmp_path.glob(".*"))


@pytest.mark.filterwarnings("ignore")
def test_the_first_error_on_dask_names_its_shard(cluster, tmp_path):
    """A worker's error comes back as it was raised; a new run does not see it again."""
    part = tmp_path / "part"
    part.mkdir()
    for name, value in (("a", 1.0), ("b", np.nan)):
        wm.save(part / f"{name}.safetensors", {name: np.full((4, 32), value, np.float32)})
    where = {"a": "a.safetensors", "b": "b.safetensors"}
    (part / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    bad = part / "b.safetensors"
    with distributed.Client(cluster, set_as_default=False) as client, client.get_executor() as executor:
        with pytest.raises(wm.QuantError, match=r"b\.safetensors: tensor 'b'") as held:
            wm.convert(part, f"{tmp_path}/out/", run=wm.Run(executor), **OPTIONS)
        with contextlib.suppress(FileNotFoundError):
            assert "model.amb.index.json" not in content(tmp_path / "out")
        state = bad.stat()
        wm.save(bad, {"b": np.full((4, 32), 2.0, np.float32)})
        os.utime(bad, ns=(state.st_atime_ns, state.st_mtime_ns))
        wait_for(lambda: not any(client.run(running).values()))
        assert wm.convert(part, f"{tmp_path}/out/", run=wm.Run(executor), **OPTIONS).shards == 2
    del held
