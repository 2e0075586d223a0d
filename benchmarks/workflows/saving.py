"""Saving a large model, and checking one beside tools that hash it."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from workflows.common import COLD, matrices, need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIGNING = "import sys, model_signing; model_signing.hashing.hash(sys.argv[1])"
# A user's script: it hashes each listed file, by two threads.
HASHLIB = """
import hashlib, os, sys
from concurrent.futures import ThreadPoolExecutor
def check(folder):
    def is_right(line):
        with open(os.path.join(folder, line[1]), "rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == line[0]
    with open(os.path.join(folder, "SHA256SUMS")) as sums, ThreadPoolExecutor(2) as pool:
        return all(pool.map(is_right, map(str.split, sums)))
"""


def write(folder: Path, mib: int) -> None:
    """Write the files to check."""
    import weightmap as wm  # the files hold nothing that depends on the writer

    (folder / "mib").write_text(str(mib), encoding="ascii")
    wm.save(folder / "large.weights", matrices(mib))
    shards = folder / "shards"
    shards.mkdir()
    wm.save(shards / "model.safetensors", matrices(mib), max_shard_size=mib << 17)
    names = sorted(path.name for path in shards.iterdir())
    sums = subprocess.check_output(["sha256sum", *names], cwd=shards)
    (shards / "SHA256SUMS").write_bytes(sums)


def tensors(folder: Path) -> dict[str, Any]:
    """Return the tensors to save."""
    return matrices(int((folder / "mib").read_text(encoding="ascii")))


def new(path: Path) -> Path:
    """Return the path of a new file: an earlier turn has left the old one's pages in memory."""
    path.unlink(missing_ok=True)
    return path


def ours(folder: Path, *, durable: bool) -> Callable[[], Any]:
    """Return our save; safetensors' does not wait for the disk."""
    wm = need("weightmap")
    save = partial(wm.save, output=wm.Output(durable=durable))
    save(folder / "small.safetensors", matrices(1))
    return partial(save, new(folder / "ours.safetensors"), tensors(folder))


def safetensors(folder: Path) -> Callable[[], Any]:
    """Return safetensors' save."""
    save = need("safetensors.numpy").save_file
    save(matrices(1), folder / "small.safetensors")
    return partial(save, tensors(folder), new(folder / "theirs.safetensors"))


def trusted(folder: Path) -> Callable[[], Any]:
    """Return opening files and comparing their SHA-256 with a list."""
    opened = partial(need("weightmap").open, trust=folder / "shards" / "SHA256SUMS")
    return partial(opened, folder / "shards")


def by_hashlib(folder: Path) -> Callable[[], Any]:
    """Return the script's function."""
    script: dict[str, Any] = {}
    exec(HASHLIB, script)
    return partial(script["check"], str(folder / "shards"))


def command(words: list[str], folder: Path) -> list[str]:
    """Return a command on the files to check."""
    if SIGNING in words:
        need("model_signing")
    return [sys.executable if words[0] == "python" else words[0], *(word.format(folder) for word in words[1:])]


CHECKS = {
    "own checksums": {
        "weightmap verify": ["python", "-m", "weightmap", "verify", "{}/large.weights"],
        "sha256sum": ["sha256sum", "{}/large.weights"],
    },
    "eight files, SHA-256": {
        "weightmap verify": ["python", "-m", "weightmap", "verify", "{}/shards", "--trust", "{}/shards/SHA256SUMS"],
        "sha256sum": ["sh", "-c", "cd {}/shards && sha256sum -c SHA256SUMS"],
        "hashlib, two threads": ["python", "-c", f"{HASHLIB}sys.exit(not check(sys.argv[1]))", "{}/shards"],
        "model-signing": ["python", "-c", SIGNING, "{}/shards"],
    },
}
WORKFLOWS: dict[str, dict[str, Any]] = {
    "save as safetensors": {
        "weightmap, durable=False": partial(ours, durable=False),
        "weightmap, flushed": partial(ours, durable=True),
        "safetensors": safetensors,
    }
}
WORKFLOWS |= {
    f"open eight files by SHA-256{cold}": {"weightmap trust=": trusted, "hashlib, two threads": by_hashlib}
    for cold in ("", COLD)
}
WORKFLOWS |= {
    f"verify {what}{cold}": {who: partial(command, words) for who, words in tools.items()}
    for what, tools in CHECKS.items()
    for cold in ("", COLD)
}
