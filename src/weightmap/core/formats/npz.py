"""numpy's `.npz`, read only: an archive of `.npy` files, each an array by the name of its entry without ``.npy``.

See `weightmap.core.formats._zip` for the rules of archives, `weightmap.core.formats._npy` for an array's header.
Arrays of stored entries are views of the mapping. Those of deflated entries (`numpy.savez_compressed`) are inflated
into private memory at each look-up, within `Limits.max_copy_bytes`. Entries other than arrays, and arrays that cannot
be read, such as arrays of Python objects, are errors; ``strict=False`` leaves them out.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes.geometry import Deflated, Geometry, Strided
from weightmap.core.formats import _npy, is_npz
from weightmap.core.formats._base import Content, Format
from weightmap.core.formats._zip import Archive
from weightmap.core.native import scans
from weightmap.core.table.columns import ColumnTable
from weightmap.errors import FormatError, LayoutError

if TYPE_CHECKING:
    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.dtypes import DType

_SUFFIX = b".npy"


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Read the header of every member, and return the table of arrays."""
    warnings: list[str] = []
    archive = Archive(source, head, options, warnings)
    options.limits.check("max_tensors", len(archive), "number of entries", offset=0)
    members = _Members(archive, source, options, warnings)
    _check_keys(archive)
    table = members.table()
    content = Content("npz", table, dict, archive.verifier, warnings)
    content.sums = archive.sums
    del archive, members  # frees what the table does not need
    if options.checked:
        table.check()
    return content


def _check_keys(archive: Archive) -> None:
    """Refuse an entry such as ``a.npy.npy`` beside ``a.npy``: by the name "a.npy", numpy returns the latter."""
    names, bounds = archive.names, archive.entries.bounds
    text, at = bytes(memoryview(archive.entries.names)[: names.nbytes]), -1
    while (at := text.find(2 * _SUFFIX, at + 1)) >= 0:
        end = at + len(2 * _SUFFIX)
        row = int(np.searchsorted(bounds, end)) - 1
        if bounds[row + 1] != end:
            continue
        key = archive.label(row).removesuffix(".npy")
        other = names.find(key)
        if other >= 0:
            what = f"by the name {quoted(key)}, numpy returns entry {other} and never entry {row}: rename one of them"
            raise LayoutError(what, field="name", offset=int(archive.entries.offset[row]))


class _Members:
    """The arrays of an archive.

    C reads headers as numpy writes them (csrc/formats/npy.c). This class reads all others: of deflated members, of
    other types, and headers that numpy would not write.
    """

    def __init__(self, archive: Archive, source: Source, options: Options, warnings: list[str]) -> None:
        self._source, self._limits = source, options.limits
        headers = archive.entries.arrays
        assert headers is not None  # noqa: S101 - for the type checker
        self._columns = columns = headers.columns
        self._fortran = headers.fortran
        self._kinds: list[DType | None] = [None] * (scans.NPY_ODD + 1)
        codes = columns.array(columns.dtype, columns.count, "u1")
        for number, kind in enumerate(headers.kinds):
            try:
                self._kinds[number] = _npy.dtype_of_array(np.dtype(kind))
            except TypeError:  # such as an integer of three bytes: its error comes with the first array of it
                codes[codes == number] = scans.NPY_ODD
        self._odd: dict[int, tuple[DType, Geometry | None]] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._left_out: list[int] = []
        for i in np.flatnonzero(codes == scans.NPY_ODD).tolist():
            try:
                self._read(i, archive)
            except FormatError as error:
                options.tolerate(error, warnings)
                self._left_out.append(i)

    def _read(self, i: int, archive: Archive) -> None:
        """Read the header of a member."""
        begin, size = archive.begin(i), archive.size(i)
        stored, what = archive.is_stored(i), f"entry {quoted(archive.label(i))}"
        start = archive.beginning(i, _npy.FIRST)
        if not start.startswith(_npy.MAGIC):
            shown, magic = repr(start[: len(_npy.MAGIC)]), repr(_npy.MAGIC)
            what += " is not an array: its magic"
            raise LayoutError(what, field="magic", offset=begin, actual=shown, expected=magic)
        dtype, shape, strides, data = _npy.read_header(start, functools.partial(archive.beginning, i), what, begin)
        if data.end != size:
            expected = f"{data.end}, by its header"
            raise LayoutError(f"size of {what}", field="size", offset=begin, actual=size, expected=expected)
        nbytes = int(archive.entries.stored[i])
        geometry: Geometry | None = None if strides is None else Strided(strides)
        if not stored:
            geometry = Deflated(what, nbytes, size, archive.crc(i), data.begin, strides, self._limits)
        self._odd[i], self._shapes[i] = (dtype, geometry), shape
        self._columns.begin[i] = begin + data.begin if stored else begin
        self._columns.end[i] = begin + size if stored else begin + nbytes

    def table(self) -> ColumnTable:
        """Return the table of the arrays."""
        columns, fortran, kinds, odd = self._columns, self._fortran, self._kinds, self._odd
        if odd:
            columns = columns.with_shapes(self._shapes)
        if self._left_out:
            order = np.delete(np.arange(columns.count), self._left_out)
            columns, fortran = columns.take(order), fortran[order]
            odd = {new: odd[old] for new, old in enumerate(order.tolist()) if old in odd}

        def typed(row: int, shape: tuple[int, ...]) -> tuple[DType, Geometry | None]:
            dtype = kinds[columns.dtype[row]]
            if dtype is None:
                return odd[row]
            strides = _npy.fortran_strides(shape, dtype.bits // 8) if fortran[row] else None
            return dtype, None if strides is None else Strided(strides)

        return ColumnTable(columns, _npy.ArrayRules(0, self._source.size), utf8=True, typed=typed)


FORMAT = Format(
    name="npz",
    title="numpy .npz",
    suffixes=(".npz",),
    layouts=("npz",),
    parse=parse,
    sniff=is_npz,
    leads=b"P",
    checksums=frozenset({"npz"}),
)
