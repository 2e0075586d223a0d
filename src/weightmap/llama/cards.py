"""What a model directory says about itself: the front matter of ``README.md``, and ``generation_config.json``.

A model runs without either, so what cannot be read is left out, and named in a line of the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.bytes import strict_json
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weightmap.llama.tokenizers import Files

CARD, GENERATION = "README.md", "generation_config.json"
# Bytes of front matter that are searched for keys, and characters that are parsed as YAML, which take up to 0.1 ms
# each. The largest part of long front matter is `model-index`, which is not parsed.
_MAX_SEARCHED, _MAX_PARSED = 1 << 20, 16 << 10
# The keys that the package gguf looks for, with and without "model_" in front.
_PREFIXED = {"name", "author", "version", "organization", "description", "finetune", "basename", "size_label"}
_PREFIXED |= {"url", "doi", "uuid", "repo_url"}
_KEYS = _PREFIXED | {f"model_{key}" for key in _PREFIXED} | {"model_creator", "model_type"}
_KEYS |= {"base_model", "base_models", "base_model_sources", "datasets", "dataset", "dataset_sources"}
_KEYS |= {"license", "license_name", "license_link", "tags", "pipeline_tag", "language", "languages"}
# Fields of gguf.Metadata by those of generation_config.json, and whether they are whole numbers.
_SAMPLING = {"top_k": True, "penalty_last_n": True, "mirostat": True, "top_p": False, "min_p": False}
_SAMPLING |= {"xtc_probability": False, "xtc_threshold": False, "temperature": False, "penalty_repeat": False}
_SAMPLING |= {"mirostat_tau": False, "mirostat_eta": False}


def card_of(files: Files, notes: list[str]) -> dict[str, Any]:
    """Return the fields of a model card that GGUF has keys for: texts, and lists of texts and of objects of texts."""
    lines = _front_matter((files.read(CARD) or b"")[:_MAX_SEARCHED])
    text = "\n".join(_blocks(lines))
    try:
        fields = _parsed(text) if text else {}
    except Exception as error:  # noqa: BLE001 - any of yaml's, which documents none; RecursionError among them
        notes.append(f"the front matter of {CARD} is left out: {' '.join(str(error).split())[:200]}")
        return {}
    return {key: plain for key, value in fields.items() if (plain := _plain(value))}


def _front_matter(raw: bytes) -> list[str]:
    """Return the lines between the two lines of three dashes that a file begins with; none where it does not."""
    lines = raw.decode(errors="replace").splitlines()
    if lines[:1] != ["---"] or "---" not in lines[1:]:
        return []
    return lines[1 : lines.index("---", 1)]


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the keys that GGUF has a place for; those of other keys would be parsed for nothing."""
    relevant = False
    for line in lines:
        if line[:1] not in ("", " ", "\t", "-", "#"):
            relevant = line.partition(":")[0].strip(" '\"") in _KEYS
        if relevant:
            yield line.replace("\t", "  ")


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > _MAX_PARSED:
        raise ValueError(f"it has {len(text)} characters for keys of GGUF, expected at most {_MAX_PARSED}")
    import yaml  # noqa: PLC0415 - of the package gguf, which may be missing

    class Loader(yaml.BaseLoader):  # type: ignore[misc, name-defined, unused-ignore] # every scalar is a text
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # ten lines of them make a billion values
                raise ValueError("it has an alias of YAML")
            return super().compose_node(parent, index)

    fields = yaml.load(text, Loader)  # noqa: S506 - a safe loader
    if not isinstance(fields, dict):
        raise ValueError(f"it is {strict_json.kind_of(fields)}, expected an object")  # noqa: TRY004 - of our own
    return fields


def _plain(value: Any) -> Any:
    """Return a text, a list of texts and objects of texts, or None for anything else."""
    if isinstance(value, str):
        return None if value in ("", "~", "null") else value
    if not isinstance(value, list):
        return None
    return [one for one in map(_item, value) if one]


def _item(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: text for key, text in value.items() if isinstance(text, str)}
    return value if isinstance(value, str) else None


def sampling_of(files: Files, notes: list[str]) -> Mapping[str, Any]:
    """Return how texts are to be sampled, by the fields of ``gguf.Metadata``."""
    try:
        settings = files.json(GENERATION) or {}
    except TensorFileError as error:
        notes.append(f"{GENERATION} is left out: {error.args[0] if error.args else error}"[:300])
        return {}
    sampling: dict[str, Any] = {}
    for key, whole in _SAMPLING.items():
        value, limit = settings.get(key), np.iinfo(np.int32).max if whole else float(np.finfo(np.float32).max)
        if value is None:
            continue
        if type(value) in ((int,) if whole else (int, float)) and -limit <= value <= limit:
            sampling["sampling_temp" if key == "temperature" else f"sampling_{key}"] = value
        else:
            notes.append(f"{GENERATION} has the {key} {str(value)[:40]}, which is left out")
    return sampling
