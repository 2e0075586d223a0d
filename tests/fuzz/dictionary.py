"""Values to write into fields: numbers at the edges of their ranges, texts and tokens that are hard to take."""

# Small counts and codes; around powers of two; and as numbers of two and four bytes the infinities, a NaN and denormals
# of float16 and float32.
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 64, 127, 128, 250, 251, 255, 256, 32767, 32768, 65535, 65536)
NUMBERS += tuple((1 << bits) + k for bits in (20, 24, 31, 32, 40, 53, 60, 61, 62, 63, 64) for k in (-1, 0, 1))
NUMBERS += (0x7C00, 0xFC00, 0x7E00, 0x8001, 0x7F800000, 0x7FC00000, 0xFF800000, 0x807FFFFF)

# Integers of BinTensors in forms that are too long, cut off, or do not exist.
FORMS = (b"\xfe" + bytes(16), b"\xff", b"\xfb\1\0", b"\xfc\1\0\0\0", b"\xfd\1\0\0\0\0\0\0\0", b"\xfd\1", b"")

TEXTS = (b"", b"a", b"\0", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1b]0;x\x07", b"../x", b"n" * 300)
TEXTS += ("\u202e".encode(), b'"', b"\\", b"__metadata__", b"a\nb", b"layer.0.weight", b"embeddings", b"x" * 65536)

# Strings of JSON.
STRINGS = tuple(rb'"" "a" "\ud800" "\ud83d\ude00" "\u0000" "\u001b[31m" "../x" "F64" "BF16" "I8" "F4"'.split())
STRINGS += tuple(b'"__metadata__" "dtype" "shape" "data_offsets" "weight_map" "metadata" "total_size"'.split())
STRINGS += (b'"\xff"', b'"\xed\xa0\x80"', b'"' + b"n" * 999 + b'"')

# Tokens of JSON and TOML, right and wrong.
TOKENS = tuple(b"""{ } [ ] , : = {} [] [[ null true 0 -1 1.5 1e3 00 NaN -Infinity 1e999 inf nan "a '' """.split())
TOKENS += tuple(b'9007199254740993 18446744073709551616 1979-05-27 1979-05-27T07:32:00 "x"."y"'.split())
TOKENS += (b"", b" ", b"# ", b"\n[x]\n", b"\xef\xbb\xbf", b"1" * 400, b"1" * 5000)
TOKENS += (b"[" * 70, b"[" * 40_000, b'{"a":' * 9_000)

# Members of a JSON object, or lines of TOML, that may stand between two others; anywhere else a few bytes too many.
PARTS = (b"\n", b"\t \r", b"0,", b"1.5,", b'"k":"v",', b'"k":1,', b'"k":null,', b'"x":[1,{"y":null}],')
PARTS += (b'"dtype":"F32",', b'"shape":[1],', b'"data_offsets":[0,0],', b'"__metadata__":{},')
PARTS += (b'"__metadata__":{"k":"v"},', b'"":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},')
PARTS += (b"k = 1\n", b"[k]\n", b'"k" = {a.b = 2}\n', bytes(4), b"\xff" * 4)

# Everything that guided fuzzing inserts into files with JSON or TOML.
MARKUP = (*STRINGS, *TOKENS, *PARTS)
