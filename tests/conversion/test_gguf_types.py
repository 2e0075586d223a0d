"""The types of metadata in formats without types: there and back through one or two formats, and losses."""

import itertools

import numpy as np
import pytest
from tests.builders import gguf, normal

import weightmap as wm

RECORD = "weightmap.types"
INF, NAN = float("inf"), float("nan")
# The smallest and the largest of each type of integers, floats that are hard to spell, empty and nested arrays.
SCALARS = {
    **{f"u{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    "f32": (1 / 3, -0.0, 1e-45, INF, -INF, NAN),
    "f64": (1 / 3, -0.0, 5e-324, 1.7976931348623157e308, INF, NAN),
    "bool": (False, True),
    "str": ("32", "true", "NaN", '"', "", "日本"),
}
ARRAYS = [
    *(([kind], list(values)) for kind, values in SCALARS.items()),
    *(([kind], []) for kind in SCALARS),
    ([["i32"]], [[1, 2], [], [3]]),
    ([["str"]], [["a", ""], []]),
    ([["array"]], [[], []]),
    (["array"], []),
    ([[["f32"]]], [[[NAN, 0.5]], [[], [1.5]]]),
]
ENTRIES = [
    gguf.KeyValue("general.architecture", "str", "llama"),
    *(gguf.KeyValue(f"{kind}.{i}", kind, value) for kind, values in SCALARS.items() for i, value in enumerate(values)),
    *(gguf.KeyValue(f"array.{i}", kind, value) for i, (kind, value) in enumerate(ARRAYS)),
    gguf.KeyValue("tokenizer.ggml.tokens", ["str"], ["<s>", "a", "ü"]),
    gguf.KeyValue("tokenizer.ggml.bos_token_id", "i32", 0),
    gguf.KeyValue("tokenizer.ggml.seperator_token_id", "u64", 2),
    gguf.KeyValue("tokenizer.ggml.padding_token_id", "u32", 1),
]
SUFFIXES = (".safetensors", ".weights", ".amb", ".bt")


def written(path, entries=ENTRIES):
    path.write_bytes(gguf.build({"w": normal((4, 32))}, entries))
    return path


def values_of(path):
    return {entry.key: gguf.Coder().key_value(entry) for entry in gguf.parse(path.read_bytes())[1]}


@pytest.mark.parametrize(
    ("first", "second"),
    [(first, None) for first in SUFFIXES]
    # EMBD's vocabulary, which has the tokens, stays behind on the way to formats without one.
    + [(first, second) for first in SUFFIXES for second in SUFFIXES if first != ".weights"],
)
def test_types_survive_in_formats_without_types(first, second, tmp_path):
    source, back = written(tmp_path / "a.gguf"), tmp_path / "back.gguf"
    steps = [source, tmp_path / f"b{first}", *([] if second is None else [tmp_path / f"c{second}"]), back]
    for before, after in itertools.pairwise(steps):
        assert wm.convert(before, after).warnings == ()
        assert wm.diff(source, after).equal
    assert values_of(back) == values_of(source)
    wm.convert(back, tmp_path / f"again{first}")
    assert (tmp_path / f"again{first}").read_bytes() == steps[1].read_bytes()


def test_gguf_py_finds_the_same_fields(tmp_path):
    theirs = pytest.importorskip("gguf")

    def fields(path):
        found = theirs.GGUFReader(path).fields
        return {
            name: (field.types, [field.parts[i].tobytes() for i in field.data])
            for name, field in found.items()
            if name[:5] != "GGUF."
        }

    source = written(tmp_path / "a.gguf", [entry for entry in ENTRIES if entry.kind != ["array"]])
    for suffix in SUFFIXES:
        wm.convert(source, tmp_path / f"b{suffix}")
        wm.convert(tmp_path / f"b{suffix}", tmp_path / "back.gguf")
        assert fields(tmp_path / "back.gguf") == fields(source)


def test_every_key_that_stays_behind_is_named(tmp_path):
    long = [gguf.KeyValue(f"long.{i}", ["i32"], [10**9] * 6000) for i in range(7)]
    odd = [
        gguf.KeyValue("text", "str", "x" * 65536),
        gguf.KeyValue("nan", "f32", b"\x01\0\xc0\x7f"),
        gguf.KeyValue(RECORD, "str", "mine"),
        gguf.KeyValue("raw", ["str"], [b"\xff"]),
    ]
    kept = gguf.KeyValue("kept", "u8", 1)
    (said,) = wm.convert(written(tmp_path / "a.gguf", [*long, *odd, kept]), tmp_path / "b.weights").warnings
    assert said.startswith("EMBD has no place for 11 metadata entries (")
    assert all(repr(entry.key) in said for entry in (*long, *odd))
    assert dict(wm.open(tmp_path / "b.weights").metadata) == {"kept": "1", RECORD: '{"kept": "UINT8"}'}


@pytest.mark.parametrize("source", ["t.amb", "t.fifu"])
@pytest.mark.parametrize("through", [[".bt"], [".safetensors"], [".weights"], [".bt", ".weights"]])
def test_numbers_and_truth_values_survive_as_texts(tmp_path, source, through):
    """From JSON and TOML: they become texts with a type beside them, and numbers again on the way back."""
    metadata = {"i": 1, "big": 2**62, "f": 1.5, "small": -5e-324, "b": True, "s": "1", "true": "true"}
    vocab = ["a", "b"] if source == "t.fifu" else None
    wm.save(tmp_path / source, {"embeddings": np.ones((2, 3), np.float32)}, metadata=metadata, vocab=vocab)
    at = source
    for suffix in through if vocab is None else [".weights"]:
        wm.convert(tmp_path / at, tmp_path / f"t{suffix}")
        at = f"t{suffix}"
        stored = wm.open(tmp_path / at).metadata
        assert {key: stored[key] for key in ("i", "f", "b", "s")} == {"i": "1", "f": "1.5", "b": "true", "s": "1"}
    suffix = source[1:]
    assert wm.convert(tmp_path / at, tmp_path / f"back{suffix}").warnings == ()
    back = wm.open(tmp_path / f"back{suffix}").metadata
    assert back == metadata
    assert {key: type(value) for key, value in back.items()} == {key: type(value) for key, value in metadata.items()}


def test_a_stated_type_of_json_that_is_none(tmp_path):
    metadata = {"a": "1", "b": "{", "c": "[1, null]", "weightmap.types": '{"a": "JSON", "b": "JSON", "c": "JSON"}'}
    wm.save(tmp_path / "t.bt", {"a": np.ones(2, np.float32)}, metadata=metadata)
    (said,) = wm.convert(tmp_path / "t.bt", tmp_path / "t.amb").warnings
    assert said == "1 metadata entry ('b'): not of the type that 'weightmap.types' states, kept as stored"
    assert wm.open(tmp_path / "t.amb").metadata == {"a": 1, "b": "{", "c": [1, None]}


def test_values_of_json_that_gguf_has_no_type_for_stay_behind(tmp_path):
    """Such as the state of numpy's random generator, an integer of 128 bits."""
    values = {"state": 2**127, "low": -(2**63) - 1, "list": [2**64], "types": [1, 2.5], "both": ["a", True]}
    kept = {"first": -(2**63), "last": 2**64 - 1, "numbers": [1, 2]}
    wm.save(tmp_path / "a.amb", {"w": np.ones(2, np.float32)}, metadata=values | kept)
    (said,) = (line for line in wm.convert(tmp_path / "a.amb", tmp_path / "a.gguf").warnings if "behind" in line)
    assert said == "GGUF has no place for 5 metadata entries ('both', 'list', 'low', 'state', 'types'): left behind"
    metadata = wm.open(tmp_path / "a.gguf").metadata
    assert {key: np.asarray(value).tolist() for key, value in metadata.items()} == kept
    wm.convert(tmp_path / "a.amb", tmp_path / "b.amb")
    assert wm.open(tmp_path / "b.amb").metadata == values | kept
