"""Models in real servers: nginx for ranges and conditions of HTTP, an S3 server by obstore, connections that break."""

import json
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from tests.remote.store_servers import AZURE_KEYS, AZURITE, NGINX, azure, forwarder, nginx, proxy, s3

import weightmap as wm
from weightmap.cli import main
from weightmap.core.formats import FORMATS
from weightmap.errors import FileChangedError, LayoutError, RemoteError

pytest.importorskip("obstore", reason="needs obstore: requirements/distributed.txt")
pytest.importorskip("moto", reason="needs moto[server]: requirements/distributed.txt")
from obstore.store import AzureStore, HTTPStore, S3Store

needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: apt install nginx-light)")
SCHEMES = ("s3", "gs")
INDEX = "model.safetensors.index.json"
# Two of the written formats hold only tensors of their own kind; numpy writes archives of numpy.
OWN = ("cnn_v2", "finalfusion")
SUFFIXES = (*(form.suffixes[0] for form in FORMATS.values() if form.plan and form.name not in OWN), ".npz")
FLOATS = {f"layer.{i}.w": np.arange(64 * 256, dtype=np.float32).reshape(64, 256) + i for i in range(24)}
TOTAL = sum(array.nbytes for array in FLOATS.values())
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDSECRET", "AWS_SECRET_ACCESS_KEY": "KEYSECRET", "AWS_REGION": "us-east-1"}


def write(path):
    if path.suffix == ".npz":
        np.savez(path, **FLOATS)
    else:
        wm.save(path, FLOATS)


def write_shards(folder, count=4):
    folder.mkdir()
    where = {}
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = dict(list(FLOATS.items())[number::count])
        wm.save(folder / name, part)
        where |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": TOTAL}, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def right(file):
    return sorted(file) == sorted(FLOATS) and all(np.array_equal(file[name], FLOATS[name]) for name in FLOATS)


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    with nginx(tmp_path_factory.mktemp("nginx")) as server:
        for suffix in SUFFIXES:
            write(server.data / f"m{suffix}")
        write_shards(server.data / "model")
        yield server


@needs_nginx
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("by_obstore", [False, True])
def test_nginx_serves_every_format(suffix, by_obstore, web):
    store = HTTPStore(web.url, client_options={"allow_http": True}) if by_obstore else None
    with wm.open(f"{web.url}m{suffix}", remote=wm.Remote(store)) as file:
        assert right(file)
        file.verify()


@needs_nginx
def test_nginx_checks_the_tag_of_every_request(web):
    """A replaced file is noticed by the server, and without tags by its time."""
    for folder in ("", "untagged/"):
        path = web.data / "changing.safetensors"
        write(path)
        file = wm.open(f"{web.url}{folder}changing.safetensors")
        assert np.array_equal(file["layer.0.w"], FLOATS["layer.0.w"])
        write(path)
        os.utime(path, (1e9, 1e9))
        with pytest.raises(FileChangedError):
            file["layer.0.w"]
    assert [status for uri, _, status, _ in web.asked() if uri == "/changing.safetensors"][-1] == 412


@needs_nginx
def test_what_nginx_refuses(web):
    with pytest.raises(FileNotFoundError):
        wm.open(f"{web.url}nothing")
    with pytest.raises(PermissionError):
        wm.open(f"{web.url}forbidden/m.weights")
    with pytest.raises(RemoteError, match="503 Service Unavailable"):
        wm.open(f"{web.url}broken/m.weights")
    assert sum(uri.startswith("/broken/") for uri, *_ in web.asked()) == 5
    with pytest.raises(RemoteError, match="ignores ranges"):
        wm.open(f"{web.url}whole/m.weights")
    with pytest.raises(RemoteError, match="redirects to 127"):
        wm.open(f"{web.url}moved/m.weights")
    assert right(wm.open(f"{web.url}moved/m.weights", remote=wm.Remote(redirects=True)))
    assert right(wm.open(f"{web.url}model/"))
    with pytest.raises(RemoteError, match="redirects"):  # without its slash
        wm.open(f"{web.url}model")
    with pytest.raises(RemoteError, match="took too long"):
        wm.open(f"{web.url}slow/m.weights", remote=wm.Remote(deadline=0.2))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s3")
    write_shards(folder / "model")
    for suffix in SUFFIXES:
        write(folder / f"m{suffix}")
    with s3() as address:
        store = bucket(address)
        for path in sorted(folder.rglob("*.*")):
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())
        yield address


def bucket(address):
    keys = {"access_key_id": "AKIDSECRET", "secret_access_key": "KEYSECRET", "region": "us-east-1"}
    return S3Store("bucket", endpoint=address, client_options={"allow_http": True}, **keys)


@pytest.fixture
def environment(endpoint, tmp_path_factory, monkeypatch):
    """Let ``s3://`` lead to the S3 server, and ``gs://`` too: the client for Google asks by the same XML."""
    account = {"gcs_base_url": endpoint, "disable_oauth": True}
    account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    path = tmp_path_factory.mktemp("google") / "account.json"
    path.write_text(json.dumps(account))
    found = {**KEYS, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    found |= {"GOOGLE_SERVICE_ACCOUNT": str(path), "GOOGLE_ALLOW_HTTP": "true"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("source", ["model", "model/", f"model/{INDEX}", *(f"m{end}" for end in SUFFIXES)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_buckets_serve_every_format(scheme, source):
    with wm.open(f"{scheme}://bucket/{source}") as file:
        assert right(file)
        assert all(np.array_equal(array, FLOATS[name]) for name, array in wm.plan(file).run())
        rows = dict(wm.plan(file, {"layer.3.w": np.s_[10:12]}).run("read"))["layer.3.w"]
        assert np.array_equal(rows, FLOATS["layer.3.w"][10:12])
        file.verify()
        assert right(pickle.loads(pickle.dumps(file)))


@pytest.mark.usefixtures("environment")
def test_large_files_are_uploaded_in_parts(endpoint, monkeypatch):
    """A failed upload leaves no object, and tells the store to drop its parts."""
    store = bucket(endpoint)
    tensors = {f"t{n}": np.full(1 << 20, n, np.float32) for n in range(4)}
    with forwarder(endpoint) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        made.refuse = "partNumber=2"
        with pytest.raises(PermissionError):
            wm.save("s3://bucket/up/m.safetensors", tensors)
        assert not list(store.list("up").collect())
        begun = [path for path in made.asked if path.startswith("POST") and "uploads" in path]
        assert begun
        assert len(begun) == sum(path.startswith("DELETE") and "uploadId=" in path for path in made.asked)
        made.refuse, made.asked[:] = None, []
        wm.save("s3://bucket/up/m.safetensors", tensors)
        assert sum("partNumber=" in path for path in made.asked) == 4
        made.asked.clear()
        folder = "s3://bucket/up/model/"
        assert main(["convert", "s3://bucket/up/m.safetensors", folder, "--max-shard-size", "5MiB"]) == 0
        asked = [path for path in made.asked if ("POST" in path or "PUT" in path) and "?delete" not in path]
        assert asked[-1].partition("?")[0].rpartition("/")[2] == "model.safetensors.index.json"
        assert not [path for path in store.list("up").collect() if path["path"].endswith(".upload")]
        with wm.open("s3://bucket/up/model") as file:
            assert all(np.array_equal(array, tensors[name]) for name, array in file.items())


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_object_that_changes(scheme, endpoint):
    store, address = bucket(endpoint), f"{scheme}://bucket/"
    data = bytes(store.get("m.weights").bytes())
    store.put("changing", data)
    file = wm.open(f"{address}changing")
    assert right(file)
    store.put("changing", data[:-1] + b"!")
    with pytest.raises(FileChangedError, match=f"{address}changing"):
        file["layer.3.w"]
    store.delete("changing")
    with pytest.raises(FileChangedError, match=f"{address}changing"):
        file["layer.4.w"]
    with pytest.raises(FileNotFoundError, match=f"{address}changing"):
        wm.open(f"{address}changing")
    store.put("empty", b"")
    with pytest.raises(wm.TruncatedError, match="the file is empty"):
        wm.open(f"{address}empty")
    for name in (INDEX, "model-00001-of-00004.safetensors"):
        store.put(f"less/{name}", bytes(store.get(f"model/{name}").bytes()))
    with pytest.raises(LayoutError, match=r"lists no 'model-00002-of-00004.safetensors'.*3 such shards"):
        wm.open(f"{address}less")


@pytest.fixture
def broken(endpoint):
    """A proxy before the S3 server that breaks connections on demand."""
    with proxy(endpoint) as made:
        yield made


@pytest.fixture
def by_proxy(broken, monkeypatch):
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": broken.url, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("by_proxy")
@pytest.mark.parametrize("fault", ["reset", "short", "500", "stall"])
def test_connections_that_break(fault, broken, caplog):
    file = wm.open("s3://bucket/m.safetensors", remote=wm.Remote(deadline=1.0 if fault == "stall" else None))
    broken.faults = [fault, fault]
    assert np.array_equal(file["layer.9.w"], FLOATS["layer.9.w"])
    broken.always = fault
    before = broken.connections
    with pytest.raises(RemoteError, match=r"\(5 attempts\)") as caught:
        file["layer.9.w"]
    assert broken.connections - before == 5
    shown = f"{caught.value} {caught.value!r} {caught.value.__notes__ if hasattr(caught.value, '__notes__') else ''}"
    assert "SECRET" not in shown + caplog.text + repr(file)
    broken.always = ""
    assert right(file)


@pytest.mark.parametrize(("scheme", "pool"), [("s3", "threads"), ("s3", "processes"), ("gs", "processes")])
def test_executors_take_addresses(scheme, pool, environment, tmp_path):
    """Workers fetch the shards of a folder in a store themselves, by names: no credentials go along."""
    source = f"{scheme}://bucket/model"
    wm.convert(source, f"{tmp_path}/serial/", format="amb", quantize="int4_block")
    spawn = {"mp_context": multiprocessing.get_context("spawn")}
    sent = []
    with ThreadPoolExecutor(2) if pool == "threads" else ProcessPoolExecutor(2, **spawn) as executor:
        submit = executor.submit
        executor.submit = lambda *of: sent.append(pickle.dumps(of)) or submit(*of)
        out, manifest = f"{tmp_path}/out/", tmp_path / "manifest.json"
        for skipped in (0, 4):
            run = wm.Run(executor, manifest=manifest)
            assert wm.convert(source, out, format="amb", quantize="int4_block", run=run).skipped == skipped
        assert wm.verify(source, run=wm.Run(executor)).checks
    same = {path.name: path.read_bytes() for path in (tmp_path / "serial").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == same
    assert sent
    for text in sent:
        assert len(text) < 4096
        assert not any(value.encode() in text for value in environment.values())


@pytest.mark.usefixtures("environment")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("source", ["model", "m.amb", "m.safetensors"])
def test_torch_loads_from_stores(source):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    dcp = pytest.importorskip("torch.distributed.checkpoint", reason="needs PyTorch")
    from weightmap.dcp import WeightmapStorageReader

    state = {name: torch.zeros(array.shape) for name, array in FLOATS.items()}
    reader = WeightmapStorageReader(f"s3://bucket/{source}")
    dcp.load(state, storage_reader=reader, no_dist=True)
    assert all(np.array_equal(state[name].numpy(), array) for name, array in FLOATS.items())
    assert reader.report.wanted_nbytes == TOTAL


@pytest.mark.skipif(AZURITE is None, reason="azurite-blob is not installed (npm install -g azurite)")
def test_azure_serves_files_folders_and_parts(tmp_path, monkeypatch):
    write_shards(tmp_path / "model")
    with azure() as address:
        for name, value in {**AZURE_KEYS, "AZURE_STORAGE_ENDPOINT": address}.items():
            monkeypatch.setenv(name, value)
        store = AzureStore("models", client_options={"allow_http": True})
        for path in (tmp_path / "model").iterdir():
            store.put(f"model/{path.name}", path.read_bytes())
        with wm.open("az://models/model") as file:
            assert right(file)
            rows = dict(wm.plan(file, {"layer.3.w": np.s_[10:12]}).run("read"))["layer.3.w"]
            assert np.array_equal(rows, FLOATS["layer.3.w"][10:12])
        first, second = (f"model/model-0000{number}-of-00004.safetensors" for number in (1, 2))
        with wm.open(f"az://models/{first}") as file:
            store.put(first, (tmp_path / second).read_bytes())
            with pytest.raises(FileChangedError, match="az://models/model/model-00001"):
                file["layer.0.w"]
        with pytest.raises(FileNotFoundError, match="az://models/absent"):
            wm.open("az://models/absent.safetensors")
