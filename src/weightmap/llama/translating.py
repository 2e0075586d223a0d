"""A handle on a model under llama.cpp's names: `as_llama`; and whether there can be one: `known`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import EncodeError, FormatError, MissingDependencyError, Remedy, TensorFileError, quoted
from weightmap.io.beside import read_small
from weightmap.io.open_source import beside, folder_of
from weightmap.llama.architectures import ARCHITECTURES, KEEP, add_keys, architecture_of, refusal
from weightmap.llama.mixtures import Shape
from weightmap.llama.tensors import Translated, check_complete
from weightmap.llama.tokenizers import FILES, TOKENIZER, Files, add_vocab, check_text, vocab_of
from weightmap.model.along import chat_templates
from weightmap.model.parts import check_index, name_of, parts_of
from weightmap.model.weights import config_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightmap.llama.architectures import Architecture, Config
    from weightmap.model.file import TensorFile

# Files that say what a model is, for the package gguf.
_ABOUT = ("config.json", "generation_config.json", "README.md")
# What `general.file_type` says of models whose types are not these of a scheme's name.
_FILE_TYPES = {
    "float32": "ALL_F32",
    "float16": "MOSTLY_F16",
    "bfloat16": "MOSTLY_BF16",
    "q3_k": "MOSTLY_Q3_K_S",
    "q4_k": "MOSTLY_Q4_K_S",
    "q5_k": "MOSTLY_Q5_K_S",
    "mxfp4": "MOSTLY_MXFP4_MOE",
}
# About pairs of texts, which classifiers take: of no use to these models.
_OF_PAIRS = "TemplateProcessing<pair>"
# The layers of a model for which llama.cpp has a rule of its own.
_LAYERS_OF_70B = 80


def known(file: TensorFile, *, strictly: bool, weights: bool) -> Architecture | None:
    """Return the architecture of a model by the configuration beside it; None for one that is not known.

    Raises `EncodeError` for a quantised checkpoint without ``weights=True`` and, `strictly`, for an unknown one.
    """
    source, _, options = parts_of(file)
    config, path = config_of(source, options.config, options.trust)
    name, architecture = architecture_of(config)
    if architecture is not None:
        if not weights and any(config.get(key) is not None for key in ("quantization_config", "compression_config")):
            raise EncodeError(
                f"this is a quantised checkpoint: {os.path.basename(path)} has quantization_config",
                remedy=Remedy("weights=True converts its parameters, {} keeps the stored tensors", "names", "keep"),
            ).located(path=source.name)
        return architecture
    if strictly:
        where = os.path.basename(path)
        what = f"{where} has the architecture {quoted(name)}, and not one that" if name else f"{where} has none that"
        raise EncodeError(
            f"{what} is known under llama.cpp's names",
            expected=f"one of {', '.join(ARCHITECTURES)}",
            remedy=KEEP,
        ).located(path=source.name)
    return None


def as_llama(
    file: TensorFile,
    file_type: str | None,
    *,
    with_keys: bool = True,
    plain: Callable[[], TensorFile] | None = None,
) -> tuple[TensorFile, list[str]]:
    """Return a handle on the same files under llama.cpp's names, and lines about what is odd.

    Parameters
    ----------
    file : TensorFile
        A model of one of the `ARCHITECTURES`.
    file_type : str or None
        The scheme or mixture that matrices are quantised to, or their new dtype; None to keep theirs.
    with_keys : bool
        Whether the handle has the key-values, tokenizer included; the parts of a model but the first have none.
    plain : callable, optional
        Of a quantised checkpoint: returns its parameters decoded, for experts that are not all repacked.

    Raises
    ------
    EncodeError
        For a model that llama.cpp could not run rightly: see `architectures`, `tokenizers` and `tensors`.
    FormatError
        For a damaged file of its tokenizer.
    MissingDependencyError
        Where the package gguf is missing, or sentencepiece for a ``tokenizer.model``.
    """
    gguf = _gguf()
    check_index(file)
    source, content, options = parts_of(file)
    values, _ = config_of(source, options.config, options.trust)
    _, architecture = architecture_of(values)
    assert architecture is not None  # noqa: S101 - see `known`
    config = architecture.config(values)
    try:
        decoded = None if plain is None else lambda: parts_of(plain())[1].table
        table = Translated(content.table, architecture, config, gguf, decoded)
        table.belongs_to(source, file.format)
        metadata: dict[str, Any] = {}
        notes: list[str] = []
        if with_keys:
            with _warnings(notes), _staged(source.absolute, options.trust) as (files, folder):
                metadata = _key_values(gguf, architecture, config, table, files, folder, file_type)
    except TensorFileError as error:
        raise error.located(path=source.name) from None
    made = content.varied(
        table=table, load_metadata=lambda: metadata, has_metadata=True, vocab=None, config=None, tokenizer=None
    )
    return type(file)(source, file.format, made, options), notes


def check_complete_of(file: TensorFile, names: set[str]) -> None:
    """Raise `EncodeError` if a model under llama.cpp's names would lack one of its tensors under these names alone."""
    table = parts_of(file)[1].table
    try:
        check_complete(names, table.wanted)
        lost = next((name for name in names if name not in table.wanted and not name.endswith(".scale")), None)
        if lost is not None:
            raise refusal(f"a tensor {quoted(lost)} has no place in llama.cpp")
    except TensorFileError as error:
        raise error.located(path=name_of(file)) from None


def shape_of(metadata: Mapping[str, Any], names: Any) -> Shape | None:
    """Return what a mixture depends on, of a model under llama.cpp's names; None for another one."""
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
        raise MissingDependencyError(
            "gguf is needed for llama.cpp's names: pip install 'weightmap[gguf]'", remedy=KEEP
        ) from None
    return gguf


# ------------------------------------------------------------------------------------------------------ key-values
def _key_values(
    gguf: Any,
    architecture: Architecture,
    config: Config,
    table: Translated,
    files: Files,
    folder: Path,
    file_type: str | None,
) -> dict[str, Any]:
    """Return the metadata of a model, of the types that llama.cpp requires."""
    writer = gguf.GGUFWriter(None, architecture.name)
    writer.add_type(gguf.GGUFType.MODEL)
    _add_about(gguf, writer, table, folder)
    add_keys(writer, architecture, config, gguf)
    kind = file_type or _usual_type(table)
    stated = getattr(gguf.LlamaFileType, _FILE_TYPES.get(kind, f"MOSTLY_{kind.upper()}"), None)
    if stated is not None:
        writer.add_file_type(stated)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    count = config.count("vocab_size")
    vocab = vocab_of(files, architecture.tokenizers, count)
    check_text(vocab.tokens)
    add_vocab(writer, vocab)
    with _readable("the tokenizer"):
        special = gguf.SpecialVocab(folder, load_merges=vocab.scores is None, n_vocab=count)
        special.add_to_gguf(writer, quiet=True)
    adds = (files.json("tokenizer_config.json") or {}).get("add_prefix_space") if architecture.permuted else None
    adds = vocab.adds_space if adds is None else adds
    if architecture.shifted and vocab.scores is not None:
        adds = False
    if isinstance(adds, bool) and not (adds and vocab.adds_space):
        writer.add_add_space_prefix(adds)
    return {key: _typed(gguf, value) for key, value in writer.kv_data[0].items()}


def _add_about(gguf: Any, writer: Any, table: Translated, folder: Path) -> None:
    """Add general.*, the size label among them."""
    for name, row in zip(table.names, table.rows(), strict=True):
        writer.add_tensor_info(name, row.shape, np.float32, row.nbytes)
    total, shared, expert, experts = writer.get_total_parameter_count()
    with _readable("what is said about the model"):
        about = gguf.Metadata.load(None, folder, None, total)
        about.size_label = about.size_label or gguf.size_label(total, shared, expert, experts)
        about.name = about.name or folder.name
        about.set_gguf_meta_model(writer)


def _usual_type(table: Translated) -> str:
    """Return the type of most bytes of matrices."""
    sizes: dict[str, int] = {}
    for row in table.rows():
        if len(row.shape) > 1:
            sizes[row.dtype.name] = sizes.get(row.dtype.name, 0) + row.nbytes
    return max(sizes, key=sizes.__getitem__, default="float32")


def _typed(gguf: Any, value: Any) -> Any:
    """Return a value of a ``GGUFWriter`` as a numpy scalar or array, or text, which say its type."""
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


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    """Turn what the package gguf raises for files that it does not expect into an error of ours."""
    try:
        yield
    except TensorFileError:
        raise
    except Exception as error:  # noqa: BLE001 - it checks nothing: any of Python's, and of yaml
        text = " ".join(str(error).split())[:200]
        raise FormatError(f"{what} cannot be read ({type(error).__name__}: {text})", field=TOKENIZER) from None


@contextlib.contextmanager
def _warnings(notes: list[str]) -> Iterator[None]:
    """Collect what the package gguf logs."""
    import logging  # noqa: PLC0415 - imported during a fork, its hooks come too late; gguf imports it

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = f"gguf: {' '.join(record.getMessage().split())[:300]}"
            if line not in notes and _OF_PAIRS not in line:
                notes.append(line)

    loggers = [logging.getLogger(name) for name in ("gguf", "metadata")]
    collector, before = Collector(logging.WARNING), [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(collector)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagates in zip(loggers, before, strict=True):
            logger.removeHandler(collector)
            logger.propagate = propagates


@contextlib.contextmanager
def _staged(model: str, trust: Any) -> Iterator[tuple[Files, Path]]:
    """Yield the small files beside a model, and a folder with copies: the package gguf reads from a folder only.

    So they are read as any file is: from a store too, with the digest that `trust` has, and never a pipe.
    """
    import tempfile  # noqa: PLC0415 - 3 ms, which other conversions spare

    with tempfile.TemporaryDirectory(prefix="weightmap-") as scratch:
        name = os.path.basename(folder_of(model).rstrip("/")) or os.path.basename(os.getcwd())
        folder = Path(scratch) / (name if name not in ("", ".", "..") else "model")
        folder.mkdir()
        raws: dict[str, bytes | None] = {}
        for name in (*FILES, *_ABOUT, *chat_templates(folder_of(model))):
            raws[name] = raw = read_small(beside(model, name), trust)
            if raw is not None:
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(raw)
        yield Files(raws.get), folder
