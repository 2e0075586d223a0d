"""What an encoder needs beside tensors: numbers of the model, its vocabulary, ids of special tokens.

EMBD has them as metadata and a vocabulary with ids. AMB has the numbers in its configuration, and the rest in its
tokenizer section, under other names; they are brought to EMBD's here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Parts", "model_parts"]

# Keys of EMBD's metadata, and what AMB's configuration calls the same.
_CONFIG = {
    "num_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_emb": "max_seq_len",
    "layer_norm_eps": "layer_norm_eps",
    "hidden_act": "activation_fn",
}
# Roles of special tokens, and what AMB, made for models that write texts, calls the same.
_ROLES = {"pad": "pad", "unk": "unk", "cls": "bos", "sep": "eos", "mask": "mask"}


class Parts(NamedTuple):
    """Of one model.

    Attributes
    ----------
    metadata : mapping of str to str
        Under EMBD's keys.
    vocab : sequence of str or None
        Tokens by id.
    special_ids : mapping of str to int, or None
        Under ``pad unk cls sep mask``.
    """

    metadata: Mapping[str, str]
    vocab: Sequence[str] | None
    special_ids: Mapping[str, int] | None


def model_parts(model: Any) -> Parts:
    """Return what an open file says of its model; of a mapping that is no file, nothing.

    Raises
    ------
    UnsupportedError
        When its tokenizer is of another type than WordPiece.
    FormatError
        When its vocabulary cannot be read.
    """
    metadata = dict(getattr(model, "metadata", {}))
    config = getattr(model, "config", None) or {}
    metadata |= {ours: str(config[theirs]) for ours, theirs in _CONFIG.items() if theirs in config}
    vocab = getattr(model, "vocab", None)
    tokenizer = getattr(model, "tokenizer", None)
    if vocab is not None or tokenizer is None:
        return Parts(metadata, vocab, getattr(vocab, "special_ids", None))
    try:
        tokens = tokenizer.tokens()
    except TensorFileError as error:
        raise error.located(path=getattr(model, "path", None)) from None
    ids = tokenizer.special_ids
    return Parts(metadata, tokens, {ours: ids[theirs] for ours, theirs in _ROLES.items() if theirs in ids})
