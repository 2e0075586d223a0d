"""The tokenizer of a model directory as key-values for llama.cpp.

==============  ====================================================  ================================================
kind            from                                                  ``tokenizer.ggml.model``, and its other keys
==============  ====================================================  ================================================
sentencepiece   ``tokenizer.model``                                   "llama"; tokens, scores and types of the pieces,
                                                                      and the added tokens
fallback        ``tokenizer.json``, BPE with ``byte_fallback``        "llama"; the score of a token is the rank of the
                                                                      merge that makes it, negative
bytes           ``tokenizer.json``, BPE of bytes                      "gpt2"; tokens, types, merges, and ``pre``
==============  ====================================================  ================================================

``tokenizer.ggml.pre`` makes llama.cpp choose a regular expression. llama.cpp's converter recognises a published
tokenizer by a hash of its tokens for one text. Here, the expression in ``tokenizer.json`` decides, and an expression
that llama.cpp does not have is refused. Scores of the second kind are our own: with equal scores llama.cpp merges from
the left, and makes other tokens than in training.

Ids of special tokens, merges and chat templates: see `special`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import quoted
from weightmap.core.bytes import strict_json
from weightmap.core.formats import fields
from weightmap.errors import FormatError, MissingDependencyError
from weightmap.llama.architectures import KEEP, refusal, spelt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# Special tokens, merges and chat templates of a model directory, in the form of the package ``gguf``.
#
# ``gguf.SpecialVocab`` reads them from a folder. But a model may lie in a store, and its files must have the digests
# that `trust` lists, so the code here reads them from checked bytes; a test compares the result with ``SpecialVocab``.

_KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_TEMPLATE, _OLDER_TEMPLATE, _MERGES = "chat_template.jinja", "chat_template.json", "merges.txt"
# A blank in the merges of byte tokenizers.
_ENCODED_BLANK = chr(ord(" ") + 256)


class Special:
    """The special tokens of a model: their ids, and whether they are added to texts.

    Parameters
    ----------
    files : Files
    config : mapping
        ``config.json``.
    count : int
        Number of the model's tokens.
    notes : list of str
        Gains a line for each omission.

    Attributes
    ----------
    ids : dict of str to int
    adds : dict of str to bool
        Whether the token of a kind is added to a text.
    """

    def __init__(self, files: Files, config: Mapping[str, Any], count: int, notes: list[str]) -> None:
        self.ids: dict[str, int] = {}
        self.adds: dict[str, bool] = {}
        self._count, self._notes = count, notes
        settings, tokenizer = files.json(SETTINGS) or {}, files.json(TOKENIZER) or {}
        names = {kind: _text(settings.get(f"{kind}_token")) for kind in _KINDS}
        names["bos"], names["eos"] = names["bos"] or names["cls"], names["eos"] or names["sep"]
        for processor in _processors(tokenizer):
            self._add_processor(processor, names, stated=bool(settings))
        if settings:
            self._add_settings(settings, tokenizer, names)
        inner = config.get("text_config")
        for kind in names:
            number = config.get(f"{kind}_token_id")
            if number is None and isinstance(inner, dict):
                number = inner.get(f"{kind}_token_id")
            self._set(kind, number)

    def _add_settings(self, settings: Mapping[str, Any], tokenizer: Mapping[str, Any], names: dict[str, str]) -> None:
        """Add the ids of tokens that ``tokenizer_config.json`` names."""
        ids: dict[str, Any] = {}
        added = tokenizer.get("added_tokens")
        for entry in added if isinstance(added, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("content"), str):
                ids.setdefault(entry["content"], entry.get("id"))
        for kind, name in names.items():
            adds = settings.get(f"add_{kind}_token")
            if isinstance(adds, bool):
                self.adds.setdefault(kind, adds)  # transformers follows the post-processor
            self._set(kind, ids.get(name) if name else None)

    def _set(self, kind: str, number: Any) -> None:
        """Set the id of a kind, unless it is set."""
        if type(number) is int and 0 <= number < self._count:
            self.ids.setdefault(kind, number)
        elif type(number) is int:
            shown = str(number)[:20]
            self._notes.append(f"the special token {kind} has the id {shown}, and the model {self._count} tokens")

    def _add_processor(self, processor: Mapping[str, Any], names: dict[str, str], *, stated: bool) -> None:
        """Add a post-processor's settings; `stated`: the names come from ``tokenizer_config.json``."""
        if processor.get("type") == "ByteLevel":
            self.adds = {"bos": False, "eos": False, **self.adds}
        elif processor.get("type") == "RobertaProcessing":
            self.adds |= {"bos": True, "eos": True, "sep": True}
            for kind, usual in (("cls", "bos"), ("sep", "eos")):
                pair = processor.get(kind)
                first = pair[0] if isinstance(pair, list) and pair else names[usual]
                names[kind] = names[kind] or (first if isinstance(first, str) else "")
        elif processor.get("type") == "TemplateProcessing":
            self._add_template(processor, names, stated=stated)

    def _add_template(self, processor: Mapping[str, Any], names: dict[str, str], *, stated: bool) -> None:
        single = _template_steps(processor.get("single"))
        first, last = (_special(single[0]), _special(single[-1])) if len(single) > 1 else ("", "")
        if first:
            names["bos"] = (stated and names["bos"]) or first
            self.adds["bos"] = first in (names["bos"], names["cls"])
            if not self.adds["bos"]:
                self._notes.append(f"the tokenizer begins a text with {quoted(first)}, which is not its bos token")
        if last:
            if stated and last != names["eos"]:  # a turn has another end than a text
                other = next((kind for kind in ("eot", "eom") if kind not in names), None)
                if other is not None:
                    names[other] = names["eos"]
            names["eos"] = last
            self.adds["eos"] = True
        pair = _template_steps(processor.get("pair"))
        begins = 1 if first and pair and _special(pair[0]) == first else 0
        ends = len(pair) - 1 if last and pair and _special(pair[-1]) == last else len(pair)
        inner = pair[begins:ends]
        if len(inner) > 2 and _sequence(inner[0]) == "A" and _sequence(inner[-1]) == "B":
            between = [_special(step) in {names["sep"], names["eos"]} - {""} for step in inner[1:-1]]
            self.adds["sep"] = (between[0] and not last) or (len(between) == 2 and between[1])
            if self.adds["sep"]:
                names["sep"] = names["sep"] or names["eos"]

    def add_to(self, writer: Any) -> None:
        """Add the special tokens to a ``GGUFWriter``."""
        for kind, number in self.ids.items():
            if (add := getattr(writer, f"add_{kind}_token_id", None)) is not None:
                add(number)
        for kind, adds in self.adds.items():
            if (add := getattr(writer, f"add_add_{kind}_token", None)) is not None:
                add(adds)


def _text(entry: Any) -> str:
    """Return the content of a token in ``tokenizer_config.json``, an empty text if it is missing."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else ""


def _template_steps(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _special(step: Any) -> str:
    """Return the name of the special token at a step of a template; an empty text for another step."""
    token = step.get("SpecialToken") if isinstance(step, dict) else None
    name = token.get("id") if isinstance(token, dict) else None
    return name if isinstance(name, str) else ""


def _sequence(step: Any) -> Any:
    text = step.get("Sequence") if isinstance(step, dict) else None
    return text.get("id") if isinstance(text, dict) else None


def _processors(tokenizer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the post-processors of a tokenizer in order."""
    whole = tokenizer.get("post_processor")
    if isinstance(whole, dict):
        inner = whole.get("processors", [whole])
        yield from (one for one in _template_steps(inner) if isinstance(one, dict))


# ----------------------------------------------------------------------------------------------------------- merges
def merges_of_model(files: Files, notes: list[str]) -> list[str]:
    """Return the merges of a byte tokenizer from ``tokenizer.json`` or ``merges.txt``."""
    tokenizer = files.json(TOKENIZER)
    pairs = [] if tokenizer is None else merges_of(tokenizer)
    if pairs:
        return [" ".join(part.replace(" ", _ENCODED_BLANK) for part in pair) for pair in pairs]
    lines = files.text(_MERGES).split("\n")
    lines = [line.strip() for line in lines[lines[0].startswith("#") :]]
    split = [line.split() for line in lines if line]
    whole = [" ".join(parts) for parts in split if len(parts) == 2]
    if len(whole) < len(split):
        notes.append(f"{_MERGES} has {len(split) - len(whole)} lines that are not pairs, which are left out")
    return whole


# --------------------------------------------------------------------------------------------------- chat templates
def chat_template(files: Files, others: Sequence[str], notes: list[str]) -> str | list[dict[str, str]] | None:
    """Return a model's only chat template, or all its templates with their names, or None.

    Parameters
    ----------
    files : Files
    others : sequence of str
        Paths of further templates.
    notes : list of str
        Gains a line for each omission.
    """
    settings = files.json(SETTINGS) or {}
    template: Any = settings.get("chat_template")
    where = SETTINGS
    if "chat_template" not in settings:
        where = _TEMPLATE
        usual = files.text(_TEMPLATE)
        if usual and others:
            stems = {path.rpartition("/")[2].removesuffix(".jinja"): path for path in others}
            entries = [{"name": stem, "template": files.text(path)} for stem, path in stems.items()]
            return _distinct([{"name": "default", "template": usual}, *entries], notes)
        if usual:
            return usual
        where, template = _OLDER_TEMPLATE, (files.json(_OLDER_TEMPLATE) or {}).get("chat_template")
    if template is None or isinstance(template, str):
        return template
    entries = template if isinstance(template, list) else [template]
    sound = [entry for entry in entries if _is_template(entry)]
    if len(sound) < len(entries):
        notes.append(f"{where} has a chat_template that is {strict_json.kind_of(template)}, which is left out")
    return _distinct(sound, notes) or None


def _distinct(entries: list[dict[str, str]], notes: list[str]) -> list[dict[str, str]]:
    """Return the templates whose names stay distinct as keys of GGUF, which keep only letters and digits."""
    named: dict[str, dict[str, str]] = {}
    for entry in entries:
        key = re.sub("[^a-zA-Z0-9]", "_", entry["name"])
        if named.setdefault(key, entry) is not entry:
            notes.append(f"the chat template {quoted(entry['name'])} has the name of another one, and is left out")
    return list(named.values())


def _is_template(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "template"))


MODEL, TOKENIZER, SETTINGS = "tokenizer.model", "tokenizer.json", "tokenizer_config.json"
# More tokens than any model has; a list of their names would take a gigabyte.
_MAX_TOKENS = 1 << 24
# The blank of sentencepiece.
_BLANK = "\u2581"
# Token types of llama.cpp.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_ADDED, _PADDING = -1000.0, -10000.0
_LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>", re.DOTALL)
# Types of sentencepiece models.
_MODEL_TYPES = {1: "UNIGRAM", 2: "BPE", 3: "WORD", 4: "CHAR"}
_IGNORED = "llama.cpp ignores {} of added tokens: text beside them may get other ids"
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


# llama.cpp's expressions, each with its name there, and whether words that are tokens ignore the merges.
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
        Returns the content of a file by its name, or None if it is missing.
    """

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self.read = read
        self._parsed: dict[str, dict[str, Any] | None] = {}

    def json(self, name: str) -> dict[str, Any] | None:
        """Return the object in a JSON file, or None if the file is missing. Raises `FormatError`."""
        if name not in self._parsed:
            raw = self.read(name)
            self._parsed[name] = None if raw is None else strict_json.loads(raw, name)
        return self._parsed[name]

    def text(self, name: str) -> str:
        """Return the content of a text file, empty if it is missing. Raises `FormatError`."""
        try:
            return (self.read(name) or b"").decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{name} is not UTF-8 ({error.reason})", field=name, offset=error.start) from None


def vocab_of(files: Files, kinds: tuple[str, ...], count: int, notes: list[str]) -> Vocab:
    """Return the vocabulary of a model of `count` tokens, from the first tokenizer of these kinds that exists.

    `notes` gain a line for each omitted added token, and for each flag of added tokens that llama.cpp ignores. Raises
    `EncodeError` if no tokenizer exists, or llama.cpp does not have it.
    """
    if count > _MAX_TOKENS:
        raise refusal(f"config.json has vocab_size {count}, expected at most {_MAX_TOKENS}")
    tokenizer = files.json(TOKENIZER)
    for kind in kinds:
        if kind == "sentencepiece" and (raw := files.read(MODEL)) is not None:
            return _by_sentencepiece(raw, files, count, notes)
        if tokenizer is None or kind == "sentencepiece":
            continue
        model = tokenizer.get("model")
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
            what = model.get("type") if isinstance(model, dict) else model
            raise refusal(f"{TOKENIZER} has a tokenizer of type {spelt(what)}, expected BPE")
        for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(affix):
                raise refusal(f"{TOKENIZER} has the {affix} {spelt(model[affix])}, expected none")
        if (kind == "fallback") == bool(model.get("byte_fallback")):
            convert = _by_fallback if kind == "fallback" else _by_bytes
            return convert(tokenizer, files, count, notes)
    needed = f"{MODEL} or {TOKENIZER}" if len(kinds) > 1 else MODEL
    if tokenizer is not None and len(kinds) > 1:
        raise refusal(f"{TOKENIZER} falls back to bytes, which llama.cpp does not know of this architecture")
    raise refusal(f"there is no tokenizer beside the model, expected {needed}")


# ---------------------------------------------------------------------------------------------------- sentencepiece
def _by_sentencepiece(raw: bytes, files: Files, count: int, notes: list[str]) -> Vocab:
    try:
        from sentencepiece import SentencePieceProcessor  # noqa: PLC0415 - it may be missing
    except ImportError:
        what = f"{MODEL} needs sentencepiece: pip install '.[gguf]' in a checkout"
        raise MissingDependencyError(what, remedy=KEEP) from None
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(raw)
    except (RuntimeError, ValueError):  # includes UnicodeDecodeError, for a message that repeats a piece
        raise FormatError(f"{MODEL} is not a model of sentencepiece", field=MODEL) from None
    adds_space = _adds_dummy_prefix(raw)
    size = processor.GetPieceSize()
    if size > count:
        raise refusal(f"{MODEL} has {size} tokens, and the model {count}")
    tokens, types, scores = _padding(count)
    kinds = {_UNKNOWN: processor.IsUnknown, _CONTROL: processor.IsControl}
    kinds |= {_UNUSED: processor.IsUnused, _BYTE: processor.IsByte}
    for i in range(size):
        try:
            tokens[i], scores[i] = processor.IdToPiece(i), processor.GetScore(i)
        except UnicodeDecodeError as error:
            raise FormatError(f"piece {i} of {MODEL} is not UTF-8 ({error.reason})", field=MODEL) from None
        types[i] = next((type_ for type_, is_of in kinds.items() if is_of(i)), _NORMAL)
    added = dict(_added_tokens(files, _MAX_TOKENS, notes))
    for token, number in (files.json("added_tokens.json") or {}).items():
        added[_id(number, _MAX_TOKENS, "added_tokens.json")] = token, _USER_DEFINED
    for key, entry in _object((files.json(SETTINGS) or {}).get("added_tokens_decoder"), "added_tokens_decoder").items():
        at = _id(int(key) if key.isdecimal() and len(key) < 11 else key, _MAX_TOKENS, "added_tokens_decoder")
        added[at] = _added(entry, notes)
    for at, (token, type_) in added.items():
        if at < count:
            tokens[at], types[at], scores[at] = token, type_, _ADDED
        else:
            notes.append(f"the added token {quoted(token)} has the id {at}, and the model {count} tokens: left out")
    _check_bytes(tokens, MODEL)
    return Vocab("llama", "default", tokens, types, scores, None if adds_space else False)


def _check_bytes(tokens: list[str], name: str) -> None:
    """Raise `EncodeError` unless each byte has a token: a missing one would make llama.cpp end its process."""
    missing = {f"<0x{byte:02X}>" for byte in range(256)} - set(tokens)
    if missing:
        raise refusal(f"{name} has no token {min(missing)} to fall back to (byte_fallback)")


def _adds_dummy_prefix(raw: bytes) -> bool:
    """Whether a text gets a blank in front. Raises `EncodeError` for other settings than llama.cpp's."""
    specs = {2: b"", 3: b""}  # trainer_spec and normalizer_spec
    for number, content in fields(raw, MODEL):
        if number in specs and isinstance(content, bytes):
            specs[number] += content
    trainer, normalizer = (dict[int, Any](fields(spec, MODEL)) for spec in specs.values())
    rule = normalizer.get(1)
    rule = rule.decode(errors="replace") if isinstance(rule, bytes) else "none"
    for field, value, expected in (
        ("model_type", _MODEL_TYPES.get(trainer.get(3, 1)), ("BPE", "CHAR")),
        ("treat_whitespace_as_suffix", bool(trainer.get(24)), (False,)),
        ("normalization_rule_name", f"{rule!r} with a table" if normalizer.get(2) else "identity", ("identity",)),
        ("remove_extra_whitespaces", bool(normalizer.get(4, True)), (False,)),
        ("escape_whitespaces", bool(normalizer.get(5, True)), (True,)),
    ):
        if value not in expected:
            raise refusal(f"{MODEL} has the {field} {str(value)[:60]}, expected {expected[0]}")
    return bool(normalizer.get(3, True))


def _padding(count: int) -> tuple[list[str], list[int], list[float]]:
    """Return tokens, types and scores of a vocabulary of unused entries."""
    return [f"[PAD{i}]" for i in range(count)], [_UNUSED] * count, [_PADDING] * count


def _id(value: Any, count: int, where: str) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise refusal(f"{where} has the id {spelt(value)}, expected one below {count}")
    return value


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise FormatError(f"{name} of the tokenizer is {strict_json.kind_of(value)}", field=name, expected="an object")
    return value or {}


def _added(entry: Any, notes: list[str]) -> tuple[str, int]:
    """Return the text of an added token in llama.cpp, and its type."""
    content = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(content, str):
        raise FormatError("an added token of the tokenizer has no content", field="added_tokens", expected="a text")
    for flag in ("single_word", "lstrip", "rstrip"):
        if entry.get(flag) and _IGNORED.format(flag) not in notes:
            notes.append(_IGNORED.format(flag))
    if entry.get("special") or _LOOKS_SPECIAL.fullmatch(content):
        return content, _CONTROL
    return content.replace(_BLANK, " "), _USER_DEFINED


# --------------------------------------------------------------------------------------------------- tokenizer.json
def _added_tokens(files: Files, count: int, notes: list[str]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield the id, text and type of each added token: transformers 5 writes these only to ``tokenizer.json``."""
    entries = (files.json(TOKENIZER) or {}).get("added_tokens") or []
    if not isinstance(entries, list):
        raise FormatError("added_tokens of the tokenizer", field="added_tokens", expected="a list")
    for entry in entries:
        yield _id(entry.get("id") if isinstance(entry, dict) else None, count, TOKENIZER), _added(entry, notes)


def _entries(vocab: Any, files: Files, count: int, notes: list[str]) -> tuple[list[str], list[int], set[int]]:
    """Return tokens and types by id, padded, and the ids of added tokens."""
    tokens, types, _ = _padding(count)
    for token, i in _object(vocab, "vocab").items():
        at = _id(i, count, TOKENIZER)
        tokens[at], types[at] = token, _NORMAL
    added = dict(_added_tokens(files, count, notes))
    for at, (token, type_) in added.items():
        tokens[at], types[at] = token, type_
    return tokens, types, set(added)


def merges_of(tokenizer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the merges of a tokenizer in order. Raises `FormatError` unless each is a pair of texts."""
    pairs = []
    merges = tokenizer["model"].get("merges") or []
    for merge in merges if isinstance(merges, list) else [merges]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise FormatError("a merge of the tokenizer", field="merges", expected="a pair of texts")
        pairs.append((pair[0], pair[1]))
    return pairs


def _by_fallback(tokenizer: Mapping[str, Any], files: Files, count: int, notes: list[str]) -> Vocab:
    tokens, types, added = _entries(tokenizer["model"].get("vocab"), files, count, notes)
    ranks: dict[str, int] = {}
    for rank, (first, right) in enumerate(merges_of(tokenizer)):
        ranks.setdefault(first + right, rank)
    scores = []
    for i, (token, type_) in enumerate(zip(tokens, types, strict=True)):
        if _OF_BYTE.fullmatch(token):
            types[i] = _BYTE
        ranked = i not in added and type_ == _NORMAL and token in ranks
        scores.append(-ranks[token] - 1.0 if ranked else _PADDING if type_ == _UNUSED else _ADDED)
    _check_bytes(tokens, TOKENIZER)
    return Vocab("llama", "default", tokens, types, scores, _adds_space(tokenizer))


def _adds_space(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a text gets a blank in front. Raises `EncodeError` for any other change to texts."""
    steps = [*_steps(tokenizer.get("normalizer")), *_steps(tokenizer.get("pre_tokenizer"))]
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    prepended = {"type": "Prepend", "prepend": _BLANK}
    for step in steps:
        spaces = step.get("type") == "Metaspace" and step.get("replacement") == _BLANK
        if not spaces and step not in (prepended, replaced):
            raise refusal(f"{TOKENIZER} has the step {spelt(step.get('type'))}, which llama.cpp does not take")
    if all(step == prepended for step in steps):
        raise refusal(f"{TOKENIZER} has no step that replaces blanks by {_BLANK}")
    return prepended in steps or any(map(_scheme, steps))


def _scheme(step: Mapping[str, Any]) -> str:
    """Return when a step of type Metaspace puts a blank in front: "always", "first", or an empty text for never."""
    usual = "always" if step.get("add_prefix_space", True) else "never"
    scheme = step.get("prepend_scheme", usual) if step.get("type") == "Metaspace" else "never"
    return scheme if scheme in ("always", "first") else ""


def note_blanks(files: Files, notes: list[str]) -> None:
    """Add a note if llama.cpp puts a blank in front of a text, and ``tokenizer.json`` does not."""
    tokenizer = files.json(TOKENIZER) or {}
    added = tokenizer.get("added_tokens") or ()
    if _steps(tokenizer.get("normalizer")) and any(entry.get("normalized") for entry in added):
        notes.append(_IGNORED.format("normalized"))
    schemes = set(map(_scheme, _steps(tokenizer.get("pre_tokenizer")))) - {""}
    if schemes:
        texts = "begin with a blank or follow a special token" if "first" in schemes else "begin with a blank"
        notes.append(f"texts that {texts} get other ids than with {TOKENIZER}: llama.cpp puts another blank in front")


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


def _by_bytes(tokenizer: Mapping[str, Any], files: Files, count: int, notes: list[str]) -> Vocab:
    tokens, types, _ = _entries(tokenizer["model"].get("vocab"), files, count, notes)
    for step in _steps(tokenizer.get("normalizer")):
        if step.get("type") != "NFC":
            raise refusal(f"{TOKENIZER} has the normalizer {spelt(step.get('type'))}, expected none or NFC")
    merges_of(tokenizer)
    return Vocab("gpt2", _pre(tokenizer), tokens, types, None)


def _pre(tokenizer: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the pre-tokenizer. Raises `EncodeError` if llama.cpp does not have it."""
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
        raise refusal(f"the pre-tokenizer of {TOKENIZER} ({steps_here}) is none of the known ones ({supported})")
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
    """Raise `EncodeError` for a token that is not Unicode text, or that occurs twice."""
    if len(set(tokens)) < len(tokens):
        texts: set[str] = set()
        twice = next(token for token in tokens if token in texts or texts.add(token))  # type: ignore[func-returns-value]
        raise refusal(f"the tokenizer has the token {quoted(twice)} twice")
