"""What changed between two versions of a model: published, pulled, applied, and opened as one (see docs/deltas.md).

``weightmap.open(base, deltas=[...])`` opens a model under deltas. They need the extra ``[deltas]``.
"""

from typing import TYPE_CHECKING

from weightmap.lazy import on_demand

if TYPE_CHECKING:
    from weightmap.deltas.publishing import publish
    from weightmap.deltas.pulling import apply, pull
    from weightmap.deltas.report import DeltaReport

__all__ = ["DeltaReport", "apply", "publish", "pull"]

_ON_DEMAND = {"DeltaReport": "report", "apply": "pulling", "publish": "publishing", "pull": "pulling"}
__getattr__ = on_demand(__name__, globals(), _ON_DEMAND)
