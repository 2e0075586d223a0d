"""Makes `import weightmap` short: the collector rests, and all compiled code comes from one file.

To find, open and read a compiled file for each of fifty modules takes longer than to run them. So the first import
writes the code of all as the compiled form of one module, `_compiled`, where Python keeps compiled files. It is used as
Python uses its own: a module whose source has another size or time is imported by itself, and then the file is written
again; nothing is written where Python cannot write compiled files, or shall not.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Self

    # A module: its name, source and compiled file, whether it is a package, time and size of the source, and its code.
    Entry = tuple[str, str, str, bool, int, int, CodeType]

_PACKAGE = "weightmap."
_FOLDER = os.path.dirname(__file__)
# What is imported before the file is read.
_BEFORE = frozenset({"weightmap._compiled", "weightmap.lazy", __name__})
_NONE = "none"


class _Loader(SourceFileLoader):
    """That of Python, with the code of the module."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code: CodeType | None = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code; from the second call on, as Python finds it: what is imported again may have changed."""
        code, self._code = self._code, None
        return super().get_code(fullname) if code is None else code


class Importing:
    """A context for the imports of the package.

    Nearly all that an import makes stays: the collector would go through it a dozen times and free nothing. It rests
    meanwhile, and goes on as before.
    """

    def __enter__(self) -> Self:
        self._collects = gc.isenabled()
        gc.disable()
        self._missed: list[str] = []
        self._entries: dict[str, Entry] = {}
        return self

    def take_together(self) -> None:
        """Take modules from the one file from now on. What it has is in the CPU's caches now, and soon not any more."""
        self._entries = _entries()
        finders = sys.meta_path
        # Finders that stand before Python's own, such as those that instrument modules, keep their say.
        finders.insert(finders.index(PathFinder) if PathFinder in finders else len(finders), self)

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module that the file has, unless its source has changed."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            _, source, compiled, package, *expected, code = entry
            if _state(source) == expected:
                spec = ModuleSpec(name, _Loader(name, source, code), origin=source, is_package=package)
                spec.has_location, spec.cached = True, compiled
                if package:
                    spec.submodule_search_locations = [os.path.dirname(source)]
                return spec
        if name.startswith(_PACKAGE):
            self._missed.append(name)
        return None

    def __exit__(self, error: object, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._entries.clear()
        if error is None and not sys.dont_write_bytecode and any(map(_compiles, self._missed)):
            _write()
        if self._collects:
            gc.enable()


def _state(path: str) -> list[int]:
    """Return time and size of a source, in seconds and bytes as Python notes them; nothing if it is missing."""
    try:
        state = os.stat(path)
    except OSError:
        return []
    return [int(state.st_mtime), state.st_size]


def _entries() -> dict[str, Entry]:
    """Return what the file has, by the names of modules: nothing where there is none, or one of another folder."""
    try:
        from weightmap import _compiled  # noqa: PLC0415 - it may be damaged
    except (EOFError, ImportError, TypeError, ValueError):
        return {}
    modules: Any = _compiled.MODULES
    _compiled.MODULES = _NONE  # the code is not needed twice
    return {} if modules == _NONE or modules[0] != _FOLDER else {entry[0]: entry for entry in modules[1]}


def _compiles(name: str) -> bool:
    """Whether a module is what Python makes of a source: no other loader has changed it."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and type(spec.loader) in (SourceFileLoader, _Loader)


def _write() -> None:
    """Write the file, if this process may write where Python keeps compiled files."""
    if __spec__.cached is None or not os.access(os.path.dirname(__spec__.cached), os.W_OK):
        return
    from importlib.util import MAGIC_NUMBER, cache_from_source  # noqa: PLC0415 - once an installation
    from marshal import dumps  # noqa: PLC0415

    own = SourceFileLoader(f"{_PACKAGE}_compiled", os.path.join(_FOLDER, "_compiled.py"))
    names = {name for name in sys.modules if name.startswith(_PACKAGE) and _compiles(name)}
    try:
        entries = tuple(map(_entry, sorted(names - _BEFORE)))
        code = own.source_to_code(own.get_data(own.path), own.path)
    except (OSError, SyntaxError):  # a source changes meanwhile: the next import will write the file
        return
    kept = tuple((_FOLDER, entries) if value == _NONE else value for value in code.co_consts)
    head = b"".join(number.to_bytes(4, "little") for number in (0, *_state(own.path)))
    own.set_data(cache_from_source(own.path), MAGIC_NUMBER + head + dumps(code.replace(co_consts=kept)))


def _entry(name: str) -> tuple[Any, ...]:
    """Return the `Entry` of a module."""
    spec: Any = sys.modules[name].__spec__
    state = _state(spec.origin)  # before its code is read: what changes in between is imported by itself
    package = spec.submodule_search_locations is not None
    return name, spec.origin, spec.cached, package, *state, spec.loader.get_code(name)
