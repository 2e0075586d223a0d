"""Arbitrary content written and read back: by the suite's own parser, and by the package."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as draw
from tests.builders import embd, noise, numpy_dtype
from tests.builders import safetensors as st
from tests.support import same

import weightmap as wm

TEXT = draw.text(draw.characters(exclude_categories=("Cs",)), max_size=12)
SMALL = draw.integers(0, 4)


@draw.composite
def tensors(choose, dtypes, least, most):
    """Up to six tensors of arbitrary bits, names and shapes."""
    names = choose(draw.lists(TEXT.filter(lambda name: name != "__metadata__"), max_size=6, unique=True))
    shape = draw.lists(SMALL, min_size=least, max_size=most).map(tuple)
    return {name: noise(choose(draw.sampled_from(dtypes)), choose(shape), len(name)) for name in names}


def strange(value, how):
    array = value.array
    if how == 1 and array.ndim:
        return np.asfortranarray(array)
    if how == 2 and value.dtype in np.sctypeDict and array.dtype.itemsize > 1:
        return array.astype(array.dtype.newbyteorder(">"))
    if how == 3 and array.ndim:
        return np.repeat(array, 2, axis=0)[::2]
    if how == 4:
        return np.frombuffer(b"\0" + value.data, numpy_dtype(value.dtype), offset=1).reshape(value.shape)
    return array


@settings(max_examples=60, deadline=None)
@given(
    content=tensors(tuple(embd.CODES), 1, 4),
    metadata=draw.dictionaries(TEXT, TEXT, max_size=5),
    vocab=draw.none() | draw.lists(TEXT, max_size=8),
    ids=draw.lists(draw.integers(0, 2**32 - 1), min_size=5, max_size=5),
    how=SMALL,
)
def test_embd(content, metadata, vocab, ids, how):
    """Any content that EMBD can express comes back whole, and the file keeps every rule of the specification."""
    special = dict(zip(embd.SPECIAL_NAMES, ids, strict=True)) if vocab is not None else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.weights"
        arrays = {name: strange(value, how) for name, value in content.items()}
        wm.save(path, arrays, metadata=metadata, vocab=vocab, special_ids=special)
        parsed = embd.parse(path.read_bytes())
        assert parsed.tensors == content
        assert list(parsed.tensors) == list(content)
        assert (parsed.metadata, parsed.vocab, parsed.special_ids) == (metadata, vocab, special)
        with wm.open(path, verify="full") as f:
            assert all(same(f[name], value) for name, value in content.items())
            assert (dict(f.metadata), None if f.vocab is None else list(f.vocab)) == (metadata, vocab)
            for token in vocab or ():
                assert f.vocab.index(token) == vocab.index(token)


@settings(max_examples=60, deadline=None)
@given(content=tensors(tuple(st.CODES), 0, 6), metadata=draw.dictionaries(TEXT, TEXT, max_size=5), how=SMALL)
def test_safetensors(content, metadata, how):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.safetensors"
        wm.save(path, {name: strange(value, how) for name, value in content.items()}, metadata=metadata)
        assert st.parse(path.read_bytes()) == (content, metadata)
        with wm.open(path) as f:
            assert all(same(f[name], value) for name, value in content.items())
            assert dict(f.metadata) == metadata


@settings(max_examples=40, deadline=None)
@given(content=tensors(("float32",), 1, 4), vocab=draw.lists(TEXT, max_size=8))
def test_simple(content, vocab):
    """The simple layout writes exactly the builder's bytes, and they open."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.weights"
        wm.save(
            path, {name: value.array for name, value in content.items()}, vocab=vocab, output=wm.Output(layout="simple")
        )
        assert path.read_bytes() == embd.simple(content.items(), vocab)
        with wm.open(path) as f:
            assert f.layout == "simple"
            assert all(same(f[name], value) for name, value in content.items())
            assert list(f.vocab or ()) == vocab
