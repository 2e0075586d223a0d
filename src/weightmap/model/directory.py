"""Configuration, vocabulary and tokenizer of a Hugging Face model directory."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

from weightmap.errors import FormatError, TensorFileError
from weightmap.io import strict_json
from weightmap.io.beside import read_small
from weightmap.io.open_source import folder_of, inside, is_directory, modified_at, names_in, path_of
from weightmap.model.sharded import look_in
from weightmap.model.tokenizer import TokenizerParts, read_tokenizer
from weightmap.native import late

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
# Our addition: programs need these to run the model.
_EXTRA = ("model_type", "hidden_act", "layer_norm_eps", "type_vocab_size")
# The names of AMB's specification, and those of configurations, which differed between models in the first years.
_AMB_KEYS = {
    "architecture": ("model_type",),
    "n_vocab": ("vocab_size",),
    "n_embd": ("hidden_size", "n_embd", "d_model", "dim"),
    "n_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "n_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads", "num_attention_heads", "n_head", "num_heads", "n_heads"),
    "max_seq_len": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"),
    "activation_fn": ("hidden_act", "activation_function", "hidden_activation", "activation"),
}
# Our addition: programs need these, under the names of the configuration.
_AMB_EXTRA = (
    "intermediate_size",
    "layer_norm_eps",
    "rms_norm_eps",
    "head_dim",
    "type_vocab_size",
    "position_embedding_type",
    "tie_word_embeddings",
)
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class ModelDirectory:
    """Configuration and vocabulary of a model directory.

    Attributes
    ----------
    metadata : dict of str to str
        The ten keys that EMBD's specification requires, if ``config.json`` has them, and a few more.
    vocab : list of str or None
        Lines of ``vocab.txt``.
    special_ids : dict of str to int or None
        Ids of the special tokens, by ``special_tokens_map.json`` or by their usual names.
    about : dict of str to str
        Metadata by AMB's specification, as far as known: name, family, creator, created, version.
    config : dict
        The keys of AMB's configuration, if ``config.json`` has them, and a few more.
    seen : dict
        Size and CRC-32 of each file that was read so far; None for one that is not there.
    """

    __slots__ = ("_files", "_json", "about", "config", "metadata", "special_ids", "vocab")

    def __init__(
        self,
        files: _Files,
        config: dict[str, Any] | None,
        metadata: dict[str, str],
        vocab: list[str] | None,
        special_ids: dict[str, int] | None,
    ) -> None:
        self._files = files
        self._json = {} if config is None else config
        self.metadata: dict[str, str] = metadata
        self.vocab: list[str] | None = vocab
        self.special_ids: dict[str, int] | None = special_ids
        self.about: dict[str, str] = {} if config is None else _about(config, metadata)
        self.config: dict[str, Any] = _amb_config(self._json)

    @property
    def seen(self) -> dict[str, tuple[int, int] | None]:
        """What the files were that this read."""
        return self._files.seen

    def tokenizer(self) -> TokenizerParts | None:
        """Read and return the tokenizer, perhaps ten megabytes; None when there is none.

        Raises `FormatError` when one of its files is damaged.
        """
        return read_tokenizer(self._files.folder, self._files.read, self._json, self.vocab)


class _Files:
    """The files of a directory: reads them, and notes size and CRC-32 of each."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.seen: dict[str, tuple[int, int] | None] = {}

    def read(self, path: str) -> bytes | None:
        """Return the content of a small regular file, or None when there is none. A FIFO is refused, not waited for."""
        raw = read_small(path)
        self.seen[os.path.basename(str(path))] = None if raw is None else (len(raw), late.crc32(raw))
        return raw

    def json(self, name: str) -> dict[str, Any] | None:
        """Return the content of a file of JSON, or None when there is none."""
        path = inside(self.folder, name)
        try:
            raw = self.read(path)
            return None if raw is None else strict_json.loads(raw, name)
        except TensorFileError as error:
            raise error.located(path=path) from None

    def lines(self, name: str) -> list[str] | None:
        """Return the tokens of a vocabulary, or None when there is none."""
        path = inside(self.folder, name)
        raw = self.read(path)
        if raw is None:
            return None
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the vocabulary is not UTF-8 ({error.reason})", path=path, offset=error.start) from None
        # A token ends at a line feed alone: tokens may hold other characters that Python calls line ends.
        lines = text.removesuffix("\n").split("\n") if text else []
        return [line.removesuffix("\r") for line in lines]


def read_directory(folder: str, model: str) -> ModelDirectory:
    """Read the files beside the model file `model` in `folder`; any of them may be missing.

    Raises `FormatError` when ``config.json``, ``special_tokens_map.json`` or ``vocab.txt`` is damaged.
    """
    files = _Files(folder)
    config = files.json("config.json")
    metadata = {} if config is None else _metadata(config, folder, model)
    vocab = files.lines("vocab.txt")
    special = None if vocab is None else _special(files.json("special_tokens_map.json") or {}, vocab)
    try:
        return ModelDirectory(files, config, metadata, vocab, special)
    except TensorFileError as error:
        raise error.located(path=inside(folder, "config.json")) from None


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


def _about(config: dict[str, Any], metadata: dict[str, str]) -> dict[str, str]:
    """Return the metadata of AMB: what the model is, without its numbers."""
    owner, slash, _ = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")
    known = {
        "name": metadata["model_name"],
        "family": config.get("model_type"),
        # "owner/name" is a model of the hub; a longer path is a local folder.
        "creator": owner if slash and owner and "/" not in owner and owner[0] not in ".~" else None,
        "version": metadata.get("model_version"),
        "created": metadata["created_at"],
    }
    return {key: value for key, value in known.items() if isinstance(value, str)}


def _amb_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return AMB's configuration."""
    scalar = (str, int, float)
    known: dict[str, Any] = {
        key: next((config[name] for name in names if isinstance(config.get(name), scalar)), None)
        for key, names in _AMB_KEYS.items()
    }
    known |= {key: config.get(key) for key in _AMB_EXTRA}
    # Recent configurations have one object about rotary embeddings.
    nested = config.get("rope_parameters")
    rope = {"rope_theta": config.get("rope_theta")} | (nested if isinstance(nested, dict) else {})
    scaling = config.get("rope_scaling") or (nested if isinstance(nested, dict) else None)
    if isinstance(rope["rope_theta"], (int, float)):
        known |= {"is_rope": True, "rope_freq_base": _real(rope["rope_theta"]), "rope_scaling": _scaling(scaling)}
    return {key: value for key, value in known.items() if isinstance(value, (*scalar, dict))}


def _real(number: float) -> float:
    """Return a number of the configuration as a float. Raises `FormatError` for an integer that is too large."""
    try:
        return float(number)
    except OverflowError:
        msg = "a number about rotary embeddings (rope_theta, factor) is too large"
        raise FormatError(msg, field="config.json") from None


def _scaling(scaling: Any) -> float | dict[str, Any]:
    """Return the factor that stretches positions, or the whole object where it says more than that."""
    if not isinstance(scaling, dict):
        return 1.0
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return 1.0
    factor = scaling.get("factor")
    return _real(factor) if kind == "linear" and isinstance(factor, (int, float)) else scaling


def _created(model: str) -> str:
    """Return the checkpoint's time: converting it again gives the same bytes. SOURCE_DATE_EPOCH overrides it."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    # Some file systems have times beyond the years 1 to 9999, which Python's dates lack.
    seconds = min(max(int(modified_at(model)), -(10**10)), 10**11)
    # Eleven digits reach the year 5138; a longer number is a mistake.
    if epoch.isascii() and epoch.isdecimal() and len(epoch) <= 11:
        seconds = int(epoch)
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _special(given: dict[str, Any], vocab: list[str]) -> dict[str, int]:
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


def directory_around(path: str) -> ModelDirectory | None:
    """Return what lies beside a model file or index, if it lies in a directory with a configuration."""
    name, folder = "config.json", folder_of(path)
    return read_directory(folder, path) if name in names_in(folder, (name,)) else None


def find_source(src: Any) -> tuple[str | None, Any, ModelDirectory | None, list[str]]:
    """Return the path of a source, if it has one; what to open; what lies beside it, if it is a directory; and lines.

    These are about what its directory has and the model has not: see `look_in`.
    """
    path = path_of(src)
    if path is None or not is_directory(path):
        return path, src if path is None else path, None, []
    model, odd = look_in(path)
    return path, model, read_directory(path, model), odd
