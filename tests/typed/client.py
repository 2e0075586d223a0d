"""A client that mypy checks strictly, as a user's program: `make lint` fails when a public type is lost."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import weightmap as wm
from weightmap.typing import Mode, OpenOptions, TensorLike


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


def wrong(path: str) -> None:
    """What a type checker must refuse; an ignore that is not needed is an error too."""
    wm.open(path, mode="map")  # type: ignore[arg-type]
    wm.load(path, verify="all")  # type: ignore[arg-type]
    wm.save(path, {"weight": "text"})  # type: ignore[dict-item]
