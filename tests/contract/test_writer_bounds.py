"""The exact ceilings of formats: a file at the bound is planned, and one beyond it is an error that says so.

Plans are made and not carried out, so the tensors have shapes and no data.
"""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import weightmap as wm
from weightmap.dtypes import DTYPES, SCHEMES
from weightmap.formats import Payload, Request, Tensors, _writing, by_name
from weightmap.formats.amb import writing as amb_writing
from weightmap.formats.embd import writing as embd_writing
from weightmap.quant import PQShape

if TYPE_CHECKING:
    from collections.abc import Sequence

U16, U32 = 2**16 - 1, 2**32 - 1


def tensor(name: str = "a", shape: tuple[int, ...] = (1,), dtype: str = "float32", **options: Any) -> Payload:
    """A tensor without data."""
    kind = DTYPES.get(dtype) or SCHEMES[dtype]
    return Payload(name, kind, shape, math.prod(shape) * kind.bits // 8, lambda: (), **options)


def planned(format: str, *tensors: Payload, layout: str | None = None, **options: Any) -> int:
    """The size of the file that would be written."""
    found = by_name(format)
    assert found.plan is not None
    return found.plan(Request(Tensors(tensors), layout or found.layouts[0], **options)).size


def refused(format: str, *tensors: Payload, layout: str | None = None, **options: Any) -> str:
    """Why no file would be written."""
    with pytest.raises(wm.EncodeError) as caught:
        planned(format, *tensors, layout=layout, **options)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ names and shapes


@pytest.mark.parametrize(("format", "layout"), [("embd", "spec"), ("embd", "simple"), ("amb", None)])
def test_names_have_65535_bytes(format, layout):
    """A name of 65,535 bytes is written, and one of 65,536 is refused."""
    shortest = planned(format, tensor(""), layout=layout)
    assert planned(format, tensor("n" * U16), layout=layout) - shortest in range(U16 - 64, U16 + 65)
    assert "a name" in refused(format, tensor("n" * (U16 + 1)), layout=layout)
    assert "a name" in refused(format, tensor("é" * (U16 // 2) + "nn"), layout=layout)


@pytest.mark.parametrize(("format", "layout"), [("embd", "spec"), ("embd", "simple"), ("amb", None)])
def test_dimensions_are_below_2_to_the_32(format, layout):
    """A dimension of 2^32 - 1 is written, and one of 2^32 is refused."""
    assert planned(format, tensor(shape=(U32, 0)), layout=layout) > 0
    assert f"shape ({U32 + 1}, 0) (a dimension is below 2**32)" in refused(
        format, tensor(shape=(U32 + 1, 0)), layout=layout
    )
    # Of a tensor that has something else, nothing is said of its shape.
    assert "shape" not in refused(format, tensor(shape=(U32, 0), dtype="float64"), layout=layout)


@pytest.mark.parametrize("layout", ["spec", "simple"])
@pytest.mark.parametrize("ndim", range(7))
def test_embd_has_one_to_four_dimensions(layout, ndim):
    """From one dimension to four a tensor is written; none and five are refused, and nothing else is found wrong."""
    given = tensor(shape=(2,) * ndim)
    if 1 <= ndim <= 4:
        assert planned("embd", given, layout=layout) > 0
    else:
        reason = f"tensor 'a': {ndim} dimensions (expected 1 to 4)"
        assert refused("embd", given, layout=layout).endswith(f": {reason}")


@pytest.mark.parametrize("shape", [(1,) * 4, (1,) * 5])
def test_a_dtype_alone_is_reported(shape):
    """Reasons name what is wrong, and nothing that is not."""
    text = refused("embd", tensor(shape=shape, dtype="float64"))
    assert ("dtype float64" in text, "dimensions" in text, "a name" in text) == (True, len(shape) > 4, False)


def test_blocks_of_amb_have_65535_elements():
    """The block size is a u16: 65,535 is written, and 65,536 refused."""
    for size in (U16, U16 + 1):
        blocks = tensor(shape=(8,), dtype="int4_block", block_size=size, scale_type="fp16")
        if size == U16:
            assert planned("amb", blocks) > 0
        else:
            assert "blocks of 65536 elements (at most 65535)" in refused("amb", blocks)


EMBD_TYPES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8")


def error_of(*tensors):
    """The error for tensors that EMBD cannot express."""
    with pytest.raises(wm.EncodeError) as caught:
        planned("embd", *tensors)
    return caught.value


def test_tensors_of_one_reason_are_reported_together():
    """Thousands of tensors make one short line, with the first of their names; the error has all of them."""
    many = [tensor(f"t{i}", dtype="float64") for i in range(3000)]
    text, why = str(error_of(*many)), f"dtype float64 (expected {', '.join(EMBD_TYPES)})"
    assert "tensors 't0', 't1', 't2'" in text
    assert text.endswith(f" more: {why}")
    assert len(text) < 600
    assert error_of(*many).refused == tuple(f"tensor 't{i}': {why}" for i in range(3000))
    assert pickle.loads(pickle.dumps(error_of(*many))).refused == error_of(*many).refused
    assert str(error_of(many[7])) == f"EMBD cannot express this: tensor 't7': {why}"


@pytest.mark.parametrize(("length", "whole"), [(48, True), (49, False)])
def test_names_of_one_reason_take_300_characters(length, whole):
    """The message has as many names as fit, with their quotes, and the number of the others."""
    text = str(error_of(*(tensor(letter * length, dtype="float64") for letter in "abcdef")))
    assert ("more" not in text) is whole


@pytest.mark.parametrize("count", [1, 5, 40])
def test_reasons_take_1000_characters(count):
    """When each tensor has a reason of its own, the message has the first reasons, and the number of the others."""
    error = error_of(*(tensor("n" * 70 + str(i), (1,) * (5 + i)) for i in range(count)))
    assert len(error.refused) == count
    assert len(str(error)) < 1200
    assert ("more" in str(error)) is (count > 10)
    if count > 10:
        told = str(error).count("dimensions")
        assert str(error).endswith(f"; and {count - told} reasons more")


def test_a_long_name_is_cut():
    """A name of 100,000 characters takes 80 in a message."""
    error = error_of(tensor("n" * 100_000))
    assert len(str(error)) < 300
    assert f"tensor '{'n' * 80}'...: a name" in str(error)


# ---------------------------------------------------------------------------------------------------- EMBD and AMB


@pytest.mark.parametrize("key", ["k", "k" * U16])
def test_metadata_of_embd_has_texts_of_65535_bytes(key):
    """Keys and values of 65,535 bytes are written, and one byte more is refused."""
    assert planned("embd", tensor(), metadata={key: "v" * U16}) > U16
    for pair in ((key, "v" * (U16 + 1)), ("k" * (U16 + 1), "v")):
        assert "at most 65535 bytes" in refused("embd", tensor(), metadata=dict([pair]))


def test_tokens_of_embd_have_65535_bytes():
    """A token of 65,535 bytes is written, and a longer one refused; the simple layout has no such bound."""
    assert planned("embd", tensor(), vocab=["t" * U16]) > U16
    assert "token 1:" in refused("embd", tensor(), vocab=["a", "t" * (U16 + 1)])
    assert planned("embd", tensor(), layout="simple", vocab=["t" * (U16 + 1)]) > U16


@pytest.mark.parametrize(("value", "good"), [(-1, False), (0, True), (U32, True), (U32 + 1, False)])
def test_special_ids_of_embd_are_numbers_of_32_bits(value, good):
    """Ids from 0 to 2^32 - 1 are written; the last one means that there is no such token."""
    options: dict[str, Any] = {"vocab": ["a"], "special_ids": {"pad": value}}
    if good:
        assert planned("embd", tensor(), **options) > 0
    else:
        assert f"special id 'pad': {value}" in refused("embd", tensor(), **options)


@pytest.mark.parametrize(("value", "good"), [(-1, False), (0, True), (U16 - 1, True), (U16, False)])
def test_special_ids_of_amb_are_numbers_of_16_bits(value, good):
    """Ids from 0 to 65,534 are written; 65,535 means that there is no such token."""
    tokenizer = {"type": 0, "special_ids": {"pad": value}, "payload": b""}
    if good:
        assert planned("amb", tensor(), tokenizer=tokenizer) > 0
    else:
        assert f"special id 'pad': {value}" in refused("amb", tensor(), tokenizer=tokenizer)


@pytest.mark.parametrize("kind", range(-1, 6))
def test_types_of_tokenizers(kind):
    """There are types 0 to 3."""
    tokenizer = {"type": kind, "special_ids": {}, "payload": b""}
    if 0 <= kind <= 3:
        assert planned("amb", tensor(), tokenizer=tokenizer) > 0
    else:
        assert f"tokenizer type: {kind} (an integer from 0 to 3)" in refused("amb", tensor(), tokenizer=tokenizer)


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_of_amb_have_a_thousand_digits(sign):
    """The largest integer of a thousand digits is written, on either side of 0, and the next one is not."""
    assert planned("amb", tensor(), config={"n": sign * (10**1000 - 1)}) > 1000
    assert "more than 1000 digits" in refused("amb", tensor(), config={"n": sign * 10**1000})


def test_numbers_of_amb_are_finite():
    """A number that is not finite is refused, and every other one is written."""
    assert planned("amb", tensor(), config={"x": [0.0, -1.5, 1e308]}) > 0
    for value in ("nan", "inf", "-inf"):
        assert f"{value} (a finite number)" in refused("amb", tensor(), config={"x": float(value)})


def nested(depth: int, innermost: Any = 1) -> Any:
    """Lists within each other, so many, in a configuration."""
    for _ in range(depth):
        innermost = [innermost]
    return {"a": innermost}


def test_texts_of_amb_are_nested_128_deep():
    """Values 128 deep are written, and deeper ones are refused."""
    assert planned("amb", tensor(), config=nested(127)) > 256
    assert "nested more than 128 deep" in refused("amb", tensor(), config=nested(128))


def test_reasons_name_the_outermost_key():
    """A value that JSON lacks is reported by the section's key under which it lies, and by no other."""
    bad = float("nan")
    assert "config: 'a': nan (a finite number)" in refused("amb", tensor(), config={"a": bad})
    assert "config: 'a': nan (a finite number)" in refused("amb", tensor(), config={"a": {"b": {"c": bad}}})
    assert "config: 'a': nan (a finite number)" in refused("amb", tensor(), config={"z": 1, "a": [{"b": bad}]})


def test_names_in_messages():
    """A name is shown up to 80 letters, and names up to 300 in all, quotes included."""
    assert _writing.listed(["n" * 80]) == repr("n" * 80)
    assert _writing.listed(["n" * 81]) == f"{'n' * 80!r}..."
    three, less = ["a" * 78] * 3, ["b" * 58, "b" * 59]
    assert _writing.listed([*three, less[0]]) == ", ".join(map(repr, [*three, less[0]]))
    assert _writing.listed([*three, less[1]]) == f"{', '.join(map(repr, three))} and 1 more"


def test_reasons_in_messages():
    """Names that share a reason are in the plural, and reasons go on up to 1,000 letters."""
    reasons: list[_writing.Reason] = [_writing.Unfit("tensor", name, "why") for name in "ab"]
    assert _writing._together(reasons[:1]) == "tensor 'a': why"
    assert _writing._together(reasons) == "tensors 'a', 'b': why"
    assert _writing._together(["x" * 400, "y" * 600]) == f"{'x' * 400}; {'y' * 600}"
    assert _writing._together(["x" * 400, "y" * 601]) == f"{'x' * 400}; and 1 reason more"


LOW = 1000


@pytest.fixture
def low(monkeypatch):
    """Make the bound of a u32 low: content of that size takes more memory than a test may."""
    for module in (embd_writing, amb_writing):
        monkeypatch.setattr(module, "U32_MAX", LOW)


@pytest.mark.usefixtures("low")
def test_sections_at_the_bound_of_their_size():
    """A section as large as its field can say is written, and one byte more is refused, in EMBD and AMB."""
    cases: list[tuple[str, Any, int, int]] = [
        ("embd", lambda n: {"metadata": {"k": "v" * n}}, 5, LOW),
        ("embd", lambda n: {"vocab": ["t" * n]}, 2, LOW - 32),
        ("amb", lambda n: {"tokenizer": {"type": 0, "special_ids": {}, "payload": bytes(n)}}, 0, LOW - 11),
        ("amb", lambda n: {"metadata": {"k": "v" * n}}, 9, LOW - 7),
        ("amb", lambda n: {"config": {"k": "v" * n}}, 9, LOW - 7),
    ]
    for format, content, besides, most in cases:
        other = tensor(shape=(1,))
        texts = [refused(format, other, **content(most - besides + more)) for more in (1, 2)]
        assert all(str(most + more) in text or "payload" in text for more, text in enumerate(texts, 1)), texts
        try:
            assert planned(format, other, **content(most - besides)) > 0
        except wm.EncodeError as error:  # of two sections that both fit, the one behind them may begin too late
            assert "tensor data would begin" in str(error)  # noqa: PT017


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tensors_of_the_simple_layout_are_counted_in_32_bits(monkeypatch, count):
    """As many tensors as a u32 counts are written, here two, and one more is refused."""
    monkeypatch.setattr(embd_writing, "U32_MAX", 2)
    given = [tensor(f"{i}") for i in range(count)]
    if count <= 2:
        assert planned("embd", *given, layout="simple") > 0
    else:
        assert refused("embd", *given, layout="simple").endswith(": 3 tensors")


@pytest.mark.parametrize(("bound", "good"), [(959, False), (960, True), (961, True)])
def test_the_last_place_where_data_may_begin(monkeypatch, bound, good):
    """The data of EMBD may begin at the largest possible offset."""
    monkeypatch.setattr(embd_writing, "U32_MAX", bound)
    given = tensor("n" * 800)
    if good:
        assert planned("embd", given) == 960 + 4 + 16
    else:
        assert "tensor data would begin at byte 960" in refused("embd", given)


# ---------------------------------------------------------------------------------------------------------- CNN v2


def layer(number: int, *shape: int) -> Payload:
    """A layer of this shape."""
    return tensor(f"layer.{number}.weight", shape, "float16")


def test_weights_of_cnn_v2_are_counted_in_32_bits():
    """2^32 - 1 weights are written; with one more, the layer that brings it is named, and no other."""
    large, small = layer(0, 65535, 65537, 1, 1), layer(1, 1, 1, 1, 1)
    assert planned("cnn_v2", large) == 20 + 20 + 2 * U32 + 2
    text = refused("cnn_v2", large, small)
    assert text.endswith(": tensor 'layer.1.weight': with it there are 4294967296 weights (below 2**32)")
    text = refused("cnn_v2", large, small, layer(2, 1, 1, 1, 1))
    assert text.count("with it there are") == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_of_cnn_v2_are_below_2_to_the_32(axis):
    """2^32 - 1 channels are written, and 2^32 refused."""
    shape = [1, 1, 1, 1]
    shape[axis] = U32
    assert planned("cnn_v2", layer(0, *shape)) > 2 * U32
    shape[axis] = U32 + 1
    assert "(a dimension is below 2**32)" in refused("cnn_v2", layer(0, *shape))


@pytest.mark.parametrize("value", [0, 1, U32, "0", "4294967295"])
def test_mip_levels_that_are(value):
    """A mip level is a number of 32 bits, or its decimal digits."""
    assert planned("cnn_v2", layer(0, 1, 1, 2, 2), metadata={"mip_level": value})


@pytest.mark.parametrize("value", [-1, U32 + 1, "4294967296", "00000000001", "-1", "", "\u0661", True, 1.0])
def test_mip_levels_that_are_not(value):
    """Anything else is refused."""
    assert "metadata 'mip_level'" in refused("cnn_v2", layer(0, 1, 1, 2, 2), metadata={"mip_level": value})


def test_mip_levels_of_version_1():
    """Version 1 has no place for a mip level other than 0."""
    assert planned("cnn_v2", layer(0, 1, 1, 2, 2), layout="v1", metadata={"mip_level": 0})
    assert "layout v1 has none" in refused("cnn_v2", layer(0, 1, 1, 2, 2), layout="v1", metadata={"mip_level": 1})


# ----------------------------------------------------------------------------------------------------- finalfusion


class Words(list[str]):
    """A vocabulary of somebody else's, with anything for subwords."""

    def __init__(self, words: Sequence[str], **subwords: Any) -> None:
        super().__init__(words)
        self.subwords = SimpleNamespace(**subwords)


def hashed(kind: str, size: int, min_n: int = 1, max_n: int = 2) -> dict[str, Any]:
    """The arguments of `planned` for one word and so many buckets."""
    matrix = tensor("embeddings", (1 + size, 0))
    return {"tensors": (matrix,), "vocab": Words(["w"], kind=kind, min_n=min_n, max_n=max_n, size=size)}


def plan_of(tensors: Sequence[Payload], **options: Any) -> str:
    """Why such a file would not be written, or ""."""
    try:
        assert planned("finalfusion", *tensors, **options) > 0
    except wm.EncodeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("layout", ["upstream", "spec"])
@pytest.mark.parametrize(
    ("size", "good"), [(1, False), (2, True), (3, False), (4, True), (2**63, True), (2**63 + 1, False), (2**64, False)]
)
def test_buckets_are_a_power_of_two(layout, size, good):
    """From 2 to 2^63 buckets are written, where they are a power of two."""
    found = plan_of(**hashed("bucket", size), layout=layout)
    assert found == "" if good else f"{size} buckets (a power of two from 2 to 2**63)" in found


@pytest.mark.parametrize(("size", "good"), [(0, False), (1, True), (3, True), (U32, True), (U32 + 1, False)])
def test_buckets_of_fasttext(size, good):
    """From 1 to 2^32 - 1 buckets are written."""
    found = plan_of(**hashed("fasttext", size))
    assert found == "" if good else f"{size} buckets (1 to {U32})" in found


@pytest.mark.parametrize(
    ("min_n", "max_n", "good"),
    [(0, 1, False), (1, 1, True), (2, 1, False), (2, 2, True), (1, U32, True), (U32, U32, True), (1, U32 + 1, False)],
)
def test_lengths_of_ngrams(min_n, max_n, good):
    """1 <= min_n <= max_n < 2^32."""
    found = plan_of(**hashed("fasttext", 3, min_n, max_n))
    assert found == "" if good else f"n-grams of {min_n} to {max_n} characters" in found


@pytest.mark.parametrize(("centroids", "good"), [(0, False), (1, True), (256, True), (257, False)])
def test_centroids_have_codes_of_a_byte(centroids, good):
    """From 1 to 256 centroids are written."""
    parts = PQShape(1, centroids, projection=False, norms=False)
    matrix = tensor("embeddings", (1, 1), "pq", parts=parts)
    matrix.nbytes = 4 * centroids + 1
    found = plan_of([matrix], vocab=["w"])
    assert found == "" if good else f"{centroids} centroids (expected 1 to 256)" in found


@pytest.mark.parametrize(("columns", "good"), [(0, True), (U32, True), (U32 + 1, False)])
def test_columns_of_a_matrix(columns, good):
    """2^32 - 1 columns are written, and 2^32 refused."""
    found = plan_of([tensor("embeddings", (1, columns), "int8")], vocab=["w"])
    assert found == "" if good else f"{columns} columns (expected at most {U32})" in found


@pytest.mark.parametrize("ndim", range(4))
def test_dimensions_of_a_matrix_and_of_norms(ndim):
    """A matrix has two dimensions, and norms have one."""
    other = tensor("embeddings", (1,) * ndim)
    why = f": tensor 'embeddings': {ndim} dimension{'s' * (ndim != 1)} (expected 2)"
    assert plan_of([other], vocab=["w"]).endswith("" if ndim == 2 else why)
    assert (plan_of([other], vocab=["w"]) == "") == (ndim == 2)
    norms = [tensor("embeddings", (1, 1)), tensor("norms", (1,) * ndim)]
    assert (plan_of(norms, vocab=["w"]) == "") == (ndim == 1)


def test_of_a_vocabulary_that_is_wrong_nothing_follows():
    """Where words or subwords cannot be written, that is the one reason: no rows are compared with them."""
    matrix = tensor("embeddings", (7, 1))
    found = plan_of([matrix], vocab=["a", "\ud800"])
    assert found.endswith("cannot express this: word 1 is '\\ud800' (Unicode text)")
    words = Words(["w"], kind="fasttext", min_n=0, max_n=1, size=3)
    assert plan_of([matrix], vocab=words).count(";") == 0
    words = Words(["w"], kind="bucket", min_n=1, max_n=1, size=3)
    assert plan_of([matrix], vocab=words).count(";") == 0
    assert "rows" in plan_of([matrix], vocab=Words(["w"], kind="fasttext", min_n=1, max_n=1, size=3))


@pytest.mark.parametrize("rows", range(4))
def test_rows_are_those_of_the_vocabulary(rows):
    """A matrix has a row for each word, as norms have an element, and with subwords a row for each bucket."""
    plural = "" if rows == 1 else "s"
    found = plan_of([tensor("embeddings", (rows, 1))], vocab=["v", "w"])
    assert found == "" if rows == 2 else f"{rows} row{plural} (expected 2: the vocabulary has 2 words)" in found
    found = plan_of([tensor("embeddings", (2, 1)), tensor("norms", (rows,))], vocab=["v", "w"])
    assert found == "" if rows == 2 else f"{rows} element{plural} (expected 2, one for each word)" in found
    given = hashed("fasttext", 1)
    given["tensors"] = (tensor("embeddings", (rows, 1)),)
    found = plan_of(**given)
    assert (
        found == ""
        if rows == 2
        else f"{rows} row{plural} (expected 2: the vocabulary has 1 word and 1 subword)" in found
    )
