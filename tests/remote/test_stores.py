"""Models in object stores: every format, what it costs in requests and bytes, folders and indexes, the command line."""

import json
import logging
import pickle
import struct
import sys
import traceback
from types import SimpleNamespace

import numpy as np
import pytest
from tests import attacks, builders
from tests.builders import safetensors as safe
from tests.remote.servers import AsyncStore, GenericError, Objects, Server, Stored, Virtual
from tests.support import in_one_item

import weightmap as wm
from weightmap.cli import main
from weightmap.errors import (
    ClosedError,
    LayoutError,
    LimitError,
    MissingDependencyError,
    NotRegularFileError,
    TensorFileError,
)
from weightmap.remote import fetching

EXAMPLES = {example.name: example for example in builders.examples()}
KIB, GIB = 1 << 10, 1 << 30
FLOATS = {f"layer.{i}.w": np.arange(64 * 256, dtype=np.float32).reshape(64, 256) + i for i in range(24)}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(fetching, "FIRST_WAIT", 0.0)


@pytest.fixture
def objects():
    return Objects({})


@pytest.fixture
def url(objects):
    with Server(objects) as server:
        yield server.url


def saved(suffix, tensors=FLOATS, *, tmp):
    path = tmp / f"model{suffix}"
    wm.save(path, tensors)
    return path.read_bytes()


def sharded(tensors=FLOATS, count=4, folder="model"):
    return {f"{folder}/{name}": data for name, data in safe.sharded(tensors, count).items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_format_opens_in_a_store(name, objects):
    example = EXAMPLES[name]
    objects.objects["folder/file"] = example.data
    with wm.open("folder/file", remote=wm.Remote(Stored(objects))) as file:
        assert (file.format, file.nbytes, file.path) == (example.format, len(example.data), "folder/file")
        assert dict(file.metadata) == dict(example.metadata)
        assert (None if file.vocab is None else tuple(file.vocab)) == example.vocab
        with wm.open(example.data) as local:
            assert file.infos() == local.infos()
            for tensor in local:
                assert np.asarray(file[tensor]).tobytes() == np.asarray(local[tensor]).tobytes()
            assert file.verify() == local.verify()._replace(path="folder/file")


def refused():
    found = {}
    for case in attacks.cases():
        if case.error and case.size is None and isinstance(case.data, bytes):
            found.setdefault(case.kind, []).append(case)
    return found


@pytest.mark.parametrize("kind", refused())
def test_attacks_are_refused_in_a_store_as_in_a_file(kind, objects):
    """Requests ahead follow unchecked headers: the error is the same as for the file."""
    for case in refused()[kind]:
        objects.objects["m"] = case.data
        with (
            pytest.raises(TensorFileError) as caught,
            wm.open("m", remote=wm.Remote(Stored(objects)), format=case.format) as file,
        ):
            file.verify()
        assert type(caught.value).__name__ == case.error, case.id
        assert case.field in (None, caught.value.field), case.id
        assert case.offset in (None, caught.value.offset), case.id


@pytest.mark.parametrize("suffix", [".safetensors", ".weights", ".amb", ".bt", ".gguf"])
@pytest.mark.parametrize("kind", [Server, Stored, AsyncStore])
def test_tensors_are_private_memory(suffix, kind, tmp_path):
    objects = Objects({"m": saved(suffix, tmp=tmp_path)})
    with Server(objects) as server:
        file = wm.open(server.url + "m") if kind is Server else wm.open("m", remote=wm.Remote(kind(objects)))
        first = file["layer.3.w"]
        first[0] = -1
        assert np.array_equal(file["layer.3.w"], FLOATS["layer.3.w"])
        assert all(np.array_equal(array, FLOATS[name]) for name, array in file.items())
        assert file.is_stable
        file.close()
        with pytest.raises(ClosedError):
            file["layer.3.w"]
        assert first[0, 0] == -1


def test_one_tensor_of_a_large_object_takes_three_requests(objects, url):
    rows = 4 << 20
    each, count = 4 * rows, 640
    names = {
        f"model.layers.{i}.weight": {"dtype": "F32", "shape": [1024, 4096], "data_offsets": [i * each, i * each + each]}
        for i in range(count)
    }
    header = json.dumps(names).encode()
    header += b" " * (-len(header) % 8)
    objects.objects["big"] = Virtual(struct.pack("<Q", len(header)) + header, 8 + len(header) + count * each)
    assert len(objects.objects["big"]) > 10 * GIB - 64 * KIB
    file = wm.open(url + "big")
    assert len(objects.requests) <= 2
    assert file["model.layers.300.weight"].shape == (1024, 4096)
    assert len(objects.requests) <= 3
    assert objects.nbytes <= each + len(header) + 64 * KIB


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_reads_its_part(world, objects, url, tmp_path):
    """Each of several ranks fetches its part of the bytes and 2 %, of whole tensors and of slices."""
    objects.objects["m"] = saved(".safetensors", tmp=tmp_path)
    total = sum(array.nbytes for array in FLOATS.values())
    for wants in (None, 0):
        seen = {}
        for rank in range(world):
            file = wm.open(url + "m")
            plan = wm.plan(
                file, None if wants is None else wm.shard("layer.0.w", 0, rank, world), rank=rank, world_size=world
            )
            objects.requests.clear()
            for name, array in plan.run():
                seen.setdefault(name, []).append(array)
            assert objects.nbytes <= total / world * 1.02
            assert len(objects.requests) <= len(plan.reads)
        assert all(np.array_equal(np.concatenate(seen[name]), FLOATS[name]) for name in FLOATS)


@pytest.mark.parametrize("source", ["model", "model/", "model/model.safetensors.index.json"])
@pytest.mark.parametrize("kind", [Stored, AsyncStore])
def test_models_of_several_files(source, kind):
    objects = Objects(sharded())
    with wm.open(source, remote=wm.Remote(kind(objects))) as file:
        assert len(file.shards) == 4
        assert all(np.array_equal(file[name], FLOATS[name]) for name in FLOATS)
        assert dict(wm.plan(file, ["layer.1.w"]).run())["layer.1.w"].tobytes() == FLOATS["layer.1.w"].tobytes()


def test_a_folder_of_a_server_that_lists_nothing(objects, url):
    """Of an address that ends with a slash, the usual names are tried."""
    objects.objects |= sharded(folder="there")
    with wm.open(url + "there/") as file:
        assert np.array_equal(file["layer.7.w"], FLOATS["layer.7.w"])
    with pytest.raises(NotRegularFileError, match=r"has no \*.index.json"):
        wm.open(url + "nowhere/")
    with pytest.raises(FileNotFoundError, match=r"\(404 Not Found; the address of a folder ends in a slash\)"):
        wm.open(url + "there")


def test_a_store_that_lists_less_than_the_index_names(objects, url):
    objects.objects |= sharded()
    del objects.objects["model/model-00003-of-00004.safetensors"]
    with pytest.raises(LayoutError, match=r"lists no 'model-00003-of-00004\.safetensors'.*\(1 such shard\)"):
        wm.open("model", remote=wm.Remote(Stored(objects)))
    with pytest.raises(LayoutError, match=r"'model-00003-of-00004\.safetensors' of this model is missing"):
        wm.open(url + "model/model.safetensors.index.json")


ELSEWHERE = ["../x", "/x", "https://elsewhere/x", "s3://b/x", "%2e%2e/x", ".%2E/x", "..%2fx", "a/%2e%2e%2f../x"]
ELSEWHERE += ["..%5cx", "%252e%252e/x", "%25%32%65%25%32%65/x", f"%{'25' * 20}2e/x", ".. /x", "..%20/x", "...", "%2e"]
ELSEWHERE += ["%2fx"]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_shards_elsewhere_are_never_asked_for(name, objects, url, tmp_path):
    index = json.dumps({"weight_map": {"w": name}}).encode()
    objects.objects |= {"m/a.index.json": index, "x": safe.build({"w": builders.normal((2, 2))})}
    (tmp_path / "a.index.json").write_bytes(index)
    for source, store in (("m/a.index.json", Stored(objects)), (f"{url}m/a.index.json?token=SECRET", None)):
        with pytest.raises(TensorFileError, match="relative path within the directory"):
            wm.open(source, remote=wm.Remote(store))
    with pytest.raises(TensorFileError, match="relative path within the directory"):
        wm.open(tmp_path / "a.index.json")
    assert {request.key for request in objects.requests} == {"m/a.index.json"}


@pytest.mark.parametrize(
    "name", ["a%41", "50%25", "a b/\N{LATIN SMALL LETTER E WITH ACUTE}", "a?b#c", "..;/x", "a%2fb", "a+b&c=d~"]
)
def test_names_are_what_they_are(name, objects, url, tmp_path):
    shard, index = safe.build({"w": builders.normal((2, 2))}), json.dumps({"weight_map": {"w": name}}).encode()
    objects.objects |= {"my 100%/a.index.json": index, f"my 100%/{name}": shard}
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(shard)
    (tmp_path / "a.index.json").write_bytes(index)
    address = f"{url}my%20100%25/a.index.json?token=1%202"
    for source, store in (
        (str(tmp_path / "a.index.json"), None),
        ("my 100%/a.index.json", Stored(objects)),
        (address, Stored(objects)),
        (address, None),
    ):
        objects.requests.clear()
        with wm.open(source, remote=wm.Remote(store)) as file:
            assert list(file.shards) == [name]
            assert file["w"].shape == (2, 2)
        assert {request.key for request in objects.requests} <= {"my 100%/a.index.json", f"my 100%/{name}"}
    with pickle.loads(pickle.dumps(file)) as again:
        assert again["w"].shape == (2, 2)
    assert {request.target.partition("?")[2] for request in objects.requests} == {"token=1%202"}


class Choosy(Stored):
    """A store that refuses names with control characters as obstore does."""

    def get(self, path, *, options):
        if not path.isprintable():
            raise ValueError(f"Could not parse path: secret {path}")
        return super().get(path, options=options)


@pytest.mark.parametrize("location", ["x\x1b.data", "x\n.data", "x\x7f.data"])
def test_names_that_a_store_refuses(location, objects):
    """In a stranger's file: an error of the tree, without the store's text."""
    objects.objects["m/a.index.json"] = json.dumps({"weight_map": {"w": location}}).encode()
    objects.objects[f"m/{location}"] = b""
    with pytest.raises(wm.RemoteError, match="the store does not accept this name") as caught:
        wm.open("m/a.index.json", remote=wm.Remote(Choosy(objects)))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "prefix"), [("s3", "AWS_"), ("gs", "GOOGLE_"), ("az", "AZURE_")])
def test_a_store_that_its_environment_does_not_make(scheme, prefix, monkeypatch, capsys):
    def make(*_, **__):
        raise GenericError("failed to parse SECRET as boolean")

    stores = SimpleNamespace(S3Store=make, GCSStore=make, AzureStore=make)
    monkeypatch.setitem(sys.modules, "obstore", SimpleNamespace(store=stores))
    with pytest.raises(wm.RemoteError, match=f"^{scheme}://b/m: .*variables that begin with {prefix}$") as caught:
        wm.open(f"{scheme}://b/m")
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))
    assert main(["inspect", f"{scheme}://b/m"]) == 4
    assert "SECRET" not in "".join(capsys.readouterr())


def test_a_store_that_panics(objects):
    """obstore raises it if it cannot make a request, as for a line break in a password."""
    panic = type("RustPanic", (Exception,), {})

    class Panicking(Stored):
        def get(self, path, *, options):
            raise panic("secret")

    with pytest.raises(wm.RemoteError, match="this address makes no valid request") as caught:
        wm.open("m", remote=wm.Remote(Panicking(objects)))
    assert "secret" not in str(caught.value)


def test_limits_hold_before_bytes_come(objects, url, tmp_path):
    objects.objects["m"] = saved(".safetensors", tmp=tmp_path)
    with wm.open(url + "m", limits=wm.Limits(max_copy_bytes=1000)) as file, pytest.raises(LimitError):
        file["layer.0.w"]
    with pytest.raises(LimitError):
        wm.open(url + "m", limits=wm.Limits(max_header_bytes=100))


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_missing_obstore_is_named_with_its_extra(scheme, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    url = f"{scheme}://bucket/folder/model.safetensors"
    with pytest.raises(
        MissingDependencyError, match=f"^{url}: {scheme}:// addresses need obstore: pip install '.\\[remote\\]'"
    ):
        wm.open(url)


NO_ADDRESSES = ["user:SECRET@host/m", "user:SECRET@ho\N{ACCOUNT OF}st/m", "/m", "[::1/m?SECRET", "host:99999/m?SECRET"]
NO_ADDRESSES += ["host:SECRET/m", f"{'a' * 64}/m", "a..b/m"]
NO_ADDRESSES = [*(f"https://{rest}" for rest in NO_ADDRESSES), "s3://KEY:SECRET@bucket/m", "s3:///m"]
NO_ADDRESSES += ["s3://b SECRET/m", "s3://b//m", "s3://b/./m", "s3://b/a/../m", "gs://b/a//m", "az://b/m//"]
NO_BOUNDS = [{"concurrency": 0}, {"deadline": 0}, {"deadline": float("inf")}]


@in_one_item("source, options", [*((it, {}) for it in NO_ADDRESSES), *(("https://host/m", it) for it in NO_BOUNDS)])
def test_what_no_address_has_is_refused(source, options):
    """Names and passwords in addresses, and impossible bounds, are refused without being repeated."""
    with pytest.raises(ValueError, match=r"address|concurrency|deadline") as caught:
        wm.open(source, remote=wm.Remote(**options))
    assert "SECRET" not in str(caught.value)


def test_signatures_are_shown_to_the_server_alone(objects, url, tmp_path, caplog):
    """The part behind the ? of an address is in no name, no error and no log; the server gets it."""
    caplog.set_level(logging.DEBUG)
    objects.objects["m"] = saved(".safetensors", tmp=tmp_path)
    file = wm.open(url + "m?X-Amz-Signature=SECRET")
    with pytest.raises(NotRegularFileError) as folder:
        wm.open(url.removesuffix("/") + "?X-Amz-Signature=SECRET@a")
    said = [str(folder.value), repr(file), str(file.path), repr(wm.plan(file)), str(wm.plan(file).explain())]
    for fault in ("403", "404", "410", "400", "500", "302", "reset", "elsewhere", "whole", "silent", "412", "416"):
        objects.always = fault
        objects.redirect = "https://other.example/m?X-Amz-Signature=SECRET"
        for call in (lambda: file["layer.20.w"], lambda: wm.open(url + "m?X-Amz-Signature=SECRET")):
            with pytest.raises(OSError, match=r"127\.0\.0\.1") as caught:
                call()
            shown = caught.value
            while shown is not None:
                said += [str(shown), repr(shown), repr(getattr(shown, "__notes__", ""))]
                shown = None if shown.__suppress_context__ else shown.__cause__ or shown.__context__
    assert "secret" not in " ".join([*said, caplog.text]).lower()


def test_the_command_line_takes_addresses(objects, url, tmp_path, capsys):
    objects.objects |= {"m.safetensors": saved(".safetensors", tmp=tmp_path), **sharded()}
    address, target = url + "m.safetensors", tmp_path / "out.weights"
    assert main(["inspect", address]) == 0
    assert "layer.7.w" in capsys.readouterr().out
    assert main(["verify", address, url + "model/"]) == 0
    assert main(["convert", address, str(target)]) == 0
    assert np.array_equal(wm.open(target)["layer.4.w"], FLOATS["layer.4.w"])
    assert main(["convert", url + "model/", str(tmp_path / "again.weights")]) == 0
    assert main(["export", address, "layer.6.w", str(tmp_path / "w.npy")]) == 0
    assert np.array_equal(np.load(tmp_path / "w.npy"), FLOATS["layer.6.w"])
    assert main(["diff", address, str(target)]) == 0
    assert main(["doctor", address]) == 0
    assert main(["inspect", url + "nothing"]) == 4


def test_commands_print_no_signature(objects, url, tmp_path, capsys):
    """The query of an address is in nothing that a command prints, whether it works or fails."""
    objects.objects["m.safetensors"] = saved(".safetensors", tmp=tmp_path)
    out, page = str(tmp_path / "out.amb"), str(tmp_path / "out.html")
    for name in ("m.safetensors", "missing", ""):
        source = f"{url}{name}?X-Amz-Signature=SECRET"
        for command in (
            ["inspect", source],
            ["inspect", source, source],
            ["verify", source],
            ["verify", source, source],
            ["doctor", source],
            ["diff", source, source],
            ["convert", source, out],
            ["quantize", source, out, "--scheme", "int8"],
            ["export", source, "layer.6.w", str(tmp_path / "w.npy")],
            ["report", source, page],
            ["sign", source, "--key", "key.pem"],
            ["cache", "show", source],
            ["cache", "warm", source],
            ["cache", "evict", source],
            ["words", "lookup", source, "word"],
            ["delta", "apply", str(tmp_path), source],
            ["delta", "apply", source, str(tmp_path)],
            ["delta", "pull", str(tmp_path / "local"), source],
            ["delta", "publish", source, source, str(tmp_path / "published"), "--version", "1"],
        ):
            for as_json in ([], ["--json"] if command[0] not in {"export", "sign"} else []):
                main([*command, *as_json])
                assert "SECRET" not in "".join(capsys.readouterr()), command
