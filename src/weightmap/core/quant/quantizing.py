"""Quantisation of an array by any scheme that needs no training: integers with scales, or blocks of ggml.

A scheme may be spelt in upper case and with ``-`` for ``_``: ``"Q4_K"``, ``"int4-block"``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.arguments import as_threads, mistyped, names_moved, similar
from weightmap.core.dtypes import scale_type_named
from weightmap.core.hooks import import_part
from weightmap.core.native import quantised
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.core.quant.ggml import quantize_ggml
from weightmap.core.quant.schemes import BITS, BLOCKED, no_scheme
from weightmap.errors import QuantError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from weightmap.core.quant.product import ProductQuantized

# Every scheme that needs no training.
SCHEMES = (*BITS, "adaptive", *quantised.GGML_ENCODED)
# Bounds of a tensor's largest scale in float16: smaller scales have less than five bits, larger numbers become 65504.
_SMALLEST, _LARGEST = 2.0**-20, 65504.0
# A word this similar to the name of a scheme counts as a misspelling: "q8".
_CUTOFF = 0.6


def folded(scheme: Any) -> Any:
    """Return the canonical spelling of a scheme; anything but a str stays as it is."""
    return scheme.lower().replace("-", "_") if isinstance(scheme, str) else scheme


def scheme_named(scheme: Any, writable: Sequence[str] = (*SCHEMES, "pq")) -> str:
    """Return the canonical spelling of a scheme. Raises a `QuantError` that names the nearest `writable` scheme."""
    name = folded(scheme)
    if isinstance(name, str) and name in (*SCHEMES, "pq"):
        return name
    raise no_scheme(scheme, writable, nearest_scheme(name, writable))


def nearest_scheme(scheme: Any, writable: Sequence[str]) -> str:
    """Return the end of a message about an unknown scheme: the nearest one, by spelling or else by bits."""
    every = (*SCHEMES, *quantised.GGML_TYPES)
    if isinstance(scheme, str) and scheme not in every:
        scheme = next(iter(similar(scheme, (*every, *writable), _CUTOFF)), None)
    if scheme in writable:
        return f"; the nearest is {scheme}"
    if scheme is None or scheme not in every:
        return ""
    able = [name for name in writable if name in every]
    # GGUF's types have scales by block: convert turns int4 into what it makes of int4_block.
    bits = _bits(f"{scheme}_block" if f"{scheme}_block" in BLOCKED else scheme)
    # Of equally near schemes, take the first in the list: the plain scheme of that size.
    best = min(able, key=lambda name: (abs(_bits(name) - bits), -_bits(name)), default=None)
    if best is None:
        return ""
    read = f"{scheme} is read, not written: " if scheme not in SCHEMES else ""
    return f"; {read}the nearest is {best}"


def _bits(scheme: str) -> float:
    """Return the approximate bits of a weight."""
    kind = quantised.GGML_TYPES.get(scheme)
    if kind is not None:
        return 8 * kind.block_bytes / kind.block_size
    return BITS.get(scheme, 5) + (0.5 if scheme in BLOCKED else 0)


def largest_scale(scales: NDArray[np.float16]) -> float:
    """Return the largest magnitude of scales, 0 without scales; compare them as integers, which is faster."""
    return float((scales.view(np.uint16) & 0x7FFF).max(initial=0).view(np.float16))


def is_out_of_range(scale: float) -> bool:
    """Whether the largest scale of a tensor that is not all 0 is out of the range of float16."""
    return not _SMALLEST <= scale < _LARGEST


@names_moved
def quantize(
    array: ArrayLike,
    scheme: str,
    *,
    block_size: int = 32,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int | None = None,
) -> QuantizedTensor:
    """Quantise an array. To quantise a model, call ``convert(src, dst, quantize=scheme)``.

    Parameters
    ----------
    array : array_like
        Real numbers, of any strides and byte order; taken as float32. Any shape; two dimensions for "pq".
    scheme : str
        Integers of few bits, with scales that a search finds for the least squared error: "int8", "int4", "int5" (one
        scale for all), "int4_block", "int5_block" (one for each block) or "adaptive" (int4, int5 or float16 for each
        block, by its error). Or a type of GGUF's blocks; the last dimension is then a multiple of the block size:
        "q4_0", "q4_1", "q5_0", "q5_1", "q8_0" (32 elements, with the bytes of gguf-py and llama.cpp), "iq4_nl", "mxfp4"
        (32 elements, scales found by a search), "q2_k" to "q6_k" (256 elements, likewise). Or "pq": product
        quantisation with the defaults of `weightmap.words.train_pq`. Upper case and ``-`` for ``_`` are accepted.
    block_size : int
        Elements per block, for int4_block (an even number), int5_block and adaptive (multiples of 8).
    scale_type : str
        "fp16" or "fp32", by any of their names; types of GGUF have "fp16". float16 holds the scales of arrays whose
        largest magnitude lies between 2e-4 and 450,000. Beyond that, types of GGUF use the largest float16 or 0, as
        gguf-py does.
    bits : float
        For "adaptive": bits per weight for codes and scales, 4.5 to 16. The mask takes 2 more bits per block.
    threads : int, optional
        The most threads that share the work, except for "pq"; one by default. The result does not depend on it.

    Returns
    -------
    QuantizedTensor

    Raises
    ------
    QuantError
        For an element that is NaN or infinite (the message has its index), for arrays beyond the range of float16
        scales, for anything but an array of real numbers without masked elements, for unknown schemes, for invalid
        block sizes, scale types or bits, and for rows that are not whole blocks of a GGUF type.
    MissingDependencyError
        For "pq", when scipy is not installed.

    Examples
    --------
    >>> import weightmap as wm
    >>> q = wm.quantize([[7.0, 1.0], [2.0, -8.0]], "int4_block", block_size=2)
    >>> q.dequantize()
    array([[ 7.,  1.],
           [ 2., -8.]], dtype=float32)
    """
    if isinstance(array, (str, os.PathLike, Mapping)):
        raise mistyped("array", array, "an array of numbers; for a model: convert(src, dst, quantize=...)")
    threads = 1 if threads is None else as_threads(threads)
    scheme, scale_type = scheme_named(scheme), scale_type_named(scale_type)
    if scheme == "pq":
        trained: ProductQuantized = import_part("weightmap.words.training", "scheme pq").train_pq(array)
        return trained
    if scheme in quantised.GGML_ENCODED:
        if scale_type != "fp16":
            raise QuantError(f"scale_type of {scheme}", actual=repr(scale_type), expected="'fp16'")
        return quantize_ggml(array, scheme, threads=threads)
    values = quantised.real_numbers(array)
    size = block_size if scheme in (*BLOCKED, "adaptive") else 0
    if scheme in BLOCKED and size == 0:
        raise QuantError("block_size", field="block_size", actual=0, expected="a positive number")
    if scheme == "adaptive":
        payload = quantised.quantize_adaptive(values, size, scale_type=scale_type, bits=bits, threads=threads)
    else:
        kind: dict[str, Any] = {"bits": BITS[scheme], "block_size": size, "scale_type": scale_type}
        payload = quantised.encode_blocks(values, **kind, threads=threads)
    tensor = QuantizedTensor(scheme, values.shape, payload, block_size=size, scale_type=scale_type)
    scale = largest_scale(tensor.scales) if scale_type == "fp16" and tensor.scales.size else 1.0
    if is_out_of_range(scale) and np.any(values):
        expected = "2e-4 to 450,000, for scales of float16; quantize(scale_type='fp32') takes any"
        raise QuantError("largest magnitude", actual=float(np.abs(values).max()), expected=expected)
    return tensor
