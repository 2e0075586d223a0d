"""Types for annotations: what `weightmap.open` and `weightmap.save` take and return."""

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray

    from weightmap.core.arguments import Limits
    from weightmap.core.remote_options import Remote

__all__ = [
    "Advice",
    "BinaryFile",
    "Mode",
    "ModelSource",
    "OpenOptions",
    "Signed",
    "TensorLike",
    "TokenizerLike",
    "Trusted",
    "Verify",
]

Mode = Literal["mmap", "cow", "copy", "sealed", "direct"]
Verify = Literal["header", "full", "none"]
Advice = Literal["normal", "random", "sequential"]


class TensorLike(Protocol):
    """What arrays, quantised tensors, and tensors of torch and jax have in common: `weightmap.save` takes it.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap.typing import TensorLike
    >>> def elements(tensor: TensorLike) -> int:
    ...     return int(np.prod(tensor.shape))
    >>> elements(np.zeros((2, 3)))
    6
    """

    @property
    def shape(self) -> Any:
        """Sizes of the dimensions: a tuple, or what behaves as one."""

    def __array__(self) -> "NDArray[Any]": ...


class BinaryFile(Protocol):
    """A binary file object."""

    def read(self, size: int = ..., /) -> bytes:
        """Return up to `size` bytes."""


class TokenizerLike(Protocol):
    """A tokenizer section (AMB): `TensorFile.tokenizer` returns it, and `weightmap.save` takes it."""

    @property
    def type(self) -> int:
        """0 BPE, 1 SentencePiece, 2 WordPiece, 3 custom."""

    @property
    def special_ids(self) -> "Mapping[str, int]":
        """Ids by the names bos, eos, pad, unk and mask."""

    @property
    def payload(self) -> bytes:
        """The vocabulary."""


class Signed(Protocol):
    """What `weightmap.trust.signature` returns."""

    def trust_for(self, given: str, root: str) -> Any:
        """Return the digests of the files of a model."""


# What `weightmap.open` takes as the source of a model, and as `trust`.
ModelSource: TypeAlias = "str | PathLike[str] | int | BinaryFile | ReadableBuffer"
Trusted: TypeAlias = "str | PathLike[str] | Mapping[str, str] | Signed"


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of `weightmap.open`, for functions that pass them on."""

    format: str | None
    mode: Mode | None
    verify: Verify
    strict: bool
    limits: "Limits | None"
    trust: "Trusted | None"
    config: "Mapping[str, Any] | str | PathLike[str] | None"
    remote: "Remote | None"
