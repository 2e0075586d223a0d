"""What is imported when somebody asks for it: opening a file is what import time is for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["later", "on_demand"]


def on_demand(package: str, namespace: dict[str, Any], where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names are those of its modules.

    Parameters
    ----------
    package : str
        Its name.
    namespace : dict
        Its globals, where a name goes once it has been asked for.
    where : mapping of str to str
        The module, within the package, of each name.
    """

    def get(name: str) -> Any:
        module = where.get(name)
        if module is None:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = namespace[name] = getattr(import_module(f"{package}.{module}"), name)
        return value

    return get


def later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that does what the one called `name` in `module` does, which is imported at the first call."""
    function: Callable[..., Any] | None = None

    def call(*args: Any) -> Any:
        nonlocal function
        if function is None:
            function = getattr(import_module(module), name)
        return function(*args)

    return call
