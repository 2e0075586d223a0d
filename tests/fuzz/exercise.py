"""Every use of a file, here a damaged one; checks each answer against the bytes."""

import contextlib
import pickle

import numpy as np

import weightmap as wm
from weightmap.core.bytes.derived import Derived
from weightmap.core.model.internals import dense_row, dense_rows

# Errors that a file with a checked index may still have: damaged quantised data, and types that `read` lacks.
LATE = (wm.QuantError, wm.UnsupportedError)
# The number of words to look up in a vocabulary, from the first on; and the last.
WORDS = 12


def consistent(f, data, late=LATE, *, brief=False):
    """Check that the answers of a handle agree with each other, and with the bytes in `data`.

    A single tensor may raise errors of the classes `late`; any other error is a failure. In brief:
    only the tensors.
    """
    names = list(f)
    assert len(f) == len(names)
    for name in names:
        try:
            _tensor(f, name, data, brief=brief)
        except late:
            continue
    if brief:
        return
    repr(f)
    dict(f.metadata)
    if f.config is not None:
        dict(f.config)
    if f.tokenizer is not None:
        assert data is not None
        assert f.tokenizer.payload in data
        dict(f.tokenizer.special_ids)
    _vocabulary(f)
    with contextlib.suppress(late):
        assert [array.shape for array in f.values()] == list(map(_shape, dense_rows(f), f.infos()))
    assert f.get("no such tensor") is None
    infos = f.infos()
    assert [info.name for info in infos] == names
    assert all(f.info(name) in infos for name in names)


def _shape(row, info):
    """The shape of a look-up's result; for packed elements, which numpy lacks, the shape of their bytes."""
    return (info.nbytes,) if row.dtype.packed else info.shape


def _tensor(f, name, data, *, brief):
    info = f.info(name)
    assert info.name == name
    place = dense_row(f, name)
    direct = data is not None and not isinstance(place.source, Derived)
    tensor = f[name]  # which fails where the file ends before it, also where nothing was checked at opening
    if data is not None:
        assert 0 <= info.offset <= len(data)
        assert not direct or info.offset + info.nbytes <= len(data)
    assert tensor.shape == _shape(place, info)
    if isinstance(tensor, np.ndarray):
        assert tensor.nbytes == info.nbytes
        assert not direct or tensor.tobytes() == data[info.offset : info.offset + info.nbytes]
    if isinstance(place.source, Derived):
        _derived(tensor, info, place.source, data)
    if brief:
        return
    if isinstance(tensor, np.ndarray):
        assert f.read(name).shape == info.shape
    else:
        _quantised(tensor, info)
        assert np.array_equal(f.read(name), tensor.dequantize(), equal_nan=True)


def _derived(tensor, info, source, data):
    """A tensor that does not lie row-major in the file: a view of it, or inflated; and its bytes in that order."""
    if data is not None and not tensor.flags.owndata and tensor.size and not tensor.flags.c_contiguous:
        # numpy refuses strides that leave the buffer.
        np.ndarray(tensor.shape, tensor.dtype, data, info.offset, tensor.strides)
    try:
        source.check_size(info.name, info.nbytes)
    except wm.LimitError:
        return
    assert b"".join(map(bytes, source.chunks(info.offset, info.nbytes))) == tensor.tobytes()


def _quantised(tensor, info):
    repr(tensor)
    assert tensor.nbytes <= info.nbytes
    assert tensor.payload.nbytes == tensor.nbytes
    with contextlib.suppress(AttributeError):  # product quantisation has no scales
        assert tensor.scales.size <= tensor.n_blocks
    assert tensor.codes.nbytes <= info.nbytes
    _ = tensor.kinds, tensor.mask
    whole = np.asarray(tensor)
    assert whole.shape == info.shape
    with contextlib.suppress(wm.QuantError):
        assert np.isfinite(tensor.dequantize(strict=True, dtype=np.float64)).shape == info.shape
    if tensor.ndim and len(tensor):
        for key in (0, slice(1, 3), slice(None, None, -2), [len(tensor) - 1]):
            assert tensor[key].shape == whole[key].shape


def _vocabulary(f):
    vocab = f.vocab
    if vocab is None:
        return
    words = list(vocab)
    assert len(words) == len(vocab)
    for number in {*range(min(len(words), WORDS)), len(words) - 1} - {-1}:
        assert vocab[number] == words[number]
        assert words[vocab.index(words[number])] == words[number]
    dict(vocab.special_ids)
    vocab.ngram_indices("unknown")
    embeddings = f.embeddings
    if embeddings is not None:
        asked = (*words[:2], "two", "unknown")
        for word in asked:
            with contextlib.suppress(wm.QuantError, KeyError):
                assert embeddings[word].shape == (embeddings.dims,)
                embeddings.embedding_with_norm(word)
        with contextlib.suppress(wm.QuantError):
            assert embeddings.batch(asked)[0].shape == (len(asked), embeddings.dims)
        with contextlib.suppress(wm.QuantError, KeyError, ValueError):  # a vector with NaN has no neighbours
            assert len(embeddings.most_similar("two", 3)) <= 3


def outcome(source, data, **options):
    """Open, use and verify a file: the class of the resulting error of ours, or nothing.

    `data` is the file's content; None for several files.
    """
    found = error_of(source, data, **options)
    return "" if found is None else type(found).__name__


def error_of(source, data, *, brief=False, **options):
    late = wm.TensorFileError if options.get("verify") == "none" else LATE
    try:
        if brief:
            with wm.open(source, **options) as f:
                consistent(f, data, late, brief=True)
                return None
        with np.errstate(all="ignore"), wm.open(source, **options) as f:
            consistent(f, data, late)
            f.verify()
            return None
    except wm.TensorFileError as error:
        found = error
    text = str(found)
    assert text.isprintable(), text
    assert text.startswith(f"{found.path}: "), text
    assert len(text) < 2000, text
    assert brief or str(pickle.loads(pickle.dumps(found))) == text
    return found
