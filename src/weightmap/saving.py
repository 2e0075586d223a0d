"""Writing: `save`, and the atomic writer below it.

A file is there whole or not at all. What the format cannot express is refused before anything is created. Then the
bytes go to a temporary file beside the target, which is flushed to the disk and renamed over it: a reader, or a crash
at any moment, finds the old file or the new one, and a process that has the old one mapped keeps it.

The temporary file belongs to an object of C's, which removes it whatever ends the writing: see owners.c. Where the file
system can, it has no name before it is whole, and is gone with the process however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Any

from weightmap import kernels
from weightmap.descriptors import Descriptor, own
from weightmap.dtypes import FLOATING
from weightmap.errors import EncodeError, NotRegularFileError, Remedy, TensorFileError
from weightmap.formats import Format, Plan, Request, Unfit, by_name, by_suffix, listed, refuse
from weightmap.payload import from_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightmap.kernels import Temporary

__all__ = ["Sink", "save", "write_plan"]

# Readers pay for how a file was written: pieces of 2 MiB, at multiples of 2 MiB, give it pages of that size in the page
# cache, and a reader one fault for each instead of 512.
STAGE = 2 << 20
# What is written at once without a copy: progress is told after each.
_DIRECT = 16 << 20
# What Linux follows at most.
_MOST_LINKS = 40
# A name of so many bytes is not too long for any file system, but those of old disks.
_ANY_NAME = 64
# A file without a name, which is gone with its descriptor, and what a system says that has none. Linux alone can give
# it a name later.
_UNNAMED: int = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC if hasattr(os, "O_TMPFILE") else 0
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
_CARRIED = ("metadata", "vocab", "special_ids", "config", "tokenizer")


class Sink:
    """Writes a file from its beginning to its end, in pieces of `STAGE` bytes or multiples of it.

    Small things are collected in a staging buffer. So is everything that a checksum is wanted of: it is summed up there
    and written from there, so a tensor that another thread changes meanwhile cannot make the checksum differ from the
    bytes. Long things without a checksum are written from where they are. The first piece, with the header, is written
    last.
    """

    def __init__(self, fd: int, total: int, progress: Callable[[int, int], None] | None, *, exact: bool = True) -> None:
        self._exact = exact
        self._fd = fd
        self._total = total
        self._progress = progress
        self._room = min(STAGE, max(total, 1)) if exact else STAGE
        self._view = memoryview(bytearray(self._room))
        self._filled = 0
        self._summing = False
        self._summed = 0
        self._crc = 0
        self._first: memoryview | None = None
        self.offset = 0
        self._tell(0)

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._total)

    @property
    def position(self) -> int:
        """Bytes taken so far."""
        return self.offset + self._filled

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        filled = self._filled
        end = filled + len(data)
        if end <= self._room:
            self._view[filled:end] = data
            self._filled = end
        else:
            self._write_long(memoryview(data))

    def _write_long(self, view: memoryview) -> None:
        while len(view):
            if self._filled == self._room:
                self._flush()
            if self._filled or self._summing or self._first is None or len(view) < STAGE:
                count = min(len(view), self._room - self._filled)
                self._view[self._filled : self._filled + count] = view[:count]
                self._filled += count
            else:
                count = min(len(view) // STAGE * STAGE, _DIRECT)
                # Of memory that is not there yet Linux copies ever smaller pieces: the file would have small pages.
                kernels.populate(view[:count], 0, count)
                _write_all(self._fd, view[:count], self.offset)
                self._advance(count)
            view = view[count:]

    def pad(self, count: int) -> None:
        """Append zero bytes."""
        if count:
            self.write(bytes(count))

    def begin_sum(self) -> None:
        """From here on, sum up what is appended."""
        self._summing, self._summed = True, self._filled

    def crc32(self) -> int:
        """Return the CRC-32 of what was appended since `begin_sum` or the last call."""
        self._sum()
        crc, self._crc = self._crc, 0
        return crc

    def _sum(self) -> None:
        if self._summing:
            self._crc = kernels.crc32(self._view[self._summed : self._filled], self._crc)
            self._summed = self._filled

    def _flush(self) -> None:
        self._sum()
        piece, count = self._view[: self._filled], self._filled
        if self._first is None:
            self._first = piece
            self._view = memoryview(bytearray(self._room))
        else:
            _write_all(self._fd, piece, self.offset)
        self._filled = self._summed = 0
        self._advance(count)

    def _advance(self, count: int) -> None:
        self.offset += count
        self._tell(min(self.offset, self._total - 1) if self.offset else 0)

    def finish(self) -> None:
        """Write what is left, and the first piece last."""
        if self._filled or self._first is None:
            self._flush()
        if self._first is not None:
            _write_all(self._fd, self._first, 0)
        if self._exact and self.offset != self._total:
            msg = f"the format planned {self._total} bytes and wrote {self.offset}"
            raise AssertionError(msg)


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    while len(view):
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def write_plan(
    path: str, plan: Plan, *, progress: Callable[[int, int], None] | None = None, durable: bool = True
) -> int:
    """Write a planned file to `path`, atomically. Return its size.

    Parameters
    ----------
    path : str
        A symbolic link is followed: the file that it names is replaced, not the link.
    plan : Plan
    progress : callable, optional
        ``progress(done, total)``, in bytes.
    durable : bool
        Flush the file and its directory to the disk.

    Raises
    ------
    OSError
        As the system reports it; the old file is intact and nothing is left behind. Should the very last step fail, the
        flushing of the directory, then the new file is in place, and the error has a note that says so.
    """
    try:
        target = _resolved(path)
        mode = _target_mode(target, path)
        at, name = os.path.split(target)
        folder = _Folder(at)
    except TensorFileError:
        raise
    except OSError as error:
        error.filename = path  # not that of a directory above, which the caller did not give
        raise
    try:
        size = kernels.with_temporary(partial(_write, durable=durable), folder, name, plan, mode, progress)
    except BaseException as error:
        _name(error, path)
        raise
    if durable:
        _flush_folder(folder, path)
    if progress is not None:
        progress(plan.size, plan.size)
    return size


def _write(
    temporary: Temporary,
    folder: _Folder,
    name: str,
    plan: Plan,
    mode: tuple[int, int] | None,
    progress: Callable[[int, int], None] | None,
    *,
    durable: bool,
) -> int:
    """Write a file and put it where it belongs. Return its size. Whatever ends this early, `temporary` is removed."""
    hidden = folder.create(temporary, name)
    fd = temporary.fileno()
    if mode is not None:
        _keep_mode(fd, *mode)
    if plan.exact:
        _reserve(fd, plan.size)
    sink = Sink(fd, plan.size, progress, exact=plan.exact)
    plan.write(sink)
    sink.finish()
    if durable:
        os.fsync(fd)
    if hidden is None:
        try:
            hidden = folder.link(temporary, name)
        except OSError:  # a file system without links, a policy against them
            kernels.with_temporary(partial(_write_copy, durable=durable), fd, folder, name)
            return sink.offset
    folder.replace(temporary, hidden, name)
    return sink.offset


def _write_copy(temporary: Temporary, source: int, folder: _Folder, name: str, *, durable: bool) -> None:
    """Do the same for a whole file that has no name and can get none."""
    hidden = folder.create_hidden(temporary, name)
    fd, status, offset = temporary.fileno(), os.fstat(source), 0
    _keep_mode(fd, stat.S_IMODE(status.st_mode), status.st_gid)
    while count := os.sendfile(fd, source, offset, _DIRECT):
        offset += count
    if durable:
        os.fsync(fd)
    folder.replace(temporary, hidden, name)


def _name(error: BaseException, path: str) -> None:
    """Give an error of the system the name of the file that was to be written.

    Calls that take a descriptor know no name, and that of the temporary file means nothing to anybody. What failed
    while something else was read has the name of that already.
    """
    if not isinstance(error, OSError) or isinstance(error, TensorFileError):
        return
    if error.filename2 is not None:  # of the renaming
        error.filename = path
        del error.filename2
    elif error.filename is None:
        error.filename = path


def _resolved(path: str) -> str:
    """Return the path of the file that `path` names, behind all links that stand in its last place.

    Links on the way there are followed by whoever opens it. A link that cannot be read just now is an error: it would
    pass for a file, and be replaced.
    """
    for _ in range(_MOST_LINKS):
        if path and not os.path.basename(path):  # "new/" is a directory, be it there or not, as `open` has it, too
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        try:
            link = os.readlink(path)
        except FileNotFoundError:  # not there yet
            return path
        except OSError as error:
            if error.errno == errno.EINVAL:  # no link
                return path
            raise
        path = os.path.join(os.path.dirname(path), link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _target_mode(target: str, path: str) -> tuple[int, int] | None:
    """Return permissions and group of the file to be replaced, or None when there is none.

    The bits that let a program run as somebody else were given to the old content, and do not pass to another one.
    """
    try:
        status = os.stat(target)
    except FileNotFoundError:
        if not target:
            raise
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        msg = "this is a FIFO, socket or device: only a regular file can be replaced"
        raise NotRegularFileError(msg, path=path)
    return status.st_mode & 0o777, status.st_gid


class _Folder:
    """The directory that a file is written in, held open.

    What happens in it goes by names alone, so it does not matter how long its path is, and whether the working
    directory becomes another one meanwhile. Where the system has no such calls (Windows) it goes by absolute paths.
    """

    def __init__(self, path: str) -> None:
        self._fd: Descriptor | None = None
        self._path = ""
        self.readable = True
        if os.open not in os.supports_dir_fd:
            self._path = os.path.abspath(path)
            return
        flags = os.O_DIRECTORY | os.O_CLOEXEC
        try:
            self._fd = own(os.open, path or os.curdir, os.O_RDONLY | flags)
        except PermissionError:  # files may be made in a directory that may not be read
            self._fd = own(os.open, path or os.curdir, getattr(os, "O_PATH", os.O_RDONLY) | flags)
            self.readable = False

    def create(self, temporary: Temporary, name: str) -> str | None:
        """Create a file without a name, so that nothing of it stays whatever happens.

        Where there is no such thing it has a hidden name, which is returned.
        """
        if _UNNAMED and self._fd is not None:
            create = partial(os.open, os.curdir, _UNNAMED, 0o666, dir_fd=self._fd)
            try:
                temporary.create(None, None, create)
            except OSError as error:
                if error.errno not in _NO_UNNAMED:
                    raise _nameless(error) from None
            else:
                return None
        return self.create_hidden(temporary, name)

    def create_hidden(self, temporary: Temporary, name: str) -> str:
        """Create a file of a name like this; return its name."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        # 0o666 less the umask, which the kernel applies.
        return self._hide(temporary, name, lambda path: partial(os.open, path, flags, 0o666, dir_fd=self._fd))

    def link(self, temporary: Temporary, name: str) -> str:
        """Give a file that has none a name like this; return it."""
        source = f"/proc/self/fd/{temporary.fileno()}"
        link = partial(os.link, dst_dir_fd=self._fd, follow_symlinks=True)
        return self._hide(temporary, name, lambda path: partial(link, source, path))

    def _hide(self, temporary: Temporary, name: str, function_for: Callable[[str], Callable[[], int | None]]) -> str:
        """Let a function make a hidden name, a new one when there is such a file; return it."""
        while True:
            hidden = _hidden(name)
            path = os.path.join(self._path, hidden)
            try:
                temporary.create(path, self._fd, function_for(path))
            except FileExistsError:
                continue
            except OSError as error:
                raise _nameless(error) from None
            return hidden

    def replace(self, temporary: Temporary, name: str, target: str) -> None:
        """Close a file of one name, and rename it to another, which it takes the place of."""
        temporary.close()
        name, target = os.path.join(self._path, name), os.path.join(self._path, target)
        temporary.give(partial(os.replace, name, target, src_dir_fd=self._fd, dst_dir_fd=self._fd))

    def flush(self) -> None:
        """Flush the names of its files to the disk, where that can be done."""
        if self._fd is not None and self.readable:
            os.fsync(self._fd)


def _nameless(error: OSError) -> OSError:
    """Return an error without the names that it has: those of temporary files mean nothing to anybody."""
    return OSError(error.errno, error.strerror)


def _hidden(name: str) -> str:
    """Return a hidden name that tells of `name`: no longer than that, or than every file system takes."""
    ending = f".{os.urandom(6).hex()}.tmp"
    encoded = os.fsencode(name)
    room = max(len(encoded), _ANY_NAME) - len(ending) - 1
    # A character that is cut in two is left out: some file systems refuse what is no UTF-8.
    stem = name if len(encoded) <= room else encoded[:room].decode("utf-8", "ignore")
    return f".{stem}{ending}"


def _keep_mode(fd: int, mode: int, group: int) -> None:
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):
            os.fchown(fd, -1, group)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, mode)


def _reserve(fd: int, size: int) -> None:
    """Claim the space now, so that a full disk is known at once."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EINTR):
                raise


def _flush_folder(folder: _Folder, path: str) -> None:
    try:
        folder.flush()
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):  # file systems without it
            return
        error.filename = path
        error.add_note("the new file is in place; whether it would survive a power cut is not known")
        raise


def choose(path: str, format_: str | None, layout: str | None) -> Format:
    """Return the format to be written. Raises `EncodeError` or ValueError when there is none, or no such layout."""
    found = by_suffix(path) if format_ is None else by_name(format_)
    if found.plan is None:
        msg = f"format {found.name} can be read and not written"
        raise EncodeError(msg, path=path, format=found.name)
    if layout is not None and layout not in found.layouts:
        msg = f"layout is {layout!r}, expected one of {', '.join(found.layouts)}"
        raise ValueError(msg)
    return found


def choose_layout(found: Format, layout: str | None, metadata: Mapping[str, Any] | None) -> str:
    """Return the layout to be written: the one that was asked for, else that of the metadata, else the first.

    Raises `EncodeError` when the metadata asks for one that does not exist.
    """
    if layout is None and found.layout_for is not None:
        layout = found.layout_for(metadata)
    return found.layouts[0] if layout is None else layout


def plan_request(path: str, found: Format, request: Request) -> Plan:
    """Ask the format for a plan. Raises `EncodeError` with everything that it cannot express."""
    carried = found.carries[request.layout]
    foreign = [name for name in _CARRIED if getattr(request, name) is not None and name not in carried]
    try:
        if foreign:
            msg = f"{found.title} has no place for {', '.join(foreign)}"
            raise EncodeError(msg)
        schemes = found.schemes.get(request.layout, frozenset())
        quantized = [t for t in request.tensors if t.dtype.quantized and t.dtype.name not in schemes]
        if quantized:
            refuse(found.title, [Unfit("tensor", t.name, f"quantised to {t.dtype.name}") for t in quantized])
        keys = found.metadata_keys
        homeless = [] if keys is None else [str(key) for key in request.metadata or () if key not in keys]
        if homeless:
            msg = f"{found.title} has no place for the metadata entries {listed(homeless)}"
            raise EncodeError(msg)
        # No array has such a shape, but an empty tensor may get it when its elements become larger in a conversion.
        endless = [
            f"{t.name[:80]!r} {t.shape}"
            for t in request.tensors
            if not (t.nbytes or t.dtype.quantized) and math.prod(filter(None, t.shape)) * t.dtype.bits >> 3 >= 1 << 63
        ]
        if endless:
            msg = f"no reader could count the bytes of elements in these shapes: {', '.join(endless[:100])}"
            raise EncodeError(msg)
        assert found.plan is not None  # noqa: S101 - `choose` has seen to it
        return found.plan(request)
    except TensorFileError as error:
        if isinstance(error, EncodeError):
            error.remedy = error.remedy or _conversion(found, request)
        raise error.located(path=path, format=found.name) from None


def _conversion(found: Format, request: Request) -> Remedy | None:
    """Say to which type tensors could be converted, where some are of one that the format lacks."""
    known = found.dtypes[request.layout]
    schemes = found.schemes.get(request.layout, frozenset())
    lacking = [
        t.dtype
        for t in request.tensors
        if (
            t.dtype.name not in schemes if t.dtype.quantized else t.dtype.name in FLOATING and t.dtype.name not in known
        )
    ]
    wanted = next((name for name in ("float32", "float16") if name in known), None)
    return Remedy("convert with {}", "dtype", wanted) if lacking and wanted else None


def save(
    path: str | bytes | os.PathLike[Any],
    tensors: Mapping[str, Any],
    *,
    format: str | None = None,
    layout: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    vocab: Sequence[str] | None = None,
    special_ids: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    checksums: bool = True,
    progress: Callable[[int, int], None] | None = None,
    durable: bool = True,
) -> None:
    """Write tensors to a file, atomically: it is there whole or not at all.

    Parameters
    ----------
    path : str, bytes or os.PathLike
        An existing file is replaced and keeps its permissions, but not the setuid, setgid and sticky bits, which were
        given to the old content; a symbolic link is followed.
    tensors : mapping of str to array_like, torch.Tensor, jax.Array or QuantizedTensor
        Arrays of any strides and byte order; written row-major and little-endian. Tensors of torch on any device, with
        or without gradient, in bfloat16 and float8 too; those that share memory are written each in full. The same
        tensors give the same bytes.
    format : str, optional
        One of `formats()` that can be written; by default the suffix tells: ``.weights``, ``.safetensors``, ...
    layout : str, optional
        One of the format's layouts (EMBD: "spec", "simple"; CNN v2: "v2", "v1", by default as `metadata` has its
        ``version``; finalfusion: "upstream", "spec").
    metadata : mapping, optional
        What may stand there depends on the format: strings in safetensors and EMBD, which takes integers too and writes
        them as decimal strings; ``version`` and ``mip_level`` in CNN v2; what TOML has in finalfusion, where metadata
        that was read keeps its text and new one needs the package tomli_w.
    vocab : sequence of str, optional
        Tokens by id. In finalfusion files, which need one, with an attribute ``subwords`` for a vocabulary that takes
        apart unknown words: a `Vocabulary` of such a file, or ``Vocabulary.of(words, subwords=Subwords(...))``.
    special_ids : mapping of str to int, optional
        Of pad, unk, cls, sep and mask; by default those of the tokens ``[PAD] [UNK] [CLS] [SEP] [MASK]``.
    config, tokenizer : optional
        For formats that have a place for them.
    checksums : bool
        Write checksums of the data where the format has them.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes.
    durable : bool
        Flush to the disk before the file takes its place. False is faster, for caches that can be made again.

    Raises
    ------
    EncodeError
        When the format cannot express this; it names every offending tensor, and no file was created.
    MissingDependencyError
        For new metadata of a finalfusion file without the package tomli_w (``pip install tomli-w``).
    OSError
        As the system reports it; the old file is intact and nothing is left behind.
    TypeError
        When `tensors` or `metadata` is no mapping.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.weights", {"w": np.ones((2, 2), np.float32)}, metadata={"model_name": "tiny"})
    >>> wm.open("model.weights").metadata["model_name"]
    'tiny'
    """
    name = os.fsdecode(os.fspath(path))
    for what, given in (("tensors", tensors), ("metadata", {} if metadata is None else metadata)):
        if not hasattr(given, "items"):
            msg = f"{what} must be a mapping, not {type(given).__name__}"
            raise TypeError(msg)
    try:
        found = choose(name, format, layout)
        payloads = from_arrays(tensors)
        chosen = choose_layout(found, layout, metadata)
    except TensorFileError as error:
        raise error.located(path=name) from None
    request = Request(payloads, chosen, metadata, vocab, special_ids, config, tokenizer, checksums=checksums)
    write_plan(name, plan_request(name, found, request), progress=progress, durable=durable)
