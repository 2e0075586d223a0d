"""ONNX models, in the encoding of protobuf: `tensor_proto`, `graph` and `model` put any fields one after another."""

import numpy as np
from tests.fuzz.anatomy import TEXT, Walk

from . import Bounds, Builder, Example, Tensor, noise, normal

FORMAT = "onnx"
SUFFIX = ".onnx"
# data_type, and the field of numbers.
CODES = {
    "float32": (1, 4), "uint8": (2, 5), "int8": (3, 5), "uint16": (4, 5), "int16": (5, 5), "int32": (6, 5),
    "int64": (7, 7), "bool": (9, 5), "float16": (10, 5), "float64": (11, 10), "uint32": (12, 11), "uint64": (13, 11),
    "complex64": (14, 4), "complex128": (15, 10), "bfloat16": (16, 5), "float8_e4m3fn": (17, 5),
    "float8_e4m3fnuz": (18, 5), "float8_e5m2": (19, 5), "float8_e5m2fnuz": (20, 5), "float8_e8m0fnu": (24, 5),
}  # fmt: skip


def varint(value):
    """Seven bits a byte, the lowest first; negative numbers have 64 bits."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number, value, kind=None):
    """A field: a number as a varint, bytes behind their length; with a `kind`, the bytes as they are."""
    if kind is not None:
        assert isinstance(value, bytes)
        return varint(number << 3 | kind) + value
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def packed(values):
    """Varints back to back."""
    return b"".join(map(varint, values))


def numbers(value):
    """The field of numbers with the elements of a tensor."""
    number = CODES[value.dtype][1]
    if number in {4, 10}:
        return field(number, value.data)
    array = np.frombuffer(value.data, f"<{'i' if value.dtype.startswith('int') else 'u'}{value.array.itemsize}")
    return field(number, packed(array.tolist()))


def tensor_proto(name, value, *more, typed=False):
    """A TensorProto: dims, data_type, the data in a field of numbers or raw, name, and more fields."""
    raw = name.encode() if isinstance(name, str) else name
    dims = b"".join(field(1, dim) for dim in value.shape)
    start = dims + field(2, CODES[value.dtype][0])
    if typed:
        return start + numbers(value) + field(8, raw) + b"".join(more)
    return start + field(8, raw) + field(9, value.data) + b"".join(more)


def external(**entries):
    """The fields of a tensor whose data lie in another file."""
    pairs = [field(13, field(1, key.encode()) + field(2, str(value).encode())) for key, value in entries.items()]
    return b"".join(pairs) + field(14, 1)


def graph(initialisers, *more):
    """A GraphProto, with a node and a name before its initialisers."""
    node = field(1, b"x") + field(2, b"y") + field(4, b"Relu")
    return field(1, node) + field(2, b"g") + b"".join(field(5, one) for one in initialisers) + b"".join(more)


HEAD = field(1, 10) + field(2, b"tests") + field(3, b"1.2")
OPSET = field(8, field(1, b"") + field(2, 21))


def model(initialisers, *more, head=HEAD, tail=OPSET):
    """A ModelProto; `more` fields follow the initialisers of its graph."""
    return head + field(7, graph(initialisers, *more)) + tail


def build(tensors, *, typed=False):
    return model(tensor_proto(name, value, typed=typed) for name, value in tensors.items())


METADATA = {"ir_version": "10", "producer_name": "tests", "producer_version": "1.2", "opset_import": "21"}
SMALL = {"a": normal((2, 3), 1), "b": noise("int16", (5,), 2)}


def examples():
    """Every type, raw and, if numbers are its elements, in numbers; numbers of dimensions, names, and texts."""
    every = {f"w/{dtype}": noise(dtype, (3, 5), seed) for seed, dtype in enumerate(CODES)}
    fixed = {name: value for name, value in every.items() if CODES[value.dtype][1] in {4, 10}}
    ranks = {
        "scalar": normal(()),
        "empty": normal((0, 4)),
        "ünï": normal((3,)),
        "..": normal((1, 1, 2, 1)),
        " ": normal((2,)),
    }

    def example(name, data, tensors, metadata=METADATA):
        return Example(name, FORMAT, SUFFIX, data, tensors, metadata, prefixes=_ends(data), written=False)

    texts = HEAD + field(4, b"org.example") + field(5, -3) + field(6, "Ünï".encode())
    props = b"".join(field(14, field(1, key) + field(2, b"v")) for key in (b"author", b"domain", b""))
    found = METADATA | {"domain": "org.example", "model_version": "-3", "doc_string": "Ünï"}
    found |= {"author": "v", "metadata_props.domain": "v", "": "v"}
    again = model([tensor_proto("a", SMALL["a"])], tail=b"") + field(7, graph([tensor_proto("b", SMALL["b"])])) + OPSET
    return [
        example("nothing", build({}), {}),
        example("small", build(SMALL), SMALL),
        example("every-dtype", build(every), every),
        example("every-dtype-numbers", build(fixed, typed=True), fixed),
        example("ranks", build(ranks), ranks),
        example("ranks-numbers", build(ranks, typed=True), ranks),
        example("texts", model([], head=texts, tail=props + OPSET), {}, found),
        example("graph-in-pieces", again, SMALL),
    ]


def _ends(data):
    """The ends of a model's fields from its graph on: each of these beginnings is a model too."""
    walk, seen, found = Walk(data), False, set()
    while walk.at < len(data):
        number, kind = divmod(walk.value(walk.leb()), 8)
        size = walk.value(walk.leb())
        walk.at += size if kind == 2 else 0
        seen |= number == 7
        if seen:
            found.add(walk.at)
    return frozenset(found - {len(data)})


def many(count):
    """Models of `count` tensors of a byte."""
    return model(tensor_proto(f"{i:07}", Tensor("int8", (1,), b"\0")) for i in range(count))


def many_numbers(count):
    """Models of `count` tensors of a number, such as shapes."""
    return model(tensor_proto(f"{i:07}", Tensor("int64", (1,), bytes(8)), typed=True) for i in range(count))


# The messages within fields of the model, by number, and None for data; other fields that have a length are texts.
TENSOR = {13: {}, **dict.fromkeys((4, 5, 7, 9, 10, 11))}
MESSAGES = {7: {1: {5: {5: TENSOR}}, 5: TENSOR}, 8: {}, 14: {}}


def anatomy(data):
    """Tags, numbers, lengths and texts, down to the entries of external data."""
    walk = Walk(data)
    _message(walk, len(data), MESSAGES)
    return walk.anatomy


def _message(walk, end, within):
    while walk.at < end:
        begin = walk.at
        number, kind = divmod(walk.value(walk.leb()), 8)
        if kind == 0:
            walk.leb()
        elif kind == 2:
            length = walk.leb()
            start = walk.at
            stop = start + walk.value(length)
            inner = within.get(number, TEXT)
            if isinstance(inner, dict):
                _message(walk, stop, inner)
            elif inner and stop > start:
                walk.field(stop - start, TEXT)
            walk.at = stop
            walk.span(length, start, stop)
        walk.found.items.append((begin, walk.at, None))


def trailing(kind, data, tail):
    """The error for bytes behind the end: they are read as fields, a second model's as the first one's."""
    del kind
    if tail == data:
        name = field(2, b"g")
        return "LayoutError", "name", len(data) + data.index(name) + len(name), None
    error, name, at = {
        b"\0": ("FormatError", "0", 0),
        b"\n": ("TruncatedError", "ir_version", len(tail)),
        b"%": ("FormatError", "domain", 0),
        b"P": ("FormatError", "0", 2),
    }[tail[:1]]
    return error, name, len(data) + at, None


def small():
    """Models whose data is smaller than their fields."""
    return {"onnx-numbers": build({"a": noise("int64", (2,), 3), "b": noise("float16", (3,), 4)}, typed=True)}


BUILDER = Builder(
    format=FORMAT,
    title="ONNX",
    suffix=SUFFIX,
    holds="initialisers and constants of a model's graphs, also in files beside it",
    examples=examples,
    damage=("tests.attacks.onnx",),
    growing={"onnx": many, "onnx-numbers": many_numbers},
    anatomy=anatomy,
    errors=(8, 9),
    small=small,
    trailing=trailing,
    dictionary=(b"\x2a\x0a", b"\x4a\x04", b"\x70\x01", b"\x6a\x08", b"location", b"offset", b"\x1d\x00\x00\x00\x00"),
    bounds={"onnx": Bounds(113, 110, 36, 32, 126, 21)},
)
