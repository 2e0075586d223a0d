"""vLLM on the load format weightmap beside its own loader: the same tokens, and the same parameters on every rank.

`make vllm-test` names a Python that has vLLM; models are tiny and random, and nothing is fetched.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.places import ROOT
from tests.support import HANG

import weightmap as wm

PYTHON = os.environ.get("WEIGHTMAP_VLLM")
if not PYTHON:
    pytest.skip("opt-in: make vllm-test", allow_module_level=True)

CHILD = Path(__file__).with_name("vllm_child.py")
# A run takes 40 of them on an idle machine; more than this is a hang.
SUFFIXES = [".safetensors", ".weights", ".bt", ".amb", ".gguf"]


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """The environment of children: this package with the entry points of pyproject.toml, and no network."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "weightmap-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weightmap\nVersion: 0\n")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    lines = [line for group, points in groups.items() for line in (f"[{group}]", *map(" = ".join, points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return os.environ | {
        "PYTHONPATH": f"{ROOT / 'src'}:{folder}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
    }


@contextlib.contextmanager
def running(arguments, environment, log):
    with log.open("wb") as out:
        process = subprocess.Popen(
            [PYTHON, *map(str, arguments)], env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ended(process, log):
    try:
        status = process.wait(HANG)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it hangs: {log.read_text(errors='replace')[-4000:]}")
    return status, log.read_text(errors="replace")


@pytest.fixture(scope="module")
def models(tmp_path_factory, surroundings):
    folder = tmp_path_factory.mktemp("models")
    with running([CHILD, "make", folder], surroundings, folder / "log") as process:
        status, log = ended(process, folder / "log")
    assert status == 0, log[-4000:]
    return folder


@pytest.fixture(scope="module")
def load(tmp_path_factory, surroundings):
    """Load a model; returns tokens and checksums of each rank."""

    def run(model, load_format, ranks=1, **extra):
        folder = tmp_path_factory.mktemp("run")
        settings = {"load_format": load_format, "model_loader_extra_config": extra, "tensor_parallel_size": ranks}
        more = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if ranks == 2 else {}
        arguments = [CHILD, "load", model, json.dumps(settings), folder / "result.json"]
        with running(arguments, surroundings | more, folder / "log") as process:
            status, log = ended(process, folder / "log")
        assert status == 0, log[-4000:]
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        assert len(result["ranks"]) == ranks
        assert all(result["ranks"])
        return result

    return run


@pytest.fixture(scope="module")
def stock(models, load):
    """The result of vLLM's own loader, once for each model and number of ranks."""
    done = {}

    def result(name, ranks=1):
        if (name, ranks) not in done:
            done[name, ranks] = load(models / name, "safetensors", ranks)
        return done[name, ranks]

    return result


def rewritten(source, target, suffix):
    target.mkdir()
    for path in source.iterdir():
        if "safetensors" not in path.name:
            shutil.copy(path, target)
    wm.save(target / f"model{suffix}", wm.load(source))
    return target


@pytest.mark.parametrize("name", ["llama", "qwen2", "headed"])
def test_the_model_is_that_of_the_stock_loader(models, load, stock, name):
    assert load(models / name, "weightmap") == stock(name)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["llama", "headed"])
def test_every_format_gives_the_same_model(models, load, stock, tmp_path, name, suffix):
    """A head that a tied model has of its own is not dropped, whatever the format."""
    folder = rewritten(models / name, tmp_path / "model", suffix)
    assert load(folder, "weightmap") == stock(name)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a processor for each rank")
def test_two_ranks(models, load, stock):
    assert load(models / "llama", "weightmap", 2) == stock("llama", 2)


@pytest.fixture
def damaged(models, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(models / "llama", folder)
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    return folder


@pytest.fixture
def flipped(models, tmp_path):
    folder = rewritten(models / "llama", tmp_path / "flipped", ".weights")
    path = folder / "model.weights"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return folder


@contextlib.contextmanager
def serving(model, surroundings, log):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["-m", "vllm.entrypoints.openai.api_server", "--model", model, "--load-format", "weightmap"]
    arguments += ["--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "4", "--seed", "0"]
    arguments += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port]
    with running(arguments, surroundings, log) as process:
        yield process, f"http://127.0.0.1:{port}"


DEFECTS = [("damaged", "TruncatedError", "model-00002-of-00003.safetensors"), ("flipped", "ChecksumError", ".weights")]


@pytest.mark.parametrize(("model", "error", "file"), DEFECTS)
def test_loading_ends_with_our_error_on_a_damaged_shard(request, model, error, file, surroundings, tmp_path):
    folder = request.getfixturevalue(model)
    arguments = [CHILD, "load", folder, '{"load_format": "weightmap"}', tmp_path / "result.json"]
    with running(arguments, surroundings, tmp_path / "log") as process:
        status, log = ended(process, tmp_path / "log")
    assert status != 0
    assert error in log, log[-4000:]
    assert file in log


@pytest.mark.parametrize(("model", "error", "file"), DEFECTS)
def test_the_server_ends_with_our_error_on_a_damaged_shard(request, model, error, file, surroundings, tmp_path):
    with serving(request.getfixturevalue(model), surroundings, tmp_path / "log") as (process, _):
        status, log = ended(process, tmp_path / "log")
    assert status != 0
    assert error in log, log[-4000:]
    assert file in log


def test_the_server_answers_as_on_the_stock_loader(models, stock, surroundings, tmp_path):
    with serving(models / "llama", surroundings, tmp_path / "log") as (process, address):
        deadline = time.monotonic() + HANG
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=10).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, (tmp_path / "log").read_text(errors="replace")[-4000:]
                assert time.monotonic() < deadline, "it does not start"
                time.sleep(0.5)
        ask = {"model": "tiny", "prompt": [5, 9, 200, 31], "temperature": 0, "max_tokens": 12}
        ask |= {"ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"{address}/v1/completions", json.dumps(ask).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=HANG) as reply:
            answer = json.load(reply)
    assert answer["choices"][0]["token_ids"] == stock("llama")["tokens"][0]
