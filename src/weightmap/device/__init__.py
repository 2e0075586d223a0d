"""From files into the memory of a device: pinned slots, copies that overlap with reading, types changed on the device.

`load` goes through a plan of `weightmap.plan`. The tensors of a file become views of one piece of device memory. Many
threads read bytes without the GIL into a few pinned slots, which the process keeps; from there the device copies them
on a stream of its own while the next slot is filled. Quantised blocks go over packed, and the device decodes them where
it can. No mapping is touched: a file that shrinks meanwhile raises an error instead of a fault.

Everything particular to a device is in a `Backend`; `weightmap.torch` has that of PyTorch.
"""

from weightmap.device._loader import Loader, load
from weightmap.device._slots import Backend, Change, Event, Exchange, Staging, release_slots

__all__ = ["Backend", "Change", "Event", "Exchange", "Loader", "Staging", "load", "release_slots"]
