"""What the machine of pickles keeps: what is mentioned again, and little else."""

import collections
import io
import pickle
import struct
import subprocess
import sys
import types

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.builders import torch as files


class Storage:
    """A storage of float32."""

    def __init__(self, key, elements):
        self.key, self.elements = key, elements


def _rebuild_tensor_v2(*_args):
    """A name to pickle."""


class FloatStorage:
    """A name to pickle."""


class Tensor:
    """A tensor, whose parts may be objects that others have too."""

    def __init__(self, storage, offset, shape, strides):
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def __reduce__(self):
        hooks = collections.OrderedDict()
        return _rebuild_tensor_v2, (self.storage, self.offset, self.shape, self.strides, False, hooks)


_rebuild_tensor_v2.__module__, FloatStorage.__module__ = "torch._utils", "torch"


class Pickler(pickle.Pickler):
    """Python's pickler, which shares what is one object, with storages as torch.save names them."""

    def persistent_id(self, obj):
        return ("storage", FloatStorage, obj.key, "cpu", obj.elements) if isinstance(obj, Storage) else None


def saved(value, protocol=2):
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    vars(torch).update(FloatStorage=FloatStorage, _utils=utils)
    vars(utils).update(_rebuild_tensor_v2=_rebuild_tensor_v2)
    out = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "torch._utils", utils)
        Pickler(out, protocol=protocol).dump(value)
    return out.getvalue()


def flat(value, name=""):
    if not isinstance(value, dict | list | tuple):
        return {name: value}
    members = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for key, member in members:
        found |= flat(member, f"{name}.{key}" if name else str(key))
    return found


ELEMENTS = 12
DATA = {key: np.arange(ELEMENTS, dtype=np.float32) + 100 * i for i, key in enumerate("abc")}


@st.composite
def objects(draw):
    shapes = [(2, 3), (3, 2), (4,), (), (1, 2, 2)]
    strides = {shape: files.row_major(shape) for shape in shapes} | {(3, 2): (1, 3)}
    storages = [Storage(key, ELEMENTS) for key in DATA]
    pool = [1, None, "text", b"raw", 2.5, (1, 2), {"x": 1}, [3]]
    for _ in range(draw(st.integers(1, 14))):
        parts = draw(st.lists(st.integers(0, len(pool) - 1), max_size=3))
        kind = draw(st.integers(0, 4))
        if kind <= 1:
            shape = draw(st.sampled_from(shapes))
            pool.append(Tensor(draw(st.sampled_from(storages)), draw(st.integers(0, 6)), shape, strides[shape]))
        elif kind == 2:
            pool.append([pool[i] for i in parts])
        elif kind == 3:
            pool.append(tuple(pool[i] for i in parts))
        else:
            pool.append({f"k{n}": pool[i] for n, i in enumerate(parts)})
    return {str(i): value for i, value in enumerate(pool[8:])}


CHILD = """
import gc, sys, weightmap as wm

def status():
    with open("/proc/self/status") as file:
        lines = [line.split() for line in file if line.startswith(("Vm", "Rss"))]
        return {line[0]: int(line[1]) for line in lines}

with wm.open(sys.argv[2]) as f:  # imports what opening needs
    dict(f.metadata)
gc.collect()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status()
with wm.open(sys.argv[1]) as f:
    after = status()
    print(len(f), after["VmHWM:"] - before["VmRSS:"], after["RssAnon:"] - before["RssAnon:"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the most memory that a process had")
@pytest.mark.parametrize("layout", ["zip", "legacy"])
def test_the_most_memory_that_opening_takes(tmp_path, layout):
    few, many = (write(tmp_path, count, layout) for count in (10, 30_000))
    done = subprocess.run([sys.executable, "-c", CHILD, many, few], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, peak, kept = map(int, done.stdout.split())
    assert count == 30_000
    assert peak * 1024 < (2 << 20) + 200 * count
    assert kept <= peak


SIZE = 1_000_000
NUMBERS = [struct.pack("<I", i) for i in range(SIZE // 4)]
ARRAYS = b"(cnumpy._core.multiarray\n_reconstruct\n\x940cnumpy\nndarray\nNN\x87\x940"
# Programs of the shortest opcodes, each of which makes as much as it can.
DENSE = {
    "empty lists": b"(" + b"]" * SIZE + b"t.",
    "empty dictionaries in a list": b"](" + b"}" * SIZE + b"e.",
    "nothing at all": b"(" + b"N" * SIZE + b"t.",
    "empty sets": b"(" + b"\x8f" * SIZE + b"t.",
    "frozen sets": b"(" + b"(N\x91" * (SIZE // 3) + b"t.",
    "namespaces": b"(cargparse\nNamespace\n\x940" + b"h\0)\x81" * (SIZE // 4) + b"t.",
    "arrays": ARRAYS + b"h\0h\1R" * (SIZE // 5) + b"t.",
    "tuples in tuples": b"(" + b")\x85\x85\x85" * (SIZE // 4) + b"t.",
    "lists that are remembered": b"(" + b"]\x94" * (SIZE // 2) + b"".join(b"j" + n for n in NUMBERS[::256]) + b"t.",
    "what is put in many times": b"N" + b"\x94" * SIZE + b"".join(b"0j" + n for n in NUMBERS[::256]) + b".",
    "what was never put in": b"".join(b"j" + n for n in NUMBERS[::128]) + b"N" * SIZE,
    "keys": b"}(" + b"".join(b"J" + n + b"N" for n in NUMBERS[: SIZE // 6]) + b"u.",
    "dictionaries of one list": b"]("
    + b"NN\x86" * 9
    + b"e\x94("
    + files.ORDERED[:-2]
    + b"\x94"
    + b"h\1h\0\x85R" * SIZE,
}


EACH = """
import gc, sys, weightmap as wm

def memory(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(what))

wm.open(sys.argv[1]).close()  # imports what opening needs
for path in sys.argv[1:]:
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # from here on the peak is counted anew
    before = memory("VmRSS")
    try:
        wm.open(path).close()
    except wm.FormatError:
        pass
    print(memory("VmHWM") - before)
"""


def write(folder, count, layout):
    keys = [str(i) for i in range(count)]
    value = {f"model.layers.{key}.self_attn.q_proj.weight": Tensor(Storage(key, 4), 0, (2, 2), (2, 1)) for key in keys}
    program, data = saved(value), struct.pack("<4f", 1, 2, 3, 4)
    path = folder / f"{count}.pt"
    if layout == "zip":
        path.write_bytes(files.zipped(program, dict.fromkeys(keys, data), prefix="pytorch_model"))
    else:
        path.write_bytes(files.legacy(program, dict.fromkeys(keys, files.Item(data, 4))))
    return path
