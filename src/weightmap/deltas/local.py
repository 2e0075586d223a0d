"""A local model that follows versions: its lock, its record, and the single step from a version to the next.

A directory of a model has ``.weight_sync/`` beside its files. ``lock`` (flock) and ``state.json``
(``{"version": "000003"}``) are SGLang's files; the other files are ours::

    next/           files of the next version, written, flushed and verified here before anything else changes
    next/changes    for a step in place: the changed words of files, to be written into the files
    journal.json    the remaining work, once all of ``next/`` is done
    spare/          files of the version before, for overwriting

The step
--------
Readers open a model by one name: its index of shards, or its only file. So the step is a single rename to this name,
and each reader finds the old version or the new one, even a reader that knows nothing of us. Shards of a new version
have names that no earlier version had, and lie beside the old shards before the index names them; the old shards are
removed after it. An index that a single file replaces is removed instead. The order (``|`` waits for the disk)::

    next/* | journal.json | state.json goes | new names | THE STEP | old files go | state.json | journal.json goes

Version and files change together, because `version` asks the journal while ``state.json`` is missing: the step moves a
file out of ``next/`` (or the old index away), and the place of this file *is* the version. While ``state.json`` exists,
no files of another version lie in the directory: some programs take all files that end in ``.safetensors``.

What readers see if everything stops (kill -9, power) at any moment
--------------------------------------------------------------------
* Before the journal: the old version. The next pull throws ``next/`` away.
* With the journal, ``state.json`` still there: the old version; the journal is void.
* With only the journal: the old version before the step, the new one after it. The next holder of the lock does the
  rest of the list; doing an entry twice is harmless. All files of the list were verified and are on the disk.
* With ``state.json`` again: the new version; the journal is void and is removed.
* SGLang, which knows only ``state.json``, starts from a full version or the base if it is missing, and never continues
  from a version that may be incomplete. It then writes ``state.json``, which makes a journal void.
* Files are replaced by rename and never written to, so arrays over old files keep their bytes. A spare file is
  overwritten only if the kernel grants a write lease on it: then no process has it open or mapped (`_is_unused`).
* A reader that has read the old index and then misses its shards must start again, as `weightmap.open` does.

In place
--------
If the disk has no room for a second copy of the changed files, and no process has them open, they are changed in place.
First, the changes are written to ``next/changes``, verified and flushed. The order is then::

    next/changes | journal.json | state.json goes | files go to next/ | changes are made there | journal.json again

and on as above. Making the changes twice is harmless (writing.py). A reader cannot open a file during its change: the
file is missing, and `weightmap.open` says why. If a process still has one of the files open after the move to
``next/`` (`_is_unused`), they go back. Stopped before the first journal, the directory has the old version; stopped
after it, the next holder of the lock continues to the new one.

A folder from a stranger
------------------------
Anything may lie in ``.weight_sync/``: links, folders, a journal. So everything below the directory is reached from
descriptors, without following a link (`Tree`). Files of the model behind a linked folder belong to others: they are
read, and stay. A journal counts only if each of its files has the size and modification time in it.

Configuration and tokenizer are separate files. A full version places them just before the step, so that
they are there when its weights appear. For a moment, a reader may find the new files beside old weights.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import stat
import sys
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.core.arguments import Limits
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.atomic import leftovers, name_error, reserve
from weightmap.core.bytes.open_source import is_hidden, read_small, stays_inside
from weightmap.core.model.sharded import find_model
from weightmap.core.model.sharding import NO_LOCKS
from weightmap.core.model.single import INDEX_SUFFIX
from weightmap.core.native import access, files
from weightmap.deltas.writing import CHANGES, MISSING, Tree, make_changes
from weightmap.errors import DeltaError, FormatError, NotRegularFileError, Remedy, TargetError, TensorFileError
from weightmap.plans.pages import numbered

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


_SYNC, _NEXT, _OLD_FILES = ".weight_sync", "next", "spare"
_STATE, _JOURNAL, _LOCK = "state.json", "journal.json", "lock"
# Errors of a full file system, and of a process whose files may not grow.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Digits of a version, and the largest number of a journal: times are in nanoseconds.
_DIGITS, _MAX_NUMBER = 18, (1 << 63) - 1
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
        The previous version, if it was recorded.
    moves : list of (str, str)
        Moves from ``next/``, before the step.
    switch : (str or None, str)
        The step: a file of ``next/`` takes a name; or, with None, the name is removed.
    remove : list of str
        Files that the model no longer has after the step.
    coming, before : dict of str to (int, int)
        Size and modification time of the files in ``next/``, which identify them after their move, and of the files of
        the previous version. If files are changed in place, also of the list of changes.
    patches : list of (str, str)
        Moves from the directory to ``next/``, before anything else, of files to be changed there.
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
        """Return all files of ``next/``, with their names in the directory."""
        old, new = self.switch
        return self.moves if old is None else [*self.moves, (old, new)]

    def staying(self) -> set[str]:
        """Return the files of the previous version that the next one keeps."""
        return self.before.keys() - {*self.remove, self.switch[1], *(new for _, new in self.moves)}


class Local:
    """A directory with a model, its record and its spare files. Every change needs `holding`.

    The given number of threads change files in place, or one thread for each CPU.
    """

    def __init__(self, folder: str, threads: int | None = None) -> None:
        self.folder: str = os.path.abspath(folder)
        self._threads = access.cpus() if threads is None else threads

    @cached_property
    def _root(self) -> Tree:
        """The directory. Raises FileNotFoundError if it is missing, like `_sync`."""
        return Tree.of(self.folder)

    @cached_property
    def _sync(self) -> Tree:
        """The folder ``.weight_sync/``."""
        return self._root.folder(_SYNC)

    @cached_property
    def _next(self) -> Tree:
        """The folder ``next/``, open from its first use until `abandon`."""
        return self._sync.folder(_NEXT)

    def staged(self, name: str) -> str:
        """Return the path of a file of the next version."""
        return os.path.join(self.folder, _SYNC, _NEXT, name)

    # ------------------------------------------------------------------------------------------------- lock and record
    @property
    def is_recorded(self) -> bool:
        """Whether there is a record, or a journal in its place."""
        folder = os.path.join(self.folder, _SYNC)
        return os.path.lexists(os.path.join(folder, _STATE)) or os.path.lexists(os.path.join(folder, _JOURNAL))

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Wait for the lock and hold it; complete or undo the unfinished work of an earlier run.

        Raises `TargetError` if the file system is full, whichever operation finds it.
        """
        file = None
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._sync = self._root.folder(_SYNC, make=True)
            file = self._sync.open(_LOCK, os.O_RDWR | os.O_CREAT)
            _lock(file)
            self._recover()
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM or isinstance(error, TensorFileError):
                name_error(error, self.folder)
                raise
            raise TargetError("the file system has no room for the new version", path=self.folder) from error
        finally:
            self.__dict__.pop("_next", None)
            del file  # closing the file ends the lock

    def version(self) -> int | None:
        """Return the version of the files; None without a record.

        Raises `DeltaError` for a damaged record.
        """
        try:
            content = self._read(_STATE)
        except FileNotFoundError:  # no directory, or no record
            return None
        except DeltaError as error:
            raise self._damaged(str(error.what)) from None
        if content is not None:
            text = content.get("version")
            if not isinstance(text, str) or not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
                raise self._damaged("version", field="version", actual=repr(text)[:50], expected="decimal digits")
            return int(text)
        change = self._journal()
        if change is None or not self._is_complete(change):
            return None
        if not change.patches and self._has_switched(change):
            return change.version
        return change.base_version if self._are_as_before(change, change.before) else None

    def _damaged(self, what: str, **more: Any) -> DeltaError:
        path = os.path.join(self.folder, _SYNC, _STATE)
        remedy = Remedy("remove it and pull with {}", "base")
        return DeltaError(f"the record of the version is damaged: {what}", path=path, remedy=remedy, **more)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            file = self._sync.open(name, os.O_RDONLY)
        except FileNotFoundError:
            self._sync  # noqa: B018 - raises where it is missing
            return None
        except NotRegularFileError as error:
            raise DeltaError(error.what, path=error.path) from None
        path, size = os.path.join(self.folder, _SYNC, name), os.fstat(file).st_size
        try:
            Limits().check("max_header_bytes", size, "size of the file")
            return strict_json.loads(bytes(access.read_bytes(file, size, 0, path)), name)
        except FormatError as error:
            raise DeltaError(error.what, path=path, offset=error.offset) from None

    def _journal(self) -> Journal | None:
        """Return the journal, or None if it does not exist, or is not one of ours."""
        try:
            content = self._read(_JOURNAL)
            return None if content is None else _as_journal(content)
        except (DeltaError, KeyError, TypeError, ValueError, AttributeError):
            return None

    def _has_switched(self, change: Journal) -> bool:
        old, new = change.switch
        return self._root.is_free(new) if old is None else old not in self._staged_names([old])

    def _staged_names(self, names: Iterable[str]) -> set[str]:
        """Return which names are files in ``next/``: regular files without another name."""
        try:
            tree = self._next
        except (FileNotFoundError, TargetError):  # the folder is missing, or a link
            return set()
        return {name for name in names if (status := tree.status(name)) is not None and status.st_nlink <= 1}

    def record(self, version: int) -> None:
        """Write the record, in one step."""
        step("record")
        self._write(_STATE, {"version": f"{version:06}"})

    def _write(self, name: str, content: dict[str, Any]) -> None:
        self._sync.write(name, json.dumps(content).encode())

    def write_staged(self, name: str, data: bytes) -> None:
        """Write a small file of the next version."""
        self._next.write(name, data)

    # ------------------------------------------------------------------------------------------------- to the next one
    def model(self) -> str | None:
        """Return the name of the model's file or index, or None."""
        try:
            if not [name for name in os.listdir(self.folder) if not name.startswith(".")]:
                return None
            return os.path.basename(find_model(self.folder))
        except (FileNotFoundError, FormatError, TensorFileError):
            return None

    def _listed(self) -> set[str]:
        """Return the names of the files with the model's weights, and of its index."""
        model = self.model()
        if model is None or not model.endswith(INDEX_SUFFIX):
            return set() if model is None else {model}
        try:
            raw = read_small(os.path.join(self.folder, model)) or b"{}"
            where = strict_json.loads(raw, model).get("weight_map")
        except FormatError:  # a damaged index lists nothing
            where = None
        return {model, *(name for name in (where.values() if isinstance(where, dict) else ()) if isinstance(name, str))}

    def files(self) -> set[str]:
        """Return the names of the files with the model's weights, except files behind a linked folder."""
        return {name for name in self._listed() if _is_name(name) and self._root.takes(name)}

    def identities(self) -> dict[str, tuple[int, int]]:
        """Return size and modification time of the files with the model's weights."""
        return {name: now for name in self.files() if (now := self._root.identity(name)) != MISSING}

    def staged_identity(self, name: str) -> tuple[int, int]:
        """Return size and modification time of a file of the next version; (-1, -1) if it is missing."""
        return self._next.identity(name)

    def new_name(self, name: str, version: int, others: set[str]) -> str:
        """Return a name for a shard that no file has, and no earlier version had."""
        match = _VERSIONED.fullmatch(name)
        stem, suffix = (match[1], match[2]) if match is not None else (name, "")
        for number in range(len(others) + 10000):
            new = f"{stem}.v{version:06}{f'-{number}' if number else ''}{suffix}"
            if new not in others and self._root.is_free(new):
                return new
        raise TargetError("there is no free name for a shard", path=os.path.join(self.folder, name))

    def begin(self, sizes: dict[str, int], like: Mapping[str, tuple[str, int]]) -> set[str]:
        """Begin the next version, in files of these sizes: `open_staged` opens each.

        Parameters
        ----------
        sizes : dict of str to int
        like : mapping of str to (str, int)
            For some files, the model's file of which they keep a part, and the number of bytes to write.

        Returns
        -------
        set of str
            The files that share the bytes of their model's file, if the file system can share bytes and most are kept.
            The content of the others is undefined.

        Raises
        ------
        TargetError
            When the disk does not have enough room.
        """
        self._next = self._sync.make(_NEXT)
        cloned = {name for name, (old, written) in like.items() if self._clone(old, name, written)}
        spares = self._take_spares({name: size for name, size in sizes.items() if name not in cloned})
        needed = sum([like[name][1] if name in cloned else size for name, size in sizes.items() if name not in spares])
        room = os.statvfs(self.folder)
        free = room.f_bavail * room.f_frsize
        if room.f_blocks and free < needed:
            what = "bytes that the file system has left for the new version"
            raise TargetError(what, path=self.folder, actual=free, expected=f"at least {needed}")
        return cloned

    def open_staged(self, name: str, size: int) -> access.Descriptor:
        """Open a file of the next version; a new file gets room for its bytes."""
        try:
            file = self._new(name)
        except FileExistsError:  # a spare file, or a clone
            return self._next.open(name, os.O_RDWR)
        reserve(file, size)
        os.ftruncate(file, size)
        return file

    def _new(self, name: str) -> access.Descriptor:
        return self._next.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def _clone(self, old: str, name: str, written: int) -> bool:
        """Make a file that shares the bytes of a file of the model until it is written to; return whether it worked."""
        try:
            file = self._root.open(old, os.O_RDONLY)
        except OSError:  # a link
            return False
        if 2 * written > os.fstat(file).st_size:  # a spare file costs no new pages
            return False
        new = self._new(name)
        try:
            clone(new, file)
        except OSError:
            self._next.remove(name)
            return False
        return True

    def begin_changes(self) -> access.Descriptor:
        """Make the file for the changes of a step in place."""
        self._sync.clear(_OLD_FILES)  # spare files take room
        self._next = self._sync.make(_NEXT)
        return self._new(CHANGES)

    def is_unused(self) -> bool:
        """Whether no process, this one included, has a file of the model open, as far as the system tells."""
        names = {name for name in self._listed() if not name.endswith(INDEX_SUFFIX)}
        return bool(names) and all(_is_name(name) and _is_free(self._root, name) for name in names)

    def _take_spares(self, sizes: dict[str, int]) -> set[str]:
        """Move unused spare files of the right size to ``next/``; return their names there."""
        reused: set[str] = set()
        try:
            tree = self._sync.folder(_OLD_FILES)
        except OSError:
            return reused
        names, target = tree.names(), self._next
        for name, size in sizes.items():
            for old in names:
                with contextlib.suppress(OSError):
                    status = tree.status(old)
                    if status is None or status.st_size != size:
                        continue
                    file = tree.open(old, os.O_RDWR)
                    if not _is_unused(file):
                        continue
                    tree.move(old, target, name)
                    moved = target.status(name)
                    if moved is None or not os.path.samestat(moved, os.fstat(file)):
                        target.clear(name)
                        continue
                    reused.add(name)
                    names.remove(old)
                    break
        return reused

    def check(self, change: Journal) -> None:
        """Raise `TargetError` unless the files for a change exist, and its names are free."""
        now = self.identities()
        for name in sorted({*change.before, *(name for name, _ in change.patches)}):
            if now.get(name) != change.before.get(name, MISSING):
                raise self._changed(name)
        for _, name in change.renamed():
            if not (_is_name(name) and self._root.takes(name)):
                msg = "this path is hidden, is a folder, or lies behind a link: remove it"
                raise TargetError(msg, path=os.path.join(self.folder, name))
        if not self._next.is_at(self.staged("")):
            msg = "another program replaced this folder meanwhile: pull again"
            raise TargetError(msg, path=os.path.join(self.folder, _SYNC))

    def _changed(self, name: str) -> TargetError:
        msg = "another program changed or removed this file of the model meanwhile: pull again"
        return TargetError(msg, path=os.path.join(self.folder, name))

    def commit(self, change: Journal) -> None:
        """Go to the next version, whose files are in ``next/``, complete and on the disk."""
        self.check(change)
        self._next.flush()
        self._sync.clear(_OLD_FILES)  # the remaining spare files are useless
        recorded = not self._sync.is_free(_STATE)
        step("journal")
        self._write(_JOURNAL, change._asdict())
        step("forget")
        self._forget(_STATE)
        self._sync.flush()
        try:
            self._take(change)
            for name, staged in change.patches:
                if self._next.identity(staged) != change.before[name]:
                    raise self._changed(name)
        except TargetError:
            self._give_back(change, recorded=recorded)
            raise
        if not all(_is_free(self._next, name) for _, name in change.patches):  # opened since `is_unused`
            self._give_back(change, recorded=recorded)
            raise TargetError("the model was opened while it was to be changed in place: pull again", path=self.folder)
        self._complete(change)

    def _forget(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._sync.remove(name)

    def _take(self, change: Journal) -> None:
        """Move the files to be changed in place to ``next/``."""
        for name, staged in change.patches:
            step("take")
            if self._next.is_free(staged):
                self._root.move(name, self._next, staged)
        for name, _ in change.patches:
            self._next.flush()
            self._root.flush(name)

    def _give_back(self, change: Journal, *, recorded: bool) -> None:
        """Move the files that were to be changed in place back, and restore the record."""
        self._return(change)
        self._forget(_JOURNAL)
        if recorded and change.base_version is not None:
            self.record(change.base_version)

    def _return(self, change: Journal) -> None:
        """Move back the files that were to be changed in place; a file that was already changed stays."""
        for name, staged in change.patches:
            if staged in self._staged_names([staged]) and self._root.is_free(name):
                tree, before = self._next, change.before[name]
                identity = tree.identity(staged)
                if identity == before or identity[0] != before[0]:
                    tree.move(staged, self._root, name)
                    self._root.flush(name)

    def _patch(self, change: Journal) -> Journal:
        """Change files in place, unless done already; write the remaining work to the journal, and return it."""
        self._take(change)
        step("patch")
        tree = self._next
        log = tree.open(CHANGES, os.O_RDONLY)
        openers = [partial(tree.open, staged, os.O_RDWR) for _, staged in change.patches]
        make_changes(log, openers, self._threads, step)
        coming = {name: tree.identity(name) for name, _ in change.renamed()}
        change = change._replace(patches=[], coming=coming)
        step("patched")
        self._write(_JOURNAL, change._asdict())
        return change

    def _complete(self, change: Journal) -> None:
        """Finish the work in the journal."""
        if change.patches:
            change = self._patch(change)
        for old, new in change.moves:
            step("move")
            self._place(change, old, new)
        self._root.flush()
        coming, name = change.switch
        if coming is None:
            step("switch")
            with contextlib.suppress(FileNotFoundError):
                self._root.remove(name)
        elif self._staged_names([coming]):
            step("keep")
            self._keep(name, link=True)
            step("switch")
            self._place(change, coming, name)
        self._root.flush()
        self._remove_old(change)
        self._root.flush()
        self.record(change.version)
        self._tidy()

    def _place(self, change: Journal, old: str, new: str) -> None:
        """Move a file of ``next/`` to its new name, unless done already."""
        if self._staged_names([old]):
            self._next.move(old, self._root, new)
        elif self._root.identity(new) != change.coming.get(old):
            msg = "another program changed or removed this file of the new version meanwhile: pull again"
            raise TargetError(msg, path=os.path.join(self.folder, new))

    def _remove_old(self, change: Journal) -> None:
        """Remove the files that the model no longer has after a change, if the journal's identities match."""
        gone = {name: change.before.get(name) for name in change.remove}
        gone |= {new: change.coming.get(old) for old, new in change.moves if new.endswith(".safetensors")}
        current = self.files() if gone else set()
        for name, identity in gone.items():
            if name not in current and self._root.identity(name) == identity != MISSING:
                step("remove")
                if not self._keep(name):
                    self._root.remove(name)

    def _tidy(self) -> None:
        """Remove the journal of a change, then ``next/``."""
        step("clean")
        self._forget(_JOURNAL)
        self.abandon()

    def _keep(self, name: str, *, link: bool = False) -> bool:
        """Keep a file of the old version as a spare, with `link` also under its name; return whether it worked."""
        try:
            if self._root.status(name) is None or name.endswith(INDEX_SUFFIX):
                return False
            tree, old = self._sync.folder(_OLD_FILES, make=True), name.replace("/", "-")
            tree.clear(old)
            if link:
                self._root.link(name, tree, old)
            else:
                self._root.move(name, tree, old)
        except OSError:  # no links on this file system
            return False
        return True

    def abandon(self) -> None:
        """Remove the files of a version that is given up."""
        self.__dict__.pop("_next", None)
        self._sync.clear(_NEXT)

    def give_up(self) -> None:
        """Abandon the version, unless the journal has it: then the next holder of the lock continues."""
        if self._sync.is_free(_JOURNAL):
            self.abandon()

    def _recover(self) -> None:
        """Finish, or throw away, the work of an earlier run."""
        names = self._sync.names()
        if not {*names} - {_LOCK, _STATE}:
            return
        for name in leftovers(names, (_STATE, _JOURNAL)):
            self._sync.clear(name)
        for name in (_NEXT, _OLD_FILES):
            if self._sync.identity(name) != MISSING:  # a link, or not a folder
                self._sync.clear(name)
        change, recorded = self._journal(), not self._sync.is_free(_STATE)
        if change is not None and not recorded and self._is_complete(change):
            try:
                self._complete(change)
            except DeltaError:  # the list of changes is damaged: a full version or the base helps
                self._remove_old(change)
                self._tidy()
        elif change is not None:
            self._return(change)
            self._remove_old(change)
            self._tidy()
        else:
            self._sync.clear(_JOURNAL)
            self.abandon()

    def _is_complete(self, change: Journal) -> bool:
        """Whether each file of a change is in ``next/``, at its new place, or unchanged at its old one."""
        changed = {staged: name for name, staged in change.patches}
        staged = self._staged_names([CHANGES, *(old for old, _ in change.renamed())])

        def is_whole(old: str, new: str) -> bool:
            if old in staged:  # perhaps half changed, if it is to be changed in place
                return old in changed or self._next.identity(old) == change.coming.get(old)
            if old in changed:
                return self._are_as_before(change, [changed[old]])
            return self._root.identity(new) == change.coming.get(old, MISSING) != MISSING

        if changed and (CHANGES not in staged or self._next.identity(CHANGES) != change.coming.get(CHANGES)):
            return False
        if not all(map(self._root.takes, (change.switch[1], *change.remove))):
            return False
        return self._are_as_before(change, change.staying()) and all(
            self._root.takes(new) and is_whole(old, new) for old, new in change.renamed()
        )

    def _are_as_before(self, change: Journal, names: Iterable[str]) -> bool:
        return all(self._root.identity(name) == change.before.get(name, MISSING) != MISSING for name in names)


def folder_of_model(path: str) -> str | None:
    """Return the directory of a model, if `path` names it or it has a record; None for a lone file."""
    if os.path.isdir(path):
        return path
    folder = os.path.dirname(os.path.abspath(path))
    if path.endswith(INDEX_SUFFIX):
        return folder
    place = Local(folder)
    return folder if place.is_recorded and place.model() == os.path.basename(path) else None


def _as_journal(content: dict[str, Any]) -> Journal:
    """Return a journal from its content. Raises errors of many kinds for other content."""
    pairs = [[(old, new) for old, new in content.get(key, ())] for key in ("moves", "patches")]
    (moves, patches), (old, new) = pairs, content["switch"]
    coming, before = [
        {name: (_number(size), _number(time, -_MAX_NUMBER)) for name, (size, time) in content[key].items()}
        for key in ("coming", "before")
    ]
    base = content["base_version"]
    base = base if base is None else _number(base)
    change = Journal(_number(content["version"]), base, moves, (old, new), content["remove"], coming, before, patches)
    for names in ([each for each, _ in change.renamed()], [each for _, each in change.renamed()]):
        if len(set(names)) != len(names):
            raise ValueError(names)
    names = [name for pair in (*change.renamed(), *patches) for name in pair]
    if not all(map(_is_name, [*names, new, *change.remove, *before])):
        raise ValueError(names)
    gone = {*change.remove, *(name for name, _ in patches), *((new,) if old is None else ())}
    if not gone <= before.keys() or (old is None and not moves):
        raise ValueError(gone)
    return change


def _number(value: Any, smallest: int = 0) -> int:
    if type(value) is not int or not smallest <= value <= _MAX_NUMBER:
        raise ValueError(value)
    return value


def _is_name(name: Any) -> bool:
    """Whether a model may have a file of this name: below its directory, and not hidden."""
    return isinstance(name, str) and stays_inside(name) and not is_hidden(name)


def clone(new: access.Descriptor, old: access.Descriptor) -> None:
    """Let a new file share another's bytes, as btrfs, XFS and bcachefs can. Raises OSError on other file systems."""
    if sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    fcntl.ioctl(new, _FICLONE, int(old))


def _lock(file: access.Descriptor) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_free(tree: Tree, name: str) -> bool:
    try:
        return _is_unused(tree.open(name, os.O_RDWR))
    except OSError:
        return False


def _is_unused(file: access.Descriptor) -> bool:
    """Whether no one else has a file open or mapped, and it has no other name.

    Linux grants a write lease only then. On some file systems the answer is always False: where a mapping belongs to
    another file underneath, as in a container's layers, or where other machines may have the file open.
    """
    status = os.fstat(file)
    local = numbered(files.file_system(file)).kind in ("local", "memory")
    if not local or status.st_nlink != 1 or not stat.S_ISREG(status.st_mode) or not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        fcntl.fcntl(file, _F_SETSIG, signal.SIGURG)  # otherwise another opener would end this process by SIGIO
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True
