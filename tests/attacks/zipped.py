"""Attacks on ZIP archives, for every format whose files are archives: two readers must not see different archives."""

import struct
import zlib

from tests import zip_files
from tests.zip_files import NARROW

from .case import Case

ROWS = {
    "Z1": "Headers of an entry that differ from the directory in name, flags, method, sizes or CRC-32: LayoutError.",
    "Z2": "Entries that share bytes or a name: LayoutError. Bytes of no entry: LayoutError, a warning if not strict.",
    "Z3": "Entries past the directory, a directory that is not where the end record says or goes on: LayoutError.",
    "Z4": "ZIP64 records that are missing, elsewhere, or say other numbers than the others: LayoutError.",
    "Z5": "Several parts, encrypted entries, methods other than stored and deflated: UnsupportedError.",
    "Z6": "Two end records, a comment that ends elsewhere than the file: LayoutError or TruncatedError.",
    "Z8": "A name with a zero byte: LayoutError. Not ASCII without its flag, or a second one: UnsupportedError.",
    "Z7": "A data descriptor that says something else: LayoutError of verify.",
}

SIGNATURES = {"end record": b"PK\5\6", "locator": b"PK\6\7"}
GAP = {"odd": "belong to no entry"}
LATER = {"flags": zip_files.LATER}
NO_TEXT = "a name that is not marked as UTF-8"


def _both(entry, **fields):
    """Set this in an entry's header and in the directory."""
    entry.local |= fields
    entry.central |= fields


def _called(entry, name, **fields):
    entry.name = name
    _both(entry, **fields)


def _later(found):
    found[1].gap = b"hidden hidde"
    _both(found[0], **LATER)


def _set(**attributes):
    """Set attributes of the second entry."""
    return lambda found: [setattr(found[1], name, value) for name, value in attributes.items()]


def central(**fields):
    """The directory's record of the second entry."""
    return lambda found: found[1].central.update(fields)


def local(**fields):
    """The header of the second entry."""
    return lambda found: found[1].local.update(fields)


# The result of strict=False for an entry of two sizes: numpy's is one array of several.
SIZE = {"npz": {"odd": "which is stored as it is"}, "torch": {}}


def cases(kind, entries):
    """All attacks on an archive of these two entries."""
    sound = zip_files.archive(entries())
    first, own = (entry.name for entry in entries())
    # Where the second entry begins, the directory, the record of the second entry, and the end record.
    second = sound.index(b"PK\3\4", 4)
    directory = sound.index(b"PK\1\2")
    listed = sound.index(b"PK\1\2", directory + 4)
    end = len(sound) - 22
    longer = directory - 30 - len(first)
    short = 46 * 2 - 1
    twin = zip_files.record(zip_files.END, {"signature": b"PK\5\6", "comment_len": 2})
    inner = zip_files.record(zip_files.WIDE_END, {"signature": b"PK\6\6", "record": 44})
    hidden = zip_files.archive(entries()[:1], end={"comment_len": 0}) + b".."
    # A version, the CRC-32 of the name, and another name.
    other = struct.pack("<BI", 1, zlib.crc32(own)) + b"z"
    named = struct.pack("<2H", zip_files.NAME, len(other)) + other
    empty = struct.pack("<2H", zip_files.NAME, 0)
    header, lists = "local header", "central directory"

    # Changes of the entries, by the changed field of the second one's header or record: a LayoutError there.
    fields = {"crc": 1, "stored": 1, "size": 1, "method": 8, "flags": 0x800, "signature": b"PK\3\5"}
    for place, change in (("local", local), ("central", central)):
        for name, value in fields.items():
            if (place, name) != ("central", "signature"):
                yield _case(kind, entries, "Z1", f"{place} {name}", header, second, change(**{name: value}))

    # Row, name, field, place, the change of the entries, and options.
    for row, name, field, at, change, *options in (
        ("Z1", "local name", header, second, local(name_len=len(own) - 1)),
        ("Z1", "two sizes of what is stored", "size", second, lambda found: _both(found[1], size=1), SIZE[kind]),
        ("Z2", "an entry twice", "name", directory, lambda found: found.append(found[1])),
        ("Z2", "two entries of one place", header, 0, central(offset=0)),
        ("Z2", "an entry within another", None, second, lambda found: _both(found[0], stored=longer, size=longer)),
        ("Z2", "bytes between", "gap", second, _set(gap=b"hidden!"), GAP),
        ("Z2", "twelve bytes behind an entry without a descriptor", "gap", second, _set(gap=b"hidden hidde"), GAP),
        ("Z2", "twelve bytes that are no descriptor", "descriptor", second, _later, {"late": True}),
        ("Z3", "an entry past the directory", "local header offset", None, central(offset=2**31)),
        ("Z3", "an entry past 4 GiB", lists, listed, central(offset=NARROW)),
        ("Z3", "a name a byte longer", lists, listed, central(name_len=len(own) + 1)),
        ("Z3", "a longer name", lists, listed, central(name_len=65535)),
        ("Z3", "a longer extra field", lists, listed, central(extra_len=65535)),
        ("Z4", "wide sizes without a field for them", lists, listed, central(stored=NARROW, size=NARROW)),
        ("Z8", "the first name and a zero byte", "name", listed + len(first) + 2 - len(own), _set(name=first + b"\0x")),
        ("Z8", "a zero byte", "name", listed + 1 - len(own), _set(name=b"\0")),
    ):
        yield _case(kind, entries, row, name, field, at, change, *options)

    # Row, name, field, changes of the records at the end, and the place if it is not the record's.
    for row, name, field, records, *at in (
        ("Z3", "no directory where it should be", "end record", {"end": {"begin": 0}}),
        ("Z3", "a longer directory", "end record", {"end": {"length": 2**31}}),
        ("Z3", "more entries", "end record", {"end": {"here": 60000, "count": 60000}}),
        ("Z3", "fewer entries", lists, {"end": {"here": 1, "count": 1}}, listed),
        ("Z3", "bytes behind the directory", "end record", {"before_end": b"hidden"}),
        (
            "Z3",
            "a directory of a byte too few for its entries",
            "end record",
            {"end": {"length": short, "begin": end - short}},
        ),
        ("Z4", "the record a byte behind", "locator", {"wide": True, "locator": {"place": end + 1}}),
        ("Z4", "the record elsewhere", "locator", {"wide": True, "locator": {"place": 0}}),
        ("Z4", "the record past the file", "locator", {"wide": True, "locator": {"place": 2**64 - 1}}),
        ("Z4", "a record within the record", "locator", {"wide": True, "wide_end": {"record": 100}, "inside": inner}),
        ("Z4", "a longer record", "locator", {"wide": True, "wide_end": {"record": 45}}),
        ("Z4", "another number of entries", lists, {"wide": True, "wide_end": {"here": 1, "count": 1}}, listed),
        ("Z4", "2^64 - 1 entries", "end record", {"wide": True, "wide_end": {"here": 2**64 - 1, "count": 2**64 - 1}}),
        ("Z4", "a directory of 2^64 - 1 bytes", "end record", {"wide": True, "wide_end": {"length": 2**64 - 1}}),
        ("Z4", "two numbers of entries", "end record", {"wide": True, "end": {"here": 1, "count": 1}}),
        ("Z4", "wide numbers without a record", "end record", {"end": {"length": NARROW, "begin": 0}}),
        ("Z6", "an end record in the comment", "end record", {"comment": twin + b".."}),
        ("Z6", "an archive in the comment, with bytes behind it", "end record", {"comment": hidden}),
    ):
        yield _case(kind, entries, row, name, field, *(at or (None,)), **records)

    data = b"PK\5\6" + bytes(15) + sound
    yield Case("Z3", kind, "an end record behind bytes", data, "LayoutError", "end record", end + 19)
    data = zip_files.archive(entries(), end={"comment_len": 9})
    yield Case("Z6", kind, "a comment cut short", data, "TruncatedError", "end record", len(sound))

    # Row, name, field, place, and changes of the entries and the records, all unsupported.
    marked = listed + len("ü".encode())
    for row, name, field, at, change, *records in (
        ("Z5", "encrypted", "flags", listed, lambda found: _both(found[1], flags=1)),
        ("Z5", "the second disk", "end record", None, None, {"end": {"disk": 1}}),
        ("Z5", "a directory on the second disk", "end record", None, None, {"end": {"first_disk": 1}}),
        ("Z5", "of two parts", "locator", None, None, {"wide": True, "locator": {"disks": 2}}),
        ("Z8", NO_TEXT, "name", marked, lambda found: _called(found[1], "ü".encode() + own, flags=0)),
        ("Z8", "a second name", "name", listed, _set(more=named)),
        ("Z8", "a second name behind an empty field", "name", listed, _set(more=bytes(4) + named)),
        ("Z8", "an empty second name", "name", listed, _set(more=empty)),
    ):
        yield _case(
            kind, entries, row, name, field, at, change, error="UnsupportedError", **(records[0] if records else {})
        )

    right = _case(kind, entries, "Z7", "sound", None, None, lambda found: setattr(found[0], "descriptor", 16), error="")
    yield right
    at = right.data.index(b"PK\7\x08")
    lie = right.data[: at + 4] + struct.pack("<I", 7) + right.data[at + 8 :]
    yield Case("Z7", kind, "another CRC-32", lie, "LayoutError", "descriptor", at, late=True)


def _case(kind, entries, row, name, field, at, change=None, told=None, *, error="LayoutError", **records):
    """An attack on an archive whose entries were changed, or whose records at the end say this."""
    found = entries()
    if change is not None:
        change(found)
    data = zip_files.archive(found, **records)
    if at is None and field in SIGNATURES:
        at = data.rindex(SIGNATURES[field])
    return Case(row, kind, name, data, error, field, at, **(told or {}))
