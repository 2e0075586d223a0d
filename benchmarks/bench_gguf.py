"""GGUF headers as they are today: 150,000 tokens with scores, types and merges, 40 key-values, 1,000 tensors.

Opening it, and opening it and looking one token up. gguf-py makes an array of every text when it opens a file. Its
reader takes many seconds, so it runs few times.
"""

from functools import partial

import pytest

import files
import weightmap as wm
from timing import Timed, each_contender, need, ours, rival
from weightmap.compat.gguf import GGUFReader

TOKENS, TENSORS = 150_000, 1_000
LABEL = f"{TOKENS:,} tokens, {TENSORS:,} tensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory, smoke):
    """Return the path of the file."""
    path = str(tmp_path_factory.mktemp("gguf") / "model.gguf")
    files.write_gguf_tokens(path, 1_000 if smoke else TOKENS, 10 if smoke else TENSORS)
    return path


def our_open(model):
    """Open and close with weightmap."""
    return Timed(lambda: wm.open(model).close())


def our_reader(model):
    """Open with weightmap's reader for users of gguf-py."""
    return Timed(partial(GGUFReader, model))


def gguf_py(model):
    """Open with gguf-py."""
    return Timed(partial(need("gguf").GGUFReader, model))


def our_token(model):
    """Open with weightmap, and look a token up."""

    def call():
        with wm.open(model) as f:
            return f.vocab.index("token7")

    return Timed(call)


GROUPS = {
    f"gguf/open, {LABEL}": ours(our_open) | ours(our_reader, "weightmap, as gguf-py") | {"gguf-py": rival(gguf_py)},
    f"gguf/open and one token, {LABEL}": ours(our_token),
}


@each_contender(GROUPS)
def test_gguf(compare, model, group, who):
    """Open a GGUF file, and use its tokens."""
    compare(GROUPS, model)
