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


class later:  # noqa: N801 - it stands where a function is expected
    """A function that does what the one called `name` in `module` does, which is imported at the first call."""

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

    def __call__(self, *args: Any) -> Any:
        """Call it."""
        return self.load()(*args)
