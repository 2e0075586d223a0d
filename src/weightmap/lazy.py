"""Names of a package that are imported when somebody asks for them: opening a file is what import time is for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["on_demand"]


def on_demand(package: str, namespace: dict[str, Any], where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

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
