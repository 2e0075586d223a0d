"""The pickle machine at its bounds: what it accepts at the last value, and refuses at the one beyond it."""

import pytest
from tests.builders import torch as files
from tests.support import in_one_item

from weightmap.core.native import scans


def fault(code):
    """What is wrong with a program, where, and by how much; None when nothing is."""
    found = scans.Pickle(code, 10, 1000).fault
    return None if found is None else (found.kind, found.at, found.actual, found.expected)


def storage(count, key=1, kind="ComplexDoubleStorage", more=b""):
    """The opcodes that push a storage of so many elements, with a key of so many bytes."""
    name = files.text("storage") + files.named("torch", kind) + files.text("k" * key)
    return b"(" + name + files.text("cpu") + files.number(count) + more + b"tQ"


def tensor(shape, strides, kind="CharStorage", offset=0):
    numbers = [b"(" + b"".join(map(files.number, part)) + b"t" for part in (shape, strides)]
    made = storage(2, kind=kind) + files.number(offset) + b"".join(numbers) + b"\x89" + files.ORDERED
    return files.named("torch._utils", "_rebuild_tensor_v2") + b"(" + made + b"tR."


def kind(code):
    found = fault(code)
    return found and found[0]


MOST = 2**63 - 1
SCALAR = files.named("numpy.core.multiarray", "scalar") + b"(" + files.named("numpy", "dtype")
SCALAR += b"(" + files.text("f8") + b"\x89\x88tR"
DEVICE = files.named("torch", "device") + b"(" + files.text("cuda")


def scalar(letters):
    return SCALAR.replace(files.text("f8"), files.text("f" * letters)) + files.code(b"x") + b"tR."


CALLS = {
    "the largest storage": (storage(MOST // 16) + b"0N.", None),
    "a storage of more bytes than 2^63": (storage(MOST // 16 + 1) + b"0N.", "PICKLE_CALL"),
    "the longest key": (storage(1, 255) + b"0N.", None),
    "a longer key": (storage(1, 256) + b"0N.", "PICKLE_CALL"),
    "a storage of six parts": (storage(1, more=b"N") + b"0N.", None),
    "a storage of six parts that is a view": (storage(1, more=b"K\1") + b"0N.", "PICKLE_CALL"),
    "a storage of seven parts": (storage(1, more=b"NN") + b"0N.", "PICKLE_CALL"),
    "a device": (DEVICE + b"tR.", None),
    "a device and the largest number": (DEVICE + b"K\x7ftR.", None),
    "a device and a larger number": (DEVICE + b"K\x80tR.", "PICKLE_CALL"),
    "a device and a negative number": (DEVICE + b"J\xff\xff\xff\xfftR.", "PICKLE_CALL"),
    "a device and a text": (DEVICE + files.text("1") + b"tR.", "PICKLE_CALL"),
    "a device of 255 letters": (files.named("torch", "device") + files.text("c" * 255) + b"\x85R.", None),
    "a device of 256 letters": (files.named("torch", "device") + files.text("c" * 256) + b"\x85R.", "PICKLE_CALL"),
    "a device and its number": (DEVICE + b"K\1tR.", None),
    "a device and two numbers": (DEVICE + b"K\1K\1tR.", "PICKLE_CALL"),
    "a scalar of 255 bytes": (SCALAR + files.code(bytes(255)) + b"tR.", None),
    "a scalar of 256 bytes": (SCALAR + files.code(bytes(256)) + b"tR.", "PICKLE_CALL"),
    "a scalar whose type has 255 letters": (scalar(255), None),
    "a scalar whose type has 256 letters": (scalar(256), None),
    "the largest dimension": (tensor((MOST,), (0,)), None),
    "a negative dimension": (tensor((-(2**63),), (0,)), "PICKLE_CALL"),
    "the largest product": (tensor((2, 2**62 - 1), (0, 0)), None),
    "a larger product": (tensor((2, 2**62), (0, 0)), "PICKLE_OVERFLOW"),
    "the largest offset": (tensor((1,), (1,), offset=MOST), "PICKLE_RANGE"),
    "a negative offset": (tensor((1,), (1,), offset=-(2**63)), "PICKLE_CALL"),
    "the last element": (tensor((2,), (1,)), None),
    "one element past the end": (tensor((2,), (2,)), "PICKLE_RANGE"),
    # Added up to 64 bits, the steps along both axes lead back into the storage.
    "steps that wrap around": (tensor((2, 3), (3, MOST)), "PICKLE_RANGE"),
    "steps from behind the end that wrap around": (tensor((3,), (MOST,), offset=3), "PICKLE_RANGE"),
    "a size of a tuple": (files.named("torch", "Size") + b"(K\1tR.", "PICKLE_CALL"),
    "a size of a list": (files.named("torch", "Size") + b"](K\1e\x85R.", "PICKLE_CALL"),  # torch would copy it
    "a size of a number": (files.named("torch", "Size") + b"K\1\x85R.", "PICKLE_CALL"),
    "a name of 32 letters": (files.named("a" * 32, "b" * 32) + b".", "PICKLE_NAME"),
    "a name of 33 letters": (files.named("a" * 33, "b" * 33) + b".", "PICKLE_NAME"),
    "a name that ends with the program": (b"ctorch\n\n", "PICKLE_NAME"),
    "a name one byte before the end": (files.text("torch") + files.text("Size") + b"\x93", "PICKLE_END"),
}


@in_one_item("name", CALLS)
def test_arguments_of_calls(name):
    """Each argument is taken up to its last value."""
    code, found = CALLS[name]
    assert kind(code) == found


INNER = b"(" + storage(2, kind="FloatStorage") + b"K\0K\2\x85K\1\x85\x89" + files.ORDERED
REBUILD = files.named("torch._utils", "_rebuild_tensor_v2")
FOUR = INNER.removesuffix(b"\x89" + files.ORDERED)
PARAMETER = files.named("torch.nn.parameter", "Parameter")
REMADE = files.named("torch._utils", "_rebuild_parameter")

# The arguments of _rebuild_parameter, by their number: the tensor, whether it has a gradient, hooks, the state.
PARAMETERS = {
    n: b"(" + REBUILD + INNER + b"tR" + part + b"t"
    for n, part in enumerate(
        (b"", b"\x88", b"\x88" + files.ORDERED, b"\x88" + files.ORDERED + b"}", b"\x88" + files.ORDERED + b"}}"), 1
    )
}


def from_type(function=REBUILD, class_=PARAMETER, arguments=INNER + b"t", state=b"}"):
    return files.named("torch._tensor", "_rebuild_from_type_v2") + b"(" + function + class_ + arguments + state + b"tR."


ITSELF = files.named("torch._tensor", "_rebuild_from_type_v2")
FROM_TYPE = {
    "a parameter": (from_type(), None),
    "a tensor": (from_type(class_=files.named("torch", "Tensor")), None),
    "by the first function": (from_type(files.named("torch._utils", "_rebuild_tensor"), arguments=FOUR + b"t"), None),
    "no function": (from_type(b"N"), "PICKLE_CALL"),
    "a function before the list": (from_type(files.named("collections", "OrderedDict"), arguments=b")"), "PICKLE_CALL"),
    "the last function": (from_type(files.named("torch._utils", "_rebuild_parameter"), arguments=PARAMETERS[3]), None),
    # It would be called within itself as deep as its arguments go.
    "a function behind the list": (
        from_type(ITSELF, arguments=b"(" + REBUILD + PARAMETER + INNER + b"t}t"),
        "PICKLE_CALL",
    ),
    "no class": (from_type(class_=b"N"), "PICKLE_CALL"),
    "another class": (from_type(class_=files.named("torch", "FloatStorage")), "PICKLE_CALL"),
    "no arguments": (from_type(arguments=b"N"), "PICKLE_CALL"),
    "attributes": (from_type(state=b"}" + files.text("tag") + b"K\1s"), None),
    "attributes and slots": (from_type(state=b"}}" + files.text("dat") + b"K\1s\x86"), None),
    "no attributes, and none in slots": (from_type(state=b"NN\x86"), None),
    "too few arguments": (from_type().replace(b"}tR.", b"tR."), "PICKLE_CALL"),
    "too many arguments": (from_type().replace(b"}tR.", b"}NtR."), "PICKLE_CALL"),
    "no extra state": (REBUILD + INNER + b"tR.", None),
    "None as extra state": (REBUILD + INNER + b"NtR.", None),
    "an empty extra state": (REBUILD + INNER + b"}tR.", None),
    "a number as extra state": (REBUILD + INNER + b"K\1tR.", "PICKLE_CALL"),
    "a list as extra state": (REBUILD + INNER + b"]tR.", "PICKLE_CALL"),
    "an extra state": (REBUILD + INNER + b"}K\1K\1stR.", "PICKLE_CALL"),
    "no hooks": (REBUILD + INNER.removesuffix(files.ORDERED) + b"tR.", "PICKLE_CALL"),
    "two extra states": (REBUILD + INNER + b"NNtR.", "PICKLE_CALL"),
} | {
    f"a parameter of {n} arguments": (REMADE + code + b"R.", None if n in (3, 4) else "PICKLE_CALL")
    for n, code in PARAMETERS.items()
}


@in_one_item("name", FROM_TYPE)
def test_calls_for_subclasses_of_tensors(name):
    """A tensor of a listed class, made by a listed function, is a tensor; with anything else the call is refused."""
    code, found = FROM_TYPE[name]
    pickle = scans.Pickle(code, 10, 1000)
    assert (pickle.fault and pickle.fault.kind) == found
    assert found or pickle.n_tensors == 1


@pytest.mark.parametrize("more", [0, 1])
def test_the_most_members_that_are_walked(more):
    """A program has 4,096 more members than bytes, counting those of a container each time that it is met, and one."""
    inner, times = 64, 70
    code = b"]](" + b"N" * inner + b"eq\1a(" + b"h\1" * (times - 1)
    spare = times * (1 + inner) - (len(code) + len(b"e.")) - 4096 - 1 - more
    assert spare >= 0
    code += b"K\0" * spare + b"e."  # each has two bytes, and is one member
    found = scans.Pickle(code, 10, 1 << 20).fault
    told = found and (found.kind, found.actual, found.expected)
    assert told == (("PICKLE_LAUGHS", len(code) + 4096 + 2, len(code) + 4096) if more else None)
