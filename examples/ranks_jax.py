"""Arrays of jax over several devices, each read from its own bytes of the file: ``python examples/ranks_jax.py MODEL``.

jax asks for the index of each device of this process; `weightmap` reads it. One processor stands for four devices with
``XLA_FLAGS=--xla_force_host_platform_device_count=4``.
"""

from __future__ import annotations

import sys
from typing import Any

import weightmap as wm


def load_sharded(path: str, rows: Any) -> dict[str, Any]:
    """Return all tensors as arrays over the devices of a sharding of their first axis; others on every device."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    found = {}
    with wm.open(path) as file:
        for name in file:
            info = file.info(name)
            whole = not info.shape or info.shape[0] % rows.mesh.size
            sharding = NamedSharding(rows.mesh, PartitionSpec()) if whole else rows

            def part(index: tuple[slice, ...], name: str = name) -> Any:
                with wm.plan(file, {name: index or ...}) as plan:
                    return next(array for _, array in plan.run("read"))

            found[name] = jax.make_array_from_callback(info.shape, sharding, part)
    return found


def main(path: str) -> None:
    """Load over all devices, and say where the parts are."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    for name, array in load_sharded(path, rows).items():
        parts = ", ".join(str(shard.data.shape) for shard in array.addressable_shards)
        print(f"{name}: {parts}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
