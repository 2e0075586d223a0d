"""What a Hugging Face model directory says beside its tensors: configuration and vocabulary."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

from weightmap import strict_json
from weightmap.errors import FormatError, TensorFileError
from weightmap.limits import Limits
from weightmap.source import Source

__all__ = ["ModelDirectory", "read_directory"]

# Keys that the specification of EMBD requires, and where a configuration has them.
_KEYS = {
    "embedding_dim": "hidden_size",
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "max_position_emb": "max_position_embeddings",
}
# Ours: what else a program needs to run the model.
_EXTRA = ("model_type", "hidden_act", "layer_norm_eps", "type_vocab_size")
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class ModelDirectory:
    """Configuration and vocabulary of a model directory.

    Attributes
    ----------
    metadata : dict of str to str
        The ten keys that EMBD's specification requires, as far as ``config.json`` tells them, and a few more.
    vocab : list of str or None
        Lines of ``vocab.txt``.
    special_ids : dict of str to int or None
        Ids of the special tokens, by ``special_tokens_map.json`` or by their usual names.
    """

    __slots__ = ("metadata", "special_ids", "vocab")

    def __init__(
        self,
        metadata: dict[str, str],
        vocab: list[str] | None,
        special_ids: dict[str, int] | None,
    ) -> None:
        self.metadata = metadata
        self.vocab = vocab
        self.special_ids = special_ids


def read_directory(folder: str, model: str) -> ModelDirectory:
    """Read what lies beside the model file `model` in `folder`. Files that are not there say nothing.

    Raises
    ------
    FormatError
        When ``config.json``, ``special_tokens_map.json`` or ``vocab.txt`` is damaged.
    """
    config = _json(os.path.join(folder, "config.json"))
    metadata = {} if config is None else _metadata(config, folder, model)
    vocab = _vocabulary(os.path.join(folder, "vocab.txt"))
    special = None if vocab is None else _special(folder, vocab)
    return ModelDirectory(metadata, vocab, special)


def _read(path: str) -> bytes | None:
    """Return the content of a small regular file, or None when there is none. A FIFO is refused, not waited for."""
    try:
        source = Source.from_path(path, "copy")
    except FileNotFoundError:
        return None
    try:
        Limits().check("max_header_bytes", source.size, "size of the file")
        return source.pread(0, source.size)
    except TensorFileError as error:
        raise error.located(path=path) from None
    finally:
        source.close()


def _json(path: str) -> dict[str, Any] | None:
    try:
        raw = _read(path)
        return None if raw is None else strict_json.loads(raw, os.path.basename(path))
    except TensorFileError as error:
        raise error.located(path=path) from None


def _metadata(config: dict[str, Any], folder: str, model: str) -> dict[str, str]:
    known: dict[str, Any] = {
        # A directory has no better name for its model than where it came from, or its own.
        "model_name": os.path.basename(str(config.get("_name_or_path") or "").rstrip("/"))
        or os.path.basename(os.path.abspath(folder)),
        "model_version": config.get("model_version", "1.0.0"),
    }
    known |= {key: config.get(theirs) for key, theirs in _KEYS.items()}
    known["created_at"] = _created(model)
    known |= {key: config.get(key) for key in _EXTRA}
    return {key: str(value) for key, value in known.items() if isinstance(value, (str, int, float))}


def _created(model: str) -> str:
    """Return the checkpoint's time: converting it again gives the same bytes. SOURCE_DATE_EPOCH overrides it."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(os.stat(model).st_mtime)
    # Eleven digits reach the year 5138; a longer number is no time that anybody meant.
    if epoch.isascii() and epoch.isdecimal() and len(epoch) <= 11:
        seconds = int(epoch)
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _vocabulary(path: str) -> list[str] | None:
    raw = _read(path)
    if raw is None:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        msg = f"the vocabulary is not UTF-8 ({error.reason})"
        raise FormatError(msg, path=path, offset=error.start) from None
    # A token ends at a line feed alone: tokens may hold other characters that Python calls line ends.
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def _special(folder: str, vocab: list[str]) -> dict[str, int]:
    given = _json(os.path.join(folder, "special_tokens_map.json")) or {}
    names = {}
    for key, usual in _SPECIAL.items():
        token = given.get(f"{key}_token")
        token = token.get("content") if isinstance(token, dict) else token
        names[key] = token if isinstance(token, str) else usual
    ids: dict[str, int] = {}
    wanted = {token: key for key, token in names.items()}
    for i, token in enumerate(vocab):
        if token in wanted:
            ids.setdefault(wanted[token], i)
    return {key: ids[key] for key in names if key in ids}
