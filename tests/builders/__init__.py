"""Example files of every format, built by hand, and the values that a correct reader finds in them.

Each module of this folder is a builder. It knows its format from the specification alone: it uses
`struct`, `json` and `zlib`, and never the package under test, so the two cannot share a mistake.

Each defines `BUILDER`, a record with everything that tests need of the format. All suites (the
contract, the attacks, the fuzzer, the tables in the documents) find formats by `known`; there is no other list.
"""

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from tests.fuzz.anatomy import Anatomy

EXTENDED = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz")
}


def numpy_dtype(name):
    """The little-endian numpy dtype of a dtype name such as "float32" or "bfloat16"."""
    return EXTENDED[name] if name in EXTENDED else np.dtype(name).newbyteorder("<")


@dataclass(frozen=True)
class Tensor:
    """The expected content of one tensor: dtype, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def array(self):
        """The tensor as numpy reads these bytes."""
        return np.frombuffer(self.data, numpy_dtype(self.dtype)).reshape(self.shape)


@dataclass(frozen=True)
class Example:
    """A file of some format, and everything that a correct reader finds in it.

    `tensors` is in file order; `vocab` is None when the file has none, `special_ids` when the format leaves them open.
    `prefixes` has the sizes of its beginnings that are valid files too. `checksums` says whether checksums
    cover the data of each tensor, `written` whether a writer of the format must be able to make such a file.
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
        The same on every machine; a release that changes it says so.
    arguments : callable
        Returns the arguments of `weightmap.save`, given the content that `tests.contract.golden` makes.
    """

    sha256: str
    arguments: Callable[[Any], Mapping[str, Any]]


class Bounds(NamedTuple):
    """Bounds on the calls and objects of opening and looking up, for any number of tensors: see test_guard.py.

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


def named(array):
    """The arguments of `weightmap.save` for a matrix, as it is and transposed, under names of our choice."""
    return {"tensors": {"w": array, "x": array.T}}


def plain_trailing(kind, data, tail):
    """The error for bytes behind the end of a sound file, as in most formats: class, field and byte.

    The last item: words of the warning with ``strict=False``, or None if it stays an error.
    """
    del kind, tail
    return "LayoutError", "size", len(data), "trailing"


@dataclass(frozen=True, kw_only=True)
class Builder:
    """The facts that tests need of one format.

    A kind is a format with a layout or another variant, such as "embd-simple": the name of the format, and any words
    behind a hyphen.

    Attributes
    ----------
    format : str
        Its name in `weightmap.formats()`.
    title : str
        Its name in documents.
    suffix : str
        The suffix of its files.
    holds : str
        Its description in the README's table of formats.
    examples : callable
        Returns a list of `Example`: sound files, and everything that a correct reader finds in them.
    damage : tuple of str
        The names of modules that damage files, with one lie each. They define `SOUND`, by kind the sound
        file; `cases()`, which yields every `tests.attacks.Case`; and `ROWS`, if the format
        has threat tables of its own.
    growing : mapping of str to callable
        By kind, a function that returns a file with a given number of tensors, the last of zeros; or, for a format with
        a single matrix, of words.
    anatomy : callable
        Takes a sound file apart for the fuzzer: see `tests.fuzz.anatomy`.
    errors : tuple of int and int
        2,000 mutants, and 40,000, must raise more different errors (class and field) than these numbers.
    magic : bytes
        The first bytes of every file; empty if these vary.
    seconds : mapping of str to int
        By kind, the processor time in which a million tensors must open, if more than ten seconds.
    small : callable, optional
        Returns, by kind, more small sound files to fuzz.
    sealed : callable, optional
        Returns a damaged file with its checksums corrected.
    trailing : callable
        ``trailing(kind, data, tail)``: see `plain_trailing`.
    dictionary : tuple of bytes
        Bytes for guided fuzzing to insert: see `tests.fuzz.dictionary`.
    saved : mapping of str to callable
        By kind, a function that returns arguments of `weightmap.save` for a given float32 matrix. Empty for a format
        that is only read.
    golden : mapping of str to Golden
        By file name, files of every layout that the package writes.
    metadata : str
        The values that metadata can hold: "texts", "JSON", "TOML" or "typed"; empty if users cannot set any.
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
    saved: Mapping[str, Callable[[Any], Mapping[str, Any]]] = field(default_factory=dict)
    golden: Mapping[str, Golden] = field(default_factory=dict)
    metadata: str = ""
    bounds: Mapping[str, Bounds] = field(default_factory=dict)

    @property
    def damaging(self):
        """The modules of `damage`, imported at first use because they import builders."""
        return [importlib.import_module(name) for name in self.damage]

    @property
    def names_tensors(self):
        """Whether files that the package writes hold tensors of any names, not only the format's."""
        return any("w" in arguments(np.zeros((1, 1)))["tensors"] for arguments in self.saved.values())


def noise(dtype, shape, seed=0):
    """A tensor of arbitrary bits: NaN payloads, infinities and denormals included, but truth values for bool."""
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    raw = np.random.default_rng(seed + 7919 * len(dtype)).integers(0, 256, size, np.uint8)
    return Tensor(dtype, shape, (raw & 1 if dtype == "bool" else raw).tobytes())


def normal(shape, seed=0, dtype="float32"):
    """A tensor of finite, ordinary numbers."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return Tensor(dtype, shape, np.ascontiguousarray(values.astype(numpy_dtype(dtype))).tobytes())


def tensor(array):
    """The expectation that a file holds `array`, row-major and little-endian, whatever its strides and byte order."""
    name = array.dtype.newbyteorder("=").name
    return Tensor(name, array.shape, np.array(array, numpy_dtype(name), order="C").tobytes())


@cache
def known():
    """Every format, by its name: the builder of each module in this directory."""
    found = [importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    return MappingProxyType({module.BUILDER.format: module.BUILDER for module in found})


def format_of(kind):
    """The builder of a kind's format, or None."""
    return known().get(kind.partition("-")[0])


def saved():
    """By kind that the package writes: the suffix of its files, and the arguments of `weightmap.save` for a matrix."""
    return {kind: (b.suffix, arguments) for b in known().values() for kind, arguments in b.saved.items()}


def examples():
    """Every example of every format."""
    return [example for builder in known().values() for example in builder.examples()]
