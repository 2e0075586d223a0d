"""What formats write: what they are asked for, tensor by tensor, and the plan that they make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from weightmap.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from weightmap.dtypes import DType
    from weightmap.model.saving import Sink

__all__ = ["Parts", "Payload", "Plan", "Request", "encodable", "refuse"]


class Parts(NamedTuple):
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
    parts : Parts or None
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
        parts: Parts | None = None,
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


class Plan:
    """A file that can be written: its size in bytes, and the function that does it.

    The size is exact, unless `exact` is False: then it is an estimate, by which progress is told.
    """

    __slots__ = ("exact", "size", "write")

    def __init__(
        self,
        size: int,
        write: Callable[[Sink], None],
        *,
        exact: bool = True,
    ) -> None:
        self.size = size
        self.write = write
        self.exact = exact


def refuse(what: str, reasons: Sequence[str]) -> NoReturn:
    """Raise the one `EncodeError` that names everything that `what` cannot express."""
    shown = "; ".join(reasons[:100]) + (f"; and {len(reasons) - 100} more" if len(reasons) > 100 else "")
    msg = f"{what} cannot express this: {shown}"
    raise EncodeError(msg)


def encodable(text: str) -> bool:
    """Say whether a text can be UTF-8: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
