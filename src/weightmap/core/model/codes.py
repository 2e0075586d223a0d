"""Recognises stored tensors that hold codes of a quantised parameter: by type, name, and the scales beside them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightmap._messages import counted, quoted
from weightmap.core import hooks
from weightmap.core.dtypes import DTYPES, dtype_named
from weightmap.core.model.internals import name_of, named_rows, parts_of
from weightmap.errors import Remedy, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import DTypeLike

    from weightmap.core.table.table import Row, Table

_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})
_PACKED = frozenset({"float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"})
# Integer types that hold codes in a weight.
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
# Types that are stored packed: only `read` returns their values.
_SMALL_INTEGERS = frozenset({"int4", "uint4", "int2", "uint2"})
# Types of codes, and of scales beside them.
SMALL_FLOATS = _FLOAT8 | _PACKED
_CODES = SMALL_FLOATS | _SMALL_INTEGERS | set(INTEGERS)
# Types that bitsandbytes may store bytes of codes in.
_VIEWED = frozenset({"float16", "bfloat16", "float32"})
_SCALES = frozenset({"float16", "bfloat16", "float32", "float64", "uint8", "int32", "int64", "float8_e8m0fnu"})
# Names of scales: in the module of their codes, and as endings of the name of the codes.
_IN_MODULE = (
    *("scale", "scales", "_scale", "scale_inv", "scale_weight", "weight_scale", "weight_scales", "weight_scale_inv"),
    *("weight_scale_2", "weight_global_scale", "weight_absmax", "absmax", "SCB", "q_scale", "qscales", "w_scale"),
    *("wscale", "wscales", "qscale_weight", "per_channel_scale", "deq_scale"),
    *("weights_scaling_factor", "weights_block_scaling_factor", "meta.scale", "meta.scale_q"),
    "weight_quantizer._scale",
)
_BEHIND = (
    *("_scale", "_scales", "_scale_inv", "_scale_2", "_weight_scale", "_weight_scale_inv", "_global_scale", "_absmax"),
    *(".scale", ".scales", "._scale", ".weight_scale", ".weight_scales", ".weight_scale_inv", ".absmax", ".SCB"),
    *(".wscale", ":scale", "._scale_inv", "_weight_quantizer._scale"),
)
# Endings of names of codes, which an ending of `_BEHIND` may replace.
_ENDINGS = r"(?:[._:]{0,2}(?:blocks|packed|quantized|codes|qdata|data|int8|qweight)|_q|_Q[248]|_Bnb4){1,2}$"
# Names of a quantised parameter's other tensors: zero points, orders, shapes, counters, scales.
_OTHER = (
    r"(?:^|[._:])(?:q?zeros?|zp|zero_?points?|g_?idx|idx|index|indices|ids?|masks?|shape|format|(?:inv_?)?perm|steps?"
    r"|num|count|counter|lengths?|offsets?|labels?|pos|positions?|q?scales?|absmax|enabled|state)(?:$|[._:])"
)
# Tensors that mark a file as quantised.
_MARKS = ("scaled_fp8", "comfy_quant")
_SCALES_OR_MARKS = (b"scal", b"absmax", b"SCB", b"comfy_quant")
# Programs by their names for scales.
_WRITERS = {
    "scales": "GPTQ, AWQ and MLX",
    "scale_weight": "ComfyUI's scaled FP8",
    "weight_scale_inv": "FP8 with scales of blocks",
    "absmax": "bitsandbytes",
    "SCB": "bitsandbytes",
}


def _scale_names(name: str) -> Iterator[str]:
    """Yield the names that the scales of a tensor may have."""
    module, dot, leaf = name.rpartition(".")
    if dot or leaf in {"weight", "qweight", "codes"}:
        yield from (f"{module}{dot}{scale}" for scale in _IN_MODULE)
    if dot:
        yield from (f"{stem}{ending}" for stem in (module, f"{module}.weight") for ending in _BEHIND)
    yield from (f"{name}{ending}" for ending in _BEHIND)
    stem = re.sub(_ENDINGS, "", name)
    if stem != name:
        yield from (f"{stem}{ending}" for ending in _BEHIND)


def scales_of(name: str, row: Row, find: Callable[[str], Row | None]) -> str | None:
    """Return the name of the scales of a tensor of codes; None if it holds values."""
    kind = row.dtype.name
    if kind in _VIEWED and row.nbytes and not row.dtype.quantized:
        return f"{name}.absmax" if find(f"{name}.absmax") is not None else None
    if kind == "nvfp4":  # of GGUF: the scale of the whole tensor, if any, is beside it
        whole = f"{name.removesuffix('.weight')}.scale"
        return whole if find(whole) is not None else None
    if not may_be_codes(name, row):
        return None
    for scale_name in _scale_names(name):
        scales = find(scale_name)
        if scales is None or scales.dtype.quantized:
            continue
        if scales.dtype.name in _SCALES or (scales.dtype.name in _FLOAT8 and kind not in _FLOAT8):
            return scale_name
    return None


def may_be_codes(name: str, row: Row) -> bool:
    """Whether a tensor may hold codes, by type, shape and name."""
    if row.dtype.name not in _CODES or row.dtype.quantized or not row.nbytes:
        return False
    return max(row.shape, default=0) > 1 and re.search(_OTHER, name.rpartition(".")[2].lower()) is None


def _stated_codes(file: Any, name: str, row: Row) -> str | None:
    """Return the place that declares the model quantised, for a weight whose type is one of codes; else None."""
    weight = row.dtype.name in SMALL_FLOATS or (len(row.shape) > 1 and not name.endswith("bias"))
    return (_stated(file) or None) if weight and may_be_codes(name, row) else None


def _stated(file: Any) -> str:
    """Return the place in a configuration that declares a model quantised, read once a handle; "" without one."""
    stated: str | None = file._quantisation  # noqa: SLF001 - of the handle, for this function
    if stated is None:
        stated = file._quantisation = hooks.quantisation_stated(file)  # noqa: SLF001
    return stated


def tell_of_scales(table: Table) -> bool:
    """Whether some tensors of a table may be scales, or mark a file as quantised."""
    text = bytes(table.names.text)  # all names at once: no string for each
    return any(part in text for part in _SCALES_OR_MARKS)


def first_codes(table: Table, numbers: Iterable[int]) -> tuple[str, str, str | None] | None:
    """Return name and type of the first of these tensors that holds codes, and the name of its scales.

    None if all hold values. A tensor that marks a file has no scales.
    """
    if not tell_of_scales(table):
        return None
    names = list(table.names)
    where = {name: number for number, name in enumerate(names)}

    def find(name: str) -> Row | None:
        number = where.get(name)
        return None if number is None else table.row(number)

    for number in numbers:
        name, row = names[number], table.row(number)
        if name.rpartition(".")[2] in _MARKS:
            return name, row.dtype.name, None
        scales = scales_of(name, row, find)
        if scales is not None:
            return name, row.dtype.name, scales
    return None


def refuse_codes(table: Table, numbers: Iterable[int], method: str | None) -> None:
    """Raise `UnsupportedError` if one of these tensors, which would be shown as parameters, holds codes.

    `method` is the method that the configuration names, if any.
    """
    codes = first_codes(table, numbers)
    if codes is None:
        return
    name, kind, scales = codes
    if scales is None:
        msg = f"tensor {quoted(name)} says that the file is quantised as ComfyUI does it, which is not decoded"
        raise UnsupportedError(msg, field="quantization_config")
    what = f"tensor {quoted(name)} is {kind}, codes whose scales are {quoted(scales)}"
    if method is not None:
        raise UnsupportedError(f"{what}: {method} does not have such pieces here", field="quantization_config")
    writer = _WRITERS.get(scales.rpartition(".")[2])
    named = "" if writer is None else f" (as in {writer})"
    expected, remedy = "quantization_config of a config.json beside the file", Remedy("{} names another", "config")
    msg = f"{what}{named}: how they are quantised"
    raise UnsupportedError(msg, actual="not said", expected=expected, remedy=remedy)


def codes_among(file: Any, takes: Callable[[str], bool]) -> tuple[list[str], str]:
    """Return the selected tensors that hold codes, and the evidence for the first."""
    table = parts_of(file)[1].table
    if not table.dtypes() & _CODES and not tell_of_scales(table):
        return [], ""
    rows = dict(named_rows(file))
    pairs = [
        (name, how) for name, row in rows.items() if takes(name) and (how := _known_codes(file, name, row, rows.get))
    ]
    return [name for name, _ in pairs], pairs[0][1] if pairs else ""


def _known_codes(file: Any, name: str, row: Row, find: Callable[[str], Row | None]) -> str | None:
    """Return the evidence that a tensor holds codes; None if it holds values."""
    scales = scales_of(name, row, find)
    if scales is not None:
        return f"codes whose scales are {quoted(scales)}"
    stated = _stated_codes(file, name, row)
    return None if stated is None else f"codes by {stated}"


def check_computable(file: Any, takes: Callable[[str], bool], what: str) -> None:
    """Raise `UnsupportedError` if an operation on the values of stored tensors would take codes for values."""
    names, how = codes_among(file, takes)
    if names:
        some = f"{counted(len(names), 'tensor')} such as {quoted(names[0])}, {how}"
        remedy = Remedy("{} takes the parameters", "weights", switch=True, python="f.weights")
        raise UnsupportedError(f"{what} would take codes for values: {some}", path=name_of(file), remedy=remedy)


def check_readable(file: Any, name: str, row: Row, dtype: DTypeLike | None) -> None:
    """Raise `UnsupportedError` if the values of a stored tensor, in this type, would be its codes."""
    target = "float32" if dtype is None else dtype if dtype in DTYPES else dtype_named(dtype).name
    check_cast(file, name, row, str(target))


def check_cast(file: Any, name: str, row: Row, target: str) -> None:
    """Check as `check_readable` does, for the name of a type that numpy may lack."""
    if row.dtype.name in {target, *_SMALL_INTEGERS}:
        return
    table = file._table  # noqa: SLF001 - one tensor is looked up, not all

    def find(other: str) -> Row | None:
        number = table.find(other)
        return None if number < 0 else table.row(number)

    how = _known_codes(file, name, row, find)
    if how is not None:
        remedy = Remedy("{} has the parameter", "weights", switch=True)
        what = f"tensor {quoted(name)} is {row.dtype.name}, {how}: dtype"
        error = UnsupportedError(what, field="dtype", actual=target, expected=row.dtype.name, remedy=remedy)
        raise error.located(path=row.source.name, format=file.format)
