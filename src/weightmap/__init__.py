"""weightmap: open a model file in microseconds and get numpy arrays that *are* the bytes of the mapped file.

>>> import numpy as np, weightmap as wm
>>> wm.save("model.weights", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
>>> with wm.open("model.weights") as f:
...     w = f["w"]  # a view: no copy, and nothing else is parsed
>>> w
array([[0., 1., 2.],
       [3., 4., 5.]], dtype=float32)
"""

import os as _os
from typing import TYPE_CHECKING

from weightmap.startup import Importing as _Importing

with _Importing() as _importing:
    # First, for it imports numpy: the deeper that begins, the likelier is a loop of it to enter and leave a piece of
    # CPython 3.11's stack at each turn, which took 10 ms.
    from weightmap.lazy import later as _later
    from weightmap.lazy import on_demand

    _importing.take_together()
    from weightmap.errors import (
        AddressError,
        ChecksumError,
        ClosedError,
        DeltaError,
        EncodeError,
        FileChangedError,
        FormatError,
        LayoutError,
        LimitError,
        MissingDependencyError,
        ModelWarning,
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
    "AddressError",
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
    "ModelWarning",
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
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
