"""Checkpoints of random opcodes, each with a number: `checkpoint` makes one, `flat` names what torch makes of it.

The programs are around tensors, and mostly of the kind that `torch.load` accepts: its calls with arguments of the right
types, everything spelled in any of the ways that pickles have, the memo used at will; a few are odd in one place or
several. torch.load unpickles them, so no global but those written here is ever in one. No code of the package is used,
and no pickler.
"""

from __future__ import annotations

import argparse
import math
import random
import struct
from typing import NamedTuple

from tests import zip_files

# Types of torch with a storage of their own, and the bytes of an element; and those without.
TYPES = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Short": ("int16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
}
WIDTHS = dict(TYPES.values())
MORE = {"uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1}
GRADIENTS = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
SHAPES = ((), (1,), (2,), (3,), (0,), (2, 2), (1, 3), (3, 1), (2, 0), (2, 1, 2), (2, 3))
WORDS = ("a", "b", "weight", "0", "1", "data", "grad", "tag", "\u00fc", "")
NUMBERS = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "u2", "u4", "u8", "b1", "c8", "c16")
KEYS = ("0", "1", "2", "k", "\u00fc", "x/y", "a", "A")
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


class Storage(NamedTuple):
    """A storage: the name of its class, and its elements."""

    kind: str
    elements: int

    @property
    def width(self):
        return TYPES[self.kind][1] if self.kind in TYPES else 1


class Assembler:
    """Writes one program.

    `safe`: with the opcodes alone that weights_only knows; `odd`: how likely each thing is another than torch expects.
    """

    def __init__(self, seed, *, safe, legacy, odd):
        self.random, self.safe, self.legacy, self.odd = seed, safe, legacy, odd
        self.code = bytearray()
        self.memo = {}  # what each entry is, as the caller of `shared` calls it
        self.storages = {}

    def program(self):
        protocol = 2 if self.safe else self.random.randrange(6)
        if self.safe or self.random.random() < 0.9:
            self.code += b"\x80" + bytes([protocol])
        if self.random.random() < 0.8:
            self.dictionary(3, self.random.randint(1, 5))
        else:
            self.value(3)
        return bytes(self.code) + b"."

    # ------------------------------------------------------------------------------------------ ways of spelling
    def is_odd(self):
        return self.random.random() < self.odd

    def pick(self, *ways, safe=1):
        """Write one of some opcodes; with `safe` one of the first so many."""
        self.code += self.random.choice(ways[:safe] if self.safe else ways)

    def text(self, text, *, bare=False):
        raw = text.encode()

        def write():
            size = len(raw)
            ways = [b"X" + struct.pack("<I", size) + raw, b"U" + bytes([size]) + raw, b"\x8c" + bytes([size]) + raw]
            self.pick(*ways, b"\x8d" + struct.pack("<Q", size) + raw, b"T" + struct.pack("<I", size) + raw, safe=2)

        write() if bare else self.shared(("text", text), write)

    def number(self, number):
        """Push an integer."""
        size = (~number if number < 0 else number).bit_length() // 8 + 1
        size += self.random.randrange(3) if self.is_odd() else 0
        raw = number.to_bytes(size, "little", signed=True)
        ways = [b"\x8a" + bytes([size]) + raw]
        if -(2**31) <= number < 2**31:
            ways = [b"J" + struct.pack("<i", number), *ways]
        if 0 <= number < 65536:
            ways = [b"M" + struct.pack("<H", number), *ways]
        if 0 <= number < 256:
            ways = [b"K" + bytes([number])] * 3 + ways
        safe = len(ways)
        ways.append(b"\x8b" + struct.pack("<I", size) + raw)
        if self.is_odd():
            ways += [b"I%d\n" % number, b"L%dL\n" % number]
        self.pick(*ways, safe=safe)

    def name(self, module, name):
        """Push a global; there are no others than those that are written in this module."""

        def write():
            if self.safe or self.random.random() < 0.5:
                self.code += f"c{module}\n{name}\n".encode()
            else:
                self.text(module)
                self.text(name)
                self.code += b"\x93"

        self.shared(("name", module, name), write)

    def shared(self, what, write):
        places = [i for i, found in self.memo.items() if found == what]
        if places and self.random.random() < 0.6:
            self.get(self.random.choice(places))
        else:
            write()
            self.put(what, 0.4)

    def get(self, i):
        ways = [b"j" + struct.pack("<I", i)] + ([b"h" + bytes([i])] * 3 if i < 256 else [])
        self.pick(*ways, safe=4)

    def put(self, what, chance):
        """Perhaps put the top of the stack into the memo, in one of its ways: MEMOIZE numbers by how many there are."""
        if self.random.random() >= chance:
            return
        if not self.safe and self.random.random() < 0.5:
            self.code += b"\x94"
            self.memo[len(self.memo)] = what
            return
        i = len(self.memo)
        if self.random.random() < 0.2 or i in self.memo:
            i = self.random.randrange(max(self.memo, default=0) + (4 if self.random.random() < 0.05 else 1))
        self.pick(*([b"q" + bytes([i])] * 3 if i < 256 else []), b"r" + struct.pack("<I", i), safe=4)
        self.memo[i] = what

    def tuple(self, *parts):
        size = len(parts)
        short = size <= 3 and self.random.random() < 0.7
        self.code += b"" if short else b"("
        for part in parts:
            part()
        self.code += (b")", b"\x85", b"\x86", b"\x87")[size] if short else b"t"

    def noise(self):
        """Write what leaves the stack as it is."""
        if self.safe or self.random.random() > 0.05:
            return
        kind = self.random.randrange(5)
        if kind == 0:
            self.leaf()
            self.code += b"0"
        elif kind == 1:
            self.code += b"("
            for _ in range(self.random.randrange(3)):
                self.leaf()
            self.code += b"1"
        elif kind == 2:
            self.code += b"\x95" + struct.pack("<Q", self.random.randrange(2))
        elif kind == 3:
            self.code += b"\x80" + bytes([self.random.randrange(7 if self.is_odd() else 6)])
        elif self.is_odd():
            self.code += self.random.choice((b"2", b"0", b"\x82\x01", b"P0\n", b"1", b"(", b"N", b"\x98", b"g0\n"))

    # --------------------------------------------------------------------------------------------------- values
    def value(self, depth):
        self.noise()
        known = [i for i, what in self.memo.items() if what == "value"]
        kind = self.random.random()
        if known and kind < 0.12:
            self.get(self.random.choice(known))
            return
        if kind < 0.5:
            self.tensor()
        elif depth and kind < 0.8:
            size = self.random.randrange(4)
            kinds = [self.dictionary, self.ordered, self.list, self.any_tuple] * 2
            kinds += [] if self.safe else [self.namespace, self.default]
            self.random.choice(kinds)(depth - 1, size)
        else:
            self.leaf()
        self.put("value", 0.25)

    def leaf(self):
        kinds = [lambda: self.code.extend(self.random.choice((b"N", b"\x88", b"\x89")))] * 2
        kinds += [lambda: self.number(self.random.choice((0, 1, -1, 300, 70000, -(2**31), 2**40, -(2**63), 2**70)))] * 3
        kinds += [lambda: self.text(self.random.choice(WORDS)), self.real, self.dtype, self.device, self.size]
        kinds += [self.scalar, self.encoded, self.kind, self.set, self.set, self.complex, self.array]
        if not self.safe:
            kinds += [self.octets, self.path]
        if self.is_odd():
            kinds = [lambda: self.code.extend(b"\x8f"), lambda: self.name("torch", "Size"), self.storage, self.new]
        self.random.choice(kinds)()

    def real(self):
        bits = self.random.choice((0.0, -0.0, 0.1, 1e300, math.inf, math.nan, -5.5))
        self.code += b"G" + struct.pack(">d", bits)

    def octets(self):
        raw = self.random.randbytes(self.random.randrange(4))
        size = len(raw)
        ways = (b"C" + bytes([size]), b"B" + struct.pack("<I", size), b"\x8e" + struct.pack("<Q", size))
        self.code += self.random.choice((*ways, b"\x96" + struct.pack("<Q", size))) + raw

    def encoded(self, raw=None):
        """Push bytes that are spelled as a text."""
        raw = self.random.randbytes(self.random.randrange(4)) if raw is None else raw
        self.name("_codecs", "encode")
        self.tuple(lambda: self.text(raw.decode("latin-1")), lambda: self.text("latin1"))
        self.code += b"R"

    def dtype(self, name=None):
        self.name("torch", name or self.random.choice((*WIDTHS, *MORE)))

    def device(self):
        self.name("torch", "device")
        kind = self.random.choice(("cpu", "cuda", "meta", "cuda:1"))
        parts = [lambda: self.text(kind)]
        if self.random.random() < 0.5 and ":" not in kind:
            number = self.random.choice((0, 1, 127, 128, 255)) if self.is_odd() else self.random.randrange(4)
            parts.append(lambda: self.number(number))
        self.tuple(*parts)
        self.code += b"R"

    def size(self):
        self.name("torch", "Size")
        inner = self.random.choice(SHAPES)
        if self.is_odd():
            self.tuple(lambda: self.list(0, 2))
        else:
            self.tuple(lambda: self.shape(inner))
        self.code += b"R"

    def kind(self, code=None):
        wanted = code or self.random.choice(NUMBERS)
        self.name("numpy", "dtype")
        fresh = b"\x88" if self.random.random() < 0.9 else b"\x89"
        self.tuple(lambda: self.text(wanted), lambda: self.code.extend(b"\x89"), lambda: self.code.extend(fresh))
        self.code += b"R"
        self.put(("kind", wanted), 0.3)
        if self.random.random() < 0.7:
            order = self.random.choice("<>|=") if self.is_odd() else "<|"[wanted[-1] == "1" and wanted[0] in "iub"]
            nothing = [lambda: self.code.extend(b"N")] * 3
            numbers = [lambda: self.number(-1), lambda: self.number(-1), lambda: self.number(0)]
            self.tuple(lambda: self.number(3), lambda: self.text(order), *nothing, *numbers)
            self.code += b"b"

    def scalar(self):
        code = self.random.choice(NUMBERS)
        known = [i for i, what in self.memo.items() if what == ("kind", code)]
        raw = (
            self.random.randbytes(int(code[1:]) + self.is_odd()) if code != "b1" else bytes([self.random.randrange(2)])
        )
        self.name(self.random.choice(("numpy._core.multiarray", "numpy.core.multiarray")), "scalar")
        kind = self.random.choice(known) if known and self.random.random() < 0.7 else None

        def data():
            if self.safe or self.random.random() < 0.5:
                self.encoded(raw)
            else:
                self.code += b"C" + bytes([len(raw)]) + raw

        self.tuple(lambda: self.kind(code) if kind is None else self.get(kind), data)
        self.code += b"R"

    def member(self):
        if self.random.random() < 0.7 or not self.is_odd():
            self.number(self.random.randrange(40, 10**6))
        else:
            number = lambda: self.number(self.random.randrange(3))  # noqa: E731 - one of several
            kinds = [lambda: self.code.extend(self.random.choice((b"\x88", b"\x89", b"N"))), self.real, number]
            self.random.choice((*kinds, lambda: self.text(self.random.choice(WORDS)), self.dtype))()

    def set(self):
        """Push a set or a frozen set, or a Counter."""
        size, kind = self.random.randrange(4), self.random.random()
        if kind < 0.4 and not self.safe:
            frozen = self.random.random() < 0.5
            self.code += b"(" if frozen else b"\x8f("
            for _ in range(size):
                self.member()
            self.code += b"\x91" if frozen else b"\x90"
        elif kind < 0.7:
            self.name(self.random.choice(("__builtin__", "builtins")), "set" if self.safe else "frozenset")
            if self.random.random() < 0.5:
                self.tuple(lambda: self.filled(self.member, size))
            else:
                self.tuple(lambda: self.tuple(*[self.member] * size))
            self.code += b"R"
        else:
            self.name("collections", "Counter")
            self.tuple(lambda: self.dictionary(0, size))
            self.code += b"R"
            self.pairs(0, 0 if self.random.random() < 0.8 else 1)

    def complex(self):
        self.name(self.random.choice(("__builtin__", "builtins")), "complex")
        self.tuple(self.real, self.real if self.random.random() < 0.7 else lambda: self.number(-3))
        self.code += b"R"

    def path(self):
        self.name("pathlib", self.random.choice(("PosixPath", "PurePosixPath", "PureWindowsPath")))
        parts = self.random.choices(("/", "a", "b c", "..", "x/y", "C:\\", "."), k=self.random.randrange(4))
        self.tuple(*[lambda part=part: self.text(part) for part in parts])
        self.code += b"R"

    def array(self):
        code, shape = self.random.choice(NUMBERS), self.random.choice(SHAPES)
        size = int(code[1:]) * math.prod(shape) + self.is_odd()
        raw = bytes(self.random.randrange(2) for _ in range(size)) if code == "b1" else self.random.randbytes(size)
        self.name(self.random.choice(("numpy._core.multiarray", "numpy.core.multiarray")), "_reconstruct")
        self.tuple(lambda: self.name("numpy", "ndarray"), lambda: self.shape((0,)), lambda: self.encoded(b"b"))
        self.code += b"R"
        self.put("value", 0.2)
        fortran = b"\x88" if self.random.random() < 0.3 else b"\x89"
        parts = (lambda: self.kind(code), lambda: self.code.extend(fortran), lambda: self.encoded(raw))
        self.tuple(lambda: self.number(1), lambda: self.shape(shape), *parts)
        self.code += b"b"

    def namespace(self, depth, size):
        self.name("argparse", "Namespace")
        self.code += b")\x81"
        self.put("cycle", 0.3)
        for _ in range(1 + self.is_odd()):
            self.code += b"}"
            self.pairs(depth, size)
            self.code += b"b"

    def default(self, depth, size):
        self.name("collections", "defaultdict")
        self.tuple(
            lambda: self.name(self.random.choice(("__builtin__", "builtins")), self.random.choice(("list", "int")))
        )
        self.code += b"R"
        self.pairs(depth, size)

    def new(self):
        if self.random.random() < 0.5:
            self.name("collections", "OrderedDict")
            self.code += b")\x81"
        else:
            self.name("torch.nn.parameter", "Parameter")
            self.tuple(self.tensor)
            self.code += b"\x81"

    # ----------------------------------------------------------------------------------------------- containers
    def key(self, taken):
        number = self.random.random() < 0.15
        key = self.random.randrange(-1, 4) if number else self.random.choice(WORDS[:3]) + str(self.random.randrange(30))
        if not self.is_odd():
            while key in taken or str(key) in map(str, taken):
                key = f"k{self.random.randrange(10**6)}"
        taken.add(key)
        if self.is_odd() and self.random.random() < 0.7:
            self.code += self.random.choice(
                (b"\x88", b"\x89", b"N", b")", b"K\1\x85", b"NK\1\x86", b"\x88\x85", b"G" + bytes(8))
            )
        else:
            self.number(key) if isinstance(key, int) else self.text(key)

    def pairs(self, depth, size):
        """Fill the dictionary that is on top, in some steps."""
        taken = set()
        while size > 0:
            some = self.random.randint(1, size)
            one = some == 1 and self.random.random() < 0.7
            self.code += b"" if one else b"("
            for _ in range(some):
                self.key(taken)
                self.value(depth)
            self.code += b"s" if one else b"u"
            size -= some

    def dictionary(self, depth, size):
        self.code += b"}"
        self.put("cycle" if not self.is_odd() else "value", 0.3)
        self.pairs(depth, size)
        if self.is_odd():
            self.attributes(depth)
            self.code += b"b"

    def ordered(self, depth, size):
        """Push an OrderedDict, perhaps with attributes."""
        self.name("collections", "OrderedDict")
        if self.random.random() < 0.2:
            taken = set()
            pair = lambda: self.tuple(lambda: self.key(taken), lambda: self.value(depth))  # noqa: E731 - one of two
            self.tuple(lambda: self.filled(pair, size))
            self.code += b"R"
        else:
            self.code += b")R"
            self.put("cycle", 0.3)
            self.pairs(depth, size)
        if self.random.random() < 0.3:
            self.attributes(depth) if self.is_odd() else self.attribute_set(depth)
            self.code += b"b"

    def attributes(self, depth):
        """Push a dictionary of attributes, or a pair of two, or what is none."""
        if self.is_odd() and self.random.random() < 0.5:
            self.random.choice((lambda: self.code.extend(b"N"), lambda: self.code.extend(b")"), self.leaf))()
        elif self.random.random() < 0.2:
            self.tuple(lambda: self.code.extend(b"N"), lambda: self.attribute_set(depth))
        else:
            self.attribute_set(depth)

    def attribute_set(self, depth):
        self.code += b"}"
        for _ in range(self.random.randrange(3)):
            special = ("data", "real", "imag", "grad", "requires_grad", "__dict__")
            self.text(self.random.choice(special) if self.is_odd() else f"tag{self.random.randrange(9)}")
            self.tensor() if self.random.random() < 0.5 else self.value(min(depth, 1))
            self.code += b"s"

    def filled(self, push, size):
        self.code += b"]"
        self.put("list" if not self.is_odd() else "value", 0.2)
        while size > 0:
            some = self.random.randint(1, size)
            one = some == 1 and self.random.random() < 0.7
            self.code += b"" if one else b"("
            for _ in range(some):
                push()
            self.code += b"a" if one else b"e"
            size -= some

    def list(self, depth, size):
        self.filled(lambda: self.value(depth), size)

    def any_tuple(self, depth, size):
        self.tuple(*[lambda: self.value(depth)] * size)

    # -------------------------------------------------------------------------------------------------- tensors
    def shape(self, shape):
        def write():
            if self.is_odd() and self.random.random() < 0.3:
                self.filled(lambda: self.number(1), len(shape))
            else:
                self.tuple(*[lambda n=n: self.number(n) for n in shape])

        self.shared(("shape", shape), write)

    def storage(self, kind=None):
        """Push a storage of a kind; return its key."""
        fits = (
            (lambda found: found.kind != "Untyped" or self.is_odd())
            if kind is None
            else lambda found: found.kind == kind
        )
        known = [key for key, found in self.storages.items() if fits(found)]
        if known and self.random.random() < 0.6:
            key = self.random.choice(known)
        else:
            free = [key for key in KEYS[: len(KEYS) - (not self.is_odd())] if key not in self.storages]
            key = free[0] if free else f"s{len(self.storages)}"
            made = Storage(kind or self.random.choice(list(TYPES)), self.random.choice((0, 1, 2, 6, 6, 12, 12, 24)))
            self.storages[key] = made
        found = self.storages[key]

        def write():
            told = found
            if self.is_odd():
                told = Storage(self.random.choice(list(TYPES)), self.random.choice((found.elements, 1, 3)))
            if self.is_odd() and self.storages:
                self.text("")
                self.code += b"0" if not self.safe else b""
            last = [lambda: self.code.extend(b"N")] if self.legacy != self.is_odd() else []
            if self.is_odd() and last:
                last = [lambda: self.tuple(lambda: self.text("view"), lambda: self.number(0), lambda: self.number(1))]
            module = "torch.storage" if told.kind == "Untyped" else "torch"
            place = self.random.choice(("cpu", "cuda:0", "meta")) if self.is_odd() else "cpu"
            parts = [lambda: self.text("storage"), lambda: self.name(module, f"{told.kind}Storage")]
            parts += [lambda: self.text(key), lambda: self.text(place), lambda: self.number(told.elements), *last]
            self.tuple(*parts)
            self.code += b"Q"

        self.shared(("storage", key), write)
        return key

    def layout(self, room):
        """An offset, a shape and strides, mostly within so many elements."""
        shape = self.random.choice([s for s in SHAPES if math.prod(s) <= room])
        strides = [math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape))]
        kind = self.random.random()
        if kind < 0.15:
            strides = [0] * len(shape)
        elif kind < 0.3:
            shape, strides = shape[::-1], strides[::-1]
        elif kind < 0.4:
            strides = [s * 2 for s in strides]
        elif self.is_odd():
            strides = [self.random.randrange(-1, 5) for _ in shape]
        if self.random.random() < 0.2:
            far = self.random.choice((7, 2**40, 2**61, 2**62))
            strides = [far if n == 1 else s for n, s in zip(shape, strides, strict=True)]
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
        if reach > room and not self.is_odd():
            return 0, (0,), (1,)
        return self.random.randrange(max(room - reach, 0) + 1 + 2 * self.is_odd()), shape, tuple(strides)

    def hooks(self):
        """Push no hooks."""

        def write():
            self.name("collections", "OrderedDict")
            self.code += b")R"

        self.shared("hooks", write)

    def arguments(self, version):
        """Push the arguments of _rebuild_tensor and its successors; return the dtype."""
        untyped = version == 3 and not self.legacy and self.random.random() < 0.6
        made = []
        dtype = self.random.choice((*WIDTHS, *MORE)) if version == 3 else ""

        def first():
            key = self.storage("Untyped" if untyped else None)
            found = self.storages[key]
            made.append(dtype or TYPES.get(found.kind, ("uint8", 1))[0])
            made.append(found)

        self.code += b"("
        first()
        bytes_ = made[1].elements * made[1].width
        offset, shape, strides = self.layout(bytes_ // (WIDTHS | MORE)[made[0]])
        self.number(offset)
        self.shape(shape)
        self.shape(strides)
        if version > 1:
            gradient = made[0] in GRADIENTS and (version == 2 or self.is_odd()) and self.random.random() < 0.3
            self.code += b"\x88" if gradient else b"\x89"
            self.hooks()
        if version == 3:
            self.dtype(dtype)
        if self.is_odd():
            nothing = (lambda: self.code.extend(b"N"), lambda: self.code.extend(b"}"), self.leaf)
            self.random.choice((*nothing, lambda: self.view("conj"), lambda: self.view("neg")))()
        self.code += b"t"
        return made[0]

    def view(self, kind):
        self.code += b"}"
        self.text(kind)
        self.code += self.random.choice((b"\x88", b"\x89")) + b"s"

    def plain(self, *, called=True):
        """Push a tensor; or, not `called`, the function, a class and the arguments. Return the dtype."""
        version = self.random.choice((1, 2, 2, 2, 3))
        name = "_rebuild_tensor" + ("" if version == 1 else f"_v{version}")
        self.name("torch._utils", name)
        if not called:
            module, name = self.random.choice((("torch", "Tensor"), ("torch.nn.parameter", "Parameter")))
            self.name(module, name)
        dtype = self.arguments(version)
        self.code += b"R" if called else b""
        return dtype

    def tensor(self):
        kind = self.random.random()
        if kind < 0.15:
            self.name("torch._tensor", "_rebuild_from_type_v2")
            self.code += b"("
            self.plain(called=False)
            self.attributes(1)
            self.code += b"tR"
        elif kind < 0.4:
            stated = kind < 0.25
            self.name("torch._utils", "_rebuild_parameter" + ("_with_state" if stated else ""))
            self.code += b"("
            dtype = self.plain()
            self.code += b"\x88" if dtype in GRADIENTS and self.random.random() < 0.7 else b"\x89"
            self.hooks()
            if stated != self.is_odd():
                self.attributes(1)
            self.code += b"tR"
        else:
            self.plain()
        self.put("value", 0.3)
        if self.is_odd():
            self.state()

    def state(self):
        """Build a tensor once more."""
        kind = self.random.randrange(5)
        if kind == 0:
            self.code += self.random.choice((b")", b"}", b"N"))
        elif kind == 1:
            self.tuple(lambda: self.code.extend(b"\x89"), lambda: self.code.extend(b"\x89"), self.hooks)
        elif kind == 2:
            nothing = [lambda: self.code.extend(b"\x89")] * 2
            self.tuple(self.plain, *nothing, self.hooks, *nothing[:1])
        else:
            key = []
            self.code += b"("
            key.append(self.storage())
            found = self.storages[key[0]]
            offset, shape, strides = self.layout(found.elements)
            self.number(offset)
            self.shape(shape)
            self.shape(strides)
            self.code += b"t"
        self.code += b"b"


def _plain(value):
    """A pickle of a list of texts, a dictionary of one truth value, or a number, as opcodes of protocol 2."""
    if isinstance(value, int):
        size = value.bit_length() // 8 + 1
        return b"\x80\2\x8a" + bytes([size]) + value.to_bytes(size, "little") + b"."
    if isinstance(value, list):
        texts = [b"X" + struct.pack("<I", len(text.encode())) + text.encode() for text in value]
        return b"\x80\2](" + b"".join(texts) + b"e."
    (name,) = value
    code = b"}X" + struct.pack("<I", len(name)) + name.encode()
    return b"\x80\2" + code + (b"\x88s." if value[name] else b"\x89s.")


def checkpoint(number):
    """The file of a number."""
    seed = random.Random(number)
    odd = seed.choice((0, 0, 0, 0.01, 0.05))
    legacy, safe = seed.random() < 0.35, seed.random() < 0.5
    program = Assembler(seed, safe=safe, legacy=legacy, odd=odd)
    code = program.program()
    data = {}
    for key, found in program.storages.items():
        size = found.elements * found.width
        data[key] = bytes(seed.randrange(2) for _ in range(size)) if found.kind == "Bool" else seed.randbytes(size)
    keys = seed.sample(list(data), len(data))
    if odd and seed.random() < odd:
        keys = seed.choice((keys[1:], keys[:1] + keys, [*keys, "z"]))
    if legacy:
        little = seed.random() < 0.9
        out = _plain(MAGIC) + _plain(PROTOCOL) + _plain({"little_endian": little}) + code + _plain(keys)
        for key in keys:
            found = program.storages.get(key, Storage("Byte", 0))
            out += struct.pack("<Q", found.elements) + data.get(key, b"")
        return out
    folder = seed.choice(("archive", "model", "Model", "x"))
    entries = [(f"{folder}/data.pkl", code), (f"{folder}/version", b"3\n")]
    if seed.random() < 0.7:
        name = "byteorder" if seed.random() < 0.9 else "ByteOrder"
        entries.append((f"{folder}/{name}", seed.choice((b"little", b"little", b"big"))))
    for key in keys:
        name = key.swapcase() if odd and seed.random() < odd else key
        more = b"\0" if odd and seed.random() < odd else b""
        entries.append((f"{folder}/data/{name}", data.get(key, b"") + more))
    return zip_files.archive([zip_files.Entry(name.encode(), raw) for name, raw in entries])


def flat(value, is_tensor, name="", depth=0):
    """Yield the leaves of nested containers, by the names that weightmap documents."""
    if depth > 200:
        raise RecursionError
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, dict | list | tuple) and not is_tensor(value):
        members = dict.items(value) if isinstance(value, dict) else enumerate(value)
        for key, member in members:
            part = f"({', '.join(map(str, key))})" if isinstance(key, tuple) else str(key)
            yield from flat(member, is_tensor, f"{name}.{part}" if depth else part, depth + 1)
    else:
        yield name, value
