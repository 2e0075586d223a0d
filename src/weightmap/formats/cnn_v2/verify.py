"""The checks of `TensorFile.verify` in a CNN v2 file: everything that opening leaves unread."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from weightmap.errors import LayoutError, counted
from weightmap.formats.cnn_v2 import HALF, HEADER_SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.formats._verification import Verification

_MAX_MIP_LEVEL, _MAX_OUT_CHANNELS = 3, 8


def verify_cnn(run: Verification, crc: int, base: int, total: int) -> None:
    """Check that header and records are unchanged, the values of their fields, and the padding."""
    start = run.read(0, base)
    run.unchanged(start, crc, "the header or the layer records")
    run.checked("header and layer records")
    header_size = HEADER_SIZES[start[4]]
    if header_size == 20:
        (mip_level,) = struct.unpack_from("<I", start, 16)
        if mip_level > _MAX_MIP_LEVEL:
            run.warn(f"mip_level is {mip_level}, above {_MAX_MIP_LEVEL}")
    layers = np.frombuffer(start, "<u4", offset=header_size).reshape(-1, 5)
    _warn_of(run, layers[:, 2] > _MAX_OUT_CHANNELS, f"more than {_MAX_OUT_CHANNELS} out_channels")
    _warn_of(run, layers[:, 0] % 2 == 0, "an even kernel_size")
    end = base + HALF * total
    run.until(end)
    if total % 2 and run.source.size >= end + HALF:
        if any(run.read(end, HALF)):
            run.tolerate(LayoutError("the spare half of the last pair is not zero", field="padding", offset=end))
        run.checked("padding is zero")
    run.rest()


def _warn_of(run: Verification, layers: NDArray[np.bool_], what: str) -> None:
    """Warn of the marked layers, which have `what`, and name the first few."""
    found = np.flatnonzero(layers).tolist()
    if found:
        some = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
        run.warn(f"{counted(len(found), 'layer')} with {what}: {some}")
