"""ZIP archives whose entries are tensors: PyTorch checkpoints and .npz files.

``entries .. | central directory | [ZIP64 end record and its locator] | end record``. An entry is a header and its
bytes, and if a flag is set a data descriptor, which repeats CRC-32 and sizes. Two programs must not read one archive
differently: everything stated twice has to agree, and every byte has to belong to something:

- the end record and its comment reach to the end of the file, and the directory to the end record;
- the entries begin at byte 0, follow one another up to the directory, and neither overlap nor share a name;
- every reader finds the same name: without zero bytes, marked as UTF-8 unless it is ASCII, and the entry's only one;
- the header of each entry agrees with the directory.

``strict=False`` leaves out, with a warning that names it, an entry that is encrypted, has an ambiguous name, or has a
header that disagrees; the others are there.

`verify` checks descriptors and CRC-32s of entries. A checkpoint of PyTorch in which every CRC-32 is 0 has none
(``torch.utils.serialization.config.save.compute_crc32 = False``): nothing is compared, and `verify` says so.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from weightmap._messages import quoted
from weightmap.core.arguments import INFLATION, Options
from weightmap.core.bytes import Range
from weightmap.core.bytes.geometry import inflate
from weightmap.core.bytes.source import CHUNK, Source
from weightmap.core.faults import cut_off, shrank
from weightmap.core.formats import EMPTY_ARCHIVE
from weightmap.core.formats._base import trailing
from weightmap.core.native import access, checksums, scans
from weightmap.core.table import StringTable
from weightmap.errors import ChecksumError, FormatError, LayoutError, TruncatedError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.formats._verification import Sum, Verification

# Errors for faults in archives.

_CENTRAL = b"PK\1\2"
# Faults of a single entry, which leave the others readable.
_OF_ONE_ENTRY = frozenset({"ZIP_ENCRYPTED", "ZIP_HEADER", "ZIP_NAME", "ZIP_RANGE"})
# Refused entries: encrypted ones (0), and by WM_ZIP_ constants, names that readers may interpret differently.
_ANEW = "write the archive anew, as numpy.savez, torch.save and Python's zipfile do"
_REFUSED: dict[int, tuple[type[FormatError], str, str]] = {
    0: (UnsupportedError, "flags", "entry {} is encrypted"),
    1: (LayoutError, "name", "the name of entry {} contains a zero byte, where other readers end it"),
    2: (UnsupportedError, "name", f"the name of entry {{}} is neither ASCII nor marked as UTF-8 (flag 0x800): {_ANEW}"),
    3: (UnsupportedError, "name", f"entry {{}} has a second name, in an extra field (0x7075): {_ANEW}"),
}


def _in_directory(row: int, signature: bytes, at: int, actual: int, expected: int) -> LayoutError:
    """Return the error for a damaged entry of the central directory."""
    field, entry = "central directory", f"entry {row} of the central directory"
    if signature != _CENTRAL:
        return LayoutError(
            f"signature of {entry}", field=field, offset=at, actual=repr(signature), expected=repr(_CENTRAL)
        )
    if actual > expected > 0:
        what = f"bytes of name, extra field and comment of {entry}"
        return LayoutError(what, field=field, offset=at, actual=actual, expected=f"at most {expected}, where it ends")
    return LayoutError(f"{entry} is damaged", field=field, offset=at)


def error_of(fault: access.Fault, begin: int, source: Source) -> FormatError | OSError:
    """Return the error for a fault of a scan; the central directory begins at `begin`."""
    kind, row, at, actual, expected = fault.kind, fault.row, fault.at, fault.actual, fault.expected
    if kind == "ZIP_READ":
        return OSError(actual, f"entry {row} cannot be read", source.name) if actual else shrank(at)
    if kind == "ZIP_DIRECTORY":
        return _in_directory(row, source.pread(begin + at, len(_CENTRAL)), begin + at, actual, expected)
    if kind == "ZIP_HEADER":
        parts = "sizes or CRC-32" if actual else "signature, name, flags or method"
        what = f"the header of entry {row} and its entry in the central directory differ in {parts}"
        return LayoutError(what, field="local header", offset=at)
    if kind == "ZIP_RANGE":
        what = f"the end of entry {row}"
        return LayoutError(
            what, field="local header offset", actual=actual, expected=f"at most {expected}, where the directory begins"
        )
    if kind in ("ZIP_ENCRYPTED", "ZIP_NAME"):
        error, field, what = _REFUSED[actual]
        return error(what.format(row), field=field, offset=begin + at)
    return FormatError(f"the central directory is damaged ({kind})", offset=begin + at)


STORED, DEFLATED = 0, 8
_END, _WIDE_END, _LOCATOR = EMPTY_ARCHIVE, b"PK\6\6", b"PK\6\7"
# The marker for a number that does not fit 32 bits; and bytes of a header besides the name, with a header of numpy's.
_WIDE_FIELD, _MARGIN_NBYTES = 0xFFFFFFFF, 512
_BEGINNINGS = (b"PK\3\4", _END)
_END_RECORD = struct.Struct("<4s4H2IH")
_WIDE_RECORD = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_RECORD = struct.Struct("<4sIQI")
_MAX_COMMENT = 65535
# The last bytes of an archive in a store, read at once for its directory: at least, at most, and as a part of its size.
# `_MAX_PICKLE` bounds a pickle that is read with the headers.
_MIN_TAIL, _MAX_TAIL, _TAIL_PART = 64 << 10, 1 << 20, 1024
_MAX_PICKLE = 8 << 20
_WIDE = {2: 0xFFFF, 4: 0xFFFFFFFF}
# Sizes of a descriptor, with and without its signature and with sizes of 4 or 8 bytes.
_DESCRIPTORS = (12, 16, 20, 24)
_DESCRIPTOR = b"PK\7\x08"


def _headers(central: memoryview) -> Iterator[Range]:
    """Yield the approximate ranges of the entries' headers and first bytes, from an unchecked directory.

    The pickle's range is whole, because it describes the other entries.
    """
    at = 0
    while at + scans.MIN_ZIP_ENTRY <= len(central):
        stored, _, name, extra, comment = struct.unpack_from("<2I3H", central, at + 20)
        (offset,) = struct.unpack_from("<I", central, at + 42)
        first = at + scans.MIN_ZIP_ENTRY
        inside = stored if bytes(central[first : first + name][-4:]) == b".pkl" and stored <= _MAX_PICKLE else 0
        at += scans.MIN_ZIP_ENTRY + name + extra + comment
        if offset == _WIDE_FIELD:  # the last number in the field of 64-bit numbers, which comes first here
            start = at - comment - extra
            stop = start + 4 + int.from_bytes(central[start + 2 : start + 4], "little")  # slices: it may not be there
            offset = int.from_bytes(central[stop - 8 : stop], "little")
        yield Range(offset, offset + name + _MARGIN_NBYTES + inside)


def _sound_entries(
    source: Source, begin: int, central: NDArray[np.uint8], count: int
) -> tuple[list[memoryview], dict[str, FormatError]]:
    """Scan the entries of a central directory one by one; return the sound ones, and the errors of the others."""
    fd, data = source.c_input
    sound, refused, at = list[memoryview](), dict[str, FormatError](), 0
    for row in range(count):
        entry = memoryview(central)[at : at + scans.MIN_ZIP_ENTRY]
        name, extra, comment = struct.unpack_from("<3H", entry, 28) if len(entry) == scans.MIN_ZIP_ENTRY else (0, 0, 0)
        end = at + scans.MIN_ZIP_ENTRY + name + extra + comment
        entry = memoryview(central)[at:end]
        fault = scans.zip_scan(fd, data, begin, np.frombuffer(entry, np.uint8), 1)
        if isinstance(fault, access.Fault):
            fault = access.Fault(fault.code, row, fault.at, fault.actual, fault.expected)
            error = error_of(fault, begin + at, source) if fault.kind in _OF_ONE_ENTRY else None
            if not isinstance(error, FormatError):
                raise error_of(fault, begin + at, source)  # of no variable: its traceback would refer to itself
            refused[_label(entry)] = error
        else:
            sound.append(entry)
        at = end
    if at != len(central):
        raise _in_directory(count, bytes(central[at : at + len(_CENTRAL)]), begin + at, 0, 0)
    return sound, refused


def _label(entry: memoryview) -> str:
    """Return the name of an entry of a central directory for messages."""
    end = scans.MIN_ZIP_ENTRY + int.from_bytes(entry[28:30], "little")
    return bytes(entry[scans.MIN_ZIP_ENTRY : end]).decode(errors="replace")


def _overreaching(entries: scans.ZipEntries) -> frozenset[int]:
    """Return the entries whose stated size reaches into the next entry."""
    order = np.argsort(entries.offset)
    reach = (entries.data + entries.stored)[order[:-1]] > entries.offset[order[1:]]
    return frozenset(order[:-1][reach].tolist())


def _lowered(names: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return names with ASCII's capitals in lower case; without capitals, the names themselves."""
    text = names.tobytes()
    small = text.lower()
    return names if small == text else np.frombuffer(small, np.uint8)


class Archive:
    """The entries of an archive.

    Attributes
    ----------
    entries : ZipEntries
    names : StringTable
        The entries' names; in lower case if capitals do not count.
    refused : dict of str to FormatError
        The entries that ``strict=False`` left out, by name.
    summed : bool
        Whether the archive has CRC-32s.
    """

    __slots__ = ("_central", "_options", "_source", "_torch", "entries", "names", "refused", "summed")

    def __init__(
        self, source: Source, head: bytes, options: Options, warnings: list[str], *, torch: bool = False
    ) -> None:
        """Read the central directory, and check everything that the archive states twice.

        With `torch`, names that differ only in ASCII's capitals are equal, and CRC-32s that are all 0 do not count.
        Without it, the headers of arrays are read too.
        """
        if not _BEGINNINGS[0].startswith(head[:4]) and not _BEGINNINGS[1].startswith(head[:4]):
            expected = " or ".join(map(repr, _BEGINNINGS))
            raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=expected)
        tail = min(max(source.size // _TAIL_PART, _MIN_TAIL), _MAX_TAIL)
        source.expect([Range(max(source.size - tail, 0), source.size)])
        begin, size, count, end = _find_directory(source, options, warnings)
        limits = options.limits
        limits.check("max_header_bytes", size, "size of the central directory", offset=end)
        central = scans.transient(size, np.uint8)
        source.read_into(begin, central)
        source.expect(_headers(memoryview(central)))
        fd, data = source.c_input
        scanned = scans.zip_scan(fd, data, begin, central, count, arrays=not torch)
        self._central = (begin, size, checksums.crc32(central))
        self.refused: dict[str, FormatError] = {}
        if not options.strict and (isinstance(scanned, access.Fault) or _overreaching(scanned)):
            sound, self.refused = _sound_entries(source, begin, central, count)
            scanned = scans.zip_scan(fd, data, begin, b"".join(sound), len(sound), arrays=not torch)
            if not isinstance(scanned, access.Fault) and (reaching := _overreaching(scanned)):
                self.refused |= {_label(sound[row]): LayoutError("it reaches into another") for row in reaching}
                sound = [entry for row, entry in enumerate(sound) if row not in reaching]
                scanned = scans.zip_scan(fd, data, begin, b"".join(sound), len(sound), arrays=not torch)
            warnings.extend(f"entry {quoted(name)} is left out: {error}" for name, error in self.refused.items())
        if isinstance(scanned, access.Fault):
            raise error_of(scanned, begin, source)
        self._source, self._options = source, options
        self.entries = scanned
        del central  # as large as all that is kept of it
        self._torch, self.summed = torch, not torch or bool(scanned.crc.any())
        names = _lowered(scanned.names) if torch else scanned.names
        self.names = StringTable(names, scanned.bounds, 0, "entry name")
        repeated, duplicate, original = self.names.duplicates()
        if repeated:
            first, second = self.label(original), self.label(duplicate)
            what = f"entries {original} and {duplicate} are both called {quoted(second)}"
            if first != second:
                what = f"the names of entries {quoted(first)} and {quoted(second)} differ only in capitals"
            raise LayoutError(what, field="name", offset=int(scanned.offset[duplicate]))
        self._check_order(begin, options, warnings)

    def _check_order(self, end: int, options: Options, warnings: list[str]) -> None:
        """Refuse entries that overlap, and bytes outside all entries."""
        fault = self.entries.check_order(end)
        if fault is None or (self.refused and fault.kind != "ZIP_OVERLAP"):  # refused entries lie in gaps
            return
        if fault.kind == "ZIP_OVERLAP":
            what = f"entry {quoted(self.label(fault.row))}"  # the scan has refused one that reaches into the directory
            expected = f"at least {fault.expected}, where the entry before it ends"
            raise LayoutError(f"{what} begins within an entry", offset=fault.at, actual=fault.actual, expected=expected)
        what, at = "bytes of the archive belong to no entry: they begin", fault.at
        expected = f"the next entry there, not {fault.actual} bytes later"
        options.tolerate(LayoutError(what, field="gap", offset=at, actual=at, expected=expected), warnings)

    def __len__(self) -> int:
        return len(self.entries)

    def label(self, i: int) -> str:
        """Return the name of an entry for messages."""
        first, last = self.entries.bounds[i : i + 2].tolist()
        return bytes(self.entries.names[first:last]).decode(errors="replace")

    def size(self, i: int) -> int:
        """Return the inflated bytes of an entry."""
        return int(self.entries.size[i])

    def begin(self, i: int) -> int:
        """Return the offset of an entry's bytes in the file."""
        return int(self.entries.data[i])

    def is_stored(self, i: int) -> bool:
        """Whether the bytes of an entry lie in the file unchanged. Raises `UnsupportedError` for odd methods."""
        entries = self.entries
        method, size, stored = int(entries.method[i]), int(entries.size[i]), int(entries.stored[i])
        if (method == DEFLATED and size <= INFLATION * stored) or (method == STORED and size == stored):
            return method == STORED
        name, at = quoted(self.label(i)), int(entries.offset[i])
        if method not in (STORED, DEFLATED):
            what, expected = f"method of entry {name}", "0, stored, or 8, deflated"
            raise UnsupportedError(what, field="method", offset=at, actual=method, expected=expected)
        if method == STORED:
            what = f"size of entry {name}, which is stored as it is,"
            raise LayoutError(what, field="size", offset=at, actual=size, expected=stored)
        expected = f"at most {INFLATION * stored}, what deflated bytes can hold"
        raise LayoutError(f"inflated size of entry {name}", field="size", offset=at, actual=size, expected=expected)

    def read(self, i: int) -> bytes:
        """Return the bytes of an entry, checked by their CRC-32. The caller bounds its size."""
        if not self.is_stored(i):
            return b"".join(self._inflated(i))
        data = self._source.pread(self.begin(i), self.size(i))
        self._check_crc(i, checksums.crc32(data))
        return data

    def crc(self, i: int) -> int:
        """Return the CRC-32 of an entry."""
        return int(self.entries.crc[i])

    def check(self, i: int) -> None:
        """Check the bytes of a stored entry by their CRC-32."""
        crc, begin, end = 0, self.begin(i), self.begin(i) + self.size(i)
        self._source.expect([Range(begin, end)])
        for at in range(begin, end, CHUNK):
            crc = checksums.crc32(self._source.pread(at, min(CHUNK, end - at)), crc)
        self._check_crc(i, crc)

    def beginning(self, i: int, count: int) -> bytes:
        """Return the first `count` bytes of an entry, fewer if it is shorter, unchecked."""
        count = min(count, self.size(i))
        if self.is_stored(i):
            return self._source.pread(self.begin(i), count)
        return next(self._inflated(i, max(count, 1)), b"")

    def _inflated(self, i: int, window: int = 1 << 18) -> Iterator[bytes]:
        """Yield the inflated bytes of a deflated entry; check them after the last."""
        entries = self.entries
        crc, name = int(entries.crc[i]), f"entry {quoted(self.label(i))}"
        return inflate(self._source, self.begin(i), int(entries.stored[i]), self.size(i), crc, name, window)

    def _check_crc(self, i: int, crc: int) -> None:
        expected = int(self.entries.crc[i])
        if self.summed and crc != expected:
            what = f"CRC-32 of entry {quoted(self.label(i))}"
            raise ChecksumError(
                what, field="crc", offset=self.begin(i), actual=f"{crc:#010x}", expected=f"{expected:#010x}"
            )

    @property
    def verifier(self) -> Callable[[Verification], None]:
        """The function that verifies the archive; it keeps no archive, but reads the directory again."""
        source, options, central, torch = self._source, self._options, self._central, self._torch

        def verify(run: Verification) -> None:
            again = Archive(source, source.pread(0, len(_END)), options, [], torch=torch)
            again._central = central
            again._verify(run)

        return verify

    @property
    def sums(self) -> Callable[[Source], list[Sum]]:
        """The function that lists the CRC-32s of stored entries, for `Content.sums`; it keeps no archive either.

        Deflated entries are checked whenever they are inflated.
        """
        source, options, central = self._source, self._options, self._central

        def sums(_: Source) -> list[Sum]:
            from weightmap.core.formats._verification import Sum  # noqa: PLC0415 - opening a file needs none of it

            again = Archive(source, source.pread(0, len(_END)), options, [])
            if again._central != central:
                raise LayoutError("the central directory changed after the file was opened", offset=central[0])
            entries = again.entries
            chunks = []
            for i in np.flatnonzero((entries.method == STORED) & (entries.stored > 0)).tolist():
                begin, what = again.begin(i), f"CRC-32 of entry {quoted(again.label(i))}"
                chunks.append(Sum(begin, int(entries.stored[i]), int(entries.crc[i]), what, "crc", begin))
            return chunks

        return sums

    def _verify(self, run: Verification) -> None:
        """Check the CRC-32 of every entry, data descriptors, and that the directory has not changed since opening."""
        entries = self.entries
        order = np.argsort(entries.offset, kind="stable").tolist()
        begins = [*(int(entries.offset[i]) for i in order[1:]), self._central[0]][: len(order)]
        for i, after in zip(order, begins, strict=True):
            begin, stored = self.begin(i), int(entries.stored[i])
            run.until(begin)
            crc, _ = run.crc32(begin, stored)
            try:
                plain = self.is_stored(i)
            except FormatError as error:
                self._options.tolerate(error, run.warnings)
                continue
            if not plain:
                for _ in self._inflated(i):  # checks the CRC-32 itself
                    pass
            else:
                self._check_crc(i, crc)
            if entries.later[i] and after - begin - stored in _DESCRIPTORS:
                self._check_descriptor(i, run.read(begin + stored, after - begin - stored))
        run.checked("CRC-32 of every entry" if self.summed else "entries")
        begin, size, crc = self._central
        run.until(begin)
        run.unchanged(run.read(begin, size), crc, "the central directory")
        run.checked("central directory")
        run.finish()

    def _check_descriptor(self, i: int, data: bytes) -> None:
        entries = self.entries
        fields = data.removeprefix(_DESCRIPTOR) if len(data) in (16, 24) else data
        said = struct.unpack("<3I" if len(fields) == 12 else "<I2Q", fields) if len(fields) in (12, 20) else ()
        if said != (int(entries.crc[i]), int(entries.stored[i]), self.size(i)):
            what = f"the data descriptor of entry {quoted(self.label(i))} contradicts the central directory"
            raise LayoutError(what, field="descriptor", offset=self.begin(i) + int(entries.stored[i]))


def _find_directory(source: Source, options: Options, warnings: list[str]) -> tuple[int, int, int, int]:
    """Return offset, bytes and entries of the central directory, and the offset of the end record."""
    size = source.size
    at = size - _END_RECORD.size
    if at < 0:
        raise cut_off("its end record", size, _END_RECORD.size, field="end record", whole="the archive")
    tail = source.pread(at, _END_RECORD.size)
    if tail[:4] != _END or tail[-2:] != b"\0\0":
        at, tail = _search(source, options, warnings)
    _, disk, first_disk, here, count, length, begin, _ = _END_RECORD.unpack(tail)
    end = at
    wide = source.pread(at - _LOCATOR_RECORD.size, _LOCATOR_RECORD.size) if at >= _LOCATOR_RECORD.size else b""
    if wide[:4] == _LOCATOR:
        narrow = (disk, first_disk, here, count, length, begin)
        end, widened = _find_wide(source, at - _LOCATOR_RECORD.size, wide)
        for narrow_one, wide_one, marker in zip(narrow, widened, (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2, strict=True):
            if narrow_one not in (wide_one, marker):
                what = "the end record contradicts the ZIP64 end record: its number"
                raise LayoutError(what, field="end record", offset=at, actual=narrow_one, expected=wide_one)
        disk, first_disk, here, count, length, begin = widened
    if disk or first_disk or here != count:
        raise UnsupportedError(
            "this archive is one of several parts: its disk", field="end record", offset=at, actual=disk, expected=0
        )
    if begin + length != end:
        what = "the central directory does not end where the end record begins: its end"
        raise LayoutError(what, field="end record", offset=at, actual=begin + length, expected=end)
    if count * scans.MIN_ZIP_ENTRY > length:
        expected = f"at most {length // scans.MIN_ZIP_ENTRY}, by the size of the central directory"
        raise LayoutError("number of entries", field="end record", offset=at, actual=count, expected=expected)
    return begin, length, count, at


def _search(source: Source, options: Options, warnings: list[str]) -> tuple[int, bytes]:
    """Return place and bytes of the end record of an archive that ends with a comment or trailing bytes."""
    first = max(0, source.size - _END_RECORD.size - _MAX_COMMENT)
    tail = source.pread(first, source.size - first)
    ends, at = {}, tail.find(_END)
    while 0 <= at <= len(tail) - _END_RECORD.size:
        ends[at] = at + _END_RECORD.size + int.from_bytes(tail[at + 20 : at + 22], "little")
        at = tail.find(_END, at + 1)
    whole = [at for at, end in ends.items() if end == len(tail)]
    candidates = whole[:1] or [at for at, end in ends.items() if end < len(tail)][-1:]
    if not candidates:
        what = "the archive has no end record (was the download complete?): its end"
        actual = repr(tail[-len(_END) :])
        raise TruncatedError(what, field="end record", offset=source.size, actual=actual, expected="an end record")
    last = max(ends)
    if last != candidates[0]:  # most readers take the last one, whatever comment length it states
        raise LayoutError("the archive has two end records: the second begins", field="end record", offset=first + last)
    if not whole:
        trailing(source, first + ends[candidates[0]], options, warnings)
    return first + candidates[0], tail[candidates[0] : candidates[0] + _END_RECORD.size]


def last_begin(source: Source) -> int:
    """Return the offset of the last of several archives with ZIP64 records in a file; 0 for a single one."""
    at = source.size - _END_RECORD.size - _LOCATOR_RECORD.size - _WIDE_RECORD.size
    record = source.pread(at, _WIDE_RECORD.size) if at > 0 else b""
    if record[:4] != _WIDE_END:
        return 0
    length, directory = _WIDE_RECORD.unpack(record)[-2:]
    begin: int = at - length - directory
    return begin if begin > 0 and source.pread(begin, 4) == _BEGINNINGS[0] else 0


def _find_wide(source: Source, at: int, locator: bytes) -> tuple[int, tuple[int, int, int, int, int, int]]:
    """Return the place of the ZIP64 end record, whose locator is at `at`, and the six numbers that it widens."""
    _, disk, begin, disks = _LOCATOR_RECORD.unpack(locator)
    if disk or disks > 1:
        raise UnsupportedError(
            "this archive is one of several parts: its disk", field="locator", offset=at, actual=disk, expected=0
        )
    if begin > at - _WIDE_RECORD.size:
        expected = f"at most {at - _WIDE_RECORD.size}"
        raise LayoutError("place of the ZIP64 end record", field="locator", offset=at, actual=begin, expected=expected)
    signature, size, _, _, *numbers = _WIDE_RECORD.unpack(source.pread(begin, _WIDE_RECORD.size))
    # It must lie directly before its locator and have its minimal size: readers differ in where they look for it.
    if signature != _WIDE_END or begin + _WIDE_RECORD.size != at or size != _WIDE_RECORD.size - 12:
        raise LayoutError("no ZIP64 end record is where its locator says", field="locator", offset=at, actual=begin)
    first, second, here, count, length, directory = numbers
    return begin, (first, second, here, count, length, directory)
