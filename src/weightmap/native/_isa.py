"""Instruction sets: those available, the one in use, and the C functions chosen for it."""

from __future__ import annotations

import os

from weightmap.native._native import NULL, ffi, lib


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets of this CPU, plainest first; "portable" is always available.

    Examples
    --------
    >>> from weightmap import kernels
    >>> kernels.available_isas()[0]
    'portable'
    """
    names = []
    tier = 0
    while (name := lib.wm_isa_name(tier)) != NULL:
        if lib.wm_isa_available(tier):
            names.append(ffi.string(name).decode())
        tier += 1
    return tuple(names)


def isa() -> str:
    """Return the instruction set in use: the best available one, unless `use_isa` chose another."""
    name: str = ffi.string(lib.wm_isa_name(lib.wm_isa_selected())).decode()
    return name


def use_isa(name: str) -> None:
    """Use the instruction set `name` from now on, in all threads. Results never differ: it is for tests and timings.

    Parameters
    ----------
    name : str
        One of `available_isas`.

    Raises
    ------
    ValueError
        When this CPU lacks it.
    """
    tier = 0
    while (found := lib.wm_isa_name(tier)) != NULL:
        if ffi.string(found).decode() == name and lib.wm_isa_select(tier) == 0:
            return
        tier += 1
    msg = f"instruction set {name!r} is not available here; there are {', '.join(available_isas())}"
    raise ValueError(msg)


def variant(kernel: str) -> str:
    """Return the name of the C function in use for a kernel, such as "crc32_x86_pclmulqdq".

    Parameters
    ----------
    kernel : str
        "crc32", "fnv1a32", "f16_to_f32", "bf16_to_f32", "intblock", "combine_rows" or "groups".
    """
    name: str = ffi.string(getattr(lib, f"wm_{kernel}_variant")()).decode()
    return name


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
