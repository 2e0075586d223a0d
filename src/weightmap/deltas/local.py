"""A local model that follows versions: its lock, its record, and the one step that goes from a version to the next.

A directory of a model has ``.weight_sync/`` beside its files. ``lock`` (flock) and ``state.json``
(``{"version": "000003"}``) are SGLang's; the others are ours::

    next/           files of the version to come, written, flushed and verified here before anything else changes
    next/changes    for a step in place: the changed words of files, to be written into them
    journal.json    what is left to do, once all of that is done
    spare/          files of the version before, to be written over

The step
--------
Readers open a model by one name: its index of shards, or its only file. So one rename of that name is the step, and
each reader finds one version or the other, those that know nothing of us too. Shards of a new version have names that
no version before had, and lie beside the old ones before the index names them; the old ones go after it. An index that
comes to nothing (from shards to a single file) is removed instead. The order, ``|`` where it waits for the disk::

    next/* | journal.json | state.json goes | new names | THE STEP | old files go | state.json | journal.json goes

Version and files change together, because `version` asks the journal as long as there is no ``state.json``: the step
moves a file out of ``next/`` (or the old index away), and whether that has happened *is* the version. Beside
``state.json`` there are never files of another version, for programs that take all that end in ``.safetensors``.

What each reader sees, when everything stops (kill -9, power) at any moment
--------------------------------------------------------------------------------
* Before the journal: the old version. The next pull throws ``next/`` away.
* With the journal, ``state.json`` still there: the old version; the journal is void.
* With the journal alone: one version or the other, by the step. Whoever holds the lock next does the rest of the list;
  each of its entries may be done twice. All of its files were verified and are on the disk.
* With ``state.json`` again: the new version; the journal is void and goes.
* SGLang, which knows only ``state.json``, starts from a full version or the base where there is none, and never
  continues from a version that may be half there. It then writes ``state.json``, which makes a journal void.
* Files are replaced by rename and never written to, so arrays over old files keep their bytes. A spare file is written
  over only if the kernel grants a write lease on it: then no process has it open or mapped (`_is_unused`).
* A reader that has read the old index and finds its shards gone starts again: `weightmap.open` does.

In place
--------
Where the disk has no room for the changed files twice, and nobody has them open, they become those of the new version
themselves: what changes in them is written to ``next/changes`` first, verified and flushed. The order is then::

    next/changes | journal.json | state.json goes | files go to next/ | changes are made there | journal.json again

and on as above. Making the changes twice does no harm (changes.py). Nobody who opens the model finds a file while it is
changed, only that it is missing: `weightmap.open` says why. Once the files are in ``next/``, nobody may have them open
(`_is_unused`), or they go back. Stopped before the first journal, the directory is the old version; after it, whoever
holds the lock next goes on to the new one.

Configuration and tokenizer are files of their own: those of a full version come just before the step, so that they are
there when its weights are. A reader of both may find new ones beside old weights for that moment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from weightmap.deltas.changes import make_changes
from weightmap.errors import DeltaError, FormatError, TargetError, TensorFileError
from weightmap.io import strict_json
from weightmap.io.atomic import flush_folder, remove_leftovers, reserve, write_plan
from weightmap.io.beside import read_small
from weightmap.io.filesystem import known
from weightmap.io.names import stays_inside
from weightmap.io.open_source import is_missing
from weightmap.io.sink import WritePlan
from weightmap.model.sharded import find_model
from weightmap.model.single import INDEX_SUFFIX
from weightmap.native import late, take_ownership

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weightmap.native import Descriptor

_SYNC, _NEXT, _SPARE, _STATE, _JOURNAL, _LOCK = ".weight_sync", "next", "spare", "state.json", "journal.json", "lock"
# The file of changes; `weightmap.model.sharded` knows its place.
CHANGES = "changes"
# Errors of a file system without room, and of a process whose files may not grow.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_VERSIONED = re.compile(r"(.+?)(?:\.v\d{6,}(?:-\d+)?)?(\.[^.]+)", re.DOTALL)
_F_SETSIG, _FICLONE = 10, 0x40049409


def step(name: str) -> None:
    """Do nothing: tests replace it, and stop here."""


class Journal(NamedTuple):
    """The way to the next version, as the journal has it. Paths are relative to ``next/`` and to the directory.

    Attributes
    ----------
    version : int
    base_version : int or None
        The version before, if it was recorded.
    moves : list of (str, str)
        From ``next/``, before the step.
    switch : (str or None, str)
        The step: a file of ``next/`` takes a name; or, with None, the name goes.
    remove : list of str
        Files that the model no longer has after it.
    coming, before : dict of str to (int, int)
        Size and modification time of the files in ``next/``, which are known by them after their move, and of the files
        of the model before.
    patches : list of (str, str)
        From the directory to ``next/``, before anything else: files that are to be changed there.
    """

    version: int
    base_version: int | None
    moves: list[tuple[str, str]]
    switch: tuple[str | None, str]
    remove: list[str]
    coming: dict[str, tuple[int, int]]
    before: dict[str, tuple[int, int]]
    patches: list[tuple[str, str]]

    def renamed(self) -> list[tuple[str, str]]:
        """Return all files of ``next/`` with their names in the directory."""
        old, new = self.switch
        return self.moves if old is None else [*self.moves, (old, new)]

    def staying(self) -> set[str]:
        """Return the files of the model before that are in the next one too."""
        return self.before.keys() - {*self.remove, self.switch[1], *(new for _, new in self.moves)}


class Local:
    """A directory with a model, its record and its spare files. All that changes it needs `holding`.

    Files are changed in place by as many threads as are given, or by one for each CPU.
    """

    def __init__(self, folder: str, threads: int | None = None) -> None:
        self.folder: str = os.path.abspath(folder)
        self._threads = late.cpus() if threads is None else threads
        self._sync = os.path.join(self.folder, _SYNC)

    def inside(self, name: str) -> str:
        """Return the path of a file of the model."""
        return os.path.join(self.folder, name)

    def _own(self, *names: str) -> str:
        return os.path.join(self._sync, *names)

    def staged(self, name: str) -> str:
        """Return the path of a file of the version to come."""
        return self._own(_NEXT, name)

    # ------------------------------------------------------------------------------------------------- lock and record
    @property
    def is_recorded(self) -> bool:
        """Whether there is a record, or what stands for it."""
        return any(os.path.lexists(self._own(name)) for name in (_STATE, _JOURNAL))

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the lock, waiting for it; what a run before left undone is done, or undone.

        Raises `TargetError` for a file system without room, whatever meets it.
        """
        os.makedirs(self._sync, exist_ok=True)
        file = take_ownership(os.open, self._own(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _lock(file)
        try:
            self._recover()
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM or isinstance(error, TensorFileError):
                raise
            raise TargetError("the file system has no room for the new version", path=self.folder) from error
        finally:
            del file  # its end is the end of the lock

    def version(self) -> int | None:
        """Return the version that the files are; None without a record.

        Raises `DeltaError` for a record that is damaged.
        """
        found = self._read(_STATE)
        if found is not None:
            text = found.get("version")
            if not isinstance(text, str) or not (text.isascii() and text.isdecimal() and len(text) <= 18):
                raise DeltaError("version", path=self._own(_STATE), field="version", actual=repr(text)[:50])
            return int(text)
        change = self._journal()
        if change is None or not self._is_complete(change):
            return None
        if not change.patches and self._has_switched(change):
            return change.version
        return change.base_version if self._are_seen(change, change.before) else None

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._own(name)
        raw = read_small(path)
        try:
            return None if raw is None else strict_json.loads(raw, name)
        except FormatError as error:
            raise DeltaError(error.what, path=path, offset=error.offset) from None

    def _journal(self) -> Journal | None:
        """Return what the journal says; None where there is none, or not one of ours."""
        try:
            found = self._read(_JOURNAL)
            if found is None:
                return None
            moves = [(str(old), str(new)) for old, new in found["moves"]]
            switch = found["switch"][0], str(found["switch"][1])
            remove = [str(name) for name in found["remove"]]
            coming, before = [
                {name: (int(a), int(b)) for name, (a, b) in found[key].items()} for key in ("coming", "before")
            ]
            patches = [(str(old), str(new)) for old, new in found.get("patches", ())]
            base = found["base_version"]
            change = Journal(int(found["version"]), base, moves, switch, remove, coming, before, patches)
        except (DeltaError, KeyError, TypeError, ValueError, AttributeError):
            return None
        pairs = [*change.renamed(), *patches]
        names = [*(name for pair in pairs for name in pair), switch[1], *remove, *change.before]
        return change if all(map(stays_inside, names)) else None

    def _has_switched(self, change: Journal) -> bool:
        old, new = change.switch
        return not os.path.lexists(self.inside(new) if old is None else self.staged(old))

    def record(self, version: int) -> None:
        """Write the record, in one step."""
        step("record")
        self._write(_STATE, {"version": f"{version:06}"})

    def _write(self, name: str, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        write_plan(self._own(name), WritePlan(len(data), lambda sink: sink.write(data)))

    # ------------------------------------------------------------------------------------------------- to the next one
    def model(self) -> str | None:
        """Return the name of the model's file or index; None where there is none."""
        try:
            return os.path.basename(find_model(self.folder))
        except (FormatError, TensorFileError):
            return None

    def files(self) -> set[str]:
        """Return the names of the files that the model's weights are in, its index too."""
        model = self.model()
        if model is None or not model.endswith(INDEX_SUFFIX):
            return set() if model is None else {model}
        where = strict_json.loads(read_small(self.inside(model)) or b"{}", model).get("weight_map")
        return {model, *(filter(stays_inside, where.values()) if isinstance(where, dict) else ())}

    def new_name(self, name: str, version: int, taken: set[str]) -> str:
        """Return a name for a shard that no file has, and none of the versions before had."""
        match = _VERSIONED.fullmatch(name)
        stem, suffix = (match[1], match[2]) if match is not None else (name, "")
        for number in range(len(taken) + 10000):
            found = f"{stem}.v{version:06}{f'-{number}' if number else ''}{suffix}"
            if found not in taken and not os.path.lexists(self.inside(found)):
                return found
        raise TargetError("there is no free name for a shard", path=self.inside(name))

    def begin(
        self, sizes: dict[str, int], like: Mapping[str, tuple[str, int]]
    ) -> tuple[dict[str, Descriptor], set[str]]:
        """Make the files of the version to come, with room for their bytes.

        Parameters
        ----------
        sizes : dict of str to int
        like : mapping of str to (str, int)
            For some, the file of the model of which they are to keep a part, and the bytes that are written to them.

        Returns
        -------
        dict of str to Descriptor, set of str
            The files, and those whose bytes are the ones of that file, which they share: where the file system can do
            that, and the better part is kept. The content of the others is undefined.

        Raises
        ------
        TargetError
            When the disk has not the room.
        """
        os.makedirs(self._own(_NEXT))
        made = {name: file for name, (old, written) in like.items() if (file := self._cloned(old, name, written))}
        cloned = set(made)
        made |= self._take_spares({name: size for name, size in sizes.items() if name not in made})
        needed = sum(like[name][1] for name in cloned)
        needed += sum(size for name, size in sizes.items() if name not in made)
        room = os.statvfs(self.folder)
        free = room.f_bavail * room.f_frsize
        if room.f_blocks and free < needed:
            self._no_room(needed, free)
        for name, size in sizes.items():
            if name not in made:
                made[name] = self._new(name)
                try:
                    reserve(made[name], size)
                    os.ftruncate(made[name], size)
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                    self._no_room(needed, free)
        return made, cloned

    def _new(self, name: str) -> Descriptor:
        return take_ownership(os.open, self.staged(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _cloned(self, old: str, name: str, written: int) -> Descriptor | None:
        """Return a new file that shares the bytes of one of the model until it is written to; None if it cannot."""
        file = take_ownership(os.open, self.inside(old), os.O_RDONLY | os.O_CLOEXEC)
        if 2 * written > os.fstat(file).st_size:  # a spare file costs no new pages
            return None
        found = self._new(name)
        try:
            clone(found, file)
        except OSError:
            os.unlink(self.staged(name))
            return None
        return found

    def begin_changes(self) -> Descriptor:
        """Make the file for the changes of a step in place."""
        self._drop_spares()  # they take room
        os.makedirs(self._own(_NEXT))
        return self._new(CHANGES)

    def is_unused(self) -> bool:
        """Whether nobody has a file of the model open, this process included, as far as the system tells."""
        names = {name for name in self.files() if not name.endswith(INDEX_SUFFIX)}
        return bool(names) and all(_is_free(self.inside(name)) for name in names)

    def _no_room(self, needed: int, free: int) -> None:
        what = "bytes that the file system has left for the new version"
        raise TargetError(what, path=self.folder, actual=free, expected=f"at least {needed}")

    def _take_spares(self, sizes: dict[str, int]) -> dict[str, Descriptor]:
        """Move spare files of the right size to ``next/``, for those that nobody uses."""
        found: dict[str, Descriptor] = {}
        spares = {os.path.join(self._own(_SPARE), name) for name in _names(self._own(_SPARE))}
        for name, size in sizes.items():
            for path in sorted(spares):
                with contextlib.suppress(OSError):
                    if os.lstat(path).st_size != size:
                        continue
                    file = take_ownership(os.open, path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
                    if _is_unused(file):
                        os.rename(path, self.staged(name))
                        found[name] = file
                        spares.discard(path)
                        break
        return found

    def commit(self, change: Journal) -> None:
        """Go to the next version: everything that it needs is in ``next/``, complete and on the disk."""
        flush_folder(self._own(_NEXT))
        self._drop_spares()  # those that are left are neither of use now nor later
        recorded = os.path.lexists(self._own(_STATE))
        step("journal")
        self._write(_JOURNAL, change._asdict())
        step("forget")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._own(_STATE))
        flush_folder(self._sync)
        self._take(change)
        if not all(_is_free(self.staged(name)) for _, name in change.patches):  # opened since `is_unused`
            self._give_back(change, recorded=recorded)
        self._complete(change)

    def _drop_spares(self) -> None:
        for name in _names(self._own(_SPARE)):
            os.unlink(self._own(_SPARE, name))

    def _take(self, change: Journal) -> None:
        """Move the files that are to be changed in place to ``next/``."""
        for name, staged in change.patches:
            step("take")
            if not os.path.lexists(self.staged(staged)):
                os.rename(self.inside(name), self.staged(staged))
        for folder in {os.path.dirname(self.inside(name)) for name, _ in change.patches}:
            flush_folder(self._own(_NEXT))
            flush_folder(folder)

    def _give_back(self, change: Journal, *, recorded: bool) -> NoReturn:
        for name, staged in change.patches:
            os.rename(self.staged(staged), self.inside(name))
            flush_folder(os.path.dirname(self.inside(name)))
        os.unlink(self._own(_JOURNAL))
        if recorded and change.base_version is not None:
            self.record(change.base_version)
        raise TargetError("the model was opened while it was to be changed in place: pull again", path=self.folder)

    def _patch(self, change: Journal) -> Journal:
        """Journal files in place, as far as that is not done; return, and write to the journal, what is left."""
        self._take(change)
        step("patch")
        log = take_ownership(os.open, self.staged(CHANGES), os.O_RDONLY | os.O_CLOEXEC)
        flags = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        files = [take_ownership(os.open, self.staged(staged), flags) for _, staged in change.patches]
        make_changes(log, files, self._threads, step)
        del files
        coming = {name: seen(self.staged(name)) for name, _ in change.renamed()}
        change = change._replace(patches=[], coming=coming)
        step("patched")
        self._write(_JOURNAL, change._asdict())
        return change

    def _complete(self, change: Journal) -> None:
        """Do what the journal says, as far as it is not done."""
        if change.patches:
            change = self._patch(change)
        for old, new in change.moves:
            step("move")
            _move(self.staged(old), self.inside(new))
        flush_folder(self.folder)
        coming, name = change.switch
        if coming is None:
            step("switch")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.inside(name))
        elif os.path.lexists(self.staged(coming)):
            step("keep")
            self._keep(name, link=True)
            step("switch")
            _move(self.staged(coming), self.inside(name))
        flush_folder(self.folder)
        self._remove_old(change)
        flush_folder(self.folder)
        self.record(change.version)
        self._tidy(change)

    def _remove_old(self, change: Journal) -> None:
        """Remove what a change leaves behind: files that the model does not have."""
        current = self.files()
        for name in (*change.remove, *(new for _, new in change.moves if new.endswith(".safetensors"))):
            if name not in current and os.path.lexists(self.inside(name)):
                step("remove")
                if not self._keep(name):
                    os.unlink(self.inside(name))

    def _tidy(self, change: Journal) -> None:
        """Remove what is left of a change, the journal last but one."""
        self._remove_old(change)
        step("clean")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._own(_JOURNAL))
        self.abandon()

    def _keep(self, name: str, *, link: bool = False) -> bool:
        """Keep a file of the old version as a spare one, with `link` under its name too; say whether that worked."""
        path, spare = self.inside(name), self._own(_SPARE, name)
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode) or name.endswith(INDEX_SUFFIX):
                return False
            os.makedirs(os.path.dirname(spare), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(spare)
            (os.link if link else os.rename)(path, spare)
        except OSError:  # no links on this file system
            return False
        return True

    def abandon(self) -> None:
        """Remove the files of a version that does not come."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._own(_NEXT))

    def give_up(self) -> None:
        """Do the same, unless the journal has it: then whoever holds the lock next goes on."""
        if not os.path.lexists(self._own(_JOURNAL)):
            self.abandon()

    def _recover(self) -> None:
        """Do, or throw away, what a run before left."""
        remove_leftovers(self._sync, (_STATE, _JOURNAL))
        change, recorded = self._journal(), os.path.lexists(self._own(_STATE))
        if change is not None and not recorded and self._is_complete(change):
            self._complete(change)
        elif change is not None:
            self._tidy(change)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._own(_JOURNAL))
            self.abandon()

    def _is_complete(self, change: Journal) -> bool:
        """Whether each file of a change is in ``next/`` or, unchanged, where it goes, or has stayed there."""
        changed = {staged: name for name, staged in change.patches}
        return self._are_seen(change, change.staying()) and all(
            os.path.lexists(self.staged(old))
            or (
                self._are_seen(change, [changed[old]])
                if old in changed
                else seen(self.inside(new)) == change.coming.get(old)
            )
            for old, new in change.renamed()
        )

    def _are_seen(self, change: Journal, names: Iterable[str]) -> bool:
        return all(seen(self.inside(name)) == change.before[name] for name in names)


def seen(path: str) -> tuple[int, int]:
    """Return size and modification time of a file; (-1, -1) where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        if not is_missing(error):
            raise
        return []


def _move(old: str, new: str) -> None:
    """Give a file its name, in the place of another; nothing if it has it already."""
    os.makedirs(os.path.dirname(new), exist_ok=True)
    try:
        os.replace(old, new)
    except FileNotFoundError:
        if not os.path.lexists(new):
            raise


def clone(new: Descriptor, old: Descriptor) -> None:
    """Let a new file share the bytes of another, as btrfs, XFS and bcachefs can. Raises OSError on others."""
    if sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    import fcntl  # noqa: PLC0415 - Windows has none

    fcntl.ioctl(new, _FICLONE, int(old))


def _lock(file: Descriptor) -> None:
    try:
        import fcntl  # noqa: PLC0415 - Windows has none
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_free(path: str) -> bool:
    try:
        return _is_unused(take_ownership(os.open, path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)))
    except OSError:
        return False


def _is_unused(file: Descriptor) -> bool:
    """Whether nobody else has a file open or mapped, and it has no other name.

    Linux grants a write lease only then. Not asked on file systems where a mapping is of another file underneath, as
    that of a container's layers, or where other machines may have it open.
    """
    import fcntl  # noqa: PLC0415 - Windows has none

    status = os.fstat(file)
    local = known(late.file_system(file)).kind in ("local", "memory")
    if not local or status.st_nlink != 1 or not stat.S_ISREG(status.st_mode) or not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        fcntl.fcntl(file, _F_SETSIG, signal.SIGURG)  # who opens it meanwhile would end this process by SIGIO
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True
