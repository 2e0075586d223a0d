"""Checksums and hashes: CRC-32 and FNV-1a."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

from weightmap.lazy import later, np
from weightmap.native._native import U32_MAX, as_input, as_items, as_output, ffi, lib, module, thread_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from weightmap.native._native import Buffer

_given_array = later("weightmap.native._memory", "given_array")


def crc32(data: Buffer, value: int = 0, *, threads: int = 1) -> int:
    """Return the CRC-32 of zlib: reflected polynomial 0xEDB88320, initial value and final XOR 0xFFFFFFFF.

    Parameters
    ----------
    data : buffer
    value : int
        CRC of the bytes before `data`, as in `zlib.crc32`; only its low 32 bits count.
    threads : int
        At most this many threads share the work; fewer where the input is too small to gain.

    Returns
    -------
    int
        The CRC, 0 to 2**32 - 1.

    Examples
    --------
    >>> from weightmap import kernels
    >>> hex(kernels.crc32(b"123456789"))
    '0xcbf43926'
    """
    buffer = as_input(data)
    crc: int = lib.wm_crc32(value & U32_MAX, buffer, len(buffer), thread_count(threads))
    return crc


def crc32_combine(crc1: int, crc2: int, len2: int) -> int:
    """Return the CRC-32 of A + B from those of A and B and the length of B in bytes, in time O(log len2).

    Raises
    ------
    ValueError
        When `len2` is negative, or 2**64 or more.
    TypeError
        When one of them is not an integer.

    Examples
    --------
    >>> from weightmap.kernels import crc32, crc32_combine
    >>> crc32_combine(crc32(b"12345"), crc32(b"6789"), 4) == crc32(b"123456789")
    True
    """
    first, second, length = index(crc1), index(crc2), index(len2)
    if not 0 <= length < 1 << 64:
        msg = f"len2 is {length}, expected 0 to 2**64 - 1"
        raise ValueError(msg)
    crc: int = lib.wm_crc32_combine(first & U32_MAX, second & U32_MAX, length)
    return crc


def fnv1a32(data: Buffer) -> int:
    """Return the FNV-1a hash of 32 bits: basis 0x811C9DC5, prime 0x01000193.

    Examples
    --------
    >>> from weightmap import kernels
    >>> hex(kernels.fnv1a32(b"foobar"))
    '0xbf9cf968'
    """
    buffer = as_input(data)
    value: int = lib.wm_fnv1a32(buffer, len(buffer))
    return value


def fnv1a64(data: Buffer) -> int:
    """Return the FNV-1a hash of 64 bits: basis 0xCBF29CE484222325, prime 0x100000001B3.

    Examples
    --------
    >>> from weightmap import kernels
    >>> hex(kernels.fnv1a64(b"foobar"))
    '0x85944171f73967e8'
    """
    buffer = as_input(data)
    value: int = lib.wm_fnv1a64(buffer, len(buffer))
    return value


# Built-in functions of csrc/python replace those above, because a call through cffi takes longer than zlib for a
# kilobyte. The functions above remain the definitions, types and documentation.
crc32_by_cffi, fnv1a32_by_cffi, fnv1a64_by_cffi = crc32, fnv1a32, fnv1a64
_DOCS = [
    ffi.new("char[]", f"{signature}\n--\n\n{function.__doc__}".encode())
    for signature, function in (
        ("crc32(data, value=0, *, threads=1)", crc32),
        ("fnv1a32(data)", fnv1a32),
        ("fnv1a64(data)", fnv1a64),
    )
]
if not TYPE_CHECKING and lib.wm_python_functions(ffi.new("char *[]", [*_DOCS, ffi.NULL])) == 0:
    crc32, fnv1a32, fnv1a64 = module.crc32, module.fnv1a32, module.fnv1a64
    crc32.__module__ = fnv1a32.__module__ = fnv1a64.__module__ = __name__


def fnv1a32_many(blob: Buffer, lengths: ArrayLike, *, out: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
    """Return the FNV-1a 32 of many names, much faster than name by name.

    Parameters
    ----------
    blob : buffer
        The names back to back.
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
        When a length is negative, or 2**32 or more; when the lengths exceed `blob`, or `out` does not fit.
    TypeError
        When `blob` has no contiguous buffer, or `out` is not an array.

    Examples
    --------
    >>> from weightmap import kernels
    >>> [hex(h) for h in kernels.fnv1a32_many(b"foobara", [6, 1]).tolist()]
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
    if not (counts.flags.c_contiguous and counts.flags.aligned):
        counts = counts.copy()
    if out is None:
        hashes = np.empty(len(counts), np.uint32)
    elif (hashes := _given_array(out)).dtype != np.uint32 or hashes.shape != counts.shape or not hashes.flags.carray:
        msg = f"out is {hashes.dtype} {hashes.shape}, expected uint32 {counts.shape}, contiguous and writeable"
        raise ValueError(msg)
    buffer = as_input(blob)
    words, target = as_items("uint32_t[]", counts), as_output(hashes, "uint32_t[]")
    where = lib.wm_fnv1a32_many(buffer, len(buffer), words, len(counts), 0, target)
    if where >= 0:
        msg = f"name {where} of {len(counts)} runs past the blob of {len(buffer)} bytes"
        raise ValueError(msg)
    return hashes
