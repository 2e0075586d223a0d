"""How checkpoints quantise: a module here for each ``quant_method`` of ``config.json``, or for several (`_ALIASES`).

To add a method, add a module, named as the method with ``_`` for ``-``; `method_of` finds it. Its `METHOD`, a class or
a function, makes a `Method` from a configuration. A method names the pieces of a parameter, and makes a `Coding` from a
group of them, or refuses the group. The docstring of a coding is its formula.
"""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from weightmap._messages import quoted
from weightmap.checkpoints.methods._expressions import Expression, UnsupportedExpressionError
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.strict_json import kind_of
from weightmap.core.model.codes import INTEGERS, SMALL_FLOATS, may_be_codes
from weightmap.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.checkpoints.pieced import Coding
    from weightmap.core.table.table import Row

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
EXPONENTS = ("uint8", "float8_e8m0fnu")
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
# Names of integers that are codes, and of the codes of experts that form one parameter.
_PIECE = re.compile(r"(?:qweight|packed|quantized|codes|qdata|W_q)\Z")
_FUSED = re.compile(r"(?:[._]proj|\bexperts\.\w+)\Z")
# Most bytes of a description, such as a quant state of bitsandbytes.
_MAX_JSON_NBYTES = 1 << 16
# Methods that share a module.
_ALIASES = {"mxfp8": "fp8", "fbgemm-fp8": "fp8"}


class Settings:
    """An object of a configuration, whose values are checked when they are used.

    Parameters
    ----------
    values : mapping
    path : str
        The path of its file, for messages.
    where : str
        Its key in that file.
    """

    values: Mapping[str, Any]
    path: str
    where: str

    def __init__(self, values: Mapping[str, Any], path: str, where: str = "quantization_config") -> None:
        self.values, self.path, self.where = values, path, where
        self._expressions: dict[str, Expression] = {}

    def refuse(self, key: str, expected: str, kind: type[FormatError] = FormatError) -> NoReturn:
        """Raise the error for the value of a key."""
        field, value = f"{self.where}.{key}", self.values.get(key)
        actual = "missing" if value is None else quoted(value) if isinstance(value, str) else str(value)[:80]
        raise kind(field, path=self.path, field=field, actual=actual, expected=expected)

    def _is_absent(self, key: str) -> bool:
        return self.values.get(key) is None

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive number, or -1."""
        value = default if self._is_absent(key) else self.values[key]
        if type(value) is not int or (value < 1 and value != -1):
            self.refuse(key, "a positive number")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = default if self._is_absent(key) else self.values[key]
        if not isinstance(value, str):
            self.refuse(key, "a string")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a truth value."""
        value = default if self._is_absent(key) else self.values[key]
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of strings, empty if the key is missing."""
        value = [] if self._is_absent(key) else self.values[key]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(key, "a list of strings")
        return value

    def sizes(self, key: str) -> tuple[int, int] | None:
        """Return two positive numbers, from a list or a text such as "128x128"; None if the key is missing."""
        if self._is_absent(key):
            return None
        value = self.values[key]
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", value):
            value = [int(size) for size in value.split("x")]
        if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
            self.refuse(key, "a list of two positive numbers")
        return value[0], value[1]

    def section(self, key: str) -> Settings:
        """Return an object, empty if the key is missing."""
        value = {} if self._is_absent(key) else self.values[key]
        if not isinstance(value, dict):
            self.refuse(key, "an object")
        return Settings(value, self.path, f"{self.where}.{key}")

    def unsupported(self, key: str, expected: str) -> NoReturn:
        """Refuse a variant that is not decoded here."""
        self.refuse(key, expected, UnsupportedError)

    def matches(self, key: str, text: str, module: str) -> bool:
        """Say whether a regular expression matches the beginning of a name, as `re.match` does."""
        expression = self._expressions.get(text)
        if expression is None:
            expression = self._expressions[text] = self._expression(key, text)
        return expression.fits(module)

    def _expression(self, key: str, text: str) -> Expression:
        what = f"{self.where}.{key}: the regular expression {quoted(text)}"
        try:
            return Expression(text)
        except UnsupportedExpressionError as error:
            expected = "one that can be matched in linear time"
            raise UnsupportedError(f"{what} has {error}", path=self.path, field=key, expected=expected) from None
        except (re.error, OverflowError, RecursionError, Warning) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            raise FormatError(f"{what} is not valid: {reason}", path=self.path, field=key) from None


class Group:
    """The stored tensors of one parameter.

    Attributes
    ----------
    module : str
        The common prefix of their names.
    names : dict of str to str
        Their names by their roles in the scheme; in file order.
    experts : list of int
        The number of experts with such pieces, if these are the pieces of the first expert.
    """

    def __init__(self, module: str, rows: Mapping[str, tuple[str, Row]]) -> None:
        self.module = module
        self.experts: list[int] = []
        self.names: dict[str, str] = {role: name for role, (name, _) in rows.items()}
        self._rows: dict[str, Row] = {role: row for role, (_, row) in rows.items()}

    def __contains__(self, role: str) -> bool:
        return role in self._rows

    @property
    def fused(self) -> bool:
        """Whether these are the experts of a layer, whose codes have the parameter's name."""
        return not next(iter(self.names.values())).startswith(f"{self.module}.")

    def refuse(
        self,
        what: str,
        role: str | None = None,
        *,
        actual: Any = None,
        expected: Any = None,
        kind: type[FormatError] = FormatError,
    ) -> NoReturn:
        """Raise an error that names the tensor of a role, or all of them."""
        named = [self.names[role]] if role in self.names else self.names.values()
        tensors = " and ".join(f"tensor {quoted(name)}" for name in named)
        raise kind(f"{what} of {tensors}", field="quantization_config", actual=actual, expected=expected)

    def missing(self, role: str) -> NoReturn:
        """Refuse a group that lacks a piece."""
        present = ", ".join(map(quoted, self.names.values()))
        msg = f"parameter {quoted(self.module)} lacks its tensor {role!r}: the model has {present}"
        raise FormatError(msg, field="quantization_config")

    def row(self, role: str) -> Row:
        """Return a required piece."""
        if role not in self._rows:
            self.missing(role)
        return self._rows[role]

    def rows(self) -> Mapping[str, Row]:
        """Return all pieces."""
        return self._rows

    def check(self, role: str, dtypes: Collection[str], *shapes: Sequence[int | None]) -> tuple[int, ...]:
        """Return the shape of a piece; require one of these types and shapes. None stands for any length."""
        row = self.row(role)
        if row.dtype.name not in dtypes or row.dtype.quantized:
            self.refuse("dtype", role, actual=row.dtype.name, expected=" or ".join(dtypes))
        for shape in shapes:
            fits = len(shape) == len(row.shape)
            if fits and all(size in {None, n} for n, size in zip(row.shape, shape, strict=True)):
                return row.shape
        texts = (str(["any" if n is None else n for n in shape]).replace("'", "") for shape in shapes)
        return self.refuse("shape", role, actual=list(row.shape), expected=" or ".join(texts))

    def only(self, *roles: str) -> None:
        """Refuse pieces that are neither these nor of inputs."""
        for role in self.names:
            if role not in roles and not role.startswith("input_"):
                others = ", ".join(quoted(self.names[other]) for other in self.names if other in roles)
                msg = f"tensor {quoted(self.names[role])} does not go with {others}"
                raise FormatError(msg, field="quantization_config")

    def expert(self, count: int, shared: Collection[str], *, lying: bool = False) -> Group:
        """Return the pieces of the first of `count` experts: index 0 on the first axis of pieces that are not shared.

        `lying` says that matrices are stored transposed: they are turned.
        """
        rows = {}
        for role, row in self._rows.items():
            if role not in shared and row.shape[:1] != (count,):
                self.refuse("shape", role, actual=list(row.shape), expected=f"{count} experts first")
            shape = row.shape[:0:-1] if lying else row.shape[1:]
            part = row.dense._replace(shape=shape, nbytes=row.nbytes // max(count, 1))
            rows[role] = self.names[role], row if role in shared else part
        first = Group(self.module, rows)
        first.experts = [count]
        return first

    def read(self, role: str) -> NDArray[Any]:
        """Read a small piece into private memory."""
        row = self.row(role).dense
        dtype, shape = row.viewed
        octets = row.source.pread(row.offset, row.nbytes)
        return np.frombuffer(octets, dtype).reshape(shape) if octets else np.empty(shape, dtype)

    def described(self, role: str) -> Settings:
        """Read a piece that is a short object of JSON."""
        (length,) = self.check(role, ("uint8",), (None,))
        if length > _MAX_JSON_NBYTES:
            self.refuse("bytes", role, actual=length, expected=f"at most {_MAX_JSON_NBYTES}")
        name = f"tensor {quoted(self.names[role])}"
        return Settings(strict_json.loads(self.read(role).tobytes(), name), self.row(role).source.name, name)


class Method:
    """One way to quantise a checkpoint.

    Attributes
    ----------
    endings : tuple of str
        Endings of the names of pieces; without its first character, an ending is the role of the piece.
    parameter : str
        The ending of a parameter's name, after the name of its module.
    fused : tuple of str
        Endings of the pieces of experts, after the parameter's name, which is also the name of the codes.
    coded : tuple of str
        Types of a weight, besides integers of several dimensions, that mean nothing without its other pieces.
    markers : tuple of str
        Names of tensors that describe the quantisation of the file, and are not parameters.
    lists : tuple of str
        Keys of the configuration with modules that are not quantised.
    """

    endings: ClassVar[tuple[str, ...]] = ()
    parameter: ClassVar[str] = ".weight"
    fused: ClassVar[tuple[str, ...]] = ()
    coded: ClassVar[tuple[str, ...]] = ()
    markers: ClassVar[tuple[str, ...]] = ()
    lists: ClassVar[tuple[str, ...]] = ("modules_to_not_convert", "ignored_layers", "ignore")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        for key in ("transform_config", "rotation_config", "spinquant_config", "rotation"):
            if settings.values.get(key):
                settings.unsupported(key, "nothing: rotated weights are not turned back")
        self._left_out = [entry for key in self.lists for entry in settings.texts(key)]

    def belongs(self, roles: Collection[str], row: Any) -> bool:
        """Whether tensors with these endings are pieces of a parameter; ``row(role)`` returns the row of one.

        A weight that is a float, beside scales of activations alone, is a parameter by itself.
        """
        of_weight = {role for role in roles if not role.startswith(("input_", "activation_"))}
        return not (of_weight == {"weight"} != set(roles) and row("weight").dtype.name in FLOATS)

    def layers_of(self, parameter: str) -> Sequence[str]:  # noqa: ARG002 - most share no pieces
        """Return possible names of the parameter with the matrices of all experts, from the name of one expert's."""
        return ()

    def of_one(self, rows: Mapping[str, tuple[str, Row]]) -> Mapping[str, tuple[str, Row]]:
        """Return the pieces of one parameter, if a stored tensor holds pieces of several parameters."""
        return rows

    def leaves_out(self, module: str) -> bool:
        """Whether a list of the configuration has a module: by name, prefix, suffix after a dot, or expression."""
        return any(
            module == entry
            or module.startswith(f"{entry}.")
            or module.endswith(f".{entry}")
            or f".{entry}." in module
            or self._matches(entry, module)
            for entry in self._left_out
        )

    def _matches(self, entry: str, module: str) -> bool:
        if entry.startswith("re:"):
            return self.settings.matches("ignore", entry[3:], module)
        if "*" in entry and not re.search(r"[][()\\+?^$|]", entry):
            return _like(entry, module)
        return any(c in entry for c in "\\^$+[(|") and self.settings.matches("ignore", entry, module)

    def coding(self, group: Group) -> Coding:
        """Return the coding of a group. Raises `FormatError` if pieces are missing or contradict the configuration."""
        raise NotImplementedError

    def coding_or_none(self, group: Group) -> Coding | None:
        """Return `coding`; None for a lone weight that is not quantised."""
        if list(group.names) != ["weight"]:
            return self.coding(group)
        self.check_lone(group.names["weight"], group.row("weight"))
        return None

    def check_lone(self, name: str, row: Row) -> None:
        """Raise `FormatError` for a lone tensor that has the name of a weight and a type of codes."""
        module, kind = name.removesuffix(".weight"), row.dtype.name
        is_fused = _FUSED.search(name) is not None
        is_weight = module != name or is_fused
        is_piece = may_be_codes(name, row) and (kind in SMALL_FLOATS or _PIECE.search(name) is not None)
        if not (is_weight or is_piece) or row.dtype.quantized or self.leaves_out(module):
            return
        is_integer = kind in INTEGERS and len(row.shape) > 1
        if module != name and not is_fused and (kind in self.coded or is_integer):
            msg = f"tensor {quoted(name)} is {kind}, and its scales are missing"
            raise FormatError(msg, field="quantization_config")
        if is_integer or kind in SMALL_FLOATS:
            scheme = f"quant_method {quoted(self.settings.values['quant_method'])}"
            where = f"{self.settings.where} of {quoted(self.settings.path)}"
            msg = f"tensor {quoted(name)} is {kind}, codes without scales, which {scheme} in {where} does not explain"
            raise UnsupportedError(msg, field="quantization_config")


def _like(entry: str, module: str) -> bool:
    """Whether an entry with asterisks matches the name of a module or of one around it; in linear time."""
    first, *parts = entry.split("*")
    if not module.startswith(first):
        return False
    at = len(first)
    for part in parts:
        at = module.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return not parts[-1] or at == len(module) or module[at] == "." or module.endswith(parts[-1])


def blocks_of(count: int, size: int) -> int:
    """Return the number of blocks of `size` that `count` elements take."""
    return -(-count // size)


def method_of(settings: Settings) -> Method:
    """Return the method of a configuration. Raises `FormatError` if it is missing, `UnsupportedError` if unknown."""
    if not isinstance(settings.values.get("quant_method"), str):
        settings.refuse("quant_method", "a string")
    modules = {module.name.replace("_", "-"): module.name for module in iter_modules(__path__) if module.name[0] != "_"}
    stated = settings.values["quant_method"].replace("_", "-")
    name = modules.get(_ALIASES.get(stated, stated))
    if name is None:
        settings.unsupported("quant_method", f"one of {', '.join(sorted({*modules, *_ALIASES}))}")
    method: Method = import_module(f"{__name__}.{name}").METHOD(settings)
    return method


def as_settings(value: Any, path: str, where: str) -> Settings:
    """Return an object of a configuration. Raises `FormatError` for anything else."""
    if not isinstance(value, dict):
        raise FormatError(where, path=path, field=where, actual=kind_of(value), expected="an object")
    return Settings(value, path, where)
