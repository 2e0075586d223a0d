"""Quantisation of an array by any scheme: integers with scales, blocks of ggml, or product quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap import kernels
from weightmap.errors import QuantError
from weightmap.quant.blocks import QuantizedTensor
from weightmap.quant.ggml import quantize_ggml
from weightmap.quant.schemes import BITS, BLOCKED, no_scheme

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["SCHEMES", "quantize"]

# Every scheme that needs no training.
SCHEMES = (*BITS, "adaptive", *kernels.GGML_ENCODED)


def quantize(
    array: ArrayLike,
    scheme: str,
    *,
    block_size: int = 32,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int = 1,
    **training: Any,
) -> QuantizedTensor:
    """Quantise an array in memory: see `weightmap.quantize`, which documents the arguments, the result and the errors.

    `threads` is at most how many share the work.
    """
    if not isinstance(scheme, str):
        raise no_scheme(scheme, (*SCHEMES, "pq"))
    if scheme == "pq":
        from weightmap.conversion.training import train_pq  # noqa: PLC0415 - other schemes do without its imports

        return train_pq(array, **training)
    if training:
        raise TypeError(f"{', '.join(training)}: for scheme 'pq'")
    if scheme in kernels.GGML_ENCODED:
        if scale_type != "fp16":
            raise QuantError(f"scale_type of {scheme}", actual=repr(scale_type), expected="'fp16'")
        return quantize_ggml(array, scheme, threads=threads)
    values = kernels.real_numbers(array)
    if scheme == "adaptive":
        payload = kernels.quantize_adaptive(values, block_size, scale_type=scale_type, bits=bits, threads=threads)
        return QuantizedTensor(scheme, values.shape, payload, block_size=block_size, scale_type=scale_type)
    if scheme not in BITS:
        raise no_scheme(scheme, (*SCHEMES, "pq"))
    size = block_size if scheme in BLOCKED else 0
    if scheme in BLOCKED and size == 0:
        raise QuantError("block_size", field="block_size", actual=0, expected="a positive number")
    payload = kernels.encode_blocks(values, bits=BITS[scheme], block_size=size, scale_type=scale_type, threads=threads)
    return QuantizedTensor(scheme, values.shape, payload, block_size=size, scale_type=scale_type)
