"""Bounds of files, exactly: what is read at the bound, and what is said one beyond it, in all formats and in EMBD."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from tests.bounds_support import BOUNDLESS, around, error_of, refused, warnings_of
from tests.builders import bintensors, cnn_v2, embd, examples, finalfusion, noise, normal, safetensors

import weightmap as wm
from weightmap.formats import FORMATS, Verification
from weightmap.formats.embd import _begins_spec
from weightmap.formats.embd.layout import ALIGNMENT, HEADER, OFFSETS
from weightmap.io.source import Source

U32 = 2**32 - 1


# ----------------------------------------------------------------------------------------------------- every format


def headers() -> dict[str, tuple[bytes, int]]:
    """Files, and the bytes of the largest header, index or section of metadata in each, by what that is."""
    text = {"k": "v" * 1000}
    rows = [("n" * 900, noise("uint8", (1,)))]
    spec = embd.Draft(rows, metadata=embd.metadata_section(text.items()))
    index = embd.Draft(rows, metadata=b"")
    words = embd.simple([("a", normal((1,)))], ["t" * 1000])
    toml = finalfusion.metadata("a = 1 #" + "x" * 1000)
    layers = [cnn_v2.layer(1, 1, 1)] * 30
    framed = {
        "safetensors": safetensors.build({"n" * 900: normal((1,))}),
        "bintensors": bintensors.build({"n" * 900: normal((1,))}),
    }
    return {
        "EMBD metadata": (spec.seal(), 8 + 4 + 1 + 1000),
        "EMBD index": (index.seal(), index.data_offset - index.index_offset),
        "EMBD vocabulary": (words, 4 + 1000),
        "finalfusion metadata": (
            finalfusion.build([toml, finalfusion.simple(["w"]), finalfusion.matrix(normal((1, 1)))]),
            len(toml.fields),
        ),
        "CNN v2": (cnn_v2.build(layers), 20 + 20 * len(layers)),
    } | {name: (data, int.from_bytes(data[:8], "little")) for name, data in framed.items()}


@pytest.mark.parametrize("name", headers())
def test_headers_as_large_as_allowed(name):
    """A header of as many bytes as `max_header_bytes` says is read; with a limit of one less it is a LimitError."""
    data, size = headers()[name]
    wm.open(memoryview(data), limits=wm.Limits(max_header_bytes=size)).close()
    error = refused(data, limits=wm.Limits(max_header_bytes=size - 1))
    assert isinstance(error, wm.LimitError)
    assert (error.field, error.actual) == ("max_header_bytes", size)


def test_each_format_claims_its_own_files_and_no_others():
    """The format of a file claims it, and no other does, or none that is as certain."""
    for example in examples():
        claims = [format.name for format in FORMATS.values() if format.claims(example.data[:4096], len(example.data))]
        certain = [name for name in claims if FORMATS[name].leads]
        assert (certain or claims) == [example.format], example.name
        leads = FORMATS[example.format].leads
        assert not leads or example.data[:1] in [leads[i : i + 1] for i in range(len(leads))], example.name


# --------------------------------------------------------------------------------- headers that their length frames


@pytest.mark.parametrize("format", ["safetensors", "bintensors"])
def test_the_largest_header_that_the_references_read(format):
    """A header of 100,000,000 bytes is looked for in the file; a larger one is refused, whatever `limits` allow."""
    start = b'{"' if format == "safetensors" else b"\0\0"
    for length, cls, field in ((10**8, wm.TruncatedError, "n"), (10**8 + 1, wm.FormatError, "n")):
        error = refused(struct.pack("<Q", length) + start, format=format, limits=BOUNDLESS)
        assert (type(error), error.field) == (cls, field)
    error = refused(struct.pack("<Q", 10**8 + 1) + start, format=format)
    assert type(error) is wm.LimitError


@pytest.mark.parametrize("start", [b'{"', b"{\n", b"\x80\x02"])
def test_two_bytes_do_not_decide_the_format(start):
    """A length may read like two letters of another format: a file that is cut off is reported as truncated."""
    data = start.ljust(8, b"\0") + b"\0" * 20
    assert type(refused(data)) is wm.TruncatedError


@pytest.mark.parametrize("format", ["safetensors", "bintensors"])
@pytest.mark.parametrize("size", range(1, 13))
def test_files_that_end_within_their_header(format, size):
    """A file that ends within the length of its header says so, and one that ends within the header how long it is."""
    data = (struct.pack("<Q", 4) + (b"{}  " if format == "safetensors" else b"\0\0\0 "))[:size]
    error = error_of(data, format=format)
    if size == 12:
        assert error is None
    else:
        assert isinstance(error, wm.TruncatedError)
        assert ("within the length of its header" in str(error)) == (size < 8)
        assert error.offset == size


@pytest.mark.parametrize("format", ["safetensors", "bintensors"])
@pytest.mark.parametrize("difference", [-1, 0, 1])
def test_data_by_one_byte(format, difference):
    """A byte of data too few is a TruncatedError, one too many a LayoutError, or odd with ``strict=False``."""
    build = {"safetensors": safetensors.build, "bintensors": bintensors.build}[format]
    data = build({"a": noise("uint8", (7,))})
    data = data[:-1] if difference < 0 else data + bytes(difference)
    strict, lax = error_of(data), error_of(data, strict=False)
    assert type(strict) is {-1: wm.TruncatedError, 0: type(None), 1: wm.LayoutError}[difference]
    assert type(lax) is {-1: wm.TruncatedError, 0: type(None), 1: type(None)}[difference]


# ------------------------------------------------------------------------------------------------------------- EMBD
WORDS = ["[PAD]", "[UNK]", "zwölf"]
TENSORS = [("a", normal((2, 3))), ("b", noise("int8", (5,))), ("c", noise("float16", (2, 2)))]
NAMES = 3  # bytes of them


def draft(**options: Any) -> embd.Draft:
    """Three tensors, metadata and a vocabulary."""
    options.setdefault("vocab", WORDS)
    return embd.Draft(TENSORS, metadata={"k": "v"}, **options)


def misplaced(fields: dict[str, Any], size: int) -> tuple[str, ...] | None:
    """The error for the place of a section, by the documents: the class, and words of the message."""
    limit, end = size - 16, 64
    sections = [("metadata", fields["metadata_size"], "metadata_size")]
    sections += [("vocab", fields["vocab_size"], "vocab_size")]
    sections += [("tensor_index", 32 * fields["tensor_index_count"], "tensor_index_count")]
    sections += [("tensor_data", fields["tensor_data_size"], "tensor_data_size")]
    for name, bytes_, sized in sections:
        field = f"{name}_offset"
        start = fields[field]
        if name in {"metadata", "vocab"} and not bytes_ and not (name == "metadata" and start):
            continue
        if start < end:
            return "LayoutError", field, f"two sections overlap: {field} is {start}, expected at least {end}"
        if name != "tensor_data" and start - end >= 64:
            return "LayoutError", field, f"there is a hole before a section: {field} is {start}"
        if start > limit:
            return "LayoutError", field, f"begins past the end of the file: {field} is {start}"
        if start + bytes_ > limit:
            cls = "TruncatedError" if start + bytes_ > size else "LayoutError"
            return cls, sized, f"the section at {field} does not fit in the file: its end is {start + bytes_}"
        end = start + bytes_
    if limit - end >= 64:
        return "LayoutError", "tensor_data_size", "there is a hole behind the tensor data"
    return None


PLACED = ("two sections overlap", "there is a hole", "past the end of the file", "does not fit in the file")


@pytest.mark.parametrize("vocab", [WORDS, None])
@pytest.mark.parametrize(
    "field",
    [name for name in embd.HEADER_FIELDS if name.startswith(("metadata_", "vocab_", "tensor_"))],
)
def test_sections_of_embd(field, vocab):
    """A section may begin up to 63 bytes behind the one before it, and end with the file: to the byte."""
    sound = draft(vocab=vocab)
    size, width = len(sound.data), {"I": 32, "Q": 64}[embd.HEADER_FIELDS[field][1]]
    right = embd.fields_of(sound.seal())[field]
    if vocab is None and field.startswith("vocab_"):
        return  # a matter of the flag
    values = {
        *around(right, 200),
        *around(size, 140),
        *around(size // 32, 5),
        0,
        1,
        2**31,
        2 ** (width - 1),
        2**width - 1,
    }
    for value in sorted(values):
        data = draft(vocab=vocab).header(**{field: value}).seal()
        fields = embd.fields_of(data)
        if field == "vocab_size" and value == 0:
            continue
        expected, error = misplaced(fields, size), error_of(data, limits=BOUNDLESS)
        if expected is not None:
            assert error is not None, value
            assert (type(error).__name__, error.field) == expected[:2], (value, str(error))
            assert expected[2] in str(error), value
        else:
            end = fields["tensor_index_offset"] + 32 * fields["tensor_index_count"] + NAMES
            hole = fields["tensor_data_offset"] - end >= 64
            assert not any(words in str(error) for words in PLACED) or hole, (value, str(error))


@pytest.mark.parametrize("nbytes", range(1, 34))
def test_descriptors_that_the_file_has_room_for(nbytes):
    """The descriptors end where the footer begins, or before: by a byte more they do not fit."""
    sound = embd.Draft([("a", noise("uint8", (nbytes,)))], metadata=b"", aligned=False)
    room = len(sound.data) - 16 - sound.index_offset
    for count in around(room // 32):
        error = error_of(
            embd.Draft([("a", noise("uint8", (nbytes,)))], metadata=b"", aligned=False)
            .header(tensor_index_count=count)
            .seal()
        )
        assert (error is not None and error.field == "tensor_index_count") == (32 * count > room)


@pytest.mark.parametrize("gap", [62, 63, 64, 65])
def test_a_section_with_a_gap_that_does_not_fit(gap):
    """A gap that is too large is reported before the section behind it that is too large as well."""
    error = refused(draft().header(metadata_offset=64 + gap, metadata_size=10**6).seal())
    assert (error.field, error.actual) == (
        ("metadata_size", 64 + gap + 10**6) if gap < 64 else ("metadata_offset", 64 + gap)
    )


@pytest.mark.parametrize("gap", [0, 1, 62, 63, 64, 65])
def test_padding_behind_the_names_of_embd(gap):
    """Between the names and the data lie at most 63 bytes."""
    sound = embd.Draft([("a", noise("uint8", (3,)))], metadata=b"", aligned=False)
    data = bytearray(sound.data[: sound.data_offset] + bytes(gap) + sound.data[sound.data_offset :])
    sound.data, sound.data_offset = data, sound.data_offset + gap
    sound.header(tensor_data_offset=sound.data_offset, total_file_size=len(data))
    error = error_of(sound.seal())
    assert (error is None) == (gap < 64)
    if error is not None:
        assert (error.field, "there is a hole before a section" in str(error)) == ("tensor_data_offset", True)


@pytest.mark.parametrize("gap", [0, 1, 62, 63, 64, 65])
def test_padding_behind_the_data_of_embd(gap):
    """Between the data and the footer lie at most 63 bytes, and those are zero."""
    for byte in (0, 1):
        sound = embd.Draft([("a", noise("uint8", (3,)))], metadata=b"", aligned=False)
        sound.data[-16:-16] = bytes(max(gap - 1, 0)) + bytes([byte]) * min(gap, 1)
        sound.header(total_file_size=len(sound.data))
        data = sound.seal()
        error = error_of(data)
        assert (error is None) == (gap < 64)
        if gap < 64:
            with wm.open(memoryview(data)) as f:
                if gap and byte:
                    with pytest.raises(wm.LayoutError, match="padding before the footer"):
                        f.verify()
                else:
                    f.verify()


@pytest.mark.parametrize("difference", range(-2, 3))
def test_the_size_that_the_header_of_embd_says(difference):
    """A file a byte shorter or longer than its header says is reported as such, as is one without a footer."""
    sound = draft()
    size = len(sound.data)
    error = error_of(sound.header(total_file_size=size + difference).seal())
    assert type(error) is {0: type(None)}.get(difference, wm.TruncatedError if difference > 0 else wm.LayoutError)
    assert error is None or (error.field, error.actual, error.expected) == ("total_file_size", size, size + difference)
    error = refused(draft().footer(magic_end=b"DBMF").seal())
    assert (type(error), error.field) == (wm.TruncatedError, "magic_end")


def test_the_smallest_file_of_embd():
    """The layout of the specification has 80 bytes at least."""
    data = embd.Draft([], metadata=b"", aligned=False).seal()
    assert len(data) == 80
    with wm.open(memoryview(data)) as f:
        assert (f.layout, len(f)) == ("spec", 0)
    with pytest.raises(wm.TruncatedError, match="shorter than its header says"):
        wm.open(memoryview(data[:79]))


@pytest.mark.parametrize("size", range(32, 80))
@pytest.mark.parametrize(
    "make", [draft, lambda: embd.Draft(TENSORS, metadata={"k": "v"}), lambda: embd.Draft([], metadata=b"")]
)
def test_the_beginning_of_a_file_of_the_specification(make, size):
    """Where 32 bytes or more are there, the error is of that layout, and not of the simple one."""
    data = make().seal()
    with pytest.raises(wm.TruncatedError) as caught:
        wm.open(memoryview(data[:size]))
    whole = f"size is {size}, expected {len(data)} (at byte 48)"
    assert (whole if size >= 56 else "the file ends within its header and footer") in str(caught.value)


@pytest.mark.parametrize("size", range(8, 32))
@pytest.mark.parametrize("make", [draft, lambda: embd.Draft(TENSORS, metadata={"k": "v"})])
def test_a_header_that_ends_early(make, size):
    """A file that ends within the header's first fields ends within the header: it does not lack tensors.

    One that is shorter than every file of the simple layout may be of that, and the error says so.
    """
    whole = "the file ends within its header and footer, expected at least 80 bytes"
    also = ", or 16 in the simple layout" if size < 16 else ""
    with pytest.raises(wm.TruncatedError, match=rf"^<memoryview>: {whole}{also} \(at byte {size}\)$"):
        wm.open(memoryview(make().seal()[:size]))
    wm.open(b"EMBD\1\0\0\0".ljust(16, b"\0")).close()


def test_sections_out_of_order_are_no_sign_of_the_specification():
    """A short file whose metadata or index lies elsewhere than behind the header is taken for the simple layout."""
    for field, value in (("metadata_offset", 128), ("vocab_offset", 128), ("tensor_index_offset", 0)):
        data = draft().header(**{field: value}).seal()
        with pytest.raises(wm.TruncatedError) as caught:
            wm.open(memoryview(data[:48]))
        assert caught.value.field == "tensor_count"
    # A size that is not larger than that of the file says nothing.
    with pytest.raises(wm.TruncatedError, match="within its header and footer"):
        wm.open(memoryview(draft().header(total_file_size=60).seal()[:60]))


@pytest.mark.parametrize("flags", range(17))
def test_flags_of_embd(flags):
    """The three flags may stand in any combination with their sections; a fourth is refused."""
    data = embd.Draft([("a", noise("uint8", (64,)))], metadata=b"", aligned=False).header(flags=flags).seal()
    error = error_of(data)
    if flags >= 8:
        assert type(error) is wm.UnsupportedError
        assert error.field == "flags"
    elif flags & 1:
        assert type(error) is wm.LayoutError
        assert error.field == "vocab_size"
    else:
        assert error is None


@pytest.mark.parametrize("size", range(30, 40))
def test_the_smallest_vocabulary_of_embd(size):
    """A vocabulary has 32 bytes at least, and two more for each of its tokens."""
    section = bytearray(embd.vocab_section([], offset=64))[:size] + bytes(max(0, size - 32))
    if size >= 32:  # the special ids stand at its end
        section = struct.pack("<3I", (size - 32) // 2, size - 32, 64 + size - 20) + bytes(size - 12)
    for count in around((size - 32) // 2):
        struct.pack_into("<I", section := bytearray(section), 0, count)
        error = error_of(embd.Draft([], metadata=b"", vocab_bytes=bytes(section)).seal())
        if size < 32:
            assert error is not None
            assert (type(error), error.field, error.actual) == (wm.TruncatedError, "vocab_size", size)
        elif count > (size - 32) // 2:
            assert error is not None
            assert (type(error), error.field) == (wm.TruncatedError, "token_count")
        else:
            assert error is None


@pytest.mark.parametrize("difference", [-2, -1, 0, 1, 2])
def test_the_bytes_of_all_tokens_of_embd(difference):
    """The declared bytes of a vocabulary's tokens are those of its section, and a byte more would be cut off."""
    words = embd.vocab_section(["abc", "d"], offset=64)
    total = struct.unpack_from("<I", words, 4)[0]
    words = words[:4] + struct.pack("<I", total + difference) + words[8:]
    error = error_of(embd.Draft([], metadata=b"", vocab_bytes=words).seal())
    assert type(error) is (wm.TruncatedError if difference > 0 else wm.LayoutError if difference else type(None))
    assert error is None or error.field == "total_size"


def test_where_the_special_ids_of_embd_stand():
    """Special ids stand behind the tokens or before them, counted from the file or the section, and nowhere else."""
    tokens = ["abc", "d"]
    size = len(embd.vocab_section(tokens))
    first = {"absolute": 64, "relative": 0}
    good = {(at + start) for at in first.values() for start in (12, size - 20)}
    for value in range(size + 64 + 30):
        words = bytearray(embd.vocab_section(tokens, offset=64))
        struct.pack_into("<I", words, 8, value)
        error = error_of(embd.Draft([], metadata=b"", vocab_bytes=bytes(words)).seal())
        assert (error is None) == (value in good), value
        assert error is None or (error.field, error.actual) == ("special_tokens", value)


@pytest.mark.parametrize("difference", [-1, 0, 1])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_tokens_end_with_their_section(number, difference):
    """The error names the first token that runs past the end of the vocabulary; ending before is not an error."""
    tokens = ["abc", "d", "ef"]
    words = bytearray(embd.vocab_section(tokens, offset=64))
    at = 12 + sum(2 + len(token) for token in tokens[:number])
    struct.pack_into("<H", words, at, len(tokens[number]) + (100 * difference if difference > 0 else 0))
    if difference < 0:  # the last one is a byte shorter than it was
        struct.pack_into("<H", words, 12 + 5 + 3, 1)
    with wm.open(memoryview(embd.Draft([], metadata=b"", vocab_bytes=bytes(words)).seal())) as f:
        if difference == 0:
            assert list(f.vocab) == tokens
            return
        with pytest.raises(wm.LayoutError) as caught:
            list(f.vocab)
    words = f"token {number} runs past the end" if difference > 0 else "the 3 tokens end before the vocabulary does"
    assert words in str(caught.value)
    assert caught.value.offset == 64 + 12 + (0 if difference > 0 else 11)


def test_a_vocabulary_without_tokens_that_has_bytes():
    """Where there are no tokens, bytes of them are left over."""
    words = embd.vocab_section(["a"], offset=64, count=0)
    f = wm.open(memoryview(embd.Draft([], metadata=b"", vocab_bytes=words).seal()))
    with pytest.raises(wm.LayoutError, match="the 0 tokens end before the vocabulary does") as caught:
        list(f.vocab)
    assert caught.value.offset == 64 + 12


@pytest.mark.parametrize("length", range(47, 53))
def test_a_place_that_is_both(length):
    """A place within the vocabulary is meant from the start of the file, and any other one from that of the section."""
    words = embd.vocab_section(
        ["t" * length], special="relative-after"
    )  # at 64, and the ids at 14 + length behind that
    error = error_of(embd.Draft([], metadata=b"", vocab_bytes=words).seal())
    assert (error is None) == (14 + length < 64)
    assert error is None or error.field == "special_tokens"


@pytest.mark.parametrize("size", range(1, 13))
def test_the_smallest_metadata_of_embd(size):
    """Metadata has eight bytes at least, which are two counts, or none."""
    error = error_of(embd.Draft([], metadata=bytes(size)).seal())
    assert (error is None) == (size == 8)
    assert error is None or (error.field, error.actual) == ("metadata_size", size)


@pytest.mark.parametrize("end", range(4094, 4100))
def test_metadata_that_ends_with_the_first_read(put, end):
    """Metadata that ends with the first page, or a byte before or behind it, is read whole."""
    draft = embd.Draft([], metadata={"k": "v" * (end - 64 - 8 - 5)})
    assert draft.vocab_offset == end
    with wm.open(put(draft.seal())) as f:
        assert dict(f.metadata) == {"k": "v" * (end - 77)}


@pytest.mark.parametrize("place", range(3))
def test_tokens_that_are_not_utf_8(place):
    """`verify` finds a token that is not UTF-8, at the beginning and at the end, in both layouts."""
    words: list[Any] = list(WORDS)
    words[place] = b"\xff"
    for data in (draft(vocab=words).seal(), embd.simple([], words)):
        with wm.open(memoryview(data)) as f, pytest.raises(wm.FormatError, match="UTF-8"):
            f.verify()


def test_ids_below_the_number_of_tokens():
    """A special id is that of a token: the last one is, and the number of tokens is one too many."""
    for last, odd in ((2, False), (3, True), (U32, False)):
        data = draft(ids=(0, 1, 2, U32, last)).seal()
        assert any("special ids are not below" in text for text in warnings_of(data)) == odd


@pytest.mark.parametrize("place", range(8))
def test_padding_between_tensors_of_embd(place):
    """A byte of padding that is not zero is found: where it is the only one between tensors, and behind the last."""
    # Data at 0 to 63, 64 to 127 and 128 to 131 of the section: one byte of padding, none, and 60 behind the last.
    rows = [("a", noise("uint8", (63,))), ("b", noise("uint8", (64,))), ("c", noise("uint8", (4,)))]
    sound = embd.Draft(rows, metadata=b"")
    sound.data[-16:-16] = bytes(60)
    sound.data_size += 60
    sound.header(tensor_data_size=sound.data_size, total_file_size=len(sound.data))
    at = (63, 132, 133, 190, 191, None, None, None)[place]
    if at is None:
        sound.data[sound.data_offset + (0, 62, 131)[place - 5]] ^= 1  # data is data
        assert not any("padding" in text for text in warnings_of(sound.seal()))
        return
    sound.data[sound.data_offset + at] = 1
    with wm.open(memoryview(sound.seal())) as f, pytest.raises(wm.LayoutError, match="between tensors") as caught:
        f.verify()
    assert caught.value.offset == sound.data_offset + (63 if at == 63 else 132)


@pytest.mark.parametrize("size", [1, 2, 63])
def test_padding_behind_the_last_tensor_of_embd(size):
    """A byte behind the last tensor that is not zero is found, even when it is the only one."""
    for place in (None, 0, size - 1):
        sound = embd.Draft([("a", noise("uint8", (5,)))], metadata=b"")
        tail = bytearray(size)
        if place is not None:
            tail[place] = 1
        sound.data[-16:-16] = tail
        sound.data_size += size
        sound.header(tensor_data_size=sound.data_size, total_file_size=len(sound.data))
        with wm.open(memoryview(sound.seal())) as f:
            if place is None:
                f.verify()
                continue
            with pytest.raises(wm.LayoutError, match="between tensors"):
                f.verify()


@pytest.mark.parametrize("piece", [1, 2, 3, 63, 64, 65, 100])
def test_padding_across_the_pieces_that_are_read(monkeypatch, piece):
    """However little a store sends at once, every byte of padding is looked at, in whatever piece it lies."""

    def chunks(self, offset, count):
        yield from self.source.chunks(offset, count, piece)

    monkeypatch.setattr(Verification, "chunks", chunks)
    monkeypatch.setattr(Source, "direct", None)  # as if it were an object in a store
    rows = [("a", noise("uint8", (61,))), ("b", noise("uint8", (1,))), ("c", noise("uint8", (3,)))]
    with wm.open(memoryview(embd.Draft(rows, metadata=b"").seal())) as f:
        f.verify()
    for at in (61, 62, 63, 65, 66, 126, 127):
        sound = embd.Draft(rows, metadata=b"")
        sound.data[sound.data_offset + at] = 1
        with wm.open(memoryview(sound.seal())) as f, pytest.raises(wm.LayoutError, match="between tensors"):
            f.verify()


@pytest.mark.parametrize("tokens", range(6))
def test_tensors_that_a_file_has_room_for(tokens):
    """In files of all sizes, a count above an eighth of the bytes behind it is refused by that."""
    data = bytearray(embd.simple([], [""] * tokens))
    for count in around((len(data) - 12) // 8):
        struct.pack_into("<I", data, 8, count)
        error = error_of(bytes(data))
        assert (error is not None and error.field == "tensor_count") == (count > (len(data) - 12) // 8)


@pytest.mark.parametrize("count", range(4))
def test_tensors_that_the_simple_layout_has_room_for(count):
    """A tensor takes eight bytes: where there is room for their number, the first that is missing is named."""
    data = bytearray(embd.simple()) + bytes(12)
    assert len(data) == 28
    struct.pack_into("<I", data, 8, count)
    error = error_of(bytes(data))
    if count == 0:
        assert error is not None
        assert error.field == "size"
    elif count <= 2:
        assert error is not None
        assert error.field == "ndim"  # of a tensor without a name, at the end of the file
    else:
        assert error is not None
        assert (type(error), error.field) == (wm.TruncatedError, "tensor_count")


@pytest.mark.parametrize("ndim", range(7))
def test_dimensions_of_the_simple_layout(ndim):
    """There are one to four."""
    shape = (1,) * ndim
    error = error_of(embd.simple([("a", normal(shape))]))
    assert (error is None) == (1 <= ndim <= 4)
    assert error is None or (error.field, error.actual, error.offset) == ("ndim", ndim, 17)


@pytest.mark.parametrize("cut", range(6))
def test_data_of_the_simple_layout_ends_with_the_file(cut):
    """The data of a tensor may end with the file, where the number of tokens is then missing, and not behind it."""
    data = embd.simple([("a", normal((2,)))])
    error = error_of(data[: len(data) - cut])
    if cut == 0:
        assert error is None
        return
    assert type(error) is wm.TruncatedError
    assert error.field == ("vocab_count" if cut <= 4 else "data")
    assert "the file ends within" in str(error)


@pytest.mark.parametrize(("count", "field"), [(2, None), (3, "vocabulary"), (4, "vocab_count")])
def test_tokens_that_the_simple_layout_has_room_for(count, field):
    """A token takes four bytes: where there is room for their number, the first that is missing is named."""
    data = bytearray(embd.simple([], ["ab", "cd"]))  # twelve bytes of tokens
    struct.pack_into("<I", data, 12, count)
    error = error_of(bytes(data))
    assert (error and error.field) == field


@pytest.mark.parametrize("length", range(4060, 4090))
def test_a_name_that_ends_with_the_window(length):
    """A name, or what follows it, that ends a byte behind what was read first is read whole."""
    name, value = "n" * length, normal((3,))
    with wm.open(memoryview(embd.simple([(name, value)]))) as f:
        assert {name: np.asarray(f[name]).tobytes() for name in f} == {name: value.data}


@pytest.mark.parametrize("size", range(1, 42))
def test_the_window_of_the_simple_layout(size):
    """Names and shapes that lie across the pieces in which the file is read are read right, wherever the cut is."""
    tensors = {f"{i}" * size: normal((1000 - size // 7,), i) for i in range(3)}
    data = embd.simple(tensors.items(), ["t" * 100])
    with wm.open(memoryview(data)) as f:
        assert {name: np.asarray(f[name]).tobytes() for name in f} == {k: v.data for k, v in tensors.items()}


END = HEADER.size
SECTIONS = {
    "an index behind the header": ((0, 0, 0, 0, END), True),
    "an index within the header": ((0, 0, 0, 0, END - 1), False),
    "an index behind padding": ((0, 0, 0, 0, END + ALIGNMENT - 1), True),
    "an index behind more than padding": ((0, 0, 0, 0, END + ALIGNMENT), False),
    "metadata behind the header": ((END, 8, 0, 0, END + 8), True),
    "metadata within the header": ((END - 1, 9, 0, 0, END + 8), False),
    "metadata behind padding": ((END + ALIGNMENT - 1, 1, 0, 0, END + ALIGNMENT), True),
    "metadata behind more than padding": ((END + ALIGNMENT, 1, 0, 0, END + ALIGNMENT + 1), False),
    "a vocabulary within metadata": ((END, 8, END + 7, 9, END + 16), False),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_headers_whose_sections_follow_one_another(name):
    """A short file has the specification's layout where each section begins within the padding behind the last one."""
    places, found = SECTIONS[name]
    head = bytes(OFFSETS["metadata_offset"]) + struct.pack("<5I", *places)
    assert _begins_spec(head) == found


SHORT = {
    "no flags": (b"", True),
    "all flags": (struct.pack("<I", 7), True),
    "a reserved flag, or 8 tensors": (struct.pack("<I", 8), False),
    "a part of the flags": (b"\x09\0\0", False),
    "no metadata": (struct.pack("<2I", 7, 0), False),
    "metadata within the header": (struct.pack("<2I", 7, END - 1), False),
    "metadata behind the header": (struct.pack("<2I", 7, END), True),
    "metadata behind padding": (struct.pack("<2I", 7, END + ALIGNMENT - 1), True),
    "metadata behind more than padding": (struct.pack("<2I", 7, END + ALIGNMENT), False),
    "a part of a place": (struct.pack("<2I", 7, 8)[:-1], True),
}


@pytest.mark.parametrize("name", SHORT)
def test_beginnings_of_headers(name):
    """Of a header that ends before its sections, the flags and the place of the metadata decide."""
    rest, found = SHORT[name]
    head = b"EMBD\1\0\0\0" + rest
    assert _begins_spec(head) == found
    assert _begins_spec(head + bytes(31 - len(head))) == (found and "behind" in name)
    assert not _begins_spec(head[:7])
