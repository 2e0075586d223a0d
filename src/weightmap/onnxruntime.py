"""Sessions of onnxruntime that take their weights from one mapped file, shared by all sessions and processes."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import numpy as np

from weightmap._messages import quoted
from weightmap.core.formats.onnx import TYPES
from weightmap.core.model.internals import name_of, parts_of
from weightmap.core.model.opening import Model, as_handle, open
from weightmap.errors import LayoutError, MissingDependencyError, TensorNotFoundError

__all__ = ["session_options"]

# ONNX's codes for the types that numpy has too, by name.
_CODES = {kind.name: code for code, kind in enumerate(TYPES[:21]) if kind and not kind.name.startswith("complex")}


def session_options(model: str | os.PathLike[str], weights: Model | None = None) -> Any:
    """Return options for sessions of a model that read the initialisers from a mapped file.

    ``onnxruntime.InferenceSession(model, session_options(model))`` copies no initialiser, unless onnxruntime pre-packs
    it. The options keep the mapping alive, and a session its options; any number of sessions may use them.

    Graph optimisation is off: onnxruntime's optimisers change the model's initialisers and compute new ones from them,
    but the session gets the file's. Optimise once, save the optimised model, and pass it here.

    Parameters
    ----------
    model : str or os.PathLike
        An ONNX model. onnxruntime also opens its external data, even if it uses none of them.
    weights : TensorFile, or anything that `weightmap.open` takes, optional
        A file of any format whose tensors have the names, types and shapes of initialisers; by default the model
        itself. The model supplies initialisers that the file lacks, constants of functions, and values without an
        array, such as strings. A handle stays open.

    Returns
    -------
    onnxruntime.SessionOptions
        Other settings of a session, such as ``intra_op_num_threads``, may be set on it. Tensors that are not row-major,
        aligned and in the machine's byte order are copied.

    Raises
    ------
    TensorNotFoundError
        `weights` has none of the model's initialisers.
    LayoutError
        A tensor of `weights` has another type or shape than the initialiser.
    MissingDependencyError
        onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError("onnxruntime is needed for this: pip install onnxruntime") from None
    options = type("SessionOptions", (onnxruntime.SessionOptions,), {})()  # a class that takes attributes
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.mapped = []
    opened = nullcontext() if weights is None else as_handle(weights, private=False)
    with open(os.fspath(model), format="onnx", strict=False) as described, opened as other:
        source, ambiguous = described if other is None else other, parts_of(described)[1].ambiguous
        for info in described.infos():
            name, dtype, shape = info.name, info.dtype, info.shape
            if name not in source or name in ambiguous or dtype not in _CODES:
                continue
            array: Any = source[name]
            kind = source.info(name).dtype if isinstance(array, np.ndarray) else f"blocks of {source.info(name).dtype}"
            if (kind, array.shape) != (dtype, shape):
                expected = f"{dtype} {list(shape)}, as in {quoted(name_of(described))}"
                actual = f"{kind} {list(array.shape)}"
                raise LayoutError(f"tensor {quoted(name)}", path=name_of(source), actual=actual, expected=expected)
            array = np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
            bits = array.view(f"u{array.itemsize}")
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _CODES[dtype])
            options.add_initializer(name, value)
            options.mapped.append(value)
    if weights is not None and not options.mapped:
        what = f"no tensor has the name of an initialiser of {quoted(os.fspath(model))}"
        raise TensorNotFoundError(what, path=name_of(source), format=source.format)
    return options
