"""The scan of a safetensors header, against Python's json and explicit rules."""

import json
import random
import re
import struct

import pytest
from tests.scan_support import Arena
from tests.support import in_one_item

from weightmap._kernels import ffi, lib

# The order means nothing to C: it returns the position in this list. One name fills its field of 16 bytes.
DTYPES = ("F32", "F16", "BF16", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F", "SIXTEEN_LETTERS_")
DTYPE_TABLE = b"".join(name.encode().ljust(16, b"\0") for name in DTYPES)
INPUT, TABLE = Arena(1 << 20), Arena(4096)
TYPES = {"names": "u1", "bounds": "u4", "dtype": "u1", "dims": "u8", "dim_bounds": "u4", "begin": "u8", "end": "u8"}
OUTPUTS = {name: Arena(1 << 22) for name in TYPES}
DEPTH, DIMS = 64, 255
KEYS = ["data_offsets", "dtype", "shape"]
FAULT = {
    name.removeprefix("WM_FAULT_JSON_").removeprefix("WM_FAULT_"): getattr(lib, name)
    for name in dir(lib)
    if name.startswith("WM_FAULT_")
}


class ScanError(Exception):
    """The fault that the scan found: (name of the code, row, at)."""


def scan(text, *, cap=None, dims_cap=None):
    n = len(text)
    cap = n // 48 + 1 if cap is None else cap
    dims_cap = n // 2 if dims_cap is None else dims_cap
    sizes = (n, cap + 1, cap, dims_cap, cap + 1, cap, cap)
    arrays = {name: OUTPUTS[name].array(size, dtype) for (name, dtype), size in zip(TYPES.items(), sizes, strict=True)}
    pointers = {name: OUTPUTS[name].end(a.nbytes, f"uint{a.itemsize * 8}_t *") for name, a in arrays.items()}
    out, fault = ffi.new("wm_safetensors *"), ffi.new("wm_fault *")
    columns = ffi.new("wm_columns *", (cap, dims_cap, n, *pointers.values()))
    args = (INPUT.put(text), n, TABLE.put(DTYPE_TABLE), len(DTYPES), columns, out)
    result = lib.wm_safetensors_scan(*args, fault)
    assert lib.wm_safetensors_scan(*args, ffi.NULL) == result
    if result:
        assert result == -1
        assert 0 <= fault.at <= n
        assert fault.row <= cap
        raise ScanError(next(name for name, code in FAULT.items() if code == fault.code), fault.row, fault.at)
    assert fault.code == FAULT["NONE"]
    bounds, dim_bounds = arrays["bounds"].tolist(), arrays["dim_bounds"].tolist()
    names, dims = arrays["names"].tobytes(), arrays["dims"].tolist()
    assert (bounds[0], bounds[out.n_tensors]) == (0, out.names_len)
    assert (dim_bounds[0], dim_bounds[out.n_tensors]) == (0, out.n_dims)
    tensors = [
        (
            names[bounds[i] : bounds[i + 1]].decode(),
            DTYPES[arrays["dtype"][i]],
            dims[dim_bounds[i] : dim_bounds[i + 1]],
            [int(arrays["begin"][i]), int(arrays["end"][i])],
        )
        for i in range(out.n_tensors)
    ]
    if not out.metadata_begin:
        assert out.metadata_end == 0
        return tensors, None
    return tensors, text[out.metadata_begin : out.metadata_end].decode()


# --------------------------------------------------------------------------------------------------------- oracle
class Members(list):
    """A JSON object as its pairs, so that repeated keys are seen."""


class Number(str):
    """A JSON number as it is spelled."""

    __slots__ = ()


def refuse(_):
    msg = "NaN and Infinity are no JSON"
    raise ValueError(msg)


def parse(text):
    return json.loads(text, object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=refuse)


def depth_of(value):
    """Return the nesting of objects and arrays; raise UnicodeEncodeError for a lone surrogate."""
    if type(value) is Members:
        return 1 + max((max(depth_of(k), depth_of(v)) for k, v in value), default=0)
    if type(value) is list:
        return 1 + max(map(depth_of, value), default=0)
    if type(value) is str:
        value.encode("utf-8")
    return 0


def number(value):
    if type(value) is not Number or not re.fullmatch("0|[1-9][0-9]{0,19}", value) or int(value) >= 2**64:
        raise ValueError(value)
    return int(value)


def numbers(value):
    if type(value) is not list:
        raise TypeError(value)
    return [number(item) for item in value]


def oracle(text):
    characters = text.decode("utf-8")
    if not characters.startswith("{"):
        raise ValueError(text)
    try:
        members = parse(characters)
    except RecursionError:
        raise ValueError(text) from None
    tensors, metadata, seen = [], None, False
    for name, value in members:
        name.encode("utf-8")
        if name == "__metadata__" and value is None and not seen:
            seen = True
            continue
        if type(value) is not Members:
            raise TypeError(value)
        if name == "__metadata__":
            if seen or depth_of(value) > DEPTH:
                raise ValueError(value)
            metadata, seen = value, True
            continue
        if sorted(key for key, _ in value if key in KEYS) != KEYS:
            raise ValueError(value)
        if any(depth_of(key) + depth_of(inner) > DEPTH for key, inner in value if key not in KEYS):
            raise ValueError(value)
        tensor = dict(value)
        shape, offsets = numbers(tensor["shape"]), numbers(tensor["data_offsets"])
        if type(tensor["dtype"]) is not str or tensor["dtype"] not in DTYPES or len(shape) > DIMS or len(offsets) != 2:
            raise ValueError(value)
        tensors.append((name, tensor["dtype"], shape, offsets))
    return tensors, metadata


def agree(text):
    """Assert that C and Python take the header for the same, and return whether it is a good one."""
    try:
        expected = oracle(text)
    except (ValueError, TypeError):
        expected = None
    try:
        tensors, metadata = scan(text)
    except ScanError:
        assert expected is None, text
        return False
    assert expected is not None, text
    assert tensors == expected[0], text
    if metadata is None:
        assert expected[1] is None, text
    else:
        assert (metadata[0], metadata[-1]) == ("{", "}")
        assert parse(metadata) == expected[1], text
    return True


def tensor(name='"a"', dtype='"F32"', shape="[2,3]", offsets="[0,24]"):
    return f'{name}:{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'


def header(*members):
    return ("{" + ",".join(members) + "}").encode()


GOOD = [
    b"{}",
    b"{ \t\r\n}  ",
    header('"__metadata__":null', tensor()) + b"\n \r\n\t",
    b'{"x":{"a":{"b":[1,-2.5e+3,null]},"dtype":"F32","a":"\\u00e9","shape":[2],"":[[]],"data_offsets":[0,8],"d":true}}',
    header(tensor()),
    header('"__metadata__":{}', tensor()),
    header('"__metadata__":{"format":"pt"}', tensor(), tensor('"b"', '"BF16"', "[]", "[24,26]")) + b" " * 9,
    header(tensor(), tensor(), '"\\u005f_metadata__" : { "a" : [1, -2.5e+3, null, true, {"b": []}] }'),
    header(tensor('"\\ud83d\\ude00 \\u00e9\\n\\/é漢😀"', '"\\u00463\\u0032"', "[ 1 , 0,18446744073709551615 ]")),
    (
        b'{"x" : { "shape" : [ ] ,\n"data_offsets":\t[ 7 , 8 ], "d\\u0074ype"\r:"SIXTEEN_LETTERS_" } , "":{"shape":[1]'
        b',"data_offsets":[0,0],"dtype":"F"}}'
    ),
]


# ---------------------------------------------------------------------------------------------------------- headers
def test_good_headers():
    """Headers with escapes, white space and keys in any order are taken as Python takes them."""
    for text in (*GOOD, header(tensor(), tensor()), header(tensor(shape=str(list(range(255)))))):
        assert agree(text), text


def test_columns_of_a_small_header():
    first, last = tensor('"w\\u00e9"', '"F16"', "[4,0,7]", "[8,64]"), tensor('""', shape="[]")
    text = header(first, '"__metadata__": {"k":"v"}', last)
    assert scan(text) == ([("wé", "F16", [4, 0, 7], [8, 64]), ("", "F32", [], [0, 24])], '{"k":"v"}')


def test_truncated_at_every_byte():
    """No beginning of a header is a header, and none is read past its end."""
    for whole in (text.rstrip() for text in GOOD):
        for length in range(len(whole)):
            assert not agree(whole[:length])


@pytest.mark.parametrize("text", GOOD)
def test_every_byte_replaced(text):
    """With any byte replaced by one that means something to JSON, C and Python agree."""
    for i in range(len(text)):
        for byte in b'\0\x1f "\\{}[],:-+.09eEtu/\x7f\x80\xbf\xc3\xed\xf0\xff':
            agree(text[:i] + bytes([byte]) + text[i + 1 :])


def test_mutated_headers():
    """On thousands of headers with pieces flipped, cut, doubled and spliced in, C and Python agree."""
    rng = random.Random(7)
    pieces = [
        b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"0", b"00", b"-1", b"1.0", b"1e3",
        b"1E3", b"null", b"true", b"NaN", b"Infinity", b"18446744073709551615", b"18446744073709551616",
        b"99999999999999999999", b"184467440737095516150", b"1234567", b"12345678", b"123456789",
        b"1234567812345678", b"12345678123456789", b'"dtype":"F32"', b'"dtype":', b'"shape":[1]', b'"x":',
        b"{}", b'"F16"', b'"F99"', b'"F32\\u0000"', b'"__metadata__":{}', b"__metadata__",
        b'"__metadata__":{"a":"b"},', b"\\ud800", b"\\ude00", b"\\ud83d\\ude00", b"\\u0041", b"\\x", b"\\b",
        b"\xc3\xa9", b"\xed\xa0\x80", b"\xff", b"\0", b"\xef\xbb\xbf", b"\x7f", b"[[]]", b"[1,2]",
        b'"data_offsets":[0,1],', b'"\\u0073hape":[3],', b"/**/", b"'", b"1,", b",1", b"-", b"+1", b"0x1",
        b"1.", b".5", b"1e",
    ]  # fmt: skip
    verdicts = {True: 0, False: 0}
    for _ in range(25_000):
        text = bytearray(rng.choice(GOOD[2:]))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            i, j = sorted(rng.choices(range(len(text) + 1), k=2))
            j = min(j, i + rng.choice((0, 1, 3, 20)))
            kind = rng.randrange(4)
            if kind == 0:
                text[i:j] = rng.choice(pieces)
            elif kind == 1:
                text[i:i] = text[i:j]
            elif kind == 2:
                digits = [m.span() for m in re.finditer(rb"[0-9]+", bytes(text))] or [(0, 0)]
                start, stop = rng.choice(digits)
                text[start:stop] = rng.choice((b"%d" % rng.randrange(10 ** rng.randrange(1, 22)), rng.choice(pieces)))
            elif i < len(text):
                text[i] ^= 1 << rng.randrange(8)
        verdicts[agree(bytes(text))] += 1
    assert min(verdicts.values()) > 1000


# --------------------------------------------------------------------------------------------------------- faults


def test_fault_names_the_row():
    with pytest.raises(ScanError) as caught:
        scan(header(tensor(), '"__metadata__":{}', tensor(), tensor(dtype='"F33"')))
    assert caught.value.args[:2] == ("DTYPE", 2)


@pytest.mark.parametrize("digits", range(1, 21))
def test_numbers_of_every_length(digits):
    rng = random.Random(digits)
    values = [rng.randrange(10 ** (digits - 1), min(10**digits, 2**64)) for _ in range(200)]
    (found,), _ = scan(header(tensor(shape=str(values))))
    assert found[2] == values


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_of_metadata(opening):
    closing = "]" if opening == "[" else "}"

    def nested(depth):
        return ('{"__metadata__":{"a":' + opening * (depth - 2) + opening[0] + closing * (depth - 1) + "}}").encode()

    assert agree(nested(64))
    assert not agree(nested(65))
    for depth in (65, 100_000):
        with pytest.raises(ScanError) as caught:
            scan(nested(depth))
        assert caught.value.args[0] == "METADATA"


def test_capacities_are_kept():
    """Columns too small are a fault in the tensor that does not fit; nothing is written past them."""
    text = header(tensor('"a"'), tensor('"b"'), tensor('"c"'))
    assert len(scan(text, cap=3, dims_cap=6)[0]) == 3
    for cap in range(3):
        with pytest.raises(ScanError) as caught:
            scan(text, cap=cap, dims_cap=6)
        assert caught.value.args[:2] == ("CAPACITY", cap)
    for dims_cap in range(6):
        with pytest.raises(ScanError) as caught:
            scan(text, cap=3, dims_cap=dims_cap)
        assert caught.value.args[:2] == ("CAPACITY", dims_cap // 2)


def test_smallest_tensor_takes_48_bytes():
    """The contract's capacities hold for a header of the shortest tensors there are."""
    text = b"{" + b",".join([b'"":{"dtype":"F","shape":[],"data_offsets":[0,0]}'] * 500) + b"}"
    assert len(scan(text)[0]) == 500


# ----------------------------------------------------------------------------------------- letter by letter


SCALAR = '{"dtype":"U8","shape":[],"data_offsets":[0,1]}'


def named(spelling):
    return [name for name, *_ in scan(f'{{"{spelling}":{SCALAR}}}'.encode())[0]]


ENDS = [0, 0x1F, 0x20, 0x22, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF]
ENDS += [0x10000, 0x103FF, 0x10400, 0x10FFFF]


@in_one_item("code", ENDS)
def test_characters_at_the_ends_of_their_ranges(code):
    """The first and the last character of each length of UTF-8 are read, spelled by escapes, and plainly."""
    units = chr(code).encode("utf-16-be")
    escaped = "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2))
    assert named(escaped) == [chr(code)]
    if code >= 0x20 and chr(code) not in '"\\':
        assert named(chr(code)) == [chr(code)]


def test_pairs_of_surrogates():
    """A high surrogate and a low one are a character; at either end of their ranges, anything else is an error."""
    for first, second in ((0xD800, 0xDC00), (0xDBFF, 0xDFFF)):
        expected = struct.pack(">2H", first, second).decode("utf-16-be")
        assert named(f"\\u{first:04x}\\u{second:04x}") == [expected]
    bad = ((0xD800, 0xDBFF), (0xD800, 0xE000), (0xDC00, 0xDC00), (0xDFFF, 0xDFFF), (0xDBFF, 0x0041))
    for first, second in bad:
        with pytest.raises(ScanError) as caught:
            named(f"\\u{first:04x}\\u{second:04x}")
        assert caught.value.args == ("SURROGATE", 0, 1)


@pytest.mark.parametrize("code", [0x1E, 0x1F, 0x20, 0x21, 0x7E, 0x7F])
def test_control_characters_near_the_end(code):
    """A string has no raw control character, also where fewer than eight bytes are left: a space is none."""
    text = b'{"__metadata__":{"a":"%b"}}' % bytes([code])
    if code < 0x20:
        with pytest.raises(ScanError, match="SYNTAX"):
            scan(text)
    else:
        assert scan(text)[0] == []


@pytest.mark.parametrize("letter", "/09:@AFG`afg")
def test_hexadecimal_digits(letter):
    """An escape has four of them: 0 to 9, A to F, a to f, and nothing next to these."""
    for place in range(4):
        digits = ["0", "0", "4", "1"]
        digits[place] = letter
        spelling = "".join(digits)
        if letter in "/:@G`g":
            with pytest.raises(ScanError, match="SYNTAX"):
                named(f"\\u{spelling}")
        else:
            assert named(f"\\u{spelling}") == [chr(int(spelling, 16))]


def test_the_largest_number():
    """A number goes up to 2^64 - 1 and has no zeros in front, however many digits follow, and what follows them."""
    good = ("0", "9" * 18, "9" * 19, "1" + "0" * 19, f"{2**64 - 2}", f"{2**64 - 1}")
    bad = ("00", "01", f"{2**64}", f"{2**64 + 4}", f"{2**64 - 1}0", "0" * 20)
    for digits in (*good, *bad):
        for padding in ("", " " * 7, " " * 30):
            text = f'{{"a":{{"dtype":"U8","data_offsets":[0,1],"shape":[{digits}]}}{padding}}}'.encode()
            if digits in good:
                [(_, _, shape, *_)], _ = scan(text)
                assert shape == [int(digits)]
            else:
                with pytest.raises(ScanError, match="NUMBER"):
                    scan(text)
