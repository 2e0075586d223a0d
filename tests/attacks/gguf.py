"""Attacks on GGUF."""

import struct

from tests.builders import Tensor, gguf, noise

from .case import BAD_UTF8, U32, U64, WILD_NAMES, Case, put

KV, Info = gguf.KeyValue, gguf.Info
KIND = "gguf"
A, B = Info("a", (2,), 0, 0), Info("b", (3,), 24, 32)
BODY = bytes(range(8)) + bytes(24) + bytes(range(3)) + bytes(29)
VALUES = (KV("s", "str", "x"), KV("n", "u32", 7))
# The part of the threat tables that is about this format: a file's defect, and the required outcome.
ROWS = {
    "G1": "GGUF of version 0 or above 3, in either byte order: UnsupportedError.",
    "G2": "Counts of tensors, key-values, items or bytes beyond the bytes left: TruncatedError.",
    "G3": "A type of values above 12, a bool above 1, a key of more than 65,535 bytes: an error.",
    "G4": "Arrays that nest deeper than 65: LimitError.",
    "G5": "A repeated key: LayoutError, also where hashes collide.",
    "G6": "general.alignment of 0, not a multiple of 8, or of another type than u32: FormatError.",
    "G7": "More than four dimensions: FormatError. An unknown type: UnsupportedError, bytes if not strict.",
    "G8": "A row that is not a multiple of its block: LayoutError.",
    "G9": "Offsets off the alignment, overlapping, with holes, past the file: LayoutError or TruncatedError.",
    "G10": "Texts that are not UTF-8: FormatError; texts in arrays when they are verified.",
    "G11": "The end within the last padding: TruncatedError, a warning if not strict. Padding not zero: LayoutError.",
    "G12": "Repeated tokens, special ids beyond the last token: legal, a warning of verify.",
}


def make(infos=(A, B), values=VALUES, body=BODY, coder=None, alignment=32, **counts):
    """A file of two tensors, float32 [2] and int8 [3], right unless arguments say otherwise."""
    head = gguf.header(infos, values, coder, **counts)
    return head + gguf.padding(len(head), alignment) + body


SOUND = {KIND: make()}
FIRST = 24
# Where the infos begin, and their fields, with names of one byte.
INFOS = len(gguf.header((), VALUES))
NDIM, DIMS, TYPE, OFFSET, NEXT = INFOS + 9, INFOS + 13, INFOS + 21, INFOS + 25, INFOS + 33
UNKNOWN = "of types that weightmap does not know are shown as bytes (type codes: {})"
OVERLAP, HOLE = "overlaps the tensor before it", "leaves a hole"
ABSURD = (2**20, U32, 2**40, 2**60, 2**63, U64)


def cases():
    for part in (beginnings, counts, values, texts, alignments, infos, ranges, ends, vocabularies, legal):
        yield from part()


def case(row, name, data, error="", field=None, offset=None, **more):
    return Case(row, KIND, name, data, error, field, offset, **more)


def beginnings():
    for version in (0, 4, 255, U32, 0x00040000, 0x7FFF0000):
        data = put(make(), 4, struct.pack("<I", version))
        yield case("G1", f"version {version}", data, "UnsupportedError", "version", 4)
    for size in range(4, 24):
        yield case("C1", f"{size} bytes", make()[:size], "TruncatedError", None, size)
    for size in (4, 7, 8):
        wrong = ("UnsupportedError", "version", 4) if size == 8 else ("TruncatedError", None, size)
        yield case("G1", f"{size} bytes of version 9", b"GGUF\x09\0\0\0"[:size], *wrong)


def counts():
    whole = make()
    for value in ABSURD:
        wide = struct.pack("<Q", value)
        if value > 2**20:
            yield case("C4", f"{value} tensors", put(whole, 8, wide), "LimitError", "max_tensors", 8)
        else:
            yield case("G2", f"{value} tensors", put(whole, 8, wide), "LimitError", "max_tensors", 8)
        yield case("G2", f"{value} key-values", put(whole, 16, wide), "TruncatedError", "metadata_kv_count", 16)
        key = make(values=[KV("s", "u8", 1)])
        error, field = ("TruncatedError", "metadata_kv") if value <= 65535 else ("FormatError", "key")
        yield case("G3", f"{value} bytes in a key", put(key, FIRST, wide), error, field, FIRST)
        text = make(values=[KV("s", "str", wide + b"x")])
        text = gguf.header((), [], kv_count=1) + gguf.Coder().string("s") + struct.pack("<I", 8) + wide + b"x"
        yield case("G2", f"{value} bytes in a text", text, "TruncatedError", "metadata_kv", FIRST + 13)
        for kind, code in (("u8", 0), ("f64", 12), ("str", 8), ("array", 9)):
            array = gguf.header((), [KV("s", ["u8"], struct.pack("<I", code) + wide)])
            yield case("G2", f"{value} items of {kind}", array + bytes(40), "TruncatedError", "metadata_kv", FIRST + 17)
        name = put(whole, INFOS, wide)
        yield case("G2", f"{value} bytes in a name", name, "TruncatedError", "tensor_infos", INFOS)
    tight = (len(whole) - 24) // 20
    data = put(whole, 8, struct.pack("<Q", tight + 1))
    yield case("G2", "a tensor more than there is room", data, "TruncatedError", "tensor_count", 8)
    data = gguf.header([], [KV("k", ["u8"], struct.pack("<IQ", 0, 41))]) + bytes(40)
    says = "a count or length is 41, expected at most 40, given"
    yield case("G2", "an item more than there is room", data, "TruncatedError", "metadata_kv", FIRST + 17, says=says)
    data = gguf.header([], [KV("first", "str", "x" * 50)], kv_count=2) + struct.pack("<Q", 1)
    says = "the file ends within key-value 1 (was the download complete?), expected"
    yield case("G2", "the end within a key", data, "TruncatedError", "metadata_kv", len(data), says=says)
    cut = gguf.header((), VALUES)
    for size in range(24, len(cut)):
        yield case("C1", f"{size} bytes of key-values", cut[:size], "TruncatedError", *cut_at(cut, size))


def cut_at(data, size):
    """Field and byte of the error for a file without tensors that ends early."""
    if (size - 24) // 9 < 2:
        return "metadata_kv_count", 16
    second = FIRST + 8 + 1 + 4 + 8 + 1
    if FIRST + 21 <= size < second:
        return "metadata_kv", FIRST + 13
    if second + 8 <= size < second + 9:
        return "metadata_kv", size
    return "metadata_kv", size


def values():
    at = FIRST + 9
    for code in (13, 255, U32):
        data = make(values=[KV("s", code, b"\0" * 8)])
        yield case("G3", f"type {code}", data, "UnsupportedError", "value_type", at)
        data = make(values=[KV("s", ["u8"], struct.pack("<IQ", code, 1) + b"\0")])
        yield case("G3", f"items of type {code}", data, "UnsupportedError", "value_type", at + 4)
    for byte in (2, 128, 255):
        data = make(values=[KV("s", "bool", bytes([byte]))])
        yield case("G3", f"bool of {byte}", data, "FormatError", "value", at + 4)
        data = make(values=[KV("s", ["bool"], struct.pack("<IQ", 7, 3) + bytes([1, 0, byte]))])
        yield case("G3", f"bool of {byte} in an array", data, "FormatError", "value", at + 18)
    yield case("G3", "key of 65,535 bytes", make(values=[KV("k" * 65535, "u8", 1)]))
    yield case("G3", "key of 65,536 bytes", make(values=[KV("k" * 65536, "u8", 1)]), "FormatError", "key", FIRST)
    for depth, error in ((64, ""), (65, "LimitError"), (10_000, "LimitError"), (100_000, "LimitError")):
        nested = struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 0, 0)
        offset = at + 4 + 64 * 12 + 4 if error else None
        data = make(values=[KV("s", ["u8"], nested)])
        yield case("G4", f"{depth} arrays", data, error, "value" if error else None, offset)
    for version in (1, 2, 3):
        for big in (False, True):
            yield from messages(version, gguf.Coder(version, big), f"version {version}{', big-endian' * big}")
    twice = make(values=[KV("s", "u8", 1), KV("n", "u8", 1), KV("s", "u8", 2)])
    yield case("G5", "a key twice", twice, "LayoutError", "key", FIRST + 28)
    data = make(values=[KV("", "u8", 1), KV("", "u8", 2)])
    yield case("G5", "the empty key twice", data, "LayoutError", "key", FIRST + 13)


def messages(version, coder, name):
    first, size = KV("first", "u8", 1), 4 if version == 1 else 8
    at = len(gguf.header([], [first], coder))
    for entry, error, field, place, says in (
        (
            KV("key", 13, b""),
            "UnsupportedError",
            "value_type",
            size + 3,
            "1, 'key': type of a value is 13, expected less",
        ),
        (KV("key", "bool", b"\2"), "FormatError", "value", size + 7, "1, 'key': a bool is 2, expected 0 or 1 "),
        (KV("k", "str", b"\xff"), "FormatError", "value", size + 5, "1, 'k': its value is not UTF-8 "),
        (KV(b"\xff", "u8", 1), "FormatError", "key", 0, "1: its key is not UTF-8 "),
        (KV("k" * 65_535, 13, b""), "UnsupportedError", "value_type", size + 65_535, "1, 'kkk"),
        (KV("k" * 65_536, "u8", 1), "FormatError", "key", 0, "1: length of its key is 65536, expected at most 65535 "),
        (KV("first", "u8", 2), "LayoutError", "key", 0, "key-values 0 and 1 both have the key 'first'"),
    ):
        data, words = (
            gguf.header([], [first, entry], coder) + bytes(64),
            says if "both" in says else f"key-value {says}",
        )
        row = "G5" if error == "LayoutError" else "G3"
        yield case(row, f"{name}, {words[:60]}", data, error, field, at + place, says=words)


def texts():
    for name, raw in BAD_UTF8.items():
        yield case("G10", f"key {name}", make(values=[KV(raw, "u8", 1)]), "FormatError", "key", FIRST)
        yield case("G10", f"value {name}", make(values=[KV("s", "str", raw)]), "FormatError", "value", FIRST + 13)
        data = make((A._replace(name=raw), B))
        yield case("C11", f"name {name}", data, "FormatError", "name", INFOS)
        array = make(values=[KV("s", ["str"], [raw, "a"])])
        yield case("G10", f"first item {name}", array, "FormatError", "string", FIRST + 33, late=True)
        array = make(values=[KV("s", ["str"], ["a", raw])])
        yield case("G10", f"item {name}", array, "FormatError", "string", FIRST + 42, late=True)
        nested = make(values=[KV("s", [["str"]], [["a", raw]])])
        yield case("G10", f"item {name} of an inner array", nested, "FormatError", "string", FIRST + 54, late=True)
        token = make(values=[KV("tokenizer.ggml.tokens", ["str"], ["a", raw])])
        yield case("G10", f"token {name}", token, "FormatError", "string", FIRST + 62, late=True)
    for name, text in WILD_NAMES.items():
        yield case("C11", name, make((A._replace(name=text), B), [KV(text, "str", text)]))
    yield case("C10", "empty name", make((A._replace(name=""), B)), odd="empty name")
    yield case("C10", "one name for both", make((A, B._replace(name="a"))), "LayoutError", "name", NEXT)


def alignments():
    at = FIRST + 8 + 17
    for value in (0, 1, 4, 12, 33, U32):
        data = make(values=[KV("general.alignment", "u32", value)])
        yield case("G6", f"alignment {value}", data, "FormatError", "general.alignment", at + 4)
    for kind in ("u64", "i32", "str", "f32"):
        data = make(values=[KV("general.alignment", kind, "32" if kind == "str" else 32)])
        yield case("G6", f"alignment of type {kind}", data, "FormatError", "general.alignment", at)
    far = gguf.header((), [KV("general.alignment", "u32", 2**31)])
    yield case("G6", "alignment of 2^31, and no data", far)
    far = gguf.header((A,), [KV("general.alignment", "u32", 2**31)])
    yield case("G6", "alignment of 2^31, and data", far + bytes(100), "TruncatedError", "offset", 2**31)


def infos():
    for ndim in (5, 6, 255, U32):
        data = make((A._replace(ndim=ndim), B))
        yield case("G7", f"{ndim} dimensions", data, "FormatError", "n_dimensions", NDIM)
    for code in (4, 5, 31, 33, 36, 38, 43, 63, 64, 255, 256, U32):
        data = make((A._replace(type=code), B))
        yield case("G7", f"type {code}", data, "UnsupportedError", "type", TYPE, odd=UNKNOWN.format(code))
        data = make((A, B._replace(type=code)))
        yield case(
            "G7", f"type {code} at the end", data, "UnsupportedError", "type", TYPE + 33, odd=UNKNOWN.format(code)
        )
        data = make((A, B._replace(type=code)), body=BODY[:32])
        yield case("G7", f"type {code} without a byte", data, "UnsupportedError", "type", TYPE + 33)
    data = make([Info(f"{i:03}", (1,), 64 + i, 32 * i) for i in range(129)], body=bytes(129 * 32))
    yield case("G7", "129 types", data, "UnsupportedError", "type", TYPE + 2)
    data = make((Info("a", (2**32, 2**32), 64, 0),))
    yield case("G7", "a product of 2^64 of type 64", data, "UnsupportedError", "type", TYPE + 8)
    data = make((A, B._replace(type=64, offset=U64)))
    yield case("G7", "type 64 at 2^64 - 1", data, "UnsupportedError", "type", TYPE + 33)
    for name, (code, elements, octets) in gguf.BLOCKS.items():
        for size in (1, elements - 1, elements + 1):
            data = make((Info("a", (size,), code, 0),), body=bytes(octets * 2))
            yield case("G8", f"{size} of {name}", data, "LayoutError", "dimensions", DIMS)
    data = make((Info("a", (), 2, 0),), body=bytes(32))
    yield case("G8", "a scalar in blocks", data, "LayoutError", "dimensions", DIMS)
    for name, dims, code in (
        ("product of 2^64", (2**32, 2**32), 24),
        ("product of 2^64 bytes", (2**61, 4), 28),
        ("a dimension of 2^63", (2**63,), 24),
        ("overflow, then zero", (2**40, 2**40, 0), 24),
        ("zero, then overflow", (0, 2**40, 2**40), 24),
        ("bytes of blocks", (2**63 - 2**8, 1), 8),
    ):
        data = make((Info("a", dims, code, 0),))
        yield case("C6", name, data, "LayoutError", "dimensions", DIMS)
    # The largest countable elements, bytes and offsets, which no file holds, and one more.
    for dims, code, offset, field in (
        ((2**63 - 1,), 24, 0, None),
        ((2**62, 2), 24, 0, "dimensions"),
        ((2**61 - 1,), 0, 0, None),
        ((2**61,), 0, 0, "dimensions"),
        ((31,), 24, 2**64 - 32, None),
        ((32,), 24, 2**64 - 32, "offset"),
    ):
        data, name = make((Info("a", dims, code, offset),)), f"{'x'.join(map(str, dims))} of type {code} at {offset}"
        if field is None:
            yield case("C6", name, data, "TruncatedError", "offset", len(data))
        else:
            at = INFOS + 13 + (8 * len(dims) + 4 if field == "offset" else 0)
            yield case("C6" if field == "dimensions" else "C5", name, data, "LayoutError", field, at)


def ranges():
    for offset in (1, 8, 16, 31):
        data = make((A, B._replace(offset=32 + offset)), body=bytes(96 if offset > 29 else 64))
        yield case("G9", f"{offset} off the alignment", data, "LayoutError", "offset", NEXT)
    data = make((A, B._replace(offset=0)), body=BODY[:32])
    yield case("G9", "the same bytes twice", data, "LayoutError", "offset", INFOS, odd=OVERLAP)
    data = make((Info("a", (16,), 0, 0), B), body=bytes(64))
    yield case("G9", "an overlap", data, "LayoutError", "offset", NEXT, odd=OVERLAP)
    data = make((A, B._replace(offset=64)), body=bytes(96))
    yield case("G9", "a hole", data, "LayoutError", "offset", NEXT, odd=HOLE)
    data = make((A._replace(offset=32), B._replace(offset=64)), body=bytes(96))
    yield case("G9", "a hole in front", data, "LayoutError", "offset", INFOS, odd=HOLE)
    whole = make()
    for name, cut in (("no data", 64), ("data of one", 32), ("a byte short", 30)):
        data = whole[: len(whole) - cut]
        yield case("G9", name, data, "TruncatedError", "offset", len(data))
    for far in (2**32, 2**62, 2**63):
        data = make((A, B._replace(offset=far)))
        yield case("G9", f"offset {far}", data, "TruncatedError", "offset", len(data))
    for far in (U64, U64 - 1, U64 - 2):
        yield case("C5", f"offset {far}", make((A, B._replace(offset=far))), "LayoutError", "offset", OFFSET + 33 + 0)


def ends():
    whole = make()
    last = len(whole) - 29
    for size in (1, 15, 28):
        data = whole[: last + size]
        yield case(
            "G11", f"{size} of 29 bytes of padding", data, "TruncatedError", "size", len(data), odd="within the padding"
        )
    empty = gguf.build({"w": Tensor("float32", (0,), b"")})  # it lies behind 7 bytes of padding
    yield case("G11", "an empty tensor at the end", empty)
    for size in (57, 58, 63):
        says = "within the padding behind its header (was the download complete?), expected at least 64 bytes"
        yield case("G11", f"{size} bytes of 64", empty[:size], "TruncatedError", "size", size, says=says)
    data = whole[:last] + b"x"
    yield case("G11", "a byte behind the data", data, "LayoutError", "size", last, odd="trailing")
    yield case("G11", "no padding at the end", whole[:last])
    base = len(whole) - 64
    for name, at, begin in (
        ("at the end", len(whole) - 1, last),
        ("between tensors", base + 10, base + 8),
        ("in front", base - 1, None),
    ):
        start = len(gguf.header((A, B), VALUES)) if begin is None else begin
        if at >= start:
            yield case(
                "G11",
                f"padding {name}",
                put(whole, at, b"x"),
                "LayoutError",
                "padding",
                start,
                late=True,
                odd="padding between tensors is not zero",
            )


def vocabularies():
    tokens = KV("tokenizer.ggml.tokens", ["str"], ["a", "b", "a"])
    yield case("G12", "repeated tokens", make(values=[tokens]), odd="the vocabulary has 1 repeated token")
    for value in (3, U32, -1):
        number = KV("tokenizer.ggml.bos_token_id", "i32" if value < 0 else "u32", value)
        beyond = make(values=[KV("tokenizer.ggml.tokens", ["str"], ["a", "b"]), number])
        yield case("G12", f"special id {value}", beyond, odd="special ids are not below")
    for kind, value in (("str", "x"), ("u32", 5), (["u32"], [1]), ([["str"]], [["x"]])):
        data = make(values=[KV("tokenizer.ggml.tokens", kind, value)])
        yield case("G12", f"tokens of type {kind}".replace("'", ""), data)


def legal():
    def single(dtype, shape, data):
        return gguf.build({"w": Tensor(dtype, shape, data)})

    for shape in ((0,), (2**33, 0), (0, 2**40)):
        yield case("C7", f"shape {'x'.join(map(str, shape))}", single("float32", shape, b""))
    yield case("C8", "4 dimensions of each", gguf.build({name: noise("int8", (1, 2, 3, 4)) for name in "abc"}))
    yield case("C8", "no dimensions", single("float32", (), bytes(4)))
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        value = noise(dtype, (64,))
        yield case("C16", f"any bits of {dtype}", single(dtype, (64,), value.data))
    yield case("C20", "no tensors", make((), (), b""))
    yield case("C20", "no tensors and no padding", gguf.header((), VALUES))
