"""`as_llama` returns a handle on a model under llama.cpp's names; `recognised` tells whether it can."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.checkpoints.configuration import config_of, quantisation_of
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.open_source import folder_of, names_in, read_small, sibling_path
from weightmap.core.model.internals import check_index, name_of, parts_of
from weightmap.errors import EncodeError, FileChangedError, MissingDependencyError, Remedy, TensorFileError
from weightmap.huggingface.companion_files import TEMPLATES, companions
from weightmap.llama import tokenizers
from weightmap.llama.architectures import ARCHITECTURES, KEEP, SCRIPT, add_keys, architecture_of, refusal
from weightmap.llama.tensors import CACHE_SCALES, FILE_TYPES, Shape, Translated, check_complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from weightmap.core.model.file import TensorFile
    from weightmap.llama.architectures import Architecture, Config

# Descriptions in a model directory: the front matter of ``README.md``, and ``generation_config.json``.
#
# A model runs without either, so unreadable parts are left out, and a line in the report names them.

CARD, GENERATION = "README.md", "generation_config.json"
# Most bytes of front matter to search for keys, and most characters to parse as YAML, up to 0.1 ms each. In long front
# matter, the largest part is `model-index`, which is not parsed.
_MAX_SEARCHED, _MAX_PARSED = 1 << 20, 16 << 10
# The keys that the package gguf looks for, with and without "model_" in front.
_PREFIXED = {"name", "author", "version", "organization", "description", "finetune", "basename", "size_label"}
_PREFIXED |= {"url", "doi", "uuid", "repo_url"}
_KEYS = _PREFIXED | {f"model_{key}" for key in _PREFIXED} | {"model_creator", "model_type"}
_KEYS |= {"base_model", "base_models", "base_model_sources", "datasets", "dataset", "dataset_sources"}
_KEYS |= {"license", "license_name", "license_link", "tags", "pipeline_tag", "language", "languages"}
# Fields of gguf.Metadata that generation_config.json has too, and whether they are whole numbers.
_SAMPLING = {"top_k": True, "penalty_last_n": True, "mirostat": True, "top_p": False, "min_p": False}
_SAMPLING |= {"xtc_probability": False, "xtc_threshold": False, "temperature": False, "repetition_penalty": False}
_SAMPLING |= {"penalty_repeat": False, "mirostat_tau": False, "mirostat_eta": False}
_RENAMED = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}


def card_of(files: tokenizers.Files, notes: list[str]) -> dict[str, Any]:
    """Return the fields of a model card that have GGUF keys: texts, and lists of texts or of objects of texts."""
    lines = _front_matter((files.read(CARD) or b"")[:_MAX_SEARCHED])
    text = "\n".join(_blocks(lines))
    try:
        fields = _parsed(text) if text else {}
    except Exception as error:  # noqa: BLE001 - any of yaml's, which documents none; RecursionError among them
        notes.append(f"the front matter of {CARD} is left out: {' '.join(str(error).split())[:200]}")
        return {}
    return {key: plain for key, value in fields.items() if (plain := _plain(value))}


def _front_matter(raw: bytes) -> list[str]:
    """Return the lines between a first and a second line of three dashes; none if the file begins otherwise."""
    lines = raw.decode(errors="replace").splitlines()
    if lines[:1] != ["---"] or "---" not in lines[1:]:
        return []
    return lines[1 : lines.index("---", 1)]


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of keys that GGUF has a place for: the rest need not be parsed."""
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
            if self.check_event(yaml.AliasEvent):  # ten lines of aliases can make a billion values
                raise ValueError("it has an alias of YAML")
            return super().compose_node(parent, index)

    fields = yaml.load(text, Loader)  # noqa: S506 - a safe loader
    if not isinstance(fields, dict):
        raise ValueError(f"it is {strict_json.kind_of(fields)}, expected an object")  # noqa: TRY004 - of our own
    return fields


def _plain(value: Any) -> Any:
    """Return a text, or a list of texts and objects of texts; None for anything else."""
    if isinstance(value, str):
        return None if value in ("", "~", "null") else value
    if not isinstance(value, list):
        return None
    return [one for one in map(_item, value) if one]


def _item(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: text for key, text in value.items() if isinstance(text, str)}
    return value if isinstance(value, str) else None


def sampling_of(files: tokenizers.Files, notes: list[str]) -> Mapping[str, Any]:
    """Return the settings for sampling, by the fields of ``gguf.Metadata``."""
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
            sampling[f"sampling_{_RENAMED.get(key, key)}"] = value
        else:
            notes.append(f"{GENERATION} has the {key} {str(value)[:40]}, which is left out")
    return sampling


# Files of directories without a config.json: their meaning, and a remedy.
_OTHERS = {
    "adapter_config.json": "an adapter such as LoRA, which convert_lora_to_gguf.py of llama.cpp converts",
    "params.json": "a model in its maker's own form, which convert_hf_to_gguf.py --mistral-format of llama.cpp may "
    "convert, as it does the form of Hugging Face",
}
# A longer text is not a name, and gguf would search it for parts.
_MAX_NAME = 1000
# The number of layers for which llama.cpp has a special rule.
_LAYERS_OF_70B = 80


def recognised(file: TensorFile, *, strictly: bool, weights: bool) -> Architecture | None:
    """Return the architecture of a model from the configuration beside it; None for an unknown one.

    Raises `EncodeError` for a quantised checkpoint without ``weights=True`` and, `strictly`, for an unknown one.
    """
    source, _, options = parts_of(file)
    config, _ = config_of(source, options.config, options.trust)
    _, architecture = architecture_of(config)
    if architecture is None and strictly:
        raise EncodeError(unknown(file), expected=f"one of {', '.join(ARCHITECTURES)}", remedy=KEEP).located(
            path=source.name
        )
    settings = None if weights or architecture is None else quantisation_of(file)[0]
    if settings is not None:
        raise EncodeError(
            f"this is a quantised checkpoint: {os.path.basename(settings.path)} has {settings.where}",
            remedy=Remedy("{} converts its parameters", "weights", switch=True, python="f.weights"),
        ).located(path=source.name)
    return architecture


def unknown(file: TensorFile) -> str:
    """Return why `recognised` does not know a model, and which program of llama.cpp may convert it."""
    source, _, options = parts_of(file)
    config, path = config_of(source, options.config, options.trust)
    name, _ = architecture_of(config)
    model, file_name = source.absolute, os.path.basename(path)
    if name:
        return f"{file_name} has the architecture {quoted(name)}, which is not known under llama.cpp's names; {SCRIPT}"
    there = names_in(folder_of(model), (file_name, *_OTHERS)) if model is not None else ()
    if config or file_name in there:
        return f"{file_name} has no architecture (architectures, one name) to choose llama.cpp's names by"
    other = next((f"{name} says that this is {what}" for name, what in _OTHERS.items() if name in there), "")
    missing = "there is no config.json beside the model, whose architecture decides llama.cpp's names"
    return f"{missing}; {other}" if other else missing


def as_llama(
    file: TensorFile,
    file_type: str | None,
    *,
    with_keys: bool = True,
    plain: Callable[[], TensorFile] | None = None,
) -> tuple[TensorFile, list[str]]:
    """Return a handle on the same files under llama.cpp's names, and lines about oddities.

    Parameters
    ----------
    file : TensorFile
        A model of one of the `ARCHITECTURES`.
    file_type : str or None
        The scheme or mixture for quantising matrices, or their new dtype; None keeps their dtypes.
    with_keys : bool
        Whether the handle has the key-values, including the tokenizer; only a model's first part has them.
    plain : callable, optional
        Returns the decoded parameters of a quantised checkpoint, for layers where not all experts can be repacked.

    Raises
    ------
    EncodeError
        When llama.cpp could not run the model correctly: see `architectures`, `tokenizers` and `tensors`.
    FileChangedError
        When the configuration has lost the architecture that `recognised` found.
    FormatError
        When a file of the tokenizer is damaged.
    MissingDependencyError
        When the package gguf is missing, or sentencepiece for a ``tokenizer.model``.
    """
    gguf = _gguf()
    check_index(file)
    source, content, options = parts_of(file)
    values, path = config_of(source, options.config, options.trust)
    _, architecture = architecture_of(values)
    if architecture is None:  # `recognised` found one
        raise FileChangedError("the file was changed after the model was opened", path=path)
    config = architecture.config(values)
    try:
        decoded = None if plain is None else lambda: parts_of(plain())[1].table
        table = Translated(content.table, architecture, config, gguf, decoded)
        table.belongs_to(source, file.format)
        table.check_types(file_type)
        metadata: dict[str, Any] = {}
        notes: list[str] = []
        if with_keys:
            cache = [name for name in content.table.names if name.endswith(CACHE_SCALES)]
            if cache:
                notes.append(f"llama.cpp has no place for {counted(len(cache), 'scale')} such as {quoted(cache[0])}")
            model = source.absolute or ""
            unused = dict.fromkeys(companions(folder_of(model)) if model else ())
            templates = [name for name in unused if name.startswith(f"{TEMPLATES}/")]

            def read(name: str) -> bytes | None:
                unused.pop(name, None)
                return read_small(sibling_path(model, name), options.trust, model) if model else None

            files = tokenizers.Files(read)
            writer = gguf.GGUFWriter(None, architecture.name)
            writer.add_type(gguf.GGUFType.MODEL)
            _add_about(gguf, writer, table, config, files, model, notes)
            _add_values(gguf, writer, architecture, config, table, file_type)
            window = values.get("sliding_window", architecture.defaults.get("sliding_window"))
            if architecture.windowed and type(window) is int and window < config.count("max_position_embeddings"):
                by = "config.json has" if "sliding_window" in values else "by transformers' default, the model has"
                notes.append(f"{by} the sliding_window {str(window)[:20]}: llama.cpp attends to all tokens")
            _add_tokenizer(writer, architecture, config, files, templates, notes)
            unused.pop("config.json", None)
            notes += [f"GGUF has no place for {', '.join(map(quoted, unused))}"] if unused else []
            metadata = {key: _typed(gguf, value) for key, value in writer.kv_data[0].items()}
    except TensorFileError as error:
        raise error.located(path=source.name) from None
    result = content.varied(
        table=table, load_metadata=lambda: metadata, has_metadata=True, vocab=None, config=None, tokenizer=None
    )
    return type(file)(source, file.format, result, options), notes


def without_keys(file: TensorFile) -> TensorFile:
    """Return a handle from `as_llama` without its key-values, which only the first part of a model has."""
    source, content, options = parts_of(file)
    return type(file)(source, file.format, content.varied(load_metadata=dict), options)


def check_complete_of(file: TensorFile, names: set[str]) -> None:
    """Raise `EncodeError` if a model under llama.cpp's names would lack a needed tensor with only these names."""
    table: Any = parts_of(file)[1].table
    try:
        check_complete(names, table.expected)
        lost = next((name for name in names if name not in table.expected and not name.endswith(".scale")), None)
        if lost is not None:
            raise refusal(f"a tensor {quoted(lost)} has no place in llama.cpp")
    except TensorFileError as error:
        raise error.located(path=name_of(file)) from None


def shape_of(metadata: Mapping[str, Any], names: Any) -> Shape | None:
    """Return the `Shape` of a model under llama.cpp's names for mixtures; None for another model."""
    name = metadata.get("general.architecture")

    def number(key: str) -> int:
        value = metadata.get(f"{name}.{key}", 0)
        return int(value) if isinstance(value, (int, np.integer)) else 0

    layers, heads, kv_heads = number("block_count"), number("attention.head_count"), number("attention.head_count_kv")
    if not isinstance(name, str) or not layers:
        return None
    large = layers == _LAYERS_OF_70B and (name == "qwen2" or (name == "llama" and heads != kv_heads))
    return Shape(layers, number("expert_count"), "output.weight" not in names, large)


def _gguf() -> Any:
    try:
        import gguf  # noqa: PLC0415 - it may be missing
    except ImportError:
        what = "llama.cpp's names need gguf: pip install '.[gguf]' in a checkout"
        raise MissingDependencyError(what, remedy=KEEP) from None
    return gguf


# ------------------------------------------------------------------------------------------------------ key-values
def _add_values(
    gguf: Any, writer: Any, architecture: Architecture, config: Config, table: Translated, file_type: str | None
) -> None:
    """Add the keys of the architecture, and the keys for types of tensors."""
    add_keys(writer, architecture, config, gguf)
    stated = FILE_TYPES.get(file_type or _usual_type(table))
    if stated is not None:
        writer.add_file_type(stated)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(
    writer: Any,
    architecture: Architecture,
    config: Config,
    files: tokenizers.Files,
    templates: list[str],
    notes: list[str],
) -> None:
    """Add the tokenizer, its special tokens and its chat templates."""
    count = config.count("vocab_size")
    vocab = tokenizers.vocab_of(files, architecture.tokenizers, count, notes)
    tokenizers.check_text(vocab.tokens)
    tokenizers.add_vocab(writer, vocab)
    if vocab.scores is None:
        if merges := tokenizers.merges_of_model(files, notes):
            writer.add_token_merges(merges)
        else:
            notes.append("the tokenizer has no merges: llama.cpp does not load such a file")
    tokenizers.Special(files, config.values, count, notes).add_to(writer)
    if (template := tokenizers.chat_template(files, templates, notes)) is not None:
        writer.add_chat_template(template)
    adds = (files.json(tokenizers.SETTINGS) or {}).get("add_prefix_space") if architecture.permuted else None
    adds = vocab.adds_space if adds is None else adds
    if architecture.shifted and vocab.scores is not None:
        adds = False
    if isinstance(adds, bool) and not (adds and vocab.adds_space):
        writer.add_add_space_prefix(adds)
    if vocab.scores is not None and adds is not False:
        tokenizers.note_blanks(files, notes)


def _add_about(
    gguf: Any, writer: Any, table: Translated, config: Config, files: tokenizers.Files, model: str, notes: list[str]
) -> None:
    """Add general.*, including the size label."""
    for name, row in zip(table.names, table.rows(), strict=True):
        writer.add_tensor_info(name, row.shape, np.float32, row.nbytes)
    total, shared, expert, experts = writer.get_total_parameter_count()
    folder = _name_of_folder(model)
    origin = config.values.get("_name_or_path")
    origin = {"_name_or_path": origin} if isinstance(origin, str) and len(origin) < _MAX_NAME else None
    try:
        card = card_of(files, notes)
        about = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, origin, Path(folder), total)
    except Exception as error:  # noqa: BLE001 - it checks nothing: any of Python's
        notes.append(f"the description of the model is left out ({type(error).__name__} of gguf)")
        about = gguf.Metadata()
    for key, value in sampling_of(files, notes).items():
        setattr(about, key, value)
    about.size_label = about.size_label or gguf.size_label(total, shared, expert, experts)
    about.name = about.name or folder
    about.set_gguf_meta_model(writer)


def _name_of_folder(model: str) -> str:
    """Return the name of a model's folder as text."""
    name = os.path.basename(folder_of(model).rstrip("/")) or os.path.basename(os.getcwd())
    return name.encode(errors="replace").decode() if name not in ("", ".", "..") else "model"


def _usual_type(table: Translated) -> str:
    """Return the type that most bytes of matrices have."""
    sizes: dict[str, int] = {}
    for row in table.rows():
        if len(row.shape) > 1:
            sizes[row.dtype.name] = sizes.get(row.dtype.name, 0) + row.nbytes
    return max(sizes, key=sizes.__getitem__, default="float32")


def _typed(gguf: Any, value: Any) -> Any:
    """Return a value of a ``GGUFWriter`` as a text, or as a numpy scalar or array, which have a type."""
    kinds = gguf.GGUFValueType
    if value.type == kinds.STRING:
        return str(value.value)
    if value.type != kinds.ARRAY:
        dtype = {kinds.BOOL: "bool", kinds.FLOAT32: "float32", kinds.FLOAT64: "float64"}.get(value.type)
        return np.dtype(dtype or value.type.name.lower()).type(value.value)
    items = list(value.value)
    if items and isinstance(items[0], (bool, int, float, np.number)):
        return np.array(items, np.float32 if isinstance(items[0], float) else np.int32)
    return [item.decode() if isinstance(item, bytes) else str(item) for item in items]
