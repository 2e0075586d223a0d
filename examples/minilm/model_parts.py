"""The parts of a model that an encoder needs besides tensors: its numbers, vocabulary and special ids.

EMBD has them in its metadata and vocabulary. AMB has the numbers in its configuration and the rest in its tokenizer,
under other names, which are translated here. A file that has tensors alone, such as a PyTorch checkpoint, lies in a
Hugging Face directory with the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.errors import TensorFileError
from weightmap.huggingface import directory as hub

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Keys of EMBD's metadata, and their names in AMB's configuration.
_CONFIG = {
    "num_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_emb": "max_seq_len",
    "layer_norm_eps": "layer_norm_eps",
    "hidden_act": "activation_fn",
}
# Roles of special tokens, and their names in AMB, which is made for models that generate text.
_ROLES = {"pad": "pad", "unk": "unk", "cls": "bos", "sep": "eos", "mask": "mask"}


class Parts(NamedTuple):
    """The parts of one model."""

    metadata: Mapping[str, str]  # under EMBD's keys
    vocab: Sequence[str] | None  # tokens by id
    special_ids: Mapping[str, int] | None  # under ``pad unk cls sep mask``


def model_parts(model: Any) -> Parts:
    """Return the parts of the model in an open file; a mapping that is not a file has none.

    Raises
    ------
    UnsupportedError
        When its tokenizer is not WordPiece.
    FormatError
        When its vocabulary cannot be read.
    """
    metadata = dict(getattr(model, "metadata", {}))
    config = getattr(model, "config", None) or {}
    metadata |= {ours: str(config[theirs]) for ours, theirs in _CONFIG.items() if theirs in config}
    vocab = getattr(model, "vocab", None)
    tokenizer = getattr(model, "tokenizer", None)
    path = getattr(model, "path", None)
    if vocab is None and tokenizer is None and path is not None:
        beside = hub.read_directory(str(Path(path).parent), path)
        return Parts(beside.metadata | metadata, beside.vocab, beside.special_ids)
    if vocab is not None or tokenizer is None:
        return Parts(metadata, vocab, getattr(vocab, "special_ids", None))
    try:
        tokens = tokenizer.tokens()
    except TensorFileError as error:
        raise error.located(path=getattr(model, "path", None)) from None
    ids = tokenizer.special_ids
    return Parts(metadata, tokens, {ours: ids[theirs] for ours, theirs in _ROLES.items() if theirs in ids})
