"""The configuration beside a model, and what it and the model's header say about how it is quantised."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weightmap._messages import quoted
from weightmap.checkpoints.methods import FLOATS, Settings, as_settings
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.open_source import read_small, sibling_path
from weightmap.core.model.internals import parts_of
from weightmap.errors import TensorFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.core.bytes.source import Source

_CONFIG = "config.json"
# Keys of a configuration, and files beside it, that say how a model is quantised.
_KEYS, _MLX = ("quantization_config", "compression_config"), "quantization"
_MODELOPT, _GPTQ, _AWQ = "hf_quant_config.json", "quantize_config.json", "quant_config.json"
SIDECARS = (_MODELOPT, _GPTQ, _AWQ)
# Keys of an AWQ configuration without the name of its method.
_AWQ_KEYS = {"w_bit", "q_group_size", "zero_point"}
_MAX_DEPTH = 8
# In the header of safetensors: the key of ComfyUI, and how torchao names the class of a tensor.
_COMFY_TENSORS = ("scaled_fp8", ".comfy_quant", ".scale_weight")
_COMFY, _TORCHAO = "_quantization_metadata", re.compile(r'"_type"\s*:\s*"(?!(?:Tensor|Parameter)")([^"]{1,80})"')


def config_of(source: Source, config: Any, trust: Any = None) -> tuple[dict[str, Any], str]:
    """Return the configuration of a model, empty where it has none, and where it is from."""
    path = source.absolute
    if isinstance(config, Mapping):
        return dict(config), "config"
    if config is not None:
        values = _json(os.fspath(config))
        if values is None:
            raise FileNotFoundError(2, os.strerror(2), os.fspath(config))
        return values, os.fspath(config)
    if path is None:
        return {}, _CONFIG
    return _json(sibling_path(path, _CONFIG), trust) or {}, sibling_path(path, _CONFIG)


def type_of(config: Mapping[str, Any]) -> str | None:
    """Return the type of the model's parameters, where the configuration says it."""
    inner = config.get("text_config")
    for values in (config, inner if isinstance(inner, dict) else {}):
        for key in ("dtype", "torch_dtype"):
            name = values.get(key)
            if isinstance(name, str) and name.removeprefix("torch.") in FLOATS:
                return name.removeprefix("torch.")
    return None


def quantisation_of(file: Any) -> tuple[Settings | None, dict[str, Any]]:
    """Return how a checkpoint is quantised, None where nothing says that it is, and the configuration beside it.

    The first of these counts: `config.json`, at its top, else in a sub-configuration such as ``text_config``; the files
    that older tools wrote beside it; the header of a safetensors file.

    Raises
    ------
    FormatError
        For a configuration that is damaged.
    UnsupportedError
        For a scheme that is recognised and not decoded: it names the scheme and where it was read.
    """
    source, _, options = parts_of(file)
    config, path = config_of(source, options.config, options.trust)
    settings = _stated(config, path)
    if settings is None and options.config is None and source.absolute is not None:
        settings = _sidecar(source.absolute, options.trust)
    if settings is None:
        settings = _of_file(file)
    return settings, config


def without_quantisation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without what it says about how the model is quantised, wherever that is."""
    return {
        key: without_quantisation(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in _KEYS and not (key == _MLX and _is_mlx(value))
    }


def _is_mlx(value: Any) -> bool:
    return isinstance(value, Mapping) and not {"group_size", "bits", "mode"}.isdisjoint(value)


def _json(path: str, trust: Any = None) -> dict[str, Any] | None:
    raw = read_small(path, trust)
    try:
        return None if raw is None else strict_json.loads(raw, os.path.basename(path))
    except TensorFileError as error:
        raise error.located(path=path) from None


def _sections(config: Mapping[str, Any], where: str = "", depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a configuration and its sub-configurations, with the beginning of the names of their keys."""
    yield where, config
    if depth < _MAX_DEPTH:
        for key, value in config.items():
            if isinstance(value, Mapping) and key not in _KEYS:
                yield from _sections(value, f"{where}{key}.", depth + 1)


def _stated(config: Mapping[str, Any], path: str) -> Settings | None:
    """Return what a configuration says; that of its top counts before those of sub-configurations."""
    sections = list(_sections(config))
    every = [
        (f"{where}{key}", values[key], values)
        for where, values in sections
        for key in _KEYS
        if values.get(key) is not None
    ]
    if not every:
        for where, values in sections:
            if _is_mlx(values.get(_MLX)):
                return _mlx(values[_MLX], path, f"{where}{_MLX}")
        return None
    where, value, values = every[0]
    if "." in where and any(other != value for _, other, _ in every):
        names = " and ".join(name for name, _, _ in every)
        raise UnsupportedError(f"{names} of sub-configurations differ", path=path, field=where, expected="one of them")
    settings = as_settings(value, path, where)
    if "quant_method" not in settings.values:
        if _is_mlx(values.get(_MLX)):
            return _mlx(values[_MLX], path, where)
        if where.endswith("compression_config"):
            settings.values = {"quant_method": "compressed-tensors", **settings.values}
    return settings


def _mlx(values: Mapping[str, Any], path: str, where: str) -> Settings:
    return Settings({**values, "quant_method": "mlx"}, path, where)


def _sidecar(model: str, trust: Any) -> Settings | None:
    """Return what the files of older tools beside a model say."""
    for name in SIDECARS:
        path = sibling_path(model, name)
        config = _json(path, trust)
        if config is None:
            continue
        if name == _MODELOPT:
            inner = as_settings(config.get("quantization"), path, "quantization")
            inner.values = {"quant_method": "modelopt", **inner.values}
            return inner
        settings = Settings(config, path, os.path.splitext(name)[0])
        if "quant_method" not in config:
            if name == _AWQ and not _AWQ_KEYS & config.keys():
                settings.unsupported("quant_method", f"one, or the keys of AWQ: {', '.join(sorted(_AWQ_KEYS))}")
            settings.values = {"quant_method": "gptq" if name == _GPTQ else "awq", **config}
        return settings
    return None


def _of_file(file: Any) -> Settings | None:
    """Return what the header and the names of tensors say: those of ComfyUI. Refuse classes of torchao."""
    if file.format != "safetensors":
        return None
    path = parts_of(file)[0].name
    for part in file.shards.values() or (file,):
        metadata = part.metadata
        if _COMFY in metadata:
            values = as_settings(strict_json.loads(metadata[_COMFY].encode(), _COMFY), path, _COMFY).values
            return Settings({**values, "quant_method": "comfyui"}, path, _COMFY)
        for key, value in metadata.items() if "tensor_names" in metadata else ():
            match = _TORCHAO.search(value) if isinstance(value, str) else None
            if match is not None:
                kind = quoted(match[1])
                msg = f"metadata {quoted(key)} says that the tensor is a {kind} of torchao, which is not decoded"
                raise UnsupportedError(msg, field="metadata")
    if any(name.endswith(_COMFY_TENSORS) for name in file):
        return Settings({"quant_method": "comfyui"}, path, "names of tensors")
    return None
