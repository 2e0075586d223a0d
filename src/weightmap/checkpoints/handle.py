"""`Weights`: the parameters of a model as a handle."""

from __future__ import annotations

import copyreg
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import counted, escape, quoted
from weightmap.checkpoints.configuration import as_parameters
from weightmap.checkpoints.weights import Components, stored_info, stored_rows
from weightmap.core.dtypes import DTYPES, name_of_dtype
from weightmap.core.model.file import TensorFile
from weightmap.core.model.internals import detach_index, parts_of, row_of
from weightmap.core.model.reading import read
from weightmap.core.native import access
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightmap.core.model.reports import Residency, VerifyReport
    from weightmap.core.table.table import Table, TensorInfo

# Types that parameters are decoded to.
_DECODED = ("float32", "float16", "bfloat16")


class Weights(TensorFile):
    """The parameters of a model, as a handle on its files: see `TensorFile.weights`.

    Parameters
    ----------
    stored : TensorFile
        A handle on the stored tensors.
    table : Table, optional
        The parameters; by default the stored tensors, for a model that is not quantised.
    """

    __slots__ = ("stored",)

    def __init__(self, stored: TensorFile, table: Table | None = None) -> None:
        source, content, options = parts_of(stored)
        varied = content if table is None else content.varied(table=table)
        super().__init__(source, stored.format, varied, options)
        # A second handle: this one and the caller's would keep each other alive.
        self.stored: TensorFile = TensorFile(source, stored.format, content, options, stored._shards)  # noqa: SLF001

    @property
    def weights(self) -> Weights:
        """These parameters."""
        return self

    def info(self, name: str) -> TensorInfo:
        """Return name, scheme or dtype, shape, offset and stored size of a parameter: see `TensorFile.info`."""
        return stored_info(name, row_of(self, name))

    def infos(self) -> list[TensorInfo]:
        """Return the `TensorInfo` of every parameter, in file order."""
        return [info for info, _ in stored_rows(self)]

    def read(self, name: str, dtype: Any = None, *, out: Any = None, threads: int | None = None) -> Any:
        """Read and decode a parameter, without an intermediate copy in the model's type: see `TensorFile.read`."""
        row = row_of(self, name)
        if not isinstance(row.geometry, Components):
            return super().read(name, dtype, out=out, threads=threads)
        target = name_of_dtype(access.given_array(out).dtype if out is not None else dtype or np.float32)
        decoded = DTYPES[target if target in _DECODED else "float32"]
        row = row._replace(dtype=decoded, nbytes=math.prod(row.shape) * decoded.bits // 8)
        try:
            return read(row.dense, dtype, out, threads, self._options.limits, f"parameter {quoted(name)}")
        except TensorFileError as error:
            raise error.located(path=row.source.name, format=self.format) from None

    def verify(self, *, progress: Callable[[int, int], None] | None = None, threads: int | None = None) -> VerifyReport:
        """Verify the stored tensors as `TensorFile.verify` does; also check that they make the parameters."""
        return self.verified(self.stored.verify(progress=progress, threads=threads))

    def verified(self, report: VerifyReport) -> VerifyReport:
        """Check that the stored tensors of a report make the parameters; return the report with this check."""
        detach_index(self)
        self._table.check()
        return report._replace(checks=(*report.checks, counted(len(self), "parameter")))

    def prefetch(self, names: str | Sequence[str] | None = None) -> None:
        """Bring the stored tensors of these parameters into memory: see `TensorFile.prefetch`."""
        self.stored.prefetch(self._stored_names(names))

    def residency(self, names: str | Sequence[str] | None = None) -> dict[str, Residency]:
        """Return the resident and all stored bytes of each parameter: see `TensorFile.residency`."""
        chosen = [names] if isinstance(names, str) else self if names is None else names
        pieces_of = {name: self._pieces_of(name) for name in chosen}
        stored = self.stored.residency([piece for pieces in pieces_of.values() for piece in pieces])
        total = {}
        for name, pieces in pieces_of.items():
            resident, nbytes = map(sum, zip(*(stored[piece] for piece in pieces), strict=True))
            total[name] = stored[pieces[0]]._replace(resident=resident, nbytes=nbytes)
        return total

    def release(self, names: str | Sequence[str] | None = None) -> int:
        """Give the pages of the stored tensors of these parameters back: see `TensorFile.release`."""
        return self.stored.release(self._stored_names(names))

    def _stored_names(self, names: str | Sequence[str] | None) -> list[str] | None:
        """Return the names of the stored tensors of parameters; None for all."""
        if names is None:
            return None
        return [piece for name in ([names] if isinstance(names, str) else names) for piece in self._pieces_of(name)]

    def _pieces_of(self, name: str) -> list[str]:
        """Return the names of the stored tensors of a parameter."""
        pieces = row_of(self, name).geometry
        return [piece for piece, _ in pieces.rows.values()] if isinstance(pieces, Components) else [name]

    def close(self) -> None:
        """Release the files, also for the handle that has these weights."""
        super().close()
        self.stored.close()

    def __repr__(self) -> str:
        return f"<Weights of {escape(repr(self.stored))}>"


def stored_model(file: TensorFile) -> TensorFile:
    """Return the handle on the stored tensors: for parameters the handle behind them, else the handle itself."""
    return file.stored if isinstance(file, Weights) else file


def weights_of(file: TensorFile) -> Weights:
    """Return a handle on the parameters of a model, quantised or not: see `TensorFile.weights`."""
    model = as_parameters(file)
    return Weights(file, None if model is file else parts_of(model)[1].table)


copyreg.pickle(Weights, lambda weights: (weights_of, (weights.stored,)))
