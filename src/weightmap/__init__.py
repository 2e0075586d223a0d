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

from weightmap import kernels
from weightmap.errors import (
    ChecksumError,
    ClosedError,
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
    UnknownFormatError,
    UnsupportedError,
)
from weightmap.formats import formats
from weightmap.lazy import later as _later
from weightmap.lazy import on_demand
from weightmap.model.file import TensorFile
from weightmap.model.opening import load, open
from weightmap.options import Limits

if TYPE_CHECKING:
    from weightmap.conversion.compare import DiffReport, diff
    from weightmap.conversion.converting import convert
    from weightmap.conversion.quantizing import quantize
    from weightmap.conversion.reports import ConvertReport
    from weightmap.conversion.tensor_diffs import TensorDiff
    from weightmap.conversion.verifying import verify
    from weightmap.embeddings.embeddings import Embeddings
    from weightmap.embeddings.vocabulary import Vocabulary
    from weightmap.index.table import TensorInfo
    from weightmap.model.saving import save
    from weightmap.model.verifying import VerifyReport
    from weightmap.plans.indices import shard
    from weightmap.plans.planning import plan
    from weightmap.plans.read_plan import ReadPlan
    from weightmap.quant.blocks import QuantizedTensor

__version__ = "0.2.0"

__all__ = [
    "ChecksumError",
    "ClosedError",
    "ConvertReport",
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
    "QuantizedTensor",
    "ReadPlan",
    "RemoteError",
    "ShardsError",
    "TargetError",
    "TensorDiff",
    "TensorFile",
    "TensorFileError",
    "TensorInfo",
    "TensorNotFoundError",
    "TruncatedError",
    "UnknownFormatError",
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
    "ConvertReport": "conversion.reports",
    "DiffReport": "conversion.compare",
    "Embeddings": "embeddings.embeddings",
    "QuantizedTensor": "quant.blocks",
    "ReadPlan": "plans.read_plan",
    "TensorDiff": "conversion.tensor_diffs",
    "TensorInfo": "index.table",
    "VerifyReport": "model.verifying",
    "Vocabulary": "embeddings.vocabulary",
    "convert": "conversion.converting",
    "diff": "conversion.compare",
    "plan": "plans.planning",
    "quantize": "conversion.quantizing",
    "save": "model.saving",
    "shard": "plans.indices",
    "verify": "conversion.verifying",
}
__getattr__ = on_demand(__name__, globals(), _ON_DEMAND)

if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(before=_later(f"{__name__}.forking", "load_all"))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
