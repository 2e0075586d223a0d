"""weightmap: open a model file in microseconds and get numpy arrays that *are* the bytes of the mapped file.

>>> import numpy as np, weightmap as wm
>>> wm.save("model.weights", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
>>> with wm.open("model.weights") as f:
...     w = f["w"]  # a view: no copy, and nothing else is parsed
>>> w
array([[0., 1., 2.],
       [3., 4., 5.]], dtype=float32)
"""

import gc as _gc
import os as _os
import sys as _sys
from typing import TYPE_CHECKING

# Nearly all that an import makes stays: the collector would go through it a dozen times and free nothing. It rests, and
# then what there is counts as old, or else its next round would go through all of it. In a process that had little more
# than the interpreter and numpy, what there is stays frozen: going through all of it once more took a sixth of the time
# of a process that takes one tensor. In others that might keep garbage of the program. What was frozen stays so.
_FEW = 90_000 if "numpy" in _sys.modules else 25_000  # pieces of memory; the interpreter has 10,000, with numpy 73,000
_few = _sys.getallocatedblocks() < _FEW
_collects = _gc.isenabled()
_gc.disable()
try:
    # First, for it imports numpy: the deeper that begins, the likelier is a loop of it to enter and leave a piece of
    # CPython 3.11's stack at each turn, which took 10 ms.
    from weightmap.lazy import later as _later
    from weightmap.lazy import on_demand

    # isort: split
    from weightmap.errors import (
        ChecksumError,
        ClosedError,
        DeltaError,
        EncodeError,
        FileChangedError,
        FormatError,
        LayoutError,
        LimitError,
        MissingDependencyError,
        NotRegularFileError,
        PlanError,
        QuantError,
        RemoteError,
        ShardsError,
        TargetError,
        TensorFileError,
        TensorNotFoundError,
        TruncatedError,
        TrustError,
        UnknownFormatError,
        UnknownWordError,
        UnsupportedError,
    )
    from weightmap.formats import formats
    from weightmap.model import opening as _opening
    from weightmap.model import single as _single
    from weightmap.model.file import TensorFile
    from weightmap.model.opening import load, open
    from weightmap.options import Limits
finally:
    if _collects:
        if not _gc.get_freeze_count():
            _gc.freeze()
            if not _few:
                _gc.unfreeze()
        _gc.enable()

if TYPE_CHECKING:
    from weightmap import kernels
    from weightmap.conversion.compare import DiffReport, diff
    from weightmap.conversion.converting import convert, quantize
    from weightmap.conversion.running import Run
    from weightmap.conversion.spec import Quantize
    from weightmap.conversion.tensor_diffs import TensorDiff
    from weightmap.conversion.verifying import verify
    from weightmap.embeddings.embeddings import Embeddings
    from weightmap.embeddings.vocabulary import Vocabulary
    from weightmap.index.row import TensorInfo
    from weightmap.model.reports import ConvertReport
    from weightmap.model.saving import save
    from weightmap.model.verify_report import VerifyReport
    from weightmap.plans.indices import shard
    from weightmap.plans.planning import plan
    from weightmap.plans.read_plan import ReadPlan
    from weightmap.quant.blocks import QuantizedTensor

__version__ = "0.3.0"

__all__ = [
    "ChecksumError",
    "ClosedError",
    "ConvertReport",
    "DeltaError",
    "DiffReport",
    "Embeddings",
    "EncodeError",
    "FileChangedError",
    "FormatError",
    "LayoutError",
    "LimitError",
    "Limits",
    "MissingDependencyError",
    "NotRegularFileError",
    "PlanError",
    "QuantError",
    "Quantize",
    "QuantizedTensor",
    "ReadPlan",
    "RemoteError",
    "Run",
    "ShardsError",
    "TargetError",
    "TensorDiff",
    "TensorFile",
    "TensorFileError",
    "TensorInfo",
    "TensorNotFoundError",
    "TruncatedError",
    "TrustError",
    "UnknownFormatError",
    "UnknownWordError",
    "UnsupportedError",
    "VerifyReport",
    "Vocabulary",
    "convert",
    "diff",
    "formats",
    "kernels",
    "load",
    "open",
    "plan",
    "quantize",
    "save",
    "shard",
    "verify",
]

# Imported at first use: opening a file does not need these.
_ON_DEMAND = {
    "ConvertReport": "model.reports",
    "DiffReport": "conversion.compare",
    "Embeddings": "embeddings.embeddings",
    "Quantize": "conversion.spec",
    "QuantizedTensor": "quant.blocks",
    "ReadPlan": "plans.read_plan",
    "Run": "conversion.running",
    "TensorDiff": "conversion.tensor_diffs",
    "TensorInfo": "index.row",
    "VerifyReport": "model.verify_report",
    "Vocabulary": "embeddings.vocabulary",
    "convert": "conversion.converting",
    "diff": "conversion.compare",
    "plan": "plans.planning",
    "quantize": "conversion.converting",
    "save": "model.saving",
    "shard": "plans.indices",
    "verify": "conversion.verifying",
}
# Their frameworks need not be installed, so neither __all__ nor dir() has them.
_MODULES = (
    "compat",
    "dcp",
    "deltas",
    "device",
    "dlpack",
    "errors",
    "hub",
    "jax",
    "kernels",
    "report",
    "torch",
    "trust",
    "typing",
    "vllm",
    "words",
)
__getattr__ = on_demand(__name__, globals(), _ON_DEMAND, _MODULES)

# A file that no format recognises may hold words, which stand on handles.
_single.importers = _later(f"{__name__}.words.importers", "every")
# So do deltas.
_opening.overlay = _later(f"{__name__}.deltas.overlay", "overlay")
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(before=_later(f"{__name__}.forking", "load_all"))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
