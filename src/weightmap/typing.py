"""Types for annotations: what `weightmap.open` and `weightmap.save` take and return."""

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from weightmap.core.options import Limits

__all__ = ["Advice", "Mode", "OpenOptions", "TensorLike", "Verify"]

Mode = Literal["mmap", "cow", "copy", "sealed"]
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


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of `weightmap.open`, for functions that pass them on."""

    format: str | None
    mode: Mode | None
    verify: Verify
    strict: bool
    limits: "Limits | None"
    advise: Advice | None
    deltas: "Sequence[str | PathLike[str]] | None"
    config: "Mapping[str, Any] | str | PathLike[str] | None"
    trust: Any
    direct: bool
