"""Versions in a source directory: ``SOURCE/weight_vNNNNNN/``, each a delta or a full checkpoint.

A full version is an ordinary Hugging Face checkpoint: ``model.safetensors``, or an index and all its shards. A delta
has a ``model.safetensors.index.json`` with ``delta_encoding`` in its ``metadata``, besides ``version`` and
``base_version`` (decimal), ``compression_format`` ("zstd") and ``checksum_format``; its ``weight_map`` has the tensors
that changed, perhaps none. In its files each tensor is U8 of one dimension, a frame (see frames.py), and
``__metadata__`` has the checksum of each whole new tensor. slime writes it, SGLang's ``/pull_weights`` and NVIDIA's
ModelExpress read it.

Everything that can be checked without decoding is checked here, before a version is used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightmap._messages import quoted
from weightmap.core.arguments import Options
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.open_source import MAX_OPEN, from_path, inside, is_missing, names_in, sibling_path
from weightmap.core.model.internals import name_of, rows_of, shard_name, sources_of
from weightmap.core.model.listing import CHECKSUMS
from weightmap.core.model.single import USUAL_NAMES, open_file
from weightmap.deltas.frames import ENCODINGS, Frame
from weightmap.errors import DeltaError, FormatError, LimitError, NotRegularFileError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightmap.core.bytes.source import Source
    from weightmap.core.model.file import TensorFile

INDEX, SINGLE = USUAL_NAMES[:2]
# Versions are below this number: `_NAME` and `_DIGITS` match them.
MAX_VERSION = 10**18
_NAME = re.compile(r"weight_v(\d{6}|[1-9]\d{6,17})/?", re.ASCII)
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)
# Keys that only the metadata of a delta has; type and dimensions of a frame
_OF_DELTAS = {"base_version", "delta_encoding", "compression_format", "checksum_format"}
_FRAME = "uint8", 1
_HEX = re.compile(r"[0-9a-fA-F]*", re.ASCII)


def version_name(version: int) -> str:
    """Return the name of a version's directory."""
    return f"weight_v{version:06}"


def split_version(path: str) -> tuple[str, int | None]:
    """Return a source directory and the number of a version in it, from the path of either."""
    folder, _, name = path.rstrip("/").rpartition("/")
    match = _NAME.fullmatch(name)
    return (path, None) if match is None else (folder or path[:1], int(match[1]))


def folder_at(path: str) -> str:
    """Return a path, or an address that ends in a slash, because not all stores recognise folders."""
    return path if type(path) is str else inside(path, "")


class Delta:
    """A delta: the frames of its tensors. The caller must `close` it.

    Attributes
    ----------
    path : str
        The directory.
    version, base_version : int
    frames : dict of str to Frame
        By tensor.
    sources : tuple of Source
        Its files.
    """

    def __init__(self, path: str, version: int, base_version: int) -> None:
        self.path = path
        self.version = version
        self.base_version = base_version
        self.frames: dict[str, Frame] = {}
        self.sources: tuple[Source, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(source.size for source in self.sources)

    def close(self) -> None:
        """Close its files."""
        for source in self.sources:
            source.close()


def newest_in(source: str) -> int:
    """Return the newest finished version in a source directory; a version without its index is still being written.

    Raises
    ------
    DeltaError
        When no version is finished.
    """
    source = folder_at(source)
    numbers = [int(match[1]) for name in names_in(source, ()) if (match := _NAME.fullmatch(name))]
    for number in sorted(numbers, reverse=True):
        names = names_in(folder_at(inside(source, version_name(number))), (INDEX, SINGLE))
        if INDEX in names or SINGLE in names:
            return number
    msg = "there is no finished version weight_vNNNNNN here (if the store cannot list, name one)"
    raise DeltaError(msg, path=source)


def read_version(directory: str, options: Options, before: Sequence[Delta] = ()) -> Delta | None:
    """Read and check a version, without decoding: a delta, or None for a full version.

    Its files stay open. If there are many, counting the deltas read `before`, each file is opened again for a read.

    Raises
    ------
    DeltaError
        For a damaged or unfinished version.
    """
    directory = folder_at(directory)
    path = inside(directory, INDEX)
    try:
        return _read(directory, path, options, sum(len(delta.sources) for delta in before))
    except OSError as error:
        if isinstance(error, (IsADirectoryError, NotRegularFileError)):
            raise DeltaError("its index is a directory, or a loop of links", path=directory) from None
        if isinstance(error, TensorFileError) or not is_missing(error):
            raise
        raise DeltaError("this version is missing", path=directory) from None
    except LimitError as error:
        raise error.located(path=path) from None
    except DeltaError as error:
        raise error.located(path=directory) from None
    except FormatError as error:
        again = DeltaError(error.what)
        vars(again).update(vars(error))
        raise again.located(path=path) from None


def _read(directory: str, path: str, options: Options, opened: int) -> Delta | None:
    index = _read_index(path, options)
    if index is None:
        if SINGLE not in names_in(directory, (SINGLE,)):
            raise DeltaError(f"this version is unfinished: it has neither {INDEX} nor {SINGLE}")
        return None
    metadata = index.get("metadata", {})
    if not isinstance(metadata, dict) or "delta_encoding" not in metadata:
        _check_plain(index)
        return None
    return _read_delta(directory, metadata, index.get("weight_map"), options, opened)


def _check_plain(index: Mapping[str, Any]) -> None:
    """Refuse an index without tensors, and the index of a delta whose marking keys are damaged."""
    if not index.get("weight_map"):
        raise DeltaError("the index names no tensors: it is damaged, publish this version again", field="weight_map")
    for key, value in index.items():
        odd = sorted(_OF_DELTAS & value.keys()) if isinstance(value, dict) and key != "weight_map" else ()
        if odd:
            what = f"the index has {odd[0]} in {quoted(key)}, as deltas have, and no delta_encoding in 'metadata'"
            raise DeltaError(f"{what}: it is damaged, publish this version again", field="delta_encoding")


def check_values(file: TensorFile) -> None:
    """Refuse a full version whose files belong to a delta, whatever its index says: their tensors are frames."""
    for part in file.shards.values() or [file]:
        frames = all((row.dtype.name, len(row.shape)) == _FRAME for row in rows_of(part))
        if frames and len(part) and part.keys() <= part.metadata.keys():
            what = f"tensor {quoted(min(part))} is the frame of a delta, with its checksum, and no index says so"
            raise DeltaError(f"{what}: publish this version again", path=name_of(part), field="delta_encoding")


def _read_index(path: str, options: Options) -> dict[str, Any] | None:
    """Return the content of a version's index; None without an index."""
    try:
        source = from_path(path, "copy")
    except OSError as error:
        if not is_missing(error):
            raise
        return None
    try:
        options.limits.check("max_header_bytes", source.size, "size of the index of a delta")
        return strict_json.loads(source.pread(0, source.size), "index of a delta")
    finally:
        source.close()


def _read_delta(directory: str, metadata: Mapping[str, Any], where: Any, options: Options, opened: int) -> Delta:
    version, base = _number(metadata, "version"), _number(metadata, "base_version")
    named = _NAME.fullmatch(str(directory).rstrip("/").rpartition("/")[2])
    if named is not None and int(named[1]) != version:
        expected = f"{int(named[1])}, as its directory says"
        raise DeltaError("version", field="version", actual=version, expected=expected)
    if base >= version:
        raise DeltaError("base_version", field="base_version", actual=base, expected=f"less than {version}")
    encoding = _one_of(metadata, "delta_encoding", ENCODINGS)
    _one_of(metadata, "compression_format", ("zstd",))
    checksum = _one_of(metadata, "checksum_format", tuple(CHECKSUMS))
    if not isinstance(where, dict):
        raise DeltaError("the delta has no weight_map, an object from tensors to files", field="weight_map")
    options.limits.check("max_tensors", len(where), "number of tensors")
    files: dict[str, set[str]] = {}
    for tensor, name in where.items():
        files.setdefault(_file_name(tensor, name), set()).add(tensor)
    options.limits.check("max_shards", len(files), "number of files of a delta")
    for name in sorted(names_in(directory, ())):
        if name.endswith(".safetensors") and name not in files:
            raise DeltaError(f"file {quoted(name)} is not in its weight_map", field="weight_map")
    delta = Delta(directory, version, base)
    try:
        for name in sorted(files):
            source = _read_file(delta, name, files[name], encoding, checksum, options)
            if opened + len(files) > MAX_OPEN:
                source.release_descriptor()
    except BaseException:
        delta.close()
        raise
    return delta


def _number(metadata: Mapping[str, Any], key: str) -> int:
    """Return a version, a text of decimal digits; some writers have a number."""
    value = metadata.get(key)
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not _DIGITS.fullmatch(text):
        raise DeltaError(key, field=key, actual=quoted(value), expected="up to 18 decimal digits")
    return int(text)


def _one_of(metadata: Mapping[str, Any], key: str, values: tuple[str, ...]) -> str:
    value = metadata.get(key)
    if not isinstance(value, str) or value not in values:
        raise DeltaError(key, field=key, actual=quoted(value), expected=f"one of {', '.join(values)}")
    return value


def _file_name(tensor: str, name: Any) -> str:
    """Return the name of a file of a delta: one in its directory."""
    try:
        file = shard_name(name)
    except FormatError as error:
        file, expected = "/", error.expected or "a string"
    else:
        expected = "a file *.safetensors in the directory of the delta"
    if "/" in file or not file.endswith(".safetensors"):
        actual = quoted(name) if isinstance(name, str) else strict_json.kind_of(name)
        raise DeltaError(f"file of tensor {quoted(tensor)}", field="weight_map", actual=actual, expected=expected)
    return file


def _read_file(delta: Delta, name: str, tensors: set[str], encoding: str, checksum: str, options: Options) -> Source:
    """Open a file of a delta, and add its frames."""
    path = sibling_path(inside(delta.path, INDEX), name)
    # Only read by pread: no array of it is handed out.
    reading = Options(options.limits, mode=options.mode, format="safetensors", private=True)
    try:
        file = open_file(path, path, reading)
    except OSError as error:
        if isinstance(error, TensorFileError) or not (is_missing(error) or isinstance(error, IsADirectoryError)):
            raise
        some = quoted(min(tensors))
        raise DeltaError(f"file {quoted(name)} with tensor {some} is missing", field="weight_map") from None
    source = sources_of(file)[0]
    delta.sources += (source,)
    if file.keys() != tensors:
        odd = min(file.keys() ^ tensors)
        where = f"in {quoted(name)} but not in weight_map" if odd in file else f"not in {quoted(name)}"
        raise DeltaError(f"tensor {quoted(odd)} is {where}", path=path, field="weight_map")
    for tensor, row in zip(file, rows_of(file), strict=True):
        digest = file.metadata.get(tensor)
        frame = Frame(tensor, source, row.offset, row.nbytes, encoding, checksum, str(digest).lower())
        if (row.dtype.name, len(row.shape)) != _FRAME:
            shape = f"{row.dtype.name} {list(row.shape)}"
            raise frame.error("a frame", field="dtype", actual=shape, expected="uint8 of one dimension")
        if digest is None:
            raise frame.error(f"its {checksum} is missing in __metadata__", field="checksum")
        if len(digest) != CHECKSUMS[checksum] or not _HEX.fullmatch(digest):
            expected = f"{CHECKSUMS[checksum]} hexadecimal digits"
            raise frame.error(f"its {checksum}", field="checksum", actual=quoted(digest), expected=expected)
        delta.frames[tensor] = frame
    return source
