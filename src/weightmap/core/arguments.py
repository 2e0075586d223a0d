"""Arguments of public functions: checks for each, and the records `Limits` and `Options` that keep them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any, NamedTuple, ParamSpec, Self, TypeAlias, TypeVar

from weightmap._messages import counted, quoted
from weightmap.errors import LimitError, TensorFileError

# Byte counts in readable units
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def _scaled(nbytes: float) -> str:
    """Return a count in the largest unit that it fills: ``"86.7 MiB"``; "" below a KiB."""
    amount, unit = float(nbytes), ""
    for larger in _UNITS:
        if amount < 1023.95:  # more would be written as 1,024.0
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.1f} {unit}" if unit else ""


def entries(number: int) -> str:
    """Return a number of metadata entries in words."""
    return "1 metadata entry" if number == 1 else f"{number:,} metadata entries"


def brief(nbytes: int) -> str:
    """Return a count in few characters: ``"512 B"``, ``"86.7 MiB"``."""
    return _scaled(nbytes) or f"{nbytes} B"


def size(nbytes: int) -> str:
    """Return a count in words: ``"512 bytes"``, ``"86.7 MiB"``."""
    return _scaled(nbytes) or counted(nbytes, "byte")


def sizes(nbytes: int) -> str:
    """Return a count in words, exact and short: ``"512 bytes"``, ``"90,868,376 bytes (86.7 MiB)"``."""
    short = _scaled(nbytes)
    return f"{nbytes:,} bytes ({short})" if short else counted(nbytes, "byte")


# ----------------------------------------------------------------------------------------------------
# Names that match globs, for `include` and `exclude`.


def matches(name: str, globs: str | Sequence[str]) -> bool:
    """Say whether a name matches one of these globs. Upper and lower case differ."""
    from fnmatch import fnmatchcase  # noqa: PLC0415 - a fiftieth of a first opening, which matches no glob

    return any(fnmatchcase(name, glob) for glob in listed(globs))


def takes(name: str, include: Globs, exclude: Globs) -> bool:
    """Say whether a name matches an `include` (None: any name does) and no `exclude`."""
    return (include is None or matches(name, include)) and not (exclude and matches(name, exclude))


def listed(globs: Globs) -> tuple[str, ...]:
    """Return globs as a tuple, an empty one for None."""
    return () if globs is None else (globs,) if isinstance(globs, str) else tuple(globs)


Globs: TypeAlias = str | Sequence[str] | None
Rename: TypeAlias = Mapping[str, str] | Callable[[str], str]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OUTPUT = dict.fromkeys(("layout", "align", "checksums", "sha256sums", "durable"), "output=Output({}=...)")
_OUTPUT |= {"overwrite": "output=Output(overwrite=False)"}
_RUN = dict.fromkeys(("executor", "manifest"), "run=Run({}=...)")
_REMOTE = dict.fromkeys(("store", "concurrency", "deadline", "redirects", "unversioned"), "remote=Remote({}=...)")
_OPEN = _REMOTE | {"direct": 'mode="direct"'}
# Arguments of `open`, also former ones, for other functions that take a model.
_OPENING = dict.fromkeys(("mode", "strict", "limits", "trust", "config", "remote"), "{}=...") | _OPEN
# A call with a model, by function: {0} stands for an argument of `open`, {1} for ``.weights``.
_CALLS = {
    "convert": "convert(wm.open(src{0}){1}, dst)",
    "verify": "verify(wm.open(source{0}){1})",
    "diff": "diff(wm.open(a{0}){1}, wm.open(b{0}){1})",
    "plan": "plan(wm.open(source{0}){1})",
    "load_file": "load_file(wm.open(path{0}){1})",
    "load_into": "load_into(module, wm.open(path{0}){1})",
    "load": "load(wm.open(model{0}){1}, backend)",
    "publish": "publish(wm.open(base{0}){1}, wm.open(new{0}){1}, directory)",
    "write_report": "write_report(out, wm.open(a{0}){1})",
}
# By function: the replacement for a former argument, or for an argument of the same function elsewhere.
_MOVED: dict[str, dict[str, str]] = {
    "open": _OPEN | {"advise": "f.advise(...)", "deltas": "weightmap.deltas.open(base, [...])", "weights": "f.weights"},
    "save": _OUTPUT,
    "convert": _OUTPUT
    | _RUN
    | dict.fromkeys(("block_size", "scale_type", "bits"), "quantize=Quantize(scheme, {}=...)")
    | {"verify": "wm.verify(dst) after convert"},
    "quantize": dict.fromkeys(("dst", "include", "exclude"), "convert(src, dst, quantize=scheme)")
    | dict.fromkeys(("executor", "manifest", "run"), "convert(src, dst, quantize=scheme, run=Run(...))")
    | dict.fromkeys(("n_subquantizers", "n_bits", "projection", "seed"), "weightmap.words.train_pq"),
    "verify": _RUN,
    "plan": {"world": "world_size=", "local_world": "local_world_size="},
    "load_file": {
        "filename": "path=",
        "map_location": "device=",
        "mmap": "none, files are mapped",
        "trust": 'load_file(wm.open(path, mode="copy", trust=...))',
        "weights_only": "none, nothing in a file is run",
    },
    "load_into": {"filename": "path="}
    | dict.fromkeys(("device", "map_location"), "load_into(module.to(device), path)"),
}

# Bounds of `similar`: names to compare, and characters of a name.
_COMPARED, _LONGEST = 1_000, 100


def mistyped(name: str, value: object, expected: str) -> TypeError:
    """Return the error for an argument of a wrong type.

    Examples
    --------
    >>> from weightmap.core.arguments import mistyped
    >>> mistyped("gap", "64K", "an integer")
    TypeError('gap must be an integer, not str')
    """
    return TypeError(f"{name} must be {expected}, not {type(value).__name__}")


def unexpected(function: str, keyword: str, valid: Iterable[str], *, moved: str = "") -> TypeError:
    """Return the error for an argument that a function lacks: it suggests a replacement, or lists the arguments.

    Examples
    --------
    >>> from weightmap.core.arguments import unexpected
    >>> unexpected("quantize", "blocksize", ["bits", "block_size"])
    TypeError("quantize() got an unexpected keyword argument 'blocksize': did you mean block_size?")
    """
    key, names = moved or function, list(valid)
    place, call = _MOVED.get(key, {}).get(keyword), _CALLS.get(key)
    if place is None and call and keyword in _OPENING:
        place = call.format(f", {_OPENING[keyword].format(keyword)}", "")
    elif place is None and call and keyword == "weights":
        place = call.format("", ".weights")
    if place:
        hint = f"use {place.format(keyword)}"
    elif close := similar(keyword, names, 0.6):
        hint = f"did you mean {' or '.join(close)}?"
    else:
        hint = f"its arguments are {', '.join(names)}"
    return TypeError(f"{function}() got an unexpected keyword argument {keyword!r}: {hint}")


def similar(name: str, names: Iterable[str], cutoff: float = 0.7) -> list[str]:
    """Return up to three names that resemble a missing one, best first; of very many names, compare the first.

    Examples
    --------
    >>> from weightmap.core.arguments import similar
    >>> similar("wieght", ["bias", "weight", "weights"])
    ['weight', 'weights']
    """
    from difflib import get_close_matches  # noqa: PLC0415 - for errors only

    if len(name) > _LONGEST:
        return []
    short = [other for other in islice(names, _COMPARED) if len(other) <= _LONGEST]
    return get_close_matches(name, short, cutoff=cutoff)


def as_integer(name: str, value: Any) -> int:
    """Return an argument as an int. Raises TypeError for anything but an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise mistyped(name, value, "an integer") from None


def as_threads(value: Any) -> int:
    """Return a number of threads as an int. Raises TypeError for anything but an integer, ValueError below 1."""
    threads = as_integer("threads", value)
    if threads < 1:
        raise ValueError(f"threads is {threads}, expected 1 or more")
    return threads


def as_float(name: str, value: Any) -> float:
    """Return an argument as a float. Raises TypeError for anything but a real number."""
    try:
        if not isinstance(value, (str, bytes, bytearray)):  # `float` would parse their text
            return float(value)
    except TypeError:
        pass
    raise mistyped(name, value, "a number")


def check_flags(record: object, *names: str) -> None:
    """Raise TypeError if one of these attributes is neither True nor False: a text such as "no" would mean True."""
    for name in names:
        if not isinstance(getattr(record, name), bool):
            raise mistyped(name, getattr(record, name), "True or False")


def as_path(name: str, value: Any) -> str:
    """Return an argument as a path. Raises TypeError for anything else."""
    try:
        return os.fsdecode(os.fspath(value))
    except TypeError:
        raise mistyped(name, value, "a path (str, bytes or os.PathLike)") from None


def as_globs(name: str, value: Any) -> Globs:
    """Return globs as a string or a tuple of strings. Raises TypeError for anything else."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise mistyped(name, value, "a glob or a sequence of globs")
    listed = tuple(value)
    for glob in listed:
        if not isinstance(glob, str):
            raise mistyped(f"a glob of {name}", glob, "a str")
    return listed


def whole_names(names: Collection[str], rename: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Replace ``OLD*``, renamed to ``NEW*``, by the names that begin with OLD; also return what renames none."""
    by_begin: dict[str, str] = {}
    whole: dict[str, str] = {}
    unused: list[str] = []
    for old, new in rename.items():
        if f"{old}"[-1:] == f"{new}"[-1:] == "*":
            begun = {name: f"{new[:-1]}{name[len(old) - 1 :]}" for name in names if name.startswith(old[:-1])}
            by_begin |= begun
        else:
            begun = {old: new} if old in names else {}
            whole |= begun
        unused += [] if begun else [old]
    return by_begin | whole, unused


def new_names(names: Iterable[str], rename: Rename) -> dict[str, str]:
    """Return new names by old ones. Raises TypeError for another `rename`, and for a new name that is no str."""
    function = (lambda name: rename.get(name, name)) if isinstance(rename, Mapping) else rename
    if not callable(function):
        raise mistyped("rename", rename, "a mapping of names or a function of a name")
    new = {name: function(name) for name in names}
    for name, value in new.items():
        if not isinstance(value, str):
            raise mistyped(f"the new name of tensor {quoted(name)}", value, "a str")
    return new


def check_progress(progress: Callable[[int, int], None] | None) -> None:
    """Raise TypeError for a `progress` that cannot be called, before any work is done."""
    if progress is not None and not callable(progress):
        raise mistyped("progress", progress, "a function of two numbers, done and total")


def names_moved(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function's error for an unknown argument suggest a replacement."""
    inner: Any = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code = inner.__code__
    valid = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def call(*args: _P.args, **keywords: _P.kwargs) -> _T:
        for keyword in keywords:
            if keyword not in valid:
                raise unexpected(function.__name__, keyword, valid)
        return function(*args, **keywords)

    return call


# ----------------------------------------------------------------------------------------------------
# Arguments of `weightmap.open`

# The deepest nesting of objects, arrays and tables in any text of a file. It bounds code that recurses through parsed
# content to print, compare or copy it.
DEEPEST = 128
# A file may expand to this many times its bytes, as deflate can, plus these bytes: see `check_expansion`.
INFLATION, EXTRA_BYTES = 1032, 64 << 20


class _Bounds(NamedTuple):
    max_header_bytes: int
    max_tensors: int
    max_copy_bytes: int | None
    max_shards: int


class Limits(_Bounds):
    """Bounds on the sizes that an opened file may declare, enforced before reading.

    Parameters
    ----------
    max_header_bytes : int
        Largest header, index, metadata section or vocabulary, in bytes. The default is the bound of safetensors and
        bintensors.
    max_tensors : int
        Largest number of tensors in a file, or in a whole sharded model.
    max_copy_bytes : int, optional
        The most bytes that ``mode="copy"``, `convert`, `read`, or looking up a deflated tensor copies; None for no
        bound. (`load` copies nothing else.) Set it for untrusted files: a sparse file of a terabyte costs its author
        nothing. It also replaces a built-in bound: without it, tensors are not read, written or compared if they expand
        to more than 1,032 times the bytes of their file plus 64 MiB. In a PyTorch checkpoint, one number may stand for
        2**40 elements, and many tensors may share the same bytes.
    max_shards : int
        Largest number of files of a sharded model. Each file is mapped, and Linux grants a process 65,530 mappings,
        some of them for its own memory: the default takes half.

    Examples
    --------
    >>> import weightmap as wm
    >>> wm.Limits(max_tensors=10).check("max_tensors", 11, "number of tensors")
    Traceback (most recent call last):
    weightmap.errors.LimitError: number of tensors is 11, expected at most 10 (Limits.max_tensors)
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - documented by the class
        cls,
        max_header_bytes: int = 100_000_000,
        max_tensors: int = 1_000_000,
        max_copy_bytes: int | None = None,
        max_shards: int = 32_768,
    ) -> Self:
        self = super().__new__(cls, max_header_bytes, max_tensors, max_copy_bytes, max_shards)
        for name, bound in self._asdict().items():
            if bound is None and name == "max_copy_bytes":
                continue
            if not isinstance(bound, int):
                raise TypeError(f"{name} is {bound!r}, expected a number")
            if bound < 0:
                raise ValueError(f"{name} is {bound}, expected at least 0")
        return self

    def check(self, name: str, value: int, what: str, *, offset: int | None = None) -> None:
        """Raise `LimitError` when `value`, described by `what`, exceeds the bound called `name`."""
        bound = getattr(self, name)
        if bound is not None and value > bound:
            raise LimitError(what, field=name, offset=offset, actual=value, expected=f"at most {bound} (Limits.{name})")


DEFAULT_LIMITS = Limits()


def validated_limits(limits: Limits | None) -> Limits:
    """Return the caller's limits or, for None, the default ones. Raises TypeError for anything else."""
    if limits is None:
        return DEFAULT_LIMITS
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be weightmap.Limits, not {type(limits).__name__}")
    return limits


def check_expansion(limits: Limits, nbytes: int, stored: int, what: str, path: str) -> None:
    """Raise `LimitError` if a file of `stored` bytes may not expand to `nbytes`.

    `Source.check_size` calls it before reading elements, because a file may store one element for many.
    """
    max_nbytes, bound = INFLATION * stored + EXTRA_BYTES, limits.max_copy_bytes
    if nbytes > max_nbytes and (bound is None or nbytes > bound):
        expected = f"at most {max_nbytes} of a file of {stored} bytes (Limits(max_copy_bytes=...) allows more)"
        raise LimitError(what, path=path, field="max_copy_bytes", actual=nbytes, expected=expected)


class Options:
    """The arguments of `weightmap.open`.

    Attributes
    ----------
    format, mode : str or None
    verify : str
    strict : bool
    limits : Limits
    private : bool
        See `Source.private`.
    deltas : tuple of str
        Directories of deltas over the model, as absolute paths or addresses.
    config : mapping or str, optional
        The model's configuration or its path, by default ``config.json`` beside the file: see `TensorFile.weights`.
    trust : weightmap.trust.checking.Trust, optional
        The digests that the files must have.
    checked : bool
        Whether the index is validated: `verify` is not "none".
    """

    __slots__ = ("checked", "config", "deltas", "format", "limits", "mode", "private", "strict", "trust", "verify")

    # Whether importers may read a file that no format recognises, and how: `ImportOptions`.
    importing = False

    def __init__(
        self,
        limits: Limits,
        *,
        format: str | None = None,
        mode: str | None = None,
        verify: str = "header",
        strict: bool = True,
        private: bool = False,
        deltas: tuple[str, ...] = (),
        config: Any = None,
        trust: Any = None,
    ) -> None:
        self.format: str | None = format
        self.mode: str | None = mode
        self.verify: str = verify
        self.strict: bool = strict
        self.limits: Limits = limits
        self.private: bool = private
        self.deltas: tuple[str, ...] = deltas
        self.config: Any = config
        self.trust: Any = trust
        self.checked: bool = verify != "none"

    def keywords(self, **other: Any) -> dict[str, Any]:
        """Return keyword arguments that make equal options, with `other` in place of some."""
        names = ("format", "mode", "verify", "strict", "limits", "private", "deltas", "config", "trust")
        return {name: getattr(self, name) for name in names} | other

    def tolerate(self, error: TensorFileError, warnings: list[str]) -> None:
        """Raise `error` in strict mode, else add it to `warnings`."""
        if self.strict:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame: the cycle would keep files open until collected
        warnings.append(str(error))


class ImportOptions(Options):
    """The options of `weightmap.convert`. `lossy` lets importers replace bytes of words that are not UTF-8."""

    __slots__ = ("lossy",)

    importing = True

    def __init__(self, limits: Limits, *, lossy: bool, strict: bool = True) -> None:
        super().__init__(limits, private=True, strict=strict)
        self.lossy: bool = lossy
