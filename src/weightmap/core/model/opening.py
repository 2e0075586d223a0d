"""Opens model files: `open`; `load`, which returns all tensors; and unpickling, which opens a file again."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from weightmap._messages import quoted
from weightmap.core import arguments, hooks
from weightmap.core.bytes.open_source import folder_of, from_path, path_of, sibling_path, take_over
from weightmap.core.formats import by_name
from weightmap.core.model.file import TensorFile
from weightmap.core.model.internals import check_open, identities, parts_of
from weightmap.core.model.single import INDEX_SUFFIX, is_index, open_file, open_opened, refuse_frames
from weightmap.errors import FileChangedError, TensorFileError, UnknownFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.core.model.typing import Advice, Mode, ModelSource, OpenOptions, Remote, Trusted, Verify

# The `source` of functions that read a model.
Model: TypeAlias = "ModelSource | TensorFile"
_VERIFY = ("none", "header", "full")


@arguments.names_moved
def open(
    source: ModelSource,
    *,
    format: str | None = None,
    mode: Mode | None = None,
    verify: Verify = "header",
    strict: bool = True,
    limits: arguments.Limits | None = None,
    trust: Trusted | None = None,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    remote: Remote | None = None,
) -> TensorFile:
    """Open a model file in place.

    Parameters
    ----------
    source : str, os.PathLike, int, file object or buffer
        A path; a file descriptor or a binary file object (neither closed nor moved); or the content of a file, as
        `bytes` or any other contiguous bytes-like object. Bytes are never a path: `os.fsdecode` turns them into one. A
        directory or an ``*.index.json`` opens a sharded model as one. Also the address of a file, directory or index
        in an object store: ``s3://bucket/key``, ``gs://bucket/key``, ``az://container/key`` or ``https://host/path``;
        the first three need obstore, the extra ``[remote]``. Or one on the Hugging Face Hub:
        ``hf://owner/name[@revision][/path]``, with the extra ``[hub]``; files in the Hub's local cache are mapped.
    format : str, optional
        One of `formats()`; by default the content decides.
    mode : {"mmap", "cow", "copy", "sealed", "direct"}, optional
        "mmap": arrays are read-only views of a shared mapping. "cow": arrays are writable views of a private
        copy-on-write mapping; the file never changes. "copy": the file is read into memory. "sealed" (Linux): the file
        is copied once into memory that no process can write to or shrink any more. Arrays are read-only views of that
        copy: they neither change nor fault, whatever happens to the file, and other processes can share them, see
        `TensorFile.fileno`. A descriptor of sealed memory is used without a copy. "direct": as "copy", but past the
        page cache, so that the model is in memory once: by O_DIRECT if the file system has it, else by giving pages
        back after each read. Default: the environment variable ``WEIGHTMAP_MODE``, else "mmap"; if the file system
        cannot map, this default reads the file, with a log message.
    verify : {"header", "full", "none"}
        "header" validates the index. "full" also does what `TensorFile.verify` does, checksums included. "none" checks
        only what it needs to find the index; each tensor is still checked when it is looked up.
    strict : bool
        True refuses damaged, incomplete or ambiguous models. A file may have no hole, overlap, trailing bytes or
        reserved field. No file of several may be missing or unreadable; the index may not name a tensor that no file
        has; two files may not have the same tensor. False opens the rest, and `TensorFile.verify` lists these
        defects by name. Smaller contradictions are a `ModelWarning` either way: a wrong ``total_size``, a tensor that
        the index does not list or places in another file, a file of weights that it does not name.
    limits : Limits, optional
        Bounds on the sizes that a file may declare. Modes that copy check them before they copy the file.
    trust : str, os.PathLike, mapping or Signature, optional
        Digests that the files of the model must have: "recorded" (the digests recorded beside the model),
        "sha256:..." of a single file, a mapping such as ``{"model.safetensors": "sha256:..."}``, the path of a
        ``SHA256SUMS``, ``NAME.sha256`` or Git LFS pointer, or a signature from `weightmap.trust.signature`. A file with
        another digest, or with none in the list, raises `TrustError`. Modes that copy hash the very bytes of the
        tensors; "mmap" and "cow" hash the file, then map it: see `weightmap.trust`.
    config : mapping, str or os.PathLike, optional
        The configuration of the model, or the path of its ``config.json``. It says how parameters are quantised: see
        `TensorFile.weights`. Default: ``config.json`` beside the file.
    remote : Remote, optional
        How to request an object from a store: credentials, deadlines, redirects.

    Returns
    -------
    TensorFile

    Warns
    -----
    ModelWarning
        When an index, or a part of a model, disagrees with the model's files. `TensorFile.verify` and the reports of
        `verify` and `convert` list the same lines, without a warning.

    Raises
    ------
    FormatError
        When the file is damaged, unknown or unsupported: one of its subclasses. `TrustError` when a file does not have
        the digest that `trust` names.
    NotRegularFileError
        For a FIFO, socket, device or loop of links; for a directory whose model file is a directory.
    OSError
        As the system reports it: no such file, no permission.
    FileChangedError
        When the file was changed while it was being copied.
    RemoteError
        When a store does not deliver the object.
    MissingDependencyError
        When a store needs a package that is not installed.
    TypeError, ValueError
        When an argument is not one of the above, or the mode is "sealed" and the system has no sealed memory.

    Notes
    -----
    Opening an object in a store reads header and index by one or two requests. Each look-up then fetches its tensor by
    one request, into new memory, even if it was fetched before: `mode` is "copy", tensor by tensor. Operations on many
    tensors (`items`, `load`, `convert`, `weightmap.plan` for parts of them) join and overlap their requests. Every
    request names the version that was opened, and raises `FileChangedError` if the object was replaced.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.weights", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    >>> with wm.open("model.weights") as f:
    ...     w = f["w"]
    >>> w[1]
    array([3., 4., 5.], dtype=float32)
    """
    if remote is not None:
        source = located(source, remote)
    return refuse_frames(open_with(source, options_of(source, format, mode, verify, strict, limits, trust, config)))


# The keywords of `open`.
OPEN_OPTIONS: tuple[str, ...] = tuple(open.__wrapped__.__kwdefaults__)  # type: ignore[attr-defined]


def options_of(
    source: Any,
    format: str | None = None,
    mode: str | None = None,
    verify: str = "header",
    strict: bool = True,  # noqa: FBT001, FBT002 - as `open` passes it
    limits: arguments.Limits | None = None,
    trust: Any = None,
    config: Any = None,
    deltas: tuple[str, ...] = (),
) -> arguments.Options:
    """Return valid options for `open_with`: the arguments of `open`, and directories of deltas."""
    if verify not in _VERIFY:
        raise ValueError(f"verify is {verify!r}, expected one of {', '.join(_VERIFY)}")
    if format is not None:
        by_name(format)
    limits = arguments.DEFAULT_LIMITS if limits is None else arguments.validated_limits(limits)
    if config is not None and not isinstance(config, Mapping):
        if not isinstance(config, (str, os.PathLike)):
            raise TypeError(f"config is a {type(config).__name__}, expected a mapping or the path of a config.json")
        config = os.path.abspath(config)
    if trust is not None:
        trust = hooks.trust_in(trust, source, deltas)
    return arguments.Options(
        limits, format=format, mode=mode, verify=verify, strict=strict, deltas=deltas, config=config, trust=trust
    )


def as_handle(source: Model, *, mode: Mode | None = None, private: bool = True) -> AbstractContextManager[TensorFile]:
    """Return a handle on a model for a ``with`` statement: a handle of the caller stays open at its end.

    Parameters
    ----------
    source : TensorFile, or anything that `open` takes
    mode : str, optional
        As for `open`, if the source is opened here.
    private : bool
        Whether the caller hands out no tensors of such a source: see `Source.private`.
    """
    if isinstance(source, TensorFile):
        check_open(source)
        return nullcontext(source)
    return open_privately(source) if private else open(source, mode=mode)


def open_privately(source: Any, *, strict: bool = True, trust: Any = None, config: str | None = None) -> TensorFile:
    """Open a file for a caller that hands out no tensors: see `Source.private`."""
    path = None if config is None else os.path.abspath(config)
    digests = None if trust is None else hooks.trust_in(trust, source)
    options = arguments.Options(arguments.DEFAULT_LIMITS, strict=strict, private=True, config=path, trust=digests)
    return refuse_frames(open_with(source, options))


def open_stored(filename: Any, *, mode: Mode | None = None, private: bool = False, trust: Any = None) -> TensorFile:
    """Open a file for `weightmap.compat`, which shows tensors as stored, even the frames of a delta."""
    digests = None if trust is None else hooks.trust_in(trust, filename)
    return open_with(filename, arguments.Options(arguments.DEFAULT_LIMITS, mode=mode, private=private, trust=digests))


def open_or_import(
    source: Any, limits: arguments.Limits = arguments.DEFAULT_LIMITS, *, lossy: bool = False, strict: bool = True
) -> Any:
    """Open a file for `convert`: return a `TensorFile` as `open_privately` does, or the `Words` of an importer."""
    file = open_with(source, arguments.ImportOptions(limits, lossy=lossy, strict=strict))
    return refuse_frames(file) if isinstance(file, TensorFile) else file


def open_with(source: Any, options: arguments.Options) -> TensorFile:
    """Open a source with valid options: see `open`."""
    if options.deltas:
        base = open_with(source, arguments.Options(**options.keywords(deltas=())))
        return hooks.overlay(base, options.deltas, options)  # type: ignore[no-any-return]
    path = source if type(source) is str and "://" not in source else path_of(source)
    if path is not None and is_index(path):
        from weightmap.core.model.sharded import open_sharded  # noqa: PLC0415 - most programs open single files

        return open_sharded(path, options)
    try:
        file = open_file(source, path, options)
        if type(file) is not TensorFile:
            return file
        part = file._content.part  # noqa: SLF001 - `parts_of` would take a hundredth of opening
        if part is None:
            return file
        from weightmap.core.model.sharded import open_parts  # noqa: PLC0415 - as above

        return open_parts(path, file, options)
    except IsADirectoryError:
        if path is None:
            raise
        from weightmap.core.model.sharded import open_directory  # noqa: PLC0415 - as above

        return open_directory(path, options)
    except FileNotFoundError as error:
        if type(path) is str and os.path.exists(path + INDEX_SUFFIX):
            error.add_note(f"this model is in several files: open {path + INDEX_SUFFIX!r}")
        elif type(path) is str and "://" in path:
            error.add_note("the addresses that are read begin with s3://, gs://, az://, https://, http:// or hf://")
        raise
    except UnknownFormatError as error:
        if isinstance(source, bytes) and b"\0" not in source:
            error.add_note("bytes are the content of a file: os.fsdecode turns them into a path")
        if path is not None and path.endswith(".json"):
            _refuse_description(path)
        raise


def located(source: Any, remote: Remote) -> Any:
    """Return the location of an object with options for its store."""
    from weightmap.core.model.typing import Remote  # noqa: PLC0415 - for addresses alone

    if not isinstance(remote, Remote):
        raise arguments.mistyped("remote", remote, "a weightmap.Remote")
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"remote= is for addresses, and source is a {type(source).__name__}")
    return hooks.location_of(os.fsdecode(os.fspath(source)), remote)


def _refuse_description(path: str) -> None:
    """Raise `UnknownFormatError` for a file such as ``config.json`` that lies in the directory of a model."""
    from weightmap.core.model.sharded import find_model  # noqa: PLC0415 - as above

    folder = folder_of(path)
    try:
        find_model(folder)
    except (OSError, TensorFileError):  # no model, or more than one
        return
    what = f"this file describes a model and holds no tensors: open its directory, {quoted(folder or os.curdir)}"
    raise UnknownFormatError(what, path=path) from None


def load(source: Model, **open_options: Unpack[OpenOptions]) -> dict[str, NDArray[Any] | Any]:
    """Open a file and return all its tensors as a dictionary of views, in file order.

    The views keep the mapping alive; nothing is copied (unless `mode` says so). A quantised tensor is a
    `QuantizedTensor`, as ``f[name]`` gives it, which `numpy.asarray` decodes.

    Parameters
    ----------
    source, **open_options
        As for `open`; or an open handle, without options, which stays open.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.safetensors", {"b": np.zeros(2, np.float32)})
    >>> wm.load("model.safetensors")
    {'b': array([0., 0.], dtype=float32)}
    """
    for keyword in open_options:
        if keyword not in OPEN_OPTIONS:
            raise arguments.unexpected("load", keyword, OPEN_OPTIONS, moved="open")
    if isinstance(source, TensorFile) and not open_options:
        return dict(source.items())
    with open(source, **open_options) as file:  # type: ignore[arg-type]  # which refuses a handle
        return dict(file.items())


def reopen(
    path: str, options: dict[str, Any], expected: dict[str, tuple[int, ...]], advice: Advice | None = None
) -> TensorFile:
    """Open a model for a pickled handle. Raises `FileChangedError` if one of its files has changed."""
    msg = "the file was changed or replaced after the pickled handle was opened"
    # Check before parsing, as another file may not be a model at all; and again once all files are open.
    for name, identity in expected.items():
        source = from_path(sibling_path(path, name), "mmap")
        source.close()
        if source.identity != identity:
            raise FileChangedError(msg, path=source.path)
    file = open_with(path, arguments.Options(**options))
    if identities(file) != expected:
        file.close()
        raise FileChangedError(msg, path=path)
    if advice is not None:
        file.advise(advice)
    return file


def receive(shared: Any, path: str | None, options: dict[str, Any], identity: tuple[int, ...]) -> TensorFile:
    """Open sealed memory that the parent process has handed over."""
    return open_opened(take_over(shared, path, identity), arguments.Options(**options))


def _reduce(file: TensorFile) -> tuple[Any, ...]:
    """Reduce a handle for `pickle` to the call that opens its files again, or that takes over its sealed memory."""
    source, content, options = parts_of(file)
    if source.sealed is not None and not content.sources:
        from weightmap.core.bytes.sealed import to_child  # noqa: PLC0415 - few handles need it

        shared = to_child(source.sealed)
        if shared is not None:
            return receive, (shared, source.absolute, options.keywords(), source.identity)
    if source.absolute is None:
        raise TypeError(f"a handle on {source.name} cannot be pickled: only one opened by path can")
    return reopen, (source.absolute, options.keywords(), identities(file), source.advice)


copyreg.pickle(TensorFile, _reduce)
