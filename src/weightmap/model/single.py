"""Opening one file: which mode, which format, and the handle; and opening it again for a pickled handle."""

from __future__ import annotations

import copyreg
import os
from typing import Any

from weightmap.errors import FileChangedError, TensorFileError
from weightmap.formats import HEAD, Importer, by_name, identify, mistaken
from weightmap.importers import IMPORTERS
from weightmap.io.opening import from_path, open_source, take_over
from weightmap.io.source import MODES, Source
from weightmap.model.file import TensorFile
from weightmap.options import Limits, Options

__all__ = ["DEFAULT_LIMITS", "INDEX_SUFFIX", "mode_of", "open_file", "source_of"]

# How the name of an index of shards ends.
INDEX_SUFFIX = ".index.json"

DEFAULT_LIMITS = Limits()
_IMPORTERS = tuple(IMPORTERS.values())
# `os.environ.get` encodes the name and raises and catches a KeyError: 3 us of the 30 that opening a file takes. The
# dictionary behind it is the same one and always up to date; where there is none, or one of another kind, the public
# one serves.
_environment: Any = getattr(os.environ, "_data", None)
_MODE_VARIABLE: Any = b"WEIGHTMAP_MODE"
if type(_environment) is not dict or os.name == "nt":
    _environment, _MODE_VARIABLE = os.environ, "WEIGHTMAP_MODE"


def open_file(source: Any, path: str | None, options: Options) -> TensorFile:
    """Open one file or buffer; `path` is that of `source`, if any. Raises `IsADirectoryError` for a directory."""
    mode = options.mode
    chosen = "mmap" if mode is None and _MODE_VARIABLE not in _environment else mode_of(mode)
    return _open_source(open_source(source, path, chosen), options)


def mode_of(mode: str | None) -> str:
    """Return the mode to open in: as asked, else as the environment says."""
    chosen = mode if mode is not None else _environment.get(_MODE_VARIABLE) or "mmap"
    if type(chosen) is bytes:
        chosen = os.fsdecode(chosen)
    if chosen not in MODES:
        msg = f"mode is {chosen!r}, expected one of {', '.join(MODES)}"
        raise ValueError(msg)
    if chosen == "sealed":
        from weightmap.io.sealed import AVAILABLE  # noqa: PLC0415 - few handles need it

        if not AVAILABLE:
            msg = "mode is 'sealed', and this system has no memory that can be sealed: that takes Linux; use 'copy'"
            raise ValueError(msg)
    return chosen


def _open_source(source: Source, options: Options) -> TensorFile:
    """Recognise and parse what was opened."""
    wanted, limits = options.format, options.limits
    try:
        if options.advise is not None:
            source.advise(options.advise)
        source.private = options.private
        explicit = options.mode is not None
        if explicit or limits is not DEFAULT_LIMITS or source.mode != "mmap":
            source.prepare(explicit=explicit, limits=limits)
        head = source.pread(0, min(HEAD, source.size))
        found = identify(source, head, _IMPORTERS) if wanted is None or not head else by_name(wanted)
        try:
            if options.importing and isinstance(found, Importer):
                return found.read(source, head, options)  # type: ignore[no-any-return]  # Words, as was asked for
            content = found.parse(source, head, options)
        except TensorFileError as error:
            instead = mistaken(found, head) if wanted is None else None
            raise instead or error.located(path=None, format=found.name) from None
        content.table.belongs_to(source.name, found.name)
        vocab = content.vocab
        if vocab is not None:
            vocab.path, vocab.format = source.name, found.name
        file = TensorFile(source, found.name, content, options)
        if options.verify == "full":
            file.verify()
    except TensorFileError as error:
        source.close()
        raise error.located(path=source.name) from None
    except BaseException:
        source.close()
        raise
    return file


def reopen(path: str, options: dict[str, Any], identity: tuple[int, ...]) -> TensorFile:
    """Open a file for a pickled handle. Raises `FileChangedError` when it is no longer the same."""
    return _open_source(source_of(path, mode_of(options["mode"]), identity), Options(**options))


def receive(shared: Any, path: str | None, options: dict[str, Any], identity: tuple[int, ...]) -> TensorFile:
    """Open sealed memory that the process which started this one has handed over."""
    return _open_source(take_over(shared, path, identity), Options(**options))


def source_of(path: str, mode: str, identity: tuple[int, ...]) -> Source:
    """Open the file that had this `Source.identity`. Raises `FileChangedError` when another one is there now."""
    source = from_path(path, mode)
    if source.identity != identity:
        source.close()
        msg = "the file is no longer the one that the pickled handle was opened on"
        raise FileChangedError(msg, path=path)
    return source


def _reduce(file: TensorFile) -> tuple[Any, ...]:
    """Return what `pickle` keeps of a handle: how to open its file again, or the sealed memory to take over."""
    source = file._source  # noqa: SLF001 - the handle that this module makes
    options, identity = file._options.keywords(), source.identity  # noqa: SLF001
    if source.sealed is not None:
        from weightmap.io.sealed import to_child  # noqa: PLC0415 - few handles need it

        shared = to_child(source.sealed)
        if shared is not None:
            return receive, (shared, source.absolute, options, identity)
    if source.absolute is None:
        msg = f"a handle on {source.name} cannot be pickled: only one opened by path can"
        raise TypeError(msg)
    return reopen, (source.absolute, options, identity)


copyreg.pickle(TensorFile, _reduce)
