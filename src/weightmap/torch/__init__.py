"""PyTorch tensors that share memory with arrays and files, and the reverse; the first call imports ``torch``.

PyTorch has no read-only tensors: `torch.from_numpy` over a read-only mapping warns, and the first write into the tensor
kills the process. These functions never make such a tensor: they copy or raise an error. Open the file with
``mode="cow"`` to get writable tensors that share the mapped pages and never change the file::

    with weightmap.open("model.safetensors", mode="cow") as f:
        weight = weightmap.torch.to_torch(f["weight"])

`load_file` returns all tensors of a file in this way, and `load_into` fills a module. For devices other than the CPU,
`weightmap.device` copies files without touching a mapping.

NumPy lacks bfloat16 and float8; arrays with the types of ml_dtypes become tensors of these types.
"""

from typing import TYPE_CHECKING

from weightmap.core.hooks import on_demand
from weightmap.torch._tensors import to_torch

if TYPE_CHECKING:
    from weightmap.core.model.saving import from_torch
    from weightmap.torch._device import TorchBackend, TorchExchange, to_device
    from weightmap.torch._experts import serve_experts
    from weightmap.torch._files import load_file
    from weightmap.torch._modules import StateError, load_into

__all__ = [
    "StateError",
    "TorchBackend",
    "TorchExchange",
    "from_torch",
    "load_file",
    "load_into",
    "serve_experts",
    "to_device",
    "to_torch",
]

# Plans and transfers are imported at their first use: a view of one tensor needs none.
__getattr__, __dir__ = on_demand(
    __name__,
    globals(),
    dict.fromkeys(("TorchBackend", "TorchExchange", "to_device"), "_device")
    | dict.fromkeys(("StateError", "from_torch", "load_into"), "_modules")
    | {"load_file": "_files", "serve_experts": "_experts"},
)
