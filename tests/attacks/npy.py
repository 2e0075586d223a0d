"""Attacks on .npy files."""

import struct

from tests.builders import npy

from .case import U32, U63, U64, Case

KIND = "npy"
ROWS = {
    "Y1": "Versions that there are none of: UnsupportedError.",
    "Y2": "A header that is not a dictionary of descr, fortran_order and shape, or more than a literal: FormatError.",
    "Y3": "Arrays of Python objects, and arrays of arrays: UnsupportedError.",
    "Y4": "A header longer than the file: TruncatedError; than 1 MiB: LimitError.",
}
DATA = struct.pack("<2f", 1, 2)
SOUND = {KIND: npy.build("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", DATA)}


def header(descr="'<f4'", fortran="False", shape="(2,)"):
    return npy.build(f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}", DATA)


def cases():
    for version in ((0, 0), (1, 1), (4, 0), (255, 255)):
        data = SOUND[KIND][:6] + bytes(version) + SOUND[KIND][8:]
        yield Case("Y1", KIND, f"version {version}", data, "UnsupportedError", "version", 6)
    for name, text in {
        "empty": "",
        "a list": "[]",
        "a number": "1",
        "no keys": "{}",
        "two keys": "{'descr': '<f4', 'shape': (2,)}",
        "one key more": "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}",
        "a key twice": "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (1,)}",
        "a key that is a number": "{1: 2}",
        "no colon": "{'descr' '<f4'}",
        "no comma": "{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}",
        "a call": "{'descr': '<f4', 'fortran_order': False, 'shape': tuple([2])}",
        "a sum": "{'descr': '<f4', 'fortran_order': False, 'shape': (1+1,)}",
        "something behind": "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} 1",
        "deep lists": "{'descr': " + "[" * 30_000,
        "deep tuples": "{'descr': " + "(" * 30_000 + ")" * 30_000 + "}",
        "a text without an end": "{'descr': '<f4",
        "an escape that there is none of": "{'descr': '\\q4', 'fortran_order': False, 'shape': (2,)}",
        "a comma alone": "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
        "two commas": "{'descr': '<f4', 'fortran_order': False, 'shape': (2,,)}",
    }.items():
        yield Case("Y2", KIND, name, npy.build(text, DATA), "FormatError", "header", 10)
    for shape in ("2", "[2]", "(-2,)", "(True,)", "('2',)", "(2.0,)", "None", f"({'9' * 20},)"):
        yield Case("Y2", KIND, f"shape {shape}", header(shape=shape), "FormatError", "header", 10)
    twice = "[('a', '<f4'), ('a', '<f4')]"
    for descr in ("'x'", "'<q9'", "2", "[('a',)]", "[('a', 'x')]", "[1]", "'<f4,<f4('", "'f4:'", twice):
        yield Case("Y2", KIND, f"descr {descr}", header(descr), "FormatError", "header", 10)
    for fortran in ("0", "None", "'False'"):
        yield Case("Y2", KIND, f"fortran_order {fortran}", header(fortran=fortran), "FormatError", "header", 10)
    for descr in ("'|O'", "'O'", "[('a', '|O')]", "[('a', [('b', '|O')])]"):
        yield Case("Y3", KIND, f"descr {descr}", header(descr), "UnsupportedError", "descr", 10)
    yield Case("Y3", KIND, "texts of no letters", header("'|S0'"), "UnsupportedError", "descr", 10)
    yield Case("Y3", KIND, "an array of arrays", header("('<f4', (2,))"), "UnsupportedError", "descr", 10)
    long = npy.build("{" + " " * 2**20 + "}", version=(2, 0))
    yield Case("Y4", KIND, "a header of 1 MiB and more", long, "LimitError", "header", 8)
    for length in (200, 65535):
        data = npy.build("{}", length=length)
        yield Case("Y4", KIND, f"a header of {length} bytes", data, "TruncatedError", "header", 64)
    yield Case("Y4", KIND, "a header of 4 GiB", npy.build("{}", length=U32, version=(2, 0)), "LimitError", "header", 8)
    for count in (3, 2**32, 2**60):
        data = header(shape=f"({count},)")
        yield Case("C4", KIND, f"{count} elements", data, "TruncatedError", "data_offset", len(data))
    for count in (U63, 2**62):
        yield Case("C6", KIND, f"{count} elements", header(shape=f"({count},)"), "LayoutError", "shape", 10)
    data = header(shape=f"(0, {2**32}, {2**32})")
    yield Case("C6", KIND, "empty, with 2^64 elements", data, "LayoutError", "shape", 10)
    yield Case("C8", KIND, "65 dimensions", header(shape="(" + "1," * 65 + ")"), "LimitError", "shape", 10)
    yield Case("C6", KIND, "2^64 - 1", header(shape=f"({U64},)"), "FormatError", "header", 10)
