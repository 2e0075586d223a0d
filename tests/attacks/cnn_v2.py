"""Attacks on CNN v2, both versions: a sound file of three layers with one number changed."""

import struct

from tests.builders import cnn_v2 as cnn
from tests.builders import noise

from .case import U32, Case, put

SHAPES = ((3, 12, 4), (3, 12, 4), (1, 4, 2))  # kernel, in, out: 432, 432 and 8 weights
TOTAL = 872
# The rows of the threat tables about this format: a fault of a file, and the required outcome.
ROWS = {
    "N1": "CNN v2 of another version: UnsupportedError.",
    "N2": "More layers than the file has room for: TruncatedError, without memory for them.",
    "N3": "total_weights that is not the size of the file: TruncatedError or LayoutError. Odd: legal.",
    "N4": "mip_level above 3: a warning.",
    "N5": "A kernel or channels of 0: LayoutError. An even kernel, more than 8 outputs: a warning.",
    "N6": "weight_count that is not that of the shape, also modulo 2^32: LayoutError.",
    "N7": "weight_offset that is not the sum of the counts before: LayoutError.",
    "N8": "A layer at an odd half: legal, a view.",
}


def lie(layer=0, version=2, **changes):
    top = {"magic": b"CNN2", "version": version, "num_layers": 3, "total_weights": TOTAL, "mip_level": 0}
    rows, offset = [], 0
    for kernel, inputs, outputs in SHAPES:
        count = outputs * inputs * kernel**2
        rows.append(dict(zip(cnn.FIELDS, (kernel, inputs, outputs, offset, count), strict=True)))
        offset += count
    extra = changes.pop("extra", 0)
    for field, value in changes.items():
        (rows[layer] if field in cnn.FIELDS else top)[field] = value
    start = top["magic"] + struct.pack("<3I", top["version"], top["num_layers"], top["total_weights"])
    start += struct.pack("<I", top["mip_level"]) if version == 2 else b""
    data = start + b"".join(struct.pack("<5I", *row.values()) for row in rows) + bytes(2 * TOTAL)
    return data[:extra] if extra < 0 else data + bytes(extra)


def place(field, layer=0, version=2):
    """The place of a field in the file; for the size, the end of a sound file."""
    if field in cnn.FIELDS:
        return {1: 16, 2: 20}[version] + 20 * layer + 4 * cnn.FIELDS.index(field)
    return 4 * ("magic", "version", "num_layers", "total_weights", "mip_level").index(field)


SOUND = {f"cnn_v2-v{version}": lie(version=version) for version in (1, 2)}
# Row and change; the error; the field that it names.
LIES = [
    ("C3", "magic", {"magic": b"CNN3"}, "FormatError", "magic"),
    ("C3", "magic swapped", {"magic": b"2NNC"}, "FormatError", "magic"),
    ("N2", "a layer more", {"num_layers": 4}, "TruncatedError", "total_weights"),
    ("N2", "all layers there are", {"num_layers": U32}, "TruncatedError", "num_layers"),
    ("N2", "2^31 layers", {"num_layers": 2**31}, "TruncatedError", "num_layers"),
    ("N3", "a weight more", {"total_weights": TOTAL + 1}, "TruncatedError", "total_weights"),
    ("N3", "a weight more, and there", {"total_weights": TOTAL + 1, "extra": 2}, "LayoutError", "total_weights"),
    ("N3", "a weight less, and a spare half", {"total_weights": TOTAL - 1}, "LayoutError", "total_weights"),
    ("N3", "a pair less, and gone", {"total_weights": TOTAL - 2, "extra": -4}, "LayoutError", "total_weights"),
    ("N3", "8 GiB of weights", {"total_weights": U32}, "TruncatedError", "total_weights"),
    ("N3", "half a weight short", {"extra": -1}, "TruncatedError", "total_weights"),
    ("N5", "kernel 0", {"kernel_size": 0, "layer": 1}, "LayoutError", "kernel_size"),
    ("N5", "no inputs", {"in_channels": 0, "layer": 2}, "LayoutError", "in_channels"),
    ("N5", "no outputs", {"out_channels": 0}, "LayoutError", "out_channels"),
    ("N5", "no outputs, no weights", {"out_channels": 0, "weight_count": 0}, "LayoutError", "out_channels"),
    ("N5", "kernel 65536", {"kernel_size": 65536}, "LayoutError", "weight_count"),
    ("N6", "another kernel", {"kernel_size": 5}, "LayoutError", "weight_count"),
    ("N6", "another input", {"in_channels": 13, "layer": 1}, "LayoutError", "weight_count"),
    ("N6", "an output less", {"out_channels": 1, "layer": 2}, "LayoutError", "weight_count"),
    ("N6", "count one more", {"weight_count": 433}, "LayoutError", "weight_count"),
    ("N6", "count one less", {"weight_count": 7, "layer": 2}, "LayoutError", "weight_count"),
    ("N6", "count of none", {"weight_count": 0, "layer": 1}, "LayoutError", "weight_count"),
    ("N6", "count of all", {"weight_count": U32, "layer": 1}, "LayoutError", "weight_count"),
    ("C6", "a shape beyond 2^63", {"kernel_size": U32, "in_channels": U32}, "LayoutError", "weight_count"),
    ("N7", "offset not 0", {"weight_offset": 1}, "LayoutError", "weight_offset"),
    ("C9", "a hole", {"weight_offset": 433, "layer": 1}, "LayoutError", "weight_offset"),
    ("C9", "an overlap", {"weight_offset": 431, "layer": 1}, "LayoutError", "weight_offset"),
    ("C9", "the first layer again", {"weight_offset": 0, "layer": 1}, "LayoutError", "weight_offset"),
    ("N7", "offset past the end", {"weight_offset": TOTAL, "layer": 2}, "LayoutError", "weight_offset"),
    ("C5", "offset that wraps around", {"weight_offset": U32, "layer": 1}, "LayoutError", "weight_offset"),
    *(("N1", f"version {v}", {"version": v}, "UnsupportedError", "version") for v in (0, 3, 2**31, U32)),
]
# Lies that leave bytes over.
TRAILING = {
    "a layer less": ("N2", {"num_layers": 2}, 2 * TOTAL - 20),
    "no layers": ("N2", {"num_layers": 0}, 2 * TOTAL - 60),
    "no weights": ("N3", {"total_weights": 0}, 0),
    "a byte behind the end": ("C2", {"extra": 1}, 2 * TOTAL),
    "a half behind the end": ("C2", {"extra": 2}, 2 * TOTAL),
    "a pair behind the end": ("C2", {"extra": 4}, 2 * TOTAL),
}
# Shapes whose weights are counted modulo 2^32 by other readers.
WRAPPING = [(65536, 1, 1), (65536, 65536, 1), (65536, 65537, 3), (2**16,) * 3, (2**31, 2, 1), (3, 2**31, 2)]


def cases():
    for version in (1, 2):
        yield from lies(version)
    kind = "cnn_v2-v2"
    for kernel, inputs, outputs in WRAPPING:
        count = kernel * kernel * inputs * outputs % 2**32
        count = count if count < 1000 else 0
        data = cnn.header(1, count) + cnn.record(kernel, inputs, outputs, 0, count) + bytes(2 * count)
        name = f"{kernel}x{inputs}x{outputs} modulo 2^32"
        yield Case("N6", kind, name, data, "LayoutError", "weight_count", place("weight_count"))
    # In a u32, 2^32 - 1 and 9 weights add up to 8.
    huge = cnn.header(2, 8) + cnn.record(1, U32, 1, 0) + cnn.record(3, 1, 1, U32) + bytes(16)
    yield Case("C5", kind, "a sum modulo 2^32", huge, "LayoutError", "total_weights", place("total_weights"))
    # The third layer begins at 18, which in a u32 is also 18 + 2^32.
    parts = [cnn.record(3, 1, 1, 9 * number) for number in range(2)] + [cnn.record(1, 1, 1, U32)]
    data = cnn.header(3, 19) + b"".join(parts) + bytes(40)
    yield Case("C5", kind, "an offset modulo 2^32", data, "LayoutError", "weight_offset", place("weight_offset", 2))
    for level in (4, U32):
        yield Case("N4", kind, f"mip level {level}", lie(mip_level=level), odd=f"mip_level is {level}, above 3")
    data = put(lie(), 4, struct.pack("<I", 1))  # its mip_level is then the kernel size of a layer
    yield Case("N1", "cnn_v2-v1", "version 2 called 1", data, "LayoutError", "size", len(data) - 4)
    yield from ends()
    yield from legal(kind)


def ends():
    for version, size in ((1, 16), (2, 20)):
        kind, data = f"cnn_v2-v{version}", cnn.header(0, 0, 0, version)
        yield Case("C20", kind, "a header alone", data)
        for cut in (7, 8, size - 1):
            yield Case("C1", kind, f"{cut} bytes", data[:cut], "TruncatedError", None, cut)
    for version in (0, 3):
        data = cnn.header(0, 0, 0, 2)[:4] + struct.pack("<I", version)
        yield Case("N1", "cnn_v2-v2", f"8 bytes of version {version}", data, "UnsupportedError", "version", 4)
    kind, data = "cnn_v2-v2", cnn.header(2, 0) + bytes(40)
    yield Case("N5", kind, "records of zeros", data, "LayoutError", "kernel_size", 20)
    yield Case("N2", kind, "records cut off", data[:-1], "TruncatedError", "num_layers", 59)
    yield Case("N2", kind, "3 records in room for 2", put(data, 8, b"\3"), "TruncatedError", "num_layers", 60)
    for total in (6, 7):
        data = cnn.header(1, total) + cnn.record(1, 1, total, 0) + bytes(2 * total)
        for cut in (1, 2):
            wrong = ("TruncatedError", "total_weights", len(data) - cut)
            yield Case("N3", kind, f"{total} weights, {cut} bytes less", data[:-cut], *wrong)
        for more in range(5):  # of an odd number of weights, the spare half belongs to them
            name, end = f"{total} weights, {more} bytes more", len(data) + (2 if total == 7 and more >= 2 else 0)
            wrong = ("LayoutError", "size", end) if end < len(data) + more else ("", None, None)
            yield Case("N3", kind, name, data + bytes(more), *wrong, odd="trailing" if wrong[0] else None)


def lies(version):
    kind = f"cnn_v2-v{version}"
    start = {1: 16, 2: 20}[version] + 60
    for row, name, changes, error, field in LIES:
        data = lie(**{"version": version, **changes})
        if field == "version":
            data = lie(version=version)
            data = data[:4] + struct.pack("<I", changes["version"]) + data[8:]
        odd = LAX.get(name)
        # A file that is cut off ends where the error says.
        at = len(data) if error == "TruncatedError" else place(field, changes.get("layer", 0), version)
        yield Case(row, kind, name, data, error, field, at, odd=odd, says=SAYS.get(name, ""))
    for name, (row, changes, over) in TRAILING.items():
        data = lie(**{"version": version, **changes})
        yield Case(row, kind, name, data, "LayoutError", "size", start + over, odd=None if over == 0 else "trailing")


# Words of errors, which count in halves as the format does, and name the layer.
SAYS = {
    "a hole": "'layer.1.weight' leaves a hole before it: weight_offset is 433, expected 432",
    "count one more": "'layer.0.weight': weight_count is 433, expected 432",
    "offset past the end": "'layer.2.weight': end of its data is 880, expected at most 872",
}
# Faults that strict=False lets pass, with the words of the warning.
LAX = {
    "a weight more, and there": "total_weights is 873, expected 872",
    "offset not 0": "leaves a hole",
    "a hole": "leaves a hole",
    "an overlap": "overlaps the tensor before it",
    "the first layer again": "overlaps the tensor before it",
}


def legal(kind):
    for count in (1, 2, 5, 6, 1000):  # the first five are named
        names = ", ".join(map(str, range(min(count, 5)))) + (", ..." if count > 5 else "")
        odd = f"{count:,} layer{'' if count == 1 else 's'} with an even kernel_size: {names}"
        yield Case("N5", kind, f"{count} even kernels", cnn.build([cnn.layer(1, 1, 2)] * count), odd=odd)
    for channels, level, version in ((8, 3, 2), (8, 4, 1), (7, 2, 2)):
        name, data = f"{channels} outputs and mip level {level}", cnn.build([cnn.layer(channels, 1, 1)], level, version)
        yield Case("N4", f"cnn_v2-v{version}", name, data)
    yield Case("N5", kind, "9 outputs", cnn.build([cnn.layer(9, 1, 1)]), odd="1 layer with more than 8 out_channels")
    yield Case("N8", kind, "layers at odd halves", cnn.build(cnn.ODD))
    yield Case("N3", kind, "an odd number of weights, without a spare half", cnn.build(cnn.ODD, pad=False))
    data = cnn.build(cnn.ODD)
    spare = {"error": "LayoutError", "field": "padding", "offset": len(data) - 2, "late": True}
    yield Case("N3", kind, "a spare half that is not zero", data[:-1] + b"\1", **spare, odd="spare half")
    yield Case("C20", kind, "no layers", cnn.build([]))
    yield Case("C20", "cnn_v2-v1", "no layers", cnn.build([], version=1))
    yield Case("C16", kind, "any bits", cnn.build([noise("float16", (4, 1, 3, 3))]))
    many = cnn.header(10_000_000, 0)
    size = 20 + 20 * 10_000_000
    yield Case("C17", kind, "ten million layers", many, "LimitError", "max_tensors", 8, size=size)
    top = cnn.header(1, U32) + cnn.record(1, 65537, 65535, 0)
    yield Case("C26", kind, "8 GiB in one layer", top, size=40 + 2 * U32 + 2, odd="out_channels")
