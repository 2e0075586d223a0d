"""Arrays of jax over the memory of arrays and files; ``jax`` is imported at the first call."""

from __future__ import annotations

from typing import Any

import numpy as np

from weightmap.errors import MissingDependencyError

__all__ = ["to_jax"]


def to_jax(array: Any) -> Any:
    """Return an array of jax with the values of `array`; a quantised tensor is decoded to float32.

    Raises
    ------
    MissingDependencyError
        jax is not installed.
    """
    try:
        import jax.numpy as jnp
    except ImportError:
        raise MissingDependencyError("jax is needed for this: pip install jax") from None
    return jnp.asarray(np.asarray(array))
