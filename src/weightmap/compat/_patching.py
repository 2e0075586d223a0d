"""`patched`: makes libraries that import safetensors use this package instead, within a ``with`` block.

In the block, PyTorch and transformers also find and load models of every format.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.compat import _prefetching, _reading, _safe_open, _saving
from weightmap.compat._frameworks import imported
from weightmap.core.bytes.open_source import from_path
from weightmap.core.formats import HEAD, identify
from weightmap.core.model.single import is_index
from weightmap.errors import NotRegularFileError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Names in the package safetensors, and our replacements.
_PACKAGE = {
    "PrefetchLoader": _prefetching.PrefetchLoader,
    "PySafeSlice": _reading.SafeSlice,
    "SafetensorError": TensorFileError,
    "TensorMeta": _prefetching.TensorMeta,
    "TensorSpec": _saving.TensorSpec,
    "_safe_open_handle": _safe_open.open_handle,
    "deserialize": _saving.deserialize,
    "safe_open": _safe_open.safe_open,
    "serialize": _saving.serialize,
    "serialize_file": _saving.serialize_file,
}
# Modules in which all names are replaced; in other modules only `safe_open` and `SafetensorError` are.
_PATCHED = {
    "__main__",  # a script, which imports while it runs
    "safetensors",
    *(f"safetensors.{part}" for part in ("flax", "mlx", "numpy", "tensorflow", "torch")),
    "torch",
    "torch.serialization",
    "transformers.modeling_layers",
    "transformers.modeling_utils",
}
# Arguments that restrict transformers to certain files.
_CHOSEN = ("variant", "gguf_file", "use_safetensors", "transformers_explicit_filename")


def _loading(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``torch.load`` for files of every format, and indexes of shards; PyTorch's own files go to `theirs`."""

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, str | os.PathLike) or not _is_new_to_torch(os.fsdecode(f)):
            return theirs(f, map_location, *args, **kwargs)
        # A function or a mapping moves tensors saved on other devices, which files of other formats do not have.
        device = map_location if isinstance(map_location, str | int | imported("torch", "torch").device) else "cpu"
        if str(device) != "meta":
            return wm.torch.load_file(f, device)
        return {name: tensor.to(device) for name, tensor in wm.torch.load_file(f).items()}

    return load


def _is_new_to_torch(path: str) -> bool:
    """Whether a file is an index of shards, or of a format that is not PyTorch's."""
    if is_index(path):
        return True
    try:
        with contextlib.closing(from_path(path, "mmap")) as source:
            return identify(source, source.pread(0, min(HEAD, source.size))).name != "torch"
    except (OSError, ValueError, TensorFileError):  # leave the error to PyTorch
        return False


def _looking_up(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a finder of files for transformers: `theirs`, or else the only model of the folder."""

    def look_up(*args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(*args, **kwargs)
        except OSError:
            from weightmap.core.model.sharded import find_model

            arguments = inspect.signature(theirs).bind(*args, **kwargs).arguments
            subfolder = (arguments.get("download_kwargs") or {}).get("subfolder") or ""
            folder = os.path.join(str(arguments.get("pretrained_model_name_or_path")), subfolder)
            if any(arguments.get(name) is not None for name in _CHOSEN) or not os.path.isdir(folder):
                raise
            with contextlib.suppress(NotRegularFileError):  # the folder has no model
                return [find_model(folder)], None
            raise

    return look_up


# Functions that ours wrap, by the module that defines them.
_WRAPPED = (
    ("torch.serialization", "load", _loading),
    ("transformers.modeling_utils", "_get_resolved_checkpoint_files", _looking_up),
)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Make libraries that import safetensors use `weightmap.compat`, within a ``with`` block.

    The functions of safetensors' modules use ours, in all modules that have imported them. In modules that have
    imported `safe_open` or `SafetensorError`, or import one within the block, ours replace them. Nothing is imported.
    The end of the block restores everything.

    ``torch.load`` is replaced too: it reads files of every format, and indexes of shards; PyTorch's own files load as
    before. ``from_pretrained`` of transformers takes directories of every format: if no file has a name that it knows,
    it loads the model that `weightmap.open` opens. The tensors need Hugging Face's names.

    Raises
    ------
    MissingDependencyError
        When safetensors, whose modules are patched, is not installed.

    Notes
    -----
    The block affects the whole process, also other threads; if blocks overlap, until the last one ends. Modules that
    imported `weightmap.compat` before the block keep it; modules imported within the block do not. An older module that
    imports a name within the block keeps ours, unless it is the script. `safe_open` and `SafetensorError` are only
    replaced under these names, not as the default of an argument, nor imported ``as`` another name. Import transformers
    before the block: otherwise it does not find directories of other formats.

    Examples
    --------
    >>> import safetensors, weightmap.compat
    >>> with weightmap.compat.patched():
    ...     print(safetensors.safe_open.__module__)
    weightmap.compat._safe_open
    """
    _blocks.enter(imported("safetensors", "safetensors"))
    try:
        yield
    finally:
        _blocks.leave()


class _Blocks:
    """The open blocks of the process; the end of the last one restores all replaced names."""

    def __init__(self) -> None:
        self._lock, self._count, self._restored = Lock(), 0, contextlib.ExitStack()

    def enter(self, package: ModuleType) -> None:
        with self._lock:
            restore = _replaced(package)
            if restore is not None:
                self._restored.callback(restore)
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._restored.close()


_blocks = _Blocks()


def _replaced(package: ModuleType) -> Callable[[], None] | None:
    """Replace names; return the function that restores them, or None if nothing is left to replace."""
    swaps = {name: (getattr(package, name), new) for name, new in _PACKAGE.items() if hasattr(package, name)}
    for home, name, around in _WRAPPED:
        old = getattr(sys.modules.get(home), name, None)
        if old is not None:
            swaps[name] = (old, around(old))
    swaps = {name: pair for name, pair in swaps.items() if not _is_ours(pair[0])}
    if not swaps:  # another block has done it: do not touch all modules, whose pages forked processes share
        return None
    back = {name: (new, old) for name, (old, new) in swaps.items()}
    names, before = set(sys.modules), _importers(list(sys.modules.values()))
    ours = {id(module) for module in before if module.__dict__.get("safe_open") is _safe_open.safe_open}
    _replace(before, swaps)

    def restore() -> None:
        # Check only new modules: checking all, thousands, takes milliseconds.
        late = _importers([sys.modules.get(name) for name in sys.modules.keys() - names])
        _replace([module for module in before + late if id(module) not in ours], back)

    return restore


def _importers(modules: list[Any]) -> list[ModuleType]:
    """Return the modules of other packages, among these and `_PATCHED`, that may hold names to replace."""
    importers: list[Any] = [sys.modules.get(name) for name in _PATCHED]
    for module in modules:
        names = getattr(module, "__dict__", ())
        if "safe_open" in names or "SafetensorError" in names:
            importers.append(module)
    return list(filter(_foreign, importers))


def _replace(modules: list[ModuleType], pairs: dict[str, tuple[Any, Any]]) -> None:
    """In each module, set names that hold the first value of a pair to the second."""
    for module in modules:
        for name, (old, new) in pairs.items():
            if module.__dict__.get(name) is old:
                setattr(module, name, new)


def _is_ours(value: Any) -> bool:
    """Whether a class or function is of this package."""
    return str(getattr(value, "__module__", None)).partition(".")[0] == "weightmap"


def _foreign(module: Any) -> bool:
    """Whether a value of `sys.modules` is a module of another package."""
    return isinstance(module, ModuleType) and str(getattr(module, "__name__", None)).partition(".")[0] != "weightmap"
