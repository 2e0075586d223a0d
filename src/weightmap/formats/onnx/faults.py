"""The errors for the faults of a model of ONNX, at the message and the field that each lies in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightmap.errors import FormatError, LayoutError, LimitError, TruncatedError, UnsupportedError, cut_off, shrank
from weightmap.formats.onnx import ENTRY, GRAPH, MODEL, NODE, OPSET, PROPS, SCALARS, TENSOR, TYPES

if TYPE_CHECKING:
    from weightmap.errors import TensorFileError
    from weightmap.io.source import Source
    from weightmap.native import Fault

# The names of fields, by message and number.
_FIELD_NAMES = {
    MODEL: {
        **SCALARS,
        7: "graph",
        OPSET: "opset_import",
        PROPS: "metadata_props",
        20: "training_info",
        25: "functions",
    },
    GRAPH: {1: "node", 5: "initializer"},
    NODE: {},
    TENSOR: dict(
        enumerate(
            (
                *("dims", "data_type", "segment", "float_data", "int32_data", "string_data", "int64_data", "name"),
                *("raw_data", "double_data", "uint64_data", "doc_string", "external_data", "data_location"),
            ),
            1,
        )
    ),
    ENTRY: dict.fromkeys((1, 2), "external_data"),
}
_KNOWN = ", ".join(f"{code} {dtype.name}" for code, dtype in enumerate(TYPES) if dtype is not None)
# By fault: the class of the error, what is wrong, and what is expected instead. With an asterisk the message leaves out
# the value found.
_WORDS: dict[str, tuple[type[FormatError], str, str]] = {
    "END": (LayoutError, "{whole} ends within its field {field}: number of bytes left", "at least {expected}"),
    "VARINT": (FormatError, "{whole}: a number of more than 64 bits*", ""),
    "TAG": (FormatError, "{whole}: tag of a field", "a number from 1 to 2**29 - 1, and a wire type"),
    "KIND": (FormatError, "{whole}: wire type of field {field}", "0, 1, 2 or 5"),
    "WIRE": (FormatError, "{whole}: wire type of {field}", "{expected}"),
    "DIM": (LayoutError, "{whole}: a dimension", "0 or more"),
    "NAME": (FormatError, "{whole}: bytes of its name", "1 to {expected}"),
    "NAMES": (LimitError, "bytes of all names", "at most {expected} (Limits.max_header_bytes)"),
    "KEPT": (LimitError, "bytes of metadata", "at most {expected} (Limits.max_header_bytes)"),
    "TWICE": (LayoutError, "{whole} has data in {field} and in {other}*", ""),
    "FIELD": (LayoutError, "{whole}: data_type of a tensor with {field}", "one that this field is for"),
    "PACKED": (LayoutError, "{whole}: bytes of {field}", "a multiple of {expected}"),
    "COUNT": (LayoutError, "{whole}: bytes of {field}", "those of {expected} numbers by dims and data_type"),
    "NUMBER": (LayoutError, "{whole}: a number in {field}", "one of {expected} bits"),
    "SEGMENT": (UnsupportedError, "{whole} is in segments, which are not read*", ""),
    "LOCATION": (UnsupportedError, "{whole}: data_location", "0 (here) or 1 (external)"),
    "DECIMAL": (FormatError, "{whole}: its offset or length*", "1 to {expected} decimal digits"),
    "PATH": (LayoutError, "{whole}: bytes of its location", "1 to {expected}"),
    "GRAPH": (TruncatedError, "the file ends before the graph of the model*", ""),
    "CAPACITY": (LimitError, "number of initialisers", "at most {expected} (Limits.max_tensors)"),
    "TABLE_NDIM": (LimitError, "{whole}: number of dimensions", "at most {expected}"),
    "TABLE_DTYPE": (UnsupportedError, "{whole}: data_type", f"one of {_KNOWN}"),
}
_FIELD_OF = {"PATH": "location", "CAPACITY": "max_tensors"}


def error_of(fault: Fault, message: int, number: int, source: Source, tensor: str = "") -> TensorFileError | OSError:
    """Return the error for a fault in this message, at the field of this number."""
    kind, at, names = fault.kind.removeprefix("ONNX_"), fault.at, _FIELD_NAMES[message]
    field = _FIELD_OF.get(kind, names.get(number, str(number)))
    if kind == "READ":
        return OSError(fault.actual, os.strerror(fault.actual), source.name) if fault.actual else shrank(at)
    if kind == "END" and message == MODEL:
        return cut_off(f"field {field} of the model", source.size, at + fault.expected, field=field)
    tensor = tensor or f"initialiser {fault.row}"
    whole = ("the model", "the graph", tensor, f"external_data of {tensor}", "a node")[message]
    cls, what, expected = _WORDS[kind]
    words = {"whole": whole, "field": field, "other": names.get(fault.actual, ""), "expected": fault.expected}
    actual = None if what.endswith("*") else fault.actual - (fault.actual >> 63 << 64)
    what, wanted = what.rstrip("*").format(**words), expected.format(**words) or None
    return cls(what, field=field, offset=at, actual=actual, expected=wanted)
