"""What formats write: what they are asked for, tensor by tensor, and the plan that they make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from weightmap.errors import EncodeError, counted
from weightmap.io.sink import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from weightmap.dtypes import DType

__all__ = ["PQShape", "Payload", "Plan", "Reason", "Request", "Unfit", "encodable", "listed", "refuse"]


class PQShape(NamedTuple):
    """What a tensor by product quantisation is made of, besides its shape (rows, length).

    Attributes
    ----------
    quantized_len : int
        Codes of a row.
    n_centroids : int
        Of each codebook.
    projection, norms : bool
        Whether it has them.
    """

    quantized_len: int
    n_centroids: int
    projection: bool
    norms: bool


class Payload:
    """One tensor to be written.

    Attributes
    ----------
    name : str
    dtype : DType
    shape : tuple of int
    nbytes : int
    block_size, scale_type
        Of a quantised tensor, whose dtype is a scheme and whose bytes are the payload of a `QuantizedTensor`.
    parts : PQShape or None
        Of a tensor of scheme "pq", whose bytes are its projection, codebooks, norms and codes.
    """

    __slots__ = ("_args", "_make", "block_size", "dtype", "name", "nbytes", "parts", "scale_type", "shape")

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: tuple[int, ...],
        nbytes: int,
        chunks: Callable[..., Iterable[Any]],
        *args: Any,
        block_size: int = 0,
        scale_type: str = "",
        parts: PQShape | None = None,
    ) -> None:
        self.parts = parts
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.nbytes = nbytes
        self._make = chunks
        # Beside the function, so that of tensors by the thousand each is one object for the collector to look at.
        self._args = args
        self.block_size = block_size
        self.scale_type = scale_type

    def chunks(self) -> Iterable[Any]:
        """Return the bytes, row-major and little-endian, in pieces of any size that are valid until the next one.

        They come from the function given as `chunks`, called with `args`.
        """
        return self._make(*self._args)


class Request:
    """All that is to be written: see `weightmap.save`."""

    __slots__ = ("checksums", "config", "layout", "metadata", "special_ids", "tensors", "tokenizer", "vocab")

    def __init__(
        self,
        tensors: Sequence[Payload],
        layout: str,
        metadata: Mapping[str, Any] | None = None,
        vocab: Sequence[str] | None = None,
        special_ids: Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        *,
        checksums: bool = True,
    ) -> None:
        self.tensors = tensors
        self.layout = layout
        self.metadata = metadata
        self.vocab = vocab
        self.special_ids = special_ids
        self.config = config
        self.tokenizer = tokenizer
        self.checksums = checksums


class Unfit(NamedTuple):
    """Something with a name, such as a tensor, that a format cannot express."""

    what: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} {_short(self.name)}: {self.why}"


# Why something cannot be written. Tensors for which the reason is the same are told together.
Reason: TypeAlias = str | Unfit

# A message is read in a terminal: so many characters of names for each reason, and of reasons.
_NAMES, _REASONS = 300, 1000


def refuse(what: str, reasons: Sequence[Reason]) -> NoReturn:
    """Raise the one `EncodeError` that names what `what` cannot express."""
    error = EncodeError(f"{what} cannot express this: {_together(reasons)}")
    error.refused = tuple(map(str, reasons))
    raise error


def _short(name: object) -> str:
    return f"{name[:80]!r}..." if isinstance(name, str) and len(name) > 80 else repr(name)


def _together(reasons: Sequence[Reason]) -> str:
    """Return reasons as one text, each with the names that it is true of."""
    names: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        what, name, why = reason if isinstance(reason, Unfit) else ("", "", reason)
        names.setdefault((what, why), []).append(name)
    texts: list[str] = []
    left, told = _REASONS, 0
    for (what, why), those in names.items():
        text = f"{what}{'s' * (len(those) > 1)} {listed(those)}: {why}" if what else why
        left -= len(text)
        if texts and left < 0:
            texts.append(f"and {counted(len(reasons) - told, 'reason')} more")
            break
        texts.append(text[:_REASONS])
        told += len(those)
    return "; ".join(texts)


def listed(names: Sequence[str]) -> str:
    """Return the first names of some, and how many more there are."""
    shown: list[str] = []
    left = _NAMES
    for name in names:
        text = _short(name)
        left -= len(text)
        if shown and left < 0:
            return f"{', '.join(shown)} and {len(names) - len(shown):,} more"
        shown.append(text)
    return ", ".join(shown)


def encodable(text: str) -> bool:
    """Say whether a text can be UTF-8: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
