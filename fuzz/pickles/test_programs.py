"""Random pickle programs, opened beside torch.load in both of its modes: what is accepted has the values of torch.

`make torch-test` tries some; `WEIGHTMAP_PICKLES=100000 make torch-test` so many, `WEIGHTMAP_PICKLES=4711:4712` one.
"""

import collections
import io
import os
import pathlib
import re
import struct
import warnings

import numpy as np
import pytest

import weightmap as wm

if not os.environ.get("WEIGHTMAP_TORCH"):
    pytest.skip("opt-in: make torch-test", allow_module_level=True)
torch = pytest.importorskip("torch")

from .programs import checkpoint, flat  # noqa: E402 - where there is torch

# What stands for the sets of a file among its values.
SETS = "\0sets"
SAFE = [
    np._core.multiarray.scalar,
    np._core.multiarray._reconstruct,
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["All"]},
]


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def shown(value):
    """What stands for a value that torch made: equal for equal bits."""
    if is_tensor(value):
        if value.device.type != "cpu" or value.layout != torch.strided:
            return "a tensor elsewhere"
        whole = value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).flatten()
        raw = whole.view(torch.uint8).numpy() if whole.numel() else np.zeros(0, np.uint8)
        return tensor_of(str(value.dtype).removeprefix("torch."), tuple(value.shape), raw)
    if isinstance(value, torch.dtype | torch.device):
        return str, str(value)
    if isinstance(value, np.dtype):
        return str, value.newbyteorder("=").str[1:] if value.isnative else value.str
    return spelled(value.item() if isinstance(value, np.generic) else value)


def tensor_of(dtype, shape, raw):
    return dtype, shape, bytes(raw != 0) if dtype == "bool" else raw.tobytes()


def spelled(value):
    if isinstance(value, pathlib.PurePath):
        return str, str(value)
    if isinstance(value, np.ndarray):
        return np.ndarray, value.dtype.str.lstrip("|<="), value.shape, value.tobytes()
    if isinstance(value, float):
        return float, struct.pack("<d", value)
    if isinstance(value, complex):
        return complex, struct.pack("<2d", value.real, value.imag)
    if isinstance(value, bytes | bytearray):
        return bytes, bytes(value)
    return type(value), value


def theirs(data, *, weights_only):
    try:
        with torch.serialization.safe_globals(SAFE):
            loaded = torch.load(io.BytesIO(data), weights_only=weights_only)
        tensors = {}
        values = {}
        for name, leaf in flat(loaded, is_tensor):
            found = tensors if is_tensor(leaf) else values
            assert name not in found, "two leaves of one name"
            if isinstance(leaf, set | frozenset):
                # Its members have numbers, in any order.
                sets = values.setdefault(SETS, {})
                sets[name] = sorted(repr(shown(member)) for member in leaf)
            else:
                found[name] = shown(leaf)
    except Exception as error:  # noqa: BLE001 - whatever it is, there are no values
        return f"{type(error).__name__}: {error}"
    return tensors, values


def gathered(values, sets):
    values = dict(values)
    found = {}
    for name, members in sets.items():
        ours = [values.pop(f"{name}.{i}" if name else str(i), None) for i in range(len(members))]
        found[name] = sorted(map(repr, ours))
    return values | {SETS: found}


def ours(data):
    try:
        with wm.open(data) as f:
            tensors = {}
            for name, array in f.items():
                little = array.byteswap() if array.dtype.byteorder == ">" else array
                tensors[name] = tensor_of(f.info(name).dtype, array.shape, np.frombuffer(little.tobytes(), np.uint8))
            return tensors, {name: spelled(value) for name, value in f.metadata.items()}
    except wm.FormatError as error:
        return f"{type(error).__name__}: {error}"


def differences(data, outcomes):
    found, safe, free = ours(data), theirs(data, weights_only=True), theirs(data, weights_only=False)
    loaded = [mode for mode, other in (("True", safe), ("False", free)) if not isinstance(other, str)]
    if isinstance(found, str):
        why = re.sub(
            r"\w+/data.pkl|the pickle of the object", "the program", found.partition(": ")[2].partition(": ")[2]
        )
        why = re.sub(r"'[^']*'|0x\w+|\d+", "*", why)[:90]
        outcomes[f"refused, torch {'accepts' if loaded else 'refuses too'}: {why}"] += 1
        return []
    outcomes[f"accepted, and by torch with weights_only {' and '.join(loaded) or 'not at all'}"] += 1
    wrong = []
    for mode, other in (("True", safe), ("False", free)):
        if isinstance(other, str):
            continue
        same = found[0], gathered(found[1], other[1][SETS]) if SETS in other[1] else found[1]
        if other != same:
            wrong.append(f"weights_only={mode}: {same} is not {other}")
    return wrong


def test_random_programs():
    first, _, last = os.environ.get("WEIGHTMAP_PICKLES", "300").rpartition(":")
    outcomes = collections.Counter()
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(int(first or 0), int(last)):
            wrong += [f"{number}: {text}" for text in differences(checkpoint(number), outcomes)]
    for what, count in outcomes.most_common():
        print(f"{count:8} {what}")  # noqa: T201 - shown by pytest -rP, and where something is wrong
    assert not wrong, "\n".join(wrong[:20])
    accepted = sum(count for what, count in outcomes.items() if what.startswith("accepted, and by torch"))
    assert accepted > sum(outcomes.values()) // 3 or sum(outcomes.values()) < 100
