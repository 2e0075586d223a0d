"""Attacks on ZIP archives, for every format whose files are archives: two readers must not see two."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

from tests import zip_files

from .case import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


_SIGNATURES = {"end record": b"PK\5\6", "locator": b"PK\6\7"}


def cases(kind: str, entries: Callable[[], list[zip_files.Entry]]) -> Iterator[Case]:
    """Every attack on an archive of these entries, at least two."""

    def case(
        row: str,
        name: str,
        error: str,
        field: str | None = None,
        at: int | None = None,
        *,
        late: bool = False,
        odd: str | None = None,
        change: Callable[[list[zip_files.Entry]], Any] = lambda _: None,
        **options: Any,
    ) -> Case:
        found = entries()
        change(found)
        data = zip_files.archive(found, **options)
        if at is None and field in _SIGNATURES:
            at = data.rindex(_SIGNATURES[field])
        return Case(row, kind, name, data, error, field, at, late=late, odd=odd)

    # Where the second entry begins, and its record in the directory.
    sound = zip_files.archive(entries())
    second = sound.index(b"PK\3\4", 4)
    listed = sound.index(b"PK\1\2", sound.index(b"PK\1\2") + 4)

    def central(**fields: Any) -> Callable[[list[zip_files.Entry]], Any]:
        return lambda found: found[1].central.update(fields)

    def local(**fields: Any) -> Callable[[list[zip_files.Entry]], Any]:
        return lambda found: found[1].local.update(fields)

    for name, value in {"crc": 1, "stored": 1, "size": 1, "method": 8, "flags": 0x800, "signature": b"PK\3\5"}.items():
        yield case("Z1", f"local {name}", "LayoutError", "local header", second, change=local(**{name: value}))
    for name, value in {"crc": 1, "method": 8, "flags": 0x800, "size": 1}.items():
        yield case("Z1", f"central {name}", "LayoutError", "local header", second, change=central(**{name: value}))
    yield case("Z1", "central stored", "LayoutError", "local header", second, change=central(stored=1))

    def renamed(found: list[zip_files.Entry]) -> None:
        found[1].local["name_len"] = len(found[1].name) - 1

    yield case("Z1", "local name", "LayoutError", "local header", second, change=renamed)
    yield case(
        "Z2",
        "an entry twice",
        "LayoutError",
        "name",
        sound.index(b"PK\1\2"),
        change=lambda found: found.append(found[1]),
    )
    yield case(
        "Z2",
        "two entries of one place",
        "LayoutError",
        "local header",
        0,
        change=lambda found: found[1].central.update(offset=0),
    )

    def sized(found: list[zip_files.Entry], entry: int, size: int) -> None:
        found[entry].central.update(stored=size, size=size)
        found[entry].local.update(stored=size, size=size)

    longer = sound.index(b"PK\1\2") - 30 - len(entries()[0].name)
    yield case(
        "Z2", "an entry within another", "LayoutError", None, second, change=lambda found: sized(found, 0, longer)
    )
    yield case(
        "Z1",
        "two sizes of what is stored",
        "LayoutError",
        "size",
        second,
        change=lambda found: (found[1].central.update(size=1), found[1].local.update(size=1)),
    )
    yield case(
        "Z2",
        "bytes between",
        "LayoutError",
        "gap",
        second,
        odd="belong to no entry",
        change=lambda found: setattr(found[1], "gap", b"hidden!"),
    )
    yield case(
        "Z2",
        "twelve bytes behind an entry without a descriptor",
        "LayoutError",
        "gap",
        second,
        odd="belong to no entry",
        change=lambda found: setattr(found[1], "gap", b"hidden hidde"),
    )
    yield case(
        "Z2",
        "twelve bytes that are no descriptor",
        "LayoutError",
        "descriptor",
        second,
        late=True,
        change=lambda found: (
            setattr(found[1], "gap", b"hidden hidde"),
            found[0].local.update(flags=zip_files.LATER),
            found[0].central.update(flags=zip_files.LATER),
        ),
    )
    yield case("Z3", "no directory where it should be", "LayoutError", "end record", end={"begin": 0})
    yield case("Z3", "an entry past the directory", "LayoutError", "local header offset", change=central(offset=2**31))
    yield case(
        "Z3", "an entry past 4 GiB", "LayoutError", "central directory", listed, change=central(offset=zip_files.NARROW)
    )
    yield case("Z3", "a longer directory", "LayoutError", "end record", end={"length": 2**31})
    yield case("Z3", "more entries", "LayoutError", "end record", end={"here": 60000, "count": 60000})
    yield case("Z3", "fewer entries", "LayoutError", "central directory", listed, end={"here": 1, "count": 1})
    yield case("Z3", "bytes behind the directory", "LayoutError", "end record", before_end=b"hidden")
    end = len(sound) - 22
    data = b"PK\5\6" + bytes(15) + sound
    yield Case("Z3", kind, "an end record behind bytes", data, "LayoutError", "end record", end + 19)
    change = central(name_len=len(entries()[1].name) + 1)
    yield case("Z3", "a name a byte longer", "LayoutError", "central directory", listed, change=change)
    short = {"length": 46 * len(entries()) - 1, "begin": end - (46 * len(entries()) - 1)}
    yield case("Z3", "a directory of a byte too few for its entries", "LayoutError", "end record", end=short)
    yield case("Z4", "the record a byte behind", "LayoutError", "locator", wide=True, locator={"place": end + 1})
    yield case("Z3", "a longer name", "LayoutError", "central directory", listed, change=central(name_len=65535))
    yield case(
        "Z3", "a longer extra field", "LayoutError", "central directory", listed, change=central(extra_len=65535)
    )
    yield case("Z4", "the record elsewhere", "LayoutError", "locator", wide=True, locator={"place": 0})
    inner = zip_files.record(zip_files.WIDE_END, {"signature": b"PK\6\6", "record": 44})
    yield case(
        "Z4", "a record within the record", "LayoutError", "locator", wide=True, wide_end={"record": 100}, inside=inner
    )
    yield case("Z4", "the record past the file", "LayoutError", "locator", wide=True, locator={"place": 2**64 - 1})
    yield case("Z4", "a longer record", "LayoutError", "locator", wide=True, wide_end={"record": 45})
    yield case(
        "Z4",
        "another number of entries",
        "LayoutError",
        "central directory",
        listed,
        wide=True,
        wide_end={"here": 1, "count": 1},
    )
    yield case(
        "Z4",
        "2^64 - 1 entries",
        "LayoutError",
        "end record",
        wide=True,
        wide_end={"here": 2**64 - 1, "count": 2**64 - 1},
    )
    yield case(
        "Z4", "a directory of 2^64 - 1 bytes", "LayoutError", "end record", wide=True, wide_end={"length": 2**64 - 1}
    )
    yield case("Z4", "two numbers of entries", "LayoutError", "end record", wide=True, end={"here": 1, "count": 1})
    yield case(
        "Z4",
        "wide sizes without a field for them",
        "LayoutError",
        "central directory",
        listed,
        change=central(stored=zip_files.NARROW, size=zip_files.NARROW),
    )
    yield case(
        "Z4", "wide numbers without a record", "LayoutError", "end record", end={"length": zip_files.NARROW, "begin": 0}
    )
    yield case(
        "Z5",
        "encrypted",
        "UnsupportedError",
        "flags",
        listed,
        change=lambda found: (found[1].central.update(flags=1), found[1].local.update(flags=1)),
    )
    yield case("Z5", "the second disk", "UnsupportedError", "end record", end={"disk": 1})
    yield case("Z5", "a directory on the second disk", "UnsupportedError", "end record", end={"first_disk": 1})
    yield case("Z5", "of two parts", "UnsupportedError", "locator", wide=True, locator={"disks": 2})
    end = zip_files.record(zip_files.END, {"signature": b"PK\5\6", "comment_len": 2})
    yield case("Z6", "an end record in the comment", "LayoutError", "end record", comment=end + b"..")
    hidden = zip_files.archive(entries()[:1], end={"comment_len": 0}) + b".."
    yield case("Z6", "an archive in the comment, with bytes behind it", "LayoutError", "end record", comment=hidden)
    yield case("Z6", "a comment cut short", "TruncatedError", "end record", len(sound), end={"comment_len": 9})

    def called(name: bytes, **fields: Any) -> Callable[[list[zip_files.Entry]], Any]:
        def change(found: list[zip_files.Entry]) -> None:
            found[1].name = name
            found[1].local |= fields
            found[1].central |= fields

        return change

    own = entries()[1].name
    for name, other, fields, error in (
        ("the first name and a zero byte", entries()[0].name + b"\0x", {}, "LayoutError"),
        ("a zero byte", b"\0", {}, "LayoutError"),
        ("a name that is not marked as UTF-8", "ü".encode() + own, {"flags": 0}, "UnsupportedError"),
    ):
        moved = listed + len(other) - len(own)
        yield case("Z8", name, error, "name", moved, change=called(other, **fields))
    # A version, the CRC-32 of the name, and another name.
    second_name = struct.pack("<BI", 1, zlib.crc32(own)) + b"z"
    for name, content, before in (
        ("a second name", second_name, b""),
        ("a second name behind an empty field", second_name, bytes(4)),
        ("an empty second name", b"", b""),
    ):
        field = before + struct.pack("<2H", zip_files.NAME, len(content)) + content
        yield case(
            "Z8",
            name,
            "UnsupportedError",
            "name",
            listed,
            change=lambda found, field=field: setattr(found[1], "more", field),
        )

    def described(found: list[zip_files.Entry]) -> None:
        found[0].descriptor = 16

    right = case("Z7", "sound", "", change=described)
    yield right
    assert isinstance(right.data, bytes)
    at = right.data.index(b"PK\7\x08")
    lie = right.data[: at + 4] + struct.pack("<I", 7) + right.data[at + 8 :]
    yield Case("Z7", kind, "another CRC-32", lie, "LayoutError", "descriptor", at, late=True)
