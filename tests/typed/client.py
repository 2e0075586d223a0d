"""A client that mypy checks strictly, as a user's program: `make lint` fails when a public type is lost."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import weightmap as wm
from weightmap.pool import pool as pools
from weightmap.torch import serve_experts
from weightmap.typing import Embeddings, Hold, Mode, OpenOptions, Pool, TensorLike


def halved(path: str, mode: Mode = "cow") -> dict[str, NDArray[np.float16]]:
    """Every tensor of a file in float16."""
    with wm.open(path, mode=mode) as file:
        assert_type(file.read("weight"), NDArray[Any])  # float32, or float64 where that is stored
        assert_type(file.read("weight", np.float32), NDArray[np.float32])
        return {name: file.read(name, np.float16) for name in file}


def into(path: str, out: NDArray[np.float64]) -> NDArray[np.float64]:
    """A tensor in an array that is there."""
    options: OpenOptions = {"mode": "mmap", "verify": "full"}
    with wm.open(path, **options) as file:
        array = file["weight"]
        assert array.nbytes == file.info("weight").nbytes
        return file.read("weight", out=out)


def store(path: str, tensors: dict[str, TensorLike]) -> int:
    """Save tensors of any library, and count the elements that are read again."""
    wm.save(path, tensors)
    return sum(array.size for array in wm.load(path, mode="copy").values())


def models(path: Path) -> bool:
    """A model as a path, as content, as a handle and as its parameters."""
    with wm.open(path, remote=wm.Remote(deadline=5), trust={path.name: "sha256:..."}) as file:
        wm.convert(file.weights, "model.gguf", output=wm.Output(durable=False))
        wm.plan(file, {"weight": np.s_[:, 1:2]}).close()
        wm.plan(file, [("weight", slice(1)), ("weight", slice(3))]).close()
        wm.plan(path, lambda info: info.nbytes > 1).close()
        return wm.diff(file, path.read_bytes()).equal and wm.verify(file.weights).structure_only is None


def parts(pool: pools.Pool, hold: pools.Hold, words: wm.Embeddings) -> tuple[Pool, Hold, Embeddings]:
    """The classes of parts have all that methods of a handle promise."""
    return pool, hold, words


def passed_on(file: wm.TensorFile, module: object) -> list[tuple[str, float]]:
    """Results of a handle's methods are arguments of other functions."""
    with file.pool(1 << 30) as pool, pool.hold("weight") as array:
        serve_experts(module, pool)
        wm.save("one.weights", {"weight": array, "all": file.weights["weight"]})
        assert_type(pool.stats.hits, int)
    words = file.embeddings
    assert_type(words, Embeddings | None)
    if words is None:
        return []
    wm.save("words.weights", {"weight": words.matrix, "row": words["yes"]}, vocab=words.vocab)
    assert_type(words.get("no", 0.5), NDArray[Any] | float)
    return words.most_similar(words.batch(["yes"])[0][0], k=3, skip=words)


def wrong(path: str) -> None:
    """Calls that a type checker must refuse; an unneeded ignore is an error too."""
    wm.open(path, mode="map")  # type: ignore[arg-type]
    wm.load(path, verify="all")  # type: ignore[arg-type]
    wm.save(path, {"weight": "text"})  # type: ignore[dict-item]
    wm.verify(1.5)  # type: ignore[arg-type]
    wm.open(path, trust=5)  # type: ignore[arg-type]
