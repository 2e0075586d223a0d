"""Opens one file: chooses the mode, recognises the format, makes the handle."""

from __future__ import annotations

import os
import re
from typing import Any

from weightmap._messages import quoted
from weightmap.core import hooks
from weightmap.core.arguments import DEFAULT_LIMITS, Options
from weightmap.core.bytes.open_source import is_missing, open_source
from weightmap.core.bytes.source import MODES, Source
from weightmap.core.formats import HEAD, Format, by_name, identify, mistaken
from weightmap.core.model.file import TensorFile
from weightmap.core.native.access import is_set, refuse_loop
from weightmap.errors import ChecksumError, TargetError, TensorFileError, TrustError, UnsupportedError

# The end of an index's file name; transformers saves variants with ".index.VARIANT.json".
INDEX_SUFFIX = ".index.json"
_INDEX = r"\.index(?:\.([^./\\]+))?\.json"
# Hugging Face's names for an index and a model file.
USUAL_NAMES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
# The first bytes of a zstd frame.
_ZSTD_FRAME = b"\x28\xb5\x2f\xfd"


def is_index(path: str) -> bool:
    """Say whether a path has the name of an index of shards."""
    return path.endswith(INDEX_SUFFIX) or (path.endswith(".json") and re.search(_INDEX, path) is not None)


def single_name(index: str) -> str:
    """Return the name that the model of this index would have as a single file.

    Examples
    --------
    >>> from weightmap.core.model.single import single_name
    >>> single_name("model.safetensors.index.json"), single_name("model.safetensors.index.fp16.json")
    ('model.safetensors', 'model.fp16.safetensors')
    """
    match = re.search(_INDEX, index)
    if match is None:
        return index
    stem, suffix = os.path.splitext(index[: match.start()])
    return f"{stem}{suffix}" if match[1] is None else f"{stem}.{match[1]}{suffix}"


def check_replaceable(path: str) -> None:
    """Raise `TargetError` if an index of shards belongs to the name of this file: its directory opens as the index."""
    index = path + INDEX_SUFFIX
    try:
        os.lstat(index)
    except OSError as error:
        if is_missing(error):
            return
        refuse_loop(error, path)
        error.filename = path
        raise
    raise exists_already(index)


def exists_already(path: str) -> TargetError:
    """Return the error for a sharded model that a new one would replace."""
    msg = "this model exists already, and a sharded model is not replaced: remove it, or choose another target"
    return TargetError(msg, path=path)


def mode_of(mode: str | None, *, private: bool = False) -> str:
    """Return the mode to open in: the given one, else the environment's, else "mmap".

    `private` callers read the file piece by piece and hand out no tensors: they ignore the environment's mode. Raises
    ValueError for an unknown mode from either.
    """
    # For a variable that is not set, `os.environ` takes 1 to 4 us, up to a quarter of opening.
    if mode is None and not is_set("WEIGHTMAP_MODE"):
        return "mmap"
    chosen = mode if mode is not None else os.environ.get("WEIGHTMAP_MODE") or "mmap"
    named = "mode" if mode is not None else "the environment variable WEIGHTMAP_MODE"
    if chosen not in MODES:
        raise ValueError(f"{named} is {chosen!r}, expected one of {', '.join(MODES)}")
    if mode is None and private:
        return "mmap"
    if chosen == "sealed":
        from weightmap.core.bytes.sealed import AVAILABLE  # noqa: PLC0415 - few handles need it

        if not AVAILABLE:
            raise ValueError(f"{named} is 'sealed', which this system does not support: it needs Linux; use 'copy'")
    return chosen


def refuse_frames(file: TensorFile) -> TensorFile:
    """Return a model. Raises `UnsupportedError` for a file of a delta.

    In such a file the first tensor is a zstd frame, one-dimensional bytes, and the metadata has its checksum.
    """
    if not file._content.may_hold_frames or not len(file):  # noqa: SLF001 - as below
        return file
    try:
        row = file._table.row(0)  # noqa: SLF001 - `rows_of` would take as long as opening
    except (TensorFileError, OSError):  # looking the tensor up raises the error
        return file
    if row.dtype.name != "uint8" or len(row.shape) != 1 or row.nbytes <= len(_ZSTD_FRAME):
        return file
    if row.source.pread(row.offset, len(_ZSTD_FRAME)) == _ZSTD_FRAME:
        from weightmap.core.model.listing import CHECKSUMS  # noqa: PLC0415 - few files get this far

        name = next(iter(file))
        digest = file.metadata.get(name)
        if isinstance(digest, str) and len(digest) in CHECKSUMS.values():
            file.close()
            error = delta_error(f"this is a file of a delta: tensor {quoted(name)} and others hold", "__metadata__")
            raise error.located(path=row.source.name)
    return file


def delta_error(what: str, field: str) -> UnsupportedError:
    """Return the error for an index or a file of a delta."""
    remedy = "use weightmap.deltas.open(base, [...]), apply or pull"
    return UnsupportedError(f"{what} compressed changes of another version, not values: {remedy}", field=field)


def open_file(source: Any, path: str | None, options: Options) -> TensorFile:
    """Open one file or buffer; `path` is the path of `source`, if any. Raises `IsADirectoryError` for a directory."""
    return open_opened(open_source(source, path, mode_of(options.mode, private=options.private)), options)


def _admit(source: Source, options: Options) -> None:
    """Compare a file with its digest. The error also names the damaged place, if a checksum in the file finds it."""
    try:
        options.trust.admit(source, options.limits)
    except TrustError as error:
        damage = None
        if error.field == "digest" and source.absolute is not None:
            damage = _checksum_error(source.absolute, options)
        if damage is not None:
            error.what = f"{damage.what} is wrong, and {error.what}"
        raise


def _checksum_error(path: str, options: Options) -> ChecksumError | None:
    """Return the error of the first wrong checksum in a file; None if all are right, or the file cannot be read."""
    lenient = Options(options.limits, format=options.format, strict=False, private=True)
    try:
        with open_file(path, path, lenient) as file:
            _check_tensors(file, lenient)
            file.verify()
    except ChecksumError as error:
        return error
    except (TensorFileError, OSError):
        pass
    return None


def _check_tensors(file: TensorFile, options: Options) -> None:
    """Compare the tensors of a shard with their checksums, if the index beside it declares some."""
    from weightmap.core.bytes.open_source import open_beside  # noqa: PLC0415 - as the others: for damaged files
    from weightmap.core.model import listing  # noqa: PLC0415
    from weightmap.core.model.internals import parts_of  # noqa: PLC0415

    try:
        index = open_beside(parts_of(file)[0], USUAL_NAMES[0])
    except TensorFileError:
        return
    try:
        kind = listing.kind_in(listing.read_listing(index, options).metadata)
    finally:
        index.close()
    if kind is not None:
        listing.check_tensors(file, kind)


def open_opened(source: Source, options: Options) -> TensorFile:
    """Recognise and parse a file that is open; close it when that fails."""
    format_name, limits = options.format, options.limits
    opened: Source | TensorFile = source
    try:
        if options.private:
            source.private = True
        if options.trust is not None:
            _admit(source, options)
        explicit = options.mode is not None
        if explicit or limits is not DEFAULT_LIMITS or source.mode != "mmap":
            source.prepare(explicit=explicit, limits=limits)
        head = source.pread(0, min(HEAD, source.size))
        # `identify` also raises the error for an empty file.
        recognised = by_name(format_name) if format_name and head else identify(source, head, hooks.importers)
        try:
            if options.importing and not isinstance(recognised, Format):
                return recognised.read(source, head, options)  # type: ignore[no-any-return]  # Words, for `convert`
            content = recognised.parse(source, head, options)
        except TensorFileError as error:
            instead = mistaken(recognised, head) if format_name is None else None
            raise instead or error.located(path=None, format=recognised.name) from None
        content.table.belongs_to(source, recognised.name)
        opened = file = TensorFile(source, recognised.name, content, options)
        if options.verify == "full":
            file.verify()
    except TensorFileError as error:
        opened.close()
        raise error.located(path=source.name) from None
    except BaseException:
        opened.close()
        raise
    return file
