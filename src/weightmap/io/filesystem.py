"""The kind of file system of a file: whether its pages are memory, or come from a disk or from elsewhere."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from weightmap.native import late

if TYPE_CHECKING:
    from weightmap.io.source import Source


class FileSystem(NamedTuple):
    """A kind of file system.

    Attributes
    ----------
    name : str
        Such as "ext4" or "nfs"; a number in hexadecimal where it is unknown.
    kind : str
        "local", "memory" (files are memory), "overlay" (the layers of a container), "network", "fuse", "store" (of
        objects), or "unknown".
    """

    name: str
    kind: str

    @property
    def is_remote(self) -> bool:
        """Whether a page of a mapping may come from another machine or process: better read than mapped."""
        return self.kind in {"network", "fuse", "store"}


# The numbers of Linux (magic.h and the sources of file systems that are not part of it).
_KINDS = {
    "local": {
        0xEF53: "ext4",
        0x58465342: "xfs",
        0x9123683E: "btrfs",
        0x2FC12FC1: "zfs",
        0xCA451A4E: "bcachefs",
        0xF2F52010: "f2fs",
        0x73717368: "squashfs",
        0xE0F5E1E2: "erofs",
        0x4D44: "vfat",
        0x2011BAB0: "exfat",
        0x5346544E: "ntfs",
        0x7366746E: "ntfs3",
        0x9660: "iso9660",
        0x3153464A: "jfs",
        0x52654973: "reiserfs",
    },
    "memory": {0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs"},
    "overlay": {0x794C7630: "overlay", 0x61756673: "aufs"},
    "network": {
        0x6969: "nfs",
        0x517B: "smb",
        0xFF534D42: "cifs",
        0xFE534D42: "smb2",
        0x00C36400: "ceph",
        0x0BD00BD0: "lustre",
        0x47504653: "gpfs",
        0x19830326: "beegfs",
        0x01021997: "9p",
        0x5346414F: "afs",
        0x6B414653: "kafs",
        0x73757245: "coda",
        0xAAD7AAEA: "panfs",
        0x7461636F: "ocfs2",
        0x01161970: "gfs2",
        0x786F4256: "vboxsf",
        0xBACBACBC: "vmhgfs",
    },
    "fuse": {0x65735546: "fuse"},
}
_KNOWN = {number: FileSystem(name, kind) for kind, names in _KINDS.items() for number, name in names.items()}
_IN_MEMORY = FileSystem("memory", "memory")


def known(number: int) -> FileSystem:
    """Return the file system with this number of `statfs`; a negative one means that the system does not tell."""
    if number < 0:
        return FileSystem("not told" if number == -errno.ENOSYS else "unknown", "unknown")
    return _KNOWN.get(number) or FileSystem(f"{number:#x}", "unknown")


def file_system_of(source: Source) -> FileSystem:
    """Return the kind of file system that a source lies on; "memory" for bytes and copies."""
    if source.store is not None:
        return FileSystem(source.store, "store")
    file = source.descriptor
    return _IN_MEMORY if file < 0 else known(late.file_system(file))
