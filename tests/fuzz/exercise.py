"""What is done with a file that may be damaged: all that a user may do, each answer held against the bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

import weightmap as wm

# What a look-up may still find in a file whose index was checked: damaged quantised data, types that numpy lacks.
LATE = (wm.QuantError, wm.UnsupportedError)
# Of a vocabulary, so many words are looked up: from the first on, and the last.
WORDS = 12


def consistent(f: wm.TensorFile, data: bytes | None, late: Any = LATE, *, brief: bool = False) -> None:
    """Whatever a handle says of its file is the same in every place, and what lies in `data` there.

    Errors of the classes `late` may come of a single tensor; any other means that there is something wrong. In brief:
    only the tensors.
    """
    names = list(f)
    assert len(f) == len(names)
    for name in names:
        with contextlib.suppress(late):
            _tensor(f, name, data, brief=brief)
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
    infos = f.infos()
    assert [info.name for info in infos] == names
    assert all(f.info(name) in infos for name in names)


def _tensor(f: wm.TensorFile, name: str, data: bytes | None, *, brief: bool) -> None:
    info = f.info(name)
    assert info.name == name
    if data is not None:
        assert 0 <= info.offset <= info.offset + info.nbytes <= len(data)
    tensor = f[name]
    assert tensor.shape == info.shape
    if isinstance(tensor, np.ndarray):
        assert tensor.nbytes == info.nbytes
        assert data is None or tensor.tobytes() == data[info.offset : info.offset + info.nbytes]
    if brief:
        return
    if not isinstance(tensor, np.ndarray):
        repr(tensor)
        assert tensor.nbytes <= info.nbytes
        _ = tensor.codes, tensor[:1] if tensor.ndim else tensor[...]
        assert np.asarray(tensor).shape == info.shape
    assert f.read(name).shape == info.shape


def _vocabulary(f: wm.TensorFile) -> None:
    vocab = f.vocab
    if vocab is None:
        return
    words = list(vocab)
    assert len(words) == len(vocab)
    for number in {*range(min(len(words), WORDS)), len(words) - 1} - {-1}:
        assert vocab[number] == words[number]
        assert words[vocab.index(words[number])] == words[number]
    dict(vocab.special_ids)
    embeddings = f.embeddings
    if embeddings is not None:
        for word in (*words[:2], "two", "unknown"):
            with contextlib.suppress(wm.QuantError, KeyError):
                assert embeddings[word].shape == (embeddings.dims,)


def outcome(source: Any, data: bytes | None, **options: Any) -> str:
    """Open, use and verify a file: the class of the error of ours that came of it, or nothing.

    `data` is what the file holds; None where it is more than one.
    """
    found = error_of(source, data, **options)
    return "" if found is None else type(found).__name__


def error_of(source: Any, data: bytes | None, *, brief: bool = False, **options: Any) -> wm.TensorFileError | None:
    """The same: the error itself, whose message is held against what messages promise; or None."""
    try:
        with np.errstate(all="ignore"), wm.open(source, **options) as f:
            consistent(f, data, wm.TensorFileError if options.get("verify") == "none" else LATE, brief=brief)
            if not brief:
                f.verify()
            return None
    except wm.TensorFileError as error:
        found = error
    text = str(found)
    assert text.isprintable(), text
    assert text.startswith(f"{found.path}: "), text
    assert len(text) < 2000, text
    return found
