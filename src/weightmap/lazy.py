"""What keeps `import weightmap` short: imports deferred to the first use, and named tuples that are quick to define."""

from __future__ import annotations

from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

try:
    from collections import _tuplegetter as _getter  # type: ignore[attr-defined] # what named tuples of Python have
except ImportError:

    def _getter(place: int, doc: str) -> property:
        return property(itemgetter(place), doc=doc)


__all__ = ["Named", "later", "on_demand"]


def on_demand(package: str, namespace: dict[str, Any], where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that imports each name from its module at first use.

    Parameters
    ----------
    package : str
        Its name.
    namespace : dict
        Its globals, which keep each name once it is loaded.
    where : mapping of str to str
        For each name the module, relative to the package, that defines it.
    """

    def get(name: str) -> Any:
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


@dataclass_transform(frozen_default=True)
class Named(tuple[Any, ...]):
    """Base of named tuples: a subclass names its fields by annotations, and gives defaults as values.

    Defining one takes 7 microseconds, one of `typing.NamedTuple` with eight fields 90: the import pays for each. Making
    one takes half a microsecond longer.
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _defaults: dict[str, Any] = {}  # noqa: RUF012 - of a class, and nobody changes it

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)
        cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}
        for place, name in enumerate(cls._fields):
            setattr(cls, name, _getter(place, f"Field {place}."))

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Make one of values in the order of the fields, by name, or both."""
        if named or len(values) != len(cls._fields):
            given = dict(zip(cls._fields, values, strict=False))
            every = {**cls._defaults, **given, **named}
            if len(values) > len(given) or given.keys() & named.keys() or every.keys() != set(cls._fields):
                msg = f"{cls.__name__} takes {', '.join(cls._fields)}, not {values} and {named}"
                raise TypeError(msg)
            values = tuple(every[name] for name in cls._fields)
        return tuple.__new__(cls, values)

    @classmethod
    def _make(cls, values: tuple[Any, ...]) -> Self:
        """Make one of a tuple of all values, which takes less than a call with them."""
        return tuple.__new__(cls, values)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def _asdict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **named: Any) -> Self:
        """Return one with other values in these fields."""
        values = tuple(map(named.pop, self._fields, self))
        if named:
            msg = f"{type(self).__name__} has no field {', '.join(named)}"
            raise TypeError(msg)
        return self._make(values)
