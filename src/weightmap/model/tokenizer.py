"""The tokenizer of a Hugging Face model directory, as one type, five special ids and a payload of bytes (AMB's form).

=============  ======================================================  ==============================================
type           from                                                    payload (ours)
=============  ======================================================  ==============================================
SentencePiece  ``tokenizer.model``, ``spiece.model``, ...              that file
WordPiece      ``vocab.txt``, or a ``tokenizer.json`` of this type     the tokens by id, UTF-8, a line feed behind each
BPE            ``tokenizer.json`` of this type, or ``vocab.json`` and  JSON: ``{"merges": [[left, right], ...],
               ``merges.txt``                                          "vocab": {token: id}}``, added tokens included
custom         any other ``tokenizer.json``                            that file
=============  ======================================================  ==============================================
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.errors import FormatError, TensorFileError
from weightmap.io import strict_json
from weightmap.io.open_source import inside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Read = Callable[[str], bytes | None]

BPE, SENTENCEPIECE, WORDPIECE, CUSTOM = range(4)
# File names of serialised models, and their first byte: field 1 of the protocol buffer, the list of pieces.
_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
_PIECES = b"\n"
NAMES = ("bos", "eos", "pad", "unk", "mask")
# BERT's names: its own for the first two, and those of its tokens.
_BERT = {"bos": "cls", "eos": "sep", "pad": "pad", "unk": "unk", "mask": "mask"}
_LARGEST_ID = 0xFFFE


class TokenizerParts(NamedTuple):
    """A tokenizer as `weightmap.save` takes it.

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


def read_tokenizer(
    folder: str, read: Read, config: Mapping[str, Any], vocab: Sequence[str] | None
) -> TokenizerParts | None:
    """Return the tokenizer of a model directory, or None when it has none.

    Parameters
    ----------
    folder : str
    read : callable
        Returns the content of a file by its path, or None when there is none.
    config : mapping
        The content of ``config.json``.
    vocab : sequence of str or None
        The lines of ``vocab.txt``.

    Raises
    ------
    FormatError
        When one of its files is damaged.
    """

    def load(name: str) -> dict[str, Any]:
        path = inside(folder, name)
        raw = read(path)
        try:
            return {} if raw is None else strict_json.loads(raw, name)
        except TensorFileError as error:
            raise error.located(path=path) from None

    full = load("tokenizer.json")
    settings = load("tokenizer_config.json")
    ids = _added(full, settings)
    found = _sentencepiece(folder, read) or _wordpiece(vocab, full, ids) or _bpe(folder, read, load, full, ids)
    if found is None and full:
        found = CUSTOM, read(inside(folder, "tokenizer.json")) or b""
    if found is None:
        return None
    kind, payload = found
    special = _special(load("special_tokens_map.json"), settings, config, ids, wordpiece=kind == WORDPIECE)
    fitting = {name: i for name, i in special.items() if i <= _LARGEST_ID}
    return TokenizerParts(kind, fitting, payload, {name: i for name, i in special.items() if i > _LARGEST_ID})


def _sentencepiece(folder: str, read: Read) -> tuple[int, bytes] | None:
    for name in _SENTENCEPIECE:
        raw = read(inside(folder, name))
        # Some models call a text file of another kind so.
        if raw is not None and raw[:1] == _PIECES:
            return SENTENCEPIECE, raw
    return None


def _wordpiece(vocab: Sequence[str] | None, full: dict[str, Any], ids: dict[str, int]) -> tuple[int, bytes] | None:
    """Return the tokens in the order of their ids; nothing if ids have gaps or a token contains a line break."""
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


def _bpe(
    folder: str, read: Read, load: Callable[[str], dict[str, Any]], full: dict[str, Any], ids: dict[str, int]
) -> tuple[int, bytes] | None:
    vocab = _model(full, "BPE")
    path = inside(folder, "merges.txt")
    if vocab is not None:
        path, merges = inside(folder, "tokenizer.json"), full["model"].get("merges", [])
    else:
        raw = read(path)
        vocab = {token: i for token, i in load("vocab.json").items() if type(i) is int}
        if raw is None or not vocab:
            return None
        try:
            lines = raw.decode().split("\n")
        except UnicodeDecodeError as error:
            raise FormatError(f"the merges are not UTF-8 ({error.reason})", path=path, offset=error.start) from None
        merges = [line.removesuffix("\r") for line in lines if line.strip("\r") and not line.startswith("#version")]
    merges = merges if isinstance(merges, list) else [None]  # no pair
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    if not all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair) for pair in pairs):
        raise FormatError("a merge is not a pair of tokens", path=path, field="merges")
    for token, i in vocab.items():
        ids.setdefault(token, i)
    ordered = dict(sorted((vocab | ids).items(), key=lambda entry: entry[1]))
    text = json.dumps({"merges": pairs, "vocab": ordered}, ensure_ascii=False, separators=(",", ":"))
    return BPE, text.encode()


def _model(full: dict[str, Any], kind: str) -> dict[str, int] | None:
    """Return the vocabulary of a ``tokenizer.json`` of this kind, or None when it is of another."""
    model = full.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        return None
    # Files of the first years do not name their type; merges tell it.
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


def _special(
    tokens: dict[str, Any],
    settings: dict[str, Any],
    config: Mapping[str, Any],
    ids: dict[str, int],
    *,
    wordpiece: bool,
) -> dict[str, int]:
    """Return special ids: of tokens named in the tokenizer's files, else of ``config.json``, else the usual ones."""
    special = {}
    for name in NAMES:
        roles = (_BERT[name], name) if wordpiece else (name,)
        candidates = [ids.get(_text(source.get(f"{role}_token"))) for role in roles for source in (tokens, settings)]
        candidates.append(_first(config.get(f"{name}_token_id")))
        if wordpiece:
            candidates.append(ids.get(f"[{_BERT[name].upper()}]"))
        found = next((i for i in candidates if i is not None and i >= 0), None)
        if found is not None:
            special[name] = found
    return special


def _text(token: Any) -> str:
    """Return the text of a token, which may be an object."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else "\0"  # no token


def _first(value: Any) -> int | None:
    """Return an id, or the first of several: some models have several ends of a text."""
    value = value[0] if isinstance(value, list) and value else value
    return value if type(value) is int else None
