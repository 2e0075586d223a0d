"""Types for annotations: what `weightmap.open` and `weightmap.save` take, and what handles return; and `Remote`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar, overload

from weightmap.core.arguments import Limits, as_float, as_integer, check_flags, mistyped

if TYPE_CHECKING:
    from os import PathLike

    import numpy as np
    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray

    from weightmap.core.quant.blocks import QuantizedTensor
    from weightmap.core.table.vocabulary import Vocabulary

__all__ = [
    "Advice",
    "BinaryFile",
    "Embeddings",
    "Hold",
    "Mode",
    "ModelSource",
    "OpenOptions",
    "Pool",
    "PoolStats",
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
    """The common interface of arrays, quantised tensors, and tensors of torch and jax: `weightmap.save` takes it.

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
        """Sizes of the dimensions: a tuple, or an object like one."""

    def __array__(self) -> NDArray[Any]: ...


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
    def special_ids(self) -> Mapping[str, int]:
        """Ids by the names bos, eos, pad, unk and mask."""

    @property
    def payload(self) -> bytes:
        """The vocabulary."""


class Signed(Protocol):
    """A signature with its key or certificate, from `weightmap.trust.signature`."""

    def trust_for(self, path: str, root: str) -> Any:
        """Return the digests of the files of a model."""


# The arguments `source` and `trust` of `weightmap.open`.
ModelSource: TypeAlias = "str | PathLike[str] | int | BinaryFile | ReadableBuffer"
Trusted: TypeAlias = "str | PathLike[str] | Mapping[str, str] | Signed"


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of `weightmap.open`, for functions that pass them on."""

    format: str | None
    mode: Mode | None
    verify: Verify
    strict: bool
    limits: Limits | None
    trust: Trusted | None
    config: Mapping[str, Any] | str | PathLike[str] | None
    remote: Remote | None


# ----------------------------------------------------------------------------------------------------
# Results of a handle's methods whose classes belong to parts; calling the method imports the class.

T = TypeVar("T")


class PoolStats(NamedTuple):
    """The activity and the content of a pool.

    Attributes
    ----------
    hits, misses : int
        Holds whose tensor was in memory or being read, and holds that read it.
    evictions : int
    read_nbytes : int
        Bytes read from files.
    held_nbytes, resident_nbytes : int
        Bytes of the tensors that are held now, and of all tensors in memory.
    """

    hits: int
    misses: int
    evictions: int
    read_nbytes: int
    held_nbytes: int
    resident_nbytes: int


class Hold(AbstractContextManager["NDArray[Any] | Any", None], Protocol):
    """A tensor that stays in memory until the hold is left or released: `Pool.hold` returns it."""

    def release(self) -> None:
        """Let the tensor go; once."""


class Pool(AbstractContextManager["Pool", None], Protocol):
    """Tensors of a model in memory, within a budget: `TensorFile.pool` returns a `weightmap.pool.pool.Pool`."""

    @property
    def budget(self) -> int:
        """The most bytes of memory that its tensors take."""

    @property
    def direct(self) -> bool:
        """Whether reads leave nothing in the page cache."""

    @property
    def stats(self) -> PoolStats:
        """The pool's activity, and its content now."""

    def hold(self, name: str | tuple[str, ...], index: int | None = None) -> Hold:
        """Bring a tensor into memory, and keep it there until the hold is left or released."""

    def prefetch(self, items: Iterable[tuple[str | tuple[str, ...], int | None] | str]) -> None:
        """Begin to read tensors in the background, as far as the budget allows."""

    def close(self) -> None:
        """Free all entries that are not held."""


class Embeddings(Collection[str], Protocol):
    """Vectors by word: `TensorFile.embeddings` returns a `weightmap.Embeddings`."""

    @property
    def vocab(self) -> Vocabulary:
        """The words, by row."""

    @property
    def matrix(self) -> NDArray[Any] | QuantizedTensor:
        """The rows: words first, then n-grams."""

    @property
    def norms(self) -> NDArray[Any] | None:
        """Norms of the words from the file; None if it has none."""

    @property
    def dims(self) -> int:
        """Length of a vector."""

    def items(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield each word of the vocabulary and its vector."""

    def __getitem__(self, word: str, /) -> NDArray[Any]: ...
    # The vector of a word, or `default`; in `out` if that is given.
    @overload
    def get(self, word: str) -> NDArray[Any] | None: ...
    @overload
    def get(self, word: str, default: T) -> NDArray[Any] | T: ...
    @overload
    def embedding(self, word: str, *, out: NDArray[Any] | None = ...) -> NDArray[Any] | None: ...
    @overload
    def embedding(self, word: str, *, out: NDArray[Any] | None = ..., default: T) -> NDArray[Any] | T: ...

    def embedding_with_norm(self, word: str) -> tuple[NDArray[Any], float] | None:
        """Return the vector of `word` and its norm, or None if the word has no vector."""

    def batch(self, words: Sequence[str], *, threads: int = 1) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the vectors of many words, and a mask of the words that have one."""

    def most_similar(
        self, query: str | NDArray[Any] | Sequence[float], k: int = 10, *, skip: Iterable[str] = ()
    ) -> list[tuple[str, float]]:
        """Return the words with the largest cosine to a vector, or to the vector of a word."""

    def analogy(
        self,
        a: str | None = None,
        b: str | None = None,
        c: str | None = None,
        k: int = 10,
        *,
        positive: Iterable[str] = (),
        negative: Iterable[str] = (),
        skip: Iterable[str] = (),
    ) -> list[tuple[str, float]]:
        """Return the words that are to `c` as `b` is to `a`."""


# ----------------------------------------------------------------------------------------------------


class ObjectStore(Protocol):
    """A store of obstore, or one with its interface: `get` or `get_async`, and their options and results."""


@dataclass(slots=True, frozen=True)
class Remote:
    """How `weightmap.open` asks a store for an object.

    Parameters
    ----------
    store : optional
        The store that holds the object, from obstore or with its interface, if you need your own credentials, endpoint
        or client. The source is then the address of the object, or its key in the store. Default: the store of the
        address, with credentials from the environment (``AWS_ACCESS_KEY_ID`` …).
    concurrency : int, optional
        Simultaneous requests to the store; when not given, 16, but 64 requests for few bytes.
    deadline : float, optional
        Time limit of a request in seconds, plus one second for each MiB; 60 when not given. A request that exceeds it
        is cancelled and tried again, five times in all.
    redirects : bool
        Follow redirects of an ``https://`` address. Its query, the part behind a ``?``, is not sent on.
    unversioned : bool
        Read an object that has neither an ETag nor a modification time; by default it is refused. A replacement of the
        same size between two requests then goes unnoticed, and a tensor may mix bytes of both.

    Examples
    --------
    >>> import weightmap as wm
    >>> wm.Remote(deadline=5, redirects=True)
    Remote(store=None, concurrency=None, deadline=5, redirects=True, unversioned=False)
    """

    store: ObjectStore | None = None
    _: KW_ONLY
    concurrency: int | None = None
    deadline: float | None = None
    redirects: bool = False
    unversioned: bool = False

    def __post_init__(self) -> None:
        if self.store is not None and not (hasattr(self.store, "get") or hasattr(self.store, "get_async")):
            raise mistyped("store", self.store, "an object store with the methods of obstore's")
        if self.concurrency is not None and as_integer("concurrency", self.concurrency) < 1:
            raise ValueError(f"concurrency is {self.concurrency}, expected at least 1")
        if self.deadline is not None and not 0 < as_float("deadline", self.deadline) < float("inf"):
            raise ValueError(f"deadline is {self.deadline}, expected a positive number of seconds")
        check_flags(self, "redirects", "unversioned")
