"""The save protocol: a file is there whole or not at all.

The bytes go to a temporary file beside the target, which is flushed to the disk and renamed over it: a reader, or a
crash at any moment, finds the old file or the new one, and a process that has the old one mapped keeps it.

The temporary file belongs to an object in C, which removes it however the writing ends: see owners.c. Where the file
system allows it, the file has no name before it is whole, and disappears with the process however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from weightmap import kernels
from weightmap.errors import NotRegularFileError, TensorFileError
from weightmap.io.descriptor import Descriptor, own
from weightmap.io.sink import DIRECT, Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.io.sink import Plan
    from weightmap.kernels import Temporary

__all__ = ["write_plan"]

# What Linux follows at most.
_MOST_LINKS = 40
# A name of so many bytes is not too long for any file system, but those of old disks.
_ANY_NAME = 64
# A file without a name, which is gone with its descriptor, and what a system says that has none. Linux alone can give
# it a name later.
_UNNAMED: int = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC if hasattr(os, "O_TMPFILE") else 0
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)


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
    while count := os.sendfile(fd, source, offset, DIRECT):
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
