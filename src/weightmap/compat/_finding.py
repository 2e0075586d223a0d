"""How PyTorch and transformers, within `patched`, find and load models of every format."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

import weightmap as wm
from weightmap.compat._frameworks import imported
from weightmap.errors import NotRegularFileError, TensorFileError
from weightmap.formats import HEAD, identify
from weightmap.io.open_source import from_path
from weightmap.model.sharded import find_model
from weightmap.model.single import is_index

if TYPE_CHECKING:
    from collections.abc import Callable

# Arguments that say which files transformers should take, and no others.
_CHOSEN = ("variant", "gguf_file", "use_safetensors", "transformers_explicit_filename")


def loading(theirs: Callable[..., Any]) -> Callable[..., Any]:
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


def looking_up(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a finder of files for transformers: `theirs`, else the one model of the folder."""

    def look_up(*args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(*args, **kwargs)
        except OSError:
            asked = inspect.signature(theirs).bind(*args, **kwargs).arguments
            subfolder = (asked.get("download_kwargs") or {}).get("subfolder") or ""
            folder = os.path.join(str(asked.get("pretrained_model_name_or_path")), subfolder)
            if any(map(asked.get, _CHOSEN)) or not os.path.isdir(folder):
                raise
            try:
                return [find_model(folder)], None
            except NotRegularFileError:  # there is none
                pass
            raise

    return look_up
