"""weightmap: open a model file in microseconds and get numpy arrays that *are* the bytes of the mapped file.

>>> import numpy as np, weightmap as wm
>>> wm.save("model.weights", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
>>> with wm.open("model.weights") as f:
...     w = f["w"]  # a view: no copy, and nothing else is parsed
>>> w
array([[0., 1., 2.],
       [3., 4., 5.]], dtype=float32)
"""

from typing import TYPE_CHECKING

from weightmap.core import hooks
from weightmap.core.arguments import Limits
from weightmap.core.formats import formats
from weightmap.core.hooks import on_demand
from weightmap.core.model.file import TensorFile
from weightmap.core.model.opening import load, open
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

if TYPE_CHECKING:
    from weightmap import kernels
    from weightmap.conversion.compare import DiffReport, diff
    from weightmap.conversion.converting import convert
    from weightmap.conversion.quantizer import Quantize
    from weightmap.conversion.running import Run
    from weightmap.conversion.tensor_diffs import TensorDiff
    from weightmap.conversion.verifying import verify
    from weightmap.core.model.reports import ConvertReport, VerifyReport
    from weightmap.core.model.saving import Output, save
    from weightmap.core.model.typing import Remote
    from weightmap.core.quant.blocks import QuantizedTensor
    from weightmap.core.quant.quantizing import quantize
    from weightmap.core.table.table import TensorInfo
    from weightmap.core.table.vocabulary import Vocabulary
    from weightmap.plans.planning import ReadPlan, plan
    from weightmap.plans.wants import shard
    from weightmap.words.embeddings import Embeddings

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
    "Output",
    "PlanError",
    "QuantError",
    "Quantize",
    "QuantizedTensor",
    "ReadPlan",
    "Remote",
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
    "ConvertReport": "core.model.reports",
    "DiffReport": "conversion.compare",
    "Embeddings": "words.embeddings",
    "Output": "core.model.saving",
    "Quantize": "conversion.quantizer",
    "QuantizedTensor": "core.quant.blocks",
    "ReadPlan": "plans.planning",
    "Remote": "core.model.typing",
    "Run": "conversion.running",
    "TensorDiff": "conversion.tensor_diffs",
    "TensorInfo": "core.table.table",
    "VerifyReport": "core.model.reports",
    "Vocabulary": "core.table.vocabulary",
    "convert": "conversion.converting",
    "diff": "conversion.compare",
    "plan": "plans.planning",
    "quantize": "core.quant.quantizing",
    "save": "core.model.saving",
    "shard": "plans.wants",
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
    "onnxruntime",
    "report",
    "torch",
    "trust",
    "typing",
    "vllm",
    "words",
)
__getattr__, __dir__ = on_demand(__name__, globals(), _ON_DEMAND, _MODULES)

hooks.location_of.register("weightmap.remote.stores", "location_of")
hooks.open_location.register("weightmap.remote.remote", "open_location")
hooks.write_to_address.register("weightmap.remote.uploading", "write_to_address")
hooks.trust_in.register("weightmap.trust.checking", "resolve_trust")
hooks.overlay.register("weightmap.deltas.overlay", "overlay")
hooks.weights_of.register("weightmap.checkpoints.handle", "weights_of")
hooks.quantisation_stated.register("weightmap.checkpoints.configuration", "quantisation_stated")
hooks.importers.register("weightmap.words.importers", "every")
hooks.direct_reader.register("weightmap.plans.direct", "DirectReader")
hooks.prefetch.register("weightmap.plans.pages", "prefetch")
