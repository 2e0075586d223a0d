"""Opening a model file: `open`; `load`, which returns all of it; and pickled handles, which open it again."""

from __future__ import annotations

import copyreg
import os
from typing import Any

from weightmap.errors import FileChangedError, UnknownFormatError
from weightmap.formats import by_name
from weightmap.io.mapping import ADVICE
from weightmap.io.opening import from_path, path_of, take_over
from weightmap.model.file import TensorFile
from weightmap.model.parts import identities, parts_of
from weightmap.model.single import DEFAULT_LIMITS, INDEX_SUFFIX, open_file, open_opened
from weightmap.options import ImportOptions, Limits, Options

__all__ = ["load", "open"]

_VERIFY = ("none", "header", "full")


def open(
    source: Any,
    *,
    format: str | None = None,
    mode: str | None = None,
    verify: str = "header",
    strict: bool = True,
    limits: Limits | None = None,
    advise: str | None = None,
) -> TensorFile:
    """Open a model file in place.

    Parameters
    ----------
    source : str, os.PathLike, int, file object or buffer
        A path; a file descriptor or a binary file object (not closed, its position not moved); or the content of a
        file, as `bytes` or any other contiguous bytes-like object. Bytes are never a path: `os.fsdecode` makes one of
        them. A directory or an ``*.index.json`` opens a sharded model as one.
    format : str, optional
        One of `formats()`; by default the content tells.
    mode : {"mmap", "cow", "copy", "sealed"}, optional
        "mmap": arrays are read-only views of a shared mapping. "cow": of a private copy-on-write mapping, writable; the
        file never changes. "copy": the file is read into memory. "sealed" (Linux): it is copied once into memory that
        nobody can write to or shrink any more, and arrays are read-only views of that: whatever becomes of the file,
        they neither change nor fault, and other processes can have the same memory, see `TensorFile.fileno`; a
        descriptor of memory sealed so is used as it is, without a copy. Default: the environment variable
        ``WEIGHTMAP_MODE``, else "mmap"; the default falls back to reading, with a log message, where the file system
        cannot map.
    verify : {"header", "full", "none"}
        "header": the index is validated. "full": also what `TensorFile.verify` checks, checksums where the format
        has them. "none": only what is needed to find the index; each tensor is still checked when it is looked up.
    strict : bool
        False lets harmless defects pass (holes, overlaps, trailing bytes, reserved fields); `TensorFile.verify` lists
        them.
    limits : Limits, optional
        Bounds on what the file may ask for. In modes "copy" and "sealed" they hold before the file is copied.
    advise : {"random", "sequential", "normal"}, optional
        How the tensors will be touched, for the read-ahead of the system: "random" where few rows of a large matrix on
        a disk are wanted, "sequential" for one pass. Default: the system decides. It changes speed and nothing else,
        and nothing at all with a buffer, in modes "copy" and "sealed", and where the system takes no such advice.

    Returns
    -------
    TensorFile

    Raises
    ------
    FormatError
        When the file is damaged, unknown or unsupported: one of its subclasses.
    NotRegularFileError
        For a FIFO, socket or device.
    OSError
        As the system reports it: no such file, no permission.
    FileChangedError
        When the file was changed while it was being copied.
    TypeError, ValueError
        When an argument is not one of the above, or the mode is "sealed" where the system has no such memory.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.weights", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    >>> with wm.open("model.weights") as f:
    ...     w = f["w"]
    >>> w[1]
    array([3., 4., 5.], dtype=float32)
    """
    if verify not in _VERIFY:
        msg = f"verify is {verify!r}, expected one of {', '.join(_VERIFY)}"
        raise ValueError(msg)
    if advise is not None and advise not in ADVICE:
        msg = f"advise is {advise!r}, expected one of {', '.join(ADVICE)}"
        raise ValueError(msg)
    if format is not None:
        by_name(format)
    limits = DEFAULT_LIMITS if limits is None else limits
    return open_with(source, Options(limits, format=format, mode=mode, verify=verify, strict=strict, advise=advise))


def open_privately(source: Any, *, strict: bool = True, limits: Limits | None = None) -> TensorFile:
    """Open a file of which no tensor is handed out: see `Source.private`."""
    return open_with(source, Options(DEFAULT_LIMITS if limits is None else limits, strict=strict, private=True))


def open_or_import(source: Any, limits: Limits, *, lossy: bool) -> Any:
    """Open a file for `convert`: a `TensorFile` as of `open_privately`, or the `Words` that an importer reads."""
    return open_with(source, ImportOptions(limits, lossy=lossy))


def open_with(source: Any, options: Options) -> TensorFile:
    """Do what `open` says, with options that are in order."""
    path = source if type(source) is str else path_of(source)
    if path is not None and path.endswith(INDEX_SUFFIX):
        return _open_sharded(path, options)
    try:
        file = open_file(source, path, options)
        if path is None or type(file) is not TensorFile:
            return file
        part = parts_of(file)[1].part
        return file if part is None or not part.names else _open_parts(path, file, options)
    except IsADirectoryError:
        if path is None:
            raise
        return _open_sharded(path, options)
    except UnknownFormatError as error:
        if isinstance(source, bytes) and b"\0" not in source:
            error.add_note("bytes are the content of a file: os.fsdecode makes a path of them")
        raise


def _open_parts(path: str, first: TensorFile, options: Options) -> TensorFile:
    from weightmap.model.sharded import open_parts  # noqa: PLC0415 - as below

    return open_parts(path, first, options)


def _open_sharded(path: str, options: Options) -> TensorFile:
    from weightmap.model.sharded import open_sharded  # noqa: PLC0415 - what most programs never open

    return open_sharded(path, options)


def load(source: Any, **open_options: Any) -> dict[str, Any]:
    """Open a file and return all its tensors as a dictionary of views, in file order.

    The views keep the mapping alive; nothing is copied (unless ``mode="copy"``).

    Parameters
    ----------
    source, **open_options
        As of `open`.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.safetensors", {"b": np.zeros(2, np.float32)})
    >>> wm.load("model.safetensors")
    {'b': array([0., 0.], dtype=float32)}
    """
    with open(source, **open_options) as file:
        return dict(file.items())


def reopen(path: str, options: dict[str, Any], expected: dict[str, tuple[int, ...]]) -> TensorFile:
    """Open a model for a pickled handle. Raises `FileChangedError` when one of its files is another one now."""
    msg = "the file is no longer the one that the pickled handle was opened on"
    # Before anything is parsed, for another file may be no model at all; and again once all of them are open.
    for name, identity in expected.items():
        source = from_path(os.path.join(os.path.dirname(path), name), "mmap")
        source.close()
        if source.identity != identity:
            raise FileChangedError(msg, path=source.path)
    file = open_with(path, Options(**options))
    if identities(file) != expected:
        file.close()
        raise FileChangedError(msg, path=path)
    return file


def receive(shared: Any, path: str | None, options: dict[str, Any], identity: tuple[int, ...]) -> TensorFile:
    """Open sealed memory that the process which started this one has handed over."""
    return open_opened(take_over(shared, path, identity), Options(**options))


def _reduce(file: TensorFile) -> tuple[Any, ...]:
    """Return what `pickle` keeps of a handle: how to open its files again, or the sealed memory to take over."""
    source, _, options = parts_of(file)
    if source.sealed is not None:
        from weightmap.io.sealed import to_child  # noqa: PLC0415 - few handles need it

        shared = to_child(source.sealed)
        if shared is not None:
            return receive, (shared, source.absolute, options.keywords(), source.identity)
    if source.absolute is None:
        msg = f"a handle on {source.name} cannot be pickled: only one opened by path can"
        raise TypeError(msg)
    return reopen, (source.absolute, options.keywords(), identities(file))


copyreg.pickle(TensorFile, _reduce)
