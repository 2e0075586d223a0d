"""Where parts add to the core, one name for each addition; `weightmap` registers them, and each is imported when used.

Without the part (its folder may be deleted), a hook returns its `absent` value, or raises `MissingDependencyError`.
"""

from __future__ import annotations

from typing import Any

from weightmap.core.lazy import import_part
from weightmap.errors import MissingDependencyError

_REQUIRED = object()


class Hook:
    """A function of a part that the core calls.

    Parameters
    ----------
    purpose : str
        What cannot be done without the part, for the error.
    absent : object, optional
        What a call returns without the part; by default it raises.
    """

    __slots__ = ("_absent", "_module", "_name", "_purpose")

    def __init__(self, purpose: str, absent: Any = _REQUIRED) -> None:
        self._purpose, self._absent = purpose, absent
        self._module = self._name = ""

    def register(self, module: str, name: str) -> None:
        """Let the hook call the function `name` of a module of a part."""
        self._module, self._name = module, name

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function; import its module first where that is needed."""
        try:
            module = import_part(self._module, self._purpose)
        except MissingDependencyError:
            if self._absent is _REQUIRED:
                raise
            return self._absent
        return getattr(module, self._name)(*args, **options)


# The location that an address names; the address itself where its scheme is of no store.
location_of: Hook = Hook("opening an address")
# The source for a location.
open_location: Hook = Hook("opening an address")
# The result of a function that writes to a path, called with an address as its target.
write_to_address: Hook = Hook("writing to an address")
# The digests that `trust=` names for a model.
trust_in: Hook = Hook("trust=")
# A handle with deltas laid over it.
overlay: Hook = Hook("laying deltas over a model")
# The parameters of a model as a handle.
weights_of: Hook = Hook("f.weights")
# The importers of files that no format recognises.
importers: Hook = Hook("importing word vectors", absent=())
# A reader of a source past the page cache.
direct_reader: Hook = Hook('mode="direct"')
# Ranges of a mapping, brought into memory in the background.
prefetch: Hook = Hook("prefetching")
