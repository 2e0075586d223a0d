"""Keeps `import weightmap` short: imports deferred to the first use, and records that are quick to define."""
# mypy: implicit-reexport

from __future__ import annotations

import os
import sys
from collections import namedtuple
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, dataclass_transform

_program = os.path.basename("".join(map(str, sys.argv[:1])))
if TYPE_CHECKING or not (
    _program in ("weightmap", "weightmap.exe") or (_program == "-m" and "weightmap" in sys.orig_argv)
):
    import numpy as np
else:
    # On the command line, short commands make no array, and importing numpy takes longer than all that they do.

    class _NumPy(ModuleType):
        """Becomes numpy at its first use."""

        def __getattr__(self, name: str) -> Any:
            numpy = import_module("numpy")
            vars(self).update(vars(numpy))
            self.__class__ = ModuleType
            return getattr(numpy, name)

    np = _NumPy("numpy")

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 - passed on
    from typing import Self
else:

    class _NamedTupleType(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.pop("__annotations__")
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])  # noqa: PYI024 - see below
            for key, value in body.items():
                setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_NamedTupleType):
        """That of `typing` for modules that `import weightmap` loads: it does not compile each annotation as code."""


@dataclass_transform(frozen_default=True)
class Record:
    """Base of records whose fields are annotated in order: a frozen dataclass to type checkers.

    Nothing is compiled when one is defined: that takes a tenth of the time of a named tuple, which is for records that
    are made by the thousand, or that are tuples.
    """

    def __init__(self, *values: Any, **named: Any) -> None:
        self.__dict__.update(zip(self.__annotations__, values, strict=False), **named)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.values() == other.values()

    def __hash__(self) -> int:
        return hash(self.values())

    def values(self) -> tuple[Any, ...]:
        """Return the values of its fields, in order."""
        return tuple([getattr(self, field) for field in self.__annotations__])

    def replaced(self, **fields: Any) -> Self:
        """Return a record with these fields, and the others of this one."""
        return type(self)(**(vars(self) | fields))


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
        value = namespace[name] = getattr(import_module(f"{package}.{module}"), name)
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
