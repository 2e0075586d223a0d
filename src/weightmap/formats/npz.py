"""numpy's `.npz`, read only: an archive of `.npy` files, each an array by the name of its entry without ``.npy``.

See `weightmap.formats._zip` for what an archive has to be, and `weightmap.formats._npy` for the header of an array.
Arrays of stored entries are views of the mapping. Those of deflated entries (`numpy.savez_compressed`) are inflated
into private memory each time they are looked up, where `Limits.max_copy_bytes` allows. Entries that are no arrays are
errors; ``strict=False`` leaves them out.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from weightmap.errors import LayoutError, quoted
from weightmap.formats._base import Content, Format
from weightmap.formats._npy import FIRST, MAGIC, Array, read_header, table_of
from weightmap.formats._zip import EMPTY, Archive, first_name
from weightmap.io.placement import Deflated

if TYPE_CHECKING:
    from weightmap.io.source import Source
    from weightmap.options import Options

__all__ = ["FORMAT"]

_SUFFIX = b".npy"


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Read the header of every member, and return the table of arrays."""
    warnings: list[str] = []
    archive = Archive(source, head, options, warnings)
    options.limits.check("max_tensors", len(archive), "number of entries", offset=0)
    names: list[bytes] = []
    arrays: list[Array] = []
    begins: list[int] = []
    sizes: list[int] = []
    deflated: list[Deflated | None] = []
    for i, name in enumerate(archive.names.raws()):
        begin, size = archive.begin(i), archive.size(i)
        stored, what = archive.is_stored(i), f"entry {quoted(archive.label(i))}"
        start = archive.beginning(i, FIRST)
        if not start.startswith(MAGIC):
            shown = repr(start[: len(MAGIC)])
            error = LayoutError(f"{what} is no array", field="magic", offset=begin, actual=shown, expected=repr(MAGIC))
            options.tolerate(error, warnings)
            continue
        array = read_header(start, functools.partial(archive.beginning, i), what, begin)
        if array.start + array.nbytes != size:
            expected = f"{array.start + array.nbytes}, by its header"
            raise LayoutError(f"size of {what}", field="size", offset=begin, actual=size, expected=expected)
        names.append(name.removesuffix(_SUFFIX))
        arrays.append(array)
        begins.append(begin + array.start if stored else begin)
        kept = int(archive.entries.stored[i])
        sizes.append(array.nbytes if stored else kept)
        crc = int(archive.entries.crc[i])
        deflated.append(None if stored else Deflated(what, kept, size, crc, array.start, array.strides, options.limits))
    table = table_of(names, arrays, begins, sizes, source, deflated)
    if options.checked:
        table.check()
    content = Content("npz", table, dict, archive.verifier, warnings)
    content.sums = archive.sums
    return content


def _sniff(head: bytes, _size: int) -> bool:
    name = first_name(head)
    return name is not None and (name.endswith(_SUFFIX) or head[:4] == EMPTY)


FORMAT = Format(
    name="npz",
    title="numpy .npz",
    suffixes=(".npz",),
    layouts=("npz",),
    parse=parse,
    sniff=_sniff,
    leads=b"P",
    checksums=frozenset({"npz"}),
)
