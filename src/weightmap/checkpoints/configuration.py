"""Reads from configuration and header how a model is quantised; returns its parameters, and their weight in bits."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import counted, quoted
from weightmap.core.bytes.open_source import read_small, sibling_path
from weightmap.core.hooks import later
from weightmap.core.model.codes import refuse_codes, tell_of_scales
from weightmap.core.model.internals import check_index, parts_of, rows_of
from weightmap.errors import TensorFileError, UnsupportedError

if TYPE_CHECKING:
    from weightmap.checkpoints.methods import Settings
    from weightmap.checkpoints.pieced import TargetTypes
    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row

# Only quantised checkpoints have these.
_as_settings: Callable[..., Settings] = later("weightmap.checkpoints.methods", "as_settings")
_parameters_of: Callable[..., Any] = later("weightmap.checkpoints.weights", "parameters_of")
_storage_of: Callable[..., Any] = later("weightmap.checkpoints.weights", "storage_of")
# Needed only for configurations.
_loads: Callable[..., Any] = later("weightmap.core.bytes.strict_json", "loads")

_CONFIG = "config.json"
# Keys of a configuration, and files beside it, that describe the quantisation of a model.
_KEYS, _MLX = ("quantization_config", "compression_config"), "quantization"
_MODELOPT, _GPTQ, _AWQ = "hf_quant_config.json", "quantize_config.json", "quant_config.json"
SIDECARS = (_MODELOPT, _GPTQ, _AWQ)
# Keys of an AWQ configuration without the name of its method.
_AWQ_KEYS = {"w_bit", "q_group_size", "zero_point"}
_MAX_DEPTH = 8
# In the header of safetensors: ComfyUI's key, and torchao's names for the class of a tensor.
_COMFY_TENSORS = ("scaled_fp8", ".comfy_quant", ".scale_weight")
_COMFY, _TORCHAO = "_quantization_metadata", r'"_type"\s*:\s*"(?!(?:Tensor|Parameter)")([^"]{1,80})"'
# Names of tensors that resume a training: of optimisers, schedules of the learning rate, random-number generators.
TRAINING = re.compile(
    r"(optim(izer)?s?(_\w+)?|(\w+_)?rng(_\w+)?|(lr_)?schedulers?(_\w+)?)(\.|$)|(state\.)?\d+\.(exp_avg|momentum_buffer)"
)


def config_of(source: Source, config: Any, trust: Any = None) -> tuple[dict[str, Any], str]:
    """Return the configuration of a model, empty if it has none, and the path of its file."""
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


def quantisation_of(file: Any) -> tuple[Settings | None, dict[str, Any]]:
    """Return the settings of a model's quantisation, None if it is not declared quantised; and its configuration.

    The first of these counts: `config.json`, at its top, else in a sub-configuration such as ``text_config``; the files
    that older tools wrote beside the model; the header of a safetensors file. A GGUF file describes itself: what lies
    beside it is about other files.

    Raises
    ------
    FormatError
        For a damaged configuration.
    UnsupportedError
        For a scheme that is recognised but not decoded; it names the scheme and the place of its name.
    """
    source, _, options = parts_of(file)
    if file.format == "gguf" and options.config is None:
        return _of_file(file), {}
    config, path = config_of(source, options.config, options.trust)
    settings = _stated(config, path)
    if settings is None and options.config is None and source.absolute is not None:
        settings = _sidecar(source.absolute, options.trust)
    if settings is None:
        settings = _of_file(file)
    return settings, config


def quantisation_stated(file: Any) -> str:
    """Return the place in a model's configuration that declares it quantised; "" without one."""
    if hasattr(file, "stored"):  # a handle on parameters, which are values
        return ""
    try:
        settings = quantisation_of(file)[0]
    except UnsupportedError as error:
        return f"{error.field} of {os.path.basename(error.path or 'this file')}"
    return "" if settings is None else f"{settings.where} of {os.path.basename(settings.path)}"


def without_quantisation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without all sections that describe quantisation."""
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
        return None if raw is None else _loads(raw, os.path.basename(path), constants=True)
    except TensorFileError as error:
        raise error.located(path=path) from None


def _sections(config: Mapping[str, Any], where: str = "", depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a configuration and its sub-configurations, each with the prefix of its keys."""
    yield where, config
    if depth < _MAX_DEPTH:
        for key, value in config.items():
            if isinstance(value, Mapping) and key not in _KEYS:
                yield from _sections(value, f"{where}{key}.", depth + 1)


def _stated(config: Mapping[str, Any], path: str) -> Settings | None:
    """Return the quantisation that a configuration declares, at its top level or else in its sub-configurations."""
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
    settings = _as_settings(value, path, where)
    # AutoRound adds its own name to MLX's keys.
    packed_so = settings.values.get("packing_format") == "mlx" or "quant_method" not in settings.values
    if packed_so and _is_mlx(values.get(_MLX)):
        return _mlx(values[_MLX], path, where)
    if "quant_method" not in settings.values:
        if where.endswith("compression_config"):
            settings.values = {"quant_method": "compressed-tensors", **settings.values}
        elif settings.values.get("load_in_8bit") or settings.values.get("load_in_4bit"):
            settings.values = {"quant_method": "bitsandbytes", **settings.values}
    return settings


def _mlx(values: Mapping[str, Any], path: str, where: str) -> Settings:
    return _as_settings({**values, "quant_method": "mlx"}, path, where)


def _sidecar(model: str, trust: Any) -> Settings | None:
    """Return the settings in the files of older tools beside a model."""
    for name in SIDECARS:
        path = sibling_path(model, name)
        config = _json(path, trust)
        if config is None:
            continue
        if name == _MODELOPT:
            inner = _as_settings(config.get("quantization"), path, "quantization")
            inner.values = {"quant_method": "modelopt", **inner.values}
            return inner
        settings = _as_settings(config, path, os.path.splitext(name)[0])
        if "quant_method" not in config:
            if name == _AWQ and not _AWQ_KEYS & config.keys():
                settings.unsupported("quant_method", f"one, or the keys of AWQ: {', '.join(sorted(_AWQ_KEYS))}")
            settings.values = {"quant_method": "gptq" if name == _GPTQ else "awq", **config}
        return settings
    return None


def _of_file(file: Any) -> Settings | None:
    """Return settings of ComfyUI, and of NVFP4 in GGUF, from header and names. Refuse classes of torchao."""
    path, table = parts_of(file)[0].name, parts_of(file)[1].table
    if file.format == "gguf" and tell_of_scales(table) and "nvfp4" in table.dtypes():
        return _as_settings({"quant_method": "gguf-nvfp4"}, path, "names of tensors")
    if file.format != "safetensors":
        return None
    for part in file.shards.values() or (file,):
        metadata = part.metadata
        if _COMFY in metadata:
            values = _as_settings(_loads(metadata[_COMFY].encode(), _COMFY), path, _COMFY).values
            return _as_settings({**values, "quant_method": "comfyui"}, path, _COMFY)
        for key, value in metadata.items() if "tensor_names" in metadata else ():
            match = re.search(_TORCHAO, value) if isinstance(value, str) else None
            if match is not None:
                kind = quoted(match[1])
                msg = f"metadata {quoted(key)} says that the tensor is a {kind} of torchao, which is not decoded"
                raise UnsupportedError(msg, field="metadata")
    if tell_of_scales(table) and any(name.endswith(_COMFY_TENSORS) for name in file):
        return _as_settings({"quant_method": "comfyui"}, path, "names of tensors")
    return None


def as_parameters(file: Any, dtype: str | None = None, target_types: TargetTypes | None = None) -> Any:
    """Return a handle on the same files whose tensors are the parameters; for an unquantised model, the handle itself.

    Reading a quantised parameter decodes it to `dtype`, by default to the model's own type. If a target holds the same
    integers and scales, the parameter is instead a tensor of the target's scheme, perhaps with a second tensor beside
    it. Raises `FormatError` for an unusable configuration, and for pieces without a parameter; `UnsupportedError` for a
    scheme that is recognised but not decoded.
    """
    file = getattr(file, "stored", file)  # of parameters
    check_index(file)
    source, content, options = parts_of(file)
    try:
        settings, config = quantisation_of(file)
        if settings is None:
            refuse_codes(content.table, range(len(file)), None)
            return file
        table = _parameters_of(content.table, settings, config, dtype, target_types)
    except TensorFileError as error:
        raise error.located(path=source.name, format=file.format) from None
    table.belongs_to(source, file.format)

    def load_metadata() -> dict[str, Any]:
        return {key: value for key, value in content.load_metadata().items() if key != _COMFY}

    changes = {"load_metadata": load_metadata} if settings.where == _COMFY else {}
    return type(file)(source, file.format, content.varied(table=table, **changes), options)


class Weight(NamedTuple):
    """The size of a model's parameters.

    Attributes
    ----------
    parameters : int
        Elements of all parameters.
    bits_per_weight : float or None
        Stored bits of an element, in codes and scales; None without parameters.
    quantized : int
        Elements of quantised parameters.
    quantized_bits_per_weight : float or None
        Stored bits of such an element.
    training : int
        Elements that are not parameters: of an optimiser, a schedule or a random-number generator.
    """

    parameters: int
    bits_per_weight: float | None
    quantized: int
    quantized_bits_per_weight: float | None
    training: int

    def __str__(self) -> str:
        state = f"; not counted: {counted(self.training, 'element')} of training state" if self.training else ""
        return self._of_parameters() + state

    def _of_parameters(self) -> str:
        if self.bits_per_weight is None:
            return "none"
        text = f"{counted(self.parameters, 'element')} of {self.bits_per_weight:.3f} bits"
        if self.quantized_bits_per_weight is not None and self.quantized < self.parameters:
            text += f"; {self.quantized:,} of them quantised, of {self.quantized_bits_per_weight:.3f} bits with scales"
        return text


def weight_of(tensors: Iterable[tuple[str, Row]]) -> Weight:
    """Weigh parameters by their names and rows."""
    elements, nbytes = [0] * 3, [0] * 3  # dense, quantised, of training state
    for name, row in tensors:
        how = None if row.geometry is None else _storage_of(row)
        kind = 2 if TRAINING.match(name) else row.dtype.quantized or how is not None
        elements[kind] += math.prod(row.shape)
        nbytes[kind] += row.payload_nbytes() if row.dtype.quantized else row.nbytes if how is None else how[3]
    parameters = sum(elements[:2])
    bits = [
        8 * stored / count if count else None
        for stored, count in ((sum(nbytes[:2]), parameters), (nbytes[1], elements[1]))
    ]
    return Weight(parameters, bits[0], elements[1], bits[1], elements[2])


def weight_of_model(file: Any) -> Weight:
    """Weigh the parameters of a model. Raises as `as_parameters` and looking them up do."""
    model = as_parameters(file)
    return weight_of(zip(model, rows_of(model), strict=True))
