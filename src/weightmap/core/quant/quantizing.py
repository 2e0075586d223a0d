"""Quantisation of an array by any scheme that needs no training: integers with scales, or blocks of ggml.

A scheme may be spelt in upper case and with ``-`` for ``_``: ``"Q4_K"``, ``"int4-block"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.core.arguments import similar
from weightmap.core.dtypes import scale_type_named
from weightmap.core.native import quantised
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.core.quant.ggml import quantize_ggml
from weightmap.core.quant.schemes import BITS, BLOCKED, no_scheme
from weightmap.errors import QuantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

# Every scheme that needs no training.
SCHEMES = (*BITS, "adaptive", *quantised.GGML_ENCODED)
# A word of so many characters in common with a scheme is a misspelt one: "q8".
_CUTOFF = 0.6


def folded(scheme: Any) -> Any:
    """Return the canonical spelling of a scheme; anything but a str stays as it is."""
    return scheme.lower().replace("-", "_") if isinstance(scheme, str) else scheme


def scheme_named(scheme: Any, writable: Sequence[str] = (*SCHEMES, "pq")) -> str:
    """Return the canonical spelling of a scheme. Raises `QuantError`, with the nearest `writable` one."""
    name = folded(scheme)
    if isinstance(name, str) and name in (*SCHEMES, "pq"):
        return name
    raise no_scheme(scheme, writable, near(name, writable))


def near(scheme: Any, writable: Sequence[str]) -> str:
    """Return the end of a message about an unknown scheme: the nearest one, by spelling or else by bits."""
    every = (*SCHEMES, *quantised.GGML_TYPES)
    if isinstance(scheme, str) and scheme not in every:
        scheme = next(iter(similar(scheme, every, _CUTOFF)), None)
    if scheme is None or scheme not in every:
        return ""
    able = [name for name in writable if name != "pq"]
    # Of several as near, the first one listed: the plain scheme of that size.
    best = min(able, key=lambda name: (name != scheme, abs(_bits(name) - _bits(scheme)), -_bits(name)), default=None)
    if best is None:
        return ""
    read = f"{scheme} is read, not written: " if scheme not in SCHEMES else ""
    return f"; {read}the nearest is {best}"


def _bits(scheme: str) -> float:
    """Return about how many bits a weight takes."""
    kind = quantised.GGML_TYPES.get(scheme)
    if kind is not None:
        return 8 * kind.block_bytes / kind.block_size
    return BITS.get(scheme, 5) + (0.5 if scheme in BLOCKED else 0)


def quantize(
    array: ArrayLike,
    scheme: str,
    *,
    block_size: int = 32,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int = 1,
) -> QuantizedTensor:
    """Quantise an array in memory by a scheme that needs no training.

    See `weightmap.quantize`, which documents the arguments, the result and the errors. `threads` is at most how many
    share the work.
    """
    scheme, scale_type = scheme_named(scheme), scale_type_named(scale_type)
    if scheme in quantised.GGML_ENCODED:
        if scale_type != "fp16":
            raise QuantError(f"scale_type of {scheme}", actual=repr(scale_type), expected="'fp16'")
        return quantize_ggml(array, scheme, threads=threads)
    values = quantised.real_numbers(array)
    if scheme == "adaptive":
        payload = quantised.quantize_adaptive(values, block_size, scale_type=scale_type, bits=bits, threads=threads)
        return QuantizedTensor(scheme, values.shape, payload, block_size=block_size, scale_type=scale_type)
    size = block_size if scheme in BLOCKED else 0
    if scheme in BLOCKED and size == 0:
        raise QuantError("block_size", field="block_size", actual=0, expected="a positive number")
    payload = quantised.encode_blocks(
        values, bits=BITS[scheme], block_size=size, scale_type=scale_type, threads=threads
    )
    return QuantizedTensor(scheme, values.shape, payload, block_size=size, scale_type=scale_type)
