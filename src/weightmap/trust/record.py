"""The record of files that were hashed: one small file for each, in the user's cache, which this user alone can write.

A record is believed only if nothing speaks against it: device, inode, size, modification time and change time are those
of the file that was hashed, to the nanosecond; the file can be written by nobody but this user and root; and the clock
is not behind any of these times. Programs set a modification time as they like, but not a change time: the system sets
that to the time of its clock. For the same reason a file is recorded only if its times were two
seconds old when hashing began: a clock has ticks, and a second change in one tick would leave the time as it was.

What this leaves open, for those who may write to the file anyway: root and this user can set the clock or write the
record themselves, and a program that has mapped the file for writing may write to it without changing its times.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from weightmap.io import cache

_FOLDER = "hashed"
_MOST = 4096
_SWITCH = "WEIGHTMAP_TRUST_RECORD"
# In ns: older than this when hashing begins.
_SETTLED = 2_000_000_000


def state_of(file: int) -> tuple[int, ...]:
    """Return what tells one state of a file from another: device, inode, size, and the times of both kinds in ns."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def has(file: int, state: tuple[int, ...], digest: str) -> bool:
    """Whether a file in this state was seen to have this digest."""
    if not _is_on() or not _is_private(file):
        return False
    raw = cache.stored(cache.folder(_FOLDER), _name(state), _MOST)
    if raw is None:
        return False
    head, *digests = raw.decode("ascii", "replace").split("\n")
    *numbers, when = head.split(" ")
    if numbers != [str(number) for number in state] or not when.isdecimal() or len(when) > 30:
        return False
    return max(int(when), *state[3:]) <= time.time_ns() and digest in digests


def is_settled(state: tuple[int, ...]) -> bool:
    """Whether a change of the file from now on shows in its times."""
    return max(state[3:]) <= time.time_ns() - _SETTLED


def add(file: int, state: tuple[int, ...], digest: str) -> None:
    """Note that a file in this state, which was settled before it was hashed, has this digest."""
    if not _is_on() or not _is_private(file):
        return
    own = [digest]
    raw = cache.stored(cache.folder(_FOLDER), _name(state), _MOST)
    if raw is not None:
        head, *others = raw.decode("ascii", "replace").split("\n")
        if head.split(" ")[:-1] == [str(number) for number in state]:
            own += [other for other in others if other and other != digest][:4]
    text = "\n".join([" ".join(map(str, (*state, time.time_ns()))), *own, ""])
    cache.store(cache.folder(_FOLDER), _name(state), text.encode(), durable=False)


def forget() -> int:
    """Remove all records; return how many there were."""
    folder, count = cache.folder(_FOLDER), 0
    with contextlib.suppress(FileNotFoundError):
        if folder is not None and cache.is_ours(folder):
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
                count += 1
    return count


def _is_on() -> bool:
    return os.environ.get(_SWITCH, "1") != "0"


def _is_private(file: int) -> bool:
    """Whether nobody but this user and root may write to a file."""
    status = os.fstat(file)
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return hasattr(os, "geteuid") and status.st_uid in {0, os.geteuid()} and not writable


def _name(state: tuple[int, ...]) -> str:
    return f"{state[0]:x}-{state[1]:x}"
