"""Defers imports to the first use: of public names of the package, and of functions that few files need."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weightmap.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import ModuleType


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
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that imports each name from its module at first use.

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
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = namespace[name] = getattr(import_part(f"{package}.{module}", f"{package}.{name}"), name)
        return value

    return get


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
