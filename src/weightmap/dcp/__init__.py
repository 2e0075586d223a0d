"""Any model for ``torch.distributed.checkpoint``; each rank reads only the bytes of its own slices.

::

    import torch.distributed.checkpoint as dcp
    from weightmap.dcp import WeightmapStorageReader

    dcp.load(model.state_dict(), storage_reader=WeightmapStorageReader("model.safetensors"))

The module needs PyTorch, which it imports; `weightmap` itself does not import this module.
"""

from weightmap.errors import MissingDependencyError

try:
    import torch.distributed.checkpoint  # noqa: F401 - the modules below need it
except ImportError:
    raise MissingDependencyError("weightmap.dcp needs PyTorch: pip install '.[torch]' in a checkout") from None

from weightmap.dcp._reader import LoadReport, WeightmapStorageReader

__all__ = ["LoadReport", "WeightmapStorageReader"]
