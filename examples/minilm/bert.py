"""A BERT sentence encoder in plain numpy, on tensors that stay where they are.

The encoder takes a mapping ``name -> array``, such as a :class:`weightmap.TensorFile`, and never copies a float32
weight: ``w.T`` is a view that BLAS reads through its transpose flag, and gathering rows of the word table by id touches
only the pages of the words in the text.

Weights of float16 and bfloat16 and quantised ones are not copied as a whole either: a matrix is decoded when its layer
needs it, one at a time, and a table only in the rows that are used.

The computation, in float32 except for the error function inside gelu, for ids of shape (n, t) and hidden size d:

1. ``x = LayerNorm(word[ids] + position[0..t) + token_type[0])``
2. in every layer: ``x = LayerNorm(x + Attention(x))``, then ``x = LayerNorm(x + W2 gelu(W1 x + b1) + b2)``
3. the mean of ``x`` over the tokens of each sentence without padding, divided by its Euclidean length.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.core.native import floats
from weightmap.core.quant.blocks import QuantizedTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

# The table behind erf has 64 knots per unit over [-6, 6]; a power of two keeps every knot exact in float64.
_KNOTS_PER_UNIT = 64
_LIMIT = 6.0  # 1 - erf(6) is 2e-17, below half a float64 unit at 1: further out, erf is +-1
_LAST = int(_LIMIT * _KNOTS_PER_UNIT)
_ERF_AT_KNOT = np.array([math.erf(k / _KNOTS_PER_UNIT) for k in range(-_LAST, _LAST + 1)])
_SLOPE_AT_KNOT = 2.0 / math.sqrt(math.pi) * np.exp(-((np.arange(-_LAST, _LAST + 1) / _KNOTS_PER_UNIT) ** 2))

# Supported types of dense tensors.
_TYPES = ("float32", "float16", "bfloat16")

# Added to the scores of padding before the softmax: its exp() is exactly 0, so padding has no influence.
_MASKED = np.float32(-1e30)


def erf(x: ArrayLike) -> NDArray[np.float64]:
    """Return the error function of every element of an array.

    numpy has none, ``math.erf`` takes one number at a time (several times slower), and scipy would be a dependency. So
    this takes ``math.erf`` at 769 knots, 1/64 apart, and between them the Taylor series around the nearest knot ``c``,
    up to the third power of ``h = x - c``. The derivatives of erf are its slope times a polynomial::

        erf(c + h) = erf(c) + erf'(c) * (h - c h^2 + (2 c^2 - 1) / 3 h^3) + remainder

    As ``|h| <= 1/128`` and the fourth derivative stays below 4.5 in size, the remainder is below 7e-10, a hundredth of
    the float32 rounding unit. There are no fitted coefficients to trust.

    Parameters
    ----------
    x : array_like
        Real numbers of any shape. Infinities give +-1, NaN gives NaN.

    Returns
    -------
    ndarray of float64
        Same shape as ``x``, absolute error below 1e-9.

    Examples
    --------
    >>> from minilm.bert import erf
    >>> erf([0.0, 0.5, float("inf")]).round(6).tolist()
    [0.0, 0.5205, 1.0]
    """
    clipped = np.clip(np.asarray(x, dtype=np.float64), -_LIMIT, _LIMIT)
    # fmax drops NaN, which has no knot; h brings it back.
    knot = np.rint(np.fmax(clipped * _KNOTS_PER_UNIT, -_LAST))
    index = (knot + _LAST).astype(np.intp)
    c = knot / _KNOTS_PER_UNIT
    h = clipped - c
    series = h * (1.0 - h * (c - h * (2.0 * c * c - 1.0) / 3.0))
    result: NDArray[np.float64] = _ERF_AT_KNOT[index] + _SLOPE_AT_KNOT[index] * series
    return result


def gelu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the exact Gaussian error linear unit, ``x/2 (1 + erf(x / sqrt 2))``, in the shape of ``x``."""
    half = 0.5 * (1.0 + erf(x * math.sqrt(0.5)))
    return x * half.astype(np.float32)


def layer_norm(
    x: NDArray[np.float32], weight: NDArray[np.float32], bias: NDArray[np.float32], eps: float
) -> NDArray[np.float32]:
    """Scale the last axis of ``x`` to mean 0 and variance 1, then apply ``weight`` and ``bias``, each of shape (d,)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    scaled: NDArray[np.float32] = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
    return scaled


def softmax(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the exponentials of the last axis scaled to sum 1, less the maximum first, so that nothing overflows."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    scaled: NDArray[np.float32] = e / e.sum(axis=-1, keepdims=True)
    return scaled


def dense(weight: NDArray[Any] | QuantizedTensor) -> NDArray[np.float32]:
    """Return a weight as float32, decoded unless it is float32 already."""
    if isinstance(weight, QuantizedTensor):
        return weight.dequantize()
    if weight.dtype == np.float16:
        return floats.f16_to_f32(weight)
    return weight if weight.dtype == np.float32 else floats.bf16_to_f32(weight)


def rows(table: NDArray[Any] | QuantizedTensor, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return rows of a table as float32, shape ids.shape + (d,); only these rows are decoded."""
    return table[ids] if isinstance(table, QuantizedTensor) else dense(table[ids])


class _Affine(NamedTuple):
    """Weight and bias of a dense layer, (out, in) and (out,), or of a layer norm, (d,) and (d,)."""

    weight: Any  # an array or a QuantizedTensor; of a layer norm, float32
    bias: NDArray[np.float32]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply as a dense layer: (rows, in) -> (rows, out)."""
        product: NDArray[np.float32] = x @ dense(self.weight).T
        product += self.bias
        return product


class _Layer(NamedTuple):
    """One transformer layer, its parts in order of use."""

    query: _Affine
    key: _Affine
    value: _Affine
    attended: _Affine
    attended_norm: _Affine
    widen: _Affine
    narrow: _Affine
    norm: _Affine


class BertEncoder:
    """The encoder of a BERT checkpoint, on arrays that stay where they are.

    Parameters
    ----------
    tensors : mapping of str to ndarray or QuantizedTensor
        The checkpoint's tensors under their Hugging Face names (``embeddings.word_embeddings.weight``,
        ``encoder.layer.0.attention.self.query.weight`` ...): float32, float16, bfloat16 or quantised. Looked up once
        and never written.
    metadata : mapping of str to str
        Decimal strings under EMBD's keys ``num_layers``, ``num_attention_heads`` and ``max_position_emb``, and
        optionally ``layer_norm_eps`` (default 1e-12) and ``hidden_act`` (default gelu). Widths follow from the tensors.

    Attributes
    ----------
    dims : int
        Width d of an embedding.
    vocab_size : int
        Number of rows of the word table: ids are below it.
    max_positions : int
        Longest sequence, in tokens, [CLS] and [SEP] included.

    Raises
    ------
    KeyError
        When a tensor or a metadata key is missing (a weightmap file raises TensorNotFoundError for a tensor).
    ValueError
        When a tensor has another type or a shape that does not fit the others, a metadata value is not a number, the
        width is not a multiple of the number of heads, or the activation is not gelu.
    """

    def __init__(self, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        def tensor(name: str, *shape: int | None) -> Any:
            found = tensors[name]
            known = isinstance(found, QuantizedTensor) or (isinstance(found, np.ndarray) and found.dtype.name in _TYPES)
            fits = known and found.ndim == len(shape)
            if not fits or any(want not in (None, have) for want, have in zip(shape, found.shape, strict=True)):
                wanted = ", ".join("any" if want is None else str(want) for want in shape)
                kinds = f"{', '.join(_TYPES)}, or quantised"
                raise ValueError(f"{name} is not an array of shape ({wanted}) of one of {kinds}")
            return found

        def pair(name: str, *shape: int | None) -> _Affine:
            weight = tensor(f"{name}.weight", *shape)
            # A vector is small, so it is decoded now.
            weight = dense(weight) if weight.ndim == 1 else weight
            return _Affine(weight, dense(tensor(f"{name}.bias", weight.shape[0])))

        def layer(name: str) -> _Layer:
            widen = pair(f"{name}.intermediate.dense", None, d)
            return _Layer(
                query=pair(f"{name}.attention.self.query", d, d),
                key=pair(f"{name}.attention.self.key", d, d),
                value=pair(f"{name}.attention.self.value", d, d),
                attended=pair(f"{name}.attention.output.dense", d, d),
                attended_norm=pair(f"{name}.attention.output.LayerNorm", d),
                widen=widen,
                narrow=pair(f"{name}.output.dense", d, len(widen.bias)),
                norm=pair(f"{name}.output.LayerNorm", d),
            )

        self._word = tensor("embeddings.word_embeddings.weight", None, None)
        self.vocab_size: int = int(self._word.shape[0])
        self.dims: int = int(self._word.shape[1])
        d = self.dims
        self._position = tensor("embeddings.position_embeddings.weight", None, d)
        segments = tensor("embeddings.token_type_embeddings.weight", None, d)
        self._segment = rows(segments, np.zeros(1, np.int64))[0]  # a sentence is segment 0
        self._embedding_norm = pair("embeddings.LayerNorm", d)
        self._layers = [layer(f"encoder.layer.{number}") for number in range(int(metadata["num_layers"]))]
        self._heads = int(metadata["num_attention_heads"])
        self._eps = float(metadata.get("layer_norm_eps", "1e-12"))
        self.max_positions: int = min(int(metadata["max_position_emb"]), int(self._position.shape[0]))
        if self._heads < 1 or d % self._heads:
            raise ValueError(f"a width of {d} does not divide into {self._heads} attention heads")
        if self.max_positions < 3:
            raise ValueError(f"{self.max_positions} positions do not hold [CLS], one token and [SEP]")
        if (activation := metadata.get("hidden_act", "gelu")) != "gelu":
            raise ValueError(f"the activation is {activation!r}, but only 'gelu' is implemented")

    def hidden_states(self, ids: ArrayLike, mask: ArrayLike) -> NDArray[np.float32]:
        """Return the output of the last layer for every token.

        Parameters
        ----------
        ids : array_like of int, shape (n, t)
            Token ids, a row for each sentence, padded with any valid id.
        mask : array_like, shape (n, t)
            1 (or True) for a token, 0 for padding.

        Returns
        -------
        ndarray of float32, shape (n, t, d)
            Values at padded positions are meaningless.

        Raises
        ------
        ValueError
            When the shapes differ or are not two-dimensional, ``t`` exceeds :attr:`max_positions`, or an id lies
            outside of the vocabulary.
        """
        ids, mask = np.asarray(ids), np.asarray(mask, dtype=bool)
        if ids.ndim != 2 or ids.shape != mask.shape:
            raise ValueError(f"ids and mask must have one shape (n, t); they have {ids.shape} and {mask.shape}")
        n, t = ids.shape
        if t > self.max_positions:
            raise ValueError(f"a sequence of {t} tokens exceeds the {self.max_positions} positions of the model")
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise ValueError(f"token ids must lie in [0, {self.vocab_size}); these span [{ids.min()}, {ids.max()}]")

        # The tokens of all sentences form one tall matrix, so that each dense layer is one matrix product.
        x = (rows(self._word, ids) + dense(self._position[:t]) + self._segment).reshape(n * t, self.dims)
        x = layer_norm(x, *self._embedding_norm, self._eps)
        bias = np.where(mask, np.float32(0), _MASKED)[:, None, None, :]
        for layer in self._layers:
            attended = layer.attended(self._attention(layer, x, bias))
            x = layer_norm(x + attended, *layer.attended_norm, self._eps)
            x = layer_norm(x + layer.narrow(gelu(layer.widen(x))), *layer.norm, self._eps)
        return x.reshape(n, t, self.dims)

    def encode(self, ids: ArrayLike, mask: ArrayLike) -> NDArray[np.float32]:
        """Return sentence embeddings: the mean of the last layer over the tokens, normalised to length 1.

        Parameters and errors are those of :meth:`hidden_states`. A row without tokens gives zeros.

        Returns
        -------
        ndarray of float32, shape (n, d)
        """
        weight = np.asarray(mask, dtype=bool).astype(np.float32)
        hidden = self.hidden_states(ids, mask)
        total = np.einsum("ntd,nt->nd", hidden, weight)
        mean = total / np.maximum(weight.sum(axis=1, keepdims=True), 1)
        length = np.linalg.norm(mean, axis=1, keepdims=True)
        result: NDArray[np.float32] = mean / np.maximum(length, np.float32(1e-12))
        return result

    def _attention(self, layer: _Layer, x: NDArray[np.float32], bias: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply multi-head self-attention without its output layer: (n t, d) -> (n t, d); ``bias`` is (n, 1, 1, t)."""
        n, t = bias.shape[0], bias.shape[-1]
        width = self.dims // self._heads

        def split(projected: NDArray[np.float32]) -> NDArray[np.float32]:
            return projected.reshape(n, t, self._heads, width).transpose(0, 2, 1, 3)

        query, key, value = split(layer.query(x)), split(layer.key(x)), split(layer.value(x))
        scores = query @ key.transpose(0, 1, 3, 2) * np.float32(1 / math.sqrt(width))
        context = softmax(scores + bias) @ value  # (n, heads, t, width)
        joined: NDArray[np.float32] = context.transpose(0, 2, 1, 3).reshape(n * t, self.dims)
        return joined
