"""Data types: their names, their sizes in files, and the numpy dtypes that read them.

The canonical names of types are the names in numpy and ml_dtypes: "float32", "bfloat16", "float8_e4m3fn". Formats map
their own codes and names to these. All values in files are little-endian.

Quantised tensors have a scheme instead of a type: see `weightmap.core.quant.schemes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import MissingDependencyError, QuantError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class DType:
    """A data type, or a scheme of quantisation.

    Attributes
    ----------
    name : str
        Canonical name.
    bits : int
        Bits of an element in a file; `DECLARED` for a scheme, because the file declares the bytes of such a tensor.
    code : str or None
        numpy's code of the dtype, such as "<f4", if numpy itself has it.
    quantized : bool
        Whether this is a scheme.
    declared : bool
        Whether the file declares the size of each tensor.
    swapped : bool
        Whether elements are big-endian; the types in `DTYPES` are little-endian.
    packed : bool
        Whether elements do not fill whole bytes: arrays hold the packed bytes, as uint8.
    loaded : dtype or None
        The numpy dtype of arrays, after the first call of `numpy_dtype`.
    """

    __slots__ = ("bits", "code", "declared", "loaded", "name", "packed", "quantized", "swapped")

    def __init__(
        self,
        name: str,
        bits: int,
        code: str | None = None,
        *,
        loaded: np.dtype[Any] | None = None,
        quantized: bool = False,
    ) -> None:
        self.name: str = name
        self.bits: int = bits
        self.code: str | None = code
        self.loaded: np.dtype[Any] | None = loaded
        self.quantized: bool = quantized
        self.declared: bool = bits == DECLARED
        self.swapped: bool = code is not None and code[0] == ">"
        self.packed: bool = not quantized and bits % 8 != 0


# Stands for the bits of a scheme; larger than the bits of any element. kernels.h has the same number.
DECLARED = 255
# numpy's limit, not a format's.
NUMPY_MAX_NDIM = 64


# bool is a byte; any value but 0 is true. Bytes 2 to 255 in files stay as they are.
_NUMPY = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "uint16": "<u2",
    "int16": "<i2",
    "float16": "<f2",
    "uint32": "<u4",
    "int32": "<i4",
    "float32": "<f4",
    "uint64": "<u8",
    "int64": "<i8",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}
# Types of ml_dtypes, which the first array of such a type imports; torch uses the same names. Each maps to the integer
# type of the same width, which carries elements between libraries.
CROSSING: dict[str, type[np.generic]] = {
    "bfloat16": np.int16,
    "float8_e4m3fn": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e5m2fnuz": np.uint8,
    "float8_e8m0fnu": np.uint8,
}
# A type of torch whose element is a byte with two elements of float4_e2m1fn.
PAIRS = "float4_e2m1fn_x2"
# Short names for callers. numpy's own "f16" has 16 bytes, which no format stores.
SHORT = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
# The types between which values are converted.
FLOATING = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
# Elements of less than a byte, packed: `f[name]` has their bytes, and `read` their values.
_PACKED = {"float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}

DTYPES: dict[str, DType] = {
    **{name: DType(name, 8 * int(code[2:]), code) for name, code in _NUMPY.items()},
    **{name: DType(name, 8 * np.dtype(integer).itemsize) for name, integer in CROSSING.items()},
    **{name: DType(name, bits) for name, bits in _PACKED.items()},
}
# Separate from types, because int8 is the name of a type and of a scheme.
SCHEMES: dict[str, DType] = {
    name: DType(name, DECLARED, quantized=True)
    for name in ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive", "pq")
}
_by_numpy: dict[np.dtype[Any], DType | None] = {}
_MAX_CACHED = 256


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the numpy dtype of arrays of `dtype`; import ml_dtypes if it has the dtype.

    Raises
    ------
    UnsupportedError
        For packed types and schemes, which numpy lacks.
    MissingDependencyError
        When ml_dtypes is not installed.
    """
    loaded = dtype.loaded
    if loaded is None:
        loaded = dtype.loaded = _load(dtype)
    return loaded


def _load(dtype: DType) -> np.dtype[Any]:
    if dtype.quantized:
        msg = f"dtype {dtype.name} is a scheme of quantisation, which numpy cannot view"
        raise UnsupportedError(msg, field="dtype")
    if dtype.code is not None:
        return np.dtype(dtype.code)
    if dtype.name not in CROSSING:
        what = "has no decoder" if dtype.declared else f"packs elements of {dtype.bits} bits"
        msg = f"dtype {dtype.name} {what}, and numpy lacks it; f[name] gives the bytes"
        raise UnsupportedError(msg, field="dtype")
    return _from_ml_dtypes(dtype)


def _from_ml_dtypes(dtype: DType) -> np.dtype[Any]:
    try:
        import ml_dtypes  # noqa: PLC0415 - takes 10 ms, needed by few files
    except ImportError:
        raise MissingDependencyError(f"dtype {dtype.name} needs ml_dtypes: pip install ml_dtypes") from None
    element: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.name))
    return element


def packed_values(dtype: DType) -> NDArray[np.float32]:
    """Return the value of each code of a type that packs its elements."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    return codes.view(_from_ml_dtypes(dtype)).astype(np.float32)


def dtype_named(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a numpy dtype by any name: numpy's, ml_dtypes' ("bfloat16") or a short one ("bf16").

    Raises TypeError for anything else, and for dtypes of sub-arrays, which would add dimensions.
    """
    meant = _meant(dtype)
    return numpy_dtype(meant) if isinstance(meant, DType) else meant


def name_of_dtype(dtype: DTypeLike) -> str:
    """Return the canonical name of a dtype that `dtype_named` takes, without importing ml_dtypes for it."""
    return _meant(dtype).name


def _meant(dtype: DTypeLike) -> DType | np.dtype[Any]:
    """Return the type that a caller means, one of `DTYPES` or else a numpy dtype."""
    named = DTYPES.get(SHORT.get(dtype, dtype)) if isinstance(dtype, str) else None
    if named is not None:
        return named
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # numpy raises all of them for a name
        kind = None
    names = ", ".join((*CROSSING, *SHORT))
    expected = f"expected one that numpy has, such as 'float32', or {names}"
    if kind is None or kind.subdtype is not None:
        raise TypeError(f"dtype is {dtype!r}, {expected}")
    if isinstance(dtype, str) and kind.type in (np.longdouble, np.clongdouble):  # "<f16" has 16 bytes
        raise TypeError(f"dtype is {dtype!r}, numpy's name of {kind.name}, {expected}; for that type give numpy.{kind}")
    return kind


def scale_type_named(scale_type: Any) -> str:
    """Return "fp16" or "fp32" for any name of a scale type. Raises `QuantError` for other types."""
    try:
        name = dtype_named(scale_type).name
    except TypeError:
        name = ""
    if name not in ("float16", "float32"):
        raise QuantError("scale_type", field="scale_type", actual=repr(scale_type), expected="'fp16' or 'fp32'")
    return "fp16" if name == "float16" else "fp32"


def dtype_of(dtype: DTypeLike) -> DType | None:
    """Return the `DType` of a numpy dtype in either byte order, or None if no format has it."""
    key = np.dtype(dtype)
    try:
        return _by_numpy[key]
    except KeyError:
        # Cache it: numpy builds the name at each access, which takes longer than all other work on a small array.
        known_dtype = DTYPES.get(key.name)
        if len(_by_numpy) < _MAX_CACHED:  # the number of structured dtypes has no limit
            _by_numpy[key] = known_dtype
        return known_dtype


# The types of ggml's blocks, in lower case, and their numbers in GGUF files.
GGML_SCHEMES = {
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q2_k": 10,
    "q3_k": 11,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "iq2_xxs": 16,
    "iq2_xs": 17,
    "iq3_xxs": 18,
    "iq1_s": 19,
    "iq4_nl": 20,
    "iq3_s": 21,
    "iq2_s": 22,
    "iq4_xs": 23,
    "iq1_m": 29,
    "tq1_0": 34,
    "tq2_0": 35,
    "mxfp4": 39,
    "nvfp4": 40,
    "q1_0": 41,
    "q2_0": 42,
}
SCHEMES |= {name: DType(name, DECLARED, quantized=True) for name in GGML_SCHEMES}
