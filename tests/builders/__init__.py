"""Example files of every format, built by hand, and the values a right reader finds in them.

One module per format, found by directory. A builder module knows its format from the specification alone: it uses
`struct`, `json` and `zlib`, and never the package under test, so that a mistake made there cannot repeat itself here.

Each defines `BUILDER`, a record of what the tests have to know of the format. Whatever goes through all formats (the
contract, the attacks, the fuzzer, the tables in the documents) finds them by `known`: there is no other list of them.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from tests.fuzz.anatomy import Anatomy

EXTENDED = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz")
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The little-endian numpy dtype of a dtype name such as "float32" or "bfloat16"."""
    return EXTENDED[name] if name in EXTENDED else np.dtype(name).newbyteorder("<")


@dataclass(frozen=True)
class Tensor:
    """The expected content of one tensor: its bytes, and how a reader reads them."""

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
    covers the data of each tensor, `written` whether a writer of the format has to be able to make such a file.
    `config` is None when the format has no configuration, `tokenizer` when the file has none; else it is the payload.
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
    written: bool = True
    config: Mapping[str, Any] | None = None
    tokenizer: bytes | None = None


class Golden(NamedTuple):
    """A file that the package writes, and its SHA-256.

    Attributes
    ----------
    sha256 : str
        Of the file, on every machine; a release that changes it says so.
    arguments : callable
        Returns the arguments of `weightmap.save`, given the content that `tests.contract.golden` makes.
    """

    sha256: str
    arguments: Callable[[Any], Mapping[str, Any]]


class Bounds(NamedTuple):
    """The most calls and objects that opening and looking up take, however many tensors there are: see test_guard.py.

    "Lazy" means ``verify="none"``. `calls` count functions of Python and of C that are entered; `blocks` are what
    `sys.getallocatedblocks` counts, about the number of objects, that an open handle keeps. Of look-ups by name, the
    first scans, the second may build an index, and later ones use it.
    """

    open_calls: int
    lazy_calls: int
    blocks: int
    first_calls: int
    second_calls: int
    later_calls: int


def named(array: Any) -> dict[str, Any]:
    """The arguments of `weightmap.save` for a matrix, as it is and transposed, under names of our choice."""
    return {"tensors": {"w": array, "x": array.T}}


def plain_trailing(kind: str, data: bytes, tail: bytes) -> tuple[str, str, int, str | None]:
    """The error for bytes behind the end of a sound file, as in most formats: class, field and byte.

    And words of the warning that is left of it with ``strict=False``, or None where it stays an error.
    """
    del kind, tail
    return "LayoutError", "size", len(data), "trailing"


@dataclass(frozen=True, kw_only=True)
class Builder:
    """The facts that tests need of one format.

    A kind is a format and a layout or a part of it, such as "embd-simple": the name of the format, and whatever is
    behind a hyphen.

    Attributes
    ----------
    format : str
        Its name, as `weightmap.formats()` has it.
    title : str
        What documents call it.
    suffix : str
        What its files are called.
    holds : str
        What the table of formats in the README says of it.
    examples : callable
        Returns a list of `Example`: sound files, and everything that a right reader finds in them.
    damage : tuple of str
        The names of the modules that damage files, each with one lie: `SOUND`, by kind the file that lies are told
        about; `cases()`, every `tests.attacks.Case`; and, where the tables in docs/reliability.md have a part for the
        format, `ROWS`.
    growing : mapping of str to callable
        By kind, what returns a file of as many tensors as it is asked for, the last of zeros; or, where the format has
        one matrix only, of as many words.
    anatomy : callable
        Takes a sound file apart for the fuzzer: see `tests.fuzz.anatomy`.
    errors : tuple of int and int
        More different errors than this (class and field) have to come of 5,000 mutants, and of 100,000.
    magic : bytes
        What every file begins with; empty where there is no such thing.
    seconds : mapping of str to int
        By kind, the processor time in which a million tensors open, where that is more than ten seconds.
    small : callable, optional
        Returns, by kind, small sound files to be fuzzed, besides the examples and those that are damaged.
    sealed : callable, optional
        Returns a damaged file with the checksums that its bytes have.
    trailing : callable
        ``trailing(kind, data, tail)``: see `plain_trailing`.
    dictionary : tuple of bytes
        What guided fuzzing puts into files besides numbers and texts: see `tests.fuzz.dictionary`.
    scans : tuple of str
        The files of csrc that read this format alone; mutation testing changes their comparisons.
    saved : mapping of str to callable
        By kind, the arguments of `weightmap.save` for a file that holds the given float32 matrix. Empty for a format
        that is only read.
    golden : mapping of str to Golden
        By file name, files that the package writes, of every layout.
    metadata : str
        Which values metadata holds: "texts", "JSON", "TOML" or "typed"; empty where users have none of their own.
    bounds : mapping of str to Bounds
        By kind of `growing`.
    """

    format: str
    title: str
    suffix: str
    holds: str
    examples: Callable[[], list[Example]]
    damage: tuple[str, ...]
    growing: Mapping[str, Callable[[int], bytes]]
    anatomy: Callable[[bytes], Anatomy]
    errors: tuple[int, int]
    magic: bytes = b""
    seconds: Mapping[str, int] = field(default_factory=dict)
    small: Callable[[], Mapping[str, bytes]] = dict
    sealed: Callable[[bytes], bytes] | None = None
    trailing: Callable[[str, bytes, bytes], tuple[str, str, int, str | None]] = plain_trailing
    dictionary: tuple[bytes, ...] = ()
    scans: tuple[str, ...] = ()
    saved: Mapping[str, Callable[[Any], Mapping[str, Any]]] = field(default_factory=dict)
    golden: Mapping[str, Golden] = field(default_factory=dict)
    metadata: str = ""
    bounds: Mapping[str, Bounds] = field(default_factory=dict)

    @property
    def damaging(self) -> list[ModuleType]:
        """The modules of `damage`; imported when asked for, since they stand on the builders."""
        return [importlib.import_module(name) for name in self.damage]

    @property
    def names_tensors(self) -> bool:
        """Whether files that the package writes hold tensors of any names, and not those of the format."""
        return any("w" in arguments(np.zeros((1, 1)))["tensors"] for arguments in self.saved.values())


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


@cache
def known() -> Mapping[str, Builder]:
    """Every format, by its name: the builder of each module in this directory."""
    found = [importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    return MappingProxyType({module.BUILDER.format: module.BUILDER for module in found})


def format_of(kind: str) -> Builder | None:
    """The builder of the format that a kind is of; None where it is of none."""
    return known().get(kind.partition("-")[0])


def saved() -> Mapping[str, tuple[str, Callable[[Any], Mapping[str, Any]]]]:
    """By kind that the package writes: the suffix of its files, and the arguments of `weightmap.save` for a matrix."""
    return {kind: (b.suffix, arguments) for b in known().values() for kind, arguments in b.saved.items()}


def examples() -> list[Example]:
    """Every example of every format."""
    return [example for builder in known().values() for example in builder.examples()]
