"""Types for annotations: what `weightmap.open` and `weightmap.save` take, and what methods of a handle return."""

from weightmap.core.model.typing import *  # noqa: F403 - all names in its `__all__`
from weightmap.core.model.typing import __all__ as __all__  # noqa: PLC0414 - passed on
