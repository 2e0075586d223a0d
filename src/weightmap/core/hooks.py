"""Imports at first use: public names, functions that few files need, and the additions of parts to the core.

`weightmap` registers these additions, with a hook for each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weightmap.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import ModuleType

_REQUIRED = object()


class Hook:
    """A part's function that the core calls; the first call imports the part, whose folder may be deleted.

    Parameters
    ----------
    purpose : str
        The operation that needs the part, for the error.
    absent : object, optional
        The result of a call without the part; by default a call raises.
    """

    __slots__ = ("_absent", "_module", "_name", "_purpose")

    def __init__(self, purpose: str, absent: Any = _REQUIRED) -> None:
        self._purpose, self._absent = purpose, absent
        self._module = self._name = ""

    def register(self, module: str, name: str) -> None:
        """Make the hook call the function `name` of a part's module."""
        self._module, self._name = module, name

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function; import its module first if needed."""
        try:
            module = import_part(self._module, self._purpose)
        except MissingDependencyError:
            if self._absent is _REQUIRED:
                raise
            return self._absent
        return getattr(module, self._name)(*args, **options)


# The location that an address names; the address itself if no store has its scheme.
location_of: Hook = Hook("opening an address")
# The source for a location.
open_location: Hook = Hook("opening an address")
# Calls a function that writes to a path for a target that is an address; returns its result.
write_to_address: Hook = Hook("writing to an address")
# The digests that `trust=` names for a model.
trust_in: Hook = Hook("trust=")
# A handle with deltas laid over it.
overlay: Hook = Hook("laying deltas over a model")
# The parameters of a model as a handle.
weights_of: Hook = Hook("f.weights")
# The place in a configuration that declares a model quantised; "" without one.
quantisation_stated: Hook = Hook("reading a configuration", absent="")
# The importers of files that no format recognises.
importers: Hook = Hook("importing word vectors", absent=())
# Reads a source past the page cache.
direct_reader: Hook = Hook('mode="direct"')
# Brings ranges of a mapping into memory in the background.
prefetch: Hook = Hook("prefetching")


# ----------------------------------------------------------------------------------------------------


def import_part(module: str, purpose: str) -> ModuleType:
    """Import a module of a part. Raises `MissingDependencyError`, about `purpose`, if it or its folder is deleted."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingDependencyError(f"{purpose} needs {error.name}, which is not there") from None


def on_demand(
    package: str, namespace: dict[str, Any], where: Mapping[str, str], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that imports each name from its module at first use.

    `dir`, and so completion, has the names of ``__all__``, and dunders.

    Parameters
    ----------
    package : str
        Its name.
    namespace : dict
        Its globals, which keep each name once it is loaded.
    where : mapping of str to str
        For each name the module, relative to the package, that defines it.
    modules : collection of str
        Names that are modules of the package themselves.
    """

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        module = where.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_part(f"{package}.{module}", f"{package}.{name}"), name)
        return value

    return get, lambda: sorted({*namespace["__all__"], *(name for name in namespace if name.startswith("__"))})


class later:  # noqa: N801 - it takes the place of a function
    """Stand-in for the function `name` of `module`, which it imports at the first call."""

    __slots__ = ("_function", "_module", "_name")

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name
        self._function: Callable[..., Any] | None = None

    def load(self) -> Callable[..., Any]:
        """Return the function itself."""
        if self._function is None:
            self._function = getattr(import_module(self._module), self._name)
        return self._function

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call it."""
        return self.load()(*args, **named)
