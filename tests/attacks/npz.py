"""Attacks on .npz files: on their archives, and on their members."""

from tests import zip_files
from tests.builders import normal, npy, npz

from . import npy as members
from . import zipped
from .case import BAD_UTF8, Case

KIND = "npz"
A, B = normal((2,)), normal((3,), 1)
SOUND = {KIND: npz.build({"a": A, "b": B})}
ROWS = zipped.ROWS | {
    "Z9": "Two entries that numpy has by one name, `a.npy` and `a.npy.npy`: LayoutError.",
    "Y5": "A deflated member that inflates to more or less than it says, or is not deflated: an error when it is used.",
    "Y6": "A member that is no array: LayoutError, left out if not strict. Bytes behind an array: LayoutError.",
}


def cases():
    yield from zipped.cases(KIND, lambda: [npz.entry("a", A), npz.entry("b", B)])
    entry = zip_files.Entry
    for name, raw in (("no entries", zip_files.archive([])), ("a comment alone", zip_files.archive([], comment=b"hi"))):
        yield Case("C20", KIND, name, raw)
    raw = zip_files.archive([])[:21]
    yield Case("C1", KIND, "21 bytes", raw, "TruncatedError", "end record", 21, says="at least 22 bytes")
    whole = npy.build(npy.header_of(A), A.data)
    for name, data in {"text": b"hello", "empty": b"", "a pickle": b"\x80\x02}."}.items():
        raw = zip_files.archive([npz.entry("a", A), entry(b"b.npy", data)])
        yield Case("Y6", KIND, name, raw, "LayoutError", "magic", raw.index(b"b.npy") + 5, odd="is not an array")
    for name, data in {"one byte more": whole + b"\0", "one byte less": whole[:-1]}.items():
        raw = zip_files.archive([entry(b"a.npy", data)])
        yield Case("Y6", KIND, name, raw, "LayoutError", "size", 35, odd="size of entry 'a.npy'")
    data = zip_files.archive([npz.entry("a", A), entry(b"a", whole)])
    yield Case("C10", KIND, "a and a.npy", data, "LayoutError", "name")
    for name, order in {"a.npy.npy behind a.npy": (0, 1), "a.npy.npy before a.npy": (1, 0)}.items():
        both = [npz.entry("a", A), npz.entry("a.npy", B)]
        raw = zip_files.archive([both[i] for i in order])
        yield Case("Z9", KIND, name, raw, "LayoutError", "name", raw.index(b"PK\3\4", 4 * order[1]))
    for case in members.cases():
        if case.row == "Y3" and isinstance(case.data, bytes):
            data = zip_files.archive([entry(b"a.npy", case.data)])
            yield Case("Y3", KIND, case.name, data, "UnsupportedError", "descr", 45, odd="entry 'a.npy'")
    for name, raw_name in BAD_UTF8.items():
        yield Case("C11", KIND, name, zip_files.archive([entry(raw_name + b".npy", whole)]), "FormatError", "name")
    for method in (1, 12, 99, 65535):
        raw = zip_files.archive([entry(b"a.npy", whole, method=method, packed=whole)])
        yield Case("Z5", KIND, f"method {method}", raw, "UnsupportedError", "method", 0, odd="method of entry 'a.npy'")
    wrong = {"crc": 1}
    raw = zip_files.archive([entry(b"a.npy", whole, local=wrong, central=wrong)])
    yield Case("C16", KIND, "another CRC-32", raw, "ChecksumError", "crc", 35, late=True)
    deflated = entry(b"a.npy", whole, method=8)
    raw = zip_files.archive([deflated])
    data = zip_files.archive([entry(b"a.npy", whole, method=8, local=wrong, central=wrong)])
    yield Case("Y5", KIND, "another CRC-32", data, "ChecksumError", "crc", 35, late=True)
    data = zip_files.archive([entry(b"a.npy", whole, method=8, packed=b"\xff" * len(whole))])
    yield Case("Y5", KIND, "not deflated", data, "FormatError", "method", 35)
    said = {"size": 10**9}
    raw = zip_files.archive([entry(b"a.npy", whole, method=8, local=said, central=said)])
    yield Case("Y5", KIND, "more than deflated bytes can hold", raw, "LayoutError", "size", 0, odd="inflated size")
    for size, wrong in ((1032 * 9, ("FormatError", "method", 35)), (1032 * 9 + 1, ("LayoutError", "size", 0))):
        said = {"size": size}  # a deflated byte stands for 1,032 at most
        raw = zip_files.archive([entry(b"a.npy", b"", method=8, packed=bytes(9), central=said, local=said)])
        odd = "inflated size" if wrong[1] == "size" else None
        yield Case("Y5", KIND, f"9 deflated bytes for {size}", raw, *wrong, odd=odd)
    raw = zip_files.archive([entry(b"a.npy", b"", method=8)])
    yield Case("Y6", KIND, "an empty deflated member", raw, "LayoutError", "magic", 35, odd="is not an array")
    bomb = npy.build(npy.TEXT % ("'<f4'", False, "(2,)"), A.data + bytes(2**20))
    said = {"size": len(whole)}
    raw = zip_files.archive(
        [entry(b"a.npy", whole, method=8, packed=entry(b"", bomb, method=8).stored, local=said, central=said)]
    )
    yield Case("Y5", KIND, "a bomb", raw, "FormatError", "size", 35, late=True)
