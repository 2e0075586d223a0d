"""Example files of every format, built by hand, and the values a right reader finds in them.

One module per format, found by directory. A builder module knows its format from the specification alone: it uses
`struct`, `json` and `zlib`, and never the package under test, so that a mistake made there cannot repeat itself here.

A builder module offers `FORMAT`, the name that `weightmap.formats()` uses, and `examples()`, a list of `Example`.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

EXTENDED = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz")
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The little-endian numpy dtype of a dtype name such as "float32" or "bfloat16"."""
    return EXTENDED[name] if name in EXTENDED else np.dtype(name).newbyteorder("<")


@dataclass(frozen=True)
class Tensor:
    """The expected content of one tensor: what its bytes are, and how they are to be read."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The tensor as numpy reads these bytes."""
        return np.frombuffer(self.data, numpy_dtype(self.dtype)).reshape(self.shape)


@dataclass(frozen=True)
class Example:
    """A file of some format and everything that a right reader says of it.

    `tensors` is in file order; `vocab` is None when the file has none, `special_ids` when the format leaves them open.
    `prefixes` has the sizes of those of its beginnings that are valid files too. `checksums` says whether one of them
    covers the data of each tensor.
    """

    name: str
    format: str
    suffix: str
    data: bytes
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vocab: tuple[str, ...] | None = None
    special_ids: Mapping[str, int] | None = None
    layout: str | None = None
    prefixes: frozenset[int] = frozenset()
    checksums: bool = False


def noise(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """A tensor of arbitrary bits: NaN payloads, infinities and denormals included, but truth values for bool."""
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    raw = np.random.default_rng(seed + 7919 * len(dtype)).integers(0, 256, size, np.uint8)
    return Tensor(dtype, shape, (raw & 1 if dtype == "bool" else raw).tobytes())


def normal(shape: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> Tensor:
    """A tensor of finite, ordinary numbers."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return Tensor(dtype, shape, np.ascontiguousarray(values.astype(numpy_dtype(dtype))).tobytes())


def tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """The expectation that a file holds `array`, row-major and little-endian, whatever its strides and byte order."""
    name = array.dtype.newbyteorder("=").name
    return Tensor(name, array.shape, np.array(array, numpy_dtype(name), order="C").tobytes())


def modules() -> dict[str, ModuleType]:
    """Format name → builder module, for every module in this directory."""
    found = [importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    return {module.FORMAT: module for module in found}


def examples() -> list[Example]:
    """Every example of every builder module."""
    return [example for module in modules().values() for example in module.examples()]
