"""Instruction sets: which there are, which is in use, and the functions that follow from it."""

from __future__ import annotations

from weightmap.kernels._native import NULL, ffi, lib


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this CPU has, plainest first: "portable" is always there.

    Examples
    --------
    >>> available_isas()[0]
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
    """Return the instruction set in use: the best one available, unless `use_isa` chose another."""
    name: str = ffi.string(lib.wm_isa_name(lib.wm_isa_selected())).decode()
    return name


def use_isa(name: str) -> None:
    """Use the instruction set `name` from now on, in all threads: for tests and comparisons, results never differ.

    Parameters
    ----------
    name : str
        One of `available_isas`.

    Raises
    ------
    ValueError
        When this CPU does not have it.
    """
    tier = 0
    while (found := lib.wm_isa_name(tier)) != NULL:
        if ffi.string(found).decode() == name and lib.wm_isa_select(tier) == 0:
            return
        tier += 1
    msg = f"instruction set {name!r} is not available here; there are {', '.join(available_isas())}"
    raise ValueError(msg)


def crc32_variant() -> str:
    """Return the name of the C function that `crc32` uses for long inputs, such as "crc32_x86_pclmulqdq"."""
    name: str = ffi.string(lib.wm_crc32_variant()).decode()
    return name


def fnv1a32_variant() -> str:
    """Return the name of the C function that `fnv1a32_many` uses."""
    name: str = ffi.string(lib.wm_fnv1a32_variant()).decode()
    return name


def intblock_variant() -> str:
    """Return the name of the C function that decodes quantised blocks."""
    name: str = ffi.string(lib.wm_intblock_variant()).decode()
    return name


def combine_rows_variant() -> str:
    """Return the name of the C function that multiplies by projections."""
    name: str = ffi.string(lib.wm_combine_rows_variant()).decode()
    return name
