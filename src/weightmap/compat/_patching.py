"""`patched`: libraries that import safetensors use this package instead, for as long as a ``with`` block lasts.

PyTorch and transformers find and load models of every format in it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.compat import _prefetching, _reading, _safe_open, _saving
from weightmap.compat._frameworks import imported
from weightmap.core.bytes.open_source import from_path
from weightmap.core.formats import HEAD, identify
from weightmap.core.model.sharded import find_model
from weightmap.core.model.single import is_index
from weightmap.errors import NotRegularFileError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What takes the place of the names of safetensors itself.
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
# The names of its modules, each of which is patched where its library is installed.
_BOTH = ("load", "load_file", "save", "save_file")
_MODULES = {
    "flax": _BOTH,
    "mlx": _BOTH,
    "numpy": _BOTH,
    "tensorflow": _BOTH,
    "torch": (*_BOTH, "load_model", "save_model"),
}
# Arguments that say which files transformers should take, and no others.
_CHOSEN = ("variant", "gguf_file", "use_safetensors", "transformers_explicit_filename")


def _loading(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``torch.load`` for files of every format, and indexes of shards; PyTorch's own files go to `theirs`."""

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, str | os.PathLike) or not _is_new_to_torch(os.fsdecode(f)):
            return theirs(f, map_location, *args, **kwargs)
        # A function or a mapping moves tensors that were saved on other devices: files of other formats have none.
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
        source = from_path(path, "mmap")
        try:
            return identify(source, source.pread(0, min(HEAD, source.size))).name != "torch"
        finally:
            source.close()
    except (OSError, ValueError, TensorFileError):  # PyTorch says what is wrong with it
        return False


def _looking_up(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a finder of files for transformers: `theirs`, else the one model of the folder."""

    def look_up(*args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(*args, **kwargs)
        except OSError:
            arguments = inspect.signature(theirs).bind(*args, **kwargs).arguments
            subfolder = (arguments.get("download_kwargs") or {}).get("subfolder") or ""
            folder = os.path.join(str(arguments.get("pretrained_model_name_or_path")), subfolder)
            if any(map(arguments.get, _CHOSEN)) or not os.path.isdir(folder):
                raise
            try:
                return [find_model(folder)], None
            except NotRegularFileError:  # there is none
                pass
            raise

    return look_up


# Functions around which ours go, each where its library has been imported: safetensors.torch imports torch.
_WRAPPED = (
    ("torch", "serialization", "load", _loading),
    ("transformers", "modeling_utils", "_get_resolved_checkpoint_files", _looking_up),
)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Make libraries that import safetensors use `weightmap.compat`, within a ``with`` block.

    Every module that has imported a name of safetensors gets ours instead, under whatever alias, and so does every
    module imported within the block. The end of the block restores them all.

    ``torch.load`` is replaced likewise: it reads files of every format, and indexes of shards; PyTorch's own files load
    as before. ``from_pretrained`` of transformers takes directories of every format: where no file has a name that it
    knows, it loads the one model that `weightmap.open` opens. Tensors need the names of Hugging Face.

    Raises
    ------
    MissingDependencyError
        When safetensors is not installed: its modules are patched.

    Notes
    -----
    It holds for the whole process, other threads included. Modules that imported `weightmap.compat` before the block
    keep that; those imported within it do not. Names that a library has stored elsewhere, as the default of an argument
    for instance, are not found. Import transformers before the block, or it finds no directories of other formats.

    Examples
    --------
    >>> import safetensors.numpy, weightmap.compat
    >>> with weightmap.compat.patched():
    ...     print(safetensors.numpy.load_file.__module__)
    weightmap.compat.numpy
    """
    pairs: list[tuple[ModuleType, dict[str, Any]]] = [(imported("safetensors", "safetensors"), _PACKAGE)]
    for part, names in _MODULES.items():
        with contextlib.suppress(ImportError):  # the library is not installed
            theirs, ours = import_module(f"safetensors.{part}"), import_module(f"weightmap.compat.{part}")
            pairs.append((theirs, {name: getattr(ours, name) for name in names}))
    for library, part, name, around in _WRAPPED:
        with contextlib.suppress(ImportError):  # transformers without torch
            if library in sys.modules and hasattr(theirs := import_module(f"{library}.{part}"), name):
                pairs.append((theirs, {name: around(getattr(theirs, name))}))
    swaps = {
        id(old): (old, new)
        for theirs, names_of in pairs
        for name, new in names_of.items()
        if (old := getattr(theirs, name, None)) is not None and not _is_ours(old)  # by a block around this one
    }
    back = {id(new): (new, old) for old, new in swaps.values()}
    own = {(module, name) for module, name, _ in _found(back)}  # these modules import weightmap.compat themselves
    for module, name, new in _found(swaps):
        setattr(module, name, new)
    try:
        yield
    finally:
        for module, name, old in _found(back):
            if (module, name) not in own:
                setattr(module, name, old)


def _found(pairs: dict[int, tuple[Any, Any]]) -> list[tuple[ModuleType, str, Any]]:
    """Return the globals of all modules but ours that are the first of a pair, each with the second."""
    places = []
    for module in list(sys.modules.values()):
        if not _foreign(module):
            continue
        for name, value in list(vars(module).items()):
            pair = pairs.get(id(value))
            if pair is not None and pair[0] is value:
                places.append((module, name, pair[1]))
    return places


def _is_ours(value: Any) -> bool:
    """Whether a class or function is of this package."""
    return str(getattr(value, "__module__", None)).partition(".")[0] == "weightmap"


def _foreign(module: Any) -> bool:
    """Whether a value of `sys.modules` is a module of another package."""
    name = getattr(module, "__name__", None)
    return isinstance(module, ModuleType) and isinstance(name, str) and name.partition(".")[0] != "weightmap"
