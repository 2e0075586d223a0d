"""Attacks on a model in several files: the index of shards, and shards that disagree with it."""

import json

from tests.builders import normal
from tests.builders import safetensors as st

from .case import BAD_JSON, INDEX, Case

KIND = "sharded"
SHARD_FORMAT = st.FORMAT
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
FIRST = {"a.weight": normal((3, 4), 1), "a.bias": normal((4,), 2)}
SECOND = {"b.weight": normal((5, 2), 3), "half": normal((3,), 4, "bfloat16")}
WHERE = dict.fromkeys(FIRST, ONE) | dict.fromkeys(SECOND, TWO)
TOTAL = sum(len(value.data) for value in (*FIRST.values(), *SECOND.values()))
SHARDS = {ONE: st.build(FIRST), TWO: st.build(SECOND)}
# A model outside the folder, or in it under another name, is not a shard.
OUTSIDE = ["../outside.safetensors", "sub/../../outside.safetensors", "/etc/passwd", "C:\\x.safetensors"]
OUTSIDE += ["s3://bucket/x.safetensors", "https://example.org/x.safetensors", "file:///etc/passwd", "..", ".", ""]
OUTSIDE += ["a\0b.safetensors", "..\\outside.safetensors", "//host/share.safetensors", "./", "sub/.."]


def folder(shards=None, **content):
    index = {"metadata": {"total_size": TOTAL}, "weight_map": WHERE, **content}
    return {INDEX: json.dumps(index).encode(), **(SHARDS if shards is None else shards)}


def case(row, name, data, error="", field=None, **more):
    return Case(row, KIND, name, data, error, field, **more)


def cases():
    for number, name in enumerate(OUTSIDE):
        data = folder(weight_map=WHERE | {"half": name})
        yield case("C30", f"outside, {number}", data, "FormatError", "weight_map", odd="name of a shard is")
    data = folder({ONE: SHARDS[ONE]})
    yield case("C30", "a missing shard", data, "LayoutError", "weight_map", odd="of this model is missing")
    missing = {"a name longer than any file's": "n" * 999, "a file as a directory": f"{ONE}/x"}
    missing |= {"a missing shard, by a dot": "./x.safetensors", "by two slashes": "sub//x.safetensors"}
    for name, shard in missing.items():
        data = folder(weight_map=WHERE | {"half": shard})
        yield case("C30", name, data, "LayoutError", "weight_map", odd="of this model is missing")
    data = folder(weight_map=WHERE | {"half": ONE})
    yield case("C30", "a tensor in another shard", data, odd=f"'half' is in shard {TWO!r}, but the index places it in")
    data = folder(weight_map=WHERE | {"more": TWO})
    yield case("C30", "a tensor that no shard has", data, "LayoutError", "weight_map", odd="'more' is not in shard")
    both = {ONE: SHARDS[ONE], TWO: st.build(SECOND | {"a.bias": FIRST["a.bias"]})}
    told = f"'a.bias' is in several shards: the one in {TWO!r} is left out"
    yield case("C30", "a tensor in two shards", folder(both), "LayoutError", "weight_map", odd=told)
    for name, total in {"a byte more": TOTAL + 1, "0": 0, "in words": "many", "negative": -1}.items():
        data = folder(metadata={"total_size": total})
        yield case("C30", f"total size {name}", data, odd="total_size")
    fewer = {name: shard for name, shard in WHERE.items() if name != "half"}
    data = folder(weight_map=fewer, metadata={})
    yield case("C30", "a tensor that the index lacks", data, odd="tensor 'half' is in shard")
    for name, shard in (("the index itself", INDEX), ("another index", "other.index.json")):
        data = folder(weight_map=WHERE | {"half": shard}) | {"other.index.json": folder()[INDEX]}
        told = "is an index or a directory"
        yield case("C30", f"{name} as a shard", data, "LayoutError", "weight_map", odd=told)
    damaged = {ONE: SHARDS[ONE], TWO: SHARDS[TWO][:-1]}
    cut, told = folder(damaged), f"shard {TWO!r} is left out: "
    yield case("C1", "a shard cut off", cut, "TruncatedError", "data_offsets", offset=len(damaged[TWO]), odd=told)
    within = {"not UTF-8": 7, "overlong UTF-8": 7, "surrogate in UTF-8": 7, "UTF-16": 0, "something behind": 3}
    within |= {"cut off": 6, "trailing comma": 8, "comment": 1, "raw control character": 3}
    within |= {"spaces": 3, "byte order mark": 0}
    for name, text in BAD_JSON.items():
        data = folder() | {INDEX: text}
        at = within.get(name)
        yield case("D1", name, data, "FormatError", "index of shards", offset=at)
    yield case("D1", "empty", folder() | {INDEX: b""}, "TruncatedError", "index of shards", offset=0)
    for name, text in {"no map": b"{}", "map a list": b'{"weight_map":[]}', "map null": b'{"weight_map":null}'}.items():
        yield case("D1", name, folder() | {INDEX: text}, "FormatError", "weight_map")
    data = folder(weight_map=WHERE | {"half": 5})
    yield case("D1", "shard a number", data, "FormatError", "weight_map", odd="name of a shard is a int")
    data = folder() | {INDEX: b'{"weight_map":{},"metadata":[]}'}
    yield case("D1", "metadata a list", data, "FormatError", "metadata", odd="metadata of the index of shards is not")
