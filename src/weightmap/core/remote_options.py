"""`Remote`: how `weightmap.open` asks a store for an object. Imported at its first use."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from weightmap.core.arguments import as_float, as_integer, mistyped


class ObjectStore(Protocol):
    """A store of obstore, or one with its interface: `get` or `get_async`, and what goes with them."""


@dataclass(slots=True, frozen=True)
class Remote:
    """How `weightmap.open` asks a store for an object.

    Parameters
    ----------
    store : optional
        The store that holds the object, of obstore or with its interface: for credentials, endpoints and clients of
        your own. The source is then the address of the object, or its key in the store. Default: the store of the
        address, with credentials from the environment (``AWS_ACCESS_KEY_ID`` …).
    concurrency : int, optional
        Simultaneous requests to the store; when not given, 16, and 64 of those for few bytes.
    deadline : float, optional
        Time limit of a request in seconds, to which each MiB adds one second; 60 when not given. A request that exceeds
        it is cancelled and tried again, five times in all.
    redirects : bool
        Follow redirects of an ``https://`` address. Its query, the part behind a ``?``, is not sent on.
    unversioned : bool
        Read an object although the store gives it neither an ETag nor a modification time; by default it is refused. A
        replacement of the same size between two requests then goes unnoticed, and a tensor may mix bytes of both.

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
        if self.deadline is not None and not 0 < as_float("deadline", self.deadline) < math.inf:
            raise ValueError(f"deadline is {self.deadline}, expected a positive number of seconds")
