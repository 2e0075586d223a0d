"""Load files into the memory of a device: pinned slots, copies that overlap with reading, conversion on the device.

`load` follows a plan of `weightmap.plan`. The tensors of a file become views of one piece of device memory. Many
threads read bytes without the GIL into a few pinned slots, which the process keeps; from there the device copies them
on a separate stream while the next slot is filled. Quantised blocks are copied packed; the device decodes them if it
can. No mapping is touched: a truncated file raises an error.

A `Backend` has all the code for a kind of device; `weightmap.torch` has PyTorch's.
"""

from weightmap.device._loader import Loader, load
from weightmap.device._slots import Backend, Change, Event, Exchange, Staging, release_slots

__all__ = ["Backend", "Change", "Event", "Exchange", "Loader", "Staging", "load", "release_slots"]
