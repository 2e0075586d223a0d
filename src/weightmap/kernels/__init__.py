"""Kernels in C: checksums, hashes, scans, conversions, quantised blocks. Arrays in, arrays out.

Every kernel takes any C-contiguous buffer (bytes, bytearray, memoryview, mmap, numpy array), releases the GIL while it
works, and gives to the bit what its plain definition gives, whatever the instruction set in use. A buffer that is not
contiguous is a TypeError. This package is the only one that touches the C extension; what it has beyond the public
names serves the rest of weightmap.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import numpy as np

# The rest of weightmap takes these from here; they are not part of the interface.
from weightmap.kernels._amb import AMB_FIELDS as AMB_FIELDS
from weightmap.kernels._amb import Section as Section
from weightmap.kernels._amb import amb_walk as amb_walk
from weightmap.kernels._fifu import fifu_ngrams as fifu_ngrams
from weightmap.kernels._fifu import fifu_skip as fifu_skip
from weightmap.kernels._files import map_file as map_file
from weightmap.kernels._files import stamp as stamp
from weightmap.kernels._files import unchanged as unchanged
from weightmap.kernels._files import will_need as will_need
from weightmap.kernels._half import bf16_to_f32, f16_to_f32, unpack_f16_pairs
from weightmap.kernels._half import half_variants as half_variants
from weightmap.kernels._half import widen as widen
from weightmap.kernels._memory import empty as empty
from weightmap.kernels._native import NULL, as_input, as_output, ffi, from_buffer, lib, module, thread_count
from weightmap.kernels._native import U32_MAX as U32_MAX
from weightmap.kernels._pq import Codes as Codes
from weightmap.kernels._strings import index_build as index_build
from weightmap.kernels._strings import index_find_many as index_find_many
from weightmap.kernels._strings import index_finder as index_finder
from weightmap.kernels._strings import utf8_strings as utf8_strings
from weightmap.kernels._strings import walk_strings as walk_strings
from weightmap.kernels._subwords import NGRAMS_MOST as NGRAMS_MOST
from weightmap.kernels._subwords import Ngrams as Ngrams
from weightmap.kernels._subwords import gather_rows as gather_rows
from weightmap.kernels._subwords import pack_texts as pack_texts
from weightmap.kernels._subwords import unit_sums as unit_sums
from weightmap.kernels._tables import FAULTS as FAULTS
from weightmap.kernels._tables import Columns as Columns
from weightmap.kernels._tables import Fault as Fault
from weightmap.kernels._tables import bintensors_scan as bintensors_scan
from weightmap.kernels._tables import cnn_layers as cnn_layers
from weightmap.kernels._tables import pairs_check as pairs_check
from weightmap.kernels._tables import records_check as records_check
from weightmap.kernels._tables import records_find as records_find
from weightmap.kernels._tables import safetensors_scan as safetensors_scan
from weightmap.lazy import on_demand

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from weightmap.kernels._adaptive import adaptive_counts as adaptive_counts
    from weightmap.kernels._adaptive import adaptive_places as adaptive_places
    from weightmap.kernels._adaptive import decode_adaptive as decode_adaptive
    from weightmap.kernels._adaptive import quantize_adaptive as quantize_adaptive
    from weightmap.kernels._blocks import SCALE_TYPES as SCALE_TYPES
    from weightmap.kernels._blocks import blocks_size as blocks_size
    from weightmap.kernels._blocks import decode_blocks as decode_blocks
    from weightmap.kernels._blocks import dequantize_int4, dequantize_int5
    from weightmap.kernels._native import Buffer
    from weightmap.kernels._quantize import encode_blocks as encode_blocks
    from weightmap.kernels._quantize import encode_with_errors as encode_with_errors
    from weightmap.kernels._quantize import quantize_int4, quantize_int5
    from weightmap.kernels._quantize import quantize_int8 as quantize_int8
    from weightmap.kernels._quantize import real_numbers as real_numbers

__all__ = [
    "available_isas",
    "bf16_to_f32",
    "crc32",
    "crc32_combine",
    "dequantize_int4",
    "dequantize_int5",
    "f16_to_f32",
    "fnv1a32",
    "fnv1a32_many",
    "fnv1a64",
    "isa",
    "quantize_int4",
    "quantize_int5",
    "unpack_f16_pairs",
    "use_isa",
]


# Not needed to open a file, and so imported when first asked for.
_ON_DEMAND = {
    "SCALE_TYPES": "_blocks",
    "adaptive_counts": "_adaptive",
    "adaptive_places": "_adaptive",
    "blocks_size": "_blocks",
    "decode_adaptive": "_adaptive",
    "decode_blocks": "_blocks",
    "dequantize_int4": "_blocks",
    "dequantize_int5": "_blocks",
    "encode_blocks": "_quantize",
    "encode_with_errors": "_quantize",
    "quantize_adaptive": "_adaptive",
    "quantize_int4": "_quantize",
    "quantize_int5": "_quantize",
    "quantize_int8": "_quantize",
    "real_numbers": "_quantize",
}
__getattr__ = on_demand(__name__, globals(), _ON_DEMAND)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this CPU has, plainest first: "portable" is always there.

    Examples
    --------
    >>> available_isas()[0]
    'portable'
    """
    names = []
    tier = 0
    while (name := lib.wm_isa_name(tier)) != NULL:
        if lib.wm_isa_available(tier):
            names.append(ffi.string(name).decode())
        tier += 1
    return tuple(names)


def isa() -> str:
    """Return the instruction set in use: the best one available, unless `use_isa` chose another."""
    name: str = ffi.string(lib.wm_isa_name(lib.wm_isa_selected())).decode()
    return name


def use_isa(name: str) -> None:
    """Use the instruction set `name` from now on, in all threads: for tests and comparisons, results never differ.

    Parameters
    ----------
    name : str
        One of `available_isas`.

    Raises
    ------
    ValueError
        When this CPU does not have it.
    """
    tier = 0
    while (found := lib.wm_isa_name(tier)) != NULL:
        if ffi.string(found).decode() == name and lib.wm_isa_select(tier) == 0:
            return
        tier += 1
    msg = f"instruction set {name!r} is not available here; there are {', '.join(available_isas())}"
    raise ValueError(msg)


def crc32_variant() -> str:
    """Return the name of the C function that `crc32` uses for long inputs, such as "crc32_x86_pclmulqdq"."""
    name: str = ffi.string(lib.wm_crc32_variant()).decode()
    return name


def fnv1a32_variant() -> str:
    """Return the name of the C function that `fnv1a32_many` uses."""
    name: str = ffi.string(lib.wm_fnv1a32_variant()).decode()
    return name


def intblock_variant() -> str:
    """Return the name of the C function that decodes quantised blocks."""
    name: str = ffi.string(lib.wm_intblock_variant()).decode()
    return name


def combine_rows_variant() -> str:
    """Return the name of the C function that multiplies by projections."""
    name: str = ffi.string(lib.wm_combine_rows_variant()).decode()
    return name


def crc32(data: Buffer, value: int = 0, *, threads: int = 1) -> int:
    """CRC-32 as of zlib: reflected polynomial 0xEDB88320, initial value and final XOR 0xFFFFFFFF.

    Parameters
    ----------
    data : buffer
        The bytes.
    value : int
        CRC of the bytes before `data`, as `zlib.crc32` takes it; only its low 32 bits count.
    threads : int
        At most this many threads share the work; fewer where the input is too small to gain.

    Returns
    -------
    int
        The CRC, 0 to 2**32 - 1.

    Examples
    --------
    >>> hex(crc32(b"123456789"))
    '0xcbf43926'
    """
    buffer = as_input(data)
    crc: int = lib.wm_crc32(value & U32_MAX, buffer, len(buffer), thread_count(threads))
    return crc


# A call through cffi costs more than zlib takes for a kilobyte. So the built-in function of csrc/python.c takes the
# place of the one above, which stays its definition, its types and its documentation.
_CRC32_DOC = ffi.new("char[]", f"crc32(data, value=0, *, threads=1)\n--\n\n{cleandoc(crc32.__doc__ or '')}".encode())
if not TYPE_CHECKING and lib.wm_python_functions(_CRC32_DOC) == 0:
    crc32_by_cffi, crc32 = crc32, module.crc32
    crc32.__module__ = __name__


def crc32_combine(crc1: int, crc2: int, len2: int) -> int:
    """CRC-32 of A + B from that of A, that of B and the length of B in bytes, in time O(log len2).

    Raises
    ------
    ValueError
        When `len2` is negative or not below 2**64.

    Examples
    --------
    >>> crc32_combine(crc32(b"12345"), crc32(b"6789"), 4) == crc32(b"123456789")
    True
    """
    if not 0 <= len2 < 1 << 64:
        msg = f"len2 is {len2}, expected 0 to 2**64 - 1"
        raise ValueError(msg)
    crc: int = lib.wm_crc32_combine(crc1 & U32_MAX, crc2 & U32_MAX, len2)
    return crc


def fnv1a32(data: Buffer) -> int:
    """FNV-1a hash of 32 bits: basis 0x811C9DC5, prime 0x01000193.

    Examples
    --------
    >>> hex(fnv1a32(b"foobar"))
    '0xbf9cf968'
    """
    buffer = as_input(data)
    value: int = lib.wm_fnv1a32(buffer, len(buffer))
    return value


def fnv1a64(data: Buffer) -> int:
    """FNV-1a hash of 64 bits: basis 0xCBF29CE484222325, prime 0x100000001B3.

    Examples
    --------
    >>> hex(fnv1a64(b"foobar"))
    '0x85944171f73967e8'
    """
    buffer = as_input(data)
    value: int = lib.wm_fnv1a64(buffer, len(buffer))
    return value


def fnv1a32_many(blob: Buffer, lengths: ArrayLike, *, out: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
    """FNV-1a 32 of many names at once, much faster than name by name.

    Parameters
    ----------
    blob : buffer
        The names, one after another with nothing between them.
    lengths : array_like of int, shape (n,)
        Their lengths in bytes.
    out : ndarray of uint32, shape (n,), optional
        Filled and returned; contiguous and writeable.

    Returns
    -------
    ndarray of uint32, shape (n,)
        Their hashes.

    Raises
    ------
    ValueError
        When a length is negative or not below 2**32, the lengths add up to more than `blob` holds, or `out` is not as
        it has to be.

    Examples
    --------
    >>> [hex(h) for h in fnv1a32_many(b"foobara", [6, 1]).tolist()]
    ['0xbf9cf968', '0xe40c292c']
    """
    counts = np.asarray(lengths)
    if counts.dtype != np.uint32:
        if counts.size and counts.dtype.kind not in "ui":
            msg = f"lengths must be integers, not {counts.dtype}"
            raise ValueError(msg)
        if int(counts.min(initial=0)) < 0 or int(counts.max(initial=0)) > U32_MAX:
            found = f"{counts.dtype} from {counts.min()} to {counts.max()}"
            msg = f"lengths must be integers from 0 to 2**32 - 1, not {found}"
            raise ValueError(msg)
        counts = counts.astype(np.uint32)
    if counts.ndim != 1:
        msg = f"lengths has {counts.ndim} dimensions, expected 1"
        raise ValueError(msg)
    if not counts.flags.c_contiguous:
        counts = np.ascontiguousarray(counts)
    if out is None:
        hashes = np.empty(len(counts), np.uint32)
    elif (hashes := out).dtype != np.uint32 or hashes.shape != counts.shape or not hashes.flags.carray:
        msg = f"out is {hashes.dtype} {hashes.shape}, expected uint32 {counts.shape}, contiguous and writeable"
        raise ValueError(msg)
    buffer = as_input(blob)
    where = lib.wm_fnv1a32_many(
        buffer, len(buffer), from_buffer("uint32_t[]", counts), len(counts), 0, as_output(hashes, "uint32_t[]")
    )
    if where >= 0:
        msg = f"name {where} of {len(counts)} runs past the blob of {len(buffer)} bytes"
        raise ValueError(msg)
    return hashes
