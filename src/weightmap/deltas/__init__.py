"""Deltas, the changes between versions of a model: published, pulled, applied, and opened (see docs/deltas.md).

`open` opens a model under deltas. Deltas need the extra ``[deltas]``.
"""

from typing import TYPE_CHECKING

from weightmap.core.hooks import on_demand

if TYPE_CHECKING:
    from weightmap.deltas.overlay import open
    from weightmap.deltas.publishing import DeltaReport, publish
    from weightmap.deltas.pulling import apply, pull

__all__ = ["DeltaReport", "apply", "open", "publish", "pull"]

_ON_DEMAND = {
    "DeltaReport": "publishing",
    "apply": "pulling",
    "open": "overlay",
    "publish": "publishing",
    "pull": "pulling",
}
__getattr__, __dir__ = on_demand(__name__, globals(), _ON_DEMAND)
