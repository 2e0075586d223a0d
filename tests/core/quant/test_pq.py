"""Product quantisation: decoding against its definition, damaged codes, and similarities without decoding."""

import numpy as np
import pytest
from tests.support import in_one_item

import weightmap as wm
from weightmap.core.quant.blocks import decode_range
from weightmap.core.quant.product import ProductQuantized


def make(rows=40, pieces=3, centroids=7, width=5, *, projection=False, norms=False, seed=0):
    rng = np.random.default_rng(seed)
    size = pieces * width
    return (
        rng.integers(0, centroids, (rows, pieces), dtype=np.uint8),
        rng.standard_normal((pieces, centroids, width), dtype=np.float32),
        rng.standard_normal((size, size), dtype=np.float32) if projection else None,
        rng.uniform(-2, 2, rows).astype(np.float32) if norms else None,
    )


def by_definition(codes, codebooks, projection=None, norms=None):
    """Decode one row after another, one operation of float32 after another."""
    rows = []
    for row, of_row in enumerate(codes):
        x = np.concatenate([codebooks[place, code] for place, code in enumerate(of_row)])
        if projection is not None:
            total = np.zeros(len(x), np.float32)
            for k, element in enumerate(x):
                total = total + projection[:, k] * element
            x = total
        rows.append(x if norms is None else x * norms[row])
    return np.array(rows, np.float32).reshape(len(codes), codebooks.shape[0] * codebooks.shape[2])


KINDS = [{}, {"norms": True}, {"projection": True}, {"projection": True, "norms": True}]
SHAPES = [
    {},
    {"rows": 1, "pieces": 1, "centroids": 1, "width": 1},
    {"rows": 9, "pieces": 1, "centroids": 256, "width": 3},
    {"rows": 17, "pieces": 25, "centroids": 200, "width": 1},
    {"rows": 0},
]


@pytest.mark.usefixtures("isa")
@in_one_item("kind", KINDS)
@in_one_item("shape", SHAPES)
def test_decoding_is_the_definition_to_the_bit(kind, shape):
    parts = make(**shape, **kind)
    q = ProductQuantized(*parts)
    expected = by_definition(*parts)
    assert q.shape == expected.shape
    assert np.array_equal(np.asarray(q), expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_way_to_read_gives_the_same_bits(kind):
    """Rows one by one, ranges, fancy indices, pieces of the flat tensor, several threads: all as the whole."""
    q = ProductQuantized(*make(rows=20_000, **kind))
    whole = np.asarray(q)
    assert np.array_equal(q.dequantize(threads=3), whole)
    assert np.array_equal(np.stack([q[i] for i in range(50)]), whole[:50])
    for key in (slice(3, 30), slice(30, 3, -4), [5, 1, 5, -1], np.arange(20_000) % 3 == 0, (slice(2, 9), 4), -1):
        assert np.array_equal(q[key], whole[key])
    for start, stop in ((0, 0), (3, 4), (3, 14), (3, 15), (15, 30), (14, 31), (1, 299_999)):
        assert np.array_equal(decode_range(q, start, stop), whole.reshape(-1)[start:stop])
    assert np.array_equal(q.gather([7, 3], threads=2), whole[[7, 3]])
    unaligned = np.frombuffer(b"\0" + np.array([7, 3], "<u8").tobytes(), np.uint8)[1:].view("<u8")
    assert np.array_equal(q.gather(unaligned), whole[[7, 3]])
    out = np.zeros((40_000, 15), np.float32)[::2]
    assert np.array_equal(q.dequantize(out=out), whole)
    assert np.array_equal(q.dequantize(np.float16), whole.astype(np.float16))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_code_without_centroid_is_an_error_where_it_is_read(kind):
    codes, *others = make(**kind)
    codes[20, 1] = 7
    q = ProductQuantized(codes, *others)
    assert np.array_equal(q[:20], by_definition(codes[:20], *others))
    reads = [
        lambda: q[20],
        lambda: q[18:22],
        lambda: q[[1, 20]],
        q.dequantize,
        lambda: q.dequantize(threads=4),
        lambda: decode_range(q, 20 * 15 + 3, 20 * 15 + 4),
        lambda: q.dots(np.zeros(15, np.float32), 0, 40),
        lambda: q.row_norms(16, 24),
    ]
    for read in reads:
        with pytest.raises(wm.QuantError, match=r"code 1 of row 20 is 7, expected less than 7"):
            read()


@pytest.mark.parametrize("which", range(4))
def test_parts_that_do_not_fit_are_refused(which):
    name = ("codes", "codebooks", "projection", "norms")[which]
    for spoil in (lambda part: part.astype(np.float64), lambda part: part[:-1], lambda part: part[None]):
        parts = list(make(projection=True, norms=True))
        parts[which] = spoil(parts[which])
        if which == 0 and parts[0].shape == (39, 3):  # then it is the norms that do not fit
            name = "norms"
        with pytest.raises(wm.QuantError, match=name):
            ProductQuantized(*parts)
        name = ("codes", "codebooks", "projection", "norms")[which]


def rotation(size):
    return np.linalg.qr(np.random.default_rng(1).standard_normal((size, size)))[0].astype(np.float32)


@pytest.mark.parametrize("turn", ["no projection", "rotation", "any projection"])
@pytest.mark.parametrize("norms", [False, True])
def test_dot_products_and_norms_are_those_of_the_decoded_rows(turn, norms):
    """Without decoding a row, by tables, its dot product with a vector and its norm come out, but for rounding."""
    codes, books, projection, scale = make(rows=1000, norms=norms, projection=turn == "any projection")
    q = ProductQuantized(codes, books, rotation(15) if turn == "rotation" else projection, scale)
    vector = np.random.default_rng(2).standard_normal(15).astype(np.float32)
    decoded = np.asarray(q).astype(np.float64)
    assert np.allclose(q.dots(vector, 3, 995), decoded[3:995] @ vector, rtol=1e-4, atol=1e-4)
    assert np.allclose(q.row_norms(3, 995), np.linalg.norm(decoded[3:995], axis=1), rtol=1e-4, atol=1e-5)
