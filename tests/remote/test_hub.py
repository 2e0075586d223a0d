"""Models by their names on the Hugging Face Hub, with the real huggingface_hub and a Hub of our own."""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests import builders
from tests.builders import safetensors as safe
from tests.remote.hub_server import Hub, git_hash, sha256

import weightmap as wm
import weightmap.hub
from weightmap.cli import main
from weightmap.errors import ChecksumError, FileChangedError, MissingDependencyError, RemoteError
from weightmap.io import fetching

hub_library = pytest.importorskip("huggingface_hub")

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "owner/model"
TENSORS = {f"layers.{i}.w": np.arange(64 * 64, dtype=np.float32).reshape(64, 64) + i for i in range(12)}


def sharded(count: int, tensors: dict[str, Any] = TENSORS) -> dict[str, bytes]:
    """The files of a model of several shards."""
    found: dict[str, bytes] = {}
    where: dict[str, str] = {}
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {key: builders.tensor(array) for key, array in list(tensors.items())[number::count]}
        where |= dict.fromkeys(part, name)
        found[name] = safe.build(part)
    found["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": where}).encode()
    found["config.json"] = b'{"model_type": "toy"}'
    return found


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with one model, which huggingface_hub is set up for."""
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


def equal(found: Any) -> bool:
    """Whether these are the tensors of the model."""
    return found.keys() == TENSORS.keys() and all(np.array_equal(found[name], TENSORS[name]) for name in TENSORS)


def cache(file: str, **options: Any) -> str:
    """Download a file with huggingface_hub."""
    return str(hub_library.hf_hub_download(NAME, file, **options))


# ---------------------------------------------------------------------------------------------------------- addresses
@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/model.safetensors.index.json",
        "@main",
        "@v1%2Fx/",
        "@refs/pr/7",
        "@COMMIT/model.safetensors.index.json",
    ],
)
def test_every_form_of_an_address(path: str, hub: Hub) -> None:
    """A repository, a folder of it, a file; the main branch, another one, a pull request, a commit."""
    hub.repositories[NAME] |= {"v1/x": sharded(2), "refs/pr/7": sharded(1)}
    address = f"hf://{NAME}{path}".replace("COMMIT", git_hash(f"{NAME} main".encode()))
    assert equal(wm.load(address))
    assert hub.count("api") == 1


@pytest.mark.parametrize(
    "address",
    [
        "hf://",
        "hf://owner",
        "hf://owner/",
        "hf://owner/@main",
        "hf://owner/name@",
        "hf://owner/name/../x",
        "hf://owner/name/a//x",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    """An address that names no repository, no revision or no plain path."""
    with pytest.raises(ValueError, match="hf://owner/name"):
        wm.open(address)


def test_one_file_of_another_format(hub: Hub, tmp_path: Path) -> None:
    """A GGUF file in a folder of a repository, and one tensor of it."""
    wm.save(tmp_path / "m.gguf", TENSORS)
    hub.repositories[NAME]["main"]["gguf/m.gguf"] = (tmp_path / "m.gguf").read_bytes()
    with wm.open(f"hf://{NAME}/gguf/m.gguf") as file:
        assert np.array_equal(file["layers.3.w"], TENSORS["layers.3.w"])
        assert file.path == f"hf://{NAME}/gguf/m.gguf"
        with pickle.loads(pickle.dumps(file)) as copy:
            assert equal(dict(copy))


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without huggingface_hub, the error says what to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"\[hub\]: pip install huggingface_hub"):
        wm.open(f"hf://{NAME}")


# ------------------------------------------------------------------------------------------------------ what it costs
def test_a_model_of_many_shards(hub: Hub) -> None:
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


def test_what_the_cache_holds_is_mapped(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the cache need no request, the others are fetched and not written; offline, the cache must have them."""
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
    with pytest.raises(RemoteError, match="HF_HUB_OFFLINE, and the cache does not have it"):
        wm.open(f"hf://{NAME}/model-00002-of-00003.safetensors")
    with pytest.raises(RemoteError, match="no revision 'v2' of owner/model"):
        wm.open(f"hf://{NAME}@v2/{first}")
    assert not hub.asked


def test_a_commit_in_the_cache_is_not_asked_for(hub: Hub) -> None:
    """A file of a commit that the cache has opens without any request."""
    commit = git_hash(f"{NAME} main".encode())
    cache("model-00001-of-00003.safetensors", revision=commit)
    hub.asked.clear()
    with wm.open(f"hf://{NAME}@{commit}/model-00001-of-00003.safetensors") as file:
        assert len(dict(file)) == 4
    assert not hub.asked


def test_diff_reads_only_files_that_differ(hub: Hub) -> None:
    """Of two revisions, files of one digest are neither opened twice nor compared."""
    changed = TENSORS | {"layers.1.w": TENSORS["layers.1.w"] + 1}
    hub.repositories[NAME]["v2"] = sharded(3, changed)
    other = "model-00002-of-00003.safetensors"
    report = wm.diff(f"hf://{NAME}", f"hf://{NAME}@v2")
    assert [found.name for found in report.changed] == ["layers.1.w"]
    asked = [asked.path for asked in hub.asked if asked.what == "resolve" and asked.path.startswith("model-")]
    assert sorted(asked) == sorted([*[*hub.repositories[NAME]["main"]][:3], other])
    files = [hub.repositories[NAME][branch][other] for branch in ("main", "v2")]
    read = sum(asked.nbytes for asked in hub.asked if asked.what == "data")
    assert read <= sum(map(len, files)) + 2 * (32 << 10) + 4096  # and the first requests of the two others


# ------------------------------------------------------------------------------------------------------------- tokens
def test_the_token_goes_to_the_hub_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of the Hub carry it, those of the server of large files do not; no pickle holds it."""
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


# ------------------------------------------------------------------------------------------------------------- faults
def test_what_is_not_there_is_named(hub: Hub) -> None:
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


@pytest.mark.parametrize("what", ["api", "resolve", "data"])
@pytest.mark.parametrize("fault", [(503, {}), (429, {"Retry-After": "0"}), (500, {"Retry-After": "soon"})])
def test_faults_that_pass(what: str, fault: tuple[int, dict[str, str]], hub: Hub) -> None:
    """What a server refuses for a while is asked for again."""
    hub.faults[what] += [fault, fault]
    assert equal(wm.load(f"hf://{NAME}"))


@pytest.mark.parametrize("what", ["api", "resolve"])
def test_the_rate_limit_is_explained(what: str, hub: Hub) -> None:
    """The message of 429 names the repository and says what to do."""
    hub.faults[what] += [(429, {})] * 200
    with pytest.raises(RemoteError, match="rate limit of the Hub for owner/model; wait some minutes, or log in"):
        wm.open(f"hf://{NAME}")


def test_bodies_that_are_cut_go_on(hub: Hub) -> None:
    """A read goes on where a connection broke."""
    hub.faults["data"] += [(0, {})] * 2
    assert equal(wm.load(f"hf://{NAME}"))


def test_signed_addresses_expire(hub: Hub) -> None:
    """When a signed address is refused, the Hub is asked for another one."""
    with wm.open(f"hf://{NAME}") as file:
        hub.signed += 1
        assert equal(dict(file))


def test_another_digest_is_another_file(hub: Hub) -> None:
    """A redirect to a file of another digest than that of the list is an error."""
    hub.etags["model-00002-of-00003.safetensors"] = "0" * 64
    with pytest.raises(FileChangedError, match="changed, replaced or deleted"):
        wm.open(f"hf://{NAME}")


def test_a_hub_that_cannot_be_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Hub, the cache opens what it has; else the message says so."""
    from huggingface_hub import constants

    first = "model-00001-of-00003.safetensors"
    cache(first)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert len(wm.load(f"hf://{NAME}/{first}")) == 4
    with pytest.raises(RemoteError, match="the Hub cannot be reached, and the cache has no revision 'main' of owner/x"):
        wm.open("hf://owner/x")


# ------------------------------------------------------------------------------------------------------- the commands
def test_the_commands_take_addresses(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``inspect``, ``verify``, ``diff`` and ``convert`` of a repository; its configuration goes along."""
    hub.repositories[NAME]["v2"] = dict(hub.repositories[NAME]["main"])
    assert main(["inspect", f"hf://{NAME}", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == 12
    assert main(["verify", f"hf://{NAME}"]) == 0
    assert main(["diff", f"hf://{NAME}", f"hf://{NAME}@v2"]) == 0
    assert main(["convert", f"hf://{NAME}", str(tmp_path / "new") + "/"]) == 0
    assert equal(wm.load(tmp_path / "new"))
    assert (tmp_path / "new" / "config.json").read_bytes() == hub.repositories[NAME]["main"]["config.json"]


# ---------------------------------------------------------------------------------------------------------- downloads
def blobs() -> set[str]:
    """The names of all blobs in the cache."""
    from huggingface_hub import constants

    return {name for folder, _, names in os.walk(constants.HF_HUB_CACHE) if folder.endswith("blobs") for name in names}


def test_a_download_is_what_huggingface_hub_expects(hub: Hub) -> None:
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


def test_some_files_are_downloaded(hub: Hub) -> None:
    """Globs and a folder choose; nothing that matches is an error."""
    folder = weightmap.hub.download(f"hf://{NAME}", include=["*.json"])
    assert sorted(found.name for found in Path(folder).iterdir()) == ["config.json", "model.safetensors.index.json"]
    weightmap.hub.download(f"hf://{NAME}/model-00001-of-00003.safetensors")
    assert len(list(Path(folder).iterdir())) == 3
    with pytest.raises(FileNotFoundError, match="no such files"):
        weightmap.hub.download(f"hf://{NAME}", include="*.gguf")
    with pytest.raises(wm.errors.PlanError, match="hf://"):
        weightmap.hub.download("https://host/model")


def test_a_download_goes_on_where_it_ended(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupted download has is not asked for again, and it gets no blob's name."""
    data = np.random.default_rng(1).bytes(3 << 20)
    hub.repositories[NAME] = {"main": {"large.bin": data}}

    def stop(done: int, _: int) -> None:
        if done > 1 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weightmap.hub.download(f"hf://{NAME}", progress=stop)
    assert not blobs()
    hub.asked.clear()
    folder = weightmap.hub.download(f"hf://{NAME}")
    assert (Path(folder) / "large.bin").read_bytes() == data
    assert sum(asked.nbytes for asked in hub.asked if asked.what == "data") <= len(data) - (1 << 20) + (32 << 10)


def test_wrong_bytes_get_no_name(hub: Hub) -> None:
    """Bytes of another digest are an error, and removed; the next download has the right ones."""
    name = "model-00002-of-00003.safetensors"
    digest = sha256(hub.repositories[NAME]["main"][name])
    hub.spoilt.add(digest)
    with pytest.raises(ChecksumError, match=f"digest of '{name}'.*{digest}"):
        weightmap.hub.download(f"hf://{NAME}")
    assert digest not in blobs()
    hub.spoilt.clear()
    assert equal(wm.load(weightmap.hub.download(f"hf://{NAME}")))


def test_a_full_disk_leaves_no_blob(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system passes through, and nothing gets a blob's name."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        weightmap.hub.download(f"hf://{NAME}")
    assert not blobs()


def test_two_downloads_share_the_work(hub: Hub) -> None:
    """Each file is fetched by one of them: both end with all of it."""
    rng = np.random.default_rng(2)
    hub.repositories[NAME] = {"main": {f"{number}.bin": rng.bytes(1 << 20) for number in range(8)}}
    hub.together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(weightmap.hub.download, [f"hf://{NAME}"] * 2)
    assert first == second
    files = hub.repositories[NAME]["main"]
    assert all((Path(first) / name).read_bytes() == data for name, data in files.items())
    assert sum(asked.nbytes for asked in hub.asked if asked.what == "data") == sum(map(len, files.values()))
