"""The exact ceilings of formats: a file at the bound is planned, and one beyond it is an error that says so.

Plans are made and not run, so the tensors have shapes and no data.
"""

import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support import in_one_item

import weightmap as wm
from weightmap.core.dtypes import DTYPES, SCHEMES
from weightmap.core.formats import Payload, Request, Tensors, by_name
from weightmap.core.formats.amb import writing as amb_writing
from weightmap.core.formats.embd import writing as embd_writing
from weightmap.core.quant import PQShape

U16, U32 = 2**16 - 1, 2**32 - 1


def tensor(name="a", shape=(1,), dtype="float32", **options):
    """A tensor without data."""
    kind = DTYPES.get(dtype) or SCHEMES[dtype]
    return Payload(name, kind, shape, math.prod(shape) * kind.bits // 8, lambda: (), **options)


def planned(format, *tensors, layout=None, **options):
    found = by_name(format)
    assert found.plan is not None
    return found.plan(Request(Tensors(tensors), layout or found.layouts[0], **options)).size


def refused(format, *tensors, layout=None, **options):
    with pytest.raises(wm.EncodeError) as caught:
        planned(format, *tensors, layout=layout, **options)
    return str(caught.value)


@pytest.mark.parametrize(("format", "layout"), [("embd", "spec"), ("embd", "simple"), ("amb", None)])
def test_names_have_65535_bytes(format, layout):
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
    # For a tensor with another defect, the error leaves the shape out.
    assert "shape" not in refused(format, tensor(shape=(U32, 0), dtype="float64"), layout=layout)


@pytest.mark.parametrize("layout", ["spec", "simple"])
@pytest.mark.parametrize("ndim", range(7))
def test_embd_has_one_to_four_dimensions(layout, ndim):
    given = tensor(shape=(2,) * ndim)
    if 1 <= ndim <= 4:
        assert planned("embd", given, layout=layout) > 0
    else:
        reason = f"tensor 'a': {ndim} dimensions (expected 1 to 4)"
        assert refused("embd", given, layout=layout).endswith(f": {reason}")


EMBD_TYPES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8")


def error_of(*tensors):
    with pytest.raises(wm.EncodeError) as caught:
        planned("embd", *tensors)
    return caught.value


def test_tensors_of_one_reason_are_reported_together():
    """Thousands of tensors make one short line with their first names; the error has all names."""
    many = [tensor(f"t{i}", dtype="float64") for i in range(3000)]
    text, why = str(error_of(*many)), f"dtype float64 (expected {', '.join(EMBD_TYPES)})"
    assert "tensors 't0', 't1', 't2'" in text
    assert text.endswith(f" more: {why}")
    assert len(text) < 600
    assert error_of(*many).refused == tuple(f"tensor 't{i}': {why}" for i in range(3000))
    assert pickle.loads(pickle.dumps(error_of(*many))).refused == error_of(*many).refused
    assert str(error_of(many[7])) == f"EMBD cannot express this: tensor 't7': {why}"


@pytest.mark.parametrize("count", [1, 5, 40])
def test_reasons_take_1000_characters(count):
    """If each tensor has its own reason, the message has the first reasons, and the number of the others."""
    error = error_of(*(tensor("n" * 70 + str(i), (1,) * (5 + i)) for i in range(count)))
    assert len(error.refused) == count
    assert len(str(error)) < 1200
    assert ("more" in str(error)) is (count > 10)
    if count > 10:
        told = str(error).count("dimensions")
        assert str(error).endswith(f"; and {count - told} reasons more")


def test_a_long_name_is_cut():
    error = error_of(tensor("n" * 100_000))
    assert len(str(error)) < 300
    assert f"tensor '{'n' * 80}'...: a name" in str(error)


def nested(depth):
    """A configuration of this many nested lists."""
    innermost = 1
    for _ in range(depth):
        innermost = [innermost]
    return {"a": innermost}


def test_blocks_of_amb_have_65535_elements():
    given = [tensor(shape=(8,), dtype="int4_block", block_size=U16 + more, scale_type="fp16") for more in (0, 1)]
    assert planned("amb", given[0]) > 0
    assert "blocks of 65536 elements (at most 65535)" in refused("amb", given[1])


def tokenizer(kind=0, **special_ids):
    return {"tokenizer": {"type": kind, "special_ids": special_ids, "payload": b""}}


def ids(value):
    return {"vocab": ["a"], "special_ids": {"pad": value}}


LONG, NAN = "t" * (U16 + 1), float("nan")
# Contents that EMBD and AMB can hold, each beside a tensor.
PLANNED = [
    *(("embd", {"metadata": {key: "v" * U16}}) for key in ("k", "k" * U16)),
    *(("embd", ids(value)) for value in (0, U32)),  # the last one stands for no token
    ("embd", {"vocab": [LONG[1:]]}),
    ("embd", {"vocab": [LONG], "layout": "simple"}),
    *(("amb", tokenizer(pad=value)) for value in (0, U16 - 1)),
    *(("amb", tokenizer(kind)) for kind in range(4)),
    *(("amb", {"config": {"n": sign * (10**1000 - 1)}}) for sign in (1, -1)),
    ("amb", {"config": {"x": [0.0, -1.5, 1e308]}}),
    ("amb", {"config": nested(127)}),
]
# Contents that they cannot hold, and why.
REFUSED = [
    *(("embd", {"metadata": {key: LONG}}, "at most 65535 bytes") for key in ("k", "k" * U16)),
    ("embd", {"metadata": {LONG: "v"}}, "at most 65535 bytes"),
    *(("embd", ids(value), f"special id 'pad': {value}") for value in (-1, U32 + 1)),
    ("embd", {"vocab": ["a", LONG]}, "token 1:"),
    *(("amb", tokenizer(pad=value), f"special id 'pad': {value}") for value in (-1, U16)),
    *(("amb", tokenizer(kind), f"tokenizer type: {kind} (an integer from 0 to 3)") for kind in (-1, 4, 5)),
    *(("amb", {"config": {"n": sign * 10**1000}}, "more than 1000 digits") for sign in (1, -1)),
    *(("amb", {"config": {"x": float(value)}}, f"{value} (a finite number)") for value in ("nan", "inf", "-inf")),
    # The outermost key is named.
    ("amb", {"config": {"a": {"b": {"c": NAN}}}}, "config: 'a': nan (a finite number)"),
    ("amb", {"config": {"z": 1, "a": [{"b": NAN}]}}, "config: 'a': nan (a finite number)"),
    ("amb", {"config": nested(128)}, "nested more than 128 deep"),
]


@in_one_item("format, content", PLANNED)
def test_content_at_its_bound_is_planned(format, content):
    assert planned(format, tensor(), **content) > 0


@in_one_item("format, content, why", REFUSED)
def test_content_beyond_its_bound_is_refused(format, content, why):
    assert why in refused(format, tensor(), **content)


LOW = 1000


@pytest.fixture
def low(monkeypatch):
    """Make the bound of a u32 low: content of that size takes more memory than a test may."""
    for module in (embd_writing.embd, amb_writing.amb):
        monkeypatch.setattr(module, "U32_MAX", LOW)


@pytest.mark.usefixtures("low")
def test_sections_at_the_bound_of_their_size():
    """A section of the largest size that its field can hold is written; one byte more is refused (EMBD, AMB)."""
    cases = [
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
    monkeypatch.setattr(embd_writing.embd, "U32_MAX", 2)
    given = [tensor(f"{i}") for i in range(count)]
    if count <= 2:
        assert planned("embd", *given, layout="simple") > 0
    else:
        assert refused("embd", *given, layout="simple").endswith(": 3 tensors")


@pytest.mark.parametrize(("bound", "good"), [(959, False), (960, True), (961, True)])
def test_the_last_place_where_data_may_begin(monkeypatch, bound, good):
    monkeypatch.setattr(embd_writing.embd, "U32_MAX", bound)
    given = tensor("n" * 800)
    if good:
        assert planned("embd", given) == 960 + 4 + 16
    else:
        assert "tensor data would begin at byte 960" in refused("embd", given)


MAX_HEADER = 100_000_000


@pytest.mark.parametrize("suffix", [pytest.param(".bt", marks=pytest.mark.slow), ".safetensors"])
def test_a_header_of_100_000_000_bytes_and_no_more(tmp_path, suffix):
    probe, path, more = (tmp_path / f"{name}{suffix}" for name in ("probe", "most", "more"))
    length, small = 100_000, np.zeros((1, 1), np.int8)
    wm.save(probe, {"n" * length: small}, output=wm.Output(durable=False))
    length += MAX_HEADER - int.from_bytes(probe.read_bytes()[:8], "little")
    wm.save(path, {"n" * length: small}, output=wm.Output(durable=False))
    with path.open("rb") as file:
        assert int.from_bytes(file.read(8), "little") == MAX_HEADER
    with wm.open(path) as f:
        [name] = f
        assert len(name) == length
        assert f[name].item() == 0
    with pytest.raises(wm.EncodeError, match="a header of 100000008 bytes"):
        wm.save(more, {"n" * (length + 8): small})
    assert not more.exists()


def layer(number, *shape):
    return tensor(f"layer.{number}.weight", shape, "float16")


@pytest.mark.parametrize("value", [0, 1, U32, "0", "4294967295"])
def test_mip_levels_are_numbers_of_32_bits_or_their_digits(value):
    assert planned("cnn_v2", layer(0, 1, 1, 2, 2), metadata={"mip_level": value})


CHANNELS = [(layer(0, U32, 1, 1, 1), layer(0, U32 + 1, 1, 1, 1)), (layer(0, 1, U32, 1, 1), layer(0, 1, U32 + 1, 1, 1))]


@pytest.mark.parametrize(("most", "more"), CHANNELS)
def test_channels_of_cnn_v2_are_below_2_to_the_32(most, more):
    assert planned("cnn_v2", most) > 2 * U32
    assert "(a dimension is below 2**32)" in refused("cnn_v2", more)


@pytest.mark.parametrize("value", [-1, U32 + 1, "4294967296", "00000000001", "-1", "", "\u0661", True, 1.0])
def test_mip_levels_that_are_not(value):
    assert "metadata 'mip_level'" in refused("cnn_v2", layer(0, 1, 1, 2, 2), metadata={"mip_level": value})


def test_version_1_has_no_place_for_a_mip_level_other_than_0():
    assert planned("cnn_v2", layer(0, 1, 1, 2, 2), layout="v1", metadata={"mip_level": 0})
    assert "layout v1 has none" in refused("cnn_v2", layer(0, 1, 1, 2, 2), layout="v1", metadata={"mip_level": 1})


def test_weights_of_cnn_v2_are_counted_in_32_bits():
    """2^32 - 1 weights are written; with one more, the layer that brings it is named, and no other."""
    large, small = layer(0, 65535, 65537, 1, 1), layer(1, 1, 1, 1, 1)
    assert planned("cnn_v2", large) == 20 + 20 + 2 * U32 + 2
    text = refused("cnn_v2", large, small)
    assert text.endswith(": tensor 'layer.1.weight': with it there are 4294967296 weights (below 2**32)")
    text = refused("cnn_v2", large, small, layer(2, 1, 1, 1, 1))
    assert text.count("with it there are") == 1


class Words(list[str]):
    """A foreign vocabulary, with anything for subwords."""

    def __init__(self, words, **subwords):
        super().__init__(words)
        self.subwords = SimpleNamespace(**subwords)


def hashed(kind, size, min_n=1, max_n=2):
    matrix = tensor("embeddings", (1 + size, 0))
    return {"tensors": (matrix,), "vocab": Words(["w"], kind=kind, min_n=min_n, max_n=max_n, size=size)}


def plan_of(tensors, **options):
    try:
        assert planned("finalfusion", *tensors, **options) > 0
    except wm.EncodeError as error:
        return str(error)
    return ""


def pq(centroids):
    """A matrix with this many centroids."""
    parts = PQShape(1, centroids, projection=False, norms=False)
    matrix = tensor("embeddings", (1, 1), "pq", parts=parts)
    matrix.nbytes = 4 * centroids + 1
    return {"tensors": [matrix], "vocab": ["w"]}


def columns(count):
    return {"tensors": [tensor("embeddings", (1, count), "int8")], "vocab": ["w"]}


BUCKETS, FASTTEXT = "{} buckets (a power of two from 2 to 2**63)", f"{{}} buckets (1 to {U32})"
NGRAMS = "n-grams of {} to {} characters"
WORDS = [
    *((hashed("bucket", n) | {"layout": layout}, "") for n in (2, 4, 2**63) for layout in ("upstream", "spec")),
    *(
        (hashed("bucket", n) | {"layout": layout}, BUCKETS.format(n))
        for n in (1, 3, 2**63 + 1, 2**64)
        for layout in ("upstream", "spec")
    ),
    *((hashed("fasttext", n), "") for n in (1, 3, U32)),
    *((hashed("fasttext", n), FASTTEXT.format(n)) for n in (0, U32 + 1)),
    *((hashed("fasttext", 3, *lengths), "") for lengths in ((1, 1), (2, 2), (1, U32), (U32, U32))),
    *((hashed("fasttext", 3, *lengths), NGRAMS.format(*lengths)) for lengths in ((0, 1), (2, 1), (1, U32 + 1))),
    *((pq(n), "") for n in (1, 256)),
    *((pq(n), f"{n} centroids (expected 1 to 256)") for n in (0, 257)),
    *((columns(n), "") for n in (0, U32)),
    (columns(U32 + 1), f"{U32 + 1} columns (expected at most {U32})"),
]


@in_one_item("content, why", WORDS)
def test_words_and_subwords_have_bounds(content, why):
    found = plan_of(**content)
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize("ndim", range(4))
def test_dimensions_of_a_matrix_and_of_norms(ndim):
    other = tensor("embeddings", (1,) * ndim)
    why = f": tensor 'embeddings': {ndim} dimension{'s' * (ndim != 1)} (expected 2)"
    assert plan_of([other], vocab=["w"]).endswith("" if ndim == 2 else why)
    assert (plan_of([other], vocab=["w"]) == "") == (ndim == 2)
    norms = [tensor("embeddings", (1, 1)), tensor("norms", (1,) * ndim)]
    assert (plan_of(norms, vocab=["w"]) == "") == (ndim == 1)


@pytest.mark.parametrize("rows", range(4))
def test_rows_are_those_of_the_vocabulary(rows):
    """A matrix has a row for each word, as norms have an element, and with subwords a row for each bucket."""
    plural = "" if rows == 1 else "s"
    found = plan_of([tensor("embeddings", (rows, 1))], vocab=["v", "w"])
    assert found == "" if rows == 2 else f"{rows} row{plural} (expected 2: the vocabulary has 2 words)" in found
    found = plan_of([tensor("embeddings", (2, 1)), tensor("norms", (rows,))], vocab=["v", "w"])
    assert found == "" if rows == 2 else f"{rows} element{plural} (expected 2, one for each word)" in found
    found = plan_of(**hashed("fasttext", 1) | {"tensors": (tensor("embeddings", (rows, 1)),)})
    said = f"{rows} row{plural} (expected 2: the vocabulary has 1 word and 1 subword)"
    assert found == "" if rows == 2 else said in found
