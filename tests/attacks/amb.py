"""Attacks on AMB: header, texts, tokenizer, records, quantised data."""

import math
import struct

from tests.builders import amb, noise, normal

from .case import BAD_JSON, BAD_UTF8, U32, U63, U64, WILD_NAMES, Case, put

KIND = "amb"
FIRST = amb.dense("first", normal((2, 3), 1))
SECOND = amb.dense("second", noise("float16", (5,), 2))
METADATA, CONFIG = b'{"name": "x"}', b'{"n_vocab": 3}'
TOKENS = amb.tokenizer(2, (0, 1, 2, amb.NO_ID, amb.NO_ID), b"a\nb\nc\n")
# Where the records of a file with all sections begin, and the fields of the first one.
START = 28 + len(METADATA) + len(CONFIG) + len(TOKENS)
NDIM = START + 2 + 5
SHAPE, DTYPE, SIZE, DATA = NDIM + 1, NDIM + 9, NDIM + 10, NDIM + 18
# The rows of the threat tables about this format: a fault of a file, and the required outcome.
ROWS = {
    "A1": "AMB of another version or with flags: UnsupportedError.",
    "A2": "Sections that do not add up to the file: TruncatedError or LayoutError.",
    "A3": "Texts that are not JSON objects: FormatError. No text: legal.",
    "A4": "A tokenizer of an unknown type or too short: an error. Ids beyond the vocabulary: a warning.",
    "A5": "A record whose name, dimensions or dtype exceed their bounds: TruncatedError, LimitError, UnsupportedError.",
    "A6": "data_size that is not that of shape and dtype: LayoutError.",
    "A7": "data_size of 2^60: TruncatedError.",
    "A8": "Padding that is not zero, or missing at the end: LayoutError, a warning if not strict.",
    "A9": "Block sizes, scale types and counts of quantised data that cannot be: QuantError.",
    "A10": "Scales that are NaN, infinite, negative or denormal: legal; verify reports NaN and infinity.",
    "A11": "A mask of adaptive data with excess bits, an unknown code or another size: QuantError.",
    "A12": "A configuration that contradicts the tensors: a warning.",
}


def build(*records, **options):
    return amb.build(records or (FIRST, SECOND), METADATA, CONFIG, TOKENS, **options)


WHOLE = build()
END = len(WHOLE)
SOUND = {KIND: WHOLE}


def case(row, name, data, error="", field=None, offset=None, **more):
    return Case(row, KIND, name, data, error, field, offset, **more)


def cases():
    yield from headers()
    yield from texts()
    yield from tokenizers()
    yield from records()
    yield from padding()
    yield from quantised()
    yield from adaptive()
    yield from legal()


def headers():
    for at in range(5):
        yield case("C3", f"letter {at} of the magic", put(WHOLE, at, b"x"), "FormatError", "magic", 0)
    for version in (0, 2, 255):
        yield case("A1", f"version {version}", build(version=version), "UnsupportedError", "version", 5)
    for size in (5, 6):  # a newer file is not called cut off
        wrong = ("UnsupportedError", "version", 5) if size == 6 else ("TruncatedError", None, size)
        yield case("A1", f"{size} bytes of version 2", build(version=2)[:size], *wrong)
    yield case("A2", "27 bytes", WHOLE[:27], "TruncatedError", None, 27)
    for bit in range(16):
        yield case("A1", f"flag bit {bit}", build(flags=1 << bit), "UnsupportedError", "flags", 6)
    true = {"metadata_size": len(METADATA), "config_size": len(CONFIG), "tokenizer_size": len(TOKENS)}
    true["weights_size"] = END - START
    large = dict.fromkeys(true, (2**31, U32)) | {"weights_size": (2**32, 2**60, 2**63, 2**64 - START, U64)}
    for name, size in true.items():
        yield case("A2", f"{name} a byte more", build(**{name: size + 1}), "TruncatedError", "weights_size", END)
        # A text without its last byte is not JSON, and a record lacks its padding: strict=False does not help.
        yield case("A2", f"{name} a byte less", build(**{name: size - 1}), "LayoutError", "size", END - 1)
        for lie in large[name]:
            row = "C5" if lie > 2**60 else "C4"
            yield case(row, f"{name} of {lie}", build(**{name: lie}), "TruncatedError", "weights_size", END)


def texts():
    # The place of the error in the text; its beginning if Python's parser names no place.
    within = {"not UTF-8": 7, "overlong UTF-8": 7, "surrogate in UTF-8": 7, "UTF-16": 0, "something behind": 3}
    within |= {"cut off": 6, "trailing comma": 8, "comment": 1, "raw control character": 3, "spaces": 3}
    for section in ("metadata", "config"):
        for name, text in BAD_JSON.items():
            data = amb.build([FIRST], **{section: text})
            at = 28 + within.get(name, 0)
            row = "A3" if name.startswith("root") or name == "spaces" else "C12"
            yield case(row, f"{section} {name}", data, "FormatError", section, at)
        yield case("A3", f"{section} without content", amb.build([FIRST], **{section: b"{}"}))
        yield case("A3", f"{section} with white space behind", amb.build([FIRST], **{section: b"{}\r\n\t "}))
    yield case("A3", "no texts", amb.build([FIRST]))


def tokenizers():
    for size in range(1, 11):
        data = amb.build(tokens=TOKENS[:size])
        yield case("A4", f"of {size} bytes", data, "TruncatedError", "tokenizer_size", 16)
    for kind in range(4):
        yield case("A4", f"type {kind} and no tokens", amb.build(tokens=amb.tokenizer(kind, (amb.NO_ID,) * 5)))
    for kind in (4, 255):
        data = amb.build(tokens=amb.tokenizer(kind, (0,) * 5))
        yield case("A4", f"type {kind}", data, "UnsupportedError", "type", 28)
    beyond = amb.tokenizer(2, (0, 1, 3, amb.NO_ID, amb.NO_ID), b"a\nb\nc\n")
    yield case("A4", "an id beyond the vocabulary", amb.build(tokens=beyond), odd="special ids are not below 3")
    for count in (2, 4):
        tokens = amb.tokenizer(2, (0, 1, amb.NO_ID, amb.NO_ID, amb.NO_ID), b"a\nb\nc\n")
        data = amb.build(config=amb.text({"n_vocab": count}), tokens=tokens)
        odd = f"its vocabulary has 3 tokens, and config n_vocab is {count}"
        yield case("A12", f"a vocabulary of {count} tokens", data, odd=odd)
    embeddings = amb.dense("token_embd.weight", normal((3, 5)))
    data = amb.build([embeddings], config=b'{"n_vocab": 4, "n_embd": 5}')
    yield case("A12", "another number of rows", data, odd="config n_vocab is 4, and tensor")
    data = amb.build([embeddings], config=b'{"n_vocab": 3, "n_embd": 6}')
    yield case("A12", "another number of columns", data, odd="config n_embd is 6, and tensor")


def records():
    last, head = amb.weights([FIRST], START, last=True), SECOND.head()
    begin = START + len(last)
    fields = [(0, "name_length"), (2, "name"), (8, "ndim"), (9, "shape"), (13, "dtype"), (14, "data_size")]
    for cut in range(1, len(head)):
        at, field = next((at, field) for at, field in reversed(fields) if cut >= at)
        data = amb.build(last + head[:cut], METADATA, CONFIG, TOKENS)
        says = f"the weights section ends within its {field}: number of bytes left is {cut - at}"
        yield case("A5", f"record cut after {cut} bytes", data, "TruncatedError", field, begin + at, says=says)
    for cut in (len(head), len(head) + len(SECOND.data) - 1):
        data = amb.build(last + (head + SECOND.data)[:cut], METADATA, CONFIG, TOKENS)
        yield case("A5", f"record cut after {cut} bytes", data, "TruncatedError", "data_size", begin + 14)
    data = build(FIRST.but(name_length=0xFFFF))
    yield case("A5", "name of 65535 bytes", data, "TruncatedError", "name", START + 2)
    for ndim in (65, 255):
        yield case("C8", f"{ndim} dimensions", put(WHOLE, NDIM, bytes([ndim])), "LimitError", "ndim", NDIM)
    says = "0 float32, 1 float16, 2 bfloat16, 3 int8, 4 int4, 5 int5, 6 int4_block, 7 int5_block, 8 adaptive"
    for code in (9, 10, 127, 255):
        data = put(WHOLE, DTYPE, bytes([code]))
        yield case(
            "C14", f"dtype {code}", data, "UnsupportedError", "dtype", DTYPE, says=f"is {code}, expected one of {says}"
        )
    for size in (0, 23, 25):
        data = put(WHOLE, SIZE, struct.pack("<Q", size))
        yield case("A6", f"data_size {size}", data, "LayoutError", "data_size", SIZE)
    for code, width in enumerate((4, 2, 2, 1)):
        for count in (2, 4):
            data = amb.build([amb.Record("w", (3,), code, bytes(width * count))])
            yield case("A6", f"{count} elements of 3 of dtype {code}", data, "LayoutError", "data_size", 28 + 9)
    for size in (10**4, 2**32, 2**60, U63, 2**63, 2**64 - 24, U64):
        data = put(WHOLE, SIZE, struct.pack("<Q", size))
        row = "A7" if size < U63 else "C5"
        yield case(row, f"data_size {size}", data, "TruncatedError", "data_size", SIZE)
    for shape in ((U32,) * 4, (2**31, 2**31, 2), (0, 2**31, 2**31, 2)):
        for code in (0, 3, 4, 6, 8):
            data = amb.build([amb.Record("w", shape, code, b"")])
            name = f"shape {'x'.join(map(str, shape))} of dtype {code}"
            yield case("C6", name, data, "LayoutError", "shape", 28 + 4)
    # 2^63 - 1 bytes can be counted, and exceed the data; 2^63 cannot be counted.
    factors = (7 * 7 * 73 * 127 * 337, 92737, 649657)
    for shape, code, field in (
        (factors, 3, "data_size"),
        (factors, 1, "shape"),
        ((2**31, 2**31), 3, "data_size"),
        ((2**31, 2**31, 1), 1, "shape"),
    ):
        data = amb.build([amb.Record("w", shape, code, b"x")])
        name = f"bytes of {'x'.join(map(str, shape))} of dtype {code}"
        at = 28 + 4 + (4 * len(shape) + 1) * (field == "data_size")
        yield case("C6", name, data, "LayoutError", field, at)
    for name, raw in BAD_UTF8.items():
        data = build(SECOND, FIRST.but(name=raw))
        yield case("C11", f"name {name}", data, "FormatError", "name", data.rindex(raw))
    for number in range(3):
        three = [FIRST.but(name=name) for name in ("a", "bc", "d")]
        three[number] = FIRST.but(name=b"\xff")
        data = build(*three)
        yield case("C11", f"name {number} of 3", data, "FormatError", "name", data.index(b"\1\0\xff\2") + 2)
    for name, given in (("twice", ("a", "a")), ("twice, far apart", ("a", "b", "c", "a")), ("empty, twice", ("", ""))):
        data = amb.build([FIRST.but(name=each) for each in given])
        # The last record: 2 bytes of length, the name, 1 + 8 + 1 + 8 bytes, 24 of data and the padding.
        step = len(data) - len(amb.build([FIRST.but(name=each) for each in given[:-1]]))
        yield case("C10", f"name {name}", data, "LayoutError", "name", len(data) - step + 2)
    yield case("C10", "empty name", build(FIRST.but(name="")), odd="empty name")


def padding():
    odd = "padding behind a record is not zero"
    for relative in (False, True):
        dense = [amb.dense(f"t{i}", noise("int8", (i + 1,), i)) for i in range(4)]
        text = b'{"n": 1}' + b" " * 3
        clean, dirty = (amb.build(dense, text, relative=relative, fill=fill) for fill in (b"\0", b"\1"))
        at = next(i for i, (a, b) in enumerate(zip(clean, dirty, strict=True)) if a != b)
        how = "of the section" if relative else "of the file"
        yield case("A8", f"padding {how}, ones", dirty, "LayoutError", "padding", at, odd=odd)
        yield case("A8", f"padding {how}, a byte", put(clean, at, b"\x80"), "LayoutError", "padding", at, odd=odd)
    for size in range(8):  # behind 32 bytes that are a multiple of eight, as the padding is
        stored = amb.Record("w", (size,), amb.INT8, bytes(size))
        whole = stored.head() + stored.data
        needed = -len(whole) % 8
        for count in range(needed + 1):
            data, name = amb.build(whole + bytes(count), b"{}  "), f"{count} bytes of padding behind {size}"
            wrong = ("LayoutError", "padding", 32 + len(whole)) if count < needed else ()
            yield case("A8", name, data, *wrong, odd="lacks padding" if wrong else None)
        for place in range(needed):
            data = put(amb.build(whole + bytes(needed), b"{}  "), 32 + len(whole) + place, b"\1")
            name = f"byte {place} of the padding behind {size}"
            yield case("A8", name, data, "LayoutError", "padding", 32 + len(whole) + place, odd=odd)
    for length in range(1, 9):
        yield case("C7", f"no data behind {length} letters", amb.build([amb.Record("n" * length, (0,), amb.INT8, b"")]))


BITS = {"int8": 8, "int4": 4, "int5": 5, "int4_block": 4, "int5_block": 5}


def record(scheme, size, block_size=0, scale_type=1, scales=None):
    bits, length = BITS[scheme], block_size or size
    blocks = [
        ((scales or {}).get(number, 0.5), [k % 7 - 3 for k in range(min(length, size - first))])
        for number, first in enumerate(range(0, size, length))
    ]
    payload = amb.pack_blocks(blocks, bits, length, scale_type)
    return amb.quantised("w", (size,), amb.SCHEMES[scheme], payload, block_size, scale_type)


# Scheme, block size, the place in the header of four bytes, the new bytes, and the field.
QUANT_LIES = [
    ("int4_block", 32, 0, b"\0", "quant_type"),
    ("int4_block", 32, 0, b"\5", "quant_type"),
    ("int8", 0, 0, b"\2", "quant_type"),
    ("int5", 0, 0, b"\7", "quant_type"),
    ("int4", 0, 1, struct.pack("<H", 32), "block_size"),
    ("int4_block", 32, 1, struct.pack("<H", 0), "block_size"),
    ("int4_block", 32, 1, struct.pack("<H", 1), "block_size"),
    ("int4_block", 32, 1, struct.pack("<H", 65535), "block_size"),
    ("int5_block", 32, 1, struct.pack("<H", 36), "block_size"),
    ("int4_block", 32, 3, b"\2", "scale_type"),
    ("int5_block", 32, 3, b"\xff", "scale_type"),
    ("int4_block", 32, 1, struct.pack("<H", 64), "data_size"),
    ("int4_block", 32, 3, b"\0", "data_size"),
    ("int4", 0, 3, b"\0", "data_size"),
]


def quantised():
    for scheme, block_size, at, lie, field in QUANT_LIES:
        stored = record(scheme, 100, block_size)
        start = 28 + len(stored.head())
        data = put(amb.build([stored]), start + at, lie)
        value, told = int.from_bytes(lie, "little"), start - 8 if field == "data_size" else start + at
        says = "by its shape, block size and scale type" if field == "data_size" else f"is {value}"
        yield case("A9", f"{scheme} {field} {value}", data, "QuantError", field, told, says=says)
    for scheme, block_size in (("int4", 0), ("int5", 0), ("int4_block", 32), ("int5_block", 32)):
        for change in (-5, -1, 1, 2, 18):
            stored = record(scheme, 100, block_size)
            raw = stored.data[:change] if change < 0 else stored.data + bytes(change)
            data, at = amb.build([stored.but(data=raw)]), 28 + len(stored.head()) - 8
            yield case("A9", f"{scheme} {change:+} bytes", data, "QuantError", "data_size", at, says=f"is {len(raw)},")
    # Exact sizes decide: without the four bytes of their header these are bare blocks, with other values.
    stored = record("int4_block", 100, 32)
    yield case("A9", "int4_block less its header", amb.build([stored.but(data=stored.data[4:])]))
    for count in (99, 101, 104, 107, 109):
        data = amb.build([amb.Record("q", (100,), amb.INT8, bytes(count))])
        name = f"int8 of {count} bytes for 100"
        yield case("A6", name, data, "LayoutError", "data_size", 28 + 9, says=f"is {count}, expected 100")
    for code in (amb.INT4, amb.ADAPTIVE):
        for count in range(4):
            data, says = amb.build([amb.Record("q", (2,), code, bytes(count))]), f"is {count}, expected 4 "
            yield case("A9", f"{count} bytes of dtype {code}", data, "QuantError", "data_size", 28 + 9, says=says)
    for scheme, stored in (("int4", record("int4", 64)), ("int5", record("int5", 64)), ("adaptive", mixed())):
        data = amb.build([stored.but(data=stored.data[4:])])
        yield case("A9", f"{scheme} without its header", data, "QuantError", "quant_type", 28 + len(stored.head()))
    bare = record("int4_block", 70, 32)
    bare = bare.but(data=bare.data[4:])
    for name, quant in {
        **{name: {"block_size": size} for name, size in (("64", 64), ("33", 33), ("true", True), ("0", 0), ("-2", -2))},
        "in words": {"block_size": "32"},
        **{f"32 with {scale}": {"scale_type": scale} for scale in ("fp32", "fp64", 2)},
        "a list": [],
        "5": 5,
    }.items():
        data = amb.build([bare], config=amb.text({"quant": quant}))
        at = data.rindex(bare.data)
        yield case("A9", f"bare blocks of {name}", data, "QuantError", "quant_type", at)
    for name, value in {"NaN": math.nan, "infinity": math.inf, "minus infinity": -math.inf}.items():
        for scheme, block_size in (("int8", 0), ("int4", 0), ("int4_block", 32), ("int5_block", 32)):
            block = 2 if block_size else 0
            data = amb.build([record(scheme, 100, block_size, scales={block: value})])
            odd = f"tensor 'w': NaN or infinite scale of block {block}"
            yield case("A10", f"{scheme} scale {name}", data, odd=odd)
    for count in (2, 5, 6, 7):  # the first five are named
        data = amb.build([record("int4_block", 80, 8, scales=dict.fromkeys(range(1, 1 + count), math.inf))])
        odd = f"of blocks {', '.join('12345'[:count])}{', ...' if count > 5 else ''}"
        yield case("A10", f"{count} infinite scales", data, odd=odd)
    for value in (2.0**-24, -0.0, -1.5, 65504.0):
        data = amb.build([record("int4_block", 100, 32, scales={1: value})])
        yield case("A10", f"scale {value}", data)


def mixed():
    blocks = []
    for number in range(9):
        code = number % 3
        values = [0.25] * 16 if code == 2 else [k % 7 - 3 for k in range(16)]
        blocks.append((code, 0.5, values))
    return amb.quantised("q", (144,), amb.ADAPTIVE, amb.pack_adaptive(blocks, 16, 1), 16, 1)


def adaptive():
    stored = mixed()
    start = 28 + len(stored.head())

    def masked(at, change):
        raw = bytearray(stored.data)
        raw[4 + at] ^= change
        return amb.build([stored.but(data=bytes(raw))])

    for block in range(9):
        change = (3 ^ block % 3) << 2 * (block % 4)
        expected = {"error": "QuantError", "field": "mask", "offset": start + 4 + block // 4, "late": True}
        says = f"precision of block {block} in the mask is 3"
        yield case("A11", f"code 3 of block {block}", masked(block // 4, change), says=says, **expected)
        change = (block % 3 ^ (block + 1) % 3) << 2 * (block % 4)
        expected = {
            "error": "QuantError",
            "field": "data_size",
            "offset": start - 8,
            "late": True,
            "says": "by its mask",
        }
        yield case("A11", f"another code of block {block}", masked(block // 4, change), **expected)
    says = "the mask after the last block"
    expected = {"error": "QuantError", "field": "mask", "offset": start + 4 + 2, "late": True, "says": says}
    yield case("A11", "bits after the last block", masked(2, 1 << 2), **expected)
    for block_size in (0, 1, 4, 12, 65535):
        raw = stored.data[:1] + struct.pack("<H", block_size) + stored.data[3:]
        data = amb.build([stored.but(data=raw)])
        yield case("A9", f"adaptive blocks of {block_size}", data, "QuantError", "block_size", start + 1)
    least, most = 4 + 3 + 9 * (2 + 8), 4 + 3 + 9 * 32
    for size in (5, least - 1, most + 1):
        data = amb.build([stored.but(data=stored.data[:4] + bytes(size - 4))])
        yield case("A11", f"data of {size} bytes", data, "QuantError", "data_size", start - 8, says=f"is {size},")
    blocks = [(2, 0.0, [1.0] * 8), (0, 1.0, [1] * 8), (2, 0.0, [1.0] * 8), (1, math.inf, [1] * 8)]
    data = amb.build([amb.quantised("q", (32,), amb.ADAPTIVE, amb.pack_adaptive(blocks, 8, 1), 8, 1)])
    yield case("A10", "adaptive scale infinity", data, odd="tensor 'q': NaN or infinite scale of block 3")


def legal():
    for name, text in WILD_NAMES.items():
        yield case("C11", name, build(FIRST.but(name=text)))
    for shape in ((0,), (0, 4), (U32, 0), (2**30, 0, 2**30)):
        yield case("C7", f"shape {'x'.join(map(str, shape))}", build(amb.Record("w", shape, 0, b"")))
    yield case("C8", "no dimensions", build(amb.dense("w", normal(()))))
    yield case("C8", "64 dimensions", build(amb.Record("w", (1,) * 64, 0, bytes(4))))
    yield case("C20", "no tensors", amb.build())
    for dtype in ("float32", "float16", "bfloat16"):
        yield case("C16", f"any bits of {dtype}", build(amb.dense("w", noise(dtype, (64,)))))
    for name, start, at in (("zeros", bytes(64), 4), ("a record and zeros", b"\0\0\1\0\0\0\0\3" + bytes(56), 24)):
        sparse = amb.build(b"", weights_size=1 << 40) + start
        expected = {"error": "LayoutError", "field": "data_size", "size": 28 + (1 << 40)}
        yield case("C26", f"a TiB of {name} for records", sparse, offset=28 + at, **expected)
