"""The Hugging Face architectures that can be written with llama.cpp's names: a record each, and its keys.

A record has transformers' defaults for fields that ``config.json`` leaves out, and the differences between tensors, so
that one more record adds an architecture. The names and types of keys come from the package ``gguf``. A configuration
is refused if llama.cpp does not compute all of it: such a model would run, and be wrong.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import quoted
from weightmap.errors import EncodeError, Remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

# The remedies of a refusal.
SCRIPT = "llama.cpp's script may know more: python -m weightmap.compat.gguf convert_hf_to_gguf.py DIR"
KEEP = Remedy("{} keeps the names of the source, for other programs", "names", "keep")
# A larger number in a configuration is a sign of damage; numbers in GGUF have 32 bits.
_MAX_INT32 = 2**31 - 1


def refusal(what: str) -> EncodeError:
    """Return the error for a model that llama.cpp would not run correctly."""
    remedy = KEEP._replace(words=f"{KEEP.words}; {SCRIPT}")
    return EncodeError(f"{what}: llama.cpp would not run this correctly", remedy=remedy)


class Config:
    """``config.json``, with transformers' defaults for missing fields.

    Parameters
    ----------
    values : mapping
    defaults : mapping
        Numbers, or functions of the configuration.
    """

    values: Mapping[str, Any]

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.values, self._defaults = values, defaults or {}

    def get(self, name: str) -> Any:
        """Return a stored field, or its default, or None."""
        value = self.values.get(name)
        if value is None:
            value = self._defaults.get(name)
            value = value(self) if callable(value) else value
        return value

    def count(self, *names: str) -> int:
        """Return a positive whole number from the first of these fields that is set. Raises `EncodeError`."""
        value = self._first(names)
        if type(value) is not int or not 0 < value <= _MAX_INT32:
            raise self._wrong(names[0], value, "a positive whole number")
        return value

    def number(self, *names: str) -> float:
        """Return a positive finite number from the first of these fields that is set. Raises `EncodeError`."""
        value = self._first(names)
        if type(value) not in (int, float) or not 0 < value < float(np.finfo(np.float32).max):
            raise self._wrong(names[0], value, "a positive number")
        return float(value)

    def table(self, name: str) -> Config:
        """Return an object of the configuration, an empty one if it is missing. Raises `EncodeError`."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Config(value or {})

    def check(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Raise `EncodeError` unless a field has one of the values that llama.cpp computes with."""
        value = self.get(name)
        if not any(type(value) is type(one) and value == one for one in allowed):
            expected = " or ".join("no value" if one is None else spelt(one) for one in allowed)
            raise refusal(f"config.json has {name} {spelt(value)}, expected {expected}")

    def _first(self, names: Iterable[str]) -> Any:
        return next((value for name in names if (value := self.get(name)) is not None), None)

    def _wrong(self, name: str, value: Any, expected: str) -> EncodeError:
        shown = "no value" if value is None else spelt(value)
        return EncodeError(f"config.json has {shown} as {name}", expected=expected, remedy=KEEP)


def spelt(value: Any) -> str:
    """Return a value of a configuration as part of a message."""
    return quoted(value) if isinstance(value, str) else "none" if value is None else str(value)[:60]


@dataclass(frozen=True, slots=True)
class Architecture:
    """An entry of ``architectures`` in ``config.json``.

    Attributes
    ----------
    name : str
        llama.cpp's name for it.
    defaults : mapping
        See `Config`.
    permuted : bool
        Whether llama.cpp rotates pairs of rows of q and k; transformers always rotates halves.
    shifted : bool
        Whether norms multiply by the stored value plus one.
    has_head_dim : bool
        Whether transformers' configuration has the field ``head_dim``.
    dense_biases : bool
        Whether llama.cpp knows biases of all projections, not only of q, k and v.
    experts : bool
        Whether the layers are mixtures of experts.
    windowed : bool
        Whether transformers may use a sliding window in all layers, which llama.cpp cannot.
    keys : callable
        ``keys(writer, config, rope)`` adds the keys of this architecture, and refuses settings that llama.cpp ignores.
    tokenizers : tuple of str
        The kinds of tokenizer to look for, in order: see `tokenizers`.
    """

    name: str
    _: KW_ONLY
    defaults: Mapping[str, Any]
    permuted: bool = False
    shifted: bool = False
    has_head_dim: bool = False
    dense_biases: bool = False
    experts: bool = False
    windowed: bool = False
    keys: Callable[[Any, Config, Config], None]
    tokenizers: tuple[str, ...] = ("sentencepiece", "bytes")

    def config(self, values: Mapping[str, Any]) -> Config:
        """Return a configuration of this architecture. By default, each attention head has its own keys and values."""
        if values.get("num_key_value_heads", self.defaults.get("num_key_value_heads")) is None:
            values = {**values, "num_key_value_heads": values.get("num_attention_heads")}
        return Config(values, {"rms_norm_eps": 1e-6, **self.defaults})

    def head_dim(self, config: Config) -> int:
        """Return the number of columns of a head."""
        if config.get("head_dim") is not None:
            return config.count("head_dim")
        heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
        if hidden % heads:
            raise EncodeError(
                f"config.json has hidden_size {hidden}", expected=f"a multiple of {heads} heads", remedy=KEEP
            )
        return hidden // heads


# --------------------------------------------------------------------------------------------------------- rotation
def rope_of(config: Config) -> Config:
    """Return the settings for rotary embeddings of full attention as one object.

    Transformers 4 has ``rope_theta`` and ``rope_scaling``; transformers 5 has ``rope_parameters`` for everything, with
    an object for each kind of layers if these differ, as in Gemma 3, and reads ``rope_scaling`` instead if it is there.
    """
    parameters, scaling = config.table("rope_parameters"), config.table("rope_scaling").values
    values = parameters.table("full_attention").values
    if config.get("rope_local_base_freq") is None:
        values = dict(scaling or values or parameters.values)
    else:  # Gemma 3, where `type` in `rope_scaling` has no effect
        values = {**(values or {"rope_type": "default"}), **scaling}
    values.setdefault("rope_type", values.get("type") or "default")
    context, theta = config.get("max_position_embeddings"), config.get("rope_theta")
    return Config(values, {"rope_theta": theta, "original_max_position_embeddings": context})


def _add_rope(writer: Any, rope: Config, gguf: Any) -> None:
    """Add the keys of linear and yarn scaling; llama3's is a tensor: see `rope_freqs`."""
    kind = rope.get("rope_type")
    if kind in ("default", "llama3"):
        return
    if kind not in ("linear", "yarn"):
        raise refusal(f"config.json has the rope type {spelt(kind)}, expected default, linear, yarn or llama3")
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(rope.number("factor"))
    if kind == "linear":
        return
    writer.add_rope_scaling_orig_ctx_len(rope.count("original_max_position_embeddings"))
    # llama.cpp computes with these values, whatever the keys say.
    usual = {"attention_factor": 1 + 0.1 * np.log(max(rope.number("factor"), 1)), "beta_fast": 32, "beta_slow": 1}
    for name, add in (
        ("extrapolation_factor", writer.add_rope_scaling_yarn_ext_factor),
        ("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
        ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
        ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
    ):
        if rope.get(name) is not None:
            value = rope.number(name)
            if not np.isclose(value, usual.get(name, value), rtol=1e-4):
                raise refusal(f"config.json has {name} {value} for the rope type yarn, expected {usual[name]:.6g}")
            add(value)
    rope.check("truncate", (None, True))
    if rope.get("attention_factor") is None and rope.get("mscale"):  # effective only together with mscale_all_dim
        rope.check("mscale_all_dim", (None, 0, 0.0))


def rope_freqs(rope: Config, head_dim: int) -> NDArray[np.float32] | None:
    """Return the divisors of frequencies for llama3's scaling, shape (head_dim / 2,); None for another scaling."""
    if rope.get("rope_type") != "llama3":
        return None
    factor, long = rope.number("factor"), rope.count("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not low < high:
        raise refusal(f"config.json has low_freq_factor {low} and high_freq_factor {high}")
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.float32(1) / np.float32(rope.number("rope_theta")) ** exponents
    wavelengths = 2 * np.pi / frequencies.astype(np.float64)
    smooth = (long / wavelengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    scaled = np.where(wavelengths > long / low, factor, between)
    return np.where(wavelengths < long / high, 1, scaled).astype(np.float32)


# ------------------------------------------------------------------------------------------------ keys of them all
def add_keys(writer: Any, architecture: Architecture, config: Config, gguf: Any) -> None:
    """Add the keys of a model to a ``GGUFWriter``. Raises `EncodeError` for settings that llama.cpp ignores."""
    rope = rope_of(config)
    heads, kv_heads = config.count("num_attention_heads"), config.count("num_key_value_heads")
    if heads % kv_heads:
        raise refusal(f"config.json has {heads} heads, and num_key_value_heads {kv_heads}")
    writer.add_block_count(config.count("num_hidden_layers"))
    writer.add_context_length(config.count("max_position_embeddings"))
    writer.add_embedding_length(config.count("hidden_size"))
    writer.add_feed_forward_length(config.count("intermediate_size"))
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    if architecture.has_head_dim or config.get("head_dim") is not None:
        writer.add_key_length(architecture.head_dim(config))
        writer.add_value_length(architecture.head_dim(config))
    if architecture.experts:
        writer.add_expert_count(config.count("num_experts", "num_local_experts"))
        writer.add_expert_used_count(config.count("num_experts_per_tok"))
    config.check("partial_rotary_factor", (None, 1.0, 1))
    if rope.get("rope_type") == "llama3" and not architecture.permuted:
        raise refusal(f"config.json has the rope type llama3, which {architecture.name} lacks in llama.cpp")
    _add_rope(writer, rope, gguf)
    architecture.keys(writer, config, rope)


# ---------------------------------------------------------------------------------------------------- the records
def _llama_keys(writer: Any, config: Config, rope: Config) -> None:
    config.check("hidden_act", ("silu", None))
    writer.add_vocab_size(config.count("vocab_size"))
    writer.add_rope_dimension_count(LLAMA.head_dim(config))
    writer.add_rope_freq_base(rope.number("rope_theta"))


def _qwen_keys(writer: Any, config: Config, rope: Config) -> None:
    config.check("hidden_act", ("silu", None))
    config.check("use_sliding_window", (None, False))
    writer.add_rope_freq_base(rope.number("rope_theta"))


def _qwen3moe_keys(writer: Any, config: Config, rope: Config) -> None:
    _qwen_keys(writer, config, rope)
    config.check("norm_topk_prob", (True,))  # transformers' default is False, and llama.cpp always normalises
    config.check("mlp_only_layers", (None, []))  # llama.cpp has no layers without experts there
    config.check("decoder_sparse_step", (None, 1))
    writer.add_expert_feed_forward_length(config.count("moe_intermediate_size"))


def _gemma_keys(writer: Any, config: Config, *, period: int, large: int, head_dim: int) -> None:
    """Add the sliding window; check that every `period`-th layer has full attention, and the scale of attention.

    The model with `large` layers divides by the columns per head instead of `head_dim`.
    """
    config.check("hidden_activation", ("gelu_pytorch_tanh", None))
    config.check("use_bidirectional_attention", (None, False))
    layers = config.count("num_hidden_layers")
    kinds = config.get("layer_types")
    usual = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(min(layers, 1 << 16))]
    if kinds is not None and kinds != usual:
        raise refusal(f"config.json has layer_types other than full attention in every layer of {period}")
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        config.check(name, (None, period))
    scale = config.count("hidden_size") // config.count("num_attention_heads") if layers == large else head_dim
    config.check("query_pre_attn_scalar", (scale, float(scale)))
    writer.add_sliding_window(config.count("sliding_window"))


def _gemma2_keys(writer: Any, config: Config, rope: Config) -> None:
    _gemma_keys(writer, config, period=2, large=46, head_dim=GEMMA2.head_dim(config))
    if rope.get("rope_type") != "default" or rope.number("rope_theta") != 10_000:
        raise refusal("config.json has other rotary embeddings than gemma2's, and GGUF does not record them")
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.values.get(name, "") is None:
            raise refusal(f"config.json has {name} null, expected a number")
        getattr(writer, f"add_{name}")(config.number(name))


def _gemma3_keys(writer: Any, config: Config, rope: Config) -> None:
    _gemma_keys(writer, config, period=6, large=62, head_dim=GEMMA3.head_dim(config))
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        config.check(name, (None,))
    local = config.table("rope_parameters").table("sliding_attention")
    if local.get("rope_type") not in (None, "default"):
        raise refusal("config.json scales the rotary embeddings of layers with a sliding window")
    writer.add_rope_freq_base(rope.number("rope_theta"))
    of_window = config.number("rope_local_base_freq") if local.get("rope_theta") is None else local.number("rope_theta")
    writer.add_rope_freq_base_swa(of_window)


LLAMA = Architecture(
    "llama",
    defaults={"max_position_embeddings": 2048, "rope_theta": 1e4},
    permuted=True,
    has_head_dim=True,
    dense_biases=True,
    keys=_llama_keys,
    tokenizers=("sentencepiece", "fallback", "bytes"),
)
_MISTRAL: dict[str, Any] = {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "rope_theta": 1e4}
_MIXTRAL: dict[str, Any] = {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN: dict[str, Any] = {"num_key_value_heads": 32, "max_position_embeddings": 32_768, "rope_theta": 1e4}
_QWEN3MOE: dict[str, Any] = {
    "num_key_value_heads": 4,
    "num_experts": lambda config: config.values.get("num_local_experts", 128),
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
_GEMMA: dict[str, Any] = {
    "tie_word_embeddings": True,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


GEMMA2 = Architecture(
    "gemma2",
    defaults=_GEMMA
    | {
        "max_position_embeddings": 8192,
        "rope_theta": 1e4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    shifted=True,
    has_head_dim=True,
    keys=_gemma2_keys,
    tokenizers=("sentencepiece",),
)
GEMMA3 = Architecture(
    "gemma3",
    defaults=_GEMMA | {"max_position_embeddings": 131_072, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    shifted=True,
    has_head_dim=True,
    keys=_gemma3_keys,
)
MISTRAL = replace(LLAMA, defaults=_MISTRAL | {"sliding_window": 4096}, windowed=True)
# The names of `architectures` in a configuration.
ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": replace(MISTRAL, defaults=_MISTRAL | _MIXTRAL, experts=True, dense_biases=False),
    "Qwen2ForCausalLM": Architecture("qwen2", defaults=_QWEN, keys=_qwen_keys),
    "Qwen3ForCausalLM": Architecture("qwen3", defaults=_QWEN | {"head_dim": 128}, has_head_dim=True, keys=_qwen_keys),
    "Qwen3MoeForCausalLM": Architecture("qwen3moe", defaults=_QWEN | _QWEN3MOE, experts=True, keys=_qwen3moe_keys),
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
}


def architecture_of(config: Mapping[str, Any]) -> tuple[str, Architecture | None]:
    """Return the name of the architecture in a configuration, and its record, None if it is unknown."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str) else ""
    return name, ARCHITECTURES.get(name)
