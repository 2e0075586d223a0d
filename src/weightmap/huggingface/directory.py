"""Configuration, vocabulary and tokenizer of a Hugging Face model directory."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.core.bytes import strict_json
from weightmap.core.bytes.open_source import folder_of, inside, is_directory, modified_at, names_in, path_of, read_small
from weightmap.core.model.sharded import look_in
from weightmap.core.native import checksums
from weightmap.errors import FormatError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The tokenizer of a Hugging Face model directory, as a type, five special ids and a payload of bytes (AMB's form).
#
# =============  ======================================================  ==============================================
# type           from                                                    payload (ours)
# =============  ======================================================  ==============================================
# SentencePiece  ``tokenizer.model``, ``spiece.model``, ...              that file
# WordPiece      ``vocab.txt``, or a ``tokenizer.json`` of this type     the tokens by id, UTF-8, each with a line feed
# BPE            ``tokenizer.json`` of this type, or ``vocab.json`` and  JSON: ``{"merges": [[left, right], ...],
#                ``merges.txt``                                          "vocab": {token: id}}``, added tokens included
# custom         any other ``tokenizer.json``                            that file
# =============  ======================================================  ==============================================

BPE, SENTENCEPIECE, WORDPIECE, CUSTOM = range(4)
# File names of serialised models, and their first byte: field 1 of the protocol buffer, the list of pieces.
_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
_PIECES = b"\n"
NAMES = ("bos", "eos", "pad", "unk", "mask")
# BERT's names of the special tokens.
_BERT = {"bos": "cls", "eos": "sep", "pad": "pad", "unk": "unk", "mask": "mask"}
_LARGEST_ID = 0xFFFE


class TokenizerParts(NamedTuple):
    """A tokenizer for `weightmap.save`.

    Attributes
    ----------
    type : int
    special_ids : dict of str to int
    payload : bytes
    large_ids : dict of str to int
        Special ids that do not fit into the 16 bits of AMB.
    """

    type: int
    special_ids: dict[str, int]
    payload: bytes
    large_ids: dict[str, int]


def read_tokenizer(files: _Files, config: Mapping[str, Any], vocab: Sequence[str] | None) -> TokenizerParts | None:
    """Return the tokenizer of a model directory, or None when it has none.

    Parameters
    ----------
    files : _Files
    config : mapping
        The content of ``config.json``.
    vocab : sequence of str or None
        The lines of ``vocab.txt``.

    Raises
    ------
    FormatError
        When a file of the tokenizer is damaged.
    """
    full = files.json("tokenizer.json") or {}
    settings = files.json("tokenizer_config.json") or {}
    ids = _added(full, settings)
    tokenizer = _sentencepiece(files) or _wordpiece(vocab, full, ids) or _bpe(files, full, ids)
    if tokenizer is None and full:
        tokenizer = CUSTOM, files.read("tokenizer.json") or b""
    if tokenizer is None:
        return None
    kind, payload = tokenizer
    tokens = files.json("special_tokens_map.json") or {}
    special = _special_tokens(tokens, settings, config, ids, wordpiece=kind == WORDPIECE)
    fitting = {name: i for name, i in special.items() if i <= _LARGEST_ID}
    return TokenizerParts(kind, fitting, payload, {name: i for name, i in special.items() if i > _LARGEST_ID})


def _sentencepiece(files: _Files) -> tuple[int, bytes] | None:
    for name in _SENTENCEPIECE:
        raw = files.read(name)
        # Some models have a text file of another kind under this name.
        if raw is not None and raw[:1] == _PIECES:
            return SENTENCEPIECE, raw
    return None


def _wordpiece(vocab: Sequence[str] | None, full: dict[str, Any], ids: dict[str, int]) -> tuple[int, bytes] | None:
    """Return the tokens in the order of their ids; None if ids have gaps or a token contains a line break."""
    if vocab is None:
        model = _model(full, "WordPiece")
        if model is None:
            return None
        by_id = {i: token for token, i in (model | ids).items()}
        if sorted(by_id) != list(range(len(by_id))) or any("\n" in token for token in by_id.values()):
            return None
        vocab = [by_id[i] for i in range(len(by_id))]
    for i, token in enumerate(vocab):
        ids.setdefault(token, i)
    return WORDPIECE, b"".join(token.encode() + b"\n" for token in vocab)


def _bpe(files: _Files, full: dict[str, Any], ids: dict[str, int]) -> tuple[int, bytes] | None:
    vocab = _model(full, "BPE")
    path = files.path("merges.txt")
    if vocab is not None:
        path, merges = files.path("tokenizer.json"), full["model"].get("merges", [])
    else:
        raw = files.read("merges.txt")
        vocab = {token: i for token, i in (files.json("vocab.json") or {}).items() if type(i) is int}
        if raw is None or not vocab:
            return None
        try:
            lines = raw.decode().split("\n")
        except UnicodeDecodeError as error:
            raise FormatError(f"the merges are not UTF-8 ({error.reason})", path=path, offset=error.start) from None
        merges = [line.removesuffix("\r") for line in lines if line.strip("\r") and not line.startswith("#version")]
    merges = merges if isinstance(merges, list) else [None]  # not a pair
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    if not all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair) for pair in pairs):
        raise FormatError("a merge is not a pair of tokens", path=path, field="merges")
    for token, i in vocab.items():
        ids.setdefault(token, i)
    ordered = dict(sorted((vocab | ids).items(), key=lambda entry: entry[1]))
    text = json.dumps({"merges": pairs, "vocab": ordered}, ensure_ascii=False, separators=(",", ":"))
    return BPE, text.encode()


def _model(full: dict[str, Any], kind: str) -> dict[str, int] | None:
    """Return the vocabulary of a ``tokenizer.json`` of this kind, or None if it is of another kind."""
    model = full.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        return None
    # Files from the first years do not name their type: merges tell it.
    named = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
    return {token: i for token, i in model["vocab"].items() if type(i) is int} if named == kind else None


def _added(full: dict[str, Any], settings: dict[str, Any]) -> dict[str, int]:
    """Return tokens outside the vocabulary, with their ids."""
    ids: dict[str, int] = {}
    decoder = settings.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        content = entry.get("content") if isinstance(entry, dict) else None
        if key.isascii() and key.isdecimal() and len(key) < 10 and isinstance(content, str):
            ids.setdefault(content, int(key))
    added = full.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and type(entry.get("id")) is int and isinstance(entry.get("content"), str):
            ids.setdefault(entry["content"], entry["id"])
    return ids


def _special_tokens(
    tokens: dict[str, Any],
    settings: dict[str, Any],
    config: Mapping[str, Any],
    ids: dict[str, int],
    *,
    wordpiece: bool,
) -> dict[str, int]:
    """Return special ids: of tokens named in the tokenizer's files, else from ``config.json``, else the usual ids."""
    special = {}
    for name in NAMES:
        roles = (_BERT[name], name) if wordpiece else (name,)
        candidates = [ids.get(_text(source.get(f"{role}_token"))) for role in roles for source in (tokens, settings)]
        candidates.append(_first(config.get(f"{name}_token_id")))
        if wordpiece:
            candidates.append(ids.get(f"[{_BERT[name].upper()}]"))
        id_ = next((i for i in candidates if i is not None and i >= 0), None)
        if id_ is not None:
            special[name] = id_
    return special


def _text(token: Any, default: str = "\0") -> str:
    """Return the text of a token, which may be an object; a missing token gets a text that no token has."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else default


def _first(value: Any) -> int | None:
    """Return an id, or the first of several: some models have several end tokens."""
    value = value[0] if isinstance(value, list) and value else value
    return value if type(value) is int else None


# Keys that EMBD's specification requires, and the configuration's keys for them.
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
# The names in AMB's specification and in configurations, where models of the first years differ.
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
        Ids of the special tokens, found by ``special_tokens_map.json`` or by their usual names.
    about : dict of str to str
        Metadata of AMB's specification, as far as known: name, family, creator, created, version.
    config : dict
        The keys of AMB's configuration, if ``config.json`` has them, and a few more.
    stamps : dict
        Size and CRC-32 of each file that was read so far; None for a missing file.
    """

    __slots__ = ("_files", "_json", "about", "config", "metadata", "special_ids", "stamps", "vocab")

    def __init__(
        self,
        files: _Files,
        config: dict[str, Any] | None,
        metadata: dict[str, str],
        vocab: list[str] | None,
        special_ids: dict[str, int] | None,
    ) -> None:
        self._files, self.stamps = files, files.stamps
        self._json = {} if config is None else config
        self.metadata: dict[str, str] = metadata
        self.vocab: list[str] | None = vocab
        self.special_ids: dict[str, int] | None = special_ids
        self.about: dict[str, str] = {} if config is None else _about(config, metadata)
        self.config: dict[str, Any] = _amb_config(self._json)

    def tokenizer(self) -> TokenizerParts | None:
        """Read and return the tokenizer, perhaps ten megabytes; None if the directory has none.

        Raises `FormatError` when a file of the tokenizer is damaged.
        """
        return read_tokenizer(self._files, self._json, self.vocab)


class _Files:
    """Reads the files of a directory, and notes size and CRC-32 of each."""

    def __init__(self, folder: str, model: str, trust: Any) -> None:
        self._folder, self._model, self._trust = folder, model, trust
        self.stamps: dict[str, tuple[int, int] | None] = {}

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return inside(self._folder, name)

    def read(self, name: str) -> bytes | None:
        """Return the content of a small regular file, or None if it is missing.

        A FIFO is refused, not waited for; so is a link that leads away from the model.
        """
        raw = read_small(self.path(name), self._trust, self._model)
        self.stamps[name] = None if raw is None else (len(raw), checksums.crc32(raw))
        return raw

    def json(self, name: str, *, constants: bool = False) -> dict[str, Any] | None:
        """Return the content of a JSON file, or None if it is missing; `constants` as for `strict_json.loads`."""
        try:
            raw = self.read(name)
            return None if raw is None else strict_json.loads(raw, name, constants=constants)
        except TensorFileError as error:
            raise error.located(path=self.path(name)) from None

    def lines(self, name: str) -> list[str] | None:
        """Return the tokens of a vocabulary file, or None if it is missing."""
        raw = self.read(name)
        if raw is None:
            return None
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            what = f"the vocabulary is not UTF-8 ({error.reason})"
            raise FormatError(what, path=self.path(name), offset=error.start) from None
        # Only a line feed ends a token: tokens may contain other characters that Python takes for line ends.
        lines = text.removesuffix("\n").split("\n") if text else []
        return [line.removesuffix("\r") for line in lines]


def read_directory(folder: str, model: str, trust: Any = None) -> ModelDirectory:
    """Read the files beside the model file `model` in `folder`; any of them may be missing.

    `trust` has the digests that the files must have. Raises `FormatError` when ``config.json``,
    ``special_tokens_map.json`` or ``vocab.txt`` is damaged, or a size in ``config.json`` is not finite.
    """
    files = _Files(folder, model, trust)
    config = files.json("config.json", constants=True)
    metadata = {} if config is None else _metadata(config, folder, model)
    vocab = files.lines("vocab.txt")
    special = None if vocab is None else _special(files.json("special_tokens_map.json", constants=True) or {}, vocab)
    try:
        return ModelDirectory(files, config, metadata, vocab, special)
    except TensorFileError as error:
        raise error.located(path=inside(folder, "config.json")) from None


def _metadata(config: dict[str, Any], folder: str, model: str) -> dict[str, str]:
    metadata: dict[str, Any] = {
        # The best names for the model are its origin, or the name of the directory.
        "model_name": os.path.basename(str(config.get("_name_or_path") or "").rstrip("/"))
        or os.path.basename(os.path.abspath(folder)),
        "model_version": config.get("model_version", "1.0.0"),
    }
    metadata |= {key: config.get(theirs) for key, theirs in _KEYS.items()}
    metadata["created_at"] = _created(model)
    metadata |= {key: config.get(key) for key in _EXTRA}
    for key, value in metadata.items():
        if isinstance(value, float) and not math.isfinite(value):
            what, path = f"{_KEYS.get(key, key)} of the configuration", inside(folder, "config.json")
            raise FormatError(what, path=path, actual=str(value), expected="a finite number")
    return {key: str(value) for key, value in metadata.items() if isinstance(value, (str, int, float))}


def _about(config: dict[str, Any], metadata: dict[str, str]) -> dict[str, str]:
    """Return AMB's metadata, which describe the model without its numbers."""
    owner, slash, _ = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")
    about = {
        "name": metadata["model_name"],
        "family": config.get("model_type"),
        # "owner/name" is a model of the Hub; a longer path is a local folder.
        "creator": owner if slash and owner and "/" not in owner and owner[0] not in ".~" else None,
        "version": metadata.get("model_version"),
        "created": metadata["created_at"],
    }
    return {key: value for key, value in about.items() if isinstance(value, str)}


def _amb_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return AMB's configuration."""
    scalar = (str, int, float)
    settings: dict[str, Any] = {
        key: next((config[name] for name in names if isinstance(config.get(name), scalar)), None)
        for key, names in _AMB_KEYS.items()
    }
    settings |= {key: config.get(key) for key in _AMB_EXTRA}
    # Recent configurations have one object about rotary embeddings.
    nested = config.get("rope_parameters")
    rope = {"rope_theta": config.get("rope_theta")} | (nested if isinstance(nested, dict) else {})
    scaling = config.get("rope_scaling") or (nested if isinstance(nested, dict) else None)
    if isinstance(rope["rope_theta"], (int, float)):
        settings |= {"is_rope": True, "rope_freq_base": _real(rope["rope_theta"]), "rope_scaling": _scaling(scaling)}
    return {key: value for key, value in settings.items() if isinstance(value, (*scalar, dict))}


def _real(number: float) -> float:
    """Return a number of the configuration as a float. Raises `FormatError` for an integer that is too large."""
    try:
        return float(number)
    except OverflowError:
        msg = "a number about rotary embeddings (rope_theta, factor) is too large"
        raise FormatError(msg, field="config.json") from None


def _scaling(scaling: Any) -> float | dict[str, Any]:
    """Return the factor that stretches positions, or the whole object if it has more settings."""
    if not isinstance(scaling, dict):
        return 1.0
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return 1.0
    factor = scaling.get("factor")
    return _real(factor) if kind == "linear" and isinstance(factor, (int, float)) else scaling


def _created(model: str) -> str:
    """Return the checkpoint's time, so that a new conversion gives the same bytes. SOURCE_DATE_EPOCH overrides it."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    # Some file systems have times beyond the years 1 to 9999, which Python's dates lack.
    timestamp = min(max(int(modified_at(model)), -(10**10)), 10**11)
    # Eleven digits reach the year 5138; a longer number is a mistake.
    if epoch.isascii() and epoch.isdecimal() and len(epoch) <= 11:
        timestamp = int(epoch)
    return dt.datetime.fromtimestamp(timestamp, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _special(tokens: dict[str, Any], vocab: list[str]) -> dict[str, int]:
    names = {key: _text(tokens.get(f"{key}_token"), usual) for key, usual in _SPECIAL.items()}
    ids: dict[str, int] = {}
    key_of = {token: key for key, token in names.items()}
    for i, token in enumerate(vocab):
        if token in key_of:
            ids.setdefault(key_of[token], i)
    return {key: ids[key] for key in names if key in ids}


def read_beside(model: str, trust: Any) -> ModelDirectory:
    """Read the directory of a model file or index, which may be an address."""
    return read_directory(folder_of(model), model, trust)


def directory_around(path: str, trust: Any) -> ModelDirectory | None:
    """Return the directory of a model file or index, if it has a configuration, else None."""
    name = "config.json"
    return read_beside(path, trust) if name in names_in(folder_of(path), (name,)) else None


def find_source(src: Any) -> tuple[str | None, Any, ModelDirectory | None, list[str]]:
    """Return the path of a source, if it has one; the object to open; the directory, if it is one; and some lines.

    The lines report files in the directory that the model does not have: see `look_in`.
    """
    path = path_of(src)
    if path is None or not is_directory(path):
        return path, src if path is None else path, None, []
    model, odd = look_in(path)
    return path, model, read_directory(path, model), odd
