"""Ranks of a gloo group load from servers on the loopback: each requests only the bytes of its own slices."""

import sys

import numpy as np
import pytest
from tests.builders import normal
from tests.builders import safetensors as safe
from tests.dcp.ranks import Case, run
from tests.remote.store_servers import NGINX, nginx, s3

import weightmap as wm

pytest.importorskip("torch", reason="needs PyTorch: make distributed-test")
obstore = pytest.importorskip("obstore", reason="needs obstore: requirements/distributed.txt")
pytest.importorskip("moto", reason="needs moto[server]: requirements/distributed.txt")
if sys.platform != "linux":
    pytest.skip("ranks say what they read, on Linux alone", allow_module_level=True)


WORLD = 2
# Rows of 64 KiB; a rank's columns are half of each. The index is far below two per cent.
SHAPE = (128, 16384)
PARTS = {
    f"part-{i}.safetensors": {f"layer.{i}.{k}": normal((60 + i, 64), 10 * i + k) for k in range(3)} for i in range(4)
}
ABSENT = ("absent", "absent.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    large = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    wm.save(path / "large.safetensors", {"w": large})
    wm.save(path / "large.amb", {"w": wm.quantize(large, "int4_block")})
    (path / "model").mkdir()
    safe.shard(path / "model", PARTS)
    return path


@pytest.fixture(scope="module")
def from_s3(folder, tmp_path_factory):
    """Each rank's outcome of each load from an S3 server, which all find by their environment."""
    keys = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1", "ALLOW_HTTP": "true"}
    with s3() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in {**keys, "ENDPOINT_URL": endpoint}.items():
            patch.setenv(f"AWS_{name}", value)
        store = obstore.store.S3Store("bucket", endpoint=endpoint, client_options={"allow_http": True})
        for path in folder.rglob("*.*"):
            obstore.put(store, path.relative_to(folder).as_posix(), path)
        cases = {
            f"{name} {placement}": Case(f"s3://bucket/{name}", (WORLD,), (placement,), sound=str(folder / name))
            for name in ("large.safetensors", "large.amb", "model")
            for placement in "01R"
        }
        cases |= {name: Case(f"s3://bucket/{name}", (WORLD,), ("0",)) for name in ABSENT}
        yield run(WORLD, cases, tmp_path_factory.mktemp("group"))


def test_ranks_load_from_a_bucket(from_s3):
    for name, ranks in from_s3.items():
        for rank in ranks if name not in ABSENT else ():
            assert (rank.error, rank.wrong) == (None, []), name
            assert rank.local_nbytes
            # Columns that lie close together come with the bytes between them: a request for each would take longer.
            more = WORLD if name.endswith("1") else 1.02
            assert rank.report.nbytes <= more * rank.report.wanted_nbytes, name
    whole = np.dtype("f4").itemsize * SHAPE[0] * SHAPE[1]
    for kind, nbytes in (("safetensors", whole), ("amb", wm.quantize(np.zeros(SHAPE, "f4"), "int4_block").nbytes)):
        for placement, parts in (("0", WORLD), ("1", WORLD), ("R", 1)):
            for rank in from_s3[f"large.{kind} {placement}"]:
                assert nbytes // parts <= rank.report.wanted_nbytes <= nbytes // parts + 64


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_in_the_bucket_ends_the_load_on_every_rank(name, from_s3):
    for rank in from_s3[name]:
        assert rank.error is not None
        assert rank.error[0] == "CheckpointException"
        assert rank.seconds < 30
        assert {kind for kind, _ in rank.failures.values()} == {"FileNotFoundError"}
        assert all(f"s3://bucket/{name}" in text for _, text in rank.failures.values())


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: apt install nginx-light)")
@pytest.mark.parametrize("placement", ["0", "1"])
def test_a_server_sends_each_rank_its_part(placement, folder, tmp_path_factory):
    """Bytes of a rank, counted by nginx: for rows 1/N of the model plus two per cent; for columns also all between."""
    sound = folder / "large.safetensors"
    with nginx(tmp_path_factory.mktemp("nginx")) as server:
        for rank in range(WORLD):  # so that requests are told apart
            (server.data / f"rank-{rank}.safetensors").write_bytes(sound.read_bytes())
        case = Case(f"{server.url}rank-{{rank}}.safetensors", (WORLD,), (placement,), sound=str(sound))
        outcomes = run(WORLD, {"part": case}, tmp_path_factory.mktemp("group"))
        assert [(rank.error, rank.wrong) for rank in outcomes["part"]] == [(None, [])] * WORLD
        size = sound.stat().st_size
        for rank in range(WORLD):
            sent = sum(nbytes for uri, _, _, nbytes in server.asked() if uri == f"/rank-{rank}.safetensors")
            assert size // WORLD - 4096 <= sent <= (size / WORLD if placement == "0" else size) + size / 50
