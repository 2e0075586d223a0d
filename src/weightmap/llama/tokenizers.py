"""The tokenizer of a model directory as the key-values that llama.cpp reads.

==============  ====================================================  ================================================
kind            from                                                  ``tokenizer.ggml.model``, and what goes with it
==============  ====================================================  ================================================
sentencepiece   ``tokenizer.model``                                   "llama"; tokens, scores, types of its pieces, and
                                                                      the added tokens
fallback        ``tokenizer.json``, BPE with ``byte_fallback``        "llama"; the score of a token is the rank of the
                                                                      merge that makes it, negative
bytes           ``tokenizer.json``, BPE of bytes                      "gpt2"; tokens, types, merges, and ``pre``
==============  ====================================================  ================================================

``tokenizer.ggml.pre`` makes llama.cpp choose a regular expression. llama.cpp's converter knows it by a hash of what a
published tokenizer makes of one text; here the expression in ``tokenizer.json`` decides, and one that llama.cpp does
not have is refused. Scores of the second kind are ours: with equal scores llama.cpp merges from the left, and gives
other tokens than the model was trained on.

Ids of special tokens, merges and chat templates: see `special`.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.core.bytes import strict_json
from weightmap.errors import FormatError, MissingDependencyError, quoted
from weightmap.llama.architectures import KEEP, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MODEL, TOKENIZER, SETTINGS = "tokenizer.model", "tokenizer.json", "tokenizer_config.json"
# More tokens than any model has: a list of so many names takes a gigabyte.
_MAX_TOKENS = 1 << 24
# The blank of sentencepiece.
_BLANK = "\u2581"
# Token types of llama.cpp.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_ADDED, _PADDING = -1000.0, -10000.0
_LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>", re.DOTALL)
_OF_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_ENDINGS = r"| ?[^\s\p{L}\p{N}]+[\r\n%s]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(numbers: str) -> str:
    return _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + numbers + _ENDINGS % ""


def _cased(contractions: str, numbers: str) -> str:
    first, second = f"[{_UPPER}]*[{_LOWER}]+", f"[{_UPPER}]+[{_LOWER}]*"
    one = r"[^\r\n\p{L}\p{N}]?"
    return f"{one}{first}{contractions}|{one}{second}{contractions}|{numbers}" + _ENDINGS % "/"


# The expressions that llama.cpp has: its name, and whether the merges are ignored for words that are tokens.
_SPLITS = {
    _cl100k(r"\p{N}{1,3}"): ("llama-bpe", True),
    _cl100k(r"\p{N}"): ("qwen2", False),
    _cased("", r"\p{N}"): ("tekken", True),
    _cased(_CONTRACTIONS + "?", r"\p{N}{1,3}"): ("gpt-4o", False),
}


class Vocab(NamedTuple):
    """Tokens by id, with their types and, for the model "llama", scores."""

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None
    adds_space: bool | None = None


class Files:
    """The small files beside a model.

    Parameters
    ----------
    read : callable
        Returns the content of a file by its name, or None where there is none.
    """

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self.read = read
        self._known: dict[str, dict[str, Any] | None] = {}

    def json(self, name: str) -> dict[str, Any] | None:
        """Return the content of a file of JSON, an object; None where there is none. Raises `FormatError`."""
        if name not in self._known:
            raw = self.read(name)
            self._known[name] = None if raw is None else strict_json.loads(raw, name)
        return self._known[name]

    def text(self, name: str) -> str:
        """Return the content of a file of text, empty where there is none. Raises `FormatError`."""
        try:
            return (self.read(name) or b"").decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{name} is not UTF-8 ({error.reason})", field=name, offset=error.start) from None


def vocab_of(files: Files, kinds: tuple[str, ...], count: int) -> Vocab:
    """Return the vocabulary of a model of `count` tokens, by the first of these kinds that is there.

    Raises `EncodeError` where there is none of them, and for one that llama.cpp does not have.
    """
    if count > _MAX_TOKENS:
        raise refusal(f"config.json has vocab_size {count}, expected at most {_MAX_TOKENS}")
    tokenizer = files.json(TOKENIZER)
    for kind in kinds:
        if kind == "sentencepiece" and (raw := files.read(MODEL)) is not None:
            return _by_sentencepiece(raw, files, count)
        if tokenizer is None or kind == "sentencepiece":
            continue
        model = tokenizer.get("model")
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
            what = model.get("type") if isinstance(model, dict) else model
            raise refusal(f"{TOKENIZER} has a tokenizer of type {_shown(what)}, expected BPE")
        if (kind == "fallback") == bool(model.get("byte_fallback")):
            convert = _by_fallback if kind == "fallback" else _by_bytes
            return convert(tokenizer, files, count)
    needed = f"{MODEL} or {TOKENIZER}" if len(kinds) > 1 else MODEL
    if tokenizer is not None and len(kinds) > 1:
        raise refusal(f"{TOKENIZER} falls back to bytes, which llama.cpp does not know of this architecture")
    raise refusal(f"there is no tokenizer beside the model, expected {needed}")


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else "none" if value is None else str(value)[:60]


# ---------------------------------------------------------------------------------------------------- sentencepiece
def _by_sentencepiece(raw: bytes, files: Files, count: int) -> Vocab:
    try:
        from sentencepiece import SentencePieceProcessor  # noqa: PLC0415 - it may be missing
    except ImportError:
        what = f"{MODEL} needs sentencepiece: pip install '.[gguf]' in a checkout"
        raise MissingDependencyError(what, remedy=KEEP) from None
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(raw)
    except (RuntimeError, ValueError):  # UnicodeDecodeError, of a message that repeats a piece
        raise FormatError(f"{MODEL} is not a model of sentencepiece", field=MODEL) from None
    size = processor.GetPieceSize()
    if size > count:
        raise refusal(f"{MODEL} has {size} tokens, and the model {count}")
    tokens, types, scores = _padding(count)
    for i in range(size):
        try:
            tokens[i], scores[i] = processor.IdToPiece(i), processor.GetScore(i)
        except UnicodeDecodeError as error:
            raise FormatError(f"piece {i} of {MODEL} is not UTF-8 ({error.reason})", field=MODEL) from None
        types[i] = next(
            (
                type_
                for type_, method in (
                    (_UNKNOWN, processor.IsUnknown),
                    (_CONTROL, processor.IsControl),
                    (_UNUSED, processor.IsUnused),
                    (_BYTE, processor.IsByte),
                )
                if method(i)
            ),
            _NORMAL,
        )
    for token, i in (files.json("added_tokens.json") or {}).items():
        at = _id(i, count, "added_tokens.json")
        tokens[at], types[at], scores[at] = token, _USER_DEFINED, _ADDED
    for key, entry in _object((files.json(SETTINGS) or {}).get("added_tokens_decoder"), "added_tokens_decoder").items():
        at = _id(int(key) if key.isdecimal() and len(key) < 11 else key, count, "added_tokens_decoder")
        tokens[at], types[at] = _added(entry)
        scores[at] = _ADDED
    return Vocab("llama", "default", tokens, types, scores)


def _padding(count: int) -> tuple[list[str], list[int], list[float]]:
    """Return tokens, types and scores of a vocabulary in which nothing is used yet."""
    return [f"[PAD{i}]" for i in range(count)], [_UNUSED] * count, [_PADDING] * count


def _id(value: Any, count: int, where: str) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise refusal(f"{where} has the id {_shown(value)}, and the model {count} tokens")
    return value


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise FormatError(f"{name} of the tokenizer is {strict_json.kind_of(value)}", field=name, expected="an object")
    return value or {}


def _added(entry: Any) -> tuple[str, int]:
    """Return an added token as llama.cpp has it, and its type."""
    content = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(content, str):
        raise FormatError("an added token of the tokenizer has no content", field="added_tokens", expected="a text")
    if entry.get("special") or _LOOKS_SPECIAL.fullmatch(content):
        return content, _CONTROL
    return content.replace(_BLANK, " "), _USER_DEFINED


# --------------------------------------------------------------------------------------------------- tokenizer.json
def _entries(tokenizer: Mapping[str, Any], count: int) -> tuple[list[str], list[int], set[int]]:
    """Return tokens and types by id, padded, and the ids of added tokens."""
    tokens, types, _ = _padding(count)
    vocab = _object(tokenizer["model"].get("vocab"), "vocab")
    for token, i in vocab.items():
        at = _id(i, count, TOKENIZER)
        tokens[at], types[at] = token, _NORMAL
    added = tokenizer.get("added_tokens") or []
    if not isinstance(added, list):
        raise FormatError("added_tokens of the tokenizer", field="added_tokens", expected="a list")
    ids = set()
    for entry in added:
        at = _id(entry.get("id") if isinstance(entry, dict) else None, count, TOKENIZER)
        tokens[at], types[at] = _added(entry)
        ids.add(at)
    return tokens, types, ids


def merges_of(tokenizer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the merges of a tokenizer in order. Raises `FormatError` for others than pairs of texts."""
    pairs = []
    merges = tokenizer["model"].get("merges") or []
    for merge in merges if isinstance(merges, list) else [merges]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise FormatError("a merge of the tokenizer", field="merges", expected="a pair of texts")
        pairs.append((pair[0], pair[1]))
    return pairs


def _by_fallback(tokenizer: Mapping[str, Any], _: Files, count: int) -> Vocab:
    tokens, types, added = _entries(tokenizer, count)
    ranks: dict[str, int] = {}
    for rank, (first, right) in enumerate(merges_of(tokenizer)):
        ranks.setdefault(first + right, rank)
    scores = []
    for i, (token, type_) in enumerate(zip(tokens, types, strict=True)):
        if _OF_BYTE.fullmatch(token):
            types[i] = _BYTE
        ranked = i not in added and type_ == _NORMAL and token in ranks
        scores.append(-ranks[token] - 1.0 if ranked else _PADDING if type_ == _UNUSED else _ADDED)
    return Vocab("llama", "default", tokens, types, scores, _adds_space(tokenizer))


def _adds_space(tokenizer: Mapping[str, Any]) -> bool:
    """Say whether a text gets a blank in front. Raises `EncodeError` for anything else that is done to it."""
    steps = list(itertools.chain(_steps(tokenizer.get("normalizer")), _steps(tokenizer.get("pre_tokenizer"))))
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    prepended = {"type": "Prepend", "prepend": _BLANK}
    adds = False
    for step in steps:
        if step == prepended:
            adds = True
        elif step.get("type") == "Metaspace" and step.get("replacement") == _BLANK:
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            adds = adds or scheme in ("always", "first")
        elif step != replaced:
            raise refusal(f"{TOKENIZER} has the step {_shown(step.get('type'))}, which llama.cpp does not take")
    return adds


def _steps(stage: Any) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer in order."""
    if stage is None:
        return []
    if not isinstance(stage, dict):
        raise FormatError("a normalizer or pre_tokenizer of the tokenizer", field=TOKENIZER, expected="an object")
    if stage.get("type") != "Sequence":
        return [stage]
    inner = stage.get("normalizers") or stage.get("pretokenizers") or []
    return [step if isinstance(step, dict) else {} for step in inner] if isinstance(inner, list) else [stage]


def _by_bytes(tokenizer: Mapping[str, Any], _: Files, count: int) -> Vocab:
    tokens, types, _ids = _entries(tokenizer, count)
    for step in _steps(tokenizer.get("normalizer")):
        if step.get("type") != "NFC":
            raise refusal(f"{TOKENIZER} has the normalizer {_shown(step.get('type'))}, expected none or NFC")
    merges_of(tokenizer)
    return Vocab("gpt2", _pre(tokenizer), tokens, types, None)


def _pre(tokenizer: Mapping[str, Any]) -> str:
    """Return what llama.cpp calls the pre-tokenizer. Raises `EncodeError` for one that it does not have."""
    steps, ignores = _steps(tokenizer.get("pre_tokenizer")), bool(tokenizer["model"].get("ignore_merges"))
    kinds = [step.get("type") for step in steps]
    name, ignores_merges = None, False
    if kinds == ["Split", "ByteLevel"] and _is_split(steps[0]) and _is_byte_level(steps[1], regex=False):
        name, ignores_merges = _SPLITS.get(steps[0]["pattern"]["Regex"], (None, False))
    elif kinds == ["ByteLevel"] and _is_byte_level(steps[0], regex=True):
        name = "gpt-2"
    elif (
        kinds == ["Digits", "ByteLevel"]
        and steps[0].get("individual_digits") is True
        and _is_byte_level(steps[1], regex=True)
    ):
        name = "smollm"
    if name is None:
        supported = ", ".join(sorted({name for name, _ in _SPLITS.values()} | {"gpt-2", "smollm"}))
        steps_here = " and ".join(str(kind)[:60] for kind in kinds[:4]) or "none"
        raise refusal(f"the pre-tokenizer of {TOKENIZER} ({steps_here}) is none of those that are known ({supported})")
    if ignores != ignores_merges:
        raise refusal(
            f"{TOKENIZER} has the pre-tokenizer of {name}, and ignore_merges {ignores}, expected {ignores_merges}"
        )
    return name


def _is_split(step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern")
    plain = step.get("behavior") == "Isolated" and not step.get("invert")
    return plain and isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str)


def _is_byte_level(step: Mapping[str, Any], *, regex: bool) -> bool:
    return not step.get("add_prefix_space") and step.get("use_regex", True) is regex


def add_vocab(writer: Any, vocab: Vocab) -> None:
    """Add the key-values of a vocabulary to a ``GGUFWriter``."""
    writer.add_tokenizer_model(vocab.model)
    writer.add_tokenizer_pre(vocab.pre)
    writer.add_token_list(vocab.tokens)
    if vocab.scores is not None:
        writer.add_token_scores(vocab.scores)
    writer.add_token_types(vocab.types)


def check_text(tokens: list[str]) -> None:
    """Raise `EncodeError` for a token that is no Unicode text, or that comes twice."""
    if len(set(tokens)) < len(tokens):
        texts: set[str] = set()
        twice = next(token for token in tokens if token in texts or texts.add(token))  # type: ignore[func-returns-value]
        raise refusal(f"the tokenizer has the token {quoted(twice)} twice")
