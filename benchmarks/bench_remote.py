"""Models on a web server whose answers take 0 or 40 ms: 64 tensors of 1 MiB.

The rival is one whole GET of the same bytes, to memory; for opening, three requests, one after another; for columns,
whole tensors by 16 connections. `extra_info` has the requests and the bytes of a call.
"""

import http.client
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from timing import Timed, each_contender, need, ours, rival
from weightmap import compat

TENSORS = 64
FORMATS = ("safetensors", "weights", "bt", "gguf", "npz", "pt")
ROWS, COLUMNS = np.s_[128:256], np.s_[:, 128:256]


class Remote:
    """A folder of models, and servers of it by their delay in ms."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size
        rng = np.random.default_rng(1)
        tensors = {f"layers.{i}.w": rng.standard_normal((size, size), np.float32) for i in range(TENSORS)}
        self.names = list(tensors)
        for suffix in ("safetensors", "weights", "bt", "gguf"):
            wm.save(folder / f"m.{suffix}", tensors)
        np.savez(folder / "m.npz", **tensors)
        self.tensors = tensors
        self.servers, self.ports = [], {}
        for delay in (0, 40):
            command = [sys.executable, str(Path(__file__).with_name("remote_server.py")), str(folder), str(delay / 1e3)]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self.servers.append(server)
            self.ports[delay] = int(server.stdout.readline())

    def url(self, delay, suffix):
        """Return the address of a model."""
        if suffix == "pt" and not (self.folder / "m.pt").exists():
            torch = need("torch")
            torch.save({name: torch.from_numpy(array) for name, array in self.tensors.items()}, self.folder / "m.pt")
        return f"http://127.0.0.1:{self.ports[delay]}/m.{suffix}"

    def ask(self, delay, path, span=None):
        """Return the body of an answer, on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[delay])
        connection.request("GET", path, headers={} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"})
        response = connection.getresponse()
        body = memoryview(bytearray(response.length))
        at = 0
        while at < len(body):
            at += response.readinto(body[at:])
        connection.close()
        return body

    def clock(self, delay, call):
        """Return a clock of a call, with its requests and bytes. The files that it writes are removed before each call.

        Calls that write get 15 turns: where a virtual machine touches memory for the first time, some take four times
        as long as the others.
        """
        new = self.folder / "new.gguf"
        new.unlink(missing_ok=True)
        self.ask(delay, "/counts")
        call()
        counts = json.loads(bytes(self.ask(delay, "/counts")))
        clock = Timed(lambda _: call(), lambda: new.unlink(missing_ok=True), **counts)
        if new.exists():
            clock.turns = 15
        return clock


@pytest.fixture(scope="module")
def remote(tmp_path_factory, smoke):
    """Models on servers."""
    made = Remote(tmp_path_factory.mktemp("remote"), 16 if smoke else 512)
    yield made
    for server in made.servers:
        server.kill()
        server.wait()
        server.stdout.close()


def calling(delay, suffix, call):
    """Call a function of an address and a folder."""

    def prepare(remote):
        url = remote.url(delay, suffix)
        return remote.clock(delay, lambda: call(url, remote))

    return prepare


def get_whole(delay, remote):
    """Get the whole file by one request."""
    return remote.clock(delay, lambda: remote.ask(delay, "/m.safetensors"))


def three_requests(delay, remote):
    """Make three small requests, one after another."""
    return remote.clock(delay, lambda: [remote.ask(delay, "/m.safetensors", (0, 100)) for _ in range(3)])


def whole_tensors(delay, remote):
    """Get whole tensors, 16 at a time, and take the columns."""
    with wm.open(remote.folder / "m.safetensors") as file:
        spans = [(info.offset, info.offset + info.nbytes) for info in file.infos()]

    def one(span):
        body = remote.ask(delay, "/m.safetensors", span)
        return np.frombuffer(body, np.float32).reshape(remote.size, remote.size)[COLUMNS].copy()

    def call():
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(one, spans))

    return remote.clock(delay, call)


def torch_load_file(url, _):
    """Load tensors of PyTorch."""
    need("torch")
    return wm.torch.load_file(url)


def jax_load_file(url, _):
    """Load arrays of jax."""
    need("jax")
    return wm.jax.load_file(url)


def sliced(index, url, remote):
    """Read a slice of every tensor by a plan."""
    with wm.plan(url, dict.fromkeys(remote.names, index)) as plan:
        return dict(plan.run())


CALLS = {
    "load": lambda url, _: wm.load(url),
    "items": lambda url, _: dict(wm.open(url).items()),
    "torch.load_file": torch_load_file,
    "jax.load_file": jax_load_file,
    "compat.load_file": lambda url, _: compat.load_file(url),
    "convert": lambda url, remote: wm.convert(url, remote.folder / "new.gguf"),
    "verify": lambda url, _: wm.verify(url),
    "diff": lambda url, remote: wm.diff(url, remote.folder / "m.safetensors"),
}
WHOLE = {delay: {"one whole GET": rival(partial(get_whole, delay))} for delay in (0, 40)}
QUARTER = WHOLE[40] | {"whole tensors": rival(partial(whole_tensors, 40))}
THREE = {"three requests": rival(partial(three_requests, 40))}
GROUPS = (
    {"remote, 0 ms/load": ours(calling(0, "safetensors", CALLS["load"])) | WHOLE[0]}
    | {f"remote, 40 ms/{name}": ours(calling(40, "safetensors", call)) | WHOLE[40] for name, call in CALLS.items()}
    | {
        f"remote, 40 ms/{name}": ours(calling(40, "safetensors", partial(sliced, index))) | QUARTER
        for name, index in {"rows": ROWS, "columns": COLUMNS}.items()
    }
    | {
        f"remote, 40 ms/open {suffix}": ours(calling(40, suffix, lambda url, _: wm.open(url).close())) | THREE
        for suffix in FORMATS
    }
)


@each_contender(GROUPS)
def test_remote(compare, remote, group, who):
    """Read the model from a server."""
    compare(GROUPS, remote, nbytes=TENSORS * remote.size**2 * 4)
