"""Attacks on PyTorch checkpoints: on the pickle program, and on the storages behind it."""

import pickle
import struct

from tests import zip_files
from tests.builders import torch

from . import zipped
from .case import BAD_UTF8, Case

KIND, LEGACY = "torch", "torch-legacy"
ROWS = {
    "P1": "A name off the list, however it is pushed: UnsupportedError that gives it; what it makes is left out if not "
    "strict. Nothing is imported or called.",
    "P2": "Opcodes that torch.save does not write, protocols above 5: UnsupportedError.",
    "P3": "A stack that is too short, holds other things than the opcode takes, or lacks its mark: FormatError.",
    "P4": "Entries of the memo that are not there, or numbered past those before them: FormatError.",
    "P5": "Calls of listed names, and BUILD, with arguments that torch.save does not write: UnsupportedError.",
    "P6": "Containers deeper than 128, in themselves, or holding one another many times: LimitError.",
    "P7": "Keys that make no name, storages and classes saved by themselves: UnsupportedError; left out if not strict.",
    "P8": "A tensor that reaches past its storage, or has more bytes than 2^63 - 1: LayoutError.",
    "P9": "A storage that is missing, or claims more or fewer bytes than it has: LayoutError; fewer: a warning if lax.",
    "P10": "Deflated storages, archives of TorchScript, an unknown byte order: UnsupportedError.",
    "P11": "Bytes behind the program in its entry: LayoutError, a warning if not strict. Unused storages: a warning.",
    "P12": "A program whose CRC-32 is wrong: ChecksumError at opening; that of a storage, of verify.",
    "P13": "A legacy file with another magic number or protocol; missing or repeated keys of storages: an error.",
    "P14": "Keys, shapes and folders longer than torch.save writes, each mentioned often: an error in little time.",
    "P15": "What torch.load would give other values: a state with data, a key twice, a storage of two types: an error.",
    "P16": "Storages whose names differ in capitals alone, which are one for torch.load: LayoutError.",
}
A = torch.Stored("0", "float32", 2, 0, (2,), (1,))
DATA = {"0": struct.pack("<2f", 1, 2)}
ITEMS = {"0": torch.Item(DATA["0"], 4)}


def make(value, storages=None, **options):
    """A file of the layout "zip" around an object, or around opcodes."""
    return torch.zipped(torch.dump(value), DATA if storages is None else storages, **options)


def program(code, storages=None):
    return torch.zipped(code, DATA if storages is None else storages)


SOUND = {KIND: make({"a": A, "n": 1}), LEGACY: torch.legacy(torch.dump({"a": A, "n": 1}), ITEMS)}
# Where the program begins in these files, and the bytes of the protocol before an opcode.
BEGIN = SOUND[KIND].index(b"\x80\x02")
PLAIN = torch.Plain


def cases():
    entry = zip_files.Entry
    program_ = torch.dump({"a": A})
    yield from zipped.cases(KIND, lambda: [entry(b"x/data.pkl", program_), entry(b"x/data/0", DATA["0"])])
    for part in (names, opcodes, stacks, calls, containers, others, tensors, storages, programs, legacy):
        yield from part()


def at(row, name, code, error, field=None, offset=None):
    """A program of these opcodes, and the place within them; -2 stands for any place."""
    return Case(
        row, KIND, name, program(b"\x80\x02" + code), error, field, None if offset is None else BEGIN + 2 + offset
    )


def unsupported(row, name, code, offset=None):
    """A program that ends with the opcode that is refused, unless another place is given."""
    return at(row, name, code, "UnsupportedError", "pickle", len(code) - 2 if offset is None else offset)


OFF_THE_LIST = (
    *("posix.system", "os.system", "builtins.eval", "builtins.getattr", "subprocess.Popen", "torch.load"),
    *("torch._utils.", "torch.nn.Linear", "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_qtensor"),
    *("collections.deque", "torch.FloatStorage.__reduce__", "torch.._utils", "..os.system", "numpy.load"),
    "torch.serialization._load",
)


def names():
    for name in OFF_THE_LIST:
        module, _, attribute = name.rpartition(".")
        pushed = torch.named(module, attribute) + torch.text("id") + b"\x85R."
        stacked = torch.text(module) + torch.text(attribute) + b"\x93)R."
        yield at("P1", f"global {name}", pushed, "UnsupportedError", "name", 1 + len(module) + 1)
        yield at("P1", f"stack global {name}", stacked, "UnsupportedError", "name", len(torch.text(module)) + 5)
    evil, size = b"(" + torch.text("echo") + b"iposix\nsystem\n.", torch.named("torch", "Size")
    yield unsupported("P1", "INST", evil, len(evil) - 15)
    yield unsupported("P1", "EXT1", b"\x82\1)R.", 0)
    yield unsupported("P1", "OBJ", b"(" + size + b"o.")
    yield unsupported("P1", "NEWOBJ", size + b")\x81.")
    for number, raw in enumerate(BAD_UTF8.values()):
        name = f"a name that is not UTF-8, {number}"
        yield at("P1", name, b"c" + raw + b"\nx\n.", "UnsupportedError", "name", len(raw) + 2)


SECOND = "a second tensor called 'a.b' is left out"
KNOWN = (
    b"\x81\x8f\x90\x91\x920(NJKMG\x88\x89\x8a\x8bU\x8cXT\x8dCB\x8e\x96)t\x85\x86\x87]}aseuhjqr\x94c\x93RbQ.1\x80\x95"
)


WIDTHS = {b"K": 1, b"M": 2, b"J": 4, b"G": 8, b"X": 4, b"h": 1, b"j": 4, b"\x8d": 8, b"\x95": 8}
TRUNCATED = {
    **{f"cut off in {op!r}": op + bytes(width - 1) for op, width in WIDTHS.items()},
    "a text of 4 GiB": b"X\xff\xff\xff\xff.",
    "a text of 2^64 - 1 bytes": b"\x8d" + b"\xff" * 8 + b".",
    "a number of 4 GiB": b"\x8b\xff\xff\xff\xff.",
    "a name without an end": b"ctorch",
    "no end": b"}",
}


def opcodes():
    for op in set(range(256)) - set(KNOWN):
        yield unsupported("P2", f"opcode {op:#04x}", bytes([op]) + b".")
    for protocol in (6, 255):
        data = program(bytes([0x80, protocol]) + b"}.")
        yield Case("P2", KIND, f"protocol {protocol}", data, "UnsupportedError", "pickle", BEGIN)
    for name, code in TRUNCATED.items():
        yield at("P2", name, code, "TruncatedError", "pickle", 0)


def stacks():
    lacking = (b".", b"0", b"t", b"\x85", b"N\x86", b"N\x87", b"a", b"]a", b"NNa", b"s", b"}Ns", b"NNNs", b"e", b"(e")
    lacking += (b"N(e", b"u", b"}(Nu", b"](NNu", b"1", b"R", b")R", b"Q", b"b", b"N\x93")
    left = {b"NN\x93.": 2, b"(.": 1, b"N(.": 2, b"NN.": 2, b"q\0.": 0, b"(q\0.": 1}
    memo = {b"h\0.": 0, b"j\xff\xff\xff\xff.": 0, b"Nq\0h\1.": 3, b"Nr\xff\xff\xff\xff.": 1, b"Nr\0\1\0\0.": 1}
    for code in lacking:
        yield at("P3", repr(code), code + b".", "FormatError", "pickle", len(code) - 1)
    for code, place in left.items():
        yield at("P3", f"{code!r} at the end", code, "FormatError", "pickle", place)
    for code, place in memo.items():
        yield at("P4", repr(code), code, "FormatError", "pickle", place)


ORDERED = torch.named("collections", "OrderedDict")
REBUILD = torch.named("torch._utils", "_rebuild_tensor_v2")
STORAGE = torch.storage("0", "float32", 2)


NAMESPACE = torch.named("argparse", "Namespace")
MADE_ARRAY = torch.named("numpy._core.multiarray", "_reconstruct")
ARRAY = MADE_ARRAY + torch.named("numpy", "ndarray") + b"K\0\x85C\1b\x87R"
BUFFER = torch.named("numpy._core.numeric", "_frombuffer")
DTYPE = torch.named("numpy", "dtype") + torch.text("f4") + b"\x89\x88\x87R"


PARAMETER = torch.named("torch._utils", "_rebuild_parameter")
FLOATS = torch.named("torch", "FloatStorage")


def rebuilt(numbers):
    """The call for a tensor with this offset, shape and strides."""
    return REBUILD + b"(" + STORAGE + numbers + b"\x89" + torch.ORDERED + b"tR."


def stored(kind, type_, size):
    return b"(" + torch.text(kind) + type_ + torch.text("0") + torch.text("cpu") + size + b"tQ."


def calls():
    bad = {
        "OrderedDict of a number": ORDERED + b"K\1\x85R.",
        "OrderedDict of two": ORDERED + b"]]\x86R.",
        "OrderedDict of no pairs": ORDERED + b"](NNe\x85R.",
        "a number called": b"K\1)R.",
        "a tensor of nothing": REBUILD + b")R.",
        "a tensor of no storage": REBUILD + b"(NK\0))\x89" + torch.ORDERED + b"tR.",
        "a tensor of more strides": rebuilt(b"K\0K\1\x85K\1K\1\x86"),
        "a negative dimension": rebuilt(b"K\0J\xff\xff\xff\xff\x85K\1\x85"),
        "a negative stride": rebuilt(b"K\1K\2\x85J\xff\xff\xff\xff\x85"),
        "a negative offset": rebuilt(b"J\xff\xff\xff\xffK\1\x85K\1\x85"),
        "65 dimensions": rebuilt(b"K\0(" + b"K\1" * 65 + b"t(" + b"K\1" * 65 + b"t"),
        "a parameter of a number": PARAMETER + b"(K\1\x88" + torch.ORDERED + b"tR.",
        "a storage of another kind": stored("file", FLOATS, b"K\2"),
        "a storage of a class": stored("storage", ORDERED, b"K\2"),
        "a storage of negative size": stored("storage", FLOATS, b"J\xff\xff\xff\xff"),
        "a storage by a number": b"K\1Q.",
        "BUILD of a number": b"K\1}b.",
        "BUILD of a class": ORDERED + b"}b.",
        "BUILD of a list": b"]}b.",
        "encode to another code": torch.named("_codecs", "encode") + torch.text("a") + torch.text("rot13") + b"\x86R.",
        "a scalar of objects": torch.named("numpy.core.multiarray", "scalar") + b"K\1K\1\x86R.",
        "a set of a number": torch.named("builtins", "set") + b"K\1\x85R.",
        "a set of two": torch.named("builtins", "frozenset") + b"]]\x86R.",
        "a counter of a list": torch.named("collections", "Counter") + b"]\x85R.",
        "a dictionary by a number": torch.named("collections", "defaultdict") + b"K\1\x85R.",
        "a complex number of a text": torch.named("builtins", "complex") + torch.text("1") + b"K\1\x86R.",
        "a complex number of one": torch.named("builtins", "complex") + b"K\1\x85R.",
        "a bytearray of a number": torch.named("builtins", "bytearray") + b"K\1\x85R.",
        "a bytearray in another code": torch.named("builtins", "bytearray") + torch.text("a") * 2 + b"\x86R.",
        "a path of a number": torch.named("pathlib", "PosixPath") + b"K\1\x85R.",
        "a path of 256 parts": torch.named("pathlib", "PosixPath") + b"(" + torch.text("a") * 256 + b"tR.",
        "a layout of nothing": torch.named("torch.serialization", "_get_layout") + b")R.",
        "a namespace with arguments": NAMESPACE + b"N\x85\x81.",
        "a namespace called": NAMESPACE + b")R.",
        "a namespace of a list": NAMESPACE + b")\x81]b.",
        "an array of another class": MADE_ARRAY + ORDERED + b"K\0\x85C\1b\x87R.",
        "an array without a shape": ARRAY + b"(K\1N" + DTYPE + b"\x89C\0tb.",
        "an array with a negative shape": ARRAY + b"(K\1J\xff\xff\xff\xff\x85" + DTYPE + b"\x89C\0tb.",
        "an array of 65 dimensions": ARRAY + b"(K\1(" + b"K\1" * 65 + b"t" + DTYPE + b"\x89C\0tb.",
        "an array without a type": ARRAY + b"(K\1)N\x89C\0tb.",
        "an array of a number": ARRAY + b"(K\1)" + DTYPE + b"\x89K\1tb.",
        "an array of no order": ARRAY + b"(K\1)" + DTYPE + b"NC\0tb.",
        "an array with two states": ARRAY + b"(K\1)" + DTYPE + b"\x89C\0tq\1bh\1b.",
        "a buffer of a text": BUFFER + b"(" + torch.text("a") + DTYPE + b")" + torch.text("C") + b"tR.",
        "a buffer in no order": BUFFER + b"(C\1a" + DTYPE + b")" + torch.text("A") + b"tR.",
        "a buffer in a long order": BUFFER + b"(C\1a" + DTYPE + b")" + torch.text("CC") + b"tR.",
        "a buffer of three": BUFFER + b"(C\1a" + DTYPE + b")tR.",
        "a dtype called": torch.named("torch", "float32") + b")R.",
        "a storage class called": torch.named("torch", "FloatStorage") + b")R.",
    }
    for name, code in bad.items():
        yield unsupported("P5", name, code)


LONGEST = b"X" + struct.pack("<I", 256) + b"0" * 256
# A tuple of 100,000 dimensions, 10,000 tensors of that shape, and where the first of them is made.
DIMS = b"(" + b"K\1" * 100_000 + b"tq\1" + b"0" + REBUILD + b"q\2" + b"0" + STORAGE + b"q\3" + b"0"
VAST = b"h\2(h\3K\0h\1h\1\x89NtR"
LISTED = b"](" + b"N" * 5000 + b"eq\1" + b"0" + torch.named("builtins", "set") + b"q\2" + b"0("
PATH = b"(" + torch.text("a") * 255 + b"tq\1" + b"0" + torch.named("pathlib", "PosixPath") + b"q\2" + b"h\1Rq\3" + b"0"
PAIRS = b"](" + b"NN\x86" * 5000 + b"eq\1" + b"0" + ORDERED + b"q\2" + b"0("
TENFOLD = b"".join(b"q%c0](" % i + b"h%c" % i * 10 + b"e" for i in range(9))
NESTED = torch.text("k" * 60_000) + b"q\1" + b"0N" + b"".join(b"q%c0}(h\1h%cu" % (i, i) for i in range(2, 100))
# Row, name, opcodes, and the field of the LimitError.
TOO_MUCH = (
    ("P6", "lists 129 deep", b"]" * 129 + b"a" * 128 + b".", "pickle"),
    ("P6", "lists 100,000 deep", b"]" * 100_000 + b"a" * 99_999 + b".", "pickle"),
    ("P6", "tuples 100,000 deep", b")" + b"\x85" * 100_000 + b".", "pickle"),
    ("P6", "a list in itself", b"]q\0h\0a.", "pickle"),
    ("P6", "a dictionary in itself", b"}q\0" + torch.text("a") + b"h\0s.", "pickle"),
    ("P6", "a billion laughs of lists", b"](" + b"]" * 10 + b"e" + TENFOLD + b".", "pickle"),
    ("P6", "a billion laughs of values", b"](" + b"N" * 10 + b"e" + TENFOLD + b".", "max_header_bytes"),
    ("P6", "a long key in each of a hundred", NESTED + b".", "max_header_bytes"),
    ("P14", "sets made again and again of one list", LISTED + b"h\2h\1\x85R" * 5000 + b"t.", "pickle"),
    ("P14", "a long path again and again", PATH + b"](" + b"h\3" * 5000 + b"e.", "pickle"),
    ("P14", "a dictionary made again and again of one list", PAIRS + b"h\2h\1\x85R" * 5000 + b"t.", "pickle"),
)
# Name, opcodes: left out with strict=False, so the error has no place.
NO_NAME = {
    "the key a tuple with True": b"}(\x88\x85Nu.",
    "the key bytes": b"}(C\0Nu.",
    "the key a real": b"}(G" + bytes(8) + b"Nu.",
    "the key a list": b"}(]Nu.",
    "an array without a state": ARRAY + b".",
    "a storage": STORAGE + b".",
    "a class": b"}(" + torch.text("a") + ORDERED + b"u.",
}


def containers():
    for row, name, code, field in TOO_MUCH:
        yield at(row, name, code, "LimitError", field, -2)
    for name, code in NO_NAME.items():
        yield unsupported("P7", name, code, -2)
    parts = b"(" + STORAGE + b"K\0K\2\x85K\1\x85\x89" + ORDERED + b")R}"
    for name in ("conj", "neg"):
        data = REBUILD + parts + torch.text(name) + b"\x88stR."
        yield unsupported("P5", f"a tensor whose values are others: {name}", data)
    yield unsupported("P14", "a key of 256 bytes", STORAGE.replace(torch.text("0"), LONGEST) + b".")
    code = DIMS + b"(" + VAST * 10_000 + b"t."
    yield unsupported("P14", "a shape of 100,000 dimensions", code, len(DIMS + VAST))
    entries = [zip_files.Entry(b"x" * 60_000 + b"/data.pkl", torch.dump({"a": A}))]
    folder = zip_files.archive([*entries, zip_files.Entry(b"x" * 60_000 + b"/data/0", DATA["0"])])
    yield Case("P14", KIND, "a folder of 60,000 letters", folder, "LimitError", "data.pkl", 60_039)
    yield at("P3", "NEWOBJ_EX of no class", b"NNN\x92.", "FormatError", "pickle", 3)
    yield Case("C10", KIND, "two names by nesting", make({"a.b": A, "a": {"b": A}}), "LayoutError", "name", odd=SECOND)
    yield Case("C10", KIND, "an empty name", make({"": A}), "")
    for name, raw in BAD_UTF8.items():
        yield Case("C11", KIND, name, make({PLAIN(torch.text(raw)): A}), "FormatError", "name")


def others():
    """Programs that a careless machine runs to other values than torch.load."""
    tensor, other = torch.code(A), torch.code(A._replace(key="1"))
    data = DATA | {"1": struct.pack("<2f", 3, 4)}
    parts = torch.storage("1", "float32", 2) + b"K\0K\2\x85K\1\x85"
    parameter = torch.named("torch._utils", "_rebuild_parameter") + b"(" + tensor + b"\x88" + torch.ORDERED + b"tR"
    for name, made, state in (
        ("another storage", tensor, b"(" + parts + b"t"),
        ("nothing", tensor, b")"),
        ("an empty dictionary", tensor, b"}"),
        ("five parts", tensor, b"(" + other + b"\x89\x89" + torch.ORDERED + b"\x89t"),
        ("another storage for a parameter", parameter, b"(" + parts + b"t"),
    ):
        code = made + state + b"b."
        raw = program(b"\x80\x02" + code, data)
        yield Case("P15", KIND, f"BUILD: {name}", raw, "UnsupportedError", "pickle", BEGIN + 2 + len(code) - 2)
    rebuild = torch.named("torch._tensor", "_rebuild_from_type_v2") + b"(" + REBUILD + torch.named("torch", "Tensor")
    rebuild += b"(" + STORAGE + b"K\0K\2\x85K\1\x85\x89" + torch.ORDERED + b"t"
    state = torch.named("torch._utils", "_rebuild_parameter_with_state") + b"(" + tensor + b"\x88" + torch.ORDERED
    for name, start in (("of a type", rebuild), ("of a parameter", state)):
        for key in ("data", "real", "imag"):
            attributes = b"}" + torch.text(key) + other + b"s"
            for form, found in (("", attributes), (", in slots", b"N" + attributes + b"\x86")):
                code = start + found + b"tR."
                raw = program(b"\x80\x02" + code, data)
                where = BEGIN + 2 + len(code) - 2
                yield Case("P15", KIND, f"{key} in the state {name}{form}", raw, "UnsupportedError", "pickle", where)
        for form, found in (("no pair", b"N\x85"), ("a list", b"]"), ("a key that is a number", b"}K\1Ns")):
            code = start + found + b"tR."
            yield at("P15", f"a state {name}: {form}", code, "UnsupportedError", "pickle", len(code) - 2)
    order = b"(K\3" + torch.text(">") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0t"
    for form, found in (
        ("big-endian", order),
        ("of fields", order.replace(torch.text(">") + b"NNN", torch.text("<") + b"NN}")),
        ("of seven parts", order.replace(torch.text(">") + b"N", torch.text("<"))),
        ("a number", b"K\1"),
    ):
        code = torch.named("numpy", "dtype") + b"(" + torch.text("f8") + b"\x89\x88tR" + found + b"b."
        yield at("P15", f"a dtype of numpy, {form}", code, "UnsupportedError", "pickle", len(code) - 2)
    yield at("P15", "the next entry of a memo with gaps", b"Nq\1\x94.", "UnsupportedError", "pickle", 3)
    for kind, form in (("a text", torch.text("k" * 300)), ("a number", b"K\7")):
        for first, second in ((tensor, b"N"), (b"}" + torch.text("x") + b"Ns", b"}" + torch.text("y") + b"Ns")):
            twice = b"}(" + form + first + torch.text("z") + b"N" + form + second + b"u."
            yield at("P15", f"{kind} twice, {len(first)}", twice, "LayoutError", "name", -2)
    alone = torch.dump({"a": A, "b": A._replace(dtype="int32")})
    for layout, raw in ((KIND, program(alone)), (LEGACY, torch.legacy(alone, ITEMS))):
        where = raw.rindex(torch.text("0") + torch.text("cpu")) + 5
        yield Case("P15", layout, "two types of a storage", raw, "LayoutError", "storage", where)
    raw = make({"a": torch.Stored("0", "uint16", 4, 0, (4,), (1,))}, order="big")
    yield Case("P15", KIND, "big-endian, of another type than its storage", raw, "UnsupportedError", "byteorder")
    meta = torch.dump({"a": A}).replace(torch.text("cpu"), torch.text("meta"))
    data = program(meta)
    yield Case("P15", KIND, "on the device meta", data, "UnsupportedError", "pickle", BEGIN + meta.index(b"tQ") + 1)
    entry, code = zip_files.Entry, torch.dump({"a": A._replace(key="a"), "b": A._replace(key="A")})
    pair = [entry(b"x/data/a", DATA["0"]), entry(b"x/data/A", DATA["0"])]
    raw = zip_files.archive([entry(b"x/data.pkl", code), *pair])
    yield Case("P16", KIND, "two storages", raw, "LayoutError", "name", raw.index(b"x/data/A") - 30)
    code = torch.dump({"a": A._replace(key="0\0")})
    raw = zip_files.archive([entry(b"x/data.pkl", code), entry(b"x/data/0", DATA["0"])])
    where = raw.index(torch.text("0\0")) + 5
    yield Case("P9", KIND, "a key with a zero byte", raw, "LayoutError", "storage", where)


def tensors():
    bad = {
        "one more": A._replace(shape=(3,)),
        "offset": A._replace(offset=1),
        "offset past the end": A._replace(offset=3, shape=(0,)),
        "stride": A._replace(strides=(2,)),
        "offset of 2^62": A._replace(offset=2**62, shape=(), strides=()),
        "dimension of 2^62": A._replace(shape=(2**62,)),
        "stride of 2^62": A._replace(shape=(2, 2), strides=(2**62, 1)),
        "product of 2^64": A._replace(shape=(2**32, 2**32), strides=(2**32, 1)),
    }
    for name, t in bad.items():
        data = make({"a": t})
        error = "" if name == "offset past the end" else "LayoutError"
        yield Case(
            "P8", KIND, name, data, error, "pickle" if error else None, data.rindex(b"tR") + 1 if error else None
        )
    huge = A._replace(shape=(2**31, 2**31, 2), strides=(0, 0, 0))
    for name, t in {
        "expanded to 2^65 bytes": huge,
        "empty, with 2^64 elements": A._replace(shape=(0, 2**32, 2**32), strides=(1, 1, 1)),
    }.items():
        data = make({"a": t})
        yield Case("C6", KIND, name, data, "LayoutError", "pickle", data.rindex(b"tR") + 1)
    yield Case("C7", KIND, "empty", make({"a": A._replace(shape=(0, 2**30), strides=(1, 1))}), "")
    yield Case("C8", KIND, "64 dimensions", make({"a": A._replace(shape=(1,) * 64, strides=(1,) * 64)}), "")
    tied = {"a": A, "b": A._replace(shape=(1,)), "c": A}
    yield Case("C9", KIND, "tied", make(tied), "")


def entry(name, data, **options):
    return zip_files.Entry(b"x/" + name, data, **options)


def storages():
    code, data, wrong = torch.dump({"a": A}), DATA["0"], {"crc": 1}
    base, there = [entry(b"data.pkl", code), entry(b"version", b"3\n")], entry(b"data/0", data)
    # The place of the storage's key in the program, behind its entry's header; of other entries, their header.
    key = 30 + len(b"x/data.pkl") + code.index(torch.text("0")) + 5
    dotted = torch.dump({"a": A._replace(key="../data.pkl")})
    damaged = entry(b"data.pkl", code, local=wrong, central=wrong)
    for row, name, entries, error, field, place, *more in (
        ("P9", "missing", base, "LayoutError", "storage", key),
        ("P9", "in another folder", [*base, zip_files.Entry(b"y/data/0", data)], "LayoutError", "storage", key),
        ("P9", "with a point before", [*base, entry(b"data/./0", data)], "LayoutError", "storage", key),
        ("P9", "one byte short", [*base, entry(b"data/0", data[:-1])], "LayoutError", "storage", key),
        ("P9", "empty", [*base, entry(b"data/0", b"")], "LayoutError", "storage", key),
        ("P9", "one byte more", [*base, entry(b"data/0", data + b"\0")], "LayoutError", "storage", key, "claims"),
        ("P9", "a key with ..", [entry(b"data.pkl", dotted)], "LayoutError", "storage", key),
        ("P10", "deflated", [*base, entry(b"data/0", data, method=8)], "UnsupportedError", "method", b"x/data/0"),
        ("P10", "a deflated program", [entry(b"data.pkl", code, method=8), there], "UnsupportedError", "method", 0),
        (
            *("P10", "TorchScript", [*base, there, entry(b"constants.pkl", b"\x80\x02).")]),
            *("UnsupportedError", "constants.pkl", b"x/constants.pkl"),
        ),
        (
            "P11",
            "an entry of no tensor",
            [*base, there, entry(b"data/1", b"hidden")],
            "",
            None,
            None,
            "no tensor refers to",
        ),
        (
            *("P11", "a second program", [entry(b"data.pkl", code + b"N."), there]),
            *("LayoutError", "pickle", 40 + len(code), "trailing bytes"),
        ),
        ("P11", "no program", [there], "LayoutError", "data.pkl", 0),
        ("P11", "two programs", [*base, zip_files.Entry(b"y/data.pkl", code)], "LayoutError", "data.pkl", 0),
        ("P12", "the program", [damaged, there], "ChecksumError", "crc", 40),
    ):
        raw = zip_files.archive(entries)
        where = raw.index(place) - 30 if isinstance(place, bytes) else place
        yield Case(row, KIND, name, raw, error, field, where, odd=more[0] if more else None)
    raw = zip_files.archive([base[0], entry(b"data/0", data, local=wrong, central=wrong)])
    yield Case("P12", KIND, "a storage", raw, "ChecksumError", "crc", raw.index(b"x/data/0") + 8, late=True)
    for order in (b"Little", b"middle", b"", b"x" * 100):
        raw = zip_files.archive([*base, there, entry(b"byteorder", order)])
        where = raw.index(b"x/byteorder") + 11
        yield Case("P10", KIND, f"byteorder {order[:9]!r}", raw, "UnsupportedError", "byteorder", where)
    half = A._replace(dtype="bfloat16", elements=4)
    yield Case("P10", KIND, "big-endian bfloat16", make({"a": half}, order="big"), "UnsupportedError", "byteorder")


def programs():
    """Programs that Python's own pickler writes, of objects unrelated to torch."""

    class Evil:
        def __reduce__(self):
            return eval, ("1",)

    for protocol in range(1, 6):
        data = program(pickle.dumps({"a": Evil()}, protocol))
        yield Case("P1", KIND, f"eval by protocol {protocol}", data, "UnsupportedError", "name", data.index(b"eval"))
    data = program(pickle.dumps({"a": Evil()}, 0))
    yield Case("P1", KIND, "eval by protocol 0", data, "UnsupportedError", "pickle", BEGIN + 1)  # (d makes a dictionary


def legacy():
    code = torch.dump({"a": A})

    def case(name, data, error, field):
        place = places[field or ""]
        return Case("P13", LEGACY, name, data, error, field, data.index(b"system\n") if field == "name" else place)

    good = torch.legacy(code, ITEMS)
    old = torch.dump({"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}})
    places = {
        "sys_info": len(torch.MAGIC + torch.PROTOCOL),
        "keys": len(torch.MAGIC + torch.PROTOCOL + old + code),
        "name": 0,
    }
    places["storage"] = places["keys"] + len(torch.dump(["0"]))
    places["pickle"] = len(torch.MAGIC)
    yield case("protocol 1000", good.replace(torch.PROTOCOL, b"\x80\x02M\xe8\x03."), "UnsupportedError", "pickle")
    yield case("no keys", torch.legacy(code, {}), "LayoutError", "keys")
    yield case("a key too many", torch.legacy(code, ITEMS | {"1": ITEMS["0"]}), "LayoutError", "keys")
    twice = (
        torch.legacy(code, {}).removesuffix(torch.dump([]))
        + torch.dump(["0", "0"])
        + (struct.pack("<Q", 2) + DATA["0"]) * 2
    )
    yield case("a key twice", twice, "LayoutError", "keys")
    numbered = torch.legacy(code, {}).removesuffix(torch.dump([])) + torch.dump([0]) + struct.pack("<Q", 2) + DATA["0"]
    yield case("a key that is a number", numbered, "LayoutError", "keys")
    yield case("elements", torch.legacy(code, {"0": torch.Item(DATA["0"], 2)}), "LayoutError", "storage")
    both = torch.dump({"a": A, "b": A._replace(elements=1, shape=(1,))})
    data = torch.legacy(both, ITEMS)
    yield Case(
        "P13",
        LEGACY,
        "two sizes of one storage",
        data,
        "LayoutError",
        "storage",
        data.rindex(torch.text("0") + torch.text("cpu")) + 5,
    )
    evil = torch.legacy(torch.dump(PLAIN(torch.named("os", "system") + torch.text("id") + b"\x85R")), ITEMS)
    yield case("os.system", evil, "UnsupportedError", "name")
    tensor = good.replace(old, torch.dump({"little_endian": A}))
    yield Case("P13", LEGACY, "a tensor in the system", tensor, "LayoutError", "pickle", places["sys_info"])
