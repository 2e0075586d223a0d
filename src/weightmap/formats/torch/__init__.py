"""PyTorch checkpoints `.pt .pth .bin .ckpt`, read only: nothing in the file is executed, torch is not needed.

`torch.save` writes a pickle, a program that makes the saved object, with the bytes of tensors ("storages") beside it.
Here a machine in C runs that program without making objects (csrc/pickle.c). It knows the opcodes that `torch.save`
writes and a fixed list of names, each with a meaning of its own; any other name is an `UnsupportedError` that gives
it, such as
``os.system``. Nothing is imported by name and nothing is called. Memo, stack and depth are bounded.

Layouts
-------
zip
    Since 1.6: an archive of stored entries ``<prefix>/data.pkl``, the program; ``<prefix>/data/<key>``, the storages,
    which are mapped where they lie; ``<prefix>/byteorder``, "little" or "big", little where it is missing;
    ``<prefix>/version``. See
    `weightmap.formats._zip` for what an archive has to be. Deflated storages and archives of TorchScript, which hold
    programs of another kind, are an `UnsupportedError`.
legacy
    Five pickles: the number 0x1950a86a20f9469cfc6c, the version 1001 of the protocol, a dictionary with the byte order
    of the machine, the object, and a list of keys. Then for each key ``u64 number of elements | bytes of the storage``.

Tensors
-------
A tensor is a storage, an offset, a shape and strides; all that it reaches lies within the storage. A storage takes
exactly the bytes of its entry. Tensors of one storage share memory: tied weights are saved once. Sparse and quantised
tensors and those on the device "meta" are made by names off the list. Empty tensors lie at the beginning of their
storage.

Ours
----
- Names are the keys of nested dictionaries joined with points, and the numbers of the items of lists and tuples:
"model.0.bias". A
  lone tensor is called "". Two equal names are a `LayoutError`.
- Whatever else the object holds, numbers, texts, None, truth values, bytes, types, devices and numpy's scalars, is the
  metadata, named alike. Types and devices are texts there, numpy's scalars Python numbers. Empty containers are left
  out.
- Entries that nothing refers to are warnings.
"""

from __future__ import annotations

from weightmap.formats._base import Format
from weightmap.formats._zip import first_name
from weightmap.lazy import later

__all__ = ["FORMAT", "MAGIC"]

# The pickle of the number that the legacy layout begins with, behind its protocol.
MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_MEMBERS = (b"data.pkl", b"byteorder", b"version", b".format_version", b".storage_alignment", b"constants.pkl")


def _sniff(head: bytes, _size: int) -> bool:
    """Recognise either layout: an archive by its first entry, a legacy file by its number."""
    name = first_name(head)
    if name is not None:
        _, slash, rest = name.partition(b"/")
        return slash == b"/" and (rest in _MEMBERS or rest.startswith((b"data/", b"code/", b".data/")))
    # Protocols 4 and 5 put the number into a frame.
    return head[:1] == b"\x80" and (head.startswith(MAGIC, 2) or (head[2:3] == b"\x95" and head.startswith(MAGIC, 11)))


FORMAT = Format(
    name="torch",
    title="PyTorch",
    suffixes=(".pt", ".pth", ".bin", ".ckpt"),
    layouts=("zip", "legacy"),
    parse=later(f"{__name__}.reading", "parse"),
    sniff=_sniff,
    leads=b"P\x80",
    checksums=frozenset({"zip"}),
)
