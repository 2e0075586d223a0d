"""The save protocol: a saved file is complete, or does not exist.

The bytes go to a temporary file beside the target, which is flushed to the disk and renamed over it. A reader finds
the old file or the new one, after a crash too, and a process that has mapped the old one keeps it.

An object in C owns the temporary file and removes it however writing ends: see owners.c. If the file system can, the
file has no name until it is complete, and disappears even if the process is killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from weightmap._messages import quoted
from weightmap.core.bytes.sink import DIRECT, Sink, WritePlan
from weightmap.core.native import files
from weightmap.core.native.access import Descriptor, refuse_loop, take_ownership, with_temporary
from weightmap.errors import EncodeError, NotRegularFileError, TargetError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from weightmap.core.native.access import Temporary

# Address schemes that `open` reads from.
_ADDRESSES = ("s3://", "gs://", "az://", "https://", "http://")
# Linux's number for tmpfs, and the largest file that gets no special treatment there: reserving it takes a few ms.
_TMPFS, _COMPARED_NBYTES = 0x01021994, 16 << 20
# Symbolic links that Linux follows in one path.
_MAX_LINKS = 40
# Bytes in a name that almost every file system accepts.
_ANY_NAME = 64
# The error in directories such as /proc, and in a directory that was just removed.
_TAKES_NONE = "its directory takes no new files ({})"
# Random bytes in a hidden name, and the pattern of these names.
_RANDOM = 6
_HIDDEN = re.compile(rf"(\..*\.)[0-9a-f]{{{2 * _RANDOM}}}\.tmp", re.DOTALL)
# Flags for a file without a name, which disappears with its descriptor, and errors of systems without such files. Only
# Linux can name the file later.
_UNNAMED: int = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC if hasattr(os, "O_TMPFILE") else 0
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
# Errors of file systems that cannot flush a directory.
_NO_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)


def write_plan(
    path: str,
    plan: WritePlan,
    *,
    progress: Callable[[int, int], None] | None = None,
    durable: bool = True,
    overwrite: bool = True,
) -> int:
    """Write a planned file to `path`, atomically. Return its size.

    Parameters
    ----------
    path : str
        A symbolic link is followed: the file that it names is replaced, not the link.
    plan : WritePlan
    progress : callable, optional
        ``progress(done, total)``, in bytes.
    durable : bool
        Flush the file and its directory to the disk.
    overwrite : bool
        Replace an existing file; False raises `TargetError` instead, whenever the file appears.

    Raises
    ------
    OSError
        As the system reports it; the old file is intact and no temporary file remains. If only the last step fails,
        flushing the directory, the new file is in place, and a note on the error says so.
    """
    if path.startswith(_ADDRESSES):
        raise EncodeError("this is an address, and files are written to a file system", path=path)
    try:
        target = _resolved(path)
        mode = _target_mode(target, path)
        if mode is not None and not overwrite:
            raise file_exists(path)
        at, name = os.path.split(target)
        folder = _folder_of(at)
    except TensorFileError:
        raise
    except OSError as error:
        refuse_loop(error, path)
        error.filename = path  # the caller's path, instead of a directory above it
        raise
    try:
        write = partial(_write, durable=durable, overwrite=overwrite)
        size = with_temporary(write, folder, name, plan, mode, progress)
    except FileExistsError:  # another file appeared meanwhile
        raise file_exists(path) from None
    except BaseException as error:
        name_error(error, path)
        raise
    if durable:
        _flush_folder(folder, path)
    if progress is not None:
        progress(plan.size, plan.size)
    return size


def _write(
    temporary: Temporary,
    folder: Folder,
    name: str,
    plan: WritePlan,
    mode: tuple[int, int] | None,
    progress: Callable[[int, int], None] | None,
    *,
    durable: bool,
    overwrite: bool,
) -> int:
    """Write a file and move it to its place; return its size. If this ends early, `temporary` is removed."""
    hidden = folder.create(temporary, name)
    fd = temporary.fileno()
    if mode is not None:
        _keep_mode(fd, *mode)
    if plan.exact:
        reserve(fd, plan.size)
    in_memory = _is_in_memory(fd, plan.size)
    sink = Sink(fd, plan.size, progress, exact=plan.exact, durable=durable, in_memory=in_memory)
    plan.write(sink)
    sink.finish()
    place(temporary, hidden, folder, name, durable=durable, overwrite=overwrite)
    return sink.offset


def place(
    temporary: Temporary, hidden: str | None, folder: Folder, name: str, *, durable: bool, overwrite: bool
) -> None:
    """Move a complete file to its place; if it has no name, give it a hidden one first."""
    fd = temporary.fileno()
    if durable:
        os.fsync(fd)
    if hidden is None:
        try:
            hidden = folder.link(temporary, name)
        except OSError:  # no links on this file system, or a policy against them
            copy = partial(_write_copy, durable=durable, overwrite=overwrite)
            with_temporary(copy, fd, folder, name)
            return
    folder.replace(temporary, hidden, name, overwrite=overwrite)


def _write_copy(
    temporary: Temporary, source: int, folder: Folder, name: str, *, durable: bool, overwrite: bool
) -> None:
    """Copy a complete file that cannot get a name to a hidden file, and move that to its place."""
    hidden = folder.create_hidden(temporary, name)
    fd, status, offset = temporary.fileno(), os.fstat(source), 0
    _keep_mode(fd, stat.S_IMODE(status.st_mode), status.st_gid)
    while count := os.sendfile(fd, source, offset, DIRECT):
        offset += count
    if durable:
        os.fsync(fd)
    folder.replace(temporary, hidden, name, overwrite=overwrite)


def name_error(error: BaseException, path: str) -> None:
    """Make an error of the system name the target instead of the temporary file, a descriptor or nothing.

    An error from reading another file keeps that file's name. One of a connection, or without a number, is none of a
    file: the caller's `progress` raised it.
    """
    if not isinstance(error, OSError) or isinstance(error, (TensorFileError, ConnectionError)) or error.errno is None:
        return
    if error.filename2 is not None:  # from renaming
        error.filename = path
        del error.filename2
    elif error.filename is None or isinstance(error.filename, int):
        error.filename = path
        if isinstance(error, FileNotFoundError):  # its directory is open
            error.strerror = _TAKES_NONE.format(error.strerror)


def _resolved(path: str) -> str:
    """Follow symbolic links in the last component of `path`; return the path of the file.

    The system follows links in directories. An unreadable link is an error: taken for a file, it would be replaced.
    """
    for _ in range(_MAX_LINKS):
        if path and not os.path.basename(path):  # "new/" names a directory, even a missing one, as for `open`
            raise directory_given(path)
        try:
            link = os.readlink(path)
        except FileNotFoundError:  # a new file
            return path
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a link
                return path
            raise
        path = os.path.join(os.path.dirname(path), link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _target_mode(target: str, path: str) -> tuple[int, int] | None:
    """Return permissions and group of the file to replace, or None if there is none.

    setuid, setgid and sticky bits were granted to the old content: the new content does not inherit them.
    """
    try:
        status = os.stat(target)
    except FileNotFoundError:
        if not target:
            raise
        return None
    if stat.S_ISDIR(status.st_mode):
        raise directory_given(path)
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularFileError("this is a FIFO, socket or device: only a regular file can be replaced", path=path)
    return status.st_mode & 0o777, status.st_gid


def file_exists(path: str) -> TargetError:
    """Return the error for an existing target that may not be replaced."""
    return TargetError("this file exists: remove it, or choose another target", path=path)


def directory_given(path: str, instead: str = "") -> IsADirectoryError:
    """Return the error for a target that is a directory; `instead` names an alternative to a file name."""
    return IsADirectoryError(errno.EISDIR, f"this is a directory: give the name of a file{instead}", path)


def no_directory(path: str, target: str | None = None) -> FileNotFoundError:
    """Return the error for a target whose directory is missing; the system's error would blame the target itself."""
    what = f"the directory {quoted(path or os.curdir)} does not exist"
    if os.path.isdir(path or os.curdir):
        what = _TAKES_NONE.format(os.strerror(errno.ENOENT))
    error = FileNotFoundError(errno.ENOENT, what)
    error.filename = target
    return error


def _folder_of(path: str) -> Folder:
    """Open the directory of a target."""
    try:
        return Folder(path)
    except FileNotFoundError:
        raise no_directory(path) from None


class Folder:
    """The directory that a file is written to, held open.

    Calls in it use plain names, so neither a long path nor a change of the working directory matters. Systems without
    such calls (Windows) use absolute paths.

    Parameters
    ----------
    path : str
    within : Folder, optional
        The parent directory, if `path` is a name in it; `path` may then not be a link.

    Attributes
    ----------
    path, fd
        The prefix of a name, and its `dir_fd`, in system calls.
    """

    def __init__(self, path: str, within: Folder | None = None) -> None:
        self.fd: Descriptor | None = None
        self.path = ""
        self.readable = True
        if os.open not in os.supports_dir_fd:
            self.path = os.path.abspath(path) if within is None else os.path.join(within.path, path)
            return
        flags = os.O_DIRECTORY | os.O_CLOEXEC
        if within is not None:
            self.fd = take_ownership(partial(os.open, path, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=within.fd))
            return
        try:
            self.fd = take_ownership(os.open, path or os.curdir, os.O_RDONLY | flags)
        except PermissionError:  # a directory that may not be read may still allow new files
            self.fd = take_ownership(os.open, path or os.curdir, getattr(os, "O_PATH", os.O_RDONLY) | flags)
            self.readable = False
        except OSError as error:
            refuse_loop(error, path)
            raise

    def create(self, temporary: Temporary, name: str) -> str | None:
        """Create a nameless file, which leaves nothing behind, or else a hidden one; return the hidden name."""
        if _UNNAMED and self.fd is not None:
            create = partial(os.open, os.curdir, _UNNAMED, 0o666, dir_fd=self.fd)
            try:
                temporary.create(None, None, create)
            except OSError as error:
                if error.errno not in _NO_UNNAMED:
                    raise _nameless(error) from None
            else:
                return None
        return self.create_hidden(temporary, name)

    def create_hidden(self, temporary: Temporary, name: str) -> str:
        """Create a file with a hidden name derived from `name`; return it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        # 0o666 less the umask, which the kernel applies.
        return self._hide(temporary, name, lambda path: partial(os.open, path, flags, 0o666, dir_fd=self.fd))

    def link(self, temporary: Temporary, name: str) -> str:
        """Give a nameless file a hidden name derived from `name`; return it."""
        source = f"/proc/self/fd/{temporary.fileno()}"
        link = partial(os.link, dst_dir_fd=self.fd, follow_symlinks=True)
        return self._hide(temporary, name, lambda path: partial(link, source, path))

    def _hide(self, temporary: Temporary, name: str, function_for: Callable[[str], Callable[[], int | None]]) -> str:
        """Call a function with hidden names until one is free; return that name."""
        while True:
            hidden = _hidden(name)
            path = os.path.join(self.path, hidden)
            try:
                temporary.create(path, self.fd, function_for(path))
            except FileExistsError:
                continue
            except OSError as error:
                raise _nameless(error) from None
            return hidden

    def replace(self, temporary: Temporary, name: str, target: str, *, overwrite: bool) -> None:
        """Close the temporary file and rename it to `target`, replacing a file of that name.

        Without `overwrite` an existing target raises FileExistsError: the file gets a second name (a hard link), or
        replaces an empty file created for it if the file system has no links.
        """
        temporary.close()
        name, target = os.path.join(self.path, name), os.path.join(self.path, target)
        if not overwrite:
            try:
                os.link(name, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except FileExistsError:
                raise
            except OSError:
                os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=self.fd))
            else:
                return  # the hidden name is still the temporary file's, and goes with it
        temporary.give(partial(os.replace, name, target, src_dir_fd=self.fd, dst_dir_fd=self.fd))

    def flush(self) -> None:
        """Flush the directory's entries to the disk, if the system can."""
        if self.fd is not None and self.readable:
            try:
                os.fsync(self.fd)
            except OSError as error:
                if error.errno not in _NO_FLUSH:
                    raise


def _nameless(error: OSError) -> OSError:
    """Return the error without file names, because temporary names mean nothing to users."""
    return OSError(error.errno, error.strerror)


def _hidden(name: str) -> str:
    """Return a hidden name derived from `name`: no longer than `name`, or short enough for any file system."""
    return f"{_beginning(name)}{os.urandom(_RANDOM).hex()}.tmp"


def _beginning(name: str) -> str:
    """Return the beginning of all hidden names derived from `name`."""
    encoded = os.fsencode(name)
    room = max(len(encoded), _ANY_NAME) - len("..") - 2 * _RANDOM - len(".tmp")
    # Drops a truncated character: some file systems refuse names that are not UTF-8.
    stem = name if len(encoded) <= room else encoded[:room].decode("utf-8", "ignore")
    return f".{stem}."


def remove_leftovers(folder: str, names: Iterable[str]) -> None:
    """Remove the temporary files of killed writers of these names, if allowed; the caller excludes other writers."""
    with contextlib.suppress(OSError):
        for name in leftovers(os.listdir(folder or os.curdir), names):
            os.unlink(os.path.join(folder, name))


def leftovers(listed: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    """Yield the names in a directory that are temporary files of killed writers of `names`."""
    beginnings = {_beginning(name) for name in names}
    for name in listed:
        match = _HIDDEN.fullmatch(name)
        if match is not None and match[1] in beginnings:
            yield name


def _keep_mode(fd: int, mode: int, group: int) -> None:
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):
            os.fchown(fd, -1, group)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, mode)


def _is_in_memory(fd: int, size: int) -> bool:
    return size > _COMPARED_NBYTES and files.file_system(fd) == _TMPFS


def reserve(fd: int, size: int) -> None:
    """Reserve the space now, so that a full disk fails at once.

    For large files on tmpfs this only checks the room: reserving pages there is as slow as writing them.
    """
    if size and hasattr(os, "posix_fallocate"):
        if _is_in_memory(fd, size):
            room = os.fstatvfs(fd)
            if room.f_blocks and room.f_bavail * room.f_frsize < size:  # 0 blocks: a tmpfs without limit
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EINTR):
                raise


def flush_folder(path: str, folder: Folder | None = None) -> None:
    """Flush the entries of a directory, which may be open, to the disk."""
    _flush_folder(_folder_of(path) if folder is None else folder, path)


def _flush_folder(folder: Folder, path: str) -> None:
    try:
        folder.flush()
    except OSError as error:
        error.filename = path
        error.add_note("the new file is in place, but may not survive a power cut")
        raise


# ----------------------------------------------------------------------------------------------------
# `scratch_folder`: a folder for temporary files, removed after any interruption.


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Make a folder in the system's directory for temporary files; remove it at the end, whenever an exception comes.

    `tempfile.TemporaryDirectory` leaves its folder behind if an exception comes while making or removing it.
    """
    path = os.path.join(tempfile.gettempdir(), f"weightmap-{os.urandom(16).hex()}")  # a unique name
    try:
        os.mkdir(path, 0o700)
        yield path
    finally:
        try:
            _remove(path)
        except BaseException:
            _remove(path)
            raise


def _remove(path: str) -> None:
    """Remove a folder of ours. After an interruption `shutil.rmtree` closes a descriptor twice, and raises EBADF."""
    with contextlib.suppress(FileNotFoundError):
        for folder, folders, files in os.walk(path, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in folders:
                os.rmdir(os.path.join(folder, name))
        os.rmdir(path)
