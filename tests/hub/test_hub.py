"""Models by their names on the Hugging Face Hub, with the real huggingface_hub and a Hub of our own."""

import base64
import contextlib
import errno
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests import builders
from tests.builders import safetensors as safe
from tests.hub.hub_server import Hub, git_hash, sha256
from tests.remote.test_proxies import Proxy
from tests.support import SOURCES, until

import weightmap as wm
import weightmap.hub
from weightmap import compat
from weightmap.cli import main
from weightmap.core.model.internals import sources_of
from weightmap.errors import (
    AddressError,
    ChecksumError,
    FileChangedError,
    MissingDependencyError,
    NotRegularFileError,
    RemoteError,
)
from weightmap.remote import fetching

hub_library = pytest.importorskip("huggingface_hub")


NAME = "owner/model"
TENSORS = {f"layers.{i}.w": np.arange(64 * 64, dtype=np.float32).reshape(64, 64) + i for i in range(12)}


def sharded(count, tensors=TENSORS):
    return safe.sharded(tensors, count) | {"config.json": b'{"model_type": "toy"}'}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub with one model, and huggingface_hub set up for it."""
    from huggingface_hub import constants

    monkeypatch.setattr(fetching, "FIRST_WAIT", 0.0)
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # its thread would stay
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with Hub() as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        template = made.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        made.repositories[NAME] = {"main": sharded(3)}
        yield made
        hub_library.close_session()


def equal(found):
    return found.keys() == TENSORS.keys() and all(np.array_equal(found[name], TENSORS[name]) for name in TENSORS)


def cache(file, **options):
    return str(hub_library.hf_hub_download(NAME, file, **options))


def shared(*files):
    """Download files with huggingface_hub, and let it move them to the store that all repositories share."""
    store = pytest.importorskip("huggingface_hub.utils._shared_blobs")
    for file in files:
        link = Path(cache(file))
        blob = link.parent / link.readlink()
        how = {"cache_dir": hub_library.constants.HF_HUB_CACHE, "expected_size": blob.stat().st_size}
        assert store.publish_blob_to_shared_store(blob_path=str(blob), xet_hash=sha256(file.encode()), **how)
        assert blob.is_symlink()


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/model.safetensors.index.json", "/a folder/of it", "/a folder/of it/"),
        *("@main", "@v1%2Fx/", "@refs/pr/7", "@COMMIT/model.safetensors.index.json"),
    ],
)
def test_every_form_of_an_address(path, hub):
    """A repository, a folder of it, a file; the main branch, another one, a pull request, a commit."""
    hub.repositories[NAME] |= {"v1/x": sharded(2), "refs/pr/7": sharded(1)}
    hub.repositories[NAME]["main"] |= {f"a folder/of it/{name}": data for name, data in sharded(2).items()}
    address = f"hf://{NAME}{path}".replace("COMMIT", git_hash(f"{NAME} main".encode()))
    assert equal(wm.load(address))
    assert hub.count("api") == 1


@pytest.mark.parametrize(
    "name",
    [
        *("", "owner", "owner/", "owner/@main", "owner/name@", "owner/name/../x", "owner/name/a//x"),
        *("owner/name@../../x", "owner/name@%2Fetc", "owner/name@a%00b", "owner/name/a\0b", "owner/name/\ud800"),
        *("ow ner/name", "owner/na--me", "owner/name.git"),
        *("owner/name/a:b.gguf", "owner/name@main/C:/x.gguf", "owner/name/a\\..\\b.gguf", "owner/name/a%2F..%2Fb"),
    ],
)
def test_other_addresses_are_refused(name, capsys):
    """Addresses without a repository, a revision or a plain path: on the command line, an error of usage."""
    address = f"hf://{name}"
    for call in (wm.open, weightmap.hub.download, partial(weightmap.hub.download, deadline=1)):
        with pytest.raises(AddressError, match="hf://owner/name"):
            call(address)
    assert main(["inspect", address]) == 2
    assert "expected hf://owner/name" in capsys.readouterr().err


def loaded_by_safe_open(address, _):
    """Read tensors as users of safetensors do."""
    with compat.safe_open(address, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


def pulled(address, tmp_path):
    """Make a local copy, and pull nothing to it: the version is the base's."""
    wm.convert(address, tmp_path / "local.safetensors")
    return wm.load(tmp_path / "local.safetensors")


CALLS = {
    "plan": lambda address, _: dict(wm.plan(address).run()),
    "convert": pulled,
    "compat.load_file": lambda address, _: compat.load_file(address),
    "compat.safe_open": loaded_by_safe_open,
    "pickled": lambda address, _: dict(pickle.loads(pickle.dumps(wm.open(address)))),
    "config of another one": lambda address, _: dict(wm.open(address, config={"model_type": "toy"})),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("path", ["", "/model.gguf"])
def test_addresses_are_taken_by(call, path, hub, tmp_path):
    """Models of several files and single files, wherever an address is taken."""
    wm.save(tmp_path / "m.gguf", TENSORS)
    hub.repositories[NAME]["main"]["model.gguf"] = (tmp_path / "m.gguf").read_bytes()
    assert equal(CALLS[call](f"hf://{NAME}{path}", tmp_path))


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    """Without huggingface_hub, the error says what to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"huggingface_hub: pip install '\.\[hub\]'"):
        wm.open(f"hf://{NAME}")


def test_a_model_of_many_shards(hub):
    """Opening takes two requests a shard, many at a time; then a layer costs its bytes."""
    tensors = {f"layers.{i}.w": np.full((64, 1024), i, np.float32) for i in range(282)}
    hub.repositories[NAME]["main"] = sharded(282, tensors)
    hub.together = threading.Barrier(20)
    with wm.open(f"hf://{NAME}") as file:
        assert len(file) == 282
        assert len(hub.asked) <= 2 * 282 + 4  # the list of files, the index, and config.json is not asked for
        hub.asked.clear()
        with wm.plan(file, ["layers.281.w"]) as plan:
            (array,) = (array for _, array in plan.run())
        assert np.array_equal(array, tensors["layers.281.w"])
        assert sum(asked.nbytes for asked in hub.asked) <= 1.05 * array.nbytes
        assert [asked.what for asked in hub.asked] == ["data"]


@pytest.mark.parametrize("target", ["new/", "new.gguf", "new.weights"])
def test_a_cached_model_is_converted_offline(target, hub, tmp_path, monkeypatch):
    """Without optional files that it lacks, such as a vocabulary; and without asking for its time."""
    from huggingface_hub import constants

    weightmap.hub.download(f"hf://{NAME}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    report = wm.convert(f"hf://{NAME}", f"{tmp_path}/{target}")
    assert equal(wm.load(report.dst))
    assert report.copied == (("config.json",) if target == "new/" else ())
    assert not hub.asked


def test_a_cached_model_without_permission_is_the_error_of_the_system(hub, monkeypatch):
    """It was taken for a model without files, and downloading again was the remedy."""
    from huggingface_hub import constants

    folder = weightmap.hub.download(f"hf://{NAME}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def refusing(call):
        def called(path):
            if os.fspath(path) == os.fspath(folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return call(path)

        return called

    with monkeypatch.context() as patch:  # for root, permissions have no effect
        patch.setattr(os, "listdir", refusing(os.listdir))
        patch.setattr(os, "scandir", refusing(os.scandir))
        with pytest.raises(PermissionError, match=re.escape(os.fspath(folder))):
            wm.open(f"hf://{NAME}")


def test_two_revisions_share_the_headers_of_equal_files(hub):
    """A diff asks for a file of the second revision only where its digest differs."""
    changed = sharded(3, TENSORS | {"layers.0.w": TENSORS["layers.0.w"] + 1})
    hub.repositories[NAME]["v1"] = changed
    with wm.open(f"hf://{NAME}") as file:
        opened = len(hub.asked)
        assert [one.name for one in wm.diff(file, f"hf://{NAME}@v1").changed] == ["layers.0.w"]
    asked = {one.path.rpartition("/")[2] for one in hub.asked[opened:] if one.what == "resolve"}
    assert asked == {"model.safetensors.index.json", "model-00001-of-00003.safetensors"}


def test_what_the_cache_holds_is_mapped(hub, monkeypatch):
    """Cached files need no request, others are fetched and not written; offline, the cache must have them."""
    from huggingface_hub import constants

    index, first = "model.safetensors.index.json", "model-00001-of-00003.safetensors"
    cache(index)
    cache(first)
    hub.asked.clear()
    with wm.open(f"hf://{NAME}") as file:
        assert {asked.path for asked in hub.asked if asked.what == "resolve"} == {
            name for name in hub.repositories[NAME]["main"] if name.startswith("model-") and name != first
        }
        mapped = {name for name in file if not file[name].flags.writeable}
        assert mapped == set(file.shards[first])
        assert equal(dict(file))
    held = {name for _, _, names in os.walk(constants.HF_HUB_CACHE) for name in names}
    assert {index, first} <= held
    assert "model-00002-of-00003.safetensors" not in held
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    with wm.open(f"hf://{NAME}/{first}") as file:
        assert len(file) == 4
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE, and the cache does not have it"):
        wm.open(f"hf://{NAME}/model-00002-of-00003.safetensors")
    with pytest.raises(RemoteError, match="no revision 'v2' of owner/model"):
        wm.open(f"hf://{NAME}@v2/{first}")
    known = Path(constants.HF_HUB_CACHE) / "models--owner--model" / "refs" / "main"
    known.write_bytes(b"\xff")
    for spoil in (lambda: None, lambda: os.truncate(known, 1 << 40), lambda: (known.unlink(), os.mkfifo(known))):
        spoil()
        with pytest.raises(RemoteError, match="no revision 'main' of owner/model"):
            wm.open(f"hf://{NAME}/{first}")
    assert not hub.asked


def test_the_token_goes_to_the_hub_alone(hub, monkeypatch):
    """Requests to the Hub carry it, requests to the server of large files do not; no pickle holds it."""
    hub.tokens[NAME] = {"hf_secret"}
    with pytest.raises(FileNotFoundError, match=r"no repository owner/model, or a private one.*HF_TOKEN"):
        wm.open(f"hf://{NAME}")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.asked.clear()
    with wm.open(f"hf://{NAME}") as file:
        assert equal(dict(file))
        assert b"hf_secret" not in pickle.dumps(file)
    for asked in hub.asked:
        assert asked.token == (None if asked.what == "data" else "Bearer hf_secret")


@pytest.mark.parametrize("what", ["api", "resolve"])
def test_a_redirect_to_another_host_gets_no_token(what, hub, monkeypatch):
    """For the list of files, and for a file: the other host never sees the token."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults[what] += [(307, {"Location": f"{hub.data_url}/somewhere"})]
    with pytest.raises((FileNotFoundError, RemoteError), match=r"hf://owner/model") as caught:
        wm.open(f"hf://{NAME}")
    assert [asked.token for asked in hub.asked if asked.what == "elsewhere"] == [None]
    assert "hf_secret" not in str(caught.value)


REFUSED = (401, {"X-Error-Message": "Invalid credentials in Authorization header"})


@pytest.mark.parametrize("what", ["api", "resolve"])
@pytest.mark.parametrize("fault", [REFUSED, (403, {})])
def test_a_token_that_is_refused(what, fault, hub, monkeypatch):
    """An expired token, or one for other repositories: no second request, and the message does not show it."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults[what] += [fault] * 200
    with pytest.raises(PermissionError, match=rf"{fault[0]} .*the token may not read {NAME}; log in with") as caught:
        wm.open(f"hf://{NAME}")
    assert "secret" not in str(caught.value)
    assert hub.count(what) == 1


def test_what_is_not_there_is_named(hub, monkeypatch):
    """A repository, a revision, a file: the message names it, and what to do."""
    with pytest.raises(FileNotFoundError, match="no repository owner/other, or a private one: check the name"):
        wm.open("hf://owner/other")
    with pytest.raises(FileNotFoundError, match="owner/model has no revision 'v9'"):
        wm.open(f"hf://{NAME}@v9")
    with pytest.raises(FileNotFoundError, match=r"owner/model has no such file.*hf://owner/model/m.gguf"):
        wm.open(f"hf://{NAME}/m.gguf")
    hub.gated.add(NAME)
    with pytest.raises(PermissionError, match=rf"owner/model is gated: accept its conditions at {hub.url}/{NAME}"):
        wm.open(f"hf://{NAME}")
    with pytest.raises(PermissionError, match="owner/model is gated"):
        weightmap.hub.download(f"hf://{NAME}")
    for status in (401, 403):  # also for the list of files, and without a login
        hub.faults["api"] += [(status, {"X-Error-Code": "GatedRepo"})]
        with pytest.raises(PermissionError, match="owner/model is gated"):
            wm.open(f"hf://{NAME}")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url.replace("//", "//bob:PASSWORD@"))
    hub.faults["api"] += [(403, {"X-Error-Code": "GatedRepo"})]
    with pytest.raises(PermissionError, match=rf"owner/model is gated: accept its conditions at {hub.url}/{NAME}"):
        wm.open(f"hf://{NAME}")
    assert not blobs()


@pytest.mark.parametrize("what", ["api", "resolve", "data"])
@pytest.mark.parametrize("fault", [(503, {}), (429, {"Retry-After": "0"}), (500, {"Retry-After": "soon"}), (0, {})])
def test_faults_that_pass(what, fault, hub):
    """A request that a server refuses for a while is repeated; a read continues where a connection broke."""
    hub.faults[what] += [fault, fault]
    assert equal(wm.load(f"hf://{NAME}"))


@pytest.mark.parametrize("what", ["api", "resolve"])
def test_the_rate_limit_is_explained(what, hub):
    """The message of 429 names the repository and says what to do."""
    hub.faults[what] += [(429, {})] * 200
    with pytest.raises(RemoteError, match="rate limit of the Hub for owner/model; wait some minutes, or log in"):
        wm.open(f"hf://{NAME}")


def test_signed_addresses_expire(hub):
    """When a signed address is refused, the Hub is asked for another one."""
    with wm.open(f"hf://{NAME}") as file:
        hub.signed += 1
        assert equal(dict(file))


def test_the_way_to_the_hub_is_that_of_the_environment(hub, monkeypatch, tmp_path):
    """Listing, ranges and downloads take the proxy; ~/.netrc has the login where there is no token."""
    (tmp_path / "netrc").write_text("machine far.test login me password SECRET\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    login = f"Basic {base64.b64encode(b'me:SECRET').decode()}"
    far = f"http://far.test:{hub.url.rpartition(':')[2]}"
    with Proxy() as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        monkeypatch.setattr(hub_library.constants, "ENDPOINT", far)
        template = far + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(hub_library.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template)
        hub_library.close_session()
        assert equal(wm.load(f"hf://{NAME}"))
        assert equal(wm.load(weightmap.hub.download(f"hf://{NAME}")))
        proxy.shutdown()
    assert len(proxy.asked) >= len(hub.asked) > 8  # huggingface_hub asks for other things, too
    assert {asked.token for asked in hub.asked if asked.what != "data"} == {login}
    assert {asked.token for asked in hub.asked if asked.what == "data"} == {None}


def test_another_digest_is_another_file(hub):
    """A redirect to a file with another digest than the list's is an error."""
    hub.etags["model-00002-of-00003.safetensors"] = "0" * 64
    with pytest.raises(FileChangedError, match="changed, replaced or deleted"):
        wm.open(f"hf://{NAME}")
    with pytest.raises(FileChangedError, match="changed, replaced or deleted"):
        weightmap.hub.download(f"hf://{NAME}")


def test_a_file_that_changes_after_it_was_opened(hub):
    """When a signed address has expired, the Hub sends a handle elsewhere: to the same file, or it is an error."""
    name = "model.safetensors"
    large = builders.tensor(np.zeros((64, 1024), np.float32))
    hub.repositories[NAME]["main"] = {name: safe.build({"w": large})}
    with wm.open(f"hf://{NAME}") as file:
        hub.signed += 1
        hub.etags[name] = "0" * 64
        with pytest.raises(FileChangedError, match="changed, replaced or deleted"):
            file["w"]


def test_a_hub_that_cannot_be_reached(hub, monkeypatch):
    """Without a Hub, cached files open; for others the message says so."""
    from huggingface_hub import constants

    first = "model-00001-of-00003.safetensors"
    cache(first)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert len(wm.load(f"hf://{NAME}/{first}")) == 4
    with pytest.raises(RemoteError, match="the Hub cannot be reached, and the cache has no revision 'main' of owner/x"):
        wm.open("hf://owner/x")


def test_the_commands_take_addresses(hub, tmp_path, capsys):
    """``inspect``, ``verify``, ``diff``, ``report``, ``convert`` of a repository; its configuration goes along."""
    hub.repositories[NAME]["v2"] = dict(hub.repositories[NAME]["main"])
    assert main(["inspect", f"hf://{NAME}", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == 12
    assert main(["verify", f"hf://{NAME}"]) == 0
    assert main(["diff", f"hf://{NAME}", f"hf://{NAME}@v2"]) == 0
    assert main(["report", "--no-verify", f"hf://{NAME}", str(tmp_path / "report.html")]) == 0
    assert "layers.3.w" in (tmp_path / "report.html").read_text()
    assert main(["convert", f"hf://{NAME}", str(tmp_path / "new") + "/"]) == 0
    assert equal(wm.load(tmp_path / "new"))
    assert (tmp_path / "new" / "config.json").read_bytes() == hub.repositories[NAME]["main"]["config.json"]


def blobs():
    """The names of all blobs in the cache."""
    from huggingface_hub import constants

    return {name for folder, _, names in os.walk(constants.HF_HUB_CACHE) if folder.endswith("blobs") for name in names}


def test_a_download_is_what_huggingface_hub_expects(hub):
    """Every file is found there without a request, the cache is sound, and the model is mapped."""
    files, told = hub.repositories[NAME]["main"], list[tuple[int, int]]()
    folder = weightmap.hub.download(f"hf://{NAME}", progress=lambda *now: told.append(now))
    asked = len(hub.asked)
    for file, data in files.items():
        path = cache(file, local_files_only=True)
        assert Path(path).resolve() == (Path(folder) / file).resolve()
        assert Path(path).read_bytes() == data
    scanned = hub_library.scan_cache_dir()
    (repository,) = scanned.repos
    assert not scanned.warnings
    assert (repository.repo_id, repository.nb_files) == (NAME, len(files))
    assert told[-1] == (sum(map(len, files.values())),) * 2
    assert told == sorted(told)
    assert len(hub.asked) == asked
    with wm.open(folder) as file:
        assert equal(dict(file))
    weightmap.hub.download(f"hf://{NAME}")
    assert len(hub.asked) == asked + 1  # the list of files


def test_some_files_are_downloaded(hub):
    """Globs and a folder choose; nothing that matches is an error."""
    folder = weightmap.hub.download(f"hf://{NAME}", include=["*.json"])
    assert sorted(found.name for found in Path(folder).iterdir()) == ["config.json", "model.safetensors.index.json"]
    weightmap.hub.download(f"hf://{NAME}/model-00001-of-00003.safetensors")
    assert len(list(Path(folder).iterdir())) == 3
    with pytest.raises(FileNotFoundError, match="no such files"):
        weightmap.hub.download(f"hf://{NAME}", include="*.gguf")
    with pytest.raises(AddressError, match="hf://"):
        weightmap.hub.download("https://host/model")


def environment(hub):
    """The variables by which another process has this Hub and this cache."""
    from huggingface_hub import constants

    path = os.pathsep.join(filter(None, (SOURCES, os.environ.get("PYTHONPATH"))))
    cache = {"HF_HUB_CACHE": constants.HF_HUB_CACHE, "HF_HUB_DISABLE_XET": "1"}
    return {**os.environ, "PYTHONPATH": path, "HF_ENDPOINT": hub.url, **cache}


@contextlib.contextmanager
def running(code, hub):
    """A process that runs a program, and does not outlive the test."""
    with subprocess.Popen([sys.executable, "-c", code, NAME], env=environment(hub)) as child:
        try:
            yield child
        finally:
            child.kill()


IN_PIECES = """
import sys
import weightmap.hub
from weightmap.remote import ahead
ahead.REQUEST_BYTES = 1 << 18
weightmap.hub.download(f"hf://{sys.argv[1]}")
"""


def test_a_download_follows_no_link(hub, tmp_path):
    """A link in the place of a partial file leads to a file of somebody else."""
    from huggingface_hub import constants

    hub.repositories[NAME] = {"main": {"m.bin": b"theirs"}}
    victim, partial = tmp_path / "victim", Path(constants.HF_HUB_CACHE) / "models--owner--model" / "incomplete"
    victim.write_bytes(b"ours")
    partial.mkdir(parents=True)
    (partial / git_hash(b"theirs")).symlink_to(victim)
    with pytest.raises(NotRegularFileError, match="no download is written through a symbolic link"):
        weightmap.hub.download(f"hf://{NAME}")
    assert victim.read_bytes() == b"ours"


def test_a_download_that_was_killed_goes_on_where_it_ended(hub):
    """The next download requests only the rest of a killed one, which has no blob's name before it is complete."""
    from huggingface_hub import constants

    data, there = np.random.default_rng(1).bytes(2 << 20), 1 << 20
    hub.repositories[NAME] = {"main": {"large.bin": data}}
    hub.held_from = there
    partial = Path(constants.HF_HUB_CACHE) / "models--owner--model" / "incomplete" / sha256(data)
    with running(IN_PIECES, hub):
        until(lambda: partial.exists() and partial.stat().st_size == there)
    assert not blobs()
    hub.held_from = None
    hub.released.set()
    hub.asked.clear()
    folder = weightmap.hub.download(f"hf://{NAME}")
    assert (Path(folder) / "large.bin").read_bytes() == data
    assert blobs() == {sha256(data)}
    assert not partial.exists()
    assert sum(asked.nbytes for asked in hub.asked if asked.what == "data") <= len(data) - there + (32 << 10)


def listing(commit="a" * 40, **changes):
    """The list of a repository with one file."""
    entry = {"rfilename": "x.safetensors", "size": 7, "blobId": "b" * 40} | changes
    return json.dumps({"id": NAME, "sha": commit, "siblings": [entry]}).encode()


NO_LISTINGS = {
    "a page": b"<html>log in</html>",
    "null": b"null",
    "a list": b"[]",
    "nothing in it": b"{}",
    "no text": b"\xff",
    "deep": b"[" * 100_000,
    "a number": b"7",
    "no commit": listing(None),
    "a commit that is a number": listing(7),
    "a commit that leads elsewhere": listing("../../../../home"),
    "an absolute commit": listing("/home"),
    "a branch": listing("main"),
    "a commit in capitals": listing("A" * 40),
    "a size in a text": listing(size="7"),
    "a list of sizes": listing(size=[7]),
    "a negative size": listing(size=-1),
    "a size that no file has": listing(size=1 << 63),
    "a truth value": listing(size=True),
    "a fraction": listing(size=7.5),
    "a digest that is a number": listing(blobId=5),
    "a digest that leads elsewhere": listing(blobId="../x"),
    "letters that are no digits": listing(blobId="x" * 40),
    "a digest of another length": listing(blobId="b" * 39),
    "a digest of LFS that leads elsewhere": listing(lfs={"sha256": "/x", "size": 7, "pointerSize": 1}),
    "LFS that is a number": listing(lfs=5),
    "LFS without a digest": listing(lfs={"size": 5}),
    "a name that is a number": listing(rfilename=5),
    "no name": json.dumps({"id": NAME, "sha": "a" * 40, "siblings": [{}]}).encode(),
    "a date that is a number": json.dumps({"id": NAME, "sha": "a" * 40, "lastModified": 5}).encode(),
}


def test_what_repositories_share_has_its_digest(hub):
    """The blob of a repository is a link to a shared file of another name: the name of the link is the digest."""
    files = hub.repositories[NAME]["main"]
    shared(*files)
    requests = hub.count("data")
    snapshot = weightmap.hub.download(f"hf://{NAME}")
    assert hub.count("data") == requests
    for mode in ("mmap", "copy"):
        assert equal(wm.load(snapshot, trust="recorded", mode=mode))
    assert "SHA-256 of 4 files" in wm.verify(wm.open(snapshot, trust="recorded")).scope
    with wm.open(f"hf://{NAME}") as cached:
        assert {source.digest for source in sources_of(cached)} >= {
            sha256(files[name]) for name in files if "-of-" in name
        }
    blob = (Path(snapshot) / "model-00002-of-00003.safetensors").resolve()
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"\1")
    with pytest.raises(wm.TrustError, match="its digest is"):
        wm.open(snapshot, trust="recorded")


@pytest.mark.parametrize("case", NO_LISTINGS)
def test_answers_that_are_no_listing(case, hub):
    """The Hub's answers are checked before any part becomes a path; nothing is written."""
    hub.listings[NAME] = NO_LISTINGS[case]
    for call in (wm.open, weightmap.hub.download):
        with pytest.raises(RemoteError, match="did not answer with the files"):
            call(f"hf://{NAME}")
    assert not Path(hub_library.constants.HF_HUB_CACHE).exists()


@pytest.mark.parametrize(("wait", "words"), [(0.01, "took too long"), (0, "more than 1,000,000 bytes")])
def test_a_listing_that_does_not_end(wait, words, hub, monkeypatch):
    """A byte now and then prolongs no request, and no number of bytes fills the memory."""

    def pieces():
        while not hub.released.wait(wait):
            yield b" " * (1 if wait else 1 << 16)

    monkeypatch.setattr("weightmap.remote.hub._MAX_LISTING_BYTES", 1_000_000)
    hub.listings[NAME] = pieces
    deadline = 0.1 if wait else 60
    with pytest.raises(RemoteError, match=words):
        wm.open(f"hf://{NAME}", remote=wm.Remote(deadline=deadline))
    with pytest.raises(RemoteError, match=words):
        weightmap.hub.download(f"hf://{NAME}", deadline=deadline)
    assert wait or hub.count("api") == 2


def test_a_listing_that_is_cut_is_asked_for_again(hub):
    """An answer shorter than it states is not the list."""
    hub.faults["api"] += [(200, {"Content-Length": "1000", "Connection": "close"})]
    assert equal(wm.load(f"hf://{NAME}"))
    assert hub.count("api") == 2


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", ".", "", "a//x", "\ud800", "%2e%2e/x", "x\0y", "C:x"])
def test_names_that_are_no_plain_paths(name, hub):
    """No file is downloaded under such a name, and no local file opens for it; others open."""
    hub.listings[NAME] = listing(rfilename=name)
    with pytest.raises(RemoteError, match="path is not plain"):
        weightmap.hub.download(f"hf://{NAME}")
    assert not Path(hub_library.constants.HF_HUB_CACHE).exists()
    with pytest.raises(OSError, match=r"no model file|no such file"):
        wm.open(f"hf://{NAME}")


def test_a_disk_that_fails_is_named(hub, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        weightmap.hub.download(f"hf://{NAME}")
    assert "incomplete" in str(caught.value.filename)


def test_wrong_bytes_get_no_name(hub):
    """Bytes with another digest are an error, and removed; the next download gets the right ones."""
    name = "model-00002-of-00003.safetensors"
    digest = sha256(hub.repositories[NAME]["main"][name])
    hub.spoilt.add(digest)
    with pytest.raises(ChecksumError, match=f"digest of '{name}'.*{digest}"):
        weightmap.hub.download(f"hf://{NAME}")
    assert digest not in blobs()
    hub.faults["data"] += [(404, {})] * 9
    with pytest.raises(FileNotFoundError):
        weightmap.hub.download(f"hf://{NAME}")
    assert not list(Path(hub_library.constants.HF_HUB_CACHE).glob("*/incomplete/*"))
    hub.faults.clear()
    hub.spoilt.clear()
    assert equal(wm.load(weightmap.hub.download(f"hf://{NAME}")))
