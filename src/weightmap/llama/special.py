"""Special tokens, merges and chat templates of a model directory, as the package ``gguf`` writes them.

``gguf.SpecialVocab`` reads them from a folder. A model may lie in a store, and its files must have the digests that
`trust` lists, so they are read here, from the bytes that were checked; a test compares the result with that class.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightmap.core.bytes import strict_json
from weightmap.errors import quoted
from weightmap.llama.tokenizers import SETTINGS, TOKENIZER, merges_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightmap.llama.tokenizers import Files

_KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_TEMPLATE, _OLDER_TEMPLATE, _MERGES = "chat_template.jinja", "chat_template.json", "merges.txt"
# A blank in a merge, as tokenizers of bytes write it.
_ENCODED_BLANK = chr(ord(" ") + 256)


class Special:
    """Special tokens of a model: their ids, and which of them begin or end a text.

    Parameters
    ----------
    files : Files
    config : mapping
        ``config.json``.
    count : int
        Tokens of the model.
    notes : list of str
        Gains a line for everything that is left out.

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

    def _add_settings(
        self, settings: Mapping[str, Any], tokenizer: Mapping[str, Any], names: Mapping[str, str]
    ) -> None:
        """Add the ids of tokens that ``tokenizer_config.json`` names."""
        ids: dict[str, Any] = {}
        added = tokenizer.get("added_tokens")
        for entry in added if isinstance(added, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("content"), str):
                ids.setdefault(entry["content"], entry.get("id"))
        for kind, name in names.items():
            adds = settings.get(f"add_{kind}_token")
            if isinstance(adds, bool):
                self.adds[kind] = adds
            self._set(kind, ids.get(name) if name else None)

    def _set(self, kind: str, number: Any) -> None:
        """Set the id of a kind, unless it has one."""
        if type(number) is not int:
            return
        if 0 <= number < self._count:
            self.ids.setdefault(kind, number)
        else:
            shown = str(number)[:20]
            self._notes.append(f"the special token {kind} has the id {shown}, and the model {self._count} tokens")

    def _add_processor(self, processor: Mapping[str, Any], names: dict[str, str], *, stated: bool) -> None:
        """Add what a post-processor says; `stated` says that the names are those of ``tokenizer_config.json``."""
        if processor.get("type") == "RobertaProcessing":
            self.adds |= {"bos": True, "eos": True, "sep": True}
            for kind, usual in (("cls", "bos"), ("sep", "eos")):
                pair = processor.get(kind)
                first = pair[0] if isinstance(pair, list) and pair else names[usual]
                names[kind] = names[kind] or (first if isinstance(first, str) else "")
        elif processor.get("type") == "TemplateProcessing":
            self._add_template(processor, names, stated=stated)

    def _add_template(self, processor: Mapping[str, Any], names: dict[str, str], *, stated: bool) -> None:
        single, first, last = _steps(processor.get("single")), "", ""
        if len(single) > 1:
            first, last = _special(single[0]), _special(single[-1])
        if first:
            if not stated:
                names["bos"] = first
            self.adds["bos"] = first in (names["bos"], names["cls"])
            if not self.adds["bos"]:
                self._notes.append(f"the tokenizer begins a text with {quoted(first)}, which is not its bos token")
        if last:
            if stated and last != names["eos"]:  # a turn ends otherwise than a text
                other = next((kind for kind in ("eot", "eom") if kind not in names), None)
                if other is not None:
                    names[other] = names["eos"]
            names["eos"] = last
            self.adds["eos"] = True
        pair = _steps(processor.get("pair"))
        begins = 1 if first and pair and _special(pair[0]) == first else 0
        ends = len(pair) - 1 if last and pair and _special(pair[-1]) == last else len(pair)
        inner = pair[begins:ends]
        if len(inner) > 2 and _sequence(inner[0]) == "A" and _sequence(inner[-1]) == "B":
            between = [_special(step) in {names["sep"], names["eos"]} - {""} for step in inner[1:-1]]
            self.adds["sep"] = (between[0] and not last) or (len(between) == 2 and between[1])
            if self.adds["sep"]:
                names["sep"] = names["sep"] or names["eos"]

    def add_to(self, writer: Any) -> None:
        """Add them to a ``GGUFWriter``."""
        for kind, number in self.ids.items():
            if (add := getattr(writer, f"add_{kind}_token_id", None)) is not None:
                add(number)
        for kind, adds in self.adds.items():
            if (add := getattr(writer, f"add_add_{kind}_token", None)) is not None:
                add(adds)


def _text(entry: Any) -> str:
    """Return the content of a token in ``tokenizer_config.json``; empty where there is none."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else ""


def _steps(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _special(step: Any) -> str:
    """Return the name of the special token at a step of a template; empty where there is none."""
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
        yield from (one for one in _steps(inner) if isinstance(one, dict))


# ----------------------------------------------------------------------------------------------------------- merges
def merges_of_model(files: Files, notes: list[str]) -> list[str]:
    """Return the merges of a tokenizer of bytes, of ``tokenizer.json`` or ``merges.txt``."""
    tokenizer = files.json(TOKENIZER)
    pairs = [] if tokenizer is None else merges_of(tokenizer)
    if pairs:
        return [" ".join(part.replace(" ", _ENCODED_BLANK) for part in pair) for pair in pairs]
    lines = files.text(_MERGES).split("\n")
    lines = [line.strip() for line in lines[lines[0].startswith("#") :]]
    split = [line.split() for line in lines if line]
    whole = [" ".join(parts) for parts in split if len(parts) == 2]
    if len(whole) < len(split):
        notes.append(f"{_MERGES} has {len(split) - len(whole)} lines that are no pairs, which are left out")
    if not whole:
        notes.append("the tokenizer has no merges: llama.cpp splits every text into single bytes")
    return whole


# --------------------------------------------------------------------------------------------------- chat templates
def chat_template(files: Files, others: Sequence[str], notes: list[str]) -> str | list[dict[str, str]] | None:
    """Return the chat template of a model, or all with their names; None where there is none.

    Parameters
    ----------
    files : Files
    others : sequence of str
        Paths of the templates beside the usual one.
    notes : list of str
        Gains a line for everything that is left out.
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
    """Return the templates whose names differ as keys of GGUF, in which only letters and digits are kept."""
    named: dict[str, dict[str, str]] = {}
    for entry in entries:
        key = re.sub("[^a-zA-Z0-9]", "_", entry["name"])
        if named.setdefault(key, entry) is not entry:
            notes.append(f"the chat template {quoted(entry['name'])} has the name of another one, and is left out")
    return list(named.values())


def _is_template(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "template"))
