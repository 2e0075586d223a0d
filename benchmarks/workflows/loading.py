"""Opening a file, one tensor, all tensors: each format beside its own library, MiniLM's size and a large one."""

from __future__ import annotations

import importlib
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import files
from workflows.common import COLD, Absent, matrices, need, touch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

SIZES = ("MiniLM", "large")
ONE = {"MiniLM": "embeddings.position_embeddings.weight", "large": "model.layers.7.mlp.weight"}
USES = ("open", "one tensor", "all tensors")
# Openings of a file in a row if only opening is timed
OPENED = 20


def write(folder: Path, mib: int) -> None:
    """Write a file of each size and format, with the format's own library."""
    minilm = {name: np.ones(shape, np.float32) for name, shape in files.minilm_shapes().items()}
    for size, tensors in {"MiniLM": minilm, "large": matrices(mib)}.items():
        for name, writer in WRITERS.items():
            try:
                writer(folder / f"{size}.{name}", tensors)
            except ImportError:
                (folder / f"{size}.{name}").unlink(missing_ok=True)


def write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    """Write with safetensors."""
    importlib.import_module("safetensors.numpy").save_file(tensors, path)


def write_torch(path: Path, tensors: dict[str, Any]) -> None:
    """Write with torch."""
    torch = importlib.import_module("torch")
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, path)


def write_gguf(path: Path, tensors: dict[str, Any], tokens: Sequence[str] = ()) -> None:
    """Write with gguf-py."""
    writer = importlib.import_module("gguf").GGUFWriter(path, "benchmark")
    if tokens:
        writer.add_token_list(tokens)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()


def write_onnx(path: Path, tensors: dict[str, Any]) -> None:
    """Write with onnx, the data in a file beside the model."""
    onnx = importlib.import_module("onnx")
    initialisers = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    model = onnx.helper.make_model(onnx.helper.make_graph([], "benchmark", [], [], initialisers))
    onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)


WRITERS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "safetensors": write_safetensors,
    "pt": write_torch,
    "gguf": write_gguf,
    "onnx": write_onnx,
    "npz": lambda path, tensors: np.savez(path, **tensors),
    "npy": lambda path, tensors: np.save(path, next(iter(tensors.values()))),
}


def use(opened: Callable[[], Any], get: Callable[[Any, str], Any], names: Callable[[Any], Iterable[str]]) -> Any:
    """Return the functions of a library for `timed`: open a file, get a tensor, list the names."""
    return opened, get, names


def weightmap(path: Path) -> Any:
    """Return ours."""
    wm = need("weightmap")
    return use(partial(wm.open, path), lambda f, name: f[name], list)


def weightmap_torch(path: Path) -> Any:
    """Return ours for torch."""
    ours = need("weightmap.torch")
    return use(partial(ours.load_file, path), lambda state, name: state[name], list)


def safetensors(path: Path, framework: str, library: str = "safetensors") -> Any:
    """Return safetensors, or ours with its interface."""
    opened = partial(need(library).safe_open, path, framework)
    return use(opened, lambda f, name: f.get_tensor(name), lambda f: f.keys())


def torch_load(path: Path) -> Any:
    """Return torch.load, which maps the file."""
    opened = partial(need("torch").load, path, mmap=True, weights_only=True)
    return use(opened, lambda state, name: state[name], list)


def gguf(path: Path) -> Any:
    """Return gguf-py."""
    reader = partial(need("gguf").GGUFReader, path)
    return use(
        lambda: {tensor.name: tensor.data for tensor in reader().tensors}, lambda tensors, name: tensors[name], list
    )


def onnx(path: Path) -> Any:
    """Return onnx, which reads only requested data beside the model."""
    library = need("onnx")

    def opened() -> Any:
        model = library.load(path, load_external_data=False)
        return {tensor.name: tensor for tensor in model.graph.initializer}

    return use(opened, lambda model, name: library.numpy_helper.to_array(model[name], str(path.parent)), list)


def numpy_load(path: Path) -> Any:
    """Return numpy."""
    if path.suffix == ".npy":
        return use(lambda: {"": np.load(path, mmap_mode="r")}, lambda arrays, _: arrays[""], list)
    return use(partial(np.load, path), lambda arrays, name: arrays[name], lambda arrays: arrays.files)


def timed(library: Callable[..., Any], size: str, suffix: str, what: str, folder: Path) -> Callable[[], Any]:
    """Return the function to time."""
    path = folder / f"{size}.{suffix}"
    if not path.exists():
        raise Absent(f"the library that writes .{suffix} is not here")
    opened, get, names = library(path)
    library(folder / f"MiniLM.{suffix}")[0]()  # a library imports what a format needs at its first file
    name = "" if suffix == "npy" else ONE[size]
    if what == "open":  # some microseconds, and several times that in code that has not run yet
        return lambda: [opened() for _ in range(OPENED)]
    if what == "one tensor":
        return lambda: touch(get(opened(), name))

    def everything() -> Any:
        model = opened()
        return [touch(get(model, each)) for each in names(model)]

    return everything


def untouched(library: str, size: str, folder: Path) -> Callable[[], Any]:
    """Return load_file of a library, without touching any tensor."""
    load = need(library).load_file
    load(folder / "MiniLM.safetensors")
    return partial(load, folder / f"{size}.safetensors")


LIBRARIES = {
    "safetensors": {"weightmap": weightmap, "safetensors": partial(safetensors, framework="numpy")},
    "safetensors for torch": {
        "weightmap": partial(safetensors, framework="pt", library="weightmap.compat"),
        "safetensors": partial(safetensors, framework="pt"),
    },
    "pt": {"weightmap": weightmap_torch, "torch.load(mmap)": torch_load},
    "gguf": {"weightmap": weightmap, "gguf-py": gguf},
    "onnx": {"weightmap": weightmap, "onnx": onnx},
    "npz": {"weightmap": weightmap, "np.load": numpy_load},
    "npy": {"weightmap": weightmap, "np.load(mmap)": numpy_load},
}
WORKFLOWS = {
    f"{what} of {suffix}, {size}": {
        who: partial(timed, library, size, suffix.split()[0], what) for who, library in libraries.items()
    }
    for (suffix, libraries), size, what in itertools.product(LIBRARIES.items(), SIZES, USES)
}
WORKFLOWS |= {
    f"load_file, untouched, {size}": {
        who: partial(untouched, library, size)
        for who, library in {"weightmap": "weightmap.torch", "safetensors": "safetensors.torch"}.items()
    }
    for size in SIZES
}
WORKFLOWS |= {
    f"all of {suffix}, large{COLD}": WORKFLOWS[f"all tensors of {suffix}, large"]
    for suffix in ("safetensors", "safetensors for torch")
}
