"""`Limits`, the bounds on what a file may ask for, and `Options`, the arguments of `weightmap.open`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.errors import LimitError

if TYPE_CHECKING:
    from typing import Self

    from weightmap.errors import TensorFileError

# The deepest nesting of objects, arrays and tables in any text of a file: code that recurses through parsed content, to
# print, compare or copy it, gets no deeper.
DEEPEST = 128
# A deflated byte makes at most so many; so may any other, besides some to spare: see `check_expansion`.
INFLATION, SPARE = 1032, 64 << 20


class _Bounds(NamedTuple):
    max_header_bytes: int
    max_tensors: int
    max_copy_bytes: int | None
    max_shards: int


class Limits(_Bounds):
    """Bounds on what an opened file may ask for, enforced before reading.

    Parameters
    ----------
    max_header_bytes : int
        Largest header, index, metadata section or vocabulary, in bytes. The default is the bound of safetensors and
        bintensors.
    max_tensors : int
        Largest number of tensors in a file, or in a whole sharded model.
    max_copy_bytes : int, optional
        Most bytes that ``mode="copy"``, `convert`, `load` and `read` copy; None for no bound. Set it for untrusted
        files: a sparse file of a terabyte costs its author nothing. It also replaces a built-in bound: unless it allows
        more, tensors are not read, written or compared if they expand to more than 1,032 times the bytes of their file
        plus 64 MiB. In a PyTorch checkpoint, one number may stand for 2**40 elements, and many tensors may share the
        same bytes.
    max_shards : int
        Largest number of files of a sharded model. Each is mapped, and Linux grants a process 65,530 mappings,
        including those of its own memory: the default takes half of them.

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
    """Return the caller's limits, by default the usual ones. Raises TypeError for anything else."""
    if limits is None:
        return DEFAULT_LIMITS
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be weightmap.Limits, not {type(limits).__name__}")
    return limits


def check_expansion(limits: Limits, nbytes: int, stored: int, what: str, path: str) -> None:
    """Raise `LimitError` if a file of `stored` bytes may not expand to `nbytes`.

    Called, by `Source.check_size`, before walking over elements that the file may store once for many.
    """
    most, bound = INFLATION * stored + SPARE, limits.max_copy_bytes
    if nbytes > most and (bound is None or nbytes > bound):
        expected = f"at most {most} of a file of {stored} bytes (Limits(max_copy_bytes=...) allows more)"
        raise LimitError(what, path=path, field="max_copy_bytes", actual=nbytes, expected=expected)


class Rare(NamedTuple):
    """Arguments of `weightmap.open` that few callers give: together, for each attribute is a hundredth of opening.

    Attributes
    ----------
    deltas : tuple of str
        Directories of deltas over the model, as absolute paths or addresses.
    config : mapping or str, optional
        The configuration of the model, or the path of one, by default that beside the file: see `TensorFile.weights`.
    trust : weightmap.trust.checking.Trust, optional
        The digests that the files must have.
    """

    deltas: tuple[str, ...] = ()
    config: Any = None
    trust: Any = None


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
    rare : Rare, optional
    checked : bool
        Whether the index is validated: `verify` is not "none".
    """

    __slots__ = (
        "checked",
        "format",
        "limits",
        "mode",
        "private",
        "rare",
        "strict",
        "verify",
    )

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
        rare: Rare | None = None,
    ) -> None:
        self.format: str | None = format
        self.mode: str | None = mode
        self.verify: str = verify
        self.strict: bool = strict
        self.limits: Limits = limits
        self.private: bool = private
        self.rare: Rare | None = rare
        self.checked: bool = verify != "none"

    @property
    def deltas(self) -> tuple[str, ...]:
        """Directories of deltas over the model."""
        return () if self.rare is None else self.rare.deltas

    @property
    def config(self) -> Any:
        """The configuration of the model, or the path of one, where it was given."""
        return None if self.rare is None else self.rare.config

    @property
    def trust(self) -> Any:
        """The digests that the files must have, where they were given."""
        return None if self.rare is None else self.rare.trust

    def keywords(self, **other: Any) -> dict[str, Any]:
        """Return keyword arguments that make equal options, some of them replaced by `other`."""
        names = ("format", "mode", "verify", "strict", "limits", "private", "rare")
        return {name: getattr(self, name) for name in names} | other

    def tolerate(self, error: TensorFileError, warnings: list[str]) -> None:
        """Raise `error` in strict mode, else add it to `warnings`."""
        if self.strict:
            try:
                raise error
            finally:
                del error  # its traceback has this frame: a cycle would keep files open until it is collected
        warnings.append(str(error))


class ImportOptions(Options):
    """The options of `weightmap.convert`. `lossy` lets importers replace bytes of words that are not UTF-8."""

    __slots__ = ("lossy",)

    importing = True

    def __init__(self, limits: Limits, *, lossy: bool, strict: bool = True) -> None:
        super().__init__(limits, private=True, strict=strict)
        self.lossy: bool = lossy
