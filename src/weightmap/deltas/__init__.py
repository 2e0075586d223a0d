"""What changed between two versions of a model: published, pulled, applied, and opened as one (see docs/deltas.md).

``weightmap.open(base, deltas=[...])`` opens a model under deltas. They need the extra ``[deltas]``.
"""

from typing import TYPE_CHECKING

from weightmap.lazy import on_demand

if TYPE_CHECKING:
    from weightmap.deltas.report import DeltaReport

__all__ = ["DeltaReport"]

__getattr__ = on_demand(__name__, globals(), {"DeltaReport": "report"})
