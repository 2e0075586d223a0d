"""A directory below which no link is followed: a model may come from a stranger, with links that lead elsewhere.

Every file and folder is reached from the descriptor of the folder that it lies in. Names are paths from the directory,
with ``/`` between their parts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from weightmap.core.bytes.atomic import Folder, place
from weightmap.core.bytes.sink import write_all
from weightmap.core.native import access
from weightmap.core.native.access import Descriptor, take_ownership
from weightmap.errors import NotRegularFileError, TargetError

if TYPE_CHECKING:
    from weightmap.core.native.access import Temporary

# Errors of opening a link, or anything but a directory, as a directory
_LINKED = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
# The identity of a missing file
MISSING = -1, -1
# Neither follow a link, nor wait for a FIFO.
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class Tree:
    """A directory that is held open, and what lies below it."""

    def __init__(self, folder: Folder, path: str) -> None:
        self._folder = folder
        self.path = path

    @classmethod
    def of(cls, path: str) -> Tree:
        """Open a directory. A link to it is followed: its path comes from the caller."""
        return cls(Folder(path), path)

    def _parent(self, name: str, *, make: bool = False) -> tuple[Folder, str]:
        """Return the folder that a file lies in, and its name there."""
        folder = self._folder
        *above, last = name.split("/")
        for part in above:
            folder = self._inner(folder, part, make=make)
        return folder, last

    def _where(self, name: str, *, make: bool = False) -> tuple[str, Descriptor | None]:
        """Return what calls of the system take for a file: a path and its `dir_fd`."""
        folder, last = (self._folder, name) if "/" not in name else self._parent(name, make=make)
        return os.path.join(folder.path, last), folder.fd

    def _inner(self, folder: Folder, name: str, *, make: bool) -> Folder:
        if make:
            path, at = os.path.join(folder.path, name), folder.fd
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, dir_fd=at)
        try:
            return Folder(name, folder)
        except OSError as error:
            if error.errno not in _LINKED:
                raise
            msg = f"{name!r} is a link or no directory: remove it, or choose another directory"
            raise TargetError(msg, path=self.path) from None

    def folder(self, name: str, *, make: bool = False) -> Tree:
        """Open a folder; make it if it may be missing. Raises `TargetError` for a link."""
        above, last = (self._folder, name) if "/" not in name else self._parent(name)
        return Tree(self._inner(above, last, make=make), os.path.join(self.path, name))

    def make(self, name: str, mode: int = 0o777) -> Tree:
        """Make a folder, which must be new, and open it."""
        path, at = self._where(name)
        os.mkdir(path, mode, dir_fd=at)
        return self.folder(name)

    def open(self, name: str, flags: int) -> Descriptor:
        """Open a regular file. Raises `NotRegularFileError` for anything else, such as a link."""
        path, at = self._where(name)
        flags |= _CAREFUL
        try:
            file = take_ownership(partial(os.open, path, flags, 0o666, dir_fd=at))
        except FileNotFoundError:
            raise
        except OSError:
            if self.is_free(name) or self.status(name) is not None:
                raise
            raise self._irregular(name) from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise self._irregular(name)
        return file

    def _irregular(self, name: str) -> NotRegularFileError:
        return NotRegularFileError("this is a link or no file: remove it", path=os.path.join(self.path, name))

    def _lstat(self, name: str) -> os.stat_result | None:
        """Return the status of whatever has a name; None where nothing has, or a link leads there."""
        try:
            path, at = self._where(name)
            return os.stat(path, dir_fd=at, follow_symlinks=False)
        except (OSError, ValueError):  # some names can be nobody's
            return None

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a regular file; None for anything else."""
        status = self._lstat(name)
        return status if status is not None and stat.S_ISREG(status.st_mode) else None

    def is_free(self, name: str) -> bool:
        """Whether nothing can be found under a name, a link neither."""
        return self._lstat(name) is None

    def identity(self, name: str) -> tuple[int, int]:
        """Return size and modification time of a file, or of the link to it; `MISSING` where there is neither."""
        status = self._lstat(name)
        return MISSING if status is None or stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)

    def takes(self, name: str) -> bool:
        """Whether a file can get a name: no folder has it, and no link is on the way."""
        try:
            path, at = self._where(name)
            return not stat.S_ISDIR(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode)
        except FileNotFoundError:  # its folder will be made
            return True
        except (OSError, ValueError):
            return False

    def names(self) -> list[str]:
        """Return the names in the directory itself, sorted."""
        return sorted(os.listdir(self._folder.path if self._folder.fd is None else self._folder.fd))

    def move(self, name: str, to: Tree, new: str) -> None:
        """Give a file a name in another tree, in the place of another; nothing if it has it already."""
        (old_path, at), (new_path, new_at) = self._where(name), to._where(new, make=True)
        try:
            os.replace(old_path, new_path, src_dir_fd=at, dst_dir_fd=new_at)
        except FileNotFoundError:
            if to.is_free(new):
                msg = "another program changed or removed this file of the model meanwhile: pull again"
                raise TargetError(msg, path=os.path.join(self.path, name)) from None

    def link(self, name: str, to: Tree, new: str) -> None:
        """Give a file a second name in another tree."""
        (old_path, at), (new_path, new_at) = self._where(name), to._where(new)
        os.link(old_path, new_path, src_dir_fd=at, dst_dir_fd=new_at, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file, or a link."""
        path, at = self._where(name)
        os.unlink(path, dir_fd=at)

    def clear(self, name: str) -> None:
        """Remove whatever has a name in the directory itself, with all that lies in it; links are not followed."""
        status = self._lstat(name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            self.remove(name)
            return
        tree = self.folder(name)
        while names := tree.names():
            for each in names:
                tree.flatten(each)
        self._rmdir(name)

    def flatten(self, name: str) -> None:
        """Remove a file; or a folder and its files, while its own folders come into this one: no depth is too much."""
        if not self.is_folder(name):
            self.remove(name)
            return
        tree, number = self.folder(name), 0
        for inner in tree.names():
            if not tree.is_folder(inner):
                tree.remove(inner)
                continue
            while not self.is_free(f"{number}"):
                number += 1
            tree.move(inner, self, f"{number}")
        self._rmdir(name)

    def is_folder(self, name: str) -> bool:
        """Whether a name belongs to a folder, not to a link to one."""
        status = self._lstat(name)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def _rmdir(self, name: str) -> None:
        path, at = self._where(name)
        os.rmdir(path, dir_fd=at)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file in the directory itself, atomically, and flush it."""
        access.with_temporary(_write_small, self._folder, name, data)
        self._folder.flush()

    def flush(self, name: str = "") -> None:
        """Flush the entries of the directory, or of the folder that a file lies in, to the disk."""
        (self._parent(name)[0] if name else self._folder).flush()

    def is_at(self, path: str) -> bool:
        """Whether a path leads to this directory."""
        here, at = self._where(os.curdir)
        return os.path.samestat(os.stat(here, dir_fd=at), os.stat(path))


def _write_small(temporary: Temporary, folder: Folder, name: str, data: bytes) -> None:
    """Write a small file in one piece, and move it to its place."""
    hidden = folder.create(temporary, name)
    write_all(temporary.fileno(), memoryview(data), 0)
    place(temporary, hidden, folder, name, durable=True, overwrite=True)
