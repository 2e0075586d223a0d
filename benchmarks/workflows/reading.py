"""Tensors of a file as private copies, and as float32."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from workflows.common import matrices, need, normal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = ("bfloat16", "float16", "float8_e4m3fn")


def write(folder: Path, mib: int) -> None:
    """Write a file of each kind, and a large one."""
    import weightmap as wm  # the files hold nothing that depends on the writer

    types = importlib.import_module("ml_dtypes")
    for kind in KINDS:
        dtype = np.dtype(getattr(types, kind, kind))
        numbers = normal((mib * 32, 1024)).astype(dtype)
        wm.save(folder / f"{kind}.safetensors", {"w": numbers, "small": numbers[:1]})
    for size in (1, mib):
        wm.save(folder / f"{'large' if size == mib else 'small'}.safetensors", matrices(size))


def read(kind: str, folder: Path) -> Callable[[], Any]:
    """Return our `read` into an existing array."""
    f = need("weightmap").open(folder / f"{kind}.safetensors")
    out = np.ones(f["w"].shape, np.float32)
    f.read("small", np.float32)
    return lambda: f.read("w", np.float32, out=out)


def copyto(kind: str, folder: Path) -> Callable[[], Any]:
    """Return numpy's conversion of our view."""
    need("ml_dtypes")
    view = need("weightmap").open(folder / f"{kind}.safetensors")["w"]
    out = np.ones(view.shape, np.float32)
    return lambda: np.copyto(out, view)


def by_torch(kind: str, folder: Path) -> Callable[[], Any]:
    """Return the conversion of torch, by one thread, of safetensors' tensor."""
    torch = need("torch")
    torch.set_num_threads(1)
    tensor = need("safetensors").safe_open(folder / f"{kind}.safetensors", "pt").get_tensor("w")
    out = torch.ones(tensor.shape)
    return lambda: out.copy_(tensor)


def copies(folder: Path) -> Callable[[], Any]:
    """Return `read` of every tensor by ours."""
    wm = need("weightmap")

    def work(path: Path) -> Any:
        f = wm.open(path)
        return {name: f.read(name) for name in f}

    work(folder / "small.safetensors")
    return partial(work, folder / "large.safetensors")


def load_file(folder: Path) -> Callable[[], Any]:
    """Return safetensors' load_file, which copies."""
    load = need("safetensors.numpy").load_file
    load(folder / "small.safetensors")
    return partial(load, folder / "large.safetensors")


WORKFLOWS = {
    f"read {kind} as float32": {
        "weightmap": partial(read, kind),
        "np.copyto": partial(copyto, kind),
        "torch": partial(by_torch, kind),
    }
    for kind in KINDS
} | {"all tensors as copies": {"weightmap": copies, "safetensors": load_file}}
