"""Attacks on EMBD, the layout of the specification: all checksums fit, except lying ones."""

import struct

from tests.builders import Tensor, embd, noise, normal

from .case import BAD_UTF8, U32, U64, WILD_NAMES, Case, put

KIND = "embd"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "zwölf"]
# Their data lies at 0, 64 and 128 of the data section, which ends at 136.
TENSORS = [("a", normal((2, 3))), ("b", noise("int8", (5,))), ("c", noise("float16", (2, 2)))]
PAIRS = [("model_name", "m"), ("key", "value")]
AUTO = object()
# The rows of the threat tables about this format: a fault of a file, and the required outcome.
ROWS = {
    "E1": "EMBD's magic, or that of its footer, is wrong: UnknownFormatError, or TruncatedError for the footer.",
    "E2": "Major version other than 1: UnsupportedError. A minor version: legal, and a warning.",
    "E3": "Reserved flags: UnsupportedError.",
    "E4": "The header's checksum does not match: ChecksumError at opening. A file without checksums: a warning.",
    "E5": "total_file_size is not the size of the file: TruncatedError or LayoutError.",
    "E6": "Section offsets within the header, out of order, overlapping, past the end: LayoutError.",
    "E7": "Metadata whose counts, lengths or keys lie: an error. Missing keys: a warning, unless all are missing.",
    "E8": "A vocabulary whose counts, lengths or ids lie: an error. Repeated tokens, ids too large: a warning.",
    "E9": "The flag of a vocabulary and its size disagree: LayoutError.",
    "E10": "More descriptors or names than there is room for: TruncatedError or LayoutError.",
    "E11": "A hash that is not that of its name: ChecksumError of name_hash.",
    "E12": "A number of dimensions outside 1 to 4, an unused dimension that is not 0: FormatError.",
    "E13": "Data outside its section, overlapping, unaligned, with padding that is not zero: LayoutError.",
    "E14": "A checksum of data or file that does not match: ChecksumError from verify.",
}


def draft(**options):
    options.setdefault("vocab", WORDS)
    return embd.Draft(TENSORS, **options)


PLACES = draft()
INDEX, DATA, END = PLACES.index_offset, PLACES.data_offset, len(PLACES.data)
SOUND = {KIND: PLACES.seal()}
# Where the names are, and where the fields of a descriptor.
NAMES = INDEX + 32 * 3
FIELDS = {name: place for name, (place, _) in embd.DESCRIPTOR_FIELDS.items()} | {"shape": 8}


def case(row, name, data, error="", **expected):
    return Case(row, KIND, name, data if isinstance(data, bytes) else data.seal(), error, **expected)


def header(row, name, error, field=AUTO, offset=AUTO, **rest):
    odd, says, lie = rest.pop("odd", None), rest.pop("says", ""), rest
    first = next(iter(lie))
    field = first if field is AUTO else field
    offset = embd.HEADER_FIELDS[field][0] if offset is AUTO else offset
    return case(row, name, draft().header(**lie), error, field=field, offset=offset, odd=odd, says=says)


def descriptor(row, name, error, field, *, number=0, odd=None, says="", **lie):
    data = draft().descriptor(number, **lie)
    place = INDEX + 32 * number + FIELDS[field]
    return case(row, name, data, error, field=field, offset=place, odd=odd, says=says)


def cases():
    yield from headers()
    yield from sections()
    yield from descriptors()
    yield from data_section()
    yield from metadata()
    yield from vocabularies()
    yield from footers()
    yield from names()
    yield from legal()
    yield from beginnings()


def headers():
    for name, magic in {"magic": b"EMBE", "magic of the footer": b"DBME", "magic in lower case": b"embd"}.items():
        yield header("E1", name, "FormatError", magic=magic)
    for version in (0, 2, 256, 65535):
        says = f"version_major is {version}, expected 1"
        yield header("E2", f"major version {version}", "UnsupportedError", version_major=version, says=says)
    for version in (1, 7, 65535):
        odd = f"version_minor is {version}"
        yield case("E2", f"minor version {version}", draft().header(version_minor=version), odd=odd)
    for bit in (3, 4, 5, 16, 31):
        yield header("E3", f"flag bit {bit}", "UnsupportedError", flags=7 | 1 << bit)
    data = bare(64).header(flags=8)
    yield case("E3", "flag bit 3 alone", data, "UnsupportedError", field="flags", offset=8)
    for flags in range(8):  # in any combination that fits the sections
        data = bare(64).header(flags=flags)
        wrong = {"error": "LayoutError", "field": "vocab_size", "offset": 24} if flags & 1 else {}
        yield case("E9" if wrong else "E3", f"flags {flags}", data, **wrong)
    yield header("E4", "header checksum 0", "ChecksumError", header_checksum=0)
    unchecked = embd.Draft(TENSORS, vocab=WORDS, checksums=False)
    yield case("E4", "no header checksum", unchecked.header(header_checksum=0), odd="header_checksum is 0")
    wrong = embd.Draft(TENSORS, vocab=WORDS, checksums=False).header(header_checksum=1)
    yield case("E4", "another header checksum", wrong, "ChecksumError", field="header_checksum", offset=56)
    damaged = embd.Draft(TENSORS, vocab=WORDS).seal()
    damaged = damaged[:6] + b"\1" + damaged[7:]
    yield case("E4", "one byte changed", damaged, "ChecksumError", field="header_checksum", offset=56)
    yield header("E4", "reserved field", "FormatError", reserved=1, odd="reserved is 1")
    yield header("E5", "smaller than it says", "TruncatedError", total_file_size=10**6)
    yield header("E5", "smaller than 2^64 - 1", "TruncatedError", total_file_size=U64)
    yield header("E5", "larger than it says", "LayoutError", total_file_size=100)
    yield header("E5", "size 0", "LayoutError", total_file_size=0)
    for more in (-2, -1, 1, 2):
        error, says = "TruncatedError" if more > 0 else "LayoutError", f"is {END}, expected {END + more}"
        yield header("E5", f"{more} bytes more than there are", error, total_file_size=END + more, says=says)


SECTIONS = ("metadata_offset", "vocab_offset", "tensor_index_offset", "tensor_data_offset")


def sections():
    for section in SECTIONS:
        short = section.removesuffix("_offset").replace("_", " ")
        for place in (1, 63):
            yield header("E6", f"{short} at {place}", "LayoutError", **{section: place})
        for place in (10**6, 2**31, U32):
            yield header("E6", f"{short} at {place}", "LayoutError", **{section: place})
    yield header("E6", "vocabulary inside metadata", "LayoutError", vocab_offset=64)
    yield header("E6", "index inside metadata", "LayoutError", tensor_index_offset=72)
    yield header("E6", "data inside index", "LayoutError", tensor_data_offset=INDEX + 8)
    yield header("E6", "data a page later", "TruncatedError", "tensor_data_size", tensor_data_offset=DATA + 64)
    yield case("E6", "sections out of order", swapped(), "LayoutError", field="vocab_offset", offset=20)
    # A section that is too small leaves a hole before the next one, unless it may be padding.
    for size in (0, 1, 7):
        yield header("E6", f"metadata of {size} bytes", "LayoutError", "vocab_offset", metadata_size=size)
    yield header("E6", f"metadata of {10**6} bytes", "TruncatedError", metadata_size=10**6)
    for size in (2**27, U32):
        yield header("C4", f"metadata of {size} bytes", "LimitError", "max_header_bytes", 16, metadata_size=size)
    for size in (1, 7):
        yield header("E8", f"vocabulary of {size} bytes", "LayoutError", "tensor_index_offset", vocab_size=size)
    yield header("E8", "vocabulary of 31 bytes", "TruncatedError", vocab_size=31)
    for size in (10**6, U32):
        yield header("E8", f"vocabulary of {size} bytes", "TruncatedError", vocab_size=size)
    yield header("E9", "flag without vocabulary", "LayoutError", vocab_size=0, vocab_offset=0)
    yield header("E9", "vocabulary without flag", "LayoutError", field="vocab_size", flags=6)
    yield header("E9", "an offset alone", "LayoutError", field="vocab_size", flags=6, vocab_size=0)
    for gap in (62, 63, 64, 65):  # the hole is reported before the section behind it that does not fit
        lie = {"metadata_offset": 64 + gap, "metadata_size": 10**6}
        wrong = ("TruncatedError", "metadata_size") if gap < 64 else ("LayoutError", "metadata_offset")
        says = f"is {64 + gap + (10**6 if gap < 64 else 0)}"
        yield header("E6", f"metadata behind {gap} bytes that does not fit", *wrong, says=says, **lie)
    yield from holes()


def bare(nbytes):
    return embd.Draft([("a", noise("uint8", (nbytes,)))], metadata=b"", aligned=False)


def behind_the_names(gap):
    d = bare(3)
    d.data[d.data_offset : d.data_offset] = bytes(gap)
    d.data_offset += gap
    return d.header(tensor_data_offset=d.data_offset, total_file_size=len(d.data))


def swapped():
    """Index and vocabulary swapped: every section is whole, only the order is wrong."""
    d = draft()
    first = bytes(d.data[d.vocab_offset : d.index_offset])
    second = bytes(d.data[d.index_offset : d.index_offset + 32 * 3 + 3])
    d.bytes_at(d.vocab_offset, second + first)
    moved = d.vocab_offset + len(second)
    d.bytes_at(moved + 8, struct.pack("<I", moved + len(first) - 20))
    return d.header(vocab_offset=moved, tensor_index_offset=d.vocab_offset)


def holes():
    d = draft()
    whole = embd.vocab_section(WORDS, offset=d.vocab_offset)
    for hidden, expected in (
        (b"hidden text", {"field": "padding", "offset": INDEX, "late": True, "odd": "padding between sections"}),
        (b"hidden" * 20, {"field": "tensor_index_offset", "offset": 28}),
    ):
        hole = embd.Draft(TENSORS, vocab_bytes=whole + hidden).header(vocab_size=len(whole))
        yield case("E6", f"{len(hidden)} hidden bytes", hole, "LayoutError", **expected)
    hole = {"error": "LayoutError", "field": "tensor_data_offset", "offset": 36, "says": "there is a hole before"}
    for gap in (0, 1, 63, 64):
        wrong = hole if gap == 64 else {}
        yield case("E6", f"{gap} bytes behind the names", behind_the_names(gap), **wrong)
    d.bytes_at(NAMES + 3, b"\1")
    expected = {"field": "padding", "offset": NAMES + 3, "late": True, "odd": "padding between sections"}
    yield case("E6", "padding before the data", d, "LayoutError", **expected)


def descriptors():
    for count in (2**27, 2**31, U32):
        yield header("C4", f"{count} tensors", "LimitError", "max_tensors", 32, tensor_index_count=count)
    for count in (1000, 10**6):
        yield header("E10", f"{count} tensors", "TruncatedError", tensor_index_count=count)
    for nbytes, error in ((14, "TruncatedError"), (15, "LayoutError"), (30, "LayoutError")):
        data = bare(nbytes).header(tensor_index_count=2)  # two take 64 bytes; there are 33 of one, and the data
        yield case("E10", f"2 tensors in {33 + nbytes} bytes", data, error, field="tensor_index_count", offset=32)
    d = bare(31).header(tensor_index_count=2)
    yield case("E10", "2 tensors in 64 bytes", d, "LayoutError", field="tensor_data_offset", offset=36)
    # The names are read as the fourth descriptor.
    data = draft().header(tensor_index_count=4)
    yield case("E10", "a tensor too many", data, "FormatError", field="ndim", offset=NAMES + 5)
    for count, used in enumerate((0, 24, 64 + 5)):
        data = draft().header(tensor_index_count=count)
        yield case("E10", f"{count} tensors of 3", data, "LayoutError", field="data", offset=DATA + used)
    for number in range(3):
        name, says = f"hash of tensor {number}", f"{embd.fnv1a32(b'abc'[number : number + 1]):#x}"
        yield descriptor("E11", name, "ChecksumError", "name_hash", number=number, name_hash=5, says=says)
    for code in (9, 10, 127, 255):
        says = f"is {code}, expected one of 0 "
        yield descriptor("C14", f"dtype {code}", "UnsupportedError", "dtype", dtype=code, says=says)
    for number in (1, 2):
        yield descriptor("C14", f"dtype of tensor {number}", "UnsupportedError", "dtype", number=number, dtype=77)
    for ndim in (0, 5, 64, 255):
        row = "E12" if ndim == 64 else "C8"
        yield descriptor(row, f"{ndim} dimensions", "FormatError", "ndim", ndim=ndim)
    yield descriptor("E12", "fewer dimensions than the shape", "FormatError", "shape", ndim=1)
    yield descriptor("E12", "unused dimension", "FormatError", "shape", shape2=1)
    yield descriptor("E12", "last unused dimension", "FormatError", "shape", shape3=U32)
    for length in (0, 2):
        yield descriptor("E10", f"name of {length} bytes", "ChecksumError", "name_hash", name_length=length)
    yield descriptor("E10", "name of 65535 bytes", "LayoutError", "name_length", name_length=65535)
    for shape in ((U32, U32), (2**16,) * 4, (U32,) * 4, (2**31, 2**31, 1, 1), (2**31, 2**31, 2, 0)):
        lie = {f"shape{axis}": dim for axis, dim in enumerate(shape)} | {"ndim": len(shape)}
        yield descriptor("C6", f"shape {'x'.join(map(str, shape))}", "LayoutError", "shape", **lie)


def data_section():
    yield descriptor("E13", "rows past the data", "LayoutError", "data_offset", shape0=1000)
    yield descriptor("C5", "data of 2^32 rows", "LayoutError", "data_offset", shape0=U32)
    for offset in (2**64 - 24, 2**64 - 64, 2**64 - 16, U64, 10**6, 136):
        row = "C5" if offset > 10**6 else "E13"
        yield descriptor(row, f"data at {offset}", "LayoutError", "data_offset", data_offset=offset)
    yield descriptor("E13", "data not aligned", "LayoutError", "data_offset", data_offset=4)
    late = draft().descriptor(1, shape0=72)
    yield case(
        "C9",
        "rows into the next tensor",
        late,
        "LayoutError",
        field="data_offset",
        offset=INDEX + 64 + 24,
        odd="overlaps",
    )
    yield descriptor(
        "C9", "bytes of the next tensor", "LayoutError", "data_offset", data_offset=64, odd="leaves a hole"
    )
    for first, second, told in ((0, 0, 1), (64, 0, 0), (64, 64, 0)):
        d = embd.Draft([("a", noise("uint8", (100,))), ("b", noise("uint8", (100,)))])
        d.descriptor(0, data_offset=first).descriptor(1, data_offset=second)
        place = d.index_offset + 32 * told + 24
        odd = "leaves a hole" if first else "overlaps"
        name = f"tensors at {first} and {second}"
        yield case("C9", name, d, "LayoutError", field="data_offset", offset=place, odd=odd)
    yield from unclaimed()
    for size in (0, 1, 64):
        yield header("E13", f"data of {size} bytes", "LayoutError", tensor_data_size=size)
    yield header("E13", "data of 137 bytes", "LayoutError", tensor_data_size=137)
    for size in (200, 2**32, 2**63, 2**64 - 16, U64):
        row = "C5" if size > 2**32 else "E13"
        yield header(row, f"data of {size} bytes", "TruncatedError", tensor_data_size=size)
    for at in range(193):  # one byte of padding, none, and 60 behind the last tensor, at the ends of each
        if at in {0, 62, 63, 64, 127, 128, 131, 132, 133, 190, 191}:
            d = padded()
            d.data[d.data_offset + at] ^= 1
            told = d.data_offset + (63 if at == 63 else 132)
            expected = {"error": "LayoutError", "field": "padding", "offset": told, "late": True}
            expected["odd"] = "padding between tensors"
            yield case("E13", f"byte {at} of the data", d, **(expected if at == 63 or at > 131 else {}))

    for size in (1, 2, 63):  # padding behind the last tensor, with a last byte other than zero
        d = embd.Draft([("a", noise("uint8", (5,)))], metadata=b"")
        d.data[-16:-16] = bytes(size - 1) + b"\1"
        d.data_size += size
        d.header(tensor_data_size=d.data_size, total_file_size=len(d.data))
        expected = {"field": "padding", "offset": d.data_offset + 5, "late": True, "odd": "padding between tensors"}
        yield case("E13", f"the last of {size} bytes behind the data", d, "LayoutError", **expected)


def padded():
    d = embd.Draft([(name, noise("uint8", (size,))) for name, size in (("a", 63), ("b", 64), ("c", 4))], metadata=b"")
    d.data[-16:-16] = bytes(60)
    d.data_size += 60
    return d.header(tensor_data_size=d.data_size, total_file_size=len(d.data))


def unclaimed():
    first = embd.Draft([("a", noise("uint8", (64,))), ("b", noise("uint8", (64,))), ("c", noise("uint8", (64,)))])
    first.descriptor(1, shape0=0)
    place = first.index_offset + 64 + 24
    yield case("C9", "a hole between tensors", first, "LayoutError", field="data_offset", offset=place, odd="a hole")
    last = embd.Draft([("a", noise("uint8", (64,))), ("b", noise("uint8", (200,)))]).descriptor(1, shape0=10)
    yield case(
        "C9",
        "a hole behind the last",
        last,
        "LayoutError",
        field="data",
        offset=last.data_offset + 74,
        odd="trailing bytes",
    )


def metadata():
    section, entry = embd.metadata_section, embd.metadata_section([("key", "value")])[:8]
    for count in (0, 1):
        data = draft(metadata=section(PAIRS, count=count))
        yield case("E7", f"{count} entries of 2", data, "LayoutError", field="metadata_size", offset=16)
    for count in (3, 2**31, U32):
        row = "C4" if count > 3 else "E7"
        data = draft(metadata=section(PAIRS, count=count))
        yield case(row, f"{count} entries", data, "TruncatedError", field="entry_count", offset=64)
    past = {
        "key past the section": section(PAIRS)[:-9] + struct.pack("<HH", 65535, 5) + b"value",
        "value past the section": entry + struct.pack("<HH", 3, 65535) + b"keyvalue",
        "value one byte past": entry + struct.pack("<HH", 3, 6) + b"keyvalue",
    }
    for name, raw in past.items():
        yield case("E7", name, draft(metadata=raw), "TruncatedError", field="entry_count", offset=64)
    data = draft(metadata=section(PAIRS) + b"hidden")
    yield case("E7", "bytes behind the entries", data, "LayoutError", field="metadata_size", offset=16)
    for size in (1, 4, 7, 8, 9):  # two counts
        wrong = {"error": "LayoutError", "field": "metadata_size", "offset": 16, "says": f"is {size},"}
        yield case("E7", f"metadata of {size} zeros", draft(metadata=bytes(size)), **({} if size == 8 else wrong))
    data = draft(metadata=section([("key", "1"), ("key", "2")]))
    yield case("E7", "a key twice", data, "LayoutError", field="metadata", offset=64)
    data = draft(metadata=section(embd.REQUIRED.items(), total=7))
    yield case("E7", "total size 7", data, odd="total_size of the metadata is 7")
    data = draft(metadata=section([("model_name", "m")]))
    yield case("E7", "required keys missing", data, odd="metadata lacks keys")
    yield case("E7", "all required keys missing", draft(metadata=section([("key", "1")])))
    for name, raw in BAD_UTF8.items():
        data = draft(metadata=section([(raw, "1")]))
        yield case("C11", f"key {name}", data, "FormatError", field="metadata", offset=64 + 8)
        data = draft(metadata=section([("key", raw)]))
        yield case("C11", f"value {name}", data, "FormatError", field="metadata", offset=64 + 8)


VOCAB = PLACES.vocab_offset


def vocabulary(row, name, error, field, offset, raw, **more):
    return case(row, name, draft(vocab=None, vocab_bytes=raw), error, field=field, offset=offset, **more)


def vocabularies():
    def section(**options):
        return embd.vocab_section(WORDS, offset=VOCAB, **options)

    def words(tokens, ids=(0, 1, 2, 3, 4)):
        return embd.vocab_section(tokens, ids, offset=VOCAB)

    whole = section()
    late = {"late": True, "field": "vocabulary"}
    for count in (len(WORDS) - 1, 0):
        end = VOCAB + 12 + (len(whole) - 32 - 8 if count else 0)
        data, says = (
            draft(vocab=None, vocab_bytes=section(count=count)),
            f"the {count} tokens end before the vocabulary does",
        )
        yield case("E8", f"{count} tokens of 6", data, "LayoutError", offset=end, says=says, **late)
    raw = section(count=7)
    yield case("E8", "7 tokens of 6", draft(vocab=None, vocab_bytes=raw), "LayoutError", offset=VOCAB + 12, **late)
    for size in range(29, 37):  # 32 bytes, and two for each token
        raw = struct.pack("<3I", max(size - 32, 0) // 2, max(size - 32, 0), VOCAB + max(size - 20, 12)) + bytes(
            size - 12
        )
        for count in {max(size - 32, 0) // 2, max(size - 32, 0) // 2 + 1}:
            data, at = struct.pack("<I", count) + raw[4:], VOCAB
            wrong = {"error": "TruncatedError", "field": "token_count", "offset": at}
            if size < 32:
                wrong = {"error": "TruncatedError", "field": "vocab_size", "offset": 24, "says": f"is {size},"}
            elif count == (size - 32) // 2:
                wrong = {"error": "LayoutError", "offset": at + 12 + 2 * count, **late} if size % 2 else {}
            odd = None if wrong else ("special ids are not below", None, "the vocabulary has 1 repeated token")[count]
            name = f"{count} tokens in {size} bytes"
            yield case("E8", name, draft(vocab=None, vocab_bytes=data), odd=odd, **wrong)
    for count in (2**31, U32):
        yield vocabulary("C4", f"{count} tokens", "TruncatedError", "token_count", VOCAB, section(count=count))
    sizes = {"too small": 3, "two too small": len(whole) - 34, "one too small": len(whole) - 33}
    for name, total in sizes.items():
        yield vocabulary("E8", f"total size {name}", "LayoutError", "total_size", VOCAB + 4, section(total=total))
    raw = section(total=len(whole) - 31)
    yield vocabulary("E8", "total size one too large", "TruncatedError", "total_size", VOCAB + 4, raw)
    yield vocabulary("E8", "total size too large", "TruncatedError", "total_size", VOCAB + 4, section(total=U32))
    yield vocabulary("E8", "bytes behind the ids", "LayoutError", "total_size", VOCAB + 4, whole + b"hidden")
    for size in (8, 12):
        yield vocabulary("E8", f"of {size} bytes only", "TruncatedError", "vocab_size", 24, whole[:size])
    at = 12
    for number, token in enumerate(WORDS):
        length, says = struct.pack("<H", len(token.encode()) + 100), f"token {number} runs past the end"
        data = draft(vocab=None, vocab_bytes=put(whole, at, length))
        yield case("E8", f"token {number} too long", data, "LayoutError", offset=VOCAB + 12, says=says, **late)
        at += 2 + len(token.encode())
    # The ids stand behind the tokens or before them, counted from the file or the section, and nowhere else.
    for before, raw in ((True, section(special="before")), (False, whole)):
        good = 12 if before else len(raw) - 20
        for start in (0, VOCAB):
            for place in (good - 1, good, good + 1):
                data = draft(vocab=None, vocab_bytes=put(raw, 8, struct.pack("<I", start + place)))
                wrong = {"error": "LayoutError", "field": "special_tokens", "offset": VOCAB + 8}
                name = f"special ids at {start + place}"
                yield case(
                    "E8", name, data, **({} if place == good else wrong), says="" if place == good else "special"
                )
    for length in (49, 50):  # an ambiguous place counts from the start of the file
        raw = embd.vocab_section(["t" * length], special="relative-after")
        wrong = {"error": "LayoutError", "field": "special_tokens", "offset": 64 + 8}
        wrong = {"odd": "special ids are not below"} if length == 49 else wrong
        data = embd.Draft([], metadata=b"", vocab_bytes=raw)
        yield case("E8", f"special ids at {14 + length} of the section", data, **wrong)
    for name, place in {
        "past the section": 10**6,
        "half outside": VOCAB + len(whole) - 8,
        "at 2^32 - 1": U32,
        "in the section's header": VOCAB,
        "among the tokens": VOCAB + 14,
    }.items():
        raw = whole[:8] + struct.pack("<I", place) + whole[12:]
        yield vocabulary("E8", f"special ids {name}", "LayoutError", "special_tokens", VOCAB + 8, raw)
    raw = words([*WORDS, "zwölf"])
    yield case("E8", "a token twice", draft(vocab=None, vocab_bytes=raw), odd="the vocabulary has 1 repeated token")
    raw = words(WORDS, (0, 1, 2, 6, 2**31))
    yield case("E8", "ids too large", draft(vocab=None, vocab_bytes=raw), odd="special ids are not below")
    for last, odd in ((5, None), (6, "special ids are not below"), (U32, None)):
        yield case("E8", f"id {last}", draft(ids=(0, 1, 2, U32, last)), odd=odd)
    for number in range(len(WORDS)):
        raw = words([*WORDS[:number], b"\xff", *WORDS[number + 1 :]])
        at = VOCAB + 12 + sum(2 + len(token.encode()) for token in WORDS[:number]) + 2
        data = draft(vocab=None, vocab_bytes=raw)
        yield case("C11", f"token {number} ff", data, "FormatError", field="token", offset=at, late=True)
    for name, token in BAD_UTF8.items():
        raw = words([*WORDS, token])
        at = VOCAB + 12 + len(raw) - 32 - len(token)
        data = draft(vocab=None, vocab_bytes=raw)
        yield case("C11", f"token {name}", data, "FormatError", field="token", offset=at, late=True)


def before_the_footer(padding):
    d = draft()
    d.data[-16:-16] = padding
    return d.header(total_file_size=len(d.data))


def footers():
    end = END - 16
    hidden = {"field": "padding", "offset": end, "late": True, "odd": "padding before the footer"}
    yield case("E13", "hidden bytes before the footer", before_the_footer(b"hidden"), "LayoutError", **hidden)
    yield case("E13", "a hidden byte before the footer", before_the_footer(b"\1"), "LayoutError", **hidden)
    far = {"field": "tensor_data_size", "offset": 40}
    yield case("E13", "a footer 64 bytes later", before_the_footer(bytes(64)), "LayoutError", **far)
    yield case("E13", "a footer 63 bytes later", before_the_footer(bytes(63)))
    for name, magic in {"of the header": b"EMBD", "cut": b"DBM\0", "zeros": bytes(4)}.items():
        data = draft().footer(magic_end=magic)
        yield case("E1", f"footer magic {name}", data, "TruncatedError", field="magic_end", offset=END - 8)
    data = draft().footer(reserved=1)
    odd = "footer reserved is 1"
    yield case(
        "E4", "reserved field of the footer", data, "FormatError", field="footer reserved", offset=END - 4, odd=odd
    )
    for field, offset in (("data_checksum", END - 16), ("file_checksum", END - 12)):
        data = draft().footer(**{field: 0})
        yield case("E14", f"{field} 0", data, "ChecksumError", field=field, offset=offset, late=True)
    for name, place, field, offset in (
        ("data changed", DATA + 3, "data_checksum", END - 16),
        ("metadata changed", 64 + 8 + 4 + 4, "file_checksum", END - 12),
        ("a token changed", VOCAB + 12 + 3, "file_checksum", END - 12),
    ):
        raw = bytearray(draft().seal())
        raw[place] ^= 1
        yield case("E14", name, bytes(raw), "ChecksumError", field=field, offset=offset, late=True)


def names():
    def named(*names):
        return embd.Draft([(name, normal((2,))) for name in names])

    for name, given, second in (
        ("twice", ("a", "a"), 1),
        ("twice, far apart", ("a", "b", "c", "a"), 3),
        ("empty, twice", ("", ""), 1),
        ("twice among equal hashes", ("costarring", "liquid", "costarring"), 2),
    ):
        d = named(*given)
        expected = {"field": "name", "offset": d.index_offset + 32 * second}
        yield case("C10", f"name {name}", d, "LayoutError", **expected)
    yield case("C10", "empty name", named("", "a"), odd="empty name")
    yield case("C18", "equal hashes", named("costarring", "liquid"))
    for name, raw in BAD_UTF8.items():
        d = named("first", raw)
        yield case("C11", f"name {name}", d, "FormatError", field="name", offset=d.index_offset + 32)
    for name, text in WILD_NAMES.items():
        yield case("C11", name, named(text))


def legal():
    for place in (0, 64):
        data = draft(metadata=b"").header(metadata_offset=place)
        yield case("E7", f"no metadata, at {place}", data)
    for shape in ((0,), (0, 4), (2, 0, 3), (U32, 0)):
        tensors = [("a", Tensor("float32", shape, b"")), ("b", normal((2,)))]
        yield case("C7", f"shape {'x'.join(map(str, shape))}", embd.Draft(tensors))
    yield case("C20", "no tensors", embd.Draft())
    for dtype in ("float32", "float16", "bfloat16"):
        yield case("C16", f"any bits of {dtype}", embd.Draft([("a", noise(dtype, (64,)))]))


def beginnings():
    nothing = embd.Draft([], metadata=b"", aligned=False).seal()
    yield case("C20", "80 bytes", nothing)
    expected = {"error": "TruncatedError", "field": "total_file_size", "offset": 48}
    yield case("E5", "79 bytes", nothing[:79], says="(was the download complete?): size is 79, expected 80", **expected)
    for name, data in (("whole", SOUND[KIND]), ("nothing", nothing)):
        for size in (8, 15, 16, 31, 32, 55, 56, 79):
            says = "the file ends within its header and footer (was the download complete?), expected at least 80 bytes"
            says += ", or 16 in the simple layout (" if size < 16 else " ("
            expected = {"offset": size, "says": says}
            if size >= 56:
                expected = {"field": "total_file_size", "offset": 48, "says": f"is {size}, expected {len(data)}"}
            yield case("E5", f"{size} bytes of {name}", data[:size], "TruncatedError", **expected)
    # Sections out of order do not point to this layout, nor does a size up to the file's.
    for field, value in (("metadata_offset", 128), ("vocab_offset", 128), ("tensor_index_offset", 0)):
        data = draft().header(**{field: value}).seal()[:48]
        yield case("E6", f"48 bytes, {field} {value}", data, "TruncatedError", field="tensor_count", offset=8)
    data = draft().header(total_file_size=60).seal()[:60]
    yield case("E5", "60 bytes of 60", data, "TruncatedError", offset=60)
